// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/csi-transfer/csi-transfer/internal/docs"
)

// exhaustive says that every case of what is tried systematically is to be
// tried, on many stages. Otherwise a test takes a sample of them.
var exhaustive = os.Getenv("EXHAUSTIVE") == "1"

// sample leaves of the cases what a run is to try, evenly spread.
func sample[T any](cases []T, size int) []T {
	if exhaustive || len(cases) <= size {
		return cases
	}
	var few []T
	for i := range size {
		few = append(few, cases[i*len(cases)/size])
	}
	return few
}

// stagesWanted is on how many stages cases are tried at the same time.
func stagesWanted() int {
	if exhaustive {
		return 4
	}
	return 2
}

// tally counts what was tried and what came of it.
type tally struct {
	mu     sync.Mutex
	counts map[string]map[string]int // by kind and result
}

var (
	faultTally = &tally{}
	raceTally  = &tally{}
	soakTally  = &tally{}
	// blamed counts what must never happen.
	blamed = &tally{}
)

func (t *tally) add(kind, result string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.counts == nil {
		t.counts = map[string]map[string]int{}
	}
	if t.counts[kind] == nil {
		t.counts[kind] = map[string]int{}
	}
	t.counts[kind][result]++
}

const failed = "failed"

// addWhenDone counts a test when it is over: as failed, or as what result says,
// which is empty for a case that could not be tried.
func (t *tally) addWhenDone(test *testing.T, kind string, result func() string) {
	test.Cleanup(func() {
		if test.Failed() {
			t.add(kind, failed)
		} else if r := result(); r != "" {
			t.add(kind, r)
		}
	})
}

// report prints what was tried, one table for each tally with a line of sums at
// its end. An exhaustive run with UPDATE_DOCS=1 writes them into the document too.
func report() error {
	var problems []error
	for _, r := range []struct {
		name string
		t    *tally
		sums func() string
	}{
		{"faults", faultTally, func() string { return sums("faults", faultTally) }},
		{"races", raceTally, func() string { return sums("races", raceTally) }},
		{"soak", soakTally, soakSums},
	} {
		if len(r.t.counts) == 0 {
			continue
		}
		table, sums := r.t.table(), r.sums()
		fmt.Printf("%s\n%s\n", table, sums)
		if exhaustive && docs.Updating() {
			problems = append(problems, docs.Write(filepath.Join(repository, "docs", "reliability.md"), r.name, table+"\n`"+sums+"`"))
		}
	}
	return errors.Join(problems...)
}

func sums(name string, t *tally) string {
	cases := 0
	for kind := range t.counts {
		cases += t.kind(kind)
	}
	return fmt.Sprintf("%s: cases=%d failed=%d", name, cases, t.result(failed))
}

// table has a row for each kind and a column for each result.
func (t *tally) table() string {
	results := sets.New[string]()
	for _, counts := range t.counts {
		results = results.Union(sets.KeySet(counts))
	}
	header := append([]string{""}, sets.List(results)...)
	var rows [][]string
	for _, kind := range slices.Sorted(maps.Keys(t.counts)) {
		row := []string{kind}
		for _, result := range header[1:] {
			row = append(row, strconv.Itoa(t.counts[kind][result]))
		}
		rows = append(rows, row)
	}
	return docs.Table(header, rows)
}

// kind and result are sums.
func (t *tally) kind(kind string) (sum int) {
	for _, n := range t.counts[kind] {
		sum += n
	}
	return sum
}

func (t *tally) result(result string) (sum int) {
	for _, counts := range t.counts {
		sum += counts[result]
	}
	return sum
}

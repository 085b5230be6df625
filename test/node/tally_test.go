// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/csi-transfer/csi-transfer/internal/docs"
)

// tally counts what was tried and what came of it.
type tally struct {
	mu sync.Mutex
	// groups are in the order in which they began.
	groups []*group
	// waits are how long volumes that nobody used any more took to be bound to the
	// receiving claim.
	waits []time.Duration
	// pods that came and went in storms, and looks at the node's mounts.
	pods, looks int
	// shared counts the moments in which a volume was published for both
	// namespaces.
	shared int
}

// group is the cases of one test.
type group struct {
	name                     string
	cases, failed, transfers int
}

var counts tally

// count changes what was counted for the group of a test.
func (y *tally) count(test string, change func(*group)) {
	y.mu.Lock()
	defer y.mu.Unlock()
	name := groupOf(test)
	i := slices.IndexFunc(y.groups, func(g *group) bool { return g.name == name })
	if i < 0 {
		i = len(y.groups)
		y.groups = append(y.groups, &group{name: name})
	}
	change(y.groups[i])
}

// groupOf makes of TestStorm/with_fences/lanes/1 "Storm with fences".
func groupOf(test string) string {
	parts := strings.Split(strings.TrimPrefix(test, "Test"), "/")
	if parts[0] != "Storm" {
		return parts[0]
	}
	return parts[0] + " " + strings.ReplaceAll(parts[1], "_", " ")
}

// add changes what is counted for all.
func (y *tally) add(change func(*tally)) {
	y.mu.Lock()
	defer y.mu.Unlock()
	change(y)
}

func (y *tally) table() string {
	rows := make([][]string, len(y.groups))
	for i, g := range y.groups {
		rows[i] = []string{g.name, strconv.Itoa(g.cases), strconv.Itoa(g.failed), strconv.Itoa(g.transfers)}
	}
	table := docs.Table([]string{"", "cases", "failed", "transfers"}, rows)
	if len(y.waits) > 0 {
		slices.Sort(y.waits)
		table += fmt.Sprintf("\nFrom free to Bound: %d transfers, median %s, longest %s.\n", len(y.waits),
			y.waits[len(y.waits)/2].Round(time.Millisecond), y.waits[len(y.waits)-1].Round(time.Millisecond))
	}
	if y.pods > 0 {
		table += fmt.Sprintf("In the storms %d pods came and went, and the node's mounts were looked at %d times.\n", y.pods, y.looks)
	}
	return table
}

func (y *tally) sums() string {
	var all group
	for _, g := range y.groups {
		all.cases += g.cases
		all.failed += g.failed
		all.transfers += g.transfers
	}
	return fmt.Sprintf("node: cases=%d failed=%d transfers=%d shared=%d", all.cases, all.failed, all.transfers, y.shared)
}

// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol_test

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/csi-transfer/csi-transfer/internal/docs"
)

var (
	deeper = flag.Int("deeper", 0, "how much deeper TestExplore goes, in moves or what a scenario's stride is")
	record = flag.Bool("record", false, "write what was explored to docs/reliability.md, and a last line")
)

// scenarios bound who takes part, so that every way can be gone: one for each
// kind of trouble.
var scenarios = []scenario{
	{name: "users", sidecars: 1, slow: true, budget: 3, depth: 4,
		things: []string{"delete source", "delete receiver", "create receiver", "create greedy receiver", "withdraw", "approve again", "delete request", "request again", "opt out", "terminate", "a burst"}},
	{name: "pods", sidecars: 1, slow: true, stale: true, lag: true, budget: 4, depth: 5,
		things: []string{"prod pod", "prod pod goes", "dev pod", "dev pod goes", "minutes pass"}},
	{name: "binder", sidecars: 1, slow: true, lag: true, budget: 3, depth: 4,
		things: []string{"delete source", "delete receiver", "create receiver", "withdraw", "stranger asks", "volume for anybody", "receiver names a volume"}},
	{name: "bound elsewhere", sidecars: 1, stale: true, lag: true, budget: 3, depth: 4, stride: 2,
		things: []string{"delete receiver", "create receiver", "volume for anybody"}},
	{name: "two sidecars", sidecars: 2, slow: true, stale: true, budget: 2, depth: 3,
		things: []string{"delete source", "delete receiver", "withdraw", "approve again", "delete request", "prod pod", "minutes pass"}},
	{name: "names used again", sidecars: 1, slow: true, stale: true, budget: 4, depth: 4,
		things: []string{"delete source", "source anew", "delete request", "request again", "withdraw", "approve again", "delete receiver", "create receiver", "minutes pass"}},
	{name: "rivals", sidecars: 1, slow: true, budget: 4, depth: 4,
		things: []string{"request twice", "receive twice", "approve twice", "withdraw", "delete source", "delete request", "delete receiver"}},
	{name: "snapshots, clones and sizes", sidecars: 1, slow: true, budget: 3, depth: 4,
		things: []string{"snapshot", "group snapshot", "clone", "expand source", "withdraw", "the driver fails", "minutes pass"}},
	{name: "administrator", sidecars: 1, slow: true, lag: true, budget: 3, depth: 3,
		things: []string{"delete volume", "claimRef loses its UID", "claimRef is removed", "policy Delete", "stranger asks", "withdraw", "delete source", "delete receiver", "minutes pass"}},
}

// disorder says what may be late, old or there twice.
func (s *scenario) disorder() string {
	var all []string
	for _, d := range []struct {
		in   bool
		name string
	}{{s.sidecars > 1, "two sidecars"}, {s.slow, "pauses"}, {s.stale, "old caches"}, {s.lag, "binder behind"}} {
		if d.in {
			all = append(all, d.name)
		}
	}
	return strings.Join(all, ", ")
}

// explored is what became of a scenario.
type explored struct {
	states, transitions int
	// all is true where no move was left.
	all bool
	// violation is the shortest way to one, if there is any.
	violation string
}

// recorder takes what a world complains of.
type recorder struct {
	testing.TB
	errors []string
}

func (r *recorder) Helper()           {}
func (r *recorder) Error(args ...any) { r.errors = append(r.errors, fmt.Sprint(args...)) }
func (r *recorder) Errorf(f string, args ...any) {
	r.errors = append(r.errors, fmt.Sprintf(f, args...))
}
func (r *recorder) Fatal(args ...any)            { panic(fmt.Sprint(args...)) }
func (r *recorder) Fatalf(f string, args ...any) { panic(fmt.Sprintf(f, args...)) }

// node is how a state was reached.
type node struct {
	from int32
	move string
}

// explorer goes every way of a scenario, the shortest first.
type explorer struct {
	*scenario
	mu     sync.Mutex
	seen   map[uint64]bool
	rested map[uint64]bool
	nodes  []node
	next   []reached
	result explored
}

type reached struct {
	*world
	node int32
}

func (s *scenario) explore(t testing.TB, depth int, without *safeguard) explored {
	e := &explorer{scenario: s, seen: map[uint64]bool{}, rested: map[uint64]bool{}}
	w := s.enter(t, newTable())
	w.without = without
	e.undisturbed(w)
	for d := 0; len(e.next) > 0 && d < depth && e.result.violation == ""; d++ {
		level := e.next
		e.next = nil
		e.level(level)
	}
	e.result.all = len(e.next) == 0
	return e.result
}

// undisturbed reaches the states of a transfer to which nothing happens.
func (e *explorer) undisturbed(w *world) {
	from := int32(-1)
	name := "start"
	for e.reach(w, from, name) {
		from++
		for _, m := range e.moves(w) {
			rec := &recorder{}
			after := w.clone(rec)
			m.do(after)
			after.become(0)
			if after.check(); len(rec.errors) > 0 {
				e.violated(from, m.name, rec.errors)
				return
			}
			if m.usual && !e.seen[after.hash()] {
				w, name = after, m.name
				break
			}
		}
	}
}

// level goes on from every state of one depth.
func (e *explorer) level(level []reached) {
	work := make(chan []reached)
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for states := range work {
				for _, r := range states {
					e.expand(r)
				}
			}
		})
	}
	for len(level) > 0 {
		n := min(64, len(level))
		work <- level[:n:n]
		level = level[n:]
	}
	close(work)
	workers.Wait()
}

// expand makes every move that is possible in a state.
func (e *explorer) expand(r reached) {
	before := r.hash()
	rec := &recorder{}
	base := r.clone(rec)
	for _, m := range e.moves(base) {
		w := base.clone(rec)
		m.do(w)
		w.become(0)
		w.check()
		if len(rec.errors) > 0 {
			e.violated(r.node, m.name, rec.errors)
			return
		}
		if h := w.hash(); h != before {
			e.reach(w, r.node, m.name)
		}
	}
	e.rest(r)
}

// reach counts a transition, and a state if it is new.
func (e *explorer) reach(w *world, from int32, move string) bool {
	h := w.hash()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.result.transitions++
	if e.seen[h] {
		return false
	}
	e.seen[h] = true
	e.result.states++
	e.nodes = append(e.nodes, node{from, move})
	e.next = append(e.next, reached{w, int32(len(e.nodes) - 1)})
	return true
}

// rest makes sure that a state comes to a good end when nothing more happens.
func (e *explorer) rest(r reached) {
	rec := &recorder{}
	w := r.clone(rec)
	var told []string
	w.rest(func(format string, args ...any) { told = append(told, fmt.Sprintf(format, args...)) }, func() bool {
		h := w.hash()
		e.mu.Lock()
		defer e.mu.Unlock()
		known := e.rested[h]
		e.rested[h] = true
		return known
	})
	if len(rec.errors) > 0 {
		e.violated(r.node, "rest\n    "+strings.Join(told, "\n    "), rec.errors)
	}
}

// violated keeps one way.
func (e *explorer) violated(at int32, last string, errors []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.result.violation != "" {
		return
	}
	path := []string{last}
	for n := at; n >= 0; n = e.nodes[n].from {
		path = append([]string{e.nodes[n].move}, path...)
	}
	e.result.violation = strings.Join(path, "\n") + "\nVIOLATION: " + strings.Join(errors, "\n")
}

// summary is the last line of make explore.
var summary struct {
	sync.Mutex
	states, transitions, violations, safeguards, caught int
}

// TestMain ends with the summary of an exploration.
func TestMain(m *testing.M) {
	flag.Parse()
	code := m.Run()
	if *record {
		fmt.Printf("explore: states=%d transitions=%d violations=%d safeguards=%d caught=%d\n",
			summary.states, summary.transitions, summary.violations, summary.safeguards, summary.caught)
	}
	os.Exit(code)
}

// TestExplore goes every way through each scenario.
func TestExplore(t *testing.T) {
	var rows [][]string
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			depth := s.depth + *deeper*max(1, s.stride)
			r := s.explore(t, depth, nil)
			to := fmt.Sprint(depth)
			if r.all {
				to = "all"
			}
			rows = append(rows, []string{s.name, s.disorder(), strings.Join(s.things, ", "), fmt.Sprint(s.budget), to, fmt.Sprint(r.states), fmt.Sprint(r.transitions)})
			t.Logf("%s: %d states, %d transitions, depth %s", s.name, r.states, r.transitions, to)
			summary.states += r.states
			summary.transitions += r.transitions
			if r.violation != "" {
				summary.violations++
				t.Error("the shortest way to a violation:\n" + r.violation)
			}
		})
	}
	if *record && !t.Failed() && len(rows) == len(scenarios) {
		rows = append(rows, []string{"all", "", "", "", "", fmt.Sprint(summary.states), fmt.Sprint(summary.transitions)})
		docs.Check(t, "../../../docs/reliability.md", "explore", docs.Table([]string{"scenario", "disorder", "what users may do", "of these at most", "moves beside the transfer's own", "states", "transitions"}, rows))
	}
}

// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/csi-transfer/csi-transfer/test/cluster"
)

// soakOptions come from the environment.
type soakOptions struct {
	// n transfers are played, if they fit into the time (SOAK_N, SOAK_TIME).
	n    int
	time time.Duration
	// seed decides what becomes of each (SOAK_SEED; by default another each time).
	seed uint64
}

func soakFromEnvironment() (soakOptions, error) {
	o := soakOptions{n: 12, time: time.Minute, seed: rand.Uint64N(1 << 32)}
	var err error
	if v := os.Getenv("SOAK_N"); v != "" {
		if o.n, err = strconv.Atoi(v); err != nil {
			return o, fmt.Errorf("SOAK_N: %w", err)
		}
	}
	if v := os.Getenv("SOAK_TIME"); v != "" {
		if o.time, err = time.ParseDuration(v); err != nil {
			return o, fmt.Errorf("SOAK_TIME: %w", err)
		}
	}
	if v := os.Getenv("SOAK_SEED"); v != "" {
		if o.seed, err = strconv.ParseUint(v, 10, 64); err != nil {
			return o, fmt.Errorf("SOAK_SEED: %w", err)
		}
	}
	return o, nil
}

// misfortune is what becomes of one transfer of a soak.
type misfortune struct {
	// faults are due at the first call that they suit from the one of that number
	// on.
	faults []dueFault
	// action, if there is one, is done at the write of that number.
	action  *action
	write   int
	applied bool
}

type dueFault struct {
	call int
	fault
}

// misfortuneOf is the same for the same seed and number.
func misfortuneOf(seed uint64, number int) misfortune {
	r := rand.New(rand.NewPCG(seed, uint64(number)))
	var m misfortune
	for range r.IntN(4) {
		m.faults = append(m.faults, dueFault{1 + r.IntN(40), faults[r.IntN(len(faults))]})
	}
	if r.IntN(2) == 0 {
		fenced := fencedActions()
		m.action = &fenced[r.IntN(len(fenced))]
		// No transfer makes fewer writes than seven.
		m.write, m.applied = 1+r.IntN(7), r.IntN(2) == 0
	}
	return m
}

func fencedActions() []action {
	var fenced []action
	for _, a := range actions {
		if !a.bare {
			fenced = append(fenced, a)
		}
	}
	return fenced
}

// String is how the misfortune is told in a failure.
func (m misfortune) String() string {
	var parts []string
	for _, f := range m.faults {
		parts = append(parts, fmt.Sprintf("%s at call %d", f.name, f.call))
	}
	if m.action != nil {
		parts = append(parts, fmt.Sprintf("%s at write %d, applied %t", m.action.name, m.write, m.applied))
	}
	return strings.Join(parts, ", ")
}

// soaked counts what a soak has come to.
var soaked struct {
	seed                uint64
	transfers, disturbs atomic.Int64
}

// TestSoak: many transfers at once, each with a few faults and something that
// somebody does meanwhile, at random.
func TestSoak(t *testing.T) {
	options, err := soakFromEnvironment()
	if err != nil {
		t.Fatal(err)
	}
	s := newScene(t)
	soaked.seed = options.seed
	t.Logf("SOAK_SEED=%d", options.seed)
	var stages []*stage
	for len(stages) < stagesWanted() {
		stages = append(stages, s.newStage(cluster.DriverOptions{Snapshotter: true}))
	}
	names := make([]string, options.n)
	for i := range names {
		names[i] = fmt.Sprint(i)
	}
	ctx, cancel := context.WithTimeout(t.Context(), options.time)
	defer cancel()
	onStages(ctx, s, stages, names, func(s *scene, st *stage, i int) {
		s.suffer(st, misfortuneOf(options.seed, i))
	})
}

// suffer plays one transfer.
func (s *scene) suffer(st *stage, m misfortune) {
	s.Log(m)
	source := s.source()
	before := s.volume(s.moving)
	if m.action != nil && m.action.pod != nil {
		s.unscheduled(m.action.pod(s))
	}
	soaked.transfers.Add(1)
	var how ending
	soakTally.addWhenDone(s.T, "transfers", func() string { return string(how) })

	g := newGate(s)
	var mu sync.Mutex
	calls, writes := 0, 0
	due := m.faults
	s.calls(st, func(c numberedCall, forward func() error) error {
		mu.Lock()
		calls++
		isWrite := c.Writes() && c.Resource != "events"
		if isWrite {
			writes++
		}
		atGate := m.action != nil && isWrite && writes == m.write
		var befalls *fault
		for i, f := range due {
			if f.call <= calls && f.suits(c.Call) {
				befalls, due = &f.fault, append(due[:i:i], due[i+1:]...)
				break
			}
		}
		mu.Unlock()
		gated := func() error {
			if atGate && !m.applied {
				g.hold(c, false)
			}
			err := forward()
			if atGate && m.applied {
				g.hold(c, true)
			}
			return err
		}
		if befalls == nil {
			return gated()
		}
		soaked.disturbs.Add(1)
		soakTally.addWhenDone(s.T, befalls.name, func() string { return string(how) })
		if atGate && befalls.before {
			g.hold(c, false) // it will not come to forward
		}
		return befalls.do(st, c.Call, gated)
	})
	s.grant(source)
	if m.action == nil {
		how = s.settled(before, moved)
		s.neverOpen(before)
		return
	}
	if !s.reaches(g) {
		how = s.settled(before, moved)
		return
	}
	soaked.disturbs.Add(1)
	soakTally.addWhenDone(s.T, m.action.name, func() string { return string(how) })
	how = s.race(*m.action, before, g)
	if how == "" { // there was nothing to do
		how = s.settled(before, moved)
	}
}

// soakSums is the line of sums of a soak.
func soakSums() string {
	return fmt.Sprintf("soak: transfers=%d faults=%d lost=%d shared=%d stuck=%d seed=%d", soaked.transfers.Load(), soaked.disturbs.Load(),
		blamed.kind(blameLost), blamed.kind(blameShared), blamed.kind(blameStuck), soaked.seed)
}

// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/csi-transfer/csi-transfer/pkg/driver"
)

var walks = flag.Int("walks", 50, "how many ways TestWalks goes")

// TestWalks goes at random where exploring every way does not reach: everybody
// takes part, the sidecar of another driver and drivers that keep owners too,
// and it takes long.
func TestWalks(t *testing.T) {
	all := scenario{sidecars: 2, slow: true, stale: true, lag: true, budget: len(things)}
	for _, thing := range things {
		all.things = append(all.things, thing.name)
	}
	tab := newTable()
	for seed := range *walks {
		random := rand.New(rand.NewPCG(uint64(seed), 0))
		w := all.enter(t, tab)
		for n := range w.sidecars {
			w.sidecars[n].driver.SetOwner = random.IntN(4) == 0
		}
		w.sidecars = append(w.sidecars, sidecar{driver: driver.Info{Name: "other.example.com"}})
		w.become(0)
		path := []string{}
		for range 50 + random.IntN(150) {
			// What does nothing, or can be done at any time, is not to drown the rest.
			moves := all.moves(w)
			m := moves[random.IntN(len(moves))]
			if strings.HasPrefix(m.name, "user: ") && random.IntN(3) > 0 {
				continue
			}
			path = append(path, m.name)
			m.do(w)
			w.check()
			if t.Failed() {
				break
			}
		}
		w.rest(func(format string, args ...any) { path = append(path, "  "+fmt.Sprintf(format, args...)) }, func() bool { return false })
		if t.Failed() {
			t.Fatalf("walk %d:\n%s", seed, strings.Join(slices.Compact(path), "\n"))
		}
	}
}

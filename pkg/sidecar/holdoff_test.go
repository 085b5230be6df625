// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package sidecar

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

func TestHoldoff(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	key := types.NamespacedName{Namespace: "dev", Name: "take-data"}

	h := newHoldoff(time.Second, 10*time.Second)
	if !h.notBefore(key).IsZero() {
		t.Error("the first attempt has to wait")
	}
	for i, want := range []time.Duration{1, 2, 4, 8, 10, 10} {
		h.failed(key, now)
		if got := h.notBefore(key).Sub(now); got != want*time.Second {
			t.Errorf("after failure %d: waits %s, want %ds", i+1, got, want)
		}
	}
	if other := (types.NamespacedName{Namespace: "dev", Name: "other"}); !h.notBefore(other).IsZero() {
		t.Error("another transfer has to wait")
	}
	h.forget(key)
	if !h.notBefore(key).IsZero() {
		t.Error("what was forgotten has to wait")
	}
}

// TestHoldoffForEver: the wait never shrinks, however long and often.
func TestHoldoffForEver(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	key := types.NamespacedName{Namespace: "dev", Name: "take-data"}
	for _, start := range []time.Duration{time.Nanosecond, time.Second, time.Hour, 240 * time.Hour} {
		h := newHoldoff(start, 240*time.Hour)
		last := time.Duration(0)
		for i := range 200 {
			h.failed(key, now)
			got := h.notBefore(key).Sub(now)
			if got < last || got > 240*time.Hour {
				t.Fatalf("from %s, after failure %d: waits %s, before %s", start, i+1, got, last)
			}
			last = got
		}
		if last != 240*time.Hour {
			t.Errorf("from %s: waits at most %s", start, last)
		}
	}
}

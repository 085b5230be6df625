// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package sidecar

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// holdoff spaces out the attempts of a transfer that keeps being rolled back,
// for instance because pods come back, so that the giver's claim does not flap.
type holdoff struct {
	start, max time.Duration

	mu       sync.Mutex
	attempts map[types.NamespacedName]attempt
}

type attempt struct {
	count int
	next  time.Time
}

func newHoldoff(start, limit time.Duration) *holdoff {
	return &holdoff{start: start, max: limit, attempts: map[types.NamespacedName]attempt{}}
}

func (h *holdoff) failed(key types.NamespacedName, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	a := h.attempts[key]
	delay := h.max
	if h.start <= h.max>>a.count { // the other way round it may overflow
		delay = h.start << a.count
	}
	h.attempts[key] = attempt{count: a.count + 1, next: now.Add(delay)}
}

func (h *holdoff) notBefore(key types.NamespacedName) time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.attempts[key].next
}

func (h *holdoff) forget(key types.NamespacedName) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.attempts, key)
}

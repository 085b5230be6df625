// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package sidecar

import (
	"context"
	"sync"
	"time"
)

// batch runs one read for everybody who asks for the same key before it has
// begun. A caller never gets the result of a read that began before its call,
// so the result is as good as one of its own.
type batch[K comparable, V any] struct {
	read func(context.Context, K) (V, error)

	mu      sync.Mutex
	pending map[K]*round[V]
	running map[K]*round[V]
	// last are the reads that ended less than fresh ago.
	last map[K]*round[V]
}

// fresh is how long the result of a read is good enough for recent.
const fresh = time.Second

// restFactor is how many times as long as a read took the next one of the same key
// waits after it, but no longer than fresh: the slower the reads are, the more
// callers share one.
const restFactor = 3

type round[V any] struct {
	done  chan struct{}
	value V
	err   error
	// rested is when the next read may begin.
	rested time.Time
}

func newBatch[K comparable, V any](read func(context.Context, K) (V, error)) *batch[K, V] {
	return &batch[K, V]{read: read, pending: map[K]*round[V]{}, running: map[K]*round[V]{}, last: map[K]*round[V]{}}
}

// get returns the result of a read that begins after the call. It is shared:
// callers must not change it.
func (b *batch[K, V]) get(ctx context.Context, key K) (V, error) {
	b.mu.Lock()
	next, waiting := b.pending[key]
	if !waiting {
		next = &round[V]{done: make(chan struct{})}
		b.pending[key] = next
	}
	before := b.running[key]
	b.mu.Unlock()

	if !waiting {
		// The first to ask runs the read for all who join while an earlier one
		// is still under way.
		if before != nil {
			<-before.done
		}
		if last, ok := b.latest(key); ok {
			time.Sleep(time.Until(last.rested))
		}
		b.mu.Lock()
		delete(b.pending, key)
		b.running[key] = next
		b.mu.Unlock()

		begun := time.Now()
		next.value, next.err = b.read(ctx, key)
		next.rested = time.Now().Add(min(restFactor*time.Since(begun), fresh))

		b.mu.Lock()
		if b.running[key] == next {
			delete(b.running, key)
		}
		if next.err == nil {
			b.last[key] = next
			time.AfterFunc(fresh, func() { b.drop(key, next) })
		}
		b.mu.Unlock()
		close(next.done)
	}
	<-next.done
	return next.value, next.err
}

// recent returns the result of a read that ended a moment ago, if there is one.
func (b *batch[K, V]) recent(key K) (V, bool) {
	if last, ok := b.latest(key); ok {
		return last.value, true
	}
	var none V
	return none, false
}

func (b *batch[K, V]) latest(key K) (*round[V], bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	last, ok := b.last[key]
	return last, ok
}

func (b *batch[K, V]) drop(key K, r *round[V]) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.last[key] == r {
		delete(b.last, key)
	}
}

// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package sidecar

import (
	"context"
	"sync"
)

// batch runs one read for everybody who asks for the same key before it has
// begun. A caller never gets the result of a read that began before its call,
// so the result is as good as one of its own.
type batch[K comparable, V any] struct {
	read func(context.Context, K) (V, error)

	mu      sync.Mutex
	pending map[K]*round[V]
	running map[K]*round[V]
}

type round[V any] struct {
	done  chan struct{}
	value V
	err   error
}

func newBatch[K comparable, V any](read func(context.Context, K) (V, error)) *batch[K, V] {
	return &batch[K, V]{read: read, pending: map[K]*round[V]{}, running: map[K]*round[V]{}}
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
		b.mu.Lock()
		delete(b.pending, key)
		b.running[key] = next
		b.mu.Unlock()

		next.value, next.err = b.read(ctx, key)

		b.mu.Lock()
		if b.running[key] == next {
			delete(b.running, key)
		}
		b.mu.Unlock()
		close(next.done)
	}
	<-next.done
	return next.value, next.err
}

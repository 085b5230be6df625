// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package sidecar

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	fcache "k8s.io/client-go/tools/cache/testing"

	"github.com/csi-transfer/csi-transfer/pkg/sidecar/protocol"
)

// board is a watches whose informers get what a test puts into its sources.
type board struct {
	*watches
	t       *testing.T
	ctx     context.Context
	sources map[protocol.WatchRef]*fcache.FakeControllerSource
	// gates hold up lists until they are closed.
	gates map[protocol.WatchRef]chan struct{}
	// opened are the scopes in the order in which their informers were made.
	opened []protocol.WatchRef

	mu     sync.Mutex
	called []types.NamespacedName
}

func onBoard(t *testing.T, test func(b *board)) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		b := &board{t: t, ctx: ctx, sources: map[protocol.WatchRef]*fcache.FakeControllerSource{}, gates: map[protocol.WatchRef]chan struct{}{}}
		b.watches = newWatches(func(ref protocol.WatchRef) cache.SharedIndexInformer {
			b.opened = append(b.opened, ref)
			source := b.source(ref)
			return cache.NewSharedIndexInformer(&cache.ListWatch{ListWithContextFunc: func(_ context.Context, o metav1.ListOptions) (runtime.Object, error) {
				if gate := b.gates[ref]; gate != nil {
					<-gate
				}
				return source.List(o)
			}, WatchFuncWithContext: func(_ context.Context, o metav1.ListOptions) (apiwatch.Interface, error) {
				return source.Watch(o)
			}}, &corev1.PersistentVolumeClaim{}, 0, nil)
		}, func(key types.NamespacedName) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.called = append(b.called, key)
		})
		test(b)
		stop()
		synctest.Wait()
		for _, s := range b.sources {
			s.Shutdown()
		}
	})
}

func (b *board) source(ref protocol.WatchRef) *fcache.FakeControllerSource {
	if b.sources[ref] == nil {
		b.sources[ref] = fcache.NewFakeControllerSource()
	}
	return b.sources[ref]
}

// wants says what a transfer wants.
func (b *board) wants(key types.NamespacedName, refs ...protocol.WatchRef) {
	b.want(b.ctx, key, refs...)
}

// has says it again, and whether all of it is there.
func (b *board) has(key types.NamespacedName, all bool, refs ...protocol.WatchRef) {
	b.t.Helper()
	if got := b.want(b.ctx, key, refs...); got != all {
		b.t.Errorf("%s: everything is synced: %v", key.Name, got)
	}
}

// woken are the transfers that were called since the last time.
func (b *board) woken(want ...types.NamespacedName) {
	b.t.Helper()
	synctest.Wait()
	slices.SortFunc(b.called, func(a, b types.NamespacedName) int { return len(a.Name) - len(b.Name) })
	if got := slices.Compact(b.called); !slices.Equal(got, want) {
		b.t.Errorf("woken: %v, want %v", got, want)
	}
	b.called = nil
}

// closes waits until a scope is closed that nobody wants since now.
func (b *board) closes(ref protocol.WatchRef) {
	b.t.Helper()
	if took := takes(b.t, func() bool { return b.scope(ref) == nil }); took != linger {
		b.t.Errorf("%s is closed after %s, want %s", ref.Resource.Resource, took, linger)
	}
}

func (b *board) isOpen(want int) {
	b.t.Helper()
	synctest.Wait()
	if len(b.scopes) != want {
		b.t.Errorf("%d scopes are open, want %d", len(b.scopes), want)
	}
}

func claimNamed(name string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: name}}
}

var (
	short, longer = types.NamespacedName{Namespace: "dev", Name: "a"}, types.NamespacedName{Namespace: "dev", Name: "bb"}
	// extra is a scope that is not read, only watched.
	extra = protocol.WatchRef{Resource: schema.GroupVersionResource{Version: "v1", Resource: "persistentvolumes"}, Name: "pv1"}
)

func TestWatchesAreShared(t *testing.T) {
	onBoard(t, func(b *board) {
		b.source(claimsIn("prod")).Add(claimNamed("data"))
		b.wants(short, claimsIn("prod"))
		b.wants(longer, claimsIn("prod"))
		b.woken(short, longer) // now that it is synced
		b.has(short, true, claimsIn("prod"))
		if n := len(b.opened); n != 1 {
			t.Errorf("%d informers for one scope", n)
		}
		if c := get[corev1.PersistentVolumeClaim](overlay{b.scope(claimsIn("prod")).informer, b.scope(claimsIn("prod")).recent}, types.NamespacedName{Namespace: "prod", Name: "data"}); c == nil {
			t.Error("the claim is not there")
		}
		// What the informer's own handlers map to transfers wakes nobody here.
		b.source(claimsIn("prod")).Modify(claimNamed("data"))
		b.woken()
	})
}

// TestWatchesLinger: a scope outlives the last who wants it for a while, so that
// the next does not list it again.
func TestWatchesLinger(t *testing.T) {
	onBoard(t, func(b *board) {
		b.wants(short, claimsIn("prod"), podsIn("prod"))
		b.wants(longer, claimsIn("prod"))
		b.woken(short, longer)
		b.wants(short)
		b.closes(podsIn("prod"))
		b.isOpen(1)

		// It stays where it is wanted again in time: until after another closes that
		// nobody wants since.
		b.wants(longer)
		b.has(short, true, claimsIn("prod"))
		b.wants(longer, podsIn("prod"))
		b.woken(longer)
		b.wants(longer)
		b.closes(podsIn("prod"))
		b.isOpen(1)

		b.wants(short)
		b.closes(claimsIn("prod"))
		b.isOpen(0)
		b.wants(short, claimsIn("prod"))
		b.woken(short)
		if n := len(b.opened); n != 4 {
			t.Errorf("informers were made %d times: %v", n, b.opened)
		}
	})
}

// TestWatchesWake: what is only watched wakes those who want it, at any change
// and when it is synced, since it may have changed before; and holds up nobody.
func TestWatchesWake(t *testing.T) {
	onBoard(t, func(b *board) {
		b.wants(short, claimsIn("prod"))
		b.woken(short)
		b.add(b.ctx, short, extra)
		b.woken(short)
		b.has(short, true, claimsIn("prod"), extra)
		b.source(extra).Add(claimNamed("pv1"))
		b.woken(short)
		b.source(extra).Modify(claimNamed("pv1"))
		b.woken(short)
		b.source(extra).Delete(claimNamed("pv1"))
		b.woken(short)

		b.has(short, true, claimsIn("prod"))
		b.source(extra).Add(claimNamed("pv1"))
		b.woken()
	})
}

// TestWatchesThatAreSlow: a transfer waits for what it reads, until that is
// there, and for nothing else.
func TestWatchesThatAreSlow(t *testing.T) {
	onBoard(t, func(b *board) {
		claims, other := make(chan struct{}), make(chan struct{})
		b.gates[claimsIn("prod")], b.gates[extra] = claims, other
		b.wants(short, claimsIn("prod"), extra)
		b.woken()
		b.has(short, false, claimsIn("prod"), extra)
		close(claims)
		b.woken(short)
		b.has(short, true, claimsIn("prod"), extra)
		close(other)
		b.woken(short)
	})
}

// TestRecentWrites: what was written is seen before the informer has it, and no
// longer than it is there.
func TestRecentWrites(t *testing.T) {
	onBoard(t, func(b *board) {
		source := b.source(claimsIn("prod"))
		source.Add(claimNamed("data"))
		b.wants(short, claimsIn("prod"))
		b.woken(short)
		w := b.scope(claimsIn("prod"))
		data := types.NamespacedName{Namespace: "prod", Name: "data"}
		seen := func() *corev1.PersistentVolumeClaim {
			return get[corev1.PersistentVolumeClaim](overlay{w.informer, w.recent}, data)
		}
		written := seen().DeepCopy()
		written.ResourceVersion, written.Labels = "999", map[string]string{"written": "yes"}
		w.recent.Mutation(written)
		if c := seen(); c.Labels["written"] == "" {
			t.Error("the write is not seen")
		}
		source.Delete(claimNamed("data"))
		synctest.Wait()
		if c := seen(); c != nil {
			t.Errorf("the claim is gone, and seen as %v", c)
		}
	})
}

// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package sidecar

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/csi-transfer/csi-transfer/pkg/sidecar/protocol"
)

// linger is how long a watch outlives the last transfer that wanted it, so that
// one transfer after another in a namespace does not list it each time.
const linger = time.Minute

// watches keeps one informer for each scope that an open transfer wants, and no
// other: what the sidecar reads follows the open transfers, not the cluster.
type watches struct {
	// open makes the informer of a scope.
	open func(protocol.WatchRef) cache.SharedIndexInformer
	// changed is called with every transfer that wants a scope when the scope is
	// synced and, for scopes that the informer's own handlers do not map to
	// transfers, when anything in it changes.
	changed func(types.NamespacedName)

	mu     sync.Mutex
	wants  map[types.NamespacedName]sets.Set[protocol.WatchRef]
	scopes map[protocol.WatchRef]*watch
}

type watch struct {
	informer cache.SharedIndexInformer
	recent   cache.MutationCache
	wantedBy sets.Set[types.NamespacedName]
	stop     context.CancelFunc
	expiry   *time.Timer
}

func newWatches(open func(protocol.WatchRef) cache.SharedIndexInformer, changed func(types.NamespacedName)) *watches {
	return &watches{
		open: open, changed: changed,
		wants:  map[types.NamespacedName]sets.Set[protocol.WatchRef]{},
		scopes: map[protocol.WatchRef]*watch{},
	}
}

// want replaces what a transfer watches and reports whether all of it that is
// read is synced. When it is not, changed is called for the transfer once it is.
// Other scopes only wake a transfer, also when they are synced: one that cannot
// be watched, because its API is gone or the right is missing, holds up nothing.
func (w *watches) want(ctx context.Context, key types.NamespacedName, refs ...protocol.WatchRef) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.replace(ctx, key, sets.New(refs...))
}

// add watches more for a transfer.
func (w *watches) add(ctx context.Context, key types.NamespacedName, refs ...protocol.WatchRef) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.replace(ctx, key, w.wants[key].Union(sets.New(refs...)))
}

// replace is called with the lock held.
func (w *watches) replace(ctx context.Context, key types.NamespacedName, wanted sets.Set[protocol.WatchRef]) bool {
	for ref := range w.wants[key].Difference(wanted) {
		w.drop(key, ref)
	}
	synced := true
	for ref := range wanted {
		scope := w.scopes[ref]
		if scope == nil {
			scope = w.start(ctx, ref)
			w.scopes[ref] = scope
		}
		if scope.expiry != nil {
			scope.expiry.Stop()
			scope.expiry = nil
		}
		scope.wantedBy.Insert(key)
		if mapped(ref) {
			synced = synced && scope.informer.HasSynced()
		}
	}
	if len(wanted) == 0 {
		delete(w.wants, key)
	} else {
		w.wants[key] = wanted
	}
	return synced
}

// drop is called with the lock held.
func (w *watches) drop(key types.NamespacedName, ref protocol.WatchRef) {
	scope := w.scopes[ref]
	scope.wantedBy.Delete(key)
	if scope.wantedBy.Len() > 0 {
		return
	}
	scope.expiry = time.AfterFunc(linger, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.scopes[ref] == scope && scope.wantedBy.Len() == 0 {
			scope.stop()
			delete(w.scopes, ref)
		}
	})
}

// start is called with the lock held.
func (w *watches) start(ctx context.Context, ref protocol.WatchRef) *watch {
	ctx, stop := context.WithCancel(ctx)
	informer := w.open(ref)
	scope := &watch{
		informer: informer,
		recent:   recentWrites(ctx, informer),
		wantedBy: sets.New[types.NamespacedName](),
		stop:     stop,
	}
	if !mapped(ref) {
		// The only error is that of an informer that was stopped.
		_, _ = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: func(any) {
				if informer.HasSynced() {
					w.wake(scope)
				}
			},
			UpdateFunc: func(any, any) { w.wake(scope) },
			DeleteFunc: func(any) { w.wake(scope) },
		})
	}
	go informer.RunWithContext(ctx)
	go func() {
		if cache.WaitFor(ctx, "", informer.HasSyncedChecker()) {
			w.wake(scope)
		}
	}()
	return scope
}

func (w *watches) wake(scope *watch) {
	w.mu.Lock()
	keys := scope.wantedBy.UnsortedList()
	w.mu.Unlock()
	for _, key := range keys {
		w.changed(key)
	}
}

// scope returns the running watch of a scope that was wanted, or nil.
func (w *watches) scope(ref protocol.WatchRef) *watch {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.scopes[ref]
}

// recentWrites overlays an informer's cache with what the sidecar itself has
// written, until the informer has seen it.
func recentWrites(ctx context.Context, informer cache.SharedIndexInformer) cache.MutationCache {
	recent := cache.NewIntegerResourceVersionMutationCacheWithOptions(klog.FromContext(ctx), informer.GetStore(), cache.MutationCacheOptions{
		Indexer: informer.GetIndexer(), TTL: time.Minute, IncludeAdds: true, MaxCacheSize: 10000,
	})
	// Without these the overlay would keep showing an object that was deleted
	// right after it was written. The only error is that of a stopped informer.
	_, _ = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { recent.OnAddOrUpdate(o.(runtime.Object)) },
		UpdateFunc: func(_, o any) { recent.OnAddOrUpdate(o.(runtime.Object)) },
		DeleteFunc: func(o any) {
			if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = gone.Obj
			}
			if object, ok := o.(runtime.Object); ok {
				recent.OnDelete(object)
			}
		},
	})
	return recent
}

// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/csi-transfer/csi-transfer/pkg/apis/transfer/v1alpha1"
)

// watcher is what typed clients have in common.
type watcher[L runtime.Object] interface {
	List(context.Context, metav1.ListOptions) (L, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// follow calls visit with an object and then with every change of it, until
// visit returns true or an error. Nil stands for an object that does not exist.
// The right to list and watch has to be there: without it, follow waits in vain.
func follow[T any, P interface {
	*T
	runtime.Object
}, L runtime.Object](ctx context.Context, client watcher[L], name string, visit func(P) (bool, error)) error {
	selector := fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = selector
			return client.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = selector
			return client.Watch(ctx, o)
		},
	}
	nothing := func(store cache.Store) (bool, error) {
		if len(store.List()) > 0 {
			return false, nil
		}
		return visit(nil)
	}
	_, err := watchtools.UntilWithSync(ctx, lw, P(new(T)), nothing, func(event watch.Event) (bool, error) {
		object, ok := event.Object.(P)
		switch {
		case !ok:
			return false, fmt.Errorf("watching %s: unexpected %T", name, event.Object)
		case event.Type == watch.Deleted:
			return visit(nil)
		}
		return visit(object)
	})
	if over := ended(ctx); err != nil && over != nil {
		return over
	}
	return err
}

func (s *session) followRequest(ctx context.Context, name types.NamespacedName, visit func(*v1alpha1.NamespaceTransferRequest) (bool, error)) error {
	return follow(ctx, s.api.NamespaceTransferRequests(name.Namespace), name.Name, visit)
}

func (s *session) followClaim(ctx context.Context, name types.NamespacedName, visit func(*corev1.PersistentVolumeClaim) (bool, error)) error {
	return follow(ctx, s.core.CoreV1().PersistentVolumeClaims(name.Namespace), name.Name, visit)
}

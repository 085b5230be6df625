// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
)

// Resources to wait for.
var (
	Claims          = corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims")
	Volumes         = corev1.SchemeGroupVersion.WithResource("persistentvolumes")
	Namespaces      = corev1.SchemeGroupVersion.WithResource("namespaces")
	Jobs            = batchv1.SchemeGroupVersion.WithResource("jobs")
	Pods            = corev1.SchemeGroupVersion.WithResource("pods")
	ServiceAccounts = corev1.SchemeGroupVersion.WithResource("serviceaccounts")
	CSINodes        = storagev1.SchemeGroupVersion.WithResource("csinodes")
	Attachments     = storagev1.SchemeGroupVersion.WithResource("volumeattachments")
	CSIDrivers      = storagev1.SchemeGroupVersion.WithResource("csidrivers")
	Requests        = schema.GroupVersionResource{Group: "transfer.storage.x-k8s.io", Version: "v1alpha1", Resource: "namespacetransferrequests"}
	Approvals       = schema.GroupVersionResource{Group: "transfer.storage.x-k8s.io", Version: "v1alpha1", Resource: "namespacetransferapprovals"}
	Snapshots       = schema.GroupVersionResource{Group: "snapshot.storage.k8s.io", Version: "v1", Resource: "volumesnapshots"}
)

// waitLimit ends a wait whose context does not end it earlier.
const waitLimit = 2 * time.Minute

// Wait watches one object until it exists and done returns true for it, and
// returns it as it was then. The namespace of a cluster-scoped object is empty.
// It gives up when ctx is done, after two minutes at the latest; the error then
// has the object as last seen.
func Wait[T any](ctx context.Context, c *Cluster, resource schema.GroupVersionResource, namespace, name string, done func(*T) bool) (*T, error) {
	var found *T
	err := c.watch(ctx, resource, namespace, name, func(u *unstructured.Unstructured) (bool, error) {
		if u == nil {
			return false, nil
		}
		object := new(T)
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, object); err != nil {
			return false, err
		}
		if !done(object) {
			return false, nil
		}
		found = object
		return true, nil
	})
	return found, err
}

// WaitGone waits until an object does not exist. It gives up as Wait does.
func (c *Cluster) WaitGone(ctx context.Context, resource schema.GroupVersionResource, namespace, name string) error {
	return c.watch(ctx, resource, namespace, name, func(u *unstructured.Unstructured) (bool, error) { return u == nil, nil })
}

// WaitClaimPhase waits until a claim has the phase. It gives up as Wait does.
func (c *Cluster) WaitClaimPhase(ctx context.Context, namespace, name string, phase corev1.PersistentVolumeClaimPhase) (*corev1.PersistentVolumeClaim, error) {
	return Wait(ctx, c, Claims, namespace, name, func(claim *corev1.PersistentVolumeClaim) bool {
		return claim.Status.Phase == phase
	})
}

// WaitCondition waits until the object's status has a condition of that type,
// status and, unless it is empty, reason, and returns that condition. It gives
// up as Wait does.
func (c *Cluster) WaitCondition(ctx context.Context, resource schema.GroupVersionResource, namespace, name, conditionType string, status metav1.ConditionStatus, reason string) (*metav1.Condition, error) {
	type object struct {
		Status struct {
			Conditions []metav1.Condition `json:"conditions"`
		} `json:"status"`
	}
	var found *metav1.Condition
	_, err := Wait(ctx, c, resource, namespace, name, func(o *object) bool {
		for _, condition := range o.Status.Conditions {
			if condition.Type == conditionType && condition.Status == status && (reason == "" || condition.Reason == reason) {
				found = &condition
				return true
			}
		}
		return false
	})
	return found, err
}

// watch calls done with an object and then with each change of it, nil standing
// for an object that does not exist, until done returns true or an error.
func (c *Cluster) watch(ctx context.Context, resource schema.GroupVersionResource, namespace, name string, done func(*unstructured.Unstructured) (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, waitLimit)
	defer cancel()
	client := c.Dynamic.Resource(resource).Namespace(namespace)
	selector := fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			options.FieldSelector = selector
			return client.List(ctx, options)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.FieldSelector = selector
			return client.Watch(ctx, options)
		},
	}

	var last *unstructured.Unstructured
	seen := func(u *unstructured.Unstructured) (bool, error) {
		last = u
		return done(u)
	}
	absent := func(store cache.Store) (bool, error) {
		if len(store.List()) > 0 {
			return false, nil
		}
		return seen(nil)
	}
	changed := func(event watch.Event) (bool, error) {
		switch object := event.Object.(type) {
		case *unstructured.Unstructured:
			if event.Type == watch.Deleted {
				return seen(nil)
			}
			return seen(object)
		default:
			return false, fmt.Errorf("unexpected %s event: %v", event.Type, event.Object)
		}
	}
	if _, err := watchtools.UntilWithSync(ctx, lw, &unstructured.Unstructured{}, absent, changed); err != nil {
		return fmt.Errorf("waiting for %s %s: %w; last seen: %s", resource.Resource, cache.NewObjectName(namespace, name), err, describe(last))
	}
	return nil
}

func describe(u *unstructured.Unstructured) string {
	if u == nil {
		return "nothing"
	}
	u.SetManagedFields(nil)
	text, err := json.Marshal(u)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package sidecar

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/csi-transfer/csi-transfer/pkg/apis/transfer/v1alpha1"
	"github.com/csi-transfer/csi-transfer/pkg/sidecar/protocol"
)

// Indexes of the caches.
const (
	indexBySource     = "source"     // requests and approvals by namespace/name of their source
	indexByRequest    = "request"    // volumes in flight by namespace/name of their request
	indexByMember     = "member"     // volumes in flight by namespace/name of their claims
	indexByPlace      = "place"      // volumes in flight that are underway
	indexByDataSource = "dataSource" // claims by kind/name of their data source
	indexByClaim      = "claim"      // pods by the claims they name
)

// overlay is an informer's cache with the sidecar's own recent writes over it.
type overlay struct {
	informer cache.SharedIndexInformer
	recent   cache.MutationCache
}

// get returns an object, or nil.
func get[T any](o overlay, key types.NamespacedName) *T {
	name := key.String()
	if key.Namespace == "" {
		name = key.Name
	}
	var found any
	if o.recent != nil {
		found, _, _ = o.recent.GetByKey(name) // no key of a store is malformed
	} else {
		found, _, _ = o.informer.GetStore().GetByKey(name)
	}
	object, _ := found.(*T)
	return object
}

// byIndex returns the objects that an index has under a value.
func byIndex[T any](o overlay, index, value string) []*T {
	var found []any
	if o.recent != nil {
		found, _ = o.recent.ByIndex(index, value) // every index used is registered
	} else {
		found, _ = o.informer.GetIndexer().ByIndex(index, value)
	}
	objects := make([]*T, 0, len(found))
	for _, f := range found {
		if object, ok := f.(*T); ok {
			objects = append(objects, object)
		}
	}
	return objects
}

func indexer[T any](keys func(T) []string) cache.IndexFunc {
	return func(o any) ([]string, error) {
		if object, ok := o.(T); ok {
			return keys(object), nil
		}
		return nil, nil
	}
}

func sourceOf(r *v1alpha1.NamespaceTransferRequest) []string {
	return []string{r.Spec.Source.Namespace + "/" + r.Spec.Source.Name}
}

func givenBy(a *v1alpha1.NamespaceTransferApproval) []string {
	return []string{a.Namespace + "/" + a.Spec.Source.Name}
}

// requestOf indexes by whatever request a journal names; whether the journal is
// good is for those who use it.
func (c *Controller) requestOf(pv *corev1.PersistentVolume) []string {
	j, err := protocol.ParseJournal(pv, c.settings.Driver.Name)
	if err != nil || j == nil {
		return nil
	}
	return []string{j.Request.NamespacedName().String()}
}

// membersOf indexes a volume in flight by the claims that give and receive it.
func (c *Controller) membersOf(pv *corev1.PersistentVolume) []string {
	j, err := protocol.ParseJournal(pv, c.settings.Driver.Name)
	if err != nil || j == nil {
		return nil
	}
	return []string{j.Source.NamespacedName().String(), j.Claim.NamespacedName().String()}
}

// splitName is the inverse of NamespacedName.String.
func splitName(s string) types.NamespacedName {
	namespace, name, _ := strings.Cut(s, "/")
	return types.NamespacedName{Namespace: namespace, Name: name}
}

// dataSource names what a claim is made from: a transfer request, or another
// claim of its namespace.
func dataSource(c *corev1.PersistentVolumeClaim) []string {
	ref := c.Spec.DataSourceRef
	switch {
	case ref == nil:
		return nil
	case ref.Kind == v1alpha1.RequestKind && ref.APIGroup != nil && *ref.APIGroup == v1alpha1.GroupName,
		ref.Kind == "PersistentVolumeClaim" && (ref.APIGroup == nil || *ref.APIGroup == ""):
		return []string{ref.Kind + "/" + ref.Name}
	}
	return nil
}

// informer caches the objects of a resource, of one namespace or of all.
// managedFields, which may be most of an object, are kept for volumes only:
// there they tell who else writes.
func informer(client rest.Interface, resource, namespace string, object runtime.Object, resync time.Duration, indexers cache.Indexers, change func(*metav1.ListOptions)) cache.SharedIndexInformer {
	if change == nil {
		change = func(*metav1.ListOptions) {}
	}
	i := cache.NewSharedIndexInformer(cache.NewFilteredListWatchFromClient(client, resource, namespace, change), object, resync, indexers)
	if _, volumes := object.(*corev1.PersistentVolume); !volumes {
		_ = i.SetTransform(stripManagedFields) // fails only once started
	}
	return i
}

func stripManagedFields(o any) (any, error) {
	if object, ok := o.(metav1.Object); ok {
		object.SetManagedFields(nil)
	}
	return o, nil
}

// named selects the object of a name, or all where it is empty.
func named(name string) func(*metav1.ListOptions) {
	return func(o *metav1.ListOptions) {
		if name != "" {
			o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
		}
	}
}

// trimPod keeps what says whether a pod uses a claim, or may still when it is gone.
func trimPod(o any) (any, error) {
	pod, ok := o.(*corev1.Pod)
	if !ok {
		return o, nil
	}
	trimmed := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
	}}
	trimmed.Spec.NodeName = pod.Spec.NodeName
	trimmed.Status.Phase, trimmed.Status.StartTime = pod.Status.Phase, pod.Status.StartTime
	for _, v := range pod.Spec.Volumes {
		if v.PersistentVolumeClaim != nil || v.Ephemeral != nil {
			trimmed.Spec.Volumes = append(trimmed.Spec.Volumes, corev1.Volume{Name: v.Name, VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: v.PersistentVolumeClaim, Ephemeral: v.Ephemeral,
			}})
		}
	}
	return trimmed, nil
}

var (
	claimResource = schema.GroupVersionResource{Version: "v1", Resource: "persistentvolumeclaims"}
	podResource   = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
)

func claimsIn(namespace string) protocol.WatchRef {
	return protocol.WatchRef{Resource: claimResource, Namespace: namespace}
}

func podsIn(namespace string) protocol.WatchRef {
	return protocol.WatchRef{Resource: podResource, Namespace: namespace}
}

// mapped scopes have handlers that know which transfers an object concerns.
func mapped(ref protocol.WatchRef) bool {
	return ref.Resource == claimResource || ref.Resource == podResource
}

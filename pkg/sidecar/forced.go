// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package sidecar

import (
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csi-transfer/csi-transfer/pkg/sidecar/protocol"
)

// lingering is how long a pod that was deleted by force may go on using its
// volumes: its kubelet, which learns of it at once, ends it within seconds and
// then unmounts them. Of a node that cannot be reached nothing is known.
const lingering = time.Minute

// deletedByForce reports whether a pod that is gone may still run. A kubelet that
// ends a pod says so in its phase before the pod is deleted, as does the garbage
// collector for a node that is no more (since Kubernetes 1.27); one that never
// saw the pod has not set a start time.
func deletedByForce(pod *corev1.Pod) bool {
	return pod.Spec.NodeName != "" && pod.Status.StartTime != nil &&
		pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed
}

// forced remembers the pods that were deleted by force, by the claims they used.
// It knows only those that were seen to go.
type forced struct {
	mu sync.Mutex
	// until maps a claim to its pods and when each has ended.
	until map[types.NamespacedName]map[string]time.Time
}

func (f *forced) deleted(pod *corev1.Pod, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.forget(now)
	for _, claim := range protocol.ClaimsOf(pod) {
		key := types.NamespacedName{Namespace: pod.Namespace, Name: claim}
		if f.until[key] == nil {
			f.until[key] = map[string]time.Time{}
		}
		f.until[key][pod.Name] = now.Add(lingering)
	}
}

// of returns the pods that may still use a claim, and until when.
func (f *forced) of(claim types.NamespacedName, now time.Time) (pods []string, until time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.forget(now)
	for pod, end := range f.until[claim] {
		pods = append(pods, pod)
		if end.After(until) {
			until = end
		}
	}
	slices.Sort(pods)
	return pods, until
}

// forget those that have ended.
func (f *forced) forget(now time.Time) {
	for key, ends := range f.until {
		maps.DeleteFunc(ends, func(_ string, end time.Time) bool { return !now.Before(end) })
		if len(ends) == 0 {
			delete(f.until, key)
		}
	}
}

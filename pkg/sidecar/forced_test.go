// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package sidecar

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// TestForced: a pod counts as deleted by force unless its end was reported or it
// never began, and only for a while, and for the claims that it used.
func TestForced(t *testing.T) {
	began := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, tc := range map[string]struct {
		change func(*corev1.Pod)
		want   bool
	}{
		"running":       {func(*corev1.Pod) {}, true},
		"starting":      {func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }, true},
		"unscheduled":   {func(p *corev1.Pod) { p.Spec.NodeName = "" }, false},
		"never started": {func(p *corev1.Pod) { p.Status.StartTime = nil }, false},
		"succeeded":     {func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }, false},
		"failed":        {func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, false},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: "db-0"}}
			pod.Spec.NodeName = "node-1"
			pod.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
			}}}
			pod.Status.StartTime, pod.Status.Phase = ptr.To(metav1.NewTime(began)), corev1.PodRunning
			tc.change(pod)
			kept, err := trimPod(pod)
			if err != nil {
				t.Fatal(err)
			}
			if got := deletedByForce(kept.(*corev1.Pod)); got != tc.want {
				t.Errorf("deleted by force: %v", got)
			}
		})
	}

	f := forced{until: map[types.NamespacedName]map[string]time.Time{}}
	data := types.NamespacedName{Namespace: "prod", Name: "data"}
	for i, name := range []string{"db-0", "db-1"} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: name}}
		pod.Spec.NodeName = "node-1"
		pod.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
		}}}
		f.deleted(pod, began.Add(time.Duration(i)*time.Second))
	}
	for _, tc := range []struct {
		claim types.NamespacedName
		after time.Duration
		want  []string
		until time.Duration
	}{
		{data, 0, []string{"db-0", "db-1"}, lingering + time.Second},
		{types.NamespacedName{Namespace: "dev", Name: "data"}, 0, nil, 0},
		{data, lingering, []string{"db-1"}, lingering + time.Second},
		{data, lingering + time.Second, nil, 0},
	} {
		pods, until := f.of(tc.claim, began.Add(tc.after))
		if !slices.Equal(pods, tc.want) || len(pods) > 0 && !until.Equal(began.Add(tc.until)) {
			t.Errorf("claim %s after %s: %v until %s", tc.claim, tc.after, pods, until)
		}
	}
	if len(f.until) > 0 {
		t.Errorf("still remembered: %v", f.until)
	}

	// Where nobody asks, as for volumes that are attached, they do not add up.
	for i := range 3 {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: "db-0"}}
		pod.Spec.NodeName = "node-1"
		pod.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: fmt.Sprintf("data-%d", i)},
		}}}
		f.deleted(pod, began.Add(time.Duration(i+2)*lingering))
	}
	if len(f.until) != 1 {
		t.Errorf("remembered: %v", f.until)
	}
}

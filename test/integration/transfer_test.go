// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/csi-transfer/csi-transfer/pkg/apis/transfer/v1alpha1"
)

func TestR7_ReceivingClaimNamesTheRequest(t *testing.T) {
	s := newScene(t)
	source := s.source()
	before := s.volume(source.Spec.VolumeName)
	s.request()
	s.claim(s.receiver, "data", from("take-data"))
	s.approve(source)

	claim := s.bound(s.receiver, "data")
	if claim.Spec.VolumeName != source.Spec.VolumeName {
		t.Fatalf("receiving claim is bound to %s, want %s", claim.Spec.VolumeName, source.Spec.VolumeName)
	}
	r := s.transferred()
	if r.Status.Phase != v1alpha1.PhaseCompleted || r.Status.StartTime == nil || r.Status.CompletionTime == nil {
		t.Errorf("status of the request: %+v", r.Status)
	}
	after := s.volume(source.Spec.VolumeName)
	if after.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete || len(ours(after)) > 0 {
		t.Errorf("volume keeps policy %s and %v", after.Spec.PersistentVolumeReclaimPolicy, ours(after))
	}
	if !slices.Equal(before.Finalizers, after.Finalizers) {
		t.Errorf("finalizers were %v and are %v", before.Finalizers, after.Finalizers)
	}
}

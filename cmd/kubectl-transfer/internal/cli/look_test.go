// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-transfer/csi-transfer/pkg/apis/transfer/v1alpha1"
	"github.com/csi-transfer/csi-transfer/pkg/sidecar/protocol"
)

// TestCapability: what the CSIDriver object says of a driver decides what it can
// decide, and the rest is left open.
func TestCapability(t *testing.T) {
	const (
		capable = v1alpha1.AnnotationCapable
		linkage = v1alpha1.AnnotationSnapshotLinkage
		calls   = v1alpha1.AnnotationDriverCalls
	)
	snapshot := []protocol.Snapshot{{Kind: "VolumeSnapshot", Namespace: "prod", Name: "s", Ready: true}}
	for name, test := range map[string]struct {
		driver, class map[string]string
		want          []protocol.Reason
		open          bool
	}{
		"capable, tied to nothing":        {driver: map[string]string{capable: "true", linkage: "none"}},
		"capable, tied to its snapshots":  {driver: map[string]string{capable: "true", linkage: "snapshots"}, want: []protocol.Reason{protocol.ReasonSnapshotsLinked}},
		"capable, tied to its sources":    {driver: map[string]string{capable: "true", linkage: "chain"}, want: []protocol.Reason{protocol.ReasonChainLinked}},
		"not capable":                     {driver: map[string]string{capable: "false"}, want: []protocol.Reason{protocol.ReasonDriverNotCapable}},
		"not capable, vouched for":        {driver: map[string]string{capable: "false"}, class: map[string]string{linkage: "none"}},
		"unknown":                         {open: true},
		"unknown, vouched for":            {class: map[string]string{linkage: "none"}},
		"tied, but it has the last word":  {driver: map[string]string{capable: "true", linkage: "chain", calls: "ValidateVolume,SetOwner"}, open: true},
		"tied, and it only keeps owners":  {driver: map[string]string{capable: "true", linkage: "chain", calls: "SetOwner"}, want: []protocol.Reason{protocol.ReasonChainLinked}},
		"known to this build by no value": {driver: map[string]string{capable: "true", linkage: "new"}, want: []protocol.Reason{protocol.ReasonChainLinked}},
	} {
		t.Run(name, func(t *testing.T) {
			claim := &corev1.PersistentVolumeClaim{}
			claim.Namespace, claim.Name, claim.UID = "prod", "data", "uid"
			claim.Spec.VolumeName, claim.Status.Phase = "pv", corev1.ClaimBound
			l := &look{}
			l.o.Source = claim
			l.o.Volume = &protocol.Volume{Name: "pv", PV: asTheClaimSays(claim)}
			l.o.Volume.PV.Spec.StorageClassName = "fast"
			l.o.Driver.Name = "driver.example.com"
			class := &storagev1.StorageClass{Provisioner: l.o.Driver.Name}
			class.Annotations = map[string]string{v1alpha1.AnnotationAllow: "true"}
			for key, value := range test.class {
				class.Annotations[key] = value
			}
			l.o.Facts = &protocol.Facts{Class: class, Snapshots: snapshot}

			l.capability(&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Annotations: test.driver}})
			var got []protocol.Reason
			for _, r := range l.obstacles() {
				got = append(got, r.Reason)
			}
			if !slices.Equal(got, test.want) || (len(l.open) > 0) != test.open {
				t.Errorf("obstacles %v, want %v; open: %v", got, test.want, l.open)
			}
		})
	}
}

// TestWentTo: whoever may annotate a claim does not write to another's terminal.
func TestWentTo(t *testing.T) {
	claim := &corev1.PersistentVolumeClaim{Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimLost}}
	claim.Annotations = map[string]string{v1alpha1.AnnotationTransferredTo: "\x1b[2Jdev/data"}
	if got, want := wentTo(claim), `\x1b[2Jdev/data`; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

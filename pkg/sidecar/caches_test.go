// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package sidecar

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/csi-transfer/csi-transfer/pkg/apis/transfer/v1alpha1"
	"github.com/csi-transfer/csi-transfer/pkg/sidecar/protocol"
)

func claimVolume(name, claim string) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}}
}

func TestClaimsOfPods(t *testing.T) {
	ephemeral := corev1.Volume{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}}
	secret := corev1.Volume{Name: "key", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{}}}
	for _, test := range []struct {
		name    string
		node    string
		phase   corev1.PodPhase
		volumes []corev1.Volume
		want    []string
	}{
		{"running", "node-1", corev1.PodRunning, []corev1.Volume{claimVolume("a", "data"), secret}, []string{"data"}},
		{"not scheduled", "", corev1.PodPending, []corev1.Volume{claimVolume("a", "data")}, nil},
		{"finished", "node-1", corev1.PodSucceeded, []corev1.Volume{claimVolume("a", "data")}, []string{"data"}},
		{"one claim twice, and another", "node-1", corev1.PodRunning, []corev1.Volume{claimVolume("a", "data"), claimVolume("b", "copy"), claimVolume("c", "data")}, []string{"copy", "data"}},
		{"ephemeral", "node-1", corev1.PodRunning, []corev1.Volume{ephemeral}, []string{"db-0-scratch"}},
		{"no volumes", "node-1", corev1.PodRunning, nil, nil},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: "db-0", UID: "1", ResourceVersion: "7", Labels: map[string]string{"a": "b"}}}
		pod.Spec.NodeName, pod.Spec.Volumes, pod.Status.Phase = test.node, test.volumes, test.phase
		if got := protocol.ClaimsOf(pod); !slices.Equal(got, test.want) {
			t.Errorf("%s: got %v, want %v", test.name, got, test.want)
		}
		// What the cache keeps of a pod says the same.
		kept, err := trimPod(pod)
		if err != nil {
			t.Fatal(err)
		}
		trimmed := kept.(*corev1.Pod)
		if got := protocol.ClaimsOf(trimmed); !slices.Equal(got, test.want) {
			t.Errorf("%s, trimmed: got %v, want %v", test.name, got, test.want)
		}
		if trimmed.Name != pod.Name || trimmed.UID != pod.UID || trimmed.ResourceVersion != pod.ResourceVersion || len(trimmed.Labels) > 0 {
			t.Errorf("%s, trimmed: %+v", test.name, trimmed.ObjectMeta)
		}
	}
	if kept, err := trimPod("no pod"); kept != "no pod" || err != nil {
		t.Errorf("got %v, %v", kept, err)
	}
}

func TestDataSource(t *testing.T) {
	for _, test := range []struct {
		name string
		ref  *corev1.TypedObjectReference
		want []string
	}{
		{"none", nil, nil},
		{"a request", &corev1.TypedObjectReference{APIGroup: ptr.To(v1alpha1.GroupName), Kind: v1alpha1.RequestKind, Name: "take-data"}, []string{"NamespaceTransferRequest/take-data"}},
		{"a kind of that name elsewhere", &corev1.TypedObjectReference{APIGroup: ptr.To("example.com"), Kind: v1alpha1.RequestKind, Name: "take-data"}, nil},
		{"a claim", &corev1.TypedObjectReference{Kind: "PersistentVolumeClaim", Name: "data"}, []string{"PersistentVolumeClaim/data"}},
		{"a claim, with an empty group", &corev1.TypedObjectReference{APIGroup: ptr.To(""), Kind: "PersistentVolumeClaim", Name: "data"}, []string{"PersistentVolumeClaim/data"}},
		{"a snapshot", &corev1.TypedObjectReference{APIGroup: ptr.To("snapshot.storage.k8s.io"), Kind: "VolumeSnapshot", Name: "nightly"}, nil},
	} {
		c := &corev1.PersistentVolumeClaim{Spec: corev1.PersistentVolumeClaimSpec{DataSourceRef: test.ref}}
		if got := dataSource(c); !slices.Equal(got, test.want) {
			t.Errorf("%s: got %v, want %v", test.name, got, test.want)
		}
	}
}

// TestClones: a claim that waits for its volume is still being cloned.
func TestClones(t *testing.T) {
	var claims []*corev1.PersistentVolumeClaim
	for name, phase := range map[string]corev1.PersistentVolumeClaimPhase{"b": corev1.ClaimPending, "a": corev1.ClaimPending, "done": corev1.ClaimBound} {
		c := claimNamed(name)
		c.Status.Phase = phase
		claims = append(claims, c)
	}
	if got := clones(claims); !slices.Equal(got, []string{"prod/a", "prod/b"}) {
		t.Errorf("got %v", got)
	}
}

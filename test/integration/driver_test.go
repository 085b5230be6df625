// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csi-transfer/csi-transfer/mock"
	"github.com/csi-transfer/csi-transfer/pkg/apis/transfer/v1alpha1"
	"github.com/csi-transfer/csi-transfer/pkg/sidecar/protocol"
	"github.com/csi-transfer/csi-transfer/test/cluster"
)

// TestC2_OtherDriversVolumesAreLeftAlone: with two sidecars in a cluster, each
// moves the volumes of its own driver, and writes to no other.
func TestC2_OtherDriversVolumesAreLeftAlone(t *testing.T) {
	s := newScene(t)
	s.vendor(cluster.DriverOptions{})
	source := s.source()
	before := s.volume(s.moving)
	s.grant(source)
	s.lookedAt() // by the sidecar of the shared driver
	s.untouched()
	s.sidecarOf(s.own)
	s.transferred()
	s.arrived(before)
}

// TestC3_OneManifestEntryIsEnough: a driver that knows nothing of transfers but
// an entry in its manifest.
func TestC3_OneManifestEntryIsEnough(t *testing.T) {
	s := newScene(t)
	s.sidecarOf(s.vendor(cluster.DriverOptions{Flags: []string{"--snapshot-linkage=snapshots"}}))
	source := s.offer()
	before := s.volume(source.Spec.VolumeName)
	s.transferred()
	s.arrived(before)
}

// TestC3_ServiceVouches: what is refused otherwise is not where the driver says
// that it is all right.
func TestC3_ServiceVouches(t *testing.T) {
	s := newScene(t)
	s.sidecarOf(s.vendor(cluster.DriverOptions{Flags: []string{"--transfer-service", "--snapshot-linkage=chain"}}))
	s.newClass(secretOfClaim)
	source := s.offer()
	before := s.volume(source.Spec.VolumeName)
	s.transferred()
	s.arrived(before)
}

// TestC3_ServiceKeepsOwners: the driver knows at every moment whose a volume is.
func TestC3_ServiceKeepsOwners(t *testing.T) {
	s := newScene(t)
	s.sidecarOf(s.vendor(cluster.DriverOptions{Flags: []string{"--transfer-service"}}))
	before, lift := s.inFlight()
	receiver := must[*corev1.PersistentVolumeClaim](s)(s.claims(s.receiver).Get(s.ctx, "data", metav1.GetOptions{}))
	s.ownedInDriver(before, receiver)

	s.must(s.approvals().Delete(s.ctx, "give-data", metav1.DeleteOptions{}))
	s.returned(before)
	source := s.bound(s.giver, "data")
	s.ownedInDriver(before, source)

	lift()
	s.approve(source)
	s.transferred()
	s.ownedInDriver(before, receiver)
}

// ownedInDriver fails unless the driver has the claim on record.
func (s *scene) ownedInDriver(pv *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) {
	s.Helper()
	owner := must[mock.Owner](s)(mock.ReadOwner(s.own.StateDir, pv.Spec.CSI.VolumeHandle))
	if want := (mock.Owner{Namespace: claim.Namespace, Name: claim.Name, UID: string(claim.UID)}); owner != want {
		s.Errorf("the driver has %+v on record, want %+v", owner, want)
	}
}

// TestC3_ClassOverridesTheDriver: administrators know the parameters of a class.
func TestC3_ClassOverridesTheDriver(t *testing.T) {
	s := newScene(t)
	s.newClass()
	s.annotateClass(v1alpha1.AnnotationSnapshotLinkage, "chain")
	s.offer()
	s.contains(s.refused(protocol.ReasonChainLinked), "{volume}")
	s.annotateClass(v1alpha1.AnnotationSnapshotLinkage, "none")
	s.transferred()
}

// TestC3_OwnerCannotBeTold: the volume stays in flight until the driver has taken
// note of the new owner.
func TestC3_OwnerCannotBeTold(t *testing.T) {
	s := newScene(t)
	s.sidecarOf(s.vendor(cluster.DriverOptions{Flags: []string{"--transfer-service", "--fault=SetOwner:UNAVAILABLE:times=1"}}))
	source := s.offer()
	before := s.volume(source.Spec.VolumeName)
	s.contains(s.told(s.receiver, "NamespaceTransferRequest", "take-data", string(protocol.ReasonDriverUnavailable)), "owner", "{volume}", "SetOwner: Unavailable")
	s.transferred()
	s.arrived(before)
	s.ownedInDriver(before, s.bound(s.receiver, "data"))
}

// TestC3_OwnerRefused: a driver that refuses the new owner has the transfer undone.
func TestC3_OwnerRefused(t *testing.T) {
	s := newScene(t)
	s.sidecarOf(s.vendor(cluster.DriverOptions{Flags: []string{"--transfer-service", "--fault=SetOwner:FAILED_PRECONDITION:times=1"}}))
	source := s.offer()
	before := s.volume(source.Spec.VolumeName)
	s.contains(s.told(s.giver, "PersistentVolumeClaim", "data", "TransferRolledBack"), "driver {driver} refuses {receiver}/data as the owner", "{volume}", "SetOwner")
	s.transferred() // when the driver is asked again
	s.arrived(before)
}

// TestC3_OwnerCannotBeTakenBack: a driver that cannot be told keeps nobody from
// their volume. The claim has it back, and the driver is told until it listens.
func TestC3_OwnerCannotBeTakenBack(t *testing.T) {
	s := newScene(t)
	// It fails for the receiver, and for the giver before the volume goes back.
	s.sidecarOf(s.vendor(cluster.DriverOptions{Flags: []string{"--transfer-service", "--fault=SetOwner:UNAVAILABLE:times=2"}}), "--verify-timeout=5s")
	source := s.offer()
	before := s.volume(source.Spec.VolumeName)
	s.contains(s.told(s.receiver, "NamespaceTransferRequest", "take-data", string(protocol.ReasonDriverUnavailable)), "could not be told that", "/data owns PersistentVolume {volume}")
	s.told(s.giver, "PersistentVolumeClaim", "data", "TransferRolledBack")
	back := s.waitVolume(before.Name, func(pv *corev1.PersistentVolume) bool { return !parked(pv) && pv.Status.Phase == corev1.VolumeBound })
	if back.Spec.ClaimRef.UID != source.UID || back.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain {
		s.Errorf("the volume refers to %+v, with policy %s", back.Spec.ClaimRef, back.Spec.PersistentVolumeReclaimPolicy)
	}
	s.bound(s.giver, "data")
	must[*metav1.Condition](s)(s.WaitCondition(s.ctx, cluster.Approvals, s.giver, "give-data", v1alpha1.ConditionTransferred, metav1.ConditionFalse, string(protocol.ReasonDriverUnavailable)))
	s.transferred() // once the driver has listened
	s.arrived(before)
	s.ownedInDriver(before, s.bound(s.receiver, "data"))
}

// TestC3_Secrets: the driver gets the Secret that the class names, once an
// administrator lets the sidecar read it, and no log has it.
func TestC3_Secrets(t *testing.T) {
	const token = "not-for-any-log"
	s := newScene(t)
	d := s.vendor(cluster.DriverOptions{Flags: []string{"--transfer-service", "--transfer-token=" + token, "--v=5"}})
	s.annotateClass(v1alpha1.AnnotationSecretName, "backend")
	s.annotateClass(v1alpha1.AnnotationSecretNamespace, "csi-mock")
	// An account of its own: all others get by with what is shipped.
	account := d.Name
	s.must(s.Apply(s.ctx, fmt.Sprintf(`
apiVersion: v1
kind: Secret
metadata: {name: backend, namespace: csi-mock}
stringData: {token: %[2]s}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: %[1]s, namespace: csi-mock}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: %[1]s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: csi-transfer-runner}
subjects: [{kind: ServiceAccount, name: %[1]s, namespace: csi-mock}]
`, account, token)))
	sidecar := must[*cluster.Process](s)(s.StartSidecar(s.ctx, cluster.SidecarOptions{
		Name: "csi-transfer-" + d.Name, Address: d.Address,
		Kubeconfig: must[string](s)(s.ServiceAccountKubeconfig(s.ctx, "csi-mock", account)),
		Flags:      append(slices.Clone(sidecarFlags), "--v=5"),
	}))
	s.Cleanup(sidecar.Kill)

	source := s.offer()
	before := s.volume(source.Spec.VolumeName)
	s.contains(s.refused(protocol.ReasonDriverUnavailable), "Secret csi-mock/backend", "StorageClass {class}", "cannot get resource")
	s.must(s.Apply(s.ctx, fmt.Sprintf(`
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: %[1]s, namespace: csi-mock}
rules: [{apiGroups: [""], resources: [secrets], resourceNames: [backend], verbs: [get]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: %[1]s, namespace: csi-mock}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: %[1]s}
subjects: [{kind: ServiceAccount, name: %[1]s, namespace: csi-mock}]
`, account)))
	s.transferred()
	s.arrived(before)
	for _, p := range []*cluster.Process{sidecar, d.Process} {
		if log := must[[]byte](s)(os.ReadFile(p.Log)); !bytes.Contains(log, []byte("stripped")) || bytes.Contains(log, []byte(token)) {
			s.Errorf("%s has logged the secret, or no call", p.Name)
		}
	}
}

// TestC3_HangingDriverDelaysNoOther: a driver that does not answer for one volume
// holds up the transfer of that one, even with a single worker.
func TestC3_HangingDriverDelaysNoOther(t *testing.T) {
	for _, call := range []string{"ValidateVolume", "SetOwner"} {
		t.Run(call, func(t *testing.T) {
			s := newScene(t)
			d := s.vendor(cluster.DriverOptions{Flags: []string{"--transfer-service", "--fault=" + call + ":hang:times=1"}})
			s.sidecarOf(d, "--timeout=5m", "--worker-threads=1")
			s.offer()
			if call == "SetOwner" {
				s.waitVolume(s.moving, parked)
			}
			for range 3 {
				other := s.another()
				other.offer()
				other.transferred()
			}
			if claim := must[*corev1.PersistentVolumeClaim](s)(s.claims(s.receiver).Get(s.ctx, "data", metav1.GetOptions{})); claim.Spec.VolumeName != "" {
				t.Error("the driver was not waited for")
			}
		})
	}
}

// TestR20_CSIDriverShowsWhatTheDriverCan: an administrator sees it there, as the
// driver says now, and nothing else on the object changes.
func TestR20_CSIDriverShowsWhatTheDriverCan(t *testing.T) {
	s := newScene(t)
	s.shows(driverName, map[string]string{v1alpha1.AnnotationCapable: "true", v1alpha1.AnnotationSnapshotLinkage: "none"})

	d := s.vendor(cluster.DriverOptions{Flags: []string{"--transfer-service", "--snapshot-linkage=chain"}})
	drivers := s.Client.StorageV1().CSIDrivers()
	// What an earlier version of the driver could do.
	must[*storagev1.CSIDriver](s)(drivers.Patch(s.ctx, d.Name, types.MergePatchType, []byte(annotation(v1alpha1.AnnotationSnapshotLinkage, "none")), metav1.PatchOptions{}))
	must[*storagev1.CSIDriver](s)(drivers.Patch(s.ctx, d.Name, types.MergePatchType, []byte(annotation("example.com/kept", "x")), metav1.PatchOptions{}))
	sidecar := s.sidecarOf(d)
	shown := s.shows(d.Name, map[string]string{
		v1alpha1.AnnotationCapable: "true", v1alpha1.AnnotationSnapshotLinkage: "chain", v1alpha1.AnnotationDriverCalls: "ValidateVolume,SetOwner",
		"example.com/kept": "x",
	})

	// The next sidecar has nothing to write.
	s.must(sidecar.Restart(s.ctx))
	s.offer()
	s.transferred()
	if again := must[*storagev1.CSIDriver](s)(drivers.Get(s.ctx, d.Name, metav1.GetOptions{})); again.ResourceVersion != shown.ResourceVersion {
		s.Errorf("the CSIDriver was written again: %v", again.Annotations)
	}

	silent := s.vendor(cluster.DriverOptions{Flags: []string{"--snapshot-linkage=unset"}})
	s.sidecarOf(silent)
	s.shows(silent.Name, map[string]string{v1alpha1.AnnotationCapable: "false"})
}

// shows waits until a CSIDriver has these annotations, and no other of ours.
func (s *scene) shows(name string, annotations map[string]string) *storagev1.CSIDriver {
	s.Helper()
	return must[*storagev1.CSIDriver](s)(cluster.Wait(s.ctx, s.Cluster, cluster.CSIDrivers, "", name, func(d *storagev1.CSIDriver) bool {
		shown := maps.Clone(d.Annotations)
		maps.DeleteFunc(shown, func(key, _ string) bool {
			return annotations[key] == "" && !strings.HasPrefix(key, v1alpha1.GroupName)
		})
		return maps.Equal(shown, annotations)
	}))
}

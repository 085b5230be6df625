// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csi-transfer/csi-transfer/pkg/apis/transfer/v1alpha1"
	"github.com/csi-transfer/csi-transfer/pkg/sidecar/protocol"
	"github.com/csi-transfer/csi-transfer/test/cluster"
)

// calls are the ways to call a transfer off.
var calls = map[string]struct {
	off    func(s *scene)
	reason protocol.Reason
}{
	"by the giver": {
		off:    func(s *scene) { s.must(s.approvals().Delete(s.ctx, "give-data", metav1.DeleteOptions{})) },
		reason: protocol.ReasonApprovalWithdrawn,
	},
	"by the receiver": {
		off:    func(s *scene) { s.must(s.requests().Delete(s.ctx, "take-data", metav1.DeleteOptions{})) },
		reason: protocol.ReasonRequestDeleted,
	},
}

// TestR14_CalledOffBeforeTheEnd: up to the last moment either side can end the
// transfer by deleting its object, and the source claim works as before.
func TestR14_CalledOffBeforeTheEnd(t *testing.T) {
	for name, call := range calls {
		t.Run("last moment "+name, func(t *testing.T) {
			s := newScene(t)
			before, _ := s.inFlight()
			call.off(s)
			s.contains(s.told(s.giver, "PersistentVolumeClaim", "data", "TransferRolledBack"), before.Name, "{giver}/data", string("was deleted"))
			s.returned(before)
			if call.reason == protocol.ReasonApprovalWithdrawn {
				s.told(s.receiver, "NamespaceTransferRequest", "take-data", string(call.reason))
			} else {
				s.told(s.giver, "NamespaceTransferApproval", "give-data", string(call.reason))
			}
			if claim := must[*corev1.PersistentVolumeClaim](s)(s.claims(s.receiver).Get(s.ctx, "data", metav1.GetOptions{})); claim.Spec.VolumeName != "" {
				t.Errorf("the receiving claim has volume %s", claim.Spec.VolumeName)
			}
		})
		t.Run("first moment "+name, func(t *testing.T) {
			s := newFrailScene(t)
			source := s.source()
			before := s.volume(source.Spec.VolumeName)
			s.freeze()
			s.grant(source)
			s.waitVolume(before.Name, parked)
			call.off(s)
			s.waitVolume(before.Name, func(pv *corev1.PersistentVolume) bool { return !parked(pv) })
			s.thaw()
			s.returned(before)
		})
	}
}

// TestR14_ExecutedCannotBeRecalled: once complete, deleting the objects changes
// nothing.
func TestR14_ExecutedCannotBeRecalled(t *testing.T) {
	s := newScene(t)
	source := s.offer()
	before := s.volume(source.Spec.VolumeName)
	s.transferred()
	s.spent()
	for _, call := range calls {
		call.off(s)
	}
	s.lookedAt()
	s.arrived(before)
}

func TestR15_InFlightTheVolumeBelongsToTheTransfer(t *testing.T) {
	s := newScene(t)
	before, lift := s.inFlight()
	pv := s.volume(before.Name)
	ref := pv.Spec.ClaimRef
	if ref.Kind != v1alpha1.RequestKind || ref.Namespace != s.receiver || ref.Name != v1alpha1.ParkedNamePrefix+"take-data" || ref.UID == "" {
		t.Errorf("claimRef is %+v", ref)
	}
	if pv.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain {
		t.Errorf("the policy is %s", pv.Spec.PersistentVolumeReclaimPolicy)
	}
	if !slices.Contains(pv.Finalizers, v1alpha1.FinalizerInFlight) || pv.Annotations[v1alpha1.AnnotationSidecarUser] != sidecarUser {
		t.Errorf("finalizers %v, annotations %v", pv.Finalizers, pv.Annotations)
	}

	// The fence tells an administrator.
	for name, attempt := range map[string]struct {
		do   func() error
		says string
	}{
		"deleting it": {
			func() error {
				return s.Client.CoreV1().PersistentVolumes().Delete(s.ctx, pv.Name, metav1.DeleteOptions{})
			},
			"must not be deleted",
		},
		"its reclaim policy": {
			func() error { return s.tryPatchVolume(pv.Name, `{"spec":{"persistentVolumeReclaimPolicy":"Delete"}}`) },
			"its reclaim policy must not be changed",
		},
		"its claimRef": {
			func() error { return s.tryPatchVolume(pv.Name, `{"spec":{"claimRef":null}}`) },
			"its claimRef must not be changed",
		},
		"its journal": {
			func() error { return s.tryPatchVolume(pv.Name, `{"metadata":{"annotations":null}}`) },
			"must not be changed",
		},
	} {
		err := attempt.do()
		if !apierrors.IsForbidden(err) {
			t.Fatalf("%s: %v", name, err)
		}
		s.contains(err.Error(), pv.Name, attempt.says, "NamespaceTransferRequest")
	}
	// Another one tells the giver.
	_, err := s.Client.CoreV1().Pods(s.giver).Create(s.ctx, podOn("late", "data"), metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) {
		t.Errorf("a pod on a claim in transfer: %v", err)
	} else {
		s.contains(err.Error(), "PersistentVolumeClaim data", "{receiver}", "give-data")
	}
	s.pod(s.giver, "other", "other-claim")

	lift()
	s.transferred()
	s.arrived(before)
}

func (s *scene) tryPatchVolume(name, patch string) error {
	_, err := s.Client.CoreV1().PersistentVolumes().Patch(s.ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	return err
}

// TestR15_WithoutFences: what the fences refuse does no harm where they are not
// installed.
func TestR15_WithoutFences(t *testing.T) {
	t.Run("volume deleted", func(t *testing.T) {
		s := newFrailScene(t)
		before, lift := s.inFlight()
		s.must(s.Client.CoreV1().PersistentVolumes().Delete(s.ctx, before.Name, metav1.DeleteOptions{}))
		lift()
		// Nothing takes a deletion back, but the claim that had the volume keeps it.
		s.contains(s.told(s.giver, "PersistentVolumeClaim", "data", "TransferRolledBack"), before.Name, "is being deleted")
		s.bound(s.giver, "data")
		if pv := s.volume(before.Name); pv.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain {
			t.Errorf("a deleted volume has policy %s", pv.Spec.PersistentVolumeReclaimPolicy)
		}
	})
	t.Run("policy changed", func(t *testing.T) {
		s := newFrailScene(t)
		source := s.source()
		before := s.volume(source.Spec.VolumeName)
		s.freeze()
		s.grant(source)
		s.waitVolume(before.Name, parked)
		s.patchVolume(before.Name, `{"spec":{"persistentVolumeReclaimPolicy":"Delete"}}`)
		s.waitVolume(before.Name, func(pv *corev1.PersistentVolume) bool {
			return pv.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRetain
		})
		s.contains(s.told("default", "PersistentVolume", before.Name, "Retain"), "changed back")
		s.thaw()
		s.transferred()
		s.arrived(before)
	})
	t.Run("claimRef emptied", func(t *testing.T) {
		s := newFrailScene(t)
		source := s.source()
		before := s.volume(source.Spec.VolumeName)
		s.freeze()
		s.grant(source)
		s.waitVolume(before.Name, parked)
		s.patchVolume(before.Name, `{"spec":{"claimRef":null}}`)
		s.waitVolume(before.Name, parked)
		s.contains(s.told("default", "PersistentVolume", before.Name, "Repark"), "changed back")
		s.thaw()
		s.transferred()
		s.arrived(before)
	})
	t.Run("pod on the source", func(t *testing.T) {
		s := newFrailScene(t)
		source := s.source()
		before := s.volume(source.Spec.VolumeName)
		s.freeze()
		s.grant(source)
		s.waitVolume(before.Name, parked)
		s.pod(s.giver, "late", "data")
		s.thaw()
		s.contains(s.told(s.giver, "PersistentVolumeClaim", "data", "TransferRolledBack"), "late")
		s.returned(before)
		s.deletePod(s.giver, "late")
		s.transferred()
		s.arrived(before)
	})
}

// TestFlight_VolumeInFlight: a volume is in one transfer at a time.
func TestFlight_VolumeInFlight(t *testing.T) {
	s := newFrailScene(t)
	source := s.source()
	s.freeze()
	s.giveFirst(source)
	s.waitVolume(s.moving, parked)
	s.receive()
	s.request()
	s.approve(source)
	s.contains(s.refused(protocol.ReasonVolumeInFlight), "{volume}", "another request")
	s.thaw()
	s.refused(protocol.ReasonSourceLost)
}

// TestFlight_TimedOut: a transfer that cannot go on gives the volume back, and
// is tried again.
func TestFlight_TimedOut(t *testing.T) {
	s := newFrailScene(t)
	s.sidecarOf(s.vendor(cluster.DriverOptions{}), "--verify-timeout=1s")
	source := s.source()
	before := s.volume(s.moving)
	s.freeze()
	s.grant(source)
	s.contains(s.told(s.receiver, "NamespaceTransferRequest", "take-data", string(protocol.ReasonTimedOut)), "{volume}", "1s")
	s.thaw()
	s.transferred()
	s.arrived(before)
}

// TestFlight_VolumeTaken: whoever takes a volume in flight is told on, and not
// fought with.
func TestFlight_VolumeTaken(t *testing.T) {
	s := newFrailScene(t)
	source := s.source()
	before := s.volume(s.moving)
	s.freeze()
	s.grant(source)
	// csi-provisioner answers the policy Retain with a write of its own.
	owner := s.waitVolume(s.moving, func(pv *corev1.PersistentVolume) bool {
		return parked(pv) && !slices.Contains(pv.Finalizers, "external-provisioner.volume.kubernetes.io/finalizer")
	}).Spec.ClaimRef
	s.patchVolume(s.moving, `{"spec":{"claimRef":{"kind":"PersistentVolumeClaim","name":"thief","uid":"another"}}}`)
	taken := s.volume(s.moving)
	s.contains(s.refused(protocol.ReasonVolumeTaken), "{volume}", "{receiver}/thief", "by integration.test")
	if now := s.volume(s.moving); now.ResourceVersion != taken.ResourceVersion || now.Spec.ClaimRef.Name != "thief" {
		t.Errorf("the sidecar has written to the volume: %+v", now)
	}
	s.patchVolume(s.moving, fmt.Sprintf(`{"spec":{"claimRef":{"kind":%q,"name":%q,"uid":%q}}}`, owner.Kind, owner.Name, owner.UID))
	s.thaw()
	s.transferred()
	s.arrived(before)
}

// TestFlight_ReceivingClaimDeleted: past the point of no return, the receiver's
// deletion keeps the volume for an administrator to decide.
func TestFlight_ReceivingClaimDeleted(t *testing.T) {
	s := newScene(t)
	source := s.source()
	s.forbid(s.moving, `object.spec.persistentVolumeReclaimPolicy == "Delete" && oldObject.spec.persistentVolumeReclaimPolicy == "Retain"`)
	s.grant(source)
	s.bound(s.receiver, "data")
	s.refused(protocol.ReasonWriteRefused)
	s.deleteClaim(s.receiver, "data", true)
	s.contains(s.refused(protocol.ReasonReceivingClaimDeleted), "PersistentVolumeClaim {receiver}/data", "{volume}", "Retain")
	s.abandoned()
}

// TestFlight_SourceDeleted: a source claim deleted while it gets its volume back
// leaves the volume to an administrator.
func TestFlight_SourceDeleted(t *testing.T) {
	s := newFrailScene(t)
	s.inFlight()
	s.freeze()
	s.must(s.approvals().Delete(s.ctx, "give-data", metav1.DeleteOptions{}))
	s.waitVolume(s.moving, func(pv *corev1.PersistentVolume) bool { return !parked(pv) })
	s.patchClaim(s.giver, "data", `{"metadata":{"finalizers":null}}`)
	s.deleteClaim(s.giver, "data", true)
	s.contains(s.told(s.receiver, "NamespaceTransferRequest", "take-data", string(protocol.ReasonSourceDeleted)), "PersistentVolumeClaim {giver}/data", "{volume}")
	s.thaw()
	s.abandoned()
}

// abandoned waits until nobody has the volume and nothing deletes it.
func (s *scene) abandoned() {
	s.Helper()
	pv := s.waitVolume(s.moving, func(pv *corev1.PersistentVolume) bool {
		return len(ours(pv.ObjectMeta)) == 0 && pv.Status.Phase == corev1.VolumeReleased
	})
	if pv.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain {
		s.Errorf("the policy of volume %s is %s", pv.Name, pv.Spec.PersistentVolumeReclaimPolicy)
	}
}

// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"github.com/csi-transfer/csi-transfer/pkg/apis/transfer/v1alpha1"
	"github.com/csi-transfer/csi-transfer/pkg/match"
	"github.com/csi-transfer/csi-transfer/pkg/sidecar/protocol"
	"github.com/csi-transfer/csi-transfer/test/cluster"
)

// TestThreat_StolenToken: with the sidecar's token one can do no more than the
// threat model says.
func TestThreat_StolenToken(t *testing.T) {
	s := newScene(t)
	may := func(verb, group, resource, subresource string) bool {
		s.Helper()
		// Asked by an administrator: it is the sidecar's own calls that are audited.
		review := must[*authorizationv1.SubjectAccessReview](s)(s.Client.AuthorizationV1().SubjectAccessReviews().Create(s.ctx, &authorizationv1.SubjectAccessReview{
			Spec: authorizationv1.SubjectAccessReviewSpec{
				User:   sidecarUser,
				Groups: []string{"system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"},
				ResourceAttributes: &authorizationv1.ResourceAttributes{
					Namespace: s.giver, Verb: verb, Group: group, Resource: resource, Subresource: subresource,
				},
			},
		}, metav1.CreateOptions{}))
		return review.Status.Allowed
	}
	for resource, group := range map[string]string{"persistentvolumes": "", "persistentvolumeclaims": "", "csidrivers": "storage.k8s.io"} {
		if !may("patch", group, resource, "") {
			t.Errorf("it may not patch %s, as the sidecar does", resource)
		}
		for _, verb := range []string{"create", "update", "delete", "deletecollection"} {
			if may(verb, group, resource, "") {
				t.Errorf("it may %s %s", verb, resource)
			}
		}
	}
	for _, verb := range cluster.WriteVerbs {
		for _, what := range [][]string{
			{"", "pods", ""}, {"", "pods", "exec"}, {"", "secrets", ""}, {"", "namespaces", ""}, {"", "serviceaccounts", "token"},
			{"storage.k8s.io", "storageclasses", ""}, {"storage.k8s.io", "volumeattachments", ""},
			{"snapshot.storage.k8s.io", "volumesnapshots", ""}, {"snapshot.storage.k8s.io", "volumesnapshotcontents", ""},
			{v1alpha1.GroupName, "namespacetransferrequests", ""}, {v1alpha1.GroupName, "namespacetransferapprovals", ""},
			{"rbac.authorization.k8s.io", "clusterroles", ""}, {"admissionregistration.k8s.io", "validatingadmissionpolicies", ""},
		} {
			if may(verb, what[0], what[1], what[2]) {
				t.Errorf("it may %s %s", verb, what)
			}
		}
	}
	for _, verb := range []string{"get", "list", "watch"} {
		if may(verb, "", "secrets", "") {
			t.Errorf("it may %s Secrets", verb)
		}
	}
}

// TestThreat_ClearedClaimRef: a spent claim gets the volume back if the receiver
// has deleted theirs and an administrator clears claimRef, as those do who want
// to use a Released volume again. It does not if it was deleted.
func TestThreat_ClearedClaimRef(t *testing.T) {
	for name, tc := range map[string]struct {
		tidy func(s *scene)
		gets bool
	}{
		"spent claim kept":    {func(*scene) {}, true},
		"spent claim deleted": {func(s *scene) { s.deleteClaim(s.giver, "data", true) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			s.newClass() // no other claim waits for a volume of it
			s.offer()
			s.transferred()
			s.spent()
			tc.tidy(s)
			s.patchVolume(s.moving, `{"spec":{"persistentVolumeReclaimPolicy":"Retain"}}`)
			s.deleteClaim(s.receiver, "data", true)
			s.waitVolume(s.moving, func(pv *corev1.PersistentVolume) bool { return pv.Status.Phase == corev1.VolumeReleased })
			s.patchVolume(s.moving, `{"spec":{"claimRef":null}}`)
			want := corev1.VolumeAvailable
			if tc.gets {
				want = corev1.VolumeBound
			}
			pv := s.waitVolume(s.moving, func(pv *corev1.PersistentVolume) bool { return pv.Status.Phase == want })
			if tc.gets && pv.Spec.ClaimRef.Namespace != s.giver {
				t.Errorf("the volume has gone to %+v", pv.Spec.ClaimRef)
			}
		})
	}
}

// TestThreat_ApprovalRestoredFromABackup: a spent approval that was deleted and
// comes back from a backup is one for the claim that it pins, and for no other.
func TestThreat_ApprovalRestoredFromABackup(t *testing.T) {
	s := newScene(t)
	source := s.offer()
	s.transferred()
	s.spent()
	s.must(s.approvals().Delete(s.ctx, "give-data", metav1.DeleteOptions{}))
	s.deleteClaim(s.giver, "data", true)
	again := s.source()
	since := must[cluster.AuditMark](s)(s.AuditMark())
	s.approve(source)
	s.request(func(r *v1alpha1.NamespaceTransferRequest) { r.Name = "take-again" })
	s.claim(s.receiver, "again", from("take-again"))
	must[*metav1.Condition](s)(s.WaitCondition(s.ctx, cluster.Approvals, s.giver, "give-data", v1alpha1.ConditionTransferred, metav1.ConditionFalse, string(match.ReasonUIDMismatch)))
	s.lookedAt()
	for _, e := range must[[]auditv1.Event](s)(s.sidecarWrites(cluster.AuditFilter{Since: since, Resource: "persistentvolumes", Name: again.Spec.VolumeName})) {
		t.Errorf("the sidecar has written: %s %s %s", e.Verb, e.RequestURI, body(e))
	}
}

// TestThreat_NamesTakenInTheReceivingNamespace: somebody there has made the
// claim, or a request, of the name that is expected.
func TestThreat_NamesTakenInTheReceivingNamespace(t *testing.T) {
	t.Run("claim", func(t *testing.T) {
		s := newScene(t)
		source := s.source()
		squatter := s.claim(s.receiver, "data")
		s.request()
		s.approve(source)
		s.refused(protocol.ReasonReceivingClaimMissing)
		s.claim(s.receiver, "other", from("take-data"))
		s.transferred()
		if now := s.bound(s.receiver, "data"); now.UID != squatter.UID || now.Spec.VolumeName == s.moving {
			t.Errorf("the squatter has %s", now.Spec.VolumeName)
		}
	})
	t.Run("request", func(t *testing.T) {
		s := newScene(t)
		source := s.source()
		// Who approves one request by name gives nothing to another.
		s.approve(source, func(a *v1alpha1.NamespaceTransferApproval) { a.Spec.RequestName = "agreed" })
		s.request()
		s.receive()
		s.lookedAt()
		r := must[*v1alpha1.NamespaceTransferRequest](s)(s.requests().Get(s.ctx, "take-data", metav1.GetOptions{}))
		if c := meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionTransferred); c.Reason != v1alpha1.ReasonNoApproval {
			t.Errorf("the request says %s", c.Reason)
		}
		s.untouched()
	})
}

// TestThreat_HeldOpen: a transfer that its receiver keeps from ending goes back.
func TestThreat_HeldOpen(t *testing.T) {
	s := newScene(t)
	st := s.newStage(cluster.DriverOptions{})
	source := s.source()
	before := s.volume(s.moving)
	g := s.holdAt(st, park, true)
	s.grant(source)
	s.wait(g)
	// A finalizer keeps the claim there, and being deleted.
	s.patchClaim(s.receiver, "data", `{"metadata":{"finalizers":["example.com/hold"]}}`)
	s.deleteClaim(s.receiver, "data", false)
	g.open()
	s.returned(before)
	s.contains(s.refused(protocol.ReasonReceivingClaimBeingDeleted), "PersistentVolumeClaim {receiver}/data is being deleted")
	s.patchClaim(s.receiver, "data", `{"metadata":{"finalizers":null}}`)
}

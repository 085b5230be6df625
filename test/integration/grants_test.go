// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/csi-transfer/csi-transfer/pkg/apis/transfer/v1alpha1"
	transfer "github.com/csi-transfer/csi-transfer/pkg/client/clientset/versioned"
	"github.com/csi-transfer/csi-transfer/pkg/match"
	"github.com/csi-transfer/csi-transfer/pkg/sidecar/protocol"
	"github.com/csi-transfer/csi-transfer/test/cluster"
)

// silent fails if a sidecar has written anything in the scene.
func (s *scene) silent(since cluster.AuditMark) {
	s.Helper()
	for _, filter := range []cluster.AuditFilter{
		{Since: since, Namespace: s.giver},
		{Since: since, Namespace: s.receiver},
		{Since: since, Resource: "persistentvolumes", Name: s.moving},
	} {
		if filter.Namespace == "" && filter.Name == "" {
			continue
		}
		for _, e := range must[[]auditv1.Event](s)(s.sidecarWrites(filter)) {
			s.Errorf("the sidecar has written: %s %s %s", e.Verb, e.RequestURI, body(e))
		}
	}
}

// TestR1_NothingMovesWithoutBothGrants: whatever is not agreed on by both sides
// changes nothing, and the sidecar writes nothing at all.
func TestR1_NothingMovesWithoutBothGrants(t *testing.T) {
	for name, grant := range map[string]func(s *scene, source *corev1.PersistentVolumeClaim){
		"request only":  func(s *scene, _ *corev1.PersistentVolumeClaim) { s.request() },
		"approval only": func(s *scene, source *corev1.PersistentVolumeClaim) { s.approve(source) },
		"approval for another namespace": func(s *scene, source *corev1.PersistentVolumeClaim) {
			s.request()
			s.approve(source, func(a *v1alpha1.NamespaceTransferApproval) { a.Spec.TargetNamespace = "elsewhere" })
		},
		"approval of another claim": func(s *scene, source *corev1.PersistentVolumeClaim) {
			s.request()
			s.approve(source, func(a *v1alpha1.NamespaceTransferApproval) { a.Spec.Source.Name = "other" })
		},
		"approval for another request": func(s *scene, source *corev1.PersistentVolumeClaim) {
			s.request()
			s.approve(source, func(a *v1alpha1.NamespaceTransferApproval) { a.Spec.RequestName = "other" })
		},
		"request for another approval": func(s *scene, source *corev1.PersistentVolumeClaim) {
			s.request(func(r *v1alpha1.NamespaceTransferRequest) { r.Spec.ApprovalName = "other" })
			s.approve(source)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			source := s.source()
			since := must[cluster.AuditMark](s)(s.AuditMark())
			s.receive()
			grant(s, source)
			s.lookedAt()
			s.silent(since)
			s.bound(s.giver, "data")
		})
	}
}

// TestR1_NamesOnEitherSide: grants that name each other match.
func TestR1_NamesOnEitherSide(t *testing.T) {
	s := newScene(t)
	source := s.source()
	s.request(func(r *v1alpha1.NamespaceTransferRequest) { r.Spec.ApprovalName = "give-data" })
	s.approve(source, func(a *v1alpha1.NamespaceTransferApproval) { a.Spec.RequestName = "take-data" })
	s.receive()
	s.transferred()
}

// TestR1_ApprovalIsForOneClaim: a claim made again under the name is never given
// away by an approval of the one before, and an approval serves once.
func TestR1_ApprovalIsForOneClaim(t *testing.T) {
	for name, tc := range map[string]struct {
		pinned bool
		reason match.Reason
	}{
		"pinned":   {true, match.ReasonUIDMismatch},
		"unpinned": {false, match.ReasonSourceNotOlder},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			source := s.source()
			if !tc.pinned {
				source = nil
			}
			s.approve(source)
			s.deleteClaim(s.giver, "data", true)
			again := s.source()
			s.request()
			s.receive()
			c := must[*metav1.Condition](s)(s.WaitCondition(s.ctx, cluster.Approvals, s.giver, "give-data", v1alpha1.ConditionTransferred, metav1.ConditionFalse, string(tc.reason)))
			s.contains(c.Message, "create another approval")
			s.lookedAt()
			r := must[*v1alpha1.NamespaceTransferRequest](s)(s.requests().Get(s.ctx, "take-data", metav1.GetOptions{}))
			if c := meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionTransferred); c.Reason != v1alpha1.ReasonNoApproval {
				t.Errorf("the request tells of %s", c.Reason)
			}
			if s.bound(s.giver, "data").Spec.VolumeName != again.Spec.VolumeName {
				t.Error("the claim has lost its volume")
			}
		})
	}
	t.Run("spent", func(t *testing.T) {
		s := newScene(t)
		s.offer()
		s.transferred()
		s.spent()
		s.deleteClaim(s.giver, "data", true)
		s.source()
		since := must[cluster.AuditMark](s)(s.AuditMark())
		s.request(func(r *v1alpha1.NamespaceTransferRequest) { r.Name = "take-more" })
		s.claim(s.receiver, "more", from("take-more"))
		s.lookedAt()
		s.silent(since)
	})
}

// TestR2_StatusTellsNothingBeforeApproval: who asks cannot tell from the status
// whether the source exists.
func TestR2_StatusTellsNothingBeforeApproval(t *testing.T) {
	s := newScene(t)
	s.source()
	s.patchClaim(s.giver, "data", annotation(v1alpha1.AnnotationAllow, "false"))
	since := must[cluster.AuditMark](s)(s.AuditMark())
	for _, name := range []string{"data", "missing"} {
		s.request(func(r *v1alpha1.NamespaceTransferRequest) { r.Name, r.Spec.Source.Name = name, name })
		s.claim(s.receiver, name, from(name))
	}
	s.request(func(r *v1alpha1.NamespaceTransferRequest) {
		r.Name, r.Spec.Source.Namespace = "nowhere", "no-such-namespace"
	})
	s.lookedAt()
	s.silent(since)
	s.sameStatus("data", "missing", "nowhere")

	// Nor does it after an approval that was taken back, but for when.
	for _, name := range []string{"data", "missing"} {
		s.approve(nil, func(a *v1alpha1.NamespaceTransferApproval) { a.Name, a.Spec.Source.Name = name, name })
	}
	for _, name := range []string{"data", "missing"} {
		must[*metav1.Condition](s)(s.WaitCondition(s.ctx, cluster.Approvals, s.giver, name, v1alpha1.ConditionTransferred, metav1.ConditionFalse, ""))
		s.must(s.approvals().Delete(s.ctx, name, metav1.DeleteOptions{}))
	}
	for _, name := range []string{"data", "missing"} {
		must[*metav1.Condition](s)(s.WaitCondition(s.ctx, cluster.Requests, s.receiver, name, v1alpha1.ConditionApproved, metav1.ConditionFalse, v1alpha1.ReasonNoApproval))
		must[*metav1.Condition](s)(s.WaitCondition(s.ctx, cluster.Requests, s.receiver, name, v1alpha1.ConditionTransferred, metav1.ConditionFalse, v1alpha1.ReasonNoApproval))
	}
	s.sameStatus("data", "missing")
}

// sameStatus fails unless requests have the same status, byte by byte, but for
// the time of transitions.
func (s *scene) sameStatus(names ...string) {
	s.Helper()
	var first string
	for _, name := range names {
		r := must[*v1alpha1.NamespaceTransferRequest](s)(s.requests().Get(s.ctx, name, metav1.GetOptions{}))
		for i := range r.Status.Conditions {
			if r.Status.Conditions[i].LastTransitionTime.Unix() != 0 { // the default
				r.Status.Conditions[i].LastTransitionTime = metav1.Time{}
			}
		}
		status, err := json.Marshal(r.Status)
		s.must(err)
		if first == "" {
			first = string(status)
		}
		if string(status) != first {
			s.Errorf("the status of %s is\n%s\nand that of %s\n%s", names[0], first, name, status)
		}
	}
}

// TestR4_QuotaOfTheReceiverHolds: the receiving claim is charged like any other,
// for all of the volume.
func TestR4_QuotaOfTheReceiverHolds(t *testing.T) {
	s := newScene(t)
	source := s.source()
	quotas := s.Client.CoreV1().ResourceQuotas(s.receiver)
	must[*corev1.ResourceQuota](s)(quotas.Create(s.ctx, &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "storage"},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourceRequestsStorage: resource.MustParse("600Mi")}},
	}, metav1.CreateOptions{}))
	s.hard("600Mi")
	s.request()
	s.approve(source)
	s.refused(protocol.ReasonReceivingClaimMissing)

	claim := func(quantity string) error {
		_, err := s.claims(s.receiver).Create(s.ctx, s.newClaim("data", size(quantity), from("take-data")), metav1.CreateOptions{})
		return err
	}
	if err := claim("1Gi"); !apierrors.IsForbidden(err) {
		t.Fatalf("a claim beyond the quota: %v", err)
	} else {
		s.contains(err.Error(), "exceeded quota: storage")
	}
	s.must(claim("512Mi"))
	s.contains(s.refused(protocol.ReasonCapacityMismatch), "512Mi", "1Gi")
	s.deleteClaim(s.receiver, "data", true)

	must[*corev1.ResourceQuota](s)(quotas.Patch(s.ctx, "storage", types.MergePatchType, []byte(`{"spec":{"hard":{"requests.storage":"1Gi"}}}`), metav1.PatchOptions{}))
	s.hard("1Gi")
	// Admission learns of it a moment later.
	s.must(wait.PollUntilContextCancel(s.ctx, 50*time.Millisecond, true, func(context.Context) (bool, error) {
		err := claim("1Gi")
		if apierrors.IsForbidden(err) {
			return false, nil
		}
		return true, err
	}))
	s.transferred()
}

// hard waits until the quota is in force.
func (s *scene) hard(quantity string) {
	s.Helper()
	want := resource.MustParse(quantity)
	must[*corev1.ResourceQuota](s)(cluster.Wait(s.ctx, s.Cluster, corev1.SchemeGroupVersion.WithResource("resourcequotas"), s.receiver, "storage", func(q *corev1.ResourceQuota) bool {
		has, used := q.Status.Hard[corev1.ResourceRequestsStorage], q.Status.Used[corev1.ResourceRequestsStorage]
		return has.Cmp(want) == 0 && used.IsZero()
	}))
}

// user is somebody with one of Kubernetes' own roles in one namespace.
type user struct {
	kube     kubernetes.Interface
	transfer transfer.Interface
}

func (s *scene) user(name, namespace, role string) user {
	s.Helper()
	name += "-" + namespace
	must[*rbacv1.RoleBinding](s)(s.Client.RbacV1().RoleBindings(namespace).Create(s.ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: name}},
	}, metav1.CreateOptions{}))
	// Kubernetes adds aggregated rules a moment after they were made.
	must[*rbacv1.ClusterRole](s)(cluster.Wait(s.ctx, s.Cluster, rbacv1.SchemeGroupVersion.WithResource("clusterroles"), "", role, func(r *rbacv1.ClusterRole) bool {
		return slices.ContainsFunc(r.Rules, func(rule rbacv1.PolicyRule) bool { return slices.Contains(rule.APIGroups, v1alpha1.GroupName) })
	}))
	config := must[*rest.Config](s)(s.ConfigFor(name))
	kube, err := kubernetes.NewForConfig(config)
	s.must(err)
	return user{kube, must[*transfer.Clientset](s)(transfer.NewForConfig(config))}
}

// TestR5_EditInOwnNamespaceSuffices: two developers, each with edit in a
// namespace of their own and nothing else, do all of it. Whoever may only view
// sees it.
func TestR5_EditInOwnNamespaceSuffices(t *testing.T) {
	s := newScene(t)
	alice, bob := s.user("alice", s.giver, "edit"), s.user("bob", s.receiver, "edit")
	must[*corev1.PersistentVolumeClaim](s)(alice.kube.CoreV1().PersistentVolumeClaims(s.giver).Create(s.ctx, s.newClaim("data"), metav1.CreateOptions{}))
	source := s.bound(s.giver, "data")
	s.moving = source.Spec.VolumeName

	request := must[*v1alpha1.NamespaceTransferRequest](s)(bob.transfer.TransferV1alpha1().NamespaceTransferRequests(s.receiver).Create(s.ctx, s.newRequest(), metav1.CreateOptions{}))
	approval := must[*v1alpha1.NamespaceTransferApproval](s)(alice.transfer.TransferV1alpha1().NamespaceTransferApprovals(s.giver).Create(s.ctx, s.newApproval(source), metav1.CreateOptions{}))
	s.refused(protocol.ReasonReceivingClaimMissing)

	viewer := s.user("carol", s.receiver, "view")
	for what, err := range map[string]error{
		"approving in the giver's name": func() error {
			_, err := bob.transfer.TransferV1alpha1().NamespaceTransferApprovals(s.giver).Create(s.ctx, approval, metav1.CreateOptions{})
			return err
		}(),
		"reading the giver's approvals": func() error {
			_, err := bob.transfer.TransferV1alpha1().NamespaceTransferApprovals(s.giver).List(s.ctx, metav1.ListOptions{})
			return err
		}(),
		"requesting in the receiver's name": func() error {
			_, err := alice.transfer.TransferV1alpha1().NamespaceTransferRequests(s.receiver).Create(s.ctx, request, metav1.CreateOptions{})
			return err
		}(),
		"writing the status of a request": func() error {
			_, err := bob.transfer.TransferV1alpha1().NamespaceTransferRequests(s.receiver).UpdateStatus(s.ctx, request, metav1.UpdateOptions{})
			return err
		}(),
		"writing the status of an approval": func() error {
			_, err := alice.transfer.TransferV1alpha1().NamespaceTransferApprovals(s.giver).UpdateStatus(s.ctx, approval, metav1.UpdateOptions{})
			return err
		}(),
		"a request by somebody who may only view": func() error {
			_, err := viewer.transfer.TransferV1alpha1().NamespaceTransferRequests(s.receiver).Create(s.ctx, s.newRequest(), metav1.CreateOptions{})
			return err
		}(),
	} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
	must[*v1alpha1.NamespaceTransferRequest](s)(viewer.transfer.TransferV1alpha1().NamespaceTransferRequests(s.receiver).Get(s.ctx, "take-data", metav1.GetOptions{}))

	must[*corev1.PersistentVolumeClaim](s)(bob.kube.CoreV1().PersistentVolumeClaims(s.receiver).Create(s.ctx, s.newClaim("data", from("take-data")), metav1.CreateOptions{}))
	s.transferred()
	s.spent()
	s.must(bob.transfer.TransferV1alpha1().NamespaceTransferRequests(s.receiver).Delete(s.ctx, "take-data", metav1.DeleteOptions{}))
	s.must(alice.transfer.TransferV1alpha1().NamespaceTransferApprovals(s.giver).Delete(s.ctx, "give-data", metav1.DeleteOptions{}))
}

// TestR6_OtherKindsAreLeftAlone: transfers of other kinds are those of other
// controllers.
func TestR6_OtherKindsAreLeftAlone(t *testing.T) {
	s := newScene(t)
	s.source()
	since := must[cluster.AuditMark](s)(s.AuditMark())
	for i, kind := range []v1alpha1.SourceReference{
		{APIGroup: "snapshot.storage.k8s.io", Kind: "VolumeSnapshot", Name: "data"},
		{APIGroup: "example.com", Kind: "PersistentVolumeClaim", Name: "data"},
		{Kind: "ConfigMap", Name: "data"},
	} {
		name := fmt.Sprintf("other-%d", i)
		s.request(func(r *v1alpha1.NamespaceTransferRequest) { r.Name, r.Spec.Source.SourceReference = name, kind })
		s.approve(nil, func(a *v1alpha1.NamespaceTransferApproval) { a.Name, a.Spec.Source.SourceReference = name, kind })
		s.claim(s.receiver, name, from(name))
	}
	s.lookedAt()
	s.silent(since)
}

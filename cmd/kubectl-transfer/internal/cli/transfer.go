// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	"github.com/csi-transfer/csi-transfer/cmd/kubectl-transfer/internal/board"
	"github.com/csi-transfer/csi-transfer/pkg/apis/transfer/v1alpha1"
	transferv1alpha1 "github.com/csi-transfer/csi-transfer/pkg/client/clientset/versioned/typed/transfer/v1alpha1"
	"github.com/csi-transfer/csi-transfer/pkg/match"
	"github.com/csi-transfer/csi-transfer/pkg/sidecar/protocol"
)

// claimKind is how requests and approvals name what moves.
const claimKind = "PersistentVolumeClaim"

// over is the error of a transfer that cannot be gone on with.
type over struct{ error }

func (o over) Unwrap() error { return o.error }

// transfer is one claim on its way, seen from the receiving side and, where the
// user has both, from the giving side too.
type transfer struct {
	*session
	source, target types.NamespacedName
	// giver is the source claim where this user also approves, else nil.
	giver *corev1.PersistentVolumeClaim
	// labels are given to the receiving claim.
	labels map[string]string

	row     *board.Row
	request *v1alpha1.NamespaceTransferRequest
	// approval is the user's own, where this user also approves.
	approval *v1alpha1.NamespaceTransferApproval
	// claim is the receiving claim, once it is there.
	claim *corev1.PersistentVolumeClaim
	// err is why the command did not see the transfer to its end.
	err error
}

func (t *transfer) String() string { return t.source.String() + " -> " + t.target.String() }

// rights that a transfer takes of its user.
func (t *transfer) rights() []rights {
	all := []rights{
		{receiving, t.target.Namespace, requestResource, []string{"create", "list", "watch"}},
		{receiving, t.target.Namespace, claimResource, []string{"get", "list", "watch", "create"}},
	}
	if t.giver != nil {
		all = append(all,
			rights{giving, t.source.Namespace, claimResource, []string{"get"}},
			rights{giving, t.source.Namespace, approvalResource, []string{"create", "list"}})
	}
	return all
}

// begin makes what can be made before the giver agrees: the request and, where
// the user is the giver too, the approval. What is there already is used.
func (t *transfer) begin(ctx context.Context) error {
	if err := t.lookForTarget(ctx); err != nil {
		return err
	}
	var err error
	if t.request, err = t.openRequest(ctx); err != nil {
		return err
	}
	if t.request == nil {
		// A claim may have been left waiting by a request that was taken back.
		if bound := t.claim != nil && t.claim.Spec.VolumeName != ""; bound || t.ours(t.newRequest()) != nil {
			return t.taken()
		}
		if t.request, err = t.createRequest(ctx); err != nil {
			return err
		}
	}
	if err := t.ours(t.request); err != nil {
		return err
	}
	if t.giver != nil {
		t.approval, _, err = t.approve(ctx, t.giver, t.target.Namespace, t.request.Name, true)
	}
	return err
}

// lookForTarget finds out whether there is a claim of the target's name.
func (t *transfer) lookForTarget(ctx context.Context) error {
	claim, err := t.core.CoreV1().PersistentVolumeClaims(t.target.Namespace).Get(ctx, t.target.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		t.claim = nil
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading PersistentVolumeClaim %s: %w", t.target, err)
	}
	t.claim = claim
	return nil
}

// ours returns an error where the claim of the target's name is there and is not
// for the request.
func (t *transfer) ours(r *v1alpha1.NamespaceTransferRequest) error {
	if t.claim == nil || receives(t.claim) == r.Name {
		return nil
	}
	return t.taken()
}

// taken says that the target's name is.
func (t *transfer) taken() error {
	if t.claim.DeletionTimestamp != nil {
		return fmt.Errorf("PersistentVolumeClaim %s is still being deleted; wait until it is gone, or choose another name", t.target)
	}
	return fmt.Errorf("PersistentVolumeClaim %s exists already; choose another name, or delete it", t.target)
}

// receives is the name of the request that a claim has as its data source, if it
// has one.
func receives(c *corev1.PersistentVolumeClaim) string {
	ref := c.Spec.DataSourceRef
	if ref == nil || ref.Kind != v1alpha1.RequestKind || ptr.Deref(ref.APIGroup, "") != v1alpha1.GroupName {
		return ""
	}
	return ref.Name
}

// openRequest finds a request for the source that is not complete: that of an
// earlier run.
func (t *transfer) openRequest(ctx context.Context) (*v1alpha1.NamespaceTransferRequest, error) {
	list, err := t.requests().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("listing requests of namespace %s: %w", t.target.Namespace, notInstalled(err))
	}
	for i := range list.Items {
		if r := &list.Items[i]; asksFor(r, t.source) && !match.Completed(r) && r.DeletionTimestamp == nil && !abandoned(r) {
			return r, nil
		}
	}
	return nil, nil
}

// asksFor reports whether a request is for a claim.
func asksFor(r *v1alpha1.NamespaceTransferRequest, source types.NamespacedName) bool {
	s := r.Spec.Source
	return s.APIGroup == "" && s.Kind == claimKind && s.Namespace == source.Namespace && s.Name == source.Name
}

// gives reports whether an approval is for a claim.
func gives(a *v1alpha1.NamespaceTransferApproval, source types.NamespacedName) bool {
	s := a.Spec.Source
	return s.APIGroup == "" && s.Kind == claimKind && a.Namespace == source.Namespace && s.Name == source.Name
}

// abandoned reports whether a transfer ended because a user deleted a claim.
func abandoned(r *v1alpha1.NamespaceTransferRequest) bool {
	c := meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionTransferred)
	return c != nil && (c.Reason == string(protocol.ReasonReceivingClaimDeleted) || c.Reason == string(protocol.ReasonSourceDeleted))
}

func (t *transfer) newRequest() *v1alpha1.NamespaceTransferRequest {
	r := &v1alpha1.NamespaceTransferRequest{}
	r.Namespace, r.Name = t.target.Namespace, nameOf(t.source.Name, "-from-"+t.source.Namespace)
	r.Spec.Source = v1alpha1.RequestSource{
		Namespace:       t.source.Namespace,
		SourceReference: v1alpha1.SourceReference{Kind: claimKind, Name: t.source.Name},
	}
	return r
}

func (t *transfer) createRequest(ctx context.Context) (*v1alpha1.NamespaceTransferRequest, error) {
	r := t.newRequest()
	if t.output.dryRun == dryRunClient {
		return r, nil
	}
	return create(ctx, r, t.output.createOptions(), t.requests().Create)
}

// nameOf makes the name of an object of that of a claim, which may be so long that
// its end has to go.
func nameOf(claim, suffix string) string {
	const most = validation.DNS1123SubdomainMaxLength - len("-xxxxx") // see create
	return claim[:min(len(claim), most-len(suffix))] + suffix
}

// create creates an object under its name or, where an earlier transfer has that
// name, under one that begins with it.
func create[T any, P interface {
	*T
	runtime.Object
	metav1.Object
}](ctx context.Context, o P, options metav1.CreateOptions, create func(context.Context, P, metav1.CreateOptions) (P, error)) (P, error) {
	created, err := create(ctx, o, options)
	if apierrors.IsAlreadyExists(err) {
		o.SetGenerateName(o.GetName() + "-")
		o.SetName("")
		created, err = create(ctx, o, options)
	}
	if err != nil {
		return nil, fmt.Errorf("creating %T in namespace %s: %w", o, o.GetNamespace(), notInstalled(err))
	}
	return created, nil
}

// notInstalled says what to do where the API server does not know our kinds.
func notInstalled(err error) error {
	if absent(err) {
		return errors.New("this cluster does not have csi-transfer; an administrator installs it with kubectl apply -k deploy/kubernetes")
	}
	return err
}

// newClaim makes the receiving claim as a request says it must be.
func (t *transfer) newClaim(request string, required *v1alpha1.RequiredClaim) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{}
	c.Namespace, c.Name, c.Labels = t.target.Namespace, t.target.Name, t.labels
	c.Spec = corev1.PersistentVolumeClaimSpec{
		DataSourceRef:    &corev1.TypedObjectReference{APIGroup: ptr.To(v1alpha1.GroupName), Kind: v1alpha1.RequestKind, Name: request},
		AccessModes:      required.AccessModes,
		StorageClassName: &required.StorageClassName,
		VolumeMode:       &required.VolumeMode,
		Resources:        corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: required.Capacity}},
	}
	if required.VolumeAttributesClassName != "" {
		c.Spec.VolumeAttributesClassName = &required.VolumeAttributesClassName
	}
	return c
}

// finish waits until the claim has arrived, and makes the receiving claim on the
// way.
func (t *transfer) finish(ctx context.Context) error {
	err := t.followRequest(ctx, types.NamespacedName{Namespace: t.request.Namespace, Name: t.request.Name}, func(r *v1alpha1.NamespaceTransferRequest) (bool, error) {
		if r == nil || r.UID != t.request.UID {
			return false, over{fmt.Errorf("request %s/%s was deleted, which calls the transfer off", t.request.Namespace, t.request.Name)}
		}
		t.request = r
		return t.step(ctx, r)
	})
	if err != nil {
		return err
	}
	return t.followClaim(ctx, t.target, func(c *corev1.PersistentVolumeClaim) (bool, error) {
		t.claim = c
		switch {
		case c == nil:
			return false, over{fmt.Errorf("PersistentVolumeClaim %s was deleted", t.target)}
		case c.Status.Phase != corev1.ClaimBound:
			return false, nil
		}
		t.row.Set(board.Done, "PersistentVolumeClaim "+t.target.String()+" has volume "+c.Spec.VolumeName)
		return true, nil
	})
}

// step looks at the request as it is now.
func (t *transfer) step(ctx context.Context, r *v1alpha1.NamespaceTransferRequest) (done bool, err error) {
	c := meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionTransferred)
	switch {
	case match.Completed(r):
		return true, nil
	case abandoned(r):
		return false, over{errors.New(c.Message)}
	case !meta.IsStatusConditionTrue(r.Status.Conditions, v1alpha1.ConditionApproved):
		t.row.Set(board.Waiting, t.unapproved())
		return false, nil
	case r.Status.Required != nil && (t.claim == nil || c != nil && c.Reason == string(protocol.ReasonReceivingClaimMissing)):
		if err := t.makeTarget(ctx, r); err != nil {
			return false, err
		}
	}
	switch {
	case c == nil || c.Reason == v1alpha1.ReasonNoApproval || c.Reason == string(protocol.ReasonReceivingClaimMissing):
		t.row.Set(board.Waiting, "approved")
	case c.Reason == v1alpha1.ReasonTransferring:
		t.row.Set(board.Moving, c.Message)
	default:
		// That one is made in a moment, by this command.
		t.row.Set(board.Waiting, strings.TrimSuffix(c.Message, " (also: "+string(protocol.ReasonReceivingClaimMissing)+")"))
	}
	return false, nil
}

// makeTarget makes the receiving claim unless it is there.
func (t *transfer) makeTarget(ctx context.Context, r *v1alpha1.NamespaceTransferRequest) (err error) {
	if err := t.lookForTarget(ctx); err != nil {
		return err
	}
	if t.claim != nil {
		return t.ours(r)
	}
	t.claim, err = t.core.CoreV1().PersistentVolumeClaims(t.target.Namespace).Create(ctx, t.newClaim(r.Name, r.Status.Required), t.output.createOptions())
	if err != nil {
		return fmt.Errorf("creating PersistentVolumeClaim %s: %w", t.target, err)
	}
	return nil
}

func (t *transfer) unapproved() string {
	if t.giver != nil {
		return "for csi-transfer to see the approval"
	}
	return fmt.Sprintf("for an approval; a user of namespace %s gives it with: kubectl transfer approve %s --to %s --request %s",
		t.source.Namespace, arg(t.source), t.target.Namespace, t.request.Name)
}

// approve makes an approval, unless one is open that says the same.
func (s *session) approve(ctx context.Context, source *corev1.PersistentVolumeClaim, to, request string, pin bool) (a *v1alpha1.NamespaceTransferApproval, created bool, err error) {
	a = &v1alpha1.NamespaceTransferApproval{}
	a.Namespace, a.Name = source.Namespace, nameOf(source.Name, "-to-"+to)
	a.Spec = v1alpha1.NamespaceTransferApprovalSpec{
		Source:          v1alpha1.ApprovalSource{SourceReference: v1alpha1.SourceReference{Kind: claimKind, Name: source.Name}},
		TargetNamespace: to,
		RequestName:     request,
	}
	if pin {
		a.Spec.Source.UID = source.UID
	}
	client := s.api.NamespaceTransferApprovals(source.Namespace)
	list, err := client.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, false, fmt.Errorf("listing approvals of namespace %s: %w", source.Namespace, notInstalled(err))
	}
	for i := range list.Items {
		if have := &list.Items[i]; have.Spec == a.Spec && !match.Spent(have) && have.DeletionTimestamp == nil {
			return have, false, nil
		}
	}
	if s.output.dryRun == dryRunClient {
		return a, true, nil
	}
	a, err = create(ctx, a, s.output.createOptions(), client.Create)
	return a, err == nil, err
}

func (t *transfer) requests() transferv1alpha1.NamespaceTransferRequestInterface {
	return t.api.NamespaceTransferRequests(t.target.Namespace)
}

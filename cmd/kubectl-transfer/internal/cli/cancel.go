// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csi-transfer/csi-transfer/pkg/apis/transfer/v1alpha1"
	"github.com/csi-transfer/csi-transfer/pkg/match"
	"github.com/csi-transfer/csi-transfer/pkg/sidecar/protocol"
)

func newCancel(f *factory) *cobra.Command {
	wait := waitFlags{timeout: time.Minute}
	cmd := &cobra.Command{
		Use:     "cancel (CLAIM | ntr/NAME | nta/NAME)",
		GroupID: groupEnd,
		Short:   "Call a transfer off",
		Long: `Call a transfer off, from either side: the giver takes the approval back, the
receiver the request. Until the volume is bound to the receiving claim, the source
claim then works as before. A transfer that is complete cannot be called off; see
"kubectl transfer undo".`,
		Example: `  # The giver does not want to give any more.
  kubectl transfer cancel pvc/data -n prod

  # The receiver does not want to have any more.
  kubectl transfer cancel prod/pvc/data -n dev`,
		Args: oneClaim,
	}
	o := newOutput(cmd)
	wait.add(cmd, "the claim that gives has its volume back, if this is its namespace")
	cmd.ValidArgsFunction = f.complete(1, claims, requests, approvals)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		s, err := f.open(o)
		if err != nil {
			return err
		}
		n, err := parseName(args[0], s.namespace, claims, requests, approvals)
		if err != nil {
			return err
		}
		return s.cancel(cmd.Context(), n, wait)
	}
	o.withDryRun(cmd)
	return cmd
}

func (s *session) cancel(ctx context.Context, n name, wait waitFlags) error {
	open, err := s.openTransfers(ctx, n)
	if err != nil {
		return err
	}
	if open.empty() {
		return fmt.Errorf("nothing to call off: where you may look, no request or approval for %s is open; what is complete is undone with kubectl transfer undo", n)
	}
	for _, a := range open.approvals {
		if err := s.takeBack(ctx, a, s.api.NamespaceTransferApprovals(a.Namespace).Delete, "approval"); err != nil {
			return err
		}
	}
	for _, r := range open.requests {
		if err := s.takeBack(ctx, r, s.api.NamespaceTransferRequests(r.Namespace).Delete, "request"); err != nil {
			return err
		}
	}
	if s.output.dry() {
		return nil
	}
	for _, c := range open.receivers {
		s.say("PersistentVolumeClaim %s/%s still waits for it. To delete it:  kubectl delete pvc %s -n %s", c.Namespace, c.Name, c.Name, c.Namespace)
	}
	if len(open.approvals) == 0 || !wait.wait {
		return nil
	}
	ctx, cancel := wait.limit(ctx)
	defer cancel()
	return s.returned(ctx, types.NamespacedName{Namespace: open.approvals[0].Namespace, Name: open.approvals[0].Spec.Source.Name})
}

// scope is the namespace whose requests and approvals a name is about.
func (s *session) scope(n name) string {
	if n.kind == claims {
		return s.namespace
	}
	return n.Namespace
}

// openTransfers are requests and approvals that are not complete.
type openTransfers struct {
	requests  []*v1alpha1.NamespaceTransferRequest
	approvals []*v1alpha1.NamespaceTransferApproval
	// receivers are claims that wait for one of the requests.
	receivers []*corev1.PersistentVolumeClaim
}

func (o openTransfers) empty() bool { return len(o.requests)+len(o.approvals) == 0 }

// openTransfers finds what is open of a claim, which may be on either side, or
// the request or approval of that name. Requests are looked for in the namespace
// of -n, approvals in that of the claim. Rights on one side are enough.
func (s *session) openTransfers(ctx context.Context, n name) (openTransfers, error) {
	var open openTransfers
	var lacking []error
	looked := false
	where := s.scope(n)
	if n.kind != approvals {
		err := s.require(ctx,
			rights{receiving, where, requestResource, []string{"list", "delete"}},
			rights{receiving, where, claimResource, []string{"list"}})
		if err != nil {
			lacking = append(lacking, err)
		} else if err := s.openRequests(ctx, n, where, &open); err != nil {
			return open, err
		}
		looked = looked || err == nil
	}
	if n.kind != requests {
		err := s.require(ctx, rights{giving, n.Namespace, approvalResource, []string{"list", "delete"}})
		if err != nil {
			lacking = append(lacking, err)
		} else if err := s.openApprovals(ctx, n, where, &open); err != nil {
			return open, err
		}
		looked = looked || err == nil
	}
	if !looked {
		return open, errors.Join(lacking...)
	}
	return open, nil
}

func (s *session) openRequests(ctx context.Context, n name, namespace string, open *openTransfers) error {
	claimList, err := s.core.CoreV1().PersistentVolumeClaims(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("listing the claims of namespace %s: %w", namespace, err)
	}
	list, err := s.api.NamespaceTransferRequests(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("listing requests of namespace %s: %w", namespace, notInstalled(err))
	}
	for i := range list.Items {
		r := &list.Items[i]
		var receivers []*corev1.PersistentVolumeClaim
		named := n.kind == requests && r.Name == n.Name || n.kind == claims && asksFor(r, n.NamespacedName)
		for j := range claimList.Items {
			if c := &claimList.Items[j]; receives(c) == r.Name {
				receivers = append(receivers, c)
				named = named || n.kind == claims && n.Namespace == namespace && c.Name == n.Name
			}
		}
		if named && !match.Completed(r) && r.DeletionTimestamp == nil {
			open.requests = append(open.requests, r)
			open.receivers = append(open.receivers, receivers...)
		}
	}
	return nil
}

// openApprovals are those for any namespace where the claim is of the namespace
// that -n names, else those for that one.
func (s *session) openApprovals(ctx context.Context, n name, where string, open *openTransfers) error {
	list, err := s.api.NamespaceTransferApprovals(n.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("listing approvals of namespace %s: %w", n.Namespace, notInstalled(err))
	}
	for i := range list.Items {
		a := &list.Items[i]
		named := n.kind == approvals && a.Name == n.Name ||
			n.kind == claims && gives(a, n.NamespacedName) && (n.Namespace == where || a.Spec.TargetNamespace == where)
		if named && !match.Spent(a) && a.DeletionTimestamp == nil {
			open.approvals = append(open.approvals, a)
		}
	}
	return nil
}

// takeBack deletes a request or an approval.
func (s *session) takeBack(ctx context.Context, o metav1.Object, remove func(context.Context, string, metav1.DeleteOptions) error, what string) error {
	if s.output.dryRun != dryRunClient {
		if err := remove(ctx, o.GetName(), s.output.deleteOptions(o)); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("deleting %s %s/%s: %w", what, o.GetNamespace(), o.GetName(), err)
		}
	}
	s.say("%s", s.output.did(fmt.Sprintf("Took the %s %s/%s back.", what, o.GetNamespace(), o.GetName())))
	return nil
}

// returned waits until a claim has its volume, with nothing of a transfer left
// on it, or is found to have lost it.
func (s *session) returned(ctx context.Context, claim types.NamespacedName) error {
	if err := s.require(ctx, rights{giving, claim.Namespace, claimResource, []string{"get", "list", "watch"}}); err != nil {
		return err
	}
	told := false
	err := s.followClaim(ctx, claim, func(c *corev1.PersistentVolumeClaim) (bool, error) {
		switch {
		case c == nil:
			return false, fmt.Errorf("PersistentVolumeClaim %s was deleted", claim)
		case c.Status.Phase == corev1.ClaimBound && c.Annotations[v1alpha1.AnnotationTransferUID] == "":
			s.say("PersistentVolumeClaim %s has its volume %s.", claim, c.Spec.VolumeName)
			return true, nil
		case c.Status.Phase == corev1.ClaimPending:
			s.say("PersistentVolumeClaim %s is Pending as before.", claim)
			return true, nil
		}
		if !told {
			s.say("Waiting until PersistentVolumeClaim %s has its volume back, unless %s had it already.", claim, protocol.TransferredTo(c))
			told = true
		}
		return false, nil
	})
	if errors.Is(err, errTimeout) {
		return fmt.Errorf("%w: PersistentVolumeClaim %s does not have its volume back; if it was too late, kubectl transfer undo %s brings it back", err, claim, arg(claim))
	}
	return err
}

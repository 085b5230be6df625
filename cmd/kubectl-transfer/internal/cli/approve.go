// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csi-transfer/csi-transfer/pkg/sidecar/protocol"
)

func newApprove(f *factory) *cobra.Command {
	var to, request string
	var pin bool
	cmd := &cobra.Command{
		Use:     "approve CLAIM --to NAMESPACE",
		GroupID: groupMove,
		Short:   "Allow one other namespace to take a claim",
		Long: `Allow one other namespace to take a claim. For a user of the giving namespace.

Nothing happens before a user of the other namespace accepts. The approval is for
this very claim: one that is made anew under its name is not given away. It serves
one transfer, and can be taken back with "kubectl transfer cancel" until then.`,
		Example: `  # Let namespace dev take the claim data of namespace prod.
  kubectl transfer approve prod/pvc/data --to dev

  # Only for the request that the receiver has named.
  kubectl transfer approve pvc/data -n prod --to dev --request data-from-prod`,
		Args: oneClaim,
	}
	o := newOutput(cmd)
	cmd.Flags().StringVar(&to, "to", "", "The namespace that may take the claim.")
	cmd.Flags().StringVar(&request, "request", "", "Allow only the request of this name there.")
	cmd.Flags().BoolVar(&pin, "pin", true, "Give this very claim. If false: whichever has the name, if it is older than the approval.")
	cmd.ValidArgsFunction = f.complete(1, claims)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		s, source, err := f.openClaim(o, args[0])
		if err != nil {
			return err
		}
		if to == "" {
			return fmt.Errorf("say which namespace may take %s, as in: kubectl transfer approve %s --to dev", source, arg(source))
		}
		return s.runApprove(cmd.Context(), source, to, request, pin)
	}
	o.withDryRun(cmd)
	return cmd
}

func (s *session) runApprove(ctx context.Context, source types.NamespacedName, to, request string, pin bool) error {
	needs := []rights{{giving, source.Namespace, approvalResource, []string{"create", "list"}}}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: source.Namespace, Name: source.Name}}
	if pin {
		needs = append(needs, rights{giving, source.Namespace, claimResource, []string{"get"}})
	}
	if err := s.require(ctx, needs...); err != nil {
		return err
	}
	if pin {
		var err error
		if claim, err = s.giveable(ctx, source); err != nil {
			return err
		}
	}
	a, created, err := s.approve(ctx, claim, to, request, pin)
	if err != nil {
		return err
	}
	if s.output.format() != "" {
		return s.print(a)
	}
	message := fmt.Sprintf("Namespace %s may take %s.", to, source)
	if !created {
		message = fmt.Sprintf("Namespace %s may take %s already.", to, source)
	}
	s.say("%s", s.output.did(message))
	if s.output.dry() {
		return nil
	}
	s.say("A user of %s takes it with:  kubectl transfer accept %s -n %s", to, arg(source), to)
	s.say("To take this back:  kubectl transfer cancel %s", name{approvals, types.NamespacedName{Namespace: a.Namespace, Name: a.Name}})
	return nil
}

// giveable reads a claim that is to be given.
func (s *session) giveable(ctx context.Context, source types.NamespacedName) (*corev1.PersistentVolumeClaim, error) {
	claim, err := s.core.CoreV1().PersistentVolumeClaims(source.Namespace).Get(ctx, source.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("there is no PersistentVolumeClaim %s", source)
	case err != nil:
		return nil, fmt.Errorf("reading PersistentVolumeClaim %s: %w", source, err)
	}
	if where := wentTo(claim); where != "" {
		return nil, fmt.Errorf("PersistentVolumeClaim %s has no volume any more: it was transferred to %s", source, where)
	}
	if claim.DeletionTimestamp != nil {
		return nil, errors.New("PersistentVolumeClaim " + source.String() + " is being deleted")
	}
	return claim, nil
}

// wentTo is the claim that has the volume of a spent claim, as namespace/name;
// empty for any other claim.
func wentTo(c *corev1.PersistentVolumeClaim) string {
	if c.Status.Phase != corev1.ClaimLost {
		return ""
	}
	return protocol.TransferredTo(c)
}

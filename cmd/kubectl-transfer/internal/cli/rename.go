// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func newRename(f *factory) *cobra.Command {
	var m moveOptions
	cmd := &cobra.Command{
		Use:     "rename CLAIM NAME",
		GroupID: groupMove,
		Short:   "Give a claim another name in its namespace",
		Long: `Give a claim another name in its namespace: a new claim of that name gets the
volume. Until the old one is deleted, the namespace's quota counts both.`,
		Example: `  # From now on the claim data is called archive.
  kubectl transfer rename prod/pvc/data archive`,
		Args: cobra.ExactArgs(2),
	}
	o := newOutput(cmd)
	m.add(cmd)
	cmd.ValidArgsFunction = f.complete(1, claims)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		s, source, err := f.openClaim(o, args[0])
		if err != nil {
			return err
		}
		target, err := parseClaim(args[1], source.Namespace)
		if err != nil {
			return err
		}
		if target.Namespace != source.Namespace {
			return fmt.Errorf("%s is in another namespace than %s; to move a claim: kubectl transfer move %s %s", target, source, arg(source), arg(target))
		}
		all, err := s.sources(cmd.Context(), []types.NamespacedName{source}, func(types.NamespacedName) types.NamespacedName { return target })
		if err != nil {
			return err
		}
		return s.move(cmd.Context(), all, m)
	}
	o.withDryRun(cmd)
	return cmd
}

func newUndo(f *factory) *cobra.Command {
	var claim string
	var yes bool
	var m moveOptions
	cmd := &cobra.Command{
		Use:     "undo CLAIM [--claim NAME]",
		GroupID: groupMove,
		Short:   "Bring a volume back to where it was transferred from",
		Long: `Bring a volume back to where it was transferred from, with rights on both sides.
Name the claim that was left behind without a volume.

Its name is needed for the claim that is to receive the volume, so that it is
deleted first: you are asked, or say so beforehand with --yes. With --claim it
stays, and the volume comes back under another name.`,
		Example: `  # Bring the volume of prod/data back.
  kubectl transfer undo prod/pvc/data --yes

  # Under another name.
  kubectl transfer undo prod/pvc/data --claim data-returned`,
		Args: oneClaim,
	}
	o := newOutput(cmd)
	m.add(cmd)
	cmd.Flags().StringVar(&claim, "claim", "", "The name of the claim that receives the volume. By default that of the one left behind.")
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "Delete the claim that was left behind, without asking.")
	cmd.ValidArgsFunction = f.complete(1, claims)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		s, source, err := f.openClaim(o, args[0])
		if err != nil {
			return err
		}
		return s.undo(cmd.Context(), source, claim, yes, m)
	}
	o.withDryRun(cmd)
	return cmd
}

func (s *session) undo(ctx context.Context, left types.NamespacedName, as string, yes bool, m moveOptions) error {
	needs := []string{"get"}
	if as == "" || as == left.Name {
		as, needs = left.Name, []string{"get", "delete", "list", "watch"}
	}
	if err := s.require(ctx, rights{receiving, left.Namespace, claimResource, needs}); err != nil {
		return err
	}
	spent, err := s.core.CoreV1().PersistentVolumeClaims(left.Namespace).Get(ctx, left.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("there is no PersistentVolumeClaim %s; if you know where its volume went, move it back from there with kubectl transfer move", left)
	}
	if err != nil {
		return fmt.Errorf("reading PersistentVolumeClaim %s: %w", left, err)
	}
	namespace, claim, ok := strings.Cut(wentTo(spent), "/")
	if !ok {
		return fmt.Errorf("PersistentVolumeClaim %s is %s and was not transferred; a transfer that is not complete is called off with: kubectl transfer cancel %s", left, spent.Status.Phase, arg(left))
	}
	source, target := types.NamespacedName{Namespace: namespace, Name: claim}, types.NamespacedName{Namespace: left.Namespace, Name: as}
	all, err := s.sources(ctx, []types.NamespacedName{source}, func(types.NamespacedName) types.NamespacedName { return target })
	if err != nil {
		return err
	}
	all[0].labels = spent.Labels
	if target == left {
		if !yes && !s.output.dry() {
			var asked bool
			if yes, asked = s.ask(ctx, fmt.Sprintf("The claim %s has no volume any more and is in the way of the one that is to receive it. Delete it?", left)); !yes && !asked {
				return fmt.Errorf("the claim %s, which has no volume any more, is in the way of the one that is to receive it; delete it with --yes, or choose another name with --claim", left)
			}
			if !yes {
				return fmt.Errorf("nothing was changed; choose another name with --claim")
			}
		}
		if err := s.deleteSpent(ctx, []*corev1.PersistentVolumeClaim{spent}); err != nil {
			return err
		}
		if s.output.dry() { // the name is still taken
			s.say("%s", s.output.did(fmt.Sprintf("%s is to move back to %s.", source, target)))
			return nil
		}
		err := s.followClaim(ctx, left, func(c *corev1.PersistentVolumeClaim) (bool, error) { return c == nil || c.UID != spent.UID, nil })
		if err != nil {
			return fmt.Errorf("waiting until PersistentVolumeClaim %s is gone: %w", left, err)
		}
	}
	return s.move(ctx, all, m)
}

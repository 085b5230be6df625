// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"fmt"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csi-transfer/csi-transfer/cmd/kubectl-transfer/internal/board"
)

func newCopy(f *factory) *cobra.Command {
	var to string
	var wait waitFlags
	cmd := &cobra.Command{
		Use:     "copy CLAIM (CLAIM | --to NAMESPACE)",
		GroupID: groupMove,
		Short:   "Copy a claim, also to another namespace",
		Long: `Copy a claim: its driver clones the volume within the namespace, and the clone
moves. The source stays as it is and may be in use; the clone is then as the
volume was at one moment. With rights on both sides.

The driver must be able to clone, and volumes must not be tied to their clones.`,
		Example: `  # A copy of prod/data in namespace dev.
  kubectl transfer copy prod/pvc/data --to dev

  # Beside the source.
  kubectl transfer copy prod/pvc/data prod/pvc/data-copy`,
		Args: cobra.RangeArgs(1, 2),
	}
	o := newOutput(cmd)
	cmd.Flags().StringVar(&to, "to", "", "The namespace of the copy, if no claim there is named.")
	wait.add(cmd, "the copy is Bound. Without it, only the clone is begun")
	cmd.ValidArgsFunction = f.complete(2, claims)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		s, source, err := f.openClaim(o, args[0])
		if err != nil {
			return err
		}
		target := types.NamespacedName{Namespace: to, Name: source.Name}
		if len(args) == 2 {
			if target, err = parseClaim(args[1], cmp.Or(to, s.namespace)); err != nil {
				return err
			}
		}
		if target.Namespace == "" || target == source {
			return fmt.Errorf("say where to, as in: kubectl transfer copy %s --to dev", arg(source))
		}
		return s.copy(cmd.Context(), source, target, wait)
	}
	o.withDryRun(cmd)
	return cmd
}

func (s *session) copy(ctx context.Context, source, target types.NamespacedName, wait waitFlags) error {
	t := &transfer{session: s, target: target, giver: &corev1.PersistentVolumeClaim{}}
	t.source = types.NamespacedName{Namespace: source.Namespace, Name: nameOf(source.Name, "-copy-for-"+target.Namespace)}
	if target.Namespace == source.Namespace {
		t.source = target // the clone is the copy
	}
	needs := []rights{{giving, source.Namespace, claimResource, []string{"get", "create", "list", "watch"}}}
	if t.source != target {
		needs = append(needs, t.rights()...)
	}
	if err := s.require(ctx, needs...); err != nil {
		return err
	}
	original, err := s.giveable(ctx, source)
	if err != nil {
		return err
	}
	if original.Status.Phase != corev1.ClaimBound {
		return fmt.Errorf("PersistentVolumeClaim %s is %s: there is nothing to copy yet", source, original.Status.Phase)
	}
	if t.source != target {
		if err := t.lookForTarget(ctx); err != nil {
			return err
		}
		switch open, err := t.openRequest(ctx); {
		case err != nil:
			return err
		case open == nil && t.claim != nil:
			return t.taken()
		}
	}
	clone, err := s.clone(ctx, original, t.source)
	if err != nil {
		return err
	}
	if s.output.dry() || !wait.wait {
		if s.output.format() != "" {
			return s.print(clone)
		}
		s.say("%s", s.output.did(fmt.Sprintf("%s is to be cloned as %s.", source, t.source)))
		if t.source != target {
			s.say("To go on:  kubectl transfer copy %s %s", arg(source), arg(target))
		}
		return nil
	}
	limited, cancel := wait.limit(ctx)
	defer cancel()
	if clone, err = s.cloned(limited, source, clone); err != nil {
		return fmt.Errorf("%w\nThe clone %s stays.\n  To go on:   kubectl transfer copy %s %s\n  To end it:  kubectl delete pvc %s -n %s",
			err, t.source, arg(source), arg(target), clone.Name, clone.Namespace)
	}
	if t.source == target {
		if s.output.format() != "" {
			return s.print(clone)
		}
		return nil
	}
	t.giver, t.labels = clone, original.Labels
	if t.err = t.begin(limited); t.err != nil {
		return t.err
	}
	if err := s.run(limited, wait, t); err != nil {
		return err
	}
	if s.output.format() != "" {
		if err := s.print(t.claim); err != nil {
			return err
		}
	}
	// This command has made it, and it is empty.
	return s.deleteSpent(ctx, []*corev1.PersistentVolumeClaim{clone})
}

// clone begins a clone of a claim within its namespace, unless an earlier run
// has.
func (s *session) clone(ctx context.Context, original *corev1.PersistentVolumeClaim, as types.NamespacedName) (*corev1.PersistentVolumeClaim, error) {
	c := &corev1.PersistentVolumeClaim{}
	c.Namespace, c.Name = as.Namespace, as.Name
	if as.Namespace == original.Namespace {
		c.Labels = original.Labels
	}
	c.Spec = corev1.PersistentVolumeClaimSpec{
		DataSource:       &corev1.TypedLocalObjectReference{Kind: claimKind, Name: original.Name},
		AccessModes:      original.Spec.AccessModes,
		StorageClassName: original.Spec.StorageClassName,
		VolumeMode:       original.Spec.VolumeMode,
		// Not less than the volume has, which may be more than was asked for.
		Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: original.Status.Capacity[corev1.ResourceStorage]}},

		VolumeAttributesClassName: original.Status.CurrentVolumeAttributesClassName,
	}
	if s.output.dryRun == dryRunClient {
		return c, nil
	}
	client := s.core.CoreV1().PersistentVolumeClaims(as.Namespace)
	created, err := client.Create(ctx, c, s.output.createOptions())
	if apierrors.IsAlreadyExists(err) {
		if created, err = client.Get(ctx, as.Name, metav1.GetOptions{}); err == nil {
			if from := created.Spec.DataSource; from == nil || from.Kind != claimKind || from.Name != original.Name || wentTo(created) != "" {
				return nil, fmt.Errorf("PersistentVolumeClaim %s exists already and is no clone of %s; delete it, or choose another name", as, original.Name)
			}
		}
	}
	if err != nil {
		return nil, fmt.Errorf("cloning PersistentVolumeClaim %s/%s as %s: %w", original.Namespace, original.Name, as, err)
	}
	return created, nil
}

// cloned waits until a clone is Bound. Meanwhile it shows what is said about it.
func (s *session) cloned(ctx context.Context, source types.NamespacedName, clone *corev1.PersistentVolumeClaim) (*corev1.PersistentVolumeClaim, error) {
	name := types.NamespacedName{Namespace: clone.Namespace, Name: clone.Name}
	b := s.newBoard()
	defer b.Close()
	row := b.Add(source.String() + " => " + name.String())
	row.Set(board.Waiting, "for the driver to clone the volume")
	watching, stop := context.WithCancel(ctx)
	defer stop()
	go s.tellEvents(watching, clone, row)
	err := s.followClaim(ctx, name, func(c *corev1.PersistentVolumeClaim) (bool, error) {
		switch {
		case c == nil || c.UID != clone.UID:
			return false, fmt.Errorf("PersistentVolumeClaim %s was deleted", name)
		case c.Status.Phase == corev1.ClaimBound:
			clone = c
			return true, nil
		}
		return false, nil
	})
	switch {
	case err == nil:
		row.Set(board.Done, "PersistentVolumeClaim "+name.String()+" has volume "+clone.Spec.VolumeName)
	case !halted(err):
		row.Set(board.Failed, err.Error())
	}
	return clone, err
}

// tellEvents shows the warnings about a claim, and that it waits for a pod.
// Nothing is shown to who may not see events.
func (s *session) tellEvents(ctx context.Context, claim *corev1.PersistentVolumeClaim, row *board.Row) {
	events := s.core.CoreV1().Events(claim.Namespace)
	w, err := events.Watch(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("involvedObject.uid", string(claim.UID)).String()})
	if err != nil {
		return
	}
	defer w.Stop()
	for e := range w.ResultChan() {
		event, ok := e.Object.(*corev1.Event)
		switch {
		case !ok:
		case event.Reason == "WaitForFirstConsumer":
			row.Set(board.Waiting, "for a pod that uses the clone: its StorageClass says that volumes are made only then")
		case event.Type == corev1.EventTypeWarning:
			row.Set(board.Waiting, event.Reason+": "+event.Message)
		}
	}
}

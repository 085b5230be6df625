// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csi-transfer/csi-transfer/pkg/apis/transfer/v1alpha1"
)

// moveOptions are the flags of commands that do everything a transfer takes.
type moveOptions struct {
	wait        waitFlags
	deleteSpent bool
}

func (m *moveOptions) add(cmd *cobra.Command) {
	m.wait.add(cmd, "the claims are Bound where they were moved to")
	cmd.Flags().BoolVar(&m.deleteSpent, "delete-spent", false, "Delete the claims that are left behind without a volume, without asking.")
}

func newMove(f *factory) *cobra.Command {
	var to, selector string
	var m moveOptions
	cmd := &cobra.Command{
		Use:     "move (CLAIM | statefulset/NAME | -l SELECTOR) (CLAIM | --to NAMESPACE)",
		GroupID: groupMove,
		Short:   "Move claims to another namespace, with rights on both sides",
		Long: `Move claims to another namespace. For a user who has rights on both sides: it
asks, approves, makes the receiving claims and waits until they are Bound.

The pods that use a claim have to go first; while there are any, it says which.
What is left behind is a claim without a volume. It is never deleted silently:
you are asked, or say so beforehand with --delete-spent.`,
		Example: `  # Move a claim to another namespace.
  kubectl transfer move prod/pvc/data dev/pvc/data

  # All claims of a StatefulSet, under their names.
  kubectl transfer move prod/statefulset/db --to dev

  # All claims with a label.
  kubectl transfer move -n prod -l app=shop --to dev`,
	}
	o := newOutput(cmd)
	cmd.Flags().StringVar(&to, "to", "", "The namespace to move to, if no claim there is named.")
	cmd.Flags().StringVarP(&selector, "selector", "l", "", "Move all claims of the namespace with these labels, for instance app=shop.")
	m.add(cmd)
	cmd.ValidArgsFunction = f.complete(2, claims, statefulSets)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		s, err := f.open(o)
		if err != nil {
			return err
		}
		all, err := s.selected(cmd.Context(), args, to, selector)
		if err != nil {
			return err
		}
		return s.move(cmd.Context(), all, m)
	}
	o.withDryRun(cmd)
	return cmd
}

// selected are the transfers that the command line of move names.
func (s *session) selected(ctx context.Context, args []string, to, selector string) ([]*transfer, error) {
	switch {
	case len(args) == 2 && selector == "":
		source, err := parseClaim(args[0], s.namespace)
		if err != nil {
			return nil, err
		}
		target, err := parseClaim(args[1], cmp.Or(to, s.namespace))
		if err != nil {
			return nil, err
		}
		if to != "" && target.Namespace != to {
			return nil, fmt.Errorf("--to says namespace %s and %s is in another", to, target)
		}
		return s.sources(ctx, []types.NamespacedName{source}, func(types.NamespacedName) types.NamespacedName { return target })
	case to == "":
		return nil, errors.New("say where to, as in: kubectl transfer move prod/pvc/data dev/pvc/data, or with --to dev")
	case len(args) == 0 && selector == "":
		return nil, errors.New("say what to move, as in: kubectl transfer move prod/pvc/data --to dev")
	case len(args) > 1 || len(args) == 1 && selector != "":
		return nil, errors.New("name one claim, one StatefulSet or a selector")
	}
	keep := func(n types.NamespacedName) types.NamespacedName { n.Namespace = to; return n }
	if selector != "" {
		return s.listed(ctx, s.namespace, selector, "labels "+selector, func(string) bool { return true }, keep)
	}
	n, err := parseName(args[0], s.namespace, claims, statefulSets)
	if err != nil {
		return nil, err
	}
	if n.kind == claims {
		return s.sources(ctx, []types.NamespacedName{n.NamespacedName}, keep)
	}
	return s.ofStatefulSet(ctx, n.NamespacedName, keep)
}

// ofStatefulSet are the claims that a StatefulSet has made, those of replicas
// that it had before among them.
func (s *session) ofStatefulSet(ctx context.Context, n types.NamespacedName, target func(types.NamespacedName) types.NamespacedName) ([]*transfer, error) {
	if err := s.require(ctx, rights{giving, n.Namespace, schema.GroupResource{Group: "apps", Resource: "statefulsets"}, []string{"get"}}); err != nil {
		return nil, err
	}
	set, err := s.core.AppsV1().StatefulSets(n.Namespace).Get(ctx, n.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("there is no StatefulSet %s; its claims can be moved with --selector", n)
	}
	if err != nil {
		return nil, fmt.Errorf("reading StatefulSet %s: %w", n, err)
	}
	var templates []string
	for _, t := range set.Spec.VolumeClaimTemplates {
		templates = append(templates, regexp.QuoteMeta(t.Name))
	}
	made := regexp.MustCompile("^(" + strings.Join(templates, "|") + ")-" + regexp.QuoteMeta(n.Name) + "-[0-9]+$")
	return s.listed(ctx, n.Namespace, "", "StatefulSet "+n.String(), made.MatchString, target)
}

// listed are transfers of the claims of a namespace that match.
func (s *session) listed(ctx context.Context, namespace, selector, what string, match func(string) bool, target func(types.NamespacedName) types.NamespacedName) ([]*transfer, error) {
	if err := s.require(ctx, rights{giving, namespace, claimResource, []string{"list"}}); err != nil {
		return nil, err
	}
	list, err := s.core.CoreV1().PersistentVolumeClaims(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, fmt.Errorf("listing the claims of namespace %s: %w", namespace, err)
	}
	var all []types.NamespacedName
	for i := range list.Items {
		if c := &list.Items[i]; match(c.Name) && wentTo(c) == "" {
			all = append(all, types.NamespacedName{Namespace: namespace, Name: c.Name})
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("namespace %s has no claims of %s that have a volume", namespace, what)
	}
	return s.sources(ctx, all, target)
}

// sources makes transfers of claims that this user gives.
func (s *session) sources(ctx context.Context, all []types.NamespacedName, target func(types.NamespacedName) types.NamespacedName) ([]*transfer, error) {
	var transfers []*transfer
	for _, n := range all {
		t := &transfer{session: s, source: n, target: target(n), giver: &corev1.PersistentVolumeClaim{}}
		if t.source == t.target {
			return nil, fmt.Errorf("%s cannot be moved to itself", n)
		}
		transfers = append(transfers, t)
	}
	// One is like the other.
	if err := s.require(ctx, transfers[0].rights()...); err != nil {
		return nil, err
	}
	for _, t := range transfers {
		giver, err := s.giveable(ctx, t.source)
		if err != nil {
			return nil, err
		}
		t.giver, t.labels = giver, giver.Labels
	}
	return transfers, nil
}

// move begins transfers and sees them to their end.
func (s *session) move(ctx context.Context, all []*transfer, m moveOptions) error {
	var group errgroup.Group
	group.SetLimit(atOnce)
	for _, t := range all {
		group.Go(func() error {
			t.err = t.begin(ctx)
			return nil
		})
	}
	_ = group.Wait() // each has its own error
	if s.output.dry() || !m.wait.wait {
		return s.begun(all)
	}
	failure := s.run(ctx, m.wait, all...)
	if s.output.format() != "" {
		if err := s.print(receivingClaims(all)...); err != nil {
			return errors.Join(failure, err)
		}
	}
	return errors.Join(failure, s.offerSpent(ctx, all, m.deleteSpent))
}

// begun reports on transfers that are not waited for.
func (s *session) begun(all []*transfer) error {
	if s.output.format() != "" {
		var made []runtime.Object
		for _, t := range all {
			if t.err == nil {
				made = append(made, t.request, t.approval)
				if s.output.dry() {
					made = append(made, t.newClaim(t.request.Name, t.expected()))
				}
			}
		}
		if err := s.print(made...); err != nil {
			return err
		}
		return outcome(all)
	}
	for _, t := range all {
		if t.err == nil {
			s.say("%s", s.output.did(fmt.Sprintf("%s is to move to %s.", t.source, t.target)))
			if !s.output.dry() {
				s.say("To go on:  %s", t.again())
			}
		}
	}
	return outcome(all)
}

// expected is what the receiving claim will have to be like, as far as the
// source claim tells.
func (t *transfer) expected() *v1alpha1.RequiredClaim {
	c := t.giver
	r := &v1alpha1.RequiredClaim{
		Capacity:    c.Status.Capacity[corev1.ResourceStorage],
		AccessModes: c.Status.AccessModes,
		VolumeMode:  corev1.PersistentVolumeFilesystem,
	}
	if c.Spec.StorageClassName != nil {
		r.StorageClassName = *c.Spec.StorageClassName
	}
	if c.Spec.VolumeMode != nil {
		r.VolumeMode = *c.Spec.VolumeMode
	}
	if c.Status.CurrentVolumeAttributesClassName != nil {
		r.VolumeAttributesClassName = *c.Status.CurrentVolumeAttributesClassName
	}
	return r
}

func receivingClaims(all []*transfer) []runtime.Object {
	var moved []runtime.Object
	for _, t := range all {
		if t.err == nil {
			moved = append(moved, t.claim)
		}
	}
	return moved
}

// offerSpent offers to delete the claims that transfers have left behind.
func (s *session) offerSpent(ctx context.Context, all []*transfer, yes bool) error {
	var spent []*corev1.PersistentVolumeClaim
	var names, args []string
	for _, t := range all {
		if t.err == nil {
			spent = append(spent, t.giver)
			names = append(names, t.source.String())
			args = append(args, arg(t.source))
		}
	}
	if len(spent) == 0 {
		return nil
	}
	slices.Sort(names)
	left := strings.Join(names, ", ")
	if !yes {
		s.say("Left behind without a volume, and counted by the quota of their namespace: %s", left)
		yes, _ = s.ask(ctx, "Delete them?")
	}
	if !yes {
		s.say("To delete them:  kubectl transfer spent --delete %s", strings.Join(args, " "))
		return nil
	}
	return s.deleteSpent(context.WithoutCancel(ctx), spent) // it was said that they may go
}

// deleteSpent deletes claims that have no volume any more.
func (s *session) deleteSpent(ctx context.Context, spent []*corev1.PersistentVolumeClaim) error {
	var problems []error
	for _, c := range spent {
		var err error
		if s.output.dryRun != dryRunClient {
			err = s.core.CoreV1().PersistentVolumeClaims(c.Namespace).Delete(ctx, c.Name, s.output.deleteOptions(c))
		}
		if err != nil && !apierrors.IsNotFound(err) {
			problems = append(problems, fmt.Errorf("deleting PersistentVolumeClaim %s/%s: %w", c.Namespace, c.Name, err))
			continue
		}
		s.say("%s", s.output.did(fmt.Sprintf("Deleted the spent claim %s/%s.", c.Namespace, c.Name)))
	}
	return errors.Join(problems...)
}

// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/cli-runtime/pkg/printers"

	"github.com/csi-transfer/csi-transfer/pkg/apis/transfer/v1alpha1"
)

func newGet(f *factory) *cobra.Command {
	var everywhere bool
	cmd := &cobra.Command{
		Use:     "get [CLAIM | ntr/NAME | nta/NAME]",
		GroupID: groupLook,
		Short:   "List transfers",
		Long: `List the transfers of a namespace, both those that it receives and those that it
gives: all, or those of one claim. A transfer is seen from both sides where you may
look at both.`,
		Example: `  # What namespace dev receives and gives.
  kubectl transfer get -n dev

  # With what each waits for, in all namespaces.
  kubectl transfer get -A -o wide`,
		Args: cobra.MaximumNArgs(1),
	}
	o := newOutput(cmd)
	o.own = []string{"wide"}
	cmd.Flags().BoolVarP(&everywhere, "all-namespaces", "A", false, "List those of all namespaces.")
	cmd.ValidArgsFunction = f.complete(1, claims, requests, approvals)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		s, err := f.open(o)
		if err != nil {
			return err
		}
		if everywhere {
			s.namespace = metav1.NamespaceAll
		}
		var of *name
		if len(args) == 1 {
			n, err := parseName(args[0], s.namespace, claims, requests, approvals)
			if err != nil {
				return err
			}
			of = &n
		}
		return s.get(cmd.Context(), of)
	}
	return cmd
}

// view is a transfer as one of its objects shows it.
type view struct {
	object interface {
		runtime.Object
		metav1.Object
	}
	kind       kind
	source     types.NamespacedName
	to         string // namespace
	phase      v1alpha1.Phase
	conditions []metav1.Condition
}

func viewOfRequest(r *v1alpha1.NamespaceTransferRequest) view {
	return view{r, requests, types.NamespacedName{Namespace: r.Spec.Source.Namespace, Name: r.Spec.Source.Name}, r.Namespace, r.Status.Phase, r.Status.Conditions}
}

func viewOfApproval(a *v1alpha1.NamespaceTransferApproval) view {
	return view{a, approvals, types.NamespacedName{Namespace: a.Namespace, Name: a.Spec.Source.Name}, a.Spec.TargetNamespace, a.Status.Phase, a.Status.Conditions}
}

// transferred is the condition that says how far the transfer is.
func (v view) transferred() metav1.Condition {
	if c := meta.FindStatusCondition(v.conditions, v1alpha1.ConditionTransferred); c != nil {
		return *c
	}
	return metav1.Condition{}
}

// views lists the transfers of the session's namespace, oldest first. Who may
// list one kind only sees that one.
func (s *session) views(ctx context.Context) ([]view, error) {
	var all []view
	forRequests := rights{receiving, s.namespace, requestResource, []string{"list"}}
	forApprovals := rights{giving, s.namespace, approvalResource, []string{"list"}}
	lacksRequests, lacksApprovals := s.require(ctx, forRequests), s.require(ctx, forApprovals)
	if lacksRequests != nil && lacksApprovals != nil {
		return nil, s.require(ctx, forRequests, forApprovals)
	}
	if lacksRequests == nil {
		list, err := s.api.NamespaceTransferRequests(s.namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, fmt.Errorf("listing requests: %w", notInstalled(err))
		}
		for i := range list.Items {
			all = append(all, viewOfRequest(&list.Items[i]))
		}
	}
	if lacksApprovals == nil {
		list, err := s.api.NamespaceTransferApprovals(s.namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, fmt.Errorf("listing approvals: %w", notInstalled(err))
		}
		for i := range list.Items {
			all = append(all, viewOfApproval(&list.Items[i]))
		}
	}
	slices.SortStableFunc(all, func(a, b view) int {
		x, y := a.object.GetCreationTimestamp(), b.object.GetCreationTimestamp()
		return cmp.Or(x.Compare(y.Time), cmp.Compare(a.object.GetNamespace(), b.object.GetNamespace()), cmp.Compare(a.object.GetName(), b.object.GetName()))
	})
	return all, nil
}

// about reports whether a view is about what somebody has named.
func (v view) about(n name) bool {
	if n.kind == claims {
		return v.source == n.NamespacedName || v.to == n.Namespace && v.source.Name == n.Name
	}
	return v.kind == n.kind && v.object.GetName() == n.Name && v.object.GetNamespace() == n.Namespace
}

func (s *session) get(ctx context.Context, of *name) error {
	all, err := s.views(ctx)
	if err != nil {
		return err
	}
	if of != nil {
		all = slices.DeleteFunc(all, func(v view) bool { return !v.about(*of) })
		if len(all) == 0 {
			return fmt.Errorf("there is no transfer of %s", of)
		}
	}
	switch s.output.format() {
	case "", "wide":
		return s.table(all, s.output.format() == "wide")
	}
	var made []runtime.Object
	for _, v := range all {
		made = append(made, v.object)
	}
	return s.print(made...)
}

func (s *session) table(all []view, wide bool) error {
	if len(all) == 0 {
		where := "namespace " + s.namespace
		if s.namespace == "" {
			where = "any namespace"
		}
		fmt.Fprintf(s.ErrOut, "No transfers in %s.\n", where)
		return nil
	}
	w := printers.GetNewTabWriter(s.Out)
	header := "NAME\tCLAIM\tTO\tSTATE\tREASON\tAGE"
	if wide {
		header += "\tMESSAGE"
	}
	fmt.Fprintln(w, header)
	for _, v := range all {
		c := v.transferred()
		line := fmt.Sprintf("%s/%s\t%s\t%s\t%s\t%s\t%s", v.kind, v.object.GetName(), v.source, v.to,
			v.phase, cmp.Or(c.Reason, "<none>"), age(v.object.GetCreationTimestamp()))
		if wide {
			line += "\t" + c.Message
		}
		fmt.Fprintln(w, line)
	}
	return w.Flush()
}

func age(t metav1.Time) string {
	if t.IsZero() {
		return "<unknown>"
	}
	return duration.HumanDuration(time.Since(t.Time))
}

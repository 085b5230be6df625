// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/cli-runtime/pkg/printers"

	"github.com/csi-transfer/csi-transfer/pkg/apis/transfer/v1alpha1"
	"github.com/csi-transfer/csi-transfer/pkg/sidecar/protocol"
)

func newDescribe(f *factory) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "describe (CLAIM | ntr/NAME | nta/NAME)",
		GroupID: groupLook,
		Short:   "Tell all about a transfer",
		Long: `Tell all about the transfers of a claim, or about one request (ntr) or approval
(nta): how far it is, what it waits for and what to do about it, and its events.`,
		Example: `  # How is it with prod/data, seen from namespace prod?
  kubectl transfer describe pvc/data -n prod

  # And from namespace dev, which receives it?
  kubectl transfer describe prod/pvc/data -n dev`,
		Args: oneClaim,
	}
	cmd.ValidArgsFunction = f.complete(1, claims, requests, approvals)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		s, err := f.open(&output{})
		if err != nil {
			return err
		}
		n, err := parseName(args[0], s.namespace, claims, requests, approvals)
		if err != nil {
			return err
		}
		if n.kind != claims {
			s.namespace = n.Namespace
		}
		return s.describe(cmd.Context(), n)
	}
	return cmd
}

func (s *session) describe(ctx context.Context, n name) error {
	all, err := s.views(ctx)
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(v view) bool { return !v.about(n) })
	if len(all) == 0 {
		return fmt.Errorf("namespace %s has no transfer of %s; to see whether one is possible: kubectl transfer check %s", s.namespace, n, n)
	}
	for i, v := range all {
		if i > 0 {
			fmt.Fprintln(s.Out)
		}
		if err := s.describeOne(ctx, v); err != nil {
			return err
		}
	}
	return nil
}

func (s *session) describeOne(ctx context.Context, v view) error {
	c := v.transferred()
	w := printers.GetNewTabWriter(s.Out)
	what := map[kind]string{requests: "Request", approvals: "Approval"}[v.kind]
	fmt.Fprintf(w, "%s:\t%s\n", what, v.object.GetNamespace()+"/"+v.object.GetName())
	fmt.Fprintf(w, "Claim:\t%s\n", v.source)
	fmt.Fprintf(w, "To namespace:\t%s\n", v.to)
	fmt.Fprintf(w, "State:\t%s\n", v.phase)
	switch o := v.object.(type) {
	case *v1alpha1.NamespaceTransferRequest:
		if o.Status.VolumeName != "" {
			fmt.Fprintf(w, "Volume:\t%s\n", o.Status.VolumeName)
		}
		if r := o.Status.Required; r != nil {
			fmt.Fprintf(w, "The claim has to ask for:\t%s\n", required(r))
		}
		if o.Status.StartTime != nil {
			fmt.Fprintf(w, "Started:\t%s\n", o.Status.StartTime.UTC().Format("2006-01-02 15:04:05 MST"))
		}
		if o.Status.CompletionTime != nil {
			fmt.Fprintf(w, "Completed:\t%s\n", o.Status.CompletionTime.UTC().Format("2006-01-02 15:04:05 MST"))
		}
	case *v1alpha1.NamespaceTransferApproval:
		fmt.Fprintf(w, "For the claim with UID:\t%s\n", cmp.Or(string(o.Spec.Source.UID), "any that is older than this approval"))
		fmt.Fprintf(w, "For the request:\t%s\n", cmp.Or(o.Spec.RequestName, "any of namespace "+v.to))
		if r := o.Status.Request; r != nil {
			fmt.Fprintf(w, "Taken by:\t%s\n", r.Namespace+"/"+r.Name)
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	s.describeReason(c)
	return s.describeEvents(ctx, v)
}

// describeReason tells what a transfer waits for, and what to do.
func (s *session) describeReason(c metav1.Condition) {
	if c.Message == "" {
		return
	}
	for _, known := range protocol.Reasons {
		if string(known.Reason) != c.Reason {
			continue
		}
		// The message ends in what to do, and then has what else is in the way.
		what, also, _ := strings.Cut(c.Message, "; "+known.Remedy)
		fmt.Fprintf(s.Out, "%s:\n  %s%s\nWhat to do:\n  %s\n", c.Reason, what, also, known.Remedy)
		return
	}
	fmt.Fprintf(s.Out, "%s:\n  %s\n", c.Reason, c.Message)
}

// required is what a claim has to be like.
func required(r *v1alpha1.RequiredClaim) string {
	var modes []string
	for _, m := range r.AccessModes {
		modes = append(modes, string(m))
	}
	text := fmt.Sprintf("%s, StorageClass %s, %s, %s", r.Capacity.String(), r.StorageClassName, r.VolumeMode, strings.Join(modes, " or "))
	if r.VolumeAttributesClassName != "" {
		text += ", VolumeAttributesClass " + r.VolumeAttributesClassName
	}
	return text
}

func (s *session) describeEvents(ctx context.Context, v view) error {
	list, err := s.core.CoreV1().Events(v.object.GetNamespace()).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("involvedObject.uid", string(v.object.GetUID())).String(),
	})
	switch {
	case apierrors.IsForbidden(err):
		fmt.Fprintf(s.Out, "Events:\n  you may not list events in namespace %s\n", v.object.GetNamespace())
		return nil
	case err != nil:
		return fmt.Errorf("listing events of namespace %s: %w", v.object.GetNamespace(), err)
	case len(list.Items) == 0:
		fmt.Fprintln(s.Out, "Events:  <none>")
		return nil
	}
	fmt.Fprintln(s.Out, "Events:")
	return writeEvents(s.Out, list.Items)
}

func writeEvents(out io.Writer, events []corev1.Event) error {
	slices.SortStableFunc(events, func(a, b corev1.Event) int { return happened(a).Compare(happened(b).Time) })
	w := printers.GetNewTabWriter(out)
	fmt.Fprintln(w, "  TYPE\tREASON\tAGE\tMESSAGE")
	for _, e := range events {
		fmt.Fprintf(w, "  %s\t%s\t%s\t%s\n", e.Type, e.Reason, age(happened(e)), e.Message)
	}
	return w.Flush()
}

// happened is when an event happened last, whichever API it was written with.
func happened(e corev1.Event) metav1.Time {
	switch {
	case e.Series != nil:
		return metav1.NewTime(e.Series.LastObservedTime.Time)
	case !e.LastTimestamp.IsZero():
		return e.LastTimestamp
	}
	return metav1.NewTime(e.EventTime.Time)
}

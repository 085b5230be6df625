// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/printers"
)

func newSpent(f *factory) *cobra.Command {
	var everywhere, remove bool
	cmd := &cobra.Command{
		Use:     "spent [CLAIM...] [--delete]",
		GroupID: groupEnd,
		Short:   "List or delete the claims that transfers have left behind",
		Long: `List the claims that transfers have left behind. They have no volume any more, a
pod that names one does not start, and the quota counts them until they are
deleted. To delete one does nothing to the volume it had.`,
		Example: `  # Which claims of namespace prod have no volume any more, and where did it go?
  kubectl transfer spent -n prod

  # Delete one, or all of the namespace.
  kubectl transfer spent prod/pvc/data --delete
  kubectl transfer spent -n prod --delete`,
	}
	o := newOutput(cmd)
	cmd.Flags().BoolVarP(&everywhere, "all-namespaces", "A", false, "Those of all namespaces.")
	cmd.Flags().BoolVar(&remove, "delete", false, "Delete them.")
	cmd.ValidArgsFunction = f.complete(anyNumber, claims)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		s, err := f.open(o)
		if err != nil {
			return err
		}
		if everywhere {
			s.namespace = metav1.NamespaceAll
		}
		spent, err := s.spent(cmd.Context(), args, remove)
		if err != nil {
			return err
		}
		if remove {
			return s.deleteSpent(cmd.Context(), spent)
		}
		return s.showSpent(spent)
	}
	o.withDryRun(cmd)
	return cmd
}

// spent are the spent claims of the session's namespace, or those named, which
// must be.
func (s *session) spent(ctx context.Context, args []string, remove bool) ([]*corev1.PersistentVolumeClaim, error) {
	need := func(namespace, verb string) error {
		verbs := []string{verb}
		if remove {
			verbs = append(verbs, "delete")
		}
		return s.require(ctx, rights{giving, namespace, claimResource, verbs})
	}
	var spent []*corev1.PersistentVolumeClaim
	for _, text := range args {
		n, err := parseClaim(text, s.namespace)
		if err != nil {
			return nil, err
		}
		if err := need(n.Namespace, "get"); err != nil {
			return nil, err
		}
		c, err := s.core.CoreV1().PersistentVolumeClaims(n.Namespace).Get(ctx, n.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return nil, fmt.Errorf("there is no PersistentVolumeClaim %s", n)
		case err != nil:
			return nil, fmt.Errorf("reading PersistentVolumeClaim %s: %w", n, err)
		case wentTo(c) == "":
			return nil, fmt.Errorf("PersistentVolumeClaim %s is %s and was not left behind by a transfer", n, c.Status.Phase)
		}
		spent = append(spent, c)
	}
	if len(args) > 0 {
		return spent, nil
	}
	if err := need(s.namespace, "list"); err != nil {
		return nil, err
	}
	list, err := s.core.CoreV1().PersistentVolumeClaims(s.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("listing claims: %w", err)
	}
	for i := range list.Items {
		if c := &list.Items[i]; wentTo(c) != "" {
			spent = append(spent, c)
		}
	}
	return spent, nil
}

func (s *session) showSpent(spent []*corev1.PersistentVolumeClaim) error {
	if s.output.format() != "" {
		var all []runtime.Object
		for _, c := range spent {
			all = append(all, c)
		}
		return s.print(all...)
	}
	if len(spent) == 0 {
		fmt.Fprintln(s.ErrOut, "No claims were left behind.")
		return nil
	}
	w := printers.GetNewTabWriter(s.Out)
	fmt.Fprintln(w, "CLAIM\tWENT TO\tREQUESTS\tAGE")
	for _, c := range spent {
		size := c.Spec.Resources.Requests[corev1.ResourceStorage]
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", c.Namespace+"/"+c.Name, wentTo(c), size.String(), age(c.CreationTimestamp))
	}
	return w.Flush()
}

// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/csi-transfer/csi-transfer/pkg/apis/transfer/v1alpha1"
)

// anyNumber of arguments.
const anyNumber = int(^uint(0) >> 1)

// complete offers the names of objects for the first arguments of a command. What
// cannot be read is not offered.
func (f *factory) complete(arguments int, kinds ...kind) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
		s, err := f.open(&output{})
		if err != nil || len(args) >= arguments {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var found []string
		for _, k := range kinds {
			found = append(found, s.names(cmd.Context(), k, word)...)
		}
		slices.Sort(found)
		return slices.DeleteFunc(found, func(c string) bool { return !strings.HasPrefix(c, word) }), cobra.ShellCompDirectiveNoFileComp
	}
}

// names are those of a kind in the namespace that a word begins with, or else in
// that of -n, as they are written there.
func (s *session) names(ctx context.Context, k kind, word string) []string {
	namespace, begin := s.namespace, string(k)+"/"
	if first, _, more := strings.Cut(word, "/"); more && !slices.Contains(kindNames[k], first) {
		namespace, begin = first, first+"/"+begin
	}
	if k == volumes {
		begin = ""
	}
	list, err := s.list(ctx, k, namespace)
	if err != nil {
		return nil
	}
	var found []string
	_ = meta.EachListItem(list, func(o runtime.Object) error { // fails only for what is no list
		found = append(found, begin+o.(metav1.Object).GetName())
		return nil
	})
	return found
}

func (s *session) list(ctx context.Context, k kind, namespace string) (runtime.Object, error) {
	switch k {
	case claims:
		return s.core.CoreV1().PersistentVolumeClaims(namespace).List(ctx, metav1.ListOptions{})
	case statefulSets:
		return s.core.AppsV1().StatefulSets(namespace).List(ctx, metav1.ListOptions{})
	case requests:
		return s.api.NamespaceTransferRequests(namespace).List(ctx, metav1.ListOptions{})
	case approvals:
		return s.api.NamespaceTransferApprovals(namespace).List(ctx, metav1.ListOptions{})
	default: // only those in flight can be rescued
		return s.core.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{LabelSelector: v1alpha1.LabelInFlight})
	}
}

// completeFlags offers values of flags.
func (f *factory) completeFlags(root *cobra.Command) {
	offer := func(cmd *cobra.Command, flag string, values cobra.CompletionFunc) {
		if cmd.Flag(flag) != nil {
			_ = cmd.RegisterFlagCompletionFunc(flag, values) // fails only for a flag that does not exist
		}
	}
	offer(root, "namespace", f.completeNamespaces)
	for _, cmd := range root.Commands() {
		offer(cmd, "to", f.completeNamespaces)
		offer(cmd, "dry-run", cobra.FixedCompletions([]cobra.Completion{dryRunNone, dryRunClient, dryRunServer}, cobra.ShellCompDirectiveNoFileComp))
	}
}

func (f *factory) completeNamespaces(cmd *cobra.Command, _ []string, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
	s, err := f.open(&output{})
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	list, err := s.core.CoreV1().Namespaces().List(cmd.Context(), metav1.ListOptions{})
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var found []cobra.Completion
	for _, n := range list.Items {
		if strings.HasPrefix(n.Name, word) {
			found = append(found, n.Name)
		}
	}
	return found, cobra.ShellCompDirectiveNoFileComp
}

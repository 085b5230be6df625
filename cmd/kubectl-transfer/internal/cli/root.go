// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cli is the command kubectl transfer.
package cli

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/klog/v2"
)

// Exit codes beyond success.
const (
	exitFailed = 1
	// exitInterrupted is that of a shell for a program that ended on Ctrl-C.
	exitInterrupted = 130
)

// errInterrupted is wrapped by errors of commands that ended on a signal.
var errInterrupted = errors.New("interrupted")

// Run runs the command and returns its exit code.
func Run(ctx context.Context, version string, in io.Reader, out, errOut io.Writer, args []string) int {
	root := New(version, genericiooptions.IOStreams{In: in, Out: out, ErrOut: errOut})
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if errors.Is(err, context.Canceled) && ctx.Err() != nil {
		err = errInterrupted // in the middle of a call
	}
	switch {
	case err == nil:
		return 0
	case err == errObstacles:
		return exitFailed
	}
	fmt.Fprintf(errOut, "error: %v\n", err)
	if errors.Is(err, errInterrupted) {
		return exitInterrupted
	}
	return exitFailed
}

// factory is what all commands have in common.
type factory struct {
	genericiooptions.IOStreams
	config *genericclioptions.ConfigFlags
}

// New returns the command with all its subcommands.
func New(version string, streams genericiooptions.IOStreams) *cobra.Command {
	f := &factory{IOStreams: streams, config: genericclioptions.NewConfigFlags(true)}
	root := &cobra.Command{
		Use:   "kubectl-transfer",
		Short: "Hand a PersistentVolumeClaim from one namespace to another",
		Long: `Hand a PersistentVolumeClaim from one namespace to another. The volume stays
where it is: nothing is copied, only its owner changes.

A claim is written NAMESPACE/pvc/NAME, or pvc/NAME for one of the namespace that
-n or the kubeconfig names.`,
		Example: `  # With rights on one side each: the giver approves, the receiver accepts.
  kubectl transfer approve prod/pvc/data --to dev
  kubectl transfer accept prod/pvc/data -n dev

  # With rights on both sides: everything at once.
  kubectl transfer move prod/pvc/data dev/pvc/data`,
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl transfer"},
	}
	root.SetIn(streams.In)
	root.SetOut(streams.Out)
	root.SetErr(streams.ErrOut)
	f.config.AddFlags(root.PersistentFlags())
	verbosity := flag.NewFlagSet("", flag.ContinueOnError)
	klog.InitFlags(verbosity)
	root.PersistentFlags().AddGoFlag(verbosity.Lookup("v"))
	root.AddGroup(
		&cobra.Group{ID: groupMove, Title: "Move a claim:"},
		&cobra.Group{ID: groupLook, Title: "Look:"},
		&cobra.Group{ID: groupEnd, Title: "Call off and clean up:"})
	root.AddCommand(
		newApprove(f), newAccept(f), newMove(f), newRename(f), newCopy(f), newUndo(f),
		newCheck(f), newGet(f), newDescribe(f),
		newCancel(f), newSpent(f), newRescue(f))
	// Those of kubectl itself would bury a command's own.
	root.SetUsageTemplate(regexp.MustCompile(`(?s)\{\{if \.HasAvailableInheritedFlags\}\}.*?\{\{end\}\}`).
		ReplaceAllString(root.UsageTemplate(), `{{if .HasAvailableInheritedFlags}}

The flags that all kubectl commands have are listed by "kubectl transfer --help".{{end}}`))
	f.completeFlags(root)
	return root
}

// The groups of commands in the help.
const (
	groupMove = "move"
	groupLook = "look"
	groupEnd  = "end"
)

// oneClaim is for commands that take one claim.
func oneClaim(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("name one claim, as in: %s", firstExample(cmd))
	}
	return nil
}

// firstExample is the first command line of a command's examples.
func firstExample(cmd *cobra.Command) string {
	for line := range strings.Lines(cmd.Example) {
		if l := strings.TrimSpace(line); strings.HasPrefix(l, "kubectl ") {
			return l
		}
	}
	return cmd.UseLine()
}

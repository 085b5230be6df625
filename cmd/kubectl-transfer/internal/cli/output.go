// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/kubernetes/scheme"

	transferscheme "github.com/csi-transfer/csi-transfer/pkg/client/clientset/versioned/scheme"
)

// objects is the scheme of everything that is printed.
var objects = func() *runtime.Scheme {
	s := runtime.NewScheme()
	utilruntime.Must(scheme.AddToScheme(s))
	utilruntime.Must(transferscheme.AddToScheme(s))
	return s
}()

// output is how a command prints objects, and whether it writes them.
type output struct {
	// flags are nil for a command that prints no objects.
	flags  *genericclioptions.PrintFlags
	dryRun string
	// own are the formats that the command prints by itself.
	own []string
}

// newOutput adds -o.
func newOutput(cmd *cobra.Command) *output {
	o := &output{flags: genericclioptions.NewPrintFlags("").WithTypeSetter(objects), dryRun: dryRunNone}
	o.flags.AddFlags(cmd)
	return o
}

// Values of --dry-run, as in kubectl.
const (
	dryRunNone   = "none"
	dryRunClient = "client"
	dryRunServer = "server"
)

// withDryRun adds --dry-run.
func (o *output) withDryRun(cmd *cobra.Command) *output {
	cmd.Flags().StringVar(&o.dryRun, "dry-run", dryRunNone, `"client": only print what would be sent. "server": let the API server check it without keeping it.`)
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch o.dryRun {
		case dryRunNone, dryRunClient, dryRunServer:
			return run(cmd, args)
		}
		return fmt.Errorf("--dry-run=%s: write none, client or server", o.dryRun)
	}
	return o
}

func (o *output) format() string {
	if o.flags == nil {
		return ""
	}
	return *o.flags.OutputFormat
}

// check refuses a format that does not exist, before anything is done.
func (o *output) check() error {
	if o.format() == "" || slices.Contains(o.own, o.format()) {
		return nil
	}
	_, err := o.flags.ToPrinter()
	return err
}

// dry reports whether nothing is to be kept.
func (o *output) dry() bool { return o.dryRun != dryRunNone }

// did appends to a message what kubectl appends in a dry run.
func (o *output) did(message string) string {
	if o.dry() {
		return strings.TrimSuffix(message, ".") + " (" + o.dryRun + " dry run)."
	}
	return message
}

// createOptions and deleteOptions make a dry run of a write, if it is one.
func (o *output) createOptions() metav1.CreateOptions {
	return metav1.CreateOptions{DryRun: o.all(), FieldManager: fieldManager}
}

func (o *output) deleteOptions(of metav1.Object) metav1.DeleteOptions {
	options := metav1.NewPreconditionDeleteOptions(string(of.GetUID()))
	options.DryRun = o.all()
	return *options
}

func (o *output) all() []string {
	if o.dryRun == dryRunServer {
		return []string{metav1.DryRunAll}
	}
	return nil
}

// fieldManager is the name under which the API server records our writes.
const fieldManager = "kubectl-transfer"

// print prints objects in the format asked for: one by itself, several as a
// List.
func (s *session) print(all ...runtime.Object) error {
	printer, err := s.output.flags.ToPrinter()
	if err != nil {
		return err
	}
	if len(all) == 1 || s.output.format() == "name" {
		for _, o := range all {
			if err := printer.PrintObj(o, s.Out); err != nil {
				return err
			}
		}
		return nil
	}
	list := &corev1.List{}
	for _, o := range all {
		kinds, _, err := objects.ObjectKinds(o)
		if err != nil {
			return err
		}
		o.GetObjectKind().SetGroupVersionKind(kinds[0])
		list.Items = append(list.Items, runtime.RawExtension{Object: o})
	}
	return printer.PrintObj(list, s.Out)
}

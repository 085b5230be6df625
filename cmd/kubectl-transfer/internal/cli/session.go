// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/csi-transfer/csi-transfer/cmd/kubectl-transfer/internal/board"
	transferclient "github.com/csi-transfer/csi-transfer/pkg/client/clientset/versioned"
	transferv1alpha1 "github.com/csi-transfer/csi-transfer/pkg/client/clientset/versioned/typed/transfer/v1alpha1"
)

// session is one run of a command.
type session struct {
	genericiooptions.IOStreams
	config *rest.Config
	core   kubernetes.Interface
	api    transferv1alpha1.TransferV1alpha1Interface
	// namespace is that of -n, else that of the kubeconfig's context.
	namespace string
	// output is what the command prints objects with, and whether it writes.
	output *output
}

// open reads the kubeconfig. It asks the API server nothing.
func (f *factory) open(o *output) (*session, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	config, err := f.config.ToRESTConfig()
	if err != nil {
		return nil, err
	}
	config.QPS, config.Burst = 50, 100 // a person waits
	config.WarningHandler = rest.NewWarningWriter(f.ErrOut, rest.WarningWriterOptions{Deduplicate: true})
	s := &session{IOStreams: f.IOStreams, config: config, output: o}
	if s.namespace, _, err = f.config.ToRawKubeConfigLoader().Namespace(); err != nil {
		return nil, err
	}
	if s.core, err = kubernetes.NewForConfig(config); err != nil {
		return nil, err
	}
	client, err := transferclient.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	s.api = client.TransferV1alpha1()
	return s, nil
}

// openClaim also parses the claim that a command is about.
func (f *factory) openClaim(o *output, arg string) (*session, types.NamespacedName, error) {
	s, err := f.open(o)
	if err != nil {
		return nil, types.NamespacedName{}, err
	}
	claim, err := parseClaim(arg, s.namespace)
	return s, claim, err
}

// messages is where to tell people something: beside the objects that were
// asked for, if any were.
func (s *session) messages() io.Writer {
	if s.output.format() != "" {
		return s.ErrOut
	}
	return s.Out
}

func (s *session) say(format string, args ...any) {
	fmt.Fprintf(s.messages(), format+"\n", args...)
}

// newBoard makes a board that suits what messages go to.
func (s *session) newBoard() *board.Board {
	t := board.Terminal{}
	file, _ := s.messages().(*os.File)
	if file != nil && term.IsTerminal(int(file.Fd())) && os.Getenv("TERM") != "dumb" {
		t = board.Terminal{
			Live:   true,
			Colour: os.Getenv("NO_COLOR") == "",
			Size: func() (int, int) {
				columns, lines, err := term.GetSize(int(file.Fd()))
				if err != nil || columns <= 0 || lines <= 0 {
					return 80, 24
				}
				return columns, lines
			},
		}
	}
	return board.New(s.messages(), t)
}

// ask asks a yes-or-no question, if there is somebody to ask. The answer is no
// unless it is yes.
func (s *session) ask(ctx context.Context, question string) (yes, asked bool) {
	in, _ := s.In.(*os.File)
	if in == nil || !term.IsTerminal(int(in.Fd())) || ctx.Err() != nil {
		return false, false
	}
	fmt.Fprintf(s.ErrOut, "%s [y/N] ", question)
	answered := make(chan string, 1)
	go func() {
		var answer string
		_, _ = fmt.Fscanln(in, &answer) // nothing is no
		answered <- answer
	}()
	select {
	case answer := <-answered:
		return slices.Contains([]string{"y", "yes"}, strings.ToLower(answer)), true
	case <-ctx.Done():
		fmt.Fprintln(s.ErrOut)
		return false, true
	}
}

// absent reports whether an error says that the API server does not serve the
// resource, as opposed to not having the object.
func absent(err error) bool {
	return apierrors.IsNotFound(err) && apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}

// waitFlags are those of commands that wait.
type waitFlags struct {
	wait    bool
	timeout time.Duration
}

func (w *waitFlags) add(cmd *cobra.Command, what string) {
	cmd.Flags().BoolVar(&w.wait, "wait", true, "Wait until "+what+".")
	cmd.Flags().DurationVar(&w.timeout, "timeout", w.timeout, "How long to wait, for instance 5m. Zero is for ever.")
}

// errTimeout is the cause of a context that --timeout has ended.
var errTimeout = fmt.Errorf("timed out")

// limit ends a context after --timeout.
func (w *waitFlags) limit(ctx context.Context) (context.Context, context.CancelFunc) {
	if w.timeout <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, w.timeout, errTimeout)
}

// ended turns the end of a context into an error: on a signal or on --timeout.
// It is nil while the context lasts.
func ended(ctx context.Context) error {
	switch {
	case ctx.Err() == nil:
		return nil
	case context.Cause(ctx) == errTimeout:
		return errTimeout
	}
	return errInterrupted
}

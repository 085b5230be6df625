// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/csi-transfer/csi-transfer/pkg/sidecar/protocol"
)

func newCheck(f *factory) *cobra.Command {
	var to, format string
	cmd := &cobra.Command{
		Use:     "check CLAIM [--to NAMESPACE]",
		GroupID: groupLook,
		Short:   "Say whether a claim could be transferred, and all that stands in the way",
		Long: `Say whether a claim could be transferred now, and all that stands in the way, with
what to do about it. Nothing is changed.

It looks at what csi-transfer itself looks at before a transfer, as far as you may,
and says what you may not. It exits with 1 if something stands in the way.`,
		Example: `  # Could the claim data of namespace prod be transferred?
  kubectl transfer check prod/pvc/data

  # To namespace dev, for a program to read.
  kubectl transfer check prod/pvc/data --to dev -o json`,
		Args: oneClaim,
	}
	cmd.Flags().StringVar(&to, "to", "", "The namespace that is to receive the claim.")
	cmd.Flags().StringVarP(&format, "output", "o", "", "Output format. One of: (json, yaml).")
	cmd.ValidArgsFunction = f.complete(1, claims)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		s, err := f.open(&output{})
		if err != nil {
			return err
		}
		source, err := parseClaim(args[0], s.namespace)
		if err != nil {
			return err
		}
		print, ok := reportFormats[format]
		if !ok {
			return fmt.Errorf("--output=%s: write json or yaml", format)
		}
		r, err := s.check(cmd.Context(), source, to)
		if err != nil {
			return err
		}
		if err := print(r, s.Out); err != nil {
			return err
		}
		if !r.Transferable {
			return errObstacles
		}
		return nil
	}
	return cmd
}

// errObstacles ends a check with an exit code. The report has said all.
var errObstacles = errors.New("something stands in the way")

// report is what a check has found.
type report struct {
	Claim string `json:"claim"`
	To    string `json:"to,omitempty"`
	// Transferable: nothing that was looked at stands in the way.
	Transferable bool       `json:"transferable"`
	Obstacles    []obstacle `json:"obstacles,omitempty"`
	// Notes do not stand in the way.
	Notes []string `json:"notes,omitempty"`
	// Open is what could not be looked at.
	Open []openQuestion `json:"open,omitempty"`
}

type obstacle struct {
	Reason  protocol.Reason `json:"reason"`
	Message string          `json:"message"`
}

func (s *session) check(ctx context.Context, source types.NamespacedName, to string) (*report, error) {
	if err := s.require(ctx, rights{giving, source.Namespace, claimResource, []string{"get"}}); err != nil {
		return nil, err
	}
	claim, err := s.core.CoreV1().PersistentVolumeClaims(source.Namespace).Get(ctx, source.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("there is no PersistentVolumeClaim %s", source)
	}
	if err != nil {
		return nil, fmt.Errorf("reading PersistentVolumeClaim %s: %w", source, err)
	}
	l, err := s.around(ctx, claim, to)
	if err != nil {
		return nil, err
	}
	r := &report{Claim: source.String(), To: to, Open: l.open}
	for _, refusal := range l.obstacles() {
		r.Obstacles = append(r.Obstacles, obstacle{refusal.Reason, refusal.Message})
	}
	if to != "" && to != source.Namespace {
		_, err := s.core.CoreV1().PersistentVolumeClaims(to).Get(ctx, source.Name, metav1.GetOptions{})
		switch {
		case err == nil:
			r.Notes = append(r.Notes, fmt.Sprintf("PersistentVolumeClaim %s/%s exists already: receive under another name, with --claim of kubectl transfer accept", to, source.Name))
		case !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err):
			return nil, fmt.Errorf("reading PersistentVolumeClaim %s/%s: %w", to, source.Name, err)
		}
	}
	r.Transferable = len(r.Obstacles) == 0
	return r, nil
}

var reportFormats = map[string]func(*report, io.Writer) error{
	"": func(r *report, w io.Writer) error {
		_, err := io.WriteString(w, r.String())
		return err
	},
	"json": func(r *report, w io.Writer) error {
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "    ")
		return encoder.Encode(r)
	},
	"yaml": func(r *report, w io.Writer) error {
		text, err := yaml.Marshal(r)
		if err != nil {
			return err
		}
		_, err = w.Write(text)
		return err
	},
}

// String is the report for people.
func (r *report) String() string {
	var b strings.Builder
	what := r.Claim
	if r.To != "" {
		what += " to " + r.To
	}
	switch {
	case !r.Transferable:
		fmt.Fprintf(&b, "A transfer of %s would wait:\n", what)
	case len(r.Open) > 0:
		fmt.Fprintf(&b, "Nothing that could be looked at stands in the way of a transfer of %s.\n", what)
	default:
		fmt.Fprintf(&b, "Nothing stands in the way of a transfer of %s.\n", what)
	}
	for _, o := range r.Obstacles {
		what, remedy, _ := cutLast(o.Message, "; ")
		fmt.Fprintf(&b, "\n  %s: %s.\n", o.Reason, what)
		if remedy != "" {
			fmt.Fprintf(&b, "    To do: %s.\n", remedy)
		}
	}
	for _, note := range r.Notes {
		fmt.Fprintf(&b, "\nNote: %s.\n", note)
	}
	if len(r.Open) > 0 {
		b.WriteString("\nNot looked at:\n")
		for _, q := range r.Open {
			var names []string
			for _, reason := range slices.Compact(q.Reasons) {
				names = append(names, string(reason))
			}
			fmt.Fprintf(&b, "  %s, because %s\n", strings.Join(names, ", "), q.Because)
		}
		b.WriteString("The sidecar of the volume's driver looks at all of it once a transfer is approved, and asks the driver.\n")
	}
	return b.String()
}

// cutLast cuts a text around the last separator.
func cutLast(text, separator string) (before, after string, found bool) {
	if i := strings.LastIndex(text, separator); i >= 0 {
		return text[:i], text[i+len(separator):], true
	}
	return text, "", false
}

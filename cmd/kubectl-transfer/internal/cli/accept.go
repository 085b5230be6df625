// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"
)

func newAccept(f *factory) *cobra.Command {
	var claim string
	var wait waitFlags
	cmd := &cobra.Command{
		Use:     "accept NAMESPACE/pvc/NAME [--claim NAME]",
		GroupID: groupMove,
		Short:   "Take a claim of another namespace",
		Long: `Take a claim of another namespace into this one. For a user of the receiving
namespace.

It asks for the claim, waits until a user of the giving namespace approves, makes
a claim that is as the volume needs it, and waits until that is Bound. It may be
interrupted, and goes on where it was when it is run again.`,
		Example: `  # Take the claim data of namespace prod into namespace dev.
  kubectl transfer accept prod/pvc/data -n dev

  # Under another name; only ask, and come back later.
  kubectl transfer accept prod/pvc/data -n dev --claim restored --wait=false`,
		Args: oneClaim,
	}
	o := newOutput(cmd)
	cmd.Flags().StringVar(&claim, "claim", "", "The name of the claim here. By default that of the claim there.")
	wait.add(cmd, "the claim is Bound")
	cmd.ValidArgsFunction = f.complete(1, claims)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		s, source, err := f.openClaim(o, args[0])
		if err != nil {
			return err
		}
		target := types.NamespacedName{Namespace: s.namespace, Name: claim}
		if claim == "" {
			target.Name = source.Name
		}
		if source == target {
			return fmt.Errorf("%s is a claim of this namespace already; name one of another, as in: kubectl transfer accept prod/pvc/data -n dev", source)
		}
		return s.accept(cmd.Context(), &transfer{session: s, source: source, target: target}, wait)
	}
	o.withDryRun(cmd)
	return cmd
}

func (s *session) accept(ctx context.Context, t *transfer, wait waitFlags) error {
	if err := s.require(ctx, t.rights()...); err != nil {
		return err
	}
	if err := t.begin(ctx); err != nil {
		return err
	}
	if s.output.dry() || !wait.wait {
		if s.output.format() != "" {
			return s.print(t.request)
		}
		s.say("%s", s.output.did(fmt.Sprintf("Namespace %s asks for %s.", t.target.Namespace, t.source)))
		if s.output.dry() {
			return nil
		}
		s.say("A user of %s approves with:  kubectl transfer approve %s --to %s --request %s", t.source.Namespace, arg(t.source), t.target.Namespace, t.request.Name)
		s.say("To go on then:  %s", t.again())
		return nil
	}
	if err := s.run(ctx, wait, t); err != nil {
		return err
	}
	if s.output.format() != "" {
		return s.print(t.request, t.claim)
	}
	return nil
}

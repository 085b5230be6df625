// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/csi-transfer/csi-transfer/cmd/kubectl-transfer/internal/board"
)

// atOnce is how many transfers of one command are begun side by side. Waiting
// for them is not limited: the API server's work is, not ours.
const atOnce = 8

// run shows transfers that have begun until all have arrived, or cannot. One
// that fails does not stop the others.
func (s *session) run(ctx context.Context, wait waitFlags, all ...*transfer) error {
	ctx, cancel := wait.limit(ctx)
	defer cancel()
	b := s.newBoard()
	for _, t := range all {
		if len(all) == 1 {
			t.row = b.Add(t.String())
		} else {
			t.row = b.Add(t.source.String())
		}
	}
	var group errgroup.Group
	for _, t := range all {
		group.Go(func() error {
			if t.err == nil {
				t.err = t.finish(ctx)
			}
			if t.err != nil && !halted(t.err) {
				t.row.Set(board.Failed, t.err.Error())
			}
			return nil
		})
	}
	_ = group.Wait() // each has its own error
	b.Close()
	return outcome(all)
}

// halted reports whether an error says no more than that the command ended
// before its work.
func halted(err error) bool { return errors.Is(err, errInterrupted) || errors.Is(err, errTimeout) }

// outcome is the error of a command that moves claims.
func outcome(all []*transfer) error {
	if len(all) == 1 {
		return all[0].stopped()
	}
	var text strings.Builder
	var first error
	failed := 0
	for _, t := range all {
		if t.err == nil {
			continue
		}
		failed++
		if first == nil || errors.Is(t.err, errInterrupted) {
			first = t.err
		}
		fmt.Fprintf(&text, "\n  %s: %v", t, t.err)
	}
	if failed == 0 {
		return nil
	}
	return summary{fmt.Sprintf("%d of %d claims have not moved:%s\nThis calls no transfer off. To go on, run the same command again; to call one off: kubectl transfer cancel NAMESPACE/pvc/NAME", failed, len(all), text.String()), first}
}

// summary is an error of several, of the kind of one of them.
type summary struct {
	text string
	kind error
}

func (s summary) Error() string { return s.text }
func (s summary) Unwrap() error { return s.kind }

// again is the command that goes on with a transfer.
func (t *transfer) again() string {
	if t.giver != nil {
		return fmt.Sprintf("kubectl transfer move %s %s", arg(t.source), arg(t.target))
	}
	command := fmt.Sprintf("kubectl transfer accept %s -n %s", arg(t.source), t.target.Namespace)
	if t.target.Name != t.source.Name {
		command += " --claim " + t.target.Name
	}
	return command
}

// stopped says, of a transfer that the command did not see to its end, how to go
// on and how to call it off.
func (t *transfer) stopped() error {
	var ended over
	switch {
	case t.err == nil:
		return nil
	case errors.As(t.err, &ended), t.request == nil:
		return t.err
	}
	return fmt.Errorf("%w\nThis does not call the transfer of %s to %s off.\n  To go on:        %s\n  To call it off:  kubectl transfer cancel %s -n %s",
		t.err, t.source, t.target, t.again(), arg(t.source), t.target.Namespace)
}

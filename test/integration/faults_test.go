// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/csi-transfer/csi-transfer/pkg/apis/transfer/v1alpha1"
	"github.com/csi-transfer/csi-transfer/pkg/sidecar/protocol"
	"github.com/csi-transfer/csi-transfer/test/cluster"
	"github.com/csi-transfer/csi-transfer/test/proxy"
)

// fault is what can become of one call. It returns what a proxy.Handler does.
type fault struct {
	name string
	// reads: it can become of a read too. What is lost after a read was answered
	// looks the same as before.
	reads bool
	// before: the call is not applied.
	before bool
	do     func(st *stage, c proxy.Call, forward func() error) error
}

var errInjected = errors.New("injected by the test")

var faults = []fault{
	{name: "conflict", before: true, do: func(_ *stage, c proxy.Call, _ func() error) error {
		return apierrors.NewConflict(schema.ParseGroupResource(c.Resource), c.Name, errInjected)
	}},
	{name: "500 before", reads: true, before: true, do: func(*stage, proxy.Call, func() error) error {
		return apierrors.NewInternalError(errInjected)
	}},
	{name: "connection lost before", reads: true, before: true, do: func(*stage, proxy.Call, func() error) error {
		return proxy.ErrCut
	}},
	{name: "timeout after", do: func(_ *stage, _ proxy.Call, forward func() error) error {
		return errors.Join(forward(), &apierrors.StatusError{ErrStatus: metav1.Status{
			Status: metav1.StatusFailure, Code: http.StatusGatewayTimeout, Reason: metav1.StatusReasonTimeout, Message: errInjected.Error(),
		}})
	}},
	{name: "connection lost after", do: func(_ *stage, _ proxy.Call, forward func() error) error {
		return errors.Join(forward(), proxy.ErrCut)
	}},
	{name: "killed before", reads: true, before: true, do: func(st *stage, _ proxy.Call, _ func() error) error {
		st.sidecar.Kill()
		return proxy.ErrCut
	}},
	{name: "killed after", do: func(st *stage, _ proxy.Call, forward func() error) error {
		err := forward()
		st.sidecar.Kill()
		return errors.Join(err, proxy.ErrCut)
	}},
	{name: "driver killed", do: func(st *stage, _ proxy.Call, forward func() error) error {
		return errors.Join(st.driver.Process.Restart(context.Background()), forward())
	}},
}

// suits says whether the fault can become of a call. An object cannot be created
// at a version. Nothing waits for an event, so that it does not matter how it was
// lost.
func (f fault) suits(c proxy.Call) bool {
	switch {
	case c.Resource == "events":
		return f.reads || f.name == "killed after"
	case !c.Writes():
		return f.reads
	}
	return f.name != "conflict" || c.Verb != "create"
}

// faultCase is a fault of one call.
type faultCase struct {
	call numberedCall
	fault
}

// faultCases are all faults of all calls.
func faultCases(calls []numberedCall) (cases []faultCase, names []string) {
	for _, c := range calls {
		for _, f := range faults {
			if f.suits(c.Call) {
				cases = append(cases, faultCase{c, f})
			}
		}
	}
	cases = sample(cases, 16)
	for _, c := range cases {
		names = append(names, c.call.id+"/"+c.name)
	}
	return cases, names
}

// way is how a transfer goes: it returns once that has ended, and fails unless
// all is as it must be then. begin is called when its calls begin to count.
type way func(s *scene, st *stage, begin func())

// forwards completes.
func forwards(s *scene, _ *stage, begin func()) {
	source := s.source()
	before := s.volume(s.moving)
	begin()
	s.grant(source)
	s.transferred()
	s.spent()
	s.arrived(before)
	s.neverOpen(before)
	s.backed(before, moved)
	lost := must[*corev1.PersistentVolumeClaim](s)(s.WaitClaimPhase(s.ctx, s.giver, "data", corev1.ClaimLost))
	if to := lost.Annotations[v1alpha1.AnnotationTransferredTo]; to != s.receiver+"/data" {
		s.Errorf("the source claim says that it went to %q", to)
	}
}

// backwards gives the volume back, because a pod that waited for a node gets one
// when the volume is just parked, and completes when the pod is gone.
func backwards(s *scene, st *stage, begin func()) {
	source := s.source()
	before := s.volume(s.moving)
	s.unscheduled(s.giver)
	parked := make(chan struct{})
	var bound error
	s.calls(st, func(c numberedCall, forward func() error) error {
		err := forward()
		if c.id == park {
			bound = s.schedule(s.giver)
			begin()
			close(parked)
		}
		return err
	})
	s.grant(source)
	select {
	case <-parked:
		s.must(bound)
	case <-s.ctx.Done():
		s.Fatal("the volume was not parked")
	}
	s.returned(before)
	s.contains(s.refused(protocol.ReasonInUse), "late")
	must[*metav1.Condition](s)(s.WaitCondition(s.ctx, cluster.Approvals, s.giver, "give-data", v1alpha1.ConditionTransferred, metav1.ConditionFalse, string(protocol.ReasonInUse)))
	st.proxy.Handle(nil)
	s.neverOpen(before)
	s.backed(before, returned)
	s.deletePod(s.giver, "late")
	s.transferred()
	s.spent()
	s.arrived(before)
}

// undisturbed returns the calls of a transfer with which nobody interferes.
func (s *scene) undisturbed(st *stage, play way) []numberedCall {
	s.Helper()
	var mu sync.Mutex
	var calls []numberedCall
	if !s.Run("undisturbed", func(t *testing.T) {
		s := sceneOn(t, s.world, st)
		play(s, st, func() {
			s.calls(st, func(c numberedCall, forward func() error) error {
				mu.Lock()
				defer mu.Unlock()
				calls = append(calls, c)
				return forward()
			})
		})
	}) {
		s.FailNow()
	}
	mu.Lock() // a late event counts no more
	defer mu.Unlock()
	return calls
}

// TestFaults: whatever becomes of any one call to the API server, or of the
// sidecar at it, the transfer ends as if nothing had been.
func TestFaults(t *testing.T) {
	for name, play := range map[string]way{"forwards": forwards, "backwards": backwards} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			stages := []*stage{s.newStage(cluster.DriverOptions{})}
			calls := s.undisturbed(stages[0], play)
			for len(stages) < stagesWanted() {
				stages = append(stages, s.newStage(cluster.DriverOptions{}))
			}
			cases, names := faultCases(calls)
			onStages(t.Context(), s, stages, names, func(s *scene, st *stage, i int) {
				c := cases[i]
				var met atomic.Bool
				faultTally.addWhenDone(s.T, c.name, func() string {
					if met.Load() {
						return "settled"
					}
					return ""
				})
				play(s, st, func() {
					s.calls(st, func(made numberedCall, forward func() error) error {
						if made.id != c.call.id || !met.CompareAndSwap(false, true) {
							return forward()
						}
						return c.do(st, made.Call, forward)
					})
				})
				// Of the others some may not be needed this time: reads go side by side,
				// and a write that meets a conflict with somebody else's is made again.
				if !met.Load() && c.call.first() && c.call.Writes() && c.call.Resource != "events" {
					s.Errorf("this time the sidecar did not make the call: %s", c.call.id)
				}
			})
		})
	}
}

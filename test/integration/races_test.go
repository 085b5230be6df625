// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csi-transfer/csi-transfer/pkg/apis/transfer/v1alpha1"
	"github.com/csi-transfer/csi-transfer/test/cluster"
)

// action is what a user or an administrator does while a transfer is at one of
// its writes.
type action struct {
	name string
	// pod is a namespace in which a pod waits for a node from the beginning: a fence
	// refuses those that come later. Optional.
	pod func(s *scene) string
	// do returns false where there is nothing to do.
	do func(s *scene) bool
	// before are the endings that are right where it was done before the volume
	// was bound to the receiving claim, after those where it was done later.
	before, after []ending
	// bare: it is tried without fences, which refuse it.
	bare bool
	// opens: it opens the volume for everybody, until that is seen.
	opens bool
}

// actions are those of both users, a third one's, and an administrator's.
//
// Where a source claim goes before its volume is parked, the volume goes with it,
// as ever.
var actions = []action{
	{
		name:   "receiving claim deleted",
		do:     always(func(s *scene) { s.deleteClaim(s.receiver, "data", true) }),
		before: []ending{returned}, after: []ending{kept, deleted},
	},
	{
		name:   "receiving claim made anew",
		do:     always(func(s *scene) { s.deleteClaim(s.receiver, "data", true); s.receive() }),
		before: []ending{moved}, after: []ending{kept, deleted},
	},
	{
		name:   "S8 receiving claim made anew, bigger",
		do:     always(func(s *scene) { s.deleteClaim(s.receiver, "data", true); s.receive(size("2Gi")) }),
		before: []ending{returned}, after: []ending{kept, deleted},
	},
	{
		name:   "source claim deleted",
		do:     always(func(s *scene) { s.deleteClaim(s.giver, "data", true) }),
		before: []ending{moved, deleted}, after: []ending{moved},
	},
	{
		name:   "source claim made anew",
		do:     always(func(s *scene) { s.deleteClaim(s.giver, "data", true); s.claim(s.giver, "data") }),
		before: []ending{moved, deleted}, after: []ending{moved},
	},
	{
		name:   "request deleted",
		do:     always(func(s *scene) { s.must(s.requests().Delete(s.ctx, "take-data", metav1.DeleteOptions{})) }),
		before: []ending{returned}, after: []ending{moved},
	},
	{
		name: "request made anew",
		do: always(func(s *scene) {
			s.must(s.requests().Delete(s.ctx, "take-data", metav1.DeleteOptions{}))
			s.request()
		}),
		before: []ending{moved}, after: []ending{moved},
	},
	{
		name:   "approval withdrawn",
		do:     always(func(s *scene) { s.must(s.approvals().Delete(s.ctx, "give-data", metav1.DeleteOptions{})) }),
		before: []ending{returned}, after: []ending{moved},
	},
	{
		name: "approval made anew",
		do: always(func(s *scene) {
			s.must(s.approvals().Delete(s.ctx, "give-data", metav1.DeleteOptions{}))
			s.approve(must[*corev1.PersistentVolumeClaim](s)(s.claims(s.giver).Get(s.ctx, "data", metav1.GetOptions{})))
		}),
		before: []ending{moved}, after: []ending{moved},
	},
	{
		name:   "giving namespace deleted",
		do:     always(func(s *scene) { s.doom(s.giver) }),
		before: []ending{moved, deleted}, after: []ending{moved},
	},
	{
		name:   "receiving namespace deleted",
		do:     always(func(s *scene) { s.doom(s.receiver) }),
		before: []ending{returned}, after: []ending{kept, deleted},
	},
	{
		name:   "pod on the source claim",
		pod:    func(s *scene) string { return s.giver },
		do:     always(func(s *scene) { s.must(s.schedule(s.giver)) }),
		before: []ending{returned}, after: []ending{moved},
	},
	{
		name:   "pod on the receiving claim",
		pod:    func(s *scene) string { return s.receiver },
		do:     always(func(s *scene) { s.must(s.schedule(s.receiver)) }),
		before: []ending{moved}, after: []ending{moved},
	},
	{
		name:   "source claim opted out",
		do:     always(func(s *scene) { s.patchClaim(s.giver, "data", annotation(v1alpha1.AnnotationAllow, "false")) }),
		before: []ending{returned}, after: []ending{moved},
	},
	{
		name: "second request",
		do: always(func(s *scene) {
			s.request(func(r *v1alpha1.NamespaceTransferRequest) { r.Name = "second" })
			s.claim(s.receiver, "second", from("second"))
		}),
		before: []ending{moved}, after: []ending{moved},
	},
	{
		name:   "snapshot taken",
		do:     always(func(s *scene) { s.snapshot("backup", "data") }),
		before: []ending{moved, returned}, after: []ending{moved},
	},
	{
		name:   "clone started",
		do:     always(func(s *scene) { s.claim(s.giver, "copy", cloneOf("data")) }),
		before: []ending{moved, returned}, after: []ending{moved},
	},
	{
		name:   "volume deleted by an administrator",
		do:     (*scene).tryDeleteVolume,
		before: []ending{moved, doomed}, after: []ending{moved, doomed},
	},
	{
		name:   "policy set to Delete by an administrator",
		do:     func(s *scene) bool { return s.tryInFlight(`{"spec":{"persistentVolumeReclaimPolicy":"Delete"}}`) },
		before: []ending{moved}, after: []ending{moved},
	},
	{
		name:   "claimRef cleared by an administrator",
		do:     func(s *scene) bool { return s.tryInFlight(`{"spec":{"claimRef":null}}`) },
		before: []ending{moved}, after: []ending{moved},
	},
	{
		name: "volume deleted by an administrator, unfenced", bare: true,
		do:     (*scene).tryDeleteVolume,
		before: []ending{doomed}, after: []ending{doomed},
	},
	{
		name: "claimRef cleared by an administrator, unfenced", bare: true, opens: true,
		do:     func(s *scene) bool { return s.tryInFlight(`{"spec":{"claimRef":null}}`) },
		before: []ending{moved, returned}, after: []ending{moved},
	},
	{
		name: "UID of claimRef removed by an administrator, unfenced", bare: true, opens: true,
		do:     func(s *scene) bool { return s.tryInFlight(`{"spec":{"claimRef":{"uid":null}}}`) },
		before: []ending{moved, returned}, after: []ending{moved},
	},
}

func always(do func(s *scene)) func(s *scene) bool {
	return func(s *scene) bool { do(s); return true }
}

// doom begins to delete a namespace.
func (s *scene) doom(namespace string) {
	s.Helper()
	s.must(s.Client.CoreV1().Namespaces().Delete(s.ctx, namespace, metav1.DeleteOptions{}))
	must[*corev1.Namespace](s)(cluster.Wait(s.ctx, s.Cluster, corev1.SchemeGroupVersion.WithResource("namespaces"), "", namespace,
		func(n *corev1.Namespace) bool { return n.Status.Phase == corev1.NamespaceTerminating }))
}

// unscheduled makes a pod on the claim data that waits for a node.
func (s *scene) unscheduled(namespace string) {
	s.Helper()
	s.pod(namespace, "late", "data", func(p *corev1.Pod) { p.Spec.NodeName = "" })
}

// schedule gives it one.
func (s *scene) schedule(namespace string) error {
	return s.Client.CoreV1().Pods(namespace).Bind(s.ctx, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Name: "late"}, Target: corev1.ObjectReference{Kind: "Node", Name: "node-1"},
	}, metav1.CreateOptions{})
}

// tryDeleteVolume deletes the volume's object, which the fences refuse in flight.
func (s *scene) tryDeleteVolume() bool {
	s.Helper()
	if err := s.Client.CoreV1().PersistentVolumes().Delete(s.ctx, s.moving, metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
		s.must(err)
	}
	return true
}

// tryInFlight changes the volume as an administrator, which the fences refuse,
// if it is in flight.
func (s *scene) tryInFlight(patch string) bool {
	s.Helper()
	if len(ours(s.volume(s.moving).ObjectMeta)) == 0 {
		return false
	}
	_, err := s.Client.CoreV1().PersistentVolumes().Patch(s.ctx, s.moving, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	if !apierrors.IsForbidden(err) {
		s.must(err)
	}
	return true
}

// gate holds a sidecar at one of its calls.
type gate struct {
	reached, opened chan struct{}
	open            func()
	once            sync.Once
	// decided: it is a write to the volume that was not applied yet, but may be.
	// Valid once the gate is reached.
	decided bool
}

func newGate(s *scene) *gate {
	g := &gate{reached: make(chan struct{}), opened: make(chan struct{})}
	g.open = sync.OnceFunc(func() { close(g.opened) })
	s.Cleanup(g.open)
	return g
}

// hold returns when the gate is open. Only the first call waits.
func (g *gate) hold(c numberedCall, applied bool) {
	g.once.Do(func() {
		g.decided = c.Resource == "persistentvolumes" && !applied
		close(g.reached)
		<-g.opened
	})
}

// holdAt makes a gate at a call, before it is applied or after.
func (s *scene) holdAt(st *stage, id string, applied bool) *gate {
	g := newGate(s)
	s.calls(st, func(c numberedCall, forward func() error) error {
		if c.id == id && !applied {
			g.hold(c, false)
		}
		err := forward()
		if c.id == id && applied {
			g.hold(c, true)
		}
		return err
	})
	return g
}

// reaches waits until the sidecar is at the gate. It returns false if the transfer
// has completed without that write: one that had met a conflict was made again
// when the writes were counted.
func (s *scene) reaches(g *gate) bool {
	s.Helper()
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	completed := make(chan error, 1)
	go func() {
		_, err := s.WaitCondition(ctx, cluster.Requests, s.receiver, "take-data", v1alpha1.ConditionTransferred, metav1.ConditionTrue, "")
		completed <- err
	}()
	select {
	case <-g.reached:
		return true
	case err := <-completed:
		s.must(err)
	}
	select {
	case <-g.reached: // at the write that says so
		return true
	case <-time.After(time.Second):
		return false
	}
}

// wait waits until the sidecar is at a gate that it cannot miss.
func (s *scene) wait(g *gate) {
	s.Helper()
	if !s.reaches(g) {
		s.Fatal("the sidecar did not come to this write")
	}
}

// boundary is where an action is done: at a write of a transfer, before that is
// applied or after.
type boundary struct {
	id      string
	applied bool
}

// boundaries are all those of a transfer, as one that is watched makes them.
func (s *scene) boundaries(st *stage) []boundary {
	s.Helper()
	var all []boundary
	for _, c := range s.undisturbed(st, forwards) {
		if c.Writes() && c.Resource != "events" {
			all = append(all, boundary{c.id, false}, boundary{c.id, true})
		}
	}
	return all
}

// park is the first write of a transfer to the volume.
const park = "patch persistentvolumes 1"

// race does an action at a gate and returns how the transfer ended, which must be
// right for when that was. It returns nothing where there was nothing to do.
func (s *scene) race(a action, before *corev1.PersistentVolume, g *gate) ending {
	s.Helper()
	late := s.volume(before.Name).Spec.ClaimRef.UID == must[*corev1.PersistentVolumeClaim](s)(s.claims(s.receiver).Get(s.ctx, "data", metav1.GetOptions{})).UID
	done := a.do(s)
	g.open()
	if !done {
		return ""
	}
	right := a.before
	switch {
	case late:
		right = a.after
	case g.decided: // perhaps it is bind
		right = slices.Concat(a.before, a.after)
	}
	how := s.settled(before, right...)
	if !a.opens {
		s.neverOpen(before)
	}
	return how
}

// TestRaces: whatever a user or an administrator does at any step of a transfer,
// that ends as it must.
func TestRaces(t *testing.T) {
	for name, bare := range map[string]bool{"fenced": false, "bare": true} {
		t.Run(name, func(t *testing.T) {
			var s *scene
			if bare {
				s = newFrailScene(t)
			} else {
				s = newScene(t)
			}
			stages := []*stage{s.newStage(cluster.DriverOptions{Snapshotter: !bare})}
			boundaries := s.boundaries(stages[0])
			for len(stages) < stagesWanted() {
				stages = append(stages, s.newStage(cluster.DriverOptions{Snapshotter: !bare}))
			}
			type race struct {
				action
				boundary
			}
			var races []race
			for _, a := range actions {
				for _, b := range boundaries {
					if a.bare == bare {
						races = append(races, race{a, b})
					}
				}
			}
			races = sample(races, 12)
			var names []string
			for _, r := range races {
				when := "before"
				if r.applied {
					when = "after"
				}
				names = append(names, fmt.Sprintf("%s/%s/%s", r.action.name, r.id, when))
			}
			onStages(t.Context(), s, stages, names, func(s *scene, st *stage, i int) {
				r := races[i]
				var how ending
				raceTally.addWhenDone(s.T, r.action.name, func() string { return string(how) })
				source := s.source()
				before := s.volume(s.moving)
				if r.pod != nil {
					s.unscheduled(r.pod(s))
				}
				g := s.holdAt(st, r.id, r.applied)
				s.grant(source)
				if s.reaches(g) {
					how = s.race(r.action, before, g)
				}
			})
		})
	}
}

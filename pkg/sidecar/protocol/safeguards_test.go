// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-transfer/csi-transfer/internal/docs"
	"github.com/csi-transfer/csi-transfer/pkg/apis/transfer/v1alpha1"
	"github.com/csi-transfer/csi-transfer/pkg/match"
	"github.com/csi-transfer/csi-transfer/pkg/sidecar/protocol"
)

// safeguard is something that the protocol does for safety's sake, and how a
// sidecar does without. What Decide is shown or what it wants is changed on the
// way; Decide itself knows nothing of it.
type safeguard struct {
	name string
	// in is the smallest scenario where it is missed.
	in scenario
	// show changes what is observed.
	show func(o *protocol.Observation)
	// want changes what is to be done.
	want func(o protocol.Observation, a protocol.Action) protocol.Action
	// unguarded patches apply to whatever is there.
	unguarded bool
	// comfort is what it is for where nothing bad comes of leaving it out.
	comfort string
}

// decide is Decide without a safeguard.
func (s *safeguard) decide(o protocol.Observation) protocol.Action {
	if s.show != nil {
		s.show(&o)
	}
	a := protocol.Decide(o)
	if s.want != nil {
		a = s.want(o, a)
	}
	return a
}

// safeguards, of which each is missed, or is for comfort only.
var safeguards = []*safeguard{
	{name: "policy Retain in flight", in: scenario{},
		show: retainShown,
		want: rewriting(protocol.Park, func(_ protocol.Observation, p patchObject) { delete(p.of("spec"), "persistentVolumeReclaimPolicy") })},
	{name: "policy Retain set again", in: scenario{things: []string{"policy Delete"}},
		show: retainShown},
	{name: "parking before bind", in: scenario{things: []string{"prod pod", "dev pod"}},
		want: rewriting(protocol.Park, func(o protocol.Observation, p patchObject) {
			c := o.Receivers[0]
			p.of("spec")["claimRef"] = map[string]any{"kind": "PersistentVolumeClaim", "namespace": c.Namespace, "name": c.Name, "uid": c.UID}
		})},
	{name: "parking with a UID in claimRef", in: scenario{},
		want: rewriting(protocol.Park, func(_ protocol.Observation, p patchObject) { p.of("spec")["claimRef"] = nil })},
	{name: "PV Released before the source claim is marked", in: scenario{slow: true, lag: true, things: []string{"withdraw", "delete source"}}, show: releasedShown,
		comfort: "the claim is Lost at once, and not at the binder's next resync"},
	{name: "source claim Lost before bind", in: scenario{}, show: lostShown},
	{name: "live verification: pods", in: scenario{slow: true, things: []string{"prod pod"}}, want: unread("verify")},
	{name: "live verification: snapshots and sizes", in: scenario{slow: true, things: []string{"snapshot"}}, want: unread("verify")},
	{name: "live reads before policy is restored on the way back", in: scenario{sidecars: 2, stale: true, things: []string{"withdraw"}}, want: unread("about to restore")},
	{name: "live reads before a volume is given back", in: scenario{slow: true, stale: true, things: []string{"withdraw", "approve again", "delete source", "terminate"}}, want: unread("about to give the volume back"),
		comfort: "no volume goes back, and none to a claim that is gone or about to go, because a cache is behind"},
	{name: "live reads before a volume is given up", in: scenario{stale: true, things: []string{"delete receiver", "create receiver"}}, want: unread("seems gone")},
	{name: "live reads before a volume is bound again", in: scenario{things: []string{"claimRef is removed", "prod pod"}}, want: unread("about to bind again")},
	{name: "UIDs of claims compared", in: scenario{things: []string{"delete source", "source anew", "withdraw"}},
		show: func(o *protocol.Observation) {
			volumeShown(o, func(_ *corev1.PersistentVolume, j *protocol.Journal) {
				if o.Source != nil && j != nil {
					o.Source = o.Source.DeepCopy()
					o.Source.UID = j.Source.UID
				}
			})
		}},
	{name: "patches guarded by UID and resourceVersion", in: scenario{sidecars: 2, slow: true, things: []string{"withdraw", "delete source"}}, unguarded: true},
	{name: "bound-by-controller dropped", in: scenario{slow: true, things: []string{"volume for anybody"}},
		want: rewriting(protocol.Park, func(_ protocol.Observation, p patchObject) {
			delete(p.of("metadata").of("annotations"), boundByController)
		})},
	{name: "policy in a second write on the way back", in: scenario{things: []string{"withdraw"}},
		want: rewriting(protocol.Return, func(_ protocol.Observation, p patchObject) {
			p.of("spec")["persistentVolumeReclaimPolicy"] = corev1.PersistentVolumeReclaimDelete
		})},
	{name: "policy only when Bound", in: scenario{},
		show: func(o *protocol.Observation) {
			volumeShown(o, func(pv *corev1.PersistentVolume, j *protocol.Journal) {
				if j == nil || o.Claim == nil || pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID != o.Claim.UID {
					return
				}
				pv.Status.Phase = corev1.VolumeBound
				o.Claim = o.Claim.DeepCopy()
				o.Claim.Spec.VolumeName, o.Claim.Status.Phase = pv.Name, corev1.ClaimBound
			})
		}},
	{name: "finalizer on the volume while parked", in: scenario{things: []string{"delete volume"}},
		want: func(o protocol.Observation, a protocol.Action) protocol.Action {
			a = rewriting(protocol.Park, func(_ protocol.Observation, p patchObject) { delete(p.of("metadata"), "finalizers") })(o, a)
			return rewriting(protocol.Bind, func(o protocol.Observation, p patchObject) {
				p.of("metadata")["finalizers"] = append(slices.Clone(o.Volume.PV.Finalizers), v1alpha1.FinalizerInFlight)
			})(o, a)
		}},
	{name: "parking again", in: scenario{things: []string{"claimRef loses its UID"}},
		want: func(_ protocol.Observation, a protocol.Action) protocol.Action {
			if a.Patch != nil && a.Patch.Step == protocol.Repark {
				return protocol.Action{Why: "left alone", Wait: &protocol.Wait{}}
			}
			return a
		}},
	{name: "an approval covers no claim younger than itself", in: scenario{things: []string{"delete source", "source anew"}},
		show: oldShown},
	{name: "an approval is reserved", in: scenario{},
		want: func(o protocol.Observation, a protocol.Action) protocol.Action {
			if a.Status == nil || a.Status.Approval == nil || a.Why != "reserve the approval" {
				return a
			}
			o.Approvals = []*v1alpha1.NamespaceTransferApproval{a.Status.Approval}
			return protocol.Decide(o)
		}},
	{name: "an approval is spent before the volume is restored", in: scenario{things: []string{"delete request"}}, show: spentShown},
	{name: "no restoring of a volume that is being deleted", in: scenario{things: []string{"delete volume"}},
		show: func(o *protocol.Observation) {
			volumeShown(o, func(pv *corev1.PersistentVolume, _ *protocol.Journal) { pv.DeletionTimestamp = nil })
		}},
	{name: "no way back after bind", in: scenario{things: []string{"claimRef loses its UID", "withdraw"}},
		want: rewriting(protocol.Bind, func(o protocol.Observation, p patchObject) {
			var j protocol.Journal
			if json.Unmarshal([]byte(p.of("metadata").of("annotations")[v1alpha1.AnnotationJournal].(string)), &j) == nil {
				j.Bound = false
				p.of("metadata").of("annotations")[v1alpha1.AnnotationJournal] = j.Encode()
			}
		})},
}

// TestSafeguards: without any one of them a scenario ends badly, so that each is
// needed, and the exploration would tell if one were lost.
func TestSafeguards(t *testing.T) {
	var rows [][]string
	for _, g := range safeguards {
		t.Run(g.name, func(t *testing.T) {
			s := g.in
			s.sidecars, s.budget = max(1, s.sidecars), len(s.things)
			if g.comfort != "" {
				r := s.explore(t, 5, g)
				if r.violation != "" {
					t.Fatal("it is for more than comfort:\n" + r.violation)
				}
				rows = append(rows, []string{g.name, fmt.Sprintf("nothing bad in %d states; with it, %s", r.states, g.comfort)})
				return
			}
			summary.safeguards++
			r := s.explore(t, 14, g)
			if r.violation == "" {
				t.Fatalf("nobody misses it in %d states", r.states)
			}
			summary.caught++
			t.Log(r.violation)
			_, violation, _ := strings.Cut(r.violation, "VIOLATION: ")
			violation, _, _ = strings.Cut(violation, "\n")
			rows = append(rows, []string{g.name, violation})
		})
	}
	if !t.Failed() && len(rows) == len(safeguards) {
		docs.Check(t, "../../../docs/reliability.md", "safeguards", docs.Table([]string{"without", "what happens first"}, rows))
	}
}

// volumeShown changes the volume that is observed.
func volumeShown(o *protocol.Observation, change func(pv *corev1.PersistentVolume, j *protocol.Journal)) {
	if o.Volume == nil || o.Volume.PV == nil {
		return
	}
	pv := o.Volume.PV.DeepCopy()
	j, _ := protocol.ParseJournal(pv, driverName)
	change(pv, j)
	o.Volume = &protocol.Volume{Name: pv.Name, PV: pv}
}

// retainShown shows any volume in flight with policy Retain.
func retainShown(o *protocol.Observation) {
	volumeShown(o, func(pv *corev1.PersistentVolume, j *protocol.Journal) {
		if j != nil {
			pv.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
		}
	})
}

// oldShown shows the source claim as one that was there before any approval.
func oldShown(o *protocol.Observation) {
	if o.Source != nil {
		o.Source = o.Source.DeepCopy()
		o.Source.CreationTimestamp = metav1.Unix(1, 0)
	}
}

// spentShown shows the approvals of a volume that is bound as if they had served.
func spentShown(o *protocol.Observation) {
	if o.Volume == nil || o.Volume.PV == nil {
		return
	}
	if j, _ := protocol.ParseJournal(o.Volume.PV, driverName); j == nil || !j.Bound {
		return
	}
	o.Approvals = slices.Clone(o.Approvals)
	for n, a := range o.Approvals {
		a = a.DeepCopy()
		match.SetCondition(a, &a.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionTransferred, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonTransferred})
		o.Approvals[n] = a
	}
}

// releasedShown shows any parked volume as one that the binder has seen.
func releasedShown(o *protocol.Observation) {
	volumeShown(o, func(pv *corev1.PersistentVolume, j *protocol.Journal) {
		if j != nil && pv.Spec.ClaimRef != nil && pv.Spec.ClaimRef.Kind == v1alpha1.RequestKind {
			pv.Status.Phase = corev1.VolumeReleased
		}
	})
}

// lostShown shows a marked claim as Lost.
func lostShown(o *protocol.Observation) {
	if o.Source != nil && o.Source.Annotations[v1alpha1.AnnotationTransferUID] != "" && o.Volume != nil && o.Volume.PV.Spec.ClaimRef != nil && o.Volume.PV.Spec.ClaimRef.Kind == v1alpha1.RequestKind {
		o.Source = o.Source.DeepCopy()
		o.Source.Status.Phase = corev1.ClaimLost
	}
}

// unread leaves live reads out: the caches are believed, and nobody seems to
// use the volume.
func unread(why string) func(o protocol.Observation, a protocol.Action) protocol.Action {
	return func(o protocol.Observation, a protocol.Action) protocol.Action {
		if a.Read == nil || !a.Read.Live || !strings.Contains(a.Why, why) {
			return a
		}
		o.Facts = &protocol.Facts{Live: true, Class: &storagev1.StorageClass{
			ObjectMeta: metav1.ObjectMeta{Name: class.name, Annotations: map[string]string{v1alpha1.AnnotationAllow: "true"}}, Provisioner: driverName,
		}}
		return protocol.Decide(o)
	}
}

type patchObject map[string]any

func (p patchObject) of(field string) patchObject {
	inner, _ := p[field].(map[string]any)
	return inner
}

// rewriting changes the patch of a step.
func rewriting(step protocol.Step, change func(o protocol.Observation, p patchObject)) func(o protocol.Observation, a protocol.Action) protocol.Action {
	return func(o protocol.Observation, a protocol.Action) protocol.Action {
		if a.Patch == nil || a.Patch.Step != step {
			return a
		}
		var p patchObject
		if err := json.Unmarshal(a.Patch.Data, &p); err != nil {
			panic(err)
		}
		change(o, p)
		data, err := json.Marshal(p)
		if err != nil {
			panic(err)
		}
		patch := *a.Patch
		patch.Data = data
		return protocol.Action{Why: a.Why + ", changed", Patch: &patch}
	}
}

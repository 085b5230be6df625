// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/csi-transfer/csi-transfer/pkg/apis/transfer/v1alpha1"
	"github.com/csi-transfer/csi-transfer/pkg/match"
)

// Decide returns the next single action of one transfer.
func Decide(o Observation) Action {
	if j := o.journal(); j != nil {
		return flight{Observation: &o, pv: o.Volume.PV, j: j}.decide()
	}
	return o.decide()
}

// journal is the volume's, where that is in flight for a request of this name.
func (o *Observation) journal() *Journal {
	if o.Volume == nil || o.Volume.PV == nil {
		return nil
	}
	j, err := ParseJournal(o.Volume.PV, o.Driver.Name)
	if err != nil || j == nil || j.Request.NamespacedName() != o.Name {
		return nil
	}
	return j
}

// decide is for a request whose volume is not in flight: not yet, or not any more.
func (o *Observation) decide() Action {
	r := o.Request
	switch {
	case r == nil || r.DeletionTimestamp != nil:
		return wait("the request is gone")
	case r.Spec.Source.Kind != "PersistentVolumeClaim" || r.Spec.Source.APIGroup != "":
		return wait("another controller moves " + r.Spec.Source.Kind)
	case match.Completed(r):
		if a := o.spend(r.UID); a != nil {
			return *a
		}
		return wait("completed")
	case o.abandoned():
		return wait("ended without completing")
	}
	if driver := o.reservedBy(); driver != "" && driver != o.Driver.Name {
		return wait("left to the sidecar of driver " + driver)
	}
	name := r.Status.VolumeName
	if name == "" && o.marked() {
		name = o.Source.Spec.VolumeName
	}
	// A volume of another name was asked for after this was looked at.
	if name != "" && (o.Volume == nil || o.Volume.Name == name) {
		if a := o.underway(name); a != nil {
			return *a
		}
	}
	return o.match()
}

// reservedBy is the driver whose sidecar has reserved an approval for the request.
func (o *Observation) reservedBy() string {
	for _, a := range o.Approvals {
		if match.ReservedFor(a, o.Request) {
			return a.Status.Driver
		}
	}
	return ""
}

// abandoned reports whether the transfer ended because a user deleted a claim:
// then the condition tells where the volume is, and nothing else would.
func (o *Observation) abandoned() bool {
	c := meta.FindStatusCondition(o.Request.Status.Conditions, v1alpha1.ConditionTransferred)
	return c != nil && (c.Reason == string(ReasonReceivingClaimDeleted) || c.Reason == string(ReasonSourceDeleted))
}

// underway is for a request whose transfer has started at some time. The volume
// tells how far it came; nil means that it is back, or never left.
func (o *Observation) underway(name string) *Action {
	if o.Volume == nil {
		return ptr.To(read("how far the volume came", Read{Volume: name}))
	}
	pv := o.Volume.PV
	switch {
	case pv == nil && o.served():
		return o.complete()
	case pv == nil || pv.Spec.CSI == nil:
		return nil
	}
	inFlight := pv.Labels[v1alpha1.LabelInFlight] != "" || pv.Annotations[v1alpha1.AnnotationJournal] != ""
	arrived := o.arrived(pv) || !inFlight && (o.served() || o.marked() && o.given(pv))
	switch {
	case !inFlight && !arrived:
		return nil
	case pv.Spec.CSI.Driver != o.Driver.Name:
		return ptr.To(wait("left to the sidecar of driver " + pv.Spec.CSI.Driver))
	case !arrived:
		return nil
	}
	if inFlight {
		if refusal := unknownJournal(pv, o.Driver.Name); refusal != nil {
			return ptr.To(o.stuck(refusal))
		}
	}
	return o.complete()
}

// arrived recognises, from the objects alone, a volume that is bound to the
// receiving claim.
func (o *Observation) arrived(pv *corev1.PersistentVolume) bool {
	return slices.ContainsFunc(o.Receivers, func(c *corev1.PersistentVolumeClaim) bool {
		return c.Status.Phase == corev1.ClaimBound && c.Spec.VolumeName == pv.Name && pv.Spec.ClaimRef != nil && pv.Spec.ClaimRef.UID == c.UID
	})
}

// served reports whether an approval was spent by this request, which is written
// when there is no way back any more.
func (o *Observation) served() bool {
	return slices.ContainsFunc(o.Approvals, func(a *v1alpha1.NamespaceTransferApproval) bool {
		return match.Spent(a) && match.ReservedFor(a, o.Request)
	})
}

// marked reports whether the source claim is still marked for this request. The
// mark is taken off before a volume goes back, so one that is no longer in flight
// had arrived, even if its user has deleted the receiving claim since.
func (o *Observation) marked() bool {
	return o.Source != nil && o.Source.Status.Phase == corev1.ClaimLost && o.Source.Annotations[v1alpha1.AnnotationTransferUID] == string(o.Request.UID)
}

// given reports whether a volume belongs, or did, to a claim of the receiving
// namespace other than the source.
func (o *Observation) given(pv *corev1.PersistentVolume) bool {
	ref := pv.Spec.ClaimRef
	return ref != nil && ref.Kind == "PersistentVolumeClaim" && ref.Namespace == o.Name.Namespace && ref.UID != o.Source.UID
}

// stuck says on the request why its volume is not restored.
func (o *Observation) stuck(refusal *Refusal) Action {
	write := o.requestStatus(func(r *v1alpha1.NamespaceTransferRequest) { o.refused(r, refusal) })
	if write == nil {
		return o.waitFor(refusal)
	}
	write.Refusal = refusal
	return Action{Why: "say why: " + string(refusal.Reason), Status: write}
}

func (o *Observation) match() Action {
	m := o.find(o.Request)
	switch {
	case m.Approval == nil:
		return o.uncovered(m)
	case o.Source != nil && !m.Verified:
		return wait("the approval was spent by this request")
	}
	return o.preflight(m.Approval)
}

// find returns the approval that covers a request for the source.
func (o *Observation) find(r *v1alpha1.NamespaceTransferRequest) match.Result {
	var source *match.Source
	if o.Source != nil {
		source = &match.Source{UID: o.Source.UID, CreationTimestamp: o.Source.CreationTimestamp}
	}
	return match.Find(r, o.Approvals, source, o.Exists)
}

// uncovered leaves the request with the neutral status, and tells the giver why
// an approval that was meant for it does not cover the claim of now.
func (o *Observation) uncovered(m match.Result) Action {
	if write := o.neutral(); write != nil {
		return Action{Why: "no approval covers the request", Status: write}
	}
	if o.Source != nil && (m.Reason == match.ReasonSourceNotOlder || m.Reason == match.ReasonUIDMismatch) {
		refusal := &Refusal{Reason: Reason(m.Reason), Message: m.Misses[0].Message}
		if write := o.refusedApproval(m.Misses[0].Approval, v1alpha1.PhasePending, refusal); write != nil {
			write.Refusal = refusal
			return Action{Why: "the approval does not cover the claim of now", Status: write}
		}
	}
	return wait("no approval covers the request")
}

// preflight is for an approved request. Until the volume's driver is known any
// sidecar may report, and all report the same; after that only the driver's own.
func (o *Observation) preflight(approval *v1alpha1.NamespaceTransferApproval) Action {
	if o.reservedForGone(approval) && (o.Source == nil || o.Source.Status.Phase == corev1.ClaimLost) {
		return wait("the request that the approval was reserved for is gone, and so is the volume")
	}
	if o.Source == nil {
		return o.refuse(approval, nil, refuse(ReasonSourceNotFound, "PersistentVolumeClaim %s/%s does not exist", o.Request.Spec.Source.Namespace, o.Request.Spec.Source.Name))
	}
	s := subject{Observation: o}
	if refusal := sourceState(s); refusal != nil {
		return o.refuse(approval, nil, refusal)
	}
	if o.Crowded {
		return Action{Why: "many volumes are on their way", Wait: &Wait{Turn: true, At: o.Now.Add(o.PollInterval)}}
	}
	name := o.Source.Spec.VolumeName
	if o.Volume == nil || o.Volume.Name != name {
		return read("whose volume is it", Read{Volume: name})
	}
	if refusal := noCSIVolume(o.Volume, o.Source); refusal != nil {
		return o.refuse(approval, nil, refusal)
	}
	pv := o.Volume.PV
	switch {
	case pv.Spec.CSI.Driver != o.Driver.Name:
		return o.leave(approval, pv)
	case o.Facts == nil:
		return read("preflight", Read{Facts: true, Volume: name})
	}
	s.pv = pv
	if refusal := merge(preflight(s, sourceChecks, volumeChecks, factChecks, claimChecks)); refusal != nil {
		return o.refuse(approval, pv, refusal)
	}
	if o.Now.Before(o.NotBefore) {
		return until("rolled back before", o.NotBefore)
	}
	return o.start(approval, pv)
}

// reservedForGone reports whether an approval was reserved for a request that is
// gone. Only the sidecar of its driver knows whether the volume is in flight
// still, and then says that the approval is not free.
func (o *Observation) reservedForGone(approval *v1alpha1.NamespaceTransferApproval) bool {
	return approval.Status.Request != nil && !match.ReservedFor(approval, o.Request)
}

// refuse says on both objects why the transfer does not start, one write at a
// time, and then waits for a change.
func (o *Observation) refuse(approval *v1alpha1.NamespaceTransferApproval, pv *corev1.PersistentVolume, refusal *Refusal) Action {
	write := o.requestStatus(func(r *v1alpha1.NamespaceTransferRequest) {
		r.Status.Phase = v1alpha1.PhasePending
		o.approved(r, RefOf(approval), pv)
		o.refused(r, refusal)
	})
	if write == nil && o.first(approval) {
		write = o.refusedApproval(approval, v1alpha1.PhasePending, refusal)
	}
	if write == nil {
		return o.waitFor(refusal)
	}
	write.Refusal = refusal
	return Action{Why: "say why: " + string(refusal.Reason), Status: write}
}

// first reports whether an approval's status is about this request: of several
// that it covers the oldest.
func (o *Observation) first(approval *v1alpha1.NamespaceTransferApproval) bool {
	return !slices.ContainsFunc(o.Rivals, func(r *v1alpha1.NamespaceTransferRequest) bool {
		age := cmp.Or(r.CreationTimestamp.Compare(o.Request.CreationTimestamp.Time), cmp.Compare(r.Name, o.Request.Name))
		return age < 0 && !match.Completed(r) && o.find(r).Approval == approval
	})
}

func (o *Observation) waitFor(refusal *Refusal) Action {
	a := wait(string(refusal.Reason))
	a.Wait.Watch = refusal.Watch
	a.Wait.At = refusal.Until
	if refusal.Poll {
		a.Wait.At = earlier(a.Wait.At, o.Now.Add(o.PollInterval))
	}
	return a
}

// leave a volume to the sidecar of its driver. Where none has said anything for
// a while, say whose is awaited.
func (o *Observation) leave(approval *v1alpha1.NamespaceTransferApproval, pv *corev1.PersistentVolume) Action {
	why := "left to the sidecar of driver " + pv.Spec.CSI.Driver
	if o.Request.Status.Required != nil || o.reservedForGone(approval) {
		return wait(why) // it has reported, or does when it can
	}
	if due := later(o.Request.CreationTimestamp, approval.CreationTimestamp).Add(o.ReportDelay); o.WaitingFor() == "" && o.Now.Before(due) {
		return until(why, due)
	}
	return o.refuse(approval, nil, refuse(ReasonAwaitingDriverSidecar, "PersistentVolume %s belongs to driver %s", pv.Name, pv.Spec.CSI.Driver))
}

func later(a, b metav1.Time) time.Time {
	if a.After(b.Time) {
		return a.Time
	}
	return b.Time
}

// start reserves the approval and parks the volume. The request is told later,
// see flight.tell.
func (o *Observation) start(approval *v1alpha1.NamespaceTransferApproval, pv *corev1.PersistentVolume) Action {
	// Of two requests for one approval, the API server lets only one have it.
	if write := o.approvalStatus(approval, func(a *v1alpha1.NamespaceTransferApproval) {
		a.Status.Phase = v1alpha1.PhaseTransferring
		match.Reserve(a, o.Request, o.Source.UID)
		a.Status.Driver = o.Driver.Name
		match.SetCondition(a, &a.Status.Conditions, o.transferring(pv))
	}); write != nil {
		return Action{Why: "reserve the approval", Status: write}
	}
	return park(o, pv, approval, o.Receivers[0])
}

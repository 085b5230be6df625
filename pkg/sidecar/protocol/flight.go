// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/csi-transfer/csi-transfer/pkg/apis/transfer/v1alpha1"
)

// flight is a transfer whose volume is in flight.
type flight struct {
	*Observation
	pv *corev1.PersistentVolume
	j  *Journal
}

func (f flight) decide() Action {
	if f.pv.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain {
		return retain(f.pv)
	}
	switch f.j.position(f.pv) {
	case parked:
		if f.j.Bound {
			return f.afterBind()
		}
		return f.parked()
	case bound:
		return f.bound()
	case returning:
		if f.j.Bound {
			return repark("somebody handed the volume back, which the receiver may have written to", f.pv, *f.j)
		}
		return f.returning()
	case unowned:
		return repark("claimRef lost its UID", f.pv, *f.j)
	}
	ref := f.pv.Spec.ClaimRef
	return f.report(refuse(ReasonVolumeTaken, "spec.claimRef of PersistentVolume %s was set to %s %s/%s by %s", f.pv.Name, ref.Kind, ref.Namespace, ref.Name, claimRefWriter(f.pv)))
}

// request is the transfer's own, while it exists. Another may have its name by
// now, which has nothing to do with this volume.
func (f flight) request() *v1alpha1.NamespaceTransferRequest {
	if f.Request == nil || f.Request.UID != f.j.Request.UID {
		return nil
	}
	return f.Request
}

// source is the claim that gives, while it can still take the volume back.
func (f flight) source() *corev1.PersistentVolumeClaim {
	if f.Source == nil || f.Source.UID != f.j.Source.UID || f.Source.DeletionTimestamp != nil {
		return nil
	}
	return f.Source
}

// doomed reports whether the giving namespace is going away, so that what is
// handed back is as good as deleted.
func (f flight) doomed() bool { return f.live() && f.Facts.SourceNamespaceGone }

func (f flight) live() bool { return f.Facts != nil && f.Facts.Live }

func (f flight) readLive(why string) Action { return read(why, Read{Facts: true, Live: true}) }

// parked: the volume belongs to the request. It goes to the receiver when
// everything is in order and nothing can change any more, else back.
func (f flight) parked() Action {
	if back := f.cancelled(); back != nil {
		if !f.live() {
			return f.readLive("about to give the volume back")
		}
		return f.giveBack(back)
	}
	if f.pv.Status.Phase != corev1.VolumeReleased {
		return f.await("the binder has not released the volume yet")
	}
	// One that is about to go is Lost first, too: others look at its phase alone.
	if source := f.Source; source != nil && source.UID == f.j.Source.UID {
		if source.Annotations[v1alpha1.AnnotationTransferUID] != string(f.j.Request.UID) {
			return mark(source, f.j)
		}
		if source.Status.Phase != corev1.ClaimLost {
			return f.await("the source claim is not Lost yet")
		}
	}
	if !f.live() {
		if f.slow() {
			return f.tell()
		}
		return f.readLive("verify")
	}
	if off := f.calledOff(); off != nil { // and the source claim is gone
		return f.keep(f.j.Source, refuse(ReasonSourceDeleted, "PersistentVolumeClaim %s was deleted while PersistentVolume %s was in flight, and the transfer was called off (%s); the volume is kept with policy Retain", f.j.Source, f.pv.Name, off.Reason))
	}
	giver := f.source() != nil && !f.doomed()
	refusal := merge(f.verify(giver))
	switch {
	case refusal == nil && giver && f.Facts.OwnerRefused && f.Facts.Owner == RefOf(f.Receivers[0]):
		return giveBack(f.pv, *f.j, refuse(ReasonDriverRefused, "driver %s refuses %s as the owner of PersistentVolume %s: %s", f.Driver.Name, f.Facts.Owner, f.pv.Name, f.Facts.OwnerError))
	case refusal == nil && !f.owned(RefOf(f.Receivers[0])):
		return f.setOwner(f.j.Source, RefOf(f.Receivers[0]))
	case refusal == nil:
		return bind("verified", f.pv, *f.j, f.Receivers[0])
	case giver:
		return f.giveBack(refusal)
	}
	refusal.Message = "the source claim is gone and the volume is kept: " + refusal.Message
	return f.report(refusal)
}

// verify repeats the checks on what was read live. Where the giver is gone, what
// the claim's own state could tell no longer matters.
func (f flight) verify(giver bool) []*Refusal {
	groups := [][]check{volumeChecks, factChecks, claimChecks}
	if giver {
		groups = slices.Insert(groups, 0, sourceChecks)
	}
	return preflight(f.subject(giver), groups...)
}

// subject is what the checks look at. They name the claim that gave, whatever
// has its name now.
func (f flight) subject(giver bool) subject {
	o := *f.Observation
	if !giver {
		o.Source = &corev1.PersistentVolumeClaim{}
		o.Source.Namespace, o.Source.Name, o.Source.UID = f.j.Source.Namespace, f.j.Source.Name, f.j.Source.UID
	}
	return subject{Observation: &o, pv: f.pv, verify: true}
}

// cancelled says why the volume is to go back, if it is and can.
func (f flight) cancelled() *Refusal {
	if f.source() == nil {
		return nil
	}
	if off := f.calledOff(); off != nil {
		return off
	}
	if !f.doomed() && !f.Now.Before(f.deadline()) {
		return refuse(ReasonTimedOut, "PersistentVolume %s has been parked for %s (phase %s, source claim %s)", f.pv.Name, f.VerifyTimeout, f.pv.Status.Phase, sourcePhase(f.Source))
	}
	return nil
}

// calledOff says which side no longer agrees. An approval that goes with its
// namespace was not taken back.
func (f flight) calledOff() *Refusal {
	r := f.request()
	approved := slices.ContainsFunc(f.Approvals, func(a *v1alpha1.NamespaceTransferApproval) bool {
		return a.UID == f.j.Approval.UID && a.DeletionTimestamp == nil
	})
	switch {
	case r == nil || r.DeletionTimestamp != nil:
		return refuse(ReasonRequestDeleted, "%s %s was deleted", v1alpha1.RequestKind, f.j.Request)
	case !approved && !f.doomed():
		return refuse(ReasonApprovalWithdrawn, "%s %s was deleted", v1alpha1.ApprovalKind, f.j.Approval)
	}
	return nil
}

func sourcePhase(c *corev1.PersistentVolumeClaim) string {
	if c == nil {
		return "gone"
	}
	return string(c.Status.Phase)
}

func (f flight) deadline() time.Time { return f.j.Parked.Add(f.VerifyTimeout) }

// tellAfter is how long a transfer may take before its request says that it has
// started.
const tellAfter = 10 * time.Second

// slow reports whether the request is to be told now.
func (f flight) slow() bool { return !f.told() && !f.Now.Before(f.j.Parked.Add(tellAfter)) }

// await what the binder does next.
func (f flight) await(why string) Action {
	if f.slow() {
		return f.tell()
	}
	var deadline, due time.Time
	if !f.j.Bound && f.source() != nil {
		deadline = f.deadline()
	}
	if !f.told() {
		due = f.j.Parked.Add(tellAfter)
	}
	return until(why, earlier(deadline, due))
}

// giveBack tells the driver first. One that cannot be told does not keep the
// volume from its owner: it is told again before the end, see returning.
func (f flight) giveBack(r *Refusal) Action {
	if !f.owned(f.j.Source) && f.Facts.Owner != f.j.Source {
		return f.setOwner(f.j.Claim, f.j.Source)
	}
	return giveBack(f.pv, *f.j, r)
}

// owned reports whether the driver, if it keeps owners, has this one on record.
func (f flight) owned(owner Ref) bool {
	return !f.Driver.SetOwner || f.Facts.Owner == owner && f.Facts.OwnerError == ""
}

func (f flight) setOwner(from, to Ref) Action {
	if f.Facts.Owner == to {
		return f.report(f.untold())
	}
	return Action{Why: "the driver keeps owners", SetOwner: &SetOwner{Volume: f.pv, From: from, To: to, Transfer: f.j.Request}}
}

// untold says that the driver does not know the volume's owner.
func (f flight) untold() *Refusal {
	return refuse(ReasonDriverUnavailable, "driver %s could not be told that %s owns PersistentVolume %s: %s", f.Driver.Name, f.Facts.Owner, f.pv.Name, f.Facts.OwnerError).polled()
}

// receiver is the claim to which the volume was bound, while it exists.
func (f flight) receiver() *corev1.PersistentVolumeClaim {
	if f.Claim == nil || f.Claim.UID != f.j.Claim.UID {
		return nil
	}
	return f.Claim
}

// bound: there is no way back.
func (f flight) bound() Action {
	claim := f.receiver()
	switch {
	case claim == nil:
		return f.keepFromReceiver()
	case claim.Spec.VolumeName != "" && claim.Spec.VolumeName != f.pv.Name:
		return f.boundElsewhere()
	case claim.Spec.VolumeName == "" && f.pv.DeletionTimestamp != nil:
		return f.report(refuse(ReasonVolumeBeingDeleted, "PersistentVolume %s was deleted in flight, so that %s cannot be bound to it; it is kept with policy Retain", f.pv.Name, claimName(claim)))
	case claim.Spec.VolumeName == "" || claim.Status.Phase != corev1.ClaimBound || f.pv.Status.Phase != corev1.VolumeBound:
		return f.await("the binder has not bound the receiving claim yet")
	}
	if f.Now.Before(f.FinishAfter) {
		return until("others are on their way", f.FinishAfter)
	}
	if !f.told() {
		return f.tell()
	}
	// The request is completed when the volume is as it was before, if ever.
	if f.pv.DeletionTimestamp != nil {
		if a := f.complete(); a != nil {
			return *a
		}
	}
	if f.pv.DeletionTimestamp != nil {
		// Without our finalizer the object would be gone at once, under a claim
		// that uses it. It stays, with policy Retain, until the claim is deleted.
		return wait("the volume was deleted in flight and is kept until its claim is deleted")
	}
	// There is no way back, and once the volume is restored nothing but the request,
	// which may be gone by then, tells for whom the approval was reserved.
	if a := f.spend(f.j.Request.UID); a != nil {
		return *a
	}
	return restore("bound to the receiving claim", f.pv, f.j)
}

// complete tells of the end of the transfer those who are still there.
func (f flight) complete() *Action {
	if f.request() == nil {
		return f.spend(f.j.Request.UID)
	}
	return f.Observation.complete()
}

// afterBind: the volume was bound to the receiving claim and somebody took it
// from there. The receiver may have written to it, so it does not go back.
func (f flight) afterBind() Action {
	claim := f.receiver()
	switch {
	case claim == nil:
		return f.keepFromReceiver()
	case claim.Spec.VolumeName != "" && claim.Spec.VolumeName != f.pv.Name:
		return f.boundElsewhere()
	case !f.live():
		return f.readLive("about to bind again")
	}
	// It may have been the source claim's meanwhile.
	if refusal := pods(f.subject(false)); refusal != nil {
		return f.report(refusal)
	}
	return bind("bound before", f.pv, *f.j, claim)
}

// boundElsewhere: the receiving claim has another volume, for good, so that it
// never had this one and the transfer may still go back.
func (f flight) boundElsewhere() Action {
	j := *f.j
	j.Bound = false
	return repark("the receiving claim was bound to another volume", f.pv, j)
}

func (f flight) keepFromReceiver() Action {
	return f.keep(f.j.Claim, refuse(ReasonReceivingClaimDeleted, "PersistentVolumeClaim %s was deleted; PersistentVolume %s is kept with policy Retain", f.j.Claim, f.pv.Name))
}

// keep ends a transfer whose volume was last a claim's that its user deleted.
func (f flight) keep(last Ref, refusal *Refusal) Action {
	if !f.live() {
		return f.readLive(fmt.Sprintf("claim %s seems gone", last))
	}
	if a := f.statuses(v1alpha1.PhasePending, refusal); a != nil {
		return *a
	}
	return abandon(f.pv, last, refusal)
}

// returning: the volume belongs to the source claim again.
func (f flight) returning() Action {
	source := f.Source
	if source == nil || source.UID != f.j.Source.UID {
		return f.keep(f.j.Source, refuse(ReasonSourceDeleted, "PersistentVolumeClaim %s was deleted while PersistentVolume %s was handed back to it; the volume is kept with policy Retain", f.j.Source, f.pv.Name))
	}
	switch {
	case f.pv.Status.Phase != corev1.VolumeBound:
		return wait("the binder has not bound the source claim yet")
	case source.Annotations[v1alpha1.AnnotationTransferUID] == string(f.j.Request.UID):
		return unmark(source)
	case source.Status.Phase != corev1.ClaimBound:
		return wait("the source claim is not Bound yet")
	}
	refusal := &Refusal{Reason: f.j.Reason, Message: f.j.Message}
	if refusal.Reason == "" {
		refusal = &Refusal{Reason: ReasonVolumeTaken, Message: fmt.Sprintf("PersistentVolume %s was handed back to %s by %s; the transfer is tried again", f.pv.Name, claimName(source), claimRefWriter(f.pv))}
	}
	// Whoever handed the volume back, a driver that keeps owners may have another
	// on record. The claim can be used meanwhile, as far as the driver lets it.
	switch {
	case !f.Driver.SetOwner:
	case !f.live():
		return f.readLive("does the driver know the owner")
	case f.Facts.Owner != f.j.Source:
		return f.setOwner(f.j.Claim, f.j.Source)
	case f.Facts.OwnerError != "":
		refusal = f.untold()
		if a := f.statuses(v1alpha1.PhasePending, refusal); a != nil {
			return *a
		}
		return f.waitFor(refusal)
	}
	if a := f.statuses(v1alpha1.PhasePending, refusal); a != nil {
		return *a
	}
	switch {
	case f.pv.DeletionTimestamp != nil:
		return wait("the volume was deleted in flight and is kept until its claim is deleted")
	case !f.live():
		// A cache may show the claim as it was before it was marked.
		return f.readLive("about to restore")
	}
	return restore("bound to the source claim again", f.pv, f.j)
}

// report says on the transfer's objects why it does not go on, and waits.
func (f flight) report(r *Refusal) Action {
	if a := f.statuses(v1alpha1.PhaseTransferring, r); a != nil {
		return *a
	}
	return f.waitFor(r)
}

// claimRefWriter names who last wrote claimRef, as the API server recorded it.
func claimRefWriter(pv *corev1.PersistentVolume) string {
	for _, entry := range slices.Backward(pv.ManagedFields) {
		if managesSpecField(entry, "claimRef") {
			return entry.Manager
		}
	}
	return "an unknown writer"
}

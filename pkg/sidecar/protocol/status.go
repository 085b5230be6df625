// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/csi-transfer/csi-transfer/pkg/apis/transfer/v1alpha1"
	"github.com/csi-transfer/csi-transfer/pkg/match"
)

// The texts of a request that is not approved. They are the same whatever the
// source is, and equal the defaults of the CRD.
const (
	neutralApproved    = "No NamespaceTransferApproval in the source namespace covers this request yet; ask a user with rights there to create one"
	neutralTransferred = "Waiting for an approval"
)

func (o *Observation) condition(conditionType string, status metav1.ConditionStatus, reason, message string) metav1.Condition {
	return metav1.Condition{
		Type: conditionType, Status: status, Reason: reason, Message: message, LastTransitionTime: metav1.NewTime(o.Now),
	}
}

// transferring is the condition of a transfer that has started.
func (o *Observation) transferring(pv *corev1.PersistentVolume) metav1.Condition {
	return o.condition(v1alpha1.ConditionTransferred, metav1.ConditionFalse, v1alpha1.ReasonTransferring, "PersistentVolume "+pv.Name+" is in flight")
}

// requestStatus returns the write that gives the request's status what change does to
// it, or nil where it has that already.
func (o *Observation) requestStatus(change func(*v1alpha1.NamespaceTransferRequest)) *Status {
	if o.Request == nil {
		return nil
	}
	r := o.Request.DeepCopy()
	change(r)
	if apiequality.Semantic.DeepEqual(r.Status, o.Request.Status) {
		return nil
	}
	return &Status{Request: r}
}

func (o *Observation) approvalStatus(approval *v1alpha1.NamespaceTransferApproval, change func(*v1alpha1.NamespaceTransferApproval)) *Status {
	if approval == nil {
		return nil
	}
	a := approval.DeepCopy()
	change(a)
	if apiequality.Semantic.DeepEqual(a.Status, approval.Status) {
		return nil
	}
	return &Status{Approval: a}
}

// neutral takes the request's status back to what the CRD's default says.
func (o *Observation) neutral() *Status {
	return o.requestStatus(func(r *v1alpha1.NamespaceTransferRequest) {
		r.Status.Phase = v1alpha1.PhasePending
		r.Status.Required, r.Status.VolumeName, r.Status.StartTime = nil, "", nil
		match.SetCondition(r, &r.Status.Conditions, o.condition(v1alpha1.ConditionApproved, metav1.ConditionFalse, v1alpha1.ReasonNoApproval, neutralApproved))
		match.SetCondition(r, &r.Status.Conditions, o.condition(v1alpha1.ConditionTransferred, metav1.ConditionFalse, v1alpha1.ReasonNoApproval, neutralTransferred))
	})
}

// approved says on a request which approval covers it and, once the volume is
// known, what the receiving claim must ask for.
func (o *Observation) approved(r *v1alpha1.NamespaceTransferRequest, approval Ref, pv *corev1.PersistentVolume) {
	match.SetCondition(r, &r.Status.Conditions, o.condition(v1alpha1.ConditionApproved, metav1.ConditionTrue, v1alpha1.ReasonApproved,
		v1alpha1.ApprovalKind+" "+approval.String()+" covers this request"))
	if pv != nil {
		r.Status.Required = Required(pv)
	}
}

// Required is what a claim must ask for to receive a volume.
func Required(pv *corev1.PersistentVolume) *v1alpha1.RequiredClaim {
	return &v1alpha1.RequiredClaim{
		Capacity:                  pv.Spec.Capacity[corev1.ResourceStorage],
		StorageClassName:          pv.Spec.StorageClassName,
		VolumeMode:                ptr.Deref(pv.Spec.VolumeMode, corev1.PersistentVolumeFilesystem),
		AccessModes:               pv.Spec.AccessModes,
		VolumeAttributesClassName: ptr.Deref(pv.Spec.VolumeAttributesClassName, ""),
	}
}

// refused says on a request why its transfer does not go on.
func (o *Observation) refused(r *v1alpha1.NamespaceTransferRequest, refusal *Refusal) {
	match.SetCondition(r, &r.Status.Conditions, o.condition(v1alpha1.ConditionTransferred, metav1.ConditionFalse, string(refusal.Reason), refusal.Message))
}

// refusedApproval mirrors a refusal for the giver, who may not see the request.
// That the receiver has not made its claim yet is no news to the giver.
func (o *Observation) refusedApproval(approval *v1alpha1.NamespaceTransferApproval, phase v1alpha1.Phase, refusal *Refusal) *Status {
	if approval != nil && len(approval.Status.Conditions) == 0 && refusal.Reason == ReasonReceivingClaimMissing {
		return nil
	}
	return o.approvalStatus(approval, func(a *v1alpha1.NamespaceTransferApproval) {
		a.Status.Phase = phase
		match.SetCondition(a, &a.Status.Conditions, o.condition(v1alpha1.ConditionTransferred, metav1.ConditionFalse, string(refusal.Reason), refusal.Message))
	})
}

// started says on the request that its transfer has. By volumeName the transfer
// is known when the volume is in flight no more.
func (f flight) started(r *v1alpha1.NamespaceTransferRequest) {
	r.Status.Phase = v1alpha1.PhaseTransferring
	r.Status.VolumeName = f.pv.Name
	r.Status.StartTime = ptr.To(f.startTime())
	f.approved(r, f.j.Approval, f.pv)
}

// startTime is when the volume was parked, as precisely as a status has it.
func (f flight) startTime() metav1.Time { return metav1.NewTime(f.j.Parked.Truncate(time.Second)) }

// told reports whether the request says that this transfer has started. To say so
// is one of the dearest writes of a transfer, and most are over before anybody
// has read it: so it is put off until nobody waits for the volume any more.
func (f flight) told() bool {
	r := f.request()
	return r == nil || match.Completed(r) || r.Status.VolumeName == f.pv.Name && r.Status.StartTime != nil && r.Status.StartTime.Equal(ptr.To(f.startTime()))
}

// tell the request that its transfer has started.
func (f flight) tell() Action {
	return Action{Why: "say that it has started", Status: f.requestStatus(func(r *v1alpha1.NamespaceTransferRequest) {
		f.started(r)
		match.SetCondition(r, &r.Status.Conditions, f.transferring(f.pv))
	})}
}

// statuses brings request and approval to a phase and a refusal, one write at a
// time, and returns nil when both say it. What is completed stays so.
func (f flight) statuses(phase v1alpha1.Phase, refusal *Refusal) *Action {
	var write *Status
	if r := f.request(); r != nil && !match.Completed(r) {
		write = f.requestStatus(func(r *v1alpha1.NamespaceTransferRequest) {
			f.started(r)
			r.Status.Phase = phase
			f.refused(r, refusal)
		})
	}
	if write == nil {
		for _, a := range f.Approvals {
			if a.UID == f.j.Approval.UID && !match.Spent(a) {
				write = f.refusedApproval(a, phase, refusal)
			}
		}
	}
	if write == nil {
		return nil
	}
	write.Refusal = refusal
	return &Action{Why: "say why: " + string(refusal.Reason), Status: write}
}

// complete brings the request, then the approval, to Completed, and returns nil
// when both are.
func (o *Observation) complete() *Action {
	write := o.requestStatus(func(r *v1alpha1.NamespaceTransferRequest) {
		if match.Completed(r) {
			return
		}
		r.Status.Phase = v1alpha1.PhaseCompleted
		r.Status.CompletionTime = ptr.To(metav1.NewTime(o.Now))
		match.SetCondition(r, &r.Status.Conditions, o.condition(v1alpha1.ConditionTransferred, metav1.ConditionTrue, v1alpha1.ReasonTransferred,
			"PersistentVolume "+r.Status.VolumeName+" has moved here"))
	})
	if write == nil {
		return o.spend(o.Request.UID)
	}
	write.Completed = true
	return &Action{Why: "the volume has moved", Status: write}
}

// spend brings the approval that is reserved for a request to Completed.
func (o *Observation) spend(request types.UID) *Action {
	for _, approval := range o.Approvals {
		if approval.Status.Request == nil || approval.Status.Request.UID != request {
			continue
		}
		write := o.approvalStatus(approval, func(a *v1alpha1.NamespaceTransferApproval) {
			if match.Spent(a) {
				return
			}
			a.Status.Phase = v1alpha1.PhaseCompleted
			match.SetCondition(a, &a.Status.Conditions, o.condition(v1alpha1.ConditionTransferred, metav1.ConditionTrue, v1alpha1.ReasonTransferred,
				"the source has moved to namespace "+a.Spec.TargetNamespace+" and this approval is spent"))
		})
		if write != nil {
			write.Completed = true
			return &Action{Why: "the approval is spent", Status: write}
		}
	}
	return nil
}

// WriteRefused is the write that says that the API server refuses a step, or
// nil where the request says so already, is complete or gone.
func (o *Observation) WriteRefused(err error) *Status {
	if j := o.journal(); o.Request == nil || match.Completed(o.Request) || j != nil && j.Request.UID != o.Request.UID {
		return nil
	}
	refusal := refuse(ReasonWriteRefused, "the API server refuses a write: %s", truncate(err.Error(), 1024))
	write := o.requestStatus(func(r *v1alpha1.NamespaceTransferRequest) {
		if approval := o.find(r).Approval; approval != nil && o.Volume != nil {
			o.approved(r, RefOf(approval), o.Volume.PV)
		}
		o.refused(r, refusal)
	})
	if write != nil {
		write.Refusal = refusal
	}
	return write
}

// WaitingFor is the reason that the request's condition gives while it is
// approved and not transferred.
func (o *Observation) WaitingFor() string {
	if o.Request == nil || !meta.IsStatusConditionTrue(o.Request.Status.Conditions, v1alpha1.ConditionApproved) {
		return ""
	}
	if c := meta.FindStatusCondition(o.Request.Status.Conditions, v1alpha1.ConditionTransferred); c != nil && c.Status == metav1.ConditionFalse {
		return c.Reason
	}
	return ""
}

// OfOtherDriver reports whether the volume is known to be another driver's.
func (o *Observation) OfOtherDriver() bool {
	return o.Volume != nil && o.Volume.PV != nil && o.Volume.PV.Spec.CSI != nil && o.Volume.PV.Spec.CSI.Driver != o.Driver.Name
}

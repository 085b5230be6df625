// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package sidecar

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/csi-transfer/csi-transfer/pkg/apis/transfer/v1alpha1"
	"github.com/csi-transfer/csi-transfer/pkg/sidecar/protocol"
)

// fieldManager is the name under which the API server records our writes.
const fieldManager = "csi-transfer"

// What is written has no unknown fields, so that the API server need not decode
// it twice to look for them.
var (
	patchOptions  = metav1.PatchOptions{FieldManager: fieldManager, FieldValidation: metav1.FieldValidationIgnore}
	updateOptions = metav1.UpdateOptions{FieldManager: fieldManager, FieldValidation: metav1.FieldValidationIgnore}
)

// Reasons of events that are no refusals.
const (
	eventTransferred = "Transferred"
	eventRolledBack  = "TransferRolledBack"
)

// act performs one action and returns what of the observation still holds after
// it, so that it need not be read again: each step that depends on it is guarded
// by the resourceVersion of the volume.
func (c *Controller) act(ctx context.Context, o *protocol.Observation, a protocol.Action) (*protocol.Observation, error) {
	switch {
	case a.Patch != nil:
		volume, err := c.patch(ctx, o, a.Patch)
		return &protocol.Observation{Volume: volume}, err
	case a.Status != nil:
		kept := &protocol.Observation{Volume: o.Volume}
		if o.Facts != nil && !o.Facts.Live {
			kept.Facts = o.Facts
		}
		return kept, c.writeStatus(ctx, o, a.Status)
	case a.SetOwner != nil:
		c.asker.setOwner(c.base, o.Name, a.SetOwner)
	}
	return nil, nil
}

func (c *Controller) patch(ctx context.Context, o *protocol.Observation, p *protocol.Patch) (*protocol.Volume, error) {
	if p.Claim != nil {
		name := types.NamespacedName{Namespace: p.Claim.Namespace, Name: p.Claim.Name}
		written, err := c.core.PersistentVolumeClaims(name.Namespace).Patch(ctx, name.Name, types.MergePatchType, p.Data, patchOptions)
		if apierrors.IsConflict(err) {
			c.refreshClaim(ctx, name)
		}
		if err != nil {
			return nil, fmt.Errorf("%s of PersistentVolumeClaim %s: %w", p.Step, name, err)
		}
		c.wroteClaim(written)
		return nil, nil
	}
	written, err := c.core.PersistentVolumes().Patch(ctx, p.Volume.Name, types.MergePatchType, p.Data, patchOptions)
	if apierrors.IsConflict(err) {
		c.refreshVolume(ctx, p.Volume.Name)
	}
	if err != nil {
		return nil, fmt.Errorf("%s of PersistentVolume %s: %w", p.Step, p.Volume.Name, err)
	}
	c.volumes.recent.Mutation(written)
	c.record(o, p)
	return &protocol.Volume{Name: written.Name, PV: written}, nil
}

// record tells people and metrics about a step that ends an attempt.
func (c *Controller) record(o *protocol.Observation, p *protocol.Patch) {
	j, err := protocol.ParseJournal(p.Volume, c.settings.Driver.Name)
	if err != nil || j == nil {
		return
	}
	switch p.Step {
	case protocol.Return:
		if p.Refusal.Reason != protocol.ReasonApprovalWithdrawn { // then it may start as soon as it is approved again
			c.holdoff.failed(o.Name, c.now())
		}
		c.metrics.ended(resultRolledBack, string(p.Refusal.Reason))
		c.event(corev1.EventTypeWarning, eventRolledBack, fmt.Sprintf("PersistentVolume %s goes back to %s: %s", p.Volume.Name, j.Source, p.Refusal.Message),
			claimObject(j.Source), claimObject(j.Claim), requestObject(o.Request))
	case protocol.Abandon:
		c.metrics.ended(resultAbandoned, "")
		c.event(corev1.EventTypeWarning, string(p.Refusal.Reason), p.Refusal.Message, p.Volume, requestObject(o.Request))
	case protocol.Repark, protocol.Retain:
		c.event(corev1.EventTypeWarning, string(p.Step), fmt.Sprintf("somebody changed the volume while it was in flight (request %s); changed back", j.Request), p.Volume, requestObject(o.Request))
	case protocol.Restore:
		switch {
		case j.Bound:
			c.metrics.took(c.now().Sub(j.Parked.Time))
		case j.Reason == "": // somebody else handed it back, and may do so again
			c.holdoff.failed(o.Name, c.now())
		}
	}
}

func (c *Controller) writeStatus(ctx context.Context, o *protocol.Observation, s *protocol.Status) error {
	if s.Request != nil {
		written, err := c.transfer.NamespaceTransferRequests(s.Request.Namespace).UpdateStatus(ctx, s.Request, updateOptions)
		if err != nil {
			if apierrors.IsConflict(err) {
				if fresh, err := c.transfer.NamespaceTransferRequests(s.Request.Namespace).Get(ctx, s.Request.Name, metav1.GetOptions{}); err == nil {
					c.requests.recent.Mutation(fresh)
				}
			}
			return fmt.Errorf("status of %s %s/%s: %w", v1alpha1.RequestKind, s.Request.Namespace, s.Request.Name, err)
		}
		c.requests.recent.Mutation(written)
	} else {
		written, err := c.transfer.NamespaceTransferApprovals(s.Approval.Namespace).UpdateStatus(ctx, s.Approval, updateOptions)
		if err != nil {
			if apierrors.IsConflict(err) {
				if fresh, err := c.transfer.NamespaceTransferApprovals(s.Approval.Namespace).Get(ctx, s.Approval.Name, metav1.GetOptions{}); err == nil {
					c.approvals.recent.Mutation(fresh)
				}
			}
			return fmt.Errorf("status of %s %s/%s: %w", v1alpha1.ApprovalKind, s.Approval.Namespace, s.Approval.Name, err)
		}
		c.approvals.recent.Mutation(written)
	}
	c.recordStatus(o, s)
	return nil
}

func (c *Controller) recordStatus(o *protocol.Observation, s *protocol.Status) {
	var objects []runtime.Object
	if s.Request != nil {
		objects = append(objects, s.Request)
		if o.Source != nil {
			objects = append(objects, o.Source)
		}
		for _, r := range o.Receivers {
			objects = append(objects, r)
		}
	} else {
		objects = append(objects, s.Approval)
	}
	switch {
	case s.Completed && s.Request != nil:
		c.metrics.ended(resultCompleted, "")
		c.event(corev1.EventTypeNormal, eventTransferred, moved(s.Request.Spec.Source.Namespace, s.Request.Spec.Source.Name, o.Name), objects...)
	case s.Completed: // the request may be gone
		c.event(corev1.EventTypeNormal, eventTransferred, moved(s.Approval.Namespace, s.Approval.Spec.Source.Name, o.Name), objects...)
	case s.Refusal != nil:
		kind := corev1.EventTypeWarning
		if s.Refusal.Reason == protocol.ReasonReceivingClaimMissing {
			kind = corev1.EventTypeNormal
		}
		c.event(kind, string(s.Refusal.Reason), s.Refusal.Message, objects...)
	}
}

func moved(namespace, name string, request types.NamespacedName) string {
	return fmt.Sprintf("%s/%s has moved to namespace %s by request %s", namespace, name, request.Namespace, request.Name)
}

func (c *Controller) event(kind, reason, message string, objects ...runtime.Object) {
	for _, o := range objects {
		if o != nil {
			c.recorder.Event(o, kind, reason, message)
		}
	}
}

func claimObject(r protocol.Ref) runtime.Object {
	return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: r.Namespace, Name: r.Name, UID: r.UID}}
}

// requestObject avoids an interface that holds a nil pointer.
func requestObject(r *v1alpha1.NamespaceTransferRequest) runtime.Object {
	if r == nil {
		return nil
	}
	return r
}

// refreshVolume and refreshClaim replace what turned out to be stale, so that a
// conflict costs one read and not the wait for an event.
func (c *Controller) refreshVolume(ctx context.Context, name string) {
	if pv, err := c.core.PersistentVolumes().Get(ctx, name, metav1.GetOptions{}); err == nil {
		c.volumes.recent.Mutation(pv)
	} else {
		klog.FromContext(ctx).V(2).Info("Cannot refresh volume after a conflict", "volume", name, "err", err)
	}
}

func (c *Controller) refreshClaim(ctx context.Context, key types.NamespacedName) {
	if claim, err := c.core.PersistentVolumeClaims(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{}); err == nil {
		c.wroteClaim(claim)
	} else {
		klog.FromContext(ctx).V(2).Info("Cannot refresh claim after a conflict", "claim", key, "err", err)
	}
}

func (c *Controller) wroteClaim(claim *corev1.PersistentVolumeClaim) {
	if w := c.watches.scope(claimsIn(claim.Namespace)); w != nil {
		w.recent.Mutation(claim)
	}
}

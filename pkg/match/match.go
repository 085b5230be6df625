// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

// Package match finds the NamespaceTransferApproval that covers a
// NamespaceTransferRequest. It knows nothing of the kind of object that moves,
// so that any transfer controller can use it, and it does no I/O.
package match

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csi-transfer/csi-transfer/pkg/apis/transfer/v1alpha1"
)

// Source is what the caller knows of the object that a request asks for.
type Source struct {
	UID               types.UID
	CreationTimestamp metav1.Time
}

// Result says which approval covers a request, or why none does.
type Result struct {
	// Approval covers the request. Nil: none does.
	Approval *v1alpha1.NamespaceTransferApproval

	// Verified: the approval covers the very object that the caller gave as
	// source and is not spent. Without it the giver has agreed to the names only,
	// and nothing must be started.
	Verified bool

	// Reason says why no approval covers the request: that of the first miss,
	// ReasonNoApproval if there is none. Empty if one does.
	Reason Reason

	// Misses are the approvals for this source and receiving namespace, where
	// none of them covers the request, the nearest first. They are for the giver,
	// who can read approvals. The requester must not learn of them, nor of
	// Reason, nor whether the source exists.
	Misses []Miss
}

// Miss is an approval that does not cover the request.
type Miss struct {
	Approval *v1alpha1.NamespaceTransferApproval
	Reason   Reason
	// Message tells the giver what is in the way and what to do.
	Message string
}

// Reason says why a request is not covered.
type Reason string

const (
	// ReasonNoApproval: no approval is for this source and receiving namespace.
	ReasonNoApproval Reason = v1alpha1.ReasonNoApproval
	// ReasonRequestDeleting: the request is being deleted.
	ReasonRequestDeleting Reason = "RequestDeleting"
	// ReasonOtherApprovalNamed: the request accepts an approval of another name only.
	ReasonOtherApprovalNamed Reason = "OtherApprovalNamed"
	// ReasonOtherRequestNamed: the approval is for a request of another name only.
	ReasonOtherRequestNamed Reason = "OtherRequestNamed"
	// ReasonApprovalDeleting: the approval is being taken back.
	ReasonApprovalDeleting Reason = "ApprovalDeleting"
	// ReasonSpent: the approval has served another request.
	ReasonSpent Reason = "Spent"
	// ReasonReservedForOther: the approval is reserved for another request,
	// which still exists.
	ReasonReservedForOther Reason = "ReservedForOther"
	// ReasonUIDMismatch: the source is not the object that the approval pins.
	ReasonUIDMismatch Reason = "UIDMismatch"
	// ReasonSourceNotOlder: the approval pins no object, and the source was not
	// there before it.
	ReasonSourceNotOlder Reason = "SourceNotOlder"
)

// nearness orders misses: the later a rule, the less is missing.
var nearness = []Reason{
	ReasonOtherApprovalNamed,
	ReasonOtherRequestNamed,
	ReasonApprovalDeleting,
	ReasonSpent,
	ReasonReservedForOther,
	ReasonUIDMismatch,
	ReasonSourceNotOlder,
}

// Find returns the approval that covers request.
//
// approvals are those of the giving namespace, request.spec.source.namespace;
// others are ignored. source is the object that the request names, nil if it
// does not exist or is not known. exists says whether the request of this UID
// still exists, or anything of its transfer that is not over.
//
// Where several approvals cover the request, the one reserved for it is taken,
// then the oldest, then the first by name.
func Find(
	request *v1alpha1.NamespaceTransferRequest,
	approvals []*v1alpha1.NamespaceTransferApproval,
	source *Source,
	exists func(v1alpha1.RequestReference) bool,
) Result {
	if request.DeletionTimestamp != nil {
		return Result{Reason: ReasonRequestDeleting}
	}
	var covering []*v1alpha1.NamespaceTransferApproval
	var misses []Miss
	for _, approval := range approvals {
		if !sameSource(approval, request) {
			continue
		}
		if reason, message := refuse(approval, request, source, exists); reason != "" {
			misses = append(misses, Miss{Approval: approval, Reason: reason, Message: message})
			continue
		}
		covering = append(covering, approval)
	}

	if len(covering) > 0 {
		best := slices.MinFunc(covering, func(a, b *v1alpha1.NamespaceTransferApproval) int {
			return cmp.Or(cmp.Compare(preference(a, request), preference(b, request)), byAge(a, b))
		})
		return Result{Approval: best, Verified: source != nil && !Spent(best)}
	}
	if len(misses) > 0 {
		slices.SortFunc(misses, func(a, b Miss) int {
			return cmp.Or(
				cmp.Compare(slices.Index(nearness, b.Reason), slices.Index(nearness, a.Reason)),
				byAge(a.Approval, b.Approval))
		})
		return Result{Reason: misses[0].Reason, Misses: misses}
	}
	return Result{Reason: ReasonNoApproval}
}

// Candidates returns those of requests that approval may cover as far as names
// tell, completed ones left out: the ones to look at again when the approval
// appears, changes or goes.
func Candidates(
	approval *v1alpha1.NamespaceTransferApproval,
	requests []*v1alpha1.NamespaceTransferRequest,
) []*v1alpha1.NamespaceTransferRequest {
	var candidates []*v1alpha1.NamespaceTransferRequest
	for _, request := range requests {
		if sameSource(approval, request) && acceptsApproval(request, approval) && acceptsRequest(approval, request) && !Completed(request) {
			candidates = append(candidates, request)
		}
	}
	return candidates
}

// refuse returns why approval, which is for the request's source and
// namespace, does not cover the request; no reason means that it does.
func refuse(
	approval *v1alpha1.NamespaceTransferApproval,
	request *v1alpha1.NamespaceTransferRequest,
	source *Source,
	exists func(v1alpha1.RequestReference) bool,
) (Reason, string) {
	reserved := approval.Status.Request
	switch {
	case !acceptsApproval(request, approval):
		return ReasonOtherApprovalNamed, fmt.Sprintf(
			"Request %s/%s accepts only an approval with the name %s; create that one, or ask for a request without approvalName",
			request.Namespace, request.Name, request.Spec.ApprovalName)

	case !acceptsRequest(approval, request):
		return ReasonOtherRequestNamed, fmt.Sprintf(
			"This approval is only for a request with the name %s, not for %s/%s; create another approval to give the object to that one",
			approval.Spec.RequestName, request.Namespace, request.Name)

	case approval.DeletionTimestamp != nil:
		return ReasonApprovalDeleting, "This approval is being deleted"

	case Spent(approval):
		// The request that spent it may still have to be told: whatever bears the
		// source's name by now is none of its business.
		if ReservedFor(approval, request) {
			return "", ""
		}
		return ReasonSpent, "This approval has served its transfer; create another to give an object again"

	case reserved != nil && !ReservedFor(approval, request) && exists(*reserved):
		return ReasonReservedForOther, fmt.Sprintf(
			"This approval is reserved for request %s/%s; create another approval, or wait until that request is deleted",
			reserved.Namespace, reserved.Name)
	}
	if source == nil {
		return "", ""
	}
	return refuseSource(approval, source)
}

// refuseSource is the rule that an object is given away only by an approval
// that was made for it, not for another one under the same name.
func refuseSource(approval *v1alpha1.NamespaceTransferApproval, source *Source) (Reason, string) {
	named := approval.Spec.Source
	// Once reserved, the approval stays with the object that it was reserved for.
	if pin := cmp.Or(named.UID, approval.Status.ClaimUID); pin != "" {
		if pin == source.UID {
			return "", ""
		}
		return ReasonUIDMismatch, fmt.Sprintf(
			"This approval is for the %s %s with UID %s, but now one with UID %s has that name; create another approval to give that one",
			named.Kind, named.Name, pin, source.UID)
	}
	// Timestamps count whole seconds. Within the same one nobody can tell whether
	// the approval was made for this object or for one before it, and refusing
	// costs the giver a new approval where the contrary can cost the data.
	if !source.CreationTimestamp.IsZero() && source.CreationTimestamp.Before(&approval.CreationTimestamp) {
		return "", ""
	}
	return ReasonSourceNotOlder, fmt.Sprintf(
		"Without spec.source.uid this approval, created %s, covers only an object created in an earlier second, but the %s %s was created %s; create another approval, best with uid: %s",
		timestamp(approval.CreationTimestamp), named.Kind, named.Name, timestamp(source.CreationTimestamp), source.UID)
}

func sameSource(approval *v1alpha1.NamespaceTransferApproval, request *v1alpha1.NamespaceTransferRequest) bool {
	return approval.Namespace == request.Spec.Source.Namespace &&
		approval.Spec.TargetNamespace == request.Namespace &&
		approval.Spec.Source.SourceReference == request.Spec.Source.SourceReference
}

func acceptsApproval(request *v1alpha1.NamespaceTransferRequest, approval *v1alpha1.NamespaceTransferApproval) bool {
	return request.Spec.ApprovalName == "" || request.Spec.ApprovalName == approval.Name
}

func acceptsRequest(approval *v1alpha1.NamespaceTransferApproval, request *v1alpha1.NamespaceTransferRequest) bool {
	return approval.Spec.RequestName == "" || approval.Spec.RequestName == request.Name
}

func preference(approval *v1alpha1.NamespaceTransferApproval, request *v1alpha1.NamespaceTransferRequest) int {
	if ReservedFor(approval, request) {
		return 0
	}
	return 1
}

func byAge(a, b *v1alpha1.NamespaceTransferApproval) int {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
}

func timestamp(t metav1.Time) string { return t.UTC().Format(time.RFC3339) }

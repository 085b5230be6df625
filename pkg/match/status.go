// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package match

import (
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csi-transfer/csi-transfer/pkg/apis/transfer/v1alpha1"
)

// Completed says whether the request's object has moved. Terminal.
func Completed(request *v1alpha1.NamespaceTransferRequest) bool {
	return meta.IsStatusConditionTrue(request.Status.Conditions, v1alpha1.ConditionTransferred)
}

// Spent says whether the approval has served its transfer. Terminal.
func Spent(approval *v1alpha1.NamespaceTransferApproval) bool {
	return meta.IsStatusConditionTrue(approval.Status.Conditions, v1alpha1.ConditionTransferred)
}

// ReservedFor says whether the approval is reserved for this very request, or
// was spent by it.
func ReservedFor(approval *v1alpha1.NamespaceTransferApproval, request *v1alpha1.NamespaceTransferRequest) bool {
	return approval.Status.Request != nil && approval.Status.Request.UID == request.UID
}

// Reserve notes in the approval's status that request moves the object with
// sourceUID, and says whether the status changed. From then on the approval
// covers only that object, and no other request while this one exists.
func Reserve(approval *v1alpha1.NamespaceTransferApproval, request *v1alpha1.NamespaceTransferRequest, sourceUID types.UID) bool {
	if ReservedFor(approval, request) && approval.Status.ClaimUID == sourceUID {
		return false
	}
	approval.Status.Request = &v1alpha1.RequestReference{Namespace: request.Namespace, Name: request.Name, UID: request.UID}
	approval.Status.ClaimUID = sourceUID
	return true
}

// SetCondition sets one of object's conditions, observed at object's present
// generation, and says whether that changed anything. The transition time is
// condition's, or now if that is zero, and stays what it was while the status
// does.
func SetCondition(object metav1.Object, conditions *[]metav1.Condition, condition metav1.Condition) bool {
	condition.ObservedGeneration = object.GetGeneration()
	return meta.SetStatusCondition(conditions, condition)
}

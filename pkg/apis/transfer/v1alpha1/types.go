// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Phase is a summary of the conditions, for people and for admission policies.
// The controller itself decides by conditions.
//
// +kubebuilder:validation:Enum=Pending;Transferring;Completed
type Phase string

const (
	// PhasePending: nothing has been changed yet, or everything was undone. The
	// conditions say what is waited for.
	PhasePending Phase = "Pending"
	// PhaseTransferring: the volume is in flight.
	PhaseTransferring Phase = "Transferring"
	// PhaseCompleted: the object has moved. Terminal.
	PhaseCompleted Phase = "Completed"
)

// Condition types of both kinds.
const (
	// ConditionApproved, on a request, says whether an approval covers it.
	ConditionApproved = "Approved"
	// ConditionTransferred says whether the object has moved, and until it has,
	// why not.
	ConditionTransferred = "Transferred"
)

// Condition reasons that every transfer controller uses. Controllers add
// reasons of their own for refusals.
const (
	// ReasonNoApproval is what a request says until an approval covers it,
	// whether or not its source exists.
	ReasonNoApproval = "NoApproval"
	// ReasonApproved: an approval covers the request.
	ReasonApproved = "Approved"
	// ReasonTransferring: the transfer has started.
	ReasonTransferring = "Transferring"
	// ReasonTransferred: the transfer is complete.
	ReasonTransferred = "Transferred"
)

// RequestSource names the object that a request asks for.
type RequestSource struct {
	// namespace of the object: the giving namespace. It may be the request's own,
	// which makes the transfer a rename.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Namespace string `json:"namespace"`

	SourceReference `json:",inline"`
}

// SourceReference names an object within a namespace.
type SourceReference struct {
	// apiGroup of the object; omitted for the core group.
	//
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	APIGroup string `json:"apiGroup,omitempty"`

	// kind of the object, for instance PersistentVolumeClaim.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Kind string `json:"kind"`

	// name of the object.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// NamespaceTransferRequestSpec is what the receiver asks for.
type NamespaceTransferRequestSpec struct {
	// source is the object asked for.
	Source RequestSource `json:"source"`

	// approvalName restricts the request to the approval of this name in the
	// giving namespace. Omitted: any approval there that covers the request.
	//
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	ApprovalName string `json:"approvalName,omitempty"`
}

// RequiredClaim is what the receiving claim must ask for: exactly what the
// volume is, so that it can bind and that quota counts the volume's full size.
type RequiredClaim struct {
	// capacity of the volume, in bytes as a Kubernetes quantity. The receiving
	// claim's spec.resources.requests.storage must equal it.
	Capacity resource.Quantity `json:"capacity"`

	// storageClassName of the volume.
	StorageClassName string `json:"storageClassName"`

	// volumeMode of the volume.
	VolumeMode corev1.PersistentVolumeMode `json:"volumeMode"`

	// accessModes of the volume. The receiving claim asks for one or more of them.
	//
	// +listType=atomic
	AccessModes []corev1.PersistentVolumeAccessMode `json:"accessModes"`

	// volumeAttributesClassName of the volume; omitted where it has none.
	//
	// +optional
	VolumeAttributesClassName string `json:"volumeAttributesClassName,omitempty"`
}

// NamespaceTransferRequestStatus is written by the transfer controller.
type NamespaceTransferRequestStatus struct {
	// phase sums the conditions up for people.
	//
	// +optional
	Phase Phase `json:"phase,omitempty"`

	// conditions are Approved and Transferred.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// required is what the receiving claim must ask for. Set once approved.
	//
	// +optional
	Required *RequiredClaim `json:"required,omitempty"`

	// volumeName is the PersistentVolume that moves. Set when the claim that gets it
	// is Bound, or earlier where that takes its time.
	//
	// +optional
	VolumeName string `json:"volumeName,omitempty"`

	// startTime is when the transfer last started.
	//
	// +optional
	StartTime *metav1.Time `json:"startTime,omitempty"`

	// completionTime is when the transfer completed.
	//
	// +optional
	CompletionTime *metav1.Time `json:"completionTime,omitempty"`
}

// NamespaceTransferRequest asks for an object of another namespace. It stands
// in the receiving namespace and does nothing until a
// NamespaceTransferApproval in the giving namespace covers it. For a
// PersistentVolumeClaim, the claim that is to receive the volume names the
// request in its spec.dataSourceRef.
//
// The status says the same for every request that is not approved, whether or
// not its source exists: the default below stands until a controller has
// something to say.
//
// +genclient
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=ntr,categories=transfer
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Source namespace",type=string,JSONPath=`.spec.source.namespace`
// +kubebuilder:printcolumn:name="Source",type=string,JSONPath=`.spec.source.name`
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Transferred")].reason`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Transferred")].message`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type NamespaceTransferRequest struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec cannot be changed: delete the request and make another.
	//
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="spec is immutable; delete the request and create another"
	Spec NamespaceTransferRequestSpec `json:"spec"`

	// +optional
	// +kubebuilder:default={phase: "Pending", conditions: {{type: "Approved", status: "False", reason: "NoApproval", message: "No NamespaceTransferApproval in the source namespace covers this request yet; ask a user with rights there to create one", lastTransitionTime: "1970-01-01T00:00:00Z", observedGeneration: 1}, {type: "Transferred", status: "False", reason: "NoApproval", message: "Waiting for an approval", lastTransitionTime: "1970-01-01T00:00:00Z", observedGeneration: 1}}}
	Status NamespaceTransferRequestStatus `json:"status,omitempty"`
}

// NamespaceTransferRequestList is a list of requests.
//
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true
type NamespaceTransferRequestList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []NamespaceTransferRequest `json:"items"`
}

// ApprovalSource names the object that an approval gives, in the approval's
// own namespace.
type ApprovalSource struct {
	SourceReference `json:",inline"`

	// uid pins this very object. Without it the approval covers only an object
	// created in an earlier second than the approval itself, so that one re-created
	// under the same name is never given away.
	//
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	UID types.UID `json:"uid,omitempty"`
}

// NamespaceTransferApprovalSpec is what the giver allows.
type NamespaceTransferApprovalSpec struct {
	// source is the object given.
	Source ApprovalSource `json:"source"`

	// targetNamespace is the only namespace that may receive it.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	TargetNamespace string `json:"targetNamespace"`

	// requestName restricts the approval to the request of this name in the
	// receiving namespace. Omitted: any request there for this source.
	//
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	RequestName string `json:"requestName,omitempty"`
}

// RequestReference identifies one request for all time.
type RequestReference struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
}

// NamespaceTransferApprovalStatus is written by the transfer controller.
type NamespaceTransferApprovalStatus struct {
	// phase sums the conditions up for people.
	//
	// +optional
	Phase Phase `json:"phase,omitempty"`

	// conditions holds Transferred. Once it is true the approval is spent.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// request is the one that this approval is reserved for, from the start of
	// its transfer. While that request exists no other is covered.
	//
	// +optional
	Request *RequestReference `json:"request,omitempty"`

	// claimUID is the UID of the object that the reserved request moves.
	//
	// +optional
	ClaimUID types.UID `json:"claimUID,omitempty"`

	// driver is the CSI driver whose controller moves it. The controllers of others
	// leave the request alone.
	//
	// +optional
	Driver string `json:"driver,omitempty"`
}

// NamespaceTransferApproval gives an object of its namespace to one other
// namespace. It serves one completed transfer and is then spent. Deleting it
// before the transfer is past its point of no return takes it back.
//
// +genclient
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=nta,categories=transfer
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Source",type=string,JSONPath=`.spec.source.name`
// +kubebuilder:printcolumn:name="Target namespace",type=string,JSONPath=`.spec.targetNamespace`
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Transferred")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type NamespaceTransferApproval struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec cannot be changed: delete the approval and make another.
	//
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="spec is immutable; delete the approval and create another"
	Spec NamespaceTransferApprovalSpec `json:"spec"`

	// +optional
	// +kubebuilder:default={phase: "Pending"}
	Status NamespaceTransferApprovalStatus `json:"status,omitempty"`
}

// NamespaceTransferApprovalList is a list of approvals.
//
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true
type NamespaceTransferApprovalList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []NamespaceTransferApproval `json:"items"`
}

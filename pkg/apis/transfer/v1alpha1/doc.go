// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 holds the API of csi-transfer: a NamespaceTransferRequest
// in the receiving namespace and a NamespaceTransferApproval in the giving one.
// An object moves between namespaces only where both agree.
//
// +k8s:deepcopy-gen=package
// +groupName=transfer.storage.x-k8s.io
// +kubebuilder:object:generate=true
package v1alpha1

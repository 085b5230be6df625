// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// Keys that administrators and users set.
const (
	// AnnotationAllow on a StorageClass must be "true" for volumes of that class
	// to be transferred. On a PersistentVolumeClaim, "false" keeps that one claim
	// where it is.
	AnnotationAllow = GroupName + "/allow"

	// AnnotationSnapshotLinkage on a StorageClass (none, snapshots or chain)
	// overrides what the driver advertises. In a driver's
	// GetPluginInfoResponse.manifest the same key is the capability flag. On a
	// CSIDriver it is written by the sidecar: what the driver advertises, absent
	// where it advertises nothing.
	AnnotationSnapshotLinkage = GroupName + "/snapshot-linkage"

	// AnnotationSecretName and AnnotationSecretNamespace on a StorageClass name
	// the Secret that the driver's transfer service gets with each call about a
	// volume of that class. Unlike the parameters of a class they are no
	// templates, so that neither side of a transfer has a say in which Secret it
	// is. The sidecar needs the right to get it.
	AnnotationSecretName      = GroupName + "/secret-name"
	AnnotationSecretNamespace = GroupName + "/secret-namespace"
)

// Keys that only the sidecar writes.
const (
	// AnnotationCapable on a CSIDriver is "true" where the driver advertises that
	// its volumes can be transferred, and "false" where only a StorageClass can
	// vouch for them. It is absent where no sidecar has run.
	AnnotationCapable = GroupName + "/capable"

	// AnnotationDriverCalls on a CSIDriver lists the calls of the transfer service
	// that the driver offers, comma-separated: ValidateVolume, SetOwner. With the
	// former the driver has the last word on each volume. It is absent where it
	// offers none.
	AnnotationDriverCalls = GroupName + "/driver-calls"

	// LabelInFlight on a PersistentVolume says that a transfer owns the volume at
	// the moment. Its value is the name of the CSI driver, so that each sidecar
	// watches only its own.
	LabelInFlight = GroupName + "/in-flight"

	// AnnotationJournal on a PersistentVolume in flight holds what is needed to
	// finish or undo the transfer after any crash, as JSON.
	AnnotationJournal = GroupName + "/journal"

	// FinalizerInFlight on a PersistentVolume in flight keeps the object: once
	// Released, a volume is no longer kept by Kubernetes' own protection.
	FinalizerInFlight = GroupName + "/in-flight"

	// AnnotationTransferredTo on the source claim names the claim that has the
	// volume now, as namespace/name.
	AnnotationTransferredTo = GroupName + "/transferred-to"

	// AnnotationTransferUID on the source claim is the UID of the request that
	// took the volume.
	AnnotationTransferUID = GroupName + "/transfer-uid"

	// AnnotationSidecarUser on a PersistentVolume in flight is the user name the
	// sidecar authenticates as, read by the admission policy that fences the volume.
	AnnotationSidecarUser = GroupName + "/sidecar-user"
)

// ParkedNamePrefix starts the claimRef name of a volume in flight. The colon
// cannot occur in the name of a claim, so nothing that looks claims up by name
// finds one.
const ParkedNamePrefix = "transfer:"

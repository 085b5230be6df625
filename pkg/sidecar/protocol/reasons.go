// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol

// Reason is the machine-readable reason of a condition.
type Reason string

// ReasonInfo explains a Reason to people.
type ReasonInfo struct {
	Reason Reason
	// Meaning is what is wrong.
	Meaning string
	// Remedy is what to do, and who does it where it is not the user.
	Remedy string
}

// The reasons for which a transfer does not go on.
const (
	ReasonSourceNotFound               Reason = "SourceNotFound"
	ReasonSourceNotBound               Reason = "SourceNotBound"
	ReasonSourceBeingDeleted           Reason = "SourceBeingDeleted"
	ReasonSourceLost                   Reason = "SourceLost"
	ReasonSourceOptedOut               Reason = "SourceOptedOut"
	ReasonSourceOwnedByPod             Reason = "SourceOwnedByPod"
	ReasonSourceFinalizer              Reason = "SourceFinalizer"
	ReasonResizePending                Reason = "ResizePending"
	ReasonModificationPending          Reason = "ModificationPending"
	ReasonSnapshotInProgress           Reason = "SnapshotInProgress"
	ReasonCloneInProgress              Reason = "CloneInProgress"
	ReasonInUse                        Reason = "InUse"
	ReasonPodForceDeleted              Reason = "PodForceDeleted"
	ReasonAttached                     Reason = "Attached"
	ReasonVolumeMissing                Reason = "VolumeMissing"
	ReasonVolumeNotCSI                 Reason = "VolumeNotCSI"
	ReasonAwaitingDriverSidecar        Reason = "AwaitingDriverSidecar"
	ReasonVolumeNotBound               Reason = "VolumeNotBound"
	ReasonVolumeBeingDeleted           Reason = "VolumeBeingDeleted"
	ReasonVolumeClaimMismatch          Reason = "VolumeClaimMismatch"
	ReasonVolumeInFlight               Reason = "VolumeInFlight"
	ReasonVolumeJournalUnknown         Reason = "VolumeJournalUnknown"
	ReasonVolumeHandleShared           Reason = "VolumeHandleShared"
	ReasonVolumeFieldManaged           Reason = "VolumeFieldManaged"
	ReasonSecretTied                   Reason = "SecretTied"
	ReasonAttributeTied                Reason = "AttributeTied"
	ReasonPathTied                     Reason = "PathTied"
	ReasonClassMissing                 Reason = "ClassMissing"
	ReasonClassOfOtherDriver           Reason = "ClassOfOtherDriver"
	ReasonClassNotAllowed              Reason = "ClassNotAllowed"
	ReasonDriverNotCapable             Reason = "DriverNotCapable"
	ReasonSnapshotsLinked              Reason = "SnapshotsLinked"
	ReasonChainLinked                  Reason = "ChainLinked"
	ReasonDriverRefused                Reason = "DriverRefused"
	ReasonDriverUnavailable            Reason = "DriverUnavailable"
	ReasonReceivingClaimMissing        Reason = "ReceivingClaimMissing"
	ReasonReceivingClaimAmbiguous      Reason = "ReceivingClaimAmbiguous"
	ReasonReceivingClaimBound          Reason = "ReceivingClaimBound"
	ReasonReceivingClaimBeingDeleted   Reason = "ReceivingClaimBeingDeleted"
	ReasonReceivingClaimSelective      Reason = "ReceivingClaimSelective"
	ReasonReceivingClaimCrossNamespace Reason = "ReceivingClaimCrossNamespace"
	ReasonVolumeModeMismatch           Reason = "VolumeModeMismatch"
	ReasonAccessModesMismatch          Reason = "AccessModesMismatch"
	ReasonClassMismatch                Reason = "ClassMismatch"
	ReasonAttributesClassMismatch      Reason = "AttributesClassMismatch"
	ReasonCapacityMismatch             Reason = "CapacityMismatch"
	ReasonApprovalWithdrawn            Reason = "ApprovalWithdrawn"
	ReasonRequestDeleted               Reason = "RequestDeleted"
	ReasonTimedOut                     Reason = "TimedOut"
	ReasonWriteRefused                 Reason = "WriteRefused"
	ReasonVolumeTaken                  Reason = "VolumeTaken"
	ReasonReceivingClaimDeleted        Reason = "ReceivingClaimDeleted"
	ReasonSourceDeleted                Reason = "SourceDeleted"
)

// Reasons is the one table of them, in the order in which they are looked at.
// None is terminal: each is looked at again when what it names changes.
var Reasons = []ReasonInfo{
	{ReasonSourceNotFound, `the source claim does not exist`, `create the claim, or delete the request`},
	{ReasonSourceNotBound, `the source claim has no volume yet`, `wait until it is Bound`},
	{ReasonSourceBeingDeleted, `the source claim is being deleted`, `nothing can be transferred from it any more; delete the request`},
	{ReasonSourceLost, `the source claim has lost its volume, for instance by an earlier transfer`, `request the claim that has the volume now`},
	{ReasonSourceOptedOut, `the source claim is annotated transfer.storage.x-k8s.io/allow: "false"`, `its owner removes the annotation`},
	{ReasonSourceOwnedByPod, `the source claim is a pod's ephemeral volume and is deleted with the pod`, `copy the data, or use a claim of its own`},
	{ReasonSourceFinalizer, `the source claim carries a finalizer of a component that this sidecar does not know`, `take the claim out of that component's care, or let the administrator list the finalizer in --allowed-claim-finalizers`},
	{ReasonResizePending, `the claim or its file system has not reached the size asked for; growth would be lost`, `let a pod in the giving namespace mount the claim once, or wait for the resize to end`},
	{ReasonModificationPending, `a VolumeAttributesClass change is under way`, `wait for it to end, or undo it on the source claim`},
	{ReasonSnapshotInProgress, `a snapshot of the volume is still being made`, `wait until it is ready, or delete it`},
	{ReasonCloneInProgress, `a claim is being cloned from the source claim`, `wait until it is Bound, or delete it`},
	{ReasonInUse, `scheduled pods in the giving namespace name the claim, finished ones included`, `delete the pods or scale their owner down`},
	{ReasonPodForceDeleted, `a pod that used the claim was deleted by force a moment ago, and the driver's volumes are not attached, so that nothing tells when its node has ended it`, `wait a minute; make sure that a node that cannot be reached is down`},
	{ReasonAttached, `the volume is attached to a node`, `wait until it is detached; a pod on another path may hold it`},
	{ReasonVolumeMissing, `the PersistentVolume of the source claim does not exist`, `the administrator restores it`},
	{ReasonVolumeNotCSI, `the volume is not a CSI volume`, `only volumes of a CSI driver can be transferred`},
	{ReasonAwaitingDriverSidecar, `the volume belongs to a driver whose csi-transfer sidecar has not reported`, `the administrator adds the sidecar to that driver's Deployment`},
	{ReasonVolumeNotBound, `the PersistentVolume is not Bound`, `wait for the volume binder; if it stays so, the administrator looks at the volume`},
	{ReasonVolumeBeingDeleted, `the PersistentVolume is being deleted`, `a deletion cannot be taken back; the administrator re-creates the PersistentVolume object for the same volume`},
	{ReasonVolumeClaimMismatch, `the PersistentVolume is not bound to this very claim`, `the administrator looks at the volume's claimRef`},
	{ReasonVolumeInFlight, `another transfer has the volume`, `wait for that transfer to end`},
	{ReasonVolumeJournalUnknown, `the volume carries marks of a transfer that this sidecar did not make for it, for instance from a backup`, `the administrator removes the annotations and the label under transfer.storage.x-k8s.io from the volume`},
	{ReasonVolumeHandleShared, `another PersistentVolume has the same driver and volume handle`, `the administrator deletes the other PersistentVolume object, with policy Retain`},
	{ReasonVolumeFieldManaged, `claimRef or reclaim policy of the volume are applied by another tool, which would put them back in flight`, `take both fields out of what that tool applies`},
	{ReasonSecretTied, `the volume uses Secrets of the giving namespace`, `only a driver that vouches for the volume can lift this`},
	{ReasonAttributeTied, `an attribute of the volume names the giving namespace`, `only a driver that vouches for the volume can lift this`},
	{ReasonPathTied, `the class derives the volume's place from the claim's name, so that a new claim of that name would get the same place`, `only a driver that vouches for the volume can lift this`},
	{ReasonClassMissing, `the volume has no StorageClass, or it was deleted`, `the administrator creates the class again`},
	{ReasonClassOfOtherDriver, `the StorageClass of that name now belongs to another provisioner`, `the administrator creates the class again for the volume's driver`},
	{ReasonClassNotAllowed, `the StorageClass does not allow transfer`, `the administrator annotates it transfer.storage.x-k8s.io/allow: "true"`},
	{ReasonDriverNotCapable, `the driver does not say that its volumes can be transferred`, `use a driver version that does, or the administrator sets transfer.storage.x-k8s.io/snapshot-linkage on the StorageClass`},
	{ReasonSnapshotsLinked, `the volume has snapshots and its driver ties volumes to their snapshots`, `delete the snapshots`},
	{ReasonChainLinked, `the driver ties volumes to what they were made from, and does not vouch for this one`, `transfer a volume that is independent, or copy the data`},
	{ReasonDriverRefused, `the driver says that this volume cannot be transferred now`, `remove what the driver names`},
	{ReasonDriverUnavailable, `the driver did not answer, or not in a way that makes sense`, `the administrator looks at the driver`},
	{ReasonReceivingClaimMissing, `no claim in the receiving namespace names the request as its data source`, `create the claim as status.required says`},
	{ReasonReceivingClaimAmbiguous, `several claims name the request as their data source`, `delete all but one`},
	{ReasonReceivingClaimBound, `the receiving claim already has another volume`, `delete it and create it again`},
	{ReasonReceivingClaimBeingDeleted, `the receiving claim is being deleted`, `create it again`},
	{ReasonReceivingClaimSelective, `the receiving claim sets volumeName or selector`, `create it again without`},
	{ReasonReceivingClaimCrossNamespace, `the receiving claim sets dataSourceRef.namespace`, `create it again without`},
	{ReasonVolumeModeMismatch, `the receiving claim has another volumeMode than the volume`, `create it again as status.required says`},
	{ReasonAccessModesMismatch, `the receiving claim asks for access modes that the volume does not have`, `create it again as status.required says`},
	{ReasonClassMismatch, `the receiving claim has another StorageClass than the volume`, `create it again as status.required says`},
	{ReasonAttributesClassMismatch, `the receiving claim has another VolumeAttributesClass than the volume`, `create it again as status.required says`},
	{ReasonCapacityMismatch, `the receiving claim does not ask for exactly the volume's capacity: less would cheat the quota, more cannot bind`, `create it again as status.required says`},
	{ReasonApprovalWithdrawn, `the approval was deleted while the volume was in flight; it went back`, `approve again`},
	{ReasonRequestDeleted, `the request was deleted while the volume was in flight; it went back`, `request again`},
	{ReasonTimedOut, `the transfer could not be verified in time and the volume went back; it is tried again later`, `the administrator looks at the volume binder, or at what the sidecar logs`},
	{ReasonWriteRefused, `the API server refuses a write of the transfer, for instance by an admission policy`, `the administrator lets the sidecar's write pass; it is tried again`},
	{ReasonVolumeTaken, `somebody else set the claimRef of a volume in flight`, `the administrator decides whose the volume is; the sidecar does not touch it`},
	{ReasonReceivingClaimDeleted, `the receiving claim was deleted before the transfer was complete; the volume is kept with policy Retain`, `the administrator decides whose the volume is`},
	{ReasonSourceDeleted, `the source claim was deleted while the volume went back to it, or before the transfer was called off; the volume is kept with policy Retain`, `the administrator decides whose the volume is`},
}

var remedies = func() map[Reason]string {
	m := make(map[Reason]string, len(Reasons))
	for _, r := range Reasons {
		m[r.Reason] = r.Remedy
	}
	return m
}()

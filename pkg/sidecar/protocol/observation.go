// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

// Package protocol decides. From what was observed of one transfer, Decide
// returns the next single action with its reason. It does no I/O, reads no
// clock and imports no client, so that every interleaving of it with the rest
// of a cluster can be written down as a transcript or explored.
//
// A transfer is kept safe by an order of steps:
//
//	reserve: no other request gets the approval, no other driver's sidecar acts
//	park:    the volume belongs to the request; nobody can mount or take it
//	mark:    once the binder has seen it, the source claim is annotated, and Lost
//	verify:  with nobody able to begin anything new, everything is read live
//	bind:    the volume belongs to the receiving claim: no way back from here
//	restore: once both are Bound, the volume is as it was before
//
// and, from any point before bind, back: return, unmark, restore.
package protocol

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csi-transfer/csi-transfer/pkg/apis/transfer/v1alpha1"
	"github.com/csi-transfer/csi-transfer/pkg/driver"
)

// Settings do not change while a sidecar runs.
type Settings struct {
	// Driver is what the CSI driver beside this sidecar says of itself.
	Driver driver.Info
	// User is the name this sidecar authenticates as, recorded on a parked volume
	// for the admission policy that fences it.
	User string
	// VerifyTimeout is how long a volume may stay parked before it goes back.
	VerifyTimeout time.Duration
	// ReportDelay is how long the sidecar of another driver is given to report
	// before this one says whose is awaited.
	ReportDelay time.Duration
	// PollInterval is when to ask again what nothing announces: a driver.
	PollInterval time.Duration
	// AllowedFinalizers on a source claim do not stand in the way.
	AllowedFinalizers []string
}

// Observation is everything Decide looks at. Nil means that the object does
// not exist or, for Volume and Facts, that it was not read.
type Observation struct {
	Settings

	Now time.Time
	// NotBefore is when the transfer may start again after it was rolled back.
	NotBefore time.Time
	// Crowded is true while so many volumes are on their way that another had
	// better not leave its claim yet.
	Crowded bool
	// FinishAfter is when a volume that has arrived is restored at the latest;
	// until then others are on their way, for whose claims people wait.
	FinishAfter time.Time

	// Name is the request's, whether or not it still exists.
	Name    types.NamespacedName
	Request *v1alpha1.NamespaceTransferRequest
	// Rivals are the requests for the same source, this one among them.
	Rivals []*v1alpha1.NamespaceTransferRequest
	// Approvals are all of the giving namespace.
	Approvals []*v1alpha1.NamespaceTransferApproval
	// Exists reports whether a request still exists, or has a volume in flight. An
	// approval reserved for any other is free again.
	Exists func(v1alpha1.RequestReference) bool

	// Source is the claim that now has the source's name.
	Source *corev1.PersistentVolumeClaim
	// Receivers are the claims of the receiving namespace whose data source is
	// the request.
	Receivers []*corev1.PersistentVolumeClaim
	// Claim is the claim that now has the name of the journal's receiving claim.
	Claim *corev1.PersistentVolumeClaim

	// Volume is the one in flight for the request or, where there is none, the
	// one that was asked for by Read.
	Volume *Volume

	// Facts are asked for by Read.
	Facts *Facts
}

// Volume is the outcome of reading a volume.
type Volume struct {
	Name string
	// PV is nil where there is no volume of that name.
	PV *corev1.PersistentVolume
}

// Facts is what lies outside the objects of the transfer itself.
type Facts struct {
	// Live is true for reads that cannot be older than the moment they were asked
	// for, of the objects in the Observation as well.
	Live bool

	// Class is the volume's StorageClass.
	Class *storagev1.StorageClass
	// SourceNamespaceGone is true where the giving namespace is terminating or gone.
	SourceNamespaceGone bool
	// ReceivingNamespaceGone is that of the receiving namespace. Live only.
	ReceivingNamespaceGone bool
	// Pods are the scheduled pods of the giving namespace that name the source claim.
	Pods []string
	// ForceDeleted are pods of the giving namespace that named the source claim and
	// were deleted by force, where nothing else tells whether they still run. They
	// count until ForceDeletedUntil.
	ForceDeleted      []string
	ForceDeletedUntil time.Time
	// Attachments are the VolumeAttachments of the volume.
	Attachments []Attachment
	// Twins are other PersistentVolumes with the same driver and handle.
	Twins []string
	// Snapshots are the snapshots and group snapshots that concern the volume.
	Snapshots []Snapshot
	// Clones are the Pending claims that have the source claim as data source.
	Clones []string
	// DriverSnapshots are the snapshots of the volume that the driver lists.
	DriverSnapshots []string
	// Verdict is the driver's on this volume, where it offers one.
	Verdict driver.Verdict
	// DriverError is why the driver could not be asked.
	DriverError string
	// Owner is whom the sidecar last told the driver to be the volume's owner, in
	// this transfer and since it started.
	Owner Ref
	// OwnerError is why that failed. It is forgotten after PollInterval.
	OwnerError string
	// OwnerRefused is true where it failed because the driver will not have that
	// owner. Then it still has the former one on record.
	OwnerRefused bool
}

// Attachment is a VolumeAttachment.
type Attachment struct{ Name, Node string }

// Snapshot is a VolumeSnapshot or a VolumeGroupSnapshot, which may be known by
// its content alone.
type Snapshot struct {
	Kind, Namespace, Name string
	// Ready is false while the snapshot is still being made.
	Ready bool
}

// ClaimsOf are the claims that a scheduled pod names, finished or not: kubelet
// reports a pod's end before it unmounts, and Kubernetes' own protection counts
// finished pods for the same reason.
func ClaimsOf(pod *corev1.Pod) []string {
	if pod.Spec.NodeName == "" {
		return nil
	}
	var claims []string
	for _, v := range pod.Spec.Volumes {
		switch {
		case v.PersistentVolumeClaim != nil:
			claims = append(claims, v.PersistentVolumeClaim.ClaimName)
		case v.Ephemeral != nil:
			claims = append(claims, pod.Name+"-"+v.Name)
		}
	}
	slices.Sort(claims)
	return slices.Compact(claims)
}

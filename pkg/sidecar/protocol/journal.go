// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csi-transfer/csi-transfer/pkg/apis/transfer/v1alpha1"
)

// journalVersion is the only format this build reads and writes.
const journalVersion = 1

// maxJournalBytes bounds what is parsed. A journal of the longest names
// Kubernetes allows stays below it.
const maxJournalBytes = 8 << 10

// Ref identifies one object for all time.
type Ref struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
}

// RefOf is the Ref of an object.
func RefOf(o metav1.Object) Ref {
	return Ref{Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID()}
}

// NamespacedName is the Ref without its UID.
func (r Ref) NamespacedName() types.NamespacedName {
	return types.NamespacedName{Namespace: r.Namespace, Name: r.Name}
}

func (r Ref) String() string { return r.Namespace + "/" + r.Name }

func (r Ref) complete() bool { return r.Namespace != "" && r.Name != "" && r.UID != "" }

// Journal is kept on the volume from park to the end of the transfer. It is
// enough to finish or undo the transfer with every other object gone.
type Journal struct {
	Version  int `json:"version"`
	Request  Ref `json:"request"`
	Approval Ref `json:"approval"`
	Source   Ref `json:"source"`
	// Claim is the receiving claim. It may change until the volume is bound to
	// one: a user may re-create it.
	Claim Ref `json:"claim"`
	// ReclaimPolicy is what the volume had before, to be restored at the end.
	ReclaimPolicy corev1.PersistentVolumeReclaimPolicy `json:"reclaimPolicy"`
	// ProvisionerFinalizer is true where csi-provisioner's finalizer was on the
	// volume. The provisioner drops it when it sees Retain, and puts it back only
	// when a claim of its own becomes Bound.
	ProvisionerFinalizer bool `json:"provisionerFinalizer,omitempty"`
	// BoundByController is true where the binder's annotation of that name was on
	// the volume.
	BoundByController bool `json:"boundByController,omitempty"`
	// Parked is when the volume was parked.
	Parked metav1.MicroTime `json:"parked"`
	// Bound is true once the volume may have been mounted for the receiving
	// claim: from then on it is never handed back.
	Bound bool `json:"bound,omitempty"`
	// Reason and Message say why the volume is being handed back.
	Reason  Reason `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
}

// Encode renders the journal as the value of its annotation.
func (j *Journal) Encode() string {
	b, err := json.Marshal(j)
	if err != nil { // a struct of strings, booleans and times
		panic(err)
	}
	return string(b)
}

// ParseJournal reads the journal of a volume. It returns nil and no error for a
// volume without one, and an error that says what is wrong for one that this
// sidecar cannot have written for this volume: malformed, of another format or
// driver, or on a volume that belongs to a claim and lacks the marks that are
// always written together with the journal. Nothing is ever done on the
// strength of such a journal.
func ParseJournal(pv *corev1.PersistentVolume, driver string) (*Journal, error) {
	value, ok := pv.Annotations[v1alpha1.AnnotationJournal]
	if !ok {
		return nil, nil
	}
	if len(value) > maxJournalBytes {
		return nil, fmt.Errorf("journal of PersistentVolume %s is %d bytes long, more than the %d one can have", pv.Name, len(value), maxJournalBytes)
	}
	j := &Journal{}
	if err := json.Unmarshal([]byte(value), j); err != nil {
		return nil, fmt.Errorf("journal of PersistentVolume %s is not valid: %w", pv.Name, err)
	}
	switch {
	case j.Version != journalVersion:
		return nil, fmt.Errorf("journal of PersistentVolume %s has format %d, this sidecar reads format %d", pv.Name, j.Version, journalVersion)
	case pv.Spec.CSI == nil || pv.Spec.CSI.Driver != driver:
		return nil, fmt.Errorf("journal of PersistentVolume %s is not of driver %s", pv.Name, driver)
	case !j.Request.complete() || !j.Source.complete() || !j.Claim.complete() || !j.Approval.complete():
		return nil, fmt.Errorf("journal of PersistentVolume %s does not name request, approval, source and receiving claim with their UIDs", pv.Name)
	case j.ReclaimPolicy != corev1.PersistentVolumeReclaimDelete && j.ReclaimPolicy != corev1.PersistentVolumeReclaimRetain:
		return nil, fmt.Errorf("journal of PersistentVolume %s names reclaim policy %q", pv.Name, j.ReclaimPolicy)
	case j.Parked.IsZero():
		return nil, fmt.Errorf("journal of PersistentVolume %s does not say when the volume was parked", pv.Name)
	}
	switch j.position(pv) {
	case parked:
	case foreign:
		if !marked(pv, driver) {
			return nil, fmt.Errorf("journal of PersistentVolume %s does not match its claimRef, and the volume is not marked as in flight", pv.Name)
		}
	default:
		if !marked(pv, driver) {
			return nil, fmt.Errorf("journal of PersistentVolume %s stands alone: label or finalizer of a volume in flight is missing", pv.Name)
		}
	}
	return j, nil
}

// marked reports whether a volume carries everything that park writes beside
// the journal.
func marked(pv *corev1.PersistentVolume, driver string) bool {
	return pv.Labels[v1alpha1.LabelInFlight] == driver && slices.Contains(pv.Finalizers, v1alpha1.FinalizerInFlight)
}

// position says to whom a volume in flight belongs at the moment.
type position int

const (
	// foreign: claimRef names somebody the transfer does not know.
	foreign position = iota
	// parked: claimRef names the request.
	parked
	// bound: claimRef names the receiving claim.
	bound
	// returning: claimRef names the source claim again.
	returning
	// unowned: claimRef is missing or lacks a UID, so that the binder may give
	// the volume to anybody, or to anybody of that name.
	unowned
)

func (j *Journal) position(pv *corev1.PersistentVolume) position {
	ref := pv.Spec.ClaimRef
	switch {
	case ref == nil || ref.UID == "":
		return unowned
	case ref.Kind == v1alpha1.RequestKind && ref.UID == j.Request.UID && ref.Name == v1alpha1.ParkedNamePrefix+j.Request.Name:
		return parked
	case names(ref, j.Claim):
		return bound
	case names(ref, j.Source):
		return returning
	}
	return foreign
}

func names(ref *corev1.ObjectReference, claim Ref) bool {
	return ref.Kind == "PersistentVolumeClaim" && ref.UID == claim.UID && ref.Namespace == claim.Namespace && ref.Name == claim.Name
}

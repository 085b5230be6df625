// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"encoding/json"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-transfer/csi-transfer/pkg/apis/transfer/v1alpha1"
)

// object is a JSON object under construction.
type object = map[string]any

// guarded is the metadata of a merge patch that applies to this very version of
// this very object and to no other. A typed update would do the same, and erase
// fields that are newer than the types this was built with.
func guarded(o metav1.Object) object {
	return object{"uid": o.GetUID(), "resourceVersion": o.GetResourceVersion()}
}

func encode(patch object) []byte {
	b, err := json.Marshal(patch)
	if err != nil { // strings, lists of strings and nulls
		panic(err)
	}
	return b
}

// claimRef writes every field, so that nothing of the former reference stays.
func claimRef(apiVersion, kind string, r Ref) object {
	return object{
		"apiVersion": apiVersion, "kind": kind, "namespace": r.Namespace, "name": r.Name, "uid": r.UID,
		"resourceVersion": nil, "fieldPath": nil,
	}
}

func refToClaim(r Ref) object { return claimRef("v1", "PersistentVolumeClaim", r) }

func refToRequest(r Ref) object {
	r.Name = v1alpha1.ParkedNamePrefix + r.Name
	return claimRef(v1alpha1.SchemeGroupVersion.String(), v1alpha1.RequestKind, r)
}

func patchVolume(step Step, why string, pv *corev1.PersistentVolume, metadata, spec object) Action {
	m := guarded(pv)
	for k, v := range metadata {
		m[k] = v
	}
	patch := object{"metadata": m}
	if spec != nil {
		patch["spec"] = spec
	}
	return Action{Why: why, Patch: &Patch{Step: step, Volume: pv, Data: encode(patch)}}
}

func journalled(j Journal) object {
	return object{"annotations": object{v1alpha1.AnnotationJournal: j.Encode()}}
}

// park gives the volume to the request. What is needed to undo it goes into the
// same write.
func park(o *Observation, pv *corev1.PersistentVolume, approval *v1alpha1.NamespaceTransferApproval, receiver *corev1.PersistentVolumeClaim) Action {
	_, byController := pv.Annotations[boundByController]
	j := Journal{
		Version:              journalVersion,
		Request:              RefOf(o.Request),
		Approval:             RefOf(approval),
		Source:               RefOf(o.Source),
		Claim:                RefOf(receiver),
		ReclaimPolicy:        pv.Spec.PersistentVolumeReclaimPolicy,
		ProvisionerFinalizer: slices.Contains(pv.Finalizers, provisionerFinalizer),
		BoundByController:    byController,
		Parked:               metav1.NewMicroTime(o.Now),
	}
	return patchVolume(Park, "everything allows it", pv, object{
		"labels": object{v1alpha1.LabelInFlight: o.Driver.Name},
		"annotations": object{
			v1alpha1.AnnotationJournal:     j.Encode(),
			v1alpha1.AnnotationSidecarUser: o.User,
			// With this annotation the binder would empty claimRef, and not only
			// its UID, were the receiving claim bound to another volume.
			boundByController: nil,
		},
		"finalizers": append(slices.Clone(pv.Finalizers), v1alpha1.FinalizerInFlight),
	}, object{
		"claimRef":                      refToRequest(j.Request),
		"persistentVolumeReclaimPolicy": corev1.PersistentVolumeReclaimRetain,
	})
}

func repark(why string, pv *corev1.PersistentVolume, j Journal) Action {
	metadata := journalled(j)
	metadata["annotations"].(object)[boundByController] = nil // the binder may have set it
	return patchVolume(Repark, why, pv, metadata, object{
		"claimRef":                      refToRequest(j.Request),
		"persistentVolumeReclaimPolicy": corev1.PersistentVolumeReclaimRetain,
	})
}

// bind is the point of no return.
func bind(why string, pv *corev1.PersistentVolume, j Journal, receiver *corev1.PersistentVolumeClaim) Action {
	j.Claim, j.Bound = RefOf(receiver), true
	return patchVolume(Bind, why, pv, journalled(j), object{"claimRef": refToClaim(j.Claim)})
}

// giveBack leaves policy Retain: Released and Delete together, for an instant,
// is a deleted volume.
func giveBack(pv *corev1.PersistentVolume, j Journal, r *Refusal) Action {
	j.Reason, j.Message = r.Reason, truncate(r.Message, 1024)
	a := patchVolume(Return, "refused while parked: "+string(r.Reason), pv, journalled(j), object{"claimRef": refToClaim(j.Source)})
	a.Patch.Refusal = r
	return a
}

// truncate shortens s to most bytes, without cutting a character in two.
func truncate(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// unmarked is the metadata of a volume that is in flight no more.
func unmarked(pv *corev1.PersistentVolume) object {
	return object{
		"labels":      object{v1alpha1.LabelInFlight: nil},
		"annotations": object{v1alpha1.AnnotationJournal: nil, v1alpha1.AnnotationSidecarUser: nil},
		"finalizers":  slices.DeleteFunc(slices.Clone(pv.Finalizers), func(f string) bool { return f == v1alpha1.FinalizerInFlight }),
	}
}

// restore makes the volume what it was before.
func restore(why string, pv *corev1.PersistentVolume, j *Journal) Action {
	metadata := unmarked(pv)
	if j.BoundByController {
		metadata["annotations"].(object)[boundByController] = "yes"
	}
	if finalizers := metadata["finalizers"].([]string); j.ProvisionerFinalizer && !slices.Contains(finalizers, provisionerFinalizer) {
		metadata["finalizers"] = slices.Insert(finalizers, 0, provisionerFinalizer)
	}
	return patchVolume(Restore, why, pv, metadata, object{"persistentVolumeReclaimPolicy": j.ReclaimPolicy})
}

// abandon leaves an ordinary Released volume with policy Retain that refers to
// the claim that had it last.
func abandon(pv *corev1.PersistentVolume, last Ref, r *Refusal) Action {
	a := patchVolume(Abandon, "nobody may have the volume: "+string(r.Reason), pv, unmarked(pv), object{"claimRef": refToClaim(last)})
	a.Patch.Refusal = r
	return a
}

func retain(pv *corev1.PersistentVolume) Action {
	return patchVolume(Retain, "somebody changed the reclaim policy in flight", pv, nil, object{
		"persistentVolumeReclaimPolicy": corev1.PersistentVolumeReclaimRetain,
	})
}

func patchClaim(step Step, why string, claim *corev1.PersistentVolumeClaim, annotations object) Action {
	m := guarded(claim)
	m["annotations"] = annotations
	return Action{Why: why, Patch: &Patch{Step: step, Claim: claim, Data: encode(object{"metadata": m})}}
}

// mark says on the source claim where its volume went. The write makes the
// binder look at the claim and set it Lost, and makes every other writer that
// saw the claim before fail.
func mark(source *corev1.PersistentVolumeClaim, j *Journal) Action {
	return patchClaim(Mark, "the binder has released the volume", source, object{
		v1alpha1.AnnotationTransferredTo: j.Claim.String(),
		v1alpha1.AnnotationTransferUID:   string(j.Request.UID),
	})
}

// unmark makes the binder look at the claim again and set it Bound.
func unmark(source *corev1.PersistentVolumeClaim) Action {
	return patchClaim(Unmark, "the volume is bound to it again", source, object{
		v1alpha1.AnnotationTransferredTo: nil,
		v1alpha1.AnnotationTransferUID:   nil,
	})
}

// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol_test

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/csi-transfer/csi-transfer/pkg/apis/transfer/v1alpha1"
)

const (
	bindCompleted        = "pv.kubernetes.io/bind-completed"
	boundByController    = "pv.kubernetes.io/bound-by-controller"
	provisionerFinalizer = "external-provisioner.volume.kubernetes.io/finalizer"
	protectionFinalizer  = "kubernetes.io/pv-protection"
	claimProtection      = "kubernetes.io/pvc-protection"
)

// kubernetes lets the volume binder, csi-provisioner and the protection
// controllers catch up, as far as they matter here, and tells what they did.
// The binder looks at a claim when it was written, or on a resync.
func (w *world) kubernetes(resync bool) []string {
	var told []string
	tell := func(format string, args ...any) { told = append(told, fmt.Sprintf(format, args...)) }
	for range 20 {
		before := w.counts["writes"]
		w.protect(tell)
		for _, i := range w.all("volume") {
			w.syncVolume(i, tell)
		}
		for _, i := range w.all("claim") {
			if c := w.claim(i); resync || w.synced[i] != c.ResourceVersion {
				w.syncClaim(i, tell)
			}
		}
		resync = false
		for _, i := range w.all("volume") {
			w.provisioner(i, tell)
		}
		if w.counts["writes"] == before {
			return told
		}
	}
	w.Fatalf("Kubernetes does not come to rest: %v", told)
	return nil
}

// protect lets go of what is deleted and not used.
func (w *world) protect(tell func(string, ...any)) {
	for _, i := range w.all("claim") {
		c := w.claim(i)
		used := false
		for _, claim := range w.pods {
			used = used || claim == i
		}
		if c.DeletionTimestamp != nil && !used && slices.Contains(c.Finalizers, claimProtection) {
			c = c.DeepCopy()
			c.Finalizers = without(c.Finalizers, claimProtection)
			w.put(i, c)
			if w.claim(i) == nil {
				tell("%s is gone", i)
			}
		}
	}
	for _, i := range w.all("volume") {
		if pv := w.volume(i); pv.DeletionTimestamp != nil && pv.Status.Phase != corev1.VolumeBound && slices.Contains(pv.Finalizers, protectionFinalizer) {
			pv = pv.DeepCopy()
			pv.Finalizers = without(pv.Finalizers, protectionFinalizer)
			w.put(i, pv)
			if w.volume(i) == nil {
				tell("%s is gone", i)
			}
		}
	}
}

func without(list []string, one string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(s string) bool { return s == one })
}

func (w *world) setPhase(i id, phase corev1.PersistentVolumePhase, tell func(string, ...any)) {
	pv := w.volume(i)
	if pv.Status.Phase == phase {
		return
	}
	pv = pv.DeepCopy()
	pv.Status.Phase = phase
	w.put(i, pv)
	tell("%s is %s", i, phase)
}

// syncVolume is the binder's for one volume.
func (w *world) syncVolume(i id, tell func(string, ...any)) {
	pv := w.volume(i)
	ref := pv.Spec.ClaimRef
	if ref == nil || ref.UID == "" {
		w.setPhase(i, corev1.VolumeAvailable, tell)
		return
	}
	ci := id{"claim", ref.Namespace, ref.Name} // whatever kind it is
	switch claim := w.claim(ci); {
	case claim == nil || claim.UID != ref.UID:
		if pv.Status.Phase != corev1.VolumeFailed {
			w.setPhase(i, corev1.VolumeReleased, tell)
		}
	case claim.Spec.VolumeName == "":
		delete(w.synced, ci)
	case claim.Spec.VolumeName == pv.Name:
		w.setPhase(i, corev1.VolumeBound, tell)
	case pv.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete:
		w.setPhase(i, corev1.VolumeReleased, tell)
	default:
		pv = pv.DeepCopy()
		if pv.Annotations[boundByController] != "" {
			delete(pv.Annotations, boundByController)
			pv.Spec.ClaimRef = nil
		} else {
			pv.Spec.ClaimRef.UID = ""
		}
		w.put(i, pv)
		tell("%s is unbound from %s, which is bound elsewhere", i, ci)
		w.setPhase(i, corev1.VolumeAvailable, tell)
	}
}

// syncClaim is the binder's for one claim.
func (w *world) syncClaim(i id, tell func(string, ...any)) {
	defer func() {
		if c := w.claim(i); c != nil {
			w.synced[i] = c.ResourceVersion
		}
	}()
	c := w.claim(i)
	if c.Annotations[bindCompleted] == "" {
		for _, vi := range w.all("volume") {
			pv := w.volume(vi)
			if pv.DeletionTimestamp != nil {
				continue // never bound to any claim that did not have it
			}
			if c.Spec.VolumeName == "" && boundTo(pv, c) || c.Spec.VolumeName == pv.Name && (pv.Spec.ClaimRef == nil || boundTo(pv, c)) {
				w.bind(vi, i, tell)
				return
			}
		}
		return
	}
	vi := id{"volume", "", c.Spec.VolumeName}
	switch pv := w.volume(vi); {
	case pv == nil || pv.Spec.ClaimRef != nil && pv.Spec.ClaimRef.UID != c.UID:
		if c.Status.Phase != corev1.ClaimLost {
			c = c.DeepCopy()
			c.Status.Phase, c.Status.Capacity = corev1.ClaimLost, nil
			w.put(i, c)
			tell("%s is Lost", i)
		}
	default:
		w.bind(vi, i, tell)
	}
}

// boundTo reports whether a volume is bound, or bound beforehand, to a claim.
func boundTo(pv *corev1.PersistentVolume, c *corev1.PersistentVolumeClaim) bool {
	ref := pv.Spec.ClaimRef
	return ref != nil && ref.Namespace == c.Namespace && ref.Name == c.Name && (ref.UID == "" || ref.UID == c.UID)
}

// bind sets everything on both sides that is not set.
func (w *world) bind(vi, ci id, tell func(string, ...any)) {
	pv, c := w.volume(vi).DeepCopy(), w.claim(ci).DeepCopy()
	if pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID == "" {
		if pv.Spec.ClaimRef == nil {
			annotate(pv, boundByController)
		}
		pv.Spec.ClaimRef = &corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: c.Namespace, Name: c.Name, UID: c.UID, ResourceVersion: c.ResourceVersion}
		w.put(vi, pv)
		tell("%s is bound to %s by the binder", vi, ci)
	}
	w.setPhase(vi, corev1.VolumeBound, tell)
	if c.Status.Phase == corev1.ClaimBound && c.Spec.VolumeName == pv.Name {
		return
	}
	annotate(c, bindCompleted)
	c.Spec.VolumeName, c.Status.Phase, c.Status.Capacity = pv.Name, corev1.ClaimBound, pv.Spec.Capacity
	w.put(ci, c)
	tell("%s is Bound to %s", ci, vi)
}

func annotate(o object, key string) {
	annotations := o.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[key] = "yes"
	o.SetAnnotations(annotations)
}

// provisioner is csi-provisioner for one volume. It deletes what is Released
// with policy Delete.
func (w *world) provisioner(i id, tell func(string, ...any)) {
	pv := w.volume(i)
	retain := pv.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRetain
	has := slices.Contains(pv.Finalizers, provisionerFinalizer)
	switch {
	case !retain && pv.Status.Phase == corev1.VolumeReleased && pv.Annotations["pv.kubernetes.io/provisioned-by"] != "":
		tell("%s: THE PROVISIONER DELETES THE VOLUME", i)
		w.deleted = append(w.deleted, pv.UID)
		if pv.Annotations[v1alpha1.AnnotationJournal] != "" {
			w.Errorf("volume %s was deleted in flight", i)
		}
		delete(w.objects, i)
		w.counts["writes"]++
	case retain && has:
		pv = pv.DeepCopy()
		pv.Finalizers = without(pv.Finalizers, provisionerFinalizer)
		w.put(i, pv)
	}
}

// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol_test

import (
	"cmp"
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
		claims := w.all("claim")
		slices.SortStableFunc(claims, func(a, b id) int { // those that have had a volume first
			return cmp.Compare(len(w.claim(b).Spec.VolumeName), len(w.claim(a).Spec.VolumeName))
		})
		for _, i := range claims {
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

// looks is what the binder's caches have of an object. They may be behind.
func (w *world) looks(i id) object {
	if w.binder == nil {
		return w.objects[i]
	}
	return w.binder[i]
}

func (w *world) looksAtClaim(i id) *corev1.PersistentVolumeClaim {
	c, _ := w.looks(i).(*corev1.PersistentVolumeClaim)
	return c
}

func (w *world) looksAtVolume(i id) *corev1.PersistentVolume {
	pv, _ := w.looks(i).(*corev1.PersistentVolume)
	return pv
}

// binds writes an object for the binder, unless it is not what the binder saw.
func (w *world) binds(i id, saw, o object) bool {
	if current := w.objects[i]; current == nil || current.GetUID() != saw.GetUID() || current.GetResourceVersion() != saw.GetResourceVersion() {
		return false
	}
	w.put(i, o)
	if w.binder != nil {
		w.binder = with(w.binder, i, w.objects[i])
	}
	return true
}

func (w *world) setPhase(i id, phase corev1.PersistentVolumePhase, tell func(string, ...any)) bool {
	saw := w.looksAtVolume(i)
	if saw.Status.Phase == phase {
		return true
	}
	pv := saw.DeepCopy()
	pv.Status.Phase = phase
	if !w.binds(i, saw, pv) {
		return false
	}
	tell("%s is %s", i, phase)
	return true
}

// syncVolume is the binder's for one volume. Where its cache does not have the
// claim it asks the API server.
func (w *world) syncVolume(i id, tell func(string, ...any)) {
	pv := w.looksAtVolume(i)
	if pv == nil {
		return
	}
	ref := pv.Spec.ClaimRef
	if ref == nil || ref.UID == "" {
		w.setPhase(i, corev1.VolumeAvailable, tell)
		return
	}
	ci := id{"claim", ref.Namespace, ref.Name} // whatever kind it is
	claim := w.looksAtClaim(ci)
	if claim == nil || claim.UID != ref.UID {
		claim = w.claim(ci)
	}
	switch {
	case claim == nil || claim.UID != ref.UID:
		if pv.Status.Phase != corev1.VolumeFailed {
			w.setPhase(i, corev1.VolumeReleased, tell)
		}
	case claim.Spec.VolumeName == "":
		w.synced = sans(w.synced, ci)
	case claim.Spec.VolumeName == pv.Name:
		w.setPhase(i, corev1.VolumeBound, tell)
	case pv.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete:
		w.setPhase(i, corev1.VolumeReleased, tell)
	default:
		unbound := pv.DeepCopy()
		if unbound.Annotations[boundByController] != "" {
			delete(unbound.Annotations, boundByController)
			unbound.Spec.ClaimRef = nil
		} else {
			unbound.Spec.ClaimRef.UID = ""
		}
		if w.binds(i, pv, unbound) {
			tell("%s is unbound from %s, which is bound elsewhere", i, ci)
			w.setPhase(i, corev1.VolumeAvailable, tell)
		}
	}
}

// syncClaim is the binder's for one claim.
func (w *world) syncClaim(i id, tell func(string, ...any)) {
	defer func() {
		if c := w.claim(i); c != nil {
			w.synced = with(w.synced, i, c.ResourceVersion)
		}
	}()
	c := w.looksAtClaim(i)
	if c == nil {
		return
	}
	if c.Annotations[bindCompleted] == "" {
		for _, vi := range w.all("volume") {
			pv := w.looksAtVolume(vi)
			if pv == nil || pv.DeletionTimestamp != nil {
				continue // never bound to any claim that did not have it
			}
			if c.Spec.VolumeName == "" && boundTo(pv, c) || c.Spec.VolumeName == pv.Name && (pv.Spec.ClaimRef == nil || boundTo(pv, c)) {
				w.bind(vi, i, tell)
				return
			}
		}
		w.findAvailable(i, c, tell)
		return
	}
	vi := id{"volume", "", c.Spec.VolumeName}
	switch pv := w.looksAtVolume(vi); {
	case pv == nil || pv.Spec.ClaimRef != nil && pv.Spec.ClaimRef.UID != c.UID:
		if c.Status.Phase != corev1.ClaimLost {
			lost := c.DeepCopy()
			lost.Status.Phase, lost.Status.Capacity = corev1.ClaimLost, nil
			if w.binds(i, c, lost) {
				tell("%s is Lost", i)
			}
		}
	default:
		w.bind(vi, i, tell)
	}
}

// findAvailable binds a claim to any volume that fits and is nobody's, whatever
// its data source.
func (w *world) findAvailable(i id, c *corev1.PersistentVolumeClaim, tell func(string, ...any)) {
	for _, vi := range w.all("volume") {
		pv := w.looksAtVolume(vi)
		if pv == nil || pv.DeletionTimestamp != nil || c.Spec.VolumeName != "" || pv.Spec.ClaimRef != nil || pv.Status.Phase != corev1.VolumeAvailable {
			continue
		}
		if asked, has := c.Spec.Resources.Requests[corev1.ResourceStorage], pv.Spec.Capacity[corev1.ResourceStorage]; asked.Cmp(has) <= 0 {
			w.bind(vi, i, tell)
			return
		}
	}
}

// boundTo reports whether a volume is bound, or bound beforehand, to a claim.
func boundTo(pv *corev1.PersistentVolume, c *corev1.PersistentVolumeClaim) bool {
	ref := pv.Spec.ClaimRef
	return ref != nil && ref.Namespace == c.Namespace && ref.Name == c.Name && (ref.UID == "" || ref.UID == c.UID)
}

// bind sets everything on both sides that is not set.
func (w *world) bind(vi, ci id, tell func(string, ...any)) {
	saw, c := w.looksAtVolume(vi), w.looksAtClaim(ci)
	if saw.Spec.ClaimRef == nil || saw.Spec.ClaimRef.UID == "" {
		pv := saw.DeepCopy()
		if pv.Spec.ClaimRef == nil {
			annotate(pv, boundByController)
		}
		pv.Spec.ClaimRef = &corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: c.Namespace, Name: c.Name, UID: c.UID, ResourceVersion: c.ResourceVersion}
		if !w.binds(vi, saw, pv) {
			return
		}
		tell("%s is bound to %s by the binder", vi, ci)
	}
	if !w.setPhase(vi, corev1.VolumeBound, tell) || c.Status.Phase == corev1.ClaimBound && c.Spec.VolumeName == vi.name {
		return
	}
	bound := c.DeepCopy()
	annotate(bound, bindCompleted)
	bound.Spec.VolumeName, bound.Status.Phase, bound.Status.Capacity = vi.name, corev1.ClaimBound, saw.Spec.Capacity
	if w.binds(ci, c, bound) {
		tell("%s is Bound to %s", ci, vi)
	}
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
		switch {
		case w.exposed: // nothing but an admission policy prevents that
		case pv.Annotations[v1alpha1.AnnotationJournal] != "":
			w.Errorf("volume %s was deleted in flight", i)
		case w.owner(pv) != nil:
			w.Errorf("volume %s was deleted under claim %s/%s", i, pv.Spec.ClaimRef.Namespace, pv.Spec.ClaimRef.Name)
		}
		w.put(i, nil)
	case retain && has:
		pv = pv.DeepCopy()
		pv.Finalizers = without(pv.Finalizers, provisionerFinalizer)
		w.put(i, pv)
	}
}

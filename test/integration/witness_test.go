// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/tools/cache"
)

// witness sees every version of every volume that the API server tells of, so
// that a test can ask for what must never have been.
type witness struct {
	mu      sync.Mutex
	volumes map[string]testimony
}

// testimony is what was seen of one volume.
type testimony struct {
	// last is its last version, and gone whether that was deleted.
	last *corev1.PersistentVolume
	gone bool
	// open is a version, if there was one, in which anybody's claim could have
	// taken the volume: Available, or with a claimRef without UID.
	open *corev1.PersistentVolume
}

func startWitness(ctx context.Context, w *world) (*witness, error) {
	seen := &witness{volumes: map[string]testimony{}}
	informer := cache.NewSharedInformer(
		cache.NewListWatchFromClient(w.Client.CoreV1().RESTClient(), "persistentvolumes", metav1.NamespaceAll, fields.Everything()),
		&corev1.PersistentVolume{}, 0)
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { seen.see(o, false) },
		UpdateFunc: func(_, o any) { seen.see(o, false) },
		DeleteFunc: func(o any) { seen.see(o, true) },
	}); err != nil {
		return nil, err
	}
	go informer.RunWithContext(ctx)
	return seen, nil
}

func (w *witness) see(object any, gone bool) {
	if missed, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = missed.Obj
	}
	pv, ok := object.(*corev1.PersistentVolume)
	if !ok {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	t := w.volumes[pv.Name]
	t.last, t.gone = pv, gone
	if pv.Status.Phase == corev1.VolumeAvailable || pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID == "" {
		t.open = pv
	}
	w.volumes[pv.Name] = t
}

func (w *witness) of(volume string) testimony {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.volumes[volume]
}

// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
)

// witness remembers when things happened, and whose pods were.
type witness struct {
	mu sync.Mutex
	// namespaces are those of all pods there were.
	namespaces map[types.UID]string
	// unused is when a claim lost its last pod, detached when a volume lost its
	// last attachment.
	unused, detached map[string]time.Time
	// bound is when claims were seen Bound first, by UID.
	bound map[types.UID]time.Time
}

func startWitness(ctx context.Context, w *world) (*witness, error) {
	e := &witness{
		namespaces: map[types.UID]string{},
		unused:     map[string]time.Time{},
		detached:   map[string]time.Time{},
		bound:      map[types.UID]time.Time{},
	}
	factory := informers.NewSharedInformerFactory(w.Client, 0)
	for informer, see := range map[cache.SharedIndexInformer]func(object any, gone bool){
		factory.Core().V1().Pods().Informer():                   e.seePod,
		factory.Core().V1().PersistentVolumeClaims().Informer(): e.seeClaim,
		factory.Storage().V1().VolumeAttachments().Informer():   e.seeAttachment,
	} {
		if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    func(object any) { see(object, false) },
			UpdateFunc: func(_, object any) { see(object, false) },
			DeleteFunc: func(object any) {
				if unknown, ok := object.(cache.DeletedFinalStateUnknown); ok {
					object = unknown.Obj
				}
				see(object, true)
			},
		}); err != nil {
			return nil, err
		}
	}
	factory.Start(ctx.Done())
	for _, synced := range factory.WaitForCacheSync(ctx.Done()) {
		if !synced {
			return nil, errors.New("the witness sees nothing")
		}
	}
	return e, nil
}

func (e *witness) seePod(object any, gone bool) {
	pod := object.(*corev1.Pod)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.namespaces[pod.UID] = pod.Namespace
	if !gone {
		return
	}
	for _, v := range pod.Spec.Volumes {
		if v.PersistentVolumeClaim != nil {
			e.unused[pod.Namespace+"/"+v.PersistentVolumeClaim.ClaimName] = time.Now()
		}
	}
}

func (e *witness) seeAttachment(object any, gone bool) {
	if pv := object.(*storagev1.VolumeAttachment).Spec.Source.PersistentVolumeName; gone && pv != nil {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.detached[*pv] = time.Now()
	}
}

func (e *witness) seeClaim(object any, _ bool) {
	claim := object.(*corev1.PersistentVolumeClaim)
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, seen := e.bound[claim.UID]; !seen && claim.Status.Phase == corev1.ClaimBound {
		e.bound[claim.UID] = time.Now()
	}
}

// namespaceOf returns the namespace of a pod that is or was.
func (e *witness) namespaceOf(pod types.UID) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.namespaces[pod]
}

// waited returns how long a volume was free, of pods and attachments, until it was
// bound to the receiving claim. Others may have seen that before the witness.
func (e *witness) waited(ctx context.Context, source string, receiving *corev1.PersistentVolumeClaim) (took time.Duration, err error) {
	err = wait.PollUntilContextCancel(ctx, 20*time.Millisecond, true, func(context.Context) (bool, error) {
		e.mu.Lock()
		defer e.mu.Unlock()
		free := e.unused[source]
		if detached := e.detached[receiving.Spec.VolumeName]; detached.After(free) {
			free = detached
		}
		bound, seen := e.bound[receiving.UID]
		took = bound.Sub(free)
		return seen, nil
	})
	return took, err
}

// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package sidecar

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csi-transfer/csi-transfer/pkg/apis/transfer/v1alpha1"
	"github.com/csi-transfer/csi-transfer/pkg/sidecar/protocol"
)

// A burst of transfers is as fast as the volume binder, which takes one claim
// after another. Volumes that leave their claims faster than that would only be
// nobody's for longer, until they time out; and what is done for those that have
// arrived slows the binder down for those that have not.
const (
	// maxUnderway is how many volumes are on their way before no other starts.
	maxUnderway = 64
	// stuckAfter is when a volume that does not get on holds nobody up any more.
	stuckAfter = 30 * time.Second
	// busy is how many volumes on their way are a burst, for whose sake those that
	// have arrived are not restored yet.
	busy = 4
	// finishWithin bounds that. The claim is Bound meanwhile and can be used.
	finishWithin = 30 * time.Second
)

// underway is the only value of indexByPlace.
const underway = "underway"

// placeOf indexes the volumes that have left a claim and arrived at none.
func placeOf(pv *corev1.PersistentVolume) []string {
	if arrived(pv) {
		return nil
	}
	return []string{underway}
}

func arrived(pv *corev1.PersistentVolume) bool {
	ref := pv.Spec.ClaimRef
	return ref != nil && ref.Kind != v1alpha1.RequestKind && pv.Status.Phase == corev1.VolumeBound
}

// underway counts the volumes on their way that get on.
func (c *Controller) underway() int {
	count := 0
	for _, pv := range byIndex[corev1.PersistentVolume](overlay{informer: c.volumes.informer}, indexByPlace, underway) {
		// The binder has not seen yet that one left whose phase is still Bound.
		since := pv.Status.LastPhaseTransitionTime
		if pv.Status.Phase == corev1.VolumeBound || since == nil || c.now().Sub(since.Time) < stuckAfter {
			count++
		}
	}
	return count
}

// heedTraffic notes what the volumes on their way mean for a transfer.
func (c *Controller) heedTraffic(o *protocol.Observation) {
	switch {
	case o.Volume == nil:
		o.Crowded = c.underway() >= maxUnderway
	case o.Volume.PV != nil && arrived(o.Volume.PV):
		if since := o.Volume.PV.Status.LastPhaseTransitionTime; since != nil && c.underway() >= busy {
			o.FinishAfter = since.Add(finishWithin)
		}
	}
}

// followTraffic returns what is to be called when a volume in flight changes: it
// lets go on who waited for that.
func (c *Controller) followTraffic() func(*corev1.PersistentVolume) {
	burst := false
	return func(*corev1.PersistentVolume) {
		n := c.underway()
		c.turns.take(maxUnderway-n, c.queue.Add)
		if burst && n < busy {
			for _, request := range c.volumes.informer.GetIndexer().ListIndexFuncValues(indexByRequest) {
				c.queue.Add(splitName(request))
			}
		}
		burst = n >= busy
	}
}

// turns are the transfers that wait for their turn to start.
type turns struct {
	mu      sync.Mutex
	waiting map[types.NamespacedName]struct{}
}

func (t *turns) wait(key types.NamespacedName) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.waiting[key] = struct{}{}
}

// take gives their turn to as many as count, in no order.
func (t *turns) take(count int, start func(types.NamespacedName)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for key := range t.waiting {
		if count <= 0 {
			return
		}
		delete(t.waiting, key)
		start(key)
		count--
	}
}

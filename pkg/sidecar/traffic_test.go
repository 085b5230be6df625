// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package sidecar

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/csi-transfer/csi-transfer/pkg/apis/transfer/v1alpha1"
	"github.com/csi-transfer/csi-transfer/pkg/sidecar/protocol"
)

// road is a controller with nothing but volumes in flight.
type road struct {
	*Controller
	changed func(*corev1.PersistentVolume)
}

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

func newRoad() road {
	c := &Controller{
		now:   func() time.Time { return noon },
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[types.NamespacedName]()),
		turns: turns{waiting: map[types.NamespacedName]struct{}{}},
	}
	c.volumes.informer = cache.NewSharedIndexInformer(nil, &corev1.PersistentVolume{}, 0, cache.Indexers{
		indexByPlace:   indexer(placeOf),
		indexByRequest: indexer(func(pv *corev1.PersistentVolume) []string { return []string{"dev/" + pv.Name} }),
	})
	return road{c, c.followTraffic()}
}

// volume makes one that has had its phase for some time.
func volume(name, ownerKind string, phase corev1.PersistentVolumePhase, since time.Duration) *corev1.PersistentVolume {
	pv := &corev1.PersistentVolume{}
	pv.Name = name
	pv.Spec.ClaimRef = &corev1.ObjectReference{Kind: ownerKind}
	pv.Status.Phase = phase
	at := metav1.NewTime(noon.Add(-since))
	pv.Status.LastPhaseTransitionTime = &at
	return pv
}

func (r road) put(pv *corev1.PersistentVolume) {
	_ = r.volumes.informer.GetIndexer().Update(pv)
	r.changed(pv)
}

// woken are the transfers that were let go on.
func (r road) woken() int {
	n := r.queue.Len()
	for range n {
		key, _ := r.queue.Get()
		r.queue.Done(key)
	}
	return n
}

func TestUnderway(t *testing.T) {
	for _, c := range []struct {
		name string
		pv   *corev1.PersistentVolume
		want int
	}{
		{"just parked", volume("pv", v1alpha1.RequestKind, corev1.VolumeBound, time.Hour), 1},
		{"released", volume("pv", v1alpha1.RequestKind, corev1.VolumeReleased, time.Second), 1},
		{"waits for the binder", volume("pv", "PersistentVolumeClaim", corev1.VolumeReleased, time.Second), 1},
		{"does not get on", volume("pv", v1alpha1.RequestKind, corev1.VolumeReleased, stuckAfter), 0},
		{"arrived", volume("pv", "PersistentVolumeClaim", corev1.VolumeBound, 0), 0},
	} {
		r := newRoad()
		r.put(c.pv)
		if got := r.underway(); got != c.want {
			t.Errorf("%s: %d underway, want %d", c.name, got, c.want)
		}
	}
}

// TestTurns: who waits starts when there is room, and no more than there is.
func TestTurns(t *testing.T) {
	r := newRoad()
	for i := range maxUnderway {
		r.put(volume(fmt.Sprint(i), v1alpha1.RequestKind, corev1.VolumeReleased, 0))
	}
	next := &protocol.Observation{}
	if r.heedTraffic(next); !next.Crowded {
		t.Fatal("another volume may leave its claim")
	}
	for i := range 10 {
		r.turns.wait(types.NamespacedName{Name: fmt.Sprint(i)})
	}
	r.put(volume("0", v1alpha1.RequestKind, corev1.VolumeReleased, 0))
	if n := r.woken(); n != 0 {
		t.Errorf("%d start without room", n)
	}
	r.put(volume("0", "PersistentVolumeClaim", corev1.VolumeBound, 0))
	if n := r.woken(); n != 1 {
		t.Errorf("one has arrived and %d start", n)
	}
	next = &protocol.Observation{}
	if r.heedTraffic(next); next.Crowded {
		t.Error("there is room and no other volume may leave its claim")
	}
}

// TestFinish: what has arrived is finished when the burst is over.
func TestFinish(t *testing.T) {
	r := newRoad()
	arrived := volume("arrived", "PersistentVolumeClaim", corev1.VolumeBound, time.Second)
	finishAfter := func() time.Time {
		o := &protocol.Observation{Volume: &protocol.Volume{PV: arrived}}
		r.heedTraffic(o)
		return o.FinishAfter
	}
	r.put(arrived)
	for i := range busy - 1 {
		r.put(volume(fmt.Sprint(i), v1alpha1.RequestKind, corev1.VolumeReleased, 0))
	}
	if at := finishAfter(); !at.IsZero() {
		t.Errorf("waits until %s for a few", at)
	}
	r.put(volume("other", v1alpha1.RequestKind, corev1.VolumeReleased, 0))
	if at, want := finishAfter(), noon.Add(finishWithin-time.Second); !at.Equal(want) {
		t.Errorf("waits until %s, want %s", at, want)
	}
	r.woken()
	r.put(volume("other", "PersistentVolumeClaim", corev1.VolumeBound, 0))
	if n, want := r.woken(), 1+busy; n != want {
		t.Errorf("%d of %d volumes are looked at once the burst is over", n, want)
	}
	r.put(volume("other", "PersistentVolumeClaim", corev1.VolumeBound, 0))
	if n := r.woken(); n != 0 {
		t.Errorf("all volumes are looked at for each that changes")
	}
}

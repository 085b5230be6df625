// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package sidecar

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
)

// lane is how urgent it is to look at a transfer.
type lane int

const (
	// inFlight: the volume is nobody's at the moment.
	inFlight lane = iota
	// ahead: nothing has been done yet.
	ahead
	// arrived: the receiving claim has its volume. What is left is to restore the
	// volume's policy and to say so.
	arrived
	laneCount
)

// lastEvery is how many looks there are to one at the least urgent lane, however
// much there is to do in the others.
const lastEvery = 8

// lanes is a queue that looks at urgent transfers first: in a burst of transfers
// each volume is on its way for as short as can be, and claims are Bound before
// what nobody waits for is done.
type lanes struct {
	of     func(types.NamespacedName) lane
	queues [laneCount]workqueue.Queue[types.NamespacedName]
	popped int
}

func newLanes(of func(types.NamespacedName) lane) *lanes {
	l := &lanes{of: of}
	for i := range l.queues {
		l.queues[i] = workqueue.DefaultQueue[types.NamespacedName]()
	}
	return l
}

func (l *lanes) Touch(types.NamespacedName) {}

func (l *lanes) Push(key types.NamespacedName) { l.queues[l.of(key)].Push(key) }

func (l *lanes) Len() int {
	sum := 0
	for _, q := range l.queues {
		sum += q.Len()
	}
	return sum
}

// Pop is only called while Len is not zero.
func (l *lanes) Pop() types.NamespacedName {
	l.popped++
	if last := l.queues[laneCount-1]; last.Len() > 0 && l.popped%lastEvery == 0 {
		return last.Pop()
	}
	i := 0
	for l.queues[i].Len() == 0 {
		i++
	}
	return l.queues[i].Pop()
}

// laneOf finds the lane of a transfer by its volume.
func (c *Controller) laneOf(key types.NamespacedName) lane {
	volumes := byIndex[corev1.PersistentVolume](overlay{informer: c.volumes.informer}, indexByRequest, key.String())
	if len(volumes) == 0 {
		return ahead
	}
	pv := volumes[0]
	if ref := pv.Spec.ClaimRef; ref != nil && ref.Kind == "PersistentVolumeClaim" && pv.Status.Phase == corev1.VolumeBound {
		return arrived
	}
	return inFlight
}

// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package sidecar

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csi-transfer/csi-transfer/pkg/driver"
	"github.com/csi-transfer/csi-transfer/pkg/sidecar/protocol"
)

// asker talks to the driver in goroutines of its own: a driver that hangs on
// one volume holds up the transfer of that volume and no other.
type asker struct {
	driver  caller
	secrets secretsReader
	rest    time.Duration
	// answered is called when an answer for a transfer is there.
	answered func(types.NamespacedName)

	mu       sync.Mutex
	verdicts map[types.NamespacedName]*verdict
	owners   map[types.NamespacedName]*owner
}

// caller is the part of driver.Driver that is called for one volume.
type caller interface {
	Info() driver.Info
	Validate(context.Context, driver.Volume) (driver.Verdict, error)
	Snapshots(ctx context.Context, volumeID string) (ids []string, listed bool, err error)
	SetOwner(context.Context, driver.Volume) error
}

// verdict is what the driver says of one volume.
type verdict struct {
	question  string
	ready     bool
	verdict   driver.Verdict
	snapshots []string
	err       error
}

// owner is whom the driver was told to have on record for a volume in flight.
type owner struct {
	ready bool
	ref   protocol.Ref
	err   error
	// retry is when a failure is forgotten.
	retry time.Time
}

// newAsker makes an asker that lets a driver rest for a while after a failure.
func newAsker(d caller, secrets secretsReader, rest time.Duration, answered func(types.NamespacedName)) *asker {
	return &asker{driver: d, secrets: secrets, rest: rest, answered: answered, verdicts: map[types.NamespacedName]*verdict{}, owners: map[types.NamespacedName]*owner{}}
}

// volume asks what the driver says of a volume that is to go from one owner to
// another and, if need be, which snapshots it has of it. It returns false until the answer
// is there. An answer is given once, and only for the version of the volume that
// was asked about: what a driver said before the volume was parked does not
// count after.
func (a *asker) volume(ctx context.Context, key types.NamespacedName, pv *corev1.PersistentVolume, from, to, transfer protocol.Ref, snapshots bool) (*verdict, bool) {
	info := a.driver.Info()
	snapshots = snapshots && info.ListSnapshots
	if !info.Validate && !snapshots {
		return &verdict{}, true
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	question := fmt.Sprint(pv.UID, pv.ResourceVersion, from, to, transfer)
	if v := a.verdicts[key]; v != nil && v.question == question {
		if v.ready {
			delete(a.verdicts, key)
		}
		return v, v.ready
	}
	v := &verdict{question: question}
	a.verdicts[key] = v
	go func() {
		if info.Validate {
			var volume driver.Volume
			if volume, v.err = a.volumeFor(ctx, pv, from, to, transfer); v.err == nil {
				v.verdict, v.err = a.driver.Validate(ctx, volume)
			}
		}
		if v.err == nil && snapshots {
			v.snapshots, _, v.err = a.driver.Snapshots(ctx, pv.Spec.CSI.VolumeHandle)
		}
		a.mu.Lock()
		v.ready = true
		a.mu.Unlock()
		a.answered(key)
	}()
	return v, false
}

// setOwner tells the driver who owns a parked volume next. owner returns the
// outcome once answered was called.
func (a *asker) setOwner(ctx context.Context, key types.NamespacedName, s *protocol.SetOwner) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if o := a.owners[key]; o != nil && !o.ready {
		return
	}
	o := &owner{ref: s.To}
	a.owners[key] = o
	go func() {
		volume, err := a.volumeFor(ctx, s.Volume, s.From, s.To, s.Transfer)
		if err == nil {
			err = a.driver.SetOwner(ctx, volume)
		}
		a.mu.Lock()
		o.ready, o.err, o.retry = true, err, time.Now().Add(a.rest)
		a.mu.Unlock()
		a.answered(key)
	}()
}

// owner is whom the driver was last told to be the owner, with an error where
// that failed lately, and false while it is being told.
func (a *asker) owner(key types.NamespacedName) (protocol.Ref, error, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	o := a.owners[key]
	switch {
	case o == nil:
		return protocol.Ref{}, nil, true
	case !o.ready:
		return protocol.Ref{}, nil, false
	case o.err != nil && !time.Now().Before(o.retry):
		delete(a.owners, key)
		return protocol.Ref{}, nil, true
	}
	return o.ref, o.err, true
}

func (a *asker) forget(key types.NamespacedName) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.verdicts, key)
	delete(a.owners, key)
}

// volumeFor is what a call for one volume takes.
func (a *asker) volumeFor(ctx context.Context, pv *corev1.PersistentVolume, from, to, transfer protocol.Ref) (driver.Volume, error) {
	secrets, err := a.secrets(ctx, pv)
	if err != nil {
		return driver.Volume{}, err
	}
	owner := func(r protocol.Ref) driver.Owner {
		return driver.Owner{Namespace: r.Namespace, Name: r.Name, UID: r.UID}
	}
	return driver.Volume{
		ID:         pv.Spec.CSI.VolumeHandle,
		Context:    pv.Spec.CSI.VolumeAttributes,
		From:       owner(from),
		To:         owner(to),
		TransferID: transfer.UID,
		Secrets:    secrets,
	}, nil
}

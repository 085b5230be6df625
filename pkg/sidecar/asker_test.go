// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package sidecar

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csi-transfer/csi-transfer/pkg/driver"
	"github.com/csi-transfer/csi-transfer/pkg/sidecar/protocol"
)

// answers is a driver that answers what a test says, volume by volume.
type answers struct {
	info     driver.Info
	validate map[string]func() (driver.Verdict, error)
	setOwner func() error

	mu sync.Mutex
	// asked are all calls.
	asked []string
}

func (a *answers) called(call string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked = append(a.asked, call)
}

func (a *answers) Info() driver.Info { return a.info }

func (a *answers) Validate(_ context.Context, v driver.Volume) (driver.Verdict, error) {
	a.called("Validate " + v.ID)
	return a.validate[v.ID]()
}

func (a *answers) Snapshots(_ context.Context, id string) ([]string, bool, error) {
	a.called("Snapshots " + id)
	return []string{"of " + id}, true, nil
}

func (a *answers) SetOwner(_ context.Context, v driver.Volume) error {
	a.called("SetOwner " + v.ID + " " + v.To.Name)
	return a.setOwner()
}

func (a *answers) secrets(context.Context, *corev1.PersistentVolume) (map[string]string, error) {
	return nil, nil
}

func confirmed() (driver.Verdict, error) { return driver.Verdict{Confirmed: true}, nil }

func volumeOf(handle, version string) *corev1.PersistentVolume {
	pv := &corev1.PersistentVolume{}
	pv.UID, pv.ResourceVersion = types.UID(handle), version
	pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{VolumeHandle: handle}
	return pv
}

var (
	transferA = types.NamespacedName{Namespace: "dev", Name: "a"}
	transferB = types.NamespacedName{Namespace: "dev", Name: "b"}
	nobody    protocol.Ref
)

func newTestAsker(d *answers) (a *asker, woken func() []types.NamespacedName) {
	var mu sync.Mutex
	var all []types.NamespacedName
	a = newAsker(d, d.secrets, time.Minute, func(key types.NamespacedName) {
		mu.Lock()
		defer mu.Unlock()
		all = append(all, key)
	})
	return a, func() []types.NamespacedName {
		synctest.Wait()
		w := all
		all = nil
		return w
	}
}

// TestAskerHangs: a driver that hangs on one volume holds up no other.
func TestAskerHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		d := &answers{info: driver.Info{Validate: true, ListSnapshots: true}, validate: map[string]func() (driver.Verdict, error){
			"a": func() (driver.Verdict, error) { <-hang; return confirmed() },
			"b": confirmed,
		}}
		a, woken := newTestAsker(d)
		question := func(key types.NamespacedName, handle string) (*verdict, bool) {
			return a.volume(t.Context(), key, volumeOf(handle, "1"), nobody, nobody, nobody, true)
		}
		if _, ready := question(transferA, "a"); ready {
			t.Error("an answer before the driver gave one")
		}
		if _, ready := question(transferB, "b"); ready {
			t.Error("an answer before the driver gave one")
		}
		if w := woken(); !slices.Equal(w, []types.NamespacedName{transferB}) {
			t.Errorf("woken: %v", w)
		}
		if v, ready := question(transferB, "b"); !ready || !v.verdict.Confirmed || !slices.Equal(v.snapshots, []string{"of b"}) {
			t.Errorf("got %+v, %v", v, ready)
		}
		if _, ready := question(transferA, "a"); ready {
			t.Error("an answer while the driver hangs")
		}
		close(hang)
		if w := woken(); !slices.Equal(w, []types.NamespacedName{transferA}) {
			t.Errorf("woken: %v", w)
		}
		if v, ready := question(transferA, "a"); !ready || !v.verdict.Confirmed {
			t.Errorf("got %+v, %v", v, ready)
		}
		if want := []string{"Snapshots a", "Snapshots b", "Validate a", "Validate b"}; !slices.Equal(slices.Sorted(slices.Values(d.asked)), want) {
			t.Errorf("asked %v, want %v", d.asked, want)
		}
	})
}

// TestAskerAnswersOnce: an answer counts for one decision on one version of the
// volume.
func TestAskerAnswersOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &answers{info: driver.Info{Validate: true}, validate: map[string]func() (driver.Verdict, error){"a": confirmed}}
		a, woken := newTestAsker(d)
		for _, step := range []struct {
			version string
			ready   bool
		}{
			{"1", false}, {"1", true}, // asked, answered
			{"1", false}, {"2", false}, // asked again; the volume has changed
			{"1", false}, {"1", true}, // and is asked about as it was
		} {
			if _, ready := a.volume(t.Context(), transferA, volumeOf("a", step.version), nobody, nobody, nobody, false); ready != step.ready {
				t.Errorf("%+v: ready is %v", step, ready)
			}
			woken()
		}
		if len(d.asked) != 4 {
			t.Errorf("asked %v", d.asked)
		}
	})
}

func TestAskerWithNothingToAsk(t *testing.T) {
	a, _ := newTestAsker(&answers{info: driver.Info{ListSnapshots: true}})
	if v, ready := a.volume(t.Context(), transferA, volumeOf("a", "1"), nobody, nobody, nobody, false); !ready || v.err != nil {
		t.Errorf("got %+v, %v", v, ready)
	}
}

func TestAskerSetsOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var fail error
		d := &answers{info: driver.Info{SetOwner: true}, setOwner: func() error { return fail }}
		a, woken := newTestAsker(d)
		giver, receiver := protocol.Ref{Namespace: "prod", Name: "giver", UID: "1"}, protocol.Ref{Namespace: "dev", Name: "receiver", UID: "2"}
		set := func(to protocol.Ref) {
			a.setOwner(t.Context(), transferA, &protocol.SetOwner{Volume: volumeOf("a", "1"), To: to})
		}
		is := func(who protocol.Ref, failed, ready bool) {
			t.Helper()
			if got, err, r := a.owner(transferA); got != who || (err != nil) != failed || r != ready {
				t.Errorf("got %v, %v, %v", got, err, r)
			}
		}
		is(nobody, false, true)
		set(receiver)
		is(nobody, false, false)
		set(giver) // one at a time
		if w := woken(); !slices.Equal(w, []types.NamespacedName{transferA}) {
			t.Errorf("woken: %v", w)
		}
		is(receiver, false, true)

		fail = errors.New("down")
		set(giver)
		woken()
		is(giver, true, true)
		if rested := takes(t, func() bool { who, _, _ := a.owner(transferA); return who == nobody }); rested != time.Minute {
			t.Errorf("the driver has rested for %s", rested)
		}
		is(nobody, false, true)
		if want := []string{"SetOwner a receiver", "SetOwner a giver"}; !slices.Equal(d.asked, want) {
			t.Errorf("asked %v, want %v", d.asked, want)
		}
		a.forget(transferA)
		is(nobody, false, true)
	})
}

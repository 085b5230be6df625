// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package mock_test

import (
	"errors"
	"io/fs"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/csi-transfer/csi-transfer/mock"
	"github.com/csi-transfer/csi-transfer/pkg/driver"
	"github.com/csi-transfer/csi-transfer/pkg/driver/transferpb"
)

var (
	giver    = driver.Owner{Namespace: "prod", Name: "data", UID: "1"}
	receiver = driver.Owner{Namespace: "dev", Name: "data", UID: "2"}
)

func transferOf(volumeID string) driver.Volume {
	return driver.Volume{ID: volumeID, From: giver, To: receiver, TransferID: "3"}
}

// sidecar is the driver as the sidecar sees it.
func (f *fixture) sidecar() *driver.Driver {
	f.t.Helper()
	return must(driver.New(f.ctx, f.conn, time.Minute))(f.t)
}

func TestTransferCapabilities(t *testing.T) {
	for _, test := range []struct {
		config mock.Config
		want   driver.Info
	}{
		{mock.Config{}, driver.Info{Linkage: driver.LinkageChain}},
		{mock.Config{Linkage: driver.LinkageNone}, driver.Info{Advertised: true, Linkage: driver.LinkageNone}},
		{mock.Config{TransferService: true}, driver.Info{Advertised: true, Linkage: driver.LinkageChain, Service: true}},
		{mock.Config{TransferService: true, Linkage: driver.LinkageNone}, driver.Info{Advertised: true, Linkage: driver.LinkageNone, Service: true}},
		{mock.Config{TransferService: true, Linkage: driver.LinkageSnapshots}, driver.Info{Advertised: true, Linkage: driver.LinkageSnapshots, Service: true}},
		{mock.Config{TransferService: true, Linkage: driver.LinkageChain}, driver.Info{Advertised: true, Linkage: driver.LinkageChain, Service: true}},
	} {
		test.want.Name, test.want.ListSnapshots = mock.DefaultDriverName, true
		test.want.Validate, test.want.SetOwner = test.want.Service, test.want.Service
		f := start(t, test.config)
		if got := f.sidecar().Info(); got != test.want {
			t.Errorf("%+v: got %+v, want %+v", test.config, got, test.want)
		}
	}
}

func TestValidateVolume(t *testing.T) {
	type blockers = map[driver.Linkage][]driver.BlockerType
	for name, test := range map[string]struct {
		prepare func(f *fixture) (volumeID string)
		want    blockers
	}{
		"alone": {
			prepare: func(f *fixture) string { return f.volume("volume", writer, nil) },
			want:    blockers{},
		},
		"snapshot": {
			prepare: func(f *fixture) string {
				id := f.volume("volume", writer, nil)
				f.snapshot("snapshot", id)
				return id
			},
			want: blockers{
				driver.LinkageSnapshots: {driver.BlockerSnapshot},
				driver.LinkageChain:     {driver.BlockerSnapshot},
			},
		},
		"group snapshot": {
			prepare: func(f *fixture) string {
				id := f.volume("volume", writer, nil)
				f.group("group", id, f.volume("other", writer, nil))
				return id
			},
			want: blockers{
				driver.LinkageSnapshots: {driver.BlockerSnapshot},
				driver.LinkageChain:     {driver.BlockerSnapshot},
			},
		},
		"descendant": {
			prepare: func(f *fixture) string {
				id := f.volume("volume", writer, nil)
				f.volume("clone", writer, fromVolume(id))
				return id
			},
			want: blockers{driver.LinkageChain: {driver.BlockerDescendant}},
		},
		"ancestor of a clone": {
			prepare: func(f *fixture) string {
				return f.volume("clone", writer, fromVolume(f.volume("volume", writer, nil)))
			},
			want: blockers{driver.LinkageChain: {driver.BlockerAncestor}},
		},
		"ancestor of a restored volume": {
			prepare: func(f *fixture) string {
				return f.volume("restored", writer, fromSnapshot(f.snapshot("snapshot", f.volume("volume", writer, nil))))
			},
			want: blockers{driver.LinkageChain: {driver.BlockerAncestor}},
		},
		"published": {
			prepare: func(f *fixture) string {
				id := f.volume("volume", writer, nil)
				f.publish(id, writer)
				return id
			},
			want: blockers{
				driver.LinkageNone:      {driver.BlockerPublished},
				driver.LinkageSnapshots: {driver.BlockerPublished},
				driver.LinkageChain:     {driver.BlockerPublished},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, linkage := range []driver.Linkage{driver.LinkageNone, driver.LinkageSnapshots, driver.LinkageChain} {
				f := startNode(t, mock.Config{Linkage: linkage, TransferService: true})
				verdict := must(f.sidecar().Validate(f.ctx, transferOf(test.prepare(f))))(t)
				var got []driver.BlockerType
				for _, blocker := range verdict.Blockers {
					got = append(got, blocker.Type)
					if blocker.ID == "" || blocker.Message == "" {
						t.Errorf("linkage %s: %+v does not say what blocks", linkage, blocker)
					}
				}
				if want := test.want[linkage]; !slices.Equal(got, want) || verdict.Confirmed != (len(want) == 0) {
					t.Errorf("linkage %s: got %+v, want %v", linkage, verdict, want)
				}
			}
		})
	}
}

func TestValidateHydratingVolume(t *testing.T) {
	f := start(t, mock.Config{Linkage: driver.LinkageNone, TransferService: true, Hydrate: time.Hour})
	clone := f.volume("clone", writer, fromVolume(f.volume("origin", writer, nil)))
	verdict := must(f.sidecar().Validate(f.ctx, transferOf(clone)))(t)
	if len(verdict.Blockers) != 1 || verdict.Blockers[0].Type != driver.BlockerHydrating {
		t.Errorf("got %+v", verdict)
	}
}

func TestSetOwner(t *testing.T) {
	f := start(t, mock.Config{Linkage: driver.LinkageNone, TransferService: true})
	id := f.volume("volume", writer, nil)
	forth := transferOf(id)
	back := driver.Volume{ID: id, From: receiver, To: giver, TransferID: forth.TransferID}
	for _, step := range []driver.Volume{forth, forth, back, forth} {
		if err := f.sidecar().SetOwner(f.ctx, step); err != nil {
			t.Fatal(err)
		}
		want := mock.Owner{Namespace: step.To.Namespace, Name: step.To.Name, UID: string(step.To.UID)}
		if got := must(mock.ReadOwner(f.config.StateDir, id))(t); got != want {
			t.Errorf("the owner is %+v, want %+v", got, want)
		}
	}
	f = f.restart()
	if got := must(mock.ReadOwner(f.config.StateDir, id))(t); got.Namespace != receiver.Namespace {
		t.Errorf("the owner is %+v after a restart", got)
	}
	if _, err := mock.ReadOwner(f.config.StateDir, "../"+id); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got error %v for a volume that does not exist", err)
	}
}

func TestMalformedTransfers(t *testing.T) {
	f := start(t, mock.Config{Linkage: driver.LinkageNone, TransferService: true})
	client := transferpb.NewTransferClient(f.conn)
	id := f.volume("volume", writer, nil)
	owner := func(o driver.Owner) *transferpb.Owner {
		return &transferpb.Owner{Namespace: o.Namespace, Name: o.Name, Uid: string(o.UID)}
	}
	for name, test := range map[string]struct {
		change func(*transferpb.SetOwnerRequest)
		code   codes.Code
		word   string
	}{
		"no volume":       {func(r *transferpb.SetOwnerRequest) { r.VolumeId = "" }, codes.InvalidArgument, "volume"},
		"unknown volume":  {func(r *transferpb.SetOwnerRequest) { r.VolumeId = "none" }, codes.NotFound, "none"},
		"no giver":        {func(r *transferpb.SetOwnerRequest) { r.From = nil }, codes.InvalidArgument, "from"},
		"receiver no uid": {func(r *transferpb.SetOwnerRequest) { r.To.Uid = "" }, codes.InvalidArgument, "to"},
		"no transfer":     {func(r *transferpb.SetOwnerRequest) { r.TransferId = "" }, codes.InvalidArgument, "transfer ID"},
	} {
		t.Run(name, func(t *testing.T) {
			request := &transferpb.SetOwnerRequest{VolumeId: id, From: owner(giver), To: owner(receiver), TransferId: "3"}
			test.change(request)
			_, err := client.SetOwner(f.ctx, request)
			wantError(t, err, test.code, test.word)
			_, err = client.ValidateVolume(f.ctx, &transferpb.ValidateVolumeRequest{
				VolumeId: request.VolumeId, From: request.From, To: request.To, TransferId: request.TransferId,
			})
			wantError(t, err, test.code, test.word)
		})
	}
}

// TestGarbageIsCaught by the sidecar.
func TestGarbageIsCaught(t *testing.T) {
	f := start(t, mock.Config{Linkage: driver.LinkageNone, TransferService: true})
	id := f.volume("volume", writer, nil)
	sidecar := f.sidecar()
	f.driver.SetFaults(mock.Fault{Method: "ValidateVolume", Garbage: true}, mock.Fault{Method: "ListSnapshots", Garbage: true})
	if verdict, err := sidecar.Validate(f.ctx, transferOf(id)); !errors.Is(err, driver.ErrMalformed) {
		t.Errorf("got %+v, %v", verdict, err)
	}
	if ids, _, err := sidecar.Snapshots(f.ctx, id); !errors.Is(err, driver.ErrMalformed) {
		t.Errorf("got %v, %v", ids, err)
	}
}

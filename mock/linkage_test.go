// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package mock_test

import (
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/csi-transfer/csi-transfer/mock"
	"github.com/csi-transfer/csi-transfer/pkg/apis/transfer/v1alpha1"
	"github.com/csi-transfer/csi-transfer/pkg/driver"
)

// TestLinkage deletes everything that something else was made from, before it.
func TestLinkage(t *testing.T) {
	for _, test := range []struct {
		linkage driver.Linkage
		// refused are the deletions that fail because something depends.
		snapshotted, grouped, cloned, restored, restoredGroup bool
	}{
		{linkage: ""},
		{linkage: driver.LinkageNone},
		{linkage: driver.LinkageSnapshots, snapshotted: true, grouped: true},
		{linkage: driver.LinkageChain, snapshotted: true, grouped: true, cloned: true, restored: true, restoredGroup: true},
	} {
		t.Run("linkage="+string(test.linkage), func(t *testing.T) {
			f := start(t, mock.Config{Linkage: test.linkage})
			// expect deletes, and where that is refused for the dependent's sake,
			// deletes the dependent first.
			expect := func(what string, refused bool, dependent string, deleteIt, deleteDependent func() error) {
				t.Helper()
				err := deleteIt()
				if !refused {
					if err != nil {
						t.Errorf("deleting a %s: %v", what, err)
					}
					return
				}
				wantError(t, err, codes.FailedPrecondition, dependent)
				for _, step := range []func() error{deleteDependent, deleteIt} {
					if err := step(); err != nil {
						t.Errorf("deleting a %s after its dependent: %v", what, err)
					}
				}
			}

			snapshotted := f.volume("snapshotted", writer, nil)
			snapshot := f.snapshot("snapshot", snapshotted)
			expect("volume with a snapshot", test.snapshotted, snapshot,
				func() error { return f.deleteVolume(snapshotted) },
				func() error { return f.deleteSnapshot(snapshot) })

			grouped := f.volume("grouped", writer, nil)
			group := f.group("group", grouped)
			expect("volume with a group snapshot", test.grouped, group.GetSnapshots()[0].GetSnapshotId(),
				func() error { return f.deleteVolume(grouped) },
				func() error { return f.deleteGroup(group) })

			cloned := f.volume("cloned", writer, nil)
			clone := f.volume("clone", writer, fromVolume(cloned))
			expect("volume with a clone", test.cloned, clone,
				func() error { return f.deleteVolume(cloned) },
				func() error { return f.deleteVolume(clone) })

			origin := f.volume("origin", writer, nil)
			restored := f.snapshot("restored", origin)
			volume := f.volume("volume", writer, fromSnapshot(restored))
			expect("snapshot that was restored", test.restored, volume,
				func() error { return f.deleteSnapshot(restored) },
				func() error { return f.deleteVolume(volume) })

			restoredGroup := f.group("restored", origin)
			member := f.volume("member", writer, fromSnapshot(restoredGroup.GetSnapshots()[0].GetSnapshotId()))
			expect("group snapshot that was restored", test.restoredGroup, member,
				func() error { return f.deleteGroup(restoredGroup) },
				func() error { return f.deleteVolume(member) })
		})
	}
}

func TestLinkageIsAdvertised(t *testing.T) {
	for _, linkage := range []driver.Linkage{"", driver.LinkageNone, driver.LinkageSnapshots, driver.LinkageChain} {
		f := start(t, mock.Config{Linkage: linkage})
		info := must(f.GetPluginInfo(f.ctx, &csi.GetPluginInfoRequest{}))(t)
		value, advertised := info.GetManifest()[v1alpha1.AnnotationSnapshotLinkage]
		if value != string(linkage) || advertised != (linkage != "") {
			t.Errorf("linkage %q: the manifest is %v", linkage, info.GetManifest())
		}
	}
}

// group takes a group snapshot.
func (f *fixture) group(name string, volumeIDs ...string) *csi.VolumeGroupSnapshot {
	f.t.Helper()
	return must(f.CreateVolumeGroupSnapshot(f.ctx, &csi.CreateVolumeGroupSnapshotRequest{
		Name: name, SourceVolumeIds: volumeIDs,
	}))(f.t).GetGroupSnapshot()
}

func (f *fixture) deleteGroup(group *csi.VolumeGroupSnapshot) error {
	_, err := f.DeleteVolumeGroupSnapshot(f.ctx, &csi.DeleteVolumeGroupSnapshotRequest{
		GroupSnapshotId: group.GetGroupSnapshotId(), SnapshotIds: snapshotIDs(group),
	})
	return err
}

func snapshotIDs(group *csi.VolumeGroupSnapshot) []string {
	var ids []string
	for _, snapshot := range group.GetSnapshots() {
		ids = append(ids, snapshot.GetSnapshotId())
	}
	return ids
}

func TestGroupSnapshots(t *testing.T) {
	f := start(t, mock.Config{})
	first, second := f.volume("first", writer, nil), f.volume("second", writer, nil)
	group := f.group("group", second, first)
	if len(group.GetSnapshots()) != 2 || !group.GetReadyToUse() {
		t.Fatalf("got group %v, want two snapshots, ready", group)
	}
	if again := f.group("group", first, second); again.GetGroupSnapshotId() != group.GetGroupSnapshotId() {
		t.Errorf("the same request made another group: %v", again)
	}
	_, err := f.CreateVolumeGroupSnapshot(f.ctx, &csi.CreateVolumeGroupSnapshotRequest{Name: "group", SourceVolumeIds: []string{first}})
	wantError(t, err, codes.AlreadyExists, group.GetGroupSnapshotId())

	member := group.GetSnapshots()[0]
	if member.GetGroupSnapshotId() != group.GetGroupSnapshotId() {
		t.Errorf("snapshot %v does not name its group", member)
	}
	wantError(t, f.deleteSnapshot(member.GetSnapshotId()), codes.InvalidArgument, group.GetGroupSnapshotId())
	_, err = f.GetVolumeGroupSnapshot(f.ctx, &csi.GetVolumeGroupSnapshotRequest{
		GroupSnapshotId: group.GetGroupSnapshotId(), SnapshotIds: []string{member.GetSnapshotId()},
	})
	wantError(t, err, codes.InvalidArgument, group.GetGroupSnapshotId())

	// A group of which one volume does not exist leaves nothing behind.
	_, err = f.CreateVolumeGroupSnapshot(f.ctx, &csi.CreateVolumeGroupSnapshotRequest{Name: "broken", SourceVolumeIds: []string{first, "vol-none"}})
	wantError(t, err, codes.NotFound, "vol-none")
	for range 2 {
		if err := f.deleteGroup(group); err != nil {
			t.Errorf("deleting the group: %v", err)
		}
	}
	left := must(f.ListSnapshots(f.ctx, &csi.ListSnapshotsRequest{}))(t)
	if len(left.GetEntries()) > 0 {
		t.Errorf("snapshots are left: %v", left)
	}
}

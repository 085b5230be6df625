// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package mock_test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"

	"github.com/csi-transfer/csi-transfer/mock"
)

func TestRestart(t *testing.T) {
	f := startNode(t, mock.Config{AttachRequired: true})
	id := f.volume("volume", writer, nil)
	snapshot := f.snapshot("snapshot", id)
	group := f.group("group", id)
	attach := &csi.ControllerPublishVolumeRequest{VolumeId: id, NodeId: nodeID, VolumeCapability: writer}
	if _, err := f.ControllerPublishVolume(f.ctx, attach); err != nil {
		t.Fatal(err)
	}
	staging, target := f.publish(id, writer)
	write(t, filepath.Join(target, "file"), "data")

	f = f.restart()
	wantContent(t, filepath.Join(target, "file"), "data")
	if again := f.volume("volume", writer, nil); again != id {
		t.Errorf("the same request made another volume: %s", again)
	}
	if again := f.snapshot("snapshot", id); again != snapshot {
		t.Errorf("the same request made another snapshot: %s", again)
	}
	if again := f.group("group", id); len(again.GetSnapshots()) != 1 || again.GetGroupSnapshotId() != group.GetGroupSnapshotId() {
		t.Errorf("the same request made another group: %v", again)
	}
	volumes := must(f.ListVolumes(f.ctx, &csi.ListVolumesRequest{}))(t)
	if nodes := volumes.GetEntries()[0].GetStatus().GetPublishedNodeIds(); len(nodes) != 1 || nodes[0] != nodeID {
		t.Errorf("the volume is attached to %v", nodes)
	}
	if err := f.unpublish(id, target); err != nil {
		t.Error(err)
	}
	if err := f.unstage(id, staging); err != nil {
		t.Error(err)
	}
	wantNothingAt(t, target)
}

// TestReboot has the mounts vanish, as a reboot does.
func TestReboot(t *testing.T) {
	f := startNode(t, mock.Config{})
	id := f.volume("volume", writer, nil)
	staging, target := f.publish(id, writer)
	write(t, filepath.Join(target, "file"), "data")
	for _, path := range []string{target, staging} {
		unmount(t, path)
	}
	f = f.restart()
	if err := f.stageAt(id, staging, writer); err != nil {
		t.Fatal(err)
	}
	if _, err := f.NodePublishVolume(f.ctx, publishRequest(id, staging, target, writer)); err != nil {
		t.Fatal(err)
	}
	wantContent(t, filepath.Join(target, "file"), "data")
}

// TestCrash starts on what a crash in the middle of a change leaves behind.
func TestCrash(t *testing.T) {
	f := start(t, mock.Config{})
	id := f.volume("volume", writer, nil)
	kept := f.snapshot("kept", id)
	group := f.group("group", id)
	f.stop()
	for _, err := range []error{
		// A volume that was being made, and a group that was being removed.
		os.Rename(filepath.Join(f.config.StateDir, "volumes", id), filepath.Join(f.config.StateDir, "tmp", id)),
		os.RemoveAll(filepath.Join(f.config.StateDir, "groups", group.GetGroupSnapshotId())),
		os.WriteFile(filepath.Join(f.config.StateDir, "snapshots", "stray"), nil, 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}

	f = start(t, f.config)
	if left := must(os.ReadDir(filepath.Join(f.config.StateDir, "tmp")))(t); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	if volumes := must(f.ListVolumes(f.ctx, &csi.ListVolumesRequest{}))(t); len(volumes.GetEntries()) > 0 {
		t.Errorf("got volumes %v, want none", volumes)
	}
	snapshots := must(f.ListSnapshots(f.ctx, &csi.ListSnapshotsRequest{}))(t)
	if len(snapshots.GetEntries()) != 1 || snapshots.GetEntries()[0].GetSnapshot().GetSnapshotId() != kept {
		t.Errorf("got snapshots %v, want only %s", snapshots, kept)
	}
	f.volume("volume", writer, nil)
}

// TestFailedCopy leaves no snapshot that could be taken for a good one.
func TestFailedCopy(t *testing.T) {
	f := start(t, mock.Config{})
	id := f.volume("volume", writer, nil)
	content := filepath.Join(f.config.StateDir, "volumes", id, "data")
	if err := os.Remove(content); err != nil {
		t.Fatal(err)
	}
	_, err := f.CreateSnapshot(f.ctx, &csi.CreateSnapshotRequest{Name: "snapshot", SourceVolumeId: id})
	wantError(t, err, codes.Internal, content)
	if snapshots := must(f.ListSnapshots(f.ctx, &csi.ListSnapshotsRequest{}))(t); len(snapshots.GetEntries()) > 0 {
		t.Errorf("got snapshots %v", snapshots)
	}
}

func TestDamagedStateIsNamed(t *testing.T) {
	f := start(t, mock.Config{})
	id := f.volume("volume", writer, nil)
	path := filepath.Join(f.config.StateDir, "volumes", id, "object.json")
	write(t, path, "{")
	_, err := f.ControllerGetVolume(f.ctx, &csi.ControllerGetVolumeRequest{VolumeId: id})
	wantError(t, err, codes.Internal, path)
	f.stop()
	if _, err := mock.New(f.config); err != nil {
		t.Errorf("a damaged volume keeps the driver from starting: %v", err)
	}
}

// TestSharedState has a controller and a node process work on one state.
func TestSharedState(t *testing.T) {
	node := startNode(t, mock.Config{})
	controller := start(t, mock.Config{StateDir: node.config.StateDir, NodeID: "elsewhere"})
	id := controller.volume("volume", writer, nil)
	_, target := node.publish(id, writer)
	wantError(t, controller.deleteVolume(id), codes.FailedPrecondition, nodeID)
	if err := node.unpublish(id, target); err != nil {
		t.Fatal(err)
	}
}

func TestConcurrentCalls(t *testing.T) {
	f := start(t, mock.Config{})
	second := start(t, mock.Config{StateDir: f.config.StateDir})
	var calls errgroup.Group
	for i := range 40 {
		client := []*fixture{f, second}[i%2]
		calls.Go(func() error {
			// Each volume is made by four calls at once.
			request := &csi.CreateVolumeRequest{Name: fmt.Sprint(i / 4), VolumeCapabilities: []*csi.VolumeCapability{writer}}
			volume, err := client.CreateVolume(client.ctx, request)
			if err != nil {
				return err
			}
			_, err = client.CreateSnapshot(client.ctx, &csi.CreateSnapshotRequest{
				Name: fmt.Sprint(i), SourceVolumeId: volume.GetVolume().GetVolumeId(),
			})
			return err
		})
	}
	if err := calls.Wait(); err != nil {
		t.Fatal(err)
	}
	volumes := must(f.ListVolumes(f.ctx, &csi.ListVolumesRequest{}))(t)
	snapshots := must(f.ListSnapshots(f.ctx, &csi.ListSnapshotsRequest{}))(t)
	if len(volumes.GetEntries()) != 10 || len(snapshots.GetEntries()) != 40 {
		t.Errorf("got %d volumes and %d snapshots, want 10 and 40", len(volumes.GetEntries()), len(snapshots.GetEntries()))
	}
}

func TestEndpoint(t *testing.T) {
	dir, err := os.MkdirTemp("", "mock")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	file := filepath.Join(dir, "file")
	write(t, file, "data")
	stale := filepath.Join(dir, "stale.sock")
	listener := must(net.Listen("unix", stale))(t)
	listener.(*net.UnixListener).SetUnlinkOnClose(false)
	listener.Close()

	for endpoint, want := range map[string]string{
		"relative.sock":        "relative.sock",
		"tcp://127.0.0.1:1":    "tcp://127.0.0.1:1",
		file:                   "is no socket",
		dir + "/none/csi.sock": "no such file",
		"unix://" + stale:      "",
		"unix:" + stale:        "",
		stale:                  "",
	} {
		t.Run(endpoint, func(t *testing.T) {
			d := must(mock.New(mock.Config{StateDir: filepath.Join(dir, "state")}))(t)
			// Stopped before it starts, a driver listens and returns at once.
			d.Stop()
			err := d.Run(t.Context(), endpoint)
			if want == "" && err != nil && !strings.Contains(err.Error(), "stopped") {
				t.Errorf("cannot listen at %s: %v", endpoint, err)
			}
			if want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
				t.Errorf("got error %v, want one with %q", err, want)
			}
		})
	}
	wantContent(t, file, "data")
}

func TestConfig(t *testing.T) {
	for name, test := range map[string]struct {
		config mock.Config
		want   string
	}{
		"no state directory":      {mock.Config{}, "state directory"},
		"state directory is file": {mock.Config{StateDir: "/dev/null"}, "/dev/null"},
		"name":                    {mock.Config{StateDir: t.TempDir(), DriverName: "under_score"}, "under_score"},
		"linkage":                 {mock.Config{StateDir: t.TempDir(), Linkage: "loose"}, "loose"},
		"node ID":                 {mock.Config{StateDir: t.TempDir(), NodeID: strings.Repeat("n", 257)}, "256"},
		"hydrate":                 {mock.Config{StateDir: t.TempDir(), Hydrate: -1}, "negative"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := mock.New(test.config); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got error %v, want one with %q", err, test.want)
			}
		})
	}
}

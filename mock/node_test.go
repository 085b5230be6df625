// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package mock_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/csi-transfer/csi-transfer/mock"
)

// startNode is start for tests that mount.
func startNode(t *testing.T, config mock.Config) *fixture {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	f := start(t, config)
	t.Cleanup(func() {
		d, err := mock.New(mock.Config{StateDir: f.config.StateDir})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Stop()
		if err := d.Unmount(); err != nil {
			t.Errorf("unmounting: %v", err)
		}
	})
	return f
}

// stage stages the volume at a new directory.
func (f *fixture) stage(volumeID string, usedAs *csi.VolumeCapability) (path string) {
	f.t.Helper()
	path = filepath.Join(f.t.TempDir(), "staging")
	if err := os.Mkdir(path, 0o700); err != nil {
		f.t.Fatal(err)
	}
	if err := f.stageAt(volumeID, path, usedAs); err != nil {
		f.t.Fatal(err)
	}
	return path
}

func (f *fixture) stageAt(volumeID, path string, usedAs *csi.VolumeCapability) error {
	_, err := f.NodeStageVolume(f.ctx, &csi.NodeStageVolumeRequest{
		VolumeId: volumeID, StagingTargetPath: path, VolumeCapability: usedAs,
	})
	return err
}

func (f *fixture) unstage(volumeID, path string) error {
	_, err := f.NodeUnstageVolume(f.ctx, &csi.NodeUnstageVolumeRequest{VolumeId: volumeID, StagingTargetPath: path})
	return err
}

func publishRequest(volumeID, staging, target string, usedAs *csi.VolumeCapability) *csi.NodePublishVolumeRequest {
	return &csi.NodePublishVolumeRequest{
		VolumeId: volumeID, StagingTargetPath: staging, TargetPath: target, VolumeCapability: usedAs,
	}
}

// publish stages and publishes the volume at a new path.
func (f *fixture) publish(volumeID string, usedAs *csi.VolumeCapability) (staging, target string) {
	f.t.Helper()
	staging = f.stage(volumeID, usedAs)
	target = filepath.Join(f.t.TempDir(), "target")
	if _, err := f.NodePublishVolume(f.ctx, publishRequest(volumeID, staging, target, usedAs)); err != nil {
		f.t.Fatal(err)
	}
	return staging, target
}

func (f *fixture) unpublish(volumeID, path string) error {
	_, err := f.NodeUnpublishVolume(f.ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: volumeID, TargetPath: path})
	return err
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// unmount takes a mount away behind the driver's back.
func unmount(t *testing.T, path string) {
	t.Helper()
	if err := unix.Unmount(path, 0); err != nil {
		t.Fatal(err)
	}
}

func wantContent(t *testing.T, path, want string) {
	t.Helper()
	got, err := os.ReadFile(path)
	if err != nil || string(got) != want {
		t.Errorf("%s has content %q, error %v; want %q", path, got, err, want)
	}
}

func wantNothingAt(t *testing.T, path string) {
	t.Helper()
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("%s is still there, or cannot be read: %v", path, err)
	}
}

func TestMountIsReal(t *testing.T) {
	f := startNode(t, mock.Config{})
	id := f.volume("volume", writer, nil)
	staging, target := f.publish(id, writer)
	write(t, filepath.Join(target, "file"), "data")

	// What is in use cannot be deleted or unstaged.
	wantError(t, f.deleteVolume(id), codes.FailedPrecondition, id, nodeID)
	wantError(t, f.unstage(id, staging), codes.FailedPrecondition, target)

	for range 2 {
		if err := f.unpublish(id, target); err != nil {
			t.Fatal(err)
		}
	}
	wantNothingAt(t, target)
	for range 2 {
		if err := f.unstage(id, staging); err != nil {
			t.Fatal(err)
		}
	}
	if entries := must(os.ReadDir(staging))(t); len(entries) > 0 {
		t.Errorf("the staging directory still shows %v", entries)
	}

	_, target = f.publish(id, writer)
	wantContent(t, filepath.Join(target, "file"), "data")
}

func TestBlockVolume(t *testing.T) {
	f := startNode(t, mock.Config{})
	id := f.volume("volume", blockWriter, nil)
	staging, target := f.publish(id, blockWriter)
	if info := must(os.Stat(target))(t); info.Mode().Type() != os.ModeDevice {
		t.Fatalf("the target is no block device but %s", info.Mode())
	}
	if size := deviceSize(t, target); size != mebibyte {
		t.Errorf("the device has %d bytes", size)
	}
	write(t, target, "data")

	if _, err := f.ControllerExpandVolume(f.ctx, &csi.ControllerExpandVolumeRequest{
		VolumeId: id, CapacityRange: &csi.CapacityRange{RequiredBytes: 2 * mebibyte},
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := f.NodeExpandVolume(f.ctx, &csi.NodeExpandVolumeRequest{VolumeId: id, VolumePath: target}); err != nil {
		t.Fatal(err)
	}
	if size := deviceSize(t, target); size != 2*mebibyte {
		t.Errorf("the device has %d bytes after it was expanded", size)
	}

	if err := f.unpublish(id, target); err != nil {
		t.Fatal(err)
	}
	wantNothingAt(t, target)
	if err := f.unstage(id, staging); err != nil {
		t.Fatal(err)
	}
	_, target = f.publish(id, blockWriter)
	wantStart(t, target, "data")
}

func deviceSize(t *testing.T, path string) int64 {
	t.Helper()
	file := must(os.Open(path))(t)
	defer file.Close()
	return must(file.Seek(0, 2))(t)
}

// wantStart compares the first bytes of a device or file.
func wantStart(t *testing.T, path, want string) {
	t.Helper()
	file := must(os.Open(path))(t)
	defer file.Close()
	got := make([]byte, len(want))
	if _, err := file.Read(got); err != nil || string(got) != want {
		t.Errorf("%s starts with %q, error %v; want %q", path, got, err, want)
	}
}

func TestReadOnly(t *testing.T) {
	f := startNode(t, mock.Config{})
	reader := capability(csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY)
	for name, request := range map[string]*csi.NodePublishVolumeRequest{
		"by the request":     {VolumeCapability: manyWriters, Readonly: true},
		"by the access mode": {VolumeCapability: reader},
		"by a mount flag": {VolumeCapability: &csi.VolumeCapability{
			AccessMode: manyWriters.GetAccessMode(),
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{MountFlags: []string{"ro"}}},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			request.VolumeId = f.volume(name, manyWriters, nil)
			request.StagingTargetPath = f.stage(request.VolumeId, manyWriters)
			request.TargetPath = filepath.Join(f.t.TempDir(), "target")
			if _, err := f.NodePublishVolume(f.ctx, request); err != nil {
				t.Fatal(err)
			}
			err := os.WriteFile(filepath.Join(request.TargetPath, "file"), nil, 0o600)
			if !strings.Contains(err.Error(), unix.EROFS.Error()) {
				t.Errorf("writing to a read-only volume: %v", err)
			}
		})
	}
}

// TestPublishTable is CSI's table of what a second NodePublishVolume gets.
func TestPublishTable(t *testing.T) {
	f := startNode(t, mock.Config{})
	for mode, elsewhere := range map[csi.VolumeCapability_AccessMode_Mode]codes.Code{
		csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER:        codes.FailedPrecondition,
		csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY:   codes.FailedPrecondition,
		csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER: codes.FailedPrecondition,
		csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER:  codes.OK,
		csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY:    codes.OK,
		csi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER:  codes.OK,
		csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER:   codes.OK,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			usedAs := capability(mode)
			id := f.volume(mode.String(), usedAs, nil)
			staging, target := f.publish(id, usedAs)
			request := publishRequest(id, staging, target, usedAs)
			_, err := f.NodePublishVolume(f.ctx, request)
			wantError(t, err, codes.OK)
			request.VolumeContext = map[string]string{"csi.storage.k8s.io/pod.name": "another"}
			_, err = f.NodePublishVolume(f.ctx, request)
			wantError(t, err, codes.AlreadyExists, id, target)
			_, err = f.NodePublishVolume(f.ctx, publishRequest(id, staging, target+"2", usedAs))
			wantError(t, err, elsewhere)
		})
	}
}

func TestDangerousPaths(t *testing.T) {
	f := startNode(t, mock.Config{})
	id := f.volume("volume", writer, nil)
	staging := f.stage(id, writer)

	dir := t.TempDir()
	full := filepath.Join(dir, "full")
	link := filepath.Join(dir, "link")
	file := filepath.Join(dir, "file")
	linkToState := filepath.Join(dir, "link-to-state")
	write(t, file, "")
	for _, err := range []error{
		os.MkdirAll(filepath.Join(full, "something"), 0o700),
		os.Symlink(full, link),
		os.Symlink(f.config.StateDir, linkToState),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, path := range map[string]string{
		"relative":                    "some/path",
		"not clean":                   dir + "/../target",
		"root":                        "/",
		"top-level directory":         "/target",
		"system directory":            "/etc/target",
		"kernel file system":          "/proc/sys",
		"state directory":             f.config.StateDir,
		"in the state directory":      filepath.Join(f.config.StateDir, "target"),
		"in it, through a link":       filepath.Join(linkToState, "target"),
		"around the state directory":  filepath.Dir(f.config.StateDir),
		"parent missing":              filepath.Join(dir, "none", "target"),
		"symlink":                     link,
		"file":                        file,
		"directory that is not empty": full,
		"mount of somebody":           staging,
		"too long":                    dir + strings.Repeat("/directory", unix.PathMax/10),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := f.NodePublishVolume(f.ctx, publishRequest(id, staging, path, writer))
			wantError(t, err, codes.InvalidArgument, "path")
			other := f.volume("to stage", writer, nil)
			wantError(t, f.stageAt(other, path, writer), codes.InvalidArgument, "path")
		})
	}

	// What the driver did not publish it does not unmount or remove.
	for _, path := range []string{staging, full, file} {
		if err := f.unpublish(id, path); err != nil {
			t.Errorf("unpublishing from %s: %v", path, err)
		}
	}
	if err := f.unstage(id, full); err != nil {
		t.Error(err)
	}
	for _, path := range []string{staging, filepath.Join(full, "something"), file} {
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
	}
	// It does not follow a link that took its mount's place either.
	target := filepath.Join(dir, "target")
	if _, err := f.NodePublishVolume(f.ctx, publishRequest(id, staging, target, writer)); err != nil {
		t.Fatal(err)
	}
	unmount(t, target)
	if err := os.Remove(target); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(staging, target); err != nil {
		t.Fatal(err)
	}
	if err := f.unpublish(id, target); err != nil {
		t.Error(err)
	}
	wantNothingAt(t, target)
	write(t, filepath.Join(staging, "file"), "still mounted")
	wantContent(t, filepath.Join(f.config.StateDir, "volumes", id, "data", "file"), "still mounted")
}

func TestAttach(t *testing.T) {
	f := startNode(t, mock.Config{AttachRequired: true, MaxVolumes: 2})
	start(t, mock.Config{StateDir: f.config.StateDir, NodeID: "node-2", AttachRequired: true})
	attach := func(id, node string, usedAs *csi.VolumeCapability) error {
		_, err := f.ControllerPublishVolume(f.ctx, &csi.ControllerPublishVolumeRequest{VolumeId: id, NodeId: node, VolumeCapability: usedAs})
		return err
	}
	id := f.volume("volume", writer, nil)
	staging := t.TempDir()
	wantError(t, f.stageAt(id, staging, writer), codes.FailedPrecondition, id, nodeID)
	for range 2 {
		if err := attach(id, nodeID, writer); err != nil {
			t.Fatal(err)
		}
	}
	wantError(t, attach(id, "node-2", writer), codes.FailedPrecondition, nodeID)
	wantError(t, attach(id, "node-3", writer), codes.NotFound, "node-3")
	wantError(t, f.stageAt(id, staging, writer), codes.OK)

	shared := f.volume("shared", manyWriters, nil)
	for _, node := range []string{nodeID, "node-2"} {
		if err := attach(shared, node, manyWriters); err != nil {
			t.Fatal(err)
		}
	}
	wantError(t, attach(f.volume("one too many", writer, nil), nodeID, writer), codes.ResourceExhausted, nodeID)
	got := must(f.ControllerGetVolume(f.ctx, &csi.ControllerGetVolumeRequest{VolumeId: shared}))(t)
	if nodes := strings.Join(got.GetStatus().GetPublishedNodeIds(), " "); nodes != "node-1 node-2" {
		t.Errorf("the volume is attached to %s", nodes)
	}
	wantError(t, f.deleteVolume(shared), codes.FailedPrecondition, "node-1, node-2")
	if _, err := f.ControllerUnpublishVolume(f.ctx, &csi.ControllerUnpublishVolumeRequest{VolumeId: shared}); err != nil {
		t.Fatal(err)
	}
	if err := f.deleteVolume(shared); err != nil {
		t.Error(err)
	}
}

func TestStatsAndHealth(t *testing.T) {
	f := startNode(t, mock.Config{})
	id := f.volume("volume", writer, nil)
	_, target := f.publish(id, writer)
	write(t, filepath.Join(target, "file"), strings.Repeat("x", mebibyte/2))
	stats := must(f.NodeGetVolumeStats(f.ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: id, VolumePath: target}))(t)
	if usage := stats.GetUsage()[0]; usage.GetTotal() != mebibyte || usage.GetUsed() < mebibyte/2 || usage.GetUsed()+usage.GetAvailable() != mebibyte {
		t.Errorf("got usage %v", usage)
	}

	wantHealth := func(want string) {
		t.Helper()
		health := must(f.NodeGetVolumeHealth(f.ctx, &csi.NodeGetVolumeHealthRequest{VolumeId: id}))(t)
		var reasons []string
		for _, entry := range health.GetVolumeHealth().GetHealthStatuses() {
			reasons = append(reasons, entry.GetReason())
		}
		if got := strings.Join(reasons, " "); got != want {
			t.Errorf("got health %q, want %q", got, want)
		}
	}
	wantHealth("")
	unmount(t, target)
	wantHealth("NotMounted")
	if err := os.RemoveAll(filepath.Join(f.config.StateDir, "volumes", id, "data")); err != nil {
		t.Fatal(err)
	}
	wantHealth("ContentMissing NotMounted")
	unhealthy := must(f.ControllerListVolumeHealth(f.ctx, &csi.ControllerListVolumeHealthRequest{}))(t)
	if len(unhealthy.GetEntries()) != 1 || unhealthy.GetEntries()[0].GetVolumeId() != id {
		t.Errorf("got unhealthy volumes %v", unhealthy)
	}
}

// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package mock_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/csi-transfer/csi-transfer/mock"
)

// TestCopiesAreIndependent writes to a volume, its clone and a restored
// snapshot, each of which keeps its own content.
func TestCopiesAreIndependent(t *testing.T) {
	for name, test := range map[string]struct {
		usedAs *csi.VolumeCapability
		file   string // below the target
	}{
		"mount": {usedAs: writer, file: "file"},
		"block": {usedAs: blockWriter},
	} {
		t.Run(name, func(t *testing.T) {
			f := startNode(t, mock.Config{})
			origin := f.volume("origin", test.usedAs, nil)
			_, target := f.publish(origin, test.usedAs)
			write(t, filepath.Join(target, test.file), "first")
			flush(t, target)
			snapshot := f.snapshot("snapshot", origin)
			clone := f.volume("clone", test.usedAs, fromVolume(origin))
			write(t, filepath.Join(target, test.file), "other")
			flush(t, target)

			_, cloneTarget := f.publish(clone, test.usedAs)
			wantStart(t, filepath.Join(cloneTarget, test.file), "first")
			write(t, filepath.Join(cloneTarget, test.file), "third")
			wantStart(t, filepath.Join(target, test.file), "other")

			if err := f.unpublish(origin, target); err != nil {
				t.Fatal(err)
			}
			restored := f.volume("restored", test.usedAs, fromSnapshot(snapshot))
			_, restoredTarget := f.publish(restored, test.usedAs)
			wantStart(t, filepath.Join(restoredTarget, test.file), "first")
		})
	}
}

// flush writes back what is in the page cache of a block device.
func flush(t *testing.T, path string) {
	t.Helper()
	file := must(os.Open(path))(t)
	defer file.Close()
	if err := file.Sync(); err != nil {
		t.Fatal(err)
	}
}

func TestCopiesKeepOwnersModesAndHoles(t *testing.T) {
	f := startNode(t, mock.Config{})
	origin := f.volume("origin", writer, nil)
	_, target := f.publish(origin, writer)
	file := filepath.Join(target, "file")
	write(t, file, "data")
	for _, err := range []error{
		os.Truncate(file, 1<<40),
		os.Chown(file, 1000, 2000),
		os.Chmod(file, 0o640),
		os.Symlink("/nowhere", filepath.Join(target, "link")),
		syscall.Mkfifo(filepath.Join(target, "fifo"), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	clone := f.volume("clone", writer, fromVolume(origin))
	_, target = f.publish(clone, writer)
	info := must(os.Stat(filepath.Join(target, "file")))(t)
	stat := info.Sys().(*syscall.Stat_t)
	if stat.Uid != 1000 || stat.Gid != 2000 || info.Mode() != 0o640 || info.Size() != 1<<40 || stat.Blocks > 16 {
		t.Errorf("the copy is %+v", stat)
	}
	if to := must(os.Readlink(filepath.Join(target, "link")))(t); to != "/nowhere" {
		t.Errorf("the link leads to %s", to)
	}
	if info := must(os.Stat(filepath.Join(target, "fifo")))(t); info.Mode().Type() != os.ModeNamedPipe {
		t.Errorf("the fifo is %s", info.Mode())
	}
}

func TestSizeOfCopies(t *testing.T) {
	f := start(t, mock.Config{})
	origin := f.volume("origin", blockWriter, nil)
	snapshot := f.snapshot("snapshot", origin)
	for _, test := range []struct {
		name   string
		source *csi.VolumeContentSource
		usedAs *csi.VolumeCapability
		wanted *csi.CapacityRange
		code   codes.Code
		size   int64
	}{
		{name: "as large as the volume", source: fromVolume(origin), wanted: &csi.CapacityRange{LimitBytes: mebibyte}, size: mebibyte},
		{name: "larger than the volume", source: fromVolume(origin), wanted: &csi.CapacityRange{RequiredBytes: 2 * mebibyte}, size: 2 * mebibyte},
		{name: "larger than the snapshot", source: fromSnapshot(snapshot), wanted: &csi.CapacityRange{RequiredBytes: 2 * mebibyte}, size: 2 * mebibyte},
		{name: "smaller than the volume", source: fromVolume(origin), wanted: &csi.CapacityRange{LimitBytes: mebibyte / 2}, code: codes.OutOfRange},
		{name: "smaller than the snapshot", source: fromSnapshot(snapshot), wanted: &csi.CapacityRange{RequiredBytes: mebibyte / 2}, code: codes.OutOfRange},
		{name: "of another access type", source: fromSnapshot(snapshot), usedAs: writer, code: codes.InvalidArgument},
	} {
		t.Run(test.name, func(t *testing.T) {
			usedAs := test.usedAs
			if usedAs == nil {
				usedAs = blockWriter
			}
			response, err := f.CreateVolume(f.ctx, &csi.CreateVolumeRequest{
				Name: test.name, VolumeCapabilities: []*csi.VolumeCapability{usedAs},
				CapacityRange: test.wanted, VolumeContentSource: test.source,
			})
			wantError(t, err, test.code)
			if size := response.GetVolume().GetCapacityBytes(); size != test.size {
				t.Errorf("got %d bytes, want %d", size, test.size)
			}
		})
	}
}

func TestHydration(t *testing.T) {
	f := startNode(t, mock.Config{Hydrate: time.Hour})
	origin := f.volume("origin", writer, nil)
	clone := f.volume("clone", writer, fromVolume(origin))
	wantError(t, f.stageAt(clone, t.TempDir(), writer), codes.Aborted, clone)
	_, err := f.CreateSnapshot(f.ctx, &csi.CreateSnapshotRequest{Name: "snapshot", SourceVolumeId: clone})
	wantError(t, err, codes.Aborted, clone)
	health := must(f.ControllerGetVolumeHealth(f.ctx, &csi.ControllerGetVolumeHealthRequest{VolumeId: clone}))(t)
	if statuses := health.GetVolumeHealth().GetHealthStatuses(); len(statuses) != 1 || statuses[0].GetReason() != "Hydrating" {
		t.Errorf("got health %v", health)
	}
	if err := f.deleteVolume(clone); err != nil {
		t.Error(err)
	}

	// The parameter overrides the flag.
	response := must(f.CreateVolume(f.ctx, &csi.CreateVolumeRequest{
		Name: "quick", VolumeCapabilities: []*csi.VolumeCapability{writer},
		VolumeContentSource: fromVolume(origin), Parameters: map[string]string{"hydrate": "1ns"},
	}))(t)
	f.publish(response.GetVolume().GetVolumeId(), writer)
}

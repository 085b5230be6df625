// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package mock_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2/ktesting"

	"github.com/csi-transfer/csi-transfer/mock"
)

const (
	mebibyte = 1 << 20
	nodeID   = "node-1"
)

// fixture is a driver that serves on a socket, with its clients.
type fixture struct {
	csi.IdentityClient
	csi.ControllerClient
	csi.GroupControllerClient
	csi.NodeClient

	t      *testing.T
	ctx    context.Context
	config mock.Config
	driver *mock.Driver
	conn   *grpc.ClientConn
	stop   func()
}

// start serves a driver until the test ends, or until stop is called.
func start(t *testing.T, config mock.Config) *fixture {
	t.Helper()
	if config.StateDir == "" {
		config.StateDir = filepath.Join(t.TempDir(), "state")
	}
	if config.NodeID == "" {
		config.NodeID = nodeID
	}
	d, err := mock.New(config)
	if err != nil {
		t.Fatal(err)
	}
	_, ctx := ktesting.NewTestContext(t)
	ctx, cancel := context.WithCancel(ctx)
	// Not t.TempDir: a socket's path cannot be as long.
	dir, err := os.MkdirTemp("", "mock")
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "csi.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- d.Serve(ctx, listener) }()
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{
		IdentityClient:        csi.NewIdentityClient(conn),
		ControllerClient:      csi.NewControllerClient(conn),
		GroupControllerClient: csi.NewGroupControllerClient(conn),
		NodeClient:            csi.NewNodeClient(conn),

		t: t, ctx: t.Context(), config: config, driver: d, conn: conn,
	}
	f.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-served; err != nil {
			t.Errorf("serving: %v", err)
		}
		conn.Close()
		os.RemoveAll(dir)
	})
	t.Cleanup(f.stop)
	return f
}

// restart serves another driver on the same state.
func (f *fixture) restart() *fixture {
	f.t.Helper()
	f.stop()
	return start(f.t, f.config)
}

func capability(mode csi.VolumeCapability_AccessMode_Mode) *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode},
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
	}
}

var (
	writer      = capability(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER)
	manyWriters = capability(csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER)
	blockWriter = &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}},
	}
)

func fromSnapshot(id string) *csi.VolumeContentSource {
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
		Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: id},
	}}
}

func fromVolume(id string) *csi.VolumeContentSource {
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
		Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: id},
	}}
}

// volume creates a volume of 1 MiB, empty where source is nil, and returns its ID.
func (f *fixture) volume(name string, usedAs *csi.VolumeCapability, source *csi.VolumeContentSource) string {
	f.t.Helper()
	response, err := f.CreateVolume(f.ctx, &csi.CreateVolumeRequest{
		Name:                name,
		VolumeCapabilities:  []*csi.VolumeCapability{usedAs},
		CapacityRange:       &csi.CapacityRange{RequiredBytes: mebibyte},
		VolumeContentSource: source,
	})
	if err != nil {
		f.t.Fatal(err)
	}
	return response.GetVolume().GetVolumeId()
}

// snapshot takes a snapshot and returns its ID.
func (f *fixture) snapshot(name, volumeID string) string {
	f.t.Helper()
	response, err := f.CreateSnapshot(f.ctx, &csi.CreateSnapshotRequest{Name: name, SourceVolumeId: volumeID})
	if err != nil {
		f.t.Fatal(err)
	}
	return response.GetSnapshot().GetSnapshotId()
}

func (f *fixture) deleteVolume(id string) error {
	_, err := f.DeleteVolume(f.ctx, &csi.DeleteVolumeRequest{VolumeId: id})
	return err
}

func (f *fixture) deleteSnapshot(id string) error {
	_, err := f.DeleteSnapshot(f.ctx, &csi.DeleteSnapshotRequest{SnapshotId: id})
	return err
}

// wantError fails unless err has the code and its message contains every word.
func wantError(t *testing.T, err error, code codes.Code, words ...string) {
	t.Helper()
	if status.Code(err) != code {
		t.Errorf("got error %v, want code %s", err, code)
		return
	}
	for _, word := range words {
		if !strings.Contains(status.Convert(err).Message(), word) {
			t.Errorf("error %q does not mention %q", err, word)
		}
	}
}

func must[T any](value T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

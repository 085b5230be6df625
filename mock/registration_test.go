// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package mock_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/klog/v2/ktesting"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/csi-transfer/csi-transfer/mock"
)

// registered is a driver that registers itself, seen by the kubelet.
type registered struct {
	registerapi.RegistrationClient
	// dir has both sockets.
	dir    string
	stop   func()
	served <-chan error
}

func register(t *testing.T, dir string) *registered {
	t.Helper()
	d, err := mock.New(mock.Config{
		StateDir: filepath.Join(t.TempDir(), "state"), NodeID: nodeID,
		Registration: mock.Registration{Dir: dir, Endpoint: "/var/lib/kubelet/plugins/mock/csi.sock"},
	})
	if err != nil {
		t.Fatal(err)
	}
	_, ctx := ktesting.NewTestContext(t)
	ctx, cancel := context.WithCancel(ctx)
	served := make(chan error, 1)
	go func() {
		defer close(served)
		served <- d.Run(ctx, filepath.Join(dir, "csi.sock"))
	}()
	socket := "unix:" + filepath.Join(dir, mock.DefaultDriverName+"-reg.sock")
	conn, err := grpc.NewClient(socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		<-served
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
	return &registered{registerapi.NewRegistrationClient(conn), dir, cancel, served}
}

// socketDir is not t.TempDir: a socket's path cannot be as long.
func socketDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "mock")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func (r *registered) wantNoSockets(t *testing.T) {
	t.Helper()
	left, err := os.ReadDir(r.dir)
	if err != nil || len(left) > 0 {
		t.Errorf("%v are left, error %v", left, err)
	}
}

func TestRegistration(t *testing.T) {
	dir := socketDir(t)
	r := register(t, dir)
	info := must(r.GetInfo(t.Context(), &registerapi.InfoRequest{}))(t)
	if info.GetType() != registerapi.CSIPlugin || info.GetName() != mock.DefaultDriverName ||
		info.GetEndpoint() != "/var/lib/kubelet/plugins/mock/csi.sock" || strings.Join(info.GetSupportedVersions(), " ") != "1.0.0" {
		t.Errorf("the kubelet is told %v", info)
	}
	if mode := must(os.Stat(filepath.Join(dir, "csi.sock")))(t).Mode(); mode.Perm() != 0o660 {
		t.Errorf("the driver's socket has mode %s: a sidecar of its group could not use it", mode)
	}
	must(r.NotifyRegistrationStatus(t.Context(), &registerapi.RegistrationStatus{PluginRegistered: true}))(t)
	r.stop()
	if err := <-r.served; err != nil {
		t.Error(err)
	}
	r.wantNoSockets(t)
}

// TestRegistrationRefused: the driver ends, so that its pod shows that it does not
// work.
func TestRegistrationRefused(t *testing.T) {
	r := register(t, socketDir(t))
	must(r.NotifyRegistrationStatus(t.Context(), &registerapi.RegistrationStatus{Error: "no such version"}))(t)
	if err := <-r.served; err == nil || !strings.Contains(err.Error(), "no such version") {
		t.Errorf("ended with %v", err)
	}
	r.wantNoSockets(t)
}

// TestRegistrationReplacesSocket: a driver that was killed leaves its sockets.
func TestRegistrationReplacesSocket(t *testing.T) {
	dir := socketDir(t)
	for _, name := range []string{"csi.sock", mock.DefaultDriverName + "-reg.sock"} {
		left := must(net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, name)}))(t)
		left.SetUnlinkOnClose(false)
		if err := left.Close(); err != nil {
			t.Fatal(err)
		}
	}
	must(register(t, dir).GetInfo(t.Context(), &registerapi.InfoRequest{}))(t)
}

// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/go-logr/logr"
	"github.com/onsi/ginkgo/v2/types"
	"k8s.io/klog/v2"

	"github.com/csi-transfer/csi-transfer/mock"
)

// command is the built csi-transfer-conformance: these tests run what a vendor
// runs.
var command string

// results is what the last line tells.
var results struct{ modes, failed, wrong, caught atomic.Int32 }

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "The mock driver mounts volumes: run this as root.")
		return 1
	}
	dir, err := os.MkdirTemp("", "conformance")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	command = filepath.Join(dir, "csi-transfer-conformance")
	if out, err := exec.Command("go", "build", "-o", command, "./cmd/csi-transfer-conformance").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "building the command: %v\n%s", err, out)
		return 1
	}
	code := m.Run()
	fmt.Printf("conformance: modes=%d failed=%d wrong-drivers=%d caught=%d\n",
		results.modes.Load(), results.failed.Load(), results.wrong.Load(), results.caught.Load())
	return code
}

// tempDir is a directory whose path is short enough for a socket's.
func tempDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "driver")
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

// serve runs a driver until the test ends, and returns its socket.
func serve(t *testing.T, dir string, config mock.Config) string {
	t.Helper()
	config.StateDir = filepath.Join(dir, "state")
	config.NodeID = "node"
	d, err := mock.New(config)
	if err != nil {
		t.Fatal(err)
	}
	address := filepath.Join(dir, "csi.sock")
	listener, err := net.Listen("unix", address)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(klog.NewContext(context.Background(), logr.Discard()))
	served := make(chan error, 1)
	go func() { served <- d.Serve(ctx, listener) }()
	t.Cleanup(func() {
		if err := d.Unmount(); err != nil {
			t.Error(err)
		}
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return address
}

// conform runs the command against a driver and returns its report, as for
// people and as for programs.
func conform(t *testing.T, address string, args ...string) (string, types.Report) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "report.json")
	args = append(args, "--csi-address="+address, "--volume-size=1048576", "--ginkgo.json-report="+file)
	out, err := exec.Command(command, args...).CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	content, readErr := os.ReadFile(file)
	if readErr != nil {
		t.Fatalf("%v; the command says:\n%s", readErr, out)
	}
	var reports []types.Report
	if err := json.Unmarshal(content, &reports); err != nil || len(reports) != 1 {
		t.Fatalf("reading the command's report: %d reports, %v", len(reports), err)
	}
	if succeeded := reports[0].SuiteSucceeded; succeeded != (err == nil) {
		t.Errorf("the report says that the driver conforms: %t, the command ends with %v", succeeded, err)
	}
	return string(out), reports[0]
}

// name is how tests call a spec.
func name(spec types.SpecReport) string {
	return strings.Join(append(spec.ContainerHierarchyTexts, spec.LeafNodeText), " / ")
}

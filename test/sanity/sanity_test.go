// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

// Package sanity runs upstream's csi-sanity against the mock driver in each of
// its modes.
package sanity

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/klog/v2"

	"github.com/csi-transfer/csi-transfer/mock"
	"github.com/csi-transfer/csi-transfer/pkg/driver"
)

// linkages are all modes of a driver, with "" for one that advertises nothing.
var linkages = []driver.Linkage{"", driver.LinkageNone, driver.LinkageSnapshots, driver.LinkageChain}

// A run is upstream's whole suite against one mode of the driver.
type run struct {
	linkage    driver.Linkage
	attach     bool
	accessType string
}

func (r run) String() string {
	return fmt.Sprintf("linkage=%s,%s,%s", r.linkage, attachMode(r.attach), r.accessType)
}

func attachMode(attach bool) string {
	if attach {
		return "attach"
	}
	return "no-attach"
}

func TestSanity(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("csi-sanity mounts volumes: run it as root")
	}
	// Not t.TempDir: a socket's path cannot be as long.
	root, err := os.MkdirTemp("", "sanity")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(root); err != nil {
			t.Error(err)
		}
	})

	var runs []run
	for _, linkage := range linkages {
		for _, attach := range []bool{false, true} {
			for _, accessType := range []string{"mount", "block"} {
				runs = append(runs, run{linkage, attach, accessType})
			}
		}
	}
	for _, r := range runs {
		register(r, filepath.Join(root, r.String()))
	}
	ReportAfterSuite("skips", func(report Report) {
		if len(report.SuiteConfig.FocusStrings)+len(report.SuiteConfig.SkipStrings) == 0 {
			if err := checkSkips(report, runs); err != nil {
				Fail(err.Error())
			}
		}
	})
	RegisterFailHandler(Fail)
	RunSpecs(t, "csi-sanity")
}

// register adds upstream's suite in a container of the run's name.
func register(r run, dir string) {
	config := sanity.NewTestConfig()
	config.Address = filepath.Join(dir, "csi.sock")
	config.TargetPath = filepath.Join(dir, "target")
	config.StagingPath = filepath.Join(dir, "staging")
	config.TestVolumeAccessType = r.accessType
	config.TestVolumeSize = 1 << 30
	config.TestVolumeMutableParameters = map[string]string{"iops": "1000"}
	config.TestNodeVolumeAttachLimit = true

	Describe(r.String(), Ordered, ContinueOnFailure, func() {
		BeforeAll(func() {
			Expect(os.Mkdir(dir, 0o700)).To(Succeed())
			d, err := mock.New(mock.Config{
				StateDir:        filepath.Join(dir, "state"),
				NodeID:          "node",
				Linkage:         r.linkage,
				TransferService: true,
				AttachRequired:  r.attach,
				Topology:        true,
				MaxVolumes:      3,
			})
			Expect(err).NotTo(HaveOccurred())
			serve(d, config.Address)
		})
		sanity.GinkgoTest(&config)
	})
}

// serve runs the driver until the container ends.
func serve(d *mock.Driver, address string) {
	listener, err := net.Listen("unix", address)
	Expect(err).NotTo(HaveOccurred())
	ctx, stop := context.WithCancel(klog.NewContext(context.Background(), GinkgoLogr))
	served := make(chan error, 1)
	go func() { served <- d.Serve(ctx, listener) }()
	DeferCleanup(func() {
		Expect(d.Unmount()).To(Succeed())
		stop()
		Expect(<-served).To(Succeed())
	})
}

// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

// Command up runs a test cluster with a mock CSI driver until it is interrupted.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/csi-transfer/csi-transfer/test/cluster"
)

func main() {
	var options cluster.Options
	flag.BoolVar(&options.Scheduler, "scheduler", false, "start kube-scheduler too")
	flag.StringVar(&options.Dir, "dir", "", "keep state and logs in this directory, which must be empty or absent")
	driver := flag.String("driver", "mock.transfer.storage.x-k8s.io", "name of the mock CSI driver; none if empty")
	snapshotter := flag.Bool("snapshotter", false, "start csi-snapshotter and the snapshot controller too")
	flag.Parse()

	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	if err := up(ctx, options, cluster.DriverOptions{Name: *driver, Snapshotter: *snapshotter}); err != nil {
		fmt.Fprintln(os.Stderr, "up:", err)
		os.Exit(1)
	}
}

func up(ctx context.Context, options cluster.Options, driver cluster.DriverOptions) error {
	c, err := cluster.Start(ctx, options)
	if err != nil {
		return err
	}
	defer c.Stop()
	if driver.Name != "" {
		if _, err := c.StartDriver(ctx, driver); err != nil {
			return err
		}
	}
	kubectl, err := cluster.Program(ctx, "kubectl", os.Stderr)
	if err != nil {
		return err
	}
	fmt.Printf("export KUBECONFIG=%s\nexport PATH=%s:$PATH\n", c.Kubeconfig, filepath.Dir(kubectl))
	fmt.Fprintln(os.Stderr, "The cluster runs until Ctrl-C. Logs are in", filepath.Join(c.Dir, "log"))
	<-ctx.Done()
	return nil
}

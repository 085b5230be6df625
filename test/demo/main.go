// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

// Command demo transfers a claim from one namespace to another and back, on a
// real control plane, and shows what people see of it. It needs no cluster, and
// leaves nothing behind. DEMO_KEEP=1 lets it run on until it is interrupted.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/csi-transfer/csi-transfer/test/cluster"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	if err != nil && ctx.Err() != nil {
		err = errors.New("interrupted")
	}
	stop()
	if err != nil {
		fmt.Printf("\ndemo: FAIL: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	// What is missing is built first, so that no build is in the middle of the play.
	for _, name := range []string{"kube-apiserver", "etcd", "csi-provisioner", "csi-transfer", "kubectl-transfer", "mock-csi-driver"} {
		if _, err := cluster.Program(ctx, name, os.Stderr); err != nil {
			return err
		}
	}
	c, err := cluster.Start(ctx, cluster.Options{})
	if err != nil {
		return err
	}
	defer c.Stop()

	d := &demo{console: console{ctx: ctx, cluster: c, out: os.Stdout}}
	d.play()
	if d.err != nil {
		return d.err
	}
	fmt.Println("\ndemo: PASS")
	if os.Getenv("DEMO_KEEP") == "1" {
		return keep(ctx, c)
	}
	return nil
}

// keep leaves everything running for people to look at.
func keep(ctx context.Context, c *cluster.Cluster) error {
	kubectl, err := cluster.Program(ctx, "kubectl", os.Stderr)
	if err != nil {
		return err
	}
	fmt.Printf("\nEverything runs on until Ctrl-C; logs are in %s.\n\nexport KUBECONFIG=%s\nexport PATH=%s:$PATH\n",
		filepath.Join(c.Dir, "log"), c.Kubeconfig, filepath.Dir(kubectl))
	<-ctx.Done()
	return nil
}

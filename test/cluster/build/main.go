// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

// Command build builds every program that a test cluster can run.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/csi-transfer/csi-transfer/test/cluster"
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	if err := cluster.Build(ctx, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "build:", err)
		os.Exit(1)
	}
}

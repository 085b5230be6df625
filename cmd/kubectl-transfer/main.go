// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

// Command kubectl-transfer is a kubectl plugin: it hands a
// PersistentVolumeClaim from one namespace to another, for people on either
// side, on both, and for administrators.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/csi-transfer/csi-transfer/cmd/kubectl-transfer/internal/cli"
)

// version is set by the build.
var version = "unknown"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// After the first Ctrl-C the command says how to go on; a second one ends it.
	context.AfterFunc(ctx, stop)
	os.Exit(cli.Run(ctx, version, os.Stdin, os.Stdout, os.Stderr, os.Args[1:]))
}

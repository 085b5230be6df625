// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"time"
)

// Images builds container images, those that make images knows by these names,
// for this machine's architecture and returns the paths of their archives. The
// product's have the tag latest, others that of their version, and all are in
// docker.io/library, where names without a registry are.
func Images(ctx context.Context, progress io.Writer, names ...string) ([]string, error) {
	tool, err := Program(ctx, "images", progress)
	if err != nil {
		return nil, err
	}
	b, err := findBuilder()
	if err != nil {
		return nil, err
	}
	unlock, err := b.lock(ctx, progress)
	if err != nil {
		return nil, err
	}
	defer unlock()
	var archives []string
	for _, name := range names {
		archive := filepath.Join(b.artifacts, "image", name+".tar")
		archives = append(archives, archive)
		build := func() error { return b.image(ctx, tool, name, filepath.Dir(archive), progress) }
		if src := sources[name]; src.pkg != "" && !src.product {
			err = b.unlessKept("image-"+name, archive, build)
		} else {
			err = build()
		}
		if err != nil {
			return nil, fmt.Errorf("building image %s: %w", name, err)
		}
	}
	return archives, nil
}

func (b *builder) image(ctx context.Context, tool, name, dir string, progress io.Writer) error {
	root := filepath.Join(b.module, "..", "..")
	cmd := exec.CommandContext(ctx, tool, "-root="+root, "-out="+dir, "-platforms=linux/"+runtime.GOARCH, name)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	began := time.Now()
	stop := report(progress, func() string {
		return fmt.Sprintf("building image %s: %s", name, time.Since(began).Round(time.Second))
	})
	defer stop()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%w\n%s", err, tail(stderr.Bytes(), 40))
	}
	return nil
}

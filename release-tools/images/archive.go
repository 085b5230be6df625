// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// user is who the programs run as unless a pod says otherwise: nobody that a
// node knows.
const user = "65532:65532"

// binary is a static program for one platform.
type binary struct {
	platform *v1.Platform
	text     []byte
}

// indexOf makes an image of each binary, and the index of them all.
func indexOf(name, version string, binaries []binary) (v1.ImageIndex, error) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, b := range binaries {
		img, err := imageOf(name, version, b)
		if err != nil {
			return nil, err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: b.platform}})
	}
	return index, nil
}

// imageOf makes an image that holds one program, and runs it.
func imageOf(name, version string, b binary) (v1.Image, error) {
	content, err := tarOf(file{name, 0o555, b.text})
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(content)), nil
	}, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	if img, err = mutate.AppendLayers(img, layer); err != nil {
		return nil, err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Variant = b.platform.OS, b.platform.Architecture, b.platform.Variant
	config.Created = v1.Time{Time: time.Unix(0, 0).UTC()}
	config.Config = v1.Config{
		Entrypoint: []string{"/" + name},
		User:       user,
		Labels:     map[string]string{"org.opencontainers.image.title": name, "org.opencontainers.image.version": version},
	}
	return mutate.ConfigFile(img, config)
}

// archive writes an index as an OCI archive: an OCI image layout in a tar file,
// which container tools import under the name reference.
func archive(index v1.ImageIndex, reference, path string) error {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	l, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	if err := l.AppendIndex(index, layout.WithAnnotations(map[string]string{
		"org.opencontainers.image.ref.name": reference,
		// What containerd goes by.
		"io.containerd.image.name": reference,
	})); err != nil {
		return err
	}
	var files []file
	if err := filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		text, err := os.ReadFile(path)
		files = append(files, file{name, 0o444, text})
		return err
	}); err != nil {
		return err
	}
	content, err := tarOf(files...)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, content, 0o644)
}

type file struct {
	name string
	mode int64
	text []byte
}

// tarOf makes a tar file with nothing in it of when, where and by whom.
func tarOf(files ...file) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range files {
		if err := w.WriteHeader(&tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.text)), ModTime: time.Unix(0, 0)}); err != nil {
			return nil, fmt.Errorf("%s: %w", f.name, err)
		}
		if _, err := w.Write(f.text); err != nil {
			return nil, fmt.Errorf("%s: %w", f.name, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

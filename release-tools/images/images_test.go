// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

const reference = "docker.io/library/hello:v1"

// hello is an archive with images for two platforms.
func hello(t *testing.T) (path string, digest v1.Hash) {
	t.Helper()
	index, err := indexOf("hello", "v1", []binary{
		{&v1.Platform{OS: "linux", Architecture: "amd64"}, []byte("of amd64")},
		{&v1.Platform{OS: "linux", Architecture: "arm64"}, []byte("of arm64")},
	})
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(t.TempDir(), "out", "hello.tar")
	if err := archive(index, reference, path); err != nil {
		t.Fatal(err)
	}
	if digest, err = index.Digest(); err != nil {
		t.Fatal(err)
	}
	return path, digest
}

// contents are the files of a tar file.
func contents(t *testing.T, r io.Reader) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	for in := tar.NewReader(r); ; {
		header, err := in.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[header.Name], err = io.ReadAll(in); err != nil {
			t.Fatal(err)
		}
	}
}

func TestSameInputSameArchive(t *testing.T) {
	first, _ := hello(t)
	second, _ := hello(t)
	a, err1 := os.ReadFile(first)
	b, err2 := os.ReadFile(second)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(a, b) {
		t.Error("two archives of the same programs differ")
	}
}

// TestArchive: what container tools find in an archive.
func TestArchive(t *testing.T) {
	path, digest := hello(t)
	archived, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer archived.Close()
	dir := t.TempDir()
	for name, text := range contents(t, archived) {
		to := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, text, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	images, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(images); err != nil {
		t.Error(err)
	}
	top, err := images.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(top.Manifests) != 1 || top.Manifests[0].Digest != digest || top.Manifests[0].Annotations["io.containerd.image.name"] != reference {
		t.Fatalf("the archive has %+v, want %s as %s", top.Manifests, digest, reference)
	}
	index, err := images.ImageIndex(digest)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	for i, platform := range []string{"linux/amd64", "linux/arm64"} {
		if got := manifest.Manifests[i].Platform.String(); got != platform {
			t.Errorf("image %d is for %s, want %s", i, got, platform)
		}
		img, err := index.Image(manifest.Manifests[i].Digest)
		if err != nil {
			t.Fatal(err)
		}
		config, err := img.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		if c := config.Config; config.Platform().String() != platform || c.User != user || !reflect.DeepEqual(c.Entrypoint, []string{"/hello"}) {
			t.Errorf("%s: for %s, runs %v as %s", platform, config.Platform(), c.Entrypoint, c.User)
		}
		extracted := mutate.Extract(img)
		files := contents(t, extracted)
		if err := extracted.Close(); err != nil {
			t.Error(err)
		}
		if want := (map[string][]byte{"hello": []byte("of " + config.Architecture)}); !reflect.DeepEqual(files, want) {
			t.Errorf("%s: has %q, want %q", platform, files, want)
		}
	}
}

func TestUnknownImage(t *testing.T) {
	_, err := image(t.Context(), ".", t.TempDir(), "docker.io/library", "x", "v1", nil)
	if err == nil {
		t.Error("an image of nothing was built")
	}
}

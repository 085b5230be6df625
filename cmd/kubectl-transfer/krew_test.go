// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"sigs.k8s.io/yaml"
)

// krewPlugin is what krew reads of a manifest.
type krewPlugin struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Spec struct {
		Version          string `json:"version"`
		Homepage         string `json:"homepage"`
		ShortDescription string `json:"shortDescription"`
		Description      string `json:"description"`
		Caveats          string `json:"caveats"`
		Platforms        []struct {
			Selector struct {
				MatchLabels map[string]string `json:"matchLabels"`
			} `json:"selector"`
			URI    string `json:"uri"`
			SHA256 string `json:"sha256"`
			Bin    string `json:"bin"`
		} `json:"platforms"`
	} `json:"spec"`
}

// TestKrewPackage: the archive that is built for this platform has what the
// manifest says, and the manifest has its checksum.
func TestKrewPackage(t *testing.T) {
	const version = "v1.2.3"
	dir := t.TempDir()
	platform := runtime.GOOS + "_" + runtime.GOARCH
	if output, err := exec.CommandContext(t.Context(), "../../deploy/krew/package.sh", version, dir, platform).CombinedOutput(); err != nil {
		t.Fatalf("%v:\n%s", err, output)
	}
	text, err := os.ReadFile(filepath.Join(dir, "transfer.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var plugin krewPlugin
	if err := yaml.UnmarshalStrict(text, &plugin); err != nil {
		t.Fatal(err)
	}
	if plugin.Kind != "Plugin" || plugin.Metadata.Name != "transfer" || plugin.Spec.Version != version {
		t.Errorf("it is a %s named %s of version %s", plugin.Kind, plugin.Metadata.Name, plugin.Spec.Version)
	}
	found := false
	for _, p := range plugin.Spec.Platforms {
		labels := p.Selector.MatchLabels
		name := fmt.Sprintf("kubectl-transfer_%s_%s.tar.gz", labels["os"], labels["arch"])
		if filepath.Base(p.URI) != name {
			t.Errorf("platform %v has the archive %s, want %s", labels, p.URI, name)
		}
		if labels["os"] != runtime.GOOS || labels["arch"] != runtime.GOARCH {
			continue
		}
		found = true
		archive := filepath.Join(dir, name)
		content, err := os.ReadFile(archive)
		if err != nil {
			t.Fatal(err)
		}
		if sum := fmt.Sprintf("%x", sha256.Sum256(content)); p.SHA256 != sum {
			t.Errorf("%s has the checksum %s, the manifest says %s", name, sum, p.SHA256)
		}
		files := list(t, archive)
		for _, want := range []string{p.Bin, "kubectl_complete-transfer", "LICENSE"} {
			if !slices.Contains(files, want) {
				t.Errorf("%s lacks %s: %v", name, want, files)
			}
		}
	}
	if !found {
		t.Errorf("the manifest has no platform %s", platform)
	}
}

// list are the files in an archive.
func list(t *testing.T, archive string) []string {
	t.Helper()
	file, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	unzipped, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	var files []string
	for r := tar.NewReader(unzipped); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, filepath.Clean(header.Name))
	}
}

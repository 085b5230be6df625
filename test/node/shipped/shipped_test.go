// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package shipped

import (
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestInstancesShareNothing: no name of the example as shipped is left in another
// instance, but those of images and containers.
func TestInstancesShareNothing(t *testing.T) {
	var manifests strings.Builder
	for _, dir := range []string{"", "snapshot-class"} {
		files, err := filepath.Glob(filepath.Join("..", "..", "..", "deploy", "kubernetes", "examples", "mock", dir, "*.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if filepath.Base(file) == "kustomization.yaml" {
				continue
			}
			content, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			manifests.WriteString("---\n" + string(content))
		}
	}
	adapted, err := Options{Name: "other", Attachless: true, FirstPort: 9000}.adapt(manifests.String(), &url.URL{Host: "127.0.0.1:6443"})
	if err != nil {
		t.Fatal(err)
	}
	rest := strings.ReplaceAll(adapted, "mock-csi-driver", "")
	for _, line := range regexp.MustCompile(`.*\bmock\b.*`).FindAllString(rest, -1) {
		t.Errorf("named as the example is: %s", line)
	}
	for _, want := range []string{"other.transfer.storage.x-k8s.io", "external-resizer-other-transfer-storage-x-k8s-io", "/var/lib/csi-other", "127.0.0.1:9000"} {
		if !strings.Contains(adapted, want) {
			t.Errorf("%s is not there", want)
		}
	}
	if strings.Contains(adapted, "csi-attacher") {
		t.Error("csi-attacher is still there")
	}
}

// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Kubectl runs kubectl as the administrator and returns what it prints. The flag
// --kubeconfig makes it somebody else. The product's plugin can be run once
// Program has built it.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) (string, error) {
	return c.kubectl(ctx, "", args...)
}

// Apply applies manifests as kubectl apply does.
func (c *Cluster) Apply(ctx context.Context, manifests string) error {
	_, err := c.kubectl(ctx, manifests, "apply", "-f", "-")
	return err
}

// ApplyKustomize applies a directory with a kustomization, and waits until the
// API server serves the kinds defined in it.
func (c *Cluster) ApplyKustomize(ctx context.Context, dir string) error {
	if _, err := c.Kubectl(ctx, "apply", "-k", dir); err != nil {
		return err
	}
	_, err := c.Kubectl(ctx, "wait", "--for=condition=Established", "--timeout=30s", "customresourcedefinitions", "--all")
	return err
}

func (c *Cluster) kubectl(ctx context.Context, stdin string, args ...string) (string, error) {
	path, err := Program(ctx, "kubectl", c.options.Progress)
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, path, args...)
	// Not flags, which kubectl does not take before the name of a plugin.
	cmd.Env = append(os.Environ(),
		"KUBECONFIG="+c.Kubeconfig,
		// Not the user's, which may remember another cluster at this address.
		"KUBECACHEDIR="+c.path("kubectl-cache"),
		// Plugins that are built are found beside kubectl.
		"PATH="+filepath.Dir(path)+string(os.PathListSeparator)+os.Getenv("PATH"))
	cmd.Stdin = strings.NewReader(stdin)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return stdout.String(), nil
}

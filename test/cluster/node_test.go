// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// startNode starts a node with a running pod, in which there is everything that
// the kernel could keep after the node has ended.
func startNode(ctx context.Context, c *Cluster) (*Node, error) {
	images, err := Images(ctx, os.Stderr, "test-pod")
	if err != nil {
		return nil, err
	}
	n, err := c.StartNode(ctx, NodeOptions{Images: images, SandboxImage: "docker.io/library/test-pod:latest"})
	if err != nil {
		return nil, err
	}
	if err := c.CreateNamespace(ctx, "prod"); err != nil {
		return nil, err
	}
	if err := c.Apply(ctx, `
apiVersion: v1
kind: Pod
metadata: {namespace: prod, name: pod}
spec:
  hostNetwork: true
  containers:
  - name: hold
    image: test-pod
    imagePullPolicy: Never
    volumeMounts: [{name: memory, mountPath: /memory}]
  volumes: [{name: memory, emptyDir: {medium: Memory}}]
`); err != nil {
		return nil, err
	}
	if _, err := Wait(ctx, c, Pods, "prod", "pod", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning }); err != nil {
		return nil, err
	}
	// A block volume, and what the kubelet makes of one.
	disk := "/var/lib/disk"
	if err := os.WriteFile(n.Path(disk), make([]byte, 1<<20), 0o600); err != nil {
		return nil, err
	}
	for range 2 {
		device, err := n.Run(ctx, "losetup", "--find", "--show", disk)
		if err != nil {
			return nil, err
		}
		disk = strings.TrimSpace(device)
	}
	return n, nil
}

// TestNode: a pod has the machine's network and a file system of its own, and
// outlives kubelet and containerd.
func TestNode(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	c, err := Start(ctx, Options{Scheduler: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	n, err := startNode(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	mounts, err := os.ReadFile(n.MountInfo())
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(mounts), "kubernetes.io~empty-dir/memory") {
		t.Errorf("the pod's volume is not among the node's mounts:\n%s", mounts)
	}
	if logs, err := filepath.Glob(n.Path("/var/log/pods/prod_pod_*/hold/0.log")); err != nil || len(logs) != 1 {
		t.Errorf("logs %v of the pod (%v), want one", logs, err)
	}

	for _, p := range []*Process{n.Containerd, n.Kubelet} {
		if err := p.Restart(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Kubectl(ctx, "delete", "pod", "--namespace=prod", "pod", "--timeout=1m"); err != nil {
		t.Errorf("a pod from before the restart: %v", err)
	}
}

// TestNodeFailure: whoever starts a node in vain is told what is missing.
func TestNodeFailure(t *testing.T) {
	t.Setenv("PATH", "")
	_, err := (&Cluster{}).StartNode(t.Context(), NodeOptions{Name: "worker"})
	for _, want := range []string{"node worker", "install the packages", "containerd", "runc"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not contain %q", err, want)
		}
	}
}

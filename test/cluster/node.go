// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"text/template"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// nodePackages are what a node takes of the machine.
const nodePackages = "containerd and runc"

// nodeDirs are those of the machine that a node has its own of.
var nodeDirs = []string{"/run", "/var/lib", "/var/log"}

// networkConfig makes containerd say that there is a network, and the node ready.
const networkConfig = `{"cniVersion": "1.0.0", "name": "none", "plugins": [{"type": "loopback"}]}`

// containerdSocket is where containerd serves, as seen on the node.
const containerdSocket = "/run/containerd/containerd.sock"

//go:embed containerd.toml
var containerdConfig string

//go:embed kubelet.yaml
var kubeletConfig string

// NodeOptions says what StartNode starts.
type NodeOptions struct {
	// Name of the Node object; node unless given.
	Name string
	// Images are the paths of archives, OCI or docker, with every image that pods
	// use. Nothing is pulled.
	Images []string
	// SandboxImage is the one of them, such as docker.io/library/pause:1, that
	// keeps a pod's namespaces. It must run until it is told to end.
	SandboxImage string
}

// Node is a kubelet and containerd with all containers. They live in one mount
// namespace and one PID namespace, in which /run, /var/lib and /var/log are the
// node's own and everything else is the machine's, network and devices included:
// manifests need not know that the node is not a machine. Containers have no
// network but the machine's, so pods need hostNetwork.
type Node struct {
	Name string
	// Kubelet and Containerd can be killed and started again; containers outlive
	// both.
	Kubelet, Containerd *Process

	cluster *Cluster
	// root has the node's own directories.
	root string
	// launcher starts processes in the node's namespaces.
	launcher launcher
	// init is process 1 of the PID namespace: with it end all the others.
	init *Process
}

// StartNode adds a node to the cluster and returns when pods can run on it. It
// needs root, and containerd and runc on the PATH.
func (c *Cluster) StartNode(ctx context.Context, options NodeOptions) (*Node, error) {
	n := &Node{Name: options.Name, cluster: c}
	if n.Name == "" {
		n.Name = "node"
	}
	if err := n.start(ctx, options); err != nil {
		return nil, fmt.Errorf("starting node %s: %w", n.Name, err)
	}
	return n, nil
}

func (n *Node) start(ctx context.Context, options NodeOptions) error {
	if os.Geteuid() != 0 {
		return errors.New("a node needs root")
	}
	for _, program := range []string{"containerd", "runc", "ctr"} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("a node needs %s, install the packages of these names: %w", nodePackages, err)
		}
	}
	// Not in the cluster's directory, which may be kept.
	root, release, err := claimDir("")
	if err != nil {
		return err
	}
	n.root = root
	if err := n.cluster.onStop(release); err != nil {
		release()
		return err
	}
	if err := createCgroups(root); err != nil {
		return err
	}
	if err := n.enter(); err != nil {
		return fmt.Errorf("entering namespaces of its own: %w", err)
	}
	if err := n.cluster.onStop(func() { close(n.launcher) }); err != nil {
		return err
	}
	if err := n.startInit(ctx); err != nil {
		return err
	}
	if err := n.startContainerd(ctx, options.SandboxImage); err != nil {
		return err
	}
	if err := n.Import(ctx, options.Images...); err != nil {
		return err
	}
	return n.startKubelet(ctx)
}

// Path returns where a path on the node, below /run, /var/lib or /var/log, is
// for everybody else. Mounts that were made on the node are not seen there.
func (n *Node) Path(path string) string {
	if path, ok := strings.CutPrefix(path, "/var/log"); ok {
		return n.cluster.path("log", n.Name) + path // kept with those of processes
	}
	return filepath.Join(n.root, path)
}

// MountInfo is the path of the file that lists the node's mounts, as proc(5)
// describes. It ends with the node.
func (n *Node) MountInfo() string { return fmt.Sprintf("/proc/%d/mountinfo", n.init.PID()) }

// Import adds the images of archives to those that pods can use.
func (n *Node) Import(ctx context.Context, archives ...string) error {
	for _, archive := range archives {
		path, err := filepath.Abs(archive)
		if err != nil {
			return err
		}
		if _, err := n.Run(ctx, "ctr", "--address="+containerdSocket, "--namespace=k8s.io", "images", "import", "--no-unpack", path); err != nil {
			return err
		}
	}
	return nil
}

// Tag gives an image of the node another name, with registry and tag.
func (n *Node) Tag(ctx context.Context, image, name string) error {
	_, err := n.Run(ctx, "ctr", "--address="+containerdSocket, "--namespace=k8s.io", "images", "tag", "--force", image, name)
	return err
}

// Run runs a program of the machine on the node and returns what it prints.
func (n *Node) Run(ctx context.Context, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := n.launcher.start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return "", fmt.Errorf("%s %s on node %s: %w: %s", program, strings.Join(args, " "), n.Name, err, bytes.TrimSpace(stderr.Bytes()))
	}
	return stdout.String(), nil
}

// enter makes the node's namespaces. What the launcher starts from then on is in
// them.
func (n *Node) enter() error {
	n.launcher = make(launcher)
	entered := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the namespaces end with the thread
		err := n.unshare()
		entered <- err
		if err == nil {
			n.launcher.serve()
		}
	}()
	return <-entered
}

func (n *Node) unshare() error {
	if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_NEWPID); err != nil {
		return err
	}
	// Nothing mounted here gets out; what containers mount where they are allowed
	// to gets from one to the other, and to the kubelet.
	for _, propagation := range []uintptr{unix.MS_SLAVE, unix.MS_SHARED} {
		if err := unix.Mount("", "/", "", unix.MS_REC|propagation, ""); err != nil {
			return err
		}
	}
	for _, dir := range nodeDirs {
		own := n.Path(dir)
		if err := os.MkdirAll(own, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(own, dir, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mounting %s at %s: %w", own, dir, err)
		}
	}
	return nil
}

// initScript makes /proc that of the node. Kernel parameters on which the kubelet
// insists seem to have the values that it wants, so that it does not set them for
// the whole machine. A shell that waits takes care of processes that lost their
// parent.
const initScript = `
set -e
mount -t proc proc /proc
for parameter in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
	kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000
do
	file=$(mktemp /run/parameter.XXXXXX)
	echo "${parameter#*=}" >"$file"
	mount --bind "$file" "/proc/sys/${parameter%=*}"
done
touch /run/init-is-ready
while :; do sleep infinity & wait; done
`

func (n *Node) startInit(ctx context.Context) (err error) {
	n.init, err = n.startProcess(ctx, "init", func(context.Context) error {
		_, err := os.Stat(n.Path("/run/init-is-ready"))
		return err
	}, "sh", "-c", initScript)
	return err
}

func (n *Node) startContainerd(ctx context.Context, sandboxImage string) (err error) {
	if err := os.MkdirAll(n.Path("/var/lib/cni"), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(n.Path("/var/lib/cni/none.conflist"), []byte(networkConfig), 0o644); err != nil {
		return err
	}
	config := filepath.Join(n.root, "containerd.toml")
	if err := render(config, containerdConfig, map[string]string{
		"Socket":       containerdSocket,
		"SandboxImage": sandboxImage,
	}); err != nil {
		return err
	}
	n.Containerd, err = n.startProcess(ctx, "containerd", func(ctx context.Context) error {
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", n.Path(containerdSocket))
		if err != nil {
			return err
		}
		return conn.Close()
	}, "containerd", "--config="+config)
	return err
}

func (n *Node) startKubelet(ctx context.Context) error {
	kubeconfig, err := n.cluster.KubeconfigFor("system:node:"+n.Name, "system:nodes")
	if err != nil {
		return err
	}
	address, err := n.cluster.ReserveAddress()
	if err != nil {
		return err
	}
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	config := filepath.Join(n.root, "kubelet.yaml")
	if err := render(config, kubeletConfig, map[string]string{
		"Port":       port,
		"Authority":  n.cluster.path("ca.crt"),
		"CgroupRoot": "/" + cgroupName(n.root),
		"Socket":     containerdSocket,
	}); err != nil {
		return err
	}
	n.Kubelet, err = n.startProcess(ctx, "kubelet", n.ready, "kubelet",
		"--config="+config,
		"--kubeconfig="+kubeconfig,
		"--hostname-override="+n.Name,
	)
	return err
}

// ready says whether the kubelet that was started last takes pods.
func (n *Node) ready(ctx context.Context) error {
	node, err := n.cluster.Client.CoreV1().Nodes().Get(ctx, n.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue {
			return nil
		}
		if condition.Type == corev1.NodeReady {
			err = fmt.Errorf("not ready: %s", condition.Message)
		}
	}
	return err
}

func (n *Node) startProcess(ctx context.Context, name string, ready func(context.Context) error, program string, args ...string) (*Process, error) {
	return n.cluster.launch(ctx, &Process{
		Name: name + "-" + n.Name, args: args, ready: ready, launcher: n.launcher,
		// Go takes a child for an orphan that does not see its parent, from within
		// a PID namespace, and ends it if it was to end with its parent. It fails to
		// with init, with which the others end.
		dependent: n.init != nil,
	}, program)
}

func render(path, text string, data map[string]string) error {
	parsed, err := template.New(filepath.Base(path)).Option("missingkey=error").Parse(text)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	if err := parsed.Execute(&out, data); err != nil {
		return err
	}
	return os.WriteFile(path, out.Bytes(), 0o644)
}

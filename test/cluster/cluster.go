// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cluster runs a real Kubernetes control plane on this machine, as
// processes on loopback addresses with all state in one temporary directory:
// etcd, kube-apiserver, kube-controller-manager and, on request, the scheduler,
// CSI drivers with their sidecars, and csi-transfer. It has no node unless one
// is started, see StartNode.
//
// Any number of clusters can run at once. Nothing outlives the process that
// started a cluster.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// Options says what a cluster is to be like. The zero value will do.
type Options struct {
	// Scheduler also starts kube-scheduler.
	Scheduler bool
	// APIServerFlags and ControllerManagerFlags are added to those programs' flags.
	APIServerFlags, ControllerManagerFlags []string
	// Dir keeps the state, logs included, after the cluster has stopped. It must
	// be empty or absent. By default a temporary directory is used and removed.
	Dir string
	// Progress is told when a program must be built first. By default that is
	// the standard error.
	Progress io.Writer
}

// Cluster is a running control plane.
type Cluster struct {
	// Dir has the cluster's state: etcd's data, keys, kubeconfigs, logs.
	Dir string
	// Config and Kubeconfig (the path of a file) are an administrator's, who is
	// above RBAC. Config has no client-side throttling.
	Config     *rest.Config
	Kubeconfig string
	// Client and Dynamic use Config.
	Client  kubernetes.Interface
	Dynamic dynamic.Interface

	options   Options
	authority *authority
	address   string // of the API server

	// snapshots is held while the snapshot controller is being installed.
	snapshots sync.Mutex

	// mu guards what follows.
	mu        sync.Mutex
	stopped   bool
	processes []*Process
	// cleanups are called in reverse order when no process is left.
	cleanups []func()
}

// Start starts a cluster and returns once it can be used. When ctx is done the
// cluster stops, as it does on Stop. Programs that are missing or out of date
// are built first, see Build.
func Start(ctx context.Context, options Options) (*Cluster, error) {
	if options.Progress == nil {
		options.Progress = os.Stderr
	}
	c := &Cluster{options: options}
	if err := c.start(ctx); err != nil {
		c.Stop()
		return nil, fmt.Errorf("starting a test cluster: %w", err)
	}
	context.AfterFunc(ctx, c.Stop)
	return c, nil
}

// Stop kills everything that runs in the cluster and removes its state. It
// returns when nothing of it is left. It may be called any number of times.
func (c *Cluster) Stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		return
	}
	c.stopped = true
	// Those started last first, so that none sees its server go and fills its log.
	for _, p := range slices.Backward(c.processes) {
		p.retire()
	}
	for _, cleanup := range slices.Backward(c.cleanups) {
		cleanup()
	}
}

// onStop has Stop call cleanup, or calls it at once if that is over.
func (c *Cluster) onStop(cleanup func()) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		cleanup()
		return errStopped
	}
	c.cleanups = append(c.cleanups, cleanup)
	return nil
}

func (c *Cluster) start(ctx context.Context) (err error) {
	var release func()
	if c.Dir, release, err = claimDir(c.options.Dir); err != nil {
		return err
	}
	if err := c.onStop(release); err != nil {
		return err
	}
	if err := os.Mkdir(c.path("log"), 0o755); err != nil {
		return err
	}
	if c.address, err = c.ReserveAddress(); err != nil {
		return err
	}
	if err := c.writeKeys(); err != nil {
		return err
	}
	if c.Config, err = c.ConfigFor("admin", "system:masters"); err != nil {
		return err
	}
	if c.Kubeconfig, err = c.writeKubeconfig("admin", c.Config); err != nil {
		return err
	}
	if c.Client, err = kubernetes.NewForConfig(c.Config); err != nil {
		return err
	}
	if c.Dynamic, err = dynamic.NewForConfig(c.Config); err != nil {
		return err
	}

	return c.startControlPlane(ctx)
}

func (c *Cluster) path(elem ...string) string {
	return filepath.Join(append([]string{c.Dir}, elem...)...)
}

// Run starts a program as a process of the cluster. The program is one of those
// that Build builds, one on the PATH, or a path. A name whose earlier process
// has ended can be used again.
func (c *Cluster) Run(ctx context.Context, name, program string, args ...string) (*Process, error) {
	return c.run(ctx, name, nil, program, args...)
}

// run starts a program and returns when ready, if given, returns no error.
func (c *Cluster) run(ctx context.Context, name string, ready func(context.Context) error, programName string, args ...string) (*Process, error) {
	return c.launch(ctx, &Process{Name: name, args: args, ready: ready}, programName)
}

// launch starts a program as the process p, of which it fills in the rest.
func (c *Cluster) launch(ctx context.Context, p *Process, programName string) (*Process, error) {
	var err error
	if p.path, err = Program(ctx, programName, c.options.Progress); err != nil {
		return nil, err
	}
	p.Log = c.path("log", fileName(p.Name)+".log")
	if err := c.add(p); err != nil {
		return nil, fmt.Errorf("starting %s: %w", p.Name, err)
	}
	if p.ready != nil {
		return p, p.await(ctx)
	}
	return p, nil
}

func (c *Cluster) add(p *Process) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		return errStopped
	}
	i := slices.IndexFunc(c.processes, func(old *Process) bool { return old.Name == p.Name })
	if i >= 0 {
		if !c.processes[i].last().over() {
			return errors.New("a process of that name runs already")
		}
		c.processes = slices.Delete(c.processes, i, i+1)
	}
	if err := p.start(); err != nil {
		return err
	}
	c.processes = append(c.processes, p)
	return nil
}

// Process returns the process of that name, such as etcd, kube-apiserver,
// kube-controller-manager or kube-scheduler; nil if there is none.
func (c *Cluster) Process(name string) *Process {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.processes {
		if p.Name == name {
			return p
		}
	}
	return nil
}

// CreateNamespace creates a namespace and returns when pods can be created in it.
func (c *Cluster) CreateNamespace(ctx context.Context, name string) error {
	_, err := c.Client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: name},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	_, err = Wait(ctx, c, ServiceAccounts, name, defaultServiceAccount, func(*corev1.ServiceAccount) bool { return true })
	return err
}

// fileName makes a name of a process or user one of a file.
func fileName(name string) string {
	return strings.NewReplacer("/", "-", ":", "-").Replace(name)
}

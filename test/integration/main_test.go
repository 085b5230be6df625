// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

// Package integration tests csi-transfer on a real control plane with the real
// csi-provisioner and the mock driver, all as processes. Tests are named after
// the requirement they show.
package integration

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/csi-transfer/csi-transfer/pkg/apis/transfer/v1alpha1"
	transfer "github.com/csi-transfer/csi-transfer/pkg/client/clientset/versioned"
	"github.com/csi-transfer/csi-transfer/pkg/sidecar/protocol"
	"github.com/csi-transfer/csi-transfer/test/cluster"
)

const (
	// driverName and className are those of the example that is shipped: a driver
	// that advertises linkage none in its manifest, and nothing more.
	driverName = "mock.transfer.storage.x-k8s.io"
	className  = "mock"

	// sidecarAccount has the shipped ClusterRole and nothing else. All sidecars
	// run as it.
	sidecarAccount = "csi-transfer"
	sidecarUser    = "system:serviceaccount:kube-system:" + sidecarAccount
)

// world is a cluster with what is shipped applied, the example's driver and its
// sidecar. Each test has namespaces of its own in it.
type world struct {
	*cluster.Cluster
	transfer transfer.Interface
	driver   *cluster.Driver
	sidecar  *cluster.Process
	witness  *witness
	// kubeconfig is that of sidecarAccount.
	kubeconfig string
}

var (
	// shared is the world of most tests.
	shared *world
	// frail is another, for tests that stop its controller manager, one at a time.
	// It has no fences, so that anybody can do what they should not.
	frail struct {
		sync.Mutex
		start func() (*world, error)
	}
)

func TestMain(m *testing.M) {
	flag.Parse()
	// Tests wait most of the time, whatever the number of processors.
	if f := flag.Lookup("test.parallel"); f.Value.String() == f.DefValue {
		_ = f.Value.Set("8") // a number is always accepted
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code, err := run(ctx, m)
	stop()
	if err := errors.Join(report(), err); err != nil {
		fmt.Fprintln(os.Stderr, "FAIL:", err)
		code = 1
	}
	os.Exit(code)
}

func run(ctx context.Context, m *testing.M) (int, error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var err error
	if shared, err = startWorld(ctx, cluster.Options{Dir: keep("shared")}, []string{"-k", deploy()}); err != nil {
		return 0, err
	}
	defer shared.Stop()
	worlds := []*world{shared}
	frail.start = sync.OnceValues(func() (*world, error) {
		w, err := startWorld(ctx, cluster.Options{
			Dir:            keep("frail"),
			APIServerFlags: []string{"--feature-gates=CrossNamespaceVolumeDataSource=true"},
		}, []string{"-f", deploy("crds"), "-f", deploy("rbac.yaml")})
		if err != nil {
			return nil, err
		}
		worlds = append(worlds, w)
		return w, nil
	})
	defer func() {
		for _, w := range worlds[1:] {
			w.Stop()
		}
	}()

	code := m.Run()
	var problems []error
	for _, w := range worlds {
		problems = append(problems, w.audit())
	}
	if code == 0 && everything() {
		problems = append(problems, unreached(), unused(ctx, worlds))
	}
	return code, errors.Join(problems...)
}

// keep is where a world's state with all logs stays, below $CLUSTER_DIR.
func keep(name string) string {
	if dir := os.Getenv("CLUSTER_DIR"); dir != "" {
		return filepath.Join(dir, name)
	}
	return ""
}

// everything reports whether all tests were to run.
func everything() bool {
	for _, name := range []string{"test.run", "test.skip", "test.list"} {
		if flag.Lookup(name).Value.String() != "" {
			return false
		}
	}
	return true
}

// reached are the reasons that some test has met.
var reached sync.Map // protocol.Reason: true

// unreached fails if no test has met one of the reasons.
func unreached() error {
	var problems []error
	for _, r := range protocol.Reasons {
		if _, ok := reached.Load(r.Reason); !ok {
			problems = append(problems, fmt.Errorf("no test reaches the reason %s", r.Reason))
		}
	}
	return errors.Join(problems...)
}

// sidecarFlags are those of the shipped Deployment that matter without a node,
// with waits after errors that a test can bear.
var sidecarFlags = []string{"--kube-api-qps=200", "--kube-api-burst=400", "--retry-interval-max=2s", "--v=4"}

// startWorld starts a cluster with what install says to kubectl apply.
func startWorld(ctx context.Context, options cluster.Options, install []string) (*world, error) {
	c, err := cluster.Start(ctx, options)
	if err != nil {
		return nil, err
	}
	w := &world{Cluster: c}
	if w.transfer, err = transfer.NewForConfig(c.Config); err != nil {
		return nil, err
	}
	if w.witness, err = startWitness(ctx, w); err != nil {
		return nil, err
	}
	if _, err := c.Kubectl(ctx, append([]string{"apply"}, install...)...); err != nil {
		return nil, err
	}
	if err := c.ApplyKustomize(ctx, deploy("examples", "mock")); err != nil {
		return nil, err
	}
	// Kubernetes soon deletes pods of a node that does not exist.
	if err := c.Apply(ctx, "{apiVersion: v1, kind: Node, metadata: {name: node-1}}"); err != nil {
		return nil, err
	}
	if w.kubeconfig, err = w.sidecarKubeconfig(ctx); err != nil {
		return nil, err
	}
	if w.driver, err = c.StartDriver(ctx, cluster.DriverOptions{Name: driverName, AttachRequired: true}); err != nil {
		return nil, err
	}
	w.sidecar, err = w.startSidecar(ctx, driverName, w.driver)
	return w, err
}

// startSidecar starts the sidecar of a driver under a name of its own.
func (w *world) startSidecar(ctx context.Context, name string, d *cluster.Driver, flags ...string) (*cluster.Process, error) {
	return w.StartSidecar(ctx, cluster.SidecarOptions{
		Name: "csi-transfer-" + name, Address: d.Address, Kubeconfig: w.kubeconfig,
		Flags: append(append([]string{}, sidecarFlags...), flags...),
	})
}

// deploy is the folder of what is shipped.
func deploy(elem ...string) string {
	return filepath.Join(append([]string{"..", "..", "deploy", "kubernetes"}, elem...)...)
}

// sidecarKubeconfig makes sidecarAccount. The right to its Leases is that of the
// example, in another namespace.
func (w *world) sidecarKubeconfig(ctx context.Context) (string, error) {
	if err := w.Apply(ctx, fmt.Sprintf(`
apiVersion: v1
kind: ServiceAccount
metadata: {name: %[1]s, namespace: kube-system}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: %[1]s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: csi-transfer-runner}
subjects: [{kind: ServiceAccount, name: %[1]s, namespace: kube-system}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: %[1]s, namespace: csi-mock}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: csi-mock-leader-election}
subjects: [{kind: ServiceAccount, name: %[1]s, namespace: kube-system}]
`, sidecarAccount)); err != nil {
		return "", err
	}
	return w.ServiceAccountKubeconfig(ctx, "kube-system", sidecarAccount)
}

// class is a StorageClass that allows transfer.
func class(name, provisioner string) *storagev1.StorageClass {
	return &storagev1.StorageClass{
		ObjectMeta:           metav1.ObjectMeta{Name: name, Annotations: map[string]string{v1alpha1.AnnotationAllow: "true"}},
		Provisioner:          provisioner,
		AllowVolumeExpansion: ptr.To(true),
	}
}

// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

// Package node tests csi-transfer as it is shipped on a real node: kubelet,
// containerd, and pods with data on their volumes.
package node

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	storagev1 "k8s.io/api/storage/v1"

	"github.com/csi-transfer/csi-transfer/internal/docs"
	"github.com/csi-transfer/csi-transfer/mock"
	transfer "github.com/csi-transfer/csi-transfer/pkg/client/clientset/versioned"
	"github.com/csi-transfer/csi-transfer/test/cluster"
	"github.com/csi-transfer/csi-transfer/test/node/shipped"
)

// world is a cluster with one node, on which drivers run as the example
// is shipped. Each test has namespaces of its own in it.
type world struct {
	*cluster.Cluster
	node     *cluster.Node
	transfer transfer.Interface
	witness  *witness
	// stopWitness is called before the API server ends.
	stopWitness context.CancelFunc
}

// The drivers. Their namespaces, classes and state directories are named after
// them.
var (
	attached   = shipped.Options{FirstPort: firstPort}
	attachless = shipped.Options{Name: "attachless", Attachless: true, FirstPort: firstPort + 10}
	// watchful tells the sidecar where its volumes are in use.
	watchful = shipped.Options{Name: "watchful", Attachless: true, FirstPort: firstPort + 20, DriverFlags: []string{"--transfer-service"}}
	drivers  = []*shipped.Options{&attached, &attachless, &watchful}
)

// firstPort is below those that Linux gives to whoever asks for any. Tests that
// run at the same time have others.
var firstPort = 10_000 + 100*(os.Getpid()%200)

var shared *world

func TestMain(m *testing.M) {
	flag.Parse()
	// Tests wait most of the time, whatever the number of processors. A storm has
	// eight lanes, and somebody who restarts the kubelet.
	if f := flag.Lookup("test.parallel"); f.Value.String() == f.DefValue {
		_ = f.Value.Set("9") // a number is always accepted
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code, err := run(ctx, m)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	fmt.Printf("%s\n%s\n", counts.table(), counts.sums())
	os.Exit(code)
}

func run(ctx context.Context, m *testing.M) (int, error) {
	w, err := startWorld(ctx)
	if err != nil {
		return 0, err
	}
	defer w.Stop()
	defer w.stopWitness()
	shared = w
	code := m.Run()
	published, err := w.sharedVolumes()
	for _, s := range published {
		err = errors.Join(err, errors.New(s.String()))
	}
	counts.shared = len(published)
	err = errors.Join(err, w.lacking(), w.restarted(ctx))
	if code == 0 && everything() {
		err = errors.Join(err, w.unused(ctx))
		if err == nil && docs.Updating() {
			err = docs.Write(filepath.Join("..", "..", "docs", "reliability.md"), "node", counts.table()+"\n`"+counts.sums()+"`")
		}
	}
	return code, err
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

// startWorld starts everything that does not change in the tests.
func startWorld(ctx context.Context) (_ *world, err error) {
	w := &world{}
	if w.Cluster, err = cluster.Start(ctx, cluster.Options{Scheduler: true, Dir: os.Getenv("CLUSTER_DIR")}); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			w.Stop()
		}
	}()
	if w.transfer, err = transfer.NewForConfig(w.Config); err != nil {
		return nil, err
	}
	witnessing, stop := context.WithCancel(ctx)
	w.stopWitness = stop
	if w.witness, err = startWitness(witnessing, w); err != nil {
		return nil, err
	}
	images, err := cluster.Images(ctx, os.Stderr, append(shipped.Images(), podImage)...)
	if err != nil {
		return nil, err
	}
	if w.node, err = w.StartNode(ctx, cluster.NodeOptions{Images: images, SandboxImage: "docker.io/library/" + podImage + ":latest"}); err != nil {
		return nil, err
	}
	if err := w.StartSnapshotController(ctx); err != nil {
		return nil, err
	}
	if err := w.ApplyKustomize(ctx, deploy()); err != nil {
		return nil, err
	}
	for _, d := range drivers {
		if err := w.startDriver(ctx, d); err != nil {
			return nil, fmt.Errorf("driver %s: %w", d.DriverName(), err)
		}
	}
	return w, nil
}

// startDriver applies a driver's manifests and returns when its pods run and the
// kubelet knows it.
func (w *world) startDriver(ctx context.Context, d *shipped.Options) error {
	manifests, err := shipped.Manifests(ctx, w.Cluster, deploy("examples", "mock"), *d)
	if err != nil {
		return err
	}
	if err := w.Apply(ctx, manifests); err != nil {
		return err
	}
	if err := w.rolledOut(ctx, d); err != nil {
		return err
	}
	_, err = cluster.Wait(ctx, w.Cluster, cluster.CSINodes, "", w.node.Name, func(n *storagev1.CSINode) bool {
		for _, registered := range n.Spec.Drivers {
			if registered.Name == d.DriverName() {
				return true
			}
		}
		return false
	})
	if err != nil {
		return err
	}
	return w.classes(ctx, d)
}

// rolledOut returns when the driver's pods are as they should be, and no others
// are left.
func (w *world) rolledOut(ctx context.Context, d *shipped.Options) error {
	for _, workload := range []string{"deployment/" + d.Controller(), "daemonset/" + d.Node()} {
		if _, err := w.Kubectl(ctx, "rollout", "status", "--namespace="+d.Namespace(), "--timeout=2m", workload); err != nil {
			return fmt.Errorf("%w\n%s", err, w.podLogs(d.Namespace()))
		}
	}
	return nil
}

// waitForConsumer is the class of a driver that provisions when there is a pod.
func waitForConsumer(d *shipped.Options) string { return d.Class() + "-wait" }

func (w *world) classes(ctx context.Context, d *shipped.Options) error {
	class, err := w.Client.StorageV1().StorageClasses().Get(ctx, d.Class(), metav1.GetOptions{})
	if err != nil {
		return err
	}
	class.ObjectMeta = metav1.ObjectMeta{Name: waitForConsumer(d), Annotations: class.Annotations}
	mode := storagev1.VolumeBindingWaitForFirstConsumer
	class.VolumeBindingMode = &mode
	_, err = w.Client.StorageV1().StorageClasses().Create(ctx, class, metav1.CreateOptions{})
	return err
}

// podLogs returns the end of the logs of a namespace's pods.
func (w *world) podLogs(namespace string) string {
	files, err := filepath.Glob(w.node.Path("/var/log/pods/" + namespace + "_*/*/*.log"))
	if err != nil {
		return err.Error()
	}
	var logs string
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return err.Error()
		}
		logs += fmt.Sprintf("%s:\n%s\n", file, content[max(0, len(content)-2000):])
	}
	return logs
}

// sharedVolumes returns the moments in which a volume was published for both
// namespaces, as the drivers know.
func (w *world) sharedVolumes() (found []mock.Shared, err error) {
	for _, d := range drivers {
		records, err := mock.ReadPublishLog(w.node.Path(d.StateDir()))
		if err != nil {
			return nil, err
		}
		found = append(found, mock.FindShared(records)...)
	}
	return found, nil
}

// deploy is the folder of what is shipped.
func deploy(elem ...string) string {
	return filepath.Join(append([]string{"..", "..", "deploy", "kubernetes"}, elem...)...)
}

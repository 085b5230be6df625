// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// DriverOptions says what StartDriver starts.
type DriverOptions struct {
	// Name of the CSI driver, unique in the cluster.
	Name string
	// AttachRequired: volumes are attached to nodes, which then takes Attacher.
	AttachRequired bool
	// Flags are added to mock-csi-driver's flags.
	Flags []string
	// ProvisionerFlags are added to csi-provisioner's flags.
	ProvisionerFlags []string
	// Snapshotter, Resizer and Attacher also start that sidecar; Snapshotter the
	// snapshot controller too, see StartSnapshotController.
	Snapshotter, Resizer, Attacher bool
}

// Driver is a mock CSI driver with its sidecars, each a process of its own.
type Driver struct {
	Name string
	// Address is the path of the driver's socket.
	Address string
	// StateDir is where the driver keeps its volumes.
	StateDir string

	Process, Provisioner *Process
	// Snapshotter, Resizer and Attacher are nil unless asked for.
	Snapshotter, Resizer, Attacher *Process
}

// StartDriver starts a mock CSI driver and csi-provisioner, and creates the
// driver's CSIDriver object unless there is one. StorageClasses are the
// caller's business. The sidecars retry failed calls within a second and run
// with an administrator's rights.
func (c *Cluster) StartDriver(ctx context.Context, options DriverOptions) (*Driver, error) {
	dir := c.path("csi", fileName(options.Name))
	d := &Driver{Name: options.Name, Address: filepath.Join(dir, "csi.sock"), StateDir: filepath.Join(dir, "state")}
	if err := os.MkdirAll(d.StateDir, 0o755); err != nil {
		return nil, err
	}
	_, err := c.Client.StorageV1().CSIDrivers().Create(ctx, &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: options.Name},
		Spec:       storagev1.CSIDriverSpec{AttachRequired: &options.AttachRequired},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, fmt.Errorf("CSIDriver %s: %w", options.Name, err)
	}

	d.Process, err = c.run(ctx, d.processName("mock-csi-driver"), d.ready, "mock-csi-driver", append([]string{
		"--endpoint=unix://" + d.Address,
		"--driver-name=" + d.Name,
		"--state-dir=" + d.StateDir,
		fmt.Sprintf("--attach-required=%t", options.AttachRequired),
	}, options.Flags...)...)
	if err != nil {
		return nil, err
	}
	d.Provisioner, err = c.startCSISidecar(ctx, d, "csi-provisioner", append([]string{
		// There is no node whose topology could be asked for.
		"--immediate-topology=false",
	}, options.ProvisionerFlags...)...)
	if err != nil {
		return nil, err
	}
	if options.Snapshotter {
		if err := c.StartSnapshotController(ctx); err != nil {
			return nil, err
		}
		if d.Snapshotter, err = c.startCSISidecar(ctx, d, "csi-snapshotter"); err != nil {
			return nil, err
		}
	}
	if options.Resizer {
		if d.Resizer, err = c.startCSISidecar(ctx, d, "csi-resizer"); err != nil {
			return nil, err
		}
	}
	if options.Attacher {
		if d.Attacher, err = c.startCSISidecar(ctx, d, "csi-attacher"); err != nil {
			return nil, err
		}
	}
	return d, nil
}

func (d *Driver) processName(program string) string { return program + "-" + d.Name }

// ready says whether the driver accepts connections.
func (d *Driver) ready(ctx context.Context) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", d.Address)
	if err != nil {
		return err
	}
	return conn.Close()
}

// controllerFlags are understood by the controllers of kubernetes-csi.
func controllerFlags(kubeconfig string) []string {
	return []string{
		"--kubeconfig=" + kubeconfig,
		"--kube-api-qps=200",
		"--kube-api-burst=400",
		"--retry-interval-start=200ms",
		"--retry-interval-max=1s",
	}
}

func (c *Cluster) startCSISidecar(ctx context.Context, d *Driver, program string, args ...string) (*Process, error) {
	name := d.processName(program)
	kubeconfig, err := c.KubeconfigFor(name, "system:masters")
	if err != nil {
		return nil, err
	}
	flags := append(controllerFlags(kubeconfig), "--csi-address="+d.Address)
	return c.Run(ctx, name, program, append(flags, args...)...)
}

// StartSnapshotController installs the snapshot and group snapshot CRDs and
// starts the snapshot controller, of which a cluster has one for all drivers.
// It does nothing when that has been done.
func (c *Cluster) StartSnapshotController(ctx context.Context) error {
	const name = "snapshot-controller"
	c.snapshots.Lock()
	defer c.snapshots.Unlock()
	if c.Process(name) != nil {
		return nil
	}
	b, err := findBuilder()
	if err != nil {
		return err
	}
	client, err := goCommand(b.module, "list", "-m", "-f", "{{.Dir}}", "github.com/kubernetes-csi/external-snapshotter/client/v8")
	if err != nil {
		return err
	}
	if err := c.ApplyKustomize(ctx, filepath.Join(client, "config", "crd")); err != nil {
		return err
	}
	kubeconfig, err := c.KubeconfigFor(name, "system:masters")
	if err != nil {
		return err
	}
	_, err = c.Run(ctx, name, name, controllerFlags(kubeconfig)...)
	return err
}

// SidecarOptions says how csi-transfer runs.
type SidecarOptions struct {
	// Name of the process; csi-transfer unless given. Two sidecars that run at
	// once need two names.
	Name string
	// Address of the CSI driver's socket, see Driver.
	Address string
	// Kubeconfig is the path of the kubeconfig file that the sidecar uses. It
	// decides what the sidecar may do and who it is in the audit log.
	Kubeconfig string
	// Flags are added.
	Flags []string
}

// StartSidecar starts csi-transfer.
func (c *Cluster) StartSidecar(ctx context.Context, options SidecarOptions) (*Process, error) {
	if options.Address == "" || options.Kubeconfig == "" {
		return nil, errors.New("starting csi-transfer: the driver's address and a kubeconfig are needed")
	}
	name := options.Name
	if name == "" {
		name = "csi-transfer"
	}
	return c.Run(ctx, name, "csi-transfer", append([]string{
		"--kubeconfig=" + options.Kubeconfig,
		"--csi-address=" + options.Address,
	}, options.Flags...)...)
}

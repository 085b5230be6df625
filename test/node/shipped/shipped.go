// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

// Package shipped makes of deploy/kubernetes/examples/mock what runs on a cluster
// of one node without pod network, cluster DNS and kube-proxy. It changes no more
// than that takes.
package shipped

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/utils/ptr"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/csi-transfer/csi-transfer/test/cluster"
)

// shippedName is what everything is named after in the manifests.
const shippedName = "mock"

// Options say how an instance of the example differs from what is shipped.
type Options struct {
	// Name takes the place of mock in all names, so that one cluster can have
	// several instances: see DriverName, Namespace and the others. Empty: as
	// shipped.
	Name string
	// DriverFlags are added to those of the driver, of its controller and its node
	// plugin.
	DriverFlags []string
	// Attachless has no csi-attacher, and volumes that need no attaching.
	Attachless bool
	// FirstPort is the first of the ports that the sidecars serve on; one follows
	// for each. They are those of the node. Needed unless Replicas is more than 1.
	FirstPort int
	// Replicas of the controller; 1 unless given. Several on one node cannot have
	// the same ports, so that they serve none and have no probes there. They are
	// updated one after the other.
	Replicas int32
}

func (o Options) name() string { return cmp.Or(o.Name, shippedName) }

// DriverName is that of the CSI driver.
func (o Options) DriverName() string { return o.name() + ".transfer.storage.x-k8s.io" }

// Namespace is where the pods are: those of the Deployment Controller and of the
// DaemonSet Node.
func (o Options) Namespace() string { return "csi-" + o.name() }

// Controller is the Deployment and its service account.
func (o Options) Controller() string { return o.Namespace() + "-controller" }

// Node is the DaemonSet.
func (o Options) Node() string { return o.Namespace() + "-node" }

// Class is the StorageClass and the VolumeSnapshotClass.
func (o Options) Class() string { return o.name() }

// StateDir is where the driver keeps its volumes, as seen on the node.
func (o Options) StateDir() string { return "/var/lib/" + o.Namespace() }

// Images are those that the pods need, by the names that make images has.
func Images() []string {
	return []string{"csi-transfer", "mock-csi-driver", "csi-provisioner", "csi-snapshotter", "csi-resizer", "csi-attacher"}
}

// Manifests renders the example with the VolumeSnapshotClass, for kubectl apply.
// example is the path of deploy/kubernetes/examples/mock.
func Manifests(ctx context.Context, c *cluster.Cluster, example string, options Options) (string, error) {
	rendered, err := c.Kubectl(ctx, "kustomize", example)
	if err != nil {
		return "", err
	}
	snapshotClass, err := os.ReadFile(filepath.Join(example, "snapshot-class", "volumesnapshotclass.yaml"))
	if err != nil {
		return "", err
	}
	server, err := url.Parse(c.Config.Host)
	if err != nil {
		return "", fmt.Errorf("the API server's address: %w", err)
	}
	return options.adapt(rendered+"---\n"+string(snapshotClass), server)
}

// adapt changes each of the manifests. server is the URL of the API server.
func (o Options) adapt(manifests string, server *url.URL) (string, error) {
	if o.Name != "" {
		manifests = strings.NewReplacer(
			"mock.transfer.", o.Name+".transfer.",
			"mock-transfer-", o.Name+"-transfer-", // in names of Leases
			"csi-mock", o.Namespace(),
		).Replace(manifests)
	}
	var out bytes.Buffer
	for in := yaml.NewYAMLOrJSONDecoder(strings.NewReader(manifests), 4096); ; {
		object := &unstructured.Unstructured{}
		if err := in.Decode(object); errors.Is(err, io.EOF) {
			return out.String(), nil
		} else if err != nil {
			return "", err
		}
		if object.Object == nil {
			continue
		}
		if err := o.change(object, server); err != nil {
			return "", fmt.Errorf("%s %s: %w", object.GetKind(), object.GetName(), err)
		}
		text, err := sigsyaml.Marshal(object)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&out, "---\n%s", text)
	}
}

func (o Options) change(object *unstructured.Unstructured, server *url.URL) error {
	switch object.GetKind() {
	case "StorageClass", "VolumeSnapshotClass":
		object.SetName(o.Class())
	case "CSIDriver":
		return unstructured.SetNestedField(object.Object, !o.Attachless, "spec", "attachRequired")
	case "Deployment":
		return as(object, func(d *appsv1.Deployment) {
			if o.Replicas > 1 {
				d.Spec.Replicas = &o.Replicas
				d.Spec.Strategy = appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType}
			}
			o.changePod(&d.Spec.Template.Spec, server)
		})
	case "DaemonSet":
		return as(object, func(d *appsv1.DaemonSet) { o.changePod(&d.Spec.Template.Spec, server) })
	}
	return nil
}

// as changes an object as one of its own type.
func as[T any](object *unstructured.Unstructured, change func(*T)) error {
	typed := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, typed); err != nil {
		return err
	}
	change(typed)
	changed, err := runtime.DefaultUnstructuredConverter.ToUnstructured(typed)
	object.Object = changed
	return err
}

func (o Options) changePod(pod *corev1.PodSpec, server *url.URL) {
	pod.HostNetwork = true
	pod.DNSPolicy = corev1.DNSDefault
	if o.Attachless {
		pod.Containers = slices.DeleteFunc(pod.Containers, func(c corev1.Container) bool { return c.Name == "csi-attacher" })
	}
	for i := range pod.Containers {
		c := &pod.Containers[i]
		if ptr.Deref(pod.AutomountServiceAccountToken, true) {
			// Instead of the Service, which is nowhere without kube-proxy.
			c.Env = append(c.Env,
				corev1.EnvVar{Name: "KUBERNETES_SERVICE_HOST", Value: server.Hostname()},
				corev1.EnvVar{Name: "KUBERNETES_SERVICE_PORT", Value: server.Port()})
		}
		for j, arg := range c.Args {
			if o.Attachless && arg == "--attach-required=true" {
				c.Args[j] = "--attach-required=false"
			}
		}
		if c.Name == "mock-csi-driver" {
			c.Args = append(c.Args, o.DriverFlags...)
		}
		o.changeEndpoint(c, o.FirstPort+i)
	}
}

// changeEndpoint moves what a sidecar serves to the node's loopback address.
func (o Options) changeEndpoint(c *corev1.Container, port int) {
	const flag = "--http-endpoint="
	i := slices.IndexFunc(c.Args, func(arg string) bool { return strings.HasPrefix(arg, flag) })
	if i < 0 {
		return
	}
	if o.Replicas > 1 {
		c.Args = slices.Delete(c.Args, i, i+1)
		c.Ports, c.LivenessProbe = nil, nil
		return
	}
	c.Args[i] = flag + net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	c.Ports[0].ContainerPort = int32(port)
	c.LivenessProbe.HTTPGet.Host = "127.0.0.1"
}

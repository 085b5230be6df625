// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-transfer/csi-transfer/pkg/apis/transfer/v1alpha1"
	"github.com/csi-transfer/csi-transfer/test/cluster"
)

const driverName = "mock.transfer.storage.x-k8s.io"

// demo is one performance.
type demo struct {
	console
	admin, alice, bob person
	driver            *cluster.Driver
	// file was written into the volume, with content.
	file    os.FileInfo
	content []byte
}

func (d *demo) play() {
	d.title("1. A cluster, a CSI driver, and csi-transfer beside it")
	d.install()

	d.title("2. alice has data in namespace prod")
	d.apply(d.alice, "examples/source-claim.yaml")
	source := d.bound("prod", "data")
	d.kubectl(d.alice, "get", "pvc", "-n", "prod")
	d.write(source, "what alice wrote\n")
	d.say("Her application uses it:")
	d.kubectl(d.alice, "apply", "-f", "examples/pod.yaml")

	d.title("3. bob, in namespace dev, asks for it")
	d.apply(d.bob, "examples/request.yaml")
	d.say("He makes the claim that is to receive the volume, with the request as its data source.")
	d.apply(d.bob, "examples/claim.yaml")
	d.say("Nothing happens, and he learns nothing about prod, not even whether the claim exists:")
	d.kubectl(d.bob, "get", "namespacetransferrequests,pvc", "-n", "dev")

	d.title("4. alice agrees, but her pod is in the way")
	d.older(source)
	d.apply(d.alice, "examples/approval.yaml")
	d.refused("dev", "take-data", "InUse")
	d.say("Both sides see what is waited for; the short names are ntr and nta:")
	d.kubectl(d.bob, "get", "ntr", "take-data", "-n", "dev", "-o", "wide")
	d.describe(d.alice, []string{"Name", "Spec", "Status", "Events"}, "nta", "give-data", "-n", "prod")

	d.title("5. The pod goes, and the volume moves at once")
	d.say("No node is here to report the end of the pod, hence --force.")
	d.kubectl(d.alice, "delete", "pod", "app", "-n", "prod", "--force", "--grace-period=0")
	d.kubectl(d.bob, "wait", "--for=condition=Transferred", "ntr/take-data", "-n", "dev", "--timeout=30s")
	d.kubectl(d.bob, "get", "ntr,pvc", "-n", "dev")
	d.kubectl(d.admin, "get", "pv")
	d.say("It is the same volume, now bound to dev/data. In prod a spent claim is left, which says where its volume went:")
	d.describe(d.alice, []string{"Name", "Namespace", "Status", "Volume", "Annotations", "Events"}, "pvc", "data", "-n", "prod")
	received := d.bound("dev", "data")
	d.same(received)

	d.title("6. Back again, under a new name, with the kubectl plugin")
	d.say("It makes the same three objects. First, would it work?")
	d.kubectl(d.admin, "transfer", "check", "dev/pvc/data", "--to", "prod")
	d.kubectl(d.bob, "transfer", "approve", "dev/pvc/data", "--to", "prod")
	d.kubectl(d.alice, "transfer", "accept", "dev/pvc/data", "-n", "prod", "--claim", "data-returned")
	d.say("The claims that were left behind:")
	d.kubectl(d.admin, "transfer", "spent", "-A")
	d.kubectl(d.admin, "get", "ntr,nta,pvc", "-A")
	d.same(d.bound("prod", "data-returned"))
}

// install brings in what deploy/kubernetes ships. What the example Deployment
// has in a pod runs as processes, with the service account of that pod.
func (d *demo) install() {
	d.admin = person{"admin", d.cluster.Kubeconfig}
	d.kubectl(d.admin, "apply", "-k", "deploy/kubernetes")
	d.do(func() error {
		_, err := d.cluster.Kubectl(d.ctx, "wait", "--for=condition=Established", "crds", "--all", "--timeout=30s")
		return err
	})
	const example = "deploy/kubernetes/examples/mock/"
	for _, file := range []string{"namespace.yaml", "rbac.yaml", "csidriver.yaml"} {
		d.kubectl(d.admin, "apply", "-f", example+file)
	}
	d.say("Its StorageClass must allow transfers:")
	d.apply(d.admin, example+"storageclass.yaml")
	d.do(func() (err error) {
		if d.driver, err = d.cluster.StartDriver(d.ctx, cluster.DriverOptions{Name: driverName, AttachRequired: true}); err != nil {
			return err
		}
		kubeconfig, err := d.cluster.ServiceAccountKubeconfig(d.ctx, "csi-mock", "csi-mock-controller")
		if err != nil {
			return err
		}
		_, err = d.cluster.StartSidecar(d.ctx, cluster.SidecarOptions{
			Address: d.driver.Address, Kubeconfig: kubeconfig,
			Flags: []string{"--leader-election", "--leader-election-namespace=csi-mock", "--kube-api-qps=200", "--kube-api-burst=400"},
		})
		return err
	})
	d.say("The driver %s, csi-provisioner and csi-transfer run as processes.", driverName)

	d.say("alice may edit namespace prod, bob may edit dev, and neither may do anything else:")
	for _, side := range []struct {
		person    *person
		name      string
		namespace string
	}{{&d.alice, "alice", "prod"}, {&d.bob, "bob", "dev"}} {
		d.do(func() error { return d.cluster.CreateNamespace(d.ctx, side.namespace) })
		d.kubectl(d.admin, "create", "rolebinding", side.name, "-n", side.namespace, "--clusterrole=edit", "--user="+side.name)
		d.do(func() (err error) {
			side.person.name = side.name
			side.person.kubeconfig, err = d.cluster.KubeconfigFor(side.name)
			return err
		})
	}
	// Kubernetes adds what was just installed to its role edit in its own time.
	d.do(func() error {
		_, err := cluster.Wait(d.ctx, d.cluster, rbacv1.SchemeGroupVersion.WithResource("clusterroles"), "", "edit", func(r *rbacv1.ClusterRole) bool {
			return slices.ContainsFunc(r.Rules, func(rule rbacv1.PolicyRule) bool { return slices.Contains(rule.APIGroups, v1alpha1.GroupName) })
		})
		return err
	})
}

func (d *demo) bound(namespace, name string) *corev1.PersistentVolumeClaim {
	claim := &corev1.PersistentVolumeClaim{}
	d.do(func() (err error) {
		claim, err = d.cluster.WaitClaimPhase(d.ctx, namespace, name, corev1.ClaimBound)
		return err
	})
	return claim
}

func (d *demo) refused(namespace, request, reason string) {
	d.do(func() error {
		_, err := d.cluster.WaitCondition(d.ctx, cluster.Requests, namespace, request, v1alpha1.ConditionTransferred, metav1.ConditionFalse, reason)
		return err
	})
}

// older waits until the claim was created in an earlier second than this one:
// an approval that does not pin its claim by UID covers no other.
func (d *demo) older(claim *corev1.PersistentVolumeClaim) {
	d.do(func() error {
		select {
		case <-time.After(time.Until(claim.CreationTimestamp.Add(time.Second))):
			return nil
		case <-d.ctx.Done():
			return d.ctx.Err()
		}
	})
}

// write puts a file into the volume, in the driver's own storage.
func (d *demo) write(claim *corev1.PersistentVolumeClaim, content string) {
	d.do(func() error {
		path, err := d.path(claim)
		if err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			return err
		}
		d.content = []byte(content)
		d.file, err = os.Stat(path)
		return err
	})
	d.say("On the driver's side her volume is a directory. A file in it says %q.", content)
}

// same checks that the claim has the very file that was written.
func (d *demo) same(claim *corev1.PersistentVolumeClaim) {
	d.do(func() error {
		path, err := d.path(claim)
		if err != nil {
			return err
		}
		file, err := os.Stat(path)
		if err != nil {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if !os.SameFile(file, d.file) || !file.ModTime().Equal(d.file.ModTime()) || !bytes.Equal(content, d.content) {
			return fmt.Errorf("%s is not the file that was written: it says %q", path, content)
		}
		return nil
	})
	d.say("The volume of %s/%s has the very same file, untouched: nothing was copied.", claim.Namespace, claim.Name)
}

// path is that of a file in the claim's volume, in the driver's own storage.
func (d *demo) path(claim *corev1.PersistentVolumeClaim) (string, error) {
	pv, err := d.cluster.Client.CoreV1().PersistentVolumes().Get(d.ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	return filepath.Join(d.driver.StateDir, "volumes", pv.Spec.CSI.VolumeHandle, "data", "file"), nil
}

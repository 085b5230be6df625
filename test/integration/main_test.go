// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

// Package integration tests csi-transfer on a real control plane with the real
// csi-provisioner and the mock driver, all as processes. Tests are named after
// the requirement they show.
package integration

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/csi-transfer/csi-transfer/pkg/apis/transfer/v1alpha1"
	transfer "github.com/csi-transfer/csi-transfer/pkg/client/clientset/versioned"
	"github.com/csi-transfer/csi-transfer/test/cluster"
)

// driverName is that of the mock driver that tests share.
const driverName = "mock.transfer.storage.x-k8s.io"

// className is a StorageClass that allows transfer.
const className = "mock"

// world is the cluster that all tests share. Each test has namespaces of its own.
var world struct {
	*cluster.Cluster
	transfer transfer.Interface
	driver   *cluster.Driver
	sidecar  *cluster.Process
	// kubeconfig is the sidecar's, of the service account it is shipped with.
	kubeconfig string
}

func TestMain(m *testing.M) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code, err := run(ctx, m)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(ctx context.Context, m *testing.M) (int, error) {
	c, err := cluster.Start(ctx, cluster.Options{Dir: os.Getenv("CLUSTER_DIR")})
	if err != nil {
		return 0, err
	}
	defer c.Stop()
	world.Cluster = c
	if world.transfer, err = transfer.NewForConfig(c.Config); err != nil {
		return 0, err
	}
	if err := c.ApplyKustomize(ctx, deploy()); err != nil {
		return 0, err
	}
	if world.driver, err = c.StartDriver(ctx, cluster.DriverOptions{Name: driverName}); err != nil {
		return 0, err
	}
	if _, err := c.Client.StorageV1().StorageClasses().Create(ctx, class(className, driverName), metav1.CreateOptions{}); err != nil {
		return 0, err
	}
	if world.kubeconfig, err = sidecarKubeconfig(ctx, "csi-transfer"); err != nil {
		return 0, err
	}
	if world.sidecar, err = c.StartSidecar(ctx, cluster.SidecarOptions{Address: world.driver.Address, Kubeconfig: world.kubeconfig, Flags: sidecarFlags}); err != nil {
		return 0, err
	}
	return m.Run(), nil
}

// sidecarFlags are those of the shipped Deployment that matter without a node.
var sidecarFlags = []string{"--kube-api-qps=200", "--kube-api-burst=400", "--v=4"}

// deploy is the folder of what is shipped.
func deploy(elem ...string) string {
	return filepath.Join(append([]string{"..", "..", "deploy", "kubernetes"}, elem...)...)
}

// sidecarKubeconfig makes a service account that has the shipped ClusterRole
// and nothing else.
func sidecarKubeconfig(ctx context.Context, name string) (string, error) {
	if err := world.Apply(ctx, fmt.Sprintf(`
apiVersion: v1
kind: ServiceAccount
metadata: {name: %[1]s, namespace: kube-system}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: %[1]s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: csi-transfer-runner}
subjects: [{kind: ServiceAccount, name: %[1]s, namespace: kube-system}]
`, name)); err != nil {
		return "", err
	}
	return world.ServiceAccountKubeconfig(ctx, "kube-system", name)
}

func class(name, provisioner string) *storagev1.StorageClass {
	return &storagev1.StorageClass{
		ObjectMeta:           metav1.ObjectMeta{Name: name, Annotations: map[string]string{v1alpha1.AnnotationAllow: "true"}},
		Provisioner:          provisioner,
		ReclaimPolicy:        ptr.To(corev1.PersistentVolumeReclaimDelete),
		VolumeBindingMode:    ptr.To(storagev1.VolumeBindingImmediate),
		AllowVolumeExpansion: ptr.To(true),
	}
}

// scene is what one test acts in: a claim in a giving namespace, and a receiving
// namespace.
type scene struct {
	*testing.T
	ctx             context.Context
	giver, receiver string
	class           string
}

var scenes atomic.Int32

// newScene makes the two namespaces.
func newScene(t *testing.T) *scene {
	t.Helper()
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	n := scenes.Add(1)
	s := &scene{T: t, ctx: ctx, giver: fmt.Sprintf("prod-%d", n), receiver: fmt.Sprintf("dev-%d", n), class: className}
	for _, ns := range []string{s.giver, s.receiver} {
		s.must(world.CreateNamespace(ctx, ns))
	}
	return s
}

func (s *scene) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func must[T any](s *scene) func(T, error) T {
	return func(v T, err error) T {
		s.Helper()
		s.must(err)
		return v
	}
}

// claim is a claim of 1Gi.
func (s *scene) claim(namespace, name string, change ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	s.Helper()
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &s.class,
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:        corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}
	for _, f := range change {
		f(c)
	}
	return must[*corev1.PersistentVolumeClaim](s)(world.Client.CoreV1().PersistentVolumeClaims(namespace).Create(s.ctx, c, metav1.CreateOptions{}))
}

// from makes a claim receive what a request asks for.
func from(request string) func(*corev1.PersistentVolumeClaim) {
	return func(c *corev1.PersistentVolumeClaim) {
		c.Spec.DataSourceRef = &corev1.TypedObjectReference{APIGroup: ptr.To(v1alpha1.GroupName), Kind: v1alpha1.RequestKind, Name: request}
	}
}

// bound waits until a claim is Bound.
func (s *scene) bound(namespace, name string) *corev1.PersistentVolumeClaim {
	s.Helper()
	return must[*corev1.PersistentVolumeClaim](s)(world.WaitClaimPhase(s.ctx, namespace, name, corev1.ClaimBound))
}

// source provisions the claim data in the giving namespace.
func (s *scene) source(change ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	s.Helper()
	s.claim(s.giver, "data", change...)
	return s.bound(s.giver, "data")
}

// request asks for the claim data, as take-data.
func (s *scene) request(change ...func(*v1alpha1.NamespaceTransferRequest)) *v1alpha1.NamespaceTransferRequest {
	s.Helper()
	r := &v1alpha1.NamespaceTransferRequest{ObjectMeta: metav1.ObjectMeta{Namespace: s.receiver, Name: "take-data"}}
	r.Spec.Source = v1alpha1.RequestSource{Namespace: s.giver, SourceReference: v1alpha1.SourceReference{Kind: "PersistentVolumeClaim", Name: "data"}}
	for _, f := range change {
		f(r)
	}
	return must[*v1alpha1.NamespaceTransferRequest](s)(world.transfer.TransferV1alpha1().NamespaceTransferRequests(r.Namespace).Create(s.ctx, r, metav1.CreateOptions{}))
}

// approve gives the claim, pinned where it is given, as give-data.
func (s *scene) approve(source *corev1.PersistentVolumeClaim, change ...func(*v1alpha1.NamespaceTransferApproval)) *v1alpha1.NamespaceTransferApproval {
	s.Helper()
	a := &v1alpha1.NamespaceTransferApproval{ObjectMeta: metav1.ObjectMeta{Namespace: s.giver, Name: "give-data"}}
	a.Spec.Source = v1alpha1.ApprovalSource{SourceReference: v1alpha1.SourceReference{Kind: "PersistentVolumeClaim", Name: "data"}}
	if source != nil {
		a.Spec.Source.UID = source.UID
	}
	a.Spec.TargetNamespace = s.receiver
	for _, f := range change {
		f(a)
	}
	return must[*v1alpha1.NamespaceTransferApproval](s)(world.transfer.TransferV1alpha1().NamespaceTransferApprovals(a.Namespace).Create(s.ctx, a, metav1.CreateOptions{}))
}

// transferred waits until the request is.
func (s *scene) transferred() *v1alpha1.NamespaceTransferRequest {
	s.Helper()
	_, err := world.WaitCondition(s.ctx, requests, s.receiver, "take-data", v1alpha1.ConditionTransferred, metav1.ConditionTrue, "")
	s.must(err)
	return must[*v1alpha1.NamespaceTransferRequest](s)(world.transfer.TransferV1alpha1().NamespaceTransferRequests(s.receiver).Get(s.ctx, "take-data", metav1.GetOptions{}))
}

// refused waits until the request says that it waits for a reason, and returns
// the sentence.
func (s *scene) refused(reason string) string {
	s.Helper()
	c, err := world.WaitCondition(s.ctx, requests, s.receiver, "take-data", v1alpha1.ConditionTransferred, metav1.ConditionFalse, reason)
	s.must(err)
	return c.Message
}

var (
	requests  = v1alpha1.SchemeGroupVersion.WithResource("namespacetransferrequests")
	approvals = v1alpha1.SchemeGroupVersion.WithResource("namespacetransferapprovals")
)

func (s *scene) volume(name string) *corev1.PersistentVolume {
	s.Helper()
	return must[*corev1.PersistentVolume](s)(world.Client.CoreV1().PersistentVolumes().Get(s.ctx, name, metav1.GetOptions{}))
}

// pod makes a pod that is scheduled and uses the claim. Nothing runs it.
func (s *scene) pod(namespace, name, claim string) *corev1.Pod {
	s.Helper()
	return must[*corev1.Pod](s)(world.Client.CoreV1().Pods(namespace).Create(s.ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: corev1.PodSpec{
			NodeName:   "node-1",
			Containers: []corev1.Container{{Name: "c", Image: "none"}},
			Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
			}}},
		},
	}, metav1.CreateOptions{}))
}

// deletePod deletes a pod at once: no kubelet is there to confirm.
func (s *scene) deletePod(namespace, name string) {
	s.Helper()
	s.must(world.Client.CoreV1().Pods(namespace).Delete(s.ctx, name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}))
}

// patch applies a merge patch as an administrator.
func (s *scene) patchClaim(namespace, name, patch string) {
	s.Helper()
	_, err := world.Client.CoreV1().PersistentVolumeClaims(namespace).Patch(s.ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	s.must(err)
}

func (s *scene) patchVolume(name, patch string) {
	s.Helper()
	_, err := world.Client.CoreV1().PersistentVolumes().Patch(s.ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	s.must(err)
}

// ours lists what of a transfer is left on a volume.
func ours(pv *corev1.PersistentVolume) []string {
	var left []string
	for _, keys := range []map[string]string{pv.Labels, pv.Annotations} {
		for key := range keys {
			if strings.HasPrefix(key, v1alpha1.GroupName) {
				left = append(left, key)
			}
		}
	}
	for _, f := range pv.Finalizers {
		if strings.HasPrefix(f, v1alpha1.GroupName) {
			left = append(left, f)
		}
	}
	return left
}

// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/csi-transfer/csi-transfer/pkg/apis/transfer/v1alpha1"
	"github.com/csi-transfer/csi-transfer/pkg/sidecar/protocol"
	"github.com/csi-transfer/csi-transfer/test/cluster"
	"github.com/csi-transfer/csi-transfer/test/node/shipped"
)

// podImage is what pods run.
const podImage = "test-pod"

// volumeKind says what a claim asks for.
type volumeKind struct {
	driver *shipped.Options
	class  string
	mode   corev1.PersistentVolumeMode
	access corev1.PersistentVolumeAccessMode
}

// scene is what one case acts in: two namespaces and a volume that moves between
// them, in which each pod leaves something for the next.
type scene struct {
	*testing.T
	*world
	volumeKind
	ctx       context.Context
	prod, dev string
	// visits counts the pods that were to look at the volume.
	visits int
	// left is what is on the volume, by file or range of the device.
	left map[string]string
	// moves counts the transfers, for names.
	moves int
}

// scenes counts them, for names.
var scenes atomic.Int32

func newScene(t *testing.T, kind volumeKind) *scene {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	t.Cleanup(cancel)
	n := scenes.Add(1)
	s := &scene{T: t, world: shared, volumeKind: kind, ctx: ctx, prod: fmt.Sprintf("prod-%d", n), dev: fmt.Sprintf("dev-%d", n)}
	for _, ns := range []string{s.prod, s.dev} {
		s.must(s.CreateNamespace(ctx, ns))
	}
	t.Cleanup(func() {
		counts.count(t.Name(), func(g *group) {
			g.cases++
			if t.Failed() {
				g.failed++
			}
		})
		// The node has room for a hundred pods.
		for _, ns := range []string{s.prod, s.dev} {
			if err := s.Client.CoreV1().Pods(ns).DeleteCollection(context.WithoutCancel(ctx), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
				t.Error(err)
			}
		}
	})
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

// place is a claim in a namespace.
type place struct{ namespace, claim string }

func (p place) String() string { return p.namespace + "/" + p.claim }

// claim makes a claim.
func (s *scene) claim(at place, request string, change ...func(*corev1.PersistentVolumeClaim)) {
	s.Helper()
	_, err := s.Client.CoreV1().PersistentVolumeClaims(at.namespace).Create(s.ctx, s.newClaim(at.claim, request, change...), metav1.CreateOptions{})
	s.must(err)
}

// newClaim is one of 1Gi. Its volume is to come by a request, if one is given.
func (s *scene) newClaim(name, request string, change ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &s.class,
			VolumeMode:       &s.mode,
			AccessModes:      []corev1.PersistentVolumeAccessMode{s.access},
		},
	}
	size("1Gi")(c)
	if request != "" {
		c.Spec.DataSourceRef = &corev1.TypedObjectReference{APIGroup: ptr.To(v1alpha1.GroupName), Kind: v1alpha1.RequestKind, Name: request}
	}
	for _, f := range change {
		f(c)
	}
	return c
}

func size(quantity string) func(*corev1.PersistentVolumeClaim) {
	return func(c *corev1.PersistentVolumeClaim) {
		c.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(quantity)}
	}
}

func (s *scene) bound(at place) *corev1.PersistentVolumeClaim {
	s.Helper()
	return must[*corev1.PersistentVolumeClaim](s)(s.WaitClaimPhase(s.ctx, at.namespace, at.claim, corev1.ClaimBound))
}

// move is a transfer that was offered.
type move struct {
	name     string
	from, to place
}

// offer asks for a volume, makes the claim that is to receive it, and approves.
func (s *scene) offer(from, to place, change ...func(*corev1.PersistentVolumeClaim)) move {
	s.Helper()
	s.moves++
	t := move{fmt.Sprintf("move-%d", s.moves), from, to}
	source := v1alpha1.SourceReference{Kind: "PersistentVolumeClaim", Name: from.claim}
	api := s.world.transfer.TransferV1alpha1()
	_, err := api.NamespaceTransferRequests(to.namespace).Create(s.ctx, &v1alpha1.NamespaceTransferRequest{
		ObjectMeta: metav1.ObjectMeta{Name: t.name},
		Spec:       v1alpha1.NamespaceTransferRequestSpec{Source: v1alpha1.RequestSource{Namespace: from.namespace, SourceReference: source}},
	}, metav1.CreateOptions{})
	s.must(err)
	s.claim(to, t.name, change...)
	claim := must[*corev1.PersistentVolumeClaim](s)(s.Client.CoreV1().PersistentVolumeClaims(from.namespace).Get(s.ctx, from.claim, metav1.GetOptions{}))
	_, err = api.NamespaceTransferApprovals(from.namespace).Create(s.ctx, &v1alpha1.NamespaceTransferApproval{
		ObjectMeta: metav1.ObjectMeta{Name: t.name},
		Spec: v1alpha1.NamespaceTransferApprovalSpec{
			Source:          v1alpha1.ApprovalSource{SourceReference: source, UID: claim.UID},
			TargetNamespace: to.namespace,
			RequestName:     t.name,
		},
	}, metav1.CreateOptions{})
	s.must(err)
	return t
}

// waits returns when a transfer waits for a reason, in whose message there is
// what to look at.
func (s *scene) waits(t move, reason protocol.Reason, names ...string) {
	s.Helper()
	_, err := cluster.Wait(s.ctx, s.Cluster, cluster.Requests, t.to.namespace, t.name, func(r *v1alpha1.NamespaceTransferRequest) bool {
		c := meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionTransferred)
		if c == nil || c.Reason != string(reason) {
			return false
		}
		for _, name := range names {
			if !strings.Contains(c.Message, name) {
				return false
			}
		}
		return true
	})
	s.must(err)
}

// completes returns when a transfer is complete.
func (s *scene) completes(t move) *corev1.PersistentVolumeClaim {
	s.Helper()
	_, err := s.WaitCondition(s.ctx, cluster.Requests, t.to.namespace, t.name, v1alpha1.ConditionTransferred, metav1.ConditionTrue, "")
	s.must(err)
	counts.count(s.Name(), func(g *group) { g.transfers++ })
	return s.bound(t.to)
}

// mounted is where pods have the volume.
const mounted = "/volume"

// visit is a pod that looks at the volume, changes it, and then holds it.
type visit struct{ namespace, pod string }

// visit makes a pod whose init container sums up what others have left on the
// volume and writes more, before another holds the volume.
func (s *scene) visit(at place, change ...func(*corev1.Pod)) visit {
	s.Helper()
	v := visit{namespace: at.namespace, pod: fmt.Sprintf("visitor-%d", s.visits)}
	_, err := s.Client.CoreV1().Pods(at.namespace).Create(s.ctx, s.newPod(v.pod, at.claim, s.steps(), change...), metav1.CreateOptions{})
	s.must(err)
	return v
}

// steps are those of the next visitor.
func (s *scene) steps() (steps []string) {
	n := s.visits
	s.visits++
	if s.mode == corev1.PersistentVolumeBlock {
		// Each overwrites less than the one before.
		if n > 0 {
			steps = append(steps, "sum:"+mounted+":65536")
		}
		return append(steps, fmt.Sprintf("write:%s:%d", mounted, 65536>>n), "sum:"+mounted+":65536")
	}
	for earlier := range n {
		steps = append(steps, fmt.Sprintf("sum:%s/%d", mounted, earlier))
	}
	return append(steps, fmt.Sprintf("write:%s/%d:65536", mounted, n))
}

func (s *scene) newPod(name, claim string, steps []string, change ...func(*corev1.Pod)) *corev1.Pod {
	container := corev1.Container{Image: podImage, ImagePullPolicy: corev1.PullNever}
	if s.mode == corev1.PersistentVolumeBlock {
		container.VolumeDevices = []corev1.VolumeDevice{{Name: "volume", DevicePath: mounted}}
		container.SecurityContext = &corev1.SecurityContext{RunAsUser: ptr.To[int64](0)} // whose devices are
	} else {
		container.VolumeMounts = []corev1.VolumeMount{{Name: "volume", MountPath: mounted}}
	}
	look, hold := container, container
	look.Name, look.Args = "look", steps
	hold.Name = "hold"
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			HostNetwork: true,
			Containers:  []corev1.Container{hold},
			Volumes: []corev1.Volume{{Name: "volume", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
			}}},
			AutomountServiceAccountToken: ptr.To(false),
		},
	}
	if len(steps) > 0 {
		pod.Spec.InitContainers = []corev1.Container{look}
	}
	for _, f := range change {
		f(pod)
	}
	return pod
}

// saw waits until a visitor has seen and written everything, and fails unless it
// found what the one before had left.
func (s *scene) saw(v visit) {
	s.Helper()
	pod, err := cluster.Wait(s.ctx, s.Cluster, cluster.Pods, v.namespace, v.pod, func(p *corev1.Pod) bool {
		return len(p.Status.InitContainerStatuses) > 0 && p.Status.InitContainerStatuses[0].State.Terminated != nil &&
			(p.Status.Phase == corev1.PodRunning || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed)
	})
	s.must(err)
	s.compare(pod.Namespace+"/"+pod.Name, pod.Status.InitContainerStatuses[0].State.Terminated)
}

// compare takes what a container says that it has found and left.
func (s *scene) compare(who string, end *corev1.ContainerStateTerminated) {
	s.Helper()
	if end.ExitCode != 0 {
		s.Fatalf("pod %s: %s", who, end.Message)
	}
	found, left := map[string]string{}, map[string]string{}
	wrote := false
	for line := range strings.Lines(end.Message) {
		var what, file, sum string
		var bytes int64
		if _, err := fmt.Sscan(line, &what, &file, &bytes, &sum); err != nil {
			s.Fatalf("pod %s says %q: %v", who, line, err)
		}
		if wrote = wrote || what == "write"; !wrote {
			found[file] = sum
		}
		left[file] = sum
	}
	if !maps.Equal(found, s.left) {
		s.Errorf("pod %s found %v, and left there was %v", who, found, s.left)
	}
	s.left = left
}

// leave deletes a visitor and returns when it is gone.
func (s *scene) leave(v visit) {
	s.Helper()
	s.must(s.Client.CoreV1().Pods(v.namespace).Delete(s.ctx, v.pod, metav1.DeleteOptions{}))
	s.must(s.WaitGone(s.ctx, cluster.Pods, v.namespace, v.pod))
}

// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/csi-transfer/csi-transfer/pkg/sidecar/protocol"
	"github.com/csi-transfer/csi-transfer/test/cluster"
)

// TestWorkloads: what uses volumes in other ways than a pod that is deleted.
func TestWorkloads(t *testing.T) {
	t.Parallel()
	files := volumeKind{&attached, attached.Class(), corev1.PersistentVolumeFilesystem, corev1.ReadWriteOnce}
	attachlessFiles := volumeKind{&attachless, attachless.Class(), corev1.PersistentVolumeFilesystem, corev1.ReadWriteOnce}
	attachlessBlock := volumeKind{&attachless, attachless.Class(), corev1.PersistentVolumeBlock, corev1.ReadWriteOnce}
	for _, tc := range []struct {
		name string
		kind volumeKind
		test func(*scene)
	}{
		{"StatefulSet", volumeKind{&attached, waitForConsumer(&attached), corev1.PersistentVolumeFilesystem, corev1.ReadWriteOnce}, testStatefulSet},
		{"finished Job", files, testFinishedJob},
		{"finished Job, attachless", attachlessFiles, testFinishedJob},
		{"expanded", files, testExpanded},
		{"expanded block", attachlessBlock, testExpanded},
		{"S49 expanded without a pod", files, testExpandedOffline},
		{"restored from a snapshot", attachlessFiles, testRestored},
		{"S19 S20 Secrets that are not the giver's", files, testSecrets},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			tc.test(newScene(t, tc.kind))
		})
	}
}

// testStatefulSet: one that was scaled to zero goes on in another namespace.
func testStatefulSet(s *scene) {
	const replicas = 2
	pods := []string{"web-0", "web-1"}
	s.statefulSet(s.prod, replicas, "write:"+mounted+"/0:65536")
	wrote := map[string]string{}
	for _, pod := range pods {
		wrote[pod] = s.said(s.prod, pod)
	}
	sets := s.Client.AppsV1().StatefulSets(s.prod)
	_, err := sets.Patch(s.ctx, "web", types.MergePatchType, []byte(`{"spec":{"replicas":0}}`), metav1.PatchOptions{})
	s.must(err)
	var moves []move
	for _, pod := range pods {
		claim := "volume-" + pod
		moves = append(moves, s.offer(place{s.prod, claim}, place{s.dev, claim}))
	}
	for _, m := range moves {
		s.completes(m)
	}
	s.statefulSet(s.dev, replicas, "sum:"+mounted+"/0")
	for _, pod := range pods {
		if found := s.said(s.dev, pod); found[len("sum"):] != wrote[pod][len("write"):] {
			s.Errorf("pod %s says %q, and before the move %q", pod, found, wrote[pod])
		}
	}
}

func (s *scene) statefulSet(namespace string, replicas int32, step string) {
	s.Helper()
	labels := map[string]string{"app": "web"}
	pod := s.newPod("", "", []string{step})
	pod.Spec.Volumes = nil // each has its own, from the template
	sets := s.Client.AppsV1().StatefulSets(namespace)
	_, err := sets.Create(s.ctx, &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: appsv1.StatefulSetSpec{
			Replicas:             &replicas,
			Selector:             &metav1.LabelSelector{MatchLabels: labels},
			PodManagementPolicy:  appsv1.ParallelPodManagement,
			Template:             corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: pod.Spec},
			VolumeClaimTemplates: []corev1.PersistentVolumeClaim{*s.newClaim("volume", "")},
		},
	}, metav1.CreateOptions{})
	s.must(err)
	s.Cleanup(func() {
		if err := sets.Delete(context.Background(), "web", metav1.DeleteOptions{}); err != nil {
			s.Error(err)
		}
	})
}

// said waits until a pod's init container has ended, and returns what it says.
func (s *scene) said(namespace, pod string) string {
	s.Helper()
	p, err := cluster.Wait(s.ctx, s.Cluster, cluster.Pods, namespace, pod, func(p *corev1.Pod) bool {
		return len(p.Status.InitContainerStatuses) > 0 && p.Status.InitContainerStatuses[0].State.Terminated != nil
	})
	s.must(err)
	end := p.Status.InitContainerStatuses[0].State.Terminated
	if end.ExitCode != 0 {
		s.Fatalf("pod %s/%s: %s", namespace, pod, end.Message)
	}
	return end.Message
}

// testFinishedJob: the pod of a Job that has ended counts until it is deleted,
// which S32 is about: it has ended before its volumes are unmounted.
func testFinishedJob(s *scene) {
	home, away := place{s.prod, "data"}, place{s.dev, "data"}
	s.claim(home, "")
	pod := s.newPod("", home.claim, s.steps())
	pod.Spec.Containers, pod.Spec.InitContainers = pod.Spec.InitContainers, nil
	pod.Spec.RestartPolicy = corev1.RestartPolicyNever
	jobs := s.Client.BatchV1().Jobs(s.prod)
	_, err := jobs.Create(s.ctx, &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: "once"},
		Spec:       batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: pod.Spec}},
	}, metav1.CreateOptions{})
	s.must(err)
	_, err = cluster.Wait(s.ctx, s.Cluster, cluster.Jobs, s.prod, "once", func(j *batchv1.Job) bool { return j.Status.Succeeded > 0 })
	s.must(err)
	pods, err := s.Client.CoreV1().Pods(s.prod).List(s.ctx, metav1.ListOptions{LabelSelector: batchv1.JobNameLabel + "=once"})
	s.must(err)
	ended := pods.Items[0]
	s.compare(ended.Name, ended.Status.ContainerStatuses[0].State.Terminated)

	m := s.offer(home, away)
	reader := s.visit(away)
	s.waits(m, protocol.ReasonInUse, ended.Name)
	s.must(jobs.Delete(s.ctx, "once", metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationBackground)}))
	s.completes(m)
	s.saw(reader)
}

// testExpanded: a claim grows in both namespaces, while a pod uses it.
func testExpanded(s *scene) {
	home, away := place{s.prod, "data"}, place{s.dev, "data"}
	s.claim(home, "")
	writer := s.visit(home)
	s.saw(writer)
	s.expand(home, "2Gi")
	s.grown(home, "2Gi")
	s.leave(writer)
	m := s.offer(home, away, size("2Gi"))
	reader := s.visit(away)
	s.completes(m)
	s.saw(reader)
	s.expand(away, "3Gi")
	s.grown(away, "3Gi")
	s.leave(reader)
	s.saw(s.visit(away))
}

// testExpandedOffline: growth that is not finished before a pod mounts the volume
// is not lost.
func testExpandedOffline(s *scene) {
	home, away := place{s.prod, "data"}, place{s.dev, "data"}
	s.claim(home, "")
	volume := s.bound(home).Spec.VolumeName
	s.expand(home, "2Gi")
	_, err := cluster.Wait(s.ctx, s.Cluster, cluster.Volumes, "", volume, func(v *corev1.PersistentVolume) bool {
		return v.Spec.Capacity.Storage().String() == "2Gi"
	})
	s.must(err)
	m := s.offer(home, away, size("2Gi"))
	s.waits(m, protocol.ReasonResizePending)
	writer := s.visit(home)
	s.saw(writer)
	s.grown(home, "2Gi")
	s.leave(writer)
	s.completes(m)
	s.saw(s.visit(away))
}

func (s *scene) expand(at place, to string) {
	s.Helper()
	patch := fmt.Sprintf(`{"spec":{"resources":{"requests":{"storage":%q}}}}`, to)
	_, err := s.Client.CoreV1().PersistentVolumeClaims(at.namespace).Patch(s.ctx, at.claim, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	s.must(err)
}

// grown returns when the file system or device has the size.
func (s *scene) grown(at place, to string) {
	s.Helper()
	_, err := cluster.Wait(s.ctx, s.Cluster, cluster.Claims, at.namespace, at.claim, func(c *corev1.PersistentVolumeClaim) bool {
		return c.Status.Capacity.Storage().String() == to && len(c.Status.AllocatedResourceStatuses) == 0
	})
	s.must(err)
}

// testRestored: a claim that was restored from a snapshot moves; the snapshot and
// the claim that it is of stay.
func testRestored(s *scene) {
	home, restored, away := place{s.prod, "data"}, place{s.prod, "restored"}, place{s.dev, "data"}
	s.claim(home, "")
	writer := s.visit(home)
	s.saw(writer)
	s.must(s.Apply(s.ctx, fmt.Sprintf(`
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {namespace: %s, name: yesterday}
spec:
  volumeSnapshotClassName: %s
  source: {persistentVolumeClaimName: data}
`, s.prod, s.driver.Class())))
	s.claim(restored, "", func(c *corev1.PersistentVolumeClaim) {
		c.Spec.DataSource = &corev1.TypedLocalObjectReference{APIGroup: ptr.To("snapshot.storage.k8s.io"), Kind: "VolumeSnapshot", Name: "yesterday"}
	})
	m := s.offer(restored, away)
	reader := s.visit(away)
	s.completes(m)
	s.saw(reader)
}

// testSecrets: S19 and S20, a volume that is mounted with a Secret of neither side
// can be mounted when the giver's namespace is gone.
func testSecrets(s *scene) {
	const secretNamespace = metav1.NamespaceDefault
	s.must(s.Apply(s.ctx, fmt.Sprintf("{apiVersion: v1, kind: Secret, metadata: {namespace: %s, name: %s}}", secretNamespace, s.prod)))
	class, err := s.Client.StorageV1().StorageClasses().Get(s.ctx, s.class, metav1.GetOptions{})
	s.must(err)
	secret := func(namespace string) map[string]string {
		return map[string]string{
			"csi.storage.k8s.io/node-publish-secret-name":      s.prod,
			"csi.storage.k8s.io/node-publish-secret-namespace": namespace,
		}
	}
	newClass := func(name, namespace string) string {
		s.Helper()
		c, err := s.Client.StorageV1().StorageClasses().Create(s.ctx, &storagev1.StorageClass{
			ObjectMeta:  metav1.ObjectMeta{Name: s.prod + name, Annotations: class.Annotations},
			Provisioner: class.Provisioner,
			Parameters:  secret(namespace),
		}, metav1.CreateOptions{})
		s.must(err)
		return c.Name
	}

	s.class = newClass("-giver", "${pvc.namespace}")
	tied := place{s.prod, "tied"}
	s.claim(tied, "")
	s.waits(s.offer(tied, place{s.dev, "tied"}), protocol.ReasonSecretTied)

	s.class = newClass("-neither", secretNamespace)
	home, away := place{s.prod, "data"}, place{s.dev, "data"}
	s.claim(home, "")
	writer := s.visit(home)
	s.saw(writer)
	s.leave(writer)
	s.completes(s.offer(home, away))
	s.must(s.Client.CoreV1().Namespaces().Delete(s.ctx, s.prod, metav1.DeleteOptions{}))
	s.must(s.WaitGone(s.ctx, cluster.Namespaces, "", s.prod))
	s.saw(s.visit(away))
}

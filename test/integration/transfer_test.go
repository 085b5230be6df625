// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"github.com/csi-transfer/csi-transfer/pkg/apis/transfer/v1alpha1"
	"github.com/csi-transfer/csi-transfer/pkg/sidecar/protocol"
	"github.com/csi-transfer/csi-transfer/test/cluster"
)

func TestR7_ReceivingClaimNamesTheRequest(t *testing.T) {
	s := newScene(t)
	source := s.offer()
	before := s.volume(source.Spec.VolumeName)
	s.transferred()
	s.arrived(before)
}

func TestR4_StatusSaysWhatTheClaimMustAskFor(t *testing.T) {
	s := newScene(t)
	source := s.source(size("3Gi"))
	s.request()
	s.approve(source)
	s.refused(protocol.ReasonReceivingClaimMissing)

	r := must[*v1alpha1.NamespaceTransferRequest](s)(s.requests().Get(s.ctx, "take-data", metav1.GetOptions{}))
	required := r.Status.Required
	if required == nil {
		t.Fatal("status.required is missing")
	}
	want := v1alpha1.RequiredClaim{
		Capacity:         source.Spec.Resources.Requests[corev1.ResourceStorage],
		StorageClassName: s.class,
		VolumeMode:       corev1.PersistentVolumeFilesystem,
		AccessModes:      source.Spec.AccessModes,
	}
	if !apiequality.Semantic.DeepEqual(*required, want) {
		t.Errorf("status.required is %+v, want %+v", *required, want)
	}
	s.receive(func(c *corev1.PersistentVolumeClaim) {
		c.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: required.Capacity}
		c.Spec.StorageClassName, c.Spec.VolumeMode, c.Spec.AccessModes = &required.StorageClassName, &required.VolumeMode, required.AccessModes
	})
	s.transferred()
}

func TestR8_WaitsForPodsAndMovesAtOnceWhenTheyAreGone(t *testing.T) {
	s := newQuietScene(t)
	source := s.source()
	before := s.volume(source.Spec.VolumeName)
	s.pod(s.giver, "writer", "data")
	s.pod(s.giver, "reader", "data")
	s.grant(source)
	s.contains(s.refused(protocol.ReasonInUse), "PersistentVolumeClaim {giver}/data", "writer", "reader", "delete the pods")
	s.contains(s.told(s.giver, "PersistentVolumeClaim", "data", string(protocol.ReasonInUse)), "writer")

	s.deletePod(s.giver, "reader")
	s.deletePod(s.giver, "writer")
	let := time.Now()
	s.bound(s.receiver, "data")
	if took := time.Since(let); took > 2*time.Second {
		t.Errorf("bound %s after the last pod was deleted", took)
	}
	s.transferred()
	s.arrived(before)
}

// TestR8_OnlyScheduledPodsCount: a pod without a node cannot use a volume, and
// one that has ended may still have it mounted.
func TestR8_OnlyScheduledPodsCount(t *testing.T) {
	s := newScene(t)
	source := s.source()
	s.pod(s.giver, "waiting", "data", func(p *corev1.Pod) { p.Spec.NodeName = "" })
	ended := s.pod(s.giver, "ended", "data")
	ended.Status.Phase = corev1.PodSucceeded
	must[*corev1.Pod](s)(s.Client.CoreV1().Pods(s.giver).UpdateStatus(s.ctx, ended, metav1.UpdateOptions{}))
	s.grant(source)
	message := s.refused(protocol.ReasonInUse)
	s.contains(message, "ended")
	if strings.Contains(message, "waiting") {
		t.Errorf("%q counts a pod without a node", message)
	}
	s.deletePod(s.giver, "ended")
	s.transferred()
}

// TestR8_ForceDeletedPodHoldsUpForAMinute: a pod that its kubelet had running, and
// that is gone before the kubelet has told its end, may run on for a little while.
func TestR8_ForceDeletedPodHoldsUpForAMinute(t *testing.T) {
	s := newScene(t)
	s.sidecarOf(s.vendor(cluster.DriverOptions{})) // without attachment
	source := s.source()
	pod := s.pod(s.giver, "writer", "data")
	pod.Status.Phase, pod.Status.StartTime = corev1.PodRunning, &metav1.Time{Time: time.Now()}
	must[*corev1.Pod](s)(s.Client.CoreV1().Pods(s.giver).UpdateStatus(s.ctx, pod, metav1.UpdateOptions{}))
	s.grant(source)
	s.contains(s.refused(protocol.ReasonInUse), "writer")

	deleted := time.Now()
	s.deletePod(s.giver, "writer")
	s.contains(s.refused(protocol.ReasonPodForceDeleted), "PersistentVolumeClaim {giver}/data", "pod writer", "by force")
	s.untouched()
	s.transferred()
	if took := time.Since(deleted); took < 50*time.Second {
		t.Errorf("transferred %s after a pod was deleted by force", took)
	}
}

func TestR10_SourceClaimIsMarkedAndLostWithinASecond(t *testing.T) {
	s := newQuietScene(t)
	source := s.offer()
	s.transferred()
	s.spent()

	lost := must[*corev1.PersistentVolumeClaim](s)(s.WaitClaimPhase(s.ctx, s.giver, "data", corev1.ClaimLost))
	if to := lost.Annotations[v1alpha1.AnnotationTransferredTo]; to != s.receiver+"/data" {
		t.Errorf("the source claim says it was transferred to %q", to)
	}
	s.contains(s.told(s.giver, "PersistentVolumeClaim", "data", "Transferred"), "{receiver}", "take-data")

	park := s.first("patch", "persistentvolumes", "", source.Spec.VolumeName, `"persistentVolumeReclaimPolicy":"Retain"`)
	end := s.first("update", "persistentvolumeclaims/status", s.giver, "data", `"phase":"Lost"`)
	if took := end.Sub(park); took > time.Second {
		t.Errorf("the source claim was Lost %s after the volume was parked", took)
	}
}

// first is when a write was answered first that says something.
func (s *scene) first(verb, resource, namespace, name, says string) time.Time {
	s.Helper()
	events := must[[]auditv1.Event](s)(s.Audit(cluster.AuditFilter{Verbs: []string{verb}, Resource: resource, Namespace: namespace, Name: name}))
	for _, e := range events {
		if strings.Contains(body(e), says) {
			return e.StageTimestamp.Time
		}
	}
	s.Fatalf("among %d times %s of %s %s/%s none says %s", len(events), verb, resource, namespace, name, says)
	return time.Time{}
}

func TestR11_KubectlWaits(t *testing.T) {
	s := newScene(t)
	source := s.source()
	s.request()
	s.approve(source)
	waited := make(chan error, 2)
	for _, object := range [][]string{{"ntr/take-data", s.receiver}, {"nta/give-data", s.giver}} {
		go func() {
			_, err := s.Kubectl(s.ctx, "wait", "--for=condition=Transferred", "--timeout=60s", object[0], "--namespace="+object[1])
			waited <- err
		}()
	}
	s.receive()
	for range cap(waited) {
		s.must(<-waited)
	}

	r := s.transferred()
	if r.Status.StartTime == nil || r.Status.CompletionTime == nil || r.Status.CompletionTime.Before(r.Status.StartTime) {
		t.Errorf("started %v, complete %v", r.Status.StartTime, r.Status.CompletionTime)
	}
	for _, object := range [][]string{{"ntr", "take-data", s.receiver}, {"nta", "give-data", s.giver}} {
		out := must[string](s)(s.Kubectl(s.ctx, "get", object[0], object[1], "--namespace="+object[2]))
		s.contains(out, "PHASE", "Completed", "Transferred")
	}
}

func TestR19_DescribeTells(t *testing.T) {
	s := newScene(t)
	source := s.source()
	s.pod(s.giver, "writer", "data")
	s.grant(source)
	objects := [][]string{
		{"NamespaceTransferRequest", "take-data", s.receiver},
		{"NamespaceTransferApproval", "give-data", s.giver},
		{"PersistentVolumeClaim", "data", s.giver},
		{"PersistentVolumeClaim", "data", s.receiver},
	}
	s.refused(protocol.ReasonInUse)
	for _, o := range objects {
		s.told(o[2], o[0], o[1], string(protocol.ReasonInUse))
	}
	s.deletePod(s.giver, "writer")
	s.transferred()
	for _, o := range objects {
		s.told(o[2], o[0], o[1], "Transferred")
		out := must[string](s)(s.Kubectl(s.ctx, "describe", o[0], o[1], "--namespace="+o[2]))
		_, events, _ := strings.Cut(out, "Events:")
		s.contains(events, "InUse", "writer", "Transferred", "{giver}/data has moved to namespace {receiver}")
	}
}

func TestR21_TransferBackUnderANewName(t *testing.T) {
	s := newScene(t)
	source := s.offer()
	before := s.volume(source.Spec.VolumeName)
	s.transferred()

	back := &scene{T: t, world: s.world, ctx: s.ctx, giver: s.receiver, receiver: s.giver, class: s.class}
	back.request()
	claim := back.claim(back.receiver, "returned", from("take-data"))
	back.approve(back.bound(back.giver, "data"))
	back.transferred()
	back.owned(before, back.bound(back.receiver, claim.Name))
	if old := must[*corev1.PersistentVolumeClaim](s)(s.claims(s.giver).Get(s.ctx, "data", metav1.GetOptions{})); old.Status.Phase != corev1.ClaimLost {
		t.Errorf("the claim that gave first is %s", old.Status.Phase)
	}
}

func TestR21_RenameInOneNamespace(t *testing.T) {
	s := newScene(t)
	s.receiver = s.giver
	source := s.source()
	before := s.volume(source.Spec.VolumeName)
	s.request()
	s.claim(s.receiver, "renamed", from("take-data"))
	s.approve(source)
	s.transferred()
	s.owned(before, s.bound(s.receiver, "renamed"))
}

// TestR23_SourceCanBeDeleted: deleting the source claim, or all of its
// namespace, ends the giver's part and not the transfer.
func TestR23_SourceCanBeDeleted(t *testing.T) {
	for name, remove := range map[string]func(s *scene){
		"claim":     func(s *scene) { s.deleteClaim(s.giver, "data", true) },
		"namespace": func(s *scene) { s.deleteNamespace(s.giver) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			before, lift := s.inFlight()
			remove(s)
			lift()
			s.transferred()
			s.arrived(before)
		})
	}
	t.Run("afterwards", func(t *testing.T) {
		s := newScene(t)
		source := s.offer()
		before := s.volume(source.Spec.VolumeName)
		s.transferred()
		s.deleteNamespace(s.giver)
		s.arrived(before)
	})
}

// deleteNamespace returns when nothing of a namespace is left.
func (s *scene) deleteNamespace(name string) {
	s.Helper()
	s.must(s.Client.CoreV1().Namespaces().Delete(s.ctx, name, metav1.DeleteOptions{}))
	s.must(s.WaitGone(s.ctx, corev1.SchemeGroupVersion.WithResource("namespaces"), "", name))
}

// TestR12_TwoSidecarsAtOnce: sidecars that do not know of each other, as after a
// leader that only seemed gone, do not disturb each other.
func TestR12_TwoSidecarsAtOnce(t *testing.T) {
	s := newScene(t)
	d := s.vendor(cluster.DriverOptions{})
	const n = 10
	name := func(i int) string { return fmt.Sprintf("data-%d", i) }
	for i := range n {
		s.claim(s.giver, name(i))
	}
	volumes := make([]*corev1.PersistentVolume, n)
	for i := range n {
		source := s.bound(s.giver, name(i))
		volumes[i] = s.volume(source.Spec.VolumeName)
		s.request(func(r *v1alpha1.NamespaceTransferRequest) { r.Name, r.Spec.Source.Name = name(i), name(i) })
		s.approve(source, func(a *v1alpha1.NamespaceTransferApproval) { a.Name, a.Spec.Source.Name = name(i), name(i) })
		s.claim(s.receiver, name(i), from(name(i)))
	}
	s.sidecarOf(d)
	second := must[*cluster.Process](s)(s.startSidecar(s.ctx, d.Name+"-second", d))
	t.Cleanup(second.Kill)

	for i := range n {
		must[*metav1.Condition](s)(s.WaitCondition(s.ctx, cluster.Requests, s.receiver, name(i), v1alpha1.ConditionTransferred, metav1.ConditionTrue, ""))
		s.owned(volumes[i], s.bound(s.receiver, name(i)))
	}
}

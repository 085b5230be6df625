// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/utils/ptr"

	"github.com/csi-transfer/csi-transfer/pkg/apis/transfer/v1alpha1"
	"github.com/csi-transfer/csi-transfer/pkg/sidecar/protocol"
	"github.com/csi-transfer/csi-transfer/test/cluster"
	"github.com/csi-transfer/csi-transfer/test/proxy"
)

// Tests here are named after the situations in docs/reliability.md, in which
// people and tools that moved volumes lost or shared them.

// restore is the write that ends a transfer for the volume.
const restore = "patch persistentvolumes 3"

// TestS3_ControllerFightsForThePolicy: somebody sets the reclaim policy to Delete
// whenever it is Retain.
func TestS3_ControllerFightsForThePolicy(t *testing.T) {
	s := newScene(t)
	source := s.source()
	before := s.volume(s.moving)
	ctx, stop := context.WithCancel(s.ctx)
	fought := make(chan int)
	go func() {
		refused := 0
		_ = wait.PollUntilContextCancel(ctx, 5*time.Millisecond, true, func(ctx context.Context) (bool, error) {
			_, err := s.Client.CoreV1().PersistentVolumes().Patch(ctx, before.Name, types.MergePatchType, []byte(`{"spec":{"persistentVolumeReclaimPolicy":"Delete"}}`), metav1.PatchOptions{})
			if apierrors.IsForbidden(err) {
				refused++
			}
			return false, nil
		})
		fought <- refused
	}()
	s.grant(source)
	s.transferred()
	stop()
	if <-fought == 0 {
		t.Error("nothing was refused")
	}
	s.arrived(before)
}

// TestS4_VolumeInGit: somebody applies a claimRef without UID, before a transfer
// and in the middle of one.
func TestS4_VolumeInGit(t *testing.T) {
	s := newScene(t)
	source := s.source()
	before := s.volume(s.moving)
	inGit := corev1ac.PersistentVolumeSpec().WithClaimRef(corev1ac.ObjectReference().WithKind("PersistentVolumeClaim").WithNamespace(s.giver).WithName("data"))
	s.applyVolume(inGit)
	s.grant(source)
	s.contains(s.refused(protocol.ReasonVolumeFieldManaged), "spec.claimRef of PersistentVolume {volume} is applied by gitops")
	s.untouched()

	lift := s.forbid(s.moving, binding)
	s.applyVolume(nil)
	s.refused(protocol.ReasonWriteRefused)
	_, err := s.Client.CoreV1().PersistentVolumes().Apply(s.ctx, corev1ac.PersistentVolume(s.moving).WithSpec(inGit), metav1.ApplyOptions{FieldManager: "gitops", Force: true})
	if !apierrors.IsForbidden(err) {
		t.Errorf("applied in flight: %v", err)
	}
	lift()
	s.transferred()
	s.arrived(before)
}

// TestS6_PendingClaimsOfStrangers: claims that would fit wait all the time.
func TestS6_PendingClaimsOfStrangers(t *testing.T) {
	s := newScene(t)
	s.sidecarOf(s.vendor(cluster.DriverOptions{}))
	const strangers, transfers = 20, 10
	scenes := make([]*scene, transfers)
	sources := make([]*corev1.PersistentVolumeClaim, transfers)
	before := make([]*corev1.PersistentVolume, transfers)
	for i := range scenes {
		scenes[i] = s.another()
		sources[i] = scenes[i].source()
		before[i] = s.volume(sources[i].Spec.VolumeName)
	}
	// From now on nothing is provisioned: who waits can only get what is there.
	s.must(s.own.Provisioner.Pause())
	name := func(i int) string { return fmt.Sprintf("waiting-%d", i) }
	for i := range strangers {
		s.claim(s.giver, name(i))
	}
	for i := range scenes {
		scenes[i].grant(sources[i])
	}
	for i := range scenes {
		scenes[i].transferred()
		s.neverOpen(before[i])
	}
	for i := range strangers {
		if claim := must[*corev1.PersistentVolumeClaim](s)(s.claims(s.giver).Get(s.ctx, name(i), metav1.GetOptions{})); claim.Spec.VolumeName != "" {
			t.Errorf("claim %s has got volume %s", claim.Name, claim.Spec.VolumeName)
		}
	}
}

// TestS7_ForeignMetadataStays: what others have written on a volume is the same
// after a transfer, and after one that went back.
func TestS7_ForeignMetadataStays(t *testing.T) {
	for name, end := range map[string]func(s *scene, before *corev1.PersistentVolume, lift func()){
		"forwards": func(s *scene, before *corev1.PersistentVolume, lift func()) {
			lift()
			s.transferred()
			s.arrived(before)
		},
		"backwards": func(s *scene, before *corev1.PersistentVolume, _ func()) {
			s.must(s.approvals().Delete(s.ctx, "give-data", metav1.DeleteOptions{}))
			s.returned(before)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			source := s.source()
			finalizers := append(s.volume(s.moving).Finalizers, "example.com/audit")
			s.patchVolume(s.moving, `{"metadata":{"labels":{"team":"a"},"annotations":{"example.com/note":"{\"a\": 1}"},"finalizers":`+must1(json.Marshal(finalizers))+`}}`)
			before := s.volume(s.moving)
			lift := s.forbid(s.moving, binding)
			s.grant(source)
			s.refused(protocol.ReasonWriteRefused)
			end(s, before, lift)
			after := s.volume(s.moving)
			if !maps.Equal(before.Labels, after.Labels) || !maps.Equal(before.Annotations, after.Annotations) {
				t.Errorf("labels and annotations were\n%v %v\nand are\n%v %v", before.Labels, before.Annotations, after.Labels, after.Annotations)
			}
			if !slices.Contains(after.Finalizers, "example.com/audit") {
				t.Errorf("finalizers are %v", after.Finalizers)
			}
			s.patchVolume(s.moving, `{"metadata":{"finalizers":null}}`)
		})
	}
}

// TestS8_ReceivingClaimMadeAnewDifferently: a claim that cannot take the volume
// is in the place of one that could, once the volume is parked.
func TestS8_ReceivingClaimMadeAnewDifferently(t *testing.T) {
	for reason, change := range map[protocol.Reason]func(*corev1.PersistentVolumeClaim){
		protocol.ReasonCapacityMismatch:   size("2Gi"),
		protocol.ReasonClassMismatch:      func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = ptr.To("cheap") },
		protocol.ReasonVolumeModeMismatch: func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock) },
		protocol.ReasonReceivingClaimSelective: func(c *corev1.PersistentVolumeClaim) {
			c.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}
		},
	} {
		t.Run(string(reason), func(t *testing.T) {
			s := newScene(t)
			st := s.newStage(cluster.DriverOptions{})
			source := s.source()
			before := s.volume(s.moving)
			g := s.holdAt(st, park, true)
			s.grant(source)
			s.wait(g)
			s.deleteClaim(s.receiver, "data", true)
			s.receive(change)
			g.open()
			s.returned(before)
			s.contains(s.refused(reason), "PersistentVolumeClaim {receiver}/data")
			s.receiveAgain()
			s.transferred()
			s.arrived(before)
		})
	}
}

// TestS9_ManyAtOnceWhileTheBinderCrashes: none is left half done.
func TestS9_ManyAtOnceWhileTheBinderCrashes(t *testing.T) {
	s := newFrailScene(t)
	before, lift := s.fleet(50)
	lift()
	for range 2 {
		s.someParked()
		s.must(s.Process("kube-controller-manager").Restart(s.ctx))
	}
	s.landed(before)
}

// TestFlight_APIServerKilled: the sidecar goes on with whatever has become of its
// last write.
func TestFlight_APIServerKilled(t *testing.T) {
	s := newFrailScene(t)
	before, lift := s.fleet(10)
	lift()
	s.someParked()
	s.must(s.Process("kube-apiserver").Restart(s.ctx))
	s.landed(before)
}

// fleet prepares transfers of claims that are numbered, which begin with lift.
func (s *scene) fleet(n int) (before []*corev1.PersistentVolume, lift func()) {
	s.Helper()
	for i := range n {
		s.claim(s.giver, numbered(i))
	}
	for i := range n {
		name := numbered(i)
		source := s.bound(s.giver, name)
		before = append(before, s.volume(source.Spec.VolumeName))
		s.request(func(r *v1alpha1.NamespaceTransferRequest) { r.Name, r.Spec.Source.Name = name, name })
		s.claim(s.receiver, name, from(name))
	}
	return before, func() {
		for i := range n {
			name := numbered(i)
			s.approve(nil, func(a *v1alpha1.NamespaceTransferApproval) {
				a.Name, a.Spec.Source.Name, a.Spec.Source.UID = name, name, before[i].Spec.ClaimRef.UID
			})
		}
	}
}

func numbered(i int) string { return fmt.Sprintf("data-%d", i) }

// someParked waits until a volume is.
func (s *scene) someParked() {
	s.Helper()
	s.must(wait.PollUntilContextCancel(s.ctx, 5*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		inFlight, err := s.Client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{LabelSelector: v1alpha1.LabelInFlight, ResourceVersion: "0"})
		return err == nil && len(inFlight.Items) > 0, nil
	}))
}

// landed waits until a fleet has arrived.
func (s *scene) landed(before []*corev1.PersistentVolume) {
	s.Helper()
	for i := range before {
		must[*metav1.Condition](s)(s.WaitCondition(s.ctx, cluster.Requests, s.receiver, numbered(i), v1alpha1.ConditionTransferred, metav1.ConditionTrue, ""))
		must[*metav1.Condition](s)(s.WaitCondition(s.ctx, cluster.Approvals, s.giver, numbered(i), v1alpha1.ConditionTransferred, metav1.ConditionTrue, ""))
		s.owned(before[i], s.bound(s.receiver, numbered(i)))
		s.neverOpen(before[i])
	}
}

// TestS10_ReceivingClaimGoneWhileTheSidecarIsDown: at each write of a transfer
// the sidecar is killed, and the claim deleted or made anew before it is back.
func TestS10_ReceivingClaimGoneWhileTheSidecarIsDown(t *testing.T) {
	s := newScene(t)
	st := s.newStage(cluster.DriverOptions{})
	for _, b := range sample(s.boundaries(st), 4) {
		for _, a := range actions {
			if a.name != "receiving claim deleted" && a.name != "receiving claim made anew" {
				continue
			}
			t.Run(fmt.Sprintf("%s/%s/applied=%t", a.name, b.id, b.applied), func(t *testing.T) {
				s := sceneOn(t, s.world, st)
				source := s.source()
				before := s.volume(s.moving)
				g := s.crashAt(st, b.id, b.applied)
				s.grant(source)
				if s.reaches(g) {
					s.race(a, before, g)
				}
			})
		}
	}
}

// crashAt is holdAt with a sidecar that is killed there, and is not back before
// the gate is open.
func (s *scene) crashAt(st *stage, id string, applied bool) *gate {
	g := newGate(s)
	s.calls(st, func(c numberedCall, forward func() error) error {
		select {
		case <-g.reached:
			<-g.opened
		default:
		}
		if c.id != id {
			return forward()
		}
		var err error
		if applied {
			err = forward()
		}
		st.sidecar.Kill()
		g.hold(c, applied)
		return errors.Join(err, proxy.ErrCut)
	})
	return g
}

// TestS12_PolicyCannotBePutBack: a transfer is not complete before the reclaim
// policy is what it was, whatever stands in the way of that.
func TestS12_PolicyCannotBePutBack(t *testing.T) {
	s := newScene(t)
	st := s.newStage(cluster.DriverOptions{})
	source := s.source()
	before := s.volume(s.moving)
	attempts := map[string]error{
		restore:                     apierrors.NewInternalError(errInjected),
		"patch persistentvolumes 4": apierrors.NewConflict(corev1.Resource("persistentvolumes"), s.moving, errInjected),
		"patch persistentvolumes 5": &apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusServiceUnavailable, Reason: metav1.StatusReasonServiceUnavailable, Message: errInjected.Error()}},
	}
	early := make(chan string, len(attempts))
	last := make(chan struct{})
	s.calls(st, func(c numberedCall, forward func() error) error {
		err := attempts[c.id]
		if err == nil {
			return forward()
		}
		r, getErr := s.requests().Get(s.ctx, "take-data", metav1.GetOptions{})
		if getErr != nil || meta.IsStatusConditionTrue(r.Status.Conditions, v1alpha1.ConditionTransferred) {
			early <- fmt.Sprintf("at %s the request is %s (%v)", c.id, r.Status.Phase, getErr)
		}
		if c.id == "patch persistentvolumes 5" {
			st.sidecar.Kill()
			close(last)
		}
		return err
	})
	s.grant(source)
	select {
	case <-last:
	case <-s.ctx.Done():
		t.Fatal("the sidecar has given up")
	}
	s.transferred()
	s.arrived(before)
	select {
	case problem := <-early:
		t.Error(problem)
	default:
	}
}

// TestS13_BackAndForth: a claim is moved twenty times in a row, and nobody cleans
// up.
func TestS13_BackAndForth(t *testing.T) {
	s := newScene(t)
	s.own = s.driver
	source := s.source()
	before := s.volume(s.moving)
	file := filepath.Join(s.driver.StateDir, "volumes", before.Spec.CSI.VolumeHandle, "data", "file")
	s.must(os.WriteFile(file, []byte(s.moving), 0o600))
	for i := range 20 {
		name := numbered(i)
		s.request(func(r *v1alpha1.NamespaceTransferRequest) { r.Name, r.Spec.Source.Name = name, source.Name })
		s.approve(source, func(a *v1alpha1.NamespaceTransferApproval) { a.Name, a.Spec.Source.Name = name, source.Name })
		s.claim(s.receiver, name, from(name))
		must[*metav1.Condition](s)(s.WaitCondition(s.ctx, cluster.Requests, s.receiver, name, v1alpha1.ConditionTransferred, metav1.ConditionTrue, ""))
		source = s.bound(s.receiver, name)
		s.owned(before, source)
		s.giver, s.receiver = s.receiver, s.giver
	}
	s.neverOpen(before)
	if content, err := os.ReadFile(file); err != nil || string(content) != s.moving {
		t.Errorf("the file has %q (%v)", content, err)
	}
}

// TestS15_DeletedInTheMomentOfArrival: the receiver deletes the claim in the very
// moment in which its volume gets back its policy.
func TestS15_DeletedInTheMomentOfArrival(t *testing.T) {
	s := newScene(t)
	st := s.newStage(cluster.DriverOptions{})
	source := s.source()
	before := s.volume(s.moving)
	s.calls(st, func(c numberedCall, forward func() error) error {
		err := forward()
		if c.id == restore {
			return errors.Join(err, s.claims(s.receiver).Delete(s.ctx, "data", metav1.DeleteOptions{}))
		}
		return err
	})
	since := must[cluster.AuditMark](s)(s.AuditMark())
	s.grant(source)
	s.transferred()
	s.settled(before, deleted)
	// csi-provisioner writes the volume too, whenever its policy changes.
	conflicts := 0
	for _, e := range must[[]auditv1.Event](s)(s.sidecarWrites(cluster.AuditFilter{Since: since, Resource: "persistentvolumes", Name: s.moving})) {
		if e.ResponseStatus.Code == http.StatusConflict {
			conflicts++
		}
	}
	if conflicts > 2 {
		t.Errorf("%d patches of the volume met a conflict", conflicts)
	}
}

// TestS35_PodsThatKeepComing: something makes a pod on the source claim whenever
// there has been none for a moment. The volume is parked less and less often.
func TestS35_PodsThatKeepComing(t *testing.T) {
	s := newFrailScene(t)
	s.sidecarOf(s.vendor(cluster.DriverOptions{}), "--retry-interval-max=5m")
	source := s.source()
	before := s.volume(s.moving)
	ctx, stop := context.WithCancel(s.ctx)
	since := must[cluster.AuditMark](s)(s.AuditMark())
	pods := s.Client.CoreV1().Pods(s.giver)
	over := make(chan error, 1)
	// A pod comes when the volume is parked, and goes when it is back.
	go func() {
		over <- wait.PollUntilContextCancel(ctx, 10*time.Millisecond, true, func(ctx context.Context) (bool, error) {
			pv, err := s.Client.CoreV1().PersistentVolumes().Get(ctx, before.Name, metav1.GetOptions{})
			if err != nil {
				return false, nil
			}
			if parked(pv) {
				_, err = pods.Create(ctx, podOn("cron", "data"), metav1.CreateOptions{})
			} else if len(ours(pv.ObjectMeta)) == 0 {
				err = pods.Delete(ctx, "cron", metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)})
			}
			if apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) {
				err = nil
			}
			return false, err
		})
	}()
	s.grant(source)
	parks := func() (n int) {
		for _, e := range must[[]auditv1.Event](s)(s.sidecarWrites(cluster.AuditFilter{Since: since, Resource: "persistentvolumes", Name: before.Name})) {
			if e.ResponseStatus.Code == http.StatusOK && strings.Contains(body(e), `"kind":"`+v1alpha1.RequestKind+`"`) {
				n++
			}
		}
		return n
	}
	begun := time.Now()
	s.must(wait.PollUntilContextCancel(s.ctx, 100*time.Millisecond, true, func(context.Context) (bool, error) { return parks() >= 3, nil }))
	// One second, then two.
	if took := time.Since(begun); took < 2*time.Second {
		t.Errorf("parked three times within %s", took)
	}
	stop()
	if err := <-over; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	_ = pods.Delete(s.ctx, "cron", metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}) // it may be gone
	s.transferred()
	s.arrived(before)
}

// TestS45_RenameUnderAFullQuota: a rename needs room for two claims for a moment.
// Where the quota has none nothing happens, until an administrator makes it.
func TestS45_RenameUnderAFullQuota(t *testing.T) {
	s := newScene(t)
	s.receiver = s.giver
	quotas := s.Client.CoreV1().ResourceQuotas(s.giver)
	must[*corev1.ResourceQuota](s)(quotas.Create(s.ctx, &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "storage"},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourceRequestsStorage: resource.MustParse("1Gi")}},
	}, metav1.CreateOptions{}))
	s.hard("1Gi")
	source := s.source()
	before := s.volume(s.moving)
	s.request()
	s.approve(source)
	renamed := s.newClaim("renamed", from("take-data"))
	if _, err := s.claims(s.giver).Create(s.ctx, renamed, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Fatalf("a claim beyond the quota: %v", err)
	}
	s.refused(protocol.ReasonReceivingClaimMissing)
	s.untouched()

	must[*corev1.ResourceQuota](s)(quotas.Patch(s.ctx, "storage", types.MergePatchType, []byte(`{"spec":{"hard":{"requests.storage":"2Gi"}}}`), metav1.PatchOptions{}))
	s.must(wait.PollUntilContextCancel(s.ctx, 50*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		_, err := s.claims(s.giver).Create(ctx, renamed, metav1.CreateOptions{})
		if apierrors.IsForbidden(err) {
			return false, nil
		}
		return true, err
	}))
	s.transferred()
	s.deleteClaim(s.giver, "data", true)
	s.owned(before, s.bound(s.giver, "renamed"))
	must[*corev1.ResourceQuota](s)(cluster.Wait(s.ctx, s.Cluster, corev1.SchemeGroupVersion.WithResource("resourcequotas"), s.giver, "storage", func(q *corev1.ResourceQuota) bool {
		used := q.Status.Used[corev1.ResourceRequestsStorage]
		return used.Cmp(resource.MustParse("1Gi")) == 0
	}))
}

// TestS55_PolicyForUsersHitsTheSidecar: an admission policy refuses a step, for
// both directions, and does not any more.
func TestS55_PolicyForUsersHitsTheSidecar(t *testing.T) {
	t.Run("park", func(t *testing.T) {
		s := newScene(t)
		source := s.source()
		before := s.volume(s.moving)
		lift := s.forbid(s.moving, `object.spec.?claimRef.kind.orValue("PersistentVolumeClaim") != "PersistentVolumeClaim"`)
		s.grant(source)
		s.contains(s.refused(protocol.ReasonWriteRefused), "{volume}", "held by forbid-")
		s.bound(s.giver, "data")
		lift()
		s.transferred()
		s.arrived(before)
	})
	t.Run("bind and return", func(t *testing.T) {
		s := newScene(t)
		source := s.source()
		before := s.volume(s.moving)
		lift := s.forbid(s.moving, `oldObject.spec.?claimRef.kind.orValue("PersistentVolumeClaim") != "PersistentVolumeClaim" && object.spec.claimRef != oldObject.spec.claimRef`)
		s.grant(source)
		s.contains(s.refused(protocol.ReasonWriteRefused), "{volume}", "held by forbid-")
		s.must(s.approvals().Delete(s.ctx, "give-data", metav1.DeleteOptions{}))
		lift()
		s.returned(before)
	})
}

// TestS56_UninstalledInFlight: a sidecar that is gone keeps nobody from deleting
// requests, claims and namespaces. Should one come back, it knows what to do.
func TestS56_UninstalledInFlight(t *testing.T) {
	s := newScene(t)
	sidecar := s.sidecarOf(s.vendor(cluster.DriverOptions{}))
	before, lift := s.inFlight()
	sidecar.Kill()
	lift()
	s.must(s.requests().Delete(s.ctx, "take-data", metav1.DeleteOptions{}))
	s.deleteNamespace(s.receiver)
	s.must(sidecar.Start(s.ctx))
	s.returned(before)
}

// TestC1_LeaderKilled: the other replica goes on when the Lease has run out.
func TestC1_LeaderKilled(t *testing.T) {
	s := newScene(t)
	s.vendor(cluster.DriverOptions{})
	s.allowLease()
	first, _ := s.replica("first")
	s.leads("first")
	s.replica("second")
	before, lift := s.inFlight()
	first.Kill()
	lift()
	s.leads("second")
	s.transferred()
	s.arrived(before)
}

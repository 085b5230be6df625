// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/csi-transfer/csi-transfer/pkg/apis/transfer/v1alpha1"
	"github.com/csi-transfer/csi-transfer/pkg/sidecar/protocol"
	"github.com/csi-transfer/csi-transfer/test/cluster"
	"github.com/csi-transfer/csi-transfer/test/proxy"
)

// stage is a driver whose sidecar talks to the API server through a proxy. One
// scene at a time is played on it.
type stage struct {
	driver  *cluster.Driver
	class   string
	proxy   *proxy.Proxy
	sidecar *cluster.Process
}

// newStage makes a stage that ends with the scene's test.
func (s *scene) newStage(options cluster.DriverOptions) *stage {
	s.Helper()
	st := &stage{driver: s.vendor(options), class: s.class}
	st.proxy = must[*proxy.Proxy](s)(proxy.Start(s.Config))
	s.Cleanup(st.proxy.Close)
	kubeconfig := must[string](s)(st.proxy.Kubeconfig(s.kubeconfig, filepath.Dir(st.driver.Address)))
	st.sidecar = must[*cluster.Process](s)(s.StartSidecar(s.ctx, cluster.SidecarOptions{
		Name: "csi-transfer-" + st.driver.Name, Address: st.driver.Address, Kubeconfig: kubeconfig, Flags: sidecarFlags,
	}))
	for _, p := range []*cluster.Process{st.sidecar, st.driver.Provisioner, st.driver.Snapshotter} {
		if p != nil {
			s.supervise(p)
		}
	}
	return st
}

// supervise starts a process again whenever it ends, as kubelet does, until the
// test ends.
func (s *scene) supervise(p *cluster.Process) {
	over := make(chan struct{})
	var supervisor sync.WaitGroup
	supervisor.Go(func() {
		for {
			select {
			case <-p.Exited():
				if err := p.Start(s.Context()); err != nil {
					s.Error(err)
					return
				}
			case <-over:
				return
			}
		}
	})
	s.Cleanup(func() {
		close(over)
		supervisor.Wait()
		p.Kill()
	})
}

// sceneOn makes a scene on a stage.
func sceneOn(t *testing.T, w *world, st *stage) *scene {
	t.Helper()
	s := makeScene(t, w)
	s.own, s.class = st.driver, st.class
	t.Cleanup(func() { st.proxy.Handle(nil) })
	return s
}

// onStages runs a subtest for each name, as many at a time as there are stages,
// until ctx is done.
func onStages(ctx context.Context, s *scene, stages []*stage, names []string, run func(s *scene, st *stage, i int)) {
	queue := make(chan int)
	var players sync.WaitGroup
	for _, st := range stages {
		players.Go(func() {
			for i := range queue {
				if !s.Run(names[i], func(t *testing.T) { run(sceneOn(t, s.world, st), st, i) }) {
					// What is left of this one must not disturb the next.
					st.sidecar.Kill()
				}
			}
		})
	}
	for i := range names {
		if ctx.Err() != nil {
			break
		}
		queue <- i
	}
	close(queue)
	players.Wait()
}

// numberedCall is a call that a sidecar makes for a scene's transfer.
type numberedCall struct {
	// id tells it from the others of its transfer, and is the same in every
	// scene: what is done to what, and how many such calls came before.
	id string
	proxy.Call
}

// first says that no such call came before.
func (c numberedCall) first() bool { return strings.HasSuffix(c.id, " 1") }

// calls has handle decide about the calls that the stage's sidecar makes for the
// scene from now on, as a proxy.Handler does. It numbers them from one.
func (s *scene) calls(st *stage, handle func(call numberedCall, forward func() error) error) {
	var mu sync.Mutex
	seen := map[string]int{}
	st.proxy.Handle(func(c proxy.Call, forward func() error) error {
		what, ok := s.describe(c)
		if !ok {
			return forward()
		}
		mu.Lock()
		seen[what]++
		id := fmt.Sprintf("%s %d", what, seen[what])
		mu.Unlock()
		return handle(numberedCall{id, c}, forward)
	})
}

// describe says what a call is about in words that fit every scene, if it is about
// this one. Watches that the sidecar has for all transfers are not.
func (s *scene) describe(c proxy.Call) (what string, ok bool) {
	what = c.Verb + " " + c.Resource
	switch c.Namespace {
	case s.giver:
		return what + " of giver", true
	case s.receiver:
		return what + " of receiver", true
	case metav1.NamespaceDefault: // events about volumes
		return what, true
	}
	shared := c.Resource == "" || c.Verb == "watch" || strings.HasPrefix(c.Resource, "namespacetransfer") || c.Resource == "selfsubjectreviews"
	return what, c.Namespace == "" && !shared && (c.Name == "" || c.Resource != "persistentvolumes" || c.Name == s.moving)
}

// ending is how a transfer has ended.
type ending string

const (
	moved    ending = "moved"
	returned ending = "returned"
	// kept: the claim that had the volume was deleted by its user in flight.
	kept ending = "kept"
	// deleted: the claim that had the volume was deleted by its user before the
	// transfer or after it.
	deleted ending = "deleted"
	// doomed: an administrator has deleted the volume's object, which stays as
	// long as a claim has it.
	doomed ending = "doomed"
)

// settled waits until a transfer has ended in one of the ways that are right, and
// fails if it does not, or the volume is lost then.
func (s *scene) settled(before *corev1.PersistentVolume, right ...ending) ending {
	s.Helper()
	var how ending
	var why error
	err := wait.PollUntilContextCancel(s.ctx, 100*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		now, whyNot := s.ending(ctx, before)
		if ctx.Err() != nil {
			return false, nil // which says nothing about the transfer
		}
		how, why = now, whyNot
		return why == nil && slices.Contains(right, how), nil
	})
	if err != nil && why == nil {
		s.Fatalf("the volume was %s, want %v", how, right)
	}
	if err != nil {
		s.blame(blameStuck, "%v", why)
		s.FailNow()
	}
	s.backed(before, how)
	return how
}

// What a transfer may be blamed for.
const (
	blameLost   = "lost"
	blameShared = "shared"
	blameStuck  = "stuck"
)

// blame fails the test for what must never happen, and counts it.
func (s *scene) blame(what, format string, args ...any) {
	s.Helper()
	blamed.add(what, failed)
	s.Errorf(what+": "+format, args...)
}

// neverOpen fails if there was a moment in which anybody could take the volume.
func (s *scene) neverOpen(before *corev1.PersistentVolume) {
	s.Helper()
	if open := s.witness.of(before.Name).open; open != nil {
		s.blame(blameShared, "volume %s was %s with claimRef %+v", open.Name, open.Status.Phase, open.Spec.ClaimRef)
	}
}

// backed fails unless what is in the backend is what it must be.
func (s *scene) backed(before *corev1.PersistentVolume, how ending) {
	s.Helper()
	_, err := os.Stat(filepath.Join(s.own.StateDir, "volumes", before.Spec.CSI.VolumeHandle))
	if how != deleted && err != nil {
		s.blame(blameLost, "volume %s: %v", before.Name, err)
	}
	if how == deleted && err == nil {
		s.Errorf("leaked: nothing refers to what was volume %s", before.Name)
	}
}

// ending returns how the transfer has ended, or why it has not.
func (s *scene) ending(ctx context.Context, before *corev1.PersistentVolume) (ending, error) {
	pv, err := s.Client.CoreV1().PersistentVolumes().Get(ctx, before.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return s.deletion(ctx, before)
	}
	if err != nil {
		return "", err
	}
	ref := pv.Spec.ClaimRef
	if ref == nil {
		return "", fmt.Errorf("volume %s has no claimRef", pv.Name)
	}
	if ref.Namespace != s.giver && ref.Namespace != s.receiver {
		s.blame(blameShared, "volume %s has gone to %s/%s", pv.Name, ref.Namespace, ref.Name)
	}
	owner, err := s.claimOf(ctx, ref)
	if err != nil {
		return "", err
	}
	state := fmt.Errorf("volume %s is %s, %s, claimRef %s %s/%s (there: %t), of ours %v",
		pv.Name, pv.Status.Phase, pv.Spec.PersistentVolumeReclaimPolicy, ref.Kind, ref.Namespace, ref.Name, owner != nil, ours(pv.ObjectMeta))
	if pv.DeletionTimestamp != nil && owner != nil && owner.Status.Phase == corev1.ClaimBound {
		return doomed, nil
	}
	if len(ours(pv.ObjectMeta)) > 0 {
		return "", state
	}
	if owner == nil {
		if pv.Status.Phase == corev1.VolumeReleased && pv.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRetain {
			return kept, nil
		}
		return "", state // about to be deleted
	}
	was, is := slices.Sorted(slices.Values(before.Finalizers)), slices.Sorted(slices.Values(pv.Finalizers))
	if pv.Status.Phase != corev1.VolumeBound || owner.Status.Phase != corev1.ClaimBound || owner.Spec.VolumeName != pv.Name ||
		pv.Spec.PersistentVolumeReclaimPolicy != before.Spec.PersistentVolumeReclaimPolicy || !slices.Equal(was, is) {
		return "", fmt.Errorf("%w; finalizers were %v and are %v; the claim is %s with volume %q", state, was, is, owner.Status.Phase, owner.Spec.VolumeName)
	}
	if ref.Namespace == before.Spec.ClaimRef.Namespace && owner.UID == before.Spec.ClaimRef.UID {
		delete(owner.Annotations, v1alpha1.AnnotationAllow) // its user's
		if left := ours(owner.ObjectMeta); len(left) > 0 {
			return "", fmt.Errorf("the source claim keeps %v", left)
		}
		return returned, s.waiting(ctx)
	}
	source, err := s.claimOf(ctx, before.Spec.ClaimRef)
	if err != nil {
		return "", err
	}
	if source != nil && source.Status.Phase == corev1.ClaimBound {
		s.blame(blameShared, "claims %s/%s and %s/%s are both Bound to volume %s", source.Namespace, source.Name, owner.Namespace, owner.Name, pv.Name)
	}
	return moved, s.completed(ctx, owner)
}

// deletion is how a transfer has ended whose volume is gone. That is right where
// the user whose it was deleted the claim while the volume was not in flight.
func (s *scene) deletion(ctx context.Context, before *corev1.PersistentVolume) (ending, error) {
	seen := s.witness.of(before.Name)
	if !seen.gone {
		return "", fmt.Errorf("volume %s is gone, as the witness has not seen yet", before.Name)
	}
	owner, err := s.claimOf(ctx, seen.last.Spec.ClaimRef)
	if err != nil {
		return "", err
	}
	if len(ours(seen.last.ObjectMeta)) > 0 || owner != nil || seen.last.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete {
		s.blame(blameLost, "volume %s was deleted in flight or with its claim there: %+v", before.Name, seen.last)
	}
	return deleted, nil
}

// claimOf is the claim to which a volume refers, nil if that is gone or another.
func (s *scene) claimOf(ctx context.Context, ref *corev1.ObjectReference) (*corev1.PersistentVolumeClaim, error) {
	if ref.Kind != "PersistentVolumeClaim" {
		return nil, nil
	}
	claim, err := s.claims(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && claim.UID != ref.UID {
		return nil, nil
	}
	return claim, err
}

// waiting returns an error while a transfer that has given the volume back is
// about to begin again.
func (s *scene) waiting(ctx context.Context) error {
	r, err := s.requests().Get(ctx, "take-data", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	c := meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionTransferred)
	if c.Reason == v1alpha1.ReasonNoApproval || slices.ContainsFunc(protocol.Reasons, func(i protocol.ReasonInfo) bool { return string(i.Reason) == c.Reason }) {
		return nil
	}
	return fmt.Errorf("the source claim has the volume, and the request says %s: %s", c.Reason, c.Message)
}

// completed returns an error while request and approval do not tell that the
// volume has arrived at a claim. Either may have been deleted, or made anew.
func (s *scene) completed(ctx context.Context, owner *corev1.PersistentVolumeClaim) error {
	if owner.Spec.DataSourceRef == nil {
		return errors.New("the volume has gone to a claim without a data source")
	}
	r, err := s.requests().Get(ctx, owner.Spec.DataSourceRef.Name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	if err == nil && r.Status.VolumeName != "" && !meta.IsStatusConditionTrue(r.Status.Conditions, v1alpha1.ConditionTransferred) {
		return fmt.Errorf("the request is %s", r.Status.Phase)
	}
	a, err := s.approvals().Get(ctx, "give-data", metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	if err == nil && a.Status.Request != nil && !meta.IsStatusConditionTrue(a.Status.Conditions, v1alpha1.ConditionTransferred) {
		return fmt.Errorf("the approval is %s", a.Status.Phase)
	}
	return nil
}

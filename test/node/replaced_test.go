// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/utils/ptr"

	"github.com/csi-transfer/csi-transfer/pkg/apis/transfer/v1alpha1"
	"github.com/csi-transfer/csi-transfer/test/cluster"
	"github.com/csi-transfer/csi-transfer/test/node/shipped"
)

// TestReplaced: the sidecar's image is replaced, or its pod deleted, in the
// middle of transfers. Who comes after goes on from there: every volume arrives,
// and nothing is done twice.
func TestReplaced(t *testing.T) {
	const next = "docker.io/library/csi-transfer:next"
	if err := shared.node.Tag(t.Context(), "docker.io/library/csi-transfer:latest", next); err != nil {
		t.Fatal(err)
	}
	// Two replicas elect a leader.
	doubled := shipped.Options{Name: "doubled", Attachless: true, Replicas: 2}
	if err := shared.startDriver(t.Context(), &doubled); err != nil {
		t.Fatal(err)
	}
	drivers = append(drivers, &doubled)
	var inFlight int
	for _, driver := range []*shipped.Options{&attached, &doubled} {
		t.Run(driver.Namespace(), func(t *testing.T) {
			var perMove int
			t.Run("nothing", func(t *testing.T) {
				w := shuttle(t, driver, func(context.Context) error { return nil })
				if pods := w.pods(); len(pods) != 1 {
					t.Errorf("%v have moved volumes, which is for one of them to do", sets.List(pods))
				}
				perMove = w.mostPerMove()
			})
			for what, replace := range map[string]func(context.Context) error{
				"image": func(ctx context.Context) error { return shared.replaceImage(ctx, driver, next) },
				"pod":   func(ctx context.Context) error { return shared.deleteLeader(ctx, driver) },
			} {
				t.Run(what, func(t *testing.T) {
					w := shuttle(t, driver, replace)
					if pods := w.pods(); len(pods) < 2 {
						t.Errorf("%v has moved all volumes: the other did nothing", sets.List(pods))
					}
					if most := w.mostPerMove(); most > perMove {
						t.Errorf("a volume was written %d times for a transfer, and undisturbed %d times", most, perMove)
					}
					inFlight += w.handedOver(perMove)
				})
			}
		})
	}
	t.Logf("%d transfers were begun by one pod and finished by another", inFlight)
	if inFlight == 0 && !t.Failed() {
		t.Error("nothing was in the middle of a transfer")
	}
}

// shuttles is how many volumes move at the same time.
const shuttles = 6

// shuttle moves volumes between two namespaces each, again and again, until
// something was done in the midst of it, and once more. It returns what the
// sidecars of the driver did.
func shuttle(t *testing.T, driver *shipped.Options, do func(context.Context) error) work {
	since, err := shared.AuditMark()
	if err != nil {
		t.Fatal(err)
	}
	moving, done := make(chan struct{}), make(chan struct{})
	started := sync.OnceFunc(func() { close(moving) })
	var failure error
	go func() {
		defer close(done)
		select {
		case <-moving:
			failure = do(t.Context())
		case <-t.Context().Done():
		}
	}()
	var mu sync.Mutex
	moves := map[string]int{}
	t.Run("moves", func(t *testing.T) {
		for i := range shuttles {
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				t.Parallel()
				s := newScene(t, volumeKind{driver, driver.Class(), corev1.PersistentVolumeFilesystem, corev1.ReadWriteOnce})
				at := place{s.prod, "data-0"}
				s.claim(at, "")
				volume := s.bound(at).Spec.VolumeName
				for last := false; !last; {
					select {
					case <-done:
						last = true
					default:
					}
					to := place{[]string{s.dev, s.prod}[s.moves%2], fmt.Sprintf("data-%d", s.moves+1)}
					if claim := s.completes(s.offer(at, to)); claim.Spec.VolumeName != volume {
						t.Fatalf("%s has volume %s, not %s", to, claim.Spec.VolumeName, volume)
					}
					started()
					at = to
				}
				s.settled(volume)
				mu.Lock()
				defer mu.Unlock()
				moves[volume] = s.moves
			})
		}
	})
	<-done
	if failure != nil {
		t.Fatal(failure)
	}
	w, err := shared.work(driver, since, moves)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// settled waits until a volume is as it was before any transfer.
func (s *scene) settled(volume string) {
	s.Helper()
	must[*corev1.PersistentVolume](s)(cluster.Wait(s.ctx, s.Cluster, cluster.Volumes, "", volume, func(pv *corev1.PersistentVolume) bool {
		_, inFlight := pv.Labels[v1alpha1.LabelInFlight]
		return !inFlight && pv.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete
	}))
}

// work is what was done to each volume.
type work map[string]*voyage

type voyage struct {
	moves int
	// writers are the pods that wrote to the volume, write by write.
	writers []string
}

func (w *world) work(driver *shipped.Options, since cluster.AuditMark, moves map[string]int) (work, error) {
	requests, err := w.Audit(cluster.AuditFilter{Since: since, User: serviceAccount(driver), Verbs: cluster.WriteVerbs, Resource: "persistentvolumes"})
	if err != nil {
		return nil, err
	}
	found := work{}
	for volume, n := range moves {
		found[volume] = &voyage{moves: n}
	}
	for _, e := range requests {
		if v := found[e.ObjectRef.Name]; v != nil && bySidecar(e) && e.ResponseStatus.Code == http.StatusOK {
			v.writers = append(v.writers, podOf(e))
		}
	}
	return found, nil
}

// podOf returns the pod whose token a request had.
func podOf(e auditv1.Event) string {
	return strings.Join(e.User.Extra["authentication.kubernetes.io/pod-name"], " ")
}

func (w work) pods() sets.Set[string] {
	pods := sets.New[string]()
	for _, v := range w {
		pods.Insert(v.writers...)
	}
	return pods
}

// mostPerMove is how often a volume was written for one transfer.
func (w work) mostPerMove() (most int) {
	for _, v := range w {
		most = max(most, (len(v.writers)+v.moves-1)/v.moves)
	}
	return most
}

// handedOver counts the transfers that one pod began and another finished.
func (w work) handedOver(perMove int) (n int) {
	for _, v := range w {
		for i := range v.writers {
			if i%perMove != 0 && v.writers[i] != v.writers[i-1] {
				n++
			}
		}
	}
	return n
}

// replaceImage returns when no pod of the driver's Deployment has another image.
func (w *world) replaceImage(ctx context.Context, d *shipped.Options, image string) error {
	if _, err := w.Kubectl(ctx, "set", "image", "--namespace="+d.Namespace(), "deployment/"+d.Controller(), "csi-transfer="+image); err != nil {
		return err
	}
	return w.rolledOut(ctx, d)
}

// deleteLeader deletes the pod that moves volumes, and returns when there is
// another.
func (w *world) deleteLeader(ctx context.Context, d *shipped.Options) error {
	lease, err := w.Client.CoordinationV1().Leases(d.Namespace()).Get(ctx, "csi-transfer-"+strings.ReplaceAll(d.DriverName(), ".", "-"), metav1.GetOptions{})
	if err != nil {
		return err
	}
	leader := ptr.Deref(lease.Spec.HolderIdentity, "")
	if err := w.Client.CoreV1().Pods(d.Namespace()).Delete(ctx, leader, metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("deleting the holder of Lease %s: %w", lease.Name, err)
	}
	if err := w.WaitGone(ctx, cluster.Pods, d.Namespace(), leader); err != nil {
		return err
	}
	return w.rolledOut(ctx, d)
}

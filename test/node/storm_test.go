// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"

	"github.com/csi-transfer/csi-transfer/test/cluster"
)

// How many volumes move at the same time, and how often each.
const (
	lanes        = 8
	movesPerLane = 13
)

// TestStorm: while pods come and go on both sides, however they are deleted, no
// volume is ever mounted for both.
func TestStorm(t *testing.T) {
	t.Run("without fences", testStorm)
	t.Run("with fences", func(t *testing.T) {
		if err := shared.ApplyKustomize(t.Context(), deploy("fences")); err != nil {
			t.Fatal(err)
		}
		testStorm(t)
	})
}

func testStorm(t *testing.T) {
	mounts := watchMounts(t)
	t.Run("lanes", func(t *testing.T) {
		for lane := range lanes {
			// Pods of volumes that are attached may be force-deleted.
			kind := volumeKind{&attached, attached.Class(), corev1.PersistentVolumeFilesystem, corev1.ReadWriteMany}
			if lane%2 == 1 {
				kind = volumeKind{&attachless, attachless.Class(), corev1.PersistentVolumeFilesystem, corev1.ReadWriteMany}
			}
			t.Run(fmt.Sprint(lane), func(t *testing.T) {
				t.Parallel()
				s := newScene(t, kind)
				at := place{s.prod, "data-0"}
				s.claim(at, "")
				writer := s.visit(at)
				s.saw(writer)
				s.leave(writer)
				for n := range movesPerLane {
					next := place{s.dev, fmt.Sprintf("data-%d", n+1)}
					if at.namespace == s.dev {
						next.namespace = s.prod
					}
					s.storm(at, next)
					at = next
				}
				s.saw(s.visit(at))
			})
		}
		t.Run("kubelet", func(t *testing.T) {
			t.Parallel()
			restartKubelet(t)
		})
	})
	mounts.stop()
}

// storm moves a volume while pods come and go on both of its claims.
func (s *scene) storm(from, to place) {
	s.Helper()
	ctx, over := context.WithCancel(s.ctx)
	defer over()
	var pods sync.WaitGroup
	m := s.offer(from, to)
	var created [2]int
	gust := func(side int, at place, stay time.Duration) error {
		// Those of the last storm may not be gone yet.
		name := fmt.Sprintf("%s-%s-%d", m.name, at.claim, created[side])
		created[side]++
		return s.gust(ctx, at, name, stay)
	}
	run := func(side func() error) {
		pods.Go(func() {
			if err := side(); err != nil && ctx.Err() == nil {
				s.Errorf("storm from %s to %s: %v", from, to, err)
			}
		})
	}
	run(func() error {
		for range 1 + rand.IntN(2) {
			if err := gust(0, from, time.Second); err != nil {
				return err
			}
		}
		// One more, about when the volume leaves.
		if err := pause(ctx, 400*time.Millisecond); err != nil {
			return err
		}
		return gust(0, from, time.Second)
	})
	run(func() error {
		for ctx.Err() == nil {
			if err := gust(1, to, 4*time.Second); err != nil {
				return err
			}
		}
		return nil
	})
	s.completes(m)
	over()
	pods.Wait()
	s.must(s.Client.CoreV1().Pods(to.namespace).DeleteCollection(s.ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
}

// gust is a pod that comes, stays for a while, and is deleted. A fence may keep
// it from coming.
func (s *scene) gust(ctx context.Context, at place, name string, stay time.Duration) error {
	pods := s.Client.CoreV1().Pods(at.namespace)
	_, err := pods.Create(ctx, s.newPod(name, at.claim, nil), metav1.CreateOptions{})
	if apierrors.IsForbidden(err) {
		return nil
	}
	if err != nil {
		return err
	}
	counts.add(func(y *tally) { y.pods++ })
	if err := pause(ctx, stay); err != nil {
		return err
	}
	options := metav1.DeleteOptions{GracePeriodSeconds: ptr.To(rand.Int64N(2) + 1)}
	if !s.driver.Attachless && rand.IntN(3) == 0 {
		options.GracePeriodSeconds = ptr.To[int64](0)
	}
	if err := pods.Delete(ctx, name, options); err != nil {
		return err
	}
	return s.WaitGone(ctx, cluster.Pods, at.namespace, name)
}

// pause lets a random time pass, which is what a storm is made of.
func pause(ctx context.Context, atMost time.Duration) error {
	select {
	case <-time.After(rand.N(atMost)):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// restartKubelet takes the kubelet away for a while.
func restartKubelet(t *testing.T) {
	ctx := t.Context()
	if err := pause(ctx, time.Minute); err != nil {
		t.Fatal(err)
	}
	shared.node.Kubelet.Kill()
	if err := pause(ctx, 10*time.Second); err != nil {
		t.Fatal(err)
	}
	if err := shared.node.Kubelet.Start(ctx); err != nil {
		t.Fatal(err)
	}
}

// podMounts finds the mounts of pods among the node's: the kubelet puts a file
// system and a block device of a pod in different places.
var podMounts = regexp.MustCompile(`/pods/(?P<pod>[^/ ]+)/volumes/kubernetes\.io~csi/(?P<volume>[^/ ]+)/mount |/volumeDevices/publish/(?P<volume>[^/ ]+)/(?P<pod>[^/ ]+) `)

// mountWatch looks again and again which pods have which volume mounted.
type mountWatch struct {
	t      *testing.T
	cancel context.CancelFunc
	ended  chan struct{}
	// together are pods that had the same volume mounted.
	together map[[2]types.UID]string
	looks    int
}

func watchMounts(t *testing.T) *mountWatch {
	ctx, cancel := context.WithCancel(t.Context())
	w := &mountWatch{t: t, cancel: cancel, ended: make(chan struct{}), together: map[[2]types.UID]string{}}
	go func() {
		defer close(w.ended)
		err := wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, func(context.Context) (bool, error) { return false, w.look() })
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}()
	return w
}

func (w *mountWatch) look() error {
	mounts, err := os.ReadFile(shared.node.MountInfo())
	if err != nil {
		return err
	}
	w.looks++
	users := map[string][]types.UID{}
	for line := range strings.Lines(string(mounts)) {
		match := podMounts.FindStringSubmatch(line)
		if match == nil {
			continue
		}
		volume, pod := match[2]+match[3], types.UID(match[1]+match[4])
		for _, other := range users[volume] {
			w.together[[2]types.UID{other, pod}] = volume
		}
		users[volume] = append(users[volume], pod)
	}
	return nil
}

// stop ends the watch, and fails the test if pods of two namespaces had the same
// volume mounted.
func (w *mountWatch) stop() {
	w.t.Helper()
	w.cancel()
	<-w.ended
	for pods, volume := range w.together {
		first, second := shared.witness.namespaceOf(pods[0]), shared.witness.namespaceOf(pods[1])
		if first != second {
			w.t.Errorf("volume %s was mounted for pod %s of %s and pod %s of %s at the same time", volume, pods[0], first, pods[1], second)
		}
	}
	counts.add(func(y *tally) { y.looks += w.looks })
}

// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/csi-transfer/csi-transfer/pkg/sidecar/protocol"
	"github.com/csi-transfer/csi-transfer/test/cluster"
	"github.com/csi-transfer/csi-transfer/test/node/shipped"
)

// TestNodeOutOfReach: a pod is deleted while no kubelet runs to end it, and so
// goes on writing. Its volume stays until the kubelet is back.
func TestNodeOutOfReach(t *testing.T) {
	for _, tc := range []struct {
		name   string
		driver *shipped.Options
		// force deletes the pod's object at once.
		force bool
		// reason and what are what the transfer waits for.
		reason protocol.Reason
		what   string
	}{
		{"pod deleted", &attached, false, protocol.ReasonInUse, "visitor-0"},
		{"pod deleted, attachless", &attachless, false, protocol.ReasonInUse, "visitor-0"},
		{"pod force-deleted", &attached, true, protocol.ReasonAttached, "node node"},
		{"pod force-deleted, and the driver knows", &watchful, true, protocol.ReasonDriverRefused, "node node"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newScene(t, volumeKind{tc.driver, tc.driver.Class(), corev1.PersistentVolumeFilesystem, corev1.ReadWriteOnce})
			mounts := watchMounts(t)
			defer mounts.stop()
			home, away := place{s.prod, "data"}, place{s.dev, "data"}
			s.claim(home, "")
			writer := s.visit(home)
			s.saw(writer)
			m := s.offer(home, away)
			reader := s.visit(away)

			s.node.Kubelet.Kill()
			s.Cleanup(func() {
				select {
				case <-s.node.Kubelet.Exited(): // still, after a failure
					if err := s.node.Kubelet.Start(context.Background()); err != nil {
						t.Error(err)
					}
				default:
				}
			})
			options := metav1.DeleteOptions{}
			if tc.force {
				options.GracePeriodSeconds = ptr.To[int64](0)
			}
			s.must(s.Client.CoreV1().Pods(s.prod).Delete(s.ctx, writer.pod, options))
			if tc.force {
				s.must(s.WaitGone(s.ctx, cluster.Pods, s.prod, writer.pod))
			}
			s.anotherMoves()
			s.waits(m, tc.reason, tc.what)

			s.must(s.node.Kubelet.Start(s.ctx))
			s.completes(m)
			s.saw(reader)
		})
	}
}

// anotherMoves returns when a volume that nobody uses has moved, for which there
// was as much time as for any.
func (s *scene) anotherMoves() {
	s.Helper()
	home, away := place{s.prod, "another"}, place{s.dev, "another"}
	s.claim(home, "")
	s.bound(home)
	s.completes(s.offer(home, away))
}

// TestForceDeleted: the object of a pod is deleted at once, while a healthy node
// has still to end the pod.
func TestForceDeleted(t *testing.T) {
	mounts := watchMounts(t)
	t.Run("drivers", func(t *testing.T) {
		for _, tc := range []struct {
			name   string
			driver *shipped.Options
			// reason is what the transfer waits for; not known where a healthy node
			// may be faster than whoever looks.
			reason protocol.Reason
		}{
			{"attached", &attached, ""},
			{"attachless", &attachless, protocol.ReasonPodForceDeleted},
			{"the driver knows", &watchful, ""},
		} {
			t.Run(tc.name, func(t *testing.T) {
				t.Parallel()
				s := newScene(t, volumeKind{tc.driver, tc.driver.Class(), corev1.PersistentVolumeFilesystem, corev1.ReadWriteOnce})
				home, away := place{s.prod, "data"}, place{s.dev, "data"}
				s.claim(home, "")
				writer := s.visit(home)
				s.saw(writer)
				m := s.offer(home, away)
				reader := s.visit(away)
				s.waits(m, protocol.ReasonInUse, writer.pod)
				s.must(s.Client.CoreV1().Pods(s.prod).Delete(s.ctx, writer.pod, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}))
				if tc.reason != "" {
					s.waits(m, tc.reason, writer.pod)
				}
				s.completes(m)
				s.saw(reader)
			})
		}
	})
	mounts.stop()
}

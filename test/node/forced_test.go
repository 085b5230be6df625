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

// TestNodeOutOfReach: pods are deleted while no kubelet runs to end them, and so
// go on writing. Their volumes stay until the kubelet is back.
func TestNodeOutOfReach(t *testing.T) {
	mounts := watchMounts(t)
	defer mounts.stop()
	cases := []*struct {
		driver *shipped.Options
		// force deletes the pod's object at once.
		force bool
		// reason and what are what the transfer waits for.
		reason protocol.Reason
		what   string

		scene          *scene
		move           move
		writer, reader visit
	}{
		{driver: &attached, reason: protocol.ReasonInUse, what: "visitor-0"},
		{driver: &attachless, reason: protocol.ReasonInUse, what: "visitor-0"},
		{driver: &attached, force: true, reason: protocol.ReasonAttached, what: "node node"},
		// It says so for longer than the sidecar holds the transfer off by itself.
		{driver: &watchful, force: true, reason: protocol.ReasonDriverRefused, what: "node node"},
	}
	for _, tc := range cases {
		s := newScene(t, volumeKind{tc.driver, tc.driver.Class(), corev1.PersistentVolumeFilesystem, corev1.ReadWriteOnce})
		home, away := place{s.prod, "data"}, place{s.dev, "data"}
		s.claim(home, "")
		tc.scene, tc.writer = s, s.visit(home)
		s.saw(tc.writer)
		tc.move, tc.reader = s.offer(home, away), s.visit(away)
	}

	kubelet := shared.node.Kubelet
	kubelet.Kill()
	t.Cleanup(func() {
		select {
		case <-kubelet.Exited(): // still, after a failure
			if err := kubelet.Start(context.Background()); err != nil {
				t.Error(err)
			}
		default:
		}
	})
	for _, tc := range cases {
		options := metav1.DeleteOptions{}
		if tc.force {
			options.GracePeriodSeconds = ptr.To[int64](0)
		}
		tc.scene.must(tc.scene.Client.CoreV1().Pods(tc.writer.namespace).Delete(tc.scene.ctx, tc.writer.pod, options))
	}
	cases[0].scene.anotherMoves()
	for _, tc := range cases {
		if tc.force {
			tc.scene.must(tc.scene.WaitGone(tc.scene.ctx, cluster.Pods, tc.writer.namespace, tc.writer.pod))
		}
		tc.scene.waits(tc.move, tc.reason, tc.what)
	}

	if err := kubelet.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, tc := range cases {
		tc.scene.completes(tc.move)
		tc.scene.saw(tc.reader)
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
	t.Parallel()
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

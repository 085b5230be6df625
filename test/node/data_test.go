// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/csi-transfer/csi-transfer/pkg/sidecar/protocol"
	"github.com/csi-transfer/csi-transfer/test/node/shipped"
)

// TestData: what a pod has written is what a pod of the other namespace reads,
// there and back.
func TestData(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		kind volumeKind
	}{
		{"file system", volumeKind{&attached, attached.Class(), corev1.PersistentVolumeFilesystem, corev1.ReadWriteOnce}},
		{"block", volumeKind{&attached, attached.Class(), corev1.PersistentVolumeBlock, corev1.ReadWriteOnce}},
		{"attachless", volumeKind{&attachless, attachless.Class(), corev1.PersistentVolumeFilesystem, corev1.ReadWriteOnce}},
		{"attachless block, provisioned for a pod", volumeKind{&attachless, waitForConsumer(&attachless), corev1.PersistentVolumeBlock, corev1.ReadWriteOnce}},
		{"provisioned for a pod", volumeKind{&attached, waitForConsumer(&attached), corev1.PersistentVolumeFilesystem, corev1.ReadWriteOnce}},
		{"ReadWriteOncePod", volumeKind{&attachless, attachless.Class(), corev1.PersistentVolumeFilesystem, corev1.ReadWriteOncePod}},
		{"ReadWriteMany", volumeKind{&attached, waitForConsumer(&attached), corev1.PersistentVolumeFilesystem, corev1.ReadWriteMany}},
		{"ReadWriteMany block", volumeKind{&attachless, attachless.Class(), corev1.PersistentVolumeBlock, corev1.ReadWriteMany}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			testThereAndBack(newScene(t, tc.kind))
		})
	}
}

func testThereAndBack(s *scene) {
	home, away, back := place{s.prod, "data"}, place{s.dev, "data"}, place{s.prod, "data-again"}
	s.claim(home, "")
	at := home
	writer := s.visit(home)
	s.saw(writer)
	for _, next := range []place{away, back} {
		move := s.offer(at, next)
		successor := s.visit(next)
		s.waits(move, protocol.ReasonInUse, writer.pod)
		s.leave(writer)
		s.completes(move)
		s.saw(successor)
		at, writer = next, successor
	}
}

// prompt is how soon a volume that nobody uses any more must be bound to the
// receiving claim.
const prompt = 2 * time.Second

// TestPrompt: a volume moves as soon as nobody uses it, while nothing else is on
// the machine.
func TestPrompt(t *testing.T) {
	for _, driver := range []*shipped.Options{&attached, &attachless} {
		s := newScene(t, volumeKind{driver, driver.Class(), corev1.PersistentVolumeFilesystem, corev1.ReadWriteOnce})
		at := place{s.prod, "data-0"}
		s.claim(at, "")
		for n := range 5 {
			next := place{s.dev, fmt.Sprintf("data-%d", n+1)}
			if at.namespace == s.dev {
				next.namespace = s.prod
			}
			user := s.visit(at)
			s.saw(user)
			m := s.offer(at, next)
			s.waits(m, protocol.ReasonInUse, user.pod)
			s.leave(user)
			claim := s.completes(m)
			took, err := s.witness.waited(s.ctx, at.String(), claim)
			s.must(err)
			if took > prompt {
				s.Errorf("%s had its volume %s after %s was free of pods and attachments, want %s at most", next, took, at, prompt)
			}
			counts.add(func(y *tally) { y.waits = append(y.waits, took) })
			at = next
		}
	}
}

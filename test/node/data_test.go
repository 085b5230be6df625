// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/csi-transfer/csi-transfer/pkg/sidecar/protocol"
)

// TestData: what a pod has written is what a pod of the other namespace reads,
// there and back.
func TestData(t *testing.T) {
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
		s.arrives(move)
		s.saw(successor)
		at, writer = next, successor
	}
}

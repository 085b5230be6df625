// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package driver

import "github.com/csi-transfer/csi-transfer/pkg/driver/transferpb"

// Linkage says what a driver's volumes are linked to. Two objects of a backend
// are linked when CSI's DeleteVolume or DeleteSnapshot of one may fail with
// FAILED_PRECONDITION because of the other.
type Linkage string

const (
	// LinkageNone: volumes, snapshots and clones are independent.
	LinkageNone Linkage = "none"
	// LinkageSnapshots: a volume is linked to its snapshots.
	LinkageSnapshots Linkage = "snapshots"
	// LinkageChain: a volume is also linked to what it was made from and to
	// what was made from it.
	LinkageChain Linkage = "chain"
)

// ParseLinkage reads a flag or annotation value. Any other value than the
// three, the empty one included, is LinkageChain, the strictest, and false.
func ParseLinkage(value string) (linkage Linkage, known bool) {
	switch l := Linkage(value); l {
	case LinkageNone, LinkageSnapshots, LinkageChain:
		return l, true
	default:
		return LinkageChain, false
	}
}

func linkageOf(l transferpb.SnapshotLinkage) Linkage {
	switch l {
	case transferpb.SnapshotLinkage_SNAPSHOT_LINKAGE_NONE:
		return LinkageNone
	case transferpb.SnapshotLinkage_SNAPSHOT_LINKAGE_SNAPSHOTS:
		return LinkageSnapshots
	default:
		return LinkageChain
	}
}

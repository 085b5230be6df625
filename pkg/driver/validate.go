// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"fmt"

	"github.com/csi-transfer/csi-transfer/pkg/driver/transferpb"
)

// maxBlockers is the limit that transfer.proto states.
const maxBlockers = 100

// Verdict is a driver's word on one volume. Neither confirmed nor blocked
// means that the driver has no objection but does not vouch for the volume.
type Verdict struct {
	// Confirmed: the driver vouches that the volume is linked to nothing. Never
	// together with blockers.
	Confirmed bool

	// Blockers are what stands against the transfer, at most 100.
	Blockers []Blocker
}

// Blocker is one thing that stands against a transfer.
type Blocker struct {
	Type BlockerType

	// ID of what blocks, in the driver's or backend's terms, and Message, a
	// sentence for the giving user. Either may be empty. Both are graphic
	// characters only, at most 1024 bytes each.
	ID, Message string
}

// BlockerType says what kind of thing blocks, see Blocker.Type in transfer.proto.
type BlockerType string

const (
	BlockerSnapshot    BlockerType = "snapshot"
	BlockerDescendant  BlockerType = "descendant"
	BlockerAncestor    BlockerType = "ancestor"
	BlockerPublished   BlockerType = "published"
	BlockerHydrating   BlockerType = "hydrating"
	BlockerTenantBound BlockerType = "tenant-bound"
	// BlockerUnknown is a type that this version does not know.
	BlockerUnknown BlockerType = "unknown"
)

var blockerTypes = map[transferpb.Blocker_Type]BlockerType{
	transferpb.Blocker_TYPE_SNAPSHOT:     BlockerSnapshot,
	transferpb.Blocker_TYPE_DESCENDANT:   BlockerDescendant,
	transferpb.Blocker_TYPE_ANCESTOR:     BlockerAncestor,
	transferpb.Blocker_TYPE_PUBLISHED:    BlockerPublished,
	transferpb.Blocker_TYPE_HYDRATING:    BlockerHydrating,
	transferpb.Blocker_TYPE_TENANT_BOUND: BlockerTenantBound,
}

// Validate asks the driver whether the volume can leave its owner now. A driver
// that does not offer this neither confirms nor blocks: see Info.Validate.
func (d *Driver) Validate(ctx context.Context, volume Volume) (Verdict, error) {
	if !d.info.Validate {
		return Verdict{}, nil
	}
	answer, err := d.transfer.ValidateVolume(ctx, &transferpb.ValidateVolumeRequest{
		VolumeId:      volume.ID,
		VolumeContext: volume.Context,
		From:          volume.From.proto(),
		To:            volume.To.proto(),
		TransferId:    string(volume.TransferID),
		Secrets:       volume.Secrets,
	})
	if err != nil {
		return Verdict{}, volumeError("validating", volume.ID, err)
	}
	verdict, err := verdictOf(answer)
	return verdict, volumeError("validating", volume.ID, err)
}

func verdictOf(answer *transferpb.ValidateVolumeResponse) (Verdict, error) {
	blockers := answer.GetBlockers()
	if answer.GetConfirmed() && len(blockers) > 0 {
		return Verdict{}, fmt.Errorf("%w: it confirms the volume and names %d blockers", ErrMalformed, len(blockers))
	}
	if len(blockers) > maxBlockers {
		return Verdict{}, fmt.Errorf("%w: it names %d blockers, more than %d", ErrMalformed, len(blockers), maxBlockers)
	}
	verdict := Verdict{Confirmed: answer.GetConfirmed()}
	for i, b := range blockers {
		if err := checkText("id", b.GetId()); err != nil {
			return Verdict{}, fmt.Errorf("blocker %d: %w", i, err)
		}
		if err := checkText("message", b.GetMessage()); err != nil {
			return Verdict{}, fmt.Errorf("blocker %d: %w", i, err)
		}
		kind, known := blockerTypes[b.GetType()]
		if !known {
			kind = BlockerUnknown
		}
		verdict.Blockers = append(verdict.Blockers, Blocker{Type: kind, ID: b.GetId(), Message: b.GetMessage()})
	}
	return verdict, nil
}

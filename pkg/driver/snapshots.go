// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/util/sets"
)

const (
	snapshotsPerPage = 500
	// maxSnapshotPages ends a listing that a driver never ends.
	maxSnapshotPages = 100
)

// Snapshots returns the IDs of all snapshots of the volume, sorted. listed is
// false where the driver cannot list snapshots, which says nothing about
// whether there are any.
func (d *Driver) Snapshots(ctx context.Context, volumeID string) (ids []string, listed bool, err error) {
	if !d.info.ListSnapshots {
		return nil, false, nil
	}
	found, err := d.listSnapshots(ctx, volumeID)
	if status.Code(err) == codes.Unimplemented {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, volumeError("listing the snapshots of", volumeID, err)
	}
	return sets.List(found), true, nil
}

func (d *Driver) listSnapshots(ctx context.Context, volumeID string) (sets.Set[string], error) {
	ids, tokens := sets.New[string](), sets.New[string]()
	request := &csi.ListSnapshotsRequest{SourceVolumeId: volumeID, MaxEntries: snapshotsPerPage}
	for range maxSnapshotPages {
		answer, err := d.controller.ListSnapshots(ctx, request)
		if err != nil {
			return nil, err
		}
		for _, entry := range answer.GetEntries() {
			id, source := entry.GetSnapshot().GetSnapshotId(), entry.GetSnapshot().GetSourceVolumeId()
			if err := checkText("snapshot_id", id); err != nil {
				return nil, err
			}
			// Dropping it instead would be wrong where the driver knows the
			// volume by two IDs.
			if source != volumeID {
				return nil, fmt.Errorf("%w: asked for the snapshots of one volume, it has snapshot %q of volume %q",
					ErrMalformed, id, printable(source))
			}
			ids.Insert(id)
		}
		token := answer.GetNextToken()
		if token == "" {
			return ids, nil
		}
		if tokens.Has(token) {
			return nil, fmt.Errorf("%w: next_token %q was there before", ErrMalformed, printable(token))
		}
		tokens.Insert(token)
		request.StartingToken = token
	}
	return nil, fmt.Errorf("%w: the list has more than %d pages", ErrMalformed, maxSnapshotPages)
}

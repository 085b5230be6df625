// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package mock

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
)

func (s *controllerServer) CreateSnapshot(_ context.Context, request *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse, error) {
	name := request.GetName()
	if err := checkName(name); err != nil {
		return nil, err
	}
	if request.GetSourceVolumeId() == "" {
		return nil, invalid("no volume to take snapshot %q of is given", name)
	}
	if err := checkSnapshotParameters(request.GetParameters()); err != nil {
		return nil, err
	}
	id := s.driver.state.snapshots.idFor(name)
	existing, err := s.driver.state.snapshots.get(id)
	if err == nil {
		if existing.Volume != request.GetSourceVolumeId() {
			return nil, status.Errorf(codes.AlreadyExists, "snapshot %q exists as %s, of volume %s", name, id, existing.Volume)
		}
		return &csi.CreateSnapshotResponse{Snapshot: existing.proto()}, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, internal(err)
	}
	v, err := s.driver.volume(request.GetSourceVolumeId())
	if err != nil {
		return nil, err
	}
	// Any topology will do, for a volume on any node can be made from a snapshot.
	// That is also why snapshots report none.
	if _, err := s.driver.chooseTopology(request.GetAccessibilityRequirements()); err != nil {
		return nil, err
	}
	snap := &snapshot{ID: id, Name: name, Created: time.Now()}
	if err := s.driver.take(snap, v); err != nil {
		return nil, err
	}
	return &csi.CreateSnapshotResponse{Snapshot: snap.proto()}, nil
}

// take makes a snapshot of the volume.
func (d *Driver) take(snap *snapshot, v *volume) error {
	if err := v.checkHydrated(); err != nil {
		return err
	}
	snap.Volume, snap.Size, snap.Block = v.ID, v.Capacity, v.Block
	if err := d.state.snapshots.create(snap.ID, snap, func(data string) error {
		return copyContent(data, d.state.volumes.data(v.ID), v.Block)
	}); err != nil {
		return internal(err)
	}
	return nil
}

func (s *controllerServer) DeleteSnapshot(_ context.Context, request *csi.DeleteSnapshotRequest) (*csi.DeleteSnapshotResponse, error) {
	snap, err := s.driver.snapshot(request.GetSnapshotId())
	if status.Code(err) == codes.NotFound {
		return &csi.DeleteSnapshotResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	if snap.Group != "" {
		return nil, invalid("snapshot %s is part of group snapshot %s and can only be deleted with it", snap.ID, snap.Group)
	}
	if err := s.driver.checkNotRestored(snap.ID); err != nil {
		return nil, err
	}
	if err := s.driver.state.snapshots.remove(snap.ID); err != nil {
		return nil, internal(err)
	}
	return &csi.DeleteSnapshotResponse{}, nil
}

// checkNotRestored fails where volumes tie the snapshot.
func (d *Driver) checkNotRestored(snapshotID string) error {
	restored, err := d.restored(snapshotID)
	if err != nil {
		return internal(err)
	}
	if len(restored) > 0 {
		return status.Errorf(codes.FailedPrecondition, "snapshot %s was restored to %s, which depend on it; delete them first", snapshotID, enumerate(restored))
	}
	return nil
}

func (s *controllerServer) GetSnapshot(_ context.Context, request *csi.GetSnapshotRequest) (*csi.GetSnapshotResponse, error) {
	snap, err := s.driver.snapshot(request.GetSnapshotId())
	if err != nil {
		return nil, err
	}
	return &csi.GetSnapshotResponse{Snapshot: snap.proto()}, nil
}

func (s *controllerServer) ListSnapshots(_ context.Context, request *csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
	snapshots, err := s.driver.state.snapshots.list()
	if err != nil {
		return nil, internal(err)
	}
	snapshots = slices.DeleteFunc(snapshots, func(snap *snapshot) bool {
		id, volume := request.GetSnapshotId(), request.GetSourceVolumeId()
		return id != "" && snap.ID != id || volume != "" && snap.Volume != volume
	})
	snapshots, next, err := page(snapshots, func(snap *snapshot) string { return snap.ID }, s.driver.state.snapshots.validID, request)
	if err != nil {
		return nil, err
	}
	response := &csi.ListSnapshotsResponse{NextToken: next}
	for _, snap := range snapshots {
		response.Entries = append(response.Entries, &csi.ListSnapshotsResponse_Entry{Snapshot: snap.proto()})
	}
	return response, nil
}

func (d *Driver) snapshot(id string) (*snapshot, error) {
	return lookup(d.state.snapshots, "snapshot", id)
}

func (s *snapshot) proto() *csi.Snapshot {
	return &csi.Snapshot{
		SnapshotId:      s.ID,
		SourceVolumeId:  s.Volume,
		GroupSnapshotId: s.Group,
		SizeBytes:       s.Size,
		CreationTime:    timestamppb.New(s.Created),
		ReadyToUse:      true,
	}
}

func checkSnapshotParameters(parameters map[string]string) error {
	for key := range parameters {
		if !strings.HasPrefix(key, parameterReserved) {
			return invalid("parameter %q is unknown; snapshots have none", key)
		}
	}
	return nil
}

// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package mock

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/klog/v2"
)

type groupServer struct {
	csi.UnimplementedGroupControllerServer
	driver *Driver
}

func (s *groupServer) GroupControllerGetCapabilities(context.Context, *csi.GroupControllerGetCapabilitiesRequest) (*csi.GroupControllerGetCapabilitiesResponse, error) {
	return &csi.GroupControllerGetCapabilitiesResponse{
		Capabilities: []*csi.GroupControllerServiceCapability{{
			Type: &csi.GroupControllerServiceCapability_Rpc{Rpc: &csi.GroupControllerServiceCapability_RPC{
				Type: csi.GroupControllerServiceCapability_RPC_CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT,
			}},
		}},
	}, nil
}

func (s *groupServer) CreateVolumeGroupSnapshot(ctx context.Context, request *csi.CreateVolumeGroupSnapshotRequest) (*csi.CreateVolumeGroupSnapshotResponse, error) {
	name := request.GetName()
	if err := checkName(name); err != nil {
		return nil, err
	}
	if err := checkSnapshotParameters(request.GetParameters()); err != nil {
		return nil, err
	}
	volumeIDs := slices.Compact(slices.Sorted(slices.Values(request.GetSourceVolumeIds())))
	if len(volumeIDs) == 0 {
		return nil, invalid("no volume to take group snapshot %q of is given", name)
	}
	state := s.driver.state
	id := state.groups.idFor(name)
	existing, err := state.groups.get(id)
	if err == nil {
		if !slices.Equal(existing.Volumes, volumeIDs) {
			return nil, status.Errorf(codes.AlreadyExists, "group snapshot %q exists as %s, of other volumes: %s", name, id, enumerate(existing.Volumes))
		}
		response, err := s.driver.groupProto(existing)
		return &csi.CreateVolumeGroupSnapshotResponse{GroupSnapshot: response}, err
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, internal(err)
	}

	g := &group{ID: id, Name: name, Volumes: volumeIDs, Created: time.Now()}
	err = s.driver.takeGroup(g)
	if err == nil {
		if err = state.groups.create(id, g, noData); err != nil {
			err = internal(err)
		}
	}
	if err != nil {
		// What cannot be removed here goes when the driver next starts.
		if err := s.driver.removeAll(g.Snapshots); err != nil {
			klog.FromContext(ctx).Error(err, "Snapshots of an unfinished group are left behind", "group", id)
		}
		return nil, err
	}
	response, err := s.driver.groupProto(g)
	return &csi.CreateVolumeGroupSnapshotResponse{GroupSnapshot: response}, err
}

// takeGroup makes a snapshot of each volume of the group.
func (d *Driver) takeGroup(g *group) error {
	for _, volumeID := range g.Volumes {
		v, err := d.volume(volumeID)
		if err != nil {
			return err
		}
		name := g.Name + "/" + volumeID
		snap := &snapshot{ID: d.state.snapshots.idFor(name), Name: name, Group: g.ID, Created: g.Created}
		if err := d.take(snap, v); err != nil {
			return err
		}
		g.Snapshots = append(g.Snapshots, snap.ID)
	}
	return nil
}

func (s *groupServer) GetVolumeGroupSnapshot(_ context.Context, request *csi.GetVolumeGroupSnapshotRequest) (*csi.GetVolumeGroupSnapshotResponse, error) {
	g, err := s.driver.group(request)
	if err != nil {
		return nil, err
	}
	response, err := s.driver.groupProto(g)
	return &csi.GetVolumeGroupSnapshotResponse{GroupSnapshot: response}, err
}

func (s *groupServer) DeleteVolumeGroupSnapshot(_ context.Context, request *csi.DeleteVolumeGroupSnapshotRequest) (*csi.DeleteVolumeGroupSnapshotResponse, error) {
	g, err := s.driver.group(request)
	if status.Code(err) == codes.NotFound {
		return &csi.DeleteVolumeGroupSnapshotResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	for _, id := range g.Snapshots {
		if err := s.driver.checkNotRestored(id); err != nil {
			return nil, err
		}
	}
	if err := s.driver.state.groups.remove(g.ID); err != nil {
		return nil, internal(err)
	}
	if err := s.driver.removeAll(g.Snapshots); err != nil {
		return nil, internal(err)
	}
	return &csi.DeleteVolumeGroupSnapshotResponse{}, nil
}

// group finds the group of a request, whose snapshots must be the group's.
func (d *Driver) group(request interface {
	GetGroupSnapshotId() string
	GetSnapshotIds() []string
}) (*group, error) {
	g, err := lookup(d.state.groups, "group snapshot", request.GetGroupSnapshotId())
	if err != nil {
		return nil, err
	}
	given := slices.Sorted(slices.Values(request.GetSnapshotIds()))
	if !slices.Equal(given, slices.Sorted(slices.Values(g.Snapshots))) {
		return nil, invalid("group snapshot %s consists of %s, not of %s", g.ID, enumerate(g.Snapshots), enumerate(given))
	}
	return g, nil
}

func (d *Driver) groupProto(g *group) (*csi.VolumeGroupSnapshot, error) {
	response := &csi.VolumeGroupSnapshot{
		GroupSnapshotId: g.ID,
		CreationTime:    timestamppb.New(g.Created),
		ReadyToUse:      true,
	}
	for _, id := range g.Snapshots {
		snap, err := d.snapshot(id)
		if err != nil {
			return nil, err
		}
		response.Snapshots = append(response.Snapshots, snap.proto())
	}
	return response, nil
}

func (d *Driver) removeAll(snapshotIDs []string) error {
	var errs []error
	for _, id := range snapshotIDs {
		errs = append(errs, d.state.snapshots.remove(id))
	}
	return errors.Join(errs...)
}

// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package mock

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

type controllerServer struct {
	csi.UnimplementedControllerServer
	driver *Driver
}

func (s *controllerServer) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	capabilities := []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		csi.ControllerServiceCapability_RPC_LIST_VOLUMES,
		csi.ControllerServiceCapability_RPC_GET_VOLUME,
		csi.ControllerServiceCapability_RPC_GET_CAPACITY,
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT,
		csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS,
		csi.ControllerServiceCapability_RPC_GET_SNAPSHOT,
		csi.ControllerServiceCapability_RPC_CLONE_VOLUME,
		csi.ControllerServiceCapability_RPC_EXPAND_VOLUME,
		csi.ControllerServiceCapability_RPC_MODIFY_VOLUME,
		csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
		csi.ControllerServiceCapability_RPC_GET_VOLUME_HEALTH,
		csi.ControllerServiceCapability_RPC_LIST_VOLUME_HEALTH,
	}
	if s.driver.config.AttachRequired {
		capabilities = append(capabilities,
			csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
			csi.ControllerServiceCapability_RPC_PUBLISH_READONLY,
			csi.ControllerServiceCapability_RPC_LIST_VOLUMES_PUBLISHED_NODES)
	}
	response := &csi.ControllerGetCapabilitiesResponse{}
	for _, capability := range capabilities {
		response.Capabilities = append(response.Capabilities, &csi.ControllerServiceCapability{
			Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: capability}},
		})
	}
	return response, nil
}

func (s *controllerServer) CreateVolume(_ context.Context, request *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	wanted, err := s.driver.wantedVolume(request)
	if err != nil {
		return nil, err
	}
	volumes := s.driver.state.volumes
	existing, err := volumes.get(wanted.ID)
	if err == nil {
		if difference := existing.differs(wanted, request.GetCapacityRange()); difference != "" {
			return nil, status.Errorf(codes.AlreadyExists, "volume %q exists as %s with %s", wanted.Name, existing.ID, difference)
		}
		return &csi.CreateVolumeResponse{Volume: existing.proto()}, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, internal(err)
	}

	content, err := s.driver.openSource(wanted, request.GetCapacityRange())
	if err != nil {
		return nil, err
	}
	if err := volumes.create(wanted.ID, wanted, func(data string) error {
		return makeContent(data, content, wanted)
	}); err != nil {
		return nil, internal(err)
	}
	return &csi.CreateVolumeResponse{Volume: wanted.proto()}, nil
}

// wantedVolume reads the request, all but the source, into the volume that it
// asks for.
func (d *Driver) wantedVolume(request *csi.CreateVolumeRequest) (*volume, error) {
	name := request.GetName()
	if err := checkName(name); err != nil {
		return nil, err
	}
	block, err := accessType(request.GetVolumeCapabilities())
	if err != nil {
		return nil, err
	}
	capacity, err := chooseCapacity(request.GetCapacityRange())
	if err != nil {
		return nil, err
	}
	hydrate, err := d.checkParameters(request.GetParameters())
	if err != nil {
		return nil, err
	}
	if err := checkMutableParameters(request.GetMutableParameters()); err != nil {
		return nil, err
	}
	topology, err := d.chooseTopology(request.GetAccessibilityRequirements())
	if err != nil {
		return nil, err
	}
	v := &volume{
		ID:         d.state.volumes.idFor(name),
		Name:       name,
		Capacity:   capacity,
		Block:      block,
		Parameters: request.GetParameters(),
		Mutable:    request.GetMutableParameters(),
		Topology:   topology,
	}
	if content := request.GetVolumeContentSource(); content != nil {
		v.Source = source{
			Snapshot: content.GetSnapshot().GetSnapshotId(),
			Volume:   content.GetVolume().GetVolumeId(),
		}
		if v.Source == (source{}) {
			return nil, invalid("volume %q has a content source that names neither a snapshot nor a volume", name)
		}
		v.HydratedAt = time.Now().Add(hydrate)
	}
	return v, nil
}

// differs says in what an existing volume is not the wanted one; "" if nothing.
func (v *volume) differs(wanted *volume, capacity *csi.CapacityRange) string {
	switch {
	case v.Capacity < capacity.GetRequiredBytes(),
		capacity.GetLimitBytes() > 0 && v.Capacity > capacity.GetLimitBytes():
		return "another capacity"
	case v.Block != wanted.Block:
		return "another access type"
	case v.Source != wanted.Source:
		return "another content source"
	case !maps.Equal(v.Parameters, wanted.Parameters):
		return "other parameters"
	case !maps.Equal(v.Topology, wanted.Topology):
		return "another topology"
	}
	return ""
}

// openSource returns where the content of the wanted volume's source is, "" if
// it has none, and grows the volume to the size of its source.
func (d *Driver) openSource(wanted *volume, capacity *csi.CapacityRange) (content string, err error) {
	var size int64
	var block bool
	switch {
	case wanted.Source.Snapshot != "":
		snap, err := d.snapshot(wanted.Source.Snapshot)
		if err != nil {
			return "", err
		}
		content, size, block = d.state.snapshots.data(snap.ID), snap.Size, snap.Block
	case wanted.Source.Volume != "":
		origin, err := d.volume(wanted.Source.Volume)
		if err != nil {
			return "", err
		}
		if err := origin.checkHydrated(); err != nil {
			return "", err
		}
		content, size, block = d.state.volumes.data(origin.ID), origin.Capacity, origin.Block
	default:
		return "", nil
	}
	if block != wanted.Block {
		return "", invalid("volume %q and its source %+v differ in access type: one is a block volume, the other is not", wanted.Name, wanted.Source)
	}
	if wanted.Capacity < size {
		if capacity.GetRequiredBytes() > 0 || capacity.GetLimitBytes() > 0 {
			return "", status.Errorf(codes.OutOfRange, "volume %q would have %d bytes, less than the %d of its source %+v", wanted.Name, wanted.Capacity, size, wanted.Source)
		}
		wanted.Capacity = size
	}
	return content, nil
}

func (s *controllerServer) DeleteVolume(_ context.Context, request *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	v, err := s.driver.volume(request.GetVolumeId())
	if status.Code(err) == codes.NotFound {
		return &csi.DeleteVolumeResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	if users := v.users(); len(users) > 0 {
		return nil, status.Errorf(codes.FailedPrecondition, "volume %s is in use on %s; unpublish it first", v.ID, enumerate(users))
	}
	links, err := s.driver.links(v)
	if err != nil {
		return nil, internal(err)
	}
	if dependents := links.dependents(); len(dependents) > 0 {
		return nil, status.Errorf(codes.FailedPrecondition, "volume %s has %s, which depend on it; delete them first", v.ID, enumerate(dependents))
	}
	if err := s.driver.state.volumes.remove(v.ID); err != nil {
		return nil, internal(err)
	}
	return &csi.DeleteVolumeResponse{}, nil
}

func (s *controllerServer) ValidateVolumeCapabilities(_ context.Context, request *csi.ValidateVolumeCapabilitiesRequest) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	v, err := s.driver.volume(request.GetVolumeId())
	if err != nil {
		return nil, err
	}
	if len(request.GetVolumeCapabilities()) == 0 {
		return nil, invalid("no capability to validate for volume %s is given", v.ID)
	}
	reject := func(message string) (*csi.ValidateVolumeCapabilitiesResponse, error) {
		return &csi.ValidateVolumeCapabilitiesResponse{Message: message}, nil
	}
	for _, capability := range request.GetVolumeCapabilities() {
		if _, err := v.accessFor(capability, false); err != nil {
			return reject(status.Convert(err).Message())
		}
	}
	if len(request.GetParameters()) > 0 && !maps.Equal(request.GetParameters(), v.Parameters) {
		return reject("volume " + v.ID + " has other parameters")
	}
	if len(request.GetMutableParameters()) > 0 && !maps.Equal(request.GetMutableParameters(), v.Mutable) {
		return reject("volume " + v.ID + " has other mutable parameters")
	}
	return &csi.ValidateVolumeCapabilitiesResponse{Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
		VolumeCapabilities: request.GetVolumeCapabilities(),
		Parameters:         request.GetParameters(),
		MutableParameters:  request.GetMutableParameters(),
	}}, nil
}

func (s *controllerServer) ListVolumes(_ context.Context, request *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	volumes, err := s.driver.state.volumes.list()
	if err != nil {
		return nil, internal(err)
	}
	volumes, next, err := page(volumes, func(v *volume) string { return v.ID }, s.driver.state.volumes.validID, request)
	if err != nil {
		return nil, err
	}
	response := &csi.ListVolumesResponse{NextToken: next}
	for _, v := range volumes {
		response.Entries = append(response.Entries, &csi.ListVolumesResponse_Entry{
			Volume: v.proto(),
			Status: &csi.ListVolumesResponse_VolumeStatus{PublishedNodeIds: v.attachedNodes()},
		})
	}
	return response, nil
}

func (s *controllerServer) ControllerGetVolume(_ context.Context, request *csi.ControllerGetVolumeRequest) (*csi.ControllerGetVolumeResponse, error) {
	v, err := s.driver.volume(request.GetVolumeId())
	if err != nil {
		return nil, err
	}
	return &csi.ControllerGetVolumeResponse{
		Volume: v.proto(),
		Status: &csi.ControllerGetVolumeResponse_VolumeStatus{PublishedNodeIds: v.attachedNodes()},
	}, nil
}

func (s *controllerServer) GetCapacity(_ context.Context, request *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	if len(request.GetVolumeCapabilities()) > 0 {
		if _, err := accessType(request.GetVolumeCapabilities()); err != nil {
			return nil, err
		}
	}
	return &csi.GetCapacityResponse{
		AvailableCapacity: maxCapacity,
		MaximumVolumeSize: wrapperspb.Int64(maxCapacity),
	}, nil
}

func (s *controllerServer) ControllerExpandVolume(_ context.Context, request *csi.ControllerExpandVolumeRequest) (*csi.ControllerExpandVolumeResponse, error) {
	v, err := s.driver.volume(request.GetVolumeId())
	if err != nil {
		return nil, err
	}
	if capability := request.GetVolumeCapability(); capability != nil {
		if _, err := v.accessFor(capability, false); err != nil {
			return nil, err
		}
	}
	if request.GetCapacityRange() == nil {
		return nil, invalid("no capacity to expand volume %s to is given", v.ID)
	}
	capacity, err := chooseCapacity(request.GetCapacityRange())
	if err != nil {
		return nil, err
	}
	if limit := request.GetCapacityRange().GetLimitBytes(); limit > 0 && v.Capacity > limit {
		return nil, status.Errorf(codes.OutOfRange, "volume %s has %d bytes already, more than the limit of %d", v.ID, v.Capacity, limit)
	}
	if capacity > v.Capacity {
		if v.Block {
			if err := os.Truncate(s.driver.state.volumes.data(v.ID), capacity); err != nil {
				return nil, internal(err)
			}
		}
		v.Capacity = capacity
		if err := s.driver.saveVolume(v); err != nil {
			return nil, err
		}
	}
	return &csi.ControllerExpandVolumeResponse{CapacityBytes: v.Capacity, NodeExpansionRequired: true}, nil
}

func (s *controllerServer) ControllerModifyVolume(_ context.Context, request *csi.ControllerModifyVolumeRequest) (*csi.ControllerModifyVolumeResponse, error) {
	v, err := s.driver.volume(request.GetVolumeId())
	if err != nil {
		return nil, err
	}
	if len(request.GetMutableParameters()) == 0 {
		return nil, invalid("no parameter to modify volume %s by is given", v.ID)
	}
	if err := checkMutableParameters(request.GetMutableParameters()); err != nil {
		return nil, err
	}
	if v.Mutable == nil {
		v.Mutable = map[string]string{}
	}
	maps.Copy(v.Mutable, request.GetMutableParameters())
	if err := s.driver.saveVolume(v); err != nil {
		return nil, err
	}
	return &csi.ControllerModifyVolumeResponse{}, nil
}

func (v *volume) proto() *csi.Volume {
	p := &csi.Volume{VolumeId: v.ID, CapacityBytes: v.Capacity, AccessibleTopology: topologyProto(v.Topology)}
	switch {
	case v.Source.Snapshot != "":
		p.ContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
			Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: v.Source.Snapshot},
		}}
	case v.Source.Volume != "":
		p.ContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
			Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: v.Source.Volume},
		}}
	}
	return p
}

// hydrating says whether the content of the volume is still on its way from its
// source.
func (v *volume) hydrating() bool { return time.Now().Before(v.HydratedAt) }

// checkHydrated fails while the volume's content is still on its way.
func (v *volume) checkHydrated() error {
	if v.hydrating() {
		return status.Errorf(codes.Aborted, "volume %s is being filled from %+v until %s; try again then",
			v.ID, v.Source, v.HydratedAt.Format(time.RFC3339))
	}
	return nil
}

// users are the nodes on which the volume is in use.
func (v *volume) users() []string {
	nodes := v.attachedNodes()
	for _, u := range slices.Concat(v.Staged, v.Published) {
		nodes = append(nodes, u.Node)
	}
	sort.Strings(nodes)
	return slices.Compact(nodes)
}

// accessFor says how the volume is used by the capability, or fails where it
// cannot be used so.
func (v *volume) accessFor(capability *csi.VolumeCapability, readOnly bool) (access, error) {
	block, err := accessType([]*csi.VolumeCapability{capability})
	if err != nil {
		return access{}, err
	}
	if block != v.Block {
		return access{}, invalid("volume %s cannot be used as a %s volume", v.ID, accessTypeName(block))
	}
	mode := capability.GetAccessMode().GetMode()
	return access{
		Mode:  mode.String(),
		Block: block,
		Flags: strings.Join(capability.GetMount().GetMountFlags(), ","),
		ReadOnly: readOnly ||
			mode == csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY ||
			mode == csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY,
	}, nil
}

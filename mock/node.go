// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package mock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/containerd/continuity/fs"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

type nodeServer struct {
	csi.UnimplementedNodeServer
	driver *Driver
}

func (s *nodeServer) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	response := &csi.NodeGetCapabilitiesResponse{}
	for _, capability := range []csi.NodeServiceCapability_RPC_Type{
		csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME,
		csi.NodeServiceCapability_RPC_GET_VOLUME_STATS,
		csi.NodeServiceCapability_RPC_EXPAND_VOLUME,
		csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
		csi.NodeServiceCapability_RPC_GET_VOLUME_HEALTH,
		csi.NodeServiceCapability_RPC_GET_STORAGE_HEALTH,
	} {
		response.Capabilities = append(response.Capabilities, &csi.NodeServiceCapability{
			Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: capability}},
		})
	}
	return response, nil
}

func (s *nodeServer) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	response := &csi.NodeGetInfoResponse{
		NodeId:            s.driver.config.NodeID,
		MaxVolumesPerNode: s.driver.config.MaxVolumes,
	}
	if topology := s.driver.ownTopology(); topology != nil {
		response.AccessibleTopology = &csi.Topology{Segments: topology}
	}
	return response, nil
}

// NodeStageVolume mounts a volume at the staging path; a block volume gets a
// loop device instead.
func (s *nodeServer) NodeStageVolume(_ context.Context, request *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	d := s.driver
	if request.GetStagingTargetPath() == "" {
		return nil, invalid("no path to stage volume %q at is given", request.GetVolumeId())
	}
	v, wanted, err := s.useOf(request, false)
	if err != nil {
		return nil, err
	}
	if _, attached := v.Attached[d.config.NodeID]; d.config.AttachRequired && !attached {
		return nil, status.Errorf(codes.FailedPrecondition, "volume %s is not attached to node %s", v.ID, d.config.NodeID)
	}
	if err := v.checkHydrated(); err != nil {
		return nil, err
	}
	wanted.Path = request.GetStagingTargetPath()
	if i := slices.IndexFunc(v.Staged, s.here); i < 0 {
		if err := d.checkStagingPath(wanted.Path); err != nil {
			return nil, err
		}
		// Known before it is mounted, so that nothing is ever mounted unknown.
		v.Staged = append(v.Staged, wanted)
		if err := d.saveVolume(v); err != nil {
			return nil, err
		}
	} else if existing := v.Staged[i]; existing.Path != wanted.Path {
		return nil, status.Errorf(codes.FailedPrecondition, "volume %s is staged at %s already", v.ID, existing.Path)
	} else if existing.Access != wanted.Access {
		return nil, status.Errorf(codes.AlreadyExists, "volume %s is staged at %s in another way", v.ID, existing.Path)
	}
	if err := d.stage(v, wanted); err != nil {
		return nil, hostError(err)
	}
	return &csi.NodeStageVolumeResponse{}, nil
}

func (d *Driver) stage(v *volume, u use) error {
	content := d.state.volumes.data(v.ID)
	if v.Block {
		_, err := attachLoop(content)
		return err
	}
	if mounted, err := d.mounter.IsMountPoint(u.Path); mounted || err != nil {
		return err
	}
	return d.mounter.bind(content, u.Path, u.Access.mountFlags())
}

func (s *nodeServer) NodeUnstageVolume(_ context.Context, request *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	path := request.GetStagingTargetPath()
	if path == "" {
		return nil, invalid("no path to unstage volume %q from is given", request.GetVolumeId())
	}
	v, err := s.driver.volume(request.GetVolumeId())
	if err != nil {
		return nil, err
	}
	staged := func(u use) bool { return s.here(u) && u.Path == path }
	if !slices.ContainsFunc(v.Staged, staged) {
		// What is there now, if anything, is not this driver's to unmount.
		return &csi.NodeUnstageVolumeResponse{}, nil
	}
	if i := slices.IndexFunc(v.Published, s.here); i >= 0 {
		return nil, status.Errorf(codes.FailedPrecondition, "volume %s is still published at %s", v.ID, v.Published[i].Path)
	}
	if err := s.driver.unstage(v, path); err != nil {
		return nil, hostError(err)
	}
	v.Staged = slices.DeleteFunc(v.Staged, staged)
	if err := s.driver.saveVolume(v); err != nil {
		return nil, err
	}
	return &csi.NodeUnstageVolumeResponse{}, nil
}

// unstage leaves the staging directory itself to the CO, which made it.
func (d *Driver) unstage(v *volume, path string) error {
	if v.Block {
		return detachLoop(d.state.volumes.data(v.ID))
	}
	if mounted, err := d.mounter.IsMountPoint(path); !mounted || err != nil {
		return err
	}
	return d.mounter.Unmount(path)
}

// NodePublishVolume follows the tables in CSI's section on it.
func (s *nodeServer) NodePublishVolume(_ context.Context, request *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	d := s.driver
	if request.GetTargetPath() == "" {
		return nil, invalid("no path to publish volume %q at is given", request.GetVolumeId())
	}
	v, wanted, err := s.useOf(request, request.GetReadonly())
	if err != nil {
		return nil, err
	}
	wanted.Path = request.GetTargetPath()
	wanted.Pod = podOf(request.GetVolumeContext())
	if !slices.ContainsFunc(v.Staged, func(u use) bool { return s.here(u) && u.Path == request.GetStagingTargetPath() }) {
		return nil, status.Errorf(codes.FailedPrecondition, "volume %s is not staged at %q", v.ID, request.GetStagingTargetPath())
	}

	for _, existing := range v.Published {
		switch {
		case !s.here(existing):
		case existing.Path == wanted.Path && existing != wanted:
			return nil, status.Errorf(codes.AlreadyExists, "volume %s is published at %s in another way", v.ID, existing.Path)
		case existing.Path != wanted.Path && publishedOnce(wanted.Access.Mode):
			return nil, status.Errorf(codes.FailedPrecondition, "volume %s is published at %s, and %s allows one path only", v.ID, existing.Path, wanted.Access.Mode)
		}
	}
	if !slices.Contains(v.Published, wanted) {
		if err := d.checkTargetPath(wanted.Path, v.Block); err != nil {
			return nil, err
		}
		v.Published = append(v.Published, wanted)
		if err := d.saveVolume(v); err != nil {
			return nil, err
		}
	}
	if err := d.publish(v, wanted, request.GetStagingTargetPath()); err != nil {
		return nil, hostError(errors.Join(err, d.unpublish(v, wanted)))
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

func publishedOnce(mode string) bool {
	return !strings.HasPrefix(mode, "MULTI_NODE") && mode != csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER.String()
}

func (d *Driver) publish(v *volume, u use, stagingPath string) error {
	if mounted, err := d.mounter.IsMountPoint(u.Path); mounted || err != nil {
		return err
	}
	if err := d.logUse(OpPublish, v, u); err != nil {
		return err
	}
	origin := stagingPath
	if v.Block {
		device, err := attachLoop(d.state.volumes.data(v.ID))
		if err != nil {
			return err
		}
		origin = device
	}
	if err := makeTarget(u.Path, v.Block); err != nil {
		return err
	}
	return d.mounter.bind(origin, u.Path, u.Access.mountFlags())
}

func makeTarget(path string, block bool) error {
	if block {
		file, err := os.OpenFile(path, os.O_CREATE, 0o600)
		if err != nil {
			return err
		}
		return file.Close()
	}
	if err := os.Mkdir(path, 0o750); !errors.Is(err, os.ErrExist) {
		return err
	}
	return nil
}

func (s *nodeServer) NodeUnpublishVolume(_ context.Context, request *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	if request.GetTargetPath() == "" {
		return nil, invalid("no path to unpublish volume %q from is given", request.GetVolumeId())
	}
	v, err := s.driver.volume(request.GetVolumeId())
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(v.Published, func(u use) bool { return s.here(u) && u.Path == request.GetTargetPath() })
	if i < 0 {
		// What is there now, if anything, is not this driver's to unmount.
		return &csi.NodeUnpublishVolumeResponse{}, nil
	}
	if err := s.driver.unpublish(v, v.Published[i]); err != nil {
		return nil, hostError(err)
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

func (d *Driver) unpublish(v *volume, u use) error {
	if err := d.mounter.unmountAndRemove(u.Path); err != nil {
		return err
	}
	if err := d.logUse(OpUnpublish, v, u); err != nil {
		return err
	}
	v.Published = slices.DeleteFunc(v.Published, func(other use) bool { return other == u })
	return d.state.volumes.update(v.ID, v)
}

func (s *nodeServer) NodeExpandVolume(_ context.Context, request *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	v, err := s.usedAt(request)
	if err != nil {
		return nil, err
	}
	if capability := request.GetVolumeCapability(); capability != nil {
		if _, err := v.accessFor(capability, false); err != nil {
			return nil, err
		}
	}
	wanted := request.GetCapacityRange()
	if v.Capacity < wanted.GetRequiredBytes() || wanted.GetLimitBytes() > 0 && v.Capacity > wanted.GetLimitBytes() {
		return nil, status.Errorf(codes.OutOfRange, "volume %s has %d bytes; ControllerExpandVolume would change that", v.ID, v.Capacity)
	}
	if v.Block {
		if err := growLoop(s.driver.state.volumes.data(v.ID)); err != nil {
			return nil, hostError(err)
		}
	}
	return &csi.NodeExpandVolumeResponse{CapacityBytes: v.Capacity}, nil
}

func (s *nodeServer) NodeGetVolumeStats(ctx context.Context, request *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	v, err := s.usedAt(request)
	if err != nil {
		return nil, err
	}
	bytes := &csi.VolumeUsage{Unit: csi.VolumeUsage_BYTES, Total: v.Capacity}
	response := &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{bytes}}
	if v.Block {
		return response, nil
	}
	used, err := fs.DiskUsage(ctx, s.driver.state.volumes.data(v.ID))
	if err != nil {
		return nil, internal(err)
	}
	// Nothing keeps a pod from writing more than the volume's capacity.
	bytes.Used, bytes.Available = used.Size, max(0, v.Capacity-used.Size)
	return response, nil
}

// useOf reads what a request to stage or publish has in common: a volume and
// how this node is to use it.
func (s *nodeServer) useOf(request interface {
	GetVolumeId() string
	GetVolumeCapability() *csi.VolumeCapability
}, readOnly bool) (*volume, use, error) {
	if _, err := accessType([]*csi.VolumeCapability{request.GetVolumeCapability()}); err != nil {
		return nil, use{}, err
	}
	v, err := s.driver.volume(request.GetVolumeId())
	if err != nil {
		return nil, use{}, err
	}
	wanted, err := v.accessFor(request.GetVolumeCapability(), readOnly)
	if err != nil {
		// Where a controller says INVALID_ARGUMENT, CSI wants this from a node.
		return nil, use{}, status.Error(codes.FailedPrecondition, status.Convert(err).Message())
	}
	return v, use{Node: s.driver.config.NodeID, Access: wanted}, nil
}

// usedAt finds the volume that is staged or published at the path of a request.
func (s *nodeServer) usedAt(request interface {
	GetVolumeId() string
	GetVolumePath() string
}) (*volume, error) {
	if request.GetVolumePath() == "" {
		return nil, invalid("no path of volume %q is given", request.GetVolumeId())
	}
	v, err := s.driver.volume(request.GetVolumeId())
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(slices.Concat(v.Staged, v.Published), func(u use) bool {
		return s.here(u) && u.Path == request.GetVolumePath()
	}) {
		return nil, status.Errorf(codes.NotFound, "volume %s is not at path %q", v.ID, request.GetVolumePath())
	}
	return v, nil
}

// here says whether it is this node that uses a volume.
func (s *nodeServer) here(u use) bool { return u.Node == s.driver.config.NodeID }

// Unmount takes away every mount and loop device that a driver of this state
// directory has made, on any node ID, as after a test whose kubelet is gone.
// The volumes stay attached. It works on a driver that does not serve, but not
// after Stop.
func (d *Driver) Unmount() error {
	unlock, err := d.state.lock()
	if err != nil {
		return err
	}
	defer unlock()
	volumes, err := d.state.volumes.list()
	if err != nil {
		return err
	}
	var errs []error
	for _, v := range volumes {
		errs = append(errs, d.unmountVolume(v))
	}
	return errors.Join(errs...)
}

func (d *Driver) unmountVolume(v *volume) error {
	for _, u := range slices.Clone(v.Published) {
		if err := d.unpublish(v, u); err != nil {
			return fmt.Errorf("unpublishing: %w", err)
		}
	}
	for _, u := range v.Staged {
		if err := d.unstage(v, u.Path); err != nil {
			return fmt.Errorf("unstaging volume %s: %w", v.ID, err)
		}
	}
	v.Staged = nil
	return d.state.volumes.update(v.ID, v)
}

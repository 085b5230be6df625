// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package mock

import (
	"context"
	"fmt"
	"os"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
)

// Health is computed from what is there: whoever wants an unhealthy volume
// removes its content, or unmounts it behind the driver's back.

func (s *controllerServer) ControllerGetVolumeHealth(_ context.Context, request *csi.ControllerGetVolumeHealthRequest) (*csi.ControllerGetVolumeHealthResponse, error) {
	v, err := s.driver.volume(request.GetVolumeId())
	if err != nil {
		return nil, err
	}
	return &csi.ControllerGetVolumeHealthResponse{VolumeHealth: s.driver.health(v)}, nil
}

func (s *controllerServer) ControllerListVolumeHealth(_ context.Context, request *csi.ControllerListVolumeHealthRequest) (*csi.ControllerListVolumeHealthResponse, error) {
	volumes, err := s.driver.state.volumes.list()
	if err != nil {
		return nil, internal(err)
	}
	var unhealthy []*csi.VolumeHealth
	for _, v := range volumes {
		if health := s.driver.health(v); len(health.HealthStatuses) > 0 {
			unhealthy = append(unhealthy, health)
		}
	}
	unhealthy, next, err := page(unhealthy, (*csi.VolumeHealth).GetVolumeId, s.driver.state.volumes.validID, request)
	if err != nil {
		return nil, err
	}
	return &csi.ControllerListVolumeHealthResponse{Entries: unhealthy, NextToken: next}, nil
}

func (s *nodeServer) NodeGetVolumeHealth(_ context.Context, request *csi.NodeGetVolumeHealthRequest) (*csi.NodeGetVolumeHealthResponse, error) {
	v, err := s.driver.volume(request.GetVolumeId())
	if err != nil {
		return nil, err
	}
	health := s.driver.health(v)
	for _, u := range slices.Concat(v.Staged, v.Published) {
		// A staged block volume has no mount.
		if !s.here(u) || v.Block && slices.Contains(v.Staged, u) {
			continue
		}
		mounted, err := s.driver.mounter.IsMountPoint(u.Path)
		if err != nil {
			return nil, hostError(err)
		}
		if !mounted {
			health.HealthStatuses = append(health.HealthStatuses, &csi.VolumeHealth_VolumeHealthEntry{
				Status:  csi.VolumeHealthErrorType_INACCESSIBLE,
				Reason:  "NotMounted",
				Message: fmt.Sprintf("the mount at %s is gone", u.Path),
			})
			break // one entry for each reason
		}
	}
	return &csi.NodeGetVolumeHealthResponse{VolumeHealth: health}, nil
}

func (s *nodeServer) NodeGetStorageHealth(context.Context, *csi.NodeGetStorageHealthRequest) (*csi.NodeGetStorageHealthResponse, error) {
	response := &csi.NodeGetStorageHealthResponse{}
	if err := unix.Access(s.driver.state.dir, unix.W_OK); err != nil {
		response.BackendHealth = []*csi.NodeGetStorageHealthResponse_StorageBackendHealth{{
			Status:  csi.StorageHealthErrorType_STORAGE_UNREACHABLE,
			Reason:  "StateDirNotWritable",
			Message: fmt.Sprintf("%s: %v", s.driver.state.dir, err),
		}}
	}
	return response, nil
}

// health is what a controller can know of the volume.
func (d *Driver) health(v *volume) *csi.VolumeHealth {
	health := &csi.VolumeHealth{VolumeId: v.ID}
	if _, err := os.Stat(d.state.volumes.data(v.ID)); err != nil {
		health.HealthStatuses = append(health.HealthStatuses, &csi.VolumeHealth_VolumeHealthEntry{
			Status:  csi.VolumeHealthErrorType_DATA_LOSS,
			Reason:  "ContentMissing",
			Message: err.Error(),
		})
	}
	if v.hydrating() {
		health.HealthStatuses = append(health.HealthStatuses, &csi.VolumeHealth_VolumeHealthEntry{
			Status:  csi.VolumeHealthErrorType_DEGRADED,
			Reason:  "Hydrating",
			Message: "the content is on its way from the volume's source",
		})
	}
	return health
}

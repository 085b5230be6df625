// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package mock

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// registerNode makes the driver's own node known to every controller that
// shares the state directory.
func (d *Driver) registerNode() error {
	if d.config.NodeID == "" {
		return nil
	}
	unlock, err := d.state.lock()
	if err != nil {
		return err
	}
	defer unlock()
	self := &node{ID: d.config.NodeID, MaxVolumes: d.config.MaxVolumes, Topology: d.ownTopology()}
	id := d.state.nodes.idFor(self.ID)
	if _, err := d.state.nodes.get(id); err == nil {
		return d.state.nodes.update(id, self)
	}
	return d.state.nodes.create(id, self, noData)
}

func (s *controllerServer) ControllerPublishVolume(_ context.Context, request *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
	if !s.driver.config.AttachRequired {
		return nil, status.Error(codes.Unimplemented, "this driver's volumes need no attaching")
	}
	if request.GetNodeId() == "" {
		return nil, invalid("no node to attach volume %q to is given", request.GetVolumeId())
	}
	if request.GetVolumeCapability() == nil {
		return nil, invalid("no capability to attach volume %q with is given", request.GetVolumeId())
	}
	v, err := s.driver.volume(request.GetVolumeId())
	if err != nil {
		return nil, err
	}
	nodes := s.driver.state.nodes
	target, err := lookup(nodes, "node", nodes.idFor(request.GetNodeId()))
	if status.Code(err) == codes.NotFound {
		return nil, status.Errorf(codes.NotFound, "node %q does not exist", request.GetNodeId())
	}
	if err != nil {
		return nil, err
	}
	wanted, err := v.accessFor(request.GetVolumeCapability(), request.GetReadonly())
	if err != nil {
		return nil, err
	}

	if existing, attached := v.Attached[target.ID]; attached {
		if existing != wanted {
			return nil, status.Errorf(codes.AlreadyExists, "volume %s is attached to node %s in another way", v.ID, target.ID)
		}
		return &csi.ControllerPublishVolumeResponse{}, nil
	}
	if others := v.attachedNodes(); len(others) > 0 && !strings.HasPrefix(wanted.Mode, "MULTI_NODE") {
		return nil, status.Errorf(codes.FailedPrecondition, "volume %s is attached to node %s", v.ID, enumerate(others))
	}
	if err := s.driver.checkRoom(target); err != nil {
		return nil, err
	}
	if v.Attached == nil {
		v.Attached = map[string]access{}
	}
	v.Attached[target.ID] = wanted
	if err := s.driver.saveVolume(v); err != nil {
		return nil, err
	}
	return &csi.ControllerPublishVolumeResponse{}, nil
}

func (s *controllerServer) ControllerUnpublishVolume(_ context.Context, request *csi.ControllerUnpublishVolumeRequest) (*csi.ControllerUnpublishVolumeResponse, error) {
	if !s.driver.config.AttachRequired {
		return nil, status.Error(codes.Unimplemented, "this driver's volumes need no attaching")
	}
	v, err := s.driver.volume(request.GetVolumeId())
	if status.Code(err) == codes.NotFound {
		// A volume cannot be deleted while it is attached.
		return &csi.ControllerUnpublishVolumeResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	// A volume that is still staged is detached all the same: this is how a CO
	// takes it away from a node that is dead.
	if request.GetNodeId() == "" {
		clear(v.Attached)
	} else {
		delete(v.Attached, request.GetNodeId())
	}
	if err := s.driver.saveVolume(v); err != nil {
		return nil, err
	}
	return &csi.ControllerUnpublishVolumeResponse{}, nil
}

// checkRoom fails where no other volume can be attached to the node.
func (d *Driver) checkRoom(n *node) error {
	if n.MaxVolumes == 0 {
		return nil
	}
	volumes, err := d.state.volumes.list()
	if err != nil {
		return internal(err)
	}
	var attached int64
	for _, v := range volumes {
		if _, ok := v.Attached[n.ID]; ok {
			attached++
		}
	}
	if attached >= n.MaxVolumes {
		return status.Errorf(codes.ResourceExhausted, "node %s has %d volumes attached, which is all it can have", n.ID, attached)
	}
	return nil
}

func (v *volume) attachedNodes() []string { return slices.Sorted(maps.Keys(v.Attached)) }

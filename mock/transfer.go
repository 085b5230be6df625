// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package mock

import (
	"context"
	"fmt"
	"path/filepath"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"

	"github.com/csi-transfer/csi-transfer/pkg/driver"
	"github.com/csi-transfer/csi-transfer/pkg/driver/transferpb"
)

// maxBlockers is the contract's limit on ValidateVolumeResponse.blockers.
const maxBlockers = 100

// Owner is the claim that a volume belongs to, as SetOwner last said.
type Owner struct {
	Namespace, Name, UID string
}

type transferServer struct {
	transferpb.UnimplementedTransferServer
	driver *Driver
}

func (s *transferServer) GetCapabilities(context.Context, *transferpb.GetCapabilitiesRequest) (*transferpb.GetCapabilitiesResponse, error) {
	return &transferpb.GetCapabilitiesResponse{
		Capabilities: []transferpb.Capability{
			transferpb.Capability_CAPABILITY_VALIDATE_VOLUME,
			transferpb.Capability_CAPABILITY_SET_OWNER,
		},
		SnapshotLinkage: map[driver.Linkage]transferpb.SnapshotLinkage{
			driver.LinkageNone:      transferpb.SnapshotLinkage_SNAPSHOT_LINKAGE_NONE,
			driver.LinkageSnapshots: transferpb.SnapshotLinkage_SNAPSHOT_LINKAGE_SNAPSHOTS,
			driver.LinkageChain:     transferpb.SnapshotLinkage_SNAPSHOT_LINKAGE_CHAIN,
		}[s.driver.config.Linkage],
	}, nil
}

// ValidateVolume confirms a volume that nothing blocks: this driver knows all
// there is to know about it.
func (s *transferServer) ValidateVolume(_ context.Context, request *transferpb.ValidateVolumeRequest) (*transferpb.ValidateVolumeResponse, error) {
	v, err := s.transferred(request)
	if err != nil {
		return nil, err
	}
	blockers, err := s.driver.blockers(v)
	if err != nil {
		return nil, internal(err)
	}
	return &transferpb.ValidateVolumeResponse{
		Confirmed: len(blockers) == 0,
		Blockers:  blockers[:min(len(blockers), maxBlockers)],
	}, nil
}

func (d *Driver) blockers(v *volume) ([]*transferpb.Blocker, error) {
	var blockers []*transferpb.Blocker
	block := func(kind transferpb.Blocker_Type, id, format string, args ...any) {
		blockers = append(blockers, &transferpb.Blocker{Type: kind, Id: id, Message: fmt.Sprintf(format, args...)})
	}
	for _, nodeID := range v.users() {
		block(transferpb.Blocker_TYPE_PUBLISHED, nodeID, "The volume is in use on node %s; end what uses it.", nodeID)
	}
	if v.hydrating() {
		block(transferpb.Blocker_TYPE_HYDRATING, "", "The volume's content is on its way from its source; wait for it.")
	}
	links, err := d.links(v)
	if err != nil {
		return nil, err
	}
	for _, link := range links {
		switch link.kind {
		case transferpb.Blocker_TYPE_SNAPSHOT:
			block(link.kind, link.id, "Snapshot %s depends on the volume; delete it.", link.id)
		case transferpb.Blocker_TYPE_DESCENDANT:
			block(link.kind, link.id, "Volume %s is a clone that depends on the volume; delete it.", link.id)
		case transferpb.Blocker_TYPE_ANCESTOR:
			block(link.kind, link.id, "The volume depends on %s, from which it was made; copy its content to a new volume.", link.id)
		}
	}
	return blockers, nil
}

// SetOwner takes the caller's word for who owns the volume so far: a claim may
// have got it without a transfer, from an administrator.
func (s *transferServer) SetOwner(ctx context.Context, request *transferpb.SetOwnerRequest) (*transferpb.SetOwnerResponse, error) {
	v, err := s.transferred(request)
	if err != nil {
		return nil, err
	}
	to := Owner{Namespace: request.GetTo().GetNamespace(), Name: request.GetTo().GetName(), UID: request.GetTo().GetUid()}
	if v.Owner == to {
		return &transferpb.SetOwnerResponse{}, nil
	}
	klog.FromContext(ctx).Info("Volume changes hands", "volume", v.ID, "from", v.Owner, "to", to, "transfer", request.GetTransferId())
	v.Owner = to
	if err := s.driver.saveVolume(v); err != nil {
		return nil, err
	}
	return &transferpb.SetOwnerResponse{}, nil
}

// transferred checks what the requests have in common and finds their volume.
func (s *transferServer) transferred(request interface {
	GetVolumeId() string
	GetFrom() *transferpb.Owner
	GetTo() *transferpb.Owner
	GetTransferId() string
	GetSecrets() map[string]string
}) (*volume, error) {
	for side, owner := range map[string]*transferpb.Owner{"from": request.GetFrom(), "to": request.GetTo()} {
		if owner.GetNamespace() == "" || owner.GetName() == "" || owner.GetUid() == "" {
			return nil, invalid("volume %q: owner %q lacks a namespace, name or uid", request.GetVolumeId(), side)
		}
	}
	if request.GetTransferId() == "" {
		return nil, invalid("volume %q: no transfer ID is given", request.GetVolumeId())
	}
	if token := s.driver.config.TransferToken; token != "" && request.GetSecrets()["token"] != token {
		return nil, status.Errorf(codes.Unauthenticated, "volume %q: the secrets lack the right token", request.GetVolumeId())
	}
	return s.driver.volume(request.GetVolumeId())
}

// ReadOwner returns the owner of a volume that the state directory of a driver
// records, also while a driver runs. It is empty before the first SetOwner. It
// fails with fs.ErrNotExist where there is no such volume.
func ReadOwner(stateDir, volumeID string) (Owner, error) {
	volumes := newCollection[volume](&state{dir: stateDir}, "volumes", "vol-")
	v, err := volumes.get(volumeID)
	if err != nil {
		return Owner{}, fmt.Errorf("volume %q in %s: %w", volumeID, filepath.Clean(stateDir), err)
	}
	return v.Owner, nil
}

// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package mock

import (
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// topologyKey is the one segment of a topology. Its value is a node's ID.
func (d *Driver) topologyKey() string { return "topology." + d.config.DriverName + "/node" }

// ownTopology is where the driver's own node is.
func (d *Driver) ownTopology() map[string]string {
	if !d.config.Topology || d.config.NodeID == "" {
		return nil
	}
	return map[string]string{d.topologyKey(): d.config.NodeID}
}

// chooseTopology says where a volume goes: to the first node that
// the request prefers or allows, else to the driver's own.
func (d *Driver) chooseTopology(wanted *csi.TopologyRequirement) (map[string]string, error) {
	if !d.config.Topology {
		return nil, nil
	}
	terms := slices.Concat(wanted.GetPreferred(), wanted.GetRequisite())
	if len(terms) == 0 {
		return d.ownTopology(), nil
	}
	for _, term := range terms {
		if nodeID := term.GetSegments()[d.topologyKey()]; nodeID != "" {
			return map[string]string{d.topologyKey(): nodeID}, nil
		}
	}
	return nil, status.Errorf(codes.ResourceExhausted, "no topology that is asked for has the segment %s", d.topologyKey())
}

func topologyProto(segments map[string]string) []*csi.Topology {
	if segments == nil {
		return nil
	}
	return []*csi.Topology{{Segments: segments}}
}

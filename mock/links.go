// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package mock

import (
	"errors"
	"io/fs"

	"github.com/csi-transfer/csi-transfer/pkg/driver"
	"github.com/csi-transfer/csi-transfer/pkg/driver/transferpb"
)

// links are what a volume is tied to under the driver's linkage.
type links []link

type link struct {
	kind transferpb.Blocker_Type
	id   string
}

// links finds what the volume is tied to.
func (d *Driver) links(v *volume) (links, error) {
	var found links
	if d.config.Linkage == driver.LinkageSnapshots || d.config.Linkage == driver.LinkageChain {
		snapshots, err := d.state.snapshots.list()
		if err != nil {
			return nil, err
		}
		for _, snap := range snapshots {
			if snap.Volume == v.ID {
				found = append(found, link{transferpb.Blocker_TYPE_SNAPSHOT, snap.ID})
			}
		}
	}
	if d.config.Linkage != driver.LinkageChain {
		return found, nil
	}
	clones, err := d.madeFrom(source{Volume: v.ID})
	if err != nil {
		return nil, err
	}
	for _, id := range clones {
		found = append(found, link{transferpb.Blocker_TYPE_DESCENDANT, id})
	}
	ancestor, err := d.ancestor(v)
	if err != nil || ancestor == "" {
		return found, err
	}
	return append(found, link{transferpb.Blocker_TYPE_ANCESTOR, ancestor}), nil
}

// dependents are what cannot be without the volume.
func (l links) dependents() []string {
	var ids []string
	for _, link := range l {
		if link.kind != transferpb.Blocker_TYPE_ANCESTOR {
			ids = append(ids, link.id)
		}
	}
	return ids
}

// ancestor is what the volume was made from. It may be gone by now, where the
// linkage was another when it was deleted.
func (d *Driver) ancestor(v *volume) (id string, err error) {
	switch {
	case v.Source.Snapshot != "":
		id = v.Source.Snapshot
		_, err = d.state.snapshots.get(id)
	case v.Source.Volume != "":
		id = v.Source.Volume
		_, err = d.state.volumes.get(id)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return id, err
}

// restored are the volumes that tie a snapshot: those made from it, where the
// linkage is a chain.
func (d *Driver) restored(snapshotID string) ([]string, error) {
	if d.config.Linkage != driver.LinkageChain {
		return nil, nil
	}
	return d.madeFrom(source{Snapshot: snapshotID})
}

func (d *Driver) madeFrom(origin source) ([]string, error) {
	volumes, err := d.state.volumes.list()
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, v := range volumes {
		if v.Source == origin {
			ids = append(ids, v.ID)
		}
	}
	return ids, nil
}

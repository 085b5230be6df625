// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	. "github.com/onsi/ginkgo/v2"

	"github.com/csi-transfer/csi-transfer/pkg/driver"
)

// A thing is a volume or a snapshot that has something to do with a volume that
// moves.
type thing struct {
	what string
	// remove deletes it; use fails where it is not there any more.
	remove, use func() error
}

func (s *suite) volumeThing(what string, v *csi.Volume) thing {
	return thing{
		what:   fmt.Sprintf("%s %s", what, v.GetVolumeId()),
		remove: func() error { return s.deleteVolume(v) },
		use:    func() error { return s.find(v) },
	}
}

func (s *suite) snapshotThing(snap *csi.Snapshot) thing {
	return thing{
		what:   "snapshot " + snap.GetSnapshotId(),
		remove: func() error { return s.deleteSnapshot(snap) },
		use: func() error {
			v, err := s.restore(snap)
			if err != nil {
				return err
			}
			return s.deleteVolume(v)
		},
	}
}

const heldBack = "by the driver's word this volume is not transferred"

// linkage tests the one promise that matters: what would be transferred, after
// all that the driver says, is independent of what stays behind. What the driver
// holds back needs no test.
func (s *suite) linkage() {
	for _, relation := range []struct {
		text string
		// make returns a volume that is to move and what is to stay behind.
		// snapshots is true where the volume has some.
		make      func() (moves *csi.Volume, stays thing)
		snapshots bool
	}{
		{"a volume with a snapshot", func() (*csi.Volume, thing) {
			v := s.newVolume()
			return v, s.snapshotThing(s.snapshotOf(v))
		}, true},
		{"a volume with a clone", func() (*csi.Volume, thing) {
			v := s.newVolume()
			return v, s.volumeThing("clone", s.cloneOf(v))
		}, false},
		{"a clone", func() (*csi.Volume, thing) {
			v := s.newVolume()
			return s.cloneOf(v), s.volumeThing("source volume", v)
		}, false},
		{"a restored volume", func() (*csi.Volume, thing) {
			snap := s.snapshotOf(s.newVolume())
			return s.restored(snap), s.snapshotThing(snap)
		}, false},
	} {
		Context(relation.text, func() {
			It("can be deleted before what stays behind", func() {
				v, stays := relation.make()
				skipUnless(s.transferable(v, relation.snapshots), heldBack)
				independent(s.volumeThing("the volume", v), stays)
			})
			It("outlives what stays behind", func() {
				v, stays := relation.make()
				skipUnless(s.transferable(v, relation.snapshots), heldBack)
				independent(stays, s.volumeThing("the volume", v))
			})
		})
	}

	It("ListSnapshots finds the snapshots of a volume, and no others", func() {
		s.needs(csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS)
		v, stranger := s.newVolume(), s.newVolume()
		var want []string
		for range 3 {
			want = append(want, s.snapshotOf(v).GetSnapshotId())
		}
		s.snapshotOf(stranger)
		slices.Sort(want)
		got, _, err := s.driver.Snapshots(background, v.GetVolumeId())
		must(err, "asking for the snapshots of one volume")
		mustHold(slices.Equal(got, want), "volume %s has the snapshots %v, ListSnapshots finds %v", v.GetVolumeId(), want, got)

		paged := s.pages(v.GetVolumeId(), len(want))
		mustHold(slices.Equal(paged, want), "volume %s has the snapshots %v, ListSnapshots in pages of one finds %v", v.GetVolumeId(), want, paged)
	})

	It("gives a new claim with the name of the old one a volume of its own", func() {
		request := s.volumeRequest()
		request.Parameters = withClaim(request.GetParameters(), giver)
		answer, err := s.CreateVolume(background, request)
		if err != nil {
			Skip("the driver does not take the claim's name: " + err.Error())
		}
		again := s.volumeRequest()
		again.Parameters = request.GetParameters()
		second := s.MustCreateVolume(background, again).GetVolume()
		mustHold(answer.GetVolume().GetVolumeId() != second.GetVolumeId(),
			"two volumes of different names, made for claims of one name, are both %s: the giver would get the receiver's data", second.GetVolumeId())
	})
}

// transferable reports whether the sidecar would transfer the volume, after
// what the driver says of itself and of the volume.
func (s *suite) transferable(v *csi.Volume, snapshots bool) bool {
	GinkgoHelper()
	verdict := s.validate(v, giver, receiver)
	switch linkage := s.driver.Info().Linkage; {
	case len(verdict.Blockers) > 0:
		return false
	case verdict.Confirmed:
		return true
	default:
		return linkage == driver.LinkageNone || linkage == driver.LinkageSnapshots && !snapshots
	}
}

// independent deletes two things that the driver says are independent.
func independent(first, second thing) {
	GinkgoHelper()
	must(first.remove(), "the volume can be transferred by the driver's word, but deleting %s while there is %s", first.what, second.what)
	must(second.use(), "the volume can be transferred by the driver's word, but after deleting %s, using %s", first.what, second.what)
	must(second.remove(), "deleting %s, after %s was deleted", second.what, first.what)
}

// pages lists the snapshots of a volume one by one, and gives up where there is
// no end.
func (s *suite) pages(volumeID string, most int) []string {
	GinkgoHelper()
	var ids []string
	request := &csi.ListSnapshotsRequest{SourceVolumeId: volumeID, MaxEntries: 1, Secrets: s.sc.Secrets.ListSnapshotsSecret}
	for range most + 1 {
		answer, err := s.ListSnapshots(background, request)
		must(err, "asking for the snapshots of one volume, page by page")
		for _, entry := range answer.GetEntries() {
			ids = append(ids, entry.GetSnapshot().GetSnapshotId())
		}
		if request.StartingToken = answer.GetNextToken(); request.StartingToken == "" {
			break
		}
	}
	slices.Sort(ids)
	return ids
}

// withClaim adds what csi-provisioner says of the claim with --extra-create-metadata.
func withClaim(parameters map[string]string, claim driver.Owner) map[string]string {
	all := map[string]string{"csi.storage.k8s.io/pvc/namespace": claim.Namespace, "csi.storage.k8s.io/pvc/name": claim.Name}
	for key, value := range parameters {
		all[key] = value
	}
	return all
}

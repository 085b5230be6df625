// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"reflect"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	. "github.com/onsi/ginkgo/v2"
	"google.golang.org/grpc/codes"

	"github.com/csi-transfer/csi-transfer/pkg/driver"
	"github.com/csi-transfer/csi-transfer/pkg/driver/transferpb"
)

// A request is what ValidateVolume and SetOwner have in common.
type request struct {
	volumeID   string
	from, to   *transferpb.Owner
	transferID string
}

func (r request) validate() *transferpb.ValidateVolumeRequest {
	return &transferpb.ValidateVolumeRequest{VolumeId: r.volumeID, From: r.from, To: r.to, TransferId: r.transferID, Secrets: Secrets}
}

func (r request) setOwner() *transferpb.SetOwnerRequest {
	return &transferpb.SetOwnerRequest{VolumeId: r.volumeID, From: r.from, To: r.to, TransferId: r.transferID, Secrets: Secrets}
}

func (s *suite) request(volumeID string) request {
	owner := func(o driver.Owner) *transferpb.Owner {
		return &transferpb.Owner{Namespace: o.Namespace, Name: o.Name, Uid: string(o.UID)}
	}
	return request{volumeID: volumeID, from: owner(giver), to: owner(receiver), transferID: sanity.PseudoUUID()}
}

// incomplete are requests that lack a required field.
var incomplete = []struct {
	without string
	drop    func(*request)
}{
	{"volume_id", func(r *request) { r.volumeID = "" }},
	{"from", func(r *request) { r.from = nil }},
	{"from.namespace", func(r *request) { r.from.Namespace = "" }},
	{"from.name", func(r *request) { r.from.Name = "" }},
	{"from.uid", func(r *request) { r.from.Uid = "" }},
	{"to", func(r *request) { r.to = nil }},
	{"to.namespace", func(r *request) { r.to.Namespace = "" }},
	{"to.name", func(r *request) { r.to.Name = "" }},
	{"to.uid", func(r *request) { r.to.Uid = "" }},
	{"transfer_id", func(r *request) { r.transferID = "" }},
}

// refusesBadRequests are the specs that both calls about a volume share.
func (s *suite) refusesBadRequests(call func(request) error) {
	It("refuses a request that lacks a required field", func() {
		v := s.newVolume()
		for _, i := range incomplete {
			r := s.request(v.GetVolumeId())
			i.drop(&r)
			mustBe(codes.InvalidArgument, call(r), "a request without %s", i.without)
		}
	})

	It("does not know a volume that does not exist", func() {
		id := s.sc.Config.IDGen.GenerateUniqueValidVolumeID()
		mustBe(codes.NotFound, call(s.request(id)), "a request for volume %s, which does not exist", id)
	})
}

func (s *suite) validateVolume() {
	s.refusesBadRequests(func(r request) error {
		_, err := s.transfer.ValidateVolume(background, r.validate())
		return err
	})

	It("has nothing against a new volume", func() {
		s.mustBeFree(s.newVolume(), giver, receiver, "nobody uses the volume, and it is linked to nothing")
	})

	It("gives the same answer while nothing changes", func() {
		v := s.newVolume()
		s.mustStay(s.validate(v, giver, receiver), v, giver, receiver, "nothing has changed")
	})

	It("changes nothing", func() {
		v := s.newVolume()
		before := s.validate(v, giver, receiver)
		s.mustStay(before, v, giver, other, "a transfer to another claim was only asked about before")
		must(s.find(v), "looking for a volume that a transfer was only asked about")
	})

	It("does not confirm a volume that is published to a node", func() {
		s.needs(csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME)
		skipUnless(s.here.GetNodeId() != "", "there is no Node service at the address")
		v := s.newVolume()
		s.MustControllerPublishVolume(background, sanity.MakeControllerPublishVolumeReq(s.sc, v.GetVolumeId(), s.here.GetNodeId()))
		mustHold(!s.validate(v, giver, receiver).Confirmed,
			"volume %s is published to node %s, the driver confirms that its owner cannot reach it any more", v.GetVolumeId(), s.here.GetNodeId())
	})

	It("does not mind what other volumes are linked to", func() {
		v := s.newVolume()
		s.snapshotOf(s.newVolume())
		s.mustBeFree(v, giver, receiver, "only another volume has a snapshot")
	})

	It("calls a snapshot that blocks by its ID, until it is deleted", func() {
		v := s.newVolume()
		snap := s.snapshotOf(v)
		for _, b := range s.validate(v, giver, receiver).Blockers {
			mustHold(b.Type == driver.BlockerSnapshot, "volume %s has a snapshot and nothing else, the driver names a blocker of type %s: %s %s", v.GetVolumeId(), b.Type, b.ID, b.Message)
			mustHold(b.ID == snap.GetSnapshotId(), "the only snapshot of volume %s is %s, the driver calls it %q", v.GetVolumeId(), snap.GetSnapshotId(), b.ID)
		}
		must(s.deleteSnapshot(snap), "deleting the only snapshot of volume %s", v.GetVolumeId())
		s.mustBeFree(v, giver, receiver, "its only snapshot was deleted")
	})
}

// mustBeFree fails where the driver has something against a transfer.
func (s *suite) mustBeFree(v *csi.Volume, from, to driver.Owner, why string) {
	GinkgoHelper()
	verdict := s.validate(v, from, to)
	mustHold(len(verdict.Blockers) == 0, "%s, the driver names blockers for volume %s: %v", why, v.GetVolumeId(), verdict.Blockers)
}

// mustStay fails where the driver's verdict is not what it was.
func (s *suite) mustStay(before driver.Verdict, v *csi.Volume, from, to driver.Owner, why string) {
	GinkgoHelper()
	for range 3 {
		now := s.validate(v, from, to)
		mustHold(reflect.DeepEqual(before, now), "%s, the driver's verdict on volume %s was %+v and is now %+v", why, v.GetVolumeId(), before, now)
	}
}

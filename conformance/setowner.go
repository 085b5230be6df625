// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"os"
	"path/filepath"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	. "github.com/onsi/ginkgo/v2"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/csi-transfer/csi-transfer/pkg/driver"
)

func (s *suite) setOwner() {
	s.refusesBadRequests(func(r request) error {
		_, err := s.transfer.SetOwner(background, r.setOwner())
		return err
	})

	It("can be called again", func() {
		move := onItsWay(s.newVolume(), giver, receiver)
		for range 3 {
			must(s.driver.SetOwner(background, move), "setting the same owner in the same transfer again")
		}
	})

	It("can be called twice at once", func() {
		move := onItsWay(s.newVolume(), giver, receiver)
		errs := make([]error, 4)
		var calls sync.WaitGroup
		for i := range errs {
			calls.Go(func() { errs[i] = s.driver.SetOwner(background, move) })
		}
		calls.Wait()
		for _, err := range errs {
			must(err, "setting the same owner in several calls at once")
		}
	})

	It("is undone with the sides swapped", func() {
		v := s.newVolume()
		before := s.validate(v, giver, receiver)
		move := onItsWay(v, giver, receiver)
		must(s.driver.SetOwner(background, move), "setting the owner")
		for range 2 {
			must(s.driver.SetOwner(background, swapped(move)), "undoing it")
		}
		s.mustStay(before, v, giver, receiver, "the volume was given and taken back")
		must(s.driver.SetOwner(background, onItsWay(v, giver, other)), "setting another owner in a later transfer")
	})

	It("can be undone before it was done", func() {
		v := s.newVolume()
		before := s.validate(v, giver, receiver)
		must(s.driver.SetOwner(background, swapped(onItsWay(v, giver, receiver))), "undoing what never reached the driver")
		s.mustStay(before, v, giver, receiver, "nothing was done")
	})

	It("leaves the volume's ID, context and capacity alone", func() {
		s.needs(csi.ControllerServiceCapability_RPC_GET_VOLUME)
		v := s.newVolume()
		read := func() *csi.Volume {
			GinkgoHelper()
			answer, err := s.ControllerGetVolume(background, &csi.ControllerGetVolumeRequest{VolumeId: v.GetVolumeId()})
			must(err, "reading the volume")
			return answer.GetVolume()
		}
		before := read()
		must(s.driver.SetOwner(background, onItsWay(v, giver, receiver)), "setting the owner")
		after := read()
		mustHold(proto.Equal(before, after), "the volume was {%v} and is now {%v}", before, after)
	})

	It("keeps the data when the volume goes over, and when it comes back", func() {
		skipUnless(s.here.GetNodeId() != "", "there is no Node service at the address")
		v := s.newVolume()
		move := onItsWay(v, giver, receiver)
		written := []byte("what the giver wrote")
		s.withContent(v, func(path string) { must(os.WriteFile(path, written, 0o600), "writing to the volume") })
		mustRead := func(when string) {
			GinkgoHelper()
			s.withContent(v, func(path string) {
				GinkgoHelper()
				content, err := os.ReadFile(path)
				must(err, "%s, reading what was written before", when)
				mustHold(bytes.HasPrefix(content, written), "%s, the volume does not hold what was written before", when)
			})
		}
		must(s.driver.SetOwner(background, move), "setting the owner")
		must(s.driver.SetOwner(background, swapped(move)), "undoing it")
		mustRead("after the volume came back")
		must(s.driver.SetOwner(background, move), "setting the owner")
		mustRead("after the volume went over")
	})

	It("makes the volume one of the new owner's like any other", func() {
		v := s.newVolume()
		must(s.driver.SetOwner(background, onItsWay(v, giver, receiver)), "setting the owner")
		if s.has(csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT) {
			must(s.deleteSnapshot(s.snapshotOf(v)), "deleting the snapshot of a transferred volume")
		}
		if s.has(csi.ControllerServiceCapability_RPC_CLONE_VOLUME) {
			must(s.deleteVolume(s.cloneOf(v)), "deleting the clone of a transferred volume")
		}
		if s.has(csi.ControllerServiceCapability_RPC_EXPAND_VOLUME) {
			_, err := s.ControllerExpandVolume(background, sanity.MakeExpandVolumeReq(s.sc, v.GetVolumeId()))
			must(err, "expanding a transferred volume")
		}
		s.mustBeFree(v, receiver, giver, "the volume is to be given back")
		must(s.deleteVolume(v), "deleting a transferred volume")
		mustBe(codes.NotFound, s.find(v), "looking for volume %s, which was transferred and then deleted", v.GetVolumeId())
	})
}

func swapped(move driver.Volume) driver.Volume {
	move.From, move.To = move.To, move.From
	return move
}

// withContent publishes the volume on this node for as long as use runs, which
// gets the path of a file on it, or of its device.
func (s *suite) withContent(v *csi.Volume, use func(path string)) {
	GinkgoHelper()
	capability := sanity.TestVolumeCapabilityWithAccessType(s.sc, csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER)
	id, node, secrets := v.GetVolumeId(), s.here.GetNodeId(), s.sc.Secrets
	var published map[string]string
	if s.has(csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME) {
		request := sanity.MakeControllerPublishVolumeReq(s.sc, id, node)
		request.VolumeContext = v.GetVolumeContext()
		published = s.MustControllerPublishVolume(background, request).GetPublishContext()
	}
	staging := ""
	if s.stages() {
		staging = s.sc.StagingPath
		_, err := s.NodeStageVolume(background, &csi.NodeStageVolumeRequest{
			VolumeId: id, VolumeContext: v.GetVolumeContext(), PublishContext: published,
			StagingTargetPath: staging, VolumeCapability: capability, Secrets: secrets.NodeStageVolumeSecret,
		})
		must(err, "staging the volume")
	}
	// The name is what sanity.Resources unpublishes when a spec fails.
	target := filepath.Join(s.sc.TargetPath, "target")
	_, err := s.NodePublishVolume(background, &csi.NodePublishVolumeRequest{
		VolumeId: id, VolumeContext: v.GetVolumeContext(), PublishContext: published,
		StagingTargetPath: staging, TargetPath: target, VolumeCapability: capability, Secrets: secrets.NodePublishVolumeSecret,
	})
	must(err, "publishing the volume on node %s", node)

	path := target
	if capability.GetMount() != nil {
		path = filepath.Join(target, "csi-transfer")
	}
	use(path)

	_, err = s.NodeUnpublishVolume(background, &csi.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: target})
	must(err, "unpublishing the volume from node %s", node)
	if staging != "" {
		_, err := s.NodeUnstageVolume(background, &csi.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: staging})
		must(err, "unstaging the volume")
	}
	if s.has(csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME) {
		_, err := s.ControllerUnpublishVolume(background, sanity.MakeControllerUnpublishVolumeReq(s.sc, id, node))
		must(err, "unpublishing the volume")
	}
}

func (s *suite) stages() bool {
	GinkgoHelper()
	answer, err := s.NodeGetCapabilities(background, &csi.NodeGetCapabilitiesRequest{})
	must(err, "asking node %s what it can do", s.here.GetNodeId())
	for _, c := range answer.GetCapabilities() {
		if c.GetRpc().GetType() == csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME {
			return true
		}
	}
	return false
}

// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"github.com/kubernetes-csi/csi-test/v5/utils"
	. "github.com/onsi/ginkgo/v2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/csi-transfer/csi-transfer/pkg/driver"
	"github.com/csi-transfer/csi-transfer/pkg/driver/transferpb"
)

// suite is the driver under test and what a spec has made there.
type suite struct {
	sc *sanity.TestContext

	address          string
	controller, node *grpc.ClientConn

	// driver is what the sidecar would see of it; where that fails, driverErr
	// says why.
	driver    *driver.Driver
	driverErr error

	transfer     transferpb.TransferClient
	capabilities []csi.ControllerServiceCapability_RPC_Type
	// hangs is true once a call took longer than Timeout.
	hangs atomic.Bool
	// here is the node that serves the Node service, with an empty ID where
	// there is none.
	here *csi.NodeGetInfoResponse

	// resources are deleted at the end of the spec.
	*sanity.Resources
}

// connect asks the driver at the address what it is, once, and prepares a spec.
func (s *suite) connect() {
	config := s.sc.Config
	if address := config.ControllerAddress + " " + config.Address; address != s.address {
		s.address = address
		s.node = s.dial(config.Address, config.DialOptions)
		s.controller = s.node
		if config.ControllerAddress != "" {
			s.controller = s.dial(config.ControllerAddress, config.ControllerDialOptions)
		}
		s.transfer = transferpb.NewTransferClient(s.controller)
		s.ask()
	}
	s.Resources = &sanity.Resources{
		Context:          s.sc,
		ControllerClient: csi.NewControllerClient(s.controller),
	}
	if s.here.GetNodeId() != "" {
		s.NodeClient = csi.NewNodeClient(s.node)
	}
}

// ask does not fail the spec: one of them tells that a driver does not answer,
// the others are skipped.
func (s *suite) ask() {
	ctx, cancel := context.WithTimeout(background, Timeout)
	defer cancel()
	if s.driver, s.driverErr = driver.New(ctx, s.controller, Timeout); s.driverErr != nil {
		return
	}
	answer, err := csi.NewControllerClient(s.controller).ControllerGetCapabilities(ctx, &csi.ControllerGetCapabilitiesRequest{})
	if err != nil {
		s.driverErr = err
		return
	}
	s.capabilities = nil
	for _, c := range answer.GetCapabilities() {
		s.capabilities = append(s.capabilities, c.GetRpc().GetType())
	}
	s.here, err = csi.NewNodeClient(s.node).NodeGetInfo(ctx, &csi.NodeGetInfoRequest{})
	if err != nil && status.Code(err) != codes.Unimplemented {
		s.driverErr = err
	}
}

func (s *suite) dial(address string, options []grpc.DialOption) *grpc.ClientConn {
	GinkgoHelper()
	conn, err := utils.Connect(address, slices.Concat(options, []grpc.DialOption{grpc.WithUnaryInterceptor(s.bounded)})...)
	must(err, "connecting to the driver at %s", address)
	return conn
}

// bounded gives every call a deadline. It repeats, within another such time,
// what a CO has to repeat.
func (s *suite) bounded(ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
	var err error
	_ = wait.PollUntilContextTimeout(ctx, time.Second, Timeout, true, func(context.Context) (bool, error) {
		ctx, cancel := context.WithTimeout(ctx, Timeout)
		defer cancel()
		err = invoke(ctx, method, request, reply, conn, options...)
		code := status.Code(err)
		return code != codes.Aborted && code != codes.Unavailable, nil
	})
	if status.Code(err) == codes.DeadlineExceeded {
		s.hangs.Store(true)
	}
	return err
}

func skipUnless(ok bool, why string) {
	GinkgoHelper()
	if !ok {
		Skip(why)
	}
}

func (s *suite) skipUnlessCapable() {
	GinkgoHelper()
	skipUnless(s.driverErr == nil, "the driver does not say what it can do")
	// Waiting for it again and again would tell nothing new.
	skipUnless(!s.hangs.Load(), "the driver did not answer an earlier call in time")
	skipUnless(s.driver.Info().Advertised, "the driver advertises nothing about transfers")
	skipUnless(s.has(csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME), "the driver does not create volumes")
}

func (s *suite) has(capability csi.ControllerServiceCapability_RPC_Type) bool {
	return slices.Contains(s.capabilities, capability)
}

func (s *suite) needs(capability csi.ControllerServiceCapability_RPC_Type) {
	GinkgoHelper()
	skipUnless(s.has(capability), "the driver does not have "+capability.String())
}

// volumeRequest asks for a volume of a new name, accessible from here.
func (s *suite) volumeRequest() *csi.CreateVolumeRequest {
	request := sanity.MakeCreateVolumeReq(s.sc, "csi-transfer-"+sanity.PseudoUUID())
	if topology := s.here.GetAccessibleTopology(); topology != nil {
		request.AccessibilityRequirements = &csi.TopologyRequirement{Requisite: []*csi.Topology{topology}}
	}
	return request
}

// newVolume makes a volume that was made from nothing.
func (s *suite) newVolume() *csi.Volume {
	GinkgoHelper()
	return s.MustCreateVolume(background, s.volumeRequest()).GetVolume()
}

func (s *suite) cloneOf(v *csi.Volume) *csi.Volume {
	GinkgoHelper()
	s.needs(csi.ControllerServiceCapability_RPC_CLONE_VOLUME)
	request := s.volumeRequest()
	request.VolumeContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
		Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: v.GetVolumeId()},
	}}
	return s.MustCreateVolume(background, request).GetVolume()
}

func (s *suite) restored(snap *csi.Snapshot) *csi.Volume {
	GinkgoHelper()
	v, err := s.restore(snap)
	must(err, "restoring snapshot %s", snap.GetSnapshotId())
	return v
}

func (s *suite) restore(snap *csi.Snapshot) (*csi.Volume, error) {
	request := s.volumeRequest()
	request.VolumeContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
		Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: snap.GetSnapshotId()},
	}}
	answer, err := s.CreateVolume(background, request)
	return answer.GetVolume(), err
}

// snapshotOf waits until the snapshot can be used.
func (s *suite) snapshotOf(v *csi.Volume) *csi.Snapshot {
	GinkgoHelper()
	s.needs(csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT)
	const patience = 5 * time.Minute // some backends upload a snapshot before it is ready
	request := sanity.MakeCreateSnapshotReq(s.sc, "csi-transfer-"+sanity.PseudoUUID(), v.GetVolumeId())
	var snap *csi.Snapshot
	must(wait.PollUntilContextTimeout(background, time.Second, patience, true, func(ctx context.Context) (bool, error) {
		snap = s.MustCreateSnapshot(ctx, request).GetSnapshot()
		return snap.GetReadyToUse(), nil
	}), "waiting until snapshot %s of volume %s is ready to use", snap.GetSnapshotId(), v.GetVolumeId())
	return snap
}

func (s *suite) deleteVolume(v *csi.Volume) error {
	_, err := s.DeleteVolume(background, sanity.MakeDeleteVolumeReq(s.sc, v.GetVolumeId()))
	return err
}

func (s *suite) deleteSnapshot(snap *csi.Snapshot) error {
	_, err := s.DeleteSnapshot(background, sanity.MakeDeleteSnapshotReq(s.sc, snap.GetSnapshotId()))
	return err
}

// find asks for the volume by the one call that every controller serves. It
// fails with NOT_FOUND where there is no such volume.
func (s *suite) find(v *csi.Volume) error {
	_, err := s.ValidateVolumeCapabilities(background, &csi.ValidateVolumeCapabilitiesRequest{
		VolumeId:      v.GetVolumeId(),
		VolumeContext: v.GetVolumeContext(),
		VolumeCapabilities: []*csi.VolumeCapability{
			sanity.TestVolumeCapabilityWithAccessType(s.sc, csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER),
		},
		Secrets: s.sc.Secrets.ControllerValidateVolumeCapabilitiesSecret,
	})
	return err
}

// onItsWay is the volume in a transfer of its own.
func onItsWay(v *csi.Volume, from, to driver.Owner) driver.Volume {
	return driver.Volume{
		ID: v.GetVolumeId(), Context: v.GetVolumeContext(), From: from, To: to,
		TransferID: types.UID(strings.ToLower(sanity.PseudoUUID())), Secrets: Secrets,
	}
}

// validate reads the driver's verdict as the sidecar does.
func (s *suite) validate(v *csi.Volume, from, to driver.Owner) driver.Verdict {
	GinkgoHelper()
	verdict, err := s.driver.Validate(background, onItsWay(v, from, to))
	must(err, "asking for a verdict")
	return verdict
}

func must(err error, doing string, args ...any) {
	GinkgoHelper()
	if err != nil {
		Fail(fmt.Sprintf(doing, args...) + ": " + err.Error())
	}
}

func mustBe(code codes.Code, err error, doing string, args ...any) {
	GinkgoHelper()
	if got := status.Code(err); got != code {
		Fail(fmt.Sprintf("%s: want the code %s, the driver answers %s: %s",
			fmt.Sprintf(doing, args...), code, got, status.Convert(err).Message()))
	}
}

func mustHold(ok bool, otherwise string, args ...any) {
	GinkgoHelper()
	if !ok {
		Fail(fmt.Sprintf(otherwise, args...))
	}
}

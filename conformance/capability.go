// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"maps"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	. "github.com/onsi/ginkgo/v2"
	"google.golang.org/protobuf/proto"

	"github.com/csi-transfer/csi-transfer/pkg/apis/transfer/v1alpha1"
	"github.com/csi-transfer/csi-transfer/pkg/driver"
	"github.com/csi-transfer/csi-transfer/pkg/driver/transferpb"
)

func (s *suite) capability() {
	It("is told when the sidecar asks", func() {
		must(s.driverErr, "asking the driver what it can do")
	})

	It("names a snapshot linkage that the contract knows", func() {
		flag, advertised := s.pluginInfo().GetManifest()[v1alpha1.AnnotationSnapshotLinkage]
		if advertised {
			_, known := driver.ParseLinkage(flag)
			mustHold(known, "the manifest's entry %s is %q, which is none of none, snapshots and chain: it would be taken for chain",
				v1alpha1.AnnotationSnapshotLinkage, flag)
		}
		if s.driverErr != nil || !s.driver.Info().Service {
			return
		}
		linkage := s.serviceCapabilities().GetSnapshotLinkage()
		_, known := transferpb.SnapshotLinkage_name[int32(linkage)]
		mustHold(known && linkage != transferpb.SnapshotLinkage_SNAPSHOT_LINKAGE_UNSPECIFIED,
			"GetCapabilities answers the snapshot_linkage %s: it would be taken for chain", linkage)
	})

	It("lists each capability once", func() {
		skipUnless(s.driverErr == nil && s.driver.Info().Service, "the driver does not serve the transfer service")
		listed := s.serviceCapabilities().GetCapabilities()
		mustHold(!slices.Contains(listed, transferpb.Capability_CAPABILITY_UNSPECIFIED), "GetCapabilities lists %v", listed)
		slices.Sort(listed)
		mustHold(len(slices.Compact(slices.Clone(listed))) == len(listed), "GetCapabilities lists %v", listed)
	})

	It("is the same each time", func() {
		skipUnless(s.driverErr == nil, "the driver does not say what it can do")
		first := s.pluginInfo().GetManifest()
		for range 3 {
			again := s.pluginInfo().GetManifest()
			mustHold(maps.Equal(first, again), "GetPluginInfo answers the manifest %v, then %v", first, again)
		}
		if !s.driver.Info().Service {
			return
		}
		capabilities := s.serviceCapabilities()
		for range 3 {
			again := s.serviceCapabilities()
			mustHold(proto.Equal(capabilities, again), "GetCapabilities answers {%v}, then {%v}", capabilities, again)
		}
	})
}

func (s *suite) pluginInfo() *csi.GetPluginInfoResponse {
	GinkgoHelper()
	answer, err := csi.NewIdentityClient(s.controller).GetPluginInfo(background, &csi.GetPluginInfoRequest{})
	must(err, "asking the driver who it is")
	return answer
}

func (s *suite) serviceCapabilities() *transferpb.GetCapabilitiesResponse {
	GinkgoHelper()
	answer, err := s.transfer.GetCapabilities(background, &transferpb.GetCapabilitiesRequest{})
	must(err, "asking the driver what it can do")
	return answer
}

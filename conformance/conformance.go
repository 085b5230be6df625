// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

// Package conformance tests whether a CSI driver keeps the transfer contract:
// whether what it says of the links between its volumes and snapshots is true,
// and whether the service of package transferpb, where the driver serves it,
// behaves as transfer.proto demands.
//
// Importing it adds these specs to csi-sanity, so that every run of csi-sanity
// in the importing program includes them. They carry the label SpecLabel. The
// command in cmd/csi-transfer-conformance runs them without any Go code.
//
// They find out what can be seen at the CSI socket. That a driver's records of
// owners are right where nothing it answers depends on them, they cannot see.
package conformance

import (
	"context"
	"time"

	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	. "github.com/onsi/ginkgo/v2"

	"github.com/csi-transfer/csi-transfer/pkg/driver"
)

// SpecLabel is what the specs of this package are labelled with, to run them
// alone.
const SpecLabel = "csi-transfer"

// Timeout is how long one call to the driver may take, as the sidecar's flag of
// that name. It may be changed before the specs run.
var Timeout = 15 * time.Second

// Secrets are sent with calls to the transfer service. They may be changed before
// the specs run.
var Secrets map[string]string

var _ = sanity.DescribeSanity("Transfer", func(sc *sanity.TestContext) {
	Context("contract", Label(SpecLabel), func() {
		s := &suite{sc: sc}
		BeforeEach(s.connect)
		AfterEach(func() { s.Cleanup() })
		Context("capability", s.capability)
		Context("linkage", func() {
			BeforeEach(s.skipUnlessCapable)
			s.linkage()
		})
		Context("ValidateVolume", func() {
			BeforeEach(s.skipUnlessCapable)
			BeforeEach(func() { skipUnless(s.driver.Info().Validate, "the driver does not offer ValidateVolume") })
			s.validateVolume()
		})
		Context("SetOwner", func() {
			BeforeEach(s.skipUnlessCapable)
			BeforeEach(func() { skipUnless(s.driver.Info().SetOwner, "the driver does not offer SetOwner") })
			s.setOwner()
		})
	})
})

// background has no deadline: every call gets one, see bounded.
var background = context.Background()

// The owners in the calls of a spec: giver has the volume, receiver gets it,
// other is one more.
var (
	giver    = driver.Owner{Namespace: "prod", Name: "data", UID: "5f0e6a52-3c2e-4f64-9d0e-6d0f3d3c1a01"}
	receiver = driver.Owner{Namespace: "dev", Name: "data", UID: "5f0e6a52-3c2e-4f64-9d0e-6d0f3d3c1a02"}
	other    = driver.Owner{Namespace: "test", Name: "copy", UID: "5f0e6a52-3c2e-4f64-9d0e-6d0f3d3c1a03"}
)

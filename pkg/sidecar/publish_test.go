// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package sidecar

import (
	"testing"

	storagev1 "k8s.io/api/storage/v1"

	"github.com/csi-transfer/csi-transfer/pkg/apis/transfer/v1alpha1"
	"github.com/csi-transfer/csi-transfer/pkg/driver"
)

func TestPublished(t *testing.T) {
	const (
		capable = v1alpha1.AnnotationCapable
		linkage = v1alpha1.AnnotationSnapshotLinkage
		calls   = v1alpha1.AnnotationDriverCalls
	)
	flag := driver.Info{Advertised: true, Linkage: driver.LinkageNone}
	service := driver.Info{Advertised: true, Linkage: driver.LinkageChain, Service: true, Validate: true, SetOwner: true}
	nothing := driver.Info{Linkage: driver.LinkageChain}
	for name, c := range map[string]struct {
		shown map[string]string
		info  driver.Info
		patch string
	}{
		"first time":           {nil, flag, `{"metadata":{"annotations":{"` + capable + `":"true","` + linkage + `":"none"},"uid":"u"}}`},
		"as it is":             {map[string]string{capable: "true", linkage: "none", "example.com/other": "x"}, flag, ""},
		"a new version":        {map[string]string{capable: "true", linkage: "none"}, service, `{"metadata":{"annotations":{"` + calls + `":"ValidateVolume,SetOwner","` + linkage + `":"chain"},"uid":"u"}}`},
		"not capable any more": {map[string]string{capable: "true", linkage: "chain", calls: "SetOwner"}, nothing, `{"metadata":{"annotations":{"` + capable + `":"false","` + calls + `":null,"` + linkage + `":null},"uid":"u"}}`},
		"never was capable":    {map[string]string{capable: "false"}, nothing, ""},
	} {
		t.Run(name, func(t *testing.T) {
			object := &storagev1.CSIDriver{}
			object.UID, object.Annotations = "u", c.shown
			if patch := string(published(object, c.info)); patch != c.patch {
				t.Errorf("got  %s\nwant %s", patch, c.patch)
			}
		})
	}
}

// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"sigs.k8s.io/yaml"
)

// TestReport: what check tells people, from what it tells programs.
func TestReport(t *testing.T) {
	datadriven.RunTest(t, "testdata/report.txt", func(t *testing.T, d *datadriven.TestData) string {
		var r report
		if err := yaml.UnmarshalStrict([]byte(d.Input), &r); err != nil {
			d.Fatalf(t, "%v", err)
		}
		var b strings.Builder
		if err := reportFormats[""](&r, &b); err != nil {
			d.Fatalf(t, "%v", err)
		}
		return b.String()
	})
}

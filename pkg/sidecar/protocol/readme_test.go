// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol_test

import (
	"testing"

	"github.com/csi-transfer/csi-transfer/internal/docs"
	"github.com/csi-transfer/csi-transfer/pkg/sidecar/protocol"
)

// TestReadmeHasTheReasons: the table of README is made from Reasons.
func TestReadmeHasTheReasons(t *testing.T) {
	var rows [][]string
	for _, r := range protocol.Reasons {
		rows = append(rows, []string{"`" + string(r.Reason) + "`", r.Meaning, r.Remedy})
	}
	docs.Check(t, "../../../README.md", "reasons", docs.Table([]string{"reason", "what is wrong", "what to do"}, rows))
}

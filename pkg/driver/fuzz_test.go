// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"errors"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/csi-transfer/csi-transfer/pkg/driver/transferpb"
)

func FuzzParseLinkage(f *testing.F) {
	f.Fuzz(func(t *testing.T, value string) {
		linkage, known := ParseLinkage(value)
		if known != (string(linkage) == value) {
			t.Errorf("%q was taken for %s, known=%v", value, linkage, known)
		}
		if !known && linkage != LinkageChain {
			t.Errorf("unknown %q was taken for %s", value, linkage)
		}
	})
}

func FuzzPrintable(f *testing.F) {
	f.Fuzz(func(t *testing.T, s string) {
		got := printable(s)
		if err := checkText("text", got); err != nil {
			t.Error(err)
		}
		if checkText("text", s) == nil && got != s {
			t.Errorf("%q was fit to print but became %q", s, got)
		}
	})
}

func FuzzVerdict(f *testing.F) {
	f.Fuzz(func(t *testing.T, wire []byte) {
		var answer transferpb.ValidateVolumeResponse
		if proto.Unmarshal(wire, &answer) != nil {
			return
		}
		verdict, err := verdictOf(&answer)
		if err != nil {
			if !errors.Is(err, ErrMalformed) {
				t.Errorf("untyped error: %v", err)
			}
			return
		}
		if verdict.Confirmed != answer.GetConfirmed() || len(verdict.Blockers) != len(answer.GetBlockers()) {
			t.Errorf("%v became %+v", &answer, verdict)
		}
		if verdict.Confirmed && len(verdict.Blockers) > 0 {
			t.Errorf("confirmed with blockers: %+v", verdict)
		}
		for _, b := range verdict.Blockers {
			if b.Type == "" || checkText("id", b.ID) != nil || checkText("message", b.Message) != nil {
				t.Errorf("unfit blocker %+v", b)
			}
		}
	})
}

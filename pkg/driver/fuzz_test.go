// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protodelim"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/util/validation"

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

// FuzzDriverName: a name that is accepted is fit for a label and a Lease.
func FuzzDriverName(f *testing.F) {
	f.Fuzz(func(t *testing.T, name string) {
		err := checkName(name)
		if err != nil && !errors.Is(err, ErrMalformed) {
			t.Errorf("untyped error: %v", err)
		}
		if problems := validation.IsValidLabelValue(name); err == nil && len(problems) > 0 {
			t.Errorf("%q was accepted: %v", name, problems)
		}
	})
}

// FuzzSnapshots: pages of snapshots, each with its length before it.
func FuzzSnapshots(f *testing.F) {
	f.Fuzz(func(t *testing.T, wire []byte) {
		pages := &pages{}
		for rest := bytes.NewReader(wire); ; {
			page := &csi.ListSnapshotsResponse{}
			if protodelim.UnmarshalFrom(rest, page) != nil {
				break
			}
			pages.left = append(pages.left, page)
		}
		d := &Driver{info: Info{ListSnapshots: true}, controller: pages}
		ids, listed, err := d.Snapshots(t.Context(), "vol-1")
		if err != nil {
			if !errors.Is(err, ErrMalformed) {
				t.Errorf("untyped error: %v", err)
			}
			return
		}
		if !listed || !slices.IsSorted(ids) {
			t.Errorf("listed=%v, %q", listed, ids)
		}
		for _, id := range ids {
			if checkText("snapshot_id", id) != nil {
				t.Errorf("unfit snapshot %q", id)
			}
		}
	})
}

// pages is a driver that answers with one page after another, the last of them
// for ever.
type pages struct {
	csi.ControllerClient
	left []*csi.ListSnapshotsResponse
}

func (p *pages) ListSnapshots(context.Context, *csi.ListSnapshotsRequest, ...grpc.CallOption) (*csi.ListSnapshotsResponse, error) {
	if len(p.left) == 0 {
		return &csi.ListSnapshotsResponse{}, nil
	}
	page := p.left[0]
	if len(p.left) > 1 {
		p.left = p.left[1:]
	}
	return page, nil
}

// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package mock_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/csi-transfer/csi-transfer/mock"
)

func TestMalformedVolumes(t *testing.T) {
	f := start(t, mock.Config{Topology: true})
	for name, test := range map[string]struct {
		change func(*csi.CreateVolumeRequest)
		code   codes.Code
		word   string
	}{
		"name too long":                {func(r *csi.CreateVolumeRequest) { r.Name = strings.Repeat("n", 129) }, codes.InvalidArgument, "129 bytes"},
		"name with control characters": {func(r *csi.CreateVolumeRequest) { r.Name = "a\x00b" }, codes.InvalidArgument, `a\x00b`},
		"no capability":                {func(r *csi.CreateVolumeRequest) { r.VolumeCapabilities = nil }, codes.InvalidArgument, "capability"},
		"empty capability":             {func(r *csi.CreateVolumeRequest) { r.VolumeCapabilities = []*csi.VolumeCapability{{}} }, codes.InvalidArgument, "neither block nor mount"},
		"no access mode": {func(r *csi.CreateVolumeRequest) {
			r.VolumeCapabilities = []*csi.VolumeCapability{{AccessType: writer.AccessType}}
		}, codes.InvalidArgument, "UNKNOWN"},
		"unknown access mode": {func(r *csi.CreateVolumeRequest) { r.VolumeCapabilities[0] = capability(99) }, codes.InvalidArgument, "99"},
		"both access types":   {func(r *csi.CreateVolumeRequest) { r.VolumeCapabilities = []*csi.VolumeCapability{writer, blockWriter} }, codes.InvalidArgument, "not both"},
		"unsupported mount flag": {func(r *csi.CreateVolumeRequest) {
			r.VolumeCapabilities[0] = proto.CloneOf(writer)
			r.VolumeCapabilities[0].GetMount().MountFlags = []string{"password=secret"}
		}, codes.InvalidArgument, "mount flag"},
		"negative capacity": {func(r *csi.CreateVolumeRequest) { r.CapacityRange = &csi.CapacityRange{RequiredBytes: -1} }, codes.InvalidArgument, "-1"},
		"limit below required": {func(r *csi.CreateVolumeRequest) {
			r.CapacityRange = &csi.CapacityRange{RequiredBytes: 2, LimitBytes: 1}
		}, codes.InvalidArgument, "limit of 1"},
		"too large":                   {func(r *csi.CreateVolumeRequest) { r.CapacityRange = &csi.CapacityRange{RequiredBytes: 1 << 60} }, codes.OutOfRange, "1152921504606846976"},
		"unknown parameter":           {func(r *csi.CreateVolumeRequest) { r.Parameters = map[string]string{"speed": "high"} }, codes.InvalidArgument, "speed"},
		"parameter no duration":       {func(r *csi.CreateVolumeRequest) { r.Parameters = map[string]string{"hydrate": "soon"} }, codes.InvalidArgument, "soon"},
		"unknown mutable parameter":   {func(r *csi.CreateVolumeRequest) { r.MutableParameters = map[string]string{"speed": "1"} }, codes.InvalidArgument, "speed"},
		"mutable parameter no number": {func(r *csi.CreateVolumeRequest) { r.MutableParameters = map[string]string{"iops": "many"} }, codes.InvalidArgument, "many"},
		"empty source":                {func(r *csi.CreateVolumeRequest) { r.VolumeContentSource = &csi.VolumeContentSource{} }, codes.InvalidArgument, "neither"},
		"source missing":              {func(r *csi.CreateVolumeRequest) { r.VolumeContentSource = fromVolume("../volumes") }, codes.NotFound, "../volumes"},
		"foreign topology": {func(r *csi.CreateVolumeRequest) {
			r.AccessibilityRequirements = &csi.TopologyRequirement{Requisite: []*csi.Topology{{Segments: map[string]string{"zone": "a"}}}}
		}, codes.ResourceExhausted, "topology"},
	} {
		t.Run(name, func(t *testing.T) {
			request := &csi.CreateVolumeRequest{Name: "volume", VolumeCapabilities: []*csi.VolumeCapability{writer}}
			test.change(request)
			_, err := f.CreateVolume(f.ctx, request)
			wantError(t, err, test.code, test.word)
			if strings.Contains(fmt.Sprint(err), "secret") {
				t.Errorf("the error gives a mount flag away: %v", err)
			}
		})
	}
	if volumes := must(f.ListVolumes(f.ctx, &csi.ListVolumesRequest{}))(t); len(volumes.GetEntries()) > 0 {
		t.Errorf("volumes were made all the same: %v", volumes)
	}
}

// TestSameName asks for a volume again, but differently.
func TestSameName(t *testing.T) {
	f := start(t, mock.Config{})
	request := func() *csi.CreateVolumeRequest {
		return &csi.CreateVolumeRequest{
			Name:               "volume",
			VolumeCapabilities: []*csi.VolumeCapability{writer},
			CapacityRange:      &csi.CapacityRange{RequiredBytes: mebibyte, LimitBytes: 2 * mebibyte},
		}
	}
	id := must(f.CreateVolume(f.ctx, request()))(t).GetVolume().GetVolumeId()
	other := f.volume("other", writer, nil)
	for word, change := range map[string]func(*csi.CreateVolumeRequest){
		"capacity":       func(r *csi.CreateVolumeRequest) { r.CapacityRange.RequiredBytes *= 2 },
		"access type":    func(r *csi.CreateVolumeRequest) { r.VolumeCapabilities[0] = blockWriter },
		"content source": func(r *csi.CreateVolumeRequest) { r.VolumeContentSource = fromVolume(other) },
		"parameters":     func(r *csi.CreateVolumeRequest) { r.Parameters = map[string]string{"hydrate": "1s"} },
	} {
		r := request()
		change(r)
		_, err := f.CreateVolume(f.ctx, r)
		wantError(t, err, codes.AlreadyExists, id, word)
	}
}

func TestPaging(t *testing.T) {
	f := start(t, mock.Config{})
	f.snapshot("unrelated", f.volume("unrelated", writer, nil))
	origin := f.volume("origin", writer, nil)
	var snapshots []string
	for i := range 5 {
		snapshots = append(snapshots, f.snapshot(fmt.Sprint(i), origin))
	}
	slices.Sort(snapshots)

	// pages lists two at a time, and does something with each before it goes on.
	pages := func(each func(id string)) (ids []string) {
		request := &csi.ListSnapshotsRequest{MaxEntries: 2, SourceVolumeId: origin}
		for {
			page := must(f.ListSnapshots(f.ctx, request))(t)
			for _, entry := range page.GetEntries() {
				ids = append(ids, entry.GetSnapshot().GetSnapshotId())
				each(entry.GetSnapshot().GetSnapshotId())
			}
			if len(page.GetEntries()) > 2 {
				t.Errorf("a page has %d entries", len(page.GetEntries()))
			}
			if request.StartingToken = page.GetNextToken(); request.StartingToken == "" {
				return ids
			}
		}
	}
	if got := pages(func(string) {}); !slices.Equal(got, snapshots) {
		t.Errorf("listed %v, want %v", got, snapshots)
	}
	// Nothing is missing where the last of a page goes before the next is read.
	if got := pages(func(id string) {
		if err := f.deleteSnapshot(id); err != nil {
			t.Error(err)
		}
	}); !slices.Equal(got, snapshots) {
		t.Errorf("listed %v, want %v", got, snapshots)
	}

	_, err := f.ListVolumes(f.ctx, &csi.ListVolumesRequest{StartingToken: "../etc"})
	wantError(t, err, codes.Aborted, "../etc")
	_, err = f.ListVolumes(f.ctx, &csi.ListVolumesRequest{MaxEntries: -1})
	wantError(t, err, codes.InvalidArgument, "-1")
}

func TestExpandAndModify(t *testing.T) {
	f := start(t, mock.Config{})
	id := f.volume("volume", writer, nil)
	expand := func(wanted *csi.CapacityRange) (int64, error) {
		response, err := f.ControllerExpandVolume(f.ctx, &csi.ControllerExpandVolumeRequest{VolumeId: id, CapacityRange: wanted})
		return response.GetCapacityBytes(), err
	}
	for _, test := range []struct {
		wanted *csi.CapacityRange
		size   int64
		code   codes.Code
	}{
		{&csi.CapacityRange{RequiredBytes: 2 * mebibyte}, 2 * mebibyte, codes.OK},
		{&csi.CapacityRange{RequiredBytes: mebibyte}, 2 * mebibyte, codes.OK}, // never smaller
		{&csi.CapacityRange{RequiredBytes: 1, LimitBytes: mebibyte}, 0, codes.OutOfRange},
		{nil, 0, codes.InvalidArgument},
	} {
		size, err := expand(test.wanted)
		wantError(t, err, test.code, strings.Repeat(id, min(1, int(test.code))))
		if size != test.size {
			t.Errorf("expanding to %v gave %d bytes, want %d", test.wanted, size, test.size)
		}
	}

	modify := func(parameters map[string]string) error {
		_, err := f.ControllerModifyVolume(f.ctx, &csi.ControllerModifyVolumeRequest{VolumeId: id, MutableParameters: parameters})
		return err
	}
	wantError(t, modify(map[string]string{"iops": "5"}), codes.OK)
	wantError(t, modify(map[string]string{"throughput": "6"}), codes.OK)
	wantError(t, modify(map[string]string{"iops": "7", "color": "red"}), codes.InvalidArgument, "color")
	wantError(t, modify(nil), codes.InvalidArgument, id)
	valid := must(f.ValidateVolumeCapabilities(f.ctx, &csi.ValidateVolumeCapabilitiesRequest{
		VolumeId: id, VolumeCapabilities: []*csi.VolumeCapability{writer, manyWriters},
		MutableParameters: map[string]string{"iops": "5", "throughput": "6"},
	}))(t)
	if valid.GetConfirmed() == nil {
		t.Errorf("not confirmed: %s", valid.GetMessage())
	}
	valid = must(f.ValidateVolumeCapabilities(f.ctx, &csi.ValidateVolumeCapabilitiesRequest{
		VolumeId: id, VolumeCapabilities: []*csi.VolumeCapability{blockWriter},
	}))(t)
	if valid.GetConfirmed() != nil || !strings.Contains(valid.GetMessage(), id) {
		t.Errorf("a mount volume was confirmed as block volume, or without a reason: %v", valid)
	}
}

// TestForgedIDs are paths that lead to another object.
func TestForgedIDs(t *testing.T) {
	f := start(t, mock.Config{})
	id := f.volume("volume", writer, nil)
	snapshot := f.snapshot("snapshot", id)
	for _, forged := range []string{"../snapshots/" + snapshot, "../volumes/" + id, "./" + id, id + "/", id + "\x00", "..", "/etc"} {
		if err := f.deleteVolume(forged); err != nil {
			t.Errorf("deleting volume %q: %v", forged, err)
		}
		_, err := f.ControllerGetVolume(f.ctx, &csi.ControllerGetVolumeRequest{VolumeId: forged})
		wantError(t, err, codes.NotFound, fmt.Sprintf("%q", forged))
	}
	must(f.ControllerGetVolume(f.ctx, &csi.ControllerGetVolumeRequest{VolumeId: id}))(t)
	must(f.GetSnapshot(f.ctx, &csi.GetSnapshotRequest{SnapshotId: snapshot}))(t)
}

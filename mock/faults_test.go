// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package mock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/csi-transfer/csi-transfer/mock"
)

func TestParseFault(t *testing.T) {
	for text, want := range map[string]mock.Fault{
		"CreateVolume:UNAVAILABLE":                  {Method: "CreateVolume", Code: codes.Unavailable},
		"GetPluginInfo:hang":                        {Method: "GetPluginInfo", Hang: true},
		"ValidateVolume:garbage:times=2":            {Method: "ValidateVolume", Garbage: true, Times: 2},
		"NodeUnpublishVolume:delay=30s":             {Method: "NodeUnpublishVolume", Delay: 30 * time.Second},
		"CreateVolumeGroupSnapshot:aborted:times=1": {Method: "CreateVolumeGroupSnapshot", Code: codes.Aborted, Times: 1},
	} {
		if got, err := mock.ParseFault(text); err != nil || got != want {
			t.Errorf("%s: got %+v, %v; want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{
		"", "CreateVolume", "Unknown:hang", "CreateVolume:OK", "CreateVolume:broken", "CreateVolume:delay",
		"CreateVolume:delay=-1s", "CreateVolume:hang:times=0", "CreateVolume:hang:2", "CreateVolume:hang:times=1:more",
	} {
		if got, err := mock.ParseFault(text); err == nil {
			t.Errorf("%q was taken for %+v", text, got)
		}
	}
}

func TestFaults(t *testing.T) {
	f := start(t, mock.Config{Faults: []mock.Fault{
		{Method: "DeleteVolume", Code: codes.Unavailable, Times: 2},
		{Method: "DeleteVolume", Code: codes.Internal, Times: 1},
	}})
	id := f.volume("volume", writer, nil)
	for _, code := range []codes.Code{codes.Unavailable, codes.Unavailable, codes.Internal} {
		wantError(t, f.deleteVolume(id), code, "DeleteVolume")
	}
	f.driver.SetFaults(mock.Fault{Method: "DeleteVolume", Hang: true})
	short, cancel := context.WithTimeout(f.ctx, 50*time.Millisecond)
	defer cancel()
	_, err := f.DeleteVolume(short, &csi.DeleteVolumeRequest{VolumeId: id})
	wantError(t, err, codes.DeadlineExceeded)

	const delay = 50 * time.Millisecond
	f.driver.SetFaults(mock.Fault{Method: "ControllerGetVolume", Delay: delay})
	begin := time.Now()
	must(f.ControllerGetVolume(f.ctx, &csi.ControllerGetVolumeRequest{VolumeId: id}))(t)
	if took := time.Since(begin); took < delay {
		t.Errorf("the call took only %s", took)
	}

	f.driver.SetFaults(mock.Fault{Method: "ControllerGetVolume", Garbage: true})
	answer := must(f.ControllerGetVolume(f.ctx, &csi.ControllerGetVolumeRequest{VolumeId: id}))(t)
	if answer.GetVolume().GetVolumeId() == id || answer.GetVolume().GetCapacityBytes() >= 0 {
		t.Errorf("the answer makes sense: %v", answer)
	}

	f.driver.SetFaults()
	if err := f.deleteVolume(id); err != nil {
		t.Errorf("without faults: %v", err)
	}
}

func TestStopEndsHangingCalls(t *testing.T) {
	f := start(t, mock.Config{Faults: []mock.Fault{{Method: "Probe", Hang: true}}})
	// As a stream, for one goroutine can send it and go on.
	call, err := f.conn.NewStream(f.ctx, &grpc.StreamDesc{}, csi.Identity_Probe_FullMethodName)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(call.SendMsg(&csi.ProbeRequest{}), call.CloseSend()); err != nil {
		t.Fatal(err)
	}
	// Once this is answered, the call before it has begun.
	must(f.GetPluginInfo(f.ctx, &csi.GetPluginInfoRequest{}))(t)
	f.stop()
	if err := call.RecvMsg(&csi.ProbeResponse{}); err == nil {
		t.Error("the call succeeded")
	}
}

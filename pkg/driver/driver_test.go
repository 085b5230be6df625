// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/csi-transfer/csi-transfer/pkg/apis/transfer/v1alpha1"
	"github.com/csi-transfer/csi-transfer/pkg/driver/transferpb"
)

const (
	longTimeout  = 10 * time.Second
	shortTimeout = 50 * time.Millisecond
)

// fakeDriver answers as its fields say; what is nil is answered Unimplemented.
type fakeDriver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
	transferpb.UnimplementedTransferServer

	plugin         *csi.GetPluginInfoResponse
	pluginHangs    bool
	noController   bool
	listsSnapshots bool
	capabilities   func(context.Context) (*transferpb.GetCapabilitiesResponse, error)
	validate       func(context.Context, *transferpb.ValidateVolumeRequest) (*transferpb.ValidateVolumeResponse, error)
	setOwner       func(*transferpb.SetOwnerRequest) error
	list           func(*csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error)
}

func (f *fakeDriver) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{}, nil
}

func (f *fakeDriver) GetPluginInfo(ctx context.Context, _ *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	if f.pluginHangs {
		<-ctx.Done()
	}
	return f.plugin, nil
}

func (f *fakeDriver) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	if f.noController {
		return &csi.GetPluginCapabilitiesResponse{}, nil
	}
	return &csi.GetPluginCapabilitiesResponse{Capabilities: []*csi.PluginCapability{
		{},
		{Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{
			Type: csi.PluginCapability_Service_CONTROLLER_SERVICE,
		}}},
	}}, nil
}

func (f *fakeDriver) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	answer := &csi.ControllerGetCapabilitiesResponse{Capabilities: []*csi.ControllerServiceCapability{{}}}
	if f.listsSnapshots {
		answer.Capabilities = append(answer.Capabilities, &csi.ControllerServiceCapability{
			Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{
				Type: csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS,
			}},
		})
	}
	return answer, nil
}

func (f *fakeDriver) ListSnapshots(_ context.Context, request *csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
	if f.list == nil {
		return nil, status.Error(codes.Unimplemented, "")
	}
	return f.list(request)
}

func (f *fakeDriver) GetCapabilities(ctx context.Context, _ *transferpb.GetCapabilitiesRequest) (*transferpb.GetCapabilitiesResponse, error) {
	if f.capabilities == nil {
		return nil, status.Error(codes.Unimplemented, "")
	}
	return f.capabilities(ctx)
}

func (f *fakeDriver) ValidateVolume(ctx context.Context, request *transferpb.ValidateVolumeRequest) (*transferpb.ValidateVolumeResponse, error) {
	if f.validate == nil {
		return nil, status.Error(codes.Unimplemented, "")
	}
	return f.validate(ctx, request)
}

func (f *fakeDriver) SetOwner(_ context.Context, request *transferpb.SetOwnerRequest) (*transferpb.SetOwnerResponse, error) {
	if f.setOwner == nil {
		return nil, status.Error(codes.Unimplemented, "")
	}
	return &transferpb.SetOwnerResponse{}, f.setOwner(request)
}

func serve(t *testing.T, listener net.Listener, fake *fakeDriver) *grpc.Server {
	t.Helper()
	server := grpc.NewServer()
	csi.RegisterIdentityServer(server, fake)
	csi.RegisterControllerServer(server, fake)
	transferpb.RegisterTransferServer(server, fake)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return server
}

func dial(t *testing.T, listener *bufconn.Listener) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///fake",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func connect(t *testing.T, fake *fakeDriver, timeout time.Duration) (*Driver, error) {
	t.Helper()
	if fake.plugin == nil {
		fake.plugin = &csi.GetPluginInfoResponse{Name: "fake.csi.example.com"}
	}
	listener := bufconn.Listen(1 << 20)
	serve(t, listener, fake)
	return New(t.Context(), dial(t, listener), timeout)
}

func mustConnect(t *testing.T, fake *fakeDriver, timeout time.Duration) *Driver {
	t.Helper()
	d, err := connect(t, fake, timeout)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func offers(linkage transferpb.SnapshotLinkage, capabilities ...transferpb.Capability) func(context.Context) (*transferpb.GetCapabilitiesResponse, error) {
	return func(context.Context) (*transferpb.GetCapabilitiesResponse, error) {
		return &transferpb.GetCapabilitiesResponse{SnapshotLinkage: linkage, Capabilities: capabilities}, nil
	}
}

func offersAll() func(context.Context) (*transferpb.GetCapabilitiesResponse, error) {
	return offers(transferpb.SnapshotLinkage_SNAPSHOT_LINKAGE_CHAIN,
		transferpb.Capability_CAPABILITY_VALIDATE_VOLUME, transferpb.Capability_CAPABILITY_SET_OWNER)
}

func flag(value string) *csi.GetPluginInfoResponse {
	return &csi.GetPluginInfoResponse{
		Name:     "fake.csi.example.com",
		Manifest: map[string]string{v1alpha1.AnnotationSnapshotLinkage: value, "other": "none"},
	}
}

func TestInfo(t *testing.T) {
	const name = "fake.csi.example.com"
	for _, tc := range []struct {
		name string
		fake fakeDriver
		want Info
	}{
		{"advertises nothing", fakeDriver{}, Info{Name: name, Linkage: LinkageChain}},
		{"flag none", fakeDriver{plugin: flag("none")}, Info{Name: name, Advertised: true, Linkage: LinkageNone}},
		{"flag snapshots", fakeDriver{plugin: flag("snapshots")}, Info{Name: name, Advertised: true, Linkage: LinkageSnapshots}},
		{"flag chain", fakeDriver{plugin: flag("chain")}, Info{Name: name, Advertised: true, Linkage: LinkageChain}},
		{"flag empty", fakeDriver{plugin: flag("")}, Info{Name: name, Advertised: true, Linkage: LinkageChain}},
		{"flag unknown", fakeDriver{plugin: flag("None\n")}, Info{Name: name, Advertised: true, Linkage: LinkageChain}},
		{
			"service overrules the flag",
			fakeDriver{plugin: flag("none"), capabilities: offers(transferpb.SnapshotLinkage_SNAPSHOT_LINKAGE_SNAPSHOTS)},
			Info{Name: name, Advertised: true, Linkage: LinkageSnapshots, Service: true},
		},
		{
			"service without linkage counts as chain",
			fakeDriver{plugin: flag("none"), capabilities: offers(transferpb.SnapshotLinkage_SNAPSHOT_LINKAGE_UNSPECIFIED)},
			Info{Name: name, Advertised: true, Linkage: LinkageChain, Service: true},
		},
		{
			"service of a later version",
			fakeDriver{capabilities: offers(transferpb.SnapshotLinkage(99), transferpb.Capability(99), transferpb.Capability_CAPABILITY_SET_OWNER)},
			Info{Name: name, Advertised: true, Linkage: LinkageChain, Service: true, SetOwner: true},
		},
		{
			"service alone",
			fakeDriver{capabilities: offers(transferpb.SnapshotLinkage_SNAPSHOT_LINKAGE_NONE, transferpb.Capability_CAPABILITY_VALIDATE_VOLUME)},
			Info{Name: name, Advertised: true, Linkage: LinkageNone, Service: true, Validate: true},
		},
		{"lists snapshots", fakeDriver{listsSnapshots: true}, Info{Name: name, Linkage: LinkageChain, ListSnapshots: true}},
		{"node service only", fakeDriver{noController: true, listsSnapshots: true}, Info{Name: name, Linkage: LinkageChain}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := mustConnect(t, &tc.fake, longTimeout).Info(); got != tc.want {
				t.Errorf("got  %+v\nwant %+v", got, tc.want)
			}
		})
	}
}

func TestNewRefuses(t *testing.T) {
	for _, tc := range []struct {
		name    string
		fake    fakeDriver
		timeout time.Duration
		want    string
	}{
		{"no name", fakeDriver{plugin: &csi.GetPluginInfoResponse{}}, longTimeout, `reports the name ""`},
		{"a name that is no name", fakeDriver{plugin: &csi.GetPluginInfoResponse{Name: "a/b\x1b[31m"}}, longTimeout, `reports the name "a/b [31m"`},
		{"a long name", fakeDriver{plugin: &csi.GetPluginInfoResponse{Name: strings.Repeat("a", 64)}}, longTimeout, "at most 63 characters"},
		{"hangs", fakeDriver{pluginHangs: true}, shortTimeout, "csi.v1.Identity/GetPluginInfo: DeadlineExceeded"},
		{
			"service hangs",
			fakeDriver{capabilities: func(ctx context.Context) (*transferpb.GetCapabilitiesResponse, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			}},
			shortTimeout, "transfer.csi.v1alpha1.Transfer/GetCapabilities: DeadlineExceeded",
		},
		{
			"service fails",
			fakeDriver{capabilities: func(context.Context) (*transferpb.GetCapabilitiesResponse, error) {
				return nil, status.Error(codes.Internal, "one\ntwo")
			}},
			longTimeout, "transfer.csi.v1alpha1.Transfer/GetCapabilities: Internal: one two",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d, err := connect(t, &tc.fake, tc.timeout)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got error %v, want one with %q", err, tc.want)
			}
			if d != nil {
				t.Error("got a driver besides the error")
			}
		})
	}
}

var volume = Volume{
	ID:         "vol-1",
	Context:    map[string]string{"pool": "fast"},
	From:       Owner{"prod", "data", "uid-from"},
	To:         Owner{"dev", "data", "uid-to"},
	TransferID: "uid-request",
}

func TestValidate(t *testing.T) {
	blocker := func(kind transferpb.Blocker_Type, id, message string) *transferpb.Blocker {
		return &transferpb.Blocker{Type: kind, Id: id, Message: message}
	}
	blocked := func(blockers ...*transferpb.Blocker) *transferpb.ValidateVolumeResponse {
		return &transferpb.ValidateVolumeResponse{Blockers: blockers}
	}
	const snapshot = transferpb.Blocker_TYPE_SNAPSHOT

	for _, tc := range []struct {
		name   string
		answer *transferpb.ValidateVolumeResponse
		want   Verdict
		err    string
	}{
		{name: "no opinion", answer: &transferpb.ValidateVolumeResponse{}},
		{name: "confirmed", answer: &transferpb.ValidateVolumeResponse{Confirmed: true}, want: Verdict{Confirmed: true}},
		{
			name: "blocked",
			answer: blocked(
				blocker(snapshot, "snap-1", "delete it"),
				blocker(transferpb.Blocker_TYPE_DESCENDANT, "vol-2", ""),
				blocker(transferpb.Blocker_TYPE_ANCESTOR, "vol-0", ""),
				blocker(transferpb.Blocker_TYPE_PUBLISHED, "node-1", "größer als nötig 日本"),
				blocker(transferpb.Blocker_TYPE_HYDRATING, "", ""),
				blocker(transferpb.Blocker_TYPE_TENANT_BOUND, "key", ""),
				blocker(transferpb.Blocker_TYPE_UNSPECIFIED, "", ""),
				blocker(transferpb.Blocker_Type(99), "", "from the future"),
			),
			want: Verdict{Blockers: []Blocker{
				{BlockerSnapshot, "snap-1", "delete it"},
				{BlockerDescendant, "vol-2", ""},
				{BlockerAncestor, "vol-0", ""},
				{BlockerPublished, "node-1", "größer als nötig 日本"},
				{BlockerHydrating, "", ""},
				{BlockerTenantBound, "key", ""},
				{BlockerUnknown, "", ""},
				{BlockerUnknown, "", "from the future"},
			}},
		},
		{
			name:   "confirmed and blocked",
			answer: &transferpb.ValidateVolumeResponse{Confirmed: true, Blockers: []*transferpb.Blocker{blocker(snapshot, "", "")}},
			err:    "it confirms the volume and names 1 blockers",
		},
		{name: "too many blockers", answer: blocked(make([]*transferpb.Blocker, maxBlockers+1)...), err: "it names 101 blockers"},
		{name: "long id", answer: blocked(blocker(snapshot, strings.Repeat("x", maxTextBytes+1), "")), err: "blocker 0: "},
		{name: "long message", answer: blocked(blocker(snapshot, "", strings.Repeat("x", maxTextBytes+1))), err: "message has 1025 bytes"},
		{name: "line break", answer: blocked(blocker(snapshot, "", ""), blocker(snapshot, "", "a\nb")), err: `blocker 1: the driver's answer is malformed: message "a\nb"`},
		{name: "terminal escape", answer: blocked(blocker(snapshot, "\x1b[2J", "")), err: `id "\x1b[2J"`},
		{name: "bidirectional override", answer: blocked(blocker(snapshot, "", "a\u202eb")), err: `message "a\u202eb"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got *transferpb.ValidateVolumeRequest
			d := mustConnect(t, &fakeDriver{
				capabilities: offersAll(),
				validate: func(_ context.Context, request *transferpb.ValidateVolumeRequest) (*transferpb.ValidateVolumeResponse, error) {
					got = request
					return tc.answer, nil
				},
			}, longTimeout)
			verdict, err := d.Validate(t.Context(), volume)
			if tc.err != "" {
				if !errors.Is(err, ErrMalformed) || !strings.Contains(err.Error(), tc.err) || !strings.Contains(err.Error(), `volume "vol-1"`) {
					t.Errorf("got error %v, want ErrMalformed for vol-1 with %q", err, tc.err)
				}
			} else if err != nil {
				t.Error(err)
			}
			if !reflect.DeepEqual(verdict, tc.want) {
				t.Errorf("got  %+v\nwant %+v", verdict, tc.want)
			}
			if got.GetVolumeId() != "vol-1" || got.GetVolumeContext()["pool"] != "fast" || got.GetTransferId() != "uid-request" ||
				got.GetFrom().GetNamespace() != "prod" || got.GetTo().GetUid() != "uid-to" {
				t.Errorf("the driver was asked %v", got)
			}
		})
	}
}

func TestValidateFails(t *testing.T) {
	for _, tc := range []struct {
		name     string
		validate func(context.Context, *transferpb.ValidateVolumeRequest) (*transferpb.ValidateVolumeResponse, error)
		code     codes.Code
		notFound bool
		text     string
	}{
		{
			name: "hangs",
			validate: func(ctx context.Context, _ *transferpb.ValidateVolumeRequest) (*transferpb.ValidateVolumeResponse, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			},
			code: codes.DeadlineExceeded,
			text: "transfer.csi.v1alpha1.Transfer/ValidateVolume: DeadlineExceeded",
		},
		{
			name: "volume not found",
			validate: func(context.Context, *transferpb.ValidateVolumeRequest) (*transferpb.ValidateVolumeResponse, error) {
				return nil, status.Error(codes.NotFound, "gone")
			},
			code: codes.NotFound, notFound: true,
			text: "the driver does not know the volume",
		},
		{
			name: "backend down, said with garbage",
			validate: func(context.Context, *transferpb.ValidateVolumeRequest) (*transferpb.ValidateVolumeResponse, error) {
				return nil, status.Error(codes.Unavailable, "a\x00b"+strings.Repeat("日", 10000))
			},
			code: codes.Unavailable,
			text: "ValidateVolume: Unavailable: a b日",
		},
		{
			name: "offered but not served",
			code: codes.Unimplemented,
			text: "ValidateVolume: Unimplemented",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			timeout := longTimeout
			if tc.code == codes.DeadlineExceeded {
				timeout = shortTimeout
			}
			d := mustConnect(t, &fakeDriver{capabilities: offersAll(), validate: tc.validate}, timeout)
			_, err := d.Validate(t.Context(), volume)
			if err == nil || !strings.Contains(err.Error(), tc.text) {
				t.Fatalf("got error %v, want one with %q", err, tc.text)
			}
			if got := status.Code(err); got != tc.code {
				t.Errorf("got code %v, want %v", got, tc.code)
			}
			if got := errors.Is(err, ErrVolumeNotFound); got != tc.notFound {
				t.Errorf("errors.Is(err, ErrVolumeNotFound) = %v", got)
			}
			if len(err.Error()) > 2*maxTextBytes {
				t.Errorf("the error has %d bytes", len(err.Error()))
			}
		})
	}
}

func TestWithoutService(t *testing.T) {
	d := mustConnect(t, &fakeDriver{}, longTimeout)
	if verdict, err := d.Validate(t.Context(), volume); err != nil || verdict.Confirmed || verdict.Blockers != nil {
		t.Errorf("Validate: got %+v, %v", verdict, err)
	}
	if err := d.SetOwner(t.Context(), volume); err != nil {
		t.Errorf("SetOwner: %v", err)
	}
	if ids, listed, err := d.Snapshots(t.Context(), "vol-1"); ids != nil || listed || err != nil {
		t.Errorf("Snapshots: got %v, %v, %v", ids, listed, err)
	}
}

func TestSetOwner(t *testing.T) {
	for _, tc := range []struct {
		name     string
		setOwner func(*transferpb.SetOwnerRequest) error
		code     codes.Code
	}{
		{name: "accepted", setOwner: func(r *transferpb.SetOwnerRequest) error {
			if r.GetVolumeId() != "vol-1" || r.GetTo().GetName() != "data" || r.GetFrom().GetUid() != "uid-from" || r.GetTransferId() != "uid-request" {
				return status.Errorf(codes.InvalidArgument, "%v", r)
			}
			return nil
		}},
		{name: "offered but not served"},
		{
			name:     "refused",
			setOwner: func(*transferpb.SetOwnerRequest) error { return status.Error(codes.FailedPrecondition, "quota") },
			code:     codes.FailedPrecondition,
		},
		{
			name:     "volume not found",
			setOwner: func(*transferpb.SetOwnerRequest) error { return status.Error(codes.NotFound, "") },
			code:     codes.NotFound,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := mustConnect(t, &fakeDriver{capabilities: offersAll(), setOwner: tc.setOwner}, longTimeout)
			if err := d.SetOwner(t.Context(), volume); status.Code(err) != tc.code {
				t.Errorf("got %v, want code %v", err, tc.code)
			}
		})
	}
}

func TestSnapshots(t *testing.T) {
	page := func(next string, ids ...string) *csi.ListSnapshotsResponse {
		answer := &csi.ListSnapshotsResponse{NextToken: next}
		for _, id := range ids {
			answer.Entries = append(answer.Entries, &csi.ListSnapshotsResponse_Entry{
				Snapshot: &csi.Snapshot{SnapshotId: id, SourceVolumeId: "vol-1"},
			})
		}
		return answer
	}
	pages := func(byToken map[string]*csi.ListSnapshotsResponse) func(*csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
		return func(r *csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
			answer, ok := byToken[r.GetStartingToken()]
			if !ok || r.GetSourceVolumeId() != "vol-1" {
				return nil, status.Errorf(codes.Aborted, "asked %v", r)
			}
			return answer, nil
		}
	}
	endless := 0

	for _, tc := range []struct {
		name   string
		list   func(*csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error)
		ids    []string
		listed bool
		err    string
	}{
		{name: "none", list: pages(map[string]*csi.ListSnapshotsResponse{"": page("")}), ids: []string{}, listed: true},
		{
			name: "several pages",
			list: pages(map[string]*csi.ListSnapshotsResponse{
				"": page("2", "c", "a"), "2": page("3"), "3": page("", "b", "a"),
			}),
			ids: []string{"a", "b", "c"}, listed: true,
		},
		{name: "offered but not served"},
		{
			name: "repeated token",
			list: pages(map[string]*csi.ListSnapshotsResponse{"": page("2"), "2": page("3"), "3": page("2")}),
			err:  `next_token "2" was there before`,
		},
		{
			name: "endless",
			list: func(*csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
				endless++
				return page(fmt.Sprint(endless)), nil
			},
			err: "more than 100 pages",
		},
		{
			name: "filter ignored",
			list: func(*csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
				return &csi.ListSnapshotsResponse{Entries: []*csi.ListSnapshotsResponse_Entry{
					{Snapshot: &csi.Snapshot{SnapshotId: "s", SourceVolumeId: "vol-2"}},
				}}, nil
			},
			err: `it has snapshot "s" of volume "vol-2"`,
		},
		{
			name: "empty entry",
			list: func(*csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
				return &csi.ListSnapshotsResponse{Entries: []*csi.ListSnapshotsResponse_Entry{{}}}, nil
			},
			err: `it has snapshot "" of volume ""`,
		},
		{name: "control characters", list: pages(map[string]*csi.ListSnapshotsResponse{"": page("", "a\x07")}), err: `snapshot_id "a\a"`},
		{name: "token expired", list: pages(map[string]*csi.ListSnapshotsResponse{"": page("gone")}), err: "csi.v1.Controller/ListSnapshots: Aborted"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := mustConnect(t, &fakeDriver{listsSnapshots: true, list: tc.list}, longTimeout)
			ids, listed, err := d.Snapshots(t.Context(), "vol-1")
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) || !strings.Contains(err.Error(), `snapshots of volume "vol-1"`) {
					t.Errorf("got error %v, want one with %q", err, tc.err)
				}
			} else if err != nil {
				t.Error(err)
			}
			if listed != tc.listed || !reflect.DeepEqual(ids, tc.ids) {
				t.Errorf("got %v, %v, want %v, %v", ids, listed, tc.ids, tc.listed)
			}
		})
	}
}

// TestGarbage answers every call with bytes that are no message.
func TestGarbage(t *testing.T) {
	listener := bufconn.Listen(1 << 20)
	server := grpc.NewServer(
		grpc.ForceServerCodec(rawCodec{}),
		grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
			return stream.SendMsg([]byte{0xff, 0xff, 0xff, 0x0a, 0xfe})
		}))
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)

	if _, err := New(t.Context(), dial(t, listener), longTimeout); err == nil {
		t.Error("got no error")
	}
}

type rawCodec struct{}

func (rawCodec) Marshal(v any) ([]byte, error)   { return v.([]byte), nil }
func (rawCodec) Unmarshal(_ []byte, _ any) error { return nil }
func (rawCodec) Name() string                    { return "raw" }

func TestConnect(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "csi.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := serve(t, listener, &fakeDriver{plugin: flag("none")})

	lost := make(chan struct{})
	conn, err := Connect(t.Context(), socket, nil, func(context.Context) bool {
		close(lost)
		return false
	})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	d, err := New(t.Context(), conn, longTimeout)
	if err != nil {
		t.Fatal(err)
	}
	if got := d.Info().Linkage; got != LinkageNone {
		t.Errorf("got linkage %s", got)
	}

	server.Stop()
	select {
	case <-lost:
	case <-time.After(longTimeout):
		t.Error("the loss of the connection was not reported")
	}
}

// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

// Package mock is a complete CSI driver for tests. Its volumes are directories
// on the local disk, its mounts are real bind mounts, and every linkage between
// volumes and snapshots that a storage backend may have can be chosen. It
// records what was published for whom, and fails on demand.
//
// It follows the CSI specification v1.13.0. Mounting needs Linux and root.
package mock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/kubernetes-csi/csi-lib-utils/protosanitizer"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"

	"github.com/csi-transfer/csi-transfer/pkg/driver"
	"github.com/csi-transfer/csi-transfer/pkg/driver/transferpb"
)

// DefaultDriverName is used where Config names none.
const DefaultDriverName = "mock.transfer.storage.x-k8s.io"

// driverName is CSI's rule for GetPluginInfoResponse.name.
var driverName = regexp.MustCompile(`^[a-zA-Z0-9]([-a-zA-Z0-9.]{0,61}[a-zA-Z0-9])?$`)

// Config says what a driver is like. Only StateDir is required.
type Config struct {
	// StateDir holds everything: volumes with their content, snapshots, and the
	// publish log. It is created if missing. Drivers of several processes may
	// share one, such as a controller and a node plugin.
	StateDir string

	// DriverName is at most 63 characters of domain name notation.
	DriverName string

	// Version is the driver's version, for people.
	Version string

	// NodeID is the node that the Node service acts for. Empty: there is no Node
	// service.
	NodeID string

	// Registration makes the Node service known to the kubelet.
	Registration Registration

	// Linkage is how volumes, snapshots and clones are linked: which deletions
	// fail with FAILED_PRECONDITION. It is advertised as the capability to
	// transfer volumes. Empty: they are independent, and nothing is advertised.
	Linkage driver.Linkage

	// TransferService serves the gRPC service of package transferpb.
	TransferService bool

	// TransferToken, where set, must be in the secrets of calls to that service, as
	// "token".
	TransferToken string

	// AttachRequired: a volume must be published to a node by the controller
	// before it can be staged there.
	AttachRequired bool

	// Topology: each volume is accessible from one node only, and says so.
	Topology bool

	// MaxVolumes is how many volumes can be attached to the node. 0: any number.
	MaxVolumes int64

	// Hydrate is how long after its creation the content of a volume that was
	// made from a snapshot or another volume is not ready. Until then the volume
	// exists but cannot be staged, snapshotted or cloned. The parameter "hydrate"
	// of CreateVolume overrides it.
	Hydrate time.Duration

	// Faults are what goes wrong from the start. See also Driver.SetFaults.
	Faults []Fault

	// Intercept, where set, is called for each RPC instead of carrying it out,
	// which it may do by the handler: for drivers that are wrong in a way that no
	// Fault describes.
	Intercept grpc.UnaryServerInterceptor
}

// Driver is a CSI driver. It serves once; to restart it, make another of the
// same Config.
type Driver struct {
	config  Config
	state   *state
	faults  faultInjector
	mounter mounter
	server  *grpc.Server
	logger  klog.Logger
}

// New opens the state directory. The caller must end with Stop, or by ending
// the context of Run or Serve.
func New(config Config) (*Driver, error) {
	config.DriverName = cmp.Or(config.DriverName, DefaultDriverName)
	config.Version = cmp.Or(config.Version, "unknown")
	if !driverName.MatchString(config.DriverName) {
		return nil, fmt.Errorf("driver name %q is not in domain name notation with at most 63 characters", config.DriverName)
	}
	if config.StateDir == "" {
		return nil, errors.New("no state directory is given")
	}
	if len(config.NodeID) > 256 {
		return nil, fmt.Errorf("node ID %q has more than 256 bytes", config.NodeID)
	}
	if r := config.Registration; r.Dir != "" && (config.NodeID == "" || !filepath.IsAbs(r.Endpoint)) {
		return nil, fmt.Errorf("to register with a kubelet takes a node ID, which is %q, and the absolute path of the driver's socket on the node, which is %q", config.NodeID, r.Endpoint)
	}
	if config.MaxVolumes < 0 || config.Hydrate < 0 {
		return nil, errors.New("the number of volumes per node and the time to hydrate cannot be negative")
	}
	if _, known := driver.ParseLinkage(string(config.Linkage)); config.Linkage != "" && !known {
		return nil, fmt.Errorf("snapshot linkage %q is none of none, snapshots and chain", config.Linkage)
	}

	state, err := openState(config.StateDir)
	if err != nil {
		return nil, fmt.Errorf("opening the state directory %s: %w", config.StateDir, err)
	}
	d := &Driver{config: config, state: state}
	d.faults.set(config.Faults)
	if err := d.registerNode(); err != nil {
		return nil, errors.Join(fmt.Errorf("registering node %s: %w", config.NodeID, err), state.close())
	}

	interceptors := []grpc.UnaryServerInterceptor{d.log, d.faults.intercept, d.exclusive}
	if config.Intercept != nil {
		interceptors = slices.Insert(interceptors, 1, config.Intercept)
	}
	d.server = grpc.NewServer(
		grpc.ChainUnaryInterceptor(interceptors...),
		// A call that has begun to mount or copy ends before Stop returns.
		grpc.WaitForHandlers(true),
	)
	csi.RegisterIdentityServer(d.server, &identityServer{driver: d})
	csi.RegisterControllerServer(d.server, &controllerServer{driver: d})
	csi.RegisterGroupControllerServer(d.server, &groupServer{driver: d})
	if config.NodeID != "" {
		csi.RegisterNodeServer(d.server, &nodeServer{driver: d})
	}
	if config.TransferService {
		transferpb.RegisterTransferServer(d.server, &transferServer{driver: d})
	}
	return d, nil
}

// Run serves at endpoint, a path of a socket or a unix:// URL, until ctx ends or
// Stop is called. A socket that an earlier process left there is replaced.
func (d *Driver) Run(ctx context.Context, endpoint string) error {
	path := strings.TrimPrefix(strings.TrimPrefix(endpoint, "unix:"), "//")
	if !filepath.IsAbs(path) {
		return fmt.Errorf("endpoint %q is not an absolute path or a unix:// URL of one", endpoint)
	}
	listener, err := listen(path)
	if err != nil {
		return err
	}
	return d.Serve(ctx, listener)
}

// listen replaces a socket that an earlier process left. Those of the driver's
// group may use it: sidecars that are not root.
func listen(path string) (net.Listener, error) {
	if info, err := os.Lstat(path); err == nil {
		if info.Mode().Type() != fs.ModeSocket {
			return nil, fmt.Errorf("endpoint %s exists and is no socket", path)
		}
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o660); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return listener, nil
}

// Serve is Run on a listener, which it closes. It returns nil after a stop, and
// an error where the kubelet refuses the driver.
func (d *Driver) Serve(ctx context.Context, listener net.Listener) error {
	d.logger = klog.FromContext(ctx).WithValues("driver", d.config.DriverName, "node", d.config.NodeID)
	d.logger.Info("Serving", "address", listener.Addr(), "stateDir", d.state.dir, "version", d.config.Version)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, d.Stop)()
	// The kubelet dials the driver as soon as it has found it.
	var registered errgroup.Group
	if d.config.Registration.Dir != "" {
		registered.Go(func() error {
			defer cancel()
			return d.register(ctx)
		})
	}
	err := d.server.Serve(listener)
	cancel()
	err = errors.Join(err, registered.Wait())
	d.logger.Info("Stopped")
	return err
}

// Stop ends the driver and waits for calls that have begun. Calls that a fault
// delays end at once. Mounts stay, as they do when a real driver restarts: see
// Unmount.
func (d *Driver) Stop() {
	d.server.Stop()
	// Failing to close a lock file has no consequence.
	_ = d.state.close()
}

// SetFaults replaces all faults.
func (d *Driver) SetFaults(faults ...Fault) { d.faults.set(faults) }

// log notes each call, without its secrets.
func (d *Driver) log(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	logger := d.logger.WithValues("method", filepath.Base(info.FullMethod))
	logger.V(5).Info("Call", "request", protosanitizer.StripSecrets(request))
	start := time.Now()
	response, err := handler(klog.NewContext(ctx, logger), request)
	if err != nil {
		logger.V(2).Info("Call failed", "request", protosanitizer.StripSecrets(request), "took", time.Since(start), "err", err)
		return response, err
	}
	logger.V(4).Info("Call succeeded", "took", time.Since(start))
	return response, nil
}

// exclusive gives every call but those that ask who the driver is the state for
// itself.
func (d *Driver) exclusive(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if _, ok := info.Server.(*identityServer); ok {
		return handler(ctx, request)
	}
	unlock, err := d.state.lock()
	if err != nil {
		return nil, internal(err)
	}
	defer unlock()
	if err := ctx.Err(); err != nil {
		return nil, status.FromContextError(err).Err()
	}
	return handler(ctx, request)
}

// invalid is the answer to a request that lacks something or makes no sense.
func invalid(format string, args ...any) error {
	return status.Errorf(codes.InvalidArgument, format, args...)
}

// internal is the answer where the state directory fails the driver.
func internal(err error) error {
	return status.Error(codes.Internal, err.Error())
}

// lookup returns the object, or NOT_FOUND naming it.
func lookup[T any](c collection[T], what, id string) (*T, error) {
	if id == "" {
		return nil, invalid("no %s ID is given", what)
	}
	object, err := c.get(id)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, status.Errorf(codes.NotFound, "%s %q does not exist", what, id)
	}
	if err != nil {
		return nil, internal(err)
	}
	return object, nil
}

func (d *Driver) volume(id string) (*volume, error) { return lookup(d.state.volumes, "volume", id) }

func (d *Driver) saveVolume(v *volume) error {
	if err := d.state.volumes.update(v.ID, v); err != nil {
		return internal(err)
	}
	return nil
}

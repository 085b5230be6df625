// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

// Package driver asks the CSI driver beside the sidecar whether and how its
// volumes can move: by the capability flag in its manifest, and by the service
// of package transferpb where the driver serves it.
//
// Nothing that a driver answers is taken on trust. Text is bounded and free of
// control characters before it reaches a log or a condition, and an answer that
// contradicts itself is an error.
package driver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/kubernetes-csi/csi-lib-utils/connection"
	"github.com/kubernetes-csi/csi-lib-utils/metrics"
	"github.com/kubernetes-csi/csi-lib-utils/rpc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/klog/v2"

	"github.com/csi-transfer/csi-transfer/pkg/apis/transfer/v1alpha1"
	"github.com/csi-transfer/csi-transfer/pkg/driver/transferpb"
)

var (
	// ErrVolumeNotFound is wrapped by errors of calls that the driver answered
	// with NOT_FOUND: no volume has this ID.
	ErrVolumeNotFound = errors.New("the driver does not know the volume")

	// ErrMalformed is wrapped by errors about answers that contradict
	// themselves or break the contract.
	ErrMalformed = errors.New("the driver's answer is malformed")
)

// Info is what a driver says of itself. It does not change while the
// connection lasts.
type Info struct {
	// Name is the driver's name, as in a PersistentVolume's spec.csi.driver.
	Name string

	// Advertised: the driver says that its volumes can be transferred, by the
	// flag or by serving the transfer service.
	Advertised bool

	// Linkage is LinkageChain unless the driver says otherwise.
	Linkage Linkage

	// Service: the driver serves the transfer service. Its linkage is then the
	// service's, whatever the flag says.
	Service bool

	// Validate and SetOwner: the service offers these calls.
	Validate, SetOwner bool

	// ListSnapshots: the driver can list snapshots (CSI's controller capability
	// LIST_SNAPSHOTS).
	ListSnapshots bool
}

// Owner is a claim that has, or is to have, a volume.
type Owner struct {
	Namespace, Name string
	UID             types.UID
}

// Volume is one volume on its way between two owners.
type Volume struct {
	// ID is the PersistentVolume's spec.csi.volumeHandle.
	ID string

	// Context is the PersistentVolume's spec.csi.volumeAttributes.
	Context map[string]string

	// From gives the volume, To receives it.
	From, To Owner

	// TransferID is the UID of the NamespaceTransferRequest.
	TransferID types.UID

	// Secrets are those of the Secret that the volume's StorageClass names for
	// transfers, if it does.
	Secrets map[string]string
}

// Driver is a connected CSI driver. Its methods may be called concurrently.
//
// Their errors carry the gRPC code, see status.Code, and name the call. A call
// that takes longer than the timeout given to New fails with
// codes.DeadlineExceeded.
type Driver struct {
	info       Info
	controller csi.ControllerClient
	transfer   transferpb.TransferClient
}

// Connect dials the CSI socket at address: an absolute path or a unix:// URL.
// It gives up after 30 seconds. Until ctx is done, onLost is called as soon as
// the connection breaks and says whether to reconnect; what Info says may then
// be out of date, so that sidecars usually exit instead.
func Connect(ctx context.Context, address string, mm metrics.CSIMetricsManager, onLost func(context.Context) bool) (*grpc.ClientConn, error) {
	conn, err := connection.Connect(ctx, address, mm, connection.OnConnectionLoss(onLost))
	if err != nil {
		return nil, fmt.Errorf("connecting to the CSI driver at %s: %w", address, err)
	}
	go stayConnected(ctx, conn)
	return conn, nil
}

// stayConnected makes an idle sidecar notice a lost connection: on its own,
// gRPC dials again, and thereby calls onLost, only when the next call is made.
func stayConnected(ctx context.Context, conn *grpc.ClientConn) {
	for state := conn.GetState(); state != connectivity.Shutdown; state = conn.GetState() {
		if state == connectivity.Idle {
			conn.Connect()
		}
		if !conn.WaitForStateChange(ctx, state) {
			return
		}
	}
}

// New waits until the driver behind conn is ready and asks what it can do.
// timeout bounds each call to the driver, here and later.
func New(ctx context.Context, conn *grpc.ClientConn, timeout time.Duration) (*Driver, error) {
	if err := rpc.ProbeForever(ctx, conn, timeout); err != nil {
		return nil, err
	}
	calls := boundedConn{conn, timeout}
	d := &Driver{
		controller: csi.NewControllerClient(calls),
		transfer:   transferpb.NewTransferClient(calls),
	}
	identity := csi.NewIdentityClient(calls)

	plugin, err := identity.GetPluginInfo(ctx, &csi.GetPluginInfoRequest{})
	if err != nil {
		return nil, err
	}
	if err := checkName(plugin.GetName()); err != nil {
		return nil, err
	}
	d.info.Name = plugin.GetName()

	flag, advertised := plugin.GetManifest()[v1alpha1.AnnotationSnapshotLinkage]
	linkage, known := ParseLinkage(flag)
	if advertised && !known {
		klog.FromContext(ctx).Info("Driver advertises an unknown snapshot linkage, treating it as chain",
			"driver", d.info.Name, "key", v1alpha1.AnnotationSnapshotLinkage, "value", printable(flag))
	}
	d.info.Advertised, d.info.Linkage = advertised, linkage

	if d.info.ListSnapshots, err = d.listsSnapshots(ctx, identity); err != nil {
		return nil, err
	}
	if err := d.askService(ctx); err != nil {
		return nil, err
	}
	return d, nil
}

// Info returns what the driver said of itself when New asked.
func (d *Driver) Info() Info { return d.info }

// SetOwner tells the driver that volume.To owns the volume from now on. It is
// idempotent; to undo it, swap From and To. It does nothing where the driver
// does not offer it. codes.FailedPrecondition means that the driver refuses
// this owner.
func (d *Driver) SetOwner(ctx context.Context, volume Volume) error {
	if !d.info.SetOwner {
		return nil
	}
	_, err := d.transfer.SetOwner(ctx, &transferpb.SetOwnerRequest{
		VolumeId:      volume.ID,
		VolumeContext: volume.Context,
		From:          volume.From.proto(),
		To:            volume.To.proto(),
		TransferId:    string(volume.TransferID),
		Secrets:       volume.Secrets,
	})
	if status.Code(err) == codes.Unimplemented {
		return nil
	}
	return volumeError("setting the owner of", volume.ID, err)
}

func (d *Driver) listsSnapshots(ctx context.Context, identity csi.IdentityClient) (bool, error) {
	plugin, err := identity.GetPluginCapabilities(ctx, &csi.GetPluginCapabilitiesRequest{})
	if err != nil {
		return false, err
	}
	if !slices.ContainsFunc(plugin.GetCapabilities(), func(c *csi.PluginCapability) bool {
		return c.GetService().GetType() == csi.PluginCapability_Service_CONTROLLER_SERVICE
	}) {
		return false, nil
	}
	controller, err := d.controller.ControllerGetCapabilities(ctx, &csi.ControllerGetCapabilitiesRequest{})
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(controller.GetCapabilities(), func(c *csi.ControllerServiceCapability) bool {
		return c.GetRpc().GetType() == csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS
	}), nil
}

// askService lets the transfer service, where there is one, overrule the flag.
func (d *Driver) askService(ctx context.Context) error {
	answer, err := d.transfer.GetCapabilities(ctx, &transferpb.GetCapabilitiesRequest{})
	if status.Code(err) == codes.Unimplemented {
		return nil
	}
	if err != nil {
		return err
	}
	d.info.Advertised, d.info.Service = true, true
	d.info.Linkage = linkageOf(answer.GetSnapshotLinkage())
	d.info.Validate = slices.Contains(answer.GetCapabilities(), transferpb.Capability_CAPABILITY_VALIDATE_VOLUME)
	d.info.SetOwner = slices.Contains(answer.GetCapabilities(), transferpb.Capability_CAPABILITY_SET_OWNER)
	return nil
}

// checkName applies the rule of CSI and of the CSIDriver object: the name
// becomes a label value and part of a Lease's name.
func checkName(name string) error {
	const maxLength = 63
	// Lower case alone would let letters pass that are only like those of ASCII.
	problems := append(validation.IsDNS1123Subdomain(strings.ToLower(name)), validation.IsValidLabelValue(name)...)
	if len(problems) > 0 || len(name) > maxLength {
		return fmt.Errorf("%w: GetPluginInfo reports the name %q; a CSI driver's name has at most %d characters, in domain name notation",
			ErrMalformed, printable(name), maxLength)
	}
	return nil
}

func (o Owner) proto() *transferpb.Owner {
	return &transferpb.Owner{Namespace: o.Namespace, Name: o.Name, Uid: string(o.UID)}
}

// volumeError says which volume a call was about; nil stays nil.
func volumeError(doing, volumeID string, err error) error {
	if err == nil {
		return nil
	}
	if status.Code(err) == codes.NotFound {
		err = fmt.Errorf("%w: %w", ErrVolumeNotFound, err)
	}
	return fmt.Errorf("%s volume %q: %w", doing, volumeID, err)
}

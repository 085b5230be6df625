// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package mock

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"google.golang.org/grpc"
	"k8s.io/klog/v2"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// Registration is how the kubelet of the driver's node comes to know the driver.
// In most drivers node-driver-registrar, a sidecar of its own, does this.
type Registration struct {
	// Dir is where the kubelet looks for sockets of plugins: plugins_registry in
	// its directory. Empty: the driver does not register itself.
	Dir string

	// Endpoint is the path of the driver's own socket where the kubelet has it,
	// which in a container may be another one.
	Endpoint string
}

// registrationServer answers the kubelet, as the plugin registration API v1 of
// k8s.io/kubelet has it: it finds the socket, asks who is there, and tells
// whether it could use the driver.
type registrationServer struct {
	registerapi.UnimplementedRegistrationServer
	info *registerapi.PluginInfo
	// refused gets why the kubelet does not use the driver.
	refused chan error
}

func (s *registrationServer) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return s.info, nil
}

func (s *registrationServer) NotifyRegistrationStatus(ctx context.Context, status *registerapi.RegistrationStatus) (*registerapi.RegistrationStatusResponse, error) {
	logger := klog.FromContext(ctx)
	if status.GetPluginRegistered() {
		logger.Info("Registered with the kubelet", "endpoint", s.info.GetEndpoint())
		return &registerapi.RegistrationStatusResponse{}, nil
	}
	select {
	case s.refused <- fmt.Errorf("the kubelet does not register driver %s at %s: %s", s.info.GetName(), s.info.GetEndpoint(), status.GetError()):
	default: // It is ending already.
	}
	return &registerapi.RegistrationStatusResponse{}, nil
}

// register serves the kubelet until ctx ends. A refusal is an error: a driver that
// no pod can use should not look as if it ran.
func (d *Driver) register(ctx context.Context) error {
	listener, err := listen(filepath.Join(d.config.Registration.Dir, d.config.DriverName+"-reg.sock"))
	if err != nil {
		return fmt.Errorf("registering with the kubelet: %w", err)
	}
	s := &registrationServer{
		info: &registerapi.PluginInfo{
			Type:     registerapi.CSIPlugin,
			Name:     d.config.DriverName,
			Endpoint: d.config.Registration.Endpoint,
			// Versions of CSI, of which the kubelet looks at the major one.
			SupportedVersions: []string{"1.0.0"},
		},
		refused: make(chan error, 1),
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(
		func(call context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			return handler(klog.NewContext(call, d.logger), request)
		}))
	registerapi.RegisterRegistrationServer(server, s)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	select {
	case err = <-s.refused:
	case <-ctx.Done():
	}
	// The kubelet gets the answer to its last call.
	server.GracefulStop()
	return errors.Join(err, <-served)
}

// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

// Command mock-csi-driver serves package mock.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/csi-transfer/csi-transfer/mock"
	"github.com/csi-transfer/csi-transfer/pkg/driver"
)

// version is set when linking.
var version = "unknown"

// linkageUnset is the value of --snapshot-linkage for a driver that advertises
// nothing.
const linkageUnset = "unset"

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "mock-csi-driver:", err)
		os.Exit(1)
	}
}

func run() error {
	// A host without a name is a controller until --node-id says otherwise.
	hostname, _ := os.Hostname()

	config := mock.Config{Version: version}
	endpoint := flag.String("endpoint", "unix:///csi/csi.sock", "Socket to serve CSI on.")
	linkage := flag.String("snapshot-linkage", string(driver.LinkageNone),
		"How volumes, snapshots and clones are linked, and what is advertised about it: none, snapshots, chain, or unset: independent, and nothing is advertised.")
	flag.StringVar(&config.StateDir, "state-dir", "/var/lib/mock-csi-driver", "Directory for volumes, snapshots and the publish log.")
	flag.StringVar(&config.DriverName, "driver-name", mock.DefaultDriverName, "Name of the CSI driver.")
	flag.StringVar(&config.NodeID, "node-id", hostname, "Node to mount volumes on. Empty: serve no Node service.")
	flag.StringVar(&config.Registration.Endpoint, "kubelet-registration-path", "", "Path of the driver's socket on the node: what the kubelet is told to connect to. Empty: the driver does not register itself.")
	registrationDir := flag.String("plugin-registration-path", "/registration", "Directory in which the kubelet looks for plugins: its plugins_registry, as mounted here.")
	flag.BoolVar(&config.TransferService, "transfer-service", false, "Serve the gRPC service for transfers.")
	flag.StringVar(&config.TransferToken, "transfer-token", "", `What calls to that service must have in their secrets as "token". Empty: they need none.`)
	flag.BoolVar(&config.AttachRequired, "attach-required", false, "Volumes must be attached to a node before they can be staged there.")
	flag.BoolVar(&config.Topology, "topology", false, "Each volume is accessible from one node only.")
	flag.Int64Var(&config.MaxVolumes, "max-volumes", 0, "How many volumes can be attached to the node. 0: any number.")
	flag.DurationVar(&config.Hydrate, "hydrate", 0, "How long the content of clones and restored volumes is not ready after they were created.")
	flag.Func("fault", "What goes wrong, as METHOD:CODE|hang|garbage|delay=DURATION[:times=N], such as CreateVolume:UNAVAILABLE:times=2. May be given several times.",
		func(value string) error {
			fault, err := mock.ParseFault(value)
			config.Faults = append(config.Faults, fault)
			return err
		})
	probe := flag.Bool("probe", false, "Ask the driver that serves --endpoint whether it is ready, and exit: what a liveness probe runs.")
	showVersion := flag.Bool("version", false, "Print the version and exit.")
	logging := textlogger.NewConfig()
	logging.AddFlags(flag.CommandLine)
	flag.Parse()
	if *showVersion {
		fmt.Println(os.Args[0], version)
		return nil
	}
	if flag.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flag.Arg(0))
	}
	if *probe {
		return askReady(*endpoint)
	}
	if config.Registration.Endpoint != "" {
		config.Registration.Dir = *registrationDir
	}
	if *linkage == "" {
		return errors.New("--snapshot-linkage is empty; for a driver that advertises nothing, it is unset")
	}
	if *linkage != linkageUnset {
		config.Linkage = driver.Linkage(*linkage)
	}

	logger := textlogger.NewLogger(logging)
	klog.SetLogger(logger) // for libraries that have no context
	ctx, stop := signal.NotifyContext(klog.NewContext(context.Background(), logger), os.Interrupt, syscall.SIGTERM)
	defer stop()
	d, err := mock.New(config)
	if err != nil {
		return err
	}
	return d.Run(ctx, *endpoint)
}

// askReady fails unless the driver at endpoint says that it is ready. It waits
// for as long as its caller lets it.
func askReady(endpoint string) error {
	conn, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	answer, err := csi.NewIdentityClient(conn).Probe(context.Background(), &csi.ProbeRequest{})
	if err != nil {
		return fmt.Errorf("asking the driver at %s whether it is ready: %w", endpoint, err)
	}
	// Where it says nothing it is, says CSI.
	if ready := answer.GetReady(); ready != nil && !ready.GetValue() {
		return fmt.Errorf("the driver at %s is not ready", endpoint)
	}
	return nil
}

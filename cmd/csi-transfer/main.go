// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

// Command csi-transfer is a CSI sidecar that moves volumes of the driver beside
// it from one namespace to another.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/kubernetes-csi/csi-lib-utils/config"
	"github.com/kubernetes-csi/csi-lib-utils/metrics"
	"github.com/kubernetes-csi/csi-lib-utils/standardflags"
	typedgroupsnapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned/typed/volumegroupsnapshot/v1"
	typedsnapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned/typed/volumesnapshot/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubescheme "k8s.io/client-go/kubernetes/scheme"
	typedauthenticationv1 "k8s.io/client-go/kubernetes/typed/authentication/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	typedstoragev1 "k8s.io/client-go/kubernetes/typed/storage/v1"
	clientmetadata "k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	"k8s.io/component-base/featuregate"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register"
	"k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/component-base/metrics/prometheus/clientgo/leaderelection"
	_ "k8s.io/component-base/metrics/prometheus/restclient"
	_ "k8s.io/component-base/metrics/prometheus/workqueue"
	"k8s.io/klog/v2"

	transferscheme "github.com/csi-transfer/csi-transfer/pkg/client/clientset/versioned/scheme"
	typedtransferv1alpha1 "github.com/csi-transfer/csi-transfer/pkg/client/clientset/versioned/typed/transfer/v1alpha1"
	"github.com/csi-transfer/csi-transfer/pkg/driver"
	"github.com/csi-transfer/csi-transfer/pkg/sidecar"
	"github.com/csi-transfer/csi-transfer/pkg/sidecar/protocol"
)

// version is set when linking.
var version = "unknown"

const releaseLeaderElectionOnExit featuregate.Feature = "ReleaseLeaderElectionOnExit"

var errDriverLost = errors.New("lost the connection to the CSI driver")

// startTime is when what runs once at the start has run.
const startTime = 10 * time.Second

// eventQPS and eventBurst bound how fast events are sent.
const (
	eventQPS   = 20
	eventBurst = 40
)

// options are the flags beside those that every CSI sidecar has.
type options struct {
	workers           int
	retryStart        time.Duration
	retryMax          time.Duration
	timeout           time.Duration
	resync            time.Duration
	verifyTimeout     time.Duration
	allowedFinalizers string
	profiling         bool
	featureGates      string
}

func (o *options) register(f *flag.FlagSet) {
	f.IntVar(&o.workers, "worker-threads", 10, "Number of transfers that are worked on at the same time.")
	f.DurationVar(&o.retryStart, "retry-interval-start", time.Second, "First wait after an error, and after a transfer was rolled back. It doubles with each further one, up to retry-interval-max.")
	f.DurationVar(&o.retryMax, "retry-interval-max", 5*time.Minute, "Longest wait after an error, and after a transfer was rolled back.")
	f.DurationVar(&o.timeout, "timeout", 15*time.Second, "Timeout of each call to the CSI driver.")
	f.DurationVar(&o.resync, "resync", 10*time.Minute, "How often every open transfer is looked at although nothing has changed. It costs no request to the API server.")
	f.DurationVar(&o.verifyTimeout, "verify-timeout", 2*time.Minute, "How long a volume may be in flight before it is bound to the receiving claim. After that it goes back.")
	f.StringVar(&o.allowedFinalizers, "allowed-claim-finalizers", "", "Comma-separated finalizers on a source claim that do not stand in the way of a transfer, beyond those of Kubernetes and the CSI sidecars.")
	f.BoolVar(&o.profiling, "profiling", false, "Serve net/http/pprof under /debug/pprof/ on --http-endpoint.")
	f.StringVar(&o.featureGates, "feature-gates", "", "Comma-separated name=true|false pairs. ReleaseLeaderElectionOnExit (default true) gives the lease up on a clean stop.")
}

func (o *options) validate() error {
	switch {
	case o.workers < 1:
		return fmt.Errorf("--worker-threads is %d, must be at least 1", o.workers)
	case o.retryStart <= 0 || o.retryMax < o.retryStart:
		return fmt.Errorf("--retry-interval-start is %s and --retry-interval-max %s, must be positive and not less than the start", o.retryStart, o.retryMax)
	case o.timeout <= 0:
		return fmt.Errorf("--timeout is %s, must be positive", o.timeout)
	case o.verifyTimeout <= 0:
		return fmt.Errorf("--verify-timeout is %s, must be positive", o.verifyTimeout)
	}
	return nil
}

// registerFlags adds all flags to the command line: csi-lib-utils knows no other
// place for some of them.
func registerFlags() (*options, *logsapi.LoggingConfiguration) {
	o, logging := &options{}, logsapi.NewLoggingConfiguration()
	o.register(flag.CommandLine)
	standardflags.RegisterCommonFlags(flag.CommandLine)
	standardflags.AddAutomaxprocs(klog.Infof)
	logsapi.AddGoFlags(logging, flag.CommandLine)
	return o, logging
}

func main() {
	o, logging := registerFlags()
	gates := featuregate.NewFeatureGate()
	if err := errors.Join(
		logsapi.AddFeatureGates(gates),
		gates.Add(map[featuregate.Feature]featuregate.FeatureSpec{releaseLeaderElectionOnExit: {Default: true, PreRelease: featuregate.Beta}}),
	); err != nil {
		fail(err)
	}
	logs.InitLogs()
	defer logs.FlushLogs()
	flag.Parse()

	if standardflags.Configuration.ShowVersion {
		fmt.Println(os.Args[0], version)
		return
	}
	if flag.NArg() > 0 {
		fail(fmt.Errorf("unexpected argument %q: csi-transfer takes flags only", flag.Arg(0)))
	}
	if err := gates.Set(o.featureGates); err != nil {
		fail(fmt.Errorf("--feature-gates: %w", err))
	}
	if err := errors.Join(logsapi.ValidateAndApply(logging, gates), o.validate()); err != nil {
		fail(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	klog.FromContext(ctx).Info("Version", "version", version)
	// Being stopped is no failure, wherever it was.
	if err := run(ctx, o, gates.Enabled(releaseLeaderElectionOnExit)); err != nil && ctx.Err() == nil {
		fail(err)
	}
}

func fail(err error) {
	klog.ErrorS(err, "csi-transfer cannot run")
	klog.FlushAndExit(klog.ExitFlushTimeout, 1)
}

func run(ctx context.Context, o *options, releaseOnExit bool) error {
	standard := standardflags.Configuration
	clientConfig, err := config.BuildConfig(standard.KubeConfig, standard)
	if err != nil {
		return fmt.Errorf("no way to the API server: %w", err)
	}
	clientConfig.UserAgent = "csi-transfer/" + version

	csiMetrics := metrics.NewCSIMetricsManagerForSidecar("")
	// When the driver goes away this process stops, as cleanly as at any time, and a
	// new one starts with what the driver, perhaps another version of it, says then.
	// Where the whole pod ends the driver may be gone before this one is told, and
	// the Lease has to be given up all the same.
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	conn, err := driver.Connect(ctx, standard.CSIAddress, csiMetrics, func(context.Context) bool {
		stop(errDriverLost)
		return false
	})
	if err != nil {
		return fmt.Errorf("connecting to the CSI driver at %s: %w", standard.CSIAddress, err)
	}
	defer conn.Close()
	d, err := driver.New(ctx, conn, o.timeout)
	if err != nil {
		return fmt.Errorf("asking the CSI driver at %s: %w", standard.CSIAddress, err)
	}
	name := d.Info().Name
	csiMetrics.SetDriverName(name)

	mux := http.NewServeMux()
	if err := serve(ctx, mux, o, csiMetrics); err != nil {
		return err
	}
	transferMetrics := sidecar.NewMetrics(csiMetrics.GetRegistry())

	time.AfterFunc(startTime, func() {
		if err := releaseProgramPages(); err != nil {
			klog.FromContext(ctx).V(2).Info("Keeping the pages of the program resident", "err", err)
		}
	})

	self, err := whoAmI(ctx, clientConfig)
	if err != nil {
		return err
	}
	move := func(ctx context.Context) error { return lead(ctx, clientConfig, d, o, self.Username, transferMetrics) }
	if standard.LeaderElection {
		identity, err := identityOf(self)
		if err != nil {
			return err
		}
		err = elect(ctx, clientConfig, "csi-transfer-"+name, identity, mux, releaseOnExit, move)
		if err != nil {
			return err
		}
	} else if err := move(ctx); err != nil {
		return err
	}
	if cause := context.Cause(ctx); errors.Is(cause, errDriverLost) {
		return cause
	}
	return nil
}

// whoAmI returns the user that the API server takes this process for.
func whoAmI(ctx context.Context, clientConfig *rest.Config) (authenticationv1.UserInfo, error) {
	client, err := typedauthenticationv1.NewForConfig(clientConfig)
	if err != nil {
		return authenticationv1.UserInfo{}, fmt.Errorf("making a client: %w", err)
	}
	self, err := client.SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return authenticationv1.UserInfo{}, fmt.Errorf("asking the API server for the name of this user: %w", err)
	}
	return self.Status.UserInfo, nil
}

// lead moves volumes while this process is the leader.
func lead(ctx context.Context, clientConfig *rest.Config, d *driver.Driver, o *options, user string, m *sidecar.Metrics) error {
	binary := rest.CopyConfig(clientConfig)
	binary.ContentType, binary.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON
	core, err1 := typedcorev1.NewForConfig(binary)
	// Events have a client of their own, and a rate: in a burst of transfers they
	// come a little later, and the API server moves volumes meanwhile.
	unhurried := rest.CopyConfig(binary)
	unhurried.QPS, unhurried.Burst = eventQPS, eventBurst
	forEvents, err2 := typedcorev1.NewForConfig(unhurried)
	storage, err3 := typedstoragev1.NewForConfig(binary)
	transfer, err4 := typedtransferv1alpha1.NewForConfig(clientConfig)
	snapshots, err5 := typedsnapshotv1.NewForConfig(clientConfig)
	groupSnapshots, err6 := typedgroupsnapshotv1.NewForConfig(clientConfig)
	metadata, err7 := clientmetadata.NewForConfig(clientConfig)
	if err := errors.Join(err1, err2, err3, err4, err5, err6, err7); err != nil {
		return fmt.Errorf("making clients: %w", err)
	}

	scheme := runtime.NewScheme()
	if err := errors.Join(kubescheme.AddToScheme(scheme), transferscheme.AddToScheme(scheme)); err != nil {
		return err
	}
	// Not ended by ctx: what happens while stopping is told, too.
	broadcaster := record.NewBroadcaster(record.WithContext(context.WithoutCancel(ctx)))
	defer broadcaster.Shutdown()
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: forEvents.Events("")})

	return sidecar.New(sidecar.Config{
		Clients: sidecar.Clients{
			Core: core, Storage: storage, Transfer: transfer,
			Snapshots: snapshots, GroupSnapshots: groupSnapshots, Metadata: metadata,
		},
		Recorder: broadcaster.NewRecorder(scheme, corev1.EventSource{Component: "csi-transfer " + d.Info().Name}),
		Metrics:  m,
		Driver:   d,
		Settings: protocol.Settings{
			User:              user,
			VerifyTimeout:     o.verifyTimeout,
			ReportDelay:       10 * time.Second,
			PollInterval:      30 * time.Second,
			AllowedFinalizers: splitList(o.allowedFinalizers),
		},
		Workers:    o.workers,
		RetryStart: o.retryStart,
		RetryMax:   o.retryMax,
		Resync:     o.resync,
	}).Run(ctx)
}

func splitList(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' })
}

// serve answers on --http-endpoint, or the older --metrics-address.
func serve(ctx context.Context, mux *http.ServeMux, o *options, m metrics.CSIMetricsManager) error {
	standard := standardflags.Configuration
	if standard.HttpEndpoint != "" && standard.MetricsAddress != "" {
		return errors.New("only one of --http-endpoint and --metrics-address can be set")
	}
	address := standard.HttpEndpoint + standard.MetricsAddress
	if address == "" {
		return nil
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("listening on %s: %w", address, err)
	}
	m.WithAdditionalRegistry(legacyregistry.DefaultGatherer)
	m.RegisterToServer(mux, standard.MetricsPath)
	if o.profiling {
		m.RegisterPprofToServer(mux)
	}
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	context.AfterFunc(ctx, func() { server.Close() })
	go func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			klog.FromContext(ctx).Error(err, "Stopped serving", "address", address)
		}
	}()
	return nil
}

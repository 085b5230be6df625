// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cluster runs a real Kubernetes control plane on this machine, as
// processes on loopback addresses with all state in one temporary directory:
// etcd, kube-apiserver, kube-controller-manager and, on request, the scheduler,
// CSI drivers with their sidecars, and csi-transfer. It has no node.
//
// Any number of clusters can run at once. Nothing outlives the process that
// started a cluster.
package cluster

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/utils/ptr"
)

//go:embed audit-policy.yaml
var auditPolicy []byte

// Options says what a cluster is to be like. The zero value will do.
type Options struct {
	// Scheduler also starts kube-scheduler.
	Scheduler bool
	// APIServerFlags and ControllerManagerFlags are added to those programs' flags.
	APIServerFlags, ControllerManagerFlags []string
	// Dir keeps the state, logs included, after the cluster has stopped. It must
	// be empty or absent. By default a temporary directory is used and removed.
	Dir string
	// Progress is told when a program must be built first. By default that is
	// the standard error.
	Progress io.Writer
}

// Cluster is a running control plane.
type Cluster struct {
	// Dir has the cluster's state: etcd's data, keys, kubeconfigs, logs.
	Dir string
	// Config and Kubeconfig (the path of a file) are an administrator's, who is
	// above RBAC. Config has no client-side throttling.
	Config     *rest.Config
	Kubeconfig string
	// Client and Dynamic use Config.
	Client  kubernetes.Interface
	Dynamic dynamic.Interface

	options   Options
	authority *authority
	address   string // of the API server
	// release gives up the claim on Dir.
	release func()

	// snapshots is held while the snapshot controller is being installed.
	snapshots sync.Mutex

	// mu guards what follows.
	mu        sync.Mutex
	stopped   bool
	processes []*Process
	reserved  []int // file descriptors of ReserveAddress
}

// Start starts a cluster and returns once it can be used. When ctx is done the
// cluster stops, as it does on Stop. Programs that are missing or out of date
// are built first, see Build.
func Start(ctx context.Context, options Options) (*Cluster, error) {
	if options.Progress == nil {
		options.Progress = os.Stderr
	}
	c := &Cluster{options: options}
	if err := c.start(ctx); err != nil {
		c.Stop()
		return nil, fmt.Errorf("starting a test cluster: %w", err)
	}
	context.AfterFunc(ctx, c.Stop)
	return c, nil
}

// Stop kills everything that runs in the cluster and removes its state. It
// returns when nothing of it is left. It may be called any number of times.
func (c *Cluster) Stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		return
	}
	c.stopped = true
	// First those started last: each keeps its server until it is gone itself, so
	// that its log does not end in a flood of errors.
	for _, p := range slices.Backward(c.processes) {
		p.retire()
	}
	for _, fd := range c.reserved {
		unix.Close(fd)
	}
	if c.release != nil {
		c.release()
	}
}

func (c *Cluster) start(ctx context.Context) (err error) {
	if c.Dir, c.release, err = claimDir(c.options.Dir); err != nil {
		return err
	}
	if err := os.Mkdir(c.path("log"), 0o755); err != nil {
		return err
	}
	if c.address, err = c.ReserveAddress(); err != nil {
		return err
	}
	_, port, err := net.SplitHostPort(c.address)
	if err != nil {
		return err
	}
	if err := c.writeKeys(); err != nil {
		return err
	}
	if c.Config, err = c.ConfigFor("admin", "system:masters"); err != nil {
		return err
	}
	if c.Kubeconfig, err = c.writeKubeconfig("admin", c.Config); err != nil {
		return err
	}
	if c.Client, err = kubernetes.NewForConfig(c.Config); err != nil {
		return err
	}
	if c.Dynamic, err = dynamic.NewForConfig(c.Config); err != nil {
		return err
	}

	if _, err := c.Run(ctx, "etcd", "etcd",
		"--data-dir="+c.path("etcd"),
		"--listen-client-urls="+c.etcdURL(),
		"--advertise-client-urls="+c.etcdURL(),
		"--listen-peer-urls=unix://"+c.path("etcd-peer.sock"),
		"--unsafe-no-fsync",
		"--log-level=warn",
	); err != nil {
		return err
	}
	if _, err := c.run(ctx, "kube-apiserver", c.apiServerReady, "kube-apiserver", append([]string{
		"--etcd-servers=" + c.etcdURL(),
		"--bind-address=127.0.0.1",
		"--advertise-address=127.0.0.1",
		"--secure-port=" + port,
		"--endpoint-reconciler-type=none",
		"--service-cluster-ip-range=10.0.0.0/24",
		"--tls-cert-file=" + c.path("apiserver.crt"),
		"--tls-private-key-file=" + c.path("apiserver.key"),
		"--client-ca-file=" + c.path("ca.crt"),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + c.path("service-account.key"),
		"--service-account-signing-key-file=" + c.path("service-account.key"),
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--allow-privileged",
		"--audit-policy-file=" + c.path("audit-policy.yaml"),
		"--audit-log-path=" + c.path("audit.log"),
		"--audit-log-maxsize=0", // never rotated: marks are offsets in it
	}, c.options.APIServerFlags...)...); err != nil {
		return err
	}
	if err := c.startController(ctx, "kube-controller-manager", append([]string{
		"--use-service-account-credentials",
		"--service-account-private-key-file=" + c.path("service-account.key"),
		"--root-ca-file=" + c.path("ca.crt"),
		"--kube-api-qps=500",
		"--kube-api-burst=1000",
	}, c.options.ControllerManagerFlags...)...); err != nil {
		return err
	}
	if c.options.Scheduler {
		if err := c.startController(ctx, "kube-scheduler"); err != nil {
			return err
		}
	}
	return c.waitDefaultServiceAccount(ctx, metav1.NamespaceDefault)
}

// startController starts one of Kubernetes' controllers under its own name,
// for which RBAC has a default role. It serves nothing.
func (c *Cluster) startController(ctx context.Context, program string, args ...string) error {
	kubeconfig, err := c.KubeconfigFor("system:" + program)
	if err != nil {
		return err
	}
	_, err = c.Run(ctx, program, program, append([]string{
		"--kubeconfig=" + kubeconfig,
		"--leader-elect=false",
		"--secure-port=0",
	}, args...)...)
	return err
}

func (c *Cluster) etcdURL() string { return "unix://" + c.path("etcd.sock") }

func (c *Cluster) apiServerReady(ctx context.Context) error {
	return c.Client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
}

func (c *Cluster) path(elem ...string) string {
	return filepath.Join(append([]string{c.Dir}, elem...)...)
}

// Run starts a program as a process of the cluster. The program is one of those
// that Build builds, one on the PATH, or a path. A name whose earlier process
// has ended can be used again.
func (c *Cluster) Run(ctx context.Context, name, program string, args ...string) (*Process, error) {
	return c.run(ctx, name, nil, program, args...)
}

// run starts a program and returns when ready, if given, returns no error.
func (c *Cluster) run(ctx context.Context, name string, ready func(context.Context) error, programName string, args ...string) (*Process, error) {
	path, err := Program(ctx, programName, c.options.Progress)
	if err != nil {
		return nil, err
	}
	p := &Process{
		Name:  name,
		Log:   c.path("log", fileName(name)+".log"),
		path:  path,
		args:  args,
		ready: ready,
	}
	if err := c.add(p); err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	if ready != nil {
		return p, p.await(ctx)
	}
	return p, nil
}

func (c *Cluster) add(p *Process) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		return errStopped
	}
	i := slices.IndexFunc(c.processes, func(old *Process) bool { return old.Name == p.Name })
	if i >= 0 {
		if !c.processes[i].last().over() {
			return errors.New("a process of that name runs already")
		}
		c.processes = slices.Delete(c.processes, i, i+1)
	}
	if err := p.start(); err != nil {
		return err
	}
	c.processes = append(c.processes, p)
	return nil
}

// Process returns the process of that name, such as etcd, kube-apiserver,
// kube-controller-manager or kube-scheduler; nil if there is none.
func (c *Cluster) Process(name string) *Process {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.processes {
		if p.Name == name {
			return p
		}
	}
	return nil
}

// ConfigFor returns the configuration of a client that authenticates as user in
// groups, with a certificate. It has no client-side throttling.
func (c *Cluster) ConfigFor(user string, groups ...string) (*rest.Config, error) {
	pair, err := c.authority.user(user, groups)
	if err != nil {
		return nil, fmt.Errorf("certificate for user %s: %w", user, err)
	}
	config := c.anonymous()
	config.CertData, config.KeyData = pair.cert, pair.key
	return config, nil
}

// KubeconfigFor is ConfigFor as the path of a kubeconfig file.
func (c *Cluster) KubeconfigFor(user string, groups ...string) (string, error) {
	config, err := c.ConfigFor(user, groups...)
	if err != nil {
		return "", err
	}
	return c.writeKubeconfig(user, config)
}

// ServiceAccountKubeconfig returns the path of a kubeconfig file with a token of
// the service account, which must exist. The token is good for a day.
func (c *Cluster) ServiceAccountKubeconfig(ctx context.Context, namespace, name string) (string, error) {
	token, err := c.Client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To[int64](24 * 60 * 60)},
	}, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("token for service account %s/%s: %w", namespace, name, err)
	}
	config := c.anonymous()
	config.BearerToken = token.Status.Token
	return c.writeKubeconfig(namespace+":"+name, config)
}

// CreateNamespace creates a namespace and returns when pods can be created in it.
func (c *Cluster) CreateNamespace(ctx context.Context, name string) error {
	_, err := c.Client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: name},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	return c.waitDefaultServiceAccount(ctx, name)
}

// waitDefaultServiceAccount waits for the service account that the controller
// manager makes in every namespace and that admission wants for pods.
func (c *Cluster) waitDefaultServiceAccount(ctx context.Context, namespace string) error {
	_, err := Wait(ctx, c, ServiceAccounts, namespace, "default", func(*corev1.ServiceAccount) bool { return true })
	return err
}

func (c *Cluster) anonymous() *rest.Config {
	return &rest.Config{
		Host:            (&url.URL{Scheme: "https", Host: c.address}).String(),
		TLSClientConfig: rest.TLSClientConfig{CAData: c.authority.pem()},
		QPS:             -1,
	}
}

func (c *Cluster) writeKubeconfig(user string, config *rest.Config) (string, error) {
	const name = "test-cluster"
	kubeconfig := clientcmdapi.NewConfig()
	kubeconfig.Clusters[name] = &clientcmdapi.Cluster{
		Server:                   config.Host,
		CertificateAuthorityData: config.CAData,
	}
	kubeconfig.AuthInfos[user] = &clientcmdapi.AuthInfo{
		ClientCertificateData: config.CertData,
		ClientKeyData:         config.KeyData,
		Token:                 config.BearerToken,
	}
	kubeconfig.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: user}
	kubeconfig.CurrentContext = name
	path := c.path("kubeconfig-" + fileName(user))
	return path, clientcmd.WriteToFile(*kubeconfig, path)
}

func (c *Cluster) writeKeys() (err error) {
	if c.authority, err = newAuthority(); err != nil {
		return err
	}
	server, err := c.authority.server()
	if err != nil {
		return err
	}
	if err := server.write(c.path("apiserver.crt"), c.path("apiserver.key")); err != nil {
		return err
	}
	serviceAccountKey, err := keyutil.MakeEllipticPrivateKeyPEM()
	if err != nil {
		return err
	}
	if err := keyutil.WriteKey(c.path("service-account.key"), serviceAccountKey); err != nil {
		return err
	}
	if err := os.WriteFile(c.path("audit-policy.yaml"), auditPolicy, 0o644); err != nil {
		return err
	}
	return os.WriteFile(c.path("ca.crt"), c.authority.pem(), 0o644)
}

// fileName makes a name of a process or user one of a file.
func fileName(name string) string {
	return strings.NewReplacer("/", "-", ":", "-").Replace(name)
}

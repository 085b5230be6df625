// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	_ "embed"
	"net"
	"os"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/keyutil"
)

//go:embed audit-policy.yaml
var auditPolicy []byte

// defaultServiceAccount is made by the controller manager in every namespace;
// admission wants it for pods.
const defaultServiceAccount = "default"

// startControlPlane returns when the control plane is ready.
func (c *Cluster) startControlPlane(ctx context.Context) error {
	_, port, err := net.SplitHostPort(c.address)
	if err != nil {
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
	if err := c.startController(ctx, "kube-controller-manager", c.controllerManagerReady, append([]string{
		"--use-service-account-credentials",
		"--service-account-private-key-file=" + c.path("service-account.key"),
		"--root-ca-file=" + c.path("ca.crt"),
		"--kube-api-qps=500",
		"--kube-api-burst=1000",
	}, c.options.ControllerManagerFlags...)...); err != nil {
		return err
	}
	if c.options.Scheduler {
		if err := c.startController(ctx, "kube-scheduler", nil); err != nil {
			return err
		}
	}
	return nil
}

// startController starts one of Kubernetes' controllers under its own name,
// for which RBAC has a default role. It serves nothing.
func (c *Cluster) startController(ctx context.Context, program string, ready func(context.Context) error, args ...string) error {
	kubeconfig, err := c.KubeconfigFor("system:" + program)
	if err != nil {
		return err
	}
	_, err = c.run(ctx, program, ready, program, append([]string{
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

// controllerManagerReady says whether the default namespace has what the
// controller manager makes in every namespace.
func (c *Cluster) controllerManagerReady(ctx context.Context) error {
	_, err := c.Client.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Get(ctx, defaultServiceAccount, metav1.GetOptions{})
	return err
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

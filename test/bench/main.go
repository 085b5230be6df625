// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

// Command bench measures transfers on a real control plane against a floor that
// no controller can beat: the same three writes without any check.
//
// All timings come from one run on one machine. Compare the ratios.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	transfer "github.com/csi-transfer/csi-transfer/pkg/client/clientset/versioned"
	"github.com/csi-transfer/csi-transfer/test/cluster"
)

const (
	// n is how many volumes the floor and the transfers move.
	n = 500
	// single is how many are moved one at a time.
	single = 50
	// workers are those of the floor, and of the sidecar beside it.
	workers = 16
	// idle is how many volumes and claims an idle sidecar has around it.
	idle = 10000
	// idleTime is how long it is watched.
	idleTime = time.Minute

	driverName = "mock.transfer.storage.x-k8s.io"
	className  = "mock"
	sidecar    = "system:serviceaccount:kube-system:csi-transfer"
)

// result is what BENCH_JSON gets.
type result struct {
	N                 int     `json:"n"`
	FloorSeconds      float64 `json:"floor_s"`
	TransfersSeconds  float64 `json:"transfers_s"`
	Ratio             float64 `json:"ratio"`
	WritesPerTransfer float64 `json:"writes_per_transfer"`
	P50Milliseconds   float64 `json:"p50_ms"`
	P99Milliseconds   float64 `json:"p99_ms"`
	LostMilliseconds  float64 `json:"lost_ms"`
	RSSMiB            float64 `json:"rss_mib"`
	IdleRPM           float64 `json:"idle_rpm"`
	IdleRSSMiB        float64 `json:"idle_rss_mib"`
}

// bench is the cluster that is measured.
type bench struct {
	*cluster.Cluster
	transfer   transfer.Interface
	driver     *cluster.Driver
	kubeconfig string
	// shipped are the flags of the Deployment in deploy/kubernetes.
	shipped []string
	result  result
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Println("bench: FAIL:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	b, err := start(ctx)
	if err != nil {
		return err
	}
	defer b.Stop()
	for _, part := range []func(context.Context) error{b.floor, b.transfers, b.oneAtATime, b.idle} {
		if err := part(ctx); err != nil {
			return err
		}
	}
	return b.report()
}

// start starts the cluster and provisions what the parts move.
func start(ctx context.Context) (*bench, error) {
	// Bodies in the audit log would cost the API server more than some requests.
	policy, err := filepath.Abs(filepath.Join("bench", "audit-policy.yaml"))
	if err != nil {
		return nil, err
	}
	c, err := cluster.Start(ctx, cluster.Options{APIServerFlags: []string{"--audit-policy-file=" + policy}})
	if err != nil {
		return nil, err
	}
	b := &bench{Cluster: c, result: result{N: n}}
	if err := b.install(ctx); err != nil {
		c.Stop()
		return nil, err
	}
	return b, nil
}

func (b *bench) install(ctx context.Context) (err error) {
	// Built now, not while it is measured.
	if _, err := cluster.Program(ctx, "csi-transfer", os.Stderr); err != nil {
		return err
	}
	deploy := filepath.Join("..", "deploy", "kubernetes")
	if b.transfer, err = transfer.NewForConfig(b.Config); err != nil {
		return err
	}
	if err := b.ApplyKustomize(ctx, deploy); err != nil {
		return err
	}
	if b.driver, err = b.StartDriver(ctx, cluster.DriverOptions{Name: driverName}); err != nil {
		return err
	}
	example := filepath.Join(deploy, "examples", "mock")
	if _, err := b.Kubectl(ctx, "apply", "-f", filepath.Join(example, "storageclass.yaml")); err != nil {
		return err
	}
	if b.shipped, err = shippedFlags(filepath.Join(example, "deployment.yaml")); err != nil {
		return err
	}
	if err := b.Apply(ctx, rights); err != nil {
		return err
	}
	b.kubeconfig, err = b.ServiceAccountKubeconfig(ctx, "kube-system", "csi-transfer")
	return err
}

// rights are those that the example Deployment gives its service account.
const rights = `
apiVersion: v1
kind: ServiceAccount
metadata: {name: csi-transfer, namespace: kube-system}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: csi-transfer}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: csi-transfer-runner}
subjects: [{kind: ServiceAccount, name: csi-transfer, namespace: kube-system}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: csi-transfer, namespace: kube-system}
rules: [{apiGroups: [coordination.k8s.io], resources: [leases], verbs: [create, get, update]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: csi-transfer, namespace: kube-system}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: csi-transfer}
subjects: [{kind: ServiceAccount, name: csi-transfer, namespace: kube-system}]
`

// shippedFlags are those of the sidecar in a Deployment, but for the places that
// a pod has and a process here has not.
func shippedFlags(file string) ([]string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	for _, document := range strings.Split(string(text), "\n---") {
		var d appsv1.Deployment
		if err := yaml.Unmarshal([]byte(document), &d); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		for _, c := range d.Spec.Template.Spec.Containers {
			if c.Name == "csi-transfer" {
				// Later flags win.
				return append(slices.DeleteFunc(c.Args, func(arg string) bool { return strings.HasPrefix(arg, "--csi-address") }),
					"--http-endpoint=127.0.0.1:0", "--leader-election-namespace=kube-system"), nil
			}
		}
	}
	return nil, fmt.Errorf("%s has no container csi-transfer", file)
}

// startSidecar starts csi-transfer with the given flags.
func (b *bench) startSidecar(ctx context.Context, name string, flags []string) (*cluster.Process, error) {
	return b.StartSidecar(ctx, cluster.SidecarOptions{Name: name, Address: b.driver.Address, Kubeconfig: b.kubeconfig, Flags: flags})
}

// report prints the numbers, and fails where one is out of bounds.
func (b *bench) report() error {
	r := b.result
	fmt.Printf(`
%d transfers   %6.1f s
floor           %6.1f s   ratio %.2f
writes          %6.2f per transfer, events apart
one at a time   %6.0f ms p50, %.0f ms p99 from approval to Bound; %.0f ms p99 from park to source Lost
memory          %6.1f MiB at most; idle %.1f MiB and %.0f requests per minute with %d volumes and claims
`, r.N, r.TransfersSeconds, r.FloorSeconds, r.Ratio, r.WritesPerTransfer, r.P50Milliseconds, r.P99Milliseconds, r.LostMilliseconds,
		r.RSSMiB, r.IdleRSSMiB, r.IdleRPM, idle)
	if file := os.Getenv("BENCH_JSON"); file != "" {
		text, err := json.Marshal(r)
		if err != nil {
			return err
		}
		if err := os.WriteFile(file, append(text, '\n'), 0o644); err != nil {
			return err
		}
	}
	return b.bounds()
}

// bounds fails the run where a number is worse than what is promised.
func (b *bench) bounds() error {
	var errs []error
	for _, bound := range []struct {
		what       string
		got, limit float64
	}{
		{"ratio of transfers to floor", b.result.Ratio, 2},
		{"writes per transfer", b.result.WritesPerTransfer, 8},
		{"p99 from approval to Bound, in ms", b.result.P99Milliseconds, 500},
		{"p99 from park to source Lost, in ms", b.result.LostMilliseconds, 1000},
		{"idle requests per minute", b.result.IdleRPM, 30},
		{"idle RSS in MiB", b.result.IdleRSSMiB, 40},
	} {
		if bound.got > bound.limit {
			errs = append(errs, fmt.Errorf("%s is %.2f, more than %.0f", bound.what, bound.got, bound.limit))
		}
	}
	return errors.Join(errs...)
}

var createOptions = metav1.CreateOptions{}

// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"

	"github.com/csi-transfer/csi-transfer/pkg/sidecar/protocol"
	"github.com/csi-transfer/csi-transfer/test/cluster"
)

// replica starts the sidecar of a driver as a pod of a Deployment runs it: with
// leader election, a host name of its own, and an endpoint, which it returns.
func (s *scene) replica(name string) (p *cluster.Process, endpoint string) {
	s.Helper()
	l := must[net.Listener](s)(net.Listen("tcp", "127.0.0.1:0"))
	endpoint = l.Addr().String()
	s.must(l.Close())
	program := must[string](s)(cluster.Program(s.ctx, "csi-transfer", os.Stderr))
	p = must[*cluster.Process](s)(s.world.Run(s.ctx, s.giver+"-"+name, "unshare", append([]string{
		"--uts", "sh", "-c", `echo "$0" >/proc/sys/kernel/hostname && exec "$@"`, name, program,
		"--kubeconfig=" + s.kubeconfig, "--csi-address=" + s.own.Address, "--http-endpoint=" + endpoint,
		"--leader-election", "--leader-election-namespace=kube-system", "--leader-election-retry-period=1s",
	}, sidecarFlags...)...))
	s.Cleanup(p.Kill)
	return p, endpoint
}

// leads waits until a replica holds the Lease.
func (s *scene) leads(name string) {
	s.Helper()
	must[*coordinationv1.Lease](s)(cluster.Wait(s.ctx, s.Cluster, coordinationv1.SchemeGroupVersion.WithResource("leases"), "kube-system", s.lease(),
		func(l *coordinationv1.Lease) bool { return ptr.Deref(l.Spec.HolderIdentity, "") == name }))
}

// lease is the name of the Lease of the scene's own driver.
func (s *scene) lease() string { return "csi-transfer-" + strings.ReplaceAll(s.own.Name, ".", "-") }

// allowLease gives the sidecar what the shipped Role gives it for its Lease.
func (s *scene) allowLease() {
	s.Helper()
	s.must(s.Apply(s.ctx, fmt.Sprintf(`
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: %[1]s, namespace: kube-system}
rules:
  - apiGroups: [coordination.k8s.io]
    resources: [leases]
    verbs: [create]
  - apiGroups: [coordination.k8s.io]
    resources: [leases]
    resourceNames: [%[1]s]
    verbs: [get, update]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: %[1]s, namespace: kube-system}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: %[1]s}
subjects: [{kind: ServiceAccount, name: %[2]s, namespace: kube-system}]
`, s.lease(), sidecarAccount)))
}

// serves polls an endpoint until it answers 200 and all that is wanted, as
// regular expressions, is there.
func (s *scene) serves(url string, wants ...string) string {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.ctx, 20*time.Second)
	defer cancel()
	var text, missing string
	err := wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return false, err
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			missing = err.Error()
			return false, nil
		}
		defer response.Body.Close()
		content, err := io.ReadAll(response.Body)
		if err != nil || response.StatusCode != http.StatusOK {
			missing = response.Status
			return false, nil
		}
		text = string(content)
		for _, want := range wants {
			if !regexp.MustCompile("(?m)" + want).MatchString(text) {
				missing = want
				return false, nil
			}
		}
		return true, nil
	})
	if err != nil {
		s.Fatalf("%s: %v: no %s", url, err, missing)
	}
	return text
}

// TestC1_Replicas: of two sidecars of one driver one works, under a Lease named
// after the driver, and tells in metrics what it does. Stopped in the middle of a
// transfer it ends at once and cleanly, and the other goes on where it was.
func TestC1_Replicas(t *testing.T) {
	s := newScene(t)
	s.vendor(cluster.DriverOptions{Flags: []string{"--transfer-service"}})
	s.allowLease()
	first, endpoint := s.replica("first")
	s.leads("first")
	_, standby := s.replica("second")

	source := s.source()
	s.pod(s.giver, "user", "data")
	s.grant(source)
	s.refused(protocol.ReasonInUse)
	s.serves("http://"+endpoint+"/metrics", `^csi_transfer_waiting{reason="InUse"} 1$`)
	s.deletePod(s.giver, "user")
	s.transferred()

	text := s.serves("http://"+endpoint+"/metrics",
		`^csi_transfer_transfers_total{reason="",result="completed"} 1$`,
		`^csi_transfer_duration_seconds_count 1$`,
		`^csi_transfer_waiting{reason="InUse"} 0$`,
		`^csi_sidecar_operations_seconds_count{driver_name="`+s.own.Name+`",grpc_status_code="OK",method_name="/transfer.csi.v1alpha1.Transfer/ValidateVolume"} `,
		`^rest_client_requests_total{`,
		`^workqueue_adds_total{name="transfers"} `,
		`^leader_election_master_status{name="csi-transfer-`+s.own.Name+`"} 1$`,
		`^process_resident_memory_bytes `,
		`^process_cpu_seconds_total `,
	)
	for _, secret := range []string{s.giver, s.receiver, "take-data", s.moving} {
		if strings.Contains(text, secret) {
			t.Errorf("the metrics tell of %s", secret)
		}
	}
	for _, address := range []string{endpoint, standby} {
		s.serves("http://"+address+"/healthz/leader-election", "ok")
	}

	other := s.another()
	before, lift := other.inFlight()
	begun := time.Now()
	s.must(first.Stop(s.ctx))
	if took := time.Since(begun); took > 5*time.Second {
		t.Errorf("stopping took %s", took)
	}
	s.leads("second")
	lift()
	other.transferred()
	other.arrived(before)
	s.serves("http://"+standby+"/metrics", `^csi_transfer_transfers_total{reason="",result="completed"} 1$`)
}

// TestC1_DriverGoesFirst: where a whole pod is stopped, the driver may end before
// the sidecar is told. The Lease is given up all the same, so that the next pod
// need not wait until it has run out.
func TestC1_DriverGoesFirst(t *testing.T) {
	s := newScene(t)
	s.vendor(cluster.DriverOptions{})
	s.allowLease()
	sidecar, _ := s.replica("first")
	s.leads("first")
	s.own.Process.Kill()
	s.ended(sidecar, "lost the connection to the CSI driver")
	s.leads("") // nobody
}

// TestC1_EndsInTheMiddle: however a sidecar ends, the next one finishes.
func TestC1_EndsInTheMiddle(t *testing.T) {
	for name, end := range map[string]func(s *scene, sidecar *cluster.Process){
		"stopped": func(s *scene, sidecar *cluster.Process) { s.must(sidecar.Stop(s.ctx)) },
		"killed":  func(_ *scene, sidecar *cluster.Process) { sidecar.Kill() },
		"driver gone": func(s *scene, sidecar *cluster.Process) {
			s.own.Process.Kill()
			s.ended(sidecar, "lost the connection to the CSI driver")
			s.must(s.own.Process.Start(s.ctx))
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			sidecar := s.sidecarOf(s.vendor(cluster.DriverOptions{}))
			before, lift := s.inFlight()
			end(s, sidecar)
			lift()
			s.must(sidecar.Start(s.ctx))
			s.transferred()
			s.arrived(before)
		})
	}
}

// ended waits until a process has ended by itself, and looks into its log.
func (s *scene) ended(p *cluster.Process, says string) {
	s.Helper()
	select {
	case <-p.Exited():
	case <-s.ctx.Done():
		s.Fatalf("%s did not end", p.Name)
	}
	s.contains(string(must[[]byte](s)(os.ReadFile(p.Log))), says)
}

// TestC1_DriverMakesNoSense: a sidecar that cannot tell whose it is does not run.
func TestC1_DriverMakesNoSense(t *testing.T) {
	s := newScene(t)
	d := s.vendor(cluster.DriverOptions{Flags: []string{"--fault=GetPluginInfo:garbage"}})
	s.ended(s.sidecarOf(d), "a CSI driver's name has at most 63 characters, in domain name notation")
}

// TestC1_Flags: what makes no sense is refused at the start, in a sentence.
func TestC1_Flags(t *testing.T) {
	s := newScene(t)
	program := must[string](s)(cluster.Program(s.ctx, "csi-transfer", os.Stderr))
	for name, tc := range map[string]struct {
		args []string
		says string
	}{
		"no workers":            {[]string{"--worker-threads=0"}, "--worker-threads is 0, must be at least 1"},
		"no retry":              {[]string{"--retry-interval-start=0s"}, "--retry-interval-start is 0s"},
		"retry limit too small": {[]string{"--retry-interval-max=1ms"}, "--retry-interval-max 1ms"},
		"no timeout":            {[]string{"--timeout=0s"}, "--timeout is 0s, must be positive"},
		"negative time":         {[]string{"--verify-timeout=-1s"}, "--verify-timeout is -1s, must be positive"},
		"not a duration":        {[]string{"--timeout=soon"}, `invalid value "soon" for flag -timeout`},
		"unknown flag":          {[]string{"--no-such-flag"}, "flag provided but not defined: -no-such-flag"},
		"unknown feature":       {[]string{"--feature-gates=NoSuch=true"}, "unrecognized feature gate: NoSuch"},
		"argument":              {[]string{"run"}, "csi-transfer takes flags only"},
		"no kubeconfig":         {[]string{"--kubeconfig=/no/such/file"}, "/no/such/file"},
		"two endpoints":         {[]string{"--http-endpoint=127.0.0.1:0", "--metrics-address=127.0.0.1:0"}, "only one of --http-endpoint and --metrics-address"},
		"no such endpoint":      {[]string{"--http-endpoint=127.0.0.1:99999"}, "listening on 127.0.0.1:99999"},
		"logging format":        {[]string{"--logging-format=xml"}, "xml"},
	} {
		cmd := exec.CommandContext(s.ctx, program, append([]string{"--kubeconfig=" + s.kubeconfig, "--csi-address=" + s.driver.Address}, tc.args...)...)
		output, err := cmd.CombinedOutput()
		if err == nil || s.ctx.Err() != nil {
			t.Errorf("%s: accepted (%v)", name, s.ctx.Err())
			continue
		}
		s.contains(string(output), tc.says)
	}
	output, err := exec.CommandContext(s.ctx, program, "--version").Output()
	if err != nil || !strings.Contains(string(output), "csi-transfer") {
		t.Errorf("--version: %v, %q", err, output)
	}
}

// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
)

// childVariable makes the test binary a program that starts a cluster, with a
// node if the value says so, tells about it, and never ends by itself.
const childVariable = "TEST_CLUSTER_CHILD"

const (
	withoutNode = "without node"
	withNode    = "with node"
)

func TestMain(m *testing.M) {
	if with := os.Getenv(childVariable); with != "" {
		if err := child(with); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	m.Run()
}

func child(with string) error {
	c, dirs, err := startWith(context.Background(), with)
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		fmt.Println("dir", dir)
	}
	for _, p := range c.processes {
		fmt.Println("process", p.PID())
	}
	fmt.Println("up")
	select {}
}

// startWith starts a cluster, and returns the directories that it uses.
func startWith(ctx context.Context, with string) (c *Cluster, dirs []string, err error) {
	c, err = Start(ctx, Options{Scheduler: with == withNode})
	if err != nil {
		return nil, nil, err
	}
	dirs = []string{c.Dir}
	if with == withNode {
		n, err := startNode(ctx, c)
		if err != nil {
			c.Stop()
			return nil, nil, err
		}
		dirs = append(dirs, n.root)
	}
	return c, dirs, nil
}

func startCluster(t *testing.T) *Cluster {
	t.Helper()
	c, err := Start(t.Context(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	return c
}

// TestCluster: what can be done with a cluster that is left running.
func TestCluster(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	t.Run("binding", func(t *testing.T) { testBinding(t, c) })
	t.Run("driver", func(t *testing.T) { testDriver(t, c) })
	t.Run("waits tell what they saw", func(t *testing.T) { testWaitInVain(t, c) })
	t.Run("users", func(t *testing.T) { testUsers(t, c) })
}

// testBinding: the real binder binds a claim, and the audit log says who did
// what with which object.
func testBinding(t *testing.T, c *Cluster) {
	ctx := t.Context()
	if err := c.CreateNamespace(ctx, "prod"); err != nil {
		t.Fatal(err)
	}
	before, err := c.AuditMark()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Apply(ctx, `
apiVersion: v1
kind: PersistentVolume
metadata: {name: disk}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  persistentVolumeReclaimPolicy: Retain
  storageClassName: static
  csi: {driver: static.example.com, volumeHandle: disk}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {namespace: prod, name: data}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: static
  resources: {requests: {storage: 1Gi}}
`); err != nil {
		t.Fatal(err)
	}
	claim, err := c.WaitClaimPhase(ctx, "prod", "data", corev1.ClaimBound)
	if err != nil {
		t.Fatal(err)
	}
	if claim.Spec.VolumeName != "disk" {
		t.Errorf("the claim is bound to %q, want disk", claim.Spec.VolumeName)
	}

	for _, tc := range []struct {
		name   string
		filter AuditFilter
		user   string
		body   string
	}{
		{
			name:   "creation by kubectl",
			filter: AuditFilter{Verbs: WriteVerbs, Resource: "persistentvolumeclaims", Namespace: "prod", Name: "data", User: "admin"},
			user:   "admin",
			body:   `"kind":"PersistentVolumeClaim"`,
		},
		{
			name:   "binding of the volume",
			filter: AuditFilter{Verbs: []string{"update"}, Resource: "persistentvolumes", Name: "disk"},
			user:   "system:serviceaccount:kube-system:persistent-volume-binder",
			body:   `"claimRef"`,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			events, err := c.Audit(tc.filter)
			if err != nil {
				t.Fatal(err)
			}
			if len(events) != 1 {
				t.Fatalf("%d events, want 1: %+v", len(events), events)
			}
			if got := events[0].User.Username; got != tc.user {
				t.Errorf("user %s, want %s", got, tc.user)
			}
			if body := string(events[0].RequestObject.Raw); !strings.Contains(body, tc.body) {
				t.Errorf("request %s does not contain %s", body, tc.body)
			}
			tc.filter.Since = before
			if since, err := c.Audit(tc.filter); err != nil || len(since) != 1 {
				t.Errorf("after the mark: %d events, error %v, want 1 event", len(since), err)
			}
			if tc.filter.Since, err = c.AuditMark(); err != nil {
				t.Fatal(err)
			}
			if later, err := c.Audit(tc.filter); err != nil || len(later) != 0 {
				t.Errorf("after a later mark: %d events, error %v, want none", len(later), err)
			}
		})
	}
}

// testDriver: the mock driver and the CSI sidecars provision, snapshot, restore,
// expand and delete, and csi-transfer runs beside them.
func testDriver(t *testing.T, c *Cluster) {
	ctx := t.Context()
	d, err := c.StartDriver(ctx, DriverOptions{
		Name:           "driver.example.com",
		AttachRequired: true,
		Snapshotter:    true,
		Resizer:        true,
		Attacher:       true,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.CreateNamespace(ctx, "dynamic"); err != nil {
		t.Fatal(err)
	}
	if err := c.Apply(ctx, `
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: dynamic}
provisioner: driver.example.com
allowVolumeExpansion: true
---
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotClass
metadata: {name: dynamic}
driver: driver.example.com
deletionPolicy: Delete
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {namespace: dynamic, name: data}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: dynamic
  resources: {requests: {storage: 1Gi}}
---
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {namespace: dynamic, name: yesterday}
spec:
  volumeSnapshotClassName: dynamic
  source: {persistentVolumeClaimName: data}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {namespace: dynamic, name: restored}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: dynamic
  resources: {requests: {storage: 1Gi}}
  dataSource: {apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: yesterday}
`); err != nil {
		t.Fatal(err)
	}
	if _, err := c.WaitClaimPhase(ctx, "dynamic", "restored", corev1.ClaimBound); err != nil {
		t.Fatal(err)
	}
	claim, err := c.WaitClaimPhase(ctx, "dynamic", "data", corev1.ClaimBound)
	if err != nil {
		t.Fatal(err)
	}

	if _, err := c.Kubectl(ctx, "patch", "--namespace=dynamic", "persistentvolumeclaim", "data",
		`--patch={"spec":{"resources":{"requests":{"storage":"2Gi"}}}}`); err != nil {
		t.Fatal(err)
	}
	if _, err := Wait(ctx, c, Volumes, "", claim.Spec.VolumeName, func(v *corev1.PersistentVolume) bool {
		return v.Spec.Capacity.Storage().String() == "2Gi"
	}); err != nil {
		t.Fatal(err)
	}

	if err := c.ApplyKustomize(ctx, "../../deploy/kubernetes"); err != nil {
		t.Fatal(err)
	}
	sidecar, err := c.StartSidecar(ctx, SidecarOptions{Address: d.Address, Kubeconfig: c.Kubeconfig})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Apply(ctx, `
apiVersion: transfer.storage.x-k8s.io/v1alpha1
kind: NamespaceTransferRequest
metadata: {namespace: dynamic, name: take-data}
spec:
  source: {namespace: dynamic, kind: PersistentVolumeClaim, name: data}
---
apiVersion: transfer.storage.x-k8s.io/v1alpha1
kind: NamespaceTransferApproval
metadata: {namespace: dynamic, name: give-data}
spec:
  source: {kind: PersistentVolumeClaim, name: data}
  targetNamespace: dynamic
`); err != nil {
		t.Fatal(err)
	}
	if _, err := c.WaitCondition(ctx, Requests, "dynamic", "take-data", "Approved", metav1.ConditionTrue, "Approved"); err != nil {
		t.Fatal(err)
	}
	if err := sidecar.Stop(ctx); err != nil {
		t.Error(err)
	}

	if _, err := c.Kubectl(ctx, "delete", "--namespace=dynamic", "--wait=false", "persistentvolumeclaim", "data"); err != nil {
		t.Fatal(err)
	}
	if err := c.WaitGone(ctx, Volumes, "", claim.Spec.VolumeName); err != nil {
		t.Fatal(err)
	}
}

// testWaitInVain: a wait in vain says what the object was like instead.
func testWaitInVain(t *testing.T, c *Cluster) {
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	_, err := Wait(ctx, c, ServiceAccounts, "default", "default", func(*corev1.ServiceAccount) bool { return false })
	for _, want := range []string{"serviceaccounts default/default", `"kind":"ServiceAccount"`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not contain %q", err, want)
		}
	}
}

// testUsers: kubeconfigs authenticate as whom they are for, with no more rights
// than RBAC gives.
func testUsers(t *testing.T, c *Cluster) {
	ctx := t.Context()
	person, err := c.KubeconfigFor("jane", "developers")
	if err != nil {
		t.Fatal(err)
	}
	account, err := c.ServiceAccountKubeconfig(ctx, "default", "default")
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ kubeconfig, user, group string }{
		{c.Kubeconfig, "admin", "system:masters"},
		{person, "jane", "developers"},
		{account, "system:serviceaccount:default:default", "system:serviceaccounts:default"},
	} {
		t.Run(tc.user, func(t *testing.T) {
			who, err := c.Kubectl(ctx, "auth", "whoami", "--kubeconfig="+tc.kubeconfig, "--output=jsonpath={.status.userInfo.username} {.status.userInfo.groups}")
			if err != nil {
				t.Fatal(err)
			}
			if !strings.HasPrefix(who, tc.user+" ") || !strings.Contains(who, `"`+tc.group+`"`) {
				t.Errorf("authenticated as %s, want %s in %s", who, tc.user, tc.group)
			}
			_, err = c.Kubectl(ctx, "get", "persistentvolumes", "--kubeconfig="+tc.kubeconfig)
			if allowed, want := err == nil, tc.kubeconfig == c.Kubeconfig; allowed != want {
				t.Errorf("listing volumes: error %v, want allowed %t", err, want)
			}
		})
	}
}

// TestProcessControl: components can be taken away and come back with all that
// they knew.
func TestProcessControl(t *testing.T) {
	t.Parallel()
	c, ctx := startCluster(t), t.Context()
	if err := c.CreateNamespace(ctx, "kept"); err != nil {
		t.Fatal(err)
	}
	server := c.Process("kube-apiserver")

	server.Kill()
	if _, err := c.Client.CoreV1().Namespaces().Get(ctx, "kept", metav1.GetOptions{}); err == nil {
		t.Error("a killed API server answered")
	}
	if err := server.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Client.CoreV1().Namespaces().Get(ctx, "kept", metav1.GetOptions{}); err != nil {
		t.Errorf("after a restart: %v", err)
	}

	if err := server.Pause(); err != nil {
		t.Fatal(err)
	}
	brief, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	if _, err := c.Client.CoreV1().Namespaces().Get(brief, "kept", metav1.GetOptions{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a paused API server: error %v, want a deadline that passed", err)
	}
	if err := server.Resume(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Client.CoreV1().Namespaces().Get(ctx, "kept", metav1.GetOptions{}); err != nil {
		t.Errorf("after a pause: %v", err)
	}

	sleeper, err := c.Run(ctx, "sleeper", "sleep", "infinity")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Run(ctx, "sleeper", "sleep", "infinity"); err == nil {
		t.Error("two processes were given one name")
	}
	if err := sleeper.Stop(ctx); err == nil {
		t.Error("a process that a signal ended did so without an error")
	}
	if _, err := c.Run(ctx, "sleeper", "sleep", "infinity"); err != nil {
		t.Errorf("the name of a process that ended: %v", err)
	}
}

// TestStartFailure: whoever starts a cluster in vain is shown why.
func TestStartFailure(t *testing.T) {
	for _, tc := range []struct {
		program string
		options Options
	}{
		{"kube-apiserver", Options{APIServerFlags: []string{"--no-such-flag"}}},
		{"kube-controller-manager", Options{ControllerManagerFlags: []string{"--no-such-flag"}}},
	} {
		t.Run(tc.program, func(t *testing.T) {
			t.Parallel()
			_, err := Start(t.Context(), tc.options)
			for _, want := range []string{tc.program, "unknown flag: --no-such-flag"} {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("error %v does not contain %q", err, want)
				}
			}
		})
	}
}

// TestEnd: however a cluster ends, none of its processes is left, and all else
// goes at the latest when the next one starts.
func TestEnd(t *testing.T) {
	t.Run("Stop", func(t *testing.T) {
		t.Parallel()
		testEnd(t, withoutNode, func(c *Cluster, _ context.CancelFunc) { c.Stop() })
	})
	t.Run("context", func(t *testing.T) {
		t.Parallel()
		testEnd(t, withoutNode, func(_ *Cluster, cancel context.CancelFunc) { cancel() })
	})
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGKILL} {
		t.Run(signal.String(), func(t *testing.T) {
			t.Parallel()
			testEndOfParent(t, signal, withoutNode)
		})
	}
}

// TestNodeEnd: the same with a node, which the kernel keeps more of.
func TestNodeEnd(t *testing.T) {
	t.Run("Stop", func(t *testing.T) {
		t.Parallel()
		testEnd(t, withNode, func(c *Cluster, _ context.CancelFunc) { c.Stop() })
	})
	t.Run(syscall.SIGKILL.String(), func(t *testing.T) {
		t.Parallel()
		testEndOfParent(t, syscall.SIGKILL, withNode)
	})
}

func testEnd(t *testing.T, with string, end func(*Cluster, context.CancelFunc)) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c, dirs, err := startWith(ctx, with)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Stop()
	var processes []int
	for _, p := range c.processes {
		processes = append(processes, pidfd(t, p.PID()))
	}
	nothingLeft := watchFor(t, dirs)
	end(c, cancel)
	waitEnded(t, processes)
	c.Stop() // returns when a stop that goes on is through
	nothingLeft()
}

func testEndOfParent(t *testing.T, signal syscall.Signal, with string) {
	parent := exec.CommandContext(t.Context(), os.Args[0])
	parent.Env = append(os.Environ(), childVariable+"="+with)
	parent.Stderr = os.Stderr
	stdout, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	var dirs []string
	var processes []int
	lines := bufio.NewScanner(stdout)
	for lines.Scan() && lines.Text() != "up" {
		what, value, _ := strings.Cut(lines.Text(), " ")
		if what == "dir" {
			dirs = append(dirs, value)
			continue
		}
		pid, err := strconv.Atoi(value)
		if err != nil {
			t.Fatal(err)
		}
		processes = append(processes, pidfd(t, pid))
	}
	if len(processes) == 0 {
		t.Fatal("the parent started nothing")
	}
	nothingLeft := watchFor(t, dirs)
	if err := parent.Process.Signal(signal); err != nil {
		t.Fatal(err)
	}
	waitEnded(t, processes)
	parent.Wait()

	if _, release, err := claimDir(""); err != nil {
		t.Error(err)
	} else {
		release()
	}
	nothingLeft()
}

// watchFor looks at what the kernel has for clusters in these directories. The
// function that it returns fails the test if anything of it is left.
func watchFor(t *testing.T, dirs []string) (nothingLeft func()) {
	t.Helper()
	loops := map[string][]loop{}
	for _, dir := range dirs {
		var err error
		if loops[dir], err = loopsOf(dir); err != nil {
			t.Fatal(err)
		}
	}
	return func() {
		t.Helper()
		mounts, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil {
			t.Fatal(err)
		}
		for _, dir := range dirs {
			if _, err := os.Stat(dir); !os.IsNotExist(err) {
				t.Errorf("%s is left (%v)", dir, err)
			}
			if strings.Contains(string(mounts), dir) {
				t.Errorf("a mount in %s is left", dir)
			}
			groups, err := filepath.Glob("/sys/fs/cgroup/*/" + cgroupName(dir))
			if err != nil || len(groups) > 0 {
				t.Errorf("control groups %v are left (%v)", groups, err)
			}
			// A device that somebody looks at is detached when they close it.
			if err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, 10*time.Second, true, func(context.Context) (bool, error) {
				inUse, err := listLoops()
				left := slices.ContainsFunc(inUse, func(l loop) bool {
					return slices.ContainsFunc(loops[dir], func(own loop) bool { return own.number == l.number && *own.behind == *l.behind })
				})
				return !left, err
			}); err != nil {
				t.Errorf("one of the loop devices %v is left: %v", loops[dir], err)
			}
		}
	}
}

func pidfd(t *testing.T, pid int) int {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatalf("process %d: %v", pid, err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// waitEnded waits until the processes have ended.
func waitEnded(t *testing.T, pidfds []int) {
	t.Helper()
	for _, fd := range pidfds {
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(poll, 10_000)
		for errors.Is(err, unix.EINTR) {
			n, err = unix.Poll(poll, 10_000)
		}
		if err != nil || n != 1 {
			t.Errorf("a process is left (%v)", err)
		}
	}
}

// TestAuditLineCutShort: what an API server was writing when it was killed does
// not hide what the next one wrote.
func TestAuditLineCutShort(t *testing.T) {
	c := &Cluster{Dir: t.TempDir()}
	log := `{"kind":"Event","apiVersion":"audit.k8s.io/v1","verb":"get","objectRef":{"name":"whole"}}
{"kind":"Event","apiVersion":"audit.k8s.io/v1","verb":"get","object{"kind":"Event","apiVersion":"audit.k8s.io/v1","verb":"get","objectRef":{"name":"next"}}
{"kind":"Event","apiVersion":"audit.k8s.io/v1","verb":"ge`
	if err := os.WriteFile(c.path("audit.log"), []byte(log), 0o644); err != nil {
		t.Fatal(err)
	}
	events, err := c.Audit(AuditFilter{})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range events {
		names = append(names, e.ObjectRef.Name)
	}
	if want := []string{"whole", "next"}; !slices.Equal(names, want) {
		t.Errorf("events for %v, want %v", names, want)
	}
}

// TestBuildLock: whoever finds a build in progress waits for its end.
func TestBuildLock(t *testing.T) {
	b := builder{artifacts: t.TempDir()}
	unlock, err := b.lock(t.Context(), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := b.lock(ctx, io.Discard); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("second builder: error %v, want a deadline that passed", err)
	}
	unlock()
	unlock, err = b.lock(t.Context(), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	unlock()
}

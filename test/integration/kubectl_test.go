// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/csi-transfer/csi-transfer/test/cluster"
)

// requesterRole and approverRole are those of deploy/kubernetes for the two
// sides.
const (
	requesterRole = "namespace-transfer-requester"
	approverRole  = "namespace-transfer-approver"
)

// completionDir has the script by which kubectl completes the plugin's words.
var completionDir = filepath.Join(repository, "cmd", "kubectl-transfer")

// person types kubectl commands, with credentials of their own.
type person struct {
	s          *scene
	kubeconfig string
	// changes turns the names of README and --help into the scene's, and back.
	changes, back *strings.Replacer
}

// person makes one who has roles in namespaces, given as namespace=role.
func (s *scene) person(name string, grants ...string) *person {
	s.Helper()
	user := name + "-" + strings.TrimPrefix(s.giver, "prod-")
	for _, grant := range grants {
		namespace, role, _ := strings.Cut(grant, "=")
		must[*rbacv1.RoleBinding](s)(s.Client.RbacV1().RoleBindings(namespace).Create(s.ctx, &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: user + "-" + role},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: user}},
		}, metav1.CreateOptions{}))
	}
	return s.withKubeconfig(must[string](s)(s.KubeconfigFor(user)))
}

func (s *scene) withKubeconfig(kubeconfig string) *person {
	return &person{s: s, kubeconfig: kubeconfig, changes: s.names(), back: strings.NewReplacer(s.giver, "prod", s.receiver, "dev")}
}

// names turns the names of README and --help into the scene's. The sets of
// characters after a name keep database from becoming one.
func (s *scene) names() *strings.Replacer {
	var pairs []string
	for _, before := range []string{" ", "/", "=", "-from-", "-to-"} {
		for _, after := range []string{" ", "/", "\n", "'"} {
			pairs = append(pairs, before+"prod"+after, before+s.giver+after, before+"dev"+after, before+s.receiver+after)
		}
	}
	return strings.NewReplacer(pairs...)
}

// command is a shell command as somebody types it, with names as in README.
func (p *person) command(ctx context.Context, line string) *exec.Cmd {
	p.s.Helper()
	plugin := must[string](p.s)(cluster.Program(p.s.ctx, "kubectl-transfer", os.Stderr))
	must[string](p.s)(cluster.Program(p.s.ctx, "kubectl", os.Stderr))
	completion := must[string](p.s)(filepath.Abs(completionDir))
	cmd := exec.CommandContext(ctx, "sh", "-c", "exec "+strings.TrimSpace(p.changes.Replace(line+"\n")))
	cmd.Dir = repository
	cmd.Env = append(os.Environ(), "KUBECONFIG="+p.kubeconfig, "PATH="+filepath.Dir(plugin)+":"+completion+":"+os.Getenv("PATH"), "HOME="+p.s.TempDir())
	// As Ctrl-C does, and not as a kill.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 20 * time.Second
	return cmd
}

// types runs a command and returns what it prints and its exit code, with names
// as in README.
func (p *person) types(line string) (output string, code int) {
	p.s.Helper()
	cmd := p.command(p.s.ctx, line)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	return p.result(&out, cmd.Run())
}

func (p *person) result(out *bytes.Buffer, err error) (string, int) {
	p.s.Helper()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) && p.s.ctx.Err() == nil {
		p.s.Fatal(err)
	}
	code := 0
	if exit != nil {
		code = exit.ExitCode()
	}
	return fleeting.ReplaceAllString(p.steady(out.String()), ""), code
}

// fleeting are lines of progress that are printed or not, depending on how soon
// csi-transfer is done.
var fleeting = regexp.MustCompile(`(?m)^\S+( -> \S+)?: (Moving: .*|Waiting: approved|Waiting: for csi-transfer to see the approval|Waiting: for an approval.*)\n`)

// varying is what no two runs print alike.
var varying = []struct {
	pattern *regexp.Regexp
	with    string
}{
	{regexp.MustCompile(`(?m)^(\[Debug\]|Completion ended).*\n`), ""}, // of no interest to a shell
	{regexp.MustCompile(`pvc-[0-9a-f-]{36}`), "VOLUME"},
	{regexp.MustCompile(`\b[0-9a-f]{8}-[0-9a-f-]{27}\b`), "UID"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ`), "TIME"},
	{regexp.MustCompile(`\b(alice|bob|carol)-\d+\b`), "$1"},
	{regexp.MustCompile(`resourceVersion: "\d+"`), "resourceVersion: N"},
	{regexp.MustCompile(`\b\d+m?s( +|\n)`), "AGE$1"},
	{regexp.MustCompile(` {2,}`), "  "},
	{regexp.MustCompile(`(?m) +$`), ""},
}

func (p *person) steady(text string) string {
	text = p.back.Replace(text)
	for _, v := range varying {
		text = v.pattern.ReplaceAllString(text, v.with)
	}
	return text
}

// running is a command that has not ended.
type running struct {
	*exec.Cmd
	stop context.CancelFunc
	done chan error

	mu      sync.Mutex
	out     bytes.Buffer
	changed chan struct{} // closed, and made anew, when out grows
}

func (r *running) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.changed)
	r.changed = make(chan struct{})
	return r.out.Write(b)
}

// starts runs a command that goes on, until it has printed a text.
func (p *person) starts(line, until string) *running {
	p.s.Helper()
	ctx, stop := context.WithCancel(p.s.ctx)
	r := &running{Cmd: p.command(ctx, line), stop: stop, done: make(chan error, 1), changed: make(chan struct{})}
	r.Stdout, r.Stderr = r, r
	p.s.must(r.Start())
	p.s.Cleanup(stop)
	go func() { r.done <- r.Wait() }()
	p.awaits(r, until)
	return r
}

// awaits waits until a command has printed a text.
func (p *person) awaits(r *running, text string) {
	p.s.Helper()
	for {
		r.mu.Lock()
		printed, changed := p.steady(r.out.String()), r.changed
		r.mu.Unlock()
		if strings.Contains(printed, text) {
			return
		}
		select {
		case <-changed:
		case err := <-r.done:
			p.s.Fatalf("%s ended (%v) before it printed %q:\n%s", r, err, text, r.out.String())
		case <-p.s.ctx.Done():
			p.s.Fatalf("%s has not printed %q:\n%s", r, text, printed)
		}
	}
}

// ends waits for the end of a command that was started.
func (p *person) ends(r *running) (string, int) {
	p.s.Helper()
	err := <-r.done
	return p.result(&r.out, err)
}

// TestKubectl_Transcripts: what people type and see, as files tell it. alice has
// nothing but the role of the giver in prod, bob nothing but that of the receiver
// in dev, and carol may edit both.
func TestKubectl_Transcripts(t *testing.T) {
	datadriven.Walk(t, filepath.Join("testdata", "kubectl"), func(t *testing.T, path string) {
		s := newScene(t)
		people := map[string]*person{
			"alice": s.person("alice", s.giver+"="+approverRole),
			"bob":   s.person("bob", s.receiver+"="+requesterRole),
			"carol": s.person("carol", s.giver+"=edit", s.receiver+"=edit"),
			"admin": s.withKubeconfig(s.Kubeconfig),
		}
		background := map[string]*running{}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			t.Helper()
			p := people[d.Cmd]
			if p == nil {
				return s.stage(d)
			}
			printed := func(output string, code int) string {
				if code != 0 {
					output += fmt.Sprintf("exit code %d\n", code)
				}
				return output
			}
			var name, until string
			switch {
			case d.HasArg("starts"):
				d.ScanArgs(t, "starts", &name)
				until = d.Input[strings.Index(d.Input, "\n")+1:]
				line, _, _ := strings.Cut(d.Input, "\n")
				background[name] = p.starts(line, until)
				return ""
			case d.HasArg("awaits"):
				d.ScanArgs(t, "awaits", &name)
				p.awaits(background[name], d.Input)
				return ""
			case d.HasArg("interrupts"):
				d.ScanArgs(t, "interrupts", &name)
				background[name].stop()
				return printed(p.ends(background[name]))
			case d.HasArg("ends"):
				d.ScanArgs(t, "ends", &name)
				return printed(p.ends(background[name]))
			}
			return printed(p.types(d.Input))
		})
	})
}

// stage changes what a transcript plays on.
func (s *scene) stage(d *datadriven.TestData) string {
	s.Helper()
	where := map[string]string{"prod": s.giver, "dev": s.receiver}
	arg := func(key string) string {
		var value string
		d.MaybeScanArgs(s.T, key, &value)
		return value
	}
	namespace := where[arg("namespace")]
	switch d.Cmd {
	case "claim":
		s.claim(namespace, arg("name"), func(c *corev1.PersistentVolumeClaim) { c.Labels = map[string]string{"app": "shop"} })
		s.bound(namespace, arg("name"))
	case "pod":
		s.pod(namespace, arg("name"), arg("claim"))
	case "pod-ends":
		s.deletePod(namespace, arg("name"))
	case "quota":
		s.quota(namespace, arg("claims"))
	case "statefulset":
		var replicas int32
		d.ScanArgs(s.T, "claims", &replicas)
		s.statefulSet(namespace, arg("name"), replicas)
	case "phase":
		must[*corev1.PersistentVolumeClaim](s)(s.WaitClaimPhase(s.ctx, namespace, arg("name"), corev1.PersistentVolumeClaimPhase(arg("is"))))
	default:
		s.Fatalf("%s: unknown command %s", d.Pos, d.Cmd)
	}
	return ""
}

// quota bounds how many claims a namespace may have, and returns when that holds.
func (s *scene) quota(namespace, claims string) {
	s.Helper()
	s.must(s.Apply(s.ctx, fmt.Sprintf("{apiVersion: v1, kind: ResourceQuota, metadata: {name: claims, namespace: %s}, spec: {hard: {persistentvolumeclaims: %q}}}", namespace, claims)))
	must[*corev1.ResourceQuota](s)(cluster.Wait(s.ctx, s.Cluster, corev1.SchemeGroupVersion.WithResource("resourcequotas"), namespace, "claims", func(q *corev1.ResourceQuota) bool {
		hard, used := q.Status.Hard[corev1.ResourcePersistentVolumeClaims], q.Status.Used
		return hard.String() == claims && used != nil
	}))
}

// statefulSet makes one, whose claims data-NAME-0 and so on are Bound. It has no
// pods, as one that was scaled down.
func (s *scene) statefulSet(namespace, name string, claims int32) {
	s.Helper()
	labels := map[string]string{"set": name}
	must[*appsv1.StatefulSet](s)(s.Client.AppsV1().StatefulSets(namespace).Create(s.ctx, &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.StatefulSetSpec{
			Replicas:             ptr.To[int32](0),
			Selector:             &metav1.LabelSelector{MatchLabels: labels},
			Template:             corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "none"}}}},
			VolumeClaimTemplates: []corev1.PersistentVolumeClaim{*s.newClaim("data")},
		},
	}, metav1.CreateOptions{}))
	for i := range claims {
		claim := fmt.Sprintf("data-%s-%d", name, i)
		s.claim(namespace, claim)
		s.bound(namespace, claim)
	}
}

// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/yaml"

	"github.com/csi-transfer/csi-transfer/internal/docs"
	"github.com/csi-transfer/csi-transfer/pkg/sidecar/protocol"
	"github.com/csi-transfer/csi-transfer/test/cluster"
	"github.com/csi-transfer/csi-transfer/test/node/shipped"
)

// repository is the root of the repository.
var repository = filepath.Join("..", "..")

// blocks are those of a document in a language. Without a heading they are all
// of the document, else those under it.
func (s *scene) blocks(document, heading, language string) []string {
	s.Helper()
	var found []string
	for _, b := range must[[]docs.Block](s)(docs.Blocks(filepath.Join(repository, document))) {
		if b.Language == language && (heading == "" || b.Heading == heading) {
			found = append(found, b.Text)
		}
	}
	if len(found) == 0 {
		s.Fatalf("%s has no block of %s under %q", document, language, heading)
	}
	return found
}

// shell runs a script as an administrator who copies it from a document.
func (s *scene) shell(script string, variables ...string) {
	s.Helper()
	kubectl := must[string](s)(cluster.Program(s.ctx, "kubectl", os.Stderr))
	must[string](s)(cluster.Program(s.ctx, "kubectl-transfer", os.Stderr)) // beside it
	cmd := exec.CommandContext(s.ctx, "sh", "-eu", "-c", script)
	cmd.Dir = repository
	cmd.Env = append(os.Environ(), variables...)
	// A home of its own: kubectl keeps there what it knows of an address.
	cmd.Env = append(cmd.Env, "KUBECONFIG="+s.Kubeconfig, "PATH="+filepath.Dir(kubectl)+":"+os.Getenv("PATH"), "HOME="+s.TempDir())
	if output, err := cmd.CombinedOutput(); err != nil {
		s.Fatalf("%v:\n%s\n%s", err, script, output)
	}
}

// TestDocs_Readme: the API server accepts the manifests in README, and its
// commands, one after the other, transfer a claim.
func TestDocs_Readme(t *testing.T) {
	s := newScene(t)
	for _, namespace := range []string{"prod", "dev"} {
		s.must(s.CreateNamespace(s.ctx, namespace))
	}
	for _, manifest := range s.blocks("README.md", "", "yaml") {
		file := filepath.Join(s.TempDir(), "manifest.yaml")
		s.must(os.WriteFile(file, []byte(manifest), 0o600))
		must[string](s)(s.Kubectl(s.ctx, "create", "--dry-run=server", "--validate=strict", "-f", file))
	}

	must[string](s)(s.Kubectl(s.ctx, "apply", "-f", filepath.Join(repository, "examples", "source-claim.yaml")))
	source := s.bound("prod", "data")
	s.older(source)
	follow := func(heading string) {
		for _, script := range s.blocks("README.md", heading, "sh") {
			s.shell(script)
		}
	}
	follow("Install")
	follow("Transfer a claim") // and back
	returned := s.bound("prod", "data")
	if returned.UID == source.UID || returned.Spec.VolumeName != source.Spec.VolumeName {
		t.Errorf("prod/data, which had volume %s, went to dev and came back with %s", source.Spec.VolumeName, returned.Spec.VolumeName)
	}
	s.older(returned)
	follow("With manifests")
	received := s.bound("dev", "data")
	if received.Spec.VolumeName != source.Spec.VolumeName {
		t.Errorf("dev/data has volume %s, not %s", received.Spec.VolumeName, source.Spec.VolumeName)
	}

	s.older(received)
	must[string](s)(s.Kubectl(s.ctx, "apply", "-f", filepath.Join(repository, "examples", "give-back")))
	if claim := s.bound("prod", "data-returned"); claim.Spec.VolumeName != source.Spec.VolumeName {
		t.Errorf("prod/data-returned has volume %s, not %s", claim.Spec.VolumeName, source.Spec.VolumeName)
	}
}

// TestDocs_Example: the API server accepts the example of a whole driver, fields
// that it does not know being errors, and lets its pods be made.
func TestDocs_Example(t *testing.T) {
	s := newScene(t)
	s.must(s.StartSnapshotController(s.ctx)) // its CRDs
	example := shipped.Options{Name: "example", FirstPort: 8080}
	manifests := must[string](s)(shipped.Manifests(s.ctx, s.Cluster, deploy("examples", "mock"), example))
	s.must(s.Apply(s.ctx, manifests))
	must[*appsv1.Deployment](s)(cluster.Wait(s.ctx, s.Cluster, appsv1.SchemeGroupVersion.WithResource("deployments"), example.Namespace(), example.Controller(), func(d *appsv1.Deployment) bool {
		return d.Status.Replicas == 1
	}))
}

// TestDocs_ExampleNeedsNoPrivilege: but for what is the mock's own, the controller
// of the example may run where Kubernetes restricts pods most.
func TestDocs_ExampleNeedsNoPrivilege(t *testing.T) {
	s := newScene(t)
	text, err := os.ReadFile(deploy("examples", "mock", "deployment.yaml"))
	s.must(err)
	deployment := &appsv1.Deployment{}
	s.must(yaml.UnmarshalStrict(text, deployment))
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "controller"}, Spec: deployment.Spec.Template.Spec}
	pod.Spec.ServiceAccountName = ""
	containers := pod.Spec.Containers
	driver := slices.IndexFunc(containers, func(c corev1.Container) bool { return c.Name == "mock-csi-driver" })
	containers[driver].SecurityContext = containers[0].SecurityContext
	for i := range pod.Spec.Volumes {
		pod.Spec.Volumes[i].VolumeSource = corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}
	}
	must[*corev1.Namespace](s)(s.Client.CoreV1().Namespaces().Patch(s.ctx, s.giver, types.MergePatchType,
		[]byte(`{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"restricted"}}}`), metav1.PatchOptions{}))
	must[*corev1.Pod](s)(s.Client.CoreV1().Pods(s.giver).Create(s.ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}))
}

// older waits until a claim was created in an earlier second than this one: an
// approval that does not pin its claim covers no other.
func (s *scene) older(claim *corev1.PersistentVolumeClaim) {
	s.Helper()
	s.must(wait.PollUntilContextCancel(s.ctx, 50*time.Millisecond, true, func(context.Context) (bool, error) {
		return time.Since(claim.CreationTimestamp.Time) >= time.Second, nil
	}))
}

// deletionsDone waits until the claims are gone that are being deleted.
func (s *scene) deletionsDone() {
	s.Helper()
	s.must(wait.PollUntilContextCancel(s.ctx, 50*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		for _, namespace := range []string{s.giver, s.receiver} {
			claims, err := s.claims(namespace).List(ctx, metav1.ListOptions{})
			if err != nil {
				return false, err
			}
			if slices.ContainsFunc(claims.Items, func(c corev1.PersistentVolumeClaim) bool { return c.DeletionTimestamp != nil }) {
				return false, nil
			}
		}
		return true, nil
	}))
}

// TestDocs_Kubectl: the commands of the plugin's guide can be typed one after the
// other by a user who may edit both namespaces.
func TestDocs_Kubectl(t *testing.T) {
	s := newScene(t)
	carol := s.person("carol", s.giver+"=edit", s.receiver+"=edit")
	source := s.source()
	for _, script := range s.blocks("docs/kubectl.md", "", "sh") {
		for line := range strings.Lines(script) {
			if output, code := carol.types(line); code != 0 {
				t.Fatalf("%s exits with %d:\n%s", line, code, output)
			}
			s.deletionsDone() // a person does not type that fast
		}
	}
	if archive := s.bound(s.receiver, "archive"); archive.Spec.VolumeName != source.Spec.VolumeName {
		t.Errorf("dev/archive has volume %s, not %s", archive.Spec.VolumeName, source.Spec.VolumeName)
	}
	if copied := s.bound(s.giver, "data"); copied.Spec.VolumeName == source.Spec.VolumeName {
		t.Errorf("prod/data is no copy: it has volume %s itself", copied.Spec.VolumeName)
	}
}

// TestDocs_Operations: the commands that only look do so.
func TestDocs_Operations(t *testing.T) {
	s := newScene(t)
	for _, heading := range []string{"What is going on", "Spent claims"} {
		for _, script := range s.blocks("docs/operations.md", heading, "sh") {
			s.shell(script)
		}
	}
}

// TestDocs_RecoveringByHand: without a sidecar, an administrator can end a
// transfer either way with what the document says.
func TestDocs_RecoveringByHand(t *testing.T) {
	for name, end := range map[string]struct {
		owner func(*protocol.Journal) protocol.Ref
		check func(*scene, *corev1.PersistentVolume)
	}{
		"back":    {func(j *protocol.Journal) protocol.Ref { return j.Source }, (*scene).returned},
		"forward": {func(j *protocol.Journal) protocol.Ref { return j.Claim }, (*scene).arrived},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			d := s.vendor(cluster.DriverOptions{})
			sidecar := s.sidecarOf(d)
			before, lift := s.inFlight()
			sidecar.Kill()
			lift()
			j, err := protocol.ParseJournal(s.volume(before.Name), d.Name)
			s.must(err)
			s.handOver(before.Name, end.owner(j), j.ReclaimPolicy)
			end.check(s, before)
		})
	}
	// As a transfer leaves a volume whose claim was deleted after bind.
	t.Run("abandoned", func(t *testing.T) {
		s := newScene(t)
		source := s.source()
		before := s.volume(source.Spec.VolumeName)
		s.patchVolume(before.Name, `{"spec":{"persistentVolumeReclaimPolicy":"Retain"}}`)
		s.deleteClaim(s.giver, "data", true)
		s.waitVolume(before.Name, func(pv *corev1.PersistentVolume) bool { return pv.Status.Phase == corev1.VolumeReleased })
		s.handOver(before.Name, protocol.RefOf(s.claim(s.receiver, "data", on(before.Name))), corev1.PersistentVolumeReclaimDelete)
		s.arrived(before)
	})
}

// handOver follows the document.
func (s *scene) handOver(volume string, owner protocol.Ref, policy corev1.PersistentVolumeReclaimPolicy) {
	s.Helper()
	for _, script := range s.blocks("docs/operations.md", "Recovering by hand", "sh") {
		s.shell(script, "volume="+volume, "namespace="+owner.Namespace, "name="+owner.Name, "uid="+string(owner.UID), "policy="+string(policy))
	}
}

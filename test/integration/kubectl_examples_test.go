// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/csi-transfer/csi-transfer/pkg/apis/transfer/v1alpha1"
	"github.com/csi-transfer/csi-transfer/test/cluster"
)

// stages are what the examples in --help of each command need.
var stages = map[string]func(s *scene, typist *person){
	"approve":  func(s *scene, _ *person) { s.source() },
	"accept":   func(s *scene, _ *person) { s.approve(s.source()) },
	"move":     (*scene).shop,
	"rename":   func(s *scene, _ *person) { s.source() },
	"copy":     func(s *scene, _ *person) { s.source() },
	"undo":     (*scene).movedAway,
	"check":    func(s *scene, _ *person) { s.source() },
	"get":      func(s *scene, _ *person) { s.request() },
	"describe": (*scene).agreed,
	"cancel":   (*scene).agreed,
	"spent":    (*scene).movedAway,
	"rescue":   (*scene).stranded,
}

// shop has what can be moved.
func (s *scene) shop(*person) {
	s.source(func(c *corev1.PersistentVolumeClaim) { c.Labels = map[string]string{"app": "shop"} })
	s.statefulSet(s.giver, "db", 2)
}

// movedAway is after a transfer.
func (s *scene) movedAway(typist *person) {
	s.source()
	if out, code := typist.types("kubectl transfer move prod/pvc/data dev/pvc/data"); code != 0 {
		s.Fatal(out)
	}
}

// agreed is in the middle of a transfer that waits for a pod.
func (s *scene) agreed(*person) {
	source := s.source()
	s.pod(s.giver, "app", "data")
	s.request()
	s.approve(source)
}

// stranded has a volume in flight and no sidecar.
func (s *scene) stranded(*person) {
	d := s.vendor(cluster.DriverOptions{})
	sidecar := s.sidecarOf(d)
	_, lift := s.inFlight()
	sidecar.Kill()
	lift()
}

// TestKubectl_Examples: every example that --help of a command gives can be
// typed as it stands.
func TestKubectl_Examples(t *testing.T) {
	s := newScene(t)
	admin := s.withKubeconfig(s.Kubeconfig)
	offered, _ := admin.types("kubectl-transfer __complete ''")
	tested := 0
	for line := range strings.Lines(offered) {
		command, _, ok := strings.Cut(line, "\t")
		if !ok || command == "completion" || command == "help" {
			continue
		}
		tested++
		t.Run(command, func(t *testing.T) {
			stage := stages[command]
			if stage == nil {
				t.Fatal("no stage for the examples of this command")
			}
			help, _ := admin.types("kubectl-transfer " + command + " --help")
			examples := examplesOf(help)
			if len(examples) == 0 {
				t.Fatalf("--help has no example:\n%s", help)
			}
			for _, example := range examples {
				t.Run("", func(t *testing.T) {
					s := newScene(t)
					typist := s.person("carol", s.giver+"=edit", s.receiver+"=edit")
					if command == "rescue" || strings.Contains(example, " -A") {
						typist = s.withKubeconfig(s.Kubeconfig)
					}
					stage(s, typist)
					line := strings.ReplaceAll(example, "pvc-1f0b", s.moving)
					if out, code := typist.types(line); code != 0 {
						t.Errorf("%s\nexit code %d:\n%s", line, code, out)
					}
				})
			}
		})
	}
	if tested != len(stages) {
		t.Errorf("%d commands were found in:\n%s", tested, offered)
	}
}

// examplesOf are the commands under Examples in a --help.
func examplesOf(help string) []string {
	var examples []string
	inside := false
	for line := range strings.Lines(help) {
		switch text := strings.TrimSpace(line); {
		case text == "Examples:":
			inside = true
		case inside && text != "" && !strings.HasPrefix(line, " "):
			return examples
		case inside && strings.HasPrefix(text, "kubectl "):
			examples = append(examples, text)
		}
	}
	return examples
}

// TestKubectl_Rescue: without a sidecar an administrator ends a transfer with one
// command, either way, as the journal on the volume says.
func TestKubectl_Rescue(t *testing.T) {
	for name, test := range map[string]struct {
		// held is the write before which the sidecar is killed.
		held string
		// meanwhile is what happens before the rescue.
		meanwhile func(*scene)
		says      string
		check     func(*scene, *corev1.PersistentVolume)
	}{
		"back": {
			held:      binding,
			meanwhile: func(*scene) {},
			says:      "belongs to prod/data, with reclaim policy Delete",
			check:     (*scene).returned,
		},
		"forward, the source being gone": {
			held:      binding,
			meanwhile: func(s *scene) { s.deleteClaim(s.giver, "data", true) },
			says:      "belongs to dev/data, with reclaim policy Delete",
			check:     (*scene).arrived,
		},
		"forward, the volume being bound": {
			held:      `!("` + v1alpha1.LabelInFlight + `" in object.metadata.?labels.orValue({}))`,
			meanwhile: func(s *scene) { s.bound(s.receiver, "data") },
			says:      "belongs to dev/data, with reclaim policy Delete",
			check:     (*scene).arrived,
		},
		"back, the request and the approval being gone": {
			held: binding,
			meanwhile: func(s *scene) {
				s.must(s.requests().Delete(s.ctx, "take-data", metav1.DeleteOptions{}))
				s.must(s.approvals().Delete(s.ctx, "give-data", metav1.DeleteOptions{}))
			},
			says:  "belongs to prod/data, with reclaim policy Delete",
			check: (*scene).returned,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			d := s.vendor(cluster.DriverOptions{})
			sidecar := s.sidecarOf(d)
			before, lift := s.heldAt(test.held)
			sidecar.Kill()
			lift()
			test.meanwhile(s)
			admin := s.withKubeconfig(s.Kubeconfig)
			out, code := admin.types("kubectl transfer rescue " + before.Name + " --yes --timeout 30s")
			if code != 0 || !strings.Contains(out, test.says) {
				t.Errorf("exit code %d:\n%s", code, out)
			}
			test.check(s, before)
			if out, code := admin.types("kubectl transfer rescue " + before.Name + " --yes"); code != 1 || !strings.Contains(out, "is not in flight") {
				t.Errorf("rescued twice, exit code %d:\n%s", code, out)
			}
		})
	}
}

// TestKubectl_CancelInFlight: the giver calls a transfer off whose volume is in
// flight, and is told when the claim has it back.
func TestKubectl_CancelInFlight(t *testing.T) {
	s := newScene(t)
	before, lift := s.inFlight()
	alice := s.person("alice", s.giver+"="+approverRole)
	cancel := alice.starts("kubectl transfer cancel prod/pvc/data -n prod", "Waiting until PersistentVolumeClaim prod/data has its volume back, unless dev/data had it already.")
	lift()
	out, code := alice.ends(cancel)
	if code != 0 || !strings.Contains(out, "PersistentVolumeClaim prod/data has its volume VOLUME.") {
		t.Errorf("exit code %d:\n%s", code, out)
	}
	s.returned(before)
}

// TestKubectl_RescueOnlyWithoutSidecar: a volume is left to the sidecar that holds
// the Lease of its driver, unless the administrator insists.
func TestKubectl_RescueOnlyWithoutSidecar(t *testing.T) {
	s := newScene(t)
	s.stranded(nil)
	must[*coordinationv1.Lease](s)(s.Client.CoordinationV1().Leases(s.receiver).Create(s.ctx, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: s.lease()},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity:       ptr.To("somebody"),
			LeaseDurationSeconds: ptr.To[int32](3600),
			RenewTime:            ptr.To(metav1.NowMicro()),
		},
	}, metav1.CreateOptions{}))
	admin := s.withKubeconfig(s.Kubeconfig)
	out, code := admin.types("kubectl transfer rescue " + s.moving + " --yes")
	if code != 1 || !strings.Contains(out, "somebody holds Lease dev/"+s.lease()) {
		t.Errorf("exit code %d:\n%s", code, out)
	}
	if !parked(s.volume(s.moving)) {
		t.Error("the volume was taken out of flight all the same")
	}
	if out, code := admin.types("kubectl transfer rescue " + s.moving + " --yes --force"); code != 0 {
		t.Errorf("with --force: exit code %d:\n%s", code, out)
	}
}

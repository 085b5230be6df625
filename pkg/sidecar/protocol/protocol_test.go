// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"math/rand/v2"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/csi-transfer/csi-transfer/pkg/apis/transfer/v1alpha1"
	"github.com/csi-transfer/csi-transfer/pkg/driver"
	"github.com/csi-transfer/csi-transfer/pkg/sidecar/protocol"
)

// sources are the files of the package, without tests.
func sources(t *testing.T) (files []*ast.File) {
	paths, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	return files
}

// TestPure: the package decides, and does nothing.
func TestPure(t *testing.T) {
	for _, f := range sources(t) {
		for _, i := range f.Imports {
			path, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			for _, effect := range []string{"context", "k8s.io/client-go", "net", "os", "google.golang.org/grpc", "math/rand"} {
				if path == effect || strings.HasPrefix(path, effect+"/") {
					t.Errorf("package protocol imports %s", path)
				}
			}
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if call, ok := n.(*ast.SelectorExpr); ok && fmt.Sprint(call.X) == "time" && (call.Sel.Name == "Now" || call.Sel.Name == "Since" || call.Sel.Name == "Until") {
				t.Errorf("package protocol reads a clock: time.%s", call.Sel.Name)
			}
			return true
		})
	}
}

// TestReasons: each reason stands in the table once, with words that go into a
// sentence.
func TestReasons(t *testing.T) {
	listed := map[string]int{}
	for _, r := range protocol.Reasons {
		listed[string(r.Reason)]++
		for _, text := range []string{r.Meaning, r.Remedy} {
			if text == "" || text != strings.TrimSpace(text) || strings.HasSuffix(text, ".") || strings.HasSuffix(text, ";") || strings.Contains(text, "\n") {
				t.Errorf("%s: %q does not fit into a sentence", r.Reason, text)
			}
		}
	}
	for _, f := range sources(t) {
		ast.Inspect(f, func(n ast.Node) bool {
			v, ok := n.(*ast.ValueSpec)
			if !ok || fmt.Sprint(v.Type) != "Reason" {
				return true
			}
			for i, name := range v.Names {
				value, err := strconv.Unquote(v.Values[i].(*ast.BasicLit).Value)
				if err != nil {
					t.Fatal(err)
				}
				if listed[value] != 1 {
					t.Errorf("%s stands in the table %d times", name, listed[value])
				}
				if "Reason"+value != name.Name {
					t.Errorf("%s has the value %s", name, value)
				}
				delete(listed, value)
			}
			return true
		})
	}
	for value := range listed {
		t.Errorf("the table has %s, which is no constant", value)
	}
}

// TestDecideOnAnything: whatever is observed, Decide returns one action, patches
// are what they must be, and nothing panics.
func TestDecideOnAnything(t *testing.T) {
	seen := map[string]int{}
	for seed := range 20000 {
		g := generator{rand.New(rand.NewPCG(uint64(seed), 1)), 4 << (seed % 4)}
		o := g.observation()
		a := decide(t, seed, o)
		for range 6 { // give what is asked for, and write what is to be written
			switch {
			case a.Read != nil:
				if a.Read.Volume != "" {
					o.Volume = &protocol.Volume{Name: a.Read.Volume, PV: g.volume()}
				}
				if a.Read.Facts {
					o.Facts = g.facts(a.Read.Live)
				}
			case a.Status != nil && a.Status.Request != nil:
				o.Request = a.Status.Request
			case a.Status != nil:
				o.Approvals = []*v1alpha1.NamespaceTransferApproval{a.Status.Approval}
			default:
				continue
			}
			a = decide(t, seed, o)
		}
		seen[a.Step()]++
		fields := 0
		for _, set := range []bool{a.Read != nil, a.Wait != nil, a.Patch != nil, a.Status != nil, a.SetOwner != nil} {
			if set {
				fields++
			}
		}
		if fields != 1 || a.Why == "" {
			t.Errorf("%d: not one action with its reason: %+v", seed, a)
		}
		if a.Patch != nil {
			checkPatch(t, a.Patch)
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	for _, step := range []protocol.Step{protocol.Park, protocol.Mark, protocol.Bind, protocol.Restore, protocol.Return, protocol.Unmark, protocol.Repark, protocol.Retain, protocol.Abandon} {
		if seen[string(step)] == 0 {
			t.Errorf("no observation led to %s; the generator is too narrow", step)
		}
	}
}

func decide(t *testing.T, seed int, o protocol.Observation) protocol.Action {
	defer func() {
		if p := recover(); p != nil {
			t.Fatalf("seed %d: %v", seed, p)
		}
	}()
	return protocol.Decide(o)
}

// generator makes observations of few values, so that they often fit together.
type generator struct {
	*rand.Rand
	// order is how much is as it should be: all but one of so many.
	order int
}

func (g generator) often() bool  { return g.IntN(g.order) > 0 }
func (g generator) seldom() bool { return g.IntN(g.order) == 0 }

// one is the first in most cases.
func one[T any](g generator, of ...T) T {
	if g.often() {
		return of[0]
	}
	return of[g.IntN(len(of))]
}

func (g generator) observation() protocol.Observation {
	o := protocol.Observation{
		Settings: protocol.Settings{
			Driver:        driver.Info{Name: driverName, Advertised: g.often(), Linkage: one(g, driver.LinkageNone, driver.LinkageSnapshots, driver.LinkageChain), Validate: g.seldom(), SetOwner: g.seldom(), ListSnapshots: g.seldom()},
			VerifyTimeout: time.Minute, PollInterval: time.Second, ReportDelay: time.Second,
		},
		Now:    time.Unix(int64(1000+g.IntN(100)), 0),
		Name:   types.NamespacedName{Namespace: "dev", Name: "take-data"},
		Exists: func(v1alpha1.RequestReference) bool { return g.seldom() },
	}
	if g.seldom() {
		o.NotBefore = o.Now.Add(time.Minute)
	}
	o.Crowded = g.seldom()
	if g.seldom() {
		o.FinishAfter = o.Now.Add(time.Minute)
	}
	if g.often() {
		r := &v1alpha1.NamespaceTransferRequest{}
		g.meta(r, "dev", "take-data", "request-1", "request-9")
		r.Spec.Source = v1alpha1.RequestSource{Namespace: "prod", SourceReference: v1alpha1.SourceReference{Kind: "PersistentVolumeClaim", Name: "data"}}
		if g.seldom() {
			r.Spec.Source.Kind = "VolumeSnapshot"
		}
		r.Status.VolumeName = one(g, "", "pv1", "pv9")
		r.Status.Conditions = g.conditions()
		o.Request = r
	}
	for range one(g, 1, 0, 2) {
		a := &v1alpha1.NamespaceTransferApproval{}
		g.meta(a, "prod", "give-data", "approval-1", "approval-9")
		a.Spec.Source.SourceReference = v1alpha1.SourceReference{Kind: "PersistentVolumeClaim", Name: "data"}
		a.Spec.Source.UID = one[types.UID](g, "", "claim-1", "claim-9")
		a.Spec.TargetNamespace = one(g, "dev", "other")
		if g.seldom() {
			a.Status.Request = &v1alpha1.RequestReference{Namespace: "dev", Name: "take-data", UID: one[types.UID](g, "request-1", "request-9")}
			a.Status.ClaimUID = one[types.UID](g, "claim-1", "claim-9")
		}
		a.Status.Conditions = g.conditions()
		o.Approvals = append(o.Approvals, a)
	}
	if g.often() {
		o.Source = g.claim("prod", "data", "claim-1", "pv1")
	}
	for range one(g, 1, 0, 2) {
		c := g.claim("dev", one(g, "data", "other"), "claim-2", "")
		c.Spec.DataSourceRef = &corev1.TypedObjectReference{APIGroup: ptr.To(v1alpha1.GroupName), Kind: v1alpha1.RequestKind, Name: "take-data"}
		o.Receivers = append(o.Receivers, c)
	}
	if g.often() {
		o.Claim = g.claim("dev", "data", "claim-2", one(g, "pv1", ""))
	}
	if g.IntN(2) == 0 {
		o.Volume = &protocol.Volume{Name: "pv1", PV: g.volume()}
	}
	return o
}

func (g generator) meta(o metav1.Object, namespace, name string, uids ...types.UID) {
	o.SetNamespace(namespace)
	o.SetName(name)
	o.SetResourceVersion("7")
	o.SetUID(uids[0])
	if g.seldom() {
		o.SetUID(uids[len(uids)-1])
	}
	o.SetCreationTimestamp(metav1.Unix(int64(g.IntN(900)), 0))
	if g.seldom() {
		o.SetDeletionTimestamp(ptr.To(metav1.Unix(950, 0)))
	}
}

func (g generator) conditions() []metav1.Condition {
	if g.often() {
		return nil
	}
	return []metav1.Condition{{
		Type:   one(g, v1alpha1.ConditionTransferred, v1alpha1.ConditionApproved),
		Status: one(g, metav1.ConditionTrue, metav1.ConditionFalse),
		Reason: one(g, string(protocol.ReasonInUse), string(protocol.ReasonSourceDeleted), string(protocol.ReasonWriteRefused)),
	}}
}

func (g generator) claim(namespace, name string, uid types.UID, volume string) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{}
	g.meta(c, namespace, name, uid, "claim-9")
	c.Status.Phase = one(g, corev1.ClaimBound, corev1.ClaimPending, "")
	c.Spec.VolumeName = one(g, volume, "", "pv1", "pv9")
	if g.IntN(3) == 0 {
		c.Status.Phase = one(g, corev1.ClaimLost, corev1.ClaimBound)
		c.Annotations = map[string]string{v1alpha1.AnnotationTransferUID: one(g, "request-1", "request-9")}
	}
	if g.often() {
		c.Spec.StorageClassName = ptr.To("fast")
		c.Spec.Resources.Requests = g.size()
		c.Status.Capacity = g.size()
	}
	return c
}

func (g generator) size() corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(one(g, "1Gi", "2Gi"))}
}

func (g generator) volume() *corev1.PersistentVolume {
	if g.seldom() {
		return nil
	}
	j := journal()
	j.Parked = metav1.NewMicroTime(time.Unix(int64(1000-g.IntN(100)), 0))
	j.Bound = g.IntN(3) == 0
	if g.IntN(2) == 0 {
		j.Reason, j.Message = protocol.ReasonInUse, "used"
	}
	pv := inFlight(one(g, j.Encode(), "{}", ""))
	if g.IntN(2) == 0 {
		pv.Annotations, pv.Labels, pv.Finalizers = nil, nil, nil
	}
	g.meta(pv, "", "pv1", "volume-1")
	pv.Spec.Capacity = g.size()
	pv.Spec.StorageClassName = one(g, "fast", "")
	pv.Spec.PersistentVolumeReclaimPolicy = one(g, corev1.PersistentVolumeReclaimRetain, corev1.PersistentVolumeReclaimDelete)
	switch g.IntN(3) {
	case 0:
		toClaim(pv, j.Source)
	case 1:
		toClaim(pv, j.Claim)
	}
	pv.Status.Phase = one(g, one(g, corev1.VolumeReleased, corev1.VolumeBound), corev1.VolumeAvailable, corev1.VolumeFailed, "")
	if pv.Spec.ClaimRef.Kind != v1alpha1.RequestKind {
		pv.Status.Phase = one(g, corev1.VolumeBound, pv.Status.Phase)
	}
	if g.seldom() {
		pv.Spec.CSI = one(g, nil, &corev1.CSIPersistentVolumeSource{Driver: "other.example.com"})
	}
	if g.seldom() {
		pv.Spec.ClaimRef.UID = one[types.UID](g, "", "claim-9")
	}
	if g.seldom() {
		pv.Spec.ClaimRef = nil
	}
	return pv
}

func (g generator) facts(live bool) *protocol.Facts {
	f := &protocol.Facts{Live: live, SourceNamespaceGone: live && g.seldom(), ReceivingNamespaceGone: live && g.seldom()}
	if g.often() {
		f.Class = &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "fast", Annotations: map[string]string{v1alpha1.AnnotationAllow: "true"}}, Provisioner: driverName}
	}
	if g.seldom() {
		f.Pods = []string{"db-0"}
	}
	if g.seldom() {
		f.ForceDeleted, f.ForceDeletedUntil = []string{"db-1"}, time.Unix(1060, 0)
	}
	if g.seldom() {
		f.Attachments = []protocol.Attachment{{}}
	}
	if g.seldom() {
		f.Twins = []string{"pv2"}
	}
	if g.seldom() {
		f.Snapshots = []protocol.Snapshot{{Kind: one(g, "VolumeSnapshot", "VolumeGroupSnapshot", "")}}
	}
	if g.seldom() {
		f.Clones, f.DriverSnapshots = []string{"prod/copy"}, []string{"s"}
	}
	if g.seldom() {
		f.DriverError, f.OwnerError = "down", "down"
	}
	if g.IntN(2) == 0 {
		f.Owner = one(g, ref("prod", "data", "claim-1"), ref("dev", "data", "claim-2"))
	}
	f.Verdict.Confirmed = g.seldom()
	return f
}

// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csi-transfer/csi-transfer/pkg/apis/transfer/v1alpha1"
	"github.com/csi-transfer/csi-transfer/pkg/driver"
	"github.com/csi-transfer/csi-transfer/pkg/sidecar/protocol"
)

func ref(namespace, name, uid string) protocol.Ref {
	return protocol.Ref{Namespace: namespace, Name: name, UID: types.UID(uid)}
}

func journal() *protocol.Journal {
	return &protocol.Journal{
		Version:  1,
		Request:  ref("dev", "take-data", "request-1"),
		Approval: ref("prod", "give-data", "approval-1"),
		Source:   ref("prod", "data", "claim-1"),
		Claim:    ref("dev", "data", "claim-2"),

		ReclaimPolicy:        corev1.PersistentVolumeReclaimDelete,
		ProvisionerFinalizer: true,
		BoundByController:    true,
		Parked:               metav1.NewMicroTime(time.Date(2026, 1, 1, 0, 0, 0, 123456000, time.UTC)),
	}
}

// inFlight is a volume with a journal and all that belongs to it, parked.
func inFlight(value string) *corev1.PersistentVolume {
	pv := &corev1.PersistentVolume{}
	pv.Name, pv.UID, pv.ResourceVersion = "pv1", "volume-1", "1"
	pv.Labels = map[string]string{v1alpha1.LabelInFlight: driverName}
	pv.Finalizers = []string{v1alpha1.FinalizerInFlight}
	pv.Annotations = map[string]string{v1alpha1.AnnotationJournal: value}
	pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: driverName}
	pv.Spec.ClaimRef = &corev1.ObjectReference{
		APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: v1alpha1.RequestKind, Namespace: "dev", Name: "transfer:take-data", UID: "request-1",
	}
	return pv
}

func TestJournalRoundTrip(t *testing.T) {
	for name, change := range map[string]func(*protocol.Journal){
		"parked":    func(*protocol.Journal) {},
		"bound":     func(j *protocol.Journal) { j.Bound = true },
		"returning": func(j *protocol.Journal) { j.Reason, j.Message = protocol.ReasonInUse, `pod "db-0" <uses> it …` },
		"retained":  func(j *protocol.Journal) { j.ReclaimPolicy = corev1.PersistentVolumeReclaimRetain },
	} {
		j := journal()
		change(j)
		got, err := protocol.ParseJournal(inFlight(j.Encode()), driverName)
		if err != nil || !apiequality.Semantic.DeepEqual(got, j) {
			t.Errorf("%s: got %+v, %v", name, got, err)
		}
	}
}

// TestLongestJournal: a volume whose journal cannot be read any more would stay
// in flight for ever. The longest names and the most awkward refusal fit.
func TestLongestJournal(t *testing.T) {
	long := func(uid string) protocol.Ref {
		return ref(strings.Repeat("n", 63), strings.Repeat("c", 253), uid+strings.Repeat("u", 36-len(uid)))
	}
	w := newWorld(t)
	w.ask(receiver)
	w.settings.Driver.Validate = true
	w.takeTo(protocol.Mark)
	w.kubernetes(false)

	pv := w.volume(volume)
	j, err := protocol.ParseJournal(pv, driverName)
	if err != nil {
		t.Fatal(err)
	}
	j.Request, j.Approval, j.Source, j.Claim = long("r"), long("a"), long("s"), long("c")
	pv.Annotations[v1alpha1.AnnotationJournal] = j.Encode()
	pv.Spec.ClaimRef.Namespace, pv.Spec.ClaimRef.Name, pv.Spec.ClaimRef.UID = j.Request.Namespace, v1alpha1.ParkedNamePrefix+j.Request.Name, j.Request.UID
	source := w.claim(source).DeepCopy()
	source.Namespace, source.Name, source.UID = j.Source.Namespace, j.Source.Name, j.Source.UID
	source.Annotations[v1alpha1.AnnotationTransferUID] = string(j.Request.UID)

	for _, character := range []string{"<", "…", "\U0001F4BE", `"`} {
		o := w.observe(types.NamespacedName{Namespace: "dev", Name: "take-data"})
		o.Name = j.Request.NamespacedName()
		o.Request = o.Request.DeepCopy()
		o.Request.Namespace, o.Request.Name, o.Request.UID = j.Request.Namespace, j.Request.Name, j.Request.UID
		approval := o.Approvals[0].DeepCopy()
		approval.UID = j.Approval.UID
		o.Approvals = []*v1alpha1.NamespaceTransferApproval{approval}
		o.Volume, o.Source = &protocol.Volume{Name: pv.Name, PV: pv}, source
		o.Facts = &protocol.Facts{Live: true, DriverError: strings.Repeat(character, 4096)}
		a := protocol.Decide(*o)
		if a.Patch == nil || a.Patch.Step != protocol.Return {
			t.Fatalf("%s (%s)", a.Step(), a.Why)
		}
		after := w.merge(volume, pv, a.Patch.Data).(*corev1.PersistentVolume)
		back, err := protocol.ParseJournal(after, driverName)
		if err != nil {
			t.Fatalf("with a message of %q: %v", character, err)
		}
		if back.Reason == "" || strings.ContainsRune(back.Message, '�') {
			t.Errorf("with a message of %q: reason %q, message %q", character, back.Reason, back.Message)
		}
	}
}

func TestParseJournalRefuses(t *testing.T) {
	type change = func(pv *corev1.PersistentVolume, j *protocol.Journal)
	for _, test := range []struct {
		name   string
		change change
		says   string
	}{
		{"other format", func(_ *corev1.PersistentVolume, j *protocol.Journal) { j.Version = 2 }, "has format 2"},
		{"other driver", func(pv *corev1.PersistentVolume, _ *protocol.Journal) { pv.Spec.CSI.Driver = "other.example.com" }, "not of driver"},
		{"no CSI volume", func(pv *corev1.PersistentVolume, _ *protocol.Journal) { pv.Spec.CSI = nil }, "not of driver"},
		{"no request", func(_ *corev1.PersistentVolume, j *protocol.Journal) { j.Request = protocol.Ref{} }, "does not name"},
		{"request without UID", func(_ *corev1.PersistentVolume, j *protocol.Journal) { j.Request.UID = "" }, "does not name"},
		{"source without UID", func(_ *corev1.PersistentVolume, j *protocol.Journal) { j.Source.UID = "" }, "does not name"},
		{"claim without name", func(_ *corev1.PersistentVolume, j *protocol.Journal) { j.Claim.Name = "" }, "does not name"},
		{"approval without namespace", func(_ *corev1.PersistentVolume, j *protocol.Journal) { j.Approval.Namespace = "" }, "does not name"},
		{"no policy", func(_ *corev1.PersistentVolume, j *protocol.Journal) { j.ReclaimPolicy = "" }, "reclaim policy"},
		{"policy Recycle", func(_ *corev1.PersistentVolume, j *protocol.Journal) { j.ReclaimPolicy = "Recycle" }, "reclaim policy"},
		{"no time", func(_ *corev1.PersistentVolume, j *protocol.Journal) { j.Parked = metav1.MicroTime{} }, "when"},
		{"Bound, without label", func(pv *corev1.PersistentVolume, j *protocol.Journal) { toClaim(pv, j.Source); pv.Labels = nil }, "stands alone"},
		{"Bound, label of another driver", func(pv *corev1.PersistentVolume, j *protocol.Journal) {
			toClaim(pv, j.Claim)
			pv.Labels[v1alpha1.LabelInFlight] = "other.example.com"
		}, "stands alone"},
		{"Bound, without finalizer", func(pv *corev1.PersistentVolume, j *protocol.Journal) { toClaim(pv, j.Claim); pv.Finalizers = nil }, "stands alone"},
		{"no claimRef, without label", func(pv *corev1.PersistentVolume, _ *protocol.Journal) { pv.Spec.ClaimRef, pv.Labels = nil, nil }, "stands alone"},
		{"somebody else's, without label", func(pv *corev1.PersistentVolume, _ *protocol.Journal) {
			toClaim(pv, ref("other", "data", "claim-9"))
			pv.Labels = nil
		}, "does not match"},
		{"parked for another request", func(pv *corev1.PersistentVolume, _ *protocol.Journal) {
			pv.Spec.ClaimRef.UID = "request-9"
			pv.Labels = nil
		}, "does not match"},
		{"a claim of that UID under another name", func(pv *corev1.PersistentVolume, j *protocol.Journal) {
			toClaim(pv, ref("dev", "other", string(j.Claim.UID)))
			pv.Labels = nil
		}, "does not match"},
	} {
		j := journal()
		pv := inFlight("")
		test.change(pv, j)
		pv.Annotations[v1alpha1.AnnotationJournal] = j.Encode()
		refused(t, test.name, pv, test.says)
	}

	for name, value := range map[string]string{
		"empty":       "",
		"no JSON":     "bound",
		"a list":      "[]",
		"cut":         journal().Encode()[:100],
		"with a tail": journal().Encode() + "{}",
		"wrong types": `{"version":"1"}`,
		"null":        "null",
	} {
		refused(t, name, inFlight(value), "pv1")
	}
	refused(t, "endless", inFlight(strings.Repeat(" ", 1<<20)+journal().Encode()), "bytes long")
}

// refused also makes sure that nothing is done to such a volume.
func refused(t *testing.T, name string, pv *corev1.PersistentVolume, says string) {
	t.Helper()
	j, err := protocol.ParseJournal(pv, driverName)
	if j != nil || err == nil || !strings.Contains(err.Error(), says) {
		t.Errorf("%s: got %+v, %v; want an error that says %q", name, j, err, says)
	}
	a := protocol.Decide(protocol.Observation{
		Settings: protocol.Settings{Driver: driver.Info{Name: driverName}},
		Name:     types.NamespacedName{Namespace: "dev", Name: "take-data"},
		Volume:   &protocol.Volume{Name: pv.Name, PV: pv},
	})
	if a.Wait == nil {
		t.Errorf("%s: %s (%s)", name, a.Step(), a.Why)
	}
}

func toClaim(pv *corev1.PersistentVolume, r protocol.Ref) {
	pv.Spec.ClaimRef = &corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: r.Namespace, Name: r.Name, UID: r.UID}
}

func TestVolumeWithoutJournal(t *testing.T) {
	pv := inFlight("")
	delete(pv.Annotations, v1alpha1.AnnotationJournal)
	if j, err := protocol.ParseJournal(pv, driverName); j != nil || err != nil {
		t.Errorf("got %+v, %v", j, err)
	}
}

// FuzzParseJournal: whatever stands in the annotation, what is accepted is
// complete, stays the same when it is written again, and can be decided on.
func FuzzParseJournal(f *testing.F) {
	f.Add(journal().Encode())
	f.Fuzz(func(t *testing.T, value string) {
		pv := inFlight(value)
		j, err := protocol.ParseJournal(pv, driverName)
		if (j == nil) == (err == nil) {
			t.Fatalf("got %+v, %v", j, err)
		}
		if err != nil {
			return
		}
		for _, r := range []protocol.Ref{j.Request, j.Approval, j.Source, j.Claim} {
			if r.Namespace == "" || r.Name == "" || r.UID == "" {
				t.Errorf("accepted without all references: %+v", j)
			}
		}
		again := &protocol.Journal{}
		if err := json.Unmarshal([]byte(j.Encode()), again); err != nil || !apiequality.Semantic.DeepEqual(j, again) {
			t.Errorf("%+v becomes %+v, %v", j, again, err)
		}
		a := protocol.Decide(protocol.Observation{
			Settings: protocol.Settings{Driver: driver.Info{Name: driverName}},
			Name:     j.Request.NamespacedName(),
			Volume:   &protocol.Volume{Name: pv.Name, PV: pv},
		})
		if a.Patch != nil {
			checkPatch(t, a.Patch)
		}
	})
}

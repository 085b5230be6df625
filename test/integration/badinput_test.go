// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csi-transfer/csi-transfer/pkg/apis/transfer/v1alpha1"
	"github.com/csi-transfer/csi-transfer/pkg/sidecar/protocol"
	"github.com/csi-transfer/csi-transfer/test/cluster"
)

// TestBadInput_MalformedObjects: the API server refuses them with a message that
// names the field.
func TestBadInput_MalformedObjects(t *testing.T) {
	s := newScene(t)
	request := func(source string) string {
		return fmt.Sprintf("kind: NamespaceTransferRequest\nspec: {source: %s}", source)
	}
	approval := func(spec string) string {
		return fmt.Sprintf("kind: NamespaceTransferApproval\nspec: %s", spec)
	}
	for name, tc := range map[string]struct{ object, says string }{
		"no spec":                 {"kind: NamespaceTransferRequest", "spec: Required value"},
		"no source":               {"kind: NamespaceTransferRequest\nspec: {}", "spec.source: Required value"},
		"no namespace":            {request("{kind: PersistentVolumeClaim, name: data}"), "spec.source.namespace: Required value"},
		"no kind":                 {request("{namespace: prod, name: data}"), "spec.source.kind: Required value"},
		"no name":                 {request("{namespace: prod, kind: PersistentVolumeClaim}"), "spec.source.name: Required value"},
		"empty name":              {request(`{namespace: prod, kind: PersistentVolumeClaim, name: ""}`), "spec.source.name"},
		"namespace with a slash":  {request("{namespace: prod/x, kind: PersistentVolumeClaim, name: data}"), "spec.source.namespace"},
		"namespace too long":      {request("{namespace: " + strings.Repeat("n", 64) + ", kind: PersistentVolumeClaim, name: data}"), "spec.source.namespace"},
		"name too long":           {request("{namespace: prod, kind: PersistentVolumeClaim, name: " + strings.Repeat("n", 254) + "}"), "spec.source.name"},
		"name is a list":          {request("{namespace: prod, kind: PersistentVolumeClaim, name: [data]}"), "spec.source.name"},
		"unknown field":           {request("{namespace: prod, kind: PersistentVolumeClaim, name: data, uid: x}"), `unknown field "spec.source.uid"`},
		"approval of nothing":     {approval("{targetNamespace: dev}"), "spec.source: Required value"},
		"approval for nobody":     {approval("{source: {kind: PersistentVolumeClaim, name: data}}"), "spec.targetNamespace: Required value"},
		"approval for everybody":  {approval(`{source: {kind: PersistentVolumeClaim, name: data}, targetNamespace: "*"}`), "spec.targetNamespace"},
		"approval with empty uid": {approval(`{source: {kind: PersistentVolumeClaim, name: data, uid: ""}, targetNamespace: dev}`), "spec.source.uid"},
		"approval, uid too long":  {approval("{source: {kind: PersistentVolumeClaim, name: data, uid: " + strings.Repeat("u", 129) + "}, targetNamespace: dev}"), "spec.source.uid"},
	} {
		err := s.Apply(s.ctx, fmt.Sprintf("apiVersion: %s\nmetadata: {namespace: %s, name: bad}\n%s\n", v1alpha1.SchemeGroupVersion, s.giver, tc.object))
		if err == nil {
			t.Errorf("%s: accepted", name)
			continue
		}
		s.contains(err.Error(), tc.says)
	}

	s.request()
	if _, err := s.requests().Patch(s.ctx, "take-data", types.MergePatchType, []byte(`{"spec":{"source":{"name":"another"}}}`), metav1.PatchOptions{}); err == nil {
		t.Error("the spec of a request was changed")
	} else {
		s.contains(err.Error(), "spec is immutable; delete the request and create another")
	}
	s.approve(nil)
	if _, err := s.approvals().Patch(s.ctx, "give-data", types.MergePatchType, []byte(`{"spec":{"targetNamespace":"another"}}`), metav1.PatchOptions{}); err == nil {
		t.Error("the spec of an approval was changed")
	} else {
		s.contains(err.Error(), "spec is immutable; delete the approval and create another")
	}
}

// TestBadInput_LongestNames: nothing overflows.
func TestBadInput_LongestNames(t *testing.T) {
	s := newScene(t)
	name := strings.Repeat("n", 253)
	s.claim(s.giver, name)
	source := s.bound(s.giver, name)
	before := s.volume(source.Spec.VolumeName)
	s.request(func(r *v1alpha1.NamespaceTransferRequest) { r.Name, r.Spec.Source.Name = name, name })
	s.claim(s.receiver, name, from(name))
	s.approve(source, func(a *v1alpha1.NamespaceTransferApproval) { a.Name, a.Spec.Source.Name = name, name })
	must[*metav1.Condition](s)(s.WaitCondition(s.ctx, cluster.Requests, s.receiver, name, v1alpha1.ConditionTransferred, metav1.ConditionTrue, ""))
	s.owned(before, s.bound(s.receiver, name))
}

// TestBadInput_NamesThatDoNotExist: a claim for a request that does not exist,
// grants for namespaces that do not exist. All wait, and nothing is written.
func TestBadInput_NamesThatDoNotExist(t *testing.T) {
	s := newScene(t)
	source := s.source()
	since := must[cluster.AuditMark](s)(s.AuditMark())
	s.claim(s.receiver, "orphan", from("no-such-request"))
	s.request(func(r *v1alpha1.NamespaceTransferRequest) { r.Spec.Source.Namespace = "no-such-namespace" })
	s.approve(source, func(a *v1alpha1.NamespaceTransferApproval) { a.Spec.TargetNamespace = "no-such-namespace" })
	s.lookedAt()
	s.silent(since)
	s.bound(s.giver, "data")
}

// TestBadInput_ForgedJournals: a journal that the sidecar cannot have written for
// a volume, say from a backup, makes it touch nothing, and say so.
func TestBadInput_ForgedJournals(t *testing.T) {
	ref := func(namespace, name, uid string) map[string]string {
		return map[string]string{"namespace": namespace, "name": name, "uid": uid}
	}
	label := fmt.Sprintf(`{"metadata":{"labels":{%q:%q}}}`, v1alpha1.LabelInFlight, driverName)
	for name, tc := range map[string]struct {
		// forge changes a journal that is good but for the volume's claimRef.
		forge func(journal map[string]any)
		// raw is the journal as it stands, if it is none.
		raw  string
		says string
	}{
		"no JSON":        {raw: "\x00not JSON", says: "is not valid"},
		"a list":         {raw: "[]", says: "is not valid"},
		"too long":       {raw: `{"version":1,"message":"` + strings.Repeat("x", 9000) + `"}`, says: "bytes long"},
		"other format":   {forge: func(j map[string]any) { j["version"] = 2 }, says: "has format 2"},
		"no claim":       {forge: func(j map[string]any) { delete(j, "claim") }, says: "does not name request, approval, source and receiving claim"},
		"no UID":         {forge: func(j map[string]any) { j["source"] = ref("prod", "data", "") }, says: "does not name request, approval, source and receiving claim"},
		"policy Recycle": {forge: func(j map[string]any) { j["reclaimPolicy"] = "Recycle" }, says: `reclaim policy "Recycle"`},
		"no time":        {forge: func(j map[string]any) { delete(j, "parked") }, says: "when the volume was parked"},
		"of others":      {forge: func(map[string]any) {}, says: "does not match its claimRef"},
	} {
		for _, labelled := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s labelled=%t", name, labelled), func(t *testing.T) {
				s := newScene(t)
				source := s.source()
				value := tc.raw
				if tc.forge != nil {
					journal := map[string]any{
						"version": 1, "reclaimPolicy": "Delete", "parked": metav1.NowMicro(),
						"request": ref(s.receiver, "take-data", "r"), "approval": ref(s.giver, "give-data", "a"),
						"source": ref(s.giver, "other", "s"), "claim": ref(s.receiver, "data", "c"),
					}
					tc.forge(journal)
					value = string(must[[]byte](s)(json.Marshal(journal)))
				}
				s.patchVolume(s.moving, annotation(v1alpha1.AnnotationJournal, value))
				if labelled {
					s.patchVolume(s.moving, label)
				}
				s.grant(source)
				s.contains(s.refused(protocol.ReasonVolumeJournalUnknown), "{volume}", tc.says, "the administrator removes")
				s.untouched()
				s.bound(s.giver, "data")
			})
		}
	}
}

// TestBadInput_ForgedMarks: what a user writes on a claim in the sidecar's name
// changes nothing.
func TestBadInput_ForgedMarks(t *testing.T) {
	s := newScene(t)
	source := s.source()
	before := s.volume(s.moving)
	r := s.request()
	for key, value := range map[string]string{
		v1alpha1.AnnotationTransferredTo: "somewhere/else",
		v1alpha1.AnnotationTransferUID:   string(r.UID),
		v1alpha1.AnnotationJournal:       "{}",
	} {
		s.patchClaim(s.giver, "data", annotation(key, value))
	}
	s.lookedAt()
	s.untouched()
	s.bound(s.giver, "data")

	s.receive()
	s.approve(source)
	s.transferred()
	s.arrived(before)
}

// TestBadInput_DriverAnswersGarbage: it is told, briefly and legibly, and the
// volume stays where it is.
func TestBadInput_DriverAnswersGarbage(t *testing.T) {
	for name, flags := range map[string][]string{
		"ValidateVolume": {"--fault=ValidateVolume:garbage", "--transfer-service"},
		"ListSnapshots":  {"--fault=ListSnapshots:garbage", "--snapshot-linkage=snapshots"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			s.sidecarOf(s.vendor(cluster.DriverOptions{Flags: flags}))
			s.offer()
			message := s.refused(protocol.ReasonDriverUnavailable)
			s.contains(message, "driver {driver}", "{volume}", "malformed")
			if len(message) > 4096 || strings.ContainsFunc(message, func(r rune) bool { return r < ' ' || r == '\u202e' }) {
				t.Errorf("the message has %d bytes: %q", len(message), message)
			}
			s.untouched()
		})
	}
}

// TestBadInput_DriverHangs: a call that hangs delays the transfer of its volume
// and no other.
func TestBadInput_DriverHangs(t *testing.T) {
	s := newScene(t)
	d := s.vendor(cluster.DriverOptions{Flags: []string{"--transfer-service", "--fault=ValidateVolume:hang:times=1", "--v=5"}})
	s.sidecarOf(d, "--timeout=45s", "--worker-threads=1")
	other := s.another()
	source, another := s.source(), other.source()
	s.grant(source)
	s.logged(d.Process, `method="ValidateVolume"`)
	other.grant(another)
	other.transferred()
	r := must[*v1alpha1.NamespaceTransferRequest](s)(s.requests().Get(s.ctx, "take-data", metav1.GetOptions{}))
	switch c := meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionTransferred); c.Reason {
	// After a while the sidecar of another driver says whose is awaited.
	case v1alpha1.ReasonNoApproval, string(protocol.ReasonAwaitingDriverSidecar):
	default:
		t.Errorf("when the other transfer was complete, this one no longer hung but was %s", c.Reason)
	}
	s.contains(s.told(s.receiver, "NamespaceTransferRequest", "take-data", string(protocol.ReasonDriverUnavailable)), "{volume}", "ValidateVolume", "DeadlineExceeded")
	s.transferred() // when the driver is asked again
}

// TestBadInput_VolumeOfNobody: the driver does not know the volume.
func TestBadInput_VolumeOfNobody(t *testing.T) {
	s := newScene(t)
	s.sidecarOf(s.vendor(cluster.DriverOptions{Flags: []string{"--transfer-service"}}))
	pv := s.static("unknown", s.giver, "data", func(pv *corev1.PersistentVolume) { pv.Spec.CSI.VolumeHandle = "no-such-volume" })
	source := s.source(on(pv.Name))
	s.grant(source)
	s.contains(s.refused(protocol.ReasonDriverUnavailable), "{volume}", "no-such-volume", "NotFound")
	s.untouched()
}

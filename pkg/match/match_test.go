// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package match

import (
	"fmt"
	"go/parser"
	"go/token"
	"math/rand/v2"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/csi-transfer/csi-transfer/pkg/apis/transfer/v1alpha1"
)

// TestTranscripts runs testdata. Input lines describe objects:
//
//	request NAMESPACE/NAME source=NAMESPACE/NAME [uid=] [kind=] [group=] [approval=] [deleting] [completed]
//	approval NAME source=NAME target=NAMESPACE created=TIME [namespace=] [uid=] [kind=] [group=] [request=]
//	    [reserved=NAMESPACE/NAME:UID] [claim-uid=] [spent] [deleting]
//	source uid=UID [created=TIME]          (left out: not known)
//	exists UID...                          (requests that still exist)
//
// The giving namespace is prod and the kind PersistentVolumeClaim unless given.
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			scene := parseScene(t, d)
			switch d.Cmd {
			case "find":
				return scene.find().String()
			case "candidates":
				var out strings.Builder
				for _, request := range Candidates(scene.approvals[0], scene.requests) {
					fmt.Fprintf(&out, "%s/%s\n", request.Namespace, request.Name)
				}
				return out.String()
			default:
				d.Fatalf(t, "unknown command %s", d.Cmd)
				return ""
			}
		})
	})
}

func (r Result) String() string {
	if r.Approval != nil {
		verified := "not verified"
		if r.Verified {
			verified = "verified"
		}
		return fmt.Sprintf("approval: %s, %s\n", r.Approval.Name, verified)
	}
	var out strings.Builder
	fmt.Fprintf(&out, "none: %s\n", r.Reason)
	for _, miss := range r.Misses {
		fmt.Fprintf(&out, "  %s: %s: %s\n", miss.Approval.Name, miss.Reason, miss.Message)
	}
	return out.String()
}

type scene struct {
	requests  []*v1alpha1.NamespaceTransferRequest
	approvals []*v1alpha1.NamespaceTransferApproval
	source    *Source
	existing  sets.Set[types.UID]
}

func (s scene) find() Result {
	return Find(s.requests[0], s.approvals, s.source, func(ref v1alpha1.RequestReference) bool {
		return s.existing.Has(ref.UID)
	})
}

func parseScene(t *testing.T, d *datadriven.TestData) scene {
	s := scene{existing: sets.New[types.UID]()}
	for line := range strings.Lines(d.Input) {
		kind, args, err := datadriven.ParseLine(line)
		if err != nil {
			d.Fatalf(t, "%s: %v", line, err)
		}
		values := map[string]string{}
		for _, arg := range args {
			values[arg.Key] = ""
			if len(arg.Vals) > 0 {
				values[arg.Key] = arg.Vals[0]
			}
		}
		has := func(key string) bool { _, ok := values[key]; return ok }
		reference := func(name string) v1alpha1.SourceReference {
			ref := v1alpha1.SourceReference{APIGroup: values["group"], Kind: "PersistentVolumeClaim", Name: name}
			if has("kind") {
				ref.Kind = values["kind"]
			}
			return ref
		}
		var conditions []metav1.Condition
		if has("completed") || has("spent") {
			conditions = []metav1.Condition{{Type: v1alpha1.ConditionTransferred, Status: metav1.ConditionTrue}}
		}
		var deleted *metav1.Time
		if has("deleting") {
			deleted = &metav1.Time{Time: time.Unix(1, 0)}
		}

		switch kind {
		case "request":
			namespace, name, _ := strings.Cut(args[0].Key, "/")
			giver, source, _ := strings.Cut(values["source"], "/")
			s.requests = append(s.requests, &v1alpha1.NamespaceTransferRequest{
				ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(values["uid"]), DeletionTimestamp: deleted},
				Spec: v1alpha1.NamespaceTransferRequestSpec{
					Source:       v1alpha1.RequestSource{Namespace: giver, SourceReference: reference(source)},
					ApprovalName: values["approval"],
				},
				Status: v1alpha1.NamespaceTransferRequestStatus{Conditions: conditions},
			})

		case "approval":
			approval := &v1alpha1.NamespaceTransferApproval{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: "prod", Name: args[0].Key, DeletionTimestamp: deleted,
					CreationTimestamp: clock(t, d, values["created"]),
				},
				Spec: v1alpha1.NamespaceTransferApprovalSpec{
					Source:          v1alpha1.ApprovalSource{SourceReference: reference(values["source"]), UID: types.UID(values["uid"])},
					TargetNamespace: values["target"],
					RequestName:     values["request"],
				},
				Status: v1alpha1.NamespaceTransferApprovalStatus{Conditions: conditions, ClaimUID: types.UID(values["claim-uid"])},
			}
			if has("namespace") {
				approval.Namespace = values["namespace"]
			}
			if has("reserved") {
				name, uid, _ := strings.Cut(values["reserved"], ":")
				namespace, name, _ := strings.Cut(name, "/")
				approval.Status.Request = &v1alpha1.RequestReference{Namespace: namespace, Name: name, UID: types.UID(uid)}
			}
			s.approvals = append(s.approvals, approval)

		case "source":
			s.source = &Source{UID: types.UID(values["uid"])}
			if has("created") {
				s.source.CreationTimestamp = clock(t, d, values["created"])
			}

		case "exists":
			for _, arg := range args {
				s.existing.Insert(types.UID(arg.Key))
			}

		default:
			d.Fatalf(t, "unknown line: %s", line)
		}
	}
	return s
}

// clock reads HH:MM[:SS] of the day on which all transcripts play.
func clock(t *testing.T, d *datadriven.TestData, value string) metav1.Time {
	if strings.Count(value, ":") == 1 {
		value += ":00"
	}
	at, err := time.Parse(time.DateTime, "2026-01-01 "+value)
	if err != nil {
		d.Fatalf(t, "%v", err)
	}
	return metav1.NewTime(at)
}

// TestProperties checks on random scenes what must hold for all of them.
func TestProperties(t *testing.T) {
	const scenes = 20_000
	for seed := range uint64(scenes) {
		random := rand.New(rand.NewPCG(seed, 0))
		s := randomScene(random)
		request, result := s.requests[0], s.find()

		random.Shuffle(len(s.approvals), func(i, j int) { s.approvals[i], s.approvals[j] = s.approvals[j], s.approvals[i] })
		if shuffled := s.find(); !reflect.DeepEqual(shuffled, result) {
			t.Fatalf("seed %d: the order of the approvals changes\n%sto\n%s", seed, result, shuffled)
		}

		if approval := result.Approval; approval != nil {
			if !slices.Contains(Candidates(approval, s.requests), request) {
				t.Fatalf("seed %d: %s covers a request that is not among its candidates", seed, approval.Name)
			}
			if reserved := approval.Status.Request; reserved != nil && reserved.UID != request.UID && (Spent(approval) || s.existing.Has(reserved.UID)) {
				t.Fatalf("seed %d: %s covers a request while it is another's", seed, approval.Name)
			}
			if pin := approval.Spec.Source.UID; result.Verified && pin != "" && pin != s.source.UID {
				t.Fatalf("seed %d: %s was verified for another object", seed, approval.Name)
			}
			// What is started stays with its approval, whichever others appear.
			if result.Verified {
				Reserve(approval, request, s.source.UID)
				if again := s.find(); again.Approval != approval || !again.Verified {
					t.Fatalf("seed %d: after it was reserved, %s became\n%s", seed, approval.Name, again)
				}
			}
		}
	}
}

func randomScene(random *rand.Rand) scene {
	pick := func(values ...string) string { return values[random.IntN(len(values))] }
	at := func() metav1.Time { return metav1.NewTime(time.Unix(int64(random.IntN(4)), 0)) }
	kind := v1alpha1.SourceReference{Kind: "PersistentVolumeClaim", Name: "data"}

	s := scene{existing: sets.New(types.UID("r1"))}
	if random.IntN(4) > 0 {
		s.source = &Source{UID: types.UID(pick("u1", "u2")), CreationTimestamp: at()}
	}
	s.requests = []*v1alpha1.NamespaceTransferRequest{{
		ObjectMeta: metav1.ObjectMeta{Namespace: "dev", Name: "take", UID: "r1"},
		Spec: v1alpha1.NamespaceTransferRequestSpec{
			Source:       v1alpha1.RequestSource{Namespace: "prod", SourceReference: kind},
			ApprovalName: pick("", "", "", "a0"),
		},
	}}
	if random.IntN(2) == 0 {
		s.existing.Insert("r2")
	}
	for i := range random.IntN(5) {
		approval := &v1alpha1.NamespaceTransferApproval{
			ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: "a" + strconv.Itoa(i), CreationTimestamp: at()},
			Spec: v1alpha1.NamespaceTransferApprovalSpec{
				Source:          v1alpha1.ApprovalSource{SourceReference: kind, UID: types.UID(pick("", "u1", "u2"))},
				TargetNamespace: pick("dev", "dev", "dev", "test"),
				RequestName:     pick("", "", "take", "other"),
			},
		}
		if random.IntN(2) == 0 {
			approval.Status.Request = &v1alpha1.RequestReference{Namespace: "dev", UID: types.UID(pick("r2", "r3"))}
			approval.Status.ClaimUID = types.UID(pick("u1", "u2"))
		}
		if random.IntN(4) == 0 {
			approval.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionTransferred, Status: metav1.ConditionTrue}}
		}
		s.approvals = append(s.approvals, approval)
	}
	return s
}

// TestImports keeps the package free of what only controllers for claims need.
func TestImports(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, spec := range file.Imports {
			path, _ := strconv.Unquote(spec.Path.Value)
			standard := !strings.Contains(path, ".")
			if !standard && !strings.HasPrefix(path, "k8s.io/apimachinery/") && !strings.Contains(path, "/pkg/apis/") {
				t.Errorf("%s imports %s", name, path)
			}
		}
	}
}

// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"github.com/csi-transfer/csi-transfer/pkg/apis/transfer/v1alpha1"
	"github.com/csi-transfer/csi-transfer/test/cluster"
	"github.com/csi-transfer/csi-transfer/test/rights"
)

// sidecarMay is all that a sidecar ever writes, by verb and resource.
var sidecarMay = []string{
	"patch persistentvolumes",
	"patch persistentvolumeclaims",
	"patch csidrivers",
	"update namespacetransferrequests/status",
	"update namespacetransferapprovals/status",
	"create events",
	"patch events",
	"create leases",
	"update leases",
	"create selfsubjectreviews", // asks who it is, and leaves nothing behind
}

// sidecarWrites returns what sidecars have written or tried to.
func (w *world) sidecarWrites(filter cluster.AuditFilter) ([]auditv1.Event, error) {
	filter.User, filter.Verbs = sidecarUser, cluster.WriteVerbs
	return w.Audit(filter)
}

// audit fails if, according to the API server, a sidecar has written anything it
// must not, or lacked a right. It runs over everything that all tests did.
func (w *world) audit() error {
	requests, err := w.Audit(cluster.AuditFilter{User: sidecarUser})
	if err != nil {
		return err
	}
	problems := []error{rights.Lacking(requests)}
	told := sets.New[string]()
	for _, e := range requests {
		problem := lawful(e)
		if problem == nil || told.Has(problem.Error()) {
			continue // one example of each will do
		}
		told.Insert(problem.Error())
		problems = append(problems, fmt.Errorf("%s %s: %w: %s", e.Verb, e.RequestURI, problem, body(e)))
	}
	return errors.Join(problems...)
}

// unused fails if the shipped ClusterRole allows what no sidecar in any of the
// worlds has ever done.
func unused(ctx context.Context, worlds []*world) error {
	role, err := worlds[0].Client.RbacV1().ClusterRoles().Get(ctx, "csi-transfer-runner", metav1.GetOptions{})
	if err != nil {
		return err
	}
	var requests []auditv1.Event
	for _, w := range worlds {
		of, err := w.Audit(cluster.AuditFilter{User: sidecarUser})
		if err != nil {
			return err
		}
		requests = append(requests, of...)
	}
	return rights.Unused("ClusterRole "+role.Name, role.Rules, requests)
}

func body(e auditv1.Event) string {
	if e.RequestObject == nil {
		return ""
	}
	return string(e.RequestObject.Raw)
}

func lawful(e auditv1.Event) error {
	if !slices.Contains(cluster.WriteVerbs, e.Verb) {
		return nil
	}
	resource := rights.Resource(e)
	if !slices.Contains(sidecarMay, e.Verb+" "+resource) {
		return errors.New("it has no business writing that")
	}
	// The API server has not read what a sidecar was killed at sending.
	if e.RequestObject == nil && e.ResponseStatus.Code >= http.StatusBadRequest {
		return nil
	}
	switch resource {
	case "persistentvolumes":
		return lawfulVolumePatch(e)
	case "persistentvolumeclaims":
		return lawfulClaimPatch(e)
	case "csidrivers":
		return lawfulDriverPatch(e)
	}
	return nil
}

// lawfulVolumePatch: every write to a volume is a merge patch of the very version
// on which it was decided, and leaves nothing of a former claimRef.
func lawfulVolumePatch(e auditv1.Event) error {
	var patch struct {
		Metadata metav1.ObjectMeta `json:"metadata"`
		Spec     map[string]any    `json:"spec"`
	}
	if err := json.Unmarshal([]byte(body(e)), &patch); err != nil {
		return fmt.Errorf("it is no merge patch: %w", err)
	}
	if patch.Metadata.UID == "" || patch.Metadata.ResourceVersion == "" {
		return errors.New("it is not guarded by UID and resourceVersion")
	}
	for field, value := range patch.Spec {
		switch field {
		case "persistentVolumeReclaimPolicy":
		case "claimRef":
			ref, _ := value.(map[string]any)
			for _, key := range []string{"apiVersion", "kind", "namespace", "name", "uid"} {
				if s, _ := ref[key].(string); s == "" {
					return fmt.Errorf("it does not write claimRef.%s", key)
				}
			}
			for _, key := range []string{"resourceVersion", "fieldPath"} {
				if v, there := ref[key]; !there || v != nil {
					return fmt.Errorf("it does not remove claimRef.%s", key)
				}
			}
		default:
			return fmt.Errorf("it writes spec.%s", field)
		}
	}
	return nil
}

// lawfulClaimPatch: of a claim, only our annotations are written, guarded like
// those of volumes.
func lawfulClaimPatch(e auditv1.Event) error { return annotatesOnly(e, "uid", "resourceVersion") }

// lawfulDriverPatch: of a CSIDriver, only our annotations are written.
func lawfulDriverPatch(e auditv1.Event) error { return annotatesOnly(e, "uid") }

func annotatesOnly(e auditv1.Event, guards ...string) error {
	var patch map[string]map[string]any
	if err := json.Unmarshal([]byte(body(e)), &patch); err != nil {
		return fmt.Errorf("it is no merge patch: %w", err)
	}
	metadata := patch["metadata"]
	annotations, _ := metadata["annotations"].(map[string]any)
	if len(patch) != 1 || len(metadata) != len(guards)+1 || len(annotations) == 0 {
		return errors.New("it is not a guarded patch of annotations alone")
	}
	for _, guard := range guards {
		if metadata[guard] == nil {
			return fmt.Errorf("it is not guarded by %s", guard)
		}
	}
	for key := range annotations {
		if !strings.HasPrefix(key, v1alpha1.GroupName+"/") {
			return fmt.Errorf("it writes annotation %s", key)
		}
	}
	return nil
}

// TestR13_NoUserObjectIsCreatedOrDeleted: a transfer is a handful of writes, all
// to what the sidecar may write. For all other tests this is looked at when they
// have ended.
func TestR13_NoUserObjectIsCreatedOrDeleted(t *testing.T) {
	s := newQuietScene(t)
	since := must[cluster.AuditMark](s)(s.AuditMark())
	s.offer()
	s.transferred()
	s.spent()

	writes := must[[]auditv1.Event](s)(s.sidecarWrites(cluster.AuditFilter{Since: since}))
	var perTransfer []string
	for _, e := range writes {
		if err := lawful(e); err != nil {
			t.Errorf("%s %s: %v: %s", e.Verb, e.RequestURI, err, body(e))
		}
		// The sidecar may have just begun to run. A conflict writes nothing:
		// csi-provisioner takes its finalizer off a parked volume at any moment.
		conflict := e.ResponseStatus != nil && e.ResponseStatus.Code == http.StatusConflict
		if r := e.ObjectRef.Resource; r != "events" && r != "selfsubjectreviews" && r != "csidrivers" && !conflict {
			perTransfer = append(perTransfer, e.Verb+" "+e.RequestURI)
		}
	}
	if n := len(perTransfer); n == 0 || n > 8 {
		t.Errorf("%d writes for one transfer, events apart; want at most 8: %s", n, strings.Join(perTransfer, ", "))
	}
}

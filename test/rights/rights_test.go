// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package rights_test

import (
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"github.com/csi-transfer/csi-transfer/test/rights"
)

func request(decision, verb, group, resource, name string) auditv1.Event {
	return auditv1.Event{
		Verb:        verb,
		ObjectRef:   &auditv1.ObjectReference{APIGroup: group, Resource: resource, Name: name},
		Annotations: map[string]string{"authorization.k8s.io/decision": decision},
	}
}

// lines are what an error that joins others says.
func lines(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestLacking(t *testing.T) {
	got := lines(rights.Lacking([]auditv1.Event{
		request("forbid", "get", "", "pods", "a"), // before the API server knew the role
		request("allow", "get", "", "pods", "a"),
		request("forbid", "list", "", "nodes", ""),
		request("allow", "watch", "", "nodes", ""),
		request("forbid", "delete", "apps", "deployments", "a"),
		request("forbid", "delete", "apps", "deployments", "b"),
	}))
	if strings.Count(got, "\n") != 0 || !strings.Contains(got, "no right to delete deployments.apps") {
		t.Errorf("got %q", got)
	}
}

func TestUnused(t *testing.T) {
	rules := []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"pods", "pods/status"}, Verbs: []string{"get"}},
		{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, ResourceNames: []string{"mine", "yours"}, Verbs: []string{"update"}},
		{APIGroups: []string{"apps"}, Resources: []string{"deployments"}, Verbs: []string{"list", "watch"}},
	}
	done := []auditv1.Event{
		request("allow", "get", "", "pods", "a"),
		request("allow", "update", "coordination.k8s.io", "leases", "mine"),
		request("allow", "watch", "apps", "deployments", ""),
	}
	want := `Role r allows to get pods/status, which was never done
Role r allows to update leases.coordination.k8s.io yours, which was never done`
	if got := lines(rights.Unused("Role r", rules, done)); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

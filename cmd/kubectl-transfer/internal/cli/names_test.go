// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"strings"
	"testing"
)

func TestParseName(t *testing.T) {
	for _, test := range []struct {
		text  string
		kinds []kind
		want  string
		err   string
	}{
		{"data", []kind{claims}, "here/pvc/data", ""},
		{"pvc/data", []kind{claims}, "here/pvc/data", ""},
		{"prod/pvc/data", []kind{claims}, "prod/pvc/data", ""},
		{"prod/PersistentVolumeClaim/data", []kind{claims}, "prod/pvc/data", ""},
		{"prod/sts/db", []kind{claims, statefulSets}, "prod/statefulset/db", ""},
		{"ntr/take", []kind{claims, requests}, "here/ntr/take", ""},
		{"namespacetransferapproval.transfer.storage.x-k8s.io/give", []kind{claims, approvals}, "here/nta/give", ""},
		{"prod/data", []kind{claims}, "", "for the claim of namespace prod write prod/pvc/data"},
		{"prod/pod/data", []kind{claims}, "", "is of no kind that is known here; write [NAMESPACE/]pvc/NAME"},
		{"prod/ntr/take", []kind{claims}, "", "is of no kind that is known here"},
		{"", []kind{claims}, "", "is not a name; write [NAMESPACE/]pvc/NAME"},
		{"prod//data", []kind{claims}, "", "is not a name"},
		{"a/b/pvc/data", []kind{claims, requests}, "", "write [NAMESPACE/]pvc/NAME or [NAMESPACE/]ntr/NAME"},
	} {
		got, err := parseName(test.text, "here", test.kinds...)
		switch {
		case test.err != "" && (err == nil || !strings.Contains(err.Error(), test.err)):
			t.Errorf("%q: error %v, want %q", test.text, err, test.err)
		case test.err == "" && (err != nil || got.String() != test.want):
			t.Errorf("%q: %s, error %v, want %s", test.text, got, err, test.want)
		}
	}
}

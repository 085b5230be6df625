// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation"
)

// bare answers as an API server that allows everything and has nothing, not even
// our kinds.
func bare(w http.ResponseWriter, r *http.Request) {
	respond := func(code int, body any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(body) // the client notices
	}
	switch {
	case strings.HasSuffix(r.URL.Path, "/selfsubjectaccessreviews"):
		review := &authorizationv1.SelfSubjectAccessReview{}
		review.APIVersion, review.Kind, review.Status.Allowed = "authorization.k8s.io/v1", "SelfSubjectAccessReview", true
		respond(http.StatusCreated, review)
	case strings.HasPrefix(r.URL.Path, "/api/v1/"):
		status := apierrors.NewNotFound(claimResource, "data").Status()
		status.APIVersion, status.Kind = "v1", "Status"
		respond(http.StatusNotFound, status)
	default:
		http.NotFound(w, r)
	}
}

// run runs a command against a server.
func run(t *testing.T, handler http.HandlerFunc, args ...string) (output string, code int) {
	t.Helper()
	t.Setenv("KUBECONFIG", os.DevNull)
	server := httptest.NewServer(handler)
	defer server.Close()
	var out bytes.Buffer
	code = Run(t.Context(), "v0", strings.NewReader(""), &out, &out, append(args, "--server="+server.URL))
	return out.String(), code
}

func TestNotInstalled(t *testing.T) {
	for _, args := range [][]string{
		{"accept", "prod/pvc/data", "-n", "dev"},
		{"approve", "prod/pvc/data", "--to", "dev", "--pin=false"},
		{"get", "-n", "dev"},
	} {
		output, code := run(t, bare, args...)
		if code != 1 || !strings.Contains(output, "this cluster does not have csi-transfer") {
			t.Errorf("%v: exit code %d, %s", args, code, output)
		}
	}
}

// TestOutputFormats: a format that does not exist is refused before anything is
// done.
func TestOutputFormats(t *testing.T) {
	for _, args := range [][]string{
		{"approve", "prod/pvc/data", "--to", "dev", "-o", "table"},
		{"move", "prod/pvc/data", "dev/pvc/data", "-o", "table"},
		{"check", "prod/pvc/data", "-o", "table"},
		{"move", "prod/pvc/data", "dev/pvc/data", "--dry-run=perhaps"},
	} {
		output, code := run(t, func(w http.ResponseWriter, r *http.Request) { t.Errorf("%v: %s %s", args, r.Method, r.URL) }, args...)
		if code != 1 || !strings.HasPrefix(output, "error: ") {
			t.Errorf("%v: exit code %d, %s", args, code, output)
		}
	}
}

// TestNameOf: names made of claims' are valid, also with what the API server
// appends to make them unique.
func TestNameOf(t *testing.T) {
	if got, want := nameOf("data", "-to-dev"), "data-to-dev"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	longest := strings.Repeat("a", validation.DNS1123SubdomainMaxLength)
	name := nameOf(longest, "-from-"+strings.Repeat("n", validation.DNS1123LabelMaxLength)) + "-abcde"
	if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
		t.Errorf("%s: %v", name, problems)
	}
}

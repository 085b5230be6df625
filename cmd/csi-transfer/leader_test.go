// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
)

// TestIdentity: pods on the network of one node have its host name, all of them,
// and must not all hold the lease.
func TestIdentity(t *testing.T) {
	hostname, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for want, self := range map[string]authenticationv1.UserInfo{
		"csi-controller-abc": {Username: "system:serviceaccount:csi:csi", Extra: map[string]authenticationv1.ExtraValue{podNameKey: {"csi-controller-abc"}}},
		hostname:             {Username: "admin"},
	} {
		if got, err := identityOf(self); got != want || err != nil {
			t.Errorf("%s holds the lease as %q, error %v; want %q", self.Username, got, err, want)
		}
	}
}

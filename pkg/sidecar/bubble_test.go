// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package sidecar

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// takes waits until something is true, and returns how long that took by the
// clock of the bubble it is called in, to the millisecond.
func takes(t *testing.T, done func() bool) time.Duration {
	t.Helper()
	begun := time.Now()
	if err := wait.PollUntilContextTimeout(t.Context(), time.Millisecond, time.Hour, true, func(context.Context) (bool, error) {
		synctest.Wait()
		return done(), nil
	}); err != nil {
		t.Fatal(err)
	}
	return time.Since(begun)
}

// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
)

// boundedConn gives every call a deadline and an error that names the call, so
// that no call site can forget either.
type boundedConn struct {
	grpc.ClientConnInterface
	timeout time.Duration
}

func (c boundedConn) Invoke(ctx context.Context, method string, request, answer any, opts ...grpc.CallOption) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	if err := c.ClientConnInterface.Invoke(ctx, method, request, answer, opts...); err != nil {
		return &callError{method: strings.TrimPrefix(method, "/"), status: status.Convert(err)}
	}
	return nil
}

type callError struct {
	method string
	status *status.Status
}

func (e *callError) Error() string {
	return fmt.Sprintf("%s: %s: %s", e.method, e.status.Code(), printable(e.status.Message()))
}

// GRPCStatus makes status.Code work on the error and on those that wrap it.
func (e *callError) GRPCStatus() *status.Status { return e.status }

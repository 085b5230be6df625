// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance_test

import (
	"context"
	"path/filepath"
	"slices"
	"sync"

	"google.golang.org/grpc"

	"github.com/csi-transfer/csi-transfer/pkg/driver/transferpb"
)

// A flaw makes a driver wrong.
type flaw func(*notes) grpc.UnaryServerInterceptor

// notes are what one wrong driver keeps for itself. It takes one call at a time,
// so that flaws need no lock.
type notes struct {
	sync.Mutex
	stateDir string
	calls    int
	// owners has the UID of a volume's owner, by volume ID.
	owners map[string]string
}

// flawed makes calls pass through all flaws.
func (n *notes) flawed(flaws []flaw) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		if len(flaws) > 0 {
			n.Lock()
			defer n.Unlock()
		}
		for _, f := range slices.Backward(flaws) {
			intercept, next := f(n), handler
			handler = func(ctx context.Context, request any) (any, error) { return intercept(ctx, request, info, next) }
		}
		return handler(ctx, request)
	}
}

// instead does something else in calls with a request of type Q.
func instead[Q, A any](do func(n *notes, request Q, carryOut func() (A, error)) (A, error)) flaw {
	return func(n *notes) grpc.UnaryServerInterceptor {
		return func(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			q, ok := request.(Q)
			if !ok {
				return handler(ctx, request)
			}
			return do(n, q, func() (A, error) {
				answer, err := handler(ctx, request)
				a, _ := answer.(A)
				return a, err
			})
		}
	}
}

// asked does something first: change the request, or refuse it.
func asked[Q any](do func(n *notes, request Q) error) flaw {
	return instead(func(n *notes, request Q, carryOut func() (any, error)) (any, error) {
		if err := do(n, request); err != nil {
			return nil, err
		}
		return carryOut()
	})
}

// answers changes an answer.
func answers[Q, A any](change func(n *notes, request Q, answer A)) flaw {
	return instead(func(n *notes, request Q, carryOut func() (A, error)) (A, error) {
		answer, err := carryOut()
		if err == nil {
			change(n, request, answer)
		}
		return answer, err
	})
}

// Of the requests that most flaws are in, for short.
type (
	validateRequest = *transferpb.ValidateVolumeRequest
	verdict         = *transferpb.ValidateVolumeResponse
	ownerRequest    = *transferpb.SetOwnerRequest
	ownerSet        = *transferpb.SetOwnerResponse
)

// forgets drops blockers of one type, and confirms where none is left.
func forgets(kind transferpb.Blocker_Type) flaw {
	return answers(func(_ *notes, _ validateRequest, v verdict) {
		v.Blockers = slices.DeleteFunc(v.Blockers, func(b *transferpb.Blocker) bool { return b.GetType() == kind })
		v.Confirmed = len(v.Blockers) == 0
	})
}

// blocks adds a blocker.
func blocks(v verdict, kind transferpb.Blocker_Type, id string) {
	v.Confirmed = false
	v.Blockers = append(v.Blockers, &transferpb.Blocker{Type: kind, Id: id})
}

// remembers notes who owns a volume. Other flaws build on it.
var remembers = answers(func(n *notes, request ownerRequest, _ ownerSet) {
	n.owners[request.GetVolumeId()] = request.GetTo().GetUid()
})

// contentOf is where the suite writes to a volume.
func (n *notes) contentOf(volumeID string) string {
	return filepath.Join(n.stateDir, "volumes", volumeID, "data", "csi-transfer")
}

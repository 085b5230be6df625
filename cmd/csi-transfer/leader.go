// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strings"
	"sync/atomic"
	"time"

	"github.com/kubernetes-csi/csi-lib-utils/standardflags"
	authenticationv1 "k8s.io/api/authentication/v1"
	typedcoordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// healthPath and healthTimeout are the same in every CSI sidecar.
const (
	healthPath    = "/healthz/leader-election"
	healthTimeout = 20 * time.Second
)

// podNameKey is where the API server notes the pod that a token is for.
const podNameKey = "authentication.kubernetes.io/pod-name"

var errLeaseLost = errors.New("lost the lease")

// elect runs move while this process holds the lease, and returns nil after a
// clean stop. csi-lib-utils' own election ends the process with status 1, at
// once, even where a stop was asked for and move is in the middle of an action.
func elect(ctx context.Context, clientConfig *rest.Config, lease, identity string, mux *http.ServeMux, releaseOnExit bool, move func(context.Context) error) error {
	standard := standardflags.Configuration
	// A client of its own: many transfers at once must not delay the renewal.
	leases, err := typedcoordinationv1.NewForConfig(clientConfig)
	if err != nil {
		return fmt.Errorf("making the client for the lease: %w", err)
	}
	namespace := standard.LeaderElectionNamespace
	if namespace == "" {
		namespace = podNamespace()
	}
	lock, err := resourcelock.NewWithLabels(resourcelock.LeasesResourceLock, namespace, dns1123(lease), nil, leases,
		resourcelock.ResourceLockConfig{Identity: identity}, standard.LeaderElectionLabels)
	if err != nil {
		return err
	}
	health := leaderelection.NewLeaderHealthzAdaptor(healthTimeout)
	mux.HandleFunc(healthPath, func(w http.ResponseWriter, r *http.Request) {
		if err := health.Check(r); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		fmt.Fprint(w, "ok")
	})

	// The lease is kept until move has come to its end.
	electing, release := context.WithCancel(context.WithoutCancel(ctx))
	defer release()
	var (
		leads  atomic.Bool
		result error
	)
	moved := make(chan struct{})
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Name: lease, Lock: lock, WatchDog: health,
		LeaseDuration:   standard.LeaderElectionLeaseDuration,
		RenewDeadline:   standard.LeaderElectionRenewDeadline,
		RetryPeriod:     standard.LeaderElectionRetryPeriod,
		ReleaseOnCancel: releaseOnExit,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(leading context.Context) {
				leads.Store(true)
				leading, stop := context.WithCancel(leading)
				defer context.AfterFunc(ctx, stop)()
				result = move(leading)
				close(moved)
				release()
			},
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return fmt.Errorf("leader election: %w", err)
	}
	// Who waits for the lease has nothing to finish.
	defer context.AfterFunc(ctx, func() {
		if !elector.IsLeader() {
			release()
		}
	})()
	elector.Run(electing)
	if !leads.Load() {
		return nil
	}
	<-moved
	if result == nil && ctx.Err() == nil {
		return errLeaseLost
	}
	return result
}

// identityOf names this process in the lease: by its pod, as the service account's
// token has it, so that two pods on the network of one node, which have its host
// name, are told apart. Without a pod it is the host name. A container that is
// started again has the lease at once.
func identityOf(self authenticationv1.UserInfo) (string, error) {
	if pod := self.Extra[podNameKey]; len(pod) == 1 {
		return pod[0], nil
	}
	hostname, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("naming this process for the lease: %w", err)
	}
	return hostname, nil
}

// dns1123 makes a driver's name part of the name of a lease, as csi-lib-utils does.
func dns1123(name string) string {
	name = regexp.MustCompile("[^a-zA-Z0-9-]").ReplaceAllString(name, "-")
	if strings.HasSuffix(name, "-") {
		name += "X"
	}
	return name
}

// podNamespace is where the lease lives unless told: POD_NAMESPACE, or what the
// service account says, or default.
func podNamespace() string {
	if ns := os.Getenv("POD_NAMESPACE"); ns != "" {
		return ns
	}
	if text, err := os.ReadFile("/var/run/secrets/kubernetes.io/serviceaccount/namespace"); err == nil {
		if ns := strings.TrimSpace(string(text)); ns != "" {
			return ns
		}
	}
	return "default"
}

// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"github.com/csi-transfer/csi-transfer/test/cluster"
	"github.com/csi-transfer/csi-transfer/test/node/shipped"
	"github.com/csi-transfer/csi-transfer/test/rights"
)

// serviceAccount is who a driver's controller is for the API server: all of its
// sidecars.
func serviceAccount(d *shipped.Options) string {
	return "system:serviceaccount:" + d.Namespace() + ":" + d.Controller()
}

// bySidecar tells csi-transfer's requests from those of the sidecars that have the
// same service account.
func bySidecar(e auditv1.Event) bool { return strings.HasPrefix(e.UserAgent, "csi-transfer/") }

// lacking fails if anything that is shipped was refused for want of a right, as
// the API server or its own log has it.
func (w *world) lacking() error {
	var problems []error
	for _, d := range drivers {
		requests, err := w.Audit(cluster.AuditFilter{User: serviceAccount(d)})
		problems = append(problems, err, rights.Lacking(requests))
		logs, err := filepath.Glob(w.node.Path("/var/log/pods/" + d.Namespace() + "_*/*/*"))
		problems = append(problems, err)
		for _, log := range logs {
			text, err := os.ReadFile(log)
			problems = append(problems, err)
			for line := range strings.Lines(string(text)) {
				if strings.Contains(line, "forbidden: User") {
					problems = append(problems, fmt.Errorf("%s: %s", log, line))
				}
			}
		}
	}
	return errors.Join(problems...)
}

// restarted fails if a container of what is shipped has ended, for instance since
// its probe failed.
func (w *world) restarted(ctx context.Context) error {
	var problems []error
	for _, d := range drivers {
		pods, err := w.Client.CoreV1().Pods(d.Namespace()).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, pod := range pods.Items {
			for _, c := range pod.Status.ContainerStatuses {
				if c.RestartCount > 0 {
					problems = append(problems, fmt.Errorf("%s of pod %s/%s has ended %d times, the last time with %+v", c.Name, pod.Namespace, pod.Name, c.RestartCount, c.LastTerminationState.Terminated))
				}
			}
		}
	}
	return errors.Join(problems...)
}

// unused fails if csi-transfer is allowed what it has not done in any test, or the
// example's sidecars what they need not for their election.
func (w *world) unused(ctx context.Context) error {
	runner, err := w.Client.RbacV1().ClusterRoles().Get(ctx, "csi-transfer-runner", metav1.GetOptions{})
	if err != nil {
		return err
	}
	election, err := w.Client.RbacV1().Roles(attached.Namespace()).Get(ctx, attached.Namespace()+"-leader-election", metav1.GetOptions{})
	if err != nil {
		return err
	}
	var sidecars, elections []auditv1.Event
	for _, d := range drivers {
		requests, err := w.Audit(cluster.AuditFilter{User: serviceAccount(d)})
		if err != nil {
			return err
		}
		sidecars = append(sidecars, slices.DeleteFunc(slices.Clone(requests), func(e auditv1.Event) bool { return !bySidecar(e) })...)
		if d == &attached {
			elections = requests
		}
	}
	return errors.Join(
		rights.Unused("ClusterRole "+runner.Name, runner.Rules, sidecars),
		rights.Unused("Role "+election.Name, election.Rules, elections))
}

// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package match

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csi-transfer/csi-transfer/pkg/apis/transfer/v1alpha1"
)

func TestReserve(t *testing.T) {
	first := &v1alpha1.NamespaceTransferRequest{ObjectMeta: metav1.ObjectMeta{Namespace: "dev", Name: "take", UID: "r1"}}
	second := &v1alpha1.NamespaceTransferRequest{ObjectMeta: metav1.ObjectMeta{Namespace: "dev", Name: "take", UID: "r2"}}
	approval := &v1alpha1.NamespaceTransferApproval{}

	for _, step := range []struct {
		request *v1alpha1.NamespaceTransferRequest
		source  types.UID
		changed bool
	}{
		{first, "u1", true},
		{first, "u1", false},
		{first, "u2", true},
		{second, "u2", true},
	} {
		if got := Reserve(approval, step.request, step.source); got != step.changed {
			t.Errorf("Reserve(%s, %s) = %v", step.request.UID, step.source, got)
		}
		if !ReservedFor(approval, step.request) || approval.Status.ClaimUID != step.source {
			t.Errorf("Reserve(%s, %s) left %+v", step.request.UID, step.source, approval.Status)
		}
	}
	if ReservedFor(approval, first) {
		t.Error("a request of the same name is taken for the same request")
	}
}

func TestSetCondition(t *testing.T) {
	start, later := metav1.NewTime(time.Unix(1, 0)), metav1.NewTime(time.Unix(2, 0))
	request := &v1alpha1.NamespaceTransferRequest{ObjectMeta: metav1.ObjectMeta{Generation: 1}}
	conditions := &request.Status.Conditions
	condition := func(status metav1.ConditionStatus, message string, at metav1.Time) metav1.Condition {
		return metav1.Condition{
			Type: v1alpha1.ConditionTransferred, Status: status, Reason: "Because", Message: message, LastTransitionTime: at,
		}
	}

	for _, step := range []struct {
		name       string
		generation int64
		condition  metav1.Condition
		changed    bool
		since      metav1.Time
	}{
		{"new", 1, condition(metav1.ConditionFalse, "a", start), true, start},
		{"the same", 1, condition(metav1.ConditionFalse, "a", later), false, start},
		{"message", 1, condition(metav1.ConditionFalse, "b", later), true, start},
		{"generation", 2, condition(metav1.ConditionFalse, "b", later), true, start},
		{"status", 2, condition(metav1.ConditionTrue, "b", later), true, later},
	} {
		request.Generation = step.generation
		if got := SetCondition(request, conditions, step.condition); got != step.changed {
			t.Errorf("%s: changed = %v", step.name, got)
		}
		got := (*conditions)[0]
		if got.ObservedGeneration != step.generation || !got.LastTransitionTime.Equal(&step.since) {
			t.Errorf("%s: got %+v", step.name, got)
		}
	}
	if len(*conditions) != 1 || !Completed(request) {
		t.Errorf("got %+v", *conditions)
	}
}

// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package sidecar

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-base/metrics"

	"github.com/csi-transfer/csi-transfer/internal/docs"
)

// TestReadmeHasTheMetrics: the table of README is made from what is registered.
func TestReadmeHasTheMetrics(t *testing.T) {
	registry := metrics.NewKubeRegistry()
	m := NewMetrics(registry)
	// A metric shows once it has a value.
	m.ended(resultCompleted, "")
	m.took(time.Second)
	m.waits(types.NamespacedName{}, "InUse")
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var rows [][]string
	for _, f := range families {
		var labels []string
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels = append(labels, "`"+l.GetName()+"`")
		}
		rows = append(rows, []string{"`" + f.GetName() + "`", strings.ToLower(f.GetType().String()), strings.Join(labels, ", "), f.GetHelp()})
	}
	docs.Check(t, "../../README.md", "metrics", docs.Table([]string{"metric", "type", "labels", "meaning"}, rows))
}

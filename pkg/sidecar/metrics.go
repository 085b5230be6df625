// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package sidecar

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-base/metrics"
)

// Results of transfers in the metrics.
const (
	resultCompleted  = "completed"
	resultRolledBack = "rolled_back"
	resultAbandoned  = "abandoned"
)

// Metrics count transfers. No label names a namespace or a claim.
type Metrics struct {
	transfers *metrics.CounterVec
	duration  *metrics.Histogram
	waiting   *metrics.GaugeVec

	mu      sync.Mutex
	reasons map[types.NamespacedName]string
}

// NewMetrics registers the metrics.
func NewMetrics(registry metrics.KubeRegistry) *Metrics {
	m := &Metrics{
		transfers: metrics.NewCounterVec(&metrics.CounterOpts{
			Subsystem: "csi_transfer", Name: "transfers_total", StabilityLevel: metrics.ALPHA,
			Help: "Attempts to transfer a volume, by result (completed, rolled_back, abandoned) and, where rolled back, the reason.",
		}, []string{"result", "reason"}),
		duration: metrics.NewHistogram(&metrics.HistogramOpts{
			Subsystem: "csi_transfer", Name: "duration_seconds", StabilityLevel: metrics.ALPHA,
			Help:    "Time from parking a volume until it is restored in the receiving namespace.",
			Buckets: metrics.ExponentialBuckets(0.025, 2, 14),
		}),
		waiting: metrics.NewGaugeVec(&metrics.GaugeOpts{
			Subsystem: "csi_transfer", Name: "waiting", StabilityLevel: metrics.ALPHA,
			Help: "Approved transfers that wait, by reason.",
		}, []string{"reason"}),
		reasons: map[types.NamespacedName]string{},
	}
	registry.MustRegister(m.transfers, m.duration, m.waiting)
	return m
}

func (m *Metrics) ended(result, reason string) { m.transfers.WithLabelValues(result, reason).Inc() }

func (m *Metrics) took(d time.Duration) { m.duration.Observe(d.Seconds()) }

// waits records for what reason a transfer waits; none if reason is empty.
func (m *Metrics) waits(key types.NamespacedName, reason string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	before := m.reasons[key]
	if before == reason {
		return
	}
	if before != "" {
		m.waiting.WithLabelValues(before).Dec()
	}
	if reason == "" {
		delete(m.reasons, key)
		return
	}
	m.reasons[key] = reason
	m.waiting.WithLabelValues(reason).Inc()
}

// SPDX-License-Identifier: Apache-2.0

package kvpool

import (
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/observe"
	"farpool.dev/farpool/operator/internal/plan"
)

// Metrics are the operator's. Data-plane processes have metrics of their own.
type Metrics struct {
	gauges *gauges

	losses    *prometheus.CounterVec
	publishes *prometheus.CounterVec
	broken    *prometheus.CounterVec
	writes    *prometheus.CounterVec

	fenced     *prometheus.CounterVec
	repaired   *prometheus.CounterVec
	repairTime *prometheus.HistogramVec

	resizes    *prometheus.CounterVec
	resizeTime *prometheus.HistogramVec
}

// NewMetrics registers the metrics.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	pool := []string{"namespace", "pool"}
	with := func(more ...string) []string { return append(append([]string(nil), pool...), more...) }
	counter := func(name, help string, labels []string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "farpool_operator_" + name, Help: help}, labels)
	}
	m := &Metrics{
		gauges:    newGauges(),
		losses:    counter("data_losses_total", "Memory nodes that came back without what they held.", pool),
		publishes: counter("map_publications_total", "Maps told to memory nodes.", with("result")),
		broken:    counter("agent_streams_broken_total", "Streams to agents that broke after facts were heard.", pool),
		writes:    counter("writes_total", "Writes to the API server.", []string{"kind", "verb"}),
	}
	m.fenced = counter("processes_fenced_total", "Dead client processes that were fenced on every memory node.", with("cause"))
	m.repaired = counter("processes_repaired_total", "Dead client processes of which nothing is left.", with("cause"))
	m.repairTime = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "farpool_operator_repair_seconds", Help: "From a client's death, or where its time is not known from the RepairLease's creation, to nothing being left of it.",
		Buckets: []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000},
	}, with("cause"))
	m.resizes = counter("resizes_total", "ResizeOperations that are complete, superseded by another one, or aborted.", with("stage"))
	m.resizeTime = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "farpool_operator_resize_seconds", Help: "From the beginning of a resize until the pool has the memory nodes that its spec asks for.",
		Buckets: []float64{1, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400},
	}, pool)
	registry.MustRegister(m.gauges, m.losses, m.publishes, m.broken, m.writes, m.fenced, m.repaired, m.repairTime, m.resizes, m.resizeTime)
	return m
}

// Wrote counts a write to the API server.
func (m *Metrics) Wrote(kind, verb string) { m.writes.WithLabelValues(kind, verb).Inc() }

// StreamBroken counts a stream that broke.
func (m *Metrics) StreamBroken(pool types.NamespacedName) {
	m.broken.WithLabelValues(pool.Namespace, pool.Name).Inc()
}

func (m *Metrics) published(pool types.NamespacedName, result string) {
	m.publishes.WithLabelValues(pool.Namespace, pool.Name, result).Inc()
}

// count counts what becomes true with a status.
func (m *Metrics) count(snapshot *observe.Snapshot, decided *plan.Status, news []plan.Event) {
	pool := client.ObjectKeyFromObject(snapshot.Pool)
	for _, told := range news {
		switch regarding := told.Regarding.(type) {
		case *v1alpha1.KVPool:
			if told.Reason == v1alpha1.ReasonTablesLost || told.Reason == v1alpha1.ReasonDataLost {
				m.losses.WithLabelValues(pool.Namespace, pool.Name).Inc()
			}
		case *v1alpha1.RepairLease:
			now := decided.Leases[regarding.Name]
			m.follow(pool, regarding, &now, told.Reason)
		case *v1alpha1.ResizeOperation:
			now := decided.Resizes[regarding.Name]
			if now.CompletionTime == nil || !ends(told.Reason) {
				continue
			}
			m.resizes.WithLabelValues(pool.Namespace, pool.Name, string(now.Stage)).Inc()
			if told.Reason == v1alpha1.ReasonResizeComplete {
				m.resizeTime.WithLabelValues(pool.Namespace, pool.Name).Observe(now.CompletionTime.Sub(now.StartTime.Time).Seconds())
			}
		}
	}
}

// ends says whether an event ends a ResizeOperation.
func ends(reason string) bool {
	return reason == v1alpha1.ReasonResizeComplete || reason == v1alpha1.ReasonSuperseded || reason == v1alpha1.ReasonResizeAborted
}

// observe records the statuses that were written.
func (m *Metrics) observe(snapshot *observe.Snapshot, written *plan.Status) {
	m.gauges.set(client.ObjectKeyFromObject(snapshot.Pool), written)
}

// follow records a step of a RepairLease.
func (m *Metrics) follow(pool types.NamespacedName, lease *v1alpha1.RepairLease, now *v1alpha1.RepairLeaseStatus, reason string) {
	labels := []string{pool.Namespace, pool.Name, string(lease.Spec.Cause)}
	switch reason {
	case v1alpha1.ReasonFenced:
		m.fenced.WithLabelValues(labels...).Add(float64(len(now.Processes)))
	case v1alpha1.ReasonComplete:
		m.repaired.WithLabelValues(labels...).Add(float64(len(now.Processes)))
		for _, client := range lease.Spec.Clients {
			died := lease.CreationTimestamp.Time
			if client.DiedAt != nil {
				died = client.DiedAt.Time
			}
			m.repairTime.WithLabelValues(labels...).Observe(max(0, now.CompletedAt.Sub(died).Seconds()))
		}
	}
}

// forget removes the metrics of a pool that is gone.
func (m *Metrics) forget(pool types.NamespacedName) {
	labels := prometheus.Labels{"namespace": pool.Namespace, "pool": pool.Name}
	m.gauges.forget(pool)
	for _, counter := range []*prometheus.CounterVec{m.losses, m.publishes, m.broken, m.fenced, m.repaired, m.resizes} {
		counter.DeletePartialMatch(labels)
	}
	m.repairTime.DeletePartialMatch(labels)
	m.resizeTime.DeletePartialMatch(labels)
}

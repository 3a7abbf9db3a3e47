// SPDX-License-Identifier: Apache-2.0

package kvpool

import (
	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/observe"
	"farpool.dev/farpool/operator/internal/plan"
)

// Metrics of the operator. What the data plane does is in the metrics of its own processes.
type Metrics struct {
	epoch       *prometheus.GaugeVec
	conditions  *prometheus.GaugeVec
	memoryNodes *prometheus.GaugeVec
	shards      *prometheus.GaugeVec
	losses      *prometheus.CounterVec
	publishes   *prometheus.CounterVec
	broken      *prometheus.CounterVec
	writes      *prometheus.CounterVec

	leases      *prometheus.GaugeVec
	backlog     *prometheus.GaugeVec
	quarantined *prometheus.GaugeVec
	fenced      *prometheus.CounterVec
	repaired    *prometheus.CounterVec
	repairTime  *prometheus.HistogramVec

	overdue    *prometheus.GaugeVec
	partsLeft  *prometheus.GaugeVec
	keysLeft   *prometheus.GaugeVec
	resizes    *prometheus.CounterVec
	resizeTime *prometheus.HistogramVec
}

// NewMetrics registers the metrics.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	pool := []string{"namespace", "pool"}
	with := func(more ...string) []string { return append(append([]string(nil), pool...), more...) }
	gauge := func(name, help string, labels []string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "farpool_operator_" + name, Help: help}, labels)
	}
	counter := func(name, help string, labels []string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "farpool_operator_" + name, Help: help}, labels)
	}
	m := &Metrics{
		epoch:       gauge("pool_epoch", "Epoch of the pool's shard map.", pool),
		conditions:  gauge("pool_condition", "1 for the status that a condition of the pool has.", with("type", "status")),
		memoryNodes: gauge("pool_memory_nodes", "Memory nodes of the pool that are ready, or desired.", with("state")),
		shards:      gauge("pool_compute_shards", "Compute shards of the pool that are ready, or desired.", with("state")),
		losses:      counter("data_losses_total", "Memory nodes that came back without what they held.", pool),
		publishes:   counter("map_publications_total", "Maps told to memory nodes.", with("result")),
		broken:      counter("agent_streams_broken_total", "Streams to agents that broke after facts were heard.", pool),
		writes:      counter("writes_total", "Writes to the API server.", []string{"kind", "verb"}),
	}
	m.leases = gauge("repair_leases", "RepairLeases of the pool that are not complete.", pool)
	m.backlog = gauge("repair_backlog", "Dead client processes that wait for a RepairLease, as too many are open.", pool)
	m.quarantined = gauge("quarantined_rows", "Rows that no crash explains, and that stay locked.", with("memory_node"))
	m.fenced = counter("processes_fenced_total", "Dead client processes that were fenced on every memory node.", with("cause"))
	m.repaired = counter("processes_repaired_total", "Dead client processes of which nothing is left.", with("cause"))
	m.repairTime = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "farpool_operator_repair_seconds", Help: "From a client's death, or where its time is not known from the RepairLease's creation, to nothing being left of it.",
		Buckets: []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000},
	}, with("cause"))
	m.overdue = gauge("certificates_overdue_timestamp_seconds", "When two thirds of the life of the first of the pool's certificates have passed: they are renewed at half of it.", pool)
	m.partsLeft = gauge("resize_parts_left", "Parts of the pool's hash space that are still to change their memory node.", pool)
	m.keysLeft = gauge("resize_keys_left", "Keys of the pool that are still to change their memory node, about.", pool)
	m.resizes = counter("resizes_total", "ResizeOperations that are complete, superseded by another one, or aborted.", with("stage"))
	m.resizeTime = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "farpool_operator_resize_seconds", Help: "From the beginning of a resize to the pool's having the memory nodes that it shall have.",
		Buckets: []float64{1, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400},
	}, pool)
	registry.MustRegister(m.overdue, m.partsLeft, m.keysLeft, m.resizes, m.resizeTime)
	registry.MustRegister(m.epoch, m.conditions, m.memoryNodes, m.shards, m.losses, m.publishes, m.broken, m.writes,
		m.leases, m.backlog, m.quarantined, m.fenced, m.repaired, m.repairTime)
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

// count what becomes true with a status.
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

// ends says whether a ResizeOperation is over with what is told of it.
func ends(reason string) bool {
	return reason == v1alpha1.ReasonResizeComplete || reason == v1alpha1.ReasonSuperseded || reason == v1alpha1.ReasonResizeAborted
}

// observe what was written.
func (m *Metrics) observe(snapshot *observe.Snapshot, written *plan.Status) {
	pool, status := client.ObjectKeyFromObject(snapshot.Pool), &written.Pool
	if !written.CertificatesOverdue.IsZero() {
		m.overdue.WithLabelValues(pool.Namespace, pool.Name).Set(float64(written.CertificatesOverdue.Unix()))
	}
	m.partsLeft.WithLabelValues(pool.Namespace, pool.Name).Set(float64(written.PartsLeft))
	if written.KeysLeft != nil {
		m.keysLeft.WithLabelValues(pool.Namespace, pool.Name).Set(float64(*written.KeysLeft))
	}
	m.leases.WithLabelValues(pool.Namespace, pool.Name).Set(float64(written.OpenLeases))
	m.backlog.WithLabelValues(pool.Namespace, pool.Name).Set(float64(written.Backlog))
	m.quarantined.DeletePartialMatch(prometheus.Labels{"namespace": pool.Namespace, "pool": pool.Name}) // memory nodes go
	for name, node := range written.Nodes {
		m.quarantined.WithLabelValues(pool.Namespace, pool.Name, name).Set(float64(node.QuarantinedRows))
	}
	if status.ShardMap != nil {
		m.epoch.WithLabelValues(pool.Namespace, pool.Name).Set(float64(status.ShardMap.Epoch))
	}
	for _, c := range status.Conditions {
		for _, possible := range []metav1.ConditionStatus{metav1.ConditionTrue, metav1.ConditionFalse, metav1.ConditionUnknown} {
			value := 0.0
			if c.Status == possible {
				value = 1
			}
			m.conditions.WithLabelValues(pool.Namespace, pool.Name, c.Type, string(possible)).Set(value)
		}
	}
	counts := func(gauge *prometheus.GaugeVec, count *v1alpha1.CountStatus) {
		if count == nil {
			count = &v1alpha1.CountStatus{}
		}
		gauge.WithLabelValues(pool.Namespace, pool.Name, "ready").Set(float64(count.Ready))
		gauge.WithLabelValues(pool.Namespace, pool.Name, "desired").Set(float64(count.Desired))
	}
	counts(m.memoryNodes, status.Memory)
	counts(m.shards, status.Compute)
}

// follow a RepairLease that has taken a step.
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

// forget removes what is said of a pool that is gone.
func (m *Metrics) forget(pool types.NamespacedName) {
	labels := prometheus.Labels{"namespace": pool.Namespace, "pool": pool.Name}
	for _, gauge := range []*prometheus.GaugeVec{m.epoch, m.conditions, m.memoryNodes, m.shards, m.leases, m.backlog, m.quarantined, m.overdue, m.partsLeft, m.keysLeft} {
		gauge.DeletePartialMatch(labels)
	}
	for _, counter := range []*prometheus.CounterVec{m.losses, m.publishes, m.broken, m.fenced, m.repaired, m.resizes} {
		counter.DeletePartialMatch(labels)
	}
	m.repairTime.DeletePartialMatch(labels)
	m.resizeTime.DeletePartialMatch(labels)
}

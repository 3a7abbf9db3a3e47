// SPDX-License-Identifier: Apache-2.0

package kvpool

import (
	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"farpool.dev/farpool/api/v1alpha1"
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
	registry.MustRegister(m.epoch, m.conditions, m.memoryNodes, m.shards, m.losses, m.publishes, m.broken, m.writes)
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

func (m *Metrics) lost(pool types.NamespacedName) {
	m.losses.WithLabelValues(pool.Namespace, pool.Name).Inc()
}

func (m *Metrics) observe(pool types.NamespacedName, status *v1alpha1.KVPoolStatus) {
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

// forget removes what is said of a pool that is gone.
func (m *Metrics) forget(pool types.NamespacedName) {
	labels := prometheus.Labels{"namespace": pool.Namespace, "pool": pool.Name}
	for _, gauge := range []*prometheus.GaugeVec{m.epoch, m.conditions, m.memoryNodes, m.shards} {
		gauge.DeletePartialMatch(labels)
	}
	for _, counter := range []*prometheus.CounterVec{m.losses, m.publishes, m.broken} {
		counter.DeletePartialMatch(labels)
	}
}

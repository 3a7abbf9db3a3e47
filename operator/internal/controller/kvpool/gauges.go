// SPDX-License-Identifier: Apache-2.0

package kvpool

import (
	"cmp"
	"maps"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/plan"
)

// gauges are what the metrics say of pools as they are. A pool has some forty gauges. They are made when a scrape reads them: metrics that are kept would take 20
// KB for each pool.
type gauges struct {
	epoch, conditions, memoryNodes, shards, leases, backlog, quarantined, overdue, partsLeft, keysLeft *prometheus.Desc

	mutex sync.Mutex
	pools map[types.NamespacedName]*poolGauges
}

type poolGauges struct {
	// Zero: no metric shows it.
	epoch, overdue               int64
	partsLeft                    int64
	keysLeft                     *int64 // nil: nobody knows
	leases, backlog              int
	memoryReady, memoryDesired   int32
	computeReady, computeDesired int32
	conditions                   []conditionGauge
	quarantined                  []quarantinedGauge
}

type conditionGauge struct {
	kind   string
	status metav1.ConditionStatus
}

type quarantinedGauge struct {
	node string
	rows int64
}

func newGauges() *gauges {
	pool := []string{"namespace", "pool"}
	gauge := func(name, help string, more ...string) *prometheus.Desc {
		return prometheus.NewDesc("farpool_operator_"+name, help, slices.Concat(pool, more), nil)
	}
	return &gauges{
		epoch:       gauge("pool_epoch", "Epoch of the pool's shard map."),
		conditions:  gauge("pool_condition", "1 for the present status of a condition of the pool.", "type", "status"),
		memoryNodes: gauge("pool_memory_nodes", "Memory nodes of the pool that are ready, or desired.", "state"),
		shards:      gauge("pool_compute_shards", "Compute shards of the pool that are ready, or desired.", "state"),
		leases:      gauge("repair_leases", "RepairLeases of the pool that are not complete."),
		backlog:     gauge("repair_backlog", "Dead client processes that wait for a RepairLease, as too many are open."),
		quarantined: gauge("quarantined_rows", "Rows that no crash explains, and that stay locked.", "memory_node"),
		overdue:     gauge("certificates_overdue_timestamp_seconds", "When two thirds of the life of the first of the pool's certificates have passed: they are renewed at half of it."),
		partsLeft:   gauge("resize_parts_left", "Parts of the pool's hash space that still have to move."),
		keysLeft:    gauge("resize_keys_left", "Keys of the pool that still have to move, about."),
		pools:       map[types.NamespacedName]*poolGauges{},
	}
}

// set records the statuses that were written for a pool.
func (g *gauges) set(pool types.NamespacedName, written *plan.Status) {
	status := &written.Pool
	now := &poolGauges{partsLeft: int64(written.PartsLeft), leases: written.OpenLeases, backlog: written.Backlog}
	if written.KeysLeft != nil {
		now.keysLeft = ptr.To(*written.KeysLeft) // a copy: what it points into is a whole decision
	}
	count := func(count *v1alpha1.CountStatus) (ready, desired int32) {
		if count == nil {
			return 0, 0
		}
		return count.Ready, count.Desired
	}
	now.memoryReady, now.memoryDesired = count(status.Memory)
	now.computeReady, now.computeDesired = count(status.Compute)
	for _, c := range status.Conditions {
		now.conditions = append(now.conditions, conditionGauge{c.Type, c.Status})
	}
	for _, name := range slices.Sorted(maps.Keys(written.Nodes)) {
		now.quarantined = append(now.quarantined, quarantinedGauge{name, written.Nodes[name].QuarantinedRows})
	}
	g.mutex.Lock()
	defer g.mutex.Unlock()
	if before := g.pools[pool]; before != nil {
		now.epoch, now.overdue = before.epoch, before.overdue
		now.keysLeft = cmp.Or(now.keysLeft, before.keysLeft)
	}
	if status.ShardMap != nil {
		now.epoch = status.ShardMap.Epoch
	}
	if !written.CertificatesOverdue.IsZero() {
		now.overdue = written.CertificatesOverdue.Unix()
	}
	g.pools[pool] = now
}

func (g *gauges) forget(pool types.NamespacedName) {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	delete(g.pools, pool)
}

// Describe names the metrics.
func (g *gauges) Describe(descriptions chan<- *prometheus.Desc) {
	for _, description := range []*prometheus.Desc{g.epoch, g.conditions, g.memoryNodes, g.shards, g.leases, g.backlog, g.quarantined, g.overdue, g.partsLeft, g.keysLeft} {
		descriptions <- description
	}
}

// Collect makes the metrics.
func (g *gauges) Collect(metrics chan<- prometheus.Metric) {
	g.mutex.Lock()
	pools := maps.Clone(g.pools) // what is in it is replaced, and never changed
	g.mutex.Unlock()
	for pool, now := range pools {
		tell := func(description *prometheus.Desc, value float64, labels ...string) {
			metrics <- prometheus.MustNewConstMetric(description, prometheus.GaugeValue, value, slices.Concat([]string{pool.Namespace, pool.Name}, labels)...)
		}
		if now.epoch != 0 {
			tell(g.epoch, float64(now.epoch))
		}
		if now.overdue != 0 {
			tell(g.overdue, float64(now.overdue))
		}
		tell(g.partsLeft, float64(now.partsLeft))
		if now.keysLeft != nil {
			tell(g.keysLeft, float64(*now.keysLeft))
		}
		tell(g.leases, float64(now.leases))
		tell(g.backlog, float64(now.backlog))
		tell(g.memoryNodes, float64(now.memoryReady), "ready")
		tell(g.memoryNodes, float64(now.memoryDesired), "desired")
		tell(g.shards, float64(now.computeReady), "ready")
		tell(g.shards, float64(now.computeDesired), "desired")
		for _, c := range now.conditions {
			for _, possible := range []metav1.ConditionStatus{metav1.ConditionTrue, metav1.ConditionFalse, metav1.ConditionUnknown} {
				value := 0.0
				if c.status == possible {
					value = 1
				}
				tell(g.conditions, value, c.kind, string(possible))
			}
		}
		for _, node := range now.quarantined {
			tell(g.quarantined, float64(node.rows), node.node)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package kvpool

import (
	"runtime"
	"testing"
	"weak"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/observe"
	"farpool.dev/farpool/operator/internal/plan"
)

func TestDeathsThatWaitForALeaseAreShownUntilNoneDoesOrThePoolIsGone(t *testing.T) {
	registry := prometheus.NewRegistry()
	m := NewMetrics(registry)
	gauges := func() map[string]float64 {
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		found := map[string]float64{}
		for _, family := range families {
			for _, sample := range family.GetMetric() {
				if gauge := sample.GetGauge(); gauge != nil {
					found[family.GetName()] += gauge.GetValue()
				}
			}
		}
		return found
	}
	pool := &v1alpha1.KVPool{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "cache"}}
	for _, waiting := range []int{44, 0} {
		m.observe(&observe.Snapshot{Pool: pool}, &plan.Status{OpenLeases: 64, Backlog: waiting})
		found := gauges()
		if backlog, there := found["farpool_operator_repair_backlog"]; !there || backlog != float64(waiting) || found["farpool_operator_repair_leases"] != 64 {
			t.Errorf("%d wait, and the metrics say %v", waiting, found)
		}
	}
	m.forget(client.ObjectKeyFromObject(pool))
	if found := gauges(); len(found) != 0 {
		t.Errorf("of a pool that is gone the metrics still say %v", found)
	}
}

// What the metrics remember of a pool must not hold what was decided about it, which is a hundred times as much.
func TestGaugesKeepNothingOfADecision(t *testing.T) {
	type decision struct {
		keysLeft int64
		_        [1 << 12]byte
	}
	g := newGauges()
	decided := &decision{keysLeft: 7}
	held := weak.Make(decided)
	pool := types.NamespacedName{Namespace: "n", Name: "cache"}
	g.set(pool, &plan.Status{KeysLeft: &decided.keysLeft})
	runtime.KeepAlive(decided)
	runtime.GC()
	if held.Value() != nil {
		t.Error("it is kept")
	}
	// A count that is unknown for a while stays as it was.
	g.set(pool, &plan.Status{})
	if left := g.pools[pool].keysLeft; left == nil || *left != 7 {
		t.Errorf("keys left: %v", left)
	}
}

// The end of a ResizeOperation is counted, and no other event about it.
func TestResizesAreCountedWhenTheyEnd(t *testing.T) {
	registry := prometheus.NewRegistry()
	m := NewMetrics(registry)
	snapshot := &observe.Snapshot{Pool: &v1alpha1.KVPool{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "cache"}}}
	resize := &v1alpha1.ResizeOperation{ObjectMeta: metav1.ObjectMeta{Name: "cache-resize-1", UID: "1"}}
	begun := metav1.Now()
	moving := v1alpha1.ResizeOperationStatus{Stage: v1alpha1.StageMoving, StartTime: &begun}
	complete := v1alpha1.ResizeOperationStatus{Stage: v1alpha1.StageComplete, StartTime: &begun, CompletionTime: &begun}
	for _, told := range []struct {
		status v1alpha1.ResizeOperationStatus
		reason string
	}{{moving, v1alpha1.ReasonMoving}, {moving, v1alpha1.ReasonMoveProgressed}, {complete, v1alpha1.ReasonResizePlanned}, {complete, v1alpha1.ReasonResizeComplete}} {
		m.count(snapshot, &plan.Status{Resizes: map[string]v1alpha1.ResizeOperationStatus{resize.Name: told.status}},
			[]plan.Event{{Regarding: resize, Reason: told.reason}, {Regarding: snapshot.Pool, Reason: told.reason}})
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	counted := 0.0
	for _, family := range families {
		for _, sample := range family.GetMetric() {
			counted += sample.GetCounter().GetValue() + float64(sample.GetHistogram().GetSampleCount())
		}
	}
	if counted != 2 {
		t.Errorf("an end and its seconds are counted %v times", counted)
	}
}

// SPDX-License-Identifier: Apache-2.0

package kvpool

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/observe"
	"farpool.dev/farpool/operator/internal/plan"
)

func TestEachStepOfALeaseIsToldOnce(t *testing.T) {
	r := &Reconciler{told: map[types.NamespacedName]map[step]bool{}}
	pool := &v1alpha1.KVPool{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cache"}}
	lease := &v1alpha1.RepairLease{ObjectMeta: metav1.ObjectMeta{Name: "cache-repair-1", UID: "1"}}
	snapshot := &observe.Snapshot{Pool: pool, Leases: []*v1alpha1.RepairLease{lease}}
	fenced := plan.Event{Regarding: lease, Reason: v1alpha1.ReasonFenced}
	complete := plan.Event{Regarding: lease, Reason: v1alpha1.ReasonComplete}
	lost := plan.Event{Regarding: pool, Reason: v1alpha1.ReasonTablesLost}
	for i, c := range []struct {
		told []plan.Event
		want int
	}{
		{[]plan.Event{fenced, lost}, 2},
		{[]plan.Event{fenced, complete}, 1},
		{[]plan.Event{fenced, complete, lost}, 1},
		{nil, 0},
		{[]plan.Event{complete}, 0},
	} {
		if news := r.news(snapshot, c.told); len(news) != c.want {
			t.Errorf("%d: %v", i, news)
		}
	}
	// A lease that is gone is forgotten, and another one of its name is another.
	snapshot.Leases = nil
	r.news(snapshot, nil)
	if told := r.told[types.NamespacedName{Namespace: "shop", Name: "cache"}]; len(told) != 0 {
		t.Errorf("remembered: %v", told)
	}
}

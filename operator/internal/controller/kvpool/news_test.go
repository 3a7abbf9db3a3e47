// SPDX-License-Identifier: Apache-2.0

package kvpool

import (
	"context"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/observe"
	"farpool.dev/farpool/operator/internal/plan"
)

// announced announces the steps of a look, and returns them and the other events.
func announced(r *Reconciler, snapshot *observe.Snapshot, list []plan.Event) (steps []step, others []plan.Event) {
	steps, others = r.news(snapshot, list)
	for i, next := range steps {
		r.announce(context.Background(), client.ObjectKeyFromObject(snapshot.Pool), next, i)
	}
	return steps, others
}

func TestEachStepOfALeaseIsToldOnce(t *testing.T) {
	r := newSlow(0).reconciler()
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
		if steps, others := announced(r, snapshot, c.told); len(steps)+len(others) != c.want {
			t.Errorf("%d: %v, %v", i, steps, others)
		}
	}
	// A lease that is gone is forgotten, and another one of its name is another.
	snapshot.Leases = nil
	r.news(snapshot, nil)
	if told := r.told[types.NamespacedName{Namespace: "shop", Name: "cache"}]; len(told) != 0 {
		t.Errorf("remembered: %v", told)
	}
}

// A resize may come to a stage more than once, and each time is announced. A cache that shows an earlier status repeats no announcement.
func TestEachStepOfAResizeIsToldOnce(t *testing.T) {
	r := newSlow(0).reconciler()
	pool := &v1alpha1.KVPool{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cache", UID: "pool"}}
	resize := &v1alpha1.ResizeOperation{ObjectMeta: metav1.ObjectMeta{Name: "cache-resize-1", UID: "1"}}
	snapshot := &observe.Snapshot{Pool: pool, Resizes: []*v1alpha1.ResizeOperation{resize}}
	of := func(regarding client.Object, line, step string) plan.Event {
		return plan.Event{Regarding: regarding, Of: resize.UID, Line: line, Step: step}
	}
	waiting, moving := of(resize, "stage", "Waiting"), of(resize, "stage", "Moving")
	quarter, half, onPool := of(resize, "keys", "1"), of(resize, "keys", "2"), of(pool, "keys", "2")
	for i, c := range []struct {
		told []plan.Event
		want int
	}{
		{[]plan.Event{waiting}, 1},
		{[]plan.Event{waiting}, 0},
		{[]plan.Event{moving}, 1},
		{[]plan.Event{moving, quarter}, 1},
		{[]plan.Event{moving, half, onPool}, 2},
		{[]plan.Event{half, onPool}, 0},
		{[]plan.Event{waiting}, 1},
		{[]plan.Event{moving}, 1},
	} {
		if steps, others := announced(r, snapshot, c.told); len(steps) != c.want || len(others) != 0 {
			t.Errorf("%d: %v, %v", i, steps, others)
		}
	}
	snapshot.Resizes = nil
	r.news(snapshot, nil)
	if told := r.told[client.ObjectKeyFromObject(pool)]; len(told) != 0 {
		t.Errorf("remembered: %v", told)
	}
}

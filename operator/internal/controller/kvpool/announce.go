// SPDX-License-Identifier: Apache-2.0

package kvpool

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/reference"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/apply"
	"farpool.dev/farpool/operator/internal/observe"
	"farpool.dev/farpool/operator/internal/plan"
)

// step is an event about a step of a RepairLease or ResizeOperation.
type step struct {
	event plan.Event
	of    line
}

// writeStatuses announces what the statuses record, and writes them, for as long as the look has time for it.
func (r *Reconciler) writeStatuses(ctx context.Context, turn *turn, applier *apply.Applier, snapshot *observe.Snapshot, decided *plan.Plan) []error {
	steps, others := r.news(snapshot, decided.Status.Events)
	announced, late := r.announceAll(ctx, turn, client.ObjectKeyFromObject(snapshot.Pool), steps)
	writes := decided.Statuses(snapshot)
	results := make([]error, len(writes))
	write := func(i int) {
		if results[i] = late[writes[i].Object.GetUID()]; results[i] == nil {
			results[i] = applier.Status(ctx, statusOf(writes[i]), writes[i].Object)
		}
	}
	var quiet, told []int
	last := len(writes) - 1
	for i, written := range writes[:last] {
		switch written.Object.(type) {
		case *v1alpha1.MemoryNode, *v1alpha1.ShardMap, *v1alpha1.MemoryNodePool, *v1alpha1.ComputeShardPool:
			quiet = append(quiet, i)
		default:
			told = append(told, i)
		}
	}
	// Statuses with steps that people have heard of are written later, and the pool's own last: by then, what it says of the others is true. A look that had no time
	// for one of them has none for the pool's.
	turn.sideBySide(len(quiet), func(i int) { write(quiet[i]) })
	turn.sideBySide(len(told), func(i int) { write(told[i]) })
	turn.sideBySide(1, func(int) { write(last) })
	var failures []error
	unwritten := map[types.UID]bool{}
	for i, err := range results {
		if err != nil {
			failures = append(failures, err)
			unwritten[writes[i].Object.GetUID()] = true
		}
	}
	// The status that an event is about records that it was sent.
	others = slices.DeleteFunc(others, func(event plan.Event) bool { return unwritten[cmp.Or(event.By, event.Regarding.GetUID())] })
	r.emit(others)
	r.metrics.count(snapshot, &decided.Status, append(announced, others...))
	r.metrics.observe(snapshot, &decided.Status)
	return failures
}

// news are the steps of RepairLeases and ResizeOperations that were not announced yet, and the other events.
func (r *Reconciler) news(snapshot *observe.Snapshot, list []plan.Event) (steps []step, others []plan.Event) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	pool := client.ObjectKeyFromObject(snapshot.Pool)
	there := map[types.UID]bool{}
	for _, lease := range snapshot.Leases {
		there[lease.UID] = true
	}
	for _, resize := range snapshot.Resizes {
		there[resize.UID] = true
	}
	told := map[line]string{}
	for of, step := range r.told[pool] {
		if there[of.object] {
			told[of] = step
		}
	}
	r.told[pool] = told
	for _, event := range list {
		of := line{event.Of, event.Regarding.GetUID(), event.Line}
		if lease, ok := event.Regarding.(*v1alpha1.RepairLease); ok {
			// Each step is taken once.
			of = line{lease.UID, lease.UID, event.Reason}
		}
		if of.object == "" {
			others = append(others, event)
			continue
		}
		if before, known := told[of]; !known || before != event.Step {
			steps = append(steps, step{event, of})
		}
	}
	return steps, others
}

// announceAll announces steps for as long as the look has time for them. It returns the events, and the objects of which a step was left, with the error that says so.
// Steps are announced before a status records them. If an operator dies in between, the next one announces them again, and none is missed.
func (r *Reconciler) announceAll(ctx context.Context, turn *turn, pool types.NamespacedName, steps []step) (announced []plan.Event, late map[types.UID]error) {
	var mutex sync.Mutex
	late = map[types.UID]error{}
	turn.sideBySide(len(steps), func(i int) {
		event, of := steps[i].event, steps[i].of
		may := turn.mayWriteStatus(fmt.Sprintf("%v", of))
		if may {
			r.announce(ctx, pool, steps[i], i)
		}
		mutex.Lock()
		defer mutex.Unlock()
		if may {
			announced = append(announced, event)
		} else {
			late[of.object] = fmt.Errorf("announce %s of %s: %w", event.Reason, event.Regarding.GetName(), apply.ErrLater)
		}
	})
	return announced, late
}

func (r *Reconciler) emit(list []plan.Event) {
	for _, told := range list {
		r.recorder.Eventf(told.Regarding, nil, told.Type, told.Reason, told.Action, "%s", told.Note)
	}
}

// announce sends an event before it returns, and remembers that it has. The serial tells events of one look from each other. A recorder would send the event later: if
// the operator died first, a status would say that it was sent, and it never would be.
func (r *Reconciler) announce(ctx context.Context, pool types.NamespacedName, next step, serial int) {
	told := next.event
	regarding, err := reference.GetReference(r.client.Scheme(), told.Regarding)
	if err == nil {
		now := r.clock.Now()
		err = r.client.Create(ctx, &eventsv1.Event{
			ObjectMeta: metav1.ObjectMeta{Namespace: told.Regarding.GetNamespace(), Name: fmt.Sprintf("%s.%x", told.Regarding.GetName(), now.UnixNano()+int64(serial))},
			EventTime:  metav1.NewMicroTime(now), ReportingController: operatorName, ReportingInstance: operatorName,
			Type: told.Type, Reason: told.Reason, Action: told.Action, Note: clipped(told.Note), Regarding: *regarding,
		})
	}
	if err != nil {
		log.FromContext(ctx).V(1).Info("an event is left to the recorder", "reason", told.Reason, "why", err.Error())
		r.emit([]plan.Event{told})
	}
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.told[pool][next.of] = told.Step
}

// clipped shortens a note to what an event can hold.
func clipped(note string) string {
	const limit = 1024
	if len(note) <= limit {
		return note
	}
	return strings.ToValidUTF8(note[:limit-3], "") + "..."
}

// SPDX-License-Identifier: Apache-2.0

package kvpool

import (
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
)

const (
	// turnLasts is how long a look at a pool begins to write objects. A new pool has some twenty: where the API server is slow, a look that wrote all of them
	// would keep a worker from other pools, among them some that have lost a process.
	turnLasts = 15 * time.Millisecond
	// statusesLast is how long a look begins to announce steps and to write statuses. A repair of ten processes changes a dozen statuses, and each RepairLease has three
	// steps: a look that wrote all of them would last longer than 100 ms. What is begun last may take 50 ms more where the API server is busy.
	statusesLast = 30 * time.Millisecond
	// leastWrites are begun in each look, however slow all is, so that each brings its pool further.
	leastWrites = 4
	// nextTurn is how long a pool waits for its next turn, unless the cache shows sooner an object that was made.
	nextTurn = 50 * time.Millisecond
)

// turn is one look's time to write objects. What it has no time for is left to the next look, with the objects that need it.
//
// Looks that leave something, and the one after them, are a round. While its time lasts, a look writes whatever there is to write. Beyond that it begins leastWrites that
// no earlier look of its round has begun, so that a round writes everything once: an object that changes all the time keeps no other from its turn. These are begun at the
// same time: once its time is over, a look waits for the API server once.
type turn struct {
	clock clock.PassiveClock
	// ends is when no further object is begun, and statusesEnd when no further status is.
	ends, statusesEnd time.Time
	// whole: it ends with its last object. A failure makes it so: an object that is refused again and again keeps none behind it from its turn.
	whole atomic.Bool

	mutex sync.Mutex
	// round is what earlier looks of the round have begun, and begun what this one has.
	round, begun map[string]bool
	// objects and statuses count the writes that were asked for and the round has not begun before.
	objects, statuses counted
	// left: a write was put off that the round has not begun.
	left bool
}

// counted are writes: all of them, and the ones that were asked for before the latest batch began.
type counted struct{ all, before int }

// sideBySide calls do so many times, as a batch of writes that do not wait for one another.
func (t *turn) sideBySide(count int, do func(int)) {
	t.mutex.Lock()
	t.objects.before, t.statuses.before = t.objects.all, t.statuses.all
	t.mutex.Unlock()
	sideBySide(count, do)
}

// mayWrite says whether an object may be written in this look.
func (t *turn) mayWrite(what string) bool { return t.may(what, &t.objects, t.ends) }

// mayWriteStatus says whether a status may be written in this look, or a step of an object be announced.
func (t *turn) mayWriteStatus(what string) bool {
	return t.may("status of "+what, &t.statuses, t.statusesEnd)
}

func (t *turn) may(what string, writes *counted, ends time.Time) bool {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	first := !t.round[what]
	if first {
		writes.all++
	}
	if first && writes.before == 0 && writes.all <= leastWrites || t.whole.Load() || t.clock.Now().Before(ends) {
		t.begun[what] = true
		return true
	}
	t.left = t.left || first
	return false
}

// isOver says whether objects were written that the round has not begun before, and have taken the time of this look: statuses are left to the next one.
func (t *turn) isOver() bool {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	return t.objects.all > 0 && !t.whole.Load() && !t.clock.Now().Before(t.ends)
}

// turnOf begins the turn of a pool.
func (r *Reconciler) turnOf(pool types.NamespacedName) *turn {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	now := r.clock.Now()
	return &turn{clock: r.clock, ends: now.Add(r.turnLasts), statusesEnd: now.Add(statusesLast), round: r.rounds[pool], begun: map[string]bool{}}
}

// ended ends a turn. early: something was left. The round goes on if it has not begun that yet, and otherwise another round begins.
func (r *Reconciler) ended(pool types.NamespacedName, t *turn, early bool) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if !early || !t.left && len(t.round) > 0 {
		delete(r.rounds, pool)
		return
	}
	maps.Copy(t.begun, t.round)
	r.rounds[pool] = t.begun
}

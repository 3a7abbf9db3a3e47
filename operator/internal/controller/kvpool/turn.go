// SPDX-License-Identifier: Apache-2.0

package kvpool

import (
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
)

const (
	// turnLasts is how long a look at a pool begins to write objects. A new pool has some twenty: where the API server is slow, a look that wrote all of them
	// would keep a worker from other pools, among them some that have lost a process.
	turnLasts = 15 * time.Millisecond
	// statusesLast is how long a look begins to write statuses. One that lists a thousand processes keeps the API server for some 40 ms, and a repair of ten
	// processes changes a dozen statuses: a look that wrote all of them would last longer than 100 ms.
	statusesLast = 45 * time.Millisecond
	// leastWrites are begun in each look, however slow all is, so that each brings its pool further.
	leastWrites = 4
	// mostTurns is how often in a row a pool is put off. After that many, one look writes all that there is to write.
	mostTurns = 32
	// nextTurn is how long a pool waits for its next turn, unless the cache shows sooner an object that was made.
	nextTurn = 50 * time.Millisecond
)

// turn is one look's time to write objects. What it has no time for is left to the next look, with the objects that need it.
type turn struct {
	clock clock.PassiveClock
	// ends is when no further object is begun, and statusesEnd when no further status is; begun and statuses count the ones that were begun.
	ends, statusesEnd time.Time
	begun, statuses   atomic.Int32
	// whole: it ends with its last object. A failure makes it so: an object that is refused again and again keeps none behind it from its turn.
	whole atomic.Bool
}

// mayWrite says whether another object may be written in this look, and counts it.
func (t *turn) mayWrite() bool {
	return t.begun.Add(1) <= leastWrites || t.whole.Load() || t.clock.Now().Before(t.ends)
}

// mayWriteStatus says whether another status may be written in this look, and counts it.
func (t *turn) mayWriteStatus() bool {
	return t.statuses.Add(1) <= leastWrites || t.whole.Load() || t.clock.Now().Before(t.statusesEnd)
}

// isOver says whether objects were written and have taken the time of this look: statuses, which are written one after the other, are left to the next one.
func (t *turn) isOver() bool {
	return t.begun.Load() > 0 && !t.whole.Load() && !t.clock.Now().Before(t.ends)
}

// turnOf begins the turn of a pool.
func (r *Reconciler) turnOf(pool types.NamespacedName) *turn {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	now := r.clock.Now()
	t := &turn{clock: r.clock, ends: now.Add(r.turnLasts), statusesEnd: now.Add(statusesLast)}
	t.whole.Store(r.putOff[pool] >= mostTurns)
	return t
}

// ended counts how often in a row a pool's turn has ended before all was written.
func (r *Reconciler) ended(pool types.NamespacedName, early bool) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if early {
		r.putOff[pool]++
	} else {
		delete(r.putOff, pool)
	}
}

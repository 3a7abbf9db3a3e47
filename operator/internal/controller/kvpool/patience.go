// SPDX-License-Identifier: Apache-2.0

package kvpool

import (
	"sync"
	"time"

	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// patience is how long a look at a pool keeps others from beginning. Looks at the same time share the API server and the processor: each takes longer, and all
// of them together take no less. A look that lasts longer than this waits for something, such as an admission webhook or a memory node.
const patience = 100 * time.Millisecond

// A pool rests after a look, mostRest at most. What happens to it meanwhile is seen in one look: where ten of a thousand compute shards die, each has some news of its
// own, within a second, and a look at them all takes as long as a look at one.
//
// A look that lasted leastRest or more makes it rest for as long: what the look has written reaches the cache meanwhile, and is not decided and announced again.
//
// A look that has thought for leastThought or more makes it rest for restsFor times as long. A look thinks until it begins to write: it observes and decides, which takes
// the longer the more processes the pool has, whatever the news is. So a pool takes a fifth of one processor at most.
const (
	leastRest    = 10 * time.Millisecond
	leastThought = 2 * time.Millisecond
	restsFor     = 4
	mostRest     = 100 * time.Millisecond
)

// patientQueue gives out one pool, and the next one when the first is done or has been out for as long as patience lasts. A pool that is done rests.
type patientQueue struct {
	priorityqueue.PriorityQueue[reconcile.Request]
	clock clock.WithDelayedExecution
	// out holds a value while the pool that was given out last keeps the next one back.
	out chan struct{}

	mutex sync.Mutex
	given map[reconcile.Request]*given
}

// given is a pool that was given out: since when, how long the look at it has thought, and what its end makes possible.
type given struct {
	since   time.Time
	thought time.Duration
	end     func()
}

// rests is how long the pool rests after a look that ends now.
func (g *given) rests(now time.Time) (rest time.Duration) {
	if lasted := now.Sub(g.since); lasted >= leastRest {
		rest = lasted
	}
	if g.thought >= leastThought {
		rest = max(rest, restsFor*g.thought)
	}
	return min(rest, mostRest)
}

func newPatientQueue(queue priorityqueue.PriorityQueue[reconcile.Request], clock clock.WithDelayedExecution) *patientQueue {
	return &patientQueue{PriorityQueue: queue, clock: clock, out: make(chan struct{}, 1), given: map[reconcile.Request]*given{}}
}

// GetWithPriority waits for a turn, and then for a pool. After a shutdown the turn comes, too, before it returns.
func (q *patientQueue) GetWithPriority() (reconcile.Request, int, bool) {
	q.out <- struct{}{}
	next := sync.OnceFunc(func() { <-q.out })
	pool, priority, shutdown := q.PriorityQueue.GetWithPriority()
	if shutdown {
		next()
		return pool, priority, shutdown
	}
	timer := q.clock.AfterFunc(patience, next)
	q.mutex.Lock()
	defer q.mutex.Unlock()
	q.given[pool] = &given{since: q.clock.Now(), end: func() {
		timer.Stop()
		next()
	}}
	return pool, priority, false
}

// Get waits as GetWithPriority does.
func (q *patientQueue) Get() (reconcile.Request, bool) {
	pool, _, shutdown := q.GetWithPriority()
	return pool, shutdown
}

// Thought says how long a look at a pool has thought. It is called during the look.
func (q *patientQueue) Thought(pool reconcile.Request, lasted time.Duration) {
	q.mutex.Lock()
	defer q.mutex.Unlock()
	if given := q.given[pool]; given != nil {
		given.thought = lasted
	}
}

// Done says that the look at a pool has ended. The queue itself learns it once the pool has rested, so that its metrics count the rest as work.
func (q *patientQueue) Done(pool reconcile.Request) {
	q.mutex.Lock()
	given := q.given[pool]
	delete(q.given, pool)
	q.mutex.Unlock()
	if given != nil {
		given.end()
		if rests := given.rests(q.clock.Now()); rests > 0 {
			q.clock.AfterFunc(rests, func() { q.PriorityQueue.Done(pool) })
			return
		}
	}
	q.PriorityQueue.Done(pool)
}

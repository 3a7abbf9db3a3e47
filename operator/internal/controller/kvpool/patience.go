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

// patientQueue gives out one pool, and the next one when the first is done or has been out for as long as patience lasts.
type patientQueue struct {
	priorityqueue.PriorityQueue[reconcile.Request]
	clock clock.WithDelayedExecution
	// out holds a value while the pool that was given out last keeps the next one back.
	out chan struct{}

	mutex sync.Mutex
	given map[reconcile.Request]func()
}

func newPatientQueue(queue priorityqueue.PriorityQueue[reconcile.Request], clock clock.WithDelayedExecution) *patientQueue {
	return &patientQueue{PriorityQueue: queue, clock: clock, out: make(chan struct{}, 1), given: map[reconcile.Request]func(){}}
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
	q.given[pool] = func() {
		timer.Stop()
		next()
	}
	return pool, priority, false
}

// Get waits as GetWithPriority does.
func (q *patientQueue) Get() (reconcile.Request, bool) {
	pool, _, shutdown := q.GetWithPriority()
	return pool, shutdown
}

// Done says that the look at a pool has ended.
func (q *patientQueue) Done(pool reconcile.Request) {
	q.mutex.Lock()
	done := q.given[pool]
	delete(q.given, pool)
	q.mutex.Unlock()
	if done != nil {
		done()
	}
	q.PriorityQueue.Done(pool)
}

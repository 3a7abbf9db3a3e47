// SPDX-License-Identifier: Apache-2.0

package kvpool

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// workers get pools from a queue that has some.
type workers struct {
	queue *patientQueue

	mutex sync.Mutex
	got   []string
}

func newWorkers(t *testing.T, pools ...string) *workers {
	w := &workers{queue: newPatientQueue(priorityqueue.New[reconcile.Request](t.Name()), clock.RealClock{})}
	for _, pool := range pools {
		w.queue.Add(poolRequest(pool))
	}
	return w
}

func poolRequest(name string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "shop", Name: name}}
}

// another worker asks for a pool.
func (w *workers) another() {
	go func() {
		pool, shutdown := w.queue.Get()
		w.mutex.Lock()
		defer w.mutex.Unlock()
		if shutdown {
			pool.Name = "shutdown"
		}
		w.got = append(w.got, pool.Name)
	}()
}

// expect that so many workers have got something, once all that run wait; the last of it is returned.
func (w *workers) expect(t *testing.T, count int) string {
	t.Helper()
	synctest.Wait()
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if len(w.got) != count {
		t.Fatalf("workers have got %v, not %d of them", w.got, count)
	}
	return w.got[count-1]
}

func TestAPoolHasItsTurnWhenTheOneBeforeIsDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorkers(t, "a", "b")
		defer w.queue.ShutDown()
		w.another()
		first := w.expect(t, 1)
		w.another()
		time.Sleep(patience - 1)
		w.expect(t, 1)
		w.queue.Done(poolRequest(first))
		second := w.expect(t, 2)
		// The time of the first look is no part of the second one's.
		time.Sleep(patience - 1)
		w.queue.Add(poolRequest("c"))
		w.another()
		w.expect(t, 2)
		w.queue.Done(poolRequest(second))
		w.expect(t, 3)
		if !slices.Contains(w.got, "a") || !slices.Contains(w.got, "b") || w.got[2] != "c" {
			t.Errorf("workers got %v", w.got)
		}
	})
}

// A look that waits for something keeps no other pool from its turn, however many such looks there are.
func TestALookThatLastsKeepsNoOtherPoolBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorkers(t, "a", "b", "c")
		defer w.queue.ShutDown()
		w.another()
		first := w.expect(t, 1)
		w.another()
		time.Sleep(patience)
		w.expect(t, 2)
		w.another()
		// The end of the first look is no end of the second.
		w.queue.Done(poolRequest(first))
		w.expect(t, 2)
		time.Sleep(patience)
		w.expect(t, 3)
		if slices.Sort(w.got); !slices.Equal(w.got, []string{"a", "b", "c"}) {
			t.Errorf("workers got %v", w.got)
		}
	})
}

// A pool that is added while it is looked at is given out again once it is done.
func TestAPoolIsGivenOutAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorkers(t, "a")
		defer w.queue.ShutDown()
		for look := range 3 {
			w.another()
			w.expect(t, look+1)
			w.queue.Add(poolRequest("a"))
			w.queue.Done(poolRequest("a"))
		}
	})
}

// A pool rests as long as the look at it has lasted, or some times as long as the look has thought, and not longer than a bound; a short look needs no rest. What is added
// meanwhile is one look afterwards, and other pools have their turn at once.
func TestAPoolRestsAfterALongLook(t *testing.T) {
	for _, c := range []struct{ thinks, lasts, rests time.Duration }{
		{0, 0, 0}, {0, leastRest - 1, 0}, {0, leastRest, leastRest}, {0, mostRest - 1, mostRest - 1}, {0, mostRest, mostRest}, {0, time.Minute, mostRest},
		{leastThought - 1, leastThought - 1, 0}, {leastThought, leastThought, restsFor * leastThought}, {leastThought, 9 * leastThought, 9 * leastThought},
		{leastRest, leastRest + 1, restsFor * leastRest}, {mostRest/restsFor - 1, mostRest / restsFor, mostRest - restsFor}, {mostRest / 2, mostRest / 2, mostRest},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorkers(t, "a")
			defer w.queue.ShutDown()
			w.another()
			w.expect(t, 1)
			w.queue.Thought(poolRequest("a"), c.thinks)
			time.Sleep(c.lasts)
			w.another()
			w.another()
			w.queue.Done(poolRequest("a"))
			for range 10 {
				w.queue.Add(poolRequest("a"))
			}
			if c.rests > 0 {
				time.Sleep(c.rests - 1)
				w.expect(t, 1)
				w.queue.Add(poolRequest("b"))
				if other := w.expect(t, 2); other != "b" {
					t.Fatalf("after %v, workers got %q", c.thinks, other)
				}
				w.queue.Done(poolRequest("b"))
				time.Sleep(time.Nanosecond)
			}
			want := 2
			if c.rests > 0 {
				want = 3
			}
			if again := w.expect(t, want); again != "a" {
				t.Fatalf("after %v and its rest, workers got %q", c.thinks, again)
			}
			w.queue.Done(poolRequest("a"))
			w.another()
			w.expect(t, want)
		})
	}
}

// A pool that rests when its queue ends keeps no worker.
func TestAPoolRestsWhenItsQueueEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorkers(t, "a")
		w.another()
		w.expect(t, 1)
		w.queue.Thought(poolRequest("a"), mostRest)
		w.queue.Done(poolRequest("a"))
		w.another()
		w.queue.ShutDown()
		if last := w.expect(t, 2); last != "shutdown" {
			t.Errorf("workers got %v", w.got)
		}
		time.Sleep(2 * mostRest)
	})
}

func TestWorkersThatWaitForTheirTurnEndWithTheirQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorkers(t, "a")
		w.another()
		w.expect(t, 1)
		for range 3 {
			w.another()
		}
		w.expect(t, 1)
		w.queue.ShutDown()
		w.queue.Done(poolRequest("a"))
		if last := w.expect(t, 4); last != "shutdown" {
			t.Errorf("workers got %v", w.got)
		}
	})
}

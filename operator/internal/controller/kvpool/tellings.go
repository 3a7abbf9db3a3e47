// SPDX-License-Identifier: Apache-2.0

package kvpool

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// A worker waits this long for memory nodes to answer, because other pools wait for the worker. An answer that comes later makes the controller look at the
	// pool again.
	tellingWait = 2 * time.Second
	// A memory node has this long: two calls, each with a deadline of its own, and the question after them.
	tellingTimeout = 20 * time.Second
)

// errStillTelling says that a memory node has not answered yet.
var errStillTelling = errors.New("it has not answered yet; its answer makes the operator look at the pool again")

// tellings are the calls that send memory nodes a map. Each memory node gets one call at a time: maps must not overtake one another.
type tellings struct {
	// notify makes the controller look at a pool again.
	notify func(types.NamespacedName)

	mutex sync.Mutex
	open  map[types.UID]*telling
}

type telling struct {
	what string
	done chan struct{}
	err  error // once it is done
	// late: nobody waits for it any more.
	late bool
}

func newTellings(notify func(types.NamespacedName)) *tellings {
	return &tellings{notify: notify, open: map[types.UID]*telling{}}
}

// begin starts a call to a pod, unless one is still under way.
func (t *tellings) begin(pool types.NamespacedName, pod types.UID, what string, tell func(context.Context) error) *telling {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if before := t.open[pod]; before != nil {
		return before
	}
	begun := &telling{what: what, done: make(chan struct{})}
	t.open[pod] = begun
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), tellingTimeout)
		defer cancel()
		err := tell(ctx)
		t.mutex.Lock()
		delete(t.open, pod)
		begun.err = err
		late := begun.late
		t.mutex.Unlock()
		close(begun.done)
		if late {
			t.notify(pool)
		}
	}()
	return begun
}

// await waits for an answer for as long as a worker waits. It returns the outcome, if that is the answer to what.
func (t *tellings) await(ctx context.Context, of *telling, what string) error {
	select {
	case <-of.done:
	case <-ctx.Done():
		t.mutex.Lock()
		defer t.mutex.Unlock()
		select {
		case <-of.done:
		default:
			of.late = true
			return errStillTelling
		}
	}
	if of.what != what {
		return errStillTelling // this answer was to an earlier call
	}
	return of.err
}

// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
)

const (
	// largeStatus is the size in bytes from which a status is large: that of some 115 processes. An API server takes some 15 ms for a smaller one, and a tenth of a second
	// for a list of a thousand processes.
	largeStatus = 16 << 10
	// largeWithin is the deadline of the write of a large status.
	largeWithin = time.Minute
	// mostPause bounds the pause after such a write.
	mostPause = time.Second
)

// Background writes large statuses while looks go on. It writes one status of an object at a time, and pauses for as long as the write has lasted, a second at most:
// the API server is busy with such lists for half of its time at most, and what changes meanwhile is one write.
//
// A look that has begun such a write is over before its outcome is known. For later looks that is the same as a cache that lags: they decide from what the cache shows.
// So it suits statuses that record what looks see, and from which looks decide nothing before the cache shows them. All methods may be called from any goroutine.
type Background struct {
	clock  clock.WithDelayedExecution
	ctx    context.Context
	cancel context.CancelFunc

	mutex   sync.Mutex
	closed  bool
	running sync.WaitGroup
}

// NewBackground returns one that writes nothing yet. Its owner closes it.
func NewBackground(clock clock.WithDelayedExecution) *Background {
	b := &Background{clock: clock}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	return b
}

// Close cancels the writes that are under way, and returns once none is. No other begins.
func (b *Background) Close() {
	b.mutex.Lock()
	b.closed = true
	b.mutex.Unlock()
	b.cancel()
	b.running.Wait()
}

// begin starts a write. False: it is closed.
func (b *Background) begin(write func(context.Context)) bool {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	if b.closed {
		return false
	}
	b.running.Go(func() {
		ctx, cancel := context.WithTimeout(b.ctx, largeWithin)
		defer cancel()
		write(ctx)
	})
	return true
}

// sent is the large status of an object that was sent last.
type sent struct {
	wanted digest
	// over is the version that the look saw which sent it, and answered the version that the API server made of it; empty: it has not answered.
	over, answered version
	// busy: no other is sent yet. more: a look wanted another meanwhile. failed: it was not written.
	busy, more, failed bool
	// look is the last one that asked.
	look uint8
}

// isSent says whether a look has nothing to do about a large status: it is on its way, or written and not in the cache yet, or waits until another one of the object is
// written. known: the object needs no comparison with it, because the cache shows what is known to be another.
func (k *Known) isSent(object types.UID, is version, wanted digest) (done, known bool) {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	last := k.sent[object]
	if last == nil {
		return false, false
	}
	last.look = k.look
	if last.failed {
		return false, false
	}
	if last.busy {
		last.more = last.wanted != wanted
		return true, true
	}
	known = is == last.over || is == last.answered
	return known && last.wanted == wanted, known
}

// send records that a large status is on its way. False: the last one failed, and a look has to write it.
func (k *Known) send(object types.UID, over version, wanted digest) bool {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	if last := k.sent[object]; last != nil && last.failed {
		return false
	}
	if k.sent == nil {
		k.sent = map[types.UID]*sent{}
	}
	k.sent[object] = &sent{wanted: wanted, over: over, busy: true, look: k.look}
	return true
}

// answered records what became of it. It is busy until rested, unless it failed: the next look writes the status before it ends.
func (k *Known) answered(object types.UID, became version, err error) {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	last := k.sent[object]
	last.answered, last.failed, last.busy = became, err != nil, err == nil
}

// rested ends the pause after a write, and says whether a look wanted another status meanwhile.
func (k *Known) rested(object types.UID) (more bool) {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	last := k.sent[object]
	last.busy = false
	return last.more
}

// settled records that the last status of an object was written in a look.
func (k *Known) settled(object types.UID) {
	if k == nil {
		return
	}
	k.mutex.Lock()
	defer k.mutex.Unlock()
	delete(k.sent, object)
}

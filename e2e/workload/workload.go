// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"farpool.dev/farpool/e2e/history"
)

// Target is what to connect to: compute shards that serve one pool.
type Target struct {
	Shards   []string // host:port of each
	Password string
	TLS      *tls.Config
	Patience time.Duration // for a reply; none: 15 seconds
}

// Connect opens one connection to a shard with the driver's defaults, except that nothing is retried: what fails is seen.
func (t Target) Connect(shard int) *redis.Client {
	return redis.NewClient(&redis.Options{
		Addr:          t.Shards[shard%len(t.Shards)],
		Password:      t.Password,
		TLSConfig:     t.TLS,
		MaxRetries:    -1,
		DialerRetries: 1,
		PoolSize:      1,
		DialTimeout:   5 * time.Second,
		ReadTimeout:   cmp.Or(t.Patience, 15*time.Second),
		WriteTimeout:  15 * time.Second,
	})
}

// Errors counts failed commands and keeps the first few.
type Errors struct {
	mu    sync.Mutex
	count int
	kinds map[string]int
	first []error
}

func (e *Errors) add(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.count++
	if e.kinds == nil {
		e.kinds = map[string]int{}
	}
	e.kinds[kindOf(err)]++
	if len(e.first) < 5 {
		e.first = append(e.first, err)
	}
}

// kindOf is the first word of an error that the store answered with, "corrupt" for a value that no write stored, and "connection" for
// all else.
func kindOf(err error) string {
	var answered redis.Error
	switch {
	case errors.As(err, &answered):
		word, _, _ := strings.Cut(answered.Error(), " ")
		return word
	case errors.Is(err, errCorrupt):
		return "corrupt"
	}
	return "connection"
}

// Verdict is what a caller heard, in a word.
func Verdict(err error) string {
	if err == nil {
		return "done"
	}
	return kindOf(err)
}

// Kinds counts errors by what they say: the first word of the store's error, "corrupt", or "connection".
func (e *Errors) Kinds() map[string]int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return maps.Clone(e.kinds)
}

// Count is how many commands failed.
func (e *Errors) Count() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.count
}

// Err is nil if nothing failed.
func (e *Errors) Err() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.count == 0 {
		return nil
	}
	return fmt.Errorf("%d commands failed, the first of them: %w", e.count, errors.Join(e.first...))
}

// Worker is one connection to one shard with its part of the history.
type Worker struct {
	sizes  Sizes
	prefix string
	client *redis.Client
	log    *history.Log
	errors *Errors
	done   *atomic.Int64
}

// Do runs one operation on one key and records it. A corrupted value is an error like any other, and is counted.
func (w *Worker) Do(ctx context.Context, kind history.Kind, number uint32) (history.Op, error) {
	op, err := w.sizes.Execute(ctx, w.client, w.log, w.prefix, kind, number)
	if err != nil {
		w.errors.add(err)
		return op, err
	}
	w.done.Add(1)
	return op, nil
}

// seen turns a reply of a reading command into what a register showed.
func (s Sizes) seen(key uint32, value string, err error) (history.Tag, error) {
	if errors.Is(err, redis.Nil) {
		return history.Absent, nil
	}
	if err != nil {
		return history.Absent, err
	}
	return s.Tag(key, []byte(value))
}

// elementBytes is the length of what Append appends.
const elementBytes = 8

// listed turns a list's value into its Fold.
func listed(value string, err error) (history.Tag, error) {
	list := history.Absent
	if errors.Is(err, redis.Nil) {
		return list, nil
	}
	if err == nil && len(value)%elementBytes != 0 {
		err = fmt.Errorf("a list of %d bytes: %w: it is no number of elements", len(value), errCorrupt)
	}
	if err != nil {
		return list, err
	}
	for ; len(value) > 0; value = value[elementBytes:] {
		list = history.Fold(list, history.Tag(binary.LittleEndian.Uint64([]byte(value))))
	}
	return list, nil
}

// NotDone says of a failed command that it has changed nothing and never will: it was not sent, or the store's answer promises so.
func NotDone(err error) bool {
	var answered redis.Error
	if errors.As(err, &answered) {
		switch kindOf(err) {
		case "TRYAGAIN", "LOCKED", "TIMEOUT", "OOM":
			return true
		}
		return false
	}
	var network *net.OpError
	return errors.As(err, &network) && network.Op == "dial"
}

// Execute runs one operation on the key with a number, and records it: not at all if it was not done, as an open interval if nobody
// knows.
func (s Sizes) Execute(ctx context.Context, client *redis.Client, log *history.Log, prefix string, kind history.Kind, number uint32) (history.Op, error) {
	op := history.Op{Key: number, Kind: kind}
	key := s.Key(prefix, number)
	var value []byte
	switch kind {
	case history.Set, history.SetNX, history.GetSet:
		op.Wrote = log.NewTag()
		value = s.Value(number, op.Wrote)
	case history.Append:
		op.Wrote = log.NewTag()
		value = binary.LittleEndian.AppendUint64(nil, uint64(op.Wrote))
	}
	op.Call = log.Begin()
	var err error
	switch kind {
	case history.Get:
		var got string
		got, err = client.Get(ctx, key).Result()
		op.Saw, err = s.seen(number, got, err)
	case history.Set:
		err = client.Set(ctx, key, value, 0).Err()
	case history.SetNX:
		// The driver's SETNX helper speaks the deprecated command; both it and SET NX are served.
		op.Applied, err = client.Do(ctx, "SETNX", key, value).Bool()
	case history.GetSet:
		var got string
		got, err = client.Do(ctx, "GETSET", key, value).Text()
		op.Saw, err = s.seen(number, got, err)
	case history.Del:
		var n int64
		n, err = client.Del(ctx, key).Result()
		op.Applied = n == 1
	case history.GetDel:
		var got string
		got, err = client.GetDel(ctx, key).Result()
		op.Saw, err = s.seen(number, got, err)
	case history.Incr:
		var n int64
		n, err = client.Incr(ctx, key).Result()
		op.Saw = history.Tag(n)
	case history.Count:
		var n uint64
		if n, err = client.Get(ctx, key).Uint64(); errors.Is(err, redis.Nil) {
			err = nil
		}
		op.Saw = history.Tag(n)
	case history.Append:
		var n int64
		n, err = client.Append(ctx, key, string(value)).Result()
		op.Saw = history.Tag(n / elementBytes)
	case history.List:
		op.Saw, err = listed(client.Get(ctx, key).Result())
	}
	if !NotDone(err) {
		log.End(op, err)
	}
	if err != nil {
		return op, fmt.Errorf("%s of key %d: %w", kind, number, err)
	}
	return op, nil
}

// Run is a set of workers over one history.
type Run struct {
	Errors   Errors
	done     atomic.Int64
	next     atomic.Uint32 // key to be written, out of the ones that the run grows by
	recorder *history.Recorder
	workers  []*Worker
}

// NewRun connects workers to the shards in turn. Keys begin with the prefix, so that runs do not meet.
func NewRun(target Target, connections int, prefix string, sizes Sizes) (*Run, error) {
	if len(target.Shards) == 0 {
		return nil, errNoShard
	}
	if err := sizes.validate(); err != nil {
		return nil, err
	}
	r := &Run{recorder: history.NewRecorder(connections)}
	for i := range connections {
		r.workers = append(r.workers, &Worker{sizes: sizes, prefix: prefix, client: target.Connect(i), log: r.recorder.Log(i), errors: &r.Errors, done: &r.done})
	}
	return r, nil
}

// Close ends the connections.
func (r *Run) Close() {
	for _, w := range r.workers {
		_ = w.client.Close()
	}
}

// Check judges everything recorded so far.
func (r *Run) Check(limit time.Duration) (history.Summary, error) {
	return history.Check(r.recorder.Ops(), limit)
}

// Recorded is how many operations have been answered so far; it may be asked while the workers run.
func (r *Run) Recorded() int { return int(r.done.Load()) }

// Do runs one operation in the first worker. No other work may be under way.
func (r *Run) Do(ctx context.Context, kind history.Kind, key uint32) (history.Op, error) {
	return r.workers[0].Do(ctx, kind, key)
}

// Ops is the history recorded so far.
func (r *Run) Ops() []history.Op { return r.recorder.Ops() }

// each runs f in every worker at once and waits for all.
func (r *Run) each(ctx context.Context, f func(ctx context.Context, i int, w *Worker, random *rand.Rand)) {
	var all sync.WaitGroup
	for i, w := range r.workers {
		all.Go(func() { f(ctx, i, w, rand.New(rand.NewPCG(uint64(i), 0x776f726b))) })
	}
	all.Wait()
}

// WriteAll writes each of the keys once, in no particular order between workers, and mixes in overwrites of keys already
// written, most of them from a small hot set that all workers fight over, and reads.
func (r *Run) WriteAll(ctx context.Context, keys uint32) {
	var next atomic.Uint32
	r.each(ctx, func(ctx context.Context, _ int, w *Worker, random *rand.Rand) {
		for ctx.Err() == nil {
			number := next.Add(1) - 1
			if number >= keys {
				return
			}
			_, _ = w.Do(ctx, history.Set, number)
			if random.IntN(4) == 0 {
				_, _ = w.Do(ctx, history.Set, hot(random, number))
			}
			if random.IntN(4) == 0 {
				_, _ = w.Do(ctx, history.Get, hot(random, number))
			}
		}
	})
}

// hot draws a key up to the newest: seven times in eight one of the first few.
func hot(random *rand.Rand, newest uint32) uint32 {
	if random.IntN(8) != 0 {
		return random.Uint32N(min(newest+1, 256))
	}
	return random.Uint32N(newest + 1)
}

// ReadAll reads every key once and returns how many held a value.
func (r *Run) ReadAll(ctx context.Context, keys uint32) uint32 {
	var next, present atomic.Uint32
	r.each(ctx, func(ctx context.Context, _ int, w *Worker, _ *rand.Rand) {
		for ctx.Err() == nil {
			number := next.Add(1) - 1
			if number >= keys {
				return
			}
			if op, err := w.Do(ctx, history.Get, number); err == nil && op.Saw != history.Absent {
				present.Add(1)
			}
		}
	})
	return present.Load()
}

// Mixed runs every kind of operation on a few keys for a time, or until each worker has done a number of operations (0: no bound).
func (r *Run) Mixed(ctx context.Context, keys uint32, operations int, duration time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, duration)
	defer cancel()
	r.each(ctx, func(ctx context.Context, _ int, w *Worker, random *rand.Rand) {
		kinds := []history.Kind{history.Get, history.Get, history.Get, history.Set, history.Set, history.SetNX, history.GetSet, history.Del, history.GetDel}
		for n := 0; (operations == 0 || n < operations) && ctx.Err() == nil; n++ {
			// A command that has begun is not cut off by the end of the run: its outcome would be unknown for no reason.
			_, _ = w.Do(context.WithoutCancel(ctx), kinds[random.IntN(len(kinds))], random.Uint32N(keys))
		}
	})
}

// Serve reads and, if asked to, overwrites random keys until stop is closed. A worker whose connection breaks goes on with a new one,
// which the driver makes; each broken command is counted.
func (r *Run) Serve(ctx context.Context, keys uint32, writes bool, stop <-chan struct{}) {
	r.each(ctx, func(ctx context.Context, _ int, w *Worker, random *rand.Rand) {
		for ctx.Err() == nil {
			select {
			case <-stop:
				return
			default:
			}
			kind := history.Get
			if writes && random.IntN(3) == 0 {
				kind = history.Set
			}
			if _, err := w.Do(ctx, kind, random.Uint32N(keys)); err != nil {
				// A dead shard refuses at once; do not spin on it.
				select {
				case <-stop:
				case <-time.After(20 * time.Millisecond):
				}
			}
		}
	})
}

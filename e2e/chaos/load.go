// SPDX-License-Identifier: Apache-2.0

// Package chaos is a load under which things may be broken: writers that fight over few keys and scatter over many, and judges of what
// they were told. The caller breaks things, and decides what and when: hack/chaos with processes of one machine, e2e with pods.
package chaos

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"farpool.dev/farpool/e2e/history"
	"farpool.dev/farpool/e2e/workload"
)

const (
	hotKeys  = 6
	coldKeys = 20000
	counters = 3
	lists    = 3
	// A key that many operations or a few unknown outcomes have been at makes room for another: what the checker has to consider grows
	// with both.
	retireAfter    = 1500
	retireUnknowns = 6
)

// family is a set of keys that are worked on in the same way. Its members are replaced as they are used up.
type family struct {
	kinds   []history.Kind
	members []*member
}

// member is the key that one place of a family has now.
type member struct {
	key      atomic.Uint32
	used     atomic.Int64
	unknowns atomic.Int64
}

// Load is the writers and what they have seen.
type Load struct {
	Sizes    workload.Sizes
	Recorder *history.Recorder
	prefix   string
	target   workload.Target
	writers  int
	next     atomic.Uint32 // the next key that nobody has used
	hot      family
	count    family
	list     family
	avoided  atomic.Int64 // a shard that writers leave alone, or -1
	answered atomic.Int64
	refused  atomic.Int64
	mutex    sync.Mutex
	errors   map[string]int
	kinds    map[uint32]history.Kind // of retired and present keys: how to read them
}

// NewLoad is a load of so many writers on the shards of a target. Keys begin with the prefix: what other loads have left under it would
// pass for a violation.
func NewLoad(target workload.Target, prefix string, writers int) *Load {
	l := &Load{
		prefix: prefix, target: target, writers: writers, Sizes: workload.Sizes{MinKey: 12, MaxKey: 200, MinValue: 12, MaxValue: 2048},
		Recorder: history.NewRecorder(writers + Bursts + 1), errors: map[string]int{}, kinds: map[uint32]history.Kind{},
	}
	l.avoided.Store(-1)
	l.next.Store(coldKeys)
	l.hot = l.family(hotKeys, history.Get, history.Get, history.Set, history.Set, history.SetNX, history.GetSet, history.Del, history.GetDel)
	l.count = l.family(counters, history.Incr, history.Incr, history.Incr, history.Count)
	l.list = l.family(lists, history.Append, history.Append, history.Append, history.List)
	return l
}

// Work has every writer work until stop is closed.
func (l *Load) Work(ctx context.Context, seed uint64, stop <-chan struct{}) {
	var all sync.WaitGroup
	for writer := range l.writers {
		all.Go(func() { l.write(ctx, writer, rand.New(rand.NewPCG(seed, uint64(writer))), stop) })
	}
	all.Wait()
}

// Progress waits until so many more commands have been answered.
func (l *Load) Progress(ctx context.Context, commands int64) error {
	more := l.Answered() + commands
	return Eventually(ctx, Patience, func() error {
		if now := l.Answered(); now < more {
			return fmt.Errorf("the writers hang: %d commands answered, failures so far: %s", now, Counts(l.Errors()))
		}
		return nil
	})
}

// Answered and Refused are how many commands came back, and how many failed. They may be asked while the writers work.
func (l *Load) Answered() int64 { return l.answered.Load() }

// Refused is the other of the two.
func (l *Load) Refused() int64 { return l.refused.Load() }

func (l *Load) family(size int, kinds ...history.Kind) family {
	f := family{kinds: kinds}
	for range size {
		m := &member{}
		l.renew(m, kinds)
		f.members = append(f.members, m)
	}
	return f
}

// newKey is a key that is read as `read` reads.
func (l *Load) newKey(read history.Kind) uint32 {
	key := l.next.Add(1)
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.kinds[key] = read
	return key
}

func (l *Load) renew(m *member, kinds []history.Kind) {
	read := history.Get
	switch kinds[0] {
	case history.Incr:
		read = history.Count
	case history.Append:
		read = history.List
	}
	m.key.Store(l.newKey(read))
	m.used.Store(0)
	m.unknowns.Store(0)
}

// used is every key that may hold something, with how it is read.
func (l *Load) used() map[uint32]history.Kind {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return maps.Clone(l.kinds)
}

func (l *Load) failed(err error) {
	l.refused.Add(1)
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.errors[workload.Verdict(err)]++
}

// write works until stop is closed: one connection to each shard, one command at a time.
func (l *Load) write(ctx context.Context, writer int, random *rand.Rand, stop <-chan struct{}) {
	clients := make([]*redis.Client, len(l.target.Shards))
	for i := range clients {
		clients[i] = l.target.Connect(i)
		defer func() { _ = clients[i].Close() }()
	}
	log := l.Recorder.Log(writer)
	for ctx.Err() == nil {
		select {
		case <-stop:
			return
		default:
		}
		shard := random.IntN(len(clients))
		if int64(shard) == l.avoided.Load() {
			shard = (shard + 1) % len(clients)
		}
		kind, key, at := l.draw(random)
		_, err := l.Sizes.Execute(ctx, clients[shard], log, l.prefix, kind, key)
		switch {
		case err == nil:
			l.answered.Add(1)
		default:
			l.failed(err)
			if at != nil && !workload.NotDone(err) {
				at.unknowns.Add(1)
			}
			// A dead shard refuses at once; nothing is gained by asking it without a pause.
			select {
			case <-stop:
			case <-time.After(5 * time.Millisecond):
			}
		}
	}
}

// draw picks the next operation: half of them on few keys that all fight over.
func (l *Load) draw(random *rand.Rand) (history.Kind, uint32, *member) {
	f := &l.hot
	switch n := random.IntN(20); {
	case n < 6:
		key := random.Uint32N(coldKeys)
		if n < 4 {
			return history.Set, key, nil
		}
		return history.Get, key, nil
	case n < 10:
		f = &l.count
	case n < 13:
		f = &l.list
	}
	m := f.members[random.IntN(len(f.members))]
	limit := int64(retireAfter)
	if f == &l.list {
		limit = 200 // it grows with every element
	}
	if m.used.Add(1) == limit || m.unknowns.Load() >= retireUnknowns {
		l.renew(m, f.kinds)
	}
	return f.kinds[random.IntN(len(f.kinds))], m.key.Load(), m
}

// Settle reads every key in the end, and writes the keys that were worked on most once more: nothing may be lost, and nothing may be
// locked. What a shard cannot answer at once it may answer later, until patience is over.
func (l *Load) Settle(ctx context.Context) error {
	keys := l.used()
	for key := range uint32(coldKeys) {
		keys[key] = history.Get
	}
	type job struct {
		key  uint32
		kind history.Kind
	}
	jobs := make(chan job)
	failures := make(chan error, l.writers)
	var all sync.WaitGroup
	for writer := range l.writers {
		all.Go(func() {
			client := l.target.Connect(writer)
			defer func() { _ = client.Close() }()
			var failed error
			for j := range jobs {
				if failed != nil {
					continue
				}
				failed = Eventually(ctx, Patience, func() error {
					_, err := l.Sizes.Execute(ctx, client, l.Recorder.Log(writer), l.prefix, j.kind, j.key)
					if err != nil {
						l.failed(err)
					}
					return err
				})
			}
			failures <- failed
		})
	}
	for key, read := range keys {
		jobs <- job{key, read}
		if key >= coldKeys || key%8 == 0 {
			write := map[history.Kind]history.Kind{history.Get: history.Set, history.Count: history.Incr, history.List: history.Append}[read]
			jobs <- job{key, write}
		}
	}
	close(jobs)
	all.Wait()
	close(failures)
	for err := range failures {
		if err != nil {
			return fmt.Errorf("with all processes up and no more faults: %w", err)
		}
	}
	return nil
}

// Errors are the failures by what they say.
func (l *Load) Errors() map[string]int {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return maps.Clone(l.errors)
}

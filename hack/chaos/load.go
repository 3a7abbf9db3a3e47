// SPDX-License-Identifier: Apache-2.0

package main

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
	writers   = 4
	hotKeys   = 6
	coldKeys  = 20000
	counters  = 3
	lists     = 3
	keyPrefix = "chaos:"
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

// load is the writers and what they have seen.
type load struct {
	cluster  *cluster
	sizes    workload.Sizes
	recorder *history.Recorder
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

func newLoad(c *cluster, logs int) *load {
	l := &load{
		cluster: c, sizes: workload.Sizes{MinKey: 12, MaxKey: 200, MinValue: 12, MaxValue: 2048},
		recorder: history.NewRecorder(logs), errors: map[string]int{}, kinds: map[uint32]history.Kind{},
	}
	l.avoided.Store(-1)
	l.next.Store(coldKeys)
	l.hot = l.family(hotKeys, history.Get, history.Get, history.Set, history.Set, history.SetNX, history.GetSet, history.Del, history.GetDel)
	l.count = l.family(counters, history.Incr, history.Incr, history.Incr, history.Count)
	l.list = l.family(lists, history.Append, history.Append, history.Append, history.List)
	return l
}

func (l *load) family(size int, kinds ...history.Kind) family {
	f := family{kinds: kinds}
	for range size {
		m := &member{}
		l.renew(m, kinds)
		f.members = append(f.members, m)
	}
	return f
}

// newKey is a key that is read as `read` reads.
func (l *load) newKey(read history.Kind) uint32 {
	key := l.next.Add(1)
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.kinds[key] = read
	return key
}

func (l *load) renew(m *member, kinds []history.Kind) {
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
func (l *load) used() map[uint32]history.Kind {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return maps.Clone(l.kinds)
}

func (l *load) failed(err error) {
	l.refused.Add(1)
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.errors[verdict(err)]++
}

// write works until stop is closed: one connection to each shard, one command at a time.
func (l *load) write(ctx context.Context, writer int, random *rand.Rand, stop <-chan struct{}) {
	clients := make([]*redis.Client, len(l.cluster.target.Shards))
	for i := range clients {
		clients[i] = l.cluster.target.Connect(i)
		defer func() { _ = clients[i].Close() }()
	}
	log := l.recorder.Log(writer)
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
		_, err := l.sizes.Execute(ctx, clients[shard], log, keyPrefix, kind, key)
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
func (l *load) draw(random *rand.Rand) (history.Kind, uint32, *member) {
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

// settle reads every key in the end, and writes those that were worked on most once more: nothing may be lost, and nothing may be
// locked. What a shard cannot answer at once it may answer later, until patience is over.
func (l *load) settle(ctx context.Context) error {
	keys := l.used()
	for key := range uint32(coldKeys) {
		keys[key] = history.Get
	}
	type job struct {
		key  uint32
		kind history.Kind
	}
	jobs := make(chan job)
	failures := make(chan error, writers)
	var all sync.WaitGroup
	for writer := range writers {
		all.Go(func() {
			client := l.cluster.target.Connect(writer)
			defer func() { _ = client.Close() }()
			var failed error
			for j := range jobs {
				if failed != nil {
					continue
				}
				failed = eventually(ctx, patience, func() error {
					_, err := l.sizes.Execute(ctx, client, l.recorder.Log(writer), keyPrefix, j.kind, j.key)
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

func (l *load) kindsOfErrors() map[string]int {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return maps.Clone(l.errors)
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"farpool.dev/farpool/e2e/history"
)

// bursts is how many further writers are at a compute shard at the moment it is stopped, each on a key of its own.
const bursts = 8

// nemesis does the damage, one thing at a time, in an order that follows from the seed.
type nemesis struct {
	cluster *cluster
	load    *load
	random  *rand.Rand

	shardKills, nodeKills, stops int
	caught                       int            // writes that were under way when their shard was stopped
	learned                      map[string]int // what their callers heard
	stale                        int            // of those writes, how many landed after the fence
	unjudged                     int            // stops after which that could not be told
}

func newNemesis(c *cluster, l *load, seed uint64) *nemesis {
	return &nemesis{cluster: c, load: l, random: rand.New(rand.NewPCG(seed, 0x6e656d65736973)), learned: map[string]int{}}
}

// faults are what there is to choose from, with how often each is chosen.
var faults = []struct {
	name   string
	weight int
	happen func(*nemesis, context.Context) error
}{
	{"kill-shard", 4, (*nemesis).killShard},
	{"stop-shard", 3, (*nemesis).stopShard},
	{"kill-node", 2, (*nemesis).killNode},
	{"kill-both", 1, (*nemesis).killBoth},
}

// run does one of everything that is chosen, then more in random order until the time is up.
func (n *nemesis) run(ctx context.Context, duration time.Duration, chosen []string) error {
	var first, lots []int
	for i, fault := range faults {
		if slices.Contains(chosen, fault.name) {
			first = append(first, i)
			lots = append(lots, slices.Repeat([]int{i}, fault.weight)...)
		}
	}
	end := time.Now().Add(duration)
	for i := 0; i < len(first) || time.Now().Before(end); i++ {
		if err := n.calm(ctx); err != nil {
			return err
		}
		fault := lots[n.random.IntN(len(lots))]
		if i < len(first) {
			fault = first[i]
		}
		if err := faults[fault].happen(n, ctx); err != nil {
			return fmt.Errorf("%s, fault %d: %w", faults[fault].name, i+1, err)
		}
	}
	return nil
}

// calm lets the writers get some way on, so that there is something to damage.
func (n *nemesis) calm(ctx context.Context) error {
	more := n.load.answered.Load() + int64(100+n.random.IntN(1000))
	return eventually(ctx, patience, func() error {
		if now := n.load.answered.Load(); now < more {
			return fmt.Errorf("the writers hang: %d commands answered, failures so far: %s", now, counts(n.load.kindsOfErrors()))
		}
		return nil
	})
}

func (n *nemesis) anyShard() int { return n.random.IntN(len(n.cluster.shards)) }

func (n *nemesis) killShard(ctx context.Context) error {
	shard := n.cluster.shards[n.anyShard()]
	if err := shard.kill(); err != nil {
		return err
	}
	n.shardKills++
	if err := shard.start(); err != nil {
		return err
	}
	return shard.ready(ctx)
}

func (n *nemesis) killNode(ctx context.Context) error {
	node := n.cluster.nodes[n.random.IntN(len(n.cluster.nodes))]
	if err := node.kill(); err != nil {
		return err
	}
	n.nodeKills++
	if err := node.start(); err != nil {
		return err
	}
	return n.recover(ctx)
}

// killBoth takes a shard away and, before it is back, a memory node.
func (n *nemesis) killBoth(ctx context.Context) error {
	shard := n.cluster.shards[n.anyShard()]
	if err := shard.kill(); err != nil {
		return err
	}
	n.shardKills++
	node := n.cluster.nodes[n.random.IntN(len(n.cluster.nodes))]
	if err := node.kill(); err != nil {
		return err
	}
	n.nodeKills++
	if err := node.start(); err != nil {
		return err
	}
	if err := shard.start(); err != nil {
		return err
	}
	return n.recover(ctx)
}

// recover publishes the new life of a memory node, and waits until all are whole again.
func (n *nemesis) recover(ctx context.Context) error {
	if err := n.cluster.publish(ctx); err != nil {
		return err
	}
	for _, p := range n.cluster.all() {
		if err := p.ready(ctx); err != nil {
			return err
		}
	}
	return nil
}

// burst is a write that is under way on a shard when it is stopped, and its outcome.
type burst struct {
	key   uint32
	err   error
	heard time.Time     // when its caller heard of it
	done  chan struct{} // closed then
}

// stopShard stops a shard in the middle of writes until every memory node has fenced it, has another shard overwrite what it was
// writing, and lets it go on. A write of the stopped shard whose caller does not hear that it was done must not be there afterwards.
func (n *nemesis) stopShard(ctx context.Context) error {
	index := n.anyShard()
	victim := n.cluster.shards[index]
	other := n.cluster.target.Connect(index + 1)
	defer func() { _ = other.Close() }()

	// The sessions of those who were killed before must have ended: only then is the next one that ends the victim's.
	err := eventually(ctx, patience, func() error {
		for _, node := range n.cluster.nodes {
			page, err := node.scrape()
			if err != nil {
				return err
			}
			if open := page["farpool_node_sessions"]; open != float64(len(n.cluster.shards)) {
				return fmt.Errorf("%s has %g sessions with %d compute shards", node.name, open, len(n.cluster.shards))
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	before, err := n.fenced()
	if err != nil {
		return err
	}
	lost, err := victim.lost()
	if err != nil {
		return err
	}
	stopping := make(chan struct{})
	under := make([]*burst, bursts)
	var written atomic.Int64
	for i := range under {
		under[i] = &burst{key: n.load.newKey(history.Get), done: make(chan struct{})}
		go n.hammer(ctx, index, i, under[i], &written, stopping)
	}
	goOn := sync.OnceValue(func() error { return victim.signal(syscall.SIGCONT) })
	defer func() { _ = goOn() }()
	enough := int64(10 + n.random.IntN(200))
	err = eventually(ctx, patience, func() error {
		if now := written.Load(); now < enough {
			return fmt.Errorf("%s answers %d of %d writes", victim.name, now, enough)
		}
		return nil
	})
	if err != nil {
		close(stopping)
		return err
	}
	n.load.avoided.Store(int64(index))
	defer n.load.avoided.Store(-1)
	err = victim.signal(syscall.SIGSTOP)
	close(stopping)
	if err != nil {
		return err
	}
	n.stops++

	// Every memory node ends the sessions of a client that is silent for longer than its lease.
	err = eventually(ctx, patience, func() error {
		now, err := n.fenced()
		if err != nil {
			return err
		}
		for i := range now {
			if now[i] <= before[i] {
				return fmt.Errorf("%s has not fenced %s, which is stopped for longer than the lease of %s", n.cluster.nodes[i].name, victim.name, lease)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	overwritten := make([]history.Tag, len(under))
	log := n.load.recorder.Log(writers + bursts)
	for i, b := range under {
		err := eventually(ctx, patience, func() error {
			op, err := n.load.sizes.Execute(ctx, other, log, keyPrefix, history.Set, b.key)
			overwritten[i] = op.Wrote
			return err
		})
		if err != nil {
			return fmt.Errorf("what a stopped shard was writing cannot be written by another: %w", err)
		}
	}
	if before, err = n.fenced(); err != nil {
		return err
	}
	resumed := time.Now()
	if err := goOn(); err != nil {
		return err
	}
	held := make([]history.Tag, len(under))
	for i, b := range under {
		select {
		case <-b.done:
		case <-time.After(patience):
			return fmt.Errorf("a caller of %s, which was stopped and goes on, has heard nothing for %s", victim.name, patience)
		}
		if b.heard.Before(resumed) {
			continue
		}
		n.caught++
		n.learned[verdict(b.err)]++
		var timeout interface{ Timeout() bool }
		if errors.As(b.err, &timeout) && timeout.Timeout() {
			return fmt.Errorf("a caller of %s, which was stopped and goes on, was left without an answer: %w", victim.name, b.err)
		}
		err := eventually(ctx, patience, func() error {
			op, err := n.load.sizes.Execute(ctx, other, log, keyPrefix, history.Get, b.key)
			held[i] = op.Saw
			return err
		})
		if err != nil {
			return err
		}
	}
	if err := victim.ready(ctx); err != nil {
		return err
	}
	// It notices session by session.
	err = eventually(ctx, patience, func() error {
		now, err := victim.lost()
		if err == nil && now < lost+float64(len(n.cluster.nodes)) {
			err = fmt.Errorf("%s was fenced by every memory node, and counts %g lost sessions after %g", victim.name, now, lost)
		}
		return err
	})
	if err != nil {
		return err
	}
	after, err := n.fenced()
	if err != nil {
		return err
	}
	if !slices.Equal(before, after) {
		n.unjudged++ // the shard was too slow for its new sessions as well: what they left is not told from what the old ones did
		return nil
	}
	for i, b := range under {
		if held[i] != overwritten[i] && b.err != nil {
			n.stale++
			return fmt.Errorf("a write of %s landed after its session had been fenced: key %d held %x, which was acknowledged meanwhile, and holds %x, of which the caller heard: %w",
				victim.name, b.key, uint64(overwritten[i]), uint64(held[i]), b.err)
		}
	}
	return nil
}

// hammer writes one key through one shard until it is to stop, and keeps the outcome of the write that was then under way.
func (n *nemesis) hammer(ctx context.Context, shard, index int, b *burst, written *atomic.Int64, stopping <-chan struct{}) {
	defer close(b.done)
	target := n.cluster.target
	target.Patience = 2 * patience // an answer that comes late is told from one that never comes
	client := target.Connect(shard)
	defer func() { _ = client.Close() }()
	log := n.load.recorder.Log(writers + index)
	for {
		_, b.err = n.load.sizes.Execute(ctx, client, log, keyPrefix, history.Set, b.key)
		b.heard = time.Now()
		select {
		case <-stopping:
			return
		default:
		}
		if b.err == nil {
			written.Add(1)
		}
	}
}

// lost is how many sessions a shard knows to have ended against its will.
func (p *process) lost() (float64, error) {
	page, err := p.scrape()
	return page["farpool_pool_sessions_lost_total"], err
}

// fenced is how many sessions each memory node has ended by force.
func (n *nemesis) fenced() ([]float64, error) {
	var all []float64
	for _, node := range n.cluster.nodes {
		page, err := node.scrape()
		if err != nil {
			return nil, err
		}
		all = append(all, page["farpool_node_sessions_fenced_total"])
	}
	return all, nil
}

// verdict is what a caller heard, in a word.
func verdict(err error) string {
	var answered redis.Error
	switch {
	case err == nil:
		return "done"
	case errors.As(err, &answered):
		word, _, _ := strings.Cut(answered.Error(), " ")
		return word
	}
	return "broken connection"
}

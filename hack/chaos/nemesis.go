// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"syscall"
	"time"

	"farpool.dev/farpool/e2e/chaos"
	"farpool.dev/farpool/hack/local"
)

// nemesis does the damage, one thing at a time, in an order that follows from the seed.
type nemesis struct {
	cluster *local.Cluster
	load    *chaos.Load
	random  *rand.Rand

	shardKills, nodeKills, stops int
	upgrades                     int
	away                         time.Duration // the longest that a memory node was, from its orderly end until it served again
	unjudged                     int           // stops after which it could not be told what old sessions had done
	stopped                      chaos.Stopped
}

func newNemesis(c *local.Cluster, l *chaos.Load, seed uint64) *nemesis {
	return &nemesis{cluster: c, load: l, random: rand.New(rand.NewPCG(seed, 0x6e656d65736973))}
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
	{"upgrade-shard", 2, (*nemesis).upgradeShard},
	{"upgrade-node", 3, (*nemesis).upgradeNode},
}

// run does one of everything that is chosen, then more in random order until the time is up and there were enough stops.
func (n *nemesis) run(ctx context.Context, o options) error {
	var first, lots []int
	for i, fault := range faults {
		if slices.Contains(o.faults, fault.name) {
			first = append(first, i)
			lots = append(lots, slices.Repeat([]int{i}, fault.weight)...)
		}
	}
	end := time.Now().Add(time.Duration(o.minutes * float64(time.Minute)))
	for i := 0; i < len(first) || time.Now().Before(end) || n.stops < o.zombies; i++ {
		// So that there is something to damage.
		if err := n.load.Progress(ctx, int64(100+n.random.IntN(1000))); err != nil {
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

func (n *nemesis) anyShard() int { return n.random.IntN(len(n.cluster.Shards)) }

func (n *nemesis) killShard(ctx context.Context) error {
	shard := n.cluster.Shards[n.anyShard()]
	if err := shard.Kill(); err != nil {
		return err
	}
	n.shardKills++
	if err := shard.Start(); err != nil {
		return err
	}
	return shard.Ready(ctx)
}

func (n *nemesis) killNode(ctx context.Context) error {
	node := n.cluster.Nodes[n.random.IntN(len(n.cluster.Nodes))]
	if err := node.Kill(); err != nil {
		return err
	}
	n.nodeKills++
	if err := node.Start(); err != nil {
		return err
	}
	return n.recover(ctx)
}

// killBoth takes a shard away and, before it is back, a memory node.
func (n *nemesis) killBoth(ctx context.Context) error {
	shard := n.cluster.Shards[n.anyShard()]
	if err := shard.Kill(); err != nil {
		return err
	}
	n.shardKills++
	node := n.cluster.Nodes[n.random.IntN(len(n.cluster.Nodes))]
	if err := node.Kill(); err != nil {
		return err
	}
	n.nodeKills++
	if err := node.Start(); err != nil {
		return err
	}
	if err := shard.Start(); err != nil {
		return err
	}
	return n.recover(ctx)
}

// upgradeShard ends a compute shard in order, and starts it in the other version.
func (n *nemesis) upgradeShard(ctx context.Context) error {
	shard := n.cluster.Shards[n.anyShard()]
	if err := shard.End(); err != nil {
		return err
	}
	n.upgrades++
	shard.Change()
	if err := shard.Start(); err != nil {
		return err
	}
	return shard.Ready(ctx)
}

// upgradeNode ends a memory node in order, and starts it in the other version, over its memory. Every other time the new process is killed while it takes that up
// or begins to serve, and starts once more.
func (n *nemesis) upgradeNode(ctx context.Context) error {
	node := n.cluster.Nodes[n.random.IntN(len(n.cluster.Nodes))]
	begun := time.Now()
	if err := node.End(); err != nil {
		return err
	}
	n.upgrades++
	node.Change()
	if err := node.Start(); err != nil {
		return err
	}
	if n.random.IntN(2) == 0 {
		if err := node.Kill(); err != nil {
			return err
		}
		n.nodeKills++
		if err := node.Start(); err != nil {
			return err
		}
	}
	if err := n.recover(ctx); err != nil {
		return err
	}
	n.away = max(n.away, time.Since(begun))
	return nil
}

// recover publishes the new life of a memory node, and waits until all are whole again.
func (n *nemesis) recover(ctx context.Context) error {
	if err := n.cluster.Publish(ctx); err != nil {
		return err
	}
	for _, p := range n.cluster.All() {
		if err := p.Ready(ctx); err != nil {
			return err
		}
	}
	return nil
}

// stopShard stops a shard in the middle of writes until every memory node has fenced it, and lets it go on.
func (n *nemesis) stopShard(ctx context.Context) error {
	index := n.anyShard()
	p := n.cluster.Shards[index]
	n.stops++
	stopped, err := n.load.Stop(ctx, chaos.Victim{
		Name: p.Name, Shard: index, Sessions: 1, Shards: len(n.cluster.Shards),
		Stop:     func() error { return p.Signal(syscall.SIGSTOP) },
		Continue: func() error { return p.Signal(syscall.SIGCONT) },
		Ready:    p.Ready,
		Lost:     func() (float64, error) { return lost(p) },
		Open:     func() ([]float64, error) { return n.perNode("farpool_node_sessions") },
		Fenced:   func() ([]float64, error) { return n.perNode("farpool_node_sessions_fenced_total") },
	}, int64(10+n.random.IntN(200)))
	n.stopped.Add(stopped)
	if err == nil && !stopped.Judged {
		n.unjudged++
	}
	return err
}

// lost is how many sessions a shard knows to have ended against its will.
func lost(p *local.Process) (float64, error) {
	page, err := p.Scrape()
	return page["farpool_pool_sessions_lost_total"], err
}

// perNode is a metric of each memory node.
func (n *nemesis) perNode(name string) ([]float64, error) {
	var all []float64
	for _, node := range n.cluster.Nodes {
		page, err := node.Scrape()
		if err != nil {
			return nil, err
		}
		all = append(all, page[name])
	}
	return all, nil
}

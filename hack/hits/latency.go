// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"farpool.dev/farpool/hack/local"
)

const (
	roomier = 8   // times as much memory as the full store has
	rounds  = 20  // of a block of writes for each store, one store after the other
	block   = 400 // writes
)

// Writes are how long SETs of new keys took in a store, in rising order.
type writes []time.Duration

func (w writes) percentile(p float64) time.Duration { return w[int(p*float64(len(w)-1))] }

// A pressure is how long writes took where they push other keys out, and where there is room.
type pressure struct {
	server       string
	writers      int
	full, roomy  writes
	added, stood int // keys that were written to the full store, and that it holds in the end
}

// measureWrites writes new keys to two stores by turns, of which the first one has long been full. Each writer waits for a reply before it writes again.
func measureWrites(ctx context.Context, p *pressure, full, roomy *store, fill int) error {
	if err := full.fill(ctx, plainSize, 0, fill); err != nil {
		return fmt.Errorf("%d keys that fill a store: %w", fill, err)
	}
	p.added = fill
	for round := range rounds {
		from := uint32(round * block)
		for _, each := range []struct {
			store *store
			into  *writes
		}{{full, &p.full}, {roomy, &p.roomy}} {
			took, err := writeBlock(ctx, each.store, from, p.writers)
			if err != nil {
				return err
			}
			*each.into = append(*each.into, took...)
		}
		p.added += block
	}
	slices.Sort(p.full)
	slices.Sort(p.roomy)
	keys, err := full.connections[0].DBSize(ctx).Result()
	p.stood = int(keys)
	if err == nil && p.stood >= fill {
		err = fmt.Errorf("the store that should be full holds %d keys of %d: give more keys or less memory", p.stood, p.added)
	}
	return err
}

func set(ctx context.Context, client *redis.Client, number uint32) error {
	return client.Set(ctx, key(number), value(number, plainValue), 0).Err()
}

func writeBlock(ctx context.Context, s *store, from uint32, writers int) (writes, error) {
	took := make(writes, block)
	errs := make([]error, writers)
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() {
			for i := w; i < block && errs[w] == nil; i += writers {
				begun := time.Now()
				errs[w] = set(ctx, s.connections[w], from+uint32(i))
				took[i] = time.Since(begun)
			}
		})
	}
	all.Wait()
	return took, errors.Join(errs...)
}

// pressPool compares a full pool with one that has room.
func pressPool(ctx context.Context, o options, protocol, policy string, writers int) (p pressure, err error) {
	p = pressure{server: protocol, writers: writers}
	shape := o.shape(protocol)
	full, err := startPool(ctx, shape, policy, writers)
	if err != nil {
		return p, err
	}
	defer func() { err = errors.Join(err, full.close()) }()
	shape.Memory = fmt.Sprintf("%dMi", roomier*o.mebibytes)
	roomy, err := startPool(ctx, shape, policy, writers)
	if err != nil {
		return p, err
	}
	defer func() { err = errors.Join(err, roomy.close()) }()
	return p, measureWrites(ctx, &p, full, roomy, 2*o.holds())
}

// pressRedis compares a full redis-server with one that has no limit.
func pressRedis(ctx context.Context, o options, policy string, writers int) (p pressure, err error) {
	p = pressure{server: "redis-server", writers: writers}
	full, err := startRedis(ctx, o.redis, writers)
	if err != nil {
		return p, err
	}
	defer func() { err = errors.Join(err, full.close()) }()
	roomy, err := startRedis(ctx, o.redis, writers)
	if err != nil {
		return p, err
	}
	defer func() { err = errors.Join(err, roomy.close()) }()
	client := full.connections[0]
	if err := errors.Join(client.ConfigSet(ctx, "maxmemory", fmt.Sprintf("%dmb", o.mebibytes)).Err(), client.ConfigSet(ctx, "maxmemory-policy", policy).Err()); err != nil {
		return p, err
	}
	return p, measureWrites(ctx, &p, full, roomy, 2*o.holds())
}

// shape is what a pool of this protocol is made of.
func (o options) shape(protocol string) local.Shape {
	shape := local.Shape{
		Binaries: o.binaries, Memory: fmt.Sprintf("%dMi", o.mebibytes), Protocol: protocol, Tables: 1, Nodes: 1, Shards: o.shards,
		Lease: 5 * time.Second, Wire: local.TCP,
	}
	for range o.shards {
		shape.Front = append(shape.Front, []string{"--threads", fmt.Sprint(o.workers)})
	}
	return shape
}

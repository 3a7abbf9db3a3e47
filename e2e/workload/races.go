// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"context"
	"fmt"
	"strconv"
	"sync"

	"github.com/redis/go-redis/v9"
)

// Increments sends perShard INCRs of one key through each shard, over several connections each, and checks that every sum from 1
// on was handed out exactly once.
func Increments(ctx context.Context, target Target, key string, perShard, connectionsPerShard int) (int64, error) {
	if len(target.Shards) == 0 {
		return 0, errNoShard
	}
	total := perShard * len(target.Shards)
	handedOut := make([][]int64, len(target.Shards)*connectionsPerShard)
	var errs Errors
	var all sync.WaitGroup
	for i := range handedOut {
		shard, part := i%len(target.Shards), i/len(target.Shards)
		count := perShard / connectionsPerShard
		if part < perShard%connectionsPerShard {
			count++
		}
		all.Go(func() {
			client := target.Connect(shard)
			defer func() { _ = client.Close() }()
			for range count {
				sum, err := client.Incr(ctx, key).Result()
				if err != nil {
					errs.add(fmt.Errorf("INCR through shard %d: %w", shard, err))
					return
				}
				handedOut[i] = append(handedOut[i], sum)
			}
		})
	}
	all.Wait()
	if err := errs.Err(); err != nil {
		return 0, err
	}
	if err := exactSums(handedOut, total); err != nil {
		return 0, err
	}
	for shard := range target.Shards {
		client := target.Connect(shard)
		text, err := client.Get(ctx, key).Result()
		_ = client.Close()
		if err != nil {
			return 0, fmt.Errorf("GET of the sum through shard %d: %w", shard, err)
		}
		if sum, err := strconv.ParseInt(text, 10, 64); err != nil || sum != int64(total) {
			return 0, fmt.Errorf("shard %d holds %q after %d INCRs", shard, text, total)
		}
	}
	return int64(total), nil
}

// exactSums checks what each connection was handed out: every sum from 1 to total once, and growing on each connection.
func exactSums(handedOut [][]int64, total int) error {
	seen := make([]bool, total+1)
	count := 0
	for i, sums := range handedOut {
		last := int64(0)
		for _, sum := range sums {
			switch {
			case sum < 1 || sum > int64(total):
				return fmt.Errorf("INCR returned %d, outside 1 to %d", sum, total)
			case seen[sum]:
				return fmt.Errorf("INCR returned %d twice: an update was lost", sum)
			case sum <= last:
				return fmt.Errorf("connection %d saw INCR return %d after %d", i, sum, last)
			}
			seen[sum], last = true, sum
			count++
		}
	}
	if count != total {
		return fmt.Errorf("%d INCRs were answered of %d", count, total)
	}
	return nil
}

// Races lets all connections SETNX one new key at the same moment, for a number of rounds, and checks that each round has exactly one
// winner and that every shard then shows the winner's value.
func Races(ctx context.Context, target Target, prefix string, rounds, connections int) error {
	if len(target.Shards) == 0 {
		return errNoShard
	}
	clients := make([]*redis.Client, connections)
	for i := range clients {
		clients[i] = target.Connect(i)
		defer func() { _ = clients[i].Close() }()
	}
	for round := range rounds {
		key := prefix + strconv.Itoa(round)
		won := make([]bool, connections)
		var errs Errors
		var ready, all sync.WaitGroup
		ready.Add(connections)
		for i, c := range clients {
			all.Go(func() {
				ready.Done()
				ready.Wait()
				var err error
				if won[i], err = c.Do(ctx, "SETNX", key, strconv.Itoa(i)).Bool(); err != nil {
					errs.add(fmt.Errorf("SETNX in round %d: %w", round, err))
				}
			})
		}
		all.Wait()
		if err := errs.Err(); err != nil {
			return err
		}
		winner, winners := 0, 0
		for i := range won {
			if won[i] {
				winner, winners = i, winners+1
			}
		}
		if winners != 1 {
			return fmt.Errorf("round %d of SETNX has %d winners among %d connections", round, winners, connections)
		}
		for i := range min(connections, len(target.Shards)) {
			got, err := clients[i].Get(ctx, key).Result()
			if err != nil {
				return fmt.Errorf("GET after round %d of SETNX: %w", round, err)
			}
			if got != strconv.Itoa(winner) {
				return fmt.Errorf("connection %d won round %d of SETNX, but shard %d shows connection %s", winner, round, i, got)
			}
		}
	}
	return nil
}

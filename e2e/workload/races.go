// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

// Sums is what INCRs came to.
type Sums struct {
	// Sum that every shard holds at the end.
	Sum int64
	// Unknown are commands of which nobody knows whether they were done, as when a process stood still for longer than the pool's
	// failure timeout. Each is in the sum, or not.
	Unknown int64
	// Refused are commands that were answered to have done nothing, and sent again.
	Refused int64
}

// Increments has connections to every shard INCR one key, perShard times each shard, and checks that no update was lost and none was
// done twice.
func Increments(ctx context.Context, target Target, key string, perShard, connectionsPerShard int) (Sums, error) {
	if len(target.Shards) == 0 {
		return Sums{}, errNoShard
	}
	handedOut := make([][]int64, len(target.Shards)*connectionsPerShard)
	var errs Errors
	var unknown, refused atomic.Int64
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
				for ; NotDone(err) && ctx.Err() == nil; sum, err = client.Incr(ctx, key).Result() {
					refused.Add(1)
				}
				switch {
				case err == nil:
					handedOut[i] = append(handedOut[i], sum)
				case kindOf(err) == "UNKNOWNOUTCOME":
					unknown.Add(1)
				default:
					errs.add(fmt.Errorf("INCR through shard %d: %w", shard, err))
					return
				}
			}
		})
	}
	all.Wait()
	if err := errs.Err(); err != nil {
		return Sums{}, err
	}
	sums := Sums{Unknown: unknown.Load(), Refused: refused.Load()}
	for shard := range target.Shards {
		client := target.Connect(shard)
		text, err := client.Get(ctx, key).Result()
		_ = client.Close()
		if err != nil {
			return Sums{}, fmt.Errorf("GET of the sum through shard %d: %w", shard, err)
		}
		sum, err := strconv.ParseInt(text, 10, 64)
		if err != nil || shard > 0 && sum != sums.Sum {
			return Sums{}, fmt.Errorf("shard %d holds %q, and shard 0 %d", shard, text, sums.Sum)
		}
		sums.Sum = sum
	}
	return sums, exactSums(handedOut, sums)
}

// exactSums checks what each connection was handed out: every sum once but those that nobody was told, and growing on each connection.
func exactSums(handedOut [][]int64, sums Sums) error {
	seen := map[int64]bool{}
	for i, of := range handedOut {
		last := int64(0)
		for _, sum := range of {
			switch {
			case sum < 1 || sum > sums.Sum:
				return fmt.Errorf("INCR returned %d, outside 1 to %d", sum, sums.Sum)
			case seen[sum]:
				return fmt.Errorf("INCR returned %d twice: an update was lost", sum)
			case sum <= last:
				return fmt.Errorf("connection %d saw INCR return %d after %d", i, sum, last)
			}
			seen[sum], last = true, sum
		}
	}
	if told := int64(len(seen)); sums.Sum < told || sums.Sum > told+sums.Unknown {
		return fmt.Errorf("the sum is %d after %d INCRs that were answered, and %d of which nobody knows", sums.Sum, told, sums.Unknown)
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

// SPDX-License-Identifier: Apache-2.0

// Growth runs a RACE pool as processes of this machine while the keys in it become many times as many: its tables are split under reads,
// overwrites and new keys, over the Redis protocol. Every answer is judged, every key is read in the end, and the memory files must be
// clean. It prints Markdown.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"time"

	"farpool.dev/farpool/e2e/workload"
	"farpool.dev/farpool/hack/local"
)

type options struct {
	local.Shape
	keys, times int
	size        int
	connections int
	calm        time.Duration
	limit       time.Duration
}

func run(ctx context.Context, o options) (err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, o.limit, fmt.Errorf("it has taken longer than -limit %s", o.limit))
	defer cancel()
	directory, err := local.Workspace("growth")
	if err != nil {
		return err
	}
	c, err := local.NewCluster(directory, o.Shape)
	if err != nil {
		return err
	}
	defer func() {
		if err = errors.Join(err, c.Stop()); err == nil {
			err = os.RemoveAll(directory)
		} else {
			err = fmt.Errorf("%w; logs and memory files are in %s", err, directory)
		}
	}()
	if err := c.Start(ctx); err != nil {
		return err
	}
	if err := c.OnWire(ctx, o.Wire); err != nil {
		return err
	}
	r, err := workload.NewRun(c.Target, o.connections, "grow:", workload.Sizes{MinKey: 16, MaxKey: 16, MinValue: o.size, MaxValue: o.size})
	if err != nil {
		return err
	}
	defer r.Close()
	keys, wanted := uint32(o.keys), uint32(o.keys*o.times)
	fmt.Fprintf(os.Stderr, "growth: %d keys are written\n", keys)
	r.Put(ctx, keys)
	splits, err := counted(c, "farpool_index_splits_finished_total")
	if err != nil {
		return err
	}
	movedBefore, err := counted(c, "farpool_index_slots_moved_total")
	if err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "growth: they become %d\n", wanted)
	hadTo := countWhatHasToMove(c, r)
	growth, err := r.Grow(ctx, keys, wanted, o.calm, 500*time.Millisecond)
	had, errHad := hadTo()
	if err = errors.Join(err, errHad); err != nil {
		return err
	}
	splitsAfter, err := counted(c, "farpool_index_splits_finished_total")
	if err != nil {
		return err
	}
	moved, err := counted(c, "farpool_index_slots_moved_total")
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, "growth: all are read")
	present := r.ReadAll(ctx, wanted)
	sum, err := r.Check(5 * time.Minute)
	if err != nil {
		return err
	}
	fmt.Printf("**On %s**, memory nodes: %d, compute shards: %d, connections: %d, values of %d bytes: %d keys become %d; %g splits, %g slots moved, %.2f times as many as had to; %d operations failed, %d keys lost. In the slowest half second while it grew there were %.0f operations/s.\n\n%s\n",
		o.Wire, o.Nodes, o.Shards, o.connections, o.size, keys, wanted, splitsAfter-splits, moved-movedBefore, (moved-movedBefore)/had, r.Errors.Count(), wanted-present, growth.Slowest, growth.Table())
	fmt.Fprintf(os.Stderr, "growth: history of %d operations on %d keys is linearizable\n", sum.Ops, sum.Keys)
	if err := r.Errors.Err(); err != nil {
		return err
	}
	if present != wanted {
		return fmt.Errorf("%d keys of %d are there", present, wanted)
	}
	if splitsAfter == splits {
		return fmt.Errorf("no table was split: give more keys, or tables that are smaller")
	}
	return c.Fsck(ctx)
}

// countWhatHasToMove begins to count the keys that each split has to move, until what it returns is called: half of those of its table when it begins.
// Tables are alike, but for tables that have been split once more often than others.
func countWhatHasToMove(c *local.Cluster, r *workload.Run) func() (float64, error) {
	over, ended := make(chan struct{}), make(chan struct{})
	var had float64
	var failed error
	go func() {
		defer close(ended)
		ticks := time.NewTicker(50 * time.Millisecond)
		defer ticks.Stop()
		for begun := 0.; failed == nil; {
			var now float64
			if now, failed = counted(c, "farpool_index_splits_total"); now > begun {
				for ; begun < now; begun++ {
					perNode := (float64(len(c.Nodes)) + begun) / float64(len(c.Nodes))
					had += float64(r.Keys()) / 2 / (float64(len(c.Nodes)) * math.Exp2(math.Floor(math.Log2(perNode))))
				}
			}
			select {
			case <-over:
				return
			case <-ticks.C:
			}
		}
	}()
	return func() (float64, error) {
		close(over)
		<-ended
		return had, failed
	}
}

// counted is a counter of all shards.
func counted(c *local.Cluster, name string) (sum float64, err error) {
	for _, shard := range c.Shards {
		page, err := shard.Scrape()
		if err != nil {
			return 0, err
		}
		sum += page[name]
	}
	return sum, nil
}

// The kernel ties Pdeathsig to the thread that started the child, so everything that starts one stays on the main thread.
func init() { runtime.LockOSThread() }

func main() {
	o := options{Shape: local.Shape{Binaries: "build/release/apps", Memory: "256Mi", Protocol: "race", Tables: 512, Nodes: 1, Shards: 1, Lease: 2 * time.Second, Wire: local.SHM}}
	o.Flags()
	flag.IntVar(&o.keys, "keys", 10_000, "at first")
	flag.IntVar(&o.times, "times", 16, "as many in the end")
	flag.IntVar(&o.size, "value-bytes", 64, "size of each value")
	flag.IntVar(&o.connections, "connections", 16, "to the compute shards, with one command under way on each")
	flag.DurationVar(&o.calm, "calm", 5*time.Second, "before and after it grows")
	flag.DurationVar(&o.limit, "limit", 10*time.Minute, "for all of it")
	flag.Parse()
	wrong := o.Wrong()
	switch {
	case wrong != nil:
	case flag.NArg() > 0:
		wrong = fmt.Errorf("there is no argument %s, only flags", strings.Join(flag.Args(), " "))
	case o.keys < 1 || o.times < 2 || o.keys > 1<<28/o.times || o.connections < 1:
		wrong = fmt.Errorf("give at least one key and one connection, a growth of 2 or more, and no more than 2^28 keys in the end")
	case o.Protocol != "race":
		wrong = fmt.Errorf("tables of protocol %s are not split; race's are", o.Protocol)
	}
	if wrong != nil {
		fmt.Fprintln(os.Stderr, "growth:", wrong)
		os.Exit(2)
	}
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "growth: FAILED:", err)
		os.Exit(1)
	}
}

// SPDX-License-Identifier: Apache-2.0

// Hits compares the hit ratios of full pools with those of redis-server: the same traces, the same policies, and as many keys. Pools are processes of this
// machine. It also measures how long writes of new keys take in a full pool and in one that has room. It prints Markdown, and draws a plot.
// docs/measurements/eviction.md explains both.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"
)

type options struct {
	binaries    string
	redis       string
	protocols   string
	policies    string
	traces      string
	svg         string
	mebibytes   int // that the memory node lends
	shards      int
	workers     int // of each shard
	connections int
	keys        int
	requests    int
	rate        float64
	seed        uint64
	writers     string
}

func (o *options) register(flags *flag.FlagSet) {
	flags.StringVar(&o.binaries, "bin", "build/release/apps", "`directory` of the daemons")
	flags.StringVar(&o.redis, "redis", "redis-server", "`program` to compare with")
	flags.StringVar(&o.protocols, "protocols", "rcuckoo,race,outback", "index `protocols` of pools, with commas between")
	flags.StringVar(&o.policies, "policies", "allkeys-lru,allkeys-lfu,allkeys-random", "`policies`, with commas between")
	flags.StringVar(&o.traces, "traces", strings.Join(traceNames(), ","), "`traces`, with commas between; none: only -writers")
	flags.StringVar(&o.writers, "writers", "1,16", "`numbers` of connections that write new keys to a full store and to one with room, with commas between; none: only -traces")
	flags.StringVar(&o.svg, "svg", "", "`file` for a plot of all ratios")
	flags.IntVar(&o.mebibytes, "memory", 16, "`MiB` that the memory node lends")
	flags.IntVar(&o.shards, "shards", 1, "compute shards")
	flags.IntVar(&o.workers, "workers", 2, "threads of each compute shard; each has its own sessions")
	flags.IntVar(&o.connections, "connections", 8, "to each store; batches take turns over them")
	flags.IntVar(&o.keys, "keys", 50_000, "keys of a trace, several times as many as a store holds")
	flags.IntVar(&o.requests, "requests", 120_000, "requests of a trace; the first third is not counted")
	flags.Float64Var(&o.rate, "rate", 8_000, "requests a second, at most")
	flags.Uint64Var(&o.seed, "seed", 1, "which traces are drawn")
}

// holds returns more keys than a store has room for.
func (o *options) holds() int { return o.mebibytes << 20 / plainValue }

// split cuts a list at its commas; an empty one has nothing in it.
func split(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' })
}

// writerCounts reads -writers.
func (o *options) writerCounts() (counts []int, err error) {
	for _, each := range split(o.writers) {
		var count int
		if _, err := fmt.Sscanf(each, "%d", &count); err != nil || count < 1 || count > block {
			return nil, fmt.Errorf("-writers has %q: give numbers from 1 to %d, with commas between", each, block)
		}
		counts = append(counts, count)
	}
	return counts, nil
}

// wrong says what of the options nothing can be measured with.
func (o *options) wrong() error {
	_, err := o.writerCounts()
	for _, each := range split(o.protocols) {
		if !slices.Contains([]string{"rcuckoo", "race", "outback"}, each) {
			err = errors.Join(err, fmt.Errorf("there is no index protocol %q, only rcuckoo, race and outback", each))
		}
	}
	for _, each := range split(o.policies) {
		if _, known := evictionOf(each); !known {
			err = errors.Join(err, fmt.Errorf("there is no policy %q", each))
		} else if !strings.HasPrefix(each, "allkeys-") {
			err = errors.Join(err, fmt.Errorf("policy %q removes only keys that expire, and no key of these traces does", each))
		}
	}
	for _, each := range split(o.traces) {
		if !slices.Contains(traceNames(), each) {
			err = errors.Join(err, fmt.Errorf("there is no trace %q, only %s", each, strings.Join(traceNames(), ", ")))
		}
	}
	if min(o.mebibytes, o.shards, o.workers, o.connections, o.keys) < 1 || o.rate <= 0 || o.requests < 100*batch {
		err = errors.Join(err, fmt.Errorf("-memory, -shards, -workers, -connections, -keys and -rate must be more than 0, and -requests at least %d", 100*batch))
	}
	for _, daemon := range []string{o.binaries + "/farpool-memory-node", o.binaries + "/farpool-compute-shard", o.redis} {
		if _, missing := exec.LookPath(daemon); missing != nil {
			err = errors.Join(err, fmt.Errorf("%w: `make daemons` builds daemons, `hack/deps` installs redis-server", missing))
		}
	}
	return err
}

// A comparison is one trace under one policy: what came of it in a pool, and in a redis-server that holds as many keys.
type comparison struct {
	protocol, policy, trace string
	pool, redis             outcome
}

func compare(ctx context.Context, o options, protocol, policy string, t trace) (c comparison, err error) {
	c = comparison{protocol: protocol, policy: policy, trace: t.name}
	pool, err := startPool(ctx, o.shape(protocol), policy, o.connections)
	if err != nil {
		return c, err
	}
	if err = pool.fill(ctx, t.size, 0, o.holds()); err == nil {
		c.pool, err = replay(ctx, pool, t, o.rate)
	}
	if err = errors.Join(err, pool.close()); err != nil {
		return c, fmt.Errorf("a pool of %s: %w", protocol, err)
	}
	redis, err := startRedis(ctx, o.redis, o.connections)
	if err != nil {
		return c, err
	}
	if err = redis.limit(ctx, t.size, c.pool.keys, policy); err == nil {
		c.redis, err = replay(ctx, redis, t, o.rate)
	}
	if err = errors.Join(err, redis.close()); err != nil {
		return c, fmt.Errorf("redis-server: %w", err)
	}
	return c, nil
}

func compareAll(ctx context.Context, o options) (all []comparison, err error) {
	for _, name := range split(o.traces) {
		t := newTrace(name, o.keys, o.requests, o.seed)
		for _, policy := range split(o.policies) {
			for _, protocol := range split(o.protocols) {
				c, err := compare(ctx, o, protocol, policy, t)
				if err != nil {
					return all, err
				}
				fmt.Fprintf(os.Stderr, "hits: %s, %s, %s: %.1f %%, and redis-server %.1f %%\n", t.name, policy, protocol, 100*c.pool.ratio(), 100*c.redis.ratio())
				all = append(all, c)
			}
		}
	}
	return all, nil
}

func pressAll(ctx context.Context, o options) (all []pressure, err error) {
	counts, err := o.writerCounts()
	if err != nil {
		return nil, err
	}
	policy := split(o.policies)[0]
	for _, writers := range counts {
		for _, protocol := range append(split(o.protocols), redisName) {
			var p pressure
			if protocol == redisName {
				p, err = pressRedis(ctx, o, policy, writers)
			} else {
				p, err = pressPool(ctx, o, protocol, policy, writers)
			}
			if err != nil {
				return all, fmt.Errorf("writes to %s: %w", protocol, err)
			}
			fmt.Fprintf(os.Stderr, "hits: writes by %d connections to %s: %v when full, %v with room\n", writers, protocol, p.full.percentile(0.5), p.roomy.percentile(0.5))
			all = append(all, p)
		}
	}
	return all, nil
}

func run(ctx context.Context, o options, out io.Writer) error {
	compared, err := compareAll(ctx, o)
	if err != nil {
		return err
	}
	heading(o, out)
	ratiosTable(compared, out)
	if o.svg != "" {
		if err := os.WriteFile(o.svg, []byte(plot(compared)), 0o644); err != nil {
			return err
		}
	}
	pressed, err := pressAll(ctx, o)
	if err != nil {
		return err
	}
	writesTable(pressed, out)
	return nil
}

// The kernel ties Pdeathsig to the thread that started the child, so everything that starts one stays on the main thread.
func init() { runtime.LockOSThread() }

func main() {
	var o options
	o.register(flag.CommandLine)
	flag.Parse()
	wrong := o.wrong()
	if flag.NArg() > 0 {
		wrong = errors.Join(wrong, fmt.Errorf("there is no argument %s, only flags", strings.Join(flag.Args(), " ")))
	}
	if wrong != nil {
		fmt.Fprintln(os.Stderr, "hits:", wrong)
		os.Exit(2)
	}
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	if err := run(ctx, o, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "hits: FAILED:", err)
		os.Exit(1)
	}
}

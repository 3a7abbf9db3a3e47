// SPDX-License-Identifier: Apache-2.0

// Chaos runs a pool as processes of this machine, lets writers work on it, and meanwhile kills compute shards and memory nodes with -9
// and stops compute shards in the middle of their writes for longer than the failure timeout. In the end every history must be
// linearizable, everything acknowledged must be there, nothing may be locked, and the memory files must be clean.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"farpool.dev/farpool/e2e/chaos"
	"farpool.dev/farpool/e2e/history"
)

// writers work all the time; more are at a shard at the moment it is stopped.
const writers = 4

type options struct {
	minutes  float64
	zombies  int
	seed     uint64
	binaries string
	memory   string
	protocol string
	tables   int
	nodes    int
	shards   int
	lease    time.Duration
	wire     string
	faults   []string
}

func run(ctx context.Context, o options) (err error) {
	directory, err := workspace()
	if err != nil {
		return err
	}
	fmt.Printf("chaos: %s, seed %d, %g minutes on %s, %d memory nodes, %d compute shards, %d writers\n", o.protocol, o.seed, o.minutes, o.wire, o.nodes, o.shards, writers)
	c, err := newCluster(directory, o)
	if err != nil {
		return err
	}
	var l *chaos.Load
	defer func() {
		err = errors.Join(err, c.stop())
		if err == nil {
			err = os.RemoveAll(directory)
			return
		}
		if l != nil {
			err = errors.Join(err, dump(filepath.Join(directory, "history.jsonl"), l.Recorder.Ops()))
		}
		fmt.Printf("logs, history and memory files are in %s; the same plan again: make chaos ARGS='--protocol %s --tables %d --wire %s --seed %d --minutes %g'\n", directory, o.protocol, o.tables, o.wire, o.seed, o.minutes)
	}()
	if err := c.start(ctx); err != nil {
		return err
	}
	if err := c.onWire(ctx, o.wire); err != nil {
		return err
	}

	begun := time.Now()
	l = chaos.NewLoad(c.target, "chaos:", writers)
	n := newNemesis(c, l, o.seed)
	stop := make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() { l.Work(ctx, o.seed, stop) })
	hurt := n.run(ctx, o)
	close(stop)
	all.Wait()
	if hurt != nil {
		return hurt
	}
	if err := l.Settle(ctx); err != nil {
		return err
	}
	worked := time.Since(begun)
	ops := l.Recorder.Ops()
	summary, err := history.Check(ops, 5*time.Minute)
	if err != nil {
		return err
	}
	// New lives of both sides have found their way onto it, too.
	if err := c.onWire(ctx, o.wire); err != nil {
		return err
	}
	for _, p := range c.shards {
		if err := p.end(); err != nil {
			return err
		}
	}
	for _, m := range c.nodes {
		if err := m.kill(); err != nil {
			return err
		}
	}
	if err := fsck(ctx, c, o.binaries); err != nil {
		return err
	}
	n.report(worked, summary)
	return nil
}

// fsck looks at every memory file. Its nodes are dead.
func fsck(ctx context.Context, c *cluster, binaries string) error {
	for _, m := range c.nodes {
		file := filepath.Join(c.directory, m.name+".memory")
		said, err := exec.CommandContext(ctx, filepath.Join(binaries, "farpool-fsck"), file).CombinedOutput()
		if err != nil {
			return fmt.Errorf("fsck of %s: %w\n%s", file, err, said)
		}
	}
	return nil
}

func dump(path string, ops []history.Op) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	lines := json.NewEncoder(file)
	for _, op := range ops {
		if err := lines.Encode(op); err != nil {
			return err
		}
	}
	return file.Close()
}

func (n *nemesis) report(worked time.Duration, summary history.Summary) {
	unknown := n.cluster.total(func(name string) bool { return name == "farpool_resp_unknown_outcomes_total" })
	fmt.Printf("chaos: passed after %.0f s of work\n", worked.Seconds())
	fmt.Printf("  faults       %d kills of compute shards, %d kills of memory nodes, %d stops (%d writes were under way: %s)\n",
		n.shardKills, n.nodeKills, n.stops, n.stopped.Caught, chaos.Counts(n.stopped.Learned))
	fmt.Printf("  stale writes 0 landed after a fence, over %d stops that were judged\n", n.stops-n.unjudged)
	fmt.Printf("  operations   %d answered, %d failed (%s)\n", n.load.Answered(), n.load.Refused(), chaos.Counts(n.load.Errors()))
	fmt.Printf("  history      %d keys, %d operations, %d of unknown outcome; %.0f UNKNOWNOUTCOME told\n", summary.Keys, summary.Ops, summary.Unknown, unknown)
	repairs := map[string]int{}
	for _, p := range n.cluster.all() {
		for name, value := range p.counted {
			if strings.Contains(name, "repair") || strings.Contains(name, "fence") || strings.Contains(name, "index_splits") {
				repairs[strings.TrimSuffix(strings.TrimPrefix(name, "farpool_"), "_total")] += int(value)
			}
		}
	}
	fmt.Printf("  metrics      %s\n", chaos.Counts(repairs))
}

// The kernel ties Pdeathsig to the thread that started the child, so everything that starts one stays on the main thread.
func init() { runtime.LockOSThread() }

type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}

func main() {
	var o options
	flag.Float64Var(&o.minutes, "minutes", 1, "how long there are faults")
	flag.IntVar(&o.zombies, "zombies", 0, "stops of compute shards that there must be, however long it takes; with -faults stop-shard nothing else happens")
	flag.DurationVar(&o.lease, "lease", 2*time.Second, "of a client; the failure timeout is half of it")
	flag.Uint64Var(&o.seed, "seed", uint64(time.Now().UnixNano()), "of the faults and of what the writers do")
	flag.StringVar(&o.wire, "wire", tcp, "that lanes go over: "+strings.Join(wires, ", "))
	flag.StringVar(&o.binaries, "bin", "build/release/apps", "directory of the daemons and of farpool-fsck")
	flag.StringVar(&o.memory, "memory", "64Mi", "that each memory node lends")
	flag.StringVar(&o.protocol, "protocol", "rcuckoo", "of the index: rcuckoo or race")
	flag.IntVar(&o.tables, "tables", 1, "with race: tables that a memory node's first one may be split into, a power of two")
	flag.IntVar(&o.nodes, "nodes", 2, "memory nodes")
	flag.IntVar(&o.shards, "shards", 3, "compute shards, at least 2")
	var all []string
	for _, fault := range faults {
		all = append(all, fault.name)
	}
	chosen := flag.String("faults", strings.Join(all, ","), "what may happen")
	flag.Parse()
	o.faults = strings.Split(*chosen, ",")
	for _, name := range o.faults {
		if !slices.Contains(all, name) {
			fmt.Fprintf(os.Stderr, "chaos: there is no fault %q, only %s\n", name, strings.Join(all, ", "))
			os.Exit(2)
		}
	}
	if !slices.Contains(wires, o.wire) {
		fmt.Fprintf(os.Stderr, "chaos: there is no wire %q, only %s\n", o.wire, strings.Join(wires, ", "))
		os.Exit(2)
	}
	if flag.NArg() > 0 || o.nodes < 1 || o.shards < 2 || o.minutes <= 0 {
		fmt.Fprintln(os.Stderr, "chaos: give at least one memory node, two compute shards, a time above 0, and nothing but flags")
		os.Exit(2)
	}
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	// What the driver says of connections that break is what is meant to happen here.
	redis.SetLogger(silence{})
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "chaos: FAILED:", err)
		os.Exit(1)
	}
}

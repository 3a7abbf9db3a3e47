// SPDX-License-Identifier: Apache-2.0

// Chaos runs a pool as processes of this machine, lets writers work on it, and meanwhile kills compute shards and memory nodes with -9
// and stops compute shards in the middle of their writes for longer than the failure timeout. In the end every history must be
// linearizable, everything acknowledged must be there, nothing may be locked, and the memory files must be clean. It does so with one
// protocol of the index after the other.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
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
	"farpool.dev/farpool/hack/local"
)

// writers work all the time; more are at a shard at the moment it is stopped.
const writers = 4

type options struct {
	local.Shape
	minutes float64
	zombies int
	seed    uint64
	faults  []string
}

// protocols that there are, and that a run without -protocol has.
var protocols = []string{"rcuckoo", "race", "outback"}

// each are the options of a run of each protocol that was asked for: the time and the stops are shared out among them, so that all
// together take as long as one alone. Only RACE has tables to be split.
func (o options) each() (runs []options, err error) {
	chosen := strings.Split(o.Protocol, ",")
	for _, protocol := range chosen {
		if !slices.Contains(protocols, protocol) {
			return nil, fmt.Errorf("there is no protocol %q, only %s", protocol, strings.Join(protocols, ", "))
		}
		one := o
		one.Protocol = protocol
		one.minutes /= float64(len(chosen))
		one.zombies = (o.zombies + len(chosen) - 1) / len(chosen)
		if protocol != "race" {
			one.Tables = 1
		}
		runs = append(runs, one)
	}
	return runs, nil
}

func run(ctx context.Context, o options) (err error) {
	directory, err := local.Workspace("chaos")
	if err != nil {
		return err
	}
	fmt.Printf("chaos: %s, seed %d, %g minutes on %s, %d memory nodes, %d compute shards, %d writers\n", o.Protocol, o.seed, o.minutes, o.Wire, o.Nodes, o.Shards, writers)
	c, err := local.NewCluster(directory, o.Shape)
	if err != nil {
		return err
	}
	var l *chaos.Load
	defer func() {
		err = errors.Join(err, c.Stop())
		if err == nil {
			err = os.RemoveAll(directory)
			return
		}
		if l != nil {
			err = errors.Join(err, dump(filepath.Join(directory, "history.jsonl"), l.Recorder.Ops()))
		}
		fmt.Printf("logs, history and memory files are in %s; the same plan again: make chaos ARGS='--protocol %s --tables %d --wire %s --seed %d --minutes %g'\n", directory, o.Protocol, o.Tables, o.Wire, o.seed, o.minutes)
	}()
	if err := c.Start(ctx); err != nil {
		return err
	}
	if err := c.OnWire(ctx, o.Wire); err != nil {
		return err
	}

	begun := time.Now()
	l = chaos.NewLoad(c.Target, "chaos:", writers)
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
	if err := c.OnWire(ctx, o.Wire); err != nil {
		return err
	}
	if err := c.Fsck(ctx); err != nil {
		return err
	}
	n.report(worked, summary)
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
	unknown := n.cluster.Total(func(name string) bool { return name == "farpool_resp_unknown_outcomes_total" })
	fmt.Printf("chaos: passed after %.0f s of work\n", worked.Seconds())
	fmt.Printf("  faults       %d kills of compute shards, %d kills of memory nodes, %d stops (%d writes were under way: %s)\n",
		n.shardKills, n.nodeKills, n.stops, n.stopped.Caught, chaos.Counts(n.stopped.Learned))
	if n.upgrades > 0 {
		fmt.Printf("  upgrades     %d changes of the version of a process; until every process was ready again after that of a memory node: %.1f s at most\n", n.upgrades, n.away.Seconds())
	}
	fmt.Printf("  stale writes 0 landed after a fence, over %d stops that were judged\n", n.stops-n.unjudged)
	fmt.Printf("  operations   %d answered, %d failed (%s)\n", n.load.Answered(), n.load.Refused(), chaos.Counts(n.load.Errors()))
	fmt.Printf("  history      %d keys, %d operations, %d of unknown outcome; %.0f UNKNOWNOUTCOME told\n", summary.Keys, summary.Ops, summary.Unknown, unknown)
	repairs := map[string]int{}
	for _, p := range n.cluster.All() {
		for name, value := range p.Counted {
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
	o := options{Shape: local.Shape{Binaries: "build/release/apps", Memory: "64Mi", Protocol: strings.Join(protocols, ","), Tables: 4096, Nodes: 2, Shards: 3, Lease: 2 * time.Second, Wire: local.TCP}}
	o.Flags()
	flag.Lookup("protocol").Usage = "the index protocol, or several, one after the other: " + strings.Join(protocols, ", ")
	flag.Float64Var(&o.minutes, "minutes", 1, "how long there are faults, with all protocols together")
	flag.IntVar(&o.zombies, "zombies", 0, "stops of compute shards that there must be, with all protocols together and however long it takes; with -faults stop-shard nothing else happens")
	flag.Uint64Var(&o.seed, "seed", uint64(time.Now().UnixNano()), "decides the faults and what the writers do")
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
	if o.Next == "" {
		o.Next = o.Binaries
	}
	runs, err := o.each()
	if err := errors.Join(err, o.Wrong()); err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		os.Exit(2)
	}
	if flag.NArg() > 0 || o.Shards < 2 || o.minutes <= 0 {
		fmt.Fprintln(os.Stderr, "chaos: give at least two compute shards, a time above 0, and nothing but flags")
		os.Exit(2)
	}
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	// What the driver says of connections that break is what is meant to happen here.
	redis.SetLogger(silence{})
	for _, one := range runs {
		if err := run(ctx, one); err != nil {
			fmt.Fprintf(os.Stderr, "chaos: FAILED with %s, seed %d: %v\n", one.Protocol, one.seed, err)
			os.Exit(1)
		}
	}
}

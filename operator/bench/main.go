// SPDX-License-Identifier: Apache-2.0

// Command bench measures the operator with many pools: its real binary against a real API server, with this process as the kubelets, the
// Deployment controller and the agents of the data plane.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"go.uber.org/zap/zapcore"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	"farpool.dev/farpool/api/v1alpha1"
)

type options struct {
	root       string
	pools      int
	nodes      int
	shards     int
	big        int
	namespaces int
	kills      int
	workers    int
	unlimited  bool
	idle       time.Duration
	within     time.Duration
	keep       string
	profiles   string
}

func main() {
	var o options
	flag.StringVar(&o.root, "root", ".", "root of the repository")
	flag.IntVar(&o.pools, "pools", 50, "pools")
	flag.IntVar(&o.nodes, "memory-nodes", 2, "memory nodes of each pool")
	flag.IntVar(&o.shards, "shards", 2, "compute shards of each pool")
	flag.IntVar(&o.big, "big", 0, "compute shards of one more pool; 0: there is none")
	flag.IntVar(&o.namespaces, "namespaces", 1, "namespaces that the pools are in")
	flag.IntVar(&o.kills, "kills", 10, "compute shards whose processes are killed")
	flag.IntVar(&o.workers, "workers", 4, "the operator's --workers")
	flag.BoolVar(&o.unlimited, "unlimited", false, "the scheduler and the Deployment controller ask the API server as often as they can, and not as those of Kubernetes do by default")
	flag.DurationVar(&o.idle, "idle", time.Minute, "how long nothing happens")
	flag.DurationVar(&o.within, "within", 30*time.Minute, "deadline of each step")
	flag.StringVar(&o.keep, "keep", "", "directory for the operator's binary and log; empty: one that is removed in the end")
	flag.StringVar(&o.profiles, "profiles", "", "directory for profiles of the operator's processor in each step but a restart, and of its heap and goroutines after it; empty: none are taken")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if _, err := run(ctx, o, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// step is one row of the table.
type step struct {
	name    string
	seconds float64
	did     *measurement
}

// run does every step and prints the table.
func run(ctx context.Context, o options, output io.Writer) (steps []step, err error) {
	ctrl.SetLogger(zap.New(zap.WriteTo(os.Stderr), zap.Level(zapcore.ErrorLevel)))
	directory := o.keep
	if directory == "" {
		if directory, err = os.MkdirTemp("", "farpool-bench-"); err != nil {
			return nil, err
		}
		defer os.RemoveAll(directory)
	}
	binary, err := buildOperator(ctx, o.root, directory)
	if err != nil {
		return nil, err
	}
	c, err := startCluster(ctx, o.root, !o.unlimited)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.stop()) }()
	arguments := []string{fmt.Sprintf("--workers=%d", o.workers)}
	operator, err := c.startOperator(ctx, binary, directory, arguments...)
	if err != nil {
		return nil, errors.Join(err, logOf(directory))
	}
	defer func() {
		if operator != nil {
			err = errors.Join(err, operator.stop())
		}
	}()

	fmt.Fprintf(output, "%d pools of %d memory nodes and %d compute shards in %d namespaces", o.pools, o.nodes, o.shards, o.namespaces)
	if o.big > 0 {
		fmt.Fprintf(output, ", and one of %d compute shards", o.big)
	}
	fmt.Fprintf(output, "; %d processors, %d workers.\n\n", runtime.NumCPU(), o.workers)
	fmt.Fprintln(output, "| step | s | reconciles | errors | writes | reads | p50 ms | p99 ms | max ms | CPU s | resident MiB | peak MiB | goroutines |")
	fmt.Fprintln(output, "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
	during := func(name string, act func() error) error {
		before, err := operator.measure(ctx)
		if err != nil {
			return err
		}
		stopProfile := operator.profileCPU(ctx, o.profiles, len(steps)+1, name)
		acted := act()
		profiled := stopProfile()
		if acted != nil {
			return errors.Join(fmt.Errorf("%s: %w", name, acted), logOf(directory))
		}
		if profiled != nil {
			return profiled
		}
		after, err := operator.measure(ctx)
		if err != nil {
			return err
		}
		steps = append(steps, row(output, name, before.at, after.since(before)))
		return operator.profile(ctx, o.profiles, len(steps), name)
	}

	var pools []types.NamespacedName
	converge := func() error {
		return await(ctx, o.within, "all pools serve", func(ctx context.Context) (string, error) {
			count, example, err := c.unsettled(ctx, pools)
			if err != nil || count == 0 {
				return "", err
			}
			return fmt.Sprintf("%d of %d do not, such as %s", count, len(pools), example), nil
		})
	}
	// quiet waits for what follows a change, such as statuses that say since when all is well.
	quiet := func() error { return c.awaitQuiet(ctx, operator, o.within) }
	if err := during("all pools made", func() error {
		if pools, err = c.createPools(ctx, o); err != nil {
			return err
		}
		return errors.Join(converge(), quiet())
	}); err != nil {
		return steps, err
	}
	idle := func() error { return pause(ctx, o.idle) }
	if err := during("idle", idle); err != nil {
		return steps, err
	}
	if err := during("one pool scaled", func() error {
		if err := c.scale(ctx, pools[0], int32(o.shards+2)); err != nil {
			return err
		}
		return errors.Join(converge(), quiet())
	}); err != nil {
		return steps, err
	}
	if err := during(fmt.Sprintf("%d shards killed", o.kills), func() error {
		if err := c.killShards(ctx, o.kills); err != nil {
			return err
		}
		return errors.Join(converge(), c.awaitRepairs(ctx, o.within), quiet())
	}); err != nil {
		return steps, err
	}
	started := time.Now()
	err = operator.stop()
	operator = nil
	if err != nil {
		return steps, err
	}
	if operator, err = c.startOperator(ctx, binary, directory, arguments...); err != nil {
		return steps, errors.Join(err, logOf(directory))
	}
	// Every pool is looked at, and every process heard of.
	if err := await(ctx, o.within, "the restarted operator looks at all pools", func(ctx context.Context) (string, error) {
		m, err := operator.measure(ctx)
		if err != nil || m.reconciles >= float64(len(pools)) {
			return "", err
		}
		return fmt.Sprintf("%.0f reconciles", m.reconciles), nil
	}); err != nil {
		return steps, err
	}
	if err := errors.Join(converge(), quiet()); err != nil {
		return steps, err
	}
	restarted, err := operator.measure(ctx)
	if err != nil {
		return steps, err
	}
	steps = append(steps, row(output, "operator restarted", started, restarted))
	if err := operator.profile(ctx, o.profiles, len(steps), "operator restarted"); err != nil {
		return steps, err
	}
	return steps, during("idle", idle)
}

func row(output io.Writer, name string, since time.Time, did *measurement) step {
	const mebi = 1 << 20
	s := step{name: name, seconds: did.at.Sub(since).Seconds(), did: did}
	fmt.Fprintf(output, "| %s | %.1f | %.0f | %.0f | %.0f | %.0f | ≤ %g | ≤ %g | ≤ %g | %.1f | %.0f | %.0f | %.0f |\n", name, s.seconds, did.reconciles, did.failures, did.writes, did.reads,
		1000*did.quantile(0.5), 1000*did.quantile(0.99), 1000*did.quantile(1), did.cpu, did.resident/mebi, did.peak/mebi, did.goroutines)
	return s
}

// logOf is the end of the operator's log, as an error to be told beside another.
func logOf(directory string) error {
	data, err := os.ReadFile(filepath.Join(directory, "operator.log"))
	if err != nil {
		return err
	}
	const most = 4000
	return fmt.Errorf("the operator's log ends with\n%s", strings.ToValidUTF8(string(data[max(0, len(data)-most):]), ""))
}

func pause(ctx context.Context, long time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(long):
		return nil
	}
}

// createPools makes namespaces and pools.
func (c *cluster) createPools(ctx context.Context, o options) ([]types.NamespacedName, error) {
	for i := range o.namespaces {
		if err := c.client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("pools-%d", i)}}); err != nil {
			return nil, err
		}
	}
	var pools []types.NamespacedName
	add := func(name string, namespace int, shards int32) error {
		pool := &v1alpha1.KVPool{
			ObjectMeta: metav1.ObjectMeta{Namespace: fmt.Sprintf("pools-%d", namespace), Name: name},
			Spec: v1alpha1.KVPoolSpec{
				Memory:  v1alpha1.MemorySpec{Pools: []v1alpha1.MemoryPool{{Name: "memory", Replicas: int32(o.nodes), Lend: resource.MustParse("256Mi")}}},
				Compute: &v1alpha1.ComputeSpec{Pools: []v1alpha1.ComputePool{{Name: "shards", Replicas: shards}}},
				Network: v1alpha1.NetworkSpec{Transport: v1alpha1.TransportTCP},
			},
		}
		if sessions := shards + 2; sessions > 256 { // one for each shard's worker, and for shards that take another's place
			pool.Spec.Limits = &v1alpha1.LimitsSpec{MaxSessions: &sessions}
		}
		if err := c.client.Create(ctx, pool); err != nil {
			return fmt.Errorf("create pool %s: %w", name, err)
		}
		pools = append(pools, client.ObjectKeyFromObject(pool))
		return nil
	}
	for i := range o.pools {
		if err := add(fmt.Sprintf("pool-%04d", i), i%o.namespaces, int32(o.shards)); err != nil {
			return nil, err
		}
	}
	if o.big > 0 {
		if err := add("big", 0, int32(o.big)); err != nil {
			return nil, err
		}
	}
	return pools, nil
}

// scale changes the number of compute shards of a pool.
func (c *cluster) scale(ctx context.Context, key types.NamespacedName, shards int32) error {
	pool := &v1alpha1.KVPool{}
	if err := c.client.Get(ctx, key, pool); err != nil {
		return err
	}
	before := pool.DeepCopy()
	pool.Spec.Compute.Pools[0].Replicas = shards
	return c.client.Patch(ctx, pool, client.MergeFrom(before))
}

// killShards kills so many compute shards' processes.
func (c *cluster) killShards(ctx context.Context, count int) error {
	c.mutex.Lock()
	var victims []types.NamespacedName
	for key, process := range c.processes {
		if facts, _ := process.snapshot(); len(victims) < count && facts.GetComputeShard() != nil {
			victims = append(victims, key)
		}
	}
	c.mutex.Unlock()
	var killed sync.WaitGroup
	failures := make([]error, len(victims))
	for i, victim := range victims {
		killed.Go(func() { failures[i] = c.kill(ctx, victim) })
	}
	killed.Wait()
	return errors.Join(failures...)
}

// awaitRepairs waits until every RepairLease is complete.
func (c *cluster) awaitRepairs(ctx context.Context, within time.Duration) error {
	return await(ctx, within, "repairs", func(ctx context.Context) (string, error) {
		var leases v1alpha1.RepairLeaseList
		if err := c.cached.List(ctx, &leases); err != nil {
			return "", err
		}
		open := 0
		for _, lease := range leases.Items {
			if lease.Status.CompletedAt == nil {
				open++
			}
		}
		if len(leases.Items) > 0 && open == 0 {
			return "", nil
		}
		return fmt.Sprintf("%d of %d RepairLeases are open", open, len(leases.Items)), nil
	})
}

// awaitQuiet waits until the operator reconciles nothing for some seconds.
func (c *cluster) awaitQuiet(ctx context.Context, operator *operatorProcess, within time.Duration) error {
	const still = 5 * time.Second
	var last float64
	since := time.Now()
	return await(ctx, within, "quiet", func(ctx context.Context) (string, error) {
		m, err := operator.measure(ctx)
		if err != nil {
			return "", err
		}
		if m.reconciles != last {
			last, since = m.reconciles, time.Now()
		}
		if time.Since(since) >= still {
			return "", nil
		}
		return fmt.Sprintf("%.0f reconciles, the last within %s", last, still), nil
	})
}

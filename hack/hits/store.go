// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/redis/go-redis/v9"

	farpoolv1alpha1 "farpool.dev/farpool/api/gen/farpool/v1alpha1"
	"farpool.dev/farpool/e2e/chaos"
	"farpool.dev/farpool/e2e/workload"
	"farpool.dev/farpool/hack/local"
)

const redisName = "redis-server" // as the tables have it

// A store is what traces are replayed against: connections to a server that removes keys by a policy.
type store struct {
	connections []*redis.Client
	stop        func() error
}

func (s *store) close() error {
	var errs []error
	for _, c := range s.connections {
		errs = append(errs, c.Close())
	}
	return errors.Join(append(errs, s.stop())...)
}

// connect opens connections, which take turns over what the target lists.
func connect(target workload.Target, connections int) (all []*redis.Client) {
	for i := range connections {
		all = append(all, target.Connect(i))
	}
	return all
}

// evictionOf returns the policy of a shard map by the name that Redis gives it.
func evictionOf(policy string) (farpoolv1alpha1.Eviction, bool) {
	number, known := farpoolv1alpha1.Eviction_value["EVICTION_"+strings.ToUpper(strings.ReplaceAll(policy, "-", "_"))]
	return farpoolv1alpha1.Eviction(number), known
}

// startPool starts a pool of processes with a policy. The caller closes it.
func startPool(ctx context.Context, shape local.Shape, policy string, connections int) (*store, error) {
	eviction, known := evictionOf(policy)
	if !known {
		return nil, fmt.Errorf("there is no policy %q", policy)
	}
	shape.Eviction = eviction
	directory, err := local.Workspace("hits")
	if err != nil {
		return nil, err
	}
	c, err := local.NewCluster(directory, shape)
	if err != nil {
		return nil, err
	}
	s := &store{stop: func() error { return errors.Join(c.Stop(), os.RemoveAll(directory)) }}
	if err := c.Start(ctx); err != nil {
		return nil, errors.Join(err, s.close())
	}
	s.connections = connect(c.Target, connections)
	return s, nil
}

// startRedis starts a redis-server without a limit, on a Unix socket of its own. The caller closes it.
func startRedis(ctx context.Context, program string, connections int) (*store, error) {
	directory, err := local.Workspace("hits")
	if err != nil {
		return nil, err
	}
	socket := filepath.Join(directory, "redis.sock")
	server := exec.Command(program, "--port", "0", "--unixsocket", socket, "--save", "", "--appendonly", "no", "--dir", directory)
	server.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := server.Start(); err != nil {
		return nil, fmt.Errorf("%s does not start: %w", program, err)
	}
	s := &store{stop: func() error {
		_ = server.Process.Kill()
		_ = server.Wait()
		return os.RemoveAll(directory)
	}}
	// It listens as soon as the socket is there.
	if err := chaos.Eventually(ctx, chaos.Patience, func() error { _, err := os.Stat(socket); return err }); err != nil {
		return nil, errors.Join(fmt.Errorf("%s does not listen: %w", program, err), s.close())
	}
	s.connections = connect(workload.Target{Shards: []string{socket}}, connections)
	return s, nil
}

// cold is where the numbers of keys begin that fill a store, and that no trace asks for.
const cold = 1 << 24

// fill writes the cold keys from, from+1, … up to, a batch at a time on one connection after the other.
func (s *store) fill(ctx context.Context, size func(key uint32) int, from, to int) error {
	for i := 0; from < to; i++ {
		pipeline := s.connections[i%len(s.connections)].Pipeline()
		for ; from < to && pipeline.Len() < batch; from++ {
			number := uint32(cold + from)
			pipeline.Set(ctx, key(number), value(number, size(number)), 0)
		}
		if _, err := pipeline.Exec(ctx); err != nil {
			return fmt.Errorf("the store takes no keys that fill it: %w", err)
		}
	}
	return nil
}

// limit gives redis-server a policy and as much memory as it takes to hold so many keys, and fills it. Connections' buffers take a part of the memory, so it tries.
func (s *store) limit(ctx context.Context, size func(key uint32) int, keys int, policy string) error {
	const tries = 6
	client := s.connections[0]
	if err := s.fill(ctx, size, 0, keys); err != nil {
		return err
	}
	said, err := client.Info(ctx, "memory").Result()
	if err != nil {
		return err
	}
	memory, err := strconv.Atoi(infoField(said, "used_memory"))
	if err != nil {
		return fmt.Errorf("used_memory in what INFO of redis-server says: %w", err)
	}
	each := memory / keys
	if err := client.ConfigSet(ctx, "maxmemory-policy", policy).Err(); err != nil {
		return err
	}
	for try := range tries {
		if err := client.ConfigSet(ctx, "maxmemory", strconv.Itoa(memory)).Err(); err != nil {
			return err
		}
		if err := s.fill(ctx, size, (try+1)*keys, (try+2)*keys); err != nil {
			return err
		}
		held, err := client.DBSize(ctx).Result()
		if err != nil {
			return err
		}
		memory += (keys - int(held)) * each
	}
	return nil
}

// infoField returns a field of what INFO says; empty: it has none.
func infoField(said, name string) string {
	for line := range strings.Lines(said) {
		if rest, found := strings.CutPrefix(line, name+":"); found {
			return strings.TrimSpace(rest)
		}
	}
	return ""
}

// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"farpool.dev/farpool/e2e/history"
	"farpool.dev/farpool/e2e/workload"
)

const writers = 4

// redisTarget is a store whose histories are known to be right.
func redisTarget(t *testing.T) workload.Target {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s.sock")
	server := exec.Command("redis-server", "--port", "0", "--unixsocket", socket, "--save", "")
	if err := server.Start(); err != nil {
		t.Fatalf("redis-server, which Debian's package of that name brings, does not start: %v", err)
	}
	t.Cleanup(func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	})
	err := Eventually(t.Context(), Patience, func() error {
		connection, err := net.Dial("unix", socket)
		if err == nil {
			err = connection.Close()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return workload.Target{Shards: []string{socket, socket, socket}}
}

func TestWhatTheWritersSawIsJudged(t *testing.T) {
	target := redisTarget(t)
	for name, damage := range map[string]func(ctx context.Context, l *Load) error{
		"nothing": nil,
		"a lost write": func(ctx context.Context, l *Load) error {
			return Eventually(ctx, Patience, func() error {
				client := target.Connect(0)
				defer func() { _ = client.Close() }()
				// Whatever cold key is there was acknowledged.
				for key := range uint32(coldKeys) {
					if n, err := client.Del(ctx, l.Sizes.Key(l.prefix, key)).Result(); n == 1 || err != nil {
						return err
					}
				}
				return errors.New("no cold key has been written yet")
			})
		},
		"a lost increment": func(ctx context.Context, l *Load) error {
			client := target.Connect(0)
			defer func() { _ = client.Close() }()
			return client.Decr(ctx, l.Sizes.Key(l.prefix, l.count.members[0].key.Load())).Err()
		},
		"a lost element": func(ctx context.Context, l *Load) error {
			client := target.Connect(0)
			defer func() { _ = client.Close() }()
			for key, read := range l.used() {
				if read != history.List {
					continue
				}
				name := l.Sizes.Key(l.prefix, key)
				if value := client.Get(ctx, name).Val(); len(value) > 0 {
					return client.Set(ctx, name, value[:len(value)-8], 0).Err()
				}
			}
			return errors.New("no list has been written to")
		},
	} {
		t.Run(name, func(t *testing.T) {
			client := target.Connect(0)
			defer func() { _ = client.Close() }()
			if err := client.FlushAll(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
			l := NewLoad(target, "chaos:", writers)
			stop := make(chan struct{})
			var all sync.WaitGroup
			all.Go(func() { l.Work(t.Context(), 1, stop) })
			err := l.Progress(t.Context(), 5000)
			close(stop)
			all.Wait()
			if err != nil {
				t.Fatal(err)
			}
			if damage != nil {
				if err := damage(t.Context(), l); err != nil {
					t.Fatal(err)
				}
			}
			if err := l.Settle(t.Context()); err != nil {
				t.Fatal(err)
			}
			sum, err := history.Check(l.Recorder.Ops(), time.Minute)
			var v *history.Violation
			if damage == nil && err != nil || damage != nil && !errors.As(err, &v) {
				t.Fatalf("%+v: %v", sum, err)
			}
			if damage == nil && (sum.Keys < coldKeys || sum.Unknown != 0 || l.Refused() != 0) {
				t.Fatalf("%+v, %d failed", sum, l.Refused())
			}
		})
	}
}

func TestKeysAreRetired(t *testing.T) {
	l := NewLoad(workload.Target{}, "chaos:", 1)
	random := rand.New(rand.NewPCG(1, 1))
	before := len(l.used())
	for range 20 * retireAfter {
		l.draw(random)
	}
	worn := len(l.used())
	if worn <= before {
		t.Fatalf("%d keys after as before", worn)
	}
	for _, m := range l.hot.members {
		m.unknowns.Store(retireUnknowns)
	}
	for range 200 {
		l.draw(random)
	}
	for _, m := range l.hot.members {
		if m.unknowns.Load() != 0 {
			t.Fatal("a key with many unknown outcomes stays in use")
		}
	}
}

func TestSamplesOfOneNameAreAddedUp(t *testing.T) {
	got, err := samples(strings.NewReader("# HELP a_total text with words 7\n# TYPE a_total counter\na_total{x=\"1 2\"} 3\na_total{x=\"3\"} 4\nb 1e+2\n"))
	if err != nil || got["a_total"] != 7 || got["b"] != 100 || len(got) != 2 {
		t.Fatal(got, err)
	}
	if _, err := samples(strings.NewReader("a_total x\n")); err == nil {
		t.Fatal("a word passed for a number")
	}
}

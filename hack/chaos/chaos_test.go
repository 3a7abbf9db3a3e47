// SPDX-License-Identifier: Apache-2.0

package main

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
	err := eventually(t.Context(), patience, func() error {
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
	for name, damage := range map[string]func(ctx context.Context, l *load) error{
		"nothing": nil,
		"a lost write": func(ctx context.Context, l *load) error {
			return eventually(ctx, patience, func() error {
				client := target.Connect(0)
				defer func() { _ = client.Close() }()
				// Whatever cold key is there was acknowledged.
				for key := range uint32(coldKeys) {
					if n, err := client.Del(ctx, l.sizes.Key(keyPrefix, key)).Result(); n == 1 || err != nil {
						return err
					}
				}
				return errors.New("no cold key has been written yet")
			})
		},
		"a lost increment": func(ctx context.Context, l *load) error {
			client := target.Connect(0)
			defer func() { _ = client.Close() }()
			return client.Decr(ctx, l.sizes.Key(keyPrefix, l.count.members[0].key.Load())).Err()
		},
		"a lost element": func(ctx context.Context, l *load) error {
			client := target.Connect(0)
			defer func() { _ = client.Close() }()
			for key, read := range l.used() {
				if read != history.List {
					continue
				}
				name := l.sizes.Key(keyPrefix, key)
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
			l := newLoad(&cluster{target: target}, writers)
			stop := make(chan struct{})
			var all sync.WaitGroup
			for writer := range writers {
				all.Go(func() { l.write(t.Context(), writer, rand.New(rand.NewPCG(1, uint64(writer))), stop) })
			}
			err := eventually(t.Context(), patience, func() error {
				if l.answered.Load() < 5000 {
					return errors.New("the writers hang")
				}
				return nil
			})
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
			if err := l.settle(t.Context()); err != nil {
				t.Fatal(err)
			}
			sum, err := history.Check(l.recorder.Ops(), time.Minute)
			var v *history.Violation
			if damage == nil && err != nil || damage != nil && !errors.As(err, &v) {
				t.Fatalf("%+v: %v", sum, err)
			}
			if damage == nil && (sum.Keys < coldKeys || sum.Unknown != 0 || l.refused.Load() != 0) {
				t.Fatalf("%+v, %d failed", sum, l.refused.Load())
			}
		})
	}
}

func TestKeysAreRetired(t *testing.T) {
	l := newLoad(&cluster{}, 1)
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

func TestAProcessIsCountedOverAllItsLives(t *testing.T) {
	p := process{name: "p", args: []string{"sleep", "600"}, metrics: "127.0.0.1:1", log: filepath.Join(t.TempDir(), "log"), counted: map[string]float64{"a_total": 2}}
	for range 2 {
		if err := p.start(); err != nil {
			t.Fatal(err)
		}
		if !p.alive() {
			t.Fatal("it is not alive")
		}
		if err := p.kill(); err != nil {
			t.Fatal(err)
		}
		if p.alive() {
			t.Fatal("it has been killed and is alive")
		}
	}
	if p.lives != 2 || p.counted["a_total"] != 2 {
		t.Fatal(p.lives, p.counted)
	}
	if err := p.ready(t.Context()); err == nil || !strings.Contains(err.Error(), "ended on its own") {
		t.Fatalf("got %v", err)
	}
}

// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"farpool.dev/farpool/e2e/history"
)

// startRedis runs redis-server on a Unix socket of its own: the store whose histories are known to be right.
func startRedis(t *testing.T) Target {
	t.Helper()
	dir := t.TempDir()
	socket := filepath.Join(dir, "redis.sock")
	var output strings.Builder
	server := exec.Command("redis-server", "--port", "0", "--unixsocket", socket, "--save", "", "--dir", dir)
	server.Stdout, server.Stderr = &output, &output
	if err := server.Start(); err != nil {
		t.Fatalf("redis-server, which Debian's package of that name brings, does not start: %v", err)
	}
	t.Cleanup(func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	})
	client := redis.NewClient(&redis.Options{Network: "unix", Addr: socket})
	defer func() { _ = client.Close() }()
	deadline := time.Now().Add(20 * time.Second)
	for client.Ping(t.Context()).Err() != nil {
		if time.Now().After(deadline) {
			t.Fatalf("redis-server does not answer on %s: %s", socket, output.String())
		}
		time.Sleep(10 * time.Millisecond)
	}
	// A driver takes an address with a slash for a Unix socket.
	return Target{Shards: []string{socket, socket, socket}}
}

func TestAStoreThatIsRightPasses(t *testing.T) {
	target := startRedis(t)
	run, err := NewRun(target, 16, "k", DefaultSizes)
	if err != nil {
		t.Fatal(err)
	}
	defer run.Close()
	const keys = 20000
	run.WriteAll(t.Context(), keys)
	if got := run.ReadAll(t.Context(), keys); got != keys {
		t.Fatalf("%d of %d keys are there", got, keys)
	}
	run.Mixed(t.Context(), 32, 500, time.Minute)
	if err := run.Errors.Err(); err != nil {
		t.Fatal(err)
	}
	sum, err := run.Check(time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if sum.Keys != keys || sum.Ops < 2*keys+16*500 || sum.Unknown != 0 {
		t.Fatalf("the history holds %+v", sum)
	}

	if sum, err := Increments(t.Context(), target, "sum", 2000, 3); err != nil || sum != 6000 {
		t.Fatal(sum, err)
	}
	if err := Races(t.Context(), target, "race", 50, 9); err != nil {
		t.Fatal(err)
	}
}

// tamper changes a key behind the workers' back, as a store that lost or mixed up a write would.
func tamper(t *testing.T, target Target, f func(ctx context.Context, c *redis.Client) error) {
	t.Helper()
	c := target.Connect(0)
	defer func() { _ = c.Close() }()
	if err := f(t.Context(), c); err != nil {
		t.Fatal(err)
	}
}

// flip changes the last bit of a value.
func flip(ctx context.Context, c *redis.Client, key string) error {
	value, err := c.Get(ctx, key).Bytes()
	if err != nil {
		return err
	}
	value[len(value)-1] ^= 1
	return c.Set(ctx, key, value, 0).Err()
}

func TestAStoreThatIsWrongFails(t *testing.T) {
	target := startRedis(t)
	// Long enough that there is always a byte beyond tag and key.
	sizes := Sizes{MinKey: 12, MaxKey: 64, MinValue: 100, MaxValue: 400}
	for name, c := range map[string]struct {
		corrupt func(ctx context.Context, c *redis.Client, before string, key string) error
		torn    bool
	}{
		"a lost write": {corrupt: func(ctx context.Context, c *redis.Client, _, key string) error { return c.Del(ctx, key).Err() }},
		"a stale value": {corrupt: func(ctx context.Context, c *redis.Client, before, key string) error {
			return c.Set(ctx, key, before, 0).Err()
		}},
		"a flipped byte": {torn: true, corrupt: func(ctx context.Context, c *redis.Client, _, key string) error {
			return flip(ctx, c, key)
		}},
		"a short value": {torn: true, corrupt: func(ctx context.Context, c *redis.Client, _, key string) error {
			return c.Set(ctx, key, "short", 0).Err()
		}},
		"a longer value": {torn: true, corrupt: func(ctx context.Context, c *redis.Client, _, key string) error {
			return c.Append(ctx, key, "x").Err()
		}},
		"another key's value": {torn: true, corrupt: func(ctx context.Context, c *redis.Client, _, key string) error {
			return c.Set(ctx, key, sizes.Value(4, 9), 0).Err()
		}},
	} {
		t.Run(name, func(t *testing.T) {
			run, err := NewRun(target, 4, name, sizes)
			if err != nil {
				t.Fatal(err)
			}
			defer run.Close()
			run.WriteAll(t.Context(), 50)
			key := sizes.Key(name, 3)
			var before string
			tamper(t, target, func(ctx context.Context, c *redis.Client) error { before, err = c.Get(ctx, key).Result(); return err })
			_, _ = run.workers[0].Do(t.Context(), history.Set, 3)
			if _, err := run.Check(time.Minute); err != nil {
				t.Fatalf("before the damage: %v", err)
			}
			tamper(t, target, func(ctx context.Context, client *redis.Client) error { return c.corrupt(ctx, client, before, key) })
			run.ReadAll(t.Context(), 50)
			if c.torn {
				if run.Errors.Count() != 1 || run.Errors.Kinds()["corrupt"] != 1 {
					t.Fatalf("%d reads failed: %v", run.Errors.Count(), run.Errors.Err())
				}
				return
			}
			var v *history.Violation
			if _, err := run.Check(time.Minute); !errors.As(err, &v) || v.Key != 3 {
				t.Fatalf("want a violation of key 3, got %v", err)
			}
		})
	}
}

func TestErrorsOfTheStoreAreToldApart(t *testing.T) {
	target := startRedis(t)
	run, err := NewRun(target, 1, "k", DefaultSizes)
	if err != nil {
		t.Fatal(err)
	}
	defer run.Close()
	tamper(t, target, func(ctx context.Context, c *redis.Client) error {
		return c.LPush(ctx, DefaultSizes.Key("k", 7), "x").Err()
	})
	_, _ = run.Do(t.Context(), history.Get, 7)
	if run.Errors.Kinds()["WRONGTYPE"] != 1 {
		t.Fatalf("%v", run.Errors.Kinds())
	}
}

func TestLostIncrementsAreFound(t *testing.T) {
	for name, c := range map[string]struct {
		sums  [][]int64
		exact bool
	}{
		"exact":              {[][]int64{{1, 3}, {2, 4}}, true},
		"one twice":          {[][]int64{{1, 2}, {2, 4}}, false},
		"one missing":        {[][]int64{{1, 2}, {3}}, false},
		"backwards":          {[][]int64{{2, 1}, {3, 4}}, false},
		"beyond the total":   {[][]int64{{1, 2}, {3, 5}}, false},
		"a sum of something": {[][]int64{{0, 1}, {2, 3}}, false},
	} {
		if err := exactSums(c.sums, 4); (err == nil) != c.exact {
			t.Errorf("%s: %v", name, err)
		}
	}
	target := startRedis(t)
	tamper(t, target, func(ctx context.Context, c *redis.Client) error { return c.Set(ctx, "sum", 1, 0).Err() })
	if _, err := Increments(t.Context(), target, "sum", 10, 1); err == nil {
		t.Fatal("a sum that began at 1 passed")
	}
}

func TestRacesWithoutAWinnerAreFound(t *testing.T) {
	target := startRedis(t)
	tamper(t, target, func(ctx context.Context, c *redis.Client) error { return c.Set(ctx, "race0", "x", 0).Err() })
	if err := Races(t.Context(), target, "race", 1, 3); err == nil || !strings.Contains(err.Error(), "0 winners") {
		t.Fatalf("got %v", err)
	}
}

func TestBrokenConnectionsAreCountedAndLeaveOpenIntervals(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s.sock")
	run, err := NewRun(Target{Shards: []string{socket}}, 1, "k", DefaultSizes)
	if err != nil {
		t.Fatal(err)
	}
	defer run.Close()
	if _, err := run.Do(t.Context(), history.Set, 1); err == nil {
		t.Fatal("a write to nobody succeeded")
	}
	if run.Errors.Count() != 1 || run.Errors.Kinds()["connection"] != 1 || len(run.Ops()) != 0 {
		t.Fatalf("%d errors, %+v: what was never sent has no interval", run.Errors.Count(), run.Ops())
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	// The driver's greeting is answered with an error, which it bears; then the command is taken and not answered.
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			reader := bufio.NewReader(connection)
			for {
				line, err := reader.ReadString('\n')
				if err != nil || strings.HasPrefix(strings.ToLower(line), "set\r") {
					break
				}
				if strings.HasPrefix(line, "*") {
					_, _ = connection.Write([]byte("-ERR unknown command\r\n"))
				}
			}
			_ = connection.Close()
		}
	}()
	// Another driver: the first remembers for a while that nobody was there.
	second, err := NewRun(Target{Shards: []string{socket}}, 1, "k", DefaultSizes)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	if _, err := second.Do(t.Context(), history.Set, 1); err == nil {
		t.Fatal("a write that nobody answered succeeded")
	}
	if ops := second.Ops(); len(ops) != 1 || !ops[0].Unknown {
		t.Fatalf("%+v", ops)
	}
}

func TestCountersAndListsAreRead(t *testing.T) {
	target := startRedis(t)
	run, err := NewRun(target, 4, "k", DefaultSizes)
	if err != nil {
		t.Fatal(err)
	}
	defer run.Close()
	kinds := [][]history.Kind{{history.Incr, history.Count}, {history.Append, history.List}}
	run.each(t.Context(), func(ctx context.Context, _ int, w *Worker, random *rand.Rand) {
		for range 300 {
			key := random.Uint32N(4)
			_, _ = w.Do(ctx, kinds[key%2][random.IntN(2)], key)
		}
	})
	if err := run.Errors.Err(); err != nil {
		t.Fatal(err)
	}
	if sum, err := run.Check(time.Minute); err != nil || sum.Ops != 1200 {
		t.Fatal(sum, err)
	}
	for key, damage := range []func(ctx context.Context, c *redis.Client, key string) error{
		func(ctx context.Context, c *redis.Client, key string) error { return c.Incr(ctx, key).Err() },
		func(ctx context.Context, c *redis.Client, key string) error {
			return c.SetRange(ctx, key, 8, "damaged.").Err()
		},
	} {
		number := uint32(key)
		tamper(t, target, func(ctx context.Context, c *redis.Client) error {
			return damage(ctx, c, DefaultSizes.Key("k", number))
		})
		_, _ = run.Do(t.Context(), kinds[key][1], number)
		ops := slices.DeleteFunc(run.Ops(), func(op history.Op) bool { return op.Key != number })
		var v *history.Violation
		if _, err := history.Check(ops, time.Minute); !errors.As(err, &v) || v.Key != number {
			t.Fatalf("want a violation of key %d, got %v", number, err)
		}
	}
}

// answer is an error that a store sent.
type answer string

func (a answer) Error() string { return string(a) }
func (a answer) RedisError()   {}

func TestOnlySomeAnswersPromiseThatNothingWasDone(t *testing.T) {
	for text, promised := range map[string]bool{
		"TRYAGAIN nothing was done: x": true, "LOCKED x": true, "TIMEOUT x": true, "OOM x": true,
		"UNKNOWNOUTCOME x": false, "PARTIAL x": false, "ERR x": false,
	} {
		if err := fmt.Errorf("SET: %w", answer(text)); NotDone(err) != promised {
			t.Errorf("%s: want %t", text, promised)
		}
	}
	if NotDone(nil) || NotDone(&net.OpError{Op: "read", Err: io.EOF}) || !NotDone(&net.OpError{Op: "dial", Err: io.EOF}) {
		t.Error("connections are judged wrongly")
	}
}

func TestSizesSpread(t *testing.T) {
	s := DefaultSizes
	short, long := false, false
	for i := range uint32(2000) {
		k, v := len(s.Key("k", i)), len(s.Value(i, history.Tag(i+1)))
		if k < 1 || k > s.MaxKey || v < s.MinValue || v > s.MaxValue {
			t.Fatalf("key %d: %d and %d bytes", i, k, v)
		}
		short, long = short || v < 32, long || v > 3500
		if tag, err := s.Tag(i, s.Value(i, history.Tag(i+1))); err != nil || tag != history.Tag(i+1) {
			t.Fatal(tag, err)
		}
	}
	if !short || !long {
		t.Fatal("lengths do not reach their bounds")
	}
	if _, err := NewRun(Target{Shards: []string{"x"}}, 1, "k", Sizes{}); err == nil {
		t.Fatal("empty ranges were taken")
	}
	if _, err := NewRun(Target{}, 1, "k", s); err == nil {
		t.Fatal("no address was taken")
	}
}

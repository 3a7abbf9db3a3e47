// SPDX-License-Identifier: Apache-2.0

//go:build daemons

package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
)

// goDriver is a driver whose language is that of TestDrivers.
type goDriver struct {
	name, module string
	use          func(t *testing.T, at shards)
}

var goDrivers = []goDriver{
	{"go-redis", "github.com/redis/go-redis/v9", useGoRedis},
	{"rueidis", "github.com/redis/rueidis", useRueidis},
	{"redigo", "github.com/gomodule/redigo", useRedigo},
}

// version is that of the driver's module in go.mod.
func (d goDriver) version(t *testing.T) string {
	t.Helper()
	modules, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(modules), d.module+" v")
	version, _, _ := strings.Cut(after, "\n")
	return version
}

const (
	binary = "\x00\xff\r\n*3\r\n"
	oneKey = "all commands of a transaction of this pool have one key"
	noDB   = "DB index is out of range"
)

// unknown is what a pool says of a command that it does not have.
func unknown(command string) string { return "unknown command '" + command + "'" }

// wants returns a check that a value without an error is the one that is wanted.
func wants[V any](t *testing.T, wanted V) func(got V, err error) {
	return func(got V, err error) {
		t.Helper()
		if err != nil || fmt.Sprint(got) != fmt.Sprint(wanted) {
			t.Fatalf("got %q, and wanted %q; error: %v", fmt.Sprint(got), fmt.Sprint(wanted), err)
		}
	}
}

// refused fails a test unless an error has these words, and is of the driver's type.
func refused[E error](t *testing.T, err error, words string) {
	t.Helper()
	var own E
	if err == nil || !strings.Contains(err.Error(), words) || !errors.As(err, &own) {
		t.Fatalf("got the error %v (%T), and wanted a %s with %q", err, err, reflect.TypeFor[E](), words)
	}
}

// together calls a function from 8 goroutines, 25 times each.
func together(t *testing.T, f func() error) {
	t.Helper()
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 25 {
				if err := f(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
}

func scanned(prefix string) []string {
	var keys []string
	for i := range 300 {
		keys = append(keys, fmt.Sprint(prefix, ":scan:", i))
	}
	return keys
}

// sameKeys fails a test unless a scan has returned these keys, in any order and some of them twice.
func sameKeys(t *testing.T, got, wanted []string) {
	t.Helper()
	left := map[string]bool{}
	for _, key := range wanted {
		left[key] = true
	}
	for _, key := range got {
		if _, known := left[key]; !known {
			t.Fatalf("a scan has returned %q", key)
		}
		left[key] = false
	}
	for key, missing := range left {
		if missing {
			t.Fatalf("a scan has not returned %q", key)
		}
	}
}

func useGoRedis(t *testing.T, at shards) {
	for _, protocol := range []int{2, 3} {
		t.Run(fmt.Sprint("RESP", protocol), func(t *testing.T) {
			connect := func(options goredis.Options) *goredis.Client {
				options.Protocol = protocol
				client := goredis.NewClient(&options)
				t.Cleanup(func() { _ = client.Close() })
				return client
			}
			goRedisConnects(t, at, connect)
			client := connect(goredis.Options{Addr: at.open, PoolSize: 4})
			goRedisWrites(t, client)
			goRedisTransacts(t, client)
			goRedisIsRefused(t, client)
		})
	}
}

func goRedisConnects(t *testing.T, at shards, connect func(goredis.Options) *goredis.Client) {
	ctx := t.Context()
	refused[goredis.Error](t, connect(goredis.Options{Addr: at.locked}).Ping(ctx).Err(), "NOAUTH")
	refused[goredis.Error](t, connect(goredis.Options{Addr: at.locked, Password: "wrong"}).Ping(ctx).Err(), "WRONGPASS")
	refused[goredis.Error](t, connect(goredis.Options{Addr: at.open, DB: 1}).Ping(ctx).Err(), noDB)
	wants(t, "PONG")(connect(goredis.Options{Addr: at.locked, Password: password}).Ping(ctx).Result())
	named := connect(goredis.Options{Addr: at.locked, Username: "default", Password: password, ClientName: "go-redis"})
	wants(t, "go-redis")(named.ClientGetName(ctx).Result())
	info, err := named.ClientInfo(ctx).Result()
	if err != nil || info.Name != "go-redis" || !strings.HasPrefix(info.LibName, "go-redis") || info.LibVer == "" {
		t.Fatalf("CLIENT INFO says %+v: %v", info, err)
	}
	wants(t, "PONG")(connect(goredis.Options{Network: "unix", Addr: at.socket}).Ping(ctx).Result())
}

func goRedisWrites(t *testing.T, client *goredis.Client) {
	ctx := t.Context()
	client.Del(ctx, "go-redis:once", "go-redis:count", "go-redis:hash")
	wants(t, "OK")(client.Set(ctx, "go-redis:binary", binary, time.Hour).Result())
	wants(t, binary)(client.Get(ctx, "go-redis:binary").Result())
	wants(t, true)(client.SetNX(ctx, "go-redis:once", "1", time.Hour).Result())
	wants(t, false)(client.SetNX(ctx, "go-redis:once", "2", time.Hour).Result())
	if left, err := client.TTL(ctx, "go-redis:once").Result(); err != nil || left <= 59*time.Minute || left > time.Hour {
		t.Fatalf("TTL says %s: %v", left, err)
	}
	together(t, func() error { return client.Incr(ctx, "go-redis:count").Err() })
	wants(t, []any{"200", "1", nil})(client.MGet(ctx, "go-redis:count", "go-redis:once", "go-redis:none").Result())
	wants(t, int64(2))(client.HSet(ctx, "go-redis:hash", "one", 1, "two", 2).Result())
	wants(t, int64(10))(client.HIncrBy(ctx, "go-redis:hash", "one", 9).Result())
	wants(t, map[string]string{"one": "10", "two": "2"})(client.HGetAll(ctx, "go-redis:hash").Result())
	refused[goredis.Error](t, client.Get(ctx, "go-redis:hash").Err(), "WRONGTYPE")

	keys := scanned("go-redis")
	if _, err := client.Pipelined(ctx, func(pipe goredis.Pipeliner) error {
		for _, key := range keys {
			pipe.Set(ctx, key, "x", time.Hour)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	var found []string
	all := client.Scan(ctx, 0, "go-redis:scan:*", 50).Iterator()
	for all.Next(ctx) {
		found = append(found, all.Val())
	}
	if err := all.Err(); err != nil {
		t.Fatal(err)
	}
	sameKeys(t, found, keys)
}

func goRedisTransacts(t *testing.T, client *goredis.Client) {
	ctx := t.Context()
	if _, err := client.TxPipelined(ctx, func(pipe goredis.Pipeliner) error {
		pipe.Set(ctx, "go-redis:tx", 1, 0)
		pipe.Incr(ctx, "go-redis:tx")
		pipe.Expire(ctx, "go-redis:tx", time.Hour)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	err := client.Watch(ctx, func(tx *goredis.Tx) error {
		wants(t, int64(3))(client.Incr(ctx, "go-redis:tx").Result())
		_, err := tx.TxPipelined(ctx, func(pipe goredis.Pipeliner) error {
			pipe.Set(ctx, "go-redis:tx", 0, 0)
			return nil
		})
		return err
	}, "go-redis:tx")
	if !errors.Is(err, goredis.TxFailedErr) {
		t.Fatalf("a transaction on a key that changed: %v", err)
	}
	wants(t, "3")(client.Get(ctx, "go-redis:tx").Result())
	_, err = client.TxPipelined(ctx, func(pipe goredis.Pipeliner) error {
		pipe.Set(ctx, "go-redis:x", 1, 0)
		pipe.Set(ctx, "go-redis:y", 2, 0)
		return nil
	})
	refused[goredis.Error](t, err, oneKey)
	wants(t, int64(0))(client.Exists(ctx, "go-redis:x", "go-redis:y").Result())
}

func goRedisIsRefused(t *testing.T, client *goredis.Client) {
	ctx := t.Context()
	refused[goredis.Error](t, client.Eval(ctx, "return 1", nil).Err(), unknown("eval"))
	refused[goredis.Error](t, client.BLPop(ctx, time.Second, "go-redis:list").Err(), unknown("blpop"))
	refused[goredis.Error](t, client.Publish(ctx, "channel", "x").Err(), unknown("publish"))
	listener := client.Subscribe(ctx, "channel")
	defer func() { _ = listener.Close() }()
	_, err := listener.Receive(ctx)
	refused[goredis.Error](t, err, unknown("subscribe"))
	wants(t, "PONG")(client.Ping(ctx).Result())
}

// connectRueidis connects in RESP3 or RESP2, and without the cache that needs CLIENT TRACKING.
func connectRueidis(t *testing.T, address string, option rueidis.ClientOption) (rueidis.Client, error) {
	option.InitAddress, option.ForceSingleClient = []string{address}, true
	client, err := rueidis.NewClient(option)
	if err == nil {
		t.Cleanup(client.Close)
	}
	return client, err
}

func useRueidis(t *testing.T, at shards) {
	_, err := connectRueidis(t, at.open, rueidis.ClientOption{})
	if !errors.Is(err, rueidis.ErrNoCache) || !strings.Contains(err.Error(), "CLIENT TRACKING is not supported") {
		t.Fatalf("with its cache: %v", err)
	}
	for _, resp2 := range []bool{false, true} {
		t.Run(fmt.Sprint("RESP2 ", resp2), func(t *testing.T) {
			option := rueidis.ClientOption{DisableCache: true, AlwaysRESP2: resp2}
			rueidisConnects(t, at, option)
			client, err := connectRueidis(t, at.open, option)
			if err != nil {
				t.Fatal(err)
			}
			rueidisWrites(t, client)
			rueidisTransacts(t, client)
			rueidisIsRefused(t, client)
		})
	}
}

func rueidisConnects(t *testing.T, at shards, option rueidis.ClientOption) {
	_, err := connectRueidis(t, at.locked, option)
	refused[*rueidis.RedisError](t, err, "NOAUTH")
	option.Password = "wrong"
	_, err = connectRueidis(t, at.locked, option)
	refused[*rueidis.RedisError](t, err, "WRONGPASS")
	option.Username, option.Password, option.ClientName = "default", password, "rueidis"
	client, err := connectRueidis(t, at.locked, option)
	if err != nil {
		t.Fatal(err)
	}
	wants(t, "rueidis")(client.Do(t.Context(), client.B().ClientGetname().Build()).ToString())
	option.SelectDB = 1
	_, err = connectRueidis(t, at.locked, option)
	refused[*rueidis.RedisError](t, err, noDB)
}

func rueidisWrites(t *testing.T, client rueidis.Client) {
	ctx := t.Context()
	do := func(command ...string) rueidis.RedisResult {
		return client.Do(ctx, client.B().Arbitrary(command...).Build())
	}
	wants(t, "OK")(do("SET", "rueidis:binary", binary, "EX", "3600").ToString())
	wants(t, binary)(client.Do(ctx, client.B().Get().Key("rueidis:binary").Build()).ToString())
	client.Do(ctx, client.B().Del().Key("rueidis:count", "rueidis:hash").Build())
	together(t, func() error { return client.Do(ctx, client.B().Incr().Key("rueidis:count").Build()).Error() })
	wants(t, "200")(do("GET", "rueidis:count").ToString())
	wants(t, int64(1))(client.Do(ctx, client.B().Expire().Key("rueidis:count").Seconds(100).Build()).ToInt64())
	wants(t, int64(2))(client.Do(ctx, client.B().Hset().Key("rueidis:hash").FieldValue().FieldValue("one", "1").FieldValue("two", "2").Build()).ToInt64())
	wants(t, map[string]string{"one": "1", "two": "2"})(client.Do(ctx, client.B().Hgetall().Key("rueidis:hash").Build()).AsStrMap())
	refused[*rueidis.RedisError](t, do("GET", "rueidis:hash").Error(), "WRONGTYPE")

	keys := scanned("rueidis")
	values := map[string]string{}
	for _, key := range keys {
		values[key] = "x"
	}
	for key, err := range rueidis.MSet(client, ctx, values) {
		if err != nil {
			t.Fatal(key, err)
		}
	}
	var found []string
	for cursor, first := uint64(0), true; first || cursor != 0; first = false {
		step, err := client.Do(ctx, client.B().Scan().Cursor(cursor).Match("rueidis:scan:*").Count(50).Build()).AsScanEntry()
		if err != nil {
			t.Fatal(err)
		}
		cursor, found = step.Cursor, append(found, step.Elements...)
	}
	sameKeys(t, found, keys)
}

func rueidisTransacts(t *testing.T, client rueidis.Client) {
	ctx := t.Context()
	transact := func(keys ...string) (replies []rueidis.RedisResult) {
		err := client.Dedicated(func(own rueidis.DedicatedClient) error {
			commands := rueidis.Commands{own.B().Multi().Build()}
			for _, key := range keys {
				commands = append(commands, own.B().Set().Key(key).Value("1").Build())
			}
			replies = own.DoMulti(ctx, append(commands, own.B().Exec().Build())...)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return replies
	}
	wants(t, []string{"OK", "OK"})(transact("rueidis:tx", "rueidis:tx")[3].AsStrSlice())
	err := client.Dedicated(func(own rueidis.DedicatedClient) error {
		for _, reply := range own.DoMulti(ctx, own.B().Watch().Key("rueidis:tx").Build(), own.B().Incr().Key("rueidis:tx").Build()) {
			if err := reply.Error(); err != nil {
				return err
			}
		}
		replies := own.DoMulti(ctx, own.B().Multi().Build(), own.B().Set().Key("rueidis:tx").Value("0").Build(), own.B().Exec().Build())
		return replies[2].Error()
	})
	if !rueidis.IsRedisNil(err) {
		t.Fatalf("a transaction on a key that changed: %v", err)
	}
	replies := transact("rueidis:x", "rueidis:y")
	refused[*rueidis.RedisError](t, replies[2].Error(), oneKey)
	refused[*rueidis.RedisError](t, replies[3].Error(), "EXECABORT")
	wants(t, int64(0))(client.Do(ctx, client.B().Exists().Key("rueidis:x", "rueidis:y").Build()).ToInt64())
}

func rueidisIsRefused(t *testing.T, client rueidis.Client) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	refused[*rueidis.RedisError](t, client.Do(ctx, client.B().Eval().Script("return 1").Numkeys(0).Build()).Error(), unknown("EVAL"))
	refused[*rueidis.RedisError](t, client.Do(ctx, client.B().Blpop().Key("rueidis:list").Timeout(1).Build()).Error(), unknown("BLPOP"))
	refused[*rueidis.RedisError](t, client.Do(ctx, client.B().Publish().Channel("channel").Message("x").Build()).Error(), unknown("PUBLISH"))
	err := client.Receive(ctx, client.B().Subscribe().Channel("channel").Build(), func(rueidis.PubSubMessage) {})
	refused[*rueidis.RedisError](t, err, unknown("SUBSCRIBE"))
	wants(t, "PONG")(client.Do(ctx, client.B().Ping().Build()).ToString())
}

func useRedigo(t *testing.T, at shards) {
	dial := func(network, address string, options ...redis.DialOption) (redis.Conn, error) {
		conn, err := redis.Dial(network, address, options...)
		if err == nil {
			t.Cleanup(func() { _ = conn.Close() })
		}
		return conn, err
	}
	conn, err := dial("tcp", at.locked)
	if err != nil {
		t.Fatal(err)
	}
	_, err = conn.Do("PING")
	refused[redis.Error](t, err, "NOAUTH")
	_, err = dial("tcp", at.locked, redis.DialPassword("wrong"))
	refused[redis.Error](t, err, "WRONGPASS")
	_, err = dial("tcp", at.open, redis.DialDatabase(1))
	refused[redis.Error](t, err, noDB)
	if _, err = dial("tcp", at.locked, redis.DialUsername("default"), redis.DialPassword(password), redis.DialClientName("redigo")); err != nil {
		t.Fatal(err)
	}
	if conn, err = dial("unix", at.socket); err != nil {
		t.Fatal(err)
	}
	wants(t, "PONG")(redis.String(conn.Do("PING")))
	pool := &redis.Pool{MaxActive: 4, Wait: true, Dial: func() (redis.Conn, error) { return redis.Dial("tcp", at.open) }}
	t.Cleanup(func() { _ = pool.Close() })
	together(t, func() error {
		conn := pool.Get()
		defer func() { _ = conn.Close() }()
		_, err := conn.Do("INCR", "redigo:count")
		return err
	})
	conn = pool.Get()
	defer func() { _ = conn.Close() }()
	wants(t, "200")(redis.String(conn.Do("GET", "redigo:count")))
	redigoSpeaks(t, conn)
}

func redigoSpeaks(t *testing.T, conn redis.Conn) {
	wants(t, "OK")(redis.String(conn.Do("SET", "redigo:binary", binary, "EX", 3600)))
	wants(t, binary)(redis.String(conn.Do("GET", "redigo:binary")))
	wants(t, 2)(redis.Int(conn.Do("HSET", "redigo:hash", "one", 1, "two", 2)))
	wants(t, map[string]string{"one": "1", "two": "2"})(redis.StringMap(conn.Do("HGETALL", "redigo:hash")))
	wants(t, []string{binary, ""})(redis.Strings(conn.Do("MGET", "redigo:binary", "redigo:none")))
	keys := scanned("redigo")
	for _, key := range keys {
		if err := conn.Send("SET", key, "x"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := conn.Do(""); err != nil {
		t.Fatal(err)
	}
	var found []string
	for cursor, first := 0, true; first || cursor != 0; first = false {
		step, err := redis.Values(conn.Do("SCAN", cursor, "MATCH", "redigo:scan:*", "COUNT", 50))
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		if _, err := redis.Scan(step, &cursor, &names); err != nil {
			t.Fatal(err)
		}
		found = append(found, names...)
	}
	sameKeys(t, found, keys)
	transact := func(key string) (any, error) {
		_ = conn.Send("MULTI")
		_ = conn.Send("SET", "redigo:tx", 1)
		_ = conn.Send("INCR", key)
		return conn.Do("EXEC")
	}
	wants[any](t, []any{"OK", int64(2)})(transact("redigo:tx"))
	_ = conn.Send("WATCH", "redigo:tx")
	_ = conn.Send("INCR", "redigo:tx")
	wants[any](t, nil)(transact("redigo:tx"))
	_, err := transact("redigo:other")
	refused[redis.Error](t, err, oneKey)
	for _, command := range [][]any{{"EVAL", "return 1", 0}, {"BLPOP", "redigo:list", 1}, {"SUBSCRIBE", "channel"}, {"PUBLISH", "channel", "x"}} {
		_, err := conn.Do(command[0].(string), command[1:]...)
		refused[redis.Error](t, err, unknown(command[0].(string)))
	}
	wants(t, "PONG")(redis.String(conn.Do("PING")))
}

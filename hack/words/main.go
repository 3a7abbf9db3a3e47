// SPDX-License-Identifier: Apache-2.0

// Words loads a word list into a pool over the Redis protocol, every word a key, reads every key back and compares.
package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

const batch = 500

// value follows from the word alone, and differs in length from word to word.
func value(word string) string {
	sum := sha256.Sum256([]byte(word))
	return fmt.Sprintf("%s:%x", word, sum[:1+int(sum[0])%32])
}

func read(path string) ([]string, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("%w; install Debian's package wamerican, or name another list with --file", err)
	}
	defer file.Close()
	var words []string
	seen := map[string]bool{}
	scanner := bufio.NewScanner(file)
	for scanner.Scan() {
		if word := scanner.Text(); word != "" && !seen[word] {
			seen[word] = true
			words = append(words, word)
		}
	}
	return words, scanner.Err()
}

// inBatches hands batches to several workers, each of which has a connection, and shows how far they are.
func inBatches(ctx context.Context, what string, words []string, workers int, work func(context.Context, []string) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	batches := make(chan []string)
	var done atomic.Int64
	var group sync.WaitGroup
	begun := time.Now()
	for range workers {
		group.Go(func() {
			for part := range batches {
				if err := work(ctx, part); err != nil {
					cancel(err)
					return
				}
				done.Add(int64(len(part)))
			}
		})
	}
	go func() {
		defer close(batches)
		for start := 0; start < len(words); start += batch {
			select {
			case batches <- words[start:min(start+batch, len(words))]:
			case <-ctx.Done():
				return
			}
		}
	}()
	finished := make(chan struct{})
	go func() { group.Wait(); close(finished) }()
	ticker := time.NewTicker(2 * time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			fmt.Printf("  %s: %d of %d\n", what, done.Load(), len(words))
			continue
		case <-finished:
		}
		if err := context.Cause(ctx); err != nil {
			return fmt.Errorf("%s: after %d of %d: %w", what, done.Load(), len(words), err)
		}
		spent := time.Since(begun).Seconds()
		fmt.Printf("  %s: %d of %d in %.1fs (%.0f/s)\n", what, done.Load(), len(words), spent, float64(len(words))/spent)
		return nil
	}
}

func store(client *redis.Client) func(context.Context, []string) error {
	return func(ctx context.Context, words []string) error {
		_, err := client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			for _, word := range words {
				pipe.Set(ctx, word, value(word), 0)
			}
			return nil
		})
		return err
	}
}

func compare(client *redis.Client, wrong *atomic.Int64) func(context.Context, []string) error {
	return func(ctx context.Context, words []string) error {
		replies, err := client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			for _, word := range words {
				pipe.Get(ctx, word)
			}
			return nil
		})
		if err != nil && !errors.Is(err, redis.Nil) {
			return err
		}
		for i, reply := range replies {
			got, err := reply.(*redis.StringCmd).Result()
			if err != nil && !errors.Is(err, redis.Nil) {
				return err
			}
			if err != nil || got != value(words[i]) {
				wrong.Add(1)
			}
		}
		return nil
	}
}

// awaitAnswer pings until the other side answers: a forwarded port takes a moment.
func awaitAnswer(ctx context.Context, client *redis.Client, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	ticker := time.NewTicker(200 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := client.Ping(ctx).Err()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("no compute shard answers at %s within %v: %w", client.Options().Addr, limit, err)
		case <-ticker.C:
		}
	}
}

func load(ctx context.Context, client *redis.Client, words []string, workers int) error {
	if err := awaitAnswer(ctx, client, time.Minute); err != nil {
		return err
	}
	return inBatches(ctx, "words written", words, workers, store(client))
}

func verify(ctx context.Context, client *redis.Client, words []string, workers int) error {
	var wrong atomic.Int64
	if err := inBatches(ctx, "words read back", words, workers, compare(client, &wrong)); err != nil {
		return err
	}
	if wrong.Load() > 0 {
		return fmt.Errorf("%d of %d words came back wrong or not at all", wrong.Load(), len(words))
	}
	fmt.Printf("  every one of %d words came back as it was written\n", len(words))
	return nil
}

func connect(address, password string, workers int) *redis.Client {
	return redis.NewClient(&redis.Options{
		Addr: address, Password: password, PoolSize: workers, MaxRetries: -1, ReadTimeout: 30 * time.Second, WriteTimeout: 30 * time.Second,
	})
}

func main() {
	address := flag.String("address", "127.0.0.1:6379", "address of a compute shard")
	path := flag.String("file", "/usr/share/dict/american-english", "word list, a word a line")
	workers := flag.Int("connections", 4, "connections at once")
	limit := flag.Duration("within", 5*time.Minute, "deadline for all of it")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, *limit)
	defer cancel()

	client := connect(*address, strings.TrimSpace(os.Getenv("REDISCLI_AUTH")), *workers)
	words, err := read(*path)
	if err == nil {
		err = load(ctx, client, words, *workers)
	}
	if err == nil {
		err = verify(ctx, client, words, *workers)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "words:", err)
		os.Exit(1)
	}
}

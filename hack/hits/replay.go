// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	batch   = 32 // requests that are sent together
	samples = 8  // times that the keys are counted
)

// What came of a trace, after its first third, by which the keys are those of the trace.
type outcome struct {
	hits, requests int
	keys           int // in the mean
	refused        int // writes, of the whole trace
	took           time.Duration
}

func (o outcome) ratio() float64 { return float64(o.hits) / float64(o.requests) }

// replay sends a trace: a GET for each request, and a SET for each that misses. Batches go out one after the other, on one connection after the other,
// and at most `rate` requests a second, so that each server has the same time for what it does by the clock.
func replay(ctx context.Context, s *store, t trace, rate float64) (outcome, error) {
	var o outcome
	begun := time.Now()
	warm := len(t.requests) / 3 / batch * batch
	counted := 0
	for i := 0; i < len(t.requests); i += batch {
		requests := t.requests[i:min(i+batch, len(t.requests))]
		if wait := time.Duration(float64(i)/rate*float64(time.Second)) - time.Since(begun); wait > 0 {
			time.Sleep(wait)
		}
		hits, refused, err := ask(ctx, s.connections[i/batch%len(s.connections)], t, requests)
		if err != nil {
			return o, fmt.Errorf("trace %s, request %d: %w", t.name, i, err)
		}
		o.refused += refused
		if i < warm {
			continue
		}
		o.hits += hits
		o.requests += len(requests)
		if i >= warm+(len(t.requests)-warm)*counted/samples && counted < samples {
			counted++
			keys, err := s.connections[0].DBSize(ctx).Result()
			if err != nil {
				return o, err
			}
			o.keys += int(keys) / samples
		}
	}
	o.took = time.Since(begun)
	return o, nil
}

// ask sends a batch, and writes what it has missed.
func ask(ctx context.Context, client *redis.Client, t trace, requests []uint32) (hits, refused int, err error) {
	reads := make([]*redis.StringCmd, len(requests))
	pipeline := client.Pipeline()
	for i, number := range requests {
		reads[i] = pipeline.Get(ctx, key(number))
	}
	if _, err := pipeline.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
		return 0, 0, err
	}
	missed := client.Pipeline()
	for i, number := range requests {
		got, err := reads[i].Result()
		wanted := value(number, t.size(number))
		switch {
		case errors.Is(err, redis.Nil):
			missed.Set(ctx, key(number), wanted, 0)
		case err != nil:
			return 0, 0, err
		case got != wanted:
			return 0, 0, fmt.Errorf("%s has a value of %d bytes that nobody wrote", key(number), len(got))
		default:
			hits++
		}
	}
	written, err := missed.Exec(ctx)
	if err == nil {
		return hits, 0, nil
	}
	for _, each := range written {
		if redis.HasErrorPrefix(each.Err(), "OOM") {
			refused++
		} else if each.Err() != nil {
			return 0, 0, each.Err()
		}
	}
	return hits, refused, nil
}

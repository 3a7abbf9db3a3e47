// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"farpool.dev/farpool/e2e/history"
)

// A Phase of a store's growth: what was done in it, by when it was begun.
type Phase struct {
	Name          string
	Time          time.Duration
	Reads, Writes []time.Duration // in rising order
	Failed        int
}

// Growth is what a load saw of a store that came to hold many times as many keys.
type Growth struct {
	Phases  [3]Phase  // before, during and after
	Windows []float64 // operations a second of each window of time
	Window  time.Duration
	Slowest float64 // operations a second in the slowest whole window while it grew
}

// Rate is how many operations a second there were.
func (p *Phase) Rate() float64 { return float64(len(p.Reads)+len(p.Writes)) / p.Time.Seconds() }

// Put writes each of the first keys once.
func (r *Run) Put(ctx context.Context, keys uint32) {
	var next atomic.Uint32
	r.each(ctx, func(ctx context.Context, _ int, w *Worker, _ *rand.Rand) {
		for number := next.Add(1) - 1; number < keys && ctx.Err() == nil; number = next.Add(1) - 1 {
			_, _ = w.Do(ctx, history.Set, number)
		}
	})
}

// Grow reads and overwrites the run's first keys, which are there, then reads, overwrites and writes new ones until there are as many as
// wanted, then goes on without new ones: half reads throughout, and while it grows every second write is one of a new key. Before and
// after last as long as they are given.
func (r *Run) Grow(ctx context.Context, keys, wanted uint32, calm, window time.Duration) (Growth, error) {
	if keys == 0 || wanted < keys || calm < window || window <= 0 {
		return Growth{}, fmt.Errorf("growth from %d to %d keys with %s before and after in windows of %s: give at least one key, no fewer in the end, and a window that is not longer than the calm", keys, wanted, calm, window)
	}
	const before, during, after, over = 0, 1, 2, 3
	out := Growth{Window: window, Phases: [3]Phase{{Name: "before"}, {Name: "during"}, {Name: "after"}}}
	var phase, done atomic.Int64
	next := &r.next
	next.Store(keys)
	grown := make(chan struct{})
	var once sync.Once
	var mu sync.Mutex
	work := func(ctx context.Context, _ int, w *Worker, random *rand.Rand) {
		var seen [3]Phase
		written := keys // what this worker knows to be there
		for now := phase.Load(); now != over && ctx.Err() == nil; now = phase.Load() {
			kind, number := history.Get, random.Uint32N(written)
			if random.IntN(2) == 0 {
				kind = history.Set
				if now == during && random.IntN(2) == 0 {
					if number = next.Add(1) - 1; number >= wanted {
						once.Do(func() { close(grown) })
						number = random.Uint32N(written)
					}
				}
			}
			begun := time.Now()
			_, err := w.Do(ctx, kind, number)
			took := time.Since(begun)
			done.Add(1)
			at := &seen[now]
			switch {
			case err != nil:
				at.Failed++
			case kind == history.Get:
				at.Reads = append(at.Reads, took)
			default:
				at.Writes = append(at.Writes, took)
				// Others are at a few numbers below this one.
				if n := uint32(len(r.workers)); number > written+n {
					written = number - n
				}
			}
		}
		mu.Lock()
		defer mu.Unlock()
		for i := range seen {
			out.Phases[i].Reads = append(out.Phases[i].Reads, seen[i].Reads...)
			out.Phases[i].Writes = append(out.Phases[i].Writes, seen[i].Writes...)
			out.Phases[i].Failed += seen[i].Failed
		}
	}
	ended := make(chan struct{})
	go func() {
		r.each(ctx, work)
		close(ended)
	}()

	ticks := time.NewTicker(window)
	defer ticks.Stop()
	begun, last, count := time.Now(), time.Now(), int64(0)
	for now := phase.Load(); now != over; {
		select {
		case <-ctx.Done():
			<-ended
			return out, fmt.Errorf("growth was at key %d of %d: %w", min(next.Load(), wanted), wanted, context.Cause(ctx))
		case <-ticks.C:
		}
		at, sum := time.Now(), done.Load()
		rate := float64(sum-count) / at.Sub(last).Seconds()
		last, count = at, sum
		out.Windows = append(out.Windows, rate)
		if now == during && (out.Slowest == 0 || rate < out.Slowest) {
			out.Slowest = rate
		}
		end := at.Sub(begun) >= calm
		if now == during {
			select {
			case <-grown:
				end = true
			default:
				end = false
			}
		}
		if end {
			out.Phases[now].Time = at.Sub(begun)
			begun = at
			now = phase.Add(1)
		}
	}
	<-ended
	for i := range out.Phases {
		slices.Sort(out.Phases[i].Reads)
		slices.Sort(out.Phases[i].Writes)
	}
	return out, nil
}

// Keys of a store that grows, so far: about so many are there.
func (r *Run) Keys() uint32 { return r.next.Load() }

// Table is Markdown for people.
func (g *Growth) Table() string {
	var s strings.Builder
	s.WriteString("| | s | operations/s | reads: p50 ms | p99 ms | most ms | writes: p50 ms | p99 ms | most ms | failed |\n|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n")
	for i := range g.Phases {
		p := &g.Phases[i]
		fmt.Fprintf(&s, "| %s | %.1f | %.0f |", p.Name, p.Time.Seconds(), p.Rate())
		for _, sorted := range [][]time.Duration{p.Reads, p.Writes} {
			for _, percent := range []int{50, 99, 100} {
				fmt.Fprintf(&s, " %.2f |", Percentile(sorted, percent).Seconds()*1e3)
			}
		}
		fmt.Fprintf(&s, " %d |\n", p.Failed)
	}
	return s.String()
}

// Percentile of durations in rising order; 100 is the longest. It is 0 if there are none.
func Percentile(sorted []time.Duration, percent int) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)*percent/100, len(sorted)-1)]
}

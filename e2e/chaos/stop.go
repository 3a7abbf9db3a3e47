// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"farpool.dev/farpool/e2e/history"
	"farpool.dev/farpool/e2e/workload"
)

// Bursts is how many further writers are at a compute shard at the moment it is stopped, each on a key of its own.
const Bursts = 8

// Victim is a compute shard that can be stopped, and what tells what became of its sessions. Each function has a deadline of its own.
type Victim struct {
	Name     string
	Shard    int // in the target of the load
	Sessions int // of one shard with one memory node
	Stop     func() error
	Continue func() error
	Ready    func(ctx context.Context) error
	Lost     func() (float64, error) // sessions that the shard knows to have ended against its will
	// By memory node: sessions that are open, of all the shards there are, and sessions ended by force so far.
	Shards int
	Open   func() ([]float64, error)
	Fenced func() ([]float64, error)
	// Returns how often something else has killed its process, as the kubelet kills what answers no probe for minutes. Nil: nothing does. An error: nobody can say.
	Kills func() (int32, error)
}

// Stopped is what came of one stop.
type Stopped struct {
	Caught  int            // writes that were under way
	Learned map[string]int // what their callers heard
	Judged  bool           // false: what old sessions did could not be told from what later ones did, or the shard was killed while it stood still
}

// Add counts another stop in.
func (s *Stopped) Add(other Stopped) {
	s.Caught += other.Caught
	if s.Learned == nil {
		s.Learned = map[string]int{}
	}
	for word, count := range other.Learned {
		s.Learned[word] += count
	}
}

// StaleError is a write that landed after the session that it was posted in had been fenced.
type StaleError struct {
	Victim      string
	Key         uint32
	Overwritten history.Tag // what another shard had been acknowledged for meanwhile
	Holds       history.Tag
	Heard       error // what the write's own caller was told
}

func (e *StaleError) Error() string {
	return fmt.Sprintf("a write of %s landed after its session had been fenced: key %d held %x, which was acknowledged meanwhile, and holds %x, of which the caller heard: %v",
		e.Victim, e.Key, uint64(e.Overwritten), uint64(e.Holds), e.Heard)
}

// burst is a write that is under way on a shard when it is stopped, and its outcome.
type burst struct {
	key   uint32
	err   error
	heard time.Time     // when its caller heard of it
	done  chan struct{} // closed then
}

// Stop stops a shard in the middle of writes, after `enough` of them, until every memory node has fenced it; has another shard overwrite
// what it was writing; and lets it go on. A write of the stopped shard whose caller does not hear that it was done must not be there
// afterwards, and every caller must hear something. The load needs Bursts+1 logs beyond those of its writers.
//
// A stop that fails because something else has killed the shard meanwhile is no failure, and not judged.
func (l *Load) Stop(ctx context.Context, v Victim, enough int64) (Stopped, error) {
	if v.Kills == nil {
		return l.stop(ctx, v, enough)
	}
	before, unasked := v.Kills()
	stopped, err := l.stop(ctx, v, enough)
	var stale *StaleError
	if err == nil || errors.As(err, &stale) || unasked != nil || ctx.Err() != nil {
		return stopped, err
	}
	// The pod's status follows a little later.
	err = Eventually(ctx, Patience, func() error {
		now, asked := v.Kills()
		if asked == nil && now > before {
			return nil
		}
		return errors.Join(err, asked)
	})
	if err == nil {
		err = v.Ready(ctx)
	}
	return stopped, err
}

func (l *Load) stop(ctx context.Context, v Victim, enough int64) (Stopped, error) {
	stopped := Stopped{Learned: map[string]int{}}
	other := l.target.Connect(v.Shard + 1)
	defer func() { _ = other.Close() }()

	// The sessions of processes that were killed before must have ended: only then is the next one that ends the victim's.
	err := Eventually(ctx, Patience, func() error {
		open, err := v.Open()
		for i := range open {
			if open[i] != float64(v.Shards*v.Sessions) {
				return fmt.Errorf("memory node %d has %g sessions with %d compute shards", i, open[i], v.Shards)
			}
		}
		return err
	})
	if err != nil {
		return stopped, err
	}
	before, err := v.Fenced()
	if err != nil {
		return stopped, err
	}
	lost, err := v.Lost()
	if err != nil {
		return stopped, err
	}
	stopping := make(chan struct{})
	under := make([]*burst, Bursts)
	var written atomic.Int64
	for i := range under {
		under[i] = &burst{key: l.newKey(history.Get), done: make(chan struct{})}
		go l.hammer(ctx, v.Shard, l.writers+i, under[i], &written, stopping)
	}
	goOn := sync.OnceValue(v.Continue)
	defer func() { _ = goOn() }()
	err = Eventually(ctx, Patience, func() error {
		if now := written.Load(); now < enough {
			return fmt.Errorf("%s answers %d of %d writes", v.Name, now, enough)
		}
		return nil
	})
	if err != nil {
		close(stopping)
		return stopped, err
	}
	l.avoided.Store(int64(v.Shard))
	defer l.avoided.Store(-1)
	err = v.Stop()
	close(stopping)
	if err != nil {
		return stopped, err
	}

	// Every memory node ends the sessions of a client that is silent for longer than its lease.
	err = Eventually(ctx, Patience, func() error {
		now, err := v.Fenced()
		for i := range now {
			if now[i] < before[i]+float64(v.Sessions) {
				return fmt.Errorf("memory node %d has not fenced %s, which stands still for longer than its lease", i, v.Name)
			}
		}
		return err
	})
	if err != nil {
		return stopped, err
	}
	overwritten := make([]history.Tag, len(under))
	log := l.Recorder.Log(l.writers + Bursts)
	for i, b := range under {
		err := Eventually(ctx, Patience, func() error {
			op, err := l.Sizes.Execute(ctx, other, log, l.prefix, history.Set, b.key)
			overwritten[i] = op.Wrote
			return err
		})
		if err != nil {
			return stopped, fmt.Errorf("what a stopped shard was writing cannot be written by another: %w", err)
		}
	}
	if before, err = v.Fenced(); err != nil {
		return stopped, err
	}
	resumed := time.Now()
	if err := goOn(); err != nil {
		return stopped, err
	}
	held := make([]history.Tag, len(under))
	for i, b := range under {
		select {
		case <-b.done:
		case <-time.After(Patience):
			return stopped, fmt.Errorf("a caller of %s, which was stopped and goes on, has heard nothing for %s", v.Name, Patience)
		}
		if b.heard.Before(resumed) {
			continue
		}
		stopped.Caught++
		stopped.Learned[workload.Verdict(b.err)]++
		var timeout interface{ Timeout() bool }
		if errors.As(b.err, &timeout) && timeout.Timeout() {
			return stopped, fmt.Errorf("a caller of %s, which was stopped and goes on, was left without an answer: %w", v.Name, b.err)
		}
		err := Eventually(ctx, Patience, func() error {
			op, err := l.Sizes.Execute(ctx, other, log, l.prefix, history.Get, b.key)
			held[i] = op.Saw
			return err
		})
		if err != nil {
			return stopped, err
		}
	}
	if err := v.Ready(ctx); err != nil {
		return stopped, err
	}
	// It notices session by session.
	err = Eventually(ctx, Patience, func() error {
		now, err := v.Lost()
		if err == nil && now < lost+float64(len(before)*v.Sessions) {
			err = fmt.Errorf("%s was fenced by every memory node, and counts %g lost sessions after %g", v.Name, now, lost)
		}
		return err
	})
	if err != nil {
		return stopped, err
	}
	after, err := v.Fenced()
	if err != nil {
		return stopped, err
	}
	if !slices.Equal(before, after) {
		return stopped, nil // the shard was too slow for its new sessions as well
	}
	stopped.Judged = true
	for i, b := range under {
		if !b.heard.Before(resumed) && held[i] != overwritten[i] && b.err != nil {
			return stopped, &StaleError{v.Name, b.key, overwritten[i], held[i], b.err}
		}
	}
	return stopped, nil
}

// hammer writes one key through one shard until it is to stop, and keeps the outcome of the write that was then under way.
func (l *Load) hammer(ctx context.Context, shard, log int, b *burst, written *atomic.Int64, stopping <-chan struct{}) {
	defer close(b.done)
	target := l.target
	target.Patience = 2 * Patience // an answer that comes late is told from one that never comes
	client := target.Connect(shard)
	defer func() { _ = client.Close() }()
	for {
		_, b.err = l.Sizes.Execute(ctx, client, l.Recorder.Log(log), l.prefix, history.Set, b.key)
		b.heard = time.Now()
		select {
		case <-stopping:
			return
		default:
		}
		if b.err == nil {
			written.Add(1)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"

	farpoolv1alpha1 "farpool.dev/farpool/api/gen/farpool/v1alpha1"
)

const (
	fenceTimeout  = 30 * time.Second
	repairTimeout = time.Minute
	// callsUp is how many calls may be under way at once, over all pools.
	callsUp = 64
)

// Call asks one process for something that takes time: a memory node to fence, or a compute shard to repair.
type Call struct {
	// Lease is the RepairLease on whose behalf the call is made.
	Lease types.UID
	// Name is that of the process, Pod the one whose agent is asked.
	Name string
	Pod  types.UID
	// Incarnation is that of the memory node that has to fence, as resources hold it; empty: a compute shard has to repair.
	Incarnation string
	// Attempt counts attempts to repair; fences have none.
	Attempt int32
	// Processes are the dead ones.
	Processes []uint64
	// Witnesses are the pods whose facts must be newer than the call's outcome.
	Witnesses []types.UID
}

// Outcome is a call and what became of it; while it is under way, the call alone.
type Outcome struct {
	Call
	Running bool
	// At is when this became so.
	At time.Time
	// Failures counts failures in a row, for this process and this lease.
	Failures int
	// Error is an error without details that differ from time to time, or empty.
	Error  string
	Fence  *farpoolv1alpha1.FenceResponse
	Repair *farpoolv1alpha1.RepairResponse
}

// Calls runs calls in the background, and keeps their outcomes until nobody asks for them any more.
type Calls struct {
	streams *Streams
	now     func() time.Time
	places  chan struct{}
	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup

	mutex  sync.Mutex
	closed bool
	pools  map[types.NamespacedName]map[callKey]*Outcome
}

// callKey identifies a call: for one lease, a process is asked for one thing of a kind at a time.
type callKey struct {
	lease  types.UID
	name   string
	repair bool
}

func (c Call) key() callKey { return callKey{c.Lease, c.Name, c.Incarnation == ""} }

// NewCalls returns calls over streams, and tells the streams what is new.
func NewCalls(streams *Streams, now func() time.Time) *Calls {
	ctx, cancel := context.WithCancel(context.Background())
	return &Calls{streams: streams, now: now, places: make(chan struct{}, callsUp), ctx: ctx, cancel: cancel,
		pools: map[types.NamespacedName]map[callKey]*Outcome{}}
}

// Start makes calls that are not under way yet.
func (c *Calls) Start(pool types.NamespacedName, uid string, calls []Call) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.closed {
		return
	}
	for _, call := range calls {
		outcomes := c.pools[pool]
		if outcomes == nil {
			outcomes = map[callKey]*Outcome{}
			c.pools[pool] = outcomes
		}
		failures := 0
		if before := outcomes[call.key()]; before != nil {
			if before.Running {
				continue
			}
			failures = before.Failures
		}
		outcome := &Outcome{Call: call, Running: true, At: c.now(), Failures: failures}
		outcomes[call.key()] = outcome
		c.running.Go(func() { c.run(pool, uid, outcome) })
	}
}

// Observe returns what is known of the calls of a pool, by lease.
func (c *Calls) Observe(pool types.NamespacedName) map[types.UID][]Outcome {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	observed := map[types.UID][]Outcome{}
	for _, outcome := range c.pools[pool] {
		observed[outcome.Lease] = append(observed[outcome.Lease], *outcome)
	}
	return observed
}

// Keep forgets what was called on behalf of other leases than these.
func (c *Calls) Keep(pool types.NamespacedName, leases map[types.UID]bool) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	for key := range c.pools[pool] {
		if !leases[key.lease] {
			delete(c.pools[pool], key)
		}
	}
	if len(c.pools[pool]) == 0 {
		delete(c.pools, pool)
	}
}

// Close gives up what is under way, and waits until nothing is.
func (c *Calls) Close() {
	c.mutex.Lock()
	c.closed = true
	c.mutex.Unlock()
	c.cancel()
	c.running.Wait()
}

func (c *Calls) run(pool types.NamespacedName, uid string, outcome *Outcome) {
	call := outcome.Call
	var fence *farpoolv1alpha1.FenceResponse
	var repair *farpoolv1alpha1.RepairResponse
	var err error
	select {
	case c.places <- struct{}{}:
		defer func() { <-c.places }()
		if call.Incarnation != "" {
			err = c.streams.ask(c.ctx, pool, call.Pod, fenceTimeout, func(ctx context.Context, client farpoolv1alpha1.AgentClient) (err error) {
				fence, err = client.Fence(ctx, &farpoolv1alpha1.FenceRequest{PoolUid: uid, Processes: call.Processes})
				return err
			})
		} else {
			err = c.streams.ask(c.ctx, pool, call.Pod, repairTimeout, func(ctx context.Context, client farpoolv1alpha1.AgentClient) (err error) {
				repair, err = client.Repair(ctx, &farpoolv1alpha1.RepairRequest{PoolUid: uid, Processes: call.Processes})
				return err
			})
		}
	case <-c.ctx.Done():
		err = c.ctx.Err()
	}
	var refreshed sync.WaitGroup
	for _, witness := range call.Witnesses {
		refreshed.Go(func() { c.streams.refresh(c.ctx, pool, witness) })
	}
	refreshed.Wait()

	c.mutex.Lock()
	outcome.Running, outcome.At, outcome.Fence, outcome.Repair = false, c.now(), fence, repair
	if err != nil {
		outcome.Failures++
		outcome.Error = answer(err)
	} else {
		outcome.Failures = 0
	}
	c.mutex.Unlock()
	c.streams.notify(pool)
}

// answer is an agent's refusal, without what differs from attempt to attempt, such as ports of lost connections.
func answer(err error) string {
	var refusal interface{ GRPCStatus() *status.Status }
	if !errors.As(err, &refusal) {
		return err.Error()
	}
	switch code := refusal.GRPCStatus().Code(); code {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
		return code.String()
	default:
		return fmt.Sprintf("%s: %s", code, refusal.GRPCStatus().Message())
	}
}

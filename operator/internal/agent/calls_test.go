// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"

	farpoolv1alpha1 "farpool.dev/farpool/api/gen/farpool/v1alpha1"
	"farpool.dev/farpool/operator/internal/pki"
)

// called is a process with a stream, and calls that go to it.
func called(t *testing.T) (*fixture, *process, *Calls) {
	t.Helper()
	f := newFixture(t)
	p := f.start("127.0.0.1:0", pki.RoleNode)
	f.streams.Sync(pool, uid, f.credential, []Target{target(p.address)})
	f.await("the first facts", connected)
	calls := NewCalls(f.streams, time.Now)
	t.Cleanup(calls.Close)
	return f, p, calls
}

func fencing(incarnation string) Call {
	return Call{Lease: "lease", Name: "cache-memory-0", Pod: "pod", Incarnation: incarnation, Processes: []uint64{7}, Witnesses: []types.UID{"pod"}}
}

// awaitOutcome waits until the one call of the lease is over.
func (f *fixture) awaitOutcome(calls *Calls) Outcome {
	f.t.Helper()
	late := time.After(deadline)
	for {
		if list := calls.Observe(pool)["lease"]; len(list) == 1 && !list[0].Running {
			return list[0]
		}
		select {
		case <-f.news:
		case <-late:
			f.t.Fatalf("no outcome: %+v", calls.Observe(pool))
		}
	}
}

func TestACallBringsItsOutcomeAndNewerFacts(t *testing.T) {
	f, p, calls := called(t)
	fence := func(context.Context) (*farpoolv1alpha1.FenceResponse, error) {
		p.facts.Store(facts(5))
		return &farpoolv1alpha1.FenceResponse{Sessions: 2}, nil
	}
	p.fence.Store(&fence)
	calls.Start(pool, uid, []Call{fencing("7")})
	outcome := f.awaitOutcome(calls)
	if outcome.Fence.GetSessions() != 2 || outcome.Repair != nil || outcome.Error != "" || outcome.Failures != 0 || outcome.Incarnation != "7" {
		t.Errorf("%+v", outcome)
	}
	if o := f.streams.Observe(pool)["pod"]; o.Facts.GetEpoch() != 5 {
		t.Errorf("facts of before the call: %+v", o)
	}

	repair := func(context.Context) (*farpoolv1alpha1.RepairResponse, error) {
		return &farpoolv1alpha1.RepairResponse{Done: true}, nil
	}
	p.repair.Store(&repair)
	calls.Keep(pool, nil)
	calls.Start(pool, uid, []Call{{Lease: "lease", Name: "shard", Pod: "pod", Attempt: 3}})
	if outcome = f.awaitOutcome(calls); !outcome.Repair.GetDone() || outcome.Attempt != 3 || outcome.Fence != nil {
		t.Errorf("%+v", outcome)
	}
}

func TestOneCallOfAKindAtATime(t *testing.T) {
	f, p, calls := called(t)
	begun, end := make(chan struct{}, 10), make(chan struct{})
	fence := func(context.Context) (*farpoolv1alpha1.FenceResponse, error) {
		begun <- struct{}{}
		<-end
		return &farpoolv1alpha1.FenceResponse{}, nil
	}
	p.fence.Store(&fence)
	calls.Start(pool, uid, []Call{fencing("7")})
	<-begun
	if list := calls.Observe(pool)["lease"]; len(list) != 1 || !list[0].Running {
		t.Errorf("%+v", list)
	}
	another := fencing("7")
	another.Lease = "another"
	calls.Start(pool, uid, []Call{fencing("7"), another, fencing("7")})
	<-begun // the call of the other lease
	close(end)
	f.awaitOutcome(calls)
	if len(begun) != 0 {
		t.Errorf("called %d times more", len(begun))
	}
	calls.Keep(pool, map[types.UID]bool{"lease": true})
	calls.Start(pool, uid, []Call{fencing("7")})
	<-begun
	f.awaitOutcome(calls)
	calls.Keep(pool, map[types.UID]bool{"lease": true})
	if len(calls.Observe(pool)) != 1 {
		t.Error("what is kept is forgotten")
	}
	calls.Keep(pool, map[types.UID]bool{"another": true})
	if len(calls.Observe(pool)) != 0 {
		t.Error("what nobody asks for is kept")
	}
}

func TestFailuresAreCountedAndSaidInTheSameWords(t *testing.T) {
	f, p, calls := called(t)
	refuse := func(context.Context) (*farpoolv1alpha1.FenceResponse, error) {
		return nil, status.Error(codes.FailedPrecondition, "not today")
	}
	p.fence.Store(&refuse)
	for failures := 1; failures <= 2; failures++ {
		calls.Start(pool, uid, []Call{fencing("7")})
		if outcome := f.awaitOutcome(calls); outcome.Failures != failures || outcome.Error != "FailedPrecondition: not today" || outcome.Fence != nil {
			t.Errorf("%+v", outcome)
		}
	}
	agree := func(context.Context) (*farpoolv1alpha1.FenceResponse, error) {
		return &farpoolv1alpha1.FenceResponse{}, nil
	}
	p.fence.Store(&agree)
	calls.Start(pool, uid, []Call{fencing("7")})
	if outcome := f.awaitOutcome(calls); outcome.Failures != 0 || outcome.Error != "" {
		t.Errorf("%+v", outcome)
	}
	// A process that is gone: ports of its connections are no part of what is said.
	p.server.Stop()
	calls.Start(pool, uid, []Call{fencing("7")})
	if outcome := f.awaitOutcome(calls); outcome.Error != "Unavailable" {
		t.Errorf("%+v", outcome)
	}
	unheard := fencing("7")
	unheard.Pod = "another"
	calls.Start(pool, uid, []Call{unheard})
	if outcome := f.awaitOutcome(calls); outcome.Error != "pod another: there is no stream to its agent" {
		t.Errorf("%+v", outcome)
	}
}

func TestCallsEndWithTheirStreamsAndWhenClosed(t *testing.T) {
	for name, end := range map[string]func(*fixture, *Calls){
		"forgotten pool": func(f *fixture, _ *Calls) { f.streams.Forget(pool) },
		"closed":         func(_ *fixture, calls *Calls) { calls.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			f, p, calls := called(t)
			begun, ended := make(chan struct{}), make(chan error, 1)
			hang := func(ctx context.Context) (*farpoolv1alpha1.RepairResponse, error) {
				close(begun)
				<-ctx.Done()
				ended <- ctx.Err()
				return nil, ctx.Err()
			}
			p.repair.Store(&hang)
			calls.Start(pool, uid, []Call{{Lease: "lease", Name: "shard", Pod: "pod", Attempt: 1}})
			<-begun
			end(f, calls)
			select {
			case err := <-ended:
				if !errors.Is(err, context.Canceled) {
					t.Errorf("it ended with %v", err)
				}
			case <-time.After(deadline):
				t.Fatal("it goes on")
			}
		})
	}
	_, _, calls := called(t)
	calls.Close()
	calls.Start(pool, uid, []Call{fencing("7")})
	if len(calls.Observe(pool)) != 0 {
		t.Error("a call after closing")
	}
}

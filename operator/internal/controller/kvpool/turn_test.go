// SPDX-License-Identifier: Apache-2.0

package kvpool

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/apply"
	"farpool.dev/farpool/operator/internal/observe"
	"farpool.dev/farpool/operator/internal/plan"
)

// slow is an API server that takes some time for each write, or refuses it.
type slow struct {
	client client.Client
	clock  *clocktesting.FakeClock
	takes  time.Duration
	wrote  atomic.Int32
	named  int

	mutex   sync.Mutex
	refuses string
	// last is the object whose status was written last.
	last string
}

func newSlow(takes time.Duration) *slow {
	s := &slow{clock: clocktesting.NewFakeClock(time.Unix(1e9, 0)), takes: takes}
	s.client = interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.CreateOption) error {
			s.mutex.Lock()
			defer s.mutex.Unlock()
			s.clock.Step(s.takes)
			s.wrote.Add(1)
			if object.GetName() == s.refuses {
				return apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, object.GetName(), errors.New("quota"))
			}
			return c.Create(ctx, object, options...)
		},
		SubResourcePatch: func(_ context.Context, _ client.Client, _ string, object client.Object, _ client.Patch, _ ...client.SubResourcePatchOption) error {
			s.mutex.Lock()
			defer s.mutex.Unlock()
			s.clock.Step(s.takes)
			s.wrote.Add(1)
			s.last = object.GetName()
			return nil
		},
	})
	return s
}

// look makes so many objects in one turn of a pool, none of which are there, and returns the errors.
func (s *slow) look(r *Reconciler, count int) plan.Outcome {
	turn := r.turnOf(turnKey)
	h := &hands{Reconciler: r, turn: turn, ctx: context.Background(), snapshot: &observe.Snapshot{Pool: &v1alpha1.KVPool{ObjectMeta: metav1.ObjectMeta{Namespace: turnKey.Namespace, Name: turnKey.Name}}}}
	h.applier = r.applier.With(&apply.Known{}, turn.mayWrite, turn.mayWriteStatus)
	owner := metav1ac.OwnerReference().WithAPIVersion("farpool.dev/v1alpha1").WithKind("KVPool").WithName("cache").WithUID("pool").WithController(true)
	outcome := plan.Outcome{}
	for range count {
		s.named++
		if err := h.Apply(corev1ac.ConfigMap(fmt.Sprintf("map-%d", s.named), "shop").WithOwnerReferences(owner)); err != nil {
			outcome[h.Judge(err)] = append(outcome[h.Judge(err)], err)
		}
	}
	return outcome
}

var turnKey = types.NamespacedName{Namespace: "shop", Name: "cache"}

func (s *slow) reconciler() *Reconciler {
	metrics := NewMetrics(prometheus.NewRegistry())
	return &Reconciler{applier: apply.New(s.client, s.client, metrics), metrics: metrics, clock: s.clock, turnLasts: turnLasts,
		stale: map[types.NamespacedName]int{}, putOff: map[types.NamespacedName]int{}}
}

// A look at a pool writes for as long as its turn lasts, and a few objects at least.
func TestALookWritesForAsLongAsItsTurnLasts(t *testing.T) {
	for _, c := range []struct {
		takes time.Duration
		wants int
	}{
		{time.Microsecond, 30},
		{turnLasts / 10, 10},
		{turnLasts, leastWrites},
		{time.Minute, leastWrites},
	} {
		s := newSlow(c.takes)
		outcome := s.look(s.reconciler(), 30)
		if wrote, left := int(s.wrote.Load()), len(outcome[plan.Later]); wrote != c.wants || left != 30-c.wants || len(outcome[plan.Later])+len(outcome[plan.Failed]) != left {
			t.Errorf("with %v for each write, %d were made and %d left, want %d made: %v", c.takes, wrote, left, c.wants, outcome)
		}
		for _, err := range outcome[plan.Later] {
			if !strings.Contains(err.Error(), "ConfigMap shop/map-") {
				t.Errorf("%v does not say what is left", err)
			}
		}
	}
}

// An object that the API server refuses does not keep those behind it from being written, however long it takes.
func TestWhatIsRefusedKeepsNothingFromItsTurn(t *testing.T) {
	s := newSlow(time.Minute)
	s.refuses = "map-1"
	if outcome := s.look(s.reconciler(), 30); s.wrote.Load() != 30 || len(outcome) != 1 || len(outcome[plan.Refused]) != 1 {
		t.Errorf("%d writes: %v", s.wrote.Load(), outcome)
	}
}

// A pool whose turn has ended early is looked at again soon, and is put off so many times in a row at most.
func TestAPoolIsPutOffSoOften(t *testing.T) {
	s := newSlow(time.Minute)
	r := s.reconciler()
	snapshot := &observe.Snapshot{Pool: &v1alpha1.KVPool{ObjectMeta: metav1.ObjectMeta{Namespace: turnKey.Namespace, Name: turnKey.Name}}}
	settle := func(outcome plan.Outcome) time.Duration {
		result, err := r.settle(t.Context(), snapshot, &plan.Plan{RequeueAfter: time.Hour}, outcome)
		if err != nil {
			t.Fatal(err)
		}
		return result.RequeueAfter
	}
	for look := range mostTurns {
		outcome := s.look(r, 2*leastWrites)
		if len(outcome[plan.Later]) == 0 {
			t.Fatalf("look %d: %v", look, outcome)
		}
		if wait := settle(plan.Outcome{plan.Later: outcome[plan.Later]}); wait != nextTurn {
			t.Fatalf("look %d: the next is in %v", look, wait)
		}
	}
	if outcome := s.look(r, 2*leastWrites); outcome[plan.Later] != nil {
		t.Errorf("after %d turns there is something left still", mostTurns)
	}
	if wait := settle(plan.Outcome{}); wait != time.Hour || len(r.putOff) != 0 {
		t.Errorf("once all is written, the next look is in %v; put off: %v", wait, r.putOff)
	}
}

// hands of a look that has decided nothing.
func (s *slow) hands() *hands {
	r := s.reconciler()
	return &hands{Reconciler: r, turn: r.turnOf(turnKey), snapshot: &observe.Snapshot{Pool: &v1alpha1.KVPool{}}, decided: &plan.Plan{}}
}

// Statuses are written one after the other: a look whose objects have taken its time leaves them to the next, which has fewer objects to write.
func TestStatusesWaitForALookThatHasTime(t *testing.T) {
	s := newSlow(0)
	for _, c := range []struct {
		what         string
		writes       int
		takes        time.Duration
		whole, later bool
	}{
		{"nothing to write, however long it takes to decide", 0, time.Minute, false, false},
		{"a write that takes no time", 1, turnLasts - 1, false, false},
		{"a write that takes all of it", 1, turnLasts, false, true},
		{"a pool that was put off often", 1, turnLasts, true, false},
	} {
		h, outcome := s.hands(), plan.Outcome{}
		h.turn.whole.Store(c.whole)
		for range c.writes {
			h.turn.mayWrite()
		}
		s.clock.Step(c.takes)
		h.Blame(outcome)
		if later := len(outcome[plan.Later]) > 0; later != c.later || h.behind != c.later || h.blamed {
			t.Errorf("%s: %v; behind %v, blamed %v", c.what, outcome, h.behind, h.blamed)
		}
	}
	// What failed is told at once.
	h, outcome := s.hands(), plan.Outcome{plan.Failed: {errors.New("no")}}
	h.turn.mayWrite()
	s.clock.Step(turnLasts)
	if h.Blame(outcome); h.behind || !h.blamed {
		t.Errorf("after a failure: behind %v, blamed %v", h.behind, h.blamed)
	}
}

// What a pool's status would say before all is written waits until it is, but for what was refused.
func TestAStatusWaitsUntilAllIsWritten(t *testing.T) {
	s := newSlow(time.Minute)
	for name, outcome := range map[string]plan.Outcome{
		"all was written": {},
		"some was not":    {plan.Later: {apply.ErrLater}},
	} {
		h := s.hands()
		h.Blame(outcome)
		if want := len(outcome) > 0; h.behind != want || h.blamed {
			t.Errorf("%s: behind is %v, blamed %v", name, h.behind, h.blamed)
		}
	}
	h := s.hands()
	h.Blame(plan.Outcome{plan.Later: {apply.ErrLater}, plan.Refused: {errors.New("no more Secrets than 3")}})
	if said := slices.ContainsFunc(h.decided.Status.Pool.Conditions, func(condition metav1.Condition) bool {
		return strings.Contains(condition.Message, "no more Secrets than 3")
	}); !h.behind || !h.blamed || !said {
		t.Errorf("behind %v, blamed %v: %v", h.behind, h.blamed, h.decided.Status.Pool.Conditions)
	}
}

// statuses is a decision about a pool with so many RepairLeases and ComputeShardPools, all of whose statuses are to be written.
func statuses(pools, leases int) (*observe.Snapshot, *plan.Plan) {
	of := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: turnKey.Namespace, Name: name, UID: types.UID(name), ResourceVersion: "1"}
	}
	snapshot := &observe.Snapshot{Pool: &v1alpha1.KVPool{ObjectMeta: of(turnKey.Name)}, ComputePools: map[string]*v1alpha1.ComputeShardPool{}}
	decided := &plan.Plan{Status: plan.Status{ComputePools: map[string]v1alpha1.ComputeShardPoolStatus{}, Leases: map[string]v1alpha1.RepairLeaseStatus{}}}
	for i := range pools {
		name := fmt.Sprintf("pool-%d", i)
		snapshot.ComputePools[name] = &v1alpha1.ComputeShardPool{ObjectMeta: of(name)}
		decided.Status.ComputePools[name] = v1alpha1.ComputeShardPoolStatus{}
	}
	for i := range leases {
		lease := &v1alpha1.RepairLease{ObjectMeta: of(fmt.Sprintf("lease-%d", i))}
		snapshot.Leases = append(snapshot.Leases, lease)
		decided.Status.Leases[lease.Name] = v1alpha1.RepairLeaseStatus{}
	}
	decided.Status.Events = []plan.Event{{Regarding: snapshot.Pool, Type: "Normal", Reason: "Told", Action: "Tell", Note: "with the pool's status"}}
	return snapshot, decided
}

// A look begins statuses for as long as it has time for them, and the pool's own last. It says of what is left that it is, and tells people what a status says once that
// is written.
func TestALookWritesStatusesForAsLongAsItHasTime(t *testing.T) {
	for _, c := range []struct {
		what          string
		pools, leases int
		takes         time.Duration
		whole         bool
		writes        int
		told          bool
	}{
		{"all in time", 2, 10, 0, false, 13, true},
		{"each takes all of the time, and a few are written anyway", 2, 10, statusesLast, false, leastWrites, false},
		{"the pool's own is among these few", 1, 2, statusesLast, false, 4, true},
		{"the pool's own is left", 1, 3, statusesLast, false, 4, false},
		{"a pool that was put off often", 2, 10, time.Minute, true, 13, true},
	} {
		s := newSlow(c.takes)
		r := s.reconciler()
		recorder := events.NewFakeRecorder(100)
		r.recorder, r.told = recorder, map[types.NamespacedName]map[line]string{}
		turn := r.turnOf(turnKey)
		turn.whole.Store(c.whole)
		snapshot, decided := statuses(c.pools, c.leases)
		failures := r.writeStatuses(t.Context(), r.applier.With(&apply.Known{}, turn.mayWrite, turn.mayWriteStatus), snapshot, decided)
		total := c.pools + c.leases + 1
		if wrote := int(s.wrote.Load()); wrote != c.writes || len(failures) != total-wrote {
			t.Errorf("%s: %d statuses are written, %d left: %v", c.what, wrote, len(failures), failures)
		}
		for _, err := range failures {
			if !errors.Is(err, apply.ErrLater) {
				t.Errorf("%s: %v", c.what, err)
			}
		}
		if told := len(recorder.Events) == 1; told != c.told {
			t.Errorf("%s: the pool's event is sent: %v", c.what, told)
		}
		if own := s.last == turnKey.Name; own != c.told {
			t.Errorf("%s: the last status is that of %s", c.what, s.last)
		}
	}
}

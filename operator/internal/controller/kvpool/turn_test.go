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
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
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
	// done are the events and statuses that were written, by their objects.
	done []string
}

func newSlow(takes time.Duration) *slow {
	s := &slow{clock: clocktesting.NewFakeClock(time.Unix(1e9, 0)), takes: takes}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			panic(err) // kinds registered twice
		}
	}
	s.client = interceptor.NewClient(fake.NewClientBuilder().WithScheme(scheme).Build(), interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.CreateOption) error {
			s.mutex.Lock()
			defer s.mutex.Unlock()
			s.clock.Step(s.takes)
			s.wrote.Add(1)
			if event, is := object.(*eventsv1.Event); is {
				s.done = append(s.done, event.Reason+" of "+event.Regarding.Name)
				return nil
			}
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
			s.done = append(s.done, "status of "+object.GetName())
			object.SetUID(types.UID(object.GetName()))
			object.SetResourceVersion(shownVersion)
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

// shownVersion is that of each object, in the cache and in the answers to writes, which the cache does not show.
const shownVersion = "1"

var turnKey = types.NamespacedName{Namespace: "shop", Name: "cache"}

func (s *slow) reconciler() *Reconciler {
	metrics := NewMetrics(prometheus.NewRegistry())
	return &Reconciler{client: s.client, applier: apply.New(s.client, s.client, metrics), metrics: metrics, clock: s.clock, turnLasts: turnLasts,
		recorder: events.NewFakeRecorder(100), told: map[types.NamespacedName]map[line]string{}, stale: map[types.NamespacedName]int{}, rounds: map[types.NamespacedName]map[string]bool{}}
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

// A pool whose turn has ended early is looked at again soon.
func TestAPoolIsPutOffForAMoment(t *testing.T) {
	s := newSlow(time.Minute)
	r := s.reconciler()
	snapshot := &observe.Snapshot{Pool: &v1alpha1.KVPool{ObjectMeta: metav1.ObjectMeta{Namespace: turnKey.Namespace, Name: turnKey.Name}}}
	for _, c := range []struct {
		outcome plan.Outcome
		want    time.Duration
	}{{s.look(r, 2*leastWrites), nextTurn}, {plan.Outcome{}, time.Hour}} {
		result, err := r.settle(t.Context(), snapshot, &plan.Plan{RequeueAfter: time.Hour}, c.outcome)
		if err != nil || result.RequeueAfter != c.want {
			t.Errorf("the next look is in %v, not %v: %v", result.RequeueAfter, c.want, err)
		}
	}
}

// Where each write takes longer than a turn, looks write a few objects each, and all of them in so many looks as that takes: also if some of them change all the time, and
// however many these are.
func TestARoundWritesEverythingOnce(t *testing.T) {
	for _, c := range []struct{ changing, others int }{{0, 30}, {1, 30}, {leastWrites, 30}, {3 * leastWrites, 30}, {3 * leastWrites, 0}} {
		for what, may := range map[string]func(*turn, string) bool{"objects": (*turn).mayWrite, "statuses": (*turn).mayWriteStatus} {
			r := newSlow(0).reconciler()
			var mutex sync.Mutex
			wrote := map[string]int{}
			all := c.changing + c.others
			round := func() (looks int) {
				for {
					turn := r.turnOf(turnKey)
					turn.ends, turn.statusesEnd = time.Time{}, time.Time{}
					begun, left := 0, false
					turn.sideBySide(all, func(i int) {
						mutex.Lock()
						defer mutex.Unlock()
						name := fmt.Sprintf("object-%02d", i)
						if i >= c.changing && wrote[name] > 0 {
							return
						}
						if may(turn, name) {
							wrote[name]++
							begun++
						} else {
							left = true
						}
					})
					if begun > leastWrites {
						t.Fatalf("%d of %d %s change: a look begins %d", c.changing, all, what, begun)
					}
					r.ended(turnKey, turn, left)
					if looks++; len(r.rounds) == 0 {
						return looks
					}
				}
			}
			if got, most := round(), (all+leastWrites-1)/leastWrites+1; got > most || len(wrote) != all {
				t.Errorf("%d of %d %s change: %d are written after %d looks: %v", c.changing, all, what, len(wrote), got, wrote)
			}
			// What changes all the time has its turn as often as others that do.
			for range 5 {
				round()
			}
			for i := range c.changing {
				if name := fmt.Sprintf("object-%02d", i); wrote[name] < 5 {
					t.Errorf("%d of %d %s change: %s is written %d times", c.changing, all, what, name, wrote[name])
				}
			}
		}
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
		{"after a failure", 1, turnLasts, true, false},
	} {
		h, outcome := s.hands(), plan.Outcome{}
		h.turn.whole.Store(c.whole)
		for range c.writes {
			h.turn.mayWrite("ConfigMap shop/map")
		}
		s.clock.Step(c.takes)
		h.Blame(outcome)
		if later := len(outcome[plan.Later]) > 0; later != c.later || h.behind != c.later || h.blamed {
			t.Errorf("%s: %v; behind %v, blamed %v", c.what, outcome, h.behind, h.blamed)
		}
	}
	// What failed is told at once.
	h, outcome := s.hands(), plan.Outcome{plan.Failed: {errors.New("no")}}
	h.turn.mayWrite("ConfigMap shop/map")
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
		return metav1.ObjectMeta{Namespace: turnKey.Namespace, Name: name, UID: types.UID(name), ResourceVersion: shownVersion}
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
		{"each takes all of the time, and a few are begun anyway", 2 * leastWrites, 10, statusesLast, false, leastWrites, false},
		{"these are begun at the same time: others wait for them", 2, 10, statusesLast, false, 2, false},
		{"the pool's own is left", 0, 3, statusesLast, false, 3, false},
		{"the pool's own is the first", 0, 0, statusesLast, false, 1, true},
		{"after a failure", 2, 10, time.Minute, true, 13, true},
	} {
		s := newSlow(c.takes)
		r := s.reconciler()
		recorder := events.NewFakeRecorder(100)
		r.recorder = recorder
		turn := r.turnOf(turnKey)
		turn.whole.Store(c.whole)
		snapshot, decided := statuses(c.pools, c.leases)
		failures := r.writeStatuses(t.Context(), turn, r.applier.With(&apply.Known{}, turn.mayWrite, turn.mayWriteStatus), snapshot, decided)
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
		if last := s.done[len(s.done)-1]; last == "status of "+turnKey.Name != c.told {
			t.Errorf("%s: the last is the %s", c.what, last)
		}
	}
}

// Steps take time, too: each look announces what it has time for, and writes the statuses that record it. Each step is announced once, and before its status is written;
// the pool's status is the last.
func TestALookAnnouncesStepsForAsLongAsItHasTime(t *testing.T) {
	const leases = 10
	s := newSlow(statusesLast)
	r := s.reconciler()
	snapshot, decided := statuses(0, leases)
	want := []string{"status of " + turnKey.Name}
	for _, lease := range snapshot.Leases {
		for _, reason := range []string{v1alpha1.ReasonFenced, v1alpha1.ReasonComplete} {
			decided.Status.Events = append(decided.Status.Events, plan.Event{Regarding: lease, Type: "Normal", Reason: reason, Action: "Repair"})
			want = append(want, reason+" of "+lease.Name)
		}
		want = append(want, "status of "+lease.Name)
		at := metav1.NewTime(s.clock.Now())
		decided.Status.Leases[lease.Name] = v1alpha1.RepairLeaseStatus{CompletedAt: &at}
	}
	known, looks := &apply.Known{}, 0
	for left := 1; left > 0; looks++ {
		turn := r.turnOf(turnKey)
		before := int(s.wrote.Load())
		known.Begin()
		left = len(r.writeStatuses(t.Context(), turn, r.applier.With(known, turn.mayWrite, turn.mayWriteStatus), snapshot, decided))
		if wrote := int(s.wrote.Load()) - before; wrote == 0 || wrote > leastWrites {
			t.Fatalf("look %d has written %d times: %q", looks, wrote, s.done)
		}
		r.ended(turnKey, turn, left > 0)
	}
	if most := (2*leases+leastWrites-1)/leastWrites + (leases+leastWrites-1)/leastWrites + 1; looks > most {
		t.Errorf("%d looks, more than %d", looks, most)
	}
	if last := s.done[len(s.done)-1]; last != want[0] {
		t.Errorf("the last is the %s", last)
	}
	at := func(what string) int { return slices.Index(s.done, what) }
	for _, lease := range snapshot.Leases {
		if at("Fenced of "+lease.Name) > at("status of "+lease.Name) || at("Complete of "+lease.Name) > at("status of "+lease.Name) {
			t.Errorf("%s is out of order: %q", lease.Name, s.done)
		}
	}
	if slices.Sort(s.done); !slices.Equal(s.done, slices.Sorted(slices.Values(want))) {
		t.Errorf("written are %q", s.done)
	}
}

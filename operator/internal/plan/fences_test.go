// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	farpoolv1alpha1 "farpool.dev/farpool/api/gen/farpool/v1alpha1"
	"farpool.dev/farpool/api/v1alpha1"
	apiac "farpool.dev/farpool/api/v1alpha1/applyconfiguration/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/agent"
)

// The steps of a RepairLease, each by itself. repairs_test.go has them together.

// followed returns a lease that is being followed in a pool whose map has these memory nodes, of processes 0xa and 0xb.
func followed(names ...string) *following {
	d := stageOf(v1alpha1.DataPolicyCache, len(names), names...)
	d.Calls = map[types.UID][]agent.Outcome{}
	d.Agents = map[types.UID]agent.Observation{}
	d.repairs.busy, d.repairs.census = map[string]bool{}, census{within: map[types.UID]string{}}
	return &following{decision: d, lease: &v1alpha1.RepairLease{ObjectMeta: metav1.ObjectMeta{Name: "lease", UID: "lease"}},
		processes: map[string]bool{v1alpha1.ProcessID(0xa): true, v1alpha1.ProcessID(0xb): true}}
}

// says has the memory node at a place report processes that are dead.
func (f *following) says(at int, dead ...*farpoolv1alpha1.DeadClient) {
	f.nodes[at].facts.MemoryNode.Dead, f.nodes[at].facts.MemoryNode.DeadClients = dead, uint64(len(dead))
}

// A shard that is at a repair, as an earlier operator asked it, is asked for no other.
func TestAShardThatIsAtARepairIsAskedForNoOther(t *testing.T) {
	w := newWard(t)
	for _, name := range []string{"b", "c"} {
		w.Agents[types.UID("pod-"+name)].Facts.Ready = false
	}
	first := w.request(v1alpha1.RepairClient{Process: v1alpha1.ProcessID(0x70)})
	first.Name, first.UID = "first", "first"
	w.Calls["first"] = []agent.Outcome{{Call: agent.Call{Lease: "first", Name: "a", Pod: "pod-a", Attempt: 1}, Running: true}}
	w.request(v1alpha1.RepairClient{Process: v1alpha1.ProcessID(0x71)})
	left := []*farpoolv1alpha1.DeadClient{{Process: 0x70, Slots: 1}, {Process: 0x71, Slots: 1}}
	w.report(0, left...)
	w.step()
	w.fences(map[string]*farpoolv1alpha1.DeadClient{"cache-memory-0": left[1]})
	plan := w.step()
	for _, call := range plan.Ask {
		if call.Incarnation == "" {
			t.Errorf("shard %s is asked for another repair", call.Name)
		}
	}
	if words := message(w.lease("by-hand"), v1alpha1.ConditionRepaired); !strings.Contains(words, "does another repair") {
		t.Error(words)
	}
}

// What memory nodes say of a process counts as an echo of its repair for a minute, and no longer.
func TestHowLongAnEchoLasts(t *testing.T) {
	for after, leases := range map[time.Duration]int{leaseEchoes - time.Second: 1, leaseEchoes: 2} {
		w := newWard(t)
		lease := w.request(v1alpha1.RepairClient{Process: v1alpha1.ProcessID(0x77)})
		lease.Status.CompletedAt = &metav1.Time{Time: w.now.Add(-after)}
		w.report(0, &farpoolv1alpha1.DeadClient{Process: 0x77, Name: "etl", Slots: 1})
		if w.step(); len(w.Leases) != leases {
			t.Errorf("%s after its repair: %d RepairLeases", after, len(w.Leases))
		}
	}
}

// Deaths wait for a RepairLease where the operator makes some: not in a paused pool, nor before every agent has been heard.
func TestWhoWaitsForARepairLease(t *testing.T) {
	for name, change := range map[string]func(*ward){
		"paused":        func(w *ward) { w.Pool.Spec.Management = v1alpha1.ManagementPaused },
		"not yet heard": func(w *ward) { w.Agents["pod-c"] = agent.Observation{} },
	} {
		w := newWard(t)
		w.gone("a")
		change(w)
		if plan := w.step(); plan.Status.Backlog != 0 || len(w.Leases) != 0 {
			t.Errorf("%s: %d wait, %d RepairLeases", name, plan.Status.Backlog, len(w.Leases))
		}
	}
}

// A RepairLease gets the number after the highest one that the operator has used, whatever names people give to theirs.
func TestHowRepairLeasesAreNumbered(t *testing.T) {
	for name, next := range map[string]string{"12": "cache-repair-1", "by-hand-3": "cache-repair-1", "cache-repair-99999999999999999999": "cache-repair-1", "cache-repair-4": "cache-repair-5"} {
		w := newWard(t)
		w.request(v1alpha1.RepairClient{Process: v1alpha1.ProcessID(0x70)}).Name = name
		w.gone("a")
		if w.step(); len(w.Leases) != 2 || w.Leases[1].Name != next {
			t.Errorf("beside %s: %s of %d", name, w.Leases[len(w.Leases)-1].Name, len(w.Leases))
		}
	}
}

// A person's RepairLease is made the pool's once, and not while the operator may not act.
func TestARequestIsAdoptedOnce(t *testing.T) {
	adopted := func(plan *decision) (leases int) {
		for _, object := range plan.Apply {
			if _, ok := object.(*apiac.RepairLeaseApplyConfiguration); ok {
				leases++
			}
		}
		return leases
	}
	w := newWard(t)
	w.request(v1alpha1.RepairClient{Process: v1alpha1.ProcessID(0x70)})
	w.Pool.Spec.Management = v1alpha1.ManagementPaused
	d := followed("a")
	d.lease.Name = "by-hand"
	d.Status.Leases = map[string]v1alpha1.RepairLeaseStatus{}
	if d.follow(d.lease, false); len(d.repairs.made) > 0 || adopted(w.step()) > 0 {
		t.Error("it is adopted while the operator may not act")
	}
	w.Pool.Spec.Management = v1alpha1.ManagementManaged
	if first, second := adopted(w.step()), adopted(w.step()); first != 1 || second != 0 {
		t.Errorf("it is adopted %d times, then %d times", first, second)
	}
}

// Every memory node that serves is asked to fence. One whose tables are stopped keeps no other from being asked.
func TestWhoIsAskedToFence(t *testing.T) {
	f := followed("a", "b", "c")
	f.epochs.current.Nodes[0].State = v1alpha1.NodeStopped
	f.status.Processes = []string{v1alpha1.ProcessID(0xa)}
	f.fence(true)
	var asked []string
	for _, call := range f.Ask {
		asked = append(asked, call.Name)
	}
	if !slices.Equal(asked, []string{"b", "c"}) || f.status.Fenced != "0/2" {
		t.Errorf("asked %v, fenced are %s", asked, f.status.Fenced)
	}
}

// Sessions that were ended count over all lives of a memory node. What is left is what its present life says, of all processes together.
func TestWhatAFenceSays(t *testing.T) {
	f := followed("a")
	f.status.Nodes = []v1alpha1.RepairNodeStatus{{Name: "a", Incarnation: "99", SessionsEnded: 3, SlotsLeft: 50, SegmentsLeft: 50}}
	f.outcomes = []agent.Outcome{{Call: agent.Call{Name: "a", Incarnation: "1"}, Fence: &farpoolv1alpha1.FenceResponse{Sessions: 2,
		Left: []*farpoolv1alpha1.DeadClient{{Process: 0xa, Slots: 1, Segments: 10}, {Process: 0xb, Slots: 2, Segments: 20}}}}}
	if at := f.node("a"); !f.fenceNode(&f.epochs.current.Nodes[0]) || at.SessionsEnded != 5 || at.SlotsLeft != 3 || at.SegmentsLeft != 30 {
		t.Errorf("%+v", f.node("a"))
	}
}

// What a memory node says counts if it can be reached and lives the life that the map has.
func TestWhoseWordCounts(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*following)
		counts bool
	}{
		"the life of the map":    {func(*following) {}, true},
		"another life":           {func(f *following) { f.nodes[0].facts.Incarnation = 9 }, false},
		"one that is silent":     {func(f *following) { f.nodes[0].facts = nil }, false},
		"nothing is known of it": {func(f *following) { f.nodes = nil }, false},
	} {
		f := followed("a")
		c.change(f)
		if counts := f.factsOf(&f.epochs.current.Nodes[0]) != nil; counts != c.counts {
			t.Errorf("%s: its word counts: %v", name, counts)
		}
	}
}

// What a compute shard says of memory nodes that the map does not have is passed over. The last attempt counts, of two the first that is known.
func TestWhatARepairSays(t *testing.T) {
	f := followed("a")
	of := func(name string, attempt int32, repaired uint32) agent.Outcome {
		return agent.Outcome{Call: agent.Call{Name: name, Attempt: attempt}, Repair: &farpoolv1alpha1.RepairResponse{Nodes: []*farpoolv1alpha1.RepairResponse_Node{
			{Name: "unknown", SlotsRepaired: 50}, {Name: "a", SlotsRepaired: repaired}}}}
	}
	f.outcomes = []agent.Outcome{of("early", 1, 1), of("first", 2, 7), of("second", 2, 9)}
	if running, last := f.takeRepair(); running || last.Name != "first" || f.status.Shard != "first" || f.status.Attempts != 2 || len(f.status.Nodes) != 1 || f.node("a").SlotsRepaired != 7 {
		t.Errorf("the last is %+v, status %+v", last, f.status)
	}
}

// Nothing is left when every memory node that serves says so, whatever becomes of stopped memory nodes.
func TestWhenNothingIsLeft(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*following)
		clear  bool
	}{
		"all say so":         {func(*following) {}, true},
		"one is silent":      {func(f *following) { f.nodes[2].facts = nil }, false},
		"one names a slot":   {func(f *following) { f.says(2, &farpoolv1alpha1.DeadClient{Process: 0xa, Slots: 1}) }, false},
		"its list is cut":    {func(f *following) { f.nodes[2].facts.MemoryNode.DeadClients = 1 }, false},
		"another is named":   {func(f *following) { f.says(2, &farpoolv1alpha1.DeadClient{Process: 0xc, Slots: 1}) }, true},
		"nothing is of them": {func(f *following) { f.says(2, &farpoolv1alpha1.DeadClient{Process: 0xa}) }, true},
	} {
		f := followed("a", "b", "c")
		f.epochs.current.Nodes[0].State, f.nodes[0].facts = v1alpha1.NodeStopped, nil
		c.change(f)
		if clear := f.clear(); clear != c.clear {
			t.Errorf("%s: nothing is left: %v", name, clear)
		}
	}
}

// Each attempt is another shard's: the next one of the list, and round again.
func TestEachAttemptIsTheNextShards(t *testing.T) {
	f := followed("a")
	for _, name := range []string{"x", "y", "z"} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}
		f.ComputePods = append(f.ComputePods, pod)
		f.Agents[pod.UID] = agent.Observation{Facts: &farpoolv1alpha1.Facts{Ready: true, Epoch: 7}}
		f.repairs.census.within[pod.UID] = "process of " + name
	}
	first, _ := f.shard()
	at := slices.Index(f.ComputePods, first)
	for attempts := range int32(7) {
		f.status.Attempts = attempts
		if pod, ready := f.shard(); pod != f.ComputePods[(at+int(attempts))%3] || ready != 3 {
			t.Errorf("attempt %d is shard %s of %d", attempts+1, pod.Name, ready)
		}
	}
}

// A memory node that names several of the processes is named once.
func TestMemoryNodesAreNamedOnce(t *testing.T) {
	f := followed("a", "b")
	f.says(1, &farpoolv1alpha1.DeadClient{Process: 0xc, Slots: 1}, &farpoolv1alpha1.DeadClient{Process: 0xa, Slots: 1}, &farpoolv1alpha1.DeadClient{Process: 0xb, Slots: 1})
	if naming := f.naming(holds); !slices.Equal(naming, []string{"b"}) {
		t.Error(naming)
	}
}

// A name means the processes that bear it, and none that nobody can name.
func TestWhomANameMeans(t *testing.T) {
	f := followed("a")
	f.says(0, &farpoolv1alpha1.DeadClient{Process: 0x1, Name: "etl"}, &farpoolv1alpha1.DeadClient{Process: 0x2, Name: "another"}, &farpoolv1alpha1.DeadClient{Name: "etl"})
	if silent, live := f.named("etl"); !slices.Equal(silent, []string{v1alpha1.ProcessID(0x1)}) || live != "" {
		t.Errorf("%v, %q", silent, live)
	}
}

// Names may mean as many processes as one call to an agent can name.
func TestHowManyProcessesARequestMayMean(t *testing.T) {
	for _, many := range []int{clientsInLease, clientsInLease + 1} {
		f := followed("a")
		var dead []*farpoolv1alpha1.DeadClient
		for i := range many {
			dead = append(dead, &farpoolv1alpha1.DeadClient{Process: uint64(i + 1), Name: "etl"})
		}
		f.says(0, dead...)
		f.lease.Spec.Clients = []v1alpha1.RepairClient{{Name: "etl"}}
		if wrong := f.resolve(); (wrong != nil) != (many > clientsInLease) || wrong == nil && len(f.calls) != many {
			t.Errorf("%d processes: %+v, %d are called by", many, wrong, len(f.calls))
		}
	}
}

// A status counts what all memory nodes have said. It has no more of them than a map; of those beyond, the map's are kept.
func TestWhatARepairSumsUp(t *testing.T) {
	for _, more := range []int{nodesInMap - 1, nodesInMap} {
		f := followed("a")
		f.node("a").SlotsRepaired = 1
		for i := range more {
			f.node(fmt.Sprintf("gone-%03d", i)).SlotsRepaired, f.node(fmt.Sprintf("gone-%03d", i)).SegmentsAdopted = 1, 2
		}
		f.node("a").SegmentsAdopted = 2
		f.sum()
		kept := more + 1
		if kept > nodesInMap {
			kept = 1
		}
		if s := f.status; len(s.Nodes) != kept || s.SlotsRepaired != int64(kept) || s.SegmentsAdopted != 2*int64(kept) {
			t.Errorf("of %d: %d are kept, %d and %d", more+1, len(s.Nodes), s.SlotsRepaired, s.SegmentsAdopted)
		}
	}
}

// Waits double from a second to the longest.
func TestHowLongIsWaitedAfterFailures(t *testing.T) {
	for failures, wait := range map[int]time.Duration{0: time.Second, 1: time.Second, 2: 2 * time.Second, 3: 4 * time.Second, 6: 32 * time.Second, 7: time.Minute, 8: time.Minute, math.MaxInt: time.Minute} {
		if waits := backoff(failures, time.Minute); waits != wait {
			t.Errorf("%d failures: %s", failures, waits)
		}
	}
	if waits := backoff(math.MaxInt, lastRetry); waits != lastRetry {
		t.Error(waits)
	}
}

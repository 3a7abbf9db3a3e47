// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"

	"farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/render"
)

// declare the memory pools of the spec.
func (d *drill) declare(entries ...v1alpha1.MemoryPool) {
	d.Pool.Spec.Memory.Pools = entries
	d.Pool.Generation++
}

func entryNamed(name string, replicas int32, lend string) v1alpha1.MemoryPool {
	return v1alpha1.MemoryPool{Name: name, Replicas: replicas, Lend: resource.MustParse(lend)}
}

// editEntries has a person add a memory pool, take one away, or give one another number of memory nodes.
func (d *drill) editEntries(random *rand.Rand) {
	entries := slices.Clone(d.Pool.Spec.Memory.Pools)
	name := []string{"memory", "more", "others"}[random.IntN(3)]
	at := slices.IndexFunc(entries, func(entry v1alpha1.MemoryPool) bool { return entry.Name == name })
	replicas := int32(random.IntN(4))
	switch {
	case at < 0:
		entries = append(entries, entryNamed(name, replicas, []string{"256Mi", "512Mi"}[random.IntN(2)]))
	case random.IntN(2) == 0:
		entries = slices.Delete(entries, at, at+1)
	default:
		entries[at].Replicas = replicas
	}
	if slices.ContainsFunc(entries, func(entry v1alpha1.MemoryPool) bool { return entry.Replicas > 0 }) {
		d.declare(entries...)
	}
}

// drained is condition Drained of a memory pool.
func (d *drill) drained(entry string) *metav1.Condition {
	object := d.MemoryPools[v1alpha1.ScaleName("cache", entry)]
	if object == nil {
		return nil
	}
	return meta.FindStatusCondition(object.Status.Conditions, v1alpha1.ConditionDrained)
}

func (d *drill) wantDrained(entry string, status metav1.ConditionStatus, reason, says string) {
	d.t.Helper()
	if c := d.drained(entry); c == nil || c.Status != status || c.Reason != reason || !strings.Contains(c.Message, says) {
		d.t.Errorf("Drained of memory pool %s is %+v; want %s %s with %q", entry, c, status, reason, says)
	}
}

// wantMap wants the map to have these memory nodes, and no key to be lost.
func (d *drill) wantMap(nodes ...string) {
	d.t.Helper()
	d.untilSettled()
	var has []string
	for _, entry := range d.current().Nodes {
		has = append(has, strings.TrimPrefix(entry.Name, "cache-"))
	}
	if !slices.Equal(has, nodes) {
		d.t.Errorf("the map has %v, want %v", has, nodes)
	}
	d.noneLost()
}

func TestMemoryPoolsAreAddedAndTakenAway(t *testing.T) {
	d := newDrill(t, 2, v1alpha1.DataPolicyStore)
	memory, more := entryNamed("memory", 2, "256Mi"), entryNamed("more", 2, "512Mi")
	d.declare(memory, more)
	d.wantMap("memory-0", "memory-1", "more-0", "more-1")
	if pools := d.operation().Spec.Pools; !slices.Equal(pools, []v1alpha1.ResizePool{{Name: "memory", From: 2, To: 2}, {Name: "more", From: 0, To: 2}}) {
		t.Errorf("%+v", pools)
	}
	if lend := d.Nodes["cache-more-0"].Spec.Lend; lend.String() != "512Mi" || d.drained("more") != nil {
		t.Errorf("it lends %s; %+v", lend.String(), d.drained("more"))
	}
	// The first is taken away: what it has moves to the other.
	d.declare(more)
	d.until("keys move", func(*decision) bool { return d.current().Move == 2 })
	d.step(false)
	d.wantDrained("memory", metav1.ConditionFalse, v1alpha1.ReasonDraining, "(cache-memory-0, cache-memory-1): memory nodes 4 to 2, by ResizeOperation cache-resize-2: move 2")
	d.wantMap("more-0", "more-1")
	if pools := d.operation().Spec.Pools; !slices.Equal(pools, []v1alpha1.ResizePool{{Name: "more", From: 2, To: 2}, {Name: "memory", From: 2, To: 0}}) {
		t.Errorf("%+v", pools)
	}
	// One that is emptied stays in the spec, and can have memory nodes again. Another takes its place in one edit.
	d.declare(memory, more)
	d.untilSettled()
	memory.Replicas = 0
	d.declare(memory, more)
	d.wantMap("more-0", "more-1")
	d.wantDrained("memory", metav1.ConditionTrue, v1alpha1.ReasonDrained, "no memory nodes")
	memory.Replicas = 1
	d.declare(memory)
	d.wantMap("memory-0")
	if d.drained("memory") != nil {
		t.Errorf("%+v", d.drained("memory"))
	}
	if operations := len(d.Resizes); operations != 5 {
		t.Errorf("%d ResizeOperations", operations)
	}
}

// A memory pool that comes back with other memory is emptied as it was, before it has memory nodes as it is now.
func TestAMemoryPoolComesBackInAnotherShape(t *testing.T) {
	for what, change := range map[string]func(*v1alpha1.MemoryPool){
		"lend":          func(entry *v1alpha1.MemoryPool) { entry.Lend = resource.MustParse("512Mi") },
		"hugePages":     func(entry *v1alpha1.MemoryPool) { entry.HugePages = v1alpha1.HugePages2Mi },
		"numaAlignment": func(entry *v1alpha1.MemoryPool) { entry.NUMAAlignment = v1alpha1.NUMAAlignmentNone },
	} {
		d := newDrill(t, 2, v1alpha1.DataPolicyStore)
		memory, more := d.Pool.Spec.Memory.Pools[0], entryNamed("more", 1, "256Mi")
		d.declare(memory, more)
		d.untilSettled()
		lives := d.Nodes["cache-memory-0"].UID
		change(&memory)
		memory.Capacity = &v1alpha1.CapacityPolicy{FillPercent: 50, MaxReplicas: 4}
		d.declare(memory, more)
		d.step(false)
		if was := d.MemoryPools["cache-memory"].Spec; was.Declared != 0 || was.Replicas != 0 || was.Entry.Capacity != nil || sameShape(was.Entry, &memory) {
			t.Errorf("%s: %+v", what, was)
		}
		d.wantMap("memory-0", "memory-1", "more-0")
		if d.Nodes["cache-memory-0"].UID == lives || d.Nodes["cache-memory-0"].Spec.Lend.Cmp(memory.Lend) != 0 || !sameShape(d.MemoryPools["cache-memory"].Spec.Entry, &memory) {
			t.Errorf("%s: %+v is not made again as %+v", what, d.Nodes["cache-memory-0"].Spec, memory)
		}
	}
}

// Keys have to be somewhere: where nobody asks for a memory node, one of the spec's stays, or all of a memory pool that is to go.
func TestTheLastMemoryPoolIsNotEmptied(t *testing.T) {
	d := newDrill(t, 2, v1alpha1.DataPolicyStore)
	d.declare(d.Pool.Spec.Memory.Pools[0], entryNamed("more", 0, "256Mi"))
	d.untilSettled()
	d.scaleTo(0)
	for range 20 {
		d.turn()
	}
	if len(d.current().Nodes) != 1 || d.current().Nodes[0].Name != "cache-memory-0" {
		t.Errorf("%+v", d.current().Nodes)
	}
	d.noneLost()
	d.wantLimited(metav1.ConditionTrue, v1alpha1.ReasonLastMemoryPool)
	d.wantDrained("memory", metav1.ConditionFalse, v1alpha1.ReasonDraining, "memory pool memory keeps 1 memory nodes, though it is to have none")
	plan := d.step(false)
	wantCondition(t, plan, v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonLastMemoryPool)
	if spec := d.MemoryPools["cache-memory"].Spec; spec.Replicas != 0 {
		t.Errorf("what was asked for is changed: %+v", spec)
	}
	d.scaleTo(2)
	d.wantNodes(2)
	d.wantLimited(metav1.ConditionFalse, v1alpha1.ReasonAccepted)
	wantCondition(t, d.step(false), v1alpha1.ConditionDegraded, metav1.ConditionFalse, v1alpha1.ReasonHealthy)
}

// The only memory pool comes back with other memory, while all keys lie on it: it stays, and a person is told to add another.
func TestTheOnlyMemoryPoolKeepsItsShape(t *testing.T) {
	d := newDrill(t, 2, v1alpha1.DataPolicyStore)
	d.declare(entryNamed("memory", 3, "512Mi"))
	for range 10 {
		d.turn()
	}
	if len(d.current().Nodes) != 2 || d.Nodes["cache-memory-0"].Spec.Lend.String() != "256Mi" {
		t.Errorf("%+v", d.current().Nodes)
	}
	d.wantLimited(metav1.ConditionTrue, v1alpha1.ReasonLastMemoryPool)
	d.declare(entryNamed("memory", 3, "512Mi"), entryNamed("more", 1, "256Mi"))
	d.wantMap("memory-0", "memory-1", "memory-2", "more-0")
}

// Which memory pool keeps memory nodes where nobody asks for any.
func TestWhichMemoryPoolKeepsSome(t *testing.T) {
	for name, c := range map[string]struct {
		retired []string
		kept    string
		keeps   int32
	}{
		"the first that has keys":                       {nil, "a", 1},
		"one of the spec, though others have more":      {[]string{"a"}, "b", 1},
		"one of the spec, though it has no keys":        {[]string{"a", "b"}, "none", 1},
		"all of one that is to go, if it has to remain": {[]string{"none", "a", "b"}, "a", 2},
	} {
		d := withPools(stageOf(v1alpha1.DataPolicyCache, 4, "cache-a-0", "cache-a-1", "cache-b-0"), "none", "a", "b")
		d.retired, d.limits = map[string]bool{}, map[string]limit{}
		for p := range d.Pool.Spec.Memory.Pools {
			d.Pool.Spec.Memory.Pools[p].Replicas = 0
		}
		for _, entry := range c.retired {
			d.retired[entry] = true
		}
		d.keepSome()
		for _, entry := range d.Pool.Spec.Memory.Pools {
			want := int32(0)
			if entry.Name == c.kept {
				want = c.keeps
			}
			if entry.Replicas != want || (d.limits[entry.Name].reason != "") != (want > 0) {
				t.Errorf("%s: memory pool %s keeps %d: %+v", name, entry.Name, entry.Replicas, d.limits)
			}
		}
		if len(d.degraded) != 1 || d.degraded[0].reason != v1alpha1.ReasonLastMemoryPool {
			t.Errorf("%s: %+v", name, d.degraded)
		}
	}
	// Before there are keys, a memory pool that is to go keeps none.
	d := withPools(stageOf(v1alpha1.DataPolicyCache, 0), "a")
	d.epochs.current, d.retired, d.limits = nil, map[string]bool{"a": true}, map[string]limit{}
	d.Pool.Spec.Memory.Pools[0].Replicas = 0
	if d.keepSome(); len(d.limits)+len(d.degraded) > 0 || d.Pool.Spec.Memory.Pools[0].Replicas != 0 {
		t.Errorf("%+v", d.limits)
	}
}

// A memory pool that has lost its MemoryNodePool as well is drained, as its memory nodes or the map describe it.
func TestAMemoryPoolOfWhichNothingIsWritten(t *testing.T) {
	d := newDrill(t, 2, v1alpha1.DataPolicyStore)
	memory := d.Pool.Spec.Memory.Pools[0]
	d.declare(memory, entryNamed("more", 2, "512Mi"))
	d.untilSettled()
	d.declare(memory)
	delete(d.MemoryPools, "cache-more")
	d.wantMap("memory-0", "memory-1")
	if d.MemoryPools["cache-more"] != nil {
		t.Error("it has a MemoryNodePool again")
	}

	s := stageOf(v1alpha1.DataPolicyStore, 4, "cache-more-0")
	s.Pool.Spec.Memory.Pools = []v1alpha1.MemoryPool{entryNamed("memory", 1, "256Mi")}
	s.epochs.current.Nodes[0].MemoryBytes = 1 << 30
	s.Snapshot.Nodes = map[string]*v1alpha1.MemoryNode{"cache-others-1": {Spec: v1alpha1.MemoryNodeSpec{Lend: resource.MustParse("2Gi")}}}
	s.NodePods = map[string]*corev1.Pod{"cache-pods-0": {}, "cache-nothing": {}, "other-x-0": {}, "cache-far-256": {}, "cache-zero-00": {}, "cache--0": {}}
	s.MemoryPools = map[string]*v1alpha1.MemoryNodePool{"cache-memory": {Spec: v1alpha1.MemoryNodePoolSpec{MemoryPool: "memory"}}, "cache-zero": {Spec: v1alpha1.MemoryNodePoolSpec{MemoryPool: "zero"}}}
	s.retire()
	said := ""
	for _, entry := range s.Pool.Spec.Memory.Pools {
		said += entry.Name + " " + entry.Lend.String() + "; "
	}
	if said != "memory 256Mi; more 1Gi; others 2Gi; pods 256Mi; " || s.retired["memory"] || !s.retired["more"] || !s.retired["pods"] {
		t.Errorf("%s %v", said, s.retired)
	}
	if n := s.beyond("cache-others-1"); n == nil || n.pool.Name != "others" || n.ordinal != 1 {
		t.Errorf("%+v", n)
	}
}

// Until the memory nodes of a memory pool that is taken away are gone, their pods are made as the spec last wanted them.
func TestPodsOfAMemoryPoolThatIsToGo(t *testing.T) {
	d := newDrill(t, 2, v1alpha1.DataPolicyCache)
	memory, more := d.Pool.Spec.Memory.Pools[0], entryNamed("more", 1, "512Mi")
	more.Pod = &v1alpha1.PodOptions{NodeSelector: map[string]string{"rack": "b"}}
	d.declare(memory, more)
	d.until("keys move there", func(*decision) bool { return d.current().Move == 1 })
	d.step(false)
	d.declare(memory)
	// It takes keys when its pod is lost, and what was begun is finished before anything else.
	d.vanish("cache-more-0")
	plan := d.step(false)
	at := slices.IndexFunc(plan.Apply, func(object render.Object) bool {
		pod, is := object.(*corev1ac.PodApplyConfiguration)
		return is && *pod.Name == "cache-more-0"
	})
	if at < 0 {
		t.Fatal("no pod is made")
	}
	if pod := plan.Apply[at].(*corev1ac.PodApplyConfiguration); pod.Spec.NodeSelector["rack"] != "b" {
		t.Errorf("%+v", pod.Spec.NodeSelector)
	}
	d.untilSettled()
	if len(d.current().Nodes) != 2 {
		t.Errorf("%+v", d.current().Nodes)
	}
}

// What keeps a memory pool from being drained is said.
func TestWhatKeepsAMemoryPool(t *testing.T) {
	d := newDrill(t, 2, v1alpha1.DataPolicyStore)
	memory := d.Pool.Spec.Memory.Pools[0]
	d.declare(memory, entryNamed("more", 1, "256Mi"))
	d.untilSettled()
	d.Pool.Spec.Management = v1alpha1.ManagementPaused
	d.declare(memory)
	d.MemoryPools["cache-more"].Spec.Replicas = 0
	d.turn()
	d.wantDrained("more", metav1.ConditionFalse, v1alpha1.ReasonDraining, "(cache-more-0): the operator may not act for the pool now")
	d.Pool.Spec.Management = v1alpha1.ManagementManaged
	d.Pool.Spec.Resize = &v1alpha1.ResizeSpec{Approval: v1alpha1.ApprovalRequired}
	for range 3 {
		d.turn()
	}
	d.wantDrained("more", metav1.ConditionFalse, v1alpha1.ReasonDraining, "waiting for a person's approval")
	d.Pool.Spec.Management = v1alpha1.ManagementPaused
	d.turn()
	d.wantDrained("more", metav1.ConditionFalse, v1alpha1.ReasonDraining, "the operator may not act for the pool now")
	d.Pool.Spec.Management = v1alpha1.ManagementManaged
	d.operation().Spec.RequestedState = v1alpha1.RequestedAbort
	for range 3 {
		d.turn()
	}
	d.wantDrained("more", metav1.ConditionFalse, v1alpha1.ReasonDraining, "ResizeOperation cache-resize-2 was aborted")
	d.Resizes = d.Resizes[:1]
	d.Pool.Spec.Resize = nil
	d.wantMap("memory-0", "memory-1")
}

// Memory nodes that are to take the place of all others may find no room: the others keep the keys meanwhile.
func TestAllMemoryNodesAreReplacedByOnesWithoutAPlace(t *testing.T) {
	d := newDrill(t, 3, v1alpha1.DataPolicyStore)
	d.unplaced["cache-more-0"] = true
	d.declare(entryNamed("more", 1, "256Mi"))
	for range 5 {
		d.turn()
	}
	d.now = d.now.Add(placePatience + time.Second)
	for range 5 {
		d.turn()
	}
	d.wantDrained("memory", metav1.ConditionFalse, v1alpha1.ReasonDraining, "no Kubernetes node can take the pods of memory nodes that are to come (cache-more-0)")
	if spec := d.current(); len(spec.Nodes) != 3 || spec.Move != 0 {
		t.Errorf("%+v", spec)
	}
	delete(d.unplaced, "cache-more-0")
	d.NodePods["cache-more-0"].Status.Conditions = nil
	d.wantMap("more-0")
}

// A person may take memory pools away faster than keys move: a ResizeOperation lists as many as it can, and is the one of its aim all the same.
func TestMoreMemoryPoolsAreDrainedThanAreListed(t *testing.T) {
	d := newDrill(t, 1, v1alpha1.DataPolicyStore)
	entries := d.Pool.Spec.Memory.Pools
	for i := range mostEntries - 1 {
		entries = append(entries, entryNamed("more"+string(rune('a'+i)), 1, "256Mi"))
	}
	d.declare(entries...)
	d.untilSettled()
	if listed := len(d.operation().Spec.Pools); listed != mostEntries {
		t.Errorf("%d are listed", listed)
	}
	d.declare(entries[0], entryNamed("new", 1, "256Mi"))
	d.wantMap("memory-0", "new-0")
	if listed := len(d.operation().Spec.Pools); listed != mostEntries || len(d.Resizes) != 2 {
		t.Errorf("%d are listed by the last of %d", listed, len(d.Resizes))
	}
}

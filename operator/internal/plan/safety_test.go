// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	farpoolv1alpha1 "farpool.dev/farpool/api/gen/farpool/v1alpha1"
	"farpool.dev/farpool/api/v1alpha1"
	apiac "farpool.dev/farpool/api/v1alpha1/applyconfiguration/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/agent"
	"farpool.dev/farpool/operator/internal/observe"
	"farpool.dev/farpool/operator/internal/shardmap"
)

// A move is finished when every giver has finished that very move: an earlier one says nothing about keys that leave now.
func TestAnEarlierMoveFinishesNoLaterOne(t *testing.T) {
	d := newDrill(t, 2, v1alpha1.DataPolicyStore)
	d.aim(3)
	d.wantNodes(3)
	for giver := range 2 {
		if finished := d.Agents[d.NodePods[name(giver)].UID].Facts.GetMemoryNode().GetMoveFinished(); finished != 1 {
			t.Fatalf("%s has finished move %d", name(giver), finished)
		}
	}
	d.aim(4)
	d.until("move 2 begins", func(*decision) bool { return d.current().Move == 2 })
	moving := d.current()
	if len(givers(moving)) != 3 {
		t.Fatalf("%d memory nodes give", len(givers(moving)))
	}
	// The node that gives for the first time is finished; the others have finished the first move alone.
	d.update(name(2), func(facts *farpoolv1alpha1.Facts) { facts.MemoryNode.MoveFinished = 2 })
	for range 3 {
		d.step(false)
	}
	if spec := d.current(); spec.Epoch != moving.Epoch || len(spec.Departures) != len(moving.Departures) {
		t.Fatalf("epoch %d with %d departures follows epoch %d, and keys of move 2 are still at two givers", spec.Epoch, len(spec.Departures), moving.Epoch)
	}
	d.untilSettled()
	d.noneLost()
}

// A node that has left the map stays until each node of the map follows one without it: a node that is late may hold another past.
func TestNothingIsDrainedWhileAnotherNodeIsLate(t *testing.T) {
	for _, late := range []string{"deaf", "silent"} {
		d := newDrill(t, 3, v1alpha1.DataPolicyStore)
		d.aim(2)
		d.until("all keys have left", func(*decision) bool {
			d.clients(always)
			return d.current().Move == 1 && len(d.current().Departures) == 0
		})
		d.deaf[name(0)] = late == "deaf"
		d.until("it leaves the map", func(*decision) bool { return len(d.current().Nodes) == 2 })
		if late == "silent" {
			uid := d.NodePods[name(0)].UID
			d.Agents[uid] = agent.Observation{State: agent.Unreachable, Error: "silent", Facts: d.Agents[uid].Facts}
		}
		for range 4 {
			d.step(false)
			if saidDrained(&node{object: d.Nodes[name(2)]}) || d.NodePods[name(2)] == nil {
				t.Fatalf("%s is removed, and %s, which is %s, may follow a map with it", name(2), name(0), late)
			}
		}
		clear(d.deaf)
		d.hear(name(0))
		d.untilSettled()
		d.noneLost()
	}
}

// A person gives up what one life of a node held. What later lives came to hold is not meant.
func TestALossIsGivenUpForOneLifeOnly(t *testing.T) {
	d := newDrill(t, 3, v1alpha1.DataPolicyStore)
	before := d.current().Nodes[2].Incarnation
	d.begin(name(2), true)
	d.until("the map has its new life", func(*decision) bool { return d.current().Nodes[2].Incarnation != before })
	d.Nodes[name(2)].Annotations = map[string]string{v1alpha1.AnnotationGiveUp: before}
	d.unplaced[name(2)] = true
	d.vanish(name(2))
	d.aim(2)
	for range 8 {
		d.turn()
	}
	if spec := d.current(); spec.Move != 0 || len(spec.Nodes) != 3 {
		t.Fatalf("move %d, %d memory nodes in the map: what a later life held is given up", spec.Move, len(spec.Nodes))
	}
	d.Nodes[name(2)].Annotations[v1alpha1.AnnotationGiveUp] = d.current().Nodes[2].Incarnation
	d.untilSettled()
}

// A node whose object or pod is being deleted does not come into the map: what clients put there would go with it.
func TestANodeThatIsBeingDeletedDoesNotComeIntoTheMap(t *testing.T) {
	for _, what := range []string{"pod", "object"} {
		d := newDrill(t, 2, v1alpha1.DataPolicyStore)
		epoch := d.current().Epoch
		d.aim(3)
		d.until("its process answers", func(*decision) bool {
			pod := d.NodePods[name(2)]
			return pod != nil && pod.Status.Phase == corev1.PodPending
		})
		d.kubelets()
		deleted := &metav1.Time{Time: d.now}
		if what == "pod" {
			d.NodePods[name(2)].DeletionTimestamp = deleted
		} else {
			d.Nodes[name(2)].DeletionTimestamp = deleted
		}
		for range 4 {
			d.step(false)
		}
		if spec := d.current(); spec.Epoch != epoch || inMap(spec, name(2)) {
			t.Fatalf("epoch %d has %s, whose %s is being deleted", spec.Epoch, name(2), what)
		}
		d.vanish(name(2))
		if what == "object" {
			delete(d.Nodes, name(2))
		}
		d.untilSettled()
		d.noneLost()
	}
}

// An operator whose cache does not show the ResizeOperation that is open makes none under another name, whatever the spec asks for by then: the API
// server tells it that the name is taken.
func TestALaggingCacheMakesNoSecondResize(t *testing.T) {
	d := newDrill(t, 2, v1alpha1.DataPolicyCache)
	d.aim(3)
	d.until("it is planned", func(*decision) bool { return len(d.Resizes) == 1 })
	first := d.operation()
	seen := *d.Snapshot
	seen.Resizes = nil
	seen.Pool = d.Pool.DeepCopy()
	seen.Pool.Generation += 3
	lagging := &scene{now: d.now, Snapshot: &seen}
	for _, object := range lagging.decide(t).Apply {
		if made, ok := object.(*apiac.ResizeOperationApplyConfiguration); ok && *made.Name != first.Name {
			t.Errorf("%s is made beside %s, which is open", *made.Name, first.Name)
		}
	}
}

// stageOf returns a decision about memory nodes by their names, in a map whose nodes share the parts, each with a life and facts that follow it.
func stageOf(policy v1alpha1.DataPolicy, inTheMap int, names ...string) *decision {
	d := &decision{Input: Input{Snapshot: &observe.Snapshot{Pool: &v1alpha1.KVPool{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cache", UID: "uid"}, Spec: v1alpha1.KVPoolSpec{DataPolicy: policy, Index: v1alpha1.IndexSpec{Protocol: v1alpha1.ProtocolRACE}}}, Unplaced: map[string]bool{}}, Now: start}}
	spec := &v1alpha1.ShardMapSpec{PoolName: "cache", Epoch: 7, Move: 3, Directory: shardmap.Spread(max(1, inTheMap))}
	for i, name := range names {
		facts := &farpoolv1alpha1.Facts{Name: name, Incarnation: uint64(i + 1), MemoryNode: &farpoolv1alpha1.MemoryNodeFacts{
			Endpoint: name + ":7400", MemoryFresh: true, Shape: &farpoolv1alpha1.MemoryNodeFacts_Race{Race: &farpoolv1alpha1.RaceGeometry{Groups: 1000}}, MoveFinished: 2}}
		if i < inTheMap {
			spec.Nodes = append(spec.Nodes, v1alpha1.ShardMapNode{Name: name, Incarnation: shardmap.FormatIncarnation(facts.Incarnation), State: v1alpha1.NodeServing})
			spec.Tables = append(spec.Tables, v1alpha1.ShardMapTable{ID: int32(i), Node: int32(i)})
			facts.Epoch = 7
		}
		object := &v1alpha1.MemoryNode{ObjectMeta: metav1.ObjectMeta{Name: name}}
		d.nodes = append(d.nodes, &node{name: name, wanted: true, object: object, pod: &corev1.Pod{}, facts: facts, agent: agent.Observation{State: agent.Connected, Facts: facts}})
	}
	d.epochs.current = spec
	return d
}

// Every memory node of the map is checked for being late, whatever is known of the ones before it.
func TestWhoIsLate(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*decision)
		late   []string
	}{
		"nobody": {func(*decision) {}, nil},
		"one behind one that is lost": {func(d *decision) {
			d.Unplaced["a"] = true
			d.nodes[1].facts = nil
		}, []string{"b"}},
		"one that is silent":            {func(d *decision) { d.nodes[2].facts = nil }, []string{"c"}},
		"one that nothing is known of":  {func(d *decision) { d.nodes = d.nodes[1:] }, []string{"a"}},
		"another life at the same time": {func(d *decision) { d.nodes[0].facts.Incarnation = 99 }, []string{"a"}},
		"one with an earlier map":       {func(d *decision) { d.nodes[1].facts.Epoch = 6 }, []string{"b"}},
	} {
		d := stageOf(v1alpha1.DataPolicyCache, 3, "a", "b", "c")
		c.change(d)
		if late := d.late(); !slices.Equal(late, c.late) {
			t.Errorf("%s: %v are late", name, late)
		}
	}
}

// A giver has finished when that very life says so.
func TestWhoHasNotFinished(t *testing.T) {
	for name, c := range map[string]struct {
		change     func(*decision)
		unfinished []string
	}{
		"all": {func(*decision) {}, []string{"a", "b"}},
		"one": {func(d *decision) { d.nodes[1].facts.MemoryNode.MoveFinished = 3 }, []string{"a"}},
		"another life says so": {func(d *decision) {
			for _, n := range d.nodes {
				n.facts.MemoryNode.MoveFinished = 3
			}
			d.nodes[0].facts.Incarnation = 99
		}, []string{"a"}},
		"one behind one that is lost":  {func(d *decision) { d.Unplaced["a"] = true }, []string{"b"}},
		"one that nothing is known of": {func(d *decision) { d.nodes = d.nodes[1:] }, []string{"a", "b"}},
	} {
		d := stageOf(v1alpha1.DataPolicyCache, 3, "a", "b", "c")
		d.epochs.current.Departures = []v1alpha1.Departure{{Part: 2, From: 0}, {Part: 5, From: 1}}
		c.change(d)
		if unfinished := d.unfinished(); !slices.Equal(unfinished, c.unfinished) {
			t.Errorf("%s: %v have not finished", name, unfinished)
		}
		// Where nothing is lost, no room is asked for.
		if d.goOnWithoutTheLost(d.epochs.current.DeepCopy(), 7); name == "all" && (d.moves.awaits != nil || d.epochs.next != nil) {
			t.Errorf("waits for %+v", d.moves.awaits)
		}
	}
}

// What joins is asked for, answers, never had a map, and can be used; one that cannot holds up no other.
func TestWhoComesIntoTheMap(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*decision)
		joined []string
	}{
		"both":                      {func(*decision) {}, []string{"c", "d"}},
		"one that is not wanted":    {func(d *decision) { d.nodes[2].wanted = false }, []string{"d"}},
		"one that is evacuated":     {func(d *decision) { d.nodes[2].evacuated = true }, []string{"d"}},
		"one that is silent":        {func(d *decision) { d.nodes[2].facts = nil }, []string{"d"}},
		"one that had a map":        {func(d *decision) { d.nodes[2].facts.Epoch = 6 }, []string{"d"}},
		"one with earlier memory":   {func(d *decision) { d.nodes[2].facts.MemoryNode.MemoryFresh = false }, []string{"d"}},
		"one without an object":     {func(d *decision) { d.nodes[2].object = nil }, []string{"d"}},
		"one that is being deleted": {func(d *decision) { d.nodes[2].pod.DeletionTimestamp = &metav1.Time{Time: start} }, []string{"d"}},
		"one of another protocol":   {func(d *decision) { d.nodes[2].facts.MemoryNode.Shape = nil }, []string{"d"}},
		"one that was said to go":   {func(d *decision) { d.nodes[2].object.Status.Conditions = saidToGo }, []string{"d"}},
		"one of the map, empty":     {func(d *decision) { d.nodes[1].facts.Epoch = 0 }, []string{"c", "d"}},
	} {
		d := stageOf(v1alpha1.DataPolicyCache, 2, "a", "b", "c", "d")
		c.change(d)
		spec := d.epochs.current.DeepCopy()
		if joined := d.join(spec); joined != (len(c.joined) > 0) {
			t.Errorf("%s: joined is %v", name, joined)
		}
		var nodes []string
		for _, entry := range spec.Nodes[2:] {
			nodes = append(nodes, entry.Name)
		}
		if !slices.Equal(nodes, c.joined) || len(spec.Tables) != len(spec.Nodes) {
			t.Errorf("%s: %v have come, with %d tables of %d nodes", name, nodes, len(spec.Tables), len(spec.Nodes))
		}
		if degraded := len(d.degraded) > 0; degraded != (name == "one of another protocol") {
			t.Errorf("%s: %+v", name, d.degraded)
		}
	}
}

var saidToGo = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonDrained}}

// A node leaves the map when nothing asks for it and it has no part. It is told of the node's object, if there is one.
func TestWhoLeavesTheMap(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*decision)
		events int
	}{
		"with its object":     {func(*decision) {}, 2},
		"without an object":   {func(d *decision) { d.nodes[2].object = nil }, 1},
		"with nothing of it":  {func(d *decision) { d.nodes = d.nodes[:2] }, 1},
		"one that is wanted":  {func(d *decision) { d.nodes[2].wanted = true }, 0},
		"one that has a part": {func(d *decision) { d.epochs.current.Directory.Tables[1] = 2 }, 0},
	} {
		d := stageOf(v1alpha1.DataPolicyStore, 3, "a", "b", "c")
		d.epochs.current.Directory = shardmap.Spread(2)
		d.nodes[2].wanted = false
		c.change(d)
		spec := d.epochs.current.DeepCopy()
		left := d.leave(spec)
		if left != (c.events > 0) || len(d.Events) != c.events || left == inMap(spec, "c") || len(spec.Tables) != len(spec.Nodes) {
			t.Errorf("%s: left is %v, %d events, %d nodes, %d tables", name, left, len(d.Events), len(spec.Nodes), len(spec.Tables))
		}
	}
}

// A pod that has outlived its MemoryNode, and that nothing asks for any more, goes all the same.
func TestAPodWithoutAMemoryNodeGoes(t *testing.T) {
	d := newDrill(t, 2, v1alpha1.DataPolicyCache)
	d.aim(3)
	d.until("it has a pod", func(*decision) bool { return d.NodePods[name(2)] != nil })
	d.kubelets()
	delete(d.Nodes, name(2))
	d.aim(2)
	d.untilSettled()
	d.noneLost()
}

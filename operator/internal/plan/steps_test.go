// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/agent"
	"farpool.dev/farpool/operator/internal/shardmap"
)

// The steps from one map to the next, each by itself. moves_test.go has them together.

// shares gives the parts of a stage's map to these tables, and has a ResizeOperation open that nobody has to approve.
func (d *decision) shares(owners ...int32) *v1alpha1.ShardMapSpec {
	depth := int32(0)
	for 1<<depth < len(owners) {
		depth++
	}
	d.epochs.current.Directory = v1alpha1.Directory{Depth: depth, Tables: owners}
	d.moves.open = &v1alpha1.ResizeOperation{Spec: v1alpha1.ResizeOperationSpec{Approval: v1alpha1.ApprovalAutomatic}}
	return d.epochs.current.DeepCopy()
}

// A map holds 256 memory nodes: no more come into it, and none beyond is missed.
func TestAFullMapTakesNoMemoryNode(t *testing.T) {
	for _, there := range []int{nodesInMap - 1, nodesInMap} {
		var names []string
		for i := range nodesInMap + 1 {
			names = append(names, fmt.Sprintf("node-%03d", i))
		}
		d := stageOf(v1alpha1.DataPolicyCache, there, names...)
		spec := d.epochs.current.DeepCopy()
		missing := len(d.missing(spec))
		if joined := d.join(spec); len(spec.Nodes) != nodesInMap || joined != (there < nodesInMap) || missing != 2*(nodesInMap-there) {
			t.Errorf("of %d in the map: joined is %v, %d are in it, %d were missing", there, joined, len(spec.Nodes), missing)
		}
	}
}

// Tables are counted at memory nodes that stay and serve, and whose memory is not lost. The others keep no split from being complete.
func TestWhoseTablesCount(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*decision)
		tables int32
	}{
		"all":               {func(*decision) {}, 1},
		"not stopped ones":  {func(d *decision) { d.epochs.current.Nodes[0].State = v1alpha1.NodeStopped }, 4},
		"not what is to go": {func(d *decision) { d.nodes[0].wanted = false }, 4},
		"not what is lost":  {func(d *decision) { d.Unplaced["a"] = true }, 4},
		"not what is unheard": {func(d *decision) {
			for _, n := range d.nodes {
				n.agent.Facts = nil
			}
		}, 8},
	} {
		d := stageOf(v1alpha1.DataPolicyCache, 2, "a", "b")
		d.Pool.Spec.Index.RACE = &v1alpha1.RACESpec{LeastTables: 8}
		d.nodes[0].facts.MemoryNode.EvenTables, d.nodes[1].facts.MemoryNode.EvenTables = 1, 4
		c.change(d)
		if tables := d.tablesInUse(d.epochs.current); tables != c.tables {
			t.Errorf("%s: %d tables are in use", name, tables)
		}
	}
}

// Clients are asked to split tables ahead of keys, and people are told; that they are asked no more is told by the abort.
func TestWhenTablesAreSplitAhead(t *testing.T) {
	for _, aborted := range []bool{false, true} {
		d := stageOf(v1alpha1.DataPolicyCache, 2, "a", "b")
		d.Pool.Spec.Index.RACE = &v1alpha1.RACESpec{LeastTables: 8}
		d.nodes[0].facts.MemoryNode.EvenTables = 2
		spec := d.shares(0, 1)
		least, events := int32(8), 1
		if aborted {
			d.moves.held = d.moves.open
			spec.LeastTables, least, events = 8, 0, 0
		}
		if changed := d.splitAhead(spec); !changed || spec.LeastTables != least || len(d.Events) != events {
			t.Errorf("aborted %v: changed %v, %d tables, events %v", aborted, changed, spec.LeastTables, d.Events)
		}
	}
}

// What a move is made of: parts that can leave do, whatever keeps others where they are.
func TestWhatAMoveIsMadeOf(t *testing.T) {
	for name, c := range map[string]struct {
		owners     []int32
		change     func(*decision, *v1alpha1.ShardMapSpec)
		departures []v1alpha1.Departure
		told       string // "": no move begins
		awaits     string // a reason
	}{
		"a node is to go": {owners: []int32{0, 1, 1, 0}, change: func(d *decision, _ *v1alpha1.ShardMapSpec) { d.nodes[0].wanted = false },
			departures: []v1alpha1.Departure{{Part: 0, From: 0}, {Part: 3, From: 0}}, told: "move 4: the keys of 2 of 4 parts move from a to c"},
		"one is stopped, and another can go": {owners: []int32{0, 1, 0, 1}, change: func(d *decision, spec *v1alpha1.ShardMapSpec) {
			d.nodes[0].wanted, d.nodes[1].wanted, spec.Nodes[0].State = false, false, v1alpha1.NodeStopped
		}, departures: []v1alpha1.Departure{{Part: 1, From: 1}, {Part: 3, From: 1}}, told: "move 4: the keys of 2 of 4 parts move from b to c"},
		"one that takes is being deleted, and another can take": {owners: []int32{0, 0, 0, 0}, change: func(d *decision, _ *v1alpha1.ShardMapSpec) {
			d.nodes[0].wanted, d.nodes[1].pod.DeletionTimestamp = false, &metav1.Time{Time: start}
		}, departures: []v1alpha1.Departure{{Part: 2, From: 0}, {Part: 3, From: 0}}, told: "move 4: the keys of 2 of 4 parts move from a to c"},
		"one that is to go is lost": {owners: []int32{0, 1, 1, 2}, change: func(d *decision, _ *v1alpha1.ShardMapSpec) {
			d.nodes[0].wanted, d.Unplaced["a"] = false, true
		}, told: "move 4: 1 of 4 parts, whose memory nodes are gone with what they held, begin empty on others"},
		"one that is to go is lost, and another can go": {owners: []int32{0, 1, 1, 2}, change: func(d *decision, _ *v1alpha1.ShardMapSpec) {
			d.nodes[0].wanted, d.nodes[1].wanted, d.Unplaced["a"] = false, false, true
		}, departures: []v1alpha1.Departure{{Part: 1, From: 1}, {Part: 2, From: 1}}, told: "move 4: the keys of 2 of 4 parts move from b to c; 1 of 4 parts, whose memory nodes are gone with what they held, begin empty on others"},
		"it is the last move": {owners: []int32{0, 1, 1, 0}, change: func(d *decision, spec *v1alpha1.ShardMapSpec) {
			d.nodes[0].wanted, spec.Move = false, v1alpha1.MostMoves-1
		}, departures: []v1alpha1.Departure{{Part: 0, From: 0}, {Part: 3, From: 0}}, told: fmt.Sprintf("move %d: the keys of 2 of 4 parts move from a to c", int64(v1alpha1.MostMoves))},
		"there are no more moves": {owners: []int32{0, 1, 1, 0}, change: func(d *decision, spec *v1alpha1.ShardMapSpec) {
			d.nodes[0].wanted, spec.Move = false, v1alpha1.MostMoves
		}, awaits: v1alpha1.ReasonMovesExhausted},
		"tables alone are to be split": {owners: []int32{0, 1, 2, 0}, change: func(d *decision, _ *v1alpha1.ShardMapSpec) {
			d.Pool.Spec.Index.RACE, d.nodes[0].facts.MemoryNode.EvenTables = &v1alpha1.RACESpec{LeastTables: 8}, 2
		}},
		"one that gives has no place": {owners: []int32{0, 0, 1, 2}, change: func(d *decision, _ *v1alpha1.ShardMapSpec) {
			d.Pool.Spec.DataPolicy, d.nodes[0].wanted, d.Unplaced["a"] = v1alpha1.DataPolicyStore, false, true
		}, awaits: v1alpha1.ReasonMemoryNodesPending},
	} {
		d := stageOf(v1alpha1.DataPolicyCache, 3, "a", "b", "c")
		spec := d.shares(c.owners...)
		c.change(d, spec)
		begun := d.begin(spec)
		told := ""
		for _, event := range d.Events {
			told += event.Note
		}
		if begun != (c.told != "") || told != c.told || !slices.Equal(spec.Departures, c.departures) {
			t.Errorf("%s: begun %v, told %q, departures %v", name, begun, told, spec.Departures)
		}
		if awaits := d.moves.awaits; (awaits == nil) != (c.awaits == "") || awaits != nil && awaits.reason != c.awaits {
			t.Errorf("%s: waits for %+v", name, awaits)
		}
	}
}

// Where memory nodes know of a later move, the map goes on with it, and with the lives that the pool's map has of each.
func TestALaterMoveGoesOnWithTheLivesThatAreKnown(t *testing.T) {
	d := stageOf(v1alpha1.DataPolicyStore, 3, "a", "b", "c")
	lives := d.epochs.current
	further := lives.DeepCopy()
	further.Move, further.Nodes = 4, []v1alpha1.ShardMapNode{lives.Nodes[0], lives.Nodes[2]}
	further.Tables = []v1alpha1.ShardMapTable{{ID: 0, Node: 0}, {ID: 2, Node: 1}}
	further.Directory.Tables = []int32{0, 2, 0, 2}
	further.Departures = []v1alpha1.Departure{{Part: 1, From: 0}, {Part: 2, From: 2}}
	lives.Nodes[0].Endpoint, lives.Nodes[2].Incarnation = "elsewhere:7400", "9"
	spec := graft(further, lives)
	if len(spec.Nodes) != 2 || spec.Nodes[0].Endpoint != "elsewhere:7400" || spec.Nodes[1].Incarnation != "9" || spec.Move != 4 {
		t.Errorf("%+v", spec.Nodes)
	}
	// The other life of c holds nothing that could depart.
	if !slices.Equal(spec.Departures, []v1alpha1.Departure{{Part: 1, From: 0}}) {
		t.Errorf("departures %v", spec.Departures)
	}
}

// A memory node that is to go is drained when no map has it, every other follows such a map, and it knows, or has no process that could. What was said of it is
// believed of one that runs only if it answers.
func TestWhoIsDrained(t *testing.T) {
	runsOn := func(n *node) {
		n.pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}}
	}
	silent := func(n *node) { n.facts, n.agent.State = nil, agent.Unreachable }
	said := func(n *node) { n.object.Status.Conditions = saidToGo }
	mapOf := func(epoch int64, name string) []*v1alpha1.ShardMap {
		return []*v1alpha1.ShardMap{{Spec: v1alpha1.ShardMapSpec{Epoch: epoch, Nodes: []v1alpha1.ShardMapNode{{Name: name}}}}}
	}
	for name, c := range map[string]struct {
		change  func(d *decision, n *node)
		drained bool
	}{
		"it follows the map":                         {func(_ *decision, n *node) { n.facts.Epoch, n.facts.MemoryNode.MemoryFresh = 7, false }, true},
		"it never had a map":                         {func(*decision, *node) {}, true},
		"it follows an earlier map":                  {func(_ *decision, n *node) { n.facts.Epoch = 6 }, false},
		"it follows an earlier map, and had another": {func(_ *decision, n *node) { n.facts.Epoch, n.facts.MemoryNode.MemoryFresh = 6, false }, false},
		"it has memory of before, and no map yet":    {func(_ *decision, n *node) { n.facts.MemoryNode.MemoryFresh = false }, false},
		"it is silent, and runs":                     {func(_ *decision, n *node) { silent(n); runsOn(n) }, false},
		"it is silent, and has no process":           {func(_ *decision, n *node) { silent(n) }, true},
		"it has no object":                           {func(_ *decision, n *node) { n.object = nil }, false},
		"the map has it":                             {func(d *decision, n *node) { d.epochs.current.Nodes[0].Name = n.name }, false},
		"the map that is made has it": {func(d *decision, n *node) {
			d.epochs.next = d.epochs.current.DeepCopy()
			d.epochs.next.Nodes[0].Name = n.name
		}, false},
		"another map is made":            {func(d *decision, _ *node) { d.epochs.next = d.epochs.current.DeepCopy() }, false},
		"not every agent has been heard": {func(d *decision, _ *node) { d.Status.Unsettled = true }, false},
		"another is late":                {func(d *decision, _ *node) { d.nodes[0].facts.Epoch = 6 }, false},
		"it is asked for, and new":       {func(_ *decision, n *node) { n.wanted = true }, false},
		"there is no map, and never was": {func(d *decision, _ *node) {
			d.epochs.current = nil
			d.nodes[0].facts.Epoch, d.nodes[1].facts.Epoch = 0, 0
		}, true},
		"there is no map, and was one":       {func(d *decision, _ *node) { d.epochs.current = nil }, false},
		"that was said, and another is late": {func(d *decision, n *node) { said(n); runsOn(n); d.nodes[0].facts.Epoch = 6 }, true},
		"that was said before it came into a map, and another is late": {func(d *decision, n *node) {
			said(n)
			runsOn(n)
			d.nodes[0].facts.Epoch = 6
			d.ShardMaps = mapOf(6, n.name)
		}, false},
		"that was said while it followed a map that has it, and another is late": {func(d *decision, n *node) {
			said(n)
			runsOn(n)
			n.object.Status.Epoch = 6
			d.nodes[0].facts.Epoch = 6
			d.ShardMaps = mapOf(6, n.name)
		}, false},
		"that was said, another is late, and a map has a third": {func(d *decision, n *node) {
			said(n)
			runsOn(n)
			d.nodes[0].facts.Epoch = 6
			d.ShardMaps = mapOf(6, "z")
		}, true},
		"that was said after it left a map, and another is late": {func(d *decision, n *node) {
			said(n)
			runsOn(n)
			n.object.Status.Epoch = 7
			d.nodes[0].facts.Epoch = 6
			d.ShardMaps = mapOf(6, n.name)
		}, true},
		"that was said, and it is silent":              {func(_ *decision, n *node) { said(n); silent(n); runsOn(n) }, false},
		"that was said, and it has no process":         {func(_ *decision, n *node) { said(n); silent(n) }, true},
		"that was said of one that the map has":        {func(d *decision, n *node) { said(n); d.epochs.current.Nodes[0].Name = n.name }, false},
		"that was said of one that is asked for again": {func(_ *decision, n *node) { said(n); n.wanted = true }, true},
	} {
		d := stageOf(v1alpha1.DataPolicyStore, 2, "a", "b", "c")
		n := d.nodes[2]
		n.wanted = false
		c.change(d, n)
		if drained := d.drained(n); drained != c.drained {
			t.Errorf("%s: drained is %v", name, drained)
		}
	}
}

// How many parts are left is known once it is known among how many memory nodes they are shared.
func TestWhenItIsKnownWhatIsLeft(t *testing.T) {
	noPlace := func(d *decision, at int) {
		d.nodes[at].pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, LastTransitionTime: metav1.NewTime(start.Add(-placePatience))}}
	}
	for name, c := range map[string]struct {
		change func(*decision)
		known  bool
		parts  int32
	}{
		"all are there":    {func(*decision) {}, true, 0},
		"one is to go":     {func(d *decision) { d.nodes[1].wanted = false }, true, 8},
		"it waits for one": {func(d *decision) { d.nodes = append(d.nodes, &node{name: "c", wanted: true}) }, false, 0},
		"one has to leave first": {func(d *decision) {
			d.nodes = append(d.nodes, &node{name: "c", wanted: true})
			d.nodes[1].evacuated = true
		}, true, 8},
		"one finds no place": {func(d *decision) {
			d.nodes = append(d.nodes, &node{name: "c", wanted: true, pod: &corev1.Pod{}})
			noPlace(d, 2)
		}, true, 0},
		"none is to stay":                 {func(d *decision) { d.nodes[0].wanted, d.nodes[1].wanted = false, false }, false, 0},
		"there are too few parts for all": {func(d *decision) { d.epochs.current.Directory = v1alpha1.Directory{Depth: 0, Tables: []int32{0}} }, false, 0},
	} {
		d := stageOf(v1alpha1.DataPolicyStore, 2, "a", "b")
		d.epochs.current.Directory = shardmap.Deepen(d.epochs.current.Directory, 4)
		c.change(d)
		if d.survey(); d.moves.known != c.known || d.moves.partsLeft != c.parts {
			t.Errorf("%s: known %v, %d parts are left", name, d.moves.known, d.moves.partsLeft)
		}
	}
}

// A memory node that is to give parts away and has no key has none to give, and takes nothing of the heap with it.
func TestAnEmptyMemoryNodeHasNothingLeftToMove(t *testing.T) {
	d := stageOf(v1alpha1.DataPolicyStore, 2, "a", "b")
	d.nodes[1].wanted = false
	if d.survey(); !d.moves.counted || d.moves.keysLeft != 0 || d.moves.bytesLeft != 0 {
		t.Errorf("%+v", d.moves)
	}
	d = stageOf(v1alpha1.DataPolicyStore, 2, "a", "b")
	d.nodes[1].wanted = false
	for _, n := range d.nodes {
		n.facts.MemoryNode.Keys, n.facts.MemoryNode.HeapBytesUsed = 10, 1000
	}
	if d.survey(); d.moves.keysLeft != 10 || d.moves.bytesLeft != 1000 {
		t.Errorf("%+v", d.moves)
	}
}

// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"slices"
	"strconv"
	"testing"

	"google.golang.org/protobuf/proto"

	farpoolv1alpha1 "farpool.dev/farpool/api/gen/farpool/v1alpha1"
	"farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/agent"
	"farpool.dev/farpool/operator/internal/shardmap"
)

// holdsMap gives a memory node of a stage the pool's map of an epoch to hold.
func holdsMap(n *node, uid string, epoch uint64) *farpoolv1alpha1.ShardMap {
	n.facts.MemoryNode.Map = &farpoolv1alpha1.ShardMap{PoolUid: uid, Epoch: epoch}
	return n.facts.MemoryNode.Map
}

// Data may lie where a hash secret says as soon as anything knows of a map: an object, the pool's status, or a memory node.
func TestWhetherAPoolEverHadAMap(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*decision)
		had    bool
	}{
		"nothing knows of one": {func(*decision) {}, false},
		"an object":            {func(d *decision) { d.ShardMaps = []*v1alpha1.ShardMap{{}} }, true},
		"the status":           {func(d *decision) { d.Pool.Status.ShardMap = &v1alpha1.ShardMapReference{Epoch: 1} }, true},
		"the last memory node": {func(d *decision) { d.nodes[1].facts.Epoch = 1 }, true},
	} {
		d := stageOf(v1alpha1.DataPolicyStore, 0, "a", "b")
		c.change(d)
		if had := d.everHadMap(); had != c.had {
			t.Errorf("%s: %v", name, had)
		}
	}
}

// Where maps are signed, an epoch counts when a memory node shows this pool's map of it. The newest that is shown is taken, of two the first.
func TestMapsThatAreShown(t *testing.T) {
	d := stageOf(v1alpha1.DataPolicyStore, 3, "a", "b", "c")
	d.mapKey = testMapKey
	if newest := d.newestHeld(); newest != nil {
		t.Errorf("%v is held", newest)
	}
	holdsMap(d.nodes[0], "another", 20)
	newest := holdsMap(d.nodes[1], "uid", 9)
	holdsMap(d.nodes[2], "uid", 9)
	if held, floor := d.newestHeld(), d.floor(); held != newest || floor != 9 {
		t.Errorf("%v is held, and epochs up to %d are used", held, floor)
	}
}

// An epoch that the status alone remembers is passed over, once every memory node of the map has been heard: until then one of them may have its map.
func TestAnEpochThatTheStatusAloneRemembers(t *testing.T) {
	for name, silent := range map[string]bool{"all are heard": false, "one is silent": true} {
		d := stageOf(v1alpha1.DataPolicyStore, 3, "a", "b", "c")
		if silent {
			d.nodes[1].facts = nil
		}
		d.followingMap(9)
		if next := d.epochs.next; (next == nil) != silent || next != nil && next.Epoch != 10 {
			t.Errorf("%s: %+v follows", name, next)
		}
	}
	d := stageOf(v1alpha1.DataPolicyStore, 3, "a", "b", "c")
	if d.followingMap(7); d.epochs.next != nil {
		t.Errorf("nothing has changed, and epoch %d follows", d.epochs.next.Epoch)
	}
}

// The map says which keys a full memory node loses. A Cache evicts unless its spec says otherwise, a Store never does.
func TestTheMapHasTheEvictionPolicy(t *testing.T) {
	for _, c := range []struct {
		policy        v1alpha1.DataPolicy
		asked         v1alpha1.EvictionPolicy
		in, published v1alpha1.EvictionPolicy
		follows       bool
	}{
		{policy: v1alpha1.DataPolicyCache, published: v1alpha1.AllKeysLRU, follows: true},
		{policy: v1alpha1.DataPolicyCache, in: v1alpha1.AllKeysLRU, published: v1alpha1.AllKeysLRU},
		{policy: v1alpha1.DataPolicyCache, asked: v1alpha1.VolatileTTL, in: v1alpha1.AllKeysLRU, published: v1alpha1.VolatileTTL, follows: true},
		{policy: v1alpha1.DataPolicyCache, asked: v1alpha1.NoEviction, in: v1alpha1.AllKeysLFU, follows: true},
		{policy: v1alpha1.DataPolicyCache, asked: v1alpha1.NoEviction},
		{policy: v1alpha1.DataPolicyStore},
		{policy: v1alpha1.DataPolicyStore, asked: v1alpha1.AllKeysLRU},
		{policy: v1alpha1.DataPolicyStore, in: v1alpha1.AllKeysLRU, follows: true},
	} {
		d := stageOf(c.policy, 2, "a", "b")
		d.Pool.Spec.Memory.Eviction, d.epochs.current.Eviction = c.asked, c.in
		d.followingMap(7)
		if follows := d.epochs.next != nil; follows != c.follows {
			t.Errorf("%+v: an epoch follows: %v", c, follows)
		}
		if effective := d.epochs.effective(); effective.Eviction != c.published {
			t.Errorf("%+v: the map has %q", c, effective.Eviction)
		}
	}
	for policy, want := range map[v1alpha1.DataPolicy]v1alpha1.EvictionPolicy{v1alpha1.DataPolicyCache: v1alpha1.AllKeysLRU, v1alpha1.DataPolicyStore: ""} {
		d := stageOf(policy, 0, "a")
		d.epochs.current = nil
		if d.firstMap(0); d.epochs.next == nil || d.epochs.next.Eviction != want {
			t.Errorf("the first map of a %s: %+v", policy, d.epochs.next)
		}
	}
}

// A map that is taken from memory nodes does not say which life each memory is of. The MemoryNodes' statuses do, of this life or of the one before.
func TestWhichLifeAMemoryIsOf(t *testing.T) {
	kept := func(n *node) { n.facts.MemoryNode.MemoryFresh = false }
	for name, c := range map[string]struct {
		change func(*node)
		of     string
	}{
		"the status is of this life":                        {func(n *node) { n.object.Status.Incarnation, n.object.Status.MemoryIncarnation = "3", "1" }, "1"},
		"it is of this life, which began it":                {func(n *node) { n.object.Status.Incarnation = "3" }, ""},
		"it is of the life before":                          {func(n *node) { kept(n); n.object.Status.Incarnation = "2" }, "2"},
		"it is of the life before, whose memory was kept":   {func(n *node) { kept(n); n.object.Status.Incarnation, n.object.Status.MemoryIncarnation = "2", "1" }, "1"},
		"it is of the life before, whose memory is gone":    {func(n *node) { n.object.Status.Incarnation = "2" }, ""},
		"it is of the life before, and another one answers": {func(n *node) { kept(n); n.object.Status.Incarnation, n.facts.Incarnation = "2", 9 }, ""},
		"it is of the life before, and none answers":        {func(n *node) { kept(n); n.object.Status.Incarnation, n.facts = "2", nil }, ""},
		"it says nothing":                                   {func(n *node) { kept(n) }, ""},
	} {
		// Nothing is known of the first, and the second has no object. The third still counts.
		d := stageOf(v1alpha1.DataPolicyStore, 3, "a", "b", "c")
		c.change(d.nodes[2])
		d.nodes[1].object = nil
		d.nodes = d.nodes[1:]
		spec := d.epochs.current.DeepCopy()
		d.rememberMemory(spec)
		if of := spec.Nodes[2].MemoryIncarnation; of != c.of || spec.Nodes[0].MemoryIncarnation+spec.Nodes[1].MemoryIncarnation != "" {
			t.Errorf("%s: it is the memory of %q; %+v", name, of, spec.Nodes)
		}
	}
}

// A memory node that holds another map under the number of the current one is found.
func TestWhoHoldsAnotherMapOfTheSameEpoch(t *testing.T) {
	s := newScene(2, v1alpha1.DataPolicyStore)
	s.carryOut(t, &s.decide(t).Plan)
	current := &s.ShardMaps[0].Spec
	for name, c := range map[string]struct {
		change func(*farpoolv1alpha1.ShardMap)
		found  string
	}{
		"the same map":       {func(*farpoolv1alpha1.ShardMap) {}, ""},
		"another map":        {func(held *farpoolv1alpha1.ShardMap) { held.Nodes[0].Endpoint = "elsewhere:7400" }, "b"},
		"an earlier epoch":   {func(held *farpoolv1alpha1.ShardMap) { held.Epoch, held.Move = 0, 3 }, ""},
		"another, and later": {func(held *farpoolv1alpha1.ShardMap) { held.Epoch++ }, ""},
	} {
		d := stageOf(v1alpha1.DataPolicyStore, 2, "a", "b")
		held, err := shardmap.ToMessage(current)
		if err != nil {
			t.Fatal(err)
		}
		c.change(held)
		d.nodes[1].facts.MemoryNode.Map = held
		if found := d.conflicting(current); found != c.found {
			t.Errorf("%s: %q is found", name, found)
		}
	}
}

// A memory node that can be reached and lags receives the map, even if it has left it. One that is to join receives the first map that has it, and no earlier one.
func TestWhoIsToldTheMap(t *testing.T) {
	d := stageOf(v1alpha1.DataPolicyStore, 3, "a", "b", "c", "newcomer", "left")
	slices.Reverse(d.nodes)
	d.nodeNamed("a").facts.Epoch = 6
	d.nodeNamed("c").facts = nil
	d.nodeNamed("left").wanted, d.nodeNamed("left").facts.Epoch = false, 5
	// The newcomer comes first: those behind it are told all the same.
	d.nodes[0], d.nodes[1] = d.nodes[1], d.nodes[0]
	d.publications()
	var told []string
	for _, publication := range d.Publish {
		told = append(told, publication.Node)
	}
	if !slices.Equal(told, []string{"left", "a"}) {
		t.Errorf("%v are told", told)
	}
}

// What an epoch is made for is told in an event.
func TestWhyAnEpochFollows(t *testing.T) {
	for why, change := range map[string]func(now *v1alpha1.ShardMapSpec){
		"the same nodes as before": func(*v1alpha1.ShardMapSpec) {},
		"c comes into the pool as incarnation 5": func(now *v1alpha1.ShardMapSpec) {
			now.Nodes = append(now.Nodes, v1alpha1.ShardMapNode{Name: "c", Incarnation: "5", State: v1alpha1.NodeServing})
		},
		"b is incarnation 9, serving":                 func(now *v1alpha1.ShardMapSpec) { now.Nodes[1].Incarnation = "9" },
		"b is incarnation 9 with its memory, serving": func(now *v1alpha1.ShardMapSpec) { now.Nodes[1].Incarnation, now.Nodes[1].MemoryIncarnation = "9", "2" },
		"a is stopped": func(now *v1alpha1.ShardMapSpec) { now.Nodes[0].State = v1alpha1.NodeStopped },
		"b left it, as nothing lies there any more":                 func(now *v1alpha1.ShardMapSpec) { now.Nodes = now.Nodes[:1] },
		"move 4 of 1 parts begins":                                  func(now *v1alpha1.ShardMapSpec) { now.Move, now.Departures = 4, now.Departures[:1] },
		"move 3 is finished":                                        func(now *v1alpha1.ShardMapSpec) { now.Departures = nil },
		"move 3 goes on without what is lost":                       func(now *v1alpha1.ShardMapSpec) { now.Departures = now.Departures[:1] },
		"the hash space has 8 parts":                                func(now *v1alpha1.ShardMapSpec) { now.Directory = shardmap.Deepen(now.Directory, 3) },
		"tables are split ahead of keys into 8 at each memory node": func(now *v1alpha1.ShardMapSpec) { now.LeastTables = 8 },
		"tables are split as keys come":                             func(now *v1alpha1.ShardMapSpec) { now.LeastTables = 0 },
		"the eviction policy is allkeys-lru":                        func(now *v1alpha1.ShardMapSpec) { now.Eviction = v1alpha1.AllKeysLRU },
		"a is stopped, b is stopped, move 3 is finished": func(now *v1alpha1.ShardMapSpec) {
			now.Nodes[0].State, now.Nodes[1].State, now.Departures = v1alpha1.NodeStopped, v1alpha1.NodeStopped, nil
		},
		"a is stopped, b is stopped, move 3 is finished and 1 more": func(now *v1alpha1.ShardMapSpec) {
			now.Nodes[0].State, now.Nodes[1].State, now.Departures, now.LeastTables = v1alpha1.NodeStopped, v1alpha1.NodeStopped, nil, 0
		},
		"b left it, as nothing lies there any more, the hash space has 8 parts": func(now *v1alpha1.ShardMapSpec) {
			now.Nodes, now.Directory = now.Nodes[:1], shardmap.Deepen(now.Directory, 3)
		},
	} {
		d := stageOf(v1alpha1.DataPolicyStore, 2, "a", "b")
		d.epochs.current.Directory = shardmap.Deepen(shardmap.Spread(2), 2)
		d.epochs.current.Departures, d.epochs.current.LeastTables = []v1alpha1.Departure{{Part: 0, From: 1}, {Part: 2, From: 1}}, 4
		d.epochs.next = d.epochs.current.DeepCopy()
		change(d.epochs.next)
		if says := d.whyNext(); says != why {
			t.Errorf("it says %q, want %q", says, why)
		}
	}
	d := stageOf(v1alpha1.DataPolicyStore, 2, "a", "b")
	d.epochs.current, d.epochs.next = nil, d.epochs.current
	if says := d.whyNext(); says != "2 memory nodes serve a table each" {
		t.Errorf("it says %q", says)
	}
}

// A process is reachable when there is a pod of it and its agent answers.
func TestWhoIsReachable(t *testing.T) {
	n := stageOf(v1alpha1.DataPolicyStore, 1, "a").nodes[0]
	if !n.reachable() {
		t.Error("one that answers is not")
	}
	n.agent.State = agent.Unreachable
	if n.reachable() {
		t.Error("one that is silent is")
	}
	n.agent.State, n.pod = agent.Connected, nil
	if n.reachable() {
		t.Error("one without a pod is")
	}
}

// Lists for people have three names and count the rest.
func TestSomeNames(t *testing.T) {
	for want, list := range map[string][]string{"": nil, "a": {"a"}, "a, b, c": {"a", "b", "c"}, "a, b, c and 2 more": {"a", "b", "c", "d", "e"}} {
		if said := some(list); said != want {
			t.Errorf("%v: %q", list, said)
		}
	}
}

// What is heard of a life whose memory another one has taken over is late, as during a hand-over between two operators: the map does not go back to it, and no
// loss is seen where none was.
func TestALateReportOfAnEarlierLife(t *testing.T) {
	s := newScene(2, v1alpha1.DataPolicyStore)
	s.carryOut(t, &s.decide(t).Plan)
	late := s.Agents["pod-cache-memory-0"]
	s.answer("cache-memory-0", 200, nil)
	s.Agents["pod-cache-memory-0"].Facts.MemoryNode.MemoryFresh = false
	s.carryOut(t, &s.decide(t).Plan)
	s.carryOut(t, &s.decide(t).Plan)
	now := s.Agents["pod-cache-memory-0"]
	s.Agents["pod-cache-memory-0"] = late
	if plan := s.decide(t); made(plan) != 0 || planned(&plan.Plan) != nil && planned(&plan.Plan).Epoch > 2 {
		t.Errorf("epoch %d is made of what an earlier life said", made(plan))
	}
	// What others say counts all the same.
	follows := s.Agents["pod-cache-memory-1"]
	s.answer("cache-memory-1", 300, nil)
	s.Agents["pod-cache-memory-1"].Facts.MemoryNode.MemoryFresh = false
	if plan := s.decide(t); made(plan) != 3 || planned(&plan.Plan).Nodes[0].Incarnation != "200" || planned(&plan.Plan).Nodes[1].Incarnation != "300" {
		t.Errorf("epoch %d is made: %+v", made(plan), planned(&plan.Plan))
	}
	s.Agents["pod-cache-memory-0"], s.Agents["pod-cache-memory-1"] = now, follows
	if plan := s.decide(t); made(plan) != 0 || len(plan.Publish) != 0 {
		t.Errorf("epoch %d is made, and %d memory nodes are told, though all is as it was", made(plan), len(plan.Publish))
	}
}

// A memory node that restarts without its memory, in the same pod, is another life all the same. What is heard of the one before afterwards changes no map,
// whether that one had formatted its memory or taken it over; and the life that is there goes on to count.
func TestALateReportOfALifeBeforeAColdRestart(t *testing.T) {
	for name, tookOver := range map[string]bool{"of a life that formatted its memory": false, "of a life that had taken its memory over": true} {
		for _, policy := range []v1alpha1.DataPolicy{v1alpha1.DataPolicyStore, v1alpha1.DataPolicyCache} {
			t.Run(name+", "+string(policy), func(t *testing.T) {
				const pod = "pod-cache-memory-0"
				s := newScene(2, policy)
				settle := func() {
					t.Helper()
					for range 6 {
						s.carryOut(t, &s.decide(t).Plan)
					}
				}
				settle()
				if tookOver {
					s.answer("cache-memory-0", 150, s.Agents[pod].Facts.GetMemoryNode().GetMap())
					s.Agents[pod].Facts.MemoryNode.MemoryFresh = false
					settle()
				}
				late := s.Agents[pod]
				late.Facts.MemoryNode.MemoryFresh = !tookOver
				s.answer("cache-memory-0", 200, nil)
				s.Nodes["cache-memory-0"].Annotations = map[string]string{v1alpha1.AnnotationAcceptDataLoss: "200"}
				settle()
				now := s.Agents[pod]
				current := s.ShardMaps[len(s.ShardMaps)-1].Spec
				if entry := current.Nodes[0]; entry.Incarnation != "200" || entry.MemoryIncarnation != "" || entry.State != v1alpha1.NodeServing {
					t.Fatalf("epoch %d has %+v", current.Epoch, entry)
				}
				s.Agents[pod] = late
				if plan := s.decide(t); made(plan) != 0 || planned(&plan.Plan) != nil && planned(&plan.Plan).Epoch > current.Epoch {
					t.Errorf("epoch %d is made of what an earlier life said: %+v", made(plan), planned(&plan.Plan).Nodes[0])
				}
				settle()
				s.Agents[pod] = now
				settle()
				if entry := s.ShardMaps[len(s.ShardMaps)-1].Spec.Nodes[0]; entry.Incarnation != "200" || entry.MemoryIncarnation != "" || entry.State != v1alpha1.NodeServing {
					t.Errorf("at last the map has %+v", entry)
				}
			})
		}
	}
}

// An earlier life is known by any map that has it: one that has an object still, or the one that it holds itself. Only one that holds the pool's map of now is a
// later one than the life that this map has: then it was that one's report that was late.
func TestWhichLifeIsTheLaterOne(t *testing.T) {
	const pod = "pod-cache-memory-0"
	for name, c := range map[string]struct {
		incarnation         uint64
		forgotten           bool
		holds               func(maps []*farpoolv1alpha1.ShardMap) *farpoolv1alpha1.ShardMap
		counts              bool
		memoryIsOfAnEarlier bool
	}{
		"a map's object has it":                            {incarnation: 100, holds: func([]*farpoolv1alpha1.ShardMap) *farpoolv1alpha1.ShardMap { return nil }},
		"it holds a map that has it":                       {incarnation: 100, forgotten: true, holds: func(maps []*farpoolv1alpha1.ShardMap) *farpoolv1alpha1.ShardMap { return maps[0] }},
		"no map has it":                                    {incarnation: 300, holds: func([]*farpoolv1alpha1.ShardMap) *farpoolv1alpha1.ShardMap { return nil }, counts: true},
		"no map has it, not even the old one that it kept": {incarnation: 300, holds: func(maps []*farpoolv1alpha1.ShardMap) *farpoolv1alpha1.ShardMap { return maps[0] }, counts: true},
		"a map has it, and it holds the newest":            {incarnation: 100, holds: func(maps []*farpoolv1alpha1.ShardMap) *farpoolv1alpha1.ShardMap { return maps[1] }, counts: true},
		"a map has it, and it holds another newest": {incarnation: 100, holds: func(maps []*farpoolv1alpha1.ShardMap) *farpoolv1alpha1.ShardMap {
			other := proto.CloneOf(maps[1])
			other.Nodes[1].MemoryBytes++
			return other
		}},
		"its memory was taken over by the life that the map has": {incarnation: 100, forgotten: true, memoryIsOfAnEarlier: true, holds: func([]*farpoolv1alpha1.ShardMap) *farpoolv1alpha1.ShardMap { return nil }},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(2, v1alpha1.DataPolicyCache)
			s.carryOut(t, &s.decide(t).Plan)
			maps := []*farpoolv1alpha1.ShardMap{s.Agents[pod].Facts.GetMemoryNode().GetMap()}
			s.answer("cache-memory-0", 200, nil)
			s.Agents[pod].Facts.MemoryNode.MemoryFresh = !c.memoryIsOfAnEarlier
			s.carryOut(t, &s.decide(t).Plan)
			maps = append(maps, s.Agents[pod].Facts.GetMemoryNode().GetMap())
			if c.forgotten {
				s.ShardMaps = s.ShardMaps[1:]
			}
			s.answer("cache-memory-0", c.incarnation, c.holds(maps))
			plan := s.decide(t)
			if next := published(t, plan); (next.Nodes[0].Incarnation == strconv.FormatUint(c.incarnation, 10)) != c.counts {
				t.Errorf("memory nodes are told %+v", next.Nodes)
			}
		})
	}
}

// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	farpoolv1alpha1 "farpool.dev/farpool/api/gen/farpool/v1alpha1"
	"farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/agent"
	"farpool.dev/farpool/operator/internal/render"
)

// What statuses say, condition by condition.

// What people read of conditions and of processes is whole where it fits.
func TestWordsFitWhereTheyStand(t *testing.T) {
	const fits, cut = "x", "..."
	for name, c := range map[string]struct {
		limit int
		words func(string) string
	}{
		"a condition":           {1024, clip},
		"a refusal":             {500, refusal},
		"the last line of many": {300, func(text string) string { return lastLine("before\n" + text + "\n") }},
		"the only line":         {300, lastLine},
	} {
		whole, long := strings.Repeat(fits, c.limit), strings.Repeat(fits, c.limit+1)
		if c.words(whole) != whole || c.words(long) == long || !strings.HasSuffix(c.words(long), cut) {
			t.Errorf("%s: %d and %d bytes become %d and %d", name, len(whole), len(long), len(c.words(whole)), len(c.words(long)))
		}
	}
}

// A memory node that is silent starts, unless it served already: of that nothing is known.
func TestAMemoryNodeThatIsSilent(t *testing.T) {
	ready := []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}, {Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	for name, c := range map[string]struct {
		change func(d *decision, n *node)
		reason string
	}{
		"it is new": {func(d *decision, n *node) { d.epochs.current.Nodes[0].Name = "b" }, v1alpha1.ReasonStarting},
		"it is new, and the kubelet finds it ready": {func(d *decision, n *node) { d.epochs.current.Nodes[0].Name, n.pod.Status.Conditions = "b", ready }, v1alpha1.ReasonStarting},
		"the map has it": {func(_ *decision, n *node) {}, v1alpha1.ReasonStarting},
		"the map has it, and it is not ready": {func(_ *decision, n *node) {
			n.pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse}}
		}, v1alpha1.ReasonStarting},
		"the map has it, and it is ready": {func(_ *decision, n *node) { n.pod.Status.Conditions = ready }, v1alpha1.ReasonAgentUnreachable},
		"it was heard before":             {func(_ *decision, n *node) { n.agent.Facts = &farpoolv1alpha1.Facts{} }, v1alpha1.ReasonAgentUnreachable},
		"it was heard before, and is no use": {func(d *decision, n *node) {
			d.epochs.current.Nodes[0].Name, n.agent.Facts = "b", &farpoolv1alpha1.Facts{}
		}, v1alpha1.ReasonAgentUnreachable},
	} {
		d := stageOf(v1alpha1.DataPolicyStore, 1, "a")
		n := d.nodes[0]
		n.facts, n.agent, n.pod.Status.Phase = nil, agent.Observation{State: agent.Unreachable}, corev1.PodRunning
		c.change(d, n)
		if got := d.nodeReady(n); got.Reason != c.reason {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// The epoch of a memory node's status does not flicker while it is being told another.
func TestTheEpochOfAMemoryNode(t *testing.T) {
	for name, c := range map[string]struct {
		follows uint64
		told    bool
		noMap   bool
		says    int64
	}{
		"it is being told the next": {6, true, false, 4}, "it follows the map, others are told": {7, true, false, 7}, "nobody is told": {6, false, false, 6}, "there is no map": {6, false, true, 6},
	} {
		d := stageOf(v1alpha1.DataPolicyStore, 1, "a")
		n := d.nodes[0]
		n.object.Status.Epoch, n.facts.Epoch, n.pool = 4, c.follows, &v1alpha1.MemoryPool{}
		if c.told {
			d.Publish = []Publication{{}}
		}
		if c.noMap {
			d.epochs.current = nil
		}
		if status := d.nodeStatus(n, metav1.Condition{}); status.Epoch != c.says {
			t.Errorf("%s: epoch %d", name, status.Epoch)
		}
	}
}

// What a memory node lost is told when it is found, and said for as long as its memory lasts.
func TestWhatIsSaidOfALoss(t *testing.T) {
	const serving, stopped = v1alpha1.NodeServing, v1alpha1.NodeStopped
	for name, c := range map[string]struct {
		policy                       v1alpha1.DataPolicy
		state                        v1alpha1.NodeState
		before, lost                 string // incarnations
		told, reason, lostSince, say string
	}{
		"nothing was before":           {v1alpha1.DataPolicyStore, serving, "", "", "", v1alpha1.ReasonNoLoss, "", "as old as its tables"},
		"the same life":                {v1alpha1.DataPolicyStore, serving, "1", "", "", v1alpha1.ReasonNoLoss, "", "as old as its tables"},
		"a Cache's":                    {v1alpha1.DataPolicyCache, serving, "9", "", v1alpha1.ReasonTablesLost, v1alpha1.ReasonTablesLost, "9", "what incarnation 9 held is lost"},
		"a Store's":                    {v1alpha1.DataPolicyStore, stopped, "9", "", v1alpha1.ReasonDataLost, v1alpha1.ReasonStopped, "9", "to go on with them empty"},
		"a Store's that is given up":   {v1alpha1.DataPolicyStore, serving, "9", "", v1alpha1.ReasonDataLossAccepted, v1alpha1.ReasonDataLossAccepted, "9", "was given up"},
		"a Cache's of before":          {v1alpha1.DataPolicyCache, serving, "1", "8", "", v1alpha1.ReasonTablesLost, "8", "what incarnation 8 held is lost"},
		"a Store's of before":          {v1alpha1.DataPolicyStore, stopped, "1", "8", "", v1alpha1.ReasonStopped, "8", "to go on with them empty"},
		"a Store's that was accepted":  {v1alpha1.DataPolicyStore, serving, "1", "8", "", v1alpha1.ReasonDataLossAccepted, "8", "was given up"},
		"a Cache's that a map stopped": {v1alpha1.DataPolicyCache, stopped, "1", "8", "", v1alpha1.ReasonStopped, "8", "to go on with them empty"},
	} {
		d := stageOf(c.policy, 1, "a")
		entry := &d.epochs.current.Nodes[0]
		entry.State = c.state
		before := v1alpha1.MemoryNodeStatus{Incarnation: c.before, LostIncarnation: c.lost}
		now := before
		d.dataLoss(d.nodes[0], entry, before, &now)
		told := ""
		if len(d.Status.Events) > 0 {
			told = d.Status.Events[0].Reason
		}
		if said := meta.FindStatusCondition(now.Conditions, v1alpha1.ConditionDataLost); said.Reason != c.reason || !strings.Contains(said.Message, c.say) || told != c.told || now.LostIncarnation != c.lostSince || now.Incarnation != "1" {
			t.Errorf("%s: told %q, %+v, lost %q", name, told, said, now.LostIncarnation)
		}
	}
}

// A ShardMap says which of its memory nodes follow it. That stays, even if some are silent now, until another epoch takes its place.
func TestWhatAShardMapSays(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*decision)
		status metav1.ConditionStatus
		reason string
	}{
		"all follow it":              {func(*decision) {}, metav1.ConditionTrue, v1alpha1.ReasonPublished},
		"one follows an earlier one": {func(d *decision) { d.nodes[1].facts.Epoch = 6 }, metav1.ConditionFalse, v1alpha1.ReasonPublishing},
		"one is silent":              {func(d *decision) { d.nodes[1].facts = nil }, metav1.ConditionFalse, v1alpha1.ReasonPublishing},
		"of one nothing is known":    {func(d *decision) { d.nodes = d.nodes[:1] }, metav1.ConditionFalse, v1alpha1.ReasonPublishing},
		"one is silent that had said so": {func(d *decision) {
			d.nodes[1].facts = nil
			d.ShardMaps[0].Status.Conditions = saidOfMap(metav1.ConditionTrue)
		}, metav1.ConditionTrue, "Said"},
		"one is silent that had not": {func(d *decision) {
			d.nodes[1].facts = nil
			d.ShardMaps[0].Status.Conditions = saidOfMap(metav1.ConditionFalse)
		}, metav1.ConditionFalse, v1alpha1.ReasonPublishing},
		"another is made":               {func(d *decision) { d.epochs.next = d.epochs.current.DeepCopy() }, metav1.ConditionFalse, v1alpha1.ReasonSuperseded},
		"it is not the pool's any more": {func(d *decision) { d.epochs.current = d.epochs.current.DeepCopy() }, metav1.ConditionFalse, v1alpha1.ReasonSuperseded},
		"another follows it, it was before": {func(d *decision) {
			d.epochs.current = d.epochs.current.DeepCopy()
			d.ShardMaps[0].Status.Conditions = saidOfMap(metav1.ConditionTrue)
		}, metav1.ConditionFalse, v1alpha1.ReasonSuperseded},
	} {
		d := stageOf(v1alpha1.DataPolicyStore, 2, "a", "b")
		object := &v1alpha1.ShardMap{ObjectMeta: metav1.ObjectMeta{Name: "map"}, Spec: *d.epochs.current}
		d.ShardMaps, d.epochs.current = []*v1alpha1.ShardMap{object}, &object.Spec
		d.Status.Maps = map[string]v1alpha1.ShardMapStatus{}
		c.change(d)
		d.mapStatuses()
		if said := meta.FindStatusCondition(d.Status.Maps["map"].Conditions, v1alpha1.ConditionPublished); said.Status != c.status || said.Reason != c.reason {
			t.Errorf("%s: %+v", name, said)
		}
	}
}

func saidOfMap(status metav1.ConditionStatus) []metav1.Condition {
	return []metav1.Condition{{Type: v1alpha1.ConditionPrepared, Status: status, Reason: "Said"}, {Type: v1alpha1.ConditionPublished, Status: status, Reason: "Said"}}
}

// The pool counts the memory nodes that the spec asks for, whichever come first, and keeps what its status has of its template and of its map.
func TestWhatThePoolSays(t *testing.T) {
	s := newScene(3, v1alpha1.DataPolicyCache)
	s.carryOut(t, &s.decide(t).Plan)
	plan := s.decide(t)
	if status := plan.Status.Pool; status.Memory.Summary != "3/3" || status.Compute != nil || status.Endpoint != "" {
		t.Errorf("%+v", status)
	}
	s.withShard()
	s.Pool.Status.Template = &v1alpha1.TemplateStatus{Version: 2, Image: "kept"}
	s.Pool.Status.ShardMap.Name = "kept"
	plan = s.decide(t)
	if status := plan.Status.Pool; status.Compute == nil || status.Compute.Summary != "1/1" || status.Endpoint == "" || status.Template.Image != "kept" || status.ShardMap.Name != "kept" {
		t.Errorf("%+v", status)
	}
	// A template that this operator does not have is nothing to write down.
	s.Pool.Status.Template = nil
	for _, object := range s.Nodes {
		object.Spec.TemplateVersion = render.Newest + 1
	}
	if template := s.decide(t).Status.Pool.Template; template != nil {
		t.Errorf("%+v", template)
	}
	// A memory node that has to leave comes before the ones that the spec asks for.
	d := stageOf(v1alpha1.DataPolicyCache, 0)
	var nodes []nodeCondition
	for _, n := range []*node{{name: "a"}, {name: "b", wanted: true}, {name: "c", wanted: true}} {
		n.pool = &v1alpha1.MemoryPool{}
		nodes = append(nodes, nodeCondition{n, metav1.Condition{Status: metav1.ConditionTrue}})
	}
	nodes[2].ready.Status = metav1.ConditionFalse
	if d.poolStatus(nodes); d.Status.Pool.Memory.Summary != "1/2" {
		t.Errorf("%+v", d.Status.Pool.Memory)
	}
}

// Compute shards of all compute pools are counted together. They have settled when each Deployment has, and a compute pool that has none yet asks for none.
func TestWhatComputeShardsSumUpTo(t *testing.T) {
	status := func(observed int64, replicas, updated, ready int32) *appsv1.Deployment {
		return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "cache-a", Generation: 2}, Status: appsv1.DeploymentStatus{ObservedGeneration: observed, Replicas: replicas, UpdatedReplicas: updated, ReadyReplicas: ready}}
	}
	for name, c := range map[string]struct {
		first   *appsv1.Deployment // of two shards; the other compute pool has one, which is ready
		asked   int32
		ready   int32
		settled bool
	}{
		"all are ready":         {status(2, 2, 2, 2), 2, 3, true},
		"it is not seen yet":    {status(1, 2, 2, 2), 2, 3, false},
		"one is of before":      {status(2, 2, 1, 2), 2, 3, false},
		"one of before is left": {status(2, 3, 2, 2), 2, 3, false},
		"one is not ready":      {status(2, 2, 2, 1), 2, 2, false},
		"there is none":         {nil, 2, 1, false},
		"there is to be none":   {nil, 0, 1, true},
	} {
		d := stageOf(v1alpha1.DataPolicyCache, 0)
		d.pool = render.Pool{Name: "cache", Spec: v1alpha1.KVPoolSpec{Compute: &v1alpha1.ComputeSpec{Pools: []v1alpha1.ComputePool{{Name: "a", Replicas: c.asked}, {Name: "b", Replicas: 1}}}}}
		d.Deployments = map[string]*appsv1.Deployment{"cache-b": status(2, 1, 1, 1)}
		if c.first != nil {
			d.Deployments["cache-a"] = c.first
		}
		if s := d.computeShards(); s.desired != c.asked+1 || s.ready != c.ready || s.settled != c.settled || s.trouble != "" {
			t.Errorf("%s: %+v", name, s)
		}
	}
	d := stageOf(v1alpha1.DataPolicyCache, 0)
	d.pool = render.Pool{Name: "cache", Spec: v1alpha1.KVPoolSpec{Compute: &v1alpha1.ComputeSpec{Pools: []v1alpha1.ComputePool{{Name: "a", Replicas: 2}}}}}
	for trouble, c := range map[string]appsv1.DeploymentCondition{
		"Deployment cache-a: quota": {Type: appsv1.DeploymentReplicaFailure, Status: corev1.ConditionTrue, Message: "quota"},
		"":                          {Type: appsv1.DeploymentProgressing, Status: corev1.ConditionTrue, Message: "it goes on"},
	} {
		deployment := status(2, 2, 2, 2)
		deployment.Status.Conditions = []appsv1.DeploymentCondition{c, {Type: appsv1.DeploymentReplicaFailure, Status: corev1.ConditionFalse, Message: "no more"}}
		d.Deployments = map[string]*appsv1.Deployment{"cache-a": deployment}
		if s := d.computeShards(); s.trouble != trouble {
			t.Errorf("%q, want %q", s.trouble, trouble)
		}
	}
}

// readies gives the memory nodes of a stage these conditions Ready, in their order.
func (d *decision) readies(conditions ...metav1.Condition) []nodeCondition {
	var nodes []nodeCondition
	for i, n := range d.nodes {
		if n.pool == nil {
			n.pool = &v1alpha1.MemoryPool{}
		}
		nodes = append(nodes, nodeCondition{n, conditions[i]})
	}
	return nodes
}

// A pool is available when all memory nodes of its map serve, whatever becomes of others, and a compute shard is ready.
func TestWhetherAPoolIsAvailable(t *testing.T) {
	yes, no, unknown := metav1.Condition{Status: metav1.ConditionTrue}, metav1.Condition{Status: metav1.ConditionFalse}, metav1.Condition{Status: metav1.ConditionUnknown}
	serve := shards{ready: 1, desired: 1}
	for name, c := range map[string]struct {
		change func(*decision)
		ready  []metav1.Condition // of one that is to come, and of a and b
		shards shards
		reason string
		says   string
	}{
		"all serve":   {func(*decision) {}, []metav1.Condition{no, yes, yes}, serve, v1alpha1.ReasonServing, "epoch 7"},
		"one is down": {func(*decision) {}, []metav1.Condition{no, yes, no}, serve, v1alpha1.ReasonMemoryNodesNotServing, "do not serve: b"},
		"all are stopped": {func(d *decision) {
			d.epochs.current.Nodes[0].State, d.epochs.current.Nodes[1].State = v1alpha1.NodeStopped, v1alpha1.NodeStopped
		}, []metav1.Condition{no, no, no}, serve, v1alpha1.ReasonTablesStopped, "lost: a, b"},
		"one is stopped":          {func(d *decision) { d.epochs.current.Nodes[0].State = v1alpha1.NodeStopped }, []metav1.Condition{no, no, no}, serve, v1alpha1.ReasonTablesStopped, "lost: a"},
		"no shard is asked for":   {func(*decision) {}, []metav1.Condition{no, yes, yes}, shards{}, v1alpha1.ReasonNoComputeShards, "no compute shard is asked for"},
		"no shard is ready":       {func(*decision) {}, []metav1.Condition{no, yes, yes}, shards{desired: 2, trouble: "why"}, v1alpha1.ReasonNoComputeShards, "ready: why"},
		"of one nothing is known": {func(*decision) {}, []metav1.Condition{no, yes, unknown}, serve, v1alpha1.ReasonAgentUnreachable, "nothing is known of memory nodes: b"},
		"the kubelet knows": {func(d *decision) {
			d.nodes[2].pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		}, []metav1.Condition{no, yes, unknown}, serve, v1alpha1.ReasonServing, "epoch 7"},
		"its pod is gone":        {func(d *decision) { d.nodes[2].pod = nil }, []metav1.Condition{no, yes, unknown}, serve, v1alpha1.ReasonAgentUnreachable, "b"},
		"it has no map":          {func(d *decision) { d.epochs.current = nil }, []metav1.Condition{no, yes, yes}, serve, v1alpha1.ReasonNotPublished, "it is being made"},
		"it has no map, and why": {func(d *decision) { d.epochs.current, d.nodes[0].facts = nil, nil }, []metav1.Condition{no, yes, yes}, serve, v1alpha1.ReasonNotPublished, "waiting for 1 of 0 memory nodes (to come: )"},
	} {
		d := stageOf(v1alpha1.DataPolicyStore, 2, "a", "b", "to come")
		d.nodes = []*node{d.nodes[2], d.nodes[0], d.nodes[1]}
		c.change(d)
		if got := d.available(d.readies(c.ready...), c.shards); got.Reason != c.reason || !strings.Contains(got.Message, c.says) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// The message says why the pool waits for the first memory node; a reason that needs a person comes before others.
func TestWhatIsSaidOfMemoryNodesThatAreAwaited(t *testing.T) {
	of := func(reason string) metav1.Condition {
		return metav1.Condition{Status: metav1.ConditionFalse, Reason: reason, Message: reason}
	}
	for name, c := range map[string]struct {
		change func(*decision)
		ready  []metav1.Condition
		says   string
	}{
		"none is":                   {func(d *decision) {}, []metav1.Condition{of("A"), of("B")}, "it is being made"},
		"the first":                 {func(d *decision) { d.nodes[0].facts, d.nodes[1].facts = nil, nil }, []metav1.Condition{of("A"), of("B")}, "waiting for 2 of 2 memory nodes (a: A)"},
		"the second":                {func(d *decision) { d.nodes[1].facts = nil }, []metav1.Condition{of("A"), of("B")}, "waiting for 1 of 2 memory nodes (b: B)"},
		"one that is to go":         {func(d *decision) { d.nodes[0].facts, d.nodes[0].wanted = nil, false }, []metav1.Condition{of("A"), of("B")}, "it is being made"},
		"one that finds no place":   {func(d *decision) { d.nodes[0].facts, d.nodes[1].facts = nil, nil }, []metav1.Condition{of("A"), of(v1alpha1.ReasonNodeUnschedulable)}, "waiting for 2 of 2 memory nodes (b: NodeUnschedulable)"},
		"one without RDMA":          {func(d *decision) { d.nodes[0].facts, d.nodes[1].facts = nil, nil }, []metav1.Condition{of("A"), of(v1alpha1.ReasonRDMAMissing)}, "waiting for 2 of 2 memory nodes (b: RDMAMissing)"},
		"one without RDMA is first": {func(d *decision) { d.nodes[0].facts, d.nodes[1].facts = nil, nil }, []metav1.Condition{of(v1alpha1.ReasonRDMAMissing), of("B")}, "waiting for 2 of 2 memory nodes (a: RDMAMissing)"},
	} {
		d := stageOf(v1alpha1.DataPolicyStore, 0, "a", "b")
		d.pool = render.Pool{Name: "cache", Spec: v1alpha1.KVPoolSpec{Memory: v1alpha1.MemorySpec{Pools: []v1alpha1.MemoryPool{{Replicas: 2}}}}}
		c.change(d)
		if says := d.pending(d.readies(c.ready...)); says != c.says {
			t.Errorf("%s: %q", name, says)
		}
	}
}

// What a pool is at. That tables are stopped is no progress: a person has to decide.
func TestWhatAPoolIsAt(t *testing.T) {
	down := metav1.Condition{Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonStarting, Message: "starts"}
	stopped := metav1.Condition{Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonStopped, Message: "stopped"}
	for name, c := range map[string]struct {
		change func(*decision)
		ready  metav1.Condition
		shards shards
		reason string
		says   string
	}{
		"nothing":              {func(*decision) {}, metav1.Condition{Status: metav1.ConditionTrue}, shards{settled: true}, v1alpha1.ReasonSettled, "the pool is as its spec wants it"},
		"one is not ready":     {func(*decision) {}, down, shards{settled: true}, v1alpha1.ReasonMemoryNodesPending, "waiting for memory nodes: a (starts)"},
		"one is stopped":       {func(*decision) {}, stopped, shards{settled: true}, v1alpha1.ReasonSettled, "the pool is as its spec wants it"},
		"a map is made":        {func(d *decision) { d.epochs.next = d.epochs.current }, metav1.Condition{}, shards{settled: true}, v1alpha1.ReasonPublishing, "waiting for memory nodes to follow map epoch 7"},
		"a map is told":        {func(d *decision) { d.Publish = []Publication{{}} }, metav1.Condition{}, shards{settled: true}, v1alpha1.ReasonPublishing, "waiting for memory nodes to follow map epoch 7"},
		"a resize":             {func(d *decision) { d.moves.words = "words" }, metav1.Condition{}, shards{settled: true}, v1alpha1.ReasonResizing, "words"},
		"a resize, one starts": {func(d *decision) { d.moves.words = "words" }, down, shards{settled: true}, v1alpha1.ReasonResizing, "words; not ready: a (starts)"},
		"shards are replaced":  {func(*decision) {}, metav1.Condition{}, shards{ready: 1, desired: 2, trouble: "why"}, v1alpha1.ReasonComputeRollingOut, "1 of 2 compute shards are ready: why"},
		"there is no map":      {func(d *decision) { d.epochs.current = nil }, down, shards{}, v1alpha1.ReasonMemoryNodesPending, "it is being made"},
	} {
		d := stageOf(v1alpha1.DataPolicyStore, 1, "a")
		c.change(d)
		if got := d.progressing(d.readies(c.ready), c.shards); got.Reason != c.reason || got.Message != c.says {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// If several memory nodes need the same, the first is named.
func TestWhatNeedsAPersonIsSaidOnce(t *testing.T) {
	for _, reason := range []string{v1alpha1.ReasonNodeUnschedulable, v1alpha1.ReasonRDMAMissing, v1alpha1.ReasonDeviceMemoryMissing, v1alpha1.ReasonWireUnsuitable, v1alpha1.ReasonGeometryMismatch} {
		d := stageOf(v1alpha1.DataPolicyStore, 2, "a", "b", "c")
		ready := metav1.Condition{Status: metav1.ConditionFalse, Reason: reason, Message: "look"}
		if reason == v1alpha1.ReasonGeometryMismatch {
			d.nodes[1].mismatch, d.nodes[2].mismatch = "memory node b is another", "memory node c is another"
		}
		got := d.isDegraded(d.readies(metav1.Condition{}, ready, ready), metav1.Condition{})
		if got.Reason != reason || strings.Count(got.Message, "memory node b") != 1 || strings.Contains(got.Message, "memory node c") {
			t.Errorf("%+v", got)
		}
	}
}

// A pod that bears the pool's labels is foreign once the cache must have its owners, whatever others have come since.
func TestWhenAPodIsForeign(t *testing.T) {
	d := stageOf(v1alpha1.DataPolicyStore, 0)
	for name, age := range map[string]time.Duration{"new": time.Second, "just new": strangerAfter - time.Second, "old": strangerAfter, "older": time.Hour} {
		d.Foreign = append(d.Foreign, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(start.Add(-age))}})
	}
	slices.SortFunc(d.Foreign, func(a, b *corev1.Pod) int { return b.CreationTimestamp.Compare(a.CreationTimestamp.Time) })
	if found := d.foreignPods(); len(found) != 1 || !strings.Contains(found[0].message, "(old, older)") || d.RequeueAfter != time.Second {
		t.Errorf("%+v; looked at again in %s", found, d.RequeueAfter)
	}
}

// Rows that are quarantined are counted where there are any.
func TestWhereRowsAreQuarantined(t *testing.T) {
	d := stageOf(v1alpha1.DataPolicyStore, 0, "a", "b", "c")
	if d.Status.Nodes = map[string]v1alpha1.MemoryNodeStatus{"a": {}}; len(d.quarantined()) != 0 {
		t.Errorf("%+v", d.quarantined())
	}
	d.Status.Nodes = map[string]v1alpha1.MemoryNodeStatus{"a": {QuarantinedRows: 2}, "b": {}, "c": {QuarantinedRows: 1}}
	if found := d.quarantined(); len(found) != 1 || !strings.Contains(found[0].message, "(2 on memory node a, 1 on memory node c)") {
		t.Errorf("%+v", found)
	}
}

// Agents that refuse come before silent ones, and silent ones before agents that do not exist.
func TestWhetherAgentsAreReachable(t *testing.T) {
	for _, c := range []struct {
		states []agent.State
		reason string
	}{
		{nil, v1alpha1.ReasonNoAgents}, {[]agent.State{agent.Connected}, v1alpha1.ReasonReachable}, {[]agent.State{agent.Connected, agent.Unreachable}, v1alpha1.ReasonAgentUnreachable},
		{[]agent.State{agent.Unreachable, agent.Refused}, v1alpha1.ReasonAgentRefused},
	} {
		d := stageOf(v1alpha1.DataPolicyStore, 0)
		d.Agents = map[types.UID]agent.Observation{}
		for i, state := range c.states {
			uid := types.UID(rune('a' + i))
			d.Targets = append(d.Targets, agent.Target{Pod: uid})
			d.Agents[uid] = agent.Observation{State: state}
		}
		if got := d.reachable(); got.Reason != c.reason {
			t.Errorf("%v: %+v", c.states, got)
		}
	}
}

// What kept a plan from being carried out takes the place of one condition. The others stay as they are and where they are, and its time moves with its status.
func TestWhatIsSaidOfAFailure(t *testing.T) {
	pool := &v1alpha1.KVPool{ObjectMeta: metav1.ObjectMeta{Generation: 3}}
	early, late := metav1.NewTime(start), metav1.NewTime(start.Add(time.Hour))
	of := func(kind string, status metav1.ConditionStatus, message string) metav1.Condition {
		return metav1.Condition{Type: kind, Status: status, Message: message, LastTransitionTime: early}
	}
	for name, c := range map[string]struct {
		before  []metav1.Condition // what the pool's status had of Degraded
		planned []metav1.Condition
		says    string
		since   metav1.Time
	}{
		"it is new":             {nil, []metav1.Condition{of("A", metav1.ConditionTrue, ""), of(v1alpha1.ConditionDegraded, metav1.ConditionFalse, "healthy"), of("Z", metav1.ConditionTrue, "")}, "no", late},
		"it is as it was":       {[]metav1.Condition{of(v1alpha1.ConditionDegraded, metav1.ConditionTrue, "")}, []metav1.Condition{of("A", metav1.ConditionTrue, ""), of(v1alpha1.ConditionDegraded, metav1.ConditionFalse, "healthy")}, "no", early},
		"it was healthy before": {[]metav1.Condition{of(v1alpha1.ConditionDegraded, metav1.ConditionFalse, "")}, []metav1.Condition{of("A", metav1.ConditionTrue, ""), of(v1alpha1.ConditionDegraded, metav1.ConditionFalse, "healthy")}, "no", late},
		"something else is so":  {nil, []metav1.Condition{of("A", metav1.ConditionTrue, ""), of(v1alpha1.ConditionDegraded, metav1.ConditionTrue, "full")}, "no; full", late},
		"nothing was planned":   {nil, []metav1.Condition{of("A", metav1.ConditionTrue, "")}, "no", late},
	} {
		pool.Status.Conditions = c.before
		s := &Status{Pool: v1alpha1.KVPoolStatus{Conditions: slices.Clone(c.planned)}}
		for range 2 {
			s.Blame(pool, late, v1alpha1.ReasonApplyFailed, "no") // what is said already is not said again
		}
		got := s.Pool.Conditions
		degraded := got[1]
		if degraded.Type != v1alpha1.ConditionDegraded || degraded.Status != metav1.ConditionTrue || degraded.Reason != v1alpha1.ReasonApplyFailed || degraded.Message != c.says || !degraded.LastTransitionTime.Equal(&c.since) || degraded.ObservedGeneration != 3 {
			t.Errorf("%s: %+v", name, degraded)
		}
		if got[0] != c.planned[0] || len(got) != max(2, len(c.planned)) || len(got) > 2 && got[2] != c.planned[2] {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// Why the scheduler finds no place, and whether the kubelet finds a pod ready, is each one condition's.
func TestWhatConditionsOfPodsSay(t *testing.T) {
	for name, c := range map[string]struct {
		condition corev1.PodCondition
		says      string
		ready     bool
	}{
		"no place":               {corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: "no room"}, "no room", false},
		"a place":                {corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, Reason: corev1.PodReasonUnschedulable, Message: "no room"}, "", false},
		"held by a gate":         {corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonSchedulingGated, Message: "gated"}, "", false},
		"another kind":           {corev1.PodCondition{Type: corev1.PodInitialized, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: "no"}, "", false},
		"ready":                  {corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue}, "", true},
		"not ready":              {corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionFalse}, "", false},
		"something else is true": {corev1.PodCondition{Type: corev1.PodInitialized, Status: corev1.ConditionTrue}, "", false},
	} {
		pod := &corev1.Pod{Status: corev1.PodStatus{Conditions: []corev1.PodCondition{c.condition}}}
		if says, ready := unschedulable(pod), kubeletReady(pod); says != c.says || ready != c.ready {
			t.Errorf("%s: %q, ready %v", name, says, ready)
		}
	}
	if unschedulable(nil) != "" || kubeletReady(nil) {
		t.Error("a pod that is not there has no place, or is ready")
	}
}

// How a process ended is said until it runs again, and why a container has not started unless that is usual.
func TestWhatContainersSay(t *testing.T) {
	ended := &corev1.ContainerStateTerminated{ExitCode: 2, Reason: "Error", Message: "first\nlast"}
	waits := func(reason, message string) corev1.ContainerState {
		return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
	}
	for name, c := range map[string]struct {
		state, before corev1.ContainerState
		crashed, why  string
	}{
		"it has ended":                   {corev1.ContainerState{Terminated: ended}, corev1.ContainerState{}, "exit code 2: last", ""},
		"it ended, and waits":            {waits("CrashLoopBackOff", ""), corev1.ContainerState{Terminated: ended}, "exit code 2: last", ": CrashLoopBackOff"},
		"it ended before, and has again": {corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 3, Reason: "OOMKilled"}}, corev1.ContainerState{Terminated: ended}, "exit code 3: OOMKilled", ""},
		"it runs again":                  {corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}, corev1.ContainerState{Terminated: ended}, "", ""},
		"it is being made":               {waits("ContainerCreating", ""), corev1.ContainerState{}, "", ""},
		"it waits, and nobody says why":  {waits("", "?"), corev1.ContainerState{}, "", ""},
		"it has no image":                {waits("ErrImagePull", "not found"), corev1.ContainerState{}, "", ": ErrImagePull: not found"},
	} {
		pod := &corev1.Pod{Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{State: c.state, LastTerminationState: c.before}}}}
		if crash, why := crashed(pod), waitingFor(pod); crash != c.crashed || why != c.why {
			t.Errorf("%s: %q, %q", name, crash, why)
		}
	}
}

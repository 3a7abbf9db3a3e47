// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	farpoolv1alpha1 "farpool.dev/farpool/api/gen/farpool/v1alpha1"
	"farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/agent"
	"farpool.dev/farpool/operator/internal/render"
)

// How many there shall be of each entry of the spec, step by step. scale_test.go has it together with the rest.

// withPools gives a stage memory pools of these names, whose memory nodes are named after them: pool "more" has cache-more-0 and so on.
func withPools(d *decision, names ...string) *decision {
	for _, name := range names {
		d.Pool.Spec.Memory.Pools = append(d.Pool.Spec.Memory.Pools, v1alpha1.MemoryPool{Name: name, Replicas: 1})
		d.memoryScales = append(d.memoryScales, scale{entry: name, replicas: 1})
	}
	for _, n := range d.nodes {
		if of := d.beyond(n.name); of != nil {
			n.pool = of.pool
		}
	}
	d.pool = render.Pool{Name: "cache", Namespace: "shop", UID: "uid", Spec: d.Pool.Spec}
	return d
}

// Memory pools together get as many memory nodes as a map holds: the last get less first, each keeps at least one, and the ones that the map has.
func TestWhichMemoryPoolsGetLess(t *testing.T) {
	for name, c := range map[string]struct{ asked, get []int32 }{
		"there is room":                    {[]int32{100, 100}, []int32{100, 100}},
		"just so":                          {[]int32{200, 56}, []int32{200, 56}},
		"the last gets less":               {[]int32{200, 200}, []int32{200, 56}},
		"the last two get less":            {[]int32{250, 10, 10}, []int32{250, 5, 1}},
		"all get less":                     {[]int32{256, 10, 10}, []int32{254, 1, 1}},
		"the last has one, others go back": {[]int32{256, 10, 1}, []int32{254, 1, 1}},
	} {
		d := stageOf(v1alpha1.DataPolicyCache, 0)
		d.epochs.current = nil
		for i, replicas := range c.asked {
			d.Pool.Spec.Memory.Pools = append(d.Pool.Spec.Memory.Pools, v1alpha1.MemoryPool{Name: string(rune('a' + i)), Replicas: replicas})
		}
		d.limits = map[string]limit{}
		d.keepToWhatAMapHolds()
		var get []int32
		less := 0
		for i, entry := range d.Pool.Spec.Memory.Pools {
			get = append(get, entry.Replicas)
			if entry.Replicas < c.asked[i] {
				less++
			}
			if (d.limits[entry.Name].reason != "") != (entry.Replicas < c.asked[i]) {
				t.Errorf("%s: of %s is said %q", name, entry.Name, d.limits[entry.Name].message)
			}
		}
		if !slices.Equal(get, c.get) || len(d.degraded) != less {
			t.Errorf("%s: they get %v; %d findings", name, get, len(d.degraded))
		}
	}
}

// A memory pool that has lost its object has as many memory nodes as the map has of it, and not of another.
func TestHowManyMemoryNodesOfAPoolAMapHas(t *testing.T) {
	d := withPools(stageOf(v1alpha1.DataPolicyCache, 4, "cache-memory-0", "cache-memory-2", "cache-more-7", "strange"), "memory", "more", "none")
	for p, replicas := range []int32{3, 8, 0} {
		if has := d.inMapOf(&d.Pool.Spec.Memory.Pools[p]); has != replicas {
			t.Errorf("memory pool %d has %d", p, has)
		}
	}
}

// A ComputeShardPool goes when the spec has no such entry and nothing is written down in it.
func TestWhichComputeShardPoolsGo(t *testing.T) {
	process := []v1alpha1.ProcessStatus{{Process: v1alpha1.ProcessID(1)}}
	for name, c := range map[string]struct {
		change func(*v1alpha1.ComputeShardPool)
		goes   bool
	}{
		"the spec has none":         {func(*v1alpha1.ComputeShardPool) {}, true},
		"it is being deleted":       {func(object *v1alpha1.ComputeShardPool) { object.DeletionTimestamp = &metav1.Time{Time: start} }, false},
		"a process is written down": {func(object *v1alpha1.ComputeShardPool) { object.Status.Processes = process }, false},
		"the spec has one":          {func(object *v1alpha1.ComputeShardPool) { object.Name = "cache-shards" }, false},
	} {
		d := stageOf(v1alpha1.DataPolicyCache, 0)
		d.computeScales = []scale{{entry: "shards"}}
		object := &v1alpha1.ComputeShardPool{ObjectMeta: metav1.ObjectMeta{Name: "cache-old"}}
		c.change(object)
		d.ComputePools = map[string]*v1alpha1.ComputeShardPool{object.Name: object}
		if d.scaleRemovals(); len(d.Delete) > 0 != c.goes {
			t.Errorf("%s: deleted are %v", name, deleted(&d.Plan))
		}
	}
}

// Each MemoryNodePool and ComputeShardPool says how many there are of it. One that has no object yet keeps no other from saying so, and what is written down
// in one that the spec has lost stays there.
func TestWhatScalesSay(t *testing.T) {
	d := withPools(stageOf(v1alpha1.DataPolicyCache, 4, "cache-more-0", "cache-memory-0", "cache-memory-1", "cache-memory-2"), "none", "memory", "more")
	d.MemoryPools = map[string]*v1alpha1.MemoryNodePool{"cache-memory": {ObjectMeta: metav1.ObjectMeta{Name: "cache-memory"}}, "cache-more": {ObjectMeta: metav1.ObjectMeta{Name: "cache-more"}}}
	d.computeScales = []scale{{entry: "none"}, {entry: "shards", replicas: 3}}
	process := []v1alpha1.ProcessStatus{{Process: v1alpha1.ProcessID(1)}}
	d.ComputePools = map[string]*v1alpha1.ComputeShardPool{"cache-shards": computeShardPool("shards", 3), "cache-old": computeShardPool("old", 1), "cache-older": computeShardPool("older", 1)}
	d.ComputePools["cache-old"].Status = v1alpha1.ComputeShardPoolStatus{Processes: process, ScaleStatus: v1alpha1.ScaleStatus{Replicas: 1, ReadyReplicas: 1}}
	d.written.in = map[string][]v1alpha1.ProcessStatus{"cache-old": process}
	d.Deployments = map[string]*appsv1.Deployment{"cache-shards": {Status: appsv1.DeploymentStatus{Replicas: 3, ReadyReplicas: 2}}}
	var nodes []nodeCondition
	for _, n := range d.nodes {
		nodes = append(nodes, nodeCondition{n, metav1.Condition{Status: metav1.ConditionTrue}})
	}
	nodes[2].ready.Status, d.nodes[1].pod = metav1.ConditionFalse, nil
	d.scaleStatuses(nodes)
	if memory, more := d.Status.MemoryPools["cache-memory"], d.Status.MemoryPools["cache-more"]; memory.Replicas != 2 || memory.ReadyReplicas != 1 || more.Replicas != 1 || more.ReadyReplicas != 1 || len(d.Status.MemoryPools) != 2 {
		t.Errorf("%+v, %+v", memory, more)
	}
	shards, old := d.Status.ComputePools["cache-shards"], d.Status.ComputePools["cache-old"]
	if shards.Replicas != 3 || shards.ReadyReplicas != 2 || old.Replicas != 0 || old.ReadyReplicas != 0 || len(old.Processes) != 1 || len(d.Status.ComputePools) != 2 {
		t.Errorf("%+v, %+v", shards, old)
	}
}

// Compute shards of an entry are ready when as many serve as are asked for.
func TestWhenComputeShardsAreReady(t *testing.T) {
	for serving, status := range map[int32]metav1.ConditionStatus{1: metav1.ConditionFalse, 2: metav1.ConditionTrue, 3: metav1.ConditionTrue} {
		d := stageOf(v1alpha1.DataPolicyCache, 0)
		d.pool = render.Pool{Name: "cache"}
		d.Deployments = map[string]*appsv1.Deployment{"cache-shards": {Status: appsv1.DeploymentStatus{ReadyReplicas: serving}}}
		if c := d.shardsReady(scale{entry: "shards", replicas: 2}); c.Status != status {
			t.Errorf("%d of 2: %+v", serving, c)
		}
	}
}

// A compute shard that does not serve says why, or Kubernetes says it. Those of other compute pools are not asked.
func TestWhatKeepsAComputeShard(t *testing.T) {
	waits := func(reason string) []corev1.ContainerStatus {
		return []corev1.ContainerStatus{{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}}}
	}
	for trouble, change := range map[string]func(d *decision, pod *corev1.Pod){
		"": func(*decision, *corev1.Pod) {},
		"no Kubernetes node can take pod one: no room": func(_ *decision, pod *corev1.Pod) {
			pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: "no room"}}
		},
		"pod one says: no map": func(d *decision, _ *corev1.Pod) {
			d.Agents["one"] = agent.Observation{State: agent.Connected, Facts: &farpoolv1alpha1.Facts{Message: "no map"}}
		},
		"pod one: exit code 1": func(_ *decision, pod *corev1.Pod) {
			pod.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: terminated(1)}}}
		},
		"pod one has not started: ErrImagePull": func(_ *decision, pod *corev1.Pod) {
			pod.Status.Phase, pod.Status.ContainerStatuses = corev1.PodPending, waits("ErrImagePull")
		},
	} {
		d := stageOf(v1alpha1.DataPolicyCache, 0)
		d.Agents = map[types.UID]agent.Observation{}
		another := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "another", UID: "another"}, Status: corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: waits("Other")}}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "one", UID: "one", Labels: map[string]string{v1alpha1.LabelComputePool: "shards"}}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}
		change(d, pod)
		d.ComputePods = []*corev1.Pod{another, pod}
		if says := d.shardTrouble("shards"); says != trouble {
			t.Errorf("it says %q, want %q", says, trouble)
		}
	}
	// What one says that serves is no trouble, nor what one said that is silent now.
	for _, observed := range []agent.Observation{{State: agent.Connected, Facts: &farpoolv1alpha1.Facts{Ready: true, Message: "it serves"}}, {State: agent.Unreachable, Facts: &farpoolv1alpha1.Facts{Message: "no map"}}} {
		d := stageOf(v1alpha1.DataPolicyCache, 0)
		d.ComputePods, d.Agents = []*corev1.Pod{{ObjectMeta: metav1.ObjectMeta{UID: "one"}}}, map[types.UID]agent.Observation{"one": observed}
		if says := d.shardTrouble(""); says != "" {
			t.Errorf("it says %q", says)
		}
	}
	// One that runs and whose container waits to be started again is said to have ended, or nothing.
	d := stageOf(v1alpha1.DataPolicyCache, 0)
	d.ComputePods = []*corev1.Pod{{Status: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: waits("CrashLoopBackOff")}}, {Status: corev1.PodStatus{Phase: corev1.PodPending}}}
	if says := d.shardTrouble(""); says != "" {
		t.Errorf("it says %q", says)
	}
}

// Sessions are counted of all compute pools together, with one more shard of each during a rollout, and none of a compute pool without shards.
func TestHowManySessionsAreNeeded(t *testing.T) {
	for needed, pools := range map[int32][]v1alpha1.ComputePool{
		2 * 4:     {{Name: "a", Replicas: 3, Workers: 2}},
		2*4 + 3*2: {{Name: "a", Replicas: 3, Workers: 2}, {Name: "b", Replicas: 1, Workers: 3}},
		4:         {{Name: "a", Replicas: 3}, {Name: "b", Replicas: 0, Workers: 64}},
	} {
		for missing := range int32(2) {
			d := stageOf(v1alpha1.DataPolicyCache, 1, "a")
			has := needed - missing
			d.Pool.Spec.Limits = &v1alpha1.LimitsSpec{MaxSessions: &has}
			d.Pool.Spec.Compute = &v1alpha1.ComputeSpec{Pools: pools}
			d.pool = render.Pool{Name: "cache", Spec: d.Pool.Spec}
			if found := d.sessionBudget(); (len(found) > 0) != (missing > 0) {
				t.Errorf("of %d needed sessions %d are missing: %+v", needed, missing, found)
			}
		}
	}
}

// A memory node has the sessions that its pod was started with, or the spec's if it reads them from a file.
func TestHowManySessionsAMemoryNodeHas(t *testing.T) {
	spec := int32(77)
	for name, c := range map[string]struct {
		arguments []string
		limits    *v1alpha1.LimitsSpec
		sessions  int32
	}{
		"it was started with a number":      {[]string{"--memory=1", "--max-sessions=12"}, &v1alpha1.LimitsSpec{MaxSessions: &spec}, 12},
		"it was started with none":          {[]string{"--memory=1"}, &v1alpha1.LimitsSpec{MaxSessions: &spec}, v1alpha1.DefaultMaxSessions},
		"it was started with what is none":  {[]string{"--memory=1", "--max-sessions=x"}, &v1alpha1.LimitsSpec{MaxSessions: &spec}, v1alpha1.DefaultMaxSessions},
		"it reads a file":                   {[]string{"--config=/f"}, &v1alpha1.LimitsSpec{MaxSessions: &spec}, 77},
		"it reads a file, and all is usual": {[]string{"--config=/f"}, &v1alpha1.LimitsSpec{}, v1alpha1.DefaultMaxSessions},
		"it reads a file without limits":    {[]string{"--config=/f"}, nil, v1alpha1.DefaultMaxSessions},
	} {
		d := stageOf(v1alpha1.DataPolicyCache, 1, "a")
		d.Pool.Spec.Limits = c.limits
		d.nodes[0].pod.Spec.Containers = []corev1.Container{{Args: c.arguments}}
		if sessions := d.sessionsOf(d.nodes[0]); sessions != c.sessions {
			t.Errorf("%s: %d", name, sessions)
		}
	}
}

// growing returns a stage with memory pools "fixed", whose size is as declared, and "memory" and "more", which may grow to 9 at 70 %. Their memory nodes are
// filled to so many parts of a thousand: cache-fixed-0, cache-memory-0, cache-memory-1, cache-more-0.
func growing(thousandths ...uint64) *decision {
	d := withPools(stageOf(v1alpha1.DataPolicyCache, 4, "cache-fixed-0", "cache-memory-0", "cache-memory-1", "cache-more-0"), "fixed", "memory", "more")
	for p := range d.Pool.Spec.Memory.Pools[1:] {
		d.Pool.Spec.Memory.Pools[p+1].Capacity = &v1alpha1.CapacityPolicy{FillPercent: 70, MaxReplicas: 9}
	}
	d.Pool.Spec.Memory.Pools[1].Replicas = 2
	d.epochs.current.Directory.Tables = []int32{0, 1, 2, 3}
	d.epochs.current.Directory.Depth = 2
	for i, n := range d.nodes {
		n.facts.MemoryNode.HeapBytes, n.facts.MemoryNode.HeapBytesUsed = 1000, thousandths[i]
	}
	d.Agents = map[types.UID]agent.Observation{}
	return d
}

// A memory pool grows by what its own memory nodes of the map say, whatever those before it say.
func TestWhichMemoryPoolsGrow(t *testing.T) {
	for name, c := range map[string]struct {
		filled []uint64
		change func(*decision)
		says   string // reasons of memory and more; "-": nothing new is said
	}{
		"none is full":                        {[]uint64{900, 100, 100, 100}, func(*decision) {}, "MemoryAvailable MemoryAvailable"},
		"just not full":                       {[]uint64{900, 100, 699, 100}, func(*decision) {}, "MemoryAvailable MemoryAvailable"},
		"just full":                           {[]uint64{100, 100, 700, 100}, func(*decision) {}, "Growing MemoryAvailable"},
		"the last is full":                    {[]uint64{100, 100, 100, 900}, func(*decision) {}, "MemoryAvailable Growing"},
		"the full one has no place":           {[]uint64{100, 100, 900, 100}, func(d *decision) { d.Unplaced["cache-memory-1"] = true }, "MemoryAvailable MemoryAvailable"},
		"the full one is not in the map":      {[]uint64{100, 100, 900, 100}, func(d *decision) { d.epochs.current.Nodes[2].Name = "cache-memory-2" }, "MemoryAvailable MemoryAvailable"},
		"of one nothing is known":             {[]uint64{100, 100, 100, 900}, func(d *decision) { d.nodes[1].agent.Facts = nil }, "- Growing"},
		"one is just full, another unknown":   {[]uint64{100, 100, 700, 100}, func(d *decision) { d.nodes[1].agent.Facts = nil }, "Growing MemoryAvailable"},
		"of none of it anything is known":     {[]uint64{100, 100, 100, 900}, func(d *decision) { d.nodes[1].agent.Facts, d.nodes[2].agent.Facts = nil, nil }, "- Growing"},
		"there are as many as there may be":   {[]uint64{100, 900, 100, 100}, func(d *decision) { d.Pool.Spec.Memory.Pools[1].Capacity.MaxReplicas = 2 }, "CeilingReached MemoryAvailable"},
		"the map has no room":                 {[]uint64{100, 900, 100, 100}, func(d *decision) { d.pool.Spec.Memory.Pools[0].Replicas = nodesInMap - 3 }, "CeilingReached MemoryAvailable"},
		"the map has room for one":            {[]uint64{100, 900, 100, 100}, func(d *decision) { d.pool.Spec.Memory.Pools[0].Replicas = nodesInMap - 4 }, "Growing MemoryAvailable"},
		"a person is to approve":              {[]uint64{100, 900, 100, 900}, func(d *decision) { d.Pool.Spec.Resize = &v1alpha1.ResizeSpec{Approval: v1alpha1.ApprovalRequired} }, "ApprovalRequired ApprovalRequired"},
		"there is no map":                     {[]uint64{100, 900, 100, 900}, func(d *decision) { d.epochs.current = nil }, "- -"},
		"shards are refused memory, and why":  {[]uint64{100, 100, 600, 100}, func(d *decision) { refuse(d) }, "Growing MemoryAvailable"},
		"shards are refused memory elsewhere": {[]uint64{650, 100, 600, 100}, func(d *decision) { refuse(d) }, "MemoryAvailable MemoryAvailable"},
	} {
		d := growing(c.filled...)
		c.change(d)
		d.decideGrowth(true)
		said := func(entry string) string {
			if d.growth[entry] == nil {
				return "-"
			}
			return d.growth[entry].Reason
		}
		if says := said("memory") + " " + said("more"); says != c.says || d.growth["fixed"] != nil {
			t.Errorf("%s: %s, want %s", name, says, c.says)
		}
	}
}

// refuse has a compute shard say that it was refused memory.
func refuse(d *decision) {
	d.ComputePods = []*corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Name: "shard", UID: "shard"}}}
	d.Agents["shard"] = agent.Observation{State: agent.Connected, Facts: &farpoolv1alpha1.Facts{ComputeShard: &farpoolv1alpha1.ComputeShardFacts{OutOfMemory: true}}}
}

// A pool that is about to be another one does not grow before it is.
func TestWhenAPoolHasSettled(t *testing.T) {
	for name, c := range map[string]struct {
		change  func(*decision)
		settled bool
	}{
		"it has":                      {func(*decision) {}, true},
		"agents have yet to be heard": {func(d *decision) { d.Status.Unsettled = true }, false},
		"a map is made":               {func(d *decision) { d.epochs.next = d.epochs.current }, false},
		"a resize is open":            {func(d *decision) { d.moves.open = operationOf("one", false) }, false},
		"keys move":                   {func(d *decision) { d.epochs.current.Departures = []v1alpha1.Departure{{Part: 0, From: 1}} }, false},
		"shares are not even":         {func(d *decision) { d.epochs.current.Directory.Tables = []int32{0, 1, 2, 2} }, false},
		"one is to be removed":        {func(d *decision) { d.nodes = append(d.nodes, &node{name: "cache-more-5"}) }, false},
		"one is late":                 {func(d *decision) { d.nodes[0].facts.Epoch = 6 }, false},
		"it was resized a moment ago": {func(d *decision) { d.Resizes = []*v1alpha1.ResizeOperation{operationOf("one", true)} }, false},
		"it was resized a minute ago": {func(d *decision) {
			d.Resizes = []*v1alpha1.ResizeOperation{operationOf("one", true)}
			d.Now = start.Add(growthPause)
		}, true},
		"a resize has yet to be begun": {func(d *decision) { d.Resizes = []*v1alpha1.ResizeOperation{operationOf("one", false)} }, true},
	} {
		d := growing(100, 100, 100, 100)
		c.change(d)
		if settled := d.settled(); settled != c.settled {
			t.Errorf("%s: settled is %v", name, settled)
		}
		if name == "it was resized a moment ago" && d.RequeueAfter != growthPause {
			t.Errorf("%s: looked at again in %s", name, d.RequeueAfter)
		}
	}
}

// The memory node with the fullest heap is in the map and has a heap; of two, it is the first.
func TestTheFullestHeap(t *testing.T) {
	d := growing(500, 900, 500, 300)
	if fullest := d.fullestHeap(); fullest != nil {
		t.Errorf("%s, and nobody is refused memory", fullest.name)
	}
	refuse(d)
	d.epochs.current.Nodes[1].Name = "cache-memory-5"
	if fullest := d.fullestHeap(); fullest != d.nodes[0] {
		t.Errorf("it is %+v", fullest)
	}
	for _, n := range d.nodes {
		n.facts.MemoryNode.HeapBytes = 0
	}
	if fullest := d.fullestHeap(); fullest != nil {
		t.Errorf("%s, which has no heap", fullest.name)
	}
}

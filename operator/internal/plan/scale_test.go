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
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	farpoolv1alpha1 "farpool.dev/farpool/api/gen/farpool/v1alpha1"
	"farpool.dev/farpool/api/v1alpha1"
	apiac "farpool.dev/farpool/api/v1alpha1/applyconfiguration/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/agent"
)

// scaleTo is what kubectl scale and autoscalers do.
func (d *drill) scaleTo(replicas int) { d.MemoryPools["cache-memory"].Spec.Replicas = int32(replicas) }

func (d *drill) wantNodes(nodes int) {
	d.t.Helper()
	d.untilSettled()
	if len(d.current().Nodes) != nodes {
		d.t.Fatalf("%d memory nodes; %d are asked for", len(d.current().Nodes), nodes)
	}
}

func TestAMemoryNodePoolIsScaled(t *testing.T) {
	d := newDrill(t, 2, v1alpha1.DataPolicyCache)
	d.scaleTo(4)
	d.wantNodes(4)
	if spec := d.operation().Spec; spec.Pools[0] != (v1alpha1.ResizePool{Name: "memory", From: 2, To: 4}) {
		t.Errorf("%+v", spec)
	}
	// What the KVPool declares is not what holds, until it changes.
	if declared := d.Pool.Spec.Memory.Pools[0].Replicas; declared != 2 {
		t.Errorf("the KVPool is changed: %d", declared)
	}
	d.Pool.Generation++
	d.wantNodes(4)
	d.aim(3)
	d.wantNodes(3)
	d.scaleTo(1)
	d.wantNodes(1)
	d.noneLost()
	status := d.MemoryPools["cache-memory"].Status
	if status.Replicas != 1 || status.ReadyReplicas != 1 || status.Selector != "farpool.dev/memory-pool=memory,farpool.dev/pool=cache" {
		t.Errorf("%+v", status)
	}
	// An object that somebody deletes takes no memory node with it.
	d.scaleTo(3)
	d.wantNodes(3)
	d.MemoryPools = nil
	d.aim(1)
	d.wantNodes(3)
	d.aim(2)
	d.wantNodes(2)
	d.noneLost()
}

func TestAComputeShardPoolIsScaled(t *testing.T) {
	s := newScene(1, v1alpha1.DataPolicyCache)
	s.Pool.Spec.Compute = &v1alpha1.ComputeSpec{Pools: []v1alpha1.ComputePool{{Name: "shards", Replicas: 2, Workers: 1}}}
	replicas := func() (deployed, scaled int32) {
		t.Helper()
		for _, object := range s.decide(t).Apply {
			switch object := object.(type) {
			case *appsv1ac.DeploymentApplyConfiguration:
				deployed = *object.Spec.Replicas
			case *apiac.ComputeShardPoolApplyConfiguration:
				scaled = *object.Spec.Replicas
			}
		}
		return deployed, scaled
	}
	want := func(what string, number int32) {
		t.Helper()
		if deployed, scaled := replicas(); deployed != number || scaled != number {
			t.Errorf("%s: %d are deployed, %d asked for; want %d", what, deployed, scaled, number)
		}
	}
	want("the first", 2)
	five := int32(5)
	s.Deployments = map[string]*appsv1.Deployment{"cache-shards": {Spec: appsv1.DeploymentSpec{Replicas: &five}}}
	want("an object that is gone", 5)
	s.ComputePools = map[string]*v1alpha1.ComputeShardPool{"cache-shards": {ObjectMeta: metav1.ObjectMeta{Name: "cache-shards"}, Spec: v1alpha1.ComputeShardPoolSpec{Declared: 2, Replicas: 0}}}
	want("scaled", 0)
	s.Pool.Spec.Compute.Pools[0].Replicas = 3
	want("declared anew", 3)
	s.ComputePools["cache-other"] = &v1alpha1.ComputeShardPool{ObjectMeta: metav1.ObjectMeta{Name: "cache-other"}}
	if plan := s.decide(t); !slices.Contains(plan.Delete, client.Object(s.ComputePools["cache-other"])) {
		t.Error("an object of no compute pool is kept")
	}
}

// fill the tables of all memory nodes to so many parts of a hundred.
func (d *drill) fill(percent float64) {
	for name, pod := range d.NodePods {
		if d.Agents[pod.UID].Facts == nil {
			continue
		}
		d.update(name, func(facts *farpoolv1alpha1.Facts) {
			facts.MemoryNode.Keys = uint64(percent / 100 * 0.88 * 21 * float64(facts.MemoryNode.GetRace().GetGroups()))
		})
	}
}

func (d *drill) wantLimited(status metav1.ConditionStatus, reason string) {
	d.t.Helper()
	c := meta.FindStatusCondition(d.MemoryPools["cache-memory"].Status.Conditions, v1alpha1.ConditionScalingLimited)
	if c == nil || c.Status != status || c.Reason != reason {
		d.t.Fatalf("ScalingLimited is %+v, want %s %s", c, status, reason)
	}
}

// A memory pool grows as it fills, a memory node at a time and as far as it may.
func TestAMemoryPoolGrowsAsItFills(t *testing.T) {
	d := newDrill(t, 2, v1alpha1.DataPolicyStore)
	d.fill(99)
	d.wantNodes(2)
	d.Pool.Spec.Memory.Pools[0].Capacity = &v1alpha1.CapacityPolicy{FillPercent: 70, MaxReplicas: 4}
	d.fill(69)
	d.wantNodes(2)
	d.wantLimited(metav1.ConditionFalse, v1alpha1.ReasonMemoryAvailable)
	d.fill(71)
	d.until("it grows", func(*decision) bool { return d.MemoryPools["cache-memory"].Spec.Replicas == 3 })
	d.wantLimited(metav1.ConditionFalse, v1alpha1.ReasonGrowing)
	d.wantNodes(3)
	// Memory nodes have yet to tell how full they are now.
	for range 5 {
		d.turn()
	}
	if d.MemoryPools["cache-memory"].Spec.Replicas != 3 {
		t.Error("it grows by what was before its last growth")
	}
	d.fill(20)
	d.now = d.now.Add(growthPause)
	d.wantNodes(3)
	// A heap counts like a table, and writes that are refused count though neither is said to be so full.
	shard := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cache-shards-0", UID: "shard"}, Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.0.0.9"}}
	d.ComputePods = []*corev1.Pod{shard}
	d.Agents["shard"] = agent.Observation{State: agent.Connected, Facts: &farpoolv1alpha1.Facts{Role: farpoolv1alpha1.Role_ROLE_COMPUTE_SHARD, Incarnation: 9, ComputeShard: &farpoolv1alpha1.ComputeShardFacts{OutOfMemory: true}}}
	d.update(name(1), func(facts *farpoolv1alpha1.Facts) {
		facts.MemoryNode.HeapBytes, facts.MemoryNode.HeapBytesUsed = 100, 60
	})
	d.wantNodes(4)
	d.now = d.now.Add(2 * time.Minute)
	d.turn()
	d.turn()
	d.wantLimited(metav1.ConditionTrue, v1alpha1.ReasonCeilingReached)
	d.wantNodes(4)
	d.noneLost()
	if growths, ceilings := d.told("KVPool", v1alpha1.ReasonGrowing), d.told("KVPool", v1alpha1.ReasonCeilingReached); growths != 2 || ceilings != 1 {
		t.Errorf("%d growths and %d ceilings are told: %s", growths, ceilings, strings.Join(d.events, ", "))
	}
}

// That a memory pool cannot grow is not taken back because its fullest memory node has yet to say how full it is.
func TestGrowthDoesNotCountWhatIsUnknown(t *testing.T) {
	d := newDrill(t, 2, v1alpha1.DataPolicyCache)
	d.Pool.Spec.Memory.Pools[0].Capacity = &v1alpha1.CapacityPolicy{FillPercent: 70, MaxReplicas: 2}
	d.fill(10)
	d.update(name(1), func(facts *farpoolv1alpha1.Facts) {
		facts.MemoryNode.HeapBytes, facts.MemoryNode.HeapBytesUsed = 1000, 800
	})
	d.turn()
	d.turn()
	d.wantLimited(metav1.ConditionTrue, v1alpha1.ReasonCeilingReached)
	uid := d.NodePods[name(1)].UID
	known := d.Agents[uid]
	d.Agents[uid] = agent.Observation{State: agent.Unreachable, Error: "no answer"}
	d.turn()
	d.wantLimited(metav1.ConditionTrue, v1alpha1.ReasonCeilingReached)
	d.Agents[uid] = known
	d.update(name(1), func(facts *farpoolv1alpha1.Facts) { facts.MemoryNode.HeapBytesUsed = 100 })
	d.turn()
	d.turn()
	d.wantLimited(metav1.ConditionFalse, v1alpha1.ReasonMemoryAvailable)
}

// Large values fill the heap while the table has room.
func TestAMemoryPoolGrowsAsItsHeapFills(t *testing.T) {
	d := newDrill(t, 2, v1alpha1.DataPolicyCache)
	d.Pool.Spec.Memory.Pools[0].Capacity = &v1alpha1.CapacityPolicy{FillPercent: 70, MaxReplicas: 9}
	d.fill(5)
	heap := func(percent uint64) {
		d.update(name(1), func(facts *farpoolv1alpha1.Facts) {
			facts.MemoryNode.HeapBytes, facts.MemoryNode.HeapBytesUsed = 1000, 10*percent
		})
	}
	heap(69)
	d.wantNodes(2)
	d.wantLimited(metav1.ConditionFalse, v1alpha1.ReasonMemoryAvailable)
	heap(71)
	d.until("it grows", func(*decision) bool { return d.MemoryPools["cache-memory"].Spec.Replicas == 3 })
	if c := meta.FindStatusCondition(d.MemoryPools["cache-memory"].Status.Conditions, v1alpha1.ConditionScalingLimited); !strings.Contains(c.Message, "the heap of memory node cache-memory-1 is 70 % full") {
		t.Error(c.Message)
	}
	heap(40)
	d.wantNodes(3)
}

// Growth waits for a person where resizes do.
func TestGrowthIsApproved(t *testing.T) {
	d := newDrill(t, 2, v1alpha1.DataPolicyCache)
	d.Pool.Spec.Memory.Pools[0].Capacity = &v1alpha1.CapacityPolicy{FillPercent: 70, MaxReplicas: 9}
	d.Pool.Spec.Resize = &v1alpha1.ResizeSpec{Approval: v1alpha1.ApprovalRequired}
	d.fill(80)
	for range 12 {
		d.turn()
	}
	if spec := d.current(); spec.Move != 0 || d.MemoryPools["cache-memory"].Spec.Replicas != 3 {
		t.Fatalf("move %d, %d replicas", spec.Move, d.MemoryPools["cache-memory"].Spec.Replicas)
	}
	d.wantStage(v1alpha1.StagePlanned, "waiting for a person's approval")
	// No event says that it grows while it does not.
	d.wantLimited(metav1.ConditionTrue, v1alpha1.ReasonApprovalRequired)
	if d.told("KVPool", v1alpha1.ReasonGrowing) != 0 || d.told("KVPool", v1alpha1.ReasonApprovalRequired) != 1 || d.told("ResizeOperation", v1alpha1.ReasonApprovalRequired) != 1 {
		t.Errorf("told: %s", strings.Join(d.events, ", "))
	}
	if notes := strings.Join(d.notes, "\n"); strings.Contains(notes, "grows") || !strings.Contains(notes, "memory pool memory will grow from 2 memory nodes to 3 once a person approves") ||
		!strings.Contains(notes, "ResizeOperation "+d.operation().Name+": waiting for a person's approval") {
		t.Error(notes)
	}
	d.fill(20)
	d.agree()
	d.wantNodes(3)
	d.wantLimited(metav1.ConditionFalse, v1alpha1.ReasonMemoryAvailable)
}

// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	farpoolv1alpha1 "farpool.dev/farpool/api/gen/farpool/v1alpha1"
	"farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/agent"
)

func TestMemoryPressure(t *testing.T) {
	s := newScene(2, v1alpha1.DataPolicyCache)
	s.carryOut(t, &s.decide(t).Plan)
	s.ComputePods = []*corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cache-shards-1", UID: "shard"}}}
	for _, step := range []struct {
		what              string
		keys              uint64 // of memory node 1, whose table has room for 950
		heap              uint64 // of its heap, in percent
		refused           bool
		status            metav1.ConditionStatus
		reason            string
		event, inMessage  string
		degraded          metav1.ConditionStatus
		degradedForMemory bool
	}{
		{"empty", 0, 3, false, metav1.ConditionFalse, v1alpha1.ReasonMemoryAvailable, "", "is less than", metav1.ConditionFalse, false},
		{"nearly", 880, 3, false, metav1.ConditionTrue, v1alpha1.ReasonMemoryNearlyFull, v1alpha1.ReasonMemoryNearlyFull, "cache-memory-1 is 90 % full or more", metav1.ConditionFalse, false},
		{"less, and not clearly", 800, 3, false, metav1.ConditionTrue, v1alpha1.ReasonMemoryNearlyFull, "", "80 % full", metav1.ConditionFalse, false},
		{"clearly less", 700, 3, false, metav1.ConditionFalse, v1alpha1.ReasonMemoryAvailable, v1alpha1.ReasonMemoryAvailable, "less than 75 %", metav1.ConditionFalse, false},
		{"not nearly yet", 800, 3, false, metav1.ConditionFalse, v1alpha1.ReasonMemoryAvailable, "", "less than 85 %", metav1.ConditionFalse, false},
		{"values fill it", 100, 91, false, metav1.ConditionTrue, v1alpha1.ReasonMemoryNearlyFull, v1alpha1.ReasonMemoryNearlyFull, "the heap of memory node cache-memory-1 is 90 % full or more", metav1.ConditionFalse, false},
		{"and are removed", 100, 79, false, metav1.ConditionFalse, v1alpha1.ReasonMemoryAvailable, v1alpha1.ReasonMemoryAvailable, "the heap of memory node cache-memory-1, which is less than 80 %", metav1.ConditionFalse, false},
		{"full of values", 10, 3, true, metav1.ConditionTrue, v1alpha1.ReasonMemoryFull, v1alpha1.ReasonMemoryFull, "compute shard cache-shards-1", metav1.ConditionTrue, true},
		{"full of keys", 949, 3, true, metav1.ConditionTrue, v1alpha1.ReasonMemoryFull, "", "compute shard cache-shards-1", metav1.ConditionTrue, true},
		{"room again", 10, 3, false, metav1.ConditionFalse, v1alpha1.ReasonMemoryAvailable, v1alpha1.ReasonMemoryAvailable, "is less than 5 %", metav1.ConditionFalse, false},
	} {
		facts := s.Agents["pod-cache-memory-1"].Facts.MemoryNode
		facts.GetRcuckoo().Rows, facts.GetRcuckoo().EntriesPerRow, facts.Keys = 125, 8, step.keys
		facts.HeapBytes, facts.HeapBytesUsed = 1000, 10*step.heap
		s.Agents["shard"] = agent.Observation{State: agent.Connected, Facts: &farpoolv1alpha1.Facts{ComputeShard: &farpoolv1alpha1.ComputeShardFacts{OutOfMemory: step.refused}}}
		d := s.decide(t)
		wantCondition(t, d, v1alpha1.ConditionMemoryPressure, step.status, step.reason)
		c := meta.FindStatusCondition(d.Status.Pool.Conditions, v1alpha1.ConditionMemoryPressure)
		if !strings.Contains(c.Message, step.inMessage) {
			t.Errorf("%s: %s", step.what, c.Message)
		}
		// People act by the message: it says what is refused, and what is not.
		if full := "additions are refused (OOM), which are new keys and values that are longer than before; reads, removals, and writes of values that are no longer go on"; strings.Contains(c.Message, full) != (step.status == metav1.ConditionTrue) {
			t.Errorf("%s: %s", step.what, c.Message)
		}
		if degraded := meta.FindStatusCondition(d.Status.Pool.Conditions, v1alpha1.ConditionDegraded); degraded.Status != step.degraded ||
			strings.Contains(degraded.Message, "OOM") != step.degradedForMemory {
			t.Errorf("%s: %+v", step.what, degraded)
		}
		var told []string
		for _, event := range d.Status.Events {
			if event.Action == "Watch" {
				told = append(told, event.Reason)
			}
		}
		if strings.Join(told, " ") != step.event {
			t.Errorf("%s: events %v, want %q", step.what, told, step.event)
		}
		s.carryOut(t, &d.Plan)
		s.Pool.Status = d.Status.Pool
	}
	clear(s.Agents)
	wantCondition(t, s.decide(t), v1alpha1.ConditionMemoryPressure, metav1.ConditionUnknown, v1alpha1.ReasonMemoryUnknown)
}

// A full table of Outback refuses nothing: people are told what gets slower, and that the heap's end is another matter.
func TestMemoryPressureOfATableThatOverflows(t *testing.T) {
	s := newScene(2, v1alpha1.DataPolicyCache)
	s.Pool.Spec.Index = v1alpha1.IndexSpec{Protocol: v1alpha1.ProtocolOutback}
	for _, name := range []string{"cache-memory-0", "cache-memory-1"} {
		facts := s.Agents[types.UID("pod-"+name)].Facts.MemoryNode
		facts.LockRegion, facts.Shape = nil, &farpoolv1alpha1.MemoryNodeFacts_Outback{Outback: &farpoolv1alpha1.OutbackGeometry{Buckets: 1000}}
	}
	s.carryOut(t, &s.decide(t).Plan)
	for _, step := range []struct {
		keys, heap uint64 // of memory node 1
		message    string
		refuses    bool
	}{
		{3500, 300, "the table of memory node cache-memory-1 is 90 % full or more; when it is full, keys that are added find no slot, and reads of them take two requests", false},
		{3500, 950, "the heap of memory node cache-memory-1 is 95 % full or more; when it is full, additions are refused (OOM)", true},
	} {
		facts := s.Agents["pod-cache-memory-1"].Facts.MemoryNode
		facts.Keys, facts.HeapBytes, facts.HeapBytesUsed = step.keys, 1000, step.heap
		d := s.decide(t)
		wantCondition(t, d, v1alpha1.ConditionMemoryPressure, metav1.ConditionTrue, v1alpha1.ReasonMemoryNearlyFull)
		c := meta.FindStatusCondition(d.Status.Pool.Conditions, v1alpha1.ConditionMemoryPressure)
		if !strings.Contains(c.Message, step.message) || strings.Contains(c.Message, "OOM") != step.refuses {
			t.Errorf("%d keys: %s", step.keys, c.Message)
		}
	}
}

// How full a memory node is that has not said so yet, as after a restart of it or of the operator, is unknown and not nothing: pressure does not end for that.
func TestMemoryPressureOutlastsWhatIsUnknown(t *testing.T) {
	s := newScene(2, v1alpha1.DataPolicyCache)
	plan := s.decide(t)
	s.carryOut(t, &plan.Plan)
	const pod = "pod-cache-memory-1"
	says := func(keys uint64) {
		facts := s.Agents[pod].Facts.MemoryNode
		facts.GetRcuckoo().Rows, facts.GetRcuckoo().EntriesPerRow, facts.Keys = 125, 8, keys
	}
	told := func(reason string) {
		t.Helper()
		plan = s.decide(t)
		c := meta.FindStatusCondition(plan.Status.Pool.Conditions, v1alpha1.ConditionMemoryPressure)
		if c.Reason != reason {
			t.Errorf("%+v, want %s", c, reason)
		}
		s.Pool.Status = plan.Status.Pool
	}
	says(900)
	told(v1alpha1.ReasonMemoryNearlyFull)
	known := s.Agents[pod]
	for what, unknown := range map[string]agent.Observation{
		"nothing":  {State: agent.Starting, Error: "starts"},
		"no shape": {State: agent.Starting, Facts: &farpoolv1alpha1.Facts{MemoryNode: &farpoolv1alpha1.MemoryNodeFacts{}}},
	} {
		s.Agents[pod] = unknown
		told(v1alpha1.ReasonMemoryNearlyFull)
		for _, event := range plan.Status.Events {
			if event.Action == "Watch" {
				t.Errorf("%s: event %+v", what, event)
			}
		}
	}
	// Nor does it end if nobody is heard.
	other := s.Agents["pod-cache-memory-0"]
	delete(s.Agents, "pod-cache-memory-0")
	told(v1alpha1.ReasonMemoryNearlyFull)
	s.Agents["pod-cache-memory-0"], s.Agents[pod] = other, known
	says(100)
	told(v1alpha1.ReasonMemoryAvailable)
	if c := meta.FindStatusCondition(plan.Status.Pool.Conditions, v1alpha1.ConditionMemoryPressure); strings.Contains(c.Message, "not known") {
		t.Error(c.Message)
	}
	// Without pressure, what is unknown is named; one whose memory is gone for good holds nothing.
	s.Agents[pod] = agent.Observation{State: agent.Starting}
	told(v1alpha1.ReasonMemoryAvailable)
	if c := meta.FindStatusCondition(plan.Status.Pool.Conditions, v1alpha1.ConditionMemoryPressure); !strings.Contains(c.Message, "not known of cache-memory-1") {
		t.Error(c.Message)
	}
	s.Unplaced = map[string]bool{"cache-memory-1": true}
	told(v1alpha1.ReasonMemoryAvailable)
	if c := meta.FindStatusCondition(plan.Status.Pool.Conditions, v1alpha1.ConditionMemoryPressure); strings.Contains(c.Message, "not known") {
		t.Error(c.Message)
	}
}

// A pool is nearly full from 90 % on, and stays so until it is less than 80 % full. That it is so no longer is no warning.
func TestTheMarksOfMemoryPressure(t *testing.T) {
	s := newScene(2, v1alpha1.DataPolicyCache)
	s.carryOut(t, &s.decide(t).Plan)
	full := func(ordinal int32, thousandths uint64) {
		facts := s.memoryNode(v1alpha1.MemoryNodeName("cache", "memory", ordinal))
		facts.HeapBytes, facts.HeapBytesUsed = 1000, thousandths
		s.Agents[observedPod(v1alpha1.MemoryNodeName("cache", "memory", ordinal))].Facts.MemoryNode = facts
	}
	for _, step := range []struct {
		thousandths     uint64
		reason, warning string
	}{
		{899, v1alpha1.ReasonMemoryAvailable, ""},
		{900, v1alpha1.ReasonMemoryNearlyFull, corev1.EventTypeWarning},
		{800, v1alpha1.ReasonMemoryNearlyFull, ""},
		{799, v1alpha1.ReasonMemoryAvailable, corev1.EventTypeNormal},
	} {
		full(1, step.thousandths)
		d := s.decide(t)
		warning := ""
		for _, event := range d.Status.Events {
			if event.Action == "Watch" {
				warning += event.Type
			}
		}
		if c := meta.FindStatusCondition(d.Status.Pool.Conditions, v1alpha1.ConditionMemoryPressure); c.Reason != step.reason || warning != step.warning {
			t.Errorf("at %d: %+v, event %q", step.thousandths, c, warning)
		}
		s.Pool.Status = d.Status.Pool
	}
	// A pool that was full and is nearly full now says so, even if a memory node is silent.
	meta.SetStatusCondition(&s.Pool.Status.Conditions, condition(v1alpha1.ConditionMemoryPressure, metav1.ConditionTrue, v1alpha1.ReasonMemoryFull, "full"))
	full(1, 900)
	s.Agents[observedPod("cache-memory-0")] = agent.Observation{State: agent.Starting}
	wantCondition(t, s.decide(t), v1alpha1.ConditionMemoryPressure, metav1.ConditionTrue, v1alpha1.ReasonMemoryNearlyFull)
}

// Only memory nodes of the question can be the fullest. If two are equally full, the first is named.
func TestTheFullestMemoryNode(t *testing.T) {
	d := stageOf(v1alpha1.DataPolicyCache, 3, "a", "b", "c")
	for i, used := range []uint64{90, 50, 50} {
		d.nodes[i].facts.MemoryNode.HeapBytes, d.nodes[i].facts.MemoryNode.HeapBytesUsed = 100, used
	}
	if fullest, most, of, unknown := d.fullest(func(n *node) bool { return n.name != "a" }); fullest != d.nodes[1] || most != 0.5 || of != "heap" || unknown != nil {
		t.Errorf("%+v, %v of its %s, unknown %v", fullest, most, of, unknown)
	}
}

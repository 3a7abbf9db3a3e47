// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	policyv1ac "k8s.io/client-go/applyconfigurations/policy/v1"

	"farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/agent"
	"farpool.dev/farpool/operator/internal/observe"
)

// cordoned is what a cordon puts on a Kubernetes node.
var cordoned = corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}

func (d *drill) cordon(node string) string { return d.taint(node, cordoned) }

// taint the Kubernetes node of a memory node as one that is about to be emptied.
func (d *drill) taint(node string, taints ...corev1.Taint) string {
	there := d.NodePods[node].Spec.NodeName
	d.Draining[there] = taints
	return there
}

// budget is how many memory nodes have to be there.
func budget(plan *decision) int {
	for _, object := range plan.Apply {
		if budget, ok := object.(*policyv1ac.PodDisruptionBudgetApplyConfiguration); ok && *budget.Name == "cache-memory-nodes" {
			return budget.Spec.MinAvailable.IntValue()
		}
	}
	return -1
}

// A memory node leaves a Kubernetes node that is cordoned with all that it holds, and none is evicted before.
func TestACordonedKubernetesNodeIsLeft(t *testing.T) {
	for _, policy := range []v1alpha1.DataPolicy{v1alpha1.DataPolicyCache, v1alpha1.DataPolicyStore} {
		d := newDrill(t, 3, policy)
		if must := budget(d.step(false)); must != 3 {
			t.Errorf("%s: %d memory nodes have to be there before anything is drained", policy, must)
		}
		pods := map[string]string{}
		for node, pod := range d.NodePods {
			pods[node] = string(pod.UID)
		}
		left := d.cordon(name(1))
		d.until("its keys leave", func(plan *decision) bool {
			if must := budget(plan); must != 3 {
				t.Fatalf("%s: %d memory nodes have to be there", policy, must)
			}
			return d.current().Move == 1
		})
		if from := givers(d.current()); len(from) != 1 || from[0].Name != name(1) {
			t.Errorf("%s: %d memory nodes give", policy, len(from))
		}
		if operation := d.operation(); !slices.Equal(operation.Spec.Evacuates, []string{name(1)}) || operation.Spec.Pools[0].To != 3 {
			t.Errorf("%s: %+v", policy, operation.Spec)
		}
		d.step(false)
		d.wantStage(v1alpha1.StageMoving, "away from cache-memory-1")
		d.wantNodes(3)
		d.noneLost()
		for node, pod := range d.NodePods {
			if moved := pods[node] != string(pod.UID); moved != (node == name(1)) || pod.Spec.NodeName == left {
				t.Errorf("%s: the pod of %s, on %s: moved %v", policy, node, pod.Spec.NodeName, moved)
			}
		}
		if stage := d.operation().Status.Stage; stage != v1alpha1.StageComplete || len(d.Resizes) != 1 || d.operation().Status.Change != "3 to 3, 1 evacuated" {
			t.Errorf("%s: %d operations, the last is %+v", policy, len(d.Resizes), d.operation().Status)
		}
	}
}

// One Kubernetes node after the other, as in an upgrade of the cluster, and two at once: each memory node has moved in the end.
func TestKubernetesNodesAreLeftOneAfterTheOther(t *testing.T) {
	d := newDrill(t, 4, v1alpha1.DataPolicyStore)
	for _, node := range []int{0, 3, 1} {
		there := d.cordon(name(node))
		d.wantNodes(4)
		d.noneLost()
		delete(d.Draining, there)
	}
	d.cordon(name(0))
	d.cordon(name(2))
	d.wantNodes(4)
	d.noneLost()
	for node, pod := range d.NodePods {
		if len(d.Draining[pod.Spec.NodeName]) > 0 {
			t.Errorf("%s has stayed", node)
		}
	}
}

// What has to leave does not wait for what cannot come before.
func TestWhatHasToLeaveWaitsForNobodyWhoComes(t *testing.T) {
	d := newDrill(t, 3, v1alpha1.DataPolicyCache)
	d.unplaced[name(3)] = true
	d.aim(4)
	d.until("the pool waits for one", func(*decision) bool { return d.NodePods[name(3)] != nil })
	d.cordon(name(0))
	d.until("its keys leave", func(*decision) bool { return d.current().Move == 1 })
	if from := givers(d.current()); len(from) != 1 || from[0].Name != name(0) {
		t.Errorf("%d memory nodes give", len(from))
	}
	d.unplaced = map[string]bool{}
	d.wantNodes(4)
	d.noneLost()
}

// A memory node that has yet to join the map holds nothing, and is made again elsewhere at once.
func TestANewcomerLeavesACordonedKubernetesNode(t *testing.T) {
	d := newDrill(t, 2, v1alpha1.DataPolicyStore)
	d.aim(3)
	d.until("its pod is there", func(*decision) bool { return d.NodePods[name(2)] != nil })
	d.kubelets()
	there := d.cordon(name(2))
	d.wantNodes(3)
	if d.NodePods[name(2)].Spec.NodeName == there {
		t.Error("it has stayed")
	}
	d.noneLost()
}

// What was approved was not to leave a Kubernetes node that is cordoned since.
func TestAnEvacuationIsApproved(t *testing.T) {
	d := newDrill(t, 2, v1alpha1.DataPolicyCache)
	d.Pool.Spec.Resize = &v1alpha1.ResizeSpec{Approval: v1alpha1.ApprovalRequired}
	d.aim(3)
	d.turn()
	d.agree()
	d.until("it moves", func(*decision) bool { return d.current().Move == 1 })
	approved := d.operation()
	d.cordon(name(1))
	for range 8 {
		d.turn()
	}
	if approved.Status.Stage != v1alpha1.StageSuperseded || d.operation() == approved || d.current().Move != 1 {
		t.Fatalf("%+v, then %+v; move %d", approved.Status, d.operation().Spec, d.current().Move)
	}
	d.wantStage(v1alpha1.StagePlanned, "waiting for a person's approval")
	d.agree()
	d.wantNodes(3)
	d.noneLost()
}

// A Kubernetes node that is uncordoned in the middle.
func TestAKubernetesNodeIsUncordoned(t *testing.T) {
	d := newDrill(t, 3, v1alpha1.DataPolicyCache)
	uid := d.NodePods[name(1)].UID
	there := d.cordon(name(1))
	d.until("its keys leave", func(*decision) bool { return d.current().Move == 1 })
	delete(d.Draining, there)
	d.wantNodes(3)
	d.noneLost()
	if d.NodePods[name(1)].UID != uid {
		t.Error("a memory node that may stay is made anew")
	}
}

// Memory nodes that have to leave hold keys until they have left: before a person approves, on their way, and after an abort.
func TestNoneIsEvictedThatIsToGo(t *testing.T) {
	for _, from := range []int{2, 4} {
		d := newDrill(t, from, v1alpha1.DataPolicyCache)
		d.Pool.Spec.Resize = &v1alpha1.ResizeSpec{Approval: v1alpha1.ApprovalRequired}
		keeps := func(plan *decision, when string) {
			t.Helper()
			if must := budget(plan); must != from {
				t.Errorf("from %d to 1, %s: %d memory nodes have to be there", from, when, must)
			}
		}
		d.aim(1)
		for range 5 {
			keeps(d.turn(), "before it is approved")
		}
		aborted := d.abort()
		for range 5 {
			keeps(d.turn(), "aborted")
		}
		there := d.cordon(name(from - 1))
		keeps(d.turn(), "aborted, and the last cordoned")
		delete(d.Draining, there)
		d.Resizes = slices.DeleteFunc(d.Resizes, func(operation *v1alpha1.ResizeOperation) bool { return operation == aborted })
		d.turn()
		d.turn()
		d.agree()
		keeps(d.until("keys leave", func(plan *decision) bool { keeps(plan, "before"); return d.current().Move == 1 }), "as keys leave")
		d.cordon(name(from - 1))
		keeps(d.step(false), "as keys leave, and the last cordoned")
		d.wantNodes(1)
		d.noneLost()
		if must := budget(d.step(false)); must != 0 {
			t.Errorf("%d memory nodes have to be there", must)
		}
	}
}

// Until what is made anew has keys of its own again, the other has them all.
func TestNoneIsEvictedAsOneIsMadeAnew(t *testing.T) {
	d := newDrill(t, 2, v1alpha1.DataPolicyCache)
	d.cordon(name(1))
	alone := 0
	for range 30 {
		plan := d.turn()
		if must := budget(plan); must != 2 {
			t.Fatalf("%d memory nodes have to be there", must)
		}
		if !inMap(d.current(), name(1)) {
			alone++
		}
	}
	if alone == 0 {
		t.Error("it was not made anew")
	}
	d.wantNodes(2)
	d.noneLost()
}

// That another is to come is no reason to say nothing: it may never.
func TestADrainThatWaitsForAnotherMemoryNodeSaysSo(t *testing.T) {
	d := newDrill(t, 1, v1alpha1.DataPolicyCache)
	d.aim(2)
	d.until("its pod is there", func(*decision) bool { return d.NodePods[name(1)] != nil })
	d.cordon(name(0))
	plan := d.step(false)
	wantCondition(t, plan, v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonNowhereToEvacuate)
	if c := meta.FindStatusCondition(plan.Status.Pool.Conditions, v1alpha1.ConditionDegraded); !strings.Contains(c.Message, name(1)) {
		t.Error(c.Message)
	}
	if must := budget(plan); must != 2 {
		t.Errorf("%d memory nodes have to be there", must)
	}
	d.wantNodes(2)
	d.noneLost()
}

// A memory node whose process ends again and again does not answer, and is removed all the same.
func TestAMemoryNodeThatCrashesGoes(t *testing.T) {
	crash := func(d *drill, node string) {
		d.kubelets()
		pod := d.NodePods[node]
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}}}
		d.Agents[pod.UID] = agent.Observation{State: agent.Unreachable, Error: "refused"}
	}
	d := newDrill(t, 2, v1alpha1.DataPolicyStore)
	d.aim(3)
	d.until("its pod is there", func(*decision) bool { return d.NodePods[name(2)] != nil })
	crash(d, name(2))
	for range 5 {
		d.step(false)
		crash(d, name(2))
	}
	d.aim(2)
	for range 5 {
		want := 2
		if d.NodePods[name(2)] != nil || d.Nodes[name(2)] != nil {
			want = 3 // its process may come up at any moment
		}
		plan := d.step(false)
		if must := budget(plan); must != want {
			t.Fatalf("%d memory nodes have to be there, and not %d", must, want)
		}
	}
	if d.NodePods[name(2)] != nil {
		t.Error("it is still there")
	}
	d.noneLost()
}

// Its process may start before the operator looks again, and would then be one more than the budget keeps.
func TestNoneIsEvictedForOneThatIsToGoAndHasNotStarted(t *testing.T) {
	d := newDrill(t, 2, v1alpha1.DataPolicyStore)
	d.aim(3)
	d.until("its pod is there", func(*decision) bool { return d.NodePods[name(2)] != nil })
	d.NodePods[name(2)].Status = corev1.PodStatus{Phase: corev1.PodPending}
	d.aim(1)
	if must := budget(d.decide(t)); must != 3 {
		t.Errorf("%d memory nodes have to be there", must)
	}
	object := d.Nodes[name(2)]
	delete(d.Nodes, name(2))
	if must := budget(d.decide(t)); must != 3 {
		t.Errorf("its object is gone before its pod: %d memory nodes have to be there", must)
	}
	d.Nodes[name(2)] = object
	d.noneLost()
}

func TestWhereNothingIsEvacuated(t *testing.T) {
	// Nobody could take the keys.
	d := newDrill(t, 1, v1alpha1.DataPolicyCache)
	d.cordon(name(0))
	plan := d.step(false)
	wantCondition(t, plan, v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonNowhereToEvacuate)
	if c := meta.FindStatusCondition(plan.Status.Pool.Conditions, v1alpha1.ConditionDegraded); !strings.Contains(c.Message, "cache-memory-0") {
		t.Error(c.Message)
	}
	if must := budget(plan); must != 0 || len(d.Resizes) > 0 {
		t.Errorf("%d memory nodes have to be there, %d operations", must, len(d.Resizes))
	}
	d.aim(2)
	d.wantNodes(2)
	d.noneLost()
	// The spec does not want it, or pods would come to where they were.
	for what, change := range map[string]func(*v1alpha1.KVPoolSpec){
		"disabled": func(spec *v1alpha1.KVPoolSpec) {
			spec.Resize = &v1alpha1.ResizeSpec{Evacuation: v1alpha1.EvacuationDisabled}
		},
		"tolerated": func(spec *v1alpha1.KVPoolSpec) {
			spec.Memory.Pools[0].Pod = &v1alpha1.PodOptions{Tolerations: []v1alpha1.Toleration{{Operator: "Exists"}}}
		},
	} {
		d := newDrill(t, 2, v1alpha1.DataPolicyCache)
		change(&d.Pool.Spec)
		d.cordon(name(0))
		var plan *decision
		for range 5 {
			plan = d.turn()
		}
		if len(d.Resizes) > 0 || d.current().Move > 0 {
			t.Errorf("%s: it is evacuated", what)
		}
		if must := budget(plan); must != 1 {
			t.Errorf("%s: %d memory nodes have to be there", what, must)
		}
		if what == "tolerated" {
			wantCondition(t, plan, v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonNowhereToEvacuate)
		}
	}
}

// An autoscaler that is about to take a Kubernetes node away taints it: memory nodes leave with all that they hold, as from one that is cordoned.
func TestAKubernetesNodeThatAnAutoscalerTakesIsLeft(t *testing.T) {
	for _, key := range observe.DefaultDrainTaints {
		d := newDrill(t, 3, v1alpha1.DataPolicyStore)
		left := d.taint(name(1), corev1.Taint{Key: key, Value: "1700000000", Effect: corev1.TaintEffectNoSchedule})
		d.until("its keys leave", func(*decision) bool { return d.current().Move == 1 })
		d.wantNodes(3)
		d.noneLost()
		if there := d.NodePods[name(1)].Spec.NodeName; there == left {
			t.Errorf("%s: it has stayed on %s", key, there)
		}
	}
}

// What a memory pool tolerates decides whether its pods would be made again where they are: every taint of the Kubernetes node has to be tolerated for that.
func TestPodsThatTolerateATaint(t *testing.T) {
	const key = "karpenter.sh/disrupted"
	karpenter := corev1.Taint{Key: key, Value: "yes", Effect: corev1.TaintEffectNoSchedule}
	for _, c := range []struct {
		name        string
		taints      []corev1.Taint
		tolerations []v1alpha1.Toleration
		stays       bool
	}{
		{"nothing", []corev1.Taint{karpenter}, nil, false},
		{"everything", []corev1.Taint{karpenter, cordoned}, []v1alpha1.Toleration{{Operator: corev1.TolerationOpExists}}, true},
		{"the key", []corev1.Taint{karpenter}, []v1alpha1.Toleration{{Key: key, Operator: corev1.TolerationOpExists}}, true},
		{"the key and its value", []corev1.Taint{karpenter}, []v1alpha1.Toleration{{Key: key, Value: "yes"}}, true},
		{"another value", []corev1.Taint{karpenter}, []v1alpha1.Toleration{{Key: key, Operator: corev1.TolerationOpEqual, Value: "no"}}, false},
		{"another effect", []corev1.Taint{karpenter}, []v1alpha1.Toleration{{Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}}, false},
		{"the effect", []corev1.Taint{karpenter}, []v1alpha1.Toleration{{Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}}, true},
		{"another key", []corev1.Taint{karpenter}, []v1alpha1.Toleration{{Key: "dedicated", Operator: corev1.TolerationOpExists}}, false},
		{"one of two", []corev1.Taint{cordoned, karpenter}, []v1alpha1.Toleration{{Key: key, Operator: corev1.TolerationOpExists}}, false},
		{"both of two", []corev1.Taint{cordoned, karpenter}, []v1alpha1.Toleration{{Key: key, Operator: corev1.TolerationOpExists}, {Key: cordoned.Key, Operator: corev1.TolerationOpExists}}, true},
	} {
		d := newDrill(t, 2, v1alpha1.DataPolicyCache)
		d.Pool.Spec.Memory.Pools[0].Pod = &v1alpha1.PodOptions{Tolerations: c.tolerations}
		d.taint(name(1), c.taints...)
		p := d.step(false)
		for range 5 {
			d.turn()
		}
		if stays := len(d.Resizes) == 0; stays != c.stays {
			t.Errorf("%s: stays %v", c.name, stays)
		}
		degraded := meta.FindStatusCondition(p.Status.Pool.Conditions, v1alpha1.ConditionDegraded)
		if stuck := degraded.Reason == v1alpha1.ReasonNowhereToEvacuate; stuck != c.stays || stuck && !strings.Contains(degraded.Message, "taint "+key) {
			t.Errorf("%s: %+v", c.name, degraded)
		}
	}
}

// Memory nodes that share keys are evicted after their keys have left. One that is alone, or whose keys cannot leave, may be: a drain would else never end.
func TestWhetherKeysLeaveFirst(t *testing.T) {
	cordon := func(d *decision, at int) {
		d.nodes[at].pod = &corev1.Pod{Spec: corev1.PodSpec{NodeName: "worker"}}
		d.Draining = map[string][]corev1.Taint{"worker": {cordoned}}
	}
	tolerant := &v1alpha1.MemoryPool{Pod: &v1alpha1.PodOptions{Tolerations: []v1alpha1.Toleration{{Operator: corev1.TolerationOpExists}}}}
	noPlace := func(d *decision, at int) {
		d.nodes[at].pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, LastTransitionTime: metav1.NewTime(start.Add(-placePatience))}}
	}
	for name, c := range map[string]struct {
		there, all int
		change     func(*decision)
		first      bool
	}{
		"two share keys":                             {2, 2, func(*decision) {}, true},
		"there is no map yet":                        {2, 2, func(d *decision) { d.epochs.current = nil }, false},
		"it is disabled":                             {2, 2, func(d *decision) { d.Pool.Spec.Resize = &v1alpha1.ResizeSpec{Evacuation: v1alpha1.EvacuationDisabled} }, false},
		"one is alone":                               {1, 1, func(*decision) {}, false},
		"one is alone, and another comes":            {1, 2, func(*decision) {}, true},
		"one is alone, and another finds no place":   {1, 2, func(d *decision) { noPlace(d, 1) }, false},
		"one is alone, and another is about to go":   {1, 2, func(d *decision) { d.nodes[1].wanted = false }, false},
		"one of two has no place to come back to":    {2, 2, func(d *decision) { d.Unplaced["b"] = true; noPlace(d, 1) }, false},
		"one of two is to go":                        {2, 2, func(d *decision) { d.nodes[1].wanted = false }, true},
		"one of two cannot leave":                    {2, 2, func(d *decision) { cordon(d, 0) }, false},
		"one of two would be made where it is":       {2, 3, func(d *decision) { cordon(d, 0); d.nodes[0].pool = tolerant }, false},
		"one of two waits for one that comes":        {2, 3, func(d *decision) { cordon(d, 0) }, true},
		"one cannot leave, and the other is to go":   {2, 2, func(d *decision) { cordon(d, 0); d.nodes[1].wanted = false }, true},
		"one cannot leave, and the move was aborted": {2, 2, func(d *decision) { cordon(d, 0); d.moves.held = &v1alpha1.ResizeOperation{} }, true},
		"both cannot leave":                          {2, 2, func(d *decision) { cordon(d, 0); cordon(d, 1) }, false},
	} {
		d := stageOf(v1alpha1.DataPolicyCache, c.there, []string{"a", "b", "c"}[:c.all]...)
		for _, n := range d.nodes {
			n.pool = &v1alpha1.MemoryPool{}
		}
		c.change(d)
		if first := d.keysLeaveFirst(); first != c.first {
			t.Errorf("%s: keys leave first: %v", name, first)
		}
	}
}

// A person who cannot empty a Kubernetes node learns what to do about it, and reads of no memory node to wait for if there is none.
func TestAMemoryNodeThatIsAloneSaysWhatToDo(t *testing.T) {
	d := newDrill(t, 1, v1alpha1.DataPolicyCache)
	d.cordon(name(0))
	if c := meta.FindStatusCondition(d.step(false).Status.Pool.Conditions, v1alpha1.ConditionDegraded); !strings.Contains(c.Message, "uncordon one, or ask for more memory nodes before") || strings.Contains(c.Message, "awaited") {
		t.Error(c.Message)
	}
}

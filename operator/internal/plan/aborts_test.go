// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"farpool.dev/farpool/api/v1alpha1"
)

func (d *drill) abort() *v1alpha1.ResizeOperation {
	operation := d.operation()
	operation.Spec.RequestedState = v1alpha1.RequestedAbort
	return operation
}

// wantHeld at so many memory nodes, by an operation that was aborted.
func (d *drill) wantHeld(operation *v1alpha1.ResizeOperation, nodes int) {
	d.t.Helper()
	move := d.current().Move
	var plan *decision
	for range 12 {
		plan = d.turn()
	}
	wantCondition(d.t, plan, v1alpha1.ConditionProgressing, metav1.ConditionFalse, v1alpha1.ReasonResizeAborted)
	if c := meta.FindStatusCondition(d.Pool.Status.Conditions, v1alpha1.ConditionProgressing); !strings.Contains(c.Message, "kubectl -n shop delete resizeoperation "+operation.Name) {
		d.t.Error(c.Message)
	}
	if stage := operation.Status.Stage; stage != v1alpha1.StageAborted || operation.Status.CompletionTime == nil || !meta.IsStatusConditionTrue(operation.Status.Conditions, v1alpha1.ConditionHolding) {
		d.t.Fatalf("%+v", operation.Status)
	}
	if spec := d.current(); spec.Move != move || len(spec.Departures) > 0 || len(spec.Nodes) != nodes || len(d.NodePods) != nodes || len(d.Nodes) != nodes {
		d.t.Fatalf("move %d, was %d, %d departures, %d nodes, %d pods", spec.Move, move, len(spec.Departures), len(spec.Nodes), len(d.NodePods))
	}
	if memory := d.Pool.Status.Memory; int(memory.Ready) != nodes || int(memory.Desired) != nodes {
		d.t.Errorf("%+v", memory)
	}
}

// If a resize is aborted before its keys move, the memory nodes that were added for it are removed. The pool stays as it is until a person says how to go on.
func TestAResizeIsAborted(t *testing.T) {
	for what, goesOn := range map[string]func(*drill) int{
		"by another aim":       func(d *drill) int { d.aim(4); return 4 },
		"by the same anew":     func(d *drill) int { d.Resizes = nil; return 5 },
		"by the aim of before": func(d *drill) int { d.aim(3); return 3 },
		"by scaling":           func(d *drill) int { d.scaleTo(2); return 2 },
	} {
		d := newDrill(t, 3, v1alpha1.DataPolicyStore)
		d.Pool.Spec.Resize = &v1alpha1.ResizeSpec{Approval: v1alpha1.ApprovalRequired}
		d.aim(5)
		d.until("it waits for approval", func(*decision) bool {
			return len(d.Resizes) > 0 && d.operation().Status.Stage == v1alpha1.StagePlanned && len(d.current().Nodes) == 5
		})
		aborted := d.abort()
		d.wantHeld(aborted, 3)
		if must := budget(d.step(false)); must != 3 {
			t.Errorf("%d memory nodes have to be there", must)
		}
		// A late approval changes nothing.
		aborted.Spec.Approval = v1alpha1.ApprovalApproved
		d.wantHeld(aborted, 3)
		d.Pool.Spec.Resize = nil
		d.wantNodes(goesOn(d))
		d.noneLost()
		if slices.Contains(d.Resizes, aborted) && meta.IsStatusConditionTrue(aborted.Status.Conditions, v1alpha1.ConditionHolding) {
			t.Errorf("%s: it still holds the pool", what)
		}
		// Once another number was asked for, the aborted number can be asked for like any.
		d.scaleTo(5)
		d.wantNodes(5)
		d.noneLost()
	}
}

// No split is begun any more, and what has been split stays so.
func TestSplitsAreAborted(t *testing.T) {
	d := newDrill(t, 2, v1alpha1.DataPolicyStore)
	d.aimAt(8)
	d.until("the map asks for them", func(*decision) bool { return d.current().LeastTables == 8 })
	d.clients(always)
	aborted := d.abort()
	d.wantHeld(aborted, 2)
	if d.current().LeastTables != 0 {
		t.Errorf("the map still asks for %d tables", d.current().LeastTables)
	}
	d.Resizes = nil
	d.untilSettled()
	if again := d.operation().Spec.Tables; again.From < 2 || again.To != 8 {
		t.Errorf("%+v", again)
	}
	// Once more tables are asked for, the abort holds no more.
	d.aimAt(16)
	d.until("the map asks for them", func(*decision) bool { return d.current().LeastTables == 16 })
	aborted = d.abort()
	d.wantHeld(aborted, 2)
	d.aimAt(32)
	d.untilSettled()
	if meta.IsStatusConditionTrue(aborted.Status.Conditions, v1alpha1.ConditionHolding) {
		t.Error("it still holds the pool")
	}
}

func TestADrainIsAborted(t *testing.T) {
	d := newDrill(t, 4, v1alpha1.DataPolicyStore)
	d.Pool.Spec.Resize = &v1alpha1.ResizeSpec{Approval: v1alpha1.ApprovalRequired}
	d.aim(2)
	d.turn()
	d.turn()
	d.wantHeld(d.abort(), 4)
	if must := budget(d.step(false)); must != 4 {
		t.Errorf("%d memory nodes have to be there", must)
	}
	d.Pool.Spec.Resize = nil
	d.aim(3)
	d.wantNodes(3)
	d.noneLost()
}

// A move that was published is finished. Where nothing is left behind it, the resize is complete after all.
func TestAMoveIsNotAborted(t *testing.T) {
	d := newDrill(t, 3, v1alpha1.DataPolicyStore)
	d.aim(5)
	d.until("it moves", func(*decision) bool { return d.current().Move == 1 })
	grown := d.abort()
	d.wantNodes(5)
	d.noneLost()
	if grown.Status.Stage != v1alpha1.StageComplete {
		t.Errorf("%+v", grown.Status)
	}
	// Something is left: a memory node that has to leave has stopped tables, and gives nothing.
	d.begin(name(4), false)
	d.step(false)
	d.step(false)
	d.aim(2)
	d.until("it moves", func(*decision) bool { return d.current().Move == 2 })
	drained := d.abort()
	d.step(false)
	d.wantStage(v1alpha1.StageMoving, "nothing more is begun of it")
	d.clients(always)
	for range 12 {
		d.turn()
	}
	if spec := d.current(); drained.Status.Stage != v1alpha1.StageAborted || spec.Move != 2 || len(spec.Departures) > 0 || len(spec.Nodes) != 3 || !inMap(spec, name(4)) {
		t.Fatalf("%+v; move %d, %d nodes", drained.Status, spec.Move, len(spec.Nodes))
	}
	d.accept(4)
	d.wantHeld(drained, 3)
	d.Resizes = nil
	d.wantNodes(2)
}

// What an abort leaves behind need not be even: that is not made even either.
func TestAnAbortLeavesSharesAsTheyAre(t *testing.T) {
	d := newDrill(t, 4, v1alpha1.DataPolicyStore)
	d.begin(name(3), false)
	d.step(false)
	d.step(false)
	d.aim(1)
	for range 12 {
		d.turn()
	}
	d.wantStage(v1alpha1.StageWaiting, "memory nodes whose tables are stopped")
	d.accept(3)
	d.step(false)
	d.wantHeld(d.abort(), 2)
}

// accept the loss of what a memory node held.
func (d *drill) accept(ordinal int) {
	object := d.Nodes[name(ordinal)]
	object.Annotations = map[string]string{v1alpha1.AnnotationAcceptDataLoss: object.Status.Incarnation}
}

// As long as an abort holds the pool, no memory node leaves a cordoned Kubernetes node either, and none is evicted.
func TestAnEvacuationIsAborted(t *testing.T) {
	d := newDrill(t, 3, v1alpha1.DataPolicyCache)
	d.Pool.Spec.Resize = &v1alpha1.ResizeSpec{Approval: v1alpha1.ApprovalRequired}
	there := d.cordon(name(1))
	d.turn()
	d.turn()
	aborted := d.abort()
	d.wantHeld(aborted, 3)
	another := d.cordon(name(0))
	d.wantHeld(aborted, 3)
	if must := budget(d.step(false)); must != 3 {
		t.Errorf("%d memory nodes have to be there", must)
	}
	delete(d.Draining, there)
	delete(d.Draining, another)
	d.wantNodes(3)
	d.Pool.Spec.Resize = nil
	d.cordon(name(1))
	d.wantNodes(3)
	if d.operation() == aborted || d.NodePods[name(1)].Spec.NodeName == there {
		t.Error("what was aborted once is not done any more")
	}
	d.noneLost()
}

// A memory pool does not grow by itself past an abort.
func TestGrowthIsAborted(t *testing.T) {
	d := newDrill(t, 2, v1alpha1.DataPolicyCache)
	d.Pool.Spec.Memory.Pools[0].Capacity = &v1alpha1.CapacityPolicy{FillPercent: 70, MaxReplicas: 9}
	d.Pool.Spec.Resize = &v1alpha1.ResizeSpec{Approval: v1alpha1.ApprovalRequired}
	d.fill(80)
	d.until("it waits for approval", func(*decision) bool {
		return len(d.Resizes) > 0 && d.operation().Status.Stage == v1alpha1.StagePlanned && len(d.current().Nodes) == 3
	})
	d.wantHeld(d.abort(), 2)
	d.wantLimited(metav1.ConditionTrue, v1alpha1.ReasonResizeAborted)
	if replicas := d.MemoryPools["cache-memory"].Spec.Replicas; replicas != 3 {
		t.Errorf("%d memory nodes are asked for", replicas)
	}
}

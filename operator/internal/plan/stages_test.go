// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"farpool.dev/farpool/api/v1alpha1"
	apiac "farpool.dev/farpool/api/v1alpha1/applyconfiguration/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/render"
)

// ResizeOperations by themselves: when one is made, what it says, and when it goes. moves_test.go has them together with the moves.

// resizing returns a stage with memory nodes a and b in the map, each with half of the parts, and a pool that render makes objects for.
func resizing(names ...string) *decision {
	d := stageOf(v1alpha1.DataPolicyCache, 2, append([]string{"a", "b"}, names...)...)
	d.shares(0, 0, 1, 1)
	d.moves.open = nil
	d.Pool.Spec.Memory.Pools = []v1alpha1.MemoryPool{{Name: "memory", Replicas: 2}}
	d.Pool.Spec.Index.RACE = &v1alpha1.RACESpec{LeastTables: 1}
	for _, n := range d.nodes {
		n.pool = &d.Pool.Spec.Memory.Pools[0]
	}
	d.pool = render.Pool{Name: "cache", Namespace: "shop", UID: "uid", Spec: d.Pool.Spec}
	return d
}

// operationOf returns a ResizeOperation; one that is over has a time.
func operationOf(name string, over bool) *v1alpha1.ResizeOperation {
	operation := &v1alpha1.ResizeOperation{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: v1alpha1.ResizeOperationSpec{Pools: []v1alpha1.ResizePool{{Name: "memory", From: 2, To: 2}}}}
	if over {
		operation.Status.CompletionTime, operation.Status.Stage = &metav1.Time{Time: start}, v1alpha1.StageComplete
	}
	return operation
}

// A ResizeOperation is made when memory nodes are to come or go, none is open or holds the pool, and the operator may act. Its number follows the highest.
func TestWhenAResizeIsMade(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*decision)
		paused bool
		made   string
	}{
		"one is to go":             {change: func(*decision) {}, made: "cache-resize-1"},
		"nothing is to change":     {change: func(d *decision) { d.nodes[1].wanted = true }},
		"the operator may not act": {change: func(*decision) {}, paused: true},
		"one is open": {change: func(d *decision) {
			d.moves.open = operationOf("cache-resize-1", false)
			d.Resizes = append(d.Resizes, d.moves.open)
		}},
		"one holds the pool": {change: func(d *decision) {
			d.moves.held = operationOf("cache-resize-1", true)
			d.Resizes = append(d.Resizes, d.moves.held)
		}},
		"one of another aim is open": {change: func(d *decision) { d.Resizes = append(d.Resizes, operationOf("cache-resize-1", false)) }},
		"one is over":                {change: func(d *decision) { d.Resizes = append(d.Resizes, operationOf("cache-resize-7", true)) }, made: "cache-resize-8"},
		"a person made one": {change: func(d *decision) {
			d.Strays = append(d.Strays, operationOf("12", true), operationOf("cache-resize-99999999999999999999", true))
		}, made: "cache-resize-1"},
		"a person took the next number": {change: func(d *decision) { d.Strays = append(d.Strays, operationOf("cache-resize-4", true)) }, made: "cache-resize-5"},
	} {
		d := resizing()
		d.nodes[1].wanted = false
		c.change(d)
		d.decideResize(!c.paused)
		made := ""
		for _, object := range d.moves.made {
			made += *object.(*apiac.ResizeOperationApplyConfiguration).Name
		}
		if made != c.made || c.paused && d.moves.words != "" {
			t.Errorf("%s: %q is made, %q is said", name, made, d.moves.words)
		}
	}
}

// A ResizeOperation names tables if more than one is asked for at each memory node.
func TestWhetherAResizeNamesTables(t *testing.T) {
	for _, least := range []int32{1, 2} {
		d := resizing()
		d.Pool.Spec.Index.RACE.LeastTables, d.nodes[1].wanted = least, false
		d.decideResize(true)
		spec := d.moves.made[0].(*apiac.ResizeOperationApplyConfiguration).Spec
		if (spec.Tables != nil) != (least > 1) || least > 1 && *spec.Tables.To != least {
			t.Errorf("of %d tables: %+v", least, spec.Tables)
		}
	}
}

// The last eight operations that are over are kept, and the one that holds the pool, however old it is.
func TestHowManyResizesAreKept(t *testing.T) {
	for over, goes := range map[int]string{resizesKept: "", resizesKept + 2: "resize-0 resize-1"} {
		d := resizing()
		d.moves.held = operationOf("holds", true)
		d.Resizes = append(d.Resizes, d.moves.held)
		for i := range over {
			d.Resizes = append(d.Resizes, operationOf(fmt.Sprint("resize-", i), true))
		}
		if d.decideResize(true); strings.Join(deleted(&d.Plan), " ") != goes {
			t.Errorf("of %d that are over: deleted are %v", over, deleted(&d.Plan))
		}
	}
}

// What a ResizeOperation changes is said of all memory pools together.
func TestWhatAResizeChanges(t *testing.T) {
	spec := v1alpha1.ResizeOperationSpec{Pools: []v1alpha1.ResizePool{{From: 1, To: 2}, {From: 3, To: 4}}}
	if says := changeOf(&spec); says != "4 to 6" {
		t.Error(says)
	}
	spec.Evacuates, spec.Tables = []string{"a"}, &v1alpha1.ResizeTables{From: 1, To: 8}
	if says := changeOf(&spec); says != "4 to 6, 1 evacuated, 1 to 8 tables each" {
		t.Error(says)
	}
	spec.Evacuates, spec.Tables.From = nil, 8
	if says := changeOf(&spec); says != "4 to 6" {
		t.Error(says)
	}
}

// How many tables are in use is said by the ResizeOperation that follows the present aim, if it is about tables.
func TestWhoSaysHowManyTablesAreInUse(t *testing.T) {
	for name, c := range map[string]struct {
		tables, open bool
		says         int32
	}{"the one that is open": {true, true, 2}, "one of another aim": {true, false, 5}, "one of memory nodes": {false, true, 5}} {
		d := resizing()
		d.Pool.Spec.Index.RACE.LeastTables, d.nodes[0].facts.MemoryNode.EvenTables = 8, 2
		operation := operationOf("one", false)
		operation.Status.TablesInUse = 5
		if c.tables {
			operation.Spec.Tables = &v1alpha1.ResizeTables{From: 1, To: 8}
		}
		if c.open {
			d.moves.open = operation
		}
		if status := d.followResize(operation); status.TablesInUse != c.says {
			t.Errorf("%s: %d", name, status.TablesInUse)
		}
	}
}

// A stage is told when it begins, and again when it waits for something else; that memory nodes are being told a map is not.
func TestWhenAStageIsTold(t *testing.T) {
	for name, c := range map[string]struct {
		was    v1alpha1.ResizeStage
		reason string // of before; "": nothing was said
		now    string
		told   bool
	}{
		"it begins":                     {"", "", v1alpha1.ReasonMemoryNodesPending, true},
		"another stage was before":      {v1alpha1.StageMoving, v1alpha1.ReasonMemoryNodesPending, v1alpha1.ReasonMemoryNodesPending, true},
		"it is as it was":               {v1alpha1.StageWaiting, v1alpha1.ReasonMemoryNodesPending, v1alpha1.ReasonMemoryNodesPending, false},
		"it waits for something else":   {v1alpha1.StageWaiting, v1alpha1.ReasonTablesStopped, v1alpha1.ReasonMemoryNodesPending, true},
		"nothing was said of it":        {v1alpha1.StageWaiting, "", v1alpha1.ReasonMemoryNodesPending, true},
		"memory nodes are told a map":   {v1alpha1.StageMoving, v1alpha1.ReasonMoving, v1alpha1.ReasonPublishing, false},
		"they are told it a while long": {v1alpha1.StageWaiting, v1alpha1.ReasonPublishing, v1alpha1.ReasonPublishing, false},
	} {
		d, operation := &decision{}, operationOf("one", false)
		operation.Status.Stage = c.was
		if c.reason != "" {
			operation.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionComplete, Reason: c.reason}}
		}
		if d.tellStage(operation, v1alpha1.StageWaiting, c.now, "words"); len(d.Status.Events) > 0 != c.told {
			t.Errorf("%s: %v", name, d.Status.Events)
		}
	}
}

// The keys that have moved give the estimate for the others. Keys that clients add meanwhile say nothing about it.
func TestNothingIsEstimatedWhereNothingHasMoved(t *testing.T) {
	now, since := &metav1.Time{Time: start.Add(time.Minute)}, &metav1.Time{Time: start}
	for name, c := range map[string]struct {
		total, before, left int64
		end                 *metav1.Time
	}{
		"half has moved":               {1000, 800, 500, &metav1.Time{Time: start.Add(2 * time.Minute)}},
		"there are more than ever":     {1000, 1000, 1500, nil},
		"as many are left as ever":     {1000, 800, 1000, nil},
		"as many are left as were":     {1000, 500, 500, nil},
		"hardly anything has moved so": {1 << 60, 1 << 60, 1<<60 - 1, &metav1.Time{Time: now.Add(longestEstimate * time.Second)}},
	} {
		m := moves{keysLeft: c.left}
		status := v1alpha1.ResizeOperationStatus{KeysTotal: c.total, KeysLeft: c.before, MovingSince: since}
		if m.estimate(&status, v1alpha1.StageMoving, now); !status.EstimatedCompletionTime.Equal(c.end) {
			t.Errorf("%s: %v, want %v", name, status.EstimatedCompletionTime, c.end)
		}
	}
}

// What a resize is at, and what it says of that.
func TestWhatAResizeIsAt(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*decision)
		stage  v1alpha1.ResizeStage
		says   string // the whole, or what it begins with if it ends in "..."
	}{
		"a map is told": {func(d *decision) { d.epochs.next = d.epochs.current }, v1alpha1.StageWaiting, "waiting for memory nodes to follow map epoch 7"},
		"parts are left": {func(d *decision) { d.epochs.next, d.moves.known, d.moves.partsLeft = d.epochs.current, true, 3 }, v1alpha1.StageWaiting,
			"waiting for memory nodes to follow map epoch 7; 3 of 4 parts are left to be moved"},
		"and their keys are counted": {func(d *decision) {
			d.epochs.next, d.moves.known, d.moves.partsLeft, d.moves.counted, d.moves.keysLeft, d.moves.bytesLeft = d.epochs.current, true, 3, true, 10, 5<<20
		}, v1alpha1.StageWaiting, "waiting for memory nodes to follow map epoch 7; 3 of 4 parts are left to be moved, with about 10 keys and 5 MiB"},
		"no parts are left": {func(d *decision) { d.epochs.next, d.moves.known = d.epochs.current, true }, v1alpha1.StageWaiting, "waiting for memory nodes to follow map epoch 7"},
		"it is not known":   {func(d *decision) { d.epochs.next, d.moves.partsLeft = d.epochs.current, 3 }, v1alpha1.StageWaiting, "waiting for memory nodes to follow map epoch 7"},
		"keys move": {func(d *decision) { d.epochs.current.Departures = []v1alpha1.Departure{{Part: 0, From: 1}} }, v1alpha1.StageMoving,
			"move 3 of keys away from b is under way"},
		"it was aborted":        {func(d *decision) { d.moves.held = operationOf("one", true) }, v1alpha1.StageAborted, "ResizeOperation one was aborted, ..."},
		"it waits for approval": {func(d *decision) { d.moves.awaits = &finding{v1alpha1.ReasonApprovalRequired, "approve"} }, v1alpha1.StagePlanned, "approve"},
		"tables are split": {func(d *decision) {
			d.Pool.Spec.Index.RACE.LeastTables, d.nodes[0].facts.MemoryNode.EvenTables, d.epochs.current.LeastTables = 8, 2, 8
		}, v1alpha1.StageSplitting, "clients split tables ahead of keys: 2 of 8 are in use at the memory node that has fewest"},
		"it is complete":      {func(*decision) {}, v1alpha1.StageComplete, "the pool has the 2 memory nodes that its spec asks for, each with its share of 4 parts"},
		"the last is removed": {func(d *decision) { d.moves.known, d.nodes = true, append(d.nodes, &node{name: "c"}) }, v1alpha1.StageRemoving, "memory nodes that hold nothing any more are being removed: c"},
		"one goes, another comes": {func(d *decision) {
			d.moves.known, d.nodes = true, append(d.nodes, &node{name: "c"}, &node{name: "d", wanted: true})
		}, v1alpha1.StageWaiting, "waiting for memory nodes to follow map epoch 7"},
		"it waits for something": {func(d *decision) {
			d.nodes[1].wanted, d.moves.awaits = false, &finding{v1alpha1.ReasonTablesStopped, "look"}
		}, v1alpha1.StageWaiting, "look"},
	} {
		d := resizing()
		c.change(d)
		stage, _, says := d.stage()
		begins, part := strings.CutSuffix(c.says, "...")
		if stage != c.stage || says != c.says && !(part && strings.HasPrefix(says, begins)) {
			t.Errorf("%s: %s: %q", name, stage, says)
		}
	}
}

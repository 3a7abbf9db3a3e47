// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/agent"
)

// A memory node remembers a map that came after the newest which can be reached: by what it has recorded, by the moves that it has finished, and by refusing an
// epoch that it should have followed.
func TestWhoRemembersALaterMap(t *testing.T) {
	for name, c := range map[string]struct {
		change func(d *decision, n *node)
		why    string // "": it remembers none
	}{
		"the same map":                {func(_ *decision, n *node) { n.facts.MemoryNode.RecordedEpoch = 7 }, ""},
		"a later epoch":               {func(_ *decision, n *node) { n.facts.MemoryNode.RecordedEpoch = 8 }, "has followed a later epoch than 7"},
		"a later move":                {func(_ *decision, n *node) { n.facts.MemoryNode.MoveFinished = 4 }, "keys have left memory node a in move 4"},
		"it refused the newest":       {func(_ *decision, n *node) { n.agent.RefusedEpoch = 7 }, "has followed a later epoch than 7"},
		"it refused an earlier one":   {func(_ *decision, n *node) { n.agent.RefusedEpoch = 6 }, ""},
		"it has followed a later one": {func(_ *decision, n *node) { n.agent.RefusedEpoch, n.facts.Epoch = 7, 8 }, ""},
		"it refused, and is silent":   {func(_ *decision, n *node) { n.agent.RefusedEpoch, n.facts = 9, nil }, ""},
		"there is no map, it refused": {func(d *decision, n *node) {
			d.epochs.current, n.agent.RefusedEpoch, n.facts.MemoryNode.MoveFinished = nil, 9, 0
		}, ""},
		"there is no map, one is recorded": {func(d *decision, n *node) {
			d.epochs.current, n.facts.MemoryNode.RecordedEpoch, n.facts.MemoryNode.MoveFinished = nil, 5, 0
		}, ""},
		"there is no map, and maps are signed": {func(d *decision, n *node) {
			d.mapKey, d.epochs.current, n.facts.MemoryNode.MoveFinished, n.facts.Epoch = testMapKey, nil, 0, 0
		}, ""},
		"maps are signed, and it shows none": {func(d *decision, n *node) {
			d.mapKey, d.epochs.current, n.facts.MemoryNode.RecordedEpoch, n.facts.MemoryNode.MoveFinished = testMapKey, nil, 5, 0
		}, "holds no map of it, which only damage or a lie explains"},
	} {
		d := stageOf(v1alpha1.DataPolicyStore, 2, "a", "b")
		c.change(d, d.nodes[0])
		if why := d.remembersMore(d.nodes[0]); (why == "") != (c.why == "") || !strings.Contains(why, c.why) {
			t.Errorf("%s: it says %q, want %q", name, why, c.why)
		}
	}
}

// A person gives up what the pool held up to an epoch, by a number that can be one and that the pool has not gone on from.
func TestWhatMayBeGivenUp(t *testing.T) {
	for _, c := range []struct {
		annotation string
		current    bool // the pool has a map, of epoch 7
		epoch      int64
	}{
		{"", false, 0}, {"x", false, 0}, {"0", false, 0}, {"-1", false, 0}, {"1", false, 1}, {"9999999999", false, v1alpha1.MostEpochs}, {"10000000000", false, 0},
		{"7", true, 0}, {"8", true, 8}, {"6", true, 0}, {"99999999999999999999", false, 0},
	} {
		d := stageOf(v1alpha1.DataPolicyStore, 1, "a")
		if !c.current {
			d.epochs.current = nil
		}
		d.Pool.Annotations = map[string]string{v1alpha1.AnnotationBeginEmpty: c.annotation}
		if epoch := d.mayBeGivenUp(); epoch != c.epoch {
			t.Errorf("%q gives up %d", c.annotation, epoch)
		}
	}
}

// A pod is deleted if its process answers and it is not being deleted already. The operator waits for silent ones: it does not know whether they may go.
func TestWhichPodsAreToBeginEmpty(t *testing.T) {
	d := stageOf(v1alpha1.DataPolicyStore, 4, "remembers", "heard", "deleted", "silent")
	d.nodeNamed("deleted").pod.DeletionTimestamp = &metav1.Time{Time: start}
	d.nodeNamed("silent").agent.State = agent.Unreachable
	says := d.beginEmpty(d.nodes[:1])
	if len(d.Delete) != 1 || d.Delete[0] != d.nodeNamed("heard").pod || says != "waiting for memory nodes to begin empty: heard, deleted, silent" {
		t.Errorf("%d are deleted: %s", len(d.Delete), says)
	}
}

// The pool waits for every memory node that the spec asks for or that has a pod, and for no earlier one that is gone.
func TestWhoIsAwaitedToBeginEmpty(t *testing.T) {
	for name, c := range map[string]struct {
		change func(n *node)
		awaits bool
	}{
		"it is empty":                       {func(*node) {}, false},
		"it is silent":                      {func(n *node) { n.facts = nil }, true},
		"it has no pod yet":                 {func(n *node) { n.facts, n.pod = nil, nil }, true},
		"it is to go, and has a pod":        {func(n *node) { n.facts, n.wanted = nil, false }, true},
		"it is to go, and its pod has gone": {func(n *node) { n.facts, n.pod, n.wanted = nil, nil, false }, false},
	} {
		d := stageOf(v1alpha1.DataPolicyStore, 0, "a", "b")
		d.epochs.current = nil
		d.Pool.Annotations = map[string]string{v1alpha1.AnnotationBeginEmpty: "9"}
		c.change(d.nodes[1])
		if begun := d.hasBegunEmpty(); begun == c.awaits || begun != (d.epochs.givenUp == 9) || len(d.degraded) > 0 != c.awaits {
			t.Errorf("%s: begun %v, given up %d, %+v", name, begun, d.epochs.givenUp, d.degraded)
		}
	}
}

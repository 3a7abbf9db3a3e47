// SPDX-License-Identifier: Apache-2.0

package plan

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/agent"
)

// These are shares of the room of a table or heap. A pool that was nearly full counts as such until it has clearly more room, lest the condition flaps.
const (
	nearlyFull     = 0.90
	clearlyNotFull = 0.80
)

// memoryPressure says whether writes are refused for lack of memory, which compute shards report, or may soon be, because the tables fill up. It announces a
// change. Where a key lies does not depend on who has room, so the fullest memory node counts.
func (d *decision) memoryPressure() metav1.Condition {
	const pressure = v1alpha1.ConditionMemoryPressure
	before := meta.FindStatusCondition(d.Pool.Status.Conditions, pressure)
	under := before != nil && before.Status == metav1.ConditionTrue
	fullest, most, of, unknown := d.fullest(d.fills)
	const whenFull = "additions are refused (OOM), which are new keys and values that are longer than before; reads, removals, and writes of values that are no longer go on: remove keys, or add memory nodes"
	refusing := d.refusing()
	then := whenFull
	if of == agent.OfTable && d.protocol().Overflows() {
		then = "keys that are added find no slot, and reads of them take two requests in place of one; nothing is refused until the heap is full: add memory nodes"
	}
	// The condition's steps are as coarse as those of the news that compute shards send.
	percent := int(most*20) * 5
	var now metav1.Condition
	switch {
	case len(refusing) > 0:
		now = condition(pressure, metav1.ConditionTrue, v1alpha1.ReasonMemoryFull, "a memory node is full, says compute shard %s: %s", some(refusing), whenFull)
	case fullest == nil:
		now = condition(pressure, metav1.ConditionUnknown, v1alpha1.ReasonMemoryUnknown, "no memory node has said how full it is")
		if under {
			now = *before.DeepCopy()
		}
	case under && most < nearlyFull && len(unknown) > 0:
		// The memory node that may be the fullest has not yet said how full it is: it begins anew, or this operator has not heard it yet.
		now = *before.DeepCopy()
	case most >= nearlyFull, under && most >= clearlyNotFull:
		now = condition(pressure, metav1.ConditionTrue, v1alpha1.ReasonMemoryNearlyFull, "the %s of memory node %s is %d %% full or more; when it is full, %s", of, fullest.name, percent, then)
	default:
		now = condition(pressure, metav1.ConditionFalse, v1alpha1.ReasonMemoryAvailable, "no write was refused for lack of memory, and no table or heap is fuller than the %s of memory node %s, which is less than %d %% full%s", of, fullest.name, percent+5, ofWhich(unknown))
	}
	if now.Status == metav1.ConditionTrue || under {
		kind := corev1.EventTypeWarning
		if now.Status != metav1.ConditionTrue {
			kind = corev1.EventTypeNormal
		}
		if before == nil || before.Reason != now.Reason {
			d.Status.Events = append(d.Status.Events, Event{Regarding: d.Pool, Type: kind, Reason: now.Reason, Action: "Watch", Note: now.Message})
		}
	}
	return now
}

// ofWhich names the memory nodes of which something is not known.
func ofWhich(unknown []string) string {
	if len(unknown) == 0 {
		return ""
	}
	return "; it is not known of " + some(unknown)
}

// fills says whether a memory node has memory that keys fill: it is in the map, or about to be, and its pod has a place.
func (d *decision) fills(n *node) bool {
	return n.agent.Facts.GetMemoryNode() != nil || inMap(d.epochs.current, n.name) && !d.Unplaced[n.name]
}

// fullest returns the fullest of some memory nodes, how full it is, and whether that is its table or its heap; and the memory nodes of which it is not known.
func (d *decision) fullest(among func(*node) bool) (fullest *node, most float64, of string, unknown []string) {
	for _, n := range d.nodes {
		if !among(n) {
			continue
		}
		fill, which, known := agent.Fill(n.agent.Facts.GetMemoryNode())
		switch {
		case !known:
			unknown = append(unknown, n.name)
		case fullest == nil || fill > most:
			fullest, most, of = n, fill, which
		}
	}
	return fullest, most, of, unknown
}

// refusing are the compute shards that memory nodes have recently refused memory.
func (d *decision) refusing() []string {
	var refusing []string
	for _, pod := range d.ComputePods {
		if d.Agents[pod.UID].Facts.GetComputeShard().GetOutOfMemory() {
			refusing = append(refusing, pod.Name)
		}
	}
	return refusing
}

// fullFinding is the finding that asks a person to act on memory pressure.
func fullFinding(pressure metav1.Condition) []finding {
	if pressure.Reason != v1alpha1.ReasonMemoryFull {
		return nil
	}
	return []finding{{pressure.Reason, pressure.Message}}
}

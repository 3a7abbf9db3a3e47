// SPDX-License-Identifier: Apache-2.0

package plan

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/agent"
)

// Of a memory node's room, in parts of one. A pool is said to be nearly full until it has clearly more room again, lest the condition flaps.
const (
	full            = 0.98 // memory nodes tell of moves by more than a percent
	nearlyFull      = 0.90
	clearlyNotFull  = 0.80
	fullMemoryGuide = "new keys and larger values are refused (OOM), reads, removals and updates in place go on: remove keys, or let them expire, or load the data into a larger pool"
)

// memoryPressure judges by the fullest memory node, since a key's place is not chosen by who has room, and has a change told.
func (d *decision) memoryPressure() metav1.Condition {
	const pressure = v1alpha1.ConditionMemoryPressure
	before := meta.FindStatusCondition(d.Pool.Status.Conditions, pressure)
	var fullest *node
	var most float64
	var what string
	for _, n := range d.nodes {
		if n.agent.Facts.GetMemoryNode() == nil {
			continue
		}
		if fill, of := agent.Fill(n.agent.Facts.GetMemoryNode()); fullest == nil || fill > most {
			fullest, most, what = n, fill, of
		}
	}
	if fullest == nil {
		return condition(pressure, metav1.ConditionUnknown, v1alpha1.ReasonMemoryUnknown, "no memory node has said how full it is")
	}
	// Steps as coarse as the news of them.
	percent := int(most*20) * 5
	under := before != nil && before.Status == metav1.ConditionTrue
	var now metav1.Condition
	switch {
	case most >= full:
		now = condition(pressure, metav1.ConditionTrue, v1alpha1.ReasonMemoryFull, "memory node %s is full (%s): %s", fullest.name, what, fullMemoryGuide)
	case most >= nearlyFull, under && most >= clearlyNotFull:
		now = condition(pressure, metav1.ConditionTrue, v1alpha1.ReasonMemoryNearlyFull, "memory node %s is %d %% full or more; when it is full, %s", fullest.name, percent, fullMemoryGuide)
	default:
		now = condition(pressure, metav1.ConditionFalse, v1alpha1.ReasonMemoryAvailable, "the fullest memory node, %s, is less than %d %% full", fullest.name, percent+5)
	}
	if changed := before != nil && before.Reason != now.Reason; changed || (before == nil && now.Status == metav1.ConditionTrue) {
		kind := corev1.EventTypeWarning
		if now.Status == metav1.ConditionFalse {
			kind = corev1.EventTypeNormal
		}
		if now.Status == metav1.ConditionTrue || under {
			d.Status.Events = append(d.Status.Events, Event{Regarding: d.Pool, Type: kind, Reason: now.Reason, Action: "Watch", Note: now.Message})
		}
	}
	return now
}

// fullFinding is what needs a person of it.
func fullFinding(pressure metav1.Condition) []finding {
	if pressure.Reason != v1alpha1.ReasonMemoryFull {
		return nil
	}
	return []finding{{pressure.Reason, pressure.Message}}
}

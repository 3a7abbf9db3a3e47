// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"farpool.dev/farpool/api/v1alpha1"
)

// A Kubernetes node that is cordoned, or that an autoscaler has tainted, is about to be emptied. The keys of its memory nodes move to others, as if these memory
// nodes were to be removed. Then their pods are deleted and made again elsewhere, and join the map like new ones. Until then the disruption budget allows no
// eviction.

// evacuate finds the memory nodes that have to leave their Kubernetes node.
func (d *decision) evacuate() {
	if d.evacuationDisabled() || d.epochs.current == nil {
		return
	}
	var leaving, staying []*node
	takers := 0
	for _, n := range d.nodes {
		switch {
		case !n.wanted:
		case d.drains(n) && !d.tolerates(n):
			leaving = append(leaving, n)
		case inMap(d.epochs.current, n.name) && !d.Unplaced[n.name]:
			takers++
			if d.drains(n) {
				staying = append(staying, n)
			}
		}
	}
	if len(staying) > 0 {
		d.degraded = append(d.degraded, finding{v1alpha1.ReasonNowhereToEvacuate, fmt.Sprintf(
			"the Kubernetes nodes of memory nodes are about to be emptied (%s: %s), and their memory pool tolerates that, so their pods would be made again where they are and no keys leave them: uncordon, or drain; a drained Cache loses what they hold, and you have to delete a Store's pods by hand",
			some(names(staying)), d.why(staying[0]))})
	}
	if takers > 0 {
		for _, n := range leaving {
			n.evacuated = true
		}
	} else if len(leaving) > 0 {
		how := "uncordon one, or ask for more memory nodes before"
		if awaited := d.awaited(d.epochs.current); len(awaited) > 0 {
			how = fmt.Sprintf("memory nodes that are about to come will have room (%s), and until then no pod is evicted", some(awaited))
		}
		d.degraded = append(d.degraded, finding{v1alpha1.ReasonNowhereToEvacuate, fmt.Sprintf(
			"the Kubernetes nodes of memory nodes are about to be emptied (%s: %s), and there is no other memory node to take their keys: %s", some(names(leaving)), d.why(leaving[0]), how)})
	}
}

func (d *decision) evacuationDisabled() bool {
	return d.Pool.Spec.Resize != nil && d.Pool.Spec.Resize.Evacuation == v1alpha1.EvacuationDisabled
}

// drains says whether the Kubernetes node of a memory node is about to be emptied.
func (d *decision) drains(n *node) bool {
	return n.pod != nil && len(d.Draining[n.pod.Spec.NodeName]) > 0
}

// why tells people why a memory node's Kubernetes node is about to be emptied.
func (d *decision) why(n *node) string {
	var keys []string
	for _, taint := range d.Draining[n.pod.Spec.NodeName] {
		if taint.Key == corev1.TaintNodeUnschedulable {
			keys = append(keys, "cordoned")
		} else {
			keys = append(keys, "taint "+taint.Key)
		}
	}
	return strings.Join(keys, ", ")
}

// guard says how many memory nodes the disruption budget keeps. A memory node counts as long as it may have a process, even if it holds nothing yet, or nothing any
// more, and even if its process has not started or ends again and again. If it did not count, it would be a pod too many for the budget from the moment at which it
// starts, and another pod could be evicted in its place.
func (d *decision) guard() {
	for _, n := range d.nodes {
		if n.wanted || n.object != nil || n.pod != nil || inMap(d.epochs.current, n.name) {
			d.pool.Guarded++
		}
	}
	d.pool.KeysLeaveFirst = d.keysLeaveFirst()
}

// keysLeaveFirst says whether the budget allows no eviction at all, even in a Cache: keys leave a memory node before its Kubernetes node is drained, or stay until
// a person decides. A disruption budget does not tell pods apart, so a pod that could be evicted at once waits as well.
func (d *decision) keysLeaveFirst() bool {
	spec := d.epochs.current
	if d.evacuationDisabled() || spec == nil {
		return false
	}
	var there []*node
	toCome, leaving, stuck := 0, false, false
	for _, n := range d.nodes {
		if inMap(spec, n.name) && !d.Unplaced[n.name] {
			there = append(there, n)
		} else if n.wanted && !d.placeless(n) {
			toCome++
		}
	}
	for _, n := range there {
		switch {
		case !n.stays():
			leaving = true
		case d.drains(n) && (d.tolerates(n) || toCome == 0):
			stuck = true
		}
	}
	return leaving || len(there)+toCome > 1 && (!stuck || d.moves.held != nil)
}

// evacuates says whether a memory node that has to leave its Kubernetes node still has parts of a map.
func (d *decision) evacuates(spec *v1alpha1.ShardMapSpec) bool {
	for _, table := range spec.Directory.Tables {
		if n := d.nodeNamed(nodeOf(spec, table).Name); n != nil && n.evacuated {
			return true
		}
	}
	return false
}

// tolerates says whether a memory node's pod would be made again on the very Kubernetes node that it has to leave.
func (d *decision) tolerates(n *node) bool {
	return !slices.ContainsFunc(d.Draining[n.pod.Spec.NodeName], func(taint corev1.Taint) bool {
		return !slices.ContainsFunc(n.pool.Pod.OrNone().Tolerations, func(t v1alpha1.Toleration) bool {
			return (t.Effect == "" || t.Effect == taint.Effect) && (t.Key == "" || t.Key == taint.Key) && (t.Operator == corev1.TolerationOpExists || t.Value == taint.Value)
		})
	})
}

func names(nodes []*node) []string {
	var list []string
	for _, n := range nodes {
		list = append(list, n.name)
	}
	return list
}

// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"farpool.dev/farpool/api/v1alpha1"
)

// A Kubernetes node that is cordoned, or that an autoscaler has tainted, is about to be emptied. The keys of memory nodes there move to others, as if these
// were to go; then their pods are deleted and made again elsewhere, and come into the map like any that is added. Until then the disruption budget lets none
// be evicted.

// evacuate finds the memory nodes that are to leave where they are.
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
			"the Kubernetes nodes of memory nodes are about to be emptied (%s: %s), and by the tolerations of their memory pool their pods would be made again where they are, so that no keys leave them: uncordon, or drain in the knowledge that a Cache loses what they hold and that a Store's pods are to be deleted by hand",
			some(names(staying)), d.why(staying[0]))})
	}
	if takers > 0 {
		for _, n := range leaving {
			n.evacuated = true
		}
	} else if len(leaving) > 0 {
		how := "uncordon one, or ask for more memory nodes before"
		if awaited := d.awaited(d.epochs.current); len(awaited) > 0 {
			how = fmt.Sprintf("those that are awaited will (%s), and until then no pod is evicted", some(awaited))
		}
		d.degraded = append(d.degraded, finding{v1alpha1.ReasonNowhereToEvacuate, fmt.Sprintf(
			"the Kubernetes nodes of memory nodes are about to be emptied (%s: %s), and no other memory node is there to take their keys: %s", some(names(leaving)), d.why(leaving[0]), how)})
	}
}

func (d *decision) evacuationDisabled() bool {
	return d.Pool.Spec.Resize != nil && d.Pool.Spec.Resize.Evacuation == v1alpha1.EvacuationDisabled
}

// drains says whether the Kubernetes node of a memory node is about to be emptied.
func (d *decision) drains(n *node) bool {
	return n.pod != nil && len(d.Draining[n.pod.Spec.NodeName]) > 0
}

// why the Kubernetes node of a memory node is about to be emptied, for people.
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

// guard says what the disruption budget is to keep. A memory node counts for as long as its process is there: one that holds nothing yet, or any more,
// would else be a pod too many, and another could be evicted in its place.
func (d *decision) guard() {
	for _, n := range d.nodes {
		if n.wanted || runs(n.pod) || inMap(d.epochs.current, n.name) {
			d.pool.Guarded++
		}
	}
	d.pool.KeysLeaveFirst = d.keysLeaveFirst()
}

// keysLeaveFirst says whether no memory node is to be evicted, even of a Cache: its keys leave it before its Kubernetes node is drained, or stay for
// a person to decide about. A disruption budget does not tell pods apart: one that could be evicted as it is has to wait for those that are drained.
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

// evacuates says whether parts of a map lie where they are to leave.
func (d *decision) evacuates(spec *v1alpha1.ShardMapSpec) bool {
	for _, table := range spec.Directory.Tables {
		if n := d.nodeNamed(nodeOf(spec, table).Name); n != nil && n.evacuated {
			return true
		}
	}
	return false
}

// tolerates says whether the pod of a memory node would be made again on the Kubernetes node that it is to leave.
func (d *decision) tolerates(n *node) bool {
	return !slices.ContainsFunc(d.Draining[n.pod.Spec.NodeName], func(taint corev1.Taint) bool {
		return !slices.ContainsFunc(n.pool.Tolerations, func(t v1alpha1.Toleration) bool {
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

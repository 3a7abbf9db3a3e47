// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"farpool.dev/farpool/api/v1alpha1"
)

// A Kubernetes node that is cordoned is about to be drained. The keys of memory nodes there move to others, as if these were to go; then their pods
// are deleted and made again elsewhere, and come into the map like any that is added. Until then the disruption budget lets none be evicted.

// evacuate finds the memory nodes that are to leave where they are.
func (d *decision) evacuate() {
	if d.Pool.Spec.Resize != nil && d.Pool.Spec.Resize.Evacuation == v1alpha1.EvacuationDisabled {
		return
	}
	var cordoned []*node
	takers := 0
	for _, n := range d.nodes {
		if !n.wanted {
			continue
		}
		switch {
		case n.pod == nil || !d.Cordoned[n.pod.Spec.NodeName] || toleratesCordon(n.pool):
			if inMap(d.epochs.current, n.name) && !d.Unplaced[n.name] {
				takers++
			}
		case d.epochs.current != nil:
			cordoned = append(cordoned, n)
		}
	}
	d.pool.Evacuates = takers+len(cordoned) > 1
	if takers == 0 {
		if len(cordoned) > 0 {
			d.pool.Evacuates = false
			d.degraded = append(d.degraded, finding{v1alpha1.ReasonNowhereToEvacuate, fmt.Sprintf(
				"the Kubernetes nodes of memory nodes are cordoned (%s), and no other memory node is there to take their keys: uncordon one, or ask for more memory nodes before",
				some(names(cordoned)))})
		}
		return
	}
	for _, n := range cordoned {
		n.evacuated = true
	}
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

// toleratesCordon says whether pods would be made again on the Kubernetes node that they are to leave.
func toleratesCordon(memoryPool *v1alpha1.MemoryPool) bool {
	for _, t := range memoryPool.Tolerations {
		toleration := corev1.Toleration{Key: t.Key, Operator: t.Operator, Value: t.Value, Effect: t.Effect}
		if toleration.Key == "" && toleration.Operator == corev1.TolerationOpExists || toleration.Key == corev1.TaintNodeUnschedulable {
			return true
		}
	}
	return false
}

func names(nodes []*node) []string {
	var list []string
	for _, n := range nodes {
		list = append(list, n.name)
	}
	return list
}

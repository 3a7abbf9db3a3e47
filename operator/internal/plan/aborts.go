// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"farpool.dev/farpool/api/v1alpha1"
)

// A person may abort a ResizeOperation. The spec still asks for what the operation was to do, so the abort holds the pool where it is: no further step begins,
// memory nodes with parts of the hash space stay, and memory nodes without any leave, whatever the spec says of them. The abort ends when the spec asks for
// another number of memory nodes, or when the operation is deleted and therefore made again. A step that has been published is finished in any case.

// hold keeps the pool where it is, if the operation of its present aim was aborted. An operation that has nothing left to begin goes on to its end.
func (d *decision) hold() {
	m, spec := &d.moves, d.epochs.current
	if spec == nil || m.aborted == nil || m.open != nil && m.open != m.aborted || len(d.missing(spec)) == 0 && shared(spec.Directory, d.staying(spec)) && !d.unsplit(spec) {
		return
	}
	m.held = m.aborted
	has := map[string]bool{}
	for _, table := range spec.Directory.Tables {
		has[nodeOf(spec, table).Name] = true
	}
	for _, entry := range givers(spec) {
		has[entry.Name] = true
	}
	d.nodes = slices.DeleteFunc(d.nodes, func(n *node) bool {
		n.wanted, n.evacuated = has[n.name], false
		return !inMap(spec, n.name) && n.object == nil && n.pod == nil
	})
}

// stillHolds says whether an operation that is over keeps the pool from what its spec asks for.
func stillHolds(operation *v1alpha1.ResizeOperation) bool {
	return operation.Status.Stage == v1alpha1.StageAborted && meta.IsStatusConditionTrue(operation.Status.Conditions, v1alpha1.ConditionHolding)
}

// howToGoOn tells people how the pool goes on after an abort.
func (d *decision) howToGoOn() string {
	return fmt.Sprintf("ResizeOperation %s was aborted, and the pool stays as it is: ask for another number of memory nodes or tables, or plan the same resize again: kubectl -n %s delete resizeoperation %s",
		d.moves.held.Name, d.Pool.Namespace, d.moves.held.Name)
}

// holding is the condition that says whether an aborted operation keeps the pool where it is.
func (d *decision) holding(operation *v1alpha1.ResizeOperation) metav1.Condition {
	if operation == d.moves.held {
		return condition(v1alpha1.ConditionHolding, metav1.ConditionTrue, v1alpha1.ReasonResizeAborted, "%s", d.howToGoOn())
	}
	return condition(v1alpha1.ConditionHolding, metav1.ConditionFalse, v1alpha1.ReasonSuperseded, "another number of memory nodes was asked for since")
}

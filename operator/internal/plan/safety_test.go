// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	farpoolv1alpha1 "farpool.dev/farpool/api/gen/farpool/v1alpha1"
	"farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/agent"
)

// A move is finished when every giver has finished that very move: an earlier one says nothing about keys that leave now.
func TestAnEarlierMoveFinishesNoLaterOne(t *testing.T) {
	d := newDrill(t, 2, v1alpha1.DataPolicyStore)
	d.aim(3)
	d.wantNodes(3)
	for giver := range 2 {
		if finished := d.Agents[d.NodePods[name(giver)].UID].Facts.GetMemoryNode().GetMoveFinished(); finished != 1 {
			t.Fatalf("%s has finished move %d", name(giver), finished)
		}
	}
	d.aim(4)
	d.until("move 2 begins", func(*decision) bool { return d.current().Move == 2 })
	moving := d.current()
	if len(givers(moving)) != 3 {
		t.Fatalf("%d memory nodes give", len(givers(moving)))
	}
	// The node that gives for the first time is finished; the others have finished the first move alone.
	d.update(name(2), func(facts *farpoolv1alpha1.Facts) { facts.MemoryNode.MoveFinished = 2 })
	for range 3 {
		d.step(false)
	}
	if spec := d.current(); spec.Epoch != moving.Epoch || len(spec.Departures) != len(moving.Departures) {
		t.Fatalf("epoch %d with %d departures follows epoch %d, and keys of move 2 are still at two givers", spec.Epoch, len(spec.Departures), moving.Epoch)
	}
	d.untilSettled()
	d.noneLost()
}

// A node that has left the map stays until each node of the map follows one without it: a node that is late may hold another past.
func TestNothingIsDrainedWhileAnotherNodeIsLate(t *testing.T) {
	for _, late := range []string{"deaf", "silent"} {
		d := newDrill(t, 3, v1alpha1.DataPolicyStore)
		d.aim(2)
		d.until("all keys have left", func(*decision) bool {
			d.clients(always)
			return d.current().Move == 1 && len(d.current().Departures) == 0
		})
		d.deaf[name(0)] = late == "deaf"
		d.until("it leaves the map", func(*decision) bool { return len(d.current().Nodes) == 2 })
		if late == "silent" {
			uid := d.NodePods[name(0)].UID
			d.Agents[uid] = agent.Observation{State: agent.Unreachable, Error: "silent", Facts: d.Agents[uid].Facts}
		}
		for range 4 {
			d.step(false)
			if saidDrained(&node{object: d.Nodes[name(2)]}) || d.NodePods[name(2)] == nil {
				t.Fatalf("%s is removed, and %s, which is %s, may follow a map with it", name(2), name(0), late)
			}
		}
		clear(d.deaf)
		d.hear(name(0))
		d.untilSettled()
		d.noneLost()
	}
}

// A person gives up what one life of a node held. What later lives came to hold is not meant.
func TestALossIsGivenUpForOneLifeOnly(t *testing.T) {
	d := newDrill(t, 3, v1alpha1.DataPolicyStore)
	before := d.current().Nodes[2].Incarnation
	d.begin(name(2), true)
	d.until("the map has its new life", func(*decision) bool { return d.current().Nodes[2].Incarnation != before })
	d.Nodes[name(2)].Annotations = map[string]string{v1alpha1.AnnotationGiveUp: before}
	d.unplaced[name(2)] = true
	d.vanish(name(2))
	d.aim(2)
	for range 8 {
		d.turn()
	}
	if spec := d.current(); spec.Move != 0 || len(spec.Nodes) != 3 {
		t.Fatalf("move %d, %d memory nodes in the map: what a later life held is given up", spec.Move, len(spec.Nodes))
	}
	d.Nodes[name(2)].Annotations[v1alpha1.AnnotationGiveUp] = d.current().Nodes[2].Incarnation
	d.untilSettled()
}

// A node whose object or pod is being deleted does not come into the map: what clients put there would go with it.
func TestANodeThatIsBeingDeletedDoesNotComeIntoTheMap(t *testing.T) {
	for _, what := range []string{"pod", "object"} {
		d := newDrill(t, 2, v1alpha1.DataPolicyStore)
		epoch := d.current().Epoch
		d.aim(3)
		d.until("its process answers", func(*decision) bool {
			pod := d.NodePods[name(2)]
			return pod != nil && pod.Status.Phase == corev1.PodPending
		})
		d.kubelets()
		deleted := &metav1.Time{Time: d.now}
		if what == "pod" {
			d.NodePods[name(2)].DeletionTimestamp = deleted
		} else {
			d.Nodes[name(2)].DeletionTimestamp = deleted
		}
		for range 4 {
			d.step(false)
		}
		if spec := d.current(); spec.Epoch != epoch || inMap(spec, name(2)) {
			t.Fatalf("epoch %d has %s, whose %s is being deleted", spec.Epoch, name(2), what)
		}
		d.vanish(name(2))
		if what == "object" {
			delete(d.Nodes, name(2))
		}
		d.untilSettled()
		d.noneLost()
	}
}

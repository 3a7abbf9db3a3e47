// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/agent"
)

// A pool's map is in the API server, in every memory node that follows it, and in a file beside the memory of each. So a restored backup of the API server loses
// no map. If all copies are gone and the memory is not, nobody knows where keys lie. An older map would miss keys, and would later bring removed keys back to
// life. The operator then publishes nothing until a copy turns up, or a person gives up what the pool held. After that decision memory nodes begin empty, and the
// ones that remember the lost map do so last, so that any operator sees from what is left how to go on.

// knowsTheMap says whether the newest map in reach is the newest that there was. If it is not, knowsTheMap carries out what a person has decided.
func (d *decision) knowsTheMap() bool {
	var remember []*node
	unknown := ""
	for _, n := range d.nodes {
		if why := d.remembersMore(n); why != "" {
			remember = append(remember, n)
			unknown = orElse(unknown, why)
		}
	}
	if unknown == "" {
		return d.hasBegunEmpty()
	}
	newest := "there is no ShardMap"
	if d.epochs.current != nil {
		newest = fmt.Sprintf("ShardMap %s is the newest map in reach", v1alpha1.ShardMapName(d.Pool.Name, d.epochs.current.Epoch))
	}
	lost := &finding{v1alpha1.ReasonMapMissing, fmt.Sprintf("%s, and %s: restore the newest ShardMap from a backup, or make every memory node reachable; to give up all that the pool holds, and go on with an empty pool: kubectl -n %s annotate kvpool %s --overwrite %s=%d",
		unknown, newest, d.Pool.Namespace, d.Pool.Name, v1alpha1.AnnotationBeginEmpty, d.claimed())}
	if d.mayBeGivenUp() == d.claimed() {
		lost.message = fmt.Sprintf("what the pool held up to epoch %d is given up: %s", d.claimed(), d.beginEmpty(remember))
	}
	d.degraded = append(d.degraded, *lost)
	d.moves.awaits = lost
	return false
}

// remembersMore says how a memory node shows that there was a later map than the newest in reach; empty: it does not.
func (d *decision) remembersMore(n *node) string {
	var epoch, move uint64
	if d.epochs.current != nil {
		epoch, move = uint64(d.epochs.current.Epoch), uint64(d.epochs.current.Move)
	}
	facts := n.facts.GetMemoryNode()
	recorded := facts.GetRecordedEpoch()
	if epoch > 0 && n.facts != nil && n.agent.RefusedEpoch >= epoch && n.facts.GetEpoch() <= n.agent.RefusedEpoch {
		recorded = max(recorded, n.agent.RefusedEpoch+1)
	}
	switch {
	case facts.GetMoveFinished() > max(move, d.furtherMoved().GetMove()):
		return fmt.Sprintf("keys have left memory node %s in move %d", n.name, facts.GetMoveFinished())
	case epoch > 0 && recorded > epoch:
		return fmt.Sprintf("the memory of memory node %s has followed a later epoch than %d", n.name, epoch)
	case d.mapKey != nil && recorded > uint64(d.floor()):
		return fmt.Sprintf("the memory of memory node %s has followed epoch %d and holds no map of it, which only damage or a lie explains (delete its pod, and it begins empty)", n.name, recorded)
	}
	return ""
}

// mayBeGivenUp is the epoch up to which a person gives up what the pool held; 0: nobody does, or the pool has gone on since.
func (d *decision) mayBeGivenUp() int64 {
	epoch, err := strconv.ParseInt(d.Pool.Annotations[v1alpha1.AnnotationBeginEmpty], 10, 64)
	if err != nil || epoch < 1 || epoch > v1alpha1.MostEpochs || d.epochs.current != nil && epoch <= d.epochs.current.Epoch {
		return 0
	}
	return epoch
}

// beginEmpty has pods deleted and made again, the ones that remember the lost map last, and says how far that is.
func (d *decision) beginEmpty(remember []*node) string {
	last := map[*node]bool{}
	for _, n := range remember {
		last[n] = true
	}
	var awaited []string
	for _, n := range d.nodes {
		switch {
		case last[n] || n.pod == nil || n.pod.Status.Phase == corev1.PodPending || virgin(n):
		case n.agent.State == agent.Connected && n.pod.DeletionTimestamp.IsZero():
			d.Delete = append(d.Delete, n.pod)
			fallthrough
		default:
			awaited = append(awaited, n.name)
		}
	}
	if len(awaited) > 0 {
		return "waiting for memory nodes to begin empty: " + some(awaited)
	}
	for _, n := range remember {
		if n.pod.DeletionTimestamp.IsZero() {
			d.Delete = append(d.Delete, n.pod)
		}
	}
	return "the last memory nodes that are to begin empty: " + some(names(remember))
}

// hasBegunEmpty says whether every memory node runs and is empty, after a person has given up what they held.
func (d *decision) hasBegunEmpty() bool {
	given := d.mayBeGivenUp()
	if given == 0 {
		return true
	}
	var awaited, hold []string
	for _, n := range d.nodes {
		switch {
		case virgin(n):
		case n.facts != nil:
			hold = append(hold, n.name)
		case n.pod != nil || n.wanted:
			awaited = append(awaited, n.name)
		}
	}
	switch {
	case len(hold) > 0:
		d.degraded = append(d.degraded, finding{v1alpha1.ReasonMapMissing, fmt.Sprintf("annotation %s names epoch %d, which nothing has followed, and memory nodes hold what it would give up (%s): remove the annotation",
			v1alpha1.AnnotationBeginEmpty, given, some(hold))})
		return true
	case len(awaited) > 0:
		d.degraded = append(d.degraded, finding{v1alpha1.ReasonMapMissing, fmt.Sprintf("what the pool held up to epoch %d is given up; waiting for memory nodes to begin empty: %s", given, some(awaited))})
		return false
	}
	d.epochs.givenUp = given
	return true
}

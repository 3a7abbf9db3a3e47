// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/agent"
	"farpool.dev/farpool/operator/internal/render"
)

// growthPause is how long after a resize a memory pool may grow again: by then memory nodes have reported how full they are.
const growthPause = time.Minute

// scale is the number of replicas of an entry of the spec: what the KVPool says, or what somebody has asked for since in the entry's MemoryNodePool or
// ComputeShardPool.
type scale struct {
	entry              string
	declared, replicas int32
	version            string
}

// takeOverSpec makes the spec that the planner works with: with the memory pools that are to go, and with the number of replicas that holds.
func (d *decision) takeOverSpec() {
	snapshot := *d.Snapshot
	snapshot.Pool = d.Pool.DeepCopy()
	d.Snapshot = &snapshot
	d.limits = map[string]limit{}
	d.retire()
	d.takeOverReplicas()
	d.keepSome()
	d.keepToWhatAMapHolds()
}

// takeOverReplicas puts the number of replicas into the spec. What a KVPool declares wins whenever it changes. An entry that has lost its object keeps its number.
func (d *decision) takeOverReplicas() {
	for p := range d.Pool.Spec.Memory.Pools {
		entry := &d.Pool.Spec.Memory.Pools[p]
		s := scale{entry: entry.Name, declared: entry.Replicas, replicas: entry.Replicas}
		object := d.MemoryPools[v1alpha1.ScaleName(d.Pool.Name, entry.Name)]
		if object != nil {
			s.version = object.ResourceVersion
		}
		switch {
		case d.retired[entry.Name]:
		case object == nil:
			s.replicas = cmp.Or(d.inMapOf(entry), entry.Replicas)
		case object.Spec.Declared == s.declared:
			s.replicas = object.Spec.Replicas
		}
		entry.Replicas = s.replicas
		d.memoryScales = append(d.memoryScales, s)
	}
	if d.Pool.Spec.Compute == nil {
		return
	}
	for p := range d.Pool.Spec.Compute.Pools {
		entry := &d.Pool.Spec.Compute.Pools[p]
		s := scale{entry: entry.Name, declared: entry.Replicas, replicas: entry.Replicas}
		name := v1alpha1.ScaleName(d.Pool.Name, entry.Name)
		if object := d.ComputePools[name]; object != nil {
			s.version = object.ResourceVersion
			if object.Spec.Declared == s.declared {
				s.replicas = object.Spec.Replicas
			}
		} else if deployment := d.Deployments[name]; deployment != nil && deployment.Spec.Replicas != nil {
			s.replicas = *deployment.Spec.Replicas
		}
		entry.Replicas = s.replicas
		d.computeScales = append(d.computeScales, s)
	}
}

// keepToWhatAMapHolds reduces what memory pools together ask for to the number of memory nodes that a map can have. Each of their MemoryNodePools may ask for that
// many, and the API server does not add them up. Memory nodes in the map are left alone; the last pools get less before the first do.
func (d *decision) keepToWhatAMapHolds() {
	asked := int32(0)
	for _, entry := range d.Pool.Spec.Memory.Pools {
		asked += entry.Replicas
	}
	over := max(0, asked-nodesInMap)
	for p := range slices.Backward(d.Pool.Spec.Memory.Pools) {
		entry := &d.Pool.Spec.Memory.Pools[p]
		least := min(entry.Replicas, max(1, d.inMapOf(entry)))
		given := entry.Replicas - min(over, entry.Replicas-least)
		if given == entry.Replicas {
			continue
		}
		over -= entry.Replicas - given
		d.limit(entry.Name, v1alpha1.ReasonTooManyMemoryNodes, fmt.Sprintf("memory pool %s gets %d of the %d memory nodes that it asks for: all memory pools together ask for %d, and a pool has at most %d. Scale a MemoryNodePool down (kubectl -n %s get memorynodepools)",
			entry.Name, given, entry.Replicas, asked, nodesInMap, d.Pool.Namespace))
		entry.Replicas = given
	}
}

// inMapOf is how many replicas of an entry there have to be for those in the pool's map: one more than their highest ordinal. 0: none is in the map.
func (d *decision) inMapOf(entry *v1alpha1.MemoryPool) int32 {
	replicas := int32(0)
	if d.epochs.current != nil {
		for _, other := range d.epochs.current.Nodes {
			if n := d.beyond(other.Name); n != nil && n.pool == entry {
				replicas = max(replicas, n.ordinal+1)
			}
		}
	}
	return replicas
}

// scaleObjects applies the objects in which others may ask for another number.
func (d *decision) scaleObjects() {
	for i, s := range d.memoryScales {
		// A MemoryNodePool whose memory pool the spec has lost is kept, and none is made for it.
		if entry := d.pool.Spec.Memory.Pools[i]; s.version != "" || !d.retired[s.entry] {
			entry.Replicas = s.declared
			d.Apply = append(d.Apply, render.MemoryNodePool(d.pool, entry, s.replicas, s.version))
		}
	}
	for _, s := range d.computeScales {
		d.Apply = append(d.Apply, render.ComputeShardPool(d.pool, s.entry, s.declared, s.replicas, s.version))
	}
}

// scaleRemovals deletes the objects of entries that the spec does not have any more. The object of a memory pool stays while a memory node of it is there.
func (d *decision) scaleRemovals() {
	members, serves := d.members(), map[string]bool{}
	for _, s := range d.memoryScales {
		serves[v1alpha1.ScaleName(d.Pool.Name, s.entry)] = !d.retired[s.entry]
	}
	for _, name := range slices.Sorted(maps.Keys(d.MemoryPools)) {
		object := d.MemoryPools[name]
		if !serves[name] && len(members[object.Spec.MemoryPool]) == 0 && object.DeletionTimestamp.IsZero() {
			d.Delete = append(d.Delete, object)
		}
	}
	wanted := map[string]bool{}
	for _, s := range d.computeScales {
		wanted[v1alpha1.ScaleName(d.Pool.Name, s.entry)] = true
	}
	for name, object := range d.ComputePools {
		// The object stays while a process is written down in it: a dead process has to be repaired first.
		if !wanted[name] && object.DeletionTimestamp.IsZero() && len(object.Status.Processes) == 0 {
			d.Delete = append(d.Delete, object)
		}
	}
}

func (d *decision) scaleStatuses(nodes []nodeCondition) {
	d.Status.MemoryPools = map[string]v1alpha1.ScaleStatus{}
	d.Status.ComputePools = map[string]v1alpha1.ComputeShardPoolStatus{}
	for _, s := range d.memoryScales {
		object := d.MemoryPools[v1alpha1.ScaleName(d.Pool.Name, s.entry)]
		if object == nil || slices.Contains(d.Delete, client.Object(object)) {
			continue
		}
		status := v1alpha1.ScaleStatus{ObservedGeneration: object.Generation, Selector: labels.FormatLabels(d.pool.MemoryPoolSelector(s.entry)), Conditions: object.Status.Conditions}
		for _, n := range nodes {
			if n.pool.Name != s.entry || n.pod == nil {
				continue
			}
			status.Replicas++
			if n.ready.Status == metav1.ConditionTrue {
				status.ReadyReplicas++
			}
		}
		c := d.growth[s.entry]
		was := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionScalingLimited)
		if why := d.limits[s.entry]; why.reason != "" {
			limited := condition(v1alpha1.ConditionScalingLimited, metav1.ConditionTrue, why.reason, "%s", why.message)
			c = &limited
		} else if c == nil && was != nil && (was.Reason == v1alpha1.ReasonTooManyMemoryNodes || was.Reason == v1alpha1.ReasonLastMemoryPool) {
			limited := condition(v1alpha1.ConditionScalingLimited, metav1.ConditionFalse, v1alpha1.ReasonAccepted, "the memory pool gets as many memory nodes as are asked for")
			c = &limited
		}
		if c != nil {
			status.Conditions = d.setConditions(status.Conditions, object.Generation, *c)
		}
		if s.replicas == 0 {
			status.Conditions = d.setConditions(status.Conditions, object.Generation, d.drainedCondition(&s))
		} else {
			status.Conditions = slices.DeleteFunc(slices.Clone(status.Conditions), func(c metav1.Condition) bool { return c.Type == v1alpha1.ConditionDrained })
		}
		d.Status.MemoryPools[object.Name] = status
	}
	for _, s := range d.computeScales {
		object := d.ComputePools[v1alpha1.ScaleName(d.Pool.Name, s.entry)]
		if object == nil {
			continue
		}
		status := v1alpha1.ComputeShardPoolStatus{Processes: d.written.in[object.Name],
			ScaleStatus: v1alpha1.ScaleStatus{ObservedGeneration: object.Generation, Selector: labels.FormatLabels(d.pool.ComputePoolSelector(s.entry))}}
		status.Conditions = d.setConditions(object.Status.Conditions, object.Generation, d.shardsReady(s))
		if deployment := d.Deployments[d.pool.ComputeName(s.entry)]; deployment != nil {
			status.Replicas, status.ReadyReplicas = deployment.Status.Replicas, deployment.Status.ReadyReplicas
		}
		d.Status.ComputePools[object.Name] = status
	}
	for name, object := range d.ComputePools {
		if _, wanted := d.Status.ComputePools[name]; !wanted && len(object.Status.Processes) > 0 {
			status := *object.Status.DeepCopy()
			status.Processes, status.Replicas, status.ReadyReplicas = d.written.in[name], 0, 0
			d.Status.ComputePools[name] = status
		}
	}
}

// shardsReady says whether the compute shards of an entry serve, and why the first one that does not serve does not.
func (d *decision) shardsReady(s scale) metav1.Condition {
	const ready = v1alpha1.ConditionReady
	serving := int32(0)
	if deployment := d.Deployments[d.pool.ComputeName(s.entry)]; deployment != nil {
		serving = deployment.Status.ReadyReplicas
	}
	if serving >= s.replicas {
		return condition(ready, metav1.ConditionTrue, v1alpha1.ReasonServing, "%d of %d compute shards are ready", serving, s.replicas)
	}
	return condition(ready, metav1.ConditionFalse, v1alpha1.ReasonNotServing, "%d of %d compute shards are ready%s", serving, s.replicas, after(": ", d.shardTrouble(s.entry)))
}

// shardTrouble says what keeps a compute shard of an entry from serving, in its own words if it has any. Without a name, it looks at every entry.
func (d *decision) shardTrouble(entry string) string {
	trouble := ""
	for _, pod := range d.ComputePods {
		if entry != "" && pod.Labels[v1alpha1.LabelComputePool] != entry {
			continue
		}
		said := ""
		if observed := d.Agents[pod.UID]; observed.State == agent.Connected && !observed.Facts.GetReady() {
			said = observed.Facts.GetMessage()
		}
		switch message := unschedulable(pod); {
		case message != "":
			trouble = fmt.Sprintf("no Kubernetes node can take pod %s: %s", pod.Name, message)
		case said != "":
			trouble = fmt.Sprintf("pod %s says: %s", pod.Name, said)
		case crashed(pod) != "":
			trouble = fmt.Sprintf("pod %s: %s", pod.Name, crashed(pod))
		case waitingFor(pod) != "" && pod.Status.Phase == corev1.PodPending:
			trouble = fmt.Sprintf("pod %s has not started%s", pod.Name, waitingFor(pod))
		}
	}
	return trouble
}

// sessionBudget compares the sessions that compute shards open at each memory node with the number that it has. Compute pools scale without the KVPool, and memory
// nodes keep the number of sessions that they were made with.
func (d *decision) sessionBudget() []finding {
	surge := int32(1)
	if attachment := d.Pool.Spec.Network.Attachment; attachment != nil && attachment.HostNetwork != nil {
		surge = 0
	}
	needed := int32(0)
	for _, entry := range d.pool.ComputePools() {
		if entry.Replicas > 0 {
			needed += max(entry.Workers, 1) * (entry.Replicas + surge)
		}
	}
	sidecars := d.sidecarBudget()
	for _, n := range d.nodes {
		switch has := d.sessionsOf(n); {
		case has < needed:
			return []finding{{v1alpha1.ReasonTooFewSessions, fmt.Sprintf(
				"compute shards need %d sessions at each memory node (workers * (replicas + %d), of all compute pools), and memory node %s has %d: shards beyond that do not become ready. Give compute pools fewer replicas or workers, or raise spec.limits.maxSessions, which applies to memory nodes that are made from then on (condition UpToDate says how)",
				needed, surge, n.name, has)}}
		case has < needed+sidecars:
			return []finding{{v1alpha1.ReasonTooFewSessions, fmt.Sprintf(
				"compute shards need %d sessions at each memory node and sidecars may need %d, and memory node %s has %d: what comes last does not become ready. Lower maxSidecars in spec.sidecars.namespaces, give compute pools fewer replicas or workers, or raise spec.limits.maxSessions, which applies to memory nodes that are made from then on (condition UpToDate says how)",
				needed, sidecars, n.name, has)}}
		}
	}
	return nil
}

// sidecarBudget is how many sessions sidecars may need at each memory node, as many as the namespaces may have.
func (d *decision) sidecarBudget() int32 {
	budget := int32(0)
	if d.Pool.Spec.Sidecars != nil {
		for _, namespace := range d.Pool.Spec.Sidecars.Namespaces {
			budget += namespace.MaxSidecars
		}
	}
	return budget
}

// sidecarFindings are what the controller of sidecars has found, where a person can do something about it.
func (d *decision) sidecarFindings() []finding {
	var found []finding
	if d.Pool.Status.Sidecars == nil || d.Pool.Spec.Sidecars == nil {
		return nil
	}
	for _, entry := range d.Pool.Status.Sidecars.Namespaces {
		switch entry.Reason {
		case v1alpha1.ReasonSidecarSecretTaken, v1alpha1.ReasonNamespaceNotWatched, v1alpha1.ReasonSidecarBudgetNearlySpent, v1alpha1.ReasonApplyFailed, v1alpha1.ReasonUnsupported:
			if d.Pool.Spec.SidecarNamespace(entry.Name) != nil {
				found = append(found, finding{entry.Reason, "sidecars: " + entry.Message})
			}
		}
	}
	return found
}

// sessionsOf is how many sessions a memory node has: the number that its pod was made with or, if the pod reads a file, the spec's number, which never changes.
func (d *decision) sessionsOf(n *node) int32 {
	const flag = "--max-sessions="
	arguments := []string{}
	if n.pod != nil && len(n.pod.Spec.Containers) > 0 {
		arguments = n.pod.Spec.Containers[0].Args
	}
	if slices.ContainsFunc(arguments, func(argument string) bool { return strings.HasPrefix(argument, "--memory=") }) {
		for _, argument := range arguments {
			if number, found := strings.CutPrefix(argument, flag); found {
				if sessions, err := strconv.ParseInt(number, 10, 32); err == nil {
					return int32(sessions)
				}
			}
		}
		return v1alpha1.DefaultMaxSessions
	}
	if limits := d.Pool.Spec.Limits; limits != nil && limits.MaxSessions != nil {
		return *limits.MaxSessions
	}
	return v1alpha1.DefaultMaxSessions
}

// decideGrowth asks for one more memory node when a memory pool is as full as its policy allows. Keys move between one step and the next.
func (d *decision) decideGrowth(act bool) {
	d.growth = map[string]*metav1.Condition{}
	if d.epochs.current == nil {
		return
	}
	refusing := d.fullestHeap()
	for i := range d.memoryScales {
		s, entry := &d.memoryScales[i], &d.Pool.Spec.Memory.Pools[i]
		if entry.Capacity == nil {
			continue
		}
		fullest, most, of, unknown := d.fullest(func(n *node) bool {
			return n.pool == entry && inMap(d.epochs.current, n.name) && !d.Unplaced[n.name]
		})
		limit := float64(entry.Capacity.FillPercent) / 100
		if fullest == nil || most < limit && len(unknown) > 0 {
			continue // its condition stays as it is
		}
		why := fmt.Sprintf("the %s of memory node %s is %d %% full or more", of, fullest.name, entry.Capacity.FillPercent)
		if full := refusing != nil && refusing.pool == entry; full {
			why = fmt.Sprintf("writes are refused for want of memory, and memory node %s has the fullest heap", refusing.name)
		} else if most < limit {
			d.limited(entry, metav1.ConditionFalse, v1alpha1.ReasonMemoryAvailable, fmt.Sprintf("no table or heap is %d %% full", entry.Capacity.FillPercent))
			continue
		}
		switch {
		case d.moves.held != nil:
			d.limited(entry, metav1.ConditionTrue, v1alpha1.ReasonResizeAborted, fmt.Sprintf("%s, and %s", why, d.howToGoOn()))
		case len(d.missing(d.epochs.current)) > 0 && len(d.awaited(d.epochs.current)) == 0:
			d.limited(entry, metav1.ConditionTrue, v1alpha1.ReasonNodeUnschedulable, fmt.Sprintf("%s, and no Kubernetes node can take the pods of memory nodes that were added (%s): see their conditions", why, some(d.missing(d.epochs.current))))
		case d.awaitsApproval():
			d.limited(entry, metav1.ConditionTrue, v1alpha1.ReasonApprovalRequired, why+", and growth waits for a person's approval: see the pool's ResizeOperations")
		case entry.Replicas >= entry.Capacity.MaxReplicas || d.pool.MemoryNodes() >= nodesInMap:
			d.limited(entry, metav1.ConditionTrue, v1alpha1.ReasonCeilingReached, fmt.Sprintf("%s, and there are as many memory nodes as capacity.maxReplicas of memory pool %s allows: raise it, or remove keys", why, entry.Name))
		case act && d.settled():
			s.replicas++
			if d.asksApproval() {
				d.limited(entry, metav1.ConditionTrue, v1alpha1.ReasonApprovalRequired, why+", and a person's approval is about to be asked for")
				d.event(d.Pool, corev1.EventTypeNormal, v1alpha1.ReasonResizePlanned, "Grow", fmt.Sprintf("%s: memory pool %s will grow from %d memory nodes to %d once a person approves", why, entry.Name, entry.Replicas, s.replicas))
			} else {
				d.limited(entry, metav1.ConditionFalse, v1alpha1.ReasonGrowing, why)
				d.event(d.Pool, corev1.EventTypeNormal, v1alpha1.ReasonGrowing, "Grow", fmt.Sprintf("%s: memory pool %s grows from %d memory nodes to %d", why, entry.Name, entry.Replicas, s.replicas))
			}
		default:
			d.limited(entry, metav1.ConditionFalse, v1alpha1.ReasonGrowing, why)
		}
	}
}

// asksApproval says whether resizes that are planned from now on wait for a person.
func (d *decision) asksApproval() bool {
	return d.Pool.Spec.Resize != nil && d.Pool.Spec.Resize.Approval == v1alpha1.ApprovalRequired
}

// awaitsApproval says whether the resize under way waits for a person, or the one that is about to be made will.
func (d *decision) awaitsApproval() bool {
	if open := d.moves.open; open != nil {
		return open.Spec.Approval == v1alpha1.ApprovalRequired
	}
	return d.asksApproval() && d.unsettled(d.epochs.current)
}

// settled says whether the pool has what the spec asks for, and has had it for long enough for its memory nodes to know how full they are.
func (d *decision) settled() bool {
	current := d.epochs.current
	if d.Status.Unsettled || d.epochs.next != nil || d.moves.open != nil || len(current.Departures) > 0 || d.unsettled(current) || len(d.going()) > 0 || len(d.late()) > 0 {
		return false
	}
	for _, operation := range d.Resizes {
		if completed := operation.Status.CompletionTime; completed != nil && d.Now.Before(completed.Add(growthPause)) {
			d.due(completed.Add(growthPause))
			return false
		}
	}
	return true
}

// fullestHeap is the memory node with the fullest heap, if compute shards are refused memory; nil: they are not.
func (d *decision) fullestHeap() *node {
	var fullest *node
	most := -1.0
	if len(d.refusing()) == 0 {
		return nil
	}
	for _, n := range d.nodes {
		if facts := n.facts.GetMemoryNode(); facts.GetHeapBytes() > 0 && inMap(d.epochs.current, n.name) {
			if share := agent.HeapFill(facts); share > most {
				fullest, most = n, share
			}
		}
	}
	return fullest
}

// limited says whether a memory pool has grown as far as it may, and announces it when that becomes true. The resize announces that it waits for approval.
func (d *decision) limited(entry *v1alpha1.MemoryPool, status metav1.ConditionStatus, reason, message string) {
	c := condition(v1alpha1.ConditionScalingLimited, status, reason, "%s", message)
	d.growth[entry.Name] = &c
	object := d.MemoryPools[v1alpha1.ScaleName(d.Pool.Name, entry.Name)]
	if object == nil || status != metav1.ConditionTrue || reason == v1alpha1.ReasonApprovalRequired || meta.IsStatusConditionTrue(object.Status.Conditions, c.Type) {
		return
	}
	d.Status.Events = append(d.Status.Events, Event{Regarding: d.Pool, Type: corev1.EventTypeWarning, Reason: reason, Action: "Grow", Note: c.Message, By: object.UID})
}

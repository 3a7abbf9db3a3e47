// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"regexp"
	"slices"
	"sort"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	farpoolv1alpha1 "farpool.dev/farpool/api/gen/farpool/v1alpha1"
	"farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/agent"
	"farpool.dev/farpool/operator/internal/observe"
	"farpool.dev/farpool/operator/internal/render"
	"farpool.dev/farpool/operator/internal/shardmap"
)

// networkLook is how often the operator looks up why a pod gets no network.
const networkLook = 15 * time.Second

// status decides the statuses: what is true once the plan has been carried out.
func (d *decision) status() {
	d.Status.Nodes = map[string]v1alpha1.MemoryNodeStatus{}
	d.Status.Maps = map[string]v1alpha1.ShardMapStatus{}
	var nodes []nodeCondition
	for _, n := range d.nodes {
		ready := d.nodeReady(n)
		nodes = append(nodes, nodeCondition{n, ready})
		if d.Pool.Spec.Network.Attachment.NetworkName() != "" && observe.AwaitsNetwork(n.pod) {
			d.due(d.Now.Add(networkLook)) // no watch reports an event
		}
		if n.object != nil && !slices.Contains(d.Delete, client.Object(n.object)) {
			d.Status.Nodes[n.name] = d.nodeStatus(n, ready)
		}
	}
	d.mapStatuses()
	d.writeDown()
	d.scaleStatuses(nodes)
	d.poolStatus(nodes)
}

// nodeCondition is a node and its condition Ready.
type nodeCondition struct {
	*node
	ready metav1.Condition
}

func condition(kind string, status metav1.ConditionStatus, reason, format string, arguments ...any) metav1.Condition {
	return metav1.Condition{Type: kind, Status: status, Reason: reason, Message: clip(fmt.Sprintf(format, arguments...))}
}

// clip shortens a message to what conditions can hold.
func clip(message string) string {
	const limit = 1024
	if len(message) <= limit {
		return message
	}
	return strings.ToValidUTF8(message[:limit-3], "") + "..."
}

// setConditions updates conditions. The time of a condition changes only with its status.
func (d *decision) setConditions(conditions []metav1.Condition, generation int64, now ...metav1.Condition) []metav1.Condition {
	return moved(conditions, generation, d.Now, now...)
}

func moved(conditions []metav1.Condition, generation int64, at time.Time, now ...metav1.Condition) []metav1.Condition {
	conditions = append([]metav1.Condition(nil), conditions...)
	for _, c := range now {
		c.ObservedGeneration = generation
		c.LastTransitionTime = metav1.NewTime(at.Truncate(time.Second))
		meta.SetStatusCondition(&conditions, c)
	}
	return conditions
}

// entryOf is the memory node's entry in the map that the pool will have, or nil.
func (d *decision) entryOf(name string) *v1alpha1.ShardMapNode {
	if effective := d.epochs.effective(); effective != nil {
		for i := range effective.Nodes {
			if effective.Nodes[i].Name == name {
				return &effective.Nodes[i]
			}
		}
	}
	return nil
}

func (d *decision) nodeReady(n *node) metav1.Condition {
	const ready = v1alpha1.ConditionReady
	is := func(status metav1.ConditionStatus, reason, format string, arguments ...any) metav1.Condition {
		return condition(ready, status, reason, format, arguments...)
	}
	if d.drained(n) {
		return is(metav1.ConditionFalse, v1alpha1.ReasonDrained, "nothing lies on it, and no map has it: it is being removed")
	}
	if n.pod == nil {
		return is(metav1.ConditionFalse, v1alpha1.ReasonPodPending, "its pod is being made")
	}
	if !n.pod.DeletionTimestamp.IsZero() {
		return is(metav1.ConditionFalse, v1alpha1.ReasonPodPending, "its pod is being deleted; another takes its place, without what its memory held")
	}
	switch n.pod.Status.Phase {
	case corev1.PodFailed, corev1.PodSucceeded:
		return is(metav1.ConditionFalse, v1alpha1.ReasonPodFailed, "its pod ended (%s); another takes its place, without what its memory held", reasonOfEnd(n.pod))
	case corev1.PodPending, "":
		if message := unschedulable(n.pod); message != "" {
			if lacking := d.unofferedRDMA(message); lacking != "" {
				return is(metav1.ConditionFalse, v1alpha1.ReasonRDMAMissing, "%s", lacking)
			}
			return is(metav1.ConditionFalse, v1alpha1.ReasonNodeUnschedulable, "no Kubernetes node can take its pod: %s", message)
		}
		if message := d.Unattached[n.name]; message != "" {
			return is(metav1.ConditionFalse, v1alpha1.ReasonRDMAMissing, "%s", d.unattachedRDMA(message))
		}
		return is(metav1.ConditionFalse, v1alpha1.ReasonPodPending, "its pod has not started%s", waitingFor(n.pod))
	}
	entry := d.entryOf(n.name)
	switch n.agent.State {
	case agent.Connected:
		effective := d.epochs.effective()
		switch {
		case n.mismatch != "":
			return is(metav1.ConditionFalse, v1alpha1.ReasonGeometryMismatch, "%s", n.mismatch)
		case effective == nil:
			return is(metav1.ConditionFalse, v1alpha1.ReasonNotPublished, "it waits for the pool's first epoch")
		case entry == nil && n.wanted:
			return is(metav1.ConditionFalse, v1alpha1.ReasonNotPublished, "it waits for the epoch in which it joins the pool")
		case entry == nil:
			return is(metav1.ConditionFalse, v1alpha1.ReasonNotPublished, "no map has it any more; it is removed when every memory node of the pool's map confirms that")
		case n.agent.Facts.GetEpoch() < uint64(effective.Epoch):
			return is(metav1.ConditionFalse, v1alpha1.ReasonPublishing, "waiting for it to follow map epoch %d", effective.Epoch)
		case entry.State == v1alpha1.NodeStopped:
			return is(metav1.ConditionFalse, v1alpha1.ReasonStopped, "%s", d.howToAccept(n.name, entry.Incarnation))
		case !n.agent.Facts.GetReady():
			return is(metav1.ConditionFalse, v1alpha1.ReasonNotServing, "the node says: %s", orElse(n.agent.Facts.GetMessage(), "not ready"))
		}
		return is(metav1.ConditionTrue, v1alpha1.ReasonServing, "it serves epoch %d", effective.Epoch)
	case agent.Starting:
		return is(metav1.ConditionFalse, v1alpha1.ReasonStarting, "its process %s", n.agent.Error)
	case agent.Refused:
		return is(metav1.ConditionFalse, v1alpha1.ReasonAgentRefused, "%s", n.agent.Error)
	}
	if message := crashed(n.pod); message != "" {
		// These are a memory node's words; dataplane/protocols/protocols_test.cc checks that it uses them.
		if strings.Contains(message, "this wire cannot serve the protocol") {
			return is(metav1.ConditionFalse, v1alpha1.ReasonWireUnsuitable, "its process ended: %s. Both are fixed when a pool is created: create it anew with another spec.network.transport or spec.index.protocol", message)
		}
		if lacking := d.unusableRDMA(n, message); lacking != "" {
			return is(metav1.ConditionFalse, v1alpha1.ReasonRDMAMissing, "%s", lacking)
		}
		// These are a memory node's words; dataplane/node/restart_test.cc checks that it uses them.
		if strings.Contains(message, "its locks have to lie in the NIC's memory") {
			return is(metav1.ConditionFalse, v1alpha1.ReasonDeviceMemoryMissing, "its process ended (%s). Choose Kubernetes nodes whose NICs have memory of their own to lend (ConnectX-5 and later; farpool-doctor shows it), let fewer memory nodes share a NIC, %s, or create the pool with spec.locks.placement DeviceMemoryPreferred", message, d.protocol().SmallerLocks())
		}
		return is(metav1.ConditionFalse, v1alpha1.ReasonNotServing, "its process ended: %s", message)
	}
	if n.agent.Facts == nil && (entry == nil || !kubeletReady(n.pod)) {
		return is(metav1.ConditionFalse, v1alpha1.ReasonStarting, "its process is starting")
	}
	return is(metav1.ConditionUnknown, v1alpha1.ReasonAgentUnreachable, "%s; the operator does nothing about it, because it may well be alive", orElse(n.agent.Error, "its agent was not asked yet"))
}

// unofferedRDMA says what the scheduler lacks for an RDMA pod, and how to add it; empty: the scheduler lacks something else.
func (d *decision) unofferedRDMA(message string) string {
	attachment := d.Pool.Spec.Network.Attachment
	if attachment == nil {
		return ""
	}
	if name := attachment.ResourceName(); name != "" && strings.Contains(message, name) {
		return fmt.Sprintf("no Kubernetes node has the RDMA resource %s free for its pod: install the device plugin that offers it where the NICs are (for devices that are shared: k8s-rdma-shared-dev-plugin), raise how many pods it admits (rdmaHcaMax), or let nodeSelector choose nodes that have it (kubectl get nodes -o yaml shows it under allocatable). The scheduler says: %s",
			name, message)
	}
	if attachment.DRA != nil && strings.Contains(strings.ToLower(message), "claim") {
		return fmt.Sprintf("its claim for an RDMA device cannot be met: see that ResourceClaimTemplate %s exists in namespace %s, that its device class has a driver, and that a Kubernetes node has such a device free (kubectl get resourceslices). The scheduler says: %s",
			attachment.DRA.ResourceClaimTemplateName, d.Pool.Namespace, message)
	}
	return ""
}

// unattachedRDMA says why a pod did not get its network, and where to correct that.
func (d *decision) unattachedRDMA(message string) string {
	name := d.Pool.Spec.Network.Attachment.NetworkName()
	namespace, name, given := strings.Cut(name, "/")
	if !given {
		namespace, name = d.Pool.Namespace, namespace
	}
	return fmt.Sprintf("its pod does not get the network that spec.network.attachment names: see that NetworkAttachmentDefinition %s exists in namespace %s (kubectl -n %s get network-attachment-definitions), and that its Kubernetes node has the plugins and the interface that it names; a wrong name takes a new pool. The kubelet says: %s",
		name, namespace, namespace, refusal(message))
}

// sandboxID changes with each attempt. A message that contained it would never stay the same.
var sandboxID = regexp.MustCompile(`"?\b[0-9a-f]{32,}\b"?`)

// refusal is why a pod's sandbox was refused, without what stands before the plugin's own words.
func refusal(message string) string {
	if _, words, of := strings.Cut(message, "failed (add): "); of {
		message = words
	}
	const limit = 500
	message = sandboxID.ReplaceAllString(strings.Join(strings.Fields(message), " "), "...")
	if len(message) > limit {
		message = strings.ToValidUTF8(message[:limit], "") + "..."
	}
	return message
}

// unusableRDMA says what RDMA a process lacked when it ended, and how to find out more; empty: it ended for another reason.
func (d *decision) unusableRDMA(n *node, message string) string {
	// These are a memory node's words; a test in the laboratory checks that it uses them.
	if d.Pool.Spec.Network.Attachment == nil || !strings.Contains(message, "--wire verbs: ") && !strings.Contains(message, "--rdma-interface: ") {
		return ""
	}
	if name := d.Pool.Spec.Network.Attachment.NetworkName(); name != "" && strings.Contains(message, "--rdma-interface: there is no interface") {
		return fmt.Sprintf("its process ended, as its pod has no interface with an address on network %s (%s): install Multus on its Kubernetes node (a cluster that has it knows: kubectl get crd network-attachment-definitions.k8s.cni.cncf.io), see that the network gives addresses (ipam), then delete the pod",
			name, message)
	}
	return fmt.Sprintf("its process ended, as its pod has no RDMA that it could use (%s). What is missing, and how to add it, says: kubectl -n %s debug %s -it --copy-to=farpool-doctor --container=memory-node -- farpool-doctor",
		message, d.Pool.Namespace, n.name)
}

func (d *decision) howToAccept(name, incarnation string) string {
	return fmt.Sprintf("what it held is lost, and dataPolicy Store keeps its tables stopped; to go on with them empty: kubectl -n %s annotate memorynode %s --overwrite %s=%s",
		d.Pool.Namespace, name, v1alpha1.AnnotationAcceptDataLoss, incarnation)
}

func (d *decision) nodeStatus(n *node, ready metav1.Condition) v1alpha1.MemoryNodeStatus {
	before := n.object.Status
	now := *before.DeepCopy()
	now.ObservedGeneration = n.object.Generation
	now.NodeName, now.Requests = "", nil
	if n.pod != nil {
		now.NodeName, now.Requests = n.pod.Spec.NodeName, requestsOf(n.pod)
	}
	if n.reachable() {
		facts := n.agent.Facts
		now.Epoch = int64(facts.GetEpoch())
		if effective := d.epochs.effective(); effective != nil && len(d.Publish) > 0 && now.Epoch < effective.Epoch {
			// The memory node is about to receive a map; the status would only flicker.
			now.Epoch = before.Epoch
		}
		now.Endpoint = clipTo(facts.GetMemoryNode().GetEndpoint(), shardmap.LongestEndpoint)
		now.QuarantinedRows = int64(facts.GetMemoryNode().GetQuarantinedRows())
		if region, err := shardmap.LockRegionFromMessage(facts.GetMemoryNode().GetLockRegion()); err == nil {
			now.LockRegion = region
			if locks := d.Pool.Spec.Locks; locks != nil && locks.Placement != v1alpha1.LocksInHostMemory {
				now.Conditions = d.setConditions(now.Conditions, n.object.Generation, locksPlaced(d.Pool.Namespace, n.name, region))
			}
		}
	}
	if image := imageInPod(n.pod); image != "" && image != before.Image && d.inMap(n.name) && d.up(n) {
		now.Image = image
		if before.Image != "" {
			d.tell(n, corev1.EventTypeNormal, v1alpha1.ReasonMemoryNodeUpgraded, "Upgrade", fmt.Sprintf("memory node %s serves with image %s, in place of %s", n.name, image, before.Image))
		}
	}
	now.Conditions = d.setConditions(now.Conditions, n.object.Generation, ready, d.nodeUpToDate(n))
	if was := meta.FindStatusCondition(before.Conditions, v1alpha1.ConditionReady); ready.Reason == v1alpha1.ReasonRDMAMissing && (was == nil || was.Reason != ready.Reason) {
		d.tell(n, corev1.EventTypeWarning, ready.Reason, "Attach", fmt.Sprintf("memory node %s: %s", n.name, ready.Message))
	}
	if entry := d.entryOf(n.name); entry != nil {
		d.dataLoss(n, entry, before, &now)
	}
	return now
}

// locksPlaced says whether the NIC took the locks that it was asked to take.
func locksPlaced(namespace, name string, region *v1alpha1.LockRegion) metav1.Condition {
	const placed = v1alpha1.ConditionLocksInDeviceMemory
	if region.Placement == v1alpha1.LockPlacementDeviceMemory {
		return condition(placed, metav1.ConditionTrue, v1alpha1.ReasonDeviceMemoryGranted, "its %d locks lie in %d bytes of its NIC's memory", region.Locks, region.Bytes)
	}
	return condition(placed, metav1.ConditionFalse, v1alpha1.ReasonDeviceMemoryMissing,
		"its locks, %d bytes, lie in host memory, as its NIC has no memory of its own or too little left: operations that wait for the same lock are slower; why, says: kubectl -n %s logs %s | grep \"locks lie\"",
		region.Bytes, namespace, name)
}

// dataLoss compares the incarnation in the status with the one in the map. The operator that first sees both announces the loss, once, and the condition lasts as
// long as that memory does. An incarnation that continues with the memory of the one before has lost nothing.
func (d *decision) dataLoss(n *node, entry *v1alpha1.ShardMapNode, before v1alpha1.MemoryNodeStatus, now *v1alpha1.MemoryNodeStatus) {
	const lost = v1alpha1.ConditionDataLost
	now.Incarnation, now.MemoryIncarnation = entry.Incarnation, entry.MemoryIncarnation
	policy := d.Pool.Spec.DataPolicy
	tell := func(kind, reason, note string) { d.tell(n, kind, reason, "Restart", note) }
	switch {
	case before.Incarnation == "" || before.Incarnation == entry.Incarnation:
	case memoryOf(before.Incarnation, before.MemoryIncarnation) == memoryOf(entry.Incarnation, entry.MemoryIncarnation):
		tell(corev1.EventTypeNormal, v1alpha1.ReasonWarmRestarted, fmt.Sprintf("memory node %s restarted and kept its memory: incarnation %s goes on with what incarnation %s held",
			n.name, entry.Incarnation, before.Incarnation))
	case policy == v1alpha1.DataPolicyStore && entry.State == v1alpha1.NodeServing:
		now.LostIncarnation = before.Incarnation
		tell(corev1.EventTypeWarning, v1alpha1.ReasonDataLossAccepted, fmt.Sprintf("memory node %s begins empty: what incarnation %s held was given up", n.name, before.Incarnation))
	case policy == v1alpha1.DataPolicyStore:
		now.LostIncarnation = before.Incarnation
		tell(corev1.EventTypeWarning, v1alpha1.ReasonDataLost, fmt.Sprintf("memory node %s lost what incarnation %s held: its tables are stopped until the loss is accepted: %s",
			n.name, before.Incarnation, d.howToAccept(n.name, entry.Incarnation)))
	default:
		now.LostIncarnation = before.Incarnation
		tell(corev1.EventTypeWarning, v1alpha1.ReasonTablesLost, fmt.Sprintf("memory node %s lost what incarnation %s held: incarnation %s starts with empty tables, as dataPolicy Cache has it",
			n.name, before.Incarnation, entry.Incarnation))
	}
	var c metav1.Condition
	switch {
	case now.LostIncarnation == "":
		c = condition(lost, metav1.ConditionFalse, v1alpha1.ReasonNoLoss, "its memory is as old as its tables")
	case entry.State == v1alpha1.NodeStopped:
		c = condition(lost, metav1.ConditionTrue, v1alpha1.ReasonStopped, "%s", d.howToAccept(n.name, entry.Incarnation))
	case policy == v1alpha1.DataPolicyStore:
		c = condition(lost, metav1.ConditionTrue, v1alpha1.ReasonDataLossAccepted, "what incarnation %s held was given up; its tables started empty", now.LostIncarnation)
	default:
		c = condition(lost, metav1.ConditionTrue, v1alpha1.ReasonTablesLost, "what incarnation %s held is lost; its tables started empty", now.LostIncarnation)
	}
	now.Conditions = d.setConditions(now.Conditions, n.object.Generation, c)
}

func (d *decision) mapStatuses() {
	for _, object := range d.ShardMaps {
		conditions := object.Status.Conditions
		for _, phase := range phases {
			c := condition(phase.condition, metav1.ConditionFalse, v1alpha1.ReasonSuperseded, "a later epoch took its place")
			if d.epochs.current == &object.Spec && d.epochs.next == nil {
				if lacking := d.lacking(&object.Spec, phase.epoch); len(lacking) == 0 {
					c = condition(phase.condition, metav1.ConditionTrue, phase.done, "every memory node %s it", phase.verb)
				} else {
					c = condition(phase.condition, metav1.ConditionFalse, phase.doing, "not every memory node %s it yet: %s", phase.verb, some(lacking))
				}
				// A memory node that is out of reach for a while has still received the map.
				if was := meta.FindStatusCondition(object.Status.Conditions, phase.condition); was != nil && was.Status == metav1.ConditionTrue {
					c = *was
				}
			}
			conditions = d.setConditions(conditions, object.Generation, c)
		}
		d.Status.Maps[object.Name] = v1alpha1.ShardMapStatus{Conditions: conditions}
	}
}

// phases are those in which a map is published, and the latest epoch for which a memory node has completed each.
var phases = []struct {
	condition, doing, done, verb string
	epoch                        func(*farpoolv1alpha1.Facts) uint64
}{
	{v1alpha1.ConditionPrepared, v1alpha1.ReasonPreparing, v1alpha1.ReasonPrepared, "holds",
		func(facts *farpoolv1alpha1.Facts) uint64 {
			return max(facts.GetEpoch(), facts.GetMemoryNode().GetMap().GetEpoch())
		}},
	{v1alpha1.ConditionPublished, v1alpha1.ReasonPublishing, v1alpha1.ReasonPublished, "follows", (*farpoolv1alpha1.Facts).GetEpoch},
}

// lacking are the memory nodes of a map that are not known to have come so far.
func (d *decision) lacking(spec *v1alpha1.ShardMapSpec, epoch func(*farpoolv1alpha1.Facts) uint64) []string {
	var lacking []string
	for _, entry := range spec.Nodes {
		if n := d.nodeNamed(entry.Name); n == nil || epoch(n.facts) < uint64(spec.Epoch) {
			lacking = append(lacking, entry.Name)
		}
	}
	return lacking
}

func (d *decision) poolStatus(nodes []nodeCondition) {
	status := *d.Pool.Status.DeepCopy()
	status.ObservedGeneration = d.Pool.Generation
	status.Processes = d.written.left
	status.Endpoint = ""
	if len(d.pool.ComputePools()) > 0 {
		status.Endpoint = d.pool.Endpoint()
	}
	status.Binding = nil
	if binding := d.Secrets[d.pool.BindingSecretName()]; binding != nil && binding.DeletionTimestamp.IsZero() {
		status.Binding = &v1alpha1.BindingReference{Name: binding.Name}
	}
	status.Certificate = d.certificateReference()
	if d.template != nil {
		status.Template = &v1alpha1.TemplateStatus{Version: d.version, Image: d.upgrade.image, CreatedWith: d.upgrade.createdWith}
	}

	var ready, desired int32
	for _, n := range nodes {
		if !n.wanted {
			continue
		}
		desired++
		if n.ready.Status == metav1.ConditionTrue {
			ready++
		}
	}
	status.Memory = count(ready, desired)
	shards := d.computeShards()
	status.Compute = nil
	if len(d.pool.ComputePools()) > 0 {
		status.Compute = count(shards.ready, shards.desired)
	}
	if effective := d.epochs.effective(); effective != nil && (status.ShardMap == nil || effective.Epoch > status.ShardMap.Epoch) {
		status.ShardMap = &v1alpha1.ShardMapReference{Name: v1alpha1.ShardMapName(d.Pool.Name, effective.Epoch), Epoch: effective.Epoch}
	}
	pressure := d.memoryPressure()
	foreign := d.foreignPods()
	d.degraded = append(d.degraded, foreign...)
	if d.upgrade.trouble != nil {
		d.degraded = append(d.degraded, *d.upgrade.trouble)
	}
	degraded := d.isDegraded(nodes, pressure)
	d.tellForeignPods(foreign, degraded)
	valid := d.specValid()
	d.tellSpec(valid)
	upToDate := d.poolUpToDate()
	d.tellUpgrade(upToDate)
	status.Conditions = d.setConditions(status.Conditions, d.Pool.Generation,
		d.available(nodes, shards), d.progressing(nodes, shards), degraded, valid, d.reachable(), pressure, d.certificatesReady(), upToDate)
	d.Status.Pool = status
}

func count(ready, desired int32) *v1alpha1.CountStatus {
	return &v1alpha1.CountStatus{Ready: ready, Desired: desired, Summary: fmt.Sprintf("%d/%d", ready, desired)}
}

// shards adds up the compute pools.
type shards struct {
	ready, desired int32
	settled        bool
	trouble        string
}

func (d *decision) computeShards() shards {
	s := shards{settled: true}
	for _, computePool := range d.pool.ComputePools() {
		s.desired += computePool.Replicas
		deployment := d.Deployments[d.pool.ComputeName(computePool.Name)]
		if deployment == nil {
			s.settled = s.settled && computePool.Replicas == 0
			continue
		}
		s.ready += deployment.Status.ReadyReplicas
		s.settled = s.settled && deployment.Status.ObservedGeneration >= deployment.Generation &&
			deployment.Status.UpdatedReplicas == computePool.Replicas &&
			deployment.Status.Replicas == computePool.Replicas &&
			deployment.Status.ReadyReplicas == computePool.Replicas
		for _, c := range deployment.Status.Conditions {
			if c.Type == "ReplicaFailure" && c.Status == corev1.ConditionTrue {
				s.trouble = fmt.Sprintf("Deployment %s: %s", deployment.Name, c.Message)
			}
		}
	}
	if trouble := d.shardTrouble(""); trouble != "" {
		s.trouble = trouble
	}
	return s
}

func (d *decision) available(nodes []nodeCondition, shards shards) metav1.Condition {
	const available = v1alpha1.ConditionAvailable
	effective := d.epochs.effective()
	if effective == nil {
		return condition(available, metav1.ConditionFalse, v1alpha1.ReasonNotPublished, "the pool has no map yet: %s", d.pending(nodes))
	}
	var stopped, down, unknown []string
	for _, n := range nodes {
		entry := d.entryOf(n.name)
		if entry == nil {
			// It is about to join, or has left: no client looks for a key there.
			continue
		}
		if entry.State == v1alpha1.NodeStopped {
			stopped = append(stopped, n.name)
			continue
		}
		switch n.ready.Status {
		case metav1.ConditionFalse:
			down = append(down, n.name)
		case metav1.ConditionUnknown:
			// The kubelet asks the process itself, and is closer to it than the operator.
			if !kubeletReady(n.pod) {
				unknown = append(unknown, n.name)
			}
		}
	}
	switch {
	case len(stopped) > 0:
		return condition(available, metav1.ConditionFalse, v1alpha1.ReasonTablesStopped, "tables are stopped, as their data is lost: %s", some(stopped))
	case len(down) > 0:
		return condition(available, metav1.ConditionFalse, v1alpha1.ReasonMemoryNodesNotServing, "memory nodes do not serve: %s", some(down))
	case shards.desired == 0:
		return condition(available, metav1.ConditionFalse, v1alpha1.ReasonNoComputeShards, "no compute shard is asked for, and nothing else speaks the Redis protocol: give the pool some, by spec.compute.pools and their replicas")
	case shards.ready == 0:
		return condition(available, metav1.ConditionFalse, v1alpha1.ReasonNoComputeShards, "no compute shard is ready%s", after(": ", shards.trouble))
	case len(unknown) > 0:
		return condition(available, metav1.ConditionUnknown, v1alpha1.ReasonAgentUnreachable, "nothing is known of memory nodes: %s", some(unknown))
	}
	return condition(available, metav1.ConditionTrue, v1alpha1.ReasonServing, "every table of epoch %d is served", effective.Epoch)
}

// pending says which memory nodes the pool waits for, and why it waits for the first of them.
func (d *decision) pending(nodes []nodeCondition) string {
	var names []string
	why := ""
	for _, n := range nodes {
		if n.wanted && n.facts == nil {
			names = append(names, n.name)
			if why == "" || n.ready.Reason == v1alpha1.ReasonNodeUnschedulable || n.ready.Reason == v1alpha1.ReasonRDMAMissing {
				why = fmt.Sprintf("%s: %s", n.name, n.ready.Message)
			}
		}
	}
	if len(names) == 0 {
		return "it is being made"
	}
	return fmt.Sprintf("waiting for %d of %d memory nodes (%s)", len(names), d.pool.MemoryNodes(), why)
}

func (d *decision) progressing(nodes []nodeCondition, shards shards) metav1.Condition {
	const progressing = v1alpha1.ConditionProgressing
	effective := d.epochs.effective()
	var notReady []string
	for _, n := range nodes {
		if n.ready.Status == metav1.ConditionFalse && n.ready.Reason != v1alpha1.ReasonStopped {
			notReady = append(notReady, fmt.Sprintf("%s (%s)", n.name, n.ready.Message))
		}
	}
	switch {
	case d.paused:
		return condition(progressing, metav1.ConditionFalse, v1alpha1.ReasonPaused, "spec.management is Paused: nothing is changed, but certificates are renewed")
	case d.specInvalid != nil:
		return condition(progressing, metav1.ConditionFalse, d.specInvalid.reason, "%s", d.specInvalid.message)
	case effective == nil:
		return condition(progressing, metav1.ConditionTrue, v1alpha1.ReasonMemoryNodesPending, "%s", d.pending(nodes))
	case d.moves.words != "":
		return condition(progressing, metav1.ConditionTrue, v1alpha1.ReasonResizing, "%s", joinWords(d.moves.words, notReadyWords(notReady)))
	case d.upgrade.trouble != nil:
		return condition(progressing, metav1.ConditionFalse, d.upgrade.trouble.reason, "%s", d.upgradeWords())
	case d.upgrade.pending:
		return condition(progressing, metav1.ConditionTrue, v1alpha1.ReasonUpgrading, "%s", d.upgradeWords())
	case d.epochs.next != nil || len(d.Publish) > 0:
		return condition(progressing, metav1.ConditionTrue, v1alpha1.ReasonPublishing, "waiting for memory nodes to follow map epoch %d", effective.Epoch)
	case len(notReady) > 0:
		return condition(progressing, metav1.ConditionTrue, v1alpha1.ReasonMemoryNodesPending, "waiting for memory nodes: %s", some(notReady))
	case !shards.settled:
		return condition(progressing, metav1.ConditionTrue, v1alpha1.ReasonComputeRollingOut, "%d of %d compute shards are ready%s", shards.ready, shards.desired, after(": ", shards.trouble))
	case d.moves.held != nil:
		return condition(progressing, metav1.ConditionFalse, v1alpha1.ReasonResizeAborted, "%s", d.howToGoOn())
	}
	return condition(progressing, metav1.ConditionFalse, v1alpha1.ReasonSettled, "the pool is as its spec wants it")
}

func notReadyWords(notReady []string) string {
	if len(notReady) == 0 {
		return ""
	}
	return "not ready: " + some(notReady)
}

func (d *decision) isDegraded(nodes []nodeCondition, pressure metav1.Condition) metav1.Condition {
	const degraded = v1alpha1.ConditionDegraded
	var stopped []string
	var found []finding
	for _, n := range nodes {
		if entry := d.entryOf(n.name); entry != nil && entry.State == v1alpha1.NodeStopped {
			stopped = append(stopped, n.name)
		}
	}
	if len(stopped) > 0 {
		first := d.entryOf(stopped[0])
		found = append(found, finding{v1alpha1.ReasonDataLost, fmt.Sprintf("memory was lost (%s): %s", some(stopped), d.howToAccept(first.Name, first.Incarnation))})
	}
	found = append(found, d.degraded...)
	for _, n := range nodes {
		if n.ready.Reason == v1alpha1.ReasonNodeUnschedulable {
			found = append(found, finding{v1alpha1.ReasonNodeUnschedulable, fmt.Sprintf(
				"memory node %s lends %s, and %s. Add a Kubernetes node that has so much memory free, or widen pod.nodeSelector and pod.tolerations of memory pool %s; to lend less, add a memory pool that does to spec.memory.pools, and take this one away",
				n.name, n.pool.Lend.String(), n.ready.Message, n.pool.Name)})
			break
		}
	}
	for _, n := range nodes {
		if reason := n.ready.Reason; reason == v1alpha1.ReasonRDMAMissing || reason == v1alpha1.ReasonDeviceMemoryMissing || reason == v1alpha1.ReasonWireUnsuitable {
			found = append(found, finding{reason, fmt.Sprintf("memory node %s: %s", n.name, n.ready.Message)})
			break
		}
	}
	for _, n := range nodes {
		if n.mismatch != "" {
			found = append(found, finding{v1alpha1.ReasonGeometryMismatch, n.mismatch})
			break
		}
	}
	found = append(found, d.quarantined()...)
	found = append(found, fullFinding(pressure)...)
	found = append(found, d.sessionBudget()...)
	found = append(found, d.sidecarFindings()...)
	found = append(found, d.rivals()...)
	if waiting := d.repairs.waiting; waiting > 0 {
		found = append(found, finding{v1alpha1.ReasonRepairBacklog, fmt.Sprintf(
			"%d dead client processes wait for a RepairLease, as %d are open: look at leases that do not move (kubectl -n %s get repairleases -o wide); blocked clients repair on their own meanwhile",
			waiting, d.repairs.open, d.Pool.Namespace)})
	}
	if len(found) == 0 {
		return condition(degraded, metav1.ConditionFalse, v1alpha1.ReasonHealthy, "nothing needs a person")
	}
	var messages []string
	for _, f := range found {
		messages = append(messages, f.message)
	}
	return condition(degraded, metav1.ConditionTrue, found[0].reason, "%s", strings.Join(messages, "; "))
}

// strangerAfter is how long a pod may have the pool's labels before the operator calls it foreign: the cache may not have its owners yet.
const strangerAfter = 30 * time.Second

// foreignPods are pods that have the pool's labels and that the pool has not made. The operator believes nothing that they say, but the pool's Services and
// NetworkPolicies know only labels.
func (d *decision) foreignPods() []finding {
	var names []string
	for _, pod := range d.Foreign {
		if since := pod.CreationTimestamp.Add(strangerAfter); d.Now.Before(since) {
			d.due(since)
			continue
		}
		names = append(names, pod.Name)
	}
	if len(names) == 0 {
		return nil
	}
	return []finding{{v1alpha1.ReasonForeignPods, fmt.Sprintf(
		"pods bear the pool's labels and do not belong to it (%s): the operator ignores them, and the pool's Services may still send them connections; find out who made them, and delete them or take the label %s away",
		some(names), v1alpha1.LabelComponent)}}
}

// tellForeignPods announces them in an event when the condition comes to name them.
func (d *decision) tellForeignPods(foreign []finding, degraded metav1.Condition) {
	before := meta.FindStatusCondition(d.Pool.Status.Conditions, degraded.Type)
	for _, f := range foreign {
		if strings.Contains(degraded.Message, f.message) && (before == nil || !strings.Contains(before.Message, f.message)) {
			d.Status.Events = append(d.Status.Events, Event{Regarding: d.Pool, Type: corev1.EventTypeWarning, Reason: f.reason, Action: "Ignore", Note: clip(f.message)})
		}
	}
}

// quarantined are the memory nodes with rows that no crash explains, and what to do about them.
func (d *decision) quarantined() []finding {
	var where []string
	for _, n := range d.nodes {
		if here := d.Status.Nodes[n.name].QuarantinedRows; here > 0 {
			where = append(where, fmt.Sprintf("%d on memory node %s", here, n.name))
		}
	}
	if len(where) == 0 {
		return nil
	}
	return []finding{{v1alpha1.ReasonRowsQuarantined, fmt.Sprintf(
		"rows that no crash explains stay locked (%s), and writes to their keys fail: keep the log of the node, run farpool-fsck over its memory file, and report both; to be rid of them, delete the node's pod, which empties it, and load its data again",
		some(where))}}
}

func (d *decision) specValid() metav1.Condition {
	if d.specInvalid != nil {
		return condition(v1alpha1.ConditionSpecValid, metav1.ConditionFalse, d.specInvalid.reason, "%s", d.specInvalid.message)
	}
	if missing := d.withoutCPU(); len(missing) > 0 {
		return condition(v1alpha1.ConditionSpecValid, metav1.ConditionTrue, v1alpha1.ReasonCPURequestMissing,
			"the spec can be served; memory nodes of %s execute all operations, at 1 to 2 microseconds of a processor each, and memory pools do not say how many processors they need (%s): set their resources.requests.cpu in spec.memory.pools, to 1 for each 500,000 operations a second of a memory node",
			d.protocol().Name(), some(missing))
	}
	return condition(v1alpha1.ConditionSpecValid, metav1.ConditionTrue, v1alpha1.ReasonAccepted, "the spec can be served")
}

// withoutCPU lists the memory pools that request no processors although their memory nodes execute operations. A limit without a request is a request.
func (d *decision) withoutCPU() []string {
	var missing []string
	if !d.protocol().Executes() {
		return nil
	}
	for i := range d.pool.Spec.Memory.Pools {
		memoryPool := &d.pool.Spec.Memory.Pools[i]
		if memoryPool.Replicas == 0 {
			continue
		}
		wanted := ptr.Deref(memoryPool.Resources, v1alpha1.Resources{})
		request, requested := wanted.Requests[corev1.ResourceCPU]
		limit := wanted.Limits[corev1.ResourceCPU]
		switch {
		case requested && request.IsZero():
			missing = append(missing, memoryPool.Name+" requests none")
		case !requested && limit.IsZero():
			missing = append(missing, fmt.Sprintf("%s gets %s for each", memoryPool.Name, d.protocol().CPURequest(memoryPool.Workers)))
		}
	}
	return missing
}

// tellSpec announces what is to be said of a spec that can be served, when the condition comes to say it.
func (d *decision) tellSpec(valid metav1.Condition) {
	before := meta.FindStatusCondition(d.Pool.Status.Conditions, valid.Type)
	if valid.Reason == v1alpha1.ReasonCPURequestMissing && (before == nil || before.Reason != valid.Reason) {
		d.Status.Events = append(d.Status.Events, Event{Regarding: d.Pool, Type: corev1.EventTypeWarning, Reason: valid.Reason, Action: "Accept", Note: valid.Message})
	}
}

func (d *decision) reachable() metav1.Condition {
	const reachable = v1alpha1.ConditionDataPlaneReachable
	var refused, silent []string
	for _, target := range d.Targets {
		switch observed := d.Agents[target.Pod]; observed.State {
		case agent.Refused:
			refused = append(refused, fmt.Sprintf("%s: %s", target.Name, observed.Error))
		case agent.Unreachable:
			silent = append(silent, fmt.Sprintf("%s: %s", target.Name, observed.Error))
		}
	}
	sort.Strings(refused)
	sort.Strings(silent)
	switch {
	case len(refused) > 0:
		return condition(reachable, metav1.ConditionFalse, v1alpha1.ReasonAgentRefused, "%s", some(refused))
	case len(silent) > 0:
		return condition(reachable, metav1.ConditionUnknown, v1alpha1.ReasonAgentUnreachable, "%s", some(silent))
	case len(d.Targets) == 0:
		return condition(reachable, metav1.ConditionUnknown, v1alpha1.ReasonNoAgents, "no data-plane process runs yet")
	}
	return condition(reachable, metav1.ConditionTrue, v1alpha1.ReasonReachable, "the agent of every process answers")
}

func (d *decision) certificatesReady() metav1.Condition {
	const ready = v1alpha1.ConditionCertificatesReady
	if d.certificates.reason != "" {
		return condition(ready, metav1.ConditionFalse, d.certificates.reason, "%s", d.certificates.message)
	}
	return condition(ready, metav1.ConditionTrue, v1alpha1.ReasonIssued, "certificates are renewed at half their life")
}

// Fail replaces what a plan says by what kept it from being carried out.
func (s *Status) Fail(pool *v1alpha1.KVPool, now metav1.Time, kind, reason, message string, status metav1.ConditionStatus) {
	c := condition(kind, status, reason, "%s", message)
	c.ObservedGeneration = pool.Generation
	// The time of the last change is the earlier condition's, not the replaced one's.
	c.LastTransitionTime = now
	if was := meta.FindStatusCondition(pool.Status.Conditions, kind); was != nil && was.Status == status {
		c.LastTransitionTime = was.LastTransitionTime
	}
	s.Pool.Conditions = slices.Clone(s.Pool.Conditions)
	if overwritten := meta.FindStatusCondition(s.Pool.Conditions, kind); overwritten != nil {
		*overwritten = c
	} else {
		s.Pool.Conditions = append(s.Pool.Conditions, c)
	}
}

// Blame adds a finding to the condition Degraded, before what it says already.
func (s *Status) Blame(pool *v1alpha1.KVPool, now metav1.Time, reason, message string) {
	if was := meta.FindStatusCondition(s.Pool.Conditions, v1alpha1.ConditionDegraded); was != nil && was.Status == metav1.ConditionTrue {
		if strings.HasPrefix(was.Message, message) {
			return // an earlier status says it already
		}
		message += "; " + was.Message
	}
	s.Fail(pool, now, v1alpha1.ConditionDegraded, reason, message, metav1.ConditionTrue)
}

// event adds an event that is sent when the plan is applied; if the plan makes a map, when that is applied.
func (d *decision) event(regarding client.Object, kind, reason, action, note string) {
	d.eventWith(nil, regarding, kind, reason, action, note)
}

// eventWith adds an event that is sent if an object is applied.
func (d *decision) eventWith(object render.Object, regarding client.Object, kind, reason, action, note string) {
	if node, ok := regarding.(*v1alpha1.MemoryNode); ok && node == nil {
		return // its object is gone, and is about to be made again
	}
	d.Events = append(d.Events, Event{Regarding: regarding, Type: kind, Reason: reason, Action: action, Note: clip(note), With: object})
}

// tell announces a change of a memory node's status to people who look at it and to people who look at its pool.
func (d *decision) tell(n *node, kind, reason, action, note string) {
	for _, regarding := range []client.Object{d.Pool, n.object} {
		d.Status.Events = append(d.Status.Events, Event{Regarding: regarding, Type: kind, Reason: reason, Action: action, Note: clip(note), By: n.object.UID})
	}
}

func unschedulable(pod *corev1.Pod) string {
	if c := notScheduled(pod); c != nil {
		return c.Message
	}
	return ""
}

// unschedulableSince is when the scheduler first found that no Kubernetes node can take a pod; zero: one can, or the scheduler has not looked.
func unschedulableSince(pod *corev1.Pod) time.Time {
	if c := notScheduled(pod); c != nil {
		return c.LastTransitionTime.Time
	}
	return time.Time{}
}

func notScheduled(pod *corev1.Pod) *corev1.PodCondition {
	if pod == nil {
		return nil
	}
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable {
			return c
		}
	}
	return nil
}

func kubeletReady(pod *corev1.Pod) bool {
	if pod == nil {
		return false
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// crashed says how the pod's process ended, if it is not running again yet.
func crashed(pod *corev1.Pod) string {
	for _, container := range pod.Status.ContainerStatuses {
		ended := container.State.Terminated
		if ended == nil && container.State.Waiting != nil {
			ended = container.LastTerminationState.Terminated
		}
		if ended != nil {
			return fmt.Sprintf("exit code %d%s", ended.ExitCode, after(": ", lastLine(orElse(ended.Message, ended.Reason))))
		}
	}
	return ""
}

func waitingFor(pod *corev1.Pod) string {
	for _, container := range pod.Status.ContainerStatuses {
		if waiting := container.State.Waiting; waiting != nil && waiting.Reason != "" && waiting.Reason != "ContainerCreating" {
			return fmt.Sprintf(": %s%s", waiting.Reason, after(": ", waiting.Message))
		}
	}
	return ""
}

func reasonOfEnd(pod *corev1.Pod) string {
	return orElse(orElse(pod.Status.Message, pod.Status.Reason), string(pod.Status.Phase))
}

func lastLine(text string) string {
	text = strings.TrimSpace(text)
	text = text[strings.LastIndexByte(text, '\n')+1:]
	const limit = 300
	if len(text) > limit {
		text = strings.ToValidUTF8(text[:limit], "") + "..."
	}
	return text
}

func after(prefix, text string) string {
	if text == "" {
		return ""
	}
	return prefix + text
}

func orElse(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}

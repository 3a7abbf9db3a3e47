// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"

	farpoolv1alpha1 "farpool.dev/farpool/api/gen/farpool/v1alpha1"
	"farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/agent"
	"farpool.dev/farpool/operator/internal/shardmap"
)

// epochs is what is decided about the shard map. Memory nodes decide which epoch is current: they refuse a map that is older than theirs. After a restored backup,
// the API server's objects follow the memory nodes. Otherwise the objects lead: an epoch becomes an object before any memory node receives it, and its name can be
// taken only once.
type epochs struct {
	// current is the newest map that has an object; nil before the first.
	current *v1alpha1.ShardMapSpec
	// next is the map to be made now, if any.
	next *v1alpha1.ShardMapSpec
	// givenUp is the epoch up to which a person has given up what the pool held, once all memory nodes are empty; 0: none.
	givenUp int64
	// waiting says what the first map waits for.
	waiting []string
}

// effective is the map that the pool will have when the plan is carried out.
func (e *epochs) effective() *v1alpha1.ShardMapSpec {
	if e.next != nil {
		return e.next
	}
	return e.current
}

// everHadMap says whether the pool ever had a map: then data may lie where its hash secret says.
func (d *decision) everHadMap() bool {
	if len(d.ShardMaps) > 0 || d.Pool.Status.ShardMap != nil {
		return true
	}
	for _, n := range d.nodes {
		if n.facts.GetEpoch() > 0 {
			return true
		}
	}
	return false
}

// findMap finds the pool's newest map.
func (d *decision) findMap() {
	uid := string(d.Pool.UID)
	for _, object := range d.ShardMaps {
		if object.Spec.PoolUID == uid {
			d.epochs.current = &object.Spec
		}
	}
}

func (d *decision) decideMap(act bool) {
	e := &d.epochs
	if !act {
		d.moves.awaits = &finding{v1alpha1.ReasonPaused, "the operator may not act for the pool now: see its conditions Progressing and SpecValid"}
		return
	}
	if d.poolSecret == nil {
		d.moves.awaits = &finding{v1alpha1.ReasonSecretMissing, "the pool's hash secret is gone: see its condition Degraded"}
		return
	}

	// After a restored backup, memory nodes hold a later epoch than any object. That map becomes an object first.
	if held := d.newestHeld(); held != nil && (e.current == nil || int64(held.GetEpoch()) > e.current.Epoch) {
		adopted, err := shardmap.FromMessage(d.Pool.Name, held)
		if err != nil {
			d.degraded = append(d.degraded, finding{v1alpha1.ReasonEpochConflict, fmt.Sprintf("%v: look into the memory nodes' logs", err)})
			return
		}
		d.rememberMemory(adopted)
		e.next = adopted
		d.event(d.Pool, corev1.EventTypeWarning, v1alpha1.ReasonEpochAdopted, "Adopt", fmt.Sprintf(
			"memory nodes hold epoch %d, which has no ShardMap here, as after a restored backup: the operator takes it from them", adopted.Epoch))
		return
	}

	if !d.knowsTheMap() {
		return
	}
	floor := max(d.floor(), e.givenUp)
	if e.current == nil {
		d.firstMap(floor)
	} else {
		d.followingMap(floor)
		if e.next == nil {
			d.moveOn(floor)
		}
	}
	if e.next != nil {
		d.event(d.Pool, corev1.EventTypeNormal, v1alpha1.ReasonEpochPublished, "Publish", fmt.Sprintf(
			"epoch %d: %s", e.next.Epoch, d.whyNext()))
	}
	d.publications()
}

// floor is the highest epoch that the API server or a memory node remembers. No epoch up to it is used again. Where maps are signed, a memory node has to show the
// map, and a bare number does not count: a process that lies would use up all epochs. What compute shards claim never counts.
func (d *decision) floor() int64 {
	floor := int64(0)
	if d.epochs.current != nil {
		floor = d.epochs.current.Epoch
	}
	if reference := d.Pool.Status.ShardMap; reference != nil {
		floor = max(floor, reference.Epoch)
	}
	for _, n := range d.nodes {
		epoch := n.facts.GetMemoryNode().GetRecordedEpoch()
		if d.mapKey != nil {
			epoch = 0
			if held := n.facts.GetMemoryNode().GetMap(); held.GetPoolUid() == string(d.Pool.UID) {
				epoch = held.GetEpoch()
			}
		}
		floor = max(floor, int64(min(epoch, v1alpha1.MostEpochs)))
	}
	return floor
}

// claimed is the highest epoch that a memory node claims to have followed, with or without a signed map to show. The operator makes no epoch from it.
func (d *decision) claimed() int64 {
	claimed := d.floor()
	for _, n := range d.nodes {
		claimed = max(claimed, int64(min(n.facts.GetMemoryNode().GetRecordedEpoch(), v1alpha1.MostEpochs)))
	}
	return claimed
}

// newestHeld is the newest map that a memory node holds, as it says.
func (d *decision) newestHeld() *farpoolv1alpha1.ShardMap {
	var newest *farpoolv1alpha1.ShardMap
	for _, n := range d.nodes {
		held := n.facts.GetMemoryNode().GetMap()
		if held.GetPoolUid() == string(d.Pool.UID) && held.GetEpoch() > newest.GetEpoch() {
			newest = held
		}
	}
	return newest
}

// firstMap makes the first map. It needs every memory node, because tables are spread over all of them at once.
func (d *decision) firstMap(floor int64) {
	var wanted []*node
	for _, n := range d.nodes {
		if n.wanted {
			wanted = append(wanted, n)
		}
		if n.facts == nil && !d.drained(n) && (n.wanted || !neverRan(n)) {
			d.epochs.waiting = append(d.epochs.waiting, n.name)
		}
	}
	if len(wanted) == 0 {
		return // a memory pool in another shape is about to take the place of the one that there was
	}
	if len(d.epochs.waiting) > 0 {
		if floor > 0 {
			d.degraded = append(d.degraded, finding{v1alpha1.ReasonMapMissing, fmt.Sprintf(
				"ShardMap %s is gone, and no memory node that can be reached holds it; waiting for the others: %s; restore the object from a backup, or make those memory nodes reachable",
				v1alpha1.ShardMapName(d.Pool.Name, floor), some(d.epochs.waiting))})
		}
		return
	}
	spec := &v1alpha1.ShardMapSpec{
		PoolName:  d.Pool.Name,
		PoolUID:   string(d.Pool.UID),
		Directory: shardmap.Spread(len(wanted)),
		Eviction:  d.eviction(),
	}
	for _, n := range wanted {
		// If there was an epoch that nothing holds any more, a memory node that began empty lost what it held.
		entry, err := d.entry(n, floor > 0 && n.facts.GetMemoryNode().GetMemoryFresh())
		if err != nil {
			d.unusable(n, err)
			return
		}
		spec.Nodes = append(spec.Nodes, *entry)
	}
	slices.SortFunc(spec.Nodes, func(a, b v1alpha1.ShardMapNode) int { return strings.Compare(a.Name, b.Name) })
	for i := range spec.Nodes {
		spec.Tables = append(spec.Tables, v1alpha1.ShardMapTable{ID: int32(i), Node: int32(i)})
	}
	d.next(spec, floor+1)
}

// neverRan says whether a memory node has no pod, which would have its memory, and has never been in a map: nothing of the pool lies on it, and it knows no map.
func neverRan(n *node) bool {
	return n.pod == nil && n.object != nil && n.object.Status.Incarnation == "" && n.object.Status.Epoch == 0
}

// followingMap makes a map when a memory node has another incarnation than the map says, a person has accepted a loss, or memory nodes hold different maps under
// the same epoch. A memory node that cannot be reached keeps its entry: it does not count as dead.
func (d *decision) followingMap(floor int64) {
	current := d.epochs.current
	spec := current.DeepCopy()
	changed := false
	if held := d.furtherMoved(); held != nil {
		further, err := shardmap.FromMessage(d.Pool.Name, held)
		if err != nil {
			d.degraded = append(d.degraded, finding{v1alpha1.ReasonEpochConflict, fmt.Sprintf("%v: look into the memory nodes' logs", err)})
			return
		}
		d.rememberMemory(further)
		spec, changed = graft(further, current), true
		d.event(d.Pool, corev1.EventTypeWarning, v1alpha1.ReasonEpochConflict, "Publish", fmt.Sprintf(
			"a memory node knows move %d, and ShardMap %s no move after %d, as after a restored backup: the next epoch continues that move", held.GetMove(), v1alpha1.ShardMapName(d.Pool.Name, current.Epoch), current.Move))
	}
	reached := 0
	for i := range spec.Nodes {
		entry := &spec.Nodes[i]
		n := d.nodeNamed(entry.Name)
		if n == nil || n.facts == nil {
			continue
		}
		life := shardmap.FormatIncarnation(n.facts.GetIncarnation())
		if life != entry.Incarnation && (life == entry.MemoryIncarnation || d.named(n, life)) && !d.holdsCurrent(n) {
			// These facts are late: they name an incarnation that an earlier map had, and this map has another. If this map's incarnation is in truth the older
			// one, the process that runs receives this map, and holds it then.
			continue
		}
		reached++
		before := *entry
		if entry.Incarnation != life {
			// The process has another incarnation, over memory of its own or over the memory of the process before it.
			kept := !n.facts.GetMemoryNode().GetMemoryFresh()
			next, err := d.entry(n, !kept)
			if err != nil {
				d.unusable(n, err)
				return
			}
			if kept {
				next.MemoryIncarnation = memoryOf(entry.Incarnation, entry.MemoryIncarnation)
				if entry.State == v1alpha1.NodeStopped && !d.accepted(n, entry.Incarnation) && !d.accepted(n, next.Incarnation) {
					// This process has not found what an earlier one lost.
					next.State = v1alpha1.NodeStopped
				}
			}
			*entry, changed = *next, true
		} else if entry.State == v1alpha1.NodeStopped && d.accepted(n, entry.Incarnation) {
			entry.State, changed = v1alpha1.NodeServing, true
			note := fmt.Sprintf("the loss of what memory node %s held is accepted: its tables start empty", n.name)
			d.event(d.Pool, corev1.EventTypeNormal, v1alpha1.ReasonDataLossAccepted, "Accept", note)
			d.event(n.object, corev1.EventTypeNormal, v1alpha1.ReasonDataLossAccepted, "Accept", note)
		}
		if startsEmpty(&before, entry) {
			forgetDepartures(spec, i)
		}
	}
	if conflicting := d.conflicting(current); conflicting != "" {
		d.event(d.Pool, corev1.EventTypeWarning, v1alpha1.ReasonEpochConflict, "Publish", fmt.Sprintf(
			"memory node %s holds another map of epoch %d than ShardMap %s: the next epoch replaces both", conflicting, current.Epoch, v1alpha1.ShardMapName(d.Pool.Name, current.Epoch)))
		changed = true
	}
	changed = d.setEviction(spec) || changed
	// A status remembers a later epoch than any object or memory node.
	if floor > current.Epoch && reached == len(spec.Nodes) {
		changed = true
	}
	if changed {
		d.next(spec, floor+1)
	}
}

// eviction is the pool's policy as maps have it: they leave noeviction out.
func (d *decision) eviction() v1alpha1.EvictionPolicy {
	if policy := d.Pool.Spec.Evicts(); policy != v1alpha1.NoEviction {
		return policy
	}
	return ""
}

// setEviction gives a map the pool's policy, and says whether it had another one.
func (d *decision) setEviction(spec *v1alpha1.ShardMapSpec) bool {
	before := spec.Eviction
	spec.Eviction = d.eviction()
	return spec.Eviction != before
}

func (d *decision) next(spec *v1alpha1.ShardMapSpec, epoch int64) {
	spec.Epoch = epoch
	spec.EpochKey = v1alpha1.EpochKey(epoch)
	d.epochs.next = spec
}

// entry is a memory node as its agent describes it. If it lost what an earlier process held, the pool's policy says whether its tables serve.
func (d *decision) entry(n *node, lost bool) (*v1alpha1.ShardMapNode, error) {
	facts := n.facts.GetMemoryNode()
	message := &farpoolv1alpha1.MemoryNodeEntry{
		Name:        n.name,
		Endpoint:    facts.GetEndpoint(),
		Incarnation: n.facts.GetIncarnation(),
		State:       farpoolv1alpha1.MemoryNodeEntry_STATE_SERVING,
		MemoryBytes: facts.GetMemoryBytes(),
		LockRegion:  facts.GetLockRegion(),
	}
	d.protocol().Enter(facts, message)
	entry, err := shardmap.NodeFromMessage(message)
	if err != nil {
		return nil, err
	}
	if lost && d.Pool.Spec.DataPolicy == v1alpha1.DataPolicyStore && !d.accepted(n, entry.Incarnation) {
		entry.State = v1alpha1.NodeStopped
	}
	return entry, nil
}

// memoryOf is the incarnation that formatted the memory of this incarnation.
func memoryOf(incarnation, memoryIncarnation string) string {
	return orElse(memoryIncarnation, incarnation)
}

// rememberMemory adds to a map that came from memory nodes what their messages do not say: which incarnation formatted each memory.
func (d *decision) rememberMemory(spec *v1alpha1.ShardMapSpec) {
	for i := range spec.Nodes {
		entry := &spec.Nodes[i]
		n := d.nodeNamed(entry.Name)
		if n == nil || n.object == nil {
			continue
		}
		status := n.object.Status
		answers := shardmap.FormatIncarnation(n.facts.GetIncarnation()) == entry.Incarnation
		switch {
		case status.Incarnation == entry.Incarnation:
			entry.MemoryIncarnation = status.MemoryIncarnation
		case status.Incarnation != "" && answers && !n.facts.GetMemoryNode().GetMemoryFresh():
			entry.MemoryIncarnation = memoryOf(status.Incarnation, status.MemoryIncarnation)
		}
	}
}

// accepted says whether a person accepted what this very incarnation began without, or gave up what the whole pool held.
func (d *decision) accepted(n *node, incarnation string) bool {
	return d.epochs.givenUp > 0 || n.object != nil && n.object.Annotations[v1alpha1.AnnotationAcceptDataLoss] == incarnation
}

func (d *decision) unusable(n *node, err error) {
	d.degraded = append(d.degraded, finding{v1alpha1.ReasonGeometryMismatch, fmt.Sprintf("memory node %s cannot be used: %v: look into its pod's log", n.name, err)})
}

// conflicting names a memory node that holds another map under the current epoch.
func (d *decision) conflicting(current *v1alpha1.ShardMapSpec) string {
	message, err := shardmap.ToMessage(current)
	for _, n := range d.nodes {
		if held := n.facts.GetMemoryNode().GetMap(); held.GetEpoch() == uint64(current.Epoch) && (err != nil || !proto.Equal(message, held)) {
			return n.name
		}
	}
	return ""
}

// named says whether any map names this incarnation of a memory node: a map that is an object, or the map that the incarnation itself holds.
func (d *decision) named(n *node, life string) bool {
	for _, entry := range n.facts.GetMemoryNode().GetMap().GetNodes() {
		if entry.GetIncarnation() == n.facts.GetIncarnation() {
			return true
		}
	}
	return slices.ContainsFunc(d.ShardMaps, func(object *v1alpha1.ShardMap) bool {
		return slices.ContainsFunc(object.Spec.Nodes, func(entry v1alpha1.ShardMapNode) bool { return entry.Incarnation == life })
	})
}

// holdsCurrent says whether a memory node's facts date from after the pool's map was made: it holds this very map. If the map names another incarnation, these
// facts are the later ones, because the operator heard the other incarnation before it made the map.
func (d *decision) holdsCurrent(n *node) bool {
	held := n.facts.GetMemoryNode().GetMap()
	if held.GetEpoch() != uint64(d.epochs.current.Epoch) {
		return false
	}
	message, err := shardmap.ToMessage(d.epochs.current)
	return err == nil && proto.Equal(message, held)
}

// publications are the maps to be sent: one to each memory node that can be reached and holds an older map.
func (d *decision) publications() {
	target := d.epochs.effective()
	if target == nil {
		return
	}
	for _, n := range d.nodes {
		// A memory node that has left the map receives the map without it. One that is to join receives the first map that has it, and no earlier one.
		if n.stays() && !inMap(target, n.name) && virgin(n) {
			continue
		}
		if n.facts != nil && n.facts.GetEpoch() < uint64(target.Epoch) {
			d.Publish = append(d.Publish, Publication{Node: n.name, Pod: n.pod.UID, Map: target, PoolSecret: d.poolSecret, MapKey: d.mapKey})
		}
	}
}

func (d *decision) whyNext() string {
	if d.epochs.current == nil {
		return fmt.Sprintf("%d memory nodes serve a table each", len(d.epochs.next.Nodes))
	}
	before := map[string]v1alpha1.ShardMapNode{}
	for _, entry := range d.epochs.current.Nodes {
		before[entry.Name] = entry
	}
	var changes []string
	for _, entry := range d.epochs.next.Nodes {
		old := before[entry.Name]
		switch {
		case old.Name == "":
			changes = append(changes, fmt.Sprintf("%s comes into the pool as incarnation %s", entry.Name, entry.Incarnation))
		case old.Incarnation != entry.Incarnation:
			with := ""
			if memoryOf(old.Incarnation, old.MemoryIncarnation) == entry.MemoryIncarnation {
				with = " with its memory"
			}
			changes = append(changes, fmt.Sprintf("%s is incarnation %s%s, %s", entry.Name, entry.Incarnation, with, strings.ToLower(string(entry.State))))
		case old.State != entry.State:
			changes = append(changes, fmt.Sprintf("%s is %s", entry.Name, strings.ToLower(string(entry.State))))
		}
	}
	changes = append(changes, whatMoves(d.epochs.current, d.epochs.next)...)
	if least := d.epochs.next.LeastTables; least > d.epochs.current.LeastTables {
		changes = append(changes, fmt.Sprintf("tables are split ahead of keys into %d at each memory node", least))
	} else if least < d.epochs.current.LeastTables {
		changes = append(changes, "tables are split as keys come")
	}
	if policy := d.epochs.next.Eviction; policy != d.epochs.current.Eviction {
		if policy == "" {
			policy = v1alpha1.NoEviction
		}
		changes = append(changes, fmt.Sprintf("the eviction policy is %s", policy))
	}
	if len(changes) == 0 {
		return "the same nodes as before"
	}
	return some(changes)
}

func (d *decision) nodeNamed(name string) *node {
	for _, n := range d.nodes {
		if n.name == name {
			return n
		}
	}
	return nil
}

// reachable says whether the operator's knowledge of the memory node's process is current.
func (n *node) reachable() bool { return n.pod != nil && n.agent.State == agent.Connected }

// some lists at most three names and counts the rest.
func some(list []string) string {
	const shown = 3
	if len(list) <= shown {
		return strings.Join(list, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(list[:shown], ", "), len(list)-shown)
}

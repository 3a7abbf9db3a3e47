// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	farpoolv1alpha1 "farpool.dev/farpool/api/gen/farpool/v1alpha1"
	"farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/agent"
	"farpool.dev/farpool/operator/internal/render"
	"farpool.dev/farpool/operator/internal/shardmap"
)

// Memory nodes join a pool's map and leave it, and parts of the hash space move between them (docs/adr/0012). A map says which parts are on their way. Clients
// move the keys. Each memory node that gives parts reports when all keys have left it. Each map is decided from the map before it, from what memory nodes report
// and from what the spec asks for, so any operator can continue:
//
// 1. Memory nodes that the spec asks for, and that answer, join the map. Each has a table and no part.
// 2. The directory gets more parts, if it has too few for equal shares.
// 3. The map asks for tables that are split ahead of keys, if the spec asks for more tables than there are.
// 4. A move begins: parts depart from memory nodes that have too many, or that have to leave, to memory nodes that have too few. No memory node both gives and takes.
// 5. When every memory node that gives has reported the end of the move, the map without departures follows.
// 6. Memory nodes that have to leave, and have no part, leave the map. Then their pods and objects are deleted.
//
// A step that has begun is finished before anything else: the pool turns to another aim from there.

// placePatience is how long the others wait for a memory node whose pod finds no place: as long as it takes to have another Kubernetes node made.
const placePatience = 3 * time.Minute

// nodesInMap is the largest number of memory nodes in a map.
const nodesInMap = 256

// moves is what is decided about resizes.
type moves struct {
	// open is the ResizeOperation of the present aim; nil: there is none yet.
	open *v1alpha1.ResizeOperation
	// aborted is the ResizeOperation of the present aim if a person has aborted it; held is the same one, if it has steps that have not begun.
	aborted, held *v1alpha1.ResizeOperation
	made          []render.Object
	// awaits says what the next step waits for, and why.
	awaits *finding
	// words tell people about a resize that is not complete.
	words string
	// partsLeft is how many parts have yet to move, if known. keysLeft is how many keys, and bytesLeft about how much of the heap, if counted: every memory node
	// has reported its number of keys.
	known     bool
	partsLeft int32
	counted   bool
	keysLeft  int64
	bytesLeft int64
}

// moveOn makes the map that follows the current one, when its time has come.
//
// It does so only while every memory node of the map answers, has the incarnation that the map says, and follows this very map. Then no memory node holds a later
// map, as it might after a restored backup, and no two moves have the same number.
func (d *decision) moveOn(floor int64) {
	m, current := &d.moves, d.epochs.current
	if late := d.late(); len(late) > 0 {
		m.awaits = &finding{v1alpha1.ReasonMemoryNodesPending, "waiting for memory nodes of the pool's map: " + some(late) + after("; ", d.toBeGivenUp())}
		return
	}
	spec := current.DeepCopy()
	if len(current.Departures) > 0 {
		if len(d.unfinished()) > 0 {
			d.goOnWithoutTheLost(spec, floor)
			return
		}
		spec.Departures = nil
		d.event(d.Pool, corev1.EventTypeNormal, v1alpha1.ReasonMoveFinished, "Move", fmt.Sprintf("move %d is finished: the keys of %d parts have moved", spec.Move, len(current.Departures)))
		d.next(spec, floor+1)
		return
	}
	changed := d.leave(spec)
	changed = d.join(spec) || changed
	changed = d.deepen(spec) || changed
	changed = d.splitAhead(spec) || changed
	// Memory nodes that join receive the map before any part moves to them.
	if changed || d.begin(spec) {
		d.next(spec, floor+1)
	}
}

// goOnWithoutTheLost ends departures from memory nodes that have lost what they had to give. It waits for the memory nodes that take keys, because clients have
// closed buckets for the sake of the keys that lie there.
func (d *decision) goOnWithoutTheLost(spec *v1alpha1.ShardMapSpec, floor int64) {
	var takers []string
	for i := range spec.Nodes {
		entry := &spec.Nodes[i]
		if !d.lost(entry) {
			continue
		}
		forgetDepartures(spec, i)
		if slices.ContainsFunc(d.epochs.current.Departures, func(departure v1alpha1.Departure) bool {
			return nodeOf(spec, spec.Directory.Tables[departure.Part]) == entry
		}) {
			takers = append(takers, entry.Name)
		}
	}
	if len(spec.Departures) < len(d.epochs.current.Departures) {
		d.next(spec, floor+1)
	} else if len(takers) > 0 {
		d.moves.awaits = &finding{v1alpha1.ReasonMemoryNodesPending, fmt.Sprintf("memory nodes that take keys have no place to run (%s), and what was begun is finished before anything else: see their conditions, and make room for their pods", some(takers))}
	}
}

// lost says whether what a memory node of the map held is gone, though no later incarnation says so: there is no pod of its name that ever had a place. In a Store
// the memory node counts as lost only when a person has given up this very incarnation. Acceptance of what the incarnation began without does not count.
func (d *decision) lost(entry *v1alpha1.ShardMapNode) bool {
	n := d.nodeNamed(entry.Name)
	return n != nil && d.Unplaced[entry.Name] &&
		(d.Pool.Spec.DataPolicy != v1alpha1.DataPolicyStore || n.object != nil && n.object.Annotations[v1alpha1.AnnotationGiveUp] == entry.Incarnation)
}

// toBeGivenUp says how a person ends the wait for a memory node of a Store that has to leave and has no place to come back to.
func (d *decision) toBeGivenUp() string {
	for i := range d.epochs.current.Nodes {
		if entry := &d.epochs.current.Nodes[i]; d.Unplaced[entry.Name] && !d.wants(entry.Name) && !d.lost(entry) {
			return fmt.Sprintf("memory node %s is to go, and has no place to run: make room for its pod, or, to go on without what it held: kubectl -n %s annotate memorynode %s --overwrite %s=%s",
				entry.Name, d.Pool.Namespace, entry.Name, v1alpha1.AnnotationGiveUp, entry.Incarnation)
		}
	}
	return ""
}

// late are the memory nodes of the map that are not known to follow it. A memory node that is lost holds no map.
func (d *decision) late() []string {
	current := d.epochs.current
	var late []string
	for i := range current.Nodes {
		entry := &current.Nodes[i]
		if d.lost(entry) {
			continue
		}
		n := d.nodeNamed(entry.Name)
		if n == nil || n.facts == nil || shardmap.FormatIncarnation(n.facts.GetIncarnation()) != entry.Incarnation || n.facts.GetEpoch() != uint64(current.Epoch) {
			late = append(late, entry.Name)
		}
	}
	return late
}

// unfinished are the memory nodes that give parts and have not reported that all keys have left. Only this report counts. The client that moved the keys wrote it
// into the memory node's memory, under the leases of the move and after a pass over all that the memory node has, when no departing key could be added there any
// more (docs/adr/0012). It names the number of the move, which no other move has, so an old report is only late. The number of keys that a memory node reports
// would prove less. It includes the keys of parts that stay, and it adds up what clients write of themselves, dead ones included, so that it may never become
// zero.
func (d *decision) unfinished() []string {
	current := d.epochs.current
	var unfinished []string
	for _, entry := range givers(current) {
		if d.lost(entry) {
			continue
		}
		if n := d.nodeNamed(entry.Name); n == nil || shardmap.FormatIncarnation(n.facts.GetIncarnation()) != entry.Incarnation ||
			n.facts.GetMemoryNode().GetMoveFinished() < uint64(current.Move) {
			unfinished = append(unfinished, entry.Name)
		}
	}
	return unfinished
}

// givers are the memory nodes from which parts depart.
func givers(spec *v1alpha1.ShardMapSpec) []*v1alpha1.ShardMapNode {
	gives := map[*v1alpha1.ShardMapNode]bool{}
	for _, departure := range spec.Departures {
		gives[nodeOf(spec, departure.From)] = true
	}
	var giving []*v1alpha1.ShardMapNode
	for i := range spec.Nodes {
		if gives[&spec.Nodes[i]] {
			giving = append(giving, &spec.Nodes[i])
		}
	}
	return giving
}

// nodeOf is the memory node that has a table.
func nodeOf(spec *v1alpha1.ShardMapSpec, table int32) *v1alpha1.ShardMapNode {
	at, found := slices.BinarySearchFunc(spec.Tables, table, func(t v1alpha1.ShardMapTable, id int32) int { return cmp.Compare(t.ID, id) })
	if !found {
		return nil
	}
	return &spec.Nodes[spec.Tables[at].Node]
}

func inMap(spec *v1alpha1.ShardMapSpec, name string) bool {
	return spec != nil && slices.ContainsFunc(spec.Nodes, func(entry v1alpha1.ShardMapNode) bool { return entry.Name == name })
}

// inMap says whether a memory node is in the pool's map, or in the one that is about to be made.
func (d *decision) inMap(name string) bool {
	return inMap(d.epochs.current, name) || inMap(d.epochs.next, name)
}

func (d *decision) wants(name string) bool {
	n := d.nodeNamed(name)
	return n != nil && n.stays()
}

// stays says whether a memory node is to be in the map as it is.
func (n *node) stays() bool { return n.wanted && !n.evacuated }

// leave removes from the map the memory nodes that have to leave and have no part of the hash space. No part departs when it is called.
func (d *decision) leave(spec *v1alpha1.ShardMapSpec) bool {
	has := map[string]bool{}
	for _, table := range spec.Directory.Tables {
		has[nodeOf(spec, table).Name] = true
	}
	before, stay := spec.Nodes, map[int32]int32{}
	spec.Nodes = nil
	for i, entry := range before {
		if has[entry.Name] || d.wants(entry.Name) {
			stay[int32(i)] = int32(len(spec.Nodes))
			spec.Nodes = append(spec.Nodes, entry)
			continue
		}
		note := fmt.Sprintf("nothing lies on memory node %s any more: it leaves the pool's map, and is removed", entry.Name)
		d.event(d.Pool, corev1.EventTypeNormal, v1alpha1.ReasonNodeDrained, "Drain", note)
		if n := d.nodeNamed(entry.Name); n != nil && n.object != nil {
			d.event(n.object, corev1.EventTypeNormal, v1alpha1.ReasonNodeDrained, "Drain", note)
		}
	}
	spec.Tables = slices.DeleteFunc(spec.Tables, func(table v1alpha1.ShardMapTable) bool {
		_, stays := stay[table.Node]
		return !stays
	})
	for i := range spec.Tables {
		spec.Tables[i].Node = stay[spec.Tables[i].Node]
	}
	return len(spec.Nodes) < len(before)
}

// join adds to the map the memory nodes that the spec asks for and that answer, each with a table that has no part yet.
func (d *decision) join(spec *v1alpha1.ShardMapSpec) bool {
	joined := false
	for _, n := range d.nodes {
		if !n.stays() || inMap(spec, n.name) || !virgin(n) || len(spec.Nodes) >= nodesInMap || d.drained(n) {
			continue
		}
		// A MemoryNode that is being deleted may have been made for an earlier aim.
		if n.object == nil || !n.object.DeletionTimestamp.IsZero() || !n.pod.DeletionTimestamp.IsZero() {
			continue
		}
		entry, err := d.entry(n, false)
		if err != nil {
			d.unusable(n, err)
			continue
		}
		add(spec, entry)
		joined = true
	}
	return joined
}

// virgin says whether a memory node answers and never had a map. No other memory node joins a map again: clients may remember which table this incarnation had,
// and its memory may still hold keys.
func virgin(n *node) bool {
	return n.facts != nil && n.facts.GetEpoch() == 0 && n.facts.GetMemoryNode().GetMemoryFresh()
}

// add adds a memory node, and a table with a number that no other table has.
func add(spec *v1alpha1.ShardMapSpec, entry *v1alpha1.ShardMapNode) {
	at, _ := slices.BinarySearchFunc(spec.Nodes, entry.Name, func(n v1alpha1.ShardMapNode, name string) int { return cmp.Compare(n.Name, name) })
	spec.Nodes = slices.Insert(spec.Nodes, at, *entry)
	id := int32(0)
	for i := range spec.Tables {
		if spec.Tables[i].ID == id {
			id++
		}
		if spec.Tables[i].Node >= int32(at) {
			spec.Tables[i].Node++
		}
	}
	// Tables are sorted, and all smaller numbers are taken.
	spec.Tables = slices.Insert(spec.Tables, int(id), v1alpha1.ShardMapTable{ID: id, Node: int32(at)})
}

// staying are the tables of memory nodes that the spec asks for.
func (d *decision) staying(spec *v1alpha1.ShardMapSpec) []int32 {
	var staying []int32
	for _, table := range spec.Tables {
		if d.wants(spec.Nodes[table.Node].Name) {
			staying = append(staying, table.ID)
		}
	}
	return staying
}

// missing are the memory nodes that the spec asks for, that the map does not have, and for which it has room.
func (d *decision) missing(spec *v1alpha1.ShardMapSpec) []string {
	var missing []string
	for _, n := range d.nodes {
		if n.stays() && !inMap(spec, n.name) && len(spec.Nodes) < nodesInMap {
			missing = append(missing, n.name)
		}
	}
	return missing
}

// awaited are the missing memory nodes that have a place or may still find one. Nothing waits for the others: they get their share when they come.
func (d *decision) awaited(spec *v1alpha1.ShardMapSpec) []string {
	return slices.DeleteFunc(d.missing(spec), func(name string) bool { return d.placeless(d.nodeNamed(name)) })
}

// placeless says whether a pod has found no Kubernetes node for so long that nothing waits for it any more.
func (d *decision) placeless(n *node) bool {
	since := unschedulableSince(n.pod)
	if since.IsZero() {
		return false
	}
	until := since.Add(placePatience)
	if d.Now.Before(until) {
		d.due(until)
		return false
	}
	return true
}

// unsettled says whether the map is not yet what the spec asks for: other nodes, or shares that are not even.
func (d *decision) unsettled(spec *v1alpha1.ShardMapSpec) bool {
	for _, n := range d.nodes {
		if n.stays() != inMap(spec, n.name) {
			return true
		}
	}
	return d.moves.held == nil && (!shared(spec.Directory, d.staying(spec)) || d.unsplit(spec))
}

// tablesWanted is the number of tables that each memory node has to have in use, at least.
func (d *decision) tablesWanted() int32 {
	return d.protocol().LeastTables(&d.Pool.Spec.Index)
}

// tablesInUse is the smallest number of tables in use of any memory node that stays and has reported it; no more than are wanted.
func (d *decision) tablesInUse(spec *v1alpha1.ShardMapSpec) int32 {
	fewest := d.tablesWanted()
	for i := range spec.Nodes {
		entry := &spec.Nodes[i]
		if entry.State != v1alpha1.NodeServing || !d.wants(entry.Name) || d.lost(entry) {
			continue
		}
		if tables := d.nodeNamed(entry.Name).factsOrLast().GetEvenTables(); tables > 0 {
			fewest = min(fewest, int32(min(tables, shardmap.MostTables)))
		}
	}
	return fewest
}

// unsplit says whether a memory node has fewer tables in use than the spec asks for.
func (d *decision) unsplit(spec *v1alpha1.ShardMapSpec) bool {
	return d.tablesInUse(spec) < d.tablesWanted()
}

// splitAhead asks clients to split tables until there are as many as the spec asks for. After an abort they begin no more splits.
func (d *decision) splitAhead(spec *v1alpha1.ShardMapSpec) bool {
	least := spec.LeastTables
	switch {
	case d.moves.held != nil:
		least = 0
	case d.approved() && d.unsplit(spec):
		least = d.tablesWanted()
	}
	if least == spec.LeastTables {
		return false
	}
	if spec.LeastTables = least; least > 0 {
		d.event(d.Pool, corev1.EventTypeNormal, v1alpha1.ReasonSplitting, "Split", fmt.Sprintf("clients split the tables of each memory node ahead of keys, until %d are in use", least))
	}
	return true
}

// shared says whether these tables have all parts, as evenly as possible, and whether the directory has enough parts for even shares.
func shared(directory v1alpha1.Directory, tables []int32) bool {
	return even(directory.Tables, tables) && shardmap.DepthFor(len(tables), directory.Depth) == directory.Depth
}

// even says whether the tables' shares are as even as possible.
func even(owners, tables []int32) bool {
	share := map[int32]int{}
	for _, table := range tables {
		share[table] = 0
	}
	for _, table := range owners {
		if _, stays := share[table]; !stays {
			return false
		}
		share[table]++
	}
	least, most := len(owners), 0
	for _, parts := range share {
		least, most = min(least, parts), max(most, parts)
	}
	return most-least <= 1
}

// deepen gives the directory more parts, once it is known how many memory nodes share it.
func (d *decision) deepen(spec *v1alpha1.ShardMapSpec) bool {
	if !d.unsettled(spec) || !d.approved() || len(d.awaited(spec)) > 0 && !d.evacuates(spec) {
		return false
	}
	staying := len(d.staying(spec))
	if staying == 0 {
		return false // no memory node that the map has is to stay, and no other has come
	}
	depth := shardmap.DepthFor(staying, spec.Directory.Depth)
	if depth == spec.Directory.Depth {
		return false
	}
	spec.Directory = shardmap.Deepen(spec.Directory, depth)
	return true
}

// approved says whether keys may be moved for the present aim.
func (d *decision) approved() bool {
	return d.moves.open != nil && d.moves.held == nil && d.moves.open.Spec.Approval != v1alpha1.ApprovalRequired
}

// begin begins a move. All departures are one move, because each move makes clients read the indexes of both ends anew.
func (d *decision) begin(spec *v1alpha1.ShardMapSpec) bool {
	m := &d.moves
	if !d.unsettled(spec) {
		return false
	}
	if m.open == nil || m.held != nil {
		// The operation is about to be made, and comes first; or it was aborted.
		return false
	}
	if !d.approved() {
		m.awaits = &finding{v1alpha1.ReasonApprovalRequired, fmt.Sprintf("waiting for a person's approval, as spec.resize.approval asks: kubectl -n %s patch resizeoperation %s --type=merge -p '{\"spec\":{\"approval\":\"Approved\"}}'",
			d.Pool.Namespace, m.open.Name)}
		return false
	}
	// An evacuation does not wait for memory nodes that join: these may in turn wait for the room that it makes.
	if awaited := d.awaited(spec); len(awaited) > 0 && !d.evacuates(spec) {
		m.awaits = &finding{v1alpha1.ReasonMemoryNodesPending, "waiting for memory nodes: " + some(awaited)}
		return false
	}
	owners := spec.Directory.Tables
	desired := balance(owners, d.staying(spec))
	// No part moves from or to a memory node whose memory is lost while a person has yet to decide, or that has no place. No part moves to a memory node whose pod
	// is about to leave.
	var stopped, unplaced, leaving []string
	stops := func(table int32) bool {
		entry, which := nodeOf(spec, table), &stopped
		if d.Unplaced[entry.Name] {
			which = &unplaced
		} else if entry.State == v1alpha1.NodeServing {
			return false
		}
		if !slices.Contains(*which, entry.Name) {
			*which = append(*which, entry.Name)
		}
		return true
	}
	var departures []v1alpha1.Departure
	anew := 0
	for part := range owners {
		if desired[part] == owners[part] {
			continue
		}
		// Where a memory node that has to leave lost its keys, their parts begin empty at the memory node to which they would have moved.
		giver := nodeOf(spec, owners[part])
		abandoned := d.lost(giver) && !d.wants(giver.Name)
		if gives, takes := !abandoned && stops(owners[part]), stops(desired[part]); gives || takes {
			desired[part] = owners[part]
			continue
		}
		if taker := d.nodeNamed(nodeOf(spec, desired[part]).Name); !taker.pod.DeletionTimestamp.IsZero() {
			if desired[part] = owners[part]; !slices.Contains(leaving, taker.name) {
				leaving = append(leaving, taker.name)
			}
			continue
		}
		if abandoned {
			anew++
			continue
		}
		departures = append(departures, v1alpha1.Departure{Part: int32(part), From: owners[part]})
	}
	if len(departures)+anew == 0 {
		if len(unplaced) > 0 {
			m.awaits = &finding{v1alpha1.ReasonMemoryNodesPending, fmt.Sprintf("memory nodes that have no place to run neither give keys nor take any (%s): see their conditions", some(unplaced))}
		}
		if len(leaving) > 0 {
			m.awaits = &finding{v1alpha1.ReasonMemoryNodesPending, fmt.Sprintf("memory nodes whose pods are being deleted take no keys (%s): others are made in their place", some(leaving))}
		}
		if missing := d.missing(spec); len(missing) > 0 {
			m.awaits = &finding{v1alpha1.ReasonNodeUnschedulable, fmt.Sprintf("no Kubernetes node can take the pods of memory nodes that are to come (%s): the others share the keys without them, and they get theirs when there is room; see their conditions, or ask for fewer", some(missing))}
		}
		if len(stopped) > 0 {
			m.awaits = &finding{v1alpha1.ReasonTablesStopped, fmt.Sprintf("memory nodes whose tables are stopped neither give keys nor take any (%s): accept the loss of what they held, as their conditions say, or set their number of replicas back", some(stopped))}
		}
		return false
	}
	if spec.Move >= v1alpha1.MostMoves {
		exhausted := finding{v1alpha1.ReasonMovesExhausted, fmt.Sprintf("the pool's keys have moved between memory nodes %d times, which is as far as memory nodes count: set replicas back, and load the data into another pool", spec.Move)}
		d.degraded = append(d.degraded, exhausted)
		m.awaits = &exhausted
		return false
	}
	spec.Directory.Tables = desired
	spec.Move++
	spec.Departures = departures
	var what []string
	if len(departures) > 0 {
		from, to := map[string]bool{}, map[string]bool{}
		for _, departure := range departures {
			from[nodeOf(spec, departure.From).Name] = true
			to[nodeOf(spec, desired[departure.Part]).Name] = true
		}
		what = append(what, fmt.Sprintf("the keys of %d of %d parts move from %s to %s", len(departures), len(owners), some(sorted(from)), some(sorted(to))))
	}
	if anew > 0 {
		what = append(what, fmt.Sprintf("%d of %d parts, whose memory nodes are gone with what they held, begin empty on others", anew, len(owners)))
	}
	d.event(d.Pool, corev1.EventTypeNormal, v1alpha1.ReasonMoveBegun, "Move", fmt.Sprintf("move %d: %s", spec.Move, joinWords(what...)))
	return true
}

// balance gives each part to one of the tables that stay, so that shares differ by at most one part and as few parts as possible change their table: no part
// leaves a table that has no more than its share, and none comes to a table that has its share already.
func balance(owners, staying []int32) []int32 {
	desired := slices.Clone(owners)
	if len(staying) == 0 {
		return desired
	}
	has := map[int32]int{}
	for _, table := range owners {
		has[table]++
	}
	// Where shares cannot be equal, the tables that have most keep one part more.
	order := slices.Clone(staying)
	slices.SortFunc(order, func(a, b int32) int { return cmp.Or(cmp.Compare(has[b], has[a]), cmp.Compare(a, b)) })
	share := map[int32]int{}
	for i, table := range order {
		share[table] = len(owners) / len(order)
		if i < len(owners)%len(order) {
			share[table]++
		}
	}
	kept := map[int32]int{}
	var free []int
	for part, table := range owners {
		if kept[table] < share[table] {
			kept[table]++
		} else {
			free = append(free, part)
		}
	}
	for _, table := range order {
		for ; kept[table] < share[table]; kept[table]++ {
			desired[free[0]], free = table, free[1:]
		}
	}
	return desired
}

// forgetDepartures ends the departures from a memory node that has lost what it held: no more keys will leave it.
func forgetDepartures(spec *v1alpha1.ShardMapSpec, at int) {
	spec.Departures = slices.DeleteFunc(spec.Departures, func(departure v1alpha1.Departure) bool { return nodeOf(spec, departure.From) == &spec.Nodes[at] })
	if len(spec.Departures) == 0 {
		spec.Departures = nil
	}
}

// startsEmpty says whether a memory node's tables serve without what it held under the map before.
func startsEmpty(before, now *v1alpha1.ShardMapNode) bool {
	return now.State == v1alpha1.NodeServing &&
		(before.State == v1alpha1.NodeStopped || memoryOf(before.Incarnation, before.MemoryIncarnation) != memoryOf(now.Incarnation, now.MemoryIncarnation))
}

// furtherMoved is the map of a memory node that knows of a later move than the pool's map; nil: there is none. A published map is never taken back, because some
// keys may have moved.
func (d *decision) furtherMoved() *farpoolv1alpha1.ShardMap {
	var further *farpoolv1alpha1.ShardMap
	for _, n := range d.nodes {
		held := n.facts.GetMemoryNode().GetMap()
		if held.GetPoolUid() == string(d.Pool.UID) && held.GetMove() > max(uint64(d.epochs.current.Move), further.GetMove()) {
			further = held
		}
	}
	return further
}

// graft copies the incarnations of one map into another map, which has moved on further. A memory node that only the first map has, has left the second.
func graft(further, lives *v1alpha1.ShardMapSpec) *v1alpha1.ShardMapSpec {
	spec := further.DeepCopy()
	for i := range lives.Nodes {
		life := &lives.Nodes[i]
		at := slices.IndexFunc(spec.Nodes, func(entry v1alpha1.ShardMapNode) bool { return entry.Name == life.Name })
		if at < 0 {
			continue
		}
		before := spec.Nodes[at]
		spec.Nodes[at] = *life.DeepCopy()
		if startsEmpty(&before, life) {
			forgetDepartures(spec, at)
		}
	}
	return spec
}

// drained says whether a memory node can be deleted: the pool's map, which all its memory nodes follow, does not have it, and it follows this map or never had
// one. If the spec asks for it again by then, another one is made. That it has no keys follows from the map, because no part leaves a memory node's entry before
// its move is finished: see unfinished. A status that says Drained keeps saying so, unless a map has had the memory node since. A cache that lags behind a
// deletion has at least seen what the status said before it.
func (d *decision) drained(n *node) bool {
	if n.object == nil || d.inMap(n.name) {
		return false
	}
	if saidDrained(n) && !d.listedSince(n) {
		// A restored backup may bring back a status from another past, so a memory node that runs has to confirm it.
		return !runs(n.pod) || n.agent.State == agent.Connected
	}
	if n.stays() && (n.facts == nil || virgin(n)) || d.epochs.next != nil || d.Status.Unsettled {
		return false
	}
	if d.epochs.current == nil {
		return !d.everHadMap()
	}
	if len(d.late()) > 0 {
		return false
	}
	if n.agent.State == agent.Connected {
		return n.agent.Facts.GetEpoch() == uint64(d.epochs.current.Epoch) || n.agent.Facts.GetEpoch() == 0 && n.agent.Facts.GetMemoryNode().GetMemoryFresh()
	}
	return !runs(n.pod)
}

// listedSince says whether a memory node has come into a map since its status was written: a map has it that is not older than the map of the status. Then the
// status is that of an operator that did not know this map, and says nothing of what lies on the memory node now.
func (d *decision) listedSince(n *node) bool {
	return slices.ContainsFunc(d.ShardMaps, func(object *v1alpha1.ShardMap) bool {
		return object.Spec.Epoch >= n.object.Status.Epoch &&
			slices.ContainsFunc(object.Spec.Nodes, func(entry v1alpha1.ShardMapNode) bool { return entry.Name == n.name })
	})
}

// runs says whether a pod has a process. A pod whose process ends again and again has none in between.
func runs(pod *corev1.Pod) bool {
	return pod != nil && pod.Status.Phase == corev1.PodRunning && !slices.ContainsFunc(pod.Status.ContainerStatuses, func(container corev1.ContainerStatus) bool { return container.State.Running == nil })
}

func saidDrained(n *node) bool {
	ready := meta.FindStatusCondition(n.object.Status.Conditions, v1alpha1.ConditionReady)
	return ready != nil && ready.Reason == v1alpha1.ReasonDrained
}

// removable says whether a memory node's pod and object are to be deleted.
func (d *decision) removable(n *node) bool { return d.drained(n) && saidDrained(n) }

// going are the memory nodes that exist and have to go: the spec does not ask for them, or does not want them where they are.
func (d *decision) going() []string {
	var going []string
	for _, n := range d.nodes {
		if !n.stays() {
			going = append(going, n.name)
		}
	}
	return going
}

// survey counts what is left to be moved, by the map that the pool is to have.
func (d *decision) survey() {
	m, spec := &d.moves, d.epochs.effective()
	owners, desired := spec.Directory.Tables, spec.Directory.Tables
	if m.held == nil {
		staying := d.staying(spec)
		if len(d.awaited(spec)) > 0 && !d.evacuates(spec) || len(staying) == 0 || shardmap.DepthFor(len(staying), spec.Directory.Depth) != spec.Directory.Depth {
			return
		}
		desired = balance(owners, staying)
	}
	m.known = true
	// stays counts the parts that a table keeps; leave counts the parts that it is giving away, or is about to give away.
	stays, leave := map[int32]int{}, map[int32]int{}
	for part, table := range owners {
		if desired[part] == table {
			stays[table]++
		} else {
			leave[table]++
		}
	}
	for _, departure := range spec.Departures {
		facts := d.nodeNamed(nodeOf(spec, departure.From).Name).factsOrLast()
		if facts.GetMoveFinished() < uint64(spec.Move) {
			leave[departure.From]++
		}
	}
	for _, parts := range leave {
		m.partsLeft += int32(parts)
	}
	var total uint64
	for _, entry := range spec.Nodes {
		facts := d.nodeNamed(entry.Name).factsOrLast()
		if facts == nil && !d.Unplaced[entry.Name] {
			return
		}
		total += facts.GetKeys()
	}
	m.counted = true
	for table := range leave {
		facts := d.nodeNamed(nodeOf(spec, table).Name).factsOrLast()
		keys, keeps := facts.GetKeys(), total*uint64(stays[table])/uint64(len(owners))
		if keys > keeps {
			m.keysLeft += int64(keys - keeps)
			m.bytesLeft += int64(float64(facts.GetHeapBytesUsed()) * float64(keys-keeps) / float64(keys))
		}
	}
}

// factsOrLast is what the memory node reports, or what it last reported.
func (n *node) factsOrLast() *farpoolv1alpha1.MemoryNodeFacts {
	if n == nil {
		return nil
	}
	return n.agent.Facts.GetMemoryNode()
}

func sorted(names map[string]bool) []string {
	var list []string
	for name := range names {
		list = append(list, name)
	}
	slices.Sort(list)
	return list
}

// whatMoves tells people what moves between two maps.
func whatMoves(before, now *v1alpha1.ShardMapSpec) []string {
	var changes, gone []string
	for _, entry := range before.Nodes {
		if !inMap(now, entry.Name) {
			gone = append(gone, entry.Name)
		}
	}
	if len(gone) > 0 {
		changes = append(changes, some(gone)+" left it, as nothing lies there any more")
	}
	switch {
	case now.Move > before.Move:
		changes = append(changes, fmt.Sprintf("move %d of %d parts begins", now.Move, len(now.Departures)))
	case len(now.Departures) < len(before.Departures):
		what := "is finished"
		if len(now.Departures) > 0 {
			what = "goes on without what is lost"
		}
		changes = append(changes, fmt.Sprintf("move %d %s", now.Move, what))
	}
	if now.Directory.Depth != before.Directory.Depth {
		changes = append(changes, fmt.Sprintf("the hash space has %d parts", len(now.Directory.Tables)))
	}
	return changes
}

// joinWords joins parts of a sentence and leaves out empty ones.
func joinWords(words ...string) string {
	return strings.Join(slices.DeleteFunc(words, func(word string) bool { return word == "" }), "; ")
}

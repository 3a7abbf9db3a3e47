// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"farpool.dev/farpool/api/v1alpha1"
)

// A person may add a memory pool to the spec, and take one away. The memory nodes of one that is taken away are drained like those beyond a memory pool's
// replicas. Until the last of them is gone, the planner works with a spec that still has the memory pool, without replicas. The MemoryNodePool has the entry, so
// that a pod can still be made as it was: a memory node that takes keys in a move under way has to come back.

// mostEntries is how many memory pools a ResizeOperation lists.
const mostEntries = 12

// limit is why a memory pool gets another number of memory nodes than it asks for.
type limit struct{ reason, message string }

// retire adds the memory pools to the spec that it does not have any more, as long as their MemoryNodePool or a memory node of theirs is there. A memory pool that has
// come back in another shape is drained as it was, before memory nodes are made as it is now: the names of the two are the same.
func (d *decision) retire() {
	d.retired = map[string]bool{}
	pools := &d.Pool.Spec.Memory.Pools
	members := d.members()
	for _, name := range slices.Sorted(maps.Keys(d.MemoryPools)) {
		kept := &d.MemoryPools[name].Spec
		at := slices.IndexFunc(*pools, func(entry v1alpha1.MemoryPool) bool { return entry.Name == kept.MemoryPool })
		switch {
		case kept.Entry == nil: // an earlier operator has made it
		case at < 0:
			*pools = append(*pools, emptied(*kept.Entry))
			d.retired[kept.MemoryPool] = true
		case !sameShape(&(*pools)[at], kept.Entry):
			(*pools)[at] = emptied(*kept.Entry)
			d.retired[kept.MemoryPool] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(members)) {
		if !slices.ContainsFunc(*pools, func(entry v1alpha1.MemoryPool) bool { return entry.Name == name }) {
			*pools = append(*pools, v1alpha1.MemoryPool{Name: name, Lend: d.lends(members[name][0])})
			d.retired[name] = true
		}
	}
}

// emptied is an entry that asks for no memory nodes, and does not grow.
func emptied(entry v1alpha1.MemoryPool) v1alpha1.MemoryPool {
	entry.Replicas, entry.Capacity = 0, nil
	return entry
}

// sameShape says whether memory nodes of one entry can be those of the other: what is fixed while an entry is there is the same.
func sameShape(a, b *v1alpha1.MemoryPool) bool {
	return a.Lend.Cmp(b.Lend) == 0 && a.HugePages == b.HugePages && a.NUMAAlignment == b.NUMAAlignment
}

// knownNodes are the names, sorted, of memory nodes that have an object, a pod, or an entry in the pool's map.
func (d *decision) knownNodes() []string {
	names := slices.Concat(slices.Collect(maps.Keys(d.Snapshot.Nodes)), slices.Collect(maps.Keys(d.NodePods)))
	if d.epochs.current != nil {
		for _, entry := range d.epochs.current.Nodes {
			names = append(names, entry.Name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// members are the memory nodes that there are, by the name of their memory pool.
func (d *decision) members() map[string][]string {
	members := map[string][]string{}
	for _, name := range d.knownNodes() {
		if entry, _, named := d.nameOf(name); named {
			members[entry] = append(members[entry], name)
		}
	}
	return members
}

// nameOf splits the name of a memory node into that of its memory pool and its ordinal.
func (d *decision) nameOf(node string) (entry string, ordinal int32, named bool) {
	rest, ours := strings.CutPrefix(node, d.Pool.Name+"-")
	at := strings.LastIndexByte(rest, '-')
	if !ours || at < 1 {
		return "", 0, false
	}
	number, err := strconv.ParseUint(rest[at+1:], 10, 8)
	entry, ordinal = rest[:at], int32(number)
	return entry, ordinal, err == nil && v1alpha1.MemoryNodeName(d.Pool.Name, entry, ordinal) == node
}

// lends is what a memory node lends whose memory pool nothing describes any more.
func (d *decision) lends(name string) resource.Quantity {
	if object := d.Snapshot.Nodes[name]; object != nil {
		return object.Spec.Lend
	}
	if d.epochs.current != nil {
		for _, entry := range d.epochs.current.Nodes {
			if entry.Name == name {
				return *resource.NewQuantity(entry.MemoryBytes, resource.BinarySI)
			}
		}
	}
	return d.Pool.Spec.Memory.Pools[0].Lend
}

// keepSome keeps memory nodes where nobody asks for any, because keys have to be somewhere: one of a memory pool of the spec, or else all of one that is to go.
func (d *decision) keepSome() {
	pools := d.Pool.Spec.Memory.Pools
	if slices.ContainsFunc(pools, func(entry v1alpha1.MemoryPool) bool { return entry.Replicas > 0 }) {
		return
	}
	// Memory nodes in the map have the keys.
	rank := func(entry *v1alpha1.MemoryPool) (rank int) {
		if d.retired[entry.Name] {
			rank = 2
		}
		if d.inMapOf(entry) == 0 {
			rank++
		}
		return rank
	}
	least := &pools[0]
	for p := range pools {
		if rank(&pools[p]) < rank(least) {
			least = &pools[p]
		}
	}
	if least.Replicas = d.inMapOf(least); !d.retired[least.Name] {
		least.Replicas = 1
	}
	if least.Replicas == 0 {
		return // there are no keys yet
	}
	d.limit(least.Name, v1alpha1.ReasonLastMemoryPool, fmt.Sprintf("memory pool %s keeps %d memory nodes, though it is to have none: no other memory pool has any that could take the keys. Give another one replicas, or add one to spec.memory.pools", least.Name, least.Replicas))
}

// limit records why a memory pool gets another number of memory nodes than it asks for.
func (d *decision) limit(entry, reason, message string) {
	d.limits[entry] = limit{reason, message}
	d.degraded = append(d.degraded, finding{reason, message})
}

// drainedCondition says whether a memory pool without replicas still has memory nodes, and what keeps these.
func (d *decision) drainedCondition(s *scale) metav1.Condition {
	const kind = v1alpha1.ConditionDrained
	var left []string
	for _, n := range d.nodes {
		if n.pool.Name == s.entry {
			left = append(left, n.name)
		}
	}
	if len(left) == 0 {
		return condition(kind, metav1.ConditionTrue, v1alpha1.ReasonDrained, "the memory pool has no memory nodes")
	}
	held, awaits := "", ""
	if d.moves.held != nil {
		held = d.howToGoOn()
	}
	if d.moves.awaits != nil {
		awaits = d.moves.awaits.message
	}
	return condition(kind, metav1.ConditionFalse, v1alpha1.ReasonDraining, "memory nodes have yet to leave (%s): %s", some(left),
		cmp.Or(d.limits[s.entry].message, held, d.moves.words, awaits, "they are being removed"))
}

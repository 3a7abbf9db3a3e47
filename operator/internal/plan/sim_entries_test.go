// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"fmt"
	"math/rand/v2"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"farpool.dev/farpool/api/v1alpha1"
)

// simEntries are the names of memory pools that people add to the spec and take away.
var simEntries = []string{simEntry, "second", "third"}

// editPools has a person add a memory pool, take one away, have another number of memory nodes in it, or lend another amount when it comes back. The API server
// takes no spec in which nobody asks for a memory node; MemoryNodePools may all be scaled to none.
func (r *run) editPools(random *rand.Rand) {
	name := pick(random, simEntries)
	if scale := v1alpha1.ScaleName(simPool, name); random.IntN(6) == 0 && r.live(kindScale)[scale] != nil {
		r.say("MemoryNodePool %s is scaled to 0", scale)
		edit(r.world, kindScale, scale, func(scale *v1alpha1.MemoryNodePool) { scale.Spec.Replicas = 0 })
		return
	}
	if random.IntN(12) == 0 && r.live(kindScale)[v1alpha1.ScaleName(simPool, name)] != nil {
		r.say("a person deletes the MemoryNodePool of memory pool %s", name)
		r.take(kindScale, v1alpha1.ScaleName(simPool, name))
		return
	}
	pools := slices.Clone(r.pool().Spec.Memory.Pools)
	at := slices.IndexFunc(pools, func(entry v1alpha1.MemoryPool) bool { return entry.Name == name })
	replicas := int32(random.IntN(4))
	switch {
	case at < 0:
		pools = slices.Insert(pools, random.IntN(len(pools)+1), v1alpha1.MemoryPool{Name: name, Replicas: replicas, Lend: resource.MustParse([]string{"256Mi", "256Mi", "512Mi"}[random.IntN(3)])})
	case random.IntN(3) > 0:
		pools = slices.Delete(pools, at, at+1)
	default:
		pools[at].Replicas = replicas
	}
	if !slices.ContainsFunc(pools, func(entry v1alpha1.MemoryPool) bool { return entry.Replicas > 0 }) {
		return
	}
	said := ""
	for _, entry := range pools {
		said += fmt.Sprintf(" %s: %d of %s", entry.Name, entry.Replicas, entry.Lend.String())
	}
	r.say("the spec has memory pools%s", said)
	r.poolsEdited = true
	r.respec(func(spec *v1alpha1.KVPoolSpec) { spec.Memory.Pools = pools })
}

// wanted is how many memory nodes the pool should have, at least one; or why there is no such number yet.
func (w *world) wanted() (nodes int, why string) {
	pools := w.pool().Spec.Memory.Pools
	if scales := len(w.live(kindScale)); scales != len(pools) {
		return 0, fmt.Sprintf("%d MemoryNodePools, and the spec has %d memory pools", scales, len(pools))
	}
	for _, entry := range pools {
		scale, there := w.live(kindScale)[v1alpha1.ScaleName(simPool, entry.Name)].(*v1alpha1.MemoryNodePool)
		if !there || scale.Spec.Entry.Lend.Cmp(entry.Lend) != 0 {
			return 0, fmt.Sprintf("memory pool %s has no MemoryNodePool as the spec wants it", entry.Name)
		}
		nodes += int(scale.Spec.Replicas)
	}
	for name, object := range w.live(kindNode) {
		node := object.(*v1alpha1.MemoryNode)
		if at := slices.IndexFunc(pools, func(entry v1alpha1.MemoryPool) bool { return entry.Name == node.Spec.MemoryPool }); at < 0 || node.Spec.Lend.Cmp(pools[at].Lend) != 0 {
			return 0, fmt.Sprintf("memory node %s lends %s, which no memory pool of the spec says", name, node.Spec.Lend.String())
		}
	}
	return max(1, nodes), ""
}

// entryOf is the memory pool of the spec that a pod belongs to; nil: there is none.
func (w *world) entryOf(pod *corev1.Pod) *v1alpha1.MemoryPool {
	pools := w.pool().Spec.Memory.Pools
	at := slices.IndexFunc(pools, func(entry v1alpha1.MemoryPool) bool { return entry.Name == pod.Labels[v1alpha1.LabelMemoryPool] })
	if at < 0 {
		return nil
	}
	return &pools[at]
}

// endWithoutMemory takes it back that MemoryNodePools are scaled to none.
func (r *run) endWithoutMemory() {
	for _, name := range r.names(kindScale) {
		if spec := r.live(kindScale)[name].(*v1alpha1.MemoryNodePool).Spec; spec.Replicas == 0 && spec.Declared > 0 {
			edit(r.world, kindScale, name, func(scale *v1alpha1.MemoryNodePool) { scale.Spec.Replicas = scale.Spec.Declared })
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

// Caches and streams are most of the heap and stay as they are. A heap that may grow by a part of itself would hold more garbage the more pools there are,
// and would be collected all the time while there are few.
const (
	// garbageRoom is how many bytes of garbage the heap may hold.
	garbageRoom = 20 << 20
	// The heap may grow by that many percent at least, so that a very large one is not collected all the time, and at most.
	leastGCPercent, mostGCPercent = 12, 100
)

// gcPercent is by how much a heap with so many bytes in use may grow until garbage is collected.
func gcPercent(live uint64) int {
	if live == 0 {
		return mostGCPercent
	}
	return int(min(max(100*garbageRoom/live, leastGCPercent), mostGCPercent))
}

// boundGarbage sets by how much the heap may grow, now and after each collection.
func boundGarbage() {
	bound := &garbageBound{sample: []metrics.Sample{{Name: "/gc/heap/live:bytes"}}}
	bound.adjust()
}

type garbageBound struct {
	percent int
	sample  []metrics.Sample
}

// adjust has itself called again after the next collection, which finds an object that nothing refers to.
func (b *garbageBound) adjust() {
	metrics.Read(b.sample)
	// Setting it stops the world for a moment: small changes are not worth that.
	if percent := gcPercent(b.sample[0].Value.Uint64()); percent < b.percent || percent > b.percent+b.percent/8 {
		b.percent = percent
		debug.SetGCPercent(percent)
	}
	runtime.AddCleanup(new([4]*byte), func(b *garbageBound) { b.adjust() }, b)
}

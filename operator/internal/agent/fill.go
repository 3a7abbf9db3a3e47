// SPDX-License-Identifier: Apache-2.0

package agent

import (
	farpoolv1alpha1 "farpool.dev/farpool/api/gen/farpool/v1alpha1"
)

// How many of a table's places can be taken before an insert finds none: docs/measurements/rcuckoo-fill.md and race-fill.md.
const (
	rcuckooFill    = 0.95
	raceFill       = 0.88
	raceGroupSlots = 21 // of three buckets
)

// TableFill says how many of the places of a memory node's table are taken, from 0 to 1, where 1 is what a table can be filled to.
func TableFill(node *farpoolv1alpha1.MemoryNodeFacts) float64 {
	places := rcuckooFill * float64(node.GetRcuckoo().GetRows()) * float64(node.GetRcuckoo().GetEntriesPerRow())
	if race := node.GetRace(); race != nil {
		places = raceFill * float64(race.GetGroups()) * raceGroupSlots
	}
	if places == 0 {
		return 0
	}
	return min(float64(node.GetKeys())/places, 1)
}

// HeapFill says how much of a memory node's heap the blocks of its keys take, about, from 0 to 1.
func HeapFill(node *farpoolv1alpha1.MemoryNodeFacts) float64 {
	if node.GetHeapBytes() == 0 {
		return 0
	}
	return min(float64(node.GetHeapBytesUsed())/float64(node.GetHeapBytes()), 1)
}

// Fill is the more of both, and which of them it is: the one that is full first is full for all keys.
func Fill(node *farpoolv1alpha1.MemoryNodeFacts) (fill float64, of string) {
	table, heap := TableFill(node), HeapFill(node)
	if heap > table {
		return heap, "heap"
	}
	return table, "table"
}

// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"

	farpoolv1alpha1 "farpool.dev/farpool/api/gen/farpool/v1alpha1"
)

// How many of a table's places can be taken before an insert finds none: docs/measurements/rcuckoo-fill.md and race-fill.md.
const (
	rcuckooFill   = 0.95
	raceFill      = 0.88
	raceGroupSlot = 21 // slots of a group of three buckets
)

// Fill says how much of the room for new keys and larger values a memory node has given away, from 0 to 1, and of what it has the least: of
// its table's places, as far as they can be taken, or of its heap's segments.
func Fill(node *farpoolv1alpha1.MemoryNodeFacts) (fraction float64, of string) {
	var places float64
	if race := node.GetRace(); race != nil {
		places = raceFill * float64(race.GetGroups()) * raceGroupSlot
	} else {
		places = rcuckooFill * float64(node.GetRcuckoo().GetRows()) * float64(node.GetRcuckoo().GetEntriesPerRow())
	}
	if places > 0 {
		fraction, of = float64(node.GetKeys())/places, fmt.Sprintf("its table holds %d keys", node.GetKeys())
	}
	if heap := float64(node.GetHeapBytes()); heap > 0 {
		if used := float64(node.GetHeapBytesUsed()) / heap; used > fraction {
			fraction, of = used, fmt.Sprintf("%d of the %d MiB of its heap have owners", node.GetHeapBytesUsed()>>20, node.GetHeapBytes()>>20)
		}
	}
	return min(fraction, 1), of
}

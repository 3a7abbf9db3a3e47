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

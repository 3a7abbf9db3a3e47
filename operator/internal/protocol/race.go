// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"fmt"
	"math"

	farpoolv1alpha1 "farpool.dev/farpool/api/gen/farpool/v1alpha1"
	"farpool.dev/farpool/api/v1alpha1"
	apiac "farpool.dev/farpool/api/v1alpha1/applyconfiguration/api/v1alpha1"
)

// race is the index without locks, in which a change takes effect by one compare-and-swap.
type race struct{}

const (
	// How full a table can be before an insert finds no place: docs/measurements/race-fill.md.
	raceFill       = 0.88
	raceGroupSlots = 21 // of three buckets
)

func (race) Name() string { return v1alpha1.ProtocolRACE }

func (race) Flags(index *v1alpha1.IndexSpec) []Flag {
	shape := index.Race()
	flags := []Flag{{"protocol", "race"}, {"table-percent", int64(shape.TablePercent)}}
	if shape.Tables > 1 {
		flags = append(flags, Flag{"tables", int64(shape.Tables)})
	}
	if shape.LeastTables > 1 {
		flags = append(flags, Flag{"initial-tables", int64(shape.LeastTables)})
	}
	return flags
}

func (race) LeastTables(index *v1alpha1.IndexSpec) int32 { return max(1, index.Race().LeastTables) }

func (race) Executes() bool { return false }

func (race) CPURequest(int32) string { return littleCPU }

func (race) SmallerLocks() string { return "" }

func (race) Has(shape Shape) bool { return shape.GetRace() != nil }

// Mismatch finds nothing: the number of groups follows from the memory that the node lends, and pools' shares of it never change.
func (race) Mismatch(*v1alpha1.IndexSpec, *farpoolv1alpha1.MemoryNodeFacts) string { return "" }

func (race) Places(facts *farpoolv1alpha1.MemoryNodeFacts) float64 {
	return raceFill * float64(facts.GetRace().GetGroups()) * raceGroupSlots
}

func (race) Overflows() bool { return false }

func (race) Enter(facts *farpoolv1alpha1.MemoryNodeFacts, entry *farpoolv1alpha1.MemoryNodeEntry) {
	entry.Shape = &farpoolv1alpha1.MemoryNodeEntry_Race{Race: facts.GetRace()}
}

func (race) FromMessage(entry *farpoolv1alpha1.MemoryNodeEntry, node *v1alpha1.ShardMapNode) error {
	groups := entry.GetRace().GetGroups()
	if entry.LockRegion != nil || groups < 2 || groups > math.MaxUint32 {
		return fmt.Errorf("its RACE table has the impossible shape {%v}, {%v}", entry.GetRace(), entry.GetLockRegion())
	}
	node.RACE = &v1alpha1.RACEGeometry{Groups: int64(groups)}
	return nil
}

func (race) ToMessage(node *v1alpha1.ShardMapNode, entry *farpoolv1alpha1.MemoryNodeEntry) {
	if geometry := node.RACE; geometry != nil {
		entry.Shape = &farpoolv1alpha1.MemoryNodeEntry_Race{Race: &farpoolv1alpha1.RaceGeometry{Groups: uint64(geometry.Groups)}}
	}
}

func (race) Apply(node *v1alpha1.ShardMapNode, applied *apiac.ShardMapNodeApplyConfiguration) {
	if geometry := node.RACE; geometry != nil {
		applied.WithRACE(apiac.RACEGeometry().WithGroups(geometry.Groups))
	}
}

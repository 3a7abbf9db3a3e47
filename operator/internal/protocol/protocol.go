// SPDX-License-Identifier: Apache-2.0

// Package protocol holds what the operator knows of each index protocol. A protocol is one file here, and one line of the table below; the
// rest of the operator asks these files, and names no protocol.
package protocol

import (
	"fmt"
	"slices"
	"strings"

	farpoolv1alpha1 "farpool.dev/farpool/api/gen/farpool/v1alpha1"
	"farpool.dev/farpool/api/v1alpha1"
	apiac "farpool.dev/farpool/api/v1alpha1/applyconfiguration/api/v1alpha1"
)

// A Protocol is one index protocol. Its methods are pure, and may be called by several goroutines at once.
type Protocol interface {
	// Name returns the protocol's name, as in spec.index.protocol.
	Name() string
	// Flags returns the flags with which a memory node of the pool starts, in the order in which people read them. Pods of released templates must keep their
	// flags, so a new flag is left out while it has its default.
	Flags(index *v1alpha1.IndexSpec) []Flag
	// LeastTables returns how many tables each memory node should have in use, at least; 1 if tables are not split ahead of their keys.
	LeastTables(index *v1alpha1.IndexSpec) int32
	// Executes says whether memory nodes execute the operations of clients, and need processors for that.
	Executes() bool
	// CPURequest returns what the pod of a memory node with so many workers requests where its memory pool asks for no processors, as a Kubernetes quantity.
	CPURequest(workers int32) string
	// SmallerLocks says, as a clause, how the spec is changed so that locks take less of a NIC's memory; empty if the protocol has no locks.
	SmallerLocks() string

	// Has says whether the message holds the shape of a table of this protocol.
	Has(shape Shape) bool
	// Mismatch says how a memory node's table, which is of this protocol, differs from what the spec asks for; empty if it does not.
	Mismatch(index *v1alpha1.IndexSpec, facts *farpoolv1alpha1.MemoryNodeFacts) string
	// Places returns how many keys the table of a memory node takes before an insert finds no place.
	Places(facts *farpoolv1alpha1.MemoryNodeFacts) float64
	// Overflows says whether a table with no place left takes further keys, each of which needs a second request; false: it refuses them.
	Overflows() bool

	// Enter writes the shape of a memory node's table, as it says it itself, into its entry of a map. Its lock region is there already.
	Enter(facts *farpoolv1alpha1.MemoryNodeFacts, entry *farpoolv1alpha1.MemoryNodeEntry)
	// FromMessage writes the shape that an entry of a map has into the resource's form. It fails on anything that no operator writes, such as a lock region in a
	// protocol without locks.
	FromMessage(entry *farpoolv1alpha1.MemoryNodeEntry, node *v1alpha1.ShardMapNode) error
	// ToMessage is the reverse; it does nothing if the node's table is of another protocol.
	ToMessage(node *v1alpha1.ShardMapNode, entry *farpoolv1alpha1.MemoryNodeEntry)
	// Apply writes the shape into what the operator applies of a ShardMap; it does nothing if the node's table is of another protocol.
	Apply(node *v1alpha1.ShardMapNode, applied *apiac.ShardMapNodeApplyConfiguration)
}

// littleCPU is enough for a memory node that lends memory, holds sessions, and executes no operations.
const littleCPU = "100m"

// A Flag of a memory node's process. Its value is a string or an int64.
type Flag struct {
	Name  string
	Value any
}

// A Shape is a message that says the shape of a table: MemoryNodeFacts or a MemoryNodeEntry.
type Shape interface {
	GetRcuckoo() *farpoolv1alpha1.RCuckooGeometry
	GetRace() *farpoolv1alpha1.RaceGeometry
	GetOutback() *farpoolv1alpha1.OutbackGeometry
}

// all protocols, the default first.
var all = []Protocol{rcuckoo{}, race{}, outback{}}

// Of returns the protocol of a pool. If the operator does not have it, Of returns a protocol that fits no table, and an error that names the protocols there are.
func Of(index *v1alpha1.IndexSpec) (Protocol, error) {
	for _, p := range all {
		if p.Name() == index.Protocol {
			return p, nil
		}
	}
	return none{name: index.Protocol}, fmt.Errorf("spec.index.protocol %s is not in this operator's version: create the pool with %s", index.Protocol, Names(" or "))
}

// OfShape returns the protocol whose shape the message holds. It fails if the message holds no shape that this operator knows.
func OfShape(shape Shape) (Protocol, error) {
	for _, p := range all {
		if p.Has(shape) {
			return p, nil
		}
	}
	return nil, fmt.Errorf("it says no shape of a table that this operator knows (%s): {%v}", Names(", "), shape)
}

// All returns every protocol, the default first.
func All() []Protocol { return slices.Clone(all) }

// Names returns the names of all protocols, joined.
func Names(separator string) string {
	var names []string
	for _, p := range all {
		names = append(names, p.Name())
	}
	return strings.Join(names, separator)
}

// none stands for a protocol that this operator does not have. No table has it, and it knows nothing about any table.
type none struct{ name string }

func (n none) Name() string                                                             { return n.name }
func (none) Flags(*v1alpha1.IndexSpec) []Flag                                           { return nil }
func (none) LeastTables(*v1alpha1.IndexSpec) int32                                      { return 1 }
func (none) Executes() bool                                                             { return false }
func (none) CPURequest(int32) string                                                    { return littleCPU }
func (none) SmallerLocks() string                                                       { return "" }
func (none) Has(Shape) bool                                                             { return false }
func (none) Mismatch(*v1alpha1.IndexSpec, *farpoolv1alpha1.MemoryNodeFacts) string      { return "" }
func (none) Places(*farpoolv1alpha1.MemoryNodeFacts) float64                            { return 0 }
func (none) Overflows() bool                                                            { return false }
func (none) Enter(*farpoolv1alpha1.MemoryNodeFacts, *farpoolv1alpha1.MemoryNodeEntry)   {}
func (none) FromMessage(*farpoolv1alpha1.MemoryNodeEntry, *v1alpha1.ShardMapNode) error { return nil }
func (none) ToMessage(*v1alpha1.ShardMapNode, *farpoolv1alpha1.MemoryNodeEntry)         {}
func (none) Apply(*v1alpha1.ShardMapNode, *apiac.ShardMapNodeApplyConfiguration)        {}

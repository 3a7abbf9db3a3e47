// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"fmt"

	farpoolv1alpha1 "farpool.dev/farpool/api/gen/farpool/v1alpha1"
	"farpool.dev/farpool/api/v1alpha1"
	apiac "farpool.dev/farpool/api/v1alpha1/applyconfiguration/api/v1alpha1"
)

// outback is the index whose memory nodes execute operations. Clients hold a small perfect hash, which says where a key is.
type outback struct{}

const (
	// How full a table can be built without a key that has no slot: docs/measurements/outback-locator.md.
	outbackFill        = 0.95
	outbackBucketSlots = 4
	outbackMostBuckets = 1 << 31
)

func (outback) Name() string { return v1alpha1.ProtocolOutback }

func (outback) Flags(index *v1alpha1.IndexSpec) []Flag {
	return []Flag{{"protocol", "outback"}, {"table-percent", int64(index.OutbackShape().TablePercent)}}
}

// LeastTables is 1: a memory node has one table, which grows by itself.
func (outback) LeastTables(*v1alpha1.IndexSpec) int32 { return 1 }

func (outback) Executes() bool { return true }

// CPURequest is half of a processor for each worker: at 1 to 2 µs for an operation, 250,000 to 500,000 operations a second.
func (outback) CPURequest(workers int32) string { return fmt.Sprintf("%dm", 500*max(1, workers)) }

func (outback) SmallerLocks() string { return "" }

func (outback) Has(shape Shape) bool { return shape.GetOutback() != nil }

// Mismatch finds nothing: the number of buckets follows from the memory that the node lends, and pools' shares of it never change.
func (outback) Mismatch(*v1alpha1.IndexSpec, *farpoolv1alpha1.MemoryNodeFacts) string { return "" }

// Places counts all buckets that the table can grow to.
func (outback) Places(facts *farpoolv1alpha1.MemoryNodeFacts) float64 {
	return outbackFill * float64(facts.GetOutback().GetBuckets()) * outbackBucketSlots
}

func (outback) Overflows() bool { return true }

func (outback) Enter(facts *farpoolv1alpha1.MemoryNodeFacts, entry *farpoolv1alpha1.MemoryNodeEntry) {
	entry.Shape = &farpoolv1alpha1.MemoryNodeEntry_Outback{Outback: facts.GetOutback()}
}

func (outback) FromMessage(entry *farpoolv1alpha1.MemoryNodeEntry, node *v1alpha1.ShardMapNode) error {
	buckets := entry.GetOutback().GetBuckets()
	if entry.LockRegion != nil || buckets < 1 || buckets > outbackMostBuckets {
		return fmt.Errorf("its Outback table has the impossible shape {%v}, {%v}", entry.GetOutback(), entry.GetLockRegion())
	}
	node.Outback = &v1alpha1.OutbackGeometry{Buckets: int64(buckets)}
	return nil
}

func (outback) ToMessage(node *v1alpha1.ShardMapNode, entry *farpoolv1alpha1.MemoryNodeEntry) {
	if geometry := node.Outback; geometry != nil {
		entry.Shape = &farpoolv1alpha1.MemoryNodeEntry_Outback{Outback: &farpoolv1alpha1.OutbackGeometry{Buckets: uint64(geometry.Buckets)}}
	}
}

func (outback) Apply(node *v1alpha1.ShardMapNode, applied *apiac.ShardMapNodeApplyConfiguration) {
	if geometry := node.Outback; geometry != nil {
		applied.WithOutback(apiac.OutbackGeometry().WithBuckets(geometry.Buckets))
	}
}

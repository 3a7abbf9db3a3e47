// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"errors"
	"fmt"
	"math"

	farpoolv1alpha1 "farpool.dev/farpool/api/gen/farpool/v1alpha1"
	"farpool.dev/farpool/api/v1alpha1"
	apiac "farpool.dev/farpool/api/v1alpha1/applyconfiguration/api/v1alpha1"
)

// rcuckoo is the cuckoo index whose locks are bits that clients take by masked compare-and-swap.
type rcuckoo struct{}

// How full a table can be before an insert finds no place: docs/measurements/rcuckoo-fill.md.
const rcuckooFill = 0.95

func (rcuckoo) Name() string { return v1alpha1.ProtocolRCuckoo }

func (rcuckoo) Flags(index *v1alpha1.IndexSpec) []Flag {
	return []Flag{
		{"entry-bytes", int64(index.RCuckoo.EntryBytes)},
		{"entries-per-row", int64(index.RCuckoo.EntriesPerRow)},
		{"rows-per-lock", int64(index.RCuckoo.RowsPerLock)},
		{"table-percent", int64(index.RCuckoo.TablePercent)},
	}
}

func (rcuckoo) LeastTables(*v1alpha1.IndexSpec) int32 { return 1 }

func (rcuckoo) Executes() bool { return false }

func (rcuckoo) CPURequest(int32) string { return littleCPU }

func (rcuckoo) SmallerLocks() string { return "raise spec.index.rcuckoo.rowsPerLock" }

func (rcuckoo) Has(shape Shape) bool { return shape.GetRcuckoo() != nil }

func (rcuckoo) Mismatch(index *v1alpha1.IndexSpec, facts *farpoolv1alpha1.MemoryNodeFacts) string {
	want, has := index.RCuckoo, facts.GetRcuckoo()
	if int32(has.GetEntryBytes()) == want.EntryBytes && int32(has.GetEntriesPerRow()) == want.EntriesPerRow && int32(has.GetRowsPerLock()) == want.RowsPerLock {
		return ""
	}
	return fmt.Sprintf("has tables of %d-byte entries, %d in a row, %d rows to a lock; spec.index wants %d, %d, %d",
		has.GetEntryBytes(), has.GetEntriesPerRow(), has.GetRowsPerLock(), want.EntryBytes, want.EntriesPerRow, want.RowsPerLock)
}

func (rcuckoo) Places(facts *farpoolv1alpha1.MemoryNodeFacts) float64 {
	return rcuckooFill * float64(facts.GetRcuckoo().GetRows()) * float64(facts.GetRcuckoo().GetEntriesPerRow())
}

func (rcuckoo) Overflows() bool { return false }

func (rcuckoo) Enter(facts *farpoolv1alpha1.MemoryNodeFacts, entry *farpoolv1alpha1.MemoryNodeEntry) {
	entry.Shape = &farpoolv1alpha1.MemoryNodeEntry_Rcuckoo{Rcuckoo: facts.GetRcuckoo()}
}

func (rcuckoo) FromMessage(entry *farpoolv1alpha1.MemoryNodeEntry, node *v1alpha1.ShardMapNode) error {
	if entry.LockRegion == nil {
		return errors.New("its table has no lock region")
	}
	geometry := entry.GetRcuckoo()
	if geometry.GetRows() == 0 || geometry.GetRows() > math.MaxInt64 || geometry.GetEntryBytes() > math.MaxInt32 ||
		geometry.GetEntriesPerRow() > math.MaxInt32 || geometry.GetRowsPerLock() > math.MaxInt32 {
		return fmt.Errorf("its table has the impossible shape {%v}", geometry)
	}
	node.RCuckoo = &v1alpha1.RCuckooGeometry{
		EntryBytes:    int32(geometry.GetEntryBytes()),
		EntriesPerRow: int32(geometry.GetEntriesPerRow()),
		RowsPerLock:   int32(geometry.GetRowsPerLock()),
		Rows:          int64(geometry.GetRows()),
	}
	return nil
}

func (rcuckoo) ToMessage(node *v1alpha1.ShardMapNode, entry *farpoolv1alpha1.MemoryNodeEntry) {
	if geometry := node.RCuckoo; geometry != nil {
		entry.Shape = &farpoolv1alpha1.MemoryNodeEntry_Rcuckoo{Rcuckoo: &farpoolv1alpha1.RCuckooGeometry{
			EntryBytes:    uint32(geometry.EntryBytes),
			EntriesPerRow: uint32(geometry.EntriesPerRow),
			RowsPerLock:   uint32(geometry.RowsPerLock),
			Rows:          uint64(geometry.Rows),
		}}
	}
}

func (rcuckoo) Apply(node *v1alpha1.ShardMapNode, applied *apiac.ShardMapNodeApplyConfiguration) {
	if geometry := node.RCuckoo; geometry != nil {
		applied.WithRCuckoo(apiac.RCuckooGeometry().
			WithEntryBytes(geometry.EntryBytes).
			WithEntriesPerRow(geometry.EntriesPerRow).
			WithRowsPerLock(geometry.RowsPerLock).
			WithRows(geometry.Rows))
	}
}

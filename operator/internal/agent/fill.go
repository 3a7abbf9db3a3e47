// SPDX-License-Identifier: Apache-2.0

package agent

import (
	farpoolv1alpha1 "farpool.dev/farpool/api/gen/farpool/v1alpha1"
	"farpool.dev/farpool/operator/internal/protocol"
)

// TableFill says which share of the places of a memory node's table is taken, from 0 to 1, where 1 is as full as a table can get. It is unknown while the memory
// node has not reported how large its table is.
func TableFill(node *farpoolv1alpha1.MemoryNodeFacts) (fill float64, known bool) {
	if node == nil {
		return 0, false
	}
	p, err := protocol.OfShape(node)
	if err != nil || p.Places(node) == 0 {
		return 0, false
	}
	return min(float64(node.GetKeys())/p.Places(node), 1), true
}

// HeapFill says about which share of a memory node's heap the blocks of its keys take, from 0 to 1.
func HeapFill(node *farpoolv1alpha1.MemoryNodeFacts) float64 {
	if node.GetHeapBytes() == 0 {
		return 0
	}
	return min(float64(node.GetHeapBytesUsed())/float64(node.GetHeapBytes()), 1)
}

// What of a memory node may be full.
const (
	OfTable = "table"
	OfHeap  = "heap"
)

// Fill is the larger of both, and which of them it is: a memory node is full as soon as either is.
func Fill(node *farpoolv1alpha1.MemoryNodeFacts) (fill float64, of string, known bool) {
	table, known := TableFill(node)
	if heap := HeapFill(node); heap > table {
		return heap, OfHeap, known
	}
	return table, OfTable, known
}

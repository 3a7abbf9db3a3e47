// SPDX-License-Identifier: Apache-2.0

package agent

import (
	farpoolv1alpha1 "farpool.dev/farpool/api/gen/farpool/v1alpha1"
	"farpool.dev/farpool/operator/internal/protocol"
)

// TableFill says how many of the places of a memory node's table are taken, from 0 to 1, where 1 is what a table can be filled to. It is not known of a node
// that has not said how large its table is.
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

// HeapFill says how much of a memory node's heap the blocks of its keys take, about, from 0 to 1.
func HeapFill(node *farpoolv1alpha1.MemoryNodeFacts) float64 {
	if node.GetHeapBytes() == 0 {
		return 0
	}
	return min(float64(node.GetHeapBytesUsed())/float64(node.GetHeapBytes()), 1)
}

// Fill is the more of both, and which of them it is: the one that is full first is full for all keys.
func Fill(node *farpoolv1alpha1.MemoryNodeFacts) (fill float64, of string, known bool) {
	table, known := TableFill(node)
	if heap := HeapFill(node); heap > table {
		return heap, "heap", known
	}
	return table, "table", known
}

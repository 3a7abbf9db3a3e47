// SPDX-License-Identifier: Apache-2.0

package shardmap

import (
	"os"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	farpoolv1alpha1 "farpool.dev/farpool/api/gen/farpool/v1alpha1"
	"farpool.dev/farpool/api/v1alpha1"
)

// A map of a memory node is refused, or its resource says all of it: what is made of the resource is the same map.
func FuzzMapsOfMemoryNodes(f *testing.F) {
	data, err := os.ReadFile("../../../api/testdata/shard_map.bin")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add(data[:len(data)/2])
	for _, field := range []struct {
		number protowire.Number
		value  uint64
	}{{2, v1alpha1.MostEpochs + 1}, {5, 1 << 31}, {7, 1 << 40}, {8, 3}, {8, v1alpha1.MostMoves + 1}, {10, 4}, {10, MostTables + 1}} {
		f.Add(protowire.AppendVarint(protowire.AppendTag(data[:len(data):len(data)], field.number, protowire.VarintType), field.value))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		message := &farpoolv1alpha1.ShardMap{}
		if (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(data, message) != nil {
			return
		}
		spec, err := FromMessage("cache", message)
		if err != nil {
			return
		}
		again, err := ToMessage(spec)
		if err != nil {
			t.Fatalf("accepted, and no map can be made of it: %v", err)
		}
		message.Signature = nil // a resource has none
		if !proto.Equal(message, again) {
			t.Errorf("was\n%v\nis\n%v", message, again)
		}
	})
}

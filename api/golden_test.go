// SPDX-License-Identifier: Apache-2.0

// Package api_test holds the bytes that Go and C++ must agree on.
package api_test

import (
	"bytes"
	"flag"
	"os"
	"testing"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	farpoolv1alpha1 "farpool.dev/farpool/api/gen/farpool/v1alpha1"
)

var rewrite = flag.Bool("rewrite", false, "write shard_map.bin anew from shard_map.textproto")

func TestShardMapBytes(t *testing.T) {
	text, err := os.ReadFile("testdata/shard_map.textproto")
	if err != nil {
		t.Fatal(err)
	}
	var fromText farpoolv1alpha1.ShardMap
	if err := prototext.Unmarshal(text, &fromText); err != nil {
		t.Fatal(err)
	}
	emitted, err := proto.MarshalOptions{Deterministic: true}.Marshal(&fromText)
	if err != nil {
		t.Fatal(err)
	}
	if *rewrite {
		if err := os.WriteFile("testdata/shard_map.bin", emitted, 0o644); err != nil {
			t.Fatal(err)
		}
	}

	golden, err := os.ReadFile("testdata/shard_map.bin")
	if err != nil {
		t.Fatal(err)
	}
	var fromBytes farpoolv1alpha1.ShardMap
	if err := proto.Unmarshal(golden, &fromBytes); err != nil {
		t.Fatalf("the golden bytes do not parse: %v", err)
	}
	if len(fromBytes.ProtoReflect().GetUnknown()) > 0 {
		t.Error("the golden bytes hold fields that shard_map.proto does not have")
	}
	if !proto.Equal(&fromText, &fromBytes) {
		t.Errorf("text and bytes say different things:\n%v\n%v", &fromText, &fromBytes)
	}
	if !bytes.Equal(emitted, golden) {
		t.Errorf("emitted bytes differ from the golden ones:\n%x\n%x", emitted, golden)
	}
}

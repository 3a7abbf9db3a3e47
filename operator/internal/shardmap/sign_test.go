// SPDX-License-Identifier: Apache-2.0

package shardmap

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"flag"
	"os"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	farpoolv1alpha1 "farpool.dev/farpool/api/gen/farpool/v1alpha1"
)

var rewrite = flag.Bool("rewrite", false, "write signed_shard_map.bin and map_key.txt anew")

const testdata = "../../../api/testdata/"

func testKey() []byte {
	key := make([]byte, KeyBytes)
	for i := range key {
		key[i] = byte(i)
	}
	return key
}

// The data plane checks the same map under the same key (dataplane/apps/settings_test.cc).
func TestGoldenSignature(t *testing.T) {
	message := golden(t)
	if err := Sign(message, testKey()); err != nil {
		t.Fatal(err)
	}
	public := PublicKey(testKey())
	emitted, err := proto.MarshalOptions{Deterministic: true}.Marshal(message)
	if err != nil {
		t.Fatal(err)
	}
	key := base64.StdEncoding.EncodeToString(public) + "\n"
	if *rewrite {
		for name, data := range map[string][]byte{"signed_shard_map.bin": emitted, "map_key.txt": []byte(key)} {
			if err := os.WriteFile(testdata+name, data, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, data := range map[string][]byte{"signed_shard_map.bin": emitted, "map_key.txt": []byte(key)} {
		if want, err := os.ReadFile(testdata + name); err != nil || !bytes.Equal(want, data) {
			t.Errorf("%s: %v\n%x\n%x", name, err, want, data)
		}
	}
	if err := CheckSignature(message, public); err != nil {
		t.Error(err)
	}
}

func TestForgedMapsAreFound(t *testing.T) {
	public := PublicKey(testKey())
	signed := golden(t)
	if err := Sign(signed, testKey()); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(*farpoolv1alpha1.ShardMap)
		reason string
	}{
		"no signature":           {func(m *farpoolv1alpha1.ShardMap) { m.Signature = nil }, "is not signed"},
		"a short one":            {func(m *farpoolv1alpha1.ShardMap) { m.Signature = m.Signature[:63] }, "not the operator's"},
		"a flipped bit":          {func(m *farpoolv1alpha1.ShardMap) { m.Signature[7] ^= 4 }, "not the operator's"},
		"a later epoch":          {func(m *farpoolv1alpha1.ShardMap) { m.Epoch = 9999999999 }, "not the operator's"},
		"another pool":           {func(m *farpoolv1alpha1.ShardMap) { m.PoolUid = "another" }, "not the operator's"},
		"all keys at one node":   {func(m *farpoolv1alpha1.ShardMap) { clear(m.Directory) }, "not the operator's"},
		"another endpoint":       {func(m *farpoolv1alpha1.ShardMap) { m.Nodes[0].Endpoint = "attacker:7400" }, "not the operator's"},
		"signed by another pool": {func(m *farpoolv1alpha1.ShardMap) { _ = Sign(m, bytes.Repeat([]byte{7}, KeyBytes)) }, "not the operator's"},
		"a field that this version does not know": {func(m *farpoolv1alpha1.ShardMap) {
			m.ProtoReflect().SetUnknown([]byte{0xf8, 0x01, 0x01}) // field 31
		}, "not the operator's"},
	} {
		message := proto.CloneOf(signed)
		c.change(message)
		if err := CheckSignature(message, public); err == nil || !strings.Contains(err.Error(), c.reason) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// No signature of other text passes for a map's.
	text, err := proto.MarshalOptions{Deterministic: true}.Marshal(golden(t))
	if err != nil {
		t.Fatal(err)
	}
	signed.Signature = ed25519.Sign(ed25519.NewKeyFromSeed(testKey()), text)
	if CheckSignature(signed, public) == nil {
		t.Error("a signature of the bytes alone passes")
	}
}

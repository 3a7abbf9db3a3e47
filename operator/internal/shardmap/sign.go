// SPDX-License-Identifier: Apache-2.0

package shardmap

import (
	"crypto/ed25519"
	"fmt"

	"google.golang.org/protobuf/proto"

	farpoolv1alpha1 "farpool.dev/farpool/api/gen/farpool/v1alpha1"
)

// KeyBytes is the length of a private map key, which is Ed25519's seed.
const KeyBytes = ed25519.SeedSize

// signed begins the signed text of a map, so that no signature of anything else passes for a map's.
const signed = "farpool.dev/shard-map/v1\n"

// PublicKey returns the key with which memory nodes and clients check maps.
func PublicKey(key []byte) ed25519.PublicKey {
	return ed25519.NewKeyFromSeed(key).Public().(ed25519.PublicKey)
}

// Sign signs a map with the pool's private map key.
func Sign(message *farpoolv1alpha1.ShardMap, key []byte) error {
	text, err := signedText(message)
	if err != nil {
		return err
	}
	message.Signature = ed25519.Sign(ed25519.NewKeyFromSeed(key), text)
	return nil
}

// CheckSignature fails if the holder of the private map key has not signed a map.
func CheckSignature(message *farpoolv1alpha1.ShardMap, public ed25519.PublicKey) error {
	text, err := signedText(message)
	if err != nil {
		return err
	}
	switch {
	case len(message.GetSignature()) == 0:
		return fmt.Errorf("the shard map of epoch %d is not signed: this pool's operator has not made it", message.GetEpoch())
	case !ed25519.Verify(public, text, message.GetSignature()):
		return fmt.Errorf("the shard map of epoch %d bears a signature that is not the operator's: this pool's operator has not made it", message.GetEpoch())
	}
	return nil
}

// signedText is the map without its signature, serialized as the data plane does it (map::signed_text).
func signedText(message *farpoolv1alpha1.ShardMap) ([]byte, error) {
	message = proto.CloneOf(message)
	message.Signature = nil
	text, err := proto.MarshalOptions{Deterministic: true}.MarshalAppend([]byte(signed), message)
	if err != nil {
		return nil, fmt.Errorf("serialize the shard map of epoch %d: %w", message.GetEpoch(), err)
	}
	return text, nil
}

// SPDX-License-Identifier: Apache-2.0

// Package workload drives a key-value store over the Redis protocol with an unchanged driver that never retries, and checks every
// byte that comes back.
package workload

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"

	"farpool.dev/farpool/e2e/history"
)

// Sizes bounds the lengths of keys and values in bytes. Lengths are spread evenly over their logarithm, so that a few are large.
type Sizes struct {
	MinKey, MaxKey     int
	MinValue, MaxValue int
}

// DefaultSizes reach from keys that fit beside their entry to values that need an extent of several blocks.
var DefaultSizes = Sizes{MinKey: 12, MaxKey: 512, MinValue: headerBytes, MaxValue: 4096}

// headerBytes is the tag and the key's number, which every value begins with.
const headerBytes = 12

// Key is the key with a number. Its length is drawn from the number, so that every reader knows it.
func (s Sizes) Key(prefix string, number uint32) string {
	head := prefix + strconv.FormatUint(uint64(number), 36) + ":"
	want := logUniform(rand.New(rand.NewPCG(uint64(number), 0x6b6579)), s.MinKey, s.MaxKey)
	key := make([]byte, max(want, len(head)))
	n := copy(key, head)
	fill(key[n:], uint64(number)^0x9e3779b97f4a7c15)
	return string(key)
}

// Value is what a write with a tag stores under a key: length and every byte follow from the two.
func (s Sizes) Value(key uint32, tag history.Tag) []byte {
	random := rand.New(rand.NewPCG(uint64(tag), uint64(key)))
	value := make([]byte, logUniform(random, max(s.MinValue, headerBytes), s.MaxValue))
	binary.LittleEndian.PutUint64(value, uint64(tag))
	binary.LittleEndian.PutUint32(value[8:], key)
	fill(value[headerBytes:], uint64(tag)*0x9e3779b97f4a7c15+uint64(key))
	return value
}

// Tag is the tag of the write that stored a value, after every byte has been compared. The error never shows the bytes.
func (s Sizes) Tag(key uint32, value []byte) (history.Tag, error) {
	if len(value) < headerBytes {
		return history.Absent, fmt.Errorf("the value of key %d has %d bytes: %w: no write stored so few", key, len(value), errCorrupt)
	}
	if of := binary.LittleEndian.Uint32(value[8:]); of != key {
		return history.Absent, fmt.Errorf("a read of key %d returned a value of key %d: %w", key, of, errCorrupt)
	}
	tag := history.Tag(binary.LittleEndian.Uint64(value))
	want := s.Value(key, tag)
	if len(want) != len(value) {
		return history.Absent, fmt.Errorf("the value of key %d with tag %x has %d bytes and was written with %d: %w", key, uint64(tag), len(value), len(want), errCorrupt)
	}
	for i := range want {
		if want[i] != value[i] {
			return history.Absent, fmt.Errorf("the value of key %d with tag %x, %d bytes, differs from what was written at byte %d: %w",
				key, uint64(tag), len(value), i, errCorrupt)
		}
	}
	return tag, nil
}

func (s Sizes) validate() error {
	switch {
	case s.MinKey < 1 || s.MaxKey < s.MinKey:
		return fmt.Errorf("key lengths %d to %d make no range", s.MinKey, s.MaxKey)
	case s.MinValue < headerBytes || s.MaxValue < s.MinValue:
		return fmt.Errorf("value lengths %d to %d make no range of at least %d bytes", s.MinValue, s.MaxValue, headerBytes)
	}
	return nil
}

func logUniform(random *rand.Rand, low, high int) int {
	if low >= high {
		return low
	}
	l, h := math.Log(float64(low)), math.Log(float64(high+1))
	return min(int(math.Exp(l+random.Float64()*(h-l))), high)
}

// fill writes a stream that depends on every bit of the seed.
func fill(b []byte, seed uint64) {
	x := seed
	for len(b) > 0 {
		x += 0x9e3779b97f4a7c15
		z := (x ^ x>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		var word [8]byte
		binary.LittleEndian.PutUint64(word[:], z^z>>31)
		b = b[copy(b, word[:]):]
	}
}

// errCorrupt is in the error of every read that returned what no write stored.
var errCorrupt = errors.New("a torn or corrupted value")

var errNoShard = errors.New("no compute shard to connect to: give at least one address")

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"sort"
	"strings"
)

// A trace is the requests of a cache's users: the number of a key for each, drawn from a seed. Equal arguments make equal traces.
type trace struct {
	name     string
	requests []uint32
	size     func(key uint32) int // bytes of a key's value
}

const (
	plainValue = 1000 // bytes of a value, in every trace but one
	leastValue = 64   // of mixed sizes
	mostValue  = 4096
	phases     = 4 // of the trace whose hot keys become others
)

func key(number uint32) string { return fmt.Sprintf("key:%08d", number) }

func value(number uint32, size int) string {
	begin := key(number)
	return begin + strings.Repeat("x", max(0, size-len(begin)))
}

func plainSize(uint32) int { return plainValue }

// mixedSize draws the size of each key's value, so that equal ratios of sizes are equally likely.
func mixedSize(key uint32) int {
	random := rand.New(rand.NewPCG(uint64(key), 2)).Float64()
	return int(leastValue * math.Pow(float64(mostValue)/leastValue, random))
}

// zipf draws ranks from 0 on: rank r is (r+1)^-skew times as likely as rank 0.
type zipf struct {
	sums   []float64
	random *rand.Rand
}

func newZipf(keys int, skew float64, random *rand.Rand) *zipf {
	z := &zipf{sums: make([]float64, keys), random: random}
	sum := 0.0
	for i := range z.sums {
		sum += math.Pow(float64(i+1), -skew)
		z.sums[i] = sum
	}
	return z
}

func (z *zipf) draw() uint32 {
	at := z.random.Float64() * z.sums[len(z.sums)-1]
	return uint32(min(sort.SearchFloat64s(z.sums, at), len(z.sums)-1))
}

// kinds are all traces that there are.
var kinds = []struct {
	name  string
	skew  float64
	sizes func(key uint32) int
	// of a request by its number, of how many there are, and by the rank that was drawn of so many keys
	key func(i, requests int, rank uint32, keys int) uint32
}{
	{"zipf-0.8", 0.8, plainSize, byRank},
	{"zipf-0.99", 0.99, plainSize, byRank},
	{"zipf-1.2", 1.2, plainSize, byRank},
	{"scan", 0.99, plainSize, scanned},
	{"shift", 0.99, plainSize, shifted},
	{"sizes", 0.99, mixedSize, byRank},
}

func traceNames() (names []string) {
	for _, kind := range kinds {
		names = append(names, kind.name)
	}
	return names
}

func byRank(_, _ int, rank uint32, _ int) uint32 { return rank }

// scanned is every second request in a tenth of the trace for a key that nobody asks for again.
func scanned(i, requests int, rank uint32, keys int) uint32 {
	if i >= requests*6/10 && i < requests*7/10 && i%2 == 0 {
		return uint32(keys + i)
	}
	return rank
}

// shifted gives the ranks to other keys in each phase of the trace.
func shifted(i, requests int, rank uint32, keys int) uint32 {
	return (rank + uint32(i*phases/requests*(keys/phases))) % uint32(keys)
}

// newTrace draws the trace of this name, which must be one of traceNames().
func newTrace(name string, keys, requests int, seed uint64) trace {
	t := trace{name: name}
	for number, kind := range kinds {
		if kind.name != name {
			continue
		}
		t.size = kind.sizes
		z := newZipf(keys, kind.skew, rand.New(rand.NewPCG(seed, uint64(number))))
		for i := range requests {
			t.requests = append(t.requests, kind.key(i, requests, z.draw(), keys))
		}
	}
	return t
}

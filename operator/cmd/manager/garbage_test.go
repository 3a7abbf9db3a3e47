// SPDX-License-Identifier: Apache-2.0

package main

import (
	"runtime"
	"runtime/debug"
	"testing"
	"time"
)

func TestAHeapGrowsByAsMuchGarbageWhateverIsInUse(t *testing.T) {
	const mebi = 1 << 20
	for live, want := range map[uint64]int{0: 100, 1: 100, 20 * mebi: 100, 40 * mebi: 50, 100 * mebi: 20, 160 * mebi: 12, 1 << 40: 12} {
		if got := gcPercent(live); got != want {
			t.Errorf("%d MiB in use: %d %%, not %d", live/mebi, got, want)
		}
	}
}

// ballast is in use until a test lets go of it.
var ballast []byte

func TestGarbageIsBoundedAfterEachCollection(t *testing.T) {
	before := debug.SetGCPercent(100)
	defer debug.SetGCPercent(before)
	boundGarbage()
	// expect the percentage after collections, whose cleanups run in the background.
	expect := func(what string, right func(int) bool) {
		t.Helper()
		deadline := time.Now().Add(time.Minute)
		for {
			runtime.GC()
			percent := debug.SetGCPercent(100)
			debug.SetGCPercent(percent)
			if right(percent) {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: the heap may grow by %d %%", what, percent)
			}
			runtime.Gosched()
		}
	}
	ballast = make([]byte, 100<<20)
	expect("100 MiB in use", func(percent int) bool { return percent <= 20 && percent >= leastGCPercent })
	ballast = nil
	expect("little in use", func(percent int) bool { return percent == mostGCPercent })
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
	"time"
)

// What is counted is the same on every machine, and is held to; times and memory are for the benchmark's own page.
func TestTwentyPoolsConvergeAndAreLeftAlone(t *testing.T) {
	o := options{root: "../..", pools: 20, nodes: 2, shards: 2, namespaces: 2, kills: 4, workers: 4, unlimited: true, idle: 15 * time.Second, within: 10 * time.Minute}
	var table strings.Builder
	steps, err := run(t.Context(), o, &table)
	t.Log("\n" + table.String())
	if err != nil {
		t.Fatal(err)
	}
	// A pool has some 30 objects, most of which are asked for once before they are made.
	most := map[string]struct{ writes, reads, reconciles float64 }{
		"all pools made":     {writes: 60, reads: 40, reconciles: 20},
		"idle":               {},
		"one pool scaled":    {writes: 3, reads: 1, reconciles: 3},
		"4 shards killed":    {writes: 10, reads: 5, reconciles: 10},
		"operator restarted": {writes: 0, reads: 3, reconciles: 6},
	}
	for _, step := range steps {
		bound, known := most[step.name]
		if !known {
			t.Fatalf("step %q has no bounds", step.name)
		}
		for what, of := range map[string][2]float64{
			"writes":     {step.did.writes, bound.writes},
			"reads":      {step.did.reads, bound.reads},
			"reconciles": {step.did.reconciles, bound.reconciles},
		} {
			if allowed := of[1] * float64(o.pools); of[0] > allowed {
				t.Errorf("%s: %.0f %s, more than %.0f", step.name, of[0], what, allowed)
			}
		}
	}
	if len(steps) != len(most)+1 {
		t.Errorf("%d steps", len(steps))
	}
}

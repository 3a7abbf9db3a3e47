// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"context"
	"strings"
	"testing"
	"time"
)

func TestAStoreGrows(t *testing.T) {
	run, err := NewRun(startRedis(t), 4, "grow:", Sizes{MinKey: 16, MaxKey: 16, MinValue: 64, MaxValue: 64})
	if err != nil {
		t.Fatal(err)
	}
	defer run.Close()
	const keys, wanted = 100, 1600
	run.Put(t.Context(), keys)
	growth, err := run.Grow(t.Context(), keys, wanted, 50*time.Millisecond, 10*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	for _, phase := range growth.Phases {
		if len(phase.Reads) == 0 || len(phase.Writes) == 0 || phase.Failed != 0 || phase.Time <= 0 || phase.Rate() <= 0 {
			t.Fatalf("%s: %d reads, %d writes, %d failed in %s", phase.Name, len(phase.Reads), len(phase.Writes), phase.Failed, phase.Time)
		}
	}
	if len(growth.Windows) < 11 || growth.Slowest <= 0 {
		t.Fatal(growth.Windows, growth.Slowest)
	}
	if present := run.ReadAll(t.Context(), wanted+1); present != wanted {
		t.Fatalf("%d keys in the end", present)
	}
	if _, err := run.Check(time.Minute); err != nil {
		t.Fatal(err)
	}
	if table := growth.Table(); strings.Count(table, "\n") != 5 || !strings.Contains(table, "| during | ") {
		t.Fatal(table)
	}
}

func TestAGrowthThatIsCutOffSaysHowFarItCame(t *testing.T) {
	run, err := NewRun(startRedis(t), 2, "cut:", Sizes{MinKey: 16, MaxKey: 16, MinValue: 64, MaxValue: 64})
	if err != nil {
		t.Fatal(err)
	}
	defer run.Close()
	if _, err := run.Grow(t.Context(), 0, 16, time.Second, time.Second); err == nil || !strings.Contains(err.Error(), "at least one key") {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := run.Grow(ctx, 10, 20, time.Minute, 10*time.Millisecond); err == nil || !strings.Contains(err.Error(), "key 10 of 20") {
		t.Fatal(err)
	}
}

func TestPercentiles(t *testing.T) {
	sorted := []time.Duration{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
	for percent, want := range map[int]time.Duration{0: 1, 50: 6, 99: 10, 100: 10} {
		if got := Percentile(sorted, percent); got != want {
			t.Errorf("%d: %d, not %d", percent, got, want)
		}
	}
	if Percentile(nil, 50) != 0 {
		t.Error("of none")
	}
}

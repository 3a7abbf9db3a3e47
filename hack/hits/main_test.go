// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestATraceIsTheSameEachTime(t *testing.T) {
	for _, name := range traceNames() {
		one, again, other := newTrace(name, 1000, 5000, 1), newTrace(name, 1000, 5000, 1), newTrace(name, 1000, 5000, 2)
		if len(one.requests) != 5000 || !slices.Equal(one.requests, again.requests) {
			t.Errorf("%s: another trace from the same seed", name)
		}
		if slices.Equal(one.requests, other.requests) {
			t.Errorf("%s: the same trace from another seed", name)
		}
	}
}

func TestRanksFollowTheirSkew(t *testing.T) {
	counts := make([]float64, 1000)
	for _, number := range newTrace("zipf-0.8", len(counts), 400_000, 1).requests {
		counts[number]++
	}
	for _, rank := range []int{2, 10, 50} {
		wanted := math.Pow(float64(rank), -0.8)
		if got := counts[rank-1] / counts[0]; got < 0.9*wanted || got > 1.1*wanted {
			t.Errorf("rank %d is requested %.3f times as often as the first, and should be %.3f times", rank, got, wanted)
		}
	}
}

func TestAScanAsksForEachOfItsKeysOnce(t *testing.T) {
	const keys, requests = 1000, 10_000
	seen := map[uint32]int{}
	for i, number := range newTrace("scan", keys, requests, 1).requests {
		if number < keys {
			continue
		}
		seen[number]++
		if i < requests*6/10 || i >= requests*7/10 {
			t.Fatalf("request %d is of the scan", i)
		}
	}
	if len(seen) != requests/20 {
		t.Errorf("the scan has %d keys", len(seen))
	}
}

func TestHotKeysBecomeOthers(t *testing.T) {
	const keys, requests = 1000, 20_000
	all := newTrace("shift", keys, requests, 1).requests
	for phase := range phases {
		counts := make([]int, keys)
		for _, number := range all[phase*requests/phases : (phase+1)*requests/phases] {
			counts[number]++
		}
		if hottest := slices.Index(counts, slices.Max(counts)); hottest != phase*keys/phases {
			t.Errorf("in phase %d key %d is the hottest", phase, hottest)
		}
	}
}

func TestSizesAreMixed(t *testing.T) {
	var sizes []int
	for number := range uint32(1000) {
		size := mixedSize(number)
		if len(value(number, size)) != size {
			t.Fatalf("key %d has a value of %d bytes, and should have %d", number, len(value(number, size)), size)
		}
		sizes = append(sizes, size)
	}
	slices.Sort(sizes)
	if sizes[0] < leastValue || sizes[999] > mostValue || sizes[500] < 400 || sizes[500] > 650 {
		t.Errorf("sizes from %d to %d with %d in the middle", sizes[0], sizes[999], sizes[500])
	}
}

// Redis with room for everything misses each key once; with room for few, it keeps about as many as it is to.
func TestRedisIsMeasured(t *testing.T) {
	trace := newTrace("zipf-0.99", 20_000, 30_000, 1)
	server := func() *store {
		t.Helper()
		s, err := startRedis(t.Context(), redisName, 2)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.close() })
		return s
	}
	roomy, err := replay(t.Context(), server(), trace, 1e6)
	if err != nil {
		t.Fatal(err)
	}
	if roomy.requests != 20_016 || roomy.hits < roomy.requests*7/10 || roomy.refused != 0 {
		t.Errorf("with room for all keys: %+v", roomy)
	}
	full := server()
	if err := full.limit(t.Context(), plainSize, 4000, "allkeys-lru"); err != nil {
		t.Fatal(err)
	}
	few, err := replay(t.Context(), full, trace, 1e6)
	if err != nil {
		t.Fatal(err)
	}
	if few.keys < 3800 || few.keys > 4200 || few.ratio() >= roomy.ratio() {
		t.Errorf("with room for 4000 keys it holds %d and hits %.2f, with room for all %.2f", few.keys, few.ratio(), roomy.ratio())
	}
	if err := full.connections[0].ConfigSet(t.Context(), "maxmemory-policy", "noeviction").Err(); err != nil {
		t.Fatal(err)
	}
	if none, err := replay(t.Context(), full, trace, 1e6); err != nil || none.refused == 0 {
		t.Errorf("with no policy %d writes are refused: %v", none.refused, err)
	}
}

func TestReportsHaveWhatWasMeasured(t *testing.T) {
	all := []comparison{
		{"race", "allkeys-lru", "scan", outcome{hits: 60, requests: 100, keys: 7, took: time.Second}, outcome{hits: 50, requests: 100, keys: 8, took: time.Second}},
		{"race", "allkeys-lfu", "scan", outcome{hits: 49, requests: 100, keys: 7, took: time.Second}, outcome{hits: 50, requests: 100, keys: 8, took: time.Second, refused: 3}},
	}
	var out bytes.Buffer
	ratiosTable(all, &out)
	writesTable([]pressure{{server: "race", writers: 4, full: writes{2 * time.Millisecond, 3 * time.Millisecond}, roomy: writes{time.Millisecond, 2 * time.Millisecond}, added: 9, stood: 5}}, &out)
	for _, wanted := range []string{
		"| scan | allkeys-lru | race | 60.00 % | 50.00 % | +10.00 | 7 | 8 | 1.0 | 1.0 |", "-1.00 points, of scan under allkeys-lfu", "refused: 3.",
		"| 4 | race | 2.00 | 1.00 | 2.00 |",
	} {
		if !strings.Contains(out.String(), wanted) {
			t.Errorf("no %q in\n%s", wanted, out.String())
		}
	}
	drawn := plot(all)
	if circles := strings.Count(drawn, "<circle"); circles != 4 { // and two in the legend
		t.Errorf("the plot has %d circles", circles)
	}
	for decoder := xml.NewDecoder(strings.NewReader(drawn)); ; {
		if _, err := decoder.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("the plot is no XML: %v", err)
		}
	}
}

func TestOptionsThatNothingCanBeMeasuredWith(t *testing.T) {
	good := options{binaries: t.TempDir(), redis: redisName, protocols: "race", policies: "allkeys-lru", traces: "scan", writers: "1", mebibytes: 1, shards: 1, workers: 1, connections: 1, keys: 1, requests: 10_000, rate: 1}
	for wanted, change := range map[string]func(*options){
		"no index protocol": func(o *options) { o.protocols = "race,rice" }, "no policy": func(o *options) { o.policies = "lru" },
		"keys that expire": func(o *options) { o.policies = "volatile-ttl" }, "no trace": func(o *options) { o.traces = "scam" },
		"-writers": func(o *options) { o.writers = "0" }, "-requests at least": func(o *options) { o.requests = 5 },
	} {
		o := good
		change(&o)
		if err := o.wrong(); err == nil || !strings.Contains(err.Error(), wanted) {
			t.Errorf("%q is not in: %v", wanted, err)
		}
	}
}

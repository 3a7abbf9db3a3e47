// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"math"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	farpoolv1alpha1 "farpool.dev/farpool/api/gen/farpool/v1alpha1"
	"farpool.dev/farpool/api/v1alpha1"
	apiac "farpool.dev/farpool/api/v1alpha1/applyconfiguration/api/v1alpha1"
)

// What a memory node of each protocol says, and what it is asked for.
var examples = map[string]struct {
	index *v1alpha1.IndexSpec
	facts *farpoolv1alpha1.MemoryNodeFacts
}{
	v1alpha1.ProtocolRCuckoo: {
		&v1alpha1.IndexSpec{Protocol: v1alpha1.ProtocolRCuckoo, RCuckoo: v1alpha1.RCuckooSpec{EntryBytes: 16, EntriesPerRow: 8, RowsPerLock: 16, TablePercent: 25}},
		&farpoolv1alpha1.MemoryNodeFacts{
			Shape:      &farpoolv1alpha1.MemoryNodeFacts_Rcuckoo{Rcuckoo: &farpoolv1alpha1.RCuckooGeometry{EntryBytes: 16, EntriesPerRow: 8, RowsPerLock: 16, Rows: 1000}},
			LockRegion: &farpoolv1alpha1.LockRegion{Placement: farpoolv1alpha1.LockRegion_PLACEMENT_HOST_MEMORY, Bytes: 8, Locks: 63, RowsPerLock: 16},
		},
	},
	v1alpha1.ProtocolRACE: {
		&v1alpha1.IndexSpec{Protocol: v1alpha1.ProtocolRACE, RACE: &v1alpha1.RACESpec{TablePercent: 25, Tables: 4, LeastTables: 2}},
		&farpoolv1alpha1.MemoryNodeFacts{Shape: &farpoolv1alpha1.MemoryNodeFacts_Race{Race: &farpoolv1alpha1.RaceGeometry{Groups: 100}}},
	},
	v1alpha1.ProtocolOutback: {
		&v1alpha1.IndexSpec{Protocol: v1alpha1.ProtocolOutback, Outback: &v1alpha1.OutbackSpec{TablePercent: 10}},
		&farpoolv1alpha1.MemoryNodeFacts{Shape: &farpoolv1alpha1.MemoryNodeFacts_Outback{Outback: &farpoolv1alpha1.OutbackGeometry{Buckets: 1000}}},
	},
}

func TestEveryProtocolHasItsOwnTables(t *testing.T) {
	for _, p := range All() {
		example, found := examples[p.Name()]
		if !found {
			t.Fatalf("protocol %s has no example here", p.Name())
		}
		if of, err := Of(example.index); err != nil || of != p {
			t.Errorf("%s: Of returns %v, %v", p.Name(), of, err)
		}
		if of, err := OfShape(example.facts); err != nil || of != p {
			t.Errorf("%s: OfShape returns %v, %v", p.Name(), of, err)
		}
		if len(p.Flags(example.index)) == 0 || p.LeastTables(example.index) < 1 {
			t.Errorf("%s: flags %v, %d tables", p.Name(), p.Flags(example.index), p.LeastTables(example.index))
		}
		if places := p.Places(example.facts); places < 1000 || places > 8000 {
			t.Errorf("%s: %f places", p.Name(), places)
		}
		if difference := p.Mismatch(example.index, example.facts); difference != "" {
			t.Errorf("%s: differs from itself: %s", p.Name(), difference)
		}

		entry := &farpoolv1alpha1.MemoryNodeEntry{LockRegion: example.facts.LockRegion}
		p.Enter(example.facts, entry)
		node := &v1alpha1.ShardMapNode{}
		if err := p.FromMessage(entry, node); err != nil {
			t.Fatalf("%s: %v", p.Name(), err)
		}
		again := &farpoolv1alpha1.MemoryNodeEntry{LockRegion: example.facts.LockRegion}
		applied := apiac.ShardMapNode()
		for _, q := range All() {
			q.ToMessage(node, again)
			q.Apply(node, applied)
		}
		if !proto.Equal(entry, again) {
			t.Errorf("%s: {%v} comes back as {%v}", p.Name(), entry, again)
		}
		if shapes := btoi(applied.RCuckoo != nil) + btoi(applied.RACE != nil) + btoi(applied.Outback != nil); shapes != 1 {
			t.Errorf("%s: %d shapes are applied", p.Name(), shapes)
		}
	}
	if len(examples) != len(All()) {
		t.Errorf("%d examples of %d protocols", len(examples), len(All()))
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

func TestShapesThatNoTableHas(t *testing.T) {
	rows := examples[v1alpha1.ProtocolRCuckoo].facts
	groups := examples[v1alpha1.ProtocolRACE].facts
	buckets := examples[v1alpha1.ProtocolOutback].facts
	for name, entry := range map[string]*farpoolv1alpha1.MemoryNodeEntry{
		"none":                            {},
		"RCuckoo without locks":           {Shape: &farpoolv1alpha1.MemoryNodeEntry_Rcuckoo{Rcuckoo: rows.GetRcuckoo()}},
		"RCuckoo without rows":            {Shape: &farpoolv1alpha1.MemoryNodeEntry_Rcuckoo{Rcuckoo: &farpoolv1alpha1.RCuckooGeometry{EntryBytes: 16, EntriesPerRow: 8, RowsPerLock: 16}}, LockRegion: rows.LockRegion},
		"RCuckoo of too many rows":        {Shape: &farpoolv1alpha1.MemoryNodeEntry_Rcuckoo{Rcuckoo: &farpoolv1alpha1.RCuckooGeometry{Rows: 1 << 63}}, LockRegion: rows.LockRegion},
		"RCuckoo of entries too long":     {Shape: &farpoolv1alpha1.MemoryNodeEntry_Rcuckoo{Rcuckoo: &farpoolv1alpha1.RCuckooGeometry{Rows: 1, EntryBytes: 1 << 31}}, LockRegion: rows.LockRegion},
		"RCuckoo of rows too long":        {Shape: &farpoolv1alpha1.MemoryNodeEntry_Rcuckoo{Rcuckoo: &farpoolv1alpha1.RCuckooGeometry{Rows: 1, EntriesPerRow: 1 << 31}}, LockRegion: rows.LockRegion},
		"RCuckoo of locks for too many":   {Shape: &farpoolv1alpha1.MemoryNodeEntry_Rcuckoo{Rcuckoo: &farpoolv1alpha1.RCuckooGeometry{Rows: 1, RowsPerLock: 1 << 31}}, LockRegion: rows.LockRegion},
		"RACE with locks":                 {Shape: &farpoolv1alpha1.MemoryNodeEntry_Race{Race: groups.GetRace()}, LockRegion: rows.LockRegion},
		"RACE of a single group":          {Shape: &farpoolv1alpha1.MemoryNodeEntry_Race{Race: &farpoolv1alpha1.RaceGeometry{Groups: 1}}},
		"RACE of more groups than can be": {Shape: &farpoolv1alpha1.MemoryNodeEntry_Race{Race: &farpoolv1alpha1.RaceGeometry{Groups: 1 << 32}}},
		"Outback with locks":              {Shape: &farpoolv1alpha1.MemoryNodeEntry_Outback{Outback: buckets.GetOutback()}, LockRegion: rows.LockRegion},
		"Outback without buckets":         {Shape: &farpoolv1alpha1.MemoryNodeEntry_Outback{Outback: &farpoolv1alpha1.OutbackGeometry{}}},
		"Outback of too many buckets":     {Shape: &farpoolv1alpha1.MemoryNodeEntry_Outback{Outback: &farpoolv1alpha1.OutbackGeometry{Buckets: 1<<31 + 1}}},
	} {
		p, err := OfShape(entry)
		if err == nil {
			err = p.FromMessage(entry, &v1alpha1.ShardMapNode{})
		}
		if err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// The largest shapes that a map can hold come back from it as they are, and so do the smallest tables of RACE and Outback.
func TestShapesAtTheirLimits(t *testing.T) {
	locks := examples[v1alpha1.ProtocolRCuckoo].facts.LockRegion
	for name, entry := range map[string]*farpoolv1alpha1.MemoryNodeEntry{
		"RCuckoo with one row": {Shape: &farpoolv1alpha1.MemoryNodeEntry_Rcuckoo{Rcuckoo: &farpoolv1alpha1.RCuckooGeometry{Rows: 1, EntryBytes: 16, EntriesPerRow: 8, RowsPerLock: 16}}, LockRegion: locks},
		"RCuckoo at its largest": {
			Shape: &farpoolv1alpha1.MemoryNodeEntry_Rcuckoo{Rcuckoo: &farpoolv1alpha1.RCuckooGeometry{Rows: math.MaxInt64, EntryBytes: math.MaxInt32, EntriesPerRow: math.MaxInt32, RowsPerLock: math.MaxInt32}}, LockRegion: locks,
		},
		"RACE with two groups":   {Shape: &farpoolv1alpha1.MemoryNodeEntry_Race{Race: &farpoolv1alpha1.RaceGeometry{Groups: 2}}},
		"RACE at its largest":    {Shape: &farpoolv1alpha1.MemoryNodeEntry_Race{Race: &farpoolv1alpha1.RaceGeometry{Groups: math.MaxUint32}}},
		"Outback of one bucket":  {Shape: &farpoolv1alpha1.MemoryNodeEntry_Outback{Outback: &farpoolv1alpha1.OutbackGeometry{Buckets: 1}}},
		"Outback at its largest": {Shape: &farpoolv1alpha1.MemoryNodeEntry_Outback{Outback: &farpoolv1alpha1.OutbackGeometry{Buckets: 1 << 31}}},
	} {
		p, err := OfShape(entry)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		node, again := &v1alpha1.ShardMapNode{}, &farpoolv1alpha1.MemoryNodeEntry{LockRegion: entry.LockRegion}
		if err := p.FromMessage(entry, node); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if p.ToMessage(node, again); !proto.Equal(entry, again) {
			t.Errorf("%s: {%v} comes back as {%v}", name, entry, again)
		}
	}
}

// Memory nodes of released templates began without the flags for splitting tables: a pool that does not split its tables gets the same flags as then.
func TestFlagsOfRACENameTablesOnlyWhereTheyAreSplit(t *testing.T) {
	base := []Flag{{"protocol", "race"}, {"table-percent", int64(25)}}
	for _, c := range []struct {
		tables, least int32
		want          []Flag
	}{
		{0, 0, base},
		{1, 1, base},
		{2, 1, append(base[:2:2], Flag{"tables", int64(2)})},
		{4, 2, append(base[:2:2], Flag{"tables", int64(4)}, Flag{"initial-tables", int64(2)})},
	} {
		index := &v1alpha1.IndexSpec{Protocol: v1alpha1.ProtocolRACE, RACE: &v1alpha1.RACESpec{TablePercent: 25, Tables: c.tables, LeastTables: c.least}}
		if got := (race{}).Flags(index); !slices.Equal(got, c.want) {
			t.Errorf("%d tables, at least %d: %v", c.tables, c.least, got)
		}
	}
}

// A pool that says nothing of its geometry has the default of the memory node.
func TestFlagsOfOutback(t *testing.T) {
	for percent, shape := range map[int64]*v1alpha1.OutbackSpec{25: nil, 10: {TablePercent: 10}} {
		want := []Flag{{"protocol", "outback"}, {"table-percent", percent}}
		if got := (outback{}).Flags(&v1alpha1.IndexSpec{Protocol: v1alpha1.ProtocolOutback, Outback: shape}); !slices.Equal(got, want) {
			t.Errorf("%v: %v", shape, got)
		}
	}
}

// An Outback table refuses no key for lack of a slot, and 95 of 100 slots get one.
func TestWhatATableTakes(t *testing.T) {
	for name, places := range map[string]float64{v1alpha1.ProtocolRCuckoo: 7600, v1alpha1.ProtocolRACE: 1848, v1alpha1.ProtocolOutback: 3800} {
		p, err := Of(examples[name].index)
		if err != nil {
			t.Fatal(err)
		}
		if got := p.Places(examples[name].facts); math.Abs(got-places) > 0.5 || p.Overflows() != (name == v1alpha1.ProtocolOutback) {
			t.Errorf("%s: %f places, overflows: %v", name, got, p.Overflows())
		}
	}
}

// Memory nodes that execute operations get processors for that; the requests of others are those of released templates.
func TestProcessorsOfMemoryNodes(t *testing.T) {
	for _, p := range All() {
		executes := p.Name() == v1alpha1.ProtocolOutback
		if p.Executes() != executes {
			t.Errorf("%s executes operations: %v", p.Name(), p.Executes())
		}
		for workers, request := range map[int32]string{0: "500m", 1: "500m", 2: "1000m", 64: "32000m"} {
			if !executes {
				request = "100m"
			}
			if got := p.CPURequest(workers); got != request {
				t.Errorf("%s with %d workers: %s, want %s", p.Name(), workers, got, request)
			}
		}
	}
}

func TestWhatAMismatchIs(t *testing.T) {
	example := examples[v1alpha1.ProtocolRCuckoo]
	for field, edit := range map[string]func(*v1alpha1.RCuckooSpec){
		"entryBytes":    func(s *v1alpha1.RCuckooSpec) { s.EntryBytes = 32 },
		"entriesPerRow": func(s *v1alpha1.RCuckooSpec) { s.EntriesPerRow = 4 },
		"rowsPerLock":   func(s *v1alpha1.RCuckooSpec) { s.RowsPerLock = 8 },
	} {
		index := example.index.DeepCopy()
		edit(&index.RCuckoo)
		if got := (rcuckoo{}).Mismatch(index, example.facts); !strings.Contains(got, "spec.index wants") {
			t.Errorf("%s: %q", field, got)
		}
	}
}

// A protocol that exists here only: what the rest of the operator asks of it is in this file.
type toy struct{ none }

func (toy) Name() string { return "Toy" }
func (toy) Flags(*v1alpha1.IndexSpec) []Flag {
	return []Flag{{"protocol", "toy"}}
}

func TestAnotherProtocolIsOneEntryOfTheTable(t *testing.T) {
	before := all
	t.Cleanup(func() { all = before })
	all = append(All(), toy{})
	p, err := Of(&v1alpha1.IndexSpec{Protocol: "Toy"})
	if err != nil || p.Name() != "Toy" {
		t.Fatalf("%v, %v", p, err)
	}
	all = before
	p, err = Of(&v1alpha1.IndexSpec{Protocol: "Toy"})
	if err == nil || !strings.Contains(err.Error(), "RCuckoo or RACE or Outback") {
		t.Errorf("%v", err)
	}
	if p.Has(examples[v1alpha1.ProtocolRACE].facts) || len(p.Flags(nil)) > 0 || p.LeastTables(nil) != 1 || p.Overflows() || p.Executes() || p.CPURequest(4) != "100m" {
		t.Errorf("%v is taken for one that there is", p)
	}
}

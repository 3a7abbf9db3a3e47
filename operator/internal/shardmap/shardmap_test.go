// SPDX-License-Identifier: Apache-2.0

package shardmap

import (
	"math"
	"os"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	farpoolv1alpha1 "farpool.dev/farpool/api/gen/farpool/v1alpha1"
	"farpool.dev/farpool/api/v1alpha1"
)

func golden(t *testing.T) *farpoolv1alpha1.ShardMap {
	t.Helper()
	data, err := os.ReadFile("../../../api/testdata/shard_map.bin")
	if err != nil {
		t.Fatal(err)
	}
	message := &farpoolv1alpha1.ShardMap{}
	if err := proto.Unmarshal(data, message); err != nil {
		t.Fatal(err)
	}
	return message
}

// A map's resource keeps all of it. Otherwise a map adopted after a restore would differ from the memory nodes' map.
func TestNothingIsLostBetweenForms(t *testing.T) {
	message := golden(t)
	race := proto.CloneOf(message.Nodes[0])
	race.Name, race.LockRegion, race.Shape = "race", nil, &farpoolv1alpha1.MemoryNodeEntry_Race{Race: &farpoolv1alpha1.RaceGeometry{Groups: 1<<32 - 1}}
	outback := proto.CloneOf(race)
	outback.Name, outback.Shape = "served", &farpoolv1alpha1.MemoryNodeEntry_Outback{Outback: &farpoolv1alpha1.OutbackGeometry{Buckets: 1 << 31}}
	message.Nodes = append(message.Nodes, race, outback)
	message.Move = v1alpha1.MostMoves
	message.Eviction = farpoolv1alpha1.Eviction_EVICTION_VOLATILE_LFU
	for part := range message.Directory[1:] {
		message.Departures = append(message.Departures, &farpoolv1alpha1.Departure{Part: uint32(part) + 1, From: message.Tables[part%len(message.Tables)].Id})
	}
	spec, err := FromMessage("cache", message)
	if err != nil {
		t.Fatal(err)
	}
	again, err := ToMessage(spec)
	if err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(message, again) {
		t.Errorf("was\n%v\nis\n%v", message, again)
	}
	if spec.Nodes[0].Incarnation != "18446744073709551615" {
		t.Errorf("incarnation %s", spec.Nodes[0].Incarnation)
	}
	if len(spec.Departures) == 0 {
		t.Error("the golden map has one part alone: nothing can depart")
	}
}

func TestImpossibleMapsAreRefused(t *testing.T) {
	for name, spoil := range map[string]func(*farpoolv1alpha1.ShardMap){
		"no epoch":              func(m *farpoolv1alpha1.ShardMap) { m.Epoch = 0 },
		"epoch too great":       func(m *farpoolv1alpha1.ShardMap) { m.Epoch = 1 << 40 },
		"ragged directory":      func(m *farpoolv1alpha1.ShardMap) { m.Directory = m.Directory[1:] },
		"depth":                 func(m *farpoolv1alpha1.ShardMap) { m.DirectoryDepth = 40 },
		"table of no node":      func(m *farpoolv1alpha1.ShardMap) { m.Tables[0].Node = 9 },
		"no state":              func(m *farpoolv1alpha1.ShardMap) { m.Nodes[0].State = 0 },
		"no placement":          func(m *farpoolv1alpha1.ShardMap) { m.Nodes[0].LockRegion = nil },
		"no geometry":           func(m *farpoolv1alpha1.ShardMap) { m.Nodes[0].Shape = nil },
		"too many moves":        func(m *farpoolv1alpha1.ShardMap) { m.Move = v1alpha1.MostMoves + 1 },
		"departures in no move": func(m *farpoolv1alpha1.ShardMap) { m.Departures = depart(0, m.Tables[0].Id) },
		"no such part": func(m *farpoolv1alpha1.ShardMap) {
			m.Move, m.Departures = 1, depart(uint32(len(m.Directory)), m.Tables[0].Id)
		},
		"departure from nowhere": func(m *farpoolv1alpha1.ShardMap) { m.Move, m.Departures = 1, depart(0, 4000) },
		"a part departs twice": func(m *farpoolv1alpha1.ShardMap) {
			m.Move, m.Departures = 1, append(depart(0, m.Tables[0].Id), depart(0, m.Tables[0].Id)...)
		},
		"no groups": func(m *farpoolv1alpha1.ShardMap) {
			m.Nodes[0].LockRegion, m.Nodes[0].Shape = nil, &farpoolv1alpha1.MemoryNodeEntry_Race{Race: &farpoolv1alpha1.RaceGeometry{}}
		},
	} {
		message := golden(t)
		spoil(message)
		if _, err := FromMessage("cache", message); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func depart(part, from uint32) []*farpoolv1alpha1.Departure {
	return []*farpoolv1alpha1.Departure{{Part: part, From: from}}
}

// A deeper directory leads every key to the table that it was led to before.
func TestDeeperDirectoriesLeadToTheSameTables(t *testing.T) {
	for nodes := 1; nodes <= 8; nodes++ {
		directory := Spread(nodes)
		directory.Version = 7
		for depth := directory.Depth; depth <= MaxDepth; depth++ {
			deeper := Deepen(directory, depth)
			if deeper.Depth != depth || len(deeper.Tables) != 1<<depth || deeper.Version != directory.Version {
				t.Fatalf("depth %d, %d entries, version %d", deeper.Depth, len(deeper.Tables), deeper.Version)
			}
			for hash := range 1 << MaxDepth {
				if was, is := directory.Tables[hash&(1<<directory.Depth-1)], deeper.Tables[hash&(1<<depth-1)]; was != is {
					t.Fatalf("%d nodes at depth %d: hash %x is led to table %d, was to %d", nodes, depth, hash, is, was)
				}
			}
		}
	}
	if depth := DepthFor(3, Spread(2).Depth); depth != Spread(3).Depth {
		t.Errorf("three tables have depth %d from the directory of two on, and %d from the start", depth, Spread(3).Depth)
	}
	if depth := DepthFor(2, 8); depth != 8 {
		t.Errorf("a directory of depth 8 is to have depth %d", depth)
	}
}

func TestDirectoriesAreSpreadEvenly(t *testing.T) {
	for nodes := 1; nodes <= 256; nodes++ {
		directory := Spread(nodes)
		if len(directory.Tables) != 1<<directory.Depth || directory.Depth > MaxDepth {
			t.Fatalf("%d nodes: depth %d, %d entries", nodes, directory.Depth, len(directory.Tables))
		}
		share := make([]int, nodes)
		for _, table := range directory.Tables {
			share[table]++
		}
		least, most := share[0], share[0]
		for _, s := range share {
			least, most = min(least, s), max(most, s)
		}
		if least == 0 || most-least > 1 || (most-least == 1 && least < 12) {
			t.Errorf("%d nodes: shares from %d to %d of %d entries", nodes, least, most, len(directory.Tables))
		}
	}
	if depth := Spread(2).Depth; depth != 1 {
		t.Errorf("two tables need no more than two entries, not depth %d", depth)
	}
}

// The greatest of each number is taken, and one more is not.
func TestBounds(t *testing.T) {
	race := func(groups uint64) func(*farpoolv1alpha1.ShardMap) {
		return func(m *farpoolv1alpha1.ShardMap) {
			m.Nodes[0].LockRegion, m.Nodes[0].Shape = nil, &farpoolv1alpha1.MemoryNodeEntry_Race{Race: &farpoolv1alpha1.RaceGeometry{Groups: groups}}
		}
	}
	outback := func(buckets uint64) func(*farpoolv1alpha1.ShardMap) {
		return func(m *farpoolv1alpha1.ShardMap) {
			m.Nodes[0].LockRegion, m.Nodes[0].Shape = nil, &farpoolv1alpha1.MemoryNodeEntry_Outback{Outback: &farpoolv1alpha1.OutbackGeometry{Buckets: buckets}}
		}
	}
	deep := func(depth uint32) func(*farpoolv1alpha1.ShardMap) {
		return func(m *farpoolv1alpha1.ShardMap) {
			m.DirectoryDepth, m.Directory, m.Departures = depth, make([]uint32, 1<<depth), nil
			for part := range m.Directory {
				m.Directory[part] = m.Tables[0].Id
			}
		}
	}
	for name, c := range map[string]struct {
		most, more func(*farpoolv1alpha1.ShardMap)
	}{
		"epoch": {func(m *farpoolv1alpha1.ShardMap) { m.Epoch = v1alpha1.MostEpochs }, func(m *farpoolv1alpha1.ShardMap) { m.Epoch = v1alpha1.MostEpochs + 1 }},
		"depth": {deep(MaxDepth), deep(MaxDepth + 1)},
		"version of the directory": {func(m *farpoolv1alpha1.ShardMap) { m.DirectoryVersion = math.MaxInt64 },
			func(m *farpoolv1alpha1.ShardMap) { m.DirectoryVersion = math.MaxInt64 + 1 }},
		"departures in no move": {func(m *farpoolv1alpha1.ShardMap) { m.Move, m.Departures = 0, nil },
			func(m *farpoolv1alpha1.ShardMap) { m.Move, m.Departures = 0, depart(0, m.Tables[0].Id) }},
		"tables asked for": {func(m *farpoolv1alpha1.ShardMap) { m.LeastTables = MostTables }, func(m *farpoolv1alpha1.ShardMap) { m.LeastTables = MostTables + 1 }},
		"eviction policy": {func(m *farpoolv1alpha1.ShardMap) { m.Eviction = farpoolv1alpha1.Eviction_EVICTION_VOLATILE_TTL },
			func(m *farpoolv1alpha1.ShardMap) { m.Eviction = farpoolv1alpha1.Eviction_EVICTION_VOLATILE_TTL + 1 }},
		"node of a table": {func(m *farpoolv1alpha1.ShardMap) { m.Tables[0].Node = uint32(len(m.Nodes) - 1) },
			func(m *farpoolv1alpha1.ShardMap) { m.Tables[0].Node = uint32(len(m.Nodes)) }},
		"parts": {func(m *farpoolv1alpha1.ShardMap) {
			m.Move, m.Departures = 1, depart(uint32(len(m.Directory)-1), m.Tables[0].Id)
		}, func(m *farpoolv1alpha1.ShardMap) {
			m.Move, m.Departures = 1, depart(uint32(len(m.Directory)), m.Tables[0].Id)
		}},
		"least groups":     {race(2), race(1)},
		"least buckets":    {outback(1), outback(0)},
		"buckets":          {outback(1 << 31), outback(1<<31 + 1)},
		"groups":           {race(math.MaxUint32), race(math.MaxUint32 + 1)},
		"memory":           {func(m *farpoolv1alpha1.ShardMap) { m.Nodes[0].MemoryBytes = 0 }, func(m *farpoolv1alpha1.ShardMap) { m.Nodes[0].MemoryBytes = math.MaxInt64 + 1 }},
		"bytes of locks":   {func(m *farpoolv1alpha1.ShardMap) { m.Nodes[0].LockRegion.Bytes = math.MaxInt64 }, func(m *farpoolv1alpha1.ShardMap) { m.Nodes[0].LockRegion.Bytes = math.MaxInt64 + 1 }},
		"locks":            {func(m *farpoolv1alpha1.ShardMap) { m.Nodes[0].LockRegion.Locks = math.MaxInt64 }, func(m *farpoolv1alpha1.ShardMap) { m.Nodes[0].LockRegion.Locks = math.MaxInt64 + 1 }},
		"rows":             {func(m *farpoolv1alpha1.ShardMap) { m.Nodes[0].GetRcuckoo().Rows = math.MaxInt64 }, func(m *farpoolv1alpha1.ShardMap) { m.Nodes[0].GetRcuckoo().Rows = math.MaxInt64 + 1 }},
		"bytes of entries": {func(m *farpoolv1alpha1.ShardMap) { m.Nodes[0].GetRcuckoo().EntryBytes = math.MaxInt32 }, func(m *farpoolv1alpha1.ShardMap) { m.Nodes[0].GetRcuckoo().EntryBytes = math.MaxInt32 + 1 }},
		"entries": {func(m *farpoolv1alpha1.ShardMap) { m.Nodes[0].GetRcuckoo().EntriesPerRow = math.MaxInt32 },
			func(m *farpoolv1alpha1.ShardMap) { m.Nodes[0].GetRcuckoo().EntriesPerRow = math.MaxInt32 + 1 }},
		"rows of a lock": {func(m *farpoolv1alpha1.ShardMap) { m.Nodes[0].GetRcuckoo().RowsPerLock = math.MaxInt32 },
			func(m *farpoolv1alpha1.ShardMap) { m.Nodes[0].GetRcuckoo().RowsPerLock = math.MaxInt32 + 1 }},
		"name": {func(m *farpoolv1alpha1.ShardMap) { m.Nodes[0].Name = strings.Repeat("n", longestName) },
			func(m *farpoolv1alpha1.ShardMap) { m.Nodes[0].Name = strings.Repeat("n", longestName+1) }},
		"endpoint": {func(m *farpoolv1alpha1.ShardMap) { m.Nodes[0].Endpoint = strings.Repeat("n", LongestEndpoint) },
			func(m *farpoolv1alpha1.ShardMap) { m.Nodes[0].Endpoint = strings.Repeat("n", LongestEndpoint+1) }},
		"locks of Outback": {outback(64), func(m *farpoolv1alpha1.ShardMap) {
			m.Nodes[0].Shape = &farpoolv1alpha1.MemoryNodeEntry_Outback{Outback: &farpoolv1alpha1.OutbackGeometry{Buckets: 64}}
		}},
		"locks of RACE": {race(64), func(m *farpoolv1alpha1.ShardMap) {
			m.Nodes[0].Shape = &farpoolv1alpha1.MemoryNodeEntry_Race{Race: &farpoolv1alpha1.RaceGeometry{Groups: 64}}
		}},
	} {
		message := golden(t)
		c.most(message)
		if _, err := FromMessage("cache", message); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		message = golden(t)
		c.more(message)
		if _, err := FromMessage("cache", message); err == nil {
			t.Errorf("%s: more than there can be is accepted", name)
		}
	}
}

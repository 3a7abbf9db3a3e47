// SPDX-License-Identifier: Apache-2.0

// Package shardmap turns shard maps between their two forms: the message that memory nodes hold, and the resource that people read.
package shardmap

import (
	"fmt"
	"math"
	"slices"
	"strconv"

	farpoolv1alpha1 "farpool.dev/farpool/api/gen/farpool/v1alpha1"
	"farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/protocol"
)

// MaxDepth bounds the directory that the operator makes.
const MaxDepth = 12

// MostTables is the largest number of tables of a memory node.
const MostTables = 1 << 14

// Spread makes the directory of a new pool: one table on each of nodes, spread evenly over 2^depth entries. Where the number of
// tables is no power of two, there are at least 64 entries for each table if the bound on the depth allows it, so that shares
// differ by little.
func Spread(nodes int) v1alpha1.Directory {
	depth := DepthFor(nodes, 0)
	directory := v1alpha1.Directory{Depth: depth, Tables: make([]int32, 1<<depth)}
	for i := range directory.Tables {
		directory.Tables[i] = int32(i % nodes)
	}
	return directory
}

// DepthFor is the least depth, from one on, at which the shares of so many tables differ by little.
func DepthFor(tables int, from int32) int32 {
	depth := from
	for depth < MaxDepth {
		entries := 1 << depth
		if entries >= tables && (entries%tables == 0 || entries >= 64*tables) {
			break
		}
		depth++
	}
	return depth
}

// Deepen gives the directory 2^depth entries. Entries that are equal in the old directory's bits name the same table, so no key changes its table, and the map may
// be published at any time at which nothing departs. A client with the earlier map finds every key where clients of this map find it: table_of takes a hash's low
// bits, and the new bits decide nothing yet (dataplane/map). Clients and movers use parts only to tell whose keys leave (index::Move). Where nothing departs that
// set is empty, whatever the depth (Pool::move_of, Relocation::leaves). Buckets have the number of the move in their headers, and no depth; cursors of scans have
// tables and that number. All departures of a map have the map's depth.
func Deepen(directory v1alpha1.Directory, depth int32) v1alpha1.Directory {
	deeper := v1alpha1.Directory{Depth: depth, Version: directory.Version, Tables: make([]int32, 1<<depth)}
	for i := range deeper.Tables {
		deeper.Tables[i] = directory.Tables[i%len(directory.Tables)]
	}
	return deeper
}

// FormatIncarnation is an incarnation as resources hold it.
func FormatIncarnation(incarnation uint64) string { return strconv.FormatUint(incarnation, 10) }

// evictions are the policies as memory nodes and clients receive them. What a map leaves out is noeviction.
var evictions = map[v1alpha1.EvictionPolicy]farpoolv1alpha1.Eviction{
	"":                      farpoolv1alpha1.Eviction_EVICTION_NOEVICTION,
	v1alpha1.AllKeysLRU:     farpoolv1alpha1.Eviction_EVICTION_ALLKEYS_LRU,
	v1alpha1.AllKeysLFU:     farpoolv1alpha1.Eviction_EVICTION_ALLKEYS_LFU,
	v1alpha1.AllKeysRandom:  farpoolv1alpha1.Eviction_EVICTION_ALLKEYS_RANDOM,
	v1alpha1.VolatileLRU:    farpoolv1alpha1.Eviction_EVICTION_VOLATILE_LRU,
	v1alpha1.VolatileLFU:    farpoolv1alpha1.Eviction_EVICTION_VOLATILE_LFU,
	v1alpha1.VolatileRandom: farpoolv1alpha1.Eviction_EVICTION_VOLATILE_RANDOM,
	v1alpha1.VolatileTTL:    farpoolv1alpha1.Eviction_EVICTION_VOLATILE_TTL,
}

func policyOf(eviction farpoolv1alpha1.Eviction) (v1alpha1.EvictionPolicy, bool) {
	for policy, number := range evictions {
		if number == eviction {
			return policy, true
		}
	}
	return "", false
}

// ToMessage is the map in the form that memory nodes receive.
func ToMessage(spec *v1alpha1.ShardMapSpec) (*farpoolv1alpha1.ShardMap, error) {
	message := &farpoolv1alpha1.ShardMap{
		PoolUid:          spec.PoolUID,
		Epoch:            uint64(spec.Epoch),
		DirectoryDepth:   uint32(spec.Directory.Depth),
		DirectoryVersion: uint64(spec.Directory.Version),
		Move:             uint64(spec.Move),
		LeastTables:      uint32(spec.LeastTables),
		Eviction:         evictions[spec.Eviction],
	}
	for _, node := range spec.Nodes {
		incarnation, err := strconv.ParseUint(node.Incarnation, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("ShardMap of epoch %d: incarnation %q of node %s is no number of 64 bits", spec.Epoch, node.Incarnation, node.Name)
		}
		entry := &farpoolv1alpha1.MemoryNodeEntry{
			Name:        node.Name,
			Endpoint:    node.Endpoint,
			Incarnation: incarnation,
			State:       farpoolv1alpha1.MemoryNodeEntry_STATE_SERVING,
			MemoryBytes: uint64(node.MemoryBytes),
		}
		if node.State == v1alpha1.NodeStopped {
			entry.State = farpoolv1alpha1.MemoryNodeEntry_STATE_STOPPED
		}
		if region := node.LockRegion; region != nil {
			entry.LockRegion = &farpoolv1alpha1.LockRegion{
				Placement:   farpoolv1alpha1.LockRegion_PLACEMENT_HOST_MEMORY,
				Bytes:       uint64(region.Bytes),
				Locks:       uint64(region.Locks),
				RowsPerLock: uint32(region.RowsPerLock),
			}
			if region.Placement == v1alpha1.LockPlacementDeviceMemory {
				entry.LockRegion.Placement = farpoolv1alpha1.LockRegion_PLACEMENT_DEVICE_MEMORY
			}
		}
		for _, p := range protocol.All() {
			p.ToMessage(&node, entry)
		}
		message.Nodes = append(message.Nodes, entry)
	}
	for _, table := range spec.Tables {
		message.Tables = append(message.Tables, &farpoolv1alpha1.TableEntry{Id: uint32(table.ID), Node: uint32(table.Node)})
	}
	for _, table := range spec.Directory.Tables {
		message.Directory = append(message.Directory, uint32(table))
	}
	for _, departure := range spec.Departures {
		message.Departures = append(message.Departures, &farpoolv1alpha1.Departure{Part: uint32(departure.Part), From: uint32(departure.From)})
	}
	return message, nil
}

// FromMessage is the resource's form of a map that a memory node holds. It fails on anything that no operator writes.
func FromMessage(poolName string, message *farpoolv1alpha1.ShardMap) (*v1alpha1.ShardMapSpec, error) {
	if message.GetEpoch() == 0 || message.GetEpoch() > v1alpha1.MostEpochs {
		return nil, fmt.Errorf("a memory node holds a map of epoch %d, which no operator writes", message.GetEpoch())
	}
	if message.GetDirectoryDepth() > MaxDepth || len(message.GetDirectory()) != 1<<message.GetDirectoryDepth() {
		return nil, fmt.Errorf("the map of epoch %d has %d directory entries at depth %d", message.GetEpoch(), len(message.GetDirectory()), message.GetDirectoryDepth())
	}
	if message.GetDirectoryVersion() > math.MaxInt64 {
		return nil, fmt.Errorf("the map of epoch %d has directory version %d", message.GetEpoch(), message.GetDirectoryVersion())
	}
	if message.GetMove() > v1alpha1.MostMoves || message.GetMove() == 0 && len(message.GetDepartures()) > 0 {
		return nil, fmt.Errorf("the map of epoch %d has %d departures in move %d", message.GetEpoch(), len(message.GetDepartures()), message.GetMove())
	}
	if least := message.GetLeastTables(); least > MostTables {
		return nil, fmt.Errorf("the map of epoch %d asks for %d tables of each memory node", message.GetEpoch(), least)
	}
	eviction, known := policyOf(message.GetEviction())
	if !known {
		return nil, fmt.Errorf("the map of epoch %d has eviction policy %d, which no operator of this version writes", message.GetEpoch(), message.GetEviction())
	}
	spec := &v1alpha1.ShardMapSpec{
		PoolName: poolName,
		PoolUID:  message.GetPoolUid(),
		Epoch:    int64(message.GetEpoch()),
		EpochKey: v1alpha1.EpochKey(int64(message.GetEpoch())),
		Directory: v1alpha1.Directory{
			Depth:   int32(message.GetDirectoryDepth()),
			Version: int64(message.GetDirectoryVersion()),
		},
		Move:        int64(message.GetMove()),
		LeastTables: int32(message.GetLeastTables()),
		Eviction:    eviction,
	}
	for _, entry := range message.GetNodes() {
		node, err := NodeFromMessage(entry)
		if err != nil {
			return nil, err
		}
		spec.Nodes = append(spec.Nodes, *node)
	}
	for _, table := range message.GetTables() {
		if int(table.GetNode()) >= len(spec.Nodes) {
			return nil, fmt.Errorf("the map of epoch %d puts table %d on node %d of %d", message.GetEpoch(), table.GetId(), table.GetNode(), len(spec.Nodes))
		}
		spec.Tables = append(spec.Tables, v1alpha1.ShardMapTable{ID: int32(table.GetId()), Node: int32(table.GetNode())})
	}
	for _, table := range message.GetDirectory() {
		spec.Directory.Tables = append(spec.Directory.Tables, int32(table))
	}
	for _, departure := range message.GetDepartures() {
		before := len(spec.Departures)
		if int(departure.GetPart()) >= len(spec.Directory.Tables) || before > 0 && int64(spec.Departures[before-1].Part) >= int64(departure.GetPart()) ||
			!slices.ContainsFunc(spec.Tables, func(table v1alpha1.ShardMapTable) bool { return int64(table.ID) == int64(departure.GetFrom()) }) {
			return nil, fmt.Errorf("in the map of epoch %d part %d of %d departs from table %d, out of order or from nowhere", message.GetEpoch(), departure.GetPart(), len(spec.Directory.Tables), departure.GetFrom())
		}
		spec.Departures = append(spec.Departures, v1alpha1.Departure{Part: int32(departure.GetPart()), From: int32(departure.GetFrom())})
	}
	return spec, nil
}

// NodeFromMessage is one entry of a map.
func NodeFromMessage(entry *farpoolv1alpha1.MemoryNodeEntry) (*v1alpha1.ShardMapNode, error) {
	node := &v1alpha1.ShardMapNode{
		Name:        entry.GetName(),
		Endpoint:    entry.GetEndpoint(),
		Incarnation: FormatIncarnation(entry.GetIncarnation()),
		MemoryBytes: int64(entry.GetMemoryBytes()),
	}
	if entry.LockRegion != nil {
		var err error
		if node.LockRegion, err = LockRegionFromMessage(entry.GetLockRegion()); err != nil {
			return nil, fmt.Errorf("node %s: %w", entry.GetName(), err)
		}
	}
	p, err := protocol.OfShape(entry)
	if err == nil {
		err = p.FromMessage(entry, node)
	}
	if err != nil {
		return nil, fmt.Errorf("node %s: %w", entry.GetName(), err)
	}
	switch entry.GetState() {
	case farpoolv1alpha1.MemoryNodeEntry_STATE_SERVING:
		node.State = v1alpha1.NodeServing
	case farpoolv1alpha1.MemoryNodeEntry_STATE_STOPPED:
		node.State = v1alpha1.NodeStopped
	default:
		return nil, fmt.Errorf("node %s is in the unknown state %s", entry.GetName(), entry.GetState())
	}
	if len(node.Name) > longestName || len(node.Endpoint) > LongestEndpoint {
		return nil, fmt.Errorf("a node has a name of %d bytes and an endpoint of %d: a map holds %d and %d", len(node.Name), len(node.Endpoint), longestName, LongestEndpoint)
	}
	if node.MemoryBytes < 0 {
		return nil, fmt.Errorf("node %s claims to lend %d bytes", entry.GetName(), entry.GetMemoryBytes())
	}
	return node, nil
}

// LongestEndpoint and longestName are the most bytes that ShardMaps and statuses hold.
const (
	LongestEndpoint = 300
	longestName     = 63
)

// LockRegionFromMessage is the resource's form of a lock region.
func LockRegionFromMessage(region *farpoolv1alpha1.LockRegion) (*v1alpha1.LockRegion, error) {
	if region.GetBytes() > math.MaxInt64 || region.GetLocks() > math.MaxInt64 {
		return nil, fmt.Errorf("a lock region of %d bytes and %d locks cannot be", region.GetBytes(), region.GetLocks())
	}
	converted := &v1alpha1.LockRegion{
		Bytes:       int64(region.GetBytes()),
		Locks:       int64(region.GetLocks()),
		RowsPerLock: int64(region.GetRowsPerLock()),
	}
	switch region.GetPlacement() {
	case farpoolv1alpha1.LockRegion_PLACEMENT_HOST_MEMORY:
		converted.Placement = v1alpha1.LockPlacementHostMemory
	case farpoolv1alpha1.LockRegion_PLACEMENT_DEVICE_MEMORY:
		converted.Placement = v1alpha1.LockPlacementDeviceMemory
	default:
		return nil, fmt.Errorf("its lock region lies in %s", region.GetPlacement())
	}
	return converted, nil
}

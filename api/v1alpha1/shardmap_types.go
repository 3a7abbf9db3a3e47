// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ShardMap says, for one epoch, which memory nodes belong to a pool and which table serves which part of the hash space. It is written once. Memory
// nodes hold the map that counts, and clients read it from them; this copy is for people and for the next epoch.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=smap,categories=farpool
// +kubebuilder:selectablefield:JSONPath=`.spec.poolName`
// +kubebuilder:printcolumn:name="Pool",type=string,JSONPath=`.spec.poolName`
// +kubebuilder:printcolumn:name="Epoch",type=integer,JSONPath=`.spec.epoch`
// +kubebuilder:printcolumn:name="Published",type=string,JSONPath=`.status.conditions[?(@.type=="Published")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Published")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name == self.spec.poolName + '-' + self.spec.epochKey",message="a ShardMap is named <poolName>-<epochKey>: the name claims the epoch"
type ShardMap struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec ShardMapSpec `json:"spec"`
	// +optional
	Status ShardMapStatus `json:"status,omitempty"`
}

// ShardMapList is a list of ShardMaps.
// +kubebuilder:object:root=true
type ShardMapList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ShardMap `json:"items"`
}

// ShardMapSpec is the map of one epoch, without remote keys or hash seeds: those travel in the handshake alone.
// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="a ShardMap never changes: the operator makes the next epoch"
// +kubebuilder:validation:XValidation:rule="int(self.epochKey) == self.epoch",message="epochKey is the epoch in ten digits"
// +kubebuilder:validation:XValidation:rule="self.tables.all(t, t.node < self.nodes.size())",message="a table names its node by index into nodes"
// +kubebuilder:validation:XValidation:rule="!has(self.departures) || self.departures.size() == 0 || has(self.move) && self.move > 0",message="parts depart in a move, which has a number: set move"
// +kubebuilder:validation:XValidation:rule="!has(self.departures) || self.departures.size() == 0 || self.departures[self.departures.size() - 1].part < self.directory.tables.size()",message="a departure names its part by index into directory.tables"
type ShardMapSpec struct {
	// PoolName of the KVPool.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	PoolName string `json:"poolName"`

	// PoolUID of the KVPool: a pool of the same name made later is another pool.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	PoolUID string `json:"poolUID"`

	// Epoch of the map; a later epoch supersedes it.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=9999999999
	Epoch int64 `json:"epoch"`

	// EpochKey is the epoch in ten digits, as in the name.
	// +required
	// +kubebuilder:validation:MinLength=10
	// +kubebuilder:validation:MaxLength=10
	// +kubebuilder:validation:Pattern=`^[0-9]{10}$`
	EpochKey string `json:"epochKey"`

	// Nodes sorted by name.
	// +required
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	Nodes []ShardMapNode `json:"nodes"`

	// Tables sorted by id.
	// +required
	// +listType=map
	// +listMapKey=id
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	Tables []ShardMapTable `json:"tables"`

	// Directory from bits of a key's hash to tables.
	// +required
	Directory Directory `json:"directory"`

	// LeastTables of a RACE index: clients split the tables of every memory node ahead of keys until there are this many; 0: they split them as keys
	// come.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=16384
	LeastTables int32 `json:"leastTables,omitempty"`

	// Eviction is what clients do when a memory node has no room for a write; left out: noeviction.
	// +optional
	Eviction EvictionPolicy `json:"eviction,omitempty"`

	// Move is the number of the pool's latest move of parts of the hash space between memory nodes; 0: there has been none.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=8388607
	Move int64 `json:"move,omitempty"`

	// Departures are the parts that are on their way in that move, sorted by part; none: it is finished.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=4096
	// +kubebuilder:validation:XValidation:rule="self.map(d, d.part).isSorted()",message="departures are sorted by part"
	Departures []Departure `json:"departures,omitempty"`
}

// MostEpochs is the highest epoch: names of ShardMaps have ten digits for it.
const MostEpochs = 9_999_999_999

// MostMoves is the highest number of a pool's move that memory nodes accept.
const MostMoves = 8388607

// Departure is a part of the hash space that moves: some of its keys may still lie in the table that it comes from. The directory names the table
// that it moves to.
type Departure struct {
	// Part is an index into directory.tables.
	// +required
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=4095
	Part int32 `json:"part"`
	// From is the table that it comes from.
	// +required
	// +kubebuilder:validation:Minimum=0
	From int32 `json:"from"`
}

// NodeState says whether a node's tables serve.
// +kubebuilder:validation:Enum=Serving;Stopped
type NodeState string

const (
	NodeServing NodeState = "Serving"
	// NodeStopped: its memory was lost and the pool's dataPolicy is Store; a person decides.
	NodeStopped NodeState = "Stopped"
)

// ShardMapNode is a memory node in one epoch.
// +kubebuilder:validation:XValidation:rule="[has(self.rcuckoo), has(self.race), has(self.outback)].exists_one(x, x) && has(self.rcuckoo) == has(self.lockRegion)",message="a node has the geometry of one protocol, and a lock region if that is RCuckoo"
type ShardMapNode struct {
	// Name of the MemoryNode.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`

	// Endpoint of its session port, host:port.
	// +required
	// +kubebuilder:validation:MaxLength=300
	Endpoint string `json:"endpoint"`

	// Incarnation of its process, a decimal number of up to 64 bits.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:Pattern=`^[0-9]+$`
	Incarnation string `json:"incarnation"`

	// MemoryIncarnation is the life that formatted its memory, where that is an earlier one.
	// +optional
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:Pattern=`^[0-9]+$`
	MemoryIncarnation string `json:"memoryIncarnation,omitempty"`

	// State of its tables.
	// +required
	State NodeState `json:"state"`

	// MemoryBytes that it lends.
	// +required
	// +kubebuilder:validation:Minimum=0
	MemoryBytes int64 `json:"memoryBytes"`

	// LockRegion that it granted, for an RCuckoo table.
	// +optional
	LockRegion *LockRegion `json:"lockRegion,omitempty"`

	// RCuckoo geometry of its table: this, race or outback.
	// +optional
	RCuckoo *RCuckooGeometry `json:"rcuckoo,omitempty"`

	// RACE geometry of its table.
	// +optional
	RACE *RACEGeometry `json:"race,omitempty"`

	// Outback geometry of its table.
	// +optional
	Outback *OutbackGeometry `json:"outback,omitempty"`
}

// OutbackGeometry of a table.
type OutbackGeometry struct {
	// Buckets of four slots.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2147483648
	Buckets int64 `json:"buckets"`
}

// RACEGeometry of a table.
type RACEGeometry struct {
	// Groups of three buckets.
	// +required
	// +kubebuilder:validation:Minimum=2
	Groups int64 `json:"groups"`
}

// RCuckooGeometry of a table.
type RCuckooGeometry struct {
	// EntryBytes of one entry.
	// +required
	EntryBytes int32 `json:"entryBytes"`
	// EntriesPerRow of the table.
	// +required
	EntriesPerRow int32 `json:"entriesPerRow"`
	// RowsPerLock that one lock bit covers.
	// +required
	RowsPerLock int32 `json:"rowsPerLock"`
	// Rows of the table.
	// +required
	// +kubebuilder:validation:Minimum=0
	Rows int64 `json:"rows"`
}

// ShardMapTable is one instance of the index on one node.
type ShardMapTable struct {
	// ID of the table.
	// +required
	// +kubebuilder:validation:Minimum=0
	ID int32 `json:"id"`
	// Node is an index into nodes.
	// +required
	// +kubebuilder:validation:Minimum=0
	Node int32 `json:"node"`
}

// Directory of a map.
// +kubebuilder:validation:XValidation:rule="self.tables.size() == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096][self.depth]",message="a directory of depth d has 2^d entries"
type Directory struct {
	// Depth: the directory has 2^depth entries.
	// +required
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=12
	Depth int32 `json:"depth"`

	// Version is not in use: each memory node's own directory says how the hash space is divided within it.
	// +required
	// +kubebuilder:validation:Minimum=0
	Version int64 `json:"version"`

	// Tables by the low depth bits of the directory hash.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=4096
	Tables []int32 `json:"tables"`
}

// ShardMapStatus says how far the map has come.
type ShardMapStatus struct {
	// Conditions: Prepared, Published.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// KVPool is a key-value store whose data lies in the memory of some pods (memory nodes) and is reached through others (compute
// shards) over the Redis protocol.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=kvp,categories=farpool
// +kubebuilder:printcolumn:name="Available",type=string,JSONPath=`.status.conditions[?(@.type=="Available")].status`
// +kubebuilder:printcolumn:name="Memory",type=string,JSONPath=`.status.memory.summary`
// +kubebuilder:printcolumn:name="Compute",type=string,JSONPath=`.status.compute.summary`
// +kubebuilder:printcolumn:name="Epoch",type=integer,JSONPath=`.status.shardMap.epoch`
// +kubebuilder:printcolumn:name="Endpoint",type=string,JSONPath=`.status.endpoint`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Available")].reason`,priority=1
// +kubebuilder:printcolumn:name="Version",type=string,JSONPath=`.status.template.image`,priority=1
// +kubebuilder:printcolumn:name="Sidecars",type=integer,JSONPath=`.status.sidecars.count`,priority=1
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 32 && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",message="a pool's name has at most 32 lower-case letters, digits and '-', and begins with a letter: services and pods are named after it"
// +kubebuilder:validation:XValidation:rule="!self.metadata.name.endsWith('-nodes')",message="a pool's name does not end with -nodes: pool demo has a Service demo-nodes; choose another name"
// +kubebuilder:validation:XValidation:rule="(has(self.spec.limits) && has(self.spec.limits.maxSessions) ? self.spec.limits.maxSessions : 256) == (has(oldSelf.spec.limits) && has(oldSelf.spec.limits.maxSessions) ? oldSelf.spec.limits.maxSessions : 256) || has(oldSelf.status) && has(oldSelf.status.template) && oldSelf.status.template.version >= 4",message="spec.limits.maxSessions of a pool whose status.template.version is below 4 is fixed: its memory nodes read it from a file when they restart, and one that finds another number gives up the memory that it held; create a new pool to change it"
// +kubebuilder:validation:XValidation:rule="!has(self.spec.security) || !has(self.spec.security.passwordSecret) || !(self.spec.security.passwordSecret.name in [self.metadata.name + '-password', self.metadata.name + '-binding', self.metadata.name + '-resp-tls'])",message="spec.security.passwordSecret names a Secret that the operator makes and deletes, POOL-password for password Generated, POOL-resp-tls for TLS or POOL-binding for applications: keep your own under another name"
// +kubebuilder:validation:XValidation:rule="!has(self.spec.security) || !has(self.spec.security.resp) || !has(self.spec.security.resp.tls.secretName) || !(self.spec.security.resp.tls.secretName in [self.metadata.name + '-password', self.metadata.name + '-binding', self.metadata.name + '-resp-tls'])",message="spec.security.resp.tls.secretName names a Secret that the operator makes and deletes, such as POOL-resp-tls for mode Generated: keep your own under another name"
type KVPool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec KVPoolSpec `json:"spec"`
	// +optional
	Status KVPoolStatus `json:"status,omitempty"`
}

// KVPoolList is a list of KVPools.
// +kubebuilder:object:root=true
type KVPoolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []KVPool `json:"items"`
}

// DataPolicy says what a memory node's lost memory means.
// +kubebuilder:validation:Enum=Cache;Store
type DataPolicy string

const (
	// DataPolicyCache lets tables whose memory was lost start empty.
	DataPolicyCache DataPolicy = "Cache"
	// DataPolicyStore stops tables whose memory was lost until a person decides.
	DataPolicyStore DataPolicy = "Store"
)

// Management says whether the operator acts.
// +kubebuilder:validation:Enum=Managed;Paused
type Management string

const (
	ManagementManaged Management = "Managed"
	// ManagementPaused keeps the operator from changing anything but certificates, which it renews. The operator still reports.
	ManagementPaused Management = "Paused"
)

// KVPoolSpec says what the pool should be. What shapes remote memory is fixed at creation.
// +kubebuilder:validation:XValidation:rule="!has(self.version) || !has(self.image)",message="spec.version and spec.image both name the image of the data plane: set one of them"
// +kubebuilder:validation:XValidation:rule="!has(self.compute) || self.memory.pools.all(m, !self.compute.pools.exists(c, c.name == m.name))",message="a memory pool and a compute pool have the same name: give each its own, their objects are named after them"
// +kubebuilder:validation:XValidation:rule="has(self.failureTimeoutMilliseconds) == has(oldSelf.failureTimeoutMilliseconds) && (!has(self.failureTimeoutMilliseconds) || self.failureTimeoutMilliseconds == oldSelf.failureTimeoutMilliseconds)",message="spec.failureTimeoutMilliseconds is fixed at creation: memory nodes read it when they start; create a new pool to change it"
// +kubebuilder:validation:XValidation:rule="!has(self.failureTimeoutMilliseconds) || self.network.transport != 'TCP' || self.failureTimeoutMilliseconds >= 500",message="spec.failureTimeoutMilliseconds is shorter than TCP takes to send again what was lost (200 ms, and 400 ms the next time): a slow client would pass for a dead one; set at least 500, or leave it out for 2000"
// +kubebuilder:validation:XValidation:rule="!has(self.failureTimeoutMilliseconds) || self.network.transport != 'RoCEv2' || self.failureTimeoutMilliseconds >= 20",message="spec.failureTimeoutMilliseconds is shorter than queue pairs take to send again what was lost: a slow client would pass for a dead one; set at least 20, or leave it out for 100"
// +kubebuilder:validation:XValidation:rule="(has(self.locks) ? self.locks.placement : 'HostMemory') == (has(oldSelf.locks) ? oldSelf.locks.placement : 'HostMemory')",message="spec.locks is fixed at creation: memory nodes read it when they start; create a new pool to change it"
// +kubebuilder:validation:XValidation:rule="!has(self.locks) || self.locks.placement == 'HostMemory' || self.network.transport == 'RoCEv2' && self.index.protocol == 'RCuckoo'",message="spec.locks asks for locks in the memory of RDMA NICs, which only RCuckoo with transport RoCEv2 has: set HostMemory, or leave spec.locks out"
// +kubebuilder:validation:XValidation:rule="!has(self.compute) || self.compute.pools.map(c, c.replicas == 0 ? 0 : c.workers * (c.replicas + 1)).sum() <= (has(self.limits) && has(self.limits.maxSessions) ? self.limits.maxSessions : 256)",message="compute pools need more sessions than memory nodes have: each worker of each compute shard holds one at every memory node, and a rollout runs one shard more of each pool; the sum of workers * (replicas + 1) is at most spec.limits.maxSessions, which is 256 if left out"
// +kubebuilder:validation:XValidation:rule="!has(self.sidecars) || self.network.transport == 'TCP'",message="spec.sidecars is for pools with transport TCP: an application's pod has no RDMA device that its sidecar could use; leave spec.sidecars out, or create the pool with TCP"
// +kubebuilder:validation:XValidation:rule="!has(self.sidecars) || self.sidecars.namespaces.map(n, n.maxSidecars).sum() + (has(self.compute) ? self.compute.pools.map(c, c.replicas == 0 ? 0 : c.workers * (c.replicas + 1)).sum() : 0) <= (has(self.limits) && has(self.limits.maxSessions) ? self.limits.maxSessions : 256)",message="sidecars and compute pools together need more sessions than memory nodes have: each sidecar holds one at every memory node; the sum of maxSidecars and of workers * (replicas + 1) is at most spec.limits.maxSessions, which is 256 if left out"
// +kubebuilder:validation:XValidation:rule="self.dataPolicy != 'Store' || !has(self.memory.eviction) || self.memory.eviction == 'noeviction'",message="spec.memory.eviction of a Store is noeviction: a Store loses no key; leave it out, or create the pool with dataPolicy Cache"
type KVPoolSpec struct {
	// Version of the data plane, a tag of the image that the pool was created with; left out, that image itself. An operator upgrade never changes it. An edit
	// upgrades the pool: its compute shards are replaced first, then its memory nodes restart with the new image, one at a time, and keep their memory.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9_][A-Za-z0-9_.-]*$`
	Version string `json:"version,omitempty"`

	// Image of the data plane, in full, in place of version: [registry[:port]/]repository, with a tag, a digest, or both, such as
	// registry.example.com/farpool/dataplane:v1.2.0@sha256:…. An image with a digest is that very one, whatever becomes of the tag. An edit upgrades the pool.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="self.matches('^([A-Za-z0-9][A-Za-z0-9.-]*(:[0-9]{1,5})?/)?[a-z0-9]+([._-]+[a-z0-9]+)*(/[a-z0-9]+([._-]+[a-z0-9]+)*)*(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@sha256:[0-9a-f]{64})?$')",message="image is [registry[:port]/]repository[:tag][@sha256:digest], with a digest of 64 hexadecimal digits"
	Image string `json:"image,omitempty"`

	// ImagePullPolicy of the pool's pods: IfNotPresent if it is left out. Always finds out at each start of a container whether a tag means another image by now;
	// Never takes images that are on the Kubernetes node already. Pods of memory nodes that run keep their policy.
	// +optional
	// +kubebuilder:validation:Enum=Always;IfNotPresent;Never
	ImagePullPolicy corev1.PullPolicy `json:"imagePullPolicy,omitempty"`

	// ImagePullSecrets names Secrets of the pool's namespace with which the kubelet pulls the image. Pods of memory nodes that run keep theirs, so that an
	// upgrade to an image that needs another one waits at the first memory node until its pod is made anew. The operator's settings, and not this field, say
	// what sidecars pull with.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=8
	ImagePullSecrets []ObjectName `json:"imagePullSecrets,omitempty"`

	// DataPolicy: with Cache, tables whose memory was lost start empty; with Store, they stop until a person accepts the loss.
	// +optional
	// +kubebuilder:default=Cache
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="spec.dataPolicy is fixed at creation: create a new pool to change it"
	DataPolicy DataPolicy `json:"dataPolicy,omitempty"`

	// Management: Paused keeps the operator from changing anything but certificates, which it renews.
	// +optional
	// +kubebuilder:default=Managed
	Management Management `json:"management,omitempty"`

	// Index protocol and its geometry.
	// +optional
	// +kubebuilder:default={protocol: RCuckoo, rcuckoo: {entryBytes: 16, entriesPerRow: 8, rowsPerLock: 16, tablePercent: 25}}
	// +kubebuilder:validation:XValidation:rule="self.protocol == oldSelf.protocol && has(self.rcuckoo) == has(oldSelf.rcuckoo) && (!has(self.rcuckoo) || self.rcuckoo == oldSelf.rcuckoo) && has(self.race) == has(oldSelf.race) && (!has(self.race) || self.race.tablePercent == oldSelf.race.tablePercent && self.race.tables == oldSelf.race.tables) && has(self.outback) == has(oldSelf.outback) && (!has(self.outback) || self.outback == oldSelf.outback)",message="spec.index is fixed at creation, but for race.leastTables: it shapes remote memory; create a new pool to change it"
	Index IndexSpec `json:"index,omitempty"`

	// Memory nodes.
	// +required
	Memory MemorySpec `json:"memory"`

	// Compute shards, which speak the Redis protocol. A pool without compute shards holds memory that no application reaches, and is not Available.
	// +optional
	Compute *ComputeSpec `json:"compute,omitempty"`

	// Service by which applications reach the pool; one of type ClusterIP if it is left out.
	// +optional
	Service *ServiceSpec `json:"service,omitempty"`

	// Resize says how the number of memory nodes changes.
	// +optional
	Resize *ResizeSpec `json:"resize,omitempty"`

	// Network between clients and memory nodes.
	// +required
	Network NetworkSpec `json:"network"`

	// Locks of RCuckoo tables, and where they lie.
	// +optional
	Locks *LocksSpec `json:"locks,omitempty"`

	// Security of access to the pool.
	// +optional
	// +kubebuilder:default={password: Generated}
	Security SecuritySpec `json:"security,omitempty"`

	// Sidecars lets pods of other namespaces have a compute shard of this pool beside their containers, which a label on the pod asks for.
	// +optional
	Sidecars *SidecarsSpec `json:"sidecars,omitempty"`

	// Limits of each process; the data plane's default for each that is left out.
	// +optional
	Limits *LimitsSpec `json:"limits,omitempty"`

	// FailureTimeoutMilliseconds is how long a lock may stand still before other clients treat its holder as dead, fence it and repair what it left; if
	// left out, 2000 on TCP and 100 on RoCEv2. At least 500 on TCP, whose own retries take that long, and 20 on RoCEv2. Set more than 100
	// where pods with an RDMA device share processors, or the device is SoftRoCE: a client that is delayed for longer while it holds a lock is
	// fenced, and opens a new session.
	// +optional
	// +kubebuilder:validation:Minimum=10
	// +kubebuilder:validation:Maximum=60000
	FailureTimeoutMilliseconds int32 `json:"failureTimeoutMilliseconds,omitempty"`
}

// IndexSpec is a union by protocol.
// +kubebuilder:validation:XValidation:rule="self.protocol in ['RCuckoo', 'RACE', 'Outback']",message="unknown spec.index.protocol: this version has RCuckoo, RACE and Outback; set one of them or leave index out"
// +kubebuilder:validation:XValidation:rule="self.protocol == 'RACE' || !has(self.race)",message="spec.index.race is of protocol RACE: set spec.index.protocol to RACE, or leave race out"
// +kubebuilder:validation:XValidation:rule="self.protocol == 'Outback' || !has(self.outback)",message="spec.index.outback is of protocol Outback: set spec.index.protocol to Outback, or leave outback out"
type IndexSpec struct {
	// Protocol by which keys are found. Clients run RCuckoo and RACE on remote memory; with Outback, memory nodes execute what clients ask of them.
	// +optional
	// +kubebuilder:default=RCuckoo
	// +kubebuilder:validation:MaxLength=16
	Protocol string `json:"protocol,omitempty"`

	// RCuckoo's geometry.
	// +optional
	// +kubebuilder:default={entryBytes: 16, entriesPerRow: 8, rowsPerLock: 16, tablePercent: 25}
	RCuckoo RCuckooSpec `json:"rcuckoo,omitempty"`

	// RACE's geometry; if a RACE pool leaves it out, the default.
	// +optional
	RACE *RACESpec `json:"race,omitempty"`

	// Outback's geometry; if an Outback pool leaves it out, the default.
	// +optional
	Outback *OutbackSpec `json:"outback,omitempty"`
}

const (
	// ProtocolRCuckoo names the cuckoo index whose locks are bits that clients take by masked compare-and-swap.
	ProtocolRCuckoo = "RCuckoo"
	// ProtocolRACE names the index without locks, in which a change takes effect by one compare-and-swap.
	ProtocolRACE = "RACE"
	// ProtocolOutback names the index whose memory nodes execute operations; clients find the place of a key by a small perfect hash.
	ProtocolOutback = "Outback"
)

// OutbackSpec is the shape of an Outback table.
type OutbackSpec struct {
	// TablePercent of a memory node's memory that is for the buckets of its table. Each key takes about 12 bytes of it, and at least 48 of the rest:
	// 25 is enough for any keys, and 10 for keys and values of 70 bytes and more, which then have more room.
	// +optional
	// +kubebuilder:default=25
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=50
	TablePercent int32 `json:"tablePercent,omitempty"`
}

// RACESpec is the shape of a RACE table.
// +kubebuilder:validation:XValidation:rule="(has(self.leastTables) ? self.leastTables : 1) >= (has(oldSelf.leastTables) ? oldSelf.leastTables : 1)",message="spec.index.race.leastTables can only be raised: tables that have been split are not joined again"
// +kubebuilder:validation:XValidation:rule="!has(self.leastTables) || self.leastTables <= self.tables",message="spec.index.race.leastTables is at most tables: there are no more"
type RACESpec struct {
	// TablePercent of a memory node's memory that the index takes.
	// +optional
	// +kubebuilder:default=25
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=90
	TablePercent int32 `json:"tablePercent,omitempty"`

	// Tables is the number of tables into which this memory can be divided. A memory node begins with one table in use, and clients split it while
	// they work, as keys come, until all tables are in use. With 1, the table has all the memory from the start.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=16384
	// +kubebuilder:validation:XValidation:rule="self in [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384]",message="spec.index.race.tables is a power of two: each split makes two tables of one"
	Tables int32 `json:"tables,omitempty"`

	// LeastTables is the minimum number of tables in use on each memory node, 1 by default. Set it before a bulk load, so that the load does not wait
	// for splits. If it is raised later, clients split tables while they serve, until every memory node has that many, and a ResizeOperation shows
	// the progress. It cannot be lowered.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=16384
	// +kubebuilder:validation:XValidation:rule="self in [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384]",message="spec.index.race.leastTables is a power of two: each split makes two tables of one"
	LeastTables int32 `json:"leastTables,omitempty"`
}

// Race is RACE's geometry, with defaults for what is left out.
func (i *IndexSpec) Race() RACESpec {
	if i.RACE == nil {
		return RACESpec{TablePercent: 25, Tables: 1}
	}
	return *i.RACE
}

// OutbackShape is Outback's geometry, with defaults for what is left out.
func (i *IndexSpec) OutbackShape() OutbackSpec {
	if i.Outback == nil {
		return OutbackSpec{TablePercent: 25}
	}
	return *i.Outback
}

// RCuckooSpec is the shape of an RCuckoo table.
// +kubebuilder:validation:XValidation:rule="self.entryBytes in [16, 24, 32, 48, 64]",message="entryBytes is 16, 24, 32, 48 or 64: an entry has 2 bytes of header, and keys and values that fit the rest together are stored in it"
// +kubebuilder:validation:XValidation:rule="self.rowsPerLock in [1, 2, 4, 8, 16, 32, 64]",message="rowsPerLock is a power of two from 1 to 64"
type RCuckooSpec struct {
	// EntryBytes of one entry; longer entries hold short values inline.
	// +optional
	// +kubebuilder:default=16
	EntryBytes int32 `json:"entryBytes,omitempty"`

	// EntriesPerRow of the table.
	// +optional
	// +kubebuilder:default=8
	// +kubebuilder:validation:Minimum=2
	// +kubebuilder:validation:Maximum=16
	EntriesPerRow int32 `json:"entriesPerRow,omitempty"`

	// RowsPerLock that one lock bit covers.
	// +optional
	// +kubebuilder:default=16
	RowsPerLock int32 `json:"rowsPerLock,omitempty"`

	// TablePercent of a node's memory that its table takes; the rest is heap.
	// +optional
	// +kubebuilder:default=25
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=90
	TablePercent int32 `json:"tablePercent,omitempty"`
}

// LocksSpec says in which memory lock bits lie.
type LocksSpec struct {
	// Placement of lock bits: HostMemory, DeviceMemoryPreferred (in the memory of the RDMA NIC itself, or else in the host's) or
	// DeviceMemoryRequired (or else the memory node does not start). Memory nodes show what was granted in their status. Locks in a NIC's
	// memory have not yet run on hardware.
	// +required
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self in ['HostMemory', 'DeviceMemoryPreferred', 'DeviceMemoryRequired']",message="unknown placement: set HostMemory, DeviceMemoryPreferred or DeviceMemoryRequired, or leave spec.locks out"
	Placement string `json:"placement"`
}

// Placements that a pool may ask for.
const (
	LocksInHostMemory            = "HostMemory"
	LocksInDeviceMemoryPreferred = "DeviceMemoryPreferred"
	LocksInDeviceMemoryRequired  = "DeviceMemoryRequired"
)

// EvictionPolicy says which keys clients remove when a memory node has no room for a write, by the names that Redis gives its policies.
// +kubebuilder:validation:Enum=noeviction;allkeys-lru;allkeys-lfu;allkeys-random;volatile-lru;volatile-lfu;volatile-random;volatile-ttl
type EvictionPolicy string

const (
	// NoEviction refuses the write.
	NoEviction EvictionPolicy = "noeviction"
	// AllKeysLRU removes keys that have not been used for long.
	AllKeysLRU EvictionPolicy = "allkeys-lru"
	// AllKeysLFU removes keys that are seldom used.
	AllKeysLFU EvictionPolicy = "allkeys-lfu"
	// AllKeysRandom removes keys by chance.
	AllKeysRandom EvictionPolicy = "allkeys-random"
	// VolatileLRU removes keys that expire and have not been used for long.
	VolatileLRU EvictionPolicy = "volatile-lru"
	// VolatileLFU removes keys that expire and are seldom used.
	VolatileLFU EvictionPolicy = "volatile-lfu"
	// VolatileRandom removes keys that expire, by chance.
	VolatileRandom EvictionPolicy = "volatile-random"
	// VolatileTTL removes keys that expire, the first to expire first.
	VolatileTTL EvictionPolicy = "volatile-ttl"
)

// Evicts returns the policy for a full memory node, with the default for one that is left out.
func (s *KVPoolSpec) Evicts() EvictionPolicy {
	switch {
	case s.DataPolicy == DataPolicyStore:
		return NoEviction
	case s.Memory.Eviction == "":
		return AllKeysLRU
	}
	return s.Memory.Eviction
}

// MemorySpec lists pools of memory nodes.
type MemorySpec struct {
	// Eviction says which keys are removed when a memory node has no room for a write, with the meaning that Redis gives maxmemory-policy. Left out,
	// it is allkeys-lru for a Cache; a Store evicts nothing. Keys that have expired are removed first, whatever the policy. It can be changed at any
	// time: clients receive it with the shard map, and no pod restarts.
	// +optional
	Eviction EvictionPolicy `json:"eviction,omitempty"`

	// Pools of memory nodes that are alike. An entry can be added at any time, and its memory nodes get their share of the keys. The memory nodes of an
	// entry that is taken away, or whose replicas become 0, are drained: their keys move to the others first. At least one entry has memory nodes.
	// +required
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=6
	// +kubebuilder:validation:XValidation:rule="self.exists(p, p.replicas > 0)",message="no memory pool has memory nodes, and keys have to be somewhere: give at least one of spec.memory.pools a replica; to be rid of the keys, delete the KVPool"
	// +kubebuilder:validation:XValidation:rule="self.map(p, p.replicas).sum() <= 256",message="a pool has at most 256 memory nodes: give each more memory instead"
	Pools []MemoryPool `json:"pools"`
}

// ResizeSpec says how the number of memory nodes changes.
type ResizeSpec struct {
	// Approval of moving keys: with Required, no key moves until somebody sets spec.approval of the ResizeOperation to Approved.
	// +optional
	// +kubebuilder:default=Automatic
	// +kubebuilder:validation:Enum=Automatic;Required
	Approval ResizeApproval `json:"approval,omitempty"`

	// Evacuation of memory nodes whose Kubernetes node is about to be emptied: it is cordoned, as kubectl drain does first, or an autoscaler has
	// tainted it. With Automatic, their keys move to other memory nodes, and then each pod is deleted and made again elsewhere. No memory node's pod
	// is evicted before that. With Disabled, they stay, and a Cache's pods may be evicted with the keys that they hold, one at a time.
	// +optional
	// +kubebuilder:default=Automatic
	// +kubebuilder:validation:Enum=Automatic;Disabled
	Evacuation Evacuation `json:"evacuation,omitempty"`
}

// Evacuation says what happens to memory nodes whose Kubernetes node is about to be emptied.
type Evacuation string

const (
	// EvacuationAutomatic moves their keys, and then their pods.
	EvacuationAutomatic Evacuation = "Automatic"
	// EvacuationDisabled leaves them where they are.
	EvacuationDisabled Evacuation = "Disabled"
)

// MemoryPool is a number of memory nodes that are alike.
// +kubebuilder:validation:XValidation:rule="quantity(string(self.lend)).asInteger() == quantity(string(oldSelf.lend)).asInteger()",message="lend is fixed at creation: it shapes the tables; create a new pool to change it"
// +kubebuilder:validation:XValidation:rule="[quantity(string(self.lend))].all(q, q.compareTo(quantity('16Mi')) >= 0 && q.compareTo(quantity('64Ti')) <= 0)",message="lend is from 16Mi to 64Ti for each memory node"
// +kubebuilder:validation:XValidation:rule="[quantity(string(self.lend))].all(q, q.isInteger() && q.asInteger() % 4096 == 0)",message="lend must be a multiple of the page size, 4Ki: write a whole number such as 256Mi or 8Gi"
// +kubebuilder:validation:XValidation:rule="!has(self.hugePages) || self.hugePages != '2Mi' || quantity(string(self.lend)).asInteger() % 2097152 == 0",message="lend must be a multiple of the huge page, 2Mi"
// +kubebuilder:validation:XValidation:rule="!has(self.hugePages) || self.hugePages != '1Gi' || quantity(string(self.lend)).asInteger() % 1073741824 == 0",message="lend must be a multiple of the huge page, 1Gi"
// +kubebuilder:validation:XValidation:rule="has(self.hugePages) == has(oldSelf.hugePages) && (!has(self.hugePages) || self.hugePages == oldSelf.hugePages)",message="hugePages is fixed at creation: create a new pool to change it"
// +kubebuilder:validation:XValidation:rule="has(self.numaAlignment) == has(oldSelf.numaAlignment) && (!has(self.numaAlignment) || self.numaAlignment == oldSelf.numaAlignment)",message="numaAlignment is fixed at creation: create a new pool to change it"
// +kubebuilder:validation:XValidation:rule="!has(self.numaAlignment) || self.numaAlignment != 'SingleNUMANode' || (has(self.resources) && has(self.resources.limits) && 'cpu' in self.resources.limits && quantity(string(self.resources.limits['cpu'])).isInteger())",message="numaAlignment SingleNUMANode needs resources.limits.cpu, a whole number: the kubelet aligns only pods that have processors of their own"
type MemoryPool struct {
	// Name of the pool, unique among memory and compute pools. It has no '-': objects are named after the KVPool and this name with a '-' in between, and those of two KVPools must differ.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:XValidation:rule="!self.contains('-')",message="a memory pool's name has no '-': entry b-c of pool a and entry c of pool a-b would have objects of the same names; write it as one word"
	// +kubebuilder:validation:Pattern=`^[a-z]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name"`

	// Replicas is the number of memory nodes. It can be changed at any time: memory nodes that are added get their share of the keys. Memory nodes
	// that are removed, the ones with the highest ordinals, are drained first; with 0, all are. The memory pool's MemoryNodePool may be scaled to
	// another number, which holds until this one changes.
	// +required
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=256
	Replicas int32 `json:"replicas"`

	// Capacity lets the operator add memory nodes as they fill. The operator never removes any for it.
	// +optional
	Capacity *CapacityPolicy `json:"capacity,omitempty"`

	// Workers is the number of threads of each memory node that execute what clients ask for: operations of an Outback index, and verbs over TCP and
	// shared memory; 1 if left out. Memory nodes that run keep their number, and pods that are made later have the new one.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=64
	Workers int32 `json:"workers,omitempty"`

	// Lend is the memory that each memory node lends to the pool: its table, and the blocks that keys and values lie in. Its pod requests more: what the
	// process itself needs, from Resources, comes on top, and status.requests of each MemoryNode says the sum.
	// +required
	Lend resource.Quantity `json:"lend"`

	// HugePages that hold the memory; its Kubernetes nodes must have reserved them. Lend is a multiple of their size. Where it is left
	// out, the kernel makes huge pages by itself as far as it can.
	// +optional
	HugePages HugePages `json:"hugePages,omitempty"`

	// NUMAAlignment: with SingleNUMANode, a memory node ends with an error unless all its memory is on one NUMA node, which is that of its RDMA
	// device. Its pod asks for whole processors and has requests equal to limits, so that the kubelet can align it.
	// +optional
	NUMAAlignment NUMAAlignment `json:"numaAlignment,omitempty"`

	// Pod says more of the pods: where they may run, and what they carry.
	// +optional
	Pod *PodOptions `json:"pod,omitempty"`

	// Resources of the process itself; the memory it lends is added to request and limit. If neither has cpu, its pod requests 100m, or 500m for
	// each worker in an Outback pool. Memory nodes of Outback execute all operations, at 1 to 2 microseconds of a processor each: request what the
	// pool's rate needs.
	// +optional
	Resources *Resources `json:"resources,omitempty"`
}

// CapacityPolicy says when a memory pool grows by a memory node, and how far. Keys move to each before the next is added.
type CapacityPolicy struct {
	// FillPercent is how full the fullest memory node's table or heap may get before the memory pool grows. The memory pool also grows when writes
	// are refused for lack of memory.
	// +optional
	// +kubebuilder:default=80
	// +kubebuilder:validation:Minimum=10
	// +kubebuilder:validation:Maximum=95
	FillPercent int32 `json:"fillPercent,omitempty"`

	// MaxReplicas that it grows to.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=256
	MaxReplicas int32 `json:"maxReplicas"`
}

// HugePages names a size of pages.
// +kubebuilder:validation:Enum="2Mi";"1Gi"
type HugePages string

const (
	HugePages2Mi HugePages = "2Mi"
	HugePages1Gi HugePages = "1Gi"
)

// NUMAAlignment says where memory must lie.
// +kubebuilder:validation:Enum=None;SingleNUMANode
type NUMAAlignment string

const (
	NUMAAlignmentNone   NUMAAlignment = "None"
	NUMAAlignmentSingle NUMAAlignment = "SingleNUMANode"
)

// ComputeSpec lists pools of compute shards.
type ComputeSpec struct {
	// Pools of compute shards that are alike.
	// +required
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	Pools []ComputePool `json:"pools"`
}

// ComputePool is a number of compute shards that are alike.
type ComputePool struct {
	// Name of the pool, unique among memory and compute pools. It has no '-': objects are named after the KVPool and this name with a '-' in between, and those of two KVPools must differ.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:XValidation:rule="!self.contains('-')",message="a compute pool's name has no '-': entry b-c of pool a and entry c of pool a-b would have objects of the same names; write it as one word"
	// +kubebuilder:validation:Pattern=`^[a-z]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name"`

	// Replicas is the number of compute shards; it may be changed at any time. The compute pool's ComputeShardPool may be scaled to another
	// number, which holds until this one is changed.
	// +required
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1024
	Replicas int32 `json:"replicas"`

	// Workers is the number of threads of each shard.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=64
	Workers int32 `json:"workers,omitempty"`

	// Pod says more of the pods: where they may run, and what they carry.
	// +optional
	Pod *PodOptions `json:"pod,omitempty"`

	// Resources of the pods.
	// +optional
	Resources *Resources `json:"resources,omitempty"`
}

// Resources of a container.
type Resources struct {
	// Requests by resource name.
	// +optional
	Requests corev1.ResourceList `json:"requests,omitempty"`

	// Limits by resource name.
	// +optional
	Limits corev1.ResourceList `json:"limits,omitempty"`
}

// Toleration of a taint, as Kubernetes has it.
type Toleration struct {
	// Key of the taint; empty with operator Exists tolerates every taint.
	// +optional
	// +kubebuilder:validation:MaxLength=316
	Key string `json:"key,omitempty"`

	// Operator between key and value.
	// +optional
	// +kubebuilder:validation:Enum=Exists;Equal
	Operator corev1.TolerationOperator `json:"operator,omitempty"`

	// Value of the taint.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Value string `json:"value,omitempty"`

	// Effect of the taint; empty is all of them.
	// +optional
	// +kubebuilder:validation:Enum=NoSchedule;PreferNoSchedule;NoExecute
	Effect corev1.TaintEffect `json:"effect,omitempty"`

	// TolerationSeconds bounds a NoExecute toleration.
	// +optional
	TolerationSeconds *int64 `json:"tolerationSeconds,omitempty"`
}

// NetworkSpec says how clients reach memory nodes.
// +kubebuilder:validation:XValidation:rule="has(self.sharedMemory) == has(oldSelf.sharedMemory) && (!has(self.sharedMemory) || self.sharedMemory == oldSelf.sharedMemory)",message="spec.network.sharedMemory is fixed at creation: create a new pool to change it"
// +kubebuilder:validation:XValidation:rule="!has(self.sharedMemory) || self.transport == 'TCP'",message="spec.network.sharedMemory goes with transport TCP alone, as words that a NIC changes by atomics are not changed by a memory node's processor: leave it out, or set TCP"
// +kubebuilder:validation:XValidation:rule="self.transport != 'RoCEv2' || has(self.attachment)",message="transport RoCEv2 needs spec.network.attachment, by which pods get an RDMA device: set its type to SharedDevicePlugin, SRIOV, DRA or HostNetwork"
// +kubebuilder:validation:XValidation:rule="self.transport != 'TCP' || !has(self.attachment)",message="spec.network.attachment is of RDMA, and transport TCP uses none: set transport RoCEv2, or leave attachment out"
// +kubebuilder:validation:XValidation:rule="self.transport != 'TCP' || !has(self.trafficClass)",message="spec.network.trafficClass is of RDMA, and transport TCP uses none: set transport RoCEv2, or leave trafficClass out"
// +kubebuilder:validation:XValidation:rule="has(self.attachment) == has(oldSelf.attachment) && (!has(self.attachment) || self.attachment == oldSelf.attachment)",message="spec.network.attachment is fixed at creation: memory nodes keep their pods; create a new pool to change it"
// +kubebuilder:validation:XValidation:rule="has(self.trafficClass) == has(oldSelf.trafficClass) && (!has(self.trafficClass) || self.trafficClass == oldSelf.trafficClass)",message="spec.network.trafficClass is fixed at creation: memory nodes read it when they start; create a new pool to change it"
type NetworkSpec struct {
	// Transport of the verbs. It has no default: a silent fallback from RDMA would be worse than a refusal.
	// +required
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:XValidation:rule="self in ['TCP', 'RoCEv2', 'InfiniBand']",message="unknown transport: set TCP, which works on any network, or RoCEv2"
	// +kubebuilder:validation:XValidation:rule="self != 'InfiniBand'",message="InfiniBand is refused until this version has its wire: set RoCEv2 where the NICs' ports are Ethernet, or TCP, which works on any network"
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="spec.network.transport is fixed at creation: create a new pool to change it"
	Transport Transport `json:"transport"`

	// Attachment is how pods get an RDMA device and its network. RDMA pods run as root, without any capability but IPC_LOCK: their namespace needs
	// the privileged level of Pod Security.
	// +optional
	Attachment *AttachmentSpec `json:"attachment,omitempty"`

	// TrafficClass of RDMA packets: the DSCP times four. Kubernetes nodes and switches define which classes are lossless.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=255
	TrafficClass *int32 `json:"trafficClass,omitempty"`

	// SharedMemory lets compute shards and memory nodes on the same Kubernetes node communicate over rings in shared memory. On different Kubernetes
	// nodes, and if it is left out, they use the transport.
	// +optional
	SharedMemory *SharedMemory `json:"sharedMemory,omitempty"`
}

// SharedMemory says where processes of one Kubernetes node find each other.
type SharedMemory struct {
	// HostPath is a directory of the Kubernetes nodes to which only user and group 65532 may write: another process with that right could take the
	// place of a memory node. Pods wait until the directory exists.
	// +required
	// +kubebuilder:validation:MinLength=2
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="self.matches('^(/[A-Za-z0-9_][A-Za-z0-9_.-]*)+$')",message="hostPath is an absolute path, without .. or a slash at its end, such as /run/farpool"
	HostPath string `json:"hostPath"`

	// SpinMicroseconds is how long a process polls its rings before it sleeps: lower latency for more processor time.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	SpinMicroseconds int32 `json:"spinMicroseconds,omitempty"`
}

// AttachmentSpec is a union by type.
// +kubebuilder:validation:XValidation:rule="has(self.sharedDevicePlugin) == (self.type == 'SharedDevicePlugin')",message="sharedDevicePlugin must be set exactly when type is SharedDevicePlugin"
// +kubebuilder:validation:XValidation:rule="has(self.sriov) == (self.type == 'SRIOV')",message="sriov must be set exactly when type is SRIOV"
// +kubebuilder:validation:XValidation:rule="has(self.dra) == (self.type == 'DRA')",message="dra must be set exactly when type is DRA"
// +kubebuilder:validation:XValidation:rule="has(self.hostNetwork) == (self.type == 'HostNetwork')",message="hostNetwork must be set exactly when type is HostNetwork"
type AttachmentSpec struct {
	// Type of attachment.
	// +required
	Type AttachmentType `json:"type"`

	// SharedDevicePlugin: k8s-rdma-shared-dev-plugin gives many pods the same device.
	// +optional
	SharedDevicePlugin *SharedDevicePluginAttachment `json:"sharedDevicePlugin,omitempty"`

	// SRIOV: the SR-IOV device plugin gives each pod a virtual function, which the network moves into it.
	// +optional
	SRIOV *SRIOVAttachment `json:"sriov,omitempty"`

	// DRA: a driver of dynamic resource allocation gives the device.
	// +optional
	DRA *DRAAttachment `json:"dra,omitempty"`

	// HostNetwork: pods use the network of their Kubernetes node, and the device by a device plugin. Pods of one pool then take the same
	// ports of the node, so that each needs a Kubernetes node of its own.
	// +optional
	HostNetwork *HostNetworkAttachment `json:"hostNetwork,omitempty"`
}

// AttachmentType names a way to an RDMA device.
// +kubebuilder:validation:Enum=SharedDevicePlugin;SRIOV;DRA;HostNetwork
type AttachmentType string

const (
	AttachmentSharedDevicePlugin AttachmentType = "SharedDevicePlugin"
	AttachmentSRIOV              AttachmentType = "SRIOV"
	AttachmentDRA                AttachmentType = "DRA"
	AttachmentHostNetwork        AttachmentType = "HostNetwork"
)

// SharedDevicePluginAttachment names the plugin's resource.
type SharedDevicePluginAttachment struct {
	// ResourceName that the plugin offers, such as rdma/hca_shared_devices_a.
	// +required
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?$')",message="resourceName is prefix/name, such as rdma/hca_shared_devices_a"
	ResourceName string `json:"resourceName"`

	// Network is the NetworkAttachmentDefinition, [namespace/]name, of a network on the same NIC (macvlan), which Multus brings into the pods as
	// interface rdma0. Without one, lanes go from the address that the device has on the Kubernetes node.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^([a-z0-9]([-a-z0-9]*[a-z0-9])?/)?[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')",message="network is the name of one NetworkAttachmentDefinition, or namespace/name"
	Network string `json:"network,omitempty"`
}

// SRIOVAttachment names the plugin's resource and the network that goes with it.
type SRIOVAttachment struct {
	// ResourceName that the plugin offers, such as openshift.io/rdma_exclusive_device.
	// +required
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?$')",message="resourceName is prefix/name, such as openshift.io/rdma_exclusive_device"
	ResourceName string `json:"resourceName"`

	// Network is the NetworkAttachmentDefinition, [namespace/]name, that moves the virtual function into the pods (sriov, with rdma chained),
	// as interface rdma0.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^([a-z0-9]([-a-z0-9]*[a-z0-9])?/)?[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')",message="network is the name of one NetworkAttachmentDefinition, or namespace/name"
	Network string `json:"network"`
}

// DRAAttachment names what is claimed.
type DRAAttachment struct {
	// ResourceClaimTemplateName in the pool's namespace; each pod gets a claim made from it.
	// +required
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')",message="resourceClaimTemplateName is the name of a ResourceClaimTemplate in the pool's namespace"
	ResourceClaimTemplateName string `json:"resourceClaimTemplateName"`

	// Interface whose address lanes go from, as the driver names it in the pod; by default the device's first address.
	// +optional
	// +kubebuilder:validation:MaxLength=15
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9_][A-Za-z0-9_.-]*$')",message="interface is the name of a network interface, such as eth1"
	Interface string `json:"interface,omitempty"`
}

// HostNetworkAttachment names the device plugin's resource and the node's interface.
type HostNetworkAttachment struct {
	// ResourceName of a device plugin, which lets the pods use the device without being privileged.
	// +required
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?$')",message="resourceName is prefix/name, such as rdma/hca_shared_devices_a"
	ResourceName string `json:"resourceName"`

	// Interface of the Kubernetes nodes whose address lanes go from; by default the device's first address.
	// +optional
	// +kubebuilder:validation:MaxLength=15
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9_][A-Za-z0-9_.-]*$')",message="interface is the name of a network interface, such as ens2f0"
	Interface string `json:"interface,omitempty"`
}

// Transport of verbs between clients and memory nodes.
type Transport string

const (
	// TransportTCP has a software NIC in each memory node.
	TransportTCP Transport = "TCP"
	// TransportRoCEv2 has RDMA devices, or SoftRoCE, on both sides.
	TransportRoCEv2 Transport = "RoCEv2"
)

// ResourceName that pods ask a device plugin for; empty where a driver gives the device.
func (a *AttachmentSpec) ResourceName() string {
	switch {
	case a.SharedDevicePlugin != nil:
		return a.SharedDevicePlugin.ResourceName
	case a.SRIOV != nil:
		return a.SRIOV.ResourceName
	case a.HostNetwork != nil:
		return a.HostNetwork.ResourceName
	}
	return ""
}

// NetworkName is of the network that Multus brings into the pods, [namespace/]name, if there is to be one.
func (a *AttachmentSpec) NetworkName() string {
	switch {
	case a == nil:
	case a.SharedDevicePlugin != nil:
		return a.SharedDevicePlugin.Network
	case a.SRIOV != nil:
		return a.SRIOV.Network
	}
	return ""
}

// PasswordMode says whether applications must authenticate.
// +kubebuilder:validation:Enum=Generated;Secret;None
type PasswordMode string

const (
	// PasswordGenerated makes the operator generate a password in Secret <pool>-password.
	PasswordGenerated PasswordMode = "Generated"
	// PasswordSecret takes the password from a Secret that people keep.
	PasswordSecret PasswordMode = "Secret"
	PasswordNone   PasswordMode = "None"
)

// TLSMode says where a certificate comes from.
// +kubebuilder:validation:Enum=Disabled;Generated;Secret;Issuer
type TLSMode string

const (
	// TLSDisabled: there is no TLS.
	TLSDisabled TLSMode = "Disabled"
	// TLSGenerated: the operator makes the certificate, of the pool's own authority.
	TLSGenerated TLSMode = "Generated"
	// TLSFromSecret takes the certificate from a Secret that people keep.
	TLSFromSecret TLSMode = "Secret"
	// TLSFromIssuer lets an issuer of cert-manager sign the certificate.
	TLSFromIssuer TLSMode = "Issuer"
)

// SecuritySpec says who may use the pool, and how. Inside the pool every connection has mutual TLS.
// +kubebuilder:validation:XValidation:rule="has(self.passwordSecret) == (self.password == 'Secret')",message="security.passwordSecret must be set exactly when security.password is Secret"
type SecuritySpec struct {
	// Password for the Redis protocol: Generated puts one into Secret <pool>-password, key password; Secret takes it from passwordSecret; None asks for
	// none. Compute shards read it again when it changes.
	// +optional
	// +kubebuilder:default=Generated
	Password PasswordMode `json:"password,omitempty"`

	// PasswordSecret has the password, if password is Secret. Pods of compute shards wait until it exists. The operator reads it only if it has the label
	// farpool.dev/pool with the pool's name, and makes a Secret for applications then (status.binding).
	// +optional
	PasswordSecret *SecretKey `json:"passwordSecret,omitempty"`

	// RESP says what protects the Redis port; plain text if it is left out.
	// +optional
	RESP *RESPSpec `json:"resp,omitempty"`
}

// RESPSpec says what protects the Redis port.
type RESPSpec struct {
	// TLS of the Redis port.
	// +optional
	// +kubebuilder:default={mode: Disabled}
	TLS TLSSpec `json:"tls,omitempty"`
}

// TLSSpec says which certificate compute shards show to applications.
// +kubebuilder:validation:XValidation:rule="has(self.secretName) == (self.mode == 'Secret')",message="tls.secretName must be set exactly when tls.mode is Secret"
// +kubebuilder:validation:XValidation:rule="!has(self.dnsNames) || self.mode in ['Generated', 'Issuer']",message="tls.dnsNames are of certificates that the operator makes or asks for: set tls.mode Generated or Issuer, or have the names in your certificate and leave dnsNames out"
// +kubebuilder:validation:XValidation:rule="has(self.issuer) == (self.mode == 'Issuer')",message="tls.issuer must be set exactly when tls.mode is Issuer"
// +kubebuilder:validation:XValidation:rule="self.mode == 'Issuer' || !has(self.duration) && !has(self.renewBefore)",message="tls.duration and tls.renewBefore are of certificates that an issuer signs: set tls.mode Issuer, or leave them out"
// +kubebuilder:validation:XValidation:rule="!has(self.renewBefore) || duration(self.renewBefore) < (has(self.duration) ? duration(self.duration) : duration('2160h'))",message="tls.renewBefore is shorter than tls.duration, which is 2160h if left out"
type TLSSpec struct {
	// Mode: with Generated, the operator makes a certificate of the pool's own authority (ca.crt in Secret <pool>-resp-tls), and renews it. With Secret,
	// the certificate is the one of secretName. With Issuer, the operator asks cert-manager for one, and cert-manager renews it in Secret <pool>-issued-tls.
	// With Disabled, the port is plain.
	// +optional
	// +kubebuilder:default=Disabled
	Mode TLSMode `json:"mode,omitempty"`

	// SecretName of a Secret in the pool's namespace, of type kubernetes.io/tls, that has tls.crt and tls.key, and ca.crt unless applications trust its
	// authority anyway. Pods of compute shards wait until it exists, and read it again when it changes. The operator reads it only if it has the label
	// farpool.dev/pool with the pool's name: then condition CertificatesReady says what is wrong with it, and applications get ca.crt in the Secret of
	// status.binding.
	// +optional
	SecretName ObjectName `json:"secretName,omitempty"`

	// Issuer of cert-manager that signs the certificate, if mode is Issuer. The operator makes a Certificate <pool>-issued-tls for it. Pods of compute shards
	// wait until cert-manager has made the Secret of the same name, and read it again when it is renewed; condition CertificatesReady says what is missing.
	// +optional
	Issuer *IssuerReference `json:"issuer,omitempty"`

	// DNSNames by which applications outside of the cluster call the pool. A generated certificate has them beside the names of the pool's Service. One that an
	// issuer signs has these names and no others, because public authorities sign no names inside a cluster; left out, it has those of the Service.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	DNSNames []DNSName `json:"dnsNames,omitempty"`

	// Duration that the issuer is asked for, such as 2160h; left out, cert-manager's default, which is that. An issuer may give another one.
	// +optional
	Duration IssuedDuration `json:"duration,omitempty"`

	// RenewBefore is how long before the certificate ends cert-manager renews it, such as 360h; left out, a third of the duration.
	// +optional
	RenewBefore IssuedDuration `json:"renewBefore,omitempty"`
}

// IssuerReference names an issuer of cert-manager, or of another controller that signs its CertificateRequests.
type IssuerReference struct {
	// Name of the issuer.
	// +required
	Name ObjectName `json:"name"`

	// Kind of the issuer: Issuer, in the pool's namespace, or ClusterIssuer, or a kind of the group.
	// +optional
	// +kubebuilder:default=Issuer
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[A-Za-z]([-A-Za-z0-9]*[A-Za-z0-9])?$`
	Kind string `json:"kind,omitempty"`

	// Group of the kind: that of cert-manager, or of an external issuer.
	// +optional
	// +kubebuilder:default=cert-manager.io
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	Group string `json:"group,omitempty"`
}

// IssuedDuration is a time of a certificate that an issuer signs, in hours, minutes and seconds.
// +kubebuilder:validation:MaxLength=20
// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}h)?([0-9]{1,4}m)?([0-9]{1,4}s)?$') && duration(self) >= duration('5m')",message="a duration is in hours, minutes and seconds, such as 2160h or 1h30m, and 5m or longer"
type IssuedDuration string

// DNSName is a name in a certificate.
// +kubebuilder:validation:MaxLength=253
// +kubebuilder:validation:XValidation:rule="self.matches('^([*][.])?[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",message="a DNS name has lower-case letters, digits, '-' and '.', such as cache.example.com, or begins with *. for all names of a domain"
type DNSName string

// TLS returns what protects the Redis port, with the default for what is left out.
func (s *SecuritySpec) TLS() TLSSpec {
	if s.RESP == nil || s.RESP.TLS.Mode == "" {
		return TLSSpec{Mode: TLSDisabled}
	}
	return s.RESP.TLS
}

// SecretKey names a key of a Secret in the pool's namespace.
type SecretKey struct {
	// Name of the Secret.
	// +required
	Name ObjectName `json:"name"`

	// Key in it whose value counts, without a line end after it.
	// +optional
	// +kubebuilder:default=password
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=248
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9_-][A-Za-z0-9._-]*$`
	Key string `json:"key,omitempty"`
}

// SidecarsSpec says who may have sidecars.
type SidecarsSpec struct {
	// Namespaces whose pods may have a sidecar of this pool. Each gets a certificate of the pool in a Secret. A sidecar reads and writes the
	// whole pool, so that everybody who may create pods, run commands in them or read Secrets in such a namespace has all of the pool's keys. The
	// pool's own namespace is no exception: its pods get sidecars if it is listed.
	// +required
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	Namespaces []SidecarNamespace `json:"namespaces"`
}

// SidecarNamespace is a namespace whose pods may have sidecars.
type SidecarNamespace struct {
	// Name of the namespace.
	// +required
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",message="a namespace's name has lower-case letters, digits and '-', and begins and ends with a letter or digit"
	// +kubebuilder:validation:XValidation:rule="self != 'kube-system'",message="kube-system gets no sidecars: its pods have to start when everything else is down"
	Name string `json:"name"`

	// MaxSidecars is how many pods of the namespace may have a sidecar at once, pods that a rollout adds among them. Each takes a session of
	// every memory node (spec.limits.maxSessions).
	// +optional
	// +kubebuilder:default=32
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65536
	MaxSidecars int32 `json:"maxSidecars,omitempty"`
}

// SidecarNamespace returns the entry of a namespace; nil: its pods may have no sidecars of this pool.
func (s *KVPoolSpec) SidecarNamespace(name string) *SidecarNamespace {
	if s.Sidecars == nil {
		return nil
	}
	for i := range s.Sidecars.Namespaces {
		if s.Sidecars.Namespaces[i].Name == name {
			return &s.Sidecars.Namespaces[i]
		}
	}
	return nil
}

// DefaultMaxSessions of a memory node.
const DefaultMaxSessions = 256

// LimitsSpec bounds each process.
type LimitsSpec struct {
	// MaxConnections of one compute shard.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000
	MaxConnections *int32 `json:"maxConnections,omitempty"`

	// MaxPipeline is the number of commands of one connection that may be under way.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100000
	MaxPipeline *int32 `json:"maxPipeline,omitempty"`

	// OperationDeadlineMilliseconds after which a command fails rather than waits.
	// +optional
	// +kubebuilder:validation:Minimum=10
	// +kubebuilder:validation:Maximum=600000
	OperationDeadlineMilliseconds *int32 `json:"operationDeadlineMilliseconds,omitempty"`

	// MaxSessions of one memory node; each worker of each compute shard holds one. 256 if left out. It shapes the memory, so memory nodes that run
	// keep their number, and pods that are made later have the new one; condition UpToDate says which memory nodes have an older number.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65536
	MaxSessions *int32 `json:"maxSessions,omitempty"`
}

// KVPoolStatus says what is. Only the operator writes it.
type KVPoolStatus struct {
	// Conditions: Available, Progressing, Degraded, SpecValid, DataPlaneReachable, MemoryPressure, CertificatesReady, UpToDate.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// ObservedGeneration of the spec that this status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// Endpoint of the Redis protocol inside the cluster, host:port.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	Endpoint string `json:"endpoint,omitempty"`

	// Binding is the Secret, of type servicebinding.io/redis, with what an application needs to reach the pool: a KVPool is a Provisioned Service, as the Service
	// Binding Specification for Kubernetes calls it. It is left out while something of it is not known.
	// +optional
	Binding *BindingReference `json:"binding,omitempty"`

	// Certificate is the one of cert-manager that the operator has made, or is about to make, for tls.mode Issuer.
	// +optional
	Certificate *CertificateReference `json:"certificate,omitempty"`

	// Memory nodes that serve, out of those in the spec.
	// +optional
	Memory *CountStatus `json:"memory,omitempty"`

	// Compute shards that are ready, out of those in the spec.
	// +optional
	Compute *CountStatus `json:"compute,omitempty"`

	// ShardMap that memory nodes follow.
	// +optional
	ShardMap *ShardMapReference `json:"shardMap,omitempty"`

	// Template that pods are made from, frozen when the pool was made.
	// +optional
	Template *TemplateStatus `json:"template,omitempty"`

	// Sidecars that pods have, and whether namespaces that may have some can.
	// +optional
	Sidecars *SidecarsStatus `json:"sidecars,omitempty"`

	// Processes that an earlier operator has written down here. They move to the status of the pool's ComputeShardPools, which has all others.
	// +optional
	// +listType=map
	// +listMapKey=process
	// +kubebuilder:validation:MaxItems=1024
	Processes []ProcessStatus `json:"processes,omitempty"`
}

// SidecarsStatus counts sidecars.
type SidecarsStatus struct {
	// Count of pods, in all listed namespaces, that have a sidecar of this pool and have not ended.
	// +optional
	Count int32 `json:"count,omitempty"`
	// Namespaces of the spec.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	Namespaces []SidecarNamespaceStatus `json:"namespaces,omitempty"`
}

// SidecarState says whether pods of a namespace can have sidecars.
// +kubebuilder:validation:Enum=Ready;Pending
type SidecarState string

const (
	// SidecarsReady: the namespace has what sidecars need.
	SidecarsReady SidecarState = "Ready"
	// SidecarsPending: it does not have it yet; the reason says why.
	SidecarsPending SidecarState = "Pending"
)

// SidecarNamespaceStatus is what one namespace has.
type SidecarNamespaceStatus struct {
	// Name of the namespace.
	// +required
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`
	// State: Ready, if the namespace has the Secret that sidecars need.
	// +required
	State SidecarState `json:"state"`
	// Sidecars in pods of the namespace.
	// +optional
	Sidecars int32 `json:"sidecars,omitempty"`
	// Outdated sidecars among them: their pods were made when the pool had another image or other spec.limits. They serve, and get what the
	// pool has now when their pods are made again.
	// +optional
	Outdated int32 `json:"outdated,omitempty"`
	// Reason for which it is not ready, or for which it soon can have no more sidecars.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Reason string `json:"reason,omitempty"`
	// Message for people about the reason.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
}

// OfNamespace returns what one namespace has; nil: nothing is known of it yet.
func (s *SidecarsStatus) OfNamespace(name string) *SidecarNamespaceStatus {
	if s == nil {
		return nil
	}
	for i := range s.Namespaces {
		if s.Namespaces[i].Name == name {
			return &s.Namespaces[i]
		}
	}
	return nil
}

// ProcessStatus is one process of a compute shard.
type ProcessStatus struct {
	// Process that memory nodes know it as, 16 hexadecimal digits.
	// +required
	// +kubebuilder:validation:MinLength=16
	// +kubebuilder:validation:MaxLength=16
	Process string `json:"process"`
	// Name of its pod.
	// +required
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// PodUID of its pod: a pod of the same name made later is another.
	// +required
	// +kubebuilder:validation:MaxLength=64
	PodUID string `json:"podUID"`
	// NodeName of the Kubernetes node that it runs on.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	NodeName string `json:"nodeName,omitempty"`
}

// CountStatus counts processes.
type CountStatus struct {
	// Ready ones.
	// +required
	Ready int32 `json:"ready"`
	// Desired number.
	// +required
	Desired int32 `json:"desired"`
	// Summary for people: ready/desired.
	// +optional
	// +kubebuilder:validation:MaxLength=24
	Summary string `json:"summary,omitempty"`
}

// BindingReference names the Secret by which applications are bound to a pool.
type BindingReference struct {
	// Name of the Secret, in the pool's namespace.
	// +required
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// CertificateReference names a Certificate of cert-manager.
type CertificateReference struct {
	// Name of the Certificate, in the pool's namespace.
	// +required
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// ShardMapReference names a map.
// +kubebuilder:validation:XValidation:rule="self.epoch >= oldSelf.epoch",message="epochs never go back"
type ShardMapReference struct {
	// Name of the ShardMap.
	// +required
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`
	// Epoch of the map.
	// +required
	Epoch int64 `json:"epoch"`
}

// TemplateStatus says what pods are made from.
type TemplateStatus struct {
	// Version of the renderer.
	// +required
	Version int32 `json:"version"`
	// Image of new memory nodes and sidecars. In an upgrade it changes when compute shards run the new image.
	// +required
	// +kubebuilder:validation:MaxLength=512
	Image string `json:"image"`
	// CreatedWith is the image that the operator had for new pools when this one was created. The pool has it while spec names no other.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	CreatedWith string `json:"createdWith,omitempty"`
}

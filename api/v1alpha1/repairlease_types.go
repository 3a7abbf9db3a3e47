// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// RepairLease says that client processes of a pool are dead, and shows the repair of what they left. Every memory node fences them, a compute shard
// repairs what they left, and the lease is complete when no memory node names them any more. The operator makes one for deaths that Kubernetes or a
// memory node confirms; a person may create one, too. Clients that are blocked repair on their own, with or without it.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=rlease,categories=farpool
// +kubebuilder:selectablefield:JSONPath=`.spec.poolRef.name`
// +kubebuilder:printcolumn:name="Pool",type=string,JSONPath=`.spec.poolRef.name`
// +kubebuilder:printcolumn:name="Cause",type=string,JSONPath=`.spec.cause`
// +kubebuilder:printcolumn:name="Step",type=string,JSONPath=`.status.step`
// +kubebuilder:printcolumn:name="Fenced",type=string,JSONPath=`.status.fenced`
// +kubebuilder:printcolumn:name="Slots",type=integer,JSONPath=`.status.slotsRepaired`
// +kubebuilder:printcolumn:name="Segments",type=integer,JSONPath=`.status.segmentsAdopted`
// +kubebuilder:printcolumn:name="Left",type=integer,JSONPath=`.status.left`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Complete")].reason`,priority=1
// +kubebuilder:printcolumn:name="Shard",type=string,JSONPath=`.status.shard`,priority=1
// +kubebuilder:printcolumn:name="Attempts",type=integer,JSONPath=`.status.attempts`,priority=1
type RepairLease struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec RepairLeaseSpec `json:"spec"`
	// +optional
	Status RepairLeaseStatus `json:"status,omitempty"`
}

// RepairLeaseList is a list of RepairLeases.
// +kubebuilder:object:root=true
type RepairLeaseList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []RepairLease `json:"items"`
}

// RepairCause says how the death of clients is known.
// +kubebuilder:validation:Enum=PodTerminated;NodeOutOfService;MemoryNodeReport;Requested
type RepairCause string

const (
	// CausePodTerminated: the kubelet reports that the process's container ended, or its pod is gone.
	CausePodTerminated RepairCause = "PodTerminated"
	// CauseNodeOutOfService: the Kubernetes node that it ran on has the out-of-service taint.
	CauseNodeOutOfService RepairCause = "NodeOutOfService"
	// CauseMemoryNodeReport: a memory node ended its sessions, and it left something there.
	CauseMemoryNodeReport RepairCause = "MemoryNodeReport"
	// CauseRequested: a person vouches for it, or wants the client ended.
	CauseRequested RepairCause = "Requested"
)

// RepairLeaseSpec says which processes are dead, and how that is known.
// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="a RepairLease never changes: delete it and create another"
// +kubebuilder:validation:XValidation:rule="self.cause == 'Requested' || self.clients.all(c, c.process.size() > 0)",message="only a RepairLease of cause Requested may name clients without their process: set cause to Requested, or give each client its process"
type RepairLeaseSpec struct {
	// PoolRef names the KVPool, in the same namespace.
	// +required
	PoolRef PoolReference `json:"poolRef"`

	// Cause of the repair. A person's is Requested.
	// +required
	Cause RepairCause `json:"cause"`

	// Clients that are dead.
	// +required
	// +listType=map
	// +listMapKey=name
	// +listMapKey=process
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	Clients []RepairClient `json:"clients"`
}

// PoolReference names a KVPool in the same namespace.
type PoolReference struct {
	// Name of the KVPool.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	Name string `json:"name"`
}

// RepairClient is one process that held sessions with memory nodes.
// +kubebuilder:validation:XValidation:rule="self.name.size() > 0 || self.process.size() > 0",message="a client has a name (a compute shard's is its pod's name), a process (16 hexadecimal digits), or both"
type RepairClient struct {
	// Name that the process gives itself; a compute shard's is its pod's name. Alone, it means every process of that name that does not
	// answer.
	// +optional
	// +kubebuilder:default=""
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`

	// Process that is dead: one life of it, 16 hexadecimal digits, as a ComputeShardPool's status.processes and memory nodes name it.
	// +optional
	// +kubebuilder:default=""
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:XValidation:rule="self.size() == 0 || (self.matches('^[0-9a-f]{16}$') && self != '0000000000000000')",message="process has 16 hexadecimal digits in lower case and is not zero: copy it from status.processes of a ComputeShardPool"
	Process string `json:"process"`

	// DiedAt is when the process ended, where that is known.
	// +optional
	DiedAt *metav1.Time `json:"diedAt,omitempty"`
}

// RepairStep says what is done now.
// +kubebuilder:validation:Enum=Fencing;Repairing;Verifying;Complete
type RepairStep string

const (
	// StepFencing: the operator asks memory nodes to end what the clients have under way.
	StepFencing RepairStep = "Fencing"
	// StepRepairing: a compute shard repairs what they left.
	StepRepairing RepairStep = "Repairing"
	// StepVerifying: the repair is done; the operator asks every memory node whether it still names the clients.
	StepVerifying RepairStep = "Verifying"
	// StepComplete: nothing of the clients is left.
	StepComplete RepairStep = "Complete"
)

// RepairLeaseStatus says how far the repair has come. Only the operator writes it.
type RepairLeaseStatus struct {
	// Conditions: Fenced, Repaired, Complete.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// ObservedGeneration of the spec that this status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// Step is what is done now.
	// +optional
	Step RepairStep `json:"step,omitempty"`

	// Processes that the clients are, found once.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=16
	Processes []string `json:"processes,omitempty"`

	// Fenced is a summary for people: memory nodes on which they are fenced, out of all that serve.
	// +optional
	// +kubebuilder:validation:MaxLength=24
	Fenced string `json:"fenced,omitempty"`

	// FencedNodes is the number of memory nodes on which they are fenced.
	// +optional
	FencedNodes int32 `json:"fencedNodes,omitempty"`

	// Nodes says what became of the repair on each memory node.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=256
	Nodes []RepairNodeStatus `json:"nodes,omitempty"`

	// SlotsRepaired: operation slots, on all memory nodes, that named an unfinished operation and were repaired.
	// +optional
	SlotsRepaired int64 `json:"slotsRepaired,omitempty"`

	// SegmentsAdopted: segments of the heap that have a living owner again, on all memory nodes.
	// +optional
	SegmentsAdopted int64 `json:"segmentsAdopted,omitempty"`

	// Left: slots and segments, on all memory nodes, that still have to be repaired or taken over.
	// +optional
	Left int64 `json:"left,omitempty"`

	// Shard is the compute shard that was last asked to repair.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Shard string `json:"shard,omitempty"`

	// Attempts is how often compute shards were asked to repair.
	// +optional
	Attempts int32 `json:"attempts,omitempty"`

	// StartedAt is when the operator first took it up.
	// +optional
	StartedAt *metav1.Time `json:"startedAt,omitempty"`

	// CompletedAt is when nothing was left.
	// +optional
	CompletedAt *metav1.Time `json:"completedAt,omitempty"`
}

// RepairNodeStatus is what became of dead clients on one memory node.
type RepairNodeStatus struct {
	// Name of the MemoryNode.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`

	// Incarnation of the memory node that has fenced them; empty: not yet fenced.
	// +optional
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:Pattern=`^[0-9]+$`
	Incarnation string `json:"incarnation,omitempty"`

	// SessionsEnded by the fence.
	// +optional
	SessionsEnded int64 `json:"sessionsEnded,omitempty"`

	// SlotsRepaired here.
	// +optional
	SlotsRepaired int64 `json:"slotsRepaired,omitempty"`

	// SlotsLeft here.
	// +optional
	SlotsLeft int64 `json:"slotsLeft,omitempty"`

	// SegmentsAdopted here.
	// +optional
	SegmentsAdopted int64 `json:"segmentsAdopted,omitempty"`

	// SegmentsLeft here.
	// +optional
	SegmentsLeft int64 `json:"segmentsLeft,omitempty"`

	// Message says why something is left, or why it is not fenced yet.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Message string `json:"message,omitempty"`
}

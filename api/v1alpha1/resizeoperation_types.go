// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ResizeOperation follows one change of the number of a pool's memory nodes: nodes that come get a share of the keys, nodes that go are
// drained, and then removed. It also follows tables of RACE that are split ahead of their keys. The operator makes one for each change of
// spec.memory.pools[].replicas and spec.index.race.leastTables; people read it, approve it where the pool asks for that, and abort it.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=resize,categories=farpool
// +kubebuilder:selectablefield:JSONPath=`.spec.poolName`
// +kubebuilder:printcolumn:name="Pool",type=string,JSONPath=`.spec.poolName`
// +kubebuilder:printcolumn:name="Change",type=string,JSONPath=`.status.change`
// +kubebuilder:printcolumn:name="Stage",type=string,JSONPath=`.status.stage`
// +kubebuilder:printcolumn:name="Parts",type=integer,JSONPath=`.status.partsTotal`
// +kubebuilder:printcolumn:name="Moved",type=integer,JSONPath=`.status.partsMoved`
// +kubebuilder:printcolumn:name="Keys left",type=integer,JSONPath=`.status.keysLeft`
// +kubebuilder:printcolumn:name="Tables",type=integer,JSONPath=`.status.tablesInUse`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Estimated end",type=date,JSONPath=`.status.estimatedCompletionTime`,priority=1
// +kubebuilder:printcolumn:name="Approval",type=string,JSONPath=`.spec.approval`,priority=1
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Complete")].reason`,priority=1
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Complete")].message`,priority=1
type ResizeOperation struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec ResizeOperationSpec `json:"spec"`
	// +optional
	Status ResizeOperationStatus `json:"status,omitempty"`
}

// ResizeOperationList is a list of ResizeOperations.
// +kubebuilder:object:root=true
type ResizeOperationList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ResizeOperation `json:"items"`
}

// ResizeApproval says whether keys may be moved.
type ResizeApproval string

const (
	// ApprovalAutomatic: as soon as the memory nodes are there.
	ApprovalAutomatic ResizeApproval = "Automatic"
	// ApprovalRequired: a person is awaited.
	ApprovalRequired ResizeApproval = "Required"
	// ApprovalApproved: a person said so.
	ApprovalApproved ResizeApproval = "Approved"
)

// RequestedState says whether a resize is to go on.
type RequestedState string

const (
	// RequestedRun: it is.
	RequestedRun RequestedState = "Run"
	// RequestedAbort: nothing more is begun of it.
	RequestedAbort RequestedState = "Abort"
)

// ResizeOperationSpec says what is to become of the pool's memory nodes.
// +kubebuilder:validation:XValidation:rule="self.poolName == oldSelf.poolName && self.pools == oldSelf.pools && has(self.tables) == has(oldSelf.tables) && (!has(self.tables) || self.tables == oldSelf.tables) && has(self.evacuates) == has(oldSelf.evacuates) && (!has(self.evacuates) || self.evacuates == oldSelf.evacuates)",message="a ResizeOperation's aim never changes: edit replicas or leastTables in the KVPool, which makes another one"
// +kubebuilder:validation:XValidation:rule="self.approval == oldSelf.approval || oldSelf.approval == 'Required' && self.approval == 'Approved'",message="approval can be changed from Required to Approved alone: what has been approved is not taken back; set requestedState to Abort, or edit replicas in the KVPool to have another aim"
// +kubebuilder:validation:XValidation:rule="self.requestedState == oldSelf.requestedState || self.requestedState == 'Abort'",message="an abort is not taken back: delete the ResizeOperation, which has the resize planned anew, or edit replicas in the KVPool"
type ResizeOperationSpec struct {
	// PoolName of the KVPool.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	PoolName string `json:"poolName"`

	// Pools of memory nodes, and how many each has and shall have.
	// +required
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=6
	Pools []ResizePool `json:"pools"`

	// Tables that each memory node of RACE has in use, at least, and shall have.
	// +optional
	Tables *ResizeTables `json:"tables,omitempty"`

	// Evacuates are memory nodes whose Kubernetes nodes are about to be emptied: their keys move to others, and they are made anew elsewhere.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=63
	Evacuates []string `json:"evacuates,omitempty"`

	// Approval: Required until somebody sets it to Approved, where the pool's spec.resize.approval asks for that.
	// +required
	// +kubebuilder:validation:Enum=Automatic;Required;Approved
	Approval ResizeApproval `json:"approval"`

	// RequestedState: Abort has nothing more begun of it. A move of keys that is under way is finished; memory nodes that have come for it and hold
	// nothing go again, and the others stay. The pool then stays as it is until another number of memory nodes is asked for, or this object is
	// deleted, which has the resize planned anew.
	// +optional
	// +kubebuilder:default=Run
	// +kubebuilder:validation:Enum=Run;Abort
	RequestedState RequestedState `json:"requestedState,omitempty"`
}

// ResizePool is a pool of memory nodes that changes, or does not.
type ResizePool struct {
	// Name of the memory pool.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=20
	Name string `json:"name"`
	// From so many memory nodes in the pool's map.
	// +required
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=256
	From int32 `json:"from"`
	// To so many.
	// +required
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=256
	To int32 `json:"to"`
}

// ResizeTables are tables of each memory node, a power of two: as if all had been split as often as the one that was split least.
type ResizeTables struct {
	// From so many.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=16384
	From int32 `json:"from"`
	// To so many.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=16384
	To int32 `json:"to"`
}

// ResizeStage says how far it has come.
// +kubebuilder:validation:Enum=Planned;Waiting;Splitting;Moving;Removing;Complete;Superseded;Aborted
type ResizeStage string

const (
	// StagePlanned: a person's approval is awaited.
	StagePlanned ResizeStage = "Planned"
	// StageWaiting: for memory nodes that are awaited, or for a person who decides about one whose data is lost.
	StageWaiting ResizeStage = "Waiting"
	// StageSplitting: clients split tables ahead of their keys.
	StageSplitting ResizeStage = "Splitting"
	// StageMoving: clients move keys.
	StageMoving ResizeStage = "Moving"
	// StageRemoving: memory nodes that hold nothing any more are taken away.
	StageRemoving ResizeStage = "Removing"
	// StageComplete: the pool has the memory nodes that it shall have, each with its share.
	StageComplete ResizeStage = "Complete"
	// StageSuperseded: the aim has changed; another ResizeOperation goes on from what there was.
	StageSuperseded ResizeStage = "Superseded"
	// StageAborted: a person wanted no more of it, and nothing of it is under way.
	StageAborted ResizeStage = "Aborted"
)

// ResizeOperationStatus says how far the change has come. The operator is its one writer.
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.stage) || !(oldSelf.stage in ['Complete', 'Superseded', 'Aborted']) || has(self.stage) && self.stage == oldSelf.stage",message="a resize that is over stays so"
type ResizeOperationStatus struct {
	// Conditions: Complete; Holding, of one that was aborted.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// ObservedGeneration of the spec that this status speaks of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// Stage that it is in.
	// +optional
	Stage ResizeStage `json:"stage,omitempty"`

	// Change is a summary for people: memory nodes from and to.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Change string `json:"change,omitempty"`

	// TablesInUse at the memory node that has fewest, out of the ones that Tables asks for.
	// +optional
	TablesInUse int32 `json:"tablesInUse,omitempty"`

	// PartsTotal of the hash space that are to change their memory node.
	// +optional
	PartsTotal int32 `json:"partsTotal,omitempty"`

	// PartsMoved of them.
	// +optional
	PartsMoved int32 `json:"partsMoved,omitempty"`

	// KeysLeft that are still to be moved, about.
	// +optional
	KeysLeft int64 `json:"keysLeft,omitempty"`

	// KeysTotal is the most that KeysLeft has been.
	// +optional
	KeysTotal int64 `json:"keysTotal,omitempty"`

	// BytesLeft of the heaps that these keys take, about.
	// +optional
	BytesLeft int64 `json:"bytesLeft,omitempty"`

	// MovingSince is when keys were first seen to be on their way.
	// +optional
	MovingSince *metav1.Time `json:"movingSince,omitempty"`

	// EstimatedCompletionTime of what moves now, by how fast keys have moved so far.
	// +optional
	EstimatedCompletionTime *metav1.Time `json:"estimatedCompletionTime,omitempty"`

	// StartTime is when the operator first took it up.
	// +optional
	StartTime *metav1.Time `json:"startTime,omitempty"`

	// CompletionTime is when nothing was left to do, or another aim took its place.
	// +optional
	CompletionTime *metav1.Time `json:"completionTime,omitempty"`
}

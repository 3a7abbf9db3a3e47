// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ResizeOperation follows one change of the number of a pool's memory nodes. Memory nodes that are added get a share of the keys. Memory nodes that
// are removed are drained first. It also follows RACE tables that are split ahead of their keys. The operator makes one for each change of
// spec.memory.pools[].replicas and spec.index.race.leastTables. People read it, abort it, and approve it if the pool asks for that.
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
	// ApprovalAutomatic: keys move as soon as the memory nodes are there.
	ApprovalAutomatic ResizeApproval = "Automatic"
	// ApprovalRequired: the resize waits for a person.
	ApprovalRequired ResizeApproval = "Required"
	// ApprovalApproved: a person has approved it.
	ApprovalApproved ResizeApproval = "Approved"
)

// RequestedState says whether a resize should continue.
type RequestedState string

const (
	// RequestedRun: it continues.
	RequestedRun RequestedState = "Run"
	// RequestedAbort: no further step of it begins.
	RequestedAbort RequestedState = "Abort"
)

// ResizeOperationSpec says how the pool's memory nodes change.
// +kubebuilder:validation:XValidation:rule="self.poolName == oldSelf.poolName && self.pools == oldSelf.pools && has(self.tables) == has(oldSelf.tables) && (!has(self.tables) || self.tables == oldSelf.tables) && has(self.evacuates) == has(oldSelf.evacuates) && (!has(self.evacuates) || self.evacuates == oldSelf.evacuates)",message="a ResizeOperation's aim never changes: edit replicas or leastTables in the KVPool, which makes another one"
// +kubebuilder:validation:XValidation:rule="self.approval == oldSelf.approval || oldSelf.approval == 'Required' && self.approval == 'Approved'",message="approval can be changed from Required to Approved alone: what has been approved is not taken back; set requestedState to Abort, or edit replicas in the KVPool to have another aim"
// +kubebuilder:validation:XValidation:rule="self.requestedState == oldSelf.requestedState || self.requestedState == 'Abort'",message="an abort is not taken back: delete the ResizeOperation, which has the resize planned anew, or edit replicas in the KVPool"
type ResizeOperationSpec struct {
	// PoolName of the KVPool.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	PoolName string `json:"poolName"`

	// Pools of memory nodes, and how many memory nodes each has and should have. A memory pool that is not listed should have none.
	// +required
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=12
	Pools []ResizePool `json:"pools"`

	// Tables in use on each memory node of RACE: at least how many there are, and should be.
	// +optional
	Tables *ResizeTables `json:"tables,omitempty"`

	// Evacuates are memory nodes whose Kubernetes nodes are about to be emptied: their keys move to others, and they are made anew elsewhere.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=63
	Evacuates []string `json:"evacuates,omitempty"`

	// Approval is Required, if the pool's spec.resize.approval asks for that, until somebody sets it to Approved.
	// +required
	// +kubebuilder:validation:Enum=Automatic;Required;Approved
	Approval ResizeApproval `json:"approval"`

	// RequestedState: with Abort, no further step of it begins. A move of keys that is under way is finished. Memory nodes that were added for it and
	// hold nothing are removed, and the others stay. The pool then stays as it is until its spec asks for another number of memory nodes, or this
	// object is deleted, after which the operator plans the resize again.
	// +optional
	// +kubebuilder:default=Run
	// +kubebuilder:validation:Enum=Run;Abort
	RequestedState RequestedState `json:"requestedState,omitempty"`
}

// ResizePool is a pool of memory nodes whose number changes or stays.
type ResizePool struct {
	// Name of the memory pool.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=20
	Name string `json:"name"`
	// From is the number of its memory nodes in the pool's map.
	// +required
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=256
	From int32 `json:"from"`
	// To is the number that it should have.
	// +required
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=256
	To int32 `json:"to"`
}

// ResizeTables is a number of tables of each memory node, a power of two: that of a memory node whose tables were all split as often as the one that
// was split least.
type ResizeTables struct {
	// From is the number now.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=16384
	From int32 `json:"from"`
	// To is the number that there should be.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=16384
	To int32 `json:"to"`
}

// ResizeStage says how far a resize has come.
// +kubebuilder:validation:Enum=Planned;Waiting;Splitting;Moving;Removing;Complete;Superseded;Aborted
type ResizeStage string

const (
	// StagePlanned: the resize waits for a person's approval.
	StagePlanned ResizeStage = "Planned"
	// StageWaiting: the resize waits for memory nodes, or for a person to decide about a memory node whose data is lost.
	StageWaiting ResizeStage = "Waiting"
	// StageSplitting: clients split tables ahead of their keys.
	StageSplitting ResizeStage = "Splitting"
	// StageMoving: clients move keys.
	StageMoving ResizeStage = "Moving"
	// StageRemoving: memory nodes that hold nothing any more are removed.
	StageRemoving ResizeStage = "Removing"
	// StageComplete: the pool has the memory nodes that its spec asks for, each with its share.
	StageComplete ResizeStage = "Complete"
	// StageSuperseded: the aim has changed; another ResizeOperation continues from here.
	StageSuperseded ResizeStage = "Superseded"
	// StageAborted: a person has aborted it, and nothing of it is under way.
	StageAborted ResizeStage = "Aborted"
)

// ResizeOperationStatus says how far the change has come. Only the operator writes it.
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.stage) || !(oldSelf.stage in ['Complete', 'Superseded', 'Aborted']) || has(self.stage) && self.stage == oldSelf.stage",message="a resize that is over stays so"
type ResizeOperationStatus struct {
	// Conditions: Complete; Holding, if it was aborted.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// ObservedGeneration of the spec that this status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// Stage of the resize.
	// +optional
	Stage ResizeStage `json:"stage,omitempty"`

	// Change is a summary for people: memory nodes from and to.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Change string `json:"change,omitempty"`

	// TablesInUse on the memory node that has the fewest, out of the number that Tables asks for.
	// +optional
	TablesInUse int32 `json:"tablesInUse,omitempty"`

	// PartsTotal is how many parts of the hash space change their memory node.
	// +optional
	PartsTotal int32 `json:"partsTotal,omitempty"`

	// PartsMoved is how many of them have moved.
	// +optional
	PartsMoved int32 `json:"partsMoved,omitempty"`

	// KeysLeft is about how many keys still have to move.
	// +optional
	KeysLeft int64 `json:"keysLeft,omitempty"`

	// KeysTotal is the most that KeysLeft has been.
	// +optional
	KeysTotal int64 `json:"keysTotal,omitempty"`

	// BytesLeft is about how much of the heaps these keys take.
	// +optional
	BytesLeft int64 `json:"bytesLeft,omitempty"`

	// MovingSince is when the operator first saw keys move.
	// +optional
	MovingSince *metav1.Time `json:"movingSince,omitempty"`

	// EstimatedCompletionTime of the present move, from how fast keys have moved so far.
	// +optional
	EstimatedCompletionTime *metav1.Time `json:"estimatedCompletionTime,omitempty"`

	// StartTime is when the operator first took it up.
	// +optional
	StartTime *metav1.Time `json:"startTime,omitempty"`

	// CompletionTime is when nothing was left to do, or another aim took its place.
	// +optional
	CompletionTime *metav1.Time `json:"completionTime,omitempty"`
}

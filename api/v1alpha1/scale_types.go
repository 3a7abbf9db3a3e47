// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// MemoryNodePool says how many memory nodes a memory pool of a KVPool has. The operator makes one for each memory pool, with the replicas of the
// KVPool's spec. kubectl scale, an autoscaler or the memory pool's own capacity policy may then ask for another number, which holds until the
// KVPool's spec changes.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.replicas,statuspath=.status.replicas,selectorpath=.status.selector
// +kubebuilder:resource:shortName=mnp,categories=farpool
// +kubebuilder:selectablefield:JSONPath=`.spec.poolName`
// +kubebuilder:printcolumn:name="Pool",type=string,JSONPath=`.spec.poolName`
// +kubebuilder:printcolumn:name="Desired",type=integer,JSONPath=`.spec.replicas`
// +kubebuilder:printcolumn:name="Current",type=integer,JSONPath=`.status.replicas`
// +kubebuilder:printcolumn:name="Ready",type=integer,JSONPath=`.status.readyReplicas`
// +kubebuilder:printcolumn:name="Limited",type=string,JSONPath=`.status.conditions[?(@.type=="ScalingLimited")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="ScalingLimited")].message`,priority=1
type MemoryNodePool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec MemoryNodePoolSpec `json:"spec"`
	// +optional
	Status ScaleStatus `json:"status,omitempty"`
}

// MemoryNodePoolList is a list of MemoryNodePools.
// +kubebuilder:object:root=true
type MemoryNodePoolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []MemoryNodePool `json:"items"`
}

// MemoryNodePoolSpec belongs to the operator, except for replicas.
// +kubebuilder:validation:XValidation:rule="!has(self.entry) || self.entry.name == self.memoryPool",message="a MemoryNodePool has the entry of its own memory pool: edit the KVPool"
// +kubebuilder:validation:XValidation:rule="self.poolName == oldSelf.poolName && self.memoryPool == oldSelf.memoryPool",message="a MemoryNodePool's pool never changes: scale it, or edit the KVPool"
type MemoryNodePoolSpec struct {
	// PoolName of the KVPool.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	PoolName string `json:"poolName"`

	// MemoryPool of the KVPool's spec.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=20
	MemoryPool string `json:"memoryPool"`

	// Declared is the number in the KVPool's spec that the operator last took over; 0 if the spec no longer has the memory pool. When the spec's number
	// differs, the operator takes it over.
	// +required
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=256
	Declared int32 `json:"declared"`

	// Replicas is the number of memory nodes that there should be. With 0, all are drained, unless no other memory pool of the KVPool has any.
	// +required
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=256
	Replicas int32 `json:"replicas"`

	// Entry of the KVPool's spec that the operator last took over. If the spec has it no more, its memory nodes are drained, and until they are gone,
	// their pods are made from it.
	// +optional
	Entry *MemoryPool `json:"entry,omitempty"`
}

// ComputeShardPool says how many compute shards a compute pool of a KVPool has, as MemoryNodePool does of memory nodes.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.replicas,statuspath=.status.replicas,selectorpath=.status.selector
// +kubebuilder:resource:shortName=csp,categories=farpool
// +kubebuilder:selectablefield:JSONPath=`.spec.poolName`
// +kubebuilder:printcolumn:name="Pool",type=string,JSONPath=`.spec.poolName`
// +kubebuilder:printcolumn:name="Desired",type=integer,JSONPath=`.spec.replicas`
// +kubebuilder:printcolumn:name="Current",type=integer,JSONPath=`.status.replicas`
// +kubebuilder:printcolumn:name="Ready",type=integer,JSONPath=`.status.readyReplicas`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ComputeShardPool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec ComputeShardPoolSpec `json:"spec"`
	// +optional
	Status ComputeShardPoolStatus `json:"status,omitempty"`
}

// ComputeShardPoolList is a list of ComputeShardPools.
// +kubebuilder:object:root=true
type ComputeShardPoolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ComputeShardPool `json:"items"`
}

// ComputeShardPoolSpec belongs to the operator, except for replicas.
// +kubebuilder:validation:XValidation:rule="self.poolName == oldSelf.poolName && self.computePool == oldSelf.computePool",message="a ComputeShardPool's pool never changes: scale it, or edit the KVPool"
type ComputeShardPoolSpec struct {
	// PoolName of the KVPool.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	PoolName string `json:"poolName"`

	// ComputePool of the KVPool's spec.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=20
	ComputePool string `json:"computePool"`

	// Declared is the number in the KVPool's spec that the operator last took over. When the spec's number differs, the operator takes it over.
	// +required
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1024
	Declared int32 `json:"declared"`

	// Replicas is the number of compute shards that there should be.
	// +required
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1024
	Replicas int32 `json:"replicas"`
}

// ComputeShardPoolStatus says how many compute shards there are, and which processes.
type ComputeShardPoolStatus struct {
	ScaleStatus `json:",inline"`

	// Processes of compute shards. The operator writes them down when they first answer, so that they are known by name when their pods are gone. A
	// dead process stays until a RepairLease names it.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=4096
	Processes []ProcessStatus `json:"processes,omitempty"`
}

// ScaleStatus says how many there are, as scale subresources show it.
type ScaleStatus struct {
	// Conditions: ScalingLimited, on memory pools that get another number of memory nodes than they ask for; Drained, on memory pools without replicas;
	// Ready, on compute pools.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// ObservedGeneration of the spec that this status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// Replicas is the number of pods, including drained ones.
	// +optional
	Replicas int32 `json:"replicas,omitempty"`

	// ReadyReplicas is the number of pods that serve.
	// +optional
	ReadyReplicas int32 `json:"readyReplicas,omitempty"`

	// Selector of the pods, for autoscalers.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Selector string `json:"selector,omitempty"`
}

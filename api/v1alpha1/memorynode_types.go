// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// MemoryNode is one pod that lends memory to a pool. The operator makes it; people read it, and accept data losses on it.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=mn,categories=farpool
// +kubebuilder:selectablefield:JSONPath=`.spec.poolName`
// +kubebuilder:printcolumn:name="Pool",type=string,JSONPath=`.spec.poolName`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Lends",type=string,JSONPath=`.spec.lend`
// +kubebuilder:printcolumn:name="Requests",type=string,JSONPath=`.status.requests.memory`
// +kubebuilder:printcolumn:name="Epoch",type=integer,JSONPath=`.status.epoch`
// +kubebuilder:printcolumn:name="Lost",type=string,JSONPath=`.status.conditions[?(@.type=="DataLost")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Incarnation",type=string,JSONPath=`.status.incarnation`,priority=1
// +kubebuilder:printcolumn:name="Image",type=string,JSONPath=`.status.image`,priority=1
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.status.nodeName`,priority=1
type MemoryNode struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec MemoryNodeSpec `json:"spec"`
	// +optional
	Status MemoryNodeStatus `json:"status,omitempty"`
}

// MemoryNodeList is a list of MemoryNodes.
// +kubebuilder:object:root=true
type MemoryNodeList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []MemoryNode `json:"items"`
}

// MemoryNodeSpec is the operator's. Image and template are frozen here, so that an operator upgrade makes no other pod. An upgrade of the pool changes the image.
// +kubebuilder:validation:XValidation:rule="self.poolName == oldSelf.poolName && self.memoryPool == oldSelf.memoryPool && self.ordinal == oldSelf.ordinal && self.lend == oldSelf.lend && self.templateVersion == oldSelf.templateVersion",message="a MemoryNode's spec is the operator's and only its image ever changes: edit the KVPool"
type MemoryNodeSpec struct {
	// PoolName of the KVPool.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	PoolName string `json:"poolName"`

	// MemoryPool of the KVPool's spec that this node belongs to.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=20
	MemoryPool string `json:"memoryPool"`

	// Ordinal in its memory pool.
	// +required
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=255
	Ordinal int32 `json:"ordinal"`

	// Lend is the memory that the memory node lends.
	// +required
	Lend resource.Quantity `json:"lend"`

	// TemplateVersion of the renderer that makes the pod.
	// +required
	// +kubebuilder:validation:Minimum=1
	TemplateVersion int32 `json:"templateVersion"`

	// Image of the data plane.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	Image string `json:"image"`
}

// MemoryNodeStatus shows what the memory node's agent and the kubelet report. Only the operator writes it.
type MemoryNodeStatus struct {
	// Conditions: Ready, DataLost, UpToDate.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// ObservedGeneration of the spec that this status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// Incarnation in the pool's newest map: one life of the node's process, never reused. A decimal number of up to 64 bits, as a
	// string because JSON readers round it.
	// +optional
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:Pattern=`^[0-9]+$`
	Incarnation string `json:"incarnation,omitempty"`

	// MemoryIncarnation is the life that formatted the memory, where that is an earlier one: the process has restarted since and kept it.
	// +optional
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:Pattern=`^[0-9]+$`
	MemoryIncarnation string `json:"memoryIncarnation,omitempty"`

	// LostIncarnation is the life whose data this one began without.
	// +optional
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:Pattern=`^[0-9]+$`
	LostIncarnation string `json:"lostIncarnation,omitempty"`

	// Epoch that the node follows.
	// +optional
	Epoch int64 `json:"epoch,omitempty"`

	// Endpoint of its session port, host:port.
	// +optional
	// +kubebuilder:validation:MaxLength=300
	Endpoint string `json:"endpoint,omitempty"`

	// Image that its process has last served with.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Image string `json:"image,omitempty"`

	// NodeName of the Kubernetes node.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	NodeName string `json:"nodeName,omitempty"`

	// Requests of the memory node's pod, all its containers together, as the scheduler counts them: memory is what the node lends and what its process
	// needs. Memory in huge pages is under their own name, such as hugepages-2Mi. Empty while there is no pod.
	// +optional
	Requests corev1.ResourceList `json:"requests,omitempty"`

	// LockRegion that the node granted.
	// +optional
	LockRegion *LockRegion `json:"lockRegion,omitempty"`

	// QuarantinedRows that no crash explains: they stay locked until a person has looked at them.
	// +optional
	QuarantinedRows int64 `json:"quarantinedRows,omitempty"`
}

// LockPlacement says in which memory lock bits lie.
// +kubebuilder:validation:Enum=HostMemory;DeviceMemory
type LockPlacement string

const (
	LockPlacementHostMemory   LockPlacement = "HostMemory"
	LockPlacementDeviceMemory LockPlacement = "DeviceMemory"
)

// LockRegion describes where a table's lock bits lie. Keys and addresses are secrets of sessions and stand nowhere here.
type LockRegion struct {
	// Placement granted.
	// +required
	Placement LockPlacement `json:"placement"`
	// Bytes of the region.
	// +required
	// +kubebuilder:validation:Minimum=0
	Bytes int64 `json:"bytes"`
	// Locks in use.
	// +required
	// +kubebuilder:validation:Minimum=0
	Locks int64 `json:"locks"`
	// RowsPerLock that one lock covers.
	// +required
	// +kubebuilder:validation:Minimum=0
	RowsPerLock int64 `json:"rowsPerLock"`
}

// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 holds the resources of farpool.dev: what a user asks for (KVPool) and what the operator keeps about it
// (MemoryNode, ShardMap, RepairLease, ResizeOperation), and how many there are (MemoryNodePool, ComputeShardPool).
// +kubebuilder:object:generate=true
// +kubebuilder:ac:generate=true
// +kubebuilder:ac:output:package="applyconfiguration"
// +groupName=farpool.dev
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var (
	// GroupVersion is the group and version of every resource here.
	GroupVersion = schema.GroupVersion{Group: "farpool.dev", Version: "v1alpha1"}

	// SchemeGroupVersion is the name that generated apply configurations look for.
	SchemeGroupVersion = GroupVersion

	schemeBuilder = runtime.NewSchemeBuilder(addKnownTypes)

	// AddToScheme registers the resources.
	AddToScheme = schemeBuilder.AddToScheme
)

func addKnownTypes(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion,
		&KVPool{}, &KVPoolList{},
		&MemoryNode{}, &MemoryNodeList{},
		&ShardMap{}, &ShardMapList{},
		&RepairLease{}, &RepairLeaseList{},
		&ResizeOperation{}, &ResizeOperationList{},
		&MemoryNodePool{}, &MemoryNodePoolList{},
		&ComputeShardPool{}, &ComputeShardPoolList{},
	)
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}

// Resource qualifies a resource name with the group.
func Resource(resource string) schema.GroupResource {
	return GroupVersion.WithResource(resource).GroupResource()
}

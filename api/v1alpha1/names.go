// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// Labels, annotations and field managers that are part of the contract.
const (
	// LabelPool is on everything that belongs to a pool; its value is the KVPool's name.
	LabelPool = "farpool.dev/pool"
	// LabelPoolUID and LabelPoolNamespace are on what belongs to a pool and lies outside of its namespace, where no owner can be named.
	LabelPoolUID       = "farpool.dev/pool-uid"
	LabelPoolNamespace = "farpool.dev/pool-namespace"
	// LabelComponent says what a pod is: ComponentMemoryNode or ComponentComputeShard.
	LabelComponent = "farpool.dev/component"
	// LabelMemoryPool and LabelComputePool name the entry of the KVPool's spec that asked for a pod.
	LabelMemoryPool  = "farpool.dev/memory-pool"
	LabelComputePool = "farpool.dev/compute-pool"
	// LabelMemoryNode is on a memory node's pod; its value is the MemoryNode's name.
	LabelMemoryNode = "farpool.dev/memory-node"

	// LabelInject on a pod asks for a sidecar if its value is InjectTrue. No other label or annotation does.
	LabelInject = "farpool.dev/inject"
	InjectTrue  = "true"
	// SidecarPrefix begins the annotations of pods with a sidecar. The ones that people may write are pool, containers, port, health-port, cpu, memory
	// and log-level; AnnotationInjected is the injector's record.
	SidecarPrefix      = "sidecar.farpool.dev/"
	AnnotationInjected = SidecarPrefix + "injected"
	// SidecarContainer is the name of the injected container.
	SidecarContainer = "farpool-sidecar"

	// AnnotationAcceptDataLoss on a MemoryNode, set by a person to the incarnation in its status, lets its empty tables serve
	// again in a pool whose dataPolicy is Store.
	AnnotationAcceptDataLoss = "farpool.dev/accept-data-loss"
	// AnnotationGiveUp on a MemoryNode, set by a person to the incarnation in its status, says that this life is gone with what it held, where
	// the pool's dataPolicy is Store: a node that has no place to run is then waited for by nothing, and can go without being drained.
	AnnotationGiveUp = "farpool.dev/give-up"
	// AnnotationBeginEmpty on a KVPool, set by a person to the epoch that its condition Degraded names (MapMissing), gives up all that the pool held, as
	// nobody knows any more where it lies: its memory nodes begin empty.
	AnnotationBeginEmpty = "farpool.dev/begin-empty"
	// AnnotationConfirmDeletion on a KVPool with dataPolicy Store, set by a person to its name, lets it be deleted where the chart's admission policy is
	// installed.
	AnnotationConfirmDeletion = "farpool.dev/confirm-deletion"
	// AnnotationTemplateVersion on a pod says which frozen renderer made it.
	AnnotationTemplateVersion = "farpool.dev/template-version"
	// AnnotationPodHash on a memory node's pod tells whether a pod that never found a place was made from the present spec.
	AnnotationPodHash = "farpool.dev/pod-hash"
	// AnnotationReplaces on a memory node's pod is the incarnation of the process that ran when the pod got its image.
	AnnotationReplaces = "farpool.dev/replaces"
	// AnnotationConfigHash on the pods of a Deployment rolls them when their configuration changes.
	AnnotationConfigHash = "farpool.dev/config-hash"

	ComponentMemoryNode   = "memory-node"
	ComponentComputeShard = "compute-shard"

	// FieldManager owns what the operator applies; StatusFieldManager owns statuses.
	FieldManager       = "farpool-operator"
	StatusFieldManager = "farpool-operator-status"
	// SidecarsFieldManager owns status.sidecars of a KVPool, and the webhook configuration's certificate authority.
	SidecarsFieldManager = "farpool-sidecars"
)

// CertificateKind is cert-manager's kind of certificates. A cluster may lack it.
var CertificateKind = schema.GroupVersionKind{Group: "cert-manager.io", Version: "v1", Kind: "Certificate"}

// IssuedName names the Certificate of cert-manager that the operator makes for a pool, and its Secret.
func IssuedName(pool string) string { return pool + "-issued-tls" }

// SidecarSecretName names the Secret, in a namespace whose pods may have sidecars of a pool, that holds what sidecars need. It says which namespace it is of,
// so that names are unique in the whole cluster.
func SidecarSecretName(pool string, uid types.UID, namespace string) string {
	return fmt.Sprintf("%s-%s-%s-sidecars", pool, uid, namespace)
}

// SidecarIdentity names a namespace in its certificate. No name of a memory node or Deployment has a dot, and no namespace's has one, so that none begins
// with another.
func SidecarIdentity(namespace string) string { return namespace + sidecars }

const sidecars = ".sidecars"

// OfSidecar says whether a client's name is a sidecar's. Another client that calls itself so gains nothing: memory nodes end its sessions all the same.
func OfSidecar(client string) bool { return strings.Contains(client, sidecars+"-") }

// MemoryNodeName names the MemoryNode (and its pod) of one ordinal of a memory pool.
func MemoryNodeName(pool, memoryPool string, ordinal int32) string {
	return fmt.Sprintf("%s%d", MemoryNodePrefix(pool, memoryPool), ordinal)
}

// MemoryNodePrefix begins the names of the MemoryNodes of a memory pool.
func MemoryNodePrefix(pool, memoryPool string) string { return pool + "-" + memoryPool + "-" }

// ScaleName names the MemoryNodePool or ComputeShardPool of an entry of a KVPool's spec.
func ScaleName(pool, entry string) string { return pool + "-" + entry }

// EpochKey is an epoch as it stands in names: ten digits, so that names sort as numbers do.
func EpochKey(epoch int64) string { return fmt.Sprintf("%010d", epoch) }

// ProcessID is a client process as resources name it.
func ProcessID(incarnation uint64) string { return fmt.Sprintf("%016x", incarnation) }

// RepairLeaseName names the RepairLease that an operator makes. Names are unique in a namespace, so that an operator with an old view of
// the others notices.
func RepairLeaseName(pool string, number int64) string {
	return fmt.Sprintf("%s%d", RepairLeasePrefix(pool), number)
}

// RepairLeasePrefix begins the names of the RepairLeases that an operator makes for a pool.
func RepairLeasePrefix(pool string) string { return pool + "-repair-" }

// ResizeOperationName names a ResizeOperation by the generation of the KVPool whose aim it follows, or by a higher number.
func ResizeOperationName(pool string, number int64) string {
	return fmt.Sprintf("%s%d", ResizeOperationPrefix(pool), number)
}

// ResizeOperationPrefix begins the names of a pool's ResizeOperations.
func ResizeOperationPrefix(pool string) string { return pool + "-resize-" }

// ShardMapName names the map of one epoch. Names are unique in a namespace, so that an epoch is claimed exactly once.
func ShardMapName(pool string, epoch int64) string { return pool + "-" + EpochKey(epoch) }

// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// Condition types of a KVPool.
const (
	// ConditionAvailable: every table of the published map is served, and a compute shard answers.
	ConditionAvailable = "Available"
	// ConditionProgressing: the operator still works, or waits, to bring the pool to its spec.
	ConditionProgressing = "Progressing"
	// ConditionDegraded: something is wrong that the operator cannot correct by itself.
	ConditionDegraded = "Degraded"
	// ConditionSpecValid: the spec can be served in this cluster by this operator.
	ConditionSpecValid = "SpecValid"
	// ConditionDataPlaneReachable: the operator reaches the agents. Unknown is not False: a process that cannot be reached does not count as dead.
	ConditionDataPlaneReachable = "DataPlaneReachable"
	// ConditionMemoryPressure: a memory node has no room, or soon none, for new keys and for values that are longer than before. Reads, removals, and
	// writes of values that are no longer go on.
	ConditionMemoryPressure = "MemoryPressure"
	// ConditionCertificatesReady: the pool's certificates are made and current.
	ConditionCertificatesReady = "CertificatesReady"
	// ConditionUpToDate: every pod is as the spec says; on a MemoryNode, its own pod. An edit that does not reach pods that run makes it False.
	ConditionUpToDate = "UpToDate"
)

// Condition types of a MemoryNode; of a ComputeShardPool the first.
const (
	// ConditionReady: the node serves the pool's epoch; or as many compute shards serve as are asked for.
	ConditionReady = "Ready"
	// ConditionDataLost: this life of the node began without what an earlier one held.
	ConditionDataLost = "DataLost"
	// ConditionLocksInDeviceMemory: the memory node's locks lie in the memory of its NIC. Only pools that ask for that have it.
	ConditionLocksInDeviceMemory = "LocksInDeviceMemory"
)

// Condition types of a MemoryNodePool.
const (
	// ConditionScalingLimited: the memory pool is as full as its capacity policy allows, and has as many memory nodes as it allows.
	ConditionScalingLimited = "ScalingLimited"
	// ConditionDrained: no memory node of a memory pool without replicas is left. While it is False, keys move away, or something keeps them from it.
	ConditionDrained = "Drained"
)

// Condition types of a ShardMap.
const (
	// ConditionPrepared: every memory node of the map holds it, and accepts no earlier one any more.
	ConditionPrepared = "Prepared"
	// ConditionPublished: every memory node of the map follows it.
	ConditionPublished = "Published"
)

// Condition types of a RepairLease; of a ResizeOperation the last one.
const (
	// ConditionFenced: nothing of the clients executes any more on any memory node that serves.
	ConditionFenced = "Fenced"
	// ConditionRepaired: what they left half done is finished or undone, and what they held of the heap has a living owner.
	ConditionRepaired = "Repaired"
	// ConditionComplete: no memory node names them any more; or the pool has the memory nodes that the spec asks for, each with its share.
	ConditionComplete = "Complete"
)

// Condition type of a ResizeOperation.
const (
	// ConditionHolding: the pool stays as it is, though its spec asks for what the operation was to do, because a person has aborted it.
	ConditionHolding = "Holding"
)

// Reasons of conditions and events.
const (
	ReasonServing               = "Serving"
	ReasonSettled               = "Settled"
	ReasonHealthy               = "Healthy"
	ReasonAccepted              = "Accepted"
	ReasonCPURequestMissing     = "CPURequestMissing"
	ReasonReachable             = "Reachable"
	ReasonIssued                = "Issued"
	ReasonPaused                = "Paused"
	ReasonNotPublished          = "NotPublished"
	ReasonPreparing             = "Preparing"
	ReasonPrepared              = "Prepared"
	ReasonPublishing            = "Publishing"
	ReasonPublished             = "Published"
	ReasonSuperseded            = "Superseded"
	ReasonMemoryNodesPending    = "MemoryNodesPending"
	ReasonMemoryNodesNotServing = "MemoryNodesNotServing"
	ReasonNodeUnschedulable     = "NodeUnschedulable"
	ReasonRDMAMissing           = "RDMAMissing"
	ReasonDeviceMemoryMissing   = "DeviceMemoryMissing"
	ReasonWireUnsuitable        = "WireUnsuitable"
	ReasonDeviceMemoryGranted   = "DeviceMemoryGranted"
	ReasonTablesStopped         = "TablesStopped"
	ReasonTablesLost            = "TablesLost"
	ReasonDataLost              = "DataLost"
	ReasonDataLossAccepted      = "DataLossAccepted"
	ReasonNoLoss                = "NoLoss"
	ReasonStopped               = "Stopped"
	ReasonNoComputeShards       = "NoComputeShards"
	ReasonComputeRollingOut     = "ComputeRollingOut"
	ReasonSidecarsOutdated      = "SidecarsOutdated"
	ReasonPasswordChanging      = "PasswordChanging"
	ReasonAgentUnreachable      = "AgentUnreachable"
	ReasonAgentRefused          = "AgentRefused"
	ReasonNoAgents              = "NoAgents"
	ReasonPodPending            = "PodPending"
	ReasonPodFailed             = "PodFailed"
	ReasonStarting              = "Starting"
	ReasonNotServing            = "NotServing"
	ReasonGeometryMismatch      = "GeometryMismatch"
	ReasonNameConflict          = "NameConflict"
	ReasonObjectsAwaited        = "ObjectsAwaited"
	ReasonUnsupported           = "Unsupported"
	ReasonSecretMissing         = "SecretMissing"
	ReasonMapMissing            = "MapMissing"
	ReasonEpochConflict         = "EpochConflict"
	ReasonEpochPublished        = "EpochPublished"
	ReasonEpochAdopted          = "EpochAdopted"
	ReasonIssueFailed           = "IssueFailed"
	ReasonTLSSecretInvalid      = "TLSSecretInvalid"
	ReasonCertManagerMissing    = "CertManagerMissing"
	ReasonCertManagerForbidden  = "CertManagerForbidden"
	ReasonCertificateNotReady   = "CertificateNotReady"
	ReasonApplyFailed           = "ApplyFailed"
	ReasonWarmRestarted         = "WarmRestarted"
	ReasonMemoryAvailable       = "MemoryAvailable"
	ReasonMemoryNearlyFull      = "MemoryNearlyFull"
	ReasonMemoryFull            = "MemoryFull"
	ReasonMemoryUnknown         = "MemoryUnknown"
	ReasonRowsQuarantined       = "RowsQuarantined"
	ReasonRepairBacklog         = "RepairBacklog"
	ReasonClientsDied           = "ClientsDied"
	ReasonClientUnknown         = "ClientUnknown"
	ReasonClientAnswers         = "ClientAnswers"
	ReasonPoolNotFound          = "PoolNotFound"
	ReasonNotFollowed           = "NotFollowed"
	ReasonFencing               = "Fencing"
	ReasonFenced                = "Fenced"
	ReasonNotFenced             = "NotFenced"
	ReasonRepairing             = "Repairing"
	ReasonRepairFailed          = "RepairFailed"
	ReasonLeft                  = "Left"
	ReasonRepaired              = "Repaired"
	ReasonNothingLeft           = "NothingLeft"
	ReasonNotRepaired           = "NotRepaired"
	ReasonVerifying             = "Verifying"
	ReasonComplete              = "Complete"
	ReasonResizing              = "Resizing"
	ReasonResizePlanned         = "ResizePlanned"
	ReasonApprovalRequired      = "ApprovalRequired"
	ReasonMoveBegun             = "MoveBegun"
	ReasonMoveProgressed        = "MoveProgressed"
	ReasonMoveFinished          = "MoveFinished"
	ReasonMoving                = "Moving"
	ReasonNodeDrained           = "NodeDrained"
	ReasonRemoving              = "Removing"
	ReasonResizeComplete        = "ResizeComplete"
	ReasonSplitting             = "Splitting"
	ReasonResizeAborted         = "ResizeAborted"
	ReasonMovesExhausted        = "MovesExhausted"
	ReasonDrained               = "Drained"
	ReasonDraining              = "Draining"
	ReasonLastMemoryPool        = "LastMemoryPool"
	ReasonGrowing               = "Growing"
	ReasonCeilingReached        = "CeilingReached"
	ReasonTooManyMemoryNodes    = "TooManyMemoryNodes"
	ReasonTooFewSessions        = "TooFewSessions"
	ReasonCurrent               = "Current"
	ReasonPodDiffers            = "PodDiffers"
	ReasonResizingInPlace       = "ResizingInPlace"
	ReasonResizeUnsupported     = "ResizeUnsupported"
	ReasonAmendmentRefused      = "AmendmentRefused"
	ReasonUpgrading             = "Upgrading"
	ReasonUpgradeStarted        = "UpgradeStarted"
	ReasonMemoryNodeUpgraded    = "MemoryNodeUpgraded"
	ReasonUpgradeComplete       = "UpgradeComplete"
	ReasonUpgradeRefused        = "UpgradeRefused"
	ReasonUpgradeStopped        = "UpgradeStopped"
	ReasonNowhereToEvacuate     = "NowhereToEvacuate"
	ReasonForeignPods           = "ForeignPods"
	ReasonAnotherOperator       = "AnotherOperator"

	// Reasons of namespaces in a KVPool's status.sidecars, and of events about them.
	ReasonSidecarsAllowed          = "SidecarsAllowed"
	ReasonSidecarsRevoked          = "SidecarsRevoked"
	ReasonCredentialsAwaited       = "CredentialsAwaited"
	ReasonSidecarSecretTaken       = "SidecarSecretTaken"
	ReasonNamespaceMissing         = "NamespaceMissing"
	ReasonNamespaceNotWatched      = "NamespaceNotWatched"
	ReasonSidecarBudgetNearlySpent = "SidecarBudgetNearlySpent"
)

// SPDX-License-Identifier: Apache-2.0

package kvpool

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"

	"farpool.dev/farpool/api/v1alpha1"
	apiac "farpool.dev/farpool/api/v1alpha1/applyconfiguration/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/plan"
	"farpool.dev/farpool/operator/internal/render"
)

// statusOf is the object as it is written with its status.
func statusOf(written plan.StatusWrite) runtime.ApplyConfiguration {
	switch object := written.Object.(type) {
	case *v1alpha1.MemoryNode:
		return nodeStatus(object, written.Status.(*v1alpha1.MemoryNodeStatus))
	case *v1alpha1.ShardMap:
		return mapStatus(object, written.Status.(*v1alpha1.ShardMapStatus))
	case *v1alpha1.RepairLease:
		return leaseStatus(object, written.Status.(*v1alpha1.RepairLeaseStatus))
	case *v1alpha1.ResizeOperation:
		return resizeStatus(object, written.Status.(*v1alpha1.ResizeOperationStatus))
	case *v1alpha1.MemoryNodePool:
		return memoryNodePoolStatus(object, written.Status.(*v1alpha1.ScaleStatus))
	case *v1alpha1.ComputeShardPool:
		return computeShardPoolStatus(object, written.Status.(*v1alpha1.ComputeShardPoolStatus))
	default:
		return poolStatus(object.(*v1alpha1.KVPool), written.Status.(*v1alpha1.KVPoolStatus))
	}
}

func poolStatus(pool *v1alpha1.KVPool, status *v1alpha1.KVPoolStatus) *apiac.KVPoolApplyConfiguration {
	applied := apiac.KVPoolStatus().
		WithConditions(conditions(status.Conditions)...).
		WithObservedGeneration(status.ObservedGeneration)
	if status.Endpoint != "" {
		applied.WithEndpoint(status.Endpoint)
	}
	if status.Binding != nil {
		applied.WithBinding(apiac.BindingReference().WithName(status.Binding.Name))
	}
	if status.Certificate != nil {
		applied.WithCertificate(apiac.CertificateReference().WithName(status.Certificate.Name))
	}
	count := func(c *v1alpha1.CountStatus) *apiac.CountStatusApplyConfiguration {
		return apiac.CountStatus().WithReady(c.Ready).WithDesired(c.Desired).WithSummary(c.Summary)
	}
	if status.Memory != nil {
		applied.WithMemory(count(status.Memory))
	}
	if status.Compute != nil {
		applied.WithCompute(count(status.Compute))
	}
	if status.ShardMap != nil {
		applied.WithShardMap(apiac.ShardMapReference().WithName(status.ShardMap.Name).WithEpoch(status.ShardMap.Epoch))
	}
	if status.Template != nil {
		applied.WithTemplate(apiac.TemplateStatus().WithVersion(status.Template.Version).WithImage(status.Template.Image))
		if status.Template.CreatedWith != "" {
			applied.Template.WithCreatedWith(status.Template.CreatedWith)
		}
	}
	return apiac.KVPool(pool.Name, pool.Namespace).WithStatus(applied.WithProcesses(processes(status.Processes)...))
}

func processes(list []v1alpha1.ProcessStatus) []*apiac.ProcessStatusApplyConfiguration {
	applied := make([]*apiac.ProcessStatusApplyConfiguration, 0, len(list))
	for _, process := range list {
		written := apiac.ProcessStatus().WithProcess(process.Process).WithName(process.Name).WithPodUID(process.PodUID)
		if process.NodeName != "" {
			written.WithNodeName(process.NodeName)
		}
		applied = append(applied, written)
	}
	return applied
}

func nodeStatus(node *v1alpha1.MemoryNode, status *v1alpha1.MemoryNodeStatus) *apiac.MemoryNodeApplyConfiguration {
	applied := apiac.MemoryNodeStatus().
		WithConditions(conditions(status.Conditions)...).
		WithObservedGeneration(status.ObservedGeneration)
	// Zero values are left out, as they are when the object is read back: both forms must compare as equal.
	for _, field := range []struct {
		value string
		set   func(string) *apiac.MemoryNodeStatusApplyConfiguration
	}{
		{status.Incarnation, applied.WithIncarnation},
		{status.MemoryIncarnation, applied.WithMemoryIncarnation},
		{status.LostIncarnation, applied.WithLostIncarnation},
		{status.Endpoint, applied.WithEndpoint},
		{status.Image, applied.WithImage},
		{status.NodeName, applied.WithNodeName},
	} {
		if field.value != "" {
			field.set(field.value)
		}
	}
	if status.Epoch != 0 {
		applied.WithEpoch(status.Epoch)
	}
	if status.QuarantinedRows != 0 {
		applied.WithQuarantinedRows(status.QuarantinedRows)
	}
	if len(status.Requests) > 0 {
		applied.WithRequests(status.Requests)
	}
	if status.LockRegion != nil {
		applied.WithLockRegion(render.LockRegion(status.LockRegion))
	}
	return apiac.MemoryNode(node.Name, node.Namespace).WithStatus(applied)
}

func mapStatus(shardMap *v1alpha1.ShardMap, status *v1alpha1.ShardMapStatus) *apiac.ShardMapApplyConfiguration {
	return apiac.ShardMap(shardMap.Name, shardMap.Namespace).
		WithStatus(apiac.ShardMapStatus().WithConditions(conditions(status.Conditions)...))
}

func leaseStatus(lease *v1alpha1.RepairLease, status *v1alpha1.RepairLeaseStatus) *apiac.RepairLeaseApplyConfiguration {
	applied := apiac.RepairLeaseStatus().
		WithConditions(conditions(status.Conditions)...).
		WithObservedGeneration(status.ObservedGeneration).
		WithProcesses(status.Processes...)
	if status.Step != "" {
		applied.WithStep(status.Step)
	}
	if status.Fenced != "" {
		applied.WithFenced(status.Fenced)
	}
	if status.FencedNodes != 0 {
		applied.WithFencedNodes(status.FencedNodes)
	}
	if status.Shard != "" {
		applied.WithShard(status.Shard)
	}
	if status.Attempts != 0 {
		applied.WithAttempts(status.Attempts)
	}
	if status.StartedAt != nil {
		applied.WithStartedAt(*status.StartedAt)
	}
	if status.CompletedAt != nil {
		applied.WithCompletedAt(*status.CompletedAt)
	}
	type count[T any] struct {
		value int64
		set   func(int64) T
	}
	for _, c := range []count[*apiac.RepairLeaseStatusApplyConfiguration]{
		{status.SlotsRepaired, applied.WithSlotsRepaired},
		{status.SegmentsAdopted, applied.WithSegmentsAdopted},
		{status.Left, applied.WithLeft},
	} {
		if c.value != 0 {
			c.set(c.value)
		}
	}
	for _, node := range status.Nodes {
		at := apiac.RepairNodeStatus().WithName(node.Name)
		if node.Incarnation != "" {
			at.WithIncarnation(node.Incarnation)
		}
		if node.Message != "" {
			at.WithMessage(node.Message)
		}
		for _, c := range []count[*apiac.RepairNodeStatusApplyConfiguration]{
			{node.SessionsEnded, at.WithSessionsEnded},
			{node.SlotsRepaired, at.WithSlotsRepaired},
			{node.SlotsLeft, at.WithSlotsLeft},
			{node.SegmentsAdopted, at.WithSegmentsAdopted},
			{node.SegmentsLeft, at.WithSegmentsLeft},
		} {
			if c.value != 0 {
				c.set(c.value)
			}
		}
		applied.WithNodes(at)
	}
	return apiac.RepairLease(lease.Name, lease.Namespace).WithStatus(applied)
}

func resizeStatus(resize *v1alpha1.ResizeOperation, status *v1alpha1.ResizeOperationStatus) *apiac.ResizeOperationApplyConfiguration {
	applied := apiac.ResizeOperationStatus().
		WithConditions(conditions(status.Conditions)...).
		WithObservedGeneration(status.ObservedGeneration)
	if status.Stage != "" {
		applied.WithStage(status.Stage)
	}
	if status.Change != "" {
		applied.WithChange(status.Change)
	}
	if status.TablesInUse != 0 {
		applied.WithTablesInUse(status.TablesInUse)
	}
	if status.PartsTotal != 0 {
		applied.WithPartsTotal(status.PartsTotal)
	}
	if status.PartsMoved != 0 {
		applied.WithPartsMoved(status.PartsMoved)
	}
	if status.KeysLeft != 0 {
		applied.WithKeysLeft(status.KeysLeft)
	}
	if status.KeysTotal != 0 {
		applied.WithKeysTotal(status.KeysTotal)
	}
	if status.BytesLeft != 0 {
		applied.WithBytesLeft(status.BytesLeft)
	}
	if status.MovingSince != nil {
		applied.WithMovingSince(*status.MovingSince)
	}
	if status.EstimatedCompletionTime != nil {
		applied.WithEstimatedCompletionTime(*status.EstimatedCompletionTime)
	}
	if status.StartTime != nil {
		applied.WithStartTime(*status.StartTime)
	}
	if status.CompletionTime != nil {
		applied.WithCompletionTime(*status.CompletionTime)
	}
	return apiac.ResizeOperation(resize.Name, resize.Namespace).WithStatus(applied)
}

func memoryNodePoolStatus(pool *v1alpha1.MemoryNodePool, status *v1alpha1.ScaleStatus) *apiac.MemoryNodePoolApplyConfiguration {
	return apiac.MemoryNodePool(pool.Name, pool.Namespace).WithStatus(scaleStatus(status))
}

func computeShardPoolStatus(pool *v1alpha1.ComputeShardPool, status *v1alpha1.ComputeShardPoolStatus) *apiac.ComputeShardPoolApplyConfiguration {
	applied := apiac.ComputeShardPoolStatus().WithProcesses(processes(status.Processes)...)
	applied.ScaleStatusApplyConfiguration = *scaleStatus(&status.ScaleStatus)
	return apiac.ComputeShardPool(pool.Name, pool.Namespace).WithStatus(applied)
}

func scaleStatus(status *v1alpha1.ScaleStatus) *apiac.ScaleStatusApplyConfiguration {
	applied := apiac.ScaleStatus().
		WithConditions(conditions(status.Conditions)...).
		WithObservedGeneration(status.ObservedGeneration).
		WithSelector(status.Selector)
	if status.Replicas != 0 {
		applied.WithReplicas(status.Replicas)
	}
	if status.ReadyReplicas != 0 {
		applied.WithReadyReplicas(status.ReadyReplicas)
	}
	return applied
}

func conditions(list []metav1.Condition) []*metav1ac.ConditionApplyConfiguration {
	applied := make([]*metav1ac.ConditionApplyConfiguration, 0, len(list))
	for _, c := range list {
		condition := metav1ac.Condition().
			WithType(c.Type).WithStatus(c.Status).WithReason(c.Reason).WithMessage(c.Message).WithLastTransitionTime(c.LastTransitionTime)
		if c.ObservedGeneration != 0 {
			condition.WithObservedGeneration(c.ObservedGeneration)
		}
		applied = append(applied, condition)
	}
	return applied
}

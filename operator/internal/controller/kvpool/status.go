// SPDX-License-Identifier: Apache-2.0

package kvpool

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"

	"farpool.dev/farpool/api/v1alpha1"
	apiac "farpool.dev/farpool/api/v1alpha1/applyconfiguration/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/render"
)

func poolStatus(pool *v1alpha1.KVPool, status *v1alpha1.KVPoolStatus) *apiac.KVPoolApplyConfiguration {
	applied := apiac.KVPoolStatus().
		WithConditions(conditions(status.Conditions)...).
		WithObservedGeneration(status.ObservedGeneration)
	if status.Endpoint != "" {
		applied.WithEndpoint(status.Endpoint)
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
	}
	return apiac.KVPool(pool.Name, pool.Namespace).WithStatus(applied)
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
		{status.LostIncarnation, applied.WithLostIncarnation},
		{status.Endpoint, applied.WithEndpoint},
		{status.NodeName, applied.WithNodeName},
	} {
		if field.value != "" {
			field.set(field.value)
		}
	}
	if status.Epoch != 0 {
		applied.WithEpoch(status.Epoch)
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

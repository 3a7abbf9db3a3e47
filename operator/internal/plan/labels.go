// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"farpool.dev/farpool/api/v1alpha1"
)

// Anybody can remove labels. Objects that are applied get them back with everything else. This file restores them on objects that are made once, or that others
// make.

// relabel plans to put back the labels that an object lacks.
func (d *decision) relabel(object client.Object, labels map[string]string) {
	if pod, ok := object.(*corev1.Pod); ok && pod == nil || !object.GetDeletionTimestamp().IsZero() {
		return
	}
	has := object.GetLabels()
	for key, value := range labels {
		if has[key] != value {
			d.Relabel = append(d.Relabel, Relabelling{object, labels})
			return
		}
	}
}

// adopt plans the owners of a memory node's pod. The first owner is its MemoryNode, which may have been deleted and made again. The second is the pool, by which
// the pod stays when that happens.
func (d *decision) adopt(n *node) {
	if n.pod == nil || !n.pod.DeletionTimestamp.IsZero() {
		return
	}
	yes := true
	node := metav1.OwnerReference{APIVersion: v1alpha1.GroupVersion.String(), Kind: "MemoryNode", Name: n.name, UID: n.object.UID, Controller: &yes, BlockOwnerDeletion: &yes}
	pool := metav1.OwnerReference{APIVersion: v1alpha1.GroupVersion.String(), Kind: "KVPool", Name: d.Pool.Name, UID: d.Pool.UID}
	owned := func(uid types.UID) bool {
		return slices.ContainsFunc(n.pod.OwnerReferences, func(owner metav1.OwnerReference) bool { return owner.UID == uid })
	}
	if !metav1.IsControlledBy(n.pod, n.object) || !owned(d.Pool.UID) {
		d.Adopt = append(d.Adopt, Adoption{n.pod, []metav1.OwnerReference{node, pool}})
	}
}

// relabelOthers restores the labels of ShardMaps, RepairLeases and ResizeOperations, and of pods of compute shards that are known by their UID. A ReplicaSet lets
// go of a pod that loses its label, and makes another. With the label, it takes the pod back and ends one too many in order.
func (d *decision) relabelOthers() {
	for _, object := range d.ShardMaps {
		d.relabel(object, d.pool.Labels())
	}
	for _, object := range d.Leases {
		if metav1.IsControlledBy(object, d.Pool) {
			d.relabel(object, d.pool.PoolLabel())
		}
	}
	for _, object := range d.Resizes {
		d.relabel(object, d.pool.Labels())
	}
	for _, pod := range d.Unlabelled {
		if labels := d.labelsOfShard(pod.Name); labels != nil {
			d.relabel(pod, labels)
		}
	}
}

// labelsOfShard are the labels that a compute shard's pod has from its Deployment; nil: no Deployment made the pod.
func (d *decision) labelsOfShard(pod string) map[string]string {
	longest := ""
	for name := range d.Deployments {
		if strings.HasPrefix(pod, name+"-") && len(name) > len(longest) {
			longest = name
		}
	}
	if longest == "" {
		return nil
	}
	return d.Deployments[longest].Spec.Template.Labels
}

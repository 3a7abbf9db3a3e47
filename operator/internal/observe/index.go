// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"context"
	"fmt"
	"maps"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"farpool.dev/farpool/api/v1alpha1"
)

// Indexes of the cache. Without them each look at a pool would go through the objects of all pools.
const (
	// indexPool finds what belongs to a pool: by its label, or by the name in its spec where people make objects, too.
	indexPool = "pool"
	// indexOwner finds what a pool controls, by the pool's uid.
	indexOwner = "owner"
	// indexPoolUID finds the Secrets that any operator keeps of a pool, by the pool's uid.
	indexPoolUID = "poolUID"
	// indexMarked finds the Kubernetes nodes that are about to be emptied or out of service.
	indexMarked = "marked"
	// indexNodeName finds what runs, or has run, on a Kubernetes node.
	indexNodeName = "nodeName"

	marked = "true"
)

// Index adds to a cache the indexes that Take and On need.
func Index(ctx context.Context, c cache.Cache, drains DrainTaints) error {
	// add adds an index that is asked in all namespaces at once, and for kinds that are in none.
	add := func(object client.Object, index string, values client.IndexerFunc) error {
		if err := c.IndexField(ctx, object, index, values); err != nil {
			return fmt.Errorf("index %T by %s: %w", object, index, err)
		}
		return nil
	}
	// addWithin adds an index that is asked in one namespace at a time.
	addWithin := func(object client.Object, index string, values client.IndexerFunc) error {
		informer, err := c.GetInformer(ctx, object, cache.BlockUntilSynced(false))
		if err == nil {
			err = informer.AddIndexers(within(index, values))
		}
		if err != nil {
			return fmt.Errorf("index %T by %s: %w", object, index, err)
		}
		return nil
	}
	one := func(value string) []string {
		if value == "" {
			return nil
		}
		return []string{value}
	}
	replicaSet := &metav1.PartialObjectMetadata{}
	replicaSet.SetGroupVersionKind(appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))
	for _, object := range []client.Object{
		&corev1.Pod{}, replicaSet, &appsv1.Deployment{}, &corev1.Secret{}, &corev1.ConfigMap{}, &corev1.Service{},
		&policyv1.PodDisruptionBudget{}, &networkingv1.NetworkPolicy{},
	} {
		if err := addWithin(object, indexPool, func(object client.Object) []string { return one(object.GetLabels()[v1alpha1.LabelPool]) }); err != nil {
			return err
		}
	}
	if err := add(&corev1.Secret{}, indexPoolUID, func(object client.Object) []string { return one(object.GetLabels()[v1alpha1.LabelPoolUID]) }); err != nil {
		return err
	}
	for _, object := range []client.Object{&v1alpha1.MemoryNode{}, &v1alpha1.ShardMap{}, &v1alpha1.MemoryNodePool{}, &v1alpha1.ComputeShardPool{}} {
		if err := addWithin(object, indexOwner, func(object client.Object) []string {
			if controller := metav1.GetControllerOf(object); controller != nil {
				return []string{string(controller.UID)}
			}
			return nil
		}); err != nil {
			return err
		}
	}
	if err := addWithin(&v1alpha1.RepairLease{}, indexPool, func(object client.Object) []string {
		return one(object.(*v1alpha1.RepairLease).Spec.PoolRef.Name)
	}); err != nil {
		return err
	}
	if err := addWithin(&v1alpha1.ResizeOperation{}, indexPool, func(object client.Object) []string {
		return one(object.(*v1alpha1.ResizeOperation).Spec.PoolName)
	}); err != nil {
		return err
	}
	names := func(processes []v1alpha1.ProcessStatus) []string {
		var names []string
		for _, process := range processes {
			if process.NodeName != "" {
				names = append(names, process.NodeName)
			}
		}
		slices.Sort(names)
		return slices.Compact(names)
	}
	for object, values := range map[client.Object]client.IndexerFunc{
		&v1alpha1.MemoryNode{}: func(object client.Object) []string { return one(object.(*v1alpha1.MemoryNode).Status.NodeName) },
		&v1alpha1.ComputeShardPool{}: func(object client.Object) []string {
			return names(object.(*v1alpha1.ComputeShardPool).Status.Processes)
		},
		&v1alpha1.KVPool{}: func(object client.Object) []string { return names(object.(*v1alpha1.KVPool).Status.Processes) },
	} {
		if err := add(object, indexNodeName, values); err != nil {
			return err
		}
	}
	return add(&corev1.Node{}, indexMarked, func(object client.Object) []string {
		if node := object.(*corev1.Node); IsOutOfService(node) || len(drains.Of(node)) > 0 {
			return []string{marked}
		}
		return nil
	})
}

// within returns an index as the cache asks it for one namespace. What the cache's own IndexField adds has a second entry of each object, for all namespaces: with
// a thousand pools, these took 3 MiB for nobody. Its name and keys are those of IndexField, as the cache's List knows no others.
func within(index string, values client.IndexerFunc) toolscache.Indexers {
	return toolscache.Indexers{"field:" + index: func(object any) ([]string, error) {
		indexed, ok := object.(client.Object)
		if !ok {
			return nil, fmt.Errorf("%T is no object", object)
		}
		keys := slices.Clone(values(indexed))
		for i := range keys {
			keys[i] = indexed.GetNamespace() + "/" + keys[i]
		}
		return keys, nil
	}}
}

// On returns the pools that have memory nodes or processes on a Kubernetes node.
func On(ctx context.Context, cache client.Reader, node string) ([]types.NamespacedName, error) {
	var memoryNodes v1alpha1.MemoryNodeList
	var computePools v1alpha1.ComputeShardPoolList
	var pools v1alpha1.KVPoolList
	for _, objects := range []client.ObjectList{&memoryNodes, &computePools, &pools} {
		if err := cache.List(ctx, objects, client.MatchingFields{indexNodeName: node}); err != nil {
			return nil, fmt.Errorf("list %T on Kubernetes node %s: %w", objects, node, err)
		}
	}
	found := map[types.NamespacedName]bool{}
	for i := range memoryNodes.Items {
		found[types.NamespacedName{Namespace: memoryNodes.Items[i].Namespace, Name: memoryNodes.Items[i].Spec.PoolName}] = true
	}
	for i := range computePools.Items {
		found[types.NamespacedName{Namespace: computePools.Items[i].Namespace, Name: computePools.Items[i].Spec.PoolName}] = true
	}
	for i := range pools.Items {
		found[client.ObjectKeyFromObject(&pools.Items[i])] = true
	}
	return slices.Collect(maps.Keys(found)), nil
}

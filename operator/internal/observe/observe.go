// SPDX-License-Identifier: Apache-2.0

// Package observe reads everything that concerns one pool into one snapshot, which decisions are then made from.
package observe

import (
	"context"
	"fmt"
	"sort"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/agent"
)

// Snapshot is the world as far as one pool goes. Nothing in it may be changed: objects belong to the cache.
type Snapshot struct {
	Pool *v1alpha1.KVPool

	// By name; only what this very pool owns.
	Nodes       map[string]*v1alpha1.MemoryNode
	ShardMaps   []*v1alpha1.ShardMap // by epoch
	NodePods    map[string]*corev1.Pod
	ComputePods []*corev1.Pod // by name
	Deployments map[string]*appsv1.Deployment
	Secrets     map[string]*corev1.Secret
	ConfigMaps  map[string]*corev1.ConfigMap
	Services    map[string]*corev1.Service
	Budgets     map[string]*policyv1.PodDisruptionBudget
	Policies    map[string]*networkingv1.NetworkPolicy

	// Agents by the pod that they run in.
	Agents map[types.UID]agent.Observation
}

// Agents tells what is known about data-plane processes.
type Agents interface {
	Observe(pool types.NamespacedName) map[types.UID]agent.Observation
}

// Take reads a snapshot from the cache.
func Take(ctx context.Context, cache client.Reader, agents Agents, pool *v1alpha1.KVPool) (*Snapshot, error) {
	s := &Snapshot{
		Pool:   pool,
		Agents: agents.Observe(client.ObjectKeyFromObject(pool)),
	}
	options := []client.ListOption{client.InNamespace(pool.Namespace), client.MatchingLabels{v1alpha1.LabelPool: pool.Name}}
	list := func(objects client.ObjectList) error {
		if err := cache.List(ctx, objects, options...); err != nil {
			return fmt.Errorf("list %T of pool %s/%s: %w", objects, pool.Namespace, pool.Name, err)
		}
		return nil
	}

	var nodes v1alpha1.MemoryNodeList
	var maps v1alpha1.ShardMapList
	var pods corev1.PodList
	var deployments appsv1.DeploymentList
	var secrets corev1.SecretList
	var configMaps corev1.ConfigMapList
	var services corev1.ServiceList
	var budgets policyv1.PodDisruptionBudgetList
	var policies networkingv1.NetworkPolicyList
	for _, objects := range []client.ObjectList{&nodes, &maps, &pods, &deployments, &secrets, &configMaps, &services, &budgets, &policies} {
		if err := list(objects); err != nil {
			return nil, err
		}
	}

	s.Nodes = owned(pool, nodes.Items)
	s.Deployments = owned(pool, deployments.Items)
	s.Secrets = owned(pool, secrets.Items)
	s.ConfigMaps = owned(pool, configMaps.Items)
	s.Services = owned(pool, services.Items)
	s.Budgets = owned(pool, budgets.Items)
	s.Policies = owned(pool, policies.Items)
	for _, shardMap := range owned(pool, maps.Items) {
		s.ShardMaps = append(s.ShardMaps, shardMap)
	}
	sort.Slice(s.ShardMaps, func(i, j int) bool { return s.ShardMaps[i].Spec.Epoch < s.ShardMaps[j].Spec.Epoch })

	s.NodePods = map[string]*corev1.Pod{}
	for i := range pods.Items {
		pod := &pods.Items[i]
		switch pod.Labels[v1alpha1.LabelComponent] {
		case v1alpha1.ComponentMemoryNode:
			if node := s.Nodes[pod.Name]; node != nil && metav1.IsControlledBy(pod, node) {
				s.NodePods[pod.Name] = pod
			}
		case v1alpha1.ComponentComputeShard:
			s.ComputePods = append(s.ComputePods, pod)
		}
	}
	sort.Slice(s.ComputePods, func(i, j int) bool { return s.ComputePods[i].Name < s.ComputePods[j].Name })
	return s, nil
}

// owned keeps what pool controls: an object of the same labels that another owner or nobody controls is not the operator's to change.
func owned[T any, P interface {
	*T
	client.Object
}](pool *v1alpha1.KVPool, items []T) map[string]P {
	kept := map[string]P{}
	for i := range items {
		if object := P(&items[i]); metav1.IsControlledBy(object, pool) {
			kept[object.GetName()] = object
		}
	}
	return kept
}

// Object is what the pool owns of a kind and name, or nil.
func (s *Snapshot) Object(kind, name string) client.Object {
	switch kind {
	case "MemoryNode":
		return found(s.Nodes, name)
	case "Pod":
		return found(s.NodePods, name)
	case "Deployment":
		return found(s.Deployments, name)
	case "Secret":
		return found(s.Secrets, name)
	case "ConfigMap":
		return found(s.ConfigMaps, name)
	case "Service":
		return found(s.Services, name)
	case "PodDisruptionBudget":
		return found(s.Budgets, name)
	case "NetworkPolicy":
		return found(s.Policies, name)
	case "ShardMap":
		for _, shardMap := range s.ShardMaps {
			if shardMap.Name == name {
				return shardMap
			}
		}
	}
	return nil
}

// found avoids an interface that holds a nil pointer.
func found[P interface {
	comparable
	client.Object
}](objects map[string]P, name string) client.Object {
	var none P
	if object := objects[name]; object != none {
		return object
	}
	return nil
}

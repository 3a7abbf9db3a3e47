// SPDX-License-Identifier: Apache-2.0

package kvpool

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"farpool.dev/farpool/api/v1alpha1"
)

// CacheOptions keep the cache to what belongs to pools: no Secret of anybody else's is ever read.
func CacheOptions(namespace string) cache.Options {
	requirement, err := labels.NewRequirement(v1alpha1.LabelPool, selection.Exists, nil)
	if err != nil {
		panic(err) // the label is a constant
	}
	ofPools := cache.ByObject{Label: labels.NewSelector().Add(*requirement)}
	options := cache.Options{
		ReaderFailOnMissingInformer: true,
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Pod{}:                   ofPools,
			&corev1.Secret{}:                ofPools,
			&corev1.ConfigMap{}:             ofPools,
			&corev1.Service{}:               ofPools,
			&appsv1.Deployment{}:            ofPools,
			&policyv1.PodDisruptionBudget{}: ofPools,
			&networkingv1.NetworkPolicy{}:   ofPools,
			// Of Kubernetes nodes, nothing is looked at but their taints, and whether they are cordoned.
			&corev1.Node{}: {Transform: func(object any) (any, error) {
				if node, ok := object.(*corev1.Node); ok {
					object = &corev1.Node{
						ObjectMeta: metav1.ObjectMeta{Name: node.Name, UID: node.UID, ResourceVersion: node.ResourceVersion},
						Spec:       corev1.NodeSpec{Taints: node.Spec.Taints, Unschedulable: node.Spec.Unschedulable},
					}
				}
				return object, nil
			}},
		},
	}
	if namespace != "" {
		options.DefaultNamespaces = map[string]cache.Config{namespace: {}}
	}
	return options
}

// SPDX-License-Identifier: Apache-2.0

package kvpool

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"

	"farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/apply"
)

// CacheOptions keeps the cache to what has the label of pools, in some namespaces, or in all if none is named: no Secret without the label is ever read.
// secretNamespace is where the operator keeps Secrets of its own; empty: with each pool.
func CacheOptions(namespaces []string, secretNamespace string) cache.Options {
	requirement, err := labels.NewRequirement(v1alpha1.LabelPool, selection.Exists, nil)
	if err != nil {
		panic(err) // the label is a constant
	}
	ofPools := cache.ByObject{Label: labels.NewSelector().Add(*requirement)}
	common := &shared{}
	options := cache.Options{
		ReaderFailOnMissingInformer: true,
		DefaultTransform:            common.transform(withoutManagersOfOthers),
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Pod{}:                   {Label: ofPools.Label, Transform: common.transform(slimPod)},
			&corev1.Secret{}:                ofPools,
			&corev1.ConfigMap{}:             ofPools,
			&corev1.Service{}:               ofPools,
			&appsv1.Deployment{}:            ofPools,
			&appsv1.ReplicaSet{}:            ofPools,
			&policyv1.PodDisruptionBudget{}: ofPools,
			&networkingv1.NetworkPolicy{}:   ofPools,
			// The operator looks at nothing of Kubernetes nodes but their taints and cordons.
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
	if len(namespaces) > 0 {
		options.DefaultNamespaces = map[string]cache.Config{}
		secrets := ofPools
		secrets.Namespaces = map[string]cache.Config{}
		if secretNamespace != "" {
			secrets.Namespaces[secretNamespace] = cache.Config{}
		}
		for _, namespace := range namespaces {
			options.DefaultNamespaces[namespace] = cache.Config{}
			secrets.Namespaces[namespace] = cache.Config{}
		}
		for object := range options.ByObject {
			if _, ok := object.(*corev1.Secret); ok {
				options.ByObject[object] = secrets
			}
		}
	}
	return options
}

// withoutManagersOfOthers keeps an object's field ownership only where the operator is the manager: an apply does not look at others.
func withoutManagersOfOthers(object any) (any, error) {
	if accessor, err := meta.Accessor(object); err == nil {
		accessor.SetManagedFields(slices.DeleteFunc(accessor.GetManagedFields(), func(entry metav1.ManagedFieldsEntry) bool {
			return !apply.Keeps(entry.Manager)
		}))
	}
	return object, nil
}

// conditionsOfPods are the ones that the operator reads.
var conditionsOfPods = []corev1.PodConditionType{corev1.PodScheduled, corev1.PodReady, corev1.PodReadyToStartContainers, corev1.PodResizePending, corev1.PodResizeInProgress}

// slimPod keeps the parts of a pod that the operator reads. Pods are the most numerous objects and have the longest specs; a pod that runs is never applied.
func slimPod(object any) (any, error) {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return object, nil
	}
	slim := &corev1.Pod{ObjectMeta: pod.ObjectMeta}
	slim.ManagedFields, slim.Annotations = nil, nil
	slim.Status = corev1.PodStatus{Phase: pod.Status.Phase, Reason: pod.Status.Reason, Message: pod.Status.Message, PodIP: pod.Status.PodIP}
	for _, condition := range pod.Status.Conditions {
		if slices.Contains(conditionsOfPods, condition.Type) {
			slim.Status.Conditions = append(slim.Status.Conditions, condition)
		}
	}
	for _, container := range pod.Status.ContainerStatuses {
		slim.Status.ContainerStatuses = append(slim.Status.ContainerStatuses,
			corev1.ContainerStatus{Name: container.Name, State: container.State, LastTerminationState: container.LastTerminationState})
	}
	slim.Spec = corev1.PodSpec{NodeName: pod.Spec.NodeName}
	if pod.Labels[v1alpha1.LabelMemoryNode] != "" {
		// It is compared with what the spec says now, which may name any annotation.
		slim.Annotations = pod.Annotations
		slim.Spec.NodeSelector, slim.Spec.Tolerations = pod.Spec.NodeSelector, pod.Spec.Tolerations
		slim.Spec.Affinity, slim.Spec.TopologySpreadConstraints = pod.Spec.Affinity, pod.Spec.TopologySpreadConstraints
		slim.Spec.PriorityClassName, slim.Spec.RuntimeClassName = pod.Spec.PriorityClassName, pod.Spec.RuntimeClassName
		slim.Spec.SchedulerName, slim.Spec.ServiceAccountName = pod.Spec.SchedulerName, pod.Spec.ServiceAccountName
		slim.Spec.ImagePullSecrets = pod.Spec.ImagePullSecrets
		if pod.Spec.SecurityContext != nil {
			slim.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: pod.Spec.SecurityContext.RunAsUser}
		}
		for _, container := range pod.Spec.Containers {
			slim.Spec.Containers = append(slim.Spec.Containers, corev1.Container{
				Name: container.Name, Image: container.Image, ImagePullPolicy: container.ImagePullPolicy, Args: container.Args, Resources: container.Resources})
		}
		// The status says what the pod requests.
		slim.Spec.Overhead = pod.Spec.Overhead
		for _, container := range pod.Spec.InitContainers {
			slim.Spec.InitContainers = append(slim.Spec.InitContainers, corev1.Container{Name: container.Name, RestartPolicy: container.RestartPolicy, Resources: container.Resources})
		}
		return slim, nil
	}
	// An image is tried by compute shards before memory nodes get it.
	for _, container := range pod.Spec.Containers {
		slim.Spec.Containers = append(slim.Spec.Containers, corev1.Container{Name: container.Name, Image: container.Image})
	}
	// A Secret stays as long as a pod of a compute shard has it.
	for _, volume := range pod.Spec.Volumes {
		if volume.Secret != nil {
			slim.Spec.Volumes = append(slim.Spec.Volumes, corev1.Volume{Name: volume.Name, VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: volume.Secret.SecretName}}})
		}
	}
	return slim, nil
}

// readyWithin is how long a probe waits for the caches; a kubelet gives it a second by default.
const readyWithin = 500 * time.Millisecond

// Ready says whether the caches are filled. Before that, nothing is known of any pool.
func Ready(c cache.Cache) healthz.Checker {
	return func(request *http.Request) error {
		ctx, cancel := context.WithTimeout(request.Context(), readyWithin)
		defer cancel()
		if !c.WaitForCacheSync(ctx) {
			return errors.New("the caches are not filled yet: the API server is slow, or refuses to list a kind")
		}
		return nil
	}
}

// SPDX-License-Identifier: Apache-2.0

package render

import (
	"k8s.io/apimachinery/pkg/types"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"

	"farpool.dev/farpool/api/v1alpha1"
)

// template4 is for clusters that lose Kubernetes nodes: it changes what pods tolerate, how they start and how they end.
type template4 struct{ template3 }

func (t template4) MemoryPod(pool Pool, memoryPool v1alpha1.MemoryPool, node string, nodeUID types.UID) (*corev1ac.PodApplyConfiguration, error) {
	pod, err := t.template3.MemoryPod(pool, memoryPool, node, nodeUID)
	if err != nil {
		return nil, err
	}
	hash, err := hashOf(pod.Spec)
	if err != nil {
		return nil, err
	}
	return pod.WithAnnotations(t.version()).WithAnnotations(map[string]string{v1alpha1.AnnotationPodHash: hash}).WithOwnerReferences(pool.Keeper()), nil
}

func (t template4) ComputeDeployment(pool Pool, computePool v1alpha1.ComputePool) (*appsv1ac.DeploymentApplyConfiguration, error) {
	deployment, err := t.template3.ComputeDeployment(pool, computePool)
	if err != nil {
		return nil, err
	}
	deployment.Spec.Template.WithAnnotations(t.version()).
		WithAnnotations(map[string]string{v1alpha1.AnnotationConfigHash: hashOfText(t.ComputeConfig(pool, computePool))})
	return deployment, nil
}

func (template4) version() map[string]string {
	return map[string]string{v1alpha1.AnnotationTemplateVersion: "4"}
}

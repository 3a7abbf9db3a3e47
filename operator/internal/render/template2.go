// SPDX-License-Identifier: Apache-2.0

package render

import (
	"k8s.io/apimachinery/pkg/types"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"

	"farpool.dev/farpool/api/v1alpha1"
)

// template2 is for a data plane whose memory outlives its process: what a Store finds damaged is kept for a person, not written over.
type template2 struct{ template1 }

func (t template2) MemoryConfig(pool Pool, memoryPool v1alpha1.MemoryPool) string {
	config := t.template1.MemoryConfig(pool, memoryPool)
	if pool.Spec.DataPolicy == v1alpha1.DataPolicyStore {
		config += "refuse-damaged-memory = true\n"
	}
	return config
}

func (t template2) MemoryPod(pool Pool, memoryPool v1alpha1.MemoryPool, node string, nodeUID types.UID) (*corev1ac.PodApplyConfiguration, error) {
	pod, err := t.template1.MemoryPod(pool, memoryPool, node, nodeUID)
	if err != nil {
		return nil, err
	}
	return pod.WithAnnotations(t.version()), nil
}

func (t template2) ComputeDeployment(pool Pool, computePool v1alpha1.ComputePool) (*appsv1ac.DeploymentApplyConfiguration, error) {
	deployment, err := t.template1.ComputeDeployment(pool, computePool)
	if err != nil {
		return nil, err
	}
	deployment.Spec.Template.WithAnnotations(t.version())
	return deployment, nil
}

func (template2) version() map[string]string {
	return map[string]string{v1alpha1.AnnotationTemplateVersion: "2"}
}

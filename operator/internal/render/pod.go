// SPDX-License-Identifier: Apache-2.0

package render

import (
	"encoding/json"
	"fmt"
	"maps"

	"k8s.io/apimachinery/pkg/types"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"

	"farpool.dev/farpool/api/v1alpha1"
)

// withOptions is a frozen template whose pods also get what the spec says of pods and of how they pull images. Pods of a spec that says nothing are the
// template's own.
type withOptions struct{ Template }

func (t withOptions) MemoryPod(pool Pool, memoryPool v1alpha1.MemoryPool, node string, nodeUID types.UID) (*corev1ac.PodApplyConfiguration, error) {
	options := memoryPool.Pod.OrNone()
	pool.platformUsers(options)
	pod, err := t.Template.MemoryPod(pool, memoryPool, node, nodeUID)
	if err != nil {
		return nil, err
	}
	if memoryPool.Pod == nil && !pool.pullsOtherwise() {
		return pod, nil
	}
	pull(pod.Spec, pool.Spec)
	if err := place(pool, pod.Spec, options, v1alpha1.ComponentMemoryNode); err != nil {
		return nil, fmt.Errorf("memory node %s: %w", node, err)
	}
	pod.Labels, pod.Annotations = under(pod.Labels, options.Labels), under(pod.Annotations, options.Annotations)
	for key := range NotToBeTaken() {
		if value, chosen := options.Annotations[key]; chosen {
			pod.Annotations[key] = value
		}
	}
	hash, err := hashOf(pod.Spec)
	if err != nil {
		return nil, err
	}
	return pod.WithAnnotations(map[string]string{v1alpha1.AnnotationPodHash: hash}), nil
}

func (t withOptions) ComputeDeployment(pool Pool, computePool v1alpha1.ComputePool) (*appsv1ac.DeploymentApplyConfiguration, error) {
	options := computePool.Pod.OrNone()
	pool.platformUsers(options)
	deployment, err := t.Template.ComputeDeployment(pool, computePool)
	if err != nil {
		return nil, err
	}
	template := deployment.Spec.Template
	pull(template.Spec, pool.Spec)
	if err := place(pool, template.Spec, options, v1alpha1.ComponentComputeShard); err != nil {
		return nil, fmt.Errorf("compute pool %s: %w", computePool.Name, err)
	}
	template.Labels, template.Annotations = under(template.Labels, options.Labels), under(template.Annotations, options.Annotations)
	return deployment, nil
}

// pullsOtherwise says whether the spec has a word on how images are pulled.
func (p *Pool) pullsOtherwise() bool {
	return p.Spec.ImagePullPolicy != "" || len(p.Spec.ImagePullSecrets) > 0
}

// pull writes into a pod how the kubelet pulls its images.
func pull(spec *corev1ac.PodSpecApplyConfiguration, of v1alpha1.KVPoolSpec) {
	if of.ImagePullPolicy != "" {
		for _, containers := range [][]corev1ac.ContainerApplyConfiguration{spec.Containers, spec.InitContainers} {
			for i := range containers {
				containers[i].WithImagePullPolicy(of.ImagePullPolicy)
			}
		}
	}
	for _, name := range of.ImagePullSecrets {
		spec.WithImagePullSecrets(corev1ac.LocalObjectReference().WithName(string(name)))
	}
}

// platformUsers gives the spec's word on users and groups precedence over the operator's setting.
func (p *Pool) platformUsers(options *v1alpha1.PodOptions) {
	if options.SecurityContext != "" {
		p.PlatformUsers = options.SecurityContext == v1alpha1.PodSecurityPlatform
	}
}

// under returns the operator's own entries, and the spec's where the operator has none.
func under[Value ~string](own map[string]string, given map[string]Value) map[string]string {
	both := make(map[string]string, len(own)+len(given))
	for key, value := range given {
		both[key] = string(value)
	}
	maps.Copy(both, own)
	return both
}

// place writes into a pod what says where it runs. What belongs to a type of Kubernetes is copied as it is.
func place(pool Pool, spec *corev1ac.PodSpecApplyConfiguration, options *v1alpha1.PodOptions, component string) error {
	if options.SecurityContext != "" {
		(template4{}).platformUsers(pool, spec) // templates before it ignore the setting
	}
	if options.Affinity != nil {
		spec.Affinity = &corev1ac.AffinityApplyConfiguration{}
		if err := copyInto(spec.Affinity, options.Affinity); err != nil {
			return fmt.Errorf("affinity: %w", err)
		}
	}
	if len(options.TopologySpreadConstraints) > 0 {
		spec.TopologySpreadConstraints = nil
		for i := range options.TopologySpreadConstraints {
			constraint := corev1ac.TopologySpreadConstraint()
			if err := copyInto(constraint, &options.TopologySpreadConstraints[i]); err != nil {
				return fmt.Errorf("topologySpreadConstraints: %w", err)
			}
			if constraint.LabelSelector == nil {
				constraint.WithLabelSelector(metav1ac.LabelSelector().WithMatchLabels(pool.selector(component)))
			}
			spec.WithTopologySpreadConstraints(constraint)
		}
	}
	if options.PriorityClassName != "" {
		spec.WithPriorityClassName(string(options.PriorityClassName))
	}
	if options.RuntimeClassName != "" {
		spec.WithRuntimeClassName(string(options.RuntimeClassName))
	}
	if options.SchedulerName != "" {
		spec.WithSchedulerName(string(options.SchedulerName))
	}
	if options.ServiceAccountName != "" {
		spec.WithServiceAccountName(string(options.ServiceAccountName))
	}
	return nil
}

// copyInto copies a value of Kubernetes into the type by which it is applied, which has the same fields.
func copyInto(applied, value any) error {
	content, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return json.Unmarshal(content, applied)
}

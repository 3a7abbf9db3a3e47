// SPDX-License-Identifier: Apache-2.0

package render

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"

	"farpool.dev/farpool/api/v1alpha1"
)

// template4 is for clusters that lose Kubernetes nodes: it changes what pods tolerate, how they start and how they end. Each pool has a directory of its own
// for shared memory, and the platform may choose its pods' users.
type template4 struct{ template3 }

func (t template4) MemoryPod(pool Pool, memoryPool v1alpha1.MemoryPool, node string, nodeUID types.UID) (*corev1ac.PodApplyConfiguration, error) {
	pod, err := t.template3.MemoryPod(pool, memoryPool, node, nodeUID)
	if err != nil {
		return nil, err
	}
	t.ownRings(pool, pod.Spec)
	t.platformUsers(pool, pod.Spec)
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
	t.ownRings(pool, deployment.Spec.Template.Spec)
	t.platformUsers(pool, deployment.Spec.Template.Spec)
	deployment.Spec.Template.WithAnnotations(t.version()).
		WithAnnotations(map[string]string{v1alpha1.AnnotationConfigHash: hashOfText(t.ComputeConfig(pool, computePool))})
	return deployment, nil
}

const (
	ringsVolume    = "rings"
	allRings       = "/run/farpool-pools"
	ringsContainer = "rings-directory"
)

// ownRings gives a pod, of the directory for shared memory, what is its pool's alone: a process of another pool sees neither its sockets nor its place. The
// kubelet looks for the directory when the container starts, which is when the one before has made it.
func (template4) ownRings(pool Pool, spec *corev1ac.PodSpecApplyConfiguration) {
	if pool.Spec.Network.SharedMemory == nil {
		return
	}
	container := &spec.Containers[0]
	for i := range container.VolumeMounts {
		if *container.VolumeMounts[i].Name == ringsVolume {
			container.VolumeMounts[i].WithSubPath(string(pool.UID))
		}
	}
	// Requests are limits, so that the pod is as guaranteed as its own container is.
	small := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("32Mi")}
	spec.WithInitContainers(corev1ac.Container().
		WithName(ringsContainer).
		WithImage(pool.Image).
		WithImagePullPolicy(corev1.PullIfNotPresent).
		WithCommand("mkdir", "-p", "-m", "0700", allRings+"/"+string(pool.UID)).
		WithResources(corev1ac.ResourceRequirements().WithRequests(small.DeepCopy()).WithLimits(small.DeepCopy())).
		WithVolumeMounts(mount(ringsVolume, allRings, false)).
		WithTerminationMessagePolicy(corev1.TerminationMessageFallbackToLogsOnError).
		WithSecurityContext(corev1ac.SecurityContext().
			WithAllowPrivilegeEscalation(false).
			WithReadOnlyRootFilesystem(true).
			WithCapabilities(corev1ac.Capabilities().WithDrop("ALL"))))
}

// platformUsers leaves user and groups to a platform that assigns them, and refuses pods that choose their own. Those over RDMA are root's in any case.
func (template4) platformUsers(pool Pool, spec *corev1ac.PodSpecApplyConfiguration) {
	if !pool.PlatformUsers || pool.Spec.Network.Transport != v1alpha1.TransportTCP {
		return
	}
	spec.SecurityContext.RunAsUser, spec.SecurityContext.RunAsGroup, spec.SecurityContext.FSGroup = nil, nil, nil
}

func (template4) version() map[string]string {
	return map[string]string{v1alpha1.AnnotationTemplateVersion: "4"}
}

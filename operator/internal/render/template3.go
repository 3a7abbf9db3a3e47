// SPDX-License-Identifier: Apache-2.0

package render

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"

	"farpool.dev/farpool/api/v1alpha1"
)

// template3 is for a data plane that speaks RDMA, takes huge pages and looks where its memory lies.
type template3 struct{ template2 }

const (
	annotationNetworks = "k8s.v1.cni.cncf.io/networks"
	// The name that Multus gives the interface of the network: known before the pod is made, while the address that stands in an
	// annotation may come after the process.
	rdmaInterface = "rdma0"
	claimName     = "rdma"
	capIPCLock    = corev1.Capability("IPC_LOCK")
)

func (t template3) MemoryConfig(pool Pool, memoryPool v1alpha1.MemoryPool) string {
	var file tomlFile
	file.WriteString(t.template2.MemoryConfig(pool, memoryPool))
	file.rdma(pool)
	if locks := pool.Spec.Locks; locks != nil {
		switch locks.Placement {
		case v1alpha1.LocksInDeviceMemoryPreferred:
			file.text("lock-placement", "device-preferred")
		case v1alpha1.LocksInDeviceMemoryRequired:
			file.text("lock-placement", "device-required")
		}
	}
	if memoryPool.HugePages != "" {
		file.text("huge-pages", string(memoryPool.HugePages))
	}
	if memoryPool.NUMAAlignment == v1alpha1.NUMAAlignmentSingle {
		file.WriteString("numa-align = true\n")
	}
	return file.String()
}

func (t template3) ComputeConfig(pool Pool, computePool v1alpha1.ComputePool) string {
	var file tomlFile
	file.WriteString(t.template2.ComputeConfig(pool, computePool))
	file.rdma(pool)
	return file.String()
}

func (f *tomlFile) rdma(pool Pool) {
	network := pool.Spec.Network
	if network.Transport != v1alpha1.TransportRoCEv2 {
		return
	}
	f.text("wire", "verbs")
	if name := interfaceOf(network.Attachment); name != "" {
		f.text("rdma-interface", name)
	}
	f.optional("traffic-class", network.TrafficClass)
}

// interfaceOf the pods, whose address lanes go from; empty where the device's first address will do.
func interfaceOf(attachment *v1alpha1.AttachmentSpec) string {
	switch {
	case attachment.NetworkName() != "":
		return rdmaInterface
	case attachment.DRA != nil:
		return attachment.DRA.Interface
	case attachment.HostNetwork != nil:
		return attachment.HostNetwork.Interface
	}
	return ""
}

func (t template3) MemoryPod(pool Pool, memoryPool v1alpha1.MemoryPool, node string, nodeUID types.UID) (*corev1ac.PodApplyConfiguration, error) {
	pod, err := t.template2.MemoryPod(pool, memoryPool, node, nodeUID)
	if err != nil {
		return nil, err
	}
	container := &pod.Spec.Containers[0]
	if memoryPool.HugePages != "" {
		t.hugePages(pool, pod.Spec, memoryPool)
	}
	if memoryPool.NUMAAlignment == v1alpha1.NUMAAlignmentSingle {
		guaranteed(container)
	}
	pod.WithAnnotations(t.attach(pool, pod.Spec)).WithAnnotations(t.version())
	hash, err := hashOf(pod.Spec)
	if err != nil {
		return nil, err
	}
	return pod.WithAnnotations(map[string]string{v1alpha1.AnnotationPodHash: hash}), nil
}

func (t template3) ComputeDeployment(pool Pool, computePool v1alpha1.ComputePool) (*appsv1ac.DeploymentApplyConfiguration, error) {
	deployment, err := t.template2.ComputeDeployment(pool, computePool)
	if err != nil {
		return nil, err
	}
	template := deployment.Spec.Template
	template.WithAnnotations(t.attach(pool, template.Spec)).WithAnnotations(t.version()).
		WithAnnotations(map[string]string{v1alpha1.AnnotationConfigHash: hashOfText(t.ComputeConfig(pool, computePool))})
	if attachment := pool.Spec.Network.Attachment; attachment != nil && attachment.HostNetwork != nil {
		// The ports of a Kubernetes node are free only when the pod before has gone.
		deployment.Spec.Strategy.RollingUpdate.WithMaxUnavailable(intstr.FromInt32(1)).WithMaxSurge(intstr.FromInt32(0))
	}
	return deployment, nil
}

// hugePages hold what is lent and nothing else, and do not count as the container's memory.
func (template3) hugePages(pool Pool, spec *corev1ac.PodSpecApplyConfiguration, memoryPool v1alpha1.MemoryPool) {
	container := &spec.Containers[0]
	container.WithResources(memoryResources(pool, memoryPool, 0))
	ask(container, corev1.ResourceName(corev1.ResourceHugePagesPrefix+string(memoryPool.HugePages)),
		*resource.NewQuantity(memoryPool.Lend.Value(), resource.BinarySI))
	for i := range spec.Volumes {
		if *spec.Volumes[i].Name == stateVolume {
			spec.Volumes[i].WithEmptyDir(corev1ac.EmptyDirVolumeSource().
				WithMedium(corev1.StorageMedium(string(corev1.StorageMediumHugePagesPrefix) + string(memoryPool.HugePages))))
		}
	}
}

// ask for as much as is allowed, as Kubernetes wants it of what cannot be shared out twice.
func ask(container *corev1ac.ContainerApplyConfiguration, name corev1.ResourceName, quantity resource.Quantity) {
	(*container.Resources.Requests)[name] = quantity
	(*container.Resources.Limits)[name] = quantity
}

// guaranteed makes requests what limits are: the kubelet gives processors of their own to such pods alone.
func guaranteed(container *corev1ac.ContainerApplyConfiguration) {
	for name, quantity := range *container.Resources.Limits {
		(*container.Resources.Requests)[name] = quantity.DeepCopy()
	}
}

// attach gives a pod its RDMA device, and leave to lock memory; what is returned are annotations.
func (template3) attach(pool Pool, spec *corev1ac.PodSpecApplyConfiguration) map[string]string {
	network := pool.Spec.Network
	if network.Transport != v1alpha1.TransportRoCEv2 {
		return nil
	}
	container, attachment := &spec.Containers[0], network.Attachment
	// A capability is effective for root alone, and locked memory is what all of this is about.
	spec.SecurityContext.WithRunAsNonRoot(false).WithRunAsUser(0)
	container.SecurityContext.Capabilities.WithAdd(capIPCLock)
	if name := attachment.ResourceName(); name != "" {
		ask(container, corev1.ResourceName(name), *resource.NewQuantity(1, resource.DecimalSI))
	}
	if attachment.DRA != nil {
		spec.WithResourceClaims(corev1ac.PodResourceClaim().WithName(claimName).
			WithResourceClaimTemplateName(attachment.DRA.ResourceClaimTemplateName))
		container.Resources.WithClaims(corev1ac.ResourceClaim().WithName(claimName))
	}
	if attachment.HostNetwork != nil {
		spec.WithHostNetwork(true).WithDNSPolicy(corev1.DNSClusterFirstWithHostNet)
		for i := range container.Ports {
			container.Ports[i].WithHostPort(*container.Ports[i].ContainerPort)
		}
	}
	if name := attachment.NetworkName(); name != "" {
		return map[string]string{annotationNetworks: fmt.Sprintf("%s@%s", name, rdmaInterface)}
	}
	return nil
}

func (template3) version() map[string]string {
	return map[string]string{v1alpha1.AnnotationTemplateVersion: "3"}
}

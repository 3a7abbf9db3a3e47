// SPDX-License-Identifier: Apache-2.0

package render

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/utils/ptr"

	"farpool.dev/farpool/api/v1alpha1"
)

// template4 is for clusters that lose Kubernetes nodes, and for pools whose spec is edited: it changes what pods tolerate, how they start and how they
// end, and it gives a memory node its configuration on the command line of its pod, which lives exactly as long as the memory that it shapes. Each pool has a directory of its own
// for shared memory, and the platform may choose its pods' users. Each memory node and each compute pool has a certificate of its own, and a pod takes only maps that the operator
// has signed.
type template4 struct{ template3 }

const (
	// Clients of a pool whose Kubernetes node is unreachable find another shard after this long.
	shardsOutlast = int64(30)
	// Load balancers and kube-proxies stop sending new connections to a shard before it closes its listener.
	shardLingers = int64(5)
	// A shard lingers, drains for 10 s, and says goodbye to memory nodes.
	shardGrace = int64(45)
)

// MemoryConfig of a process that listens on every address of its pod, IPv4 and IPv6.
func (t template4) MemoryConfig(pool Pool, memoryPool v1alpha1.MemoryPool) string {
	return withMapKey(pool, everyAddress(t.template3.MemoryConfig(pool, memoryPool)))
}

func (t template4) ComputeConfig(pool Pool, computePool v1alpha1.ComputePool) string {
	return withMapKey(pool, everyAddress(t.template3.ComputeConfig(pool, computePool)))
}

// withMapKey adds the key that maps have to be signed with to the configuration of a process.
func withMapKey(pool Pool, config string) string {
	if pool.MapKey == "" {
		return config
	}
	var more tomlFile
	more.text("map-key", pool.MapKey)
	return config + more.String()
}

func everyAddress(config string) string {
	for _, key := range []string{"listen", "agent-listen", "metrics-listen"} {
		config = strings.ReplaceAll(config, "\n"+key+` = "0.0.0.0:`, "\n"+key+` = "[::]:`)
	}
	return config
}

// ConfiguresMemoryInPod: a file that several pods share, and that the kubelet refreshes, could give a restarted process another geometry than the
// memory that it takes up.
func (template4) ConfiguresMemoryInPod() bool { return true }

func (t template4) MemoryPod(pool Pool, memoryPool v1alpha1.MemoryPool, node string, nodeUID types.UID) (*corev1ac.PodApplyConfiguration, error) {
	pool.nodeTLS = NodeTLSSecretOf(node)
	pod, err := t.template3.MemoryPod(pool, memoryPool, node, nodeUID)
	if err != nil {
		return nil, err
	}
	t.ownRings(pool, pod.Spec)
	t.platformUsers(pool, pod.Spec)
	container := &pod.Spec.Containers[0]
	if err := t.configureInPod(pod.Spec, t.MemoryConfig(pool, memoryPool)); err != nil {
		return nil, fmt.Errorf("memory node %s: %w", node, err)
	}
	unevictable(container)
	if pool.MemoryPriorityClass != "" {
		pod.Spec.WithPriorityClassName(pool.MemoryPriorityClass)
	}
	// A memory node on a Kubernetes node that cannot be reached may well be alive: its pod stays until a person or the cloud says that the node is gone.
	outlast(pod.Spec, nil)
	hash, err := hashOf(pod.Spec)
	if err != nil {
		return nil, err
	}
	return pod.WithAnnotations(t.version()).WithAnnotations(NotToBeTaken()).WithAnnotations(map[string]string{v1alpha1.AnnotationPodHash: hash}).WithOwnerReferences(pool.Keeper()), nil
}

// NotToBeTaken are annotations by which cluster-autoscaler and Karpenter choose other Kubernetes nodes to take away than one with this pod.
func NotToBeTaken() map[string]string {
	return map[string]string{"cluster-autoscaler.kubernetes.io/safe-to-evict": "false", "karpenter.sh/do-not-disrupt": "true"}
}

// configureInPod puts each line of a configuration on the command line, in place of the file.
func (template4) configureInPod(spec *corev1ac.PodSpecApplyConfiguration, config string) error {
	container := &spec.Containers[0]
	container.Args = slices.DeleteFunc(container.Args, func(argument string) bool { return strings.HasPrefix(argument, "--config=") })
	for _, line := range strings.Split(strings.TrimSuffix(config, "\n"), "\n") {
		key, value, found := strings.Cut(line, " = ")
		if !found {
			return fmt.Errorf("no value in %q", line)
		}
		if text, err := strconv.Unquote(value); err == nil {
			value = text
		}
		// The kubelet expands $(NAME), and nothing here is meant to be.
		container.Args = append(container.Args, fmt.Sprintf("--%s=%s", key, strings.ReplaceAll(value, "$(", "$$(")))
	}
	spec.Volumes = slices.DeleteFunc(spec.Volumes, func(volume corev1ac.VolumeApplyConfiguration) bool { return *volume.Name == "config" })
	container.VolumeMounts = slices.DeleteFunc(container.VolumeMounts, func(mounted corev1ac.VolumeMountApplyConfiguration) bool { return *mounted.Name == "config" })
	return nil
}

// unevictable asks for as much memory as the limit allows: the kubelet evicts no pod for memory that the pod has asked for. The pod is Guaranteed where
// the spec limits its processors, too; a limit that nobody asked for would slow down every client.
func unevictable(container *corev1ac.ContainerApplyConfiguration) {
	(*container.Resources.Requests)[corev1.ResourceMemory] = (*container.Resources.Limits)[corev1.ResourceMemory].DeepCopy()
}

// outlast has a pod stay on a Kubernetes node that is not ready or not reachable: for some seconds, or for as long as it takes. What the spec says about
// such nodes comes before.
func outlast(spec *corev1ac.PodSpecApplyConfiguration, seconds *int64) {
	for _, key := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} {
		if slices.ContainsFunc(spec.Tolerations, func(toleration corev1ac.TolerationApplyConfiguration) bool { return outlasts(toleration, key) }) {
			continue
		}
		toleration := corev1ac.Toleration().WithKey(key).WithOperator(corev1.TolerationOpExists).WithEffect(corev1.TaintEffectNoExecute)
		if seconds != nil {
			toleration.WithTolerationSeconds(*seconds)
		}
		spec.WithTolerations(toleration)
	}
}

// Outlasting are the tolerations of a memory node's pod whatever template made it: the ones that it was given, and the ones by which it stays on a Kubernetes
// node that is not ready or not reachable.
func Outlasting(given []corev1ac.TolerationApplyConfiguration) []corev1.Toleration {
	spec := corev1ac.PodSpec()
	spec.Tolerations = slices.Clone(given)
	outlast(spec, nil)
	return tolerationsOf(spec.Tolerations)
}

func tolerationsOf(applied []corev1ac.TolerationApplyConfiguration) []corev1.Toleration {
	tolerations := make([]corev1.Toleration, 0, len(applied))
	for _, toleration := range applied {
		tolerations = append(tolerations, corev1.Toleration{
			Key: ptr.Deref(toleration.Key, ""), Operator: ptr.Deref(toleration.Operator, ""), Value: ptr.Deref(toleration.Value, ""),
			Effect: ptr.Deref(toleration.Effect, ""), TolerationSeconds: toleration.TolerationSeconds,
		})
	}
	return tolerations
}

// outlasts says whether a toleration speaks of the taint that a key names.
func outlasts(toleration corev1ac.TolerationApplyConfiguration, key string) bool {
	return (toleration.Key == nil || *toleration.Key == key) && (toleration.Effect == nil || *toleration.Effect == corev1.TaintEffectNoExecute)
}

func (t template4) ComputeDeployment(pool Pool, computePool v1alpha1.ComputePool) (*appsv1ac.DeploymentApplyConfiguration, error) {
	pool.clientTLS = ClientTLSSecretOf(pool.ComputeName(computePool.Name))
	deployment, err := t.template3.ComputeDeployment(pool, computePool)
	if err != nil {
		return nil, err
	}
	t.ownRings(pool, deployment.Spec.Template.Spec)
	t.platformUsers(pool, deployment.Spec.Template.Spec)
	template := deployment.Spec.Template
	seconds := shardsOutlast
	outlast(template.Spec, &seconds)
	template.Spec.WithTerminationGracePeriodSeconds(shardGrace)
	template.Spec.Containers[0].WithLifecycle(corev1ac.Lifecycle().WithPreStop(corev1ac.LifecycleHandler().
		WithSleep(corev1ac.SleepAction().WithSeconds(shardLingers))))
	template.WithAnnotations(t.version()).
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

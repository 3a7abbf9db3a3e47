// SPDX-License-Identifier: Apache-2.0

package render

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"

	"farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/protocol"
)

// template1 is frozen once released: see the package's comment.
type template1 struct{}

const (
	configDirectory  = "/etc/farpool/config"
	tlsDirectory     = "/etc/farpool/tls"
	respTLSDirectory = "/etc/farpool/resp-tls"
	passwordPath     = "/etc/farpool/password"
	stateDirectory   = "/var/lib/farpool"
	stateVolume      = "state"
	ringsDirectory   = "/run/farpool"

	// AlsoSuffix is what the key, and the file, of a second password that counts have after the name of the first.
	AlsoSuffix = ".also"
	// StateVolume is the volume in which memory nodes keep what their next process takes up.
	StateVolume = stateVolume

	mebibyte = int64(1) << 20
)

// PasswordFile is where compute shards find the value of a key of the Secret that has their password.
func PasswordFile(key string) string { return passwordPath + "/" + key }

// ManagedUser is the user and group of pods that run neither as root nor as whom the platform assigns.
const ManagedUser = 65532

// A tomlFile is written in the order in which it is read by people.
type tomlFile struct{ strings.Builder }

func (f *tomlFile) text(key, value string)         { fmt.Fprintf(f, "%s = %s\n", key, strconv.Quote(value)) }
func (f *tomlFile) number(key string, value int64) { fmt.Fprintf(f, "%s = %d\n", key, value) }
func (f *tomlFile) optional(key string, value *int32) {
	if value != nil {
		f.number(key, int64(*value))
	}
}

// index writes the flags of the pool's protocol. A pool whose protocol this operator does not have gets no pods.
func (f *tomlFile) index(index *v1alpha1.IndexSpec) {
	p, _ := protocol.Of(index)
	for _, flag := range p.Flags(index) {
		switch value := flag.Value.(type) {
		case string:
			f.text(flag.Name, value)
		case int64:
			f.number(flag.Name, value)
		}
	}
}

func (f *tomlFile) common(pool Pool) {
	f.text("pool-uid", string(pool.UID))
	f.text("agent-listen", fmt.Sprintf("0.0.0.0:%d", PortAgent))
	f.text("metrics-listen", fmt.Sprintf("0.0.0.0:%d", PortHTTP))
	f.text("tls-ca", tlsDirectory+"/ca.crt")
	f.text("tls-cert", tlsDirectory+"/tls.crt")
	f.text("tls-key", tlsDirectory+"/tls.key")
	if shared := pool.Spec.Network.SharedMemory; shared != nil {
		f.text("shm-directory", ringsDirectory)
		f.text("spin", fmt.Sprintf("%dus", shared.SpinMicroseconds))
	}
	f.text("log-level", "info")
	f.text("log-format", "json")
}

func (template1) MemoryConfig(pool Pool, memoryPool v1alpha1.MemoryPool) string {
	var file tomlFile
	file.common(pool)
	file.text("listen", fmt.Sprintf("0.0.0.0:%d", PortSession))
	file.number("memory", memoryPool.Lend.Value())
	file.text("memory-path", stateDirectory)
	file.index(&pool.Spec.Index)
	if memoryPool.Workers > 1 {
		file.number("threads", int64(memoryPool.Workers))
	}
	timeout := failureTimeout(pool.Spec)
	file.text("failure-timeout", milliseconds(timeout))
	// A client's lease must outlast what makes it a suspect.
	file.text("lease", milliseconds(max(5*time.Second, 2*timeout)))
	if limits := pool.Spec.Limits; limits != nil {
		file.optional("max-sessions", limits.MaxSessions)
	}
	return file.String()
}

func (template1) ComputeConfig(pool Pool, computePool v1alpha1.ComputePool) string {
	var file tomlFile
	file.common(pool)
	file.text("bootstrap", fmt.Sprintf("dns:%s.%s.svc:%d", pool.NodesServiceName(), pool.Namespace, PortSession))
	file.text("map-cache", stateDirectory+"/map-cache")
	file.text("listen", fmt.Sprintf("0.0.0.0:%d", PortRESP))
	file.number("threads", int64(computePool.Workers))
	if secret, key := pool.Password(); secret != "" {
		file.text("password-file", PasswordFile(key))
	}
	if pool.TLSSecret() != "" {
		file.text("resp-tls-cert", respTLSDirectory+"/tls.crt")
		file.text("resp-tls-key", respTLSDirectory+"/tls.key")
	}
	if limits := pool.Spec.Limits; limits != nil {
		file.optional("max-connections", limits.MaxConnections)
		file.optional("max-pipeline", limits.MaxPipeline)
		if limits.OperationDeadlineMilliseconds != nil {
			file.text("operation-deadline", fmt.Sprintf("%dms", *limits.OperationDeadlineMilliseconds))
		}
	}
	return file.String()
}

// failureTimeout of the spec; by default what suits kernel TCP.
func failureTimeout(spec v1alpha1.KVPoolSpec) time.Duration {
	if spec.FailureTimeoutMilliseconds > 0 {
		return time.Duration(spec.FailureTimeoutMilliseconds) * time.Millisecond
	}
	if spec.Network.Transport == v1alpha1.TransportRoCEv2 {
		return 100 * time.Millisecond
	}
	return 2 * time.Second
}

// milliseconds is a duration as the daemons' flags read it.
func milliseconds(duration time.Duration) string {
	if duration%time.Second == 0 {
		return fmt.Sprintf("%ds", duration/time.Second)
	}
	return fmt.Sprintf("%dms", duration.Milliseconds())
}

func (template1) ConfiguresMemoryInPod() bool { return false }

func (t template1) MemoryPod(pool Pool, memoryPool v1alpha1.MemoryPool, node string, nodeUID types.UID) (*corev1ac.PodApplyConfiguration, error) {
	lent := memoryPool.Lend.Value()
	// Superblock and file system need a little more than what is lent. A memory-backed volume counts against the container's
	// memory.
	volume := roundUp(lent+max(16*mebibyte, lent/64), mebibyte)
	resources := memoryResources(pool, memoryPool, volume)

	container := t.container("memory-node", pool, "farpool-memory-node", resources).
		WithArgs("--config="+configDirectory+"/farpool.toml", "--name="+node, fmt.Sprintf("--advertise=$(POD_IP):%d", PortSession)).
		WithEnv(corev1ac.EnvVar().WithName("POD_IP").
			WithValueFrom(corev1ac.EnvVarSource().WithFieldRef(corev1ac.ObjectFieldSelector().WithAPIVersion("v1").WithFieldPath("status.podIP")))).
		WithPorts(
			containerPort("session", PortSession),
			containerPort("agent", PortAgent),
			containerPort("http", PortHTTP)).
		WithVolumeMounts(
			mount("config", configDirectory, true),
			mount("tls", tlsDirectory, true),
			mount(stateVolume, stateDirectory, false))
	spec := t.podSpec(pool, container, v1alpha1.ComponentMemoryNode, memoryPool.Pod.OrNone()).
		WithRestartPolicy(corev1.RestartPolicyAlways).
		WithVolumes(
			t.configVolume(pool, memoryPool.Name),
			secretVolume("tls", pool.NodeTLSSecretName()),
			corev1ac.Volume().WithName(stateVolume).WithEmptyDir(corev1ac.EmptyDirVolumeSource().
				WithMedium(corev1.StorageMediumMemory).
				WithSizeLimit(*resource.NewQuantity(volume, resource.BinarySI))))
	pod := corev1ac.Pod(node, pool.Namespace).
		WithLabels(pool.labels()).
		WithLabels(pool.selector(v1alpha1.ComponentMemoryNode)).
		WithLabels(map[string]string{v1alpha1.LabelMemoryPool: memoryPool.Name, v1alpha1.LabelMemoryNode: node}).
		WithAnnotations(map[string]string{v1alpha1.AnnotationTemplateVersion: "1"}).
		WithOwnerReferences(metav1ac.OwnerReference().WithAPIVersion(v1alpha1.GroupVersion.String()).WithKind("MemoryNode").
			WithName(node).WithUID(nodeUID).WithController(true).WithBlockOwnerDeletion(true)).
		WithSpec(spec)
	hash, err := hashOf(spec)
	if err != nil {
		return nil, err
	}
	return pod.WithAnnotations(map[string]string{v1alpha1.AnnotationPodHash: hash}), nil
}

func (t template1) ComputeDeployment(pool Pool, computePool v1alpha1.ComputePool) (*appsv1ac.DeploymentApplyConfiguration, error) {
	resources := containerResources(computePool.Resources, "100m", "128Mi", "512Mi", 0)
	container := t.container("compute-shard", pool, "farpool-compute-shard", resources).
		WithArgs("--config="+configDirectory+"/farpool.toml", "--name=$(POD_NAME)").
		WithEnv(corev1ac.EnvVar().WithName("POD_NAME").
			WithValueFrom(corev1ac.EnvVarSource().WithFieldRef(corev1ac.ObjectFieldSelector().WithAPIVersion("v1").WithFieldPath("metadata.name")))).
		WithPorts(
			containerPort("resp", PortRESP),
			containerPort("agent", PortAgent),
			containerPort("http", PortHTTP)).
		WithVolumeMounts(
			mount("config", configDirectory, true),
			mount("tls", tlsDirectory, true),
			mount(stateVolume, stateDirectory, false))
	volumes := []*corev1ac.VolumeApplyConfiguration{
		t.configVolume(pool, computePool.Name),
		secretVolume("tls", pool.ClientTLSSecretName()),
		// Keeps the last known addresses over restarts of the process.
		corev1ac.Volume().WithName(stateVolume).WithEmptyDir(corev1ac.EmptyDirVolumeSource().
			WithSizeLimit(*resource.NewQuantity(16*mebibyte, resource.BinarySI))),
	}
	if secret, _ := pool.Password(); secret != "" {
		volumes = append(volumes, secretVolume("password", secret))
		container.WithVolumeMounts(mount("password", passwordPath, true))
	}
	if secret := pool.TLSSecret(); secret != "" {
		volumes = append(volumes, secretVolume("resp-tls", secret))
		container.WithVolumeMounts(mount("resp-tls", respTLSDirectory, true))
	}
	spec := t.podSpec(pool, container, v1alpha1.ComponentComputeShard, computePool.Pod.OrNone()).WithVolumes(volumes...)

	name := pool.ComputeName(computePool.Name)
	selector := pool.selector(v1alpha1.ComponentComputeShard)
	selector[v1alpha1.LabelComputePool] = computePool.Name
	return appsv1ac.Deployment(name, pool.Namespace).
		WithLabels(pool.labels()).
		WithLabels(selector).
		WithOwnerReferences(pool.owner()).
		WithSpec(appsv1ac.DeploymentSpec().
			WithReplicas(computePool.Replicas).
			WithRevisionHistoryLimit(2).
			WithSelector(metav1ac.LabelSelector().WithMatchLabels(selector)).
			WithStrategy(appsv1ac.DeploymentStrategy().
				WithType(appsv1.RollingUpdateDeploymentStrategyType).
				WithRollingUpdate(appsv1ac.RollingUpdateDeployment().
					WithMaxUnavailable(intstr.FromInt32(0)).
					WithMaxSurge(intstr.FromInt32(1)))).
			WithTemplate(corev1ac.PodTemplateSpec().
				WithLabels(pool.labels()).
				WithLabels(selector).
				WithAnnotations(map[string]string{
					v1alpha1.AnnotationTemplateVersion: "1",
					v1alpha1.AnnotationConfigHash:      hashOfText(t.ComputeConfig(pool, computePool)),
				}).
				WithSpec(spec))), nil
}

func (template1) container(name string, pool Pool, command string, resources *corev1ac.ResourceRequirementsApplyConfiguration) *corev1ac.ContainerApplyConfiguration {
	probe := func(path string, periodSeconds, timeoutSeconds, failures int32) *corev1ac.ProbeApplyConfiguration {
		return corev1ac.Probe().
			WithHTTPGet(corev1ac.HTTPGetAction().WithPath(path).WithPort(intstr.FromString("http")).WithScheme(corev1.URISchemeHTTP)).
			WithPeriodSeconds(periodSeconds).WithTimeoutSeconds(timeoutSeconds).WithFailureThreshold(failures)
	}
	return corev1ac.Container().
		WithName(name).
		WithImage(pool.Image).
		WithImagePullPolicy(corev1.PullIfNotPresent).
		WithCommand(command).
		WithResources(resources).
		// Zeroing a large memory takes its time: at least 10 minutes before a start counts as failed.
		WithStartupProbe(probe("/healthz", 1, 2, 600)).
		// A restart loses a memory node's data, and a Kubernetes node that is short of processor time is no reason for one.
		WithLivenessProbe(probe("/healthz", 10, 10, 12)).
		WithReadinessProbe(probe("/readyz", 2, 5, 3)).
		WithTerminationMessagePolicy(corev1.TerminationMessageFallbackToLogsOnError).
		WithSecurityContext(corev1ac.SecurityContext().
			WithAllowPrivilegeEscalation(false).
			WithReadOnlyRootFilesystem(true).
			WithCapabilities(corev1ac.Capabilities().WithDrop("ALL")))
}

func (template1) podSpec(pool Pool, container *corev1ac.ContainerApplyConfiguration, component string, options *v1alpha1.PodOptions) *corev1ac.PodSpecApplyConfiguration {
	if pool.Spec.Network.SharedMemory != nil {
		container.WithVolumeMounts(mount("rings", ringsDirectory, false))
	}
	spec := corev1ac.PodSpec().
		WithAutomountServiceAccountToken(false).
		WithEnableServiceLinks(false).
		WithTerminationGracePeriodSeconds(30).
		WithSecurityContext(corev1ac.PodSecurityContext().
			WithRunAsNonRoot(true).
			WithRunAsUser(ManagedUser).
			WithRunAsGroup(ManagedUser).
			WithFSGroup(ManagedUser).
			WithSeccompProfile(corev1ac.SeccompProfile().WithType(corev1.SeccompProfileTypeRuntimeDefault))).
		WithTopologySpreadConstraints(corev1ac.TopologySpreadConstraint().
			WithMaxSkew(1).
			WithTopologyKey(corev1.LabelHostname).
			WithWhenUnsatisfiable(corev1.ScheduleAnyway).
			WithLabelSelector(metav1ac.LabelSelector().WithMatchLabels(pool.selector(component)))).
		WithContainers(container)
	if len(options.NodeSelector) > 0 {
		spec.WithNodeSelector(options.NodeSelector)
	}
	if shared := pool.Spec.Network.SharedMemory; shared != nil {
		// The type is Directory, since one that the kubelet made would be root's, and unusable.
		spec.WithVolumes(corev1ac.Volume().WithName("rings").WithHostPath(corev1ac.HostPathVolumeSource().
			WithPath(shared.HostPath).WithType(corev1.HostPathDirectory)))
	}
	for _, toleration := range options.Tolerations {
		applied := corev1ac.Toleration()
		if toleration.Key != "" {
			applied.WithKey(toleration.Key)
		}
		if toleration.Operator != "" {
			applied.WithOperator(toleration.Operator)
		}
		if toleration.Value != "" {
			applied.WithValue(toleration.Value)
		}
		if toleration.Effect != "" {
			applied.WithEffect(toleration.Effect)
		}
		if toleration.TolerationSeconds != nil {
			applied.WithTolerationSeconds(*toleration.TolerationSeconds)
		}
		spec.WithTolerations(applied)
	}
	return spec
}

func (template1) configVolume(pool Pool, member string) *corev1ac.VolumeApplyConfiguration {
	return corev1ac.Volume().WithName("config").WithConfigMap(corev1ac.ConfigMapVolumeSource().
		WithName(pool.ConfigName()).
		WithItems(corev1ac.KeyToPath().WithKey(member + ".toml").WithPath("farpool.toml")))
}

func secretVolume(name, secret string) *corev1ac.VolumeApplyConfiguration {
	return corev1ac.Volume().WithName(name).WithSecret(corev1ac.SecretVolumeSource().WithSecretName(secret).WithDefaultMode(0o440))
}

func mount(name, path string, readOnly bool) *corev1ac.VolumeMountApplyConfiguration {
	applied := corev1ac.VolumeMount().WithName(name).WithMountPath(path)
	if readOnly {
		applied.WithReadOnly(true)
	}
	return applied
}

func containerPort(name string, number int32) *corev1ac.ContainerPortApplyConfiguration {
	return corev1ac.ContainerPort().WithName(name).WithContainerPort(number).WithProtocol(corev1.ProtocolTCP)
}

// containerResources are the spec's, or small defaults, with the memory that is lent on top of both request and limit.
func containerResources(wanted *v1alpha1.Resources, cpu, memoryRequest, memoryLimit string, lent int64) *corev1ac.ResourceRequirementsApplyConfiguration {
	requests, limits := corev1.ResourceList{}, corev1.ResourceList{}
	if wanted != nil {
		for name, quantity := range wanted.Requests {
			requests[name] = quantity.DeepCopy()
		}
		for name, quantity := range wanted.Limits {
			limits[name] = quantity.DeepCopy()
		}
	}
	limit, limited := limits[corev1.ResourceMemory]
	request, requested := requests[corev1.ResourceMemory]
	if !limited {
		limit = resource.MustParse(memoryLimit)
		if requested && request.Cmp(limit) > 0 {
			limit = request.DeepCopy()
		}
	}
	if !requested {
		request = resource.MustParse(memoryRequest)
		if request.Cmp(limit) > 0 {
			request = limit.DeepCopy()
		}
	}
	requests[corev1.ResourceMemory] = *resource.NewQuantity(request.Value()+lent, resource.BinarySI)
	limits[corev1.ResourceMemory] = *resource.NewQuantity(limit.Value()+lent, resource.BinarySI)
	if _, ok := requests[corev1.ResourceCPU]; !ok {
		if cpuLimit, ok := limits[corev1.ResourceCPU]; ok {
			requests[corev1.ResourceCPU] = cpuLimit.DeepCopy()
		} else {
			requests[corev1.ResourceCPU] = resource.MustParse(cpu)
		}
	}
	return corev1ac.ResourceRequirements().WithRequests(requests).WithLimits(limits)
}

// memoryResources of a memory node, with what it lends in ordinary pages on top.
func memoryResources(pool Pool, memoryPool v1alpha1.MemoryPool, lent int64) *corev1ac.ResourceRequirementsApplyConfiguration {
	p, _ := protocol.Of(&pool.Spec.Index)
	return containerResources(memoryPool.Resources, p.CPURequest(memoryPool.Workers), "128Mi", "384Mi", lent)
}

func roundUp(value, unit int64) int64 { return (value + unit - 1) / unit * unit }

func hashOf(spec *corev1ac.PodSpecApplyConfiguration) (string, error) {
	content, err := json.Marshal(spec)
	if err != nil {
		return "", fmt.Errorf("hash a pod: %w", err)
	}
	return hashOfText(string(content)), nil
}

func hashOfText(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:8])
}

// SPDX-License-Identifier: Apache-2.0

// Package render says what the objects of a pool look like. Everything is pure.
//
// What pods are made from is frozen by a template version: a released version's output never changes, because a changed pod
// would be a restarted pod, and an operator upgrade must restart none. A change of pods is a new version beside the old ones,
// for pools made from then on. Golden files hold each version to that.
package render

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	networkingv1ac "k8s.io/client-go/applyconfigurations/networking/v1"
	policyv1ac "k8s.io/client-go/applyconfigurations/policy/v1"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"farpool.dev/farpool/api/v1alpha1"
	apiac "farpool.dev/farpool/api/v1alpha1/applyconfiguration/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/protocol"
)

// Ports of the data plane.
const (
	PortRESP    = 6379
	PortSession = 7400
	PortAgent   = 7401
	PortHTTP    = 7402
	// portRoCE is the UDP port of RoCEv2, both ways.
	portRoCE = 4791
)

// Pool is what rendering needs to know of a KVPool.
type Pool struct {
	Name      string
	Namespace string
	UID       types.UID
	Spec      v1alpha1.KVPoolSpec
	Image     string
	// Guarded counts memory nodes for the disruption budget: how many there should be, and how many there are.
	Guarded int32
	// KeysLeaveFirst says that memory nodes are drained before Kubernetes nodes are, and that none is evicted with keys.
	KeysLeaveFirst bool
	// MemoryPriorityClass of the pods of memory nodes; empty: the cluster's default.
	MemoryPriorityClass string
	// OperatorNamespace is where the operator's pods run; empty if it runs outside the cluster.
	OperatorNamespace string
	// SecretNamespace is where the operator keeps Secrets that only it may read; empty: the pool's own namespace.
	SecretNamespace string
	// ClusterDomain is what names of Services end with; empty: cluster.local.
	ClusterDomain string
	// PlatformUsers: the platform assigns users and groups to pods, as OpenShift does.
	PlatformUsers bool
	// MapKey is the public key that shard maps are signed with, in base64; empty where they are not signed.
	MapKey string

	// nodeTLS and clientTLS are the Secrets of one holder, if the template gives each holder its own.
	nodeTLS, clientTLS string
}

// Names of a pool's objects.
func (p Pool) ServiceName() string            { return p.Name }
func (p Pool) NodesServiceName() string       { return p.Name + "-nodes" }
func (p Pool) ConfigName() string             { return p.Name + "-config" }
func (p Pool) NodeTLSSecretName() string      { return cmp.Or(p.nodeTLS, NodeTLSSecretOf(p.Name)) }
func (p Pool) ClientTLSSecretName() string    { return cmp.Or(p.clientTLS, ClientTLSSecretOf(p.Name)) }
func (p Pool) RESPTLSSecretName() string      { return p.Name + "-resp-tls" }
func (p Pool) PasswordSecretName() string     { return p.Name + "-password" }
func (p Pool) BindingSecretName() string      { return p.Name + "-binding" }
func (p Pool) ComputeName(pool string) string { return p.Name + "-" + pool }

// password returns the Secret and the key that compute shards read the password from; empty: there is none.
func (p Pool) Password() (secret, key string) {
	switch security := &p.Spec.Security; {
	case security.Password == v1alpha1.PasswordGenerated:
		return p.PasswordSecretName(), KeyPassword
	case security.Password == v1alpha1.PasswordSecret && security.PasswordSecret != nil:
		return string(security.PasswordSecret.Name), cmp.Or(security.PasswordSecret.Key, KeyPassword)
	}
	return "", ""
}

// TLSSecret returns the Secret with the certificate of the Redis port; empty: there is none.
func (p Pool) TLSSecret() string {
	switch tls := p.Spec.Security.TLS(); tls.Mode {
	case v1alpha1.TLSGenerated:
		return p.RESPTLSSecretName()
	case v1alpha1.TLSFromSecret:
		return string(tls.SecretName)
	case v1alpha1.TLSFromIssuer:
		return v1alpha1.IssuedName(p.Name)
	}
	return ""
}

// CASecretName and PoolSecretName lie in SecretNamespace, beside those of other pools of the same name.
func (p Pool) CASecretName() string   { return KeptSecretNames(p.Name, p.UID)[0] }
func (p Pool) PoolSecretName() string { return KeptSecretNames(p.Name, p.UID)[1] }

// FormerCASecretName and FormerPoolSecretName are the names in pools of a template before FirstKept, in the pool's own namespace.
func (p Pool) FormerCASecretName() string   { return p.Name + "-ca" }
func (p Pool) FormerPoolSecretName() string { return p.Name + "-secret" }

// KeptSecretNames returns the names of the Secrets that the operator keeps for a pool: its authority's, and its hash secret's.
func KeptSecretNames(pool string, uid types.UID) []string {
	prefix := pool + "-" + string(uid)
	return []string{prefix + "-ca", prefix + "-secret"}
}

// FirstKept is the first template version whose pools never had an authority or hash secret in their own namespace.
const FirstKept = 4

// NodeTLSSecretOf is the Secret with the certificate of a memory node, or of all memory nodes of a pool that share one.
func NodeTLSSecretOf(holder string) string { return holder + "-node-tls" }

// ClientTLSSecretOf is the Secret with the certificate of a compute pool's Deployment, or of all compute pools of a pool that share one.
func ClientTLSSecretOf(holder string) string { return holder + "-client-tls" }

// Keys of Secrets that hold no certificates.
const (
	KeyPassword   = "password"
	KeyPoolSecret = "pool-secret"
	// KeyMapKey is the private key that shard maps are signed with.
	KeyMapKey = "map-key"
)

// OwnIdentities says whether pods of a template have certificates of their own and take only signed maps; pods of earlier ones share a
// certificate for each role, and take any map.
func OwnIdentities(templateVersion int32) bool { return templateVersion >= 4 }

// Endpoint is that of the Redis protocol.
func (p Pool) Endpoint() string {
	return fmt.Sprintf("%s.%s.svc:%d", p.ServiceName(), p.Namespace, PortRESP)
}

// RESPHosts are the names that the certificate of the Redis port has. An issuer is asked for the spec's own names alone, if it has any.
func (p Pool) RESPHosts() []string {
	tls := p.Spec.Security.TLS()
	service := p.Name + "." + p.Namespace + ".svc"
	hosts := []string{p.Name, p.Name + "." + p.Namespace, service, service + "." + cmp.Or(p.ClusterDomain, "cluster.local"), "localhost"}
	if tls.Mode == v1alpha1.TLSFromIssuer && len(tls.DNSNames) > 0 {
		hosts = nil
	}
	for _, name := range tls.DNSNames {
		hosts = append(hosts, string(name))
	}
	return hosts
}

// ComputePools is empty where the spec has none.
func (p Pool) ComputePools() []v1alpha1.ComputePool {
	if p.Spec.Compute == nil {
		return nil
	}
	return p.Spec.Compute.Pools
}

// MemoryNodes is the number of memory nodes that the spec asks for.
func (p Pool) MemoryNodes() int32 {
	var nodes int32
	for _, pool := range p.Spec.Memory.Pools {
		nodes += pool.Replicas
	}
	return nodes
}

// ComputeShards is the number of compute shards that the spec asks for.
func (p Pool) ComputeShards() int32 {
	var shards int32
	for _, pool := range p.ComputePools() {
		shards += pool.Replicas
	}
	return shards
}

func (p Pool) owner() *metav1ac.OwnerReferenceApplyConfiguration {
	return metav1ac.OwnerReference().WithAPIVersion(v1alpha1.GroupVersion.String()).WithKind("KVPool").
		WithName(p.Name).WithUID(p.UID).WithController(true).WithBlockOwnerDeletion(true)
}

// Keeper is a second owner of a memory node's pod. The pod and its memory stay when somebody deletes its MemoryNode but not the pool.
func (p Pool) Keeper() *metav1ac.OwnerReferenceApplyConfiguration {
	return metav1ac.OwnerReference().WithAPIVersion(v1alpha1.GroupVersion.String()).WithKind("KVPool").WithName(p.Name).WithUID(p.UID)
}

// Labels are on everything that a pool has. PoolLabel says which pool that is.
func (p Pool) Labels() map[string]string    { return p.labels() }
func (p Pool) PoolLabel() map[string]string { return map[string]string{v1alpha1.LabelPool: p.Name} }

func (p Pool) labels() map[string]string {
	return map[string]string{
		v1alpha1.LabelPool:             p.Name,
		"app.kubernetes.io/name":       "farpool",
		"app.kubernetes.io/instance":   p.Name,
		"app.kubernetes.io/managed-by": v1alpha1.FieldManager,
	}
}

// MemoryPoolSelector and ComputePoolSelector choose the pods of an entry of the spec.
func (p Pool) MemoryPoolSelector(entry string) map[string]string {
	return map[string]string{v1alpha1.LabelPool: p.Name, v1alpha1.LabelMemoryPool: entry}
}

func (p Pool) ComputePoolSelector(entry string) map[string]string {
	return map[string]string{v1alpha1.LabelPool: p.Name, v1alpha1.LabelComputePool: entry}
}

func (p Pool) selector(component string) map[string]string {
	return map[string]string{v1alpha1.LabelPool: p.Name, v1alpha1.LabelComponent: component}
}

// Newest is the template version of new pools.
const Newest int32 = 4

// A Template makes pods and the configuration that they read.
type Template interface {
	// MemoryConfig is the configuration with which a memory node's process starts.
	MemoryConfig(Pool, v1alpha1.MemoryPool) string
	// ConfiguresMemoryInPod says whether MemoryConfig is a part of each memory node's pod, rather than a file that all pods of a memory pool read.
	ConfiguresMemoryInPod() bool
	MemoryPod(pool Pool, memoryPool v1alpha1.MemoryPool, node string, nodeUID types.UID) (*corev1ac.PodApplyConfiguration, error)
	ComputeConfig(Pool, v1alpha1.ComputePool) string
	ComputeDeployment(Pool, v1alpha1.ComputePool) (*appsv1ac.DeploymentApplyConfiguration, error)
}

// TemplateOf returns the frozen template of a version.
func TemplateOf(version int32) (Template, error) {
	switch version {
	case 1:
		return withOptions{template1{}}, nil
	case 2:
		return withOptions{template2{}}, nil
	case 3:
		return withOptions{template3{}}, nil
	case 4:
		return withOptions{template4{}}, nil
	}
	return nil, fmt.Errorf("this operator has no pod template %d, its newest is %d: the pool was made by a newer operator, run that one", version, Newest)
}

// MemoryNode is one memory node of a memory pool.
func MemoryNode(pool Pool, memoryPool v1alpha1.MemoryPool, ordinal, templateVersion int32) *apiac.MemoryNodeApplyConfiguration {
	return apiac.MemoryNode(v1alpha1.MemoryNodeName(pool.Name, memoryPool.Name, ordinal), pool.Namespace).
		WithLabels(pool.labels()).
		WithLabels(map[string]string{v1alpha1.LabelMemoryPool: memoryPool.Name}).
		WithOwnerReferences(pool.owner()).
		WithSpec(apiac.MemoryNodeSpec().
			WithPoolName(pool.Name).
			WithMemoryPool(memoryPool.Name).
			WithOrdinal(ordinal).
			WithLend(memoryPool.Lend).
			WithTemplateVersion(templateVersion).
			WithImage(pool.Image))
}

// ShardMap is the map of one epoch.
func ShardMap(pool Pool, spec *v1alpha1.ShardMapSpec) *apiac.ShardMapApplyConfiguration {
	content := apiac.ShardMapSpec().
		WithPoolName(spec.PoolName).
		WithPoolUID(spec.PoolUID).
		WithEpoch(spec.Epoch).
		WithEpochKey(spec.EpochKey).
		WithDirectory(apiac.Directory().
			WithDepth(spec.Directory.Depth).
			WithVersion(spec.Directory.Version).
			WithTables(spec.Directory.Tables...))
	for _, node := range spec.Nodes {
		applied := apiac.ShardMapNode().
			WithName(node.Name).
			WithEndpoint(node.Endpoint).
			WithIncarnation(node.Incarnation).
			WithState(node.State).
			WithMemoryBytes(node.MemoryBytes)
		if node.LockRegion != nil {
			applied.WithLockRegion(LockRegion(node.LockRegion))
		}
		for _, p := range protocol.All() {
			p.Apply(&node, applied)
		}
		if node.MemoryIncarnation != "" {
			applied.WithMemoryIncarnation(node.MemoryIncarnation)
		}
		content.WithNodes(applied)
	}
	for _, table := range spec.Tables {
		content.WithTables(apiac.ShardMapTable().WithID(table.ID).WithNode(table.Node))
	}
	// What is left out when it is zero compares as equal with what is read back.
	if spec.Move != 0 {
		content.WithMove(spec.Move)
	}
	if spec.LeastTables != 0 {
		content.WithLeastTables(spec.LeastTables)
	}
	if spec.Eviction != "" {
		content.WithEviction(spec.Eviction)
	}
	for _, departure := range spec.Departures {
		content.WithDepartures(apiac.Departure().WithPart(departure.Part).WithFrom(departure.From))
	}
	return apiac.ShardMap(v1alpha1.ShardMapName(pool.Name, spec.Epoch), pool.Namespace).
		WithLabels(pool.labels()).
		WithOwnerReferences(pool.owner()).
		WithSpec(content)
}

// RepairLease renders one for clients that died.
func RepairLease(pool Pool, name string, spec *v1alpha1.RepairLeaseSpec) *apiac.RepairLeaseApplyConfiguration {
	content := apiac.RepairLeaseSpec().
		WithPoolRef(apiac.PoolReference().WithName(spec.PoolRef.Name)).
		WithCause(spec.Cause)
	for _, client := range spec.Clients {
		applied := apiac.RepairClient().WithName(client.Name).WithProcess(client.Process)
		if client.DiedAt != nil {
			applied.WithDiedAt(*client.DiedAt)
		}
		content.WithClients(applied)
	}
	return AdoptRepairLease(pool, name).WithLabels(pool.labels()).WithSpec(content)
}

// AdoptRepairLease makes a RepairLease that a person made belong to its pool.
func AdoptRepairLease(pool Pool, name string) *apiac.RepairLeaseApplyConfiguration {
	return apiac.RepairLease(name, pool.Namespace).
		WithLabels(map[string]string{v1alpha1.LabelPool: pool.Name}).
		WithOwnerReferences(pool.owner())
}

// ResizeOperation renders one for a change of the number of memory nodes.
func ResizeOperation(pool Pool, name string, spec *v1alpha1.ResizeOperationSpec) *apiac.ResizeOperationApplyConfiguration {
	content := apiac.ResizeOperationSpec().WithPoolName(spec.PoolName).WithApproval(spec.Approval).WithEvacuates(spec.Evacuates...)
	for _, changed := range spec.Pools {
		content.WithPools(apiac.ResizePool().WithName(changed.Name).WithFrom(changed.From).WithTo(changed.To))
	}
	if spec.Tables != nil {
		content.WithTables(apiac.ResizeTables().WithFrom(spec.Tables.From).WithTo(spec.Tables.To))
	}
	return apiac.ResizeOperation(name, pool.Namespace).WithLabels(pool.labels()).WithOwnerReferences(pool.owner()).WithSpec(content)
}

// MemoryNodePool says how many memory nodes an entry of the spec has, which declares its own number. With a resourceVersion, a write fails if somebody has asked
// for another number since.
func MemoryNodePool(pool Pool, entry v1alpha1.MemoryPool, replicas int32, resourceVersion string) *apiac.MemoryNodePoolApplyConfiguration {
	applied := apiac.MemoryNodePool(v1alpha1.ScaleName(pool.Name, entry.Name), pool.Namespace).
		WithLabels(pool.labels()).WithOwnerReferences(pool.owner()).
		WithSpec(apiac.MemoryNodePoolSpec().WithPoolName(pool.Name).WithMemoryPool(entry.Name).WithDeclared(entry.Replicas).WithReplicas(replicas).WithEntry(entryOf(entry)))
	if resourceVersion != "" {
		applied.WithResourceVersion(resourceVersion)
	}
	return applied
}

// entryOf is an entry as it is applied.
func entryOf(entry v1alpha1.MemoryPool) *apiac.MemoryPoolApplyConfiguration {
	applied := apiac.MemoryPool()
	content, err := json.Marshal(entry)
	if err == nil {
		err = json.Unmarshal(content, applied)
	}
	if err != nil {
		panic(err) // both are the same fields of JSON
	}
	return applied
}

// ComputeShardPool says how many compute shards a compute pool has.
func ComputeShardPool(pool Pool, computePool string, declared, replicas int32, resourceVersion string) *apiac.ComputeShardPoolApplyConfiguration {
	applied := apiac.ComputeShardPool(v1alpha1.ScaleName(pool.Name, computePool), pool.Namespace).
		WithLabels(pool.labels()).WithOwnerReferences(pool.owner()).
		WithSpec(apiac.ComputeShardPoolSpec().WithPoolName(pool.Name).WithComputePool(computePool).WithDeclared(declared).WithReplicas(replicas))
	if resourceVersion != "" {
		applied.WithResourceVersion(resourceVersion)
	}
	return applied
}

// LockRegion is in the form that specs and statuses have.
func LockRegion(region *v1alpha1.LockRegion) *apiac.LockRegionApplyConfiguration {
	return apiac.LockRegion().
		WithPlacement(region.Placement).
		WithBytes(region.Bytes).
		WithLocks(region.Locks).
		WithRowsPerLock(region.RowsPerLock)
}

// Config holds the configuration file of each compute pool, and of each memory pool whose pods read one.
func Config(pool Pool, template Template) *corev1ac.ConfigMapApplyConfiguration {
	files := map[string]string{}
	for _, memoryPool := range pool.Spec.Memory.Pools {
		if !template.ConfiguresMemoryInPod() {
			files[memoryPool.Name+".toml"] = template.MemoryConfig(pool, memoryPool)
		}
	}
	for _, computePool := range pool.ComputePools() {
		files[computePool.Name+".toml"] = template.ComputeConfig(pool, computePool)
	}
	return corev1ac.ConfigMap(pool.ConfigName(), pool.Namespace).
		WithLabels(pool.labels()).WithOwnerReferences(pool.owner()).WithData(files)
}

// Secret renders a Secret of a pool. With a resourceVersion, a write fails if the Secret is newer.
func Secret(pool Pool, name string, data map[string][]byte, resourceVersion string) *corev1ac.SecretApplyConfiguration {
	secret := corev1ac.Secret(name, pool.Namespace).
		WithLabels(pool.labels()).WithOwnerReferences(pool.owner()).WithType(corev1.SecretTypeOpaque).WithData(data)
	if resourceVersion != "" {
		secret.WithResourceVersion(resourceVersion)
	}
	return secret
}

// KeptSecret is a Secret that only the operator may read. It lies outside of the pool's namespace and has no owner: labels say which pool it belongs to.
func KeptSecret(pool Pool, name string, data map[string][]byte, resourceVersion string) *corev1ac.SecretApplyConfiguration {
	secret := corev1ac.Secret(name, cmp.Or(pool.SecretNamespace, pool.Namespace)).
		WithLabels(pool.labels()).
		WithLabels(map[string]string{v1alpha1.LabelPoolUID: string(pool.UID), v1alpha1.LabelPoolNamespace: pool.Namespace}).
		WithType(corev1.SecretTypeOpaque).WithData(data)
	if resourceVersion != "" {
		secret.WithResourceVersion(resourceVersion)
	}
	return secret
}

// Services are two: applications connect to one, and compute shards find memory nodes by the other.
func Services(pool Pool) []*corev1ac.ServiceApplyConfiguration {
	return []*corev1ac.ServiceApplyConfiguration{
		applicationService(pool),
		corev1ac.Service(pool.NodesServiceName(), pool.Namespace).
			WithLabels(pool.labels()).WithOwnerReferences(pool.owner()).
			WithSpec(corev1ac.ServiceSpec().
				WithType(corev1.ServiceTypeClusterIP).
				WithClusterIP(corev1.ClusterIPNone).
				// A client reads the map from any memory node, and decides by it which memory nodes serve.
				WithPublishNotReadyAddresses(true).
				WithSelector(pool.selector(v1alpha1.ComponentMemoryNode)).
				WithPorts(corev1ac.ServicePort().WithName("session").WithProtocol(corev1.ProtocolTCP).
					WithPort(PortSession).WithTargetPort(intstr.FromString("session")))),
	}
}

// applicationService is the Service that applications connect to, as the spec wants it.
func applicationService(pool Pool) *corev1ac.ServiceApplyConfiguration {
	port := corev1ac.ServicePort().WithName("resp").WithProtocol(corev1.ProtocolTCP).WithPort(PortRESP).WithTargetPort(intstr.FromString("resp"))
	spec := corev1ac.ServiceSpec().
		WithType(corev1.ServiceTypeClusterIP).
		WithSelector(pool.selector(v1alpha1.ComponentComputeShard)).
		WithPorts(port)
	service := corev1ac.Service(pool.ServiceName(), pool.Namespace).WithLabels(pool.labels()).WithOwnerReferences(pool.owner()).WithSpec(spec)
	wanted := pool.Spec.Service
	if wanted == nil {
		return service
	}
	service.Labels = under(service.Labels, wanted.Labels)
	service.WithAnnotations(wanted.Annotations)
	spec.WithType(cmp.Or(wanted.Type, corev1.ServiceTypeClusterIP))
	if wanted.NodePort != nil {
		spec.Ports[0].WithNodePort(*wanted.NodePort)
	}
	if wanted.LoadBalancerClass != "" {
		spec.WithLoadBalancerClass(wanted.LoadBalancerClass)
	}
	for _, sources := range wanted.LoadBalancerSourceRanges {
		spec.WithLoadBalancerSourceRanges(string(sources))
	}
	if wanted.ExternalTrafficPolicy != "" {
		spec.WithExternalTrafficPolicy(wanted.ExternalTrafficPolicy)
	}
	if wanted.TrafficDistribution != "" {
		spec.WithTrafficDistribution(wanted.TrafficDistribution)
	}
	if wanted.IPFamilyPolicy != "" {
		spec.WithIPFamilyPolicy(wanted.IPFamilyPolicy)
	}
	return service
}

// DisruptionBudgets keep drains of Kubernetes nodes from removing more than the pool can bear: in a Store no memory node at all, because its data would be lost;
// in a Cache one at a time, unless its keys leave before.
func DisruptionBudgets(pool Pool) []*policyv1ac.PodDisruptionBudgetApplyConfiguration {
	budget := func(name, component string, minAvailable int32) *policyv1ac.PodDisruptionBudgetApplyConfiguration {
		return policyv1ac.PodDisruptionBudget(name, pool.Namespace).
			WithLabels(pool.labels()).WithOwnerReferences(pool.owner()).
			WithSpec(policyv1ac.PodDisruptionBudgetSpec().
				// Memory nodes' pods have no scalable owner, so that only an absolute number will do.
				WithMinAvailable(intstr.FromInt32(max(minAvailable, 0))).
				WithSelector(metav1ac.LabelSelector().WithMatchLabels(pool.selector(component))))
	}
	nodes := pool.Guarded
	if pool.Spec.DataPolicy != v1alpha1.DataPolicyStore && !pool.KeysLeaveFirst {
		nodes--
	}
	budgets := []*policyv1ac.PodDisruptionBudgetApplyConfiguration{
		budget(pool.Name+"-memory-nodes", v1alpha1.ComponentMemoryNode, nodes),
	}
	if shards := pool.ComputeShards(); shards > 0 {
		budgets = append(budgets, budget(pool.Name+"-compute-shards", v1alpha1.ComponentComputeShard, shards-1))
	}
	return budgets
}

// NetworkPolicies admit to each port only the clients that need it. Pods in their Kubernetes node's own network get none: policies do not apply to such pods,
// neither as peer nor as target, so a policy that named them would promise too much.
func NetworkPolicies(pool Pool) []*networkingv1ac.NetworkPolicyApplyConfiguration {
	if attachment := pool.Spec.Network.Attachment; attachment != nil && attachment.HostNetwork != nil {
		return nil
	}
	port := func(number int32, protocol corev1.Protocol) *networkingv1ac.NetworkPolicyPortApplyConfiguration {
		return networkingv1ac.NetworkPolicyPort().WithProtocol(protocol).WithPort(intstr.FromInt32(number))
	}
	tcp := func(number int32) *networkingv1ac.NetworkPolicyPortApplyConfiguration {
		return port(number, corev1.ProtocolTCP)
	}
	members := func(component string) *networkingv1ac.NetworkPolicyPeerApplyConfiguration {
		return networkingv1ac.NetworkPolicyPeer().
			WithPodSelector(metav1ac.LabelSelector().WithMatchLabels(pool.selector(component)))
	}
	agent := networkingv1ac.NetworkPolicyIngressRule().WithPorts(tcp(PortAgent))
	if pool.OperatorNamespace != "" {
		agent.WithFrom(networkingv1ac.NetworkPolicyPeer().
			WithNamespaceSelector(metav1ac.LabelSelector().WithMatchLabels(map[string]string{"kubernetes.io/metadata.name": pool.OperatorNamespace})).
			WithPodSelector(metav1ac.LabelSelector().WithMatchLabels(map[string]string{"app.kubernetes.io/name": "farpool-operator"})))
	}
	metrics := networkingv1ac.NetworkPolicyIngressRule().WithPorts(tcp(PortHTTP))
	policy := func(name, component string, spec *networkingv1ac.NetworkPolicySpecApplyConfiguration) *networkingv1ac.NetworkPolicyApplyConfiguration {
		return networkingv1ac.NetworkPolicy(name, pool.Namespace).
			WithLabels(pool.labels()).WithOwnerReferences(pool.owner()).
			WithSpec(spec.
				WithPodSelector(metav1ac.LabelSelector().WithMatchLabels(pool.selector(component))).
				WithPolicyTypes(networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress))
	}
	// A memory node answers, and opens no connections.
	memoryNodes := networkingv1ac.NetworkPolicySpec().
		WithIngress(
			networkingv1ac.NetworkPolicyIngressRule().WithPorts(tcp(PortSession)).WithFrom(members(v1alpha1.ComponentComputeShard)),
			agent, metrics)
	computeShards := networkingv1ac.NetworkPolicySpec().
		WithIngress(
			networkingv1ac.NetworkPolicyIngressRule().WithPorts(tcp(PortRESP)),
			agent, metrics).
		WithEgress(
			networkingv1ac.NetworkPolicyEgressRule().WithPorts(tcp(PortSession)).WithTo(members(v1alpha1.ComponentMemoryNode)),
			// A policy sees the port of the pod that answers, which is not the Service's everywhere: on OpenShift it is 5353.
			networkingv1ac.NetworkPolicyEgressRule().WithPorts(
				port(53, corev1.ProtocolUDP), port(53, corev1.ProtocolTCP), port(5353, corev1.ProtocolUDP), port(5353, corev1.ProtocolTCP)))
	if from := pool.sidecars(); from != nil {
		memoryNodes.WithIngress(networkingv1ac.NetworkPolicyIngressRule().WithPorts(tcp(PortSession)).WithFrom(from))
	}
	if pool.Spec.Network.Transport == v1alpha1.TransportRoCEv2 {
		// What SoftRoCE sends is seen by a pod's policies. Answers go to the same port, from another, and so are no replies to a firewall.
		roce := func(spec *networkingv1ac.NetworkPolicySpecApplyConfiguration, others string) {
			spec.WithIngress(networkingv1ac.NetworkPolicyIngressRule().WithPorts(port(portRoCE, corev1.ProtocolUDP)).WithFrom(members(others))).
				WithEgress(networkingv1ac.NetworkPolicyEgressRule().WithPorts(port(portRoCE, corev1.ProtocolUDP)).WithTo(members(others)))
		}
		roce(memoryNodes, v1alpha1.ComponentComputeShard)
		roce(computeShards, v1alpha1.ComponentMemoryNode)
	}
	policies := []*networkingv1ac.NetworkPolicyApplyConfiguration{policy(pool.Name+"-memory-nodes", v1alpha1.ComponentMemoryNode, memoryNodes)}
	if len(pool.ComputePools()) > 0 {
		policies = append(policies, policy(pool.Name+"-compute-shards", v1alpha1.ComponentComputeShard, computeShards))
	}
	return policies
}

// sidecars are the pods with sidecars of the namespaces that the pool lists; nil: it lists none.
func (p Pool) sidecars() *networkingv1ac.NetworkPolicyPeerApplyConfiguration {
	if p.Spec.Sidecars == nil {
		return nil
	}
	var names []string
	for _, namespace := range p.Spec.Sidecars.Namespaces {
		names = append(names, namespace.Name)
	}
	slices.Sort(names)
	return networkingv1ac.NetworkPolicyPeer().
		WithNamespaceSelector(metav1ac.LabelSelector().WithMatchExpressions(metav1ac.LabelSelectorRequirement().
			WithKey("kubernetes.io/metadata.name").WithOperator(metav1.LabelSelectorOpIn).WithValues(names...))).
		WithPodSelector(metav1ac.LabelSelector().WithMatchLabels(map[string]string{v1alpha1.LabelInject: v1alpha1.InjectTrue}))
}

// An Object is an apply configuration of any kind.
type Object = runtime.ApplyConfiguration

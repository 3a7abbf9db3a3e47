// SPDX-License-Identifier: Apache-2.0

// Package observe reads everything that concerns one pool into one snapshot, which decisions are then made from.
package observe

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sort"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/agent"
)

// Snapshot is the world of one pool. Nothing in it may be changed: objects belong to the cache.
type Snapshot struct {
	Pool *v1alpha1.KVPool

	// By name; only what this very pool owns.
	Nodes       map[string]*v1alpha1.MemoryNode
	ShardMaps   []*v1alpha1.ShardMap // by epoch
	NodePods    map[string]*corev1.Pod
	ComputePods []*corev1.Pod // by name
	// DeploymentOf is the name of the Deployment of each compute shard's pod, by the pod's UID. The pod's certificate names it.
	DeploymentOf map[types.UID]string
	// Foreign are pods, by name, that have the pool's labels and that no object of the pool has made.
	Foreign     []*corev1.Pod
	Deployments map[string]*appsv1.Deployment
	Secrets     map[string]*corev1.Secret
	// PeoplesPassword is the Secret of people that the spec names for the password, if they have given it the pool's label; nil: the operator does not read it.
	PeoplesPassword *corev1.Secret
	// PeoplesTLS is the Secret with the certificate of the Redis port that people keep, or cert-manager, if it has the pool's label; nil: as above.
	PeoplesTLS *corev1.Secret
	// Issued is the Certificate of cert-manager for the Redis port.
	Issued Issued
	// Kept are Secrets of the pool that lie where the operator alone reads them.
	Kept map[string]*corev1.Secret
	// Rivals are the namespaces where another operator keeps Secrets of the pool, with the oldest of each.
	Rivals     map[string]*corev1.Secret
	ConfigMaps map[string]*corev1.ConfigMap
	Services   map[string]*corev1.Service
	Budgets    map[string]*policyv1.PodDisruptionBudget
	Policies   map[string]*networkingv1.NetworkPolicy

	// Agents are by the pod that they run in.
	Agents map[types.UID]agent.Observation

	// Leases are RepairLeases that name the pool, the oldest first, whether the operator or a person made them.
	Leases []*v1alpha1.RepairLease
	// Calls are those on behalf of leases.
	Calls map[types.UID][]agent.Outcome
	// Resizes are the pool's ResizeOperations, the oldest first.
	Resizes []*v1alpha1.ResizeOperation
	// Strays are ResizeOperations that name the pool and that a person has made.
	Strays []*v1alpha1.ResizeOperation
	// MemoryPools and ComputePools say how many replicas there should be, by name.
	MemoryPools  map[string]*v1alpha1.MemoryNodePool
	ComputePools map[string]*v1alpha1.ComputeShardPool
	// Gone are the pods of written-down processes that the API server does not have any more.
	Gone map[types.UID]bool
	// Exits say how the processes of such pods ended, if that was seen before the pods were gone.
	Exits map[types.UID]*corev1.ContainerStateTerminated
	// Unlabelled are the pods of written-down processes that the API server has, and that the cache does not show as the pool's.
	Unlabelled []*metav1.PartialObjectMetadata
	// Unlisted are the pods that memory nodes name as those of dead clients, and that the API server has and the cache does not show, by name.
	Unlisted map[string]bool
	// Unplaced are memory nodes of the newest map for which the API server has no pod, or a pod that never found a place. None of them runs, and the memory of
	// earlier pods went with these pods.
	Unplaced map[string]bool
	// Unattached are memory nodes whose pods were refused an RDMA network, with the kubelet's latest message about it.
	Unattached map[string]string
	// OutOfService are the Kubernetes nodes that a person or machine has declared shut down.
	OutOfService map[string]bool
	// Draining are the Kubernetes nodes that are about to be emptied, each with the taints that say so.
	Draining map[string][]corev1.Taint
}

// Agents says what is known about data-plane processes.
type Agents interface {
	Observe(pool types.NamespacedName) map[types.UID]agent.Observation
}

// Calls says what has become of calls.
type Calls interface {
	Observe(pool types.NamespacedName) map[types.UID][]agent.Outcome
}

// Take reads a snapshot from the cache. live reads past it. kept names the Secrets of the pool that lie where the operator alone reads them.
func Take(ctx context.Context, cache, live client.Reader, agents Agents, calls Calls, drains DrainTaints, pool *v1alpha1.KVPool, kept []types.NamespacedName) (*Snapshot, error) {
	s := &Snapshot{
		Pool:   pool,
		Agents: agents.Observe(client.ObjectKeyFromObject(pool)),
		Calls:  calls.Observe(client.ObjectKeyFromObject(pool)),
	}
	namespace := client.InNamespace(pool.Namespace)
	list := func(objects client.ObjectList, options ...client.ListOption) error {
		if err := cache.List(ctx, objects, append(options, namespace)...); err != nil {
			return fmt.Errorf("list %T of pool %s/%s: %w", objects, pool.Namespace, pool.Name, err)
		}
		return nil
	}

	var nodes v1alpha1.MemoryNodeList
	var maps v1alpha1.ShardMapList
	var pods corev1.PodList
	var deployments appsv1.DeploymentList
	var secrets corev1.SecretList
	var configMaps corev1.ConfigMapList
	var services corev1.ServiceList
	var budgets policyv1.PodDisruptionBudgetList
	var policies networkingv1.NetworkPolicyList
	var memoryPools v1alpha1.MemoryNodePoolList
	var computePools v1alpha1.ComputeShardPoolList
	// A large pool has a thousand pods. A copy of each would be most of what a look at it allocates.
	const uncopied = client.UnsafeDisableDeepCopy
	if err := list(&pods, client.MatchingFields{indexPool: pool.Name}, uncopied); err != nil {
		return nil, err
	}
	for _, objects := range []client.ObjectList{&deployments, &secrets, &configMaps, &services, &budgets, &policies} {
		if err := list(objects, client.MatchingFields{indexPool: pool.Name}); err != nil {
			return nil, err
		}
	}
	// These objects are found by their owner, so that an object without its label does not look as if it were gone.
	for _, objects := range []client.ObjectList{&nodes, &maps, &memoryPools, &computePools} {
		if err := list(objects, client.MatchingFields{indexOwner: string(pool.UID)}); err != nil {
			return nil, err
		}
	}

	var replicaSets metav1.PartialObjectMetadataList
	replicaSets.SetGroupVersionKind(appsv1.SchemeGroupVersion.WithKind("ReplicaSetList"))
	if err := list(&replicaSets, client.MatchingFields{indexPool: pool.Name}, uncopied); err != nil {
		return nil, err
	}

	s.Nodes = owned(pool, nodes.Items)
	s.Deployments = owned(pool, deployments.Items)
	s.Secrets = owned(pool, secrets.Items)
	if named := pool.Spec.Security.PasswordSecret; named != nil && pool.Spec.Security.Password == v1alpha1.PasswordSecret {
		s.PeoplesPassword = secretNamed(named.Name, secrets.Items)
	}
	s.PeoplesTLS = secretNamed(pool.Spec.Security.TLS().SecretName, secrets.Items)
	if pool.Spec.Security.TLS().Mode == v1alpha1.TLSFromIssuer {
		s.PeoplesTLS = secretNamed(v1alpha1.ObjectName(v1alpha1.IssuedName(pool.Name)), secrets.Items)
	}
	s.ConfigMaps = owned(pool, configMaps.Items)
	s.Services = owned(pool, services.Items)
	s.Budgets = owned(pool, budgets.Items)
	s.Policies = owned(pool, policies.Items)
	s.MemoryPools = owned(pool, memoryPools.Items)
	s.ComputePools = owned(pool, computePools.Items)
	for _, shardMap := range owned(pool, maps.Items) {
		s.ShardMaps = append(s.ShardMaps, shardMap)
	}
	sort.Slice(s.ShardMaps, func(i, j int) bool { return s.ShardMaps[i].Spec.Epoch < s.ShardMaps[j].Spec.Epoch })

	resizes, err := Resizes(ctx, cache, client.ObjectKeyFromObject(pool))
	if err != nil {
		return nil, err
	}
	for _, resize := range resizes {
		if metav1.IsControlledBy(resize, pool) {
			s.Resizes = append(s.Resizes, resize)
		} else if Stray(resize) {
			s.Strays = append(s.Strays, resize)
		}
	}
	slices.SortFunc(s.Resizes, func(a, b *v1alpha1.ResizeOperation) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(len(a.Name), len(b.Name)), cmp.Compare(a.Name, b.Name))
	})

	s.sortPods(pods.Items, replicaSets.Items)

	if s.Leases, err = Leases(ctx, cache, client.ObjectKeyFromObject(pool)); err != nil {
		return nil, err
	}
	s.Leases = slices.DeleteFunc(s.Leases, func(lease *v1alpha1.RepairLease) bool {
		controller := metav1.GetControllerOf(lease)
		return controller != nil && controller.Kind == "KVPool" && controller.UID != pool.UID // of an earlier pool of this name
	})
	if err := s.kept(ctx, cache, live, kept); err != nil {
		return nil, err
	}
	if err := s.kubernetesNodes(ctx, cache, drains); err != nil {
		return nil, err
	}
	if s.Issued, err = issued(ctx, live, pool); err != nil {
		return nil, err
	}
	if s.Gone, err = s.gone(ctx, live); err != nil {
		return nil, err
	}
	if s.Unlisted, err = s.unlisted(ctx, live); err != nil {
		return nil, err
	}
	if s.Unplaced, err = s.unplaced(ctx, live); err != nil {
		return nil, err
	}
	if s.Unattached, err = s.unattached(ctx, live); err != nil {
		return nil, err
	}
	return s, nil
}

// sortPods finds out what each pod is for the pool. Anybody can set labels: a pod is the pool's if its owners are.
func (s *Snapshot) sortPods(pods []corev1.Pod, replicaSets []metav1.PartialObjectMetadata) {
	deployments := map[types.UID]string{}
	for _, deployment := range s.Deployments {
		deployments[deployment.UID] = deployment.Name
	}
	ours := map[types.UID]string{}
	for i := range replicaSets {
		if owner := metav1.GetControllerOf(&replicaSets[i]); owner != nil && deployments[owner.UID] != "" {
			ours[replicaSets[i].UID] = deployments[owner.UID]
		}
	}
	// A shard stays the pool's while its ReplicaSet is being collected.
	processes := s.Processes()
	written := make(map[types.UID]bool, len(processes))
	for _, process := range processes {
		written[types.UID(process.PodUID)] = true
	}
	s.ComputePods = make([]*corev1.Pod, 0, len(pods))
	s.NodePods, s.DeploymentOf = map[string]*corev1.Pod{}, make(map[types.UID]string, len(pods))
	for i := range pods {
		pod := &pods[i]
		owner := metav1.GetControllerOf(pod)
		node := s.Nodes[pod.Name]
		switch component := pod.Labels[v1alpha1.LabelComponent]; {
		case node != nil && owner != nil && owner.UID == node.UID || keeps(s.Pool, pod):
			s.NodePods[pod.Name] = pod
		case component == v1alpha1.ComponentMemoryNode && owner != nil && owner.Kind == "MemoryNode":
			// The pod belongs to an earlier MemoryNode of the name and blocks the new one's pod. The new one's condition says so.
		case component == v1alpha1.ComponentComputeShard && owner != nil && ours[owner.UID] != "":
			s.ComputePods = append(s.ComputePods, pod)
			s.DeploymentOf[pod.UID] = ours[owner.UID]
		case component == v1alpha1.ComponentComputeShard && written[pod.UID]:
			s.ComputePods = append(s.ComputePods, pod)
			if owner != nil && owner.Kind == "ReplicaSet" {
				// Its ReplicaSet is being collected, and was named for its Deployment.
				s.DeploymentOf[pod.UID] = owner.Name[:max(strings.LastIndexByte(owner.Name, '-'), 0)]
			}
		case component == v1alpha1.ComponentMemoryNode || component == v1alpha1.ComponentComputeShard:
			s.Foreign = append(s.Foreign, pod)
		}
	}
	byName := func(a, b *corev1.Pod) int { return cmp.Compare(a.Name, b.Name) }
	slices.SortFunc(s.ComputePods, byName)
	slices.SortFunc(s.Foreign, byName)
}

// kept reads Secrets by their names, which contain the pool's UID. It asks the API server itself for a Secret that the cache does not show, because the cache may
// lag, and shows only objects that have the pool's label. Another Secret in its place would make all of the pool's keys unreachable.
func (s *Snapshot) kept(ctx context.Context, cache, live client.Reader, names []types.NamespacedName) error {
	s.Kept = map[string]*corev1.Secret{}
	for _, name := range names {
		secret := &corev1.Secret{}
		err := cache.Get(ctx, name, secret)
		if apierrors.IsNotFound(err) {
			err = live.Get(ctx, name, secret)
		}
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("look for Secret %s of pool %s/%s: %w", name, s.Pool.Namespace, s.Pool.Name, err)
		}
		s.Kept[name.Name] = secret
	}
	if err := s.rivals(ctx, cache, names); err != nil {
		return err
	}
	if len(s.Kept) < len(names) {
		return s.formerHashSecret(ctx, live)
	}
	return nil
}

// rivals looks for Secrets of these names in other namespaces that the operator watches: an operator there has made them for this very pool.
func (s *Snapshot) rivals(ctx context.Context, cache client.Reader, names []types.NamespacedName) error {
	var secrets corev1.SecretList
	if err := cache.List(ctx, &secrets, client.MatchingFields{indexPoolUID: string(s.Pool.UID)}); err != nil {
		return fmt.Errorf("list Secrets that other operators keep of pool %s/%s: %w", s.Pool.Namespace, s.Pool.Name, err)
	}
	s.Rivals = map[string]*corev1.Secret{}
	for i := range secrets.Items {
		secret := &secrets.Items[i]
		for _, own := range names {
			if secret.Name != own.Name || secret.Namespace == own.Namespace {
				continue
			}
			if oldest := s.Rivals[secret.Namespace]; oldest == nil || secret.CreationTimestamp.Before(&oldest.CreationTimestamp) {
				s.Rivals[secret.Namespace] = secret
			}
		}
	}
	return nil
}

// Leases returns the RepairLeases that name a pool, the oldest first. A lease that a person made has no label.
func Leases(ctx context.Context, cache client.Reader, pool types.NamespacedName) ([]*v1alpha1.RepairLease, error) {
	var list v1alpha1.RepairLeaseList
	if err := cache.List(ctx, &list, client.InNamespace(pool.Namespace), client.MatchingFields{indexPool: pool.Name}); err != nil {
		return nil, fmt.Errorf("list RepairLeases of pool %s: %w", pool, err)
	}
	var leases []*v1alpha1.RepairLease
	for i := range list.Items {
		leases = append(leases, &list.Items[i])
	}
	sort.Slice(leases, func(i, j int) bool {
		a, b := leases[i], leases[j]
		if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
			return a.CreationTimestamp.Before(&b.CreationTimestamp)
		}
		return a.Name < b.Name
	})
	return leases, nil
}

// Resizes returns the ResizeOperations that name a pool. One that a person made has no label.
func Resizes(ctx context.Context, cache client.Reader, pool types.NamespacedName) ([]*v1alpha1.ResizeOperation, error) {
	var list v1alpha1.ResizeOperationList
	if err := cache.List(ctx, &list, client.InNamespace(pool.Namespace), client.MatchingFields{indexPool: pool.Name}); err != nil {
		return nil, fmt.Errorf("list ResizeOperations of pool %s: %w", pool, err)
	}
	var resizes []*v1alpha1.ResizeOperation
	for i := range list.Items {
		resizes = append(resizes, &list.Items[i])
	}
	return resizes, nil
}

// Stray says whether a person made a ResizeOperation. One that an earlier pool of the name made is deleted with that pool.
func Stray(resize *v1alpha1.ResizeOperation) bool {
	controller := metav1.GetControllerOf(resize)
	return resize.DeletionTimestamp.IsZero() && (controller == nil || controller.Kind != "KVPool")
}

// keeps says whether a pod is a memory node's of this very pool. Its MemoryNode may have been deleted: the pool is an owner, too.
func keeps(pool *v1alpha1.KVPool, pod *corev1.Pod) bool {
	if controller := metav1.GetControllerOf(pod); controller != nil && (controller.Kind != "MemoryNode" || controller.Name != pod.Name) {
		return false
	}
	return pod.Labels[v1alpha1.LabelMemoryNode] == pod.Name &&
		slices.ContainsFunc(pod.OwnerReferences, func(owner metav1.OwnerReference) bool { return owner.UID == pool.UID && owner.Kind == "KVPool" })
}

// formerHashSecret asks the API server itself for the hash secret, where older pools have it, if the cache shows neither that Secret nor the one that the operator
// keeps: the Secret may have lost its label, and nothing can replace it.
func (s *Snapshot) formerHashSecret(ctx context.Context, live client.Reader) error {
	name := s.Pool.Name + "-secret"
	if s.Secrets[name] != nil || len(s.ShardMaps) == 0 {
		return nil
	}
	secret := &corev1.Secret{}
	err := live.Get(ctx, types.NamespacedName{Namespace: s.Pool.Namespace, Name: name}, secret)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("look for Secret %s/%s: %w", s.Pool.Namespace, name, err)
	}
	if err == nil && metav1.IsControlledBy(secret, s.Pool) {
		s.Secrets[name] = secret
	}
	return nil
}

func (s *Snapshot) kubernetesNodes(ctx context.Context, cache client.Reader, drains DrainTaints) error {
	var nodes corev1.NodeList
	if err := cache.List(ctx, &nodes, client.MatchingFields{indexMarked: marked}); err != nil {
		return fmt.Errorf("list Kubernetes nodes that are about to be emptied or out of service: %w", err)
	}
	s.OutOfService, s.Draining = map[string]bool{}, map[string][]corev1.Taint{}
	for i := range nodes.Items {
		node := &nodes.Items[i]
		if IsOutOfService(node) {
			s.OutOfService[node.Name] = true
		}
		if taints := drains.Of(node); len(taints) > 0 {
			s.Draining[node.Name] = taints
		}
	}
	return nil
}

// DrainTaints are keys of taints that Kubernetes nodes get before they are emptied.
type DrainTaints []string

// DefaultDrainTaints are those of cluster-autoscaler, of Karpenter since version 1 and before it, and of GKE before it ends a machine.
var DefaultDrainTaints = DrainTaints{"ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted", "karpenter.sh/disruption", "cloud.google.com/impending-node-termination"}

// Of returns the taints that say that a Kubernetes node is about to be emptied, a cordon's among them. A taint that keeps no pod away says only that somebody
// considers it.
func (keys DrainTaints) Of(node *corev1.Node) []corev1.Taint {
	var taints []corev1.Taint
	if node.Spec.Unschedulable {
		taints = append(taints, corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule})
	}
	for _, taint := range node.Spec.Taints {
		if slices.Contains(keys, taint.Key) && taint.Effect != corev1.TaintEffectPreferNoSchedule {
			taints = append(taints, taint)
		}
	}
	return taints
}

// IsOutOfService says whether a Kubernetes node was declared shut down: its pods do not run, though no kubelet says so.
func IsOutOfService(node *corev1.Node) bool {
	for _, taint := range node.Spec.Taints {
		if taint.Key == corev1.TaintNodeOutOfService {
			return true
		}
	}
	return false
}

// Processes returns the processes that are written down in the pool's ComputeShardPools, and in its own status by earlier operators; each once. Its caller may not
// change the list.
func (s *Snapshot) Processes() []v1alpha1.ProcessStatus {
	most := len(s.Pool.Status.Processes)
	for _, pool := range s.ComputePools {
		most += len(pool.Status.Processes)
	}
	processes := make([]v1alpha1.ProcessStatus, 0, most)
	written := make(map[string]bool, most)
	add := func(list []v1alpha1.ProcessStatus) {
		for _, process := range list {
			if !written[process.Process] {
				written[process.Process] = true
				processes = append(processes, process)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.ComputePools)) {
		add(s.ComputePools[name].Status.Processes)
	}
	add(s.Pool.Status.Processes)
	return processes
}

// gone asks the API server itself for pods that the cache does not show: it may lag, and it shows only pods that have the pool's label.
func (s *Snapshot) gone(ctx context.Context, live client.Reader) (map[types.UID]bool, error) {
	present := make(map[types.UID]bool, len(s.ComputePods))
	for _, pod := range s.ComputePods {
		present[pod.UID] = true
	}
	gone := map[types.UID]bool{}
	absent := map[types.UID]string{}
	for _, process := range s.Processes() {
		if uid := types.UID(process.PodUID); !present[uid] && s.Pool.Spec.Management != v1alpha1.ManagementPaused {
			absent[uid] = process.Name
		}
	}
	there, err := podsNamed(ctx, live, s.Pool.Namespace, maps.Values(absent))
	if err != nil {
		return nil, err
	}
	for uid, name := range absent {
		if pod := there[name]; pod != nil && pod.UID == uid {
			s.Unlabelled = append(s.Unlabelled, pod)
		} else {
			gone[uid] = true
		}
	}
	return gone, nil
}

// unlisted asks the API server itself for pods of clients whose sessions memory nodes have ended. The cache may lag, and not show yet the pod of a process that began
// a moment ago and lives.
func (s *Snapshot) unlisted(ctx context.Context, live client.Reader) (map[string]bool, error) {
	absent := map[string]bool{}
	for _, observed := range s.Agents {
		for _, dead := range observed.Facts.GetMemoryNode().GetDead() {
			// Clients choose their names, and what names no pod can be is not asked for. Nobody judges sidecars.
			if dead.GetSlots()+dead.GetSegments() > 0 && !v1alpha1.OfSidecar(dead.GetName()) && len(validation.IsDNS1123Subdomain(dead.GetName())) == 0 {
				absent[dead.GetName()] = true
			}
		}
	}
	for _, pod := range s.ComputePods {
		delete(absent, pod.Name)
	}
	unlisted := map[string]bool{}
	if s.Pool.Spec.Management == v1alpha1.ManagementPaused {
		return unlisted, nil
	}
	there, err := podsNamed(ctx, live, s.Pool.Namespace, maps.Keys(absent))
	for name := range there {
		unlisted[name] = true
	}
	return unlisted, err
}

const (
	askedOneByOne  = 8
	podsInAnAnswer = 500
)

// podsNamed asks the API server itself which of the named pods there are, whatever their labels. A few are asked for one by one. After a rollout there are so many that
// the whole namespace costs less.
func podsNamed(ctx context.Context, live client.Reader, namespace string, names iter.Seq[string]) (map[string]*metav1.PartialObjectMetadata, error) {
	wanted := map[string]bool{}
	for name := range names {
		wanted[name] = true
	}
	there := map[string]*metav1.PartialObjectMetadata{}
	if len(wanted) > askedOneByOne {
		err := eachPod(ctx, live, namespace, func(pod *metav1.PartialObjectMetadata) {
			if wanted[pod.Name] {
				there[pod.Name] = pod
			}
		})
		return there, err
	}
	for name := range wanted {
		pod := &metav1.PartialObjectMetadata{}
		pod.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod"))
		err := live.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, pod)
		if err != nil && !apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("look for pod %s/%s: %w", namespace, name, err)
		}
		if err == nil {
			there[name] = pod
		}
	}
	return there, nil
}

// eachPod asks the API server itself which pods a namespace has, whatever their labels.
func eachPod(ctx context.Context, live client.Reader, namespace string, visit func(*metav1.PartialObjectMetadata)) error {
	for next := ""; ; {
		pods := &metav1.PartialObjectMetadataList{}
		pods.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PodList"))
		if err := live.List(ctx, pods, client.InNamespace(namespace), client.Limit(podsInAnAnswer), client.Continue(next)); err != nil {
			return fmt.Errorf("list pods of namespace %s: %w", namespace, err)
		}
		for i := range pods.Items {
			pod := &pods.Items[i]
			pod.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod")) // an answer says of its items that they are metadata
			visit(pod)
		}
		if next = pods.Continue; next == "" {
			return nil
		}
	}
}

// unplaced asks the API server itself, because the cache may lag: a pod that has a place by now may hold what nothing else holds.
func (s *Snapshot) unplaced(ctx context.Context, live client.Reader) (map[string]bool, error) {
	if len(s.ShardMaps) == 0 || s.Pool.Spec.Management == v1alpha1.ManagementPaused {
		return nil, nil
	}
	unplaced := map[string]bool{}
	for _, entry := range s.ShardMaps[len(s.ShardMaps)-1].Spec.Nodes {
		if cached := s.NodePods[entry.Name]; cached != nil && Placed(cached) {
			continue
		}
		pod := &corev1.Pod{}
		err := live.Get(ctx, types.NamespacedName{Namespace: s.Pool.Namespace, Name: entry.Name}, pod)
		if err != nil && !apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("look for pod %s/%s: %w", s.Pool.Namespace, entry.Name, err)
		}
		if err != nil || !Placed(pod) {
			unplaced[entry.Name] = true
		}
	}
	return unplaced, nil
}

// Placed says whether a pod runs, has run, or is about to.
func Placed(pod *corev1.Pod) bool {
	return pod.Spec.NodeName != "" || pod.Status.Phase != corev1.PodPending && pod.Status.Phase != ""
}

// AwaitsNetwork says whether a pod has a place but no sandbox with a network there yet. Only events say why.
func AwaitsNetwork(pod *corev1.Pod) bool {
	if pod == nil || pod.Spec.NodeName == "" || !pod.DeletionTimestamp.IsZero() || pod.Status.Phase != corev1.PodPending && pod.Status.Phase != "" {
		return false
	}
	return !slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReadyToStartContainers && c.Status == corev1.ConditionTrue
	})
}

// unattachedAsked bounds the pods that one look asks about. An API server goes through all events of a namespace for each, and if one pod gets no network, the
// others mostly have the same reason.
const unattachedAsked = 4

// unattached asks the API server itself: a cache of events would cost much for what a pool meets once, if ever.
func (s *Snapshot) unattached(ctx context.Context, live client.Reader) (map[string]string, error) {
	if s.Pool.Spec.Network.Attachment.NetworkName() == "" {
		return nil, nil
	}
	unattached := map[string]string{}
	asked := 0
	for _, name := range slices.Sorted(maps.Keys(s.NodePods)) {
		pod := s.NodePods[name]
		if !AwaitsNetwork(pod) || asked == unattachedAsked {
			continue
		}
		asked++
		var events corev1.EventList
		if err := live.List(ctx, &events, client.InNamespace(pod.Namespace),
			client.MatchingFields{"involvedObject.uid": string(pod.UID), "reason": "FailedCreatePodSandBox"}); err != nil {
			return nil, fmt.Errorf("list events of pod %s/%s: %w", pod.Namespace, pod.Name, err)
		}
		var latest *corev1.Event
		for i := range events.Items {
			if event := &events.Items[i]; latest == nil || latest.LastTimestamp.Before(&event.LastTimestamp) {
				latest = event
			}
		}
		if latest != nil {
			unattached[name] = latest.Message
		}
	}
	return unattached, nil
}

// secretNamed is a Secret that people keep; nil: it is not among the Secrets with the pool's label.
func secretNamed(name v1alpha1.ObjectName, labelled []corev1.Secret) *corev1.Secret {
	for i := range labelled {
		if labelled[i].Name == string(name) {
			return &labelled[i]
		}
	}
	return nil
}

// owned keeps objects that pool controls. An object of the same labels with another owner, or with none, is not the operator's to change.
func owned[T any, P interface {
	*T
	client.Object
}](pool *v1alpha1.KVPool, items []T) map[string]P {
	kept := map[string]P{}
	for i := range items {
		if object := P(&items[i]); metav1.IsControlledBy(object, pool) {
			kept[object.GetName()] = object
		}
	}
	return kept
}

// Object is what the pool owns of a kind and name, or nil.
func (s *Snapshot) Object(kind, name string) client.Object {
	switch kind {
	case "MemoryNode":
		return found(s.Nodes, name)
	case "MemoryNodePool":
		return found(s.MemoryPools, name)
	case "ComputeShardPool":
		return found(s.ComputePools, name)
	case "Pod":
		return found(s.NodePods, name)
	case "Deployment":
		return found(s.Deployments, name)
	case "Secret":
		if kept := found(s.Kept, name); kept != nil {
			return kept
		}
		return found(s.Secrets, name)
	case "ConfigMap":
		return found(s.ConfigMaps, name)
	case "Service":
		return found(s.Services, name)
	case "PodDisruptionBudget":
		return found(s.Budgets, name)
	case "NetworkPolicy":
		return found(s.Policies, name)
	case v1alpha1.CertificateKind.Kind:
		if s.Issued.Certificate != nil {
			return s.Issued.Certificate
		}
	case "RepairLease":
		for _, lease := range s.Leases {
			if lease.Name == name {
				return lease
			}
		}
	case "ResizeOperation":
		for _, resize := range s.Resizes {
			if resize.Name == name {
				return resize
			}
		}
	case "ShardMap":
		for _, shardMap := range s.ShardMaps {
			if shardMap.Name == name {
				return shardMap
			}
		}
	}
	return nil
}

// found avoids an interface that holds a nil pointer.
func found[P interface {
	comparable
	client.Object
}](objects map[string]P, name string) client.Object {
	var none P
	if object := objects[name]; object != none {
		return object
	}
	return nil
}

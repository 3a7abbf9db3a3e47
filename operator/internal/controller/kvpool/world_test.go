// SPDX-License-Identifier: Apache-2.0

package kvpool

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	farpoolv1alpha1 "farpool.dev/farpool/api/gen/farpool/v1alpha1"
	"farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/render"
	"farpool.dev/farpool/operator/internal/shardmap"
)

// world is a namespace with one pool, and what would be kubelets and controllers: envtest has neither.
type world struct {
	ctx    context.Context
	pool   *v1alpha1.KVPool
	agents map[string]*fakeAgent
}

var incarnations atomic.Uint64

// roce is a network over RDMA.
func roce(attachment *v1alpha1.AttachmentSpec) v1alpha1.NetworkSpec {
	return v1alpha1.NetworkSpec{Transport: v1alpha1.TransportRoCEv2, Attachment: attachment}
}

func newWorld(change func(*v1alpha1.KVPool)) *world {
	GinkgoHelper()
	ctx := context.Background()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}
	Expect(k8s.Create(ctx, namespace)).To(Succeed())
	w := &world{ctx: ctx, agents: map[string]*fakeAgent{}, pool: &v1alpha1.KVPool{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace.Name, Name: "cache"},
		Spec: v1alpha1.KVPoolSpec{
			Memory:  v1alpha1.MemorySpec{Pools: []v1alpha1.MemoryPool{{Name: "memory", Replicas: 2, Lend: resource.MustParse("256Mi")}}},
			Compute: &v1alpha1.ComputeSpec{Pools: []v1alpha1.ComputePool{{Name: "shards", Replicas: 2}}},
			Network: v1alpha1.NetworkSpec{Transport: v1alpha1.TransportTCP},
		},
	}}
	if change != nil {
		change(w.pool)
	}
	DeferCleanup(func() {
		for _, agent := range w.agents {
			agent.stop()
		}
		_ = k8s.Delete(ctx, w.pool)
	})
	return w
}

// create makes the pool and waits until its memory nodes have pods.
func (w *world) create() {
	GinkgoHelper()
	// What meddles with requests reads w.pool meanwhile, which is empty while an answer is decoded into it.
	made := w.pool.DeepCopy()
	Expect(k8s.Create(w.ctx, made)).To(Succeed())
	w.pool = made
	for _, name := range w.nodeNames() {
		w.awaitPod(name)
	}
	w.pool = w.current()
}

func (w *world) nodeNames() []string {
	var names []string
	for _, pool := range w.pool.Spec.Memory.Pools {
		for i := range pool.Replicas {
			names = append(names, v1alpha1.MemoryNodeName(w.pool.Name, pool.Name, i))
		}
	}
	return names
}

func (w *world) key(name string) client.ObjectKey {
	return client.ObjectKey{Namespace: w.pool.Namespace, Name: name}
}

func (w *world) awaitPod(name string) *corev1.Pod {
	GinkgoHelper()
	pod := &corev1.Pod{}
	Eventually(func() error { return k8s.Get(w.ctx, w.key(name), pod) }, within, every).Should(Succeed())
	return pod
}

func (w *world) secret(name string) *corev1.Secret {
	GinkgoHelper()
	secret := &corev1.Secret{}
	Eventually(func() error { return k8s.Get(w.ctx, w.key(name), secret) }, within, every).Should(Succeed())
	return secret
}

// keptKeys are where the Secrets lie that the operator keeps of the pool: its authority's, and its hash secret's.
func (w *world) keptKeys() (authority, hash client.ObjectKey) {
	names := render.KeptSecretNames(w.pool.Name, w.pool.UID)
	return client.ObjectKey{Namespace: secretNamespace, Name: names[0]}, client.ObjectKey{Namespace: secretNamespace, Name: names[1]}
}

// kept Secrets of the pool.
func (w *world) kept() (authority, hash *corev1.Secret) {
	GinkgoHelper()
	a, h := w.keptKeys()
	authority, hash = &corev1.Secret{}, &corev1.Secret{}
	Eventually(func() error { return errors.Join(k8s.Get(w.ctx, a, authority), k8s.Get(w.ctx, h, hash)) }, within, every).Should(Succeed())
	return authority, hash
}

// signed is a map with the signature of the pool's operator.
func (w *world) signed(shardMap *farpoolv1alpha1.ShardMap) *farpoolv1alpha1.ShardMap {
	GinkgoHelper()
	_, hash := w.kept()
	Expect(shardmap.Sign(shardMap, hash.Data[render.KeyMapKey])).To(Succeed())
	return shardMap
}

// run makes a memory node's pod run a process of a new incarnation.
func (w *world) run(name string) *fakeAgent {
	GinkgoHelper()
	facts := memoryNodeFacts(string(w.pool.UID), name, 1_000_000_000_000_000_000+incarnations.Add(1))
	switch w.pool.Spec.Index.Protocol {
	case v1alpha1.ProtocolRACE:
		facts.MemoryNode.LockRegion, facts.MemoryNode.Shape = nil, &farpoolv1alpha1.MemoryNodeFacts_Race{Race: &farpoolv1alpha1.RaceGeometry{Groups: 5000}}
	case v1alpha1.ProtocolOutback:
		facts.MemoryNode.LockRegion, facts.MemoryNode.Shape = nil, &farpoolv1alpha1.MemoryNodeFacts_Outback{Outback: &farpoolv1alpha1.OutbackGeometry{Buckets: 50000}}
	}
	return w.runAs(name, facts, name+"-node-tls")
}

func (w *world) runAs(name string, facts *farpoolv1alpha1.Facts, certificate string) *fakeAgent {
	GinkgoHelper()
	at := "127.0.0.1:0"
	if old := w.agents[name]; old != nil {
		old.stop()
		at = old.address
	}
	agent, err := serve(at, w.secret(certificate).Data, string(w.pool.UID), facts)
	Expect(err).NotTo(HaveOccurred())
	w.agents[name] = agent
	addresses.Store(w.pool.Namespace+"/"+name, agent.address)
	w.podStatus(name, corev1.PodStatus{
		Phase: corev1.PodRunning, PodIP: "127.0.0.1", PodIPs: []corev1.PodIP{{IP: "127.0.0.1"}},
		Conditions:        []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		ContainerStatuses: []corev1.ContainerStatus{{Name: "memory-node", Ready: true, Resources: &corev1.ResourceRequirements{}, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}}}},
	})
	return agent
}

// shard makes a compute shard's pod, as its Deployment's controllers would, and runs a process in it.
func (w *world) shard(name, node string) *fakeAgent {
	GinkgoHelper()
	w.shardPod(name, node, w.replicaSet("cache-shards"))
	return w.runShard(name, nil)
}

// shardPod makes a pod with a compute shard's labels.
func (w *world) shardPod(name, node string, owners ...metav1.OwnerReference) *corev1.Pod {
	GinkgoHelper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.pool.Namespace, Name: name, Labels: w.shardLabels(), OwnerReferences: owners},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "compute-shard", Image: "farpool/dataplane:v1"}}},
	}
	Expect(k8s.Create(w.ctx, pod)).To(Succeed())
	return pod
}

func (w *world) shardLabels() map[string]string {
	return map[string]string{v1alpha1.LabelPool: w.pool.Name, v1alpha1.LabelComponent: v1alpha1.ComponentComputeShard}
}

// replicaSet is the one that the Deployment's controller would make of a Deployment, as an owner of pods.
func (w *world) replicaSet(deployment string) metav1.OwnerReference {
	GinkgoHelper()
	owner := &appsv1.Deployment{}
	Eventually(func() error { return k8s.Get(w.ctx, w.key(deployment), owner) }, within, every).Should(Succeed())
	set := &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.pool.Namespace, Name: deployment + "-5d4f8c7b9", Labels: w.shardLabels(),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(owner, appsv1.SchemeGroupVersion.WithKind("Deployment"))}},
		Spec: appsv1.ReplicaSetSpec{Selector: owner.Spec.Selector, Template: owner.Spec.Template},
	}
	if err := k8s.Create(w.ctx, set); err != nil {
		Expect(apierrors.IsAlreadyExists(err)).To(BeTrue(), err.Error())
		Expect(k8s.Get(w.ctx, w.key(set.Name), set)).To(Succeed())
	}
	return *metav1.NewControllerRef(set, appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))
}

// runShard runs a new process in a shard's pod; last is how the one before ended.
func (w *world) runShard(name string, last *corev1.ContainerStateTerminated) *fakeAgent {
	GinkgoHelper()
	at := "127.0.0.1:0"
	if old := w.agents[name]; old != nil {
		old.stop()
		at = old.address
	}
	agent, err := serve(at, w.secret("cache-shards-client-tls").Data, string(w.pool.UID), computeShardFacts(string(w.pool.UID), name, 0xf000000000000000+incarnations.Add(1)))
	Expect(err).NotTo(HaveOccurred())
	agent.repair = w.repair
	w.agents[name] = agent
	addresses.Store(w.pool.Namespace+"/"+name, agent.address)
	container := corev1.ContainerStatus{Name: "compute-shard", Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}}}
	if last != nil {
		container.RestartCount, container.LastTerminationState.Terminated = 1, last
	}
	w.podStatus(name, corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "127.0.0.1", PodIPs: []corev1.PodIP{{IP: "127.0.0.1"}}, ContainerStatuses: []corev1.ContainerStatus{container}})
	return agent
}

func (a *fakeAgent) process() uint64 {
	facts, _ := a.snapshot()
	return facts.GetIncarnation()
}

// opens gives a shard's process sessions with every memory node, where it leaves slots and segments when it ends.
func (w *world) opens(shard *fakeAgent, slots, segments uint32) {
	facts, _ := shard.snapshot()
	for _, name := range w.nodeNames() {
		var left *farpoolv1alpha1.DeadClient
		if slots+segments > 0 {
			left = &farpoolv1alpha1.DeadClient{Process: facts.GetIncarnation(), Name: facts.GetName(), Slots: slots, Segments: segments}
		}
		w.agents[name].set(func() { w.agents[name].sessions[facts.GetIncarnation()] = left })
	}
}

// repair does on every memory node what compute shards do there, if the processes are fenced.
func (w *world) repair(_ context.Context, request *farpoolv1alpha1.RepairRequest) (*farpoolv1alpha1.RepairResponse, error) {
	response := &farpoolv1alpha1.RepairResponse{Done: true}
	for _, name := range w.nodeNames() {
		node := w.agents[name]
		if !node.hasFenced(request.GetProcesses()) {
			return nil, status.Errorf(codes.FailedPrecondition, "not fenced on %s", name)
		}
		result := &farpoolv1alpha1.RepairResponse_Node{Name: name}
		node.update(func(facts *farpoolv1alpha1.Facts) {
			var kept []*farpoolv1alpha1.DeadClient
			for _, dead := range facts.GetMemoryNode().GetDead() {
				if !slices.Contains(request.GetProcesses(), dead.GetProcess()) {
					kept = append(kept, dead)
					continue
				}
				result.SlotsRepaired += dead.GetSlots()
				result.SegmentsAdopted += dead.GetSegments()
			}
			facts.MemoryNode.Dead, facts.MemoryNode.DeadClients = kept, uint64(len(kept))
		})
		response.Nodes = append(response.Nodes, result)
	}
	return response, nil
}

// writtenDown are the processes in the status of the pool's ComputeShardPools.
func (w *world) writtenDown() (processes []v1alpha1.ProcessStatus) {
	GinkgoHelper()
	var list v1alpha1.ComputeShardPoolList
	Expect(k8s.List(w.ctx, &list, client.InNamespace(w.pool.Namespace))).To(Succeed())
	for _, pool := range list.Items {
		processes = append(processes, pool.Status.Processes...)
	}
	return processes
}

// written waits until a status names a shard's process.
func (w *world) written(shard *fakeAgent) {
	GinkgoHelper()
	Eventually(func() []string {
		var processes []string
		for _, process := range w.writtenDown() {
			processes = append(processes, process.Process)
		}
		return processes
	}, within, every).Should(ContainElement(v1alpha1.ProcessID(shard.process())))
}

func (w *world) leases() []v1alpha1.RepairLease {
	GinkgoHelper()
	var list v1alpha1.RepairLeaseList
	Expect(k8s.List(w.ctx, &list, client.InNamespace(w.pool.Namespace))).To(Succeed())
	return list.Items
}

// lease waits for the one RepairLease that there is, and its condition.
func (w *world) lease(kind string, status metav1.ConditionStatus, reason string) *v1alpha1.RepairLease {
	GinkgoHelper()
	var lease v1alpha1.RepairLease
	Eventually(func(g Gomega) {
		leases := w.leases()
		g.Expect(leases).To(HaveLen(1))
		lease = leases[0]
		found := meta.FindStatusCondition(lease.Status.Conditions, kind)
		g.Expect(found).NotTo(BeNil(), kind)
		g.Expect(string(found.Status)+" "+found.Reason).To(Equal(string(status)+" "+reason), found.Message)
	}, within, every).Should(Succeed())
	return &lease
}

func (w *world) podStatus(name string, now corev1.PodStatus) {
	GinkgoHelper()
	Eventually(func() error {
		pod := w.awaitPod(name)
		pod.Status = now
		return k8s.Status().Update(w.ctx, pod)
	}, within, every).Should(Succeed())
}

func (w *world) runAll() {
	GinkgoHelper()
	for _, name := range w.nodeNames() {
		w.run(name)
	}
}

// computeReady does what the Deployment's controller would.
func (w *world) computeReady(name string) {
	GinkgoHelper()
	Eventually(func() error {
		deployment := &appsv1.Deployment{}
		if err := k8s.Get(w.ctx, w.key(name), deployment); err != nil {
			return err
		}
		replicas := *deployment.Spec.Replicas
		deployment.Status = appsv1.DeploymentStatus{ObservedGeneration: deployment.Generation, Replicas: replicas, UpdatedReplicas: replicas, ReadyReplicas: replicas, AvailableReplicas: replicas}
		return k8s.Status().Update(w.ctx, deployment)
	}, within, every).Should(Succeed())
}

// up brings a whole pool up.
func (w *world) up() {
	GinkgoHelper()
	w.create()
	w.runAll()
	w.computeReady("cache-shards")
	w.awaitCondition(v1alpha1.ConditionAvailable, metav1.ConditionTrue, v1alpha1.ReasonServing)
	w.awaitCondition(v1alpha1.ConditionProgressing, metav1.ConditionFalse, v1alpha1.ReasonSettled)
	w.awaitPublished()
}

func (w *world) current() *v1alpha1.KVPool {
	GinkgoHelper()
	pool := &v1alpha1.KVPool{}
	Expect(k8s.Get(w.ctx, client.ObjectKeyFromObject(w.pool), pool)).To(Succeed())
	return pool
}

func (w *world) node(name string) *v1alpha1.MemoryNode {
	GinkgoHelper()
	node := &v1alpha1.MemoryNode{}
	Expect(k8s.Get(w.ctx, w.key(name), node)).To(Succeed())
	return node
}

// awaitCondition waits until a condition of the pool has this status and reason, and its message matches: a message may change under the same reason.
func (w *world) awaitCondition(kind string, status metav1.ConditionStatus, reason string, says ...OmegaMatcher) *metav1.Condition {
	GinkgoHelper()
	var found *metav1.Condition
	Eventually(func(g Gomega) {
		found = meta.FindStatusCondition(w.current().Status.Conditions, kind)
		g.Expect(found).NotTo(BeNil(), kind)
		g.Expect(string(found.Status)+" "+found.Reason).To(Equal(string(status)+" "+reason), found.Message)
		for _, words := range says {
			g.Expect(found.Message).To(words)
		}
	}, within, every).Should(Succeed())
	return found
}

// awaitNodeCondition does for a MemoryNode what awaitCondition does for the pool.
func (w *world) awaitNodeCondition(name, kind string, status metav1.ConditionStatus, reason string, says ...OmegaMatcher) *metav1.Condition {
	GinkgoHelper()
	var found *metav1.Condition
	Eventually(func(g Gomega) {
		found = meta.FindStatusCondition(w.node(name).Status.Conditions, kind)
		g.Expect(found).NotTo(BeNil(), kind)
		g.Expect(string(found.Status)+" "+found.Reason).To(Equal(string(status)+" "+reason), found.Message)
		for _, words := range says {
			g.Expect(found.Message).To(words)
		}
	}, within, every).Should(Succeed())
	return found
}

func (w *world) awaitEpoch(epoch int64) *v1alpha1.ShardMap {
	GinkgoHelper()
	shardMap := &v1alpha1.ShardMap{}
	Eventually(func() error { return k8s.Get(w.ctx, w.key(v1alpha1.ShardMapName("cache", epoch)), shardMap) }, within, every).Should(Succeed())
	Eventually(func() int64 {
		if reference := w.current().Status.ShardMap; reference != nil {
			return reference.Epoch
		}
		return 0
	}, within, every).Should(Equal(epoch))
	return shardMap
}

// awaitLaterEpoch is for maps whose number depends on which write of a look was refused: a status that names a map that was never made costs its number.
func (w *world) awaitLaterEpoch(than int64) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		reference := w.current().Status.ShardMap
		g.Expect(reference).NotTo(BeNil())
		g.Expect(reference.Epoch).To(BeNumerically(">", than))
		g.Expect(k8s.Get(w.ctx, w.key(reference.Name), &v1alpha1.ShardMap{})).To(Succeed())
	}, within, every).Should(Succeed())
}

func (w *world) awaitPublished() {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		reference := w.current().Status.ShardMap
		g.Expect(reference).NotTo(BeNil())
		shardMap := &v1alpha1.ShardMap{}
		g.Expect(k8s.Get(w.ctx, w.key(reference.Name), shardMap)).To(Succeed())
		g.Expect(meta.IsStatusConditionTrue(shardMap.Status.Conditions, v1alpha1.ConditionPublished)).To(BeTrue())
	}, within, every).Should(Succeed())
}

func (w *world) maps() []v1alpha1.ShardMap {
	GinkgoHelper()
	var list v1alpha1.ShardMapList
	Expect(k8s.List(w.ctx, &list, client.InNamespace(w.pool.Namespace))).To(Succeed())
	return list.Items
}

func (w *world) awaitEvent(kind, reason string) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		var list eventsv1.EventList
		g.Expect(k8s.List(w.ctx, &list, client.InNamespace(w.pool.Namespace))).To(Succeed())
		var seen []string
		for _, event := range list.Items {
			seen = append(seen, event.Regarding.Kind+" "+event.Reason)
		}
		g.Expect(seen).To(ContainElement(kind + " " + reason))
	}, within, every).Should(Succeed())
}

// reconcile runs the reconciler as often as asked, and fails if it fails.
func (w *world) reconcile(times int) {
	GinkgoHelper()
	for range times {
		Eventually(func() error {
			_, err := running.reconciler.Reconcile(w.ctx, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(w.pool)})
			if errors.Is(err, errStillTelling) {
				return err // the controller's own look at the pool tells memory nodes the same
			}
			Expect(err).NotTo(HaveOccurred())
			return nil
		}, within, every).Should(Succeed())
	}
}

// settle waits until a whole series of reconciliations writes nothing.
func (w *world) settle() {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		before := len(running.writes.in(w.pool.Namespace))
		w.reconcile(3)
		g.Expect(running.writes.in(w.pool.Namespace)[before:]).To(BeEmpty())
	}, within, every).Should(Succeed())
}

func (w *world) change(change func(*v1alpha1.KVPool)) error {
	GinkgoHelper()
	var last error
	Eventually(func() bool {
		pool := w.current()
		change(pool)
		last = k8s.Update(w.ctx, pool)
		return last == nil || !isConflict(last)
	}, within, every).Should(BeTrue())
	return last
}

func (w *world) annotate(node, incarnation string) {
	GinkgoHelper()
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, v1alpha1.AnnotationAcceptDataLoss, incarnation)
	Expect(k8s.Patch(w.ctx, w.node(node), client.RawPatch("application/merge-patch+json", []byte(patch)))).To(Succeed())
}

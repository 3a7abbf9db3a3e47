// SPDX-License-Identifier: Apache-2.0

package kvpool

import (
	"fmt"
	"io"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	farpoolv1alpha1 "farpool.dev/farpool/api/gen/farpool/v1alpha1"
	"farpool.dev/farpool/api/v1alpha1"
)

// ofRACE is a pool of RACE with so many memory nodes.
func ofRACE(nodes int32) func(*v1alpha1.KVPool) {
	return func(pool *v1alpha1.KVPool) {
		pool.Spec.Index = v1alpha1.IndexSpec{Protocol: v1alpha1.ProtocolRACE, RCuckoo: v1alpha1.RCuckooSpec{EntryBytes: 16, EntriesPerRow: 8, RowsPerLock: 16, TablePercent: 25}}
		pool.Spec.Memory.Pools[0].Replicas = nodes
	}
}

// resize the pool, and run what comes.
func (w *world) resize(nodes int32) {
	GinkgoHelper()
	Expect(w.change(func(pool *v1alpha1.KVPool) { pool.Spec.Memory.Pools[0].Replicas = nodes })).To(Succeed())
	w.pool.Spec.Memory.Pools[0].Replicas = nodes
	for _, name := range w.nodeNames() {
		if pod := w.awaitPod(name); pod.Status.Phase != corev1.PodRunning {
			w.run(name)
		}
	}
}

// moving waits until a move is under way, and until every memory node has been told.
func (w *world) moving(move int64) *v1alpha1.ShardMap {
	GinkgoHelper()
	var newest *v1alpha1.ShardMap
	Eventually(func(g Gomega) {
		newest = w.newest()
		g.Expect(newest.Spec.Move).To(Equal(move))
		for _, entry := range newest.Spec.Nodes {
			g.Expect(w.agents[entry.Name].epoch()).To(Equal(uint64(newest.Spec.Epoch)))
		}
	}, within, every).Should(Succeed())
	Expect(newest.Spec.Departures).NotTo(BeEmpty())
	return newest
}

func (w *world) newest() *v1alpha1.ShardMap {
	GinkgoHelper()
	var newest *v1alpha1.ShardMap
	maps := w.maps()
	for i := range maps {
		if newest == nil || maps[i].Spec.Epoch > newest.Spec.Epoch {
			newest = &maps[i]
		}
	}
	Expect(newest).NotTo(BeNil())
	return newest
}

// givers of a map, by name.
func givers(of *v1alpha1.ShardMap) []string {
	seen := map[string]bool{}
	var names []string
	for _, departure := range of.Spec.Departures {
		for _, table := range of.Spec.Tables {
			if name := of.Spec.Nodes[table.Node].Name; table.ID == departure.From && !seen[name] {
				seen[name] = true
				names = append(names, name)
			}
		}
	}
	return names
}

// moved says in the clients' place that all keys have left a memory node.
func (w *world) moved(name string, move int64) {
	w.agents[name].update(func(facts *farpoolv1alpha1.Facts) { facts.MemoryNode.MoveFinished = uint64(move) })
}

func (w *world) resizes() []v1alpha1.ResizeOperation {
	GinkgoHelper()
	var list v1alpha1.ResizeOperationList
	Expect(k8s.List(w.ctx, &list, client.InNamespace(w.pool.Namespace))).To(Succeed())
	return list.Items
}

// awaitStage waits until the ResizeOperation of an aim is at a stage.
func (w *world) awaitStage(to int32, stage v1alpha1.ResizeStage) *v1alpha1.ResizeOperation {
	GinkgoHelper()
	var found *v1alpha1.ResizeOperation
	Eventually(func(g Gomega) {
		found = nil
		for _, operation := range w.resizes() {
			if operation.Spec.Pools[0].To == to && (found == nil || found.CreationTimestamp.Before(&operation.CreationTimestamp)) {
				found = &operation
			}
		}
		g.Expect(found).NotTo(BeNil())
		g.Expect(found.Status.Stage).To(Equal(stage), "%+v", found.Status)
	}, within, every).Should(Succeed())
	return found
}

func (w *world) awaitGone(name string) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		g.Expect(apierrors.IsNotFound(k8s.Get(w.ctx, w.key(name), &corev1.Pod{}))).To(BeTrue(), "pod")
		g.Expect(apierrors.IsNotFound(k8s.Get(w.ctx, w.key(name), &v1alpha1.MemoryNode{}))).To(BeTrue(), "MemoryNode")
	}, within, every).Should(Succeed())
}

// refusePod has the API server refuse to make a pod, as it does for a quota.
func (w *world) refusePod(name string) {
	GinkgoHelper()
	what := metav1.ObjectMeta{Name: "refuse-" + w.pool.Namespace}
	policy := &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: what, Spec: admissionv1.ValidatingAdmissionPolicySpec{
		FailurePolicy: ptr.To(admissionv1.Fail),
		MatchConstraints: &admissionv1.MatchResources{
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: w.pool.Namespace}},
			ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
				Operations: []admissionv1.OperationType{admissionv1.Create},
				Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
			}}},
		},
		Validations: []admissionv1.Validation{{Expression: fmt.Sprintf("object.metadata.name != %q", name), Message: "there is no room in the quota"}},
	}}
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: what, Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
		PolicyName: what.Name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
	}}
	for _, object := range []client.Object{policy, binding} {
		Expect(k8s.Create(w.ctx, object)).To(Succeed())
		DeferCleanup(func() { _ = k8s.Delete(w.ctx, object) })
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.pool.Namespace, Name: name}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "any", Image: "any"}}}}
	Eventually(func() error { return k8s.Create(w.ctx, pod.DeepCopy(), client.DryRunAll) }, within, every).Should(MatchError(ContainSubstring("no room in the quota")))
}

// evict a memory node's pod, as kubectl drain does, by what the controller of disruption budgets would count now.
func (w *world) evict(name string) error {
	GinkgoHelper()
	budget := &policyv1.PodDisruptionBudget{}
	Expect(k8s.Get(w.ctx, w.key("cache-memory-nodes"), budget)).To(Succeed())
	var pods corev1.PodList
	selector, err := metav1.LabelSelectorAsSelector(budget.Spec.Selector)
	Expect(err).NotTo(HaveOccurred())
	Expect(k8s.List(w.ctx, &pods, client.InNamespace(w.pool.Namespace), client.MatchingLabelsSelector{Selector: selector})).To(Succeed())
	healthy := int32(0)
	for _, pod := range pods.Items {
		if pod.DeletionTimestamp.IsZero() && pod.Status.Phase == corev1.PodRunning {
			healthy++
		}
	}
	desired := int32(budget.Spec.MinAvailable.IntValue())
	budget.Status = policyv1.PodDisruptionBudgetStatus{ObservedGeneration: budget.Generation, CurrentHealthy: healthy, DesiredHealthy: desired,
		ExpectedPods: int32(len(pods.Items)), DisruptionsAllowed: max(healthy-desired, 0)}
	Expect(k8s.Status().Update(w.ctx, budget)).To(Succeed())
	return k8s.SubResource("eviction").Create(w.ctx, w.awaitPod(name), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: w.pool.Namespace, Name: name}})
}

var _ = Describe("a pool whose memory nodes change", func() {
	It("grows and is drained, by one operator after the other, and then there is not one write more", Serial, func() {
		w := newWorld(ofRACE(3))
		w.up()
		pods := map[string]types.UID{}
		for _, name := range w.nodeNames() {
			pods[name] = w.awaitPod(name).UID
		}
		w.resize(5)
		moving := w.moving(1)
		Expect(moving.Spec.Nodes).To(HaveLen(5))
		Expect(givers(moving)).To(ConsistOf("cache-memory-0", "cache-memory-1", "cache-memory-2"))
		operation := w.awaitStage(5, v1alpha1.StageMoving)
		Expect(operation.Spec.Pools).To(Equal([]v1alpha1.ResizePool{{Name: "memory", From: 3, To: 5}}))
		Expect(metav1.IsControlledBy(operation, w.pool)).To(BeTrue())
		Expect(operation.Status.PartsTotal).To(BeEquivalentTo(len(moving.Spec.Departures)))
		w.awaitCondition(v1alpha1.ConditionProgressing, metav1.ConditionTrue, v1alpha1.ReasonResizing, ContainSubstring("memory nodes 3 to 5, by ResizeOperation "+operation.Name))
		w.awaitCondition(v1alpha1.ConditionAvailable, metav1.ConditionTrue, v1alpha1.ReasonServing)

		By("another operator, while keys move")
		w.moved("cache-memory-0", 1)
		running.stop()
		running = startOperator("farpool/dataplane:v1")
		Eventually(w.agents["cache-memory-4"].watching, within, every).Should(Equal(1))
		w.settle()
		Expect(w.newest().Name).To(Equal(moving.Name), "two memory nodes have not yet said that they are finished")
		w.moved("cache-memory-1", 1)
		w.moved("cache-memory-2", 1)
		operation = w.awaitStage(5, v1alpha1.StageComplete)
		Expect(operation.Status.PartsMoved).To(Equal(operation.Status.PartsTotal))
		Expect(operation.Status.KeysLeft).To(BeZero())
		Expect(meta.IsStatusConditionTrue(operation.Status.Conditions, v1alpha1.ConditionComplete)).To(BeTrue())
		w.awaitCondition(v1alpha1.ConditionProgressing, metav1.ConditionFalse, v1alpha1.ReasonSettled)
		Expect(w.newest().Spec.Departures).To(BeEmpty())
		Expect(w.current().Status.Memory.Summary).To(Equal("5/5"))

		By("draining three of them")
		w.resize(2)
		draining := w.moving(2)
		Expect(givers(draining)).To(ConsistOf("cache-memory-2", "cache-memory-3", "cache-memory-4"))
		budget := &policyv1.PodDisruptionBudget{}
		Expect(k8s.Get(w.ctx, w.key("cache-memory-nodes"), budget)).To(Succeed())
		Expect(budget.Spec.MinAvailable.IntValue()).To(Equal(5), "keys lie on all five")
		w.awaitStage(2, v1alpha1.StageMoving)
		for _, name := range []string{"cache-memory-2", "cache-memory-3", "cache-memory-4"} {
			Expect(k8s.Get(w.ctx, w.key(name), &corev1.Pod{})).To(Succeed(), "its keys have not left")
			w.moved(name, 2)
		}
		for _, name := range []string{"cache-memory-2", "cache-memory-3", "cache-memory-4"} {
			w.awaitGone(name)
		}
		w.awaitStage(2, v1alpha1.StageComplete)
		w.awaitCondition(v1alpha1.ConditionProgressing, metav1.ConditionFalse, v1alpha1.ReasonSettled)
		for _, name := range w.nodeNames() {
			Expect(w.awaitPod(name).UID).To(Equal(pods[name]), "%s has another pod", name)
		}
		Eventually(func() int {
			Expect(k8s.Get(w.ctx, w.key("cache-memory-nodes"), budget)).To(Succeed())
			return budget.Spec.MinAvailable.IntValue()
		}, within, every).Should(Equal(2))
		Expect(w.newest().Spec.Nodes).To(HaveLen(2))
		for _, reason := range []string{v1alpha1.ReasonResizePlanned, v1alpha1.ReasonMoveBegun, v1alpha1.ReasonMoveFinished, v1alpha1.ReasonNodeDrained} {
			w.awaitEvent("KVPool", reason)
		}
		w.awaitEvent("ResizeOperation", v1alpha1.ReasonResizeComplete)
		Eventually(func() float64 {
			complete, _ := running.metric("farpool_operator_resizes_total", w.pool.Namespace)
			return complete
		}, within, every).Should(Equal(2.0))
		w.settle()
		before := len(running.writes.in(w.pool.Namespace))
		w.reconcile(20)
		Expect(running.writes.in(w.pool.Namespace)[before:]).To(BeEmpty())
	})

	It("grows and is drained where memory nodes execute operations, and says what processors it asks for", func() {
		w := newWorld(func(pool *v1alpha1.KVPool) {
			pool.Spec.Index = v1alpha1.IndexSpec{Protocol: v1alpha1.ProtocolOutback, RCuckoo: v1alpha1.RCuckooSpec{EntryBytes: 16, EntriesPerRow: 8, RowsPerLock: 16, TablePercent: 25}}
			pool.Spec.Memory.Pools[0].Replicas = 2
		})
		w.up()
		w.awaitCondition(v1alpha1.ConditionSpecValid, metav1.ConditionTrue, v1alpha1.ReasonCPURequestMissing, ContainSubstring("memory gets 500m for each"))
		w.awaitEvent("KVPool", v1alpha1.ReasonCPURequestMissing)
		Expect(w.awaitPod("cache-memory-0").Spec.Containers[0].Resources.Requests.Cpu().String()).To(Equal("500m"))
		for _, entry := range w.newest().Spec.Nodes {
			Expect(entry.Outback).To(Equal(&v1alpha1.OutbackGeometry{Buckets: 50000}))
			Expect(entry.LockRegion).To(BeNil())
		}
		w.resize(3)
		for _, giver := range givers(w.moving(1)) {
			w.moved(giver, 1)
		}
		w.awaitStage(3, v1alpha1.StageComplete)
		w.resize(2)
		Expect(givers(w.moving(2))).To(ConsistOf("cache-memory-2"))
		w.moved("cache-memory-2", 2)
		w.awaitGone("cache-memory-2")
		w.awaitStage(2, v1alpha1.StageComplete)
		Expect(w.change(func(pool *v1alpha1.KVPool) {
			pool.Spec.Memory.Pools[0].Resources = &v1alpha1.Resources{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2")}}
		})).To(Succeed())
		w.awaitCondition(v1alpha1.ConditionSpecValid, metav1.ConditionTrue, v1alpha1.ReasonAccepted)
	})

	It("grows and is drained by operators that die after their first write, their second, and so on", Serial, func() {
		w := newWorld(ofRACE(2))
		w.up()
		lives := 0
		another := func() {
			lives++
			running.stop()
			running = startOperator("farpool/dataplane:v1")
		}
		DeferCleanup(func() {
			if running.mortal.Load() {
				running.stop()
				running = startOperator("farpool/dataplane:v1")
			}
		})
		// several is for the operators that die on the way: another one has to start each time.
		const several = 5
		until := func(so func(g Gomega)) {
			GinkgoHelper()
			Eventually(func(g Gomega) {
				if running.dead.Load() {
					another()
					running.dieAfter(lives)
				}
				open := 0
				for _, operation := range w.resizes() {
					if operation.Status.CompletionTime == nil {
						open++
					}
				}
				Expect(open).To(BeNumerically("<=", 1), "ResizeOperations are open")
				so(g)
			}, several*within, every).Should(Succeed())
		}
		for move, aim := range []int32{4, 2} {
			lives++
			running.dieAfter(lives)
			Expect(w.change(func(pool *v1alpha1.KVPool) { pool.Spec.Memory.Pools[0].Replicas = aim })).To(Succeed())
			w.pool.Spec.Memory.Pools[0].Replicas = aim
			for _, name := range w.nodeNames() {
				pod := &corev1.Pod{}
				until(func(g Gomega) { g.Expect(k8s.Get(w.ctx, w.key(name), pod)).To(Succeed()) })
				if pod.Status.Phase != corev1.PodRunning {
					w.run(name)
				}
			}
			until(func(g Gomega) {
				newest := w.newest()
				g.Expect(newest.Spec.Move).To(BeEquivalentTo(move + 1))
				for _, entry := range newest.Spec.Nodes {
					g.Expect(w.agents[entry.Name].epoch()).To(Equal(uint64(newest.Spec.Epoch)))
				}
				// An operator that dies behind this write may not have told the event.
				g.Expect(w.resizes()).To(ContainElement(HaveField("Status.Stage", v1alpha1.StageMoving)))
			})
			for _, name := range givers(w.newest()) {
				Expect(k8s.Get(w.ctx, w.key(name), &corev1.Pod{})).To(Succeed(), "its keys have not left")
				w.moved(name, int64(move+1))
			}
			until(func(g Gomega) {
				operations := w.resizes()
				g.Expect(operations).To(HaveLen(move + 1))
				for _, operation := range operations {
					g.Expect(operation.Status.Stage).To(Equal(v1alpha1.StageComplete))
				}
				var nodes v1alpha1.MemoryNodeList
				g.Expect(k8s.List(w.ctx, &nodes, client.InNamespace(w.pool.Namespace))).To(Succeed())
				g.Expect(nodes.Items).To(HaveLen(int(aim)))
			})
		}
		GinkgoWriter.Println("operators:", lives)
		Expect(lives).To(BeNumerically(">", 5))
		another()
		w.awaitCondition(v1alpha1.ConditionProgressing, metav1.ConditionFalse, v1alpha1.ReasonSettled)
		Expect(w.newest().Spec.Move).To(BeEquivalentTo(2))
		Expect(w.newest().Spec.Departures).To(BeEmpty())
		w.awaitEvent("ResizeOperation", v1alpha1.ReasonResizeComplete)
		w.settle()
	})

	It("goes on without what a memory node that gives has lost", func() {
		w := newWorld(ofRACE(2))
		w.up()
		w.resize(3)
		moving := w.moving(1)
		w.run("cache-memory-0")
		Eventually(func(g Gomega) {
			g.Expect(w.newest().Spec.Epoch).To(BeNumerically(">", moving.Spec.Epoch))
			g.Expect(givers(w.newest())).To(ConsistOf("cache-memory-1"))
			g.Expect(w.newest().Spec.Directory).To(Equal(moving.Spec.Directory), "what has left is at its new place")
		}, within, every).Should(Succeed())
		w.awaitNodeCondition("cache-memory-0", v1alpha1.ConditionDataLost, metav1.ConditionTrue, v1alpha1.ReasonTablesLost)
		w.moved("cache-memory-1", 1)
		w.awaitStage(3, v1alpha1.StageComplete)
		w.settle()
	})

	It("begins empty when its map is lost and a person gives up what it held", func() {
		w := newWorld(func(pool *v1alpha1.KVPool) {
			ofRACE(2)(pool)
			pool.Spec.DataPolicy = v1alpha1.DataPolicyStore
		})
		w.up()
		pods := map[string]types.UID{}
		for _, name := range w.nodeNames() {
			pods[name] = w.awaitPod(name).UID
		}
		w.agents["cache-memory-0"].update(func(facts *farpoolv1alpha1.Facts) { facts.MemoryNode.RecordedEpoch = 9 })
		w.awaitCondition(v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonMapMissing, ContainSubstring("kubectl -n "+w.pool.Namespace+" annotate kvpool cache --overwrite farpool.dev/begin-empty=9"))
		w.settle()
		Expect(w.change(func(pool *v1alpha1.KVPool) { pool.Annotations = map[string]string{v1alpha1.AnnotationBeginEmpty: "9"} })).To(Succeed())
		for _, name := range []string{"cache-memory-1", "cache-memory-0"} {
			Eventually(func() types.UID { return w.awaitPod(name).UID }, within, every).ShouldNot(Equal(pods[name]))
			w.run(name)
		}
		Expect(w.awaitEpoch(10).Spec.Nodes).To(HaveEach(HaveField("State", v1alpha1.NodeServing)))
		w.awaitCondition(v1alpha1.ConditionDegraded, metav1.ConditionFalse, v1alpha1.ReasonHealthy)
		w.awaitCondition(v1alpha1.ConditionAvailable, metav1.ConditionTrue, v1alpha1.ReasonServing)
		w.awaitEvent("MemoryNode", v1alpha1.ReasonDataLossAccepted)
		w.settle()
	})

	It("waits for a person where its spec says so", func() {
		w := newWorld(func(pool *v1alpha1.KVPool) {
			ofRACE(2)(pool)
			pool.Spec.Resize = &v1alpha1.ResizeSpec{Approval: v1alpha1.ApprovalRequired}
		})
		w.up()
		w.resize(3)
		planned := w.awaitStage(3, v1alpha1.StagePlanned)
		complete := meta.FindStatusCondition(planned.Status.Conditions, v1alpha1.ConditionComplete)
		Expect(complete.Reason).To(Equal(v1alpha1.ReasonApprovalRequired))
		Expect(complete.Message).To(ContainSubstring("kubectl -n " + w.pool.Namespace + " patch resizeoperation " + planned.Name))
		w.settle()
		Expect(w.newest().Spec.Move).To(BeZero())
		_, _, err := person.Run("patch", "-n", w.pool.Namespace, "resizeoperation", planned.Name, "--type=merge", "-p", `{"spec":{"approval":"Approved"}}`)
		Expect(err).NotTo(HaveOccurred())
		for _, name := range givers(w.moving(1)) {
			w.moved(name, 1)
		}
		Expect(w.awaitStage(3, v1alpha1.StageComplete).Spec.Approval).To(Equal(v1alpha1.ApprovalApproved))
		Expect(w.resizes()).To(HaveLen(1))
	})

	It("refuses ResizeOperations that it has not made", func() {
		w := newWorld(ofRACE(2))
		made := &v1alpha1.ResizeOperation{
			ObjectMeta: metav1.ObjectMeta{Namespace: w.pool.Namespace, Name: "by-hand"},
			Spec: v1alpha1.ResizeOperationSpec{PoolName: "cache", Approval: v1alpha1.ApprovalAutomatic, RequestedState: v1alpha1.RequestedRun,
				Pools: []v1alpha1.ResizePool{{Name: "memory", From: 2, To: 3}}},
		}
		Expect(k8s.Create(w.ctx, made)).To(Succeed())
		refused := func(reason, words string) {
			GinkgoHelper()
			Eventually(func(g Gomega) {
				g.Expect(k8s.Get(w.ctx, w.key("by-hand"), made)).To(Succeed())
				complete := meta.FindStatusCondition(made.Status.Conditions, v1alpha1.ConditionComplete)
				g.Expect(complete).NotTo(BeNil())
				g.Expect(complete.Status).To(Equal(metav1.ConditionFalse))
				g.Expect(complete.Reason).To(Equal(reason))
				g.Expect(complete.Message).To(ContainSubstring(words))
			}, within, every).Should(Succeed())
		}
		By("a pool that is not there")
		refused(v1alpha1.ReasonPoolNotFound, "no KVPool cache in namespace "+w.pool.Namespace)
		By("a pool that is")
		w.up()
		refused(v1alpha1.ReasonNotFollowed, "edit spec.memory.pools[].replicas of KVPool cache")
		w.settle()
		Expect(w.nodeNames()).To(HaveLen(2))
		Expect(w.newest().Spec.Nodes).To(HaveLen(2))
	})

	It("gets splits ahead of its keys, by one operator after the other", Serial, func() {
		w := newWorld(func(pool *v1alpha1.KVPool) {
			ofRACE(2)(pool)
			pool.Spec.Index.RACE = &v1alpha1.RACESpec{TablePercent: 25, Tables: 16}
			pool.Spec.Resize = &v1alpha1.ResizeSpec{Approval: v1alpha1.ApprovalRequired}
		})
		w.up()
		tables := func(of ...uint32) {
			for i, name := range w.nodeNames() {
				w.agents[name].update(func(facts *farpoolv1alpha1.Facts) { facts.MemoryNode.EvenTables = of[i] })
			}
		}
		tables(1, 2)
		Expect(w.change(func(pool *v1alpha1.KVPool) { pool.Spec.Index.RACE.LeastTables = 4 })).To(Succeed())
		planned := w.awaitStage(2, v1alpha1.StagePlanned)
		Expect(*planned.Spec.Tables).To(Equal(v1alpha1.ResizeTables{From: 1, To: 4}))
		Expect(w.newest().Spec.LeastTables).To(BeZero())
		_, _, err := person.Run("patch", "-n", w.pool.Namespace, "resizeoperation", planned.Name, "--type=merge", "-p", `{"spec":{"approval":"Approved"}}`)
		Expect(err).NotTo(HaveOccurred())
		Eventually(func() int32 { return w.newest().Spec.LeastTables }, within, every).Should(BeEquivalentTo(4))
		Expect(w.awaitStage(2, v1alpha1.StageSplitting).Status.TablesInUse).To(BeEquivalentTo(1))
		w.awaitEvent("KVPool", v1alpha1.ReasonSplitting)
		running.stop()
		running = startOperator("farpool/dataplane:v1")
		tables(4, 2)
		Eventually(func() int32 { return w.awaitStage(2, v1alpha1.StageSplitting).Status.TablesInUse }, within, every).Should(BeEquivalentTo(2))
		tables(4, 8)
		complete := w.awaitStage(2, v1alpha1.StageComplete)
		Expect(complete.Status.TablesInUse).To(BeEquivalentTo(4))
		Expect(complete.Status.Change).To(Equal("2 to 2, 1 to 4 tables each"))
		Expect(w.resizes()).To(HaveLen(1))
		Expect(w.change(func(pool *v1alpha1.KVPool) { pool.Spec.Index.RACE.LeastTables = 2 })).To(MatchError(ContainSubstring("can only be raised")))
		w.settle()
	})

	It("stays as it is after an abort, until it is told how to go on", func() {
		w := newWorld(func(pool *v1alpha1.KVPool) {
			ofRACE(2)(pool)
			pool.Spec.Resize = &v1alpha1.ResizeSpec{Approval: v1alpha1.ApprovalRequired}
		})
		w.up()
		w.resize(3)
		planned := w.awaitStage(3, v1alpha1.StagePlanned)
		patch := func(what string) error {
			_, _, err := person.Run("patch", "-n", w.pool.Namespace, "resizeoperation", planned.Name, "--type=merge", "-p", what)
			return err
		}
		Expect(patch(`{"spec":{"requestedState":"Abort"}}`)).To(Succeed())
		aborted := w.awaitStage(3, v1alpha1.StageAborted)
		Expect(meta.IsStatusConditionTrue(aborted.Status.Conditions, v1alpha1.ConditionHolding)).To(BeTrue())
		w.awaitCondition(v1alpha1.ConditionProgressing, metav1.ConditionFalse, v1alpha1.ReasonResizeAborted, ContainSubstring("kubectl -n "+w.pool.Namespace+" delete resizeoperation "+planned.Name))
		w.awaitGone("cache-memory-2")
		Eventually(func() string { return w.current().Status.Memory.Summary }, within, every).Should(Equal("2/2"))
		w.awaitEvent("ResizeOperation", v1alpha1.ReasonResizeAborted)
		Expect(patch(`{"spec":{"requestedState":"Run"}}`)).NotTo(Succeed())
		Expect(patch(`{"spec":{"approval":"Approved"}}`)).To(Succeed())
		w.settle()
		Expect(w.newest().Spec.Move).To(BeZero())

		By("having the same planned anew")
		_, _, err := person.Run("delete", "-n", w.pool.Namespace, "resizeoperation", planned.Name)
		Expect(err).NotTo(HaveOccurred())
		w.awaitPod("cache-memory-2")
		w.run("cache-memory-2")
		again := w.awaitStage(3, v1alpha1.StagePlanned)
		Expect(again.Spec.RequestedState).To(Equal(v1alpha1.RequestedRun))
		_, _, err = person.Run("patch", "-n", w.pool.Namespace, "resizeoperation", again.Name, "--type=merge", "-p", `{"spec":{"approval":"Approved"}}`)
		Expect(err).NotTo(HaveOccurred())
		for _, name := range givers(w.moving(1)) {
			w.moved(name, 1)
		}
		w.awaitStage(3, v1alpha1.StageComplete)
		w.settle()
	})

	It("finishes what it has begun when it is to have another number of them, and nothing while it is paused", func() {
		w := newWorld(ofRACE(2))
		w.up()
		w.resize(4)
		moving := w.moving(1)
		Expect(w.change(func(pool *v1alpha1.KVPool) { pool.Spec.Management = v1alpha1.ManagementPaused })).To(Succeed())
		w.awaitCondition(v1alpha1.ConditionProgressing, metav1.ConditionFalse, v1alpha1.ReasonPaused)
		for _, name := range givers(moving) {
			w.moved(name, 1)
		}
		w.settle()
		Expect(w.newest().Name).To(Equal(moving.Name))
		Expect(w.change(func(pool *v1alpha1.KVPool) {
			pool.Spec.Management = v1alpha1.ManagementManaged
			pool.Spec.Memory.Pools[0].Replicas = 2
		})).To(Succeed())
		w.pool.Spec.Memory.Pools[0].Replicas = 2
		back := w.moving(2)
		Expect(givers(back)).To(ConsistOf("cache-memory-2", "cache-memory-3"))
		w.awaitStage(4, v1alpha1.StageSuperseded)
		for _, name := range givers(back) {
			w.moved(name, 2)
		}
		w.awaitStage(2, v1alpha1.StageComplete)
		w.awaitGone("cache-memory-3")
		w.settle()
	})

	It("is scaled by a person who may scale it, until its spec says another number", func() {
		w := newWorld(nil)
		w.up()
		scale := func(what string, replicas int) {
			GinkgoHelper()
			_, stderr, err := person.Run("scale", "-n", w.pool.Namespace, what, fmt.Sprintf("--replicas=%d", replicas))
			said, _ := io.ReadAll(stderr)
			Expect(err).NotTo(HaveOccurred(), "%s", said)
		}
		scale("memorynodepool/cache-memory", 3)
		w.run("cache-memory-2")
		for _, name := range givers(w.moving(1)) {
			w.moved(name, 1)
		}
		w.awaitStage(3, v1alpha1.StageComplete)
		Expect(w.current().Spec.Memory.Pools[0].Replicas).To(BeEquivalentTo(2), "the KVPool's spec is a person's")
		shown := &autoscalingv1.Scale{}
		Eventually(func(g Gomega) {
			g.Expect(k8s.SubResource("scale").Get(w.ctx, &v1alpha1.MemoryNodePool{ObjectMeta: metav1.ObjectMeta{Namespace: w.pool.Namespace, Name: "cache-memory"}}, shown)).To(Succeed())
			g.Expect(shown.Spec.Replicas).To(BeEquivalentTo(3))
			g.Expect(shown.Status).To(Equal(autoscalingv1.ScaleStatus{Replicas: 3, Selector: "farpool.dev/memory-pool=memory,farpool.dev/pool=cache"}))
		}, within, every).Should(Succeed())
		var pods corev1.PodList
		selector, err := labels.Parse(shown.Status.Selector)
		Expect(err).NotTo(HaveOccurred())
		Expect(k8s.List(w.ctx, &pods, client.InNamespace(w.pool.Namespace), client.MatchingLabelsSelector{Selector: selector})).To(Succeed())
		Expect(pods.Items).To(HaveLen(3))

		scale("computeshardpool/cache-shards", 4)
		Eventually(func(g Gomega) {
			deployment := &appsv1.Deployment{}
			g.Expect(k8s.Get(w.ctx, w.key("cache-shards"), deployment)).To(Succeed())
			g.Expect(deployment.Spec.Replicas).To(HaveValue(BeEquivalentTo(4)))
		}, within, every).Should(Succeed())
		w.computeReady("cache-shards")
		w.awaitCondition(v1alpha1.ConditionProgressing, metav1.ConditionFalse, v1alpha1.ReasonSettled)
		Eventually(func() string { return w.current().Status.Compute.Summary }, within, every).Should(Equal("4/4"))
		w.settle()

		w.resize(1)
		for _, name := range givers(w.moving(2)) {
			w.moved(name, 2)
		}
		w.awaitStage(1, v1alpha1.StageComplete)
		w.settle()
	})

	It("grows as it fills", func() {
		w := newWorld(func(pool *v1alpha1.KVPool) {
			ofRACE(2)(pool)
			pool.Spec.Memory.Pools[0].Capacity = &v1alpha1.CapacityPolicy{FillPercent: 75, MaxReplicas: 3}
		})
		w.up()
		w.settle()
		w.agents["cache-memory-1"].update(func(facts *farpoolv1alpha1.Facts) { facts.MemoryNode.Keys = 80000 })
		w.run("cache-memory-2")
		w.awaitEvent("KVPool", v1alpha1.ReasonGrowing)
		for _, name := range givers(w.moving(1)) {
			w.moved(name, 1)
		}
		w.awaitStage(3, v1alpha1.StageComplete)
		Eventually(func(g Gomega) {
			pool := &v1alpha1.MemoryNodePool{}
			g.Expect(k8s.Get(w.ctx, w.key("cache-memory"), pool)).To(Succeed())
			g.Expect(pool.Spec.Replicas).To(BeEquivalentTo(3))
			g.Expect(meta.IsStatusConditionTrue(pool.Status.Conditions, v1alpha1.ConditionScalingLimited)).To(BeTrue(), "it is as full as before, and may not grow")
		}, within, every).Should(Succeed())
		w.awaitEvent("KVPool", v1alpha1.ReasonCeilingReached)
		w.settle()
	})

	It("lets no memory node be evicted with what it holds, unless its policy does", func() {
		for what, c := range map[string]struct {
			policy     v1alpha1.DataPolicy
			evacuation v1alpha1.Evacuation
			evicted    int
		}{
			"a Store":                         {v1alpha1.DataPolicyStore, v1alpha1.EvacuationAutomatic, 0},
			"a Store that is not evacuated":   {v1alpha1.DataPolicyStore, v1alpha1.EvacuationDisabled, 0},
			"a Cache, whose keys could leave": {v1alpha1.DataPolicyCache, v1alpha1.EvacuationAutomatic, 0},
			"a Cache that is not evacuated":   {v1alpha1.DataPolicyCache, v1alpha1.EvacuationDisabled, 1},
		} {
			By(what)
			w := newWorld(func(pool *v1alpha1.KVPool) {
				ofRACE(3)(pool)
				pool.Spec.DataPolicy, pool.Spec.Resize = c.policy, &v1alpha1.ResizeSpec{Evacuation: c.evacuation}
			})
			w.up()
			w.settle()
			if c.evicted == 0 {
				// Drained memory nodes no more than others.
				w.resize(2)
				Expect(givers(w.moving(1))).To(ConsistOf("cache-memory-2"))
				w.settle()
			}
			evicted := 0
			for _, name := range []string{"cache-memory-2", "cache-memory-1", "cache-memory-0"} {
				err := w.evict(name)
				if err == nil {
					evicted++
				} else {
					Expect(apierrors.IsTooManyRequests(err)).To(BeTrue(), "%v", err)
				}
			}
			Expect(evicted).To(Equal(c.evicted), what)
		}
	})

	DescribeTable("leaves a Kubernetes node that is about to be emptied", func(mark func(*corev1.Node)) {
		w := newWorld(nil)
		w.up()
		worker := &corev1.Node{ObjectMeta: metav1.ObjectMeta{GenerateName: "worker-"}}
		Expect(k8s.Create(w.ctx, worker)).To(Succeed())
		DeferCleanup(func() { _ = k8s.Delete(w.ctx, worker) })
		leaves := w.awaitPod("cache-memory-0")
		Expect(k8s.SubResource("binding").Create(w.ctx, leaves, &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: worker.Name}})).To(Succeed())
		Eventually(func() string { return w.node("cache-memory-0").Status.NodeName }, within, every).Should(Equal(worker.Name))
		mark(worker)
		Expect(k8s.Update(w.ctx, worker)).To(Succeed())

		Expect(givers(w.moving(1))).To(ConsistOf("cache-memory-0"))
		Expect(w.awaitStage(2, v1alpha1.StageMoving).Spec.Evacuates).To(ConsistOf("cache-memory-0"))
		budget := &policyv1.PodDisruptionBudget{}
		Expect(k8s.Get(w.ctx, w.key("cache-memory-nodes"), budget)).To(Succeed())
		Expect(budget.Spec.MinAvailable.IntValue()).To(Equal(2), "none is evicted")
		w.moved("cache-memory-0", 1)
		// A pod with a place ends when its kubelet says so.
		Eventually(func(g Gomega) {
			pod := w.awaitPod("cache-memory-0")
			g.Expect(pod.DeletionTimestamp).NotTo(BeNil())
			g.Expect(k8s.Delete(w.ctx, pod, client.GracePeriodSeconds(0))).To(Succeed())
		}, within, every).Should(Succeed())
		Eventually(func() types.UID { return w.awaitPod("cache-memory-0").UID }, within, every).ShouldNot(Equal(leaves.UID))
		w.run("cache-memory-0")
		for _, name := range givers(w.moving(2)) {
			w.moved(name, 2)
		}
		Expect(w.awaitStage(2, v1alpha1.StageComplete).Status.Change).To(Equal("2 to 2, 1 evacuated"))
		Expect(w.resizes()).To(HaveLen(1))
		w.settle()
	},
		Entry("by a cordon", func(worker *corev1.Node) { worker.Spec.Unschedulable = true }),
		Entry("by Karpenter", func(worker *corev1.Node) {
			worker.Spec.Taints = []corev1.Taint{{Key: "karpenter.sh/disrupted", Effect: corev1.TaintEffectNoSchedule}}
		}),
		Entry("by cluster-autoscaler", func(worker *corev1.Node) {
			worker.Spec.Taints = []corev1.Taint{{Key: "ToBeDeletedByClusterAutoscaler", Value: "1700000000", Effect: corev1.TaintEffectNoSchedule}}
		}))

	It("does not wait for a memory node that is gone for good", func() {
		w := newWorld(ofRACE(3))
		w.up()
		gone := w.awaitPod("cache-memory-2")
		Expect(k8s.Delete(w.ctx, gone, client.GracePeriodSeconds(0))).To(Succeed())
		Eventually(func() types.UID { return w.awaitPod("cache-memory-2").UID }, within, every).ShouldNot(Equal(gone.UID))
		Expect(w.change(func(pool *v1alpha1.KVPool) { pool.Spec.Memory.Pools[0].Replicas = 2 })).To(Succeed())
		w.awaitStage(2, v1alpha1.StageComplete)
		w.awaitGone("cache-memory-2")
		Expect(w.newest().Spec.Nodes).To(HaveLen(2))
		w.settle()
	})

	It("sees to the memory nodes that are there while the API server refuses the pod of another", func() {
		w := newWorld(ofRACE(2))
		w.up()
		w.settle()
		w.refusePod("cache-memory-2")
		Expect(w.change(func(pool *v1alpha1.KVPool) { pool.Spec.Memory.Pools[0].Replicas = 3 })).To(Succeed())
		w.awaitCondition(v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonApplyFailed, ContainSubstring("no room in the quota"))

		By("beginning another life of one of them")
		epoch := w.newest().Spec.Epoch
		restarted := w.run("cache-memory-1")
		Eventually(restarted.epoch, within, every).Should(Equal(uint64(epoch + 1)))
	})
})

// SPDX-License-Identifier: Apache-2.0

package kvpool

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	farpoolv1alpha1 "farpool.dev/farpool/api/gen/farpool/v1alpha1"
	"farpool.dev/farpool/api/v1alpha1"
)

func killed() *corev1.ContainerStateTerminated {
	return &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "Error", FinishedAt: metav1.NewTime(time.Now().Add(-3 * time.Second).Truncate(time.Second))}
}

// sharded is a pool that serves, with two shards that hold sessions and are written down.
func sharded(change func(*v1alpha1.KVPool)) (w *world, first, second *fakeAgent) {
	GinkgoHelper()
	w = newWorld(change)
	w.up()
	// Kubernetes nodes are in no namespace.
	first, second = w.shard("cache-shards-0", "worker-0-"+w.pool.Namespace), w.shard("cache-shards-1", "worker-1-"+w.pool.Namespace)
	w.opens(first, 1, 2)
	w.opens(second, 1, 2)
	w.written(first)
	w.written(second)
	w.settle()
	return w, first, second
}

// kubectl is what a person has.
func (w *world) kubectl(document string) error {
	GinkgoHelper()
	file, err := os.CreateTemp(GinkgoT().TempDir(), "*.yaml")
	Expect(err).NotTo(HaveOccurred())
	_, err = file.WriteString(document)
	Expect(err).NotTo(HaveOccurred())
	Expect(file.Close()).To(Succeed())
	_, stderr, err := person.Run("create", "-n", w.pool.Namespace, "-f", file.Name())
	if err != nil {
		text := make([]byte, 4096)
		n, _ := stderr.Read(text)
		return fmt.Errorf("%w: %s", err, text[:n])
	}
	return nil
}

func request(clients string) string {
	return "{apiVersion: farpool.dev/v1alpha1, kind: RepairLease, metadata: {name: by-hand}, spec: {poolRef: {name: cache}, cause: Requested, clients: [" + clients + "]}}"
}

var _ = Describe("a dead client", func() {
	It("whose container ended is fenced everywhere, repaired by another, and then there is not one write more", func() {
		w, first, second := sharded(nil)
		process := first.process()
		again := w.runShard("cache-shards-0", killed())
		lease := w.lease(v1alpha1.ConditionComplete, metav1.ConditionTrue, v1alpha1.ReasonComplete)
		Expect(lease.Spec.Cause).To(Equal(v1alpha1.CausePodTerminated))
		Expect(lease.Spec.Clients).To(HaveLen(1))
		Expect(lease.Spec.Clients[0].Process).To(Equal(v1alpha1.ProcessID(process)))
		Expect(lease.Spec.Clients[0].DiedAt).NotTo(BeNil())
		Expect(metav1.IsControlledBy(lease, w.pool)).To(BeTrue(), "it goes with its pool")
		Expect(lease.Finalizers).To(BeEmpty())
		s := lease.Status
		Expect(s.Fenced + " " + string(s.Step)).To(Equal("2/2 Complete"))
		Expect([]int64{s.SlotsRepaired, s.SegmentsAdopted, s.Left, int64(s.Attempts)}).To(Equal([]int64{2, 4, 0, 1}))
		Expect(s.Nodes).To(HaveLen(2))
		Expect(s.Nodes[0].SessionsEnded).To(Equal(int64(1)))
		Expect(s.ObservedGeneration).To(Equal(lease.Generation))
		for _, name := range w.nodeNames() {
			Expect(w.agents[name].hasFenced([]uint64{process})).To(BeTrue())
			Expect(w.agents[name].hasFenced([]uint64{second.process()})).To(BeFalse(), "one that lives was fenced")
		}
		w.awaitEvent("KVPool", v1alpha1.ReasonClientsDied)
		for _, reason := range []string{v1alpha1.ReasonFenced, v1alpha1.ReasonRepaired, v1alpha1.ReasonComplete} {
			w.awaitEvent("RepairLease", reason)
		}
		w.written(again)
		w.settle()
		for metric, want := range map[string]float64{"repair_leases": 0, "repair_backlog": 0, "processes_fenced_total": 1, "processes_repaired_total": 1, "repair_seconds": 1} {
			Eventually(func() float64 {
				value, _ := running.metric("farpool_operator_"+metric, w.pool.Namespace)
				return value
			}, within, every).Should(Equal(want), metric)
		}
		Expect(w.writtenDown()).To(HaveLen(2))
		before := len(running.writes.in(w.pool.Namespace))
		w.reconcile(20)
		Expect(running.writes.in(w.pool.Namespace)[before:]).To(BeEmpty())
	})

	It("whose pod is gone is known by what was written down of it", func() {
		w, first, _ := sharded(nil)
		process := first.process()
		first.stop()
		Expect(k8s.Delete(w.ctx, w.awaitPod("cache-shards-0"), client.GracePeriodSeconds(0))).To(Succeed())
		lease := w.lease(v1alpha1.ConditionComplete, metav1.ConditionTrue, v1alpha1.ReasonComplete)
		Expect(string(lease.Spec.Cause) + " " + lease.Spec.Clients[0].Name + " " + lease.Spec.Clients[0].Process).To(Equal("PodTerminated cache-shards-0 " + v1alpha1.ProcessID(process)))
		Expect(lease.Status.Shard).To(Equal("cache-shards-1"), "nobody else is ready")
	})

	It("that an earlier operator has written into the KVPool is known, and written down there no more", func() {
		w, first, second := sharded(nil)
		earlier := fmt.Sprintf(`{"apiVersion": "farpool.dev/v1alpha1", "kind": "KVPool", "status": {"processes": [
			{"process": "00000000000000aa", "name": "cache-shards-of-before", "podUID": "gone", "nodeName": "n"},
			{"process": %q, "name": "cache-shards-1", "podUID": "1"}]}}`, v1alpha1.ProcessID(second.process()))
		Expect(k8s.Status().Patch(w.ctx, w.current(), client.RawPatch(types.ApplyPatchType, []byte(earlier)),
			client.FieldOwner(v1alpha1.StatusFieldManager), client.ForceOwnership)).To(Succeed())
		lease := w.lease(v1alpha1.ConditionComplete, metav1.ConditionTrue, v1alpha1.ReasonComplete)
		Expect(lease.Spec.Clients).To(HaveLen(1))
		Expect(lease.Spec.Clients[0].Name + " " + lease.Spec.Clients[0].Process).To(Equal("cache-shards-of-before 00000000000000aa"))
		Eventually(func() []v1alpha1.ProcessStatus { return w.current().Status.Processes }, within, every).Should(BeEmpty())
		w.written(first)
		w.written(second)
		w.settle()
	})

	It("is not made of one that left in order, nor of one that bears no label any more", func() {
		w, first, second := sharded(nil)
		By("leaving in order")
		for _, name := range w.nodeNames() {
			w.agents[name].set(func() { delete(w.agents[name].sessions, first.process()) })
		}
		first.stop()
		pod := w.awaitPod("cache-shards-0")
		pod.Status.Phase = corev1.PodSucceeded
		pod.Status.ContainerStatuses[0].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 0}}
		w.podStatus("cache-shards-0", pod.Status)
		Eventually(func() int { return len(w.writtenDown()) }, within, every).Should(Equal(1))
		By("being taken out of the Deployment for a look")
		pod = w.awaitPod("cache-shards-1")
		pod.Labels = map[string]string{}
		Expect(k8s.Update(w.ctx, pod)).To(Succeed())
		w.settle()
		Expect(w.leases()).To(BeEmpty())
		Expect(w.agents["cache-memory-0"].hasFenced([]uint64{second.process()})).To(BeFalse())
	})

	It("is not one that is only silent; its Kubernetes node out of service makes it one", func() {
		w, first, second := sharded(nil)
		process := first.process()
		first.stop()
		second.stop()
		w.awaitCondition(v1alpha1.ConditionDataPlaneReachable, metav1.ConditionUnknown, v1alpha1.ReasonAgentUnreachable)
		w.settle()
		Expect(w.leases()).To(BeEmpty())
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "worker-0-" + w.pool.Namespace}}
		Expect(k8s.Create(w.ctx, node)).To(Succeed())
		DeferCleanup(func() { _ = k8s.Delete(w.ctx, node) })
		w.settle()
		Expect(w.leases()).To(BeEmpty())

		node.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeOutOfService, Value: "nodeshutdown", Effect: corev1.TaintEffectNoExecute}}
		Expect(k8s.Update(w.ctx, node)).To(Succeed())
		lease := w.lease(v1alpha1.ConditionRepaired, metav1.ConditionFalse, v1alpha1.ReasonNoComputeShards)
		Expect(string(lease.Spec.Cause) + " " + lease.Spec.Clients[0].Process).To(Equal("NodeOutOfService " + v1alpha1.ProcessID(process)))
		Expect(lease.Spec.Clients).To(HaveLen(1), "the other one is on another Kubernetes node")
		Expect(lease.Status.Left).To(Equal(int64(6)))
		w.settle()
		By("a shard that comes up and repairs")
		w.runShard("cache-shards-1", nil)
		w.lease(v1alpha1.ConditionComplete, metav1.ConditionTrue, v1alpha1.ReasonComplete)
	})

	It("that memory nodes report is repaired, whichever client it was", func() {
		w, _, _ := sharded(nil)
		w.agents["cache-memory-1"].update(func(facts *farpoolv1alpha1.Facts) {
			facts.MemoryNode.Dead = []*farpoolv1alpha1.DeadClient{{Process: 0x77, Name: strings.Repeat("é", 300), Slots: 1, Segments: 1}}
			facts.MemoryNode.DeadClients = 1
		})
		lease := w.lease(v1alpha1.ConditionComplete, metav1.ConditionTrue, v1alpha1.ReasonComplete)
		Expect(lease.Spec.Cause).To(Equal(v1alpha1.CauseMemoryNodeReport))
		Expect(lease.Spec.Clients[0].Process).To(Equal("0000000000000077"))
		Expect(lease.Status.SlotsRepaired).To(Equal(int64(1)))
		w.settle()
		Expect(w.leases()).To(HaveLen(1))
	})

	It("is repaired by another shard when one fails", func() {
		w, first, second := sharded(nil)
		third := w.shard("cache-shards-2", "worker-2")
		w.written(third)
		asked := make(chan string, 10)
		fail := func(name string, err error) func(context.Context, *farpoolv1alpha1.RepairRequest) (*farpoolv1alpha1.RepairResponse, error) {
			return func(ctx context.Context, request *farpoolv1alpha1.RepairRequest) (*farpoolv1alpha1.RepairResponse, error) {
				asked <- name
				if len(asked) == 1 {
					return nil, err
				}
				return w.repair(ctx, request)
			}
		}
		second.set(func() { second.repair = fail("cache-shards-1", status.Error(codes.Internal, "a check failed")) })
		third.set(func() { third.repair = fail("cache-shards-2", status.Error(codes.Internal, "a check failed")) })
		first.stop()
		Expect(k8s.Delete(w.ctx, w.awaitPod("cache-shards-0"), client.GracePeriodSeconds(0))).To(Succeed())
		lease := w.lease(v1alpha1.ConditionComplete, metav1.ConditionTrue, v1alpha1.ReasonComplete)
		Expect(lease.Status.Attempts).To(Equal(int32(2)))
		Expect(<-asked).NotTo(Equal(<-asked))
	})

	It("waits for every memory node to fence it", func() {
		w, first, _ := sharded(nil)
		process := first.process()
		silent := w.agents["cache-memory-1"]
		facts, _ := silent.snapshot()
		silent.stop()
		w.awaitNodeCondition("cache-memory-1", v1alpha1.ConditionReady, metav1.ConditionUnknown, v1alpha1.ReasonAgentUnreachable)
		w.runShard("cache-shards-0", killed())
		lease := w.lease(v1alpha1.ConditionFenced, metav1.ConditionFalse, v1alpha1.ReasonAgentUnreachable)
		Eventually(func() string { return w.leases()[0].Status.Fenced }, within, every).Should(Equal("1/2"))
		Expect(meta.FindStatusCondition(lease.Status.Conditions, v1alpha1.ConditionFenced).Message).To(ContainSubstring("cache-memory-1"))
		w.settle()
		Expect(meta.IsStatusConditionTrue(w.leases()[0].Status.Conditions, v1alpha1.ConditionRepaired)).To(BeFalse(), "repaired before it was fenced")
		By("the node being reached again")
		back := w.runAs("cache-memory-1", facts, "cache-memory-1-node-tls")
		back.set(func() { back.sessions[process] = nil })
		w.lease(v1alpha1.ConditionComplete, metav1.ConditionTrue, v1alpha1.ReasonComplete)
		Expect(back.hasFenced([]uint64{process})).To(BeTrue())
	})

	It("is repaired to the end by an operator that takes over", Serial, func() {
		w, first, _ := sharded(nil)
		process := first.process()
		// The second node does not answer for as long as the first operator lives.
		blocked := w.agents["cache-memory-1"]
		asked := make(chan struct{}, 10)
		blocked.set(func() {
			blocked.fence = func(ctx context.Context) error {
				asked <- struct{}{}
				<-ctx.Done()
				return ctx.Err()
			}
		})
		w.runShard("cache-shards-0", killed())
		Eventually(asked, within).Should(Receive())
		Eventually(func() string { return w.leases()[0].Status.Fenced }, within, every).Should(Equal("1/2"))
		running.stop()
		blocked.set(func() { blocked.fence = nil })
		running = startOperator("farpool/dataplane:v1")
		lease := w.lease(v1alpha1.ConditionComplete, metav1.ConditionTrue, v1alpha1.ReasonComplete)
		Expect(lease.Status.SlotsRepaired).To(Equal(int64(2)))
		Expect(blocked.hasFenced([]uint64{process})).To(BeTrue())
	})

	It("is told from one that left in order by an operator that was not there", Serial, func() {
		w, first, second := sharded(nil)
		third := w.shard("cache-shards-2", "worker-2-"+w.pool.Namespace)
		w.opens(third, 0, 0)
		w.written(third)
		w.settle()
		running.stop()
		By("two that close their sessions, one of them on one memory node alone, and one that dies")
		for i, name := range w.nodeNames() {
			node := w.agents[name]
			node.set(func() {
				delete(node.sessions, first.process())
				if i == 0 {
					delete(node.sessions, third.process())
				}
			})
			node.update(func(facts *farpoolv1alpha1.Facts) {
				facts.MemoryNode.Closed = []uint64{first.process()}
				if i == 0 {
					facts.MemoryNode.Closed = append(facts.MemoryNode.Closed, third.process())
				}
			})
		}
		for _, shard := range []*fakeAgent{first, second, third} {
			facts, _ := shard.snapshot()
			shard.stop()
			Expect(k8s.Delete(w.ctx, w.awaitPod(facts.GetName()), client.GracePeriodSeconds(0))).To(Succeed())
		}
		w.shard("cache-shards-3", "worker-3-"+w.pool.Namespace)
		running = startOperator("farpool/dataplane:v1")
		lease := w.lease(v1alpha1.ConditionComplete, metav1.ConditionTrue, v1alpha1.ReasonComplete)
		var dead []string
		for _, client := range lease.Spec.Clients {
			dead = append(dead, client.Process)
		}
		Expect(dead).To(ConsistOf(v1alpha1.ProcessID(second.process()), v1alpha1.ProcessID(third.process())))
		Eventually(func() int { return len(w.writtenDown()) }, within, every).Should(Equal(1))
		for _, name := range w.nodeNames() {
			Expect(w.agents[name].hasFenced([]uint64{second.process(), third.process()})).To(BeTrue())
			Expect(w.agents[name].hasFenced([]uint64{first.process()})).To(BeFalse(), "one that left in order was fenced")
		}
	})

	It("can be named by a person with kubectl", func() {
		w, first, second := sharded(nil)
		By("naming one that answers by its name, which is too easily a mistake")
		Expect(w.kubectl(request("{name: cache-shards-0}"))).To(Succeed())
		lease := w.lease(v1alpha1.ConditionFenced, metav1.ConditionFalse, v1alpha1.ReasonClientAnswers)
		Expect(meta.FindStatusCondition(lease.Status.Conditions, v1alpha1.ConditionFenced).Message).To(ContainSubstring("answers as process " + v1alpha1.ProcessID(first.process())))
		Expect(metav1.IsControlledBy(lease, w.pool)).To(BeTrue(), "it goes with its pool")
		Expect(k8s.Delete(w.ctx, lease)).To(Succeed())
		By("naming nobody")
		Expect(w.kubectl(request("{name: nobody}"))).To(Succeed())
		Expect(k8s.Delete(w.ctx, w.lease(v1alpha1.ConditionFenced, metav1.ConditionFalse, v1alpha1.ReasonClientUnknown))).To(Succeed())
		By("naming one that answers by its process")
		Expect(w.kubectl(request(fmt.Sprintf("{process: \"%016x\"}", first.process())))).To(Succeed())
		lease = w.lease(v1alpha1.ConditionComplete, metav1.ConditionTrue, v1alpha1.ReasonComplete)
		Expect(lease.Status.Shard).To(Equal("cache-shards-1"), "the dead do not repair")
		Expect(k8s.Delete(w.ctx, lease)).To(Succeed())
		By("naming a silent one by its name")
		process := second.process()
		second.stop()
		w.runShard("cache-shards-0", nil)
		w.awaitCondition(v1alpha1.ConditionDataPlaneReachable, metav1.ConditionUnknown, v1alpha1.ReasonAgentUnreachable)
		Expect(w.kubectl(request("{name: cache-shards-1}"))).To(Succeed())
		lease = w.lease(v1alpha1.ConditionComplete, metav1.ConditionTrue, v1alpha1.ReasonComplete)
		Expect(lease.Status.Processes).To(Equal([]string{v1alpha1.ProcessID(process)}))
		w.settle()
	})

	It("is asked for in words that the API server understands", func() {
		w := newWorld(nil)
		Expect(w.kubectl(request("{name: a}, {name: a}"))).To(MatchError(ContainSubstring("Duplicate value")))
		Expect(w.kubectl(request("{}"))).To(MatchError(ContainSubstring("a client has a name")))
		Expect(w.kubectl(request("{process: 0123456789012345}"))).To(MatchError(ContainSubstring("spec.clients[0].process")))
		Expect(w.kubectl(strings.Replace(request("{name: a}"), "Requested", "PodTerminated", 1))).To(MatchError(ContainSubstring("set cause to Requested")))
		Expect(w.kubectl(request("{name: a}"))).To(Succeed())
		By("a pool that is not there")
		lease := w.lease(v1alpha1.ConditionComplete, metav1.ConditionFalse, v1alpha1.ReasonPoolNotFound)
		Expect(meta.FindStatusCondition(lease.Status.Conditions, v1alpha1.ConditionFenced).Message).To(ContainSubstring("no KVPool cache in namespace " + w.pool.Namespace))
		w.settle()
		lease.Spec.Clients[0].Name = "b"
		Expect(k8s.Update(w.ctx, lease)).To(MatchError(ContainSubstring("a RepairLease never changes")))
		By("a pool that comes later")
		w.create()
		w.lease(v1alpha1.ConditionFenced, metav1.ConditionFalse, v1alpha1.ReasonClientUnknown)

		By("the sample")
		data, err := os.ReadFile("../../../../config/samples/repairlease.yaml")
		Expect(err).NotTo(HaveOccurred())
		sample := &v1alpha1.RepairLease{}
		Expect(yaml.UnmarshalStrict(data, sample)).To(Succeed())
		sample.Namespace = w.pool.Namespace
		Expect(k8s.Create(w.ctx, sample)).To(Succeed())
	})

	It("is given up with its pool", func() {
		w, _, _ := sharded(nil)
		asked, ended := make(chan struct{}, 10), make(chan struct{}, 10)
		blocked := w.agents["cache-memory-0"]
		blocked.set(func() {
			blocked.fence = func(ctx context.Context) error {
				asked <- struct{}{}
				<-ctx.Done()
				ended <- struct{}{}
				return ctx.Err()
			}
		})
		w.runShard("cache-shards-0", killed())
		Eventually(asked, within).Should(Receive())
		lease := w.lease(v1alpha1.ConditionFenced, metav1.ConditionFalse, v1alpha1.ReasonFencing)
		open, _ := running.metric("farpool_operator_repair_leases", w.pool.Namespace)
		Expect(open).To(Equal(1.0))
		Expect(metav1.IsControlledBy(lease, w.pool)).To(BeTrue())
		Expect(k8s.Delete(w.ctx, w.current())).To(Succeed())
		Eventually(ended, 10*time.Second).Should(Receive(), "a call outlives its pool")
		Eventually(func() bool {
			_, told := running.metric("farpool_operator_repair_leases", w.pool.Namespace)
			return told
		}, within, every).Should(BeFalse())
		Eventually(func() bool {
			return apierrors.IsNotFound(k8s.Get(w.ctx, client.ObjectKeyFromObject(w.pool), &v1alpha1.KVPool{}))
		}, within, every).Should(BeTrue())
		w.settle()
	})
})

var _ = Describe("a memory node", func() {
	It("that restarts over its memory has lost nothing", func() {
		w := newWorld(ofStore)
		w.up()
		before := w.node("cache-memory-0").Status.Incarnation
		facts := memoryNodeFacts(string(w.pool.UID), "cache-memory-0", 1_000_000_000_000_000_000+incarnations.Add(1))
		facts.MemoryNode.MemoryFresh = false
		restarted := w.runAs("cache-memory-0", facts, "cache-memory-0-node-tls")
		second := w.awaitEpoch(2)
		Expect(second.Spec.Nodes[0].State).To(Equal(v1alpha1.NodeServing))
		Expect(second.Spec.Nodes[0].MemoryIncarnation).To(Equal(before))
		Expect(second.Spec.Nodes[0].Incarnation).NotTo(Equal(before))
		Eventually(restarted.epoch, within, every).Should(Equal(uint64(2)))
		w.awaitEvent("KVPool", v1alpha1.ReasonWarmRestarted)
		w.awaitEvent("MemoryNode", v1alpha1.ReasonWarmRestarted)
		w.awaitCondition(v1alpha1.ConditionAvailable, metav1.ConditionTrue, v1alpha1.ReasonServing)
		w.awaitCondition(v1alpha1.ConditionDegraded, metav1.ConditionFalse, v1alpha1.ReasonHealthy)
		c := w.awaitNodeCondition("cache-memory-0", v1alpha1.ConditionDataLost, metav1.ConditionFalse, v1alpha1.ReasonNoLoss)
		Expect(c.ObservedGeneration).NotTo(BeZero())
		Expect(w.node("cache-memory-0").Status.LostIncarnation).To(BeEmpty())
		w.settle()
		_, counted := running.metric("farpool_operator_data_losses_total", w.pool.Namespace)
		Expect(counted).To(BeFalse())
		var list corev1.EventList
		Expect(k8s.List(w.ctx, &list, client.InNamespace(w.pool.Namespace))).To(Succeed())
		for _, event := range list.Items {
			Expect(event.Reason).NotTo(Equal(v1alpha1.ReasonDataLost))
		}

		By("losing it after all")
		w.run("cache-memory-0")
		Expect(w.awaitEpoch(3).Spec.Nodes[0].State).To(Equal(v1alpha1.NodeStopped))
		w.awaitNodeCondition("cache-memory-0", v1alpha1.ConditionDataLost, metav1.ConditionTrue, v1alpha1.ReasonStopped)
	})

	It("with rows that nothing explains makes its pool need a person", func() {
		w := newWorld(nil)
		w.up()
		w.agents["cache-memory-1"].update(func(facts *farpoolv1alpha1.Facts) { facts.MemoryNode.QuarantinedRows = 3 })
		w.awaitCondition(v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonRowsQuarantined, And(ContainSubstring("3 on memory node cache-memory-1"), ContainSubstring("farpool-fsck")))
		Expect(w.node("cache-memory-1").Status.QuarantinedRows).To(Equal(int64(3)))
		w.settle()
		rows, _ := running.metric("farpool_operator_quarantined_rows", w.pool.Namespace)
		Expect(rows).To(Equal(3.0))
	})
})

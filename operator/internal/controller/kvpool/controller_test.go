// SPDX-License-Identifier: Apache-2.0

package kvpool

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	farpoolv1alpha1 "farpool.dev/farpool/api/gen/farpool/v1alpha1"
	"farpool.dev/farpool/api/v1alpha1"
)

func isConflict(err error) bool { return apierrors.IsConflict(err) }

func ofStore(pool *v1alpha1.KVPool) { pool.Spec.DataPolicy = v1alpha1.DataPolicyStore }

var _ = Describe("a pool", func() {
	It("comes up: pods, certificates, one map told to every node, and then not one write more", func() {
		w := newWorld(nil)
		w.create()
		w.awaitCondition(v1alpha1.ConditionProgressing, metav1.ConditionTrue, v1alpha1.ReasonMemoryNodesPending, ContainSubstring("waiting for 2 of 2 memory nodes"))
		w.awaitCondition(v1alpha1.ConditionCertificatesReady, metav1.ConditionTrue, v1alpha1.ReasonIssued)
		w.awaitCondition(v1alpha1.ConditionDataPlaneReachable, metav1.ConditionUnknown, v1alpha1.ReasonNoAgents)

		w.run("cache-memory-0")
		w.awaitCondition(v1alpha1.ConditionDataPlaneReachable, metav1.ConditionTrue, v1alpha1.ReasonReachable)
		Expect(w.maps()).To(BeEmpty(), "a map needs every memory node")
		w.run("cache-memory-1")
		first := w.awaitEpoch(1)
		Expect(first.Spec.Nodes).To(HaveLen(2))
		Expect(first.Spec.Directory.Tables).To(Equal([]int32{0, 1}))
		for _, name := range w.nodeNames() {
			Eventually(w.agents[name].epoch, within, every).Should(Equal(uint64(1)))
			w.awaitNodeCondition(name, v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonServing)
			w.awaitNodeCondition(name, v1alpha1.ConditionDataLost, metav1.ConditionFalse, v1alpha1.ReasonNoLoss)
		}
		w.awaitCondition(v1alpha1.ConditionAvailable, metav1.ConditionFalse, v1alpha1.ReasonNoComputeShards)
		w.computeReady("cache-shards")
		w.awaitCondition(v1alpha1.ConditionAvailable, metav1.ConditionTrue, v1alpha1.ReasonServing)
		w.awaitCondition(v1alpha1.ConditionProgressing, metav1.ConditionFalse, v1alpha1.ReasonSettled)
		w.awaitCondition(v1alpha1.ConditionDegraded, metav1.ConditionFalse, v1alpha1.ReasonHealthy)
		w.awaitPublished()
		w.awaitEvent("KVPool", v1alpha1.ReasonEpochPublished)

		status := w.current().Status
		Expect(status.Endpoint).To(Equal("cache." + w.pool.Namespace + ".svc:6379"))
		Expect(status.Memory.Summary + " " + status.Compute.Summary).To(Equal("2/2 2/2"))
		Expect(status.ObservedGeneration).To(Equal(w.current().Generation))
		Expect(w.node("cache-memory-0").Status.Incarnation).To(Equal(first.Spec.Nodes[0].Incarnation))
		Expect(w.node("cache-memory-0").Status.Requests.Memory().String()).To(Equal(w.awaitPod("cache-memory-0").Spec.Containers[0].Resources.Requests.Memory().String()), "more than the 256Mi that it lends")
		Expect(w.node("cache-memory-0").Status.Requests.Memory().Cmp(resource.MustParse("256Mi"))).To(Equal(1))

		By("every node got the same secret")
		secrets := [][]byte{}
		for _, name := range w.nodeNames() {
			secrets = append(secrets, w.agents[name].secrets...)
		}
		Expect(secrets).To(HaveLen(4), "each of two nodes is told once in each of two phases")
		Expect(secrets[0]).To(Equal(secrets[1]))
		_, hash := w.kept()
		Expect(secrets[0]).To(Equal(hash.Data["pool-secret"]))

		By("idling")
		w.settle()
		before := len(running.writes.in(w.pool.Namespace))
		w.reconcile(50)
		Expect(running.writes.in(w.pool.Namespace)[before:]).To(BeEmpty())
	})

	It("comes up in many turns where the API server is slow, and then there is not one write more", Serial, func() {
		lasting := func(turn time.Duration) {
			running.reconciler.mutex.Lock()
			defer running.reconciler.mutex.Unlock()
			running.reconciler.turnLasts = turn
		}
		lasting(time.Nanosecond)
		DeferCleanup(lasting, turnLasts)
		w := newWorld(nil)
		var begun atomic.Int64
		running.meddling(func(*http.Request) error {
			running.reconciler.mutex.Lock()
			defer running.reconciler.mutex.Unlock()
			begun.Store(max(begun.Load(), int64(len(running.reconciler.rounds[client.ObjectKeyFromObject(w.pool)]))))
			return nil
		})
		w.up()
		w.settle()
		Expect(begun.Load()).To(BeNumerically(">=", 2*leastWrites), "some twenty objects, a few in each turn")
		w.awaitCondition(v1alpha1.ConditionDegraded, metav1.ConditionFalse, v1alpha1.ReasonHealthy)
		before := len(running.writes.in(w.pool.Namespace))
		w.reconcile(20)
		Expect(running.writes.in(w.pool.Namespace)[before:]).To(BeEmpty())
	})

	It("makes each object with one request, and takes over its fields when they are to change", func() {
		w := newWorld(nil)
		w.up()
		w.settle()
		var more []string
		for _, write := range running.writes.in(w.pool.Namespace) {
			// How many memory nodes are guarded is known when there are some.
			if !strings.HasPrefix(write, "POST ") && !strings.HasSuffix(write, "/status") && !strings.Contains(write, "/poddisruptionbudgets/") {
				more = append(more, write)
			}
		}
		Expect(more).To(BeEmpty())
		managers := func() (managers []string) {
			deployment := &appsv1.Deployment{}
			Expect(k8s.Get(w.ctx, w.key("cache-shards"), deployment)).To(Succeed())
			for _, entry := range deployment.ManagedFields {
				if entry.Subresource == "" {
					managers = append(managers, entry.Manager+" "+string(entry.Operation))
				}
			}
			return managers
		}
		Expect(managers()).To(HaveExactElements(MatchRegexp("^farpool-operator:[0-9a-f]{32} Update$")))
		Expect(w.change(func(pool *v1alpha1.KVPool) { pool.Spec.Compute.Pools[0].Resources = &v1alpha1.Resources{} })).To(Succeed())
		Expect(w.change(func(pool *v1alpha1.KVPool) { pool.Spec.Compute.Pools[0].Workers = 2 })).To(Succeed())
		Eventually(managers, within, every).Should(HaveExactElements("farpool-operator Apply"))
		w.settle()
	})

	It("keeps secrets in Secrets, and owns everything it makes", func() {
		w := newWorld(func(pool *v1alpha1.KVPool) {
			pool.Spec.Security.RESP = &v1alpha1.RESPSpec{TLS: v1alpha1.TLSSpec{Mode: v1alpha1.TLSGenerated}}
		})
		w.up()
		var hidden []string
		authority, hash := w.kept()
		for _, secret := range []*corev1.Secret{authority, hash, w.secret("cache-password"), w.secret("cache-memory-0-node-tls"), w.secret("cache-shards-client-tls"), w.secret("cache-resp-tls")} {
			for key, value := range secret.Data {
				if key == "ca.crt" || key == "tls.crt" {
					continue
				}
				hidden = append(hidden, string(value), base64.StdEncoding.EncodeToString(value), hex.EncodeToString(value))
			}
		}
		for _, list := range []client.ObjectList{&v1alpha1.KVPoolList{}, &v1alpha1.MemoryNodeList{}, &v1alpha1.ShardMapList{}, &corev1.PodList{}, &corev1.ConfigMapList{}, &corev1.ServiceList{},
			&appsv1.DeploymentList{}, &policyv1.PodDisruptionBudgetList{}, &networkingv1.NetworkPolicyList{}, &corev1.EventList{}, &corev1.SecretList{}} {
			Expect(k8s.List(w.ctx, list, client.InNamespace(w.pool.Namespace))).To(Succeed())
			objects, err := meta.ExtractList(list)
			Expect(err).NotTo(HaveOccurred())
			for _, item := range objects {
				object := item.(client.Object)
				if _, isSecret := object.(*corev1.Secret); !isSecret {
					raw, err := json.Marshal(object)
					Expect(err).NotTo(HaveOccurred())
					for _, secret := range hidden {
						Expect(bytes.Contains(raw, []byte(secret))).To(BeFalse(), "%T %s holds a secret", object, object.GetName())
					}
				}
				switch object := object.(type) {
				case *v1alpha1.KVPool, *corev1.Event:
				case *corev1.ConfigMap:
					if object.Name != "kube-root-ca.crt" {
						Expect(metav1.IsControlledBy(object, w.current())).To(BeTrue(), object.Name)
					}
				case *corev1.Pod:
					Expect(metav1.IsControlledBy(object, w.node(object.Name))).To(BeTrue(), object.Name)
					Expect(*object.Spec.AutomountServiceAccountToken).To(BeFalse())
				default:
					Expect(metav1.IsControlledBy(object, w.current())).To(BeTrue(), "%T %s", object, object.GetName())
				}
				Expect(object.GetFinalizers()).To(BeEmpty(), "nothing outside the cluster is at stake")
			}
		}
	})

	It("of policy Cache goes on with empty tables when a memory node lost its memory", func() {
		w := newWorld(nil)
		w.up()
		lost := w.node("cache-memory-1").Status.Incarnation
		restarted := w.run("cache-memory-1")
		second := w.awaitEpoch(2)
		Expect(second.Spec.Nodes[1].State).To(Equal(v1alpha1.NodeServing))
		Expect(second.Spec.Nodes[1].Incarnation).NotTo(Equal(lost))
		Expect(second.Spec.Directory).To(Equal(w.awaitEpoch(2).Spec.Directory))
		Eventually(restarted.epoch, within, every).Should(Equal(uint64(2)))
		Eventually(w.agents["cache-memory-0"].epoch, within, every).Should(Equal(uint64(2)))
		w.awaitNodeCondition("cache-memory-1", v1alpha1.ConditionDataLost, metav1.ConditionTrue, v1alpha1.ReasonTablesLost, ContainSubstring(lost))
		Expect(w.node("cache-memory-1").Status.LostIncarnation).To(Equal(lost))
		w.awaitEvent("KVPool", v1alpha1.ReasonTablesLost)
		w.awaitEvent("MemoryNode", v1alpha1.ReasonTablesLost)
		w.awaitCondition(v1alpha1.ConditionAvailable, metav1.ConditionTrue, v1alpha1.ReasonServing)
		w.awaitCondition(v1alpha1.ConditionDegraded, metav1.ConditionFalse, v1alpha1.ReasonHealthy)
		w.awaitNodeCondition("cache-memory-0", v1alpha1.ConditionDataLost, metav1.ConditionFalse, v1alpha1.ReasonNoLoss)
		w.settle()
		losses, _ := running.metric("farpool_operator_data_losses_total", w.pool.Namespace)
		Expect(losses).To(Equal(1.0))

		By("keeping three maps")
		for epoch := int64(3); epoch <= 5; epoch++ {
			w.run("cache-memory-0")
			w.awaitEpoch(epoch)
		}
		Eventually(func() int { return len(w.maps()) }, within, every).Should(Equal(3))
		w.settle()
	})

	It("of policy Store stops tables whose memory was lost until a person accepts that", func() {
		w := newWorld(ofStore)
		w.up()
		lost := w.node("cache-memory-0").Status.Incarnation
		w.run("cache-memory-0")
		second := w.awaitEpoch(2)
		Expect(second.Spec.Nodes[0].State).To(Equal(v1alpha1.NodeStopped))
		Expect(second.Spec.Nodes[1].State).To(Equal(v1alpha1.NodeServing))
		w.awaitCondition(v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonDataLost, ContainSubstring("annotate memorynode cache-memory-0 --overwrite farpool.dev/accept-data-loss="+second.Spec.Nodes[0].Incarnation))
		w.awaitCondition(v1alpha1.ConditionAvailable, metav1.ConditionFalse, v1alpha1.ReasonTablesStopped)
		w.awaitNodeCondition("cache-memory-0", v1alpha1.ConditionDataLost, metav1.ConditionTrue, v1alpha1.ReasonStopped)
		w.awaitEvent("MemoryNode", v1alpha1.ReasonDataLost)
		w.awaitEvent("KVPool", v1alpha1.ReasonDataLost)

		By("accepting another loss than this one, which changes nothing")
		w.annotate("cache-memory-0", lost)
		w.settle()
		Expect(w.current().Status.ShardMap.Epoch).To(Equal(int64(2)))

		By("losing it once more before anyone decides")
		w.run("cache-memory-0")
		third := w.awaitEpoch(3)
		Expect(third.Spec.Nodes[0].State).To(Equal(v1alpha1.NodeStopped))

		By("accepting")
		w.annotate("cache-memory-0", third.Spec.Nodes[0].Incarnation)
		Expect(w.awaitEpoch(4).Spec.Nodes[0].State).To(Equal(v1alpha1.NodeServing))
		w.awaitNodeCondition("cache-memory-0", v1alpha1.ConditionDataLost, metav1.ConditionTrue, v1alpha1.ReasonDataLossAccepted)
		w.awaitCondition(v1alpha1.ConditionAvailable, metav1.ConditionTrue, v1alpha1.ReasonServing)
		w.awaitCondition(v1alpha1.ConditionDegraded, metav1.ConditionFalse, v1alpha1.ReasonHealthy)
		w.awaitEvent("MemoryNode", v1alpha1.ReasonDataLossAccepted)
		w.settle()
	})

	It("does not take an unreachable node for dead", func() {
		w := newWorld(nil)
		w.up()
		agent := w.agents["cache-memory-1"]
		facts, _ := agent.snapshot()
		agent.stop()
		w.awaitCondition(v1alpha1.ConditionDataPlaneReachable, metav1.ConditionUnknown, v1alpha1.ReasonAgentUnreachable)
		w.awaitNodeCondition("cache-memory-1", v1alpha1.ConditionReady, metav1.ConditionUnknown, v1alpha1.ReasonAgentUnreachable)
		By("believing the kubelet that it serves")
		w.awaitCondition(v1alpha1.ConditionAvailable, metav1.ConditionTrue, v1alpha1.ReasonServing)
		Expect(w.awaitPod("cache-memory-1").DeletionTimestamp).To(BeNil())
		Expect(w.maps()).To(HaveLen(1))
		w.settle()

		By("losing the other one meanwhile: the unreachable node keeps its entry")
		w.run("cache-memory-0")
		second := w.awaitEpoch(2)
		Expect(second.Spec.Nodes[1]).To(Equal(w.maps()[0].Spec.Nodes[1]))

		By("coming back as it was, and being told the epoch")
		w.runAs("cache-memory-1", facts, "cache-memory-1-node-tls")
		Eventually(w.agents["cache-memory-1"].epoch, within, every).Should(Equal(uint64(2)))
		w.awaitCondition(v1alpha1.ConditionDataPlaneReachable, metav1.ConditionTrue, v1alpha1.ReasonReachable)
		w.awaitNodeCondition("cache-memory-1", v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonServing)
		w.awaitNodeCondition("cache-memory-1", v1alpha1.ConditionDataLost, metav1.ConditionFalse, v1alpha1.ReasonNoLoss)
		w.settle()
	})

	It("has every node that answers hold a map before one is told to follow it", func() {
		w := newWorld(nil)
		w.up()
		refused, silent := status.Error(codes.AlreadyExists, "its words"), status.Error(codes.Unavailable, "its silence")
		// asked is what the second node is asked for, in order; answers are what it says to each phase.
		var mutex sync.Mutex
		var asked []string
		answers := map[string]error{}
		agent := w.agents["cache-memory-1"]
		agent.mutex.Lock()
		agent.publish = func(request *farpoolv1alpha1.PublishMapRequest) error {
			mutex.Lock()
			defer mutex.Unlock()
			phase := fmt.Sprintf("prepare=%v", request.GetPrepare())
			asked = append(asked, phase)
			return answers[phase]
		}
		agent.mutex.Unlock()
		answer := func(what string, failure error) {
			mutex.Lock()
			defer mutex.Unlock()
			answers[what], asked = failure, nil
		}
		sofar := func() []string {
			mutex.Lock()
			defer mutex.Unlock()
			return slices.Clone(asked)
		}
		// Another life of a node wants an epoch of its own.
		another := func() {
			facts, _ := w.agents["cache-memory-0"].snapshot()
			facts = proto.CloneOf(facts)
			facts.Incarnation++
			facts.Epoch, facts.Ready = 0, false
			facts.MemoryNode.MemoryFresh = false
			w.runAs("cache-memory-0", facts, "cache-memory-0-node-tls")
		}
		By("one refusing")
		answer("prepare=true", refused)
		another()
		second := w.awaitEpoch(2)
		w.awaitCondition(v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonEpochConflict, And(ContainSubstring("prepare epoch 2 to cache-memory-1"), ContainSubstring("its words")))
		Eventually(func() uint64 {
			facts, _ := w.agents["cache-memory-0"].snapshot()
			return facts.GetMemoryNode().GetMap().GetEpoch()
		}, within, every).Should(Equal(uint64(2)))
		Consistently(func(g Gomega) {
			g.Expect(w.agents["cache-memory-0"].epoch()).To(BeZero())
			g.Expect(w.agents["cache-memory-1"].epoch()).To(Equal(uint64(1)))
		}, time.Second, every).Should(Succeed())
		Expect(k8s.Get(w.ctx, w.key(second.Name), second)).To(Succeed())
		prepared := meta.FindStatusCondition(second.Status.Conditions, v1alpha1.ConditionPrepared)
		Expect(prepared).NotTo(BeNil())
		Expect(prepared.Status).To(Equal(metav1.ConditionFalse))
		Expect(prepared.Message).To(ContainSubstring("cache-memory-1"))

		By("refusing no more")
		answer("prepare=true", nil)
		w.awaitPublished()
		w.awaitCondition(v1alpha1.ConditionDegraded, metav1.ConditionFalse, v1alpha1.ReasonHealthy)
		Expect(k8s.Get(w.ctx, w.key(second.Name), second)).To(Succeed())
		Expect(meta.IsStatusConditionTrue(second.Status.Conditions, v1alpha1.ConditionPrepared)).To(BeTrue())
		Expect(sofar()[0]).To(Equal("prepare=true"))
		Expect(sofar()).To(ContainElement("prepare=false"))
		w.settle()

		By("one not answering, for which no other waits")
		answer("prepare=true", silent)
		another()
		w.awaitEpoch(3)
		Eventually(w.agents["cache-memory-0"].epoch, within, every).Should(Equal(uint64(3)))
		Expect(w.agents["cache-memory-1"].epoch()).To(Equal(uint64(2)))
		Expect(sofar()).NotTo(ContainElement("prepare=false"))
		answer("prepare=true", nil)
		w.awaitPublished()

		By("one not answering in the second phase: the next reconcile goes on from what nodes hold")
		answer("prepare=false", silent)
		another()
		w.awaitEpoch(4)
		Eventually(w.agents["cache-memory-0"].epoch, within, every).Should(Equal(uint64(4)))
		Expect(w.agents["cache-memory-1"].epoch()).To(Equal(uint64(3)))
		answer("prepare=false", nil)
		w.awaitPublished()
		Expect(w.agents["cache-memory-1"].epoch()).To(Equal(uint64(4)))
		w.settle()
	})

	It("adopts the epoch that nodes hold after a restored backup", func() {
		w := newWorld(nil)
		w.up()
		w.run("cache-memory-0")
		w.awaitEpoch(2)
		w.run("cache-memory-0")
		third := w.awaitEpoch(3)
		for _, name := range w.nodeNames() {
			Eventually(w.agents[name].epoch, within, every).Should(Equal(uint64(3)))
		}
		w.settle()
		By("losing the newest two maps")
		for _, epoch := range []int64{2, 3} {
			Expect(k8s.Delete(w.ctx, &v1alpha1.ShardMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.pool.Namespace, Name: v1alpha1.ShardMapName("cache", epoch)}})).To(Succeed())
		}
		Eventually(func(g Gomega) {
			adopted := &v1alpha1.ShardMap{}
			g.Expect(k8s.Get(w.ctx, w.key(third.Name), adopted)).To(Succeed())
			g.Expect(adopted.UID).NotTo(Equal(third.UID))
			g.Expect(adopted.Spec).To(Equal(third.Spec))
		}, within, every).Should(Succeed())
		w.awaitEvent("KVPool", v1alpha1.ReasonEpochAdopted)
		w.awaitPublished()
		w.settle()
		Expect(w.current().Status.ShardMap.Epoch).To(Equal(int64(3)))
	})

	It("replaces a map that a node holds under the same epoch with other content", func() {
		w := newWorld(nil)
		w.up()
		held := w.signed(&farpoolv1alpha1.ShardMap{PoolUid: string(w.pool.UID), Epoch: 1})
		w.agents["cache-memory-0"].update(func(facts *farpoolv1alpha1.Facts) {
			facts.MemoryNode.Map = held
		})
		w.awaitEpoch(2)
		w.awaitEvent("KVPool", v1alpha1.ReasonEpochConflict)
		for _, name := range w.nodeNames() {
			Eventually(w.agents[name].epoch, within, every).Should(Equal(uint64(2)))
		}
		w.settle()
	})

	It("gives its pods RDMA, and says what they lack of it", func() {
		w := newWorld(func(pool *v1alpha1.KVPool) {
			pool.Spec.Network = roce(&v1alpha1.AttachmentSpec{Type: v1alpha1.AttachmentHostNetwork, HostNetwork: &v1alpha1.HostNetworkAttachment{ResourceName: "rdma/hca"}})
			pool.Spec.Memory.Pools[0].HugePages = v1alpha1.HugePages2Mi
		})
		w.create()
		pod := w.awaitPod("cache-memory-0")
		Expect(pod.Spec.Containers[0].Resources.Limits).To(And(HaveKey(corev1.ResourceName("rdma/hca")), HaveKey(corev1.ResourceName("hugepages-2Mi"))))
		w.podStatus("cache-memory-0", corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: "0/3 nodes are available: 3 Insufficient rdma/hca."}}})
		w.awaitCondition(v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonRDMAMissing, And(ContainSubstring("memory node cache-memory-0"), ContainSubstring("install the device plugin that offers it")))
		w.awaitNodeCondition("cache-memory-0", v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonRDMAMissing)
		w.settle()

		By("finding the device, once there is one, of no use")
		w.podStatus("cache-memory-0", corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{
			Name: "memory-node", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}},
			LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Message: "farpool-memory-node: --wire verbs: rxe0 has no RoCEv2 address"}}}}})
		Eventually(func() string {
			return w.awaitNodeCondition("cache-memory-0", v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonRDMAMissing).Message
		}, within, every).Should(And(ContainSubstring("rxe0 has no RoCEv2 address"), ContainSubstring("-- farpool-doctor")))
		w.settle()

		By("serving with it")
		w.runAll()
		w.awaitNodeCondition("cache-memory-0", v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonServing)
		w.settle()
	})

	It("says which network its pods do not get, and in whose words", func() {
		w := newWorld(func(pool *v1alpha1.KVPool) {
			pool.Spec.Network = roce(&v1alpha1.AttachmentSpec{Type: v1alpha1.AttachmentSharedDevicePlugin,
				SharedDevicePlugin: &v1alpha1.SharedDevicePluginAttachment{ResourceName: "rdma/hca", Network: "roec"}})
		})
		w.create()
		pod := w.awaitPod("cache-memory-0")
		Expect(pod.Annotations).To(HaveKeyWithValue("k8s.v1.cni.cncf.io/networks", "roec@rdma0"))
		Expect(k8s.SubResource("binding").Create(w.ctx, pod, &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: "worker"}})).To(Succeed())
		refused := func(since time.Duration, words string) {
			Expect(k8s.Create(w.ctx, &corev1.Event{
				ObjectMeta:     metav1.ObjectMeta{GenerateName: pod.Name, Namespace: pod.Namespace},
				InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
				Reason:         "FailedCreatePodSandBox", Type: corev1.EventTypeWarning, Message: words, LastTimestamp: metav1.NewTime(time.Now().Add(-since)),
			})).To(Succeed())
		}
		refused(0, `failed (add): "roec" not found`)
		refused(time.Minute, "failed (add): an earlier trouble")
		degraded := w.awaitCondition(v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonRDMAMissing)
		Expect(degraded.Message).To(And(ContainSubstring("memory node cache-memory-0"), ContainSubstring("NetworkAttachmentDefinition roec exists in namespace "+w.pool.Namespace),
			HaveSuffix(`The kubelet says: "roec" not found`)))
		w.awaitNodeCondition("cache-memory-0", v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonRDMAMissing)
		w.awaitEvent("KVPool", v1alpha1.ReasonRDMAMissing)
		w.awaitEvent("MemoryNode", v1alpha1.ReasonRDMAMissing)
		w.settle()

		By("serving once there is one")
		w.runAll()
		w.awaitNodeCondition("cache-memory-0", v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonServing)
		w.awaitCondition(v1alpha1.ConditionDegraded, metav1.ConditionFalse, v1alpha1.ReasonHealthy)
	})

	It("says why a memory node finds no place, and where to put that right", func() {
		w := newWorld(func(pool *v1alpha1.KVPool) { pool.Spec.Memory.Pools[0].Lend = resource.MustParse("4Ti") })
		w.create()
		pod := w.awaitPod("cache-memory-0")
		w.podStatus("cache-memory-0", corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: "0/3 nodes are available: 3 Insufficient memory."}}})
		w.awaitCondition(v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonNodeUnschedulable, And(ContainSubstring("cache-memory-0 lends 4Ti"), ContainSubstring("3 Insufficient memory"), ContainSubstring("pod.nodeSelector and pod.tolerations of memory pool memory")))
		w.awaitNodeCondition("cache-memory-0", v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonNodeUnschedulable)
		w.awaitCondition(v1alpha1.ConditionProgressing, metav1.ConditionTrue, v1alpha1.ReasonMemoryNodesPending, ContainSubstring("3 Insufficient memory"))
		w.settle()

		By("widening the selector, which replaces the pod that has no place")
		Expect(w.change(func(pool *v1alpha1.KVPool) {
			pool.Spec.Memory.Pools[0].Pod = &v1alpha1.PodOptions{NodeSelector: map[string]string{"farpool.dev/role": "memory"}}
		})).To(Succeed())
		Eventually(func(g Gomega) {
			now := &corev1.Pod{}
			g.Expect(k8s.Get(w.ctx, w.key("cache-memory-0"), now)).To(Succeed())
			g.Expect(now.UID).NotTo(Equal(pod.UID))
			g.Expect(now.Spec.NodeSelector).To(HaveKeyWithValue("farpool.dev/role", "memory"))
		}, within, every).Should(Succeed())
	})

	It("leaves alone what is somebody else's", func() {
		w := newWorld(nil)
		foreign := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: w.pool.Namespace, Name: "cache"},
			Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}
		Expect(k8s.Create(w.ctx, foreign)).To(Succeed())
		Expect(k8s.Create(w.ctx, w.pool)).To(Succeed())
		w.awaitCondition(v1alpha1.ConditionSpecValid, metav1.ConditionFalse, v1alpha1.ReasonNameConflict, And(ContainSubstring("Service "+w.pool.Namespace+"/cache"), ContainSubstring("delete or rename it")))
		w.awaitCondition(v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonNameConflict)
		untouched := &corev1.Service{}
		Expect(k8s.Get(w.ctx, w.key("cache"), untouched)).To(Succeed())
		Expect(untouched.ResourceVersion).To(Equal(foreign.ResourceVersion))

		Expect(k8s.Delete(w.ctx, foreign)).To(Succeed())
		w.awaitCondition(v1alpha1.ConditionSpecValid, metav1.ConditionTrue, v1alpha1.ReasonAccepted)
		w.awaitPod("cache-memory-0")
	})

	It("keeps compute shards while none can be made in their place", func() {
		w := newWorld(nil)
		w.up()
		labels := map[string]string{"app": "other"}
		foreign := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: w.pool.Namespace, Name: "cache-other"},
			Spec: appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "other", Image: "other"}}}}}}
		Expect(k8s.Create(w.ctx, foreign)).To(Succeed())
		Expect(w.change(func(pool *v1alpha1.KVPool) {
			pool.Spec.Compute.Pools = []v1alpha1.ComputePool{{Name: "other", Replicas: 2, Workers: 1}}
		})).To(Succeed())
		w.awaitCondition(v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonNameConflict, ContainSubstring("Deployment "+w.pool.Namespace+"/cache-other"))
		serving := &appsv1.Deployment{}
		Expect(k8s.Get(w.ctx, w.key("cache-shards"), serving)).To(Succeed())
		Expect(serving.DeletionTimestamp).To(BeNil())

		Expect(k8s.Delete(w.ctx, foreign)).To(Succeed())
		Eventually(func() bool { return apierrors.IsNotFound(k8s.Get(w.ctx, w.key("cache-shards"), serving)) }, within, every).Should(BeTrue())
		ours := &appsv1.Deployment{}
		Expect(k8s.Get(w.ctx, w.key("cache-other"), ours)).To(Succeed())
		Expect(*ours.Spec.Replicas).To(Equal(int32(2)))
	})

	It("scales compute shards, and takes away what is no longer asked for", func() {
		w := newWorld(func(pool *v1alpha1.KVPool) {
			pool.Spec.Security.RESP = &v1alpha1.RESPSpec{TLS: v1alpha1.TLSSpec{Mode: v1alpha1.TLSGenerated}}
		})
		w.up()
		Expect(w.change(func(pool *v1alpha1.KVPool) {
			pool.Spec.Compute.Pools = []v1alpha1.ComputePool{{Name: "other", Replicas: 3, Workers: 2}}
			pool.Spec.Security = v1alpha1.SecuritySpec{Password: v1alpha1.PasswordNone}
		})).To(Succeed())
		Eventually(func(g Gomega) {
			var deployments appsv1.DeploymentList
			g.Expect(k8s.List(w.ctx, &deployments, client.InNamespace(w.pool.Namespace))).To(Succeed())
			g.Expect(deployments.Items).To(HaveLen(1))
			g.Expect(deployments.Items[0].Name).To(Equal("cache-other"))
			g.Expect(*deployments.Items[0].Spec.Replicas).To(Equal(int32(3)))
			config := &corev1.ConfigMap{}
			g.Expect(k8s.Get(w.ctx, w.key("cache-config"), config)).To(Succeed())
			g.Expect(config.Data).To(HaveLen(1), "memory nodes read no file")
			g.Expect(config.Data["other.toml"]).To(And(ContainSubstring("threads = 2"), Not(ContainSubstring("password"))))
		}, within, every).Should(Succeed())
		w.awaitCondition(v1alpha1.ConditionProgressing, metav1.ConditionTrue, v1alpha1.ReasonComputeRollingOut)
		// Until the rollout is through, a pod of before may have to be started again.
		secrets := []string{"cache-password", "cache-resp-tls"}
		for _, name := range secrets {
			Expect(k8s.Get(w.ctx, w.key(name), &corev1.Secret{})).To(Succeed(), name)
		}
		w.computeReady("cache-other")
		w.awaitCondition(v1alpha1.ConditionProgressing, metav1.ConditionFalse, v1alpha1.ReasonSettled)
		for _, name := range secrets {
			Eventually(func() bool { return apierrors.IsNotFound(k8s.Get(w.ctx, w.key(name), &corev1.Secret{})) }, within, every).Should(BeTrue(), name)
		}
		Expect(w.change(func(pool *v1alpha1.KVPool) { pool.Spec.Compute = nil })).To(Succeed())
		Eventually(func() string { return w.current().Status.Endpoint }, within, every).Should(BeEmpty())
		Expect(w.current().Status.Compute).To(BeNil())
		w.awaitCondition(v1alpha1.ConditionAvailable, metav1.ConditionFalse, v1alpha1.ReasonNoComputeShards)
		w.settle()
		Expect(w.maps()).To(HaveLen(1), "compute shards are no matter of epochs")
	})

	It("puts back what somebody else changed or removed", func() {
		w := newWorld(nil)
		w.up()
		deployment := &appsv1.Deployment{}
		Expect(k8s.Get(w.ctx, w.key("cache-shards"), deployment)).To(Succeed())
		Expect(k8s.Patch(w.ctx, deployment, client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"replicas":9}}`)))).To(Succeed())
		Expect(k8s.Delete(w.ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: w.pool.Namespace, Name: "cache-nodes"}})).To(Succeed())
		Eventually(func(g Gomega) {
			g.Expect(k8s.Get(w.ctx, w.key("cache-shards"), deployment)).To(Succeed())
			g.Expect(*deployment.Spec.Replicas).To(Equal(int32(2)))
			g.Expect(k8s.Get(w.ctx, w.key("cache-nodes"), &corev1.Service{})).To(Succeed())
		}, within, every).Should(Succeed())

		By("an atomic list")
		policy := &networkingv1.NetworkPolicy{}
		Expect(k8s.Get(w.ctx, w.key("cache-memory-nodes"), policy)).To(Succeed())
		wanted := policy.DeepCopy()
		policy.Spec.Ingress = append(policy.Spec.Ingress, networkingv1.NetworkPolicyIngressRule{})
		Expect(k8s.Update(w.ctx, policy)).To(Succeed())
		Eventually(func(g Gomega) {
			g.Expect(k8s.Get(w.ctx, w.key("cache-memory-nodes"), policy)).To(Succeed())
			g.Expect(policy.Spec.Ingress).To(Equal(wanted.Spec.Ingress))
		}, within, every).Should(Succeed())
		w.computeReady("cache-shards")

		By("not fighting over what is beside it")
		Expect(k8s.Get(w.ctx, w.key("cache-shards"), deployment)).To(Succeed())
		deployment.Labels["team"] = "shop"
		deployment.Spec.Template.Spec.Containers[0].Env = append(deployment.Spec.Template.Spec.Containers[0].Env, corev1.EnvVar{Name: "TZ", Value: "UTC"})
		Expect(k8s.Update(w.ctx, deployment)).To(Succeed())
		w.computeReady("cache-shards")
		w.settle()
		Expect(k8s.Get(w.ctx, w.key("cache-shards"), deployment)).To(Succeed())
		Expect(deployment.Spec.Template.Spec.Containers[0].Env).To(HaveLen(2))
	})

	It("makes another pod where one is gone or evicted, and sees the loss", func() {
		w := newWorld(nil)
		w.up()
		gone := w.awaitPod("cache-memory-0")
		w.podStatus("cache-memory-0", corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted", Message: "the node was low on memory"})
		Eventually(func(g Gomega) {
			now := &corev1.Pod{}
			g.Expect(k8s.Get(w.ctx, w.key("cache-memory-0"), now)).To(Succeed())
			g.Expect(now.UID).NotTo(Equal(gone.UID))
		}, within, every).Should(Succeed())
		w.awaitCondition(v1alpha1.ConditionAvailable, metav1.ConditionFalse, v1alpha1.ReasonMemoryNodesNotServing)
		w.run("cache-memory-0")
		w.awaitEpoch(2)
		w.awaitNodeCondition("cache-memory-0", v1alpha1.ConditionDataLost, metav1.ConditionTrue, v1alpha1.ReasonTablesLost)
		w.awaitCondition(v1alpha1.ConditionAvailable, metav1.ConditionTrue, v1alpha1.ReasonServing)
	})

	It("is not published a new epoch when its hash secret is lost", func() {
		w := newWorld(nil)
		w.up()
		_, saved := w.kept()
		Expect(k8s.Delete(w.ctx, saved)).To(Succeed())
		w.awaitCondition(v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonSecretMissing, ContainSubstring("restore the Secret from a backup"))
		w.run("cache-memory-0")
		w.settle()
		Expect(w.maps()).To(HaveLen(1))
		By("restoring it")
		saved.ResourceVersion, saved.UID = "", ""
		Expect(k8s.Create(w.ctx, saved)).To(Succeed())
		w.awaitEpoch(2)
		w.awaitCondition(v1alpha1.ConditionDegraded, metav1.ConditionFalse, v1alpha1.ReasonHealthy)
		_, now := w.kept()
		Expect(now.Data).To(Equal(saved.Data))
	})

	It("says so when something else answers in the place of an agent", func() {
		w := newWorld(nil)
		w.create()
		w.runAs("cache-memory-0", memoryNodeFacts(string(w.pool.UID), "cache-memory-0", 77), "cache-shards-client-tls")
		w.awaitCondition(v1alpha1.ConditionDataPlaneReachable, metav1.ConditionFalse, v1alpha1.ReasonAgentRefused, ContainSubstring("role node are wanted"))
		w.runAs("cache-memory-0", memoryNodeFacts(string(w.pool.UID), "cache-memory-1", 78), "cache-memory-0-node-tls")
		Eventually(func() string {
			return meta.FindStatusCondition(w.current().Status.Conditions, v1alpha1.ConditionDataPlaneReachable).Message
		}, within, every).Should(ContainSubstring(`answers as ROLE_MEMORY_NODE "cache-memory-1"`))
		w.settle()
	})

	It("refuses a node whose tables have another shape", func() {
		w := newWorld(nil)
		w.create()
		w.run("cache-memory-0")
		facts := memoryNodeFacts(string(w.pool.UID), "cache-memory-1", 79)
		facts.MemoryNode.GetRcuckoo().EntryBytes = 64
		w.runAs("cache-memory-1", facts, "cache-memory-1-node-tls")
		w.awaitCondition(v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonGeometryMismatch, ContainSubstring("cache-memory-1 has tables of 64-byte entries"))
		Expect(w.maps()).To(BeEmpty())
	})

	It("is left alone when it is paused", func() {
		w := newWorld(nil)
		w.up()
		Expect(w.change(func(pool *v1alpha1.KVPool) {
			pool.Spec.Management = v1alpha1.ManagementPaused
			pool.Spec.Compute.Pools[0].Replicas = 5
		})).To(Succeed())
		w.awaitCondition(v1alpha1.ConditionProgressing, metav1.ConditionFalse, v1alpha1.ReasonPaused)
		w.run("cache-memory-0")
		w.awaitCondition(v1alpha1.ConditionAvailable, metav1.ConditionFalse, v1alpha1.ReasonMemoryNodesNotServing)
		w.settle()
		Expect(w.maps()).To(HaveLen(1))
		deployment := &appsv1.Deployment{}
		Expect(k8s.Get(w.ctx, w.key("cache-shards"), deployment)).To(Succeed())
		Expect(*deployment.Spec.Replicas).To(Equal(int32(2)))
		Expect(w.change(func(pool *v1alpha1.KVPool) { pool.Spec.Management = v1alpha1.ManagementManaged })).To(Succeed())
		w.awaitEpoch(2)
		Eventually(func(g Gomega) {
			g.Expect(k8s.Get(w.ctx, w.key("cache-shards"), deployment)).To(Succeed())
			g.Expect(*deployment.Spec.Replicas).To(Equal(int32(5)))
		}, within, every).Should(Succeed())
	})

	It("has its streams and metrics closed when it is deleted", func() {
		w := newWorld(nil)
		w.up()
		Eventually(w.agents["cache-memory-0"].watching, within, every).Should(Equal(1))
		epoch, _ := running.metric("farpool_operator_pool_epoch", w.pool.Namespace)
		Expect(epoch).To(Equal(1.0))
		Expect(k8s.Delete(w.ctx, w.current())).To(Succeed())
		Eventually(func() bool {
			_, told := running.metric("farpool_operator_pool_epoch", w.pool.Namespace)
			return told
		}, within, every).Should(BeFalse())
		Eventually(w.agents["cache-memory-0"].watching, within, every).Should(Equal(0))
		Eventually(func() bool {
			return apierrors.IsNotFound(k8s.Get(w.ctx, client.ObjectKeyFromObject(w.pool), &v1alpha1.KVPool{}))
		}, within, every).Should(BeTrue())
	})

	It("goes quietly with its namespace", func() {
		w := newWorld(nil)
		w.up()
		Expect(k8s.Delete(w.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.pool.Namespace}})).To(Succeed())
		Expect(k8s.Delete(w.ctx, w.awaitPod("cache-memory-0"), client.GracePeriodSeconds(0))).To(Succeed())
		Eventually(func() bool {
			return apierrors.IsNotFound(k8s.Get(w.ctx, w.key("cache-memory-0"), &corev1.Pod{}))
		}, within, every).Should(BeTrue())
		w.reconcile(3)
	})

	It("is refused by the API server when it cannot work", func() {
		w := newWorld(func(pool *v1alpha1.KVPool) { pool.Spec.Network.Transport = "InfiniBand" })
		Expect(k8s.Create(w.ctx, w.pool)).To(MatchError(ContainSubstring("InfiniBand is refused until this version has its wire: set RoCEv2")))
		w = newWorld(func(pool *v1alpha1.KVPool) { pool.Spec.Network.Transport = v1alpha1.TransportRoCEv2 })
		Expect(k8s.Create(w.ctx, w.pool)).To(MatchError(ContainSubstring("transport RoCEv2 needs spec.network.attachment")))
		w = newWorld(func(pool *v1alpha1.KVPool) {
			pool.Spec.Network = roce(&v1alpha1.AttachmentSpec{Type: v1alpha1.AttachmentSRIOV, HostNetwork: &v1alpha1.HostNetworkAttachment{ResourceName: "rdma/hca"}})
		})
		Expect(k8s.Create(w.ctx, w.pool)).To(MatchError(And(ContainSubstring("sriov must be set exactly"), ContainSubstring("hostNetwork must be set exactly"))))
		w = newWorld(func(pool *v1alpha1.KVPool) {
			pool.Spec.Memory.Pools = append(pool.Spec.Memory.Pools, pool.Spec.Memory.Pools[0])
		})
		Expect(k8s.Create(w.ctx, w.pool)).To(MatchError(ContainSubstring("Duplicate value")))
		w = newWorld(func(pool *v1alpha1.KVPool) { pool.Spec.Memory.Pools[0].Lend = resource.MustParse("100000001") })
		Expect(k8s.Create(w.ctx, w.pool)).To(MatchError(ContainSubstring("multiple of the page size")))
		w = newWorld(nil)
		w.up()
		before := w.awaitPod("cache-memory-0")
		Expect(w.change(func(pool *v1alpha1.KVPool) { pool.Spec.Memory.Pools[0].Lend = resource.MustParse("512Mi") })).To(MatchError(ContainSubstring("lend is fixed at creation")))
		Expect(w.awaitPod("cache-memory-0").ResourceVersion).To(Equal(before.ResourceVersion))
		shardMap := w.maps()[0]
		shardMap.Spec.Nodes[0].State = v1alpha1.NodeStopped
		Expect(k8s.Update(w.ctx, &shardMap)).To(MatchError(ContainSubstring("a ShardMap never changes")))
	})

	It("keeps its pods through an operator upgrade", Serial, func() {
		w := newWorld(nil)
		w.up()
		w.settle()
		pods := map[string]string{}
		for _, name := range w.nodeNames() {
			pods[name] = w.awaitPod(name).ResourceVersion
		}
		deployment := &appsv1.Deployment{}
		Expect(k8s.Get(w.ctx, w.key("cache-shards"), deployment)).To(Succeed())
		pool := w.current().ResourceVersion

		running.stop()
		running = startOperator("farpool/dataplane:v2")
		Eventually(w.agents["cache-memory-0"].watching, within, every).Should(Equal(1))
		w.settle()
		Consistently(func() []string { return running.writes.in(w.pool.Namespace) }, time.Second, every).Should(BeEmpty())
		for _, name := range w.nodeNames() {
			Expect(w.awaitPod(name).ResourceVersion).To(Equal(pods[name]))
		}
		now := &appsv1.Deployment{}
		Expect(k8s.Get(w.ctx, w.key("cache-shards"), now)).To(Succeed())
		Expect(now.ResourceVersion).To(Equal(deployment.ResourceVersion))
		Expect(w.current().ResourceVersion).To(Equal(pool))

		By("making a pod that was lost from the version that the pool was made with")
		Expect(k8s.Delete(w.ctx, w.awaitPod("cache-memory-0"), client.GracePeriodSeconds(0))).To(Succeed())
		Eventually(func(g Gomega) {
			again := &corev1.Pod{}
			g.Expect(k8s.Get(w.ctx, w.key("cache-memory-0"), again)).To(Succeed())
			g.Expect(again.Spec.Containers[0].Image).To(Equal("farpool/dataplane:v1"))
		}, within, every).Should(Succeed())
		Expect(strings.HasSuffix(now.Spec.Template.Spec.Containers[0].Image, ":v1")).To(BeTrue())
	})
})

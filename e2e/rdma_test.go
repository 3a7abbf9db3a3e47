// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	farpoolv1alpha1 "farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/e2e/chaos"
	"farpool.dev/farpool/e2e/cluster"
	"farpool.dev/farpool/e2e/workload"
)

// rdmaResource is what the nodes' device plugin offers.
var rdmaResource = cmp.Or(os.Getenv("E2E_RDMA_RESOURCE"), "rdma/hca_shared_devices")

// A network of Multus whose pods get RDMA devices of their own, [namespace/]name, and what a pod takes to use one.
var (
	rdmaNetwork         = cmp.Or(os.Getenv("E2E_RDMA_NETWORK"), "default/roce")
	rdmaNetworkResource = cmp.Or(os.Getenv("E2E_RDMA_NETWORK_RESOURCE"), "rdma/hca_pod_devices")
)

// overRDMA is a pool of so many memory nodes and two shards, whose pods also get a network if one is named. SoftRoCE under an emulated
// processor stands still for seconds.
func overRDMA(name string, memoryNodes int, protocol, resource, network string) string {
	plugin := "resourceName: " + resource
	if network != "" {
		plugin += ", network: " + network
	}
	return strings.Replace(small(name, memoryNodes, 2, "  dataPolicy: Store\n  failureTimeoutMilliseconds: 20000\n  index: {protocol: "+protocol+"}"), "{transport: TCP}",
		"{transport: RoCEv2, attachment: {type: SharedDevicePlugin, sharedDevicePlugin: {"+plugin+"}}}", 1)
}

// asked is a metric of each, again until there is an answer: starved processors let connections be reset.
func asked(of []*member, name string) (values []float64, err error) {
	err = chaos.Eventually(context.Background(), chaos.Patience, func() error {
		values, err = metrics(of, name)
		return err
	})
	return values, err
}

var _ = Describe("A pool over RDMA", Ordered, Label("rdma"), func() {
	const shards, memoryNodes = 2, 2
	var (
		p              pool
		target         workload.Target
		clients, nodes []*member
		watchers       map[string]*corev1.Pod // by Kubernetes node
	)
	BeforeAll(func(ctx SpecContext) {
		begun := time.Now()
		p = apply(ctx, namespaceAt(ctx, "rdma", "privileged"), overRDMA("verbs", memoryNodes, farpoolv1alpha1.ProtocolRCuckoo, rdmaResource, ""))
		p.ready(ctx)
		AddReportEntry("a pool is Available after", time.Since(begun).Round(time.Second).String())
		target = p.target(ctx)
		target.Patience = time.Minute
		clients, nodes = reach(ctx, p.shards(ctx), shardProcess), reach(ctx, p.memoryNodes(ctx), nodeProcess)
		Expect(clients).To(HaveLen(shards))
		Expect(nodes).To(HaveLen(memoryNodes))
		watchers = map[string]*corev1.Pod{}
		for _, one := range append(append([]*member(nil), clients...), nodes...) {
			if watchers[one.pod.Spec.NodeName] == nil {
				watchers[one.pod.Spec.NodeName] = watcher(ctx, fmt.Sprintf("watcher-%d", len(watchers)), &one.pod)
			}
		}
	}, NodeTimeout(5*time.Minute+patience))

	It("has pods without any privilege but IPC_LOCK, each with an RDMA device of its node", func(ctx SpecContext) {
		for _, one := range append(append([]*member(nil), clients...), nodes...) {
			spec := one.pod.Spec
			Expect(spec.HostNetwork || spec.HostPID || spec.HostIPC).To(BeFalse())
			for _, volume := range spec.Volumes {
				Expect(volume.HostPath).To(BeNil())
			}
			container := spec.Containers[0]
			Expect(container.SecurityContext.Privileged).To(Or(BeNil(), HaveValue(BeFalse())))
			devices := container.Resources.Limits[corev1.ResourceName(rdmaResource)]
			Expect(devices.Value()).To(BeEquivalentTo(1))
			// What the process has, not what was asked for. IPC_LOCK is the 14th bit.
			out, err := kind.InPod(ctx, &one.pod, `awk '$1 == "CapEff:" {print $2}' /proc/1/status; ls /dev/infiniband`)
			Expect(err).NotTo(HaveOccurred())
			said := strings.Fields(out)
			Expect(said).NotTo(BeEmpty())
			effective, err := strconv.ParseUint(said[0], 16, 64)
			Expect(err).NotTo(HaveOccurred())
			Expect(effective).To(BeEquivalentTo(1 << 14))
			Expect(said[1:]).To(ContainElement(HavePrefix("uverbs")))
		}
	}, SpecTimeout(3*time.Minute+patience))

	It("reads and writes 10,000 keys by RDMA alone", func(ctx SpecContext) {
		const keys = 10_000
		packets, frames := devicePackets(ctx, watchers), netBytes(ctx, nodes, "eth0")
		r, err := workload.NewRun(target, 8, "rdma:", workload.DefaultSizes)
		Expect(err).NotTo(HaveOccurred())
		defer r.Close()
		begun := time.Now()
		r.WriteAll(ctx, keys)
		Expect(r.Errors.Err()).NotTo(HaveOccurred())
		wrote := time.Since(begun)
		Expect(r.ReadAll(ctx, keys)).To(BeEquivalentTo(keys), unanswered(r))
		Expect(r.Errors.Err()).NotTo(HaveOccurred())
		took := time.Since(begun)
		summary, err := r.Check(5 * time.Minute)
		Expect(err).NotTo(HaveOccurred())

		morePackets, moreFrames := devicePackets(ctx, watchers)-packets, netBytes(ctx, nodes, "eth0")-frames
		carried, err := asked(clients, "farpool_pool_wire_bytes_total")
		Expect(err).NotTo(HaveOccurred())
		total := sumOf(carried)
		AddReportEntry("load", fmt.Sprintf("%d keys written in %s, read in %s; %+v; %.1f MB between shards and memory nodes, %d packets by the RDMA devices' counters, %.2f MB through the memory nodes' network interfaces",
			keys, wrote.Round(time.Second), (took-wrote).Round(time.Second), summary, total/1e6, morePackets, float64(moreFrames)/1e6))
		Expect(asked(nodes, "farpool_wire_bytes_total")).To(HaveEach(BeZero()), "bytes of lanes over TCP")
		Expect(asked(nodes, "farpool_verbs_lanes")).To(HaveEach(BeNumerically(">=", shards)))
		Expect(morePackets).To(BeNumerically(">", 2*keys), "packets of the RDMA devices")
		Expect(total).To(BeNumerically(">", 20e6))
		Expect(float64(moreFrames)).To(BeNumerically("<", total/10), "bytes through the memory nodes' own network, which has probes, scrapes and the operator's questions")
	}, SpecTimeout(10*time.Minute+patience))

	It("fences a shard that stands still, undoes what it left, and takes no write of it when it goes on", func(ctx SpecContext) {
		victim := clients[0]
		signal := func(name string) func() error {
			return func() error {
				return kind.SignalFrom(ctx, watchers[victim.pod.Spec.NodeName], &victim.pod, shardProcess, name)
			}
		}
		l := chaos.NewLoad(target, "stopped:", 3)
		stop := make(chan struct{})
		var all sync.WaitGroup
		all.Go(func() { l.Work(ctx, uint64(GinkgoRandomSeed()), stop) })
		end := sync.OnceFunc(func() { close(stop); all.Wait() })
		defer end()
		Expect(l.Progress(ctx, 200)).To(Succeed())
		var sum chaos.Stopped
		judged := 0
		for tries := 0; judged == 0 && tries < 4; tries++ {
			stopped, err := l.Stop(ctx, chaos.Victim{
				Name: victim.pod.Name, Shard: 0, Sessions: 1, Shards: shards,
				Stop: signal("STOP"), Continue: signal("CONT"),
				Ready: victim.ready,
				Kills: func() (int32, error) { return victim.kills(ctx) },
				Lost: func() (float64, error) {
					lost, err := asked(clients[:1], "farpool_pool_sessions_lost_total")
					return sumOf(lost), err
				},
				Open:   func() ([]float64, error) { return asked(nodes, "farpool_node_sessions") },
				Fenced: func() ([]float64, error) { return asked(nodes, "farpool_node_sessions_fenced_total") },
			}, 50)
			Expect(err).NotTo(HaveOccurred())
			sum.Add(stopped)
			if stopped.Judged {
				judged++
			}
		}
		Expect(judged).To(BeNumerically(">", 0), "its later sessions were fenced as well, each time")
		end()
		holders, err := asked(nodes, "farpool_node_sessions_dead_holders")
		Expect(err).NotTo(HaveOccurred())
		AddReportEntry("stopped", fmt.Sprintf("%d writes were under way, whose callers heard: %s; dead holders that memory nodes still know: %v; load: %d answered, %d refused (%s)",
			sum.Caught, chaos.Counts(sum.Learned), holders, l.Answered(), l.Refused(), chaos.Counts(l.Errors())))
		Eventually(func() ([]float64, error) { return asked(nodes, "farpool_node_sessions_dead_holders") }).WithContext(ctx).Should(HaveEach(BeZero()))
	}, SpecTimeout(10*time.Minute+patience))

	It("says of a memory node without RDMA what it lacks, and how that is added", func(ctx SpecContext) {
		const absent = "rdma/farpool-e2e-absent"
		lacking := apply(ctx, p.namespace, overRDMA("lacking", 1, farpoolv1alpha1.ProtocolRCuckoo, absent, ""))
		Eventually(func() *metav1.Condition { return lacking.condition(ctx, farpoolv1alpha1.ConditionDegraded) }).WithContext(ctx).
			Should(haveStatus(metav1.ConditionTrue, farpoolv1alpha1.ReasonRDMAMissing))
		message := lacking.condition(ctx, farpoolv1alpha1.ConditionDegraded).Message
		AddReportEntry("condition", message)
		for _, words := range []string{absent, "k8s-rdma-shared-dev-plugin", "rdmaHcaMax", "nodeSelector"} {
			Expect(message).To(ContainSubstring(words))
		}
	}, SpecTimeout(3*time.Minute+patience))

	It("goes over a network that Multus brings into its pods, with RACE as its index, from its addresses and by devices of theirs", func(ctx SpecContext) {
		const keys = 1000
		// Of RACE, so that one protocol as well as the other has its lanes over RDMA, and no pool more is needed for it.
		on := apply(ctx, p.namespace, overRDMA("networked", 1, farpoolv1alpha1.ProtocolRACE, rdmaNetworkResource, rdmaNetwork))
		on.ready(ctx)
		shards, nodes := reach(ctx, on.shards(ctx), shardProcess), reach(ctx, on.memoryNodes(ctx), nodeProcess)
		addresses := map[string]string{}
		for _, one := range append(append([]*member(nil), shards...), nodes...) {
			address := networkAddress(&one.pod, rdmaNetwork)
			Expect(address).NotTo(Equal(one.pod.Status.PodIP))
			Expect(addresses).NotTo(HaveKey(address), "two pods have one address")
			addresses[address] = one.pod.Name
		}
		target := on.target(ctx)
		target.Patience = time.Minute
		there, elsewhere := netBytes(ctx, nodes, "rdma0"), netBytes(ctx, nodes, "eth0")
		r, err := workload.NewRun(target, 4, "networked:", workload.DefaultSizes)
		Expect(err).NotTo(HaveOccurred())
		defer r.Close()
		r.WriteAll(ctx, keys)
		Expect(r.ReadAll(ctx, keys)).To(BeEquivalentTo(keys), unanswered(r))
		Expect(r.Errors.Err()).NotTo(HaveOccurred())

		there, elsewhere = netBytes(ctx, nodes, "rdma0")-there, netBytes(ctx, nodes, "eth0")-elsewhere
		carried, err := asked(shards, "farpool_pool_wire_bytes_total")
		Expect(err).NotTo(HaveOccurred())
		AddReportEntry("network", fmt.Sprintf("addresses %v; %d keys written and read; %.2f MB between shards and the memory node, %.2f MB through its interface on that network, %.2f MB through its other",
			addresses, keys, sumOf(carried)/1e6, float64(there)/1e6, float64(elsewhere)/1e6))
		Expect(asked(nodes, "farpool_wire_bytes_total")).To(HaveEach(BeZero()), "bytes of lanes over TCP")
		// The device's address is the pod's own, so librdmacm makes them.
		Expect(asked(nodes, "farpool_verbs_managed_lanes")).To(HaveEach(BeNumerically(">=", len(shards))))
		Expect(float64(there)).To(BeNumerically(">", sumOf(carried)/2))
		Expect(elsewhere).To(BeNumerically("<", there/2), "bytes through the interface that every pod has: probes, scrapes and the operator's questions")
	}, SpecTimeout(5*time.Minute+patience))

	It("carries the operations of an Outback pool as messages, which its memory node executes", func(ctx SpecContext) {
		const keys = 1000
		on := apply(ctx, p.namespace, overRDMA("served", 1, farpoolv1alpha1.ProtocolOutback, rdmaResource, ""))
		on.ready(ctx)
		nodes := reach(ctx, on.memoryNodes(ctx), nodeProcess)
		target := on.target(ctx)
		target.Patience = time.Minute
		// A key and its value have to fit a message.
		r, err := workload.NewRun(target, 4, "served:", workload.Sizes{MinKey: 12, MaxKey: 256, MinValue: workload.DefaultSizes.MinValue, MaxValue: 2048})
		Expect(err).NotTo(HaveOccurred())
		defer r.Close()
		r.WriteAll(ctx, keys)
		Expect(r.ReadAll(ctx, keys)).To(BeEquivalentTo(keys), unanswered(r))
		Expect(r.Errors.Err()).NotTo(HaveOccurred())
		summary, err := r.Check(5 * time.Minute)
		Expect(err).NotTo(HaveOccurred())
		executed, err := asked(nodes, "farpool_verbs_data_calls_total")
		Expect(err).NotTo(HaveOccurred())
		AddReportEntry("served", fmt.Sprintf("%d keys written and read; %+v; %.0f messages executed", keys, summary, sumOf(executed)))
		Expect(sumOf(executed)).To(BeNumerically(">", 2*keys))
		Expect(asked(nodes, "farpool_wire_bytes_total")).To(HaveEach(BeZero()), "bytes of lanes over TCP")
	}, SpecTimeout(5*time.Minute+patience))

	It("says of a network that Multus does not know that it is missing, and where it is looked for", func(ctx SpecContext) {
		misspelt := apply(ctx, p.namespace, overRDMA("misspelt", 1, farpoolv1alpha1.ProtocolRCuckoo, rdmaNetworkResource, "roec"))
		Eventually(func() *metav1.Condition { return misspelt.condition(ctx, farpoolv1alpha1.ConditionDegraded) }).WithContext(ctx).
			Should(haveStatus(metav1.ConditionTrue, farpoolv1alpha1.ReasonRDMAMissing))
		message := misspelt.condition(ctx, farpoolv1alpha1.ConditionDegraded).Message
		AddReportEntry("condition", message)
		for _, words := range []string{"NetworkAttachmentDefinition roec exists in namespace " + p.namespace, "not found"} {
			Expect(message).To(ContainSubstring(words))
		}
		Eventually(func() []string { return misspelt.events(ctx, farpoolv1alpha1.ReasonRDMAMissing) }).WithContext(ctx).
			Should(ContainElement(And(HavePrefix("KVPool/"+misspelt.name+": "), ContainSubstring("NetworkAttachmentDefinition roec"))))
	}, SpecTimeout(3*time.Minute+patience))
})

// networkAddress is the pod's on a network, as Multus has written into its annotations.
func networkAddress(pod *corev1.Pod, network string) string {
	GinkgoHelper()
	var all []struct {
		Name, Interface string
		IPs             []string
	}
	Expect(json.Unmarshal([]byte(pod.Annotations["k8s.v1.cni.cncf.io/network-status"]), &all)).To(Succeed())
	for _, one := range all {
		if one.Name == network {
			Expect(one.IPs).To(HaveLen(1))
			return one.IPs[0]
		}
	}
	Fail(fmt.Sprintf("pod %s is on %v, not on %s", pod.Name, all, network))
	return ""
}

// unanswered tells keys whose reads failed from keys that were written and are gone.
func unanswered(r *workload.Run) func() string {
	return func() string {
		return fmt.Sprintf("keys that held a value; commands that failed, by kind: %v", r.Errors.Kinds())
	}
}

func sumOf(values []float64) (sum float64) {
	for _, value := range values {
		sum += value
	}
	return sum
}

// watcher is a pod that sees every process and RDMA device of the Kubernetes node that another runs on.
func watcher(ctx context.Context, name string, of *corev1.Pod) *corev1.Pod {
	GinkgoHelper()
	grace, root, privileged := int64(0), int64(0), true
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: of.Namespace},
		Spec: corev1.PodSpec{
			NodeName: of.Spec.NodeName, HostPID: true, HostNetwork: true, TerminationGracePeriodSeconds: &grace,
			Containers: []corev1.Container{{
				Name: "sh", Image: of.Spec.Containers[0].Image, Command: []string{"sleep", "infinity"},
				SecurityContext: &corev1.SecurityContext{RunAsUser: &root, Privileged: &privileged},
			}},
		},
	}
	Expect(kind.Create(ctx, pod)).To(Succeed())
	Eventually(func() (corev1.PodPhase, error) {
		err := kind.Get(ctx, client.ObjectKeyFromObject(pod), pod)
		return pod.Status.Phase, err
	}).WithContext(ctx).Should(Equal(corev1.PodRunning))
	return pod
}

// devicePackets are packets in and out by the RDMA devices' own counters. SoftRoCE and mlx5 name them differently, and only the first
// network namespace of a machine has them: that of a Kubernetes node, or of the machine whose containers the nodes are.
func devicePackets(ctx context.Context, watchers map[string]*corev1.Pod) int64 {
	GinkgoHelper()
	const script = `cd /sys/class/infiniband && for p in */ports/*; do
  cat $p/hw_counters/sent_pkts $p/hw_counters/rcvd_pkts $p/counters/port_xmit_packets $p/counters/port_rcv_packets 2>/dev/null
done; true`
	var said []string
	for _, one := range watchers {
		out, err := kind.InPod(ctx, one, script)
		Expect(err).NotTo(HaveOccurred())
		said = append(said, strings.Fields(out)...)
	}
	if len(said) == 0 {
		out, err := cluster.Run(ctx, nil, "sh", "-c", script)
		Expect(err).NotTo(HaveOccurred())
		said = strings.Fields(out)
	}
	return summed(said)
}

// netBytes are bytes in and out of one of the pods' network interfaces.
func netBytes(ctx context.Context, pods []*member, name string) (sum int64) {
	GinkgoHelper()
	for _, one := range pods {
		out, err := kind.InPod(ctx, &one.pod, `awk '$1 == "`+name+`:" {print $2; print $10}' /proc/net/dev`)
		Expect(err).NotTo(HaveOccurred())
		sum += summed(strings.Fields(out))
	}
	return sum
}

func summed(numbers []string) (sum int64) {
	GinkgoHelper()
	Expect(numbers).NotTo(BeEmpty())
	for _, each := range numbers {
		n, err := strconv.ParseInt(each, 10, 64)
		Expect(err).NotTo(HaveOccurred())
		sum += n
	}
	return sum
}

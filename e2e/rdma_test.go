// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"cmp"
	"context"
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

// overRDMA is a pool of so many memory nodes and two shards. SoftRoCE under an emulated processor stands still for seconds.
func overRDMA(name string, memoryNodes int, resource string) string {
	return strings.Replace(small(name, memoryNodes, 2, "  dataPolicy: Store\n  failureTimeout: 20s"), "{transport: TCP}",
		"{transport: RoCEv2, attachment: {type: SharedDevicePlugin, sharedDevicePlugin: {resourceName: "+resource+"}}}", 1)
}

var _ = Describe("A pool over RDMA", Ordered, Label("rdma"), func() {
	const shards, memoryNodes = 2, 2
	var (
		p              pool
		target         workload.Target
		clients, nodes []*member
		watchers       map[string]*corev1.Pod // by Kubernetes node
	)
	each := func(of []*member, name string) ([]float64, error) {
		var all []float64
		for _, one := range of {
			value, err := one.ask(name)
			if err != nil {
				return nil, err
			}
			all = append(all, value)
		}
		return all, nil
	}

	BeforeAll(func(ctx SpecContext) {
		begun := time.Now()
		p = apply(ctx, namespaceAt(ctx, "rdma", "privileged"), overRDMA("verbs", memoryNodes, rdmaResource))
		p.ready(ctx)
		AddReportEntry("a pool is Available after", time.Since(begun).Round(time.Second).String())
		target = p.target(ctx)
		target.Patience = time.Minute
		reach := func(pods []corev1.Pod, process string) (out []*member) {
			for _, pod := range pods {
				address, err := kind.ExposePod(ctx, &pod, webPort)
				Expect(err).NotTo(HaveOccurred())
				out = append(out, &member{pod: pod, web: address, kind: process})
			}
			return out
		}
		clients, nodes = reach(p.shards(ctx), shardProcess), reach(p.memoryNodes(ctx), nodeProcess)
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
		packets, frames := devicePackets(ctx, watchers), netBytes(ctx, nodes)
		r, err := workload.NewRun(target, 8, "rdma:", workload.DefaultSizes)
		Expect(err).NotTo(HaveOccurred())
		defer r.Close()
		begun := time.Now()
		r.WriteAll(ctx, keys)
		Expect(r.Errors.Err()).NotTo(HaveOccurred())
		wrote := time.Since(begun)
		Expect(r.ReadAll(ctx, keys)).To(BeEquivalentTo(keys))
		Expect(r.Errors.Err()).NotTo(HaveOccurred())
		took := time.Since(begun)
		summary, err := r.Check(5 * time.Minute)
		Expect(err).NotTo(HaveOccurred())

		morePackets, moreFrames := devicePackets(ctx, watchers)-packets, netBytes(ctx, nodes)-frames
		carried, err := each(clients, "farpool_pool_wire_bytes_total")
		Expect(err).NotTo(HaveOccurred())
		total := 0.0
		for _, bytes := range carried {
			total += bytes
		}
		AddReportEntry("load", fmt.Sprintf("%d keys written in %s, read in %s; %+v; %.1f MB between shards and memory nodes, %d packets by the RDMA devices' counters, %.2f MB through the memory nodes' network interfaces",
			keys, wrote.Round(time.Second), (took-wrote).Round(time.Second), summary, total/1e6, morePackets, float64(moreFrames)/1e6))
		Expect(each(nodes, "farpool_wire_bytes_total")).To(HaveEach(BeZero()), "bytes of lanes over TCP")
		Expect(each(nodes, "farpool_verbs_lanes")).To(HaveEach(BeNumerically(">=", shards)))
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
				Ready:  victim.ready,
				Lost:   func() (float64, error) { return victim.ask("farpool_pool_sessions_lost_total") },
				Open:   func() ([]float64, error) { return each(nodes, "farpool_node_sessions") },
				Fenced: func() ([]float64, error) { return each(nodes, "farpool_node_sessions_fenced_total") },
			}, 50)
			Expect(err).NotTo(HaveOccurred())
			sum.Add(stopped)
			if stopped.Judged {
				judged++
			}
		}
		Expect(judged).To(BeNumerically(">", 0), "its later sessions were fenced as well, each time")
		end()
		holders, err := each(nodes, "farpool_node_sessions_dead_holders")
		Expect(err).NotTo(HaveOccurred())
		AddReportEntry("stopped", fmt.Sprintf("%d writes were under way, whose callers heard: %s; dead holders that memory nodes still know: %v; load: %d answered, %d refused (%s)",
			sum.Caught, chaos.Counts(sum.Learned), holders, l.Answered(), l.Refused(), chaos.Counts(l.Errors())))
		Eventually(func() ([]float64, error) { return each(nodes, "farpool_node_sessions_dead_holders") }).WithContext(ctx).Should(HaveEach(BeZero()))
	}, SpecTimeout(10*time.Minute+patience))

	It("says of a memory node without RDMA what it lacks, and how that is added", func(ctx SpecContext) {
		const absent = "rdma/farpool-e2e-absent"
		lacking := apply(ctx, p.namespace, overRDMA("lacking", 1, absent))
		Eventually(func() *metav1.Condition { return lacking.condition(ctx, farpoolv1alpha1.ConditionDegraded) }).WithContext(ctx).
			Should(haveStatus(metav1.ConditionTrue, farpoolv1alpha1.ReasonRDMAMissing))
		message := lacking.condition(ctx, farpoolv1alpha1.ConditionDegraded).Message
		AddReportEntry("condition", message)
		for _, words := range []string{absent, "k8s-rdma-shared-dev-plugin", "rdmaHcaMax", "nodeSelector"} {
			Expect(message).To(ContainSubstring(words))
		}
	}, SpecTimeout(3*time.Minute+patience))
})

// ask is metric, again until there is an answer: starved processors let connections be reset.
func (m *member) ask(name string) (value float64, err error) {
	err = chaos.Eventually(context.Background(), chaos.Patience, func() error {
		value, err = m.metric(name)
		return err
	})
	return value, err
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

// netBytes are bytes in and out of the pods' own network interfaces.
func netBytes(ctx context.Context, pods []*member) (sum int64) {
	GinkgoHelper()
	for _, one := range pods {
		out, err := kind.InPod(ctx, &one.pod, `awk '$1 == "eth0:" {print $2; print $10}' /proc/net/dev`)
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

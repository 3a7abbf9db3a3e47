// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/redis/go-redis/v9"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	farpoolv1alpha1 "farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/e2e/cluster"
	"farpool.dev/farpool/e2e/workload"
)

// whole reads every key that load wrote, and fails if one is missing or has another value.
func (p pool) whole(ctx context.Context, target workload.Target, keys uint32) {
	GinkgoHelper()
	r, err := workload.NewRun(target, 4, "load:", workload.DefaultSizes)
	Expect(err).NotTo(HaveOccurred())
	defer r.Close()
	Expect(r.ReadAll(ctx, keys)).To(BeEquivalentTo(keys), "%v", r.Errors.Err())
}

// onWorker is a manifest whose memory nodes and compute shards are bound to workers of their own.
func onWorker(manifest, memory, shards string) string {
	selector := func(worker string) string { return ", pod: {nodeSelector: {kubernetes.io/hostname: " + worker + "}}}" }
	manifest = strings.Replace(manifest, "lend: 64Mi}", "lend: 64Mi"+selector(memory), 1)
	return strings.Replace(manifest, "{name: shards, replicas: 2}", "{name: shards, replicas: 2"+selector(shards), 1)
}

// twoWorkers are the names of the cluster's workers.
func twoWorkers(ctx context.Context) (first, second string) {
	GinkgoHelper()
	workers, err := kind.Core.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: "!node-role.kubernetes.io/control-plane"})
	Expect(err).NotTo(HaveOccurred())
	Expect(workers.Items).To(HaveLen(2), "these specs take a cluster of two workers: make e2e makes one")
	return workers.Items[0].Name, workers.Items[1].Name
}

var _ = Describe("A pool that is edited", Label("short"), func() {
	It("keeps every key when limits change and its processes then start again", func(ctx SpecContext) {
		keys := uint32(count(20_000, 5_000))
		p := apply(ctx, namespace(ctx, "edited"), small("edited", 2, 2, "  dataPolicy: Cache\n  limits: {maxSessions: 256, maxConnections: 500}"))
		p.ready(ctx)
		load(ctx, p.target(ctx), keys)

		before, shards := p.memoryNodes(ctx), p.shards(ctx)
		_, err := kind.Kubectl(ctx, "", "-n", p.namespace, "patch", "kvpool", p.name, "--type=merge", "-p", `{"spec":{"limits":{"maxSessions":512}}}`)
		AddReportEntry("kubectl patch of limits.maxSessions", fmt.Sprint(err))
		_, err = kind.Kubectl(ctx, "", "-n", p.namespace, "patch", "kvpool", p.name, "--type=merge", "-p", `{"spec":{"limits":{"maxConnections":600}}}`)
		Expect(err).NotTo(HaveOccurred())
		Eventually(func(g Gomega) { // the shards roll
			for _, pod := range p.shards(ctx) {
				g.Expect(shards).NotTo(ContainElement(HaveField("UID", pod.UID)))
			}
		}).WithContext(ctx).Should(Succeed())
		p.ready(ctx)

		By("killing every memory node's process after the kubelet has renewed what pods mount")
		refreshed := time.Now().Add(time.Duration(count(90, 0)) * time.Second)
		Eventually(time.Now).WithContext(ctx).WithTimeout(2 * time.Minute).Should(BeTemporally(">=", refreshed))
		for _, node := range reach(ctx, p.memoryNodes(ctx), nodeProcess) {
			restarts, err := node.metric("farpool_node_warm_restarts")
			Expect(err).NotTo(HaveOccurred())
			Expect(node.signal(ctx, "KILL")).To(Succeed())
			Eventually(func() (float64, error) { return node.metric("farpool_node_warm_restarts") }).WithContext(ctx).Should(BeNumerically(">", restarts))
			Expect(node.ready(ctx)).To(Succeed())
		}
		p.ready(ctx)
		p.whole(ctx, p.target(ctx), keys)
		for _, pod := range before {
			Expect(p.memoryNodes(ctx)).To(ContainElement(HaveField("UID", pod.UID)))
			Expect(p.memoryNode(ctx, pod.Name).Status.LostIncarnation).To(BeEmpty())
		}
		AddReportEntry("edited", fmt.Sprintf("%d keys, all read back after every memory node's process was killed", keys))
	}, SpecTimeout(10*time.Minute))

	It("rolls its compute shards without refusing a connection", func(ctx SpecContext) {
		p := apply(ctx, namespace(ctx, "rolled"), small("rolled", 1, 3, "  limits: {maxConnections: 500}"))
		p.ready(ctx)
		address, err := kind.ExposeService(ctx, p.namespace, p.name)
		Expect(err).NotTo(HaveOccurred())
		before := p.shards(ctx)

		// Each command has a connection of its own, as the commands of short scripts and of many web servers have.
		var done atomic.Int64
		var mutex sync.Mutex
		failed := map[string]int{}
		password, stop := p.password(ctx), make(chan struct{})
		var all sync.WaitGroup
		for worker := range 4 {
			all.Go(func() {
				for i := 0; ; i++ {
					select {
					case <-stop:
						return
					default:
					}
					through := redis.NewClient(&redis.Options{
						Addr: address, Password: password, MaxRetries: -1, DialerRetries: 1, PoolSize: 1, DialTimeout: 5 * time.Second, ReadTimeout: 15 * time.Second,
					})
					err := through.Set(ctx, fmt.Sprintf("rolled:%d:%d", worker, i%100), i, 0).Err()
					_ = through.Close()
					done.Add(1)
					if err != nil {
						mutex.Lock()
						failed[err.Error()]++
						mutex.Unlock()
					}
				}
			})
		}
		end := sync.OnceFunc(func() { close(stop); all.Wait() })
		defer end()
		progress := func(commands int64) {
			more := done.Load() + commands
			Eventually(done.Load).WithContext(ctx).Should(BeNumerically(">=", more))
		}
		progress(200)
		begun, first := time.Now(), done.Load()
		_, err = kind.Kubectl(ctx, "", "-n", p.namespace, "patch", "kvpool", p.name, "--type=merge", "-p", `{"spec":{"limits":{"maxConnections":600}}}`)
		Expect(err).NotTo(HaveOccurred())
		Eventually(func(g Gomega) {
			var pods corev1.PodList // those on their way out, too
			g.Expect(kind.List(ctx, &pods, client.InNamespace(p.namespace), client.MatchingLabels{
				farpoolv1alpha1.LabelPool: p.name, farpoolv1alpha1.LabelComponent: farpoolv1alpha1.ComponentComputeShard,
			})).To(Succeed())
			g.Expect(pods.Items).To(HaveLen(3))
			for _, old := range before {
				g.Expect(pods.Items).NotTo(ContainElement(HaveField("UID", old.UID)))
			}
		}).WithContext(ctx).Should(Succeed())
		p.ready(ctx)
		progress(200)
		took, commands := time.Since(begun), done.Load()-first
		end()
		AddReportEntry("rolled", fmt.Sprintf("3 shards replaced in %.0f s; %d commands on as many connections, failed: %v", took.Seconds(), commands, failed))
		Expect(failed).To(BeEmpty())
	}, SpecTimeout(8*time.Minute))
})

var _ = Describe("A Kubernetes node that cannot be reached for seven minutes", Label("long"), func() {
	It("costs no key: its memory node's pod is the same, and serves again", func(ctx SpecContext) {
		const keys = 5_000
		away, stays := twoWorkers(ctx)
		p := apply(ctx, namespace(ctx, "unreachable"), strings.Replace(small("unreachable", 2, 2, "  dataPolicy: Store"),
			"{name: shards, replicas: 2}", "{name: shards, replicas: 2, pod: {nodeSelector: {kubernetes.io/hostname: "+stays+"}}}", 1))
		p.ready(ctx)
		target := p.target(ctx)
		load(ctx, target, keys)
		roaming := apply(ctx, p.namespace, strings.Replace(small("roaming", 1, 2, ""), "lend: 64Mi}", "lend: 64Mi, pod: {nodeSelector: {kubernetes.io/hostname: "+stays+"}}}", 1))
		roaming.ready(ctx)
		Expect(roaming.shards(ctx)).To(ContainElement(HaveField("Spec.NodeName", away)), "a shard on each worker")
		before := map[string]corev1.Pod{}
		for _, pod := range p.memoryNodes(ctx) {
			before[pod.Spec.NodeName] = pod
		}
		Expect(slices.Sorted(maps.Keys(before))).To(ConsistOf(away, stays), "a memory node on each worker")

		By("pausing " + away)
		Expect(docker(ctx, "pause", away)).To(Succeed())
		resume := sync.OnceFunc(func() { Expect(docker(context.WithoutCancel(ctx), "unpause", away)).To(Succeed()) })
		DeferCleanup(resume)
		begun := time.Now()
		roaming.ready(ctx, func(g Gomega) {
			for _, pod := range roaming.shards(ctx) {
				g.Expect(pod.Spec.NodeName).To(Equal(stays))
			}
		})
		again := time.Since(begun)
		AddReportEntry("made anew", fmt.Sprintf("compute shards of %s are on %s %.0f s after the pause began", away, stays, again.Seconds()))
		// Kubernetes takes up to 50 s to call a Kubernetes node unreachable, and its pods then have 30 s; five minutes if nothing said so.
		Expect(again).To(BeNumerically("<", 3*time.Minute))
		answered, failed := 0, map[string]int{}
		other := target.Connect(0)
		defer func() { _ = other.Close() }()
		for i := uint32(0); time.Since(begun) < 7*time.Minute; i++ {
			if err := other.Exists(ctx, workload.DefaultSizes.Key("load:", i%keys)).Err(); err != nil {
				failed[workload.Verdict(err)]++
			} else {
				answered++
			}
		}
		Expect(answered).To(BeNumerically(">", 0), "the keys of the other memory node are not served")
		resume()
		AddReportEntry("paused", fmt.Sprintf("%s for %.0f s; meanwhile %d commands answered by the other memory node, failed: %v", away, time.Since(begun).Seconds(), answered, failed))
		Expect(slices.Sorted(maps.Keys(failed))).To(And(Not(BeEmpty()), HaveEach(BeElementOf("TIMEOUT", "TRYAGAIN"))),
			"commands that need a memory node that is out of reach fail with an error that says that nothing was done")
		Eventually(func(g Gomega) {
			node, err := kind.Core.CoreV1().Nodes().Get(ctx, away, metav1.GetOptions{})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(node.Spec.Taints).To(BeEmpty())
		}).WithContext(ctx).Should(Succeed())
		p.ready(ctx)
		for _, pod := range p.memoryNodes(ctx) {
			Expect(pod.UID).To(Equal(before[pod.Spec.NodeName].UID), "memory node %s has another pod", pod.Name)
			Expect(p.memoryNode(ctx, pod.Name).Status.LostIncarnation).To(BeEmpty())
		}
		p.whole(ctx, p.target(ctx), keys)
	}, SpecTimeout(16*time.Minute))
})

var _ = Describe("A MemoryNode that is deleted", Label("short"), func() {
	It("is made again for the pod that runs, which keeps every key", func(ctx SpecContext) {
		const keys = 2_000
		p := apply(ctx, namespace(ctx, "deleted"), small("deleted", 2, 1, "  dataPolicy: Store"))
		p.ready(ctx)
		target := p.target(ctx)
		load(ctx, target, keys)
		before := p.memoryNodes(ctx)
		victim := p.memoryNode(ctx, before[0].Name)
		begun := time.Now()
		_, err := kind.Kubectl(ctx, "", "-n", p.namespace, "delete", "memorynode", victim.Name, "--wait=false")
		Expect(err).NotTo(HaveOccurred())
		p.ready(ctx, func(g Gomega) {
			var again farpoolv1alpha1.MemoryNode
			g.Expect(kind.Get(ctx, client.ObjectKeyFromObject(victim), &again)).To(Succeed())
			g.Expect(again.UID).NotTo(Equal(victim.UID))
			g.Expect(again.Status.Incarnation).To(Equal(victim.Status.Incarnation))
			var pod corev1.Pod
			g.Expect(kind.Get(ctx, client.ObjectKeyFromObject(victim), &pod)).To(Succeed())
			g.Expect(pod.OwnerReferences).To(ContainElement(HaveField("UID", again.UID)))
		})
		again := time.Since(begun)
		Expect(p.memoryNodes(ctx)).To(HaveLen(len(before)))
		for i, pod := range p.memoryNodes(ctx) {
			Expect(pod.UID).To(Equal(before[i].UID), "memory node %s has another pod", pod.Name)
			Expect(p.memoryNode(ctx, pod.Name).Status.LostIncarnation).To(BeEmpty())
		}
		p.whole(ctx, target, keys)
		AddReportEntry("deleted", fmt.Sprintf("MemoryNode %s is there again, with its pod, after %.0f s, and %d keys are read back", victim.Name, again.Seconds(), keys))
	}, SpecTimeout(8*time.Minute))
})

var _ = Describe("A pool of which all pods go at once", Label("short", "wide"), func() {
	It("comes back empty, says so of each memory node, and takes keys again", func(ctx SpecContext) {
		const keys = 500
		p := apply(ctx, namespace(ctx, "gone"), small("gone", 2, 2, "  dataPolicy: Cache"))
		p.ready(ctx)
		load(ctx, p.target(ctx), keys)
		lives := map[string]string{}
		for _, pod := range p.memoryNodes(ctx) {
			lives[pod.Name] = p.memoryNode(ctx, pod.Name).Status.Incarnation
		}
		Expect(lives).To(HaveLen(2))
		begun := time.Now()
		_, err := kind.Kubectl(ctx, "", "-n", p.namespace, "delete", "pods", "--all", "--force", "--grace-period=0")
		Expect(err).NotTo(HaveOccurred())
		p.ready(ctx, func(g Gomega) {
			for name, incarnation := range lives {
				var node farpoolv1alpha1.MemoryNode
				g.Expect(kind.Get(ctx, client.ObjectKey{Namespace: p.namespace, Name: name}, &node)).To(Succeed())
				g.Expect(node.Status.LostIncarnation).To(Equal(incarnation))
			}
		})
		serves := time.Since(begun)
		target := p.target(ctx)
		r, err := workload.NewRun(target, 4, "load:", workload.DefaultSizes)
		Expect(err).NotTo(HaveOccurred())
		defer r.Close()
		Eventually(func(g Gomega) {
			before := r.Errors.Count()
			g.Expect(r.ReadAll(ctx, keys)).To(BeZero())
			g.Expect(r.Errors.Count()).To(Equal(before))
		}).WithContext(ctx).Should(Succeed())
		AddReportEntry("empty", fmt.Sprintf("the pool is ready after %.0f s, none of %d keys is there, and each of %d memory nodes says so", serves.Seconds(), keys, len(lives)))
		load(ctx, target, keys)
	}, SpecTimeout(8*time.Minute))
})

var _ = Describe("A pod of high priority that finds no room", Label("long"), func() {
	It("does not take a memory node's place", func(ctx SpecContext) {
		const keys = 2_000
		full, other := twoWorkers(ctx)
		p := apply(ctx, namespace(ctx, "preempted"), onWorker(small("preempted", 2, 2, "  dataPolicy: Store"), full, other))
		p.ready(ctx)
		target := p.target(ctx)
		load(ctx, target, keys)
		before := p.memoryNodes(ctx)

		class := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "e2e-high"}, Value: 1_000_000}
		Expect(client.IgnoreAlreadyExists(kind.Create(ctx, class))).To(Succeed())
		DeferCleanup(func(ctx SpecContext) { Expect(client.IgnoreNotFound(kind.Delete(ctx, class))).To(Succeed()) }, NodeTimeout(time.Minute))
		// As much as there is beside the pods that nothing preempts: it fits where the memory nodes go.
		node, err := kind.Core.CoreV1().Nodes().Get(ctx, full, metav1.GetOptions{})
		Expect(err).NotTo(HaveOccurred())
		free := node.Status.Allocatable.Cpu().MilliValue()
		all, err := kind.Core.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + full})
		Expect(err).NotTo(HaveOccurred())
		for _, pod := range all.Items {
			if pod.Namespace == p.namespace {
				continue
			}
			for _, container := range pod.Spec.Containers {
				free -= container.Resources.Requests.Cpu().MilliValue()
			}
		}
		Expect(free).To(BeNumerically(">", 0))
		greedy := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespaceAt(ctx, "greedy", "privileged"), Name: "greedy"},
			Spec: corev1.PodSpec{
				NodeSelector: map[string]string{corev1.LabelHostname: full}, PriorityClassName: class.Name,
				Containers: []corev1.Container{{Name: "greedy", Image: "farpool/dataplane:" + imageTag(), Command: []string{"sleep", "600"},
					Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: *resource.NewMilliQuantity(free, resource.DecimalSI)}}}},
			},
		}
		Expect(kind.Create(ctx, greedy)).To(Succeed())
		var said string
		Eventually(func(g Gomega) {
			g.Expect(kind.Get(ctx, client.ObjectKeyFromObject(greedy), greedy)).To(Succeed())
			g.Expect(greedy.Status.Conditions).To(ContainElement(And(HaveField("Type", corev1.PodScheduled), HaveField("Status", corev1.ConditionFalse),
				HaveField("Reason", corev1.PodReasonUnschedulable))))
			for _, condition := range greedy.Status.Conditions {
				said = condition.Message
			}
			g.Expect(greedy.Status.NominatedNodeName).To(BeEmpty(), "memory nodes are preempted for it")
		}).WithContext(ctx).Should(Succeed())
		AddReportEntry("the scheduler says of it", said)
		for _, pod := range p.memoryNodes(ctx) {
			Expect(before).To(ContainElement(HaveField("UID", pod.UID)), "memory node %s has another pod", pod.Name)
		}
		Expect(p.memoryNodes(ctx)).To(HaveLen(len(before)))
		p.whole(ctx, target, keys)
		AddReportEntry("not preempted", fmt.Sprintf("%d memory nodes have the pods that they had, and %d keys are read back", len(before), keys))
	}, SpecTimeout(8*time.Minute))
})

// docker runs a command on the Docker in which the cluster's nodes run.
func docker(ctx context.Context, args ...string) error {
	_, err := cluster.Run(ctx, nil, "docker", args...)
	return err
}

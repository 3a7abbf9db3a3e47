// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	farpoolv1alpha1 "farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/e2e/chaos"
	"farpool.dev/farpool/e2e/workload"
)

var _ = Describe("A Kubernetes node that is drained", Label("long"), func() {
	DescribeTable("is left by its memory node under load, no command fails and no key is lost", func(ctx SpecContext, index string) {
		const keys = 5000
		workers, err := kind.Core.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: "!node-role.kubernetes.io/control-plane"})
		Expect(err).NotTo(HaveOccurred())
		if len(workers.Items) != 2 {
			Skip("it takes a cluster of two workers: one to drain, and one to go to")
		}
		drained, other := workers.Items[0].Name, workers.Items[1].Name
		// Compute shards are on the other one: who is connected to a shard that is evicted notices, whatever becomes of memory nodes.
		p := apply(ctx, namespace(ctx, "drain"), strings.Replace(small("evicted", 2, 2, "  dataPolicy: Store\n  index: "+index),
			"{name: shards, replicas: 2}", "{name: shards, replicas: 2, pod: {nodeSelector: {kubernetes.io/hostname: "+other+"}}}", 1))
		p.ready(ctx)
		var leaves, stays corev1.Pod
		for _, pod := range p.memoryNodes(ctx) {
			if pod.Spec.NodeName == drained {
				leaves = pod
			} else {
				stays = pod
			}
		}
		Expect(leaves.Name).NotTo(BeEmpty(), "both memory nodes are on %s", other)
		Expect(stays.Name).NotTo(BeEmpty(), "both memory nodes are on %s", drained)
		target := p.target(ctx)
		load(ctx, target, keys)

		var said strings.Builder
		var took, settled time.Duration
		var answered int64
		tries := 0
		begun := time.Now()
		refused := p.underLoad(ctx, "evicted:", func(l *chaos.Load) {
			DeferCleanup(func(ctx SpecContext) {
				_, err := kind.Kubectl(ctx, "", "uncordon", drained)
				Expect(err).NotTo(HaveOccurred())
			}, NodeTimeout(time.Minute))
			// All of it, so that the operator goes, too, if it is there. kubectl asks again by the pod's name until nothing has it or its eviction is
			// allowed. The pod that is made elsewhere has the same one: kubectl may take it for the one that it wants gone, and wait until its time is
			// over. Then nothing is left on the Kubernetes node, and the next try is done at once.
			Eventually(func() error {
				tries++
				out, err := kind.Kubectl(ctx, "", "drain", drained, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=90s")
				said.WriteString(out)
				return err
			}).WithContext(ctx).WithTimeout(6 * time.Minute).Should(Succeed())
			took = time.Since(begun)
			Eventually(func(g Gomega) {
				g.Expect(p.memoryNodes(ctx)).To(And(HaveLen(2), HaveEach(HaveField("Spec.NodeName", other))))
				g.Expect(p.condition(ctx, farpoolv1alpha1.ConditionProgressing)).To(haveStatus("False", farpoolv1alpha1.ReasonSettled))
			}).WithContext(ctx).WithTimeout(2 * patience).Should(Succeed())
			settled, answered = time.Since(begun), l.Answered()
			Expect(l.Progress(ctx, 500)).To(Succeed())
		})
		AddReportEntry("kubectl drain", said.String())
		Expect(refused).To(BeZero())
		Expect(said.String()).To(ContainSubstring("disruption budget"), "its pod was evicted with what it held")
		for _, pod := range p.memoryNodes(ctx) {
			if pod.Name == stays.Name {
				Expect(pod.UID).To(Equal(stays.UID), "the memory node that stays has another pod")
			} else {
				Expect(pod.UID).NotTo(Equal(leaves.UID))
			}
		}
		Eventually(func(g Gomega) {
			var resizes farpoolv1alpha1.ResizeOperationList
			g.Expect(kind.List(ctx, &resizes, client.InNamespace(p.namespace))).To(Succeed())
			g.Expect(resizes.Items).To(ContainElement(And(HaveField("Spec.Evacuates", ConsistOf(leaves.Name)), HaveField("Status.Stage", farpoolv1alpha1.StageComplete))))
		}).WithContext(ctx).Should(Succeed())
		r, err := workload.NewRun(target, 4, "load:", workload.DefaultSizes)
		Expect(err).NotTo(HaveOccurred())
		defer r.Close()
		present := r.ReadAll(ctx, keys)
		Expect(present).To(BeEquivalentTo(keys), "%v", r.Errors.Err())
		AddReportEntry("drained", fmt.Sprintf("%s: after %.0f s, by %d runs of kubectl drain; settled after %.0f s, with %d commands answered by then; failed: %d; %d of %d keys are read back",
			index, took.Seconds(), tries, settled.Seconds(), answered, refused, present, keys))
		p.clean(ctx)
	},
		Entry("of RACE", SpecTimeout(15*time.Minute), "{protocol: RACE, race: {tables: 64}}"),
		Entry("of Outback", SpecTimeout(15*time.Minute), "{protocol: Outback}"),
		Entry("of RCuckoo", SpecTimeout(15*time.Minute), "{protocol: RCuckoo}"))

	It("is left by its memory node when an autoscaler taints it, and no key is lost", func(ctx SpecContext) {
		const keys, taint = 2000, "karpenter.sh/disrupted"
		workers, err := kind.Core.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: "!node-role.kubernetes.io/control-plane"})
		Expect(err).NotTo(HaveOccurred())
		if len(workers.Items) != 2 {
			Skip("it takes a cluster of two workers: one to taint, and one to go to")
		}
		tainted, other := workers.Items[0].Name, workers.Items[1].Name
		p := apply(ctx, namespace(ctx, "taint"), small("tainted", 2, 1, "  dataPolicy: Store"))
		p.ready(ctx)
		Expect(p.memoryNodes(ctx)).To(ContainElement(HaveField("Spec.NodeName", tainted)))
		for _, pod := range p.memoryNodes(ctx) {
			Expect(pod.Annotations).To(And(HaveKeyWithValue("cluster-autoscaler.kubernetes.io/safe-to-evict", "false"), HaveKeyWithValue("karpenter.sh/do-not-disrupt", "true")))
		}
		target := p.target(ctx)
		load(ctx, target, keys)

		begun := time.Now()
		_, err = kind.Kubectl(ctx, "", "taint", "node", tainted, taint+":NoSchedule")
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func(ctx SpecContext) {
			_, err := kind.Kubectl(ctx, "", "taint", "node", tainted, taint+"-")
			Expect(err).NotTo(HaveOccurred())
		}, NodeTimeout(time.Minute))
		Eventually(func(g Gomega) {
			g.Expect(p.memoryNodes(ctx)).To(And(HaveLen(2), HaveEach(HaveField("Spec.NodeName", other))))
			g.Expect(p.condition(ctx, farpoolv1alpha1.ConditionProgressing)).To(haveStatus("False", farpoolv1alpha1.ReasonSettled))
		}).WithContext(ctx).WithTimeout(2 * patience).Should(Succeed())
		settled := time.Since(begun)
		r, err := workload.NewRun(target, 4, "load:", workload.DefaultSizes)
		Expect(err).NotTo(HaveOccurred())
		defer r.Close()
		present := r.ReadAll(ctx, keys)
		Expect(present).To(BeEquivalentTo(keys), "%v", r.Errors.Err())
		AddReportEntry("tainted", fmt.Sprintf("its memory node is elsewhere after %.0f s; %d of %d keys are read back", settled.Seconds(), present, keys))
		p.clean(ctx)
	}, SpecTimeout(8*time.Minute))

	It("keeps the only memory node of a Store, whose eviction is refused", func(ctx SpecContext) {
		const keys = 500
		p := apply(ctx, namespace(ctx, "eviction"), small("sole", 1, 1, "  dataPolicy: Store"))
		p.ready(ctx)
		target := p.target(ctx)
		load(ctx, target, keys)
		only := p.memoryNodes(ctx)[0]
		// Before it has seen the pod it would refuse in any case.
		Eventually(func(g Gomega) {
			budget, err := kind.Core.PolicyV1().PodDisruptionBudgets(p.namespace).Get(ctx, p.name+"-memory-nodes", metav1.GetOptions{})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(budget.Status.ObservedGeneration).To(Equal(budget.Generation))
			g.Expect(budget.Status.CurrentHealthy).To(BeEquivalentTo(1))
		}).WithContext(ctx).Should(Succeed())
		err := kind.Core.PolicyV1().Evictions(p.namespace).Evict(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: only.Name}})
		Expect(apierrors.IsTooManyRequests(err)).To(BeTrue(), "%v", err)
		Expect(err).To(MatchError(ContainSubstring("disruption budget")))
		AddReportEntry("eviction", err.Error())
		Expect(p.memoryNodes(ctx)).To(ConsistOf(HaveField("UID", only.UID)))
		r, err := workload.NewRun(target, 4, "load:", workload.DefaultSizes)
		Expect(err).NotTo(HaveOccurred())
		defer r.Close()
		Expect(r.ReadAll(ctx, keys)).To(BeEquivalentTo(keys), "%v", r.Errors.Err())
	}, SpecTimeout(5*time.Minute))
})

// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	farpoolv1alpha1 "farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/e2e/history"
	"farpool.dev/farpool/e2e/workload"
)

var _ = Describe("A memory node that is lost", Label("short"), func() {
	const keys = 2000

	// lose makes a pool of two memory nodes, loads it, and deletes the first node's pod, and its memory with it. It says when.
	lose := func(ctx context.Context, policy string) (pool, workload.Target, *corev1.Pod, time.Time) {
		GinkgoHelper()
		p := apply(ctx, namespace(ctx, "loss"), small("losing", 2, 1, "  dataPolicy: "+policy))
		p.ready(ctx)
		target := p.target(ctx)
		load(ctx, target, keys)
		victim := p.memoryNodes(ctx)[0]
		incarnation := p.memoryNode(ctx, victim.Name).Status.Incarnation
		Expect(incarnation).NotTo(BeEmpty())
		epoch := p.get(ctx).Status.ShardMap.Epoch

		// The process alone would find its memory again in the pod's volume.
		begun := time.Now()
		Expect(kind.Delete(ctx, &victim)).To(Succeed())
		By("waiting until the operator has published what became of it")
		Eventually(func(g Gomega) {
			n := p.memoryNode(ctx, victim.Name)
			g.Expect(n.Status.LostIncarnation).To(Equal(incarnation))
			lost := meta.FindStatusCondition(n.Status.Conditions, farpoolv1alpha1.ConditionDataLost)
			g.Expect(lost).NotTo(BeNil())
			g.Expect(lost.Status).To(Equal(metav1.ConditionTrue), "%+v", lost)
			g.Expect(lost.Message).NotTo(BeEmpty())
			g.Expect(p.get(ctx).Status.ShardMap.Epoch).To(BeNumerically(">", epoch))
		}).WithContext(ctx).Should(Succeed())
		return p, target, &victim, begun
	}

	It("comes back empty under policy Cache, and resource, event and metric say so", func(ctx SpecContext) {
		p, target, victim, begun := lose(ctx, "Cache")
		Eventually(func(g Gomega) {
			g.Expect(p.events(ctx, farpoolv1alpha1.ReasonTablesLost, farpoolv1alpha1.ReasonDataLost)).NotTo(BeEmpty())
		}).WithContext(ctx).Should(Succeed())
		p.ready(ctx)
		Eventually(lossMetric).WithContext(ctx).WithArguments(p).Should(Equal("1"))
		Eventually(nodeMetric).WithContext(ctx).WithArguments(p, victim.Name, "farpool_node_serving").Should(Equal("1"))
		serves := time.Since(begun)

		r, err := workload.NewRun(target, 4, "load:", workload.DefaultSizes)
		Expect(err).NotTo(HaveOccurred())
		defer r.Close()
		var present uint32
		Eventually(func(g Gomega) {
			before := r.Errors.Count()
			present = r.ReadAll(ctx, keys)
			g.Expect(r.Errors.Count()).To(Equal(before))
		}).WithContext(ctx).Should(Succeed())
		Expect(present).To(And(BeNumerically(">", keys/10), BeNumerically("<", keys)), "of two memory nodes one lost what it held, and only it")
		AddReportEntry("lost", fmt.Sprintf("its memory node serves again, empty, after %.0f s; %d of %d keys are there: the other memory node's", serves.Seconds(), present, keys))
		By("writing to it again")
		load(ctx, target, keys)
	}, SpecTimeout(5*time.Minute))

	It("stops under policy Store until a person accepts the loss", func(ctx SpecContext) {
		p, target, victim, begun := lose(ctx, "Store")
		Eventually(func(g Gomega) {
			g.Expect(p.events(ctx, farpoolv1alpha1.ReasonTablesStopped, farpoolv1alpha1.ReasonDataLost)).NotTo(BeEmpty())
			g.Expect(p.condition(ctx, farpoolv1alpha1.ConditionAvailable)).To(haveStatus(metav1.ConditionFalse))
			degraded := p.condition(ctx, farpoolv1alpha1.ConditionDegraded)
			g.Expect(degraded).To(haveStatus(metav1.ConditionTrue))
			g.Expect(degraded.Message).To(ContainSubstring(victim.Name), "the condition does not say where")
		}).WithContext(ctx).Should(Succeed())
		Eventually(lossMetric).WithContext(ctx).WithArguments(p).Should(Equal("1"))
		Eventually(nodeMetric).WithContext(ctx).WithArguments(p, victim.Name, "farpool_node_serving").Should(Equal("0"))
		stopped := time.Since(begun)

		By("finding that its part answers with an error, never with absence, and the other part as before")
		r, err := workload.NewRun(target, 1, "load:", workload.DefaultSizes)
		Expect(err).NotTo(HaveOccurred())
		defer r.Close()
		var refused, present int
		Eventually(func(g Gomega) {
			refused, present = 0, 0
			for key := range uint32(200) {
				op, err := r.Do(ctx, history.Get, key)
				if err != nil {
					refused++
				} else {
					g.Expect(op.Saw).NotTo(Equal(history.Absent), "key %d reads as absent though its table is stopped", key)
					present++
				}
			}
			g.Expect(refused).To(BeNumerically(">", 0))
			g.Expect(present).To(BeNumerically(">", 0))
		}).WithContext(ctx).Should(Succeed())

		By("accepting the loss")
		accepted := time.Now()
		node := p.memoryNode(ctx, victim.Name)
		_, err = kind.Kubectl(ctx, "", "-n", p.namespace, "annotate", "memorynode", victim.Name, "--overwrite",
			fmt.Sprintf("%s=%s", farpoolv1alpha1.AnnotationAcceptDataLoss, node.Status.Incarnation))
		Expect(err).NotTo(HaveOccurred())
		p.ready(ctx)
		serves := time.Since(accepted)
		Eventually(func() error { return tryLoad(ctx, target, keys) }).WithContext(ctx).Should(Succeed())
		AddReportEntry("stopped", fmt.Sprintf("resource, event and metric say so after %.0f s; of 200 keys %d are read and %d answer with an error; the pool is ready %.0f s after the loss is accepted",
			stopped.Seconds(), present, refused, serves.Seconds()))
	}, SpecTimeout(5*time.Minute))
})

var _ = Describe("A memory node whose process is killed", Label("short"), func() {
	It("finds its memory again, and nothing is lost", func(ctx SpecContext) {
		const keys = 2000
		p := apply(ctx, namespace(ctx, "warm"), small("warm", 1, 1, "  dataPolicy: Store"))
		p.ready(ctx)
		target := p.target(ctx)
		load(ctx, target, keys)
		node := p.memoryNodes(ctx)[0]
		before := p.memoryNode(ctx, node.Name).Status.Incarnation
		killed := time.Now()
		_, err := kind.Kill(ctx, &node, "farpool-memory-node")
		Expect(err).NotTo(HaveOccurred())
		By("waiting until its next life serves")
		Eventually(func(g Gomega) {
			n := p.memoryNode(ctx, node.Name)
			g.Expect(n.Status.Incarnation).NotTo(Or(BeEmpty(), Equal(before)))
			lost := meta.FindStatusCondition(n.Status.Conditions, farpoolv1alpha1.ConditionDataLost)
			g.Expect(lost == nil || lost.Status == metav1.ConditionFalse).To(BeTrue(), "%+v", lost)
			g.Expect(p.events(ctx, farpoolv1alpha1.ReasonWarmRestarted)).NotTo(BeEmpty())
		}).WithContext(ctx).Should(Succeed())
		p.ready(ctx)
		Eventually(nodeMetric).WithContext(ctx).WithArguments(p, node.Name, "farpool_node_serving").Should(Equal("1"))
		serves := time.Since(killed)

		r, err := workload.NewRun(target, 4, "load:", workload.DefaultSizes)
		Expect(err).NotTo(HaveOccurred())
		defer r.Close()
		var present uint32
		Eventually(func(g Gomega) {
			failed := r.Errors.Count()
			present = r.ReadAll(ctx, keys)
			g.Expect(r.Errors.Count()).To(Equal(failed))
			g.Expect(present).To(BeEquivalentTo(keys))
		}).WithContext(ctx).Should(Succeed())
		AddReportEntry("found again", fmt.Sprintf("its next life serves after %.0f s; %d of %d keys are read back", serves.Seconds(), present, keys))
		load(ctx, target, keys)
	}, SpecTimeout(5*time.Minute))
})

// lossMetric is how often the operator says that the pool lost data.
func lossMetric(ctx context.Context, p pool) string {
	GinkgoHelper()
	return operatorMetric(ctx, p, "data_losses_total")
}

// operatorMetric is a metric that the operator has of the pool.
func operatorMetric(ctx context.Context, p pool, name string) string {
	GinkgoHelper()
	return sampleOf(operatorMetrics(ctx), fmt.Sprintf(`farpool_operator_%s{namespace=%q,pool=%q}`, name, p.namespace, p.name))
}

func operatorMetrics(ctx context.Context) string {
	GinkgoHelper()
	pods, err := kind.Core.CoreV1().Pods(systemNamespace).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=operator"})
	Expect(err).NotTo(HaveOccurred())
	Expect(pods.Items).To(HaveLen(1))
	text, err := kind.Fetch(ctx, systemNamespace, pods.Items[0].Name, 8080, "metrics")
	Expect(err).NotTo(HaveOccurred())
	return text
}

// nodeMetric is a metric of a data-plane process.
func nodeMetric(ctx context.Context, p pool, pod, name string) string {
	GinkgoHelper()
	text, err := kind.Fetch(ctx, p.namespace, pod, 7402, "metrics")
	Expect(err).NotTo(HaveOccurred())
	return sampleOf(text, name)
}

// sampleOf finds a sample's value in what a process exposes; nothing if it is not there.
func sampleOf(text, sample string) string {
	for _, line := range strings.Split(text, "\n") {
		if value, found := strings.CutPrefix(line, sample+" "); found {
			return value
		}
	}
	return ""
}

func (p pool) memoryNode(ctx context.Context, name string) *farpoolv1alpha1.MemoryNode {
	GinkgoHelper()
	var out farpoolv1alpha1.MemoryNode
	Expect(kind.Get(ctx, client.ObjectKey{Namespace: p.namespace, Name: name}, &out)).To(Succeed())
	return &out
}

// load writes keys and reads them back.
func load(ctx context.Context, target workload.Target, keys uint32) {
	GinkgoHelper()
	Expect(tryLoad(ctx, target, keys)).To(Succeed())
}

func tryLoad(ctx context.Context, target workload.Target, keys uint32) error {
	r, err := workload.NewRun(target, 4, "load:", workload.DefaultSizes)
	if err != nil {
		return err
	}
	defer r.Close()
	r.WriteAll(ctx, keys)
	present := r.ReadAll(ctx, keys)
	if err := r.Errors.Err(); err != nil {
		return err
	}
	if present != keys {
		return fmt.Errorf("%d of %d keys are there", present, keys)
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	farpoolv1alpha1 "farpool.dev/farpool/api/v1alpha1"
)

var _ = Describe("A pool that cannot work", Ordered, Label("short"), func() {
	var (
		running pool
		life    map[string]string
	)
	BeforeAll(func(ctx SpecContext) {
		running = apply(ctx, namespace(ctx, "bad"), small("running", 1, 1, ""))
		running.ready(ctx)
		load(ctx, running.target(ctx), 200)
		life = running.life(ctx)
	}, NodeTimeout(5*time.Minute))

	AfterEach(func(ctx SpecContext) {
		Expect(running.life(ctx)).To(Equal(life), "a running pool was touched")
		Expect(running.condition(ctx, farpoolv1alpha1.ConditionAvailable)).To(haveStatus(metav1.ConditionTrue))
	}, NodeTimeout(time.Minute))

	DescribeTable("is refused with what is wrong and what to do", func(ctx SpecContext, from, to string, says ...string) {
		manifest := small("bad", 1, 1, "")
		Expect(manifest).To(ContainSubstring(from))
		out, err := kind.Kubectl(ctx, strings.Replace(manifest, from, to, 1), "-n", running.namespace, "apply", "--server-side", "-f", "-")
		Expect(err).To(HaveOccurred(), out)
		for _, s := range says {
			Expect(out).To(ContainSubstring(s))
		}
	},
		Entry("RoCEv2", SpecTimeout(time.Minute), "transport: TCP", "transport: RoCEv2", "spec.network", "needs spec.network.attachment"),
		Entry("InfiniBand", SpecTimeout(time.Minute), "transport: TCP", "transport: InfiniBand", "spec.network.transport", "InfiniBand is refused"),
		Entry("an unknown transport", SpecTimeout(time.Minute), "transport: TCP", "transport: Pigeon", "spec.network.transport", "unknown transport"),
		Entry("no transport", SpecTimeout(time.Minute), "network: {transport: TCP}", "network: {}", "transport"),
		Entry("an unknown index protocol", SpecTimeout(time.Minute), "network:", "index: {protocol: BTree}\n  network:", "spec.index", "RCuckoo"),
		Entry("a size that is no multiple of the page", SpecTimeout(time.Minute), "lend: 64Mi", `lend: "67108865"`, "multiple of the page size"),
		Entry("too little memory", SpecTimeout(time.Minute), "lend: 64Mi", "lend: 4Mi", "16Mi"),
		Entry("an unknown field", SpecTimeout(time.Minute), "network:", "colour: red\n  network:", "colour"),
	)

	DescribeTable("is refused when what is fixed is changed", func(ctx SpecContext, patch string, says string) {
		out, err := kind.Kubectl(ctx, "", "-n", running.namespace, "patch", "kvpool", running.name, "--type=merge", "-p", patch)
		Expect(err).To(HaveOccurred(), out)
		Expect(out).To(ContainSubstring(says))
	},
		Entry("data policy", SpecTimeout(time.Minute), `{"spec":{"dataPolicy":"Store"}}`, "fixed at creation"),
		Entry("index", SpecTimeout(time.Minute), `{"spec":{"index":{"rcuckoo":{"rowsPerLock":8}}}}`, "fixed at creation"),
		Entry("memory", SpecTimeout(time.Minute), `{"spec":{"memory":{"pools":[{"name":"memory","replicas":1,"lend":"128Mi"}]}}}`, "fixed at creation"),
	)

	It("says that no node has the memory it asks for", func(ctx SpecContext) {
		huge := apply(ctx, running.namespace, strings.Replace(small("huge", 1, 1, ""), "lend: 64Mi", "lend: 32Ti", 1))
		Eventually(func(g Gomega) {
			got := huge.get(ctx)
			var found *metav1.Condition
			for _, name := range []string{farpoolv1alpha1.ConditionSpecValid, farpoolv1alpha1.ConditionAvailable, farpoolv1alpha1.ConditionDegraded, farpoolv1alpha1.ConditionProgressing} {
				if c := meta.FindStatusCondition(got.Status.Conditions, name); c != nil && c.Reason == farpoolv1alpha1.ReasonNodeUnschedulable {
					found = c
				}
			}
			g.Expect(found).NotTo(BeNil(), "%+v", got.Status.Conditions)
			g.Expect(found.Message).To(ContainSubstring("huge-memory-0"), "the condition does not say where")
			g.Expect(found.Message).To(ContainSubstring("memory"), "the condition does not say what")
		}).WithContext(ctx).Should(Succeed())
		huge.delete(ctx)
	}, SpecTimeout(4*time.Minute))
})

// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	farpoolv1alpha1 "farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/e2e/workload"
)

var _ = Describe("A pool whose index is Outback", Label("short"), func() {
	It("executes commands at its memory nodes, loses nothing when a shard and a memory node are killed meanwhile, and is clean", func(ctx SpecContext) {
		const shards, memoryNodes, lines = 2, 2, "farpool_index_lines_taken_total"
		keys := uint32(count(20_000, 6_000))
		// It says nothing of processors, and is told what that means.
		p := apply(ctx, namespace(ctx, "outback"), strings.Replace(small("served", memoryNodes, shards, "  dataPolicy: Store\n  index: {protocol: Outback, outback: {tablePercent: 20}}"),
			"resources: {requests: {cpu: 100m}}, ", "", 1))
		p.ready(ctx)
		p.says(ctx, farpoolv1alpha1.ConditionSpecValid, "True", farpoolv1alpha1.ReasonCPURequestMissing)
		p.tells(ctx, ContainElement(HavePrefix("KVPool/"+p.name+": ")), farpoolv1alpha1.ReasonCPURequestMissing)
		clients, nodes := reach(ctx, p.shards(ctx), shardProcess), reach(ctx, p.memoryNodes(ctx), nodeProcess)
		for _, n := range nodes {
			Expect(n.pod.Spec.Containers[0].Resources.Requests.Cpu().String()).To(Equal("500m"))
		}
		Expect(metrics(nodes, "farpool_node_index_locator_bytes")).To(HaveEach(BeNumerically(">", 0)))
		target := p.target(ctx)
		// Through each shard its own writers: those of one that is dead have only failures.
		through := func(shard int, prefix string) *workload.Run {
			r, err := workload.NewRun(workload.Target{Shards: target.Shards[shard : shard+1], Password: target.Password}, 4, prefix, workload.DefaultSizes)
			Expect(err).NotTo(HaveOccurred())
			DeferCleanup(r.Close)
			return r
		}
		doomed, r := through(0, "doomed:"), through(1, "outback:")
		given := meanwhile(func() { doomed.WriteAll(ctx, keys) })
		written := meanwhile(func() { r.WriteAll(ctx, keys) })

		Eventually(func() (float64, error) { return nodes[0].metric("farpool_node_keys") }).WithContext(ctx).Should(BeNumerically(">", 100))
		Expect(clients[0].signal(ctx, "KILL")).To(Succeed())
		life := p.memoryNode(ctx, nodes[0].pod.Name).Status.Incarnation
		Expect(nodes[0].signal(ctx, "KILL")).To(Succeed())
		Eventually(func() string { return p.memoryNode(ctx, nodes[0].pod.Name).Status.Incarnation }).WithContext(ctx).
			ShouldNot(Or(BeEmpty(), Equal(life)))
		p.ready(ctx)
		Expect(clients[0].ready(ctx)).To(Succeed())
		Eventually(func() bool { return written.over() && given.over() }).WithContext(ctx).Should(BeTrue())
		Eventually(func(g Gomega) {
			failed := r.Errors.Count()
			g.Expect(r.ReadAll(ctx, keys)).To(BeNumerically(">=", int(keys)-failed), "fewer keys than were acknowledged")
			g.Expect(r.Errors.Count()).To(Equal(failed), "%v", r.Errors.Err())
		}).WithContext(ctx).Should(Succeed())
		doomed.ReadAll(ctx, keys)
		for _, each := range []*workload.Run{r, doomed} {
			sum, err := each.Check(5 * time.Minute)
			Expect(err).NotTo(HaveOccurred())
			AddReportEntry("history", fmt.Sprintf("%+v; %d commands failed (%v)", sum, each.Errors.Count(), each.Errors.Kinds()))
		}
		taken, err := metrics(clients, lines)
		Expect(err).NotTo(HaveOccurred())
		overflow, err := metrics(nodes, "farpool_node_index_overflow_keys")
		Expect(err).NotTo(HaveOccurred())
		AddReportEntry("outback", fmt.Sprintf("request lines taken by the shards: %v; keys in overflow: %v", taken, overflow))
		Expect(p.memoryNode(ctx, nodes[0].pod.Name).Status.LostIncarnation).To(BeEmpty(), "it came back empty")
		p.says(ctx, farpoolv1alpha1.ConditionAvailable, "True")
		p.clean(ctx)
	}, SpecTimeout(8*time.Minute))
})

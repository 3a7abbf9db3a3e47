// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	farpoolv1alpha1 "farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/e2e/workload"
)

var _ = Describe("A pool whose index is RACE", Label("short"), func() {
	It("splits its tables as keys come, loses nothing when a shard and a memory node are killed meanwhile, and is clean", func(ctx SpecContext) {
		const shards, memoryNodes, splits = 2, 2, "farpool_index_splits_finished_total"
		keys := uint32(count(20_000, 6_000))
		p := apply(ctx, namespace(ctx, "race"), small("race", memoryNodes, shards, "  dataPolicy: Store\n  index: {protocol: RACE, race: {tables: 4096}}"))
		p.ready(ctx)
		clients, nodes := reach(ctx, p.shards(ctx), shardProcess), reach(ctx, p.memoryNodes(ctx), nodeProcess)
		Expect(metrics(clients, splits)).To(HaveEach(BeZero()))
		target := p.target(ctx)
		// Through each shard its own writers: those of one that is dead have only failures, and keys that nobody writes split no table.
		through := func(shard int, prefix string) *workload.Run {
			r, err := workload.NewRun(workload.Target{Shards: target.Shards[shard : shard+1], Password: target.Password}, 4, prefix, workload.DefaultSizes)
			Expect(err).NotTo(HaveOccurred())
			DeferCleanup(r.Close)
			return r
		}
		doomed, r := through(0, "doomed:"), through(1, "race:")
		given := meanwhile(func() { doomed.WriteAll(ctx, keys) })
		written := meanwhile(func() { r.WriteAll(ctx, keys) })

		Eventually(func() (float64, error) { return clients[0].metric(splits) }).WithContext(ctx).Should(BeNumerically(">", 0))
		Expect(clients[0].signal(ctx, "KILL")).To(Succeed())
		atDeath, err := clients[1].metric(splits)
		Expect(err).NotTo(HaveOccurred())
		Eventually(func() (float64, error) { return clients[1].metric(splits) }).WithContext(ctx).Should(BeNumerically(">", atDeath))
		Expect(clients[0].ready(ctx)).To(Succeed())
		Eventually(func() bool { return written.over() && given.over() }).WithContext(ctx).Should(BeTrue())
		finished, err := metrics(clients, splits)
		Expect(err).NotTo(HaveOccurred())
		AddReportEntry("splits", fmt.Sprintf("%v finished by the shards, the first of them in its second life; the other had %g when it died", finished, atDeath))

		before := p.memoryNode(ctx, nodes[0].pod.Name).Status.Incarnation
		Expect(nodes[0].signal(ctx, "KILL")).To(Succeed())
		Eventually(func() string { return p.memoryNode(ctx, nodes[0].pod.Name).Status.Incarnation }).WithContext(ctx).
			ShouldNot(Or(BeEmpty(), Equal(before)))
		p.ready(ctx)
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
		Expect(p.memoryNode(ctx, nodes[0].pod.Name).Status.LostIncarnation).To(BeEmpty(), "it came back empty")
		p.says(ctx, farpoolv1alpha1.ConditionAvailable, "True")
		p.clean(ctx)
	}, SpecTimeout(8*time.Minute))
})

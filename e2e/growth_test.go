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

var _ = Describe("A pool that grows", func() {
	It("comes to hold 16 times as many keys under load while memory nodes are added, and no command fails", Label("long"), func(ctx SpecContext) {
		const keys, wanted, splits = 10_000, 160_000, "farpool_index_splits_finished_total"
		p := apply(ctx, namespace(ctx, "growth"), small("bamboo", 2, 2, "  dataPolicy: Store\n  index: {protocol: RACE, race: {tables: 64}}"))
		p.ready(ctx)
		clients := reach(ctx, p.shards(ctx), shardProcess)
		r, err := workload.NewRun(p.target(ctx), 16, "grow:", workload.Sizes{MinKey: 16, MaxKey: 16, MinValue: 64, MaxValue: 64})
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(r.Close)
		r.Put(ctx, keys)
		before := r.Recorded()

		var growth workload.Growth
		grown := meanwhile(func() {
			var failed error
			growth, failed = r.Grow(ctx, keys, wanted, 10*time.Second, time.Second)
			Expect(failed).NotTo(HaveOccurred())
		})
		// A quarter of what is done while it grows are new keys: some of them are there, and most are yet to come.
		Eventually(func() int { return r.Recorded() - before }).WithContext(ctx).WithTimeout(5 * time.Minute).Should(BeNumerically(">", wanted))
		nodes := reach(ctx, p.memoryNodes(ctx), nodeProcess)
		resize := p.scaleMemory(ctx, 4)
		p.stage(ctx, resize, farpoolv1alpha1.StageMoving)
		// Of 4 memory nodes each has as much, so half of what is there leaves. Keys that come later are written where they belong.
		there, err := metrics(nodes, "farpool_node_keys")
		Expect(err).NotTo(HaveOccurred())
		leave := sumOf(there) / 2
		p.resized(ctx, resize, 4)
		Expect(grown.over()).To(BeFalse(), "it had grown before the memory nodes were there")
		Eventually(grown.over).WithContext(ctx).WithTimeout(10 * time.Minute).Should(BeTrue())

		Expect(r.Errors.Err()).NotTo(HaveOccurred())
		Expect(r.ReadAll(ctx, wanted)).To(BeEquivalentTo(wanted), "keys were lost")
		sum, err := r.Check(5 * time.Minute)
		Expect(err).NotTo(HaveOccurred())
		split, err := metrics(clients, splits)
		Expect(err).NotTo(HaveOccurred())
		Expect(split).To(ContainElement(BeNumerically(">", 0)), "no table was split")
		moved, err := metrics(clients, movedAway)
		Expect(err).NotTo(HaveOccurred())
		Expect(sumOf(moved)).To(BeNumerically(">", 0), "no key has moved")
		rate := growth.Phases[0].Rate()
		AddReportEntry("growth", fmt.Sprintf("%d keys become %d on 2, then 4 memory nodes; splits finished by the shards: %v; "+
			"keys moved to the new memory nodes: %.0f, where %.0f had to, half of what was there when the move was first seen: %.2f times as many; "+
			"in the slowest second while it grew %.0f operations/s, %.0f %% of the %.0f before; %+v\n\n%s",
			keys, wanted, split, sumOf(moved), leave, sumOf(moved)/leave, growth.Slowest, 100*growth.Slowest/rate, rate, sum, growth.Table()))
		p.clean(ctx)
	}, SpecTimeout(25*time.Minute))
})

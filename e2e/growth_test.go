// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

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
		p.resized(ctx, p.scaleMemory(ctx, 4), 4)
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
		AddReportEntry("growth", fmt.Sprintf("%d keys become %d on 2, then 4 memory nodes; splits finished by the shards: %v, keys moved by them: %v; in the slowest second %.0f operations/s; %+v\n\n%s",
			keys, wanted, split, moved, growth.Slowest, sum, growth.Table()))
		p.clean(ctx)
	}, SpecTimeout(25*time.Minute))
})

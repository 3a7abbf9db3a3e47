// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"farpool.dev/farpool/e2e/workload"
)

// Nothing repairs the locks of a dead client yet, so that other clients' writes may meet them. What must hold all the same: no
// acknowledged write is lost, reads go on, and a write that cannot be done says so and names the reason.
var _ = Describe("A compute shard that is killed with -9 while it writes", func() {
	const keys = 5000

	It("takes nothing with it that was acknowledged", func(ctx SpecContext) {
		p := apply(ctx, namespace(ctx, "death"), small("mortal", 2, 3, ""))
		p.ready(ctx)
		target := p.target(ctx)
		load(ctx, target, 100)
		victim := p.shards(ctx)[0]

		r, err := workload.NewRun(target, 12, "death:", workload.DefaultSizes)
		Expect(err).NotTo(HaveOccurred())
		defer r.Close()
		r.WriteAll(ctx, keys)
		Expect(r.Errors.Err()).NotTo(HaveOccurred())

		stop := make(chan struct{})
		var all sync.WaitGroup
		all.Go(func() { r.Serve(ctx, keys, true, stop) })
		end := sync.OnceFunc(func() { close(stop); all.Wait() })
		defer end()
		const kills = 3
		for kill := range kills {
			more := r.Recorded() + 2000
			Eventually(r.Recorded).WithContext(ctx).Should(BeNumerically(">", more))
			_, err = kind.Kill(ctx, &victim, "farpool-compute-shard")
			Expect(err).NotTo(HaveOccurred())
			Eventually(func(g Gomega) {
				for _, pod := range p.shards(ctx) {
					if pod.UID == victim.UID {
						g.Expect(pod.Status.ContainerStatuses).To(HaveLen(1))
						g.Expect(pod.Status.ContainerStatuses[0].RestartCount).To(BeEquivalentTo(kill + 1))
						g.Expect(pod.Status.ContainerStatuses[0].Ready).To(BeTrue())
					}
				}
			}).WithContext(ctx).Should(Succeed())
		}
		end()
		kinds := r.Errors.Kinds()
		AddReportEntry("errors", fmt.Sprint(kinds))
		for kind := range kinds {
			Expect(kind).To(BeElementOf("connection", "LOCKED", "TIMEOUT", "UNKNOWNOUTCOME"), "%v", r.Errors.Err())
		}

		By("reading every key through every shard")
		failed := r.Errors.Count()
		Expect(r.ReadAll(ctx, keys)).To(BeEquivalentTo(keys))
		Expect(r.Errors.Count()).To(Equal(failed), "reads fail after the deaths: %v", r.Errors.Err())
		sum, err := r.Check(3 * time.Minute)
		Expect(err).NotTo(HaveOccurred())
		AddReportEntry("history", fmt.Sprintf("%+v", sum))
	}, SpecTimeout(8*time.Minute))
})

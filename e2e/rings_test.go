// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"farpool.dev/farpool/e2e/chaos"
)

var _ = Describe("A pool with shared memory", func() {
	const directory = "/run/farpool/e2e"
	rings := func(name, index string) string {
		return strings.Replace(small(name, 2, 2, "  index: "+index), "{transport: TCP}", "{transport: TCP, sharedMemory: {hostPath: "+directory+"}}", 1)
	}

	DescribeTable("speaks over rings on one Kubernetes node, and over TCP between two, and goes on when either side is killed", func(ctx SpecContext, index string) {
		workers, err := kind.Nodes(ctx)
		Expect(err).NotTo(HaveOccurred())
		for _, node := range workers {
			_, err := kind.OnNode(ctx, node, "install -d -o 65532 -g 65532 -m 0700 "+directory)
			Expect(err).NotTo(HaveOccurred())
			DeferCleanup(func(ctx SpecContext) {
				_, err := kind.OnNode(ctx, node, "rm -rf "+directory)
				Expect(err).NotTo(HaveOccurred())
			}, NodeTimeout(time.Minute))
		}
		p := apply(ctx, namespaceAt(ctx, "rings", "privileged"), rings("near", index))
		p.ready(ctx)
		target := p.target(ctx)
		shards, nodes := p.shards(ctx), p.memoryNodes(ctx)
		// A lane of each shard to each memory node, over what lies between the two.
		asPlaced := func(g Gomega) {
			for _, n := range nodes {
				address, err := kind.ExposePod(ctx, &n, webPort)
				g.Expect(err).NotTo(HaveOccurred())
				page, err := chaos.Scrape(address)
				g.Expect(err).NotTo(HaveOccurred())
				near := 0
				for _, s := range shards {
					if s.Spec.NodeName == n.Spec.NodeName {
						near++
					}
				}
				over, lanes := int(page["farpool_wire_ring_lanes"]), int(page["farpool_wire_lanes"])
				g.Expect(over > 0).To(Equal(near > 0), "%s: %d of %d lanes are rings, %d of %d shards are on its Kubernetes node", n.Name, over, lanes, near, len(shards))
				g.Expect(lanes > over).To(Equal(len(shards) > near), "%s: %d of %d lanes are rings, %d of %d shards are on its Kubernetes node", n.Name, over, lanes, near, len(shards))
			}
		}
		Eventually(asPlaced).WithContext(ctx).Should(Succeed())
		load(ctx, target, 500)

		By("killing a shard, then a memory node")
		_, err = kind.Kill(ctx, &shards[0], shardProcess)
		Expect(err).NotTo(HaveOccurred())
		Eventually(func() error { return tryLoad(ctx, target, 500) }).WithContext(ctx).Should(Succeed())
		_, err = kind.Kill(ctx, &nodes[0], nodeProcess)
		Expect(err).NotTo(HaveOccurred())
		Eventually(func() error { return tryLoad(ctx, target, 500) }).WithContext(ctx).Should(Succeed())
		Eventually(asPlaced).WithContext(ctx).Should(Succeed())
	},
		Entry("with RCuckoo", Label("short"), SpecTimeout(5*time.Minute), "{protocol: RCuckoo}"),
		Entry("with Outback", Label("long"), SpecTimeout(5*time.Minute), "{protocol: Outback}"),
		Entry("with RACE", Label("long"), SpecTimeout(5*time.Minute), "{protocol: RACE, race: {tables: 4096}}"))

	It("says why it has no pods where Pod Security admits no host paths", Label("short"), func(ctx SpecContext) {
		p := apply(ctx, namespace(ctx, "refused"), rings("refused", "{protocol: RCuckoo}"))
		Eventually(func(g Gomega) {
			var said []string
			for _, c := range p.get(ctx).Status.Conditions {
				said = append(said, c.Type+": "+c.Message)
			}
			g.Expect(strings.Join(said, "\n")).To(And(ContainSubstring("PodSecurity"), ContainSubstring("hostPath")))
		}).WithContext(ctx).Should(Succeed())
	}, SpecTimeout(3*time.Minute))
})

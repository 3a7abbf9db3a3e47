// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/redis/go-redis/v9"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	farpoolv1alpha1 "farpool.dev/farpool/api/v1alpha1"
)

var _ = Describe("A pool that is full", Ordered, Label("short"), func() {
	var p pool
	var through *redis.Client
	value := strings.Repeat("v", 30_000)
	key := func(i int) string { return fmt.Sprintf("full:%d", i) }
	stored := 0
	pressure := func(ctx SpecContext) func() *metav1.Condition {
		return func() *metav1.Condition { return p.condition(ctx, farpoolv1alpha1.ConditionMemoryPressure) }
	}

	BeforeAll(func(ctx SpecContext) {
		p = apply(ctx, namespace(ctx, "full"), strings.Replace(small("brim", 1, 1, "  dataPolicy: Store"), "lend: 64Mi", "lend: 16Mi", 1))
		p.ready(ctx)
		through = p.target(ctx).Connect(0)
		DeferCleanup(through.Close)
	}, NodeTimeout(5*time.Minute))

	It("refuses what needs more room in Redis's words, and says so in a condition and an event", func(ctx SpecContext) {
		Eventually(pressure(ctx)).WithContext(ctx).Should(haveStatus(metav1.ConditionFalse, farpoolv1alpha1.ReasonMemoryAvailable))
		Expect(through.Set(ctx, "counter", 1, 0).Err()).To(Succeed())
		var refused error
		for ; refused == nil && stored < 10_000; stored++ {
			refused = through.Set(ctx, key(stored), value, 0).Err()
		}
		stored--
		Expect(refused).To(MatchError(Equal("OOM command not allowed when used memory > 'maxmemory'.")))
		Expect(stored).To(BeNumerically(">", 100), "of 16Mi, three quarters are heap")
		Eventually(pressure(ctx)).WithContext(ctx).Should(haveStatus(metav1.ConditionTrue, farpoolv1alpha1.ReasonMemoryFull))
		Eventually(func() *metav1.Condition { return p.condition(ctx, farpoolv1alpha1.ConditionDegraded) }).WithContext(ctx).
			Should(haveStatus(metav1.ConditionTrue, farpoolv1alpha1.ReasonMemoryFull))
		p.tells(ctx, ContainElement(HavePrefix("KVPool/"+p.name+": a memory node is full, says compute shard brim-shards-")), farpoolv1alpha1.ReasonMemoryFull)
	}, SpecTimeout(3*time.Minute))

	It("goes on with reads, and with writes that need no more room", func(ctx SpecContext) {
		Expect(through.Incr(ctx, "counter").Result()).To(BeEquivalentTo(2))
		other := strings.Repeat("o", len(value))
		for _, v := range []string{other, value} {
			for i := range stored {
				Expect(through.Set(ctx, key(i), v, 0).Err()).To(Succeed(), key(i))
			}
		}
		for i := range stored {
			Expect(through.Get(ctx, key(i)).Result()).To(Equal(value), key(i))
		}
		Expect(errors.Is(through.Get(ctx, key(stored)).Err(), redis.Nil)).To(BeTrue(), "what was refused is not there")
	}, SpecTimeout(3*time.Minute))

	It("has room again when keys are removed, and says that, too", func(ctx SpecContext) {
		for i := range stored {
			Expect(through.Del(ctx, key(i)).Result()).To(BeEquivalentTo(1), key(i))
		}
		Eventually(func() error { return through.Set(ctx, "after", value, 0).Err() }).WithContext(ctx).Should(Succeed())
		Eventually(pressure(ctx)).WithContext(ctx).Should(haveStatus(metav1.ConditionFalse, farpoolv1alpha1.ReasonMemoryAvailable))
		p.tells(ctx, ContainElement(HavePrefix("KVPool/"+p.name+": ")), farpoolv1alpha1.ReasonMemoryAvailable)
		p.says(ctx, farpoolv1alpha1.ConditionDegraded, metav1.ConditionFalse, farpoolv1alpha1.ReasonHealthy)
	}, SpecTimeout(3*time.Minute))
})

var _ = Describe("A cache that is full", func() {
	DescribeTable("makes room for what is written, keeps what is read, and stops when it is told to", func(ctx SpecContext, index string) {
		value := strings.Repeat("v", 20_000)
		p := apply(ctx, namespace(ctx, "evicts"), strings.Replace(small("cache", 1, 1, "  index: {protocol: "+index+"}"), "lend: 64Mi", "lend: 16Mi", 1))
		p.ready(ctx)
		through := p.target(ctx).Connect(0)
		DeferCleanup(through.Close)
		const hot, keys = 20, 3000
		for i := range hot {
			Expect(through.Set(ctx, fmt.Sprintf("hot:%d", i), value, 0).Err()).To(Succeed())
		}
		misses := 0
		for i := range keys {
			Expect(through.Set(ctx, fmt.Sprintf("new:%d", i), value, 0).Err()).To(Succeed(), "write %d", i)
			if got, err := through.Get(ctx, fmt.Sprintf("hot:%d", i%hot)).Result(); errors.Is(err, redis.Nil) {
				misses++
			} else {
				Expect(got, err).To(Equal(value))
			}
		}
		AddReportEntry("evicted", fmt.Sprintf("%d writes of %d bytes to 16Mi, none refused; %d of %d reads of %d keys missed", keys, len(value), misses, keys, hot))
		Expect(misses).To(BeNumerically("<", keys/10))
		Expect(through.Info(ctx, "stats").Result()).NotTo(ContainSubstring("evicted_keys:0\r\n"))

		By("asking for no eviction, with which the pods go on")
		before := p.shards(ctx)
		_, err := kind.Kubectl(ctx, "", "-n", p.namespace, "patch", "kvpool", p.name, "--type=merge", "-p", `{"spec":{"memory":{"eviction":"noeviction"}}}`)
		Expect(err).NotTo(HaveOccurred())
		more := 0
		Eventually(func() error {
			more++
			return through.Set(ctx, fmt.Sprintf("more:%d", more), value, 0).Err()
		}).WithContext(ctx).WithTimeout(time.Minute).WithPolling(time.Millisecond).Should(MatchError(HavePrefix("OOM ")))
		for _, pod := range before {
			Expect(p.shards(ctx)).To(ContainElement(HaveField("UID", pod.UID)))
		}
	},
		Entry("with RCuckoo", Label("short"), SpecTimeout(4*time.Minute), "RCuckoo"),
		Entry("with RACE", Label("long"), SpecTimeout(4*time.Minute), "RACE"),
		Entry("with Outback", Label("long"), SpecTimeout(4*time.Minute), "Outback"))
})

var _ = Describe("A pool that is full and may not grow", func() {
	DescribeTable("says so, and is healed by growth without a restart", func(ctx SpecContext, index string, bytes int) {
		value := strings.Repeat("v", bytes)
		key := func(i int) string { return fmt.Sprintf("full:%d", i) }
		p := apply(ctx, namespace(ctx, "ceiling"), strings.Replace(small("capped", 1, 1, "  dataPolicy: Store\n  index: "+index),
			"lend: 64Mi", "lend: 16Mi, capacity: {fillPercent: 70, maxReplicas: 1}", 1))
		p.ready(ctx)
		before := append(p.memoryNodes(ctx), p.shards(ctx)...)
		through := p.target(ctx).Connect(0)
		DeferCleanup(through.Close)
		stored := 0
		var refused error
		for ; refused == nil && stored < 100_000; stored++ {
			refused = through.Set(ctx, key(stored), value, 0).Err()
		}
		stored--
		AddReportEntry("full", fmt.Sprintf("with %d keys and values of %d bytes", stored, bytes))
		Expect(refused).To(MatchError(Equal("OOM command not allowed when used memory > 'maxmemory'.")))
		// At once: half a minute after the last refusal it is told how full the fullest memory node is, and no more.
		p.says(ctx, farpoolv1alpha1.ConditionMemoryPressure, metav1.ConditionTrue, farpoolv1alpha1.ReasonMemoryFull)
		for i := range stored {
			Expect(through.Set(ctx, key(i), value, 0).Err()).To(Succeed(), key(i))
		}
		Expect(through.Get(ctx, key(0)).Result()).To(Equal(value))

		limited := func(g Gomega) *metav1.Condition {
			var pool farpoolv1alpha1.MemoryNodePool
			g.Expect(kind.Get(ctx, client.ObjectKey{Namespace: p.namespace, Name: p.name + "-memory"}, &pool)).To(Succeed())
			c := meta.FindStatusCondition(pool.Status.Conditions, farpoolv1alpha1.ConditionScalingLimited)
			g.Expect(c).NotTo(BeNil())
			return c
		}
		Eventually(limited).WithContext(ctx).Should(haveStatus(metav1.ConditionTrue, farpoolv1alpha1.ReasonCeilingReached))
		p.tells(ctx, Not(BeEmpty()), farpoolv1alpha1.ReasonCeilingReached)

		By("letting it have another memory node")
		_, err := kind.Kubectl(ctx, "", "-n", p.namespace, "patch", "kvpool", p.name, "--type=json", "-p",
			`[{"op":"replace","path":"/spec/memory/pools/0/capacity/maxReplicas","value":2}]`)
		Expect(err).NotTo(HaveOccurred())
		p.resized(ctx, p.follows(ctx, 2), 2)
		for i := stored; i < stored+stored/4; i++ {
			Eventually(func() error { return through.Set(ctx, key(i), value, 0).Err() }).WithContext(ctx).Should(Succeed(), key(i))
		}
		for i := range stored + stored/4 {
			Expect(through.Get(ctx, key(i)).Result()).To(Equal(value), key(i))
		}
		Eventually(func() string { return p.condition(ctx, farpoolv1alpha1.ConditionMemoryPressure).Reason }).WithContext(ctx).ShouldNot(Equal(farpoolv1alpha1.ReasonMemoryFull))
		after := map[types.UID]int32{}
		for _, pod := range append(p.memoryNodes(ctx), p.shards(ctx)...) {
			after[pod.UID] = pod.Status.ContainerStatuses[0].RestartCount
		}
		for _, pod := range before {
			Expect(after).To(HaveKeyWithValue(pod.UID, BeZero()), "%s is another pod, or its process is another one", pod.Name)
		}
	},
		Entry("of RACE, whose heap is full", Label("short", "wide"), SpecTimeout(8*time.Minute), "{protocol: RACE}", 30_000),
		Entry("of RACE, whose table is full", Label("long"), SpecTimeout(10*time.Minute), "{protocol: RACE, race: {tablePercent: 1}}", 8),
		Entry("of Outback, whose heap is full", Label("long"), SpecTimeout(8*time.Minute), "{protocol: Outback, outback: {tablePercent: 10}}", 30_000),
		Entry("of RCuckoo, whose table is full", Label("long"), SpecTimeout(10*time.Minute), "{protocol: RCuckoo, rcuckoo: {tablePercent: 1}}", 8))
})

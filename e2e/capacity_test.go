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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
		p = apply(ctx, namespace(ctx, "full"), strings.Replace(small("brim", 1, 1, ""), "memory: 64Mi", "memory: 16Mi", 1))
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
		Eventually(func() []string { return p.events(ctx, farpoolv1alpha1.ReasonMemoryFull) }).WithContext(ctx).
			Should(ContainElement(HavePrefix("KVPool/" + p.name + ": a memory node is full, says compute shard brim-shards-")))
	}, SpecTimeout(3*time.Minute))

	It("goes on with reads, and with writes that need no more room", func(ctx SpecContext) {
		Expect(through.Incr(ctx, "counter").Result()).To(BeEquivalentTo(2))
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
		Eventually(func() []string { return p.events(ctx, farpoolv1alpha1.ReasonMemoryAvailable) }).WithContext(ctx).
			Should(ContainElement(HavePrefix("KVPool/" + p.name + ": ")))
		Expect(p.condition(ctx, farpoolv1alpha1.ConditionDegraded)).To(haveStatus(metav1.ConditionFalse, farpoolv1alpha1.ReasonHealthy))
	}, SpecTimeout(3*time.Minute))
})

// SPDX-License-Identifier: Apache-2.0

package kvpool

import (
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	farpoolv1alpha1 "farpool.dev/farpool/api/gen/farpool/v1alpha1"
	"farpool.dev/farpool/api/v1alpha1"
)

// rollOut does what controllers and kubelets do with the Deployment of compute shards: one compute shard of its image runs, and follows every map of the pool.
func (w *world) rollOut(name string) *fakeAgent {
	GinkgoHelper()
	deployment := &appsv1.Deployment{}
	Expect(k8s.Get(w.ctx, w.key("cache-shards"), deployment)).To(Succeed())
	w.shardPod(name, "worker", w.replicaSet("cache-shards"))
	Eventually(func() error {
		pod := &corev1.Pod{}
		if err := k8s.Get(w.ctx, w.key(name), pod); err != nil {
			return err
		}
		pod.Spec.Containers[0].Image = deployment.Spec.Template.Spec.Containers[0].Image
		return k8s.Update(w.ctx, pod)
	}, within, every).Should(Succeed())
	shard := w.runShard(name, nil)
	shard.update(func(facts *farpoolv1alpha1.Facts) {
		facts.Ready, facts.Epoch = true, 1<<20
		facts.Versions = &farpoolv1alpha1.Versions{OldestProtocol: 3, NewestProtocol: 5, OldestMemoryFormat: 7, NewestMemoryFormat: 8}
	})
	w.computeReady("cache-shards")
	return shard
}

func imageOfPod(w *world, name string) string {
	pod := &corev1.Pod{}
	if err := k8s.Get(w.ctx, w.key(name), pod); err != nil {
		return err.Error()
	}
	return pod.Spec.Containers[0].Image
}

var _ = Describe("an upgrade", func() {
	It("patches pods of memory nodes one after the other, and leaves them in their place", func() {
		w := newWorld(func(pool *v1alpha1.KVPool) { pool.Spec.Memory.Pools[0].Replicas = 2 })
		w.up()
		names := w.nodeNames()
		uids := map[string]any{}
		for _, name := range names {
			uids[name] = w.awaitPod(name).UID
			Eventually(func() string { return w.node(name).Status.Image }, within, every).Should(Equal(imageOfPod(w, name)))
		}
		before := imageOfPod(w, names[0])

		Expect(w.change(func(pool *v1alpha1.KVPool) { pool.Spec.Image = "farpool/dataplane:next" })).To(Succeed())
		w.awaitCondition(v1alpha1.ConditionUpToDate, metav1.ConditionFalse, v1alpha1.ReasonUpgrading, ContainSubstring("0 of 2 memory nodes run farpool/dataplane:next; waiting until compute pool shards runs it"))
		w.awaitEvent("KVPool", v1alpha1.ReasonUpgradeStarted)
		Eventually(func() string {
			deployment := &appsv1.Deployment{}
			Expect(k8s.Get(w.ctx, w.key("cache-shards"), deployment)).To(Succeed())
			return deployment.Spec.Template.Spec.Containers[0].Image
		}, within, every).Should(Equal("farpool/dataplane:next"))
		w.rollOut("cache-shards-next")

		for at, name := range names {
			Eventually(func() string { return imageOfPod(w, name) }, within, every).Should(Equal("farpool/dataplane:next"))
			for _, later := range names[at+1:] {
				Expect(imageOfPod(w, later)).To(Equal(before))
			}
			w.awaitCondition(v1alpha1.ConditionUpToDate, metav1.ConditionFalse, v1alpha1.ReasonUpgrading, ContainSubstring(fmt.Sprintf("%d of 2 memory nodes run farpool/dataplane:next", at)))
			kept, _ := w.agents[name].snapshot()
			w.restartWith(name, kept)
			Eventually(func() string { return w.node(name).Status.Image }, within, every).Should(Equal("farpool/dataplane:next"))
			Expect(w.awaitPod(name).UID).To(Equal(uids[name]))
		}
		w.awaitCondition(v1alpha1.ConditionUpToDate, metav1.ConditionTrue, v1alpha1.ReasonCurrent)
		w.awaitEvent("KVPool", v1alpha1.ReasonUpgradeComplete)
		Expect(w.current().Status.Template.Image).To(Equal("farpool/dataplane:next"))
		Expect(w.current().Status.Template.CreatedWith).To(Equal(before))
		w.settle()
	})
})

// restartWith runs another process in a memory node's pod, over the memory of the one before.
func (w *world) restartWith(name string, before *farpoolv1alpha1.Facts) {
	GinkgoHelper()
	facts := memoryNodeFacts(string(w.pool.UID), name, 1_000_000_000_000_000_000+incarnations.Add(1))
	facts.MemoryNode.MemoryFresh, facts.MemoryNode.RecordedEpoch, facts.MemoryNode.Map = false, before.GetEpoch(), before.GetMemoryNode().GetMap()
	w.runAs(name, facts, name+"-node-tls")
}

// SPDX-License-Identifier: Apache-2.0

package kvpool

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"farpool.dev/farpool/api/v1alpha1"
)

var _ = Describe("The Service of a KVPool", func() {
	It("follows the spec there and back, and keeps its address", func() {
		w := newWorld(nil)
		w.create()
		service := &corev1.Service{}
		looks := func(check func(g Gomega)) {
			GinkgoHelper()
			Eventually(func(g Gomega) {
				*service = corev1.Service{}
				g.Expect(k8s.Get(w.ctx, w.key("cache"), service)).To(Succeed())
				check(g)
			}, within, every).Should(Succeed())
		}
		looks(func(g Gomega) { g.Expect(service.Spec.Type).To(Equal(corev1.ServiceTypeClusterIP)) })
		address, uid := service.Spec.ClusterIP, service.UID
		Expect(w.change(func(pool *v1alpha1.KVPool) {
			pool.Spec.Service = &v1alpha1.ServiceSpec{
				Type: corev1.ServiceTypeLoadBalancer, NodePort: ptr.To(int32(30379)), LoadBalancerClass: "example.com/internal",
				Labels: map[string]v1alpha1.LabelValue{"team": "a"}, Annotations: map[string]string{"note": "b"},
				LoadBalancerSourceRanges: []v1alpha1.SourceRange{"10.0.0.0/8"}, ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal,
				TrafficDistribution: corev1.ServiceTrafficDistributionPreferClose, IPFamilyPolicy: corev1.IPFamilyPolicySingleStack,
			}
		})).To(Succeed())
		looks(func(g Gomega) {
			g.Expect(service.Spec.Type).To(Equal(corev1.ServiceTypeLoadBalancer))
			g.Expect(service.Spec.Ports[0].NodePort).To(BeEquivalentTo(30379))
			g.Expect(*service.Spec.LoadBalancerClass).To(Equal("example.com/internal"))
			g.Expect(service.Labels).To(And(HaveKeyWithValue("team", "a"), HaveKeyWithValue(v1alpha1.LabelPool, "cache")))
			g.Expect(service.Annotations).To(HaveKeyWithValue("note", "b"))
			g.Expect(service.Spec.LoadBalancerSourceRanges).To(Equal([]string{"10.0.0.0/8"}))
			g.Expect(service.Spec.ExternalTrafficPolicy).To(Equal(corev1.ServiceExternalTrafficPolicyLocal))
			g.Expect(*service.Spec.TrafficDistribution).To(Equal(corev1.ServiceTrafficDistributionPreferClose))
		})
		Expect(w.change(func(pool *v1alpha1.KVPool) {
			pool.Spec.Service = &v1alpha1.ServiceSpec{Type: corev1.ServiceTypeNodePort}
		})).To(Succeed())
		looks(func(g Gomega) {
			g.Expect(service.Spec.Type).To(Equal(corev1.ServiceTypeNodePort))
			g.Expect(service.Spec.Ports[0].NodePort).NotTo(BeZero())
			g.Expect(service.Spec.LoadBalancerClass).To(BeNil())
			g.Expect(service.Spec.LoadBalancerSourceRanges).To(BeEmpty())
			g.Expect(service.Annotations).NotTo(HaveKey("note"))
			g.Expect(service.Labels).NotTo(HaveKey("team"))
		})
		Expect(w.change(func(pool *v1alpha1.KVPool) { pool.Spec.Service = nil })).To(Succeed())
		looks(func(g Gomega) {
			g.Expect(service.Spec.Type).To(Equal(corev1.ServiceTypeClusterIP))
			g.Expect(service.Spec.Ports[0].NodePort).To(BeZero())
			g.Expect(service.Spec.ExternalTrafficPolicy).To(BeEmpty())
		})
		Expect(service.Spec.ClusterIP).To(Equal(address))
		Expect(service.UID).To(Equal(uid))
	})
})

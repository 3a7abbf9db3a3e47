// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"slices"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	farpoolv1alpha1 "farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/e2e/cluster"
)

// inHostNetwork is a pool over RDMA of one memory node and one shard, each in the network of a Kubernetes node.
func inHostNetwork(name string) string {
	return fmt.Sprintf(`
apiVersion: farpool.dev/v1alpha1
kind: KVPool
metadata: {name: %s}
spec:
  dataPolicy: Store
  failureTimeoutMilliseconds: 20000
  network: {transport: RoCEv2, attachment: {type: HostNetwork, hostNetwork: {resourceName: %s}}}
  memory: {pools: [{name: memory, replicas: 1, lend: 64Mi}]}
  compute: {pools: [{name: shards, replicas: 1}]}
`, name, rdmaResource)
}

// operatorsPolicy returns what the operator's NetworkPolicy says, with these peers at the agents' port.
func operatorsPolicy(ctx context.Context, to []networkingv1.NetworkPolicyPeer) networkingv1.NetworkPolicySpec {
	GinkgoHelper()
	var policy networkingv1.NetworkPolicy
	Expect(kind.Get(ctx, client.ObjectKey{Namespace: systemNamespace, Name: operatorName}, &policy)).To(Succeed())
	at := slices.IndexFunc(policy.Spec.Egress, func(rule networkingv1.NetworkPolicyEgressRule) bool {
		return slices.ContainsFunc(rule.Ports, func(port networkingv1.NetworkPolicyPort) bool { return port.Port.IntValue() == agentPort })
	})
	Expect(at).To(BeNumerically(">=", 0), "the operator's policy has no rule for the agents' port: %+v", policy.Spec.Egress)
	policy.Spec.Egress[at].To = to
	return policy.Spec
}

// Policies select no pod in the network of its Kubernetes node. So it takes enforced policies, and two Kubernetes nodes with RDMA devices:
// make e2e-softroce SOFTROCE_WORKERS=2.
var _ = Describe("A pool over RDMA whose pods use the network of their Kubernetes nodes", Label("rdma", "policies"), func() {
	It("serves where NetworkPolicies are enforced, because the operator's admits any address at the agents' port", func(ctx SpecContext) {
		const keys = 1000
		begun := time.Now()
		p := apply(ctx, namespaceAt(ctx, "host-network", "privileged"), inHostNetwork("host"))
		p.ready(ctx)
		available := time.Since(begun)
		pods := append(p.memoryNodes(ctx), p.shards(ctx)...)
		Expect(pods).To(HaveLen(2))
		for _, pod := range pods {
			Expect(pod.Spec.HostNetwork).To(BeTrue())
			Expect(pod.Status.PodIP).To(Equal(pod.Status.HostIP))
		}
		target := p.target(ctx)
		target.Patience = time.Minute
		begun = time.Now()
		load(ctx, target, keys)
		took := time.Since(begun)
		Expect(asked(reach(ctx, p.memoryNodes(ctx), nodeProcess), "farpool_wire_bytes_total")).To(HaveEach(BeZero()), "bytes of lanes over TCP")

		By("connecting from pods like the operator's: one with its labels, and one whose policy admits pods by their labels, which are of no use here")
		operators, err := kind.Core.CoreV1().Pods(systemNamespace).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=operator"})
		Expect(err).NotTo(HaveOccurred())
		Expect(operators.Items).NotTo(BeEmpty())
		operator := operators.Items[0]
		its := map[string]string{}
		for _, name := range []string{"name", "instance", "component"} {
			its["app.kubernetes.io/"+name] = operator.Labels["app.kubernetes.io/"+name]
		}
		others := map[string]string{cluster.Label: "by-labels"}
		byLabels := &networkingv1.NetworkPolicy{
			ObjectMeta: metav1.ObjectMeta{Namespace: systemNamespace, Name: "e2e-by-labels"},
			Spec: operatorsPolicy(ctx, []networkingv1.NetworkPolicyPeer{{
				NamespaceSelector: &metav1.LabelSelector{},
				PodSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
					Key: farpoolv1alpha1.LabelComponent, Operator: metav1.LabelSelectorOpIn,
					Values: []string{farpoolv1alpha1.ComponentMemoryNode, farpoolv1alpha1.ComponentComputeShard},
				}}},
			}}),
		}
		byLabels.Spec.PodSelector = metav1.LabelSelector{MatchLabels: others}
		Expect(kind.Create(ctx, byLabels)).To(Succeed())
		DeferCleanup(func(ctx SpecContext) { Expect(kind.Delete(ctx, byLabels)).To(Succeed()) }, NodeTimeout(time.Minute))
		reaches := func(name string, labels map[string]string, port int, matcher OmegaMatcher) {
			GinkgoHelper()
			from := bystander(ctx, systemNamespace, fmt.Sprintf("e2e-%s-%d", name, port), pods[0].Spec.Containers[0].Image, operator.Spec.NodeName, labels)
			DeferCleanup(func(ctx SpecContext) { Expect(kind.Delete(ctx, from)).To(Succeed()) }, NodeTimeout(time.Minute))
			for _, pod := range pods {
				Eventually(func() ([]string, error) { return connects(ctx, from, &pod, port) }).WithContext(ctx).Should(matcher, "%s at port %d of %s", name, port, pod.Name)
			}
		}
		reaches("operator", its, agentPort, HaveLen(1))
		reaches("operator", its, webPort, BeEmpty())
		reaches("by-labels", others, agentPort, BeEmpty())
		p.whole(ctx, target, keys)
		AddReportEntry("host network", fmt.Sprintf("Available after %.0f s; %d keys written and read in %.0f s by RDMA alone; agents are reached by the port, and not by labels",
			available.Seconds(), keys, took.Seconds()))
	}, SpecTimeout(10*time.Minute+2*patience))
})

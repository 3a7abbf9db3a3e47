// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"farpool.dev/farpool/e2e/cluster"
)

const (
	sessionPort = 7400
	agentPort   = 7401
)

// connects returns to which addresses of a pod, one of each family of the cluster, another pod makes a TCP connection.
func connects(ctx context.Context, from, to *corev1.Pod, port int) ([]string, error) {
	var made []string
	for _, of := range to.Status.PodIPs {
		address, err := netip.ParseAddr(of.IP)
		if err != nil {
			return nil, err
		}
		out, err := kind.InPod(ctx, from, fmt.Sprintf(`timeout 5 bash -c '</dev/tcp/%s/%d' 2>/dev/null && echo yes || echo no`, address, port))
		if err != nil {
			return nil, err
		}
		if strings.TrimSpace(out) == "yes" {
			made = append(made, of.IP)
		}
	}
	return made, nil
}

// bystander starts a pod with some labels that does nothing by itself, on a Kubernetes node if one is named, and waits until it runs.
func bystander(ctx context.Context, namespace, name, image, node string, labels map[string]string) *corev1.Pod {
	GinkgoHelper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels},
		Spec: corev1.PodSpec{
			NodeName:                      node,
			AutomountServiceAccountToken:  ptr.To(false),
			TerminationGracePeriodSeconds: ptr.To(int64(0)),
			SecurityContext:               &corev1.PodSecurityContext{RunAsNonRoot: ptr.To(true), RunAsUser: ptr.To(int64(65532)), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
			Containers: []corev1.Container{{
				Name: name, Image: image, Command: []string{"sleep", "infinity"},
				SecurityContext: &corev1.SecurityContext{AllowPrivilegeEscalation: ptr.To(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}},
			}},
		},
	}
	Expect(kind.Create(ctx, pod)).To(Succeed())
	Eventually(func(g Gomega) {
		g.Expect(kind.Get(ctx, client.ObjectKeyFromObject(pod), pod)).To(Succeed())
		g.Expect(pod.Status.Phase).To(Equal(corev1.PodRunning))
	}).WithContext(ctx).Should(Succeed())
	return pod
}

var _ = Describe("A pool in a cluster of another kind", Ordered, func() {
	var p pool
	BeforeAll(func(ctx SpecContext) {
		p = apply(ctx, namespace(ctx, "clusters"), small("elsewhere", 2, 2, ""))
		p.ready(ctx)
	}, NodeTimeout(5*time.Minute))

	It("serves, and goes on when a process is killed", Label("clusters"), func(ctx SpecContext) {
		for _, pod := range append(p.memoryNodes(ctx), p.shards(ctx)...) {
			GinkgoWriter.Printf("%s has %v\n", pod.Name, pod.Status.PodIPs)
		}
		for _, pod := range p.memoryNodes(ctx) {
			host, _, err := net.SplitHostPort(p.memoryNode(ctx, pod.Name).Status.Endpoint)
			Expect(err).NotTo(HaveOccurred())
			Expect(host).To(Equal(pod.Status.PodIP))
		}
		const keys = 1000
		target := p.target(ctx)
		load(ctx, target, keys)
		killed := time.Now()
		_, err := kind.Kill(ctx, &p.memoryNodes(ctx)[0], nodeProcess)
		Expect(err).NotTo(HaveOccurred())
		Eventually(func() error { return tryLoad(ctx, target, keys) }).WithContext(ctx).Should(Succeed())
		node := time.Since(killed)
		killed = time.Now()
		_, err = kind.Kill(ctx, &p.shards(ctx)[0], shardProcess)
		Expect(err).NotTo(HaveOccurred())
		Eventually(func() error { return tryLoad(ctx, target, keys) }).WithContext(ctx).Should(Succeed())
		AddReportEntry("served", fmt.Sprintf("pods have %d addresses each; %d keys written and read again %.0f s after a memory node's process was killed, and %.0f s after a shard's",
			len(p.shards(ctx)[0].Status.PodIPs), keys, node.Seconds(), time.Since(killed).Seconds()))
	}, SpecTimeout(5*time.Minute))

	It("admits to each port who has business there, and nobody else", Label("policies"), func(ctx SpecContext) {
		ns := namespace(ctx, "strangers")
		image := p.shards(ctx)[0].Spec.Containers[0].Image
		stranger := bystander(ctx, ns, "stranger", image, "", map[string]string{cluster.Label: "true", "farpool.dev/pool": p.name})
		shard, node := &p.shards(ctx)[0], &p.memoryNodes(ctx)[0]
		connected, refused := 0, 0
		for _, attempt := range []struct {
			name     string
			from, to *corev1.Pod
			port     int
			admitted bool
		}{
			{"an application at the Redis port", stranger, shard, respPort, true},
			{"anybody at the metrics of a shard", stranger, shard, webPort, true},
			{"a shard at a memory node's sessions", shard, node, sessionPort, true},
			{"a stranger at a memory node's sessions", stranger, node, sessionPort, false},
			{"a stranger at a memory node's agent", stranger, node, agentPort, false},
			{"a stranger at a shard's agent", stranger, shard, agentPort, false},
			{"a shard at a memory node's agent", shard, node, agentPort, false},
			{"a memory node at a shard's Redis port", node, shard, respPort, false},
			{"a memory node at a stranger", node, stranger, respPort, false},
		} {
			admitted := BeEmpty()
			if attempt.admitted {
				admitted = HaveLen(len(attempt.to.Status.PodIPs))
				connected += len(attempt.to.Status.PodIPs)
			} else {
				refused += len(attempt.to.Status.PodIPs)
			}
			Eventually(func() ([]string, error) { return connects(ctx, attempt.from, attempt.to, attempt.port) }).WithContext(ctx).WithTimeout(time.Minute).
				Should(admitted, attempt.name)
		}
		AddReportEntry("policies", fmt.Sprintf("%d connections made that are allowed, %d kept away that are not", connected, refused))
	}, SpecTimeout(5*time.Minute))
})

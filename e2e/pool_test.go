// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"sort"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	farpoolv1alpha1 "farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/e2e/cluster"
	"farpool.dev/farpool/e2e/workload"
)

const respPort = 6379

// pool is a KVPool in the cluster.
type pool struct{ namespace, name string }

func (p pool) key() client.ObjectKey { return client.ObjectKey{Namespace: p.namespace, Name: p.name} }

func (p pool) get(ctx context.Context) *farpoolv1alpha1.KVPool {
	GinkgoHelper()
	var out farpoolv1alpha1.KVPool
	// An API server that has just come back may refuse a connection yet.
	Eventually(func() error { return kind.Get(ctx, p.key(), &out) }).WithContext(ctx).WithTimeout(20 * time.Second).Should(Succeed())
	return &out
}

// sample is the pool that make up applies.
func sample() string {
	GinkgoHelper()
	data, err := os.ReadFile("../config/samples/kvpool.yaml")
	Expect(err).NotTo(HaveOccurred())
	return string(data)
}

// small is a pool that fits beside others: as many shards as asked for, over memory nodes of 64Mi, which request as few processors whatever their index.
func small(name string, memoryNodes, shards int, more string) string {
	return fmt.Sprintf(`
apiVersion: farpool.dev/v1alpha1
kind: KVPool
metadata: {name: %s}
spec:
  network: {transport: TCP}
  memory: {pools: [{name: memory, replicas: %d, resources: {requests: {cpu: 100m}}, lend: 64Mi}]}
  compute: {pools: [{name: shards, replicas: %d}]}
%s`, name, memoryNodes, shards, more)
}

// apply makes a pool of a manifest.
func apply(ctx context.Context, namespace, manifest string) pool {
	GinkgoHelper()
	var parsed farpoolv1alpha1.KVPool
	Expect(yaml.UnmarshalStrict([]byte(manifest), &parsed)).To(Succeed())
	_, err := kind.Kubectl(ctx, manifest, "-n", namespace, "apply", "--server-side", "-f", "-")
	Expect(err).NotTo(HaveOccurred())
	return pool{namespace, parsed.Name}
}

// condition is a condition of the pool's status that speaks of its present generation.
func (p pool) condition(ctx context.Context, kind string) *metav1.Condition {
	GinkgoHelper()
	got := p.get(ctx)
	c := meta.FindStatusCondition(got.Status.Conditions, kind)
	if c == nil || c.ObservedGeneration != got.Generation {
		return &metav1.Condition{Type: kind, Status: metav1.ConditionUnknown, Reason: "NotObserved"}
	}
	return c
}

// says waits until a condition has a status, and one of the reasons if any are named. Statuses of a pool and of what belongs to it are written one after the other.
func (p pool) says(ctx context.Context, kind string, status metav1.ConditionStatus, reasons ...string) {
	GinkgoHelper()
	Eventually(p.condition).WithContext(ctx).WithArguments(kind).Should(haveStatus(status, reasons...))
}

// haveStatus matches a condition.
func haveStatus(status metav1.ConditionStatus, reasons ...string) OmegaMatcher {
	return WithTransform(func(c *metav1.Condition) string {
		if len(reasons) == 0 {
			return string(c.Status)
		}
		return string(c.Status) + " " + c.Reason
	}, func() OmegaMatcher {
		if len(reasons) == 0 {
			return Equal(string(status))
		}
		var any []OmegaMatcher
		for _, r := range reasons {
			any = append(any, Equal(string(status)+" "+r))
		}
		return Or(any...)
	}())
}

// ready waits until the pool serves with all its processes, and is as more conditions say.
func (p pool) ready(ctx context.Context, more ...func(Gomega)) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		for _, condition := range more {
			condition(g)
		}
		got := p.get(ctx)
		g.Expect(got.Status.ObservedGeneration).To(Equal(got.Generation))
		g.Expect(meta.IsStatusConditionTrue(got.Status.Conditions, farpoolv1alpha1.ConditionAvailable)).To(BeTrue(), "conditions: %+v", got.Status.Conditions)
		g.Expect(got.Status.Memory).NotTo(BeNil())
		g.Expect(got.Status.Memory.Ready).To(Equal(got.Status.Memory.Desired))
		want := int32(0)
		if got.Spec.Compute != nil {
			for _, c := range got.Spec.Compute.Pools {
				want += c.Replicas
			}
		}
		if want > 0 {
			g.Expect(got.Status.Compute).NotTo(BeNil())
			g.Expect(got.Status.Compute.Ready).To(Equal(want))
		}
	}).WithContext(ctx).Should(Succeed())
}

// pods of a component, without pods that are on their way out, by name.
func (p pool) pods(ctx context.Context, component string) []corev1.Pod {
	GinkgoHelper()
	var all corev1.PodList
	Expect(kind.List(ctx, &all, client.InNamespace(p.namespace),
		client.MatchingLabels{farpoolv1alpha1.LabelPool: p.name, farpoolv1alpha1.LabelComponent: component})).To(Succeed())
	var out []corev1.Pod
	for _, pod := range all.Items {
		if pod.DeletionTimestamp == nil {
			out = append(out, pod)
		}
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Name < out[j].Name })
	return out
}

func (p pool) shards(ctx context.Context) []corev1.Pod {
	GinkgoHelper()
	return p.pods(ctx, farpoolv1alpha1.ComponentComputeShard)
}

func (p pool) memoryNodes(ctx context.Context) []corev1.Pod {
	GinkgoHelper()
	return p.pods(ctx, farpoolv1alpha1.ComponentMemoryNode)
}

// scale sets the replicas of the pool's first compute pool and waits for them.
func (p pool) scale(ctx context.Context, replicas int) {
	GinkgoHelper()
	patch := fmt.Sprintf(`[{"op":"replace","path":"/spec/compute/pools/0/replicas","value":%d}]`, replicas)
	_, err := kind.Kubectl(ctx, "", "-n", p.namespace, "patch", "kvpool", p.name, "--type=json", "-p", patch)
	Expect(err).NotTo(HaveOccurred())
	p.ready(ctx)
	Eventually(p.shards).WithContext(ctx).Should(HaveLen(replicas))
}

// password of the pool, as its Secret has it.
func (p pool) password(ctx context.Context) string {
	GinkgoHelper()
	if p.get(ctx).Spec.Security.Password == farpoolv1alpha1.PasswordNone {
		return ""
	}
	var secret corev1.Secret
	Expect(kind.Get(ctx, client.ObjectKey{Namespace: p.namespace, Name: p.name + "-password"}, &secret)).To(Succeed())
	Expect(secret.Data["password"]).NotTo(BeEmpty())
	return strings.TrimSpace(string(secret.Data["password"]))
}

// target reaches each of the pool's shards by itself.
func (p pool) target(ctx context.Context) workload.Target {
	GinkgoHelper()
	t := workload.Target{Password: p.password(ctx)}
	for _, pod := range p.shards(ctx) {
		address, err := kind.ExposePod(ctx, &pod, respPort)
		Expect(err).NotTo(HaveOccurred())
		t.Shards = append(t.Shards, address)
	}
	return t
}

// life identifies the containers of the pool's pods: it changes when any of them is replaced or restarted.
func (p pool) life(ctx context.Context) map[string]string {
	GinkgoHelper()
	out := map[string]string{}
	for _, pod := range append(p.shards(ctx), p.memoryNodes(ctx)...) {
		for _, c := range pod.Status.ContainerStatuses {
			out[pod.Name+"/"+c.Name] = fmt.Sprintf("%s, restarts %d, %s", pod.UID, c.RestartCount, c.ContainerID)
		}
	}
	return out
}

// events of the pool's namespace with a reason, as "object: message".
func (p pool) events(ctx context.Context, reasons ...string) []string {
	GinkgoHelper()
	all, err := kind.Core.EventsV1().Events(p.namespace).List(ctx, metav1.ListOptions{})
	Expect(err).NotTo(HaveOccurred())
	var out []string
	for _, e := range all.Items {
		for _, r := range reasons {
			if e.Reason == r {
				out = append(out, fmt.Sprintf("%s/%s: %s", e.Regarding.Kind, e.Regarding.Name, e.Note))
			}
		}
	}
	return out
}

// tells waits until the events with any of the reasons match. Events are written after what they are about.
func (p pool) tells(ctx context.Context, matcher OmegaMatcher, reasons ...string) {
	GinkgoHelper()
	Eventually(func() []string { return p.events(ctx, reasons...) }).WithContext(ctx).Should(matcher, "%v", reasons)
}

// delete removes the pool and waits until nothing of it is left.
func (p pool) delete(ctx context.Context) {
	GinkgoHelper()
	there := &farpoolv1alpha1.KVPool{ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: p.name}}
	confirmed := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata": {"annotations": {%q: %q}}}`, farpoolv1alpha1.AnnotationConfirmDeletion, p.name))
	Expect(kind.Patch(ctx, there, confirmed)).To(Succeed())
	Expect(kind.Delete(ctx, there)).To(Succeed())
	Eventually(p.remains).WithContext(ctx).WithTimeout(2 * time.Minute).Should(BeEmpty())
}

// remains lists every object of the namespace that bears the pool's name or is named after it.
func (p pool) remains(ctx context.Context) []string {
	GinkgoHelper()
	var out []string
	for _, resource := range []string{
		"kvpools.farpool.dev", "memorynodes.farpool.dev", "shardmaps.farpool.dev", "repairleases.farpool.dev", "resizeoperations.farpool.dev", "memorynodepools.farpool.dev",
		"computeshardpools.farpool.dev", "pods", "services", "endpointslices", "secrets", "configmaps",
		"deployments", "replicasets", "poddisruptionbudgets", "networkpolicies", "serviceaccounts", "leases",
	} {
		names, err := kind.Kubectl(ctx, "", "-n", p.namespace, "get", resource, "-l", cluster.Label+"!=true", "-o",
			`jsonpath={range .items[*]}{.metadata.name}{"\n"}{end}`)
		Expect(err).NotTo(HaveOccurred())
		for _, name := range strings.Fields(names) {
			if name == p.name || strings.HasPrefix(name, p.name+"-") {
				out = append(out, resource+"/"+name)
			}
		}
	}
	return out
}

// SPDX-License-Identifier: Apache-2.0

package kvpool

import (
	"os"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/proto"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	farpoolv1alpha1 "farpool.dev/farpool/api/gen/farpool/v1alpha1"
	"farpool.dev/farpool/api/v1alpha1"
)

// A person who may make pods in a pool's namespace may give them any labels, and mount its Secrets. What the operator believes hangs on neither.
var _ = Describe("A pod that bears a pool's labels", func() {
	It("is not believed unless the pool's own Deployment has made it", func() {
		w := newWorld(nil)
		w.up()
		trusted := w.shard("cache-shards-0", "worker-0")
		w.written(trusted)

		By("pods with labels, and certificates, and owners of their own making")

		other := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: w.pool.Namespace, Name: "other", Labels: w.shardLabels()}, Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: w.shardLabels()},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: w.shardLabels()}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "shell", Image: "shell"}}}},
		}}
		Expect(k8s.Create(w.ctx, other)).To(Succeed())
		w.shardPod("nobodys", "worker-0")
		w.shardPod("of-another-deployment", "worker-0", w.replicaSet("other"))
		w.shardPod("of-the-pool-itself", "worker-0", *metav1.NewControllerRef(w.current(), v1alpha1.GroupVersion.WithKind("KVPool")))
		strangers := []*fakeAgent{w.runShard("nobodys", nil), w.runShard("of-another-deployment", nil), w.runShard("of-the-pool-itself", nil)}

		By("hearing none of them")
		w.settle()
		for _, stranger := range strangers {
			Expect(stranger.watching()).To(BeZero())
		}
		Expect(trusted.watching()).To(Equal(1))
		Expect(w.writtenDown()).To(HaveLen(1))

		By("naming them")
		Eventually(func() string {
			return w.awaitCondition(v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonForeignPods).Message
		}, within, every).Should(ContainSubstring("nobodys, of-another-deployment, of-the-pool-itself"))
		w.awaitEvent("KVPool", v1alpha1.ReasonForeignPods)

		By("keeping one that it knows, although its ReplicaSet is gone")
		set := &appsv1.ReplicaSet{}
		Expect(k8s.Get(w.ctx, w.key("cache-shards-5d4f8c7b9"), set)).To(Succeed())
		Expect(k8s.Delete(w.ctx, set)).To(Succeed())
		w.settle()
		Expect(trusted.watching()).To(Equal(1))
		Expect(w.leases()).To(BeEmpty())
	})
})

// admission is a policy that the chart installs, about members or deletions, for one namespace.
func (w *world) admission(policyName string) {
	GinkgoHelper()
	data, err := os.ReadFile("../../../../charts/testdata/default.yaml")
	Expect(err).NotTo(HaveOccurred())
	for _, document := range strings.Split(string(data), "\n---\n") {
		var policy admissionv1.ValidatingAdmissionPolicy
		var binding admissionv1.ValidatingAdmissionPolicyBinding
		switch {
		case !strings.Contains(document, "\n  name: farpool-operator-"+policyName+"\n"):
		case strings.Contains(document, "\nkind: ValidatingAdmissionPolicy\n"):
			Expect(yaml.UnmarshalStrict([]byte(document), &policy)).To(Succeed())
			policy.Name = w.pool.Namespace
			policy.Spec.MatchConstraints.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: w.pool.Namespace}}
			Expect(k8s.Create(w.ctx, &policy)).To(Succeed())
			DeferCleanup(func() { _ = k8s.Delete(w.ctx, &policy) })
		case strings.Contains(document, "\nkind: ValidatingAdmissionPolicyBinding\n"):
			Expect(yaml.UnmarshalStrict([]byte(document), &binding)).To(Succeed())
			binding.Name, binding.Spec.PolicyName = w.pool.Namespace, w.pool.Namespace
			Expect(k8s.Create(w.ctx, &binding)).To(Succeed())
			DeferCleanup(func() { _ = k8s.Delete(w.ctx, &binding) })
		}
	}
}

// as is the API server for somebody who may do everything that admission lets through.
func as(user string) client.Client {
	GinkgoHelper()
	impersonated := rest.CopyConfig(environment.Config)
	impersonated.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:masters"}}
	impersonator, err := client.New(impersonated, client.Options{Scheme: scheme})
	Expect(err).NotTo(HaveOccurred())
	return impersonator
}

var _ = Describe("The chart's admission policy", func() {
	It("lets nobody but the operator and its Deployments' controllers label pods as a pool's", func() {
		w := newWorld(nil)
		w.admission("members")
		container := corev1.PodSpec{Containers: []corev1.Container{{Name: "shell", Image: "shell"}}}
		pod := func(labels map[string]string) *corev1.Pod {
			return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.pool.Namespace, GenerateName: "pod-", Labels: labels}, Spec: container}
		}
		template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: w.shardLabels()}, Spec: container}
		selector := &metav1.LabelSelector{MatchLabels: w.shardLabels()}
		meta := metav1.ObjectMeta{Namespace: w.pool.Namespace, GenerateName: "set-"}

		const controllers = "system:serviceaccount:kube-system:"
		person, operator := as("person"), as("system:serviceaccount:farpool-system:farpool-operator")
		refused := func(err error) {
			GinkgoHelper()
			Expect(err).To(MatchError(ContainSubstring("belongs to pods that the farpool operator makes")))
		}
		// A policy takes a moment to be in force.
		Eventually(func() error { return person.Create(w.ctx, pod(w.shardLabels())) }, within, every).Should(MatchError(ContainSubstring("farpool operator makes")))

		By("pods, and what makes pods")
		refused(person.Create(w.ctx, &appsv1.ReplicaSet{ObjectMeta: meta, Spec: appsv1.ReplicaSetSpec{Selector: selector, Template: template}}))
		refused(person.Create(w.ctx, &appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{Selector: selector, Template: template}}))
		refused(as(controllers+"daemon-set-controller").Create(w.ctx, pod(w.shardLabels())))
		refused(as(controllers+"deployment-controller").Create(w.ctx, &appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{Selector: selector, Template: template}}))
		Expect(operator.Create(w.ctx, &appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{Selector: selector, Template: template}})).To(Succeed())
		Expect(as(controllers+"deployment-controller").Create(w.ctx, &appsv1.ReplicaSet{ObjectMeta: meta, Spec: appsv1.ReplicaSetSpec{Selector: selector, Template: template}})).To(Succeed())
		Expect(as(controllers+"replicaset-controller").Create(w.ctx, pod(w.shardLabels()))).To(Succeed())
		Expect(operator.Create(w.ctx, pod(w.shardLabels()))).To(Succeed())

		By("labels that are changed later")
		other := pod(map[string]string{"app": "shell"})
		Expect(person.Create(w.ctx, other)).To(Succeed())
		other.Labels = w.shardLabels()
		refused(person.Update(w.ctx, other))
		member := pod(w.shardLabels())
		Expect(operator.Create(w.ctx, member)).To(Succeed())
		member.Labels[v1alpha1.LabelPool] = "another"
		refused(person.Update(w.ctx, member))
		member.Labels = w.shardLabels()
		member.Annotations = map[string]string{"looked": "at"}
		Expect(person.Update(w.ctx, member)).To(Succeed())
		member.Labels = nil
		Expect(person.Update(w.ctx, member)).To(Succeed(), "a pod may be taken out of the pool for a look")
	})
})

var _ = Describe("The chart's policy about deletions", func() {
	It("asks for the name of a Store, and of no Cache, and holds up no namespace", func() {
		w := newWorld(nil)
		w.admission("deletions")
		pool := func(name string, policy v1alpha1.DataPolicy) *v1alpha1.KVPool {
			pool := w.pool.DeepCopy()
			pool.Name, pool.Spec.DataPolicy = name, policy
			Expect(k8s.Create(w.ctx, pool)).To(Succeed())
			return pool
		}
		person := as("person")
		refused := MatchError(ContainSubstring("KVPool ledger is a Store, and all its keys are lost when it is deleted: to delete it, give kubectl farpool delete ledger -n " + w.pool.Namespace))
		store := pool("ledger", v1alpha1.DataPolicyStore)
		// A policy takes a moment to be in force. A dry run is admitted as a deletion is.
		Eventually(func() error { return person.Delete(w.ctx, store, client.DryRunAll) }, within, every).Should(refused)
		Expect(person.DeleteAllOf(w.ctx, &v1alpha1.KVPool{}, client.InNamespace(w.pool.Namespace))).To(refused)
		Expect(person.Delete(w.ctx, pool("sessions", v1alpha1.DataPolicyCache))).To(Succeed())

		By("the annotation of another pool")
		confirm := func(name string) {
			patch := client.MergeFrom(store.DeepCopy())
			store.Annotations = map[string]string{v1alpha1.AnnotationConfirmDeletion: name}
			Expect(person.Patch(w.ctx, store, patch)).To(Succeed())
		}
		confirm("sessions")
		Expect(person.Delete(w.ctx, store)).To(refused)

		By("its own")
		confirm("ledger")
		Expect(person.Delete(w.ctx, store)).To(Succeed())

		By("a namespace that is being deleted")
		store = pool("ledger", v1alpha1.DataPolicyStore)
		namespace := &corev1.Namespace{}
		Expect(k8s.Get(w.ctx, client.ObjectKey{Name: w.pool.Namespace}, namespace)).To(Succeed())
		Expect(k8s.Delete(w.ctx, namespace)).To(Succeed())
		Eventually(func() error { return as("system:serviceaccount:kube-system:namespace-controller").Delete(w.ctx, store) }, within, every).Should(Succeed())
	})
})

// held is the map that a memory node holds.
func held(agent *fakeAgent) *farpoolv1alpha1.ShardMap {
	facts, _ := agent.snapshot()
	return facts.GetMemoryNode().GetMap()
}

// A compute shard or memory node that somebody else controls has a certificate of the pool, and says what it likes.
var _ = Describe("A process that lies", func() {
	It("uses up no epochs, and has no map of its own making published", func() {
		w := newWorld(nil)
		w.up()
		shard := w.shard("cache-shards-0", "worker-0")
		w.written(shard)
		By("a compute shard that claims an epoch")
		shard.update(func(facts *farpoolv1alpha1.Facts) { facts.Epoch = 9_999_999_999 })

		By("a memory node that has a map which redirects all keys to itself")
		forged := proto.CloneOf(held(w.agents["cache-memory-0"]))
		for i := range forged.Directory {
			forged.Directory[i] = 0
		}
		for _, epoch := range []uint64{forged.Epoch, 9_999_999_999} {
			forged.Epoch = epoch
			w.agents["cache-memory-0"].update(func(facts *farpoolv1alpha1.Facts) {
				facts.MemoryNode.Map, facts.MemoryNode.RecordedEpoch, facts.Epoch = proto.CloneOf(forged), epoch, epoch
			})
			w.awaitCondition(v1alpha1.ConditionDataPlaneReachable, metav1.ConditionFalse, v1alpha1.ReasonAgentRefused, And(ContainSubstring("memory node cache-memory-0 holds a map that is not the operator's"), ContainSubstring("delete its pod")))
		}
		w.settle()
		Expect(w.maps()).To(HaveLen(1))
		Expect(w.current().Status.ShardMap.Epoch).To(Equal(int64(1)))
		Expect(w.agents["cache-memory-1"].epoch()).To(Equal(uint64(1)))

		By("going on with the epoch after the last one, once its process is another")
		w.run("cache-memory-0")
		w.awaitEpoch(2)
		w.awaitCondition(v1alpha1.ConditionDataPlaneReachable, metav1.ConditionTrue, v1alpha1.ReasonReachable)
	})

	It("does not pass for another one", func() {
		w := newWorld(nil)
		w.create()
		w.run("cache-memory-1")
		w.runAs("cache-memory-0", memoryNodeFacts(string(w.pool.UID), "cache-memory-0", 77), "cache-memory-1-node-tls")
		w.awaitCondition(v1alpha1.ConditionDataPlaneReachable, metav1.ConditionFalse, v1alpha1.ReasonAgentRefused, ContainSubstring("the name cache-memory-0 is wanted"))
		Expect(w.maps()).To(BeEmpty())
	})
})

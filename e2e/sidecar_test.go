// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	farpoolv1alpha1 "farpool.dev/farpool/api/v1alpha1"
)

const injectorName = "farpool-injector"

// asks is a shell function that sends a command to the Redis port of a driver's defaults, and prints the last line of the answer.
const asks = `ask() { exec 3<>/dev/tcp/localhost/6379; printf '%s\r\n' "$1" >&3; read -r answer <&3; case $answer in '$'[0-9]*) read -r answer <&3;; esac; exec 3>&-; printf '%s\n' "${answer%$'\r'}"; }; `

// application is a pod as an application has it: of a user of its own, and with nothing of farpool's in its manifest but the label.
func application(namespace, name, script string, image string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app": name, farpoolv1alpha1.LabelInject: farpoolv1alpha1.InjectTrue}},
		Spec: corev1.PodSpec{
			AutomountServiceAccountToken:  ptr.To(false),
			TerminationGracePeriodSeconds: ptr.To(int64(15)),
			SecurityContext:               &corev1.PodSecurityContext{RunAsNonRoot: ptr.To(true), RunAsUser: ptr.To(int64(1000)), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
			Containers: []corev1.Container{{
				Name: "web", Image: image, Command: []string{"bash", "-c", asks + script},
				SecurityContext: &corev1.SecurityContext{AllowPrivilegeEscalation: ptr.To(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}},
			}},
		},
	}
}

// waits is the script of an application that ends when it is told to.
const waits = `trap 'exit 0' TERM; while true; do sleep 1 & wait $!; done`

// inside runs a script in an application's container.
func inside(ctx context.Context, pod *corev1.Pod, script string) (string, error) {
	out, err := kind.Kubectl(ctx, "", "-n", pod.Namespace, "exec", pod.Name, "-c", "web", "--", "bash", "-c", asks+script)
	return strings.TrimSpace(out), err
}

func (p pool) sidecars(ctx context.Context, namespace string) *farpoolv1alpha1.SidecarNamespaceStatus {
	GinkgoHelper()
	return p.get(ctx).Status.Sidecars.OfNamespace(namespace)
}

var _ = Describe("A pool that lists a namespace for sidecars", Label("sidecar"), Ordered, func() {
	var p pool
	var shop, stranger, image string
	var web *corev1.Pod

	BeforeAll(func(ctx SpecContext) {
		shop, stranger = namespace(ctx, "shop"), namespace(ctx, "stranger")
		p = apply(ctx, namespace(ctx, "sidecars"), small("cache", 2, 1, fmt.Sprintf("  sidecars: {namespaces: [{name: %s, maxSidecars: 8}]}", shop)))
		p.ready(ctx)
		image = p.get(ctx).Status.Template.Image
		Eventually(func(g Gomega) {
			entry := p.sidecars(ctx, shop)
			g.Expect(entry).NotTo(BeNil())
			g.Expect(entry.State).To(Equal(farpoolv1alpha1.SidecarsReady), entry.Message)
		}).WithContext(ctx).Should(Succeed())
	}, NodeTimeout(6*time.Minute))

	It("gives an unchanged pod its pool by one label", Label("short"), func(ctx SpecContext) {
		web = application(shop, "web", waits, image)
		began := time.Now()
		Expect(kind.Create(ctx, web)).To(Succeed())
		Eventually(func() (string, error) { return inside(ctx, web, `ask 'SET greeting hello'`) }).WithContext(ctx).Should(Equal("+OK"))
		GinkgoWriter.Printf("from the label to the first answer: %v\n", time.Since(began))
		Expect(inside(ctx, web, `ask 'GET greeting'`)).To(Equal("hello"))

		By("being the same pool that its compute shards serve")
		shard := p.target(ctx).Connect(0)
		defer func() { _ = shard.Close() }()
		Expect(shard.Get(ctx, "greeting").Result()).To(Equal("hello"))

		By("having a socket for a user who is not the sidecar's, and no key of the pool")
		Expect(inside(ctx, web, `[[ -S $FARPOOL_SOCKET && -w $FARPOOL_SOCKET ]] && echo "$FARPOOL_URL"`)).To(Equal("redis://127.0.0.1:6379/0"))
		Expect(inside(ctx, web, `ls /etc/farpool/credentials /var/lib/farpool 2>/dev/null || echo none`)).To(HaveSuffix("none"))
		Eventually(func(g Gomega) { g.Expect(p.sidecars(ctx, shop).Sidecars).To(Equal(int32(1))) }).WithContext(ctx).Should(Succeed())
	}, SpecTimeout(5*time.Minute))

	It("refuses a namespace that is not listed, and says what to do", Label("short"), func(ctx SpecContext) {
		denied := application(stranger, "web", waits, image)
		denied.Annotations = map[string]string{farpoolv1alpha1.SidecarPrefix + "pool": p.namespace + "/" + p.name}
		err := kind.Create(ctx, denied)
		Expect(err).To(MatchError(And(ContainSubstring("NotListed: "), ContainSubstring(fmt.Sprintf("kubectl -n %s edit kvpool %s", p.namespace, p.name)))))
		var secrets corev1.SecretList
		Expect(kind.List(ctx, &secrets, client.InNamespace(stranger))).To(Succeed())
		Expect(secrets.Items).To(BeEmpty())
	}, SpecTimeout(time.Minute))

	It("lets a Job complete", func(ctx SpecContext) {
		template := application(shop, "", `ask 'SET from-a-job done'`, image)
		template.Spec.RestartPolicy = corev1.RestartPolicyNever
		job := &batchv1.Job{
			ObjectMeta: metav1.ObjectMeta{Namespace: shop, Name: "import"},
			Spec: batchv1.JobSpec{BackoffLimit: ptr.To(int32(0)), Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{farpoolv1alpha1.LabelInject: farpoolv1alpha1.InjectTrue}}, Spec: template.Spec,
			}},
		}
		Expect(kind.Create(ctx, job)).To(Succeed())
		Eventually(func(g Gomega) {
			g.Expect(kind.Get(ctx, client.ObjectKeyFromObject(job), job)).To(Succeed())
			g.Expect(job.Status.Succeeded).To(Equal(int32(1)))
		}).WithContext(ctx).Should(Succeed())
		Expect(inside(ctx, web, `ask 'GET from-a-job'`)).To(Equal("done"))
	}, SpecTimeout(5*time.Minute))

	It("goes on when a sidecar is killed", func(ctx SpecContext) {
		Expect(kind.Get(ctx, client.ObjectKeyFromObject(web), web)).To(Succeed())
		_, err := kind.Kill(ctx, web, shardProcess)
		Expect(err).NotTo(HaveOccurred())
		Eventually(func() (string, error) { return inside(ctx, web, `ask 'GET greeting'`) }).WithContext(ctx).Should(Equal("hello"))
	}, SpecTimeout(5*time.Minute))

	It("starts pods without the label while the injector is away, and refuses the others", func(ctx SpecContext) {
		scale := func(ctx context.Context, replicas int32) {
			GinkgoHelper()
			_, err := kind.Kubectl(ctx, "", "-n", systemNamespace, "scale", "deployment/"+injectorName, fmt.Sprintf("--replicas=%d", replicas))
			Expect(err).NotTo(HaveOccurred())
			Eventually(func(g Gomega) {
				var deployment appsv1.Deployment
				g.Expect(kind.Get(ctx, client.ObjectKey{Namespace: systemNamespace, Name: injectorName}, &deployment)).To(Succeed())
				g.Expect(deployment.Status.Replicas).To(Equal(replicas))
				g.Expect(deployment.Status.ReadyReplicas).To(Equal(replicas))
			}).WithContext(ctx).Should(Succeed())
		}
		scale(ctx, 0)
		DeferCleanup(func(ctx SpecContext) { scale(ctx, 2) }, NodeTimeout(patience))
		bystander(ctx, shop, "without", image, "", map[string]string{"app": "without"})
		// A replica that is ending still answers, until the Service has left it.
		Eventually(func() error { return kind.Create(ctx, application(shop, "with", waits, image), client.DryRunAll) }).
			WithContext(ctx).Should(MatchError(ContainSubstring("inject.farpool.dev")))
		Expect(kind.Create(ctx, application(shop, "with", waits, image))).To(MatchError(ContainSubstring("inject.farpool.dev")))
		Expect(inside(ctx, web, `ask 'GET greeting'`)).To(Equal("hello"))
		scale(ctx, 2)
		Eventually(func() error { return kind.Create(ctx, application(shop, "with", waits, image)) }).WithContext(ctx).Should(Succeed())
	}, SpecTimeout(6*time.Minute))

	It("has nothing to repair when pods go", func(ctx SpecContext) {
		var before farpoolv1alpha1.RepairLeaseList
		Expect(kind.List(ctx, &before, client.InNamespace(p.namespace))).To(Succeed())
		Expect(kind.DeleteAllOf(ctx, &corev1.Pod{}, client.InNamespace(shop), client.MatchingLabels{farpoolv1alpha1.LabelInject: farpoolv1alpha1.InjectTrue})).To(Succeed())
		Eventually(func(g Gomega) { g.Expect(p.sidecars(ctx, shop).Sidecars).To(BeZero()) }).WithContext(ctx).Should(Succeed())
		var after farpoolv1alpha1.RepairLeaseList
		Expect(kind.List(ctx, &after, client.InNamespace(p.namespace))).To(Succeed())
		Expect(len(after.Items)).To(Equal(len(before.Items)))
	}, SpecTimeout(3*time.Minute))

	It("takes the Secret from a namespace that leaves the list, and refuses its pods", func(ctx SpecContext) {
		_, err := kind.Kubectl(ctx, "", "-n", p.namespace, "patch", "kvpool", p.name, "--type=merge", "-p", fmt.Sprintf(`{"spec":{"sidecars":{"namespaces":[{"name":%q}]}}}`, stranger))
		Expect(err).NotTo(HaveOccurred())
		Eventually(func(g Gomega) {
			var secrets corev1.SecretList
			g.Expect(kind.List(ctx, &secrets, client.InNamespace(shop), client.HasLabels{farpoolv1alpha1.LabelPoolUID})).To(Succeed())
			g.Expect(secrets.Items).To(BeEmpty())
		}).WithContext(ctx).Should(Succeed())
		Eventually(func() error {
			return kind.Create(ctx, application(shop, "late", waits, image), client.DryRunAll)
		}).WithContext(ctx).Should(MatchError(ContainSubstring("NoPool: ")))
	}, SpecTimeout(3*time.Minute))
})

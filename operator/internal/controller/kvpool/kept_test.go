// SPDX-License-Identifier: Apache-2.0

package kvpool

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/render"
)

var ctx = context.Background()

// editor is access to the API server with the cluster's own rules for editors of a namespace. (The role `edit` itself is filled by a controller that envtest
// has not; these rules are what it is filled with.)
func editor(namespace string) client.Client {
	GinkgoHelper()
	name := "editor-of-" + namespace
	Expect(k8s.Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:aggregate-to-edit"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name}},
	})).To(Succeed())
	user, err := environment.AddUser(envtest.User{Name: name}, administrator)
	Expect(err).NotTo(HaveOccurred())
	access, err := client.New(user.Config(), client.Options{Scheme: scheme})
	Expect(err).NotTo(HaveOccurred())
	return access
}

var _ = Describe("Secrets that the operator keeps to itself", func() {
	It("are out of the reach of a namespace's editors", func() {
		w := newWorld(nil)
		w.up()
		authority, hash := w.kept()
		tenant := editor(w.pool.Namespace)

		By("reading every Secret of the namespace, as an editor may")
		var list corev1.SecretList
		Eventually(func() error { return tenant.List(w.ctx, &list, client.InNamespace(w.pool.Namespace)) }, within, every).Should(Succeed())
		Expect(list.Items).NotTo(BeEmpty())
		for _, secret := range list.Items {
			for key, value := range secret.Data {
				for _, kept := range [][]byte{hash.Data["pool-secret"], authority.Data["tls.key"]} {
					Expect(bytes.Contains(value, kept)).To(BeFalse(), "%s of Secret %s", key, secret.Name)
				}
			}
			block, _ := pem.Decode(secret.Data["tls.crt"])
			if block != nil {
				certificate, err := x509.ParseCertificate(block.Bytes)
				Expect(err).NotTo(HaveOccurred())
				Expect(certificate.IsCA).To(BeFalse(), "Secret %s holds an authority, which makes certificates of role operator", secret.Name)
			}
		}

		By("asking for them by name")
		for _, secret := range []*corev1.Secret{authority, hash} {
			Expect(apierrors.IsForbidden(tenant.Get(w.ctx, client.ObjectKeyFromObject(secret), &corev1.Secret{}))).To(BeTrue(), secret.Name)
			Expect(secret.OwnerReferences).To(BeEmpty(), "an owner in another namespace has the garbage collector delete it")
			Expect(secret.Finalizers).To(BeEmpty())
			Expect(secret.Labels).To(And(
				HaveKeyWithValue(v1alpha1.LabelPool, "cache"), HaveKeyWithValue(v1alpha1.LabelPoolNamespace, w.pool.Namespace), HaveKeyWithValue(v1alpha1.LabelPoolUID, string(w.pool.UID))))
		}
		Expect(apierrors.IsForbidden(tenant.List(w.ctx, &list, client.InNamespace(secretNamespace)))).To(BeTrue())
	})

	It("get their labels back, and are never made anew while they are there", func() {
		w := newWorld(nil)
		w.up()
		before, hash := w.kept()
		Expect(k8s.Patch(w.ctx, hash.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"labels":{"farpool.dev/pool":null,"farpool.dev/pool-uid":null}}}`)))).To(Succeed())
		Expect(k8s.Delete(w.ctx, w.secret("cache-password"))).To(Succeed()) // makes the controller look at the pool
		Eventually(func(g Gomega) {
			_, now := w.kept()
			g.Expect(now.Labels).To(Equal(hash.Labels))
		}, within, every).Should(Succeed())
		authority, now := w.kept()
		Expect(now.UID).To(Equal(hash.UID))
		Expect(now.Data).To(Equal(hash.Data))
		Expect(authority.Data).To(Equal(before.Data))
	})

	// rival makes the Secret that an operator of another namespace would keep of the pool.
	rival := func(w *world) *corev1.Secret {
		GinkgoHelper()
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "rival-"}}
		Expect(k8s.Create(w.ctx, namespace)).To(Succeed())
		_, hash := w.keptKeys()
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace.Name, Name: hash.Name, Labels: map[string]string{
			v1alpha1.LabelPool: w.pool.Name, v1alpha1.LabelPoolNamespace: w.pool.Namespace, v1alpha1.LabelPoolUID: string(w.pool.UID)}}}
		Expect(k8s.Create(w.ctx, secret)).To(Succeed())
		return secret
	}

	It("keep a pool from an operator that comes second", func() {
		w := newWorld(nil)
		w.pool.Spec.Management = v1alpha1.ManagementPaused
		Expect(k8s.Create(w.ctx, w.pool)).To(Succeed())
		w.awaitCondition(v1alpha1.ConditionProgressing, metav1.ConditionFalse, v1alpha1.ReasonPaused)
		secret := rival(w)
		w.awaitEvent("KVPool", v1alpha1.ReasonAnotherOperator)
		before := len(running.writes.in(w.pool.Namespace))
		Expect(w.change(func(pool *v1alpha1.KVPool) { pool.Spec.Management = v1alpha1.ManagementManaged })).To(Succeed())
		Eventually(func() v1alpha1.Management {
			cached := &v1alpha1.KVPool{}
			Expect(running.reconciler.client.Get(w.ctx, client.ObjectKeyFromObject(w.pool), cached)).To(Succeed())
			return cached.Spec.Management
		}, within, every).Should(Equal(v1alpha1.ManagementManaged))
		w.reconcile(3)
		Expect(running.writes.in(w.pool.Namespace)[before:]).To(BeEmpty(), "it acts for a pool that another operator serves")
		_, hash := w.keptKeys()
		Expect(apierrors.IsNotFound(k8s.Get(w.ctx, hash, &corev1.Secret{}))).To(BeTrue())

		Expect(k8s.Delete(w.ctx, secret)).To(Succeed())
		for _, name := range w.nodeNames() {
			w.awaitPod(name)
		}
	})

	It("tell the operator that was first of another", func() {
		w := newWorld(nil)
		w.up()
		secret := rival(w)
		w.awaitCondition(v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonAnotherOperator, ContainSubstring(secret.Namespace))
		w.awaitEvent("KVPool", v1alpha1.ReasonAnotherOperator)
		epoch := w.newest().Spec.Epoch
		restarted := w.run("cache-memory-1")
		Eventually(restarted.epoch, within, every).Should(Equal(uint64(epoch + 1)))
		Expect(k8s.Delete(w.ctx, secret)).To(Succeed())
		w.awaitCondition(v1alpha1.ConditionDegraded, metav1.ConditionFalse, v1alpha1.ReasonHealthy)
	})

	It("go when their pool has gone, and a pool made anew has its own", func() {
		w := newWorld(nil)
		w.create()
		authority, hash := w.kept()
		keptGone := func() {
			GinkgoHelper()
			for _, secret := range []*corev1.Secret{authority, hash} {
				Eventually(func() bool {
					return apierrors.IsNotFound(k8s.Get(w.ctx, client.ObjectKeyFromObject(secret), &corev1.Secret{}))
				}, within, every).Should(BeTrue(), secret.Name)
			}
		}
		// What the garbage collector would do, which envtest has not.
		collect := func() {
			GinkgoHelper()
			Expect(k8s.DeleteAllOf(w.ctx, &corev1.Secret{}, client.InNamespace(w.pool.Namespace))).To(Succeed())
		}
		Expect(k8s.Delete(w.ctx, w.pool)).To(Succeed())
		keptGone()

		By("making a pool of the same name")
		w.pool.ObjectMeta = metav1.ObjectMeta{Namespace: w.pool.Namespace, Name: w.pool.Name}
		collect()
		Expect(k8s.Create(w.ctx, w.pool)).To(Succeed())
		authorityBefore, hashBefore := authority, hash
		authority, hash = w.kept()
		Expect(authority.Data["tls.key"]).NotTo(Equal(authorityBefore.Data["tls.key"]))
		Expect(hash.Data["pool-secret"]).NotTo(Equal(hashBefore.Data["pool-secret"]))

		By("deleting it while no operator runs, and making a third")
		running.stop()
		Expect(k8s.Delete(w.ctx, w.pool)).To(Succeed())
		w.pool.ObjectMeta = metav1.ObjectMeta{Namespace: w.pool.Namespace, Name: w.pool.Name}
		collect()
		Expect(k8s.Create(w.ctx, w.pool)).To(Succeed())
		running = startOperator("farpool/dataplane:v1")
		keptGone()
		authority, hash = w.kept()
		Consistently(func() error {
			for _, secret := range []*corev1.Secret{authority, hash} {
				if err := k8s.Get(w.ctx, client.ObjectKeyFromObject(secret), &corev1.Secret{}); err != nil {
					return err
				}
			}
			return nil
		}, "1s", every).Should(Succeed(), "the living pool's are not swept")
	})

	It("are moved over from an older pool's namespace by operators that die after any write", func() {
		w := newWorld(nil)
		w.up()
		authority, hash := w.kept()
		running.stop()
		By("making it what an older operator had made")
		delete(hash.Data, render.KeyMapKey) // maps of such pools are not signed
		Eventually(func() error {
			pool := w.current()
			pool.Status.Template.Version = 3
			return k8s.Status().Update(w.ctx, pool)
		}, within, every).Should(Succeed())
		for name, kept := range map[string]*corev1.Secret{"cache-ca": authority, "cache-secret": hash} {
			Expect(k8s.Delete(w.ctx, kept.DeepCopy())).To(Succeed())
			Expect(k8s.Create(w.ctx, &corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: w.pool.Namespace, Name: name, Labels: map[string]string{v1alpha1.LabelPool: "cache"},
					OwnerReferences: []metav1.OwnerReference{{APIVersion: v1alpha1.GroupVersion.String(), Kind: "KVPool", Name: "cache", UID: w.pool.UID, Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true)}},
				},
				Data: kept.Data,
			})).To(Succeed())
		}
		authorityKey, hashKey := w.keptKeys()
		// somewhere is what a Secret held, at either of its places or both.
		somewhere := func(data map[string][]byte, places ...client.ObjectKey) {
			GinkgoHelper()
			found := 0
			for _, place := range places {
				secret := &corev1.Secret{}
				err := k8s.Get(w.ctx, place, secret)
				if apierrors.IsNotFound(err) {
					continue
				}
				Expect(err).NotTo(HaveOccurred())
				Expect(secret.Data).To(Equal(data), place.String())
				found++
			}
			Expect(found).To(BeNumerically(">", 0), "%v are all gone", places)
		}
		deaths := 0
		for writes := 1; ; writes++ {
			By(fmt.Sprintf("an operator that dies with write %d", writes))
			running = startOperator("farpool/dataplane:v1")
			running.dieAfter(1)
			done := false
			Eventually(func() bool {
				somewhere(authority.Data, authorityKey, w.key("cache-ca"))
				somewhere(hash.Data, hashKey, w.key("cache-secret"))
				done = apierrors.IsNotFound(k8s.Get(w.ctx, w.key("cache-ca"), &corev1.Secret{})) && apierrors.IsNotFound(k8s.Get(w.ctx, w.key("cache-secret"), &corev1.Secret{}))
				return done || running.dead.Load()
			}, within, every).Should(BeTrue())
			running.stop()
			if done {
				break
			}
			deaths++
			Expect(writes).To(BeNumerically("<", 50))
		}
		Expect(deaths).To(BeNumerically(">=", 3), "two copies and a deletion, and the last deletion")
		running = startOperator("farpool/dataplane:v1")
		nowAuthority, nowHash := w.kept()
		Expect(nowAuthority.Data).To(Equal(authority.Data))
		Expect(nowHash.Data).To(Equal(hash.Data))
		By("serving on")
		w.run("cache-memory-0")
		w.awaitEpoch(2)
	})
})

var _ = Describe("An operator of some namespaces", func() {
	It("serves those, with rights in those alone, and touches no other", func() {
		running.stop()
		DeferCleanup(func() { running = startOperator("farpool/dataplane:v1") })
		first, second, other := newWorld(nil), newWorld(nil), newWorld(nil)
		const name = "farpool-operator-of-some"
		subjects := []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name}}
		bind := func(namespace, role string) {
			Expect(k8s.Create(ctx, &rbacv1.RoleBinding{
				ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
				RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role}, Subjects: subjects,
			})).To(Succeed())
		}
		bind(first.pool.Namespace, "farpool-operator")
		bind(second.pool.Namespace, "farpool-operator")
		// What the chart's roles for the operator's own namespace and for Kubernetes nodes say.
		for role, rule := range map[string]rbacv1.PolicyRule{
			name + "-secrets": {APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"create", "delete", "get", "list", "patch", "watch"}},
			name + "-nodes":   {APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get", "list", "watch"}},
		} {
			Expect(k8s.Create(ctx, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: role}, Rules: []rbacv1.PolicyRule{rule}})).To(Succeed())
		}
		bind(secretNamespace, name+"-secrets")
		Expect(k8s.Create(ctx, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name + "-nodes"},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name + "-nodes"}, Subjects: subjects,
		})).To(Succeed())
		user, err := environment.AddUser(envtest.User{Name: name}, administrator)
		Expect(err).NotTo(HaveOccurred())
		Expect(k8s.Create(ctx, other.pool)).To(Succeed())
		foreign := corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: secretNamespace, Name: "cache-" + string(other.pool.UID) + "-ca", Labels: map[string]string{
			v1alpha1.LabelPool: "cache", v1alpha1.LabelPoolNamespace: other.pool.Namespace, v1alpha1.LabelPoolUID: string(other.pool.UID)}}}
		Expect(k8s.Create(ctx, &foreign)).To(Succeed())
		Expect(k8s.Delete(ctx, other.pool)).To(Succeed())
		Expect(k8s.Create(ctx, &v1alpha1.KVPool{ObjectMeta: metav1.ObjectMeta{Namespace: other.pool.Namespace, Name: "another"}, Spec: *other.pool.Spec.DeepCopy()})).To(Succeed())

		running = startOperatorAs(user.Config(), "farpool/dataplane:v1", first.pool.Namespace, second.pool.Namespace)
		first.up()
		second.up()
		authority, _ := first.kept()
		Expect(k8s.Delete(ctx, first.pool)).To(Succeed())
		Eventually(func() bool {
			return apierrors.IsNotFound(k8s.Get(ctx, client.ObjectKeyFromObject(authority), &corev1.Secret{}))
		}, within, every).Should(BeTrue())

		Expect(running.writes.in(other.pool.Namespace)).To(BeEmpty())
		var pods corev1.PodList
		Expect(k8s.List(ctx, &pods, client.InNamespace(other.pool.Namespace))).To(Succeed())
		Expect(pods.Items).To(BeEmpty())
		Expect(k8s.Get(ctx, client.ObjectKeyFromObject(&foreign), &corev1.Secret{})).To(Succeed(), "another operator may serve that namespace")
		running.stop()
	})
})

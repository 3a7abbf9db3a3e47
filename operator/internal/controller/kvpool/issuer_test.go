// SPDX-License-Identifier: Apache-2.0

package kvpool

import (
	"context"
	"crypto/rand"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/pki"
)

// issued is the pool's Certificate; nil: there is none.
func (w *world) issued() *unstructured.Unstructured {
	GinkgoHelper()
	certificate := &unstructured.Unstructured{}
	certificate.SetGroupVersionKind(v1alpha1.CertificateKind)
	err := k8s.Get(w.ctx, w.key("cache-issued-tls"), certificate)
	if apierrors.IsNotFound(err) {
		return nil
	}
	Expect(err).NotTo(HaveOccurred())
	return certificate
}

// says writes a condition of the Certificate, as cert-manager does.
func (w *world) says(kind string, status metav1.ConditionStatus, reason, message string) {
	GinkgoHelper()
	Eventually(func() error {
		certificate := w.issued()
		Expect(unstructured.SetNestedSlice(certificate.Object, []any{map[string]any{
			"type": kind, "status": string(status), "reason": reason, "message": message, "observedGeneration": certificate.GetGeneration(), "lastTransitionTime": "2026-01-02T03:04:05Z",
		}}, "status", "conditions")).To(Succeed())
		return k8s.Status().Update(w.ctx, certificate)
	}, within, every).Should(Succeed())
}

// uninstall removes kinds, and waits until they and their objects are gone.
func uninstall(kinds envtest.CRDInstallOptions) {
	GinkgoHelper()
	Expect(envtest.UninstallCRDs(administrator, kinds)).To(Succeed())
	crd := &metav1.PartialObjectMetadata{}
	crd.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"})
	Eventually(func() bool {
		return apierrors.IsNotFound(k8s.Get(context.Background(), client.ObjectKey{Name: "certificates.cert-manager.io"}, crd))
	}, within, every).Should(BeTrue())
}

var _ = Describe("A certificate of an issuer", func() {
	tls := func() v1alpha1.TLSSpec {
		return v1alpha1.TLSSpec{Mode: v1alpha1.TLSFromIssuer, Issuer: &v1alpha1.IssuerReference{Name: "corp", Kind: "ClusterIssuer"}, DNSNames: []v1alpha1.DNSName{"cache.example.com"}, Duration: "48h"}
	}

	It("waits for cert-manager, is served once cert-manager has made it, and goes with its mode", func() {
		w := newWorld(func(pool *v1alpha1.KVPool) { withTLS(tls())(&pool.Spec) })
		w.up()
		w.awaitCondition(v1alpha1.ConditionCertificatesReady, metav1.ConditionFalse, v1alpha1.ReasonCertManagerMissing, ContainSubstring("this cluster has no Certificates of cert-manager.io/v1"))
		w.settle()

		// The operator notices by itself that there are Certificates now.
		kinds := envtest.CRDInstallOptions{Paths: []string{"testdata/certificates.yaml"}, ErrorIfPathMissing: true}
		_, err := envtest.InstallCRDs(administrator, kinds)
		Expect(err).NotTo(HaveOccurred())
		removed := false
		remove := func() {
			if !removed {
				removed = true
				uninstall(kinds)
			}
		}
		DeferCleanup(remove)
		w.awaitCondition(v1alpha1.ConditionCertificatesReady, metav1.ConditionFalse, v1alpha1.ReasonCertificateNotReady, ContainSubstring("cert-manager has not said anything about it yet"))
		made := w.issued()
		Expect(metav1.IsControlledBy(made, w.pool)).To(BeTrue())
		Expect(made.Object["spec"]).To(Equal(map[string]any{
			"secretName":     "cache-issued-tls",
			"secretTemplate": map[string]any{"labels": map[string]any{v1alpha1.LabelPool: "cache"}},
			"dnsNames":       []any{"cache.example.com"},
			"usages":         []any{"digital signature", "key encipherment", "server auth"},
			"duration":       "48h",
			"issuerRef":      map[string]any{"name": "corp", "kind": "ClusterIssuer", "group": "cert-manager.io"},
		}))
		Expect(w.current().Status.Certificate).To(Equal(&v1alpha1.CertificateReference{Name: "cache-issued-tls"}))
		w.settle()

		w.says("Ready", metav1.ConditionFalse, "DoesNotExist", "Issuing certificate as Secret does not exist")
		w.awaitCondition(v1alpha1.ConditionCertificatesReady, metav1.ConditionFalse, v1alpha1.ReasonCertificateNotReady, ContainSubstring("DoesNotExist: Issuing certificate as Secret does not exist"))
		w.says("Ready", metav1.ConditionTrue, "Ready", "Certificate is up to date and has not expired")
		w.awaitCondition(v1alpha1.ConditionCertificatesReady, metav1.ConditionFalse, v1alpha1.ReasonCertificateNotReady, ContainSubstring("there is no Secret cache-issued-tls with the label"))

		// The Secret itself makes the operator look, whether or not cert-manager owns it.
		authority, _, err := pki.RenewAuthority(nil, "corp", time.Now(), rand.Reader)
		Expect(err).NotTo(HaveOccurred())
		data, _, _, err := authority.RenewCertificate(nil, pki.Request{DNSNames: []string{"cache.example.com"}, Server: true}, time.Now())
		Expect(err).NotTo(HaveOccurred())
		secret := &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: w.pool.Namespace, Name: "cache-issued-tls", Labels: map[string]string{v1alpha1.LabelPool: "cache"},
				OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(w.issued(), v1alpha1.CertificateKind)}},
			Type: corev1.SecretTypeTLS,
			Data: map[string][]byte{"ca.crt": data["ca.crt"], "tls.crt": data["tls.crt"], "tls.key": {}},
		}
		Expect(k8s.Create(w.ctx, secret)).To(Succeed())
		w.awaitCondition(v1alpha1.ConditionCertificatesReady, metav1.ConditionFalse, v1alpha1.ReasonTLSSecretInvalid, ContainSubstring("Secret cache-issued-tls, which cert-manager keeps: it has no tls.key"))
		secret.Data["tls.key"] = data["tls.key"]
		secret.ManagedFields = nil
		Expect(k8s.Update(w.ctx, secret)).To(Succeed())
		w.awaitCondition(v1alpha1.ConditionCertificatesReady, metav1.ConditionTrue, v1alpha1.ReasonIssued)
		Eventually(func() map[string][]byte { return w.secret("cache-binding").Data }, within, every).Should(HaveKeyWithValue("certificates", data["ca.crt"]))
		w.settle()

		// An edit reaches the Certificate, and what is left out of the spec leaves it.
		Expect(w.change(func(pool *v1alpha1.KVPool) {
			other := tls()
			other.Issuer.Name, other.Duration = "other", ""
			withTLS(other)(&pool.Spec)
		})).To(Succeed())
		Eventually(func() any {
			name, _, _ := unstructured.NestedString(w.issued().Object, "spec", "issuerRef", "name")
			return name
		}, within, every).Should(Equal("other"))
		Expect(w.issued().Object["spec"]).NotTo(HaveKey("duration"))
		w.says("Ready", metav1.ConditionTrue, "Ready", "Certificate is up to date and has not expired")
		w.awaitCondition(v1alpha1.ConditionCertificatesReady, metav1.ConditionTrue, v1alpha1.ReasonIssued)
		w.settle()

		// The client knows the kind by now, and the cluster may lose it.
		Expect(w.change(func(pool *v1alpha1.KVPool) { pool.Spec.Security.RESP = nil })).To(Succeed())
		w.computeReady("cache-shards")
		Eventually(func() any {
			w.computeReady("cache-shards")
			return w.issued()
		}, within, every).Should(BeNil())
		Eventually(func() any { return w.current().Status.Certificate }, within, every).Should(BeNil())
		Expect(w.secret("cache-issued-tls").UID).To(Equal(secret.UID))
		remove()
		Expect(w.change(func(pool *v1alpha1.KVPool) { withTLS(tls())(&pool.Spec) })).To(Succeed())
		w.awaitCondition(v1alpha1.ConditionCertificatesReady, metav1.ConditionFalse, v1alpha1.ReasonCertManagerMissing)
	})

	It("is no one else's, and is none that the operator may not make", func() {
		kinds := envtest.CRDInstallOptions{Paths: []string{"testdata/certificates.yaml"}, ErrorIfPathMissing: true}
		_, err := envtest.InstallCRDs(administrator, kinds)
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func() { uninstall(kinds) })
		w := newWorld(func(pool *v1alpha1.KVPool) { withTLS(tls())(&pool.Spec) })
		theirs := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"secretName": "theirs", "issuerRef": map[string]any{"name": "theirs"}}}}
		theirs.SetGroupVersionKind(v1alpha1.CertificateKind)
		theirs.SetNamespace(w.pool.Namespace)
		theirs.SetName("cache-issued-tls")
		Expect(k8s.Create(w.ctx, theirs)).To(Succeed())
		w.up()
		w.awaitCondition(v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonNameConflict, ContainSubstring("Certificate "+w.pool.Namespace+"/cache-issued-tls"))
		Expect(w.issued().GetResourceVersion()).To(Equal(theirs.GetResourceVersion()))
		Expect(k8s.Delete(w.ctx, theirs)).To(Succeed())
		Eventually(func() bool {
			made := w.issued()
			return made != nil && metav1.IsControlledBy(made, w.pool)
		}, within, every).Should(BeTrue())

		// Somebody takes the right away, as certManager.enabled of the chart does.
		bound := certificateBinding()
		Expect(k8s.Delete(w.ctx, bound)).To(Succeed())
		DeferCleanup(func() { Expect(client.IgnoreAlreadyExists(k8s.Create(w.ctx, certificateBinding()))).To(Succeed()) })
		w.awaitCondition(v1alpha1.ConditionCertificatesReady, metav1.ConditionFalse, v1alpha1.ReasonCertManagerForbidden, ContainSubstring("certManager.enabled"))
		Expect(k8s.Create(w.ctx, certificateBinding())).To(Succeed())
		w.awaitCondition(v1alpha1.ConditionCertificatesReady, metav1.ConditionFalse, v1alpha1.ReasonCertificateNotReady)
	})
})

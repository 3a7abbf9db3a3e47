// SPDX-License-Identifier: Apache-2.0

package kvpool

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	farpoolv1alpha1 "farpool.dev/farpool/api/gen/farpool/v1alpha1"
	"farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/pki"
)

// takes makes a compute shard say which passwords it takes.
func (w *world) takes(shard *fakeAgent, passwords ...string) {
	shard.update(func(facts *farpoolv1alpha1.Facts) {
		facts.ComputeShard.Passwords = nil
		for _, password := range passwords {
			sum := sha256.Sum256([]byte(string(w.pool.UID) + "\x00" + password))
			facts.ComputeShard.Passwords = append(facts.ComputeShard.Passwords, binary.BigEndian.Uint64(sum[:]))
		}
	})
}

// bound is the password that applications have; empty: they have no Secret, or one that the status does not name.
func (w *world) bound() string {
	secret := &corev1.Secret{}
	if err := k8s.Get(w.ctx, w.key("cache-binding"), secret); err != nil {
		return ""
	}
	if named := w.current().Status.Binding; named == nil || named.Name != secret.Name {
		return ""
	}
	return string(secret.Data["password"])
}

var _ = Describe("The Secret for applications", func() {
	password := func(w *world, secret, key, now string) {
		GinkgoHelper()
		object := &corev1.Secret{}
		Expect(k8s.Get(w.ctx, w.key(secret), object)).To(Succeed())
		patch := client.MergeFrom(object.DeepCopy())
		object.Data = map[string][]byte{key: []byte(now)}
		Expect(k8s.Patch(w.ctx, object, patch)).To(Succeed())
	}

	It("has a new password once every compute shard takes it", func() {
		w := newWorld(func(pool *v1alpha1.KVPool) {
			pool.Spec.Security.RESP = &v1alpha1.RESPSpec{TLS: v1alpha1.TLSSpec{Mode: v1alpha1.TLSGenerated}}
		})
		w.up()
		first := string(w.secret("cache-password").Data["password"])
		Eventually(w.bound, within, every).Should(Equal(first))
		Expect(w.secret("cache-binding").Type).To(BeEquivalentTo("servicebinding.io/redis"))
		Expect(w.secret("cache-binding").Data).To(And(HaveKeyWithValue("certificates", w.secret("cache-resp-tls").Data["ca.crt"]),
			HaveKeyWithValue("uri", []byte("rediss://:"+first+"@cache."+w.pool.Namespace+".svc:6379"))))
		one, other := w.shard("cache-shards-0", "worker-0"), w.shard("cache-shards-1", "worker-0")
		w.takes(one, first)
		w.takes(other, first)
		w.settle()

		password(w, "cache-password", "password", "second")
		w.takes(one, "second", first)
		w.awaitCondition(v1alpha1.ConditionUpToDate, metav1.ConditionFalse, v1alpha1.ReasonPasswordChanging, ContainSubstring("(cache-shards-1)"))
		w.settle()
		Expect(w.bound()).To(Equal(first))
		w.takes(other, "second", first)
		Eventually(w.bound, within, every).Should(Equal("second"))
		w.takes(one, "second")
		w.takes(other, "second")
		w.awaitCondition(v1alpha1.ConditionUpToDate, metav1.ConditionTrue, v1alpha1.ReasonCurrent)
		w.settle()
	})

	It("has the password of people's Secret if they give it the pool's label", func() {
		w := newWorld(func(pool *v1alpha1.KVPool) {
			pool.Spec.Security = v1alpha1.SecuritySpec{Password: v1alpha1.PasswordSecret, PasswordSecret: &v1alpha1.SecretKey{Name: "people", Key: "word"}}
		})
		theirs := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.pool.Namespace, Name: "people"}, Data: map[string][]byte{"word": []byte("theirs\n")}}
		Expect(k8s.Create(w.ctx, theirs)).To(Succeed())
		w.up()
		w.settle()
		Expect(w.bound()).To(BeEmpty())

		patch := client.MergeFrom(theirs.DeepCopy())
		theirs.Labels = map[string]string{v1alpha1.LabelPool: "cache"}
		Expect(k8s.Patch(w.ctx, theirs, patch)).To(Succeed())
		Eventually(w.bound, within, every).Should(Equal("theirs"))
		password(w, "people", "word", "another")
		Eventually(w.bound, within, every).Should(Equal("another"))
		w.settle()
		Expect(w.secret("people").OwnerReferences).To(BeEmpty())
		Expect(w.secret("people").Data).To(Equal(map[string][]byte{"word": []byte("another")}))

		patch = client.MergeFrom(theirs.DeepCopy())
		theirs.Labels = nil
		Expect(k8s.Patch(w.ctx, theirs, patch)).To(Succeed())
		Eventually(w.bound, within, every).Should(BeEmpty())
	})

	It("has the authority of people's certificate, and says what their Secret lacks, if they give it the pool's label", func() {
		w := newWorld(func(pool *v1alpha1.KVPool) {
			withTLS(v1alpha1.TLSSpec{Mode: v1alpha1.TLSFromSecret, SecretName: "theirs"})(&pool.Spec)
		})
		authority, _, err := pki.RenewAuthority(nil, "theirs", time.Now(), rand.Reader)
		Expect(err).NotTo(HaveOccurred())
		data, _, _, err := authority.RenewCertificate(nil, pki.Request{DNSNames: []string{"cache.example.com"}, Server: true}, time.Now())
		Expect(err).NotTo(HaveOccurred())
		theirs := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.pool.Namespace, Name: "theirs"}, Data: map[string][]byte{"ca.crt": data["ca.crt"], "tls.crt": data["tls.crt"]}}
		Expect(k8s.Create(w.ctx, theirs)).To(Succeed())
		w.up()
		w.awaitCondition(v1alpha1.ConditionCertificatesReady, metav1.ConditionTrue, v1alpha1.ReasonIssued)
		w.settle()
		Expect(w.bound()).To(BeEmpty())

		patch := client.MergeFrom(theirs.DeepCopy())
		theirs.Labels = map[string]string{v1alpha1.LabelPool: "cache"}
		Expect(k8s.Patch(w.ctx, theirs, patch)).To(Succeed())
		w.awaitCondition(v1alpha1.ConditionCertificatesReady, metav1.ConditionFalse, v1alpha1.ReasonTLSSecretInvalid, ContainSubstring("Secret theirs, which spec.security.resp.tls.secretName names: it has no tls.key"))
		patch = client.MergeFrom(theirs.DeepCopy())
		theirs.Data["tls.key"] = data["tls.key"]
		Expect(k8s.Patch(w.ctx, theirs, patch)).To(Succeed())
		w.awaitCondition(v1alpha1.ConditionCertificatesReady, metav1.ConditionTrue, v1alpha1.ReasonIssued)
		Eventually(w.bound, within, every).ShouldNot(BeEmpty())
		Expect(w.secret("cache-binding").Data).To(HaveKeyWithValue("certificates", data["ca.crt"]))
		w.settle()
		Expect(w.secret("theirs").OwnerReferences).To(BeEmpty())
	})

	It("overwrites no Secret of somebody else", func() {
		w := newWorld(nil)
		foreign := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.pool.Namespace, Name: "cache-binding"}, Data: map[string][]byte{"theirs": []byte("data")}}
		Expect(k8s.Create(w.ctx, foreign)).To(Succeed())
		w.up()
		w.awaitCondition(v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonNameConflict, ContainSubstring("Secret "+w.pool.Namespace+"/cache-binding"))
		Expect(w.secret("cache-binding").ResourceVersion).To(Equal(foreign.ResourceVersion))
		Expect(w.current().Status.Binding).To(BeNil())
		Expect(k8s.Delete(w.ctx, foreign)).To(Succeed())
		Eventually(w.bound, within, every).ShouldNot(BeEmpty())
	})
})

// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"crypto/tls"
	"crypto/x509"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	farpoolv1alpha1 "farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/e2e/workload"
)

var _ = Describe("A pool with TLS on the Redis port", func() {
	It("serves who trusts its authority, and nobody in the clear", func(ctx SpecContext) {
		p := apply(ctx, namespace(ctx, "tls"), small("sealed", 1, 1, "  security: {resp: {tls: {mode: Generated}}}"))
		p.ready(ctx)
		target := p.target(ctx)

		var secret corev1.Secret
		Expect(kind.Get(ctx, client.ObjectKey{Namespace: p.namespace, Name: p.name + "-resp-tls"}, &secret)).To(Succeed())
		roots := x509.NewCertPool()
		Expect(roots.AppendCertsFromPEM(secret.Data["ca.crt"])).To(BeTrue())
		sealed := target
		sealed.TLS = &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots, ServerName: p.name + "." + p.namespace + ".svc"}
		load(ctx, sealed, 500)

		plain := target.Connect(0)
		defer func() { _ = plain.Close() }()
		Expect(plain.Get(ctx, "x").Err()).To(HaveOccurred())
		stranger := sealed
		stranger.Password = "wrong"
		client := stranger.Connect(0)
		defer func() { _ = client.Close() }()
		Expect(client.Ping(ctx).Err()).To(MatchError(ContainSubstring("WRONGPASS")))
	}, SpecTimeout(5*time.Minute))
})

var _ = Describe("The chart", func() {
	It("keeps definitions and pools when it is uninstalled, and takes them up again", func(ctx SpecContext) {
		p := apply(ctx, namespace(ctx, "chart"), small("kept", 1, 1, ""))
		p.ready(ctx)
		load(ctx, p.target(ctx), 500)
		life := p.life(ctx)

		_, err := kind.Helm(ctx, "uninstall", release, "--namespace", systemNamespace, "--wait", "--timeout", "2m")
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func(ctx SpecContext) { install(ctx) }, NodeTimeout(4*time.Minute))
		p.get(ctx)
		r, err := workload.NewRun(p.target(ctx), 2, "load:", workload.DefaultSizes)
		Expect(err).NotTo(HaveOccurred())
		defer r.Close()
		Expect(r.ReadAll(ctx, 500)).To(BeEquivalentTo(500))

		install(ctx)
		Expect(touch(ctx, p)).To(Succeed())
		p.ready(ctx)
		Expect(p.life(ctx)).To(Equal(life))
		p.says(ctx, farpoolv1alpha1.ConditionDegraded, metav1.ConditionFalse)
	}, SpecTimeout(8*time.Minute))
})

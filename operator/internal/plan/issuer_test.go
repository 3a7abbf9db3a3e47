// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/observe"
	"farpool.dev/farpool/operator/internal/pki"
	"farpool.dev/farpool/operator/internal/render"
)

// issuedTLS is a pool whose Redis port has a certificate of ClusterIssuer corp, which is good.
func issuedTLS(t *testing.T) *scene {
	t.Helper()
	s := peoplesTLS(t)
	s.Pool.Spec.Security.RESP.TLS = v1alpha1.TLSSpec{Mode: v1alpha1.TLSFromIssuer, Issuer: &v1alpha1.IssuerReference{Name: "corp", Kind: "ClusterIssuer"}}
	s.PeoplesTLS.Name = "cache-issued-tls"
	s.Issued = observe.Issued{Certificate: &unstructured.Unstructured{}, Conditions: []metav1.Condition{{Type: "Ready", Status: metav1.ConditionTrue, Reason: "Ready"}}}
	s.Issued.Certificate.SetName("cache-issued-tls")
	return s
}

// certificateApplied is the Certificate that a plan applies; nil: it applies none.
func certificateApplied(plan *decision) *render.CertificateApplyConfiguration {
	for _, object := range plan.Apply {
		if certificate, is := object.(*render.CertificateApplyConfiguration); is {
			return certificate
		}
	}
	return nil
}

// The operator asks cert-manager for a certificate, and applications get its authority.
func TestACertificateOfAnIssuer(t *testing.T) {
	s := issuedTLS(t)
	s.Pool.Spec.Security.RESP.TLS.Duration, s.Pool.Spec.Security.RESP.TLS.RenewBefore = "48h", "12h"
	plan := s.decide(t)
	wantCondition(t, plan, v1alpha1.ConditionCertificatesReady, metav1.ConditionTrue, v1alpha1.ReasonIssued)
	if plan.RequeueAfter <= issuerRetry || plan.RequeueAfter > issuedLook {
		t.Errorf("the Certificate is looked at after %v", plan.RequeueAfter)
	}
	made := certificateApplied(plan)
	if made == nil {
		t.Fatal("no Certificate is made")
	}
	if *made.GetName() != "cache-issued-tls" || *made.GetNamespace() != "shop" || *made.GetAPIVersion() != "cert-manager.io/v1" || *made.GetKind() != "Certificate" || len(made.Metadata.OwnerReferences) != 1 {
		t.Errorf("it is %+v", made.Metadata)
	}
	spec := made.Spec
	if spec.IssuerRef != (render.IssuerRef{Name: "corp", Kind: "ClusterIssuer", Group: "cert-manager.io"}) || spec.SecretName != "cache-issued-tls" || spec.SecretTemplate.Labels[v1alpha1.LabelPool] != "cache" ||
		spec.Duration != "48h" || spec.RenewBefore != "12h" || !slices.Contains(spec.DNSNames, "cache.shop.svc") {
		t.Errorf("it says %+v", spec)
	}
	if held := binding(plan); !bytes.Equal(held["certificates"], s.PeoplesTLS.Data["ca.crt"]) || !strings.HasPrefix(string(held["uri"]), "rediss://") {
		t.Errorf("%q", held)
	}
	if named := plan.Status.Pool.Certificate; named == nil || named.Name != "cache-issued-tls" {
		t.Errorf("the status names %v", named)
	}
	if names := deleted(&plan.Plan); slices.Contains(names, "cache-issued-tls") {
		t.Errorf("deleted are %v", names)
	}
	// A public authority signs no names inside a cluster, and knows Issuers of the pool's namespace by default.
	s.Pool.Spec.Security.RESP.TLS.DNSNames = []v1alpha1.DNSName{"cache.example.com"}
	s.Pool.Spec.Security.RESP.TLS.Issuer = &v1alpha1.IssuerReference{Name: "corp"}
	if made := certificateApplied(s.decide(t)); !slices.Equal(made.Spec.DNSNames, []string{"cache.example.com"}) || made.Spec.IssuerRef.Kind != "Issuer" {
		t.Errorf("it says %+v", made.Spec)
	}
}

// What keeps an issuer's certificate from being served is said in cert-manager's words, and the operator looks again soon.
func TestWhatIsWrongWithACertificateOfAnIssuer(t *testing.T) {
	notReady := func(of ...metav1.Condition) func(*scene) { return func(s *scene) { s.Issued.Conditions = of } }
	said := metav1.Condition{Type: "Ready", Status: metav1.ConditionFalse, Reason: "DoesNotExist", Message: "Issuing certificate as Secret does not exist"}
	for name, c := range map[string]struct {
		change func(*scene)
		reason string
		says   string
		// made says that the Certificate is applied all the same.
		made bool
	}{
		"no cert-manager": {func(s *scene) { s.Issued = observe.Issued{Missing: true} }, v1alpha1.ReasonCertManagerMissing, "names ClusterIssuer corp, and this cluster has no Certificates of cert-manager.io/v1", false},
		"no right":        {func(s *scene) { s.Issued = observe.Issued{Forbidden: "forbidden to you"} }, v1alpha1.ReasonCertManagerForbidden, "certManager.enabled of its chart, or set another spec.security.resp.tls.mode. The API server says: forbidden to you", false},
		"none yet":        {func(s *scene) { s.Issued = observe.Issued{} }, v1alpha1.ReasonCertificateNotReady, "Certificate cache-issued-tls was not there", true},
		"none, and paused": {func(s *scene) {
			s.Issued = observe.Issued{}
			s.carryOut(t, &s.decide(t).Plan)
			s.Pool.Spec.Management = v1alpha1.ManagementPaused
		}, v1alpha1.ReasonPaused, "there is no Certificate cache-issued-tls yet, and the operator may not make one now", false},
		"paused, and not Ready": {func(s *scene) {
			s.carryOut(t, &s.decide(t).Plan)
			s.Pool.Spec.Management = v1alpha1.ManagementPaused
			s.Issued.Conditions = []metav1.Condition{said}
		}, v1alpha1.ReasonCertificateNotReady, "which ClusterIssuer corp signs, is not Ready", false},
		"nothing is said": {notReady(), v1alpha1.ReasonCertificateNotReady, "cert-manager has not said anything about it yet", true},
		"not Ready":       {notReady(said), v1alpha1.ReasonCertificateNotReady, "which ClusterIssuer corp signs, is not Ready: DoesNotExist: Issuing certificate as Secret does not exist. See kubectl -n shop", true},
		"it is being issued": {notReady(said, metav1.Condition{Type: "Issuing", Status: metav1.ConditionTrue, Reason: "DoesNotExist", Message: "now"}), v1alpha1.ReasonCertificateNotReady,
			"Issuing certificate as Secret does not exist. See", true},
		"issuing failed, and nothing is said of it": {notReady(said, metav1.Condition{Type: "Issuing", Status: metav1.ConditionFalse}), v1alpha1.ReasonCertificateNotReady, "Issuing certificate as Secret does not exist. See", true},
		"issuing failed": {notReady(said, metav1.Condition{Type: "Issuing", Status: metav1.ConditionFalse, Reason: "Failed", Message: "the request was denied"}), v1alpha1.ReasonCertificateNotReady,
			"does not exist (Failed: the request was denied). See", true},
		"Ready before the latest edit": {func(s *scene) {
			s.Issued.Certificate.SetGeneration(3)
			s.Issued.Conditions[0].ObservedGeneration = 2
		}, v1alpha1.ReasonCertificateNotReady, "has not looked at its latest spec yet", true},
		"no Secret":              {func(s *scene) { s.PeoplesTLS = nil }, v1alpha1.ReasonCertificateNotReady, "there is no Secret cache-issued-tls with the label farpool.dev/pool=cache yet", true},
		"a Secret without a key": {func(s *scene) { delete(s.PeoplesTLS.Data, "tls.key") }, v1alpha1.ReasonTLSSecretInvalid, "Secret cache-issued-tls, which cert-manager keeps: it has no tls.key", true},
		"a key of another certificate": {func(s *scene) {
			other, _, err := pki.RenewAuthority(nil, "other", s.now, seeded())
			if err != nil {
				t.Fatal(err)
			}
			s.PeoplesTLS.Data["tls.key"] = other.Data()["tls.key"]
		}, v1alpha1.ReasonTLSSecretInvalid, "Secret cache-issued-tls, which cert-manager keeps: its tls.crt and tls.key", true},
	} {
		s := issuedTLS(t)
		c.change(s)
		plan := s.decide(t)
		condition := meta.FindStatusCondition(plan.Status.Pool.Conditions, v1alpha1.ConditionCertificatesReady)
		if condition.Status != metav1.ConditionFalse || condition.Reason != c.reason || !strings.Contains(condition.Message, c.says) {
			t.Errorf("%s: %+v", name, condition)
		}
		if made := certificateApplied(plan) != nil; made != c.made {
			t.Errorf("%s: a Certificate is made: %v", name, made)
		}
		if plan.RequeueAfter == 0 || plan.RequeueAfter > issuerRetry {
			t.Errorf("%s: the pool is looked at after %v", name, plan.RequeueAfter)
		}
		if named := plan.Status.Pool.Certificate; named == nil {
			t.Errorf("%s: the status names no Certificate", name)
		}
	}
}

// cert-manager may not say for which generation of the Certificate a condition is, or say the newest.
func TestACertificateThatIsReadyInItsLatestSpec(t *testing.T) {
	for _, observed := range []int64{0, 3} {
		s := issuedTLS(t)
		s.Issued.Certificate.SetGeneration(3)
		s.Issued.Conditions[0].ObservedGeneration = observed
		wantCondition(t, s.decide(t), v1alpha1.ConditionCertificatesReady, metav1.ConditionTrue, v1alpha1.ReasonIssued)
	}
}

// The pool is looked at when the certificate ends, and applications keep what they have while the Secret is away.
func TestACertificateOfAnIssuerThatEnds(t *testing.T) {
	s := issuedTLS(t)
	ends, err := pki.CheckServed(s.PeoplesTLS.Data, s.now)
	if err != nil {
		t.Fatal(err)
	}
	s.now = ends.Add(-time.Minute)
	if plan := s.decide(t); plan.RequeueAfter > time.Minute {
		t.Errorf("the pool is looked at after %v", plan.RequeueAfter)
	}
	s.now = ends
	wantCondition(t, s.decide(t), v1alpha1.ConditionCertificatesReady, metav1.ConditionFalse, v1alpha1.ReasonTLSSecretInvalid)
	s.PeoplesTLS = nil
	s.Secrets["cache-binding"] = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cache-binding"}}
	if plan := s.decide(t); binding(plan) != nil || slices.Contains(deleted(&plan.Plan), "cache-binding") {
		t.Errorf("%q; deleted are %v", binding(plan), deleted(&plan.Plan))
	}
}

// A Certificate goes when no issuer is to sign it any more and no pod has its Secret, and the status names it until then.
func TestACertificateThatNoIssuerIsToSignAnyMore(t *testing.T) {
	const name = "cache-issued-tls"
	left := func() *scene {
		s := issuedTLS(t)
		s.Pool.Spec.Security.RESP = nil
		return s
	}
	s := left()
	plan := s.decide(t)
	if names := deleted(&plan.Plan); !slices.Contains(names, name) || certificateApplied(plan) != nil || plan.Status.Pool.Certificate == nil {
		t.Errorf("deleted are %v, and the status names %v", names, plan.Status.Pool.Certificate)
	}
	wantCondition(t, plan, v1alpha1.ConditionCertificatesReady, metav1.ConditionTrue, v1alpha1.ReasonIssued)
	s.Deployments = map[string]*appsv1.Deployment{"cache-shards": {Spec: appsv1.DeploymentSpec{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
		Volumes: []corev1.Volume{{VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: name}}}}}}}}}
	if names := deleted(&s.decide(t).Plan); slices.Contains(names, name) {
		t.Errorf("deleted are %v, and a Deployment has the Secret", names)
	}
	s = left()
	s.Issued.Certificate.SetDeletionTimestamp(&metav1.Time{Time: start})
	if plan := s.decide(t); slices.Contains(deleted(&plan.Plan), name) || plan.Status.Pool.Certificate == nil {
		t.Errorf("deleted are %v, and the status names %v", deleted(&plan.Plan), plan.Status.Pool.Certificate)
	}
	for of, issued := range map[*observe.Issued]bool{{}: false, {Missing: true}: false, {Forbidden: "no"}: true} {
		s := left()
		s.Issued = *of
		if plan := s.decide(t); (plan.Status.Pool.Certificate != nil) != issued {
			t.Errorf("with %+v, the status names %v", *of, plan.Status.Pool.Certificate)
		}
	}
}

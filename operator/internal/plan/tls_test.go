// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"

	"farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/pki"
)

// peoplesTLS is a pool whose Redis port has the certificate of Secret mine, which holds a good one.
func peoplesTLS(t *testing.T) *scene {
	t.Helper()
	s := newScene(1, v1alpha1.DataPolicyCache)
	s.withShard()
	s.Pool.Spec.Security = v1alpha1.SecuritySpec{Password: v1alpha1.PasswordNone, RESP: &v1alpha1.RESPSpec{TLS: v1alpha1.TLSSpec{Mode: v1alpha1.TLSFromSecret, SecretName: "mine"}}}
	authority, _, err := pki.RenewAuthority(nil, "uid", s.now, seeded())
	if err != nil {
		t.Fatal(err)
	}
	data, _, _, err := authority.RenewCertificate(nil, pki.Request{DNSNames: []string{"cache.example.com"}, Server: true}, s.now)
	if err != nil {
		t.Fatal(err)
	}
	s.PeoplesTLS = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "mine"}, Data: data}
	return s
}

// binding is what a plan puts into the Secret for applications; nil: it makes none.
func binding(plan *decision) map[string][]byte {
	for _, object := range plan.Apply {
		if secret, is := object.(*corev1ac.SecretApplyConfiguration); is && *secret.Name == "cache-binding" {
			return secret.Data
		}
	}
	return nil
}

// The operator makes no certificate where people have one, and applications get its authorities, if it says them.
func TestACertificateOfPeople(t *testing.T) {
	s := peoplesTLS(t)
	plan := s.decide(t)
	wantCondition(t, plan, v1alpha1.ConditionCertificatesReady, metav1.ConditionTrue, v1alpha1.ReasonIssued)
	for _, object := range plan.Apply {
		if secret, is := object.(*corev1ac.SecretApplyConfiguration); is && (*secret.Name == "cache-resp-tls" || *secret.Name == "mine") {
			t.Errorf("Secret %s is made", *secret.Name)
		}
	}
	if held := binding(plan); !bytes.Equal(held["certificates"], s.PeoplesTLS.Data["ca.crt"]) || !strings.HasPrefix(string(held["uri"]), "rediss://") {
		t.Errorf("%q", held)
	}
	delete(s.PeoplesTLS.Data, "ca.crt")
	if held := binding(s.decide(t)); held["certificates"] != nil || !strings.HasPrefix(string(held["uri"]), "rediss://") {
		t.Errorf("%q", held)
	}
	// A Secret that the operator does not read may be good, and applications are told nothing of it.
	s.PeoplesTLS = nil
	s.Secrets["cache-binding"] = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cache-binding"}}
	plan = s.decide(t)
	wantCondition(t, plan, v1alpha1.ConditionCertificatesReady, metav1.ConditionTrue, v1alpha1.ReasonIssued)
	if names := deleted(&plan.Plan); binding(plan) != nil || !slices.Contains(names, "cache-binding") {
		t.Errorf("%q; deleted are %v", binding(plan), names)
	}
}

// What is wrong with a certificate of people is said, when it ends too.
func TestWhatIsWrongWithACertificateOfPeople(t *testing.T) {
	s := peoplesTLS(t)
	delete(s.PeoplesTLS.Data, "tls.key")
	plan := s.decide(t)
	wantCondition(t, plan, v1alpha1.ConditionCertificatesReady, metav1.ConditionFalse, v1alpha1.ReasonTLSSecretInvalid)
	if c := meta.FindStatusCondition(plan.Status.Pool.Conditions, v1alpha1.ConditionCertificatesReady); !strings.Contains(c.Message, "Secret mine") || !strings.Contains(c.Message, "has no tls.key") {
		t.Error(c.Message)
	}
	s = peoplesTLS(t)
	ends, err := pki.CheckServed(s.PeoplesTLS.Data, s.now)
	if err != nil {
		t.Fatal(err)
	}
	s.now = ends.Add(-time.Hour)
	plan = s.decide(t)
	wantCondition(t, plan, v1alpha1.ConditionCertificatesReady, metav1.ConditionTrue, v1alpha1.ReasonIssued)
	if plan.RequeueAfter > time.Hour {
		t.Errorf("the pool is looked at after %v", plan.RequeueAfter)
	}
	s.now = ends
	wantCondition(t, s.decide(t), v1alpha1.ConditionCertificatesReady, metav1.ConditionFalse, v1alpha1.ReasonTLSSecretInvalid)
	// It does not matter any more where it is not used.
	s.Pool.Spec.Security.RESP = nil
	wantCondition(t, s.decide(t), v1alpha1.ConditionCertificatesReady, metav1.ConditionTrue, v1alpha1.ReasonIssued)
}

// Pods that wait for a Secret say so, if they do for long.
func TestPodsThatWaitForACertificateOfPeople(t *testing.T) {
	pod := func(change func(*corev1.Pod)) *corev1.Pod {
		made := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cache-shards-1", UID: "1", CreationTimestamp: metav1.NewTime(start)},
			Spec: corev1.PodSpec{NodeName: "worker"}, Status: corev1.PodStatus{Phase: corev1.PodPending}}
		change(made)
		return made
	}
	for name, c := range map[string]struct {
		change func(*corev1.Pod)
		after  time.Duration
		says   bool
	}{
		"for a minute":              {func(*corev1.Pod) {}, secretPatience, true},
		"for less":                  {func(*corev1.Pod) {}, secretPatience - time.Second, false},
		"it runs":                   {func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodRunning }, time.Hour, false},
		"it has no Kubernetes node": {func(pod *corev1.Pod) { pod.Spec.NodeName = "" }, time.Hour, false},
		"it is being deleted":       {func(pod *corev1.Pod) { pod.DeletionTimestamp = &metav1.Time{Time: start} }, time.Hour, false},
	} {
		s := peoplesTLS(t)
		s.PeoplesTLS = nil
		before := pod(func(pod *corev1.Pod) { pod.Name, pod.UID, pod.Status.Phase = "cache-shards-0", "0", corev1.PodRunning })
		s.ComputePods = []*corev1.Pod{before, pod(c.change)}
		s.now = start.Add(c.after)
		plan := s.decide(t)
		said := meta.FindStatusCondition(plan.Status.Pool.Conditions, v1alpha1.ConditionCertificatesReady)
		if says := said.Reason == v1alpha1.ReasonTLSSecretInvalid; says != c.says || says && !strings.Contains(said.Message, "see that Secret mine, which spec.security.resp.tls.secretName names, exists in namespace shop") {
			t.Errorf("%s: %+v", name, said)
		}
		if name == "for less" && plan.RequeueAfter > time.Second {
			t.Errorf("the pool is looked at after %v", plan.RequeueAfter)
		}
	}
}

// A certificate that the operator makes has the names that the spec gives it.
func TestNamesInACertificate(t *testing.T) {
	s := newScene(1, v1alpha1.DataPolicyCache)
	s.Pool.Spec.Security.RESP = &v1alpha1.RESPSpec{TLS: v1alpha1.TLSSpec{Mode: v1alpha1.TLSGenerated, DNSNames: []v1alpha1.DNSName{"cache.example.com"}}}
	s.carryOut(t, &s.decide(t).Plan)
	before := s.Secrets["cache-resp-tls"].Data["tls.crt"]
	s.carryOut(t, &s.decide(t).Plan)
	if !bytes.Equal(before, s.Secrets["cache-resp-tls"].Data["tls.crt"]) {
		t.Error("it is made again")
	}
	s.Pool.Spec.Security.RESP.TLS.DNSNames = append(s.Pool.Spec.Security.RESP.TLS.DNSNames, "other.example.com")
	s.carryOut(t, &s.decide(t).Plan)
	if bytes.Equal(before, s.Secrets["cache-resp-tls"].Data["tls.crt"]) {
		t.Error("it is not made again with another name")
	}
}

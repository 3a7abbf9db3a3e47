// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	farpoolv1alpha1 "farpool.dev/farpool/api/gen/farpool/v1alpha1"
	"farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/agent"
	"farpool.dev/farpool/operator/internal/render"
)

// Compute shards compute the same numbers (TellOnesFromOthersWithoutTellingThem).
func TestFingerprintsOfPasswords(t *testing.T) {
	for password, want := range map[string]uint64{"old": 0x2bd3017d1f0bcecd, "newer": 0x5a82410516908721} {
		if got := fingerprint("uid", []byte(password)); got != want {
			t.Errorf("%s has %#x, not %#x", password, got, want)
		}
	}
}

// takes gives the pool a compute shard that takes some passwords.
func (s *scene) takes(shard string, passwords ...string) {
	uid := types.UID("pod-" + shard)
	if s.Agents[uid].Facts == nil {
		s.ComputePods = append(s.ComputePods, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: shard, UID: uid, Labels: map[string]string{v1alpha1.LabelComputePool: "shards"}}})
	}
	facts := &farpoolv1alpha1.ComputeShardFacts{}
	for _, password := range passwords {
		facts.Passwords = append(facts.Passwords, fingerprint("uid", []byte(password)))
	}
	s.Agents[uid] = agent.Observation{State: agent.Connected, Facts: &farpoolv1alpha1.Facts{
		PoolUid: "uid", Role: farpoolv1alpha1.Role_ROLE_COMPUTE_SHARD, Name: shard, Incarnation: uint64(len(shard)), Ready: true, ComputeShard: facts,
	}}
}

// TestAChangeOfThePasswordIsReported until every compute shard takes the new one, and as long as one takes two.
func TestAChangeOfThePasswordIsReported(t *testing.T) {
	for _, mode := range []v1alpha1.PasswordMode{v1alpha1.PasswordGenerated, v1alpha1.PasswordSecret} {
		s := newScene(1, v1alpha1.DataPolicyCache)
		s.withShard()
		s.Pool.Spec.Security.Password = mode
		secret := "people"
		if mode == v1alpha1.PasswordSecret {
			s.Pool.Spec.Security.PasswordSecret = &v1alpha1.SecretKey{Name: "people", Key: "word"}
		} else {
			secret = "cache-password"
			s.Secrets[secret] = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: secret}, Data: map[string][]byte{render.KeyPassword: []byte("new")}}
		}
		says := func(status metav1.ConditionStatus, reason string, parts ...string) {
			t.Helper()
			c := meta.FindStatusCondition(s.decide(t).Status.Pool.Conditions, v1alpha1.ConditionUpToDate)
			if c == nil || c.Status != status || c.Reason != reason {
				t.Fatalf("%s: %+v", mode, c)
			}
			for _, part := range parts {
				if !strings.Contains(c.Message, part) {
					t.Errorf("%s: %q does not say %q", mode, c.Message, part)
				}
			}
		}
		s.takes("a")
		says(metav1.ConditionTrue, v1alpha1.ReasonCurrent) // a shard of an earlier version, which does not say what it takes
		s.takes("a", "new", "old")
		s.takes("bb", "old")
		says(metav1.ConditionFalse, v1alpha1.ReasonPasswordChanging, secret, "(bb)", "the one before")
		s.takes("bb", "new", "old")
		says(metav1.ConditionFalse, v1alpha1.ReasonPasswordChanging, secret, "(a, bb)", "applications may change", "rotate-password cache --drop-old")
		s.takes("a", "new")
		s.takes("bb", "new")
		says(metav1.ConditionTrue, v1alpha1.ReasonCurrent)
		s.Pool.Spec.Security = v1alpha1.SecuritySpec{Password: v1alpha1.PasswordNone}
		s.takes("bb", "old")
		says(metav1.ConditionTrue, v1alpha1.ReasonCurrent)
	}
}

// bound is what the Secret for applications holds once it is applied, and becomes so in the scene. Nil: it is not applied.
func (s *scene) bound(t *testing.T) map[string]string {
	t.Helper()
	plan := s.decide(t)
	applied := secretApplied(&plan.Plan, "cache-binding")
	if applied == nil {
		if slices.Contains(deleted(&plan.Plan), "cache-binding") {
			delete(s.Secrets, "cache-binding")
		}
		return nil
	}
	s.Secrets["cache-binding"] = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cache-binding", ResourceVersion: "9"}, Data: applied.Data}
	if binding := s.decide(t).Status.Pool.Binding; *applied.Type != "servicebinding.io/redis" || len(applied.OwnerReferences) != 1 || binding == nil || binding.Name != "cache-binding" {
		t.Errorf("of type %s with owners %v; the status has %v", *applied.Type, applied.OwnerReferences, binding)
	}
	words := map[string]string{}
	for key, value := range applied.Data {
		words[key] = string(value)
	}
	return words
}

// TestApplicationsAreBound: a Secret has all that they need, under the keys of the Service Binding Specification.
func TestApplicationsAreBound(t *testing.T) {
	s := newScene(1, v1alpha1.DataPolicyCache)
	if got := s.bound(t); got != nil {
		t.Errorf("a pool without compute shards has %v", got)
	}
	s.withShard()
	if got := s.bound(t); got != nil || s.decide(t).Status.Pool.Binding != nil {
		t.Errorf("a password that is not written down is in %v", got)
	}
	wants := func(want map[string]string) {
		t.Helper()
		if got := s.bound(t); !maps.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	}
	password := func(now string) {
		s.Secrets["cache-password"] = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cache-password"}, Data: map[string][]byte{render.KeyPassword: []byte(now)}}
	}
	password("p@ss/word\n")
	base := map[string]string{"type": "redis", "provider": "farpool", "host": "cache.shop.svc", "port": "6379"}
	with := func(more ...string) map[string]string {
		all := maps.Clone(base)
		for i := 0; i < len(more); i += 2 {
			all[more[i]] = more[i+1]
		}
		return all
	}
	wants(with("password", "p@ss/word", "uri", "redis://:p%40ss%2Fword@cache.shop.svc:6379"))

	s.Pool.Spec.Security.RESP = &v1alpha1.RESPSpec{TLS: v1alpha1.TLSSpec{Mode: v1alpha1.TLSGenerated}}
	if got := s.bound(t); got != nil {
		t.Errorf("without the certificate it is %v", got)
	}
	if s.Secrets["cache-binding"] == nil {
		t.Error("a Secret that is not seen for a while costs applications theirs")
	}
	s.Secrets["cache-resp-tls"] = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cache-resp-tls"}, Data: map[string][]byte{"ca.crt": []byte("authorities")}}
	wants(with("password", "p@ss/word", "uri", "rediss://:p%40ss%2Fword@cache.shop.svc:6379", "certificates", "authorities"))

	s.Pool.Spec.Security = v1alpha1.SecuritySpec{Password: v1alpha1.PasswordNone}
	wants(with("uri", "redis://cache.shop.svc:6379"))
	s.Pool.Spec.Compute = nil
	if got := s.bound(t); got != nil || s.Secrets["cache-binding"] != nil {
		t.Errorf("without compute shards it stays: %v", got)
	}
}

// TestABindingFollowsThePassword once every compute shard takes the new one.
func TestABindingFollowsThePassword(t *testing.T) {
	for _, mode := range []v1alpha1.PasswordMode{v1alpha1.PasswordGenerated, v1alpha1.PasswordSecret} {
		s := newScene(1, v1alpha1.DataPolicyCache)
		s.withShard()
		s.Pool.Spec.Security.Password = mode
		if mode == v1alpha1.PasswordSecret {
			s.Pool.Spec.Security.PasswordSecret = &v1alpha1.SecretKey{Name: "people", Key: "word"}
			if got := s.bound(t); got != nil {
				t.Errorf("a Secret that the operator does not read is in %v", got)
			}
		}
		password := func(now string) {
			secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cache-password"}, Data: map[string][]byte{"password": []byte(now), "word": []byte(now)}}
			if mode == v1alpha1.PasswordSecret {
				s.PeoplesPassword = secret
			} else {
				s.Secrets["cache-password"] = secret
			}
		}
		wants := func(want, why string) {
			t.Helper()
			if got := s.bound(t)["password"]; got != want {
				t.Errorf("%s: %s, and applications have %q, not %q", mode, why, got, want)
			}
		}
		password("one")
		wants("one", "it is the first")
		s.takes("a", "one")
		s.takes("bb", "one")
		s.takes("ccc") // of an earlier version, which does not say
		password("two")
		wants("one", "no shard takes another")
		s.takes("a", "two", "one")
		wants("one", "one of two does")
		s.takes("bb", "one", "two")
		wants("two", "both do")
		password("three")
		s.takes("a", "three")
		wants("three", "one refuses the one before, so that waiting for the other one helps nobody")
		password("four")
		s.takes("a", "four", "three")
		s.takes("bb", "four", "three")
		s.Agents["pod-bb"] = agent.Observation{State: agent.Connecting}
		s.ComputePods[1].Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.0.1.1"}
		wants("three", "one shard was not heard yet")
		s.takes("bb", "four", "three")
		wants("four", "it was")
	}
}

// withPassword is a pool whose Secret has a password.
func withPassword(word string) *scene {
	s := newScene(1, v1alpha1.DataPolicyCache)
	s.withShard()
	s.Pool.Spec.Security.Password = v1alpha1.PasswordGenerated
	s.Secrets["cache-password"] = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cache-password"}, Data: map[string][]byte{render.KeyPassword: []byte(word)}}
	return s
}

// TestTheFirstBindingWaitsForNoShard: applications have no password that they could go on with.
func TestTheFirstBindingWaitsForNoShard(t *testing.T) {
	s := withPassword("one")
	s.takes("a")
	s.Agents["pod-a"] = agent.Observation{State: agent.Connecting}
	s.ComputePods[0].Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.0.1.1"}
	if !s.decide(t).Status.Unsettled {
		t.Fatal("the shard was heard")
	}
	if got := s.bound(t)["password"]; got != "one" {
		t.Errorf("applications have %q", got)
	}
}

// TestABindingForgetsThePassword of a pool that asks for none any more, though its shards still do.
func TestABindingForgetsThePassword(t *testing.T) {
	s := withPassword("old")
	s.takes("a", "old")
	if got := s.bound(t)["password"]; got != "old" {
		t.Fatalf("applications have %q", got)
	}
	s.Pool.Spec.Security.Password = v1alpha1.PasswordNone
	if got := s.bound(t); got["password"] != "" || got["uri"] != "redis://cache.shop.svc:6379" {
		t.Errorf("applications have %v", got)
	}
}

// TestAnEmptyPasswordIsNone: line ends alone are no password.
func TestAnEmptyPasswordIsNone(t *testing.T) {
	if got := withPassword("\r\n").bound(t); got != nil {
		t.Errorf("applications have %v", got)
	}
}

// TestOfShardsThatTakeOnePasswordEachTheFirstIsBelieved where the operator does not read the Secret.
func TestOfShardsThatTakeOnePasswordEachTheFirstIsBelieved(t *testing.T) {
	s := newScene(1, v1alpha1.DataPolicyCache)
	s.withShard()
	s.Pool.Spec.Security.Password = v1alpha1.PasswordSecret
	s.Pool.Spec.Security.PasswordSecret = &v1alpha1.SecretKey{Name: "people", Key: "word"}
	s.takes("a", "one")
	s.takes("bb", "other")
	c := meta.FindStatusCondition(s.decide(t).Status.Pool.Conditions, v1alpha1.ConditionUpToDate)
	if c == nil || !strings.Contains(c.Message, "(bb)") {
		t.Errorf("%+v", c)
	}
}

// SPDX-License-Identifier: Apache-2.0

package plan

import (
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

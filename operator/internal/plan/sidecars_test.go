// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"farpool.dev/farpool/api/v1alpha1"
)

// As many sidecars as namespaces may have need sessions at each memory node, beside those of compute shards. A memory node that is older than an edit may have fewer.
func TestSessionsOfSidecars(t *testing.T) {
	for name, c := range map[string]struct {
		sidecars []int32
		max      *int32
		short    bool
	}{
		"as many as there are":                      {[]int32{100, 92}, nil, false},
		"one more":                                  {[]int32{100, 93}, nil, true},
		"raised, and the memory node is older":      {[]int32{300}, ptr.To(int32(512)), true},
		"none":                                      {nil, nil, false},
		"of one namespace, as many as there are":    {[]int32{192}, nil, false},
		"of one namespace, and it is one more only": {[]int32{193}, nil, true},
	} {
		s := newScene(1, v1alpha1.DataPolicyCache)
		s.place(t, 4)
		s.withShard()
		s.Pool.Spec.Compute.Pools[0].Workers, s.Pool.Spec.Compute.Pools[0].Replicas = 32, 1
		s.Deployments["cache-shards"].Spec.Replicas = ptr.To(int32(1))
		if c.max != nil {
			s.Pool.Spec.Limits = &v1alpha1.LimitsSpec{MaxSessions: c.max}
		}
		if c.sidecars != nil {
			s.Pool.Spec.Sidecars = &v1alpha1.SidecarsSpec{}
		}
		for i, most := range c.sidecars {
			s.Pool.Spec.Sidecars.Namespaces = append(s.Pool.Spec.Sidecars.Namespaces, v1alpha1.SidecarNamespace{Name: string(rune('a' + i)), MaxSidecars: most})
		}
		degraded := meta.FindStatusCondition(s.decide(t).Status.Pool.Conditions, v1alpha1.ConditionDegraded)
		if got := degraded.Reason == v1alpha1.ReasonTooFewSessions; got != c.short || got && !strings.Contains(degraded.Message, "maxSidecars") {
			t.Errorf("%s: %s: %s", name, degraded.Reason, degraded.Message)
		}
	}
}

// The pool says what keeps a listed namespace from having sidecars, or soon will, where a person can do something.
func TestNamespacesThatNeedAPerson(t *testing.T) {
	for reason, told := range map[string]bool{
		v1alpha1.ReasonSidecarSecretTaken: true, v1alpha1.ReasonNamespaceNotWatched: true, v1alpha1.ReasonSidecarBudgetNearlySpent: true, v1alpha1.ReasonApplyFailed: true,
		v1alpha1.ReasonUnsupported: true, v1alpha1.ReasonNamespaceMissing: false, v1alpha1.ReasonCredentialsAwaited: false, v1alpha1.ReasonPaused: false, "": false,
	} {
		s := newScene(1, v1alpha1.DataPolicyCache)
		s.Pool.Spec.Sidecars = &v1alpha1.SidecarsSpec{Namespaces: []v1alpha1.SidecarNamespace{{Name: "shop", MaxSidecars: 1}}}
		s.Pool.Status.Sidecars = &v1alpha1.SidecarsStatus{Namespaces: []v1alpha1.SidecarNamespaceStatus{{Name: "shop", Reason: reason, Message: "words of shop"}, {Name: "old", Reason: reason, Message: "words of old"}}}
		degraded := meta.FindStatusCondition(s.decide(t).Status.Pool.Conditions, v1alpha1.ConditionDegraded)
		if got := degraded.Status == metav1.ConditionTrue && degraded.Reason == reason && strings.Contains(degraded.Message, "words of shop"); got != told || strings.Contains(degraded.Message, "words of old") {
			t.Errorf("%s: %s: %s", reason, degraded.Reason, degraded.Message)
		}
	}
}

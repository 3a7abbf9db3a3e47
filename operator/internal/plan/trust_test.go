// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	farpoolv1alpha1 "farpool.dev/farpool/api/gen/farpool/v1alpha1"
	"farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/agent"
)

// A compute shard that claims a late epoch does not decide which epoch comes next.
func TestEpochsOfClientsAreNotBelieved(t *testing.T) {
	s := newScene(2, v1alpha1.DataPolicyCache)
	s.carryOut(t, &s.decide(t).Plan)
	s.ComputePods = []*corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cache-shards-1", UID: "shard"}}}
	s.Agents["shard"] = agent.Observation{State: agent.Connected, Facts: &farpoolv1alpha1.Facts{
		PoolUid: "uid", Role: farpoolv1alpha1.Role_ROLE_COMPUTE_SHARD, Name: "cache-shards-1", Incarnation: 7, Epoch: v1alpha1.MostEpochs,
	}}
	s.answer("cache-memory-0", 200, nil)
	if next := published(t, s.decide(t)); next.Epoch != 2 {
		t.Errorf("a compute shard claims epoch %d, and the next one is %d", int64(v1alpha1.MostEpochs), next.Epoch)
	}
}

// A pod that bears the pool's labels and is not of it is named once, when its owners had time to show up.
func TestForeignPodsAreNamed(t *testing.T) {
	s := newScene(1, v1alpha1.DataPolicyCache)
	s.carryOut(t, &s.decide(t).Plan)
	s.carryOut(t, &s.decide(t).Plan)
	s.Foreign = []*corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "stranger", UID: "stranger", CreationTimestamp: metav1.NewTime(s.now)}}}
	plan := s.decide(t)
	wantCondition(t, plan, v1alpha1.ConditionDegraded, metav1.ConditionFalse, v1alpha1.ReasonHealthy)
	if plan.RequeueAfter != strangerAfter {
		t.Errorf("looked at again after %s", plan.RequeueAfter)
	}
	s.now = s.now.Add(plan.RequeueAfter)
	for turn, told := range []int{1, 0} {
		plan = s.decide(t)
		wantCondition(t, plan, v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonForeignPods)
		events := slices.DeleteFunc(plan.Status.Events, func(e Event) bool { return e.Reason != v1alpha1.ReasonForeignPods })
		if len(events) != told {
			t.Errorf("turn %d: told %v", turn, events)
		}
		if slices.ContainsFunc(plan.Targets, func(target agent.Target) bool { return target.Name == "stranger" }) {
			t.Error("the operator keeps a stream to it")
		}
		s.carryOut(t, &plan.Plan)
		s.now = s.now.Add(time.Minute)
	}
	if message := meta.FindStatusCondition(s.Pool.Status.Conditions, v1alpha1.ConditionDegraded).Message; !strings.Contains(message, "stranger") {
		t.Error(message)
	}
}

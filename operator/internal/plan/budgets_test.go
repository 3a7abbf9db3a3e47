// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	farpoolv1alpha1 "farpool.dev/farpool/api/gen/farpool/v1alpha1"
	"farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/agent"
)

// A pool that nothing reaches is not available, however well its memory nodes serve.
func TestNoComputeShards(t *testing.T) {
	s := newScene(1, v1alpha1.DataPolicyCache)
	s.carryOut(t, &s.decide(t).Plan)
	plan := s.decide(t)
	wantCondition(t, plan, v1alpha1.ConditionAvailable, metav1.ConditionFalse, v1alpha1.ReasonNoComputeShards)
	s.withShard()
	wantCondition(t, s.decide(t), v1alpha1.ConditionAvailable, metav1.ConditionTrue, v1alpha1.ReasonServing)
	s.Pool.Spec.Compute.Pools[0].Replicas = 0
	s.Deployments["cache-shards"].Spec.Replicas = ptr.To(int32(0))
	s.Deployments["cache-shards"].Status.ReadyReplicas = 0
	wantCondition(t, s.decide(t), v1alpha1.ConditionAvailable, metav1.ConditionFalse, v1alpha1.ReasonNoComputeShards)
}

// Compute shards that find no session are counted before they are made, and say so themselves.
func TestSessionsAreABudget(t *testing.T) {
	for _, c := range []struct {
		name              string
		template          int32
		workers, replicas int32
		max               *int32
		hostNetwork       bool
		short             bool
	}{
		{name: "as many as there are", template: 1, workers: 64, replicas: 3},
		{name: "more", template: 1, workers: 64, replicas: 4, short: true},
		{name: "without a surge", template: 1, workers: 64, replicas: 4, hostNetwork: true},
		{name: "raised, where it is fixed", template: 1, workers: 64, replicas: 4, max: ptr.To(int32(512))},
		{name: "raised, and the memory node is older", template: 4, workers: 64, replicas: 4, max: ptr.To(int32(512)), short: true},
		{name: "none", template: 4, workers: 64, replicas: 0, max: ptr.To(int32(1))},
	} {
		s := newScene(1, v1alpha1.DataPolicyCache)
		s.place(t, c.template)
		s.withShard()
		s.Pool.Spec.Compute.Pools[0].Workers = c.workers
		s.Pool.Spec.Compute.Pools[0].Replicas = c.replicas
		s.Deployments["cache-shards"].Spec.Replicas = ptr.To(c.replicas)
		if c.max != nil {
			s.Pool.Spec.Limits = &v1alpha1.LimitsSpec{MaxSessions: c.max}
		}
		if c.hostNetwork {
			s.Pool.Spec.Network = v1alpha1.NetworkSpec{Transport: v1alpha1.TransportRoCEv2, Attachment: &v1alpha1.AttachmentSpec{Type: v1alpha1.AttachmentHostNetwork, HostNetwork: &v1alpha1.HostNetworkAttachment{ResourceName: "rdma/hca"}}}
		}
		plan := s.decide(t)
		degraded := meta.FindStatusCondition(plan.Status.Pool.Conditions, v1alpha1.ConditionDegraded)
		if got := degraded.Reason == v1alpha1.ReasonTooFewSessions; got != c.short {
			t.Errorf("%s: %s: %s", c.name, degraded.Reason, degraded.Message)
		}
	}
}

func TestAShardSaysWhyItIsNotReady(t *testing.T) {
	const words = "all 256 sessions are taken"
	s := newScene(1, v1alpha1.DataPolicyCache)
	s.carryOut(t, &s.decide(t).Plan)
	s.withShard()
	s.Deployments["cache-shards"].Status.ReadyReplicas = 0
	s.ComputePools = map[string]*v1alpha1.ComputeShardPool{"cache-shards": {ObjectMeta: metav1.ObjectMeta{Name: "cache-shards"}, Spec: v1alpha1.ComputeShardPoolSpec{Declared: 1, Replicas: 1}}}
	s.ComputePods = []*corev1.Pod{{
		ObjectMeta: metav1.ObjectMeta{Name: "cache-shards-1", UID: "shard", Labels: map[string]string{v1alpha1.LabelComputePool: "shards"}},
		Spec:       corev1.PodSpec{NodeName: "worker"},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.0.1.1"},
	}}
	s.Agents["shard"] = agent.Observation{State: agent.Connected, Facts: &farpoolv1alpha1.Facts{Role: farpoolv1alpha1.Role_ROLE_COMPUTE_SHARD, Name: "cache-shards-1", Message: words}}
	plan := s.decide(t)
	for kind, conditions := range map[string][]metav1.Condition{
		v1alpha1.ConditionAvailable:   plan.Status.Pool.Conditions,
		v1alpha1.ConditionProgressing: plan.Status.Pool.Conditions,
		v1alpha1.ConditionReady:       plan.Status.ComputePools["cache-shards"].Conditions,
	} {
		if c := meta.FindStatusCondition(conditions, kind); c == nil || !strings.Contains(c.Message, words) {
			t.Errorf("%s: %+v", kind, c)
		}
	}
}

// Memory pools may be scaled one by one to more memory nodes than a map holds. The pool then has as many as it can, and says so.
func TestMemoryPoolsTogetherBeyondAMap(t *testing.T) {
	s := newScene(2, v1alpha1.DataPolicyCache)
	s.Pool.Spec.Memory.Pools = append(s.Pool.Spec.Memory.Pools, v1alpha1.MemoryPool{Name: "more", Replicas: 2, Lend: s.Pool.Spec.Memory.Pools[0].Lend})
	scale := func(name string, declared, replicas int32) {
		if s.MemoryPools == nil {
			s.MemoryPools = map[string]*v1alpha1.MemoryNodePool{}
		}
		s.MemoryPools["cache-"+name] = &v1alpha1.MemoryNodePool{ObjectMeta: metav1.ObjectMeta{Name: "cache-" + name}, Spec: v1alpha1.MemoryNodePoolSpec{PoolName: "cache", MemoryPool: name, Declared: declared, Replicas: replicas}}
	}
	scale("memory", 2, 200)
	scale("more", 2, 200)
	plan := s.decide(t)
	if plan.Status.Pool.Memory.Desired != 256 {
		t.Errorf("%d memory nodes are asked for", plan.Status.Pool.Memory.Desired)
	}
	wantCondition(t, plan, v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonTooManyMemoryNodes)
	limited := meta.FindStatusCondition(plan.Status.MemoryPools["cache-more"].Conditions, v1alpha1.ConditionScalingLimited)
	if limited == nil || limited.Status != metav1.ConditionTrue || !strings.Contains(limited.Message, "memory pool more gets 56 of the 200") {
		t.Errorf("%+v", limited)
	}
	if c := meta.FindStatusCondition(plan.Status.MemoryPools["cache-memory"].Conditions, v1alpha1.ConditionScalingLimited); c != nil {
		t.Errorf("the first memory pool: %+v", c)
	}
	s.MemoryPools["cache-more"].Status = plan.Status.MemoryPools["cache-more"]
	scale("memory", 2, 56)
	s.MemoryPools["cache-more"].Status = plan.Status.MemoryPools["cache-more"]
	plan = s.decide(t)
	if c := meta.FindStatusCondition(plan.Status.MemoryPools["cache-more"].Conditions, v1alpha1.ConditionScalingLimited); c == nil || c.Status != metav1.ConditionFalse {
		t.Errorf("with room for all: %+v", c)
	}
}

// A pod of before is started again with the Secret that it names, until no such pod is made any more.
func TestSecretsStayUntilNoPodHasThem(t *testing.T) {
	own := v1alpha1.SecuritySpec{Password: v1alpha1.PasswordSecret, PasswordSecret: &v1alpha1.SecretKey{Name: "mine"}}
	none := v1alpha1.SecuritySpec{Password: v1alpha1.PasswordNone}
	for _, c := range []struct {
		secret   string
		security v1alpha1.SecuritySpec
	}{{"cache-password", none}, {"cache-password", own}, {"cache-resp-tls", none}} {
		secret := c.secret
		s := newScene(1, v1alpha1.DataPolicyCache)
		s.withShard()
		s.Pool.Spec.Security = c.security
		object := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: secret}}
		s.Secrets[secret] = object
		with := corev1.PodSpec{Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: secret}}}}}
		deployment := s.Deployments["cache-shards"]
		deleted := func() bool {
			for _, other := range s.decide(t).Delete {
				if other == client.Object(object) {
					return true
				}
			}
			return false
		}
		deployment.Spec.Template.Spec = with
		if deleted() {
			t.Errorf("%s: deleted, and the Deployment has it", secret)
		}
		deployment.Spec.Template.Spec = corev1.PodSpec{}
		deployment.Generation = 2
		if deleted() {
			t.Errorf("%s: deleted, and the Deployment's controller has not seen the change", secret)
		}
		deployment.Status.ObservedGeneration, deployment.Status.Replicas = 2, 2
		if deleted() {
			t.Errorf("%s: deleted in the middle of a rollout", secret)
		}
		deployment.Status.Replicas = 1
		s.ComputePods = []*corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Name: "cache-shards-1", UID: "shard"}, Spec: with, Status: corev1.PodStatus{Phase: corev1.PodRunning}}}
		if deleted() {
			t.Errorf("%s: deleted, and a pod has it", secret)
		}
		s.ComputePods = nil
		if !deleted() {
			t.Errorf("%s: left over", secret)
		}
	}
}

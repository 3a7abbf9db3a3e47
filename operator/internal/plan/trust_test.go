// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
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

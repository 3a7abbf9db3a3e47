// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestKubernetesNodesThatAreAboutToBeEmptied(t *testing.T) {
	taint := func(key string, effect corev1.TaintEffect) corev1.Taint {
		return corev1.Taint{Key: key, Effect: effect}
	}
	for _, c := range []struct {
		name   string
		spec   corev1.NodeSpec
		drains []string
	}{
		{"an ordinary one", corev1.NodeSpec{}, nil},
		{"cordoned", corev1.NodeSpec{Unschedulable: true}, []string{corev1.TaintNodeUnschedulable}},
		{"uncordoned a moment ago", corev1.NodeSpec{Taints: []corev1.Taint{taint(corev1.TaintNodeUnschedulable, corev1.TaintEffectNoSchedule)}}, nil},
		{"of some", corev1.NodeSpec{Taints: []corev1.Taint{taint("nvidia.com/gpu", corev1.TaintEffectNoSchedule)}}, nil},
		{"unreachable", corev1.NodeSpec{Taints: []corev1.Taint{taint(corev1.TaintNodeUnreachable, corev1.TaintEffectNoExecute)}}, nil},
		{"cluster-autoscaler's", corev1.NodeSpec{Taints: []corev1.Taint{taint("ToBeDeletedByClusterAutoscaler", corev1.TaintEffectNoSchedule)}}, []string{"ToBeDeletedByClusterAutoscaler"}},
		{"a candidate", corev1.NodeSpec{Taints: []corev1.Taint{taint("DeletionCandidateOfClusterAutoscaler", corev1.TaintEffectPreferNoSchedule)}}, nil},
		{"preferably", corev1.NodeSpec{Taints: []corev1.Taint{taint("karpenter.sh/disrupted", corev1.TaintEffectPreferNoSchedule)}}, nil},
		{"Karpenter's, cordoned", corev1.NodeSpec{Unschedulable: true, Taints: []corev1.Taint{taint("karpenter.sh/disrupted", corev1.TaintEffectNoSchedule), taint("karpenter.sh/disruption", corev1.TaintEffectNoExecute)}},
			[]string{corev1.TaintNodeUnschedulable, "karpenter.sh/disrupted", "karpenter.sh/disruption"}},
	} {
		var keys []string
		for _, taint := range DefaultDrainTaints.Of(&corev1.Node{Spec: c.spec}) {
			keys = append(keys, taint.Key)
		}
		if !slices.Equal(keys, c.drains) {
			t.Errorf("%s: %v, want %v", c.name, keys, c.drains)
		}
	}
}

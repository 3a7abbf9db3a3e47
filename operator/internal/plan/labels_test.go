// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"farpool.dev/farpool/api/v1alpha1"
)

// An object gets labels back that it has lost, or that somebody has changed, unless it is about to go.
func TestLostLabelsComeBack(t *testing.T) {
	labels := map[string]string{"pool": "cache", "part": "of"}
	deleted := &metav1.Time{Time: start}
	for name, c := range map[string]struct {
		object  client.Object
		relabel bool
	}{
		"a map that has lost them":          {&v1alpha1.ShardMap{}, true},
		"a pod that has lost one":           {&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"pool": "cache"}}}, true},
		"a pod of which one is changed":     {&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"pool": "cache", "part": "x"}}}, true},
		"a pod that has them":               {&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"pool": "cache", "part": "of", "more": "x"}}}, false},
		"a pod that is being deleted":       {&corev1.Pod{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: deleted}}, false},
		"a map that is being deleted":       {&v1alpha1.ShardMap{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: deleted}}, false},
		"a memory node that has no pod yet": {(*corev1.Pod)(nil), false},
	} {
		d := &decision{}
		d.relabel(c.object, labels)
		if relabel := len(d.Relabel) == 1 && d.Relabel[0].Object == c.object && len(d.Relabel[0].Labels) == 2; relabel != c.relabel || len(d.Relabel) > 1 {
			t.Errorf("%s: %+v", name, d.Relabel)
		}
	}
}

// A memory node's pod is owned by its MemoryNode, as its controller, and by the pool.
func TestWhoOwnsAPodOfAMemoryNode(t *testing.T) {
	yes := true
	memoryNode, pool, another := metav1.OwnerReference{UID: "node", Controller: &yes}, metav1.OwnerReference{UID: "uid"}, metav1.OwnerReference{UID: "another", Controller: &yes}
	for name, c := range map[string]struct {
		owners []metav1.OwnerReference
		change func(*node)
		adopt  bool
	}{
		"both":                        {[]metav1.OwnerReference{memoryNode, pool}, nil, false},
		"the MemoryNode alone":        {[]metav1.OwnerReference{memoryNode}, nil, true},
		"the pool alone":              {[]metav1.OwnerReference{pool}, nil, true},
		"a MemoryNode that is gone":   {[]metav1.OwnerReference{another, pool}, nil, true},
		"one that is being deleted":   {nil, func(n *node) { n.pod.DeletionTimestamp = &metav1.Time{Time: start} }, false},
		"one that has not come about": {nil, func(n *node) { n.pod = nil }, false},
	} {
		d := stageOf(v1alpha1.DataPolicyStore, 1, "a")
		d.nodes[0].object.UID = "node"
		d.nodes[0].pod.OwnerReferences = c.owners
		if c.change != nil {
			c.change(d.nodes[0])
		}
		d.adopt(d.nodes[0])
		if adopt := len(d.Adopt) == 1 && d.Adopt[0].Owners[0].UID == "node" && d.Adopt[0].Owners[1].UID == "uid"; adopt != c.adopt || len(d.Adopt) > 1 {
			t.Errorf("%s: %+v", name, d.Adopt)
		}
	}
}

// A compute shard's pod that has lost its labels is known by its Deployment's name: the longest that its own begins with.
func TestWhoseLabelsAComputeShardHas(t *testing.T) {
	deployment := func(name string) *appsv1.Deployment {
		return &appsv1.Deployment{Spec: appsv1.DeploymentSpec{Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"of": name}}}}}
	}
	d := stageOf(v1alpha1.DataPolicyStore, 1, "a")
	d.Deployments = map[string]*appsv1.Deployment{}
	for _, name := range []string{"cache-shards", "cache-shards-big", "cache-shards-b", "else"} {
		d.Deployments[name] = deployment(name)
	}
	for pod, of := range map[string]string{"cache-shards-5d8-x": "cache-shards", "cache-shards-big-5d8-x": "cache-shards-big", "cache-shards": "", "another-5d8-x": ""} {
		if labels := d.labelsOfShard(pod); labels["of"] != of {
			t.Errorf("pod %s: %v", pod, labels)
		}
		d.Unlabelled = append(d.Unlabelled, &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: pod}})
	}
	if d.relabelOthers(); len(d.Relabel) != 2 {
		t.Errorf("%d pods are labelled", len(d.Relabel))
	}
}

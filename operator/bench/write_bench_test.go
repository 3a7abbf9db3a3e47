// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"farpool.dev/farpool/api/v1alpha1"
)

// What the API server takes for the status of a ComputeShardPool, by the number of its processes, when one of them is another: if the status is applied, as the operator
// does, and if a JSON patch has that one process alone.
func BenchmarkListOfProcesses(b *testing.B) {
	c, err := startCluster(b.Context(), "../..", false)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := c.stop(); err != nil {
			b.Error(err)
		}
	})
	const namespace = "lists"
	if err := c.client.Create(b.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}); err != nil {
		b.Fatal(err)
	}
	for _, count := range []int{64, 256, 1024} {
		pool := &v1alpha1.ComputeShardPool{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("shards-%d", count)},
			Spec: v1alpha1.ComputeShardPoolSpec{PoolName: "cache", ComputePool: "shards", Declared: int32(count), Replicas: int32(count)}}
		if err := c.client.Create(b.Context(), pool); err != nil {
			b.Fatal(err)
		}
		processes := make([]v1alpha1.ProcessStatus, count)
		for i := range processes {
			processes[i] = v1alpha1.ProcessStatus{Process: v1alpha1.ProcessID(1<<60 + uint64(i)), Name: fmt.Sprintf("cache-shards-5d8f7c9b6-%05d", i),
				PodUID: fmt.Sprintf("5f0c2a54-2f5d-4c9c-9a3f-%012d", i), NodeName: nodeName(i)}
		}
		write := func(b *testing.B, kind types.PatchType, patch any, options ...client.SubResourcePatchOption) {
			b.Helper()
			raw, err := json.Marshal(patch)
			if err != nil {
				b.Fatal(err)
			}
			object := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: pool.Name}}
			object.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("ComputeShardPool"))
			if err := c.client.Status().Patch(b.Context(), object, client.RawPatch(kind, raw), append(options, client.FieldOwner(v1alpha1.StatusFieldManager))...); err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(len(raw)), "B-sent")
		}
		next := uint64(2 << 60)
		another := func() {
			next++
			processes[count/2].Process = v1alpha1.ProcessID(next)
		}
		b.Run(fmt.Sprintf("processes=%d/apply", count), func(b *testing.B) {
			for b.Loop() {
				another()
				write(b, types.ApplyPatchType, map[string]any{"apiVersion": v1alpha1.GroupVersion.String(), "kind": "ComputeShardPool", "metadata": map[string]any{"namespace": namespace, "name": pool.Name},
					"status": map[string]any{"processes": processes, "selector": "farpool.dev/pool=cache"}}, client.ForceOwnership)
			}
		})
		b.Run(fmt.Sprintf("processes=%d/json-patch", count), func(b *testing.B) {
			for b.Loop() {
				another()
				write(b, types.JSONPatchType, []map[string]any{{"op": "replace", "path": fmt.Sprintf("/status/processes/%d", count/2), "value": processes[count/2]}})
			}
		})
	}
}

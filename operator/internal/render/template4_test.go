// SPDX-License-Identifier: Apache-2.0

package render

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"farpool.dev/farpool/api/v1alpha1"
)

// A memory node's configuration is a part of its pod: nothing that is edited later reaches a process that restarts in it.
func TestMemoryNodesAreConfiguredByTheirPods(t *testing.T) {
	for name, pool := range pools(t) {
		for _, memoryPool := range pool.Spec.Memory.Pools {
			pod, err := (template4{}).MemoryPod(pool, memoryPool, "memory-0", "uid")
			if err != nil {
				t.Fatal(err)
			}
			container := pod.Spec.Containers[0]
			for _, line := range strings.Split(strings.TrimSpace((template4{}).MemoryConfig(pool, memoryPool)), "\n") {
				key, value, _ := strings.Cut(line, " = ")
				if argument := "--" + key + "=" + strings.Trim(value, `"`); !slices.Contains(container.Args, argument) {
					t.Errorf("%s: no %s in %v", name, argument, container.Args)
				}
			}
			for _, volume := range pod.Spec.Volumes {
				if volume.ConfigMap != nil {
					t.Errorf("%s: reads ConfigMap %s, which an edit changes", name, *volume.ConfigMap.Name)
				}
			}
			for _, argument := range container.Args {
				if strings.HasPrefix(argument, "--config") {
					t.Errorf("%s: %s", name, argument)
				}
			}
			if data := Config(pool, template4{}).Data; data[memoryPool.Name+".toml"] != "" {
				t.Errorf("%s: a file that nobody reads: %v", name, data)
			}
		}
	}
}

// A Kubernetes node that cannot be reached keeps its memory nodes; compute shards are made anew elsewhere soon.
// A socket of 0.0.0.0 is out of reach in a cluster that has IPv6 alone.
func TestProcessesListenOnAddressesOfEitherFamily(t *testing.T) {
	for name, pool := range pools(t) {
		var configs []string
		for _, memoryPool := range pool.Spec.Memory.Pools {
			configs = append(configs, (template4{}).MemoryConfig(pool, memoryPool))
		}
		for _, computePool := range pool.ComputePools() {
			configs = append(configs, (template4{}).ComputeConfig(pool, computePool))
		}
		for _, config := range configs {
			sockets := 0
			for _, line := range strings.Split(config, "\n") {
				key, value, _ := strings.Cut(line, " = ")
				if !strings.HasSuffix(key, "listen") {
					continue
				}
				sockets++
				if !strings.HasPrefix(value, `"[::]:`) {
					t.Errorf("%s: %s", name, line)
				}
			}
			if sockets != 3 {
				t.Errorf("%s: %d sockets in\n%s", name, sockets, config)
			}
		}
	}
}

func TestTolerationsOfUnreachableKubernetesNodes(t *testing.T) {
	pool := pools(t)["kvpool"]
	memoryPool, computePool := pool.Spec.Memory.Pools[0], pool.Spec.Compute.Pools[0]
	for _, c := range []struct {
		name  string
		given []v1alpha1.Toleration
		// The memory node's tolerations: seconds by key, -1 for ever.
		want map[string]int64
	}{
		{"nothing said", nil, map[string]int64{corev1.TaintNodeNotReady: -1, corev1.TaintNodeUnreachable: -1}},
		{"another taint", []v1alpha1.Toleration{{Key: "dedicated", Operator: corev1.TolerationOpExists}},
			map[string]int64{"dedicated": -1, corev1.TaintNodeNotReady: -1, corev1.TaintNodeUnreachable: -1}},
		{"said by a person", []v1alpha1.Toleration{{Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: ptr.To(int64(7))}},
			map[string]int64{corev1.TaintNodeUnreachable: 7, corev1.TaintNodeNotReady: -1}},
		{"of another effect", []v1alpha1.Toleration{{Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}},
			map[string]int64{corev1.TaintNodeUnreachable: -1, corev1.TaintNodeNotReady: -1}},
		{"everything", []v1alpha1.Toleration{{Operator: corev1.TolerationOpExists}}, map[string]int64{"": -1}},
	} {
		memoryPool.Pod, computePool.Pod = &v1alpha1.PodOptions{Tolerations: c.given}, &v1alpha1.PodOptions{Tolerations: c.given}
		pod, err := (template4{}).MemoryPod(pool, memoryPool, "memory-0", "uid")
		if err != nil {
			t.Fatal(err)
		}
		deployment, err := (template4{}).ComputeDeployment(pool, computePool)
		if err != nil {
			t.Fatal(err)
		}
		for i, tolerations := range [][]corev1.Toleration{tolerationsOf(pod.Spec.Tolerations), tolerationsOf(deployment.Spec.Template.Spec.Tolerations)} {
			got := map[string]int64{}
			for _, toleration := range tolerations {
				got[toleration.Key] = ptr.Deref(toleration.TolerationSeconds, -1)
			}
			want := map[string]int64{}
			for key, seconds := range c.want {
				added := !slices.ContainsFunc(c.given, func(given v1alpha1.Toleration) bool {
					return given.Key == key && given.Effect != corev1.TaintEffectNoSchedule
				})
				if i == 1 && added {
					seconds = shardsOutlast
				}
				want[key] = seconds
			}
			for key, seconds := range want {
				if got[key] != seconds || len(got) != len(want) {
					t.Errorf("%s, %d: %v, want %v", c.name, i, got, want)
				}
			}
		}
	}
}

// The kubelet evicts pods that use more memory than they have asked for: a memory node asks for all that it may use.
func TestMemoryNodesAskForAllTheirMemory(t *testing.T) {
	for name, pool := range pools(t) {
		pool.MemoryPriorityClass = "farpool-memory-nodes"
		for _, memoryPool := range pool.Spec.Memory.Pools {
			for what, resources := range map[string]*v1alpha1.Resources{
				"the spec's":      memoryPool.Resources,
				"nothing":         nil,
				"a request":       {Requests: list(corev1.ResourceMemory, "64Mi")},
				"a limit":         {Limits: list(corev1.ResourceMemory, "1Gi")},
				"processors":      {Limits: list(corev1.ResourceCPU, "2")},
				"some processors": {Requests: list(corev1.ResourceCPU, "1"), Limits: list(corev1.ResourceCPU, "2")},
			} {
				memoryPool.Resources = resources
				pod, err := (template4{}).MemoryPod(pool, memoryPool, "memory-0", "uid")
				if err != nil {
					t.Fatal(err)
				}
				requests, limits := *pod.Spec.Containers[0].Resources.Requests, *pod.Spec.Containers[0].Resources.Limits
				if requests.Memory().Cmp(*limits.Memory()) != 0 || limits.Memory().IsZero() {
					t.Errorf("%s, %s: asks for %s of %s", name, what, requests.Memory(), limits.Memory())
				}
				if what == "processors" && requests.Cpu().Cmp(*limits.Cpu()) != 0 {
					t.Errorf("%s, %s: not Guaranteed", name, what)
				}
				if *pod.Spec.PriorityClassName != "farpool-memory-nodes" {
					t.Errorf("%s: priority class %s", name, *pod.Spec.PriorityClassName)
				}
			}
		}
	}
}

// Autoscalers of Kubernetes nodes take none that has a memory node; compute shards are in nobody's way.
func TestAutoscalersTakeNoMemoryNode(t *testing.T) {
	for name, pool := range pools(t) {
		pod, err := (template4{}).MemoryPod(pool, pool.Spec.Memory.Pools[0], "memory-0", "uid")
		if err != nil {
			t.Fatal(err)
		}
		if pod.Annotations["cluster-autoscaler.kubernetes.io/safe-to-evict"] != "false" || pod.Annotations["karpenter.sh/do-not-disrupt"] != "true" {
			t.Errorf("%s: annotations %v", name, pod.Annotations)
		}
		for _, computePool := range pool.ComputePools() {
			deployment, err := (template4{}).ComputeDeployment(pool, computePool)
			if err != nil {
				t.Fatal(err)
			}
			for key := range NotToBeTaken() {
				if value, has := deployment.Spec.Template.Annotations[key]; has {
					t.Errorf("%s: compute shards have annotation %s=%s", name, key, value)
				}
			}
		}
	}
}

// A shard takes connections until nobody sends it new ones any more, and has time to drain then.
func TestShardsLinger(t *testing.T) {
	for name, pool := range pools(t) {
		for _, computePool := range pool.ComputePools() {
			deployment, err := (template4{}).ComputeDeployment(pool, computePool)
			if err != nil {
				t.Fatal(err)
			}
			spec := deployment.Spec.Template.Spec
			lingers := *spec.Containers[0].Lifecycle.PreStop.Sleep.Seconds
			if lingers < 5 || *spec.TerminationGracePeriodSeconds < lingers+30 {
				t.Errorf("%s: lingers for %d s of %d s", name, lingers, *spec.TerminationGracePeriodSeconds)
			}
		}
	}
}

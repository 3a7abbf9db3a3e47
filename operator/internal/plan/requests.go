// SPDX-License-Identifier: Apache-2.0

package plan

import (
	corev1 "k8s.io/api/core/v1"
)

// requestsOf returns what a pod requests, as the scheduler counts it: its containers together with its sidecars, or more where an init container that runs
// before them asks for more, and what its runtime class adds.
func requestsOf(pod *corev1.Pod) corev1.ResourceList {
	total, sidecars, before := corev1.ResourceList{}, corev1.ResourceList{}, corev1.ResourceList{}
	for _, container := range pod.Spec.Containers {
		addTo(total, container.Resources.Requests)
	}
	for _, container := range pod.Spec.InitContainers {
		if container.RestartPolicy != nil && *container.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			addTo(total, container.Resources.Requests)
			addTo(sidecars, container.Resources.Requests)
			continue
		}
		beside := sidecars.DeepCopy()
		addTo(beside, container.Resources.Requests)
		raise(before, beside)
	}
	raise(total, before)
	addTo(total, pod.Spec.Overhead)
	return total
}

// addTo adds each quantity of a list to a sum.
func addTo(sum, list corev1.ResourceList) {
	for name, quantity := range list {
		held := sum[name]
		held.Add(quantity)
		sum[name] = held
	}
}

// raise lifts each quantity to that of another list, where that is greater.
func raise(list, other corev1.ResourceList) {
	for name, quantity := range other {
		if held := list[name]; held.Cmp(quantity) < 0 {
			list[name] = quantity
		}
	}
}

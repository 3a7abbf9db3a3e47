// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
)

func TestRequestsAreCountedAsTheSchedulerCounts(t *testing.T) {
	list := func(cpu, memory string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}
	}
	container := func(cpu, memory string) corev1.Container {
		return corev1.Container{Resources: corev1.ResourceRequirements{Requests: list(cpu, memory)}}
	}
	sidecar := container("50m", "32Mi")
	sidecar.RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
	large := container("1", "1Gi")
	large.RestartPolicy = sidecar.RestartPolicy
	before := container("100m", "32Mi")
	before.RestartPolicy = ptr.To(corev1.ContainerRestartPolicyOnFailure)
	pages := container("1", "64Mi")
	pages.Resources.Requests[corev1.ResourceHugePagesPrefix+"2Mi"] = resource.MustParse("8Gi")
	whole := list("1", "64Mi")
	whole[corev1.ResourceHugePagesPrefix+"2Mi"] = resource.MustParse("8Gi")
	for name, c := range map[string]struct {
		spec corev1.PodSpec
		want corev1.ResourceList
	}{
		"nothing":                   {corev1.PodSpec{Containers: []corev1.Container{{}}}, corev1.ResourceList{}},
		"one":                       {corev1.PodSpec{Containers: []corev1.Container{container("100m", "320Mi")}}, list("100m", "320Mi")},
		"one before, for zero":      {corev1.PodSpec{Containers: []corev1.Container{{}}, InitContainers: []corev1.Container{container("0", "0")}}, corev1.ResourceList{}},
		"huge pages":                {corev1.PodSpec{Containers: []corev1.Container{pages}}, whole},
		"two, and a runtime's":      {corev1.PodSpec{Containers: []corev1.Container{container("100m", "320Mi"), container("1", "1Gi")}, Overhead: list("250m", "120Mi")}, list("1350m", "1464Mi")},
		"a sidecar":                 {corev1.PodSpec{Containers: []corev1.Container{container("100m", "320Mi")}, InitContainers: []corev1.Container{sidecar}}, list("150m", "352Mi")},
		"a large sidecar":           {corev1.PodSpec{Containers: []corev1.Container{container("100m", "320Mi")}, InitContainers: []corev1.Container{large}}, list("1100m", "1344Mi")},
		"a large one, a sidecar":    {corev1.PodSpec{Containers: []corev1.Container{container("100m", "320Mi")}, InitContainers: []corev1.Container{container("2", "16Mi"), sidecar}}, list("2", "352Mi")},
		"a small one before":        {corev1.PodSpec{Containers: []corev1.Container{container("100m", "320Mi")}, InitContainers: []corev1.Container{container("100m", "32Mi"), before}}, list("100m", "320Mi")},
		"a large one after sidecar": {corev1.PodSpec{Containers: []corev1.Container{container("100m", "320Mi")}, InitContainers: []corev1.Container{sidecar, container("2", "16Mi")}}, list("2050m", "352Mi")},
	} {
		if got := requestsOf(&corev1.Pod{Spec: c.spec}); !equality.Semantic.DeepEqual(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

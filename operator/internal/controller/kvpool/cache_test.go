// SPDX-License-Identifier: Apache-2.0

package kvpool

import (
	"maps"
	"net/http"
	"net/http/httptest"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache/informertest"

	"farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/render"
)

func TestTheCacheKeepsWhatIsLookedAt(t *testing.T) {
	managed := []metav1.ManagedFieldsEntry{{Manager: "kubelet"}, {Manager: v1alpha1.FieldManager}, {Manager: v1alpha1.StatusFieldManager, Subresource: "status"}}
	kept, err := withoutManagersOfOthers(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "cache", ManagedFields: managed}})
	if err != nil {
		t.Fatal(err)
	}
	if service := kept.(*corev1.Service); service.Name != "cache" || len(service.ManagedFields) != 2 || service.ManagedFields[0].Manager != v1alpha1.FieldManager {
		t.Errorf("%+v", service.ObjectMeta)
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "cache-memory-0", UID: "uid", Labels: map[string]string{v1alpha1.LabelPool: "cache"}, Annotations: map[string]string{"note": "a"}, ManagedFields: managed},
		Spec: corev1.PodSpec{NodeName: "worker", Volumes: []corev1.Volume{{Name: "tls"}}, Tolerations: []corev1.Toleration{{Key: "dedicated"}}, NodeSelector: map[string]string{"zone": "a"},
			Affinity: &corev1.Affinity{}, TopologySpreadConstraints: []corev1.TopologySpreadConstraint{{MaxSkew: 1}}, PriorityClassName: "high", RuntimeClassName: ptr.To("crun"),
			SchedulerName: "other", ServiceAccountName: "pods", ImagePullSecrets: []corev1.LocalObjectReference{{Name: "pull"}}, SecurityContext: &corev1.PodSecurityContext{RunAsUser: ptr.To(int64(7)), RunAsGroup: ptr.To(int64(8))},
			Containers:     []corev1.Container{{Name: "memory-node", Image: "farpool/dataplane:v1", ImagePullPolicy: corev1.PullAlways, Args: []string{"--name"}, Env: []corev1.EnvVar{{Name: "HOME"}}}},
			InitContainers: []corev1.Container{{Name: "mesh", Image: "mesh", RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways), Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi")}}}},
			Overhead:       corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("120Mi")}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.0.0.1"},
	}
	kept, err = slimPod(pod)
	if err != nil {
		t.Fatal(err)
	}
	slim := kept.(*corev1.Pod)
	if slim.UID != "uid" || slim.Labels[v1alpha1.LabelPool] != "cache" || slim.Spec.NodeName != "worker" || slim.Status.PodIP != "10.0.0.1" {
		t.Errorf("%+v", slim)
	}
	if len(slim.Spec.Containers) != 1 || slim.Spec.Containers[0].Image != "farpool/dataplane:v1" || slim.ManagedFields != nil || slim.Spec.Volumes != nil || slim.Spec.Containers[0].Args != nil || slim.Spec.Tolerations != nil || slim.Spec.NodeSelector != nil || slim.Annotations != nil {
		t.Errorf("kept of a compute shard for nothing: %+v", slim)
	}
	pod.Labels[v1alpha1.LabelMemoryNode] = "cache-memory-0"
	if kept, err = slimPod(pod); err != nil {
		t.Fatal(err)
	}
	if slim = kept.(*corev1.Pod); len(slim.Spec.Containers) != 1 || slim.Spec.Containers[0].Image != "farpool/dataplane:v1" || len(slim.Spec.Containers[0].Args) != 1 ||
		len(slim.Spec.Tolerations) != 1 || slim.Spec.NodeSelector["zone"] != "a" || slim.Annotations["note"] != "a" {
		t.Errorf("%+v", slim.Spec)
	}
	if s := &slim.Spec; s.Affinity == nil || len(s.TopologySpreadConstraints) != 1 || s.PriorityClassName != "high" || *s.RuntimeClassName != "crun" || s.SchedulerName != "other" ||
		s.ServiceAccountName != "pods" || len(s.ImagePullSecrets) != 1 || s.Containers[0].ImagePullPolicy != corev1.PullAlways || *s.SecurityContext.RunAsUser != 7 || s.SecurityContext.RunAsGroup != nil {
		t.Errorf("%+v", s)
	}
	if s := &slim.Spec; len(s.Overhead) != 1 || len(s.InitContainers) != 1 || s.InitContainers[0].Image != "" || *s.InitContainers[0].RestartPolicy != corev1.ContainerRestartPolicyAlways || s.InitContainers[0].Resources.Requests.Memory().String() != "64Mi" {
		t.Errorf("what the pod requests cannot be counted: %+v", s)
	}
	if slim.Spec.Containers[0].Env != nil || slim.Spec.Volumes != nil {
		t.Errorf("kept of a memory node for nothing: %+v", slim.Spec)
	}
	for _, transform := range []func(any) (any, error){slimPod, withoutManagersOfOthers} {
		if kept, err := transform("a tombstone"); err != nil || kept != "a tombstone" {
			t.Errorf("%v, %v", kept, err)
		}
	}
}

// An annotation that the operator adds to pods where it is missing has to be seen in the cache, or it is added for ever.
func TestTheCacheKeepsAnnotationsThatAreAdded(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{v1alpha1.LabelMemoryNode: "cache-memory-0"}, Annotations: map[string]string{"of": "the spec", v1alpha1.AnnotationPodHash: "hash"}}}
	for key, value := range render.NotToBeTaken() {
		pod.Annotations[key] = value
	}
	kept, err := slimPod(pod)
	if err != nil {
		t.Fatal(err)
	}
	if annotations := kept.(*corev1.Pod).Annotations; !maps.Equal(annotations, pod.Annotations) {
		t.Errorf("%v, want %v", annotations, pod.Annotations)
	}
}

func TestReadyOnceTheCachesAreFilled(t *testing.T) {
	request := httptest.NewRequest(http.MethodGet, "/readyz", nil)
	caches := &informertest.FakeInformers{Synced: ptr.To(false)}
	if err := Ready(caches)(request); err == nil {
		t.Error("ready before the caches are filled")
	}
	caches.Synced = ptr.To(true)
	if err := Ready(caches)(request); err != nil {
		t.Error(err)
	}
}

// SPDX-License-Identifier: Apache-2.0

package kvpool

import (
	"reflect"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/pki"
)

func TestObjectsOfTheCacheShareTexts(t *testing.T) {
	s := &shared{}
	// Each is decoded from bytes of its own.
	decoded := func() *corev1.Service {
		text := func(text string) string { return strings.Clone(text) }
		return &corev1.Service{ObjectMeta: metav1.ObjectMeta{
			Name: text("cache"), Namespace: text("shop"), Labels: map[string]string{text(v1alpha1.LabelPool): text("cache")}, Annotations: map[string]string{text("a"): text("b")},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: text("farpool.dev/v1alpha1"), Kind: text("KVPool"), Name: text("cache"), UID: types.UID(text("7"))}},
			ManagedFields:   []metav1.ManagedFieldsEntry{{Manager: text(v1alpha1.FieldManager), FieldsV1: metav1.NewFieldsV1(text("{}"))}, {Manager: text("kubelet")}},
		}}
	}
	var services [2]*corev1.Service
	for i := range services {
		kept, err := s.transform(withoutManagersOfOthers)(decoded())
		if err != nil {
			t.Fatal(err)
		}
		services[i] = kept.(*corev1.Service)
	}
	one, other := services[0], services[1]
	same := func(a, b string) {
		t.Helper()
		if a != b || unsafe.StringData(a) != unsafe.StringData(b) {
			t.Errorf("%q and %q are two", a, b)
		}
	}
	same(one.Namespace, other.Namespace)
	same(one.Labels[v1alpha1.LabelPool], other.Labels[v1alpha1.LabelPool])
	same(one.Annotations["a"], other.Annotations["a"])
	same(string(one.OwnerReferences[0].UID), string(other.OwnerReferences[0].UID))
	same(one.OwnerReferences[0].Kind, other.OwnerReferences[0].Kind)
	same(one.ManagedFields[0].Manager, other.ManagedFields[0].Manager)
	if len(one.ManagedFields) != 1 || one.ManagedFields[0].FieldsV1 != other.ManagedFields[0].FieldsV1 {
		t.Errorf("%+v and %+v", one.ManagedFields, other.ManagedFields)
	}
	if kept, err := s.transform(withoutManagersOfOthers)("a tombstone"); err != nil || kept != "a tombstone" {
		t.Errorf("%v, %v", kept, err)
	}
}

// Conditions of all pools say the same, and so do the Secrets of a pool about its authority.
func TestObjectsOfTheCacheShareContents(t *testing.T) {
	s := &shared{}
	conditions := func() []metav1.Condition {
		return []metav1.Condition{{Type: strings.Clone("Ready"), Status: metav1.ConditionStatus(strings.Clone("True")), Reason: strings.Clone("Serving"), Message: strings.Clone("it serves")}}
	}
	keep := func(object any) {
		t.Helper()
		if _, err := s.transform(func(object any) (any, error) { return object, nil })(object); err != nil {
			t.Fatal(err)
		}
	}
	same := func(texts ...[2]string) {
		t.Helper()
		for _, pair := range texts {
			if pair[0] != pair[1] || pair[0] == "" || unsafe.StringData(pair[0]) != unsafe.StringData(pair[1]) {
				t.Errorf("%q and %q are two", pair[0], pair[1])
			}
		}
	}
	pool, node := &v1alpha1.KVPool{Status: v1alpha1.KVPoolStatus{Conditions: conditions()}}, &v1alpha1.MemoryNode{Status: v1alpha1.MemoryNodeStatus{Conditions: conditions()}}
	memory, compute := &v1alpha1.MemoryNodePool{Status: v1alpha1.ScaleStatus{Conditions: conditions()}}, &v1alpha1.ComputeShardPool{Status: v1alpha1.ComputeShardPoolStatus{ScaleStatus: v1alpha1.ScaleStatus{Conditions: conditions()}}}
	shardMap := &v1alpha1.ShardMap{Status: v1alpha1.ShardMapStatus{Conditions: conditions()}}
	for _, object := range []any{pool, node, memory, compute, shardMap} {
		keep(object)
	}
	for _, other := range [][]metav1.Condition{node.Status.Conditions, memory.Status.Conditions, compute.Status.Conditions, shardMap.Status.Conditions} {
		a, b := pool.Status.Conditions[0], other[0]
		same([2]string{a.Type, b.Type}, [2]string{string(a.Status), string(b.Status)}, [2]string{a.Reason, b.Reason}, [2]string{a.Message, b.Message})
	}
	var pods [2]*corev1.Pod
	var secrets [2]*corev1.Secret
	for i := range pods {
		pods[i] = &corev1.Pod{
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: strings.Clone("memory-node"), Image: strings.Clone("dataplane"), Args: []string{strings.Clone("--name")}}}},
			Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodConditionType(strings.Clone("Ready")), Status: corev1.ConditionStatus(strings.Clone("False")),
				Reason: strings.Clone("Unready"), Message: strings.Clone("not yet")}}},
		}
		secrets[i] = &corev1.Secret{Data: map[string][]byte{pki.KeyCABundle: []byte("bundle"), pki.KeyPrivateKey: []byte("key")}}
		keep(pods[i])
		keep(secrets[i])
	}
	a, b := pods[0].Status.Conditions[0], pods[1].Status.Conditions[0]
	same([2]string{string(a.Type), string(b.Type)}, [2]string{string(a.Status), string(b.Status)}, [2]string{a.Reason, b.Reason}, [2]string{a.Message, b.Message})
	first, second := pods[0].Spec.Containers[0], pods[1].Spec.Containers[0]
	same([2]string{first.Name, second.Name}, [2]string{first.Image, second.Image}, [2]string{first.Args[0], second.Args[0]})
	if one, other := secrets[0].Data, secrets[1].Data; &one[pki.KeyCABundle][0] != &other[pki.KeyCABundle][0] || &one[pki.KeyPrivateKey][0] == &other[pki.KeyPrivateKey][0] {
		t.Error("bundles are to be one, and keys two")
	}
	keep(&corev1.Secret{})
}

// Selectors say the same as labels do, and containers of all pools ask for the same.
func TestObjectsOfTheCacheShareSelectorsAndResources(t *testing.T) {
	s := &shared{}
	labels := func() map[string]string { return map[string]string{v1alpha1.LabelPool: "cache"} }
	selector := func() *metav1.LabelSelector { return &metav1.LabelSelector{MatchLabels: labels()} }
	resources := func(memory string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(memory), corev1.ResourceCPU: resource.MustParse("1")}
	}
	containers := func(memory string) []corev1.Container {
		return []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: resources(memory), Limits: resources(memory)}}}
	}
	deployment := &appsv1.Deployment{Spec: appsv1.DeploymentSpec{Selector: selector(), Template: corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: labels(), Annotations: labels()},
		Spec:       corev1.PodSpec{Containers: containers("1Gi"), TopologySpreadConstraints: []corev1.TopologySpreadConstraint{{LabelSelector: selector()}, {}}},
	}}}
	budget := &policyv1.PodDisruptionBudget{Spec: policyv1.PodDisruptionBudgetSpec{Selector: selector()}}
	service := &corev1.Service{Spec: corev1.ServiceSpec{Selector: labels()}}
	policy := &networkingv1.NetworkPolicy{Spec: networkingv1.NetworkPolicySpec{
		PodSelector: *selector(),
		Ingress:     []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{PodSelector: selector(), NamespaceSelector: selector()}}}},
		Egress:      []networkingv1.NetworkPolicyEgressRule{{To: []networkingv1.NetworkPolicyPeer{{PodSelector: selector()}}}},
	}}
	pod, larger := &corev1.Pod{Spec: corev1.PodSpec{Containers: containers("1024Mi")}}, &corev1.Pod{Spec: corev1.PodSpec{Containers: containers("2Gi")}}
	for _, object := range []any{deployment, budget, service, policy, pod, larger, &appsv1.Deployment{}, &policyv1.PodDisruptionBudget{}} {
		if _, err := s.transform(func(object any) (any, error) { return object, nil })(object); err != nil {
			t.Fatal(err)
		}
	}
	one := func(a, b any) bool { return reflect.ValueOf(a).Pointer() == reflect.ValueOf(b).Pointer() }
	template, kept := &deployment.Spec.Template, deployment.Spec.Selector.MatchLabels
	for i, other := range []map[string]string{template.Labels, template.Annotations, template.Spec.TopologySpreadConstraints[0].LabelSelector.MatchLabels, budget.Spec.Selector.MatchLabels,
		service.Spec.Selector, policy.Spec.PodSelector.MatchLabels, policy.Spec.Ingress[0].From[0].PodSelector.MatchLabels, policy.Spec.Ingress[0].From[0].NamespaceSelector.MatchLabels,
		policy.Spec.Egress[0].To[0].PodSelector.MatchLabels} {
		if !one(kept, other) || other[v1alpha1.LabelPool] != "cache" {
			t.Errorf("%d: %v is another than %v", i, other, kept)
		}
	}
	asked := template.Spec.Containers[0].Resources
	for i, other := range []corev1.ResourceList{asked.Limits, pod.Spec.Containers[0].Resources.Requests, pod.Spec.Containers[0].Resources.Limits} {
		if !one(asked.Requests, other) {
			t.Errorf("%d: %v is another than %v", i, other, asked.Requests)
		}
	}
	if memory := larger.Spec.Containers[0].Resources.Requests[corev1.ResourceMemory]; memory.String() != "2Gi" {
		t.Errorf("memory of %s", memory.String())
	}
	for i := range 2 * mostShared / 8 {
		s.resourceList(corev1.ResourceList{corev1.ResourceMemory: *resource.NewQuantity(int64(i), resource.DecimalSI)})
		if len(s.resources) > mostShared/8 {
			t.Fatalf("%d lists of resources are kept", len(s.resources))
		}
	}
}

func TestTheTableOfTextsIsBounded(t *testing.T) {
	s := &shared{}
	for i := range 3 * mostShared {
		s.text(strconv.Itoa(i))
		s.fields(metav1.NewFieldsV1(strconv.Itoa(i)))
		s.bundle([]byte(strconv.Itoa(i)))
		if len(s.texts) > mostShared || len(s.sets) > mostShared/8 || len(s.bundles) > mostShared/8 {
			t.Fatalf("%d texts, %d sets of fields and %d bundles are kept", len(s.texts), len(s.sets), len(s.bundles))
		}
	}
	if long := strings.Repeat("x", longestShared+1); s.text(long) != long || len(s.texts) > mostShared {
		t.Error("a long text is changed")
	}
}

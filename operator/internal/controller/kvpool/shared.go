// SPDX-License-Identifier: Apache-2.0

package kvpool

import (
	"maps"
	"slices"
	"strconv"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/apply"
	"farpool.dev/farpool/operator/internal/pki"
)

// shared is a table of texts that many objects of the cache contain, such as their labels and the fields that a manager owns. Decoding gives each object copies of
// its own.
type shared struct {
	mutex sync.Mutex
	texts map[string]string
	sets  map[string]*metav1.FieldsV1
	// labels by all of their keys and values.
	labels map[string]map[string]string
	// resources by all of their names and quantities.
	resources map[string]corev1.ResourceList
	// bundles of authorities' certificates, which each certificate's Secret holds.
	bundles map[string][]byte
}

// Texts longer than longestShared are rarely equal. Once there are mostShared, the table begins anew: what is in use stays with the objects that use it.
const (
	longestShared = 256
	mostShared    = 8192
)

// text returns the copy that is kept of an equal text.
func (s *shared) text(text string) string {
	if text == "" || len(text) > longestShared {
		return text
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if kept, found := s.texts[text]; found {
		return kept
	}
	if len(s.texts) >= mostShared || s.texts == nil {
		s.texts = map[string]string{}
	}
	s.texts[text] = text
	return text
}

// fields returns the copy that is kept of an equal set of fields.
func (s *shared) fields(set *metav1.FieldsV1) *metav1.FieldsV1 {
	if set == nil {
		return nil
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	raw := set.GetRawString()
	if kept, found := s.sets[raw]; found {
		return kept
	}
	if len(s.sets) >= mostShared/8 || s.sets == nil {
		s.sets = map[string]*metav1.FieldsV1{}
	}
	s.sets[raw] = set
	return set
}

// bundle returns the copy that is kept of an equal bundle of certificates.
func (s *shared) bundle(bundle []byte) []byte {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if kept, found := s.bundles[string(bundle)]; found {
		return kept
	}
	if len(s.bundles) >= mostShared/8 || s.bundles == nil {
		s.bundles = map[string][]byte{}
	}
	s.bundles[string(bundle)] = bundle
	return bundle
}

// keysAndValues returns the copy that is kept of equal labels or annotations.
func (s *shared) keysAndValues(m map[string]string) map[string]string {
	if len(m) == 0 {
		return m
	}
	var all []byte
	for _, key := range slices.Sorted(maps.Keys(m)) {
		all = append(strconv.AppendQuote(all, key), '=')
		all = append(strconv.AppendQuote(all, m[key]), ',')
	}
	s.mutex.Lock()
	kept, found := s.labels[string(all)]
	s.mutex.Unlock()
	if found {
		return kept
	}
	common := make(map[string]string, len(m))
	for key, value := range m {
		common[s.text(key)] = s.text(value)
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if len(s.labels) >= mostShared/8 || s.labels == nil {
		s.labels = map[string]map[string]string{}
	}
	s.labels[string(all)] = common
	return common
}

// resourceList returns the copy that is kept of equal resources: most pools ask for the same.
func (s *shared) resourceList(list corev1.ResourceList) corev1.ResourceList {
	if len(list) == 0 {
		return list
	}
	var all []byte
	for _, name := range slices.Sorted(maps.Keys(list)) {
		quantity := list[name]
		all = append(strconv.AppendQuote(all, string(name)), '=')
		all = append(strconv.AppendQuote(all, quantity.String()), ',')
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if kept, found := s.resources[string(all)]; found {
		return kept
	}
	if len(s.resources) >= mostShared/8 || s.resources == nil {
		s.resources = map[string]corev1.ResourceList{}
	}
	s.resources[string(all)] = list
	return list
}

// containers replaces what containers of pods have in common by shared copies: names, arguments and resources.
func (s *shared) containers(list []corev1.Container) {
	for i := range list {
		c := &list[i]
		c.Name, c.Image = s.text(c.Name), s.text(c.Image)
		for j := range c.Args {
			c.Args[j] = s.text(c.Args[j])
		}
		c.Resources.Requests, c.Resources.Limits = s.resourceList(c.Resources.Requests), s.resourceList(c.Resources.Limits)
	}
}

// selector replaces a selector's labels by shared copies.
func (s *shared) selector(selector *metav1.LabelSelector) {
	if selector != nil {
		selector.MatchLabels = s.keysAndValues(selector.MatchLabels)
	}
}

// peers replaces the selectors of a policy's peers by shared copies.
func (s *shared) peers(list []networkingv1.NetworkPolicyPeer) {
	for i := range list {
		s.selector(list[i].PodSelector)
		s.selector(list[i].NamespaceSelector)
	}
}

// meta replaces texts of an object's metadata by shared copies.
func (s *shared) meta(object metav1.Object) {
	object.SetNamespace(s.text(object.GetNamespace()))
	object.SetLabels(s.keysAndValues(object.GetLabels()))
	object.SetAnnotations(s.keysAndValues(object.GetAnnotations()))
	owners := object.GetOwnerReferences()
	for i := range owners {
		owner := &owners[i]
		owner.APIVersion, owner.Kind, owner.Name, owner.UID = s.text(owner.APIVersion), s.text(owner.Kind), s.text(owner.Name), types.UID(s.text(string(owner.UID)))
	}
	if len(owners) > 0 {
		object.SetOwnerReferences(owners)
	}
	managed := object.GetManagedFields()
	for i := range managed {
		entry := &managed[i]
		entry.Manager, entry.APIVersion, entry.FieldsType = s.text(entry.Manager), s.text(entry.APIVersion), s.text(entry.FieldsType)
		entry.Operation, entry.Subresource = metav1.ManagedFieldsOperationType(s.text(string(entry.Operation))), s.text(entry.Subresource)
		entry.Time, entry.FieldsV1 = nil, s.fields(apply.Compact(entry.FieldsV1, object))
	}
	if len(managed) > 0 {
		object.SetManagedFields(managed)
	}
}

// contents replaces what else objects of a kind have in common by shared copies.
func (s *shared) contents(object any) {
	var conditions []metav1.Condition
	switch object := object.(type) {
	case *corev1.Secret:
		if bundle, holds := object.Data[pki.KeyCABundle]; holds {
			object.Data[pki.KeyCABundle] = s.bundle(bundle)
		}
	case *corev1.Pod:
		for i := range object.Status.Conditions {
			c := &object.Status.Conditions[i]
			c.Type, c.Status = corev1.PodConditionType(s.text(string(c.Type))), corev1.ConditionStatus(s.text(string(c.Status)))
			c.Reason, c.Message = s.text(c.Reason), s.text(c.Message)
		}
		s.containers(object.Spec.Containers)
	case *appsv1.Deployment:
		s.selector(object.Spec.Selector)
		template := &object.Spec.Template
		template.Labels, template.Annotations = s.keysAndValues(template.Labels), s.keysAndValues(template.Annotations)
		s.containers(template.Spec.Containers)
		for i := range template.Spec.TopologySpreadConstraints {
			s.selector(template.Spec.TopologySpreadConstraints[i].LabelSelector)
		}
	case *policyv1.PodDisruptionBudget:
		s.selector(object.Spec.Selector)
	case *corev1.Service:
		object.Spec.Selector = s.keysAndValues(object.Spec.Selector)
	case *networkingv1.NetworkPolicy:
		s.selector(&object.Spec.PodSelector)
		for i := range object.Spec.Ingress {
			s.peers(object.Spec.Ingress[i].From)
		}
		for i := range object.Spec.Egress {
			s.peers(object.Spec.Egress[i].To)
		}
	case *v1alpha1.KVPool:
		conditions = object.Status.Conditions
	case *v1alpha1.MemoryNode:
		conditions = object.Status.Conditions
	case *v1alpha1.MemoryNodePool:
		conditions = object.Status.Conditions
	case *v1alpha1.ComputeShardPool:
		conditions = object.Status.Conditions
	case *v1alpha1.ShardMap:
		conditions = object.Status.Conditions
	}
	for i := range conditions {
		c := &conditions[i]
		c.Type, c.Status, c.Reason, c.Message = s.text(c.Type), metav1.ConditionStatus(s.text(string(c.Status))), s.text(c.Reason), s.text(c.Message)
	}
}

// transform replaces texts of objects by shared copies, after another transform.
func (s *shared) transform(before func(any) (any, error)) func(any) (any, error) {
	return func(object any) (any, error) {
		object, err := before(object)
		if err != nil {
			return nil, err
		}
		if accessor, err := meta.Accessor(object); err == nil {
			s.meta(accessor)
			s.contents(object)
		}
		return object, nil
	}
}

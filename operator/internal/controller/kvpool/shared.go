// SPDX-License-Identifier: Apache-2.0

package kvpool

import (
	"maps"
	"slices"
	"strconv"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"farpool.dev/farpool/operator/internal/apply"
)

// shared is a table of texts that objects of the cache have in common, such as their labels and the fields that a manager owns: each object is decoded with
// copies of its own.
type shared struct {
	mutex sync.Mutex
	texts map[string]string
	sets  map[string]*metav1.FieldsV1
	// labels by all of their keys and values.
	labels map[string]map[string]string
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

// meta has an object's metadata made of texts that are shared.
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

// transform has objects made of texts that are shared, after another transform.
func (s *shared) transform(before func(any) (any, error)) func(any) (any, error) {
	return func(object any) (any, error) {
		object, err := before(object)
		if err != nil {
			return nil, err
		}
		if accessor, err := meta.Accessor(object); err == nil {
			s.meta(accessor)
		}
		return object, nil
	}
}

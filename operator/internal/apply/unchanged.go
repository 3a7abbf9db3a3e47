// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	// Reads whole numbers as integers, as live objects have them.
	"k8s.io/apimachinery/pkg/util/json"
)

// unchanged says whether applying desired as manager would change nothing: every desired value is there already and manager's own, and
// manager owns nothing that desired leaves out (which the API server would remove). What others have added beside it is theirs: an apply
// would not remove it, and must not be tried for ever.
func unchanged(live, desired map[string]any, managed []metav1.ManagedFieldsEntry, owner *metav1.OwnerReference, manager, subresource string) bool {
	if !contains(live, desired) {
		return false
	}
	for _, entry := range managed {
		if entry.Manager != manager || entry.Operation != metav1.ManagedFieldsOperationApply || entry.Subresource != subresource {
			continue
		}
		set := fieldsOf(entry, owner)
		return set != nil && covers(set, desired) && owns(set, desired) && !longer(set, live, desired)
	}
	// Nothing is owned yet: the first apply must take place.
	return false
}

// asMade says whether an object still is as a field manager has created it. That manager also owns defaults, which are unknown here. Its name says that the object
// wanted now is the one that was asked for then.
func asMade(live, desired map[string]any, managed []metav1.ManagedFieldsEntry, owner *metav1.OwnerReference, manager string) bool {
	for _, entry := range managed {
		if entry.Manager != manager || entry.Operation != metav1.ManagedFieldsOperationUpdate || entry.Subresource != "" {
			continue
		}
		set := fieldsOf(entry, owner)
		return set != nil && contains(live, desired) && covers(set, desired) && !longer(set, live, desired)
	}
	return false
}

// contains says whether live has everything that desired has. Lists of objects may have others in between; other lists must be equal.
// must be the same.
func contains(live, desired any) bool {
	switch want := desired.(type) {
	case map[string]any:
		have, ok := live.(map[string]any)
		if !ok {
			return len(want) == 0 && live == nil
		}
		for key, value := range want {
			if !contains(have[key], value) {
				return false
			}
		}
		return true
	case []any:
		have, ok := live.([]any)
		if !ok {
			return len(want) == 0 && live == nil
		}
		return listContains(have, want)
	default:
		return reflect.DeepEqual(live, desired)
	}
}

func listContains(have, want []any) bool {
	at := 0
	for _, element := range want {
		_, object := element.(map[string]any)
		for object && at < len(have) && !contains(have[at], element) {
			at++
		}
		if at == len(have) || !contains(have[at], element) {
			return false
		}
		at++
	}
	for _, other := range have[at:] {
		if _, object := other.(map[string]any); !object {
			return false
		}
	}
	return true
}

// fieldSet is a set of fields as managedFields hold it, parsed once.
type fieldSet struct {
	fields map[string]*fieldSet
	// elements of a list by the names of their keys, and then by what these keys have.
	elements map[string]*keyedFields
	// values of a set.
	values map[any]bool
}

// keyedFields are the elements of a list that have the same names of keys.
type keyedFields struct {
	names    []string
	elements map[string]*fieldSet
}

// theOwner stands for the uid of an object's controlling owner in sets of fields that Compact has changed. No uid is like it.
const theOwner = "$owner"

// Compact changes a set of fields so that it is the same for objects that differ in their owners alone: a cache needs to keep one of them.
func Compact(fields *metav1.FieldsV1, object metav1.Object) *metav1.FieldsV1 {
	owner := metav1.GetControllerOf(object)
	if fields == nil || owner == nil || owner.UID == "" {
		return fields
	}
	raw := fields.GetRawString()
	if compact := strings.ReplaceAll(raw, string(owner.UID), theOwner); compact != raw {
		return metav1.NewFieldsV1(compact)
	}
	return fields
}

// fieldsOf reads the set of fields of a manager, of an object with that controlling owner; nil: it cannot be read.
func fieldsOf(entry metav1.ManagedFieldsEntry, owner *metav1.OwnerReference) *fieldSet {
	if entry.FieldsV1 == nil {
		return nil
	}
	raw := entry.FieldsV1.GetRawString()
	if owner != nil {
		raw = strings.ReplaceAll(raw, theOwner, string(owner.UID))
	}
	var fields map[string]any
	if json.Unmarshal([]byte(raw), &fields) != nil {
		return nil
	}
	return parseFields(fields)
}

// parseFields reads a set of fields; nil: something in it is not understood.
func parseFields(raw map[string]any) *fieldSet {
	set := &fieldSet{}
	for key, below := range raw {
		if key == "." {
			continue
		}
		children, _ := below.(map[string]any)
		understood := false
		switch kind, name, _ := strings.Cut(key, ":"); kind {
		case "f":
			understood = set.addField(name, parseFields(children))
		case "k":
			understood = set.addElement(name, parseFields(children))
		case "v":
			understood = set.addValue(name)
		}
		if !understood {
			return nil
		}
	}
	return set
}

func (s *fieldSet) addField(name string, below *fieldSet) (understood bool) {
	if s.fields == nil {
		s.fields = map[string]*fieldSet{}
	}
	s.fields[name] = below
	return below != nil
}

func (s *fieldSet) addElement(text string, below *fieldSet) (understood bool) {
	var keys map[string]any
	if json.Unmarshal([]byte(text), &keys) != nil {
		return false
	}
	names := slices.Sorted(maps.Keys(keys))
	joined := strings.Join(names, "\x00")
	if s.elements == nil {
		s.elements = map[string]*keyedFields{}
	}
	keyed := s.elements[joined]
	if keyed == nil {
		keyed = &keyedFields{names: names, elements: map[string]*fieldSet{}}
		s.elements[joined] = keyed
	}
	id, ok := keyed.id(keys)
	keyed.elements[id] = below
	return ok && below != nil
}

func (s *fieldSet) addValue(text string) (understood bool) {
	var value any
	if json.Unmarshal([]byte(text), &value) != nil {
		return false
	}
	if !scalar(value) {
		return false
	}
	if s.values == nil {
		s.values = map[any]bool{}
	}
	s.values[value] = true
	return true
}

// id is what an element has for the keys, as one string; not ok: it has not all of them, or is no object.
func (k *keyedFields) id(element any) (id string, ok bool) {
	object, ok := element.(map[string]any)
	if !ok {
		return "", false
	}
	var text []byte
	for _, name := range k.names {
		switch value := object[name].(type) {
		case string:
			text = strconv.AppendQuote(text, value)
		case int64:
			text = strconv.AppendInt(text, value, 10)
		case bool:
			text = strconv.AppendBool(text, value)
		default:
			return "", false
		}
		text = append(text, ',')
	}
	return string(text), true
}

// whole says whether a field is owned as one value: nothing below it is listed.
func (s *fieldSet) whole() bool {
	return len(s.fields) == 0 && len(s.elements) == 0 && len(s.values) == 0
}

// covers says whether everything in desired is in a field set. A field without fields below it is owned as a whole.
func covers(set *fieldSet, desired any) bool {
	if set.whole() {
		return true
	}
	switch want := desired.(type) {
	case map[string]any:
		for name, value := range want {
			below, owned := set.fields[name]
			if !owned || !covers(below, value) {
				return false
			}
		}
	case []any:
		for _, element := range want {
			if !coversElement(set, element) {
				return false
			}
		}
	}
	return true
}

func coversElement(set *fieldSet, element any) bool {
	for _, keyed := range set.elements {
		if id, ok := keyed.id(element); ok {
			if below, owned := keyed.elements[id]; owned {
				return covers(below, element)
			}
		}
	}
	return scalar(element) && set.values[element]
}

// longer says whether a list that is owned as a whole has more than desired: an apply would take that out.
func longer(set *fieldSet, live, desired any) bool {
	switch want := desired.(type) {
	case map[string]any:
		have, _ := live.(map[string]any)
		for name, below := range set.fields {
			if longer(below, have[name], want[name]) {
				return true
			}
		}
	case []any:
		have, _ := live.([]any)
		if set.whole() {
			return len(have) != len(want)
		}
		for _, keyed := range set.elements {
			there := map[string]any{}
			for _, element := range have {
				if id, ok := keyed.id(element); ok {
					there[id] = element
				}
			}
			for _, element := range want {
				if id, ok := keyed.id(element); ok && keyed.elements[id] != nil && longer(keyed.elements[id], there[id], element) {
					return true
				}
			}
		}
	}
	return false
}

// owns says whether every field of a field set is in desired. It does not look at the values of sets: contains lets live have no others than desired has.
func owns(set *fieldSet, desired any) bool {
	if set.whole() {
		return true
	}
	object, _ := desired.(map[string]any)
	for name, below := range set.fields {
		value, wanted := object[name]
		if !wanted || !owns(below, value) {
			return false
		}
	}
	list, _ := desired.([]any)
	for _, keyed := range set.elements {
		wanted := map[string]any{}
		for _, element := range list {
			if id, ok := keyed.id(element); ok {
				wanted[id] = element
			}
		}
		for id, below := range keyed.elements {
			if element, found := wanted[id]; !found || !owns(below, element) {
				return false
			}
		}
	}
	return true
}

// scalar says whether a value of JSON can be looked for by itself.
func scalar(value any) bool {
	switch value.(type) {
	case string, int64, float64, bool:
		return true
	}
	return false
}

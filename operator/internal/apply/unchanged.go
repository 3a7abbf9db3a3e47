// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"reflect"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	// Reads whole numbers as integers, as live objects have them.
	"k8s.io/apimachinery/pkg/util/json"
)

// unchanged says whether applying desired as manager would change nothing: every desired value is there already and manager's own, and
// manager owns nothing that desired leaves out (which the API server would remove). What others have added beside it is theirs: an apply
// would not remove it, and must not be tried for ever.
func unchanged(live, desired map[string]any, managed []metav1.ManagedFieldsEntry, manager, subresource string) bool {
	if !contains(live, desired) {
		return false
	}
	for _, entry := range managed {
		if entry.Manager != manager || entry.Operation != metav1.ManagedFieldsOperationApply || entry.Subresource != subresource {
			continue
		}
		var fields map[string]any
		if entry.FieldsV1 == nil || json.Unmarshal(entry.FieldsV1.GetRawBytes(), &fields) != nil {
			return false
		}
		return covers(fields, desired) && owns(fields, desired)
	}
	// Nothing is owned yet: the first apply must take place.
	return false
}

// contains says whether live has everything that desired has. Between the objects of a list there may be others; all else in lists
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
	case nil:
		return live == nil
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

// covers says whether everything in desired is in a field set. A field without fields below it is owned as a whole.
func covers(fields map[string]any, desired any) bool {
	if len(fields) == 0 {
		return true
	}
	switch want := desired.(type) {
	case map[string]any:
		for name, value := range want {
			below, owned := fields["f:"+name].(map[string]any)
			if !owned || !covers(below, value) {
				return false
			}
		}
	case []any:
		for _, element := range want {
			if !coversElement(fields, element) {
				return false
			}
		}
	}
	return true
}

func coversElement(fields map[string]any, element any) bool {
	for key, below := range fields {
		kind, name, _ := strings.Cut(key, ":")
		switch kind {
		case "k":
			var keys map[string]any
			if json.Unmarshal([]byte(name), &keys) != nil {
				continue
			}
			if _, found := elementWith([]any{element}, keys); found {
				owned, _ := below.(map[string]any)
				return covers(owned, element)
			}
		case "v":
			var value any
			if json.Unmarshal([]byte(name), &value) == nil && reflect.DeepEqual(value, element) {
				return true
			}
		}
	}
	return false
}

// owns says whether every field of a field set is in desired.
func owns(fields map[string]any, desired any) bool {
	for key, below := range fields {
		if key == "." {
			continue
		}
		kind, name, _ := strings.Cut(key, ":")
		var value any
		switch kind {
		case "f":
			object, ok := desired.(map[string]any)
			if !ok {
				return false
			}
			if value, ok = object[name]; !ok {
				return false
			}
		case "k":
			list, ok := desired.([]any)
			var keys map[string]any
			if !ok || json.Unmarshal([]byte(name), &keys) != nil {
				return false
			}
			if value, ok = elementWith(list, keys); !ok {
				return false
			}
		case "v":
			list, ok := desired.([]any)
			var element any
			if !ok || json.Unmarshal([]byte(name), &element) != nil || !member(list, element) {
				return false
			}
			continue
		default:
			return false
		}
		if children, ok := below.(map[string]any); ok && len(children) > 0 && !owns(children, value) {
			return false
		}
	}
	return true
}

func elementWith(list []any, keys map[string]any) (any, bool) {
	for _, element := range list {
		object, ok := element.(map[string]any)
		if !ok {
			continue
		}
		found := true
		for key, value := range keys {
			found = found && reflect.DeepEqual(object[key], value)
		}
		if found {
			return object, true
		}
	}
	return nil, false
}

func member(list []any, element any) bool {
	for _, other := range list {
		if reflect.DeepEqual(other, element) {
			return true
		}
	}
	return false
}

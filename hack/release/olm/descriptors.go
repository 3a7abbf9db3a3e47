// SPDX-License-Identifier: Apache-2.0

package olm

import (
	"maps"
	"slices"
	"strings"
	"unicode"
)

// deepest is how many names the path of a described field has at the most: a console shows what is below as one field.
const deepest = 2

// What a console shows a field as.
const (
	ui           = "urn:alm:descriptor:com.tectonic.ui:"
	uiConditions = "urn:alm:descriptor:io.kubernetes.conditions"
	uiText       = "urn:alm:descriptor:text"
)

// descriptors describe the fields of a schema, by the texts that the schema has.
func descriptors(schema object, editable bool) []any {
	var described []any
	var walk func(path []string, schema object)
	walk = func(path []string, schema object) {
		properties, _ := schema["properties"].(object)
		for _, name := range slices.Sorted(maps.Keys(properties)) {
			field, at := properties[name].(object), append(slices.Clone(path), name)
			if _, inner := field["properties"].(object); inner && len(at) < deepest {
				walk(at, field)
				continue
			}
			text, _ := field["description"].(string)
			text, _, _ = strings.Cut(text, "\n\n")
			descriptor := object{"path": strings.Join(at, "."), "displayName": title(at), "description": strings.ReplaceAll(text, "\n", " ")}
			if hints := hints(name, field, editable); len(hints) > 0 {
				descriptor["x-descriptors"] = hints
			}
			described = append(described, descriptor)
		}
	}
	walk(nil, schema)
	return described
}

// hints say how a console shows a field, or has it edited.
func hints(name string, field object, editable bool) []any {
	values, _ := field["enum"].([]any)
	switch kind := field["type"]; {
	case name == "conditions" && !editable:
		return []any{uiConditions}
	case kind == "string" && !editable:
		return []any{uiText}
	case !editable:
		return nil
	case kind == "string" && len(values) > 0:
		var choices []any
		for _, value := range values {
			choices = append(choices, ui+"select:"+value.(string))
		}
		return choices
	case kind == "string":
		return []any{ui + "text"}
	case kind == "integer":
		return []any{ui + "number"}
	case kind == "boolean":
		return []any{ui + "booleanSwitch"}
	}
	return nil
}

// title is a path as words: memory.eviction is Memory Eviction, and responseTLS is Response TLS.
func title(path []string) string {
	var words []rune
	for _, name := range path {
		previous := ' '
		for i, r := range name {
			switch {
			case i == 0:
				if len(words) > 0 {
					words = append(words, ' ')
				}
				words = append(words, unicode.ToUpper(r))
			case unicode.IsUpper(r) && !unicode.IsUpper(previous):
				words = append(words, ' ', r)
			default:
				words = append(words, r)
			}
			previous = r
		}
	}
	return string(words)
}

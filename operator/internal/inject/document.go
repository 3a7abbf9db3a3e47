// SPDX-License-Identifier: Apache-2.0

package inject

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

type object = map[string]any

// document is a pod as JSON, and the changes that were made to it.
type document struct {
	root    object
	changes []change
}

// change is an operation of a JSON patch. Nothing is ever removed.
type change struct {
	Operation string `json:"op"`
	Path      string `json:"path"`
	Value     any    `json:"value"`
}

// parse reads a pod. Numbers keep their digits.
func parse(raw []byte) (*document, error) {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	d := &document{}
	if err := decoder.Decode(&d.root); err != nil {
		return nil, err
	}
	if d.root == nil {
		return nil, errors.New("it is null")
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows the object")
	}
	return d, d.check()
}

// check makes sure that fields which the injector looks at have the types that Kubernetes gives them, so that nothing else has to.
func (d *document) check() error {
	for _, path := range []string{"metadata", "metadata/labels", "metadata/annotations", "spec", "spec/securityContext", "spec/nodeSelector", "spec/os", "spec/resources"} {
		if _, err := at[object](d.root, path); err != nil {
			return err
		}
	}
	for _, list := range []string{"spec/containers", "spec/initContainers", "spec/volumes", "spec/imagePullSecrets", "spec/tolerations"} {
		if err := objectsAt(d.root, list); err != nil {
			return err
		}
	}
	for _, list := range []string{"containers", "initContainers"} {
		for i, container := range objects(d.root, "spec", list) {
			for _, within := range []string{"env", "volumeMounts", "ports"} {
				if err := objectsAt(container, within); err != nil {
					return fmt.Errorf("spec/%s/%d: %w", list, i, err)
				}
			}
			for _, within := range []string{"resources", "resources/requests", "resources/limits"} {
				if _, err := at[object](container, within); err != nil {
					return fmt.Errorf("spec/%s/%d: %w", list, i, err)
				}
			}
		}
	}
	return nil
}

// at returns what lies at a path; the zero value, if it is missing or null.
func at[T any](from object, path string) (T, error) {
	var none T
	var value any = from
	for key := range strings.SplitSeq(path, "/") {
		within, ok := value.(object)
		if !ok && value != nil {
			return none, fmt.Errorf("%s: it lies in no object", path)
		}
		value = within[key]
	}
	if value == nil {
		return none, nil
	}
	typed, ok := value.(T)
	if !ok {
		return none, fmt.Errorf("%s: it is a %T", path, value)
	}
	return typed, nil
}

func objectsAt(from object, path string) error {
	list, err := at[[]any](from, path)
	if err != nil {
		return err
	}
	for i, element := range list {
		if _, ok := element.(object); !ok {
			return fmt.Errorf("%s/%d: it is a %T", path, i, element)
		}
	}
	return nil
}

// objects returns a list of objects that check has looked at.
func objects(from object, path ...string) []object {
	list, _ := at[[]any](from, strings.Join(path, "/"))
	found := make([]object, 0, len(list))
	for _, element := range list {
		if is, ok := element.(object); ok {
			found = append(found, is)
		}
	}
	return found
}

// text returns a string; empty, if it is missing or something else.
func text(from object, path ...string) string {
	value, _ := at[string](from, strings.Join(path, "/"))
	return value
}

func isTrue(from object, path ...string) bool {
	value, _ := at[bool](from, strings.Join(path, "/"))
	return value
}

func named(list []object, name string) object {
	for _, element := range list {
		if text(element, "name") == name {
			return element
		}
	}
	return nil
}

var pointer = strings.NewReplacer("~", "~0", "/", "~1")

func pointerTo(path []string) string {
	var to strings.Builder
	for _, key := range path {
		to.WriteByte('/')
		to.WriteString(pointer.Replace(key))
	}
	return to.String()
}

// holder returns what a path without its last key leads to: an object, or an object in a list.
func (d *document) holder(path []string) object {
	var value any = d.root
	for _, key := range path[:len(path)-1] {
		switch within := value.(type) {
		case object:
			value = within[key]
		case []any:
			index, _ := strconv.Atoi(key)
			value = within[index]
		}
	}
	return value.(object)
}

// set gives an object, which is made if it is missing, a value for a key.
func (d *document) set(key string, value any, path ...string) {
	holder, last := d.holder(path), path[len(path)-1]
	if within, ok := holder[last].(object); ok {
		within[key] = value
		d.changes = append(d.changes, change{"add", pointerTo(append(slices.Clone(path), key)), value})
		return
	}
	holder[last] = object{key: value}
	d.changes = append(d.changes, change{"add", pointerTo(path), object{key: value}})
}

// insert puts a value into a list, which is made if it is missing, before the element of an index; at the end, if the index is that of no element.
func (d *document) insert(index int, value any, path ...string) {
	holder, last := d.holder(path), path[len(path)-1]
	list, _ := holder[last].([]any)
	if list == nil {
		holder[last] = []any{value}
		d.changes = append(d.changes, change{"add", pointerTo(path), []any{value}})
		return
	}
	where := "-"
	if index < len(list) {
		where = strconv.Itoa(index)
	} else {
		index = len(list)
	}
	holder[last] = slices.Insert(slices.Clone(list), index, value)
	d.changes = append(d.changes, change{"add", pointerTo(append(slices.Clone(path), where)), value})
}

func (d *document) append(value any, path ...string) {
	const end = 1 << 30
	d.insert(end, value, path...)
}

// patch returns the changes as a JSON patch; nil: there are none.
func (d *document) patch() ([]byte, error) {
	if len(d.changes) == 0 {
		return nil, nil
	}
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(d.changes); err != nil {
		return nil, fmt.Errorf("write a patch: %w", err)
	}
	return bytes.TrimSpace(out.Bytes()), nil
}

// holds says whether an object has everything that another has. It may have more, as defaults and other webhooks add fields: elements of lists of objects are
// found by their names or mount paths, and other lists are equal.
func holds(have, want any) bool {
	switch want := want.(type) {
	case object:
		within, ok := have.(object)
		if !ok {
			return false
		}
		for key, value := range want {
			if !holds(within[key], value) {
				return false
			}
		}
		return true
	case []any:
		list, ok := have.([]any)
		if !ok {
			return false
		}
		for _, element := range want {
			key := keyOf(element)
			if key == "" {
				return reflect.DeepEqual(list, want)
			}
			if !slices.ContainsFunc(list, func(other any) bool { return keyOf(other) == key && holds(other, element) }) {
				return false
			}
		}
		return true
	case int:
		number, ok := have.(json.Number)
		return ok && number.String() == strconv.Itoa(want)
	}
	return reflect.DeepEqual(have, want)
}

func keyOf(element any) string {
	is, ok := element.(object)
	if !ok {
		return ""
	}
	if path := text(is, "mountPath"); path != "" {
		return "mountPath " + path
	}
	if name := text(is, "name"); name != "" {
		return "name " + name
	}
	return ""
}

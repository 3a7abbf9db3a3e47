// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"
)

const (
	liveService = `{
		"metadata": {"name": "cache", "uid": "1", "labels": {"a": "b", "foreign": "x"}, "ownerReferences": [{"uid": "7", "name": "cache"}]},
		"spec": {"clusterIP": "10.0.0.1", "type": "ClusterIP", "selector": {"app": "cache"},
			"ports": [{"name": "resp", "port": 6379, "protocol": "TCP", "targetPort": "resp"}]}}`
	ownedFields = `{
		"f:metadata": {"f:labels": {"f:a": {}}, "f:ownerReferences": {"k:{\"uid\":\"7\"}": {}}},
		"f:spec": {"f:selector": {}, "f:type": {}, "f:ports": {"k:{\"port\":6379,\"protocol\":\"TCP\"}": {".": {}, "f:name": {}, "f:port": {}, "f:protocol": {}, "f:targetPort": {}}}}}`
	desiredService = `{
		"metadata": {"labels": {"a": "b"}, "ownerReferences": [{"uid": "7", "name": "cache"}]},
		"spec": {"type": "ClusterIP", "selector": {"app": "cache"}, "ports": [{"name": "resp", "port": 6379, "protocol": "TCP", "targetPort": "resp"}]}}`
)

func object(t *testing.T, text string) map[string]any {
	t.Helper()
	var parsed map[string]any
	if err := json.Unmarshal([]byte(text), &parsed); err != nil {
		t.Fatal(err)
	}
	return parsed
}

func managedBy(manager, subresource, fields string) []metav1.ManagedFieldsEntry {
	return []metav1.ManagedFieldsEntry{
		{Manager: "kube-controller-manager", Operation: metav1.ManagedFieldsOperationUpdate, FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:clusterIP":{}}}`)},
		{Manager: manager, Subresource: subresource, Operation: metav1.ManagedFieldsOperationApply, FieldsV1: metav1.NewFieldsV1(fields)},
	}
}

func TestUnchanged(t *testing.T) {
	for name, c := range map[string]struct {
		live, desired, fields string
		manager, subresource  string
		want                  bool
	}{
		"as it should be":            {liveService, desiredService, ownedFields, "m", "", true},
		"never applied":              {liveService, desiredService, ownedFields, "other", "", false},
		"applied to the status only": {liveService, desiredService, ownedFields, "m", "status", false},
		"a value differs":            {liveService, `{"spec": {"type": "NodePort"}}`, ownedFields, "m", "", false},
		"a label is to be added":     {liveService, `{"metadata": {"labels": {"a": "b", "c": "d"}}}`, ownedFields, "m", "", false},
		"a port is to be added": {liveService, `{"spec": {"ports": [{"name": "resp", "port": 6379, "protocol": "TCP", "targetPort": "resp"}, {"port": 1, "protocol": "TCP"}]}}`,
			ownedFields, "m", "", false},
		"a label is to go": {liveService, `{"metadata": {"ownerReferences": [{"uid": "7", "name": "cache"}]},
			"spec": {"type": "ClusterIP", "selector": {"app": "cache"}, "ports": [{"name": "resp", "port": 6379, "protocol": "TCP", "targetPort": "resp"}]}}`, ownedFields, "m", "", false},
		"a port's name is to go": {liveService, `{"metadata": {"labels": {"a": "b"}, "ownerReferences": [{"uid": "7", "name": "cache"}]},
			"spec": {"type": "ClusterIP", "selector": {"app": "cache"}, "ports": [{"port": 6379, "protocol": "TCP", "targetPort": "resp"}]}}`, ownedFields, "m", "", false},
		"an owned element is gone from the wish": {`{"l": [{"name": "a"}]}`, `{"l": []}`, `{"f:l": {"k:{\"name\":\"a\"}": {}}}`, "m", "", false},
		"an owned set element is kept":           {`{"l": ["a"]}`, `{"l": ["a"]}`, `{"f:l": {"v:\"a\"": {}}}`, "m", "", true},
		"an owned set element is to go":          {`{"l": ["a"]}`, `{"l": []}`, `{"f:l": {"v:\"a\"": {}}}`, "m", "", false},
		"empty and absent are alike":             {`{}`, `{"l": [], "o": {}}`, `{}`, "m", "", true},
		"another's element":                      {`{"l": [{"name": "x"}, {"name": "a"}, {"name": "y"}]}`, `{"l": [{"name": "a"}]}`, `{"f:l": {"k:{\"name\":\"a\"}": {".": {}, "f:name": {}}}}`, "m", "", true},
		"another's scalar in an atomic list":     {`{"l": ["a", "b"]}`, `{"l": ["a"]}`, `{"f:l": {}}`, "m", "", false},
		"an atomic list that another took over":  {`{"l": [{"p": 1}, {"p": 2}]}`, `{"l": [{"p": 1}]}`, `{"f:o": {}}`, "m", "", false},
		"an element of an atomic list is to go":  {`{"l": [{"p": 1}, {"p": 2}]}`, `{"l": [{"p": 1}]}`, `{"f:l": {}}`, "m", "", false},
		"an element of an atomic list in an element is to go": {`{"o": [{"name": "a", "l": [{"p": 1}, {"p": 2}]}]}`, `{"o": [{"name": "a", "l": [{"p": 1}]}]}`,
			`{"f:o": {"k:{\"name\":\"a\"}": {".": {}, "f:name": {}, "f:l": {}}}}`, "m", "", false},
		"an atomic list as it should be": {`{"l": [{"p": 1}, {"p": 2}]}`, `{"l": [{"p": 1}, {"p": 2}]}`, `{"f:l": {}}`, "m", "", true},
		"elements in another order":      {`{"l": [{"name": "a"}, {"name": "b"}]}`, `{"l": [{"name": "b"}, {"name": "a"}]}`, `{"f:l": {}}`, "m", "", false},
		"a field that another took over": {`{"a": 1, "b": 2}`, `{"a": 1, "b": 2}`, `{"f:a": {}}`, "m", "", false},
		"a list emptied":                 {`{"l": ["a"]}`, `{"l": []}`, `{"f:l": {}}`, "m", "", false},
		"an object that is gone":         {`{}`, `{"o": {"a": 1}}`, `{"f:o": {}}`, "m", "", false},
		"a list that is gone":            {`{}`, `{"l": ["a"]}`, `{"f:l": {}}`, "m", "", false},
		"text in place of an object":     {`{"o": "text"}`, `{"o": {}}`, `{"f:o": {}}`, "m", "", false},
		"text in place of a list":        {`{"l": "text"}`, `{"l": []}`, `{"f:l": {}}`, "m", "", false},
		"elements with different keys": {`{"l": [{"name": "a", "id": 2}, {"name": "b", "id": 1}]}`, `{"l": [{"name": "a", "id": 2}, {"name": "b", "id": 1}]}`,
			`{"f:l": {"k:{\"name\":\"a\"}": {".": {}, "f:name": {}, "f:id": {}}, "k:{\"id\":1}": {".": {}, "f:name": {}, "f:id": {}}}}`, "m", "", true},
		"no fields at all":          {`{"l": ["a"]}`, `{"l": ["a"]}`, `{"f:l": 7`, "m", "", false},
		"an index":                  {`{"l": ["a"]}`, `{"l": ["a"]}`, `{"f:l": {"v:\"a\"": {}, "i:0": {}}}`, "m", "", false},
		"a value that is no JSON":   {`{"l": ["a"]}`, `{"l": ["a"]}`, `{"f:l": {"v:\"a\"": {}, "v:\"": {}}}`, "m", "", false},
		"a value that is an object": {`{"l": ["a"]}`, `{"l": ["a"]}`, `{"f:l": {"v:\"a\"": {}, "v:{}": {}}}`, "m", "", false},
		"keys that are no JSON":     {`{"l": [{"name": "a"}]}`, `{"l": [{"name": "a"}]}`, `{"f:l": {"k:{\"name\":\"a\"}": {}, "k:{": {}}}`, "m", "", false},
		"a key that is a list":      {`{"l": [{"name": "a"}]}`, `{"l": [{"name": "a"}]}`, `{"f:l": {"k:{\"name\":\"a\"}": {}, "k:{\"name\":[]}": {}}}`, "m", "", false},
		"an index in an element":    {`{"l": [{"name": "a"}]}`, `{"l": [{"name": "a"}]}`, `{"f:l": {"k:{\"name\":\"a\"}": {"f:name": {}, "i:0": {}}}}`, "m", "", false},
	} {
		entries := managedBy("m", "", c.fields)
		if got := unchanged(object(t, c.live), object(t, c.desired), entries, nil, c.manager, c.subresource); got != c.want {
			t.Errorf("%s: unchanged is %v", name, got)
		}
	}
}

// The manager that has created an object also owns its defaults, which are unknown here. Its name says that the object was created as it is wanted.
func TestAsMade(t *testing.T) {
	const defaulted = `{
		"f:metadata": {"f:labels": {".": {}, "f:a": {}}, "f:ownerReferences": {".": {}, "k:{\"uid\":\"7\"}": {}}},
		"f:spec": {"f:selector": {}, "f:type": {}, "f:sessionAffinity": {}, "f:ports": {".": {}, "k:{\"port\":6379,\"protocol\":\"TCP\"}": {".": {}, "f:name": {}, "f:port": {}, "f:protocol": {}, "f:targetPort": {}}}}}`
	manager, err := maker(object(t, desiredService))
	if err != nil {
		t.Fatal(err)
	}
	if another, err := maker(object(t, `{"spec": {"type": "ClusterIP"}}`)); err != nil || another == manager || !Keeps(another) || Keeps("kubelet") {
		t.Errorf("%s makes another object, too: %v", another, err)
	}
	managed := func(fields string, operation metav1.ManagedFieldsOperationType) []metav1.ManagedFieldsEntry {
		return []metav1.ManagedFieldsEntry{{Manager: "kubelet", Operation: operation, FieldsV1: metav1.NewFieldsV1(`{}`)}, {Manager: manager, Operation: operation, FieldsV1: metav1.NewFieldsV1(fields)}}
	}
	desired := object(t, desiredService)
	for name, c := range map[string]struct {
		live    string
		managed []metav1.ManagedFieldsEntry
		want    bool
	}{
		"as it was made":      {liveService, managed(defaulted, metav1.ManagedFieldsOperationUpdate), true},
		"applied":             {liveService, managed(defaulted, metav1.ManagedFieldsOperationApply), false},
		"made by another":     {liveService, managed(defaulted, metav1.ManagedFieldsOperationUpdate)[:1], false},
		"taken over in parts": {liveService, managed(strings.ReplaceAll(defaulted, `"f:type": {},`, ""), metav1.ManagedFieldsOperationUpdate), false},
		"changed":             {strings.ReplaceAll(liveService, "ClusterIP", "NodePort"), managed(defaulted, metav1.ManagedFieldsOperationUpdate), false},
		"unreadable":          {liveService, managed(`{`, metav1.ManagedFieldsOperationUpdate), false},
		"of unknown fields":   {liveService, managed(strings.ReplaceAll(defaulted, `"f:type": {},`, `"f:type": {}, "f:of": {"x:y": {}},`), metav1.ManagedFieldsOperationUpdate), false},
		"of unknown keys":     {liveService, managed(strings.ReplaceAll(defaulted, `"f:type": {},`, `"f:type": {}, "k:{\"name\":[]}": {},`), metav1.ManagedFieldsOperationUpdate), false},
		"of unknown elements": {liveService, managed(strings.ReplaceAll(defaulted, `"f:type": {},`, `"f:type": {}, "k:{\"name\":\"a\"}": {"x:y": {}},`), metav1.ManagedFieldsOperationUpdate), false},
	} {
		if got := asMade(object(t, c.live), desired, c.managed, nil, manager); got != c.want {
			t.Errorf("%s: as made is %v", name, got)
		}
	}
	// A cache keeps one set of fields for all owners.
	owned := func(uid string) (live map[string]any, fields *metav1.FieldsV1, owner *metav1.OwnerReference) {
		owner = &metav1.OwnerReference{UID: types.UID(uid), Controller: new(bool)}
		*owner.Controller = true
		fields = Compact(metav1.NewFieldsV1(strings.ReplaceAll(defaulted, `\"7\"`, `\"`+uid+`\"`)), &metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{*owner}})
		return object(t, strings.ReplaceAll(liveService, `"7"`, `"`+uid+`"`)), fields, owner
	}
	live, fields, owner := owned("5d1c")
	_, others, another := owned("9e0f")
	made := []metav1.ManagedFieldsEntry{{Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, FieldsV1: fields}}
	wanted := object(t, strings.ReplaceAll(desiredService, `"7"`, `"5d1c"`))
	if fields.GetRawString() != others.GetRawString() || !asMade(live, wanted, made, owner, manager) || asMade(live, wanted, made, another, manager) {
		t.Errorf("%s and %s", fields.GetRawString(), others.GetRawString())
	}
	if fields := metav1.NewFieldsV1(defaulted); Compact(fields, &metav1.ObjectMeta{}) != fields || Compact(nil, &metav1.ObjectMeta{}) != nil {
		t.Error("fields of an object without an owner are changed")
	}
	// A list that is one value, such as the rules of a NetworkPolicy, is as made only if nobody has added to it.
	rules := object(t, `{"spec": {"ingress": [{"from": "operator"}]}}`)
	if manager, err = maker(rules); err != nil {
		t.Fatal(err)
	}
	atomic := managed(`{"f:spec": {"f:ingress": {}, "f:policyTypes": {}}}`, metav1.ManagedFieldsOperationUpdate)
	if !asMade(rules, rules, atomic, nil, manager) || asMade(object(t, `{"spec": {"ingress": [{"from": "operator"}, {"from": "anybody"}]}}`), rules, atomic, nil, manager) {
		t.Error("a rule that somebody has added is not seen, or one that is to be there is")
	}
}

// What a comparison costs grows with the object as the object does: with the square of it, idle pools with a thousand shards would keep a processor busy.
func TestUnchangedCostsWhatTheObjectIsLong(t *testing.T) {
	cost := func(elements int) float64 {
		var list, fields, set, values []string
		for i := range elements {
			list = append(list, fmt.Sprintf(`{"process": "%016x", "name": "shard-%d"}`, i, i))
			set = append(set, fmt.Sprintf(`"%016x"`, i))
			values = append(values, fmt.Sprintf(`"v:\"%016x\"": {}`, i))
			fields = append(fields, fmt.Sprintf(`"k:{\"process\":\"%016x\"}": {".": {}, "f:process": {}, "f:name": {}}`, i))
		}
		text := fmt.Sprintf(`{"status": {"processes": [%s], "fenced": [%s]}}`, strings.Join(list, ","), strings.Join(set, ","))
		live, desired := object(t, text), object(t, text)
		managed := managedBy("m", "", fmt.Sprintf(`{"f:status": {"f:processes": {%s}, "f:fenced": {%s}}}`, strings.Join(fields, ","), strings.Join(values, ",")))
		return testing.AllocsPerRun(3, func() {
			if !unchanged(live, desired, managed, nil, "m", "") {
				t.Fatal("it would be written")
			}
		})
	}
	few, many := cost(64), cost(512)
	if many > 12*few {
		t.Errorf("eight times as many elements cost %.0f allocations, and not %.0f: %.1f times as many", many, few, many/few)
	}
}

// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
		"elements in another order":              {`{"l": [{"name": "a"}, {"name": "b"}]}`, `{"l": [{"name": "b"}, {"name": "a"}]}`, `{"f:l": {}}`, "m", "", false},
		"a field that another took over":         {`{"a": 1, "b": 2}`, `{"a": 1, "b": 2}`, `{"f:a": {}}`, "m", "", false},
		"a list emptied":                         {`{"l": ["a"]}`, `{"l": []}`, `{"f:l": {}}`, "m", "", false},
	} {
		entries := managedBy("m", "", c.fields)
		if got := unchanged(object(t, c.live), object(t, c.desired), entries, c.manager, c.subresource); got != c.want {
			t.Errorf("%s: unchanged is %v", name, got)
		}
	}
}

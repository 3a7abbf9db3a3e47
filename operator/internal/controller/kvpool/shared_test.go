// SPDX-License-Identifier: Apache-2.0

package kvpool

import (
	"strconv"
	"strings"
	"testing"
	"unsafe"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"farpool.dev/farpool/api/v1alpha1"
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

func TestTheTableOfTextsIsBounded(t *testing.T) {
	s := &shared{}
	for i := range 3 * mostShared {
		s.text(strconv.Itoa(i))
		s.fields(metav1.NewFieldsV1(strconv.Itoa(i)))
		if len(s.texts) > mostShared || len(s.sets) > mostShared/8 {
			t.Fatalf("%d texts and %d sets of fields are kept", len(s.texts), len(s.sets))
		}
	}
	if long := strings.Repeat("x", longestShared+1); s.text(long) != long || len(s.texts) > mostShared {
		t.Error("a long text is changed")
	}
}

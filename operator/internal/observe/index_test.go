// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Each object is in an index once, under its namespace, and what is no object is an error.
func TestAnIndexHasEachObjectOnce(t *testing.T) {
	label := func(object client.Object) []string {
		if pool := object.GetLabels()["pool"]; pool != "" {
			return []string{pool}
		}
		return nil
	}
	store := toolscache.NewIndexer(toolscache.MetaNamespaceKeyFunc, within("pool", label))
	for _, object := range []*corev1.Secret{
		{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "a", Labels: map[string]string{"pool": "cache"}}},
		{ObjectMeta: metav1.ObjectMeta{Namespace: "bank", Name: "b", Labels: map[string]string{"pool": "cache"}}},
		{ObjectMeta: metav1.ObjectMeta{Namespace: "bank", Name: "c"}},
	} {
		if err := store.Add(object); err != nil {
			t.Fatal(err)
		}
	}
	found, err := store.ByIndex("field:pool", "shop/cache")
	if err != nil || len(found) != 1 || found[0].(*corev1.Secret).Name != "a" {
		t.Errorf("found %v: %v", found, err)
	}
	if keys := store.ListIndexFuncValues("field:pool"); len(keys) != 2 {
		t.Errorf("the index has the keys %q", keys)
	}
	if keys, err := within("pool", label)["field:pool"]("no object"); err == nil || keys != nil {
		t.Errorf("keys %q of what is no object: %v", keys, err)
	}
}

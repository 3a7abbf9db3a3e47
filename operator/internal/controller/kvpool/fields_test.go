// SPDX-License-Identifier: Apache-2.0

package kvpool

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"farpool.dev/farpool/api/v1alpha1"
)

// altered returns a value with another value at a JSON path, whose Go type is known. What is not there on the way is added.
func altered(value any, of reflect.Type, path []string) any {
	for of.Kind() == reflect.Pointer {
		of = of.Elem()
	}
	switch {
	case of == reflect.TypeFor[resource.Quantity]():
		return "512Mi"
	case of.Kind() == reflect.Slice:
		list, _ := value.([]any)
		list = slices.Clone(list)
		if len(list) == 0 {
			list = []any{nil}
		}
		list[0] = altered(list[0], of.Elem(), path)
		return list
	case of.Kind() == reflect.Struct:
		object, _ := value.(map[string]any)
		object = maps.Clone(object)
		if object == nil {
			object = map[string]any{}
		}
		name := strings.TrimSuffix(path[0], "[]")
		for i := range of.NumField() {
			if tag, _, _ := strings.Cut(of.Field(i).Tag.Get("json"), ","); tag == name {
				object[name] = altered(object[name], of.Field(i).Type, path[1:])
			}
		}
		return object
	case of.Kind() == reflect.Bool:
		held, _ := value.(bool)
		return !held
	case of.Kind() == reflect.String:
		return fmt.Sprint(value) + "1"
	}
	if held, ok := value.(int64); ok {
		return held + 1
	}
	return int64(1)
}

// Objects that the operator makes, and that people can edit, too. A field that the API server does not protect is named here, with what keeps an edit of it from
// stored memory.
var _ = Describe("edits of what the operator has made of a KVPool", func() {
	It("are refused in every field but the number of replicas", func() {
		w := newWorld(nil)
		w.up()
		w.settle()
		// edit changes a field of an object as it is now.
		edit := func(name string, like *unstructured.Unstructured, of reflect.Type, field string, options ...client.UpdateOption) (err error) {
			GinkgoHelper()
			Eventually(func() bool {
				edited := &unstructured.Unstructured{}
				edited.SetGroupVersionKind(like.GroupVersionKind())
				Expect(k8s.Get(w.ctx, w.key(name), edited)).To(Succeed())
				spec := altered(edited.Object["spec"], of, strings.Split(field, "."))
				Expect(spec).NotTo(Equal(edited.Object["spec"]), field)
				edited.Object["spec"] = spec
				err = k8s.Update(w.ctx, edited, options...)
				return !isConflict(err)
			}, within, every).Should(BeTrue())
			return err
		}
		for _, kind := range []struct {
			name, object string
			spec         reflect.Type
			allowed      map[string]string
		}{
			{"MemoryNode", "cache-memory-0", reflect.TypeFor[v1alpha1.MemoryNodeSpec](), map[string]string{"image": "the operator puts it right before it looks at pods: see plan/upgrade_test.go"}},
			{"ShardMap", v1alpha1.ShardMapName("cache", 1), reflect.TypeFor[v1alpha1.ShardMapSpec](), nil},
			{"MemoryNodePool", "cache-memory", reflect.TypeFor[v1alpha1.MemoryNodePoolSpec](), map[string]string{
				"replicas": "a memory node beyond it leaves with its keys elsewhere: see resizes_test.go",
				"declared": "the KVPool's number counts again, as if it were new",
			}},
			{"ComputeShardPool", "cache-shards", reflect.TypeFor[v1alpha1.ComputeShardPoolSpec](), map[string]string{
				"replicas": "compute shards hold nothing",
				"declared": "compute shards hold nothing",
			}},
		} {
			object := &unstructured.Unstructured{}
			object.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(kind.name))
			Expect(k8s.Get(w.ctx, w.key(kind.object), object)).To(Succeed())
			fields := leaves(kind.spec, "")
			Expect(fields).NotTo(BeEmpty())
			tried := map[string]bool{}
			for _, field := range fields {
				if strings.HasPrefix(field, "entry.") {
					// The operator puts it right while the spec has the memory pool, and afterwards only pods that are made again are made from it. Its shape is
					// fixed, as that of the KVPool's own entry: see TestValidation.
					continue
				}
				err := edit(kind.object, object, kind.spec, field, client.DryRunAll)
				tried[field] = true
				if kind.allowed[field] != "" {
					Expect(err).NotTo(HaveOccurred(), "%s.spec.%s", kind.name, field)
				} else {
					Expect(apierrors.IsInvalid(err)).To(BeTrue(), "%s.spec.%s: %v", kind.name, field, err)
				}
			}
			for field := range kind.allowed {
				Expect(tried).To(HaveKey(field), "%s has no such field", kind.name)
			}
			if kind.allowed["declared"] == "" {
				continue
			}
			By("leaving memory nodes alone: " + kind.name + ".spec.declared")
			before := map[string]any{}
			for _, name := range w.nodeNames() {
				before[name] = w.awaitPod(name).UID
			}
			Expect(edit(kind.object, object, kind.spec, "declared")).To(Succeed())
			Eventually(func(g Gomega) {
				now := &unstructured.Unstructured{}
				now.SetGroupVersionKind(object.GroupVersionKind())
				g.Expect(k8s.Get(w.ctx, w.key(kind.object), now)).To(Succeed())
				g.Expect(now.Object["spec"]).To(Equal(object.Object["spec"]))
			}, within, every).Should(Succeed())
			for name, uid := range before {
				Expect(w.awaitPod(name).UID).To(Equal(uid))
			}
			w.settle()
			Expect(w.maps()).To(HaveLen(1))
		}
	})
})

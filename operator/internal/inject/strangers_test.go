// SPDX-License-Identifier: Apache-2.0

package inject

import (
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"farpool.dev/farpool/api/v1alpha1"
)

// A process that reaches the webhook's port can claim any namespace. SECURITY.md says what such a stranger learns; these tests hold the answers to it.

// told returns all that the answer to a pod says.
func told(t *testing.T, raw []byte, namespace string, pools Pools) string {
	t.Helper()
	injection, err := Pod(raw, namespace, pools, Settings{})
	if err != nil {
		return err.Error()
	}
	return string(injection.Patch) + strings.Join(injection.Warnings, " ")
}

// A pool that does not list the claimed namespace is answered as one that does not exist, whatever state it is in.
func TestAStrangerLearnsOfNoPoolThatDoesNotListTheNamespace(t *testing.T) {
	for _, edits := range [][]string{{annotated("pool", "data/cache")}, nil} {
		raw := edited(t, edits...)
		want := told(t, raw, "shop", cluster{})
		for what, change := range map[string]func(*v1alpha1.KVPool){
			"it lists another namespace": func(*v1alpha1.KVPool) {},
			"it has no sidecars":         func(pool *v1alpha1.KVPool) { pool.Spec.Sidecars = nil },
			"it has no status":           func(pool *v1alpha1.KVPool) { pool.Status = v1alpha1.KVPoolStatus{} },
			"it is being deleted":        func(pool *v1alpha1.KVPool) { pool.DeletionTimestamp = &metav1.Time{} },
			"it is old":                  func(pool *v1alpha1.KVPool) { pool.Status.Template.Version = 1 },
			"it has a status of the namespace still": func(pool *v1alpha1.KVPool) {
				pool.Status.Sidecars.Namespaces = append(pool.Status.Sidecars.Namespaces, v1alpha1.SidecarNamespaceStatus{Name: "shop", State: v1alpha1.SidecarsReady})
			},
		} {
			pool := poolFor("cache", "bank")
			change(pool)
			if got := told(t, raw, "shop", cluster{"data/cache": pool}); got != want {
				t.Errorf("%s: the answer is %q, and without the pool %q", what, got, want)
			}
		}
	}
}

// marks fills every text of a value with a mark that names its field, and each list and map with one element.
func marks(v reflect.Value, path string) {
	switch v.Kind() {
	case reflect.String:
		v.SetString("<" + path + ">")
	case reflect.Pointer:
		if v.Type() == reflect.TypeFor[*metav1.Time]() || v.Type() == reflect.TypeFor[*int64]() || v.Type() == reflect.TypeFor[*int32]() || v.Type() == reflect.TypeFor[*bool]() {
			return
		}
		v.Set(reflect.New(v.Type().Elem()))
		marks(v.Elem(), path)
	case reflect.Struct:
		for i := range v.NumField() {
			if field := v.Type().Field(i); field.IsExported() && field.Type.PkgPath() != "k8s.io/apimachinery/pkg/api/resource" {
				marks(v.Field(i), path+"."+field.Name)
			}
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		marks(v.Index(0), path+"[]")
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		marks(key, path+".key")
		marks(value, path+".value")
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	}
}

// markedPool lists the namespaces shop and bank, and has a mark in each of its other texts.
func markedPool() *v1alpha1.KVPool {
	pool := &v1alpha1.KVPool{}
	marks(reflect.ValueOf(pool).Elem(), "pool")
	pool.Status.Template.Version = 4
	pool.Spec.Sidecars, pool.Status.Sidecars = &v1alpha1.SidecarsSpec{}, &v1alpha1.SidecarsStatus{}
	for name, sidecars := range map[string]int32{"shop": 3, "bank": 4321} {
		pool.Spec.Sidecars.Namespaces = append(pool.Spec.Sidecars.Namespaces, v1alpha1.SidecarNamespace{Name: name, MaxSidecars: 10000})
		pool.Status.Sidecars.Namespaces = append(pool.Status.Sidecars.Namespaces, v1alpha1.SidecarNamespaceStatus{
			Name: name, State: v1alpha1.SidecarsReady, Sidecars: sidecars, Reason: "<reason of " + name + ">", Message: "<message of " + name + ">"})
	}
	return pool
}

// A stranger that claims a namespace which a pool lists learns what the pods of that namespace show and what its people read in a refusal. It learns nothing else: no
// address, no certificate, no other namespace and none of the pool's conditions.
func TestAStrangerLearnsWhatPodsOfTheNamespaceShow(t *testing.T) {
	known := map[string]bool{"<pool.ObjectMeta.Namespace>": true, "<pool.ObjectMeta.Name>": true, "<pool.ObjectMeta.UID>": true, "<pool.Status.Template.Image>": true, "<message of shop>": true}
	mark := regexp.MustCompile(`<[A-Za-z. \[\]]+>`)
	learned := map[string]bool{}
	states := map[string]func(*v1alpha1.KVPool){
		"ready":         func(*v1alpha1.KVPool) {},
		"nearly spent":  func(pool *v1alpha1.KVPool) { pool.Status.Sidecars.OfNamespace("shop").Sidecars = 9990 },
		"spent":         func(pool *v1alpha1.KVPool) { pool.Status.Sidecars.OfNamespace("shop").Sidecars = 10000 },
		"deleted":       func(pool *v1alpha1.KVPool) { pool.DeletionTimestamp = &metav1.Time{} },
		"old":           func(pool *v1alpha1.KVPool) { pool.Status.Template.Version = 3 },
		"without image": func(pool *v1alpha1.KVPool) { pool.Status.Template = nil },
		"not ready":     func(pool *v1alpha1.KVPool) { pool.Status.Sidecars.OfNamespace("shop").State = v1alpha1.SidecarsPending },
		"cannot be ready": func(pool *v1alpha1.KVPool) {
			status := pool.Status.Sidecars.OfNamespace("shop")
			status.State, status.Reason, status.Message = v1alpha1.SidecarsPending, v1alpha1.ReasonIssueFailed, "<message of an error>"
		},
	}
	for state, change := range states {
		for _, c := range refusalCases() {
			if slices.ContainsFunc(c.edits, func(edit string) bool { return strings.Contains(edit, v1alpha1.SidecarPrefix+keyPool) }) {
				continue // each names one pool, or none
			}
			for _, pools := range []cluster{{"a": markedPool()}, {"a": markedPool(), "b": markedPool()}} {
				change(pools["a"])
				answer := told(t, edited(t, c.edits...), "shop", pools)
				for _, found := range mark.FindAllString(strings.NewReplacer(`\u003c`, "<", `\u003e`, ">").Replace(answer), -1) {
					learned[found] = true
					if !known[found] {
						t.Fatalf("a pool that is %s, %s: the answer tells %s: %s", state, c.name, found, answer)
					}
				}
				if strings.Contains(answer, "bank") || strings.Contains(answer, fmt.Sprint(4321)) {
					t.Fatalf("a pool that is %s, %s: the answer tells of another namespace: %s", state, c.name, answer)
				}
			}
		}
	}
	if !maps.Equal(learned, known) {
		t.Errorf("answers tell %v, and not all of %v", slices.Sorted(maps.Keys(learned)), slices.Sorted(maps.Keys(known)))
	}
}

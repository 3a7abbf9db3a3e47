// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"farpool.dev/farpool/api/v1alpha1"
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

// indexes is a cache to which indexes can be added. It refuses the index that the test names.
type indexes struct {
	cache.Cache
	// keys are by kind and index.
	keys map[string]toolscache.IndexFunc
	// refused is a kind and an index, or a kind of which there is no informer.
	refused string
}

var errRefused = errors.New("no")

// kindOf returns the kind of an object, of which this package has each by one Go type, but for ReplicaSets.
func kindOf(object client.Object) string {
	return cmp.Or(object.GetObjectKind().GroupVersionKind().Kind, strings.TrimLeft(fmt.Sprintf("%T", object), "*"))
}

func (c *indexes) add(object client.Object, index string, keys toolscache.IndexFunc) error {
	of := kindOf(object) + " " + index
	if of == c.refused {
		return errRefused
	}
	c.keys[of] = keys
	return nil
}

func (c *indexes) IndexField(_ context.Context, object client.Object, field string, values client.IndexerFunc) error {
	return c.add(object, "everywhere:"+field, func(object any) ([]string, error) { return values(object.(client.Object)), nil })
}

func (c *indexes) GetInformer(_ context.Context, object client.Object, _ ...cache.InformerGetOption) (cache.Informer, error) {
	if kindOf(object) == c.refused {
		return nil, errRefused
	}
	return &informer{of: object, indexes: c}, nil
}

type informer struct {
	cache.Informer
	of      client.Object
	indexes *indexes
}

func (i *informer) AddIndexers(indexers toolscache.Indexers) error {
	for index, keys := range indexers {
		if err := i.indexes.add(i.of, index, keys); err != nil {
			return err
		}
	}
	return nil
}

func TestWhatTheIndexesFind(t *testing.T) {
	c := &indexes{keys: map[string]toolscache.IndexFunc{}}
	if err := Index(t.Context(), c, DefaultDrainTaints); err != nil {
		t.Fatal(err)
	}
	labelled := metav1.ObjectMeta{Namespace: "shop", Labels: map[string]string{v1alpha1.LabelPool: "cache", v1alpha1.LabelPoolUID: "uid"}}
	owned := metav1.ObjectMeta{Namespace: "shop", OwnerReferences: []metav1.OwnerReference{{UID: "another"}, {UID: "uid", Controller: ptr.To(true)}}}
	processes := []v1alpha1.ProcessStatus{{NodeName: "b"}, {NodeName: ""}, {NodeName: "a"}, {NodeName: "b"}}
	tainted := func(key string) *corev1.Node {
		return &corev1.Node{Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: key, Effect: corev1.TaintEffectNoSchedule}}}}
	}
	for _, look := range []struct {
		index  string
		object client.Object
		keys   []string
	}{
		{"v1.Pod field:pool", &corev1.Pod{ObjectMeta: labelled}, []string{"shop/cache"}},
		{"v1.Pod field:pool", &corev1.Pod{ObjectMeta: owned}, nil},
		{"ReplicaSet field:pool", &metav1.PartialObjectMetadata{ObjectMeta: labelled}, []string{"shop/cache"}},
		{"v1.Secret everywhere:poolUID", &corev1.Secret{ObjectMeta: labelled}, []string{"uid"}},
		{"v1.Secret everywhere:poolUID", &corev1.Secret{ObjectMeta: owned}, nil},
		{"v1alpha1.ShardMap field:owner", &v1alpha1.ShardMap{ObjectMeta: owned}, []string{"shop/uid"}},
		{"v1alpha1.ShardMap field:owner", &v1alpha1.ShardMap{ObjectMeta: labelled}, nil},
		{"v1alpha1.RepairLease field:pool", &v1alpha1.RepairLease{ObjectMeta: owned, Spec: v1alpha1.RepairLeaseSpec{PoolRef: v1alpha1.PoolReference{Name: "cache"}}}, []string{"shop/cache"}},
		{"v1alpha1.ResizeOperation field:pool", &v1alpha1.ResizeOperation{ObjectMeta: owned, Spec: v1alpha1.ResizeOperationSpec{PoolName: "cache"}}, []string{"shop/cache"}},
		{"v1alpha1.MemoryNode everywhere:nodeName", &v1alpha1.MemoryNode{Status: v1alpha1.MemoryNodeStatus{NodeName: "a"}}, []string{"a"}},
		{"v1alpha1.MemoryNode everywhere:nodeName", &v1alpha1.MemoryNode{}, nil},
		{"v1alpha1.ComputeShardPool everywhere:nodeName", &v1alpha1.ComputeShardPool{Status: v1alpha1.ComputeShardPoolStatus{Processes: processes}}, []string{"a", "b"}},
		{"v1alpha1.KVPool everywhere:nodeName", &v1alpha1.KVPool{Status: v1alpha1.KVPoolStatus{Processes: processes}}, []string{"a", "b"}},
		{"v1.Node everywhere:marked", &corev1.Node{}, nil},
		{"v1.Node everywhere:marked", tainted("nvidia.com/gpu"), nil},
		{"v1.Node everywhere:marked", tainted("karpenter.sh/disrupted"), []string{marked}},
		{"v1.Node everywhere:marked", tainted(corev1.TaintNodeOutOfService), []string{marked}},
	} {
		of := c.keys[look.index]
		if of == nil {
			t.Errorf("there is no index %s", look.index)
		} else if keys, err := of(look.object); err != nil || !slices.Equal(keys, look.keys) {
			t.Errorf("%s has %+v under %q, want %q: %v", look.index, look.object, keys, look.keys, err)
		}
	}
}

// No index is left out: each that the cache refuses is an error, which says of what it would be.
func TestAnIndexThatIsRefused(t *testing.T) {
	all := &indexes{keys: map[string]toolscache.IndexFunc{}}
	if err := Index(t.Context(), all, nil); err != nil {
		t.Fatal(err)
	}
	refusals := slices.Collect(maps.Keys(all.keys))
	refusals = append(refusals, "v1.Pod", "v1alpha1.MemoryNode", "v1alpha1.RepairLease", "v1alpha1.ResizeOperation")
	for _, refused := range refusals {
		err := Index(t.Context(), &indexes{keys: map[string]toolscache.IndexFunc{}, refused: refused}, nil)
		_, index, _ := strings.Cut(refused, ":")
		if !errors.Is(err, errRefused) || !strings.Contains(err.Error(), " by "+index) {
			t.Errorf("%s is refused: %v", refused, err)
		}
	}
}

func TestPoolsOnAKubernetesNode(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	named := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "shop", Name: name} }
	here := func(object client.Object) []string {
		if object.GetName() == "elsewhere" {
			return []string{"b"}
		}
		return []string{"a"}
	}
	// with returns what has the index of these kinds.
	with := func(indexed ...client.Object) client.Reader {
		builder := fake.NewClientBuilder().WithScheme(scheme).WithObjects(
			&v1alpha1.MemoryNode{ObjectMeta: named("cache-memory-0"), Spec: v1alpha1.MemoryNodeSpec{PoolName: "cache"}},
			&v1alpha1.MemoryNode{ObjectMeta: named("cache-memory-1"), Spec: v1alpha1.MemoryNodeSpec{PoolName: "cache"}},
			&v1alpha1.MemoryNode{ObjectMeta: named("elsewhere"), Spec: v1alpha1.MemoryNodeSpec{PoolName: "another"}},
			&v1alpha1.ComputeShardPool{ObjectMeta: named("sessions-shards"), Spec: v1alpha1.ComputeShardPoolSpec{PoolName: "sessions"}},
			&v1alpha1.KVPool{ObjectMeta: named("carts")})
		for _, object := range indexed {
			builder.WithIndex(object, indexNodeName, here)
		}
		return builder.Build()
	}
	kinds := []client.Object{&v1alpha1.MemoryNode{}, &v1alpha1.ComputeShardPool{}, &v1alpha1.KVPool{}}
	for i, object := range kinds {
		if pools, err := On(t.Context(), with(kinds[:i]...), "a"); err == nil {
			t.Errorf("with no index of %T there are %v", object, pools)
		}
	}
	pools, err := On(t.Context(), with(kinds...), "a")
	slices.SortFunc(pools, func(a, b types.NamespacedName) int { return strings.Compare(a.Name, b.Name) })
	if want := []types.NamespacedName{{Namespace: "shop", Name: "cache"}, {Namespace: "shop", Name: "carts"}, {Namespace: "shop", Name: "sessions"}}; err != nil || !slices.Equal(pools, want) {
		t.Errorf("there are %v, want %v: %v", pools, want, err)
	}
}

// SPDX-License-Identifier: Apache-2.0

package kvpool

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	cachetesting "k8s.io/client-go/tools/cache/testing"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	farpoolv1alpha1 "farpool.dev/farpool/api/gen/farpool/v1alpha1"
	"farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/agent"
	"farpool.dev/farpool/operator/internal/apply"
	"farpool.dev/farpool/operator/internal/observe"
	"farpool.dev/farpool/operator/internal/plan"
)

// large is a pool of many compute shards that run, in a cache as the operator has it, and an API server that takes what is written and keeps nothing of it.
type large struct {
	cache cache.Cache
	// requests is how many the API server has had.
	requests atomic.Int64
	// written is the list of the shards' processes.
	written *v1alpha1.ComputeShardPool
	applier *apply.Applier
	known   *apply.Known
	agents  said
}

// said is what agents have said, and that no call was made.
type said map[types.UID]agent.Observation

func (s said) Observe(types.NamespacedName) map[types.UID]agent.Observation { return s }

type noCalls struct{}

func (noCalls) Observe(types.NamespacedName) map[types.UID][]agent.Outcome { return nil }

// newLarge makes a pool of so many shards whose statuses say what a look decides.
func newLarge(b *testing.B, shards int) *large {
	b.Helper()
	ctrl.SetLogger(logr.Discard())
	l := &large{agents: said{}, known: &apply.Known{}}
	objects := l.objects(shards)
	server := httptest.NewServer(http.HandlerFunc(l.accept))
	b.Cleanup(server.Close)
	config := &rest.Config{Host: server.URL, QPS: -1}
	l.fill(b, config, objects)
	snapshot, decided, err := l.decide(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	for _, write := range decided.Statuses(snapshot) {
		for _, object := range objects {
			if object.GetUID() == write.Object.GetUID() {
				reflect.ValueOf(object).Elem().FieldByName("Status").Set(reflect.ValueOf(write.Status).Elem())
				object.SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: v1alpha1.StatusFieldManager, Operation: metav1.ManagedFieldsOperationApply, Subresource: "status",
					FieldsV1: metav1.NewFieldsV1(`{"f:status":{}}`)}})
			}
		}
	}
	l.fill(b, config, objects)
	return l
}

// fill makes a cache with these objects, and an applier.
func (l *large) fill(b *testing.B, config *rest.Config, objects []client.Object) {
	b.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			b.Fatal(err)
		}
	}
	mapper := meta.NewDefaultRESTMapper(nil)
	for kind := range scheme.AllKnownTypes() {
		scope := meta.RESTScopeNamespace
		if kind.Kind == "Node" {
			scope = meta.RESTScopeRoot
		}
		mapper.Add(kind, scope)
	}
	options := CacheOptions(nil, "")
	options.Scheme, options.Mapper = scheme, mapper
	options.NewInformer = func(_ toolscache.ListerWatcher, object runtime.Object, resync time.Duration, indexers toolscache.Indexers) toolscache.SharedIndexInformer {
		source := cachetesting.NewFakeControllerSource()
		for _, each := range objects {
			if kindOf(each) == kindOf(object.(client.Object)) {
				version := each.GetResourceVersion()
				source.Add(each)
				each.SetResourceVersion(version)
			}
		}
		return toolscache.NewSharedIndexInformer(source, object, resync, indexers)
	}
	var err error
	if l.cache, err = cache.New(config, options); err != nil {
		b.Fatal(err)
	}
	if err := observe.Index(b.Context(), l.cache, nil); err != nil {
		b.Fatal(err)
	}
	go func() { _ = l.cache.Start(b.Context()) }()
	if !l.cache.WaitForCacheSync(b.Context()) {
		b.Fatal("the cache is not filled")
	}
	writer, err := client.New(config, client.Options{Scheme: scheme, Mapper: mapper})
	if err != nil {
		b.Fatal(err)
	}
	l.applier = apply.New(writer, writer, NewMetrics(prometheus.NewRegistry()))
}

func kindOf(object client.Object) string {
	if kind := object.GetObjectKind().GroupVersionKind().Kind; kind != "" {
		return kind
	}
	parts := strings.Split(fmt.Sprintf("%T", object), ".")
	return parts[len(parts)-1]
}

// accept answers a write with what was written, or with the metadata of the list of processes if metadata were asked for: the version is that of the cache, which shows no write.
func (l *large) accept(w http.ResponseWriter, request *http.Request) {
	l.requests.Add(1)
	w.Header().Set("Content-Type", "application/json")
	body, err := io.ReadAll(request.Body)
	switch {
	case err != nil || request.Method == http.MethodGet:
		w.WriteHeader(http.StatusNotFound)
		body = []byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`)
	case strings.Contains(request.Header.Get("Accept"), "as=PartialObjectMetadata"):
		body = fmt.Appendf(nil, `{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"uid":%q,"resourceVersion":%q}}`, l.written.UID, l.written.ResourceVersion)
	}
	_, _ = w.Write(body)
}

func (l *large) objects(shards int) []client.Object {
	made := 0
	of := func(name string, labels ...string) metav1.ObjectMeta {
		made++
		is := metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(fmt.Sprintf("5f0c2a54-2f5d-4c9c-9a3f-%012d", made)), ResourceVersion: "7", Generation: 1, Labels: map[string]string{v1alpha1.LabelPool: "cache"}}
		for i := 0; i < len(labels); i += 2 {
			is.Labels[labels[i]] = labels[i+1]
		}
		return is
	}
	by := func(is metav1.ObjectMeta, owner client.Object, kind schema.GroupVersionKind) metav1.ObjectMeta {
		is.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(owner, kind)}
		return is
	}
	pool := &v1alpha1.KVPool{
		ObjectMeta: of("cache"),
		Spec: v1alpha1.KVPoolSpec{
			DataPolicy: v1alpha1.DataPolicyCache, Management: v1alpha1.ManagementManaged,
			Index:    v1alpha1.IndexSpec{Protocol: v1alpha1.ProtocolRCuckoo, RCuckoo: v1alpha1.RCuckooSpec{EntryBytes: 16, EntriesPerRow: 8, RowsPerLock: 16, TablePercent: 25}},
			Memory:   v1alpha1.MemorySpec{Pools: []v1alpha1.MemoryPool{{Name: "memory", Replicas: 2, Lend: resource.MustParse("256Mi")}}},
			Compute:  &v1alpha1.ComputeSpec{Pools: []v1alpha1.ComputePool{{Name: "shards", Replicas: int32(shards), Workers: 1}}},
			Network:  v1alpha1.NetworkSpec{Transport: v1alpha1.TransportTCP},
			Security: v1alpha1.SecuritySpec{Password: v1alpha1.PasswordGenerated},
		},
	}
	deployment := &appsv1.Deployment{ObjectMeta: by(of("cache-shards"), pool, v1alpha1.GroupVersion.WithKind("KVPool")), Spec: appsv1.DeploymentSpec{Replicas: ptr.To(int32(shards))},
		Status: appsv1.DeploymentStatus{Replicas: int32(shards), UpdatedReplicas: int32(shards), ReadyReplicas: int32(shards), AvailableReplicas: int32(shards)}}
	replicaSet := &metav1.PartialObjectMetadata{ObjectMeta: by(of("cache-shards-5d8f7c9b6"), deployment, appsv1.SchemeGroupVersion.WithKind("Deployment"))}
	replicaSet.SetGroupVersionKind(appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))
	l.written = &v1alpha1.ComputeShardPool{ObjectMeta: by(of("cache-shards"), pool, v1alpha1.GroupVersion.WithKind("KVPool")),
		Spec: v1alpha1.ComputeShardPoolSpec{PoolName: "cache", ComputePool: "shards", Declared: int32(shards), Replicas: int32(shards)}}
	objects := []client.Object{pool, deployment, replicaSet, l.written}
	for i := range shards {
		pod := &corev1.Pod{
			ObjectMeta: by(of(fmt.Sprintf("cache-shards-5d8f7c9b6-%05d", i), v1alpha1.LabelComponent, v1alpha1.ComponentComputeShard, v1alpha1.LabelComputePool, "shards", "app.kubernetes.io/name", "farpool"),
				replicaSet, appsv1.SchemeGroupVersion.WithKind("ReplicaSet")),
			Spec: corev1.PodSpec{NodeName: fmt.Sprintf("node-%03d", i%100), Containers: []corev1.Container{{Name: "compute-shard", Image: "farpool/dataplane:v1"}},
				Volumes: []corev1.Volume{{Name: "tls", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "cache-shards-client-tls"}}}}},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.0.0.1",
				ContainerStatuses: []corev1.ContainerStatus{{Name: "compute-shard", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}},
		}
		for _, condition := range conditionsOfPods[:3] {
			pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: condition, Status: corev1.ConditionTrue})
		}
		l.runs(pod, uint64(0x1000+i))
		l.written.Status.Processes = append(l.written.Status.Processes,
			v1alpha1.ProcessStatus{Process: v1alpha1.ProcessID(uint64(0x1000 + i)), Name: pod.Name, PodUID: string(pod.UID), NodeName: pod.Spec.NodeName})
		objects = append(objects, pod)
	}
	for i := range 2 {
		name := v1alpha1.MemoryNodeName("cache", "memory", int32(i))
		node := &v1alpha1.MemoryNode{ObjectMeta: by(of(name), pool, v1alpha1.GroupVersion.WithKind("KVPool")),
			Spec: v1alpha1.MemoryNodeSpec{PoolName: "cache", MemoryPool: "memory", Ordinal: int32(i), TemplateVersion: 4, Image: "farpool/dataplane:v1"}}
		objects = append(objects, node, &corev1.Pod{ObjectMeta: by(of(name+"-pod", v1alpha1.LabelComponent, v1alpha1.ComponentMemoryNode), node, v1alpha1.GroupVersion.WithKind("MemoryNode")),
			Spec: corev1.PodSpec{NodeName: "node-000"}, Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.0.0.2"}})
	}
	return objects
}

// runs makes the agent in a pod answer as a process.
func (l *large) runs(pod *corev1.Pod, process uint64) {
	l.agents[pod.UID] = agent.Observation{State: agent.Connected, Facts: &farpoolv1alpha1.Facts{Role: farpoolv1alpha1.Role_ROLE_COMPUTE_SHARD, Name: pod.Name, Incarnation: process, Ready: true,
		ComputeShard: &farpoolv1alpha1.ComputeShardFacts{RespEndpoint: "10.0.0.1:6379"}}}
}

// decide observes and decides.
func (l *large) decide(ctx context.Context) (*observe.Snapshot, *plan.Plan, error) {
	pool := &v1alpha1.KVPool{}
	if err := l.cache.Get(ctx, types.NamespacedName{Namespace: "shop", Name: "cache"}, pool); err != nil {
		return nil, nil, err
	}
	snapshot, err := observe.Take(ctx, l.cache, l.cache, l.agents, noCalls{}, nil, pool, nil)
	if err != nil {
		return nil, nil, err
	}
	decided, err := plan.Decide(plan.Input{Snapshot: snapshot, Now: time.Unix(1e9, 0), Random: rand.Reader,
		Settings: plan.Settings{Image: "farpool/dataplane:v1", AgentAddress: func(pod *corev1.Pod) string { return pod.Status.PodIP + ":7401" }}})
	return snapshot, decided, err
}

// look observes, decides and writes statuses, and returns how many processes are written down.
func (l *large) look(ctx context.Context) (int, error) {
	snapshot, decided, err := l.decide(ctx)
	if err != nil {
		return 0, err
	}
	l.known.Begin()
	applier := l.applier.With(l.known, nil, nil)
	for _, write := range decided.Statuses(snapshot) {
		if err := applier.Status(ctx, statusOf(write), write.Object); err != nil {
			return 0, err
		}
	}
	return len(decided.Status.ComputePools["cache-shards"].Processes), nil
}

// processorTime is what the process has taken, with that of collections of garbage. On a busy machine it says more than the time on a clock.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// What a look at a pool costs, by its number of compute shards: if nothing has changed, and if a shard has restarted, so that its pool's list of processes is written. Beside the shards, a
// look has to do what it does in a pool of any size.
func BenchmarkLook(b *testing.B) {
	for _, shards := range []int{2, 64, 1024} {
		for _, restarts := range []bool{false, true} {
			b.Run(fmt.Sprintf("shards=%d/restart=%v", shards, restarts), func(b *testing.B) {
				l := newLarge(b, shards)
				pod := &corev1.Pod{}
				if err := l.cache.Get(b.Context(), types.NamespacedName{Namespace: "shop", Name: "cache-shards-5d8f7c9b6-00001"}, pod); err != nil {
					b.Fatal(err)
				}
				b.ReportAllocs()
				requests, cpu := l.requests.Load(), processorTime(b)
				for i := 0; b.Loop(); i++ {
					if restarts {
						l.runs(pod, uint64(0x100000+i))
					}
					if written, err := l.look(b.Context()); err != nil || written < shards {
						b.Fatalf("%d of %d processes are written down: %v", written, shards, err)
					}
				}
				b.ReportMetric(float64(l.requests.Load()-requests)/float64(b.N), "requests/op")
				b.ReportMetric(float64((processorTime(b)-cpu).Nanoseconds())/float64(b.N), "cpu-ns/op")
			})
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	policyv1ac "k8s.io/client-go/applyconfigurations/policy/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	farpoolv1alpha1 "farpool.dev/farpool/api/gen/farpool/v1alpha1"
	"farpool.dev/farpool/api/v1alpha1"
	apiac "farpool.dev/farpool/api/v1alpha1/applyconfiguration/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/plan"
	"farpool.dev/farpool/operator/internal/shardmap"
)

// The world that the planner is simulated in: an API server, kubelets, memory nodes, clients that move keys, and people. Operators are in
// sim_operator_test.go, what happens is in sim_test.go.

const (
	simNamespace = "shop"
	simPool      = "cache"
	simEntry     = "memory"
	// simKeys is a power of two, so that each is in one part of any directory that so few memory nodes have.
	simKeys    = 1024
	simNodes   = 6
	simWorkers = 5
)

// kind of objects. Each is cached on its own.
type kind int

const (
	kindPool kind = iota
	kindNode
	kindPod
	kindMap
	kindResize
	kindScale
	kindSecret
	kindBudget
	kindWorker
	kindShard
	kindLease
	kindCompute
	kinds
)

var kindNames = [kinds]string{"KVPool", "MemoryNode", "Pod", "ShardMap", "ResizeOperation", "MemoryNodePool", "Secret", "PodDisruptionBudget", "Node", "Pod", "RepairLease", "ComputeShardPool"}

// objects of a kind by name, as they were at one moment. They are never changed: a write makes another moment.
type objects map[string]client.Object

// violation is what must never be.
type violation struct{ rule, what string }

func (v *violation) Error() string { return v.rule + ": " + v.what }

// memory of a pod: it outlives processes, and ends with the pod.
type memory struct {
	node     string
	pod      types.UID
	gone     bool
	recorded uint64
	named    bool // a map that it followed names one of its lives
	finished uint64
	kept     *farpoolv1alpha1.ShardMap
	secret   string
	// life is the incarnation that began with nothing in it.
	life uint64
}

// process of a memory node.
type process struct {
	memory      *memory
	incarnation uint64
	began       time.Time
	fresh       bool
	tables      uint32
	// follows and holds are maps; holds is nil where it would be the one that is followed.
	follows, holds *farpoolv1alpha1.ShardMap
	facts          *farpoolv1alpha1.Facts // nil: to be made anew
	sessions       sessions
	image          string
}

type world struct {
	index  string // the protocol
	policy v1alpha1.DataPolicy
	now    time.Time

	history [kinds][]objects
	version int
	serial  uint64

	processes map[types.UID]*process // by pod
	deaf      map[string]bool        // memory nodes that answer nobody
	full      bool                   // Kubernetes has no room for more pods
	keys      []*memory              // where each is; nil: it is lost, or was never written

	// What was ever: maps by epoch, moves by number, tables by life, secrets by name.
	maps    map[int64]*v1alpha1.ShardMapSpec
	made    map[int64][]*v1alpha1.ShardMapSpec
	givenUp map[string]bool // incarnations
	// accepted are incarnations whose loss of what came before a person has accepted; memories are the lives that began each incarnation's memory.
	accepted map[string]bool
	memories map[string]string
	moves    map[int64]*v1alpha1.ShardMapSpec
	tables   map[string]int32
	secrets  map[string]string
	// saidDrained are the conditions of MemoryNodes when they were last said to be drained.
	saidDrained map[string][]metav1.Condition
	// resizesDeleted: a person has deleted a ResizeOperation. Its number may be used again then, so that operators with different caches make two.
	resizesDeleted bool
	// repairs is nil in worlds without compute shards.
	repairs *repairWorld
	// slowness says which looks at the pool are too short to write all that is to be written; putOff counts objects that were left to a later look. late counts statuses that
	// looks have not waited for; slowness says when they take effect.
	slowness     *rand.Rand
	putOff, late int
	// poolsEdited: a person has added memory pools to the spec or taken some away, which a cache may not show yet.
	poolsEdited bool
	// newest is the latest map that any memory node has followed.
	newest *v1alpha1.ShardMapSpec

	broken *violation
	story  []string
	tell   bool
}

func (w *world) fail(rule, format string, arguments ...any) {
	if w.broken == nil {
		w.broken = &violation{rule, fmt.Sprintf(format, arguments...)}
		w.say("BROKEN %v", w.broken)
	}
}

func (w *world) say(format string, arguments ...any) {
	if w.tell {
		w.story = append(w.story, fmt.Sprintf("%6.0fs  %s", w.now.Sub(simStart).Seconds(), fmt.Sprintf(format, arguments...)))
	}
}

var simStart = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func newWorld(random *rand.Rand) *world {
	w := &world{
		now: simStart, index: []string{v1alpha1.ProtocolRCuckoo, v1alpha1.ProtocolRACE, v1alpha1.ProtocolOutback, v1alpha1.ProtocolRACE}[random.IntN(4)], policy: v1alpha1.DataPolicyStore,
		processes: map[types.UID]*process{}, deaf: map[string]bool{}, keys: make([]*memory, simKeys),
		made: map[int64][]*v1alpha1.ShardMapSpec{}, givenUp: map[string]bool{}, accepted: map[string]bool{}, memories: map[string]string{},
		maps: map[int64]*v1alpha1.ShardMapSpec{}, moves: map[int64]*v1alpha1.ShardMapSpec{}, tables: map[string]int32{}, secrets: map[string]string{},
		saidDrained: map[string][]metav1.Condition{},
	}
	if random.IntN(3) == 0 {
		w.policy = v1alpha1.DataPolicyCache
	}
	for k := range w.history {
		w.history[k] = []objects{{}}
	}
	pool := &v1alpha1.KVPool{
		ObjectMeta: metav1.ObjectMeta{Namespace: simNamespace, Name: simPool, UID: "uid", Generation: 1},
		Spec: v1alpha1.KVPoolSpec{
			DataPolicy: w.policy, Management: v1alpha1.ManagementManaged,
			Index:    v1alpha1.IndexSpec{Protocol: v1alpha1.ProtocolRCuckoo, RCuckoo: v1alpha1.RCuckooSpec{EntryBytes: 16, EntriesPerRow: 8, RowsPerLock: 16, TablePercent: 25}},
			Memory:   v1alpha1.MemorySpec{Pools: []v1alpha1.MemoryPool{{Name: simEntry, Replicas: int32(1 + random.IntN(4)), Lend: resource.MustParse("256Mi")}}},
			Network:  v1alpha1.NetworkSpec{Transport: v1alpha1.TransportTCP},
			Security: v1alpha1.SecuritySpec{Password: v1alpha1.PasswordNone},
		},
	}
	switch w.index {
	case v1alpha1.ProtocolRACE:
		pool.Spec.Index = v1alpha1.IndexSpec{Protocol: v1alpha1.ProtocolRACE, RACE: &v1alpha1.RACESpec{TablePercent: 25, Tables: 16384, LeastTables: 1}}
	case v1alpha1.ProtocolOutback:
		pool.Spec.Index = v1alpha1.IndexSpec{Protocol: v1alpha1.ProtocolOutback, Outback: &v1alpha1.OutbackSpec{TablePercent: 25}}
	}
	w.put(kindPool, pool)
	for i := range simWorkers {
		w.put(kindWorker, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("worker-%d", i)}})
	}
	return w
}

// now of a kind.
func (w *world) live(k kind) objects { return w.history[k][len(w.history[k])-1] }

// put an object there, with another version.
func (w *world) put(k kind, object client.Object) {
	w.version++
	object.SetResourceVersion(fmt.Sprint(w.version))
	next := maps.Clone(w.live(k))
	next[object.GetName()] = object
	w.history[k] = append(w.history[k], next)
}

func (w *world) take(k kind, name string) {
	next := maps.Clone(w.live(k))
	delete(next, name)
	w.history[k] = append(w.history[k], next)
}

// edit has an object changed, if it is there.
func edit[T client.Object](w *world, k kind, name string, change func(T)) {
	if object, ok := w.live(k)[name].(T); ok {
		object = object.DeepCopyObject().(T)
		change(object)
		w.put(k, object)
	}
}

func (w *world) pool() *v1alpha1.KVPool { return w.live(kindPool)[simPool].(*v1alpha1.KVPool) }

// respec has a person edit the pool's spec.
func (w *world) respec(change func(*v1alpha1.KVPoolSpec)) {
	edit(w, kindPool, simPool, func(pool *v1alpha1.KVPool) {
		change(&pool.Spec)
		pool.Generation++
	})
}

func (w *world) uid(of string) types.UID {
	w.serial++
	return types.UID(fmt.Sprintf("%s-%d", of, w.serial))
}

func (w *world) pod(name string) *corev1.Pod {
	pod, _ := w.live(kindPod)[name].(*corev1.Pod)
	return pod
}

// controls says whether a MemoryNode is the controller of a pod; kept says whether the pool owns it beside, so that it outlives its MemoryNode.
func controls(node client.Object, pod *corev1.Pod) bool {
	return node != nil && metav1.IsControlledBy(pod, node)
}

func kept(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.OwnerReferences, func(owner metav1.OwnerReference) bool { return owner.Kind == "KVPool" })
}

// API errors, as far as anybody tells them apart.
type apiError string

func (e apiError) Error() string { return string(e) }

const (
	errStale    = apiError("the cache lags behind the API server")
	errInvalid  = apiError("the API server refuses what would be another object")
	errConflict = apiError("an object of this name belongs to somebody else")
	errFault    = apiError("the API server fails")
	errLater    = apiError("left for the next look")
	errNoAnswer = apiError("the agent does not answer")
	errRefused  = apiError("the agent refuses")
)

// modelled says whether a kind of object is kept by this API server; the planner never looks at others.
func modelled(object any) (k kind, name string, ok bool) {
	switch object := object.(type) {
	case *corev1ac.SecretApplyConfiguration:
		return kindSecret, *object.Name, true
	case *policyv1ac.PodDisruptionBudgetApplyConfiguration:
		return kindBudget, *object.Name, true
	case *apiac.MemoryNodeApplyConfiguration:
		return kindNode, *object.Name, true
	case *apiac.MemoryNodePoolApplyConfiguration:
		return kindScale, *object.Name, true
	case *corev1ac.PodApplyConfiguration:
		return kindPod, *object.Name, true
	case *apiac.ShardMapApplyConfiguration:
		return kindMap, *object.Name, true
	case *apiac.ResizeOperationApplyConfiguration:
		return kindResize, *object.Name, true
	case *apiac.RepairLeaseApplyConfiguration:
		return kindLease, *object.Name, true
	case *apiac.ComputeShardPoolApplyConfiguration:
		return kindCompute, *object.Name, true
	}
	return 0, "", false
}

// unchanged says whether an operator that sees cached leaves an object alone.
func unchanged(object any, cached client.Object) bool {
	switch object := object.(type) {
	case *corev1ac.SecretApplyConfiguration:
		return reflect.DeepEqual(cached.(*corev1.Secret).Data, object.Data)
	case *policyv1ac.PodDisruptionBudgetApplyConfiguration:
		return cached.(*policyv1.PodDisruptionBudget).Spec.MinAvailable.IntVal == object.Spec.MinAvailable.IntVal
	case *apiac.MemoryNodePoolApplyConfiguration:
		spec := &v1alpha1.MemoryNodePoolSpec{}
		return applied(object.Spec, spec) == nil && equality.Semantic.DeepEqual(cached.(*v1alpha1.MemoryNodePool).Spec, *spec)
	case *apiac.MemoryNodeApplyConfiguration:
		return cached.(*v1alpha1.MemoryNode).Spec.Image == *object.Spec.Image
	case *apiac.ComputeShardPoolApplyConfiguration:
		spec := cached.(*v1alpha1.ComputeShardPool).Spec
		return spec.Declared == *object.Spec.Declared && spec.Replicas == *object.Spec.Replicas
	case *apiac.RepairLeaseApplyConfiguration:
		return metav1.GetControllerOf(cached) != nil
	}
	return true
}

func pinned(version *string, live client.Object) bool {
	return version == nil || live != nil && *version == live.GetResourceVersion()
}

// apply is what the API server makes of an object that is applied.
func (w *world) apply(object any) error {
	k, name, _ := modelled(object)
	live := w.live(k)[name]
	switch object := object.(type) {
	case *corev1ac.SecretApplyConfiguration:
		if !pinned(object.ResourceVersion, live) {
			return errStale
		}
		text := fmt.Sprint(object.Data)
		if before, known := w.secrets[name]; known && before != text {
			w.fail("Secrets never change", "Secret %s is written over with another content", name)
		}
		w.secrets[name] = text
		w.put(k, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: *object.Namespace, Name: name}, Data: object.Data})
	case *policyv1ac.PodDisruptionBudgetApplyConfiguration:
		w.put(k, &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: simNamespace, Name: name},
			Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: &intstr.IntOrString{IntVal: object.Spec.MinAvailable.IntVal}}})
	case *apiac.MemoryNodePoolApplyConfiguration:
		if !pinned(object.ResourceVersion, live) {
			return errStale
		}
		scale := &v1alpha1.MemoryNodePool{ObjectMeta: metav1.ObjectMeta{Namespace: simNamespace, Name: name}}
		if live != nil {
			scale = live.DeepCopyObject().(*v1alpha1.MemoryNodePool)
		}
		before := scale.Spec.Entry
		scale.Spec = v1alpha1.MemoryNodePoolSpec{}
		if err := applied(object.Spec, &scale.Spec); err != nil {
			return err
		}
		if before != nil && before.Lend.Cmp(scale.Spec.Entry.Lend) != 0 {
			return errInvalid // what memory nodes lend is fixed while the object is there
		}
		w.put(k, scale)
	case *apiac.ComputeShardPoolApplyConfiguration:
		if !pinned(object.ResourceVersion, live) {
			return errStale
		}
		scale := &v1alpha1.ComputeShardPool{ObjectMeta: metav1.ObjectMeta{Namespace: simNamespace, Name: name}}
		if live != nil {
			scale = live.DeepCopyObject().(*v1alpha1.ComputeShardPool)
		}
		scale.Spec = v1alpha1.ComputeShardPoolSpec{PoolName: simPool, ComputePool: simCompute, Declared: *object.Spec.Declared, Replicas: *object.Spec.Replicas}
		w.put(k, scale)
	case *apiac.RepairLeaseApplyConfiguration:
		return w.applyLease(object)
	case *apiac.MemoryNodeApplyConfiguration:
		if live != nil {
			edit(w, k, name, func(node *v1alpha1.MemoryNode) { node.Spec.Image = *object.Spec.Image })
			return nil // the rest is the same
		}
		w.put(k, &v1alpha1.MemoryNode{ObjectMeta: metav1.ObjectMeta{Namespace: simNamespace, Name: name, UID: w.uid("node")},
			Spec: v1alpha1.MemoryNodeSpec{PoolName: simPool, MemoryPool: *object.Spec.MemoryPool, Ordinal: *object.Spec.Ordinal, Lend: *object.Spec.Lend,
				TemplateVersion: *object.Spec.TemplateVersion, Image: *object.Spec.Image}})
	case *corev1ac.PodApplyConfiguration:
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: simNamespace, Name: name, UID: w.uid("pod"), Labels: object.Labels, Annotations: object.Annotations},
			Status: corev1.PodStatus{Phase: corev1.PodPending}}
		for _, owner := range object.OwnerReferences {
			pod.OwnerReferences = append(pod.OwnerReferences, metav1.OwnerReference{APIVersion: *owner.APIVersion, Kind: *owner.Kind, Name: *owner.Name, UID: *owner.UID,
				Controller: owner.Controller, BlockOwnerDeletion: owner.BlockOwnerDeletion})
		}
		if w.repairs != nil {
			if err := applied(object.Spec, &pod.Spec); err != nil {
				return err
			}
		}
		w.put(k, pod)
	case *apiac.ShardMapApplyConfiguration:
		spec := &v1alpha1.ShardMapSpec{}
		if err := applied(object.Spec, spec); err != nil {
			return err
		}
		if live != nil {
			if reflect.DeepEqual(live.(*v1alpha1.ShardMap).Spec, *spec) {
				return nil
			}
			return errInvalid
		}
		w.newMap(spec)
		w.put(k, &v1alpha1.ShardMap{ObjectMeta: metav1.ObjectMeta{Namespace: simNamespace, Name: name, UID: w.uid("map")}, Spec: *spec})
	case *apiac.ResizeOperationApplyConfiguration:
		if live != nil {
			return nil
		}
		operation := &v1alpha1.ResizeOperation{ObjectMeta: metav1.ObjectMeta{Namespace: simNamespace, Name: name, UID: w.uid("resize"), CreationTimestamp: metav1.NewTime(w.now)},
			Spec: v1alpha1.ResizeOperationSpec{PoolName: simPool, Approval: *object.Spec.Approval, Evacuates: object.Spec.Evacuates, RequestedState: v1alpha1.RequestedRun}}
		for _, changed := range object.Spec.Pools {
			operation.Spec.Pools = append(operation.Spec.Pools, v1alpha1.ResizePool{Name: *changed.Name, From: *changed.From, To: *changed.To})
		}
		if tables := object.Spec.Tables; tables != nil {
			operation.Spec.Tables = &v1alpha1.ResizeTables{From: *tables.From, To: *tables.To}
		}
		w.put(k, operation)
		w.oneIsOpen()
	}
	return nil
}

// applied gives an object, or a part of one, what an apply configuration has.
func applied(configuration, to any) error {
	text, err := json.Marshal(configuration)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, to)
}

func (w *world) oneIsOpen() {
	var open []string
	for name, object := range w.live(kindResize) {
		if operation := object.(*v1alpha1.ResizeOperation); operation.DeletionTimestamp.IsZero() && operation.Status.CompletionTime == nil {
			open = append(open, name)
		}
	}
	if len(open) > 1 && !w.resizesDeleted {
		slices.Sort(open)
		w.fail("one ResizeOperation is open", "%s are", strings.Join(open, ", "))
	}
}

// remove is what the API server makes of a delete by an operator of an object that it saw.
func (w *world) remove(seen client.Object) error {
	k := kindOf(seen)
	live := w.live(k)[seen.GetName()]
	if live == nil {
		return nil
	}
	if live.GetUID() != seen.GetUID() || live.GetResourceVersion() != seen.GetResourceVersion() {
		return errStale
	}
	if k == kindPod || k == kindNode {
		w.mayGo(live)
	}
	if scale, ok := live.(*v1alpha1.MemoryNodePool); ok {
		w.entryMayGo(scale)
	}
	if lease, ok := live.(*v1alpha1.RepairLease); ok {
		w.mayEnd(lease)
	}
	if pod, ok := live.(*corev1.Pod); ok {
		w.endPod(pod)
		return nil
	}
	w.take(k, live.GetName())
	return nil
}

func kindOf(object client.Object) kind {
	switch object.(type) {
	case *v1alpha1.MemoryNode:
		return kindNode
	case *corev1.Pod:
		return kindPod
	case *v1alpha1.ShardMap:
		return kindMap
	case *v1alpha1.ResizeOperation:
		return kindResize
	case *v1alpha1.MemoryNodePool:
		return kindScale
	case *v1alpha1.RepairLease:
		return kindLease
	case *v1alpha1.ComputeShardPool:
		return kindCompute
	case *corev1.Secret:
		return kindSecret
	case *policyv1.PodDisruptionBudget:
		return kindBudget
	}
	return kindPool
}

// mayGo holds operators to what they delete: no pod with keys, nothing that has a part of the hash space.
func (w *world) mayGo(object client.Object) {
	name := object.GetName()
	pod, isPod := object.(*corev1.Pod)
	if isPod {
		if p := w.processes[pod.UID]; p != nil {
			for _, at := range w.keys {
				if at == p.memory {
					w.fail("no key is lost", "an operator deletes pod %s with keys in its memory", name)
					return
				}
			}
		}
		if pod.Spec.NodeName == "" || pod.Status.Phase == corev1.PodFailed {
			return
		}
	}
	// A node of the newest map may hold another past, as long as it is not known to follow a map without the one that goes.
	newest := w.newestObject()
	for _, p := range w.processes {
		spec := w.maps[int64(p.follows.GetEpoch())]
		if spec != nil && newest != nil && lists(newest, p.memory.node) && p.memory.node != name && lists(spec, name) {
			w.fail("none goes with a part", "an operator deletes %s %s, and %s follows epoch %d with it", kindNames[kindOf(object)], name, p.memory.node, spec.Epoch)
		}
	}
	for _, spec := range []*v1alpha1.ShardMapSpec{w.followed(), newest} {
		if spec != nil && hasPart(spec, name) {
			w.fail("none goes with a part", "an operator deletes %s %s, and epoch %d gives it a part of the hash space", kindNames[kindOf(object)], name, spec.Epoch)
		}
	}
}

// entryMayGo holds operators to what they forget of memory pools: nothing of one that the spec has as it is.
func (w *world) entryMayGo(scale *v1alpha1.MemoryNodePool) {
	for _, entry := range w.pool().Spec.Memory.Pools {
		if entry.Name == scale.Spec.MemoryPool && entry.Lend.Cmp(scale.Spec.Entry.Lend) == 0 && !w.poolsEdited {
			w.fail("the spec's memory pools stay", "an operator deletes MemoryNodePool %s, and the spec has it", scale.Name)
		}
	}
}

// followed is the newest map that a memory node follows now.
func (w *world) followed() *v1alpha1.ShardMapSpec {
	newest := int64(0)
	for _, p := range w.processes {
		newest = max(newest, int64(p.follows.GetEpoch()))
	}
	return w.maps[newest]
}

func (w *world) newestObject() *v1alpha1.ShardMapSpec { return newestOf(w.live(kindMap)) }

// newestOf ShardMaps; nil: there is none.
func newestOf(maps objects) *v1alpha1.ShardMapSpec {
	var newest *v1alpha1.ShardMapSpec
	for _, object := range maps {
		if spec := &object.(*v1alpha1.ShardMap).Spec; newest == nil || spec.Epoch > newest.Epoch {
			newest = spec
		}
	}
	return newest
}

func owner(spec *v1alpha1.ShardMapSpec, table int32) *v1alpha1.ShardMapNode {
	for i := range spec.Tables {
		if spec.Tables[i].ID == table {
			return &spec.Nodes[spec.Tables[i].Node]
		}
	}
	return nil
}

func lists(spec *v1alpha1.ShardMapSpec, name string) bool {
	return slices.ContainsFunc(spec.Nodes, func(entry v1alpha1.ShardMapNode) bool { return entry.Name == name })
}

func hasPart(spec *v1alpha1.ShardMapSpec, name string) bool {
	for _, table := range spec.Directory.Tables {
		if at := owner(spec, table); at != nil && at.Name == name {
			return true
		}
	}
	return slices.ContainsFunc(spec.Departures, func(departure v1alpha1.Departure) bool { return owner(spec, departure.From).Name == name })
}

// newMap holds operators to what maps may be.
func (w *world) newMap(spec *v1alpha1.ShardMapSpec) {
	w.say("ShardMap of epoch %d: %s", spec.Epoch, outline(spec))
	w.made[spec.Epoch] = append(w.made[spec.Epoch], spec)
	for epoch := range w.maps {
		if epoch > spec.Epoch {
			// An operator that stood still, between looking for a name and taking it, for so long that the object has come and gone since: memory nodes refuse
			// what it made.
			return
		}
	}
	w.memoriesAreTheirOwn(spec)
	w.maps[spec.Epoch] = spec
	if len(spec.Directory.Tables) != 1<<spec.Directory.Depth || len(spec.Directory.Tables) > simKeys {
		w.fail("a map is whole", "epoch %d has %d parts at depth %d", spec.Epoch, len(spec.Directory.Tables), spec.Directory.Depth)
		return
	}
	for _, table := range spec.Directory.Tables {
		if owner(spec, table) == nil {
			w.fail("a map is whole", "epoch %d gives a part to table %d, which no node has", spec.Epoch, table)
			return
		}
	}
	for _, table := range spec.Tables {
		entry := spec.Nodes[table.Node]
		life := entry.Name + " " + entry.Incarnation
		if had, known := w.tables[life]; known && had != table.ID {
			w.fail("a life has one table", "epoch %d gives table %d to %s, which had %d", spec.Epoch, table.ID, life, had)
		}
		w.tables[life] = table.ID
	}
	gives, takes := map[string]bool{}, map[string]bool{}
	for _, departure := range spec.Departures {
		gives[owner(spec, departure.From).Name] = true
		takes[owner(spec, spec.Directory.Tables[departure.Part]).Name] = true
	}
	for name := range gives {
		if takes[name] {
			w.fail("nobody both gives and takes", "epoch %d: %s does", spec.Epoch, name)
		}
	}
	w.found(spec)
}

// memoriesAreTheirOwn holds a map to what each life has in its memory: no life passes for one with another's keys and, of a Store, none serves without what
// was there before unless a person has accepted that loss.
func (w *world) memoriesAreTheirOwn(spec *v1alpha1.ShardMapSpec) {
	var before *v1alpha1.ShardMapSpec
	for epoch, made := range w.maps {
		if before == nil || epoch > before.Epoch {
			before = made
		}
	}
	memory := func(entry *v1alpha1.ShardMapNode) string {
		if entry.MemoryIncarnation != "" {
			return entry.MemoryIncarnation
		}
		return entry.Incarnation
	}
	for i := range spec.Nodes {
		entry := &spec.Nodes[i]
		if says, is := memory(entry), w.memories[entry.Incarnation]; says != is {
			w.fail("no empty life passes for a full one", "epoch %d has %s, incarnation %s, with the memory of %s, and it is that of %s", spec.Epoch, entry.Name, entry.Incarnation, says, is)
		}
		if before == nil || w.policy != v1alpha1.DataPolicyStore || entry.State != v1alpha1.NodeServing {
			continue
		}
		for j := range before.Nodes {
			was := &before.Nodes[j]
			if was.Name == entry.Name && (was.State == v1alpha1.NodeStopped || memory(was) != memory(entry)) && !w.accepted[entry.Incarnation] && !w.accepted[was.Incarnation] {
				w.fail("nobody accepts a loss for a person", "epoch %d has %s serve as incarnation %s, without what %s held, and nobody has accepted that", spec.Epoch, entry.Name, entry.Incarnation, was.Incarnation)
			}
		}
	}
}

// held holds operators to what moves may be, once a memory node holds a map: one that was made by a lagging cache, and that none has, begins nothing.
func (w *world) held(spec *v1alpha1.ShardMapSpec) {
	if before := w.moves[spec.Move]; before != nil {
		if !sameMove(before, spec) {
			w.fail("a number is one move", "epoch %d has move %d otherwise than epoch %d", spec.Epoch, spec.Move, before.Epoch)
		}
	} else if spec.Move > 0 && w.moves[spec.Move-1] == nil && spec.Move > 1 {
		w.fail("moves follow each other", "epoch %d begins move %d", spec.Epoch, spec.Move)
	}
	w.moves[spec.Move] = spec
}

// nothingIsGivenUp of a Store without a person's word for the very life that held it: no part changes hands without departing.
func (w *world) nothingIsGivenUp(before, now *v1alpha1.ShardMapSpec) {
	departs := map[int]bool{}
	for _, departure := range now.Departures {
		departs[int(departure.Part)] = true
	}
	for part, table := range now.Directory.Tables {
		had := owner(before, before.Directory.Tables[part%len(before.Directory.Tables)])
		if has := owner(now, table); has.Name != had.Name && !departs[part] && !w.givenUp[had.Incarnation] {
			w.fail("nobody gives up for a person", "epoch %d gives part %d of %s, incarnation %s, to %s without its keys", now.Epoch, part, had.Name, had.Incarnation, has.Name)
			return
		}
	}
}

// sameMove says whether a later map has a move of a number as the earlier one has it: the same owners of parts, and no departures that are new.
func sameMove(before, now *v1alpha1.ShardMapSpec) bool {
	for part, table := range now.Directory.Tables {
		if table != before.Directory.Tables[part%len(before.Directory.Tables)] {
			return false
		}
	}
	for _, departure := range now.Departures {
		if !slices.Contains(before.Departures, departure) {
			return false
		}
	}
	return true
}

func outline(spec *v1alpha1.ShardMapSpec) string {
	var nodes []string
	for _, entry := range spec.Nodes {
		nodes = append(nodes, fmt.Sprintf("%s=%s%s", strings.TrimPrefix(strings.TrimPrefix(entry.Name, simPool+"-"), simEntry+"-"), entry.Incarnation, map[bool]string{true: " stopped"}[entry.State == v1alpha1.NodeStopped]))
	}
	return fmt.Sprintf("nodes %s; %d parts; move %d, %d depart", strings.Join(nodes, ", "), len(spec.Directory.Tables), spec.Move, len(spec.Departures))
}

// found holds a map to having every key where clients that follow it look.
func (w *world) found(spec *v1alpha1.ShardMapSpec) {
	parts := len(spec.Directory.Tables)
	from := map[int]string{}
	for _, departure := range spec.Departures {
		from[int(departure.Part)] = owner(spec, departure.From).Name
	}
	owners := make([]string, parts)
	for part, table := range spec.Directory.Tables {
		owners[part] = owner(spec, table).Name
	}
	for key, at := range w.keys {
		if at == nil || at.gone {
			continue
		}
		if part := key % parts; at.node != owners[part] && at.node != from[part] {
			w.fail("no key is lost", "a key of part %d is on %s, and by epoch %d it is on %s%s", part, at.node, spec.Epoch, owners[part], map[bool]string{true: " or " + from[part]}[from[part] != ""])
			return
		}
	}
}

// Memory nodes.

// start a process in a pod, over the memory of the one before or over a new one.
func (w *world) start(pod *corev1.Pod, warm bool) {
	w.serial++
	before := w.processes[pod.UID]
	if w.repairs != nil && before == nil {
		before = w.repairs.ended[pod.UID]
		delete(w.repairs.ended, pod.UID)
	}
	p := &process{image: imageIn(pod), incarnation: 1000 + w.serial, began: w.now, fresh: true, sessions: newSessions(), tables: uint32(max(1, w.pool().Spec.Index.Race().LeastTables))}
	if warm && before != nil {
		p.memory, p.holds, p.fresh, p.tables = before.memory, before.memory.kept, !before.memory.named, before.tables
	} else {
		if before != nil {
			w.forget(before.memory)
		}
		p.memory = &memory{node: pod.Name, pod: pod.UID}
	}
	if p.fresh {
		p.memory.life = p.incarnation
	}
	w.memories[shardmap.FormatIncarnation(p.incarnation)] = shardmap.FormatIncarnation(p.memory.life)
	w.processes[pod.UID] = p
	w.say("memory node %s starts as incarnation %d, memory kept: %v", pod.Name, p.incarnation, !p.fresh)
}

func (w *world) forget(m *memory) {
	m.gone = true
	for key, at := range w.keys {
		if at == m {
			w.keys[key] = nil
		}
	}
}

// endPod takes a pod away with its memory.
func (w *world) endPod(pod *corev1.Pod) {
	if p := w.processes[pod.UID]; p != nil {
		w.forget(p.memory)
		delete(w.processes, pod.UID)
	}
	if w.repairs != nil {
		if p := w.repairs.ended[pod.UID]; p != nil {
			w.forget(p.memory)
		}
		delete(w.repairs.ended, pod.UID)
	}
	w.take(kindPod, pod.Name)
	w.say("pod %s is gone", pod.Name)
}

func (p *process) newestMap() *farpoolv1alpha1.ShardMap {
	if p.holds != nil {
		return p.holds
	}
	return p.follows
}

// told is what a memory node does when it is told a map: dataplane/node/memory_node.cc.
func (w *world) told(p *process, publication plan.Publication, prepare bool) error {
	spec := publication.Map
	message, err := shardmap.ToMessage(spec)
	if err != nil {
		return err
	}
	m, epoch := p.memory, uint64(spec.Epoch)
	newest := p.newestMap()
	heldMove := max(newest.GetMove(), m.finished)
	switch {
	case epoch < max(m.recorded, newest.GetEpoch()):
		return errRefused
	case m.recorded != 0 && m.secret != string(publication.PoolSecret),
		epoch == newest.GetEpoch() && !proto.Equal(message, newest), message.GetMove() < heldMove:
		return errInvalid
	}
	if !slices.ContainsFunc(w.made[spec.Epoch], func(made *v1alpha1.ShardMapSpec) bool { return reflect.DeepEqual(made, spec) }) {
		w.fail("a map is an object first", "memory node %s is told epoch %d, and the object of it is another or was never made", m.node, spec.Epoch)
	}
	p.facts = nil
	if prepare {
		if epoch != newest.GetEpoch() {
			p.holds, m.kept = message, message
			w.held(spec)
		}
		return nil
	}
	if epoch == p.follows.GetEpoch() {
		return nil
	}
	if !reflect.DeepEqual(w.maps[spec.Epoch], spec) {
		w.fail("an epoch is one map", "memory node %s follows another map of epoch %d than was made first", m.node, spec.Epoch)
	}
	if epoch < p.follows.GetEpoch() || epoch < m.recorded {
		w.fail("epochs grow", "memory node %s follows epoch %d after %d", m.node, epoch, m.recorded)
	}
	p.follows, p.holds, m.kept = message, nil, message
	m.recorded, m.secret = epoch, string(publication.PoolSecret)
	m.named = m.named || slices.ContainsFunc(message.GetNodes(), func(n *farpoolv1alpha1.MemoryNodeEntry) bool { return n.GetIncarnation() == p.incarnation })
	w.say("memory node %s follows epoch %d", m.node, epoch)
	if w.newest == nil || spec.Epoch > w.newest.Epoch {
		if w.newest != nil && w.policy == v1alpha1.DataPolicyStore {
			w.nothingIsGivenUp(w.newest, spec)
		}
		w.newest = spec
		w.found(spec)
		if spec.Epoch == 1 {
			w.write(func() bool { return true })
		}
	}
	w.returned(p)
	return nil
}

// says is what a memory node says of itself.
func (w *world) says(p *process) *farpoolv1alpha1.Facts {
	if p.facts != nil {
		return p.facts
	}
	node := &farpoolv1alpha1.MemoryNodeFacts{Endpoint: p.memory.node + ":7400", MemoryBytes: 256 << 20, MemoryFresh: p.fresh, Map: p.newestMap(),
		MoveFinished: p.memory.finished, RecordedEpoch: p.memory.recorded, EvenTables: p.tables}
	switch w.index {
	case v1alpha1.ProtocolRACE:
		node.Shape = &farpoolv1alpha1.MemoryNodeFacts_Race{Race: &farpoolv1alpha1.RaceGeometry{Groups: 1000}}
	case v1alpha1.ProtocolOutback:
		node.Shape = &farpoolv1alpha1.MemoryNodeFacts_Outback{Outback: &farpoolv1alpha1.OutbackGeometry{Buckets: 1000}}
	default:
		node.LockRegion = &farpoolv1alpha1.LockRegion{Placement: farpoolv1alpha1.LockRegion_PLACEMENT_HOST_MEMORY, Bytes: 8, Locks: 64, RowsPerLock: 16}
		node.Shape = &farpoolv1alpha1.MemoryNodeFacts_Rcuckoo{Rcuckoo: &farpoolv1alpha1.RCuckooGeometry{EntryBytes: 16, EntriesPerRow: 8, RowsPerLock: 16, Rows: 1000}}
	}
	p.saysOfShards(node)
	facts := &farpoolv1alpha1.Facts{PoolUid: "uid", Role: farpoolv1alpha1.Role_ROLE_MEMORY_NODE, Name: p.memory.node, Incarnation: p.incarnation,
		Epoch: p.follows.GetEpoch(), MemoryNode: node}
	for _, entry := range p.follows.GetNodes() {
		facts.Ready = facts.Ready || entry.GetIncarnation() == p.incarnation && entry.GetState() == farpoolv1alpha1.MemoryNodeEntry_STATE_SERVING
	}
	p.facts = facts
	return facts
}

// Clients.

// serves is the process that clients of a map reach at a node of it, or nil.
func (w *world) serves(spec *v1alpha1.ShardMapSpec, entry *v1alpha1.ShardMapNode) *process {
	pod := w.pod(entry.Name)
	if pod == nil || entry.State != v1alpha1.NodeServing {
		return nil
	}
	p := w.processes[pod.UID]
	if p == nil || shardmap.FormatIncarnation(p.incarnation) != entry.Incarnation || p.follows.GetEpoch() != uint64(spec.Epoch) {
		return nil
	}
	return p
}

// write has clients write keys that are not there, where the newest map has them.
func (w *world) write(chosen func() bool) {
	spec := w.newest
	if spec == nil {
		return
	}
	for key, at := range w.keys {
		if at == nil && chosen() {
			if p := w.serves(spec, owner(spec, spec.Directory.Tables[key%len(spec.Directory.Tables)])); p != nil {
				w.keys[key] = p.memory
			}
		}
	}
}

// move has clients move keys as the newest map has it; a mover needs both ends, of one epoch.
func (w *world) move(chosen func() bool) {
	spec := w.newest
	if spec == nil {
		return
	}
	if spec.LeastTables > 0 {
		for i := range spec.Nodes {
			if p := w.serves(spec, &spec.Nodes[i]); p != nil && int32(p.tables) < spec.LeastTables && chosen() {
				p.tables *= 2
				p.facts = nil
			}
		}
	}
	whole := map[*memory]bool{}
	var givers []*memory
	parts := len(spec.Directory.Tables)
	for _, departure := range spec.Departures {
		giver := w.serves(spec, owner(spec, departure.From))
		if giver == nil {
			continue
		}
		if _, known := whole[giver.memory]; !known {
			whole[giver.memory] = true
			givers = append(givers, giver.memory)
		}
		taker := w.serves(spec, owner(spec, spec.Directory.Tables[departure.Part]))
		for key := int(departure.Part); key < simKeys; key += parts {
			if w.keys[key] != giver.memory {
				continue
			}
			if taker != nil && chosen() {
				w.keys[key] = taker.memory
			} else {
				whole[giver.memory] = false
			}
		}
		whole[giver.memory] = whole[giver.memory] && taker != nil
	}
	for _, m := range givers {
		if whole[m] && m.finished < uint64(spec.Move) {
			m.finished = uint64(spec.Move)
			w.processes[m.pod].facts = nil
			w.say("all keys of move %d have left memory node %s", spec.Move, m.node)
		}
	}
}

// Kubernetes.

// kubelets place and run pods, and take away those whose owner is gone.
func (w *world) kubelets(random *rand.Rand) {
	for _, name := range slices.Sorted(maps.Keys(w.live(kindPod))) {
		pod := w.pod(name)
		switch {
		case !pod.DeletionTimestamp.IsZero():
			w.endPod(pod)
		case !kept(pod) && !controls(w.live(kindNode)[name], pod):
			w.say("the garbage collector deletes pod %s", name)
			w.endPod(pod)
		case pod.Status.Phase == corev1.PodPending && pod.Spec.NodeName == "":
			w.place(pod, random)
		case pod.Status.Phase == corev1.PodPending:
			edit(w, kindPod, name, func(pod *corev1.Pod) {
				pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.0.0.1", ContainerStatuses: []corev1.ContainerStatus{{State: running()}}}
			})
			w.startOrCrash(w.pod(name), false)
		case w.changed(pod) && random.IntN(4) > 0:
			w.startOrCrash(pod, true)
		}
	}
}

func running() corev1.ContainerState {
	return corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
}

func (w *world) place(pod *corev1.Pod, random *rand.Rand) {
	first := random.IntN(simWorkers)
	for i := range simWorkers {
		there := fmt.Sprintf("worker-%d", (first+i)%simWorkers)
		if w.full || w.live(kindWorker)[there].(*corev1.Node).Spec.Unschedulable {
			continue
		}
		edit(w, kindPod, pod.Name, func(pod *corev1.Pod) { pod.Spec.NodeName, pod.Status.Conditions = there, nil })
		return
	}
	if len(pod.Status.Conditions) == 0 {
		edit(w, kindPod, pod.Name, func(pod *corev1.Pod) {
			pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable,
				Message: "no room", LastTransitionTime: metav1.NewTime(w.now)}}
		})
	}
}

// evict a pod as a drain does, if the disruption budget lets it.
func (w *world) evict(pod *corev1.Pod) {
	budget, _ := w.live(kindBudget)[simPool+"-memory-nodes"].(*policyv1.PodDisruptionBudget)
	runs := 0
	for uid := range w.processes {
		if w.processes[uid] != nil {
			runs++
		}
	}
	if w.processes[pod.UID] == nil || budget != nil && runs-1 < int(budget.Spec.MinAvailable.IntVal) {
		return
	}
	w.say("pod %s is evicted", pod.Name)
	if m := w.processes[pod.UID].memory; w.policy == v1alpha1.DataPolicyStore && budget != nil && slices.Contains(w.keys, m) {
		w.fail("no key is lost", "the disruption budget lets pod %s of a Store be evicted with keys in its memory", pod.Name)
	}
	w.endPod(pod)
}

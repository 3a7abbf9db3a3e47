// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/utils/ptr"

	farpoolv1alpha1 "farpool.dev/farpool/api/gen/farpool/v1alpha1"
	"farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/agent"
	"farpool.dev/farpool/operator/internal/observe"
	"farpool.dev/farpool/operator/internal/shardmap"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// scene is a pool of nodes that all run and answer.
type scene struct {
	*observe.Snapshot
	now time.Time
}

func newScene(nodes int, policy v1alpha1.DataPolicy) *scene {
	s := &scene{now: start, Snapshot: &observe.Snapshot{
		Pool: &v1alpha1.KVPool{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cache", UID: "uid", Generation: 1},
			Spec: v1alpha1.KVPoolSpec{
				DataPolicy: policy,
				Management: v1alpha1.ManagementManaged,
				Index:      v1alpha1.IndexSpec{Protocol: v1alpha1.ProtocolRCuckoo, RCuckoo: v1alpha1.RCuckooSpec{EntryBytes: 16, EntriesPerRow: 8, RowsPerLock: 16, TablePercent: 25}},
				Memory:     v1alpha1.MemorySpec{Pools: []v1alpha1.MemoryPool{{Name: "memory", Replicas: int32(nodes), Lend: resource.MustParse("256Mi")}}},
				Network:    v1alpha1.NetworkSpec{Transport: v1alpha1.TransportTCP},
				Security:   v1alpha1.SecuritySpec{Password: v1alpha1.PasswordGenerated},
			},
		},
		Nodes:    map[string]*v1alpha1.MemoryNode{},
		NodePods: map[string]*corev1.Pod{},
		Secrets:  map[string]*corev1.Secret{},
		Kept:     map[string]*corev1.Secret{},
		Agents:   map[types.UID]agent.Observation{},
	}}
	for i := range nodes {
		name := v1alpha1.MemoryNodeName("cache", "memory", int32(i))
		s.Nodes[name] = &v1alpha1.MemoryNode{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID("node-" + name)},
			Spec:       v1alpha1.MemoryNodeSpec{PoolName: "cache", MemoryPool: "memory", Ordinal: int32(i), TemplateVersion: 1, Image: "farpool/dataplane:old"},
		}
		s.NodePods[name] = &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID("pod-" + name)},
			Spec:       corev1.PodSpec{NodeName: "worker"},
			Status:     corev1.PodStatus{Phase: corev1.PodRunning, PodIP: fmt.Sprintf("10.0.0.%d", i+1)},
		}
		s.answer(name, uint64(100+i), nil)
	}
	return s
}

// answer makes a node's agent say which life it lives and which map it holds.
func (s *scene) answer(name string, incarnation uint64, held *farpoolv1alpha1.ShardMap) {
	facts := s.memoryNode(name)
	facts.Map = held
	s.Agents[types.UID("pod-"+name)] = agent.Observation{State: agent.Connected, Facts: &farpoolv1alpha1.Facts{
		PoolUid: "uid", Role: farpoolv1alpha1.Role_ROLE_MEMORY_NODE, Name: name, Incarnation: incarnation, Epoch: held.GetEpoch(), Ready: held != nil,
		MemoryNode: facts,
	}}
}

// memoryNode is what an agent says of its memory, in a pool of its protocol.
func (s *scene) memoryNode(name string) *farpoolv1alpha1.MemoryNodeFacts {
	facts := &farpoolv1alpha1.MemoryNodeFacts{Endpoint: name + ":7400", MemoryBytes: 256 << 20, MemoryFresh: true}
	switch s.Pool.Spec.Index.Protocol {
	case v1alpha1.ProtocolRACE:
		facts.Shape = &farpoolv1alpha1.MemoryNodeFacts_Race{Race: &farpoolv1alpha1.RaceGeometry{Groups: 1000}}
	case v1alpha1.ProtocolOutback:
		facts.Shape = &farpoolv1alpha1.MemoryNodeFacts_Outback{Outback: &farpoolv1alpha1.OutbackGeometry{Buckets: 1000}}
	default:
		facts.LockRegion = &farpoolv1alpha1.LockRegion{Placement: farpoolv1alpha1.LockRegion_PLACEMENT_HOST_MEMORY, Bytes: 8, Locks: 64, RowsPerLock: 16}
		facts.Shape = &farpoolv1alpha1.MemoryNodeFacts_Rcuckoo{Rcuckoo: &farpoolv1alpha1.RCuckooGeometry{EntryBytes: 16, EntriesPerRow: 8, RowsPerLock: 16, Rows: 1000}}
	}
	return facts
}

// withShard gives the pool a compute shard that is ready.
func (s *scene) withShard() {
	s.Pool.Spec.Compute = &v1alpha1.ComputeSpec{Pools: []v1alpha1.ComputePool{{Name: "shards", Replicas: 1, Workers: 1}}}
	s.Deployments = map[string]*appsv1.Deployment{"cache-shards": {
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cache-shards", UID: "deployment", Generation: 1},
		Spec:       appsv1.DeploymentSpec{Replicas: ptr.To(int32(1))},
		Status:     appsv1.DeploymentStatus{ObservedGeneration: 1, Replicas: 1, UpdatedReplicas: 1, ReadyReplicas: 1, AvailableReplicas: 1},
	}}
}

func (s *scene) silence(name string) {
	observation := s.Agents[types.UID("pod-"+name)]
	observation.State, observation.Error = agent.Unreachable, "silent"
	s.Agents[types.UID("pod-"+name)] = observation
}

func (s *scene) decide(t *testing.T) *decision {
	t.Helper()
	return s.decideWith(t, func(*Settings) {})
}

func (s *scene) decideWith(t *testing.T, change func(*Settings)) *decision {
	t.Helper()
	d := &decision{}
	settings := Settings{Image: "registry:5000/farpool/dataplane:new", Namespace: "farpool-system", SecretNamespace: "farpool-system", SharedMemoryPaths: DefaultSharedMemoryPaths, AgentAddress: func(pod *corev1.Pod) string { return pod.Status.PodIP + ":7401" }}
	change(&settings)
	plan, err := Decide(Input{Snapshot: s.Snapshot, Now: s.now, Random: seeded(), Settings: settings})
	if err != nil {
		t.Fatal(err)
	}
	d.Plan = *plan
	return d
}

// seeded is the same endless randomness each time.
func seeded() io.Reader { return rand.NewChaCha8([32]byte{1}) }

// secrets of a namespace: the operator's own, or the pool's.
func (s *scene) secrets(namespace string) map[string]*corev1.Secret {
	if namespace == "farpool-system" {
		return s.Kept
	}
	return s.Secrets
}

// carryOut does to the scene what a plan says.
func (s *scene) carryOut(t *testing.T, plan *Plan) {
	t.Helper()
	for _, object := range plan.Apply {
		switch object := object.(type) {
		case *corev1ac.SecretApplyConfiguration:
			s.secrets(*object.Namespace)[*object.Name] = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: *object.Name, ResourceVersion: "1"}, Data: object.Data}
		}
	}
	if spec := planned(plan); spec != nil && (len(s.ShardMaps) == 0 || s.ShardMaps[len(s.ShardMaps)-1].Spec.Epoch < spec.Epoch) {
		s.ShardMaps = append(s.ShardMaps, &v1alpha1.ShardMap{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.ShardMapName("cache", spec.Epoch)}, Spec: *spec})
	}
	for _, publication := range plan.Publish {
		message, err := shardmap.ToMessage(publication.Map)
		if err != nil {
			t.Fatal(err)
		}
		s.answer(publication.Node, s.Agents[publication.Pod].Facts.GetIncarnation(), message)
	}
	s.Pool.Status = plan.Status.Pool
	for name, status := range plan.Status.Nodes {
		s.Nodes[name].Status = status
	}
}

// planned is the map that a plan makes, or nil.
func planned(plan *Plan) *v1alpha1.ShardMapSpec {
	for _, publication := range plan.Publish {
		return publication.Map
	}
	return nil
}

func published(t *testing.T, plan *decision) *v1alpha1.ShardMapSpec {
	t.Helper()
	spec := planned(&plan.Plan)
	if spec == nil {
		t.Fatalf("nothing is published: %v", plan.Status.Pool.Conditions)
	}
	return spec
}

func wantCondition(t *testing.T, plan *decision, kind string, status metav1.ConditionStatus, reason string) {
	t.Helper()
	c := meta.FindStatusCondition(plan.Status.Pool.Conditions, kind)
	if c == nil || c.Status != status || c.Reason != reason {
		t.Errorf("condition %s is %+v, want %s %s", kind, c, status, reason)
	}
}

func TestFirstEpochNeedsEveryNode(t *testing.T) {
	s := newScene(3, v1alpha1.DataPolicyCache)
	s.silence("cache-memory-1")
	plan := s.decide(t)
	if planned(&plan.Plan) != nil {
		t.Error("a map without one of the nodes")
	}
	wantCondition(t, plan, v1alpha1.ConditionProgressing, metav1.ConditionTrue, v1alpha1.ReasonMemoryNodesPending)
	wantCondition(t, plan, v1alpha1.ConditionDegraded, metav1.ConditionFalse, v1alpha1.ReasonHealthy)

	s.answer("cache-memory-1", 101, nil)
	plan = s.decide(t)
	first := published(t, plan)
	if first.Epoch != 1 || len(plan.Publish) != 3 || len(first.Tables) != 3 {
		t.Errorf("epoch %d to %d nodes with %d tables", first.Epoch, len(plan.Publish), len(first.Tables))
	}
	for _, entry := range first.Nodes {
		if entry.State != v1alpha1.NodeServing {
			t.Errorf("%s is %s", entry.Name, entry.State)
		}
	}
}

// A memory node that takes up a large memory says how far it is, and nothing is decided by what it does not know yet.
func TestAMemoryNodeThatStarts(t *testing.T) {
	s := newScene(2, v1alpha1.DataPolicyStore)
	s.carryOut(t, &s.decide(t).Plan)
	before := s.Agents["pod-cache-memory-0"].Facts
	for _, facts := range []*farpoolv1alpha1.Facts{nil, before} {
		s.Agents["pod-cache-memory-0"] = agent.Observation{State: agent.Starting, Error: "starts: formats its table, 35 % of 256 bytes", Facts: facts}
		plan := s.decide(t)
		if c := meta.FindStatusCondition(plan.Status.Nodes["cache-memory-0"].Conditions, v1alpha1.ConditionReady); c.Status != metav1.ConditionFalse ||
			c.Reason != v1alpha1.ReasonStarting || !strings.Contains(c.Message, "formats its table, 35 %") {
			t.Errorf("%+v", c)
		}
		if planned(&plan.Plan) != nil || len(plan.Delete) != 0 {
			t.Errorf("%d publications, %d deletions", len(plan.Publish), len(plan.Delete))
		}
	}
}

// A RACE pool has nodes with RACE tables alone, and an RCuckoo pool none.
func TestRACE(t *testing.T) {
	s := newScene(2, v1alpha1.DataPolicyCache)
	s.Pool.Spec.Index = v1alpha1.IndexSpec{Protocol: v1alpha1.ProtocolRACE}
	speak := func(name string, race *farpoolv1alpha1.RaceGeometry) {
		facts := s.Agents[types.UID("pod-"+name)].Facts.MemoryNode
		facts.LockRegion, facts.Shape = nil, &farpoolv1alpha1.MemoryNodeFacts_Race{Race: race}
	}
	speak("cache-memory-0", &farpoolv1alpha1.RaceGeometry{Groups: 1000})
	plan := s.decide(t)
	if planned(&plan.Plan) != nil {
		t.Error("a map with a node of another protocol")
	}
	wantCondition(t, plan, v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonGeometryMismatch)

	speak("cache-memory-1", &farpoolv1alpha1.RaceGeometry{Groups: 2000})
	plan = s.decide(t)
	first := published(t, plan)
	for i, entry := range first.Nodes {
		if entry.RACE == nil || entry.RACE.Groups != int64(1000*(i+1)) || entry.RCuckoo != nil || entry.LockRegion != nil {
			t.Errorf("%+v", entry)
		}
	}
	s.Pool.Spec.Index = v1alpha1.IndexSpec{Protocol: v1alpha1.ProtocolRCuckoo, RCuckoo: v1alpha1.RCuckooSpec{EntryBytes: 16, EntriesPerRow: 8, RowsPerLock: 16}}
	if plan = s.decide(t); planned(&plan.Plan) != nil {
		t.Error("an RCuckoo map of RACE nodes")
	}
}

// An Outback pool has nodes with Outback tables alone; their entries have no lock region, and their map asks for no splits.
func TestOutback(t *testing.T) {
	s := newScene(2, v1alpha1.DataPolicyCache)
	s.Pool.Spec.Index = v1alpha1.IndexSpec{Protocol: v1alpha1.ProtocolOutback}
	speak := func(name string, buckets uint64) {
		facts := s.Agents[types.UID("pod-"+name)].Facts.MemoryNode
		facts.LockRegion, facts.Shape = nil, &farpoolv1alpha1.MemoryNodeFacts_Outback{Outback: &farpoolv1alpha1.OutbackGeometry{Buckets: buckets}}
	}
	speak("cache-memory-0", 1000)
	plan := s.decide(t)
	if planned(&plan.Plan) != nil {
		t.Error("a map with a node of another protocol")
	}
	wantCondition(t, plan, v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonGeometryMismatch)

	speak("cache-memory-1", 2000)
	first := published(t, s.decide(t))
	for i, entry := range first.Nodes {
		if entry.Outback == nil || entry.Outback.Buckets != int64(1000*(i+1)) || entry.RACE != nil || entry.RCuckoo != nil || entry.LockRegion != nil {
			t.Errorf("%+v", entry)
		}
	}
	if first.LeastTables != 0 {
		t.Errorf("the map asks for %d tables", first.LeastTables)
	}
}

// A pool whose memory nodes execute operations is told to say how many processors they need, once, and serves all the same.
func TestMemoryNodesThatExecuteNeedProcessors(t *testing.T) {
	cpu := func(quantity string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(quantity)}
	}
	for name, c := range map[string]struct {
		protocol  string
		resources *v1alpha1.Resources
		workers   int32
		says      string
	}{
		"nothing":        {v1alpha1.ProtocolOutback, nil, 0, "(memory gets 500m for each)"},
		"two workers":    {v1alpha1.ProtocolOutback, &v1alpha1.Resources{}, 2, "(memory gets 1000m for each)"},
		"none":           {v1alpha1.ProtocolOutback, &v1alpha1.Resources{Requests: cpu("0"), Limits: cpu("2")}, 0, "(memory requests none)"},
		"a limit of 0":   {v1alpha1.ProtocolOutback, &v1alpha1.Resources{Limits: cpu("0")}, 0, "(memory gets 500m for each)"},
		"a request":      {v1alpha1.ProtocolOutback, &v1alpha1.Resources{Requests: cpu("200m")}, 0, ""},
		"a limit":        {v1alpha1.ProtocolOutback, &v1alpha1.Resources{Limits: cpu("2")}, 0, ""},
		"other protocol": {v1alpha1.ProtocolRACE, nil, 0, ""},
	} {
		s := newScene(2, v1alpha1.DataPolicyCache)
		s.Pool.Spec.Index = v1alpha1.IndexSpec{Protocol: c.protocol}
		s.Pool.Spec.Memory.Pools[0].Resources, s.Pool.Spec.Memory.Pools[0].Workers = c.resources, c.workers
		// One without memory nodes needs none.
		s.Pool.Spec.Memory.Pools = slices.Insert(s.Pool.Spec.Memory.Pools, 0, entryNamed("empty", 0, "256Mi"))
		for look, events := range []int{1, 0} {
			d := s.decide(t)
			reason := v1alpha1.ReasonAccepted
			if c.says != "" {
				reason = v1alpha1.ReasonCPURequestMissing
			} else {
				events = 0
			}
			wantCondition(t, d, v1alpha1.ConditionSpecValid, metav1.ConditionTrue, reason)
			if message := meta.FindStatusCondition(d.Status.Pool.Conditions, v1alpha1.ConditionSpecValid).Message; !strings.Contains(message, c.says) ||
				strings.Contains(message, "memory nodes of Outback") != (c.says != "") {
				t.Errorf("%s: %s", name, message)
			}
			told := 0
			for _, event := range d.Status.Events {
				if event.Reason == v1alpha1.ReasonCPURequestMissing && event.Type == corev1.EventTypeWarning && event.Regarding.GetName() == "cache" {
					told++
				}
			}
			if told != events {
				t.Errorf("%s, look %d: told %d times", name, look, told)
			}
			s.Pool.Status = d.Status.Pool
		}
	}
}

// Whatever remembers an epoch, a later one is used: by the status, where neither an object nor a node knows of it any more. All nodes have
// begun anew then, and what they held is lost.
func TestEpochsAreNeverUsedAgain(t *testing.T) {
	for policy, want := range map[v1alpha1.DataPolicy]v1alpha1.NodeState{v1alpha1.DataPolicyCache: v1alpha1.NodeServing, v1alpha1.DataPolicyStore: v1alpha1.NodeStopped} {
		s := newScene(2, policy)
		s.carryOut(t, &s.decide(t).Plan)
		s.ShardMaps = nil
		s.Pool.Status.ShardMap = &v1alpha1.ShardMapReference{Name: "cache-0000000009", Epoch: 9}
		s.answer("cache-memory-0", 200, nil)
		s.answer("cache-memory-1", 201, nil)
		next := published(t, s.decide(t))
		if next.Epoch != 10 || next.Nodes[0].State != want || next.Nodes[1].State != want {
			t.Errorf("%s: epoch %d, nodes %s and %s", policy, next.Epoch, next.Nodes[0].State, next.Nodes[1].State)
		}
	}
}

func TestMapThatIsGoneIsMissed(t *testing.T) {
	s := newScene(2, v1alpha1.DataPolicyStore)
	s.carryOut(t, &s.decide(t).Plan)
	s.ShardMaps = nil
	s.silence("cache-memory-0")
	s.silence("cache-memory-1")
	plan := s.decide(t)
	if planned(&plan.Plan) != nil {
		t.Error("something is published")
	}
	wantCondition(t, plan, v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonMapMissing)
}

// The status names a map that could not be made, and the spec no longer asks for a memory node that has never had a pod: no person could bring that one back.
func TestNothingWaitsForAMemoryNodeThatNeverRan(t *testing.T) {
	for what, c := range map[string]struct {
		change func(*scene)
		waits  bool
	}{
		"it has no pod": {func(*scene) {}, false},
		"it has a pod, which does not answer": {func(s *scene) {
			pod := s.NodePods["cache-memory-1"].DeepCopy()
			pod.Name, pod.UID = "cache-memory-2", "another"
			s.NodePods[pod.Name] = pod
		}, true},
		"it had a life in a map, and no pod":    {func(s *scene) { s.Nodes["cache-memory-2"].Status.Incarnation = "7" }, true},
		"it followed a map, and has no pod":     {func(s *scene) { s.Nodes["cache-memory-2"].Status.Epoch = 1 }, true},
		"it has no pod, and is asked for again": {func(s *scene) { s.Pool.Spec.Memory.Pools[0].Replicas = 3 }, true},
	} {
		s := newScene(2, v1alpha1.DataPolicyStore)
		s.carryOut(t, &s.decide(t).Plan)
		s.ShardMaps = nil
		s.Pool.Status.ShardMap = &v1alpha1.ShardMapReference{Name: "cache-0000000001", Epoch: 1}
		s.answer("cache-memory-0", 200, nil)
		s.answer("cache-memory-1", 201, nil)
		s.Nodes["cache-memory-2"] = &v1alpha1.MemoryNode{ObjectMeta: metav1.ObjectMeta{Name: "cache-memory-2", UID: "third"}}
		c.change(s)
		if made := planned(&s.decide(t).Plan); (made == nil) != c.waits {
			t.Errorf("%s: the map is %v", what, made)
		}
	}
}

func TestLaterEpochOfNodesIsAdoptedFirst(t *testing.T) {
	s := newScene(2, v1alpha1.DataPolicyStore)
	s.carryOut(t, &s.decide(t).Plan)
	held, err := shardmap.ToMessage(&s.ShardMaps[0].Spec)
	if err != nil {
		t.Fatal(err)
	}
	held.Epoch = 5
	s.answer("cache-memory-0", 100, held)
	// One node also lives another life. That waits until the epoch is adopted.
	s.answer("cache-memory-1", 300, nil)
	plan := s.decide(t)
	if len(plan.Publish) != 0 || plan.Status.Pool.ShardMap.Epoch != 5 || plan.Events[0].Reason != v1alpha1.ReasonEpochAdopted {
		t.Fatalf("%d publications, epoch %d, events %v", len(plan.Publish), plan.Status.Pool.ShardMap.Epoch, plan.Events)
	}
	adopted, err := shardmap.FromMessage("cache", held)
	if err != nil {
		t.Fatal(err)
	}
	s.ShardMaps = append(s.ShardMaps, &v1alpha1.ShardMap{ObjectMeta: metav1.ObjectMeta{Name: "cache-0000000005"}, Spec: *adopted})
	next := published(t, s.decide(t))
	if next.Epoch != 6 || next.Nodes[1].State != v1alpha1.NodeStopped || next.Nodes[1].Incarnation != "300" {
		t.Errorf("epoch %d, %+v", next.Epoch, next.Nodes[1])
	}
}

func TestMapThatNoOperatorWritesIsNotAdopted(t *testing.T) {
	s := newScene(1, v1alpha1.DataPolicyCache)
	s.answer("cache-memory-0", 100, &farpoolv1alpha1.ShardMap{PoolUid: "uid", Epoch: 3, DirectoryDepth: 9})
	plan := s.decide(t)
	if planned(&plan.Plan) != nil {
		t.Error("something is published")
	}
	// The pool has a map somewhere, so that no hash secret may be made.
	wantCondition(t, plan, v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonSecretMissing)
	s.Kept["cache-uid-secret"] = &corev1.Secret{Data: map[string][]byte{"pool-secret": bytes.Repeat([]byte{1}, 16)}}
	wantCondition(t, s.decide(t), v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonEpochConflict)
}

func TestAcceptanceIsOfOneLifeOnly(t *testing.T) {
	s := newScene(1, v1alpha1.DataPolicyStore)
	s.carryOut(t, &s.decide(t).Plan)
	s.Nodes["cache-memory-0"].Annotations = map[string]string{v1alpha1.AnnotationAcceptDataLoss: "200"}
	s.answer("cache-memory-0", 200, nil)
	if entry := published(t, s.decide(t)).Nodes[0]; entry.State != v1alpha1.NodeServing {
		t.Errorf("a loss accepted beforehand: %s", entry.State)
	}
	s.answer("cache-memory-0", 201, nil)
	if entry := published(t, s.decide(t)).Nodes[0]; entry.State != v1alpha1.NodeStopped {
		t.Errorf("the loss of another life: %s", entry.State)
	}
}

// A loss is announced when the status changes, so a crash between map and status cannot swallow it.
func TestLossIsToldByTheStatus(t *testing.T) {
	s := newScene(1, v1alpha1.DataPolicyCache)
	s.carryOut(t, &s.decide(t).Plan)
	s.answer("cache-memory-0", 200, nil)
	plan := s.decide(t)
	// The operator dies after it has made the map and before it has written a status.
	pool, node := s.Pool.Status, s.Nodes["cache-memory-0"].Status
	s.carryOut(t, &plan.Plan)
	s.Pool.Status, s.Nodes["cache-memory-0"].Status = pool, node
	plan = s.decide(t)
	if planned(&plan.Plan) != nil {
		t.Error("published again")
	}
	if len(plan.Status.Events) != 2 || plan.Status.Nodes["cache-memory-0"].LostIncarnation != "100" {
		t.Errorf("events %v, status %+v", plan.Status.Events, plan.Status.Nodes["cache-memory-0"])
	}
	s.carryOut(t, &plan.Plan)
	if plan = s.decide(t); len(plan.Status.Events) != 0 {
		t.Errorf("told again: %v", plan.Status.Events)
	}
}

func TestCertificatesAreRenewedInTime(t *testing.T) {
	s := newScene(1, v1alpha1.DataPolicyCache)
	s.Pool.Spec.Security.RESP = &v1alpha1.RESPSpec{TLS: v1alpha1.TLSSpec{Mode: v1alpha1.TLSGenerated}}
	plan := s.decide(t)
	if plan.RequeueAfter <= 44*24*time.Hour || plan.RequeueAfter > 46*24*time.Hour {
		t.Errorf("looked at again after %s", plan.RequeueAfter)
	}
	s.carryOut(t, &plan.Plan)
	before, kept := maps.Clone(s.Secrets), maps.Clone(s.Kept)
	s.now = start.Add(plan.RequeueAfter)
	s.carryOut(t, &s.decide(t).Plan)
	for _, name := range []string{"cache-node-tls", "cache-client-tls", "cache-resp-tls"} {
		if bytes.Equal(before[name].Data["tls.crt"], s.Secrets[name].Data["tls.crt"]) {
			t.Errorf("%s was not renewed", name)
		}
	}
	kept["cache-password"], s.Kept["cache-password"] = before["cache-password"], s.Secrets["cache-password"]
	for _, name := range []string{"cache-uid-ca", "cache-password", "cache-uid-secret"} {
		for key, value := range kept[name].Data {
			if !bytes.Equal(value, s.Kept[name].Data[key]) {
				t.Errorf("%s has changed", name)
			}
		}
	}

	s.Pool.Spec.Management = v1alpha1.ManagementPaused
	s.now = s.now.Add(60 * 24 * time.Hour)
	paused := map[string]*corev1.Secret{}
	for name, secret := range s.Secrets {
		paused[name] = secret
	}
	delete(s.Secrets, "cache-resp-tls")
	plan = s.decide(t)
	if len(plan.Apply) != 3 || len(plan.Delete)+len(plan.Publish) != 0 {
		t.Errorf("of a paused pool, 3 Secrets with certificates are renewed and nothing is made or changed: %v, %v", plan.Apply, plan.Delete)
	}
	if plan.Status.CertificatesOverdue.After(s.now) {
		t.Errorf("at %v, certificates of 90 days are overdue at %v", s.now, plan.Status.CertificatesOverdue)
	}
	s.carryOut(t, &plan.Plan)
	for _, name := range []string{"cache-node-tls", "cache-client-tls"} {
		if bytes.Equal(paused[name].Data["tls.crt"], s.Secrets[name].Data["tls.crt"]) {
			t.Errorf("%s of a paused pool was not renewed", name)
		}
	}
	if plan := s.decide(t); plan.Status.CertificatesOverdue.Before(s.now.Add(59 * 24 * time.Hour)) {
		t.Errorf("at %v, certificates that were just renewed are overdue at %v", s.now, plan.Status.CertificatesOverdue)
	}
}

func TestADecisionIsReplayedFromItsSeed(t *testing.T) {
	var texts [2]string
	for i := range texts {
		s := newScene(2, v1alpha1.DataPolicyCache)
		s.Pool.Spec.Security.RESP = &v1alpha1.RESPSpec{TLS: v1alpha1.TLSSpec{Mode: v1alpha1.TLSGenerated}}
		raw, err := json.Marshal(s.decide(t).Apply)
		if err != nil {
			t.Fatal(err)
		}
		texts[i] = string(raw)
	}
	if texts[0] != texts[1] {
		t.Error("the same snapshot, time and randomness made different secrets")
	}
}

func TestDamagedAuthorityIsReportedAndTheRestGoesOn(t *testing.T) {
	s := newScene(1, v1alpha1.DataPolicyCache)
	s.carryOut(t, &s.decide(t).Plan)
	s.Kept["cache-uid-ca"] = &corev1.Secret{Data: map[string][]byte{"tls.crt": []byte("x")}}
	plan := s.decide(t)
	wantCondition(t, plan, v1alpha1.ConditionCertificatesReady, metav1.ConditionFalse, v1alpha1.ReasonIssueFailed)
	for _, object := range plan.Apply {
		if secret, ok := object.(*corev1ac.SecretApplyConfiguration); ok && (*secret.Name == "cache-uid-ca" || *secret.Name == "cache-node-tls") {
			t.Errorf("%s is written over", *secret.Name)
		}
	}
	if plan.Authority != nil || len(plan.Targets) != 0 {
		t.Error("streams without an authority")
	}
}

func TestPodsAreMadeFromTheVersionOfTheirPool(t *testing.T) {
	s := newScene(2, v1alpha1.DataPolicyCache)
	delete(s.NodePods, "cache-memory-1")
	s.Pool.Spec.Compute = &v1alpha1.ComputeSpec{Pools: []v1alpha1.ComputePool{{Name: "shards", Replicas: 1, Workers: 1}}}
	plan := s.decide(t)
	pods := 0
	for _, object := range plan.Apply {
		if pod, ok := object.(*corev1ac.PodApplyConfiguration); ok {
			pods++
			if *pod.Name != "cache-memory-1" || *pod.Spec.Containers[0].Image != "farpool/dataplane:old" {
				t.Errorf("pod %s of image %s", *pod.Name, *pod.Spec.Containers[0].Image)
			}
		}
	}
	if pods != 1 || plan.Status.Pool.Template.Image != "farpool/dataplane:old" {
		t.Errorf("%d pods; template %+v", pods, plan.Status.Pool.Template)
	}
	s.Pool.Status.Template = &v1alpha1.TemplateStatus{Version: 99, Image: "x"}
	plan = s.decide(t)
	wantCondition(t, plan, v1alpha1.ConditionSpecValid, metav1.ConditionFalse, v1alpha1.ReasonUnsupported)
	if len(plan.Apply)+len(plan.Delete) != 0 {
		t.Error("a pool of a newer operator is changed")
	}
}

func TestImageOf(t *testing.T) {
	for _, c := range []struct{ image, version, want string }{
		{"farpool/dataplane:v1", "", "farpool/dataplane:v1"},
		{"farpool/dataplane:v1", "v2", "farpool/dataplane:v2"},
		{"farpool/dataplane", "v2", "farpool/dataplane:v2"},
		{"dataplane", "v2", "dataplane:v2"},
		{"registry:5000/farpool/dataplane", "v2", "registry:5000/farpool/dataplane:v2"},
		{"registry:5000/farpool/dataplane:v1@sha256:aa", "v2", "registry:5000/farpool/dataplane:v2"},
	} {
		if got := imageOf(c.image, c.version); got != c.want {
			t.Errorf("%s at %q: %s, want %s", c.image, c.version, got, c.want)
		}
	}
}

func TestDecidingTwiceGivesTheSame(t *testing.T) {
	s := newScene(3, v1alpha1.DataPolicyCache)
	s.carryOut(t, &s.decide(t).Plan)
	s.carryOut(t, &s.decide(t).Plan)
	s.now = s.now.Add(time.Hour)
	plan := s.decide(t)
	if len(plan.Publish)+len(plan.Delete)+len(plan.Events)+len(plan.Status.Events) != 0 {
		t.Errorf("an idle pool: %d publications, %d deletions, events %v", len(plan.Publish), len(plan.Delete), plan.Events)
	}
	if !equalConditions(plan.Status.Pool.Conditions, s.Pool.Status.Conditions) {
		t.Errorf("conditions moved:\n%v\n%v", s.Pool.Status.Conditions, plan.Status.Pool.Conditions)
	}
}

func equalConditions(a, b []metav1.Condition) bool {
	return fmt.Sprint(a) == fmt.Sprint(b)
}

// A memory node without RDMA says what is missing, and how it is added; one that lacks something else does not speak of RDMA.
func TestWhatLacksRDMA(t *testing.T) {
	pending := func(message string) corev1.PodStatus {
		return corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: message}}}
	}
	ended := func(message string) corev1.PodStatus {
		return corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{
			State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Message: message}}}}}
	}
	plugin := &v1alpha1.AttachmentSpec{Type: v1alpha1.AttachmentSharedDevicePlugin, SharedDevicePlugin: &v1alpha1.SharedDevicePluginAttachment{ResourceName: "rdma/hca"}}
	multus := &v1alpha1.AttachmentSpec{Type: v1alpha1.AttachmentSharedDevicePlugin, SharedDevicePlugin: &v1alpha1.SharedDevicePluginAttachment{ResourceName: "rdma/hca", Network: "roce"}}
	claim := &v1alpha1.AttachmentSpec{Type: v1alpha1.AttachmentDRA, DRA: &v1alpha1.DRAAttachment{ResourceClaimTemplateName: "one-nic"}}
	for name, c := range map[string]struct {
		attachment   *v1alpha1.AttachmentSpec
		pod          corev1.PodStatus
		reason, says string
	}{
		"no resource":       {plugin, pending("0/3 nodes are available: 3 Insufficient rdma/hca."), v1alpha1.ReasonRDMAMissing, "install the device plugin that offers it"},
		"no memory":         {plugin, pending("0/3 nodes are available: 3 Insufficient memory."), v1alpha1.ReasonNodeUnschedulable, "3 Insufficient memory"},
		"no claim":          {claim, pending("0/3 nodes are available: 3 cannot allocate all claims."), v1alpha1.ReasonRDMAMissing, "ResourceClaimTemplate one-nic exists in namespace shop"},
		"no claimed memory": {claim, pending("0/3 nodes are available: 3 Insufficient memory."), v1alpha1.ReasonNodeUnschedulable, "3 Insufficient memory"},
		"TCP":               {nil, pending("0/3 nodes are available: 3 Insufficient rdma/hca."), v1alpha1.ReasonNodeUnschedulable, "Insufficient rdma/hca"},
		"no device":         {plugin, ended("farpool-memory-node: --wire verbs: there is no RDMA device here"), v1alpha1.ReasonRDMAMissing, "there is no RDMA device here"},
		"no network":        {plugin, ended("farpool-memory-node: --rdma-interface: there is no interface rdma0"), v1alpha1.ReasonRDMAMissing, "kubectl -n shop debug cache-memory-0 -it --copy-to=farpool-doctor --container=memory-node -- farpool-doctor"},
		"no Multus":         {multus, ended("farpool-memory-node: --rdma-interface: there is no interface rdma0 with an IP address here, only eth0"), v1alpha1.ReasonRDMAMissing, "install Multus on its Kubernetes node"},
		"no leave to lock":  {plugin, ended("farpool-memory-node: --wire verbs: registering 1 bytes of memory: Cannot allocate memory"), v1alpha1.ReasonRDMAMissing, "Cannot allocate memory"},
		"no device memory":  {plugin, ended("farpool-memory-node: its locks have to lie in the NIC's memory, and cannot: rxe0 has no memory of its own to lend"), v1alpha1.ReasonDeviceMemoryMissing, "DeviceMemoryPreferred"},
		"no chains":         {plugin, ended("farpool-memory-node: this wire cannot serve the protocol RACE, which needs chains of at least 8 (it has 4): use another wire, or another protocol"), v1alpha1.ReasonWireUnsuitable, "chains of at least 8 (it has 4)"},
		"another end":       {plugin, ended("out of memory"), v1alpha1.ReasonNotServing, "out of memory"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(1, v1alpha1.DataPolicyCache)
			if c.attachment != nil {
				s.Pool.Spec.Network = v1alpha1.NetworkSpec{Transport: v1alpha1.TransportRoCEv2, Attachment: c.attachment}
			}
			pod := s.NodePods["cache-memory-0"]
			pod.Status = c.pod
			delete(s.Agents, pod.UID)
			status := s.decide(t).Plan.Status
			ready := meta.FindStatusCondition(status.Nodes["cache-memory-0"].Conditions, v1alpha1.ConditionReady)
			if ready.Reason != c.reason || !strings.Contains(ready.Message, c.says) {
				t.Errorf("%s: %s", ready.Reason, ready.Message)
			}
			degraded := meta.FindStatusCondition(status.Pool.Conditions, v1alpha1.ConditionDegraded)
			for _, lacking := range []string{v1alpha1.ReasonRDMAMissing, v1alpha1.ReasonDeviceMemoryMissing, v1alpha1.ReasonWireUnsuitable} {
				if (degraded.Reason == lacking) != (c.reason == lacking) {
					t.Errorf("degraded: %s: %s", degraded.Reason, degraded.Message)
				}
			}
		})
	}
}

// A pod that is refused its network says whose name is wrong, in words that stay the same from try to try, and is looked at again though
// nothing else happens.
func TestAPodThatGetsNoNetwork(t *testing.T) {
	const event = `Failed to create pod sandbox: rpc error: code = Unknown desc = failed to setup network for sandbox "%[1]s": plugin type="multus" name="multus" failed (add): Multus: [shop/cache-memory-0/0e9a1c1e-9d5b-4f6e-8d53-3c1ab1f0a6b4]: error loading k8s delegates k8s args for %[1]s: cannot find a network-attachment-definition (roec) in namespace (shop): network-attachment-definitions.k8s.cni.cncf.io "roec" not found`
	for name, c := range map[string]struct {
		network, event string
		placed         bool
		reason         string
		says           []string
	}{
		"own namespace":     {"roec", event, true, v1alpha1.ReasonRDMAMissing, []string{"NetworkAttachmentDefinition roec exists in namespace shop", `"roec" not found`}},
		"another namespace": {"nets/roec", event, true, v1alpha1.ReasonRDMAMissing, []string{"NetworkAttachmentDefinition roec exists in namespace nets", "-n nets get"}},
		"not refused yet":   {"roec", "", true, v1alpha1.ReasonPodPending, nil},
		"no place yet":      {"roec", "", false, v1alpha1.ReasonPodPending, nil},
		"no network":        {"", "", true, v1alpha1.ReasonPodPending, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(1, v1alpha1.DataPolicyCache)
			s.Pool.Spec.Network = v1alpha1.NetworkSpec{Transport: v1alpha1.TransportRoCEv2, Attachment: &v1alpha1.AttachmentSpec{Type: v1alpha1.AttachmentSharedDevicePlugin,
				SharedDevicePlugin: &v1alpha1.SharedDevicePluginAttachment{ResourceName: "rdma/hca", Network: c.network}}}
			pod := s.NodePods["cache-memory-0"]
			pod.Status, pod.Spec.NodeName = corev1.PodStatus{Phase: corev1.PodPending}, map[bool]string{true: "worker"}[c.placed]
			delete(s.Agents, pod.UID)
			var before string
			for try, sandbox := range []string{strings.Repeat("5b", 32), strings.Repeat("c0", 32)} {
				if c.event != "" {
					s.Unattached = map[string]string{"cache-memory-0": fmt.Sprintf(c.event, sandbox)}
				}
				plan := s.decide(t)
				ready := meta.FindStatusCondition(plan.Status.Nodes["cache-memory-0"].Conditions, v1alpha1.ConditionReady)
				if ready.Reason != c.reason || before != "" && ready.Message != before {
					t.Errorf("%s: %s; before: %s", ready.Reason, ready.Message, before)
				}
				before = ready.Message
				for _, words := range c.says {
					if !strings.Contains(ready.Message, words) {
						t.Errorf("no %q in %s", words, ready.Message)
					}
				}
				degraded := meta.FindStatusCondition(plan.Status.Pool.Conditions, v1alpha1.ConditionDegraded)
				if (degraded.Reason == v1alpha1.ReasonRDMAMissing) != (c.reason == v1alpha1.ReasonRDMAMissing) {
					t.Errorf("degraded: %s: %s", degraded.Reason, degraded.Message)
				}
				told := 0
				if c.reason == v1alpha1.ReasonRDMAMissing && try == 0 {
					told = 2 // once of the pool, and once of the memory node
				}
				if events := slices.DeleteFunc(plan.Status.Events, func(e Event) bool { return e.Reason != v1alpha1.ReasonRDMAMissing }); len(events) != told ||
					told > 0 && !strings.Contains(events[0].Note, ready.Message) {
					t.Errorf("try %d: told %v", try, events)
				}
				s.Nodes["cache-memory-0"].Status = plan.Status.Nodes["cache-memory-0"]
				if again := c.placed && c.network != ""; (plan.RequeueAfter == networkLook) != again {
					t.Errorf("looked at again after %s", plan.RequeueAfter)
				}
			}
		})
	}
}

// If a pool asks for locks in its NICs' memory, each MemoryNode says whether it has them there. Other pools say nothing about it.
func TestLocksPlaced(t *testing.T) {
	for name, c := range map[string]struct {
		asked   string
		granted farpoolv1alpha1.LockRegion_Placement
		status  metav1.ConditionStatus
		says    string
	}{
		"granted":     {v1alpha1.LocksInDeviceMemoryRequired, farpoolv1alpha1.LockRegion_PLACEMENT_DEVICE_MEMORY, metav1.ConditionTrue, "its 64 locks lie in 8 bytes of its NIC's memory"},
		"fallen back": {v1alpha1.LocksInDeviceMemoryPreferred, farpoolv1alpha1.LockRegion_PLACEMENT_HOST_MEMORY, metav1.ConditionFalse, "kubectl -n shop logs cache-memory-0"},
		"host":        {v1alpha1.LocksInHostMemory, farpoolv1alpha1.LockRegion_PLACEMENT_HOST_MEMORY, "", ""},
		"not asked":   {"", farpoolv1alpha1.LockRegion_PLACEMENT_HOST_MEMORY, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(1, v1alpha1.DataPolicyCache)
			if c.asked != "" {
				s.Pool.Spec.Locks = &v1alpha1.LocksSpec{Placement: c.asked}
			}
			s.Agents["pod-cache-memory-0"].Facts.MemoryNode.LockRegion.Placement = c.granted
			node := s.decide(t).Plan.Status.Nodes["cache-memory-0"]
			if want := map[bool]v1alpha1.LockPlacement{true: v1alpha1.LockPlacementDeviceMemory, false: v1alpha1.LockPlacementHostMemory}[c.status == metav1.ConditionTrue]; node.LockRegion.Placement != want {
				t.Errorf("its status says %s", node.LockRegion.Placement)
			}
			placed := meta.FindStatusCondition(node.Conditions, v1alpha1.ConditionLocksInDeviceMemory)
			switch {
			case placed == nil && c.status != "":
				t.Error("no condition")
			case placed != nil && (placed.Status != c.status || !strings.Contains(placed.Message, c.says)):
				t.Errorf("%s: %s", placed.Status, placed.Message)
			}
		})
	}
}

// The operator makes the pods: the right to write KVPools gives nobody another directory of a Kubernetes node.
func TestPoolsGetNoDirectoryThatTheOperatorDoesNotGive(t *testing.T) {
	for path, given := range map[string]bool{
		"/run/farpool": true, "/run/farpool/team": true, "/dev/shm/farpool": true, "/run/farpool-others": false, "/etc": false, "/run": false, "/var/lib/kubelet": false,
	} {
		s := newScene(0, v1alpha1.DataPolicyCache)
		s.Pool.Spec.Memory.Pools[0].Replicas = 1
		s.Pool.Spec.Network.SharedMemory = &v1alpha1.SharedMemory{HostPath: path}
		plan := s.decide(t)
		if given {
			if len(plan.Apply) == 0 {
				t.Errorf("%s: nothing is made", path)
			}
			continue
		}
		if len(plan.Apply) != 0 {
			t.Errorf("%s: %d objects are made", path, len(plan.Apply))
		}
		wantCondition(t, plan, v1alpha1.ConditionSpecValid, metav1.ConditionFalse, v1alpha1.ReasonUnsupported)
	}

	// Memory nodes that are there lend on: the list is of what is made from now on.
	s := newScene(1, v1alpha1.DataPolicyCache)
	s.Pool.Spec.Network.SharedMemory = &v1alpha1.SharedMemory{HostPath: "/srv/rings"}
	wantCondition(t, s.decide(t), v1alpha1.ConditionSpecValid, metav1.ConditionTrue, "Accepted")
}

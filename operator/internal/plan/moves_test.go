// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	policyv1ac "k8s.io/client-go/applyconfigurations/policy/v1"

	farpoolv1alpha1 "farpool.dev/farpool/api/gen/farpool/v1alpha1"
	"farpool.dev/farpool/api/v1alpha1"
	apiac "farpool.dev/farpool/api/v1alpha1/applyconfiguration/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/agent"
	"farpool.dev/farpool/operator/internal/shardmap"
)

// lost is where keys are that were on a memory node whose memory is gone.
const lost = "lost"

// drill is a pool with what there is around it: kubelets that run what is made, memory nodes that keep to what they promise about
// maps, and clients that move keys as the newest map has it. Where each key is, is written down for as many keys as the finest directory has
// parts, and looked at whenever a map is made and whenever anything is deleted.
type drill struct {
	*scene
	t    *testing.T
	keys []string // the node that each is on
	// By the memory node's name: the epoch that its memory has recorded, and whether its pod does not come up.
	recorded map[string]uint64
	unplaced map[string]bool
	lives    uint64
	// Which table each life of a node had: clients remember it.
	tables map[string]int32
	// mayBeginEmpty: a person gives up what the pool holds.
	mayBeginEmpty bool
	// keeps: a process begins with the map that the one before followed.
	keeps bool
	// deaf memory nodes cannot be told a map.
	deaf map[string]bool
	// outlives is how many of its effects an operator outlives that dies.
	outlives func(effects int) int
	// effectsLeft to the operator until it dies; 0: it does not. One that follows it has effectsOfALife. unheard is how often more it decides before
	// it has heard of all agents.
	effectsLeft, effectsOfALife, unheard, deaths int
	// said are the steps of ResizeOperations that the operator remembers to have told.
	said map[string]string
	// events that people were told, by kind and reason, and their notes.
	events, notes []string
	steps         int
}

func newDrill(t *testing.T, nodes int, policy v1alpha1.DataPolicy) *drill {
	t.Helper()
	return newDrillOf(t, v1alpha1.ProtocolRACE, nodes, policy)
}

func newDrillOf(t *testing.T, protocol string, nodes int, policy v1alpha1.DataPolicy) *drill {
	t.Helper()
	d := &drill{scene: newScene(0, policy), t: t, recorded: map[string]uint64{}, unplaced: map[string]bool{}, deaf: map[string]bool{}, tables: map[string]int32{}, said: map[string]string{}, lives: 100}
	d.Draining = map[string][]corev1.Taint{}
	d.Pool.Spec.Index.Protocol = protocol
	d.aim(nodes)
	d.untilSettled()
	return d
}

func (d *drill) aim(nodes int) {
	d.Pool.Spec.Memory.Pools[0].Replicas = int32(nodes)
	d.Pool.Generation++
}

// aimAt so many tables at each memory node.
func (d *drill) aimAt(tables int32) {
	d.Pool.Spec.Index.RACE = &v1alpha1.RACESpec{TablePercent: 25, Tables: 16384, LeastTables: tables}
	d.Pool.Generation++
}

func (d *drill) leastTables() int32 { return max(1, d.Pool.Spec.Index.Race().LeastTables) }

func name(ordinal int) string { return v1alpha1.MemoryNodeName("cache", "memory", int32(ordinal)) }

func (d *drill) current() *v1alpha1.ShardMapSpec {
	if len(d.ShardMaps) == 0 {
		return nil
	}
	return &d.ShardMaps[len(d.ShardMaps)-1].Spec
}

// begin a life of a node's process, over memory of its own or over that of the life before.
func (d *drill) begin(node string, warm bool) {
	uid := d.NodePods[node].UID
	facts := &farpoolv1alpha1.Facts{
		PoolUid: "uid", Role: farpoolv1alpha1.Role_ROLE_MEMORY_NODE, Name: node, Incarnation: d.lives, MemoryNode: d.memoryNode(node),
	}
	d.lives++
	facts.MemoryNode.EvenTables = uint32(max(1, d.Pool.Spec.Index.Race().LeastTables))
	if warm {
		facts.MemoryNode.EvenTables = d.Agents[uid].Facts.GetMemoryNode().GetEvenTables()
		facts.MemoryNode.MemoryFresh = d.recorded[node] == 0
		before := d.Agents[uid].Facts.GetMemoryNode()
		facts.MemoryNode.MoveFinished, facts.MemoryNode.RecordedEpoch = before.GetMoveFinished(), d.recorded[node]
		if d.keeps {
			facts.MemoryNode.Map = before.GetMap()
		}
	} else {
		d.forget(node)
	}
	d.Agents[uid] = agent.Observation{State: agent.Connected, Facts: facts}
}

// forget what a node holds.
func (d *drill) forget(node string) {
	delete(d.recorded, node)
	for key, at := range d.keys {
		if at == node {
			d.keys[key] = lost
		}
	}
}

func (d *drill) update(node string, change func(*farpoolv1alpha1.Facts)) {
	uid := d.NodePods[node].UID
	observed := d.Agents[uid]
	observed.Facts = proto.CloneOf(observed.Facts)
	change(observed.Facts)
	d.Agents[uid] = observed
}

func (d *drill) hear(node string) {
	if pod := d.NodePods[node]; pod != nil && d.Agents[pod.UID].Facts != nil {
		observed := d.Agents[pod.UID]
		observed.State, observed.Error = agent.Connected, ""
		d.Agents[pod.UID] = observed
	}
}

// tell a node a map, as its agent would take it.
func (d *drill) tell(publication Publication) bool {
	pod := d.NodePods[publication.Node]
	if pod == nil || pod.UID != publication.Pod || d.deaf[publication.Node] {
		return false
	}
	before := d.recorded[publication.Node]
	if epoch := uint64(publication.Map.Epoch); epoch < d.recorded[publication.Node] {
		observed := d.Agents[pod.UID]
		observed.RefusedEpoch = epoch
		d.Agents[pod.UID] = observed
		return true
	}
	message, err := shardmap.ToMessage(publication.Map)
	if err != nil {
		d.t.Fatal(err)
	}
	d.recorded[publication.Node] = message.GetEpoch()
	d.update(publication.Node, func(facts *farpoolv1alpha1.Facts) {
		facts.Epoch, facts.MemoryNode.Map, facts.Ready = message.GetEpoch(), message, false
		facts.MemoryNode.RecordedEpoch = facts.Epoch
		for _, entry := range message.GetNodes() {
			facts.Ready = facts.Ready || entry.GetIncarnation() == facts.GetIncarnation() && entry.GetState() == farpoolv1alpha1.MemoryNodeEntry_STATE_SERVING
		}
	})
	return d.recorded[publication.Node] != before
}

// step has the operator decide once, and what it wants carried out. It may die before it has told anybody its map, or, where outlives says how
// many of its effects it outlives, in the middle of these.
func (d *drill) step(dies bool) *decision {
	d.t.Helper()
	d.now = d.now.Add(time.Second)
	d.look()
	heard := d.Agents
	d.Agents = d.heard()
	plan := d.decide(d.t)
	if d.steps++; d.steps%8 == 0 {
		if once, twice := d.outline(plan), d.outline(d.decide(d.t)); once != twice {
			d.t.Fatalf("deciding twice gives two plans:\n%s\n%s", once, twice)
		}
	}
	d.noneIsEvictable(plan)
	d.eventsAreKept(plan)
	d.Agents = heard
	effects := d.effects(plan)
	most := len(effects)
	if dies && d.outlives != nil {
		most = d.outlives(most)
	} else if dies {
		most = len(plan.Apply) + len(plan.Delete)
	}
	for _, effect := range effects[:most] {
		if effect() && d.dies() {
			return plan
		}
	}
	if dies {
		clear(d.said)
	}
	return plan
}

// eventsAreKept with the statuses that announce them: while such a status is left for later, the event is decided again though all others are written, and once it is
// written, the event is not.
func (d *drill) eventsAreKept(plan *decision) {
	d.t.Helper()
	if plan.Status.Unsettled {
		return
	}
	// A map is an object before a status names it.
	maps := d.ShardMaps
	defer func() { d.ShardMaps = maps }()
	for _, object := range plan.Apply {
		if made, is := object.(*apiac.ShardMapApplyConfiguration); is {
			d.ShardMaps = append(slices.Clip(maps), d.shardMap(made))
		}
	}
	writes := plan.Statuses(d.Snapshot)
	decides := func(event Event, written func(types.UID) bool) bool {
		for _, write := range writes {
			if status := reflect.ValueOf(write.Object).Elem().FieldByName("Status"); written(write.Object.GetUID()) {
				was := reflect.ValueOf(status.Interface())
				status.Set(reflect.ValueOf(write.Status).Elem())
				defer status.Set(was)
			}
		}
		return slices.ContainsFunc(d.decide(d.t).Status.Events, func(again Event) bool {
			return again.Reason == event.Reason && again.By == event.By && again.Regarding.GetUID() == event.Regarding.GetUID()
		})
	}
	for _, event := range plan.Status.Events {
		if event.Of != "" {
			continue // a step, which may be over by then
		}
		by := cmp.Or(event.By, event.Regarding.GetUID())
		if !decides(event, func(object types.UID) bool { return object != by }) {
			d.t.Fatalf("%s is lost if only the status of %s is left for later: %s", event.Reason, by, event.Note)
		}
		if decides(event, func(object types.UID) bool { return object == by }) {
			d.t.Fatalf("%s is told again though the status of %s is written: %s", event.Reason, by, event.Note)
		}
	}
}

// noneIsEvictable with keys that could leave it before: not of memory nodes that share keys, unless these could not leave.
func (d *drill) noneIsEvictable(plan *decision) {
	d.t.Helper()
	must := budget(plan)
	disabled := d.Pool.Spec.Resize != nil && d.Pool.Spec.Resize.Evacuation == v1alpha1.EvacuationDisabled
	degraded := meta.FindStatusCondition(plan.Status.Pool.Conditions, v1alpha1.ConditionDegraded)
	if must < 0 || d.current() == nil || disabled || degraded != nil && degraded.Reason == v1alpha1.ReasonNowhereToEvacuate {
		return
	}
	together, running := 0, 0
	for node, pod := range d.NodePods {
		if pod.Spec.NodeName == "" || len(pod.Status.ContainerStatuses) > 0 && !runs(pod) {
			continue
		}
		if running++; inMap(d.current(), node) {
			together++
		}
	}
	if together > 1 && running > must {
		d.t.Fatalf("of %d memory nodes that share keys one may be evicted: %d run, and %d have to", together, running, must)
	}
}

// dies says whether the operator does so with this effect, and takes with it what it had in memory: what it has heard of agents and told people.
func (d *drill) dies() bool {
	if d.effectsLeft == 0 {
		return false
	}
	if d.effectsLeft--; d.effectsLeft > 0 {
		return false
	}
	d.deaths++
	d.effectsLeft = d.effectsOfALife
	d.unheard = 2
	clear(d.said)
	return true
}

// heard is what the operator knows of agents. An operator that has just begun has heard none of them, then half.
func (d *drill) heard() map[types.UID]agent.Observation {
	if d.unheard == 0 {
		return d.Agents
	}
	heard := maps.Clone(d.Agents)
	for i, node := range sortedNames(d.NodePods) {
		if uid := d.NodePods[node].UID; d.unheard == 2 || i%2 == 0 {
			heard[uid] = agent.Observation{State: agent.Connecting}
		}
	}
	d.unheard--
	return heard
}

// effects of a plan, in the order in which the controller has them. Each says whether anything is another by it.
func (d *drill) effects(plan *decision) []func() bool {
	var effects []func() bool
	do := func(effect func() bool) { effects = append(effects, effect) }
	for _, object := range plan.Apply {
		do(func() bool { return d.apply(object) })
	}
	for _, object := range plan.Delete {
		do(func() bool { d.remove(object); return true })
	}
	do(func() bool { return d.note(plan.Events) })
	for _, publication := range plan.Publish {
		do(func() bool { return d.tell(publication) })
	}
	if plan.Status.Unsettled {
		return effects
	}
	var steps, others []Event
	for _, event := range plan.Status.Events {
		if event.Of != "" {
			steps = append(steps, event)
		} else {
			others = append(others, event)
		}
	}
	do(func() bool { return d.note(steps) })
	for _, name := range sortedNames(plan.Status.Nodes) {
		do(func() bool {
			object := d.Nodes[name]
			return object != nil && write(&object.Status, plan.Status.Nodes[name])
		})
	}
	for _, operation := range slices.Clone(d.Resizes) {
		status, written := plan.Status.Resizes[operation.Name]
		if !written {
			continue
		}
		do(func() bool {
			if was := operation.Status.Stage; operation.Status.CompletionTime != nil && status.Stage != was {
				d.t.Fatalf("ResizeOperation %s, which was %s, is %s", operation.Name, was, status.Stage)
			}
			changed := write(&operation.Status, status)
			d.oneIsOpen()
			return changed
		})
	}
	for _, name := range sortedNames(plan.Status.MemoryPools) {
		do(func() bool { return write(&d.MemoryPools[name].Status, plan.Status.MemoryPools[name]) })
	}
	do(func() bool { return write(&d.Pool.Status, plan.Status.Pool) })
	do(func() bool { return d.note(others) })
	return effects
}

func write[T any](status *T, now T) bool {
	changed := !reflect.DeepEqual(*status, now)
	*status = now
	return changed
}

// oneIsOpen of a pool's ResizeOperations, at most.
func (d *drill) oneIsOpen() {
	d.t.Helper()
	var open []string
	for _, operation := range d.Resizes {
		if isOpen(operation) {
			open = append(open, operation.Name)
		}
	}
	if len(open) > 1 {
		d.t.Fatalf("ResizeOperations are open: %v", open)
	}
}

// note what people are told, of each line of a ResizeOperation only what is another step.
func (d *drill) note(events []Event) bool {
	for _, event := range events {
		kind := strings.TrimPrefix(fmt.Sprintf("%T", event.Regarding), "*v1alpha1.")
		if event.Of != "" {
			line := fmt.Sprint(event.Of, kind, event.Line)
			if step, said := d.said[line]; said && step == event.Step {
				continue
			}
			d.said[line] = event.Step
		}
		d.events = append(d.events, kind+" "+event.Reason)
		d.notes = append(d.notes, event.Note)
	}
	return false
}

// told is how often people were told something of a kind of object.
func (d *drill) told(kind, reason string) int {
	return len(slices.DeleteFunc(slices.Clone(d.events), func(event string) bool { return event != kind+" "+reason }))
}

// look for the pods of the newest map that have a place.
func (d *drill) look() {
	d.Unplaced = map[string]bool{}
	if spec := d.current(); spec != nil {
		for _, entry := range spec.Nodes {
			d.Unplaced[entry.Name] = d.NodePods[entry.Name] == nil || d.NodePods[entry.Name].Spec.NodeName == ""
		}
	}
}

// outline of a plan, without what is random in it.
func (d *drill) outline(plan *decision) string {
	text, err := json.Marshal(plan.Status)
	if err != nil {
		d.t.Fatal(err)
	}
	return fmt.Sprint(len(plan.Apply), len(plan.Delete), len(plan.Publish), string(text))
}

// apply an object, and say whether it is another by that, as far as the drill has such objects.
func (d *drill) apply(object any) bool {
	switch object := object.(type) {
	case *corev1ac.SecretApplyConfiguration:
		if before := d.secrets(*object.Namespace)[*object.Name]; before != nil && reflect.DeepEqual(before.Data, object.Data) {
			return false
		}
		d.secrets(*object.Namespace)[*object.Name] = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: *object.Name, ResourceVersion: "1"}, Data: object.Data}
	case *apiac.MemoryNodeApplyConfiguration:
		if d.Nodes[*object.Name] != nil {
			return false
		}
		d.lives++
		d.Nodes[*object.Name] = &v1alpha1.MemoryNode{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: *object.Name, UID: types.UID(fmt.Sprint("node-", d.lives))},
			Spec: v1alpha1.MemoryNodeSpec{PoolName: "cache", MemoryPool: *object.Spec.MemoryPool, Ordinal: *object.Spec.Ordinal, Lend: *object.Spec.Lend,
				TemplateVersion: *object.Spec.TemplateVersion, Image: *object.Spec.Image},
		}
	case *apiac.MemoryNodePoolApplyConfiguration:
		if d.MemoryPools == nil {
			d.MemoryPools = map[string]*v1alpha1.MemoryNodePool{}
		}
		if d.MemoryPools[*object.Name] == nil {
			d.MemoryPools[*object.Name] = &v1alpha1.MemoryNodePool{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: *object.Name, UID: types.UID("pool-" + *object.Name), ResourceVersion: "1"}}
		}
		return write(&d.MemoryPools[*object.Name].Spec, memoryNodePoolSpec(d.t, object))
	case *corev1ac.PodApplyConfiguration:
		if d.NodePods[*object.Name] != nil {
			return false
		}
		d.lives++
		d.NodePods[*object.Name] = &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: *object.Name, UID: types.UID(fmt.Sprint("pod-", d.lives)), Annotations: object.Annotations},
			Status:     corev1.PodStatus{Phase: corev1.PodPending},
		}
	case *apiac.ShardMapApplyConfiguration:
		d.addMap(object)
	case *apiac.ResizeOperationApplyConfiguration:
		operation := &v1alpha1.ResizeOperation{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: *object.Name, UID: types.UID(*object.Name), CreationTimestamp: metav1.NewTime(d.now)},
			Spec: v1alpha1.ResizeOperationSpec{
				PoolName: *object.Spec.PoolName, Approval: *object.Spec.Approval, Evacuates: object.Spec.Evacuates, RequestedState: v1alpha1.RequestedRun},
		}
		for _, changed := range object.Spec.Pools {
			operation.Spec.Pools = append(operation.Spec.Pools, v1alpha1.ResizePool{Name: *changed.Name, From: *changed.From, To: *changed.To})
		}
		if tables := object.Spec.Tables; tables != nil {
			operation.Spec.Tables = &v1alpha1.ResizeTables{From: *tables.From, To: *tables.To}
		}
		for _, other := range d.Resizes {
			if other.Name == operation.Name {
				d.t.Fatalf("ResizeOperation %s is made twice", other.Name)
			}
		}
		d.Resizes = append(d.Resizes, operation)
		d.oneIsOpen()
	default:
		return false
	}
	return true
}

func (d *drill) addMap(object *apiac.ShardMapApplyConfiguration) {
	made := d.shardMap(object)
	d.check(&made.Spec)
	d.ShardMaps = append(d.ShardMaps, made)
}

// shardMap is the object that is applied.
func (d *drill) shardMap(object *apiac.ShardMapApplyConfiguration) *v1alpha1.ShardMap {
	d.t.Helper()
	made := &v1alpha1.ShardMap{ObjectMeta: metav1.ObjectMeta{Name: *object.Name}}
	content, err := json.Marshal(object.Spec)
	if err == nil {
		err = json.Unmarshal(content, &made.Spec)
	}
	if err != nil {
		d.t.Fatal(err)
	}
	return made
}

// check that memory nodes would take a map, and that every key is where clients look for it by that map.
func (d *drill) check(spec *v1alpha1.ShardMapSpec) {
	d.t.Helper()
	message, err := shardmap.ToMessage(spec)
	if err != nil {
		d.t.Fatal(err)
	}
	again, err := shardmap.FromMessage("cache", message)
	if err != nil {
		d.t.Fatal(err)
	}
	if again.LeastTables != spec.LeastTables {
		d.t.Fatalf("%d tables are %d in the message", spec.LeastTables, again.LeastTables)
	}
	if len(again.Departures) != len(spec.Departures) || again.Move != spec.Move {
		d.t.Fatalf("move %d of %d parts is move %d of %d in the message", spec.Move, len(spec.Departures), again.Move, len(again.Departures))
	}
	sortedBy := func(what string, less bool) {
		if !less {
			d.t.Fatalf("epoch %d: %s out of order, or one is there twice", spec.Epoch, what)
		}
	}
	for i := range spec.Nodes[1:] {
		sortedBy("nodes", spec.Nodes[i].Name < spec.Nodes[i+1].Name)
	}
	for i := range spec.Tables[1:] {
		sortedBy("tables", spec.Tables[i].ID < spec.Tables[i+1].ID)
	}
	for _, table := range spec.Tables {
		life := spec.Nodes[table.Node].Name + " " + spec.Nodes[table.Node].Incarnation
		if had, known := d.tables[life]; known && had != table.ID {
			d.t.Fatalf("epoch %d: %s has table %d, and clients may know it by %d", spec.Epoch, life, table.ID, had)
		}
		d.tables[life] = table.ID
	}
	if len(spec.Tables) != len(spec.Nodes) || len(spec.Directory.Tables) != 1<<spec.Directory.Depth {
		d.t.Fatalf("epoch %d: %d nodes, %d tables, %d parts at depth %d", spec.Epoch, len(spec.Nodes), len(spec.Tables), len(spec.Directory.Tables), spec.Directory.Depth)
	}
	if before := d.current(); before != nil && (spec.Epoch <= before.Epoch || spec.Move < before.Move || spec.Move > before.Move+1 ||
		spec.Move > before.Move && len(before.Departures) > 0 || spec.Move == before.Move && len(spec.Departures) > len(before.Departures)) {
		d.t.Fatalf("epoch %d with move %d of %d parts follows epoch %d with move %d of %d parts", spec.Epoch, spec.Move, len(spec.Departures), before.Epoch, before.Move, len(before.Departures))
	}
	if before := d.current(); before != nil && spec.Move > before.Move && d.operation().Spec.RequestedState == v1alpha1.RequestedAbort {
		d.t.Fatalf("epoch %d begins move %d for ResizeOperation %s, which was aborted", spec.Epoch, spec.Move, d.operation().Name)
	}
	from, to, departs := map[string]bool{}, map[string]bool{}, map[int]string{}
	for _, departure := range spec.Departures {
		gives, takes := nodeOf(spec, departure.From).Name, nodeOf(spec, spec.Directory.Tables[departure.Part]).Name
		from[gives], to[takes], departs[int(departure.Part)] = true, true, gives
	}
	for gives := range from {
		if to[gives] {
			d.t.Fatalf("epoch %d: %s both gives and takes", spec.Epoch, gives)
		}
	}
	if d.keys == nil {
		d.keys = make([]string, 1<<shardmap.MaxDepth)
		for key := range d.keys {
			d.keys[key] = nodeOf(spec, spec.Directory.Tables[key%len(spec.Directory.Tables)]).Name
		}
	}
	for key, at := range d.keys {
		part := key % len(spec.Directory.Tables)
		if owner := nodeOf(spec, spec.Directory.Tables[part]).Name; at != lost && at != owner && at != departs[part] {
			d.t.Fatalf("epoch %d: a key of part %d is on %s, and is looked for on %s and %q", spec.Epoch, part, at, owner, departs[part])
		}
	}
}

func (d *drill) remove(object any) {
	switch object := object.(type) {
	case *corev1.Pod:
		if d.mayBeginEmpty {
			d.vanish(object.Name)
			return
		}
		if slices.Contains(d.keys, object.Name) {
			d.t.Fatalf("the pod of %s is deleted with keys on it", object.Name)
		}
		// One without a place holds nothing, and is made anew when its spec changes.
		if inMap(d.current(), object.Name) && object.Spec.NodeName != "" {
			d.t.Fatalf("the pod of %s is deleted, and the map has it", object.Name)
		}
		d.vanish(object.Name)
	case *v1alpha1.MemoryNode:
		if d.NodePods[object.Name] != nil {
			d.t.Fatalf("the object of %s is deleted before its pod", object.Name)
		}
		delete(d.Nodes, object.Name)
	case *v1alpha1.ShardMap:
		d.ShardMaps = slices.DeleteFunc(d.ShardMaps, func(other *v1alpha1.ShardMap) bool { return other == object })
	case *v1alpha1.ResizeOperation:
		d.Resizes = slices.DeleteFunc(d.Resizes, func(other *v1alpha1.ResizeOperation) bool { return other == object })
	case *v1alpha1.MemoryNodePool:
		for _, node := range d.Nodes {
			if v1alpha1.ScaleName("cache", node.Spec.MemoryPool) == object.Name {
				d.t.Fatalf("MemoryNodePool %s is deleted before memory node %s", object.Name, node.Name)
			}
		}
		delete(d.MemoryPools, object.Name)
	}
}

// memoryNodePoolSpec is the spec that is applied.
func memoryNodePoolSpec(t *testing.T, object *apiac.MemoryNodePoolApplyConfiguration) (spec v1alpha1.MemoryNodePoolSpec) {
	t.Helper()
	content, err := json.Marshal(object.Spec)
	if err == nil {
		err = json.Unmarshal(content, &spec)
	}
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

// vanish a pod with its memory.
func (d *drill) vanish(node string) {
	if d.NodePods[node] == nil {
		return
	}
	delete(d.Agents, d.NodePods[node].UID)
	delete(d.NodePods, node)
	d.forget(node)
}

// kubelets run the pods that have a place.
func (d *drill) kubelets() {
	for _, node := range sortedNames(d.NodePods) {
		pod := d.NodePods[node]
		if d.unplaced[node] {
			d.noPlace(pod)
		} else if pod.Status.Phase == corev1.PodPending {
			ordinal := int(node[len(node)-1] - '0')
			for i := 0; i < workers && pod.Spec.NodeName == ""; i++ {
				if there := worker((ordinal + i) % workers); len(d.Draining[there]) == 0 {
					pod.Spec.NodeName = there
				}
			}
			if pod.Spec.NodeName == "" {
				d.noPlace(pod)
				continue
			}
			pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.0.0.1"}
			d.begin(node, false)
		}
	}
}

// noPlace is what the scheduler says of a pod.
func (d *drill) noPlace(pod *corev1.Pod) {
	if pod.Status.Phase == corev1.PodPending && len(pod.Status.Conditions) == 0 {
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable,
			Message: "0/7 nodes are available", LastTransitionTime: metav1.NewTime(d.now)}}
	}
}

// workers are the Kubernetes nodes that there are.
const workers = 7

func worker(number int) string { return fmt.Sprintf("worker-%d", number) }

func sortedNames[T any](of map[string]T) []string {
	var names []string
	for name := range of {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// clients move the keys that `chosen` names, by the newest map that a memory node holds. A mover is as good as its map: it needs both ends.
func (d *drill) clients(chosen func() bool) {
	var newest *farpoolv1alpha1.ShardMap
	for _, node := range sortedNames(d.NodePods) {
		if held := d.Agents[d.NodePods[node].UID].Facts.GetMemoryNode().GetMap(); held.GetEpoch() > newest.GetEpoch() {
			newest = held
		}
	}
	for _, node := range sortedNames(d.NodePods) {
		if facts := d.Agents[d.NodePods[node].UID].Facts; facts != nil && facts.GetMemoryNode().GetEvenTables() < newest.GetLeastTables() && chosen() {
			d.update(node, func(facts *farpoolv1alpha1.Facts) { facts.MemoryNode.EvenTables *= 2 })
		}
	}
	if len(newest.GetDepartures()) == 0 {
		return
	}
	spec, err := shardmap.FromMessage("cache", newest)
	if err != nil {
		d.t.Fatal(err)
	}
	works := func(entry *v1alpha1.ShardMapNode) bool {
		pod := d.NodePods[entry.Name]
		return pod != nil && entry.State == v1alpha1.NodeServing && shardmap.FormatIncarnation(d.Agents[pod.UID].Facts.GetIncarnation()) == entry.Incarnation
	}
	for _, giver := range givers(spec) {
		if !works(giver) {
			continue
		}
		whole := true
		for _, departure := range spec.Departures {
			if nodeOf(spec, departure.From) != giver {
				continue
			}
			taker := nodeOf(spec, spec.Directory.Tables[departure.Part])
			for key := int(departure.Part); key < len(d.keys); key += len(spec.Directory.Tables) {
				if d.keys[key] != giver.Name {
					continue
				}
				if works(taker) && chosen() {
					d.keys[key] = taker.Name
				} else {
					whole = false
				}
			}
			whole = whole && works(taker)
		}
		if whole {
			d.update(giver.Name, func(facts *farpoolv1alpha1.Facts) {
				facts.MemoryNode.MoveFinished = max(facts.MemoryNode.MoveFinished, uint64(spec.Move))
			})
		}
	}
}

func always() bool { return true }

// turn lets everything happen that happens by itself.
func (d *drill) turn() *decision {
	d.t.Helper()
	plan := d.step(false)
	d.kubelets()
	d.clients(always)
	return plan
}

// untilSettled goes on until the pool is as its spec has it, and has it checked that it is.
func (d *drill) untilSettled() {
	d.t.Helper()
	var plan *decision
	for turns, quiet := 0, 0; turns < 60 && quiet < 3; turns++ {
		before := d.outlook()
		if plan = d.turn(); before == d.outlook() && d.current() != nil {
			quiet++
		} else {
			quiet = 0
		}
	}
	wantCondition(d.t, plan, v1alpha1.ConditionProgressing, metav1.ConditionFalse, v1alpha1.ReasonSettled)
	spec, wanted := d.current(), d.wanted()
	aim := len(wanted)
	if len(spec.Nodes) != aim || len(d.Nodes) != aim || len(d.NodePods) != aim || len(spec.Departures) != 0 {
		d.t.Fatalf("%d nodes in the map, %d objects, %d pods, %d departures; %d nodes are asked for: %v", len(spec.Nodes), len(d.Nodes), len(d.NodePods), len(spec.Departures), aim,
			meta.FindStatusCondition(d.Pool.Status.Conditions, v1alpha1.ConditionProgressing))
	}
	for _, entry := range spec.Nodes {
		if tables := d.Agents[d.NodePods[entry.Name].UID].Facts.GetMemoryNode().GetEvenTables(); entry.State == v1alpha1.NodeServing && int32(tables) < d.leastTables() {
			d.t.Fatalf("%s has %d tables in use of %d", entry.Name, tables, d.leastTables())
		}
	}
	var tables []int32
	for _, table := range spec.Tables {
		tables = append(tables, table.ID)
	}
	if !shared(spec.Directory, tables) {
		d.t.Fatalf("shares are not even: %v", spec.Directory.Tables)
	}
	for _, node := range wanted {
		if !inMap(spec, node) {
			d.t.Fatalf("%s is not in the map", node)
		}
	}
	if len(d.MemoryPools) != len(d.Pool.Spec.Memory.Pools) {
		d.t.Fatalf("%d MemoryNodePools, and %d memory pools", len(d.MemoryPools), len(d.Pool.Spec.Memory.Pools))
	}
	for key, at := range d.keys {
		if owner := nodeOf(spec, spec.Directory.Tables[key%len(spec.Directory.Tables)]).Name; at != lost && at != owner {
			d.t.Fatalf("a key is on %s, and is looked for on %s", at, owner)
		}
	}
	for _, operation := range d.Resizes {
		if operation.Status.CompletionTime == nil {
			d.t.Fatalf("ResizeOperation %s is open: %+v", operation.Name, operation.Status)
		}
	}
}

// wanted are the memory nodes that the pool should have: at least the first of the first memory pool, if nobody asks for any.
func (d *drill) wanted() []string {
	var wanted []string
	for _, entry := range d.Pool.Spec.Memory.Pools {
		for ordinal := range d.MemoryPools[v1alpha1.ScaleName("cache", entry.Name)].Spec.Replicas {
			wanted = append(wanted, v1alpha1.MemoryNodeName("cache", entry.Name, ordinal))
		}
	}
	return wanted
}

// outlook is what there is, as far as it tells whether anything still happens.
func (d *drill) outlook() string {
	text, err := json.Marshal([]any{d.current(), d.Pool.Status, d.Nodes, len(d.NodePods)})
	if err != nil {
		d.t.Fatal(err)
	}
	return string(text)
}

func (d *drill) noneLost() {
	d.t.Helper()
	if slices.Contains(d.keys, lost) {
		d.t.Error("keys are lost")
	}
}

// until something is so, at most a few turns long.
func (d *drill) until(what string, so func(*decision) bool) *decision {
	d.t.Helper()
	var plan *decision
	for range 20 {
		if plan = d.step(false); so(plan) {
			return plan
		}
		d.kubelets()
	}
	d.t.Fatalf("never: %s; %v", what, meta.FindStatusCondition(plan.Status.Pool.Conditions, v1alpha1.ConditionProgressing))
	return nil
}

func (d *drill) operation() *v1alpha1.ResizeOperation { return d.Resizes[len(d.Resizes)-1] }

func (d *drill) wantStage(stage v1alpha1.ResizeStage, says string) {
	d.t.Helper()
	status := d.operation().Status
	complete := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionComplete)
	if status.Stage != stage || complete == nil || !strings.Contains(complete.Message, says) {
		d.t.Errorf("stage %s: %+v; want %s with %q", status.Stage, complete, stage, says)
	}
}

func TestShares(t *testing.T) {
	for _, c := range []struct {
		name            string
		owners, staying []int32
		moved           int
		give, take      []int32
	}{
		{"nothing to do", []int32{0, 1, 2, 0}, []int32{0, 1, 2}, 0, nil, nil},
		{"one more", []int32{0, 0, 1, 1, 0, 0, 1, 1}, []int32{0, 1, 2, 3}, 4, []int32{0, 1}, []int32{2, 3}},
		{"one more than divides", []int32{0, 1, 0, 1, 0, 1, 0, 1}, []int32{0, 1, 7}, 2, []int32{0, 1}, []int32{7}},
		{"one less", []int32{0, 1, 2, 3}, []int32{0, 1, 2}, 1, []int32{3}, []int32{0}},
		{"all go but one", []int32{0, 1, 2, 3}, []int32{2}, 3, []int32{0, 1, 3}, []int32{2}},
		{"one comes for one that goes", []int32{0, 1, 0, 1}, []int32{1, 5}, 2, []int32{0}, []int32{5}},
		{"no part for everybody", []int32{0, 0}, []int32{0, 1, 2}, 1, []int32{0}, []int32{1}},
		{"out of balance", []int32{0, 0, 0, 1}, []int32{0, 1}, 1, []int32{0}, []int32{1}},
	} {
		desired := balance(c.owners, c.staying)
		moved, give, take := 0, map[int32]bool{}, map[int32]bool{}
		for part := range c.owners {
			if desired[part] != c.owners[part] {
				moved++
				give[c.owners[part]], take[desired[part]] = true, true
			}
		}
		if moved != c.moved || !even(desired, c.staying) {
			t.Errorf("%s: %d parts move, %v becomes %v", c.name, moved, c.owners, desired)
		}
		for _, table := range c.give {
			delete(give, table)
		}
		for _, table := range c.take {
			delete(take, table)
		}
		if len(give) > 0 || len(take) > 0 {
			t.Errorf("%s: %v give as well, %v take as well", c.name, give, take)
		}
	}
	// No more parts move than have to, whichever memory nodes come and go.
	for before := 1; before <= 12; before++ {
		for after := 1; after <= 12; after++ {
			first := shardmap.Spread(before)
			owners := shardmap.Deepen(first, shardmap.DepthFor(after, first.Depth)).Tables
			var staying []int32
			for table := range after {
				staying = append(staying, int32(table))
			}
			desired, moved := balance(owners, staying), 0
			for part := range owners {
				if desired[part] != owners[part] {
					moved++
				}
			}
			most := len(owners)*max(after-before, before-after)/max(after, before) + max(after, before)
			if !even(desired, staying) || moved > most {
				t.Errorf("%d to %d: %d of %d parts move", before, after, moved, len(owners))
			}
		}
	}
}

// Each map of a pool that grows, one after the other.
func TestAPoolGrows(t *testing.T) {
	d := newDrill(t, 3, v1alpha1.DataPolicyCache)
	d.withShard()
	first := d.current().DeepCopy()
	d.aim(5)
	plan := d.step(false)
	wantCondition(t, plan, v1alpha1.ConditionAvailable, metav1.ConditionTrue, v1alpha1.ReasonServing)
	if d.current().Epoch != first.Epoch || len(d.Nodes) != 5 || len(d.Resizes) != 1 {
		t.Fatalf("epoch %d, %d nodes, %d operations", d.current().Epoch, len(d.Nodes), len(d.Resizes))
	}
	wantCondition(t, plan, v1alpha1.ConditionProgressing, metav1.ConditionTrue, v1alpha1.ReasonResizing)
	if spec := d.operation().Spec; spec.Pools[0] != (v1alpha1.ResizePool{Name: "memory", From: 3, To: 5}) || spec.Approval != v1alpha1.ApprovalAutomatic {
		t.Errorf("%+v", spec)
	}
	d.unplaced[name(4)] = true
	d.step(false)
	d.kubelets()
	d.step(false)
	// The memory node that answers joins the map, and holds nothing until the other one is there, too.
	joined := d.current()
	if len(joined.Nodes) != 4 || joined.Move != 0 || joined.Directory.Depth != first.Directory.Depth || !slices.Equal(joined.Directory.Tables, first.Directory.Tables) {
		t.Fatalf("%+v", joined)
	}
	d.step(false)
	d.step(false)
	d.wantStage(v1alpha1.StageWaiting, "waiting for memory nodes: cache-memory-4")
	delete(d.unplaced, name(4))
	d.kubelets()
	d.until("it has come", func(*decision) bool { return len(d.current().Nodes) == 5 })
	if spec := d.current(); spec.Tables[4].ID != 4 || spec.Move != 0 {
		t.Errorf("tables %v, move %d", spec.Tables, spec.Move)
	}
	if spec := d.current(); spec.Directory.Depth != shardmap.Spread(5).Depth || len(spec.Departures) > 0 {
		t.Errorf("depth %d, %d departures", spec.Directory.Depth, len(spec.Departures))
	}
	d.until("it moves", func(*decision) bool { return d.current().Move == 1 })
	moving := d.current()
	if parts := len(moving.Directory.Tables); len(moving.Departures) < parts*2/5-5 || len(moving.Departures) > parts*2/5+5 {
		t.Errorf("%d of %d parts move", len(moving.Departures), parts)
	}
	d.step(false)
	d.wantStage(v1alpha1.StageMoving, "move 1 of keys away from cache-memory-0, cache-memory-1, cache-memory-2 is under way")
	if status := d.operation().Status; int(status.PartsTotal) != len(moving.Departures) || status.PartsMoved != 0 {
		t.Errorf("%+v", status)
	}
	// It is not finished before every memory node that gives has reported so, whatever others report.
	for _, giver := range []string{name(0), name(2)} {
		d.update(giver, func(facts *farpoolv1alpha1.Facts) { facts.MemoryNode.MoveFinished = 1 })
	}
	d.update(name(4), func(facts *farpoolv1alpha1.Facts) { facts.MemoryNode.MoveFinished = 1 })
	d.step(false)
	if d.current().Epoch != moving.Epoch {
		t.Fatalf("epoch %d follows though %s is not finished", d.current().Epoch, name(1))
	}
	if moved := d.operation().Status.PartsMoved; moved == 0 || int(moved) == len(moving.Departures) {
		t.Errorf("%d parts have moved", moved)
	}
	d.clients(always)
	d.untilSettled()
	d.noneLost()
	if last := d.current(); last.Move != 1 || last.Epoch != moving.Epoch+1 {
		t.Errorf("epoch %d, move %d", last.Epoch, last.Move)
	}
	d.wantStage(v1alpha1.StageComplete, "the 5 memory nodes that its spec asks for")
	for _, reason := range []string{v1alpha1.ReasonResizePlanned, v1alpha1.ReasonMoveBegun, v1alpha1.ReasonMoveFinished, v1alpha1.ReasonResizeComplete} {
		if told := d.told("KVPool", reason); told != 1 {
			t.Errorf("%s is told %d times: %v", reason, told, d.events)
		}
	}
}

// Each stage of a resize, and each quarter of its keys, is announced to people who look at it. An operator that begins in between announces none again.
func TestTheStepsOfAResizeAreTold(t *testing.T) {
	d := newDrill(t, 2, v1alpha1.DataPolicyCache)
	d.Pool.Spec.Resize = &v1alpha1.ResizeSpec{Approval: v1alpha1.ApprovalRequired}
	have := func(keys ...uint64) {
		for node, of := range keys {
			d.update(name(node), func(facts *farpoolv1alpha1.Facts) {
				facts.MemoryNode.Keys, facts.MemoryNode.HeapBytes, facts.MemoryNode.HeapBytesUsed = of, 1<<30, of<<10
			})
		}
	}
	have(9000, 9000)
	want := func(what string, told ...string) {
		t.Helper()
		var of []string
		for _, event := range d.events {
			if reason, ours := strings.CutPrefix(event, "ResizeOperation "); ours {
				of = append(of, reason)
			}
		}
		if !slices.Equal(of, told) {
			t.Errorf("%s: told %v, want %v", what, of, told)
		}
		d.events, d.notes = nil, nil
	}
	d.events = nil
	d.aim(3)
	for range 6 {
		d.step(false)
		d.kubelets()
	}
	want("it is asked for", v1alpha1.ReasonResizePlanned, v1alpha1.ReasonApprovalRequired)
	d.agree()
	d.until("it moves", func(*decision) bool { return d.current().Move == 1 })
	d.step(false)
	want("it was approved", v1alpha1.ReasonMoving)
	begun := d.operation().Status
	for _, c := range []struct {
		keys [3]uint64
		told string
	}{
		{[3]uint64{8500, 8500, 1000}, ""},
		{[3]uint64{8000, 8200, 1800}, "25 % of the keys to be moved have moved: about 4"},
		{[3]uint64{8100, 8200, 1700}, ""},
		{[3]uint64{8000, 8150, 1850}, ""},
		{[3]uint64{6200, 6300, 5500}, "75 % of the keys to be moved have moved: about "},
		{[3]uint64{6000, 6000, 6000}, ""},
	} {
		clear(d.said) // another operator
		have(c.keys[:]...)
		d.now = d.now.Add(time.Minute)
		d.step(false)
		d.step(false)
		notes := strings.Join(d.notes, "\n")
		if (c.told == "") != (notes == "") || !strings.Contains(notes, c.told) || c.told != "" && (d.told("KVPool", v1alpha1.ReasonMoveProgressed) != 1 || !strings.Contains(notes, " MiB are left, which takes until about 2026-01-01T00:")) {
			t.Errorf("%v keys of %d: told %q", c.keys, begun.KeysTotal, notes)
		}
		d.events, d.notes = nil, nil
	}
	d.clients(always)
	d.untilSettled()
	want("it is finished", v1alpha1.ReasonResizeComplete)
	d.aim(2)
	d.turn()
	d.agree()
	d.until("it moves", func(*decision) bool { return d.current().Move == 2 })
	d.aim(3)
	d.clients(always)
	d.until("another is planned", func(*decision) bool { return d.operation().Spec.Pools[0].To == 3 })
	d.abort()
	for range 12 {
		d.turn()
	}
	if d.told("ResizeOperation", v1alpha1.ReasonSuperseded) != 1 || d.told("ResizeOperation", v1alpha1.ReasonResizeAborted) != 1 || d.told("KVPool", v1alpha1.ReasonResizeAborted) != 1 {
		t.Errorf("told: %s", strings.Join(d.events, ", "))
	}
}

// What a person makes in place of the operator moves nothing, and is told so.
func TestAResizeThatAPersonMadeIsRefused(t *testing.T) {
	d := newDrill(t, 2, v1alpha1.DataPolicyCache)
	stray := &v1alpha1.ResizeOperation{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "by-hand", UID: "by-hand", Generation: 1},
		Spec:       v1alpha1.ResizeOperationSpec{PoolName: "cache", Pools: []v1alpha1.ResizePool{{Name: "memory", From: 2, To: 3}}, Approval: v1alpha1.ApprovalApproved},
	}
	d.Strays = []*v1alpha1.ResizeOperation{stray}
	want := func(status v1alpha1.ResizeOperationStatus, reason, words string) {
		t.Helper()
		c := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionComplete)
		if c == nil || c.Status != metav1.ConditionFalse || c.Reason != reason || !strings.Contains(c.Message, words) || status.Stage != "" || status.Change != "2 to 3" {
			t.Errorf("%+v, want %s with %q", status, reason, words)
		}
	}
	first := d.turn().Status.Resizes[stray.Name]
	want(first, v1alpha1.ReasonNotFollowed, "edit spec.memory.pools[].replicas of KVPool cache")
	stray.Status = first
	if again := d.turn().Status.Resizes[stray.Name]; !reflect.DeepEqual(again, first) {
		t.Errorf("it is written once more: %+v", again)
	}
	d.wantNodes(2)
	if len(d.Resizes) > 0 {
		t.Errorf("%d operations", len(d.Resizes))
	}
	want(RefuseResize(stray, nil, d.now), v1alpha1.ReasonPoolNotFound, "no KVPool cache in namespace shop")
	// Nor does it take the name of one that the operator makes.
	stray.Name = v1alpha1.ResizeOperationName("cache", 1)
	d.aim(3)
	d.wantNodes(3)
	if d.operation().Name == stray.Name {
		t.Errorf("%s is made, and is there", stray.Name)
	}
}

// How many keys and bytes are left is told as they move, and when all will have moved.
func TestTheEndOfAMoveIsEstimated(t *testing.T) {
	d := newDrill(t, 2, v1alpha1.DataPolicyCache)
	have := func(node int, keys uint64) {
		d.update(name(node), func(facts *farpoolv1alpha1.Facts) {
			facts.MemoryNode.Keys, facts.MemoryNode.HeapBytes, facts.MemoryNode.HeapBytesUsed = keys, 1<<30, keys<<10
		})
	}
	have(0, 9000)
	have(1, 9000)
	d.aim(3)
	d.until("it moves", func(*decision) bool { return d.current().Move == 1 })
	d.step(false)
	begun := d.operation().Status
	if begun.KeysLeft < 5500 || begun.KeysLeft > 6500 || begun.BytesLeft>>10 != begun.KeysLeft || begun.MovingSince == nil || begun.EstimatedCompletionTime != nil {
		t.Fatalf("%+v", begun)
	}
	d.wantStage(v1alpha1.StageMoving, "keys and 5 MiB")
	d.now = begun.MovingSince.Add(99 * time.Second)
	have(0, 8000)
	have(1, 7500)
	have(2, 2500)
	d.step(false)
	told := d.operation().Status
	left := told.EstimatedCompletionTime.Sub(d.now).Seconds()
	if moved := begun.KeysLeft - told.KeysLeft; moved != 2500 || left < 100*float64(told.KeysLeft)/2500-2 || left > 100*float64(told.KeysLeft)/2500 {
		t.Errorf("%d keys have moved, %d are left: %v seconds", moved, told.KeysLeft, left)
	}
	d.step(false)
	if again := d.operation().Status; !again.EstimatedCompletionTime.Equal(told.EstimatedCompletionTime) {
		t.Error("the estimate changes though nothing has moved")
	}
	d.untilSettled()
	if over := d.operation().Status; over.EstimatedCompletionTime != nil || over.BytesLeft != 0 || over.KeysTotal != begun.KeysLeft {
		t.Errorf("%+v", over)
	}
}

// A memory node that has not been heard yet may have any number of keys: what was told of them stays, and nothing is estimated.
func TestKeysThatAreUnknownAreNotCounted(t *testing.T) {
	d := newDrill(t, 2, v1alpha1.DataPolicyCache)
	for node := range 2 {
		d.update(name(node), func(facts *farpoolv1alpha1.Facts) { facts.MemoryNode.Keys = 9000 })
	}
	d.aim(3)
	d.until("it moves", func(*decision) bool { return d.current().Move == 1 })
	d.step(false)
	begun := d.operation().Status
	heard := maps.Clone(d.Agents)
	// An operator has just begun, and two memory nodes are out of its reach.
	for node := range 2 {
		d.Agents[d.NodePods[name(node)].UID] = agent.Observation{State: agent.Unreachable, Error: "no answer"}
	}
	plan := d.decide(t)
	status := plan.Status.Resizes[d.operation().Name]
	if status.KeysLeft != begun.KeysLeft || status.KeysTotal != begun.KeysTotal || status.BytesLeft != begun.BytesLeft || status.EstimatedCompletionTime != nil || plan.Status.KeysLeft != nil {
		t.Errorf("%+v, want what was told: %+v", status, begun)
	}
	if c := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionComplete); strings.Contains(c.Message, " keys and ") || !strings.Contains(c.Message, "parts are left") {
		t.Error(c.Message)
	}
	d.Agents = heard
	if plan := d.decide(t); plan.Status.KeysLeft == nil || *plan.Status.KeysLeft != begun.KeysLeft {
		t.Errorf("%v keys are left", plan.Status.KeysLeft)
	}
	d.wantNodes(3)
}

func TestAPoolShrinks(t *testing.T) {
	d := newDrill(t, 5, v1alpha1.DataPolicyStore)
	pods := map[string]types.UID{}
	for name, pod := range d.NodePods {
		pods[name] = pod.UID
	}
	d.aim(2)
	d.until("it moves", func(*decision) bool { return d.current().Move == 1 })
	for _, giver := range givers(d.current()) {
		if giver.Name == name(0) || giver.Name == name(1) {
			t.Errorf("%s gives", giver.Name)
		}
	}
	// As long as keys lie there, no node may be taken away from under them.
	d.withShard()
	plan := d.step(false)
	for _, object := range plan.Apply {
		if budget, ok := object.(*policyv1ac.PodDisruptionBudgetApplyConfiguration); ok && *budget.Name == "cache-memory-nodes" && budget.Spec.MinAvailable.IntValue() != 5 {
			t.Errorf("%d memory nodes have to be there", budget.Spec.MinAvailable.IntValue())
		}
	}
	wantCondition(t, plan, v1alpha1.ConditionAvailable, metav1.ConditionTrue, v1alpha1.ReasonServing)
	// A pod that vanishes before is made again.
	d.vanish(name(4))
	d.step(false)
	if d.NodePods[name(4)] == nil {
		t.Error("a memory node that is drained is not kept up")
	}
	d.kubelets()
	d.until("it is known to have lost its memory", func(*decision) bool { return d.Nodes[name(4)].Status.LostIncarnation != "" })
	d.clients(always)
	d.step(false)
	d.step(false)
	if len(d.current().Departures) == 0 {
		t.Error("a loss that nobody has accepted is passed over")
	}
	d.Nodes[name(4)].Annotations = map[string]string{v1alpha1.AnnotationAcceptDataLoss: d.Nodes[name(4)].Status.Incarnation}
	d.untilSettled()
	for _, stays := range []string{name(0), name(1)} {
		if d.NodePods[stays].UID != pods[stays] {
			t.Errorf("%s has another pod", stays)
		}
	}
	d.wantStage(v1alpha1.StageComplete, "2 memory nodes")
	if drained := d.told("KVPool", v1alpha1.ReasonNodeDrained) + d.told("MemoryNode", v1alpha1.ReasonNodeDrained); drained != 6 {
		t.Errorf("that three nodes are drained is told %d times of pool and nodes", drained)
	}
}

// The directory has too few parts for three nodes when it was made for two.
func TestADirectoryIsDeepenedFirst(t *testing.T) {
	d := newDrill(t, 2, v1alpha1.DataPolicyCache)
	if d.current().Directory.Depth != 1 {
		t.Fatalf("depth %d", d.current().Directory.Depth)
	}
	d.aim(3)
	d.untilSettled()
	d.noneLost()
	if depth := d.current().Directory.Depth; depth != shardmap.Spread(3).Depth {
		t.Errorf("depth %d", depth)
	}
	d.aim(2)
	d.untilSettled()
	d.noneLost()
	if depth := d.current().Directory.Depth; depth != shardmap.Spread(3).Depth {
		t.Errorf("depth %d", depth)
	}
}

// A node that gives and lost its memory has nothing to give: what has left is all there is.
func TestAGiverThatIsLostDepartsNoMore(t *testing.T) {
	for _, policy := range []v1alpha1.DataPolicy{v1alpha1.DataPolicyCache, v1alpha1.DataPolicyStore} {
		d := newDrill(t, 3, policy)
		d.aim(4)
		d.until("it moves", func(*decision) bool { return d.current().Move == 1 })
		departures := len(d.current().Departures)
		half := 0
		d.clients(func() bool { half++; return half%2 == 0 })
		d.begin(name(0), true)
		d.step(false)
		if len(d.current().Departures) != departures || d.current().Nodes[0].MemoryIncarnation == "" {
			t.Fatalf("%s: a giver that kept its memory has %d departures, was %d", policy, len(d.current().Departures), departures)
		}
		d.begin(name(0), false)
		d.step(false)
		from0 := slices.ContainsFunc(d.current().Departures, func(departure v1alpha1.Departure) bool { return nodeOf(d.current(), departure.From).Name == name(0) })
		if from0 != (policy == v1alpha1.DataPolicyStore) || len(d.current().Departures) == 0 {
			t.Fatalf("%s: departs from the node that is lost: %v; %d departures", policy, from0, len(d.current().Departures))
		}
		if policy == v1alpha1.DataPolicyStore {
			for range 5 {
				d.turn()
			}
			if len(d.current().Departures) == 0 {
				t.Fatal("a loss that nobody has accepted is passed over")
			}
			d.Nodes[name(0)].Annotations = map[string]string{v1alpha1.AnnotationAcceptDataLoss: d.Nodes[name(0)].Status.Incarnation}
			d.step(false)
			if slices.ContainsFunc(d.current().Departures, func(departure v1alpha1.Departure) bool { return nodeOf(d.current(), departure.From).Name == name(0) }) {
				t.Error("what is accepted as lost departs")
			}
		}
		d.untilSettled()
	}
}

// A node that takes and cannot be reached is waited for.
func TestATakerOutOfReachIsAwaited(t *testing.T) {
	d := newDrill(t, 2, v1alpha1.DataPolicyCache)
	d.aim(4)
	d.until("they have come", func(*decision) bool { return len(d.current().Nodes) == 4 })
	d.scene.Agents[d.NodePods[name(3)].UID] = agent.Observation{State: agent.Unreachable, Error: "silent", Facts: d.Agents[d.NodePods[name(3)].UID].Facts}
	for range 3 {
		d.turn()
	}
	if d.current().Move != 0 {
		t.Fatal("a move is begun to a node that does not answer")
	}
	d.wantStage(v1alpha1.StageWaiting, "waiting for memory nodes of the pool's map: cache-memory-3")
	wantCondition(t, d.step(false), v1alpha1.ConditionProgressing, metav1.ConditionTrue, v1alpha1.ReasonResizing)
	d.hear(name(3))
	d.until("it moves", func(*decision) bool { return d.current().Move == 1 })
	d.scene.Agents[d.NodePods[name(3)].UID] = agent.Observation{State: agent.Unreachable, Error: "silent", Facts: d.Agents[d.NodePods[name(3)].UID].Facts}
	d.clients(always)
	d.turn()
	d.turn()
	if len(d.current().Departures) == 0 {
		t.Error("finished with a node out of reach, which may hold a later map")
	}
	d.wantStage(v1alpha1.StageMoving, "waiting for memory nodes of the pool's map: cache-memory-3")
	d.hear(name(3))
	d.untilSettled()
	d.noneLost()
}

// Tables that are stopped neither give nor take; the others go on.
func TestStoppedTablesNeitherGiveNorTake(t *testing.T) {
	d := newDrill(t, 4, v1alpha1.DataPolicyStore)
	d.begin(name(3), false)
	d.step(false)
	d.step(false)
	d.aim(2)
	d.until("it moves", func(*decision) bool { return d.current().Move == 1 })
	for _, giver := range givers(d.current()) {
		if giver.Name != name(2) {
			t.Errorf("%s gives", giver.Name)
		}
	}
	for range 10 {
		d.turn()
	}
	if len(d.current().Nodes) != 3 {
		t.Fatalf("%d nodes in the map", len(d.current().Nodes))
	}
	d.wantStage(v1alpha1.StageWaiting, "memory nodes whose tables are stopped neither give keys nor take any (cache-memory-3)")
	d.Nodes[name(3)].Annotations = map[string]string{v1alpha1.AnnotationAcceptDataLoss: d.Nodes[name(3)].Status.Incarnation}
	d.untilSettled()
}

func TestApproval(t *testing.T) {
	d := newDrill(t, 2, v1alpha1.DataPolicyCache)
	d.Pool.Spec.Resize = &v1alpha1.ResizeSpec{Approval: v1alpha1.ApprovalRequired}
	d.aim(3)
	for range 8 {
		d.turn()
	}
	if spec := d.current(); len(spec.Nodes) != 3 || spec.Move != 0 || spec.Directory.Depth != 1 {
		t.Fatalf("%d nodes, move %d, depth %d", len(spec.Nodes), spec.Move, spec.Directory.Depth)
	}
	d.wantStage(v1alpha1.StagePlanned, "kubectl -n shop patch resizeoperation "+d.operation().Name)
	d.operation().Spec.Approval = v1alpha1.ApprovalApproved
	d.untilSettled()
	d.noneLost()
	// Another aim needs another approval; what is under way is finished.
	d.aim(5)
	for range 8 {
		d.turn()
	}
	d.operation().Spec.Approval = v1alpha1.ApprovalApproved
	d.until("it moves", func(*decision) bool { return d.current().Move == 2 })
	approved := d.operation()
	d.aim(2)
	d.step(false)
	d.step(false)
	if approved.Status.Stage != v1alpha1.StageSuperseded || d.operation() == approved || d.operation().Spec.Approval != v1alpha1.ApprovalRequired {
		t.Fatalf("%+v, then %+v", approved.Status, d.operation().Spec)
	}
	for range 8 {
		d.turn()
	}
	if spec := d.current(); spec.Move != 2 || len(spec.Departures) > 0 || len(spec.Nodes) != 5 {
		t.Fatalf("move %d with %d departures among %d nodes", spec.Move, len(spec.Departures), len(spec.Nodes))
	}
	d.wantStage(v1alpha1.StagePlanned, "waiting for a person's approval")
	// An operation that somebody deletes is made again, and asks again.
	d.Resizes = d.Resizes[:len(d.Resizes)-1]
	d.turn()
	d.turn()
	d.wantStage(v1alpha1.StagePlanned, "waiting for a person's approval")
	d.operation().Spec.Approval = v1alpha1.ApprovalApproved
	d.untilSettled()
	d.noneLost()
}

// Tables are split ahead of keys once a person has approved, at every memory node, beside newcomers and leavers, and no operation is made for
// what there is already.
func TestTablesAreSplitAhead(t *testing.T) {
	d := newDrill(t, 3, v1alpha1.DataPolicyStore)
	d.Pool.Spec.Resize = &v1alpha1.ResizeSpec{Approval: v1alpha1.ApprovalRequired}
	operations := len(d.Resizes)
	d.aimAt(1)
	d.untilSettled()
	if len(d.Resizes) != operations || d.current().LeastTables != 0 {
		t.Fatalf("%d ResizeOperations, %d tables", len(d.Resizes), d.current().LeastTables)
	}
	d.aimAt(8)
	for range 8 {
		d.turn()
	}
	if spec := d.current(); spec.LeastTables != 0 || *d.operation().Spec.Tables != (v1alpha1.ResizeTables{From: 1, To: 8}) {
		t.Fatalf("%d tables before anybody has approved; %+v", spec.LeastTables, d.operation().Spec)
	}
	d.wantStage(v1alpha1.StagePlanned, "kubectl -n shop patch resizeoperation "+d.operation().Name)
	d.agree()
	d.until("the map asks for them", func(*decision) bool { return d.current().LeastTables == 8 })
	for range 3 {
		d.step(false)
	}
	d.wantStage(v1alpha1.StageSplitting, "1 of 8 are in use")
	if d.operation().Status.Change != "3 to 3, 1 to 8 tables each" || d.operation().Status.TablesInUse != 1 {
		t.Errorf("%+v", d.operation().Status)
	}
	d.clients(func() bool { return true })
	d.step(false)
	d.step(false)
	d.wantStage(v1alpha1.StageSplitting, "2 of 8 are in use")
	d.untilSettled()
	d.wantStage(v1alpha1.StageComplete, "")
	if d.operation().Status.TablesInUse != 8 || d.current().Move != 0 {
		t.Errorf("%+v, move %d", d.operation().Status, d.current().Move)
	}
	// Both at once are one operation, and memory nodes that join begin with as many.
	d.Pool.Spec.Resize = nil
	operations = len(d.Resizes)
	d.aimAt(32)
	d.aim(5)
	d.untilSettled()
	d.noneLost()
	if len(d.Resizes) != operations+1 || d.current().LeastTables != 32 {
		t.Errorf("%d ResizeOperations more, %d tables", len(d.Resizes)-operations, d.current().LeastTables)
	}
	d.aim(2)
	d.untilSettled()
	d.noneLost()
	// A memory node that began anew with fewer, as of a file of before, is brought up to the others.
	d.Pool.Spec.DataPolicy = v1alpha1.DataPolicyCache
	d.begin(name(1), false)
	d.update(name(1), func(facts *farpoolv1alpha1.Facts) { facts.MemoryNode.EvenTables = 4 })
	d.untilSettled()
}

// Another aim in the middle: the move under way is finished, and the way goes on from there.
func TestAnotherAimInTheMiddle(t *testing.T) {
	d := newDrill(t, 3, v1alpha1.DataPolicyCache)
	d.aim(5)
	d.until("it moves", func(*decision) bool { return d.current().Move == 1 })
	half := 0
	d.clients(func() bool { half++; return half%3 != 0 })
	d.aim(3)
	for range 3 {
		d.step(false)
	}
	if d.current().Move != 1 || len(d.current().Departures) == 0 {
		t.Error("what was begun is given up")
	}
	d.untilSettled()
	d.noneLost()
	// Nodes that go are wanted again, after they have left the map and before they are away.
	d.aim(5)
	d.untilSettled()
	d.aim(3)
	d.until("they have left the map", func(*decision) bool { d.clients(always); return len(d.current().Nodes) == 3 })
	d.until("that is said", func(*decision) bool { return saidDrained(&node{object: d.Nodes[name(3)]}) })
	d.aim(5)
	d.untilSettled()
	d.noneLost()
	// Before it is said, and with memory that a map once had: they are other ones all the same, as a life of a node has one table for ever.
	d.aim(3)
	d.until("they have left the map", func(*decision) bool { d.clients(always); return len(d.current().Nodes) == 3 })
	third, fourth := d.NodePods[name(3)].UID, d.NodePods[name(4)].UID
	d.begin(name(4), true)
	d.aim(5)
	d.untilSettled()
	d.noneLost()
	if d.NodePods[name(3)].UID == third || d.NodePods[name(4)].UID == fourth {
		t.Error("a node that had left the map is in it again")
	}
}

// Nodes that never came up are taken away again.
func TestAnAimThatIsGivenUp(t *testing.T) {
	d := newDrill(t, 2, v1alpha1.DataPolicyCache)
	epoch := d.current().Epoch
	d.aim(4)
	d.unplaced[name(2)], d.unplaced[name(3)] = true, true
	for range 4 {
		d.turn()
	}
	d.aim(2)
	d.untilSettled()
	if d.current().Epoch != epoch {
		t.Errorf("epoch %d", d.current().Epoch)
	}
	if stage := d.Resizes[0].Status.Stage; stage != v1alpha1.StageSuperseded || len(d.Resizes) != 1 {
		t.Errorf("%d operations, the first is %s", len(d.Resizes), stage)
	}
	// So it is before the first map.
	d = &drill{scene: newScene(0, v1alpha1.DataPolicyCache), t: t, recorded: map[string]uint64{}, unplaced: map[string]bool{name(2): true}, deaf: map[string]bool{}, tables: map[string]int32{}, said: map[string]string{}, lives: 100}
	d.Pool.Spec.Index = v1alpha1.IndexSpec{Protocol: v1alpha1.ProtocolRACE}
	d.aim(3)
	for range 4 {
		d.turn()
	}
	d.aim(2)
	d.untilSettled()
	if d.current().Epoch != 1 || d.current().Directory.Depth != 1 {
		t.Errorf("epoch %d at depth %d", d.current().Epoch, d.current().Directory.Depth)
	}
}

// A map that only one node holds, and that no object has any more, may have begun a move: an operator that finds it continues with it.
func TestAMoveIsNotTakenBack(t *testing.T) {
	d := newDrill(t, 2, v1alpha1.DataPolicyCache)
	d.aim(3)
	d.until("it has come", func(*decision) bool { return len(d.current().Nodes) == 3 })
	restored := slices.Clone(d.ShardMaps)
	d.deaf[name(0)], d.deaf[name(1)] = true, true
	d.until("it moves", func(*decision) bool { return d.current().Move == 1 })
	moving := d.current().DeepCopy()
	// The API server is restored from a backup of before, and the one node that heard of the move is out of reach, while another restarts: the
	// epochs of the two pasts meet.
	d.ShardMaps = restored
	d.Pool.Status.ShardMap = nil
	clear(d.deaf)
	held := d.Agents[d.NodePods[name(2)].UID]
	held.State = agent.Unreachable
	d.Agents[d.NodePods[name(2)].UID] = held
	for range 3 {
		d.begin(name(1), true)
		d.step(false)
	}
	if d.current().Move != 0 || d.current().Epoch <= moving.Epoch {
		t.Fatalf("epoch %d, move %d", d.current().Epoch, d.current().Move)
	}
	d.hear(name(2))
	plan := d.decide(t)
	next := published(t, plan)
	if next.Move != 1 || len(next.Departures) != len(moving.Departures) || !slices.Equal(next.Directory.Tables, moving.Directory.Tables) {
		t.Fatalf("move %d with %d departures", next.Move, len(next.Departures))
	}
	if next.Nodes[1].Incarnation == moving.Nodes[1].Incarnation {
		t.Error("the life of before is in the map again")
	}
	d.untilSettled()
	d.noneLost()
}

// A node that is to go and is gone for good has nothing to give, and nobody waits for it: at once in a Cache, in a Store when a person gives it up.
func TestANodeThatIsGoneForGoodIsNotDrained(t *testing.T) {
	for _, policy := range []v1alpha1.DataPolicy{v1alpha1.DataPolicyCache, v1alpha1.DataPolicyStore} {
		d := newDrill(t, 4, policy)
		// What it began without was accepted once. That is not to give up what it held since.
		d.Nodes[name(3)].Annotations = map[string]string{v1alpha1.AnnotationAcceptDataLoss: d.Nodes[name(3)].Status.Incarnation}
		d.unplaced[name(3)] = true
		d.vanish(name(3))
		d.aim(2)
		if policy == v1alpha1.DataPolicyStore {
			for range 6 {
				d.turn()
			}
			if d.current().Move != 0 {
				t.Fatal("a loss that nobody has accepted is passed over")
			}
			d.wantStage(v1alpha1.StageWaiting, "kubectl -n shop annotate memorynode cache-memory-3 --overwrite farpool.dev/give-up="+d.Nodes[name(3)].Status.Incarnation)
			d.Nodes[name(3)].Annotations = map[string]string{v1alpha1.AnnotationGiveUp: d.Nodes[name(3)].Status.Incarnation}
		}
		d.until("it moves", func(*decision) bool { return d.current().Move == 1 })
		for _, giver := range givers(d.current()) {
			if giver.Name != name(2) {
				t.Errorf("%s: %s gives", policy, giver.Name)
			}
		}
		d.untilSettled()
	}
	// Nobody else has anything to give.
	d := newDrill(t, 3, v1alpha1.DataPolicyCache)
	d.unplaced[name(2)] = true
	d.vanish(name(2))
	d.aim(2)
	d.until("it leaves the map", func(*decision) bool { return len(d.current().Nodes) == 2 })
	if d.current().Move != 1 {
		t.Errorf("move %d", d.current().Move)
	}
	d.untilSettled()
}

// What is asked for and has no place gives and takes nothing; the others do what they can, and it gets its share when it is back.
func TestANodeWithoutAPlaceIsNotWaitedForByTheOthers(t *testing.T) {
	d := newDrill(t, 3, v1alpha1.DataPolicyCache)
	d.unplaced[name(0)] = true
	d.vanish(name(0))
	d.aim(4)
	d.until("it moves", func(*decision) bool { return d.current().Move == 1 })
	if slices.ContainsFunc(givers(d.current()), func(entry *v1alpha1.ShardMapNode) bool { return entry.Name == name(0) }) {
		t.Error("a node that is not there gives")
	}
	for range 6 {
		d.turn()
	}
	if len(d.current().Departures) > 0 {
		t.Error("the move of the others is not finished")
	}
	d.wantStage(v1alpha1.StageWaiting, "no place to run neither give keys nor take any (cache-memory-0)")
	delete(d.unplaced, name(0))
	d.untilSettled()
}

// One that is to come and finds no place is not waited for by the others for ever, and gets its share when there is room.
func TestANewcomerWithoutAPlaceIsNotWaitedForForEver(t *testing.T) {
	d := newDrill(t, 2, v1alpha1.DataPolicyCache)
	d.Pool.Spec.Memory.Pools[0].Capacity = &v1alpha1.CapacityPolicy{FillPercent: 70, MaxReplicas: 9}
	d.unplaced[name(3)] = true
	d.aim(4)
	for range 12 {
		d.turn()
	}
	if d.current().Move != 0 {
		t.Fatal("nobody waits for a Kubernetes node that is on its way")
	}
	plan := d.step(false)
	d.wantStage(v1alpha1.StageWaiting, "waiting for memory nodes: cache-memory-3")
	if plan.RequeueAfter == 0 || plan.RequeueAfter > placePatience {
		t.Errorf("it is looked at again after %s", plan.RequeueAfter)
	}
	d.now = d.now.Add(placePatience)
	d.until("the others share the keys", func(*decision) bool { return d.current().Move == 1 })
	for range 6 {
		d.turn()
	}
	if spec := d.current(); len(spec.Nodes) != 3 || len(spec.Departures) > 0 || !shared(spec.Directory, []int32{0, 1, 2}) {
		t.Fatalf("%d nodes share %v", len(spec.Nodes), spec.Directory.Tables)
	}
	d.wantStage(v1alpha1.StageWaiting, "no Kubernetes node can take the pods of memory nodes that are to come (cache-memory-3)")
	wantCondition(t, d.step(false), v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonNodeUnschedulable)
	// A memory pool that is full does not ask for more and more of them.
	d.fill(90)
	d.turn()
	d.turn()
	d.wantLimited(metav1.ConditionTrue, v1alpha1.ReasonNodeUnschedulable)
	d.fill(20)
	delete(d.unplaced, name(3))
	d.wantNodes(4)
	d.noneLost()
}

// Nothing moves to where a pod is about to go.
func TestAPodThatIsBeingDeletedTakesNothing(t *testing.T) {
	d := newDrill(t, 2, v1alpha1.DataPolicyStore)
	d.aim(3)
	d.until("it has come", func(*decision) bool { return len(d.current().Nodes) == 3 })
	d.NodePods[name(2)].DeletionTimestamp = &metav1.Time{Time: d.now}
	for range 6 {
		d.turn()
	}
	if d.current().Move != 0 {
		t.Fatal("keys are moved to a memory node that goes")
	}
	d.wantStage(v1alpha1.StageWaiting, "memory nodes whose pods are being deleted take no keys (cache-memory-2)")
	d.vanish(name(2))
	d.step(false)
	d.kubelets()
	d.step(false)
	d.accept(2)
	d.wantNodes(3)
	d.noneLost()
}

// No more departs from a memory node that is gone, though no later incarnation says so. The pool waits for one that takes and is gone, and names it.
func TestGoneInTheMiddleOfAMove(t *testing.T) {
	d := newDrill(t, 3, v1alpha1.DataPolicyCache)
	d.aim(4)
	d.until("it moves", func(*decision) bool { return d.current().Move == 1 })
	d.unplaced[name(0)] = true
	d.vanish(name(0))
	d.step(false)
	if from := givers(d.current()); len(from) != 2 || from[0].Name != name(1) || d.current().Move != 1 {
		t.Fatalf("%d give in move %d", len(from), d.current().Move)
	}
	d.unplaced[name(3)] = true
	d.vanish(name(3))
	for range 4 {
		d.turn()
	}
	if len(d.current().Departures) == 0 {
		t.Fatal("what was begun is given up")
	}
	d.wantStage(v1alpha1.StageMoving, "memory nodes that take keys have no place to run (cache-memory-3)")
	clear(d.unplaced)
	d.untilSettled()
}

// After a restored backup the operator publishes nothing from a map that is known to be old, if no newer one is in reach.
func TestAMapOfAnotherPastIsNotTold(t *testing.T) {
	for what, change := range map[string]func(*drill){
		"keys have left in a move that the map does not know": func(d *drill) {
			d.aim(3)
			d.untilSettled()
		},
		"the memory has followed a later epoch": func(d *drill) {
			for range 3 {
				d.begin(name(0), true)
				d.step(false)
			}
		},
	} {
		d := newDrill(t, 2, v1alpha1.DataPolicyStore)
		restored, status := slices.Clone(d.ShardMaps), d.Pool.Status
		change(d)
		d.ShardMaps, d.Pool.Status = restored, status
		d.Pool.Spec.Memory.Pools[0].Replicas = 2
		for node := range d.NodePods {
			d.begin(node, true)
		}
		var plan *decision
		for range 4 {
			plan = d.step(false)
		}
		wantCondition(t, plan, v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonMapMissing)
		if len(plan.Publish) > 0 || planned(&plan.Plan) != nil || d.current().Epoch > restored[len(restored)-1].Spec.Epoch+1 {
			t.Errorf("%s: epoch %d is told all the same", what, d.current().Epoch)
		}
		for node := range d.NodePods {
			if slices.Contains(d.keys, node) && d.Agents[d.NodePods[node].UID].Facts.GetReady() {
				t.Errorf("%s: %s serves", what, node)
			}
		}
		// Another epoch than the lost one gives nothing up.
		d.mayBeginEmpty = true
		pods := len(d.NodePods)
		d.giveUp(d.lostEpoch() + 1)
		d.step(false)
		if len(d.NodePods) != pods {
			t.Fatalf("%s: what is not given up is deleted", what)
		}
		d.giveUp(d.lostEpoch())
		before := d.lostEpoch()
		d.outlives = func(writes int) int { return writes - 1 }
		for range 3 {
			d.step(true)
		}
		if d.current().Epoch > before {
			t.Fatalf("%s: epoch %d before all memory nodes are empty", what, d.current().Epoch)
		}
		d.untilSettled()
		if d.current().Epoch <= before || slices.ContainsFunc(d.keys, func(at string) bool { return at != lost }) {
			t.Errorf("%s: epoch %d follows %d", what, d.current().Epoch, before)
		}
		wantCondition(t, d.step(false), v1alpha1.ConditionDegraded, metav1.ConditionFalse, v1alpha1.ReasonHealthy)
	}
}

// The memory node that remembers the lost map is the last to forget it: until then any operator sees that it is to go on.
func TestWhoRemembersTheLostMapBeginsEmptyLast(t *testing.T) {
	d := newDrill(t, 2, v1alpha1.DataPolicyCache)
	d.mayBeginEmpty = true
	d.begin(name(0), true)
	d.recorded[name(0)] += 7
	d.begin(name(0), true)
	d.step(false)
	d.giveUp(d.lostEpoch())
	remembers, other := d.NodePods[name(0)].UID, d.NodePods[name(1)].UID
	d.step(false)
	if d.NodePods[name(0)] == nil || d.NodePods[name(0)].UID != remembers || d.NodePods[name(1)] != nil {
		t.Fatal("the lost map is forgotten while a memory node holds what it says nothing of")
	}
	d.wantNodes(2)
	if d.NodePods[name(0)].UID == remembers || d.NodePods[name(1)].UID == other {
		t.Error("a memory node keeps what was given up")
	}
}

// lostEpoch is the epoch that the condition names.
func (d *drill) lostEpoch() int64 {
	d.t.Helper()
	c := meta.FindStatusCondition(d.Pool.Status.Conditions, v1alpha1.ConditionDegraded)
	_, named, found := strings.Cut(c.Message, "kubectl -n shop annotate kvpool cache --overwrite "+v1alpha1.AnnotationBeginEmpty+"=")
	if named, _, _ = strings.Cut(named, ";"); !found {
		d.t.Fatal(c.Message)
	}
	epoch, err := strconv.ParseInt(named, 10, 64)
	if err != nil {
		d.t.Fatal(err)
	}
	return epoch
}

func (d *drill) giveUp(epoch int64) {
	d.Pool.Annotations = map[string]string{v1alpha1.AnnotationBeginEmpty: fmt.Sprint(epoch)}
}

// Memory nodes that restart keep their map, so a backup of the API server that is restored meanwhile takes nothing back.
func TestARestartBesideARestoredBackup(t *testing.T) {
	for _, policy := range []v1alpha1.DataPolicy{v1alpha1.DataPolicyCache, v1alpha1.DataPolicyStore} {
		d := newDrill(t, 2, policy)
		d.keeps = true
		restored, status := slices.Clone(d.ShardMaps), d.Pool.Status
		d.aim(3)
		d.untilSettled()
		move := d.current().Move
		d.ShardMaps, d.Pool.Status = restored, status
		for node := range d.NodePods {
			d.begin(node, true)
		}
		d.wantNodes(3)
		d.noneLost()
		if d.current().Move != move {
			t.Errorf("%s: move %d", policy, d.current().Move)
		}
	}
}

// An annotation that names an epoch that nothing has followed gives nothing up, and people learn of it.
func TestNothingIsGivenUpThatIsThere(t *testing.T) {
	d := newDrill(t, 2, v1alpha1.DataPolicyStore)
	d.giveUp(d.current().Epoch + 5)
	for range 4 {
		d.turn()
	}
	wantCondition(t, d.step(false), v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonMapMissing)
	d.begin(name(1), false)
	for range 4 {
		d.turn()
	}
	if entry := d.current().Nodes[1]; entry.State != v1alpha1.NodeStopped {
		t.Error("a loss that nobody has accepted is passed over")
	}
	d.Pool.Annotations = nil
	d.accept(1)
	d.wantNodes(2)
}

// That a node is drained may have been said in another past: one that runs and does not answer may hold what was put there since.
func TestWhatWasSaidOfANodeIsNotBelievedWhileItIsSilent(t *testing.T) {
	d := newDrill(t, 3, v1alpha1.DataPolicyCache)
	d.aim(2)
	d.until("it has left the map", func(*decision) bool { d.clients(always); return len(d.current().Nodes) == 2 })
	d.until("that is said", func(*decision) bool { return saidDrained(&node{object: d.Nodes[name(2)]}) })
	uid := d.NodePods[name(2)].UID
	d.Agents[uid] = agent.Observation{State: agent.Unreachable, Error: "silent", Facts: d.Agents[uid].Facts}
	for range 4 {
		d.turn()
	}
	if d.NodePods[name(2)] == nil {
		t.Fatal("a node that may hold keys is deleted")
	}
	d.hear(name(2))
	d.untilSettled()
	d.noneLost()
}

// Without any map keys cannot be found that have moved since the first.
func TestAFirstMapIsNotMadeOfWhatHasMoved(t *testing.T) {
	d := newDrill(t, 2, v1alpha1.DataPolicyStore)
	d.aim(3)
	d.untilSettled()
	d.ShardMaps = nil
	for ordinal := range 3 {
		d.begin(name(ordinal), true)
	}
	plan := d.decide(t)
	if planned(&plan.Plan) != nil {
		t.Error("a map is made")
	}
	wantCondition(t, plan, v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonMapMissing)
}

// A paused pool is not resized.
func TestAPausedPoolIsNotResized(t *testing.T) {
	d := newDrill(t, 2, v1alpha1.DataPolicyCache)
	d.aim(3)
	d.until("it moves", func(*decision) bool { return d.current().Move == 1 })
	d.Pool.Spec.Management = v1alpha1.ManagementPaused
	d.clients(always)
	for range 3 {
		plan := d.step(false)
		for _, object := range plan.Apply {
			if secret, ok := object.(*corev1ac.SecretApplyConfiguration); !ok || secret.Data["tls.crt"] == nil {
				t.Fatalf("something but certificates is applied: %v", object)
			}
		}
		if len(plan.Delete)+len(plan.Publish) > 0 {
			t.Fatal("something is done")
		}
	}
	d.wantStage(v1alpha1.StageMoving, "the operator may not act")
	d.Pool.Spec.Management = v1alpha1.ManagementManaged
	d.untilSettled()
	d.noneLost()
}

// More nodes than a map may have: some come when others have gone.
func TestAMapHasRoomForSoMany(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes seconds, which hack/mutants-operator would wait for with each of its mutants; make test-go runs it")
	}
	d := newDrill(t, 200, v1alpha1.DataPolicyCache)
	d.Pool.Spec.Memory.Pools = append(d.Pool.Spec.Memory.Pools, v1alpha1.MemoryPool{Name: "more", Replicas: 100, Lend: d.Pool.Spec.Memory.Pools[0].Lend})
	d.aim(156)
	most := 0
	for range 24 {
		d.turn()
		most = max(most, len(d.current().Nodes))
	}
	if most > nodesInMap || len(d.current().Nodes) != 256 || len(d.NodePods) != 256 || len(d.current().Departures) > 0 {
		t.Errorf("%d nodes in the map, at most %d, %d pods, %d departures", len(d.current().Nodes), most, len(d.NodePods), len(d.current().Departures))
	}
	d.noneLost()
}

// Everything at any time: aims, deaths with and without memory, silence, operators that die between two steps, memory nodes that receive no map.
// Where no memory is lost no key is; and when all is well again the pool comes to what its spec says.
func TestAnyOrderOfEvents(t *testing.T) {
	seeds := 8
	if testing.Short() {
		seeds = 2
	}
	protocols := []string{v1alpha1.ProtocolRACE, v1alpha1.ProtocolRCuckoo}
	for seed := range seeds {
		for i, policy := range []v1alpha1.DataPolicy{v1alpha1.DataPolicyCache, v1alpha1.DataPolicyStore} {
			protocol := protocols[(seed/2+i)%2]
			t.Run(fmt.Sprint(protocol, policy, seed), func(t *testing.T) {
				random := rand.New(rand.NewPCG(uint64(seed), 1))
				losses := seed%2 == 1
				d := newDrillOf(t, protocol, 1+random.IntN(5), policy)
				d.keeps = seed%3 == 0
				d.outlives = func(effects int) int { return random.IntN(effects + 1) }
				often := func(percent int) bool { return random.IntN(100) < percent }
				pick := func() string {
					names := sortedNames(d.NodePods)
					return names[random.IntN(len(names))]
				}
				for range 120 {
					if len(d.NodePods) == 0 {
						d.step(false)
						continue
					}
					node := pick()
					runs := d.NodePods[node].Status.Phase == corev1.PodRunning
					switch event := random.IntN(20); {
					case event == 0 && often(50) && d.MemoryPools["cache-memory"] != nil:
						d.scaleTo(1 + random.IntN(6))
					case event == 0:
						d.aim(1 + random.IntN(6))
					case event == 1 && runs:
						d.begin(node, true)
					case event == 2 && runs && losses:
						d.begin(node, false)
					case event == 3 && losses:
						d.vanish(node)
					case event == 4 && runs:
						observed := d.Agents[d.NodePods[node].UID]
						observed.State = agent.Unreachable
						d.Agents[d.NodePods[node].UID] = observed
					case event == 5:
						d.deaf[node] = !d.deaf[node]
					case event == 6:
						d.unplaced[node] = !d.unplaced[node]
					case event == 7 && often(20):
						d.MemoryPools = nil
					case event == 7 && len(d.Resizes) > 0 && often(30):
						d.Resizes = d.Resizes[:len(d.Resizes)-1]
					case event == 17:
						d.now = d.now.Add(time.Duration(random.IntN(120)) * time.Second)
					case event == 16 && len(d.Resizes) > 0 && often(50):
						d.operation().Spec.RequestedState = v1alpha1.RequestedAbort
					case event == 8:
						d.Pool.Spec.Resize = &v1alpha1.ResizeSpec{Approval: []v1alpha1.ResizeApproval{v1alpha1.ApprovalAutomatic, v1alpha1.ApprovalRequired}[random.IntN(2)]}
					case event == 18 && protocol == v1alpha1.ProtocolRACE:
						d.aimAt(min(16384, d.leastTables()<<random.IntN(3)))
					case event == 15:
						there := worker(random.IntN(workers))
						if len(d.Draining[there]) == 0 {
							d.Draining[there] = []corev1.Taint{cordoned}
						} else {
							delete(d.Draining, there)
						}
					case event == 19:
						d.editEntries(random)
					case event <= 10:
						d.agree()
					case event <= 14:
						for _, node := range sortedNames(d.NodePods) {
							if often(50) {
								d.hear(node)
							}
						}
					}
					if often(70) {
						d.kubelets()
					}
					d.clients(func() bool { return often(60) })
					d.step(often(15))
				}
				clear(d.deaf)
				clear(d.unplaced)
				clear(d.Draining)
				d.Pool.Spec.Resize = nil
				d.Resizes = slices.DeleteFunc(d.Resizes, func(operation *v1alpha1.ResizeOperation) bool {
					return operation.Spec.RequestedState == v1alpha1.RequestedAbort
				})
				for range 60 {
					for node := range d.NodePods {
						d.hear(node)
					}
					d.agree()
					d.turn()
				}
				d.untilSettled()
				if !losses {
					d.noneLost()
				}
			})
		}
	}
}

// An operator that dies after any of its effects, with all that it had in memory, leaves a pool that the next one goes on with: after the first
// effect of a growth and a drain, after the second, and so on until both end before one dies.
func TestTheOperatorDiesAfterEachEffect(t *testing.T) {
	for _, c := range []struct {
		protocol string
		policy   v1alpha1.DataPolicy
		approval v1alpha1.ResizeApproval
	}{
		{v1alpha1.ProtocolRACE, v1alpha1.DataPolicyStore, v1alpha1.ApprovalAutomatic},
		{v1alpha1.ProtocolRCuckoo, v1alpha1.DataPolicyCache, v1alpha1.ApprovalRequired},
	} {
		t.Run(c.protocol, func(t *testing.T) {
			began := func() *drill {
				d := newDrillOf(t, c.protocol, 2, c.policy)
				d.Pool.Spec.Resize = &v1alpha1.ResizeSpec{Approval: c.approval}
				return d
			}
			effects := 0
			for died := true; died; effects++ {
				d := began()
				d.effectsLeft = effects + 1
				d.growAndDrain()
				died = d.deaths > 0
			}
			// Fewer would mean that effects are not counted: objects and pods that come and go, maps that each memory node is told, and statuses.
			if effects < 80 {
				t.Errorf("all ends after %d effects", effects)
			}
			t.Logf("%d effects", effects)
			// Nor does it have to live for longer than one effect.
			for each := 1; each <= 8; each++ {
				d := began()
				d.effectsLeft, d.effectsOfALife = each, each
				d.growAndDrain()
				if d.deaths < effects/(4*each) {
					t.Errorf("%d operators have died", d.deaths)
				}
			}
		})
	}
}

// growAndDrain the pool of two memory nodes to four and back, whenever the operator dies.
func (d *drill) growAndDrain() {
	d.t.Helper()
	what := fmt.Sprintf("with %d effects until it dies, then %d", d.effectsLeft, d.effectsOfALife)
	for i, aim := range []int{4, 2} {
		d.aim(aim)
		chosen, done := 0, false
		for turn := 0; turn < 600 && !done; turn++ {
			d.step(false)
			d.kubelets()
			// Keys take more than one turn to move.
			d.clients(func() bool { chosen++; return chosen%3 > 0 })
			d.agree()
			done = len(d.Resizes) > i && d.operation().Status.CompletionTime != nil && len(d.Nodes) == aim
		}
		if !done || len(d.Resizes) != i+1 || d.operation().Status.Stage != v1alpha1.StageComplete || d.current().Move != int64(i+1) || len(d.current().Nodes) != aim || len(d.current().Departures) > 0 {
			d.t.Fatalf("%s: %d memory nodes are asked for: %d operations, the last %+v, move %d, %d memory nodes", what, aim, len(d.Resizes), d.operation().Status, d.current().Move, len(d.current().Nodes))
		}
	}
	// Events about a ResizeOperation are sent even if the operator dies, and twice only by an operator that dies before it has written them down.
	for _, reason := range []string{v1alpha1.ReasonResizePlanned, v1alpha1.ReasonMoving, v1alpha1.ReasonResizeComplete} {
		if d.effectsOfALife > 0 {
			break // some live too short to tell anything
		}
		if told := d.told("ResizeOperation", reason); told < 2 || told > 2+d.deaths {
			d.t.Errorf("%s: %s is told %d times: %s", what, reason, told, strings.Join(d.events, ", "))
		}
	}
	d.effectsLeft, d.effectsOfALife = 0, 0
	d.wantNodes(2)
	d.noneLost()
}

// agree has people approve of everything.
func (d *drill) agree() {
	for _, operation := range d.Resizes {
		if operation.Spec.Approval == v1alpha1.ApprovalRequired {
			operation.Spec.Approval = v1alpha1.ApprovalApproved
		}
	}
	if spec := d.current(); spec != nil {
		for _, entry := range spec.Nodes {
			object := d.Nodes[entry.Name]
			switch {
			case object == nil:
			case d.Unplaced[entry.Name]:
				object.Annotations = map[string]string{v1alpha1.AnnotationGiveUp: entry.Incarnation}
			case entry.State == v1alpha1.NodeStopped:
				object.Annotations = map[string]string{v1alpha1.AnnotationAcceptDataLoss: entry.Incarnation}
			}
		}
	}
}

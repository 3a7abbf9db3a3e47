// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"farpool.dev/farpool/api/v1alpha1"
)

var (
	simSeed  = flag.Int64("seed", -1, "the one seed that TestSimulation runs, and tells")
	simSeeds = flag.Int("seeds", 0, "how many seeds TestSimulation runs; 0: 40, or 15 in short mode")
	simQuick = flag.Bool("quick", false, "tell which seed breaks a rule without looking for a shorter story")
	simFirst = flag.Int64("first", 0, "the first of them")
)

// event is one thing that happens. It has a meaning in every world, so that a story can leave it out.
type event struct {
	what what
	seed uint64
}

type what int

const (
	operatorSteps what = iota
	operatorDies
	anotherOperator
	kubeletsAct
	clientsMove
	clientsWrite
	timePasses
	processEnds
	memoryEnds
	podFails
	podIsDeleted
	podIsEvicted
	nodeIsDeleted
	agentIsDeaf
	agentsHear
	roomChanges
	workerIsCordoned
	specIsScaled
	poolIsScaled
	pauseChanges
	approvalChanges
	evacuationChanges
	tablesAreRaised
	peopleApprove
	peopleAccept
	peopleAbort
	resizeIsDeleted
	faultsChange
	lastIsLost
	newcomerIsDeleted
	statusIsOld
	shardsWork
	shardEnds
	shardStops
	shardPodIsDeleted
	shardNodeIsLost
	sessionsExpire
	peopleRequestRepair
	podsAreAsBefore
	memoryPodsAreEdited
	versionChanges
	poolsAreEdited
	whats
)

var frequency = [whats]int{operatorSteps: 90, operatorDies: 3, anotherOperator: 3, kubeletsAct: 18, clientsMove: 22, clientsWrite: 5, timePasses: 6,
	processEnds: 6, memoryEnds: 1, podFails: 1, podIsDeleted: 1, podIsEvicted: 2, nodeIsDeleted: 1, agentIsDeaf: 3, agentsHear: 4, roomChanges: 3, workerIsCordoned: 5,
	specIsScaled: 12, poolIsScaled: 4, pauseChanges: 2, approvalChanges: 2, evacuationChanges: 1, tablesAreRaised: 1, peopleApprove: 5, peopleAccept: 5, peopleAbort: 2,
	resizeIsDeleted: 1, faultsChange: 4, lastIsLost: 2, newcomerIsDeleted: 3}

// ofShards is how frequent the events of compute shards are.
var ofShards = [whats]int{shardsWork: 20, shardEnds: 8, shardStops: 4, shardPodIsDeleted: 4, shardNodeIsLost: 1, sessionsExpire: 8, peopleRequestRepair: 2, podsAreAsBefore: 2,
	memoryPodsAreEdited: 2}

// hasShards says whether a seed's world has compute shards.
func hasShards(seed uint64) bool { return seed%3 == 2 }

// drawn from events by their frequency.
func drawn(random *rand.Rand, weights *[whats]int) event {
	total := 0
	for _, weight := range weights {
		total += weight
	}
	at := random.IntN(total)
	for w, weight := range weights {
		if at -= weight; at < 0 {
			return event{what(w), random.Uint64()}
		}
	}
	panic("the weights add up to more than all of them")
}

// run is a world with its operators, of which the second is there during a hand-over.
type run struct {
	*world
	operators []*operator
	faults    int
	counts    map[what]int
	careless  bool
}

// eventsOf a seed. What loses memory happens in half of them.
func eventsOf(seed uint64) []event {
	random := rand.New(rand.NewPCG(seed, 1))
	weights := frequency
	if random.IntN(2) == 0 {
		weights[memoryEnds], weights[podFails], weights[podIsDeleted], weights[nodeIsDeleted], weights[lastIsLost] = 0, 0, 0, 0, 0
	}
	var events []event
	for range 60 + random.IntN(60) {
		events = append(events, drawn(random, &weights))
	}
	// What the world has learnt since comes into some seeds from a randomness of its own, so that the stories of the others stay what they were.
	if seed%8 == 5 {
		later := rand.New(rand.NewPCG(seed, 5))
		for range 4 {
			events = slices.Insert(events, later.IntN(len(events)), event{statusIsOld, later.Uint64()})
		}
	}
	if seed%4 == 1 {
		later := rand.New(rand.NewPCG(seed, 13))
		for range 1 + later.IntN(6) {
			events = slices.Insert(events, later.IntN(len(events)), event{poolsAreEdited, later.Uint64()})
		}
	}
	if hasShards(seed) {
		later := rand.New(rand.NewPCG(seed, 7))
		for range 30 + later.IntN(30) {
			events = slices.Insert(events, later.IntN(len(events)), drawn(later, &ofShards))
		}
		if seed%2 == 0 {
			for range 1 + later.IntN(4) {
				events = slices.Insert(events, later.IntN(len(events)), event{versionChanges, later.Uint64()})
			}
		}
	}
	return events
}

// simulate a seed with these of its events, and return what was broken.
func simulate(seed uint64, events []event, tell bool) (r *run, broken *violation) {
	r = &run{world: newWorld(rand.New(rand.NewPCG(seed, 2))), counts: map[what]int{}}
	r.tell, r.slowness = tell, rand.New(rand.NewPCG(seed, 11))
	if hasShards(seed) {
		r.withShards()
	}
	r.operators = []*operator{newOperator(r.world, "operator A")}
	defer func() {
		for _, o := range r.operators {
			o.die()
		}
	}()
	if seed%4 > 0 {
		r.settle(40, false) // others begin with a pool that is being made
	}
	for _, e := range events {
		if r.broken != nil {
			return r, r.broken
		}
		r.happen(e)
	}
	if r.broken == nil {
		r.endFaults()
		r.settle(250, true)
	}
	return r, r.broken
}

func pick[T any](random *rand.Rand, from []T) T { return from[random.IntN(len(from))] }

func (w *world) names(k kind) []string { return slices.Sorted(maps.Keys(w.live(k))) }

func (r *run) happen(e event) {
	random := rand.New(rand.NewPCG(e.seed, 3))
	chance := func(percent int) bool { return random.IntN(100) < percent }
	r.counts[e.what]++
	for _, o := range r.operators {
		o.random, o.faults = random, r.faults
	}
	var pod *corev1.Pod
	if names := r.names(kindPod); len(names) > 0 {
		pod = r.pod(pick(random, names))
	}
	runs := pod != nil && r.processes[pod.UID] != nil
	switch e.what {
	case operatorSteps:
		r.now = r.now.Add(time.Second)
		o := pick(random, r.operators)
		for range 1 + random.IntN(40) {
			before := o.writes
			if o.step(); r.broken != nil || o.next == nil && before == o.writes {
				return // it has nothing to do
			}
		}
	case operatorDies:
		i := random.IntN(len(r.operators))
		r.say("%s dies", r.operators[i].name)
		r.operators[i].die()
		r.operators[i] = newOperator(r.world, r.operators[i].name)
	case anotherOperator:
		if len(r.operators) == 1 {
			r.say("operator B begins, and operator A does not know yet")
			r.operators = append(r.operators, newOperator(r.world, "operator B"))
		} else {
			r.say("one operator ends")
			i := random.IntN(2)
			r.operators[i].die()
			r.operators = slices.Delete(r.operators, i, i+1)
		}
	case kubeletsAct:
		r.kubelets(random)
	case clientsMove:
		often := 3 + random.IntN(70)
		r.move(func() bool { return chance(often) })
	case clientsWrite:
		r.write(func() bool { return chance(50) })
	case timePasses:
		r.now = r.now.Add(time.Duration(random.IntN(120)) * time.Second)
	case processEnds:
		if runs {
			r.startOrCrash(pod, true)
		}
	case memoryEnds:
		if runs {
			r.startOrCrash(pod, false)
		}
	case podFails:
		if runs {
			r.say("pod %s fails", pod.Name)
			r.forget(r.processes[pod.UID].memory)
			delete(r.processes, pod.UID)
			edit(r.world, kindPod, pod.Name, func(pod *corev1.Pod) { pod.Status.Phase, pod.Status.ContainerStatuses = corev1.PodFailed, nil })
		}
	case podIsDeleted:
		if pod != nil && pod.DeletionTimestamp.IsZero() {
			r.say("pod %s is deleted, or preempted", pod.Name)
			edit(r.world, kindPod, pod.Name, func(pod *corev1.Pod) { pod.DeletionTimestamp = &metav1.Time{Time: r.now} })
		}
	case podIsEvicted:
		if pod != nil && r.live(kindWorker)[pod.Spec.NodeName] != nil && r.live(kindWorker)[pod.Spec.NodeName].(*corev1.Node).Spec.Unschedulable {
			r.evict(pod)
		}
	case nodeIsDeleted:
		if names := r.names(kindNode); len(names) > 0 {
			name := pick(random, names)
			r.say("a person deletes MemoryNode %s", name)
			r.take(kindNode, name)
		}
	case agentIsDeaf:
		if pod != nil {
			r.deaf[pod.Name] = !r.deaf[pod.Name]
			r.say("memory node %s answers: %v", pod.Name, !r.deaf[pod.Name])
		}
	case agentsHear:
		clear(r.deaf)
		for _, o := range r.operators {
			o.hear(chance)
		}
	case roomChanges:
		r.full = !r.full
		r.say("there is room for pods: %v", !r.full)
	case workerIsCordoned:
		name := pick(random, r.names(kindWorker))
		edit(r.world, kindWorker, name, func(worker *corev1.Node) { worker.Spec.Unschedulable = !worker.Spec.Unschedulable })
		r.say("%s is cordoned: %v", name, r.live(kindWorker)[name].(*corev1.Node).Spec.Unschedulable)
	case specIsScaled:
		replicas := int32(1 + random.IntN(simNodes))
		r.say("the spec asks for %d memory nodes", replicas)
		r.respec(func(spec *v1alpha1.KVPoolSpec) { spec.Memory.Pools[0].Replicas = replicas })
	case poolIsScaled:
		for _, name := range r.names(kindScale) {
			replicas := int32(1 + random.IntN(simNodes))
			if name != v1alpha1.ScaleName(simPool, simEntry) {
				replicas = (replicas + 1) / 2
			}
			r.say("MemoryNodePool %s is scaled to %d", name, replicas)
			edit(r.world, kindScale, name, func(scale *v1alpha1.MemoryNodePool) { scale.Spec.Replicas = replicas })
		}
	case pauseChanges:
		r.respec(func(spec *v1alpha1.KVPoolSpec) {
			spec.Management = map[v1alpha1.Management]v1alpha1.Management{v1alpha1.ManagementPaused: v1alpha1.ManagementManaged, v1alpha1.ManagementManaged: v1alpha1.ManagementPaused}[spec.Management]
			r.say("the pool is %s", spec.Management)
		})
	case approvalChanges, evacuationChanges:
		r.respec(func(spec *v1alpha1.KVPoolSpec) {
			resize := v1alpha1.ResizeSpec{Approval: v1alpha1.ApprovalAutomatic, Evacuation: v1alpha1.EvacuationAutomatic}
			if chance(50) {
				resize.Approval = v1alpha1.ApprovalRequired
			}
			if e.what == evacuationChanges && chance(50) {
				resize.Evacuation = v1alpha1.EvacuationDisabled
			}
			spec.Resize = &resize
			r.say("resizes: approval %s, evacuation %s", resize.Approval, resize.Evacuation)
		})
	case tablesAreRaised:
		if r.index == v1alpha1.ProtocolRACE {
			r.respec(func(spec *v1alpha1.KVPoolSpec) { spec.Index.RACE.LeastTables = min(64, 2*spec.Index.RACE.LeastTables) })
		}
	case peopleApprove:
		r.approve()
	case peopleAccept:
		r.careless = chance(30)
		r.accept(random.IntN(2) == 0)
		r.careless = false
	case peopleAbort, resizeIsDeleted:
		if names := r.names(kindResize); len(names) > 0 {
			name := pick(random, names)
			if e.what == resizeIsDeleted {
				r.say("a person deletes ResizeOperation %s", name)
				r.resizesDeleted = true
				r.take(kindResize, name)
			} else {
				r.say("a person aborts ResizeOperation %s", name)
				edit(r.world, kindResize, name, func(operation *v1alpha1.ResizeOperation) { operation.Spec.RequestedState = v1alpha1.RequestedAbort })
			}
		}
	case lastIsLost:
		// One that is asked for no longer, and whose pod has no place to come back to.
		if spec := r.newestObject(); spec != nil && len(spec.Nodes) > 1 {
			name := spec.Nodes[len(spec.Nodes)-1].Name
			r.say("%d memory nodes are asked for, and %s is gone with its Kubernetes node", len(spec.Nodes)-1, name)
			r.full = true
			r.respec(func(spec *v1alpha1.KVPoolSpec) {
				spec.Memory.Pools[0].Replicas = int32(min(simNodes, len(r.newestObject().Nodes)-1))
			})
			if pod := r.pod(name); pod != nil {
				r.endPod(pod)
			}
		}
	case newcomerIsDeleted:
		// One that runs, and that no map has yet, once operators have heard of it.
		for _, name := range r.names(kindPod) {
			newcomer := r.pod(name)
			if spec := r.newestObject(); spec == nil || lists(spec, name) || r.processes[newcomer.UID] == nil || !newcomer.DeletionTimestamp.IsZero() {
				continue
			}
			for _, o := range r.operators {
				o.hear(always)
			}
			r.say("pod %s is deleted, which no map has yet", name)
			edit(r.world, kindPod, name, func(pod *corev1.Pod) { pod.DeletionTimestamp = &metav1.Time{Time: r.now} })
		}
	case statusIsOld:
		r.bringBackAnOldStatus(random)
	case versionChanges:
		r.changeVersion(random)
	case poolsAreEdited:
		r.editPools(random)
	case shardsWork, shardEnds, shardStops, shardPodIsDeleted, shardNodeIsLost, sessionsExpire, peopleRequestRepair, podsAreAsBefore, memoryPodsAreEdited:
		r.happenToShards(e, random, chance)
	case faultsChange:
		r.faults = pick(random, []int{0, 0, 5, 20, 40})
		r.say("of a hundred calls %d fail", r.faults)
	}
}

// bringBackAnOldStatus has a memory node of the map said to be drained once more, as after a backup of its MemoryNode that is restored, while the operator that
// begins is shown a map from before that memory node came into it, and does not hear it.
func (r *run) bringBackAnOldStatus(random *rand.Rand) {
	newest := r.newestObject()
	if newest == nil {
		return
	}
	var candidates []string
	for _, entry := range newest.Nodes {
		if object := r.live(kindNode)[entry.Name]; object != nil && r.saidDrained[entry.Name] != nil && r.pod(entry.Name) != nil && hasPart(newest, entry.Name) {
			candidates = append(candidates, entry.Name)
		}
	}
	if len(candidates) == 0 {
		return
	}
	name := pick(random, candidates)
	before := -1
	for at := range r.history[kindMap] {
		if shown := newestOf(r.history[kindMap][at]); shown != nil && !lists(shown, name) {
			before = at
		}
	}
	if before < 0 {
		return
	}
	r.say("MemoryNode %s is said to be drained, by a status of another past", name)
	edit(r.world, kindNode, name, func(object *v1alpha1.MemoryNode) { object.Status.Conditions = slices.Clone(r.saidDrained[name]) })
	r.deaf[name] = true
	i := random.IntN(len(r.operators))
	r.say("%s dies, and the next one is shown old maps", r.operators[i].name)
	r.operators[i].die()
	r.operators[i] = newOperator(r.world, r.operators[i].name)
	r.operators[i].seen[kindMap], r.operators[i].stuck[kindMap] = before, 1+random.IntN(3)
	r.operators[i].random, r.operators[i].faults = random, r.faults
}

// approve of everything that waits for a person.
func (r *run) approve() {
	for _, name := range r.names(kindResize) {
		if r.live(kindResize)[name].(*v1alpha1.ResizeOperation).Spec.Approval == v1alpha1.ApprovalRequired {
			r.say("a person approves of ResizeOperation %s", name)
			edit(r.world, kindResize, name, func(operation *v1alpha1.ResizeOperation) { operation.Spec.Approval = v1alpha1.ApprovalApproved })
		}
	}
}

// accept what is lost: what lives began without, or lives that are gone for good. People read incarnations from statuses.
func (r *run) accept(giveUp bool) {
	for _, name := range r.names(kindNode) {
		object := r.live(kindNode)[name].(*v1alpha1.MemoryNode)
		annotation := v1alpha1.AnnotationAcceptDataLoss
		if giveUp {
			annotation = v1alpha1.AnnotationGiveUp
			if pod := r.pod(name); pod != nil && r.processes[pod.UID] != nil && !r.careless {
				continue // few people give up what is there
			}
		}
		if life := object.Status.Incarnation; life != "" && object.Annotations[annotation] != life {
			r.givenUp[life] = r.givenUp[life] || giveUp
			r.accepted[life] = r.accepted[life] || !giveUp
			edit(r.world, kindNode, name, func(object *v1alpha1.MemoryNode) {
				object.Annotations = maps.Clone(object.Annotations)
				if object.Annotations == nil {
					object.Annotations = map[string]string{}
				}
				object.Annotations[annotation] = life
			})
		}
	}
}

// endFaults makes the world one in which every pool comes to what its spec asks for.
func (r *run) endFaults() {
	r.say("all faults end")
	for _, o := range r.operators {
		o.die()
	}
	r.operators = []*operator{newOperator(r.world, "operator A")}
	r.faults, r.full = 0, false
	clear(r.deaf)
	r.endShardFaults()
	for _, name := range r.names(kindWorker) {
		edit(r.world, kindWorker, name, func(worker *corev1.Node) { worker.Spec.Unschedulable = false })
	}
	r.respec(func(spec *v1alpha1.KVPoolSpec) {
		spec.Management, spec.Resize = v1alpha1.ManagementManaged, nil
		if version := spec.Version; version == "bad" || version == "half" {
			spec.Version = []string{"", "3"}[r.serial%2]
		}
	})
	r.endWithoutMemory()
	for _, name := range r.names(kindResize) {
		if r.live(kindResize)[name].(*v1alpha1.ResizeOperation).Spec.RequestedState == v1alpha1.RequestedAbort {
			r.take(kindResize, name)
		}
	}
}

// settle goes on, with nothing that goes wrong, until the pool is as its spec has it; it has to be at last if demanded.
func (r *run) settle(rounds int, demanded bool) {
	random := rand.New(rand.NewPCG(1, 4))
	o := r.operators[0]
	quiet, why := 0, ""
	for range rounds {
		before := o.writes
		o.reconcileAll()
		if r.broken != nil {
			return
		}
		r.kubelets(random)
		r.move(func() bool { return true })
		r.shardKubelets()
		r.work(random)
		r.expire(func() bool { return true })
		if demanded {
			r.approve()
			r.accept(false)
			r.accept(true)
		}
		r.now = r.now.Add(5 * time.Second)
		if why = r.unsettled(); why == "" && before == o.writes && !o.failed {
			quiet++
		} else {
			quiet = 0
		}
		if quiet == 3 {
			return
		}
	}
	if demanded {
		if why == "" {
			why = "the operator goes on writing, or fails"
		}
		r.fail("everything settles", "%s", why)
	}
}

// unsettled says what is not yet as the spec has it.
func (r *run) unsettled() string {
	pool := r.pool()
	progressing := meta.FindStatusCondition(pool.Status.Conditions, v1alpha1.ConditionProgressing)
	degraded := meta.FindStatusCondition(pool.Status.Conditions, v1alpha1.ConditionDegraded)
	spec := r.newestObject()
	wanted, why := r.wanted()
	switch {
	case why != "":
		return why
	case progressing == nil || progressing.Status != metav1.ConditionFalse || degraded == nil || degraded.Status != metav1.ConditionFalse:
		return fmt.Sprintf("conditions are %+v, %+v", progressing, degraded)
	case spec == nil:
		return "there is no map"
	case len(spec.Nodes) != wanted || len(r.live(kindNode)) != len(spec.Nodes) || len(r.live(kindPod)) != len(spec.Nodes) || len(spec.Departures) > 0:
		return fmt.Sprintf("%d memory nodes are asked for: %d objects, %d pods, map: %s", wanted, len(r.live(kindNode)), len(r.live(kindPod)), outline(spec))
	}
	for i := range spec.Nodes {
		if r.serves(spec, &spec.Nodes[i]) == nil {
			return fmt.Sprintf("%s does not serve epoch %d", spec.Nodes[i].Name, spec.Epoch)
		}
	}
	share := map[string]int{}
	for _, table := range spec.Directory.Tables {
		share[owner(spec, table).Name]++
	}
	least, most := len(spec.Directory.Tables), 0
	for _, entry := range spec.Nodes {
		least, most = min(least, share[entry.Name]), max(most, share[entry.Name])
	}
	if most-least > 1 {
		return fmt.Sprintf("shares are %v", share)
	}
	for _, name := range r.names(kindResize) {
		if r.live(kindResize)[name].(*v1alpha1.ResizeOperation).Status.CompletionTime == nil {
			return fmt.Sprintf("ResizeOperation %s is open", name)
		}
	}
	if says := r.unupgraded(); says != "" {
		return says
	}
	return r.unrepaired()
}

// shrink leaves out events, as many as can be left out with the same rule broken.
func shrink(seed uint64, events []event, rule string, most int) []event {
	for size := len(events) / 2; size > 0; size /= 2 {
		for at := 0; at < len(events); {
			fewer := slices.Concat(events[:at], events[min(at+size, len(events)):])
			if most--; most < 0 {
				return events
			}
			if _, broken := simulate(seed, fewer, false); broken != nil && broken.rule == rule {
				events = fewer
			} else {
				at += size
			}
		}
	}
	return events
}

// tellOf a seed that breaks a rule, without what has nothing to do with it.
func tellOf(seed uint64, events []event, broken *violation) string {
	fewer := events
	if !*simQuick {
		fewer = shrink(seed, events, broken.rule, 600)
	}
	r, _ := simulate(seed, fewer, true)
	return fmt.Sprintf("seed %d breaks a rule: %v\nwhat is left of the story with %d of %d events (go test ./operator/internal/plan -run 'TestSimulation$' -seed %d):\n%s",
		seed, broken, len(fewer), len(events), seed, strings.Join(r.story, "\n"))
}

// Everything that happens to operators, memory nodes and the API server, in any order, from one seed: rules are never broken, and once nothing goes
// wrong any more every pool comes to what its spec asks for.
func TestSimulation(t *testing.T) {
	if *simSeed >= 0 {
		events := eventsOf(uint64(*simSeed))
		r, broken := simulate(uint64(*simSeed), events, true)
		if broken != nil {
			t.Fatal(tellOf(uint64(*simSeed), events, broken))
		}
		t.Log(strings.Join(r.story, "\n"))
		return
	}
	seeds := *simSeeds
	if seeds == 0 {
		if seeds = 40; testing.Short() {
			seeds = 15
		}
	}
	began := time.Now()
	counts, moves, epochs, putOff, late := map[what]int{}, 0, 0, 0, 0
	var total repairWorld
	// Worlds share nothing: each processor has one. If several break a rule, the story of the first seed is told.
	var wait sync.WaitGroup
	var mutex sync.Mutex
	var next, ends atomic.Uint64
	ends.Store(uint64(seeds))
	var broke *violation
	for range runtime.GOMAXPROCS(0) {
		wait.Go(func() {
			for at := next.Add(1) - 1; at < ends.Load(); at = next.Add(1) - 1 {
				seed := uint64(*simFirst) + at
				r, broken := simulate(seed, eventsOf(seed), false)
				mutex.Lock()
				if broken != nil && at < ends.Load() {
					broke = broken
					ends.Store(at)
				}
				for w, count := range r.counts {
					counts[w] += count
				}
				if r.repairs != nil {
					total.add(r.repairs)
				}
				moves += len(r.moves)
				epochs += len(r.maps)
				putOff += r.putOff
				late += r.late
				mutex.Unlock()
			}
		})
	}
	wait.Wait()
	if broke != nil {
		seed := uint64(*simFirst) + ends.Load()
		t.Fatal(tellOf(seed, eventsOf(seed), broke))
	}
	took := time.Since(began)
	t.Logf("total: planner: %d seeds, %d epochs, %d moves, %d objects put off, %d lists written late, %.0f seeds a minute", seeds, epochs, moves, putOff, late, float64(seeds)/took.Minutes())
	t.Logf("total: planner: %d RepairLeases, %d calls to fence, %d calls to repair, which repaired what %d sessions had left, %d patches of pods", total.leases, total.fences, total.attempts, total.repaired, total.amended)
	t.Logf("total: planner: %d images that pods of memory nodes got, with %d of which they served", total.patches, total.returns)
	if seeds >= 100 && total.returns < seeds/10 {
		t.Error("too little is upgraded")
	}
	if seeds >= 100 && (late < seeds || total.leases < seeds/10 || total.repaired < seeds/50 || total.amended < seeds/10) {
		t.Error("too little is repaired, amended or written late")
	}
	for w := range whats {
		if counts[w] == 0 && seeds >= 100 {
			t.Errorf("event %d never happened", w)
		}
	}
	if epochs < 5*seeds || moves < seeds || putOff < seeds {
		t.Errorf("too little happens: %d epochs, %d moves and %d objects put off of %d seeds", epochs, moves, putOff, seeds)
	}
}

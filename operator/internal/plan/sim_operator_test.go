// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"farpool.dev/farpool/api/v1alpha1"
	apiac "farpool.dev/farpool/api/v1alpha1/applyconfiguration/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/agent"
	"farpool.dev/farpool/operator/internal/observe"
	"farpool.dev/farpool/operator/internal/plan"
	"farpool.dev/farpool/operator/internal/render"
)

// operator decides from what it has seen, which lags, and carries that out in steps: between any two of them everything else may happen.
type operator struct {
	*world
	name string
	seen [kinds]int
	// stuck is how often more the cache of a kind will not catch up.
	stuck   [kinds]int
	streams map[types.UID]agent.Observation

	// faults is how many of a hundred calls fail, by random.
	faults int
	random *rand.Rand

	next func() (string, bool)
	stop func()
	wait func(string) bool

	snapshot *observe.Snapshot
	decided  *plan.Plan
	// prepared are the lives that hold the map that is being published; refused says that one refuses it.
	prepared map[types.UID]uint64
	refused  error
	// blamed: the pool's status says what was not done. behind: the plan was made from a cache that lags, or objects were put off.
	blamed, behind bool
	// turn is how many objects this look may still write, if it is short.
	turn  int
	short bool
	// writes counts what was changed in the API server or told; failed says that the last plan was not carried out.
	writes int
	failed bool

	// calls on behalf of RepairLeases; exits are how pods of compute shards were seen to end that are gone, and exitOf which processes were in these.
	calls  map[callKey]*agent.Outcome
	exits  map[types.UID]*corev1.ContainerStateTerminated
	exitOf map[types.UID]string
	// onTheWay is the write of a list of processes that looks do not wait for; nil: there is none.
	onTheWay func()
}

func newOperator(w *world, name string) *operator {
	o := &operator{world: w, name: name, streams: map[types.UID]agent.Observation{}, random: rand.New(rand.NewPCG(1, 1)),
		calls: map[callKey]*agent.Outcome{}, exits: map[types.UID]*corev1.ContainerStateTerminated{}, exitOf: map[types.UID]string{}}
	o.catchUp(always)
	return o
}

func always(int) bool { return true }

// catchUp has the cache of each kind that is chosen show what is; of others it shows some moment since what it showed before.
func (o *operator) catchUp(chosen func(percent int) bool) {
	for k := range o.seen {
		newest := len(o.history[k]) - 1
		if o.stuck[k] > 0 {
			o.stuck[k]--
		} else if chosen(75) {
			o.seen[k] = newest
		} else if behind := newest - o.seen[k]; behind > 0 {
			o.seen[k] += o.random.IntN(behind + 1)
		}
	}
}

// hear records what the chosen agents say.
func (o *operator) hear(chosen func(percent int) bool) {
	for _, uid := range slices.Sorted(maps.Keys(o.streams)) {
		if chosen(85) {
			o.hearOne(uid)
		}
	}
}

func (o *operator) hearOne(uid types.UID) {
	before := o.streams[uid]
	if o.repairs != nil {
		if s := o.repairs.shards[uid]; s != nil && !s.stopped && !o.deaf[s.name] {
			o.streams[uid] = agent.Observation{State: agent.Connected, Facts: s.says()}
			return
		}
	}
	p := o.processes[uid]
	if p == nil || o.deaf[p.memory.node] {
		before.State, before.Error = agent.Unreachable, "silent"
		o.streams[uid] = before
		return
	}
	now := agent.Observation{State: agent.Connected, Facts: o.says(p)}
	if !p.fresh {
		now.RefusedEpoch = before.RefusedEpoch
	}
	o.streams[uid] = now
}

type died struct{}

// step takes the next step of a plan, or begins one. It says what was done.
func (o *operator) step() {
	if o.next == nil {
		o.next, o.stop = iter.Pull(func(yield func(string) bool) {
			defer func() {
				if cause := recover(); cause != nil {
					if _, ends := cause.(died); !ends {
						panic(cause)
					}
				}
			}()
			o.wait = yield
			o.reconcile()
		})
	}
	if what, more := o.next(); !more {
		o.next = nil
	} else if what != "" {
		o.say("%s: %s", o.name, what)
	}
}

// reconcile once, to its end.
func (o *operator) reconcileAll() {
	for o.step(); o.next != nil; o.step() {
	}
}

// die in the middle of whatever it does, with all that it had in memory.
func (o *operator) die() {
	if o.next != nil {
		o.stop()
		o.next = nil
	}
	// What it asked for may take place without it.
	for _, key := range o.callKeys() {
		if outcome := o.calls[key]; outcome.Running && o.random.IntN(2) == 0 {
			o.answerCall(outcome)
		}
	}
	clear(o.calls)
	o.arrive(o.random.IntN(2) == 0)
	o.onTheWay = nil
}

// arrive has the write that is on its way take effect, if now.
func (o *operator) arrive(now bool) {
	if write := o.onTheWay; write != nil && now {
		o.onTheWay = nil
		write()
	}
}

// before each call, something else may happen, or the operator dies.
func (o *operator) before(format string, arguments ...any) {
	o.arrive(o.onTheWay != nil && o.slowness.IntN(8) == 0)
	what := ""
	if o.tell {
		what = fmt.Sprintf(format, arguments...)
	}
	if !o.wait(what) {
		panic(died{})
	}
}

// call the API server, which may fail before anything has happened, or after.
func (o *operator) call(what string, do func() error) error {
	fate := o.random.IntN(100)
	if fate < o.faults/2 {
		o.say("%s: %s fails", o.name, what)
		return errFault
	}
	o.writes++
	err := do()
	if err != nil {
		o.say("%s: %s: %v", o.name, what, err)
	}
	if err == nil && fate < o.faults {
		o.say("%s: %s has taken effect, and no answer comes", o.name, what)
		return errFault
	}
	return err
}

func (o *operator) reconcile() {
	o.failed = true
	chance := func(percent int) bool { return o.faults == 0 || o.random.IntN(100) < percent }
	o.arrive(o.onTheWay != nil && o.slowness.IntN(2) == 0)
	o.catchUp(chance)
	o.hear(chance)
	o.answerCalls(chance)
	if o.random.IntN(100) < o.faults/8 {
		return // it could not even read
	}
	o.observe()
	decided, err := plan.Decide(plan.Input{Snapshot: o.snapshot, Now: o.now, Random: o.entropy(),
		Settings: plan.Settings{Image: simImage, Namespace: "farpool-system", PodResize: o.repairs != nil, AgentAddress: func(*corev1.Pod) string { return "10.0.0.1:7401" }}})
	if err != nil {
		o.fail("a plan can be made", "%v", err)
		return
	}
	o.decided, o.prepared, o.refused = decided, map[types.UID]uint64{}, nil
	o.behind, o.blamed = false, false
	o.short, o.turn = o.slowness.IntN(4) == 0, 1+o.slowness.IntN(3)
	o.failed = len(decided.CarryOut(o)) > 0
}

// entropy is other bytes for each operator and moment.
func (o *operator) entropy() *rand.ChaCha8 {
	o.serial++
	return rand.NewChaCha8([32]byte{byte(o.serial), byte(o.serial >> 8), byte(o.serial >> 16)})
}

// cached are the objects of a kind as the operator's cache shows them.
func (o *operator) cached(k kind) objects { return o.history[k][o.seen[k]] }

func byName[T client.Object](from objects) map[string]T {
	list := map[string]T{}
	for name, object := range from {
		list[name] = object.(T)
	}
	return list
}

func sortedObjects[T client.Object](from objects) []T {
	var list []T
	for _, name := range slices.Sorted(maps.Keys(from)) {
		list = append(list, from[name].(T))
	}
	return list
}

// observe is what observe.Take makes of the cache and of what it asks the API server itself.
func (o *operator) observe() {
	s := &observe.Snapshot{
		Pool:        o.cached(kindPool)[simPool].(*v1alpha1.KVPool),
		Nodes:       byName[*v1alpha1.MemoryNode](o.cached(kindNode)),
		NodePods:    map[string]*corev1.Pod{},
		Secrets:     byName[*corev1.Secret](o.cached(kindSecret)),
		Budgets:     byName[*policyv1.PodDisruptionBudget](o.cached(kindBudget)),
		MemoryPools: byName[*v1alpha1.MemoryNodePool](o.cached(kindScale)),
		ShardMaps:   sortedObjects[*v1alpha1.ShardMap](o.cached(kindMap)),
		Resizes:     sortedObjects[*v1alpha1.ResizeOperation](o.cached(kindResize)),
		Agents:      maps.Clone(o.streams),
		Unplaced:    map[string]bool{}, Draining: map[string][]corev1.Taint{}, OutOfService: map[string]bool{}, Gone: map[types.UID]bool{},
	}
	// What is kept is asked for by its name, of the API server itself if the cache does not show it.
	s.Kept = map[string]*corev1.Secret{}
	for _, name := range render.KeptSecretNames(simPool, s.Pool.UID) {
		if secret := s.Secrets[name]; secret != nil {
			s.Kept[name] = secret
		} else if live, ok := o.world.live(kindSecret)[name].(*corev1.Secret); ok {
			s.Kept[name] = live
		}
		delete(s.Secrets, name)
	}
	slices.SortFunc(s.Resizes, func(a, b *v1alpha1.ResizeOperation) int {
		if by := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); by != 0 {
			return by
		}
		if by := len(a.Name) - len(b.Name); by != 0 {
			return by
		}
		return strings.Compare(a.Name, b.Name)
	})
	for name, pod := range byName[*corev1.Pod](o.cached(kindPod)) {
		if node := s.Nodes[name]; node != nil && controls(node, pod) || kept(pod) {
			s.NodePods[name] = pod
		}
	}
	for name, worker := range byName[*corev1.Node](o.cached(kindWorker)) {
		if taints := observe.DefaultDrainTaints.Of(worker); len(taints) > 0 {
			s.Draining[name] = taints
		}
	}
	if len(s.ShardMaps) > 0 && s.Pool.Spec.Management != v1alpha1.ManagementPaused {
		placed := func(pod *corev1.Pod) bool {
			return pod != nil && (pod.Spec.NodeName != "" || pod.Status.Phase != corev1.PodPending)
		}
		for _, entry := range s.ShardMaps[len(s.ShardMaps)-1].Spec.Nodes {
			if !placed(s.NodePods[entry.Name]) && !placed(o.pod(entry.Name)) {
				s.Unplaced[entry.Name] = true
			}
		}
	}
	o.observeShards(s)
	o.snapshot = s
}

// What carries a plan out.

func (o *operator) SideBySide(count int, do func(int)) {
	for _, i := range o.random.Perm(count) {
		do(i)
	}
}

// Apply does what the controller does: a look that is short writes a few objects, and puts others off. A failure gives it the time to write all.
func (o *operator) Apply(object render.Object) error {
	err := o.apply(object)
	if err != nil && !errors.Is(err, errLater) && !errors.Is(err, errStale) {
		o.short = false
	}
	return err
}

// mayWrite says whether this look may write another object, and counts it.
func (o *operator) mayWrite() bool {
	o.turn--
	if o.short && o.turn < 0 {
		o.putOff++
		return false
	}
	return true
}

// isHeld says whether a memory node is known to hold the map of an epoch. Then the operator takes it from there, whatever became of the nodes in it, where no
// object is in its cache.
func (o *operator) isHeld(epoch int64) bool {
	for _, seen := range o.snapshot.Agents {
		if held := seen.Facts.GetMemoryNode().GetMap(); held.GetPoolUid() == string(o.snapshot.Pool.UID) && int64(held.GetEpoch()) == epoch {
			return true
		}
	}
	return false
}

func (o *operator) apply(object render.Object) error {
	if deployment, is := object.(*appsv1ac.DeploymentApplyConfiguration); is {
		return o.rollOut(deployment)
	}
	k, name, ok := modelled(object)
	if !ok {
		return nil
	}
	if o.repairs == nil && (k == kindLease || k == kindCompute) {
		return nil
	}
	if lease, is := object.(*apiac.RepairLeaseApplyConfiguration); is {
		o.mayRepair(lease)
	}
	if shardMap, is := object.(*apiac.ShardMapApplyConfiguration); is && len(o.snapshot.ShardMaps) > 0 && !o.isHeld(*shardMap.Spec.Epoch) {
		before := &o.snapshot.ShardMaps[len(o.snapshot.ShardMaps)-1].Spec
		for _, entry := range shardMap.Spec.Nodes {
			node, pod := o.snapshot.Nodes[*entry.Name], o.snapshot.NodePods[*entry.Name]
			if !lists(before, *entry.Name) && (node == nil || pod == nil || !pod.DeletionTimestamp.IsZero()) {
				o.fail("none comes that goes", "%s makes epoch %d with %s, whose pod or MemoryNode it knows to be deleted", o.name, *shardMap.Spec.Epoch, *entry.Name)
			}
		}
	}
	what := fmt.Sprintf("applies %s %s", kindNames[k], name)
	if cached := o.cached(k)[name]; cached == nil || k == kindPod && o.snapshot.NodePods[name] == nil {
		// As apply.Applier does: it creates, and looks at what is there if that fails.
		what = fmt.Sprintf("creates %s %s", kindNames[k], name)
		if !o.mayWrite() {
			return errLater
		}
		o.before("%s", what)
		return o.call(what, func() error {
			live := o.live(k)[name]
			if live == nil {
				return o.world.apply(object)
			}
			if pod, isPod := live.(*corev1.Pod); isPod && (o.snapshot.Nodes[name] == nil || !controls(o.snapshot.Nodes[name], pod)) {
				return errConflict
			}
			return errStale
		})
	} else if unchanged(object, cached) {
		return nil
	}
	if !o.mayWrite() {
		return errLater
	}
	o.before("%s", what)
	return o.call(what, func() error { return o.world.apply(object) })
}

func (o *operator) Delete(object client.Object) error {
	what := fmt.Sprintf("deletes %s %s", kindNames[kindOf(object)], object.GetName())
	o.before("%s", what)
	return o.call(what, func() error { return o.remove(object) })
}

func (o *operator) Relabel(client.Object, map[string]string) error { return nil }

func (o *operator) Adopt(adoption plan.Adoption) error {
	what := "adopts Pod " + adoption.Pod.Name
	o.before("%s", what)
	return o.call(what, func() error {
		live := o.pod(adoption.Pod.Name)
		if live == nil || live.UID != adoption.Pod.UID || live.ResourceVersion != adoption.Pod.ResourceVersion {
			return errStale
		}
		edit(o.world, kindPod, live.Name, func(pod *corev1.Pod) { pod.OwnerReferences = adoption.Owners })
		return nil
	})
}

func (o *operator) Announce([]plan.Event) {}

func (o *operator) Judge(err error) plan.Failure {
	switch {
	case errors.Is(err, errStale):
		return plan.Stale
	case errors.Is(err, errConflict), errors.Is(err, errInvalid):
		return plan.Refused
	case errors.Is(err, errLater):
		return plan.Later
	}
	return plan.Failed
}

// Blame is what the controller does, as far as statuses go.
func (o *operator) Blame(outcome plan.Outcome) {
	pool, status := o.snapshot.Pool, &o.decided.Status
	if len(outcome) == 0 && o.short && o.turn <= 0 {
		outcome[plan.Later] = append(outcome[plan.Later], errLater)
	}
	o.behind = outcome.Err(plan.Stale, plan.Later) != nil
	failure := outcome.Err(plan.Refused, plan.Failed)
	if o.blamed = failure != nil; !o.blamed {
		return
	}
	if status.Unsettled || o.behind {
		status.Pool = *pool.Status.DeepCopy()
	}
	status.Blame(pool, metav1.NewTime(o.now), v1alpha1.ReasonApplyFailed, failure.Error())
}

func (o *operator) Connect() error {
	amended := o.amend()
	wanted := map[types.UID]bool{}
	for _, target := range o.decided.Targets {
		wanted[target.Pod] = true
		if _, open := o.streams[target.Pod]; !open {
			o.streams[target.Pod] = agent.Observation{State: agent.Connecting}
		}
	}
	maps.DeleteFunc(o.streams, func(uid types.UID, _ agent.Observation) bool { return !wanted[uid] })
	return amended
}

func (o *operator) Tell(publications []plan.Publication, prepare bool) (told []plan.Publication, failures []error) {
	verb := map[bool]string{true: "hold", false: "follow"}[prepare]
	if !prepare && o.refused != nil {
		o.fail("followed when all have agreed", "memory nodes are told to follow epoch %d, which one refuses", publications[0].Map.Epoch)
	}
	for _, publication := range publications {
		o.before("tells %s to %s epoch %d", publication.Node, verb, publication.Map.Epoch)
		o.writes++
		if err := o.tellOne(publication, prepare); err != nil {
			o.say("%s: %s is not told to %s epoch %d: %v", o.name, publication.Node, verb, publication.Map.Epoch, err)
			failures = append(failures, err)
		} else {
			told = append(told, publication)
		}
	}
	return told, failures
}

func (o *operator) tellOne(publication plan.Publication, prepare bool) error {
	p := o.processes[publication.Pod]
	_, open := o.streams[publication.Pod]
	if fate := o.random.IntN(100); p == nil || !open || o.deaf[p.memory.node] || fate < o.faults/2 {
		return errNoAnswer
	}
	if prepare {
		o.prepared[publication.Pod] = p.incarnation
	} else if life, asked := o.prepared[publication.Pod]; !asked || life == p.incarnation && p.newestMap().GetEpoch() < uint64(publication.Map.Epoch) {
		o.fail("followed when all have agreed", "memory node %s is told to follow epoch %d, and does not hold it", publication.Node, publication.Map.Epoch)
	}
	err := o.told(p, publication, prepare)
	if errors.Is(err, errRefused) {
		observed := o.streams[publication.Pod]
		observed.RefusedEpoch = uint64(publication.Map.Epoch)
		o.streams[publication.Pod] = observed
	}
	if o.random.IntN(100) < o.faults/2 {
		return errNoAnswer
	}
	if err != nil && prepare {
		o.refused = err
	}
	if err == nil {
		o.hearOne(publication.Pod)
	}
	return err
}

func (o *operator) Refuses(failure error) bool {
	return errors.Is(failure, errRefused) || errors.Is(failure, errInvalid)
}

func (o *operator) Conflict(error) {}

func (o *operator) Follow(publications []plan.Publication) bool {
	for _, publication := range publications {
		if o.streams[publication.Pod].Facts.GetEpoch() < uint64(publication.Map.Epoch) {
			return false
		}
	}
	return true
}

func (o *operator) WriteStatuses() []error {
	if o.decided.Status.Unsettled || o.behind {
		if o.blamed {
			return []error{o.writeStatus(o.snapshot.Pool, &o.decided.Status.Pool)}
		}
		return nil
	}
	var failures []error
	for _, written := range o.decided.Statuses(o.snapshot) {
		if err := o.writeStatus(written.Object, written.Status); err != nil {
			failures = append(failures, err)
		}
	}
	return failures
}

func (o *operator) Ask() { o.ask() }

// statusField is where an object's status is.
func statusField(object client.Object) reflect.Value {
	return reflect.ValueOf(object).Elem().FieldByName("Status")
}

func (o *operator) writeStatus(cached client.Object, status any) error {
	want := reflect.ValueOf(status).Elem()
	if reflect.DeepEqual(statusField(cached).Interface(), want.Interface()) {
		return nil
	}
	k := kindOf(cached)
	if k != kindCompute {
		return o.putStatus(cached, want)
	}
	// The controller leaves long lists of processes to the background, one at a time.
	if o.onTheWay == nil {
		o.before("sends the status of ComputeShardPool %s", cached.GetName())
		o.onTheWay = func() { _ = o.putStatus(cached, want) }
		o.late++
	}
	o.arrive(o.slowness.IntN(2) == 0)
	return nil
}

// putStatus writes the status of an object.
func (o *operator) putStatus(cached client.Object, want reflect.Value) error {
	k := kindOf(cached)
	what := fmt.Sprintf("writes the status of %s %s", kindNames[k], cached.GetName())
	if k != kindCompute {
		o.before("%s", what)
	}
	return o.call(what, func() error {
		live := o.live(k)[cached.GetName()]
		if live == nil {
			return errStale
		}
		live = live.DeepCopyObject().(client.Object)
		if operation, ok := live.(*v1alpha1.ResizeOperation); ok && operation.Status.CompletionTime != nil && operation.Status.Stage != want.Interface().(v1alpha1.ResizeOperationStatus).Stage {
			return errInvalid // a resize that is over stays so
		}
		statusField(live).Set(want)
		if node, ok := live.(*v1alpha1.MemoryNode); ok {
			if ready := meta.FindStatusCondition(node.Status.Conditions, v1alpha1.ConditionReady); ready != nil && ready.Reason == v1alpha1.ReasonDrained {
				o.saidDrained[node.Name] = node.Status.Conditions
			}
		}
		o.put(k, live)
		o.oneIsOpen()
		return nil
	})
}

// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	farpoolv1alpha1 "farpool.dev/farpool/api/gen/farpool/v1alpha1"
	"farpool.dev/farpool/api/v1alpha1"
	apiac "farpool.dev/farpool/api/v1alpha1/applyconfiguration/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/agent"
	"farpool.dev/farpool/operator/internal/observe"
	"farpool.dev/farpool/operator/internal/plan"
	"farpool.dev/farpool/operator/internal/render"
	"farpool.dev/farpool/operator/internal/shardmap"
)

// Compute shards that die, what they leave on memory nodes, who repairs it, and patches of pods that run. One world of three has them.

const (
	simShards  = 3
	simCompute = "shards"
)

// shard is a process that runs in a pod of a compute shard.
type shard struct {
	process uint64
	name    string
	// stopped: it stands still, and answers nobody.
	stopped bool
	epoch   uint64
}

// fate is what became of a process of a compute shard.
type fate struct {
	name string
	over bool
	// inOrder: it closed its sessions on every memory node where it had one, and ended with 0.
	inOrder bool
	// condemned: a person has named it in a RepairLease, or its Kubernetes node was declared out of service.
	condemned bool
}

// repairWorld is what worlds with compute shards have.
type repairWorld struct {
	shards       map[types.UID]*shard // by pod
	fates        map[string]*fate     // by process
	outOfService map[string]bool      // Kubernetes nodes
	// asked are the names of compute shards that people have asked for repairs of. A name means any process of that name that does not answer.
	asked map[string]bool
	// pods and requests count what was ever made: pods of compute shards, and RepairLeases by people.
	pods, requests int

	// These count RepairLeases that operators made, calls to fence and to repair that took effect, sessions whose remains were repaired, and patches of pods.
	leases, fences, attempts, repaired, amended int

	upgradeWorld
}

func (r *repairWorld) fate(process uint64) *fate { return r.fates[v1alpha1.ProcessID(process)] }

func (r *repairWorld) add(other *repairWorld) {
	r.leases += other.leases
	r.fences += other.fences
	r.attempts += other.attempts
	r.repaired += other.repaired
	r.amended += other.amended
	r.patches += other.patches
	r.returns += other.returns
}

// sessions of one life of a memory node, by process: open ones, what processes left whose session has ended, who is fenced, and who closed their last session.
// What a session holds is never changed, but put in the place of what it held.
type sessions struct {
	open, dead map[uint64]*farpoolv1alpha1.DeadClient
	fenced     map[uint64]bool
	closed     []uint64
}

func newSessions() sessions {
	return sessions{open: map[uint64]*farpoolv1alpha1.DeadClient{}, dead: map[uint64]*farpoolv1alpha1.DeadClient{}, fenced: map[uint64]bool{}}
}

func holds(left *farpoolv1alpha1.DeadClient) bool {
	return left.GetSlots() > 0 || left.GetSegments() > 0
}

// end ends a process's session. What it holds is left.
func (p *process) end(id uint64) {
	if left := p.sessions.open[id]; left != nil {
		delete(p.sessions.open, id)
		if holds(left) {
			p.sessions.dead[id] = left
		}
		p.facts = nil
	}
}

// withShards gives a world compute shards, and the pods of its memory nodes a spec that can be patched.
func (w *world) withShards() {
	w.repairs = &repairWorld{shards: map[types.UID]*shard{}, fates: map[string]*fate{}, outOfService: map[string]bool{}, asked: map[string]bool{}, upgradeWorld: newUpgradeWorld()}
	w.respec(func(spec *v1alpha1.KVPoolSpec) {
		spec.Compute = &v1alpha1.ComputeSpec{Pools: []v1alpha1.ComputePool{{Name: simCompute, Replicas: simShards, Workers: 1}}}
	})
}

// runs returns the processes of memory nodes, always in the same order.
func (w *world) runs() []*process {
	var list []*process
	for _, uid := range slices.Sorted(maps.Keys(w.processes)) {
		list = append(list, w.processes[uid])
	}
	return list
}

func (w *world) shardPod(name string) *corev1.Pod {
	pod, _ := w.live(kindShard)[name].(*corev1.Pod)
	return pod
}

func shardStatus(state corev1.ContainerState) []corev1.ContainerStatus {
	return []corev1.ContainerStatus{{Name: "compute-shard", State: state}}
}

func exited(code int32, now time.Time) corev1.ContainerState {
	return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, FinishedAt: metav1.NewTime(now)}}
}

// startShard starts a process in the pod of a compute shard.
func (w *world) startShard(pod *corev1.Pod) {
	w.serial++
	s := &shard{process: 5000 + w.serial, name: pod.Name}
	w.repairs.shards[pod.UID] = s
	w.repairs.fates[v1alpha1.ProcessID(s.process)] = &fate{name: pod.Name}
	w.say("compute shard %s starts as process %d", pod.Name, s.process)
}

// endShard ends the process in a pod, and returns its exit code. In order, it first closes its sessions on memory nodes that answer.
func (w *world) endShard(uid types.UID, inOrder bool) (code int32) {
	s := w.repairs.shards[uid]
	if s == nil {
		return 1
	}
	delete(w.repairs.shards, uid)
	ended := w.repairs.fate(s.process)
	ended.over = true
	w.say("process %d of compute shard %s ends, in order: %v", s.process, s.name, inOrder && !s.stopped)
	if !inOrder || s.stopped {
		return 1
	}
	ended.inOrder = true
	for _, p := range w.runs() {
		if p.sessions.open[s.process] == nil {
			continue
		}
		if w.deaf[p.memory.node] {
			ended.inOrder = false
			continue
		}
		delete(p.sessions.open, s.process)
		p.sessions.closed = append(p.sessions.closed, s.process)
		p.facts = nil
	}
	for _, p := range w.runs() {
		ended.inOrder = ended.inOrder && p.sessions.dead[s.process] == nil
	}
	return 0
}

// shardKubelets makes the pods that a Deployment wants, starts processes again, and takes away pods that are being deleted.
func (w *world) shardKubelets() {
	if w.repairs == nil {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(w.live(kindShard))) {
		pod := w.shardPod(name)
		switch {
		case w.repairs.outOfService[pod.Spec.NodeName], !pod.DeletionTimestamp.IsZero():
			w.endShard(pod.UID, false)
			w.take(kindShard, name)
			w.say("pod %s is gone", name)
		case w.repairs.shards[pod.UID] == nil && imageIn(pod) != badImage:
			edit(w, kindShard, name, func(pod *corev1.Pod) {
				ended := pod.Status.ContainerStatuses[0].State
				pod.Status.ContainerStatuses = shardStatus(running())
				pod.Status.ContainerStatuses[0].LastTerminationState = ended
			})
			w.startShard(w.shardPod(name))
		}
	}
	w.replaceShards()
	for len(w.live(kindShard)) < simShards {
		w.makeShard()
	}
}

// makeShard makes a pod of the Deployment of compute shards, in which a process starts if its image does that.
func (w *world) makeShard() {
	w.repairs.pods++
	state := running()
	if w.repairs.image == badImage {
		state = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff"}}
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: simNamespace, Name: fmt.Sprintf("%s-%s-%d", simPool, simCompute, w.repairs.pods), UID: w.uid("pod"),
			Labels: map[string]string{v1alpha1.LabelComputePool: simCompute}},
		Spec:   corev1.PodSpec{NodeName: fmt.Sprintf("shard-worker-%d", w.repairs.pods), Containers: containers(w.repairs.image)},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.0.1.1", ContainerStatuses: shardStatus(state)},
	}
	w.put(kindShard, pod)
	if w.repairs.image != badImage {
		w.startShard(pod)
	}
}

// work has compute shards follow the newest map and open sessions, of which some hold something. A shard repairs what it left itself before its session ended. It
// also repairs what others left, as a client does that is blocked by it: always if that process is not over, and else one time in twenty. A process that finds itself
// fenced ends, and the kubelet starts another one.
func (w *world) work(random *rand.Rand) {
	if w.repairs == nil || w.newest == nil {
		return
	}
	for _, name := range w.names(kindShard) {
		s := w.repairs.shards[w.shardPod(name).UID]
		if s == nil || s.stopped {
			continue
		}
		s.epoch = uint64(w.newest.Epoch)
		w.repairs.shown[imageIn(w.shardPod(name))] = true
		for i := range w.newest.Nodes {
			p := w.serves(w.newest, &w.newest.Nodes[i])
			if p == nil || w.deaf[p.memory.node] {
				continue
			}
			if p.sessions.fenced[s.process] {
				pod := w.shardPod(name)
				code := w.endShard(pod.UID, false)
				edit(w, kindShard, pod.Name, func(pod *corev1.Pod) { pod.Status.ContainerStatuses = shardStatus(exited(code, w.now)) })
				break
			}
			p.sessions.open[s.process] = &farpoolv1alpha1.DeadClient{Process: s.process, Name: s.name, Slots: uint32(random.IntN(3)), Segments: uint32(random.IntN(3))}
			for _, id := range slices.Sorted(maps.Keys(p.sessions.dead)) {
				if dead := w.repairs.fate(id); (!dead.over || random.IntN(20) == 0) && p.sessions.open[id] == nil || id == s.process {
					delete(p.sessions.dead, id)
					p.facts = nil
				}
			}
		}
	}
}

// expire has memory nodes end sessions that are chosen, of processes that do not renew them.
func (w *world) expire(chosen func() bool) {
	if w.repairs == nil {
		return
	}
	renews := map[uint64]bool{}
	for _, s := range w.repairs.shards {
		renews[s.process] = !s.stopped
	}
	for _, p := range w.runs() {
		for _, id := range slices.Sorted(maps.Keys(p.sessions.open)) {
			if !renews[id] && chosen() {
				w.say("memory node %s ends the session of process %d", p.memory.node, id)
				p.end(id)
			}
		}
	}
}

// saysOfShards adds what a memory node says of processes.
func (p *process) saysOfShards(facts *farpoolv1alpha1.MemoryNodeFacts) {
	for _, id := range slices.Sorted(maps.Keys(p.sessions.dead)) {
		facts.Dead = append(facts.Dead, p.sessions.dead[id])
	}
	facts.DeadClients = uint64(len(facts.Dead))
	for _, id := range p.sessions.closed {
		if p.sessions.open[id] == nil && p.sessions.dead[id] == nil {
			facts.Closed = append(facts.Closed, id)
		}
	}
}

// says returns what a compute shard says of itself.
func (s *shard) says() *farpoolv1alpha1.Facts {
	return &farpoolv1alpha1.Facts{PoolUid: "uid", Role: farpoolv1alpha1.Role_ROLE_COMPUTE_SHARD, Name: s.name, Incarnation: s.process, Epoch: s.epoch,
		Ready: s.epoch > 0, ComputeShard: &farpoolv1alpha1.ComputeShardFacts{}}
}

// fence does what a memory node does when it is asked to fence processes.
func (w *world) fence(p *process, processes []uint64) *farpoolv1alpha1.FenceResponse {
	response := &farpoolv1alpha1.FenceResponse{}
	w.repairs.fences++
	for _, id := range processes {
		if known := w.repairs.fate(id); known != nil && !known.over && !known.condemned && !w.repairs.asked[known.name] {
			w.fail("none is fenced that lives", "memory node %s is asked to fence process %d of compute shard %s, which lives", p.memory.node, id, known.name)
		}
		if p.sessions.open[id] != nil {
			response.Sessions++
		}
		p.end(id)
		p.sessions.fenced[id] = true
		if left := p.sessions.dead[id]; left != nil {
			response.Left = append(response.Left, left)
		}
	}
	return response
}

// repair does what a compute shard does that was asked then to repair what processes left: where chosen, it succeeds.
func (w *world) repair(s *shard, processes []uint64, asked time.Time, chosen func() bool) *farpoolv1alpha1.RepairResponse {
	if slices.Contains(processes, s.process) {
		w.fail("the dead repair nothing", "process %d of compute shard %s is asked to repair what it left itself", s.process, s.name)
	}
	response := &farpoolv1alpha1.RepairResponse{Done: true}
	w.repairs.attempts++
	spec := w.maps[int64(s.epoch)]
	if spec == nil {
		return &farpoolv1alpha1.RepairResponse{}
	}
	for i := range spec.Nodes {
		p := w.serves(spec, &spec.Nodes[i])
		if p == nil || w.deaf[p.memory.node] {
			response.Done = response.Done && spec.Nodes[i].State != v1alpha1.NodeServing
			continue
		}
		at := &farpoolv1alpha1.RepairResponse_Node{Name: p.memory.node}
		response.Nodes = append(response.Nodes, at)
		for _, id := range processes {
			// A life of the memory node that began since has fenced nobody yet.
			if p.sessions.open[id] != nil && p.began.Before(asked) {
				w.fail("fenced, then repaired", "compute shard %s is asked to repair what process %d left on memory node %s, which has a session there", s.name, id, p.memory.node)
			}
			left := p.sessions.dead[id]
			if left == nil {
				continue
			}
			if chosen() {
				at.SlotsRepaired, at.SegmentsAdopted = at.SlotsRepaired+left.Slots, at.SegmentsAdopted+left.Segments
				delete(p.sessions.dead, id)
				p.facts = nil
				w.repairs.repaired++
			} else {
				at.SlotsLeft, at.SegmentsLeft = at.SlotsLeft+left.Slots, at.SegmentsLeft+left.Segments
				response.Done = false
			}
		}
	}
	return response
}

// Objects.

// applyLease does what the API server does when a RepairLease is applied. The spec of one that exists never changes.
func (w *world) applyLease(object *apiac.RepairLeaseApplyConfiguration) error {
	lease := &v1alpha1.RepairLease{}
	live := w.live(kindLease)[*object.Name]
	if live != nil {
		lease = live.DeepCopyObject().(*v1alpha1.RepairLease)
	} else {
		if object.Spec == nil {
			return errInvalid // a person has deleted it
		}
		w.repairs.leases++
		lease.UID, lease.CreationTimestamp, lease.Generation = w.uid("lease"), metav1.NewTime(w.now), 1
	}
	before := lease.Spec
	if err := applied(object, lease); err != nil {
		return err
	}
	if live != nil && object.Spec != nil && fmt.Sprint(before) != fmt.Sprint(lease.Spec) {
		return errInvalid
	}
	w.put(kindLease, lease)
	return nil
}

// mayEnd says that a rule is broken if an operator deletes a RepairLease that is not complete.
func (w *world) mayEnd(lease *v1alpha1.RepairLease) {
	if lease.Status.CompletedAt == nil {
		w.fail("no RepairLease is lost", "an operator deletes RepairLease %s, which is not complete", lease.Name)
	}
}

// mayRepair says that a rule is broken if an operator makes a RepairLease for a process that it knows to have left in order.
func (o *operator) mayRepair(object *apiac.RepairLeaseApplyConfiguration) {
	if object.Spec == nil || len(o.snapshot.ShardMaps) == 0 || *object.Spec.Cause == v1alpha1.CauseNodeOutOfService {
		return
	}
	for _, client := range object.Spec.Clients {
		if known := o.repairs.fates[*client.Process]; known != nil && known.inOrder && o.knowsLeft(*client.Process) {
			o.fail("none that left in order has a RepairLease", "%s makes RepairLease %s for process %s, which it knows to have left in order", o.name, *object.Name, *client.Process)
		}
	}
}

// knowsLeft says whether an operator knows that a process has left in order: every memory node of its map says so in the life that the map names, or the process's
// container was seen to end with 0; and no memory node says that something is left. An operator that is shown an old map does not know what other lives mean.
func (o *operator) knowsLeft(process string) bool {
	closed := true
	for _, entry := range o.snapshot.ShardMaps[len(o.snapshot.ShardMaps)-1].Spec.Nodes {
		pod := o.snapshot.NodePods[entry.Name]
		if pod == nil {
			closed = false
			continue
		}
		stream := o.streams[pod.UID]
		facts := stream.Facts.GetMemoryNode()
		if slices.ContainsFunc(facts.GetDead(), func(left *farpoolv1alpha1.DeadClient) bool { return v1alpha1.ProcessID(left.Process) == process }) {
			return false
		}
		known := shardmap.FormatIncarnation(stream.Facts.GetIncarnation()) == entry.Incarnation
		closed = closed && known && stream.State == agent.Connected && slices.ContainsFunc(facts.GetClosed(), func(id uint64) bool { return v1alpha1.ProcessID(id) == process })
	}
	for uid, exit := range o.exits {
		closed = closed || exit.ExitCode == 0 && o.exitOf[uid] == process
	}
	return closed
}

// podPatch is all that an operator may patch of a pod that runs.
type podPatch struct {
	Metadata struct {
		ResourceVersion string             `json:"resourceVersion"`
		Annotations     map[string]*string `json:"annotations"`
	} `json:"metadata"`
	Spec struct {
		Tolerations []corev1.Toleration `json:"tolerations"`
		Containers  []struct {
			Name      string `json:"name"`
			Image     string `json:"image"`
			Resources struct {
				Requests map[corev1.ResourceName]*resource.Quantity `json:"requests"`
				Limits   map[corev1.ResourceName]*resource.Quantity `json:"limits"`
			} `json:"resources"`
		} `json:"containers"`
	} `json:"spec"`
}

// amendPod does what the API server does with a patch of a pod. It says that a rule is broken if the patch takes away what the pod has, or writes over what a
// person has set.
func (w *world) amendPod(amendment plan.Amendment) error {
	patch := podPatch{}
	strict := json.NewDecoder(bytes.NewReader(amendment.Patch))
	strict.DisallowUnknownFields()
	if err := strict.Decode(&patch); err != nil {
		w.fail("only what may change is amended", "%s: %v", amendment.Patch, err)
		return errInvalid
	}
	live := w.pod(amendment.Pod.Name)
	if live == nil || live.ResourceVersion != patch.Metadata.ResourceVersion {
		return errStale
	}
	w.repairs.amended++
	edit(w, kindPod, live.Name, func(pod *corev1.Pod) {
		pod.Annotations = maps.Clone(pod.Annotations)
		for key, value := range patch.Metadata.Annotations {
			if value == nil {
				delete(pod.Annotations, key)
				continue
			}
			value := *value
			own := key == v1alpha1.AnnotationPodHash || key == v1alpha1.AnnotationReplaces
			if was, has := pod.Annotations[key]; has && was != value && !own {
				w.fail("a patch takes nothing away", "annotation %s of pod %s was %s, and is made %s", key, pod.Name, was, value)
			}
			pod.Annotations[key] = value
		}
		if patch.Spec.Tolerations != nil {
			for _, was := range pod.Spec.Tolerations {
				if !slices.ContainsFunc(patch.Spec.Tolerations, func(now corev1.Toleration) bool {
					return now.Key == was.Key && now.Operator == was.Operator && now.Value == was.Value && now.Effect == was.Effect
				}) {
					w.fail("a patch takes nothing away", "pod %s would tolerate %s no more", pod.Name, was.Key)
				}
			}
			pod.Spec.Tolerations = patch.Spec.Tolerations
		}
		if amendment.What == "image" {
			w.imaged(pod, patch.Spec.Containers[0].Image)
			pod.Spec.Containers = slices.Clone(pod.Spec.Containers)
			pod.Spec.Containers[0].Image = patch.Spec.Containers[0].Image
		}
		if amendment.Subresource == "resize" {
			for _, container := range patch.Spec.Containers {
				has := &pod.Spec.Containers[0].Resources
				has.Requests = resized(has.Requests, container.Resources.Requests)
				has.Limits = resized(has.Limits, container.Resources.Limits)
			}
		}
	})
	return nil
}

// resized returns resources with those of a patch. What the patch has as null is taken away.
func resized(has corev1.ResourceList, patch map[corev1.ResourceName]*resource.Quantity) corev1.ResourceList {
	has = maps.Clone(has)
	for name, quantity := range patch {
		if quantity == nil {
			delete(has, name)
		} else {
			has[name] = *quantity
		}
	}
	return has
}

// unamended names a pod of a memory node, and what it lacks of what the spec gives to pods that run.
func (w *world) unamended() string {
	for _, name := range w.names(kindPod) {
		pod := w.pod(name)
		memoryPool := w.entryOf(pod)
		if memoryPool == nil {
			return fmt.Sprintf("pod %s is of no memory pool of the spec", name)
		}
		for key := range render.NotToBeTaken() {
			if _, has := pod.Annotations[key]; !has {
				return fmt.Sprintf("pod %s has no annotation %s", name, key)
			}
		}
		for _, wanted := range memoryPool.Pod.OrNone().Tolerations {
			if !slices.ContainsFunc(pod.Spec.Tolerations, func(has corev1.Toleration) bool { return has.Key == wanted.Key }) {
				return fmt.Sprintf("pod %s does not tolerate %s", name, wanted.Key)
			}
		}
		if memoryPool.Resources != nil {
			wants, has := memoryPool.Resources.Requests[corev1.ResourceCPU], pod.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU]
			if wants.Cmp(has) != 0 {
				return fmt.Sprintf("pod %s has %s processors, and the spec gives it %s", name, has.String(), wants.String())
			}
		}
	}
	return ""
}

// Operators.

// callKey identifies a call. On behalf of a RepairLease, a process has one call of a kind at a time.
type callKey struct {
	lease  types.UID
	name   string
	repair bool
}

// observeShards does what observe.Take does about compute shards.
func (o *operator) observeShards(s *observe.Snapshot) {
	if o.repairs == nil {
		return
	}
	s.ComputePools = byName[*v1alpha1.ComputeShardPool](o.cached(kindCompute))
	all, updated, ready := o.rolled()
	s.Deployments = map[string]*appsv1.Deployment{simPool + "-" + simCompute: {
		ObjectMeta: metav1.ObjectMeta{Namespace: simNamespace, Name: simPool + "-" + simCompute, UID: "deployment", Generation: o.repairs.generation},
		Spec:       appsv1.DeploymentSpec{Replicas: ptr.To(int32(simShards)), Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: containers(o.repairs.image)}}},
		Status:     appsv1.DeploymentStatus{ObservedGeneration: o.repairs.generation, Replicas: all, UpdatedReplicas: updated, ReadyReplicas: ready, AvailableReplicas: ready},
	}}
	s.ComputePods = sortedObjects[*corev1.Pod](o.cached(kindShard))
	s.DeploymentOf = map[types.UID]string{}
	present := map[types.UID]bool{}
	for _, pod := range s.ComputePods {
		present[pod.UID] = true
		s.DeploymentOf[pod.UID] = simPool + "-" + simCompute
		if !pod.DeletionTimestamp.IsZero() && plan.PodEnded(pod) {
			o.exits[pod.UID] = pod.Status.ContainerStatuses[0].State.Terminated
		}
	}
	for _, process := range s.Processes() {
		uid := types.UID(process.PodUID)
		if live := o.shardPod(process.Name); !present[uid] && s.Pool.Spec.Management != v1alpha1.ManagementPaused && (live == nil || live.UID != uid) {
			s.Gone[uid] = true
			if o.exits[uid] != nil {
				o.exitOf[uid] = process.Process
			}
		}
	}
	s.Unlisted = map[string]bool{}
	for _, observed := range s.Agents {
		for _, dead := range observed.Facts.GetMemoryNode().GetDead() {
			if live := o.shardPod(dead.GetName()); live != nil && !present[live.UID] {
				s.Unlisted[dead.GetName()] = true
			}
		}
	}
	s.Exits = map[types.UID]*corev1.ContainerStateTerminated{}
	for uid := range s.Gone {
		if exit := o.exits[uid]; exit != nil {
			s.Exits[uid] = exit
		}
	}
	s.OutOfService = maps.Clone(o.repairs.outOfService)
	s.Leases = sortedObjects[*v1alpha1.RepairLease](o.cached(kindLease))
	slices.SortStableFunc(s.Leases, func(a, b *v1alpha1.RepairLease) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	s.Calls = map[types.UID][]agent.Outcome{}
	for _, key := range o.callKeys() {
		s.Calls[key.lease] = append(s.Calls[key.lease], *o.calls[key])
	}
}

func (o *operator) callKeys() []callKey {
	return slices.SortedFunc(maps.Keys(o.calls), func(a, b callKey) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
}

// answerCalls has agents answer the calls that are chosen.
func (o *operator) answerCalls(chosen func(percent int) bool) {
	for _, key := range o.callKeys() {
		if outcome := o.calls[key]; outcome.Running && chosen(60) {
			o.answerCall(outcome)
			for _, witness := range outcome.Witnesses {
				if _, open := o.streams[witness]; open {
					o.hearOne(witness)
				}
			}
		}
	}
}

// answerCall takes a call to its agent. It may take effect and bring no answer.
func (o *operator) answerCall(outcome *agent.Outcome) {
	asked := outcome.At
	outcome.Running, outcome.At, outcome.Fence, outcome.Repair, outcome.Error = false, o.now, nil, nil, ""
	silent := func() {
		outcome.Fence, outcome.Repair, outcome.Error = nil, nil, "Unavailable"
		outcome.Failures++
	}
	if o.random.IntN(100) < o.faults/2 {
		silent()
		return
	}
	if outcome.Incarnation != "" {
		p := o.processes[outcome.Pod]
		if p == nil || o.deaf[p.memory.node] {
			silent()
			return
		}
		outcome.Fence = o.fence(p, outcome.Processes)
	} else {
		s := o.repairs.shards[outcome.Pod]
		if s == nil || s.stopped || o.deaf[s.name] {
			silent()
			return
		}
		outcome.Repair = o.world.repair(s, outcome.Processes, asked, func() bool { return o.random.IntN(100) < 80 })
	}
	o.say("%s: %s has done for RepairLease %s what it was asked to", o.name, outcome.Name, outcome.Lease)
	if o.random.IntN(100) < o.faults/2 {
		silent()
		return
	}
	outcome.Failures = 0
}

// ask does what the controller does with the calls of a plan.
func (o *operator) ask() {
	if o.repairs == nil || o.decided.Status.Unsettled {
		return
	}
	open := map[types.UID]bool{}
	for _, lease := range o.snapshot.Leases {
		open[lease.UID] = lease.Status.CompletedAt == nil
	}
	maps.DeleteFunc(o.calls, func(key callKey, _ *agent.Outcome) bool { return !open[key.lease] })
	for _, call := range o.decided.Ask {
		key := callKey{call.Lease, call.Name, call.Incarnation == ""}
		failures := 0
		if before := o.calls[key]; before != nil {
			if before.Running {
				continue
			}
			failures = before.Failures
		}
		for _, other := range o.callKeys() {
			if key.repair && other.repair && o.calls[other].Running && (other.lease == key.lease || other.name == key.name) {
				o.fail("one repairs at a time", "%s asks compute shard %s to repair for RepairLease %s, and %s still repairs for %s", o.name, key.name, key.lease, other.name, other.lease)
			}
		}
		o.before("asks %s on behalf of RepairLease %s", call.Name, call.Lease)
		o.writes++
		o.calls[key] = &agent.Outcome{Call: call, Running: true, At: o.now, Failures: failures}
	}
}

// amend does what the controller does with the patches of a plan.
func (o *operator) amend() error {
	if o.repairs == nil {
		return nil
	}
	for _, amendment := range o.decided.Amend {
		what := fmt.Sprintf("amends pod %s: %s", amendment.Pod.Name, amendment.What)
		o.before("%s", what)
		if err := o.call(what, func() error { return o.amendPod(amendment) }); errors.Is(err, errStale) {
			return err
		}
	}
	return nil
}

// What happens.

// happenToShards has an event happen that only worlds with compute shards have.
func (r *run) happenToShards(e event, random *rand.Rand, chance func(int) bool) {
	if r.repairs == nil {
		return
	}
	var pod *corev1.Pod
	if names := r.names(kindShard); len(names) > 0 {
		pod = r.shardPod(pick(random, names))
	}
	switch e.what {
	case shardsWork:
		r.shardKubelets()
		r.work(random)
	case sessionsExpire:
		r.expire(func() bool { return chance(70) })
	case podsAreAsBefore:
		r.bringBackOldPods(chance)
	case memoryPodsAreEdited:
		r.editMemoryPods(random, chance)
	}
	if pod != nil {
		r.happenToShard(e.what, pod, chance)
	}
}

// happenToShard has an event happen to one compute shard.
func (r *run) happenToShard(what what, pod *corev1.Pod, chance func(int) bool) {
	s := r.repairs.shards[pod.UID]
	switch what {
	case shardEnds:
		if s != nil {
			code := r.endShard(pod.UID, chance(40))
			edit(r.world, kindShard, pod.Name, func(pod *corev1.Pod) { pod.Status.ContainerStatuses = shardStatus(exited(code, r.now)) })
		}
	case shardStops:
		if s != nil {
			s.stopped = !s.stopped
			r.say("compute shard %s stands still: %v", pod.Name, s.stopped)
		}
	case shardPodIsDeleted:
		if !pod.DeletionTimestamp.IsZero() {
			return
		}
		code := r.endShard(pod.UID, chance(60))
		r.say("pod %s is deleted", pod.Name)
		if !chance(50) {
			r.take(kindShard, pod.Name)
			return
		}
		edit(r.world, kindShard, pod.Name, func(pod *corev1.Pod) {
			pod.DeletionTimestamp = &metav1.Time{Time: r.now}
			if s != nil {
				pod.Status.ContainerStatuses = shardStatus(exited(code, r.now))
			}
		})
	case shardNodeIsLost:
		r.say("Kubernetes node %s is declared out of service", pod.Spec.NodeName)
		r.repairs.outOfService[pod.Spec.NodeName] = true
		if s != nil {
			r.repairs.fate(s.process).condemned = true
		}
		if chance(70) {
			r.endShard(pod.UID, false)
		}
	case peopleRequestRepair:
		r.requestRepair(pod.Name, s, chance)
	}
}

// requestRepair has a person make a RepairLease: for the process s if it runs and chance has it, else for a name.
func (r *run) requestRepair(name string, s *shard, chance func(int) bool) {
	client := v1alpha1.RepairClient{Name: name}
	if s != nil && chance(40) {
		client.Process = v1alpha1.ProcessID(s.process)
		r.repairs.fate(s.process).condemned = true
	} else {
		r.repairs.asked[name] = true
	}
	r.say("a person asks for a repair of %+v", client)
	r.repairs.requests++
	r.put(kindLease, &v1alpha1.RepairLease{
		ObjectMeta: metav1.ObjectMeta{Namespace: simNamespace, Name: fmt.Sprintf("by-hand-%d", r.repairs.requests), UID: r.uid("lease"), Generation: 1, CreationTimestamp: metav1.NewTime(r.now)},
		Spec:       v1alpha1.RepairLeaseSpec{PoolRef: v1alpha1.PoolReference{Name: simPool}, Cause: v1alpha1.CauseRequested, Clients: []v1alpha1.RepairClient{client}}})
}

// bringBackOldPods makes some pods of memory nodes what an earlier operator made. Some have an annotation that a person has set, and all have a toleration of
// their own.
func (r *run) bringBackOldPods(chance func(int) bool) {
	for _, name := range r.names(kindPod) {
		if len(r.pod(name).Spec.Containers) == 0 || chance(50) {
			continue
		}
		r.say("pod %s is as an earlier operator made it", name)
		edit(r.world, kindPod, name, func(pod *corev1.Pod) {
			pod.Annotations = maps.Clone(pod.Annotations)
			for key := range render.NotToBeTaken() {
				delete(pod.Annotations, key)
			}
			if chance(50) {
				pod.Annotations["karpenter.sh/do-not-disrupt"] = "false"
			}
			pod.Spec.Tolerations = []corev1.Toleration{{Key: "example.com/own", Operator: corev1.TolerationOpExists}}
		})
	}
}

// editMemoryPods has a person edit what the spec gives to pods of memory nodes that run.
func (r *run) editMemoryPods(random *rand.Rand, chance func(int) bool) {
	processors := resource.MustParse(fmt.Sprintf("%dm", 100*(1+random.IntN(4))))
	tolerates := chance(50)
	r.say("the spec gives memory nodes %s processors, and a toleration: %v", processors.String(), tolerates)
	r.respec(func(spec *v1alpha1.KVPoolSpec) {
		memoryPool := &spec.Memory.Pools[0]
		memoryPool.Resources = &v1alpha1.Resources{Requests: corev1.ResourceList{corev1.ResourceCPU: processors}}
		memoryPool.Pod = nil
		if tolerates {
			memoryPool.Pod = &v1alpha1.PodOptions{Tolerations: []v1alpha1.Toleration{{Key: "example.com/dedicated", Operator: corev1.TolerationOpExists}}}
		}
	})
}

// endShardFaults has processes that stand still go on, and people delete the RepairLeases of theirs that are not complete. Compute shards that were fenced while they
// live can open no session again: people end these, too.
func (r *run) endShardFaults() {
	if r.repairs == nil {
		return
	}
	for _, s := range r.repairs.shards {
		s.stopped = false
	}
	for _, name := range r.names(kindShard) {
		uid := r.shardPod(name).UID
		s := r.repairs.shards[uid]
		if s != nil && slices.ContainsFunc(r.runs(), func(p *process) bool { return p.sessions.fenced[s.process] }) {
			code := r.endShard(uid, false)
			edit(r.world, kindShard, name, func(pod *corev1.Pod) { pod.Status.ContainerStatuses = shardStatus(exited(code, r.now)) })
		}
	}
	for _, lease := range r.openLeases() {
		if lease.Spec.Cause == v1alpha1.CauseRequested {
			r.take(kindLease, lease.Name)
		}
	}
}

// openLeases returns the RepairLeases that are not complete.
func (w *world) openLeases() []*v1alpha1.RepairLease {
	return slices.DeleteFunc(sortedObjects[*v1alpha1.RepairLease](w.live(kindLease)), func(lease *v1alpha1.RepairLease) bool { return lease.Status.CompletedAt != nil })
}

// unrepaired says what is not yet repaired, written down or patched.
func (r *run) unrepaired() string {
	if r.repairs == nil {
		return ""
	}
	for _, lease := range r.openLeases() {
		return fmt.Sprintf("RepairLease %s is open: %+v", lease.Name, lease.Status)
	}
	for _, p := range r.runs() {
		for _, id := range slices.Sorted(maps.Keys(p.sessions.dead)) {
			return fmt.Sprintf("memory node %s has %+v of process %d", p.memory.node, p.sessions.dead[id], id)
		}
	}
	object, _ := r.live(kindCompute)[v1alpha1.ScaleName(simPool, simCompute)].(*v1alpha1.ComputeShardPool)
	if object == nil {
		return "there is no ComputeShardPool"
	}
	written := map[string]bool{}
	for _, process := range object.Status.Processes {
		written[process.Process] = true
		if r.repairs.fates[process.Process].over {
			return fmt.Sprintf("process %s is over, and written down", process.Process)
		}
	}
	for _, pod := range slices.Sorted(maps.Keys(r.repairs.shards)) {
		if process := r.repairs.shards[pod].process; !written[v1alpha1.ProcessID(process)] {
			return fmt.Sprintf("process %d lives, and is not written down", process)
		}
	}
	return r.unamended()
}

// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	farpoolv1alpha1 "farpool.dev/farpool/api/gen/farpool/v1alpha1"
	"farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/agent"
	"farpool.dev/farpool/operator/internal/render"
	"farpool.dev/farpool/operator/internal/shardmap"
)

const (
	// leasesOpen bounds the RepairLeases of a pool that are not complete. Further deaths wait, and get fewer, larger ones.
	leasesOpen = 64
	// clientsInLease is the largest number of clients that a call to an agent may name.
	clientsInLease = 256
	// leaseKept is how long people can read a complete lease, and leasesKept how many complete leases there are.
	leaseKept  = time.Hour
	leasesKept = 256
	// A memory node's report about a process may be a little older than the end of its repair.
	leaseEchoes = time.Minute

	firstRetry    = time.Second
	lastRetry     = 5 * time.Minute
	lastFenceWait = time.Minute
)

// repairs is what is decided about dead clients.
type repairs struct {
	census    census
	processes []v1alpha1.ProcessStatus
	made      []render.Object
	// open counts leases, and waiting counts processes that wait for a lease.
	open, waiting int
	// busy are the compute shards that repair something.
	busy map[string]bool
}

func (d *decision) decideRepairs(act bool) {
	r := &d.repairs
	r.census = d.takeCensus()
	r.busy = map[string]bool{}
	d.Status.Leases = map[string]v1alpha1.RepairLeaseStatus{}
	defer func() { d.Status.OpenLeases, d.Status.Backlog = r.open, r.waiting }()

	dealtWith := map[string]bool{}
	for _, lease := range d.Leases {
		for _, outcome := range d.Calls[lease.UID] {
			if outcome.Running && outcome.Incarnation == "" {
				r.busy[outcome.Name] = true
			}
		}
		completed := lease.Status.CompletedAt
		if completed == nil {
			r.open++
		}
		if completed == nil || d.Now.Sub(completed.Time) < leaseEchoes {
			for _, client := range lease.Spec.Clients {
				dealtWith[client.Process] = true
			}
			for _, process := range lease.Status.Processes {
				dealtWith[process] = true
			}
		}
	}
	var deaths []death
	deaths, r.processes = d.findDeaths(r.census, dealtWith)
	if act && !d.Status.Unsettled {
		r.waiting = len(d.makeLeases(deaths))
	}

	var complete []*v1alpha1.RepairLease
	for _, lease := range d.Leases {
		switch {
		case !lease.DeletionTimestamp.IsZero():
		case lease.Status.CompletedAt != nil:
			complete = append(complete, lease)
		default:
			d.follow(lease, act)
		}
	}
	if act {
		d.tidyLeases(complete)
	}
}

// makeLeases makes leases for deaths, as many as may be open. It returns the deaths that have to wait.
func (d *decision) makeLeases(deaths []death) (waiting []death) {
	r := &d.repairs
	number := int64(0)
	for _, lease := range d.Leases {
		suffix, ours := strings.CutPrefix(lease.Name, v1alpha1.RepairLeasePrefix(d.Pool.Name))
		if taken, err := strconv.ParseInt(suffix, 10, 64); ours && err == nil {
			number = max(number, taken)
		}
	}
	for _, cause := range []v1alpha1.RepairCause{v1alpha1.CausePodTerminated, v1alpha1.CauseNodeOutOfService, v1alpha1.CauseMemoryNodeReport} {
		var batch []death
		for _, known := range deaths {
			if known.cause == cause {
				batch = append(batch, known)
			}
		}
		for len(batch) > 0 {
			if r.open >= leasesOpen {
				waiting = append(waiting, batch...)
				break
			}
			size := min(len(batch), clientsInLease)
			number++
			r.open++
			spec := v1alpha1.RepairLeaseSpec{PoolRef: v1alpha1.PoolReference{Name: d.Pool.Name}, Cause: cause}
			var names []string
			for _, known := range batch[:size] {
				spec.Clients = append(spec.Clients, v1alpha1.RepairClient{Name: clipName(known.name), Process: known.process, DiedAt: known.at})
				names = append(names, orElse(known.name, known.process))
			}
			batch = batch[size:]
			name := v1alpha1.RepairLeaseName(d.Pool.Name, number)
			lease := render.RepairLease(d.pool, name, &spec)
			r.made = append(r.made, lease)
			d.eventWith(lease, d.Pool, corev1.EventTypeWarning, v1alpha1.ReasonClientsDied, "Repair", fmt.Sprintf(
				"%s: %s; RepairLease %s has what they left repaired", causeInWords(cause, len(names)), some(names), name))
		}
	}
	return waiting
}

func causeInWords(cause v1alpha1.RepairCause, clients int) string {
	how := map[v1alpha1.RepairCause]string{
		v1alpha1.CausePodTerminated:    "ended",
		v1alpha1.CauseNodeOutOfService: "on a Kubernetes node out of service",
		v1alpha1.CauseMemoryNodeReport: "whose sessions memory nodes have ended",
	}[cause]
	return fmt.Sprintf("%d client processes %s", clients, how)
}

// tidyLeases deletes complete leases that nobody needs any more.
func (d *decision) tidyLeases(complete []*v1alpha1.RepairLease) {
	slices.SortStableFunc(complete, func(a, b *v1alpha1.RepairLease) int { return a.Status.CompletedAt.Compare(b.Status.CompletedAt.Time) })
	for i, lease := range complete {
		until := lease.Status.CompletedAt.Add(leaseKept)
		if i < len(complete)-leasesKept || !d.Now.Before(until) {
			d.Delete = append(d.Delete, lease)
		} else {
			d.due(until)
		}
	}
}

// following is a lease that the operator follows.
type following struct {
	*decision
	lease     *v1alpha1.RepairLease
	status    v1alpha1.RepairLeaseStatus
	processes map[string]bool
	// calls are the processes as agents are told of them.
	calls []uint64
	// outcomes are those of calls about these processes. A status that was never written, or that the cache does not show yet, lets a name be resolved again, and it
	// may mean more processes by then: what was asked before says nothing about these.
	outcomes []agent.Outcome
}

// follow takes a lease one step further. Everything is decided anew from what memory nodes report now, so another operator can continue from the status alone.
func (d *decision) follow(lease *v1alpha1.RepairLease, act bool) {
	f := &following{decision: d, lease: lease, status: *lease.Status.DeepCopy()}
	f.status.ObservedGeneration = lease.Generation
	if act && metav1.GetControllerOf(lease) == nil {
		// A lease that a person made is deleted with the pool, too.
		d.repairs.made = append(d.repairs.made, render.AdoptRepairLease(d.pool, lease.Name))
	}
	if f.status.StartedAt == nil {
		f.status.StartedAt = &metav1.Time{Time: d.Now.Truncate(time.Second)}
	}
	fenced := f.fence(act)
	repaired := condition(v1alpha1.ConditionRepaired, metav1.ConditionFalse, v1alpha1.ReasonNotFenced, "nothing is repaired while something of the clients may still execute")
	complete := condition(v1alpha1.ConditionComplete, metav1.ConditionFalse, v1alpha1.ReasonNotFenced, "%s", fenced.Message)
	f.status.Step = v1alpha1.StepFencing
	if fenced.Status == metav1.ConditionTrue {
		f.status.Step = v1alpha1.StepRepairing
		repaired = f.repair()
		complete = condition(v1alpha1.ConditionComplete, metav1.ConditionFalse, v1alpha1.ReasonNotRepaired, "%s", repaired.Message)
	}
	if repaired.Status == metav1.ConditionTrue {
		f.status.Step = v1alpha1.StepVerifying
		complete = f.verify()
	}
	if complete.Status == metav1.ConditionTrue {
		f.status.Step = v1alpha1.StepComplete
		f.status.CompletedAt = &metav1.Time{Time: d.Now.Truncate(time.Second)}
		d.repairs.open--
	}
	f.sum()
	f.status.Conditions = d.setConditions(f.status.Conditions, lease.Generation, fenced, repaired, complete)
	f.tell()
	d.Status.Leases[lease.Name] = f.status
}

// Refuse is the status of a lease whose pool does not exist.
func Refuse(lease *v1alpha1.RepairLease, now time.Time) v1alpha1.RepairLeaseStatus {
	status := *lease.Status.DeepCopy()
	status.ObservedGeneration = lease.Generation
	message := fmt.Sprintf("there is no KVPool %s in namespace %s: delete this RepairLease and create one whose spec.poolRef names a pool", lease.Spec.PoolRef.Name, lease.Namespace)
	for _, kind := range []string{v1alpha1.ConditionFenced, v1alpha1.ConditionRepaired, v1alpha1.ConditionComplete} {
		status.Conditions = moved(status.Conditions, lease.Generation, now, condition(kind, metav1.ConditionFalse, v1alpha1.ReasonPoolNotFound, "%s", message))
	}
	return status
}

// fence asks every memory node that serves to fence. It says whether all have fenced.
func (f *following) fence(act bool) metav1.Condition {
	is := func(status metav1.ConditionStatus, reason, format string, arguments ...any) metav1.Condition {
		return condition(v1alpha1.ConditionFenced, status, reason, format, arguments...)
	}
	if !act {
		return is(metav1.ConditionFalse, v1alpha1.ReasonPaused, "the operator may not act for the pool now: see its conditions Progressing and SpecValid")
	}
	if wrong := f.resolve(); wrong != nil {
		return is(metav1.ConditionFalse, wrong.reason, "%s", wrong.message)
	}
	effective := f.epochs.effective()
	if effective == nil {
		return is(metav1.ConditionFalse, v1alpha1.ReasonNotPublished, "the pool has no map yet")
	}
	var serving, fenced int
	var awaited, silent []string
	for _, entry := range effective.Nodes {
		if entry.State != v1alpha1.NodeServing {
			// A stopped memory node admits no client, and its memory holds nothing.
			at := f.node(entry.Name)
			at.Incarnation, at.SlotsLeft, at.SegmentsLeft, at.Message = "", 0, 0, "its tables are stopped"
			continue
		}
		serving++
		if f.fenceNode(&entry) {
			fenced++
			continue
		}
		if f.factsOf(&entry) == nil {
			silent = append(silent, entry.Name)
		}
		awaited = append(awaited, entry.Name+after(": ", f.node(entry.Name).Message))
	}
	f.status.FencedNodes = int32(fenced)
	f.status.Fenced = fmt.Sprintf("%d/%d", fenced, serving)
	switch {
	case len(awaited) == 0:
		return is(metav1.ConditionTrue, v1alpha1.ReasonFenced, "nothing of %d processes executes on %d memory nodes", len(f.processes), serving)
	case len(silent) == len(awaited):
		return is(metav1.ConditionFalse, v1alpha1.ReasonAgentUnreachable, "waiting for memory nodes that cannot be reached: %s; see their conditions Ready", some(awaited))
	}
	return is(metav1.ConditionFalse, v1alpha1.ReasonFencing, "memory nodes are being asked: %s", some(awaited))
}

// fenceNode says whether this incarnation of a memory node has fenced the processes, and asks it to if not.
func (f *following) fenceNode(entry *v1alpha1.ShardMapNode) bool {
	at := f.node(entry.Name)
	if at.Incarnation == entry.Incarnation {
		return true
	}
	at.Incarnation = ""
	for _, outcome := range f.outcomes {
		if outcome.Name != entry.Name || outcome.Incarnation != entry.Incarnation {
			continue
		}
		switch {
		case outcome.Running:
			return false
		case outcome.Fence != nil:
			at.Incarnation, at.Message = entry.Incarnation, ""
			at.SessionsEnded += int64(outcome.Fence.GetSessions())
			at.SlotsLeft, at.SegmentsLeft = 0, 0
			for _, left := range outcome.Fence.GetLeft() {
				at.SlotsLeft += int64(left.GetSlots())
				at.SegmentsLeft += int64(left.GetSegments())
			}
			return true
		}
		at.Message = clipTo(outcome.Error, 512)
		if wait := outcome.At.Add(backoff(outcome.Failures, lastFenceWait)); f.Now.Before(wait) {
			f.due(wait)
			return false
		}
	}
	if n := f.nodeNamed(entry.Name); f.factsOf(entry) != nil {
		f.ask(agent.Call{Name: entry.Name, Pod: n.pod.UID, Incarnation: entry.Incarnation, Witnesses: []types.UID{n.pod.UID}})
	}
	return false
}

// factsOf returns a memory node's facts, if it can be reached and has the incarnation that the map says.
func (d *decision) factsOf(entry *v1alpha1.ShardMapNode) *farpoolv1alpha1.MemoryNodeFacts {
	n := d.nodeNamed(entry.Name)
	if n == nil || n.facts == nil || shardmap.FormatIncarnation(n.facts.GetIncarnation()) != entry.Incarnation {
		return nil
	}
	return n.facts.GetMemoryNode()
}

// repair asks a compute shard to repair what is left, and another one when that fails.
func (f *following) repair() metav1.Condition {
	is := func(status metav1.ConditionStatus, reason, format string, arguments ...any) metav1.Condition {
		return condition(v1alpha1.ConditionRepaired, status, reason, format, arguments...)
	}
	running, last := f.takeRepair()
	pod, ready := f.shard()
	if ready == 0 && !running && f.clear() {
		// Clients repaired it on their own.
		f.nothingLeft()
	}
	if f.left() == 0 && len(f.naming(holds)) == 0 {
		if f.status.Attempts == 0 {
			return is(metav1.ConditionTrue, v1alpha1.ReasonNothingLeft, "the processes left nothing")
		}
		return is(metav1.ConditionTrue, v1alpha1.ReasonRepaired, "what the processes left is repaired")
	}
	if running {
		return is(metav1.ConditionFalse, v1alpha1.ReasonRepairing, "compute shard %s is at it", f.status.Shard)
	}
	if last != nil {
		if wait := last.At.Add(backoff(int(f.status.Attempts), lastRetry)); f.Now.Before(wait) {
			f.due(wait)
			if last.Error != "" {
				return is(metav1.ConditionFalse, v1alpha1.ReasonRepairFailed, "compute shard %s was asked: %s; another one is asked", last.Name, last.Error)
			}
			return is(metav1.ConditionFalse, v1alpha1.ReasonLeft, "%d slots and segments are left (%s); a compute shard is asked again", f.left(), f.why())
		}
	}
	if pod == nil && ready == 0 {
		return is(metav1.ConditionFalse, v1alpha1.ReasonNoComputeShards, "no compute shard is ready to repair; clients that are blocked repair on their own")
	}
	if pod == nil {
		return is(metav1.ConditionFalse, v1alpha1.ReasonRepairing, "every ready compute shard does another repair")
	}
	var witnesses []types.UID
	for _, n := range f.nodes {
		if n.facts != nil {
			witnesses = append(witnesses, n.pod.UID)
		}
	}
	f.repairs.busy[pod.Name] = true
	f.status.Shard = pod.Name
	f.ask(agent.Call{Name: pod.Name, Pod: pod.UID, Attempt: f.status.Attempts + 1, Witnesses: witnesses})
	return is(metav1.ConditionFalse, v1alpha1.ReasonRepairing, "compute shard %s is at it", pod.Name)
}

// takeRepair takes the result of the last call to repair into the status. It says whether a repair is under way, and which was the last.
func (f *following) takeRepair() (running bool, last *agent.Outcome) {
	for _, outcome := range f.outcomes {
		if outcome.Incarnation != "" {
			continue
		}
		if outcome.Running {
			running = true
			f.status.Shard = outcome.Name
		} else if last == nil || outcome.Attempt > last.Attempt {
			last = &outcome
		}
	}
	if last == nil || last.Attempt <= f.status.Attempts {
		return running, last
	}
	f.status.Attempts, f.status.Shard = last.Attempt, last.Name
	for _, result := range last.Repair.GetNodes() {
		if f.entryOf(result.GetName()) == nil {
			continue // no memory node of the map, whatever a compute shard says of it
		}
		at := f.node(result.GetName())
		at.SlotsRepaired += int64(result.GetSlotsRepaired())
		at.SegmentsAdopted += int64(result.GetSegmentsAdopted())
		at.SlotsLeft, at.SegmentsLeft = int64(result.GetSlotsLeft()), int64(result.GetSegmentsLeft())
		at.Message = clipTo(result.GetMessage(), 512)
	}
	if last.Repair.GetDone() {
		f.nothingLeft()
	}
	return running, last
}

func (f *following) nothingLeft() {
	for i := range f.status.Nodes {
		f.status.Nodes[i].SlotsLeft, f.status.Nodes[i].SegmentsLeft, f.status.Nodes[i].Message = 0, 0, ""
	}
}

// clear says whether every memory node that serves reports that nothing of the processes is left.
func (f *following) clear() bool {
	for _, entry := range f.epochs.effective().Nodes {
		if entry.State != v1alpha1.NodeServing {
			continue
		}
		if facts := f.factsOf(&entry); facts == nil || facts.GetDeadClients() > uint64(len(facts.GetDead())) {
			return false
		}
	}
	return len(f.naming(holds)) == 0
}

// shard is the compute shard to be asked next; ready is how many are ready. Each attempt begins with another one.
func (f *following) shard() (pod *corev1.Pod, ready int) {
	effective := f.epochs.effective()
	var able []*corev1.Pod
	for _, pod := range f.ComputePods {
		facts := f.Agents[pod.UID].Facts
		process := f.repairs.census.within[pod.UID]
		if process == "" || f.processes[process] || !facts.GetReady() || facts.GetEpoch() != uint64(effective.Epoch) || !pod.DeletionTimestamp.IsZero() {
			continue
		}
		able = append(able, pod)
	}
	if len(able) == 0 {
		return nil, 0
	}
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(f.lease.UID))
	first := int((hash.Sum32() + uint32(f.status.Attempts)) % uint32(len(able)))
	for i := range able {
		if pod := able[(first+i)%len(able)]; !f.repairs.busy[pod.Name] {
			return pod, len(able)
		}
	}
	return nil, len(able)
}

// verify asks memory nodes what they report now.
func (f *following) verify() metav1.Condition {
	var silent []string
	for _, entry := range f.epochs.effective().Nodes {
		if entry.State == v1alpha1.NodeServing && f.factsOf(&entry) == nil {
			silent = append(silent, entry.Name)
		}
	}
	is := func(status metav1.ConditionStatus, reason, format string, arguments ...any) metav1.Condition {
		return condition(v1alpha1.ConditionComplete, status, reason, format, arguments...)
	}
	if len(silent) > 0 {
		return is(metav1.ConditionFalse, v1alpha1.ReasonVerifying, "memory nodes that cannot be reached have yet to say that nothing is left: %s", some(silent))
	}
	if naming := f.naming(func(*farpoolv1alpha1.DeadClient) bool { return true }); len(naming) > 0 {
		return is(metav1.ConditionFalse, v1alpha1.ReasonVerifying, "memory nodes still name the processes, with nothing left of them: %s", some(naming))
	}
	return is(metav1.ConditionTrue, v1alpha1.ReasonComplete, "no memory node names the processes any more")
}

// naming are the memory nodes that report one of the processes as dead, in a report that matches.
func (f *following) naming(as func(*farpoolv1alpha1.DeadClient) bool) []string {
	var naming []string
	for _, entry := range f.epochs.effective().Nodes {
		for _, reported := range f.factsOf(&entry).GetDead() {
			if f.processes[v1alpha1.ProcessID(reported.GetProcess())] && as(reported) {
				naming = append(naming, entry.Name)
				break
			}
		}
	}
	return naming
}

func (f *following) left() int64 {
	var left int64
	for _, at := range f.status.Nodes {
		left += at.SlotsLeft + at.SegmentsLeft
	}
	return left
}

// why says, in the words of memory nodes, why something is left.
func (f *following) why() string {
	var words []string
	for _, at := range f.status.Nodes {
		if at.SlotsLeft+at.SegmentsLeft > 0 {
			words = append(words, at.Name+after(": ", at.Message))
		}
	}
	if len(words) == 0 {
		for _, name := range f.naming(holds) {
			words = append(words, name+" still names what they left")
		}
	}
	return some(words)
}

// resolve finds the processes that the lease names, once: later the same name can mean another process.
func (f *following) resolve() *finding {
	if len(f.status.Processes) == 0 {
		var nobody, answering []string
		found := map[string]bool{}
		for _, client := range f.lease.Spec.Clients {
			if client.Process != "" {
				found[client.Process] = true
				continue
			}
			silent, live := f.named(client.Name)
			for _, process := range silent {
				found[process] = true
			}
			switch {
			case len(silent) > 0:
			case live != "":
				answering = append(answering, fmt.Sprintf("%s answers as process %s", client.Name, live))
			default:
				nobody = append(nobody, client.Name)
			}
		}
		switch {
		case len(answering) > 0:
			return &finding{v1alpha1.ReasonClientAnswers, fmt.Sprintf("%s: to have it ended all the same, delete this RepairLease and create one with clients[].process set", some(answering))}
		case len(nobody) > 0:
			return &finding{v1alpha1.ReasonClientUnknown, fmt.Sprintf("neither the pool nor a memory node knows a process of name %s: delete this RepairLease and create one with a name or process of status.processes of the ComputeShardPools of KVPool %s", some(nobody), f.Pool.Name)}
		case len(found) > clientsInLease:
			return &finding{v1alpha1.ReasonClientUnknown, fmt.Sprintf("the names mean %d processes, more than %d: delete this RepairLease and create several, each with fewer clients", len(found), clientsInLease)}
		}
		for process := range found {
			f.status.Processes = append(f.status.Processes, process)
		}
		slices.Sort(f.status.Processes)
	}
	f.processes = map[string]bool{}
	for _, process := range f.status.Processes {
		number, err := strconv.ParseUint(process, 16, 64)
		if err != nil {
			return &finding{v1alpha1.ReasonClientUnknown, fmt.Sprintf("process %q is no number of 16 hexadecimal digits: delete this RepairLease and create another", process)}
		}
		f.processes[process] = true
		f.calls = append(f.calls, number)
	}
	for _, outcome := range f.Calls[f.lease.UID] {
		if slices.Equal(outcome.Processes, f.calls) {
			f.outcomes = append(f.outcomes, outcome)
		}
	}
	return nil
}

// named returns the processes of a name that do not answer, and the one that does.
func (f *following) named(name string) (silent []string, live string) {
	for process, pod := range f.repairs.census.answering {
		if pod.Name == name {
			live = process
		}
	}
	add := func(process string) {
		if f.repairs.census.answering[process] == nil && !slices.Contains(silent, process) {
			silent = append(silent, process)
		}
	}
	for _, process := range f.repairs.census.processes {
		if process.Name == name {
			add(process.Process)
		}
	}
	for _, n := range f.nodes {
		for _, reported := range n.facts.GetMemoryNode().GetDead() {
			if reported.GetName() == name && reported.GetProcess() != 0 {
				add(v1alpha1.ProcessID(reported.GetProcess()))
			}
		}
	}
	return silent, live
}

func (f *following) ask(call agent.Call) {
	call.Lease, call.Processes = f.lease.UID, f.calls
	f.Ask = append(f.Ask, call)
}

// node is the status's entry for a memory node.
func (f *following) node(name string) *v1alpha1.RepairNodeStatus {
	at, found := slices.BinarySearchFunc(f.status.Nodes, name, func(at v1alpha1.RepairNodeStatus, name string) int { return cmp.Compare(at.Name, name) })
	if !found {
		f.status.Nodes = slices.Insert(f.status.Nodes, at, v1alpha1.RepairNodeStatus{Name: name})
	}
	return &f.status.Nodes[at]
}

func (f *following) sum() {
	if len(f.status.Nodes) > nodesInMap {
		// So many memory nodes have come and gone meanwhile. A memory node that left the map holds nothing.
		f.status.Nodes = slices.DeleteFunc(f.status.Nodes, func(at v1alpha1.RepairNodeStatus) bool { return f.entryOf(at.Name) == nil })
	}
	f.status.SlotsRepaired, f.status.SegmentsAdopted = 0, 0
	for _, at := range f.status.Nodes {
		f.status.SlotsRepaired += at.SlotsRepaired
		f.status.SegmentsAdopted += at.SegmentsAdopted
	}
	f.status.Left = f.left()
}

// tell tells people what has become true.
func (f *following) tell() {
	for _, kind := range []string{v1alpha1.ConditionFenced, v1alpha1.ConditionRepaired, v1alpha1.ConditionComplete} {
		now := meta.FindStatusCondition(f.status.Conditions, kind)
		if now.Status != metav1.ConditionTrue || meta.IsStatusConditionTrue(f.lease.Status.Conditions, kind) {
			continue
		}
		f.Status.Events = append(f.Status.Events, Event{Regarding: f.lease, Type: corev1.EventTypeNormal, Reason: now.Reason, Action: "Repair", Note: now.Message})
	}
}

func backoff(failures int, most time.Duration) time.Duration {
	// Beyond so many doublings every wait is the longest one.
	return min(firstRetry<<min(max(failures, 1)-1, 16), most)
}

// clipName shortens a name that a process gives itself to what a resource can hold.
func clipName(name string) string { return clipTo(name, 253) }

func clipTo(text string, limit int) string {
	text = strings.ToValidUTF8(text, "?")
	return strings.ToValidUTF8(text[:min(len(text), limit)], "")
}

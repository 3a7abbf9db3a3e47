// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"maps"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	farpoolv1alpha1 "farpool.dev/farpool/api/gen/farpool/v1alpha1"
	"farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/agent"
)

// death is the end of a client process, and how it is known.
type death struct {
	process string
	name    string
	cause   v1alpha1.RepairCause
	at      *metav1.Time
}

// verdict says whether a process lives. Silence is no verdict: a process that does not answer may well live.
type verdict int

const (
	// unknown: nothing that could know says anything.
	unknown verdict = iota
	// answers: its agent answers.
	answers
	// down: the kubelet sees no process in its pod. The kubelet may have seen an earlier process, so this alone proves nothing.
	down
	// ended in order: the process left nothing to do, though a memory node reports something that it left.
	ended
	// dead for certain.
	dead
)

// census says which processes of compute shards live.
type census struct {
	// answering are the processes that answer, with the pod that each answers from.
	answering map[string]*corev1.Pod
	byUID     map[types.UID]*corev1.Pod
	byName    map[string]*corev1.Pod
	// within are the processes that answer by pod.
	within map[types.UID]string
	// processes are the ones that are written down.
	processes []v1alpha1.ProcessStatus
	// written says where in the list each process is that is written down: later ones of a pod come after earlier ones.
	written map[string]int
	// latest says where in the list the last process of each pod is.
	latest map[string]int
	// dead are the processes that RepairLeases of the operator name.
	dead map[string]bool
}

func (d *decision) takeCensus() census {
	pods, processes := len(d.ComputePods), d.Processes()
	c := census{answering: make(map[string]*corev1.Pod, pods), byUID: make(map[types.UID]*corev1.Pod, pods), byName: make(map[string]*corev1.Pod, pods), within: make(map[types.UID]string, pods),
		processes: processes, written: make(map[string]int, len(processes)), latest: make(map[string]int, len(processes)), dead: map[string]bool{}}
	for i, process := range processes {
		c.written[process.Process], c.latest[process.PodUID] = i, i
	}
	// A process that the operator has found dead may still seem to answer: what it said is late, and another process may run in its pod by now. A RepairLease of a
	// person may name a process that lives.
	for _, lease := range d.Leases {
		for _, client := range lease.Spec.Clients {
			c.dead[client.Process] = c.dead[client.Process] || lease.Spec.Cause != v1alpha1.CauseRequested
		}
	}
	for _, pod := range d.ComputePods {
		c.byUID[pod.UID], c.byName[pod.Name] = pod, pod
		observed := d.Agents[pod.UID]
		process := v1alpha1.ProcessID(observed.Facts.GetIncarnation())
		if observed.State == agent.Connected && observed.Facts.GetIncarnation() != 0 && !c.dead[process] {
			c.answering[process], c.within[pod.UID] = pod, process
		}
	}
	return c
}

// replaced says whether a later process than this one, which is written down, answers from its pod. What an earlier one said is late: another operator has heard
// this one since. One that is not written down yet may be either.
func (c census) replaced(process v1alpha1.ProcessStatus) bool {
	other := c.within[types.UID(process.PodUID)]
	at, known := c.written[other]
	return known && at > c.written[process.Process]
}

// judge says whether a process that was written down, when it answered, lives now.
func (d *decision) judge(c census, process v1alpha1.ProcessStatus) (verdict, death) {
	known := death{process: process.Process, name: process.Name}
	if c.answering[process.Process] != nil {
		return answers, known
	}
	if d.OutOfService[process.NodeName] {
		known.cause = v1alpha1.CauseNodeOutOfService
		return dead, known
	}
	known.cause = v1alpha1.CausePodTerminated
	pod := c.byUID[types.UID(process.PodUID)]
	if pod == nil {
		if !d.Gone[types.UID(process.PodUID)] {
			return unknown, known
		}
		// The exit that was seen last may be a later process's.
		exit := d.Exits[types.UID(process.PodUID)]
		if exit != nil {
			known.at = exit.FinishedAt.DeepCopy()
		}
		if exit != nil && exit.ExitCode == 0 || d.closedEverywhere(process.Process) {
			return ended, known
		}
		return dead, known
	}
	last := lastTermination(pod)
	if last != nil && !last.FinishedAt.IsZero() {
		known.at = last.FinishedAt.DeepCopy()
	}
	// A kubelet starts a container only when the one before has ended, so a later process that answers from the pod proves the end of this one.
	over := PodEnded(pod) || c.replaced(process) && last != nil
	switch {
	case over && (last != nil && last.ExitCode == 0 || d.closedEverywhere(process.Process)):
		// The kubelet may remember the end of a later process, which has come and gone since.
		return ended, known
	case over:
		return dead, known
	case !containerRuns(pod):
		return down, known
	}
	return unknown, known
}

// closedEverywhere says whether every memory node of the map says that the process closed its last session itself. An operator that did not run when the pod went
// has nothing else to ask. A memory node names no process if it has restarted since, cannot be reached, or is too old to say so. A memory node that comes into the
// map now has had no sessions.
func (d *decision) closedEverywhere(process string) bool {
	current := d.epochs.current
	number, err := strconv.ParseUint(process, 16, 64)
	if current == nil || err != nil {
		return false
	}
	for i := range current.Nodes {
		if !slices.Contains(d.factsOf(&current.Nodes[i]).GetClosed(), number) {
			return false
		}
	}
	return true
}

// judgeReported judges a process whose sessions a memory node has ended, by what Kubernetes says of its pod.
func (d *decision) judgeReported(c census, reported *farpoolv1alpha1.DeadClient) (verdict, death) {
	process := v1alpha1.ProcessID(reported.GetProcess())
	if at, ok := c.written[process]; ok {
		judged, known := d.judge(c, c.processes[at])
		switch judged {
		case ended, down:
			known.cause = v1alpha1.CauseMemoryNodeReport
			return dead, known
		}
		return judged, known
	}
	known := death{process: process, name: reported.GetName(), cause: v1alpha1.CauseMemoryNodeReport}
	if c.answering[process] != nil {
		return answers, known
	}
	// A sidecar has no agent, and the operator does not read its pod. It may live, as one that a single memory node did not hear for a while does, and a fence would
	// end it. That memory node has ended its session, and clients repair what it left.
	if v1alpha1.OfSidecar(reported.GetName()) {
		return unknown, known
	}
	// This process was never heard. Its pod may have had too little processor time to answer. The cache may not show the pod yet, or only the end of the process before.
	if d.Unlisted[reported.GetName()] {
		return unknown, known
	}
	if pod := c.byName[reported.GetName()]; pod != nil && c.within[pod.UID] == "" && !PodEnded(pod) {
		return unknown, known
	}
	return dead, known
}

// findDeaths says which processes are dead, and writes down the processes that live or wait for a RepairLease, new ones last.
func (d *decision) findDeaths(c census, dealtWith map[string]bool) (deaths []death, processes []v1alpha1.ProcessStatus) {
	found := map[string]death{}
	processes = make([]v1alpha1.ProcessStatus, 0, len(c.processes)+len(c.answering))
	// Two operators may have written the processes of a pod down in the wrong order. The one that answers is the last.
	var last []v1alpha1.ProcessStatus
	for _, process := range c.processes {
		switch judged, known := d.judge(c, process); {
		case judged == ended, judged == dead && dealtWith[process.Process], c.dead[process.Process]:
		case judged == dead:
			found[process.Process] = known
			processes = append(processes, process)
		case judged == answers && c.latest[process.PodUID] > c.written[process.Process]:
			last = append(last, process)
		default:
			processes = append(processes, process)
		}
	}
	processes = append(processes, last...)
	for _, process := range slices.Sorted(maps.Keys(c.answering)) {
		if _, known := c.written[process]; !known {
			pod := c.answering[process]
			processes = append(processes, v1alpha1.ProcessStatus{Process: process, Name: pod.Name, PodUID: string(pod.UID), NodeName: pod.Spec.NodeName})
		}
	}
	for _, n := range d.nodes {
		for _, reported := range n.facts.GetMemoryNode().GetDead() {
			process := v1alpha1.ProcessID(reported.GetProcess())
			if _, known := found[process]; known || reported.GetProcess() == 0 || dealtWith[process] || !holds(reported) {
				continue
			}
			if judged, known := d.judgeReported(c, reported); judged == dead {
				found[process] = known
			}
		}
	}
	for _, known := range found {
		deaths = append(deaths, known)
	}
	slices.SortFunc(deaths, func(a, b death) int { return cmp.Compare(a.process, b.process) })
	return deaths, processes
}

// holds says whether a memory node that names a dead process still holds anything of it.
func holds(reported *farpoolv1alpha1.DeadClient) bool {
	return reported.GetSlots() > 0 || reported.GetSegments() > 0
}

// PodEnded says whether, according to Kubernetes, no container of the pod runs or will run again.
func PodEnded(pod *corev1.Pod) bool {
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return true
	}
	if pod.DeletionTimestamp.IsZero() || len(pod.Status.ContainerStatuses) == 0 {
		return false
	}
	for _, container := range pod.Status.ContainerStatuses {
		if container.State.Terminated == nil {
			return false
		}
	}
	return true
}

func containerRuns(pod *corev1.Pod) bool {
	for _, container := range pod.Status.ContainerStatuses {
		if container.State.Running != nil {
			return true
		}
	}
	return false
}

// lastTermination is how the pod's process last ended, as the kubelet reports it.
func lastTermination(pod *corev1.Pod) *corev1.ContainerStateTerminated {
	for _, container := range pod.Status.ContainerStatuses {
		if container.State.Terminated != nil {
			return container.State.Terminated
		}
		if container.LastTerminationState.Terminated != nil {
			return container.LastTerminationState.Terminated
		}
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"farpool.dev/farpool/api/v1alpha1"
)

// A process that a RepairLease names gets no second one while its pool still has it written down: the status may not have been written.
func TestAProcessOfALeaseGetsNoSecondOne(t *testing.T) {
	w := newWard(t)
	before := w.ComputePools["cache-shards"].Status
	w.gone("a")
	w.step()
	w.ComputePools["cache-shards"].Status = before
	w.step()
	if len(w.Leases) != 1 {
		t.Errorf("%d RepairLeases for one death", len(w.Leases))
	}
}

// A pod has ended when none of its containers can run again: of one that is being deleted, when the kubelet says of each that it has ended.
func TestWhenAPodHasEnded(t *testing.T) {
	over, on := corev1.ContainerStatus{State: corev1.ContainerState{Terminated: terminated(1)}}, corev1.ContainerStatus{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}
	for _, c := range []struct {
		name       string
		phase      corev1.PodPhase
		deleted    bool
		containers []corev1.ContainerStatus
		ended      bool
	}{
		{"it runs", corev1.PodRunning, false, []corev1.ContainerStatus{on}, false},
		{"it succeeded", corev1.PodSucceeded, false, nil, true},
		{"it failed", corev1.PodFailed, false, nil, true},
		{"its container is about to be started again", corev1.PodRunning, false, []corev1.ContainerStatus{over}, false},
		{"it is being deleted", corev1.PodRunning, true, []corev1.ContainerStatus{on}, false},
		{"it is being deleted, and the kubelet has said nothing", corev1.PodRunning, true, nil, false},
		{"it is being deleted, and one of two runs", corev1.PodRunning, true, []corev1.ContainerStatus{over, on}, false},
		{"it is being deleted, and all have ended", corev1.PodRunning, true, []corev1.ContainerStatus{over, over}, true},
	} {
		pod := &corev1.Pod{Status: corev1.PodStatus{Phase: c.phase, ContainerStatuses: c.containers}}
		if c.deleted {
			pod.DeletionTimestamp = &metav1.Time{Time: start}
		}
		if ended := PodEnded(pod); ended != c.ended {
			t.Errorf("%s: ended is %v", c.name, ended)
		}
	}
}

// A process that answers stays written down, though a person asks for its repair.
func TestAProcessThatAnswersStaysWrittenDown(t *testing.T) {
	w := newWard(t)
	w.request(v1alpha1.RepairClient{Name: "a", Process: v1alpha1.ProcessID(0xa)})
	w.step()
	if len(w.Processes()) != 3 {
		t.Errorf("written down are %v", w.Processes())
	}
}

// That a process closed its sessions is believed when every memory node of the map names it: without a map, or of what is no process, nothing is.
func TestWhoClosedItsSessions(t *testing.T) {
	for name, c := range map[string]struct {
		change  func(*decision)
		process string
		closed  bool
	}{
		"all name it":          {func(*decision) {}, v1alpha1.ProcessID(0xa), true},
		"one does not":         {func(d *decision) { d.nodes[1].facts.MemoryNode.Closed = nil }, v1alpha1.ProcessID(0xa), false},
		"one is silent":        {func(d *decision) { d.nodes[1].facts = nil }, v1alpha1.ProcessID(0xa), false},
		"there is no map":      {func(d *decision) { d.epochs.current = nil }, v1alpha1.ProcessID(0xa), false},
		"it is not a number":   {func(*decision) {}, "x", false},
		"they name another":    {func(*decision) {}, v1alpha1.ProcessID(0xb), false},
		"they name number 0":   {func(*decision) {}, "", false},
		"the others have more": {func(d *decision) { d.nodes[1].facts.MemoryNode.Closed = []uint64{1, 2, 0xa} }, v1alpha1.ProcessID(0xa), true},
	} {
		d := stageOf(v1alpha1.DataPolicyCache, 2, "a", "b")
		for _, n := range d.nodes {
			n.facts.MemoryNode.Closed = []uint64{0, 0xa}
		}
		c.change(d)
		if closed := d.closedEverywhere(c.process); closed != c.closed {
			t.Errorf("%s: closed is %v", name, closed)
		}
	}
}

// The kubelet remembers how the last process of a pod ended. That one may have come and gone since: a process that every memory node says has closed its
// sessions itself needs no RepairLease, however the next one ended.
func TestTheExitOfALaterProcessIsNoDeathOfAnEarlierOne(t *testing.T) {
	for closed, leases := range map[bool]int{true: 0, false: 1} {
		w := newWard(t)
		w.shard("a", 0x1a).Status.ContainerStatuses[0].LastTerminationState.Terminated = terminated(137)
		if closed {
			w.closes(0xa)
		}
		for range 3 { // the first writes the later process down
			w.step()
		}
		if len(w.Leases) != leases {
			t.Errorf("closed everywhere: %v; %d RepairLeases", closed, len(w.Leases))
		}
		if slices.ContainsFunc(w.Processes(), func(process v1alpha1.ProcessStatus) bool { return process.Process == v1alpha1.ProcessID(0xa) }) {
			t.Errorf("closed everywhere: %v; it is still written down", closed)
		}
	}
}

// Two operators, of which one hears late, may write two processes of a pod down in the wrong order. The one that answers is the later one.
func TestAProcessThatAnswersIsTheLastOfItsPod(t *testing.T) {
	w := newWard(t)
	w.shard("a", 0x1a).Status.ContainerStatuses[0].LastTerminationState.Terminated = terminated(137)
	list := &w.ComputePools["cache-shards"].Status.Processes
	*list = slices.Insert(*list, 0, v1alpha1.ProcessStatus{Process: v1alpha1.ProcessID(0x1a), Name: "a", PodUID: "pod-a", NodeName: "worker-a"})
	if w.step(); len(w.Leases) > 0 || w.Processes()[len(w.Processes())-1].Process != v1alpha1.ProcessID(0x1a) {
		t.Errorf("written down are %v, %d RepairLeases", w.Processes(), len(w.Leases))
	}
	if w.step(); len(w.Leases) != 1 || w.Leases[0].Spec.Clients[0].Process != v1alpha1.ProcessID(0xa) {
		t.Errorf("%d RepairLeases", len(w.Leases))
	}
}

// A memory node that comes into the map has had no sessions: it need not say that a process has closed any there.
func TestANewcomerHasNothingToSayOfProcessesThatLeftBefore(t *testing.T) {
	d := stageOf(v1alpha1.DataPolicyCache, 2, "a", "b")
	if d.closedEverywhere(v1alpha1.ProcessID(0xa)) {
		t.Error("closed, and no memory node says so")
	}
	for _, n := range d.nodes {
		n.facts.MemoryNode.Closed = []uint64{0xa}
	}
	d.epochs.next = d.epochs.current.DeepCopy()
	d.epochs.next.Nodes = append(d.epochs.next.Nodes, v1alpha1.ShardMapNode{Name: "c", Incarnation: "7", State: v1alpha1.NodeServing})
	if !d.closedEverywhere(v1alpha1.ProcessID(0xa)) {
		t.Error("not closed, as a newcomer does not say so")
	}
}

// What a process says that a RepairLease has named as dead is late, as during a hand-over between two operators: it proves nothing of the process that runs
// in its pod now, and is not written down again.
func TestALateReportOfADeadProcess(t *testing.T) {
	w := newWard(t)
	late := w.Agents["pod-a"]
	w.shard("a", 0x1a).Status.ContainerStatuses[0].LastTerminationState.Terminated = terminated(137)
	w.step()
	w.step()
	if len(w.Leases) != 1 {
		t.Fatalf("%d RepairLeases", len(w.Leases))
	}
	w.Agents["pod-a"] = late
	w.step()
	if len(w.Leases) != 1 {
		t.Errorf("a RepairLease for a process that lives: %+v", w.Leases[1].Spec)
	}
	for _, process := range w.Processes() {
		if process.Process == v1alpha1.ProcessID(0xa) {
			t.Error("the dead process is written down again")
		}
	}
}

// Two processes of a pod may be written down, while the earlier one waits for its RepairLease. An operator that still hears the earlier one does not take the later
// one for dead.
func TestALateReportOfAProcessThatWaitsForItsRepairLease(t *testing.T) {
	for _, c := range []struct{ earlier, later uint64 }{{0xa, 0x1a}, {0xa, 0x9}} {
		w := newWard(t)
		pool := w.ComputePools["cache-shards"]
		late := w.Agents["pod-a"]
		w.shard("a", c.later).Status.ContainerStatuses[0].LastTerminationState.Terminated = terminated(137)
		now := w.Agents["pod-a"]
		// No RepairLease could be made in this look.
		pool.Status = w.decide(t).Status.ComputePools["cache-shards"]
		pool.Status.Processes = append([]v1alpha1.ProcessStatus{{Process: v1alpha1.ProcessID(c.earlier), Name: "a", PodUID: "pod-a", NodeName: "worker-a"}}, pool.Status.Processes...)
		w.Agents["pod-a"] = late
		w.step()
		if len(w.Leases) != 0 {
			t.Errorf("%+v: a RepairLease by what the earlier process said: %+v", c, w.Leases[0].Spec)
		}
		w.Agents["pod-a"] = now
		w.step() // writes it down behind the earlier one again
		w.step()
		if len(w.Leases) != 1 || w.Leases[0].Spec.Clients[0].Process != v1alpha1.ProcessID(c.earlier) {
			t.Errorf("%+v: %d RepairLeases, and the later process answers", c, len(w.Leases))
		}
		if !slices.ContainsFunc(w.Processes(), func(process v1alpha1.ProcessStatus) bool { return process.Process == v1alpha1.ProcessID(c.later) }) {
			t.Errorf("%+v: the later process is not written down", c)
		}
	}
}

// A process that a person has named for a repair may live. It still counts as answering.
func TestAProcessThatAPersonHasNamedMayLive(t *testing.T) {
	w := newWard(t)
	w.request(v1alpha1.RepairClient{Name: "a", Process: v1alpha1.ProcessID(0xa)})
	d := &decision{Input: Input{Snapshot: w.Snapshot, Now: w.now}}
	if c := d.takeCensus(); c.answering[v1alpha1.ProcessID(0xa)] == nil || c.within["pod-a"] != v1alpha1.ProcessID(0xa) {
		t.Errorf("it does not answer: %+v", c.within)
	}
}

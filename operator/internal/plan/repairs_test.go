// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	farpoolv1alpha1 "farpool.dev/farpool/api/gen/farpool/v1alpha1"
	"farpool.dev/farpool/api/v1alpha1"
	apiac "farpool.dev/farpool/api/v1alpha1/applyconfiguration/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/agent"
	"farpool.dev/farpool/operator/internal/shardmap"
)

// ward is a pool that serves, with compute shards a, b and c of processes 0xa, 0xb and 0xc, which are written down.
type ward struct {
	*scene
	t    *testing.T
	last *decision
}

func newWard(t *testing.T) *ward {
	t.Helper()
	w := &ward{scene: newScene(2, v1alpha1.DataPolicyCache), t: t}
	w.Pool.Spec.Compute = &v1alpha1.ComputeSpec{Pools: []v1alpha1.ComputePool{{Name: "shards", Replicas: 3, Workers: 1}}}
	w.ComputePools = map[string]*v1alpha1.ComputeShardPool{"cache-shards": computeShardPool("shards", 3)}
	w.Gone, w.OutOfService, w.Calls = map[types.UID]bool{}, map[string]bool{}, map[types.UID][]agent.Outcome{}
	plan := w.decide(t)
	w.carryOut(t, &plan.Plan)
	held, err := shardmap.ToMessage(published(t, plan))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		w.answer(v1alpha1.MemoryNodeName("cache", "memory", int32(i)), uint64(100+i), held)
	}
	for i, name := range []string{"a", "b", "c"} {
		w.shard(name, uint64(0xa+i))
	}
	w.step()
	if len(w.Processes()) != 3 {
		t.Fatalf("written down are %v", w.Processes())
	}
	return w
}

func computeShardPool(entry string, replicas int32) *v1alpha1.ComputeShardPool {
	return &v1alpha1.ComputeShardPool{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: v1alpha1.ScaleName("cache", entry)},
		Spec: v1alpha1.ComputeShardPoolSpec{PoolName: "cache", ComputePool: entry, Declared: replicas, Replicas: replicas}}
}

// shard runs as a process in a pod.
func (w *ward) shard(name string, process uint64) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID("pod-" + name)},
		Spec:       corev1.PodSpec{NodeName: "worker-" + name},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.0.1.1", ContainerStatuses: []corev1.ContainerStatus{{
			Name: "compute-shard", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}},
	}
	w.remove(name)
	w.ComputePods = append(w.ComputePods, pod)
	w.Agents[pod.UID] = agent.Observation{State: agent.Connected, Facts: &farpoolv1alpha1.Facts{
		PoolUid: "uid", Role: farpoolv1alpha1.Role_ROLE_COMPUTE_SHARD, Name: name, Incarnation: process, Epoch: 1, Ready: true}}
	return pod
}

func (w *ward) remove(name string) {
	w.ComputePods = slices.DeleteFunc(w.ComputePods, func(pod *corev1.Pod) bool { return pod.Name == name })
}

func (w *ward) pod(name string) *corev1.Pod {
	for _, pod := range w.ComputePods {
		if pod.Name == name {
			return pod
		}
	}
	w.t.Fatalf("no pod %s", name)
	return nil
}

// gone takes a pod and its agent away.
func (w *ward) gone(name string) {
	w.remove(name)
	w.Gone[types.UID("pod-"+name)] = true
	delete(w.Agents, types.UID("pod-"+name))
}

// exit is how a pod was seen to end before it was gone.
func (w *ward) exit(name string, code int32) {
	w.Exits = map[types.UID]*corev1.ContainerStateTerminated{types.UID("pod-" + name): terminated(code)}
}

// closes makes every memory node name a process as one that closed its sessions itself.
func (w *ward) closes(process uint64) {
	for i := range int32(2) {
		facts := w.Agents[types.UID("pod-"+v1alpha1.MemoryNodeName("cache", "memory", i))].Facts.GetMemoryNode()
		facts.Closed = []uint64{0x99, process}
	}
}

// unreachable is a shard that does not answer.
func (w *ward) unreachable(name string) {
	observed := w.Agents[types.UID("pod-"+name)]
	observed.State = agent.Unreachable
	w.Agents[types.UID("pod-"+name)] = observed
}

func terminated(code int32) *corev1.ContainerStateTerminated {
	return &corev1.ContainerStateTerminated{ExitCode: code, FinishedAt: metav1.NewTime(start.Add(-10 * time.Second))}
}

// report has a memory node name dead processes.
func (w *ward) report(ordinal int32, dead ...*farpoolv1alpha1.DeadClient) {
	facts := w.Agents[types.UID("pod-"+v1alpha1.MemoryNodeName("cache", "memory", ordinal))].Facts.GetMemoryNode()
	facts.Dead, facts.DeadClients = dead, uint64(len(dead))
}

// step decides and does what was decided: leases come to be, and statuses are written.
func (w *ward) step() *decision {
	w.t.Helper()
	plan := w.decide(w.t)
	w.last = plan
	for _, object := range plan.Apply {
		lease, ok := object.(*apiac.RepairLeaseApplyConfiguration)
		if !ok {
			continue
		}
		raw, err := json.Marshal(lease)
		if err != nil {
			w.t.Fatal(err)
		}
		at := slices.IndexFunc(w.Leases, func(have *v1alpha1.RepairLease) bool { return have.Name == *lease.Name })
		if at < 0 {
			at = len(w.Leases)
			w.Leases = append(w.Leases, &v1alpha1.RepairLease{ObjectMeta: metav1.ObjectMeta{UID: types.UID("lease-" + *lease.Name), CreationTimestamp: metav1.NewTime(w.now), Generation: 1}})
		}
		if err := json.Unmarshal(raw, w.Leases[at]); err != nil {
			w.t.Fatal(err)
		}
	}
	w.Leases = slices.DeleteFunc(w.Leases, func(lease *v1alpha1.RepairLease) bool {
		return slices.Contains(plan.Delete, client.Object(lease))
	})
	for name, status := range plan.Status.Leases {
		w.lease(name).Status = status
	}
	w.Pool.Status = plan.Status.Pool
	for name, status := range plan.Status.Nodes {
		w.Nodes[name].Status = status
	}
	for name, status := range plan.Status.ComputePools {
		w.ComputePools[name].Status = status
	}
	return plan
}

func (w *ward) lease(name string) *v1alpha1.RepairLease {
	w.t.Helper()
	for _, lease := range w.Leases {
		if lease.Name == name {
			return lease
		}
	}
	w.t.Fatalf("no RepairLease %s among %d", name, len(w.Leases))
	return nil
}

// request is a lease that a person makes.
func (w *ward) request(clients ...v1alpha1.RepairClient) *v1alpha1.RepairLease {
	lease := &v1alpha1.RepairLease{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "by-hand", UID: "lease-by-hand", Generation: 1, CreationTimestamp: metav1.NewTime(w.now)},
		Spec:       v1alpha1.RepairLeaseSpec{PoolRef: v1alpha1.PoolReference{Name: "cache"}, Cause: v1alpha1.CauseRequested, Clients: clients},
	}
	w.Leases = append(w.Leases, lease)
	return lease
}

// fences answers every call to fence that was asked, with what is left on each node.
func (w *ward) fences(left map[string]*farpoolv1alpha1.DeadClient) {
	for _, call := range w.last.Ask {
		if call.Incarnation == "" {
			continue
		}
		response := &farpoolv1alpha1.FenceResponse{Sessions: 1}
		if dead := left[call.Name]; dead != nil {
			response.Left = append(response.Left, dead)
		}
		w.outcome(agent.Outcome{Call: call, At: w.now, Fence: response})
	}
}

func (w *ward) outcome(outcome agent.Outcome) {
	list := slices.DeleteFunc(w.Calls[outcome.Lease], func(have agent.Outcome) bool {
		return have.Name == outcome.Name && (have.Incarnation == "") == (outcome.Incarnation == "")
	})
	w.Calls[outcome.Lease] = append(list, outcome)
}

// asked is the one call to repair that was asked.
func (w *ward) asked() agent.Call {
	w.t.Helper()
	var repairs []agent.Call
	for _, call := range w.last.Ask {
		if call.Incarnation == "" {
			repairs = append(repairs, call)
		}
	}
	if len(repairs) != 1 {
		w.t.Fatalf("%d calls to repair", len(repairs))
	}
	return repairs[0]
}

func (w *ward) wants(lease *v1alpha1.RepairLease, step v1alpha1.RepairStep, kind string, status metav1.ConditionStatus, reason string) {
	w.t.Helper()
	lease = w.lease(lease.Name)
	c := meta.FindStatusCondition(lease.Status.Conditions, kind)
	if lease.Status.Step != step || c == nil || c.Status != status || c.Reason != reason {
		w.t.Errorf("step %q and condition %+v, want %s, %s %s %s", lease.Status.Step, c, step, kind, status, reason)
	}
}

func message(lease *v1alpha1.RepairLease, kind string) string {
	return meta.FindStatusCondition(lease.Status.Conditions, kind).Message
}

// Which processes are dead, and how that is known.
func TestDeaths(t *testing.T) {
	ofA := &farpoolv1alpha1.DeadClient{Process: 0xa, Name: "a", Slots: 1}
	library := &farpoolv1alpha1.DeadClient{Process: 0x77, Name: "etl", Segments: 2}
	for _, c := range []struct {
		name  string
		do    func(*ward)
		cause v1alpha1.RepairCause // empty: nobody is taken for dead
		of    string
		keeps bool // process a stays written down
	}{
		{name: "nothing happens", do: func(*ward) {}, keeps: true},
		{name: "silence", do: func(w *ward) { w.unreachable("a") }, keeps: true},
		{name: "silence of a stream that is opened anew", do: func(w *ward) { delete(w.Agents, "pod-a") }, keeps: true},
		{name: "a pod that the cache has not yet", do: func(w *ward) { w.remove("a") }, keeps: true},
		{name: "a pod that is gone", do: func(w *ward) { w.gone("a") }, cause: v1alpha1.CausePodTerminated, of: "a"},
		{name: "a pod that is gone, and left in order", do: func(w *ward) { w.gone("a"); w.exit("a", 0) }},
		{name: "a pod that is gone, and ended badly", do: func(w *ward) { w.gone("a"); w.exit("a", 137) }, cause: v1alpha1.CausePodTerminated, of: "a"},
		{name: "a pod that is gone, of which another left in order", do: func(w *ward) { w.gone("a"); w.exit("z", 0) }, cause: v1alpha1.CausePodTerminated, of: "a"},
		{name: "a pod that ended in order, and that the cache has not", do: func(w *ward) { w.remove("a"); w.exit("a", 0) }, keeps: true},
		{name: "a pod that is gone and left in order, and a report", do: func(w *ward) { w.gone("a"); w.exit("a", 0); w.report(0, ofA) }, cause: v1alpha1.CauseMemoryNodeReport, of: "a"},
		{name: "a pod that is gone unseen, and memory nodes say that it left in order", do: func(w *ward) { w.gone("a"); w.closes(0xa) }},
		{name: "a pod that is gone unseen, and memory nodes say that another left in order", do: func(w *ward) { w.gone("a"); w.closes(0xb) }, cause: v1alpha1.CausePodTerminated, of: "a"},
		{name: "a pod that is gone unseen, and one memory node does not say that it left in order", do: func(w *ward) {
			w.gone("a")
			w.closes(0xa)
			w.Agents["pod-cache-memory-1"].Facts.MemoryNode.Closed = nil
		}, cause: v1alpha1.CausePodTerminated, of: "a"},
		{name: "a pod that is gone unseen, and one memory node cannot be asked", do: func(w *ward) { w.gone("a"); w.closes(0xa); w.silence("cache-memory-1") }, cause: v1alpha1.CausePodTerminated, of: "a"},
		{name: "a pod that is gone unseen, and left in order but for what is left", do: func(w *ward) { w.gone("a"); w.closes(0xa); w.report(0, ofA) }, cause: v1alpha1.CauseMemoryNodeReport, of: "a"},
		// The exit may be a later process's, which came and went in the pod.
		{name: "a pod that is gone and ended badly, after it closed its sessions", do: func(w *ward) { w.gone("a"); w.exit("a", 137); w.closes(0xa) }},
		{name: "a pod that the cache has not, whose process closed its sessions", do: func(w *ward) { w.remove("a"); w.closes(0xa) }, keeps: true},
		{name: "a pod that runs, whose process closed its sessions", do: func(w *ward) { w.unreachable("a"); w.closes(0xa) }, keeps: true},
		{name: "a pod that was evicted", do: func(w *ward) { w.unreachable("a"); w.pod("a").Status.Phase = corev1.PodFailed }, cause: v1alpha1.CausePodTerminated, of: "a"},
		{name: "a pod that is being deleted, but runs", do: func(w *ward) {
			w.unreachable("a")
			w.pod("a").DeletionTimestamp = &metav1.Time{Time: start}
		}, keeps: true},
		{name: "a pod that is being deleted and ended badly", do: func(w *ward) {
			w.unreachable("a")
			w.pod("a").DeletionTimestamp = &metav1.Time{Time: start}
			w.pod("a").Status.ContainerStatuses[0].State = corev1.ContainerState{Terminated: terminated(137)}
		}, cause: v1alpha1.CausePodTerminated, of: "a"},
		{name: "a pod that left in order", do: func(w *ward) {
			w.unreachable("a")
			w.pod("a").Status.Phase = corev1.PodSucceeded
			w.pod("a").Status.ContainerStatuses[0].State = corev1.ContainerState{Terminated: terminated(0)}
		}},
		{name: "another process in its pod, before the kubelet says anything", do: func(w *ward) { w.shard("a", 0xaa) }, keeps: true},
		{name: "another process in its pod", do: func(w *ward) {
			w.shard("a", 0xaa).Status.ContainerStatuses[0].LastTerminationState.Terminated = terminated(137)
		}, cause: v1alpha1.CausePodTerminated, of: "a"},
		{name: "another process in its pod, after it left in order", do: func(w *ward) {
			w.shard("a", 0xaa).Status.ContainerStatuses[0].LastTerminationState.Terminated = terminated(0)
		}},
		// The kubelet may mean the process before this one.
		{name: "a container that is not running", do: func(w *ward) {
			w.unreachable("a")
			w.pod("a").Status.ContainerStatuses[0] = corev1.ContainerStatus{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}},
				LastTerminationState: corev1.ContainerState{Terminated: terminated(1)}}
		}, keeps: true},
		{name: "a container that is not running, and a report", do: func(w *ward) {
			w.unreachable("a")
			w.pod("a").Status.ContainerStatuses[0] = corev1.ContainerStatus{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}}
			w.report(1, ofA)
		}, cause: v1alpha1.CauseMemoryNodeReport, of: "a"},
		{name: "a Kubernetes node out of service", do: func(w *ward) { w.unreachable("a"); w.OutOfService["worker-a"] = true }, cause: v1alpha1.CauseNodeOutOfService, of: "a"},
		{name: "a Kubernetes node out of service, whose process answers", do: func(w *ward) { w.OutOfService["worker-a"] = true }, keeps: true},
		{name: "another Kubernetes node out of service", do: func(w *ward) { w.unreachable("a"); w.OutOfService["worker-z"] = true }, keeps: true},
		{name: "a report of one that answers", do: func(w *ward) { w.report(0, ofA) }, keeps: true},
		{name: "a report of one that is silent in a pod that runs", do: func(w *ward) { w.unreachable("a"); w.report(0, ofA) }, keeps: true},
		{name: "a report of one that left in order", do: func(w *ward) {
			w.shard("a", 0xaa).Status.ContainerStatuses[0].LastTerminationState.Terminated = terminated(0)
			w.report(0, ofA)
		}, cause: v1alpha1.CauseMemoryNodeReport, of: "a"},
		{name: "a report of a client that Kubernetes does not know", do: func(w *ward) { w.report(0, library); w.report(1, library) }, cause: v1alpha1.CauseMemoryNodeReport, of: "etl", keeps: true},
		{name: "a report of a sidecar, of which neither agent nor kubelet tells", do: func(w *ward) {
			w.report(0, &farpoolv1alpha1.DeadClient{Process: 0x78, Name: v1alpha1.SidecarIdentity("shop") + "-web-1", Slots: 1, Segments: 2})
		}, keeps: true},
		{name: "a report of one of which nothing is left", do: func(w *ward) { w.report(0, &farpoolv1alpha1.DeadClient{Process: 0x77, Name: "etl"}) }, keeps: true},
		{name: "a report of a process that nobody can name", do: func(w *ward) { w.report(0, &farpoolv1alpha1.DeadClient{Name: "x", Slots: 1}) }, keeps: true},
		{name: "a report of a pod that has not been heard yet", do: func(w *ward) {
			w.shard("d", 0xd)
			w.unreachable("d")
			w.report(0, &farpoolv1alpha1.DeadClient{Process: 0xd0, Name: "d", Slots: 1})
		}, keeps: true},
		{name: "a report of a pod that the cache does not show yet", do: func(w *ward) {
			w.Unlisted = map[string]bool{"d": true}
			w.report(0, &farpoolv1alpha1.DeadClient{Process: 0xd0, Name: "d", Slots: 1})
		}, keeps: true},
		{name: "a report of an earlier life of a pod that answers", do: func(w *ward) {
			w.report(0, &farpoolv1alpha1.DeadClient{Process: 0xb0, Name: "b", Segments: 1})
		}, cause: v1alpha1.CauseMemoryNodeReport, of: "b", keeps: true},
		{name: "a report of a node that cannot be reached", do: func(w *ward) { w.report(0, library); w.silence("cache-memory-0") }, keeps: true},
		{name: "a paused pool", do: func(w *ward) { w.gone("a"); w.Pool.Spec.Management = v1alpha1.ManagementPaused }, keeps: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWard(t)
			c.do(w)
			// What is known of the dead must not depend on the look after the one that writes a later process down.
			for range 3 {
				w.step()
			}
			if c.cause == "" {
				if len(w.Leases) != 0 {
					t.Errorf("a RepairLease: %+v", w.Leases[0].Spec)
				}
			} else if len(w.Leases) != 1 || w.Leases[0].Spec.Cause != c.cause || len(w.Leases[0].Spec.Clients) != 1 || w.Leases[0].Spec.Clients[0].Name != c.of || w.Leases[0].Spec.PoolRef.Name != "cache" {
				t.Errorf("%d RepairLeases: %+v", len(w.Leases), w.Leases)
			}
			keeps := slices.ContainsFunc(w.Processes(), func(process v1alpha1.ProcessStatus) bool { return process.Process == v1alpha1.ProcessID(0xa) })
			if keeps != c.keeps {
				t.Errorf("process a is written down: %v", keeps)
			}
		})
	}
}

func TestWhatIsWrittenDownOfAProcess(t *testing.T) {
	w := newWard(t)
	want := v1alpha1.ProcessStatus{Process: "000000000000000b", Name: "b", PodUID: "pod-b", NodeName: "worker-b"}
	if got := w.Processes()[1]; got != want {
		t.Errorf("%+v", got)
	}
	w.shard("b", 0xbb).Status.ContainerStatuses[0].LastTerminationState.Terminated = terminated(9)
	if w.step(); len(w.Leases) > 0 {
		t.Errorf("%+v: what answers may be an earlier process, and the answer late", w.Leases[0].Spec)
	}
	plan := w.step()
	dead := w.Leases[0].Spec.Clients[0]
	if dead.Process != want.Process || dead.DiedAt == nil || !dead.DiedAt.Equal(&metav1.Time{Time: start.Add(-10 * time.Second)}) {
		t.Errorf("%+v", dead)
	}
	if w.Leases[0].Name != "cache-repair-1" || !slices.ContainsFunc(plan.Events, func(e Event) bool {
		return e.Reason == v1alpha1.ReasonClientsDied && strings.Contains(e.Note, "cache-repair-1")
	}) {
		t.Errorf("%s, events %v", w.Leases[0].Name, plan.Events)
	}
	w.step()
	if got := w.Processes()[2].Process; got != "00000000000000bb" {
		t.Errorf("the process that lives is not written down: %v", w.Processes())
	}
}

func TestARepairTakesItsSteps(t *testing.T) {
	w := newWard(t)
	w.gone("a")
	plan := w.step()
	if len(plan.Ask) != 0 {
		t.Errorf("asked before the lease is there: %v", plan.Ask)
	}
	lease := w.Leases[0]

	plan = w.step()
	w.wants(lease, v1alpha1.StepFencing, v1alpha1.ConditionFenced, metav1.ConditionFalse, v1alpha1.ReasonFencing)
	w.wants(lease, v1alpha1.StepFencing, v1alpha1.ConditionRepaired, metav1.ConditionFalse, v1alpha1.ReasonNotFenced)
	if len(plan.Ask) != 2 || plan.Ask[0].Incarnation != "100" || plan.Ask[1].Pod != "pod-cache-memory-1" || !slices.Equal(plan.Ask[0].Processes, []uint64{0xa}) {
		t.Fatalf("asked %+v", plan.Ask)
	}
	// The first node has fenced, the second takes its time.
	w.outcome(agent.Outcome{Call: plan.Ask[0], At: w.now, Fence: &farpoolv1alpha1.FenceResponse{Sessions: 3}})
	w.outcome(agent.Outcome{Call: plan.Ask[1], At: w.now, Running: true})
	second := plan.Ask[1]
	plan = w.step()
	if len(plan.Ask) != 0 || lease.Status.Fenced != "1/2" || lease.Status.FencedNodes != 1 || lease.Status.Nodes[0].SessionsEnded != 3 {
		t.Errorf("asked %+v, status %+v", plan.Ask, lease.Status)
	}
	// It left something there, and the node says so from now on.
	left := &farpoolv1alpha1.DeadClient{Process: 0xa, Name: "a", Slots: 2, Segments: 5}
	w.outcome(agent.Outcome{Call: second, At: w.now, Fence: &farpoolv1alpha1.FenceResponse{Sessions: 1, Left: []*farpoolv1alpha1.DeadClient{left}}})
	w.report(1, left)
	w.step()
	w.wants(lease, v1alpha1.StepRepairing, v1alpha1.ConditionFenced, metav1.ConditionTrue, v1alpha1.ReasonFenced)
	w.wants(lease, v1alpha1.StepRepairing, v1alpha1.ConditionRepaired, metav1.ConditionFalse, v1alpha1.ReasonRepairing)
	call := w.asked()
	if lease.Status.Left != 7 || call.Attempt != 1 || len(call.Witnesses) != 2 || lease.Status.Shard != call.Name {
		t.Errorf("call %+v, status %+v", call, lease.Status)
	}

	w.outcome(agent.Outcome{Call: call, At: w.now, Running: true})
	if plan = w.step(); len(plan.Ask) != 0 {
		t.Errorf("asked again: %+v", plan.Ask)
	}
	// That shard dies at it. Another one is asked, in a while.
	w.outcome(agent.Outcome{Call: call, At: w.now, Failures: 1, Error: "Unavailable"})
	plan = w.step()
	w.wants(lease, v1alpha1.StepRepairing, v1alpha1.ConditionRepaired, metav1.ConditionFalse, v1alpha1.ReasonRepairFailed)
	if len(plan.Ask) != 0 || lease.Status.Attempts != 1 || plan.RequeueAfter > time.Second {
		t.Errorf("asked %+v, %d attempts, due in %s", plan.Ask, lease.Status.Attempts, plan.RequeueAfter)
	}
	w.now = w.now.Add(time.Second)
	w.step()
	again := w.asked()
	if again.Name == call.Name || again.Attempt != 2 {
		t.Errorf("asked %s after %s, attempt %d", again.Name, call.Name, again.Attempt)
	}

	// It does a part.
	w.outcome(agent.Outcome{Call: again, At: w.now, Repair: &farpoolv1alpha1.RepairResponse{Nodes: []*farpoolv1alpha1.RepairResponse_Node{
		{Name: "cache-memory-1", SlotsRepaired: 2, SegmentsAdopted: 1, SegmentsLeft: 4, Message: "another repairer is at them"}}}})
	w.step()
	w.wants(lease, v1alpha1.StepRepairing, v1alpha1.ConditionRepaired, metav1.ConditionFalse, v1alpha1.ReasonLeft)
	if words := message(lease, v1alpha1.ConditionRepaired); !strings.Contains(words, "4 slots and segments are left (cache-memory-1: another repairer is at them)") || lease.Status.SlotsRepaired != 2 || lease.Status.Left != 4 {
		t.Errorf("%q, status %+v", words, lease.Status)
	}
	w.step()
	if lease.Status.SlotsRepaired != 2 || lease.Status.SegmentsAdopted != 1 {
		t.Errorf("counted twice: %+v", lease.Status)
	}
	w.now = w.now.Add(2 * time.Second)
	w.step()
	third := w.asked()
	// And the rest, while a memory node cannot be reached.
	w.outcome(agent.Outcome{Call: third, At: w.now, Repair: &farpoolv1alpha1.RepairResponse{Done: true, Nodes: []*farpoolv1alpha1.RepairResponse_Node{
		{Name: "cache-memory-0"}, {Name: "cache-memory-1", SegmentsAdopted: 4}}}})
	w.report(1)
	w.silence("cache-memory-0")
	w.step()
	w.wants(lease, v1alpha1.StepVerifying, v1alpha1.ConditionRepaired, metav1.ConditionTrue, v1alpha1.ReasonRepaired)
	w.wants(lease, v1alpha1.StepVerifying, v1alpha1.ConditionComplete, metav1.ConditionFalse, v1alpha1.ReasonVerifying)
	w.answer("cache-memory-0", 100, w.Agents["pod-cache-memory-1"].Facts.GetMemoryNode().GetMap())
	// It has not yet noticed that nothing is left.
	w.report(0, &farpoolv1alpha1.DeadClient{Process: 0xa, Name: "a"})
	if plan = w.step(); len(plan.Ask) != 0 {
		t.Errorf("asked %v", plan.Ask)
	}
	w.wants(lease, v1alpha1.StepVerifying, v1alpha1.ConditionComplete, metav1.ConditionFalse, v1alpha1.ReasonVerifying)
	w.report(0)
	plan = w.step()
	w.wants(lease, v1alpha1.StepComplete, v1alpha1.ConditionComplete, metav1.ConditionTrue, v1alpha1.ReasonComplete)
	if s := lease.Status; s.SlotsRepaired != 2 || s.SegmentsAdopted != 5 || s.Left != 0 || s.Attempts != 3 || s.CompletedAt == nil || s.StartedAt == nil || plan.Status.OpenLeases != 0 {
		t.Errorf("status %+v", s)
	}
	if told := plan.Status.Events; len(told) != 1 || told[0].Reason != v1alpha1.ReasonComplete || told[0].Regarding != any(lease) {
		t.Errorf("told %v", told)
	}
	// Nothing moves any more until it is deleted.
	before := fmt.Sprint(lease.Status)
	plan = w.step()
	if fmt.Sprint(lease.Status) != before || len(plan.Ask) != 0 || plan.RequeueAfter > time.Hour || plan.RequeueAfter < 59*time.Minute {
		t.Errorf("status %+v, asked %v, due in %s", lease.Status, plan.Ask, plan.RequeueAfter)
	}
	w.now = w.now.Add(time.Hour)
	w.step()
	if len(w.Leases) != 0 {
		t.Error("it is kept for ever")
	}
}

// Another operator knows the statuses alone: it goes on where the first one stood.
func TestARepairSurvivesItsOperator(t *testing.T) {
	w := newWard(t)
	w.gone("a")
	w.step()
	lease := w.Leases[0]
	w.step()
	left := &farpoolv1alpha1.DeadClient{Process: 0xa, Slots: 1}
	w.fences(map[string]*farpoolv1alpha1.DeadClient{"cache-memory-0": left})
	w.report(0, left)
	w.step()
	first := w.asked()
	w.Calls = map[types.UID][]agent.Outcome{}
	plan := w.step()
	if call := w.asked(); len(plan.Ask) != 1 || call.Attempt != 1 || call.Name != first.Name {
		t.Errorf("asked %+v after %+v", plan.Ask, first)
	}
	w.wants(lease, v1alpha1.StepRepairing, v1alpha1.ConditionFenced, metav1.ConditionTrue, v1alpha1.ReasonFenced)
}

func TestWhatWasNeverLeftNeedsNoRepair(t *testing.T) {
	w := newWard(t)
	w.gone("a")
	w.step()
	w.step()
	w.fences(nil)
	plan := w.step()
	w.wants(w.Leases[0], v1alpha1.StepComplete, v1alpha1.ConditionRepaired, metav1.ConditionTrue, v1alpha1.ReasonNothingLeft)
	if len(plan.Ask) != 0 || len(plan.Status.Events) != 3 {
		t.Errorf("asked %v, told %v", plan.Ask, plan.Status.Events)
	}
	// What memory nodes said a moment ago makes no other lease; what they say later does.
	w.report(0, &farpoolv1alpha1.DeadClient{Process: 0xa, Name: "a", Slots: 1})
	w.step()
	if len(w.Leases) != 1 {
		t.Errorf("an echo makes a lease: %v", w.Leases[1].Spec)
	}
	w.now = w.now.Add(2 * time.Minute)
	w.step()
	if len(w.Leases) != 2 || w.Leases[1].Name != "cache-repair-2" || w.Leases[1].Spec.Cause != v1alpha1.CauseMemoryNodeReport {
		t.Errorf("%d leases", len(w.Leases))
	}
}

func TestFencesAreOfOneLifeOfAMemoryNode(t *testing.T) {
	w := newWard(t)
	w.gone("a")
	w.step()
	lease := w.Leases[0]
	w.silence("cache-memory-1")
	w.step()
	w.fences(map[string]*farpoolv1alpha1.DeadClient{"cache-memory-0": {Process: 0xa, Slots: 1}})
	plan := w.step()
	w.wants(lease, v1alpha1.StepFencing, v1alpha1.ConditionFenced, metav1.ConditionFalse, v1alpha1.ReasonAgentUnreachable)
	if len(plan.Ask) != 0 || lease.Status.Fenced != "1/2" || !strings.Contains(message(lease, v1alpha1.ConditionFenced), "cache-memory-1") {
		t.Errorf("asked %v, %s", plan.Ask, message(lease, v1alpha1.ConditionFenced))
	}
	// The first node restarts before the second can be reached: it is asked again, and what it said is void.
	w.answer("cache-memory-0", 200, nil)
	next := w.decide(t)
	w.carryOut(t, &next.Plan)
	held, err := shardmap.ToMessage(published(t, next))
	if err != nil {
		t.Fatal(err)
	}
	w.answer("cache-memory-0", 200, held)
	w.answer("cache-memory-1", 101, held)
	plan = w.step()
	if len(plan.Ask) != 2 || plan.Ask[0].Incarnation != "200" || lease.Status.Fenced != "0/2" {
		t.Errorf("asked %+v, %s", plan.Ask, lease.Status.Fenced)
	}
	// One refuses: it is asked again after a while, and said so.
	w.outcome(agent.Outcome{Call: plan.Ask[0], At: w.now, Fence: &farpoolv1alpha1.FenceResponse{}})
	w.outcome(agent.Outcome{Call: plan.Ask[1], At: w.now, Failures: 2, Error: "Internal: no"})
	plan = w.step()
	if len(plan.Ask) != 0 || plan.RequeueAfter != 2*time.Second || !strings.Contains(message(lease, v1alpha1.ConditionFenced), "cache-memory-1: Internal: no") {
		t.Errorf("asked %v, due in %s, %s", plan.Ask, plan.RequeueAfter, message(lease, v1alpha1.ConditionFenced))
	}
	w.now = w.now.Add(2 * time.Second)
	plan = w.step()
	if len(plan.Ask) != 1 || plan.Ask[0].Name != "cache-memory-1" {
		t.Errorf("asked %v", plan.Ask)
	}
	w.fences(nil)
	w.step()
	w.wants(lease, v1alpha1.StepComplete, v1alpha1.ConditionRepaired, metav1.ConditionTrue, v1alpha1.ReasonNothingLeft)
}

// A node whose tables are stopped admits nobody, and holds nothing.
func TestStoppedNodesAreNotFenced(t *testing.T) {
	w := newWard(t)
	w.gone("a")
	w.ShardMaps[0].Spec.Nodes[1].State = v1alpha1.NodeStopped
	w.silence("cache-memory-1")
	w.step()
	w.step()
	w.fences(nil)
	w.step()
	w.wants(w.Leases[0], v1alpha1.StepComplete, v1alpha1.ConditionComplete, metav1.ConditionTrue, v1alpha1.ReasonComplete)
}

func TestWithoutComputeShardsClientsRepair(t *testing.T) {
	w := newWard(t)
	w.gone("a")
	w.step()
	lease := w.Leases[0]
	w.gone("b")
	w.gone("c")
	w.ComputePools["cache-shards"].Status.Processes = nil
	left := &farpoolv1alpha1.DeadClient{Process: 0xa, Name: "a", Slots: 1}
	w.step()
	w.fences(map[string]*farpoolv1alpha1.DeadClient{"cache-memory-0": left})
	w.report(0, left)
	w.step()
	w.wants(lease, v1alpha1.StepRepairing, v1alpha1.ConditionRepaired, metav1.ConditionFalse, v1alpha1.ReasonNoComputeShards)
	// A list that is cut short proves nothing.
	w.report(0)
	w.Agents["pod-cache-memory-0"].Facts.MemoryNode.DeadClients = 300
	w.step()
	w.wants(lease, v1alpha1.StepRepairing, v1alpha1.ConditionRepaired, metav1.ConditionFalse, v1alpha1.ReasonNoComputeShards)
	w.report(0)
	w.step()
	w.wants(lease, v1alpha1.StepComplete, v1alpha1.ConditionComplete, metav1.ConditionTrue, v1alpha1.ReasonComplete)
}

// A shard is asked for one repair at a time. A shard that is dead, not ready or behind is not asked.
func TestWhichShardIsAsked(t *testing.T) {
	w := newWard(t)
	w.Agents["pod-b"].Facts.Ready = false
	for i := range 3 {
		w.report(0, &farpoolv1alpha1.DeadClient{Process: uint64(0x70 + i), Slots: 1})
		w.step()
	}
	w.report(0, &farpoolv1alpha1.DeadClient{Process: 0x70, Slots: 1}, &farpoolv1alpha1.DeadClient{Process: 0x71, Slots: 1}, &farpoolv1alpha1.DeadClient{Process: 0x72, Slots: 1})
	w.step()
	w.fences(nil)
	plan := w.step()
	var asked []string
	for _, call := range plan.Ask {
		asked = append(asked, call.Name)
	}
	slices.Sort(asked)
	if !slices.Equal(asked, []string{"a", "c"}) {
		t.Errorf("asked %v", asked)
	}
	waiting := 0
	for _, lease := range w.Leases {
		if strings.Contains(message(lease, v1alpha1.ConditionRepaired), "does another repair") {
			waiting++
		}
	}
	if len(w.Leases) != 3 || waiting != 1 {
		t.Errorf("%d of %d wait", waiting, len(w.Leases))
	}
	w.Agents["pod-a"].Facts.Epoch = 0
	for _, call := range plan.Ask {
		w.outcome(agent.Outcome{Call: call, At: w.now, Repair: &farpoolv1alpha1.RepairResponse{}})
	}
	w.now = w.now.Add(time.Hour)
	if plan = w.step(); len(plan.Ask) != 1 || plan.Ask[0].Name != "c" {
		t.Errorf("asked %+v", plan.Ask)
	}
}

func TestRequests(t *testing.T) {
	for _, c := range []struct {
		name     string
		clients  []v1alpha1.RepairClient
		do       func(*ward)
		fences   []uint64 // processes; none: the request cannot be done
		reason   string
		contains string
	}{
		{name: "of a process", clients: []v1alpha1.RepairClient{{Process: "000000000000beef"}}, fences: []uint64{0xbeef}},
		{name: "of a process that answers", clients: []v1alpha1.RepairClient{{Name: "a", Process: "000000000000000a"}}, fences: []uint64{0xa}},
		{name: "of a silent shard by name", clients: []v1alpha1.RepairClient{{Name: "a"}}, do: func(w *ward) { w.unreachable("a") }, fences: []uint64{0xa}},
		{name: "of a dead client by name", clients: []v1alpha1.RepairClient{{Name: "etl"}},
			do: func(w *ward) { w.report(1, &farpoolv1alpha1.DeadClient{Process: 0x77, Name: "etl"}) }, fences: []uint64{0x77}},
		{name: "of an earlier life of a pod by name", clients: []v1alpha1.RepairClient{{Name: "a"}},
			do: func(w *ward) { w.shard("a", 0xaa) }, fences: []uint64{0xa}},
		{name: "of two", clients: []v1alpha1.RepairClient{{Name: "a"}, {Process: "0000000000000010"}}, do: func(w *ward) { w.unreachable("a") }, fences: []uint64{0xa, 0x10}},
		{name: "of a shard that answers, by name", clients: []v1alpha1.RepairClient{{Name: "a"}}, reason: v1alpha1.ReasonClientAnswers, contains: "a answers as process 000000000000000a"},
		{name: "of nobody", clients: []v1alpha1.RepairClient{{Name: "zz"}, {Process: "0000000000000010"}}, reason: v1alpha1.ReasonClientUnknown, contains: "name zz: delete this RepairLease"},
		{name: "in a paused pool", clients: []v1alpha1.RepairClient{{Process: "0000000000000010"}}, do: func(w *ward) { w.Pool.Spec.Management = v1alpha1.ManagementPaused },
			reason: v1alpha1.ReasonPaused, contains: "may not act"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWard(t)
			if c.do != nil {
				c.do(w)
			}
			lease := w.request(c.clients...)
			plan := w.step()
			if c.reason != "" {
				w.wants(lease, v1alpha1.StepFencing, v1alpha1.ConditionFenced, metav1.ConditionFalse, c.reason)
				if words := message(lease, v1alpha1.ConditionFenced); !strings.Contains(words, c.contains) || len(plan.Ask) != 0 {
					t.Errorf("%q, asked %v", words, plan.Ask)
				}
				return
			}
			if len(plan.Ask) != 2 || !slices.Equal(plan.Ask[0].Processes, c.fences) {
				t.Fatalf("asked %+v", plan.Ask)
			}
			if owner := metav1.GetControllerOf(lease); owner == nil || owner.UID != "uid" || lease.Labels[v1alpha1.LabelPool] != "cache" {
				t.Errorf("it does not belong to its pool: %+v", lease.ObjectMeta)
			}
			// The process that a name means is found once.
			w.shard("a", 0xff)
			if w.step(); len(lease.Status.Processes) != len(c.fences) {
				t.Errorf("%v", lease.Status.Processes)
			}
		})
	}
}

// A name that is resolved anew, as its status was never written, may mean one process more. No memory node has been asked to fence that one.
func TestAFenceIsOfTheProcessesThatItNamed(t *testing.T) {
	w := newWard(t)
	lease := w.request(v1alpha1.RepairClient{Name: "a"})
	w.report(0, &farpoolv1alpha1.DeadClient{Process: 0x77, Name: "a"})
	w.unreachable("a")
	w.step()
	w.fences(nil)
	lease.Status = v1alpha1.RepairLeaseStatus{}
	w.report(1, &farpoolv1alpha1.DeadClient{Process: 0x78, Name: "a", Slots: 1})
	plan := w.step()
	w.wants(lease, v1alpha1.StepFencing, v1alpha1.ConditionFenced, metav1.ConditionFalse, v1alpha1.ReasonFencing)
	if len(plan.Ask) != 2 || plan.Ask[0].Incarnation == "" || !slices.Equal(plan.Ask[0].Processes, []uint64{0xa, 0x77, 0x78}) {
		t.Errorf("asked %+v", plan.Ask)
	}
}

// Deaths come in batches; beyond a number of open leases they wait, and the pool says so.
func TestBacklog(t *testing.T) {
	w := newWard(t)
	for i := range leasesOpen - 1 {
		w.request(v1alpha1.RepairClient{Process: v1alpha1.ProcessID(uint64(0x1000 + i))}).Name = fmt.Sprintf("by-hand-%d", i)
		w.Leases[i].UID = types.UID(w.Leases[i].Name)
	}
	var dead []*farpoolv1alpha1.DeadClient
	for i := range 300 {
		dead = append(dead, &farpoolv1alpha1.DeadClient{Process: uint64(0x100000 + i), Slots: 1})
	}
	w.report(0, dead[:256]...)
	w.report(1, dead[200:]...)
	plan := w.step()
	if len(w.Leases) != leasesOpen || len(w.Leases[leasesOpen-1].Spec.Clients) != clientsInLease || plan.Status.Backlog != 44 || plan.Status.OpenLeases != leasesOpen {
		t.Fatalf("%d leases, backlog %d, open %d", len(w.Leases), plan.Status.Backlog, plan.Status.OpenLeases)
	}
	wantCondition(t, plan, v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonRepairBacklog)
	// More die: they wait, too, and come into one lease when one is complete.
	w.gone("a")
	w.gone("b")
	if plan = w.step(); plan.Status.Backlog != 46 || len(w.Processes()) != 3 {
		t.Errorf("backlog %d, written down %v", plan.Status.Backlog, w.Processes())
	}
	w.Leases[0].Status.CompletedAt = &metav1.Time{Time: w.now}
	plan = w.step()
	newest := w.Leases[len(w.Leases)-1]
	if newest.Spec.Cause != v1alpha1.CausePodTerminated || len(newest.Spec.Clients) != 2 || plan.Status.Backlog != 44 || len(w.Processes()) != 3 {
		t.Errorf("%+v, backlog %d, written down %v", newest.Spec, plan.Status.Backlog, w.Processes())
	}
	w.Leases[1].Status.CompletedAt = &metav1.Time{Time: w.now}
	plan = w.step()
	// The RepairLease of the two is seen now, so that nothing else has to remember them.
	if newest = w.Leases[len(w.Leases)-1]; len(newest.Spec.Clients) != 44 || plan.Status.Backlog != 0 || len(w.Processes()) != 1 {
		t.Errorf("%d clients, backlog %d, written down %v", len(newest.Spec.Clients), plan.Status.Backlog, w.Processes())
	}
	wantCondition(t, plan, v1alpha1.ConditionDegraded, metav1.ConditionFalse, v1alpha1.ReasonHealthy)
}

func TestOldLeasesGo(t *testing.T) {
	w := newWard(t)
	for i := range leasesKept + 10 {
		lease := w.request(v1alpha1.RepairClient{Process: v1alpha1.ProcessID(uint64(0x1000 + i))})
		lease.Name = fmt.Sprintf("by-hand-%d", i)
		lease.Status.CompletedAt = &metav1.Time{Time: w.now.Add(-time.Duration(i) * time.Second)}
	}
	w.step()
	if len(w.Leases) != leasesKept || slices.ContainsFunc(w.Leases, func(lease *v1alpha1.RepairLease) bool { return lease.Name == "by-hand-257" }) {
		t.Errorf("%d are kept", len(w.Leases))
	}
}

// Before every process has been heard of, nobody is taken for dead by what others say of it.
func TestNobodyIsDeadBeforeAllWereHeard(t *testing.T) {
	w := newWard(t)
	w.report(0, &farpoolv1alpha1.DeadClient{Process: 0x77, Name: "worker of c", Slots: 1})
	w.Agents["pod-c"] = agent.Observation{}
	w.step()
	if len(w.Leases) != 0 {
		t.Errorf("%+v", w.Leases[0].Spec)
	}
}

func TestQuarantinedRowsNeedAPerson(t *testing.T) {
	w := newWard(t)
	w.Agents["pod-cache-memory-1"].Facts.MemoryNode.QuarantinedRows = 2
	plan := w.step()
	wantCondition(t, plan, v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonRowsQuarantined)
	c := meta.FindStatusCondition(plan.Status.Pool.Conditions, v1alpha1.ConditionDegraded)
	if !strings.Contains(c.Message, "2 on memory node cache-memory-1") || !strings.Contains(c.Message, "farpool-fsck") {
		t.Error(c.Message)
	}
	// They are not forgotten because the node cannot be reached.
	w.silence("cache-memory-1")
	wantCondition(t, w.step(), v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonRowsQuarantined)
	w.answer("cache-memory-1", 101, w.Agents["pod-cache-memory-0"].Facts.GetMemoryNode().GetMap())
	wantCondition(t, w.step(), v1alpha1.ConditionDegraded, metav1.ConditionFalse, v1alpha1.ReasonHealthy)
}

// A process that restarts over its memory is another life of the node, and nothing is lost.
func TestWarmRestart(t *testing.T) {
	for _, policy := range []v1alpha1.DataPolicy{v1alpha1.DataPolicyCache, v1alpha1.DataPolicyStore} {
		t.Run(string(policy), func(t *testing.T) {
			s := newScene(2, policy)
			restart := func(incarnation uint64, fresh bool) *decision {
				t.Helper()
				s.answer("cache-memory-0", incarnation, nil)
				s.Agents["pod-cache-memory-0"].Facts.MemoryNode.MemoryFresh = fresh
				plan := s.decide(t)
				s.carryOut(t, &plan.Plan)
				return plan
			}
			s.carryOut(t, &s.decide(t).Plan)
			plan := restart(200, false)
			entry := published(t, plan).Nodes[0]
			if entry.State != v1alpha1.NodeServing || entry.Incarnation != "200" || entry.MemoryIncarnation != "100" || published(t, plan).Epoch != 2 {
				t.Fatalf("%+v", entry)
			}
			status := plan.Status.Nodes["cache-memory-0"]
			lost := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionDataLost)
			if lost.Status != metav1.ConditionFalse || status.LostIncarnation != "" || status.Incarnation != "200" || status.MemoryIncarnation != "100" {
				t.Errorf("%+v", status)
			}
			reasons := func(plan *decision) (told []string) {
				for _, event := range plan.Status.Events {
					told = append(told, event.Type+" "+event.Reason)
				}
				return told
			}
			if told := reasons(plan); !slices.Equal(told, []string{"Normal WarmRestarted", "Normal WarmRestarted"}) {
				t.Errorf("told %v", told)
			}
			wantCondition(t, plan, v1alpha1.ConditionDegraded, metav1.ConditionFalse, v1alpha1.ReasonHealthy)
			if plan = restart(201, false); published(t, plan).Nodes[0].MemoryIncarnation != "100" {
				t.Errorf("after another one: %+v", published(t, plan).Nodes[0])
			}

			// Then it loses its memory, and restarts over what it has: the loss stands.
			plan = restart(300, true)
			if told := reasons(plan); len(told) != 2 || !strings.HasPrefix(told[0], "Warning ") || plan.Status.Nodes["cache-memory-0"].LostIncarnation != "201" {
				t.Errorf("told %v, %+v", told, plan.Status.Nodes["cache-memory-0"])
			}
			plan = restart(301, false)
			want := map[v1alpha1.DataPolicy]v1alpha1.NodeState{v1alpha1.DataPolicyCache: v1alpha1.NodeServing, v1alpha1.DataPolicyStore: v1alpha1.NodeStopped}[policy]
			if entry = published(t, plan).Nodes[0]; entry.State != want || entry.MemoryIncarnation != "300" {
				t.Errorf("%+v", entry)
			}
			if c := meta.FindStatusCondition(plan.Status.Nodes["cache-memory-0"].Conditions, v1alpha1.ConditionDataLost); c.Status != metav1.ConditionTrue {
				t.Errorf("%+v", c)
			}
			if policy == v1alpha1.DataPolicyCache {
				return
			}
			// Accepted by the life before, which was the last that a person saw.
			s.Nodes["cache-memory-0"].Annotations = map[string]string{v1alpha1.AnnotationAcceptDataLoss: "301"}
			if entry = published(t, restart(302, false)).Nodes[0]; entry.State != v1alpha1.NodeServing {
				t.Errorf("an accepted loss: %+v", entry)
			}
		})
	}
}

// A loss and a warm restart between two looks of the operator are a loss: the map's memory is compared, not the last life's word.
func TestWarmRestartDoesNotHideALoss(t *testing.T) {
	s := newScene(1, v1alpha1.DataPolicyCache)
	s.carryOut(t, &s.decide(t).Plan)
	s.answer("cache-memory-0", 200, nil)
	plan := s.decide(t)
	// The map of the loss is made, and the operator dies before it writes statuses.
	node := s.Nodes["cache-memory-0"].Status
	s.carryOut(t, &plan.Plan)
	s.Nodes["cache-memory-0"].Status = node
	s.answer("cache-memory-0", 201, nil)
	s.Agents["pod-cache-memory-0"].Facts.MemoryNode.MemoryFresh = false
	plan = s.decide(t)
	if status := plan.Status.Nodes["cache-memory-0"]; status.LostIncarnation != "100" || plan.Status.Events[0].Reason != v1alpha1.ReasonTablesLost {
		t.Errorf("%+v, told %v", status, plan.Status.Events)
	}
}

// A shard that is alive and named as dead is not asked to repair what it itself left.
func TestNobodyRepairsItself(t *testing.T) {
	w := newWard(t)
	w.request(v1alpha1.RepairClient{Process: v1alpha1.ProcessID(0xa)}, v1alpha1.RepairClient{Process: v1alpha1.ProcessID(0xb)})
	left := &farpoolv1alpha1.DeadClient{Process: 0xa, Slots: 1}
	w.step()
	w.fences(map[string]*farpoolv1alpha1.DeadClient{"cache-memory-0": left})
	w.report(0, left)
	for range 3 {
		w.step()
		call := w.asked()
		if call.Name != "c" {
			t.Errorf("asked %s", call.Name)
		}
		w.outcome(agent.Outcome{Call: call, At: w.now, Repair: &farpoolv1alpha1.RepairResponse{}})
		w.now = w.now.Add(time.Hour)
	}
}

// A cache that shows an earlier status leads to the same decision once more, and to no other call.
func TestAnOldStatusChangesNothing(t *testing.T) {
	w := newWard(t)
	w.gone("a")
	w.step()
	lease := w.Leases[0]
	w.step()
	left := &farpoolv1alpha1.DeadClient{Process: 0xa, Slots: 1}
	w.fences(map[string]*farpoolv1alpha1.DeadClient{"cache-memory-0": left})
	w.report(0, left)
	before := []v1alpha1.RepairLeaseStatus{lease.Status}
	w.step()
	w.outcome(agent.Outcome{Call: w.asked(), At: w.now, Repair: &farpoolv1alpha1.RepairResponse{Done: true, Nodes: []*farpoolv1alpha1.RepairResponse_Node{{Name: "cache-memory-0", SlotsRepaired: 1}}}})
	w.report(0)
	before = append(before, lease.Status)
	w.step()
	complete := fmt.Sprint(lease.Status)
	for i, old := range before {
		lease.Status = old
		if plan := w.step(); len(plan.Ask) != 0 || fmt.Sprint(lease.Status) != complete {
			t.Errorf("status %d: asked %v, %+v", i, plan.Ask, lease.Status)
		}
	}
}

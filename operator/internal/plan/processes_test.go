// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"farpool.dev/farpool/api/v1alpha1"
)

func inPool(w *ward, name string) []string {
	var found []string
	for _, process := range w.ComputePools[name].Status.Processes {
		found = append(found, process.Name)
	}
	return found
}

func TestProcessesAreWrittenDownInTheirComputeShardPool(t *testing.T) {
	w := newWard(t)
	w.Pool.Spec.Compute.Pools = append(w.Pool.Spec.Compute.Pools, v1alpha1.ComputePool{Name: "other", Replicas: 1, Workers: 1})
	w.ComputePools["cache-other"] = computeShardPool("other", 1)
	w.shard("labelled", 0x10).Labels = map[string]string{v1alpha1.LabelComputePool: "other"}
	w.shard("cache-other-5d8f-x", 0x11)
	w.shard("cache-shards-77-y", 0x12)
	w.step()
	if got := inPool(w, "cache-other"); !slices.Equal(got, []string{"labelled", "cache-other-5d8f-x"}) {
		t.Errorf("cache-other has %v", got)
	}
	if got := inPool(w, "cache-shards"); !slices.Equal(got, []string{"a", "b", "c", "cache-shards-77-y"}) {
		t.Errorf("cache-shards has %v", got)
	}
	if len(w.Pool.Status.Processes) != 0 {
		t.Errorf("the KVPool has %v", w.Pool.Status.Processes)
	}
}

// An operator that wrote processes into the KVPool is followed by this one: no moment may be without them, whatever write fails.
func TestProcessesOfAnEarlierOperatorMove(t *testing.T) {
	w := newWard(t)
	old := w.ComputePools["cache-shards"].Status.Processes
	w.ComputePools["cache-shards"].Status.Processes = nil
	w.Pool.Status.Processes = old
	// One died while no operator looked.
	w.gone("a")
	w.Pool.Spec.Management = v1alpha1.ManagementPaused
	plan := w.decide(t)
	if len(plan.Status.Pool.Processes) != 3 || len(plan.Status.ComputePools["cache-shards"].Processes) != 3 {
		t.Fatalf("before they are seen there: %v and %v", plan.Status.Pool.Processes, plan.Status.ComputePools["cache-shards"].Processes)
	}
	w.step()
	w.step()
	if len(w.Pool.Status.Processes) != 0 || !slices.Equal(w.ComputePools["cache-shards"].Status.Processes, old) {
		t.Errorf("%v and %v", w.Pool.Status.Processes, w.ComputePools["cache-shards"].Status.Processes)
	}
	w.Pool.Spec.Management = v1alpha1.ManagementManaged
	w.step()
	if len(w.Leases) != 1 || w.Leases[0].Spec.Clients[0].Name != "a" {
		t.Errorf("%d RepairLeases", len(w.Leases))
	}
}

// Without a ComputeShardPool there is no other place.
func TestProcessesOfAnEarlierOperatorStayWithoutAPlace(t *testing.T) {
	w := newWard(t)
	w.Pool.Status.Processes = w.Processes()
	w.ComputePools = map[string]*v1alpha1.ComputeShardPool{}
	if w.step(); len(w.Pool.Status.Processes) != 3 {
		t.Errorf("%v", w.Pool.Status.Processes)
	}
}

// A compute pool that the spec loses takes its processes along only once all are dealt with.
func TestAComputeShardPoolGoesAfterItsProcesses(t *testing.T) {
	w := newWard(t)
	w.Pool.Spec.Compute.Pools[0].Name = "other"
	w.ComputePools["cache-other"] = computeShardPool("other", 3)
	object := w.ComputePools["cache-shards"]
	if plan := w.step(); slices.Contains(plan.Delete, client.Object(object)) || len(object.Status.Processes) != 3 {
		t.Fatalf("deleted: %v; %v", plan.Delete, object.Status.Processes)
	}
	for _, name := range []string{"a", "b", "c"} {
		w.gone(name)
	}
	// A RepairLease that could not be made would be made at the next look.
	if w.step(); len(object.Status.Processes) != 3 {
		t.Fatalf("%v: what is dead is forgotten before a RepairLease is seen to name it", object.Status.Processes)
	}
	w.step()
	if len(object.Status.Processes) != 0 || len(w.Leases) != 1 || len(w.Leases[0].Spec.Clients) != 3 {
		t.Fatalf("%v; %d RepairLeases", object.Status.Processes, len(w.Leases))
	}
	if plan := w.step(); !slices.Contains(plan.Delete, client.Object(object)) {
		t.Error("it stays for ever")
	}
}

func TestThousandsOfProcessesAreWrittenDown(t *testing.T) {
	w := newWard(t)
	for i := range 1500 {
		w.shard(fmt.Sprintf("many-%d", i), uint64(0x10000+i))
	}
	if w.step(); len(inPool(w, "cache-shards")) != 1503 {
		t.Errorf("%d are written down", len(inPool(w, "cache-shards")))
	}
	w.last = nil
	// There are more than fit: the list keeps processes that may be known from nowhere else, and people learn of it.
	var dead []v1alpha1.ProcessStatus
	for i := range 3000 {
		name := fmt.Sprintf("silent-%d", i)
		dead = append(dead, v1alpha1.ProcessStatus{Process: v1alpha1.ProcessID(uint64(0xf00000 + i)), Name: name, PodUID: string(types.UID("pod-" + name))})
	}
	w.ComputePools["cache-shards"].Status.Processes = append(w.ComputePools["cache-shards"].Status.Processes, dead...)
	plan := w.step()
	kept := inPool(w, "cache-shards")
	if len(kept) != processesKept || !slices.Contains(kept, "silent-0") || !slices.Contains(kept, "silent-2999") {
		t.Errorf("%d are written down", len(kept))
	}
	wantCondition(t, plan, v1alpha1.ConditionDegraded, "True", v1alpha1.ReasonRepairBacklog)
}

// What an earlier operator wrote into the KVPool stays there until it is seen elsewhere, and goes when it is dealt with.
func TestWhatIsLeftInTheKVPool(t *testing.T) {
	process := func(number uint64) v1alpha1.ProcessStatus {
		return v1alpha1.ProcessStatus{Process: v1alpha1.ProcessID(number), Name: "cache-shards-x"}
	}
	d := stageOf(v1alpha1.DataPolicyCache, 0)
	d.ComputePools = map[string]*v1alpha1.ComputeShardPool{"cache-shards": {}}
	d.ComputePools["cache-shards"].Status.Processes = []v1alpha1.ProcessStatus{process(2)}
	d.Pool.Status.Processes = []v1alpha1.ProcessStatus{process(1), process(2), process(3)}
	d.repairs.processes = []v1alpha1.ProcessStatus{process(1), process(2)}
	if d.writeDown(); !slices.Equal(d.written.left, []v1alpha1.ProcessStatus{process(1)}) || len(d.written.in["cache-shards"]) != 2 {
		t.Errorf("left are %v, elsewhere %v", d.written.left, d.written.in)
	}
}

// A list has room for so many, and people are told of no fewer.
func TestAListThatIsJustFull(t *testing.T) {
	d := &decision{}
	if list := d.kept("cache-shards", make([]v1alpha1.ProcessStatus, processesKept)); len(list) != processesKept || len(d.degraded) > 0 {
		t.Errorf("%d are kept: %+v", len(list), d.degraded)
	}
}

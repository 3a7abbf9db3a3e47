// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"farpool.dev/farpool/api/v1alpha1"
)

// processesKept bounds the list of one ComputeShardPool: four times as many processes as it can have shards.
const processesKept = 4096

// written says where each process is written down.
type written struct {
	// in is the status of ComputeShardPools, by name.
	in map[string][]v1alpha1.ProcessStatus
	// left stays in the KVPool's status until it is seen elsewhere.
	left []v1alpha1.ProcessStatus
}

// writeDown finds the place of each process. A process that is written down already stays where it is.
func (d *decision) writeDown() {
	d.written.in = map[string][]v1alpha1.ProcessStatus{}
	places := make(map[string]string, len(d.repairs.census.processes))
	for name, object := range d.ComputePools {
		for _, process := range object.Status.Processes {
			places[process.Process] = name
		}
		d.written.in[name] = make([]v1alpha1.ProcessStatus, 0, len(object.Status.Processes)+len(d.ComputePods))
	}
	names := slices.Sorted(maps.Keys(d.ComputePools))
	for _, process := range d.repairs.processes {
		place, placed := places[process.Process]
		if !placed {
			place = d.placeOf(process, names)
		}
		if place != "" {
			d.written.in[place] = append(d.written.in[place], process)
		}
	}
	for name, list := range d.written.in {
		d.written.in[name] = d.kept(name, list)
	}
	for _, process := range d.Pool.Status.Processes {
		known := slices.ContainsFunc(d.repairs.processes, func(other v1alpha1.ProcessStatus) bool { return other.Process == process.Process })
		if _, seen := places[process.Process]; known && !seen {
			d.written.left = append(d.written.left, process)
		}
	}
}

// placeOf is the ComputeShardPool of the pod that a process runs in: by the pod's label, or by its name if the pod is gone, or else any. Empty: there is none yet.
func (d *decision) placeOf(process v1alpha1.ProcessStatus, names []string) string {
	if pod := d.repairs.census.byUID[types.UID(process.PodUID)]; pod != nil {
		if name := v1alpha1.ScaleName(d.Pool.Name, pod.Labels[v1alpha1.LabelComputePool]); d.ComputePools[name] != nil {
			return name
		}
	}
	var place string
	for _, name := range names {
		if strings.HasPrefix(process.Name, name+"-") && len(name) > len(place) {
			place = name
		}
	}
	if place == "" && len(names) > 0 {
		return names[0]
	}
	return place
}

// kept shortens a list that is too long, and reports it. Processes that do not answer come first: they may be known from nowhere else.
func (d *decision) kept(name string, list []v1alpha1.ProcessStatus) []v1alpha1.ProcessStatus {
	if len(list) <= processesKept {
		return list
	}
	d.degraded = append(d.degraded, finding{v1alpha1.ReasonRepairBacklog, fmt.Sprintf(
		"ComputeShardPool %s has %d processes to write down, and room for %d: when one of the others dies, only memory nodes can report it; see why RepairLeases do not complete",
		name, len(list), processesKept)})
	rank := func(process v1alpha1.ProcessStatus) int {
		if d.repairs.census.answering[process.Process] != nil {
			return 1
		}
		return 0
	}
	ranked := slices.Clone(list)
	slices.SortStableFunc(ranked, func(a, b v1alpha1.ProcessStatus) int { return rank(a) - rank(b) })
	beyond := map[string]bool{}
	for _, process := range ranked[processesKept:] {
		beyond[process.Process] = true
	}
	return slices.DeleteFunc(slices.Clone(list), func(process v1alpha1.ProcessStatus) bool { return beyond[process.Process] })
}

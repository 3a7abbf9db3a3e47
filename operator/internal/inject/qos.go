// SPDX-License-Identifier: Apache-2.0

package inject

import (
	"encoding/json"

	"k8s.io/apimachinery/pkg/api/resource"

	"farpool.dev/farpool/api/v1alpha1"
)

// class is a pod's quality of service, as Kubernetes finds it from its containers.
type class int

const (
	bestEffort class = iota
	burstable
	guaranteed
	// ofPod: resources of the pod as a whole decide, and its containers need none.
	ofPod
)

// classOf returns the class of a pod without its sidecar.
func classOf(pod object) class {
	if whole, _ := at[object](pod, "spec/resources"); asks(whole, "requests") || asks(whole, "limits") {
		return ofPod
	}
	some, all := false, true
	for _, list := range []string{"containers", "initContainers"} {
		for _, container := range objects(pod, "spec", list) {
			if text(container, "name") == v1alpha1.SidecarContainer {
				continue
			}
			resources, _ := at[object](container, "resources")
			some = some || asks(resources, "requests") || asks(resources, "limits")
			for _, kind := range []string{"cpu", "memory"} {
				limit, limited := quantity(resources, "limits", kind)
				request, requested := quantity(resources, "requests", kind)
				// A limit without a request is a request.
				all = all && limited && (!requested || request.Cmp(limit) == 0)
			}
		}
	}
	switch {
	case !some:
		return bestEffort
	case all:
		return guaranteed
	}
	return burstable
}

func asks(resources object, what string) bool {
	for _, kind := range []string{"cpu", "memory"} {
		if _, there := quantity(resources, what, kind); there {
			return true
		}
	}
	return false
}

// quantity returns how much is asked for; false: nothing, or zero, which is the same to Kubernetes.
func quantity(resources object, what, kind string) (resource.Quantity, bool) {
	list, _ := at[object](resources, what)
	var written string
	switch value := list[kind].(type) {
	case string:
		written = value
	case json.Number:
		written = value.String()
	default:
		return resource.Quantity{}, false
	}
	parsed, err := resource.ParseQuantity(written)
	return parsed, err == nil && parsed.Sign() > 0
}

// Resources of a sidecar that nobody has asked for others.
const (
	cpuOfBurstable  = "50m"
	cpuOfGuaranteed = "250m"
	memoryRequest   = "64Mi"
	memoryLimit     = "256Mi"
)

// resourcesFor returns a sidecar's resources, with which the pod keeps its class.
func resourcesFor(c class, o *options) (object, error) {
	cpu := func(otherwise string) string {
		if o.cpu != nil {
			return o.cpu.String()
		}
		return otherwise
	}
	request, limit := memoryRequest, memoryLimit
	if o.memory != nil {
		request, limit = o.memory.String(), o.memory.String()
	}
	switch c {
	case burstable:
		return object{"requests": object{"cpu": cpu(cpuOfBurstable), "memory": request}, "limits": object{"memory": limit}}, nil
	case guaranteed:
		return object{"requests": object{"cpu": cpu(cpuOfGuaranteed), "memory": limit}, "limits": object{"cpu": cpu(cpuOfGuaranteed), "memory": limit}}, nil
	}
	if o.cpu != nil || o.memory != nil {
		what := "no container of the pod has requests or limits, so that resources of the sidecar would make it Burstable: give the others requests, too"
		if c == ofPod {
			what = "spec.resources is for the whole pod, and the sidecar takes its part of that: raise it there"
		}
		return nil, refuse(QoSWouldChange, "%s; or take the annotations %s and %s away", what, v1alpha1.SidecarPrefix+keyCPU, v1alpha1.SidecarPrefix+keyMemory)
	}
	return nil, nil
}

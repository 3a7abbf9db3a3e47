// SPDX-License-Identifier: Apache-2.0

package inject

import (
	"slices"
	"strconv"
	"strings"
)

// mesh is a service mesh whose proxy takes a pod's connections. What a sidecar says to memory nodes is encrypted by itself, and the sidecar starts when the proxy
// may not run yet.
type mesh struct {
	proxy string
	// first is an init container that redirects connections.
	first string
	// exclude is the annotation that lists ports to which connections are left alone.
	exclude string
}

var meshes = []mesh{
	{"istio-proxy", "istio-init", "traffic.sidecar.istio.io/excludeOutboundPorts"},
	{"linkerd-proxy", "linkerd-init", "config.linkerd.io/skip-outbound-ports"},
}

// place returns the sidecar's index among the init containers: the first, so that the application's own can use it; after a mesh's proxy that is one of them,
// since connections and names may already be redirected to that.
func (i *injecting) place() (int, error) {
	var order []string
	for _, container := range objects(i.root, "spec", "initContainers") {
		order = append(order, text(container, "name"))
	}
	index := 0
	for _, m := range meshes {
		if at := slices.Index(order, m.proxy); at >= 0 {
			index = max(index, at+1)
			continue
		}
		redirects := slices.Contains(order, m.first) || named(objects(i.root, "spec", "containers"), m.proxy) != nil
		if redirects && !excludes(i.annotation(m.exclude)) {
			return 0, refuse(MeshCapturesTraffic, "the mesh redirects the pod's connections to container %s, which starts after the sidecar that needs them: set annotation %s of the pod to %d, beside the ports that it has, or have the mesh inject native sidecars",
				m.proxy, m.exclude, portSession)
		}
	}
	return index, nil
}

func (i *injecting) annotation(name string) string {
	annotations, _ := at[object](i.root, "metadata/annotations")
	value, _ := annotations[name].(string)
	return value
}

// excludes says whether a list of ports and ranges of ports has the port of memory nodes.
func excludes(list string) bool {
	for part := range strings.SplitSeq(list, ",") {
		from, to, ranged := strings.Cut(strings.TrimSpace(part), "-")
		low, err := strconv.Atoi(from)
		high := low
		if ranged && err == nil {
			high, err = strconv.Atoi(to)
		}
		if err == nil && low <= portSession && portSession <= high {
			return true
		}
	}
	return false
}

// excludeFromMesh tells meshes that inject later to leave connections to memory nodes alone.
func (i *injecting) excludeFromMesh() {
	for _, m := range meshes {
		switch list := i.annotation(m.exclude); {
		case excludes(list):
		case strings.TrimSpace(list) == "":
			i.set(m.exclude, strconv.Itoa(portSession), "metadata", "annotations")
		default:
			i.set(m.exclude, list+","+strconv.Itoa(portSession), "metadata", "annotations")
		}
	}
}

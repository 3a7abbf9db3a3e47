// SPDX-License-Identifier: Apache-2.0

// Package inject decides how a pod gets a sidecar: a compute shard of a pool beside its own containers. It is pure: the pod's JSON, the pools and the settings go
// in, and a JSON patch or a refusal comes out. It works on the JSON itself, so that fields which this version does not know stay as they are.
package inject

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/render"
)

const portSession = render.PortSession

// Pools are the pools of the cluster.
type Pools interface {
	// Named returns a pool, or nil.
	Named(namespace, name string) *v1alpha1.KVPool
	// Listing returns the pools that list a namespace for sidecars.
	Listing(namespace string) []*v1alpha1.KVPool
}

// Settings are the injector's.
type Settings struct {
	// PlatformUsers: the platform assigns users to containers, as OpenShift does.
	PlatformUsers bool
	// ImagePullSecrets are Secrets in each tenant's namespace, with which the image of the sidecar is pulled.
	ImagePullSecrets []string
}

// Injection is how a pod gets its sidecar.
type Injection struct {
	// Patch is a JSON patch that adds what is missing; nil: nothing is.
	Patch    []byte
	Warnings []string
	// Pool is the pool that the pod gets; nil: it asks for none.
	Pool *v1alpha1.KVPool
}

// record is what the injector writes down in an annotation.
type record struct {
	Version    int      `json:"version"`
	Pool       string   `json:"pool"`
	UID        string   `json:"uid"`
	Image      string   `json:"image"`
	Limits     string   `json:"limits,omitempty"`
	Containers []string `json:"containers"`
}

const (
	recordVersion = 1
	// longestName is that of a client of a pool.
	longestName = 253
)

// injecting is an injection under way.
type injecting struct {
	*document
	namespace string
	settings  Settings
	options   *options
	pool      *v1alpha1.KVPool
	// again: the pod has its sidecar already, and others have changed the pod since.
	again bool
	// targets are the containers that get the socket.
	targets []string
}

// Pod returns how a pod of a namespace gets its sidecar. The error is a *Refusal.
func Pod(raw []byte, namespace string, pools Pools, settings Settings) (*Injection, error) {
	parsed, err := parse(raw)
	if err != nil {
		return nil, refuse(Malformed, "the pod is no JSON of a Pod: %v: send what the API server takes", err)
	}
	metadata, _ := at[object](parsed.root, "metadata")
	if metadata == nil || len(objects(parsed.root, "spec", "containers")) == 0 {
		return nil, refuse(Malformed, "the pod has no metadata or no containers: send what the API server takes")
	}
	annotations, _ := at[object](metadata, "annotations")
	if labels, _ := at[object](metadata, "labels"); labels[v1alpha1.LabelInject] != v1alpha1.InjectTrue || annotations["kubernetes.io/config.mirror"] != nil {
		return &Injection{}, nil
	}
	i := &injecting{document: parsed, namespace: namespace, settings: settings}
	i.again = named(objects(i.root, "spec", "initContainers"), v1alpha1.SidecarContainer) != nil
	if i.options, err = readOptions(annotations); err != nil {
		return nil, err
	}
	warnings, err := i.choosePool(pools)
	if err != nil {
		return nil, err
	}
	for _, step := range []func() error{i.checkPod, i.chooseContainers, i.checkPorts, i.addRecord, i.addSidecar, i.addVolumes, i.addToContainers, i.addPullSecrets} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	i.excludeFromMesh()
	patch, err := i.patch()
	if err != nil {
		return nil, err
	}
	return &Injection{Patch: patch, Warnings: append(warnings, i.warnings()...), Pool: i.pool}, nil
}

// choosePool finds the pool that the pod asks for, and checks that its owner lets the namespace have sidecars.
func (i *injecting) choosePool(pools Pools) ([]string, error) {
	var found *v1alpha1.KVPool
	switch namespace, name, two := strings.Cut(i.options.pool, "/"); {
	case i.options.pool == "":
		listing := pools.Listing(i.namespace)
		if len(listing) == 0 {
			return nil, refuse(NoPool, "no KVPool lets namespace %s have sidecars: ask the owner of a pool to add {name: %s} to its spec.sidecars.namespaces", i.namespace, i.namespace)
		}
		if len(listing) > 1 {
			var names []string
			for _, pool := range listing {
				names = append(names, pool.Namespace+"/"+pool.Name)
			}
			slices.Sort(names)
			return nil, refuse(SeveralPools, "several KVPools let namespace %s have sidecars: set annotation %s to one of %s", i.namespace, v1alpha1.SidecarPrefix+keyPool, strings.Join(names, ", "))
		}
		found = listing[0]
	case two:
		found = pools.Named(namespace, name)
	default:
		found = pools.Named(i.namespace, i.options.pool)
	}
	// A pool that is not there and one that does not list the namespace are refused with the same words, so that nobody learns which pools there are.
	if found == nil || found.Spec.SidecarNamespace(i.namespace) == nil {
		wanted := i.options.pool
		if !strings.Contains(wanted, "/") {
			wanted = i.namespace + "/" + wanted
		}
		namespace, name, _ := strings.Cut(wanted, "/")
		return nil, refuse(NotListed, "no KVPool %s lets namespace %s have sidecars: ask its owner to add {name: %s} to its spec.sidecars.namespaces (kubectl -n %s edit kvpool %s), or correct annotation %s, which is name or namespace/name",
			wanted, i.namespace, i.namespace, namespace, name, v1alpha1.SidecarPrefix+keyPool)
	}
	i.pool = found
	return i.checkPool()
}

// checkPool checks that a pool can have another sidecar in the namespace.
func (i *injecting) checkPool() ([]string, error) {
	pool, name := i.pool, i.pool.Namespace+"/"+i.pool.Name
	status := pool.Status.Sidecars.OfNamespace(i.namespace)
	switch template := pool.Status.Template; {
	case pool.DeletionTimestamp != nil:
		return nil, refuse(PoolDeleting, "KVPool %s is being deleted: take the label %s away, or name another pool in annotation %s", name, v1alpha1.LabelInject, v1alpha1.SidecarPrefix+keyPool)
	case template != nil && !render.OwnIdentities(template.Version):
		return nil, refuse(PoolTooOld, "KVPool %s was made from pod template %d, whose memory nodes cannot tell a namespace's sidecars from others: create the pool anew", name, template.Version)
	case template == nil || status == nil:
		return nil, refuse(PoolNotReady, "the operator has not made the credentials of namespace %s for KVPool %s yet: try again in some seconds, as controllers of pods do by themselves; if this lasts, look at the operator and at kubectl -n %s describe kvpool %s",
			i.namespace, name, pool.Namespace, pool.Name)
	case status.State != v1alpha1.SidecarsReady && status.Reason == v1alpha1.ReasonIssueFailed:
		// The words are those of an error about the pool's own Secrets: they are for its owner.
		return nil, refuse(PoolNotReady, "the operator cannot make the credentials of namespace %s for KVPool %s: its owner sees why with kubectl -n %s describe kvpool %s", i.namespace, name, pool.Namespace, pool.Name)
	case status.State != v1alpha1.SidecarsReady:
		return nil, refuse(PoolNotReady, "namespace %s has no credentials for KVPool %s: %s", i.namespace, name, status.Message)
	}
	most := pool.Spec.SidecarNamespace(i.namespace).MaxSidecars
	if status.Sidecars >= most {
		return nil, refuse(BudgetSpent, "pods of namespace %s have %d sidecars of KVPool %s, and may have %d: end some, or ask the pool's owner to raise maxSidecars in its spec.sidecars.namespaces", i.namespace, status.Sidecars, name, most)
	}
	if NearlySpent(status.Sidecars+1, most) {
		return []string{fmt.Sprintf("with this pod, namespace %s has %d of the %d sidecars that it may have of KVPool %s: ask the pool's owner for more before a rollout needs them", i.namespace, status.Sidecars+1, most, name)}, nil
	}
	return nil, nil
}

// NearlySpent says whether a namespace has so many sidecars that people should hear of it.
func NearlySpent(sidecars, most int32) bool { return int64(sidecars)*5 >= int64(most)*4 }

// checkPod refuses pods in which a sidecar would not work or could not keep its key.
func (i *injecting) checkPod() error {
	spec := i.root["spec"].(object)
	for _, shared := range [][2]string{{"hostNetwork", "has the network of its Kubernetes node, where the sidecar's port would be everybody's"}, {"hostPID", "sees the processes of its Kubernetes node"}} {
		if isTrue(spec, shared[0]) {
			return refuse(HostNamespaces, "the pod %s (spec.%s): take that away, or the label %s, and connect to the pool's Service", shared[1], shared[0], v1alpha1.LabelInject)
		}
	}
	if isTrue(spec, "shareProcessNamespace") {
		return refuse(ProcessesShared, "with spec.shareProcessNamespace, containers of the pod could read the sidecar's key: take it away, or the label %s, and connect to the pool's Service", v1alpha1.LabelInject)
	}
	if text(spec, "os", "name") == "windows" || selects(spec, "kubernetes.io/os", "windows") {
		return refuse(OtherSystem, "the sidecar is a program for Linux, and the pod is for Windows: take the label %s away, and connect to the pool's Service", v1alpha1.LabelInject)
	}
	if selects(spec, "type", "virtual-kubelet") {
		return refuse(VirtualNode, "the pod is for a virtual node, which starts no sidecars: take the label %s away, and connect to the pool's Service", v1alpha1.LabelInject)
	}
	if policy := text(spec, "dnsPolicy"); policy == "Default" || policy == "None" {
		return refuse(NamesNotResolved, "with spec.dnsPolicy %s, the names of memory nodes are not resolved by the cluster's DNS: set ClusterFirst, or leave it out", policy)
	}
	pod := text(i.root, "metadata", "name")
	if long := len(v1alpha1.SidecarIdentity(i.namespace)) + 1 + len(pod); long > longestName {
		return refuse(NameTooLong, "the pod's name has %d letters, and with its namespace it is to fit into the %d of a client's name: shorten it by %d", len(pod), longestName, long-longestName)
	}
	return nil
}

func selects(spec object, label, value string) bool {
	selector, _ := at[object](spec, "nodeSelector")
	return selector[label] == value
}

// proxies are containers that service meshes add.
var proxies = []string{"istio-proxy", "linkerd-proxy"}

// chooseContainers finds the containers that get the socket.
func (i *injecting) chooseContainers() error {
	var there, applications []string
	for _, container := range objects(i.root, "spec", "containers") {
		name := text(container, "name")
		there = append(there, name)
		if name == v1alpha1.SidecarContainer {
			return refuse(NameTaken, "a container of the pod is called %s: give it another name", name)
		}
		if !slices.Contains(proxies, name) {
			applications = append(applications, name)
		}
	}
	for _, container := range objects(i.root, "spec", "initContainers") {
		if name := text(container, "name"); name != v1alpha1.SidecarContainer {
			there = append(there, name)
		}
	}
	i.targets = i.options.containers
	if i.targets == nil && i.again {
		// Another webhook may have added containers since.
		var written record
		if err := json.Unmarshal([]byte(i.options.record), &written); err == nil {
			i.targets = written.Containers
		}
	}
	if i.targets == nil && len(applications) != 1 {
		return refuse(ContainersUnnamed, "the pod has %d containers that could use the sidecar: set annotation %s to one or more of %s, separated by commas", len(applications), v1alpha1.SidecarPrefix+keyContainers, strings.Join(there, ", "))
	}
	if i.targets == nil {
		i.targets = applications
	}
	for _, name := range i.targets {
		if !slices.Contains(there, name) {
			return refuse(ContainerUnknown, "the pod has no container %s, which annotation %s names: correct it to one or more of %s", name, v1alpha1.SidecarPrefix+keyContainers, strings.Join(there, ", "))
		}
	}
	return nil
}

// checkPorts refuses a pod whose containers say that they listen where the sidecar would.
func (i *injecting) checkPorts() error {
	for _, list := range []string{"containers", "initContainers"} {
		for _, container := range objects(i.root, "spec", list) {
			for _, port := range objects(container, "ports") {
				number, _ := port["containerPort"].(json.Number)
				if protocol := text(port, "protocol"); protocol != "" && protocol != "TCP" {
					continue
				}
				switch number.String() {
				case strconv.Itoa(i.options.port):
					return refuse(PortTaken, "container %s listens on port %s, as the sidecar would: set annotation %s to another, or to none, and use the socket %s", text(container, "name"), number, v1alpha1.SidecarPrefix+keyPort, SocketPath)
				case strconv.Itoa(i.options.healthPort):
					return refuse(PortTaken, "container %s listens on port %s, as the sidecar would for its probes: set annotation %s to another", text(container, "name"), number, v1alpha1.SidecarPrefix+keyHealthPort)
				}
			}
		}
	}
	return nil
}

// addRecord writes down what is done. What was written before has to say the same.
func (i *injecting) addRecord() error {
	written, err := json.Marshal(record{recordVersion, i.pool.Namespace + "/" + i.pool.Name, string(i.pool.UID), i.pool.Status.Template.Image, LimitsInRecord(i.pool), i.targets})
	if err != nil {
		return fmt.Errorf("write a record: %w", err)
	}
	before := i.options.record
	switch {
	case before == string(written) && i.again:
		return nil
	case before != "" || i.again:
		return refuse(RecordPreset, "the pod has annotation %s or a container %s already, and not as the injector would write them: take both out of the manifest, with the volumes whose names begin with farpool-", v1alpha1.AnnotationInjected, v1alpha1.SidecarContainer)
	}
	i.set(v1alpha1.AnnotationInjected, string(written), "metadata", "annotations")
	return nil
}

func (i *injecting) addPullSecrets() error {
	for _, name := range i.settings.ImagePullSecrets {
		if named(objects(i.root, "spec", "imagePullSecrets"), name) == nil {
			i.append(object{"name": name}, "spec", "imagePullSecrets")
		}
	}
	return nil
}

// leastGrace is how many seconds a sidecar may take to say goodbye to memory nodes.
const leastGrace = 5

func (i *injecting) warnings() []string {
	var told []string
	if grace, ok := i.root["spec"].(object)["terminationGracePeriodSeconds"].(json.Number); ok {
		if seconds, err := grace.Int64(); err == nil && seconds < leastGrace {
			told = append(told, fmt.Sprintf("spec.terminationGracePeriodSeconds is %d: the sidecar may be killed before it has said goodbye to memory nodes, which then repair what it left; set at least %d more than the application takes", seconds, leastGrace))
		}
	}
	for _, toleration := range objects(i.root, "spec", "tolerations") {
		if text(toleration, "key") == "virtual-kubelet.io/provider" {
			told = append(told, "the pod tolerates virtual nodes, which start no sidecars: it does not start there")
		}
	}
	return told
}

// AsRefusal returns the refusal in an error, or nil.
func AsRefusal(err error) *Refusal {
	var refusal *Refusal
	if errors.As(err, &refusal) {
		return refusal
	}
	return nil
}

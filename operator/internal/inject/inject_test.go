// SPDX-License-Identifier: Apache-2.0

package inject

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	jsonpatch "github.com/evanphx/json-patch/v5"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"farpool.dev/farpool/api/v1alpha1"
)

var update = flag.Bool("update", false, "write the golden files instead of comparing them")

// cluster is pools by namespace/name.
type cluster map[string]*v1alpha1.KVPool

func (c cluster) Named(namespace, name string) *v1alpha1.KVPool { return c[namespace+"/"+name] }

func (c cluster) Listing(namespace string) []*v1alpha1.KVPool {
	var listing []*v1alpha1.KVPool
	for _, pool := range c {
		if pool.Spec.SidecarNamespace(namespace) != nil {
			listing = append(listing, pool)
		}
	}
	return listing
}

// poolFor returns a pool that lets namespaces have sidecars.
func poolFor(name string, namespaces ...string) *v1alpha1.KVPool {
	pool := &v1alpha1.KVPool{
		ObjectMeta: metav1.ObjectMeta{Namespace: "data", Name: name, UID: types.UID("uid-of-" + name)},
		Status:     v1alpha1.KVPoolStatus{Template: &v1alpha1.TemplateStatus{Version: 4, Image: "farpool/dataplane:1"}, Sidecars: &v1alpha1.SidecarsStatus{}},
	}
	pool.Spec.Sidecars = &v1alpha1.SidecarsSpec{}
	for _, namespace := range namespaces {
		pool.Spec.Sidecars.Namespaces = append(pool.Spec.Sidecars.Namespaces, v1alpha1.SidecarNamespace{Name: namespace, MaxSidecars: 10})
		pool.Status.Sidecars.Namespaces = append(pool.Status.Sidecars.Namespaces, v1alpha1.SidecarNamespaceStatus{Name: namespace, State: v1alpha1.SidecarsReady})
	}
	return pool
}

func oneCluster() cluster { return cluster{"data/cache": poolFor("cache", "shop")} }

const plain = `
metadata: {name: web, labels: {farpool.dev/inject: "true"}}
spec: {containers: [{name: app, image: app}]}
`

func asJSON(t testing.TB, text string) []byte {
	t.Helper()
	raw, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// patched applies an injection's patch as the API server does.
func patched(t testing.TB, raw []byte, injection *Injection) []byte {
	t.Helper()
	if injection.Patch == nil {
		return raw
	}
	patch, err := jsonpatch.DecodePatch(injection.Patch)
	if err != nil {
		t.Fatalf("%v in %s", err, injection.Patch)
	}
	options := jsonpatch.NewApplyOptions()
	options.EscapeHTML = false
	out, err := patch.ApplyWithOptions(raw, options)
	if err != nil {
		t.Fatalf("%v: %s to %s", err, injection.Patch, raw)
	}
	return out
}

// Each pod of testdata becomes what its golden file says, is a Pod of Kubernetes then, and is left alone when the webhook is called again.
func TestGoldenPods(t *testing.T) {
	inputs, err := filepath.Glob("testdata/*.in.yaml")
	if err != nil || len(inputs) < 8 {
		t.Fatalf("%v: %v", inputs, err)
	}
	for _, input := range inputs {
		t.Run(filepath.Base(input), func(t *testing.T) {
			content, err := os.ReadFile(input)
			if err != nil {
				t.Fatal(err)
			}
			raw := asJSON(t, string(content))
			injection, err := Pod(raw, "shop", oneCluster(), Settings{})
			if err != nil {
				t.Fatal(err)
			}
			out := patched(t, raw, injection)
			checkInjected(t, raw, out, oneCluster())
			got, err := yaml.JSONToYAML(out)
			if err != nil {
				t.Fatal(err)
			}
			golden := strings.TrimSuffix(input, ".in.yaml") + ".out.yaml"
			if *update {
				if err := os.WriteFile(golden, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("it differs from %s; if it is meant to, run go test ./operator/internal/inject -update and read the difference:\n%s", golden, got)
			}
			strict := &corev1.Pod{}
			if err := yaml.UnmarshalStrict(got, strict); err != nil && !strings.Contains(input, "unknown") {
				t.Error(err)
			}
		})
	}
}

// checkInjected says what holds of every pod that got its sidecar: what was there is there still, the class is kept, and another call changes nothing.
func checkInjected(t testing.TB, before, after []byte, pools Pools) {
	t.Helper()
	was, is := decoded(t, before), decoded(t, after)
	kept(t, "", was, is)
	if a, b := classOf(was), classOf(is); a != b {
		t.Errorf("the class was %v and is %v", a, b)
	}
	if a, b := classWith(was), classWith(is); a != b {
		t.Errorf("with its sidecar the class is %v, and it was %v: %s", b, a, after)
	}
	again, err := Pod(after, "shop", pools, Settings{})
	if err != nil {
		t.Errorf("the webhook is called again, and refuses: %v: %s", err, after)
	} else if again.Patch != nil {
		t.Errorf("the webhook is called again, and changes %s", again.Patch)
	}
}

func decoded(t testing.TB, raw []byte) object {
	t.Helper()
	d, err := parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	return d.root
}

// classWith is the class of a pod with all of its containers.
func classWith(pod object) class {
	renamed := object{"spec": object{}}
	for key, value := range pod["spec"].(object) {
		renamed["spec"].(object)[key] = value
	}
	var list []any
	for _, container := range objects(pod, "spec", "initContainers") {
		other := object{"name": "other"}
		if resources := container["resources"]; resources != nil {
			other["resources"] = resources
		}
		list = append(list, other)
	}
	if list != nil {
		renamed["spec"].(object)["initContainers"] = list
	}
	return classOf(renamed)
}

// kept fails the test if something of before is missing or changed in after. Ports that a mesh leaves alone may get one more.
func kept(t testing.TB, path string, before, after any) {
	t.Helper()
	switch before := before.(type) {
	case object:
		within, ok := after.(object)
		if !ok {
			t.Errorf("%s was an object, and is %v", path, after)
			return
		}
		for key, value := range before {
			if value != nil || within[key] == nil {
				kept(t, path+"/"+key, value, within[key])
			}
		}
	case []any:
		within, ok := after.([]any)
		if !ok || len(within) < len(before) {
			t.Errorf("%s was a list of %d, and is %v", path, len(before), after)
			return
		}
		// Nothing is moved: what was before something else still is.
		from := 0
		for i, element := range before {
			for from < len(within) && (keyOf(within[from]) != keyOf(element)) {
				from++
			}
			if from == len(within) {
				t.Errorf("%s/%d is gone, or comes earlier than it did", path, i)
				return
			}
			kept(t, path+"/"+keyOf(element), element, within[from])
			from++
		}
	default:
		text, _ := before.(string)
		now, _ := after.(string)
		if !reflect.DeepEqual(before, after) && !((strings.Contains(path, "excludeOutboundPorts") || strings.Contains(path, "skip-outbound-ports")) && strings.HasPrefix(now, strings.TrimSpace(text))) {
			t.Errorf("%s was %v, and is %v", path, before, after)
		}
	}
}

// edited is the plain pod with edits of the form path=yaml.
func edited(t *testing.T, edits ...string) []byte {
	t.Helper()
	pod := decoded(t, asJSON(t, plain))
	for _, edit := range edits {
		path, value, _ := strings.Cut(edit, "=")
		var parsed any
		if err := yaml.Unmarshal([]byte(value), &parsed); err != nil {
			t.Fatal(err)
		}
		keys := strings.Split(path, " ")
		within := pod
		for _, key := range keys[:len(keys)-1] {
			next, ok := within[key].(object)
			if !ok {
				next = object{}
				within[key] = next
			}
			within = next
		}
		within[keys[len(keys)-1]] = parsed
	}
	raw, err := json.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func annotated(key, value string) string {
	return "metadata annotations " + v1alpha1.SidecarPrefix + key + "=" + value
}

// someResources make a pod Burstable, so that its sidecar may have resources.
const someResources = "spec containers=[{name: app, resources: {requests: {cpu: 1}}}]"

type refusalCase struct {
	name    string
	reason  Reason // empty: it gets its sidecar
	says    string
	edits   []string
	cluster func(cluster)
}

func refusalCases() []refusalCase {
	changed := func(change func(*v1alpha1.KVPool)) func(cluster) { return func(c cluster) { change(c["data/cache"]) } }
	return []refusalCase{
		{name: "plain"},
		{name: "a pool by name", edits: []string{annotated("pool", "data/cache")}},
		{name: "no pool at all", reason: NoPool, says: "add {name: shop} to its spec.sidecars.namespaces", cluster: func(c cluster) { delete(c, "data/cache") }},
		{name: "two pools", reason: SeveralPools, says: "one of data/cache, data/other", cluster: func(c cluster) { c["data/other"] = poolFor("other", "shop") }},
		{name: "one of two pools", edits: []string{annotated("pool", "data/other")}, cluster: func(c cluster) { c["data/other"] = poolFor("other", "shop") }},
		{name: "a pool that does not list the namespace", reason: NotListed, says: "kubectl -n data edit kvpool cache", edits: []string{annotated("pool", "data/cache")}, cluster: changed(func(pool *v1alpha1.KVPool) { pool.Spec.Sidecars.Namespaces[0].Name = "other" })},
		{name: "a pool without sidecars", reason: NotListed, edits: []string{annotated("pool", "data/cache")}, cluster: changed(func(pool *v1alpha1.KVPool) { pool.Spec.Sidecars = nil })},
		{name: "a pool that is not there", reason: NotListed, says: "no KVPool data/none", edits: []string{annotated("pool", "data/none")}},
		{name: "a pool of the own namespace", reason: NotListed, says: "no KVPool shop/cache", edits: []string{annotated("pool", "cache")}},
		{name: "a pool that is deleted", reason: PoolDeleting, cluster: changed(func(pool *v1alpha1.KVPool) { pool.DeletionTimestamp = &metav1.Time{} })},
		{name: "a pool of an old template", reason: PoolTooOld, says: "create the pool anew", cluster: changed(func(pool *v1alpha1.KVPool) { pool.Status.Template.Version = 3 })},
		{name: "a pool without image", reason: PoolNotReady, says: "try again in some seconds", cluster: changed(func(pool *v1alpha1.KVPool) { pool.Status.Template = nil })},
		{name: "a pool without status", reason: PoolNotReady, says: "try again in some seconds", cluster: changed(func(pool *v1alpha1.KVPool) { pool.Status.Sidecars = nil })},
		{name: "no credentials", reason: PoolNotReady, says: "a Secret is in the way", cluster: changed(func(pool *v1alpha1.KVPool) {
			pool.Status.Sidecars.Namespaces[0] = v1alpha1.SidecarNamespaceStatus{Name: "shop", State: v1alpha1.SidecarsPending, Message: "a Secret is in the way"}
		})},
		{name: "credentials that cannot be made", reason: PoolNotReady, says: "its owner sees why with kubectl -n data describe kvpool cache", cluster: changed(func(pool *v1alpha1.KVPool) {
			pool.Status.Sidecars.Namespaces[0] = v1alpha1.SidecarNamespaceStatus{Name: "shop", State: v1alpha1.SidecarsPending, Reason: v1alpha1.ReasonIssueFailed, Message: "own words of a Secret"}
		})},
		{name: "as many as may be", reason: BudgetSpent, says: "may have 10", cluster: changed(func(pool *v1alpha1.KVPool) { pool.Status.Sidecars.Namespaces[0].Sidecars = 10 })},
		{name: "the last", cluster: changed(func(pool *v1alpha1.KVPool) { pool.Status.Sidecars.Namespaces[0].Sidecars = 9 })},
		{name: "an unknown annotation", reason: UnknownAnnotation, says: "pool, containers, port", edits: []string{annotated("pol", "cache")}},
		{name: "an annotation with a wrong pool", reason: InvalidAnnotation, edits: []string{annotated("pool", "a/b/c")}},
		{name: "a pool in capitals", reason: InvalidAnnotation, edits: []string{annotated("pool", "data/Cache")}},
		{name: "a value of any length", reason: InvalidAnnotation, edits: []string{annotated("pool", strings.Repeat("x", 100000))}},
		{name: "an empty pool", reason: InvalidAnnotation, edits: []string{annotated("pool", `""`)}},
		{name: "a port that is none", reason: InvalidAnnotation, says: "or to none", edits: []string{annotated("port", `"80"`)}},
		{name: "the first port", edits: []string{annotated("port", `"1024"`)}},
		{name: "the port before", reason: InvalidAnnotation, edits: []string{annotated("port", `"1023"`)}},
		{name: "the last port", edits: []string{annotated("port", `"65535"`)}},
		{name: "the port after", reason: InvalidAnnotation, edits: []string{annotated("port", `"65536"`)}},
		{name: "a port in other digits", reason: InvalidAnnotation, edits: []string{annotated("port", `"+6380"`)}},
		{name: "the port of memory nodes", reason: InvalidAnnotation, edits: []string{annotated("port", `"7400"`)}},
		{name: "no health port", reason: InvalidAnnotation, edits: []string{annotated("health-port", "none")}},
		{name: "one port for both", reason: InvalidAnnotation, says: "both 7402", edits: []string{annotated("port", `"7402"`)}},
		{name: "another port", edits: []string{annotated("port", `"6380"`)}},
		{name: "no port", edits: []string{annotated("port", "none")}},
		{name: "little memory", reason: InvalidAnnotation, edits: []string{annotated("memory", "1Mi"), "spec containers=[{name: app, resources: {requests: {cpu: 1}}}]"}},
		{name: "the least memory", edits: []string{annotated("memory", "64Mi"), someResources}},
		{name: "the most memory", edits: []string{annotated("memory", "64Gi"), someResources}},
		{name: "more memory than that", reason: InvalidAnnotation, edits: []string{annotated("memory", "65Gi"), someResources}},
		{name: "the least part of a processor", edits: []string{annotated("cpu", "10m"), someResources}},
		{name: "less of a processor", reason: InvalidAnnotation, edits: []string{annotated("cpu", "9m"), someResources}},
		{name: "the most processors", edits: []string{annotated("cpu", `"64"`), someResources}},
		{name: "more processors than that", reason: InvalidAnnotation, edits: []string{annotated("cpu", `"65"`), someResources}},
		{name: "no processors", reason: InvalidAnnotation, edits: []string{annotated("cpu", "many")}},
		{name: "a level that is none", reason: InvalidAnnotation, edits: []string{annotated("log-level", "loud")}},
		{name: "containers twice", reason: InvalidAnnotation, edits: []string{annotated("containers", "app,app")}},
		{name: "a record", reason: RecordPreset, edits: []string{annotated("injected", `"{}"`)}},
		{name: "the record, and no sidecar", reason: RecordPreset, edits: []string{annotated("injected", `'{"version":1,"pool":"data/cache","uid":"uid-of-cache","image":"farpool/dataplane:1","containers":["app"]}'`)}},
		{name: "two containers", reason: ContainersUnnamed, says: "one or more of app, helper", edits: []string{"spec containers=[{name: app}, {name: helper}]"}},
		{name: "two containers, both named", edits: []string{"spec containers=[{name: app}, {name: helper}]", annotated("containers", `"app, helper"`)}},
		{name: "an init container, named", edits: []string{"spec initContainers=[{name: migrate}]", annotated("containers", "migrate")}},
		{name: "a container that is not there", reason: ContainerUnknown, says: "no container ap,", edits: []string{annotated("containers", "ap")}},
		{name: "a container of the name", reason: NameTaken, edits: []string{"spec containers=[{name: farpool-sidecar}]"}},
		{name: "an init container of the name", reason: RecordPreset, edits: []string{"spec initContainers=[{name: farpool-sidecar}]"}},
		{name: "a volume of the name", reason: VolumeTaken, edits: []string{"spec volumes=[{name: farpool-state, emptyDir: {}}]"}},
		{name: "the key in another container", reason: CredentialsMounted, says: "take that mount away", edits: []string{"spec containers=[{name: app, volumeMounts: [{name: farpool-credentials, mountPath: /keys}]}]"}},
		{name: "a mount in the way", reason: MountTaken, edits: []string{"spec containers=[{name: app, volumeMounts: [{name: mine, mountPath: /run/farpool/}]}]"}},
		{name: "a mount within", reason: MountTaken, edits: []string{"spec containers=[{name: app, volumeMounts: [{name: mine, mountPath: /run/farpool/mine}]}]"}},
		{name: "a mount beside", edits: []string{"spec containers=[{name: app, volumeMounts: [{name: mine, mountPath: /run/farpool-mine}, {name: run, mountPath: /run}]}]"}},
		{name: "a variable of the name", reason: VariableTaken, edits: []string{"spec containers=[{name: app, env: [{name: FARPOOL_URL, value: redis://elsewhere}]}]"}},
		{name: "the variable with the same value", edits: []string{"spec containers=[{name: app, env: [{name: FARPOOL_URL, value: redis://127.0.0.1:6379/0}]}]"}},
		{name: "a redis in the pod", reason: PortTaken, says: "or to none", edits: []string{"spec containers=[{name: app}, {name: redis, ports: [{containerPort: 6379}]}]", annotated("containers", "app")}},
		{name: "the same port of UDP", edits: []string{"spec containers=[{name: app, ports: [{containerPort: 6379, protocol: UDP}]}]"}},
		{name: "a port of UDP and then the port", reason: PortTaken, edits: []string{"spec containers=[{name: app, ports: [{containerPort: 53, protocol: UDP}, {containerPort: 6379}]}]"}},
		{name: "the port of the probes", reason: PortTaken, says: "health-port", edits: []string{"spec containers=[{name: app, ports: [{containerPort: 7402, protocol: TCP}]}]"}},
		{name: "the network of the node", reason: HostNamespaces, edits: []string{"spec hostNetwork=true"}},
		{name: "the processes of the node", reason: HostNamespaces, edits: []string{"spec hostPID=true"}},
		{name: "one space of processes", reason: ProcessesShared, edits: []string{"spec shareProcessNamespace=true"}},
		{name: "Windows", reason: OtherSystem, edits: []string{"spec os={name: windows}"}},
		{name: "Windows by its node", reason: OtherSystem, edits: []string{"spec nodeSelector={kubernetes.io/os: windows}"}},
		{name: "Linux", edits: []string{"spec os={name: linux}", "spec nodeSelector={kubernetes.io/os: linux}"}},
		{name: "a virtual node", reason: VirtualNode, edits: []string{"spec nodeSelector={type: virtual-kubelet}"}},
		{name: "names of the node's", reason: NamesNotResolved, edits: []string{"spec dnsPolicy=Default"}},
		{name: "names of its own", reason: NamesNotResolved, edits: []string{"spec dnsPolicy=None"}},
		{name: "a mesh that starts later", reason: MeshCapturesTraffic, says: `excludeOutboundPorts of the pod to 7400`, edits: []string{"spec initContainers=[{name: istio-init}]", "spec containers=[{name: app}, {name: istio-proxy}]"}},
		{name: "a mesh that starts later and leaves the port alone", edits: []string{"metadata annotations traffic.sidecar.istio.io/excludeOutboundPorts='5432,7400'", "spec initContainers=[{name: istio-init}]", "spec containers=[{name: app}, {name: istio-proxy}]"}},
		{name: "a mesh that starts later and leaves a range alone", edits: []string{"metadata annotations traffic.sidecar.istio.io/excludeOutboundPorts='5432, 7000-8000'", "spec containers=[{name: app}, {name: istio-proxy}]"}},
		{name: "a mesh that starts later and leaves another port alone", reason: MeshCapturesTraffic, edits: []string{"metadata annotations traffic.sidecar.istio.io/excludeOutboundPorts='5432'", "spec containers=[{name: app}, {name: istio-proxy}]"}},
		{name: "a mesh that starts later and leaves a later port alone", reason: MeshCapturesTraffic, edits: []string{"metadata annotations traffic.sidecar.istio.io/excludeOutboundPorts='9000'", "spec containers=[{name: app}, {name: istio-proxy}]"}},
		{name: "a mesh whose plugin redirects", reason: MeshCapturesTraffic, edits: []string{"spec containers=[{name: app}, {name: istio-proxy}]"}},
		{name: "a mesh whose proxy comes yet", reason: MeshCapturesTraffic, edits: []string{"spec initContainers=[{name: istio-init}]"}},
		{name: "one mesh that starts before and one that starts later", reason: MeshCapturesTraffic, edits: []string{"spec initContainers=[{name: istio-proxy}, {name: linkerd-init}]", "spec containers=[{name: app}, {name: linkerd-proxy}]"}},
		{name: "linkerd that starts later", reason: MeshCapturesTraffic, edits: []string{"spec initContainers=[{name: linkerd-init}]", "spec containers=[{name: app}, {name: linkerd-proxy}]"}},
		{name: "resources of a pod without any", reason: QoSWouldChange, says: "would make it Burstable", edits: []string{annotated("cpu", `"1"`)}},
		{name: "resources of a pod that asks for nothing", reason: QoSWouldChange, edits: []string{annotated("cpu", `"1"`), "spec containers=[{name: app, resources: {requests: {cpu: 0}}}]"}},
		{name: "resources beside those of the pod", reason: QoSWouldChange, says: "spec.resources is for the whole pod", edits: []string{"spec resources={requests: {cpu: 1}}", annotated("memory", "128Mi")}},
		{name: "a long name", reason: NameTooLong, says: "shorten it by 1", edits: []string{"metadata name=" + strings.Repeat("n", 240)}},
		{name: "the longest name", edits: []string{"metadata name=" + strings.Repeat("n", 239)}},
		{name: "containers that are none", reason: Malformed, edits: []string{"spec containers=text"}},
		{name: "volumes that are none", reason: Malformed, edits: []string{"spec volumes=text"}},
		{name: "a volume that is none", reason: Malformed, edits: []string{"spec volumes=[1]"}},
		{name: "variables that are none", reason: Malformed, edits: []string{"spec containers=[{name: app, env: text}]"}},
		{name: "resources that are none", reason: Malformed, edits: []string{"spec containers=[{name: app, resources: text}]"}},
		{name: "resources of the pod that are none", reason: Malformed, edits: []string{"spec resources=text"}},
		{name: "no container", reason: Malformed, edits: []string{"spec containers=[]"}},
		{name: "an annotation that is a number", reason: Malformed, edits: []string{annotated("port", "6380")}},
	}
}

func TestRefusals(t *testing.T) {
	seen := map[Reason]bool{"": true}
	for _, c := range refusalCases() {
		pools := oneCluster()
		if c.cluster != nil {
			c.cluster(pools)
		}
		raw := edited(t, c.edits...)
		injection, err := Pod(raw, "shop", pools, Settings{})
		refusal := AsRefusal(err)
		switch {
		case c.reason == "" && err != nil:
			t.Errorf("%s: %v", c.name, err)
		case c.reason == "":
			checkInjected(t, raw, patched(t, raw, injection), pools)
		case refusal == nil || len(refusal.Message) > 1000 || refusal.Reason != c.reason || !strings.Contains(refusal.Message, c.says):
			t.Errorf("%s: %v, want %s with %q", c.name, err, c.reason, c.says)
		default:
			seen[c.reason] = true
		}
	}
	for _, reason := range Reasons {
		if !seen[reason] {
			t.Errorf("no case is refused by %s", reason)
		}
	}
}

// The documentation says of each refusal what to do, and of each annotation what it is.
func TestRefusalsAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../../docs/sidecars.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, reason := range Reasons {
		if !strings.Contains(string(page), "| `"+string(reason)+"` |") {
			t.Errorf("docs/sidecars.md does not say what to do about %s", reason)
		}
	}
	for _, key := range keys {
		if !strings.Contains(string(page), "| `"+v1alpha1.SidecarPrefix+key+"` |") {
			t.Errorf("docs/sidecars.md does not say what annotation %s is", key)
		}
	}
}

// Pods that do not ask, and static pods, are left alone.
func TestPodsThatDoNotAsk(t *testing.T) {
	for _, edits := range [][]string{
		{"metadata labels={}"}, {"metadata labels=null"}, {`metadata labels={farpool.dev/inject: "false"}`}, {"metadata annotations={kubernetes.io/config.mirror: x}"},
		{"metadata labels={}", annotated("unknown", "x"), "spec hostNetwork=true"},
	} {
		if injection, err := Pod(edited(t, edits...), "shop", oneCluster(), Settings{}); err != nil || injection.Patch != nil {
			t.Errorf("%v: %v %v", edits, injection, err)
		}
	}
}

func TestWarnings(t *testing.T) {
	for says, c := range map[string]struct {
		edits    []string
		sidecars int32
	}{
		"has 8 of the 10 sidecars":      {nil, 7},
		"terminationGracePeriodSeconds": {[]string{"spec terminationGracePeriodSeconds=4"}, 0},
		"it does not start there":       {[]string{"spec tolerations=[{key: virtual-kubelet.io/provider, operator: Exists}]"}, 0},
		"":                              {[]string{"spec terminationGracePeriodSeconds=5"}, 6},
	} {
		pools := oneCluster()
		pools["data/cache"].Status.Sidecars.Namespaces[0].Sidecars = c.sidecars
		injection, err := Pod(edited(t, c.edits...), "shop", pools, Settings{})
		if err != nil {
			t.Fatal(err)
		}
		if told := strings.Join(injection.Warnings, "\n"); !strings.Contains(told, says) || says == "" && told != "" {
			t.Errorf("%q, want %q", told, says)
		}
	}
}

// Another webhook adds a container, fields and defaults after the sidecar was added. The next call accepts them, and gives nothing to the new container.
func TestOthersChangeThePodMeanwhile(t *testing.T) {
	raw := edited(t)
	injection, err := Pod(raw, "shop", oneCluster(), Settings{})
	if err != nil {
		t.Fatal(err)
	}
	pod := decoded(t, patched(t, raw, injection))
	spec := pod["spec"].(object)
	spec["containers"] = append(spec["containers"].([]any), object{"name": "agent"})
	spec["initContainers"] = append([]any{object{"name": "first"}}, spec["initContainers"].([]any)...)
	sidecar := named(objects(pod, "spec", "initContainers"), v1alpha1.SidecarContainer)
	sidecar["terminationMessagePath"] = "/dev/termination-log"
	sidecar["resources"] = object{"limits": object{"cpu": "2", "memory": "1Gi"}}
	sidecar["env"] = append(sidecar["env"].([]any), object{"name": "TRACE", "value": "1"})
	named(objects(pod, "spec", "volumes"), volumeCredentials)["secret"].(object)["optional"] = false
	changed, err := json.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := Pod(changed, "shop", oneCluster(), Settings{}); err != nil || again.Patch != nil {
		t.Errorf("%v %v", again, err)
	}
	for name, change := range map[string]func(object){
		"another image":      func(c object) { c["image"] = "mine" },
		"another argument":   func(c object) { c["args"] = append(c["args"].([]any), "--insecure-plaintext") },
		"more rights":        func(c object) { c["securityContext"].(object)["capabilities"].(object)["add"] = []any{"ALL"} },
		"all rights":         func(c object) { c["securityContext"].(object)["privileged"] = true },
		"no sidecar at all":  func(c object) { delete(c, "restartPolicy") },
		"another name":       func(c object) { c["env"].([]any)[0].(object)["valueFrom"] = object{} },
		"fewer probes":       func(c object) { c["startupProbe"].(object)["periodSeconds"] = 77 },
		"a token in its own": func(c object) { c["volumeMounts"] = c["volumeMounts"].([]any)[:3] },
	} {
		pod := decoded(t, changed)
		change(named(objects(pod, "spec", "initContainers"), v1alpha1.SidecarContainer))
		raw, err := json.Marshal(pod)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Pod(raw, "shop", oneCluster(), Settings{}); AsRefusal(err) == nil || AsRefusal(err).Reason != NameTaken {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, change := range map[string]func(){
		volumeCredentials: func() {
			named(objects(pod, "spec", "volumes"), volumeCredentials)["secret"].(object)["secretName"] = "mine"
		},
		volumeNoToken: func() {
			volume := named(objects(pod, "spec", "volumes"), volumeNoToken)
			delete(volume, "emptyDir")
			volume["projected"] = object{"sources": []any{}}
		},
	} {
		pod = decoded(t, changed)
		change()
		raw, err := json.Marshal(pod)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Pod(raw, "shop", oneCluster(), Settings{}); AsRefusal(err) == nil || AsRefusal(err).Reason != VolumeTaken {
			t.Errorf("another volume %s: %v", name, err)
		}
	}
	// A pool that was made anew meanwhile has no image yet.
	fresh := oneCluster()
	fresh["data/cache"].Status = v1alpha1.KVPoolStatus{}
	if _, err := Pod(changed, "shop", fresh, Settings{}); AsRefusal(err) == nil || AsRefusal(err).Reason != PoolNotReady {
		t.Errorf("a pool without image: %v", err)
	}
	// A copy of a pod with its sidecar is another pod with one: the webhook cannot tell it from a pod that it has just let in, which is not counted yet.
	full := oneCluster()
	full["data/cache"].Status.Sidecars.Namespaces[0].Sidecars = 10
	if _, err := Pod(changed, "shop", full, Settings{}); AsRefusal(err) == nil || AsRefusal(err).Reason != BudgetSpent {
		t.Errorf("a full namespace: %v", err)
	}
	for name, change := range map[string]func(object){
		"a record of another pool": func(annotations object) {
			annotations[v1alpha1.AnnotationInjected] = strings.Replace(annotations[v1alpha1.AnnotationInjected].(string), "data/cache", "data/other", 1)
		},
		"other containers": func(annotations object) { annotations[v1alpha1.SidecarPrefix+"containers"] = "agent" },
		"no record":        func(annotations object) { delete(annotations, v1alpha1.AnnotationInjected) },
	} {
		pod := decoded(t, changed)
		spec := pod["spec"].(object)
		if name == "no record" {
			spec["containers"] = spec["containers"].([]any)[:1]
		}
		change(pod["metadata"].(object)["annotations"].(object))
		raw, err := json.Marshal(pod)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Pod(raw, "shop", oneCluster(), Settings{}); AsRefusal(err) == nil || AsRefusal(err).Reason != RecordPreset {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// initNames are the names of a pod's init containers, in order.
func initNames(pod *corev1.Pod) string {
	var names []string
	for _, container := range pod.Spec.InitContainers {
		names = append(names, container.Name)
	}
	return strings.Join(names, " ")
}

// The sidecar comes first, or after the proxy of a mesh; a container that is named gets the socket wherever it stands, and no other does.
func TestWhereThingsGo(t *testing.T) {
	for init, want := range map[string]string{
		"[{name: first}]":                        "farpool-sidecar first",
		"[{name: istio-proxy}, {name: first}]":   "istio-proxy farpool-sidecar first",
		"[{name: first}, {name: linkerd-proxy}]": "first linkerd-proxy farpool-sidecar",
	} {
		raw := edited(t, "spec initContainers="+init, "spec containers=[{name: helper}, {name: app}]", annotated("containers", "app"))
		injection, err := Pod(raw, "shop", oneCluster(), Settings{})
		if err != nil {
			t.Fatal(err)
		}
		pod := &corev1.Pod{}
		if err := json.Unmarshal(patched(t, raw, injection), pod); err != nil {
			t.Fatal(err)
		}
		if got := initNames(pod); got != want {
			t.Errorf("init containers are %s, want %s", got, want)
		}
		if helper, app := pod.Spec.Containers[0], pod.Spec.Containers[1]; len(helper.Env) != 0 || len(app.Env) != 2 || app.Env[0].Name != VariableSocket {
			t.Errorf("helper has %v and app %v", helper.Env, app.Env)
		}
	}
}

func TestLimits(t *testing.T) {
	pool := poolFor("cache", "shop")
	if lines := Limits(pool); lines != nil {
		t.Errorf("a pool without limits has %v", lines)
	}
	pool.Spec.Limits = &v1alpha1.LimitsSpec{MaxPipeline: new(int32)}
	*pool.Spec.Limits.MaxPipeline = 7
	if got := LimitsInRecord(pool); got != "max-pipeline = 7" {
		t.Errorf("the record says %q", got)
	}
}

// Settings of the platform: no user is chosen, and pull secrets are added once.
func TestPlatforms(t *testing.T) {
	raw := edited(t, "spec imagePullSecrets=[{name: mine}, {name: second}]")
	settings := Settings{PlatformUsers: true, ImagePullSecrets: []string{"first", "second"}}
	injection, err := Pod(raw, "shop", oneCluster(), settings)
	if err != nil {
		t.Fatal(err)
	}
	out := patched(t, raw, injection)
	pod := &corev1.Pod{}
	if err := json.Unmarshal(out, pod); err != nil {
		t.Fatal(err)
	}
	if user := pod.Spec.InitContainers[0].SecurityContext.RunAsUser; user != nil {
		t.Errorf("user %d is chosen", *user)
	}
	var names []string
	for _, secret := range pod.Spec.ImagePullSecrets {
		names = append(names, secret.Name)
	}
	if want := []string{"mine", "second", "first"}; !slices.Equal(names, want) {
		t.Errorf("pull secrets are %v, want %v", names, want)
	}
	if again, err := Pod(out, "shop", oneCluster(), settings); err != nil || again.Patch != nil {
		t.Errorf("%v %v", again, err)
	}
}

// Fields that no version of Kubernetes has, numbers of many digits, and text stay byte for byte as they were.
func TestUnknownFieldsStayByteForByte(t *testing.T) {
	raw := []byte(`{"metadata":{"name":"web","labels":{"farpool.dev/inject":"true"}},"spec":{"new":{"of":[1e400,12345678901234567890123,0.10000000000000000001,"<&\u2028>",null]},"containers":[{"name":"app","image":"app","future":{"a":1}}]}}`)
	injection, err := Pod(raw, "shop", oneCluster(), Settings{})
	if err != nil {
		t.Fatal(err)
	}
	out := string(patched(t, raw, injection))
	for _, part := range []string{`{"of":[1e400,12345678901234567890123,0.10000000000000000001,"<&\u2028>",null]}`, `"future":{"a":1}`} {
		if !strings.Contains(out, part) {
			t.Errorf("%s is not in %s", part, out)
		}
	}
	if strings.Contains(string(injection.Patch), "future") {
		t.Errorf("the patch repeats what is there: %s", injection.Patch)
	}
}

// The least that a sidecar holds of replies is what the data plane takes.
func TestRepliesFitIntoMemory(t *testing.T) {
	for memory, want := range map[string]string{"64Mi": "16", "256Mi": "64", "2Gi": "256"} {
		raw := edited(t, annotated("memory", memory), "spec containers=[{name: app, resources: {requests: {cpu: 1}}}]")
		injection, err := Pod(raw, "shop", oneCluster(), Settings{})
		if err != nil || !strings.Contains(string(injection.Patch), `"--max-held-bytes=`+want+`Mi"`) {
			t.Errorf("%s: %v", memory, err)
		}
	}
}

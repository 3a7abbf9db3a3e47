// SPDX-License-Identifier: Apache-2.0

// Package charts tests the Helm chart by rendering it with Helm itself.
package charts

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"farpool.dev/farpool/hack/helmtool"
)

var update = flag.Bool("update", false, "write the golden renders and the copies of generated files instead of comparing them")

const (
	chart = "farpool"
	// Helm built from its module does not know what cluster it renders for.
	kubeVersion = "1.34.0"
	crdBases    = "../config/crd/bases"
	rbacRole    = "../config/rbac/role.yaml"
)

// helmBinary returns the path of a Helm, which it builds if there is none.
func helmBinary(t testing.TB, name, module string) string {
	t.Helper()
	path, err := helmtool.Binary(t.Context(), name, module)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func run(t testing.TB, binary string, stdin []byte, args ...string) (string, error) {
	t.Helper()
	return helmtool.Run(t.Context(), binary, stdin, args...)
}

// The values of each golden render.
var cases = map[string]string{
	"default": `{}`,
	"bare": `
crds: {enabled: false}
serviceAccount: {create: false, name: mine}
rbac: {create: false, aggregate: false}
certManager: {enabled: false}
injector: {enabled: false}
admissionPolicy: {enabled: false}
podDisruptionBudget: {enabled: false}
networkPolicy: {enabled: false}
metrics: {service: false}
`,
	"rich": `
fullnameOverride: pool-operator
crds: {keep: false}
image: {repository: registry.example.com/farpool/operator, digest: "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", pullPolicy: Always}
imagePullSecrets: [{name: pull}]
dataPlane: {image: {repository: registry.example.com/farpool/dataplane, tag: 0.2.0}, memoryPriorityClass: {create: false, name: important}}
replicas: 2
logLevel: debug
watchNamespaces: [pools, shop]
clusterDomain: corp.example
securityContext: Platform
sharedMemoryPaths: [/run/farpool]
drainTaints: [karpenter.sh/disrupted]
nodeSelector: {kubernetes.io/os: linux}
tolerations: [{key: control, operator: Exists, effect: NoSchedule}]
affinity: {podAntiAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, podAffinityTerm: {topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {app.kubernetes.io/component: operator}}}}]}}
topologySpreadConstraints: [{maxSkew: 1, topologyKey: topology.kubernetes.io/zone, whenUnsatisfiable: ScheduleAnyway, labelSelector: {matchLabels: {app.kubernetes.io/component: operator}}}]
priorityClassName: system-cluster-critical
podAnnotations: {team: storage}
podLabels: {team: storage, app.kubernetes.io/component: mine}
serviceAccount: {annotations: {team: storage}}
injector: {replicas: 3, sidecarPullSecrets: [pull, other]}
admissionPolicy: {confirmStoreDeletion: true}
networkPolicy: {apiServerPorts: [16443], metricsFrom: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: monitoring}}}], webhookFrom: [{ipBlock: {cidr: 10.20.0.0/28}}]}
metrics:
  serviceMonitor: {enabled: true, labels: {release: prometheus}}
  podMonitor: {enabled: true, labels: {release: prometheus}}
  prometheusRule: {enabled: true, labels: {release: prometheus}}
  dashboard: {enabled: true}
`,
}

func render(t testing.TB, binary, values string, args ...string) (string, error) {
	t.Helper()
	return helmtool.Template(t.Context(), binary, chart, kubeVersion, []byte(values), args...)
}

func helm(t testing.TB) string { return helmBinary(t, "helm", helmtool.Module) }

func TestGoldenRenders(t *testing.T) {
	for name, values := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := render(t, helm(t), values)
			if err != nil {
				t.Fatal(err)
			}
			// The definitions are compared with their source elsewhere; in a golden they would only repeat it.
			var kept []string
			for _, doc := range documents(got) {
				if !strings.Contains(doc, "\nkind: CustomResourceDefinition\n") {
					kept = append(kept, doc)
				}
			}
			got = strings.Join(kept, "\n---\n") + "\n"
			golden := filepath.Join("testdata", name+".yaml")
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Fatalf("the render differs from %s; if it is meant to, run go test ./charts -update and read the difference:\n%s",
					golden, firstDifference(got, string(want)))
			}
		})
	}
}

func firstDifference(got, want string) string {
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range max(len(g), len(w)) {
		at := func(lines []string) string {
			if i < len(lines) {
				return lines[i]
			}
			return "(end)"
		}
		if at(g) != at(w) {
			return fmt.Sprintf("line %d: got %q, want %q", i+1, at(g), at(w))
		}
	}
	return "no difference"
}

func TestLint(t *testing.T) {
	for name, values := range cases {
		t.Run(name, func(t *testing.T) {
			if _, err := run(t, helm(t), []byte(values), "lint", "--strict", chart, "--kube-version", kubeVersion, "--values", "-"); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// documents splits a render and drops empty parts.
func documents(text string) []string {
	var docs []string
	for _, doc := range regexp.MustCompile(`(?m)^---\s*$`).Split(text, -1) {
		if doc = strings.TrimSpace(doc); doc != "" {
			docs = append(docs, "\n"+doc+"\n")
		}
	}
	return docs
}

type object = map[string]any

func objects(t testing.TB, text string) []object {
	t.Helper()
	var out []object
	for _, doc := range documents(text) {
		var o object
		if err := yaml.UnmarshalStrict([]byte(doc), &o); err != nil {
			t.Fatalf("%v in:%s", err, doc)
		}
		if o != nil {
			out = append(out, o)
		}
	}
	return out
}

func find(t testing.TB, all []object, kind, name string) object {
	t.Helper()
	for _, o := range all {
		if o["kind"] == kind && o["metadata"].(object)["name"] == name {
			return o
		}
	}
	t.Fatalf("no %s %s is rendered", kind, name)
	return nil
}

func at(o any, path ...any) any {
	for _, p := range path {
		switch p := p.(type) {
		case string:
			m, _ := o.(object)
			o = m[p]
		case int:
			l, _ := o.([]any)
			if p >= len(l) {
				return nil
			}
			o = l[p]
		}
	}
	return o
}

// Server-side apply, which Helm 4 uses, refuses lists in which two elements share their key.
func TestNoListHasOneKeyTwice(t *testing.T) {
	for name, values := range cases {
		text, err := render(t, helm(t), values)
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]bool{}
		for _, o := range objects(t, text) {
			id := fmt.Sprintf("%s %v/%s", o["kind"], at(o, "metadata", "namespace"), at(o, "metadata", "name"))
			if seen[id] {
				t.Errorf("%s: %s is rendered twice", name, id)
			}
			seen[id] = true
			uniqueKeys(t, name+": "+id, o)
		}
	}
}

func uniqueKeys(t *testing.T, path string, v any) {
	switch v := v.(type) {
	case object:
		for k, e := range v {
			uniqueKeys(t, path+"."+k, e)
		}
	case []any:
		for _, key := range []string{"name", "containerPort", "mountPath"} {
			seen := map[any]bool{}
			for _, e := range v {
				if m, ok := e.(object); ok && m[key] != nil {
					id := fmt.Sprint(m[key], m["protocol"])
					if seen[id] {
						t.Errorf("%s has %s %s twice", path, key, id)
					}
					seen[id] = true
				}
			}
		}
		for i, e := range v {
			uniqueKeys(t, fmt.Sprintf("%s[%d]", path, i), e)
		}
	}
}

func TestTheOperatorRunsRestricted(t *testing.T) {
	for name, values := range cases {
		text, err := render(t, helm(t), values)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range objects(t, text) {
			if o["kind"] != "Deployment" {
				continue
			}
			pod := at(o, "spec", "template", "spec")
			container := at(pod, "containers", 0)
			for what, c := range map[string]struct{ got, want any }{
				"runAsNonRoot":             {at(pod, "securityContext", "runAsNonRoot"), true},
				"seccompProfile":           {at(pod, "securityContext", "seccompProfile", "type"), "RuntimeDefault"},
				"allowPrivilegeEscalation": {at(container, "securityContext", "allowPrivilegeEscalation"), false},
				"readOnlyRootFilesystem":   {at(container, "securityContext", "readOnlyRootFilesystem"), true},
				"capabilities":             {at(container, "securityContext", "capabilities"), object{"drop": []any{"ALL"}}},
				"hostNetwork":              {at(pod, "hostNetwork"), nil},
				"volumes":                  {at(pod, "volumes"), nil},
				"liveness":                 {at(container, "livenessProbe", "httpGet", "port"), "probes"},
				"readiness":                {at(container, "readinessProbe", "httpGet", "port"), "probes"},
			} {
				if !reflect.DeepEqual(c.got, c.want) {
					t.Errorf("%s: %s is %v, want %v", name, what, c.got, c.want)
				}
			}
		}
	}
}

// An upgrade of the operator may change the operator's and the injector's Deployments and labels, and nothing that a data-plane pod is made from.
func TestAnUpgradeChangesTheDeploymentsAlone(t *testing.T) {
	before, err := render(t, helm(t), `{}`)
	if err != nil {
		t.Fatal(err)
	}
	after, err := render(t, helm(t), `{image: {tag: 9.9.9}, dataPlane: {image: {tag: 9.9.9}}, logLevel: debug}`)
	if err != nil {
		t.Fatal(err)
	}
	a, b := objects(t, before), objects(t, after)
	if len(a) != len(b) {
		t.Fatalf("%d objects became %d", len(a), len(b))
	}
	changed := 0
	for i := range a {
		if reflect.DeepEqual(a[i], b[i]) {
			continue
		}
		changed++
		if a[i]["kind"] != "Deployment" {
			t.Errorf("%s %s changed", a[i]["kind"], at(a[i], "metadata", "name"))
		}
		if s := at(a[i], "spec", "selector"); !reflect.DeepEqual(s, at(b[i], "spec", "selector")) {
			t.Error("the Deployment's selector, which is immutable, changed")
		}
	}
	if changed != 2 {
		t.Errorf("%d objects changed, want 2", changed)
	}
}

// copies are files of the chart that are generated elsewhere: chart's path to its source's content.
func copies(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	bases, err := filepath.Glob(filepath.Join(crdBases, "*.yaml"))
	if err != nil || len(bases) == 0 {
		t.Fatalf("no custom resource definitions in %s: %v", crdBases, err)
	}
	for _, base := range bases {
		data, err := os.ReadFile(base)
		if err != nil {
			t.Fatal(err)
		}
		out[filepath.Join(chart, "files", "crds", filepath.Base(base))] = string(data)
	}
	role, err := os.ReadFile(rbacRole)
	if err != nil {
		t.Fatal(err)
	}
	_, rules, found := strings.Cut(string(role), "\nrules:\n")
	if !found || strings.Contains(rules, "\n---") {
		t.Fatalf("%s is not one role with rules at its end", rbacRole)
	}
	out[filepath.Join(chart, "files", "rules.yaml")] = "rules:\n" + rules
	return out
}

func TestTheChartCarriesWhatIsGenerated(t *testing.T) {
	want := copies(t)
	for path, content := range want {
		if *update {
			if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		got, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != content {
			t.Errorf("%s differs from its source; run go test ./charts -update", path)
		}
	}
	have, err := filepath.Glob(filepath.Join(chart, "files", "crds", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range have {
		if _, ok := want[path]; !ok {
			t.Errorf("%s has no source in %s: remove it", path, crdBases)
		}
	}
}

func TestDefinitions(t *testing.T) {
	var meta object
	data, err := os.ReadFile(filepath.Join(chart, "Chart.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(data, &meta); err != nil {
		t.Fatal(err)
	}
	listed := at(meta, "annotations", "artifacthub.io/crds").(string)

	for values, keep := range map[string]any{`{}`: "keep", `{crds: {keep: false}}`: nil} {
		text, err := render(t, helm(t), values)
		if err != nil {
			t.Fatal(err)
		}
		rendered := map[string]object{}
		for _, o := range objects(t, text) {
			if o["kind"] == "CustomResourceDefinition" {
				rendered[at(o, "metadata", "name").(string)] = o
			}
		}
		for path, content := range copies(t) {
			if filepath.Base(filepath.Dir(path)) != "crds" {
				continue
			}
			var source object
			if err := yaml.Unmarshal([]byte(content), &source); err != nil {
				t.Fatal(err)
			}
			name := at(source, "metadata", "name").(string)
			o, ok := rendered[name]
			if !ok {
				t.Errorf("%s is not rendered", name)
				continue
			}
			delete(rendered, name)
			annotations := at(o, "metadata", "annotations").(object)
			if annotations["helm.sh/resource-policy"] != keep {
				t.Errorf("%s with values %s has resource policy %v, want %v", name, values, annotations["helm.sh/resource-policy"], keep)
			}
			delete(annotations, "helm.sh/resource-policy")
			if !reflect.DeepEqual(o, source) {
				t.Errorf("%s is changed by the chart in more than its resource policy", name)
			}
			if !strings.Contains(listed, "name: "+name) {
				t.Errorf("Chart.yaml does not list %s under artifacthub.io/crds", name)
			}
		}
		for name := range rendered {
			t.Errorf("%s is rendered and has no source", name)
		}
	}
	text, err := render(t, helm(t), `{crds: {enabled: false}}`)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(text, "CustomResourceDefinition") {
		t.Error("crds.enabled: false renders definitions")
	}
}

func TestTheOperatorMayDoWhatItsMarkersSay(t *testing.T) {
	text, err := render(t, helm(t), `{}`)
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(rbacRole)
	if err != nil {
		t.Fatal(err)
	}
	var role object
	if err := yaml.Unmarshal(data, &role); err != nil {
		t.Fatal(err)
	}
	rules := at(find(t, objects(t, text), "ClusterRole", "farpool-operator"), "rules")
	if !reflect.DeepEqual(rules, role["rules"]) {
		t.Errorf("the chart's rules differ from %s", rbacRole)
	}
	for _, rule := range rules.([]any) {
		for _, field := range []string{"verbs", "resources", "apiGroups"} {
			for _, v := range at(rule, field).([]any) {
				if v == "*" {
					t.Errorf("a rule with %s \"*\": %v", field, rule)
				}
			}
		}
	}
}

// What people may do who have the cluster's own view and edit roles: ask for repairs and accept losses, and not write what is the operator's.
func TestRolesForPeople(t *testing.T) {
	text, err := render(t, helm(t), `{}`)
	if err != nil {
		t.Fatal(err)
	}
	all := objects(t, text)
	granted := func(role string) map[string]string {
		out := map[string]string{}
		for _, rule := range at(find(t, all, "ClusterRole", role), "rules").([]any) {
			for _, resource := range at(rule, "resources").([]any) {
				out[resource.(string)] += fmt.Sprint(at(rule, "verbs"))
			}
		}
		return out
	}
	for role, want := range map[string]map[string]string{
		"farpool-viewer": {"computeshardpools": "[get list watch]", "kvpools": "[get list watch]", "memorynodepools": "[get list watch]", "memorynodes": "[get list watch]", "repairleases": "[get list watch]", "resizeoperations": "[get list watch]", "shardmaps": "[get list watch]"},
		"farpool-editor": {"kvpools": "[create delete deletecollection patch update]", "memorynodes": "[patch]", "repairleases": "[create delete]", "resizeoperations": "[delete patch update]",
			"computeshardpools/scale": "[get patch update]", "memorynodepools/scale": "[get patch update]"},
	} {
		if got := granted(role); !reflect.DeepEqual(got, want) {
			t.Errorf("%s may %v, want %v", role, got, want)
		}
	}
}

// Kubernetes nodes are in no namespace: an operator of some namespaces has a role of its own for them, and for nothing else. In its own namespace it has
// the leader's lease and its Secrets, and in each of those namespaces what its markers say.
func TestAnOperatorOfSomeNamespacesHasRightsInThoseAlone(t *testing.T) {
	text, err := render(t, helm(t), `{watchNamespaces: [pools, shop]}`)
	if err != nil {
		t.Fatal(err)
	}
	var bound []string
	for _, o := range objects(t, text) {
		if o["kind"] == "RoleBinding" {
			bound = append(bound, fmt.Sprintf("%s/%s: %s", at(o, "metadata", "namespace"), at(o, "metadata", "name"), at(o, "roleRef", "name")))
		}
	}
	slices.Sort(bound)
	want := []string{"farpool-system/farpool-injector: farpool-injector",
		"farpool-system/farpool-operator-leader: farpool-operator-leader", "farpool-system/farpool-operator-secrets: farpool-operator-secrets",
		"pools/farpool-injector: farpool-injector", "pools/farpool-operator-certificates: farpool-operator-certificates", "pools/farpool-operator: farpool-operator",
		"shop/farpool-injector: farpool-injector", "shop/farpool-operator-certificates: farpool-operator-certificates", "shop/farpool-operator: farpool-operator"}
	if !slices.Equal(bound, want) {
		t.Errorf("bound in namespaces are %v, want %v", bound, want)
	}
	if !strings.Contains(text, "--watch-namespace=pools,shop") {
		t.Error("the operator is not told which namespaces it serves")
	}
	for _, o := range objects(t, text) {
		if o["kind"] != "ClusterRoleBinding" || at(o, "metadata", "name") == "farpool-injector-webhook" {
			continue
		}
		role := find(t, objects(t, text), "ClusterRole", at(o, "roleRef", "name").(string))
		want := []any{object{"apiGroups": []any{""}, "resources": []any{"nodes"}, "verbs": []any{"get", "list", "watch"}}}
		if name := at(o, "roleRef", "name"); name != "farpool-operator-nodes" || !reflect.DeepEqual(role["rules"], want) {
			t.Errorf("bound in the whole cluster: %s with %v", name, role["rules"])
		}
	}
	find(t, objects(t, text), "ClusterRoleBinding", "farpool-operator-nodes")
}

// The operator makes Certificates of cert-manager if the chart lets it, and has no right that a watch would need. The manifests without Helm say the same.
func TestTheOperatorMakesCertificatesIfTheChartLetsIt(t *testing.T) {
	const name = "farpool-operator-certificates"
	for values, want := range map[string]bool{`{}`: true, `{certManager: {enabled: false}}`: false, `{rbac: {create: false}}`: false} {
		text, err := render(t, helm(t), values)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(text, name) != want {
			t.Errorf("%s: the operator has a role for Certificates: %v, want %v", values, !want, want)
		}
		if !want {
			continue
		}
		manifest, err := os.ReadFile("../config/rbac/certificates.yaml")
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range objects(t, string(manifest)) {
			rendered := find(t, objects(t, text), o["kind"].(string), name)
			for _, field := range []string{"rules", "roleRef", "subjects"} {
				if !reflect.DeepEqual(rendered[field], o[field]) {
					t.Errorf("%s of %s: the chart has %v, config/rbac %v", field, o["kind"], rendered[field], o[field])
				}
			}
		}
	}
}

// An injector that is down blocks the pods that asked for it, and never its own, the operator's or the system's. It may read pools and its own authority, and write
// its own webhook configuration.
func TestTheInjectorIsOutOfTheWay(t *testing.T) {
	for name, values := range cases {
		if name == "bare" {
			continue
		}
		text, err := render(t, helm(t), values)
		if err != nil {
			t.Fatal(err)
		}
		all := objects(t, text)
		injector := "farpool-injector"
		if name == "rich" {
			injector = "pool-operator-injector"
		}
		webhooks := at(find(t, all, "MutatingWebhookConfiguration", injector), "webhooks").([]any)
		if len(webhooks) != 1 {
			t.Fatalf("%s: %d webhooks", name, len(webhooks))
		}
		webhook := webhooks[0]
		for what, c := range map[string]struct{ got, want any }{
			"objects":      {at(webhook, "objectSelector"), object{"matchLabels": object{"farpool.dev/inject": "true"}}},
			"operations":   {at(webhook, "rules", 0, "operations"), []any{"CREATE"}},
			"resources":    {at(webhook, "rules", 0, "resources"), []any{"pods"}},
			"side effects": {at(webhook, "sideEffects"), "None"},
			"reinvocation": {at(webhook, "reinvocationPolicy"), "IfNeeded"},
			"failure":      {at(webhook, "failurePolicy"), "Fail"},
			"authority":    {at(webhook, "clientConfig", "caBundle"), nil},
			"namespaces":   {at(webhook, "namespaceSelector", "matchExpressions", 0), object{"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": []any{"kube-system", "kube-node-lease", "kube-public", "farpool-system"}}},
		} {
			if !reflect.DeepEqual(c.got, c.want) {
				t.Errorf("%s: %s are %v, want %v", name, what, c.got, c.want)
			}
		}
		for _, policy := range []string{"-injected", "-records"} {
			constraints := at(find(t, all, "ValidatingAdmissionPolicy", injector+policy), "spec", "matchConstraints")
			if !reflect.DeepEqual(at(constraints, "namespaceSelector"), at(webhook, "namespaceSelector")) {
				t.Errorf("%s: policy %s is for other namespaces than the webhook", name, policy)
			}
		}
		if failure := at(find(t, all, "ValidatingAdmissionPolicy", injector+"-records"), "spec", "failurePolicy"); failure != "Ignore" {
			t.Errorf("%s: records may keep a pod from being finished: %v", name, failure)
		}
		want := []string{"[] [secrets] [create] []", "[] [secrets] [get update] [" + injector + "-ca]", "[admissionregistration.k8s.io] [mutatingwebhookconfigurations] [get patch] [" + injector + "]", "[farpool.dev] [kvpools] [get list watch] []"}
		var may []string
		for _, o := range all {
			if kind := o["kind"]; (kind == "Role" || kind == "ClusterRole") && strings.HasPrefix(at(o, "metadata", "name").(string), injector) {
				for _, rule := range at(o, "rules").([]any) {
					names := at(rule, "resourceNames")
					if names == nil {
						names = []any{}
					}
					may = append(may, fmt.Sprint(at(rule, "apiGroups"), " ", at(rule, "resources"), " ", at(rule, "verbs"), " ", names))
				}
			}
		}
		slices.Sort(may)
		if !slices.Equal(may, want) {
			t.Errorf("%s: the injector may %q, want %q", name, may, want)
		}
	}
}

// A platform that mounts the webhook's certificate also tells the API server its authority: the injector has no right to either.
func TestAnInjectorWithAMountedCertificateMakesNone(t *testing.T) {
	text, err := render(t, helm(t), `{injector: {certificateDirectory: /run/certificates}}`)
	if err != nil {
		t.Fatal(err)
	}
	var roles []string
	for _, o := range objects(t, text) {
		name := at(o, "metadata", "name").(string)
		switch kind := o["kind"].(string); {
		case strings.Contains(kind, "Role") && strings.HasPrefix(name, "farpool-injector"):
			roles = append(roles, kind+" "+name)
		case kind == "Deployment" && name == "farpool-injector":
			args := fmt.Sprint(at(o, "spec", "template", "spec", "containers").([]any)[0].(object)["args"])
			if !strings.Contains(args, "--certificate-directory=/run/certificates") || strings.Contains(args, "--certificate-secret") || strings.Contains(args, "--webhook-configuration") {
				t.Errorf("its flags are %s", args)
			}
		}
	}
	if slices.Sort(roles); !slices.Equal(roles, []string{"ClusterRole farpool-injector", "ClusterRoleBinding farpool-injector"}) {
		t.Errorf("its roles are %v", roles)
	}
}

// TestSchema changes each value in turn and wants the schema to refuse it.
func TestSchema(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(chart, "values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var values object
	if err := yaml.Unmarshal(data, &values); err != nil {
		t.Fatal(err)
	}
	// These take any content by design.
	open := map[string]bool{"affinity": true}
	mutants := map[string]object{}
	var walk func(path []string, v any)
	set := func(path []string, v any) object {
		out := object{}
		in := out
		for _, p := range path[:len(path)-1] {
			next := object{}
			in[p] = next
			in = next
		}
		in[path[len(path)-1]] = v
		return out
	}
	walk = func(path []string, v any) {
		name := strings.Join(path, ".")
		if m, ok := v.(object); ok {
			if !open[name] {
				mutants[name+" with an unknown key of a wrong type"] = set(append(path[:len(path):len(path)], "no-such-key"), []any{1})
			}
			if len(path) > 0 {
				mutants[name+" as text"] = set(path, "text")
			}
			for k, e := range m {
				walk(append(path[:len(path):len(path)], k), e)
			}
			return
		}
		switch v.(type) {
		case string:
			mutants[name+" as a list"] = set(path, []any{"a"})
			mutants[name+" as a number"] = set(path, 1.5)
		default:
			mutants[name+" as text"] = set(path, "text")
		}
	}
	walk(nil, values)
	for name, text := range map[string]string{
		"a tag with a space":                 `{image: {tag: "a b"}}`,
		"a digest that is none":              `{image: {digest: "sha256:1234"}}`,
		"no repository":                      `{image: {repository: ""}}`,
		"an unknown pull policy":             `{image: {pullPolicy: Sometimes}}`,
		"a namespace with a slash":           `{watchNamespaces: [a/b]}`,
		"an unknown log level":               `{logLevel: loud}`,
		"a fraction of a replica":            `{replicas: 1.5}`,
		"too many replicas":                  `{replicas: 100}`,
		"fewer than no replicas":             `{replicas: -1}`,
		"a budget that never yields":         `{podDisruptionBudget: {maxUnavailable: 0}}`,
		"a memory of nonsense":               `{resources: {limits: {memory: much}}}`,
		"an interval without unit":           `{metrics: {podMonitor: {interval: "15"}}}`,
		"a monitor of no Service":            `{metrics: {service: false, serviceMonitor: {enabled: true}}}`,
		"no account and none named":          `{serviceAccount: {create: false}}`,
		"a pull secret without a name":       `{imagePullSecrets: [{}]}`,
		"a label that is a number":           `{podLabels: {a: 1}}`,
		"a name in capitals":                 `{fullnameOverride: Pool}`,
		"a pull secret with a space":         `{injector: {sidecarPullSecrets: ["a b"]}}`,
		"an injector of an unknown key":      `{injector: {replica: 1}}`,
		"an unknown key at the top":          `{replica: 1}`,
		"an unknown key of the right type":   `{image: {name: farpool}}`,
		"a priority of the system's":         `{dataPlane: {memoryPriorityClass: {value: 2000000000}}}`,
		"a priority class in capitals":       `{dataPlane: {memoryPriorityClass: {name: High}}}`,
		"an unknown key of the data plane's": `{dataPlane: {tag: 1.0.0}}`,
	} {
		var v object
		if err := yaml.Unmarshal([]byte(text), &v); err != nil {
			t.Fatal(err)
		}
		mutants[name] = v
	}
	binary := helm(t)
	for name, mutant := range mutants {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text, err := json.Marshal(mutant)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := render(t, binary, string(text)); err == nil {
				t.Errorf("the schema takes %s", text)
			} else if !strings.Contains(err.Error(), "schema") {
				t.Errorf("%s is refused, but not by the schema: %v", text, err)
			}
		})
	}
}

func TestEveryObjectOfTheSchemaIsClosed(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(chart, "values.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	var schema object
	if err := json.Unmarshal(data, &schema); err != nil {
		t.Fatal(err)
	}
	// Values of Kubernetes' own shape, whose fields the API server checks, and what parent charts share.
	open := map[string]bool{".global": true, ".affinity": true, ".tolerations[]": true, ".topologySpreadConstraints[]": true, ".networkPolicy.metricsFrom[]": true, ".networkPolicy.webhookFrom[]": true}
	var walk func(path string, s object)
	walk = func(path string, s object) {
		if s["type"] == "object" && s["additionalProperties"] == nil && !open[path] {
			t.Errorf("%s takes any key", path)
		}
		if properties, ok := s["properties"].(object); ok {
			for k, p := range properties {
				walk(path+"."+k, p.(object))
			}
		}
		if items, ok := s["items"].(object); ok {
			walk(path+"[]", items)
		}
	}
	walk("", schema)
}

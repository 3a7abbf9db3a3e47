// SPDX-License-Identifier: Apache-2.0

package v1alpha1_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	schemavalidation "k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/yaml"

	"farpool.dev/farpool/api/v1alpha1"
)

const crdDirectory = "../../config/crd/bases"

// validator is what an API server builds from a CRD: schema, defaults and rules.
type validator struct {
	structural *structuralschema.Structural
	schema     schemavalidation.SchemaValidator
	rules      *cel.Validator
}

// validators loads the generated CRDs as an API server would, and fails if it would refuse one of them.
func validators(t *testing.T) map[string]validator {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(crdDirectory, "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no CRDs in %s (%v): run api/generate.sh", crdDirectory, err)
	}
	loaded := map[string]validator{}
	for _, file := range files {
		external := readCRD(t, file)
		apiextensionsv1.SetDefaults_CustomResourceDefinition(external)
		apiextensionsv1.SetDefaults_CustomResourceDefinitionSpec(&external.Spec)
		var crd apiextensions.CustomResourceDefinition
		if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(external, &crd, nil); err != nil {
			t.Fatal(err)
		}
		crd.Status.StoredVersions = []string{"v1alpha1"}
		if errs := validation.ValidateCustomResourceDefinition(context.Background(), &crd); len(errs) > 0 {
			t.Fatalf("%s: an API server would refuse this CRD: %v", file, errs.ToAggregate())
		}
		schema := crd.Spec.Validation
		if schema == nil {
			schema = crd.Spec.Versions[0].Schema
		}
		structural, err := structuralschema.NewStructural(schema.OpenAPIV3Schema)
		if err != nil {
			t.Fatal(err)
		}
		schemaValidator, _, err := schemavalidation.NewSchemaValidator(schema.OpenAPIV3Schema)
		if err != nil {
			t.Fatal(err)
		}
		loaded[external.Spec.Names.Kind] = validator{structural, schemaValidator, cel.NewValidator(structural, true, celconfig.PerCallLimit)}
	}
	return loaded
}

func readCRD(t *testing.T, file string) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict(data, crd); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return crd
}

// check validates object, as a creation or as an update of old, and returns what the rules cost.
func (v validator) check(object, old map[string]any) (field.ErrorList, int64) {
	defaulting.Default(object, v.structural)
	errs := schemavalidation.ValidateCustomResource(nil, object, v.schema)
	errs = append(errs, listtype.ValidateListSetsAndMaps(nil, v.structural, object)...)
	var oldObject any
	if old != nil {
		defaulting.Default(old, v.structural)
		oldObject = old
	}
	const budget = celconfig.RuntimeCELCostBudget
	broken, left := v.rules.Validate(context.Background(), nil, v.structural, object, oldObject, budget)
	return append(errs, broken...), budget - left
}

const minimalPool = `
apiVersion: farpool.dev/v1alpha1
kind: KVPool
metadata: {name: cache, namespace: shop}
spec:
  memory:
    pools: [{name: memory, replicas: 2, lend: 256Mi}]
  compute:
    pools: [{name: shards, replicas: 2}]
  network: {transport: TCP}
`

const minimalMap = `
apiVersion: farpool.dev/v1alpha1
kind: ShardMap
metadata: {name: cache-0000000003, namespace: shop}
spec:
  poolName: cache
  poolUID: 6f0c
  epoch: 3
  epochKey: "0000000003"
  nodes:
  - name: cache-memory-0
    endpoint: 10.0.0.1:7400
    incarnation: "18446744073709551615"
    state: Serving
    memoryBytes: 268435456
    lockRegion: {placement: HostMemory, bytes: 65536, locks: 32768, rowsPerLock: 16}
    rcuckoo: {entryBytes: 16, entriesPerRow: 8, rowsPerLock: 16, rows: 466033}
  tables: [{id: 0, node: 0}]
  directory: {depth: 1, version: 0, tables: [0, 0]}
`

const minimalNode = `
apiVersion: farpool.dev/v1alpha1
kind: MemoryNode
metadata: {name: cache-memory-0, namespace: shop}
spec: {poolName: cache, memoryPool: memory, ordinal: 0, lend: 256Mi, templateVersion: 1, image: "farpool/dataplane:dev"}
`

const minimalLease = `
apiVersion: farpool.dev/v1alpha1
kind: RepairLease
metadata: {name: cache-repair-1, namespace: shop}
spec:
  poolRef: {name: cache}
  cause: PodTerminated
  clients: [{name: cache-shards-7d4f-x2x9p, process: 00c0ffee00c0ffee}]
`

const minimalResize = `
apiVersion: farpool.dev/v1alpha1
kind: ResizeOperation
metadata: {name: cache-resize-2, namespace: shop}
spec:
  poolName: cache
  pools: [{name: memory, from: 3, to: 5}]
  approval: Required
`

const minimalMemoryNodePool = `
apiVersion: farpool.dev/v1alpha1
kind: MemoryNodePool
metadata: {name: cache-memory, namespace: shop}
spec: {poolName: cache, memoryPool: memory, declared: 3, replicas: 3}
`

const minimalComputeShardPool = `
apiVersion: farpool.dev/v1alpha1
kind: ComputeShardPool
metadata: {name: cache-shards, namespace: shop}
spec: {poolName: cache, computePool: shards, declared: 3, replicas: 3}
`

// document parses base and applies edits of the form path=yaml; an empty value removes the field.
func document(t *testing.T, base string, edits []string) map[string]any {
	t.Helper()
	object := parse(t, base).(map[string]any)
	for _, edit := range edits {
		path, value, found := strings.Cut(edit, "=")
		if !found {
			t.Fatalf("edit %q has no '='", edit)
		}
		var parsed any
		if value != "" {
			parsed = parse(t, value)
		}
		assign(t, object, strings.Split(path, "."), parsed)
	}
	return object
}

func parse(t *testing.T, text string) any {
	t.Helper()
	raw, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	var value any
	if err := utiljson.Unmarshal(raw, &value); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return value
}

func assign(t *testing.T, at any, path []string, value any) {
	t.Helper()
	for i, name := range path {
		last := i == len(path)-1
		switch node := at.(type) {
		case map[string]any:
			if last && value == nil {
				delete(node, name)
			} else if last {
				node[name] = value
			} else if _, present := node[name]; !present {
				node[name] = map[string]any{}
			}
			at = node[name]
		case []any:
			index, err := strconv.Atoi(name)
			if err != nil || index >= len(node) {
				t.Fatalf("no element %q in %v", name, path)
			}
			if last {
				node[index] = value
			}
			at = node[index]
		default:
			t.Fatalf("no field %q in %v", name, path)
		}
	}
}

// A case is a document that is accepted, or refused with words that a person can act on.
type validationCase struct {
	name    string
	base    string
	before  []string // edits of the object that is updated; nil: a creation
	edits   []string
	refused string // empty: accepted
}

// roce is a network of RDMA with an attachment, in YAML.
func roce(attachment string) string {
	return "spec.network={transport: RoCEv2, attachment: " + attachment + "}"
}

var anyRoce = roce("{type: DRA, dra: {resourceClaimTemplateName: one-nic}}")

func validationCases() []validationCase {
	unchanged := []string{}
	directory := func(entries int) string {
		return "spec.directory.tables=[" + strings.TrimSuffix(strings.Repeat("0,", entries), ",") + "]"
	}
	pools := func(kind string, count int) string {
		var list []string
		for i := range count {
			list = append(list, "{name: "+kind+strconv.Itoa(i)+", replicas: 1, lend: 16Mi}")
		}
		return "spec.memory.pools=[" + strings.Join(list, ",") + "]"
	}
	departures := func(parts ...int) string {
		var list []string
		for _, part := range parts {
			list = append(list, fmt.Sprintf("{part: %d, from: 0}", part))
		}
		return "spec.departures=[" + strings.Join(list, ",") + "]"
	}
	var everyPart []int
	for part := range 4096 {
		everyPart = append(everyPart, part)
	}
	race := "spec.index={protocol: RACE}"
	clients := func(count int) string {
		var list []string
		for i := range count {
			list = append(list, fmt.Sprintf("{name: %s, process: '%016x'}", strings.Repeat("n", 253), i+1))
		}
		return "spec.clients=[" + strings.Join(list, ",") + "]"
	}
	requested := "spec.cause=Requested"
	return []validationCase{
		{name: "pool: minimal", base: minimalPool},
		{name: "pool: without compute shards", base: minimalPool, edits: []string{"spec.compute="}},
		{name: "pool: everything set", base: minimalPool, edits: []string{
			"spec.version=v1.2.3", "spec.dataPolicy=Store", "spec.management=Paused",
			"spec.index={protocol: RCuckoo, rcuckoo: {entryBytes: 64, entriesPerRow: 16, rowsPerLock: 1, tablePercent: 90}}",
			"spec.security={password: None, resp: {tls: {mode: Generated, dnsNames: [cache.example.com, '*.example.com']}}}",
			"spec.limits={maxConnections: 100, maxPipeline: 64, operationDeadlineMilliseconds: 500, maxSessions: 32}",
			"spec.memory.pools.0.pod={nodeSelector: {kubernetes.io/arch: amd64}, tolerations: [{key: farpool.dev/memory, operator: Exists, effect: NoSchedule}]}",
			"spec.memory.pools.0.resources={requests: {cpu: 500m, memory: 256Mi}, limits: {memory: 512Mi}}",
			"spec.compute.pools.0.workers=4"}},
		{name: "pool: sessions of an older template, raised", base: minimalPool, before: []string{"status={template: {version: 3, image: i}}"}, edits: []string{"status={template: {version: 3, image: i}}", "spec.limits={maxSessions: 512}"}, refused: "spec.limits.maxSessions of a pool whose status.template.version is below 4 is fixed"},
		{name: "pool: sessions of an unknown template, raised", base: minimalPool, before: unchanged, edits: []string{"spec.limits={maxSessions: 512}"}, refused: "is below 4 is fixed"},
		{name: "pool: sessions of an older template, lowered", base: minimalPool, before: []string{"spec.limits={maxSessions: 512}", "status={template: {version: 1, image: i}}"}, edits: []string{"status={template: {version: 1, image: i}}"}, refused: "is below 4 is fixed"},
		{name: "pool: sessions left out were 256", base: minimalPool, before: unchanged, edits: []string{"spec.limits={maxSessions: 256}"}},
		{name: "pool: sessions of a pool whose memory nodes keep theirs", base: minimalPool, before: []string{"status={template: {version: 4, image: i}}"}, edits: []string{"status={template: {version: 4, image: i}}", "spec.limits={maxSessions: 512}"}},
		{name: "pool: as many sessions as workers", base: minimalPool, edits: []string{"spec.compute={pools: [{name: shards, replicas: 3, workers: 64}]}"}},
		{name: "pool: more workers than sessions", base: minimalPool, edits: []string{"spec.compute={pools: [{name: shards, replicas: 4, workers: 64}]}"}, refused: "compute pools need more sessions than memory nodes have"},
		{name: "pool: more workers than sessions, together", base: minimalPool, edits: []string{"spec.compute={pools: [{name: shards, replicas: 2, workers: 64}, {name: others, replicas: 1, workers: 33}]}"}, refused: "need more sessions"},
		{name: "pool: sessions for many workers", base: minimalPool, edits: []string{"spec.compute={pools: [{name: shards, replicas: 4, workers: 64}]}", "spec.limits={maxSessions: 320}"}},
		{name: "pool: workers beyond the sessions, later", base: minimalPool, before: unchanged, edits: []string{"spec.compute.pools.0.replicas=256"}, refused: "need more sessions"},
		{name: "pool: sidecars", base: minimalPool, edits: []string{"spec.sidecars={namespaces: [{name: shop}, {name: web, maxSidecars: 100}]}"}},
		{name: "pool: sidecars for nobody", base: minimalPool, edits: []string{"spec.sidecars={namespaces: []}"}, refused: "should have at least 1 items"},
		{name: "pool: sidecars for no namespace", base: minimalPool, edits: []string{"spec.sidecars={namespaces: [{name: Shop}]}"}, refused: "a namespace's name has lower-case letters"},
		{name: "pool: sidecars for kube-system", base: minimalPool, edits: []string{"spec.sidecars={namespaces: [{name: kube-system}]}"}, refused: "kube-system gets no sidecars"},
		{name: "pool: sidecars for a namespace twice", base: minimalPool, edits: []string{"spec.sidecars={namespaces: [{name: shop}, {name: shop}]}"}, refused: "Duplicate value"},
		{name: "pool: no sidecar at all", base: minimalPool, edits: []string{"spec.sidecars={namespaces: [{name: shop, maxSidecars: 0}]}"}, refused: "greater than or equal to 1"},
		{name: "pool: sidecars and as many sessions", base: minimalPool, edits: []string{"spec.compute={pools: [{name: shards, replicas: 1, workers: 32}]}", "spec.sidecars={namespaces: [{name: shop, maxSidecars: 160}, {name: web}]}"}},
		{name: "pool: one sidecar too many", base: minimalPool, edits: []string{"spec.compute={pools: [{name: shards, replicas: 1, workers: 32}]}", "spec.sidecars={namespaces: [{name: shop, maxSidecars: 161}, {name: web}]}"}, refused: "sidecars and compute pools together need more sessions"},
		{name: "pool: sidecars without compute shards, too many", base: minimalPool, edits: []string{"spec.compute=", "spec.sidecars={namespaces: [{name: shop, maxSidecars: 257}]}"}, refused: "sidecars and compute pools together need more sessions"},
		{name: "pool: sidecars over RDMA", base: minimalPool, edits: []string{anyRoce, "spec.sidecars={namespaces: [{name: shop}]}"}, refused: "spec.sidecars is for pools with transport TCP"},
		{name: "pool: more workers, none of which runs", base: minimalPool, edits: []string{"spec.compute={pools: [{name: shards, replicas: 0, workers: 64}]}", "spec.limits={maxSessions: 1}"}},
		{name: "pool: six memory pools", base: minimalPool, edits: []string{pools("m", 6)}},
		{name: "pool: smallest memory", base: minimalPool, edits: []string{"spec.memory.pools.0.lend=16Mi"}},
		{name: "pool: memory as a number", base: minimalPool, edits: []string{"spec.memory.pools.0.lend=268435456"}},
		{name: "pool: protocol alone", base: minimalPool, edits: []string{"spec.index={protocol: RCuckoo}"}},
		{name: "pool: part of the geometry", base: minimalPool, edits: []string{"spec.index={rcuckoo: {entryBytes: 32}}"}},

		{name: "pool: no transport", base: minimalPool, edits: []string{"spec.network={}"}, refused: "spec.network.transport: Required"},
		{name: "pool: no network", base: minimalPool, edits: []string{"spec.network="}, refused: "spec.network: Required"},
		{name: "pool: RoCEv2 without a device", base: minimalPool, edits: []string{"spec.network.transport=RoCEv2"}, refused: "transport RoCEv2 needs spec.network.attachment"},
		{name: "pool: InfiniBand", base: minimalPool, edits: []string{"spec.network.transport=InfiniBand"}, refused: "InfiniBand is refused until this version has its wire: set RoCEv2"},
		{name: "pool: RDMA by the shared device plugin", base: minimalPool, edits: []string{roce("{type: SharedDevicePlugin, sharedDevicePlugin: {resourceName: rdma/hca_shared_devices_a}}")}},
		{name: "pool: RDMA by the shared device plugin, with a network", base: minimalPool, edits: []string{roce("{type: SharedDevicePlugin, sharedDevicePlugin: {resourceName: rdma/hca, network: kube-system/rdma-net}}")}},
		{name: "pool: RDMA by SR-IOV", base: minimalPool, edits: []string{roce("{type: SRIOV, sriov: {resourceName: openshift.io/rdma_exclusive_device, network: rdma-net}}")}},
		{name: "pool: RDMA by DRA", base: minimalPool, edits: []string{roce("{type: DRA, dra: {resourceClaimTemplateName: one-nic}}")}},
		{name: "pool: RDMA by DRA, with an interface", base: minimalPool, edits: []string{roce("{type: DRA, dra: {resourceClaimTemplateName: one-nic, interface: eth1}}")}},
		{name: "pool: RDMA by the host's network", base: minimalPool, edits: []string{roce("{type: HostNetwork, hostNetwork: {resourceName: rdma/hca, interface: ens2f0}}")}},
		{name: "pool: RDMA with a traffic class", base: minimalPool, edits: []string{roce("{type: DRA, dra: {resourceClaimTemplateName: one-nic}}"), "spec.network.trafficClass=160"}},
		{name: "pool: attachment of no type", base: minimalPool, edits: []string{roce("{dra: {resourceClaimTemplateName: one-nic}}")}, refused: "spec.network.attachment.type: Required"},
		{name: "pool: unknown attachment", base: minimalPool, edits: []string{roce("{type: Magic}")}, refused: `supported values: "SharedDevicePlugin", "SRIOV", "DRA", "HostNetwork"`},
		{name: "pool: shared plugin unnamed", base: minimalPool, edits: []string{roce("{type: SharedDevicePlugin}")}, refused: "sharedDevicePlugin must be set exactly when type is SharedDevicePlugin"},
		{name: "pool: SR-IOV unnamed", base: minimalPool, edits: []string{roce("{type: SRIOV}")}, refused: "sriov must be set exactly when type is SRIOV"},
		{name: "pool: DRA unnamed", base: minimalPool, edits: []string{roce("{type: DRA}")}, refused: "dra must be set exactly when type is DRA"},
		{name: "pool: host network unnamed", base: minimalPool, edits: []string{roce("{type: HostNetwork}")}, refused: "hostNetwork must be set exactly when type is HostNetwork"},
		{name: "pool: two attachments", base: minimalPool, edits: []string{roce("{type: DRA, dra: {resourceClaimTemplateName: one-nic}, hostNetwork: {resourceName: rdma/hca}}")}, refused: "hostNetwork must be set exactly"},
		{name: "pool: SR-IOV without a network", base: minimalPool, edits: []string{roce("{type: SRIOV, sriov: {resourceName: a/b}}")}, refused: "spec.network.attachment.sriov.network: Required"},
		{name: "pool: resource without a prefix", base: minimalPool, edits: []string{roce("{type: SharedDevicePlugin, sharedDevicePlugin: {resourceName: hca}}")}, refused: "resourceName is prefix/name"},
		{name: "pool: SR-IOV resource without a prefix", base: minimalPool, edits: []string{roce("{type: SRIOV, sriov: {resourceName: hca, network: n}}")}, refused: "resourceName is prefix/name"},
		{name: "pool: host network's resource without a prefix", base: minimalPool, edits: []string{roce("{type: HostNetwork, hostNetwork: {resourceName: hca}}")}, refused: "resourceName is prefix/name"},
		{name: "pool: two networks in one", base: minimalPool, edits: []string{roce("{type: SharedDevicePlugin, sharedDevicePlugin: {resourceName: a/b, network: 'x,y'}}")}, refused: "the name of one NetworkAttachmentDefinition"},
		{name: "pool: SR-IOV network with an interface", base: minimalPool, edits: []string{roce("{type: SRIOV, sriov: {resourceName: a/b, network: x@eth1}}")}, refused: "the name of one NetworkAttachmentDefinition"},
		{name: "pool: claim template of another namespace", base: minimalPool, edits: []string{roce("{type: DRA, dra: {resourceClaimTemplateName: other/one-nic}}")}, refused: "in the pool's namespace"},
		{name: "pool: DRA interface", base: minimalPool, edits: []string{roce("{type: DRA, dra: {resourceClaimTemplateName: one-nic, interface: 'a b'}}")}, refused: "interface is the name of a network interface"},
		{name: "pool: host network's interface", base: minimalPool, edits: []string{roce("{type: HostNetwork, hostNetwork: {resourceName: a/b, interface: 'a/b'}}")}, refused: "interface is the name of a network interface"},
		{name: "pool: attachment for TCP", base: minimalPool, edits: []string{"spec.network.attachment={type: DRA, dra: {resourceClaimTemplateName: one-nic}}"}, refused: "spec.network.attachment is of RDMA"},
		{name: "pool: traffic class for TCP", base: minimalPool, edits: []string{"spec.network.trafficClass=160"}, refused: "spec.network.trafficClass is of RDMA"},
		{name: "pool: large traffic class", base: minimalPool, edits: []string{anyRoce, "spec.network.trafficClass=256"}, refused: "less than or equal to 255"},
		{name: "pool: shared memory for RDMA", base: minimalPool, edits: []string{anyRoce, "spec.network.sharedMemory={hostPath: /run/farpool}"}, refused: "sharedMemory goes with transport TCP alone"},
		{name: "pool: RDMA from TCP", base: minimalPool, before: unchanged, edits: []string{anyRoce}, refused: "spec.network.transport is fixed at creation"},
		{name: "pool: another attachment", base: minimalPool, before: []string{anyRoce}, edits: []string{roce("{type: DRA, dra: {resourceClaimTemplateName: two-nics}}")}, refused: "spec.network.attachment is fixed at creation"},
		{name: "pool: attachment unchanged", base: minimalPool, before: []string{anyRoce}, edits: []string{anyRoce}},
		{name: "pool: traffic class set later", base: minimalPool, before: []string{anyRoce}, edits: []string{anyRoce, "spec.network.trafficClass=8"}, refused: "spec.network.trafficClass is fixed at creation"},
		{name: "pool: RDMA with a short failure timeout", base: minimalPool, edits: []string{anyRoce, "spec.failureTimeoutMilliseconds=100"}},
		{name: "pool: RDMA with a failure timeout below the device's", base: minimalPool, edits: []string{anyRoce, "spec.failureTimeoutMilliseconds=19"}, refused: "set at least 20"},
		{name: "pool: locks in host memory", base: minimalPool, edits: []string{"spec.locks={placement: HostMemory}"}},
		{name: "pool: locks in a NIC", base: minimalPool, edits: []string{anyRoce, "spec.locks={placement: DeviceMemoryPreferred}"}},
		{name: "pool: locks in a NIC alone", base: minimalPool, edits: []string{anyRoce, "spec.locks={placement: DeviceMemoryRequired}"}},
		{name: "pool: locks in a NIC without RDMA", base: minimalPool, edits: []string{"spec.locks={placement: DeviceMemoryPreferred}"}, refused: "which only RCuckoo with transport RoCEv2 has"},
		{name: "pool: locks in a NIC of a protocol without", base: minimalPool, edits: []string{anyRoce, "spec.index={protocol: RACE}", "spec.locks={placement: DeviceMemoryRequired}"}, refused: "which only RCuckoo with transport RoCEv2 has"},
		{name: "pool: locks in a NIC of a protocol whose memory nodes execute", base: minimalPool, edits: []string{anyRoce, "spec.index={protocol: Outback}", "spec.locks={placement: DeviceMemoryPreferred}"}, refused: "which only RCuckoo with transport RoCEv2 has"},
		{name: "pool: locks left out were in host memory", base: minimalPool, before: unchanged, edits: []string{"spec.locks={placement: HostMemory}"}},
		{name: "pool: locks moved", base: minimalPool, before: []string{anyRoce}, edits: []string{anyRoce, "spec.locks={placement: DeviceMemoryPreferred}"}, refused: "spec.locks is fixed at creation"},
		{name: "pool: locks elsewhere", base: minimalPool, edits: []string{"spec.locks={placement: Disk}"}, refused: "unknown placement"},
		{name: "pool: huge pages", base: minimalPool, edits: []string{"spec.memory.pools.0.hugePages=2Mi"}},
		{name: "pool: large huge pages", base: minimalPool, edits: []string{"spec.memory.pools.0.hugePages=1Gi", "spec.memory.pools.0.lend=4Gi"}},
		{name: "pool: huge pages of no size", base: minimalPool, edits: []string{"spec.memory.pools.0.hugePages=4Mi"}, refused: `supported values: "2Mi", "1Gi"`},
		{name: "pool: part of a huge page", base: minimalPool, edits: []string{"spec.memory.pools.0.hugePages=2Mi", "spec.memory.pools.0.lend=17Mi"}, refused: "multiple of the huge page, 2Mi"},
		{name: "pool: part of a large huge page", base: minimalPool, edits: []string{"spec.memory.pools.0.hugePages=1Gi"}, refused: "multiple of the huge page, 1Gi"},
		{name: "pool: huge pages later", base: minimalPool, before: unchanged, edits: []string{"spec.memory.pools.0.hugePages=2Mi"}, refused: "hugePages is fixed at creation"},
		{name: "pool: one NUMA node", base: minimalPool, edits: []string{"spec.memory.pools.0.numaAlignment=SingleNUMANode", "spec.memory.pools.0.resources={limits: {cpu: 2}}"}},
		{name: "pool: one NUMA node with shared processors", base: minimalPool, edits: []string{"spec.memory.pools.0.numaAlignment=SingleNUMANode"}, refused: "needs resources.limits.cpu, a whole number"},
		{name: "pool: one NUMA node with part of a processor", base: minimalPool, edits: []string{"spec.memory.pools.0.numaAlignment=SingleNUMANode", "spec.memory.pools.0.resources={limits: {cpu: 500m}}"}, refused: "needs resources.limits.cpu, a whole number"},
		{name: "pool: any NUMA node", base: minimalPool, edits: []string{"spec.memory.pools.0.numaAlignment=None"}},
		{name: "pool: NUMA alignment later", base: minimalPool, before: unchanged, edits: []string{"spec.memory.pools.0.numaAlignment=None"}, refused: "numaAlignment is fixed at creation"},
		{name: "pool: unknown transport", base: minimalPool, edits: []string{"spec.network.transport=UDP"}, refused: "unknown transport: set TCP, which works on any network, or RoCEv2"},
		{name: "pool: shared memory", base: minimalPool, edits: []string{"spec.network.sharedMemory={hostPath: /run/farpool, spinMicroseconds: 20}"}},
		{name: "pool: shared memory nowhere", base: minimalPool, edits: []string{"spec.network.sharedMemory={}"}, refused: "spec.network.sharedMemory.hostPath: Required"},
		{name: "pool: shared memory at the root", base: minimalPool, edits: []string{"spec.network.sharedMemory={hostPath: /}"}, refused: "hostPath"},
		{name: "pool: shared memory at a relative path", base: minimalPool, edits: []string{"spec.network.sharedMemory={hostPath: run/farpool}"}, refused: "hostPath is an absolute path"},
		{name: "pool: shared memory above", base: minimalPool, edits: []string{"spec.network.sharedMemory={hostPath: /run/../etc}"}, refused: "hostPath is an absolute path"},
		{name: "pool: spinning for ever", base: minimalPool, edits: []string{"spec.network.sharedMemory={hostPath: /run/farpool, spinMicroseconds: 1001}"}, refused: "less than or equal to 1000"},
		{name: "pool: protocol of another kind", base: minimalPool, edits: []string{"spec.index={protocol: Btree}"}, refused: "this version has RCuckoo, RACE and Outback"},
		{name: "pool: RACE", base: minimalPool, edits: []string{"spec.index={protocol: RACE}"}},
		{name: "pool: RACE with its geometry", base: minimalPool, edits: []string{"spec.index={protocol: RACE, race: {tablePercent: 40, tables: 64}}"}},
		{name: "pool: RACE in an odd number of tables", base: minimalPool, edits: []string{"spec.index={protocol: RACE, race: {tables: 3}}"}, refused: "spec.index.race.tables is a power of two"},
		{name: "pool: eviction", base: minimalPool, edits: []string{"spec.memory.eviction=volatile-ttl"}},
		{name: "pool: another eviction policy later", base: minimalPool, before: []string{"spec.memory.eviction=allkeys-lfu"}, edits: []string{"spec.memory.eviction=noeviction"}},
		{name: "pool: an eviction policy that Redis lacks", base: minimalPool, edits: []string{"spec.memory.eviction=allkeys-fifo"}, refused: "Unsupported value"},
		{name: "pool: a Store that evicts", base: minimalPool, edits: []string{"spec.dataPolicy=Store", "spec.memory.eviction=allkeys-lru"}, refused: "spec.memory.eviction of a Store is noeviction"},
		{name: "pool: a Store that says that it does not evict", base: minimalPool, edits: []string{"spec.dataPolicy=Store", "spec.memory.eviction=noeviction"}},
		{name: "pool: RACE split ahead", base: minimalPool, edits: []string{"spec.index={protocol: RACE, race: {tables: 64, leastTables: 16}}"}},
		{name: "pool: RACE split ahead into all", base: minimalPool, edits: []string{"spec.index={protocol: RACE, race: {tables: 64, leastTables: 64}}"}},
		{name: "pool: RACE split into more than there are", base: minimalPool, edits: []string{"spec.index={protocol: RACE, race: {tables: 4, leastTables: 8}}"}, refused: "leastTables is at most tables"},
		{name: "pool: RACE split into more than one by default", base: minimalPool, edits: []string{"spec.index={protocol: RACE, race: {leastTables: 2}}"}, refused: "leastTables is at most tables"},
		{name: "pool: RACE split ahead into an odd number", base: minimalPool, edits: []string{"spec.index={protocol: RACE, race: {tables: 4, leastTables: 3}}"}, refused: "leastTables is a power of two"},
		{name: "pool: RACE split ahead later", base: minimalPool, before: []string{"spec.index={protocol: RACE, race: {tables: 64}}"}, edits: []string{"spec.index={protocol: RACE, race: {tables: 64, leastTables: 4}}"}},
		{name: "pool: RACE split further ahead", base: minimalPool, before: []string{"spec.index={protocol: RACE, race: {tables: 64, leastTables: 4}}"}, edits: []string{"spec.index={protocol: RACE, race: {tables: 64, leastTables: 64}}"}},
		{name: "pool: RACE split ahead less", base: minimalPool, before: []string{"spec.index={protocol: RACE, race: {tables: 64, leastTables: 4}}"}, edits: []string{"spec.index={protocol: RACE, race: {tables: 64, leastTables: 2}}"}, refused: "leastTables can only be raised"},
		{name: "pool: RACE not split ahead any more", base: minimalPool, before: []string{"spec.index={protocol: RACE, race: {tables: 64, leastTables: 4}}"}, edits: []string{"spec.index={protocol: RACE, race: {tables: 64}}"}, refused: "leastTables can only be raised"},
		{name: "pool: RACE cut into more tables later", base: minimalPool, before: []string{"spec.index={protocol: RACE, race: {tables: 64}}"}, edits: []string{"spec.index={protocol: RACE, race: {tables: 128}}"}, refused: "spec.index is fixed at creation, but for race.leastTables"},
		{name: "pool: RACE's geometry later", base: minimalPool, before: []string{"spec.index={protocol: RACE}"}, edits: []string{"spec.index={protocol: RACE, race: {tables: 64}}"}, refused: "spec.index is fixed at creation"},
		{name: "pool: RACE in more tables than there can be", base: minimalPool, edits: []string{"spec.index={protocol: RACE, race: {tables: 32768}}"}, refused: "less than or equal to 16384"},
		{name: "pool: RACE takes all", base: minimalPool, edits: []string{"spec.index={protocol: RACE, race: {tablePercent: 91}}"}, refused: "less than or equal to 90"},
		{name: "pool: RACE's geometry for RCuckoo", base: minimalPool, edits: []string{"spec.index={race: {tablePercent: 40}}"}, refused: "set spec.index.protocol to RACE"},
		{name: "pool: RACE from RCuckoo", base: minimalPool, before: unchanged, edits: []string{"spec.index={protocol: RACE}"}, refused: "spec.index is fixed at creation"},
		{name: "pool: Outback", base: minimalPool, edits: []string{"spec.index={protocol: Outback}"}},
		{name: "pool: Outback with its geometry", base: minimalPool, edits: []string{"spec.index={protocol: Outback, outback: {tablePercent: 50}}"}},
		{name: "pool: Outback over RDMA", base: minimalPool, edits: []string{anyRoce, "spec.index={protocol: Outback}"}},
		{name: "pool: Outback leaves no room for keys", base: minimalPool, edits: []string{"spec.index={protocol: Outback, outback: {tablePercent: 51}}"}, refused: "less than or equal to 50"},
		{name: "pool: Outback without a table", base: minimalPool, edits: []string{"spec.index={protocol: Outback, outback: {tablePercent: 0}}"}, refused: "greater than or equal to 1"},
		{name: "pool: Outback's geometry later", base: minimalPool, before: []string{"spec.index={protocol: Outback}"}, edits: []string{"spec.index={protocol: Outback, outback: {tablePercent: 25}}"}, refused: "spec.index is fixed at creation"},
		{name: "pool: Outback's geometry changed", base: minimalPool, before: []string{"spec.index={protocol: Outback, outback: {tablePercent: 25}}"}, edits: []string{"spec.index={protocol: Outback, outback: {tablePercent: 20}}"}, refused: "spec.index is fixed at creation"},
		{name: "pool: Outback's geometry for RCuckoo", base: minimalPool, edits: []string{"spec.index={outback: {tablePercent: 10}}"}, refused: "set spec.index.protocol to Outback"},
		{name: "pool: Outback's geometry for RACE", base: minimalPool, edits: []string{"spec.index={protocol: RACE, outback: {tablePercent: 10}}"}, refused: "set spec.index.protocol to Outback"},
		{name: "pool: RACE's geometry for Outback", base: minimalPool, edits: []string{"spec.index={protocol: Outback, race: {tables: 2}}"}, refused: "set spec.index.protocol to RACE"},
		{name: "pool: Outback from RACE", base: minimalPool, before: []string{race}, edits: []string{"spec.index={protocol: Outback}"}, refused: "spec.index is fixed at creation"},
		{name: "pool: memory of Outback scaled", base: minimalPool, before: []string{"spec.index={protocol: Outback}"}, edits: []string{"spec.index={protocol: Outback}", "spec.memory.pools.0.replicas=3"}},
		{name: "pool: entryBytes", base: minimalPool, edits: []string{"spec.index={rcuckoo: {entryBytes: 20}}"}, refused: "entryBytes is 16, 24, 32, 48 or 64"},
		{name: "pool: rowsPerLock", base: minimalPool, edits: []string{"spec.index={rcuckoo: {rowsPerLock: 12}}"}, refused: "rowsPerLock is a power of two"},
		{name: "pool: one entry in a row", base: minimalPool, edits: []string{"spec.index={rcuckoo: {entriesPerRow: 1}}"}, refused: "greater than or equal to 2"},
		{name: "pool: table takes all", base: minimalPool, edits: []string{"spec.index={rcuckoo: {tablePercent: 100}}"}, refused: "less than or equal to 90"},
		{name: "pool: too little memory", base: minimalPool, edits: []string{"spec.memory.pools.0.lend=15Mi"}, refused: "lend is from 16Mi to 64Ti"},
		{name: "pool: too much memory", base: minimalPool, edits: []string{"spec.memory.pools.0.lend=65Ti"}, refused: "lend is from 16Mi to 64Ti"},
		{name: "pool: absurd memory", base: minimalPool, edits: []string{"spec.memory.pools.0.lend=9000E"}, refused: "lend is from 16Mi to 64Ti"},
		{name: "pool: no multiple of a page", base: minimalPool, edits: []string{"spec.memory.pools.0.lend=\"100000001\""}, refused: "multiple of the page size, 4Ki"},
		{name: "pool: a number of bytes that is no multiple of a page", base: minimalPool, edits: []string{"spec.memory.pools.0.lend=100000001"}, refused: "multiple of the page size, 4Ki"},
		{name: "pool: memory is no quantity", base: minimalPool, edits: []string{"spec.memory.pools.0.lend=lots"}, refused: "spec.memory.pools[0].lend"},
		{name: "pool: no memory nodes", base: minimalPool, edits: []string{"spec.memory.pools.0.replicas=0"}, refused: "no memory pool has memory nodes"},
		{name: "pool: one memory pool without memory nodes", base: minimalPool, edits: []string{"spec.memory.pools=[{name: memory, replicas: 0, lend: 256Mi}, {name: more, replicas: 1, lend: 256Mi}]"}},
		{name: "pool: fewer than no memory nodes", base: minimalPool, edits: []string{"spec.memory.pools.0.replicas=-1"}, refused: "greater than or equal to 0"},
		{name: "pool: no memory pools", base: minimalPool, edits: []string{"spec.memory.pools=[]"}, refused: "spec.memory.pools"},
		{name: "pool: seven memory pools", base: minimalPool, edits: []string{pools("m", 7)}, refused: "Too many"},
		{name: "pool: too many memory nodes", base: minimalPool, edits: []string{
			"spec.memory.pools=[{name: a, replicas: 200, lend: 16Mi}, {name: b, replicas: 57, lend: 16Mi}]"}, refused: "at most 256 memory nodes"},
		{name: "pool: two pools of one name", base: minimalPool, edits: []string{"spec.compute.pools.0.name=memory"}, refused: "have the same name"},
		{name: "pool: bad member name", base: minimalPool, edits: []string{"spec.compute.pools.0.name=Shards"}, refused: "spec.compute.pools[0].name"},
		{name: "pool: long name", base: minimalPool, edits: []string{"metadata.name=" + strings.Repeat("a", 33)}, refused: "at most 32 lower-case letters"},
		{name: "pool: name with a dot", base: minimalPool, edits: []string{"metadata.name=a.b"}, refused: "at most 32 lower-case letters"},
		{name: "pool: name that begins with a digit", base: minimalPool, edits: []string{"metadata.name=0a"}, refused: "begins with a letter"},
		{name: "pool: policy", base: minimalPool, edits: []string{"spec.dataPolicy=Maybe"}, refused: `supported values: "Cache", "Store"`},
		{name: "pool: deadline", base: minimalPool, edits: []string{"spec.limits={operationDeadlineMilliseconds: 1}"}, refused: "greater than or equal to 10"},
		{name: "pool: version", base: minimalPool, edits: []string{"spec.version='a b'"}, refused: "spec.version"},
		{name: "pool: toleration", base: minimalPool, edits: []string{"spec.memory.pools.0.pod.tolerations=[{operator: Sometimes}]"}, refused: `supported values: "Exists", "Equal"`},

		{name: "pool: nothing changed", base: minimalPool, before: unchanged},
		{name: "pool: compute scaled", base: minimalPool, before: unchanged, edits: []string{"spec.compute.pools.0.replicas=7"}},
		{name: "pool: compute pool added", base: minimalPool, before: unchanged, edits: []string{"spec.compute.pools=[{name: shards, replicas: 2}, {name: more, replicas: 1}]"}},
		{name: "pool: compute removed", base: minimalPool, before: unchanged, edits: []string{"spec.compute="}},
		{name: "pool: paused", base: minimalPool, before: unchanged, edits: []string{"spec.management=Paused"}},
		{name: "pool: options of pods", base: minimalPool, edits: []string{
			"spec.compute.pools.0.pod={labels: {example.com/team: a, empty: ''}, annotations: {example.com/note: 'anything at all'}, priorityClassName: high, runtimeClassName: crun.v1, schedulerName: other, serviceAccountName: shards, securityContext: Platform}",
			"spec.memory.pools.0.pod={affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: a, operator: In, values: [b]}]}]}}}, topologySpreadConstraints: [{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: DoNotSchedule}]}"}},
		{name: "pool: labels without end", base: minimalPool, edits: []string{"spec.compute.pools.0.pod.labels={" + strings.Repeat("a", 64) + ": b}"}, refused: "a label's name is [prefix/]name"},
		{name: "pool: a label's value", base: minimalPool, edits: []string{"spec.memory.pools.0.pod.labels={a: 'b c'}"}, refused: "labels.a in body should match"},
		{name: "pool: labels of the operator", base: minimalPool, edits: []string{"spec.memory.pools.0.pod.labels={farpool.dev/pool: other}"}, refused: "the operator sets the labels farpool.dev/*"},
		{name: "pool: a sidecar's label", base: minimalPool, edits: []string{"spec.memory.pools.0.pod.labels={sidecar.farpool.dev/x: other}"}, refused: "the operator sets the labels farpool.dev/*"},
		{name: "pool: a label of all pools", base: minimalPool, edits: []string{"spec.memory.pools.0.pod.labels={app.kubernetes.io/name: other}"}, refused: "the operator sets the labels farpool.dev/*"},
		{name: "pool: an annotation's name", base: minimalPool, edits: []string{"spec.memory.pools.0.pod.annotations={'a b': c}"}, refused: "an annotation's name is"},
		{name: "pool: annotations of the operator", base: minimalPool, edits: []string{"spec.memory.pools.0.pod.annotations={farpool.dev/pod-hash: c}"}, refused: "the operator sets the annotations farpool.dev/*"},
		{name: "pool: a sidecar's annotation", base: minimalPool, edits: []string{"spec.memory.pools.0.pod.annotations={sidecar.farpool.dev/x: c}"}, refused: "the operator sets the annotations farpool.dev/*"},
		{name: "pool: networks by an annotation", base: minimalPool, edits: []string{"spec.memory.pools.0.pod.annotations={k8s.v1.cni.cncf.io/networks: c}"}, refused: "from spec.network.attachment"},
		{name: "pool: no name of a priority class", base: minimalPool, edits: []string{"spec.compute.pools.0.pod.priorityClassName=High"}, refused: "the name of an object has lower-case letters"},
		{name: "pool: unknown security", base: minimalPool, edits: []string{"spec.compute.pools.0.pod.securityContext=Root"}, refused: `supported values: "Managed", "Platform"`},
		{name: "pool: an unknown spread", base: minimalPool, edits: []string{"spec.compute.pools.0.pod.topologySpreadConstraints=[{maxSkew: 1}]"}, refused: "topologyKey: Required"},
		{name: "pool: a load balancer", base: minimalPool, edits: []string{"spec.service={type: LoadBalancer, labels: {a: b}, annotations: {c.d/e: f}, nodePort: 30000, loadBalancerClass: a.b/c, loadBalancerSourceRanges: ['10.0.0.0/8', 'fd00::/8'], externalTrafficPolicy: Local, trafficDistribution: PreferClose, ipFamilyPolicy: RequireDualStack}"}},
		{name: "pool: node ports", base: minimalPool, edits: []string{"spec.service={type: NodePort, nodePort: 30000, externalTrafficPolicy: Cluster}"}},
		{name: "pool: a Service that says little", base: minimalPool, before: unchanged, edits: []string{"spec.service={annotations: {a: b}}"}},
		{name: "pool: a Service by name", base: minimalPool, edits: []string{"spec.service={type: ExternalName}"}, refused: "supported values"},
		{name: "pool: a class without a load balancer", base: minimalPool, edits: []string{"spec.service={type: NodePort, loadBalancerClass: a/b}"}, refused: "loadBalancerClass goes with type LoadBalancer"},
		{name: "pool: ranges without a load balancer", base: minimalPool, edits: []string{"spec.service={loadBalancerSourceRanges: ['10.0.0.0/8']}"}, refused: "loadBalancerSourceRanges goes with type LoadBalancer"},
		{name: "pool: no range", base: minimalPool, edits: []string{"spec.service={type: LoadBalancer, loadBalancerSourceRanges: ['10.0.0.0']}"}, refused: "a source range is an address and a length"},
		{name: "pool: a node port without one", base: minimalPool, edits: []string{"spec.service={nodePort: 30000}"}, refused: "nodePort goes with type NodePort or LoadBalancer"},
		{name: "pool: a traffic policy inside", base: minimalPool, edits: []string{"spec.service={externalTrafficPolicy: Local}"}, refused: "externalTrafficPolicy goes with type NodePort or LoadBalancer"},
		{name: "pool: no class", base: minimalPool, edits: []string{"spec.service={type: LoadBalancer, loadBalancerClass: 'a b'}"}, refused: "loadBalancerClass is [prefix/]name"},
		{name: "pool: a class for a load balancer", base: minimalPool, before: []string{"spec.service={type: NodePort}"}, edits: []string{"spec.service={type: LoadBalancer, loadBalancerClass: a/b}"}},
		{name: "pool: another class", base: minimalPool, before: []string{"spec.service={type: LoadBalancer, loadBalancerClass: a/b}"}, edits: []string{"spec.service={type: LoadBalancer, loadBalancerClass: a/c}"}, refused: "set type ClusterIP first"},
		{name: "pool: a class no more", base: minimalPool, before: []string{"spec.service={type: LoadBalancer, loadBalancerClass: a/b}"}, edits: []string{"spec.service={type: LoadBalancer}"}, refused: "set type ClusterIP first"},
		{name: "pool: no load balancer any more", base: minimalPool, before: []string{"spec.service={type: LoadBalancer, loadBalancerClass: a/b}"}, edits: []string{"spec.service={type: ClusterIP}"}},
		{name: "pool: a Service's labels", base: minimalPool, edits: []string{"spec.service={labels: {farpool.dev/pool: b}}"}, refused: "the operator sets the labels farpool.dev/*"},
		{name: "pool: a Service's label's name", base: minimalPool, edits: []string{"spec.service={labels: {'a b': b}}"}, refused: "a label's name is"},
		{name: "pool: a Service's annotation's name", base: minimalPool, edits: []string{"spec.service={annotations: {'a b': b}}"}, refused: "an annotation's name is"},
		{name: "pool: named as another's Service", base: minimalPool, edits: []string{"metadata.name=demo-nodes"}, refused: "a pool's name does not end with -nodes"},
		{name: "pool: a password of one's own", base: minimalPool, before: unchanged, edits: []string{"spec.security={password: Secret, passwordSecret: {name: mine}}"}},
		{name: "pool: a password by its key", base: minimalPool, edits: []string{"spec.security={password: Secret, passwordSecret: {name: mine, key: redis-password}}"}},
		{name: "pool: a password of no Secret", base: minimalPool, edits: []string{"spec.security={password: Secret}"}, refused: "passwordSecret must be set exactly when security.password is Secret"},
		{name: "pool: a Secret for nothing", base: minimalPool, edits: []string{"spec.security={passwordSecret: {name: mine}}"}, refused: "passwordSecret must be set exactly when security.password is Secret"},
		{name: "pool: no key", base: minimalPool, edits: []string{"spec.security={password: Secret, passwordSecret: {name: mine, key: ../other}}"}, refused: "passwordSecret.key"},
		{name: "pool: the operator's own Secret", base: minimalPool, edits: []string{"spec.security={password: Secret, passwordSecret: {name: cache-password}}"}, refused: "keep your own under another name"},
		{name: "pool: node selector changed", base: minimalPool, before: unchanged, edits: []string{"spec.memory.pools.0.pod.nodeSelector={a: b}"}},
		{name: "pool: same memory in other words", base: minimalPool, before: unchanged, edits: []string{"spec.memory.pools.0.lend=262144Ki"}},
		{name: "pool: memory grown", base: minimalPool, before: unchanged, edits: []string{"spec.memory.pools.0.lend=512Mi"}, refused: "lend is fixed at creation"},
		{name: "pool: memory scaled", base: minimalPool, before: unchanged, edits: []string{"spec.memory.pools.0.replicas=3"}},
		{name: "pool: memory of RACE scaled", base: minimalPool, before: []string{race}, edits: []string{race, "spec.memory.pools.0.replicas=3"}},
		{name: "pool: workers of memory nodes", base: minimalPool, edits: []string{"spec.memory.pools.0.workers=64"}},
		{name: "pool: workers of memory nodes later", base: minimalPool, before: unchanged, edits: []string{"spec.memory.pools.0.workers=4"}},
		{name: "pool: too many workers of memory nodes", base: minimalPool, edits: []string{"spec.memory.pools.0.workers=65"}, refused: "less than or equal to 64"},
		{name: "pool: memory scaled to nothing", base: minimalPool, before: unchanged, edits: []string{"spec.memory.pools.0.replicas=0"}, refused: "no memory pool has memory nodes"},
		{name: "pool: memory scaled too far", base: minimalPool, before: unchanged, edits: []string{"spec.memory.pools.0.replicas=257"}, refused: "less than or equal to 256"},
		{name: "pool: memory of RACE grown", base: minimalPool, before: []string{race}, edits: []string{race, "spec.memory.pools.0.lend=512Mi"}, refused: "lend is fixed at creation"},
		{name: "pool: approval of resizes", base: minimalPool, before: []string{race}, edits: []string{race, "spec.resize={approval: Required}"}},
		{name: "pool: approval beforehand", base: minimalPool, edits: []string{race, "spec.resize={approval: Approved}"}, refused: `supported values: "Automatic", "Required"`},
		{name: "pool: memory pool added", base: minimalPool, before: unchanged, edits: []string{"spec.memory.pools=[{name: memory, replicas: 2, lend: 256Mi}, {name: more, replicas: 1, lend: 512Mi}]"}},
		{name: "pool: memory pool taken away", base: minimalPool, before: []string{"spec.memory.pools=[{name: memory, replicas: 2, lend: 256Mi}, {name: more, replicas: 1, lend: 512Mi}]"}, edits: []string{"spec.memory.pools=[{name: more, replicas: 1, lend: 512Mi}]"}},
		{name: "pool: memory pool added, and another with other memory", base: minimalPool, before: unchanged, edits: []string{"spec.memory.pools=[{name: more, replicas: 1, lend: 512Mi}, {name: memory, replicas: 2, lend: 512Mi}]"}, refused: "lend is fixed at creation"},
		{name: "pool: TLS of a Secret", base: minimalPool, edits: []string{"spec.security={resp: {tls: {mode: Secret, secretName: mine}}}"}},
		{name: "pool: TLS of no Secret", base: minimalPool, edits: []string{"spec.security={resp: {tls: {mode: Secret}}}"}, refused: "tls.secretName must be set exactly when tls.mode is Secret"},
		{name: "pool: a Secret that is not used for TLS", base: minimalPool, edits: []string{"spec.security={resp: {tls: {mode: Generated, secretName: mine}}}"}, refused: "tls.secretName must be set exactly when tls.mode is Secret"},
		{name: "pool: TLS of the operator's own Secret", base: minimalPool, edits: []string{"spec.security={resp: {tls: {mode: Secret, secretName: cache-resp-tls}}}"}, refused: "names a Secret that the operator makes"},
		{name: "pool: a password in the Secret of TLS", base: minimalPool, edits: []string{"spec.security={password: Secret, passwordSecret: {name: cache-resp-tls}}"}, refused: "names a Secret that the operator makes"},
		{name: "pool: names for a certificate of people", base: minimalPool, edits: []string{"spec.security={resp: {tls: {mode: Secret, secretName: mine, dnsNames: [a.example.com]}}}"}, refused: "tls.dnsNames are of certificates that the operator makes"},
		{name: "pool: a name that is none", base: minimalPool, edits: []string{"spec.security={resp: {tls: {mode: Generated, dnsNames: ['a_b']}}}"}, refused: "a DNS name has lower-case letters"},
		{name: "pool: TLS of an issuer", base: minimalPool, edits: []string{"spec.security={resp: {tls: {mode: Issuer, issuer: {name: letsencrypt, kind: ClusterIssuer}, dnsNames: [cache.example.com], duration: 2160h, renewBefore: 360h30m}}}"}},
		{name: "pool: TLS of an external issuer", base: minimalPool, edits: []string{"spec.security={resp: {tls: {mode: Issuer, issuer: {name: step, kind: StepIssuer, group: certmanager.step.sm}}}}"}},
		{name: "pool: TLS of no issuer", base: minimalPool, edits: []string{"spec.security={resp: {tls: {mode: Issuer}}}"}, refused: "tls.issuer must be set exactly when tls.mode is Issuer"},
		{name: "pool: an issuer that is not used", base: minimalPool, edits: []string{"spec.security={resp: {tls: {mode: Generated, issuer: {name: a}}}}"}, refused: "tls.issuer must be set exactly when tls.mode is Issuer"},
		{name: "pool: an issuer and a Secret", base: minimalPool, edits: []string{"spec.security={resp: {tls: {mode: Issuer, issuer: {name: a}, secretName: mine}}}"}, refused: "tls.secretName must be set exactly when tls.mode is Secret"},
		{name: "pool: an issuer without a name", base: minimalPool, edits: []string{"spec.security={resp: {tls: {mode: Issuer, issuer: {kind: ClusterIssuer}}}}"}, refused: "Required value"},
		{name: "pool: an issuer of a group that is none", base: minimalPool, edits: []string{"spec.security={resp: {tls: {mode: Issuer, issuer: {name: a, group: a/b}}}}"}, refused: "should match"},
		{name: "pool: an issuer of a kind that is none", base: minimalPool, edits: []string{"spec.security={resp: {tls: {mode: Issuer, issuer: {name: a, kind: a/b}}}}"}, refused: "should match"},
		{name: "pool: a duration of a certificate of the operator", base: minimalPool, edits: []string{"spec.security={resp: {tls: {mode: Generated, duration: 2160h}}}"}, refused: "tls.duration and tls.renewBefore are of certificates that an issuer signs"},
		{name: "pool: a renewal of a certificate of the operator", base: minimalPool, edits: []string{"spec.security={resp: {tls: {mode: Generated, renewBefore: 1h}}}"}, refused: "tls.duration and tls.renewBefore are of certificates that an issuer signs"},
		{name: "pool: a duration in days", base: minimalPool, edits: []string{"spec.security={resp: {tls: {mode: Issuer, issuer: {name: a}, duration: 90d}}}"}, refused: "a duration is in hours, minutes and seconds"},
		{name: "pool: a duration of a minute", base: minimalPool, edits: []string{"spec.security={resp: {tls: {mode: Issuer, issuer: {name: a}, duration: 1m}}}"}, refused: "a duration is in hours, minutes and seconds"},
		{name: "pool: a renewal as long as the duration", base: minimalPool, edits: []string{"spec.security={resp: {tls: {mode: Issuer, issuer: {name: a}, duration: 24h, renewBefore: 24h}}}"}, refused: "tls.renewBefore is shorter than tls.duration"},
		{name: "pool: a renewal as long as the usual duration", base: minimalPool, edits: []string{"spec.security={resp: {tls: {mode: Issuer, issuer: {name: a}, renewBefore: 2160h}}}"}, refused: "tls.renewBefore is shorter than tls.duration"},
		{name: "pool: TLS of an unknown kind", base: minimalPool, edits: []string{"spec.security={resp: {tls: {mode: Enabled}}}"}, refused: "Unsupported value"},
		{name: "pool: TLS as if nothing was said of it", base: minimalPool, edits: []string{"spec.security={resp: {}}"}},
		{name: "pool: memory pool with two words", base: minimalPool, edits: []string{"spec.memory.pools.0.name=east-a"}, refused: "a memory pool's name has no '-'"},
		{name: "pool: compute pool with two words", base: minimalPool, edits: []string{"spec.compute.pools.0.name=east-a"}, refused: "a compute pool's name has no '-'"},
		{name: "pool: memory pool with a capital", base: minimalPool, edits: []string{"spec.memory.pools.0.name=East"}, refused: "spec.memory.pools[0].name"},
		{name: "pool: memory pool renamed", base: minimalPool, before: unchanged, edits: []string{"spec.memory.pools.0.name=other"}},
		{name: "pool: index changed", base: minimalPool, before: unchanged, edits: []string{"spec.index={rcuckoo: {entryBytes: 32}}"}, refused: "spec.index is fixed at creation"},
		{name: "pool: index spelt out", base: minimalPool, before: unchanged, edits: []string{"spec.index={protocol: RCuckoo, rcuckoo: {entryBytes: 16, entriesPerRow: 8}}"}},
		{name: "pool: policy changed", base: minimalPool, before: unchanged, edits: []string{"spec.dataPolicy=Store"}, refused: "spec.dataPolicy is fixed at creation"},
		{name: "pool: version set later", base: minimalPool, before: unchanged, edits: []string{"spec.version=v2"}},
		{name: "pool: version changed", base: minimalPool, before: []string{"spec.version=v1"}, edits: []string{"spec.version=v2"}},
		{name: "pool: version removed", base: minimalPool, before: []string{"spec.version=v1"}, edits: []string{"spec.image=registry:5000/dataplane@sha256:" + strings.Repeat("0a", 32)}},
		{name: "pool: version and image", base: minimalPool, before: unchanged, edits: []string{"spec.version=v1", "spec.image=a/b:1"}, refused: "spec.version and spec.image both name the image"},
		{name: "pool: image", base: minimalPool, edits: []string{"spec.image='a b'"}, refused: "image is [registry[:port]/]repository[:tag]"},
		{name: "pool: image with everything", base: minimalPool, edits: []string{"spec.image=localhost:5000/far_pool/data-plane:v1.2_3@sha256:" + strings.Repeat("0f", 32), "spec.imagePullPolicy=Always", "spec.imagePullSecrets=[one, two]"}},
		{name: "pool: image alone", base: minimalPool, edits: []string{"spec.image=dataplane"}},
		{name: "pool: image with a short digest", base: minimalPool, edits: []string{"spec.image=a/b@sha256:12"}, refused: "a digest of 64 hexadecimal digits"},
		{name: "pool: image with another digest", base: minimalPool, edits: []string{"spec.image=a/b@md5:" + strings.Repeat("0f", 16)}, refused: "a digest of 64 hexadecimal digits"},
		{name: "pool: image without a name", base: minimalPool, edits: []string{"spec.image=':v1'"}, refused: "image is [registry[:port]/]repository[:tag]"},
		{name: "pool: pull policy", base: minimalPool, edits: []string{"spec.imagePullPolicy=Sometimes"}, refused: `supported values: "Always", "IfNotPresent", "Never"`},
		{name: "pool: a pull secret twice", base: minimalPool, edits: []string{"spec.imagePullSecrets=[one, one]"}, refused: "Duplicate value"},
		{name: "pool: a pull secret with another name", base: minimalPool, edits: []string{"spec.imagePullSecrets=[One]"}, refused: "the name of an object has lower-case letters"},
		{name: "pool: epoch moves on", base: minimalPool, before: []string{"status.shardMap={name: a, epoch: 3}"}, edits: []string{"status.shardMap={name: a, epoch: 4}"}},
		{name: "pool: failure timeout", base: minimalPool, edits: []string{"spec.failureTimeoutMilliseconds=500"}},
		{name: "pool: failure timeout of a minute", base: minimalPool, edits: []string{"spec.failureTimeoutMilliseconds=60000"}},
		{name: "pool: failure timeout shorter than TCP's retries", base: minimalPool, edits: []string{"spec.failureTimeoutMilliseconds=499"}, refused: "set at least 500, or leave it out for 2000"},
		{name: "pool: failure timeout of nothing", base: minimalPool, edits: []string{"spec.failureTimeoutMilliseconds=0"}, refused: "greater than or equal to 10"},
		{name: "pool: failure timeout of an hour", base: minimalPool, edits: []string{"spec.failureTimeoutMilliseconds=3600000"}, refused: "less than or equal to 60000"},
		{name: "pool: failure timeout with a unit", base: minimalPool, edits: []string{"spec.failureTimeoutMilliseconds=2s"}, refused: "spec.failureTimeoutMilliseconds"},
		{name: "pool: failure timeout kept", base: minimalPool, before: []string{"spec.failureTimeoutMilliseconds=2000"}, edits: []string{"spec.failureTimeoutMilliseconds=2000"}},
		{name: "pool: failure timeout changed", base: minimalPool, before: []string{"spec.failureTimeoutMilliseconds=2000"}, edits: []string{"spec.failureTimeoutMilliseconds=3000"}, refused: "spec.failureTimeoutMilliseconds is fixed at creation"},
		{name: "pool: shared memory set later", base: minimalPool, before: unchanged, edits: []string{"spec.network.sharedMemory={hostPath: /run/farpool}"}, refused: "spec.network.sharedMemory is fixed at creation"},
		{name: "pool: shared memory moved", base: minimalPool, before: []string{"spec.network.sharedMemory={hostPath: /run/farpool}"}, edits: []string{"spec.network.sharedMemory={hostPath: /run/other}"}, refused: "spec.network.sharedMemory is fixed at creation"},
		{name: "pool: failure timeout set later", base: minimalPool, before: unchanged, edits: []string{"spec.failureTimeoutMilliseconds=3000"}, refused: "spec.failureTimeoutMilliseconds is fixed at creation"},
		{name: "pool: process of nobody", base: minimalPool, edits: []string{"status.processes=[{process: '1', name: a, podUID: b}]"}, refused: "status.processes"},
		{name: "pool: epoch goes back", base: minimalPool, before: []string{"status.shardMap={name: a, epoch: 3}"}, edits: []string{"status.shardMap={name: a, epoch: 2}"}, refused: "epochs never go back"},

		{name: "map: minimal", base: minimalMap},
		{name: "map: RACE", base: minimalMap, edits: []string{"spec.nodes.0.rcuckoo=", "spec.nodes.0.lockRegion=", "spec.nodes.0.race={groups: 5000}"}},
		{name: "map: Outback", base: minimalMap, edits: []string{"spec.nodes.0.rcuckoo=", "spec.nodes.0.lockRegion=", "spec.nodes.0.outback={buckets: 2147483648}"}},
		{name: "map: Outback without buckets", base: minimalMap, edits: []string{"spec.nodes.0.rcuckoo=", "spec.nodes.0.lockRegion=", "spec.nodes.0.outback={buckets: 0}"}, refused: "greater than or equal to 1"},
		{name: "map: Outback of too many buckets", base: minimalMap, edits: []string{"spec.nodes.0.rcuckoo=", "spec.nodes.0.lockRegion=", "spec.nodes.0.outback={buckets: 2147483649}"}, refused: "less than or equal to 2147483648"},
		{name: "map: Outback with locks", base: minimalMap, edits: []string{"spec.nodes.0.rcuckoo=", "spec.nodes.0.outback={buckets: 64}"}, refused: "the geometry of one protocol"},
		{name: "map: RACE and Outback", base: minimalMap, edits: []string{"spec.nodes.0.rcuckoo=", "spec.nodes.0.lockRegion=", "spec.nodes.0.race={groups: 5000}", "spec.nodes.0.outback={buckets: 64}"}, refused: "the geometry of one protocol"},
		{name: "map: two geometries", base: minimalMap, edits: []string{"spec.nodes.0.race={groups: 5000}"}, refused: "the geometry of one protocol"},
		{name: "map: no geometry", base: minimalMap, edits: []string{"spec.nodes.0.rcuckoo=", "spec.nodes.0.lockRegion="}, refused: "the geometry of one protocol"},
		{name: "map: RCuckoo without locks", base: minimalMap, edits: []string{"spec.nodes.0.lockRegion="}, refused: "the geometry of one protocol"},
		{name: "map: 4096 entries", base: minimalMap, edits: []string{"spec.directory.depth=12", directory(4096)}},
		{name: "map: every part departs", base: minimalMap, edits: []string{"spec.directory.depth=12", directory(4096), "spec.move=8388607", departures(everyPart...)}},
		{name: "map: every part departs, unchanged", base: minimalMap, before: []string{"spec.directory.depth=12", directory(4096), "spec.move=7", departures(everyPart...)},
			edits: []string{"spec.directory.depth=12", directory(4096), "spec.move=7", departures(everyPart...)}},
		{name: "map: a move that is finished", base: minimalMap, edits: []string{"spec.move=7"}},
		{name: "map: departures in no move", base: minimalMap, edits: []string{departures(0)}, refused: "parts depart in a move, which has a number"},
		{name: "map: departures out of order", base: minimalMap, edits: []string{"spec.move=7", departures(1, 0)}, refused: "departures are sorted by part"},
		{name: "map: departure of no part", base: minimalMap, edits: []string{"spec.move=7", departures(1, 2)}, refused: "a departure names its part by index"},
		{name: "map: too many moves", base: minimalMap, edits: []string{"spec.move=8388608"}, refused: "less than or equal to 8388607"},
		{name: "map: move changed", base: minimalMap, before: []string{"spec.move=7"}, edits: []string{"spec.move=8"}, refused: "a ShardMap never changes"},
		{name: "map: nothing changed", base: minimalMap, before: unchanged},
		{name: "map: status changed", base: minimalMap, before: unchanged, edits: []string{"status.conditions=[{type: Published, status: 'True', reason: Published, message: '', lastTransitionTime: '2026-01-01T00:00:00Z'}]"}},
		{name: "map: name of another epoch", base: minimalMap, edits: []string{"metadata.name=cache-0000000004"}, refused: "the name claims the epoch"},
		{name: "map: key of another epoch", base: minimalMap, edits: []string{"spec.epoch=4"}, refused: "epochKey is the epoch in ten digits"},
		{name: "map: changed", base: minimalMap, before: unchanged, edits: []string{"spec.nodes.0.state=Stopped"}, refused: "a ShardMap never changes"},
		{name: "map: table of no node", base: minimalMap, edits: []string{"spec.tables.0.node=1"}, refused: "names its node by index"},
		{name: "map: ragged directory", base: minimalMap, edits: []string{directory(3)}, refused: "depth d has 2^d entries"},
		{name: "map: epoch zero", base: minimalMap, edits: []string{"spec.epoch=0", "spec.epochKey='0000000000'", "metadata.name=cache-0000000000"}, refused: "greater than or equal to 1"},
		{name: "map: incarnation is no number", base: minimalMap, edits: []string{"spec.nodes.0.incarnation=x"}, refused: "incarnation"},
		{name: "map: no nodes", base: minimalMap, edits: []string{"spec.nodes=[]", "spec.tables=[]"}, refused: "spec.nodes"},

		{name: "lease: minimal", base: minimalLease},
		{name: "lease: nothing changed", base: minimalLease, before: unchanged},
		{name: "lease: owner and status written", base: minimalLease, before: unchanged, edits: []string{
			"metadata.labels={farpool.dev/pool: cache}", "status={step: Fencing, fenced: 1/2, processes: [00c0ffee00c0ffee], nodes: [{name: cache-memory-0, incarnation: '7', message: x}]}"}},
		{name: "lease: 256 clients", base: minimalLease, edits: []string{clients(256)}},
		{name: "lease: 256 clients, unchanged", base: minimalLease, before: []string{clients(256)}, edits: []string{clients(256)}},
		{name: "lease: time of death", base: minimalLease, edits: []string{"spec.clients.0.diedAt='2026-01-01T00:00:00Z'"}},
		{name: "lease: of a memory node's report", base: minimalLease, edits: []string{"spec.cause=MemoryNodeReport"}},
		{name: "lease: of a process without a name", base: minimalLease, edits: []string{"spec.clients=[{process: 00c0ffee00c0ffee}]"}},
		{name: "lease: requested by name", base: minimalLease, edits: []string{requested, "spec.clients=[{name: cache-shards-7d4f-x2x9p}]"}},
		{name: "lease: two lives of one pod", base: minimalLease, edits: []string{"spec.clients=[{name: a, process: 00c0ffee00c0ffee}, {name: a, process: 00c0ffee00c0ffef}]"}},
		{name: "lease: client twice", base: minimalLease, edits: []string{"spec.clients=[{name: a, process: 00c0ffee00c0ffee}, {name: a, process: 00c0ffee00c0ffee}]"}, refused: "Duplicate value"},
		{name: "lease: name twice", base: minimalLease, edits: []string{requested, "spec.clients=[{name: a}, {name: a}]"}, refused: "Duplicate value"},
		{name: "lease: by name, but not requested", base: minimalLease, edits: []string{"spec.clients=[{name: a}]"}, refused: "set cause to Requested, or give each client its process"},
		{name: "lease: nobody", base: minimalLease, edits: []string{requested, "spec.clients=[{}]"}, refused: "a client has a name"},
		{name: "lease: no clients", base: minimalLease, edits: []string{"spec.clients=[]"}, refused: "spec.clients"},
		{name: "lease: 257 clients", base: minimalLease, edits: []string{clients(257)}, refused: "Too many"},
		{name: "lease: process in capitals", base: minimalLease, edits: []string{"spec.clients.0.process=00C0FFEE00C0FFEE"}, refused: "process has 16 hexadecimal digits"},
		{name: "lease: short process", base: minimalLease, edits: []string{"spec.clients.0.process=c0ffee"}, refused: "copy it from status.processes"},
		{name: "lease: process zero", base: minimalLease, edits: []string{"spec.clients.0.process='0000000000000000'"}, refused: "is not zero"},
		{name: "lease: unknown cause", base: minimalLease, edits: []string{"spec.cause=HeartbeatExpired"}, refused: `supported values: "PodTerminated", "NodeOutOfService", "MemoryNodeReport", "Requested"`},
		{name: "lease: no cause", base: minimalLease, edits: []string{"spec.cause="}, refused: "spec.cause: Required"},
		{name: "lease: no pool", base: minimalLease, edits: []string{"spec.poolRef="}, refused: "spec.poolRef: Required"},
		{name: "lease: nameless pool", base: minimalLease, edits: []string{"spec.poolRef.name=''"}, refused: "spec.poolRef.name"},
		{name: "lease: another client", base: minimalLease, before: unchanged, edits: []string{"spec.clients.0.process=00c0ffee00c0ffef"}, refused: "delete it and create another"},
		{name: "lease: another cause", base: minimalLease, before: unchanged, edits: []string{requested}, refused: "delete it and create another"},
		{name: "lease: unknown step", base: minimalLease, before: unchanged, edits: []string{"status.step=Thinking"}, refused: "status.step"},

		{name: "pool: capacity", base: minimalPool, edits: []string{"spec.memory.pools.0.capacity={maxReplicas: 8}"}},
		{name: "pool: capacity without a ceiling", base: minimalPool, edits: []string{race, "spec.memory.pools.0.capacity={fillPercent: 50}"}, refused: "maxReplicas: Required"},
		{name: "pool: capacity beyond what fits", base: minimalPool, edits: []string{race, "spec.memory.pools.0.capacity={fillPercent: 100, maxReplicas: 8}"}, refused: "less than or equal to 95"},
		{name: "pool: no evacuation", base: minimalPool, before: []string{race}, edits: []string{race, "spec.resize={evacuation: Disabled}"}},
		{name: "pool: unknown evacuation", base: minimalPool, edits: []string{race, "spec.resize={evacuation: Perhaps}"}, refused: `supported values: "Automatic", "Disabled"`},
		{name: "memory node pool: scaled", base: minimalMemoryNodePool, before: unchanged, edits: []string{"spec.replicas=5"}},
		{name: "memory node pool: to nothing", base: minimalMemoryNodePool, before: unchanged, edits: []string{"spec.replicas=0"}},
		{name: "memory node pool: to less than nothing", base: minimalMemoryNodePool, before: unchanged, edits: []string{"spec.replicas=-1"}, refused: "spec.replicas"},
		{name: "memory node pool: of a memory pool that the spec has lost", base: minimalMemoryNodePool, before: unchanged, edits: []string{"spec={poolName: cache, memoryPool: memory, declared: 0, replicas: 0, entry: {name: memory, replicas: 0, lend: 256Mi}}"}},
		{name: "memory node pool: with the entry of another memory pool", base: minimalMemoryNodePool, edits: []string{"spec.entry={name: other, replicas: 3, lend: 256Mi}"}, refused: "edit the KVPool"},
		{name: "memory node pool: with other memory", base: minimalMemoryNodePool, before: []string{"spec.entry={name: memory, replicas: 3, lend: 256Mi}"}, edits: []string{"spec.entry={name: memory, replicas: 3, lend: 512Mi}"}, refused: "lend is fixed at creation"},
		{name: "memory node pool: of another memory pool", base: minimalMemoryNodePool, before: unchanged, edits: []string{"spec.memoryPool=other"}, refused: "scale it, or edit the KVPool"},
		{name: "compute shard pool: to nothing", base: minimalComputeShardPool, before: unchanged, edits: []string{"spec.replicas=0"}},
		{name: "compute shard pool: beyond the bound", base: minimalComputeShardPool, before: unchanged, edits: []string{"spec.replicas=1025"}, refused: "spec.replicas"},
		{name: "compute shard pool: of another pool", base: minimalComputeShardPool, before: unchanged, edits: []string{"spec.poolName=other"}, refused: "scale it, or edit the KVPool"},
		{name: "resize: minimal", base: minimalResize},
		{name: "resize: with an evacuation", base: minimalResize, edits: []string{"spec.evacuates=[cache-memory-0]"}},
		{name: "resize: another evacuation", base: minimalResize, before: unchanged, edits: []string{"spec.evacuates=[cache-memory-0]"}, refused: "edit replicas or leastTables in the KVPool"},
		{name: "resize: approved", base: minimalResize, before: unchanged, edits: []string{"spec.approval=Approved"}},
		{name: "resize: approval taken back", base: minimalResize, before: []string{"spec.approval=Approved"}, refused: "what has been approved is not taken back"},
		{name: "resize: approval no longer needed", base: minimalResize, before: unchanged, edits: []string{"spec.approval=Automatic"}, refused: "from Required to Approved alone"},
		{name: "resize: another aim", base: minimalResize, before: unchanged, edits: []string{"spec.pools.0.to=6"}, refused: "edit replicas or leastTables in the KVPool"},
		{name: "resize: of another pool", base: minimalResize, before: unchanged, edits: []string{"spec.poolName=other"}, refused: "edit replicas or leastTables in the KVPool"},
		{name: "resize: of tables", base: minimalResize, edits: []string{"spec.tables={from: 1, to: 8}"}},
		{name: "resize: of tables later", base: minimalResize, before: unchanged, edits: []string{"spec.tables={from: 1, to: 8}"}, refused: "edit replicas or leastTables in the KVPool"},
		{name: "resize: of more tables", base: minimalResize, before: []string{"spec.tables={from: 1, to: 8}"}, edits: []string{"spec.tables={from: 1, to: 16}"}, refused: "edit replicas or leastTables in the KVPool"},
		{name: "resize: of more tables than there can be", base: minimalResize, edits: []string{"spec.tables={from: 1, to: 32768}"}, refused: "less than or equal to 16384"},
		{name: "resize: no approval", base: minimalResize, edits: []string{"spec.approval="}, refused: "spec.approval: Required"},
		{name: "resize: aborted", base: minimalResize, before: unchanged, edits: []string{"spec.requestedState=Abort"}},
		{name: "resize: an abort taken back", base: minimalResize, before: []string{"spec.requestedState=Abort"}, refused: "an abort is not taken back"},
		{name: "resize: is over", base: minimalResize, before: []string{"status={stage: Moving}"}, edits: []string{"status={stage: Aborted}"}},
		{name: "resize: over, and its condition changes", base: minimalResize, before: []string{"status={stage: Aborted}"}, edits: []string{"status={stage: Aborted, change: 3 to 5}"}},
		{name: "resize: goes on after its end", base: minimalResize, before: []string{"status={stage: Aborted}"}, edits: []string{"status={stage: Moving}"}, refused: "a resize that is over stays so"},
		{name: "resize: forgets its end", base: minimalResize, before: []string{"status={stage: Complete}"}, edits: []string{"status={change: 3 to 5}"}, refused: "a resize that is over stays so"},
		{name: "resize: unknown stage", base: minimalResize, before: unchanged, edits: []string{"status.stage=Thinking"}, refused: "status.stage"},

		{name: "map: memory of an earlier life", base: minimalMap, edits: []string{"spec.nodes.0.memoryIncarnation='17'"}},
		{name: "node: minimal", base: minimalNode},
		{name: "node: loss accepted", base: minimalNode, before: unchanged, edits: []string{"metadata.annotations={farpool.dev/accept-data-loss: '7'}"}},
		{name: "node: changed", base: minimalNode, before: unchanged, edits: []string{"spec.templateVersion=9"}, refused: "edit the KVPool"},
		{name: "node: upgraded", base: minimalNode, before: unchanged, edits: []string{"spec.image=other"}},
		{name: "node: no template", base: minimalNode, edits: []string{"spec.templateVersion=0"}, refused: "greater than or equal to 1"},
	}
}

func TestValidation(t *testing.T) {
	loaded := validators(t)
	for _, c := range validationCases() {
		t.Run(c.name, func(t *testing.T) {
			object := document(t, c.base, c.edits)
			var old map[string]any
			if c.before != nil {
				old = document(t, c.base, c.before)
			}
			errs, cost := loaded[object["kind"].(string)].check(object, old)
			switch {
			case c.refused == "" && len(errs) > 0:
				t.Errorf("refused: %v", errs.ToAggregate())
			case c.refused != "" && len(errs) == 0:
				t.Errorf("accepted, but must be refused with %q", c.refused)
			case c.refused != "" && !strings.Contains(errs.ToAggregate().Error(), c.refused):
				t.Errorf("refused without saying %q: %v", c.refused, errs.ToAggregate())
			}
			if cost > celconfig.RuntimeCELCostBudget/10 {
				t.Errorf("the rules cost %d, more than a tenth of the API server's budget", cost)
			}
		})
	}
}

// What is left out of a pool that shapes remote memory is persisted, so that a later operator's defaults cannot change it.
func TestDefaultsArePersisted(t *testing.T) {
	pool := document(t, minimalPool, []string{"spec.index={rcuckoo: {entryBytes: 32}}"})
	if errs, _ := validators(t)["KVPool"].check(pool, nil); len(errs) > 0 {
		t.Fatal(errs.ToAggregate())
	}
	spec, err := json.Marshal(pool["spec"])
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"index":{"protocol":"RCuckoo","rcuckoo":{"entriesPerRow":8,"entryBytes":32,"rowsPerLock":16,"tablePercent":25}}`,
		`"dataPolicy":"Cache"`, `"management":"Managed"`, `"security":{"password":"Generated"}`, `"workers":1`,
	} {
		if !strings.Contains(string(spec), want) {
			t.Errorf("no %s in %s", want, spec)
		}
	}
}

// Rules over strings and lists are affordable, and objects stay small, only where everything has a bound.
func TestEverythingIsBounded(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(crdDirectory, "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		crd := readCRD(t, file)
		root := crd.Spec.Versions[0].Schema.OpenAPIV3Schema
		for _, part := range []string{"spec", "status"} {
			schema := root.Properties[part]
			bounded(t, crd.Spec.Names.Kind+"."+part, &schema)
		}
	}
}

func bounded(t *testing.T, path string, schema *apiextensionsv1.JSONSchemaProps) {
	t.Helper()
	if schema.XIntOrString || strings.HasSuffix(path, ".requests") || strings.HasSuffix(path, ".limits{}") {
		return
	}
	if strings.HasSuffix(path, ".pod.affinity") || strings.HasSuffix(path, ".pod.topologySpreadConstraints[]") {
		return // Kubernetes' own types, which no rule reads
	}
	switch schema.Type {
	case "string":
		if schema.MaxLength == nil && len(schema.Enum) == 0 && schema.Format == "" {
			t.Errorf("%s: a string without maxLength, enum or format", path)
		}
	case "array":
		if schema.MaxItems == nil {
			t.Errorf("%s: a list without maxItems", path)
		}
		if schema.XListType == nil {
			t.Errorf("%s: a list without listType", path)
		}
		bounded(t, path+"[]", schema.Items.Schema)
	case "boolean":
		t.Errorf("%s: a boolean says nothing and can become no third thing: use an enum", path)
	case "number":
		t.Errorf("%s: a floating-point number does not survive every reader", path)
	case "object":
		if schema.AdditionalProperties != nil && schema.AdditionalProperties.Schema != nil && !schema.AdditionalProperties.Schema.XIntOrString {
			if schema.MaxProperties == nil {
				t.Errorf("%s: a map without maxProperties", path)
			}
		}
		if schema.Description == "" && !strings.HasSuffix(path, "[]") && !strings.HasSuffix(path, "status") {
			t.Errorf("%s: no description", path)
		}
		for name, property := range schema.Properties {
			bounded(t, path+"."+name, &property)
		}
	}
}

func TestSamplesAreAccepted(t *testing.T) {
	loaded := validators(t)
	files, err := filepath.Glob("../../config/samples/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no samples: %v", err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		object := parse(t, string(data)).(map[string]any)
		kind := object["kind"].(string)
		typed := map[string]any{"KVPool": &v1alpha1.KVPool{}, "RepairLease": &v1alpha1.RepairLease{}}[kind]
		if err := yaml.UnmarshalStrict(data, typed); err != nil {
			t.Errorf("%s: %v", file, err)
		}
		if errs, _ := loaded[kind].check(object, nil); len(errs) > 0 {
			t.Errorf("%s: %v", file, errs.ToAggregate())
		}
	}
}

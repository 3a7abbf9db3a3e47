// SPDX-License-Identifier: Apache-2.0

package render

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"sigs.k8s.io/yaml"

	"farpool.dev/farpool/api/v1alpha1"
)

var rewrite = flag.Bool("rewrite", false, "write golden files anew; those of a released template version may never change")

func pools(t *testing.T) map[string]Pool {
	t.Helper()
	files, err := filepath.Glob("../../../config/samples/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no samples: %v", err)
	}
	found := map[string]Pool{}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(data, []byte("\nkind: KVPool\n")) {
			continue
		}
		var object v1alpha1.KVPool
		if err := yaml.UnmarshalStrict(data, &object); err != nil {
			t.Fatal(err)
		}
		spec := object.Spec
		// What the API server's defaults add.
		if spec.DataPolicy == "" {
			spec.DataPolicy = v1alpha1.DataPolicyCache
		}
		if spec.Index.Protocol == "" {
			spec.Index = v1alpha1.IndexSpec{Protocol: v1alpha1.ProtocolRCuckoo, RCuckoo: v1alpha1.RCuckooSpec{EntryBytes: 16, EntriesPerRow: 8, RowsPerLock: 16, TablePercent: 25}}
		}
		if spec.Security.Password == "" {
			spec.Security = v1alpha1.SecuritySpec{Password: v1alpha1.PasswordGenerated}
		}
		if spec.Compute != nil {
			for i := range spec.Compute.Pools {
				spec.Compute.Pools[i].Workers = max(spec.Compute.Pools[i].Workers, 1)
			}
		}
		pool := Pool{
			Name: object.Name, Namespace: "shop", UID: "0d9ab0c8-6f0c-4b9b-a5a5-6a3c2b8f0b11", Spec: spec,
			Image: "farpool/dataplane:v0.1.0", OperatorNamespace: "farpool-system",
			MapKey: "A6EHv/POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg=",
		}
		if filepath.Base(file) == "kvpool-minimal.yaml" {
			pool.Spec.Compute = nil // golden files show a pool without compute shards
		}
		pool.Guarded = pool.MemoryNodes()
		found[strings.TrimSuffix(filepath.Base(file), ".yaml")] = pool
	}
	return found
}

func document(t *testing.T, object any) string {
	t.Helper()
	raw, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	text, err := yaml.JSONToYAML(raw)
	if err != nil {
		t.Fatal(err)
	}
	return "---\n" + string(text)
}

func compare(t *testing.T, path, got string) {
	t.Helper()
	if *rewrite {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v: make it with go test -rewrite", err)
	}
	if !bytes.Equal(want, []byte(got)) {
		t.Errorf("%s differs. A released template version never changes, or an operator upgrade would restart pods: make a new version.\n%s", path, firstDifference(string(want), got))
	}
}

const firstOfRDMA = 3

func firstDifference(want, got string) string {
	a, b := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return fmt.Sprintf("line %d: %q became %q", i+1, a[i], b[i])
		}
	}
	return fmt.Sprintf("%d lines became %d", len(a), len(b))
}

// Pods and their configuration are frozen for each template version.
func TestTemplatesAreFrozen(t *testing.T) {
	for version := int32(1); version <= Newest; version++ {
		template, err := TemplateOf(version)
		if err != nil {
			t.Fatal(err)
		}
		for name, pool := range pools(t) {
			if pool.Spec.Network.Transport != v1alpha1.TransportTCP && version < firstOfRDMA {
				continue // no operator of that time made such a pool
			}
			var text strings.Builder
			text.WriteString(document(t, Config(pool, template)))
			for _, memoryPool := range pool.Spec.Memory.Pools {
				node := v1alpha1.MemoryNodeName(pool.Name, memoryPool.Name, 0)
				pod, err := template.MemoryPod(pool, memoryPool, node, "6a0fd3c1-1b7e-4e54-a1a5-7a3c2b8f0b22")
				if err != nil {
					t.Fatal(err)
				}
				text.WriteString(document(t, pod))
			}
			for _, computePool := range pool.ComputePools() {
				deployment, err := template.ComputeDeployment(pool, computePool)
				if err != nil {
					t.Fatal(err)
				}
				text.WriteString(document(t, deployment))
			}
			compare(t, filepath.Join("testdata", fmt.Sprintf("template-%d", version), name+".yaml"), text.String())
		}
	}
	if _, err := TemplateOf(Newest + 1); err == nil {
		t.Error("a template of the future is known")
	}
}

// Two pools of a namespace never want the same object, whatever words their names are made of: the last '-' ends the pool's name, as an entry's name has none.
func TestObjectsOfTwoPoolsHaveDifferentNames(t *testing.T) {
	words := []string{"a", "b", "memory", "nodes", "config", "password", "binding", "tls", "client", "resp", "shards"}
	owner := map[string]string{}
	for _, name := range append(words, "a-b", "a-memory", "a-config", "a-memory-b", "a-client", "a-resp", "a-b-client", "a-shards", "a-b-memory") {
		pool := pools(t)["kvpool"]
		pool.Name = name
		pool.Spec.Memory.Pools, pool.Spec.Compute = nil, &v1alpha1.ComputeSpec{}
		names := []string{"Service " + pool.ServiceName(), "Service " + pool.NodesServiceName(), "ConfigMap " + pool.ConfigName(), "Secret " + pool.RESPTLSSecretName(), "Secret " + pool.PasswordSecretName(), "Secret " + pool.BindingSecretName(), "Secret " + *Certificate(pool).GetName()}
		for _, budget := range DisruptionBudgets(pool) {
			names = append(names, "PodDisruptionBudget "+*budget.Name)
		}
		for _, policy := range NetworkPolicies(pool) {
			names = append(names, "NetworkPolicy "+*policy.Name)
		}
		for _, entry := range words {
			for _, ordinal := range []int32{0, 1, 11} {
				node := v1alpha1.MemoryNodeName(name, entry, ordinal)
				names = append(names, "MemoryNode "+node, "Secret "+NodeTLSSecretOf(node))
			}
			names = append(names, "Deployment "+pool.ComputeName(entry), "Scale "+v1alpha1.ScaleName(name, entry), "Secret "+ClientTLSSecretOf(pool.ComputeName(entry)))
		}
		for _, of := range names {
			if other, taken := owner[of]; taken {
				t.Errorf("pools %s and %s both want %s", other, name, of)
			}
			owner[of] = name
		}
	}
}

func TestOtherObjects(t *testing.T) {
	for name, pool := range pools(t) {
		var text strings.Builder
		for _, service := range Services(pool) {
			text.WriteString(document(t, service))
		}
		for _, policy := range NetworkPolicies(pool) {
			text.WriteString(document(t, policy))
		}
		for _, budget := range DisruptionBudgets(pool) {
			text.WriteString(document(t, budget))
		}
		for _, memoryPool := range pool.Spec.Memory.Pools {
			text.WriteString(document(t, MemoryNode(pool, memoryPool, 0, 1)))
		}
		compare(t, filepath.Join("testdata", "objects", name+".yaml"), text.String())
	}
}

// What each way to an RDMA device changes of the pods, beside the first of them, which the sample has.
func TestAttachments(t *testing.T) {
	template, err := TemplateOf(Newest)
	if err != nil {
		t.Fatal(err)
	}
	for name, attachment := range map[string]v1alpha1.AttachmentSpec{
		"shared-without-network": {Type: v1alpha1.AttachmentSharedDevicePlugin, SharedDevicePlugin: &v1alpha1.SharedDevicePluginAttachment{ResourceName: "rdma/hca"}},
		"sriov":                  {Type: v1alpha1.AttachmentSRIOV, SRIOV: &v1alpha1.SRIOVAttachment{ResourceName: "openshift.io/rdma_exclusive_device", Network: "rdma-net"}},
		"dra":                    {Type: v1alpha1.AttachmentDRA, DRA: &v1alpha1.DRAAttachment{ResourceClaimTemplateName: "one-nic", Interface: "eth1"}},
		"host-network":           {Type: v1alpha1.AttachmentHostNetwork, HostNetwork: &v1alpha1.HostNetworkAttachment{ResourceName: "rdma/hca", Interface: "ens2f0"}},
	} {
		pool := pools(t)["kvpool"]
		pool.Spec.Network = v1alpha1.NetworkSpec{Transport: v1alpha1.TransportRoCEv2, Attachment: &attachment}
		memoryPool := pool.Spec.Memory.Pools[0]
		memoryPool.HugePages, memoryPool.Lend = v1alpha1.HugePages1Gi, resource.MustParse("4Gi")
		pod, err := template.MemoryPod(pool, memoryPool, "memory-0", "6a0fd3c1-1b7e-4e54-a1a5-7a3c2b8f0b22")
		if err != nil {
			t.Fatal(err)
		}
		deployment, err := template.ComputeDeployment(pool, pool.Spec.Compute.Pools[0])
		if err != nil {
			t.Fatal(err)
		}
		compare(t, filepath.Join("testdata", "attachments", name+".yaml"),
			document(t, Config(pool, template))+document(t, pod)+document(t, deployment))
	}
}

// A pod has no capability but what locks memory, whatever it is made from.
func TestNoPodIsPrivileged(t *testing.T) {
	for name, pool := range pools(t) {
		pod, err := (template3{}).MemoryPod(pool, pool.Spec.Memory.Pools[0], "memory-0", "uid")
		if err != nil {
			t.Fatal(err)
		}
		security := pod.Spec.Containers[0].SecurityContext
		rdma := pool.Spec.Network.Transport == v1alpha1.TransportRoCEv2
		if *security.AllowPrivilegeEscalation || !*security.ReadOnlyRootFilesystem || security.Privileged != nil || fmt.Sprint(security.Capabilities.Drop) != "[ALL]" {
			t.Errorf("%s: %+v", name, security)
		}
		if added := fmt.Sprint(security.Capabilities.Add); rdma && added != "[IPC_LOCK]" || !rdma && added != "[]" {
			t.Errorf("%s: capabilities %s", name, added)
		}
		if root := *pod.Spec.SecurityContext.RunAsUser == 0; root != rdma || *pod.Spec.SecurityContext.RunAsNonRoot == rdma {
			t.Errorf("%s: as root: %v", name, root)
		}
	}
}

// The memory that a node lends lies in a volume that counts against the container: it comes on top of what the process gets.
func TestLentMemoryIsOnTop(t *testing.T) {
	lent := int64(1) << 30
	for name, c := range map[string]struct {
		wanted         *v1alpha1.Resources
		request, limit string
	}{
		"defaults":      {nil, "1152Mi", "1408Mi"},
		"limit alone":   {&v1alpha1.Resources{Limits: list("memory", "64Mi")}, "1088Mi", "1088Mi"},
		"request alone": {&v1alpha1.Resources{Requests: list("memory", "2Gi")}, "3Gi", "3Gi"},
		"both":          {&v1alpha1.Resources{Requests: list("memory", "1Gi"), Limits: list("memory", "2Gi")}, "2Gi", "3Gi"},
	} {
		got := containerResources(c.wanted, "100m", "128Mi", "384Mi", lent)
		request, limit := (*got.Requests)["memory"], (*got.Limits)["memory"]
		if request.Cmp(resource.MustParse(c.request)) != 0 || limit.Cmp(resource.MustParse(c.limit)) != 0 {
			t.Errorf("%s: request %s, limit %s; want %s, %s", name, request.String(), limit.String(), c.request, c.limit)
		}
	}
}

// A client's lease outlasts the failure timeout, and durations are written as the daemons read them.
func TestFailureTimeout(t *testing.T) {
	for timeout, want := range map[int32]string{
		0:     "failure-timeout = \"2s\"\nlease = \"5s\"\n",
		500:   "failure-timeout = \"500ms\"\nlease = \"5s\"\n",
		1500:  "failure-timeout = \"1500ms\"\nlease = \"5s\"\n",
		3000:  "failure-timeout = \"3s\"\nlease = \"6s\"\n",
		30000: "failure-timeout = \"30s\"\nlease = \"60s\"\n",
	} {
		pool := pools(t)["kvpool"]
		pool.Spec.FailureTimeoutMilliseconds = timeout
		if config := (template1{}).MemoryConfig(pool, pool.Spec.Memory.Pools[0]); !strings.Contains(config, want) {
			t.Errorf("failureTimeoutMilliseconds %d: no %q in\n%s", timeout, want, config)
		}
	}
	roce := pools(t)["kvpool-roce"]
	roce.Spec.FailureTimeoutMilliseconds = 0
	if config, want := (template3{}).MemoryConfig(roce, roce.Spec.Memory.Pools[0]), "failure-timeout = \"100ms\""; !strings.Contains(config, want) {
		t.Errorf("over RoCEv2, nothing said: no %q in\n%s", want, config)
	}
}

func list(name corev1.ResourceName, quantity string) corev1.ResourceList {
	return corev1.ResourceList{name: resource.MustParse(quantity)}
}

func TestRACE(t *testing.T) {
	for version := int32(1); version <= Newest; version++ {
		template, err := TemplateOf(version)
		if err != nil {
			t.Fatal(err)
		}
		pool := pools(t)["kvpool-minimal"]
		pool.Spec.Index = v1alpha1.IndexSpec{Protocol: v1alpha1.ProtocolRACE}
		config := template.MemoryConfig(pool, pool.Spec.Memory.Pools[0])
		if !strings.Contains(config, "protocol = \"race\"\ntable-percent = 25\n") || strings.Contains(config, "entry-bytes") || strings.Contains(config, "tables") {
			t.Errorf("template %d: %s", version, config)
		}
		pool.Spec.Index.RACE = &v1alpha1.RACESpec{TablePercent: 40, Tables: 64, LeastTables: 16}
		if config = template.MemoryConfig(pool, pool.Spec.Memory.Pools[0]); !strings.Contains(config, "table-percent = 40\ntables = 64\ninitial-tables = 16\n") {
			t.Errorf("template %d: %s", version, config)
		}
	}
}

// What a memory node of Outback starts with, and which processors it requests where its memory pool says nothing.
func TestOutback(t *testing.T) {
	for version := int32(1); version <= Newest; version++ {
		template, err := TemplateOf(version)
		if err != nil {
			t.Fatal(err)
		}
		pool := pools(t)["kvpool-minimal"]
		pool.Spec.Index = v1alpha1.IndexSpec{Protocol: v1alpha1.ProtocolOutback}
		for _, c := range []struct {
			workers   int32
			hugePages v1alpha1.HugePages
			wanted    *v1alpha1.Resources
			config    string
			cpu       string
		}{
			{0, "", nil, "protocol = \"outback\"\ntable-percent = 25\nfailure", "500m"},
			{1, "", nil, "table-percent = 25\nfailure", "500m"},
			{4, "", nil, "table-percent = 25\nthreads = 4\nfailure", "2"},
			{4, "", &v1alpha1.Resources{Requests: list("cpu", "3")}, "threads = 4\n", "3"},
			{4, "", &v1alpha1.Resources{Limits: list("cpu", "5")}, "threads = 4\n", "5"},
			{2, v1alpha1.HugePages2Mi, nil, "threads = 2\n", "1"},
		} {
			if c.hugePages != "" && version < 3 {
				continue // no template of that time knows them
			}
			memoryPool := pool.Spec.Memory.Pools[0]
			memoryPool.Workers, memoryPool.HugePages, memoryPool.Resources = c.workers, c.hugePages, c.wanted
			if config := template.MemoryConfig(pool, memoryPool); !strings.Contains(config, c.config) || strings.Contains(config, "entry-bytes") {
				t.Errorf("template %d, %d workers: %s", version, c.workers, config)
			}
			pod, err := template.MemoryPod(pool, memoryPool, "cache-memory-0", "uid")
			if err != nil {
				t.Fatal(err)
			}
			if got := (*pod.Spec.Containers[0].Resources.Requests)[corev1.ResourceCPU]; got.Cmp(resource.MustParse(c.cpu)) != 0 {
				t.Errorf("template %d, %d workers: requests %s, want %s", version, c.workers, got.String(), c.cpu)
			}
		}
	}
}

// Where a pool wants its locks; most say nothing, as other goldens show.
func TestLockPlacement(t *testing.T) {
	template, err := TemplateOf(Newest)
	if err != nil {
		t.Fatal(err)
	}
	for _, placement := range []string{v1alpha1.LocksInHostMemory, v1alpha1.LocksInDeviceMemoryPreferred, v1alpha1.LocksInDeviceMemoryRequired} {
		pool := pools(t)["kvpool-roce"]
		pool.Spec.Locks = &v1alpha1.LocksSpec{Placement: placement}
		compare(t, filepath.Join("testdata", "locks", placement+".toml"), template.MemoryConfig(pool, pool.Spec.Memory.Pools[0]))
	}
}

// Each pool has its own directory of a Kubernetes node, and no process of another pool sees anything of it.
func TestPoolsShareNoDirectory(t *testing.T) {
	pool := pools(t)["kvpool-rich"]
	template, err := TemplateOf(Newest)
	if err != nil {
		t.Fatal(err)
	}
	memory, err := template.MemoryPod(pool, pool.Spec.Memory.Pools[0], "m", "u")
	if err != nil {
		t.Fatal(err)
	}
	compute, err := template.ComputeDeployment(pool, pool.ComputePools()[0])
	if err != nil {
		t.Fatal(err)
	}
	for name, spec := range map[string]*corev1ac.PodSpecApplyConfiguration{"memory node": memory.Spec, "compute shard": compute.Spec.Template.Spec} {
		mounts := 0
		for _, container := range spec.Containers {
			for _, mounted := range container.VolumeMounts {
				if *mounted.Name == "rings" {
					mounts++
					if mounted.SubPath == nil || *mounted.SubPath != string(pool.UID) {
						t.Errorf("%s: container %s sees the directories of all pools", name, *container.Name)
					}
				}
			}
		}
		if mounts != 1 || len(spec.InitContainers) != 1 || strings.Join(spec.InitContainers[0].Command, " ") != "mkdir -p -m 0700 /run/farpool-pools/"+string(pool.UID) {
			t.Errorf("%s: %d mounts, made by %v", name, mounts, spec.InitContainers)
		}
	}
}

// A platform that assigns users refuses pods that choose theirs. Pods over RDMA are root's, which no platform assigns.
func TestUsersAreThePlatformsToChoose(t *testing.T) {
	for sample, chosen := range map[string]bool{"kvpool": false, "kvpool-rich": false, "kvpool-roce": true} {
		pool := pools(t)[sample]
		pool.PlatformUsers = true
		template, err := TemplateOf(Newest)
		if err != nil {
			t.Fatal(err)
		}
		memory, err := template.MemoryPod(pool, pool.Spec.Memory.Pools[0], "m", "u")
		if err != nil {
			t.Fatal(err)
		}
		compute, err := template.ComputeDeployment(pool, pool.ComputePools()[0])
		if err != nil {
			t.Fatal(err)
		}
		for _, spec := range []*corev1ac.PodSpecApplyConfiguration{memory.Spec, compute.Spec.Template.Spec} {
			security := spec.SecurityContext
			if chosen != (security.RunAsUser != nil) || chosen != (security.FSGroup != nil) || chosen != (security.RunAsGroup != nil) {
				t.Errorf("%s: %+v", sample, security)
			}
			if !chosen && !*security.RunAsNonRoot {
				t.Errorf("%s: root is not ruled out", sample)
			}
		}
	}
}

func TestNamesOfAnotherClusterDomain(t *testing.T) {
	pool := Pool{Name: "cache", Namespace: "shop"}
	if hosts := strings.Join(pool.RESPHosts(), " "); hosts != "cache cache.shop cache.shop.svc cache.shop.svc.cluster.local localhost" {
		t.Error(hosts)
	}
	pool.ClusterDomain = "corp.example"
	if hosts := strings.Join(pool.RESPHosts(), " "); hosts != "cache cache.shop cache.shop.svc cache.shop.svc.corp.example localhost" {
		t.Error(hosts)
	}
}

// Pods in the network of their Kubernetes node are selected by no policy; those of others may ask for names where the answering pod has another port.
func TestPoliciesOfNetworks(t *testing.T) {
	roce := pools(t)["kvpool-roce"]
	roce.Spec.Network.Attachment = &v1alpha1.AttachmentSpec{Type: v1alpha1.AttachmentHostNetwork, HostNetwork: &v1alpha1.HostNetworkAttachment{}}
	if policies := NetworkPolicies(roce); len(policies) != 0 {
		t.Errorf("%d policies that select nothing", len(policies))
	}
	text := document(t, NetworkPolicies(pools(t)["kvpool"])[1])
	for _, port := range []string{"port: 53\n", "port: 5353\n"} {
		if strings.Count(text, port) != 2 {
			t.Errorf("%d times %s in\n%s", strings.Count(text, port), port, text)
		}
	}
}

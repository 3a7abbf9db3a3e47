// SPDX-License-Identifier: Apache-2.0

package kvpool

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/render"
)

// class is what becomes of an edit of a field.
type class string

const (
	// refused by the API server.
	refused class = "refused"
	// rolls out: the Deployment of compute shards gets another template. Memory nodes do not change.
	rolls class = "rolls out"
	// kept: memory nodes that run keep what they have, and condition UpToDate says so.
	kept class = "kept"
	// amended: pods of memory nodes are changed while they run, in what their memory does not depend on.
	amended class = "amended"
	// upgrades: compute shards, and then memory nodes in their pods, get another image, and nothing else changes: see upgrade_test.go.
	upgrades class = "upgrades"
	// elsewhere: no pod of the pool changes, and no configuration that one of its processes reads. What certificates of sidecars say is tested in package sidecars.
	elsewhere class = "elsewhere"
)

// anEdit of one field, as its JSON path names it.
type anEdit struct {
	class class
	// base is the pool that is edited; nil: any.
	base func(*v1alpha1.KVPoolSpec)
	edit func(*v1alpha1.KVPoolSpec)
}

func overRoCE(attachment v1alpha1.AttachmentSpec) func(*v1alpha1.KVPoolSpec) {
	return func(spec *v1alpha1.KVPoolSpec) { spec.Network = roce(&attachment) }
}

func withSharedMemory(spec *v1alpha1.KVPoolSpec) {
	spec.Network.SharedMemory = &v1alpha1.SharedMemory{HostPath: "/run/farpool", SpinMicroseconds: 20}
}

func withRACE(spec *v1alpha1.KVPoolSpec) {
	spec.Index = v1alpha1.IndexSpec{Protocol: v1alpha1.ProtocolRACE, RACE: &v1alpha1.RACESpec{TablePercent: 25, Tables: 4, LeastTables: 1}}
}

func withOutback(spec *v1alpha1.KVPoolSpec) {
	spec.Index = v1alpha1.IndexSpec{Protocol: v1alpha1.ProtocolOutback, Outback: &v1alpha1.OutbackSpec{TablePercent: 25}}
}

func withPasswordSecret(spec *v1alpha1.KVPoolSpec) {
	spec.Security = v1alpha1.SecuritySpec{Password: v1alpha1.PasswordSecret, PasswordSecret: &v1alpha1.SecretKey{Name: "mine"}}
}

func withTLS(tls v1alpha1.TLSSpec) func(*v1alpha1.KVPoolSpec) {
	return func(spec *v1alpha1.KVPoolSpec) { spec.Security.RESP = &v1alpha1.RESPSpec{TLS: tls} }
}

func withSidecars(spec *v1alpha1.KVPoolSpec) {
	spec.Sidecars = &v1alpha1.SidecarsSpec{Namespaces: []v1alpha1.SidecarNamespace{{Name: "shop", MaxSidecars: 4}}}
}

// podOptions are options of pods, and what becomes of an edit of each for a memory node that runs.
func podOptions() map[string]struct {
	class   class
	options v1alpha1.PodOptions
} {
	zone := metav1.LabelSelector{MatchLabels: map[string]string{"app": "other"}}
	return map[string]struct {
		class   class
		options v1alpha1.PodOptions
	}{
		"labels":       {amended, v1alpha1.PodOptions{Labels: map[string]v1alpha1.LabelValue{"example.com/team": "storage"}}},
		"annotations":  {amended, v1alpha1.PodOptions{Annotations: map[string]string{"example.com/team": "storage"}}},
		"nodeSelector": {kept, v1alpha1.PodOptions{NodeSelector: map[string]string{"rack": "b"}}},
		"affinity": {kept, v1alpha1.PodOptions{Affinity: &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{TopologyKey: corev1.LabelHostname, LabelSelector: &zone}}}}}},
		"topologySpreadConstraints[]": {kept, v1alpha1.PodOptions{TopologySpreadConstraints: []corev1.TopologySpreadConstraint{
			{MaxSkew: 1, TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.DoNotSchedule}}}},
		"priorityClassName":  {kept, v1alpha1.PodOptions{PriorityClassName: "system-cluster-critical"}},
		"runtimeClassName":   {kept, v1alpha1.PodOptions{RuntimeClassName: "crun"}},
		"schedulerName":      {kept, v1alpha1.PodOptions{SchedulerName: "other"}},
		"serviceAccountName": {kept, v1alpha1.PodOptions{ServiceAccountName: "other"}},
		"securityContext":    {kept, v1alpha1.PodOptions{SecurityContext: v1alpha1.PodSecurityPlatform}},
	}
}

// edits of every field of a KVPool's spec. A field that is missing here fails the test: find out what an edit of it does to a memory node that holds data.
func edits() map[string]anEdit {
	issued := v1alpha1.TLSSpec{Mode: v1alpha1.TLSFromIssuer, Issuer: &v1alpha1.IssuerReference{Name: "corp"}}
	plugin := overRoCE(v1alpha1.AttachmentSpec{Type: v1alpha1.AttachmentSharedDevicePlugin, SharedDevicePlugin: &v1alpha1.SharedDevicePluginAttachment{ResourceName: "rdma/hca", Network: "net"}})
	sriov := overRoCE(v1alpha1.AttachmentSpec{Type: v1alpha1.AttachmentSRIOV, SRIOV: &v1alpha1.SRIOVAttachment{ResourceName: "rdma/vf", Network: "net"}})
	dra := overRoCE(v1alpha1.AttachmentSpec{Type: v1alpha1.AttachmentDRA, DRA: &v1alpha1.DRAAttachment{ResourceClaimTemplateName: "one-nic", Interface: "eth1"}})
	host := overRoCE(v1alpha1.AttachmentSpec{Type: v1alpha1.AttachmentHostNetwork, HostNetwork: &v1alpha1.HostNetworkAttachment{ResourceName: "rdma/hca", Interface: "ens2f0"}})
	memory := func(change func(*v1alpha1.MemoryPool)) func(*v1alpha1.KVPoolSpec) {
		return func(spec *v1alpha1.KVPoolSpec) { change(&spec.Memory.Pools[0]) }
	}
	compute := func(change func(*v1alpha1.ComputePool)) func(*v1alpha1.KVPoolSpec) {
		return func(spec *v1alpha1.KVPoolSpec) { change(&spec.Compute.Pools[0]) }
	}
	service := func(wanted v1alpha1.ServiceSpec) func(*v1alpha1.KVPoolSpec) {
		return func(spec *v1alpha1.KVPoolSpec) { spec.Service = &wanted }
	}
	limits := func(change func(*v1alpha1.LimitsSpec)) func(*v1alpha1.KVPoolSpec) {
		return func(spec *v1alpha1.KVPoolSpec) {
			if spec.Limits == nil {
				spec.Limits = &v1alpha1.LimitsSpec{}
			}
			change(spec.Limits)
		}
	}
	list := map[string]anEdit{
		"version":                            {upgrades, nil, func(s *v1alpha1.KVPoolSpec) { s.Version = "v2" }},
		"image":                              {upgrades, nil, func(s *v1alpha1.KVPoolSpec) { s.Image = "farpool/dataplane@sha256:" + strings.Repeat("1", 64) }},
		"imagePullPolicy":                    {class: kept, edit: func(s *v1alpha1.KVPoolSpec) { s.ImagePullPolicy = corev1.PullAlways }},
		"imagePullSecrets[]":                 {class: kept, edit: func(s *v1alpha1.KVPoolSpec) { s.ImagePullSecrets = []v1alpha1.ObjectName{"pull"} }},
		"dataPolicy":                         {refused, nil, func(s *v1alpha1.KVPoolSpec) { s.DataPolicy = v1alpha1.DataPolicyStore }},
		"management":                         {elsewhere, nil, func(s *v1alpha1.KVPoolSpec) { s.Management = v1alpha1.ManagementPaused }},
		"index.protocol":                     {refused, nil, func(s *v1alpha1.KVPoolSpec) { s.Index.Protocol = v1alpha1.ProtocolRACE }},
		"index.rcuckoo.entryBytes":           {refused, nil, func(s *v1alpha1.KVPoolSpec) { s.Index.RCuckoo.EntryBytes = 32 }},
		"index.rcuckoo.entriesPerRow":        {refused, nil, func(s *v1alpha1.KVPoolSpec) { s.Index.RCuckoo.EntriesPerRow = 4 }},
		"index.rcuckoo.rowsPerLock":          {refused, nil, func(s *v1alpha1.KVPoolSpec) { s.Index.RCuckoo.RowsPerLock = 8 }},
		"index.rcuckoo.tablePercent":         {refused, nil, func(s *v1alpha1.KVPoolSpec) { s.Index.RCuckoo.TablePercent = 40 }},
		"index.race.tablePercent":            {refused, withRACE, func(s *v1alpha1.KVPoolSpec) { s.Index.RACE.TablePercent = 40 }},
		"index.race.tables":                  {refused, withRACE, func(s *v1alpha1.KVPoolSpec) { s.Index.RACE.Tables = 8 }},
		"index.race.leastTables":             {kept, withRACE, func(s *v1alpha1.KVPoolSpec) { s.Index.RACE.LeastTables = 2 }},
		"index.outback.tablePercent":         {refused, withOutback, func(s *v1alpha1.KVPoolSpec) { s.Index.Outback.TablePercent = 10 }},
		"memory.eviction":                    {elsewhere, nil, func(s *v1alpha1.KVPoolSpec) { s.Memory.Eviction = v1alpha1.VolatileTTL }},
		"memory.pools[].name":                {elsewhere, nil, memory(func(p *v1alpha1.MemoryPool) { p.Name = "other" })},
		"memory.pools[].workers":             {kept, nil, memory(func(p *v1alpha1.MemoryPool) { p.Workers = 2 })},
		"memory.pools[].replicas":            {elsewhere, nil, memory(func(p *v1alpha1.MemoryPool) { p.Replicas = 2 })},
		"memory.pools[].lend":                {refused, nil, memory(func(p *v1alpha1.MemoryPool) { p.Lend = resource.MustParse("512Mi") })},
		"memory.pools[].hugePages":           {refused, nil, memory(func(p *v1alpha1.MemoryPool) { p.HugePages = v1alpha1.HugePages2Mi })},
		"memory.pools[].numaAlignment":       {refused, nil, memory(func(p *v1alpha1.MemoryPool) { p.NUMAAlignment = v1alpha1.NUMAAlignmentNone })},
		"compute.pools[].name":               {rolls, nil, compute(func(p *v1alpha1.ComputePool) { p.Name = "other" })},
		"compute.pools[].replicas":           {elsewhere, nil, compute(func(p *v1alpha1.ComputePool) { p.Replicas = 3 })},
		"compute.pools[].workers":            {rolls, nil, compute(func(p *v1alpha1.ComputePool) { p.Workers = 2 })},
		"service.type":                       {elsewhere, nil, service(v1alpha1.ServiceSpec{Type: corev1.ServiceTypeNodePort})},
		"service.labels":                     {elsewhere, nil, service(v1alpha1.ServiceSpec{Labels: map[string]v1alpha1.LabelValue{"a": "b"}})},
		"service.annotations":                {elsewhere, nil, service(v1alpha1.ServiceSpec{Annotations: map[string]string{"a": "b"}})},
		"service.nodePort":                   {elsewhere, nil, service(v1alpha1.ServiceSpec{Type: corev1.ServiceTypeNodePort, NodePort: ptr.To(int32(30000))})},
		"service.loadBalancerClass":          {elsewhere, nil, service(v1alpha1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, LoadBalancerClass: "a/b"})},
		"service.loadBalancerSourceRanges[]": {elsewhere, nil, service(v1alpha1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, LoadBalancerSourceRanges: []v1alpha1.SourceRange{"10.0.0.0/8"}})},
		"service.externalTrafficPolicy":      {elsewhere, nil, service(v1alpha1.ServiceSpec{Type: corev1.ServiceTypeNodePort, ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal})},
		"service.trafficDistribution":        {elsewhere, nil, service(v1alpha1.ServiceSpec{TrafficDistribution: corev1.ServiceTrafficDistributionPreferClose})},
		"service.ipFamilyPolicy":             {elsewhere, nil, service(v1alpha1.ServiceSpec{IPFamilyPolicy: corev1.IPFamilyPolicyPreferDualStack})},
		"resize.approval":                    {elsewhere, nil, func(s *v1alpha1.KVPoolSpec) { s.Resize = &v1alpha1.ResizeSpec{Approval: v1alpha1.ApprovalRequired} }},
		"resize.evacuation":                  {elsewhere, nil, func(s *v1alpha1.KVPoolSpec) { s.Resize = &v1alpha1.ResizeSpec{Evacuation: v1alpha1.EvacuationDisabled} }},
		"network.transport":                  {refused, nil, overRoCE(v1alpha1.AttachmentSpec{Type: v1alpha1.AttachmentDRA, DRA: &v1alpha1.DRAAttachment{ResourceClaimTemplateName: "one-nic"}})},
		"network.trafficClass":               {refused, dra, func(s *v1alpha1.KVPoolSpec) { s.Network.TrafficClass = ptr.To(int32(8)) }},
		"network.sharedMemory.hostPath":      {refused, withSharedMemory, func(s *v1alpha1.KVPoolSpec) { s.Network.SharedMemory.HostPath = "/run/other" }},
		"network.attachment.type":            {refused, dra, host},
		"locks.placement": {refused, dra, func(s *v1alpha1.KVPoolSpec) {
			s.Locks = &v1alpha1.LocksSpec{Placement: v1alpha1.LocksInDeviceMemoryPreferred}
		}},
		"sidecars.namespaces[].name":        {elsewhere, withSidecars, func(s *v1alpha1.KVPoolSpec) { s.Sidecars.Namespaces[0].Name = "web" }},
		"sidecars.namespaces[].maxSidecars": {elsewhere, withSidecars, func(s *v1alpha1.KVPoolSpec) { s.Sidecars.Namespaces[0].MaxSidecars = 7 }},
		"security.password":                 {rolls, nil, func(s *v1alpha1.KVPoolSpec) { s.Security.Password = v1alpha1.PasswordNone }},
		"security.passwordSecret.name":      {rolls, withPasswordSecret, func(s *v1alpha1.KVPoolSpec) { s.Security.PasswordSecret.Name = "other" }},
		"security.passwordSecret.key":       {rolls, withPasswordSecret, func(s *v1alpha1.KVPoolSpec) { s.Security.PasswordSecret.Key = "other" }},
		"security.resp.tls.mode":            {rolls, withTLS(v1alpha1.TLSSpec{Mode: v1alpha1.TLSDisabled}), withTLS(v1alpha1.TLSSpec{Mode: v1alpha1.TLSGenerated})},
		"security.resp.tls.secretName": {rolls, withTLS(v1alpha1.TLSSpec{Mode: v1alpha1.TLSFromSecret, SecretName: "mine"}),
			withTLS(v1alpha1.TLSSpec{Mode: v1alpha1.TLSFromSecret, SecretName: "other"})},
		"security.resp.tls.dnsNames[]": {elsewhere, withTLS(v1alpha1.TLSSpec{Mode: v1alpha1.TLSGenerated, DNSNames: []v1alpha1.DNSName{"a.example.com"}}),
			withTLS(v1alpha1.TLSSpec{Mode: v1alpha1.TLSGenerated, DNSNames: []v1alpha1.DNSName{"b.example.com"}})},
		"security.resp.tls.issuer.name":  {elsewhere, withTLS(issued), withTLS(v1alpha1.TLSSpec{Mode: v1alpha1.TLSFromIssuer, Issuer: &v1alpha1.IssuerReference{Name: "other"}})},
		"security.resp.tls.issuer.kind":  {elsewhere, withTLS(issued), withTLS(v1alpha1.TLSSpec{Mode: v1alpha1.TLSFromIssuer, Issuer: &v1alpha1.IssuerReference{Name: "corp", Kind: "ClusterIssuer"}})},
		"security.resp.tls.issuer.group": {elsewhere, withTLS(issued), withTLS(v1alpha1.TLSSpec{Mode: v1alpha1.TLSFromIssuer, Issuer: &v1alpha1.IssuerReference{Name: "corp", Group: "example.com"}})},
		"security.resp.tls.duration":     {elsewhere, withTLS(issued), withTLS(v1alpha1.TLSSpec{Mode: v1alpha1.TLSFromIssuer, Issuer: issued.Issuer, Duration: "48h"})},
		"security.resp.tls.renewBefore":  {elsewhere, withTLS(issued), withTLS(v1alpha1.TLSSpec{Mode: v1alpha1.TLSFromIssuer, Issuer: issued.Issuer, RenewBefore: "48h"})},
		"limits.maxConnections":          {rolls, nil, limits(func(l *v1alpha1.LimitsSpec) { l.MaxConnections = ptr.To(int32(7)) })},
		"limits.maxPipeline":             {rolls, nil, limits(func(l *v1alpha1.LimitsSpec) { l.MaxPipeline = ptr.To(int32(7)) })},
		"limits.maxSessions":             {kept, nil, limits(func(l *v1alpha1.LimitsSpec) { l.MaxSessions = ptr.To(int32(512)) })},
		"failureTimeoutMilliseconds":     {refused, nil, func(s *v1alpha1.KVPoolSpec) { s.FailureTimeoutMilliseconds = 3000 }},
		"memory.pools[].capacity.fillPercent": {elsewhere, nil, memory(func(p *v1alpha1.MemoryPool) {
			p.Capacity = &v1alpha1.CapacityPolicy{FillPercent: 50, MaxReplicas: 2}
		})},
		"memory.pools[].capacity.maxReplicas":           {elsewhere, nil, memory(func(p *v1alpha1.MemoryPool) { p.Capacity = &v1alpha1.CapacityPolicy{MaxReplicas: 3} })},
		"limits.operationDeadlineMilliseconds":          {rolls, nil, limits(func(l *v1alpha1.LimitsSpec) { l.OperationDeadlineMilliseconds = ptr.To(int32(70)) })},
		"network.sharedMemory.spinMicroseconds":         {refused, withSharedMemory, func(s *v1alpha1.KVPoolSpec) { s.Network.SharedMemory.SpinMicroseconds = 5 }},
		"network.attachment.sriov.resourceName":         {refused, sriov, func(s *v1alpha1.KVPoolSpec) { s.Network.Attachment.SRIOV.ResourceName = "rdma/other" }},
		"network.attachment.sriov.network":              {refused, sriov, func(s *v1alpha1.KVPoolSpec) { s.Network.Attachment.SRIOV.Network = "other" }},
		"network.attachment.dra.interface":              {refused, dra, func(s *v1alpha1.KVPoolSpec) { s.Network.Attachment.DRA.Interface = "eth2" }},
		"network.attachment.hostNetwork.resourceName":   {refused, host, func(s *v1alpha1.KVPoolSpec) { s.Network.Attachment.HostNetwork.ResourceName = "rdma/other" }},
		"network.attachment.hostNetwork.interface":      {refused, host, func(s *v1alpha1.KVPoolSpec) { s.Network.Attachment.HostNetwork.Interface = "eth2" }},
		"network.attachment.sharedDevicePlugin.network": {refused, plugin, func(s *v1alpha1.KVPoolSpec) { s.Network.Attachment.SharedDevicePlugin.Network = "other" }},
		"network.attachment.dra.resourceClaimTemplateName": {refused, dra, func(s *v1alpha1.KVPoolSpec) {
			s.Network.Attachment.DRA.ResourceClaimTemplateName = "two-nics"
		}},
		"network.attachment.sharedDevicePlugin.resourceName": {refused, plugin, func(s *v1alpha1.KVPoolSpec) {
			s.Network.Attachment.SharedDevicePlugin.ResourceName = "rdma/other"
		}},
	}
	tolerations := map[string]v1alpha1.Toleration{
		"key":               {Key: "other", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute},
		"operator":          {Key: "dedicated", Operator: corev1.TolerationOpEqual, Effect: corev1.TaintEffectNoExecute},
		"value":             {Key: "dedicated", Operator: corev1.TolerationOpEqual, Value: "v", Effect: corev1.TaintEffectNoExecute},
		"effect":            {Key: "dedicated", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
		"tolerationSeconds": {Key: "dedicated", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: ptr.To(int64(7))},
	}
	for name, toleration := range tolerations {
		list["memory.pools[].pod.tolerations[]."+name] = anEdit{amended, nil, memory(func(p *v1alpha1.MemoryPool) {
			p.Pod = &v1alpha1.PodOptions{Tolerations: append(p.Pod.OrNone().Tolerations, toleration)}
		})}
		list["compute.pools[].pod.tolerations[]."+name] = anEdit{rolls, nil, compute(func(p *v1alpha1.ComputePool) {
			p.Pod = &v1alpha1.PodOptions{Tolerations: []v1alpha1.Toleration{toleration}}
		})}
	}
	for name, option := range podOptions() {
		list["memory.pools[].pod."+name] = anEdit{option.class, nil, memory(func(p *v1alpha1.MemoryPool) { p.Pod = &option.options })}
		list["compute.pools[].pod."+name] = anEdit{rolls, nil, compute(func(p *v1alpha1.ComputePool) { p.Pod = &option.options })}
	}
	for i, processors := range []string{"2", "3"} {
		name := []string{"requests", "limits"}[i]
		set := func(resources **v1alpha1.Resources) {
			if *resources == nil {
				*resources = &v1alpha1.Resources{}
			}
			wanted := corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(processors + "Gi")}
			if name == "requests" {
				wanted[corev1.ResourceCPU] = resource.MustParse(processors)
				(*resources).Requests = wanted
			} else {
				(*resources).Limits = wanted
			}
		}
		list["memory.pools[].resources."+name] = anEdit{amended, nil, memory(func(p *v1alpha1.MemoryPool) { set(&p.Resources) })}
		list["compute.pools[].resources."+name] = anEdit{rolls, nil, compute(func(p *v1alpha1.ComputePool) { set(&p.Resources) })}
	}
	return list
}

// wholes are edits that add or take away a part of a KVPool's spec that may be left out, by the part's JSON path.
func wholes() map[string][]anEdit {
	type spec = v1alpha1.KVPoolSpec
	memory := func(change func(*v1alpha1.MemoryPool)) func(*spec) {
		return func(s *spec) { change(&s.Memory.Pools[0]) }
	}
	compute := func(change func(*v1alpha1.ComputePool)) func(*spec) {
		return func(s *spec) { change(&s.Compute.Pools[0]) }
	}
	// both directions: what is added to a pool without it, and what is taken from a pool with it.
	both := func(class class, with, without func(*spec)) []anEdit {
		return []anEdit{{class, without, with}, {class, with, without}}
	}
	processors := &v1alpha1.Resources{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2")}}
	tolerations := []v1alpha1.Toleration{{Key: "dedicated", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}}
	host := v1alpha1.AttachmentSpec{Type: v1alpha1.AttachmentHostNetwork, HostNetwork: &v1alpha1.HostNetworkAttachment{ResourceName: "rdma/hca", Interface: "ens2f0"}}
	dra := v1alpha1.AttachmentSpec{Type: v1alpha1.AttachmentDRA, DRA: &v1alpha1.DRAAttachment{ResourceClaimTemplateName: "one-nic", Interface: "eth1"}}
	sriov := v1alpha1.AttachmentSpec{Type: v1alpha1.AttachmentSRIOV, SRIOV: &v1alpha1.SRIOVAttachment{ResourceName: "rdma/vf", Network: "net"}}
	plugin := v1alpha1.AttachmentSpec{Type: v1alpha1.AttachmentSharedDevicePlugin, SharedDevicePlugin: &v1alpha1.SharedDevicePluginAttachment{ResourceName: "rdma/hca", Network: "net"}}
	// attachment of another kind is added beside the one that there is, and that one is taken away.
	attachment := func(of, other v1alpha1.AttachmentSpec, change func(to *v1alpha1.AttachmentSpec, from v1alpha1.AttachmentSpec)) []anEdit {
		add := func(s *spec) { change(s.Network.Attachment, of) }
		remove := func(s *spec) { change(s.Network.Attachment, v1alpha1.AttachmentSpec{}) }
		return []anEdit{{refused, overRoCE(other), add}, {refused, overRoCE(of), remove}}
	}
	list := map[string][]anEdit{
		"compute": both(rolls, func(s *spec) {
			s.Compute = &v1alpha1.ComputeSpec{Pools: []v1alpha1.ComputePool{{Name: "shards", Replicas: 2}}}
		}, func(s *spec) { s.Compute = nil }),
		"compute.pools[]": both(elsewhere, func(s *spec) {
			s.Compute.Pools = append(s.Compute.Pools, v1alpha1.ComputePool{Name: "more", Replicas: 1})
		}, func(s *spec) { s.Compute.Pools = s.Compute.Pools[:1] }),
		"compute.pools[].resources": both(rolls, compute(func(p *v1alpha1.ComputePool) { p.Resources = processors }), compute(func(p *v1alpha1.ComputePool) { p.Resources = nil })),
		"memory.pools[]": both(elsewhere, func(s *spec) {
			s.Memory.Pools = append(s.Memory.Pools, v1alpha1.MemoryPool{Name: "more", Replicas: 1, Lend: resource.MustParse("256Mi")})
		}, func(s *spec) { s.Memory.Pools = s.Memory.Pools[:1] }),
		"security.resp.tls.issuer": both(rolls, withTLS(v1alpha1.TLSSpec{Mode: v1alpha1.TLSFromIssuer, Issuer: &v1alpha1.IssuerReference{Name: "corp"}}), withTLS(v1alpha1.TLSSpec{Mode: v1alpha1.TLSGenerated})),
		"security.resp":            both(rolls, withTLS(v1alpha1.TLSSpec{Mode: v1alpha1.TLSGenerated}), func(s *spec) { s.Security.RESP = nil }),
		"security.resp.tls.dnsNames[]": both(elsewhere, withTLS(v1alpha1.TLSSpec{Mode: v1alpha1.TLSGenerated, DNSNames: []v1alpha1.DNSName{"a.example.com"}}),
			withTLS(v1alpha1.TLSSpec{Mode: v1alpha1.TLSGenerated})),
		"security.passwordSecret": both(rolls, withPasswordSecret, func(s *spec) { s.Security = v1alpha1.SecuritySpec{Password: v1alpha1.PasswordNone} }),
		"service":                 both(elsewhere, func(s *spec) { s.Service = &v1alpha1.ServiceSpec{Annotations: map[string]string{"a": "b"}} }, func(s *spec) { s.Service = nil }),
		"service.labels":          both(elsewhere, func(s *spec) { s.Service = &v1alpha1.ServiceSpec{Labels: map[string]v1alpha1.LabelValue{"a": "b"}} }, func(s *spec) { s.Service = nil }),
		"service.annotations":     both(elsewhere, func(s *spec) { s.Service = &v1alpha1.ServiceSpec{Annotations: map[string]string{"a": "b"}} }, func(s *spec) { s.Service = &v1alpha1.ServiceSpec{} }),
		"service.loadBalancerSourceRanges[]": both(elsewhere, func(s *spec) {
			s.Service = &v1alpha1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, LoadBalancerSourceRanges: []v1alpha1.SourceRange{"10.0.0.0/8"}}
		}, func(s *spec) { s.Service = &v1alpha1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer} }),
		"imagePullSecrets[]": both(kept, func(s *spec) { s.ImagePullSecrets = []v1alpha1.ObjectName{"pull"} }, func(s *spec) { s.ImagePullSecrets = nil }),
		"memory.pools[].capacity": both(elsewhere, memory(func(p *v1alpha1.MemoryPool) { p.Capacity = &v1alpha1.CapacityPolicy{FillPercent: 50, MaxReplicas: 2} }),
			memory(func(p *v1alpha1.MemoryPool) { p.Capacity = nil })),
		"memory.pools[].resources": both(amended, memory(func(p *v1alpha1.MemoryPool) { p.Resources = processors }), memory(func(p *v1alpha1.MemoryPool) { p.Resources = nil })),
		"sidecars":                 both(elsewhere, withSidecars, func(s *spec) { s.Sidecars = nil }),
		"sidecars.namespaces[]": both(elsewhere, func(s *spec) {
			withSidecars(s)
			s.Sidecars.Namespaces = append(s.Sidecars.Namespaces, v1alpha1.SidecarNamespace{Name: "web"})
		}, withSidecars),
		"index.race":                     {{refused, withRACE, func(s *spec) { s.Index.RACE = nil }}, {refused, nil, withRACE}},
		"index.outback":                  {{refused, withOutback, func(s *spec) { s.Index.Outback = nil }}, {refused, nil, withOutback}},
		"network.attachment":             {{refused, overRoCE(dra), func(s *spec) { s.Network.Attachment = nil }}, {refused, nil, func(s *spec) { s.Network.Attachment = &dra }}},
		"network.attachment.dra":         attachment(dra, host, func(to *v1alpha1.AttachmentSpec, from v1alpha1.AttachmentSpec) { to.DRA = from.DRA }),
		"network.attachment.hostNetwork": attachment(host, dra, func(to *v1alpha1.AttachmentSpec, from v1alpha1.AttachmentSpec) { to.HostNetwork = from.HostNetwork }),
		"network.attachment.sriov":       attachment(sriov, dra, func(to *v1alpha1.AttachmentSpec, from v1alpha1.AttachmentSpec) { to.SRIOV = from.SRIOV }),
		"network.attachment.sharedDevicePlugin": attachment(plugin, dra, func(to *v1alpha1.AttachmentSpec, from v1alpha1.AttachmentSpec) {
			to.SharedDevicePlugin = from.SharedDevicePlugin
		}),
		"network.sharedMemory": both(refused, withSharedMemory, func(s *spec) { s.Network.SharedMemory = nil }),
		"locks": {{refused, overRoCE(dra), func(s *spec) { s.Locks = &v1alpha1.LocksSpec{Placement: v1alpha1.LocksInDeviceMemoryPreferred} }},
			{refused, func(s *spec) {
				overRoCE(dra)(s)
				s.Locks = &v1alpha1.LocksSpec{Placement: v1alpha1.LocksInDeviceMemoryPreferred}
			}, func(s *spec) { s.Locks = nil }}},
		"limits": both(rolls, func(s *spec) { s.Limits = &v1alpha1.LimitsSpec{MaxConnections: ptr.To(int32(7))} }, func(s *spec) { s.Limits = nil }),
		"resize": both(elsewhere, func(s *spec) {
			s.Resize = &v1alpha1.ResizeSpec{Approval: v1alpha1.ApprovalRequired, Evacuation: v1alpha1.EvacuationDisabled}
		}, func(s *spec) { s.Resize = nil }),
	}
	options := podOptions()
	for name, class := range map[string]class{
		".labels": amended, ".annotations": amended, ".nodeSelector": kept, ".affinity": kept, ".topologySpreadConstraints[]": kept, ".tolerations[]": amended, "": kept,
	} {
		with := options[strings.TrimPrefix(name, ".")].options
		if name == ".tolerations[]" {
			with = v1alpha1.PodOptions{Tolerations: tolerations}
		} else if name == "" {
			with = options["affinity"].options
		}
		list["memory.pools[].pod"+name] = both(class, memory(func(p *v1alpha1.MemoryPool) { p.Pod = &with }), memory(func(p *v1alpha1.MemoryPool) { p.Pod = nil }))
		list["compute.pools[].pod"+name] = both(rolls, compute(func(p *v1alpha1.ComputePool) { p.Pod = &with }), compute(func(p *v1alpha1.ComputePool) { p.Pod = nil }))
	}
	return list
}

// ofKubernetes says whether a structure is Kubernetes' own. The operator copies such structures as they are.
func ofKubernetes(of reflect.Type) bool {
	return of.Kind() == reflect.Struct && of.PkgPath() == reflect.TypeFor[corev1.Affinity]().PkgPath()
}

// parts are the JSON paths of structures, lists and maps that may be left out.
func parts(of reflect.Type, path string) (found []string) {
	if ofKubernetes(of) {
		return nil
	}
	switch of.Kind() {
	case reflect.Pointer:
		if of.Elem().Kind() == reflect.Struct {
			found = append(found, path)
		}
		return append(found, parts(of.Elem(), path)...)
	case reflect.Slice:
		return append([]string{path + "[]"}, parts(of.Elem(), path+"[]")...)
	case reflect.Map:
		if of != reflect.TypeFor[corev1.ResourceList]() { // its structure may be left out
			found = append(found, path)
		}
	case reflect.Struct:
		if of == reflect.TypeFor[resource.Quantity]() {
			return nil
		}
		for i := range of.NumField() {
			name, _, _ := strings.Cut(of.Field(i).Tag.Get("json"), ",")
			found = append(found, parts(of.Field(i).Type, strings.TrimPrefix(path+"."+name, "."))...)
		}
	}
	return found
}

// leaves are the JSON paths of everything that an edit can change by itself.
func leaves(of reflect.Type, path string) []string {
	switch of.Kind() {
	case reflect.Pointer:
		return leaves(of.Elem(), path)
	case reflect.Slice:
		return leaves(of.Elem(), path+"[]")
	case reflect.Struct:
		if of == reflect.TypeFor[resource.Quantity]() || ofKubernetes(of) {
			return []string{path}
		}
		var found []string
		for i := range of.NumField() {
			name, _, _ := strings.Cut(of.Field(i).Tag.Get("json"), ",")
			found = append(found, leaves(of.Field(i).Type, strings.TrimPrefix(path+"."+name, "."))...)
		}
		return found
	}
	return []string{path}
}

// shapeOf is what processes of a spec are made from, by a template of some version.
type shapeOf struct{ memoryFile, memoryPod, compute string }

func shape(g Gomega, pool *v1alpha1.KVPool, version int32) shapeOf {
	template, err := render.TemplateOf(version)
	g.Expect(err).NotTo(HaveOccurred())
	rendered := render.Pool{Name: pool.Name, Namespace: pool.Namespace, UID: pool.UID, Spec: pool.Spec, Image: "i"}
	pod, err := template.MemoryPod(rendered, pool.Spec.Memory.Pools[0], "cache-memory-0", types.UID("uid"))
	g.Expect(err).NotTo(HaveOccurred())
	text := func(object any) string {
		content, err := json.Marshal(object)
		g.Expect(err).NotTo(HaveOccurred())
		return string(content)
	}
	made := shapeOf{
		memoryFile: render.Config(rendered, template).Data[pool.Spec.Memory.Pools[0].Name+".toml"],
		memoryPod:  text(pod.Spec),
	}
	if pool.Spec.Compute != nil {
		deployment, err := template.ComputeDeployment(rendered, pool.Spec.Compute.Pools[0])
		g.Expect(err).NotTo(HaveOccurred())
		made.compute = *deployment.Name + text(deployment.Spec.Template)
	}
	return made
}

// amendable is what changes of a pod that runs.
func amendable(pod *corev1.Pod) string {
	return fmt.Sprint(pod.Labels, pod.Annotations, pod.Spec.Tolerations, pod.Spec.Containers[0].Resources)
}

// tryEdit edits a pool of which nothing is kept, and compares what its processes would be made from.
func tryEdit(path string, edit anEdit) {
	GinkgoHelper()
	By(path)
	w := newWorld(func(pool *v1alpha1.KVPool) {
		pool.Spec.Memory.Pools[0].Replicas = 1
		if edit.base != nil {
			edit.base(&pool.Spec)
		}
	})
	Expect(k8s.Create(w.ctx, w.pool)).To(Succeed())
	if edit.class == kept {
		// While it is unknown whether a template keeps what memory nodes start with, nothing that they start with may be edited.
		Eventually(func() *v1alpha1.TemplateStatus { return w.current().Status.Template }, within, every).ShouldNot(BeNil())
	}
	var before, after *v1alpha1.KVPool
	var err error
	Eventually(func() bool {
		before = w.current()
		after = before.DeepCopy()
		edit.edit(&after.Spec)
		err = k8s.Update(w.ctx, after, client.DryRunAll)
		return err == nil || !isConflict(err)
	}, within, every).Should(BeTrue())
	if edit.class == refused {
		Expect(apierrors.IsInvalid(err)).To(BeTrue(), "%s: %v", path, err)
		return
	}
	Expect(err).NotTo(HaveOccurred(), path)
	if path == "memory.pools[].name" {
		// It is another memory pool: its memory nodes are made, and then those of the former one are drained. See plan/entries_test.go.
		Expect(k8s.Delete(w.ctx, w.pool)).To(Succeed())
		return
	}
	for version := int32(1); version <= render.Newest; version++ {
		g := NewWithT(GinkgoT())
		was, is := shape(g, before, version), shape(g, after, version)
		switch path {
		case "limits.maxSessions":
			// The API server refuses it where memory nodes read a file: see TestValidation.
		case "index.race.leastTables":
			// Nothing that is formatted depends on it: see Restart.WhatIsTakenUpKeepsItsTables of the data plane.
		case "memory.pools[].workers":
			// A process that restarts over its memory may have more threads: nothing that is formatted depends on them.
		default:
			Expect(is.memoryFile).To(Equal(was.memoryFile), "%s: template %d", path, version)
		}
		if edit.class != kept && edit.class != amended {
			Expect(is.memoryPod).To(Equal(was.memoryPod), "%s: template %d", path, version)
		}
		pulls := strings.HasPrefix(path, "imagePull")
		Expect(is.compute != was.compute).To(Equal(edit.class == rolls || pulls), "%s: template %d: compute shards", path, version)
	}
	Expect(k8s.Delete(w.ctx, w.pool)).To(Succeed())
}

var _ = Describe("edits of a KVPool", func() {
	It("has an answer for every field of the spec", func() {
		known := edits()
		var unknown []string
		found := leaves(reflect.TypeFor[v1alpha1.KVPoolSpec](), "")
		for _, path := range found {
			if _, ok := known[path]; !ok {
				unknown = append(unknown, path)
			}
		}
		Expect(unknown).To(BeEmpty(), "find out what an edit of these fields does to a memory node that holds data, and add them to edits()")
		for path := range known {
			Expect(found).To(ContainElement(path), "the spec has no such field")
		}
	})

	It("refuses what shapes memory, and changes nothing of memory nodes otherwise", func() {
		known := edits()
		paths := make([]string, 0, len(known))
		for path := range known {
			paths = append(paths, path)
		}
		slices.Sort(paths)
		for _, path := range paths {
			tryEdit(path, known[path])
		}
	})

	It("refuses that what shapes memory is added or taken away as a whole, and changes nothing of memory nodes otherwise", func() {
		known := wholes()
		Expect(slices.Sorted(maps.Keys(known))).To(Equal(slices.Sorted(slices.Values(parts(reflect.TypeFor[v1alpha1.KVPoolSpec](), "")))),
			"find out what it does to a memory node that holds data if this part of the spec is added or taken away, and add it to wholes()")
		for _, path := range slices.Sorted(maps.Keys(known)) {
			for _, edit := range known[path] {
				tryEdit(path, edit)
			}
		}
	})

	for _, group := range []struct {
		name string
		base func(*v1alpha1.KVPoolSpec)
	}{{"RCuckoo", nil}, {"RACE", withRACE}} {
		It("leaves pods of memory nodes that run alone, or amends them, of a pool of "+group.name, func() {
			w := newWorld(func(pool *v1alpha1.KVPool) {
				pool.Spec.Memory.Pools[0].Replicas = 1
				if group.base != nil {
					group.base(&pool.Spec)
				}
			})
			w.create()
			const name = "cache-memory-0"
			w.run(name)
			w.computeReady("cache-shards")
			w.awaitCondition(v1alpha1.ConditionAvailable, metav1.ConditionTrue, v1alpha1.ReasonServing)
			w.awaitCondition(v1alpha1.ConditionUpToDate, metav1.ConditionTrue, v1alpha1.ReasonCurrent)
			first := w.awaitPod(name)
			known := edits()
			var paths []string
			for path, edit := range known {
				if edit.class != refused && strings.HasPrefix(path, "index.race.") == (group.base != nil) {
					paths = append(paths, path)
				}
			}
			// What a pod tolerates is never taken from it while it runs: these come last.
			slices.SortFunc(paths, func(a, b string) int {
				last := func(path string) int { return strings.Count(path, "memory.pools[].pod.tolerations") }
				return cmp.Or(last(a)-last(b), cmp.Compare(a, b))
			})
			original := w.current().Spec
			for _, path := range paths {
				edit := known[path]
				if edit.class == elsewhere || edit.class == upgrades {
					continue
				}
				By(path)
				had := amendable(w.awaitPod(name))
				Expect(w.change(func(pool *v1alpha1.KVPool) {
					if edit.base != nil {
						edit.base(&pool.Spec)
					}
					edit.edit(&pool.Spec)
				})).To(Succeed())
				generation := w.current().Generation
				Eventually(func(g Gomega) {
					pool := w.current()
					condition := meta.FindStatusCondition(pool.Status.Conditions, v1alpha1.ConditionUpToDate)
					g.Expect(condition).NotTo(BeNil())
					g.Expect(condition.ObservedGeneration).To(Equal(generation))
					now := w.awaitPod(name)
					g.Expect(now.UID).To(Equal(first.UID))
					g.Expect(now.DeletionTimestamp).To(BeNil())
					g.Expect(now.Spec.Containers[0].Args).To(Equal(first.Spec.Containers[0].Args))
					own := meta.FindStatusCondition(w.node(name).Status.Conditions, v1alpha1.ConditionUpToDate)
					g.Expect(own).NotTo(BeNil())
					switch edit.class {
					case kept:
						g.Expect(string(condition.Status)+" "+condition.Reason).To(Equal("False "+v1alpha1.ReasonPodDiffers), condition.Message)
						g.Expect(own.Reason).To(Equal(v1alpha1.ReasonPodDiffers))
					case amended:
						g.Expect(string(own.Status)).To(Equal("True"), own.Message)
						g.Expect(amendable(now)).NotTo(Equal(had))
					case rolls:
						deployment := &appsv1.Deployment{}
						g.Expect(k8s.Get(w.ctx, w.key(render.Pool{Name: "cache"}.ComputeName(pool.Spec.Compute.Pools[0].Name)), deployment)).To(Succeed())
						g.Expect(string(own.Status)).To(Equal("True"), own.Message)
					}
				}, within, every).Should(Succeed(), path)
				if strings.Contains(path, "memory.pools[].pod.tolerations") {
					continue
				}
				Expect(w.change(func(pool *v1alpha1.KVPool) {
					least := pool.Spec.Index.RACE
					pool.Spec = *original.DeepCopy()
					if least != nil {
						pool.Spec.Index.RACE = least // is never lowered
					}
				})).To(Succeed())
			}
			if group.base != nil {
				return
			}
			By("a limit that makes the pod Guaranteed, which no pod that runs can become")
			Expect(w.change(func(pool *v1alpha1.KVPool) {
				pool.Spec.Memory.Pools[0].Resources = &v1alpha1.Resources{Limits: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2")}}
			})).To(Succeed())
			w.awaitCondition(v1alpha1.ConditionUpToDate, metav1.ConditionFalse, v1alpha1.ReasonAmendmentRefused, And(ContainSubstring("pod cache-memory-0 does not get the resources"), ContainSubstring("QOS Class"), ContainSubstring("kubectl cordon")))
			Expect(w.awaitPod(name).UID).To(Equal(first.UID))
		})
	}
})

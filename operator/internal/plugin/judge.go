// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"farpool.dev/farpool/api/v1alpha1"
)

// state is a pool with what belongs to it, as the API server has it.
type state struct {
	pool    v1alpha1.KVPool
	nodes   []v1alpha1.MemoryNode
	resizes []v1alpha1.ResizeOperation
	leases  []v1alpha1.RepairLease
}

// finding is one thing that a person should know of a pool.
type finding struct {
	// object is kind and name, as kubectl takes them.
	object string
	// wrong: a person has to see to it. Otherwise it is on its way by itself.
	wrong   bool
	reason  string
	message string
	// commands that settle it, or show more.
	commands []string
	// runbook is a heading of the page for operators; empty: the message says all there is.
	runbook string
}

// healthy is what each condition of a KVPool is when nothing is the matter.
var healthy = []struct {
	condition string
	status    metav1.ConditionStatus
}{
	{v1alpha1.ConditionAvailable, metav1.ConditionTrue},
	{v1alpha1.ConditionDegraded, metav1.ConditionFalse},
	{v1alpha1.ConditionSpecValid, metav1.ConditionTrue},
	{v1alpha1.ConditionDataPlaneReachable, metav1.ConditionTrue},
	{v1alpha1.ConditionMemoryPressure, metav1.ConditionFalse},
	{v1alpha1.ConditionCertificatesReady, metav1.ConditionTrue},
	{v1alpha1.ConditionUpToDate, metav1.ConditionTrue},
	{v1alpha1.ConditionProgressing, metav1.ConditionFalse},
}

// passing are reasons that the operator settles without a person.
var passing = []string{
	v1alpha1.ReasonMemoryNodesPending, v1alpha1.ReasonPublishing, v1alpha1.ReasonComputeRollingOut, v1alpha1.ReasonResizing, v1alpha1.ReasonResizingInPlace,
	v1alpha1.ReasonUpgrading, v1alpha1.ReasonStarting, v1alpha1.ReasonDrained, v1alpha1.ReasonNotPublished, v1alpha1.ReasonNoAgents, v1alpha1.ReasonPodPending,
	v1alpha1.ReasonMemoryUnknown, v1alpha1.ReasonPreparing, v1alpha1.ReasonResizePlanned, v1alpha1.ReasonSplitting, v1alpha1.ReasonMoving, v1alpha1.ReasonRemoving,
	v1alpha1.ReasonPasswordChanging,
}

// judge says what is to be told about a pool: what is wrong first, and in each half the pool before its parts.
func judge(s *state) []finding {
	var found []finding
	found = append(found, judgePool(&s.pool)...)
	for i := range s.nodes {
		found = append(found, judgeNode(&s.nodes[i])...)
	}
	for i := range s.resizes {
		found = append(found, judgeResize(&s.resizes[i])...)
	}
	for i := range s.leases {
		found = append(found, judgeLease(&s.leases[i])...)
	}
	slices.SortStableFunc(found, func(a, b finding) int {
		switch {
		case a.wrong == b.wrong:
			return 0
		case a.wrong:
			return -1
		}
		return 1
	})
	return found
}

func judgePool(pool *v1alpha1.KVPool) []finding {
	object := "kvpool/" + pool.Name
	if len(pool.Status.Conditions) == 0 {
		return []finding{{object: object, wrong: true, reason: "NotObserved", message: "no operator has looked at it: see that one runs, and serves this namespace",
			commands: []string{"kubectl get deployments -A -l app.kubernetes.io/component=operator"}, runbook: "the-operator-is-down"}}
	}
	var found []finding
	for _, h := range healthy {
		c := meta.FindStatusCondition(pool.Status.Conditions, h.condition)
		if c == nil {
			continue
		}
		if c.Status != h.status || c.Reason == v1alpha1.ReasonCPURequestMissing {
			found = append(found, advise(found, pool.Namespace, object, pool.Name, *c)...)
		} else if h.condition == v1alpha1.ConditionProgressing && c.Reason != v1alpha1.ReasonSettled {
			// Not progressing, and not settled either: a person has stopped it.
			found = append(found, advise(found, pool.Namespace, object, pool.Name, *c)...)
		}
	}
	if c := meta.FindStatusCondition(pool.Status.Conditions, v1alpha1.ConditionAvailable); c != nil && c.ObservedGeneration < pool.Generation {
		found = append(found, finding{object: object, reason: "NotObserved", message: fmt.Sprintf(
			"its conditions are those of generation %d, and its spec has generation %d: the operator has not looked at the latest edit yet", c.ObservedGeneration, pool.Generation),
			runbook: "the-operator-is-down"})
	}
	if pool.Status.Sidecars != nil {
		for _, n := range pool.Status.Sidecars.Namespaces {
			if n.Reason != "" {
				found = append(found, finding{object: object, wrong: n.State != v1alpha1.SidecarsReady && n.Reason != v1alpha1.ReasonCredentialsAwaited,
					reason: n.Reason, message: fmt.Sprintf("sidecars of namespace %s: %s", n.Name, n.Message), runbook: "sidecars-of-a-kvpool"})
			}
		}
	}
	return found
}

func judgeNode(node *v1alpha1.MemoryNode) []finding {
	object := "memorynode/" + node.Name
	ready := meta.FindStatusCondition(node.Status.Conditions, v1alpha1.ConditionReady)
	if ready == nil || ready.Status == metav1.ConditionTrue {
		return nil
	}
	return advise(nil, node.Namespace, object, node.Name, *ready)
}

func judgeResize(resize *v1alpha1.ResizeOperation) []finding {
	complete := meta.FindStatusCondition(resize.Status.Conditions, v1alpha1.ConditionComplete)
	holds := meta.IsStatusConditionTrue(resize.Status.Conditions, v1alpha1.ConditionHolding)
	if complete == nil || complete.Status == metav1.ConditionTrue || resize.Status.CompletionTime != nil && !holds {
		return nil
	}
	return advise(nil, resize.Namespace, "resize/"+resize.Name, resize.Name, *complete)
}

func judgeLease(lease *v1alpha1.RepairLease) []finding {
	complete := meta.FindStatusCondition(lease.Status.Conditions, v1alpha1.ConditionComplete)
	if complete == nil || complete.Status == metav1.ConditionTrue {
		return nil
	}
	f := finding{object: "repairlease/" + lease.Name, reason: complete.Reason, message: complete.Message, runbook: "a-repair-does-not-complete"}
	for _, phase := range []string{v1alpha1.ConditionFenced, v1alpha1.ConditionRepaired} {
		if c := meta.FindStatusCondition(lease.Status.Conditions, phase); c != nil && c.Status != metav1.ConditionTrue {
			f.reason, f.message = c.Reason, c.Message
			break
		}
	}
	f.wrong = slices.Contains([]string{v1alpha1.ReasonClientUnknown, v1alpha1.ReasonClientAnswers, v1alpha1.ReasonLeft, v1alpha1.ReasonNoComputeShards}, f.reason)
	return []finding{f}
}

// advise is a condition as a finding, unless one before says the same.
func advise(before []finding, namespace, object, name string, c metav1.Condition) []finding {
	if slices.ContainsFunc(before, func(f finding) bool { return f.reason == c.Reason && f.message == c.Message }) {
		return nil
	}
	f := finding{object: object, wrong: !slices.Contains(passing, c.Reason), reason: c.Reason, message: c.Message}
	if a, known := advices[c.Reason]; known {
		f.runbook = a.runbook
		for _, command := range a.commands {
			f.commands = append(f.commands, strings.NewReplacer("NAMESPACE", namespace, "NAME", name).Replace(command))
		}
	}
	return []finding{f}
}

// advice is what settles a reason, or shows more of it.
type advice struct {
	commands []string
	runbook  string
}

// advices are for the reasons for which the runbook has a heading. NAMESPACE and NAME are those of the object with the condition.
var advices = map[string]advice{
	v1alpha1.ReasonNotPublished:          {runbook: "a-pool-is-not-available"},
	v1alpha1.ReasonMemoryNodesNotServing: {runbook: "a-pool-is-not-available"},
	v1alpha1.ReasonNotServing:            {runbook: "a-pool-is-not-available", commands: []string{"kubectl -n NAMESPACE logs NAME --previous"}},
	v1alpha1.ReasonPodFailed:             {runbook: "a-memory-node-lost-its-data", commands: []string{"kubectl -n NAMESPACE describe pod NAME"}},
	v1alpha1.ReasonNoComputeShards:       {runbook: "a-pool-is-not-available", commands: []string{"kubectl -n NAMESPACE get pods -l farpool.dev/component=compute-shard"}},
	v1alpha1.ReasonTablesStopped:         {runbook: "a-memory-node-lost-its-data", commands: []string{"kubectl -n NAMESPACE get memorynodes -l farpool.dev/pool=NAME"}},
	v1alpha1.ReasonStopped:               {runbook: "a-memory-node-lost-its-data", commands: []string{"kubectl farpool accept-loss NAME -n NAMESPACE"}},
	v1alpha1.ReasonMapMissing:            {runbook: "the-pools-map-is-lost", commands: []string{"kubectl farpool begin-empty NAME -n NAMESPACE"}},
	v1alpha1.ReasonAgentUnreachable:      {runbook: "an-agent-cannot-be-reached-or-refuses"},
	v1alpha1.ReasonAgentRefused:          {runbook: "an-agent-cannot-be-reached-or-refuses"},
	v1alpha1.ReasonNodeUnschedulable:     {runbook: "a-memory-node-finds-no-place"},
	v1alpha1.ReasonRDMAMissing:           {runbook: "rdma", commands: []string{"kubectl farpool doctor NAME -n NAMESPACE"}},
	v1alpha1.ReasonDeviceMemoryMissing:   {runbook: "rdma"},
	v1alpha1.ReasonWireUnsuitable:        {runbook: "rdma"},
	v1alpha1.ReasonMemoryFull:            {runbook: "writes-fail-with-oom"},
	v1alpha1.ReasonMemoryNearlyFull:      {runbook: "writes-fail-with-oom"},
	v1alpha1.ReasonIssueFailed:           {runbook: "certificates-are-not-ready"},
	v1alpha1.ReasonTLSSecretInvalid:      {runbook: "certificates-are-not-ready"},
	v1alpha1.ReasonCertManagerMissing:    {runbook: "certificates-are-not-ready"},
	v1alpha1.ReasonCertManagerForbidden:  {runbook: "certificates-are-not-ready"},
	v1alpha1.ReasonCertificateNotReady:   {runbook: "certificates-are-not-ready", commands: []string{"kubectl -n NAMESPACE describe certificate,certificaterequest"}},
	v1alpha1.ReasonSecretMissing:         {runbook: "the-pools-hash-secret-is-gone"},
	v1alpha1.ReasonRowsQuarantined:       {runbook: "rows-are-quarantined"},
	v1alpha1.ReasonRepairBacklog:         {runbook: "a-repair-does-not-complete", commands: []string{"kubectl -n NAMESPACE get repairleases -o wide"}},
	v1alpha1.ReasonApprovalRequired:      {runbook: "more-memory-nodes-or-fewer", commands: []string{"kubectl farpool resize approve NAME -n NAMESPACE", "kubectl farpool resize abort NAME -n NAMESPACE"}},
	v1alpha1.ReasonResizeAborted:         {runbook: "aborting-a-resize"},
	v1alpha1.ReasonMovesExhausted:        {runbook: "a-resize-does-not-get-on"},
	v1alpha1.ReasonNowhereToEvacuate:     {runbook: "draining-kubernetes-nodes"},
	v1alpha1.ReasonPodDiffers:            {runbook: "edits-of-a-kvpool"},
	v1alpha1.ReasonPasswordChanging:      {runbook: "passwords", commands: []string{"kubectl farpool rotate-password NAME -n NAMESPACE --drop-old"}},
	v1alpha1.ReasonAmendmentRefused:      {runbook: "edits-of-a-kvpool"},
	v1alpha1.ReasonResizeUnsupported:     {runbook: "edits-of-a-kvpool"},
	v1alpha1.ReasonTooFewSessions:        {runbook: "edits-of-a-kvpool"},
	v1alpha1.ReasonTooManyMemoryNodes:    {runbook: "edits-of-a-kvpool"},
	v1alpha1.ReasonLastMemoryPool:        {runbook: "memory-pools-that-come-and-go"},
	v1alpha1.ReasonCPURequestMissing:     {runbook: "processors-of-memory-nodes"},
	v1alpha1.ReasonUpgrading:             {runbook: "upgrade-a-pool"},
	v1alpha1.ReasonUpgradeStopped:        {runbook: "upgrade-a-pool"},
	v1alpha1.ReasonUpgradeRefused:        {runbook: "upgrade-a-pool"},
	v1alpha1.ReasonGeometryMismatch:      {runbook: "a-pool-is-degraded"},
	v1alpha1.ReasonNameConflict:          {runbook: "a-pool-is-degraded"},
	v1alpha1.ReasonEpochConflict:         {runbook: "a-pool-is-degraded"},
	v1alpha1.ReasonApplyFailed:           {runbook: "a-pool-is-degraded"},
	v1alpha1.ReasonObjectsAwaited:        {runbook: "a-pool-is-degraded"},
	v1alpha1.ReasonDataLost:              {runbook: "a-memory-node-lost-its-data"},
	v1alpha1.ReasonForeignPods:           {runbook: "a-pool-is-degraded"},
	v1alpha1.ReasonAnotherOperator:       {runbook: "a-pool-is-degraded"},
}

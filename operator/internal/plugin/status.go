// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"farpool.dev/farpool/api/v1alpha1"
)

// Runbook is where the page for operators is published.
const Runbook = "https://farpool.dev/docs/operations/"

func (s *session) statusCommand() *cobra.Command {
	everywhere := false
	command := &cobra.Command{
		Use:   "status [POOL]",
		Short: "Show pools, what is wrong with them, and what to do about it",
		Long: `Show pools, what is wrong with them, and what to do about it.

It ends with 0 if no pool needs a person, with 1 if one does, and with 2 if it could not look.`,
		Example: `  kubectl farpool status                # all pools of the namespace
  kubectl farpool status cache -n shop  # one pool
  kubectl farpool status -A             # all pools of the cluster`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: s.names(&v1alpha1.KVPoolList{}),
	}
	command.Flags().BoolVarP(&everywhere, "all-namespaces", "A", false, "look at the pools of all namespaces")
	command.RunE = func(command *cobra.Command, arguments []string) error {
		c, err := s.connect()
		if err != nil {
			return err
		}
		name := ""
		if len(arguments) > 0 {
			name = arguments[0]
		}
		if everywhere && name != "" {
			return fmt.Errorf("%s is a pool of one namespace: name that with -n in place of -A", name)
		}
		if everywhere {
			c.namespace = ""
		}
		return s.status(command.Context(), c, name)
	}
	return command
}

func (s *session) status(ctx context.Context, c *cluster, name string) error {
	states, err := c.states(ctx, name)
	if err != nil {
		return err
	}
	if len(states) == 0 {
		where := "namespace " + c.namespace
		if c.namespace == "" {
			where = "the cluster"
		}
		s.say("%s has no pools.", where)
		return nil
	}
	wrong := false
	for i := range states {
		if i > 0 {
			s.say("")
		}
		found := judge(&states[i])
		show(s.Out, &states[i], found)
		wrong = wrong || slices.ContainsFunc(found, func(f finding) bool { return f.wrong })
	}
	if wrong {
		return verdict(exitWrong)
	}
	return nil
}

// states reads pools with what belongs to them: one, or all of the namespace, or of the cluster if there is no namespace.
func (c *cluster) states(ctx context.Context, name string) ([]state, error) {
	var pools v1alpha1.KVPoolList
	if name != "" {
		pool, err := c.pool(ctx, name)
		if err != nil {
			return nil, err
		}
		pools.Items = append(pools.Items, *pool)
	} else if err := c.list(ctx, "KVPools", &pools); err != nil {
		return nil, err
	}
	var nodes v1alpha1.MemoryNodeList
	var resizes v1alpha1.ResizeOperationList
	var leases v1alpha1.RepairLeaseList
	for kind, list := range map[string]client.ObjectList{"MemoryNodes": &nodes, "ResizeOperations": &resizes, "RepairLeases": &leases} {
		if err := c.list(ctx, kind, list); err != nil {
			return nil, err
		}
	}
	var states []state
	for _, pool := range pools.Items {
		one := state{pool: pool}
		for _, n := range nodes.Items {
			if n.Namespace == pool.Namespace && n.Spec.PoolName == pool.Name {
				one.nodes = append(one.nodes, n)
			}
		}
		for _, r := range resizes.Items {
			if r.Namespace == pool.Namespace && r.Spec.PoolName == pool.Name {
				one.resizes = append(one.resizes, r)
			}
		}
		for _, l := range leases.Items {
			if l.Namespace == pool.Namespace && l.Spec.PoolRef.Name == pool.Name {
				one.leases = append(one.leases, l)
			}
		}
		slices.SortFunc(one.nodes, func(a, b v1alpha1.MemoryNode) int {
			return cmp.Or(strings.Compare(a.Spec.MemoryPool, b.Spec.MemoryPool), cmp.Compare(a.Spec.Ordinal, b.Spec.Ordinal))
		})
		states = append(states, one)
	}
	return states, nil
}

func (c *cluster) list(ctx context.Context, kind string, list client.ObjectList) error {
	if err := c.List(ctx, list, client.InNamespace(c.namespace)); err != nil {
		return fmt.Errorf("list %s: %w", kind, err)
	}
	return nil
}

// show prints a pool as a tree, and below it what is to be told.
func show(out io.Writer, s *state, found []finding) {
	status := &s.pool.Status
	say(out, "KVPool %s/%s  %s", s.pool.Namespace, s.pool.Name, summary(status))
	if endpoint := status.Endpoint; endpoint != "" {
		say(out, "├─ endpoint       %s", endpoint)
	}
	if status.ShardMap != nil {
		say(out, "├─ map            %s, epoch %d", status.ShardMap.Name, status.ShardMap.Epoch)
	}
	for _, c := range status.Conditions {
		say(out, "├─ %-14s %s %s", shortened(c.Type), c.Status, c.Reason)
	}
	for i := range s.nodes {
		n := &s.nodes[i]
		ready := meta.FindStatusCondition(n.Status.Conditions, v1alpha1.ConditionReady)
		if ready == nil {
			ready = &metav1.Condition{Status: metav1.ConditionUnknown, Reason: "NotObserved"}
		}
		say(out, "├─ memory node    %s  %s, lends %s%s, epoch %d, on %s", n.Name, ready.Reason, n.Spec.Lend.String(), requested(n.Status.Requests), n.Status.Epoch, cmp.Or(n.Status.NodeName, "no Kubernetes node"))
	}
	for i := range s.resizes {
		if r := &s.resizes[i]; r.Status.CompletionTime == nil {
			say(out, "├─ resize         %s  %s, %s", r.Name, r.Status.Change, r.Status.Stage)
		}
	}
	if len(found) == 0 {
		say(out, "└─ Nothing needs a person.")
		return
	}
	say(out, "└─ %s", counted(found))
	for _, f := range found {
		showFinding(out, f)
	}
}

func shortened(condition string) string {
	if condition == v1alpha1.ConditionDataPlaneReachable {
		return "Reachable"
	}
	if condition == v1alpha1.ConditionCertificatesReady {
		return "Certificates"
	}
	return condition
}

func summary(status *v1alpha1.KVPoolStatus) string {
	parts := []string{"not available"}
	if meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionAvailable) {
		parts[0] = "available"
	}
	if status.Memory != nil {
		parts = append(parts, fmt.Sprintf("%d of %d memory nodes", status.Memory.Ready, status.Memory.Desired))
	}
	if status.Compute != nil {
		parts = append(parts, fmt.Sprintf("%d of %d compute shards", status.Compute.Ready, status.Compute.Desired))
	}
	if status.Template != nil {
		parts = append(parts, status.Template.Image)
	}
	return strings.Join(parts, ", ")
}

func counted(found []finding) string {
	wrong := 0
	for _, f := range found {
		if f.wrong {
			wrong++
		}
	}
	switch rest := len(found) - wrong; {
	case wrong == 0:
		return fmt.Sprintf("Nothing needs a person; %d on its way:", rest)
	case rest == 0:
		return fmt.Sprintf("%d to see to:", wrong)
	default:
		return fmt.Sprintf("%d to see to, %d on its way:", wrong, rest)
	}
}

func showFinding(out io.Writer, f finding) {
	mark := "·"
	if f.wrong {
		mark = "!"
	}
	say(out, "   %s %s %s: %s", mark, f.object, f.reason, f.message)
	for _, command := range f.commands {
		say(out, "       $ %s", command)
	}
	if f.runbook != "" {
		say(out, "       %s#%s", Runbook, f.runbook)
	}
}

// requested says what a memory node's pod requests of the memory of its Kubernetes node, with huge pages under their own name. Empty: there is no pod.
func requested(requests corev1.ResourceList) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(requests)) {
		quantity := requests[name]
		switch {
		case name == corev1.ResourceMemory:
			parts = append(parts, quantity.String())
		case strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix):
			parts = append(parts, quantity.String()+" of "+string(name))
		}
	}
	if len(parts) == 0 {
		return ""
	}
	return " (requests " + strings.Join(parts, " and ") + ")"
}

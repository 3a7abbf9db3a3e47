// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/yaml"

	"farpool.dev/farpool/api/v1alpha1"
)

func (s *session) mapCommand() *cobra.Command {
	format, epoch := "", int64(0)
	command := &cobra.Command{
		Use:   "map POOL",
		Short: "Show which memory node has which share of a pool's keys",
		Example: `  kubectl farpool map cache            # memory nodes, their shares, and parts that move
  kubectl farpool map cache -o yaml    # the ShardMap itself
  kubectl farpool map cache --epoch 7  # an earlier map: the last three are kept`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: s.names(&v1alpha1.KVPoolList{}),
	}
	command.Flags().StringVarP(&format, "output", "o", "", "yaml: print the ShardMap itself")
	command.Flags().Int64Var(&epoch, "epoch", 0, "the map of this epoch; 0: the newest")
	command.RunE = func(command *cobra.Command, arguments []string) error {
		c, err := s.connect()
		if err != nil {
			return err
		}
		if format != "" && format != "yaml" {
			return fmt.Errorf("--output is %q: set it to yaml, or leave it out", format)
		}
		m, err := c.shardMap(command.Context(), arguments[0], epoch)
		if err != nil {
			return err
		}
		if format == "yaml" {
			m.ManagedFields = nil
			text, err := yaml.Marshal(m)
			if err != nil {
				return err
			}
			_, err = s.Out.Write(text)
			return err
		}
		return showMap(s.Out, m)
	}
	return command
}

// shardMap reads the map of an epoch of a pool; of epoch 0 the newest one.
func (c *cluster) shardMap(ctx context.Context, pool string, epoch int64) (*v1alpha1.ShardMap, error) {
	if _, err := c.pool(ctx, pool); err != nil {
		return nil, err
	}
	var maps v1alpha1.ShardMapList
	if err := c.list(ctx, "ShardMaps", &maps); err != nil {
		return nil, err
	}
	var chosen *v1alpha1.ShardMap
	for i := range maps.Items {
		m := &maps.Items[i]
		if m.Spec.PoolName == pool && (epoch == 0 || m.Spec.Epoch == epoch) && (chosen == nil || m.Spec.Epoch > chosen.Spec.Epoch) {
			chosen = m
		}
	}
	switch {
	case chosen != nil:
		return chosen, nil
	case epoch != 0:
		return nil, fmt.Errorf("KVPool %s/%s has no ShardMap of epoch %d: the last three are kept (kubectl -n %s get shardmaps)", c.namespace, pool, epoch, c.namespace)
	}
	return nil, fmt.Errorf("KVPool %s/%s has no ShardMap yet: its first one waits for all memory nodes (kubectl farpool status %s -n %s)", c.namespace, pool, pool, c.namespace)
}

// showMap prints the memory nodes of a map and their shares.
func showMap(out io.Writer, m *v1alpha1.ShardMap) error {
	spec := &m.Spec
	state := "not followed by all memory nodes yet"
	if meta.IsStatusConditionTrue(m.Status.Conditions, v1alpha1.ConditionPublished) {
		state = "followed by all memory nodes"
	}
	total := len(spec.Directory.Tables)
	say(out, "ShardMap %s/%s  epoch %d, %s, %d parts", m.Namespace, m.Name, spec.Epoch, state, total)
	nodeOf := map[int32]int32{}
	for _, table := range spec.Tables {
		nodeOf[table.ID] = table.Node
	}
	// A part that is on its way counts for the memory node that it moves to.
	has, gets, gives := make([]int, len(spec.Nodes)), make([]int, len(spec.Nodes)), make([]int, len(spec.Nodes))
	count := func(counts []int, table int32) error {
		node, known := nodeOf[table]
		if !known || int(node) >= len(counts) {
			return fmt.Errorf("ShardMap %s/%s names table %d, which is on no memory node of it: report it with the map (-o yaml)", m.Namespace, m.Name, table)
		}
		counts[node]++
		return nil
	}
	for _, table := range spec.Directory.Tables {
		if err := count(has, table); err != nil {
			return err
		}
	}
	for _, d := range spec.Departures {
		if int(d.Part) >= total {
			return fmt.Errorf("ShardMap %s/%s has a departure of part %d, and %d parts: report it with the map (-o yaml)", m.Namespace, m.Name, d.Part, total)
		}
		if err := errors.Join(count(gives, d.From), count(gets, spec.Directory.Tables[d.Part])); err != nil {
			return err
		}
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "MEMORY NODE\tSTATE\tSHARE\tPARTS\tCOMING\tLEAVING\tMEMORY\tINCARNATION\tENDPOINT")
	for i, n := range spec.Nodes {
		fmt.Fprintf(table, "%s\t%s\t%.1f %%\t%d\t%d\t%d\t%d Mi\t%s\t%s\n", n.Name, n.State, 100*float64(has[i])/float64(total), has[i], gets[i], gives[i], n.MemoryBytes>>20, n.Incarnation, n.Endpoint)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if len(spec.Departures) > 0 {
		say(out, "Move %d is under way: kubectl -n %s get resizeoperations -o wide", spec.Move, m.Namespace)
	}
	return nil
}

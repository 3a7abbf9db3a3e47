// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"fmt"
	"regexp"
	"strconv"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"farpool.dev/farpool/api/v1alpha1"
)

// lossCommand is one that gives data up, and asks for a name first.
func (s *session) lossCommand(command *cobra.Command, completes client.ObjectList, act func(ctx context.Context, c *cluster, name string, yes bool) error) *cobra.Command {
	yes := false
	command.Args = cobra.ExactArgs(1)
	command.ValidArgsFunction = s.names(completes)
	command.Flags().BoolVar(&yes, "yes", false, "go on without being asked for the name")
	command.RunE = func(command *cobra.Command, arguments []string) error {
		c, err := s.connect()
		if err != nil {
			return err
		}
		return act(command.Context(), c, arguments[0], yes)
	}
	return command
}

func (s *session) acceptLossCommand() *cobra.Command {
	return s.lossCommand(&cobra.Command{
		Use:   "accept-loss MEMORYNODE",
		Short: "Let a memory node of a Store serve again, without what it has lost",
		Long: `Let a memory node of a Store serve again, without what it has lost.

The memory node runs and is empty; its part of the keys is stopped. Nothing brings the lost keys back. The command names the incarnation whose emptiness is
accepted: a later loss is another decision.`,
		Example: `  kubectl farpool status cache               # names the memory node that is stopped
  kubectl farpool accept-loss cache-memory-0`,
	}, &v1alpha1.MemoryNodeList{}, s.acceptLoss)
}

func (s *session) acceptLoss(ctx context.Context, c *cluster, name string, yes bool) error {
	node := &v1alpha1.MemoryNode{}
	if err := c.read(ctx, "MemoryNode", name, node); err != nil {
		return err
	}
	lost := meta.FindStatusCondition(node.Status.Conditions, v1alpha1.ConditionDataLost)
	if lost == nil || lost.Reason != v1alpha1.ReasonStopped {
		reason := "unknown"
		if lost != nil {
			reason = lost.Reason + ": " + lost.Message
		}
		return fmt.Errorf("MemoryNode %s/%s has no loss to accept (DataLost is %s)", c.namespace, name, reason)
	}
	s.warn("MemoryNode %s/%s has lost what incarnation %s held. Its part of the keys of pool %s begins empty.", c.namespace, name, node.Status.LostIncarnation, node.Spec.PoolName)
	if err := s.confirm(yes, name); err != nil {
		return err
	}
	if err := c.annotate(ctx, "MemoryNode", node, v1alpha1.AnnotationAcceptDataLoss, node.Status.Incarnation); err != nil {
		return err
	}
	s.say("The loss of memory node %s is accepted. The operator lets it serve in the next epoch.", name)
	return nil
}

func (s *session) giveUpCommand() *cobra.Command {
	return s.lossCommand(&cobra.Command{
		Use:   "give-up MEMORYNODE",
		Short: "Let a Store go on without a memory node that is gone for good",
		Long: `Let a Store go on without a memory node that is gone for good.

Its pod has no place to run, and a resize waits for it. What it held is lost when this is done. If there is a way to bring it back, do that first: make room
for its pod, or bring its Kubernetes node back.`,
		Example: `  kubectl farpool give-up cache-memory-2`,
	}, &v1alpha1.MemoryNodeList{}, s.giveUp)
}

func (s *session) giveUp(ctx context.Context, c *cluster, name string, yes bool) error {
	node := &v1alpha1.MemoryNode{}
	if err := c.read(ctx, "MemoryNode", name, node); err != nil {
		return err
	}
	ready := meta.FindStatusCondition(node.Status.Conditions, v1alpha1.ConditionReady)
	switch {
	case ready != nil && ready.Status == metav1.ConditionTrue:
		return fmt.Errorf("MemoryNode %s/%s serves: to be rid of it with its keys kept, lower replicas of its memory pool, or cordon its Kubernetes node", c.namespace, name)
	case node.Status.Incarnation == "":
		return fmt.Errorf("MemoryNode %s/%s has been in no map, so there is nothing to give up", c.namespace, name)
	}
	s.warn("Pool %s goes on without what incarnation %s of memory node %s/%s held.", node.Spec.PoolName, node.Status.Incarnation, c.namespace, name)
	if err := s.confirm(yes, name); err != nil {
		return err
	}
	if err := c.annotate(ctx, "MemoryNode", node, v1alpha1.AnnotationGiveUp, node.Status.Incarnation); err != nil {
		return err
	}
	s.say("Incarnation %s of memory node %s is given up.", node.Status.Incarnation, name)
	return nil
}

func (s *session) beginEmptyCommand() *cobra.Command {
	return s.lossCommand(&cobra.Command{
		Use:   "begin-empty POOL",
		Short: "Give up all keys of a pool whose map is lost",
		Long: `Give up all keys of a pool whose map is lost (Degraded, MapMissing).

The operator deletes the pods of all memory nodes, and publishes a new map when all are back and empty. Before that, try to make every memory node reachable,
or to restore the newest ShardMap from a backup.`,
		Example: `  kubectl farpool begin-empty cache`,
	}, &v1alpha1.KVPoolList{}, s.beginEmpty)
}

// spelledOut finds the epoch in the message of MapMissing, which has the annotation that gives the pool's keys up.
var spelledOut = regexp.MustCompile(regexp.QuoteMeta(v1alpha1.AnnotationBeginEmpty) + `=([0-9]{1,10})`)

func (s *session) beginEmpty(ctx context.Context, c *cluster, name string, yes bool) error {
	pool, err := c.pool(ctx, name)
	if err != nil {
		return err
	}
	degraded := meta.FindStatusCondition(pool.Status.Conditions, v1alpha1.ConditionDegraded)
	var match []string
	if degraded != nil {
		match = spelledOut.FindStringSubmatch(degraded.Message)
	}
	if match == nil {
		return fmt.Errorf("KVPool %s/%s has its map, or the operator is at work on the loss: see kubectl farpool status %s -n %s", c.namespace, name, name, c.namespace)
	}
	if _, err := strconv.ParseInt(match[1], 10, 64); err != nil {
		return fmt.Errorf("read the epoch in the condition Degraded of KVPool %s/%s: %w", c.namespace, name, err)
	}
	s.warn("All keys that KVPool %s/%s held up to epoch %s are given up.", c.namespace, name, match[1])
	if err := s.confirm(yes, name); err != nil {
		return err
	}
	if err := c.annotate(ctx, "KVPool", pool, v1alpha1.AnnotationBeginEmpty, match[1]); err != nil {
		return err
	}
	s.say("KVPool %s begins empty: the operator deletes the pods of its memory nodes, and publishes a new map when all are back.", name)
	return nil
}

func (s *session) deleteCommand() *cobra.Command {
	return s.lossCommand(&cobra.Command{
		Use:   "delete POOL",
		Short: "Delete a pool with all its keys",
		Long: `Delete a pool with all its keys.

Nothing brings them back. The operator's chart installs a policy that refuses to delete a KVPool with dataPolicy Store whose annotation
` + v1alpha1.AnnotationConfirmDeletion + ` does not have its name; this command sets it. The policy says nothing about namespaces: with a namespace, its pools are deleted.`,
		Example: `  kubectl farpool delete ledger`,
	}, &v1alpha1.KVPoolList{}, s.deletePool)
}

func (s *session) deletePool(ctx context.Context, c *cluster, name string, yes bool) error {
	pool, err := c.pool(ctx, name)
	if err != nil {
		return err
	}
	s.warn("KVPool %s/%s (%s) is deleted, and all its keys are lost.", c.namespace, name, pool.Spec.DataPolicy)
	if err := s.confirm(yes, name); err != nil {
		return err
	}
	confirmed := pool.DeepCopy()
	metav1.SetMetaDataAnnotation(&confirmed.ObjectMeta, v1alpha1.AnnotationConfirmDeletion, name)
	if err := c.Patch(ctx, confirmed, client.MergeFrom(pool)); err != nil {
		return fmt.Errorf("confirm the deletion of KVPool %s/%s: %w", c.namespace, name, err)
	}
	// Another pool that has taken the name meanwhile is left alone.
	if err := c.Delete(ctx, pool, client.Preconditions{UID: &pool.UID}); err != nil {
		return fmt.Errorf("delete KVPool %s/%s: %w", c.namespace, name, err)
	}
	s.say("KVPool %s/%s is deleted. Kubernetes removes its pods, Services and Secrets.", c.namespace, name)
	return nil
}

func (c *cluster) annotate(ctx context.Context, kind string, object client.Object, annotation, value string) error {
	before, ok := object.DeepCopyObject().(client.Object)
	if !ok {
		return fmt.Errorf("%s %s cannot be copied", kind, object.GetName())
	}
	annotations := object.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[annotation] = value
	object.SetAnnotations(annotations)
	return c.merge(ctx, kind, object, before)
}

// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"farpool.dev/farpool/api/v1alpha1"
)

func (s *session) resizeCommand() *cobra.Command {
	command := &cobra.Command{Use: "resize", Short: "Approve or abort a change of a pool's memory nodes"}
	approve := &cobra.Command{
		Use:   "approve RESIZE",
		Short: "Let a ResizeOperation move keys",
		Long: `Let a ResizeOperation move keys, where spec.resize.approval of its pool is Required.

What has been approved is not taken back; it can be aborted.`,
		Example: `  kubectl get resizeoperations
  kubectl farpool resize approve cache-resize-4`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: s.names(&v1alpha1.ResizeOperationList{}),
	}
	approve.RunE = s.onResize(s.approve)
	abort := &cobra.Command{
		Use:   "abort RESIZE",
		Short: "Begin no further step of a ResizeOperation",
		Long: `Begin no further step of a ResizeOperation.

A move of keys that is under way is finished. Memory nodes that were added and hold nothing are removed. The pool then stays as it is until its spec asks for
another number of memory nodes, or the ResizeOperation is deleted.`,
		Example:           `  kubectl farpool resize abort cache-resize-4`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: s.names(&v1alpha1.ResizeOperationList{}),
	}
	abort.RunE = s.onResize(s.abort)
	command.AddCommand(approve, abort)
	return command
}

func (s *session) onResize(act func(context.Context, *cluster, *v1alpha1.ResizeOperation) error) func(*cobra.Command, []string) error {
	return func(command *cobra.Command, arguments []string) error {
		c, err := s.connect()
		if err != nil {
			return err
		}
		resize := &v1alpha1.ResizeOperation{}
		if err := c.read(command.Context(), "ResizeOperation", arguments[0], resize); err != nil {
			return err
		}
		if resize.Status.CompletionTime != nil {
			return fmt.Errorf("ResizeOperation %s/%s is over (%s): list the open ones with kubectl -n %s get resizeoperations", c.namespace, resize.Name, resize.Status.Stage, c.namespace)
		}
		return act(command.Context(), c, resize)
	}
}

func (s *session) approve(ctx context.Context, c *cluster, resize *v1alpha1.ResizeOperation) error {
	switch {
	case resize.Spec.RequestedState == v1alpha1.RequestedAbort:
		return fmt.Errorf("ResizeOperation %s/%s has been aborted: delete it, and the operator plans the resize again", c.namespace, resize.Name)
	case resize.Spec.Approval != v1alpha1.ApprovalRequired:
		s.say("ResizeOperation %s waits for no approval (%s).", resize.Name, resize.Spec.Approval)
		return nil
	}
	before := resize.DeepCopy()
	resize.Spec.Approval = v1alpha1.ApprovalApproved
	if err := c.merge(ctx, "ResizeOperation", resize, before); err != nil {
		return err
	}
	s.say("ResizeOperation %s is approved: %s. Follow it with kubectl -n %s get resize %s -w", resize.Name, resize.Status.Change, c.namespace, resize.Name)
	return nil
}

func (s *session) abort(ctx context.Context, c *cluster, resize *v1alpha1.ResizeOperation) error {
	if resize.Spec.RequestedState == v1alpha1.RequestedAbort {
		s.say("ResizeOperation %s has been aborted before.", resize.Name)
		return nil
	}
	before := resize.DeepCopy()
	resize.Spec.RequestedState = v1alpha1.RequestedAbort
	if err := c.merge(ctx, "ResizeOperation", resize, before); err != nil {
		return err
	}
	s.say("ResizeOperation %s begins no further step. A move that is under way is finished. To plan it again: kubectl -n %s delete resizeoperation %s", resize.Name, c.namespace, resize.Name)
	return nil
}

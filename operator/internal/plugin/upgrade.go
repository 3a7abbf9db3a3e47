// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"farpool.dev/farpool/api/v1alpha1"
)

// aim is the image that an upgrade asks for.
type aim struct {
	version, image string
	// original: the image that the pool was created with.
	original bool
}

func (s *session) upgradeCommand() *cobra.Command {
	var to aim
	waits, timeout := true, 30*time.Minute
	command := &cobra.Command{
		Use:   "upgrade POOL (--version VERSION | --image IMAGE | --original)",
		Short: "Give a pool another image, and follow the upgrade",
		Long: `Give a pool another image, and follow the upgrade.

Compute shards are replaced first, then memory nodes restart with the new image, one at a time, and keep their memory. Upgrade the operator before.
To go back, give the same command with the earlier image. If the command ends early, the upgrade goes on.`,
		Example: `  kubectl farpool upgrade cache --version v0.2.0
  kubectl farpool upgrade cache --image registry.example/farpool/dataplane@sha256:...
  kubectl farpool upgrade cache --original   # back to the image that the pool was created with`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: s.names(&v1alpha1.KVPoolList{}),
	}
	command.Flags().StringVar(&to.version, "version", "", "a tag of the image that the pool was created with")
	command.Flags().StringVar(&to.image, "image", "", "an image in full")
	command.Flags().BoolVar(&to.original, "original", false, "the image that the pool was created with")
	command.Flags().BoolVar(&waits, "wait", waits, "wait until every process has the image, and tell how far it is")
	command.Flags().DurationVar(&timeout, "timeout", timeout, "how long to wait")
	command.RunE = func(command *cobra.Command, arguments []string) error {
		named := 0
		for _, given := range []bool{to.version != "", to.image != "", to.original} {
			if given {
				named++
			}
		}
		if named != 1 {
			return errors.New("name one image: --version, --image or --original")
		}
		c, err := s.connect()
		if err != nil {
			return err
		}
		return s.upgrade(command.Context(), c, arguments[0], to, waits, timeout)
	}
	return command
}

func (s *session) upgrade(ctx context.Context, c *cluster, name string, to aim, waits bool, timeout time.Duration) error {
	pool, err := c.pool(ctx, name)
	if err != nil {
		return err
	}
	if pool.Spec.Management == v1alpha1.ManagementPaused {
		return fmt.Errorf("KVPool %s/%s is paused: set spec.management to Managed first", c.namespace, name)
	}
	before := pool.DeepCopy()
	pool.Spec.Version, pool.Spec.Image = to.version, to.image
	if err := c.merge(ctx, "KVPool", pool, before); err != nil {
		return err
	}
	s.say("KVPool %s/%s asks for the image.", c.namespace, name)
	if !waits {
		return nil
	}
	told, stopped := "", error(nil)
	err = c.until(ctx, timeout, func(ctx context.Context) (string, bool, error) {
		now, err := c.pool(ctx, name)
		if err != nil {
			return "", false, err
		}
		current := meta.FindStatusCondition(now.Status.Conditions, v1alpha1.ConditionUpToDate)
		if current == nil || current.ObservedGeneration < pool.Generation {
			return "the operator has not looked at the edit yet: kubectl farpool status " + name, false, nil
		}
		if message := current.Reason + ": " + current.Message; message != told {
			told = message
			s.say("%s", message)
		}
		switch current.Reason {
		case v1alpha1.ReasonUpgradeRefused, v1alpha1.ReasonUpgradeStopped:
			stopped = verdict(exitWrong)
			return "", true, nil
		}
		return told, current.Status == metav1.ConditionTrue || current.Reason == v1alpha1.ReasonPodDiffers || current.Reason == v1alpha1.ReasonPasswordChanging, nil
	})
	if err != nil {
		return fmt.Errorf("follow the upgrade of KVPool %s/%s, which goes on: %w", c.namespace, name, err)
	}
	return stopped
}

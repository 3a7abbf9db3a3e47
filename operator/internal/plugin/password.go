// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/render"
)

const (
	randomPasswordBytes  = 24
	longestPasswordBytes = 512
)

func (s *session) rotatePasswordCommand() *cobra.Command {
	file, waits, timeout := "", true, 5*time.Minute
	command := &cobra.Command{
		Use:   "rotate-password POOL",
		Short: "Give a pool another password",
		Long: `Give a pool another password: a random one, or that of a file.

The new password is in the Secret POOL-password. Connections that are open stay open. New ones need it as soon as the kubelet has given it to the compute
shard, within about two minutes; the command waits until it has, for every compute shard. Applications read the Secret again before that.`,
		Example: `  kubectl farpool rotate-password cache
  kubectl farpool rotate-password cache --from-file=new-password
  kubectl -n shop get secret cache-password -o jsonpath='{.data.password}' | base64 -d`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: s.names(&v1alpha1.KVPoolList{}),
	}
	command.Flags().StringVar(&file, "from-file", "", "file with the new password, - for standard input; a line's end is not part of it. Empty: a random one")
	command.Flags().BoolVar(&waits, "wait", waits, "wait until every compute shard has it")
	command.Flags().DurationVar(&timeout, "timeout", timeout, "how long to wait")
	command.RunE = func(command *cobra.Command, arguments []string) error {
		c, err := s.connect()
		if err != nil {
			return err
		}
		password, err := s.newPassword(file)
		if err != nil {
			return err
		}
		return s.rotatePassword(command.Context(), c, arguments[0], password, waits, timeout)
	}
	return command
}

func (s *session) newPassword(file string) ([]byte, error) {
	if file == "" {
		random := make([]byte, randomPasswordBytes)
		if _, err := rand.Read(random); err != nil {
			return nil, fmt.Errorf("draw a password: %w", err)
		}
		return []byte(base64.RawURLEncoding.EncodeToString(random)), nil
	}
	in := s.In
	if file != "-" {
		opened, err := os.Open(file)
		if err != nil {
			return nil, fmt.Errorf("read the new password: %w", err)
		}
		defer opened.Close()
		in = opened
	}
	text, err := io.ReadAll(io.LimitReader(in, longestPasswordBytes+2))
	if err != nil {
		return nil, fmt.Errorf("read the new password from %s: %w", file, err)
	}
	text = bytes.TrimRight(text, "\r\n")
	if len(text) == 0 || len(text) > longestPasswordBytes || bytes.ContainsAny(text, "\r\n\x00") {
		return nil, fmt.Errorf("%s holds no password: it has to be one line of 1 to %d bytes", file, longestPasswordBytes)
	}
	return text, nil
}

func (s *session) rotatePassword(ctx context.Context, c *cluster, name string, password []byte, waits bool, timeout time.Duration) error {
	pool, err := c.pool(ctx, name)
	if err != nil {
		return err
	}
	if pool.Spec.Security.Password == v1alpha1.PasswordNone {
		return fmt.Errorf("KVPool %s/%s has no password (spec.security.password is None): set it to Generated, and the operator makes one", c.namespace, name)
	}
	secret := &corev1.Secret{}
	if err := c.read(ctx, "Secret", render.Pool{Name: name}.PasswordSecretName(), secret); err != nil {
		return err
	}
	before := secret.DeepCopy()
	if secret.Data == nil {
		secret.Data = map[string][]byte{}
	}
	secret.Data[render.KeyPassword] = password
	if err := c.merge(ctx, "Secret", secret, before); err != nil {
		return err
	}
	s.say("Secret %s/%s has the new password.", c.namespace, secret.Name)
	if !waits {
		return nil
	}
	if err := c.until(ctx, timeout, func(ctx context.Context) (string, bool, error) { return c.passwordArrived(ctx, name, password) }); err != nil {
		return fmt.Errorf("wait for compute shards to have the password: %w", err)
	}
	s.say("Every compute shard has it.")
	return nil
}

// passwordArrived asks every compute shard that runs for the file that the kubelet keeps. A shard reads it again within a second.
func (c *cluster) passwordArrived(ctx context.Context, pool string, password []byte) (string, bool, error) {
	pods, err := c.pods(ctx, pool, v1alpha1.ComponentComputeShard)
	if err != nil {
		return "", false, err
	}
	sum := fmt.Sprintf("%x", sha256.Sum256(password))
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	for i := range pods {
		if !running(&pods[i]) {
			continue // it begins with the password that the Secret has
		}
		var out, errs bytes.Buffer
		code, err := c.run.execute(ctx, &pods[i], pods[i].Spec.Containers[0].Name, []string{"sha256sum", render.PasswordFile}, &out, &errs)
		switch {
		case err != nil:
			return fmt.Sprintf("compute shard %s: %v", pods[i].Name, err), false, nil
		case code != 0:
			return fmt.Sprintf("compute shard %s: %s", pods[i].Name, strings.TrimSpace(errs.String())), false, nil
		case !strings.HasPrefix(out.String(), sum):
			return fmt.Sprintf("compute shard %s has the password of before", pods[i].Name), false, nil
		}
	}
	return "", true, nil
}

// pods lists the pods of a pool, or of one component of it.
func (c *cluster) pods(ctx context.Context, pool, component string) ([]corev1.Pod, error) {
	labels := client.MatchingLabels{v1alpha1.LabelPool: pool}
	if component != "" {
		labels[v1alpha1.LabelComponent] = component
	}
	var pods corev1.PodList
	if err := c.List(ctx, &pods, client.InNamespace(c.namespace), labels); err != nil {
		return nil, fmt.Errorf("list the pods of KVPool %s/%s: %w", c.namespace, pool, err)
	}
	return pods.Items, nil
}

// running says whether the first container of a pod runs.
func running(pod *corev1.Pod) bool {
	return len(pod.Status.ContainerStatuses) > 0 && pod.Status.ContainerStatuses[0].State.Running != nil && pod.DeletionTimestamp.IsZero()
}

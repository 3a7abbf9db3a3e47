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
	file, atOnce, dropOld, timeout := "", false, false, 5*time.Minute
	command := &cobra.Command{
		Use:   "rotate-password POOL",
		Short: "Give a pool another password",
		Long: `Give a pool another password: a random one, or that of a file.

Compute shards take the old password and the new one while applications change. The command first makes every compute shard take the new password as a second one,
and waits for it: kubelets bring a changed Secret to shards within about two minutes. Then the Secret gives applications the new password. The old one counts until
the command is given again with --drop-old. Connections that are open stay open.

The Secret is POOL-password, or your own if the pool takes its password from one. If the command is interrupted, both passwords go on to count.`,
		Example: `  kubectl farpool rotate-password cache
  kubectl farpool rotate-password cache --drop-old
  kubectl farpool rotate-password cache --from-file=new-password --at-once
  kubectl -n shop get secret cache-password -o jsonpath='{.data.password}' | base64 -d`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: s.names(&v1alpha1.KVPoolList{}),
	}
	command.Flags().StringVar(&file, "from-file", "", "file with the new password, - for standard input; a line's end is not part of it. Empty: a random one")
	command.Flags().BoolVar(&atOnce, "at-once", false, "the old password does not count in a compute shard that has the new one: for a password that others know. Connections of applications fail meanwhile")
	command.Flags().BoolVar(&dropOld, "drop-old", false, "end a rotation: the old password counts no longer")
	command.Flags().DurationVar(&timeout, "timeout", timeout, "how long to wait for compute shards, each time")
	command.MarkFlagsMutuallyExclusive("at-once", "drop-old")
	command.MarkFlagsMutuallyExclusive("from-file", "drop-old")
	command.RunE = func(command *cobra.Command, arguments []string) error {
		c, err := s.connect()
		if err != nil {
			return err
		}
		r, err := s.rotation(command.Context(), c, arguments[0], timeout)
		switch {
		case err != nil:
			return err
		case dropOld:
			return r.dropOld(command.Context())
		}
		password, err := s.newPassword(file)
		switch {
		case err != nil:
			return err
		case atOnce:
			return r.replace(command.Context(), password)
		}
		return r.rotate(command.Context(), password)
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

// rotation changes the password of one pool.
type rotation struct {
	*session
	*cluster
	pool, secret, key string
	timeout           time.Duration
}

func (s *session) rotation(ctx context.Context, c *cluster, name string, timeout time.Duration) (*rotation, error) {
	pool, err := c.pool(ctx, name)
	if err != nil {
		return nil, err
	}
	secret, key := render.Pool{Name: name, Spec: pool.Spec}.Password()
	if secret == "" {
		return nil, fmt.Errorf("KVPool %s/%s has no password (spec.security.password is None): set it to Generated, and the operator makes one", c.namespace, name)
	}
	return &rotation{session: s, cluster: c, pool: name, secret: secret, key: key, timeout: timeout}, nil
}

// passwords are what a Secret has, or what a compute shard's files have. also is nil if there is no second one.
type passwords struct{ first, also []byte }

// read reads the Secret.
func (r *rotation) read(ctx context.Context) (*corev1.Secret, passwords, error) {
	secret := &corev1.Secret{}
	if err := r.cluster.read(ctx, "Secret", r.secret, secret); err != nil {
		return nil, passwords{}, err
	}
	now := passwords{secret.Data[r.key], secret.Data[r.key+render.AlsoSuffix]}
	if len(now.first) == 0 {
		return nil, passwords{}, fmt.Errorf("the Secret %s/%s has no password under key %s: write one there, and compute shards take it", r.namespace, r.secret, r.key)
	}
	return secret, now, nil
}

// write changes the Secret, which must not have changed since it was read, and waits until every compute shard has what it holds then.
func (r *rotation) write(ctx context.Context, secret *corev1.Secret, wanted passwords) error {
	before := secret.DeepCopy()
	secret.Data[r.key] = wanted.first
	delete(secret.Data, r.key+render.AlsoSuffix)
	if wanted.also != nil {
		secret.Data[r.key+render.AlsoSuffix] = wanted.also
	}
	if err := r.merge(ctx, "Secret", secret, before); err != nil {
		return err
	}
	return r.arrive(ctx, wanted)
}

// arrive waits until every compute shard takes these passwords.
func (r *rotation) arrive(ctx context.Context, wanted passwords) error {
	err := r.until(ctx, r.timeout, func(ctx context.Context) (string, bool, error) { return r.arrived(ctx, wanted) })
	if err != nil {
		return fmt.Errorf("wait for compute shards to read Secret %s/%s: %w", r.namespace, r.secret, err)
	}
	// A shard reads its files every second.
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(2 * r.pause):
		return nil
	}
}

// rotate changes the password so that no application that has the old one or the new one is refused.
func (r *rotation) rotate(ctx context.Context, password []byte) error {
	secret, now, err := r.read(ctx)
	switch {
	case err != nil:
		return err
	case len(now.also) > 0:
		return fmt.Errorf("two passwords count already: Secret %s/%s has a key %s, from a rotation that is not over. When applications use the password under key %s, give this command with --drop-old, and then again",
			r.namespace, r.secret, r.key+render.AlsoSuffix, r.key)
	case bytes.Equal(now.first, password):
		return fmt.Errorf("the Secret %s/%s has this password already: nothing was changed", r.namespace, r.secret)
	}
	r.say("Every compute shard gets the new password as a second one.")
	if err := r.write(ctx, secret, passwords{now.first, password}); err != nil {
		return err
	}
	if secret, _, err = r.read(ctx); err != nil {
		return err
	}
	if err := r.write(ctx, secret, passwords{password, now.first}); err != nil {
		return err
	}
	r.say("Secret %s/%s has the new password, and every compute shard takes it. The old one counts as well: when all applications use the new one, give\n  kubectl farpool -n %s rotate-password %s --drop-old",
		r.namespace, r.secret, r.namespace, r.pool)
	return nil
}

// replace changes the password. The old one counts no longer in a shard that has the new one.
func (r *rotation) replace(ctx context.Context, password []byte) error {
	secret, _, err := r.read(ctx)
	if err != nil {
		return err
	}
	// An empty second password says that none counts beside the first.
	if err := r.write(ctx, secret, passwords{password, []byte{}}); err != nil {
		return err
	}
	return r.dropOld(ctx)
}

// dropOld ends a rotation, once every compute shard has the password that the Secret has.
func (r *rotation) dropOld(ctx context.Context) error {
	secret, now, err := r.read(ctx)
	if err != nil {
		return err
	}
	if now.also == nil {
		r.say("Secret %s/%s has no second password. A password that was replaced without this command counts for 10 minutes.", r.namespace, r.secret)
		return nil
	}
	if err := r.arrive(ctx, now); err != nil {
		return err
	}
	if err := r.write(ctx, secret, passwords{first: now.first}); err != nil {
		return err
	}
	r.say("Every compute shard takes the password that Secret %s/%s has, and no other.", r.namespace, r.secret)
	return nil
}

// arrived asks every compute shard that runs for the files that the kubelet keeps.
func (r *rotation) arrived(ctx context.Context, wanted passwords) (string, bool, error) {
	pods, err := r.pods(ctx, r.pool, v1alpha1.ComponentComputeShard)
	if err != nil {
		return "", false, err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	file := render.PasswordFile(r.key)
	for i := range pods {
		if !running(&pods[i]) {
			continue // it begins with what the Secret has
		}
		var out, errs bytes.Buffer
		_, err := r.run.execute(ctx, &pods[i], pods[i].Spec.Containers[0].Name, []string{"sha256sum", file, file + render.AlsoSuffix}, &out, &errs)
		sums := sumsOf(out.String())
		first, there := sums[file]
		also, second := sums[file+render.AlsoSuffix]
		switch {
		case err != nil:
			return fmt.Sprintf("compute shard %s: %v", pods[i].Name, err), false, nil
		case !there:
			return fmt.Sprintf("compute shard %s: %s", pods[i].Name, strings.TrimSpace(errs.String())), false, nil
		case first != sumOf(wanted.first) || second != (wanted.also != nil) || second && also != sumOf(wanted.also):
			return fmt.Sprintf("compute shard %s has the passwords of before", pods[i].Name), false, nil
		}
	}
	return "", true, nil
}

func sumOf(password []byte) string { return fmt.Sprintf("%x", sha256.Sum256(password)) }

// sumsOf reads what sha256sum prints: a sum and a file's name on each line.
func sumsOf(printed string) map[string]string {
	sums := map[string]string{}
	for _, line := range strings.Split(printed, "\n") {
		if sum, file, found := strings.Cut(line, "  "); found {
			sums[file] = sum
		}
	}
	return sums
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

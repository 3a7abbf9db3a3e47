// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/render"
)

// cleanUp bounds how long a command that was ended takes to remove what it made.
const cleanUp = 10 * time.Second

func (s *session) doctorCommand() *cobra.Command {
	timeout := 2 * time.Minute
	command := &cobra.Command{
		Use:   "doctor POOL|POD",
		Short: "Say what the processes of a pool lack for their network",
		Long: `Say what the processes of a pool lack for their network, by farpool-doctor in each of its pods.

In a pod whose process does not run, because it ends at once, the doctor runs in a copy of the pod that is removed afterwards. The command ends with 1 if
something stands in the way of RDMA.`,
		Example: `  kubectl farpool doctor cache           # every pod of the pool
  kubectl farpool doctor cache-memory-0  # one`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: s.names(&v1alpha1.KVPoolList{}),
	}
	command.Flags().DurationVar(&timeout, "timeout", timeout, "how long the doctor may take in each pod")
	command.RunE = func(command *cobra.Command, arguments []string) error {
		c, err := s.connect()
		if err != nil {
			return err
		}
		return s.doctor(command.Context(), c, arguments[0], timeout)
	}
	return command
}

func (s *session) doctor(ctx context.Context, c *cluster, name string, timeout time.Duration) error {
	pods, err := c.pods(ctx, name, "")
	if err != nil {
		return err
	}
	if len(pods) == 0 {
		pod := corev1.Pod{}
		if err := c.read(ctx, "pod, and no pod of a KVPool,", name, &pod); err != nil {
			return err
		}
		if pod.Labels[v1alpha1.LabelComponent] == "" {
			return fmt.Errorf("pod %s/%s is of no pool: name a pool, or a pod of one", c.namespace, name)
		}
		pods = append(pods, pod)
	}
	worst, failed := 0, []error(nil)
	for i := range pods {
		s.say("== %s", pods[i].Name)
		code, err := c.examine(ctx, &pods[i], timeout, s.Out, s.ErrOut)
		if err != nil {
			failed = append(failed, err)
			s.warn("%v", err)
		}
		worst = max(worst, code)
	}
	if len(failed) > 0 {
		return fmt.Errorf("the doctor could not look into %d of %d pods", len(failed), len(pods))
	}
	if worst > 0 {
		return verdict(exitWrong)
	}
	return nil
}

func (c *cluster) examine(ctx context.Context, pod *corev1.Pod, timeout time.Duration, out, errs io.Writer) (int, error) {
	program := []string{"farpool-doctor"}
	if running(pod) {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		return c.run.execute(ctx, pod, pod.Spec.Containers[0].Name, program, out, errs)
	}
	copied := copyOf(pod, program)
	if err := c.Create(ctx, copied); err != nil {
		return 0, fmt.Errorf("make a copy of pod %s: %w", pod.Name, err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUp)
		defer cancel()
		if err := client.IgnoreNotFound(c.Delete(ctx, copied)); err != nil {
			say(errs, "pod %s/%s was made for the doctor and stays: %v", c.namespace, copied.Name, err)
		}
	}()
	return c.follow(ctx, copied.Name, copied.Spec.Containers[0].Name, timeout, out, func(pod *corev1.Pod) []corev1.ContainerStatus { return pod.Status.ContainerStatuses })
}

// copyOf is a pod with the devices, networks and volumes of another that runs a program once, takes hardly any memory, and belongs to nobody.
func copyOf(pod *corev1.Pod, program []string) *corev1.Pod {
	annotations := map[string]string{}
	for key, value := range pod.Annotations {
		// What the pool's own annotations say of the pod does not hold for its copy; Multus's do.
		if !strings.Contains(key, "farpool.dev/") && !strings.HasSuffix(key, "/network-status") {
			annotations[key] = value
		}
	}
	copied := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name + "-doctor-" + rand.String(5), Annotations: annotations},
		Spec:       *pod.Spec.DeepCopy(),
	}
	copied.Spec.NodeName, copied.Spec.RestartPolicy, copied.Spec.InitContainers, copied.Spec.EphemeralContainers = "", corev1.RestartPolicyNever, nil, nil
	copied.Spec.PriorityClassName, copied.Spec.Priority, copied.Spec.TopologySpreadConstraints = "", nil, nil
	copied.Spec.Containers = copied.Spec.Containers[:1]
	main := &copied.Spec.Containers[0]
	main.Command, main.Args = program, nil
	main.LivenessProbe, main.ReadinessProbe, main.StartupProbe, main.Lifecycle = nil, nil, nil, nil
	little := resource.MustParse("64Mi")
	for _, list := range []corev1.ResourceList{main.Resources.Requests, main.Resources.Limits} {
		if _, set := list[corev1.ResourceMemory]; set {
			list[corev1.ResourceMemory] = little
		}
	}
	return copied
}

// follow waits until a container has ended, prints its log, and returns its exit status.
func (c *cluster) follow(ctx context.Context, pod, container string, timeout time.Duration, out io.Writer, statuses func(*corev1.Pod) []corev1.ContainerStatus) (int, error) {
	var ended *corev1.ContainerStateTerminated
	err := c.until(ctx, timeout, func(ctx context.Context) (string, bool, error) {
		now := &corev1.Pod{}
		if err := c.read(ctx, "pod", pod, now); err != nil {
			return "", false, err
		}
		for _, status := range statuses(now) {
			if status.Name == container {
				if ended = status.State.Terminated; ended != nil {
					return "", true, nil
				}
				if waiting := status.State.Waiting; waiting != nil {
					return fmt.Sprintf("its container %s waits: %s %s", container, waiting.Reason, waiting.Message), false, nil
				}
				return fmt.Sprintf("its container %s runs", container), false, nil
			}
		}
		for _, condition := range now.Status.Conditions {
			if condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionFalse {
				return condition.Message, false, nil
			}
		}
		return "the kubelet has not begun", false, nil
	})
	if err != nil {
		return 0, fmt.Errorf("wait for container %s of pod %s/%s: %w", container, c.namespace, pod, err)
	}
	logs, err := c.core.CoreV1().Pods(c.namespace).GetLogs(pod, &corev1.PodLogOptions{Container: container}).Stream(ctx)
	if err != nil {
		return 0, fmt.Errorf("read the log of container %s of pod %s/%s: %w", container, c.namespace, pod, err)
	}
	defer logs.Close()
	if _, err := io.Copy(out, logs); err != nil {
		return 0, fmt.Errorf("read the log of container %s of pod %s/%s: %w", container, c.namespace, pod, err)
	}
	return int(ended.ExitCode), nil
}

func (s *session) fsckCommand() *cobra.Command {
	machine, timeout := false, 10*time.Minute
	command := &cobra.Command{
		Use:   "fsck MEMORYNODE",
		Short: "Account for every byte of what a memory node has left",
		Long: `Account for every byte of what a memory node has left, by farpool-fsck in its pod.

The memory node's process must have ended, as one does that finds its memory damaged: fsck refuses memory that is in use. It only reads. While it does, a next
process cannot take the memory up, ends, and is started again. It runs in an ephemeral container, which stays in the pod's list when it has ended.
The command ends with 1 if there is damage.`,
		Example: `  kubectl farpool fsck cache-memory-0
  kubectl farpool fsck cache-memory-0 --json`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: s.names(&v1alpha1.MemoryNodeList{}),
	}
	command.Flags().BoolVar(&machine, "json", false, "print the account for programs")
	command.Flags().DurationVar(&timeout, "timeout", timeout, "how long it may take")
	command.RunE = func(command *cobra.Command, arguments []string) error {
		c, err := s.connect()
		if err != nil {
			return err
		}
		return s.fsck(command.Context(), c, arguments[0], machine, timeout)
	}
	return command
}

func (s *session) fsck(ctx context.Context, c *cluster, name string, machine bool, timeout time.Duration) error {
	if err := c.read(ctx, "MemoryNode", name, &v1alpha1.MemoryNode{}); err != nil {
		return err
	}
	pod := &corev1.Pod{}
	if err := c.read(ctx, "pod", name, pod); err != nil {
		return err
	}
	if running(pod) {
		return fmt.Errorf("the process of memory node %s/%s runs, and its memory changes: fsck looks at memory whose process has ended", c.namespace, name)
	}
	examiner, err := fsckContainer(pod, machine)
	if err != nil {
		return err
	}
	pod.Spec.EphemeralContainers = append(pod.Spec.EphemeralContainers, *examiner)
	if err := c.SubResource("ephemeralcontainers").Update(ctx, pod); err != nil {
		return fmt.Errorf("add an ephemeral container to pod %s/%s: %w", c.namespace, name, err)
	}
	code, err := c.follow(ctx, name, examiner.Name, timeout, s.Out, func(pod *corev1.Pod) []corev1.ContainerStatus { return pod.Status.EphemeralContainerStatuses })
	switch {
	case err != nil:
		return err
	case code == exitWell:
		return nil
	case code == exitWrong:
		return verdict(exitWrong)
	}
	return fmt.Errorf("farpool-fsck ended with %d: what it says is above", code)
}

// fsckContainer sees the volume in which the memory node has left its memory, with the rights that the memory node has.
func fsckContainer(pod *corev1.Pod, machine bool) (*corev1.EphemeralContainer, error) {
	if len(pod.Spec.Containers) == 0 {
		return nil, errors.New("the pod has no container")
	}
	main := &pod.Spec.Containers[0]
	for _, mount := range main.VolumeMounts {
		if mount.Name != render.StateVolume {
			continue
		}
		mount.ReadOnly = true
		command := []string{"farpool-fsck"}
		if machine {
			command = append(command, "--json")
		}
		return &corev1.EphemeralContainer{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
			Name: "farpool-fsck-" + rand.String(5), Image: main.Image, ImagePullPolicy: main.ImagePullPolicy,
			Command:      append(command, path.Join(mount.MountPath, pod.Name+".memory")),
			VolumeMounts: []corev1.VolumeMount{mount}, SecurityContext: main.SecurityContext.DeepCopy(),
			TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
		}}, nil
	}
	return nil, fmt.Errorf("container %s of pod %s/%s has no volume %q: its memory ends with its process", main.Name, pod.Namespace, pod.Name, render.StateVolume)
}

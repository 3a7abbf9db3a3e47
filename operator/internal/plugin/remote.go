// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"
	"k8s.io/streaming/pkg/httpstream"
)

// runner runs programs in containers.
type runner interface {
	// execute runs a program in a container that runs, and returns its exit status. An error says that it could not be run.
	execute(ctx context.Context, pod *corev1.Pod, container string, command []string, out, errs io.Writer) (int, error)
}

// remote asks the kubelet, by way of the API server.
type remote struct {
	config *rest.Config
	core   kubernetes.Interface
}

func (r remote) execute(ctx context.Context, pod *corev1.Pod, container string, command []string, out, errs io.Writer) (int, error) {
	request := r.core.CoreV1().RESTClient().Post().Resource("pods").Namespace(pod.Namespace).Name(pod.Name).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Container: container, Command: command, Stdout: true, Stderr: true}, scheme.ParameterCodec)
	// A stream lives as long as its program.
	config := rest.CopyConfig(r.config)
	config.Timeout = 0
	older, err := remotecommand.NewSPDYExecutor(config, "POST", request.URL())
	if err != nil {
		return 0, fmt.Errorf("run %s in pod %s: %w", command[0], pod.Name, err)
	}
	newer, err := remotecommand.NewWebSocketExecutor(config, "GET", request.URL().String())
	if err != nil {
		return 0, fmt.Errorf("run %s in pod %s: %w", command[0], pod.Name, err)
	}
	executor, err := remotecommand.NewFallbackExecutor(newer, older, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	})
	if err != nil {
		return 0, fmt.Errorf("run %s in pod %s: %w", command[0], pod.Name, err)
	}
	err = executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: out, Stderr: errs})
	var ended exec.CodeExitError
	if errors.As(err, &ended) {
		return ended.Code, nil
	}
	if err != nil {
		return 0, fmt.Errorf("run %s in pod %s: %w", command[0], pod.Name, err)
	}
	return 0, nil
}

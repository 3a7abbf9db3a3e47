// SPDX-License-Identifier: Apache-2.0

// Package helmtool finds Helm, or builds it, and runs it without anything of the machine's clusters and registries.
package helmtool

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Module is the Helm that farpool's charts are rendered with.
const Module = "helm.sh/helm/v4/cmd/helm@v4.3.1"

// Binary returns the path of Helm: where the variable $NAME says, among the tools that the repository's scripts build, or in the PATH. It builds Helm from its module
// if it is in none of them.
func Binary(ctx context.Context, name, module string) (string, error) {
	if path := os.Getenv(strings.ToUpper(name)); path != "" {
		return path, nil
	}
	cache := os.Getenv("FARPOOL_CACHE")
	if cache == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("find the cache of tools: %w", err)
		}
		cache = filepath.Join(home, ".cache", "farpool")
	}
	bin := filepath.Join(cache, "bin")
	if path := filepath.Join(bin, name); exec.CommandContext(ctx, path, "version").Run() == nil {
		return path, nil
	}
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	return build(ctx, bin, name, module)
}

// build installs Helm into a directory under a name.
func build(ctx context.Context, bin, name, module string) (string, error) {
	work, err := os.MkdirTemp("", "helm-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	install := exec.CommandContext(ctx, "go", "install", "-trimpath", module)
	install.Env = append(os.Environ(), "GOBIN="+work, "GOFLAGS=-mod=mod")
	if out, err := install.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%s is neither in %s nor in the PATH, and building %s failed: %w\n%s", name, bin, module, err, out)
	}
	data, err := os.ReadFile(filepath.Join(work, "helm"))
	if err != nil {
		return "", err
	}
	// Into place by a rename: another process may be building the same.
	temporary := filepath.Join(bin, fmt.Sprintf(".%s-%d", name, os.Getpid()))
	path := filepath.Join(bin, name)
	return path, errors.Join(os.MkdirAll(bin, 0o755), os.WriteFile(temporary, data, 0o755), os.Rename(temporary, path))
}

// Run runs Helm with something to read, and returns what it printed.
func Run(ctx context.Context, binary string, stdin []byte, args ...string) (string, error) {
	work, err := os.MkdirTemp("", "helm-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.WaitDelay = time.Second
	cmd.Stdin = bytes.NewReader(stdin)
	cmd.Env = append(os.Environ(), "KUBECONFIG=/dev/null", "HELM_CACHE_HOME="+work, "HELM_CONFIG_HOME="+work)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w: %s%s", filepath.Base(binary), strings.Join(args, " "), err, stderr.String(), stdout.String())
	}
	return stdout.String(), nil
}

// Template renders a chart as release farpool of namespace farpool-system, with values in YAML. kubeVersion is that of the cluster that it is rendered for.
func Template(ctx context.Context, binary, chart, kubeVersion string, values []byte, args ...string) (string, error) {
	return Run(ctx, binary, values, append([]string{"template", "farpool", chart, "--namespace", "farpool-system", "--kube-version", kubeVersion, "--values", "-"}, args...)...)
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

const kubernetesVersion = "v1.36.3"

// A tool is a command built from a Go module. Tools of one module and version are built together: they share most packages.
type tool struct {
	name, module, version, pkg string
	// source, where a command needs more than its module's own: the text of a main package.
	source string
	flags  string
	edit   *edit
}

// An edit is of a module's file, for a command that cannot be used here as it is.
type edit struct{ file, from, to string }

// patient, because Multus gives the API server so little time for an answer that an emulated processor does not come to the end of a question.
var patient = &edit{"pkg/multus/multus.go", "shortPollDuration    = 250 * time.Millisecond", "shortPollDuration    = 20 * time.Second"}

// Only the plugins that kubeadm's Corefile names.
const corednsMain = `package main

import (
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/forward"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/hosts"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/log"
	_ "github.com/coredns/coredns/plugin/loadbalance"
	_ "github.com/coredns/coredns/plugin/loop"
	_ "github.com/coredns/coredns/plugin/metrics"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/reload"
)

func main() { coremain.Run() }
`

var tools = func() []tool {
	all := []tool{
		{name: "kind", module: "sigs.k8s.io/kind", version: "v0.33.0", pkg: "sigs.k8s.io/kind"},
		{name: "etcd", module: "go.etcd.io/etcd/server/v3", version: "v3.6.8", pkg: "go.etcd.io/etcd/server/v3"},
		{name: "coredns", module: "github.com/coredns/coredns", version: "v1.14.2", source: corednsMain},
		{name: "helm", module: "helm.sh/helm/v4", version: "v4.3.1", pkg: "helm.sh/helm/v4/cmd/helm"},
		{name: rdmaPlugin, module: "github.com/Mellanox/k8s-rdma-shared-dev-plugin", version: "v1.5.3", pkg: "github.com/Mellanox/k8s-rdma-shared-dev-plugin/cmd/" + rdmaPlugin},
		{name: multusPlugin, module: "gopkg.in/k8snetworkplumbingwg/multus-cni.v4", version: "v4.3.0", pkg: "gopkg.in/k8snetworkplumbingwg/multus-cni.v4/cmd/multus", edit: patient},
		{name: macvlanPlugin, module: "github.com/containernetworking/plugins", version: "v1.9.1", pkg: "github.com/containernetworking/plugins/plugins/main/macvlan"},
		{name: "golangci-lint", module: "github.com/golangci/golangci-lint/v2", version: "v2.15.0", pkg: "github.com/golangci/golangci-lint/v2/cmd/golangci-lint"},
	}
	for _, name := range []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet", "kubeadm", "kubectl"} {
		all = append(all, tool{name: name, module: "k8s.io/kubernetes", version: kubernetesVersion, pkg: "k8s.io/kubernetes/cmd/" + name, flags: kubernetesStamp()})
	}
	return all
}()

// kubernetesStamp sets what kubeadm, kubelet and clients compare: a build without it calls itself v0.0.0.
func kubernetesStamp() string {
	numbers := strings.Split(strings.TrimPrefix(kubernetesVersion, "v"), ".")
	var flags []string
	for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		for _, pair := range [][2]string{
			{"gitVersion", kubernetesVersion}, {"gitMajor", numbers[0]}, {"gitMinor", numbers[1]}, {"gitTreeState", "clean"},
			{"gitCommit", strings.Repeat("0", 40)}, {"buildDate", "2026-01-01T00:00:00Z"},
		} {
			flags = append(flags, fmt.Sprintf("-X %s.%s=%s", pkg, pair[0], pair[1]))
		}
	}
	return strings.Join(flags, " ")
}

func (c cache) toolPath(t tool) string {
	version := t.version
	if t.edit != nil {
		version += fmt.Sprintf("-%x", sha256.Sum256([]byte(t.edit.to)))[:9]
	}
	return c.path("tools", t.name+"@"+version, t.name)
}

func findTool(name string) (tool, error) {
	for _, t := range tools {
		if t.name == name {
			return t, nil
		}
	}
	var known []string
	for _, t := range tools {
		known = append(known, t.name)
	}
	return tool{}, fmt.Errorf("no tool %q; there are: %s", name, strings.Join(known, " "))
}

// ensureTools builds what is missing and links every name into bin/.
func (c cache) ensureTools(ctx context.Context, names ...string) error {
	wanted := make([]tool, 0, len(names))
	for _, name := range names {
		t, err := findTool(name)
		if err != nil {
			return err
		}
		wanted = append(wanted, t)
	}
	missing := func() []tool {
		return slices.DeleteFunc(slices.Clone(wanted), func(t tool) bool { return exists(c.toolPath(t)) })
	}
	if len(missing()) > 0 {
		release, err := c.lock(ctx, "tools")
		if err != nil {
			return err
		}
		defer release()
	}
	for rest := missing(); len(rest) > 0; rest = missing() {
		var group []tool
		for _, t := range rest {
			if t.module == rest[0].module {
				group = append(group, t)
			}
		}
		if err := c.build(ctx, group); err != nil {
			return err
		}
	}
	for _, t := range wanted {
		if err := replaceLink(c.path("bin", t.name), c.toolPath(t)); err != nil {
			return err
		}
	}
	return nil
}

// build compiles tools of one module in a small module of their own, which requires nothing else.
func (c cache) build(ctx context.Context, group []tool) error {
	first := group[0]
	names := make([]string, 0, len(group))
	for _, t := range group {
		names = append(names, t.name)
	}
	label := fmt.Sprintf("building %s %s from its Go module", strings.Join(names, ", "), first.version)
	return step(ctx, 40*time.Minute, label, func(ctx context.Context) error {
		source := c.path("src", first.name)
		if err := os.MkdirAll(source, 0o755); err != nil {
			return err
		}
		found, err := downloadModule(ctx, first.module, first.version)
		if err != nil {
			return err
		}
		own, err := os.ReadFile(found.GoMod)
		if err != nil {
			return err
		}
		replace, goVersion := manifestNeeds(string(own), first.version)
		if first.edit != nil {
			edited := filepath.Join(source, "edited")
			if err := first.edit.apply(found.Dir, edited); err != nil {
				return err
			}
			replace += fmt.Sprintf("replace %s => %s\n", first.module, edited)
		}
		manifest := fmt.Sprintf("module farpool.dev/tool\n\ngo %s\n\nrequire %s %s\n%s", goVersion, first.module, first.version, replace)
		targets := []string{}
		program := first.source
		if program == "" {
			program = "//go:build tools\n\npackage main\n\nimport (\n"
			for _, t := range group {
				program += fmt.Sprintf("\t_ %q\n", t.pkg)
				targets = append(targets, t.pkg)
			}
			program += ")\n"
		} else {
			targets = append(targets, ".")
		}
		for file, text := range map[string]string{"go.mod": manifest, "go.sum": "", "main.go": program} {
			if err := os.WriteFile(filepath.Join(source, file), []byte(text), 0o644); err != nil {
				return err
			}
		}
		out, err := os.MkdirTemp(c.path("src"), "out-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(out)
		args := []string{"nice", "go", "build", "-mod=mod", "-trimpath", "-ldflags=-s -w " + first.flags, "-o"}
		if first.source != "" {
			args = append(args, filepath.Join(out, first.name))
		} else {
			args = append(args, out+"/")
		}
		build := command{dir: source, env: []string{"CGO_ENABLED=0", "GOWORK=off"}, args: append(args, targets...)}
		if err := build.run(ctx); err != nil {
			return err
		}
		for _, t := range group {
			built := filepath.Join(out, t.name)
			if !exists(built) { // go build names a command after its directory or module
				built = filepath.Join(out, builtName(t.pkg))
			}
			if err := os.MkdirAll(filepath.Dir(c.toolPath(t)), 0o755); err != nil {
				return err
			}
			if err := os.Rename(built, c.toolPath(t)); err != nil {
				return err
			}
		}
		return nil
	})
}

// apply makes a copy of a module with the edit.
func (e edit) apply(module, into string) error {
	if err := os.RemoveAll(into); err != nil {
		return err
	}
	if err := os.CopyFS(into, os.DirFS(module)); err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(module, e.file))
	if err != nil {
		return err
	}
	if strings.Count(string(text), e.from) != 1 {
		return fmt.Errorf("%s of %s is to be edited, and does not have %q once: the module has changed", e.file, module, e.from)
	}
	file := filepath.Join(into, e.file)
	if err := os.Chmod(file, 0o644); err != nil { // the module cache is read-only
		return err
	}
	return os.WriteFile(file, []byte(strings.Replace(string(text), e.from, e.to, 1)), 0o644)
}

// builtName is what `go build` calls the command of a package: the last element that is no major version.
func builtName(pkg string) string {
	base := filepath.Base(pkg)
	if regexp.MustCompile(`^v[0-9]+$`).MatchString(base) {
		base = filepath.Base(filepath.Dir(pkg))
	}
	return base
}

// A module is where the Go module cache keeps it.
type module struct{ Dir, GoMod string }

func downloadModule(ctx context.Context, path, version string) (module, error) {
	var found module
	var text strings.Builder
	download := command{env: []string{"GOWORK=off"}, dir: os.TempDir(), out: &text, args: []string{"go", "mod", "download", "-json", path + "@" + version}}
	if err := download.run(ctx); err != nil {
		return found, err
	}
	return found, json.Unmarshal([]byte(text.String()), &found)
}

// manifestNeeds reads from a module's own go.mod which Go it asks for, and what has to be replaced: what it replaces itself by published
// versions, as Go heeds the main module's replacements alone; and for Kubernetes its staging modules, which it requires at v0.0.0, and
// whose matching v0.x.y are published beside it.
func manifestNeeds(manifest, version string) (replace, goVersion string) {
	goVersion = "1.24.0"
	if m := regexp.MustCompile(`(?m)^go (\S+)$`).FindStringSubmatch(manifest); m != nil {
		goVersion = m[1]
	}
	for _, m := range regexp.MustCompile(`(?m)^(?:replace\s+|\s+)(\S+(?: v\S+)? => [^\s./]\S* v\S+)`).FindAllStringSubmatch(manifest, -1) {
		replace += "replace " + m[1] + "\n"
	}
	staged := "v0." + strings.TrimPrefix(version, "v1.")
	seen := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)(k8s\.io/[a-z-]+) v0\.0\.0$`).FindAllStringSubmatch(manifest, -1) {
		if !seen[m[1]] {
			seen[m[1]] = true
			replace += fmt.Sprintf("replace %s => %s %s\n", m[1], m[1], staged)
		}
	}
	return replace, goVersion
}

// envtestAssets is a directory with what controller-runtime's envtest starts.
func (c cache) envtestAssets(ctx context.Context) (string, error) {
	names := []string{"kube-apiserver", "etcd", "kubectl"}
	if err := c.ensureTools(ctx, names...); err != nil {
		return "", err
	}
	directory := c.path("tools", "envtest@"+kubernetesVersion)
	if err := os.MkdirAll(directory, 0o755); err != nil {
		return "", err
	}
	for _, name := range names {
		t, err := findTool(name)
		if err != nil {
			return "", err
		}
		if err := replaceLink(filepath.Join(directory, name), c.toolPath(t)); err != nil {
			return "", err
		}
	}
	return directory, nil
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"time"
)

const (
	baseImage = "farpool/debian:bookworm"
	// What a registry has instead.
	publicBase = "debian:bookworm-slim"
	publicNode = "kindest/node:v1.37.0" // the default of the kind version in tools.go
)

//go:embed node/Dockerfile
var nodeDockerfile []byte

var nodeTools = []string{"kind", "kubeadm", "kubelet", "kubectl", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "etcd", "coredns"}

func haveImage(ctx context.Context, name string) bool {
	return run(ctx, "docker", "image", "inspect", name) == nil
}

// imageBase names what farpool's own images stand on.
func (c cache) imageBase(ctx context.Context) (string, error) {
	if !haveImage(ctx, baseImage) && registryAnswers(ctx) {
		return publicBase, nil
	}
	return baseImage, c.ensureBase(ctx)
}

// ensureBase makes a Debian image from Debian's packages.
func (c cache) ensureBase(ctx context.Context) error {
	if haveImage(ctx, baseImage) {
		return nil
	}
	release, err := c.lock(ctx, "base")
	if err != nil {
		return err
	}
	defer release()
	archive := c.path("images", "debian-bookworm.tar")
	if !exists(archive) {
		err := step(ctx, 15*time.Minute, "building a Debian base image with debootstrap", func(ctx context.Context) error { return c.debootstrap(ctx, archive) })
		if err != nil {
			return err
		}
	}
	return run(ctx, "docker", "import", "-c", "CMD bash", archive, baseImage)
}

func (c cache) debootstrap(ctx context.Context, archive string) error {
	if runtime.GOOS != "linux" {
		return errors.New("debootstrap runs on Linux only; let Docker reach an image registry, or name an image with FARPOOL_BASE_IMAGE")
	}
	root, err := os.MkdirTemp(c.path("images"), "rootfs-")
	if err != nil {
		return err
	}
	defer func() {
		if err := run(context.WithoutCancel(ctx), asRoot("rm", "-rf", root)...); err != nil {
			say("cannot remove %s: %v", root, err)
		}
	}()
	if err := os.Chmod(root, 0o755); err != nil {
		return err
	}
	if err := run(ctx, asRoot("debootstrap", "--variant=minbase", "--include=ca-certificates", "bookworm", root)...); err != nil {
		return err
	}
	// The archive of security fixes lies beside the main one.
	sources := filepath.Join(root, "etc/apt/sources.list")
	text, err := os.ReadFile(sources)
	if err != nil {
		return err
	}
	security := command{in: strings.NewReader(withSecurity(string(text))), args: asRoot("tee", sources)}
	if err := security.run(ctx); err != nil {
		return err
	}
	pack := asRoot("tar", "-C", root, "--exclude=./var/cache/apt/archives/*", "--exclude=./var/lib/apt/lists/*", "-cf", archive+".part", ".")
	if err := run(ctx, pack...); err != nil {
		return err
	}
	return run(ctx, asRoot("mv", archive+".part", archive)...)
}

func withSecurity(sources string) string {
	m := regexp.MustCompile(`(?m)^deb (\S+)/debian/? bookworm (.*)$`).FindStringSubmatch(sources)
	if m == nil || strings.Contains(sources, "bookworm-security") {
		return sources
	}
	return sources + fmt.Sprintf("deb %s/debian-security bookworm-security %s\n", m[1], m[2])
}

// nodeImage names the image for kind's nodes, and whether it is one built here. An empty name lets kind take its own.
func (c cache) nodeImage(ctx context.Context) (name string, built bool, err error) {
	if name := os.Getenv("FARPOOL_NODE_IMAGE"); name != "" {
		return name, false, nil
	}
	root, err := repository(ctx)
	if err != nil {
		return "", false, err
	}
	name, err = c.builtNodeName(root)
	if err != nil {
		return "", false, err
	}
	archive := c.path("images", strings.NewReplacer("/", "-", ":", "-").Replace(name)+".tar")
	switch {
	case haveImage(ctx, name):
		return name, true, nil
	case exists(archive):
		return name, true, step(ctx, 5*time.Minute, "loading the node image from the cache", func(ctx context.Context) error {
			return run(ctx, "docker", "load", "-q", "-i", archive)
		})
	case registryAnswers(ctx):
		return "", false, nil
	}
	say("no image registry answers: building the node image from Debian packages and Go modules")
	if err := c.ensureTools(ctx, nodeTools...); err != nil {
		return "", false, err
	}
	if err := c.ensureBase(ctx); err != nil {
		return "", false, err
	}
	err = step(ctx, 20*time.Minute, "building the node image", func(ctx context.Context) error { return c.buildNode(ctx, name, archive) })
	return name, true, err
}

// builtNodeName carries everything the image is made of, so that a change of any part makes another image.
func (c cache) builtNodeName(root string) (string, error) {
	sum := sha256.New()
	sum.Write(nodeDockerfile)
	for _, name := range nodeTools {
		t, err := findTool(name)
		if err != nil {
			return "", err
		}
		fmt.Fprintln(sum, t.name, t.version, t.source)
	}
	for _, own := range []string{"ociwrap", "pause"} {
		text, err := os.ReadFile(filepath.Join(root, "hack", "kindctl", own, "main.go"))
		if err != nil {
			return "", err
		}
		sum.Write(text)
	}
	return fmt.Sprintf("farpool/kind-node:%s-%x", kubernetesVersion, sum.Sum(nil)[:4]), nil
}

// registryAnswers asks, with Docker's own settings, for the manifest of kind's node image.
func registryAnswers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return run(ctx, "docker", "manifest", "inspect", publicNode) == nil
}

func (c cache) buildNode(ctx context.Context, name, archive string) error {
	work, err := os.MkdirTemp(c.path("images"), "node-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	if err := c.nodeContext(ctx, work); err != nil {
		return err
	}
	listed, err := output(ctx, c.path("bin", "kubeadm"), "config", "images", "list", "--kubernetes-version", kubernetesVersion)
	if err != nil {
		return err
	}
	sandbox, err := sandboxImage(work)
	if err != nil {
		return err
	}
	components := append(strings.Fields(listed), sandbox)
	for _, image := range components {
		if err := c.buildComponent(ctx, image, work); err != nil {
			return fmt.Errorf("image %s: %w", image, err)
		}
	}
	base := "farpool/kind-node:base"
	if err := run(ctx, "docker", "build", "-q", "--target", "node", "--build-arg", "BASE="+baseImage, "-t", base, work); err != nil {
		return err
	}
	images := filepath.Join(work, "components.tar")
	if err := run(ctx, append([]string{"docker", "save", "-o", images}, components...)...); err != nil {
		return err
	}
	if err := preload(ctx, base, images, name); err != nil {
		return err
	}
	if err := run(ctx, "docker", "save", "-o", archive+".part", name); err != nil {
		return err
	}
	return os.Rename(archive+".part", archive)
}

// nodeContext gathers what the node's Dockerfile copies.
func (c cache) nodeContext(ctx context.Context, work string) error {
	kind, err := findTool("kind")
	if err != nil {
		return err
	}
	found, err := downloadModule(ctx, kind.module, kind.version)
	if err != nil {
		return err
	}
	if err := os.CopyFS(filepath.Join(work, "files"), os.DirFS(filepath.Join(found.Dir, "images", "base", "files"))); err != nil {
		return err
	}
	// The module cache is read-only; a copy has to be removable.
	if err := filepath.WalkDir(filepath.Join(work, "files"), func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Chmod(path, map[bool]os.FileMode{true: 0o755, false: 0o644}[entry.IsDir()])
	}); err != nil {
		return err
	}
	for _, name := range []string{"kubeadm", "kubelet", "kubectl", "kube-proxy"} {
		t, err := findTool(name)
		if err != nil {
			return err
		}
		if err := copyFile(c.toolPath(t), filepath.Join(work, name)); err != nil {
			return err
		}
	}
	wrapper, err := c.ociwrap(ctx)
	if err != nil {
		return err
	}
	if err := copyFile(wrapper, filepath.Join(work, "ociwrap")); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(work, "version"), []byte(kubernetesVersion), 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(work, "Dockerfile"), nodeDockerfile, 0o644)
}

// sandboxImage is the name under which kind's containerd looks for pause.
func sandboxImage(work string) (string, error) {
	config, err := os.ReadFile(filepath.Join(work, "files", "etc", "containerd", "config.toml"))
	if err != nil {
		return "", err
	}
	m := regexp.MustCompile(`sandbox_image = "([^"]+)"`).FindSubmatch(config)
	if m == nil {
		return "", errors.New("kind's containerd configuration names no sandbox_image")
	}
	return string(m[1]), nil
}

// component is the last element of an image's name, without its tag.
func component(image string) string {
	name, _, _ := strings.Cut(image[strings.LastIndex(image, "/")+1:], ":")
	return name
}

func (c cache) buildComponent(ctx context.Context, image, work string) error {
	name := component(image)
	if name == "kube-proxy" {
		return run(ctx, "docker", "build", "-q", "--target", "kube-proxy", "--build-arg", "BASE="+baseImage, "-t", image, work)
	}
	path := ""
	args := []string{"docker", "import", "-c", "ENV PATH=/usr/local/bin"}
	if name == "pause" {
		built, err := c.ownTool(ctx, "kindctl/pause")
		if err != nil {
			return err
		}
		path = built
	} else {
		t, err := findTool(name)
		if err != nil {
			return err
		}
		path = c.toolPath(t)
	}
	// kubeadm's manifests name the command of the others.
	if name == "pause" || name == "coredns" {
		args = append(args, "-c", fmt.Sprintf("ENTRYPOINT [%q]", "/usr/local/bin/"+name))
	}
	reader, writer := io.Pipe()
	go func() { writer.CloseWithError(tarImage(writer, imageFile{name: "usr/local/bin/" + name, path: path})) }()
	return command{in: reader, args: append(args, "-", image)}.run(ctx)
}

// An imageFile is an executable of this machine, or a text.
type imageFile struct{ name, path, text string }

// tarImage streams files as the whole file system of an image.
func tarImage(out io.Writer, files ...imageFile) error {
	writer := tar.NewWriter(out)
	if err := writer.WriteHeader(&tar.Header{Name: "tmp/", Typeflag: tar.TypeDir, Mode: 0o1777}); err != nil {
		return err
	}
	for _, each := range files {
		if err := each.write(writer); err != nil {
			return err
		}
	}
	return writer.Close()
}

func (f imageFile) write(writer *tar.Writer) error {
	if f.path == "" {
		if err := writer.WriteHeader(&tar.Header{Name: f.name, Mode: 0o644, Size: int64(len(f.text))}); err != nil {
			return err
		}
		_, err := io.WriteString(writer, f.text)
		return err
	}
	file, err := os.Open(f.path)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if err := writer.WriteHeader(&tar.Header{Name: f.name, Mode: 0o755, Size: info.Size()}); err != nil {
		return err
	}
	_, err = io.Copy(writer, file)
	return err
}

// preload puts the component images into the node's containerd and keeps the result as an image.
func preload(ctx context.Context, base, images, name string) error {
	container := fmt.Sprintf("farpool-preload-%d", os.Getpid())
	if err := run(ctx, "docker", "run", "-d", "--name", container, "--privileged", "--entrypoint", "sleep", base, "infinity"); err != nil {
		return err
	}
	defer func() {
		if err := run(context.WithoutCancel(ctx), "docker", "rm", "-fv", container); err != nil {
			say("cannot remove container %s: %v", container, err)
		}
	}()
	if err := run(ctx, "docker", "exec", "-d", container, "containerd"); err != nil {
		return err
	}
	if err := until(ctx, time.Minute, "containerd in the node image", func() error { return run(ctx, "docker", "exec", container, "ctr", "version") }); err != nil {
		return err
	}
	archive, err := os.Open(images)
	if err != nil {
		return err
	}
	defer archive.Close()
	load := command{in: archive, args: []string{"docker", "exec", "-i", container, "ctr", "-n", "k8s.io", "images", "import", "--all-platforms", "--no-unpack", "--digests", "-"}}
	if err := load.run(ctx); err != nil {
		return err
	}
	if err := run(ctx, "docker", "exec", container, "pkill", "-x", "containerd"); err != nil {
		return err
	}
	if err := until(ctx, time.Minute, "containerd in the node image to end", func() error {
		if run(ctx, "docker", "exec", container, "pgrep", "-x", "containerd") == nil {
			return errors.New("it still runs")
		}
		return nil
	}); err != nil {
		return err
	}
	return run(ctx, "docker", "commit", "--change", `ENTRYPOINT [ "/usr/local/bin/entrypoint", "/sbin/init" ]`, container, name)
}

func copyFile(from, to string) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(target, source)
	return errors.Join(err, target.Close())
}

// loadImages hands images of the Docker in use to every node of a cluster.
func (c cache) loadImages(ctx context.Context, cluster string, images []string) error {
	label := fmt.Sprintf("loading %s into cluster %s", strings.Join(images, ", "), cluster)
	return step(ctx, 5*time.Minute, label, func(ctx context.Context) error {
		var out bytes.Buffer
		return command{out: &out, args: append([]string{c.path("bin", "kind"), "load", "docker-image", "-q", "--name", cluster}, images...)}.run(ctx)
	})
}

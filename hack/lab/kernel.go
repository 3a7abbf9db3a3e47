// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Loaded in this order, each after what it needs; modules that are built into a kernel, or unknown to it, are left out.
var guestModules = []string{
	"virtio_pci", "virtio_console", "9pnet_virtio", "9p", "overlay", "virtio_net",
	"veth", "dummy", "sch_netem", "ib_uverbs", "rdma_ucm", "rdma_rxe",
}

// What a cluster of containers takes beside those: a disk, networks, and what the rules of kube-proxy and of Docker's name service are made of.
var clusterModules = []string{
	"virtio_blk", "ext4", "bridge", "br_netfilter", "macvlan", "ib_umad",
	"nf_tables", "nft_compat", "nft_chain_nat", "nft_ct", "nf_conntrack_netlink", "ipt_REJECT", "nft_limit", "nft_counter",
	"xt_MASQUERADE", "xt_addrtype", "xt_comment", "xt_conntrack", "xt_limit", "xt_mark", "xt_multiport", "xt_nat", "xt_recent", "xt_statistic", "xt_tcpudp",
}

// Without these there is no guest: better said here than seen on its console.
var neededModules = []string{"9p", "overlay", "ext4", "ib_uverbs", "configfs", "rdma_rxe"}

const fetchPatience = 10 * time.Minute

// A kernel lies unpacked in a directory of its own; it is never installed.
type kernel struct {
	version   string
	directory string // of its modules: lib/modules/<version>
}

func (k kernel) image() string { return filepath.Join(k.directory, "vmlinuz") }

func cache() (string, error) {
	if set := os.Getenv("FARPOOL_CACHE"); set != "" {
		return filepath.Join(set, "lab"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("no directory for the kernel: set FARPOOL_CACHE: %w", err)
	}
	return filepath.Join(home, ".cache", "farpool", "lab"), nil
}

// findKernel takes the newest that is there, and fetches one where there is none. On kernels before 7.2 SoftRoCE works in the first
// network namespace alone.
func findKernel(ctx context.Context, o options, anew bool) (kernel, error) {
	root, err := cache()
	if err != nil {
		return kernel{}, err
	}
	if found := installed(root); len(found) > 0 && !anew && found[len(found)-1].lacks() == "" {
		return found[len(found)-1], nil
	}
	if err := fetchKernel(ctx, o, root); err != nil {
		return kernel{}, fmt.Errorf("the guest's kernel could not be fetched: %w", err)
	}
	found := installed(root)
	if len(found) == 0 {
		return kernel{}, fmt.Errorf("the kernel that was fetched is not in %s: remove that directory and try again", root)
	}
	return found[len(found)-1], nil
}

func installed(root string) []kernel {
	images, _ := filepath.Glob(filepath.Join(root, "kernel", "*", "vmlinuz"))
	var found []kernel
	for _, image := range images {
		directory := filepath.Dir(image)
		found = append(found, kernel{version: filepath.Base(directory), directory: directory})
	}
	slices.SortFunc(found, func(a, b kernel) int { return compareVersions(a.version, b.version) })
	return found
}

var versionPart = regexp.MustCompile(`\d+|\D+`)

// compareVersions orders 7.10.1 after 7.9.12.
func compareVersions(a, b string) int {
	x, y := versionPart.FindAllString(a, -1), versionPart.FindAllString(b, -1)
	for i := range min(len(x), len(y)) {
		if x[i] == y[i] {
			continue
		}
		bothNumbers := x[i][0] >= '0' && x[i][0] <= '9' && y[i][0] >= '0' && y[i][0] <= '9'
		if order := len(strings.TrimLeft(x[i], "0")) - len(strings.TrimLeft(y[i], "0")); bothNumbers && order != 0 {
			return order
		}
		return strings.Compare(x[i], y[i])
	}
	return len(x) - len(y)
}

var mirrorPattern = regexp.MustCompile(`https?://[^ ]+/debian `)
var modulesPattern = regexp.MustCompile(`(?m)^linux-modules-(\S+\+deb13-amd64)$`)

// fetchKernel downloads and unpacks Debian's newest backported kernel, with an apt configuration of its own: the machine's packages and
// lists stay as they are.
func fetchKernel(ctx context.Context, o options, root string) error {
	ctx, cancel := context.WithTimeout(ctx, fetchPatience)
	defer cancel()
	begun := time.Now()
	if err := os.MkdirAll(root, 0o755); err != nil {
		return err
	}
	work, err := os.MkdirTemp(root, "fetch-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	for _, each := range []string{"lists/partial", "cache/archives/partial", "root"} {
		if err := os.MkdirAll(filepath.Join(work, each), 0o755); err != nil {
			return err
		}
	}
	call := func(name string, args ...string) (string, error) {
		cmd := exec.CommandContext(ctx, name, args...)
		cmd.Dir = work
		var out, complaints bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &complaints
		if err := cmd.Run(); err != nil {
			return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, complaints.String())
		}
		return out.String(), nil
	}
	policy, err := call("apt-cache", "policy")
	if err != nil {
		return err
	}
	mirror := strings.TrimSpace(mirrorPattern.FindString(policy))
	if mirror == "" {
		mirror = "http://deb.debian.org/debian"
	}
	source := "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] " + mirror + " trixie-backports main\n"
	if err := os.WriteFile(filepath.Join(work, "sources.list"), []byte(source), 0o644); err != nil {
		return err
	}
	apart := []string{
		"-qq", "-o", "Dir::Etc::sourcelist=" + work + "/sources.list", "-o", "Dir::Etc::sourceparts=/nonexistent",
		"-o", "Dir::State::lists=" + work + "/lists", "-o", "Dir::Cache=" + work + "/cache", "-o", "Dir::State::status=/dev/null",
		"-o", "APT::Sandbox::User=root",
	}
	apt := func(name string, args ...string) (string, error) {
		return call(name, append(slices.Clone(apart), args...)...)
	}
	if _, err := apt("apt-get", "update"); err != nil {
		return err
	}
	names, err := apt("apt-cache", "pkgnames", "linux-modules-")
	if err != nil {
		return err
	}
	var versions []string
	for _, match := range modulesPattern.FindAllStringSubmatch(names, -1) {
		versions = append(versions, match[1])
	}
	slices.SortFunc(versions, compareVersions)
	slices.Reverse(versions)
	for _, version := range versions {
		// Backports drop old versions piece by piece.
		if _, err := apt("apt-cache", "show", "linux-binary-"+version); err != nil {
			continue
		}
		if _, err := apt("apt-get", "download", "linux-binary-"+version, "linux-modules-"+version); err != nil {
			return err
		}
		packages, _ := filepath.Glob(filepath.Join(work, "*.deb"))
		for _, each := range packages {
			if _, err := call("dpkg-deb", "-x", each, "root"); err != nil {
				return err
			}
		}
		return keep(o, kernel{version, filepath.Join(work, "root/usr/lib/modules", version)}, filepath.Join(root, "kernel", version), begun)
	}
	return fmt.Errorf("%s trixie-backports has no kernel for amd64", mirror)
}

// keep moves an image and the modules of a guest to their place, the modules uncompressed.
func keep(o options, from kernel, to string, begun time.Time) error {
	if there := (kernel{from.version, to}); exists(there.image()) {
		if there.lacks() == "" {
			return nil
		}
		// A process that has it open has read it. It was kept for guests that took less.
		if err := os.RemoveAll(to); err != nil {
			return err
		}
	}
	complete := from.directory + ".kept"
	if err := os.MkdirAll(complete, 0o755); err != nil {
		return err
	}
	files, err := from.files()
	if err != nil {
		return err
	}
	for _, path := range files {
		name := filepath.Base(path)
		content, err := os.ReadFile(path)
		if strings.HasSuffix(name, ".xz") {
			name = strings.TrimSuffix(name, ".xz")
			content, err = exec.Command("xz", "-dc", path).Output()
		}
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if err := os.WriteFile(filepath.Join(complete, name), content, 0o644); err != nil {
			return err
		}
	}
	if err := os.Rename(from.image(), filepath.Join(complete, "vmlinuz")); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	if err := os.Rename(complete, to); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	o.say("kernel %s fetched in %s", from.version, time.Since(begun).Round(time.Second))
	return nil
}

// files lists the modules of whole trees that guests may want: cheaper kept than fetched again for one more.
func (k kernel) files() ([]string, error) {
	var files []string
	for _, tree := range []string{"fs/9p", "fs/netfs", "fs/fscache", "fs/overlayfs", "fs/ext4", "fs/jbd2", "fs/mbcache.ko.xz", "fs/configfs", "net", "lib", "crypto", "arch", "drivers/virtio", "drivers/char", "drivers/net", "drivers/infiniband", "drivers/block"} {
		err := filepath.WalkDir(filepath.Join(k.directory, "kernel", tree), func(path string, entry fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err != nil {
				return err
			}
			if skipped := entry.IsDir() && (entry.Name() == "wireless" || entry.Name() == "ethernet" || entry.Name() == "usb"); skipped {
				return fs.SkipDir
			}
			if strings.HasSuffix(path, ".ko") || strings.HasSuffix(path, ".ko.xz") {
				files = append(files, path)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return files, nil
}

// lacks names a module that is needed and not there.
func (k kernel) lacks() string {
	for _, name := range neededModules {
		if !exists(filepath.Join(k.directory, name+".ko")) {
			return name
		}
	}
	return ""
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

type module struct {
	name    string
	content []byte
}

// modules returns the wanted ones and what they need, in an order in which they can be loaded.
func (k kernel) modules(wanted []string) ([]module, error) {
	paths, err := filepath.Glob(filepath.Join(k.directory, "*.ko"))
	if err != nil {
		return nil, err
	}
	if name := k.lacks(); name != "" {
		return nil, fmt.Errorf("kernel %s in %s has no module %s: remove that directory, and another is fetched", k.version, k.directory, name)
	}
	byName := map[string]string{}
	for _, path := range paths {
		byName[moduleName(strings.TrimSuffix(filepath.Base(path), ".ko"))] = path
	}
	var order []module
	seen := map[string]bool{}
	var visit func(name string) error
	visit = func(name string) error {
		name = moduleName(name)
		path := byName[name]
		if seen[name] || path == "" {
			return nil
		}
		seen[name] = true
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		needs, err := moduleNeeds(content)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		for _, each := range needs {
			if err := visit(each); err != nil {
				return err
			}
		}
		order = append(order, module{name, content})
		return nil
	}
	for _, name := range wanted {
		if err := visit(name); err != nil {
			return nil, err
		}
	}
	return order, nil
}

// File names and dependencies spell the same module with either.
func moduleName(name string) string { return strings.ReplaceAll(name, "-", "_") }

// moduleNeeds reads the line depends=a,b of a module's section .modinfo.
func moduleNeeds(content []byte) ([]string, error) {
	file, err := elf.NewFile(bytes.NewReader(content))
	if err != nil {
		return nil, err
	}
	section := file.Section(".modinfo")
	if section == nil {
		return nil, errors.New("it is no kernel module")
	}
	data, err := section.Data()
	if err != nil {
		return nil, err
	}
	for _, line := range strings.Split(string(data), "\x00") {
		if needs, found := strings.CutPrefix(line, "depends="); found && needs != "" {
			return strings.Split(needs, ","), nil
		}
	}
	return nil, nil
}

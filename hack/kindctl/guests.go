// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A worker whose RDMA this machine's kernel cannot give leaves its container and goes on in a guest that has SoftRoCE, under the same
// name, address and credentials: its file system becomes the guest's disk, and a tap puts the guest on the bridge of the nodes. The control
// plane stays in its container, as emulated processors are too slow for one.

//go:embed rdma/leave.sh
var leaveScript string

//go:embed rdma/guest.sh
var guestScript string

const (
	guestDirectory = "/kind/farpool" // on the guest's disk
	guestMemory    = "5G"
	guestPatience  = 12 * time.Minute // until a guest offers its device, which takes a minute on a quiet machine
	guestLife      = time.Hour
)

// A worker's container, as Docker has it.
type worker struct{ name, pid, address, bits, gateway, mac, network string }

const workerFormat = `{{.State.Pid}}{{range .NetworkSettings.Networks}} {{.IPAddress}} {{.IPPrefixLen}} {{.Gateway}} {{.MacAddress}} {{.NetworkID}}{{end}}`

func parseWorker(name, inspected string) (worker, error) {
	f := strings.Fields(inspected)
	if len(f) != 6 || f[0] == "0" || len(f[5]) < 12 {
		return worker{}, fmt.Errorf("container %s does not run on one network: %q", name, inspected)
	}
	return worker{name, f[0], f[1], f[2], f[3], f[4], f[5]}, nil
}

// bridge has the name that Docker gives it.
func (w worker) bridge() string { return "br-" + w.network[:12] }

// tap is short enough for a network interface, and every node's own.
func (w worker) tap() string { return fmt.Sprintf("fp-%x", sha256.Sum256([]byte(w.name)))[:15] }

func (c cache) guestFile(w worker, ending string) string { return c.path("guests", w.name+ending) }

// guests runs a command while the workers of a cluster are guests.
func (c cache) guests(ctx context.Context, cluster string, command []string) error {
	if len(command) == 0 {
		return errors.New("there is no command to run")
	}
	release, err := c.lock(ctx, "guests-"+cluster)
	if err != nil {
		return err
	}
	defer release()
	if err := c.ensureDocker(ctx); err != nil {
		return err
	}
	lab, err := c.ownTool(ctx, "lab")
	if err != nil {
		return err
	}
	plugin, err := c.rdmaImage(ctx)
	if err != nil {
		return err
	}
	names, err := rdmaNodes(ctx, cluster)
	if err != nil {
		return err
	}
	control, err := output(ctx, "docker", "ps", "--filter", "label=io.x-k8s.kind.cluster="+cluster, "--filter", "label=io.x-k8s.kind.role=control-plane", "--format", "{{.Names}}")
	if err != nil {
		return err
	}
	if control == "" || control == names[0] {
		return fmt.Errorf("cluster %s has no worker beside its control plane; `kindctl up --workers 1 --emulated` makes one", cluster)
	}
	for _, name := range names {
		// It may have left before, and offers nothing now.
		if err := run(ctx, "docker", "exec", name, "systemctl", "start", "containerd"); err != nil {
			return err
		}
		none := `{"` + strings.Join(rdmaResources, `": null, "`) + `": null}`
		nothing := fmt.Sprintf(`{"status": {"capacity": %s, "allocatable": %s}}`, none, none)
		if err := run(ctx, c.kubectl(cluster, "patch", "node", name, "--subresource=status", "--type=merge", "-p", nothing)...); err != nil {
			return err
		}
	}
	if err := c.loadImages(ctx, cluster, []string{plugin}); err != nil {
		return err
	}
	if err := c.multus(ctx, cluster, names); err != nil {
		return err
	}
	networked, err := c.networkNodes(ctx, cluster)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(c.path("guests"), 0o755); err != nil {
		return err
	}

	var running sync.WaitGroup
	var left []worker
	ctx, stop := context.WithCancelCause(ctx)
	defer func() {
		stop(nil)
		running.Wait()
		for _, w := range left {
			if err := c.removeGuest(context.WithoutCancel(ctx), w); err != nil {
				say("%v", err)
			}
		}
	}()
	for _, name := range names {
		w, err := inspectWorker(ctx, name)
		if err != nil {
			return err
		}
		left = append(left, w)
		if err := c.leave(ctx, w, control, networked); err != nil {
			return err
		}
		running.Go(func() { stop(c.runGuest(ctx, lab, w)) })
	}
	// Only a kubelet that is ready in its guest offers them.
	if err := c.rdmaOffered(ctx, cluster, plugin, names, guestPatience); err != nil {
		return errors.Join(context.Cause(ctx), err, c.explainGuests(names))
	}
	say("%s run in guests; running %s", strings.Join(names, ", "), abbreviate(strings.Join(command, " ")))
	used := exec.CommandContext(ctx, command[0], command[1:]...)
	used.Env = append(os.Environ(), "KUBECONFIG="+c.kubeconfig(cluster), "PATH="+c.path("bin")+":"+os.Getenv("PATH"))
	used.Stdout, used.Stderr, used.WaitDelay = os.Stdout, os.Stderr, 10*time.Second
	used.Cancel = func() error { return used.Process.Signal(syscall.SIGTERM) }
	err = used.Run()
	var ended *exec.ExitError
	if errors.As(err, &ended) && ended.Exited() {
		err = commandEnded{ended.ExitCode()}
	}
	if cause := context.Cause(ctx); cause != nil {
		return errors.Join(cause, c.explainGuests(names))
	}
	return err
}

// commandEnded is a command that failed and has said why.
type commandEnded struct{ status int }

func (e commandEnded) Error() string {
	return fmt.Sprintf("the command ended with status %d", e.status)
}

func inspectWorker(ctx context.Context, name string) (worker, error) {
	inspected, err := output(ctx, "docker", "inspect", "--format", workerFormat, name)
	if err != nil {
		return worker{}, err
	}
	return parseWorker(name, inspected)
}

// leave makes the disk and the tap of a worker's guest.
func (c cache) leave(ctx context.Context, w worker, control string, networked []node) error {
	return step(ctx, 5*time.Minute, "making a disk of "+w.name, func(ctx context.Context) error {
		plane, err := inspectWorker(ctx, control)
		if err != nil {
			return err
		}
		if err := run(ctx, "docker", "exec", w.name, "mkdir", "-p", guestDirectory); err != nil {
			return err
		}
		files := map[string]string{"guest.sh": guestScript, "node.sh": rdmaNodeScript}
		for i := range networked {
			if networked[i].name == w.name {
				files["network.sh"] = networkScript(networked, i)
			}
		}
		for name, text := range files {
			if err := onNode(ctx, w.name, text, "tee", filepath.Join(guestDirectory, name)); err != nil {
				return err
			}
		}
		if err := onNode(ctx, w.name, leaveScript, "bash", "-s", "--", w.name, w.address, control, plane.address); err != nil {
			return err
		}
		// Blocks that are never written take no room.
		if err := run(ctx, asRoot("mke2fs", "-q", "-F", "-t", "ext4", "-O", "^has_journal", "-E", "lazy_itable_init=1", "-m", "0",
			"-d", "/proc/"+w.pid+"/root/run/farpool-root", c.guestFile(w, ".img"), "24G")...); err != nil {
			return err
		}
		for _, args := range [][]string{
			{"ip", "tuntap", "add", "dev", w.tap(), "mode", "tap"},
			{"ip", "link", "set", w.tap(), "mtu", "9000", "master", w.bridge(), "up"},
		} {
			if err := run(ctx, asRoot(args...)...); err != nil {
				return err
			}
		}
		return nil
	})
}

// removeGuest removes what leave has made outside of the container.
func (c cache) removeGuest(ctx context.Context, w worker) error {
	var err error
	if exists("/sys/class/net/" + w.tap()) {
		err = run(ctx, asRoot("ip", "link", "del", w.tap())...)
	}
	return errors.Join(err, run(ctx, asRoot("rm", "-f", c.guestFile(w, ".img"))...))
}

// runGuest returns when the guest has ended, with the reason.
func (c cache) runGuest(ctx context.Context, lab string, w worker) error {
	log, err := os.Create(c.guestFile(w, ".log"))
	if err != nil {
		return err
	}
	defer log.Close()
	args := asRoot("env", "FARPOOL_CACHE="+c.root, "PATH="+os.Getenv("PATH"), lab, "-guest", "-root", c.guestFile(w, ".img"), "-tap", w.tap(),
		"-memory", guestMemory, "-timeout", guestLife.String(), "--",
		"bash", guestDirectory+"/guest.sh", w.name, w.address+"/"+w.bits, w.gateway, w.mac, rdmaDevice(w.name))
	guest := exec.CommandContext(ctx, args[0], args[1:]...)
	guest.Stdout, guest.Stderr, guest.WaitDelay = log, log, 20*time.Second
	guest.Cancel = func() error { return guest.Process.Signal(syscall.SIGTERM) }
	return fmt.Errorf("the guest of %s ended: %w", w.name, guest.Run())
}

func (c cache) explainGuests(names []string) error {
	var all []error
	for _, name := range names {
		text, _ := os.ReadFile(c.guestFile(worker{name: name}, ".log"))
		all = append(all, fmt.Errorf("the guest of %s says (%s):\n%s", name, c.guestFile(worker{name: name}, ".log"), tail(string(text), 30)))
	}
	return errors.Join(all...)
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// A cluster for a guest is made here, where it takes seconds, and stopped; the data of its Docker becomes a disk. In the guest, whose
// processors are emulated, its nodes only start again. Docker's data has to lie in the same place on both sides, as containers name it.

// plan is what `disk` tells `fill`.
type plan struct {
	Node, Plugin string // images
	Shape        shape
	NodeArchive  string
	Archive      string // with the images that pods run
}

func (c cache) planFile(cluster string) string { return c.path(c.room, cluster+".json") }

// forGuests is the cache's room of clusters that guests run.
func (c cache) forGuests() cache {
	c.room = "disk"
	return c
}

// disk makes a stopped cluster with images in it, and returns the path of the file system. It is the one that is there if it was made of
// the same.
func (c cache) disk(ctx context.Context, cluster string, workers int, images []string) (string, error) {
	guests := c.forGuests()
	release, err := c.lock(ctx, "disk")
	if err != nil {
		return "", err
	}
	defer release()
	if err := c.ensureDocker(ctx); err != nil {
		return "", err
	}
	if err := c.ensureTools(ctx, "kind", "kubectl"); err != nil {
		return "", err
	}
	node, built, err := c.nodeImage(ctx)
	if err != nil {
		return "", err
	}
	if node == "" {
		node = publicNode
		if err := run(ctx, "docker", "pull", "-q", node); err != nil {
			return "", err
		}
	}
	plugin, err := c.rdmaImage(ctx)
	if err != nil {
		return "", err
	}
	// A container bears its runtime's name wherever it is started.
	if _, err := c.ociwrap(ctx); err != nil {
		return "", err
	}
	p := plan{Node: node, Plugin: plugin, Shape: shape{workers, built, cgroupV1(), true},
		NodeArchive: guests.path(guests.room, "node.tar"), Archive: guests.path(guests.room, "images.tar")}
	images = append([]string{plugin}, images...)
	ids, err := output(ctx, append([]string{"docker", "image", "inspect", "--format", "{{.Id}} {{.RepoTags}}", node}, images...)...)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256([]byte(ids + clusterConfig(p.Shape)))
	made := guests.path(guests.room, fmt.Sprintf("%s-%x.img", cluster, sum[:6]))
	if exists(made) && exists(guests.kubeconfig(cluster)) {
		return made, nil
	}
	stale, err := filepath.Glob(guests.path(guests.room, cluster+"-*.img*"))
	if err != nil {
		return "", err
	}
	if err := run(ctx, asRoot(append([]string{"rm", "-rf", guests.dataRoot(), guests.execRoot()}, stale...)...)...); err != nil {
		return "", err
	}
	if err := step(ctx, 5*time.Minute, "saving images for the disk", func(ctx context.Context) error {
		return errors.Join(run(ctx, "docker", "save", "-o", p.NodeArchive, node), run(ctx, append([]string{"docker", "save", "-o", p.Archive}, images...)...))
	}); err != nil {
		return "", err
	}
	defer os.RemoveAll(p.NodeArchive)
	defer os.RemoveAll(p.Archive)
	text, err := json.Marshal(p)
	if err != nil {
		return "", err
	}
	if err := replaceFile(guests.planFile(cluster), text, 0o644); err != nil {
		return "", err
	}
	own, err := os.Executable()
	if err != nil {
		return "", err
	}
	// Its bridges, rules, mounts and processes end with it, and another Docker here never meets them.
	within := asRoot("env", "FARPOOL_CACHE="+c.root, fmt.Sprintf("FARPOOL_STARTED=%d", started.Unix()),
		"unshare", "--net", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--mount-proc", own, "fill", "--name", cluster)
	filling := exec.CommandContext(ctx, within[0], within[1:]...)
	filling.Stdout, filling.Stderr, filling.WaitDelay = os.Stderr, os.Stderr, 10*time.Second
	if err := filling.Run(); err != nil {
		return "", fmt.Errorf("making cluster %s: %w", cluster, err)
	}
	err = step(ctx, 5*time.Minute, "making a file system of it", func(ctx context.Context) error {
		return run(ctx, asRoot("mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-E", "lazy_itable_init=1", "-m", "0", "-d", guests.dataRoot(), made+".part", "24G")...)
	})
	if err := errors.Join(err, run(ctx, asRoot("rm", "-rf", guests.dataRoot(), guests.execRoot())...)); err != nil {
		return "", err
	}
	return made, run(ctx, asRoot("mv", made+".part", made)...)
}

// guestDocker starts the Docker of a cluster for guests. Neither it nor the guest's needs rules: nodes share one bridge, and nothing
// leaves it.
func (c cache) guestDocker(ctx context.Context) error {
	if err := os.Setenv("DOCKER_HOST", c.dockerHost()); err != nil {
		return err
	}
	daemon, err := exec.LookPath("dockerd")
	if err != nil {
		return errors.New("there is no dockerd; run `make deps`")
	}
	args := append(wrapped(c.path("bin", "ociwrap")), "--bridge", "none", "--iptables=false", "--ip6tables=false")
	return step(ctx, c.patience, "starting the Docker of a guest", func(ctx context.Context) error {
		// It ends where its containerd takes more than 15 seconds, which an emulated processor on a busy machine may.
		for tries := 1; ; tries++ {
			if err := c.launchDocker(ctx, daemon, args...); !errors.Is(err, errDockerEnded) || tries == 5 {
				return err
			}
			if err := run(ctx, "rm", "-f", c.pidFile(), c.socket(), filepath.Join(c.execRoot(), "containerd", "containerd.pid")); err != nil {
				return err
			}
		}
	})
}

// fill makes the cluster in Docker's data, and leaves it stopped.
func (c cache) fill(ctx context.Context, cluster string) error {
	c = c.forGuests()
	text, err := os.ReadFile(c.planFile(cluster))
	if err != nil {
		return err
	}
	var p plan
	if err := json.Unmarshal(text, &p); err != nil {
		return fmt.Errorf("%s: %w", c.planFile(cluster), err)
	}
	if err := run(ctx, "ip", "link", "set", "lo", "up"); err != nil {
		return err
	}
	if err := c.guestDocker(ctx); err != nil {
		return err
	}
	if err := step(ctx, 5*time.Minute, "loading the node image", func(ctx context.Context) error {
		return run(ctx, "docker", "load", "-q", "-i", p.NodeArchive)
	}); err != nil {
		return err
	}
	// kind takes a network of this name as it is. RDMA packets of 4096 bytes fit into its frames.
	if err := run(ctx, "docker", "network", "create", "-o", "com.docker.network.driver.mtu=9000", "kind"); err != nil {
		return err
	}
	if err := c.createFrom(ctx, cluster, p.Node, p.Shape); err != nil {
		return err
	}
	if err := step(ctx, 5*time.Minute, "loading images into it", func(ctx context.Context) error {
		return run(ctx, c.path("bin", "kind"), "load", "image-archive", "-q", "--name", cluster, p.Archive)
	}); err != nil {
		return err
	}
	if err := run(ctx, c.kubectl(cluster, "-n", "kube-system", "scale", "deploy/coredns", "--replicas=1")...); err != nil {
		return err
	}
	if err := c.settle(ctx, cluster); err != nil {
		return err
	}
	nodes, err := clusterNodes(ctx, cluster)
	if err != nil {
		return err
	}
	return step(ctx, c.patience, "stopping cluster "+cluster, func(ctx context.Context) error {
		if err := run(ctx, append([]string{"docker", "update", "--restart=no"}, nodes...)...); err != nil {
			return err
		}
		if err := run(ctx, append([]string{"docker", "stop", "-t", "5"}, nodes...)...); err != nil {
			return err
		}
		pid, err := os.ReadFile(c.pidFile())
		if err != nil {
			return err
		}
		if err := run(ctx, "kill", strings.TrimSpace(string(pid))); err != nil {
			return err
		}
		return until(ctx, c.patience, "waiting for dockerd to end", func() error {
			if exists(c.pidFile()) {
				return errors.New("it still runs")
			}
			return nil
		})
	})
}

// Nodes watch many files, and pass on packets.
const guestSettings = "net.ipv4.ip_forward=1 fs.inotify.max_user_instances=1024 fs.inotify.max_user_watches=524288 vm.overcommit_memory=1 " +
	"kernel.panic=10 kernel.panic_on_oops=1 kernel.keys.root_maxbytes=25000000"

const guestDisk = "/dev/vda"

// resume starts a cluster that `disk` has made, in the guest that has the disk, and runs a command with it.
func (c cache) resume(ctx context.Context, cluster string, command []string) error {
	c = c.forGuests()
	c.patience = 20 * time.Minute
	begun := time.Now()
	if len(command) == 0 {
		return errors.New("there is no command to run")
	}
	text, err := os.ReadFile(c.planFile(cluster))
	if err != nil {
		return fmt.Errorf("%w: `kindctl disk` makes it", err)
	}
	var p plan
	if err := json.Unmarshal(text, &p); err != nil {
		return fmt.Errorf("%s: %w", c.planFile(cluster), err)
	}
	// The guest reaches nobody: who asks is not to wait.
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"} {
		if err := os.Unsetenv(name); err != nil {
			return err
		}
	}
	for _, args := range [][]string{
		append([]string{"sysctl", "-qw"}, strings.Fields(guestSettings)...),
		{"truncate", "-s", "0", "/etc/resolv.conf"},
		{"mount", "--make-rshared", "/"},
		{"mkdir", "-p", c.dataRoot()},
		{"mount", "-o", "noatime", guestDisk, c.dataRoot()},
		{"rm", "-rf", c.socket(), c.pidFile(), c.execRoot()},
	} {
		if err := run(ctx, args...); err != nil {
			return err
		}
	}
	if err := c.guestDocker(ctx); err != nil {
		return err
	}
	nodes, err := clusterNodes(ctx, cluster)
	if err != nil {
		return err
	}
	if len(nodes) == 0 {
		return fmt.Errorf("%s has no cluster %s", guestDisk, cluster)
	}
	if err := step(ctx, c.patience, "starting "+strings.Join(nodes, ", "), func(ctx context.Context) error {
		return run(ctx, append([]string{"docker", "start"}, nodes...)...)
	}); err != nil {
		return err
	}
	if err := c.rdmaDevices(ctx, cluster); err != nil {
		return err
	}
	if err := step(ctx, c.patience, "waiting for its API server", func(ctx context.Context) error { return c.apiReady(ctx, cluster) }); err != nil {
		return fmt.Errorf("%w\n%s", err, explainNode(ctx, nodes))
	}
	if err := step(ctx, c.patience, "waiting for its nodes", func(ctx context.Context) error { return c.nodesAnew(ctx, cluster, begun) }); err != nil {
		return err
	}
	if err := c.settle(ctx, cluster); err != nil {
		return err
	}
	if err := c.rdmaOffered(ctx, cluster, p.Plugin); err != nil {
		return err
	}
	say("cluster %s is up; running %s", cluster, abbreviate(strings.Join(command, " ")))
	used := exec.CommandContext(ctx, command[0], command[1:]...)
	used.Env = append(os.Environ(), "KUBECONFIG="+c.kubeconfig(cluster), "PATH="+c.path("bin")+":"+os.Getenv("PATH"))
	used.Stdout, used.Stderr, used.WaitDelay = os.Stdout, os.Stderr, 10*time.Second
	return used.Run()
}

// explainNode is what nodes say of themselves that have no API server.
func explainNode(ctx context.Context, nodes []string) string {
	var all strings.Builder
	for _, name := range nodes {
		said, err := output(ctx, "docker", "exec", name, "sh", "-c", "uptime; systemctl --failed --no-pager; ctr -n k8s.io tasks ls 2>&1 | tail -n 20; journalctl --no-pager -n 40 -u kubelet -u containerd -o cat | cut -c1-300")
		if err != nil {
			said = err.Error()
		}
		fmt.Fprintf(&all, "%s:\n%s\n", name, tail(said, 80))
	}
	return all.String()
}

// apiReady asks without a kubectl, whose start alone takes an emulated processor a second.
func (c cache) apiReady(ctx context.Context, cluster string) error {
	config, err := os.ReadFile(c.kubeconfig(cluster))
	if err != nil {
		return err
	}
	m := regexp.MustCompile(`(?m)^\s*server: (\S+)$`).FindSubmatch(config)
	if m == nil {
		return fmt.Errorf("%s names no server", c.kubeconfig(cluster))
	}
	// Nothing is told to whoever answers, and nothing of it is believed.
	asking := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
	return untilEvery(ctx, time.Second, c.patience, "API server", func() error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, string(m[1])+"/readyz", nil)
		if err != nil {
			return err
		}
		answer, err := asking.Do(request)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			return fmt.Errorf("it says %s", answer.Status)
		}
		return nil
	})
}

// nodesAnew waits until every node's kubelet has said since a moment that it is ready: what was written before a cluster was stopped
// still stands.
func (c cache) nodesAnew(ctx context.Context, cluster string, since time.Time) error {
	return untilEvery(ctx, 3*time.Second, c.patience, "nodes", func() error {
		listing, err := output(ctx, c.kubectl(cluster, "get", "nodes", "-o",
			`jsonpath={range .items[*]}{.metadata.name}{range .status.conditions[?(@.type=="Ready")]} {.lastHeartbeatTime}{end}{"\n"}{end}`)...)
		if err != nil {
			return err
		}
		for _, line := range strings.Split(listing, "\n") {
			fields := strings.Fields(line)
			if len(fields) != 2 {
				return fmt.Errorf("a node says nothing: %q", line)
			}
			at, err := time.Parse(time.RFC3339, fields[1])
			if err != nil || at.Before(since) {
				return fmt.Errorf("node %s was last heard of at %s", fields[0], fields[1])
			}
		}
		return nil
	})
}

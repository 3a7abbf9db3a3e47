// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"runtime"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// serviceRange is kubeadm's default for cluster IPs.
const serviceRange = "10.96.0.0/12"

// serviceRange6 is kind's default for cluster IPs of IPv6.
const serviceRange6 = "fd00:10:96::/112"

// before is what the machine looked like when kindctl started a dockerd, so that `down --all` can put it back.
type before struct {
	ForwardPolicy string `json:"forwardPolicy"`
	IPForward     string `json:"ipForward"`
	HadBridge     bool   `json:"hadBridge"`
}

func (c cache) socket() string     { return c.path("kind", "docker.sock") }
func (c cache) pidFile() string    { return c.path("kind", "docker.pid") }
func (c cache) dataRoot() string   { return c.path("kind", "docker-data") }
func (c cache) execRoot() string   { return c.path("kind", "docker-run") }
func (c cache) stateFile() string  { return c.path("kind", "before.json") }
func (c cache) dockerHost() string { return "unix://" + c.socket() }

func dockerAnswers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return run(ctx, "docker", "version", "--format", "{{.Server.Version}}") == nil
}

// findDocker sets DOCKER_HOST for this process and its children: the caller's choice, else the machine's daemon, else ours.
func (c cache) findDocker(ctx context.Context) (found bool, err error) {
	if err := os.Setenv("DOCKER_BUILDKIT", "0"); err != nil {
		return false, err
	}
	if _, err := exec.LookPath("docker"); err != nil {
		return false, errors.New("no docker command; run `make deps`")
	}
	if host := os.Getenv("DOCKER_HOST"); host != "" && host != c.dockerHost() {
		if !dockerAnswers(ctx) {
			return false, fmt.Errorf("no Docker answers at DOCKER_HOST=%s; start it, or unset DOCKER_HOST to have one started", host)
		}
		return true, nil
	}
	if err := os.Unsetenv("DOCKER_HOST"); err != nil {
		return false, err
	}
	if dockerAnswers(ctx) {
		return true, nil
	}
	if err := os.Setenv("DOCKER_HOST", c.dockerHost()); err != nil {
		return false, err
	}
	return exists(c.socket()) && dockerAnswers(ctx), nil
}

// isOurs says whether the Docker in use is the one that kindctl started.
func (c cache) isOurs() bool { return os.Getenv("DOCKER_HOST") == c.dockerHost() }

func (c cache) ensureDocker(ctx context.Context) error {
	found, err := c.findDocker(ctx)
	if err != nil || found {
		return err
	}
	release, err := c.lock(ctx, "dockerd")
	if err != nil {
		return err
	}
	defer release()
	if dockerAnswers(ctx) {
		return nil
	}
	return step(ctx, 2*time.Minute, "starting a Docker daemon", c.startDocker)
}

func (c cache) startDocker(ctx context.Context) error {
	if runtime.GOOS != "linux" {
		return errors.New("no Docker answers; start Docker and try again")
	}
	daemon, err := exec.LookPath("dockerd")
	if err != nil {
		return errors.New("no Docker answers and there is no dockerd to start; run `make deps`, or start Docker yourself")
	}
	if os.Geteuid() != 0 && run(ctx, "sudo", "-n", "true") != nil {
		return errors.New("no Docker answers, and starting one takes root; start Docker, or run this as root")
	}
	if len(c.socket()) > 100 {
		return fmt.Errorf("%s is too long a path for a socket; set FARPOOL_CACHE to a shorter one", c.socket())
	}
	if err := c.remember(ctx); err != nil {
		return err
	}
	args := []string{daemon, "--data-root", c.dataRoot(), "--exec-root", c.execRoot(), "--pidfile", c.pidFile(), "-H", c.dockerHost()}
	if me, err := user.Current(); err == nil && me.Uid != "0" {
		args = append(args, "--group", me.Gid)
	}
	if full, err := boundingSetIsFull(); err != nil {
		return err
	} else if !full {
		wrapper, err := c.ociwrap(ctx)
		if err != nil {
			return err
		}
		args = append(args, "--add-runtime", "wrap="+wrapper, "--default-runtime", "wrap")
	}
	// A daemon that was killed leaves these behind, and a new one stops at them.
	if err := run(ctx, asRoot("rm", "-f", c.pidFile(), c.socket())...); err != nil {
		return err
	}
	log, err := os.Create(c.path("kind", "dockerd.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	args = asRoot(args...)
	dockerd := exec.Command(args[0], args[1:]...)
	dockerd.Stdout, dockerd.Stderr = log, log
	dockerd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := dockerd.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() { _ = dockerd.Wait(); close(ended) }()
	return until(ctx, 90*time.Second, "waiting for dockerd", func() error {
		select {
		case <-ended:
			text, _ := os.ReadFile(log.Name())
			return fmt.Errorf("dockerd ended; %s says\n%s", log.Name(), tail(string(text), 15))
		default:
		}
		if !dockerAnswers(ctx) {
			return fmt.Errorf("no answer at %s; see %s", c.dockerHost(), log.Name())
		}
		return nil
	})
}

// remember writes down what dockerd is about to change. A state that is there already is older and therefore right.
func (c cache) remember(ctx context.Context) error {
	if exists(c.stateFile()) {
		return nil
	}
	rules, err := output(ctx, asRoot("iptables", "-S", "FORWARD")...)
	if err != nil {
		return err
	}
	forward, err := os.ReadFile("/proc/sys/net/ipv4/ip_forward")
	if err != nil {
		return err
	}
	policy, _, _ := strings.Cut(rules, "\n")
	state := before{
		ForwardPolicy: strings.TrimPrefix(policy, "-P FORWARD "),
		IPForward:     strings.TrimSpace(string(forward)),
		HadBridge:     exists("/sys/class/net/docker0"),
	}
	text, err := json.Marshal(state)
	if err != nil {
		return err
	}
	return replaceFile(c.stateFile(), text, 0o644)
}

func boundingSetIsFull() (bool, error) {
	status, err := os.ReadFile("/proc/1/status") // sudo may widen what this process lacks, and never beyond init's
	if err != nil {
		return false, err
	}
	last, err := os.ReadFile("/proc/sys/kernel/cap_last_cap")
	if err != nil {
		return false, err
	}
	m := regexp.MustCompile(`(?m)^CapBnd:\s*([0-9a-f]+)$`).FindSubmatch(status)
	if m == nil {
		return false, errors.New("no CapBnd line in /proc/1/status")
	}
	have, err := strconv.ParseUint(string(m[1]), 16, 64)
	if err != nil {
		return false, err
	}
	highest, err := strconv.Atoi(strings.TrimSpace(string(last)))
	if err != nil {
		return false, err
	}
	full := uint64(1)<<uint(highest+1) - 1
	return have&full == full, nil
}

// ociwrap builds the runtime wrapper that lies beside this program.
func (c cache) ociwrap(ctx context.Context) (string, error) { return c.ownTool(ctx, "kindctl/ociwrap") }

// ownTool builds a small static program of this repository into the cache.
func (c cache) ownTool(ctx context.Context, name string) (string, error) {
	root, err := repository(ctx)
	if err != nil {
		return "", err
	}
	path := c.path("bin", filepath.Base(name))
	// Built aside and renamed: the old one may be running.
	temporary := fmt.Sprintf("%s.%d", path, os.Getpid())
	build := command{dir: root, env: []string{"CGO_ENABLED=0"}, args: []string{"go", "build", "-trimpath", "-ldflags=-s -w", "-o", temporary, "./hack/" + name}}
	if err := build.run(ctx); err != nil {
		return "", err
	}
	return path, os.Rename(temporary, path)
}

func repository(ctx context.Context) (string, error) {
	manifest, err := output(ctx, "go", "env", "GOMOD")
	if err != nil {
		return "", err
	}
	if manifest == "" || manifest == os.DevNull {
		return "", errors.New("run kindctl inside the repository")
	}
	return filepath.Dir(manifest), nil
}

// stopDocker ends the dockerd that kindctl started and removes its data, bridges and rules. It is safe to run when nothing
// is there.
func (c cache) stopDocker(ctx context.Context) error {
	if pid := c.daemonPid(); pid != 0 {
		if c.isOurs() && dockerAnswers(ctx) {
			if err := c.removeNetworks(ctx); err != nil {
				return err
			}
		}
		if err := run(ctx, asRoot("kill", strconv.Itoa(pid))...); err != nil {
			return err
		}
		if err := until(ctx, time.Minute, fmt.Sprintf("waiting for dockerd (pid %d) to end", pid), func() error {
			if c.daemonPid() != 0 {
				return errors.New("it still runs")
			}
			return nil
		}); err != nil {
			return err
		}
	}
	mounts, err := os.ReadFile("/proc/mounts")
	if err != nil {
		return err
	}
	for _, mount := range mountsUnder(string(mounts), c.dataRoot(), c.execRoot()) {
		if err := run(ctx, asRoot("umount", mount)...); err != nil {
			return err
		}
	}
	if err := run(ctx, asRoot("rm", "-rf", c.dataRoot(), c.execRoot(), c.socket(), c.pidFile())...); err != nil {
		return err
	}
	return c.restore(ctx)
}

// daemonPid is our dockerd's process id, or 0. A pid file may outlive its process, and the number may be another's by now.
func (c cache) daemonPid() int {
	text, err := os.ReadFile(c.pidFile())
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0
	}
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil || !strings.Contains(string(line), "dockerd") || !strings.Contains(string(line), c.dataRoot()) {
		return 0
	}
	return pid
}

// removeNetworks lets dockerd itself undo the bridges and rules of the networks that it made.
func (c cache) removeNetworks(ctx context.Context) error {
	if ids, err := output(ctx, "docker", "ps", "-aq"); err != nil {
		return err
	} else if ids != "" {
		if err := run(ctx, append([]string{"docker", "rm", "-fv"}, strings.Fields(ids)...)...); err != nil {
			return err
		}
	}
	ids, err := output(ctx, "docker", "network", "ls", "-q", "--filter", "type=custom")
	if err != nil || ids == "" {
		return err
	}
	return run(ctx, append([]string{"docker", "network", "rm"}, strings.Fields(ids)...)...)
}

func mountsUnder(mounts string, roots ...string) []string {
	var found []string
	for _, line := range strings.Split(mounts, "\n") {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		for _, root := range roots {
			if fields[1] == root || strings.HasPrefix(fields[1], root+"/") {
				found = append(found, fields[1])
			}
		}
	}
	sort.Sort(sort.Reverse(sort.StringSlice(found))) // inner mounts first
	return found
}

// restore undoes what dockerd leaves behind in the kernel: its chains and jumps, docker0, forwarding, our blackhole route.
func (c cache) restore(ctx context.Context) error {
	text, err := os.ReadFile(c.stateFile())
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var state before
	if err := json.Unmarshal(text, &state); err != nil {
		return fmt.Errorf("%s: %w", c.stateFile(), err)
	}
	for _, tables := range []string{"iptables", "ip6tables"} {
		if state.HadBridge { // another Docker's: its rules are not ours to remove
			break
		}
		for _, table := range []string{"filter", "nat"} {
			rules, err := output(ctx, asRoot(tables, "-t", table, "-S")...)
			if err != nil {
				continue // a kernel without that table has no rules in it either
			}
			for _, undo := range undoRules(rules) {
				if err := run(ctx, asRoot(append([]string{tables, "-t", table}, undo...)...)...); err != nil {
					return err
				}
			}
		}
	}
	if !state.HadBridge {
		bridges, err := bridgesOfDocker("/sys/class/net")
		if err != nil {
			return err
		}
		for _, bridge := range bridges {
			if err := run(ctx, asRoot("ip", "link", "del", bridge)...); err != nil {
				return err
			}
		}
	}
	if err := run(ctx, asRoot("iptables", "-P", "FORWARD", state.ForwardPolicy)...); err != nil {
		return err
	}
	if err := run(ctx, asRoot("sysctl", "-qw", "net.ipv4.ip_forward="+state.IPForward)...); err != nil {
		return err
	}
	for _, services := range serviceRanges("dual") {
		if routes, err := output(ctx, "ip", ipOption(services), "route", "show", "type", "blackhole", services); err == nil && routes != "" {
			if err := run(ctx, asRoot("ip", ipOption(services), "route", "del", "blackhole", services)...); err != nil {
				return err
			}
		}
	}
	return run(ctx, asRoot("rm", "-f", c.stateFile())...)
}

var dockerBridge = regexp.MustCompile(`^(docker0|br-[0-9a-f]{12})$`)

// bridgesOfDocker returns the bridges that a dockerd leaves behind when it is killed. The range of kind's network of IPv6 is always the same, so that a
// bridge of an earlier daemon takes what is meant for the nodes of a later one.
func bridgesOfDocker(interfaces string) ([]string, error) {
	entries, err := os.ReadDir(interfaces)
	if err != nil {
		return nil, err
	}
	var bridges []string
	for _, entry := range entries {
		if dockerBridge.MatchString(entry.Name()) {
			bridges = append(bridges, entry.Name())
		}
	}
	return bridges, nil
}

var dockerRule = regexp.MustCompile(`\bDOCKER[A-Z0-9-]*\b|\bdocker0\b|\bbr-[0-9a-f]{12}\b`)

// undoRules turns `iptables -S` into the arguments that delete Docker's rules, and then its chains once nothing uses them.
func undoRules(listing string) [][]string {
	var rules, flush, chains [][]string
	for _, line := range strings.Split(listing, "\n") {
		fields := strings.Fields(line)
		switch {
		case len(fields) < 2:
		case fields[0] == "-N" && strings.HasPrefix(fields[1], "DOCKER"):
			flush = append(flush, []string{"-F", fields[1]})
			chains = append(chains, []string{"-X", fields[1]})
		case fields[0] == "-A" && !strings.HasPrefix(fields[1], "DOCKER") && dockerRule.MatchString(line):
			rules = append(rules, append([]string{"-D"}, fields[1:]...))
		}
	}
	return append(append(rules, flush...), chains...)
}

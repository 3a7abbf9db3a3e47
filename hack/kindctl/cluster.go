// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const defaultCluster = "farpool"

// shape of a cluster.
type shape struct {
	workers    int
	ownNetwork bool // without kind's CNI, whose image a node image built here has not
	cgroupV1   bool
	emulated   bool   // its workers' processors: they are slow
	family     string // of addresses: ipv4, ipv6, or dual
}

// clusterConfig is kind's configuration. Nodes are judged lost within seconds, and a container that ended again and again is started
// again within two, so that tests of lost nodes and killed processes need no minutes. Emulated nodes have Kubernetes' own times: they
// stand still for seconds, and what starts in vain again and again takes the processor from what others wait for.
func clusterConfig(s shape) string {
	var b strings.Builder
	fmt.Fprint(&b, "kind: Cluster\napiVersion: kind.x-k8s.io/v1alpha4\n")
	var networking []string
	if s.ownNetwork {
		networking = append(networking, "disableDefaultCNI: true")
	}
	if s.family != "" && s.family != "ipv4" {
		networking = append(networking, "ipFamily: "+s.family)
	}
	if len(networking) > 0 {
		fmt.Fprintf(&b, "networking: {%s}\n", strings.Join(networking, ", "))
	}
	fmt.Fprint(&b, "kubeadmConfigPatches:\n")
	if !s.emulated {
		fmt.Fprint(&b, `- |
  kind: ClusterConfiguration
  controllerManager:
    extraArgs: {node-monitor-period: 1s, node-monitor-grace-period: 8s}
`)
	}
	fmt.Fprint(&b, "- |\n  kind: KubeletConfiguration\n")
	if !s.emulated {
		fmt.Fprint(&b, `  nodeStatusUpdateFrequency: 2s
  crashLoopBackOff: {maxContainerRestartPeriod: 2s}
  featureGates: {KubeletCrashLoopBackOffMax: true}
`)
	}
	if s.cgroupV1 { // kubelet refuses such a host unless told
		fmt.Fprint(&b, "  failCgroupV1: false\n")
	}
	fmt.Fprint(&b, "nodes:\n- role: control-plane\n")
	fmt.Fprint(&b, strings.Repeat("- role: worker\n", s.workers))
	return b.String()
}

// up makes the cluster, or brings one that is there back to order.
func (c cache) up(ctx context.Context, cluster string, workers int, emulated bool, ipFamily string) error {
	if ipFamily != "ipv4" && ipFamily != "ipv6" && ipFamily != "dual" {
		return fmt.Errorf("--ip-family is %q: set it to ipv4, ipv6 or dual", ipFamily)
	}
	release, err := c.lock(ctx, "cluster-"+cluster)
	if err != nil {
		return err
	}
	defer release()
	if err := c.ensureDocker(ctx); err != nil {
		return err
	}
	if err := c.ensureTools(ctx, "kind", "kubectl"); err != nil {
		return err
	}
	nodes, err := clusterNodes(ctx, cluster)
	if err != nil {
		return err
	}
	if len(nodes) > 0 && !c.clusterAnswers(ctx, cluster) {
		say("cluster %s is there and does not answer: making it anew", cluster)
		if err := c.deleteCluster(ctx, cluster); err != nil {
			return err
		}
		nodes = nil
	}
	if len(nodes) > 0 && len(nodes) != workers+1 {
		return fmt.Errorf("cluster %s has %d workers, not %d; `make down` removes it, or ask for what is there", cluster, len(nodes)-1, workers)
	}
	if len(nodes) == 0 {
		if err := c.create(ctx, cluster, workers, emulated, ipFamily); err != nil {
			return err
		}
	}
	return c.settle(ctx, cluster)
}

func (c cache) create(ctx context.Context, cluster string, workers int, emulated bool, ipFamily string) error {
	image, built, err := c.nodeImage(ctx)
	if err != nil {
		return err
	}
	if c.isOurs() {
		// Traffic to a service that no proxy rule translated must not leave the machine by its default route.
		for _, services := range serviceRanges(ipFamily) {
			if err := run(ctx, asRoot("ip", ipOption(services), "route", "replace", "blackhole", services)...); err != nil {
				return err
			}
		}
	}
	config := c.path("kind", cluster+".yaml")
	text := clusterConfig(shape{workers, built, !exists("/sys/fs/cgroup/cgroup.controllers"), emulated, ipFamily})
	if err := replaceFile(config, []byte(text), 0o644); err != nil {
		return err
	}
	args := []string{c.path("bin", "kind"), "create", "cluster", "-q", "--name", cluster, "--config", config, "--kubeconfig", c.kubeconfig(cluster)}
	if image != "" {
		args = append(args, "--image", image)
	}
	return step(ctx, 10*time.Minute, fmt.Sprintf("creating cluster %s: 1 control plane, %d workers", cluster, workers), func(ctx context.Context) error {
		return run(ctx, args...)
	})
}

// settle brings the network up and waits until pods can run. It may be repeated: a node that was restarted has lost its routes.
func (c cache) settle(ctx context.Context, cluster string) error {
	return step(ctx, 5*time.Minute, "waiting for cluster "+cluster+" to be ready", func(ctx context.Context) error {
		if err := c.network(ctx, cluster); err != nil {
			return err
		}
		if err := run(ctx, c.kubectl(cluster, "wait", "--for=condition=Ready", "node", "--all", "--timeout=180s")...); err != nil {
			return err
		}
		return run(ctx, c.kubectl(cluster, "-n", "kube-system", "rollout", "status", "deploy/coredns", "--timeout=180s")...)
	})
}

// kubectl is a command line of it for a cluster.
func (c cache) kubectl(cluster string, args ...string) []string {
	return append([]string{c.path("bin", "kubectl"), "--kubeconfig", c.kubeconfig(cluster)}, args...)
}

func clusterNodes(ctx context.Context, cluster string) ([]string, error) {
	names, err := output(ctx, "docker", "ps", "-a", "--filter", "label=io.x-k8s.kind.cluster="+cluster, "--format", "{{.Names}}")
	return strings.Fields(names), err
}

// clusterAnswers is about nodes that are all running and an API server that is ready, within seconds.
func (c cache) clusterAnswers(ctx context.Context, cluster string) bool {
	stopped, err := output(ctx, "docker", "ps", "-aq", "--filter", "label=io.x-k8s.kind.cluster="+cluster, "--filter", "status=exited", "--filter", "status=created", "--filter", "status=dead")
	if err != nil || stopped != "" || !exists(c.kubeconfig(cluster)) {
		return false
	}
	return until(ctx, 15*time.Second, "API server", func() error {
		return run(ctx, c.path("bin", "kubectl"), "--kubeconfig", c.kubeconfig(cluster), "get", "--raw=/readyz", "--request-timeout=3s")
	}) == nil
}

// A node's part in the network of a cluster that kindctl built the image for.
type node struct {
	name string
	// One of each family that the cluster has, in one order.
	podRanges, addresses []string
}

// route from other nodes to a node's pods of each family.
func (n node) routes() map[string]string {
	via := map[string]string{}
	for _, podRange := range n.podRanges {
		for _, address := range n.addresses {
			if family(address) == family(podRange) {
				via[podRange] = address
			}
		}
	}
	return via
}

// ipOption makes iproute2 speak of a range's family.
func ipOption(addresses string) string {
	if family(addresses) == "ip6" {
		return "-6"
	}
	return "-4"
}

// tablesOf a family.
func tablesOf(addresses string) string {
	if family(addresses) == "ip6" {
		return "ip6tables"
	}
	return "iptables"
}

// serviceRanges of cluster IPs, as kind has them.
func serviceRanges(ipFamily string) []string {
	switch ipFamily {
	case "ipv6":
		return []string{serviceRange6}
	case "dual":
		return []string{serviceRange, serviceRange6}
	}
	return []string{serviceRange}
}

// network gives the nodes of a built image what kind's own CNI image would: a veth pair for each pod, addresses from the
// node's range, and a route to each other node's range.
func (c cache) network(ctx context.Context, cluster string) error {
	nodes, err := c.networkNodes(ctx, cluster)
	if err != nil {
		return err
	}
	for i := range nodes {
		if err := onNode(ctx, nodes[i].name, networkScript(nodes, i), "bash", "-s"); err != nil {
			return err
		}
	}
	return nil
}

// onNode runs a command with some input in a node's container.
func onNode(ctx context.Context, node, input string, args ...string) error {
	return command{in: strings.NewReader(input), args: append([]string{"docker", "exec", "-i", node}, args...)}.run(ctx)
}

// networkNodes are the nodes whose network is made here: all of a cluster, or none where its image has a CNI of its own.
func (c cache) networkNodes(ctx context.Context, cluster string) ([]node, error) {
	names, err := clusterNodes(ctx, cluster)
	if err != nil {
		return nil, err
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("cluster %s has no nodes", cluster)
	}
	image, err := output(ctx, "docker", "inspect", "--format", "{{.Config.Image}}", names[0])
	if err != nil || !strings.HasPrefix(image, "farpool/kind-node:") {
		return nil, err
	}
	var nodes []node
	err = until(ctx, time.Minute, "waiting for every node's pod range", func() error {
		listing, err := output(ctx, c.kubectl(cluster, "get", "nodes", "-o",
			`jsonpath={range .items[*]}{.metadata.name}|{.spec.podCIDRs[*]}|{.status.addresses[?(@.type=="InternalIP")].address}{"\n"}{end}`)...)
		if err != nil {
			return err
		}
		nodes = parseNodes(listing)
		if len(nodes) != len(names) {
			return fmt.Errorf("%d of %d nodes have one", len(nodes), len(names))
		}
		return nil
	})
	return nodes, err
}

func parseNodes(listing string) []node {
	var nodes []node
	for _, line := range strings.Split(listing, "\n") {
		fields := strings.Split(line, "|")
		if len(fields) != 3 {
			continue
		}
		n := node{strings.TrimSpace(fields[0]), strings.Fields(fields[1]), strings.Fields(fields[2])}
		if len(n.podRanges) > 0 && len(n.routes()) == len(n.podRanges) {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

func networkScript(nodes []node, self int) string {
	var b strings.Builder
	var routes, ranges []string
	for _, podRange := range nodes[self].podRanges {
		everywhere := "0.0.0.0/0"
		if family(podRange) == "ip6" {
			everywhere = "::/0"
		}
		routes = append(routes, fmt.Sprintf(`{"dst": %q}`, everywhere))
		ranges = append(ranges, fmt.Sprintf(`[{"subnet": %q}]`, podRange))
	}
	fmt.Fprintf(&b, `set -e
mkdir -p /etc/cni/net.d
cat > /etc/cni/net.d/10-ptp.conflist <<'END'
{"cniVersion": "0.4.0", "name": "ptp", "plugins": [
  {"type": "ptp", "ipam": {"type": "host-local", "dataDir": "/run/cni-ipam-state",
    "routes": [%s], "ranges": [%s]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
END
`, strings.Join(routes, ", "), strings.Join(ranges, ", "))
	for i, other := range nodes {
		if i == self {
			continue
		}
		for _, podRange := range other.podRanges {
			fmt.Fprintf(&b, "ip %s route replace %s via %s\n", ipOption(podRange), podRange, other.routes()[podRange])
		}
	}
	for _, own := range nodes[self].podRanges {
		tables := tablesOf(own)
		// iptables takes one destination a rule, so pods' own ranges return early from a chain.
		fmt.Fprintf(&b, "%[1]s -t nat -N FARPOOL-POD 2>/dev/null || %[1]s -t nat -F FARPOOL-POD\n", tables)
		for _, other := range nodes {
			for _, podRange := range other.podRanges {
				if family(podRange) == family(own) {
					fmt.Fprintf(&b, "%s -t nat -A FARPOOL-POD -d %s -j RETURN\n", tables, podRange)
				}
			}
		}
		rule := fmt.Sprintf("POSTROUTING -s %s -o eth0 -j FARPOOL-POD", own)
		fmt.Fprintf(&b, "%[1]s -t nat -A FARPOOL-POD -j MASQUERADE\n%[1]s -t nat -C %[2]s 2>/dev/null || %[1]s -t nat -A %[2]s\n", tables, rule)
	}
	return b.String()
}

func (c cache) deleteCluster(ctx context.Context, cluster string) error {
	return step(ctx, 5*time.Minute, "deleting cluster "+cluster, func(ctx context.Context) error {
		if err := run(ctx, c.path("bin", "kind"), "delete", "cluster", "-q", "--name", cluster, "--kubeconfig", c.kubeconfig(cluster)); err != nil {
			return err
		}
		return errors.Join(removeIfThere(c.kubeconfig(cluster)), removeIfThere(c.path("kind", cluster+".yaml")))
	})
}

func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// down removes the cluster; with everything, also the dockerd that kindctl started and whatever that left in the kernel.
func (c cache) down(ctx context.Context, cluster string, everything bool) error {
	release, err := c.lock(ctx, "cluster-"+cluster)
	if err != nil {
		return err
	}
	defer release()
	found, err := c.findDocker(ctx)
	if err != nil {
		return err
	}
	if found {
		clusters := []string{cluster}
		if everything && c.isOurs() {
			clusters, err = allClusters(ctx)
			if err != nil {
				return err
			}
		}
		for _, name := range clusters {
			nodes, err := clusterNodes(ctx, name)
			if err != nil {
				return err
			}
			if len(nodes) == 0 {
				continue
			}
			if err := c.ensureTools(ctx, "kind"); err != nil {
				return err
			}
			if err := c.deleteCluster(ctx, name); err != nil {
				return err
			}
		}
	}
	if !everything {
		return nil
	}
	stale, err := filepath.Glob(c.path("kind", "*kubeconfig*"))
	if err != nil {
		return err
	}
	for _, path := range stale {
		if err := removeIfThere(path); err != nil {
			return err
		}
	}
	return step(ctx, 3*time.Minute, "removing what kindctl left in Docker and the kernel", c.stopDocker)
}

func allClusters(ctx context.Context) ([]string, error) {
	names, err := output(ctx, "docker", "ps", "-a", "--filter", "label=io.x-k8s.kind.cluster", "--format", `{{.Label "io.x-k8s.kind.cluster"}}`)
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	var clusters []string
	for _, name := range strings.Fields(names) {
		if !seen[name] {
			seen[name] = true
			clusters = append(clusters, name)
		}
	}
	return clusters, nil
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

const policyTable = "farpool_policies"

// policed is what NetworkPolicies are about.
type policed struct {
	namespaces []corev1.Namespace
	pods       []corev1.Pod
	policies   []networkingv1.NetworkPolicy
}

// withPolicies enforces the NetworkPolicies of a cluster while a command runs. Its nodes have no CNI that does: each of them gets nftables rules for what it
// forwards, which are made anew when pods or policies change. What a node's own processes send, such as probes, passes, as it does behind other CNIs.
func (c cache) withPolicies(ctx context.Context, cluster string, args []string) error {
	if len(args) == 0 {
		return errors.New("which command? kindctl policies -- COMMAND")
	}
	if err := c.ensureDocker(ctx); err != nil {
		return err
	}
	nodes, err := clusterNodes(ctx, cluster)
	if err != nil {
		return err
	}
	if len(nodes) == 0 {
		return fmt.Errorf("cluster %s has no nodes", cluster)
	}
	applied, err := c.police(ctx, cluster, nodes, "")
	if err != nil {
		return err
	}
	enforced, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		ticker := time.NewTicker(500 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-enforced.Done():
				return
			case <-ticker.C:
			}
			// The API server may be stopped by a test: rules stay as they are then.
			if now, err := c.police(enforced, cluster, nodes, applied); err == nil {
				applied = now
			} else if enforced.Err() == nil {
				say("policies are as they were: %v", err)
			}
		}
	}()
	command := exec.CommandContext(ctx, args[0], args[1:]...)
	command.Stdin, command.Stdout, command.Stderr = os.Stdin, os.Stdout, os.Stderr
	err = command.Run()
	stop()
	<-ended
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return commandEnded{exit.ExitCode()}
	}
	return err
}

// police brings the nodes' rules to what the cluster's policies say, if that differs from what was applied before.
func (c cache) police(ctx context.Context, cluster string, nodes []string, before string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	listing, err := output(ctx, c.kubectl(cluster, "get", "namespaces,pods,networkpolicies", "-A", "-o", "json", "--request-timeout=10s")...)
	if err != nil {
		return "", err
	}
	all, err := parsePoliced([]byte(listing))
	if err != nil {
		return "", err
	}
	rules := all.rules()
	if rules == before {
		return rules, nil
	}
	for _, node := range nodes {
		if err := onNode(ctx, node, rules, "nft", "-f", "-"); err != nil {
			return "", err
		}
	}
	return rules, nil
}

func parsePoliced(listing []byte) (policed, error) {
	var list struct {
		Items []json.RawMessage `json:"items"`
	}
	if err := json.Unmarshal(listing, &list); err != nil {
		return policed{}, fmt.Errorf("read what kubectl lists: %w", err)
	}
	var all policed
	for _, item := range list.Items {
		var kind metav1.TypeMeta
		if err := json.Unmarshal(item, &kind); err != nil {
			return policed{}, err
		}
		var err error
		switch kind.Kind {
		case "Namespace":
			all.namespaces, err = appended(all.namespaces, item)
		case "Pod":
			all.pods, err = appended(all.pods, item)
		case "NetworkPolicy":
			all.policies, err = appended(all.policies, item)
		}
		if err != nil {
			return policed{}, fmt.Errorf("read a %s: %w", kind.Kind, err)
		}
	}
	return all, nil
}

func appended[T any](list []T, item json.RawMessage) ([]T, error) {
	var object T
	err := json.Unmarshal(item, &object)
	return append(list, object), err
}

// onPodNetwork says whether policies select a pod: those in the network of their node are as good as the node.
func onPodNetwork(pod *corev1.Pod) bool {
	return !pod.Spec.HostNetwork && len(pod.Status.PodIPs) > 0 && pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed
}

// rules of nftables for every node of the cluster: one chain for each pod and direction that a policy isolates.
func (p policed) rules() string {
	var chains, jumps strings.Builder
	slices.SortFunc(p.pods, func(a, b corev1.Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	slices.SortFunc(p.policies, func(a, b networkingv1.NetworkPolicy) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	for i := range p.pods {
		pod := &p.pods[i]
		if !onPodNetwork(pod) {
			continue
		}
		for _, direction := range []networkingv1.PolicyType{networkingv1.PolicyTypeEgress, networkingv1.PolicyTypeIngress} {
			var allowed []string
			isolated := false
			for _, policy := range p.policies {
				if policy.Namespace != pod.Namespace || !slices.Contains(policy.Spec.PolicyTypes, direction) || !matches(&policy.Spec.PodSelector, pod.Labels) {
					continue
				}
				isolated = true
				if direction == networkingv1.PolicyTypeIngress {
					for _, rule := range policy.Spec.Ingress {
						allowed = append(allowed, p.allow(policy.Namespace, "saddr", rule.From, rule.Ports, pod)...)
					}
				} else {
					for _, rule := range policy.Spec.Egress {
						allowed = append(allowed, p.allow(policy.Namespace, "daddr", rule.To, rule.Ports, nil)...)
					}
				}
			}
			if !isolated {
				continue
			}
			chain, side := fmt.Sprintf("%s-%d", strings.ToLower(string(direction)), i), "saddr"
			if direction == networkingv1.PolicyTypeIngress {
				side = "daddr"
			}
			fmt.Fprintf(&chains, "  chain %s { # %s/%s\n", chain, pod.Namespace, pod.Name)
			for _, line := range allowed {
				fmt.Fprintf(&chains, "    %s return\n", line)
			}
			fmt.Fprint(&chains, "    counter drop\n  }\n")
			for _, address := range pod.Status.PodIPs {
				fmt.Fprintf(&jumps, "    %s %s %s jump %s\n", family(address.IP), side, address.IP, chain)
			}
		}
	}
	return fmt.Sprintf("table inet %[1]s\ndelete table inet %[1]s\ntable inet %[1]s {\n%[2]s  chain forward {\n    type filter hook forward priority 10; policy accept;\n"+
		"    ct state established,related accept\n    meta l4proto ipv6-icmp accept\n%[3]s  }\n}\n", policyTable, chains.String(), jumps.String())
}

// allow returns the matches of one rule: every peer with every port. of is the pod whose named ports are meant; none where those of any peer would be.
func (p policed) allow(namespace, side string, peers []networkingv1.NetworkPolicyPeer, ports []networkingv1.NetworkPolicyPort, of *corev1.Pod) []string {
	from := []string{""}
	if len(peers) > 0 {
		from = nil
		for _, peer := range peers {
			from = append(from, p.addresses(namespace, side, peer)...)
		}
	}
	to := []string{""}
	if len(ports) > 0 {
		to = nil
		for _, port := range ports {
			to = append(to, portMatch(port, of)...)
		}
	}
	var lines []string
	for _, a := range from {
		for _, b := range to {
			lines = append(lines, strings.Join(slices.DeleteFunc([]string{a, b, "counter"}, func(s string) bool { return s == "" }), " "))
		}
	}
	return lines
}

func (p policed) addresses(namespace, side string, peer networkingv1.NetworkPolicyPeer) []string {
	if block := peer.IPBlock; block != nil {
		match := fmt.Sprintf("%s %s %s", family(block.CIDR), side, block.CIDR)
		for _, except := range block.Except {
			match += fmt.Sprintf(" %s %s != %s", family(except), side, except)
		}
		return []string{match}
	}
	var found []string
	for i := range p.pods {
		pod := &p.pods[i]
		if !onPodNetwork(pod) || peer.PodSelector != nil && !matches(peer.PodSelector, pod.Labels) {
			continue
		}
		if peer.NamespaceSelector == nil && pod.Namespace != namespace {
			continue
		}
		if peer.NamespaceSelector != nil && !slices.ContainsFunc(p.namespaces, func(n corev1.Namespace) bool {
			return n.Name == pod.Namespace && matches(peer.NamespaceSelector, n.Labels)
		}) {
			continue
		}
		for _, address := range pod.Status.PodIPs {
			found = append(found, fmt.Sprintf("%s %s %s", family(address.IP), side, address.IP))
		}
	}
	return found
}

func portMatch(port networkingv1.NetworkPolicyPort, of *corev1.Pod) []string {
	protocol := corev1.ProtocolTCP
	if port.Protocol != nil {
		protocol = *port.Protocol
	}
	layer := strings.ToLower(string(protocol))
	switch {
	case port.Port == nil:
		return []string{"meta l4proto " + layer}
	case port.Port.Type == intstr.Int && port.EndPort != nil:
		return []string{fmt.Sprintf("%s dport %d-%d", layer, port.Port.IntVal, *port.EndPort)}
	case port.Port.Type == intstr.Int:
		return []string{fmt.Sprintf("%s dport %d", layer, port.Port.IntVal)}
	}
	var found []string
	if of != nil {
		for _, container := range of.Spec.Containers {
			for _, named := range container.Ports {
				if named.Name == port.Port.StrVal && cmp.Or(named.Protocol, corev1.ProtocolTCP) == protocol {
					found = append(found, layer+" dport "+strconv.Itoa(int(named.ContainerPort)))
				}
			}
		}
	}
	return found
}

func matches(selector *metav1.LabelSelector, set map[string]string) bool {
	parsed, err := metav1.LabelSelectorAsSelector(selector)
	return err == nil && parsed.Matches(labels.Set(set))
}

func family(address string) string {
	if strings.Contains(address, ":") {
		return "ip6"
	}
	return "ip"
}

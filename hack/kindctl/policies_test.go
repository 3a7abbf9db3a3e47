// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
)

const policedListing = `{"items": [
{"kind": "Namespace", "metadata": {"name": "shop", "labels": {"kubernetes.io/metadata.name": "shop"}}},
{"kind": "Namespace", "metadata": {"name": "system", "labels": {"kubernetes.io/metadata.name": "system"}}},
{"kind": "Pod", "metadata": {"namespace": "shop", "name": "memory", "labels": {"role": "memory"}}, "spec": {"containers": [{"name": "c", "ports": [{"name": "http", "containerPort": 7402}]}]},
 "status": {"phase": "Running", "podIPs": [{"ip": "10.244.1.2"}, {"ip": "fd00::2"}]}},
{"kind": "Pod", "metadata": {"namespace": "shop", "name": "shard", "labels": {"role": "shard"}}, "status": {"phase": "Running", "podIPs": [{"ip": "10.244.1.3"}]}},
{"kind": "Pod", "metadata": {"namespace": "shop", "name": "host", "labels": {"role": "shard"}}, "spec": {"hostNetwork": true}, "status": {"phase": "Running", "podIPs": [{"ip": "172.18.0.2"}]}},
{"kind": "Pod", "metadata": {"namespace": "system", "name": "operator", "labels": {"role": "operator"}}, "status": {"phase": "Running", "podIPs": [{"ip": "10.244.1.4"}]}},
{"kind": "Pod", "metadata": {"namespace": "system", "name": "other", "labels": {"role": "shard"}}, "status": {"phase": "Running", "podIPs": [{"ip": "10.244.1.5"}]}},
{"kind": "NetworkPolicy", "metadata": {"namespace": "shop", "name": "memory"}, "spec": {"podSelector": {"matchLabels": {"role": "memory"}}, "policyTypes": ["Ingress", "Egress"],
 "ingress": [
  {"ports": [{"port": 7400, "protocol": "TCP"}], "from": [{"podSelector": {"matchLabels": {"role": "shard"}}}]},
  {"ports": [{"port": 7401}], "from": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "system"}}, "podSelector": {"matchLabels": {"role": "operator"}}}]},
  {"ports": [{"port": "http"}]},
  {"from": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.244.0.0/16"]}}]}
 ]}}]}`

func TestPoliciesBecomeRules(t *testing.T) {
	all, err := parsePoliced([]byte(policedListing))
	if err != nil {
		t.Fatal(err)
	}
	want := `table inet farpool_policies
delete table inet farpool_policies
table inet farpool_policies {
  chain egress-1 { # shop/memory
    counter drop
  }
  chain ingress-1 { # shop/memory
    ip saddr 10.244.1.3 tcp dport 7400 counter return
    ip saddr 10.244.1.4 tcp dport 7401 counter return
    tcp dport 7402 counter return
    ip saddr 10.0.0.0/8 ip saddr != 10.244.0.0/16 counter return
    counter drop
  }
  chain forward {
    type filter hook forward priority 10; policy accept;
    ct state established,related accept
    meta l4proto ipv6-icmp accept
    ip saddr 10.244.1.2 jump egress-1
    ip6 saddr fd00::2 jump egress-1
    ip daddr 10.244.1.2 jump ingress-1
    ip6 daddr fd00::2 jump ingress-1
  }
}
`
	if got := all.rules(); got != want {
		t.Errorf("got\n%s", got)
	}
}

func TestWhatNoPolicySelectsIsFree(t *testing.T) {
	all, err := parsePoliced([]byte(strings.ReplaceAll(policedListing, `"role": "memory"}}, "policyTypes"`, `"role": "nobody"}}, "policyTypes"`)))
	if err != nil {
		t.Fatal(err)
	}
	if rules := all.rules(); strings.Contains(rules, "drop") || strings.Contains(rules, "jump") {
		t.Errorf("got\n%s", rules)
	}
}

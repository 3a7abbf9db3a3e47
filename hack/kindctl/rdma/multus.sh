#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs in a kind node, with a kubeconfig at its input: has Multus called for every pod, which then calls what was called so far, and more where
# a pod asks for it. Its plugins are there already. Safe to repeat.
set -euo pipefail
umask 077
mkdir -p /etc/cni/net.d/multus.d
cat >/etc/cni/net.d/multus.d/kubeconfig
default=$(find /etc/cni/net.d -maxdepth 1 -name '*.conf*' ! -name '00-multus*' | sort | head -n 1)
[ -n "$default" ] || { echo "this node has no network for pods yet" >&2 && exit 1; }
# By its directory: of a file that it is told by name, Multus 4.3.0 forgets the addresses before a pod's end, which then never comes.
rm -rf /etc/cni/multus/default
mkdir -p /etc/cni/multus/default
ln -s "$default" /etc/cni/multus/default/
# Whole or not at all: containerd looks at once.
cat >/etc/cni/net.d/multus.d/conflist <<JSON
{"cniVersion": "1.0.0", "name": "multus", "plugins": [
  {"type": "multus", "capabilities": {"portMappings": true}, "kubeconfig": "/etc/cni/net.d/multus.d/kubeconfig",
    "clusterNetwork": "/etc/cni/multus/default", "logLevel": "error", "logFile": "/var/log/multus.log"}]}
JSON
mv /etc/cni/net.d/multus.d/conflist /etc/cni/net.d/00-multus.conflist

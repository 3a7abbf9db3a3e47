#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Is a kind worker, in a guest whose root is the worker's file system: NAME ADDRESS/BITS GATEWAY MAC DEVICE. Beside it lie node.sh, and network.sh
# where kindctl makes the pods' network. What containerd and kubelet say goes to its output; it ends with either.
set -euo pipefail
name=$1 address=$2 gateway=$3 mac=$4 device=$5
beside=${0%/*}
# A wrapper in /usr/local that containers in containers need is none here.
export PATH=/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin
say() {
  local up
  read -r up _ </proc/uptime
  echo "guest $name, up for $up s: $*"
}

say "starts"
echo "$name" >/proc/sys/kernel/hostname
ip link set eth0 address "$mac" mtu 9000 # so that an RDMA packet of 4096 bytes fits
ip link set eth0 up
ip address add "$address" dev eth0
ip route add default via "$gateway"
sysctl -qw net.ipv4.ip_forward=1 fs.inotify.max_user_instances=1024 fs.inotify.max_user_watches=524288 vm.overcommit_memory=1 \
  kernel.panic=10 kernel.panic_on_oops=1 kernel.keys.root_maxbytes=25000000
mount --make-rshared /
for group in /sys/fs/cgroup /sys/fs/cgroup/kubelet; do
  mkdir -p $group
  for controller in $(<$group/cgroup.controllers); do echo "+$controller" >$group/cgroup.subtree_control; done
done
[ ! -e "$beside/network.sh" ] || bash "$beside/network.sh"
bash "$beside/node.sh" "$device"
say "has its network and $device"

containerd &
until [ -S /run/containerd/containerd.sock ]; do
  if [ $SECONDS -gt 180 ]; then say "containerd has no socket after three minutes" && exit 1; fi
  sleep 0.3
done
say "containerd is up"
# shellcheck source=/dev/null
. /var/lib/kubelet/kubeadm-flags.env
# shellcheck disable=SC2086 # several words
kubelet --kubeconfig=/etc/kubernetes/kubelet.conf --config=/var/lib/kubelet/config.yaml --housekeeping-interval=1m $KUBELET_KUBEADM_ARGS &
say "kubelet is started"
wait -n
say "containerd or kubelet ended"
exit 1

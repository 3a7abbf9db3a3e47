#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs in a kind node, or in the guest that it is: gives it a network of its own for RDMA, with a SoftRoCE device of this name on it, shows
# that to the device plugin, and says what Multus attaches pods to. Safe to repeat.
set -euo pipefail
device=$1

# Pods' interfaces are beside roce0, not under it: a device on eth0 would have their addresses as well, and pass for the devices that they
# have themselves. No two nodes of a machine have one last byte of an address.
address=$(ip -4 -o address show dev eth0 | awk '{sub("/.*", "", $4); print $4; exit}')
range=10.79.${address##*.}
[ -e /sys/class/net/roce0 ] || ip link add roce0 link eth0 type macvlan mode bridge
ip link set roce0 mtu "$(cat /sys/class/net/eth0/mtu)" up
ip address replace "$range.1/16" dev roce0
# Or both interfaces would answer for each other, and packets come to the one without the device.
for each in eth0 roce0; do sysctl -qw "net.ipv4.conf.$each.arp_ignore=1" "net.ipv4.conf.$each.arp_announce=2"; done
[ -e "/sys/class/infiniband/$device" ] || rdma link add "$device" type rxe netdev roce0

# Docker filled /dev when the node started, and the device came later.
mkdir -p /dev/infiniband
character() { # NAME MAJOR:MINOR
  rm -f "/dev/infiniband/$1"
  mknod -m 666 "/dev/infiniband/$1" c "${2%:*}" "${2#*:}"
}
own=
for each in /sys/class/infiniband_verbs/uverbs* /sys/class/infiniband_mad/umad*; do
  if [ "$(cat "$each/ibdev")" = "$device" ]; then
    character "${each##*/}" "$(cat "$each/dev")"
    case $each in */uverbs*) own=${each##*/} ;; esac
  fi
done
character rdma_cm "$(cat /sys/class/misc/rdma_cm/dev)"

# k8s-rdma-shared-dev-plugin looks for RDMA devices behind PCI functions, where SoftRoCE never is. So it gets these directories for
# /sys/bus/pci/devices and /sys/class/infiniband_verbs.
shown=/run/farpool-rdma
pci_function() { # ADDRESS INTERFACE DEVICE...
  local at=$shown/pci/$1 interface=$2
  shift 2
  mkdir -p "$at/net/$interface" "${@/#/$at/infiniband/}"
  echo pci:v00001AF4d00001041sv00001AF4sd00001100bc02sc00i00 >"$at/modalias"
  echo 0x020000 >"$at/class"
  echo 0x1af4 >"$at/vendor"
  echo 0x1041 >"$at/device"
  ln -sfn /sys/bus/pci/drivers/virtio-pci "$at/driver"
}
pci_function 0000:00:05.0 roce0 "$device"
# A pod that gets a device of its own gets it when its network is made: after the kubelet has been told what to let it use. So it may
# use every number that such a device may come to have; of another pod's it could not use the addresses.
pci_function 0000:00:06.0 eth0 "$device" of-pods-{0..15}
mkdir -p "$shown"/verbs/uverbs{0..15} "$shown/verbs/$own"
for number in {0..15}; do
  [ -e "/dev/infiniband/uverbs$number" ] || mknod -m 666 "/dev/infiniband/uverbs$number" c 231 $((192 + number))
  echo "of-pods-$number" >"$shown/verbs/uverbs$number/ibdev"
done
echo "$device" >"$shown/verbs/$own/ibdev"

# Each node has addresses of its own for pods, so this stands here, and the NetworkAttachmentDefinition only names it.
mkdir -p /etc/cni/multus/net.d
cat >/etc/cni/multus/net.d/roce.conflist <<JSON
{"cniVersion": "1.0.0", "name": "roce", "plugins": [
  {"type": "macvlan", "master": "roce0", "mode": "bridge", "ipam": {"type": "host-local", "dataDir": "/run/cni-ipam-roce",
    "ranges": [[{"subnet": "10.79.0.0/16", "rangeStart": "$range.16", "rangeEnd": "$range.250"}]]}},
  {"type": "softroce"}]}
JSON

#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs in a kind node, or in the guest that it is: gives it a SoftRoCE device of this name on eth0, and shows it to the device plugin.
# Safe to repeat.
set -euo pipefail
device=$1
[ -e "/sys/class/infiniband/$device" ] || rdma link add "$device" type rxe netdev eth0

# Docker filled /dev when the node started, and the device came later. Of several nodes' devices each gets its own alone.
mkdir -p /dev/infiniband
character() { # NAME CLASS-DIRECTORY
  local number
  number=$(cat "$2/dev")
  rm -f "/dev/infiniband/$1"
  mknod -m 666 "/dev/infiniband/$1" c "${number%:*}" "${number#*:}"
}
for each in /sys/class/infiniband_verbs/uverbs* /sys/class/infiniband_mad/umad*; do
  if [ "$(cat "$each/ibdev")" = "$device" ]; then character "${each##*/}" "$each"; fi
done
character rdma_cm /sys/class/misc/rdma_cm

# k8s-rdma-shared-dev-plugin looks for RDMA devices behind PCI functions, where SoftRoCE never is. So it gets this directory for
# /sys/bus/pci/devices.
function=/run/farpool-rdma/0000:00:05.0
mkdir -p "$function/net/eth0" "$function/infiniband/$device"
echo pci:v00001AF4d00001041sv00001AF4sd00001100bc02sc00i00 >"$function/modalias"
echo 0x020000 >"$function/class"
echo 0x1af4 >"$function/vendor"
echo 0x1041 >"$function/device"
ln -sfn /sys/bus/pci/drivers/virtio-pci "$function/driver"

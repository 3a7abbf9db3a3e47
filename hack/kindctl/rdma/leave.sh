#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs in the container of a kind worker that is to go on in a guest: NAME ADDRESS CONTROL-PLANE ITS-ADDRESS. Ends what Kubernetes runs here,
# frees the address for the guest, and shows at /run/farpool-root what the guest's disk is made of. The container stays,
# so that Docker gives its address to nobody else.
set -euo pipefail
systemctl stop kubelet
ctr -n k8s.io tasks ls | awk 'NR > 1 {print $2}' | xargs -r kill -KILL
until [ -z "$(ctr -n k8s.io tasks ls -q)" ]; do
  if [ $SECONDS -gt 60 ]; then echo "containers still run a minute after their end" >&2 && exit 1; fi
  sleep 0.2
done
ctr -n k8s.io containers ls -q | xargs -r ctr -n k8s.io containers rm
systemctl stop containerd
awk '$2 ~ "^/var/lib/kubelet/pods/" {print $2}' /proc/mounts | xargs -r umount
rm -rf /var/lib/kubelet/pods/* /var/log/pods/* /var/log/containers/* /var/log/journal/*

# No systemd runs in the guest, and a hook of kind's against mixed-up machines costs an emulated processor a second for each container.
sed -i 's/SystemdCgroup = true/SystemdCgroup = false/' /etc/containerd/config.toml
sed -i 's/^cgroupDriver: systemd$/cgroupDriver: cgroupfs/' /var/lib/kubelet/config.yaml
# Nor do its times suit one.
sed -i '/^\[timeouts\]/,$d' /etc/containerd/config.toml
cat >>/etc/containerd/config.toml <<'END'
[timeouts]
  "io.containerd.timeout.shim.cleanup" = "2m"
  "io.containerd.timeout.shim.load" = "2m"
  "io.containerd.timeout.shim.shutdown" = "2m"
  "io.containerd.timeout.task.state" = "2m"
END
sed -i 's/^runtimeRequestTimeout: .*/runtimeRequestTimeout: 10m/' /var/lib/kubelet/config.yaml
jq 'del(.hooks)' /etc/containerd/cri-base.json >/run/cri-base.json
cat /run/cri-base.json >/etc/containerd/cri-base.json

root=/run/farpool-root
mkdir -p $root
mountpoint -q $root || mount --bind / $root
mountpoint -q $root/var || mount --bind /var $root/var
# Docker mounts its own over these here.
printf '127.0.0.1 localhost\n%s %s\n%s %s\n' "$2" "$1" "$4" "$3" >$root/etc/hosts
: >$root/etc/resolv.conf
echo "$1" >$root/etc/hostname
ip link set eth0 down

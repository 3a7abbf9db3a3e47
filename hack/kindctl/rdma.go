// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

const (
	rdmaPlugin = "k8s-rdma-shared-dp"
	rdmaPods   = "100" // that one device admits: rdmaHcaMax in rdma/objects.yaml
	// On Kubernetes nodes that have a device.
	rdmaLabel = "farpool.dev/softroce"
)

// rdmaResources are what nodes offer: their own device, and leave to use one that the pod gets with a network of Multus.
var rdmaResources = []string{"rdma/hca_shared_devices", "rdma/hca_pod_devices"}

//go:embed rdma/node.sh
var rdmaNodeScript string

//go:embed rdma/objects.yaml
var rdmaObjects string

// The plugin ends without a list of PCI vendors; this one has what rdma/node.sh shows it.
const pciVendors = "1af4  Red Hat, Inc.\n\t1041  Virtio network device\nC 02  Network controller\n\t00  Ethernet controller\n"

// rdmaImage builds the image of the device plugin from its Go module.
func (c cache) rdmaImage(ctx context.Context) (string, error) {
	if err := c.ensureTools(ctx, rdmaPlugin); err != nil {
		return "", err
	}
	t, err := findTool(rdmaPlugin)
	if err != nil {
		return "", err
	}
	image := "farpool/" + rdmaPlugin + ":" + t.version
	if haveImage(ctx, image) {
		return image, nil
	}
	reader, writer := io.Pipe()
	go func() {
		writer.CloseWithError(tarImage(writer, imageFile{name: "usr/local/bin/" + rdmaPlugin, path: c.toolPath(t)},
			imageFile{name: "usr/share/misc/pci.ids", text: pciVendors}))
	}()
	return image, command{in: reader, args: []string{"docker", "import", "-c", "ENV PATH=/usr/local/bin",
		"-c", fmt.Sprintf("ENTRYPOINT [%q]", "/usr/local/bin/"+rdmaPlugin), "-", image}}.run(ctx)
}

// rdmaNodes are the nodes that get devices: the workers, or the only node.
func rdmaNodes(ctx context.Context, cluster string) ([]string, error) {
	nodes, err := clusterNodes(ctx, cluster)
	if err != nil || len(nodes) == 1 {
		return nodes, err
	}
	names, err := output(ctx, "docker", "ps", "--filter", "label=io.x-k8s.kind.cluster="+cluster, "--filter", "label=io.x-k8s.kind.role=worker", "--format", "{{.Names}}")
	if err == nil && names == "" {
		err = fmt.Errorf("cluster %s has no node for RDMA; `kindctl up` makes it", cluster)
	}
	return strings.Fields(names), err
}

// rdmaHere gives nodes of a cluster SoftRoCE devices of this machine's kernel, and has Kubernetes offer them. It may be repeated: a
// node that was restarted has lost its own.
func (c cache) rdmaHere(ctx context.Context, cluster string) error {
	plugin, err := c.rdmaImage(ctx)
	if err != nil {
		return err
	}
	nodes, err := rdmaNodes(ctx, cluster)
	if err != nil {
		return err
	}
	if err := c.loadImages(ctx, cluster, []string{plugin}); err != nil {
		return err
	}
	if err := c.multus(ctx, cluster, nodes); err != nil {
		return err
	}
	for _, name := range nodes {
		if err := onNode(ctx, name, rdmaNodeScript, "bash", "-s", "--", rdmaDevice(name)); err != nil {
			return fmt.Errorf("%w\nit takes a kernel whose rdma_rxe, rdma_ucm and ib_umad are loaded, and whose SoftRoCE works in every network namespace (7.2 does)", err)
		}
	}
	return c.rdmaOffered(ctx, cluster, plugin, nodes, 3*time.Minute)
}

// rdmaDevice is the name of a node's device. Every network namespace of a machine sees the names of all.
func rdmaDevice(node string) string { return "rxe-" + node }

// rdmaOffered has Kubernetes hand the devices of nodes out to pods. The image of the device plugin is on them.
func (c cache) rdmaOffered(ctx context.Context, cluster, pluginImage string, nodes []string, patience time.Duration) error {
	objects := strings.ReplaceAll(rdmaObjects, "RDMA_PLUGIN_IMAGE", pluginImage)
	return step(ctx, patience+time.Minute, "having "+strings.Join(nodes, ", ")+" offer "+strings.Join(rdmaResources, ", "), func(ctx context.Context) error {
		if err := run(ctx, c.kubectl(cluster, slices.Concat([]string{"label", "--overwrite", "node"}, nodes, []string{rdmaLabel + "="})...)...); err != nil {
			return err
		}
		if err := c.applyText(ctx, cluster, objects); err != nil {
			return err
		}
		each, wanted := "", ""
		for _, resource := range rdmaResources {
			each += "[{.status.allocatable." + resource + "}]"
			wanted += "[" + rdmaPods + "]"
		}
		return untilEvery(ctx, time.Second, patience, "waiting for every node", func() error {
			offered, err := output(ctx, c.kubectl(cluster, "get", "nodes", "-l", rdmaLabel, "-o", "jsonpath={range .items[*]}"+each+"{end}")...)
			if err != nil {
				return err
			}
			if offered != strings.Repeat(wanted, len(nodes)) {
				pods, _ := output(ctx, c.kubectl(cluster, "-n", "kube-system", "get", "pods", "-l", "app=rdma-shared-dp")...)
				return errors.New("nodes offer: " + offered + "; the plugin's pods:\n" + pods)
			}
			return nil
		})
	})
}

// applyText has the API server take objects as they are written.
func (c cache) applyText(ctx context.Context, cluster, objects string) error {
	return command{in: strings.NewReader(objects), args: c.kubectl(cluster, "apply", "--server-side", "-f", "-")}.run(ctx)
}

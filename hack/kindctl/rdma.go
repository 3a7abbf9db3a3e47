// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

const (
	rdmaPlugin   = "k8s-rdma-shared-dp"
	rdmaResource = "rdma/hca_shared_devices"
	rdmaPods     = "100" // that one device admits: rdmaHcaMax in rdma/objects.yaml
)

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

// rdmaDevices gives every running node of a cluster a SoftRoCE device. It may be repeated: a node that was restarted has lost its own.
func (c cache) rdmaDevices(ctx context.Context, cluster string) error {
	return step(ctx, c.patience, "giving the nodes of "+cluster+" RDMA devices", func(ctx context.Context) error {
		nodes, err := clusterNodes(ctx, cluster)
		if err != nil {
			return err
		}
		for _, name := range nodes {
			// Every network namespace sees the names of all devices.
			setup := command{in: strings.NewReader(rdmaNodeScript), args: []string{"docker", "exec", "-i", name, "bash", "-s", "--", "rxe-" + name}}
			if err := setup.run(ctx); err != nil {
				return fmt.Errorf("%w\nit takes a kernel whose rdma_rxe, rdma_ucm and ib_umad are loaded, and whose SoftRoCE works in every network namespace (7.2 does)", err)
			}
		}
		return nil
	})
}

// rdmaOffered has Kubernetes hand the devices out to pods. The image of the device plugin is on the nodes.
func (c cache) rdmaOffered(ctx context.Context, cluster, pluginImage string) error {
	objects := strings.ReplaceAll(rdmaObjects, "RDMA_PLUGIN_IMAGE", pluginImage)
	return step(ctx, 2*c.patience, "having "+cluster+" offer "+rdmaResource, func(ctx context.Context) error {
		// An API server that has just come up refuses before its own roles are there.
		if err := untilEvery(ctx, 2*time.Second, c.patience, "applying the device plugin", func() error {
			return command{in: strings.NewReader(objects), args: c.kubectl(cluster, "apply", "--server-side", "-f", "-")}.run(ctx)
		}); err != nil {
			return err
		}
		return untilEvery(ctx, 3*time.Second, c.patience, "waiting for every node", func() error {
			offered, err := output(ctx, c.kubectl(cluster, "get", "nodes", "-o", "jsonpath={range .items[*]}[{.status.allocatable."+rdmaResource+"}]{end}")...)
			if err != nil {
				return err
			}
			if missing := strings.ReplaceAll(offered, "["+rdmaPods+"]", ""); missing != "" || offered == "" {
				return errors.New("nodes offer: " + offered)
			}
			return nil
		})
	})
}

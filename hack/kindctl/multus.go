// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"time"
)

const (
	multusPlugin  = "multus"
	macvlanPlugin = "macvlan"
	// Where nodes have CNI plugins.
	cniPlugins = "/opt/cni/bin/"
)

//go:embed rdma/multus-crd.yaml
var multusTypes string

//go:embed rdma/multus.yaml
var multusObjects string

//go:embed rdma/multus.sh
var multusScript string

//go:embed rdma/softroce
var softrocePlugin string

// multus gives nodes Multus, in front of the network that their pods have, and the plugins that the network of RDMA takes. It may be
// repeated.
func (c cache) multus(ctx context.Context, cluster string, nodes []string) error {
	if err := c.ensureTools(ctx, multusPlugin, macvlanPlugin); err != nil {
		return err
	}
	return step(ctx, 3*time.Minute, "giving "+strings.Join(nodes, ", ")+" Multus", func(ctx context.Context) error {
		if err := c.applyText(ctx, cluster, multusTypes); err != nil {
			return err
		}
		if err := run(ctx, c.kubectl(cluster, "wait", "--for=condition=Established", "crd/network-attachment-definitions.k8s.cni.cncf.io", "--timeout=60s")...); err != nil {
			return err
		}
		if err := c.applyText(ctx, cluster, multusObjects); err != nil {
			return err
		}
		kubeconfig, err := c.multusKubeconfig(ctx, cluster)
		if err != nil {
			return err
		}
		for _, name := range nodes {
			for _, plugin := range []string{multusPlugin, macvlanPlugin} {
				t, err := findTool(plugin)
				if err != nil {
					return err
				}
				if err := run(ctx, "docker", "cp", "-q", c.toolPath(t), name+":"+cniPlugins+plugin); err != nil {
					return err
				}
			}
			if err := onNode(ctx, name, softrocePlugin, "install", "-m", "755", "/dev/stdin", cniPlugins+"softroce"); err != nil {
				return err
			}
			if err := onNode(ctx, name, kubeconfig, "bash", "-c", multusScript); err != nil {
				return err
			}
		}
		return nil
	})
}

// multusKubeconfig is for Multus on the nodes of a cluster, which reach its API server by the control plane's name.
func (c cache) multusKubeconfig(ctx context.Context, cluster string) (text string, err error) {
	err = until(ctx, time.Minute, "waiting for the token of Multus", func() error {
		secret, err := output(ctx, c.kubectl(cluster, "-n", "kube-system", "get", "secret", "multus", "-o", `jsonpath={.data.ca\.crt} {.data.token}`)...)
		if err != nil {
			return err
		}
		authority, encoded, ok := strings.Cut(secret, " ")
		token, err := base64.StdEncoding.DecodeString(encoded)
		if !ok || authority == "" || len(token) == 0 {
			return errors.New("its Secret has none")
		}
		text = fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "multus",
  "clusters": [{"name": "kind", "cluster": {"server": "https://%s-control-plane:6443", "certificate-authority-data": %q}}],
  "users": [{"name": "multus", "user": {"token": %q}}],
  "contexts": [{"name": "multus", "context": {"cluster": "kind", "user": "multus"}}]}
`, cluster, authority, token)
		return err
	})
	return text, err
}

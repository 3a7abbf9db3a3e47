// SPDX-License-Identifier: Apache-2.0

// Kindctl makes Kubernetes clusters for development and tests with kind. It uses the Docker that answers or starts one; and
// where no image registry answers, it builds Kubernetes from Go modules and the node image from Debian packages.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

const usage = `usage: kindctl COMMAND

  up [--name N] [--workers W] [--ip-family F] [--rdma] [--emulated]
                                make a cluster and wait until it is ready; --rdma: its workers have SoftRoCE devices
  down [--name N] [--all]       remove it; --all: also every trace of a Docker that kindctl started
  load [--name N] IMAGE ...     hand images to the cluster's nodes
  env [--name N]                print exports for a shell: DOCKER_HOST, KUBECONFIG, PATH
  base                          print the image that farpool's own images stand on; made here where no registry answers
  tool NAME                     build a tool into the cache and print its path
  guests [--name N] -- COMMAND  move the cluster's workers into QEMU guests that have SoftRoCE, run COMMAND, and end the guests; the
                                workers are gone then. --emulated at "up" makes the cluster for that
  policies [--name N] -- COMMAND
                                enforce the cluster's NetworkPolicies while COMMAND runs
  envtest                       print the directory with kube-apiserver, etcd and kubectl
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if len(os.Args) < 2 {
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	}
	if err := dispatch(ctx, os.Args[1], os.Args[2:]); err != nil {
		var ended commandEnded
		if errors.As(err, &ended) {
			os.Exit(ended.status)
		}
		fmt.Fprintf(os.Stderr, "kindctl %s: %v\n", os.Args[1], err)
		os.Exit(1)
	}
}

func dispatch(ctx context.Context, verb string, args []string) error {
	flags := flag.NewFlagSet(verb, flag.ExitOnError)
	name := flags.String("name", defaultCluster, "name of the cluster")
	workers := flags.Int("workers", 2, "number of worker nodes")
	everything := flags.Bool("all", false, "also remove the Docker that kindctl started")
	rdma := flags.Bool("rdma", false, "SoftRoCE devices in the workers")
	ipFamily := flags.String("ip-family", "ipv4", "families of the cluster's addresses: ipv4, ipv6 or dual")
	emulated := flags.Bool("emulated", false, "bear with slow workers")
	if err := flags.Parse(args); err != nil {
		return err
	}
	c, err := openCache()
	if err != nil {
		return err
	}
	switch verb {
	case "up":
		if err := c.up(ctx, *name, *workers, *emulated, *ipFamily); err != nil {
			return err
		}
		if *rdma {
			if err := c.rdmaHere(ctx, *name); err != nil {
				return err
			}
		}
		fmt.Println(c.exports(*name))
	case "policies":
		return c.withPolicies(ctx, *name, flags.Args())
	case "guests":
		return c.guests(ctx, *name, flags.Args())
	case "down":
		return c.down(ctx, *name, *everything)
	case "load":
		if err := c.ensureDocker(ctx); err != nil {
			return err
		}
		if err := c.ensureTools(ctx, "kind"); err != nil {
			return err
		}
		return c.loadImages(ctx, *name, flags.Args())
	case "env":
		if err := c.ensureDocker(ctx); err != nil {
			return err
		}
		fmt.Println(c.exports(*name))
	case "base":
		if err := c.ensureDocker(ctx); err != nil {
			return err
		}
		base, err := c.imageBase(ctx)
		if err != nil {
			return err
		}
		fmt.Println(base)
	case "tool":
		if err := c.ensureTools(ctx, flags.Args()...); err != nil {
			return err
		}
		for _, name := range flags.Args() {
			fmt.Println(c.path("bin", name))
		}
	case "envtest":
		directory, err := c.envtestAssets(ctx)
		if err != nil {
			return err
		}
		fmt.Println(directory)
	default:
		return fmt.Errorf("no such command\n%s", usage)
	}
	return nil
}

// exports is for `eval "$(...)"`.
func (c cache) exports(cluster string) string {
	text := fmt.Sprintf("export KUBECONFIG=%s DOCKER_BUILDKIT=0 PATH=%s:$PATH", c.kubeconfig(cluster), c.path("bin"))
	if host := os.Getenv("DOCKER_HOST"); host != "" {
		text += " DOCKER_HOST=" + host
	}
	return text
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	farpoolv1alpha1 "farpool.dev/farpool/api/gen/farpool/v1alpha1"
	"farpool.dev/farpool/e2e/chaos"
	"farpool.dev/farpool/e2e/workload"
	"farpool.dev/farpool/hack/local"
)

// memoryNode is a process with the agent through which epochs are published to it.
type memoryNode struct {
	incarnation uint64 // as of the last epoch; 0: none yet
	process
	agent *grpc.ClientConn
}

// cluster is a pool as processes. The program stands in for the operator in one thing: it publishes epochs, because only it knows when
// a memory node has begun another life.
type cluster struct {
	directory string
	nodes     []*memoryNode
	shards    []*process
	target    workload.Target
	secret    []byte
	epoch     uint64
}

// Wires that lanes can go over. Sessions begin on tcp in any case.
const (
	tcp   = "tcp"
	shm   = "shm"
	verbs = "verbs" // needs an RDMA device: go run ./hack/lab
)

var wires = []string{tcp, shm, verbs}

func newCluster(directory string, o options) (*cluster, error) {
	c := &cluster{directory: directory, secret: make([]byte, 16)}
	if _, err := rand.Read(c.secret); err != nil {
		return nil, err
	}
	port := ports{next: 20000 + os.Getpid()%10000}
	var bootstrap string
	var wire []string
	switch o.wire {
	case shm:
		wire = []string{"--shm-directory", directory, "--spin", "20us"}
	case verbs:
		wire = []string{"--wire", verbs}
	}
	credential := func(role, name string) []string {
		at := filepath.Join(directory, "tls", role+"-"+name)
		return append([]string{"--pool-uid", local.PoolUID, "--name", name, "--tls-ca", filepath.Join(directory, "tls", "ca.crt"),
			"--tls-cert", at + ".crt", "--tls-key", at + ".key", "--log-format", "text"}, wire...)
	}
	holders := []local.Holder{{Role: "operator", Name: "chaos"}}
	for i := range o.nodes {
		holders = append(holders, local.Holder{Role: "node", Name: fmt.Sprintf("m%d", i)})
	}
	for i := range o.shards {
		holders = append(holders, local.Holder{Role: "client", Name: fmt.Sprintf("s%d", i)})
	}
	if err := os.Mkdir(filepath.Join(directory, "tls"), 0o700); err != nil {
		return nil, err
	}
	if err := local.WriteCertificates(filepath.Join(directory, "tls"), local.PoolUID, holders); err != nil {
		return nil, err
	}
	transport, err := c.operator()
	if err != nil {
		return nil, err
	}
	for i := range o.nodes {
		name := fmt.Sprintf("m%d", i)
		var at [3]string
		for j := range at {
			if at[j], err = port.take(); err != nil {
				return nil, err
			}
		}
		agent, err := grpc.NewClient("passthrough:///"+at[1], grpc.WithTransportCredentials(transport), grpc.WithNoProxy())
		if err != nil {
			return nil, err
		}
		c.nodes = append(c.nodes, &memoryNode{agent: agent, process: process{
			name: name, metrics: at[2], log: logFile(directory, name),
			args: append([]string{filepath.Join(o.binaries, "farpool-memory-node"), "--protocol", o.protocol, "--tables", strconv.Itoa(o.tables), "--memory", o.memory, "--memory-path", directory,
				"--listen", at[0], "--agent-listen", at[1], "--metrics-listen", at[2],
				"--failure-timeout", milliseconds(o.lease / 2), "--lease", milliseconds(o.lease)}, credential("node", name)...),
		}})
		if i > 0 {
			bootstrap += ","
		}
		bootstrap += at[0]
	}
	for i := range o.shards {
		name := fmt.Sprintf("s%d", i)
		var at [2]string
		for j := range at {
			if at[j], err = port.take(); err != nil {
				return nil, err
			}
		}
		c.shards = append(c.shards, &process{
			name: name, metrics: at[1], log: logFile(directory, name),
			args: append([]string{filepath.Join(o.binaries, "farpool-compute-shard"), "--bootstrap", bootstrap, "--listen", at[0],
				"--agent-listen", "none", "--metrics-listen", at[1], "--operation-deadline", "5s"}, credential("client", name)...),
		})
		c.target.Shards = append(c.target.Shards, at[0])
	}
	return c, nil
}

// milliseconds is a duration as the daemons read it.
func milliseconds(d time.Duration) string { return fmt.Sprintf("%dms", d.Milliseconds()) }

// operator is the credential with which agents are spoken to. Roles and pool are what peers are judged by, so hosts are not.
func (c *cluster) operator() (credentials.TransportCredentials, error) {
	at := filepath.Join(c.directory, "tls", "operator-chaos")
	pair, err := tls.LoadX509KeyPair(at+".crt", at+".key")
	if err != nil {
		return nil, err
	}
	authority, err := os.ReadFile(filepath.Join(c.directory, "tls", "ca.crt"))
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	return credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS13, InsecureSkipVerify: true,
		VerifyConnection: func(state tls.ConnectionState) error {
			_, err := state.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
			return err
		},
	}), nil
}

// start brings everything up and publishes the first epoch.
func (c *cluster) start(ctx context.Context) error {
	for _, p := range c.all() {
		if err := p.start(); err != nil {
			return err
		}
	}
	if err := c.publish(ctx); err != nil {
		return err
	}
	for _, p := range c.all() {
		if err := p.ready(ctx); err != nil {
			return err
		}
	}
	return nil
}

// onWire waits until every lane is on the wire that was asked for. A client whose memory nodes offer no rings would go on over tcp.
func (c *cluster) onWire(ctx context.Context, wire string) error {
	return chaos.Eventually(ctx, chaos.Patience, func() error {
		for _, n := range c.nodes {
			page, err := n.scrape()
			if err != nil {
				return err
			}
			lanes := page["farpool_wire_lanes"]
			on := map[string]float64{shm: page["farpool_wire_ring_lanes"], verbs: page["farpool_verbs_lanes"]}
			on[tcp] = lanes - on[shm] - on[verbs]
			if lanes == 0 || on[wire] != lanes {
				return fmt.Errorf("memory node %s has %g lanes, %g of them on %s", n.name, lanes, on[wire], wire)
			}
		}
		return nil
	})
}

func (c *cluster) all() []*process {
	var all []*process
	for _, n := range c.nodes {
		all = append(all, &n.process)
	}
	return append(all, c.shards...)
}

// facts waits for the agent of a node.
func (n *memoryNode) facts(ctx context.Context) (*farpoolv1alpha1.Facts, error) {
	var facts *farpoolv1alpha1.Facts
	err := chaos.Eventually(ctx, chaos.Patience, func() error {
		if !n.alive() {
			return chaos.Final(fmt.Errorf("%s ended on its own; its last lines are in %s", n.name, n.log))
		}
		call, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		var err error
		facts, err = farpoolv1alpha1.NewAgentClient(n.agent).Describe(call, &farpoolv1alpha1.DescribeRequest{PoolUid: local.PoolUID}, grpc.WaitForReady(true))
		return err
	})
	return facts, err
}

// publish makes an epoch of the lives that the memory nodes are in now, and gives it to all of them.
func (c *cluster) publish(ctx context.Context) error {
	c.epoch++
	shards := &farpoolv1alpha1.ShardMap{PoolUid: local.PoolUID, Epoch: c.epoch, DirectoryVersion: 1}
	for 1<<shards.DirectoryDepth < len(c.nodes) {
		shards.DirectoryDepth++
	}
	for i, n := range c.nodes {
		facts, err := n.facts(ctx)
		if err != nil {
			return err
		}
		own := facts.GetMemoryNode()
		// A life is fresh for as long as it lasts; what counts is whether the one that follows another is.
		before := n.incarnation
		n.incarnation = facts.GetIncarnation()
		if before != 0 && before != n.incarnation && own.GetMemoryFresh() {
			return fmt.Errorf("memory node %s came back empty: its memory file was whole, and everything acknowledged on it is lost", n.name)
		}
		shards.Nodes = append(shards.Nodes, &farpoolv1alpha1.MemoryNodeEntry{
			Name: n.name, Endpoint: own.GetEndpoint(), Incarnation: facts.GetIncarnation(), State: farpoolv1alpha1.MemoryNodeEntry_STATE_SERVING,
			MemoryBytes: own.GetMemoryBytes(), LockRegion: own.GetLockRegion(), Rcuckoo: own.GetRcuckoo(), Race: own.GetRace(),
		})
		shards.Tables = append(shards.Tables, &farpoolv1alpha1.TableEntry{Id: uint32(i), Node: uint32(i)})
	}
	for i := range 1 << shards.DirectoryDepth {
		shards.Directory = append(shards.Directory, uint32(i%len(c.nodes)))
	}
	for _, n := range c.nodes {
		call, cancel := context.WithTimeout(ctx, chaos.Patience)
		_, err := farpoolv1alpha1.NewAgentClient(n.agent).PublishMap(call, &farpoolv1alpha1.PublishMapRequest{Map: shards, PoolSecret: c.secret}, grpc.WaitForReady(true))
		cancel()
		if err != nil {
			return fmt.Errorf("publishing epoch %d to %s: %w", c.epoch, n.name, err)
		}
	}
	return nil
}

// total adds a counter up over all processes and all their lives.
func (c *cluster) total(match func(name string) bool) float64 {
	sum := 0.0
	for _, p := range c.all() {
		for name, value := range p.counted {
			if match(name) {
				sum += value
			}
		}
	}
	return sum
}

// stop kills whatever still runs.
func (c *cluster) stop() error {
	var errs []error
	for _, n := range c.nodes {
		errs = append(errs, n.agent.Close())
	}
	for _, p := range c.all() {
		if p.alive() {
			_ = p.cmd.Process.Kill()
			<-p.ended
		}
	}
	return errors.Join(errs...)
}

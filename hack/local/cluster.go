// SPDX-License-Identifier: Apache-2.0

package local

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/proto"

	farpoolv1alpha1 "farpool.dev/farpool/api/gen/farpool/v1alpha1"
	"farpool.dev/farpool/e2e/chaos"
	"farpool.dev/farpool/e2e/workload"
)

// MemoryNode is a process with the agent through which epochs are published to it.
type MemoryNode struct {
	incarnation uint64 // as of the last epoch; 0: none yet
	Process
	agent *grpc.ClientConn
}

// Cluster is a pool as processes. The program stands in for the operator in one thing: it signs and publishes epochs, because only it knows when
// a memory node has begun another life.
type Cluster struct {
	Directory string
	Nodes     []*MemoryNode
	Shards    []*Process
	Target    workload.Target
	binaries  string
	secret    []byte
	mapKey    ed25519.PrivateKey
	epoch     uint64
	eviction  farpoolv1alpha1.Eviction
}

// Shape is what a pool of processes is made of.
type Shape struct {
	Binaries string // directory of the daemons and of farpool-fsck
	Next     string // directory of the daemons of another version; empty: there is none
	Memory   string // that each memory node lends
	Protocol string // of the index: rcuckoo, race or outback
	Tables   int    // with race: that a memory node's first one may be split into, a power of two
	Nodes    int
	Shards   int
	Lease    time.Duration // of a client; the failure timeout is half of it
	Wire     string
	Front    [][]string // flags that a compute shard has besides, by its number
	Eviction farpoolv1alpha1.Eviction
}

// Flags lets a command line choose, beginning with what the shape is.
func (s *Shape) Flags() {
	flag.DurationVar(&s.Lease, "lease", s.Lease, "lease of a client; the failure timeout is half of it")
	flag.StringVar(&s.Wire, "wire", s.Wire, "that lanes go over: "+strings.Join(wires, ", "))
	flag.StringVar(&s.Binaries, "bin", s.Binaries, "directory of the daemons and of farpool-fsck")
	flag.StringVar(&s.Next, "next", s.Next, "directory of the daemons of another version: processes that end in order start again in the other one (default: that of -bin)")
	flag.StringVar(&s.Memory, "memory", s.Memory, "that each memory node lends")
	flag.StringVar(&s.Protocol, "protocol", s.Protocol, "the index protocol: rcuckoo, race or outback")
	flag.IntVar(&s.Tables, "tables", s.Tables, "with race: tables that a memory node's first one may be split into, a power of two")
	flag.IntVar(&s.Nodes, "nodes", s.Nodes, "memory nodes")
	flag.IntVar(&s.Shards, "shards", s.Shards, "compute shards")
}

// Wrong says what of a shape no pool can be made of.
func (s *Shape) Wrong() error {
	switch {
	case !slices.Contains(wires, s.Wire):
		return fmt.Errorf("there is no wire %q, only %s", s.Wire, strings.Join(wires, ", "))
	case s.Nodes < 1 || s.Shards < 1:
		return errors.New("give at least one memory node and one compute shard")
	}
	return nil
}

// Wires that lanes can go over. Sessions begin on tcp in any case.
const (
	TCP   = "tcp"
	SHM   = "shm"
	Verbs = "verbs" // needs an RDMA device: go run ./hack/lab
)

var wires = []string{TCP, SHM, Verbs}

func NewCluster(directory string, s Shape) (*Cluster, error) {
	c := &Cluster{Directory: directory, binaries: s.Binaries, secret: make([]byte, 16), eviction: s.Eviction}
	if _, err := rand.Read(c.secret); err != nil {
		return nil, err
	}
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	c.mapKey = private
	port := ports{next: 20000 + os.Getpid()%10000}
	var bootstrap string
	var wire []string
	switch s.Wire {
	case SHM:
		wire = []string{"--shm-directory", directory, "--spin", "20us"}
	case Verbs:
		wire = []string{"--wire", Verbs}
	}
	credential := func(role, name string) []string {
		at := filepath.Join(directory, "tls", role+"-"+name)
		return append([]string{"--pool-uid", PoolUID, "--name", name, "--tls-ca", filepath.Join(directory, "tls", "ca.crt"),
			"--tls-cert", at + ".crt", "--tls-key", at + ".key", "--map-key", base64.StdEncoding.EncodeToString(public),
			"--log-format", "text"}, wire...)
	}
	holders := []Holder{{Role: "operator", Name: "local"}}
	for i := range s.Nodes {
		holders = append(holders, Holder{Role: "node", Name: fmt.Sprintf("m%d", i)})
	}
	for i := range s.Shards {
		holders = append(holders, Holder{Role: "client", Name: fmt.Sprintf("s%d", i)})
	}
	if err := os.Mkdir(filepath.Join(directory, "tls"), 0o700); err != nil {
		return nil, err
	}
	if err := WriteCertificates(filepath.Join(directory, "tls"), PoolUID, holders); err != nil {
		return nil, err
	}
	transport, err := c.operator()
	if err != nil {
		return nil, err
	}
	for i := range s.Nodes {
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
		c.Nodes = append(c.Nodes, &MemoryNode{agent: agent, Process: Process{
			Name: name, metrics: at[2], Log: logFile(directory, name), other: s.other("farpool-memory-node"),
			args: append([]string{filepath.Join(s.Binaries, "farpool-memory-node"), "--protocol", s.Protocol, "--tables", strconv.Itoa(s.Tables), "--memory", s.Memory, "--memory-path", directory,
				"--listen", at[0], "--agent-listen", at[1], "--metrics-listen", at[2],
				"--failure-timeout", milliseconds(s.Lease / 2), "--lease", milliseconds(s.Lease)}, credential("node", name)...),
		}})
		if i > 0 {
			bootstrap += ","
		}
		bootstrap += at[0]
	}
	for i := range s.Shards {
		name := fmt.Sprintf("s%d", i)
		var at [2]string
		for j := range at {
			if at[j], err = port.take(); err != nil {
				return nil, err
			}
		}
		c.Shards = append(c.Shards, &Process{
			Name: name, metrics: at[1], Log: logFile(directory, name), other: s.other("farpool-compute-shard"),
			args: append([]string{filepath.Join(s.Binaries, "farpool-compute-shard"), "--drain", "0s", "--bootstrap", bootstrap, "--listen", at[0],
				"--agent-listen", "none", "--metrics-listen", at[1], "--operation-deadline", "5s"}, credential("client", name)...),
		})
		if i < len(s.Front) {
			c.Shards[i].args = append(c.Shards[i].args, s.Front[i]...)
		}
		c.Target.Shards = append(c.Target.Shards, at[0])
	}
	return c, nil
}

// other is a daemon of the other version; empty: there is none.
func (s *Shape) other(daemon string) string {
	if s.Next == "" {
		return ""
	}
	return filepath.Join(s.Next, daemon)
}

// milliseconds is a duration as the daemons read it.
func milliseconds(d time.Duration) string { return fmt.Sprintf("%dms", d.Milliseconds()) }

// operator is the credential with which agents are spoken to. Roles and pool are what peers are judged by, so hosts are not.
func (c *Cluster) operator() (credentials.TransportCredentials, error) {
	at := filepath.Join(c.Directory, "tls", "operator-local")
	pair, err := tls.LoadX509KeyPair(at+".crt", at+".key")
	if err != nil {
		return nil, err
	}
	authority, err := os.ReadFile(filepath.Join(c.Directory, "tls", "ca.crt"))
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

// Start brings everything up and publishes the first epoch.
func (c *Cluster) Start(ctx context.Context) error {
	for _, p := range c.All() {
		if err := p.Start(); err != nil {
			return err
		}
	}
	if err := c.Publish(ctx); err != nil {
		return err
	}
	for _, p := range c.All() {
		if err := p.Ready(ctx); err != nil {
			return err
		}
	}
	return nil
}

// OnWire waits until every lane is on the wire that was asked for. A client whose memory nodes offer no rings would go on over tcp.
func (c *Cluster) OnWire(ctx context.Context, wire string) error {
	return chaos.Eventually(ctx, chaos.Patience, func() error {
		for _, n := range c.Nodes {
			page, err := n.Scrape()
			if err != nil {
				return err
			}
			lanes := page["farpool_wire_lanes"]
			on := map[string]float64{SHM: page["farpool_wire_ring_lanes"], Verbs: page["farpool_verbs_lanes"]}
			on[TCP] = lanes - on[SHM] - on[Verbs]
			if lanes == 0 || on[wire] != lanes {
				return fmt.Errorf("memory node %s has %g lanes, %g of them on %s", n.Name, lanes, on[wire], wire)
			}
		}
		return nil
	})
}

func (c *Cluster) All() []*Process {
	var all []*Process
	for _, n := range c.Nodes {
		all = append(all, &n.Process)
	}
	return append(all, c.Shards...)
}

// facts waits for the agent of a node.
func (n *MemoryNode) facts(ctx context.Context) (*farpoolv1alpha1.Facts, error) {
	var facts *farpoolv1alpha1.Facts
	err := chaos.Eventually(ctx, chaos.Patience, func() error {
		if !n.Alive() {
			return chaos.Final(fmt.Errorf("%s ended on its own; its last lines are in %s", n.Name, n.Log))
		}
		call, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		var err error
		facts, err = farpoolv1alpha1.NewAgentClient(n.agent).Describe(call, &farpoolv1alpha1.DescribeRequest{PoolUid: PoolUID}, grpc.WaitForReady(true))
		if err == nil && facts.GetIncarnation() == 0 {
			err = fmt.Errorf("memory node %s takes its memory up: %s", n.Name, facts.GetMessage())
		}
		return err
	})
	return facts, err
}

// Publish makes an epoch of the lives that the memory nodes are in now, and gives it to all of them.
func (c *Cluster) Publish(ctx context.Context) error {
	c.epoch++
	shards := &farpoolv1alpha1.ShardMap{PoolUid: PoolUID, Epoch: c.epoch, DirectoryVersion: 1, Eviction: c.eviction}
	for 1<<shards.DirectoryDepth < len(c.Nodes) {
		shards.DirectoryDepth++
	}
	for i, n := range c.Nodes {
		facts, err := n.facts(ctx)
		if err != nil {
			return err
		}
		own := facts.GetMemoryNode()
		// A life is fresh for as long as it lasts; what counts is whether the one that follows another is.
		before := n.incarnation
		n.incarnation = facts.GetIncarnation()
		if before != 0 && before != n.incarnation && own.GetMemoryFresh() {
			return fmt.Errorf("memory node %s came back empty: its memory file was whole, and everything acknowledged on it is lost", n.Name)
		}
		entry := &farpoolv1alpha1.MemoryNodeEntry{
			Name: n.Name, Endpoint: own.GetEndpoint(), Incarnation: facts.GetIncarnation(), State: farpoolv1alpha1.MemoryNodeEntry_STATE_SERVING,
			MemoryBytes: own.GetMemoryBytes(), LockRegion: own.GetLockRegion(),
		}
		if !copyShape(own, entry) {
			return fmt.Errorf("memory node %s says no shape of its table: {%v}", n.Name, own)
		}
		shards.Nodes = append(shards.Nodes, entry)
		shards.Tables = append(shards.Tables, &farpoolv1alpha1.TableEntry{Id: uint32(i), Node: uint32(i)})
	}
	for i := range 1 << shards.DirectoryDepth {
		shards.Directory = append(shards.Directory, uint32(i%len(c.Nodes)))
	}
	content, err := proto.MarshalOptions{Deterministic: true}.Marshal(shards)
	if err != nil {
		return err
	}
	shards.Signature = ed25519.Sign(c.mapKey, append([]byte("farpool.dev/shard-map/v1\n"), content...))
	for _, prepare := range []bool{true, false} {
		for _, n := range c.Nodes {
			call, cancel := context.WithTimeout(ctx, chaos.Patience)
			_, err := farpoolv1alpha1.NewAgentClient(n.agent).PublishMap(call,
				&farpoolv1alpha1.PublishMapRequest{Map: shards, PoolSecret: c.secret, Prepare: prepare}, grpc.WaitForReady(true))
			cancel()
			if err != nil {
				return fmt.Errorf("publishing epoch %d to %s: %w", c.epoch, n.Name, err)
			}
		}
	}
	return nil
}

// copyShape writes the shape of a memory node's table, of whichever protocol, into its entry of a map. False: the node says none.
func copyShape(facts *farpoolv1alpha1.MemoryNodeFacts, entry *farpoolv1alpha1.MemoryNodeEntry) bool {
	from, to := facts.ProtoReflect(), entry.ProtoReflect()
	held := from.WhichOneof(from.Descriptor().Oneofs().ByName("shape"))
	if held == nil {
		return false
	}
	to.Set(to.Descriptor().Fields().ByName(held.Name()), from.Get(held))
	return true
}

// Fsck ends everything, and looks at every memory file.
func (c *Cluster) Fsck(ctx context.Context) error {
	for _, p := range c.Shards {
		if err := p.End(); err != nil {
			return err
		}
	}
	for _, m := range c.Nodes {
		if err := m.Kill(); err != nil {
			return err
		}
		file := filepath.Join(c.Directory, m.Name+".memory")
		said, err := exec.CommandContext(ctx, filepath.Join(c.binaries, "farpool-fsck"), file).CombinedOutput()
		if err != nil {
			return fmt.Errorf("fsck of %s: %w\n%s", file, err, said)
		}
	}
	return nil
}

// Total adds a counter up over all processes and all their lives.
func (c *Cluster) Total(match func(name string) bool) float64 {
	sum := 0.0
	for _, p := range c.All() {
		for name, value := range p.Counted {
			if match(name) {
				sum += value
			}
		}
	}
	return sum
}

// Stop kills whatever still runs.
func (c *Cluster) Stop() error {
	var errs []error
	for _, n := range c.Nodes {
		errs = append(errs, n.agent.Close())
	}
	for _, p := range c.All() {
		if p.Alive() {
			_ = p.cmd.Process.Kill()
			<-p.ended
		}
	}
	return errors.Join(errs...)
}

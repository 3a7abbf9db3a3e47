// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	farpoolv1alpha1 "farpool.dev/farpool/api/gen/farpool/v1alpha1"
	"farpool.dev/farpool/operator/internal/pki"
	"farpool.dev/farpool/operator/internal/render"
)

// network hands out loopback addresses: each process has one of its own, so that its agent listens on the port that agents have in pods.
type network struct {
	mutex  sync.Mutex
	prefix int
	last   int
}

// newNetwork finds a part of the loopback network where nobody listens on the agents' port.
func newNetwork() (*network, error) {
	for range 100 {
		n := &network{prefix: 16 + rand.IntN(200)}
		listener, err := net.Listen("tcp", n.at(0, render.PortAgent))
		if err != nil {
			continue
		}
		return n, listener.Close()
	}
	return nil, fmt.Errorf("no loopback address has port %d free: end what listens there on all addresses", render.PortAgent)
}

func (n *network) at(host int, port int32) string {
	return net.JoinHostPort(n.ip(host), strconv.Itoa(int(port)))
}

func (n *network) ip(host int) string {
	return fmt.Sprintf("127.%d.%d.%d", n.prefix, host>>8, host&0xff)
}

// next returns an address that nobody has had.
func (n *network) next() (string, error) {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	if n.last++; n.last >= 1<<16-1 {
		return "", errors.New("the loopback network has no address left")
	}
	return n.ip(n.last), nil
}

// process is a process of the data plane as the operator sees it: an agent with the pool's certificates that keeps to the protocol of maps.
type process struct {
	farpoolv1alpha1.UnimplementedAgentServer

	ip     string
	server *grpc.Server

	mutex   sync.Mutex
	facts   *farpoolv1alpha1.Facts
	changed chan struct{}
}

// serve starts an agent with the certificate of a Secret.
func serve(ip string, data map[string][]byte, facts *farpoolv1alpha1.Facts) (*process, error) {
	certificate, err := tls.X509KeyPair(data[pki.KeyCertificate], data[pki.KeyPrivateKey])
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(data[pki.KeyCABundle])
	listener, err := net.Listen("tcp", net.JoinHostPort(ip, strconv.Itoa(render.PortAgent)))
	if err != nil {
		return nil, err
	}
	p := &process{ip: ip, facts: facts, changed: make(chan struct{})}
	p.server = grpc.NewServer(grpc.Creds(credentials.NewTLS(pki.ServerConfig(certificate, roots, facts.GetPoolUid(), pki.RoleOperator))))
	farpoolv1alpha1.RegisterAgentServer(p.server, p)
	go func() { _ = p.server.Serve(listener) }()
	return p, nil
}

func (p *process) stop() { p.server.Stop() }

func (p *process) snapshot() (*farpoolv1alpha1.Facts, chan struct{}) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	return p.facts, p.changed
}

// update changes the facts and tells the watchers.
func (p *process) update(change func(*farpoolv1alpha1.Facts)) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.facts = proto.CloneOf(p.facts)
	change(p.facts)
	close(p.changed)
	p.changed = make(chan struct{})
}

// Describe answers with the facts.
func (p *process) Describe(context.Context, *farpoolv1alpha1.DescribeRequest) (*farpoolv1alpha1.Facts, error) {
	facts, _ := p.snapshot()
	return facts, nil
}

// Watch sends the facts whenever they change.
func (p *process) Watch(_ *farpoolv1alpha1.WatchRequest, stream grpc.ServerStreamingServer[farpoolv1alpha1.Facts]) error {
	for {
		facts, changed := p.snapshot()
		if err := stream.Send(facts); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

// PublishMap holds or follows a map.
func (p *process) PublishMap(_ context.Context, request *farpoolv1alpha1.PublishMapRequest) (*farpoolv1alpha1.PublishMapResponse, error) {
	facts, _ := p.snapshot()
	published := request.GetMap()
	if published.GetEpoch() < max(facts.GetEpoch(), facts.GetMemoryNode().GetMap().GetEpoch()) {
		return nil, status.Error(codes.FailedPrecondition, "an older epoch")
	}
	p.update(func(facts *farpoolv1alpha1.Facts) {
		facts.MemoryNode.Map = published
		if !request.GetPrepare() {
			facts.Epoch, facts.Ready, facts.Message = published.GetEpoch(), true, ""
		}
	})
	return &farpoolv1alpha1.PublishMapResponse{Epoch: published.GetEpoch()}, nil
}

// Fence has no session to end.
func (p *process) Fence(context.Context, *farpoolv1alpha1.FenceRequest) (*farpoolv1alpha1.FenceResponse, error) {
	return &farpoolv1alpha1.FenceResponse{}, nil
}

// Repair finds nothing to repair.
func (p *process) Repair(context.Context, *farpoolv1alpha1.RepairRequest) (*farpoolv1alpha1.RepairResponse, error) {
	return &farpoolv1alpha1.RepairResponse{Done: true}, nil
}

func computeShardFacts(poolUID, name, ip string) *farpoolv1alpha1.Facts {
	return &farpoolv1alpha1.Facts{
		PoolUid: poolUID, Role: farpoolv1alpha1.Role_ROLE_COMPUTE_SHARD, Name: name, Incarnation: rand.Uint64() | 1, Version: "bench",
		Epoch: 1, Ready: true, ComputeShard: &farpoolv1alpha1.ComputeShardFacts{RespEndpoint: net.JoinHostPort(ip, strconv.Itoa(render.PortRESP))},
	}
}

// memoryNodeFacts of a process that has just formatted its memory.
func memoryNodeFacts(poolUID, name, ip string) *farpoolv1alpha1.Facts {
	return &farpoolv1alpha1.Facts{
		PoolUid: poolUID, Role: farpoolv1alpha1.Role_ROLE_MEMORY_NODE, Name: name, Incarnation: rand.Uint64()>>1 | 1, Version: "bench",
		Message: "no epoch yet",
		MemoryNode: &farpoolv1alpha1.MemoryNodeFacts{
			Endpoint: net.JoinHostPort(ip, strconv.Itoa(render.PortSession)), MemoryBytes: 256 << 20, MemoryFresh: true,
			LockRegion: &farpoolv1alpha1.LockRegion{Placement: farpoolv1alpha1.LockRegion_PLACEMENT_HOST_MEMORY, Bytes: 4096, Locks: 32768, RowsPerLock: 16},
			Shape:      &farpoolv1alpha1.MemoryNodeFacts_Rcuckoo{Rcuckoo: &farpoolv1alpha1.RCuckooGeometry{EntryBytes: 16, EntriesPerRow: 8, RowsPerLock: 16, Rows: 466033}},
		},
	}
}

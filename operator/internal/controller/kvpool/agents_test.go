// SPDX-License-Identifier: Apache-2.0

package kvpool

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	farpoolv1alpha1 "farpool.dev/farpool/api/gen/farpool/v1alpha1"
	"farpool.dev/farpool/operator/internal/pki"
)

// fakeAgent stands in for the agent of a data-plane process in tests of the controller: a real server, with the pool's real certificates,
// that keeps to what the protocol says of maps.
type fakeAgent struct {
	farpoolv1alpha1.UnimplementedAgentServer

	mutex    sync.Mutex
	facts    *farpoolv1alpha1.Facts
	changed  chan struct{}
	secrets  [][]byte
	watchers int
	// sessions of a memory node by process, with what each leaves when it ends; fenced are processes that may open none.
	sessions map[uint64]*farpoolv1alpha1.DeadClient
	fenced   map[uint64]bool
	// publish, fence and repair run before a call is answered, where a test has set them.
	publish func(*farpoolv1alpha1.PublishMapRequest) error
	fence   func(context.Context) error
	repair  func(context.Context, *farpoolv1alpha1.RepairRequest) (*farpoolv1alpha1.RepairResponse, error)

	server  *grpc.Server
	address string
}

// serve starts an agent with the certificate of a Secret. A process that starts again in its pod has the address of before.
func serve(at string, data map[string][]byte, poolUID string, facts *farpoolv1alpha1.Facts) (*fakeAgent, error) {
	certificate, err := tls.X509KeyPair(data[pki.KeyCertificate], data[pki.KeyPrivateKey])
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(data[pki.KeyCABundle])
	listener, err := net.Listen("tcp", at)
	if err != nil {
		return nil, err
	}
	a := &fakeAgent{facts: facts, changed: make(chan struct{}), address: listener.Addr().String(),
		sessions: map[uint64]*farpoolv1alpha1.DeadClient{}, fenced: map[uint64]bool{}}
	a.server = grpc.NewServer(grpc.Creds(credentials.NewTLS(pki.ServerConfig(certificate, roots, poolUID, pki.RoleOperator))))
	farpoolv1alpha1.RegisterAgentServer(a.server, a)
	go func() { _ = a.server.Serve(listener) }()
	return a, nil
}

func (a *fakeAgent) stop() { a.server.Stop() }

// update changes the facts and tells all who watch.
func (a *fakeAgent) update(change func(*farpoolv1alpha1.Facts)) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	a.facts = proto.CloneOf(a.facts)
	change(a.facts)
	close(a.changed)
	a.changed = make(chan struct{})
}

func (a *fakeAgent) snapshot() (*farpoolv1alpha1.Facts, chan struct{}) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	return a.facts, a.changed
}

func (a *fakeAgent) epoch() uint64 {
	facts, _ := a.snapshot()
	return facts.GetEpoch()
}

func (a *fakeAgent) watching() int {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	return a.watchers
}

func (a *fakeAgent) Describe(_ context.Context, request *farpoolv1alpha1.DescribeRequest) (*farpoolv1alpha1.Facts, error) {
	facts, _ := a.snapshot()
	if request.GetPoolUid() != facts.GetPoolUid() {
		return nil, status.Error(codes.InvalidArgument, "another pool")
	}
	return facts, nil
}

func (a *fakeAgent) Watch(_ *farpoolv1alpha1.WatchRequest, stream grpc.ServerStreamingServer[farpoolv1alpha1.Facts]) error {
	a.mutex.Lock()
	a.watchers++
	a.mutex.Unlock()
	defer func() {
		a.mutex.Lock()
		defer a.mutex.Unlock()
		a.watchers--
	}()
	for {
		facts, changed := a.snapshot()
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

func (a *fakeAgent) PublishMap(_ context.Context, request *farpoolv1alpha1.PublishMapRequest) (*farpoolv1alpha1.PublishMapResponse, error) {
	a.mutex.Lock()
	publish := a.publish
	a.mutex.Unlock()
	if publish != nil {
		if err := publish(request); err != nil {
			return nil, err
		}
	}
	facts, _ := a.snapshot()
	published, held := request.GetMap(), facts.GetMemoryNode().GetMap()
	switch {
	case facts.GetRole() != farpoolv1alpha1.Role_ROLE_MEMORY_NODE:
		return nil, status.Error(codes.Unimplemented, "memory nodes only")
	case len(request.GetPoolSecret()) != 16:
		return nil, status.Error(codes.InvalidArgument, "the pool secret has 16 bytes")
	case published.GetEpoch() < max(facts.GetEpoch(), held.GetEpoch()):
		return nil, status.Error(codes.FailedPrecondition, "an older epoch")
	case published.GetEpoch() == held.GetEpoch() && !proto.Equal(published, held):
		return nil, status.Error(codes.AlreadyExists, "another map of this epoch")
	}
	ready := false
	for _, node := range published.GetNodes() {
		if node.GetName() == facts.GetName() {
			if node.GetIncarnation() != facts.GetIncarnation() {
				return nil, status.Error(codes.InvalidArgument, "another incarnation")
			}
			ready = node.GetState() == farpoolv1alpha1.MemoryNodeEntry_STATE_SERVING
		}
	}
	a.mutex.Lock()
	a.secrets = append(a.secrets, request.GetPoolSecret())
	a.mutex.Unlock()
	a.update(func(facts *farpoolv1alpha1.Facts) {
		facts.MemoryNode.Map = published
		if !request.GetPrepare() {
			facts.Epoch = published.GetEpoch()
			facts.Ready = ready
		}
	})
	return &farpoolv1alpha1.PublishMapResponse{Epoch: published.GetEpoch()}, nil
}

// Fence ends the sessions of processes, and names from then on what they left.
func (a *fakeAgent) Fence(ctx context.Context, request *farpoolv1alpha1.FenceRequest) (*farpoolv1alpha1.FenceResponse, error) {
	facts, _ := a.snapshot()
	switch {
	case facts.GetRole() != farpoolv1alpha1.Role_ROLE_MEMORY_NODE:
		return nil, status.Error(codes.Unimplemented, "memory nodes only")
	case request.GetPoolUid() != facts.GetPoolUid():
		return nil, status.Error(codes.InvalidArgument, "another pool")
	case len(request.GetProcesses()) == 0 || len(request.GetProcesses()) > 256:
		return nil, status.Error(codes.InvalidArgument, "1 to 256 processes")
	}
	a.mutex.Lock()
	fence := a.fence
	a.mutex.Unlock()
	if fence != nil {
		if err := fence(ctx); err != nil {
			return nil, err
		}
	}
	response := &farpoolv1alpha1.FenceResponse{}
	a.update(func(facts *farpoolv1alpha1.Facts) {
		node := facts.GetMemoryNode()
		for _, process := range request.GetProcesses() {
			a.fenced[process] = true
			if left, open := a.sessions[process]; open {
				response.Sessions++
				delete(a.sessions, process)
				if left != nil {
					node.Dead = append(node.Dead, left)
				}
			}
			for _, dead := range node.GetDead() {
				if dead.GetProcess() == process {
					response.Left = append(response.Left, dead)
				}
			}
		}
		node.DeadClients = uint64(len(node.GetDead()))
	})
	return response, nil
}

func (a *fakeAgent) Repair(ctx context.Context, request *farpoolv1alpha1.RepairRequest) (*farpoolv1alpha1.RepairResponse, error) {
	a.mutex.Lock()
	repair := a.repair
	a.mutex.Unlock()
	if repair == nil {
		return nil, status.Error(codes.Unimplemented, "compute shards only")
	}
	return repair(ctx, request)
}

func (a *fakeAgent) set(change func()) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	change()
}

// hasFenced says whether none of processes can execute anything here.
func (a *fakeAgent) hasFenced(processes []uint64) bool {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	for _, process := range processes {
		if _, open := a.sessions[process]; open || !a.fenced[process] {
			return false
		}
	}
	return true
}

// computeShardFacts of a process that holds its sessions.
func computeShardFacts(poolUID, name string, incarnation uint64) *farpoolv1alpha1.Facts {
	return &farpoolv1alpha1.Facts{
		PoolUid: poolUID, Role: farpoolv1alpha1.Role_ROLE_COMPUTE_SHARD, Name: name, Incarnation: incarnation, Version: "test",
		Epoch: 1, Ready: true, ComputeShard: &farpoolv1alpha1.ComputeShardFacts{RespEndpoint: "10.0.1.1:6379"},
	}
}

// memoryNodeFacts of a process that has just formatted its memory.
func memoryNodeFacts(poolUID, name string, incarnation uint64) *farpoolv1alpha1.Facts {
	return &farpoolv1alpha1.Facts{
		PoolUid: poolUID, Role: farpoolv1alpha1.Role_ROLE_MEMORY_NODE, Name: name, Incarnation: incarnation, Version: "test",
		Message: "no epoch yet",
		MemoryNode: &farpoolv1alpha1.MemoryNodeFacts{
			Endpoint: fmt.Sprintf("10.0.0.%d:7400", incarnation%250+1), MemoryBytes: 256 << 20, MemoryFresh: true,
			LockRegion: &farpoolv1alpha1.LockRegion{Placement: farpoolv1alpha1.LockRegion_PLACEMENT_HOST_MEMORY, Bytes: 4096, Locks: 32768, RowsPerLock: 16},
			Shape:      &farpoolv1alpha1.MemoryNodeFacts_Rcuckoo{Rcuckoo: &farpoolv1alpha1.RCuckooGeometry{EntryBytes: 16, EntriesPerRow: 8, RowsPerLock: 16, Rows: 466033}},
		},
	}
}

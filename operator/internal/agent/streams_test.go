// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"flag"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/types"

	farpoolv1alpha1 "farpool.dev/farpool/api/gen/farpool/v1alpha1"
	"farpool.dev/farpool/operator/internal/pki"
	"farpool.dev/farpool/operator/internal/shardmap"
)

const uid = "8f0c"

// deadline is how long tests wait for anything. Short tests wait less, so that a mutant that makes one hang is found sooner.
var deadline = 60 * time.Second

func TestMain(m *testing.M) {
	flag.Parse()
	if testing.Short() {
		deadline = 15 * time.Second
	}
	os.Exit(m.Run())
}

var pool = types.NamespacedName{Namespace: "shop", Name: "cache"}

type breaks struct{ count atomic.Int64 }

func (b *breaks) StreamBroken(types.NamespacedName) { b.count.Add(1) }

// process is a data-plane process as the operator sees it.
type process struct {
	farpoolv1alpha1.UnimplementedAgentServer
	facts   atomic.Pointer[farpoolv1alpha1.Facts]
	publish atomic.Int64
	// recorded is the epoch that its memory has followed.
	recorded atomic.Uint64
	fence    atomic.Pointer[func(context.Context) (*farpoolv1alpha1.FenceResponse, error)]
	repair   atomic.Pointer[func(context.Context) (*farpoolv1alpha1.RepairResponse, error)]
	// described is what it answers to Describe, if that is something else.
	described atomic.Pointer[farpoolv1alpha1.Facts]
	// answers is called with each Describe's answer before it is sent.
	answers atomic.Pointer[func()]
	// refuses has what it says to each Describe, and to each map, instead of an answer.
	refuses atomic.Pointer[error]
	poke    chan struct{}
	server  *grpc.Server
	address string
}

func (p *process) Describe(context.Context, *farpoolv1alpha1.DescribeRequest) (*farpoolv1alpha1.Facts, error) {
	if refusal := p.refuses.Load(); refusal != nil {
		return nil, *refusal
	}
	answer := cmp.Or(p.described.Load(), p.facts.Load())
	if answers := p.answers.Load(); answers != nil {
		(*answers)()
	}
	return answer, nil
}

func (p *process) Watch(_ *farpoolv1alpha1.WatchRequest, stream grpc.ServerStreamingServer[farpoolv1alpha1.Facts]) error {
	for {
		if err := stream.Send(p.facts.Load()); err != nil {
			return err
		}
		select {
		case <-p.poke:
		case <-stream.Context().Done():
			return nil
		}
	}
}

func (p *process) PublishMap(_ context.Context, request *farpoolv1alpha1.PublishMapRequest) (*farpoolv1alpha1.PublishMapResponse, error) {
	p.publish.Add(1)
	if refusal := p.refuses.Load(); refusal != nil {
		return nil, *refusal
	}
	if request.GetMap().GetEpoch() < p.recorded.Load() {
		return nil, status.Error(codes.FailedPrecondition, "an older epoch")
	}
	p.facts.Store(facts(request.GetMap().GetEpoch()))
	return &farpoolv1alpha1.PublishMapResponse{Epoch: request.GetMap().GetEpoch()}, nil
}

func (p *process) Fence(ctx context.Context, _ *farpoolv1alpha1.FenceRequest) (*farpoolv1alpha1.FenceResponse, error) {
	return (*p.fence.Load())(ctx)
}

func (p *process) Repair(ctx context.Context, _ *farpoolv1alpha1.RepairRequest) (*farpoolv1alpha1.RepairResponse, error) {
	return (*p.repair.Load())(ctx)
}

func facts(epoch uint64) *farpoolv1alpha1.Facts {
	return &farpoolv1alpha1.Facts{PoolUid: uid, Role: farpoolv1alpha1.Role_ROLE_MEMORY_NODE, Name: "cache-memory-0", Incarnation: 7, Epoch: epoch,
		MemoryNode: &farpoolv1alpha1.MemoryNodeFacts{}}
}

type fixture struct {
	t          *testing.T
	authority  *pki.Authority
	credential *pki.Credential
	streams    *Streams
	news       chan struct{}
	told       atomic.Int64
	breaks     *breaks
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	now := time.Now()
	authority, _, err := pki.RenewAuthority(nil, uid, now, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	credential, err := authority.OperatorCredential(uid, "operator", now)
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{t: t, authority: authority, credential: credential, news: make(chan struct{}, 1000), breaks: &breaks{}}
	f.streams = NewStreams(func(types.NamespacedName) {
		f.told.Add(1)
		f.news <- struct{}{}
	}, f.breaks)
	t.Cleanup(f.streams.Close)
	return f
}

func (f *fixture) start(address string, role pki.Role) *process {
	f.t.Helper()
	return f.startAs(address, role, "cache")
}

// shows is what a process shows to the operator in a handshake.
func (f *fixture) shows(role pki.Role, name string) *tls.Config {
	f.t.Helper()
	data, _, _, err := f.authority.RenewCertificate(nil, pki.Request{Identity: pki.Identity{PoolUID: uid, Role: role, Name: name}, Client: true, Server: true}, time.Now())
	if err != nil {
		f.t.Fatal(err)
	}
	certificate, err := tls.X509KeyPair(data[pki.KeyCertificate], data[pki.KeyPrivateKey])
	if err != nil {
		f.t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(data[pki.KeyCABundle])
	return pki.ServerConfig(certificate, roots, uid, pki.RoleOperator)
}

func (f *fixture) startAs(address string, role pki.Role, name string) *process {
	f.t.Helper()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		f.t.Fatal(err)
	}
	p := &process{poke: make(chan struct{}), address: listener.Addr().String()}
	p.facts.Store(facts(0))
	p.server = grpc.NewServer(grpc.Creds(credentials.NewTLS(f.shows(role, name))))
	farpoolv1alpha1.RegisterAgentServer(p.server, p)
	go func() { _ = p.server.Serve(listener) }()
	f.t.Cleanup(p.server.Stop)
	return p
}

func target(address string) Target {
	return Target{Pod: "pod", Name: "cache-memory-0", Address: address, Role: farpoolv1alpha1.Role_ROLE_MEMORY_NODE}
}

func (f *fixture) await(what string, want func(Observation) bool) Observation {
	f.t.Helper()
	late := time.After(deadline)
	for {
		observation := f.streams.Observe(pool)["pod"]
		if want(observation) {
			return observation
		}
		select {
		case <-f.news:
		case <-late:
			f.t.Fatalf("%s: %+v", what, observation)
		}
	}
}

// awaitTold waits until somebody was told so many times that something is new.
func (f *fixture) awaitTold(times int64) {
	f.t.Helper()
	late := time.After(deadline)
	for f.told.Load() < times {
		select {
		case <-f.news:
		case <-late:
			f.t.Fatalf("told %d times, not %d", f.told.Load(), times)
		}
	}
}

func connected(o Observation) bool   { return o.State == Connected }
func unreachable(o Observation) bool { return o.State == Unreachable }

func TestFactsArriveAndTheirLossIsNoted(t *testing.T) {
	f := newFixture(t)
	p := f.start("127.0.0.1:0", pki.RoleNode)
	f.streams.Sync(pool, uid, f.credential, []Target{target(p.address)})
	f.await("the first facts", connected)

	p.facts.Store(facts(4))
	p.poke <- struct{}{}
	f.await("a change", func(o Observation) bool { return o.Facts.GetEpoch() == 4 })

	p.server.Stop()
	lost := f.await("the loss of the stream", unreachable)
	if lost.Facts.GetEpoch() != 4 {
		t.Errorf("what was known last is forgotten: %+v", lost)
	}
	if f.breaks.count.Load() != 1 {
		t.Errorf("%d broken streams", f.breaks.count.Load())
	}
	f.start(p.address, pki.RoleNode)
	f.await("the process that started again", func(o Observation) bool { return o.State == Connected && o.Facts.GetEpoch() == 0 })
}

func TestCountersAreNoNews(t *testing.T) {
	f := newFixture(t)
	p := f.start("127.0.0.1:0", pki.RoleNode)
	f.streams.Sync(pool, uid, f.credential, []Target{target(p.address)})
	f.await("the first facts", connected)
	f.awaitTold(1)
	busy := facts(0)
	busy.MemoryNode.Keys = 1000
	p.facts.Store(busy)
	p.poke <- struct{}{}
	p.facts.Store(facts(5))
	p.poke <- struct{}{}
	f.await("a change", func(o Observation) bool { return o.Facts.GetEpoch() == 5 })
	f.streams.Close()
	if times := f.told.Load() - 1; times != 1 {
		t.Errorf("told %d times, not once", times)
	}
}

// The one thing about counters that is decided by: how full table and heap are, roughly.
func TestHowFullAMemoryNodeIsIsNews(t *testing.T) {
	with := func(keys uint64) *farpoolv1alpha1.Facts {
		f := facts(0)
		f.MemoryNode.Shape = &farpoolv1alpha1.MemoryNodeFacts_Rcuckoo{Rcuckoo: &farpoolv1alpha1.RCuckooGeometry{Rows: 125, EntriesPerRow: 8}} // room for 950 keys
		f.MemoryNode.Keys = keys
		return f
	}
	for _, c := range []struct {
		a, b uint64
		same bool
	}{{0, 40, true}, {0, 100, false}, {480, 520, true}, {960, 970, true}} {
		if sameMeaning(with(c.a), with(c.b)) != c.same {
			t.Errorf("%d and %d keys: the same is not %t", c.a, c.b, c.same)
		}
	}
	heap := func(used uint64) *farpoolv1alpha1.Facts {
		f := with(40)
		f.MemoryNode.HeapBytes, f.MemoryNode.HeapBytesUsed = 1000, used
		return f
	}
	if !sameMeaning(heap(510), heap(530)) || sameMeaning(heap(510), heap(560)) {
		t.Error("how full the heap is, is told of too often or not at all")
	}
	if fill, of, known := Fill(heap(100).GetMemoryNode()); !known || fill != 0.1 || of != "heap" {
		t.Errorf("%v of the %s", fill, of)
	}
	if fill, of, known := Fill(heap(10).GetMemoryNode()); !known || fill < 0.04 || of != "table" {
		t.Errorf("%v of the %s", fill, of)
	}
	race := &farpoolv1alpha1.MemoryNodeFacts{Shape: &farpoolv1alpha1.MemoryNodeFacts_Race{Race: &farpoolv1alpha1.RaceGeometry{Groups: 100}}, Keys: 924}
	if fill, known := TableFill(race); !known || fill < 0.499 || fill > 0.501 {
		t.Error(fill)
	}
	outback := &farpoolv1alpha1.MemoryNodeFacts{Shape: &farpoolv1alpha1.MemoryNodeFacts_Outback{Outback: &farpoolv1alpha1.OutbackGeometry{Buckets: 1000}}, Keys: 1900}
	if fill, known := TableFill(outback); !known || fill < 0.499 || fill > 0.501 {
		t.Error(fill)
	}
	if fill, of, known := Fill(with(0).GetMemoryNode()); !known || fill != 0 || of != "table" {
		t.Errorf("%v of the %s of an empty node", fill, of)
	}
	if fill, of, known := Fill(&farpoolv1alpha1.MemoryNodeFacts{HeapBytes: 100, HeapBytesUsed: 50}); known {
		t.Errorf("%v of the %s is full of one that has not said how large its table is", fill, of)
	}
	if fill, known := TableFill(nil); known || fill != 0 {
		t.Error(fill)
	}
}

// Each memory node tells the map that it holds, which names all of them: with a copy for each, a pool's maps would grow with the square of its size.
func TestMapsOfAPoolAreKeptOnce(t *testing.T) {
	f := newFixture(t)
	held := &farpoolv1alpha1.ShardMap{PoolUid: uid, Epoch: 3}
	var targets []Target
	for _, pod := range []types.UID{"one", "two", "three"} {
		p := f.start("127.0.0.1:0", pki.RoleNode)
		now := facts(3)
		now.MemoryNode.Map = held
		if pod == "three" {
			now.MemoryNode.Map = &farpoolv1alpha1.ShardMap{PoolUid: uid, Epoch: 2}
		}
		p.facts.Store(now)
		one := target(p.address)
		one.Pod = pod
		targets = append(targets, one)
	}
	f.streams.Sync(pool, uid, f.credential, targets)
	late := time.After(deadline)
	for {
		observed := f.streams.Observe(pool)
		if connected(observed["one"]) && connected(observed["two"]) && connected(observed["three"]) {
			one, two, three := observed["one"].Facts.GetMemoryNode().GetMap(), observed["two"].Facts.GetMemoryNode().GetMap(), observed["three"].Facts.GetMemoryNode().GetMap()
			if one != two || one.GetEpoch() != 3 || three.GetEpoch() != 2 {
				t.Errorf("%p and %p of epoch %d, and one of epoch %d", one, two, one.GetEpoch(), three.GetEpoch())
			}
			return
		}
		select {
		case <-f.news:
		case <-late:
			t.Fatalf("%+v", observed)
		}
	}
}

// While an epoch is published, memory nodes hold it or the one before.
func TestMapsOfTwoEpochsAreKept(t *testing.T) {
	copies := &mapCopies{}
	tell := func(epoch uint64) *farpoolv1alpha1.ShardMap {
		now := facts(epoch)
		now.MemoryNode.Map = &farpoolv1alpha1.ShardMap{PoolUid: uid, Epoch: epoch}
		copies.share(now)
		return now.MemoryNode.Map
	}
	before, after := tell(3), tell(4)
	if tell(3) != before || tell(4) != after {
		t.Error("a map of one of two epochs is held twice")
	}
	if last := tell(5); tell(4) != after || tell(5) != last || tell(3) == before || len(copies.maps) != mapCopiesKept {
		t.Errorf("%d maps are kept after another epoch", len(copies.maps))
	}
}

func TestOtherFactsAreNews(t *testing.T) {
	for name, change := range map[string]func(*farpoolv1alpha1.Facts){
		"epoch":         func(f *farpoolv1alpha1.Facts) { f.Epoch++ },
		"ready":         func(f *farpoolv1alpha1.Facts) { f.Ready = true },
		"move":          func(f *farpoolv1alpha1.Facts) { f.MemoryNode.MoveFinished++ },
		"map":           func(f *farpoolv1alpha1.Facts) { f.MemoryNode.Map = &farpoolv1alpha1.ShardMap{Epoch: 1} },
		"a dead client": func(f *farpoolv1alpha1.Facts) { f.MemoryNode.Dead = []*farpoolv1alpha1.DeadClient{{Process: 7}} },
		"another geometry": func(f *farpoolv1alpha1.Facts) {
			f.MemoryNode.Shape = &farpoolv1alpha1.MemoryNodeFacts_Race{Race: &farpoolv1alpha1.RaceGeometry{Groups: 1}}
		},
		"no memory node":  func(f *farpoolv1alpha1.Facts) { f.MemoryNode = nil },
		"a compute shard": func(f *farpoolv1alpha1.Facts) { f.ComputeShard = &farpoolv1alpha1.ComputeShardFacts{} },
	} {
		changed := facts(4)
		change(changed)
		if sameMeaning(changed, facts(4)) {
			t.Errorf("%s: no news", name)
		}
	}
	busy := facts(4)
	busy.MemoryNode.Sessions = 9
	if !sameMeaning(busy, facts(4)) || !sameMeaning(nil, nil) || sameMeaning(busy, nil) {
		t.Error("sessions are news, or nothing is")
	}
	if allocations := testing.AllocsPerRun(10, func() { sameMeaning(busy, busy) }); allocations > 0 {
		t.Errorf("%.0f allocations for what is the same", allocations)
	}
}

func TestSilenceChangesNothingTwice(t *testing.T) {
	f := newFixture(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	attempts := make(chan struct{}, 1000)
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			_ = connection.Close()
			attempts <- struct{}{}
		}
	}()
	f.streams.Sync(pool, uid, f.credential, []Target{target(listener.Addr().String())})
	first := f.await("an error", unreachable)
	// Several attempts later the observation is the same, and nobody was told again.
	late := time.After(deadline)
	for range 4 {
		select {
		case <-attempts:
		case <-late:
			t.Fatal("no further attempt")
		}
	}
	if now := f.streams.Observe(pool)["pod"]; now != first {
		t.Errorf("%+v became %+v", first, now)
	}
	if f.awaitTold(1); f.told.Load() != 1 {
		t.Errorf("told %d times, not once", f.told.Load())
	}
}

func TestTheWrongProcessIsRefused(t *testing.T) {
	f := newFixture(t)
	p := f.start("127.0.0.1:0", pki.RoleClient)
	f.streams.Sync(pool, uid, f.credential, []Target{target(p.address)})
	f.await("a certificate of another role", func(o Observation) bool { return o.State == Refused })
	p.server.Stop()

	q := f.start(p.address, pki.RoleNode)
	wrong := facts(0)
	wrong.Name = "cache-memory-1"
	q.facts.Store(wrong)
	f.await("another node's name", func(o Observation) bool {
		return o.State == Refused && o.Error == p.address+` answers as ROLE_MEMORY_NODE "cache-memory-1" of pool "8f0c", but ROLE_MEMORY_NODE "cache-memory-0" of pool "8f0c" is wanted`
	})
	q.facts.Store(facts(0))
	f.await("the right one", connected)
}

// Each of what facts say of their process must be right, or they are another's.
func TestWhoseFactsAreTaken(t *testing.T) {
	memory := func(change func(*farpoolv1alpha1.Facts)) *farpoolv1alpha1.Facts {
		told := facts(0)
		change(told)
		return told
	}
	starting := func(change func(*farpoolv1alpha1.Facts)) *farpoolv1alpha1.Facts {
		return memory(func(told *farpoolv1alpha1.Facts) {
			told.Incarnation, told.MemoryNode, told.Message = 0, nil, "starts: formats its table"
			change(told)
		})
	}
	node, shard := target("10.0.0.1:7401"), target("10.0.0.1:7401")
	shard.Role = farpoolv1alpha1.Role_ROLE_COMPUTE_SHARD
	same := func(*farpoolv1alpha1.Facts) {}
	asShard := func(told *farpoolv1alpha1.Facts) { told.Role = farpoolv1alpha1.Role_ROLE_COMPUTE_SHARD }
	for name, c := range map[string]struct {
		target         Target
		facts          *farpoolv1alpha1.Facts
		refused        string
		starts, trusts bool
	}{
		"a memory node":                        {node, memory(same), "", false, true},
		"another pool's":                       {node, memory(func(told *farpoolv1alpha1.Facts) { told.PoolUid = "another" }), "is wanted", false, false},
		"another role's":                       {node, memory(asShard), "is wanted", false, false},
		"another's of this pool":               {node, memory(func(told *farpoolv1alpha1.Facts) { told.Name = "another" }), "is wanted", false, false},
		"one without an incarnation":           {node, memory(func(told *farpoolv1alpha1.Facts) { told.Incarnation = 0 }), "without an incarnation", false, false},
		"one without facts of its memory":      {node, memory(func(told *farpoolv1alpha1.Facts) { told.MemoryNode = nil }), "without facts of one", false, false},
		"one that starts":                      {node, starting(same), "", true, true},
		"one that starts, and is another's":    {node, starting(func(told *farpoolv1alpha1.Facts) { told.Name = "another" }), "is wanted", true, false},
		"one that starts and says nothing":     {node, starting(func(told *farpoolv1alpha1.Facts) { told.Message = "" }), "without an incarnation", false, false},
		"one that starts and is ready":         {node, starting(func(told *farpoolv1alpha1.Facts) { told.Ready = true }), "without an incarnation", false, false},
		"one that starts as an incarnation":    {node, starting(func(told *farpoolv1alpha1.Facts) { told.Incarnation = 7 }), "without facts of one", false, false},
		"one that starts and knows its memory": {node, starting(func(told *farpoolv1alpha1.Facts) { told.MemoryNode = &farpoolv1alpha1.MemoryNodeFacts{} }), "without an incarnation", false, false},
		"a compute shard":                      {shard, starting(asShard), "", false, true},
	} {
		err := c.target.check(uid, c.facts)
		if trusts := err == nil; trusts != c.trusts || err != nil && !strings.Contains(err.Error(), c.refused) {
			t.Errorf("%s: %v", name, err)
		}
		if starts(c.facts) != c.starts {
			t.Errorf("%s: starts %t", name, !c.starts)
		}
	}
}

// What an agent says no with is certain; anything else may be silence.
func TestWhichFailuresAreRefusals(t *testing.T) {
	for code, want := range map[codes.Code]State{
		codes.PermissionDenied: Refused, codes.Unauthenticated: Refused, codes.Unimplemented: Refused, codes.InvalidArgument: Refused,
		codes.Unavailable: Unreachable, codes.DeadlineExceeded: Unreachable, codes.Canceled: Unreachable, codes.Internal: Unreachable, codes.Unknown: Unreachable,
	} {
		s := &stream{target: target("10.0.0.1:7401")}
		if o := s.failure(status.Error(code, "from 10.0.0.9:50123")); o.State != want || !strings.Contains(o.Error, "10.0.0.1:7401") || strings.Contains(o.Error, "50123") {
			t.Errorf("%s: %+v", code, o)
		}
	}
}

func TestWordsOfAProcessAreClipped(t *testing.T) {
	for words, want := range map[string]string{
		strings.Repeat("x", 300):                     strings.Repeat("x", 300),
		strings.Repeat("x", 301):                     strings.Repeat("x", 300) + "...",
		strings.Repeat("x", 299) + "é, which is cut": strings.Repeat("x", 299) + "...",
	} {
		if got := clipped(words); got != want {
			t.Errorf("%q became %q", words, got)
		}
	}
}

// A process that cannot say who it is, is not heard of; it is not taken for another.
func TestAProcessThatCannotDescribeItselfIsUnreachable(t *testing.T) {
	f := newFixture(t)
	p := f.start("127.0.0.1:0", pki.RoleNode)
	refusal := status.Error(codes.ResourceExhausted, "not now")
	p.refuses.Store(&refusal)
	f.streams.Sync(pool, uid, f.credential, []Target{target(p.address)})
	if o := f.await("a failure", func(o Observation) bool { return o.State != Connecting }); o.State != Unreachable || !strings.Contains(o.Error, "does not answer") {
		t.Errorf("%+v", o)
	}
	p.refuses.Store(nil)
	f.await("facts", connected)
}

// A link that breaks between the first facts and those to come is a broken stream, too.
func TestALinkThatBreaksAfterTheFirstFactsIsCounted(t *testing.T) {
	f := newFixture(t)
	p := f.start("127.0.0.1:0", pki.RoleNode)
	var once sync.Once
	tell := f.streams.notify
	f.streams.notify = func(pool types.NamespacedName) {
		once.Do(func() {
			_, link := f.streams.streamTo(pool, "pod").hearings()
			link.close(unavailable("read", io.EOF))
		})
		tell(pool)
	}
	f.streams.Sync(pool, uid, f.credential, []Target{target(p.address)})
	f.awaitTold(3) // of the first facts, the loss of the link, and another one
	if count := f.breaks.count.Load(); count != 1 {
		t.Errorf("%d streams broke", count)
	}
}

// A node that restarts does not meet all of its operators' links at once: they come back at different times, none of them at once.
func TestLinksComeBackAtDifferentTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewStreams(func(types.NamespacedName) {}, &breaks{})
		took := map[time.Duration]bool{}
		for range 100 {
			ctx, cancel := context.WithCancel(t.Context())
			began := time.Now()
			if !s.pause(&stream{ctx: ctx, cancel: cancel, target: target("10.0.0.1:7401")}, io.EOF, time.Second) {
				t.Fatal("the stream has ended")
			}
			cancel()
			pause := time.Since(began)
			if pause < time.Second/2 || pause >= 3*time.Second/2 {
				t.Errorf("another attempt after %s", pause)
			}
			took[pause] = true
		}
		if len(took) < 10 {
			t.Errorf("%d different pauses of 100", len(took))
		}
	})
}

// A process shows the certificate of its own name, where one is wanted.
func TestAnotherHoldersCertificateIsRefused(t *testing.T) {
	f := newFixture(t)
	p := f.startAs("127.0.0.1:0", pki.RoleNode, "cache-memory-1")
	wanted := target(p.address)
	wanted.Holder = "cache-memory-0"
	f.streams.Sync(pool, uid, f.credential, []Target{wanted})
	f.await("another node's certificate", func(o Observation) bool {
		return o.State == Refused && strings.Contains(o.Error, "the name cache-memory-0 is wanted")
	})
	p.server.Stop()
	f.startAs(p.address, pki.RoleNode, "cache-memory-0")
	f.await("its own", connected)
}

// If maps are signed, a map without the operator's signature is ignored, whatever epoch it claims.
func TestForgedMapsAreRefused(t *testing.T) {
	f := newFixture(t)
	p := f.start("127.0.0.1:0", pki.RoleNode)
	key := bytes.Repeat([]byte{7}, shardmap.KeyBytes)
	signed := func(change func(*farpoolv1alpha1.ShardMap), by []byte, after func(*farpoolv1alpha1.ShardMap)) *farpoolv1alpha1.Facts {
		held := &farpoolv1alpha1.ShardMap{PoolUid: uid, Epoch: 5, Directory: []uint32{0, 1}}
		change(held)
		if err := shardmap.Sign(held, by); err != nil {
			t.Fatal(err)
		}
		after(held)
		told := facts(5)
		told.MemoryNode.Map = held
		return told
	}
	same := func(*farpoolv1alpha1.ShardMap) {}
	right := signed(same, key, same)
	p.facts.Store(right)
	wanted := target(p.address)
	wanted.MapKey = string(shardmap.PublicKey(key))
	f.streams.Sync(pool, uid, f.credential, []Target{wanted})
	f.await("a signed map", connected)
	if held := f.streams.Observe(pool)["pod"].Facts.GetMemoryNode().GetMap(); held.GetEpoch() != 5 || held.GetSignature() != nil {
		t.Errorf("kept: %v", held)
	}
	for name, forged := range map[string]*farpoolv1alpha1.Facts{
		"no signature":    signed(same, key, func(m *farpoolv1alpha1.ShardMap) { m.Signature = nil }),
		"a late epoch":    signed(same, key, func(m *farpoolv1alpha1.ShardMap) { m.Epoch = 9999999999 }),
		"all keys to one": signed(same, key, func(m *farpoolv1alpha1.ShardMap) { m.Directory[1] = 0 }),
		"a flipped bit":   signed(same, key, func(m *farpoolv1alpha1.ShardMap) { m.Signature[63] ^= 1 }),
		"another pool's":  signed(same, bytes.Repeat([]byte{8}, shardmap.KeyBytes), same),
	} {
		p.facts.Store(forged)
		p.poke <- struct{}{}
		f.await(name, func(o Observation) bool {
			return o.State == Refused && strings.Contains(o.Error, "memory node cache-memory-0 holds a map that is not the operator's") && strings.Contains(o.Error, "delete its pod")
		})
		p.facts.Store(signed(same, key, same))
		f.await("a signed map again", connected)
	}
	// Pods of earlier templates have no key, and their maps no signature.
	p.facts.Store(signed(same, key, func(m *farpoolv1alpha1.ShardMap) { m.Signature = nil }))
	wanted.MapKey = ""
	f.streams.Sync(pool, uid, f.credential, []Target{wanted})
	f.await("an unsigned map", connected)
}

// A memory node that takes its memory up answers before it knows what the memory holds. It counts neither as refused nor as serving.
func TestAMemoryNodeThatStarts(t *testing.T) {
	f := newFixture(t)
	p := f.start("127.0.0.1:0", pki.RoleNode)
	p.facts.Store(&farpoolv1alpha1.Facts{PoolUid: uid, Role: farpoolv1alpha1.Role_ROLE_MEMORY_NODE, Name: "cache-memory-0", Message: "starts: formats its table, 35 % of 256 bytes"})
	f.streams.Sync(pool, uid, f.credential, []Target{target(p.address)})
	seen := f.await("start", func(o Observation) bool { return o.State == Starting })
	if seen.Error != "starts: formats its table, 35 % of 256 bytes" || seen.Facts != nil {
		t.Errorf("%+v", seen)
	}
	p.facts.Store(facts(0))
	p.poke <- struct{}{}
	f.await("facts", func(o Observation) bool { return o.State == Connected && o.Facts.GetIncarnation() == 7 })
}

func TestPublishingRefreshesFacts(t *testing.T) {
	f := newFixture(t)
	p := f.start("127.0.0.1:0", pki.RoleNode)
	f.streams.Sync(pool, uid, f.credential, []Target{target(p.address)})
	f.await("the first facts", connected)
	request := &farpoolv1alpha1.PublishMapRequest{Map: &farpoolv1alpha1.ShardMap{PoolUid: uid, Epoch: 9}, PoolSecret: make([]byte, 16)}
	if err := f.streams.Publish(context.Background(), pool, "pod", request); err != nil {
		t.Fatal(err)
	}
	if o := f.streams.Observe(pool)["pod"]; o.Facts.GetEpoch() != 9 {
		t.Errorf("facts of before: %+v", o)
	}
	if err := f.streams.Publish(context.Background(), pool, "other", request); err == nil {
		t.Error("published to a pod without a stream")
	}
}

// The answer to a question is older than facts that came in the stream before it arrived, and nothing would bring those again.
func TestAnAnswerDoesNotReplaceFactsThatCameMeanwhile(t *testing.T) {
	f := newFixture(t)
	p := f.start("127.0.0.1:0", pki.RoleNode)
	f.streams.Sync(pool, uid, f.credential, []Target{target(p.address)})
	f.await("the first facts", connected)
	moved := func(o Observation) bool { return o.Facts.GetMemoryNode().GetMoveFinished() == 1 }
	var once sync.Once
	meanwhile := func() {
		once.Do(func() {
			newer := facts(9)
			newer.MemoryNode = &farpoolv1alpha1.MemoryNodeFacts{MoveFinished: 1}
			p.facts.Store(newer)
			p.poke <- struct{}{}
			f.await("what came in the stream", moved)
		})
	}
	p.answers.Store(&meanwhile)
	request := &farpoolv1alpha1.PublishMapRequest{Map: &farpoolv1alpha1.ShardMap{PoolUid: uid, Epoch: 9}, PoolSecret: make([]byte, 16)}
	if err := f.streams.Publish(context.Background(), pool, "pod", request); err != nil {
		t.Fatal(err)
	}
	if o := f.streams.Observe(pool)["pod"]; !moved(o) {
		t.Errorf("facts of before: %+v", o)
	}
}

// What a memory node refuses as old is remembered, for as long as its memory is.
func TestARefusedEpochIsRemembered(t *testing.T) {
	f := newFixture(t)
	p := f.start("127.0.0.1:0", pki.RoleNode)
	p.recorded.Store(9)
	f.streams.Sync(pool, uid, f.credential, []Target{target(p.address)})
	f.await("the first facts", connected)
	if err := f.streams.Publish(t.Context(), pool, "pod", &farpoolv1alpha1.PublishMapRequest{Map: &farpoolv1alpha1.ShardMap{Epoch: 8}}); status.Code(err) != codes.FailedPrecondition {
		t.Fatalf("publish: %v", err)
	}
	f.await("what was refused", func(o Observation) bool { return o.RefusedEpoch == 8 })
	f.awaitTold(2)
	publish := func(epoch uint64) {
		if err := f.streams.Publish(t.Context(), pool, "pod", &farpoolv1alpha1.PublishMapRequest{Map: &farpoolv1alpha1.ShardMap{Epoch: epoch}}); err == nil {
			t.Errorf("epoch %d is not refused", epoch)
		}
	}
	if publish(8); f.told.Load() != 2 {
		t.Error("the same refusal is news again")
	}
	if publish(7); f.told.Load() != 3 {
		t.Errorf("another refusal is told %d times", f.told.Load()-2)
	}
	// A refusal is remembered only if its memory has followed a later map.
	other := status.Error(codes.AlreadyExists, "this epoch with other content")
	p.refuses.Store(&other)
	publish(6)
	p.refuses.Store(nil)
	if o := f.streams.Observe(pool)["pod"]; o.RefusedEpoch != 7 || f.told.Load() != 3 {
		t.Errorf("after another kind of refusal: %+v", o)
	}
	tell := func(change func(*farpoolv1alpha1.Facts)) {
		now := proto.CloneOf(p.facts.Load())
		change(now)
		p.facts.Store(now)
		f.streams.refresh(t.Context(), pool, "pod")
	}
	tell(func(now *farpoolv1alpha1.Facts) { now.Incarnation++ })
	if o := f.streams.Observe(pool)["pod"]; o.Facts.GetIncarnation() != 8 || o.RefusedEpoch != 7 {
		t.Errorf("another life over that memory: %+v", o)
	}
	tell(func(now *farpoolv1alpha1.Facts) { now.Incarnation++; now.MemoryNode.MemoryFresh = true })
	if o := f.streams.Observe(pool)["pod"]; o.Facts.GetIncarnation() != 9 || o.RefusedEpoch != 0 {
		t.Errorf("a life over memory of its own: %+v", o)
	}
}

// Nothing that is known of one pool counts for another of its name, or for one whose authority is another.
func TestAnotherPoolOfTheNameBeginsAnew(t *testing.T) {
	f := newFixture(t)
	p := f.start("127.0.0.1:0", pki.RoleNode)
	authority, _, err := pki.RenewAuthority(nil, uid, time.Now(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	another, err := authority.OperatorCredential(uid, "operator", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	for name, sync := range map[string]func(){
		"another uid":       func() { f.streams.Sync(pool, "another", f.credential, []Target{target(p.address)}) },
		"another authority": func() { f.streams.Sync(pool, uid, another, []Target{target(p.address)}) },
	} {
		f.streams.Sync(pool, uid, f.credential, []Target{target(p.address)})
		f.await("the first facts", connected)
		sync()
		if o := f.streams.Observe(pool)["pod"]; o.State == Connected || o.Facts != nil {
			t.Errorf("%s: %+v is known already", name, o)
		}
	}
}

// A call's outcome does not make facts of another process be believed.
func TestARefreshTakesNobodyElsesFacts(t *testing.T) {
	f := newFixture(t)
	p := f.start("127.0.0.1:0", pki.RoleNode)
	f.streams.Sync(pool, uid, f.credential, []Target{target(p.address)})
	f.await("the first facts", connected)
	wrong := facts(9)
	wrong.Name = "another"
	p.described.Store(wrong)
	f.streams.refresh(t.Context(), pool, "pod")
	if o := f.streams.Observe(pool)["pod"]; o.State != Connected || o.Facts.GetEpoch() != 0 {
		t.Errorf("%+v", o)
	}
}

func TestStreamsThatAreRightAreLeftAlone(t *testing.T) {
	f := newFixture(t)
	p := f.start("127.0.0.1:0", pki.RoleNode)
	f.streams.Sync(pool, uid, f.credential, []Target{target(p.address)})
	f.await("the first facts", connected)
	before := f.streams.pools[pool].streams["pod"]
	f.streams.Sync(pool, uid, f.credential, []Target{target(p.address)})
	if f.streams.pools[pool].streams["pod"] != before {
		t.Error("opened again for nothing")
	}
	renewed, err := f.authority.OperatorCredential(uid, "operator", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	f.streams.Sync(pool, uid, renewed, []Target{target(p.address)})
	if o := f.streams.Observe(pool)["pod"]; f.streams.pools[pool].streams["pod"] == before || o.State != Connected {
		t.Errorf("for a renewed credential: %+v", o)
	}
	// What comes after one that is right is looked at, too.
	another := target(p.address)
	another.Pod = "another"
	f.streams.Sync(pool, uid, renewed, []Target{target(p.address), another})
	if len(f.streams.Observe(pool)) != 2 {
		t.Error("no stream to another")
	}
	f.streams.Sync(pool, uid, renewed, nil)
	if len(f.streams.Observe(pool)) != 0 {
		t.Error("a stream to nobody")
	}
	f.streams.Forget(pool)
	f.streams.Close()
	f.streams.Sync(pool, uid, renewed, []Target{target(p.address)})
	if len(f.streams.Observe(pool)) != 0 {
		t.Error("opened after closing")
	}
}

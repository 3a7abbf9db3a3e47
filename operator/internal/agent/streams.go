// SPDX-License-Identifier: Apache-2.0

// Package agent talks to the agent in each data-plane process. A link to each process brings its facts; what is known is read without waiting.
package agent

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"k8s.io/apimachinery/pkg/types"

	farpoolv1alpha1 "farpool.dev/farpool/api/gen/farpool/v1alpha1"
	"farpool.dev/farpool/operator/internal/pki"
	"farpool.dev/farpool/operator/internal/shardmap"
)

const (
	// Facts are conflated by the agent to at most one message in this time.
	watchInterval = time.Second
	// A stream can hang without an error when a node vanishes. A unary call on the same connection finds out.
	probeInterval = 15 * time.Second
	callTimeout   = 5 * time.Second

	minBackoff = 250 * time.Millisecond
	maxBackoff = 3 * time.Second

	maxMessageBytes = 4 << 20

	// handshakes is how many take place at once; one that has waited for admission no longer waits for the others. A handshake needs a processor more than it
	// waits for answers, so more of them at once only delay reconciliations.
	handshakes    = 8
	admissionWait = time.Second
)

// Target is one data-plane process of a pool.
type Target struct {
	Pod     types.UID // one pod, one target: a new pod of the same name is another
	Name    string    // what its facts must call it
	Address string    // host:port of the agent
	Role    farpoolv1alpha1.Role
	// Holder is the name that its certificate must bear; empty: any of its role.
	Holder string
	// MapKey is the public key that maps it holds must be signed with; empty: they need not be.
	MapKey string
}

// holder is what a certificate is made for. All compute shards of a Deployment share one.
type holder struct {
	role pki.Role
	name string
}

func (t Target) certificateRole() pki.Role {
	if t.Role == farpoolv1alpha1.Role_ROLE_MEMORY_NODE {
		return pki.RoleNode
	}
	return pki.RoleClient
}

// State says what is known about a process.
type State int

const (
	// Connecting: nothing was heard of it yet.
	Connecting State = iota
	// Connected: the facts are current.
	Connected
	// Starting: it answers, and does not know yet what its memory holds. Error says how far it is; the facts are those of an earlier process.
	Starting
	// Unreachable: nothing is known now. The process may well live.
	Unreachable
	// Refused: another process answers there than the one that should.
	Refused
)

// Observation is what is known about a process. Facts are the last ones heard, current only if State is Connected.
type Observation struct {
	State State
	Facts *farpoolv1alpha1.Facts
	Error string
	// RefusedEpoch is the last epoch that this memory node has refused as older than one that its memory has followed, whether it still has that map or not.
	RefusedEpoch uint64
}

// Streams keeps a stream to every data-plane process of every pool.
type Streams struct {
	notify  func(pool types.NamespacedName)
	metrics Metrics

	places  chan struct{}
	mutex   sync.Mutex
	pools   map[types.NamespacedName]*poolStreams
	closed  bool
	running sync.WaitGroup
}

// Metrics that streams keep.
type Metrics interface {
	StreamBroken(pool types.NamespacedName)
}

type poolStreams struct {
	uid     string
	bundle  []byte
	streams map[types.UID]*stream
	maps    *mapCopies
	// configs of TLS, for the credential that has them.
	configs    map[holder]*tls.Config
	credential *pki.Credential
}

type stream struct {
	pool       types.NamespacedName
	uid        string // of the pool
	target     Target
	credential *pki.Credential
	config     *tls.Config
	ctx        context.Context
	cancel     context.CancelFunc
	maps       *mapCopies // of the pool
	line       line

	mutex sync.Mutex
	link  *link // nil: there is none now
	// follows: facts are heard over the link, for as long as it lasts.
	follows     bool
	observation Observation
	heard       uint64 // facts that have come in the stream
}

// NewStreams returns streams that call notify, from any goroutine, when something that is known about a pool has changed.
func NewStreams(notify func(pool types.NamespacedName), metrics Metrics) *Streams {
	return &Streams{notify: notify, metrics: metrics, places: make(chan struct{}, handshakes), pools: map[types.NamespacedName]*poolStreams{}}
}

// Sync makes the streams of a pool be those to targets, and leaves the ones that are right alone. All are opened again when
// the pool's authority or uid changed. A stream that is opened again for a renewed credential keeps what it knew.
func (s *Streams) Sync(pool types.NamespacedName, uid string, credential *pki.Credential, targets []Target) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.closed {
		return
	}
	streams := s.pools[pool]
	if streams != nil && (streams.uid != uid || !bytes.Equal(streams.bundle, credential.Bundle)) {
		streams.closeAll()
		streams = nil
	}
	if streams == nil {
		streams = &poolStreams{uid: uid, bundle: credential.Bundle, streams: map[types.UID]*stream{}, maps: &mapCopies{}}
		s.pools[pool] = streams
	}
	wanted := make(map[types.UID]bool, len(targets))
	for _, target := range targets {
		wanted[target.Pod] = true
		if open, exists := streams.streams[target.Pod]; exists {
			if open.target == target && open.credential == credential {
				continue
			}
			open.cancel()
		}
		streams.streams[target.Pod] = s.open(pool, streams, credential, target, streams.streams[target.Pod])
	}
	for pod, open := range streams.streams {
		if !wanted[pod] {
			open.cancel()
			delete(streams.streams, pod)
		}
	}
}

// Forget closes the streams of a pool.
func (s *Streams) Forget(pool types.NamespacedName) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if streams := s.pools[pool]; streams != nil {
		streams.closeAll()
		delete(s.pools, pool)
	}
}

// Close closes every stream and waits until none runs.
func (s *Streams) Close() {
	s.mutex.Lock()
	s.closed = true
	for pool, streams := range s.pools {
		streams.closeAll()
		delete(s.pools, pool)
	}
	s.mutex.Unlock()
	s.running.Wait()
}

// Observe returns what is known about the processes of a pool, by pod.
func (s *Streams) Observe(pool types.NamespacedName) map[types.UID]Observation {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	streams := s.pools[pool]
	if streams == nil {
		return map[types.UID]Observation{}
	}
	observed := make(map[types.UID]Observation, len(streams.streams))
	for pod, stream := range streams.streams {
		observed[pod] = stream.observe()
	}
	return observed
}

// Unheard says whether a process of a pool has neither been heard since the operator knows it nor failed to answer.
func (s *Streams) Unheard(pool types.NamespacedName) bool {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if streams := s.pools[pool]; streams != nil {
		for _, stream := range streams.streams {
			if stream.observe().State == Connecting {
				return true
			}
		}
	}
	return false
}

// Publish gives a memory node a map, to hold or to follow. An agent that refuses is reported as it answers: FailedPrecondition if it holds a later epoch,
// AlreadyExists if it holds this one with other content.
func (s *Streams) Publish(ctx context.Context, pool types.NamespacedName, pod types.UID, request *farpoolv1alpha1.PublishMapRequest) error {
	err := s.ask(ctx, pool, pod, callTimeout, func(ctx context.Context, client farpoolv1alpha1.AgentClient) error {
		_, err := client.PublishMap(ctx, request)
		return err
	})
	if err != nil {
		if stream := s.streamTo(pool, pod); stream != nil && status.Code(err) == codes.FailedPrecondition && stream.refused(request.GetMap().GetEpoch()) {
			s.notify(pool)
		}
		what := "publish"
		if request.GetPrepare() {
			what = "prepare"
		}
		return fmt.Errorf("%s epoch %d to %w", what, request.GetMap().GetEpoch(), err)
	}
	// The next plan must not find the earlier facts: it would publish the map once more.
	s.refresh(ctx, pool, pod)
	return nil
}

// ask calls the agent of a pod within a time.
func (s *Streams) ask(ctx context.Context, pool types.NamespacedName, pod types.UID, within time.Duration,
	call func(context.Context, farpoolv1alpha1.AgentClient) error) error {
	stream := s.streamTo(pool, pod)
	if stream == nil {
		return fmt.Errorf("pod %s: there is no stream to its agent", pod)
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	// A call ends with its stream.
	defer context.AfterFunc(stream.ctx, cancel)()
	if err := stream.line.call(stream.ctx, stream.target.Address, stream.config, func(client farpoolv1alpha1.AgentClient) error { return call(ctx, client) }); err != nil {
		return fmt.Errorf("%s at %s: %w", stream.target.Name, stream.target.Address, err)
	}
	return nil
}

// refresh asks a process for facts that are newer than the call.
func (s *Streams) refresh(ctx context.Context, pool types.NamespacedName, pod types.UID) {
	stream := s.streamTo(pool, pod)
	if stream == nil {
		return
	}
	// Facts that came in the stream meanwhile may be newer than the answer, and nothing would bring them again.
	const attempts = 3
	for range attempts {
		before, link := stream.hearings()
		if link == nil {
			return // there will be facts when there is a link again
		}
		facts, err := stream.describe(ctx, link)
		if err != nil || stream.target.check(stream.uid, facts) != nil {
			return
		}
		stream.maps.share(facts)
		if newest, changed := stream.setSince(before, Observation{State: Connected, Facts: facts}); newest {
			if changed {
				s.notify(pool)
			}
			return
		}
	}
}

// streamTo finds a stream; nil: there is none to this pod.
func (s *Streams) streamTo(pool types.NamespacedName, pod types.UID) *stream {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if streams := s.pools[pool]; streams != nil {
		return streams.streams[pod]
	}
	return nil
}

func (p *poolStreams) closeAll() {
	for _, stream := range p.streams {
		stream.cancel()
	}
}

func (s *stream) observe() Observation {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.observation
}

// refused records an epoch that was refused, and says whether that is news.
func (s *stream) refused(epoch uint64) bool {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	news := s.observation.RefusedEpoch != epoch
	s.observation.RefusedEpoch = epoch
	return news
}

// hearings counts the facts that have come in the stream, and returns the link that they come over.
func (s *stream) hearings() (uint64, *link) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.heard, s.link
}

// setSince records an observation unless facts have come in the stream since `heard`, and says whether it did, and whether that is news.
func (s *stream) setSince(heard uint64, observation Observation) (newest, changed bool) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.heard != heard {
		return false, false
	}
	return true, s.record(observation)
}

// set records an observation and says whether it differs in meaning from the one before.
func (s *stream) set(observation Observation) bool {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if observation.Facts != nil {
		s.heard++
	}
	return s.record(observation)
}

// record sets an observation. The caller holds the mutex.
func (s *stream) record(observation Observation) bool {
	if observation.Facts == nil {
		observation.Facts = s.observation.Facts
	}
	// Another memory remembers nothing.
	if !observation.Facts.GetMemoryNode().GetMemoryFresh() {
		observation.RefusedEpoch = s.observation.RefusedEpoch
	}
	changed := observation.State != s.observation.State || observation.Error != s.observation.Error || !sameMeaning(observation.Facts, s.observation.Facts)
	s.observation = observation
	return changed
}

// sameMeaning says whether nothing has changed that decisions depend on. Counters change all the time under load. Only how full a memory node's table and heap are
// counts, in steps of five percent. It makes no copy, because facts come every second from every process.
func sameMeaning(a, b *farpoolv1alpha1.Facts) bool {
	if a == b {
		return true
	}
	steps := func(facts *farpoolv1alpha1.Facts) [2]int {
		table, _ := TableFill(facts.GetMemoryNode())
		return [2]int{int(table * 20), int(HeapFill(facts.GetMemoryNode()) * 20)}
	}
	return steps(a) == steps(b) &&
		proto.Equal(a.GetMemoryNode().GetMap(), b.GetMemoryNode().GetMap()) &&
		equalBut(a, b, "memory_node", "compute_shard") &&
		equalBut(a.GetMemoryNode(), b.GetMemoryNode(), "sessions", "keys", "heap_bytes_used", "map") &&
		equalBut(a.GetComputeShard(), b.GetComputeShard(), "connections")
}

// equalBut compares two messages of one type in all fields but some.
func equalBut(a, b proto.Message, but ...protoreflect.Name) bool {
	x, y := a.ProtoReflect(), b.ProtoReflect()
	if x.IsValid() != y.IsValid() {
		return false
	}
	fields := x.Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		if slices.Contains(but, field.Name()) {
			continue
		}
		if x.Has(field) != y.Has(field) || x.Has(field) && !x.Get(field).Equal(y.Get(field)) {
			return false
		}
	}
	return bytes.Equal(x.GetUnknown(), y.GetUnknown())
}

// mapCopies keeps one copy of each map that a pool's memory nodes hold: each of them sends its map, which names all of them.
type mapCopies struct {
	mutex sync.Mutex
	maps  []*farpoolv1alpha1.ShardMap
}

// mapCopiesKept is two: the map of an epoch that is being published, and the one before.
const mapCopiesKept = 2

// share replaces a map by the copy that is kept of an equal one. The caller is the only user of the facts.
func (c *mapCopies) share(facts *farpoolv1alpha1.Facts) {
	node := facts.GetMemoryNode()
	if node.GetMap() == nil {
		return
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	for _, kept := range c.maps {
		if proto.Equal(kept, node.Map) {
			node.Map = kept
			return
		}
	}
	c.maps = append(c.maps, node.Map)
	if len(c.maps) > mapCopiesKept {
		c.maps = slices.Delete(c.maps, 0, 1)
	}
}

// open starts a stream. What its predecessor knew stays until the stream has heard more.
func (s *Streams) open(pool types.NamespacedName, streams *poolStreams, credential *pki.Credential, target Target, predecessor *stream) *stream {
	if streams.credential != credential {
		streams.credential, streams.configs = credential, map[holder]*tls.Config{}
	}
	peer := holder{target.certificateRole(), target.Holder}
	if streams.configs[peer] == nil {
		config := credential.ClientConfig(streams.uid, peer.role, peer.name)
		config.NextProtos = []string{http2.NextProtoTLS}
		// Facts are no secret for years: without a second, larger key, handshakes leave half as much in memory. Calls, which bring secrets, have both.
		config.CurvePreferences = []tls.CurveID{tls.X25519, tls.CurveP256}
		streams.configs[peer] = config
	}
	opened := &stream{pool: pool, uid: streams.uid, target: target, credential: credential, config: streams.configs[peer], maps: streams.maps, line: line{lingers: lingers}}
	opened.ctx, opened.cancel = context.WithCancel(context.Background())
	if predecessor != nil && predecessor.target == target {
		opened.observation = predecessor.observe()
	}
	s.running.Go(func() { s.run(opened, minBackoff) })
	return opened
}

// run tries to get a link until there is one, which then goes on by itself, or the stream ends.
func (s *Streams) run(stream *stream, backoff time.Duration) {
	for stream.ctx.Err() == nil {
		heard, err := s.follow(stream)
		if err == nil {
			return
		}
		if heard {
			s.metrics.StreamBroken(stream.pool)
			backoff = minBackoff
		}
		if !s.pause(stream, err, backoff) {
			return
		}
		backoff = min(2*backoff, maxBackoff)
	}
}

// pause records that nothing is heard, and waits until the next attempt; false: the stream has ended.
func (s *Streams) pause(stream *stream, err error, backoff time.Duration) bool {
	if stream.ctx.Err() != nil {
		return false
	}
	if stream.set(stream.failure(err)) {
		s.notify(stream.pool)
	}
	// A memory node that restarts should not meet all its streams at once.
	select {
	case <-stream.ctx.Done():
		return false
	case <-time.After(backoff/2 + rand.N(backoff)):
		return true
	}
}

// broken runs after a link has ended: it tries to make another one.
func (s *Streams) broken(stream *stream, why error) {
	if stream.ctx.Err() != nil {
		return
	}
	s.metrics.StreamBroken(stream.pool)
	if s.pause(stream, why, minBackoff) {
		s.run(stream, 2*minBackoff)
	}
}

// follow makes a link, over which facts then come until it breaks, long after follow has returned. An error says that there is no link; heard says that there were
// facts nevertheless.
func (s *Streams) follow(stream *stream) (heard bool, err error) {
	ctx, cancel := context.WithTimeout(stream.ctx, callTimeout)
	defer cancel()
	link, err := connect(ctx, stream.target.Address, stream.config, s.admit)
	if err != nil {
		return false, err
	}
	stop := context.AfterFunc(stream.ctx, func() { link.close(status.Error(codes.Canceled, "the stream has ended")) })
	stream.begin(link)
	s.running.Add(1)
	go link.serve(func(why error) {
		defer s.running.Done()
		stop()
		if stream.end(link) {
			s.broken(stream, why)
		}
	})

	// The first call has a deadline; a stream has none.
	facts, err := stream.describe(ctx, link)
	if err == nil {
		err = s.hear(stream, facts)
		heard = err == nil
	}
	if err == nil {
		err = s.watch(stream, link)
	}
	if err == nil && !stream.goOn(link) {
		err = unavailable("watch", io.EOF)
	}
	if err != nil {
		link.close(err)
		return heard, err
	}
	link.ping(probeInterval, func() error {
		_, err := stream.describe(stream.ctx, link)
		return err
	})
	return true, nil
}

// watch begins to hear facts over a link.
func (s *Streams) watch(stream *stream, link *link) error {
	request := &farpoolv1alpha1.WatchRequest{PoolUid: stream.uid, MinIntervalMs: uint32(watchInterval.Milliseconds())}
	_, err := link.begin(farpoolv1alpha1.Agent_Watch_FullMethodName, request, 0, true, func(message []byte) error {
		facts := &farpoolv1alpha1.Facts{}
		if err := proto.Unmarshal(message, facts); err != nil {
			return unavailable("read facts", err)
		}
		return s.hear(stream, facts)
	})
	return err
}

// hear records facts that a process reports of itself.
func (s *Streams) hear(stream *stream, facts *farpoolv1alpha1.Facts) error {
	if err := stream.target.check(stream.uid, facts); err != nil {
		return err
	}
	stream.maps.share(facts)
	observation := Observation{State: Connected, Facts: facts}
	if starts(facts) {
		observation = Observation{State: Starting, Error: clipped(facts.GetMessage())}
	}
	if stream.set(observation) {
		s.notify(stream.pool)
	}
	return nil
}

// admit waits for one of the places for handshakes, whose stacks are deep, and which keep a processor busy. It waits for a while and no longer: one that
// hangs keeps no other from taking place.
func (s *Streams) admit(ctx context.Context) (leave func()) {
	patience := time.NewTimer(admissionWait)
	defer patience.Stop()
	select {
	case s.places <- struct{}{}:
		return func() { <-s.places }
	case <-patience.C:
	case <-ctx.Done():
	}
	return func() {}
}

// describe asks a process for its facts.
func (s *stream) describe(ctx context.Context, link *link) (*farpoolv1alpha1.Facts, error) {
	facts := &farpoolv1alpha1.Facts{}
	return facts, link.ask(ctx, farpoolv1alpha1.Agent_Describe_FullMethodName, &farpoolv1alpha1.DescribeRequest{PoolUid: s.uid}, facts, callTimeout)
}

// begin records a link that can be asked.
func (s *stream) begin(link *link) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.link, s.follows = link, false
}

// goOn records that facts come over the link from here on; false: it has ended already.
func (s *stream) goOn(link *link) bool {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.follows = s.link == link
	return s.follows
}

// end records that a link is gone, and says whether facts were to come over it.
func (s *stream) end(link *link) (followed bool) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.link != link {
		return false
	}
	followed = s.follows
	s.link, s.follows = nil, false
	return followed
}

// errWrongProcess says that another process than the target answered.
type errWrongProcess struct{ reason string }

func (e errWrongProcess) Error() string { return e.reason }

func (t Target) check(uid string, facts *farpoolv1alpha1.Facts) error {
	if facts.GetPoolUid() != uid || facts.GetRole() != t.Role || facts.GetName() != t.Name {
		return errWrongProcess{fmt.Sprintf("%s answers as %s %q of pool %q, but %s %q of pool %q is wanted",
			t.Address, facts.GetRole(), facts.GetName(), facts.GetPoolUid(), t.Role, t.Name, uid)}
	}
	if t.Role == farpoolv1alpha1.Role_ROLE_MEMORY_NODE && !starts(facts) && (facts.GetIncarnation() == 0 || facts.GetMemoryNode() == nil) {
		return errWrongProcess{fmt.Sprintf("%s answers as a memory node without an incarnation or without facts of one", t.Address)}
	}
	if held := facts.GetMemoryNode().GetMap(); held != nil {
		if t.MapKey != "" {
			if err := shardmap.CheckSignature(held, ed25519.PublicKey(t.MapKey)); err != nil {
				return errWrongProcess{fmt.Sprintf("memory node %s holds a map that is not the operator's: %v; its process is damaged or somebody else controls it: delete its pod", t.Name, err)}
			}
		}
		// No later check looks at the signature, and maps are compared.
		held.Signature = nil
	}
	return nil
}

// starts says whether a memory node is still taking its memory up. It has no incarnation until it has.
func starts(facts *farpoolv1alpha1.Facts) bool {
	return facts.GetRole() == farpoolv1alpha1.Role_ROLE_MEMORY_NODE && facts.GetIncarnation() == 0 && facts.GetMemoryNode() == nil && !facts.GetReady() && facts.GetMessage() != ""
}

// clipped shortens a process's words to what conditions can hold beside others.
func clipped(words string) string {
	const limit = 300
	if len(words) <= limit {
		return words
	}
	return strings.ToValidUTF8(words[:limit], "") + "..."
}

// failure judges an error: certainty that the wrong process answers is not the same as silence. Details such as ports of a lost connection
// differ with every attempt and would look like news, so that they are left out.
func (s *stream) failure(err error) Observation {
	address := s.target.Address
	var wrong errWrongProcess
	var peer *pki.PeerError
	switch code := status.Code(err); {
	case errors.As(err, &wrong):
		return Observation{State: Refused, Error: wrong.reason}
	case errors.As(err, &peer):
		return Observation{State: Refused, Error: fmt.Sprintf("%s: %v", address, peer)}
	case code == codes.PermissionDenied || code == codes.Unauthenticated || code == codes.Unimplemented || code == codes.InvalidArgument:
		return Observation{State: Refused, Error: fmt.Sprintf("%s refuses the operator: %s", address, code)}
	default:
		return Observation{State: Unreachable, Error: fmt.Sprintf("the agent at %s does not answer", address)}
	}
}

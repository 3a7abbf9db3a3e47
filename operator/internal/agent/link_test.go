// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"weak"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"

	farpoolv1alpha1 "farpool.dev/farpool/api/gen/farpool/v1alpha1"
	"farpool.dev/farpool/operator/internal/pki"
)

// between puts a relay before a process, which passes on at most so many bytes at a time, and nothing as long as it is shut.
type between struct {
	address string
	shut    atomic.Bool
	bytes   atomic.Int64
	opened  atomic.Int64
}

func relay(t *testing.T, to string, most int) *between {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &between{address: listener.Addr().String()}
	var running sync.WaitGroup
	t.Cleanup(func() {
		_ = listener.Close()
		running.Wait()
	})
	pass := func(from, to net.Conn) {
		defer from.Close()
		defer to.Close()
		buffer := make([]byte, most)
		for {
			count, err := from.Read(buffer)
			if err != nil {
				return
			}
			b.bytes.Add(int64(count))
			if b.shut.Load() {
				continue
			}
			if _, err := to.Write(buffer[:count]); err != nil {
				return
			}
		}
	}
	running.Go(func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			b.opened.Add(1)
			far, err := net.Dial("tcp", to)
			if err != nil {
				_ = near.Close()
				continue
			}
			running.Go(func() { pass(near, far) })
			running.Go(func() { pass(far, near) })
		}
	})
	return b
}

// connect makes a link to an address, by itself.
func (f *fixture) connect(address string) (*link, error) {
	f.t.Helper()
	config := f.credential.ClientConfig(uid, pki.RoleNode, "")
	config.NextProtos = []string{http2.NextProtoTLS}
	ctx, cancel := context.WithTimeout(f.t.Context(), deadline)
	defer cancel()
	return connect(ctx, address, config, func(context.Context) func() { return func() {} })
}

// A link answers one question after the other, and says once why it has ended.
func TestALinkIsAskedUntilItEnds(t *testing.T) {
	f := newFixture(t)
	p := f.start("127.0.0.1:0", pki.RoleNode)
	l, err := f.connect(p.address)
	if err != nil {
		t.Fatal(err)
	}
	reasons := make(chan error, 2)
	go l.serve(func(why error) { reasons <- why })
	for epoch := uint64(1); epoch <= 3; epoch++ {
		p.facts.Store(facts(epoch))
		answer := &farpoolv1alpha1.Facts{}
		if err := l.ask(t.Context(), farpoolv1alpha1.Agent_Describe_FullMethodName, &farpoolv1alpha1.DescribeRequest{PoolUid: uid}, answer, callTimeout); err != nil || answer.GetEpoch() != epoch {
			t.Fatalf("%v: %v", answer, err)
		}
	}
	// It is asked now and then without anybody, until an answer is an error.
	asked := 0
	l.ping(time.Millisecond, func() error {
		if asked++; asked < 3 {
			return nil
		}
		return unavailable("ask", io.ErrNoProgress)
	})
	select {
	case why := <-reasons:
		if asked != 3 || !strings.Contains(why.Error(), io.ErrNoProgress.Error()) {
			t.Errorf("asked %d times: %v", asked, why)
		}
	case <-time.After(deadline):
		t.Fatal("it does not end")
	}
	l.close(io.EOF)
	l.ping(time.Nanosecond, func() error {
		t.Error("asked after its end")
		return nil
	})
	if l.probe.Stop() || len(reasons) != 0 {
		t.Error("it goes on after its end")
	}
}

// A peer's certificate is looked at in the handshake alone: thousands of links that each keep a parsed one would be a good part of the operator's memory.
func TestALinkKeepsNoCertificateOfItsPeer(t *testing.T) {
	f := newFixture(t)
	p := f.start("127.0.0.1:0", pki.RoleNode)
	config := f.credential.ClientConfig(uid, pki.RoleNode, "")
	config.NextProtos = []string{http2.NextProtoTLS}
	verify := config.VerifyConnection
	var shown []weak.Pointer[x509.Certificate]
	config.VerifyConnection = func(state tls.ConnectionState) error {
		for _, certificate := range state.PeerCertificates {
			shown = append(shown, weak.Make(certificate))
		}
		return verify(state)
	}
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	l, err := connect(ctx, p.address, config, func(context.Context) func() { return func() {} })
	if err != nil {
		t.Fatal(err)
	}
	defer l.close(io.EOF)
	if len(shown) == 0 {
		t.Fatal("the peer showed no certificate")
	}
	kept := func() bool {
		return slices.ContainsFunc(shown, func(certificate weak.Pointer[x509.Certificate]) bool { return certificate.Value() != nil })
	}
	for until := time.Now().Add(deadline); kept(); runtime.GC() {
		if time.Now().After(until) {
			t.Fatal("the peer's certificate is kept for as long as the link lasts")
		}
	}
	go l.serve(func(error) {})
	if err := l.ask(t.Context(), farpoolv1alpha1.Agent_Describe_FullMethodName, &farpoolv1alpha1.DescribeRequest{PoolUid: uid}, &farpoolv1alpha1.Facts{}, callTimeout); err != nil {
		t.Error(err)
	}
}

// What keeps a link from being made is told: a certificate of another is no silence.
func TestWhyThereIsNoLink(t *testing.T) {
	f := newFixture(t)
	listen := func(serve func(net.Conn)) string {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		var running sync.WaitGroup
		running.Go(func() {
			for {
				connection, err := listener.Accept()
				if err != nil {
					return
				}
				serve(connection)
				_ = connection.Close()
			}
		})
		t.Cleanup(func() {
			_ = listener.Close()
			running.Wait()
		})
		return listener.Addr().String()
	}
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = gone.Close()
	config := f.shows(pki.RoleNode, "cache")
	for name, c := range map[string]struct{ address, want string }{
		"nobody":                   {gone.Addr().String(), "connect: "},
		"one that hangs up":        {listen(func(net.Conn) {}), "shake hands: "},
		"one that knows no HTTP/2": {listen(func(connection net.Conn) { _ = tls.Server(connection, config).Handshake() }), "not HTTP/2"},
	} {
		if l, err := f.connect(c.address); l != nil || status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	var peer *pki.PeerError
	if l, err := f.connect(f.start("127.0.0.1:0", pki.RoleClient).address); l != nil || !errors.As(err, &peer) {
		t.Errorf("another role's certificate: %v", err)
	}
}

// What comes in pieces, of records, frames and messages, is put together again.
func TestFactsArriveByteByByte(t *testing.T) {
	f := newFixture(t)
	p := f.start("127.0.0.1:0", pki.RoleNode)
	b := relay(t, p.address, 1)
	t.Cleanup(f.streams.Close) // before the relay
	f.streams.Sync(pool, uid, f.credential, []Target{target(b.address)})
	f.await("the first facts", connected)
	for epoch := uint64(1); epoch <= 20; epoch++ {
		p.facts.Store(facts(epoch))
		p.poke <- struct{}{}
		f.await("a change", func(o Observation) bool { return o.Facts.GetEpoch() == epoch })
	}
	if b.opened.Load() != 1 {
		t.Errorf("%d connections", b.opened.Load())
	}
}

// mapOf has so many bytes, about.
func mapOf(size int) *farpoolv1alpha1.ShardMap {
	held := &farpoolv1alpha1.ShardMap{PoolUid: uid, Epoch: 3}
	for range size / 1024 {
		held.Nodes = append(held.Nodes, &farpoolv1alpha1.MemoryNodeEntry{Name: "cache-memory-0", Endpoint: strings.Repeat("x", 1000)})
	}
	return held
}

// More than HTTP/2 lets a peer send unasked, in one message and in many.
func TestLargeFactsArriveAndMoreOfThem(t *testing.T) {
	f := newFixture(t)
	p := f.start("127.0.0.1:0", pki.RoleNode)
	large := func(epoch uint64) *farpoolv1alpha1.Facts {
		now := facts(epoch)
		now.MemoryNode.Map = mapOf(1 << 20)
		return now
	}
	p.facts.Store(large(1))
	f.streams.Sync(pool, uid, f.credential, []Target{target(p.address)})
	f.await("the first facts", connected)
	for epoch := uint64(2); epoch < 8; epoch++ {
		p.facts.Store(large(epoch))
		p.poke <- struct{}{}
		o := f.await("a change", func(o Observation) bool { return o.Facts.GetEpoch() == epoch })
		if len(o.Facts.GetMemoryNode().GetMap().GetNodes()) != 1024 {
			t.Fatalf("%d nodes", len(o.Facts.GetMemoryNode().GetMap().GetNodes()))
		}
	}
	if f.breaks.count.Load() != 0 {
		t.Errorf("%d links broke", f.breaks.count.Load())
	}
}

// A node that vanishes says nothing, and its connections do not end by themselves.
func TestAPeerThatFallsSilentIsNoticed(t *testing.T) {
	f := newFixture(t)
	p := f.start("127.0.0.1:0", pki.RoleNode)
	b := relay(t, p.address, 1<<10)
	t.Cleanup(f.streams.Close) // before the relay
	f.streams.Sync(pool, uid, f.credential, []Target{target(b.address)})
	f.await("the first facts", connected)
	stream := f.streams.streamTo(pool, "pod")
	_, link := stream.hearings()
	b.shut.Store(true)
	// What it is asked every so often, at once.
	link.ping(time.Millisecond, func() error {
		return link.ask(t.Context(), farpoolv1alpha1.Agent_Describe_FullMethodName, &farpoolv1alpha1.DescribeRequest{}, &farpoolv1alpha1.Facts{}, 50*time.Millisecond)
	})
	f.await("silence", unreachable)
	b.shut.Store(false)
	f.await("the peer's return", connected)
}

// What an agent refuses is told as it says it.
func TestALinkTellsWhatAPeerRefuses(t *testing.T) {
	f := newFixture(t)
	p := f.start("127.0.0.1:0", pki.RoleNode)
	f.streams.Sync(pool, uid, f.credential, []Target{target(p.address)})
	f.await("the first facts", connected)
	_, link := f.streams.streamTo(pool, "pod").hearings()
	err := link.ask(t.Context(), "/farpool.v1alpha1.Agent/Nothing", &farpoolv1alpha1.DescribeRequest{}, &farpoolv1alpha1.Facts{}, deadline)
	if status.Code(err) != codes.Unimplemented || !strings.Contains(status.Convert(err).Message(), "unknown method Nothing") {
		t.Errorf("a method that there is not: %v", err)
	}
	hanging := make(chan struct{})
	defer close(hanging)
	wait := func() { <-hanging }
	p.answers.Store(&wait)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := link.ask(ctx, farpoolv1alpha1.Agent_Describe_FullMethodName, &farpoolv1alpha1.DescribeRequest{}, &farpoolv1alpha1.Facts{}, deadline); status.Code(err) != codes.Canceled {
		t.Errorf("a call that was given up: %v", err)
	}
	if err := link.ask(t.Context(), farpoolv1alpha1.Agent_Describe_FullMethodName, &farpoolv1alpha1.DescribeRequest{}, &farpoolv1alpha1.Facts{}, time.Millisecond); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("a call that took too long: %v", err)
	}
	link.close(unavailable("close", io.EOF))
	if err := link.ask(t.Context(), farpoolv1alpha1.Agent_Describe_FullMethodName, &farpoolv1alpha1.DescribeRequest{}, &farpoolv1alpha1.Facts{}, deadline); status.Code(err) != codes.Unavailable {
		t.Errorf("a call over a link that has ended: %v", err)
	}
}

// What a process costs is mostly what waits for it: the operator has a link to thousands.
func TestASilentLinkIsOneGoroutine(t *testing.T) {
	const processes = 20
	f := newFixture(t)
	var targets []Target
	for i := range processes {
		p := f.start("127.0.0.1:0", pki.RoleNode)
		one := target(p.address)
		one.Pod = types.UID(rune('a' + i))
		targets = append(targets, one)
	}
	f.streams.Sync(pool, uid, f.credential, targets)
	// Settings and their acknowledgements may still be on their way.
	late := time.After(deadline)
	for {
		var dump bytes.Buffer
		if err := pprof.Lookup("goroutine").WriteTo(&dump, 2); err != nil {
			t.Fatal(err)
		}
		const created = "created by farpool.dev/farpool/operator/internal/agent."
		ours, waiting := strings.Count(dump.String(), created)-strings.Count(dump.String(), created+"(*fixture)"), strings.Count(dump.String(), "agent.(*socket).wait(")
		if ours == processes && waiting == processes {
			return
		}
		select {
		case <-f.news:
		case <-time.After(time.Millisecond):
		case <-late:
			t.Fatalf("%d goroutines for %d processes, of which %d wait\n%s", ours, processes, waiting, dump.String())
		}
	}
}

// A process that hangs in its handshake keeps no other waiting for long.
func TestHandshakesThatHangHoldNobodyUp(t *testing.T) {
	f := newFixture(t)
	for range handshakes {
		f.streams.places <- struct{}{}
	}
	p := f.start("127.0.0.1:0", pki.RoleNode)
	f.streams.Sync(pool, uid, f.credential, []Target{target(p.address)})
	f.await("the first facts", connected)
}

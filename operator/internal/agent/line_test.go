// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"crypto/tls"
	"runtime"
	"testing"
	"time"
	"weak"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	farpoolv1alpha1 "farpool.dev/farpool/api/gen/farpool/v1alpha1"
	"farpool.dev/farpool/operator/internal/pki"
)

// taken is a connection for one more call. It is dialed only by a call.
func taken(t *testing.T, l *line) *grpc.ClientConn {
	t.Helper()
	connection, err := l.take(t.Context(), "127.0.0.1:1", &tls.Config{MinVersion: tls.VersionTLS13})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = connection.Close() })
	return connection
}

func closed(connection *grpc.ClientConn) bool { return connection.GetState() == connectivity.Shutdown }

// awaitClosed waits until a connection is closed.
func awaitClosed(t *testing.T, connection *grpc.ClientConn) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	for state := connection.GetState(); state != connectivity.Shutdown; state = connection.GetState() {
		if !connection.WaitForStateChange(ctx, state) {
			t.Fatalf("it stays open: %s", state)
		}
	}
}

// Calls that are under way at once share a connection, and none of them takes it from the others.
func TestALineStaysOpenWhileACallUsesIt(t *testing.T) {
	l := &line{lingers: time.Hour}
	connection := taken(t, l)
	if again := taken(t, l); again != connection {
		t.Fatal("two calls have two connections")
	}
	l.give(connection, true)
	l.expire(connection)
	if closed(connection) {
		t.Fatal("it is closed while a call uses it")
	}
	l.give(connection, false)
	if closed(connection) {
		t.Error("it is closed as soon as nobody uses it")
	}
	if again := taken(t, l); again != connection {
		t.Error("the next call has another connection")
	}
	l.give(connection, false)
	l.expire(connection)
	if !closed(connection) || taken(t, l) == connection {
		t.Error("it is used after it was closed")
	}
}

// The end of a call that had a connection before this one changes nothing.
func TestALineForgetsConnectionsThatAreClosed(t *testing.T) {
	l := &line{lingers: time.Hour}
	first := taken(t, l)
	l.hangUp(first)
	second := taken(t, l)
	if !closed(first) || second == first {
		t.Fatal("a connection that was hung up is used")
	}
	l.give(first, true)
	l.expire(second)
	if closed(second) {
		t.Error("the end of an earlier call closes it")
	}
	l.give(second, false)
	l.expire(first)
	l.hangUp(first)
	if closed(second) || taken(t, l) != second {
		t.Error("the end of an earlier connection closes it")
	}
	l.give(second, true)
	if !closed(second) || taken(t, l) == second {
		t.Error("one that is broken is used")
	}
}

func TestALineEndsWithItsStreamOrWhenNobodyUsesIt(t *testing.T) {
	l := &line{lingers: time.Hour}
	life, end := context.WithCancel(t.Context())
	connection, err := l.take(life, "127.0.0.1:1", &tls.Config{MinVersion: tls.VersionTLS13})
	if err != nil {
		t.Fatal(err)
	}
	end()
	awaitClosed(t, connection)

	l = &line{lingers: time.Millisecond}
	connection = taken(t, l)
	l.give(connection, false)
	awaitClosed(t, connection)
}

// Calls in a row share a connection. A call that failed closes it, so that the next one does not fail, too.
func TestCallsInARowOverALine(t *testing.T) {
	f := newFixture(t)
	p := f.start("127.0.0.1:0", pki.RoleNode)
	b := relay(t, p.address, 1<<10)
	l := &line{lingers: time.Hour}
	life, end := context.WithCancel(context.Background())
	t.Cleanup(end) // before the relay
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	describe := func(address string) error {
		return l.call(life, address, f.credential.ClientConfig(uid, pki.RoleNode, ""), func(client farpoolv1alpha1.AgentClient) error {
			_, err := client.Describe(ctx, &farpoolv1alpha1.DescribeRequest{PoolUid: uid})
			return err
		})
	}
	for range 3 {
		if err := describe(b.address); err != nil {
			t.Fatal(err)
		}
	}
	if b.opened.Load() != 1 {
		t.Errorf("%d connections for calls in a row", b.opened.Load())
	}
	p.server.Stop()
	if err := describe(b.address); status.Code(err) != codes.Unavailable {
		t.Errorf("without a process: %v", err)
	}
	f.start(p.address, pki.RoleNode)
	if err := describe(b.address); err != nil {
		t.Errorf("with a process again: %v", err)
	}
}

// A stream lives for months, and calls are made over many connections meanwhile: none of them is kept for longer than it is used.
func TestALineKeepsNoConnectionThatIsClosed(t *testing.T) {
	life, end := context.WithCancel(t.Context())
	defer end()
	for name, outcome := range map[string]error{"used": nil, "broken": status.Error(codes.Unavailable, "gone")} {
		l := &line{lingers: time.Hour}
		var connection weak.Pointer[grpc.ClientConn]
		err := l.call(life, "127.0.0.1:1", &tls.Config{MinVersion: tls.VersionTLS13}, func(farpoolv1alpha1.AgentClient) error {
			connection = weak.Make(l.connection)
			return outcome
		})
		if status.Code(err) != status.Code(outcome) {
			t.Fatal(err)
		}
		l.mutex.Lock()
		if l.lingering != nil {
			l.lingering.Reset(0)
		}
		l.mutex.Unlock()
		for limit := time.Now().Add(deadline); connection.Value() != nil; runtime.GC() {
			if time.Now().After(limit) {
				t.Fatalf("%s: a connection that nobody uses is kept", name)
			}
		}
	}
}

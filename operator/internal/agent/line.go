// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"crypto/tls"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	farpoolv1alpha1 "farpool.dev/farpool/api/gen/farpool/v1alpha1"
)

// A line is a connection of gRPC's own to an agent, for calls that may be large or take long. It exists while a call needs it and a little longer, because one
// call often follows another.
type line struct {
	mutex      sync.Mutex
	connection *grpc.ClientConn // nil: there is none
	users      int
	lingering  *time.Timer
	// forget keeps the end of the stream from closing the connection. Until it is called, the stream holds the connection.
	forget func() bool
	// lingers is how long it stays open when nobody uses it.
	lingers time.Duration
}

const lingers = 2 * time.Second

// call makes a call. life is that of the stream that the line belongs to.
func (l *line) call(life context.Context, address string, config *tls.Config, make func(farpoolv1alpha1.AgentClient) error) error {
	connection, err := l.take(life, address, config)
	if err != nil {
		return err
	}
	err = make(farpoolv1alpha1.NewAgentClient(connection))
	l.give(connection, status.Code(err) == codes.Unavailable)
	return err
}

func (l *line) take(life context.Context, address string, config *tls.Config) (*grpc.ClientConn, error) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.connection == nil {
		connection, err := grpc.NewClient("passthrough:///"+address,
			grpc.WithTransportCredentials(credentials.NewTLS(config)),
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessageBytes)),
			grpc.WithNoProxy(),
			grpc.WithUserAgent("farpool-operator"))
		if err != nil {
			return nil, err
		}
		l.connection, l.users = connection, 0
		l.forget = context.AfterFunc(life, func() { l.hangUp(connection) })
	}
	l.users++
	if l.lingering != nil {
		l.lingering.Stop()
		l.lingering = nil
	}
	return l.connection, nil
}

// give ends one use of a connection. One that is broken is closed at once, so that the next call dials instead of hearing how this one failed.
func (l *line) give(connection *grpc.ClientConn, broken bool) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.connection != connection {
		return
	}
	l.users--
	switch {
	case l.users > 0:
	case broken:
		l.close()
	default:
		l.lingering = time.AfterFunc(l.lingers, func() { l.expire(connection) })
	}
}

// expire closes a connection that nobody has used for a while.
func (l *line) expire(connection *grpc.ClientConn) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.connection == connection && l.users == 0 {
		l.lingering = nil
		l.close()
	}
}

// close closes the connection. The caller holds the mutex.
func (l *line) close() {
	l.forget()
	_ = l.connection.Close()
	l.connection, l.forget = nil, nil
}

// hangUp closes a connection whatever calls there are.
func (l *line) hangUp(connection *grpc.ClientConn) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.connection == connection {
		l.connection, l.forget = nil, nil
	}
	_ = connection.Close()
}

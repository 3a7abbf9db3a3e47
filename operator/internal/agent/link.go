// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"farpool.dev/farpool/operator/internal/pki"
)

// A link is a connection to an agent that speaks as much of gRPC over HTTP/2 as a watch and short questions need. An operator has one to every process of
// every pool, and nearly all of them are silent nearly all the time: gRPC's own connection would have seven goroutines for each, and 80 KiB. A link that is
// silent has one goroutine, which waits until there is something to read, and no buffers.
type link struct {
	socket *socket
	tls    io.ReadWriter
	why    atomic.Pointer[error] // it has ended

	// mutex guards what is below, and writing.
	mutex sync.Mutex
	last  uint32 // stream that was begun last
	calls map[uint32]*linkCall
	// probe asks now and then whether the peer is still there.
	probe *time.Timer

	// input is what has been read and is no whole frame yet.
	input bytes.Buffer
	// unallowed bytes of data came in, for which the peer was not allowed as many more yet.
	unallowed uint32
}

// linkCall is a call over a link.
type linkCall struct {
	id uint32
	// message takes each message that comes in. An error ends the link.
	message func([]byte) error
	// done has the call's error, or nil, once it is over.
	done chan error
	// whole: the link ends with this call.
	whole bool
	// partial is the beginning of a message.
	partial   []byte
	opened    bool
	unallowed uint32
}

const (
	frameHeaderBytes   = 9
	frameBytes         = 16 << 10 // HTTP/2's own limit, as nothing else is asked for
	messageHeaderBytes = 5
	windowStep         = 16 << 10
	// writeTimeout bounds a write: what is written is short, so that only a peer that reads nothing lets one wait.
	writeTimeout = 5 * time.Second
)

// buffers are for reading, while something is being read.
var buffers = sync.Pool{New: func() any { return new([4 << 10]byte) }}

// connect dials an address, shakes hands once it is admitted, and begins to speak HTTP/2.
func connect(ctx context.Context, address string, config *tls.Config, admit func(context.Context) (leave func())) (*link, error) {
	var dialer net.Dialer
	connection, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, unavailable("connect", err)
	}
	l := &link{calls: map[uint32]*linkCall{}}
	if l.socket, err = newSocket(connection); err != nil {
		return nil, errors.Join(err, connection.Close())
	}
	secure := tls.Client(l.socket, config)
	l.tls = secure
	defer admit(ctx)()
	if err := secure.HandshakeContext(ctx); err != nil {
		_ = connection.Close()
		if peer := (*pki.PeerError)(nil); errors.As(err, &peer) {
			return nil, peer
		}
		return nil, unavailable("shake hands", err)
	}
	state := secure.ConnectionState()
	if protocol := state.NegotiatedProtocol; protocol != http2.NextProtoTLS {
		_ = connection.Close()
		return nil, unavailable("shake hands", fmt.Errorf("the peer speaks %q, not HTTP/2", protocol))
	}
	// The peer's certificates were verified in the handshake, and nobody asks for them again. crypto/tls keeps them, parsed, in this very list for as long as
	// the connection lasts: 4 KiB for each link.
	clear(state.PeerCertificates)
	l.socket.patient = false
	var preface bytes.Buffer
	preface.WriteString(http2.ClientPreface)
	// Without a table for headers, each block of them is read by itself.
	if err := http2.NewFramer(&preface, nil).WriteSettings(http2.Setting{ID: http2.SettingHeaderTableSize}, http2.Setting{ID: http2.SettingEnablePush},
		http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: frameBytes / 2}); err != nil {
		return nil, errors.Join(err, connection.Close())
	}
	if err := l.write(preface.Bytes()); err != nil {
		_ = connection.Close()
		return nil, err
	}
	return l, nil
}

func unavailable(what string, err error) error {
	return status.Errorf(codes.Unavailable, "%s: %v", what, err)
}

// begin starts a call. whole: the link ends with it.
func (l *link) begin(method string, request proto.Message, within time.Duration, whole bool, message func([]byte) error) (*linkCall, error) {
	body, err := proto.Marshal(request)
	if err != nil {
		return nil, fmt.Errorf("write %T: %w", request, err)
	}
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	encoder.SetMaxDynamicTableSize(0)
	headers := []hpack.HeaderField{
		{Name: ":method", Value: "POST"},
		{Name: ":scheme", Value: "https"},
		{Name: ":path", Value: method},
		{Name: ":authority", Value: l.socket.RemoteAddr().String()},
		{Name: "content-type", Value: "application/grpc"},
		{Name: "user-agent", Value: "farpool-operator"},
		{Name: "te", Value: "trailers"},
	}
	if within > 0 {
		headers = append(headers, hpack.HeaderField{Name: "grpc-timeout", Value: strconv.FormatInt(within.Milliseconds(), 10) + "m"})
	}
	for _, field := range headers {
		if err := encoder.WriteField(field); err != nil {
			return nil, fmt.Errorf("write headers: %w", err)
		}
	}
	data := make([]byte, messageHeaderBytes, messageHeaderBytes+len(body))
	binary.BigEndian.PutUint32(data[1:], uint32(len(body)))
	data = append(data, body...)

	l.mutex.Lock()
	defer l.mutex.Unlock()
	if err := l.ended(); err != nil {
		return nil, err
	}
	id := l.last + 2
	if l.last == 0 {
		id = 1
	}
	if id > math.MaxInt32 {
		return nil, unavailable("begin a call", errors.New("the connection has had as many as it can"))
	}
	l.last = id
	call := &linkCall{id: id, message: message, whole: whole, done: make(chan error, 1)}
	l.calls[id] = call
	var frames bytes.Buffer
	framer := http2.NewFramer(&frames, nil)
	if err := errors.Join(framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block.Bytes(), EndHeaders: true}),
		framer.WriteData(id, true, data)); err != nil {
		return nil, fmt.Errorf("write a call: %w", err)
	}
	return call, l.write(frames.Bytes())
}

// ask makes a call that has one answer.
func (l *link) ask(ctx context.Context, method string, request, answer proto.Message, within time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	answered := false
	call, err := l.begin(method, request, within, false, func(message []byte) error {
		answered = true
		return proto.Unmarshal(message, answer)
	})
	if err != nil {
		return err
	}
	select {
	case err := <-call.done:
		over := ctx.Err()
		if until, _ := ctx.Deadline(); !time.Now().Before(until) {
			over = context.DeadlineExceeded // whether the context's timer has fired yet or not
		}
		switch {
		case err == nil && !answered:
			return status.Error(codes.Internal, "there was no answer")
		case err != nil && over != nil:
			// The peer ends a call whose time is over, too, and may be the first to.
			return status.FromContextError(over).Err()
		}
		return err
	case <-ctx.Done():
		l.abandon(call)
		return status.FromContextError(ctx.Err()).Err()
	}
}

// abandon ends a call whose answer nobody waits for.
func (l *link) abandon(call *linkCall) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.calls[call.id] != call {
		return
	}
	l.finish(call, status.Error(codes.Canceled, "abandoned"))
	var frames bytes.Buffer
	if err := http2.NewFramer(&frames, nil).WriteRSTStream(call.id, http2.ErrCodeCancel); err == nil {
		_ = l.write(frames.Bytes()) // if it fails, reading fails, too
	}
}

// close ends a link and all of its calls. serve then returns.
func (l *link) close(why error) {
	l.why.CompareAndSwap(nil, &why)
	_ = l.socket.Close() // so that a write gives the mutex back
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.end(why)
}

// end is close for callers that hold the mutex.
func (l *link) end(why error) {
	l.why.CompareAndSwap(nil, &why)
	_ = l.socket.Close()
	if l.probe != nil {
		l.probe.Stop()
	}
	for _, call := range l.calls {
		l.finish(call, l.ended())
	}
}

// ended is why the link has ended; nil: it has not.
func (l *link) ended() error {
	if why := l.why.Load(); why != nil {
		return *why
	}
	return nil
}

// finish ends a call. The caller holds the mutex.
func (l *link) finish(call *linkCall, err error) {
	delete(l.calls, call.id)
	call.done <- err
	if call.whole && l.ended() == nil {
		l.end(cmp.Or(err, unavailable("read", io.EOF)))
	}
}

// write sends frames. The caller holds the mutex.
func (l *link) write(frames []byte) error {
	err := l.socket.SetWriteDeadline(time.Now().Add(writeTimeout))
	if err == nil {
		_, err = l.tls.Write(frames)
	}
	if err != nil {
		err = unavailable("write", err)
		l.end(err)
	}
	return err
}

// serve reads until the link ends. What it waits in is as shallow as can be: its stack is there for as long as the link is.
// then is called with the reason, on a goroutine of its own.
func (l *link) serve(then func(why error)) {
	done := make(chan error)
	for {
		// What comes is read on another stack, which goes afterwards. Some may have come with the handshake.
		go func() { done <- l.read() }()
		err := <-done
		if err == nil {
			if err = l.socket.wait(); err != nil {
				err = unavailable("read", err)
			}
		}
		if err != nil {
			go l.leave(err, then)
			return
		}
	}
}

// leave ends a link that reads no more.
func (l *link) leave(err error, then func(error)) {
	l.close(err)
	then(l.ended())
}

// ping asks the peer something now and then: a connection can be silent because the peer, or its node, has stopped. No goroutine waits until it is time:
// with thousands of processes their stacks would be a good part of the operator's memory.
func (l *link) ping(interval time.Duration, ask func() error) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.ended() != nil {
		return
	}
	l.probe = time.AfterFunc(interval, func() {
		if err := ask(); err != nil {
			l.close(err)
			return
		}
		l.ping(interval, ask)
	})
}

// read takes what there is to read, and does not wait for more.
func (l *link) read() error {
	buffer := buffers.Get().(*[4 << 10]byte)
	defer buffers.Put(buffer)
	for {
		count, err := l.tls.Read(buffer[:])
		if err := l.takeIn(buffer[:count]); err != nil {
			return err
		}
		if errors.Is(err, errNothingYet) {
			if l.input.Len() == 0 {
				l.input = bytes.Buffer{}
			}
			return nil
		}
		if err != nil {
			return unavailable("read", err)
		}
	}
}

// takeIn reads the frames that are whole with what has come in, and keeps the beginning of the next.
func (l *link) takeIn(more []byte) error {
	l.input.Write(more)
	for frameIn(l.input.Bytes()) {
		if err := l.take(); err != nil {
			return err
		}
	}
	if l.input.Len() >= frameHeaderBytes+frameBytes {
		return unavailable("read", errors.New("the peer sends a frame that is too long"))
	}
	return nil
}

// frameIn says whether data begins with a whole frame.
func frameIn(data []byte) bool {
	return len(data) >= frameHeaderBytes && len(data) >= frameHeaderBytes+(int(data[0])<<16|int(data[1])<<8|int(data[2]))
}

// take reads one frame.
func (l *link) take() error {
	framer := http2.NewFramer(nil, &l.input)
	framer.SetMaxReadFrameSize(frameBytes)
	frame, err := framer.ReadFrame()
	if err != nil {
		return unavailable("read", err)
	}
	l.mutex.Lock()
	call := l.calls[frame.Header().StreamID]
	l.mutex.Unlock()
	switch frame := frame.(type) {
	case *http2.SettingsFrame:
		if !frame.IsAck() {
			return l.answer(func(framer *http2.Framer) error { return framer.WriteSettingsAck() })
		}
	case *http2.PingFrame:
		if !frame.IsAck() {
			return l.answer(func(framer *http2.Framer) error { return framer.WritePing(true, frame.Data) })
		}
	case *http2.GoAwayFrame:
		return unavailable("read", fmt.Errorf("the peer closes the connection: %s", frame.ErrCode))
	case *http2.HeadersFrame:
		return l.headers(call, frame)
	case *http2.DataFrame:
		return l.data(call, frame)
	case *http2.RSTStreamFrame:
		l.over(call, unavailable("read", fmt.Errorf("the peer ends the call: %s", frame.ErrCode)))
	}
	return nil
}

// answer writes a frame.
func (l *link) answer(frame func(*http2.Framer) error) error {
	var frames bytes.Buffer
	if err := frame(http2.NewFramer(&frames, nil)); err != nil {
		return fmt.Errorf("write a frame: %w", err)
	}
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.write(frames.Bytes())
}

// over ends a call, if it is not over yet.
func (l *link) over(call *linkCall, err error) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if call != nil && l.calls[call.id] == call {
		l.finish(call, err)
	}
}

// headers reads the headers that begin an answer, or the trailers that end it.
func (l *link) headers(call *linkCall, frame *http2.HeadersFrame) error {
	if !frame.HeadersEnded() {
		return unavailable("read", errors.New("the peer sends more headers than were allowed"))
	}
	fields, err := hpack.NewDecoder(0, nil).DecodeFull(frame.HeaderBlockFragment())
	if err != nil {
		return unavailable("read headers", err)
	}
	if call == nil {
		return nil // nobody waits for it any more
	}
	values := map[string]string{}
	for _, field := range fields {
		values[field.Name] = field.Value
	}
	if !call.opened {
		call.opened = true
		if values[":status"] != "200" {
			l.over(call, status.Errorf(codes.Unavailable, "the peer answers with HTTP status %s", values[":status"]))
			return nil
		}
	}
	if frame.StreamEnded() {
		l.over(call, outcome(values))
	}
	return nil
}

// outcome is the error that trailers tell, or nil.
func outcome(trailers map[string]string) error {
	code, err := strconv.ParseUint(trailers["grpc-status"], 10, 32)
	if err != nil {
		return status.Error(codes.Unknown, "the peer ended the call without a status")
	}
	message := trailers["grpc-message"]
	if decoded, err := url.PathUnescape(message); err == nil {
		message = decoded
	}
	return status.Error(codes.Code(code), message)
}

// data reads a part of messages.
func (l *link) data(call *linkCall, frame *http2.DataFrame) error {
	if err := l.allowMore(call, frame); err != nil {
		return err
	}
	if call == nil {
		return nil
	}
	rest := frame.Data()
	if len(call.partial) > 0 {
		rest = append(call.partial, rest...)
	}
	for len(rest) >= messageHeaderBytes {
		length := binary.BigEndian.Uint32(rest[1:])
		if rest[0] != 0 || length > maxMessageBytes {
			return unavailable("read", fmt.Errorf("the peer sends a message that is compressed or of %d bytes", length))
		}
		if uint32(len(rest)-messageHeaderBytes) < length {
			break
		}
		if err := l.deliver(call, rest[messageHeaderBytes:messageHeaderBytes+length]); err != nil {
			return err
		}
		rest = rest[messageHeaderBytes+length:]
	}
	call.partial = bytes.Clone(rest)
	if len(rest) == 0 {
		call.partial = nil
	}
	if frame.StreamEnded() {
		l.over(call, status.Error(codes.Unknown, "the peer ended the call without a status"))
	}
	return nil
}

// deliver hands a message over, unless nobody waits for it any more.
func (l *link) deliver(call *linkCall, message []byte) error {
	l.mutex.Lock()
	waited := l.calls[call.id] == call
	l.mutex.Unlock()
	if !waited {
		return nil
	}
	return call.message(message)
}

// allowMore lets the peer send as much again as has come in, once that is worth a message.
func (l *link) allowMore(call *linkCall, frame *http2.DataFrame) error {
	ofLink, ofCall := step(&l.unallowed, frame.Length), uint32(0)
	if call != nil && !frame.StreamEnded() {
		ofCall = step(&call.unallowed, frame.Length)
	}
	if ofLink == 0 && ofCall == 0 {
		return nil
	}
	return l.answer(func(framer *http2.Framer) error {
		var errs [2]error
		if ofLink > 0 {
			errs[0] = framer.WriteWindowUpdate(0, ofLink)
		}
		if ofCall > 0 {
			errs[1] = framer.WriteWindowUpdate(call.id, ofCall)
		}
		return errors.Join(errs[:]...)
	})
}

// step adds to a count, and takes all of it once it is large.
func step(count *uint32, more uint32) (taken uint32) {
	if *count += more; *count >= windowStep {
		taken, *count = *count, 0
	}
	return taken
}

// errNothingYet says that there is nothing to read now. TLS goes on after it, as it is temporary.
var errNothingYet net.Error = nothingYet{}

type nothingYet struct{}

func (nothingYet) Error() string   { return "nothing to read yet" }
func (nothingYet) Timeout() bool   { return true }
func (nothingYet) Temporary() bool { return true }

// socket is a connection that can be waited for without a buffer, on the smallest stack that there is.
type socket struct {
	net.Conn
	raw syscall.RawConn
	// patient: Read waits for something to read. After the handshake only wait does.
	patient bool

	// readable is what raw calls in wait; kept, as a closure would be made for each wait.
	readable func(uintptr) bool
	peeked   byte
}

func newSocket(connection net.Conn) (*socket, error) {
	tcp, ok := connection.(syscall.Conn)
	if !ok {
		return nil, fmt.Errorf("%T has no file descriptor", connection)
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("take the file descriptor of a connection: %w", err)
	}
	s := &socket{Conn: connection, raw: raw, patient: true}
	s.readable = func(descriptor uintptr) bool {
		// A call of package syscall would need a larger stack.
		_, _, failure := syscall.RawSyscall6(syscall.SYS_RECVFROM, descriptor, uintptr(unsafe.Pointer(&s.peeked)), 1, syscall.MSG_PEEK|syscall.MSG_DONTWAIT, 0, 0)
		return failure != syscall.EAGAIN
	}
	return s, nil
}

// wait returns once there is something to read, be it the end or an error.
func (s *socket) wait() error { return s.raw.Read(s.readable) }

// Read what there is, and wait only if the socket is patient.
func (s *socket) Read(buffer []byte) (int, error) {
	if s.patient {
		return s.Conn.Read(buffer)
	}
	var count int
	var err error
	if failure := s.raw.Read(func(descriptor uintptr) bool {
		count, err = receive(descriptor, buffer)
		return true
	}); failure != nil {
		return 0, failure
	}
	return count, err
}

// receive reads what a descriptor has now.
func receive(descriptor uintptr, buffer []byte) (int, error) {
	for {
		count, err := syscall.Read(int(descriptor), buffer)
		switch {
		case errors.Is(err, syscall.EINTR):
		case errors.Is(err, syscall.EAGAIN):
			return 0, errNothingYet
		case err != nil:
			return 0, err
		case count == 0:
			return 0, io.EOF
		default:
			return count, nil
		}
	}
}

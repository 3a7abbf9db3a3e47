// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	farpoolv1alpha1 "farpool.dev/farpool/api/gen/farpool/v1alpha1"
)

// wire is a link whose peer is the test: it writes frames, and sees the link's frames.
type wire struct {
	t    *testing.T
	link *link
	sent bytes.Buffer
	// writes of the link since the last time that somebody looked.
	writes int
	// then is called once something has been written, with the mutex of the link.
	then func()
}

func (w *wire) Read([]byte) (int, error) { return 0, errNothingYet }
func (w *wire) Write(frames []byte) (int, error) {
	w.writes++
	if w.then != nil {
		w.then()
	}
	return w.sent.Write(frames)
}

func newWire(t *testing.T) *wire {
	t.Helper()
	near, far := net.Pipe()
	w := &wire{t: t}
	w.link = &link{socket: &socket{Conn: near}, tls: w, calls: map[uint32]*linkCall{}}
	t.Cleanup(func() {
		w.link.close(errors.New("the test is over"))
		_ = far.Close()
	})
	return w
}

// begin begins a call that keeps its messages.
func (w *wire) begin(whole bool) (call *linkCall, messages *[]string) {
	w.t.Helper()
	messages = &[]string{}
	call, err := w.link.begin(farpoolv1alpha1.Agent_Describe_FullMethodName, &farpoolv1alpha1.DescribeRequest{}, 0, whole, func(message []byte) error {
		*messages = append(*messages, string(message))
		return nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.written()
	return call, messages
}

// written are the frames that the link has written since the last time.
func (w *wire) written() []string {
	w.t.Helper()
	w.writes = 0
	var frames []string
	for framer := http2.NewFramer(nil, &w.sent); ; {
		frame, err := framer.ReadFrame()
		if errors.Is(err, io.EOF) {
			return frames
		}
		if err != nil {
			w.t.Fatal(err)
		}
		text := fmt.Sprintf("%s of %d", frame.Header().Type, frame.Header().StreamID)
		switch frame := frame.(type) {
		case *http2.WindowUpdateFrame:
			text += fmt.Sprintf(": %d", frame.Increment)
		case *http2.RSTStreamFrame:
			text += fmt.Sprintf(": %s", frame.ErrCode)
		case *http2.PingFrame:
			text += fmt.Sprintf(": %x, ack %t", frame.Data, frame.IsAck())
		case *http2.SettingsFrame:
			text += fmt.Sprintf(": ack %t", frame.IsAck())
		}
		frames = append(frames, text)
	}
}

// hears takes frames of the peer in, which it must understand.
func (w *wire) hears(frames []byte) {
	w.t.Helper()
	if err := w.link.takeIn(frames); err != nil {
		w.t.Errorf("the link ends: %v", err)
	}
}

// frame is what the peer writes.
func (w *wire) frame(write func(*http2.Framer) error) []byte {
	w.t.Helper()
	var frames bytes.Buffer
	if err := write(http2.NewFramer(&frames, nil)); err != nil {
		w.t.Fatal(err)
	}
	return frames.Bytes()
}

func (w *wire) data(stream uint32, end bool, body []byte) []byte {
	return w.frame(func(framer *http2.Framer) error { return framer.WriteData(stream, end, body) })
}

func (w *wire) headers(stream uint32, end bool, fields ...string) []byte {
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for i := 0; i < len(fields); i += 2 {
		if err := encoder.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]}); err != nil {
			w.t.Fatal(err)
		}
	}
	return w.frame(func(framer *http2.Framer) error {
		return framer.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: block.Bytes(), EndHeaders: true, EndStream: end})
	})
}

func (w *wire) reset(stream uint32) []byte {
	return w.frame(func(framer *http2.Framer) error { return framer.WriteRSTStream(stream, http2.ErrCodeRefusedStream) })
}

// over says whether a call is, and with which error.
func over(call *linkCall) (is bool, err error) {
	select {
	case err = <-call.done:
		return true, err
	default:
		return false, nil
	}
}

// Each message is delivered with its last byte, however the peer cuts its frames: a silent peer would leave the rest waiting for ever.
func TestAMessageIsDeliveredWithItsLastByte(t *testing.T) {
	for _, length := range []int{0, 1, 7} {
		body := []byte("message"[:length])
		for _, cut := range [][]byte{messageOf(body), append(messageOf(body), messageOf([]byte("next"))...)} {
			for at := range len(cut) + 1 {
				w := newWire(t)
				_, messages := w.begin(false)
				w.hears(w.data(1, false, cut[:at]))
				if whole := at >= len(messageOf(body)); whole != (len(*messages) > 0) {
					t.Errorf("a message of %d bytes is delivered after %d of %d: %v", length, at, len(messageOf(body)), !whole)
				}
				w.hears(w.data(1, false, cut[at:]))
				if (*messages)[0] != string(body) || len(cut) > len(messageOf(body)) && !slices.Equal((*messages)[1:], []string{"next"}) {
					t.Errorf("cut at %d: %q", at, *messages)
				}
			}
		}
	}
}

// A frame takes effect with its last byte, however the connection cuts it.
func TestAFrameTakesEffectWithItsLastByte(t *testing.T) {
	w := newWire(t)
	call, _ := w.begin(false)
	frame := w.data(1, true, nil)
	for i := range frame {
		if is, _ := over(call); is {
			t.Fatalf("the call is over after %d bytes of %d", i, len(frame))
		}
		w.hears(frame[i : i+1])
	}
	if is, err := over(call); !is || status.Code(err) != codes.Unknown {
		t.Errorf("the call is over: %t, %v", is, err)
	}
}

func TestFramesAndMessagesThatAreTooLong(t *testing.T) {
	header := func(compressed byte, length int) []byte {
		return []byte{compressed, byte(length >> 24), byte(length >> 16), byte(length >> 8), byte(length)}
	}
	w := newWire(t)
	w.begin(false)
	w.hears(w.data(1, false, header(0, maxMessageBytes)))
	longest := make([]byte, frameBytes)
	w.hears(w.data(1, false, longest))
	for name, input := range map[string][]byte{
		"a message that is too long":   w.data(1, false, header(0, maxMessageBytes+1)),
		"a message that is compressed": w.data(1, false, header(1, 10)),
		"a frame that is too long":     w.data(1, false, make([]byte, frameBytes+1))[:frameHeaderBytes+frameBytes],
		"headers of more than a frame": w.frame(func(framer *http2.Framer) error { return framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1}) }),
		"headers that are no headers": w.frame(func(framer *http2.Framer) error {
			return framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0xff}, EndHeaders: true})
		}),
		"a connection that it gives up": w.frame(func(framer *http2.Framer) error { return framer.WriteGoAway(1, http2.ErrCodeNo, nil) }),
		"a frame of an impossible form": {0, 0, 1, byte(http2.FramePing), 0, 0, 0, 0, 0, 0},
	} {
		w := newWire(t)
		w.begin(false)
		if err := w.link.takeIn(input); status.Code(err) != codes.Unavailable {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A call ends with what the peer says of it.
func TestHowACallEnds(t *testing.T) {
	w := newWire(t)
	opened := w.headers(1, false, ":status", "200")
	for name, c := range map[string]struct {
		frames []byte
		code   codes.Code
		text   string
	}{
		"with an answer":                  {slices.Concat(opened, w.data(1, false, messageOf(nil)), w.headers(1, true, "grpc-status", "0")), codes.OK, ""},
		"with a refusal":                  {slices.Concat(opened, w.headers(1, true, "grpc-status", "5", "grpc-message", "no lease of 100%25")), codes.NotFound, "no lease of 100%"},
		"with a refusal in one":           {w.headers(1, true, ":status", "200", "grpc-status", "5", "grpc-message", "no lease"), codes.NotFound, "no lease"},
		"with words in another form":      {slices.Concat(opened, w.headers(1, true, "grpc-status", "5", "grpc-message", "100%")), codes.NotFound, "100%"},
		"without a status":                {slices.Concat(opened, w.headers(1, true)), codes.Unknown, "without a status"},
		"with data":                       {slices.Concat(opened, w.data(1, true, messageOf(nil))), codes.Unknown, "without a status"},
		"as the peer gives it up":         {slices.Concat(opened, w.reset(1)), codes.Unavailable, "REFUSED_STREAM"},
		"as what answers speaks no gRPC":  {w.headers(1, false, ":status", "404"), codes.Unavailable, "HTTP status 404"},
		"as what answers knows no status": {w.headers(1, false, "server", "x"), codes.Unavailable, "HTTP status"},
	} {
		w := newWire(t)
		call, _ := w.begin(false)
		another, _ := w.begin(false)
		w.hears(c.frames)
		if is, err := over(call); !is || status.Code(err) != c.code || !strings.Contains(status.Convert(err).Message(), c.text) {
			t.Errorf("%s: over %t, with %v", name, is, err)
		}
		if is, err := over(another); is || w.link.ended() != nil {
			t.Errorf("%s: ends another call %t, with %v, or the link, with %v", name, is, err, w.link.ended())
		}
	}
}

// Headers alone end nothing, and a stream's status counts only where it begins.
func TestACallGoesOnUntilItsTrailers(t *testing.T) {
	w := newWire(t)
	call, messages := w.begin(false)
	w.hears(w.headers(1, false, ":status", "200"))
	w.hears(w.headers(1, false, "x", "y"))
	w.hears(w.data(1, false, messageOf([]byte("facts"))))
	if is, err := over(call); is || len(*messages) != 1 {
		t.Errorf("over %t with %v, after %q", is, err, *messages)
	}
}

// A question has one answer, or an error.
func TestHowAQuestionEnds(t *testing.T) {
	w := newWire(t)
	opened := w.headers(1, false, ":status", "200")
	for name, c := range map[string]struct {
		frames []byte
		code   codes.Code
	}{
		"with an answer":    {slices.Concat(opened, w.data(1, false, messageOf(nil)), w.headers(1, true, "grpc-status", "0")), codes.OK},
		"without an answer": {slices.Concat(opened, w.headers(1, true, "grpc-status", "0")), codes.Internal},
		"with a refusal":    {slices.Concat(opened, w.headers(1, true, "grpc-status", "7")), codes.PermissionDenied},
	} {
		w := newWire(t)
		heard := make(chan error, 1)
		w.then = func() { go func() { heard <- w.link.takeIn(c.frames) }() }
		err := w.link.ask(t.Context(), farpoolv1alpha1.Agent_Describe_FullMethodName, &farpoolv1alpha1.DescribeRequest{}, &farpoolv1alpha1.Facts{}, callTimeout)
		if status.Code(err) != c.code {
			t.Errorf("%s: %v", name, err)
		}
		w.then = nil
		if err := <-heard; err != nil {
			t.Errorf("%s: the link ends: %v", name, err)
		}
	}
}

// The peer also ends a call whose time is over, and may be the first to. The error is the same.
func TestAQuestionWhoseTimeIsOver(t *testing.T) {
	for range 64 { // which of both is seen first, is random
		w := newWire(t)
		ctx, cancel := context.WithCancel(t.Context())
		w.then = func() {
			w.then = nil
			cancel()
			w.link.finish(w.link.calls[1], status.Error(codes.Unavailable, "the peer has given it up"))
		}
		err := w.link.ask(ctx, farpoolv1alpha1.Agent_Describe_FullMethodName, &farpoolv1alpha1.DescribeRequest{}, &farpoolv1alpha1.Facts{}, callTimeout)
		if status.Code(err) != codes.Canceled {
			t.Fatal(err)
		}
	}
}

// tardy is a context whose time is over, and whose timer has not fired.
type tardy struct{ context.Context }

func (tardy) Deadline() (time.Time, bool) { return time.Now().Add(-time.Millisecond), true }

// A timer fires a little late, and the peer's may be the first: the question has taken too long all the same.
func TestAQuestionWhoseTimerIsLate(t *testing.T) {
	for _, c := range []struct {
		ctx  context.Context
		code codes.Code
	}{{tardy{t.Context()}, codes.DeadlineExceeded}, {t.Context(), codes.Unavailable}} {
		w := newWire(t)
		w.then = func() {
			w.then = nil
			w.link.finish(w.link.calls[1], status.Error(codes.Unavailable, "the peer has given it up"))
		}
		err := w.link.ask(c.ctx, farpoolv1alpha1.Agent_Describe_FullMethodName, &farpoolv1alpha1.DescribeRequest{}, &farpoolv1alpha1.Facts{}, callTimeout)
		if status.Code(err) != c.code {
			t.Errorf("%v, want %v", err, c.code)
		}
	}
}

// A watch is what its link is for.
func TestALinkEndsWithItsWatch(t *testing.T) {
	w := newWire(t)
	asked, _ := w.begin(false)
	watch, _ := w.begin(true)
	w.hears(slices.Concat(w.headers(3, false, ":status", "200"), w.headers(3, true, "grpc-status", "0")))
	if is, err := over(watch); !is || err != nil {
		t.Errorf("the watch is over: %t, %v", is, err)
	}
	if is, err := over(asked); !is || status.Code(err) != codes.Unavailable || status.Code(w.link.ended()) != codes.Unavailable {
		t.Errorf("the other call is over: %t, %v; the link has ended: %v", is, err, w.link.ended())
	}
	w = newWire(t)
	w.begin(true)
	w.hears(w.headers(1, true, ":status", "200", "grpc-status", "7"))
	if status.Code(w.link.ended()) != codes.PermissionDenied {
		t.Errorf("the link ended with %v", w.link.ended())
	}
}

// The peer learns that nobody waits for an answer. Its answer then ends no other call.
func TestACallIsAbandonedOnce(t *testing.T) {
	w := newWire(t)
	call, messages := w.begin(false)
	another, _ := w.begin(false)
	w.link.abandon(call)
	if is, err := over(call); !is || status.Code(err) != codes.Canceled {
		t.Errorf("over %t, with %v", is, err)
	}
	if frames := w.written(); !slices.Equal(frames, []string{"RST_STREAM of 1: CANCEL"}) {
		t.Errorf("the peer hears %q", frames)
	}
	w.link.abandon(call)
	if frames := w.written(); len(frames) != 0 {
		t.Errorf("the peer hears %q more", frames)
	}
	// Its answer may have been read before it was abandoned.
	if err := w.link.deliver(call, []byte("facts")); err != nil || len(*messages) != 0 {
		t.Errorf("%v: %q", err, *messages)
	}
	w.link.over(call, nil)
	w.hears(slices.Concat(w.headers(1, false, ":status", "200"), w.data(1, false, messageOf(nil)), w.reset(1), w.reset(1)))
	for _, call := range []*linkCall{call, another} {
		if is, err := over(call); is || w.link.ended() != nil {
			t.Errorf("over %t with %v, and the link with %v", is, err, w.link.ended())
		}
	}
}

// The peer may send as much again as has come in, over the link and for each call that goes on, whatever the calls are.
func TestThePeerMaySendMore(t *testing.T) {
	zeros := make([]byte, windowStep) // empty messages
	w := newWire(t)
	w.begin(false)
	w.begin(false)
	for _, c := range []struct {
		what  string
		frame []byte
		want  []string
	}{
		{"little", w.data(1, false, zeros[1:]), nil},
		{"what came to two calls", w.data(3, false, zeros[:1]), []string{"WINDOW_UPDATE of 0: 16384"}},
		{"what came to one call", w.data(1, false, zeros[:1]), []string{"WINDOW_UPDATE of 1: 16384"}},
		{"what came to a call that ends", w.data(3, true, zeros[1:]), []string{"WINDOW_UPDATE of 0: 16384"}},
		{"what came to a call that is over", w.data(3, false, zeros), []string{"WINDOW_UPDATE of 0: 16384"}},
	} {
		w.hears(c.frame)
		writes := w.writes
		if frames := w.written(); !slices.Equal(frames, c.want) || writes != len(c.want) {
			t.Errorf("for %s: %q in %d writes", c.what, frames, writes)
		}
	}
}

func TestWhatThePeerAsksIsAnswered(t *testing.T) {
	w := newWire(t)
	data := [8]byte{1, 2, 3, 4, 5, 6, 7, 8}
	for name, c := range map[string]struct {
		frame []byte
		want  []string
	}{
		"a ping":                         {w.frame(func(framer *http2.Framer) error { return framer.WritePing(false, data) }), []string{"PING of 0: 0102030405060708, ack true"}},
		"the answer to a ping":           {w.frame(func(framer *http2.Framer) error { return framer.WritePing(true, data) }), nil},
		"settings":                       {w.frame(func(framer *http2.Framer) error { return framer.WriteSettings() }), []string{"SETTINGS of 0: ack true"}},
		"the acknowledgment of settings": {w.frame(func(framer *http2.Framer) error { return framer.WriteSettingsAck() }), nil},
		"a call that is over":            {w.reset(7), nil},
		"headers of such a call":         {w.headers(7, true, "grpc-status", "0"), nil},
	} {
		w := newWire(t)
		call, _ := w.begin(false)
		w.hears(c.frame)
		if frames := w.written(); !slices.Equal(frames, c.want) {
			t.Errorf("%s: %q", name, frames)
		}
		if is, err := over(call); is {
			t.Errorf("%s: ends a call with %v", name, err)
		}
	}
}

// HTTP/2 has no more numbers for calls than these: a link that has used them up says so, and its stream makes another.
func TestALinkHasSoManyCalls(t *testing.T) {
	w := newWire(t)
	for _, want := range []uint32{1, 3, 5} {
		if call, _ := w.begin(false); call.id != want {
			t.Errorf("call %d instead of %d", call.id, want)
		}
	}
	w.link.last = math.MaxInt32 - 2
	if call, _ := w.begin(false); call.id != math.MaxInt32 {
		t.Errorf("the last call is %d", call.id)
	}
	if _, err := w.link.begin(farpoolv1alpha1.Agent_Describe_FullMethodName, &farpoolv1alpha1.DescribeRequest{}, 0, false, nil); status.Code(err) != codes.Unavailable || w.writes != 0 {
		t.Errorf("%v, and %d writes", err, w.writes)
	}
}

// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/proto"

	farpoolv1alpha1 "farpool.dev/farpool/api/gen/farpool/v1alpha1"
)

// answers are frames of an agent, to a call that is stream 1 and to one that is stream 3.
func answers(t interface{ Fatal(...any) }, write func(*http2.Framer, func(...hpack.HeaderField) []byte) error) []byte {
	var frames bytes.Buffer
	headers := func(fields ...hpack.HeaderField) []byte {
		var block bytes.Buffer
		encoder := hpack.NewEncoder(&block)
		for _, field := range fields {
			if err := encoder.WriteField(field); err != nil {
				t.Fatal(err)
			}
		}
		return block.Bytes()
	}
	if err := write(http2.NewFramer(&frames, nil), headers); err != nil {
		t.Fatal(err)
	}
	return frames.Bytes()
}

func messageOf(body []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(body))), body...)
}

// Whatever an agent sends, a link reads it or ends, holds no more of it than a frame and a message, and delivers messages of a length that was allowed.
// The pieces in which it comes do not matter.
func FuzzLink(f *testing.F) {
	facts, err := proto.Marshal(&farpoolv1alpha1.Facts{PoolUid: "pool", Name: "cache-memory-0", Incarnation: 7})
	if err != nil {
		f.Fatal(err)
	}
	ok := hpack.HeaderField{Name: ":status", Value: "200"}
	f.Add(answers(f, func(framer *http2.Framer, headers func(...hpack.HeaderField) []byte) error {
		return errors.Join(framer.WriteSettings(), framer.WriteSettingsAck(),
			framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: headers(ok), EndHeaders: true}),
			framer.WriteData(1, false, messageOf(facts)),
			framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: headers(hpack.HeaderField{Name: "grpc-status", Value: "0"}), EndHeaders: true, EndStream: true}),
			framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: headers(ok), EndHeaders: true}),
			framer.WriteData(3, false, append(messageOf(facts), messageOf(nil)[:3]...)), framer.WriteData(3, false, messageOf(nil)[3:]))
	}), uint8(5))
	f.Add(answers(f, func(framer *http2.Framer, headers func(...hpack.HeaderField) []byte) error {
		return errors.Join(framer.WritePing(false, [8]byte{1}), framer.WriteWindowUpdate(0, 1<<20),
			framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: headers(hpack.HeaderField{Name: ":status", Value: "404"}), EndHeaders: true, EndStream: true}),
			framer.WriteRSTStream(3, http2.ErrCodeCancel), framer.WriteData(3, false, messageOf(facts)), framer.WriteGoAway(3, http2.ErrCodeNo, []byte("bye")))
	}), uint8(0))
	f.Add(answers(f, func(framer *http2.Framer, headers func(...hpack.HeaderField) []byte) error {
		return errors.Join(
			framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: headers(ok, hpack.HeaderField{Name: "grpc-status", Value: "5"}, hpack.HeaderField{Name: "grpc-message", Value: "%zz%41"}), EndHeaders: true, EndStream: true}),
			framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: headers(ok)}), framer.WriteContinuation(3, true, headers(ok)),
			framer.WriteData(3, true, []byte{1, 0xff, 0xff, 0xff, 0xff}))
	}), uint8(1))
	// A frame that is longer than any may be, and never whole.
	f.Add(append([]byte{0, 0x50, 0, byte(http2.FrameData), 0, 0, 0, 0, 1}, make([]byte, 17<<10)...), uint8(255))
	f.Fuzz(func(t *testing.T, input []byte, piece uint8) {
		near, far := net.Pipe()
		defer func() { _ = far.Close() }()
		l := &link{socket: &socket{Conn: near}, tls: discards{}, calls: map[uint32]*linkCall{}}
		var calls []*linkCall
		for range 2 {
			call, err := l.begin(farpoolv1alpha1.Agent_Describe_FullMethodName, &farpoolv1alpha1.DescribeRequest{}, 0, false, func(message []byte) error {
				if len(message) > maxMessageBytes {
					t.Errorf("a message of %d bytes", len(message))
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			calls = append(calls, call)
		}
		most := int(piece) + 1
		err := error(nil)
		for rest := input; len(rest) > 0 && err == nil; {
			count := min(most, len(rest))
			err = l.takeIn(rest[:count])
			rest = rest[count:]
			if err == nil && l.input.Len() >= frameHeaderBytes+frameBytes {
				t.Fatalf("%d bytes wait for a frame to be whole", l.input.Len())
			}
		}
		l.close(errors.New("the test is over"))
		for _, call := range calls {
			if len(call.partial) >= messageHeaderBytes+maxMessageBytes {
				t.Errorf("%d bytes wait for a message to be whole", len(call.partial))
			}
			if len(call.done) != 1 {
				t.Error("a call has no end")
			}
		}
	})
}

// discards takes what is written, and has nothing to read.
type discards struct{}

func (discards) Read([]byte) (int, error)        { return 0, errNothingYet }
func (discards) Write(bytes []byte) (int, error) { return io.Discard.Write(bytes) }

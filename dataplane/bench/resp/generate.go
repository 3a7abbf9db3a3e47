// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// A load is what one run asks of a server.
type load struct {
	operation string // set or get
	clients   int
	pipeline  int
	keys      int
	size      int
	requests  int
}

// An answer is what a load generator says of a run.
type answer struct {
	Rate float64 `json:"rate"` // operations a second
	P50  float64 `json:"p50"`  // ms
	P99  float64 `json:"p99"`
}

// Both generators end by themselves long before, unless a server no longer answers.
const longestRun = 3 * time.Minute

// The built-in generator is this program, as a process of its own, so that its processor time can be told from everything else's.
const builtInCommand = "load"

// generate is the built-in generator's main function: it prints an answer as JSON.
func generate(args []string, out io.Writer) error {
	var l load
	flags := flag.NewFlagSet(builtInCommand, flag.ContinueOnError)
	address := flags.String("address", "", "host:port of the server")
	spoken := flags.String("dialect", "resp", "resp or memcached")
	authority := flags.String("ca", "", "PEM file of the CA for TLS; empty: no TLS")
	flags.StringVar(&l.operation, "operation", "get", "set or get")
	flags.IntVar(&l.clients, "clients", 1, "connections")
	flags.IntVar(&l.pipeline, "pipeline", 1, "operations that a connection sends at once")
	flags.IntVar(&l.keys, "keys", 1, "keys, chosen uniformly")
	flags.IntVar(&l.size, "size", 1, "bytes of a value")
	flags.IntVar(&l.requests, "requests", 1, "operations in all")
	if err := flags.Parse(args); err != nil {
		return err
	}
	d, known := dialects[*spoken]
	if !known {
		return fmt.Errorf("there is no dialect %q, only resp and memcached", *spoken)
	}
	secured, err := clientTLS(*authority)
	if err != nil {
		return err
	}
	result, err := drive(l, d, func() (net.Conn, error) { return dial(*address, secured) })
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(result)
}

// clientTLS trusts one CA. The certificates of the pool name roles and no hosts, so hosts are not judged.
func clientTLS(authority string) (*tls.Config, error) {
	if authority == "" {
		return nil, nil
	}
	content, err := os.ReadFile(authority)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(content) {
		return nil, fmt.Errorf("%s holds no certificate", authority)
	}
	return &tls.Config{
		InsecureSkipVerify: true,
		VerifyConnection: func(state tls.ConnectionState) error {
			_, err := state.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: roots})
			return err
		},
	}, nil
}

// dial connects to a server. Everything on the connection has to be over within longestRun.
func dial(address string, secured *tls.Config) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	connection, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	if secured != nil {
		wrapped := tls.Client(connection, secured)
		if err := wrapped.HandshakeContext(ctx); err != nil {
			return nil, errors.Join(err, connection.Close())
		}
		connection = wrapped
	}
	if err := connection.SetDeadline(time.Now().Add(longestRun)); err != nil {
		return nil, errors.Join(err, connection.Close())
	}
	return connection, nil
}

// A batch is operations of one connection that were sent with one write.
type batch struct {
	latency    time.Duration // until the first byte of their replies, as redis-benchmark counts it
	operations int
}

// drive opens all connections, then measures until all operations are done. Each connection sends a pipeline of operations with one write, and the next one
// when all their replies are there; so does redis-benchmark.
func drive(l load, d dialect, connect func() (net.Conn, error)) (answer, error) {
	connections := make([]net.Conn, l.clients)
	for i := range connections {
		var err error
		if connections[i], err = connect(); err != nil {
			return answer{}, err
		}
		defer connections[i].Close()
	}
	var left atomic.Int64
	left.Store(int64(l.requests))
	batches, failures := make([][]batch, l.clients), make([]error, l.clients)
	var all sync.WaitGroup
	begun := time.Now()
	for i, connection := range connections {
		all.Go(func() { batches[i], failures[i] = l.drive(d, connection, uint64(i), &left) })
	}
	all.Wait()
	took := time.Since(begun)
	if err := errors.Join(failures...); err != nil {
		return answer{}, err
	}
	together := slices.Concat(batches...)
	return answer{
		Rate: float64(l.requests) / took.Seconds(),
		P50:  milliseconds(percentile(together, 50)), P99: milliseconds(percentile(together, 99)),
	}, nil
}

// drive sends operations on one connection for as long as some are left.
func (l load) drive(d dialect, connection net.Conn, seed uint64, left *atomic.Int64) (done []batch, err error) {
	random := rand.New(rand.NewPCG(seed, uint64(l.requests)))
	value := bytes.Repeat([]byte("x"), l.size)
	reader := bufio.NewReaderSize(connection, 64<<10)
	var request []byte
	for {
		b := batch{operations: take(left, l.pipeline)}
		if b.operations == 0 {
			return done, nil
		}
		request = request[:0]
		for range b.operations {
			if l.operation == "set" {
				request = d.set(request, random.IntN(l.keys), value)
			} else {
				request = d.get(request, random.IntN(l.keys))
			}
		}
		sent := time.Now()
		if _, err := connection.Write(request); err != nil {
			return done, err
		}
		if _, err := reader.Peek(1); err != nil {
			return done, err
		}
		b.latency = time.Since(sent)
		for range b.operations {
			if err := l.read(d, reader); err != nil {
				return done, err
			}
		}
		done = append(done, b)
	}
}

func (l load) read(d dialect, from *bufio.Reader) error {
	if l.operation == "set" {
		return d.readSet(from)
	}
	return d.readGet(from, l.size)
}

// take returns how many operations a connection may send now: a pipeline of them, or what is left.
func take(left *atomic.Int64, pipeline int) int {
	after := left.Add(-int64(pipeline))
	return int(max(0, min(int64(pipeline), after+int64(pipeline))))
}

// fill sets every key that a generator may ask for.
func fill(connection net.Conn, d dialect, keys, size int) error {
	value := bytes.Repeat([]byte("x"), size)
	reader := bufio.NewReader(connection)
	most := max(1, min(256, (1<<20)/size))
	var request []byte
	for from := 0; from < keys; from += most {
		to := min(from+most, keys)
		request = request[:0]
		for key := from; key < to; key++ {
			request = d.set(request, key, value)
		}
		if _, err := connection.Write(request); err != nil {
			return err
		}
		for range to - from {
			if err := d.readSet(reader); err != nil {
				return err
			}
		}
	}
	return nil
}

func milliseconds(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e6 }

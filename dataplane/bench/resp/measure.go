// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// A generator asks a server, as a process of its own.
type generator struct {
	name   string
	speaks []string // dialects
	args   func(l load, s *server) ([]string, error)
	read   func(output []byte) (answer, error)
}

func redisBenchmark(program string) generator {
	return generator{name: "redis-benchmark", speaks: []string{"resp"}, read: readRedisBenchmark, args: func(l load, s *server) ([]string, error) {
		host, port, err := net.SplitHostPort(s.address)
		if err != nil {
			return nil, err
		}
		args := []string{program, "-h", host, "-p", port, "-t", l.operation, "-n", strconv.Itoa(l.requests), "-c", strconv.Itoa(l.clients),
			"-P", strconv.Itoa(l.pipeline), "-d", strconv.Itoa(l.size), "-r", strconv.Itoa(l.keys), "--csv"}
		if s.authority != "" {
			args = append(args, "--tls", "--cacert", s.authority)
		}
		return args, nil
	}}
}

func builtIn() generator {
	return generator{name: "built-in", speaks: []string{"resp", "memcached"}, read: readBuiltIn, args: func(l load, s *server) ([]string, error) {
		program, err := os.Executable()
		if err != nil {
			return nil, err
		}
		return []string{program, builtInCommand, "-address", s.address, "-dialect", s.dialect, "-ca", s.authority, "-operation", l.operation,
			"-clients", strconv.Itoa(l.clients), "-pipeline", strconv.Itoa(l.pipeline), "-keys", strconv.Itoa(l.keys),
			"-size", strconv.Itoa(l.size), "-requests", strconv.Itoa(l.requests)}, nil
	}}
}

// readRedisBenchmark reads a line of names and one of figures.
func readRedisBenchmark(output []byte) (a answer, err error) {
	rows, err := csv.NewReader(bytes.NewReader(output)).ReadAll()
	if err != nil || len(rows) != 2 {
		return a, fmt.Errorf("redis-benchmark printed what cannot be read: %q", output)
	}
	into := map[string]*float64{"rps": &a.Rate, "p50_latency_ms": &a.P50, "p99_latency_ms": &a.P99}
	for i, name := range rows[0] {
		if figure, wanted := into[name]; wanted {
			if *figure, err = strconv.ParseFloat(rows[1][i], 64); err != nil {
				return a, fmt.Errorf("redis-benchmark printed what cannot be read: %q", output)
			}
			delete(into, name)
		}
	}
	if len(into) > 0 {
		return a, fmt.Errorf("redis-benchmark printed no rate, p50 or p99: %q", output)
	}
	return a, nil
}

func readBuiltIn(output []byte) (a answer, err error) {
	if err := json.Unmarshal(output, &a); err != nil {
		return a, fmt.Errorf("the built-in generator printed what cannot be read: %q: %w", output, err)
	}
	return a, nil
}

// Figures are what one run gave. Times of processors are microseconds an operation.
type figures struct {
	answer
	CPU      map[string]float64 `json:"cpu"` // by process: server, or shard and node
	Total    float64            `json:"cpu_total"`
	Load     float64            `json:"cpu_load"` // of the generator
	Trips    float64            `json:"trips"`    // round trips to the memory node an operation; 0 for others than farpool
	Requests int                `json:"requests"`
}

// measure has a generator ask a server once.
func measure(g generator, s *server, l load) (figures, error) {
	f := figures{CPU: map[string]float64{}, Requests: l.requests}
	each := func(spent time.Duration) float64 { return float64(spent.Nanoseconds()) / 1e3 / float64(l.requests) }
	args, err := g.args(l, s)
	if err != nil {
		return f, err
	}
	tripsBefore, err := s.trips(l.operation)
	if err != nil {
		return f, err
	}
	before := make([]time.Duration, len(s.processes))
	for i, p := range s.processes {
		if before[i], err = p.cpu(); err != nil {
			return f, err
		}
	}
	output, spent, err := execute(args)
	if err != nil {
		return f, fmt.Errorf("%s against %s: %w", g.name, s.name, err)
	}
	f.Load = each(spent)
	for i, p := range s.processes {
		after, err := p.cpu()
		if err != nil {
			return f, err
		}
		f.CPU[s.part(i)] = each(after - before[i])
		f.Total += each(after - before[i])
	}
	trips, err := s.trips(l.operation)
	if err != nil {
		return f, err
	}
	f.Trips = (trips - tripsBefore) / float64(l.requests)
	f.answer, err = g.read(output)
	return f, err
}

// part names a process as figures have it.
func (s *server) part(i int) string {
	if s.metrics == "" {
		return "server"
	}
	return []string{"shard", "node"}[i]
}

// execute runs a generator, and returns what it printed and the processor time that it took.
func execute(args []string) ([]byte, time.Duration, error) {
	ctx, cancel := context.WithTimeoutCause(context.Background(), longestRun, fmt.Errorf("it did not end within %s", longestRun))
	defer cancel()
	command := exec.CommandContext(ctx, args[0], args[1:]...)
	var complaints bytes.Buffer
	command.Stderr = &complaints
	// redis-benchmark has one thread; the built-in generator gets no more than one at a time.
	command.Env = append(os.Environ(), "GOMAXPROCS=1")
	output, err := command.Output()
	if err != nil {
		return nil, 0, errors.Join(fmt.Errorf("%w: %s", err, strings.TrimSpace(complaints.String())), context.Cause(ctx))
	}
	return output, command.ProcessState.UserTime() + command.ProcessState.SystemTime(), nil
}

// probe returns how many requests take about so many seconds, as a short run says.
func probe(g generator, s *server, l load, seconds float64) (int, error) {
	l.requests = inBatches(max(1000, 200*l.clients), l.pipeline)
	f, err := measure(g, s, l)
	return inBatches(max(l.requests, 10*l.clients*l.pipeline, int(f.Rate*seconds)), l.pipeline), err
}

// inBatches returns at least so many requests, in whole pipelines. redis-benchmark sends nothing but whole pipelines:
// with another number it carries out more requests than it was asked for, and now and then it takes the end of its last
// client for the loss of all ("All clients disconnected").
func inBatches(requests, pipeline int) int {
	return (requests + pipeline - 1) / pipeline * pipeline
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"farpool.dev/farpool/e2e/chaos"
	"farpool.dev/farpool/hack/local"
)

// A server is what is measured, with the processes whose time it takes.
type server struct {
	name      string // as the tables have it
	address   string
	dialect   string
	authority string      // PEM file of the CA for TLS with clients; empty: no TLS
	secured   *tls.Config // the same, for connections of this process
	processes []*process
	metrics   string // of a compute shard: host:port of its /metrics
	node      string // of its memory node
}

const redisName = "redis-server"

// A fleet is the servers that one table compares, all of them up at once.
type fleet struct {
	o         options
	directory string // of logs, certificates and rings
	secured   bool   // TLS between clients and servers
	servers   []*server
}

// startFleet starts all servers of a table. The caller stops them even after an error.
func startFleet(o options, directory string, secured bool) (*fleet, error) {
	f := &fleet{o: o, directory: directory, secured: secured}
	holders := []local.Holder{{Role: "node", Name: "node"}, {Role: "client", Name: "shard"}, {Role: "resp", Name: "server"}}
	if err := local.WriteCertificates(directory, local.PoolUID, holders); err != nil {
		return f, err
	}
	if err := f.addRedis(); err != nil {
		return f, err
	}
	for _, protocol := range o.protocols.values {
		for _, lanes := range o.tls.values {
			if err := f.addFarpool(protocol, lanes); err != nil {
				return f, err
			}
		}
	}
	if o.memcached {
		if err := f.addMemcached(); err != nil {
			return f, err
		}
	}
	for _, s := range f.servers {
		if err := s.await(30 * time.Second); err != nil {
			return f, err
		}
		if err := f.onWire(s); err != nil {
			return f, err
		}
	}
	return f, nil
}

func (f *fleet) stop() {
	for _, s := range f.servers {
		for _, p := range s.processes {
			p.stop()
		}
	}
}

func (f *fleet) file(name string) string { return filepath.Join(f.directory, name) }

// add takes a server in. It is known to the fleet from its first process on, so that this is stopped if the next one does not start.
func (f *fleet) add(s *server) error {
	f.servers = append(f.servers, s)
	if !f.secured {
		return nil
	}
	s.authority = f.file("ca.crt")
	var err error
	s.secured, err = clientTLS(s.authority)
	return err
}

func (f *fleet) addRedis() error {
	addresses, err := freeAddresses(1)
	if err != nil {
		return err
	}
	_, port, err := net.SplitHostPort(addresses[0])
	if err != nil {
		return err
	}
	args := []string{f.o.redis, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", f.directory}
	if f.secured {
		args = append(args, "--port", "0", "--tls-port", port, "--tls-auth-clients", "no", "--tls-ca-cert-file", f.file("ca.crt"),
			"--tls-cert-file", f.file("resp-server.crt"), "--tls-key-file", f.file("resp-server.key"))
	} else {
		args = append(args, "--port", port)
	}
	s := &server{name: redisName, address: addresses[0], dialect: "resp"}
	if err := f.add(s); err != nil {
		return err
	}
	return s.start(f.directory, "redis-server", args...)
}

func (f *fleet) addMemcached() error {
	addresses, err := freeAddresses(1)
	if err != nil {
		return err
	}
	_, port, err := net.SplitHostPort(addresses[0])
	if err != nil {
		return err
	}
	// One worker, as the others have. -M: a write that would push another key out fails, and so does the run.
	args := []string{f.o.memcachedServer, "-l", "127.0.0.1", "-p", port, "-U", "0", "-t", "1", "-m", strconv.Itoa(2 * f.o.memory), "-M"}
	if os.Geteuid() == 0 {
		args = append(args, "-u", "root")
	}
	if f.secured {
		args = append(args, "-Z", "-o", "ssl_chain_cert="+f.file("resp-server.crt")+",ssl_key="+f.file("resp-server.key"))
	}
	s := &server{name: "memcached", address: addresses[0], dialect: "memcached"}
	if err := f.add(s); err != nil {
		return err
	}
	return s.start(f.directory, "memcached", args...)
}

// addFarpool starts one memory node and one compute shard.
func (f *fleet) addFarpool(protocol string, lanesSecured bool) error {
	addresses, err := freeAddresses(4)
	if err != nil {
		return err
	}
	s := &server{name: "farpool " + protocol, address: addresses[1], dialect: "resp", metrics: addresses[2], node: addresses[3]}
	if lanesSecured {
		s.name += " TLS"
	}
	rings := f.file(strings.ReplaceAll(s.name, " ", "-"))
	if err := os.Mkdir(rings, 0o700); err != nil {
		return err
	}
	if err := f.add(s); err != nil {
		return err
	}
	common := func(holder string) []string {
		args := []string{"--pool-uid", local.PoolUID, "--agent-listen", "none", "--log-format", "text", "--threads", "1"}
		if lanesSecured {
			args = append(args, "--tls-ca", f.file("ca.crt"), "--tls-cert", f.file(holder+".crt"), "--tls-key", f.file(holder+".key"))
		} else {
			args = append(args, "--insecure-plaintext")
		}
		if f.o.wire == local.SHM {
			args = append(args, "--shm-directory", rings, "--spin", fmt.Sprintf("%dus", f.o.spin.Microseconds()))
		}
		return args
	}
	node := append([]string{filepath.Join(f.o.binaries, "farpool-memory-node"), "--name", "node", "--standalone",
		"--protocol", strings.ToLower(protocol), "--memory", fmt.Sprintf("%dMi", f.o.memory),
		"--listen", addresses[0], "--advertise", addresses[0], "--metrics-listen", s.node}, common("node-node")...)
	shard := append([]string{filepath.Join(f.o.binaries, "farpool-compute-shard"), "--name", "shard", "--drain", "0s",
		"--bootstrap", addresses[0], "--listen", s.address, "--metrics-listen", s.metrics}, common("client-shard")...)
	if f.secured {
		shard = append(shard, "--resp-tls-cert", f.file("resp-server.crt"), "--resp-tls-key", f.file("resp-server.key"))
	}
	if err := s.start(f.directory, s.name+" node", node...); err != nil {
		return err
	}
	if err := s.start(f.directory, s.name+" shard", shard...); err != nil {
		return err
	}
	slices.Reverse(s.processes) // shard first: so tables name them, and so they are stopped
	return nil
}

func (s *server) start(directory, name string, args ...string) error {
	p, err := start(directory, name, args...)
	if err == nil {
		s.processes = append(s.processes, p)
	}
	return err
}

// fill sets so many keys.
func (s *server) fill(keys, size int) error {
	connection, err := dial(s.address, s.secured)
	if err != nil {
		return err
	}
	defer connection.Close()
	return fill(connection, dialects[s.dialect], keys, size)
}

func (s *server) await(deadline time.Duration) error {
	for end := time.Now().Add(deadline); ; {
		err := s.fill(1, 8)
		if err == nil {
			return nil
		}
		for _, p := range s.processes {
			if ended := p.alive(); ended != nil {
				return ended
			}
		}
		if time.Now().After(end) {
			return fmt.Errorf("%s at %s does not serve within %v: %w", s.name, s.address, deadline, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// onWire makes sure that a compute shard's lanes go over the wire that the tables name: with a memory node that offers no rings it would go on over tcp.
func (f *fleet) onWire(s *server) error {
	if s.node == "" {
		return nil
	}
	page, err := chaos.Scrape(s.node)
	if err != nil {
		return fmt.Errorf("metrics of %s: %w", s.name, err)
	}
	lanes, rings := page["farpool_wire_lanes"], page["farpool_wire_ring_lanes"]
	if wanted := map[string]float64{local.TCP: 0, local.SHM: lanes}[f.o.wire]; lanes == 0 || rings != wanted {
		return fmt.Errorf("%s has %g lanes, %g of them over rings in shared memory, on a wire that is to be %s", s.name, lanes, rings, f.o.wire)
	}
	return nil
}

// trips returns how many round trips the pool's operations of one kind have taken so far.
func (s *server) trips(operation string) (float64, error) {
	if s.metrics == "" {
		return 0, nil
	}
	response, err := chaos.Web.Get("http://" + s.metrics + "/metrics")
	if err != nil {
		return 0, fmt.Errorf("metrics of %s: %w", s.name, err)
	}
	defer response.Body.Close()
	label := map[string]string{"set": `operation="put"`, "get": `operation="get"`}[operation]
	return sumOf(bufio.NewScanner(response.Body), "farpool_pool_trips_total", label)
}

// sumOf adds the samples of a metric whose labels contain `label`.
func sumOf(page *bufio.Scanner, name, label string) (sum float64, err error) {
	found := false
	for page.Scan() {
		line := page.Text()
		if !strings.HasPrefix(line, name+"{") || !strings.Contains(line, label) {
			continue
		}
		value, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
		if err != nil {
			return 0, fmt.Errorf("metric %s cannot be read: %w", name, err)
		}
		sum, found = sum+value, true
	}
	if err := page.Err(); err != nil {
		return 0, err
	}
	if !found {
		return 0, errors.New("the metrics have no " + name + " with " + label)
	}
	return sum, nil
}

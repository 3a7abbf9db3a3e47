// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"flag"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"farpool.dev/farpool/hack/local"
)

type options struct {
	binaries        string
	redis           string
	memcachedServer string
	load            string
	json            string
	wire            string
	spin            time.Duration
	protocols       list[string]
	tls             list[bool] // between compute shard and memory node
	clientTLS       list[bool]
	pipelines       list[int]
	clients         list[int]
	values          list[int]
	keys            int
	memory          int // MiB
	runs            int
	seconds         float64
	memcached       bool
	builtIn         bool
}

// A list is a flag whose values stand between commas.
type list[T comparable] struct {
	values []T
	parse  func(string) (T, error)
	text   string
}

func (l *list[T]) String() string { return l.text }

// Set takes a list that is not empty and names nothing twice.
func (l *list[T]) Set(text string) error {
	var values []T
	for _, each := range strings.Split(text, ",") {
		value, err := l.parse(strings.TrimSpace(each))
		if err != nil {
			return err
		}
		if slices.Contains(values, value) {
			return fmt.Errorf("%s is there twice", each)
		}
		values = append(values, value)
	}
	l.values, l.text = values, text
	return nil
}

func listOf[T comparable](flags *flag.FlagSet, into *list[T], name, value, usage string, parse func(string) (T, error)) {
	into.parse = parse
	if err := into.Set(value); err != nil {
		panic(err) // the default is wrong
	}
	flags.Var(into, name, usage)
}

func parseSwitch(text string) (bool, error) {
	switch text {
	case "on":
		return true, nil
	case "off":
		return false, nil
	}
	return false, errors.New("give off, on, or both with a comma between")
}

func parseProtocol(text string) (string, error) {
	for _, known := range []string{"RCuckoo", "RACE", "Outback"} {
		if strings.EqualFold(text, known) {
			return known, nil
		}
	}
	return "", fmt.Errorf("there is no index protocol %q, only RCuckoo, RACE and Outback", text)
}

func atMost(most int) func(string) (int, error) {
	return func(text string) (int, error) {
		value, err := strconv.Atoi(text)
		if err != nil || value < 1 || value > most {
			return 0, fmt.Errorf("give numbers from 1 to %d, with commas between", most)
		}
		return value, nil
	}
}

// The most that a compute shard takes of a connection without letting it wait (--max-pipeline), and connections that fit memcached's default.
const (
	mostPipeline = 1024
	mostClients  = 1000
	mostValue    = 1 << 20
)

func (o *options) register(flags *flag.FlagSet) {
	flags.StringVar(&o.binaries, "bin", "build/release/apps", "`directory` of the two daemons")
	flags.StringVar(&o.redis, "redis", "redis-server", "`program` to compare with")
	flags.StringVar(&o.load, "load", "redis-benchmark", "`program` that generates the load")
	flags.StringVar(&o.memcachedServer, "memcached-server", "memcached", "`program` that -memcached starts")
	flags.BoolVar(&o.memcached, "memcached", false, "measure memcached, too; redis-benchmark cannot, so that this implies -built-in")
	flags.BoolVar(&o.builtIn, "built-in", false, "measure each server a second time, in a table of its own, with the load of a generator that is a part of this program")
	listOf(flags, &o.protocols, "protocol", "RCuckoo", "index `protocols` of farpool: RCuckoo, RACE, Outback; each is a pool of its own", parseProtocol)
	listOf(flags, &o.tls, "tls", "off,on", "TLS between compute shard and memory node, as pools in Kubernetes have it: `off, on` or both; each is a pool of its own", parseSwitch)
	listOf(flags, &o.clientTLS, "client-tls", "off", "TLS between clients and all servers: `off, on` or both", parseSwitch)
	listOf(flags, &o.pipelines, "pipelines", "1,16", "`numbers` of operations that a connection sends at once", atMost(mostPipeline))
	listOf(flags, &o.clients, "clients", "1,50", "`numbers` of connections", atMost(mostClients))
	listOf(flags, &o.values, "values", "64", "sizes of values in `bytes`; each size has a table of its own", atMost(mostValue))
	flags.StringVar(&o.wire, "wire", local.TCP, "between compute shard and memory node: tcp or shm. Over shm TLS protects the handshake only; rings carry no TLS")
	flags.DurationVar(&o.spin, "spin", 0, "on shm, how long to poll before waiting; buys latency with processor time")
	flags.IntVar(&o.keys, "keys", 100_000, "keys, all of them set before; fewer if their values would fill more than a quarter of -memory")
	flags.IntVar(&o.memory, "memory", 512, "`MiB` that each memory node lends")
	flags.IntVar(&o.runs, "runs", 3, "runs of everything in a table, one after the other; the table has medians, and least and most of rates and CPU")
	flags.Float64Var(&o.seconds, "seconds", 1, "about how long each figure is measured in each run")
	flags.StringVar(&o.json, "json", "", "`file` for all figures of each run, beside the tables")
}

// wrong says what of the options nothing can be measured with.
func (o *options) wrong() error {
	switch {
	case o.keys < 1 || o.runs < 1 || o.seconds <= 0:
		return errors.New("-keys, -runs and -seconds must be more than 0")
	case o.seconds > longestRun.Seconds()/3:
		return fmt.Errorf("-seconds must be at most %g", longestRun.Seconds()/3)
	case o.memory < 64 || o.memory > 1<<20:
		return errors.New("-memory must be from 64 to 1048576 MiB")
	case o.wire != local.TCP && o.wire != local.SHM:
		return fmt.Errorf("there is no wire %q, only tcp and shm", o.wire)
	case o.spin < 0 || o.spin > time.Second:
		return errors.New("-spin must be from 0 to 1s")
	}
	for _, value := range o.values.values {
		if o.keysOf(value) < 100 {
			return fmt.Errorf("-memory %d holds only %d values of %d bytes, and 100 are the least: give more memory", o.memory, o.keysOf(value), value)
		}
	}
	return o.missing()
}

// missing says which program is not there, and where it comes from.
func (o *options) missing() error {
	for _, daemon := range []string{"farpool-memory-node", "farpool-compute-shard"} {
		if path := filepath.Join(o.binaries, daemon); !executable(path) {
			return fmt.Errorf("%s is not there: build it with `make daemons`", path)
		}
	}
	programs := []string{o.redis, o.load}
	if o.memcached {
		programs = append(programs, o.memcachedServer)
	}
	for _, program := range programs {
		if !executable(program) {
			return fmt.Errorf("%s is not there: install it with `hack/deps bench`", program)
		}
	}
	return nil
}

// executable says whether a program is in the PATH, or at the path that its name is.
func executable(program string) bool {
	_, err := exec.LookPath(program)
	return err == nil
}

// keysOf returns how many keys there are of values of one size: what is lent has to hold the index, and values that are replaced, too.
func (o *options) keysOf(value int) int {
	const besideValue = 64 // key, header, and a part of what rounding up to a block takes
	return min(o.keys, o.memory<<20/4/(value+besideValue))
}

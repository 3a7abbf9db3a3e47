// SPDX-License-Identifier: Apache-2.0

// Resp measures GET and SET through one compute shard and one memory node over the tcp or the shm wire, beside redis-server, and memcached if asked for,
// doing the same work on the same machine in the same run. The load is redis-benchmark's, or that of a built-in generator, which memcached understands, too.
// CPU time is what /proc/<pid>/stat says of each process, so that a table of figures says where the time goes, not only how much there is of it.
// docs/measurements/resp.md explains the tables.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// measureTable runs every load of one table against every server that the generator can ask, as often as asked.
func measureTable(o options, g generator, servers []*server, t *table) error {
	type key struct {
		load   load
		server string
	}
	requests, rows := map[key]int{}, map[key]*row{}
	for run := range o.runs {
		for _, l := range t.loads(o) {
			fmt.Fprintf(os.Stderr, "bench: %d bytes, %s, run %d of %d: %s, clients: %d, pipeline: %d\n", l.size, g.name, run+1, o.runs, strings.ToUpper(l.operation), l.clients, l.pipeline)
			for _, s := range servers {
				k := key{l, s.name}
				if run == 0 {
					var err error
					if requests[k], err = probe(g, s, l, o.seconds); err != nil {
						return err
					}
					rows[k] = &row{Operation: l.operation, Clients: l.clients, Pipeline: l.pipeline, Server: s.name}
					t.Rows = append(t.Rows, rows[k])
				}
				asked := l
				asked.requests = requests[k]
				f, err := measure(g, s, asked)
				if err != nil {
					return err
				}
				rows[k].Runs = append(rows[k].Runs, f)
			}
		}
	}
	t.summarize()
	return nil
}

// loads are all that a table has, without their numbers of requests.
func (t *table) loads(o options) (all []load) {
	for _, operation := range []string{"set", "get"} {
		for _, pipeline := range o.pipelines.values {
			for _, clients := range o.clients.values {
				all = append(all, load{operation: operation, clients: clients, pipeline: pipeline, keys: t.Keys, size: t.ValueBytes})
			}
		}
	}
	return all
}

// measureValues starts servers, fills them with values of one size, and hands over a table for each generator.
func measureValues(o options, directory string, secured bool, size int, done func(*table) error) error {
	directory = filepath.Join(directory, fmt.Sprintf("%d-%v", size, secured))
	if err := os.Mkdir(directory, 0o700); err != nil {
		return err
	}
	f, err := startFleet(o, directory, secured)
	defer f.stop()
	if err != nil {
		return err
	}
	keys := o.keysOf(size)
	for _, s := range f.servers {
		if err := s.fill(keys, size); err != nil {
			return fmt.Errorf("%s could not be filled with %d values of %d bytes: %w", s.name, keys, size, err)
		}
	}
	generators := []generator{redisBenchmark(o.load)}
	if o.builtIn || o.memcached {
		generators = append(generators, builtIn())
	}
	for _, g := range generators {
		t := &table{Generator: g.name, ClientTLS: secured, Wire: o.wire, Spin: o.spin.String(), ValueBytes: size, Keys: keys}
		asked := slices.DeleteFunc(slices.Clone(f.servers), func(s *server) bool { return !slices.Contains(g.speaks, s.dialect) })
		if err := measureTable(o, g, asked, t); err != nil {
			return err
		}
		if err := done(t); err != nil {
			return err
		}
	}
	return nil
}

func run(o options, out io.Writer) (err error) {
	directory, err := os.MkdirTemp("", "farpool-bench-")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("%w; the logs are in %s", err, directory)
			return
		}
		err = os.RemoveAll(directory)
	}()
	versions := versionsOf(o)
	heading(o, versions, out)
	var tables []*table
	done := func(t *table) error {
		t.markdown(out)
		tables = append(tables, t)
		if o.json == "" {
			return nil
		}
		return writeJSON(o.json, versions, tables)
	}
	for _, secured := range o.clientTLS.values {
		for _, size := range o.values.values {
			if err := measureValues(o, directory, secured, size, done); err != nil {
				return err
			}
		}
	}
	return nil
}

// versionsOf says which programs were compared.
func versionsOf(o options) (versions []string) {
	programs := []string{o.redis}
	if o.memcached {
		programs = append(programs, o.memcachedServer)
	}
	for _, program := range programs {
		if line, err := exec.Command(program, "--version").Output(); err == nil {
			versions = append(versions, strings.TrimSpace(string(line)))
		}
	}
	return versions
}

// The kernel ties Pdeathsig to the thread that started the child, so everything that starts one stays on the main thread.
func init() { runtime.LockOSThread() }

func main() {
	if len(os.Args) > 1 && os.Args[1] == builtInCommand {
		if err := generate(os.Args[2:], os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	var o options
	o.register(flag.CommandLine)
	flag.Parse()
	wrong := o.wrong()
	if flag.NArg() > 0 {
		wrong = errors.Join(wrong, fmt.Errorf("there is no argument %s, only flags", strings.Join(flag.Args(), " ")))
	}
	if wrong != nil {
		fmt.Fprintln(os.Stderr, "bench:", wrong)
		os.Exit(2)
	}
	if err := run(o, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

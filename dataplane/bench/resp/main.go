// SPDX-License-Identifier: Apache-2.0

// Resp measures GET and SET of small values through one compute shard and one memory node over the tcp or the shm wire, beside redis-server doing
// the same work on the same machine in the same run. The load is redis-benchmark's. CPU time is what /proc/<pid>/stat says of each
// process, so that a table of figures says where the time goes, not only how much there is of it.
package main

import (
	"bufio"
	"encoding/csv"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Linux counts a process's time in hundredths of a second in /proc, whatever the kernel's own tick.
const ticksPerSecond = 100

type options struct {
	binaries string
	redis    string
	load     string
	wire     string
	spin     time.Duration
	keys     int
	size     int
	seconds  float64
}

type process struct {
	name string
	cmd  *exec.Cmd
	log  *os.File
}

func start(directory, name string, args ...string) (*process, error) {
	log, err := os.Create(filepath.Join(directory, name+".log"))
	if err != nil {
		return nil, err
	}
	p := &process{name: name, cmd: exec.Command(args[0], args[1:]...), log: log}
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return p, nil
}

func (p *process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	ended := make(chan struct{})
	go func() {
		_ = p.cmd.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(15 * time.Second):
		_ = p.cmd.Process.Kill()
		<-ended
	}
	_ = p.log.Close()
}

// cpu is the time that the process has spent so far, in its own code and in the kernel for it.
func (p *process) cpu() (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		return 0, fmt.Errorf("%s has ended: %w", p.name, err)
	}
	// The second field is the program's name in parentheses, and may hold anything.
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	var ticks int64
	for _, field := range fields[11:13] { // utime and stime
		value, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, err
		}
		ticks += value
	}
	return time.Duration(ticks) * time.Second / ticksPerSecond, nil
}

func freeAddress() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer listener.Close()
	return listener.Addr().String(), nil
}

// fill sets every key that redis-benchmark may ask for.
func fill(address string, keys, size int) error {
	connection, err := net.DialTimeout("tcp", address, 5*time.Second)
	if err != nil {
		return err
	}
	defer connection.Close()
	if err := connection.SetDeadline(time.Now().Add(2 * time.Minute)); err != nil {
		return err
	}
	value := strings.Repeat("x", size)
	reader, writer := bufio.NewReader(connection), bufio.NewWriter(connection)
	const batch = 256
	for from := 0; from < keys; from += batch {
		to := min(from+batch, keys)
		for i := from; i < to; i++ {
			fmt.Fprintf(writer, "*3\r\n$3\r\nSET\r\n$16\r\nkey:%012d\r\n$%d\r\n%s\r\n", i, size, value)
		}
		if err := writer.Flush(); err != nil {
			return err
		}
		for i := from; i < to; i++ {
			line, err := reader.ReadString('\n')
			if err != nil {
				return err
			}
			if line != "+OK\r\n" {
				return fmt.Errorf("SET was answered with %q", line)
			}
		}
	}
	return nil
}

// A target is a server with the processes whose time it takes.
type target struct {
	name      string
	address   string
	processes []*process
	metrics   string // address of /metrics, or empty
}

func (t *target) await(deadline time.Duration) error {
	for end := time.Now().Add(deadline); ; {
		err := fill(t.address, 1, 8)
		if err == nil {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("%s at %s does not serve within %v: %w", t.name, t.address, deadline, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// sum of a metric over its labels that contain `label`.
func (t *target) metric(name, label string) (float64, error) {
	response, err := http.Get("http://" + t.metrics + "/metrics")
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	var sum float64
	for scanner := bufio.NewScanner(response.Body); scanner.Scan(); {
		line := scanner.Text()
		if !strings.HasPrefix(line, name+"{") || !strings.Contains(line, label) {
			continue
		}
		value, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
		if err != nil {
			return 0, err
		}
		sum += value
	}
	return sum, nil
}

type figures struct {
	rate     float64 // operations a second
	p50, p99 float64 // ms
	cpu      []time.Duration
	load     time.Duration // of redis-benchmark
	trips    float64       // round trips an operation
	requests int
}

func (f figures) perOperation(cpu time.Duration) float64 {
	return float64(cpu.Nanoseconds()) / 1e3 / float64(f.requests)
}

func (f figures) total() float64 {
	var sum time.Duration
	for _, cpu := range f.cpu {
		sum += cpu
	}
	return f.perOperation(sum)
}

// measure runs redis-benchmark once.
func (t *target) measure(o options, operation string, clients, pipeline, requests int) (figures, error) {
	f := figures{requests: requests}
	before := make([]time.Duration, len(t.processes))
	for i, p := range t.processes {
		var err error
		if before[i], err = p.cpu(); err != nil {
			return f, err
		}
	}
	var tripsBefore float64
	kind := map[string]string{"set": `operation="put"`, "get": `operation="get"`}[operation]
	if t.metrics != "" {
		var err error
		if tripsBefore, err = t.metric("farpool_pool_trips_total", kind); err != nil {
			return f, err
		}
	}
	host, port, err := net.SplitHostPort(t.address)
	if err != nil {
		return f, err
	}
	command := exec.Command(o.load, "-h", host, "-p", port, "-t", operation, "-n", strconv.Itoa(requests), "-c", strconv.Itoa(clients),
		"-P", strconv.Itoa(pipeline), "-d", strconv.Itoa(o.size), "-r", strconv.Itoa(o.keys), "--csv")
	command.Stderr = os.Stderr
	output, err := command.Output()
	if err != nil {
		return f, fmt.Errorf("redis-benchmark against %s: %w", t.name, err)
	}
	f.load = command.ProcessState.UserTime() + command.ProcessState.SystemTime()
	for i, p := range t.processes {
		after, err := p.cpu()
		if err != nil {
			return f, err
		}
		f.cpu = append(f.cpu, after-before[i])
	}
	if t.metrics != "" {
		after, err := t.metric("farpool_pool_trips_total", kind)
		if err != nil {
			return f, err
		}
		f.trips = (after - tripsBefore) / float64(requests)
	}
	rows, err := csv.NewReader(strings.NewReader(string(output))).ReadAll()
	if err != nil || len(rows) != 2 || len(rows[1]) < 8 {
		return f, fmt.Errorf("redis-benchmark printed what cannot be read: %q", output)
	}
	for _, field := range []struct {
		column int
		into   *float64
	}{{1, &f.rate}, {4, &f.p50}, {6, &f.p99}} {
		if *field.into, err = strconv.ParseFloat(rows[1][field.column], 64); err != nil {
			return f, fmt.Errorf("redis-benchmark printed what cannot be read: %q", output)
		}
	}
	return f, nil
}

// timed measures for about as long as asked: a short run says how many requests that takes.
func (t *target) timed(o options, operation string, clients, pipeline int) (figures, error) {
	probe, err := t.measure(o, operation, clients, pipeline, 1000*max(1, min(clients, 10)))
	if err != nil {
		return probe, err
	}
	return t.measure(o, operation, clients, pipeline, max(1000*clients, int(probe.rate*o.seconds)))
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
	addresses := make([]string, 4)
	for i := range addresses {
		if addresses[i], err = freeAddress(); err != nil {
			return err
		}
	}
	redisAddress, session, respAddress, metrics := addresses[0], addresses[1], addresses[2], addresses[3]
	_, redisPort, err := net.SplitHostPort(redisAddress)
	if err != nil {
		return err
	}
	redis, err := start(directory, "redis-server", o.redis, "--port", redisPort, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", directory)
	if err != nil {
		return err
	}
	defer redis.stop()
	common := []string{"--pool-uid", "bench", "--insecure-plaintext", "--agent-listen", "none", "--log-format", "text"}
	if o.wire == "shm" {
		common = append(common, "--shm-directory", directory, "--spin", strconv.FormatInt(o.spin.Microseconds(), 10)+"us")
	}
	node, err := start(directory, "memory node", append([]string{filepath.Join(o.binaries, "farpool-memory-node"), "--name", "node", "--standalone",
		"--memory", "512Mi", "--threads", "1", "--listen", session, "--advertise", session, "--metrics-listen", "none"}, common...)...)
	if err != nil {
		return err
	}
	defer node.stop()
	shard, err := start(directory, "compute shard", append([]string{filepath.Join(o.binaries, "farpool-compute-shard"), "--name", "shard", "--drain", "0s", "--threads", "1",
		"--bootstrap", session, "--listen", respAddress, "--metrics-listen", metrics}, common...)...)
	if err != nil {
		return err
	}
	defer shard.stop()

	targets := []*target{
		{name: "redis-server", address: redisAddress, processes: []*process{redis}},
		{name: "farpool", address: respAddress, processes: []*process{shard, node}, metrics: metrics},
	}
	for _, t := range targets {
		if err := t.await(30 * time.Second); err != nil {
			return err
		}
		if err := fill(t.address, o.keys, o.size); err != nil {
			return fmt.Errorf("%s could not be filled: %w", t.name, err)
		}
	}

	version, _ := exec.Command(o.redis, "--version").Output()
	fmt.Fprintf(out, "GET and SET of %d-byte values over %d keys; load by redis-benchmark; everything on one machine with %d CPUs.\n", o.size, o.keys, runtime.NumCPU())
	wire := "tcp wire without TLS"
	if o.wire == "shm" {
		wire = fmt.Sprintf("shm wire, polled for %s before a wait", o.spin)
	}
	fmt.Fprintf(out, "farpool: one compute shard with one worker, one memory node with one executor, %s. %s\n", wire, strings.TrimSpace(string(version)))
	fmt.Fprintf(out, "CPU in microseconds an operation, from /proc/<pid>/stat; ratio: farpool over redis-server.\n\n")
	fmt.Fprintf(out, "| op | clients | pipeline | redis op/s | p50 ms | p99 ms | CPU | farpool op/s | p50 ms | p99 ms | CPU shard | CPU node | CPU both | trips/op | rate ratio | CPU ratio | load CPU redis / farpool |\n")
	fmt.Fprintf(out, "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n")
	for _, operation := range []string{"set", "get"} {
		for _, pipeline := range []int{1, 16} {
			for _, clients := range []int{1, 50} {
				var measured [2]figures
				for i, t := range targets {
					if measured[i], err = t.timed(o, operation, clients, pipeline); err != nil {
						return err
					}
				}
				r, f := measured[0], measured[1]
				fmt.Fprintf(out, "| %s | %d | %d | %.0f | %.3f | %.3f | %.1f | %.0f | %.3f | %.3f | %.1f | %.1f | %.1f | %.2f | %.2f | %.1f | %.1f / %.1f |\n",
					strings.ToUpper(operation), clients, pipeline, r.rate, r.p50, r.p99, r.total(), f.rate, f.p50, f.p99, f.perOperation(f.cpu[0]),
					f.perOperation(f.cpu[1]), f.total(), f.trips, f.rate/r.rate, f.total()/max(r.total(), 0.01), r.perOperation(r.load), f.perOperation(f.load))
			}
		}
	}
	return nil
}

func main() {
	var o options
	flag.StringVar(&o.binaries, "bin", "build/release/apps", "directory of the two daemons")
	flag.StringVar(&o.redis, "redis", "redis-server", "the server to compare with")
	flag.StringVar(&o.load, "load", "redis-benchmark", "the load generator")
	flag.StringVar(&o.wire, "wire", "tcp", "between shard and memory node: tcp or shm")
	flag.DurationVar(&o.spin, "spin", 0, "of shm: how long to poll before waiting; buys latency with processor time")
	flag.IntVar(&o.keys, "keys", 100_000, "keys, all of them set before")
	flag.IntVar(&o.size, "size", 64, "bytes of a value")
	flag.Float64Var(&o.seconds, "seconds", 2, "about how long each figure is measured")
	flag.Parse()
	if o.keys < 1 || o.size < 1 || o.seconds <= 0 {
		fmt.Fprintln(os.Stderr, "bench/resp: -keys, -size and -seconds must be more than 0")
		os.Exit(2)
	}
	if o.wire != "tcp" && o.wire != "shm" {
		fmt.Fprintf(os.Stderr, "bench/resp: there is no wire %q, only tcp and shm\n", o.wire)
		os.Exit(2)
	}
	for _, needed := range []string{filepath.Join(o.binaries, "farpool-memory-node"), filepath.Join(o.binaries, "farpool-compute-shard")} {
		if _, err := os.Stat(needed); errors.Is(err, os.ErrNotExist) {
			fmt.Fprintf(os.Stderr, "bench/resp: %s is not there: build it with `make release`\n", needed)
			os.Exit(2)
		}
	}
	if err := run(o, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "bench/resp:", err)
		os.Exit(1)
	}
}

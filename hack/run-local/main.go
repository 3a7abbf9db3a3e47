// SPDX-License-Identifier: Apache-2.0

// Run-local starts the data plane without Kubernetes: one memory node and one compute shard as processes of this machine, with
// a CA of their own that is thrown away at the end.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"

	"farpool.dev/farpool/hack/local"
)

// freeAddress prefers a port, and takes any other where that one is in use.
func freeAddress(preferred int) (string, error) {
	listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", preferred))
	if err != nil {
		if listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			return "", err
		}
	}
	defer listener.Close()
	return listener.Addr().String(), nil
}

// A daemon is a child whose lines are shown with its name before them.
type daemon struct {
	name  string
	cmd   *exec.Cmd
	ended chan struct{} // closed once exit is set
	exit  error
}

func start(name string, out *lines, args ...string) (*daemon, error) {
	d := &daemon{name: name, cmd: exec.Command(args[0], args[1:]...), ended: make(chan struct{})}
	// The terminal's Ctrl-C goes to the whole group; these two are stopped in order instead.
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	reader, writer := io.Pipe()
	d.cmd.Stdout, d.cmd.Stderr = writer, writer
	go out.copy(name, reader)
	if err := d.cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s: %w; build it with `make daemons`", name, err)
	}
	go func() {
		d.exit = d.cmd.Wait()
		_ = writer.Close()
		if d.exit == nil {
			d.exit = errors.New("exit status 0")
		}
		close(d.ended)
	}()
	return d, nil
}

func (d *daemon) stop() error {
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return nil // it has ended
	}
	select {
	case <-d.ended:
		return nil
	case <-time.After(10 * time.Second):
	}
	if err := d.cmd.Process.Kill(); err != nil {
		return err
	}
	<-d.ended
	return fmt.Errorf("%s did not end within 10s of SIGTERM and was killed", d.name)
}

type lines struct {
	lock sync.Mutex
	out  io.Writer
}

func (l *lines) copy(name string, from io.Reader) {
	scanner := bufio.NewScanner(from)
	for scanner.Scan() {
		l.lock.Lock()
		fmt.Fprintf(l.out, "%-13s | %s\n", name, scanner.Text())
		l.lock.Unlock()
	}
	// A line beyond the scanner's bound must not block the child.
	_, _ = io.Copy(io.Discard, from)
}

// ping asks once, the way redis-cli would.
func ping(address string) error {
	connection, err := net.DialTimeout("tcp", address, time.Second)
	if err != nil {
		return err
	}
	defer connection.Close()
	if err := connection.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	if _, err := io.WriteString(connection, "*1\r\n$4\r\nPING\r\n"); err != nil {
		return err
	}
	reply, err := bufio.NewReader(connection).ReadString('\n')
	if err != nil {
		return err
	}
	if reply != "+PONG\r\n" {
		return fmt.Errorf("PING was answered with %q", reply)
	}
	return nil
}

// ready waits for the shard's answer; a daemon that ends first is the better reason.
func ready(ctx context.Context, address string, daemons ...*daemon) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := ping(address)
		if err == nil {
			return nil
		}
		for _, d := range daemons {
			select {
			case <-d.ended:
				return fmt.Errorf("%s ended before it served: %w; its last lines are above", d.name, d.exit)
			default:
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("no answer at %s within 30s: %w", address, err)
		case <-ticker.C:
		}
	}
}

func serve(ctx context.Context) (err error) {
	binaries := flag.String("bin", "build/release/apps", "directory of the two daemons")
	memory := flag.String("memory", "512Mi", "that the memory node lends")
	protocol := flag.String("protocol", "rcuckoo", "the index protocol: rcuckoo, race or outback")
	level := flag.String("log-level", "warning", "log level of the two daemons")
	execute := flag.Bool("exec", false, "run the arguments as a command once the pool serves (FARPOOL_ADDRESS names it), then stop")
	flag.Parse()

	directory, err := os.MkdirTemp("", "farpool-local-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(directory)) }()
	if err := local.WriteCertificates(directory, local.PoolUID, []local.Holder{{Role: "node", Name: "local-0"}, {Role: "client", Name: "shard-0"}}); err != nil {
		return err
	}
	var addresses [4]string
	for i, preferred := range []int{7400, 7402, 6379, 7412} {
		if addresses[i], err = freeAddress(preferred); err != nil {
			return err
		}
	}
	session, nodeMetrics, resp, shardMetrics := addresses[0], addresses[1], addresses[2], addresses[3]
	common := func(holder string) []string {
		return []string{
			"--pool-uid", local.PoolUID, "--tls-ca", filepath.Join(directory, "ca.crt"), "--tls-cert", filepath.Join(directory, holder+".crt"),
			"--tls-key", filepath.Join(directory, holder+".key"), "--agent-listen", "none", "--log-level", *level, "--log-format", "text",
		}
	}
	out := &lines{out: os.Stderr}
	node, err := start("memory node", out, append([]string{
		filepath.Join(*binaries, "farpool-memory-node"), "--name", "local-0", "--standalone", "--protocol", *protocol, "--memory", *memory,
		"--listen", session, "--advertise", session, "--metrics-listen", nodeMetrics}, common("node-local-0")...)...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, node.stop()) }()
	shard, err := start("compute shard", out, append([]string{
		filepath.Join(*binaries, "farpool-compute-shard"), "--name", "shard-0", "--drain", "0s", "--bootstrap", session,
		"--listen", resp, "--metrics-listen", shardMetrics, "--map-cache", filepath.Join(directory, "map")}, common("client-shard-0")...)...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, shard.stop()) }()

	begun := time.Now()
	if err := ready(ctx, resp, node, shard); err != nil {
		return err
	}
	host, port, err := net.SplitHostPort(resp)
	if err != nil {
		return err
	}
	if *execute {
		return runChild(ctx, flag.Args(), resp)
	}
	fmt.Printf(`Ready after %d ms: one memory node (%s), one compute shard.

  redis-cli -h %s -p %s                  then: SET greeting hello, GET greeting, INCR visits
  redis-benchmark -h %s -p %s -t set,get -q
  curl http://%s/metrics              compute shard
  curl http://%s/metrics              memory node

Ctrl-C ends both and forgets the data.
`, time.Since(begun).Milliseconds(), *memory, host, port, host, port, shardMetrics, nodeMetrics)
	select {
	case <-ctx.Done():
		return nil
	case <-node.ended:
		return fmt.Errorf("the memory node ended: %w", node.exit)
	case <-shard.ended:
		return fmt.Errorf("the compute shard ended: %w", shard.exit)
	}
}

func runChild(ctx context.Context, args []string, address string) error {
	if len(args) == 0 {
		return errors.New("--exec needs a command")
	}
	child := exec.CommandContext(ctx, args[0], args[1:]...)
	child.Stdin, child.Stdout, child.Stderr = os.Stdin, os.Stdout, os.Stderr
	child.Env = append(os.Environ(), "FARPOOL_ADDRESS="+address)
	return child.Run()
}

// The kernel ties Pdeathsig to the thread that started the child, so the main goroutine keeps the main thread.
func init() { runtime.LockOSThread() }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := serve(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "run-local:", err)
		os.Exit(1)
	}
}

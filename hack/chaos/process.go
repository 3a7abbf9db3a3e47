// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// process is one daemon with a fixed name, command line and ports; it may live many times.
type process struct {
	name    string
	args    []string
	metrics string // host:port
	log     string
	cmd     *exec.Cmd
	ended   chan struct{} // closed when this life is over
	lives   int
	counted map[string]float64 // counters of lives that are over
}

// start begins a life. Its lines are appended to the process's log.
func (p *process) start() error {
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	p.cmd = exec.Command(p.args[0], p.args[1:]...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	// Ctrl-C is for the program that runs them; what it leaves behind must not live on.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		return fmt.Errorf("%s: %w; build it with `make release`", p.name, err)
	}
	p.lives++
	ended, cmd := make(chan struct{}), p.cmd
	p.ended = ended
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	return nil
}

func (p *process) signal(number syscall.Signal) error {
	if err := p.cmd.Process.Signal(number); err != nil {
		return fmt.Errorf("%s has ended on its own: %w; its last lines are in %s", p.name, err, p.log)
	}
	return nil
}

// kill ends a life as a crash would, after its counters have been read.
func (p *process) kill() error {
	p.retire()
	if err := p.signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-p.ended
	return nil
}

// end asks for an orderly end.
func (p *process) end() error {
	p.retire()
	if err := p.signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-p.ended:
		return nil
	case <-time.After(patience):
		return fmt.Errorf("%s did not end within %s of SIGTERM", p.name, patience)
	}
}

func (p *process) alive() bool {
	if p.ended == nil {
		return false
	}
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// retire adds the counters of this life to those of the lives before it.
func (p *process) retire() {
	page, err := p.scrape()
	if err != nil {
		return // it was not up yet, and has counted nothing
	}
	if p.counted == nil {
		p.counted = map[string]float64{}
	}
	for name, value := range page {
		if strings.HasSuffix(name, "_total") {
			p.counted[name] += value
		}
	}
}

var web = http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

// scrape reads the metrics page; samples of one name are added up.
func (p *process) scrape() (map[string]float64, error) {
	answer, err := web.Get("http://" + p.metrics + "/metrics")
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	return samples(answer.Body)
}

func samples(page io.Reader) (map[string]float64, error) {
	sums := map[string]float64{}
	lines := bufio.NewScanner(page)
	for lines.Scan() {
		line := lines.Text()
		space := strings.LastIndexByte(line, ' ')
		if space < 0 || strings.HasPrefix(line, "#") {
			continue
		}
		value, err := strconv.ParseFloat(line[space+1:], 64)
		if err != nil {
			return nil, fmt.Errorf("metrics: %w in %q", err, line)
		}
		name, _, _ := strings.Cut(line[:space], "{")
		sums[name] += value
	}
	return sums, lines.Err()
}

// ready waits until the probe says so.
func (p *process) ready(ctx context.Context) error {
	return eventually(ctx, patience, func() error {
		if !p.alive() {
			return final(fmt.Errorf("%s ended on its own; its last lines are in %s", p.name, p.log))
		}
		answer, err := web.Get("http://" + p.metrics + "/readyz")
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		why, _ := io.ReadAll(io.LimitReader(answer.Body, 500))
		if answer.StatusCode != http.StatusOK {
			return fmt.Errorf("%s is not ready: %s", p.name, strings.TrimSpace(string(why)))
		}
		return nil
	})
}

// finalError is one that more patience does not mend.
type finalError struct{ error }

func (e finalError) Unwrap() error { return e.error }
func final(err error) error        { return finalError{err} }

// eventually asks again until there is no error, the limit has passed, or the error is final.
func eventually(ctx context.Context, limit time.Duration, what func() error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		err := what()
		var last finalError
		if err == nil || errors.As(err, &last) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("after %s: %w", limit, err)
		case <-tick.C:
		}
	}
}

// ports hands out ports that the kernel gives to no outgoing connection, so that one stays free while its process is dead.
type ports struct{ next int }

func (p *ports) take() (string, error) {
	for ; p.next < 32000; p.next++ {
		address := fmt.Sprintf("127.0.0.1:%d", p.next)
		listener, err := net.Listen("tcp", address)
		if err != nil {
			continue
		}
		_ = listener.Close()
		p.next++
		return address, nil
	}
	return "", errors.New("no free port below those of outgoing connections")
}

// workspace is a directory on memory where there is one: memory files are as large as what is lent.
func workspace() (string, error) {
	parent := os.TempDir()
	if _, err := os.Stat("/dev/shm"); err == nil && os.Getenv("TMPDIR") == "" {
		parent = "/dev/shm"
	}
	return os.MkdirTemp(parent, "farpool-chaos-")
}

func logFile(directory, name string) string { return filepath.Join(directory, name+".log") }

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"farpool.dev/farpool/e2e/chaos"
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
	case <-time.After(chaos.Patience):
		return fmt.Errorf("%s did not end within %s of SIGTERM", p.name, chaos.Patience)
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

// scrape reads the metrics page.
func (p *process) scrape() (map[string]float64, error) { return chaos.Scrape(p.metrics) }

// ready waits until the probe says so.
func (p *process) ready(ctx context.Context) error {
	return chaos.Eventually(ctx, chaos.Patience, func() error {
		if !p.alive() {
			return chaos.Final(fmt.Errorf("%s ended on its own; its last lines are in %s", p.name, p.log))
		}
		answer, err := chaos.Web.Get("http://" + p.metrics + "/readyz")
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

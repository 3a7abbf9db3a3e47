// SPDX-License-Identifier: Apache-2.0

package local

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

// Process is one daemon with a fixed name, command line and ports; it may live many times.
type Process struct {
	Name    string
	args    []string
	other   string // the daemon of the other version
	metrics string // host:port
	Log     string
	cmd     *exec.Cmd
	ended   chan struct{} // closed when this life is over
	Lives   int
	Counted map[string]float64 // counters of lives that are over
}

// Start begins a life. Its lines are appended to the process's log.
func (p *Process) Start() error {
	log, err := os.OpenFile(p.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	p.cmd = exec.Command(p.args[0], p.args[1:]...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	// Ctrl-C is for the program that runs them; what it leaves behind must not live on.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		return fmt.Errorf("%s: %w; build it with `make daemons`", p.Name, err)
	}
	p.Lives++
	ended, cmd := make(chan struct{}), p.cmd
	p.ended = ended
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	return nil
}

func (p *Process) Signal(number syscall.Signal) error {
	if err := p.cmd.Process.Signal(number); err != nil {
		return fmt.Errorf("%s has ended on its own: %w; its last lines are in %s", p.Name, err, p.Log)
	}
	return nil
}

// Kill ends a life as a crash would, after its counters have been read.
func (p *Process) Kill() error {
	p.retire()
	if err := p.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-p.ended
	return nil
}

// End asks for an orderly end.
func (p *Process) End() error {
	p.retire()
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-p.ended:
		return nil
	case <-time.After(chaos.Patience):
		return fmt.Errorf("%s did not end within %s of SIGTERM", p.Name, chaos.Patience)
	}
}

// Change makes the next life one of the other version.
func (p *Process) Change() { p.args[0], p.other = p.other, p.args[0] }

func (p *Process) Alive() bool {
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
func (p *Process) retire() {
	page, err := p.Scrape()
	if err != nil {
		return // it was not up yet, and has counted nothing
	}
	if p.Counted == nil {
		p.Counted = map[string]float64{}
	}
	for name, value := range page {
		if strings.HasSuffix(name, "_total") {
			p.Counted[name] += value
		}
	}
}

// Scrape reads the metrics page.
func (p *Process) Scrape() (map[string]float64, error) { return chaos.Scrape(p.metrics) }

// Ready waits until the probe says so.
func (p *Process) Ready(ctx context.Context) error {
	return chaos.Eventually(ctx, chaos.Patience, func() error {
		if !p.Alive() {
			return chaos.Final(fmt.Errorf("%s ended on its own; its last lines are in %s", p.Name, p.Log))
		}
		answer, err := chaos.Web.Get("http://" + p.metrics + "/readyz")
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		why, _ := io.ReadAll(io.LimitReader(answer.Body, 500))
		if answer.StatusCode != http.StatusOK {
			return fmt.Errorf("%s is not ready: %s", p.Name, strings.TrimSpace(string(why)))
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

// Workspace is a directory on memory where there is one: memory files are as large as what is lent.
func Workspace(program string) (string, error) {
	parent := os.TempDir()
	if _, err := os.Stat("/dev/shm"); err == nil && os.Getenv("TMPDIR") == "" {
		parent = "/dev/shm"
	}
	return os.MkdirTemp(parent, "farpool-"+program+"-")
}

func logFile(directory, name string) string { return filepath.Join(directory, name+".log") }

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Linux counts a process's time in hundredths of a second in /proc, whatever the kernel's own tick.
const ticksPerSecond = 100

// A process is a server, or a part of one, that runs until it is stopped.
type process struct {
	name  string
	cmd   *exec.Cmd
	log   *os.File
	ended chan struct{}
}

func start(directory, name string, args ...string) (*process, error) {
	log, err := os.Create(filepath.Join(directory, strings.ReplaceAll(name, " ", "-")+".log"))
	if err != nil {
		return nil, err
	}
	p := &process{name: name, cmd: exec.Command(args[0], args[1:]...), log: log, ended: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		_ = log.Close()
		return nil, fmt.Errorf("%s does not start: %w", name, err)
	}
	go func() {
		_ = p.cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

func (p *process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.ended:
	case <-time.After(15 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.ended
	}
	_ = p.log.Close()
}

// alive returns an error once the process has ended.
func (p *process) alive() error {
	select {
	case <-p.ended:
		return fmt.Errorf("%s ended on its own (%s): read %s", p.name, p.cmd.ProcessState, p.log.Name())
	default:
		return nil
	}
}

// cpu returns the time that the process has spent so far, in its own code and in the kernel for it.
func (p *process) cpu() (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		return 0, fmt.Errorf("%s has ended: %w", p.name, err)
	}
	return spentTime(string(stat))
}

// spentTime adds utime and stime of a line of /proc/PID/stat.
func spentTime(stat string) (time.Duration, error) {
	// The second field is the program's name in parentheses, and may hold anything.
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(fields) < 13 {
		return 0, fmt.Errorf("/proc/PID/stat has too few fields: %q", stat)
	}
	var ticks int64
	for _, field := range fields[11:13] {
		value, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc/PID/stat cannot be read: %w", err)
		}
		ticks += value
	}
	return time.Duration(ticks) * time.Second / ticksPerSecond, nil
}

// freeAddresses returns addresses that nothing listens on.
func freeAddresses(number int) ([]string, error) {
	var addresses []string
	for range number {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		// All are held until the last one is known, so that no two are the same.
		defer listener.Close()
		addresses = append(addresses, listener.Addr().String())
	}
	return addresses, nil
}

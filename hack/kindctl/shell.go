// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// started is the zero of the elapsed seconds. A caller that runs several commands in a row hands its own down.
var started = func() time.Time {
	if seconds, err := strconv.ParseInt(os.Getenv("FARPOOL_STARTED"), 10, 64); err == nil {
		return time.Unix(seconds, 0)
	}
	return time.Now()
}()

// say writes progress to stderr: stdout is for answers.
func say(format string, arguments ...any) {
	fmt.Fprintf(os.Stderr, "[%4.0fs] %s\n", time.Since(started).Seconds(), fmt.Sprintf(format, arguments...))
}

// step runs one named piece of work within its deadline, and shows while it lasts that it is alive.
func step(ctx context.Context, limit time.Duration, name string, work func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	say("%s ...", name)
	begun := time.Now()
	done := make(chan error, 1)
	go func() { done <- work(ctx) }()
	ticker := time.NewTicker(20 * time.Second)
	defer ticker.Stop()
	for {
		select {
		case err := <-done:
			if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return fmt.Errorf("%s: not done within %v: %w", name, limit, err)
			}
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			if spent := time.Since(begun); spent > time.Second {
				say("%s: done in %.0fs", name, spent.Seconds())
			}
			return nil
		case <-ticker.C:
			say("  still at it: %s (%.0fs)", name, time.Since(begun).Seconds())
		}
	}
}

// command is one child process. Fields that are empty keep the parent's.
type command struct {
	dir  string
	env  []string
	in   io.Reader
	out  io.Writer
	args []string
}

func (c command) run(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, c.args[0], c.args[1:]...)
	cmd.Dir, cmd.Stdin, cmd.Stdout = c.dir, c.in, c.out
	cmd.Env = append(os.Environ(), c.env...)
	// A child gets the chance to clean up, and may not outlive that by more than a moment.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	var said bytes.Buffer
	cmd.Stderr = &said
	if c.out == nil {
		cmd.Stdout = &said
	}
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w\n%s", abbreviate(strings.Join(c.args, " ")), err, tail(said.String(), 25))
	}
	return nil
}

// abbreviate keeps a long command line from hiding what went wrong with it.
func abbreviate(line string) string {
	if len(line) > 160 {
		return line[:160] + " ..."
	}
	return line
}

func run(ctx context.Context, args ...string) error { return command{args: args}.run(ctx) }

func output(ctx context.Context, args ...string) (string, error) {
	var out bytes.Buffer
	err := command{args: args, out: &out}.run(ctx)
	return strings.TrimSpace(out.String()), err
}

// asRoot prefixes sudo where this process is not root. It never asks for a password: nobody may be there to answer.
func asRoot(args ...string) []string {
	if os.Geteuid() == 0 {
		return args
	}
	return append([]string{"sudo", "-n"}, args...)
}

func tail(text string, lines int) string {
	all := strings.Split(strings.TrimRight(text, "\n"), "\n")
	if len(all) > lines {
		all = all[len(all)-lines:]
	}
	return "  | " + strings.Join(all, "\n  | ")
}

// until asks again and again, and gives up at the deadline with what the last answer was.
func until(ctx context.Context, limit time.Duration, what string, try func() error) error {
	return untilEvery(ctx, 200*time.Millisecond, limit, what, try)
}

// untilEvery is for questions that cost more.
func untilEvery(ctx context.Context, every, limit time.Duration, what string, try func() error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	pause := time.NewTicker(every)
	defer pause.Stop()
	for {
		err := try()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: not within %v: %w", what, limit, err)
		case <-pause.C:
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	// Tests that take long, and find nothing that others do not.
	slowTests = "^(TestTheOperatorDies|TestAMapHas)"
	// A mutant that goes round for ever ends when its tests have used this much more time than they need, or this much memory.
	patience  = 20
	kibibytes = 6 << 20
	// Tests that a mutant is tried with after the first, before tests that take longer.
	quickly = 10 * time.Millisecond
)

// suite is the tests of a package, in a binary that holds all mutants of it.
type suite struct {
	directory, binary string
	// starts is how long a process with no test takes.
	starts time.Duration
	// tests from the fastest on.
	tests []test
}

type test struct {
	name string
	// takes is how long it takes, with the start of its process.
	takes time.Duration
	// reaches the code of these mutants.
	reaches map[int]bool
}

// prepare builds the tests, and finds out what each reaches.
func (s *suite) prepare() error {
	build := exec.Command("go", "test", "-c", "-vet=off", "-ldflags=-w", "-o", s.binary, ".")
	build.Dir, build.Env = s.directory, append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath -buildvcs=false")
	if said, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the tests of %s: %w\n%s", s.directory, err, said)
	}
	list := exec.Command(s.binary, "-test.list", "^Test", "-test.skip", slowTests)
	list.Dir = s.directory
	names, err := list.Output()
	if err != nil {
		return fmt.Errorf("list the tests of %s: %w", s.directory, err)
	}
	for i := range 5 {
		began := time.Now()
		if _, err := s.run("^$", time.Minute, "MUTANT=0"); err != nil {
			return fmt.Errorf("run no test of %s: %w", s.directory, err)
		}
		if took := time.Since(began); i == 0 || took < s.starts {
			s.starts = took
		}
	}
	for name := range strings.FieldsSeq(string(names)) {
		t := test{name: name, reaches: map[int]bool{}}
		file := filepath.Join(filepath.Dir(s.binary), "reached")
		began := time.Now()
		ended, err := s.run("^"+name+"$", time.Hour, "MUTANTS_REACHED="+file)
		if err == nil && !ended.passed {
			err = fmt.Errorf("it fails with no mutant: %s", ended.said)
		}
		if err != nil {
			return fmt.Errorf("run %s of %s: %w", name, s.directory, err)
		}
		t.takes = time.Since(began)
		reached, err := os.ReadFile(file)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		_ = os.Remove(file)
		for number := range strings.FieldsSeq(string(reached)) {
			n, err := strconv.Atoi(number)
			if err != nil {
				return fmt.Errorf("read what %s reaches: %w", name, err)
			}
			t.reaches[n] = true
		}
		s.tests = append(s.tests, t)
	}
	slices.SortFunc(s.tests, func(a, b test) int { return cmp.Compare(a.takes, b.takes) })
	return nil
}

// try a mutant. It returns "" if a test fails, and else why none did; late says that one failed because it took too long. It runs more tests at once each time:
// what fails at once keeps a mutant from tests that it would have wait for their deadlines.
func (s *suite) try(m *mutant) (fate string, late bool, err error) {
	var batch []string
	var takes, most time.Duration
	reached := false
	most = quickly
	few := 1
	fails := func() (bool, error) {
		if len(batch) == 0 {
			return false, nil
		}
		ended, err := s.run("^("+strings.Join(batch, "|")+")$", patience*takes+10*time.Second, "MUTANT="+strconv.Itoa(m.number))
		batch, takes, late = nil, 0, ended.late
		return !ended.passed, err
	}
	for _, t := range s.tests {
		if !t.reaches[m.number] {
			continue
		}
		reached = true
		itself := max(0, t.takes-s.starts)
		if len(batch) == few || len(batch) > 0 && takes+itself > most {
			if failed, err := fails(); failed || err != nil {
				return "", late, err
			}
			few, most = 4*few, 4*most
		}
		takes += itself
		batch = append(batch, t.name)
	}
	if !reached {
		return "not covered", false, nil
	}
	if failed, err := fails(); failed || err != nil {
		return "", late, err
	}
	return "lived", false, nil
}

// ending is how tests ended.
type ending struct {
	passed bool
	// late: they were stopped, as they took too long.
	late bool
	said string
}

// run tests, for so long at most: longer is a failure, too.
func (s *suite) run(tests string, most time.Duration, environment string) (ending, error) {
	ctx, cancel := context.WithTimeout(context.Background(), most)
	defer cancel()
	script := fmt.Sprintf(`ulimit -v %d; exec "$0" "$@"`, kibibytes)
	c := exec.CommandContext(ctx, "sh", "-c", script, s.binary, "-test.run", tests, "-test.short", "-test.failfast", "-test.skip", slowTests)
	var output bytes.Buffer
	c.Dir, c.Stdout, c.Stderr, c.Env = s.directory, &output, &output, append(os.Environ(), environment)
	c.WaitDelay = time.Second
	err := c.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) || ctx.Err() != nil {
		return ending{late: ctx.Err() != nil, said: output.String()}, nil
	}
	return ending{passed: err == nil, said: output.String()}, err
}

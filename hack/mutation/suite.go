// SPDX-License-Identifier: Apache-2.0

package mutation

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	// A mutant that goes round for ever ends when its tests have used this much more time than they need, or this much memory.
	patience  = 20
	kibibytes = 6 << 20
	// So often tests are tried that are late with a mutant and without it.
	attempts = 3
	// Tests that a mutant is tried with after the first, before tests that take longer.
	quickly = 10 * time.Millisecond
)

// Suite is a test binary that holds mutants. MUTANT is the number of the one that lives, and MUTANTS_REACHED names a file to which the binary writes the numbers
// of those whose code it came to.
type Suite struct {
	Directory, Binary string
	// Tests are the names of all tests.
	Tests []string
	// Arguments has the binary run some tests, or none, up to the first that fails.
	Arguments func(tests []string) []string
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

// Prepare finds out what each test reaches.
func (s *Suite) Prepare() error {
	for i := range 5 {
		began := time.Now()
		if _, err := s.run(nil, time.Minute, "MUTANT=0"); err != nil {
			return fmt.Errorf("run no test of %s: %w", s.Directory, err)
		}
		if took := time.Since(began); i == 0 || took < s.starts {
			s.starts = took
		}
	}
	for _, name := range s.Tests {
		t := test{name: name, reaches: map[int]bool{}}
		file := s.Binary + ".reached"
		began := time.Now()
		ended, err := s.run([]string{name}, time.Hour, "MUTANTS_REACHED="+file)
		if err == nil && !ended.passed {
			err = fmt.Errorf("it fails with no mutant: %s", ended.said)
		}
		if err != nil {
			return fmt.Errorf("run %s of %s: %w", name, s.Directory, err)
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

// try has the tests that reach a mutant run with it. It runs more tests at once each time: what fails at once keeps a mutant from tests that it
// would have wait for their deadlines.
func (s *Suite) try(m *Mutant) (Fate, error) {
	var batch []string
	var takes, most time.Duration
	reached := false
	most = quickly
	few := 1
	fate := Lived
	// over: no other test has to be tried.
	over := func() (bool, error) {
		if len(batch) == 0 {
			return false, nil
		}
		one, err := s.attempt(m, batch, patience*takes+10*time.Second)
		batch, takes = nil, 0
		if one != Lived {
			fate = one
		}
		return one == Killed || one == Late, err
	}
	for _, t := range s.tests {
		if !t.reaches[m.Number] {
			continue
		}
		reached = true
		itself := max(0, t.takes-s.starts)
		if len(batch) == few || len(batch) > 0 && takes+itself > most {
			if ends, err := over(); ends || err != nil {
				return fate, err
			}
			few, most = 4*few, 4*most
		}
		takes += itself
		batch = append(batch, t.name)
	}
	if !reached {
		return Unreached, nil
	}
	_, err := over()
	return fate, err
}

// attempt runs tests with a mutant. If they are late, it runs them without the mutant right afterwards: if they are late then, too, or take more than a small part
// of that time, the machine is busy with something else, and it begins again with more time. Undecided: that was so each time.
func (s *Suite) attempt(m *Mutant, tests []string, most time.Duration) (Fate, error) {
	for range attempts {
		ended, err := s.run(tests, most, "MUTANT="+strconv.Itoa(m.Number))
		switch {
		case err != nil:
			return "", err
		case ended.passed:
			return Lived, nil
		case !ended.late:
			return Killed, nil
		}
		began := time.Now()
		without, err := s.run(tests, most, "MUTANT=0")
		took := time.Since(began)
		switch {
		case err != nil:
			return "", err
		case without.passed && patience*took <= most:
			return Late, nil
		case without.passed:
			most = patience * took
		case without.late:
			most *= 4
		default:
			return "", fmt.Errorf("%s of %s: %s fail with no mutant: %s", m.place(), s.Directory, strings.Join(tests, ", "), without.said)
		}
	}
	return Undecided, nil
}

// ending is how tests ended.
type ending struct {
	passed bool
	// late: they were stopped, as they took too long.
	late bool
	said string
}

// run tests, for so long at most: longer is a failure, too.
func (s *Suite) run(tests []string, most time.Duration, environment string) (ending, error) {
	ctx, cancel := context.WithTimeout(context.Background(), most)
	defer cancel()
	script := fmt.Sprintf(`ulimit -v %d; exec "$0" "$@"`, kibibytes)
	c := exec.CommandContext(ctx, "sh", append([]string{"-c", script, s.Binary}, s.Arguments(tests)...)...)
	var output bytes.Buffer
	c.Dir, c.Stdout, c.Stderr, c.Env = s.Directory, &output, &output, append(os.Environ(), environment)
	c.WaitDelay = time.Second
	err := c.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) || ctx.Err() != nil {
		return ending{late: ctx.Err() != nil, said: output.String()}, nil
	}
	return ending{passed: err == nil, said: output.String()}, err
}

// SPDX-License-Identifier: Apache-2.0

// Package mutation has what tools share that change code in one place at a time and require a test to notice: the list of mutants that are known to be the
// program itself, the copy of the tree that is changed, and the trials. A tool puts all mutants into one test binary, and an environment variable says which
// one lives: a mutant costs the tests that reach it, and no build.
package mutation

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// Mutant is one change of one line.
type Mutant struct {
	Number       int
	File, Kind   string
	Line, Column int
	// Code is the line, without the space around it.
	Code string
}

func (m *Mutant) key() string { return m.File + "|" + m.Kind + "|" + m.Code }

func (m *Mutant) place() string { return fmt.Sprintf("%s:%d:%d %s", m.File, m.Line, m.Column, m.Kind) }

// Known is a file that lists other files of which no mutant survives (whole FILE), files whose mutants are tried only if somebody names them (untried FILE |
// REASON), and mutants that are the program itself (FILE | KIND | LINE OF CODE | REASON).
type Known struct {
	Name           string
	Whole, Untried []string
	equivalent     map[string]bool
}

// Read reads the list.
func Read(name string) (*Known, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("read the list of equivalent mutants: %w", err)
	}
	defer file.Close()
	known := &Known{Name: name, equivalent: map[string]bool{}}
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.Split(line, " | ")
		whole, isWhole := strings.CutPrefix(line, "whole ")
		untried, isUntried := strings.CutPrefix(fields[0], "untried ")
		switch {
		case isWhole:
			known.Whole = append(known.Whole, whole)
		case isUntried && len(fields) == 2 && fields[1] != "":
			known.Untried = append(known.Untried, untried)
		case !isUntried && len(fields) >= 4 && fields[len(fields)-1] != "":
			// The line of code may hold the separator.
			mutant := Mutant{File: fields[0], Kind: fields[1], Code: strings.Join(fields[2:len(fields)-1], " | ")}
			known.equivalent[mutant.key()] = true
		default:
			return nil, fmt.Errorf("%s: %q is none of whole FILE, untried FILE | REASON and FILE | KIND | LINE OF CODE | REASON", name, line)
		}
	}
	return known, lines.Err()
}

// Chooses says whether a mutant is tried: its FILE:LINE:KIND holds one of the names between commas, its file is not untried unless there are names, and a sample
// is of whole files alone.
func (k *Known) Chooses(m *Mutant, only string, sampled bool) bool {
	place := fmt.Sprintf("%s:%d:%s", filepath.Base(m.File), m.Line, m.Kind)
	named := slices.ContainsFunc(strings.Split(only, ","), func(one string) bool { return strings.Contains(place, one) })
	return named && (only != "" || !slices.Contains(k.Untried, m.File)) && (!sampled || slices.Contains(k.Whole, m.File))
}

// CopyTree copies the files of some directories, without what git ignores.
func CopyTree(to string, directories ...string) error {
	list, err := exec.Command("git", append([]string{"ls-files", "-z", "--cached", "--others", "--exclude-standard", "--"}, directories...)...).Output()
	if err != nil {
		return fmt.Errorf("list the tree's files: %w", err)
	}
	for name := range strings.SplitSeq(strings.TrimRight(string(list), "\x00"), "\x00") {
		content, err := os.ReadFile(name)
		if os.IsNotExist(err) {
			continue
		}
		if err != nil {
			return err
		}
		if err := os.MkdirAll(filepath.Join(to, filepath.Dir(name)), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(to, name), content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// Trial is a mutant, and the tests that may notice it.
type Trial struct {
	*Mutant
	Of []*Suite
}

// Sample chooses so many trials by random; 0: all of them.
func Sample(trials []Trial, most int, seed uint64) []Trial {
	if most <= 0 || most >= len(trials) {
		return trials
	}
	random := rand.New(rand.NewPCG(seed, 1))
	random.Shuffle(len(trials), func(i, j int) { trials[i], trials[j] = trials[j], trials[i] })
	return trials[:most]
}

// Fate says what became of a mutant.
type Fate string

// What can become of a mutant.
const (
	Killed Fate = "killed"
	// Late: tests were stopped, as they took too long. Without the mutant they ended in that time, right afterwards.
	Late  Fate = "killed by a deadline"
	Lived Fate = "lived"
	// Undecided: tests took too long with the mutant and without it, as the machine was busy with something else.
	Undecided  Fate = "undecided: its tests are late without it, too"
	Unreached  Fate = "not covered"
	Equivalent Fate = "equivalent"
)

// Judge tries mutants, some at once. It prints each that no test notices and that is not known, and each that a deadline killed. It returns what became of them, in their order.
func Judge(trials []Trial, known *Known, workers int) ([]Fate, error) {
	fates := make([]Fate, len(trials))
	var wait sync.WaitGroup
	var mu sync.Mutex
	var failure error
	queue := make(chan int)
	for range workers {
		wait.Go(func() {
			for i := range queue {
				t := trials[i]
				fate, err := t.judge()
				mu.Lock()
				switch {
				case err != nil:
					failure = err
				case fate == Killed:
				case fate != Late && fate != Undecided && known.equivalent[t.key()]:
					fate = Equivalent
				default:
					fmt.Printf("%s (%s): %s\n", t.place(), fate, t.Code)
				}
				fates[i] = fate
				mu.Unlock()
			}
		})
	}
	for i := range trials {
		queue <- i
	}
	close(queue)
	wait.Wait()
	return fates, failure
}

func (t Trial) judge() (Fate, error) {
	fate := Unreached
	for _, suite := range t.Of {
		switch one, err := suite.try(t.Mutant); {
		case err != nil || one == Killed || one == Late:
			return one, err
		case one == Undecided || one == Lived && fate == Unreached:
			fate = one
		}
	}
	return fate, nil
}

// Count says how many mutants met a fate.
func Count(fates []Fate, which Fate) int {
	return len(fates) - len(slices.DeleteFunc(slices.Clone(fates), func(fate Fate) bool { return fate == which }))
}

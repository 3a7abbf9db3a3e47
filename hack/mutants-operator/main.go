// SPDX-License-Identifier: Apache-2.0

// Command mutants-operator changes one condition, operator or loop at a time in packages of the operator, and requires a unit test of that package to
// notice. A mutant that no test can notice stands in operator/mutants.txt, with the reason.
//
// All mutants of a package are compiled into one test binary, and an environment variable says which one lives: a mutant costs the tests that reach it, and
// no build. Tools that build each mutant on its own, as gremlins does, need hours for what takes minutes here.
package main

import (
	"bufio"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// knownFile lists files of which no mutant survives (whole FILE), files whose mutants are tried only when --only names them (untried FILE | REASON), and
// mutants that are the program itself (FILE | KIND | LINE OF CODE | REASON).
const knownFile = "operator/mutants.txt"

var packages = []string{"plan", "apply", "pki", "shardmap", "protocol", "agent", "observe"}

func main() {
	sample := flag.Int("sample", 0, "try so many mutants, by random, of the files that "+knownFile+" calls whole; 0: all mutants of all files that it does not call untried")
	seed := flag.Uint64("seed", 1, "which mutants are in the sample")
	workers := flag.Int("workers", 1, "mutants that are tried at once")
	only := flag.String("only", "", "try only mutants of files whose names hold this, or one of several, with commas between them")
	flag.Parse()
	chosen := flag.Args()
	if len(chosen) == 0 {
		chosen = packages
	}
	if err := run(chosen, *only, *sample, *seed, *workers); err != nil {
		fmt.Fprintf(os.Stderr, "mutants-operator: %v\n", err)
		os.Exit(1)
	}
}

func run(chosen []string, only string, sample int, seed uint64, workers int) error {
	listed, err := readKnown(knownFile)
	if err != nil {
		return err
	}
	tree, err := os.MkdirTemp("", "mutants-operator-")
	if err != nil {
		return fmt.Errorf("make a directory for the copy of the tree: %w", err)
	}
	defer os.RemoveAll(tree)
	if err := copyTree(tree); err != nil {
		return err
	}
	type trial struct {
		of *suite
		*mutant
	}
	var trials []trial
	for _, name := range chosen {
		directory := "operator/internal/" + name
		mutants, err := instrument(tree, directory)
		if err != nil {
			return fmt.Errorf("%s: %w", directory, err)
		}
		mutants = slices.DeleteFunc(mutants, func(m *mutant) bool {
			named := slices.ContainsFunc(strings.Split(only, ","), func(part string) bool { return strings.Contains(filepath.Base(m.file), part) })
			return !named || only == "" && slices.Contains(listed.untried, m.file) || sample > 0 && !slices.Contains(listed.whole, m.file)
		})
		if len(mutants) == 0 {
			continue
		}
		of := &suite{directory: filepath.Join(tree, directory), binary: filepath.Join(tree, name+".test")}
		for _, m := range mutants {
			trials = append(trials, trial{of, m})
		}
	}
	if len(trials) == 0 {
		return fmt.Errorf("no mutant is there to be tried: choose other packages or files")
	}
	if sample > 0 && sample < len(trials) {
		random := rand.New(rand.NewPCG(seed, 1))
		random.Shuffle(len(trials), func(i, j int) { trials[i], trials[j] = trials[j], trials[i] })
		trials = trials[:sample]
	}
	prepared := map[*suite]bool{}
	for _, t := range trials {
		if !prepared[t.of] {
			prepared[t.of] = true
			if err := t.of.prepare(); err != nil {
				return err
			}
		}
	}

	var wait sync.WaitGroup
	var mu sync.Mutex
	var failure error
	queue := make(chan trial)
	killed, late, equivalent := 0, 0, 0
	var survivors []string
	for range workers {
		wait.Go(func() {
			for t := range queue {
				fate, isLate, err := t.of.try(t.mutant)
				mu.Lock()
				switch {
				case err != nil:
					failure = err
				case fate == "":
					killed++
					if isLate {
						late++
						fmt.Printf("%s:%d:%d %s (killed by a deadline): %s\n", t.file, t.line, t.column, t.kind, t.code)
					}
				case listed.equivalent[t.key()]:
					equivalent++
				default:
					survivors = append(survivors, fmt.Sprintf("%s:%d:%d %s (%s): %s", t.file, t.line, t.column, t.kind, fate, t.code))
					fmt.Println(survivors[len(survivors)-1])
				}
				mu.Unlock()
			}
		})
	}
	for _, t := range trials {
		queue <- t
	}
	close(queue)
	wait.Wait()
	if failure != nil {
		return failure
	}
	fmt.Printf("total: operator mutants: %d killed of %d, %d of these by a deadline, %d more are equivalent (%s), %d survive\n", killed, len(trials), late, equivalent, knownFile, len(survivors))
	if len(survivors) > 0 {
		return fmt.Errorf("no test notices %d mutants: write one that does, or say in %s why none can", len(survivors), knownFile)
	}
	return nil
}

func (m *mutant) key() string { return m.file + "|" + m.kind + "|" + m.code }

// known is what knownFile says.
type known struct {
	whole, untried []string
	equivalent     map[string]bool
}

func readKnown(name string) (*known, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("read the list of equivalent mutants: %w", err)
	}
	defer file.Close()
	listed := &known{equivalent: map[string]bool{}}
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
			listed.whole = append(listed.whole, whole)
		case isUntried && len(fields) == 2 && fields[1] != "":
			listed.untried = append(listed.untried, untried)
		case !isUntried && len(fields) == 4 && fields[3] != "":
			listed.equivalent[strings.Join(fields[:3], "|")] = true
		default:
			return nil, fmt.Errorf("%s: %q is none of whole FILE, untried FILE | REASON and FILE | KIND | LINE OF CODE | REASON", name, line)
		}
	}
	return listed, lines.Err()
}

// copyTree copies what the operator's packages are built from.
func copyTree(to string) error {
	list, err := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "go.mod", "go.sum", "api", "config", "operator").Output()
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

// SPDX-License-Identifier: Apache-2.0

// Command mutants-operator changes one condition, operator or loop at a time in packages of the operator, and requires a unit test of that package to
// notice. A mutant that no test can notice stands in operator/mutants.txt, with the reason.
//
// All mutants of a package are compiled into one test binary, and an environment variable says which one lives: a mutant costs the tests that reach it, and
// no build. Tools that build each mutant on its own, as gremlins does, need hours for what takes minutes here.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"farpool.dev/farpool/hack/mutation"
)

const knownFile = "operator/mutants.txt"

// Tests that take long, and find nothing that others do not.
const slowTests = "^(TestTheOperatorDies|TestAMapHas|TestAgainstAnAPIServer)"

var packages = []string{"plan", "apply", "pki", "shardmap", "protocol", "agent", "observe", "inject", "controller/sidecars"}

func main() {
	sample := flag.Int("sample", 0, "try so many mutants, by random, of the files that "+knownFile+" calls whole; 0: all mutants of all files that it does not call untried")
	seed := flag.Uint64("seed", 1, "which mutants are in the sample")
	workers := flag.Int("workers", 1, "mutants that are tried at once")
	only := flag.String("only", "", "try only mutants whose FILE:LINE:KIND holds one of these, with commas between them")
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
	known, err := mutation.Read(knownFile)
	if err != nil {
		return err
	}
	tree, err := os.MkdirTemp("", "mutants-operator-")
	if err != nil {
		return fmt.Errorf("make a directory for the copy of the tree: %w", err)
	}
	defer os.RemoveAll(tree)
	if err := mutation.CopyTree(tree, "go.mod", "go.sum", "api", "config", "docs", "operator"); err != nil {
		return err
	}
	var trials []mutation.Trial
	for _, name := range chosen {
		directory := "operator/internal/" + name
		mutants, err := instrument(tree, directory)
		if err != nil {
			return fmt.Errorf("%s: %w", directory, err)
		}
		of := []*mutation.Suite{{Directory: filepath.Join(tree, directory), Binary: filepath.Join(tree, strings.ReplaceAll(name, "/", "-")+".test"), Arguments: arguments}}
		for _, m := range mutants {
			if known.Chooses(m, only, sample > 0) {
				trials = append(trials, mutation.Trial{Mutant: m, Of: of})
			}
		}
	}
	if len(trials) == 0 {
		return fmt.Errorf("no mutant is there to be tried: choose other packages or files")
	}
	trials = mutation.Sample(trials, sample, seed)
	prepared := map[*mutation.Suite]bool{}
	for _, t := range trials {
		if suite := t.Of[0]; !prepared[suite] {
			prepared[suite] = true
			if err := build(suite); err != nil {
				return err
			}
		}
	}
	fates, err := mutation.Judge(trials, known, workers)
	if err != nil {
		return err
	}
	late := mutation.Count(fates, mutation.Late)
	killed, equivalent := mutation.Count(fates, mutation.Killed)+late, mutation.Count(fates, mutation.Equivalent)
	survive := len(fates) - killed - equivalent
	fmt.Printf("total: operator mutants: %d killed of %d, %d of these by a deadline, %d more are equivalent (%s), %d survive\n", killed, len(fates), late, equivalent, knownFile, survive)
	if survive > 0 {
		return fmt.Errorf("no test notices %d mutants: write one that does, or say in %s why none can", survive, knownFile)
	}
	return nil
}

// build builds the tests of a package, and prepares them.
func build(s *mutation.Suite) error {
	compile := exec.Command("go", "test", "-c", "-vet=off", "-ldflags=-w", "-o", s.Binary, ".")
	compile.Dir, compile.Env = s.Directory, append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath -buildvcs=false")
	if said, err := compile.CombinedOutput(); err != nil {
		return fmt.Errorf("build the tests of %s: %w\n%s", s.Directory, err, said)
	}
	list := exec.Command(s.Binary, "-test.list", "^Test", "-test.skip", slowTests)
	list.Dir = s.Directory
	names, err := list.Output()
	if err != nil {
		return fmt.Errorf("list the tests of %s: %w", s.Directory, err)
	}
	s.Tests = strings.Fields(string(names))
	return s.Prepare()
}

func arguments(tests []string) []string {
	return []string{"-test.run", "^(" + strings.Join(tests, "|") + ")$", "-test.short", "-test.failfast", "-test.skip", slowTests}
}

// SPDX-License-Identifier: Apache-2.0

// Command mutants-cpp has one condition of an if in a room of the data plane never hold or always hold, or leaves one statement out, and says which of these
// mutants no unit test notices. One that no test can notice stands in dataplane/mutants.txt, with the reason.
//
// All mutants of the chosen rooms are compiled into their tests, and an environment variable says which one lives: hack/mutation. Clang's own tools that change
// code (Mull) follow other releases of it than Debian has, and others build the tests anew for each mutant.
package main

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"farpool.dev/farpool/hack/mutation"
)

const knownFile = "dataplane/mutants.txt"

// The first number of a file's mutants follows a multiple of this.
const numbersOfFile = 1000

// The rooms, each with the rooms whose tests are about its code, the nearest first.
var rooms = map[string][]string{
	"net":     {"net", "node"},
	"control": {"control"},
	"session": {"session", "map", "directory", "index/rcuckoo", "node", "client"},
	"node":    {"node", "client", "protocols/outback"},
	"client":  {"client", "protocols/outback"},
}

// The test programs whose names do not follow from that of their room.
var programs = map[string]string{"protocols/outback": "outback_pool_test"}

// program returns the name of a room's test program.
func program(room string) string {
	if name, ok := programs[room]; ok {
		return name
	}
	return strings.ReplaceAll(room, "/", "_") + "_test"
}

func main() {
	sample := flag.Int("sample", 0, "try so many mutants, by random, of the files that "+knownFile+" calls whole; 0: all mutants of all files that it does not call untried")
	seed := flag.Uint64("seed", 1, "which mutants are in the sample")
	workers := flag.Int("workers", 1, "mutants that are tried at once")
	only := flag.String("only", "", "try only mutants whose FILE:LINE:KIND holds one of these, with commas between them")
	near := flag.Bool("near", false, "run only the tests of the room that a mutant is in")
	tests := flag.String("tests", "", "run only the tests of these rooms, with commas between them")
	jobs := flag.Int("jobs", 2, "files that are compiled at once")
	flag.Parse()
	chosen := flag.Args()
	if len(chosen) == 0 {
		chosen = slices.Sorted(maps.Keys(rooms))
	}
	for room := range rooms {
		switch {
		case *tests != "":
			rooms[room] = strings.Split(*tests, ",")
		case *near:
			rooms[room] = []string{room}
		}
	}
	if err := run(chosen, *only, *sample, *seed, *workers, *jobs); err != nil {
		fmt.Fprintf(os.Stderr, "mutants-cpp: %v\n", err)
		os.Exit(1)
	}
}

func run(chosen []string, only string, sample int, seed uint64, workers, jobs int) error {
	known, err := mutation.Read(knownFile)
	if err != nil {
		return err
	}
	tree, err := os.MkdirTemp("", "mutants-cpp-")
	if err != nil {
		return fmt.Errorf("make a directory for the copy of the tree: %w", err)
	}
	defer os.RemoveAll(tree)
	if err := mutation.CopyTree(tree, "api", "dataplane"); err != nil {
		return err
	}
	suites := map[string]*mutation.Suite{}
	var trials []mutation.Trial
	next := 0
	for _, room := range chosen {
		if rooms[room] == nil {
			return fmt.Errorf("%q is none of the rooms whose mutants can be tried: %s", room, strings.Join(slices.Sorted(maps.Keys(rooms)), ", "))
		}
		var of []*mutation.Suite
		for _, name := range rooms[room] {
			if suites[name] == nil {
				suites[name] = &mutation.Suite{Directory: filepath.Join(tree, "dataplane", name), Binary: filepath.Join(tree, "build/dev", program(name)), Arguments: arguments}
			}
			of = append(of, suites[name])
		}
		mutants, err := instrumentRoom(tree, room, &next)
		if err != nil {
			return err
		}
		for _, m := range mutants {
			if known.Chooses(m, only, sample > 0) {
				trials = append(trials, mutation.Trial{Mutant: m, Of: of})
			}
		}
	}
	if len(trials) == 0 {
		return fmt.Errorf("no mutant is there to be tried: choose other rooms or files")
	}
	trials = mutation.Sample(trials, sample, seed)
	header := strings.Replace(helpers, "MUTANTS;", strconv.Itoa((next/numbersOfFile+1)*numbersOfFile)+";", 1)
	if err := os.WriteFile(filepath.Join(tree, "dataplane/mutants_helpers.h"), []byte(header), 0o644); err != nil {
		return err
	}
	needed := map[*mutation.Suite]bool{}
	for _, t := range trials {
		for _, suite := range t.Of {
			needed[suite] = true
		}
	}
	if err := build(tree, slices.Collect(maps.Keys(needed)), jobs); err != nil {
		return err
	}
	fates, err := mutation.Judge(trials, known, workers)
	if err != nil {
		return err
	}
	return report(trials, fates, known)
}

// instrumentRoom puts mutants into the sources of a room.
func instrumentRoom(tree, room string, next *int) ([]*mutation.Mutant, error) {
	paths, err := filepath.Glob(filepath.Join(tree, "dataplane", room, "*.cc"))
	if err != nil {
		return nil, err
	}
	var all []*mutation.Mutant
	for _, path := range paths {
		name, err := filepath.Rel(tree, path)
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc([]string{"_test.cc", "_fuzz.cc", "_main.cc", "_bench.cc"}, func(end string) bool { return strings.HasSuffix(name, end) }) {
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		// A change of one file leaves the numbers in others as they are, and the compiler's cache good.
		*next = (*next + numbersOfFile - 1) / numbersOfFile * numbersOfFile
		changed, mutants := instrument(name, string(text), next)
		if err := os.WriteFile(path, []byte(changed), 0o644); err != nil {
			return nil, err
		}
		all = append(all, mutants...)
	}
	return all, nil
}

// build builds the tests, optimised and without sanitizers, and prepares them.
func build(tree string, suites []*mutation.Suite, jobs int) error {
	targets := []string{"--build", filepath.Join(tree, "build/dev"), "-j", strconv.Itoa(jobs), "--target"}
	for _, suite := range suites {
		targets = append(targets, filepath.Base(suite.Binary))
	}
	for _, arguments := range [][]string{{"--preset", "dev", "-S", filepath.Join(tree, "dataplane")}, targets} {
		if said, err := exec.Command("cmake", arguments...).CombinedOutput(); err != nil {
			return fmt.Errorf("build the tests with mutants: %w\n%s", err, said)
		}
	}
	for _, suite := range suites {
		list := exec.Command(suite.Binary, "--gtest_list_tests")
		list.Dir = suite.Directory
		output, err := list.Output()
		if err != nil {
			return fmt.Errorf("list the tests of %s: %w", suite.Binary, err)
		}
		suite.Tests = names(string(output))
		if err := suite.Prepare(); err != nil {
			return err
		}
	}
	return nil
}

// names understands googletest's list: a line of each suite, with those of its tests behind it, which are indented.
func names(list string) (all []string) {
	suite := ""
	for line := range strings.SplitSeq(list, "\n") {
		name, _, _ := strings.Cut(line, "#")
		switch name = strings.TrimRight(name, " "); {
		case strings.HasPrefix(name, "  "):
			all = append(all, suite+strings.TrimSpace(name))
		case strings.HasSuffix(name, "."):
			suite = name
		}
	}
	return all
}

func arguments(tests []string) []string {
	return []string{"--gtest_brief=1", "--gtest_fail_fast", "--gtest_filter=" + strings.Join(tests, ":")}
}

// survivors counts mutants that tests reached and did not notice.
func survivors(fates []mutation.Fate) int {
	return mutation.Count(fates, mutation.Lived) + mutation.Count(fates, mutation.Undecided)
}

// report prints what became of the mutants of each room and file.
func report(trials []mutation.Trial, fates []mutation.Fate, known *mutation.Known) error {
	byFile, byRoom := map[string][]mutation.Fate{}, map[string][]mutation.Fate{}
	for i, t := range trials {
		byFile[t.File] = append(byFile[t.File], fates[i])
		room := filepath.Dir(t.File)
		byRoom[room] = append(byRoom[room], fates[i])
	}
	line := func(what string, fates []mutation.Fate) {
		fmt.Printf("%-32s %8d %8d %10d %10d\n", what, mutation.Count(fates, mutation.Killed)+mutation.Count(fates, mutation.Late), survivors(fates),
			mutation.Count(fates, mutation.Unreached), mutation.Count(fates, mutation.Equivalent))
	}
	fmt.Printf("%-32s %8s %8s %10s %10s\n", "", "killed", "survived", "unreached", "equivalent")
	room := ""
	whole := 0
	for _, file := range slices.Sorted(maps.Keys(byFile)) {
		if of := filepath.Dir(file); of != room {
			room = of
			line(room, byRoom[room])
		}
		line("  "+filepath.Base(file), byFile[file])
		if slices.Contains(known.Whole, file) {
			whole += survivors(byFile[file]) + mutation.Count(byFile[file], mutation.Unreached)
		}
	}
	line("total: C++ mutants", fates)
	if whole > 0 {
		return fmt.Errorf("no test notices %d mutants of files that are whole: write one that does, or say in %s why none can", whole, knownFile)
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

// Command mutants-operator changes one condition, operator or loop at a time in packages of the operator, by gremlins, and requires a unit test of
// that package to notice. A mutant that no test can notice stands in operator/mutants.txt, with the reason.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

const (
	tool = "github.com/go-gremlins/gremlins/cmd/gremlins@v0.6.0"
	// knownFile lists files of which no mutant survives (whole FILE), and mutants that are the program itself: FILE | KIND | LINE OF CODE | REASON.
	knownFile = "operator/mutants.txt"
	// Tests that take long, and find nothing that others do not.
	slowTests = "TestTheOperatorDies|TestAMapHas"
)

var packages = []string{"plan", "apply", "pki", "shardmap", "agent"}

func main() {
	sample := flag.Int("sample", 0, "change so many lines, by random, of the files that "+knownFile+" calls whole; 0: all lines of all files")
	seed := flag.Uint64("seed", 1, "which lines are in the sample")
	workers := flag.Int("workers", 1, "mutants that are tried at once")
	flag.Parse()
	chosen := flag.Args()
	if len(chosen) == 0 {
		chosen = packages
	}
	if err := run(chosen, *sample, *seed, *workers); err != nil {
		fmt.Fprintf(os.Stderr, "mutants-operator: %v\n", err)
		os.Exit(1)
	}
}

// mutant as gremlins reports it.
type mutant struct {
	Type   string `json:"type"`
	Status string `json:"status"`
	Line   int    `json:"line"`
	Column int    `json:"column"`
}

type report struct {
	Files []struct {
		Name      string   `json:"file_name"`
		Mutations []mutant `json:"mutations"`
	} `json:"files"`
}

func run(chosen []string, sample int, seed uint64, workers int) error {
	known, whole, err := readKnown(knownFile)
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
	arguments := []string{"unleash", "--workers", fmt.Sprint(workers), "--timeout-coefficient", "6", "--invert-logical", "--invert-loopctrl", "--remove-self-assignments"}
	lines := map[string][]int{}
	if sample > 0 {
		if lines, err = choose(tree, whole, sample, seed); err != nil {
			return err
		}
		if err := markChanged(tree, lines); err != nil {
			return err
		}
		arguments = append(arguments, "--diff", "HEAD~1")
	}
	tried, killed, equivalent := 0, 0, 0
	var survivors []string
	for _, name := range chosen {
		directory := "operator/internal/" + name
		if sample > 0 && !slices.ContainsFunc(sortedKeys(lines), func(file string) bool { return filepath.Dir(file) == directory }) {
			continue
		}
		result, err := unleash(tree, directory, arguments)
		if err != nil {
			return fmt.Errorf("%s: %w", directory, err)
		}
		for _, file := range result.Files {
			path := file.Name
			if !strings.HasPrefix(path, "operator/") {
				path = filepath.Join(directory, filepath.Base(path))
			}
			text, err := lineOf(tree, path)
			if err != nil {
				return err
			}
			for _, m := range file.Mutations {
				switch m.Status {
				case "KILLED", "TIMED OUT":
					tried++
					killed++
				case "LIVED", "NOT COVERED":
					tried++
					code := strings.TrimSpace(text(m.Line))
					if known[key(path, m.Type, code)] != "" {
						equivalent++
						continue
					}
					survivors = append(survivors, fmt.Sprintf("%s:%d:%d %s (%s): %s", path, m.Line, m.Column, m.Type, strings.ToLower(m.Status), code))
				}
			}
		}
	}
	for _, survivor := range survivors {
		fmt.Println(survivor)
	}
	fmt.Printf("total: operator mutants: %d killed of %d, %d more are equivalent (%s), %d survive\n", killed, tried, equivalent, knownFile, len(survivors))
	if len(survivors) > 0 {
		return fmt.Errorf("no test notices %d mutants: write one that does, or say in %s why none can", len(survivors), knownFile)
	}
	if tried == 0 {
		return fmt.Errorf("no mutant was tried: choose another seed or more lines")
	}
	return nil
}

func key(file, kind, code string) string { return file + "|" + kind + "|" + code }

func readKnown(name string) (known map[string]string, whole []string, err error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, nil, fmt.Errorf("read the list of equivalent mutants: %w", err)
	}
	defer file.Close()
	known = map[string]string{}
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if path, is := strings.CutPrefix(line, "whole "); is {
			whole = append(whole, path)
			continue
		}
		fields := strings.Split(line, " | ")
		if len(fields) != 4 || fields[3] == "" {
			return nil, nil, fmt.Errorf("%s: %q is neither whole FILE nor FILE | KIND | LINE OF CODE | REASON", name, line)
		}
		known[key(fields[0], fields[1], fields[2])] = fields[3]
	}
	return known, whole, lines.Err()
}

// copyTree copies what the operator's packages are built from.
func copyTree(to string) error {
	list, err := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "go.mod", "go.sum", "api", "operator").Output()
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

// changeable is a line of code that has something to change.
var changeable = regexp.MustCompile(`==|!=|<|>|&&|\|\||\bcontinue\b|\bbreak\b|\+\+|--`)

// choose lines, no two of a file so near to each other that a diff would have them in one piece.
func choose(tree string, files []string, sample int, seed uint64) (map[string][]int, error) {
	type place struct {
		file string
		line int
	}
	var places []place
	for _, file := range files {
		content, err := os.ReadFile(filepath.Join(tree, file))
		if err != nil {
			return nil, err
		}
		for at, line := range strings.Split(string(content), "\n") {
			if code, _, _ := strings.Cut(line, "//"); changeable.MatchString(code) && !strings.Contains(code, "`") {
				places = append(places, place{file, at + 1})
			}
		}
	}
	random := rand.New(rand.NewPCG(seed, 1))
	random.Shuffle(len(places), func(i, j int) { places[i], places[j] = places[j], places[i] })
	lines := map[string][]int{}
	for _, p := range places {
		if sample == 0 {
			break
		}
		if !slices.ContainsFunc(lines[p.file], func(other int) bool { return max(p.line-other, other-p.line) < 12 }) {
			lines[p.file] = append(lines[p.file], p.line)
			sample--
		}
	}
	return lines, nil
}

// markChanged makes the copy a repository whose last commit changed these lines alone: of no others gremlins makes mutants then.
func markChanged(tree string, lines map[string][]int) error {
	contents := map[string][]byte{}
	for file, numbers := range lines {
		content, err := os.ReadFile(filepath.Join(tree, file))
		if err != nil {
			return err
		}
		contents[file] = content
		before := strings.Split(string(content), "\n")
		for _, number := range numbers {
			before[number-1] += " // before"
		}
		if err := os.WriteFile(filepath.Join(tree, file), []byte(strings.Join(before, "\n")), 0o644); err != nil {
			return err
		}
	}
	commit := func(message string) error {
		for _, arguments := range [][]string{{"add", "-A"}, {"-c", "user.name=mutants", "-c", "user.email=mutants@localhost", "commit", "-q", "-m", message}} {
			if err := command(tree, nil, "git", arguments...); err != nil {
				return err
			}
		}
		return nil
	}
	// gremlins compares with names of files in the directory that it runs in.
	for _, arguments := range [][]string{{"init", "-q"}, {"config", "diff.relative", "true"}} {
		if err := command(tree, nil, "git", arguments...); err != nil {
			return err
		}
	}
	if err := commit("before"); err != nil {
		return err
	}
	for file, content := range contents {
		if err := os.WriteFile(filepath.Join(tree, file), content, 0o644); err != nil {
			return err
		}
	}
	return commit("now")
}

func command(directory string, environment []string, name string, arguments ...string) error {
	var said bytes.Buffer
	c := exec.Command(name, arguments...)
	c.Dir, c.Stdout, c.Stderr = directory, &said, &said
	c.Env = append(os.Environ(), environment...)
	if err := c.Run(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(arguments, " "), err, said.String())
	}
	return nil
}

// unleash gremlins in a package.
func unleash(tree, directory string, arguments []string) (*report, error) {
	output := filepath.Join(os.TempDir(), filepath.Base(tree)+".json")
	defer func() { _ = os.Remove(output) }()
	arguments = slices.Concat([]string{"run", tool}, arguments, []string{"-o", output, filepath.Join(tree, directory)})
	// A result that is taken from a cache would have every mutant time out: gremlins takes the time that the tests took for its measure.
	flags := "GOFLAGS=-trimpath -buildvcs=false -count=1 -short -vet=off -ldflags=-w -skip=" + slowTests
	if err := command(filepath.Join(tree, directory), []string{flags, "CGO_ENABLED=0"}, "go", arguments...); err != nil {
		return nil, err
	}
	content, err := os.ReadFile(output)
	if err != nil {
		return nil, fmt.Errorf("read what gremlins reports: %w", err)
	}
	result := &report{}
	if err := json.Unmarshal(content, result); err != nil {
		return nil, fmt.Errorf("understand what gremlins reports: %w", err)
	}
	return result, nil
}

// lineOf returns the lines of a file by number.
func lineOf(tree, file string) (func(int) string, error) {
	content, err := os.ReadFile(filepath.Join(tree, file))
	if err != nil {
		return nil, err
	}
	lines := strings.Split(string(content), "\n")
	return func(number int) string {
		if number < 1 || number > len(lines) {
			return ""
		}
		return lines[number-1]
	}, nil
}

func sortedKeys(of map[string][]int) []string {
	var keys []string
	for name := range of {
		keys = append(keys, name)
	}
	slices.Sort(keys)
	return keys
}

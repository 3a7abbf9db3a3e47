// SPDX-License-Identifier: Apache-2.0

// Mutants takes one fence, check, order or re-read out of the data plane at a time, and requires the simulator to notice.
//
//	go run ./hack/mutants [flags] [name...]
//
// Each mutant is a patch in dataplane/sim/mutants. Its head says what it takes out, and which run of the simulator is to kill it;
// that one runs first, the other drivers after it, until the budget is spent. The patches are applied to a copy of the tree
// outside the repository.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

const patches = "dataplane/sim/mutants"

// drivers of the simulator, in the order in which they are tried.
var drivers = []string{"--worlds", "--crashes", "--count 300"}

type mutant struct {
	name  string
	patch string   // its path
	kill  string   // arguments of simulate that are to kill it
	files []string // that it changes
}

type verdict struct {
	mutant   mutant
	killer   string // the driver that killed it, or nothing
	evidence string
	took     time.Duration
	err      error // it could not be tried
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	killed, err := run(ctx)
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(2)
	case !killed:
		os.Exit(1)
	}
}

func run(ctx context.Context) (bool, error) {
	changed := flag.Bool("changed", false, "those of files in rooms that changed since the branch left main, and five others that the commit chooses")
	budget := flag.Duration("budget", 4*time.Minute, "time for the drivers of one mutant")
	jobs := flag.Int("jobs", runtime.NumCPU(), "compilers at once")
	flag.Parse()
	root, err := output(ctx, ".", "git", "rev-parse", "--show-toplevel")
	if err != nil {
		return false, err
	}
	all, err := load(root)
	if err != nil {
		return false, err
	}
	chosen, err := choose(ctx, root, all, flag.Args(), *changed)
	if err != nil {
		return false, err
	}
	tree, err := newTree(root, *jobs)
	if err != nil {
		return false, err
	}
	fmt.Printf("%d of %d mutants, in %s\n", len(chosen), len(all), tree.at)
	var verdicts []verdict
	for _, m := range chosen {
		v := tree.try(ctx, m, *budget)
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
		fmt.Println(v)
		verdicts = append(verdicts, v)
	}
	return report(verdicts), nil
}

func (v verdict) String() string {
	switch {
	case v.err != nil:
		return fmt.Sprintf("%s: cannot be tried: %v", v.mutant.name, v.err)
	case v.killer == "":
		return fmt.Sprintf("%s: SURVIVED %.0f s of every driver", v.mutant.name, v.took.Seconds())
	}
	return fmt.Sprintf("%s: killed by simulate %s in %.1f s", v.mutant.name, v.killer, v.took.Seconds())
}

// report prints the table, and says whether every mutant is dead.
func report(verdicts []verdict) bool {
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "\nmutant\tkilled by simulate\tseconds\tevidence")
	dead := 0
	for _, v := range verdicts {
		killer := v.killer
		switch {
		case v.err != nil:
			killer = "not tried"
		case killer == "":
			killer = "SURVIVED"
		default:
			dead++
		}
		fmt.Fprintf(table, "%s\t%s\t%.1f\t%s\n", v.mutant.name, killer, v.took.Seconds(), v.evidence)
	}
	if err := table.Flush(); err != nil {
		return false
	}
	fmt.Printf("%d of %d mutants were killed\n", dead, len(verdicts))
	return dead == len(verdicts)
}

// load reads the heads of all patches.
func load(root string) ([]mutant, error) {
	paths, err := filepath.Glob(filepath.Join(root, patches, "*.patch"))
	if err != nil {
		return nil, err
	}
	var all []mutant
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		m, err := parse(strings.TrimSuffix(filepath.Base(path), ".patch"), string(text))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		m.patch = path
		all = append(all, m)
	}
	return all, nil
}

func parse(name, text string) (mutant, error) {
	m := mutant{name: name}
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if kill, found := strings.CutPrefix(line, "Killed by: "); found {
			m.kill = kill
		}
		if file, found := strings.CutPrefix(line, "+++ b/"); found {
			m.files = append(m.files, file)
		}
	}
	if m.kill == "" {
		return m, errors.New("its head has no line `Killed by: ARGUMENTS OF simulate`")
	}
	if len(m.files) == 0 {
		return m, errors.New("it changes no file: write it with `git diff`")
	}
	return m, nil
}

func choose(ctx context.Context, root string, all []mutant, names []string, changed bool) ([]mutant, error) {
	if len(names) > 0 {
		var chosen []mutant
		for _, name := range names {
			at := slices.IndexFunc(all, func(m mutant) bool { return m.name == name })
			if at < 0 {
				return nil, fmt.Errorf("there is no mutant %q in %s", name, patches)
			}
			chosen = append(chosen, all[at])
		}
		return chosen, nil
	}
	if !changed {
		return all, nil
	}
	commit, err := output(ctx, root, "git", "rev-parse", "HEAD")
	if err != nil {
		return nil, err
	}
	// On main itself, what its last commit changed.
	base, err := output(ctx, root, "git", "merge-base", "HEAD", "main")
	if err != nil || base == commit {
		base = "HEAD^"
	}
	files, err := output(ctx, root, "git", "diff", "--name-only", base)
	if err != nil {
		return nil, err
	}
	return pick(all, strings.Fields(files), commit, 5), nil
}

// pick takes the mutants of rooms that hold one of the files, and `others` more that the commit chooses.
func pick(all []mutant, files []string, commit string, others int) []mutant {
	rooms := map[string]bool{}
	for _, file := range files {
		rooms[filepath.Dir(file)] = true
	}
	var chosen, rest []mutant
	for _, m := range all {
		if slices.ContainsFunc(m.files, func(file string) bool { return rooms[filepath.Dir(file)] }) {
			chosen = append(chosen, m)
		} else {
			rest = append(rest, m)
		}
	}
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(commit))
	random := rand.New(rand.NewPCG(hash.Sum64(), 0))
	random.Shuffle(len(rest), func(i, j int) { rest[i], rest[j] = rest[j], rest[i] })
	return append(chosen, rest[:min(others, len(rest))]...)
}

// A tree is the copy that mutants are made in. It stays, with what was compiled, for the next time.
type tree struct {
	root, at string
	jobs     int
}

func newTree(root string, jobs int) (*tree, error) {
	cache := os.Getenv("FARPOOL_CACHE")
	if cache == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return nil, fmt.Errorf("no home directory for the copy: %w; set FARPOOL_CACHE", err)
		}
		cache = filepath.Join(home, ".cache", "farpool")
	}
	// One for each clone: they may be at work at once.
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(root))
	at := filepath.Join(cache, "mutants", fmt.Sprintf("%08x", hash.Sum32()))
	return &tree{root, at, jobs}, os.MkdirAll(at, 0o755)
}

// refresh makes the copy what the repository is. Files that are the same are left alone, so that little is compiled anew.
func (t *tree) refresh(ctx context.Context) error {
	listed, err := output(ctx, t.root, "git", "ls-files", "dataplane", "api/proto")
	if err != nil {
		return err
	}
	wanted := map[string]bool{}
	for file := range strings.Lines(listed) {
		file = strings.TrimRight(file, "\n")
		text, err := os.ReadFile(filepath.Join(t.root, file))
		if errors.Is(err, os.ErrNotExist) {
			continue // removed, and not yet committed
		}
		if err != nil {
			return err
		}
		wanted[file] = true
		to := filepath.Join(t.at, file)
		if have, err := os.ReadFile(to); err == nil && bytes.Equal(have, text) {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(to, text, 0o644); err != nil {
			return err
		}
	}
	for _, room := range []string{"dataplane", "api"} {
		err := filepath.WalkDir(filepath.Join(t.at, room), func(path string, entry os.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			file, err := filepath.Rel(t.at, path)
			if err == nil && !wanted[file] {
				err = os.Remove(path)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (t *tree) try(ctx context.Context, m mutant, budget time.Duration) verdict {
	v := verdict{mutant: m}
	if v.err = t.refresh(ctx); v.err != nil {
		return v
	}
	if _, v.err = output(ctx, t.at, "git", "apply", "-C1", m.patch); v.err != nil {
		v.err = fmt.Errorf("its patch does not apply: %w", v.err)
		return v
	}
	if v.err = t.build(ctx); v.err != nil {
		return v
	}
	begun := time.Now()
	ctx, cancel := context.WithTimeout(ctx, budget)
	defer cancel()
	for _, driver := range append([]string{m.kill}, drivers...) {
		if driver == m.kill && v.took > 0 {
			continue // it was the first
		}
		text, err := output(ctx, t.at, "build/release/simulate", strings.Fields(driver)...)
		v.took = time.Since(begun)
		if ctx.Err() != nil {
			return v // out of time: it survived
		}
		if err != nil {
			v.killer, v.evidence = driver, evidence(text+"\n"+err.Error())
			return v
		}
	}
	return v
}

func (t *tree) build(ctx context.Context) error {
	if _, err := os.Stat(filepath.Join(t.at, "build/release/build.ninja")); err != nil {
		if _, err := output(ctx, t.at, "cmake", "--preset", "release", "-S", "dataplane"); err != nil {
			return err
		}
	}
	_, err := output(ctx, t.at, "cmake", "--build", "build/release", "-j", fmt.Sprint(t.jobs), "--target", "simulate")
	if err != nil {
		return fmt.Errorf("it does not build: %w", err)
	}
	return nil
}

// evidence is the line that says how to see it again, or else the last one that says what is wrong.
func evidence(text string) string {
	found := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if replay, is := strings.CutPrefix(line, "replay: simulate "); is {
			return replay
		}
		if strings.HasPrefix(line, "wrong: ") || strings.Contains(line, "invariant broken") || strings.Contains(line, ", dead after effect ") {
			found = line
		}
	}
	const most = 120
	if len(found) > most {
		found = found[:most] + "…"
	}
	return found
}

// output is what a command writes to its standard output; an error holds what it wrote to the other.
func output(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	if strings.Contains(name, "/") {
		cmd.Path = filepath.Join(dir, name)
	}
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		said := strings.TrimSpace(complaint.String())
		if said == "" {
			said = strings.TrimSpace(out.String())
		}
		const most = 2000
		if len(said) > most {
			said = "…" + said[len(said)-most:]
		}
		return out.String(), fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, said)
	}
	return strings.TrimRight(out.String(), "\n"), nil
}

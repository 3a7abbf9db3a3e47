// SPDX-License-Identifier: Apache-2.0

// Mutants takes one fence, check, order or re-read out of the data plane at a time, and requires the simulator to notice.
//
//	go run ./hack/mutants [flags] [name...]
//
// Each mutant is a patch in dataplane/sim/mutants. Its head says what it takes out, from which room, which hole of the papers that
// opens again, and what is to kill it: arguments of simulate, which bound the seeds or worlds that this may take, or a test.
// Patches are applied to copies of the tree outside the repository; each copy has one compiler.
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
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"
)

const patches = "dataplane/sim/mutants"

// A mutant that hangs has to be told by the simulator, in steps of its own. This is for a machine that stands still.
const patience = 15 * time.Minute

type mutant struct {
	name  string
	patch string // its path
	room  string
	hole  string
	kill  string   // arguments of simulate that are to kill it, or a test
	files []string // that it changes
}

type verdict struct {
	mutant   mutant
	killed   bool
	after    string // seeds, or runs
	evidence string
	built    time.Duration
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
	changed := flag.Bool("changed", false, "those of rooms that changed since --base, and --others more")
	base := flag.String("base", "", "the commit that --changed compares with; without it where the branch left main, on main itself the commit before")
	others := flag.Int("others", 5, "how many mutants --changed adds, chosen by the commit")
	jobs := flag.Int("jobs", runtime.NumCPU(), "mutants at once")
	flag.Parse()
	root, err := output(ctx, ".", "git", "rev-parse", "--show-toplevel")
	if err != nil {
		return false, err
	}
	all, err := load(root)
	if err != nil {
		return false, err
	}
	chosen := all
	switch {
	case flag.NArg() > 0:
		chosen, err = named(all, flag.Args())
	case *changed:
		chosen, err = ofChanges(ctx, root, all, *base, *others)
	}
	if err != nil {
		return false, err
	}
	begun := time.Now()
	verdicts, err := tryAll(ctx, root, chosen, min(*jobs, len(chosen)))
	if err != nil {
		return false, err
	}
	return report(verdicts, len(all), time.Since(begun)), nil
}

// tryAll gives each copy of the tree the next mutant, as long as there are any.
func tryAll(ctx context.Context, root string, chosen []mutant, jobs int) ([]verdict, error) {
	var trees []*tree
	for i := range jobs {
		t, err := newTree(root, i)
		if err != nil {
			return nil, err
		}
		trees = append(trees, t)
	}
	fmt.Printf("%d mutants, %d at a time, in %s\n", len(chosen), jobs, filepath.Dir(trees[0].at))
	next := make(chan int)
	verdicts := make([]verdict, len(chosen))
	var wait sync.WaitGroup
	for _, t := range trees {
		wait.Add(1)
		go func() {
			defer wait.Done()
			for i := range next {
				verdicts[i] = t.try(ctx, chosen[i])
				fmt.Println(verdicts[i])
			}
		}()
	}
	for i := range chosen {
		if ctx.Err() != nil {
			break
		}
		next <- i
	}
	close(next)
	wait.Wait()
	return verdicts, ctx.Err()
}

func (v verdict) String() string {
	switch {
	case v.err != nil:
		return fmt.Sprintf("%s: cannot be tried: %v", v.mutant.name, v.err)
	case !v.killed:
		return fmt.Sprintf("%s: SURVIVED %s, in %.1f s", v.mutant.name, v.mutant.killer(), v.took.Seconds())
	}
	return fmt.Sprintf("%s: killed by %s%s in %.1f s, built in %.1f s", v.mutant.name, v.mutant.killer(), v.after, v.took.Seconds(), v.built.Seconds())
}

// report prints the table, and says whether every mutant is dead.
func report(verdicts []verdict, all int, took time.Duration) bool {
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "\nmutant\troom\tkilled by\tseconds\tevidence")
	dead := 0
	for _, v := range verdicts {
		killer := v.mutant.killer() + v.after
		switch {
		case v.err != nil:
			killer = "NOT TRIED"
		case !v.killed:
			killer = "SURVIVED " + killer
		default:
			dead++
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%.1f\t%s\n", v.mutant.name, v.mutant.room, killer, v.took.Seconds(), v.evidence)
	}
	if err := table.Flush(); err != nil {
		return false
	}
	fmt.Printf("total: %d of %d mutants were killed, in %.0f s; there are %d\n", dead, len(verdicts), took.Seconds(), all)
	return dead == len(verdicts)
}

// test is the test binary that is to kill the mutant, or nothing where the simulator is.
func (m mutant) test() string {
	if first, _, _ := strings.Cut(m.kill, " "); strings.HasSuffix(first, "_test") {
		return first
	}
	return ""
}

func (m mutant) killer() string {
	if m.test() != "" {
		return m.kill
	}
	return "simulate " + m.kill
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
		for head, into := range map[string]*string{"Room: ": &m.room, "Hole: ": &m.hole, "Killed by: ": &m.kill} {
			if said, found := strings.CutPrefix(line, head); found {
				*into = said
			}
		}
		if file, found := strings.CutPrefix(line, "+++ b/"); found {
			m.files = append(m.files, file)
		}
	}
	for head, said := range map[string]string{"Room: ROOM": m.room, "Hole: WHICH ONE OPENS AGAIN": m.hole, "Killed by: ARGUMENTS OF simulate, OR A TEST": m.kill} {
		if said == "" {
			return m, fmt.Errorf("its head has no line `%s`", head)
		}
	}
	if len(m.files) == 0 {
		return m, errors.New("it changes no file: write it with `git diff`")
	}
	for _, file := range m.files {
		if path.Dir(file) != "dataplane/"+m.room {
			return m, fmt.Errorf("it changes %s, which is not of room %s", file, m.room)
		}
	}
	return m, nil
}

func named(all []mutant, names []string) ([]mutant, error) {
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

// ofChanges are the mutants of rooms that changed since base. Where there is nothing to compare with, only the others.
func ofChanges(ctx context.Context, root string, all []mutant, base string, others int) ([]mutant, error) {
	commit, err := output(ctx, root, "git", "rev-parse", "HEAD")
	if err != nil {
		return nil, err
	}
	if base == "" {
		if base, err = output(ctx, root, "hack/base"); err != nil {
			return nil, err
		}
	}
	var files string
	if base != "" {
		if files, err = output(ctx, root, "git", "diff", "--name-only", base); err != nil {
			return nil, err
		}
	}
	chosen := pick(all, strings.Fields(files), commit, others)
	said := "changed since " + base
	if base == "" {
		said = "may have changed: nothing is known to compare with"
	}
	fmt.Printf("mutants of rooms that %s, and %d others\n", said, others)
	return chosen, nil
}

// pick takes `others` mutants that the commit chooses, and those of rooms that hold one of the files.
func pick(all []mutant, files []string, commit string, others int) []mutant {
	rooms := map[string]bool{}
	for _, file := range files {
		if room, is := strings.CutPrefix(path.Dir(file), "dataplane/"); is {
			rooms[room] = true
		}
	}
	var chosen, rest []mutant
	for _, m := range all {
		if rooms[m.room] {
			chosen = append(chosen, m)
		} else {
			rest = append(rest, m)
		}
	}
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(commit))
	random := rand.New(rand.NewPCG(hash.Sum64(), 0))
	random.Shuffle(len(rest), func(i, j int) { rest[i], rest[j] = rest[j], rest[i] })
	return append(slices.Clip(rest[:min(others, len(rest))]), chosen...)
}

// A tree is a copy that mutants are made in. It stays, with what was compiled, for the next time.
type tree struct {
	root, at string
}

func newTree(root string, number int) (*tree, error) {
	cache := os.Getenv("FARPOOL_CACHE")
	if cache == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return nil, fmt.Errorf("no home directory for the copy: %w; set FARPOOL_CACHE", err)
		}
		cache = filepath.Join(home, ".cache", "farpool")
	}
	// Its own for each clone: they may be at work at once.
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(root))
	at := filepath.Join(cache, "mutants", fmt.Sprintf("%08x", hash.Sum32()), fmt.Sprint(number))
	return &tree{root, at}, os.MkdirAll(at, 0o755)
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

func (t *tree) try(ctx context.Context, m mutant) verdict {
	v := verdict{mutant: m}
	if v.err = t.refresh(ctx); v.err != nil {
		return v
	}
	if _, v.err = output(ctx, t.at, "git", "apply", m.patch); v.err != nil {
		v.err = fmt.Errorf("its patch does not apply: %w", v.err)
		return v
	}
	target, args, dir := "simulate", append(strings.Fields(m.kill), "--shrink-seconds", "0"), t.at
	if test := m.test(); test != "" {
		target, args, dir = test, strings.Fields(m.kill)[1:], filepath.Join(t.at, "dataplane", m.room)
	}
	begun := time.Now()
	if v.err = t.build(ctx, target); v.err != nil {
		return v
	}
	v.built = time.Since(begun)
	begun = time.Now()
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	text, err := output(limited, dir, filepath.Join(t.at, "build/release", target), args...)
	v.took = time.Since(begun)
	if err == nil {
		if strings.Contains(text, "0 tests from 0 test suites") {
			v.err = fmt.Errorf("its filter names no test of %s", target)
		}
		return v
	}
	v.evidence = evidence(text + "\n" + err.Error())
	switch {
	case limited.Err() != nil:
		v.err = fmt.Errorf("no verdict within %s: what hangs has to be told in steps", patience)
	case v.evidence == "":
		v.err = fmt.Errorf("it ended without saying what is wrong: %w", err)
	default:
		v.killed, v.after = true, after(m, text)
	}
	return v
}

func (t *tree) build(ctx context.Context, target string) error {
	if _, err := os.Stat(filepath.Join(t.at, "build/release/build.ninja")); err != nil {
		if _, err := output(ctx, t.at, "cmake", "--preset", "release", "-S", "dataplane"); err != nil {
			return err
		}
	}
	if _, err := output(ctx, t.at, "cmake", "--build", "build/release", "-j", "1", "--target", target); err != nil {
		return fmt.Errorf("it does not build: %w", err)
	}
	return nil
}

var (
	failedSeed = regexp.MustCompile(`(?m)^seed (\d+), commit `)
	runsOf     = regexp.MustCompile(`(?m)^\S+ +(\d+) runs `)
	branchOf   = regexp.MustCompile(`(?m)^seed \d+: \S`)
)

// after is what it took: seeds from 1 on, branches of operations, or runs of a small world.
func after(m mutant, text string) string {
	switch {
	case strings.HasPrefix(m.kill, "--count"), strings.HasPrefix(m.kill, "--pools"):
		if found := failedSeed.FindStringSubmatch(text); found != nil {
			return " after " + found[1] + " seeds"
		}
	case strings.HasPrefix(m.kill, "--world"):
		if found := runsOf.FindStringSubmatch(text); found != nil {
			return " after " + found[1] + " runs"
		}
	case strings.HasPrefix(m.kill, "--crashes"):
		if found := branchOf.FindAllString(text, -1); found != nil {
			return fmt.Sprintf(" in branch %d", len(found))
		}
	}
	return ""
}

// evidence is the line that says how to see it again, or else the last one that says what is wrong.
func evidence(text string) string {
	found := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if replay, is := strings.CutPrefix(line, "replay: simulate "); is && !strings.HasPrefix(replay, "--crashes") {
			return replay
		}
		for _, sign := range []string{"wrong: ", "invariant broken", "the simulation cannot go on", ", dead after effect ", "[  FAILED  ]"} {
			if strings.Contains(line, sign) {
				found = line
			}
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
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		said := strings.TrimSpace(complaint.String() + "\n" + out.String()) // ninja writes what a compiler says to the latter
		const most = 2000
		if len(said) > most {
			said = "…" + said[len(said)-most:]
		}
		return out.String(), fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, said)
	}
	return strings.TrimRight(out.String(), "\n"), nil
}

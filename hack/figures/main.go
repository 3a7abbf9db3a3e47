// SPDX-License-Identifier: Apache-2.0

// Command figures runs the commands that stand in the pages of docs/measurements, and writes what they print where they stand:
//
//	<!-- figures: race_fill -->
//	what `build/release/race_fill` printed
//	<!-- end of figures -->
//
// A time in brackets, as in `<!-- figures (18m): … -->`, says about how long a command takes that takes more than a minute on one
// core. Files that a command writes to docs/measurements, such as plots, are figures too. With --check it writes nothing, and says
// which pages do not say what the programs say now. All these programs are deterministic: the simulator's time is no machine's.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"
)

const (
	pages    = "docs/measurements"
	programs = "build/release"
	ending   = "<!-- end of figures -->\n"
)

var beginning = regexp.MustCompile(`(?m)^<!-- figures(?: \(([^)]+)\))?: (.+) -->\n`)

// A block is a command in a page, and what the page has of it.
type block struct {
	page    string
	command []string      // the program, and its arguments
	takes   time.Duration // 0: less than a minute
	from    int           // where its figures begin in the page
	to      int           // where they end
}

// blocksOf finds a page's commands.
func blocksOf(page string, text []byte) ([]block, error) {
	var found []block
	at := 0
	for _, match := range beginning.FindAllSubmatchIndex(text, -1) {
		line := 1 + bytes.Count(text[:match[0]], []byte("\n"))
		if match[0] < at {
			return nil, fmt.Errorf("%s:%d: figures begin before the ones above have ended: the line %q is missing", page, line, strings.TrimSpace(ending))
		}
		b := block{page: page, command: strings.Fields(string(text[match[4]:match[5]])), from: match[1]}
		if match[2] >= 0 {
			takes, err := time.ParseDuration(string(text[match[2]:match[3]]))
			if err != nil {
				return nil, fmt.Errorf("%s:%d: %w", page, line, err)
			}
			b.takes = takes
		}
		length := bytes.Index(text[b.from:], []byte(ending))
		if length < 0 {
			return nil, fmt.Errorf("%s:%d: figures have no end: the line %q is missing", page, line, strings.TrimSpace(ending))
		}
		b.to = b.from + length
		at = b.to
		found = append(found, b)
	}
	if ends := bytes.Count(text, []byte(ending)); ends != len(found) {
		return nil, fmt.Errorf("%s: %d figures begin and %d end", page, len(found), ends)
	}
	return found, nil
}

// run returns what the command prints, with an empty line before and behind it, and the files that it writes, which go to directory in place of the pages'.
func (b block) run(ctx context.Context, directory string) (string, []string, error) {
	var arguments, files []string
	for _, argument := range b.command[1:] {
		if file, found := strings.CutPrefix(argument, pages+"/"); found {
			// A program may write several files whose names begin so.
			files = append(files, file)
			argument = filepath.Join(directory, file)
		}
		arguments = append(arguments, argument)
	}
	command := exec.CommandContext(ctx, filepath.Join(programs, b.command[0]), arguments...)
	command.Stderr = os.Stderr
	out, err := command.Output()
	if err != nil {
		return "", nil, fmt.Errorf("%s: %s: %w", b.page, strings.Join(b.command, " "), err)
	}
	var written []string
	for _, file := range files {
		matches, err := filepath.Glob(filepath.Join(directory, file) + "*")
		if err != nil {
			return "", nil, err
		}
		if len(matches) == 0 {
			return "", nil, fmt.Errorf("%s: %s has not written %s", b.page, strings.Join(b.command, " "), file)
		}
		for _, match := range matches {
			written = append(written, filepath.Base(match))
		}
	}
	return "\n" + strings.Trim(string(out), "\n") + "\n\n", written, nil
}

// A difference is where a page or a file does not say what a program says now.
type difference struct{ where, what string }

// renew runs the commands of a page, and returns the page as it should be and what is not as it is.
func renew(ctx context.Context, page string, text []byte, chosen func(block) bool, directory string) ([]byte, []difference, error) {
	blocks, err := blocksOf(page, text)
	if err != nil {
		return nil, nil, err
	}
	var differences []difference
	var renewed bytes.Buffer
	at := 0
	for _, b := range blocks {
		renewed.Write(text[at:b.from])
		at = b.to
		if !chosen(b) {
			renewed.Write(text[b.from:b.to])
			continue
		}
		fmt.Fprintf(os.Stderr, "%s: %s\n", filepath.Base(page), strings.Join(b.command, " "))
		printed, files, err := b.run(ctx, directory)
		if err != nil {
			return nil, nil, err
		}
		renewed.WriteString(printed)
		if was := string(text[b.from:b.to]); was != printed {
			differences = append(differences, difference{page + ": " + strings.Join(b.command, " "), cmp.Diff(strings.Split(was, "\n"), strings.Split(printed, "\n"))})
		}
		for _, file := range files {
			now, err := os.ReadFile(filepath.Join(directory, file))
			if err != nil {
				return nil, nil, err
			}
			if was, err := os.ReadFile(filepath.Join(pages, file)); err != nil || !bytes.Equal(was, now) {
				differences = append(differences, difference{filepath.Join(pages, file), "the file is another"})
			}
		}
	}
	renewed.Write(text[at:])
	return renewed.Bytes(), differences, nil
}

func run(ctx context.Context, check, quick bool, only string) error {
	names, err := filepath.Glob(filepath.Join(pages, "*.md"))
	if err != nil {
		return err
	}
	directory, err := os.MkdirTemp("", "farpool-figures-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(directory) }()
	chosen := func(b block) bool {
		return (!quick || b.takes == 0) && (only == "" || strings.Contains(b.page+" "+strings.Join(b.command, " "), only))
	}
	stale := 0
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		renewed, differences, err := renew(ctx, name, text, chosen, directory)
		if err != nil {
			return err
		}
		for _, d := range differences {
			stale++
			fmt.Printf("%s\n%s\n", d.where, d.what)
		}
		if check || len(differences) == 0 {
			continue
		}
		if err := os.WriteFile(name, renewed, 0o644); err != nil {
			return err
		}
	}
	if check {
		if stale > 0 {
			return fmt.Errorf("%d figures are not what the programs say now; `make figures` renews them: read what is around them, too", stale)
		}
		return nil
	}
	return takeOver(directory)
}

// takeOver copies the files that commands have written to the pages' directory.
func takeOver(directory string) error {
	entries, err := os.ReadDir(directory)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		file, err := os.ReadFile(filepath.Join(directory, entry.Name()))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(pages, entry.Name()), file, 0o644); err != nil {
			return err
		}
	}
	return nil
}

func main() {
	check := flag.Bool("check", false, "write nothing, and fail if a page does not say what its commands print")
	quick := flag.Bool("quick", false, "run only commands that take less than a minute")
	only := flag.String("only", "", "run only commands with this in their page's name or in themselves")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *check, *quick, *only); err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintf(os.Stderr, "figures: %v\n", err)
		os.Exit(1)
	}
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestBlocksOfAPage(t *testing.T) {
	const page = "# A page\n\n<!-- figures: fast --keys 5 -->\n\n| 1 |\n\n<!-- end of figures -->\ntext\n<!-- figures (18m): slow -->\n<!-- end of figures -->\n"
	blocks, err := blocksOf("page.md", []byte(page))
	if err != nil {
		t.Fatal(err)
	}
	if len(blocks) != 2 {
		t.Fatalf("found %d blocks", len(blocks))
	}
	if got := strings.Join(blocks[0].command, " "); got != "fast --keys 5" || blocks[0].takes != 0 {
		t.Errorf("the first is %q and takes %s", got, blocks[0].takes)
	}
	if got := page[blocks[0].from:blocks[0].to]; got != "\n| 1 |\n\n" {
		t.Errorf("the first has %q", got)
	}
	if blocks[1].takes != 18*time.Minute || blocks[1].from != blocks[1].to {
		t.Errorf("the second takes %s and has %q", blocks[1].takes, page[blocks[1].from:blocks[1].to])
	}
}

func TestPagesThatAreNotWellFormed(t *testing.T) {
	for name, page := range map[string]string{
		"no end":         "<!-- figures: a -->\n",
		"one in another": "<!-- figures: a -->\n<!-- figures: b -->\n<!-- end of figures -->\n",
		"no beginning":   "<!-- end of figures -->\n",
		"no time":        "<!-- figures (soon): a -->\n<!-- end of figures -->\n",
	} {
		if _, err := blocksOf("page.md", []byte(page)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// Programs that are shell scripts: what a page says is renewed by what they print and write, and nothing else of it.
func TestFiguresAreRenewed(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, directory := range []string{pages, programs} {
		if err := os.MkdirAll(directory, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write := func(name, text string, mode os.FileMode) {
		t.Helper()
		if err := os.WriteFile(name, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	read := func(name string) string {
		t.Helper()
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	page := filepath.Join(pages, "page.md")
	const before = "prose\n<!-- figures: tell --svg docs/measurements/plot.svg -->\nold\n<!-- end of figures -->\nmore\n" +
		"<!-- figures (2h): slow -->\nslow's\n<!-- end of figures -->\n"
	const after = "prose\n<!-- figures: tell --svg docs/measurements/plot.svg -->\n\nnew\n\n<!-- end of figures -->\nmore\n" +
		"<!-- figures (2h): slow -->\nslow's\n<!-- end of figures -->\n"
	write(page, before, 0o644)
	write(filepath.Join(programs, "tell"), "#!/bin/sh\necho new; echo drawn >\"$2\"\n", 0o755)
	write(filepath.Join(programs, "slow"), "#!/bin/sh\nexit 1\n", 0o755)

	if err := run(context.Background(), true, true, ""); err == nil || !strings.Contains(err.Error(), "2 figures are not") {
		t.Errorf("a page and a plot that are not what the program says: %v", err)
	}
	if read(page) != before {
		t.Error("the check has changed the page")
	}
	if err := run(context.Background(), false, true, ""); err != nil {
		t.Fatal(err)
	}
	if got := read(page); got != after {
		t.Errorf("the page is %q", got)
	}
	if got := read(filepath.Join(pages, "plot.svg")); got != "drawn\n" {
		t.Errorf("the plot is %q", got)
	}
	if err := run(context.Background(), true, true, ""); err != nil {
		t.Error(err)
	}
	if err := run(context.Background(), true, false, "slow"); err == nil {
		t.Error("a program that failed was no error")
	}
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Every patch has a head and a row in the table, and still applies to the tree as it is.
func TestPatchesApply(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	all, err := load(root)
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 20 {
		t.Errorf("there are %d mutants, fewer than twenty", len(all))
	}
	table, err := os.ReadFile(filepath.Join(root, "dataplane/sim/mutants/README.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		if row := fmt.Sprintf("| [%s](%s.patch) | `%s` |", m.name, m.name, m.killer()); !strings.Contains(string(table), row) {
			t.Errorf("the table in dataplane/sim/mutants/README.md has no row with %s", row)
		}
		cmd := exec.CommandContext(t.Context(), "git", "apply", "--check", m.patch)
		cmd.Dir = root
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s does not apply: write it anew for what the code is now: %s", m.name, out)
		}
	}
}

func TestHeadIsAsked(t *testing.T) {
	const body = "--- a/dataplane/heap/heap.cc\n+++ b/dataplane/heap/heap.cc\n@@ -1 +1 @@\n-a\n+b\n"
	const head = "What.\nRoom: heap\nHole: P6\nKilled by: --count 3\n\n"
	if m, err := parse("x", head+body); err != nil || m.kill != "--count 3" || m.room != "heap" || m.hole != "P6" ||
		!slices.Equal(m.files, []string{"dataplane/heap/heap.cc"}) {
		t.Errorf("got %+v, %v", m, err)
	}
	for _, bad := range []string{
		head, "What.\n\n" + body,
		strings.Replace(head, "Killed by", "Spared by", 1) + body,
		strings.Replace(head, "Room: heap", "Room: session", 1) + body,
		strings.Replace(head, "Hole: P6\n", "", 1) + body,
	} {
		if _, err := parse("x", bad); err == nil {
			t.Errorf("no error for %q", bad)
		}
	}
}

func TestPick(t *testing.T) {
	var all []mutant
	for _, name := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
		all = append(all, mutant{name: name, room: "index/" + name})
	}
	names := func(chosen []mutant) []string {
		var names []string
		for _, m := range chosen {
			names = append(names, m.name)
		}
		return names
	}
	changed := []string{"dataplane/index/c/other.h", "docs/x.md"}
	first := names(pick(all, changed, "commit 1", 5))
	if len(first) != 6 || first[5] != "c" {
		t.Errorf("picked %v: want five others, and c", first)
	}
	if again := names(pick(all, changed, "commit 1", 5)); !slices.Equal(first, again) {
		t.Errorf("one commit picks %v and %v", first, again)
	}
	if unknown := names(pick(all, nil, "commit 1", 5)); len(unknown) != 5 {
		t.Errorf("where nothing is known to have changed: picked %v, want five", unknown)
	}
	if other := names(pick(all, changed, "commit 2", 5)); slices.Equal(first, other) {
		t.Errorf("another commit picks the same, %v", other)
	}
}

func TestEvidence(t *testing.T) {
	for text, want := range map[string]string{
		"  wrong: this\nreplay: simulate --seed 7\n": "--seed 7",
		"  wrong: this\n  wrong: that\n":             "wrong: that",
		"x.cc:3: invariant broken: a == b\n":         "x.cc:3: invariant broken: a == b",
		"fine\n":                                     "",
	} {
		if got := evidence(text); got != want {
			t.Errorf("evidence of %q is %q, want %q", text, got, want)
		}
	}
}

func TestKillers(t *testing.T) {
	for kill, want := range map[string]string{"--count 30": "simulate --count 30", "layout_test": "layout_test"} {
		if got := (mutant{kill: kill}).killer(); got != want {
			t.Errorf("%q is named %q, want %q", kill, got, want)
		}
	}
	if test := (mutant{kill: "layout_test --gtest_filter=A.b"}).test(); test != "layout_test" {
		t.Errorf("the test is %q", test)
	}
}

func TestAfter(t *testing.T) {
	for _, c := range []struct{ kill, text, want string }{
		{"--count 300", "seed 37, commit abc: 2 clients\n", " after 37 seeds"},
		{"--world move-lookup", "move-lookup                   17 runs      400 states\n", " after 17 runs"},
		{"--crashes", "seed 1: insert, free slot    3\nseed 1: put, new   2\n", " in branch 2"},
		{"--count 300", "x.cc:3: invariant broken\n", ""},
	} {
		if got := after(mutant{kill: c.kill}, c.text); got != c.want {
			t.Errorf("after %q of %q is %q, want %q", c.kill, c.text, got, c.want)
		}
	}
}

func TestOutputTellsWhatACommandComplainsOf(t *testing.T) {
	if _, err := output(context.Background(), ".", "sh", "-c", "echo here >&2; exit 3"); err == nil || !strings.Contains(err.Error(), "here") {
		t.Errorf("got %v", err)
	}
}

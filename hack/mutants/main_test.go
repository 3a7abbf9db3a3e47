// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Every patch has a head, and still applies to the tree as it is.
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
	for _, m := range all {
		cmd := exec.CommandContext(t.Context(), "git", "apply", "--check", "-C1", m.patch)
		cmd.Dir = root
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s does not apply: write it anew for what the code is now: %s", m.name, out)
		}
	}
}

func TestHeadIsAsked(t *testing.T) {
	const body = "--- a/dataplane/heap/heap.cc\n+++ b/dataplane/heap/heap.cc\n@@ -1 +1 @@\n-a\n+b\n"
	if m, err := parse("x", "What.\nKilled by: --count 3\n\n"+body); err != nil || m.kill != "--count 3" ||
		!slices.Equal(m.files, []string{"dataplane/heap/heap.cc"}) {
		t.Errorf("got %+v, %v", m, err)
	}
	for _, bad := range []string{"What.\n\n" + body, "What.\nKilled by: --count 3\n"} {
		if _, err := parse("x", bad); err == nil {
			t.Errorf("no error for %q", bad)
		}
	}
}

func TestPick(t *testing.T) {
	var all []mutant
	for _, name := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
		all = append(all, mutant{name: name, files: []string{"dataplane/" + name + "/x.cc"}})
	}
	names := func(chosen []mutant) []string {
		var names []string
		for _, m := range chosen {
			names = append(names, m.name)
		}
		return names
	}
	changed := []string{"dataplane/c/other.h", "docs/x.md"}
	first := names(pick(all, changed, "commit 1", 5))
	if len(first) != 6 || first[0] != "c" {
		t.Errorf("picked %v: want c, and five others", first)
	}
	if again := names(pick(all, changed, "commit 1", 5)); !slices.Equal(first, again) {
		t.Errorf("one commit picks %v and %v", first, again)
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

func TestOutputTellsWhatACommandComplainsOf(t *testing.T) {
	if _, err := output(context.Background(), ".", "sh", "-c", "echo here >&2; exit 3"); err == nil || !strings.Contains(err.Error(), "here") {
		t.Errorf("got %v", err)
	}
}

// SPDX-License-Identifier: Apache-2.0

package mutation

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// program is a suite in shell: `one` comes to mutants 1 and 2 and notices 1, `two` comes to 2 and to 4, which has it wait for ever. `slow` is late, whichever
// mutant lives, and `flaky` is late with 1 and fails without any.
const program = `[ -z "$MUTANTS_REACHED" ] || case "$*" in *one*) echo 1; echo 2;; *two*) echo 2; echo 4;; esac > "$MUTANTS_REACHED"
case "$*$MUTANT" in *one*1) exit 1;; *two*4|*slow*|*flaky*1) while :; do :; done;; *none*|*flaky*0) exit 2;; esac
`

func TestFatesOfMutants(t *testing.T) {
	directory := t.TempDir()
	binary := filepath.Join(directory, "suite")
	if err := os.WriteFile(binary, []byte("#!/bin/sh\n"+program), 0o755); err != nil {
		t.Fatal(err)
	}
	list := filepath.Join(directory, "known.txt")
	if err := os.WriteFile(list, []byte("# known\nwhole f\nf | kind | b | c | nobody can tell\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	known, err := Read(list)
	if err != nil || !slices.Equal(known.Whole, []string{"f"}) {
		t.Fatalf("%+v, %v", known, err)
	}
	suite := &Suite{Directory: directory, Binary: binary, Tests: []string{"one", "two"}, Arguments: slices.Clone[[]string]}
	if err := suite.Prepare(); err != nil {
		t.Fatal(err)
	}
	var trials []Trial
	for i, code := range []string{"a", "b | c", "c", "d", "b"} {
		trials = append(trials, Trial{Mutant: &Mutant{Number: i + 1, File: "f", Kind: "kind", Code: code}, Of: []*Suite{suite}})
	}
	trials[4].Number = 2
	trials[4].Code = "another line"
	began := time.Now()
	fates, err := Judge(trials, known, 2)
	if want := []Fate{Killed, Equivalent, Unreached, Late, Lived}; err != nil || !slices.Equal(fates, want) {
		t.Errorf("the mutants' fates are %v, %v, not %v", fates, err, want)
	}
	if took := time.Since(began); took > time.Minute {
		t.Errorf("a test that never ends took %v", took)
	}
	if got := Count(fates, Killed); got != 1 {
		t.Errorf("%d were killed by tests, not 1", got)
	}

	if fate, err := suite.attempt(trials[0].Mutant, []string{"slow"}, 100*time.Millisecond); err != nil || fate != Undecided {
		t.Errorf("a mutant whose tests are late without it, too, is %s, %v", fate, err)
	}
	if _, err := suite.attempt(trials[0].Mutant, []string{"flaky"}, 100*time.Millisecond); err == nil {
		t.Error("tests that fail with no mutant are taken")
	}

	suite.Tests = []string{"none"}
	if err := suite.Prepare(); err == nil {
		t.Error("a test that fails with no mutant is taken")
	}
}

func TestASampleIsTheSameForASeed(t *testing.T) {
	all := func() (trials []Trial) {
		for i := range 100 {
			trials = append(trials, Trial{Mutant: &Mutant{Number: i}})
		}
		return trials
	}
	numbers := func(trials []Trial) (numbers []int) {
		for _, trial := range trials {
			numbers = append(numbers, trial.Number)
		}
		return numbers
	}
	some := numbers(Sample(all(), 10, 1))
	if len(some) != 10 || !slices.Equal(some, numbers(Sample(all(), 10, 1))) || slices.Equal(some, numbers(Sample(all(), 10, 2))) {
		t.Errorf("a sample of ten is %v", some)
	}
	if got := len(Sample(all(), 0, 1)); got != 100 {
		t.Errorf("a sample of all has %d", got)
	}
}

func TestAListSaysWhichLineIsWrong(t *testing.T) {
	list := filepath.Join(t.TempDir(), "known.txt")
	if err := os.WriteFile(list, []byte("f | kind | no reason\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(list); err == nil {
		t.Error("a line without a reason is taken")
	}
}

func TestSomeMutantsAreChosen(t *testing.T) {
	list := filepath.Join(t.TempDir(), "known.txt")
	if err := os.WriteFile(list, []byte("whole node/whole.cc\nuntried node/far.cc | other tests hold it\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	known, err := Read(list)
	if err != nil {
		t.Fatal(err)
	}
	for only, want := range map[string][]string{
		"":                    {"node/audit.cc", "node/whole.cc"},
		"audit":               {"node/audit.cc"},
		"memory,audit.cc:12:": {"node/audit.cc"},
		"audit.cc:12:never":   {"node/audit.cc"},
		"far,whole":           {"node/far.cc", "node/whole.cc"},
		"audit.cc:1:":         nil,
		"audit.cc:12:always":  nil,
		"node":                nil,
	} {
		var got []string
		for _, file := range []string{"node/audit.cc", "node/far.cc", "node/whole.cc"} {
			if known.Chooses(&Mutant{File: file, Line: 12, Kind: "never"}, only, false) {
				got = append(got, file)
			}
			if known.Chooses(&Mutant{File: file}, "", true) != (file == "node/whole.cc") {
				t.Errorf("a sample has, or does not have, %s", file)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("--only %q chooses %v, not %v", only, got, want)
		}
	}
}

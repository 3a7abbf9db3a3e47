// SPDX-License-Identifier: Apache-2.0

package lint

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// turns are turns of phrase that have to be read twice. CONTRIBUTING.md, "Plain English", says what to write instead.
var turns = []struct {
	pattern *regexp.Regexp
	instead string
}{
	{regexp.MustCompile("\\bOf [a-z`]+"), "begin with the subject"},
	{regexp.MustCompile(`(?i)\bwho(m|se)?ever\b`), "name the role: a client, a repairer, a user"},
	{regexp.MustCompile(`(?i)\bthose (that|who|which)\b`), "repeat the noun: the keys that, the memory nodes that"},
	{
		regexp.MustCompile(`(?i)\b(has|have|had|having) (a|an|the|its|it|them|each|one|every|others?) ([a-z-]+ )?(split|fenced|moved|repaired|closed|freed|deleted|relabelled|looked at)\b`),
		`say who does it: "starts a split of", "asks the node to fence"`,
	},
	{regexp.MustCompile(`Whoever[A-Z]|Those(Who|That)[A-Z]`), "name the role in names of tests, too: AClientThat"},
	{regexp.MustCompile(`(?i)\b(but that|not un(like|usual|common|known|reachable|seen|heard)|(cannot|can not|must not|does not) not)\b`), "say it without the double negation"},
	{regexp.MustCompile(`^\s*// Whether `), `begin with a verb: "Says whether"`},
	{regexp.MustCompile(`(add_(option|flag|size|duration|address)|[fF]lags?\.\w+)\(.*"of [a-z]`), "say what the flag is: the size of, the name of"},
	{regexp.MustCompile(`(?i)\bbeing told epoch\b|\b(is|are) awaited\b`), "say what waits for it"},
}

// called are names of functions and fields that look like one of the turns.
var called = regexp.MustCompile(`^Of (is|returns)$`)

// inherited is how many such turns a room has that nobody has rewritten yet. The numbers may only fall.
var inherited = map[string]int{
	"dataplane/node/": 1,
}

func roomOf(path string) string {
	for room := range inherited {
		if strings.HasPrefix(path, room) {
			return room
		}
	}
	return ""
}

// prose says whether people write and read a file: no generated one, and no decision record, which is not edited once it is accepted.
func prose(path string) bool {
	switch filepath.Ext(path) {
	case ".go", ".cc", ".h", ".proto", ".md", ".sh", ".yaml", ".cmake", ".arrows":
	case "", ".txt", ".patch", ".tpl":
		// Scripts, the Makefile, tables of mutants, stories, and what mutants say of themselves.
		if strings.Contains(path, "fuzz/") || strings.Contains(path, "LICENSE") {
			return false
		}
	default:
		return false
	}
	for _, part := range []string{"/gen/", "applyconfiguration", "zz_generated", "docs/adr/", "config/crd/", "files/crds/", "hack/lint/english_test.go", "CONTRIBUTING.md"} {
		if strings.Contains(path, part) {
			return false
		}
	}
	return true
}

// written returns what people wrote of a file: of a patch its head, without the lines that it changes.
func written(path, text string) string {
	if filepath.Ext(path) == ".patch" {
		text, _, _ = strings.Cut(text, "\n--- ")
	}
	return text
}

func turnsIn(line string) (found []string) {
	for _, turn := range turns {
		if match := turn.pattern.FindString(line); match != "" && !called.MatchString(match) {
			found = append(found, `"`+match+`": `+turn.instead)
		}
	}
	return found
}

func TestTextsAreInPlainEnglish(t *testing.T) {
	counted, looked := map[string]int{}, 0
	for _, path := range tracked(t) {
		if !prose(path) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			continue // deleted in the work tree
		}
		looked++
		room := roomOf(path)
		for number, line := range strings.Split(written(path, string(text)), "\n") {
			for _, found := range turnsIn(line) {
				if counted[room]++; counted[room] > inherited[room] {
					t.Errorf("%s:%d: %s", path, number+1, found)
				}
			}
		}
	}
	if looked < 500 {
		t.Fatalf("only %d files: the check looked in the wrong place", looked)
	}
}

func TestTurnsOfPhraseAreSeen(t *testing.T) {
	for text, seen := range map[string]bool{
		"// Of no key, and with no change":                      true,
		"It waits. Of a slot that names two words, one counts":  true,
		"// Of returns the protocol of a pool.":                 false,
		"// Returns the protocol of a pool.":                    false,
		"whoever meets such a lock repairs it":                  true,
		"nodes, those that answer,":                             true,
		"// those of the pool":                                  false,
		"has the table split, in the background":                true,
		"it has split the table":                                false,
		"the client has it fenced at both":                      true,
		"TEST(Table, ThoseWhoWaitForALock) {":                   true,
		`app.add_option("--name", name, "of this process")`:     true,
		"TEST(Table, AClientWhoseLeaseIsOver) {":                false,
		"no change but that the move reaches these":             true,
		`"memory nodes are awaited: "`:                          true,
		"  // Whether a slot points into the heap at all.":      true,
		"  // Says whether a slot points into the heap at all.": false,
	} {
		if found := turnsIn(text); (len(found) > 0) != seen {
			t.Errorf("%q: %v", text, found)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package lint

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestCommandsAreDocumented compares the data plane's command table with the page that users read.
func TestCommandsAreDocumented(t *testing.T) {
	parts, err := filepath.Glob(filepath.Join(root, "dataplane/front/resp/*_specs.h"))
	if err != nil {
		t.Fatal(err)
	}
	var table []byte
	for _, part := range parts {
		text, err := os.ReadFile(part)
		if err != nil {
			t.Fatal(err)
		}
		table = append(table, text...)
	}
	page, err := os.ReadFile(filepath.Join(root, "docs/redis-compatibility.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n## Commands\n")
	section, _, _ = strings.Cut(section, "\n## ")
	written := map[string]bool{}
	for _, line := range strings.Split(section, "\n") {
		// Commands stand in the first column, subcommands beside them.
		cells := strings.Split(line, "|")
		if len(cells) < 3 {
			continue
		}
		for _, name := range regexp.MustCompile("`([A-Z:_-]+)`").FindAllStringSubmatch(cells[1], -1) {
			written[strings.ToLower(name[1])] = false
		}
	}
	names := regexp.MustCompile(`(?:\{\.name = |of_[a-z]+\()"([^"]+)"`).FindAllStringSubmatch(string(table), -1)
	if len(names) < 30 {
		t.Fatalf("found %d commands in the table: the check looked in the wrong place", len(names))
	}
	for _, match := range names {
		name, sub, isSub := strings.Cut(match[1], "|")
		if isSub {
			if !strings.Contains(section, "`"+strings.ToUpper(sub)+"`") {
				t.Errorf("docs/redis-compatibility.md does not mention %s %s", name, sub)
			}
			continue
		}
		if _, ok := written[name]; !ok {
			t.Errorf("docs/redis-compatibility.md does not list %s", name)
		}
		written[name] = true
	}
	for name, served := range written {
		if !served {
			t.Errorf("docs/redis-compatibility.md lists %s, which the command table does not have", name)
		}
	}
}

// TestLinksLeadSomewhere follows every relative link and heading anchor of the pages for people.
func TestLinksLeadSomewhere(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	code := regexp.MustCompile("`[^`\n]*`")
	for _, path := range tracked(t) {
		if filepath.Ext(path) != ".md" {
			continue
		}
		page, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			continue // deleted in the work tree
		}
		for _, match := range link.FindAllStringSubmatch(code.ReplaceAllString(string(page), "`"), -1) {
			target, anchor, _ := strings.Cut(match[1], "#")
			if strings.Contains(target, "://") || strings.HasPrefix(match[1], "mailto:") {
				continue
			}
			of := path
			if target != "" {
				of = filepath.Join(filepath.Dir(path), target)
			}
			content, err := os.ReadFile(filepath.Join(root, of))
			if info, e := os.Stat(filepath.Join(root, of)); e == nil && info.IsDir() {
				continue
			}
			if err != nil {
				t.Errorf("%s links to %s, which is not there", path, match[1])
				continue
			}
			if anchor != "" && !anchors(string(content))[anchor] {
				t.Errorf("%s links to %s, which has no such heading", path, match[1])
			}
		}
	}
}

// anchors are the headings of a page as links name them.
func anchors(page string) map[string]bool {
	out := map[string]bool{}
	for _, line := range strings.Split(page, "\n") {
		heading := strings.TrimLeft(line, "#")
		if heading == line || !strings.HasPrefix(heading, " ") {
			continue
		}
		heading = regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(strings.ToLower(strings.TrimSpace(heading)), "")
		out[strings.ReplaceAll(heading, " ", "-")] = true
	}
	return out
}

// TestReasonsAreDocumented: a reason that stands in a condition or event is one that a person may look up.
func TestReasonsAreDocumented(t *testing.T) {
	reasons, err := os.ReadFile(filepath.Join(root, "api/v1alpha1/reasons.go"))
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(root, "docs/operations.md"))
	if err != nil {
		t.Fatal(err)
	}
	names := regexp.MustCompile(`(?m)^\s+(?:Reason|Condition)\w+\s*= "(\w+)"`).FindAllStringSubmatch(string(reasons), -1)
	if len(names) < 20 {
		t.Fatalf("found %d reasons: the check looked in the wrong place", len(names))
	}
	for _, name := range names {
		if !strings.Contains(string(page), "`"+name[1]+"`") {
			t.Errorf("docs/operations.md does not say what %s means", name[1])
		}
	}
}

// TestEachRowOfWhatAPoolSurvivesHasSpecs compares README's table with the page that names the specs of each row, and that with the specs that there are.
func TestEachRowOfWhatAPoolSurvivesHasSpecs(t *testing.T) {
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	files, err := filepath.Glob(filepath.Join(root, "e2e/*_test.go"))
	if err != nil || len(files) < 10 {
		t.Fatalf("found %d files of specs: %v", len(files), err)
	}
	var specs strings.Builder
	for _, file := range files {
		specs.WriteString(read(strings.TrimPrefix(file, root)))
	}
	_, survives, _ := strings.Cut(read("README.md"), "\n## What a pool survives\n")
	survives, _, _ = strings.Cut(survives, "\n## ")
	_, tested, _ := strings.Cut(read("docs/testing.md"), "\n## What a pool survives, on clusters\n")
	tested, _, _ = strings.Cut(tested, "\n## ")
	firstCell := regexp.MustCompile(`(?m)^\| ([^|]+) \|`)
	rows := firstCell.FindAllStringSubmatch(survives, -1)[2:]
	if len(rows) < 5 {
		t.Fatalf("found %d rows: the check looked in the wrong place", len(rows))
	}
	for _, row := range rows {
		line := regexp.MustCompile(`(?m)^\| ` + regexp.QuoteMeta(row[1]) + " \\|.*`.*$").FindString(tested)
		if line == "" {
			t.Errorf("docs/testing.md names no spec for the row %q of README.md", row[1])
		}
	}
	for _, name := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(tested, -1) {
		if strings.Contains(name[1], " ") && !strings.HasPrefix(name[1], "make ") && !strings.Contains(specs.String(), `"`+name[1]+`"`) {
			t.Errorf("docs/testing.md names the spec %q, and e2e has none of this name", name[1])
		}
	}
}

// TestTheRunbookHasCommandsInPlaceOfAnnotations: what a person decides is a command of kubectl farpool, which is on the page of its commands.
func TestTheRunbookHasCommandsInPlaceOfAnnotations(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs/kubectl-farpool.md"))
	if err != nil {
		t.Fatal(err)
	}
	runbook, err := os.ReadFile(filepath.Join(root, "docs/operations.md"))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(runbook), "kubectl annotate") {
		t.Error("docs/operations.md has a kubectl annotate: kubectl farpool has a command for each decision")
	}
	files, err := filepath.Glob(filepath.Join(root, "operator/internal/plugin/*.go"))
	if err != nil {
		t.Fatal(err)
	}
	commands := map[string]bool{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, use := range regexp.MustCompile("(?m)Use: +\"([a-z-]+)").FindAllStringSubmatch(string(text), -1) {
			commands[use[1]] = true
		}
	}
	if len(commands) < 12 {
		t.Fatalf("found %d commands: the check looked in the wrong place", len(commands))
	}
	delete(commands, "kubectl-farpool")
	for command := range commands {
		if !regexp.MustCompile("`(resize )?" + command + "[ `]").Match(page) {
			t.Errorf("docs/kubectl-farpool.md does not have the command %s", command)
		}
	}
	for _, used := range regexp.MustCompile("kubectl farpool ([a-z-]+)").FindAllStringSubmatch(string(runbook), -1) {
		if !commands[used[1]] {
			t.Errorf("docs/operations.md uses kubectl farpool %s, which is no command", used[1])
		}
	}
}

// TestGoldenTracesInPagesAreThoseOfTheirFiles: a trace that stands in a page below a link to its file is what the file has, and what a test compares.
func TestGoldenTracesInPagesAreThoseOfTheirFiles(t *testing.T) {
	trace := regexp.MustCompile("\\[golden trace\\]\\(([^)]+)\\)(?:[^\n]+\n)+\n```\n([^`]+)```")
	found := 0
	for _, path := range tracked(t) {
		if filepath.Ext(path) != ".md" {
			continue
		}
		page, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			continue // deleted in the work tree
		}
		for _, match := range trace.FindAllStringSubmatch(string(page), -1) {
			found++
			of := filepath.Join(filepath.Dir(path), match[1])
			file, err := os.ReadFile(filepath.Join(root, of))
			if err != nil {
				t.Errorf("%s: %v", path, err)
			} else if !strings.Contains(string(file), match[2]) {
				t.Errorf("%s shows a trace that %s does not have: copy it anew, and read the page again", path, of)
			}
		}
	}
	if found == 0 {
		t.Fatal("found no trace in a page: the check looked in the wrong place")
	}
}

// TestTestedVersionsAreThePinnedOnes compares the page of tested versions with the pins.
func TestTestedVersionsAreThePinnedOnes(t *testing.T) {
	pins, err := os.ReadFile(filepath.Join(root, "hack/kindctl/tools.go"))
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(root, "docs/tested.md"))
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?:kubernetesVersion = |\{name: (\w+|"[a-z-]+"), .*version: )"v([0-9.]+)"`).FindAllStringSubmatch(string(pins), -1)
	if len(found) < 7 {
		t.Fatalf("found %d pins: the check looked in the wrong place", len(found))
	}
	for _, pin := range found {
		if pin[1] != `"coredns"` && pin[1] != `"golangci-lint"` && !strings.Contains(string(page), pin[2]) {
			t.Errorf("docs/tested.md does not have version %s of %s", pin[2], pin[1])
		}
	}
}

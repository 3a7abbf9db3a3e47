// SPDX-License-Identifier: Apache-2.0

package lint

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Words that say a thing is unfinished, and paths that only one machine has. Built here from pieces so that this file passes.
var banned = map[*regexp.Regexp]string{
	regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|X` + `XX|HA` + `CK)\b`):                        "finish it, or write it in an issue",
	regexp.MustCompile(`(^|[^\w.])/(wo` + `rk|fa` + `rm)/|tmp/bash_` + `jobs|\.lib` + `rary/`): "a path of one machine",
}

// licensed says whether a source file must begin with the license identifier.
func licensed(path string) bool {
	switch filepath.Ext(path) {
	case ".go", ".cc", ".h", ".proto":
		return !strings.Contains(path, "zz_generated") && !strings.HasPrefix(path, "api/gen/") && !strings.Contains(path, "applyconfiguration")
	}
	return false
}

func tracked(t *testing.T) []string {
	t.Helper()
	out, err := exec.Command("git", "-C", root, "ls-files", "-z").Output()
	if err != nil {
		t.Fatalf("git ls-files: %v", err)
	}
	return strings.Split(strings.TrimRight(string(out), "\x00"), "\x00")
}

func TestSourcesSayTheirLicenseAndHoldNoBannedWords(t *testing.T) {
	files := tracked(t)
	if len(files) < 10 {
		t.Fatalf("only %d tracked files: the check looked in the wrong place", len(files))
	}
	for _, path := range files {
		content, err := os.ReadFile(filepath.Join(root, path))
		if err != nil || len(content) > 1<<20 {
			continue // deleted in the work tree, a link, or data
		}
		text := string(content)
		if licensed(path) && !strings.Contains(text[:min(len(text), 400)], "SPDX-License-Identifier: Apache-2.0") {
			t.Errorf("%s: the first lines lack `SPDX-License-Identifier: Apache-2.0`", path)
		}
		if strings.HasSuffix(path, ".sum") || path == "hack/lint/text_test.go" {
			continue
		}
		for number, line := range strings.Split(text, "\n") {
			for pattern, why := range banned {
				if pattern.MatchString(line) {
					t.Errorf("%s:%d: %q: %s", path, number+1, pattern.FindString(line), why)
				}
			}
		}
	}
}

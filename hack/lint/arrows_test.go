// SPDX-License-Identifier: Apache-2.0

package lint

import (
	"bufio"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const root = "../.."

// arrows is the parsed dataplane/rooms.arrows.
type arrows struct {
	rooms map[string][]string // room -> what it may include; "*" is everything
	rules []headerRule
}

type headerRule struct {
	header string // with a trailing * for all that begin so
	only   bool   // only these rooms may include it; otherwise these rooms may not
	rooms  []string
	reason string
}

func parseArrows(text string) (arrows, error) {
	a := arrows{rooms: map[string][]string{}}
	for number, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
		case strings.HasPrefix(line, "!"):
			rule, reason, found := strings.Cut(line[1:], "#")
			fields := strings.Fields(rule)
			if !found || len(fields) < 3 || (fields[1] != "only" && fields[1] != "not") {
				return a, fmt.Errorf("rooms.arrows:%d: want `! header only|not rooms # reason`", number+1)
			}
			a.rules = append(a.rules, headerRule{fields[0], fields[1] == "only", fields[2:], strings.TrimSpace(reason)})
		default:
			room, targets, found := strings.Cut(line, "->")
			if !found {
				return a, fmt.Errorf("rooms.arrows:%d: want `room -> rooms`", number+1)
			}
			a.rooms[strings.TrimSpace(room)] = strings.Fields(targets)
		}
	}
	return a, nil
}

// roomOf returns the longest room that holds the path, which is relative to dataplane/.
func (a arrows) roomOf(path string) string {
	for dir := filepath.Dir(path); dir != "."; dir = filepath.Dir(dir) {
		if _, known := a.rooms[dir]; known {
			return dir
		}
	}
	return ""
}

// generated headers live in the build tree under the proto package's path.
const generatedPrefix = "farpool/v1alpha1/"

// check returns what is wrong with one include of one file, or "".
func (a arrows) check(file, header string, angled bool) string {
	room := a.roomOf(file)
	if room == "" {
		return "the file is in no room of rooms.arrows"
	}
	test := strings.HasSuffix(file, "_test.cc") || strings.HasSuffix(file, "_test.h") || strings.HasSuffix(file, "_fuzz.cc")
	if angled {
		if test {
			return ""
		}
		for _, rule := range a.rules {
			stem, prefix := strings.CutSuffix(rule.header, "*")
			if header != rule.header && !(prefix && strings.HasPrefix(header, stem)) {
				continue
			}
			if slices.Contains(rule.rooms, room) != rule.only {
				return fmt.Sprintf("%s may not include <%s>: %s", room, header, rule.reason)
			}
		}
		return ""
	}
	target := a.roomOf(header)
	if strings.HasPrefix(header, generatedPrefix) {
		target = "proto"
	}
	if target == "" {
		return fmt.Sprintf("%q is in no room: write includes from dataplane/ as root", header)
	}
	allowed := a.rooms[room]
	if target == room || slices.Contains(allowed, "*") || slices.Contains(allowed, target) || slices.Contains(allowed, header) {
		return ""
	}
	// Tests know the bytes that they look at.
	if test && (strings.HasPrefix(target, "index/") || target == "heap") {
		return ""
	}
	if test && (target == "fabric/sim" || target == "fabric/contract" || target == "sim" || target == "fabric/session_port" || target == "fabric/tcp" || target == "node") {
		return ""
	}
	return fmt.Sprintf("%s may not include %s (%q): the arrows in rooms.arrows point elsewhere", room, target, header)
}

var include = regexp.MustCompile(`^\s*#\s*include\s+([<"])([^>"]+)[>"]`)

func TestDataplaneIncludesFollowTheArrows(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "dataplane/rooms.arrows"))
	if err != nil {
		t.Fatal(err)
	}
	a, err := parseArrows(string(text))
	if err != nil {
		t.Fatal(err)
	}
	base := filepath.Join(root, "dataplane")
	files := 0
	err = filepath.WalkDir(base, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || (filepath.Ext(path) != ".h" && filepath.Ext(path) != ".cc") {
			return err
		}
		files++
		file, err := filepath.Rel(base, path)
		if err != nil {
			return err
		}
		content, err := os.Open(path)
		if err != nil {
			return err
		}
		defer content.Close()
		lines := bufio.NewScanner(content)
		for number := 1; lines.Scan(); number++ {
			if match := include.FindStringSubmatch(lines.Text()); match != nil {
				if wrong := a.check(file, match[2], match[1] == "<"); wrong != "" {
					t.Errorf("dataplane/%s:%d: %s", file, number, wrong)
				}
			}
		}
		return lines.Err()
	})
	if err != nil {
		t.Fatal(err)
	}
	if files == 0 {
		t.Fatal("no C++ file was found: the check looked in the wrong place")
	}
}

func TestTheArrowCheckRefusesWhatItMust(t *testing.T) {
	a, err := parseArrows("base ->\nfabric -> base\nindex/x -> fabric\n! thread not index/x # the fabric decides\n! infiniband/* only fabric # no NIC\n")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		file, header string
		angled, good bool
	}{
		{"index/x/lookup.cc", "fabric/fabric.h", false, true},
		{"fabric/fabric.h", "index/x/table.h", false, false},
		{"base/bytes.h", "fabric/fabric.h", false, false},
		{"index/x/lookup.cc", "thread", true, false},
		{"index/x/lookup_test.cc", "thread", true, true},
		{"index/x/lookup.cc", "infiniband/verbs.h", true, false},
		{"fabric/verbs.cc", "infiniband/verbs.h", true, true},
		{"index/x/lookup.cc", "lookup.h", false, false},
		{"attic/old.cc", "base/bytes.h", false, false},
	} {
		if wrong := a.check(c.file, c.header, c.angled); (wrong == "") != c.good {
			t.Errorf("%s including %s: got %q, want it allowed: %v", c.file, c.header, wrong, c.good)
		}
	}
}

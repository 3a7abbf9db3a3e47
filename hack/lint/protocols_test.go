// SPDX-License-Identifier: Apache-2.0

package lint

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// protocolNames matches an identifier or a text that names one index protocol. "race" alone is a word of English.
var protocolNames = regexp.MustCompile(`(?i:r_?cuckoo|cuckoo_?duo|outback)|(\b|[a-z]|_)(RACE|Race)([A-Z_]|\b)|^"?race"?$`)

// The operator learns what it must know of a protocol from one file of operator/internal/protocol. Tests may name protocols.
func TestTheOperatorNamesNoProtocol(t *testing.T) {
	looked := 0
	for _, path := range tracked(t) {
		if !strings.HasPrefix(path, "operator/") || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") ||
			strings.HasPrefix(path, "operator/internal/protocol/") || strings.HasPrefix(path, "operator/bench/") {
			continue
		}
		looked++
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, filepath.Join(root, path), nil, parser.SkipObjectResolution)
		if err != nil {
			continue // deleted in the work tree
		}
		ast.Inspect(file, func(n ast.Node) bool {
			var text string
			switch n := n.(type) {
			case *ast.Ident:
				text = n.Name
			case *ast.BasicLit:
				text = n.Value
			}
			if protocolNames.MatchString(text) {
				t.Errorf("%s: %s names a protocol: ask operator/internal/protocol", files.Position(n.Pos()), text)
			}
			return true
		})
	}
	if looked < 20 {
		t.Fatalf("only %d files were looked at", looked)
	}
}

func TestNamesOfProtocolsAreSeen(t *testing.T) {
	for text, named := range map[string]bool{
		"GetRcuckoo": true, "ProtocolRACE": true, "GetRace": true, `"race"`: true, "RACESpec": true, "raceFill": false, "withRACE": true,
		"trace": false, "Trace": false, "grace": false, "GracePeriod": false, `"data race"`: false, "RACE": true, "cuckoo_duo": true, "brace": false,
	} {
		if protocolNames.MatchString(text) != named {
			t.Errorf("%s: %v", text, !named)
		}
	}
}

// protocolNamesInCpp matches a name of an index protocol in C++, comments aside. There "race" alone is a name, too.
var protocolNamesInCpp = regexp.MustCompile(`(?i:r_?cuckoo|cuckoo_?duo|outback)|(\b|_)race(\b|_|::)|(\b|[a-z])(RACE|Race)([A-Z_]|\b)`)

// What of the data plane may name protocols, by how a path begins. All else asks index/protocol.h.
var placesOfProtocols = []string{
	"index/cuckooduo/", "index/outback/", "index/race/", "index/rcuckoo/",
	"protocols/",                                 // the list, and those of tests
	"index/counts.h", "index/contract/samples.h", // which of them counts what, and what the suite knows of each
	"layout/protocol.h", "layout/protocols.cc", // numbers, and shapes of tables
	"sim/dialect",                                                         // what worlds and judges know of each
	"bench/cuckooduo_", "bench/outback_", "bench/race_", "bench/rcuckoo_", // measurements of one protocol
}

func TestTheDataPlaneNamesNoProtocol(t *testing.T) {
	looked := 0
	for _, path := range tracked(t) {
		inside, isOfDataplane := strings.CutPrefix(path, "dataplane/")
		if !isOfDataplane || !cppSource.MatchString(path) || cppTest.MatchString(path) ||
			slices.ContainsFunc(placesOfProtocols, func(place string) bool { return strings.HasPrefix(inside, place) }) {
			continue
		}
		content, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			continue // deleted in the work tree
		}
		looked++
		for number, line := range strings.Split(string(content), "\n") {
			code, _, _ := strings.Cut(line, "//")
			if protocolNamesInCpp.MatchString(code) {
				t.Errorf("%s:%d: %s names a protocol: ask index/protocol.h", path, number+1, strings.TrimSpace(code))
			}
		}
	}
	if looked < 300 {
		t.Fatalf("only %d files were looked at", looked)
	}
}

var (
	cppSource = regexp.MustCompile(`\.(cc|h)$`)
	cppTest   = regexp.MustCompile(`(_test|_fuzz)\.(cc|h)$`)
)

func TestNamesOfProtocolsInCppAreSeen(t *testing.T) {
	for text, named := range map[string]bool{
		"rcuckoo::Entry": true, "Protocol::race": true, "has_race()": true, `"race"`: true, `#include "index/race/table.h"`: true, "RaceLife": true,
		"kRace": true, "RACE": true, "RCuckoo": true, "trace": false, "Trace": false, "brace_count": false, "keep_trace": false, "embrace": false,
	} {
		if protocolNamesInCpp.MatchString(text) != named {
			t.Errorf("%s: %v", text, !named)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package lint

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
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

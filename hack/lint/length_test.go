// SPDX-License-Identifier: Apache-2.0

package lint

import (
	"fmt"
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

// longest is how many lines a function may have, from its first to its closing brace.
const longest = 70

// How many functions are longer, tests aside. These numbers may only fall: a change that splits one of these functions lowers its number.
const (
	longFunctionsOfCpp = 2
	longFunctionsOfGo  = 16
)

func TestFewFunctionsAreLong(t *testing.T) {
	var cpp, golang []string
	for _, path := range tracked(t) {
		text, err := os.ReadFile(filepath.Join(root, path))
		if err != nil || strings.Contains(path, "/gen/") || strings.Contains(path, "/applyconfiguration/") || strings.HasPrefix(filepath.Base(path), "zz_generated") {
			continue // deleted in the work tree, or nobody's writing
		}
		switch {
		case strings.HasSuffix(path, "_test.go"), strings.HasSuffix(path, "_test.cc"), strings.HasSuffix(path, "_fuzz.cc"), strings.Contains(path, "/contract/"):
		case strings.HasSuffix(path, ".go"):
			golang = append(golang, longGo(path, text)...)
		case strings.HasSuffix(path, ".cc"), strings.HasSuffix(path, ".h"):
			cpp = append(cpp, longCpp(path, string(text))...)
		}
	}
	ratchet(t, "C++", cpp, longFunctionsOfCpp)
	ratchet(t, "Go", golang, longFunctionsOfGo)
}

func ratchet(t *testing.T, language string, found []string, most int) {
	t.Helper()
	slices.Sort(found)
	switch {
	case len(found) > most:
		t.Errorf("%d functions of %s have more than %d lines, where there were %d: split the new one\n%s", len(found), language, longest, most, strings.Join(found, "\n"))
	case len(found) < most:
		t.Errorf("%d functions of %s have more than %d lines: lower the number here, which is %d", len(found), language, longest, most)
	}
}

func longGo(path string, text []byte) []string {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, text, parser.SkipObjectResolution)
	if err != nil {
		return []string{fmt.Sprintf("%s: %v", path, err)}
	}
	var found []string
	for _, declared := range file.Decls {
		if function, is := declared.(*ast.FuncDecl); is {
			from, to := files.Position(function.Pos()).Line, files.Position(function.End()).Line
			if to-from+1 > longest {
				found = append(found, fmt.Sprintf("%s:%d: %s, %d lines", path, from, function.Name.Name, to-from+1))
			}
		}
	}
	return found
}

// notAFunction matches what begins like one, by the column in which it begins and ends: types, lists of values, labels.
var notAFunction = regexp.MustCompile(`^ *(class|struct|enum|union|namespace|extern|static_assert|public|private|protected|using|#|//|\}|return|if|for|while|switch|do|else|case|default)\b|^ *(//|#|\})|= *\{$|\(\{$`)

// longCpp finds functions by their form, which the formatter keeps: the first line begins in the column of the closing brace, at most one level
// deep.
func longCpp(path, text string) []string {
	var found []string
	lines := strings.Split(text, "\n")
	for _, indent := range []string{"", "  "} {
		start := -1
		for i, line := range lines {
			if start < 0 || strings.TrimSpace(line) == "" {
				start = -1
				if strings.HasPrefix(line, indent) && len(line) > len(indent) && line[len(indent)] != ' ' && !notAFunction.MatchString(line) {
					start = i
				}
			}
			if start < 0 {
				continue
			}
			open := strings.Join(lines[start:i+1], "\n")
			switch {
			case strings.HasSuffix(line, "{") && strings.Contains(open, "("):
				if end := slices.Index(lines[i+1:], indent+"}"); end >= 0 && i+1+end-start+1 > longest {
					found = append(found, fmt.Sprintf("%s:%d: %s, %d lines", path, start+1, strings.TrimSpace(lines[start]), i+1+end-start+1))
				}
				start = -1
			case strings.HasSuffix(line, ";"), strings.HasSuffix(line, "}"), strings.HasSuffix(line, "{"), strings.HasSuffix(line, ","):
				if !strings.HasSuffix(line, ",") || !strings.Contains(open, "(") {
					start = -1
				}
			}
		}
	}
	return found
}

func TestLongFunctionsAreSeen(t *testing.T) {
	body := strings.Repeat("  f();\n", longest-1)
	for text, long := range map[string]bool{
		"int f() {\n" + body + "}\n":                                  true,
		"int f() {\n" + strings.Repeat("  f();\n", longest-2) + "}\n": false,
		"int f(int a,\n      int b) {\n" + body + "}\n":               true,
		"class A {\n  int f() {\n  " + body + "  }\n};\n":             true,
		"class A {\n" + body + "};\n":                                 false,
		"namespace a {\n" + body + "}\n":                              false,
		"constexpr A kAll[] = {\n" + body + "};\n":                    false,
		"int f() { return 1; }\nint g() {\n  f();\n}\n" + body:        false,
		"static_assert(f() ==\n    1);\nstruct A {\n" + body + "};\n": false,
		"int f();\n\nint g()\n    : a_(1) {\n" + body + "}\n":         true,
	} {
		if got := longCpp("a.cc", text); (len(got) > 0) != long {
			t.Errorf("%q: %v", text[:30], got)
		}
	}
	if got := longGo("a.go", []byte("package a\nfunc f() {\n"+body+"}\n")); len(got) != 1 {
		t.Errorf("%v", got)
	}
}

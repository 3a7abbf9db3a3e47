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

// How many functions are longer, tests aside, and how many lines the longest of them has. These numbers may only fall: a change that splits
// one of these functions lowers them.
const (
	longFunctionsOfCpp, longestOfCpp = 1, 106
	longFunctionsOfGo, longestOfGo   = 16, 139
)

// longestFile is how many lines a file of C++ may have, tests aside.
const longestFile = 700

// How many files are longer, and how many lines the longest of them has. No file may become one.
const longFiles, longestOfFiles = 0, 0

func TestFewFunctionsAndFilesAreLong(t *testing.T) {
	var cpp, golang, files []long
	for _, path := range tracked(t) {
		text, err := os.ReadFile(filepath.Join(root, path))
		if err != nil || strings.Contains(path, "/gen/") || strings.Contains(path, "/applyconfiguration/") || strings.HasPrefix(filepath.Base(path), "zz_generated") {
			continue // deleted in the work tree, or nobody's writing
		}
		switch {
		case strings.HasSuffix(path, "_test.go"), strings.HasSuffix(path, "_test.cc"), strings.HasSuffix(path, "_test.h"), strings.HasSuffix(path, "_fuzz.cc"), strings.Contains(path, "/contract/"):
		case strings.HasSuffix(path, ".go"):
			golang = append(golang, longGo(path, text)...)
		case strings.HasSuffix(path, ".cc"), strings.HasSuffix(path, ".h"):
			cpp = append(cpp, longCpp(path, string(text))...)
			files = append(files, longFile(path, text)...)
		}
	}
	for _, wrong := range slices.Concat(
		ratchet("functions of C++", longest, cpp, longFunctionsOfCpp, longestOfCpp),
		ratchet("functions of Go", longest, golang, longFunctionsOfGo, longestOfGo),
		ratchet("files of C++", longestFile, files, longFiles, longestOfFiles),
	) {
		t.Error(wrong)
	}
}

// A long function or file.
type long struct {
	lines int
	where string // and its name
}

func (l long) String() string { return fmt.Sprintf("%s, %d lines", l.where, l.lines) }

// ratchet says what is wrong with the functions or files that have more than `limit` lines, of which there were so many, with so many lines at most.
func ratchet(what string, limit int, found []long, many, lines int) (wrong []string) {
	slices.SortFunc(found, func(a, b long) int { return b.lines - a.lines })
	if len(found) > many {
		wrong = append(wrong, fmt.Sprintf("%d %s have more than %d lines, where there were %d: split the new one\n%v", len(found), what, limit, many, found))
	} else if len(found) < many {
		wrong = append(wrong, fmt.Sprintf("%d %s have more than %d lines: lower the number here, which is %d", len(found), what, limit, many))
	}
	if len(found) > 0 && found[0].lines > lines {
		wrong = append(wrong, fmt.Sprintf("%v, is longer than the longest of the %s was, which had %d: split it", found[0], what, lines))
	} else if len(found) > 0 && found[0].lines < lines {
		wrong = append(wrong, fmt.Sprintf("%v, is the longest of the %s: lower the number here, which is %d", found[0], what, lines))
	}
	return wrong
}

func longFile(path string, text []byte) []long {
	if lines := strings.Count(string(text), "\n"); lines > longestFile {
		return []long{{lines, path}}
	}
	return nil
}

func longGo(path string, text []byte) []long {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, text, parser.SkipObjectResolution)
	if err != nil {
		return []long{{where: fmt.Sprintf("%s: %v", path, err)}}
	}
	var found []long
	for _, declared := range file.Decls {
		if function, is := declared.(*ast.FuncDecl); is {
			from, to := files.Position(function.Pos()).Line, files.Position(function.End()).Line
			if to-from+1 > longest {
				found = append(found, long{to - from + 1, fmt.Sprintf("%s:%d: %s", path, from, function.Name.Name)})
			}
		}
	}
	return found
}

// notAFunction matches what begins like one, by the column in which it begins and ends: types, lists of values, labels.
var notAFunction = regexp.MustCompile(`^ *(class|struct|enum|union|namespace|extern|static_assert|public|private|protected|using|#|//|\}|return|if|for|while|switch|do|else|case|default)\b|^ *(//|#|\})|= *\{$|\(\{$`)

// longCpp finds functions by their form, which the formatter keeps: the first line begins in the column of the closing brace, at most one level
// deep.
func longCpp(path, text string) []long {
	var found []long
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
				// What ends in another way, as by "});", is a statement with a lambda.
				end := slices.IndexFunc(lines[i+1:], func(line string) bool { return strings.HasPrefix(line, indent+"}") })
				if end >= 0 && lines[i+1+end] == indent+"}" && i+1+end-start+1 > longest {
					found = append(found, long{i + 1 + end - start + 1, fmt.Sprintf("%s:%d: %s", path, start+1, strings.TrimSpace(lines[start]))})
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

func TestLongFunctionsAndFilesAreSeen(t *testing.T) {
	body := strings.Repeat("  f();\n", longest-1)
	for text, long := range map[string]bool{
		"int f() {\n" + body + "}\n":                                                                                  true,
		"int f() {\n" + strings.Repeat("  f();\n", longest-2) + "}\n":                                                 false,
		"int f(int a,\n      int b) {\n" + body + "}\n":                                                               true,
		"class A {\n  int f() {\n  " + body + "  }\n};\n":                                                             true,
		"class A {\n" + body + "};\n":                                                                                 false,
		"namespace a {\n" + body + "}\n":                                                                              false,
		"constexpr A kAll[] = {\n" + body + "};\n":                                                                    false,
		"int f() { return 1; }\nint g() {\n  f();\n}\n" + body:                                                        false,
		"static_assert(f() ==\n    1);\nstruct A {\n" + body + "};\n":                                                 false,
		"int f();\n\nint g()\n    : a_(1) {\n" + body + "}\n":                                                         true,
		"int f() {\n  const int a = sum([] {\n    g();\n  });\n}\n" + strings.Repeat("int h();\n", longest) + "  }\n": false,
	} {
		if got := longCpp("a.cc", text); (len(got) > 0) != long {
			t.Errorf("%q: %v", text[:30], got)
		}
	}
	if got := longGo("a.go", []byte("package a\nfunc f() {\n"+body+"}\n")); len(got) != 1 {
		t.Errorf("%v", got)
	}
	for lines, found := range map[int]int{longestFile: 0, longestFile + 1: 1} {
		if got := longFile("a.cc", []byte(strings.Repeat("int a;\n", lines))); len(got) != found {
			t.Errorf("%d lines: %v", lines, got)
		}
	}
}

func TestLongOnesOnlyGetFewerAndShorter(t *testing.T) {
	of := func(lines ...int) (found []long) {
		for _, n := range lines {
			found = append(found, long{n, "f"})
		}
		return found
	}
	for _, c := range []struct {
		found []long
		wrong int
	}{{of(80, 90), 0}, {of(80, 71, 90), 1}, {of(90), 1}, {of(80, 91), 1}, {of(80, 89), 1}, {of(99, 99, 99), 2}, {nil, 1}} {
		if wrong := ratchet("functions of Go", longest, c.found, 2, 90); len(wrong) != c.wrong {
			t.Errorf("%v: %v", c.found, wrong)
		}
	}
}

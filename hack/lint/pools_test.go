// SPDX-License-Identifier: Apache-2.0

package lint

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"farpool.dev/farpool/api/v1alpha1"
)

// Objects of the API stand in tests of clusters, samples and pages, where no compiler reads them. A field that gets another name has to get it there as well.

// ofKind returns an empty object of a kind; nil: the API has no such kind that people write.
func ofKind(kind string) any {
	switch kind {
	case "KVPool":
		return &v1alpha1.KVPool{}
	case "RepairLease":
		return &v1alpha1.RepairLease{}
	case "ResizeOperation":
		return &v1alpha1.ResizeOperation{}
	case "MemoryNodePool":
		return &v1alpha1.MemoryNodePool{}
	case "ComputeShardPool":
		return &v1alpha1.ComputeShardPool{}
	}
	return nil
}

// strictly decodes an object of the API, and returns an error for a field that its kind does not have.
func strictly(text string) error {
	var header struct{ Kind string }
	if err := yaml.Unmarshal([]byte(text), &header); err != nil {
		return err
	}
	object := ofKind(header.Kind)
	if object == nil {
		return nil
	}
	return yaml.UnmarshalStrict([]byte(text), object)
}

var (
	verb    = regexp.MustCompile(`%(\[\d+\])?[a-z]`)
	pointer = regexp.MustCompile(`"path":"/(spec/[^"]*)"`)
	part    = regexp.MustCompile(`^  [a-z][A-Za-z]+:`)
)

// filled puts values that every field takes in the place of what a program fills in.
func filled(text string) string {
	text = strings.TrimSuffix(text, "\n%s")
	return verb.ReplaceAllStringFunc(text, func(verb string) string {
		if strings.HasSuffix(verb, "d") {
			return "1"
		}
		return "null"
	})
}

// wrongIn says what is wrong with a text of a program: an object, a part of a KVPool's spec, or a patch; nil: it is none of these, or right.
func wrongIn(text string) error {
	switch {
	case strings.Contains(text, "apiVersion: farpool.dev/"):
		return strictly(filled(text))
	case part.MatchString(text):
		return strictly("kind: KVPool\nspec:\n" + filled(text))
	case strings.HasPrefix(text, `{"spec":`):
		var all []error
		for _, kind := range []string{"KVPool", "ResizeOperation"} {
			err := yaml.UnmarshalStrict([]byte(filled(text)), ofKind(kind))
			if err == nil {
				return nil
			}
			all = append(all, err)
		}
		return errors.Join(all...)
	}
	for _, match := range pointer.FindAllStringSubmatch(text, -1) {
		var document any
		for _, step := range slices.Backward(strings.Split(match[1], "/")) {
			if _, err := strconv.Atoi(step); err == nil {
				document = []any{document}
			} else {
				document = map[string]any{step: document}
			}
		}
		content, err := json.Marshal(document)
		if err == nil {
			err = yaml.UnmarshalStrict(content, ofKind("KVPool"))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// folded is the text of an expression, with null in the place of what is not a literal; empty: it has none.
func folded(expression ast.Expr) string {
	switch e := expression.(type) {
	case *ast.BasicLit:
		if text, err := strconv.Unquote(e.Value); err == nil && e.Kind == token.STRING {
			return text
		}
	case *ast.BinaryExpr:
		left, right := folded(e.X), folded(e.Y)
		if left+right == "" {
			return ""
		}
		for _, side := range []*string{&left, &right} {
			if *side == "" {
				*side = "null"
			}
		}
		return left + right
	}
	return ""
}

// texts of a program in Go, by where they stand; and what it replaces in texts.
func texts(path string) (found, replaced map[string]string, err error) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
	if err != nil {
		return nil, nil, err
	}
	found, replaced = map[string]string{}, map[string]string{}
	ast.Inspect(file, func(n ast.Node) bool {
		if call, is := n.(*ast.CallExpr); is && len(call.Args) == 4 {
			if called, is := call.Fun.(*ast.SelectorExpr); is && called.Sel.Name == "Replace" {
				replaced[files.Position(n.Pos()).String()] = folded(call.Args[1])
			}
		}
		if expression, is := n.(ast.Expr); is {
			if text := folded(expression); text != "" {
				found[files.Position(n.Pos()).String()+fmt.Sprint(" ", n.End()-n.Pos())] = text
				return false
			}
		}
		return true
	})
	return found, replaced, nil
}

// objectsIn are the objects of the API in a page, a script or a file of samples.
func objectsIn(text string) (found []string) {
	lines := strings.Split(text, "\n")
	for at := 0; at < len(lines); at++ {
		line := lines[at]
		indent := len(line) - len(strings.TrimLeft(line, " "))
		if !strings.HasPrefix(line[indent:], "apiVersion: farpool.dev/") {
			continue
		}
		object := ""
		for ; at < len(lines); at++ {
			rest := lines[at]
			if strings.TrimSpace(rest) != "" && (len(rest) < indent || strings.TrimSpace(rest[:indent]) != "") || slices.Contains([]string{"---", "```", "EOF"}, strings.TrimSpace(rest)) {
				break
			}
			object += rest[min(indent, len(rest)):] + "\n"
		}
		found = append(found, object)
	}
	return found
}

func TestObjectsOfTheAPIHaveItsFields(t *testing.T) {
	objects, programs := 0, ""
	replacedAt := map[string]string{}
	for _, path := range tracked(t) {
		full := filepath.Join(root, path)
		switch inCluster := strings.HasPrefix(path, "e2e/"); {
		case inCluster && strings.HasSuffix(path, ".go"):
			found, replaced, err := texts(full)
			if err != nil {
				t.Fatal(err)
			}
			for at, text := range found {
				programs += text + "\n"
				if strings.Contains(text, "apiVersion: farpool.dev/") {
					objects++
				}
				if err := wrongIn(text); err != nil {
					t.Errorf("%s: %v", at, err)
				}
			}
			for at, old := range replaced {
				replacedAt[at] = old
			}
		case strings.HasSuffix(path, ".md"), path == "hack/e2e-release", strings.HasPrefix(path, "config/samples/"):
			content, err := os.ReadFile(full)
			if err != nil {
				t.Fatal(err)
			}
			for _, object := range objectsIn(string(content)) {
				objects++
				if err := strictly(object); err != nil {
					t.Errorf("%s: %v\n%s", path, err, object)
				}
			}
		}
	}
	// A replacement of what no object has any more replaces nothing, and nobody is told.
	for at, old := range replacedAt {
		if old != "" && strings.Count(programs, old) < 2 {
			t.Errorf("%s replaces %q, which no text of these tests has", at, old)
		}
	}
	if objects < 15 || len(replacedAt) < 5 {
		t.Errorf("found %d objects and %d replacements: the check looked in the wrong place", objects, len(replacedAt))
	}
}

func TestFieldsThatTheAPILacksAreSeen(t *testing.T) {
	for text, right := range map[string]bool{
		"apiVersion: farpool.dev/v1alpha1\nkind: KVPool\nmetadata: {name: %s}\nspec:\n  memory: {pools: [{name: memory, replicas: %d, lend: 64Mi}]}\n%s":   true,
		"apiVersion: farpool.dev/v1alpha1\nkind: KVPool\nmetadata: {name: %s}\nspec:\n  memory: {pools: [{name: memory, replicas: %d, memory: 64Mi}]}\n%s": false,
		"  dataPolicy: Store\n  index: {protocol: null}":                       true,
		"  dataPolicy: Store\n  indices: null":                                 false,
		`{"spec":{"limits":{"maxSessions":%d}}}`:                               true,
		`{"spec":{"approval":"Approved"}}`:                                     true,
		`{"spec":{"limits":{"sessions":512}}}`:                                 false,
		`[{"op":"replace","path":"/spec/memory/pools/0/replicas","value":%d}]`: true,
		`[{"op":"replace","path":"/spec/memory/nodes/0/replicas","value":%d}]`: false,
		"  two spaces, and nothing of the API":                                 true,
	} {
		if err := wrongIn(text); (err == nil) != right {
			t.Errorf("%q: %v", text, err)
		}
	}
	page := "Text\n\n   ```\n   apiVersion: farpool.dev/v1alpha1\n   kind: KVPool\n   spec:\n     sizes: 1\n   ```\napiVersion: farpool.dev/v1alpha1\nkind: Other\n---\nmore"
	if found := objectsIn(page); len(found) != 2 || strictly(found[0]) == nil || strictly(found[1]) != nil {
		t.Errorf("%q", found)
	}
}

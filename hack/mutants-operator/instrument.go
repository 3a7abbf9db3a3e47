// SPDX-License-Identifier: Apache-2.0

package main

import (
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"farpool.dev/farpool/hack/mutation"
)

// Kinds of mutants, by the names that gremlins gives them.
const (
	negation   = "CONDITIONALS_NEGATION"
	boundary   = "CONDITIONALS_BOUNDARY"
	logical    = "INVERT_LOGICAL"
	arithmetic = "ARITHMETIC_BASE"
	negative   = "INVERT_NEGATIVES"
	increment  = "INCREMENT_DECREMENT"
	loop       = "INVERT_LOOPCTRL"
	assignment = "REMOVE_SELF_ASSIGNMENTS"
)

// helpers is put beside the code that is changed.
//
//go:embed helpers.go.txt
var helpers string

// piece of a file that takes the place of what is there.
type piece struct {
	at, until int
	text      string
}

// changer goes through a file, in the order of its text.
type changer struct {
	file    *token.File
	text    string
	name    string
	types   *types.Info
	lines   []string
	next    *int
	mutants []*mutation.Mutant
	pieces  []piece
	// loops are the statements that a break or a continue would leave or go on with, the innermost last: true for a loop.
	loops []bool
}

// instrument has the files of a package hold all their mutants.
func instrument(tree, directory string) ([]*mutation.Mutant, error) {
	place := filepath.Join(tree, directory)
	entries, err := os.ReadDir(place)
	if err != nil {
		return nil, err
	}
	set := token.NewFileSet()
	var files []*ast.File
	var names []string
	for _, entry := range entries {
		if name := entry.Name(); strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go") {
			file, err := parser.ParseFile(set, filepath.Join(place, name), nil, parser.SkipObjectResolution)
			if err != nil {
				return nil, err
			}
			files, names = append(files, file), append(names, name)
		}
	}
	info := &types.Info{Types: map[ast.Expr]types.TypeAndValue{}}
	imports, err := importsOf(tree, directory)
	if err != nil {
		return nil, err
	}
	configuration := types.Config{Importer: importer.ForCompiler(set, "gc", imports)}
	if _, err := configuration.Check(directory, set, files, info); err != nil {
		return nil, fmt.Errorf("check types: %w", err)
	}
	next := 0
	var mutants []*mutation.Mutant
	for i, file := range files {
		content, err := os.ReadFile(filepath.Join(place, names[i]))
		if err != nil {
			return nil, err
		}
		c := &changer{file: set.File(file.Pos()), text: string(content), name: directory + "/" + names[i], types: info, lines: strings.Split(string(content), "\n"), next: &next}
		c.walk(file)
		mutants = append(mutants, c.mutants...)
		if err := os.WriteFile(filepath.Join(place, names[i]), []byte(c.changed()), 0o644); err != nil {
			return nil, err
		}
	}
	text := strings.Replace(helpers, "package PACKAGE", "package "+files[0].Name.Name, 1)
	return mutants, os.WriteFile(filepath.Join(place, "mutants_helpers.go"), []byte(text), 0o644)
}

// importsOf finds what the compiler has made of the packages that a package imports.
func importsOf(tree, directory string) (importer.Lookup, error) {
	list := exec.Command("go", "list", "-export", "-deps", "-json=ImportPath,Export", "./"+directory)
	list.Dir, list.Stderr = tree, os.Stderr
	output, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("list what it imports: %w", err)
	}
	exports := map[string]string{}
	for decoder := json.NewDecoder(strings.NewReader(string(output))); ; {
		var imported struct{ ImportPath, Export string }
		if err := decoder.Decode(&imported); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("understand what it imports: %w", err)
		}
		exports[imported.ImportPath] = imported.Export
	}
	return func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) }, nil
}

func (c *changer) changed() string {
	var b strings.Builder
	// Pieces at one place are in the order in which they were made.
	slices.SortStableFunc(c.pieces, func(a, b piece) int { return a.at - b.at })
	at := 0
	for _, p := range c.pieces {
		if p.at > at {
			b.WriteString(c.text[at:p.at])
		}
		b.WriteString(p.text)
		at = max(at, p.until)
	}
	b.WriteString(c.text[at:])
	return b.String()
}

func (c *changer) offset(at token.Pos) int { return c.file.Offset(at) }

func (c *changer) insert(at token.Pos, format string, arguments ...any) {
	c.pieces = append(c.pieces, piece{c.offset(at), c.offset(at), fmt.Sprintf(format, arguments...)})
}

func (c *changer) replace(at token.Pos, length int, format string, arguments ...any) {
	c.pieces = append(c.pieces, piece{c.offset(at), c.offset(at) + length, fmt.Sprintf(format, arguments...)})
}

// source of a node, with no mutants in it.
func (c *changer) source(node ast.Node) string {
	return c.text[c.offset(node.Pos()):c.offset(node.End())]
}

// mutant makes one of a kind.
func (c *changer) mutant(at token.Pos, kind string) int {
	*c.next++
	position := c.file.Position(at)
	c.mutants = append(c.mutants, &mutation.Mutant{Number: *c.next, File: c.name, Kind: kind, Line: position.Line, Column: position.Column, Code: strings.TrimSpace(c.lines[position.Line-1])})
	return *c.next
}

func (c *changer) walk(node ast.Node) {
	ast.Inspect(node, func(inner ast.Node) bool {
		switch inner := inner.(type) {
		case *ast.GenDecl:
			return inner.Tok == token.VAR
		case *ast.FuncLit:
			return c.within(inner.Body, nil)
		case *ast.ForStmt:
			c.walkAll(inner.Init, inner.Cond, inner.Post)
			return c.within(inner.Body, append(c.loops, true))
		case *ast.RangeStmt:
			c.walkAll(inner.X)
			return c.within(inner.Body, append(c.loops, true))
		case *ast.SwitchStmt:
			c.walkAll(inner.Init, inner.Tag)
			return c.within(inner.Body, append(c.loops, false))
		case *ast.TypeSwitchStmt:
			return c.within(inner.Body, append(c.loops, false))
		case *ast.SelectStmt:
			return c.within(inner.Body, append(c.loops, false))
		case *ast.BranchStmt:
			c.branch(inner)
			return false
		case *ast.BinaryExpr:
			return c.binary(inner)
		case *ast.UnaryExpr:
			if inner.Op == token.SUB && !c.constant(inner) {
				c.replace(inner.OpPos, 1, "mutantNegative(%d, ", c.mutant(inner.OpPos, negative))
				c.walk(inner.X)
				c.insert(inner.End(), ")")
				return false
			}
		case *ast.IncDecStmt:
			step := map[token.Token]string{token.INC: "1", token.DEC: "-1"}[inner.Tok]
			c.walk(inner.X)
			c.replace(inner.TokPos, 2, " = mutantStep(%d, %s, %s)", c.mutant(inner.TokPos, increment), c.source(inner.X), step)
			return false
		case *ast.AssignStmt:
			return c.assign(inner)
		}
		return true
	})
}

func (c *changer) walkAll(nodes ...ast.Node) {
	for _, node := range nodes {
		switch node := node.(type) {
		case ast.Expr, ast.Stmt:
			c.walk(node)
		}
	}
}

// within walks a body whose breaks and continues have other loops.
func (c *changer) within(body *ast.BlockStmt, loops []bool) bool {
	before := c.loops
	c.loops = slices.Clone(loops)
	c.walk(body)
	c.loops = before
	return false
}

func (c *changer) constant(expression ast.Expr) bool { return c.types.Types[expression].Value != nil }

func (c *changer) branch(statement *ast.BranchStmt) {
	label := ""
	if statement.Label != nil {
		label = " " + statement.Label.Name
	}
	switch {
	case statement.Tok == token.CONTINUE:
	case statement.Tok == token.BREAK && slices.Contains(c.loops, true) && (label == "" || !slices.Contains(c.loops, false)):
	default:
		return
	}
	other := map[token.Token]string{token.CONTINUE: "break", token.BREAK: "continue"}[statement.Tok]
	number := c.mutant(statement.Pos(), loop)
	c.replace(statement.Pos(), c.offset(statement.End())-c.offset(statement.Pos()), "if mutantLives(%d) { %s%s } else { %s%s }", number, other, label, statement.Tok, label)
}

var orders = map[token.Token]string{token.LSS: "mutantLess", token.LEQ: "mutantLessOrEqual", token.GTR: "mutantMore", token.GEQ: "mutantMoreOrEqual"}

var calculations = map[token.Token]string{token.ADD: "mutantSum", token.SUB: "mutantDifference", token.MUL: "mutantProduct", token.QUO: "mutantQuotient", token.REM: "mutantRemainder"}

func (c *changer) binary(expression *ast.BinaryExpr) bool {
	if c.constant(expression) {
		return false
	}
	at, length := expression.OpPos, len(expression.Op.String())
	switch op := expression.Op; op {
	case token.EQL, token.NEQ:
		c.insert(expression.Pos(), "(mutantLives(%d) != (", c.mutant(at, negation))
		c.walk(expression.X)
		c.walk(expression.Y)
		c.insert(expression.End(), "))")
	case token.LAND, token.LOR:
		c.insert(expression.Pos(), "%s(%d, ", map[token.Token]string{token.LAND: "mutantAnd", token.LOR: "mutantOr"}[op], c.mutant(at, logical))
		c.walk(expression.X)
		c.replace(at, length, ", func() bool { return (")
		c.walk(expression.Y)
		c.insert(expression.End(), ")})")
	case token.LSS, token.LEQ, token.GTR, token.GEQ:
		c.insert(expression.Pos(), "%s(%d, %d, ", orders[op], c.mutant(at, negation), c.mutant(at, boundary))
		c.walk(expression.X)
		c.replace(at, length, ",")
		c.walk(expression.Y)
		c.insert(expression.End(), ")")
	case token.ADD, token.SUB, token.MUL, token.QUO, token.REM:
		if basic, is := c.types.Types[expression].Type.Underlying().(*types.Basic); !is || basic.Info()&types.IsNumeric == 0 {
			return true
		}
		helper := calculations[op]
		if basic := c.types.Types[expression].Type.Underlying().(*types.Basic); basic.Info()&types.IsFloat != 0 && op == token.QUO {
			helper = "mutantRatio"
		}
		c.insert(expression.Pos(), "%s(%d, ", helper, c.mutant(at, arithmetic))
		c.walk(expression.X)
		c.replace(at, length, ",")
		c.walk(expression.Y)
		c.insert(expression.End(), ")")
	default:
		return true
	}
	return false
}

var selfAssignments = map[token.Token]string{token.ADD_ASSIGN: "mutantPlus", token.SUB_ASSIGN: "mutantMinus", token.MUL_ASSIGN: "mutantTimes", token.QUO_ASSIGN: "mutantOver",
	token.OR_ASSIGN: "mutantWith"}

// assign has what is added to something take its place instead.
func (c *changer) assign(statement *ast.AssignStmt) bool {
	helper := selfAssignments[statement.Tok]
	if helper == "" {
		return true
	}
	c.walk(statement.Lhs[0])
	c.replace(statement.TokPos, len(statement.Tok.String()), "= %s(%d, %s,", helper, c.mutant(statement.TokPos, assignment), c.source(statement.Lhs[0]))
	c.walk(statement.Rhs[0])
	c.insert(statement.End(), ")")
	return false
}

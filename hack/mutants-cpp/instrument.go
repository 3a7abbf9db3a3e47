// SPDX-License-Identifier: Apache-2.0

package main

import (
	_ "embed"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"farpool.dev/farpool/hack/mutation"
)

// Kinds of mutants.
const (
	// never has the condition of an if never hold, always has it hold. The condition is evaluated either way.
	never  = "never"
	always = "always"
	// without leaves a statement out.
	without = "without"
)

// helpers is the header that every file with mutants includes.
//
//go:embed helpers.h.txt
var helpers string

// insertion is text that is put between two bytes of a file.
type insertion struct {
	at   int
	text string
}

// changer puts mutants into a file. What it looks at is plain: the text, with spaces in the place of all that is no code.
type changer struct {
	name, text, plain string
	lines             []string
	next              *int
	mutants           []*mutation.Mutant
	insertions        []insertion
	// constant are the spans that the compiler evaluates, where no mutant can be chosen.
	constant [][2]int
}

// instrument returns a file that holds all its mutants, which have the numbers from *next+1 on.
func instrument(name, text string, next *int) (string, []*mutation.Mutant) {
	c := &changer{name: name, text: text, plain: plain(text), lines: strings.Split(text, "\n"), next: next}
	c.constant = constant(c.plain)
	c.conditions()
	c.statements()
	slices.SortStableFunc(c.insertions, func(a, b insertion) int { return a.at - b.at })
	var b strings.Builder
	// Warnings are about code that people wrote.
	b.WriteString("#pragma clang diagnostic ignored \"-Weverything\"\n#include \"mutants_helpers.h\"\n")
	at := 0
	for _, one := range c.insertions {
		b.WriteString(text[at:one.at] + one.text)
		at = one.at
	}
	b.WriteString(text[at:])
	return b.String(), c.mutants
}

var openings = regexp.MustCompile(`^(?:u8|[uUL])?R"([^()\\\s]{0,16})\(`)

// plain returns the text with spaces for each byte of comments, of the preprocessor's lines, and of what stands between quotes.
func plain(text string) string {
	b := []byte(text)
	blank := func(from, until int) {
		for i := from; i < min(until, len(b)); i++ {
			if b[i] != '\n' {
				b[i] = ' '
			}
		}
	}
	upTo := func(from int, end string) int {
		if i := strings.Index(text[from:], end); i >= 0 {
			return from + i + len(end)
		}
		return len(text)
	}
	begins := true // only spaces stand before, on this line
	for i := 0; i < len(text); {
		next := i + 1
		switch raw := openings.FindStringSubmatch(text[i:min(i+32, len(text))]); {
		case strings.HasPrefix(text[i:], "//"):
			next = upTo(i, "\n")
			blank(i, next)
		case strings.HasPrefix(text[i:], "/*"):
			next = upTo(i+2, "*/")
			blank(i, next)
		case raw != nil && (i == 0 || !letter(text[i-1])):
			next = upTo(i+len(raw[0]), ")"+raw[1]+`"`)
			blank(i+len(raw[0]), next-1)
			blank(i, i+len(raw[0]))
			b[next-1] = '"'
		case text[i] == '"' || text[i] == '\'' && (i == 0 || !letter(text[i-1])):
			for next < len(text) && text[next] != text[i] && text[next] != '\n' {
				if text[next] == '\\' {
					next++
				}
				next++
			}
			next = min(next+1, len(text))
			blank(i+1, next-1)
		case text[i] == '#' && begins:
			for next = upTo(i, "\n"); next < len(text) && text[next-2] == '\\'; {
				next = upTo(next, "\n")
			}
			blank(i, next)
		}
		begins = text[next-1] == '\n' || begins && text[i] == ' '
		i = next
	}
	return string(b)
}

func letter(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

// closes returns where the bracket at a place is closed, or -1.
func closes(plain string, at int) int {
	depth := 0
	for i := at; i < len(plain); i++ {
		switch plain[i] {
		case '(', '[', '{':
			depth++
		case ')', ']', '}':
			if depth--; depth == 0 {
				return i
			}
		}
	}
	return -1
}

var constants = regexp.MustCompile(`\b(?:constexpr|consteval|static_assert|concept|requires)\b`)

// constant finds what the compiler evaluates: from such a word up to the end of the declaration, or of the function's body.
func constant(plain string) (spans [][2]int) {
	for _, word := range constants.FindAllStringIndex(plain, -1) {
		if strings.HasSuffix(strings.TrimRight(plain[:word[0]], " \n"), "if") {
			continue // the branches of an if constexpr are ordinary code
		}
		spans = append(spans, [2]int{word[0], declared(plain, word[1])})
	}
	return spans
}

// declared returns where the declaration ends that a place is in.
func declared(plain string, from int) int {
	value := false
	for i := from; i < len(plain); i++ {
		switch plain[i] {
		case '=':
			value = true
		case ';', ')', ']', '}':
			return i
		case '(', '[', '{':
			body := plain[i] == '{' && !value
			if i = closes(plain, i); i < 0 {
				return len(plain)
			}
			if body {
				return i
			}
		}
	}
	return len(plain)
}

func (c *changer) constantAt(at int) bool {
	return slices.ContainsFunc(c.constant, func(span [2]int) bool { return span[0] <= at && at < span[1] })
}

// mutant makes one of a kind, and returns its number.
func (c *changer) mutant(at int, kind string) int {
	*c.next++
	before := c.text[:at]
	line := strings.Count(before, "\n") + 1
	c.mutants = append(c.mutants, &mutation.Mutant{
		Number: *c.next, File: c.name, Kind: kind, Line: line, Column: at - strings.LastIndexByte(before, '\n'), Code: strings.TrimSpace(c.lines[line-1]),
	})
	return *c.next
}

func (c *changer) insert(at int, format string, arguments ...any) {
	c.insertions = append(c.insertions, insertion{at, fmt.Sprintf(format, arguments...)})
}

var (
	ifs = regexp.MustCompile(`\bif\s*\(`)
	// A condition that declares what it asks: const X* x = y().
	declares = regexp.MustCompile(`^\s*(?:const\s+)?[A-Za-z_][\w:]*(?:<[^=;]*>)?(?:\s*[*&]+\s*|\s+)(?:const\s+)?[A-Za-z_]\w*\s*(?:=[^=]|\{)`)
)

func (c *changer) conditions() {
	for _, found := range ifs.FindAllStringIndex(c.plain, -1) {
		open := found[1] - 1
		end := closes(c.plain, open)
		if end < 0 || c.constantAt(found[0]) {
			continue
		}
		from := open + 1 + initialiser(c.plain[open+1:end])
		if declares.MatchString(c.plain[from:end]) {
			continue
		}
		off, on := c.mutant(found[0], never), c.mutant(found[0], always)
		c.insert(from, "(((")
		c.insert(end, ") && !::mutants::lives(%d)) || ::mutants::lives(%d))", off, on)
	}
}

// initialiser returns the length of what stands before a condition: if (auto x = y(); x.ok()).
func initialiser(inside string) int {
	length, depth := 0, 0
	for i := range len(inside) {
		switch inside[i] {
		case '(', '[', '{':
			depth++
		case ')', ']', '}':
			depth--
		case ';':
			if depth == 0 {
				length = i + 1
			}
		}
	}
	return length
}

var (
	// A call, an assignment, or an increment, as a whole line.
	statement = regexp.MustCompile(`^(?:\(void\))?(?:co_await )?[*]*(?:\+\+|--)?(?:[a-z_]\w*|[A-Z]\w*(?:::\w+)+)(?:::\w+|\.\w+|->\w+|\[[^\]]*\]|\([^;]*?\))*(?:\(.*\)|\s*(?:[+\-*/|&^%]|<<|>>)?=\s.*|\+\+|--)?;$`)
	// Words that begin other statements.
	others = regexp.MustCompile(`^(?:return|co_return|co_yield|throw|delete|using|typedef|goto|break|continue|case|default|static_assert|if|for|while|else|do|switch|namespace|template|friend|public|private|protected|enum|class|struct|union|extern)\b`)
	// A name alone is no statement.
	alone = regexp.MustCompile(`^\w+;$`)
)

// statements puts mutants around each statement that is a line of its own.
func (c *changer) statements() {
	at, before := 0, byte('{')
	for line := range strings.SplitSeq(c.plain, "\n") {
		code := strings.TrimSpace(line)
		from := at + len(line) - len(strings.TrimLeft(line, " "))
		at += len(line) + 1
		if code == "" {
			continue
		}
		begins := strings.IndexByte(";{}:", before) >= 0
		before = code[len(code)-1]
		until := from + len(code)
		if !begins || from == at-len(line)-1 || others.MatchString(code) || alone.MatchString(code) || !statement.MatchString(code) || !balanced(code) || c.constantAt(from) {
			continue
		}
		number := c.mutant(from, without)
		c.insert(from, "if (!::mutants::lives(%d)) { ", number)
		c.insert(until, " }")
	}
}

// balanced says whether each bracket of a line is closed on it, and only its end is one of a statement.
func balanced(code string) bool {
	depth := 0
	for i := range len(code) {
		switch code[i] {
		case '(', '[', '{':
			depth++
		case ')', ']', '}':
			if depth--; depth < 0 {
				return false
			}
		case ';':
			if depth == 0 && i != len(code)-1 {
				return false
			}
		}
	}
	return depth == 0
}

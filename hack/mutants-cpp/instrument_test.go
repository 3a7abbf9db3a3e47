// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestMutantsArePutWhereTheyCanBeChosen(t *testing.T) {
	for name, c := range map[string]struct {
		text  string
		wants string
		kinds []string
	}{
		"a condition": {
			"void f() {\n  if (a == 1) return;\n}\n",
			"void f() {\n  if ((((a == 1) && !::mutants::lives(1)) || ::mutants::lives(2))) return;\n}\n",
			[]string{"2 never", "2 always"},
		},
		"a condition of several lines": {
			"  if (a(b(1), 2) &&\n      c) {\n",
			"  if ((((a(b(1), 2) &&\n      c) && !::mutants::lives(1)) || ::mutants::lives(2))) {\n",
			[]string{"1 never", "1 always"},
		},
		"an else if": {
			"  } else if (a) {\n",
			"  } else if ((((a) && !::mutants::lives(1)) || ::mutants::lives(2))) {\n",
			[]string{"1 never", "1 always"},
		},
		"an initialiser": {
			"  if (auto [a, b] = f(); !a.ok()) return a;\n",
			"  if (auto [a, b] = f();((( !a.ok()) && !::mutants::lives(1)) || ::mutants::lives(2))) return a;\n",
			[]string{"1 never", "1 always"},
		},
		"a declaration is its own condition": {"  if (const Foo* foo = find<int>(1)) return foo;\n  if (std::optional<int> x = f()) return *x;\n  if (auto y = f()) return y;\n", "", nil},
		"an if constexpr, whose branches are ordinary": {
			"  if constexpr (A) {\n    f();\n  }\n",
			"  if constexpr (A) {\n    if (!::mutants::lives(1)) { f(); }\n  }\n",
			[]string{"2 without"},
		},
		"what the compiler evaluates": {"constexpr int f(int a) {\n  if (a) return 1;\n  g();\n  return 2;\n}\nconstexpr auto kG = [](int a) {\n  if (a) return 1;\n  return 2;\n};\n", "", nil},
		"what comes behind that": {
			"constexpr int kA = 1;\nvoid f() {\n  if (a) return;\n}\n",
			"constexpr int kA = 1;\nvoid f() {\n  if ((((a) && !::mutants::lives(1)) || ::mutants::lives(2))) return;\n}\n",
			[]string{"3 never", "3 always"},
		},
		"text with parentheses": {
			"  if (a == \")(\" || b == ')' || c == 1'000'000) return;\n",
			"  if ((((a == \")(\" || b == ')' || c == 1'000'000) && !::mutants::lives(1)) || ::mutants::lives(2))) return;\n",
			[]string{"1 never", "1 always"},
		},
		"raw text, with code in it": {
			"  f(R\"x(if (a) \" )\" )x\");\n  if (b == '\"') return;\n",
			"  if (!::mutants::lives(3)) { f(R\"x(if (a) \" )\" )x\"); }\n  if ((((b == '\"') && !::mutants::lives(1)) || ::mutants::lives(2))) return;\n",
			[]string{"1 without", "2 always", "2 never"},
		},
		"comments and the preprocessor": {"#define F(x) \\\n  if (x) return;\n#if (A)\n#endif\n// if (a) b\n/* if (a)\n  f();\n*/\n", "", nil},
		"a lambda in a condition": {
			"  if (std::any_of(a, [](int x) { if (x) return true; return false; })) return;\n",
			"  if ((((std::any_of(a, [](int x) { if ((((x) && !::mutants::lives(3)) || ::mutants::lives(4))) return true; return false; })) && !::mutants::lives(1)) || ::mutants::lives(2))) return;\n",
			[]string{"1 always", "1 always", "1 never", "1 never"},
		},
		"a lambda as an argument": {
			"  after(now, [this] { tell(); });\n  after(now, [this] {\n    tell();\n  });\n",
			"  if (!::mutants::lives(1)) { after(now, [this] { tell(); }); }\n  after(now, [this] {\n    if (!::mutants::lives(2)) { tell(); }\n  });\n",
			[]string{"1 without", "3 without"},
		},
		"a coroutine": {
			"  if (!co_await wait(deadline)) co_return late();\n  co_await f();\n  (void)co_await g();\n",
			"  if ((((!co_await wait(deadline)) && !::mutants::lives(1)) || ::mutants::lives(2))) co_return late();\n  if (!::mutants::lives(3)) { co_await f(); }\n  if (!::mutants::lives(4)) { (void)co_await g(); }\n",
			[]string{"1 always", "1 never", "2 without", "3 without"},
		},
		"statements": {
			"  a.b->c[1].d();  // said\n  x = y;\n  *x = y;\n  x.y += 2;\n  ++x;\n  n--;\n  Foo::bar(1);\n  std::erase(a, b);\n",
			"  if (!::mutants::lives(1)) { a.b->c[1].d(); }  // said\n  if (!::mutants::lives(2)) { x = y; }\n  if (!::mutants::lives(3)) { *x = y; }\n  if (!::mutants::lives(4)) { x.y += 2; }\n" +
				"  if (!::mutants::lives(5)) { ++x; }\n  if (!::mutants::lives(6)) { n--; }\n  if (!::mutants::lives(7)) { Foo::bar(1); }\n  if (!::mutants::lives(8)) { std::erase(a, b); }\n",
			[]string{"1 without", "2 without", "3 without", "4 without", "5 without", "6 without", "7 without", "8 without"},
		},
		"what is no statement, or not a whole one": {
			"  int x = 3;\n  auto y = f();\n  std::vector<int> z;\n  return f();\n  co_return f();\n  x =\n      f();\n  f(a,\n    b);\n  if (\n      a)\n    f();\n  else\n    g();\n  for (;;)\n    f();\n  using a = b;\n  Foo(int);\n",
			"  int x = 3;\n  auto y = f();\n  std::vector<int> z;\n  return f();\n  co_return f();\n  x =\n      f();\n  f(a,\n    b);\n  if ((((\n      a) && !::mutants::lives(1)) || ::mutants::lives(2)))\n    f();\n  else\n    g();\n  for (;;)\n    f();\n  using a = b;\n  Foo(int);\n",
			[]string{"10 never", "10 always"},
		},
	} {
		next := 0
		changed, mutants := instrument("f.cc", c.text, &next)
		_, changed, _ = strings.Cut(changed, "#include \"mutants_helpers.h\"\n")
		if c.wants == "" {
			c.wants = c.text
		}
		if changed != c.wants {
			t.Errorf("%s: became\n%s, not\n%s", name, changed, c.wants)
		}
		var kinds []string
		for _, m := range mutants {
			kinds = append(kinds, fmt.Sprintf("%d %s", m.Line, m.Kind))
		}
		slices.Sort(kinds)
		slices.Sort(c.kinds)
		if !slices.Equal(kinds, c.kinds) || next != len(kinds) {
			t.Errorf("%s: has mutants %v, not %v", name, kinds, c.kinds)
		}
	}
}

// The changed file compiles, does what it did, and each mutant does something else.
func TestEachMutantLivesWhereItIsChosen(t *testing.T) {
	compiler, err := exec.LookPath("clang++-16")
	if err != nil {
		t.Fatalf("%v: hack/deps installs it", err)
	}
	const text = "int main(int n, char**) {\n  int code = 0;\n  if (n == 1) code += 1;\n  if (n == 2) code += 2;\n  code += 4;\n  return code;\n}\n"
	next := 7
	changed, mutants := instrument("main.cc", text, &next)
	directory := t.TempDir()
	program := filepath.Join(directory, "main")
	for name, text := range map[string]string{"main.cc": changed, "mutants_helpers.h": strings.Replace(helpers, "MUTANTS;", "12;", 1)} {
		if err := os.WriteFile(filepath.Join(directory, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if said, err := exec.Command(compiler, "-std=c++20", "-Wall", "-Werror", "-o", program, filepath.Join(directory, "main.cc")).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	code := func(environment string) int {
		command := exec.Command(program)
		command.Env = append(os.Environ(), environment)
		_ = command.Run()
		return command.ProcessState.ExitCode()
	}
	// Behind a condition that does not hold, only the mutant that has it hold.
	reached := filepath.Join(directory, "reached")
	if got := code("MUTANTS_REACHED=" + reached); got != 5 {
		t.Errorf("with no mutant it ends with %d, not 5", got)
	}
	if got, err := os.ReadFile(reached); err != nil || string(got) != "8\n11\n12\n" {
		t.Errorf("it reached %q, %v", got, err)
	}
	wants := map[string]int{"3 never": 4, "3 always": 5, "4 never": 5, "4 always": 7, "5 without": 1}
	for _, m := range mutants {
		what := fmt.Sprintf("%d %s", m.Line, m.Kind)
		if got := code(fmt.Sprintf("MUTANT=%d", m.Number)); got != wants[what] {
			t.Errorf("mutant %s: it ends with %d, not %d", what, got, wants[what])
		}
	}
}

func TestNamesOfTests(t *testing.T) {
	got := names("Running main() from gtest_main.cc\nPool.\n  Opens\n  Closes\nAll/PoolOf.  # TypeParam = int\n  Works/0  # GetParam() = 1.5\n")
	if want := []string{"Pool.Opens", "Pool.Closes", "All/PoolOf.Works/0"}; !slices.Equal(got, want) {
		t.Errorf("the tests are %v, not %v", got, want)
	}
}

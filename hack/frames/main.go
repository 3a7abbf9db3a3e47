// SPDX-License-Identifier: Apache-2.0

// Command frames lists the coroutines of a program by the size of their frames, as its machine code says it: each
// coroutine asks farpool::task::allocate_frame for a constant number of bytes. A frame that is larger than the pool of
// frames serves (dataplane/task/task.cc) costs a call of malloc and cold memory for each operation.
//
//	go run ./hack/frames build/release/apps/farpool-compute-shard
//	go run ./hack/frames --most 4096 --rooms rcuckoo,race,client,session build/release/apps/farpool-compute-shard
//
// With --most it fails if a coroutine of these namespaces needs more, and names it.
package main

import (
	"bufio"
	"cmp"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A coroutine, and the bytes of its frame.
type frame struct {
	name  string
	bytes int
}

var (
	function = regexp.MustCompile(`^[0-9a-f]+ <(.*)>:$`)
	size     = regexp.MustCompile(`\bmovl\s+\$(0x[0-9a-f]+|[0-9]+), %edi(?:\s+#.*)?$`)
	call     = regexp.MustCompile(`\b(?:callq?|jmpq?)\s.*<farpool::task::allocate_frame\(`)
)

// framesOf reads a disassembly. A function that asks for several frames has coroutines that were inlined into it: each
// counts.
func framesOf(disassembly io.Reader) ([]frame, error) {
	var (
		frames []frame
		name   string
		bytes  int
	)
	seen := map[frame]bool{}
	lines := bufio.NewScanner(disassembly)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := strings.TrimRight(lines.Text(), " \t")
		if found := function.FindStringSubmatch(line); found != nil {
			name, bytes = found[1], 0
		} else if found := size.FindStringSubmatch(line); found != nil {
			value, err := strconv.ParseInt(found[1], 0, 64)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", line, err)
			}
			bytes = int(value)
		} else if bytes > 0 && call.MatchString(line) {
			one := frame{short(name), bytes}
			if !seen[one] {
				seen[one] = true
				frames = append(frames, one)
			}
			bytes = 0
		}
	}
	slices.SortFunc(frames, func(a, b frame) int {
		return cmp.Or(cmp.Compare(b.bytes, a.bytes), cmp.Compare(a.name, b.name))
	})
	return frames, lines.Err()
}

// short returns a function's name without its arguments.
func short(name string) string {
	depth := 0
	for i, letter := range name {
		switch {
		case letter == '<':
			depth++
		case letter == '>':
			depth--
		case letter == '(' && depth == 0 && !strings.HasPrefix(name[i:], "(anonymous"):
			return name[:i]
		}
	}
	return name
}

// within says whether a function is in one of these namespaces of farpool.
func within(name string, rooms []string) bool {
	return slices.ContainsFunc(rooms, func(room string) bool { return strings.Contains(name, "farpool::"+room+"::") })
}

func run(program string, most int, rooms []string, shown int) error {
	objdump := exec.Command("llvm-objdump-16", "-d", "--no-show-raw-insn", "--demangle", program)
	objdump.Stderr = os.Stderr
	out, err := objdump.StdoutPipe()
	if err != nil {
		return err
	}
	if err := objdump.Start(); err != nil {
		return fmt.Errorf("llvm-objdump-16, from the package llvm-16: %w", err)
	}
	frames, err := framesOf(out)
	if err != nil {
		return err
	}
	if err := objdump.Wait(); err != nil {
		return fmt.Errorf("disassembling %s: %w", program, err)
	}
	if len(frames) == 0 {
		return fmt.Errorf("%s has no coroutine that asks for a frame: it was built another way than this command knows", program)
	}
	var tooLarge []string
	for i, one := range frames {
		over := most > 0 && one.bytes > most && within(one.name, rooms)
		if over {
			tooLarge = append(tooLarge, fmt.Sprintf("%s: %d bytes", one.name, one.bytes))
		}
		if i < shown || over {
			fmt.Printf("%7d  %s\n", one.bytes, one.name)
		}
	}
	fmt.Printf("%d coroutines; the largest frame has %d bytes\n", len(frames), frames[0].bytes)
	if len(tooLarge) > 0 {
		return fmt.Errorf("%d coroutines need more than %d bytes: hold less across co_await, or hold it elsewhere\n  %s",
			len(tooLarge), most, strings.Join(tooLarge, "\n  "))
	}
	return nil
}

func main() {
	most := flag.Int("most", 0, "fail if a coroutine of the namespaces in --rooms needs more `bytes`; 0: never")
	rooms := flag.String("rooms", "", "namespaces of farpool, with commas between them")
	shown := flag.Int("shown", 20, "how many of the largest frames to list")
	flag.Usage = func() {
		fmt.Fprintf(flag.CommandLine.Output(), "frames lists the coroutines of a program by the size of their frames.\n\n  frames [flags] PROGRAM\n\n")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() != 1 {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(flag.Arg(0), *most, strings.Split(*rooms, ","), *shown); err != nil {
		fmt.Fprintln(os.Stderr, "frames:", err)
		os.Exit(1)
	}
}

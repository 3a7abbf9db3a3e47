// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"strings"
	"testing"
)

const disassembly = `
0000000000001000 <farpool::rcuckoo::change(farpool::rcuckoo::Table::State&, std::basic_string_view<char, std::char_traits<char>>, long)>:
    1000: pushq	%rbp
    1001: movl	$0x560, %edi            # imm = 0x560
    1006: callq	0x9000 <farpool::task::allocate_frame(unsigned long)>
    100b: movl	$0x7, %edi
    1010: callq	0x9100 <other(int)>

0000000000002000 <farpool::client::(anonymous namespace)::walk(int)>:
    2000: movl	$300, %edi
    2001: movl	$0x4000, %edi
    2006: jmp	0x9000 <farpool::task::allocate_frame(unsigned long)>

0000000000003000 <farpool::front::resp::none()>:
    3006: callq	0x9000 <farpool::task::allocate_frame(unsigned long)>
`

func TestFramesAreReadFromADisassembly(t *testing.T) {
	frames, err := framesOf(strings.NewReader(disassembly))
	if err != nil {
		t.Fatal(err)
	}
	want := []frame{{"farpool::client::(anonymous namespace)::walk", 0x4000}, {"farpool::rcuckoo::change", 0x560}}
	if !slices.Equal(frames, want) {
		t.Errorf("got %v, want %v", frames, want)
	}
}

func TestRoomsAreNamespaces(t *testing.T) {
	for name, want := range map[string]bool{
		"farpool::rcuckoo::change":               true,
		"std::vector<farpool::rcuckoo::X>::grow": true,
		"farpool::client::get":                   false,
	} {
		if got := within(name, []string{"rcuckoo", "race"}); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

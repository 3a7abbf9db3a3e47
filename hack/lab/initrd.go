// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
)

// archive writes cpio's "newc" format, which the kernel unpacks into its first root.
type archive struct {
	to    io.Writer
	inode int
	err   error
}

const (
	modeDirectory = 0o040755
	modeFile      = 0o100644
	modeProgram   = 0o100755
)

func (a *archive) add(name string, mode int, content []byte) {
	if a.err != nil {
		return
	}
	a.inode++
	// Magic, inode, mode, uid, gid, links, mtime, size, device (2), special device (2), length of the name with its zero, check.
	header := fmt.Sprintf("070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x", a.inode, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name)+1, 0)
	head := header + name + "\x00"
	for _, part := range [][]byte{[]byte(head), zeros(len(head)), content, zeros(len(content))} {
		if _, a.err = a.to.Write(part); a.err != nil {
			return
		}
	}
}

// zeros fills up to a multiple of four.
func zeros(length int) []byte { return make([]byte, (4-length%4)%4) }

func writeInitrd(path, init string, told []byte, modules []module) error {
	program, err := os.ReadFile(init)
	if err != nil {
		return err
	}
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close()
	buffered := bufio.NewWriterSize(file, 1<<20)
	a := &archive{to: buffered}
	for _, directory := range []string{"modules", "proc", "sys", "dev", "host", "layer", "root"} {
		a.add(directory, modeDirectory, nil)
	}
	a.add("init", modeProgram, program)
	a.add("task.json", modeFile, told)
	for _, each := range modules {
		a.add("modules/"+each.name, modeFile, each.content)
	}
	a.add("TRAILER!!!", 0, nil)
	if a.err != nil {
		return a.err
	}
	return buffered.Flush()
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestVersionsAreOrderedByTheirNumbers(t *testing.T) {
	versions := []string{"7.10.1+deb13-amd64", "7.2.12+deb13-amd64", "6.12.9+deb13-amd64", "7.2.3+deb13-amd64", "7.9+deb13-amd64"}
	slices.SortFunc(versions, compareVersions)
	want := []string{"6.12.9+deb13-amd64", "7.2.3+deb13-amd64", "7.2.12+deb13-amd64", "7.9+deb13-amd64", "7.10.1+deb13-amd64"}
	if !slices.Equal(versions, want) {
		t.Errorf("got %v, want %v", versions, want)
	}
}

// Headers are 110 bytes, and every part is filled up to a multiple of four.
func TestAnArchiveIsCpio(t *testing.T) {
	var out bytes.Buffer
	a := &archive{to: &out}
	a.add("init", modeProgram, []byte("12345"))
	a.add("TRAILER!!!", 0, nil)
	head := func(inode, mode, links, size, name string) string {
		const none = "00000000"
		return "070701" + inode + mode + none + none + links + none + size + none + none + none + none + name + none
	}
	want := head("00000001", "000081ed", "00000001", "00000005", "00000005") + "init\x00\x00" + "12345\x00\x00\x00" +
		head("00000002", "00000000", "00000001", "00000000", "0000000b") + "TRAILER!!!\x00\x00\x00\x00"
	if a.err != nil || out.String() != want {
		t.Errorf("%v\n got %q\nwant %q", a.err, out.String(), want)
	}
}

func TestAModuleMustBeOne(t *testing.T) {
	if _, err := moduleNeeds([]byte("no ELF at all")); err == nil {
		t.Error("anything passes for a module")
	}
	self, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := moduleNeeds(self); err == nil {
		t.Error("a program passes for a module")
	}
}

func TestAKernelWithoutItsModulesIsSaidSo(t *testing.T) {
	directory := t.TempDir()
	if err := os.WriteFile(filepath.Join(directory, "9p.ko"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := (kernel{"7.2", directory}).modules(guestModules); err == nil {
		t.Error("a kernel without SoftRoCE is taken")
	}
}

func TestAKernelThatWasKeptWithFewerModulesIsReplaced(t *testing.T) {
	write := func(path string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	fetch := func() kernel {
		from := kernel{"7.2", filepath.Join(t.TempDir(), "7.2")}
		write(from.image())
		for _, name := range neededModules {
			write(filepath.Join(from.directory, "kernel", "net", name+".ko"))
		}
		return from
	}
	root := t.TempDir()
	to := kernel{"7.2", filepath.Join(root, "kernel", "7.2")}
	write(to.image())
	write(filepath.Join(to.directory, "9p.ko"))
	if err := keep(options{}, fetch(), to.directory, time.Now()); err != nil || to.lacks() != "" {
		t.Fatalf("%v; it lacks %q", err, to.lacks())
	}
	write(filepath.Join(to.directory, "marker"))
	if err := keep(options{}, fetch(), to.directory, time.Now()); err != nil || !exists(filepath.Join(to.directory, "marker")) {
		t.Errorf("%v; a kernel that has everything is replaced", err)
	}
}

func TestAGuestWithARootOfItsOwnSeesNothingOfThisMachine(t *testing.T) {
	o := options{cpus: 1, memory: "1G"}
	if args := o.machine("k", "w"); !slices.Contains(args, "-virtfs") || slices.Contains(args, "-drive") || slices.Contains(args, "-netdev") {
		t.Errorf("got %q", args)
	}
	o.root, o.tap = "disk", "tap7"
	args := o.machine("k", "w")
	if slices.Contains(args, "-virtfs") || slices.Contains(args, "-nic") || !slices.Contains(args, "tap,id=network,script=no,downscript=no,ifname=tap7") {
		t.Errorf("got %q", args)
	}
	if i := slices.Index(args, "-drive"); i < 0 || !strings.Contains(args[i+1], "file=disk,") || !strings.Contains(args[i+1], "snapshot=on") {
		t.Errorf("got %q", args)
	}
}

// What leaves by one end arrives at the other's, and nobody answers to two names.
func TestTwoGuestsHaveTheEndsOfOneCable(t *testing.T) {
	var ends [2][]string
	for i := range ends {
		o := options{cpus: 1, memory: "1G", machineNumber: i + 1}
		args := o.machine("k", fmt.Sprintf("w/%d", i+1))
		at := slices.Index(args, "-netdev")
		if at < 0 || args[at+2] != "-device" {
			t.Fatalf("got %q", args)
		}
		ends[i] = []string{args[at+1], args[at+3]}
	}
	if want := "dgram,id=network,local.type=unix,local.path=w/cable1,remote.type=unix,remote.path=w/cable2"; ends[0][0] != want {
		t.Errorf("got %q, want %q", ends[0][0], want)
	}
	if want := "dgram,id=network,local.type=unix,local.path=w/cable2,remote.type=unix,remote.path=w/cable1"; ends[1][0] != want {
		t.Errorf("got %q, want %q", ends[1][0], want)
	}
	if ends[0][1] == ends[1][1] {
		t.Errorf("both have %q", ends[0][1])
	}
}

func TestAGuestIsBootedAgainOnlyIfItsCommandHadNotBegun(t *testing.T) {
	const panicked = "[    2.046280] Kernel panic - not syncing: Fatal exception in interrupt\n"
	for _, c := range []struct {
		told, console string
		again         bool
	}{
		{"", panicked, true},
		{"", "guest: /task.json: no such file\n", false},
		{begun, panicked, false},
		{begun + "0\n", panicked, false},
	} {
		if got := diedBooting(c.told, c.console); got != c.again {
			t.Errorf("told %q, console %q: booted again: %v, want %v", c.told, c.console, got, c.again)
		}
	}
}

func TestTheCommandsStatusIsTold(t *testing.T) {
	for told, want := range map[string]int{"": -1, begun: -1, begun + "0\n": 0, begun + "7\n": 7, "125\n": 125} {
		status, ok := ended(told)
		if !ok {
			status = -1
		}
		if status != want {
			t.Errorf("%q: got %d, want %d", told, status, want)
		}
	}
}

func TestTheGuestsFirstProcessBuilds(t *testing.T) {
	if out, err := exec.Command("go", "build", "-o", filepath.Join(t.TempDir(), "init"), "farpool.dev/farpool/hack/lab/guest").CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

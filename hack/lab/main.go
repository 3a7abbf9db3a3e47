// SPDX-License-Identifier: Apache-2.0

// Lab runs a command of the tree where RDMA devices are: on this machine if it has some, and otherwise in a QEMU guest whose root is
// this machine's, read-only under a layer that is thrown away. The guest's kernel has SoftRoCE, with a device `rxe0` on its
// loopback interface. With a file system and a tap of its own the guest is a machine by itself. What the command prints is printed here, and its exit status is the program's.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Exit statuses beside the command's own.
const (
	statusUsage   = 2
	statusTimeout = 124
	statusBroken  = 125 // the laboratory could not run the command
)

type options struct {
	timeout time.Duration
	memory  string
	cpus    int
	guest   bool
	root    string
	tap     string
	verbose bool
	fetch   bool
}

func main() {
	var o options
	flags := flag.NewFlagSet("lab", flag.ExitOnError)
	flags.Usage = func() {
		fmt.Fprintf(flags.Output(), `go run ./hack/lab [flags] -- COMMAND [ARGUMENT ...]

Runs COMMAND with an RDMA device at hand: on this machine where /sys/class/infiniband has one, and otherwise in a guest under QEMU
that sees this machine's files read-only (what it writes is gone afterwards) and has SoftRoCE as rxe0. The kernel is fetched from Debian
once, and kept in ${FARPOOL_CACHE:-~/.cache/farpool}/lab. Exit status: the command's; %d when it was too slow, %d when it could not be run.

`, statusTimeout, statusBroken)
		flags.PrintDefaults()
	}
	flags.DurationVar(&o.timeout, "timeout", 10*time.Minute, "after which the guest, or the command, is ended")
	flags.StringVar(&o.memory, "memory", "2G", "of the guest; what the command writes to files counts")
	flags.IntVar(&o.cpus, "cpus", min(2, runtime.NumCPU()), "of the guest")
	flags.BoolVar(&o.guest, "guest", false, "use the guest even where this machine has RDMA devices")
	flags.StringVar(&o.root, "root", "", "an ext4 file system that is the guest's root instead of this machine's files; changes are thrown away; there is no rxe0")
	flags.StringVar(&o.tap, "tap", "", "a tap of this machine that is the guest's eth0")
	flags.BoolVar(&o.verbose, "v", false, "say what is done and how long it took")
	flags.BoolVar(&o.fetch, "fetch-kernel", false, "look for a newer kernel, even if there is one already")
	_ = flags.Parse(os.Args[1:])
	if flags.NArg() == 0 && !o.fetch || o.cpus < 1 || o.timeout <= 0 {
		flags.Usage()
		os.Exit(statusUsage)
	}
	status, err := run(o, flags.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "lab:", err)
	}
	os.Exit(status)
}

func (o options) say(format string, args ...any) {
	if o.verbose {
		fmt.Fprintf(os.Stderr, "lab: "+format+"\n", args...)
	}
}

func run(o options, command []string) (int, error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if o.fetch {
		if _, err := findKernel(ctx, o, true); err != nil || len(command) == 0 {
			if err != nil {
				return statusBroken, err
			}
			return 0, nil
		}
	}
	if devices, _ := filepath.Glob("/sys/class/infiniband/*"); len(devices) > 0 && !o.guest {
		o.say("this machine has %s: runs here", filepath.Base(devices[0]))
		return runHere(ctx, o, command)
	}
	return runGuest(ctx, o, command)
}

func runHere(ctx context.Context, o options, command []string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0, nil
	case ctx.Err() != nil:
		return statusTimeout, fmt.Errorf("%s did not end within %s", command[0], o.timeout)
	case errors.As(err, &exit) && exit.Exited():
		return exit.ExitCode(), nil
	default:
		return statusBroken, err
	}
}

// What the guest's first process is told; its counterpart stands in guest/main.go.
type task struct {
	Command     []string
	Directory   string
	Environment []string
	Modules     []string
	OwnRoot     bool // is /dev/vda
}

func runGuest(ctx context.Context, o options, command []string) (int, error) {
	begun := time.Now()
	qemu, err := exec.LookPath("qemu-system-x86_64")
	if err != nil {
		return statusBroken, errors.New("there is no qemu-system-x86_64, and this machine has no RDMA device: run `hack/deps lab`")
	}
	if runtime.GOARCH != "amd64" {
		return statusBroken, fmt.Errorf("the guest runs what was built here, and is made for amd64 alone, not %s", runtime.GOARCH)
	}
	kernel, err := findKernel(ctx, o, false)
	if err != nil {
		return statusBroken, err
	}
	directory, err := os.Getwd()
	if err != nil {
		return statusBroken, err
	}
	work, err := os.MkdirTemp("", "farpool-lab-")
	if err != nil {
		return statusBroken, err
	}
	defer os.RemoveAll(work)

	wanted := guestModules
	environment := os.Environ()
	if o.root != "" {
		wanted = slices.Concat(guestModules, clusterModules)
		environment, directory = nil, "/"
	}
	modules, err := kernel.modules(wanted)
	if err != nil {
		return statusBroken, err
	}
	init := filepath.Join(work, "init")
	if out, err := exec.CommandContext(ctx, "go", "build", "-o", init, "farpool.dev/farpool/hack/lab/guest").CombinedOutput(); err != nil {
		return statusBroken, fmt.Errorf("building the guest's first process: %w\n%s", err, out)
	}
	names := make([]string, len(modules))
	for i, module := range modules {
		names[i] = module.name
	}
	told, err := json.Marshal(task{Command: command, Directory: directory, Environment: environment, Modules: names, OwnRoot: o.root != ""})
	if err != nil {
		return statusBroken, err
	}
	if err := writeInitrd(filepath.Join(work, initrdFile), init, told, modules); err != nil {
		return statusBroken, fmt.Errorf("writing the initrd: %w", err)
	}
	o.say("kernel %s, initrd made after %s", kernel.version, time.Since(begun).Round(10*time.Millisecond))

	console, result := filepath.Join(work, consoleFile), filepath.Join(work, statusFile)
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, qemu, o.machine(kernel.image(), work)...)
	// Killed with this process, however that ends.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	reader, writer, err := os.Pipe()
	if err != nil {
		return statusBroken, err
	}
	cmd.ExtraFiles = []*os.File{writer}
	var complaints bytes.Buffer
	cmd.Stdout, cmd.Stderr = &complaints, &complaints
	runtime.LockOSThread() // Pdeathsig follows the thread that starts the process
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		return statusBroken, fmt.Errorf("%s: %w", qemu, err)
	}
	_ = writer.Close()
	copied := make(chan struct{})
	go func() {
		_, _ = io.Copy(os.Stdout, reader)
		close(copied)
	}()
	ended := cmd.Wait()
	<-copied
	o.say("the guest ended %s after the beginning", time.Since(begun).Round(10*time.Millisecond))

	text, _ := os.ReadFile(result)
	if status, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil {
		return status, nil
	}
	seen := tail(console, 30)
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return statusTimeout, fmt.Errorf("%s did not end within %s; the guest's console says:\n%s", command[0], o.timeout, seen)
	case ctx.Err() != nil:
		return statusBroken, errors.New("stopped by a signal")
	case ended != nil:
		return statusBroken, fmt.Errorf("QEMU: %w: %s\nthe guest's console says:\n%s", ended, complaints.String(), seen)
	default:
		return statusBroken, fmt.Errorf("the guest ended without saying how its command ended; its console says:\n%s", seen)
	}
}

// In the directory of a guest's run.
const (
	initrdFile  = "initrd"
	consoleFile = "console"
	statusFile  = "status"
)

// machine is QEMU's command line.
func (o options) machine(image, work string) []string {
	args := []string{
		"-accel", "tcg,thread=multi,tb-size=1024", "-M", "pc", "-cpu", "max", "-smp", strconv.Itoa(o.cpus), "-m", o.memory,
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-kernel", image, "-initrd", filepath.Join(work, initrdFile),
		"-append", "console=ttyS0 panic=-1 quiet loglevel=4 mitigations=off random.trust_cpu=on tsc=reliable no_timer_check audit=0 apparmor=0 vm.mmap_rnd_bits=28",
		"-serial", "file:" + filepath.Join(work, consoleFile),
		"-device", "virtio-serial-pci",
		"-chardev", "file,id=output,path=/dev/fd/3,append=on", "-device", "virtserialport,chardev=output,name=output",
		"-chardev", "file,id=status,path=" + filepath.Join(work, statusFile), "-device", "virtserialport,chardev=status,name=status",
	}
	if o.root == "" {
		args = append(args, "-virtfs", "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap")
	} else {
		args = append(args, "-drive", "file="+o.root+",if=virtio,format=raw,snapshot=on,cache=unsafe,aio=threads")
	}
	if o.tap == "" {
		return append(args, "-nic", "none")
	}
	return append(args, "-netdev", "tap,id=network,script=no,downscript=no,ifname="+o.tap, "-device", "virtio-net-pci,netdev=network,host_mtu=9000")
}

func tail(path string, lines int) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimRight(string(text), "\r\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

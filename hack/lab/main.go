// SPDX-License-Identifier: Apache-2.0

// Lab runs a command of the tree where RDMA devices are: on this machine if it has some, and otherwise in a QEMU guest whose root is
// this machine's, read-only under a layer that is thrown away. The guest's kernel has SoftRoCE, with a device `rxe0` on its
// interface that leads nowhere. With a file system and a tap of its own the guest is a machine by itself. What the command prints is printed here, and its exit
// status is the program's. With `-beside` there are two guests with a cable between them.
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

const qemu = "qemu-system-x86_64"

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
	beside  string
	verbose bool
	fetch   bool

	machineNumber int // of two: 1 or 2
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
	flags.StringVar(&o.memory, "memory", "2G", "memory of the guest; what the command writes to files counts")
	flags.IntVar(&o.cpus, "cpus", min(2, runtime.NumCPU()), "processors of the guest")
	flags.BoolVar(&o.guest, "guest", false, "use the guest even where this machine has RDMA devices")
	flags.StringVar(&o.root, "root", "", "an ext4 file system that is the guest's root instead of this machine's files; changes are thrown away; there is no rxe0")
	flags.StringVar(&o.tap, "tap", "", "a tap of this machine that is the guest's eth0")
	flags.StringVar(&o.beside, "beside", "", "a shell command for a second guest, which ends when COMMAND does. A cable joins the two; FARPOOL_LAB_ADDRESS is each one's own address, with rxe0 on it, FARPOOL_LAB_PEER the other's")
	flags.BoolVar(&o.verbose, "v", false, "say what is done and how long it took")
	flags.BoolVar(&o.fetch, "fetch-kernel", false, "look for a newer kernel, even if there is one already")
	_ = flags.Parse(os.Args[1:])
	if flags.NArg() == 0 && !o.fetch || o.cpus < 1 || o.timeout <= 0 || o.beside != "" && (o.root != "" || o.tap != "") {
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
	if devices, _ := filepath.Glob("/sys/class/infiniband/*"); len(devices) > 0 && !o.guest && o.beside == "" {
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
	OwnRoot     bool   // is /dev/vda
	Address     string // of eth0, with the length of its prefix; empty: there is none
}

func runGuest(ctx context.Context, o options, command []string) (int, error) {
	if _, err := exec.LookPath(qemu); err != nil {
		return statusBroken, fmt.Errorf("there is no %s, and this machine has no RDMA device: run `hack/deps lab`", qemu)
	}
	if runtime.GOARCH != "amd64" {
		return statusBroken, fmt.Errorf("the guest runs what was built here, and is made for amd64 alone, not %s", runtime.GOARCH)
	}
	work, err := os.MkdirTemp("", "farpool-lab-")
	if err != nil {
		return statusBroken, err
	}
	defer os.RemoveAll(work)
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	if o.beside == "" {
		return bootOne(ctx, o, work, command)
	}
	return bootTwo(ctx, o, work, command)
}

func bootOne(ctx context.Context, o options, work string, command []string) (int, error) {
	g, err := prepare(ctx, o, work, command)
	if err != nil {
		return statusBroken, err
	}
	return g.run(ctx, os.Stdout)
}

// bootTwo joins two guests by a cable. The second's command is there for the first's, and ends with it, if its machine has not gone before.
func bootTwo(ctx context.Context, o options, work string, command []string) (int, error) {
	o.cpus = max(1, o.cpus/2)
	var guests [2]*guest
	for i, each := range [][]string{command, {"bash", "-c", o.beside}} {
		o.machineNumber = i + 1
		own := filepath.Join(work, strconv.Itoa(o.machineNumber))
		if err := os.Mkdir(own, 0o755); err != nil {
			return statusBroken, err
		}
		var err error
		if guests[i], err = prepare(ctx, o, own, each); err != nil {
			return statusBroken, err
		}
	}
	others, stop := context.WithCancel(ctx)
	var said bytes.Buffer
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		if status, err := guests[1].run(others, &said); others.Err() == nil {
			fmt.Fprintf(&said, "(its command ended with %d, %v)\n", status, err)
		}
	}()
	status, err := guests[0].run(ctx, os.Stdout)
	stop()
	<-gone
	if status != 0 {
		fmt.Fprintf(os.Stderr, "lab: the second guest said:\n%s", said.String())
	}
	return status, err
}

// A guest that is ready to be booted.
type guest struct {
	options options
	kernel  kernel
	work    string // directory
	command string // its name
	begun   time.Time
}

func prepare(ctx context.Context, o options, work string, command []string) (*guest, error) {
	g := &guest{options: o, work: work, command: command[0], begun: time.Now()}
	var err error
	if g.kernel, err = findKernel(ctx, o, false); err != nil {
		return nil, err
	}
	directory, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	wanted := guestModules
	environment := os.Environ()
	if o.root != "" {
		wanted = slices.Concat(guestModules, clusterModules)
		environment, directory = nil, "/"
	}
	told := task{Command: command, Directory: directory, OwnRoot: o.root != ""}
	if o.machineNumber > 0 {
		told.Address = addressOf(o.machineNumber) + "/24"
		environment = append(environment, "FARPOOL_LAB_ADDRESS="+addressOf(o.machineNumber), "FARPOOL_LAB_PEER="+addressOf(3-o.machineNumber))
	}
	told.Environment = environment
	modules, err := g.kernel.modules(wanted)
	if err != nil {
		return nil, err
	}
	init := filepath.Join(work, "init")
	if out, err := exec.CommandContext(ctx, "go", "build", "-o", init, "farpool.dev/farpool/hack/lab/guest").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("building the guest's first process: %w\n%s", err, out)
	}
	for _, module := range modules {
		told.Modules = append(told.Modules, module.name)
	}
	text, err := json.Marshal(told)
	if err != nil {
		return nil, err
	}
	if err := writeInitrd(filepath.Join(work, initrdFile), init, text, modules); err != nil {
		return nil, fmt.Errorf("writing the initrd: %w", err)
	}
	o.say("kernel %s, initrd made after %s", g.kernel.version, time.Since(g.begun).Round(10*time.Millisecond))
	return g, nil
}

// Seen once in some twenty boots of Linux 7.3 under QEMU 7.2: a panic two seconds after the beginning, before any module. Why is not known.
const boots = 4

// run boots it, copies what its command prints, and returns how that ended. It is booted again if it dies before its command began.
func (g *guest) run(ctx context.Context, output io.Writer) (int, error) {
	for left := boots - 1; ; left-- {
		status, err := g.boot(ctx, output)
		if left == 0 || ctx.Err() != nil || !diedBooting(g.text(statusFile), g.text(consoleFile)) {
			return status, err
		}
		fmt.Fprintf(os.Stderr, "lab: the guest's kernel panicked before %s began; it is booted again: %v\n", g.command, err)
	}
}

// What a file of its run has, nothing if there is none.
func (g *guest) text(name string) string {
	text, _ := os.ReadFile(filepath.Join(g.work, name))
	return string(text)
}

func diedBooting(told, console string) bool {
	return !strings.Contains(told, begun) && strings.Contains(console, "Kernel panic")
}

// ended is the status that the guest's first process told of its command, if it came to that.
func ended(told string) (int, bool) {
	status, err := strconv.Atoi(strings.TrimSpace(strings.TrimPrefix(told, begun)))
	return status, err == nil
}

func (g *guest) boot(ctx context.Context, output io.Writer) (int, error) {
	for _, name := range []string{statusFile, consoleFile} {
		_ = os.Remove(filepath.Join(g.work, name))
	}
	cmd := exec.CommandContext(ctx, qemu, g.options.machine(g.kernel.image(), g.work)...)
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
		_, _ = io.Copy(output, reader)
		close(copied)
	}()
	failed := cmd.Wait()
	<-copied
	g.options.say("the guest ended %s after the beginning", time.Since(g.begun).Round(10*time.Millisecond))

	if status, ok := ended(g.text(statusFile)); ok {
		return status, nil
	}
	seen := tail(filepath.Join(g.work, consoleFile), 30)
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return statusTimeout, fmt.Errorf("%s did not end within %s; the guest's console says:\n%s", g.command, g.options.timeout, seen)
	case ctx.Err() != nil:
		return statusBroken, errors.New("stopped by a signal")
	case failed != nil:
		return statusBroken, fmt.Errorf("QEMU: %w: %s\nthe guest's console says:\n%s", failed, complaints.String(), seen)
	default:
		return statusBroken, fmt.Errorf("the guest ended without saying how its command ended; its console says:\n%s", seen)
	}
}

// Numbers of the guests that a cable joins: 1 and 2.
func addressOf(machineNumber int) string { return fmt.Sprintf("10.80.0.%d", machineNumber) }

// In the directory of a guest's run.
const (
	initrdFile  = "initrd"
	consoleFile = "console"
	statusFile  = "status" // `begun`, then the command's exit status
)

// As in guest/main.go.
const begun = "begun\n"

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
	cable, card := "tap,id=network,script=no,downscript=no,ifname="+o.tap, "virtio-net-pci,netdev=network,host_mtu=9000"
	switch {
	case o.machineNumber > 0:
		end := func(machineNumber int) string { return fmt.Sprintf("%s/cable%d", filepath.Dir(work), machineNumber) }
		cable = fmt.Sprintf("dgram,id=network,local.type=unix,local.path=%s,remote.type=unix,remote.path=%s", end(o.machineNumber), end(3-o.machineNumber))
		card += fmt.Sprintf(",mac=52:54:00:12:34:%02x", o.machineNumber)
	case o.tap == "":
		return append(args, "-nic", "none")
	}
	return append(args, "-netdev", cable, "-device", card)
}

func tail(path string, lines int) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimRight(string(text), "\r\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

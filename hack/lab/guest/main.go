// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Guest is the first process of a laboratory guest: it loads modules, makes the host's files the root, adds a SoftRoCE device, runs
// one command, says how it ended, and switches the machine off.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"unsafe"
)

// The counterpart of `task` in ../main.go.
type task struct {
	Command     []string
	Directory   string
	Environment []string
	Modules     []string
	OwnRoot     bool
	Address     string
}

const (
	statusBroken = 125
	statusAbsent = 127
)

func main() {
	defer powerOff()
	status, err := run()
	if err != nil {
		fmt.Fprintln(os.Stderr, "guest:", err) // the console, or the command's output
	}
	if status >= 0 {
		tell(status)
	}
}

// tell adds a line to what ../main.go is told of the command: `begun`, then its exit status.
func tell(line any) {
	if port, err := openPort("status"); err == nil {
		fmt.Fprintln(port, line)
		_ = port.Close()
	}
}

// run returns the command's exit status, or -1 where nobody could be told.
func run() (int, error) {
	if err := mountAll([]mountpoint{{"proc", "proc", "/proc", ""}, {"sysfs", "sysfs", "/sys", ""}, {"devtmpfs", "dev", "/dev", ""}}); err != nil {
		return -1, err
	}
	text, err := os.ReadFile("/task.json")
	if err != nil {
		return -1, err
	}
	var told task
	if err := json.Unmarshal(text, &told); err != nil {
		return -1, err
	}
	for _, name := range told.Modules {
		if err := load(name); err != nil {
			fmt.Fprintf(os.Stderr, "guest: module %s: %v\n", name, err)
		}
	}
	if err := switchRoot(told.OwnRoot); err != nil {
		return -1, err
	}
	output, err := openPort("output")
	if err != nil {
		return -1, err
	}
	for _, fd := range []int{1, 2} {
		if err := syscall.Dup3(int(output.Fd()), fd, 0); err != nil {
			return -1, err
		}
	}
	for _, line := range network(told) {
		words := strings.Fields(line)
		cmd := exec.Command(words[0], words[1:]...)
		if out, err := cmd.CombinedOutput(); err != nil {
			return statusBroken, fmt.Errorf("%s: %w: %s", line, err, out)
		}
	}
	if err := os.Chdir(told.Directory); err != nil {
		return statusBroken, err
	}
	cmd := exec.Command(told.Command[0], told.Command[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Env = told.Environment
	tell("begun")
	err = cmd.Run()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0, nil
	case errors.As(err, &exit) && exit.Exited():
		return exit.ExitCode(), nil
	case errors.As(err, &exit):
		return 128 + int(exit.Sys().(syscall.WaitStatus).Signal()), fmt.Errorf("%s: %w", told.Command[0], err)
	default:
		return statusAbsent, err
	}
}

// network is what makes the guest's interfaces. SoftRoCE is on its network card where it has an address to others, and otherwise on an
// interface that leads nowhere: one device for both ends. Loopback would not do, since librdmacm connects nothing there.
func network(told task) []string {
	lines := []string{"ip link set lo up"}
	if told.OwnRoot {
		return lines
	}
	under, address := "eth0", told.Address
	if address == "" {
		under, address = "fabric0", "10.79.0.1/24"
		lines = append(lines, "ip link add fabric0 type dummy")
	}
	return append(lines, "ip addr add "+address+" dev "+under, "ip link set "+under+" mtu 9000 up", "rdma link add rxe0 type rxe netdev "+under)
}

type mountpoint struct{ kind, source, at, data string }

func mountAll(points []mountpoint) error {
	for _, each := range points {
		if err := os.MkdirAll(each.at, 0o755); err != nil {
			return err
		}
		if err := syscall.Mount(each.source, each.at, each.kind, 0, each.data); err != nil {
			return fmt.Errorf("mounting %s at %s: %w", each.kind, each.at, err)
		}
	}
	return nil
}

func load(name string) error {
	content, err := os.ReadFile("/modules/" + name)
	if err != nil {
		return err
	}
	parameters := []byte{0}
	_, _, number := syscall.Syscall(syscall.SYS_INIT_MODULE, uintptr(unsafe.Pointer(&content[0])), uintptr(len(content)), uintptr(unsafe.Pointer(&parameters[0])))
	if number != 0 {
		return number
	}
	return nil
}

// hostsFiles are a root of the host's files, under a layer in memory that takes what is written.
func hostsFiles() error {
	if err := syscall.Mount("host", "/host", "9p", syscall.MS_RDONLY, "trans=virtio,version=9p2000.L,msize=512000,cache=loose"); err != nil {
		return fmt.Errorf("mounting the host's files: %w", err)
	}
	if err := mountAll([]mountpoint{{"tmpfs", "layer", "/layer", "mode=755,size=90%"}}); err != nil {
		return err
	}
	for _, each := range []string{"/layer/upper", "/layer/work"} {
		if err := os.Mkdir(each, 0o755); err != nil {
			return err
		}
	}
	return mountAll([]mountpoint{{"overlay", "root", "/root", "lowerdir=/host,upperdir=/layer/upper,workdir=/layer/work"}})
}

// switchRoot makes the host's files the root, or the file system of a disk.
func switchRoot(own bool) error {
	mountRoot := hostsFiles
	if own {
		mountRoot = func() error { return mountAll([]mountpoint{{"ext4", "/dev/vda", "/root", ""}}) }
	}
	if err := mountRoot(); err != nil {
		return err
	}
	if err := mountAll([]mountpoint{
		{"proc", "proc", "/root/proc", ""},
		{"sysfs", "sysfs", "/root/sys", ""},
		{"devtmpfs", "dev", "/root/dev", ""},
		{"devpts", "devpts", "/root/dev/pts", ""},
		{"tmpfs", "shm", "/root/dev/shm", ""},
		{"tmpfs", "run", "/root/run", ""},
		{"cgroup2", "cgroup2", "/root/sys/fs/cgroup", ""},
	}); err != nil {
		return err
	}
	_ = os.Symlink("/proc/self/fd", "/root/dev/fd")
	if err := os.Chdir("/root"); err != nil {
		return err
	}
	if err := syscall.Mount(".", "/", "", syscall.MS_MOVE, ""); err != nil {
		return fmt.Errorf("moving the root: %w", err)
	}
	if err := syscall.Chroot("."); err != nil {
		return err
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	return os.Setenv("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
}

// openPort finds the virtio port by the name that QEMU was given.
func openPort(name string) (*os.File, error) {
	ports, _ := filepath.Glob("/sys/class/virtio-ports/*")
	for _, port := range ports {
		if text, err := os.ReadFile(port + "/name"); err == nil && strings.TrimSpace(string(text)) == name {
			return os.OpenFile("/dev/"+filepath.Base(port), os.O_WRONLY, 0)
		}
	}
	return nil, fmt.Errorf("there is no port %q to the host", name)
}

func powerOff() {
	syscall.Sync()
	_ = syscall.Reboot(syscall.LINUX_REBOOT_CMD_POWER_OFF)
}

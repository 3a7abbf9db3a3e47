// SPDX-License-Identifier: Apache-2.0

// Ociwrap stands in front of runc and drops from a container's specification the capabilities that this machine's bounding
// set does not have. Docker's and containerd's "privileged" ask for every capability, and runc refuses what it cannot grant.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// capabilityNames are in the kernel's order: the index is the bit.
var capabilityNames = strings.Fields(`CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP
	LINUX_IMMUTABLE NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT
	SYS_PTRACE SYS_PACCT SYS_ADMIN SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE
	AUDIT_CONTROL SETFCAP MAC_OVERRIDE MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE`)

// grantable reads the bounding set from the text of /proc/self/status.
func grantable(status string) (map[string]bool, error) {
	for _, line := range strings.Split(status, "\n") {
		mask, found := strings.CutPrefix(line, "CapBnd:")
		if !found {
			continue
		}
		bits, err := strconv.ParseUint(strings.TrimSpace(mask), 16, 64)
		if err != nil {
			return nil, fmt.Errorf("bounding set %q: %w", mask, err)
		}
		have := map[string]bool{}
		for bit, name := range capabilityNames {
			if bits>>uint(bit)&1 == 1 {
				have["CAP_"+name] = true
			}
		}
		return have, nil
	}
	return nil, fmt.Errorf("no CapBnd line in /proc/self/status")
}

// restrict returns the JSON of a process (or of a bundle that has one under "process") without what cannot be granted.
// Numbers keep their digits.
func restrict(document []byte, bundle bool, have map[string]bool) ([]byte, error) {
	decoder := json.NewDecoder(bytes.NewReader(document))
	decoder.UseNumber()
	var root map[string]any
	if err := decoder.Decode(&root); err != nil {
		return nil, err
	}
	process := root
	if bundle {
		process, _ = root["process"].(map[string]any)
	}
	sets, _ := process["capabilities"].(map[string]any)
	for set, value := range sets {
		asked, _ := value.([]any)
		granted := []any{}
		for _, capability := range asked {
			if name, _ := capability.(string); have[name] {
				granted = append(granted, capability)
			}
		}
		sets[set] = granted
	}
	return json.Marshal(root)
}

// target says which file of runc's command line holds the capabilities, if any.
func target(arguments []string) (path string, bundle bool) {
	verb, directory, process := "", ".", ""
	for i, argument := range arguments {
		value := ""
		if i+1 < len(arguments) {
			value = arguments[i+1]
		}
		switch argument {
		case "create", "run", "exec":
			if verb == "" {
				verb = argument
			}
		case "--bundle", "-b":
			directory = value
		case "--process", "-p":
			process = value
		}
	}
	switch {
	case verb == "create" || verb == "run":
		return filepath.Join(directory, "config.json"), true
	case verb == "exec":
		return process, false
	}
	return "", false
}

func rewrite(path string, bundle bool) error {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return err
	}
	have, err := grantable(string(status))
	if err != nil {
		return err
	}
	document, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	document, err = restrict(document, bundle, have)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return os.WriteFile(path, document, 0o600)
}

func main() {
	if path, bundle := target(os.Args[1:]); path != "" {
		// runc judges the specification itself, and says more about a bad one.
		if err := rewrite(path, bundle); err != nil {
			fmt.Fprintln(os.Stderr, "ociwrap:", err)
		}
	}
	runc := "/usr/sbin/runc"
	if err := syscall.Exec(runc, append([]string{runc}, os.Args[1:]...), os.Environ()); err != nil {
		fmt.Fprintf(os.Stderr, "ociwrap: %s: %v; install Debian's package runc\n", runc, err)
		os.Exit(127)
	}
}

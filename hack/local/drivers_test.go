// SPDX-License-Identifier: Apache-2.0

//go:build daemons

package local

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"farpool.dev/farpool/e2e/chaos"
)

const password = "open sesame/42"

// shards is where drivers find the compute shards of one pool.
type shards struct {
	open   string // host:port of a shard without a password
	socket string // Unix socket of the same
	locked string // host:port of a shard with the password
}

// script is a program of a driver's or a framework's own language, in testdata/drivers.
type script struct {
	name    string
	command []string
	prints  int // lines: each a name and a version, which docs/redis-compatibility.md has in a row
}

// Debian's packages are for Debian's Python; a machine may have another one in its path.
var scripts = []script{
	{"redis-py", []string{"/usr/bin/python3", "-I", "-W", "error", "redis_py.py"}, 1},
	{"Django", []string{"/usr/bin/python3", "-I", "django_app.py"}, 2},
	{"Flask-Session", []string{"/usr/bin/python3", "-I", "flask_app.py"}, 1},
	{"redis-rb", []string{"ruby", "redis_rb.rb"}, 1},
	{"redis-rack", []string{"ruby", "rack_app.rb"}, 1},
	{"phpredis", []string{"php", "phpredis.php"}, 1},
	{"PHP sessions", []string{"php", "php_session.php"}, 1},
	{"node-redis", []string{"node", "node_redis.js"}, 1},
}

// TestDrivers has drivers, and the caches and session stores of web frameworks, use a pool as applications do, none of them told that it is not Redis.
//
// Each driver connects with its defaults: over TCP and, where it can, over a Unix socket; without a password, with a wrong one, with the right one, alone and with
// the user's name. It names itself, and asks for another database. It writes and reads bytes of all kinds, expiries, counters, several keys at once, a hash, a pipeline,
// and everything that a scan returns; it runs a transaction on one key, one that WATCH ends, and one on two keys. It asks for what no pool has (scripts, blocking lists,
// subscriptions), expects an error of its own kind that names the command, and uses the connection again. Where it has a pool of connections, they count together.
func TestDrivers(t *testing.T) {
	directory := t.TempDir()
	file := filepath.Join(directory, "password")
	if err := os.WriteFile(file, []byte(password), 0o600); err != nil {
		t.Fatal(err)
	}
	at := shards{socket: filepath.Join(directory, "redis.sock")}
	c := start(t, []string{"--unix-socket", at.socket}, []string{"--password-file", file})
	at.open, at.locked = c.Target.Shards[0], c.Target.Shards[1]
	page, err := os.ReadFile("../../docs/redis-compatibility.md")
	if err != nil {
		t.Fatal(err)
	}
	hiredis := filepath.Join(directory, "hiredis")
	if said, err := exec.CommandContext(t.Context(), "cc", "-o", hiredis, "testdata/drivers/hiredis.c", "-lhiredis").CombinedOutput(); err != nil {
		t.Fatalf("cc: %v; hack/deps installs libhiredis-dev\n%s", err, said)
	}
	t.Run("drivers", func(t *testing.T) { // parallel tests end with this one
		for _, s := range append(scripts, script{"hiredis", []string{hiredis}, 1}) {
			t.Run(s.name, func(t *testing.T) {
				t.Parallel()
				for _, line := range s.run(t, at) {
					inTable(t, string(page), line)
				}
			})
		}
		for _, d := range goDrivers {
			t.Run(d.name, func(t *testing.T) {
				t.Parallel()
				d.use(t, at)
				inTable(t, string(page), d.name+" "+d.version(t))
			})
		}
	})
}

// run returns the lines that a script prints at its end.
func (s script) run(t *testing.T, at shards) []string {
	t.Helper()
	host, port, err := net.SplitHostPort(at.open)
	if err != nil {
		t.Fatal(err)
	}
	_, locked, err := net.SplitHostPort(at.locked)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), chaos.Patience)
	defer cancel()
	program := exec.CommandContext(ctx, s.command[0], s.command[1:]...)
	program.Dir = "testdata/drivers"
	program.Env = append(os.Environ(), "NODE_PATH=/usr/share/nodejs", "FARPOOL_HOST="+host, "FARPOOL_PORT="+port, "FARPOOL_LOCKED_PORT="+locked,
		"FARPOOL_PASSWORD="+password, "FARPOOL_SOCKET="+at.socket)
	program.Stderr = t.Output()
	said, err := program.Output()
	if err != nil {
		t.Fatalf("%s: %v; hack/deps installs what it needs. It printed %q", strings.Join(s.command, " "), err, said)
	}
	lines := strings.Split(strings.TrimSpace(string(said)), "\n")
	if len(lines) != s.prints {
		t.Fatalf("it ended without its versions, and printed %q", said)
	}
	return lines
}

// inTable wants a row of the page for a name and a version.
func inTable(t *testing.T, page, nameAndVersion string) {
	t.Helper()
	name, version, _ := strings.Cut(nameAndVersion, " ")
	if row := "| " + name + " | " + version + " |"; !strings.Contains(page, row) {
		t.Errorf("docs/redis-compatibility.md should have a row that begins with %q", row)
	}
}

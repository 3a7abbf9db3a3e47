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
	prints  int      // lines: each a name and a version, which docs/redis-compatibility.md has in a row
	env     []string // what its environment has besides where the shards are
}

// Debian's packages are for Debian's Python; a machine may have another one in its path.
var scripts = []script{
	{name: "redis-py", command: []string{"/usr/bin/python3", "-I", "-W", "error", "redis_py.py"}, prints: 1},
	{name: "Django", command: []string{"/usr/bin/python3", "-I", "django_app.py"}, prints: 2},
	{name: "Flask-Session", command: []string{"/usr/bin/python3", "-I", "flask_app.py"}, prints: 1},
	{name: "redis-rb", command: []string{"ruby", "redis_rb.rb"}, prints: 1},
	{name: "redis-rack", command: []string{"ruby", "rack_app.rb"}, prints: 1},
	{name: "phpredis", command: []string{"php", "phpredis.php"}, prints: 1},
	{name: "PHP sessions", command: []string{"php", "php_session.php"}, prints: 1},
	{name: "node-redis", command: []string{"node", "node_redis.js"}, prints: 1, env: []string{"NODE_PATH=/usr/share/nodejs"}},
}

// TestDrivers has drivers, and the caches and session stores of web frameworks, use a pool as applications do, none of them told that it is not Redis.
//
// Each driver connects with its defaults: over TCP and, where it can, over a Unix socket; without a password, with a wrong one, with the right one, alone and with
// the user's name. It names itself, and asks for another database. It writes and reads bytes of all kinds, expiries, counters, several keys at once, a hash, a pipeline,
// and everything that a scan returns; it runs a transaction on one key, one that WATCH ends, and one on two keys. It asks for what no pool has (scripts, blocking lists,
// subscriptions), expects an error of its own kind that names the command, and uses the connection again. Where it has a pool of connections, they count together.
func TestDrivers(t *testing.T) {
	at, page := startForDrivers(t)
	hiredis := filepath.Join(t.TempDir(), "hiredis")
	if said, err := exec.CommandContext(t.Context(), "cc", "-o", hiredis, "testdata/drivers/hiredis.c", "-lhiredis").CombinedOutput(); err != nil {
		t.Fatalf("cc: %v; hack/deps installs libhiredis-dev\n%s", err, said)
	}
	t.Run("drivers", func(t *testing.T) { // parallel tests end with this one
		for _, s := range append(scripts, script{name: "hiredis", command: []string{hiredis}, prints: 1}) {
			t.Run(s.name, func(t *testing.T) {
				t.Parallel()
				s.use(t, at, page)
			})
		}
		for _, d := range goDrivers {
			t.Run(d.name, func(t *testing.T) {
				t.Parallel()
				d.use(t, at)
				inTable(t, page, d.name+" "+d.version(t))
			})
		}
	})
}

// startForDrivers starts a pool for the time of a test, and returns where its shards are, and the page that has the table of drivers.
func startForDrivers(t *testing.T) (at shards, page string) {
	t.Helper()
	directory := t.TempDir()
	file := filepath.Join(directory, "password")
	if err := os.WriteFile(file, []byte(password), 0o600); err != nil {
		t.Fatal(err)
	}
	at.socket = filepath.Join(directory, "redis.sock")
	c := start(t, []string{"--unix-socket", at.socket}, []string{"--password-file", file})
	at.open, at.locked = c.Target.Shards[0], c.Target.Shards[1]
	text, err := os.ReadFile("../../docs/redis-compatibility.md")
	if err != nil {
		t.Fatal(err)
	}
	return at, string(text)
}

// use runs a script, and wants a row of the page for each version that it prints.
func (s script) use(t *testing.T, at shards, page string) {
	t.Helper()
	for _, line := range s.run(t, at) {
		inTable(t, page, line)
	}
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
	program.Env = append(os.Environ(), "FARPOOL_HOST="+host, "FARPOOL_PORT="+port, "FARPOOL_LOCKED_PORT="+locked, "FARPOOL_PASSWORD="+password, "FARPOOL_SOCKET="+at.socket)
	program.Env = append(program.Env, s.env...)
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

// inTable wants a row of the page for a name and a version, which may have a mark behind it.
func inTable(t *testing.T, page, nameAndVersion string) {
	t.Helper()
	end := strings.LastIndex(nameAndVersion, " ") // a name may have several words
	if row := "| " + nameAndVersion[:max(end, 0)] + " | " + nameAndVersion[end+1:] + " "; !strings.Contains(page, row) {
		t.Errorf("docs/redis-compatibility.md should have a row that begins with %q", row)
	}
}

// SPDX-License-Identifier: Apache-2.0

//go:build daemons && registries

package local

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// installing is how long a registry's client may take to fetch packages, and a compiler to build what they hold.
const installing = 10 * time.Minute

// ecosystem is a language's packages, which testdata/drivers/<name> pins by version and hash, and the programs there that use them.
type ecosystem struct {
	name    string
	install func(t *testing.T, from string) []script // from is the directory of the pins
}

var ecosystems = []ecosystem{
	{"cargo", installCargo},
	{"maven", installMaven},
	{"npm", installNpm},
	{"pip", installPip},
}

// TestDriversFromRegistries has drivers and frameworks that Debian lacks, or has in old versions only, do what TestDrivers says.
//
// They come from the registries of npm, Maven, cargo and pip. So this test needs a network and a toolchain for each of these, and is not part of the gate,
// which has to pass without either. A toolchain that is missing fails it.
func TestDriversFromRegistries(t *testing.T) {
	at, page := startForDrivers(t)
	t.Run("drivers", func(t *testing.T) { // parallel tests end with this one
		for _, e := range ecosystems {
			t.Run(e.name, func(t *testing.T) {
				t.Parallel()
				from, err := filepath.Abs(filepath.Join("testdata/drivers", e.name))
				if err != nil {
					t.Fatal(err)
				}
				for _, s := range e.install(t, from) {
					t.Run(s.name, func(t *testing.T) { s.use(t, at, page) })
				}
			})
		}
	})
}

// command runs a program of a toolchain in a directory, and fails the test unless it succeeds.
func command(t *testing.T, directory, name string, arguments ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), installing)
	defer cancel()
	program := exec.CommandContext(ctx, name, arguments...)
	program.Dir = directory
	if said, err := program.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v; `hack/deps drivers npm mvn cargo` installs what it needs, and it needs its registry. It said:\n%s", program, err, said)
	}
}

// installCargo builds the program, which the next run finds built. Cargo.lock has the hashes.
func installCargo(t *testing.T, from string) []script {
	build, err := filepath.Abs("../../build/cargo")
	if err != nil {
		t.Fatal(err)
	}
	command(t, from, "cargo", "build", "--quiet", "--locked", "--target-dir", build)
	return []script{{name: "redis-rs", command: []string{filepath.Join(build, "debug/redis-rs-driver")}, prints: 1}}
}

// installMaven fetches jars, and compares them with their hashes: Maven has no lock file of its own. Where they differ, the test prints what jars.sha256 would have. Java compiles the programs as it starts them.
func installMaven(t *testing.T, from string) []script {
	jars := t.TempDir()
	command(t, from, "mvn", "--batch-mode", "--quiet", "--strict-checksums", "dependency:copy-dependencies", "-DoutputDirectory="+jars)
	wanted, err := os.ReadFile(filepath.Join(from, "jars.sha256"))
	if err != nil {
		t.Fatal(err)
	}
	paths, err := filepath.Glob(filepath.Join(jars, "*")) // sorted
	if err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	for _, path := range paths {
		jar, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&got, "%x  %s\n", sha256.Sum256(jar), filepath.Base(path))
	}
	if !bytes.Equal(got.Bytes(), wanted) {
		t.Fatalf("the jars that Maven fetched are not those of testdata/drivers/maven/jars.sha256, but\n%s", &got)
	}
	java := func(name, program string) script {
		return script{name: name, command: []string{"java", "-cp", filepath.Join(jars, "*"), filepath.Join(from, program)}, prints: 1}
	}
	return []script{java("Jedis", "Jedis.java"), java("Lettuce", "Lettuce.java"), java("Spring Session", "SpringSession.java")}
}

// installNpm fetches packages without running what they would run at their installation. package-lock.json has the hashes, and no addresses of a registry:
// `npm install --package-lock-only --omit-lockfile-registry-resolved` makes it.
func installNpm(t *testing.T, from string) []script {
	directory := t.TempDir()
	for _, name := range []string{"package.json", "package-lock.json"} {
		text, err := os.ReadFile(filepath.Join(from, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(directory, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	command(t, directory, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
	node := func(name, program string, prints int) script {
		return script{name: name, command: []string{"node", filepath.Join(from, program)}, prints: prints, env: []string{"NODE_PATH=" + filepath.Join(directory, "node_modules")}}
	}
	return []script{node("ioredis", "ioredis.js", 1), node("node-redis", "../node_redis.js", 1), node("connect-redis", "express_app.js", 3)}
}

// installPip makes an environment of Debian's Python with the packages of requirements.txt, which has their hashes.
func installPip(t *testing.T, from string) []script {
	directory := t.TempDir()
	command(t, from, "/usr/bin/python3", "-m", "venv", directory)
	python := filepath.Join(directory, "bin/python")
	command(t, from, python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary", ":all:", "--require-hashes", "-r", "requirements.txt")
	return []script{
		{name: "redis-py", command: []string{python, "-I", "-W", "error", filepath.Join(from, "../redis_py.py")}, prints: 1},
		{name: "Django", command: []string{python, "-I", filepath.Join(from, "../django_app.py")}, prints: 2},
	}
}

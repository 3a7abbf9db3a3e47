// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestUndoRulesTakesDockersRulesAndNoOthers(t *testing.T) {
	listing := `-P FORWARD DROP
-N DOCKER
-N DOCKER-USER
-N KUBE-FORWARD
-A FORWARD -j DOCKER-USER
-A FORWARD -o br-0123456789ab -j DOCKER
-A FORWARD -i docker0 -o docker0 -j ACCEPT
-A FORWARD -i br-lan -j ACCEPT
-A INPUT -p tcp -m tcp --dport 22 -j ACCEPT
-A DOCKER-USER -j RETURN`
	var got []string
	for _, undo := range undoRules(listing) {
		got = append(got, strings.Join(undo, " "))
	}
	want := []string{
		"-D FORWARD -j DOCKER-USER",
		"-D FORWARD -o br-0123456789ab -j DOCKER",
		"-D FORWARD -i docker0 -o docker0 -j ACCEPT",
		"-F DOCKER", "-F DOCKER-USER", "-X DOCKER", "-X DOCKER-USER",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestMountsUnderListsInnerMountsFirst(t *testing.T) {
	mounts := "overlay /c/data/overlay2/x overlay rw 0 0\ntmpfs /c/data tmpfs rw 0 0\nproc /proc proc rw 0 0\ntmpfs /c/database tmpfs rw 0 0\n"
	if got, want := mountsUnder(mounts, "/c/data"), []string{"/c/data/overlay2/x", "/c/data"}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestNetworkScriptOfTwoFamilies(t *testing.T) {
	nodes := parseNodes("a|10.244.0.0/24 fd00:10:244::/64|172.18.0.2 fc00::2\nb|10.244.1.0/24 fd00:10:244:1::/64|172.18.0.3 fc00::3\nc|10.244.2.0/24 fd00:10:244:2::/64|172.18.0.4\n")
	if len(nodes) != 2 {
		t.Fatalf("a node without an address of a family counted: %v", nodes)
	}
	script := networkScript(nodes, 0)
	for _, want := range []string{
		`"routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}], "ranges": [[{"subnet": "10.244.0.0/24"}], [{"subnet": "fd00:10:244::/64"}]]`,
		"ip -4 route replace 10.244.1.0/24 via 172.18.0.3\n", "ip -6 route replace fd00:10:244:1::/64 via fc00::3\n",
		"ip6tables -t nat -A FARPOOL-POD -d fd00:10:244:1::/64 -j RETURN\n", "iptables -t nat -A POSTROUTING -s 10.244.0.0/24 -o eth0 -j FARPOOL-POD\n",
	} {
		if !strings.Contains(script, want) {
			t.Errorf("no %q in\n%s", want, script)
		}
	}
	if strings.Contains(script, "iptables -t nat -A FARPOOL-POD -d fd00") && !strings.Contains(script, "ip6tables") {
		t.Errorf("families are mixed in\n%s", script)
	}
	if text := clusterConfig(shape{ownNetwork: true, family: "dual"}); !strings.Contains(text, "networking: {disableDefaultCNI: true, ipFamily: dual}\n") {
		t.Errorf("another family in\n%s", text)
	}
}

func TestManifestNeedsReplacesStagingModules(t *testing.T) {
	replace, goVersion := manifestNeeds("module k8s.io/kubernetes\n\ngo 1.26.0\n\nrequire (\n\tk8s.io/api v0.0.0\n\tk8s.io/utils v0.1.2\n)\n", "v1.36.3")
	if goVersion != "1.26.0" || replace != "replace k8s.io/api => k8s.io/api v0.36.3\n" {
		t.Errorf("got %q, %q", replace, goVersion)
	}
}

func TestBuiltNameSkipsTheMajorVersion(t *testing.T) {
	for pkg, want := range map[string]string{"go.etcd.io/etcd/server/v3": "server", "sigs.k8s.io/kind": "kind", "helm.sh/helm/v4/cmd/helm": "helm"} {
		if got := builtName(pkg); got != want {
			t.Errorf("%s: got %s, want %s", pkg, got, want)
		}
	}
}

func TestComponentIsTheImagesLastElement(t *testing.T) {
	for image, want := range map[string]string{"r.example/coredns/coredns:v1": "coredns", "etcd:3": "etcd", "r.example:5000/pause": "pause"} {
		if got := component(image); got != want {
			t.Errorf("%s: got %s, want %s", image, got, want)
		}
	}
}

func TestWithSecurityAddsTheFixesOnce(t *testing.T) {
	once := withSecurity("deb http://mirror.example/debian bookworm main\n")
	want := "deb http://mirror.example/debian bookworm main\ndeb http://mirror.example/debian-security bookworm-security main\n"
	if once != want {
		t.Errorf("got %q", once)
	}
	if twice := withSecurity(once); twice != once {
		t.Errorf("the second time it made %q", twice)
	}
}

func TestClusterConfig(t *testing.T) {
	text := clusterConfig(shape{workers: 2, ownNetwork: true, cgroupV1: true})
	for _, want := range []string{"disableDefaultCNI: true", "failCgroupV1: false", "maxContainerRestartPeriod: 2s", "- role: worker\n- role: worker\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if plain := clusterConfig(shape{}); strings.Contains(plain, "CNI") || strings.Contains(plain, "worker") || strings.Contains(plain, "Cgroup") {
		t.Errorf("too much in\n%s", plain)
	}
	if slow := clusterConfig(shape{emulated: true}); strings.Contains(slow, "grace-period") || strings.Contains(slow, "maxContainerRestartPeriod") {
		t.Errorf("an emulated node is lost too soon in\n%s", slow)
	}
}

func TestNetworkScriptRoutesToTheOthers(t *testing.T) {
	nodes := parseNodes("a|10.244.0.0/24|172.18.0.2\nb|10.244.1.0/24|172.18.0.3\nc|10.244.2.0/24|\n")
	if len(nodes) != 2 {
		t.Fatalf("a node without an address counted: %v", nodes)
	}
	script := networkScript(nodes, 1)
	if !strings.Contains(script, "ip -4 route replace 10.244.0.0/24 via 172.18.0.2\n") || strings.Contains(script, "10.244.1.0/24 via") {
		t.Errorf("wrong routes in\n%s", script)
	}
	if !strings.Contains(script, `"subnet": "10.244.1.0/24"`) {
		t.Errorf("wrong range in\n%s", script)
	}
}

func TestManifestNeedsTakesReplacementsByPublishedVersions(t *testing.T) {
	replace, _ := manifestNeeds("go 1.24\n\nreplace a.example/b => c.example/d v1.2.3\n\nreplace (\n\ta.example/e v0.0.0 => c.example/f v1.0.0 // as upstream\n\ta.example/g => ../g\n)\n", "v1.0.0")
	if want := "replace a.example/b => c.example/d v1.2.3\nreplace a.example/e v0.0.0 => c.example/f v1.0.0\n"; replace != want {
		t.Errorf("got %q", replace)
	}
}

func TestTarImageHasExecutablesAndTexts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	if err := os.WriteFile(path, []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := tarImage(&out, imageFile{name: "usr/local/bin/x", path: path}, imageFile{name: "etc/y", text: "more"}); err != nil {
		t.Fatal(err)
	}
	reader := tar.NewReader(&out)
	if header, err := reader.Next(); err != nil || header.Name != "tmp/" || header.Mode != 0o1777 {
		t.Errorf("got %v, %v", header, err)
	}
	if header, err := reader.Next(); err != nil || header.Name != "usr/local/bin/x" || header.Mode != 0o755 || header.Size != 4 {
		t.Errorf("got %v, %v", header, err)
	}
	if header, err := reader.Next(); err != nil || header.Name != "etc/y" || header.Mode != 0o644 || header.Size != 4 {
		t.Errorf("got %v, %v", header, err)
	}
}

func TestLockKeepsASecondRunOutUntilTheFirstIsDone(t *testing.T) {
	t.Setenv("FARPOOL_CACHE", t.TempDir())
	c, err := openCache()
	if err != nil {
		t.Fatal(err)
	}
	release, err := c.lock(context.Background(), "x")
	if err != nil {
		t.Fatal(err)
	}
	// flock is per open file, so a second open of the same process contends like another process.
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	if _, err := c.lock(ctx, "x"); err == nil {
		t.Fatal("two hold the lock")
	}
	release()
	again, err := c.lock(context.Background(), "x")
	if err != nil {
		t.Fatal(err)
	}
	again()
}

func TestFailedCommandTellsWhatItSaid(t *testing.T) {
	err := run(context.Background(), "sh", "-c", "echo no such pool >&2; exit 3")
	if err == nil || !strings.Contains(err.Error(), "no such pool") || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("got %v", err)
	}
}

func TestStepNamesTheDeadline(t *testing.T) {
	err := step(context.Background(), 10*time.Millisecond, "waiting for nothing", func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	})
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "waiting for nothing: not done within 10ms") {
		t.Errorf("got %v", err)
	}
}

func TestAGuestHasTheAddressOfItsContainer(t *testing.T) {
	w, err := parseWorker("farpool-softroce-worker", "4711 172.18.0.3 16 172.18.0.1 02:42:ac:12:00:03 80b8d44f3344fd6b678b3df9d64f7e36")
	if err != nil || w.address != "172.18.0.3" || w.bits != "16" || w.gateway != "172.18.0.1" || w.mac != "02:42:ac:12:00:03" || w.bridge() != "br-80b8d44f3344" {
		t.Errorf("%+v, %v", w, err)
	}
	second := worker{name: w.name + "2"}
	if len(w.tap()) > 15 || w.tap() == second.tap() {
		t.Errorf("no names for network interfaces: %s, %s", w.tap(), second.tap())
	}
	for _, stopped := range []string{"0", "4711", "0 172.18.0.3 16 172.18.0.1 02:42:ac:12:00:03 80b8d44f3344fd6b"} {
		if _, err := parseWorker("x", stopped); err == nil {
			t.Errorf("%q is a worker", stopped)
		}
	}
}

func TestBridgesOfDockerLeavesOthersAlone(t *testing.T) {
	interfaces := t.TempDir()
	for _, name := range []string{"docker0", "br-0123456789ab", "br-lan", "eth0", "br-0123456789abcd"} {
		if err := os.Mkdir(filepath.Join(interfaces, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	got, err := bridgesOfDocker(interfaces)
	if want := []string{"br-0123456789ab", "docker0"}; err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// TestMain runs in the root, whose chart and changelog a release has.
func TestMain(m *testing.M) {
	if err := os.Chdir("../.."); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

func write(t *testing.T, name string, content []byte) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func keyOf(t *testing.T, key any) string {
	t.Helper()
	text, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return write(t, "key.pem", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: text}))
}

// small makes a release whose images have a few bytes each: what is compiled is not what these tests are about.
func small(t *testing.T) *release {
	t.Helper()
	r := &release{out: t.TempDir(), version: "0.1.0", created: time.Unix(1700000000, 0).UTC()}
	for _, room := range []string{"images", "charts", "sbom"} {
		if err := os.MkdirAll(filepath.Join(r.out, room), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	r.packages = write(t, "packages", []byte("libc6 2.36-9+deb12u10 amd64\nzlib1g 1:1.2.13 amd64\n"))
	amd, err := r.operatorImage("amd64", write(t, "farpool-operator", []byte("program")))
	if err != nil {
		t.Fatal(err)
	}
	arm, err := r.operatorImage("arm64", write(t, "farpool-operator", []byte("another")))
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{r.archive("operator", amd, arm), r.archive("dataplane", amd), r.debian("dataplane", r.packages), r.modules("operator", os.Args[0]), r.chart("- One thing\n- Another"), r.bundle(t.Context()), r.sum()} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return r
}

func TestAReleaseIsTheSameEachTime(t *testing.T) {
	first, second := small(t), small(t)
	a, err := sumsOf(first.out)
	if err != nil {
		t.Fatal(err)
	}
	b, err := sumsOf(second.out)
	if err != nil {
		t.Fatal(err)
	}
	if a != b || strings.Count(a, "\n") < 20 || !strings.Contains(a, "bundle/manifests/farpool.clusterserviceversion.yaml") {
		t.Errorf("first:\n%ssecond:\n%s", a, b)
	}
}

// serveRegistry serves an empty registry, and returns its address.
func serveRegistry(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

// pushedImage returns what a registry has under a name, and the first image of it.
func pushedImage(t *testing.T, named string) (*v1.IndexManifest, v1.Image) {
	t.Helper()
	reference, err := name.ParseReference(named, name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	index, err := remote.Index(reference)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	image, err := index.Image(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	return manifest, image
}

func TestAReleaseIsPushed(t *testing.T) {
	r := small(t)
	host := serveRegistry(t)
	p := push{from: r.out, registry: host + "/farpool", plain: true}
	if err := p.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	manifest, image := pushedImage(t, host+"/farpool/operator:0.1.0")
	if len(manifest.Manifests) != 2 || manifest.Manifests[1].Platform.Architecture != "arm64" {
		t.Errorf("the registry has %v", manifest.Manifests)
	}
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if config.Config.User != "65532:65532" || config.Config.Entrypoint[0] != "/farpool-operator" || !config.Created.Time.Equal(r.created) {
		t.Errorf("the image has %+v", config)
	}
	chart, err := name.ParseReference(host+"/farpool/charts/farpool:0.1.0", name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	got, err := remote.Get(chart)
	if err != nil {
		t.Fatal(err)
	}
	if text := string(got.Manifest); !strings.Contains(text, string(chartConfig)) || !strings.Contains(text, string(chartContent)) {
		t.Errorf("the chart's manifest is %s", text)
	}
}

func TestWhatChangedSinceIsNotPushed(t *testing.T) {
	r := small(t)
	p := push{from: r.out, registry: "127.0.0.1:1/farpool", plain: true}
	if err := os.WriteFile(filepath.Join(r.out, "charts", "farpool-0.1.0.tgz"), []byte("other"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := p.run(t.Context()); err == nil || !strings.Contains(err.Error(), "is not what SHA256SUMS in it says") {
		t.Errorf("pushed: %v", err)
	}
	for want, p := range map[string]push{"no registry": {from: r.out}, "is no release": {from: t.TempDir(), registry: "r.example"}} {
		if err := p.run(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
}

func TestTheChartHasWhatArtifactHubShows(t *testing.T) {
	r := small(t)
	in, err := os.Open(filepath.Join(r.out, "charts", "farpool-0.1.0.tgz"))
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	packed, err := gzip.NewReader(in)
	if err != nil {
		t.Fatal(err)
	}
	metadata, seen := "", 0
	for archive := tar.NewReader(packed); ; seen++ {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		text, readErr := io.ReadAll(archive)
		if err := errors.Join(err, readErr); err != nil {
			t.Fatal(err)
		}
		if header.Name == "farpool/Chart.yaml" {
			metadata = string(text)
		}
	}
	for _, want := range []string{"artifacthub.io/images", "farpool/dataplane:0.1.0", "artifacthub.io/changes", "- Another", "version: 0.1.0", "artifacthub.io/crds"} {
		if !strings.Contains(metadata, want) {
			t.Errorf("Chart.yaml lacks %q:\n%s", want, metadata)
		}
	}
	if seen < 20 {
		t.Errorf("the package has %d files", seen)
	}
}

func TestSumsAreSigned(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	r := small(t)
	if r.signer, err = signerIn(keyOf(t, key)); err != nil {
		t.Fatal(err)
	}
	if err := r.sign(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(r.out, sums))
	if err != nil {
		t.Fatal(err)
	}
	signed, err := os.ReadFile(filepath.Join(r.out, signature))
	if err != nil {
		t.Fatal(err)
	}
	digest := sha256.Sum256(text)
	if !ecdsa.VerifyASN1(&key.PublicKey, digest[:], signed) {
		t.Error("the signature is not of the sums")
	}
	if err := check(r.out); err != nil {
		t.Errorf("a signed release: %v", err)
	}
	_, other, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for want, file := range map[string]string{"take one of EC or RSA": keyOf(t, other), "it is no PEM": write(t, "key", []byte("key")), "read the key": "not-there"} {
		// It is said before anything is made.
		with := release{out: filepath.Join(t.TempDir(), "out"), version: "0.1.0", key: file}
		if err := with.make(context.Background()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
	older, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := signerIn(write(t, "key.pem", pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: older}))); err != nil {
		t.Errorf("a key as openssl ecparam writes it: %v", err)
	}
}

func TestSBOMsNameWhatIsInIt(t *testing.T) {
	r := small(t)
	for file, want := range map[string]string{"dataplane": "pkg:deb/debian/libc6@2.36-9%2Bdeb12u10?arch=amd64", "operator": "pkg:golang/github.com/google/go-containerregistry@v"} {
		text, err := os.ReadFile(filepath.Join(r.out, "sbom", file+".spdx.json"))
		if err != nil {
			t.Fatal(err)
		}
		var document map[string]any
		decoder := json.NewDecoder(bytes.NewReader(text))
		if err := decoder.Decode(&document); err != nil || document["spdxVersion"] != "SPDX-2.3" || !strings.Contains(string(text), want) {
			t.Errorf("%s: %v lacks %s: %s", file, err, want, text)
		}
	}
	for want, list := range map[string]string{"is not name, version and architecture": "libc6\n", "names no package": ""} {
		if err := r.debian("x", write(t, "list", []byte(list))); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
}

func TestAReleaseNeedsItsSectionOfTheChangelog(t *testing.T) {
	if text, err := changelog("CHANGELOG.md", "0.1.0"); err != nil || !strings.Contains(text, "first release") {
		t.Errorf("%q, %v", text, err)
	}
	for _, version := range []string{"", "9.9.9", "0.1"} {
		if _, err := changelog("CHANGELOG.md", version); err == nil {
			t.Errorf("version %q has a section", version)
		}
	}
	// What is there and no release is not removed.
	r := release{out: t.TempDir(), version: "0.1.0"}
	if err := r.make(context.Background()); err == nil || !strings.Contains(err.Error(), "is no release") {
		t.Errorf("it wrote over a directory: %v", err)
	}
}

func TestARunThatFailsLeavesTheReleaseBefore(t *testing.T) {
	r := release{out: filepath.Join(t.TempDir(), "out")}
	writes := func(content string, fails error) func() error {
		return func() error {
			if err := os.MkdirAll(r.out, 0o755); err != nil {
				return err
			}
			return errors.Join(os.WriteFile(filepath.Join(r.out, sums), []byte(content), 0o644), fails)
		}
	}
	for _, step := range []struct {
		content string
		fails   error
		there   string
	}{{"first", nil, "first"}, {"torn", errors.New("no room"), "first"}, {"second", nil, "second"}} {
		if err := r.replace(writes(step.content, step.fails)); !errors.Is(err, step.fails) {
			t.Errorf("%s: %v", step.content, err)
		}
		text, err := os.ReadFile(filepath.Join(r.out, sums))
		if err != nil || string(text) != step.there {
			t.Errorf("after %s there is %q (%v)", step.content, text, err)
		}
		if left, err := os.ReadDir(filepath.Dir(r.out)); err != nil || len(left) != 1 {
			t.Errorf("after %s there are %v (%v)", step.content, left, err)
		}
	}
}

func TestArchivesHoldFilesAlone(t *testing.T) {
	for _, bad := range []string{"../out", "/etc/passwd", "directory/"} {
		var text bytes.Buffer
		writer := tar.NewWriter(&text)
		if err := errors.Join(writer.WriteHeader(&tar.Header{Name: bad, Mode: 0o644}), writer.Close()); err != nil {
			t.Fatal(err)
		}
		if err := unpack(write(t, "bad.tar", text.Bytes()), t.TempDir()); err == nil {
			t.Errorf("%s was unpacked", bad)
		}
	}
}

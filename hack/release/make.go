// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

const (
	sums      = "SHA256SUMS"
	signature = sums + ".sig"
	notes     = "RELEASE-NOTES.md"
)

// release is a directory that is being written.
type release struct {
	out, version, dataplane, packages, key string
	created                                time.Time
	signer                                 crypto.Signer     // nil: nobody signs
	digests                                map[string]string // of the indexes of images, by name
}

// platforms of kubectl-farpool.
var platforms = [][2]string{{"linux", "amd64"}, {"linux", "arm64"}, {"darwin", "amd64"}, {"darwin", "arm64"}}

func (r *release) make(ctx context.Context) error {
	changes, err := changelog("CHANGELOG.md", r.version)
	if err != nil {
		return err
	}
	if r.signer, err = signerIn(r.key); err != nil {
		return err
	}
	if err := r.replace(func() error { return r.write(ctx, changes) }); err != nil {
		return err
	}
	fmt.Printf("release: %s has version %s\n", r.out, r.version)
	return nil
}

// replace has a release written beside the directory, and puts it in the place of the one that is there. If it fails, that one stays.
func (r *release) replace(write func() error) error {
	final, fresh := r.out, r.out+".new"
	if _, err := os.Stat(final); err == nil {
		if _, err := os.Stat(filepath.Join(final, sums)); err != nil {
			return fmt.Errorf("%s is there and is no release: remove it, or name another directory", final)
		}
	}
	if err := os.RemoveAll(fresh); err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(fresh) }()
	r.out = fresh
	err := write()
	r.out = final
	if err != nil {
		return err
	}
	if err := os.RemoveAll(final); err != nil {
		return err
	}
	return os.Rename(fresh, final)
}

func (r *release) write(ctx context.Context, changes string) error {
	for _, room := range []string{"images", "bin", "charts", "sbom"} {
		if err := os.MkdirAll(filepath.Join(r.out, room), 0o755); err != nil {
			return err
		}
	}
	steps := []func() error{
		func() error { return r.operator(ctx) },
		func() error { return r.dataPlane() },
		func() error { return r.plugins(ctx) },
		func() error { return r.chart(changes) },
		func() error { return r.bundle(ctx) },
		func() error { return os.WriteFile(filepath.Join(r.out, notes), []byte(r.notes(changes)), 0o644) },
		r.sum,
		r.sign,
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// compile builds a command for a platform.
func (r *release) compile(ctx context.Context, os_, arch, pkg, out string) error {
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w -X main.version="+r.version, "-o", out, pkg)
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+os_, "GOARCH="+arch)
	if text, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s for %s/%s: %w\n%s", pkg, os_, arch, err, text)
	}
	return nil
}

func (r *release) plugins(ctx context.Context) error {
	for _, p := range platforms {
		out := filepath.Join(r.out, "bin", fmt.Sprintf("kubectl-farpool-%s-%s", p[0], p[1]))
		if err := r.compile(ctx, p[0], p[1], "./operator/cmd/kubectl-farpool", out); err != nil {
			return err
		}
		if p == platforms[0] {
			if err := r.modules("kubectl-farpool", out); err != nil {
				return err
			}
		}
	}
	return nil
}

// changelog returns what CHANGELOG.md says of a version.
func changelog(file, version string) (string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	_, section, found := strings.Cut(string(text), "\n## "+version+"\n")
	if !found || version == "" {
		return "", fmt.Errorf("%s has no section %q: write what is new in it", file, version)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	return strings.TrimSpace(section), nil
}

func (r *release) notes(changes string) string {
	return fmt.Sprintf(`# farpool %s

%s

## Install

    make push REGISTRY=registry.example/farpool    # from the sources, or push images/*.tar by any tool that takes OCI layouts
    helm install farpool charts/farpool-%s.tgz -n farpool-system --create-namespace \
      --set image.repository=registry.example/farpool/operator --set dataPlane.image.repository=registry.example/farpool/dataplane

The operator's image is for amd64 and arm64, the data plane's for amd64. By the Operator Lifecycle Manager instead: bundle/, and %s, which it does not install.

## Check

    sha256sum -c %s
    openssl dgst -sha256 -verify PUBLIC-KEY.pem -signature %s %s    # where it is signed
`, r.version, changes, r.version, besideOLM, sums, signature, sums)
}

// files are the paths of all files of a release, sorted, without sums and signature.
func files(directory string) ([]string, error) {
	var found []string
	err := filepath.WalkDir(directory, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name, err := filepath.Rel(directory, path)
		if name != sums && name != signature {
			found = append(found, filepath.ToSlash(name))
		}
		return err
	})
	slices.Sort(found)
	return found, err
}

// sumsOf is the text of the sums of a release.
func sumsOf(directory string) (string, error) {
	names, err := files(directory)
	if err != nil {
		return "", err
	}
	var text strings.Builder
	for _, name := range names {
		content, err := os.ReadFile(filepath.Join(directory, name))
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&text, "%x  %s\n", sha256.Sum256(content), name)
	}
	return text.String(), nil
}

func (r *release) sum() error {
	text, err := sumsOf(r.out)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.out, sums), []byte(text), 0o644)
}

// sign signs the sums, as openssl dgst -sha256 -sign does.
func (r *release) sign() error {
	if r.signer == nil {
		return nil
	}
	content, err := os.ReadFile(filepath.Join(r.out, sums))
	if err != nil {
		return err
	}
	digest := sha256.Sum256(content)
	signed, err := r.signer.Sign(rand.Reader, digest[:], crypto.SHA256)
	if err != nil {
		return fmt.Errorf("sign: %w", err)
	}
	return os.WriteFile(filepath.Join(r.out, signature), signed, 0o644)
}

// signerIn reads a key; nil without a path.
func signerIn(path string) (crypto.Signer, error) {
	if path == "" {
		return nil, nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the key: %w", err)
	}
	signer, err := signerOf(text)
	if err != nil {
		return nil, fmt.Errorf("key %s: %w", path, err)
	}
	return signer, nil
}

func signerOf(text []byte) (crypto.Signer, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, errors.New("it is no PEM: make one with openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256")
	}
	if key, err := x509.ParseECPrivateKey(block.Bytes); err == nil {
		return key, nil
	}
	if key, err := x509.ParsePKCS1PrivateKey(block.Bytes); err == nil {
		return key, nil
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("it is no private key without a password, of EC or RSA: %w", err)
	}
	switch key := key.(type) {
	case *ecdsa.PrivateKey:
		return key, nil
	case *rsa.PrivateKey:
		return key, nil
	}
	return nil, fmt.Errorf("it is a %T: take one of EC or RSA", key)
}

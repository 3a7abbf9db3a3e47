// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Media types of a chart in a registry.
const (
	chartConfig  = types.MediaType("application/vnd.cncf.helm.config.v1+json")
	chartContent = types.MediaType("application/vnd.cncf.helm.chart.content.v1.tar+gzip")
)

// errNoRelease says what to do with a directory that has the sums of a release, and not the files of one.
var errNoRelease = errors.New("make it anew with make release")

// push publishes a release.
type push struct {
	from, registry string
	plain          bool
}

func (p *push) run(ctx context.Context) error {
	if p.registry == "" {
		return errors.New("no registry: make push REGISTRY=registry.example/farpool")
	}
	if err := check(p.from); err != nil {
		return err
	}
	charts, err := filepath.Glob(filepath.Join(p.from, "charts", "farpool-*.tgz"))
	if err != nil || len(charts) != 1 {
		return fmt.Errorf("%s has %d charts, and a release has one (%w)", p.from, len(charts), errors.Join(err, errNoRelease))
	}
	version := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(charts[0]), "farpool-"), ".tgz")
	images, err := filepath.Glob(filepath.Join(p.from, "images", "*.tar"))
	if err != nil || len(images) == 0 {
		return fmt.Errorf("%s has no images (%w)", p.from, errors.Join(err, errNoRelease))
	}
	options := []remote.Option{remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)}
	for _, archive := range images {
		if err := p.image(archive, version, options); err != nil {
			return err
		}
	}
	reference, err := p.reference("charts/farpool", version)
	if err != nil {
		return err
	}
	content, err := os.ReadFile(charts[0])
	if err != nil {
		return err
	}
	if err := pushChart(reference, version, content, options); err != nil {
		return fmt.Errorf("push %s: %w", reference, err)
	}
	fmt.Printf("release: pushed %s\n", reference)
	return nil
}

func (p *push) reference(repository, version string) (name.Reference, error) {
	options := []name.Option{name.StrictValidation}
	if p.plain {
		options = append(options, name.Insecure)
	}
	reference, err := name.NewTag(strings.TrimSuffix(p.registry, "/")+"/"+repository+":"+version, options...)
	if err != nil {
		return nil, fmt.Errorf("registry %q: %w", p.registry, err)
	}
	return reference, nil
}

// check compares a release with its sums: what has changed since is not published.
func check(directory string) error {
	written, err := os.ReadFile(filepath.Join(directory, sums))
	if err != nil {
		return fmt.Errorf("%s is no release (make release makes one): %w", directory, err)
	}
	text, err := sumsOf(directory)
	if err != nil {
		return err
	}
	if text != string(written) {
		return fmt.Errorf("%s is not what %s in it says: make it anew", directory, sums)
	}
	return nil
}

// image publishes the image in an archive. The files of a bundle name the other images, which have a registry only now.
func (p *push) image(archive, version string, options []remote.Option) error {
	name := strings.TrimSuffix(filepath.Base(archive), ".tar")
	reference, err := p.reference(name, version)
	if err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "release-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	if err := unpack(archive, work); err != nil {
		return err
	}
	index, err := layout.ImageIndexFromPath(work)
	if err == nil && name == bundleDirectory {
		index, err = p.bundle(index, version)
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", archive, err)
	}
	if err := remote.WriteIndex(reference, index, options...); err != nil {
		return fmt.Errorf("push %s: %w", reference, err)
	}
	fmt.Printf("release: pushed %s\n", reference)
	return nil
}

// bundle returns the bundle's images with the registry's name in the references to the others. The time is that of the images in the release.
func (p *push) bundle(index v1.ImageIndex, version string) (v1.ImageIndex, error) {
	manifest, err := index.IndexManifest()
	if err != nil {
		return nil, err
	}
	if len(manifest.Manifests) == 0 {
		return nil, errNoRelease
	}
	image, err := index.Image(manifest.Manifests[0].Digest)
	if err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	registry := strings.TrimSuffix(p.registry, "/") + "/"
	names := strings.NewReplacer(namespace+"operator@", registry+"operator@", namespace+"dataplane@", registry+"dataplane@")
	images, err := bundleImages(filepath.Join(p.from, bundleDirectory), version, config.Created.Time, names)
	if err != nil {
		return nil, err
	}
	return indexOf(images...)
}

// pushChart writes a chart as Helm keeps it in registries: its metadata as configuration, and the package as the one layer.
func pushChart(reference name.Reference, version string, content []byte, options []remote.Option) error {
	config := static.NewLayer(fmt.Appendf(nil, `{"name":"farpool","version":%q,"apiVersion":"v2","type":"application"}`, version), chartConfig)
	layer := static.NewLayer(content, chartContent)
	m := v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1}
	for _, blob := range []v1.Layer{config, layer} {
		if err := remote.WriteLayer(reference.Context(), blob, options...); err != nil {
			return err
		}
		descriptor, err := partial.Descriptor(blob)
		if err != nil {
			return err
		}
		m.Layers = append(m.Layers, *descriptor)
	}
	m.Config, m.Layers = m.Layers[0], m.Layers[1:]
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return remote.Put(reference, manifest(text), options...)
}

// manifest is one that is written already.
type manifest []byte

func (m manifest) RawManifest() ([]byte, error)        { return m, nil }
func (m manifest) MediaType() (types.MediaType, error) { return types.OCIManifestSchema1, nil }

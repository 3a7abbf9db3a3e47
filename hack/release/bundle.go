// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"sigs.k8s.io/yaml"

	"farpool.dev/farpool/hack/helmtool"
	"farpool.dev/farpool/hack/release/olm"
)

const (
	bundleDirectory = "bundle"
	besideOLM       = "beside-olm.yaml"
	samples         = "config/samples/*.yaml"
)

// bundle writes the bundle for the Operator Lifecycle Manager, as a directory and as an image, and what OLM does not install from one. It comes after images and chart.
func (r *release) bundle(ctx context.Context) error {
	chart, err := os.ReadFile(filepath.Join(chartDirectory, "Chart.yaml"))
	if err != nil {
		return err
	}
	rendered, err := r.render(ctx, chart)
	if err != nil {
		return fmt.Errorf("render the chart: %w", err)
	}
	source := olm.Source{Rendered: rendered, Chart: chart, Version: r.version, Created: r.created}
	for _, name := range []string{"operator", "dataplane"} {
		source.Images = append(source.Images, olm.Image{Name: name, Reference: namespace + name + "@" + r.digests[name]})
	}
	files, err := filepath.Glob(samples)
	if err != nil {
		return err
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		source.Samples = append(source.Samples, string(text))
	}
	made, err := olm.Make(source)
	if err != nil {
		return fmt.Errorf("make the OLM bundle: %w", err)
	}
	for name, content := range made.Files {
		path := filepath.Join(r.out, bundleDirectory, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, content, 0o644); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(r.out, besideOLM), made.Beside, 0o644); err != nil {
		return err
	}
	images, err := bundleImages(filepath.Join(r.out, bundleDirectory), r.version, r.created, strings.NewReplacer())
	if err != nil {
		return err
	}
	return r.archive(bundleDirectory, images...)
}

// render renders the release's chart for OLM: images by digest, and a webhook whose certificate OLM mounts.
func (r *release) render(ctx context.Context, chart []byte) (string, error) {
	helm, err := helmtool.Binary(ctx, "helm", helmtool.Module)
	if err != nil {
		return "", err
	}
	oldest, err := olm.MinKubeVersion(chart)
	if err != nil {
		return "", err
	}
	values, err := yaml.Marshal(map[string]any{
		"crds":      map[string]any{"keep": false},
		"image":     map[string]any{"repository": namespace + "operator", "digest": r.digests["operator"]},
		"dataPlane": map[string]any{"image": map[string]any{"repository": namespace + "dataplane", "digest": r.digests["dataplane"]}},
		"injector":  map[string]any{"certificateDirectory": olm.CertificateDirectory},
	})
	if err != nil {
		return "", err
	}
	return helmtool.Template(ctx, helm, filepath.Join(r.out, "charts", "farpool-"+r.version+".tgz"), oldest, values)
}

// bundleImages are the images of a bundle's directory, the same for each platform: a kubelet pulls one of its own. names replaces repositories in its files.
func bundleImages(directory, version string, created time.Time, names *strings.Replacer) ([]v1.Image, error) {
	found, err := files(directory)
	if err != nil {
		return nil, err
	}
	var content []entry
	for _, name := range found {
		text, err := os.ReadFile(filepath.Join(directory, name))
		if err != nil {
			return nil, err
		}
		content = append(content, entry{name, 0o644, []byte(names.Replace(string(text)))})
	}
	var metadata struct {
		Annotations map[string]string `json:"annotations"`
	}
	text, err := os.ReadFile(filepath.Join(directory, "metadata", "annotations.yaml"))
	if err != nil {
		return nil, err
	}
	if err := yaml.Unmarshal(text, &metadata); err != nil {
		return nil, fmt.Errorf("read the bundle's annotations: %w", err)
	}
	labels := map[string]string{titleLabel: namespace + bundleDirectory, versionLabel: version}
	maps.Copy(labels, metadata.Annotations)
	var images []v1.Image
	for _, arch := range architectures {
		image, err := imageOf(arch, created, v1.Config{Labels: labels}, slices.Clone(content)...)
		if err != nil {
			return nil, fmt.Errorf("make the bundle's image for %s: %w", arch, err)
		}
		images = append(images, image)
	}
	return images, nil
}

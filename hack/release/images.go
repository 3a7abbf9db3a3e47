// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

const (
	titleLabel   = "org.opencontainers.image.title"
	versionLabel = "org.opencontainers.image.version"
	// namespace begins the names of images that are in no registry yet.
	namespace = "farpool/"
)

// architectures of what is no C++.
var architectures = []string{"amd64", "arm64"}

// operator writes the operator's image: one static binary, as in the Dockerfile.
func (r *release) operator(ctx context.Context) error {
	var images []v1.Image
	for _, arch := range architectures {
		work, err := os.MkdirTemp("", "release-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(work)
		binary := filepath.Join(work, "farpool-operator")
		if err := r.compile(ctx, "linux", arch, "./operator/cmd/manager", binary); err != nil {
			return err
		}
		if arch == "amd64" {
			if err := r.modules("operator", binary); err != nil {
				return err
			}
		}
		image, err := r.operatorImage(arch, binary)
		if err != nil {
			return fmt.Errorf("make the operator's image for %s: %w", arch, err)
		}
		images = append(images, image)
	}
	return r.archive("operator", images...)
}

// operatorImage is an image of the operator's binary, which it runs.
func (r *release) operatorImage(arch, binary string) (v1.Image, error) {
	content, err := os.ReadFile(binary)
	if err != nil {
		return nil, err
	}
	name := filepath.Base(binary)
	config := v1.Config{User: "65532:65532", Entrypoint: []string{"/" + name}, Labels: map[string]string{titleLabel: namespace + "operator", versionLabel: r.version}}
	return imageOf(arch, r.created, config, entry{name, 0o755, content})
}

// entry is a file of an image.
type entry struct {
	name    string
	mode    int64
	content []byte
}

// imageOf is an image of one layer with some files, for Linux.
func imageOf(arch string, created time.Time, configured v1.Config, entries ...entry) (v1.Image, error) {
	var files bytes.Buffer
	writer := tar.NewWriter(&files)
	for _, e := range entries {
		if err := writer.WriteHeader(&tar.Header{Name: e.name, Mode: e.mode, Size: int64(len(e.content)), ModTime: created}); err != nil {
			return nil, err
		}
		if _, err := writer.Write(e.content); err != nil {
			return nil, err
		}
	}
	if err := writer.Close(); err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(files.Bytes())), nil }, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	image, err := mutate.AppendLayers(mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON), layer)
	if err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created, config.Config = "linux", arch, v1.Time{Time: created}, configured
	return mutate.ConfigFile(image, config)
}

// dataPlane writes the data plane's image as Docker has built it.
func (r *release) dataPlane() error {
	image, err := tarball.ImageFromPath(r.dataplane, nil)
	if err != nil {
		return fmt.Errorf("read the data plane's image from %s: %w", r.dataplane, err)
	}
	if err := r.debian("dataplane", r.packages); err != nil {
		return err
	}
	return r.archive("dataplane", image)
}

// indexOf is an index of images of several platforms.
func indexOf(images ...v1.Image) (v1.ImageIndex, error) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, image := range images {
		config, err := image.ConfigFile()
		if err != nil {
			return nil, err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: config.OS, Architecture: config.Architecture}}})
	}
	return index, nil
}

// archive writes images of several platforms as an OCI layout in a tar file, and notes the digest of their index.
func (r *release) archive(name string, images ...v1.Image) error {
	index, err := indexOf(images...)
	if err != nil {
		return err
	}
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	if r.digests == nil {
		r.digests = map[string]string{}
	}
	r.digests[name] = digest.String()
	work, err := os.MkdirTemp("", "release-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	if _, err := layout.Write(work, index); err != nil {
		return fmt.Errorf("write image %s: %w", name, err)
	}
	return r.pack(work, filepath.Join(r.out, "images", name+".tar"))
}

// pack writes a directory's files as a tar file, in the order of their names.
func (r *release) pack(directory, file string) error {
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	writer := tar.NewWriter(out)
	err = filepath.WalkDir(directory, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name, err := filepath.Rel(directory, path)
		if err != nil {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return writeFile(writer, filepath.ToSlash(name), content, r.created.Unix())
	})
	return errors.Join(err, writer.Close(), out.Close())
}

// unpack writes the files of an archive that pack has written into a directory.
func unpack(file, directory string) error {
	in, err := os.Open(file)
	if err != nil {
		return err
	}
	defer in.Close()
	archive := tar.NewReader(in)
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", file, err)
		}
		if !filepath.IsLocal(header.Name) || strings.HasSuffix(header.Name, "/") {
			return fmt.Errorf("%s holds %q, which is no file of an image", file, header.Name)
		}
		path := filepath.Join(directory, header.Name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		out, err := os.Create(path)
		if err != nil {
			return err
		}
		_, err = io.Copy(out, archive)
		if err := errors.Join(err, out.Close()); err != nil {
			return err
		}
	}
}

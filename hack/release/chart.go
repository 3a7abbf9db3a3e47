// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"sigs.k8s.io/yaml"
)

const chartDirectory = "charts/farpool"

// chart writes the chart as helm package does, with the release's version, and with what Artifact Hub shows.
func (r *release) chart(changes string) error {
	out, err := os.Create(filepath.Join(r.out, "charts", "farpool-"+r.version+".tgz"))
	if err != nil {
		return err
	}
	packed := gzip.NewWriter(out)
	writer := tar.NewWriter(packed)
	err = filepath.WalkDir(chartDirectory, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if filepath.Base(path) == "Chart.yaml" {
			if content, err = r.metadata(content, changes); err != nil {
				return err
			}
		}
		name, err := filepath.Rel(filepath.Dir(chartDirectory), path)
		if err != nil {
			return err
		}
		return writeFile(writer, filepath.ToSlash(name), content, r.created.Unix())
	})
	return errors.Join(err, writer.Close(), packed.Close(), out.Close())
}

func writeFile(writer *tar.Writer, name string, content []byte, created int64) error {
	if err := writer.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content)), ModTime: time.Unix(created, 0).UTC()}); err != nil {
		return err
	}
	_, err := writer.Write(content)
	return err
}

// metadata is Chart.yaml with the release's version, its images and its changes.
func (r *release) metadata(text []byte, changes string) ([]byte, error) {
	var chart map[string]any
	if err := yaml.Unmarshal(text, &chart); err != nil {
		return nil, fmt.Errorf("read Chart.yaml: %w", err)
	}
	annotations, ok := chart["annotations"].(map[string]any)
	if !ok {
		return nil, errors.New("the chart has no annotations in Chart.yaml")
	}
	chart["version"], chart["appVersion"] = r.version, r.version
	images, err := yaml.Marshal([]map[string]any{
		{"name": "operator", "image": namespace + "operator:" + r.version, "platforms": []string{"linux/amd64", "linux/arm64"}},
		{"name": "dataplane", "image": namespace + "dataplane:" + r.version, "platforms": []string{"linux/amd64"}},
	})
	if err != nil {
		return nil, err
	}
	annotations["artifacthub.io/images"] = string(images)
	var lines []string
	for line := range strings.SplitSeq(changes, "\n") {
		if item, found := strings.CutPrefix(line, "- "); found {
			lines = append(lines, item)
		}
	}
	listed, err := yaml.Marshal(lines)
	if err != nil {
		return nil, err
	}
	annotations["artifacthub.io/changes"] = string(listed)
	annotations["artifacthub.io/prerelease"] = fmt.Sprint(strings.Contains(r.version, "-") || strings.HasPrefix(r.version, "0."))
	return yaml.Marshal(chart)
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// part is one package in an SBOM.
type part struct{ name, version, purl string }

// modules writes the SBOM of a Go binary, from what its linker has noted in it.
func (r *release) modules(name, binary string) error {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return fmt.Errorf("read the modules of %s: %w", binary, err)
	}
	parts := []part{{"go", info.GoVersion, "pkg:generic/go@" + strings.TrimPrefix(info.GoVersion, "go")}}
	for _, module := range info.Deps {
		if module.Replace != nil {
			module = module.Replace
		}
		parts = append(parts, part{module.Path, module.Version, "pkg:golang/" + module.Path + "@" + module.Version})
	}
	return r.sbom(name, parts)
}

// debian writes the SBOM of an image from the list of its packages.
func (r *release) debian(name, list string) error {
	text, err := os.ReadFile(list)
	if err != nil {
		return fmt.Errorf("read the list of packages: %w", err)
	}
	var parts []part
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) != 3 {
			return fmt.Errorf("%s: %q is not name, version and architecture", list, strings.TrimSpace(line))
		}
		parts = append(parts, part{fields[0], fields[1], fmt.Sprintf("pkg:deb/debian/%s@%s?arch=%s", fields[0], strings.ReplaceAll(fields[1], "+", "%2B"), fields[2])})
	}
	if len(parts) == 0 {
		return fmt.Errorf("%s names no package", list)
	}
	return r.sbom(name, parts)
}

// sbom writes a document of SPDX 2.3.
func (r *release) sbom(name string, parts []part) error {
	type reference struct {
		Category string `json:"referenceCategory"`
		Type     string `json:"referenceType"`
		Locator  string `json:"referenceLocator"`
	}
	type spdxPackage struct {
		ID       string      `json:"SPDXID"`
		Name     string      `json:"name"`
		Version  string      `json:"versionInfo"`
		Location string      `json:"downloadLocation"`
		Analyzed bool        `json:"filesAnalyzed"`
		License  string      `json:"licenseDeclared"`
		Refs     []reference `json:"externalRefs,omitempty"`
	}
	type relationship struct {
		From string `json:"spdxElementId"`
		Type string `json:"relationshipType"`
		To   string `json:"relatedSpdxElement"`
	}
	const none, document, root = "NOASSERTION", "SPDXRef-DOCUMENT", "SPDXRef-Package-0"
	packages := []spdxPackage{{ID: root, Name: "farpool-" + name, Version: r.version, Location: none, License: "Apache-2.0"}}
	relations := []relationship{{document, "DESCRIBES", root}}
	digest := sha256.New()
	for i, p := range parts {
		id := fmt.Sprintf("SPDXRef-Package-%d", i+1)
		packages = append(packages, spdxPackage{ID: id, Name: p.name, Version: p.version, Location: none, License: none, Refs: []reference{{"PACKAGE-MANAGER", "purl", p.purl}}})
		relations = append(relations, relationship{root, "DEPENDS_ON", id})
		fmt.Fprintln(digest, p.purl)
	}
	text, err := json.MarshalIndent(map[string]any{
		"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": document, "name": "farpool-" + name + "-" + r.version,
		"documentNamespace": fmt.Sprintf("https://farpool.dev/sbom/%s-%s-%x", name, r.version, digest.Sum(nil)[:8]),
		"creationInfo":      map[string]any{"created": r.created.Format(time.RFC3339), "creators": []string{"Tool: farpool-release"}},
		"packages":          packages, "relationships": relations,
	}, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.out, "sbom", name+".spdx.json"), append(text, '\n'), 0o644)
}

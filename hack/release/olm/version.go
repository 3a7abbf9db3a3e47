// SPDX-License-Identifier: Apache-2.0

package olm

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// chart is what a ClusterServiceVersion has from Chart.yaml.
type chart struct {
	Name        string            `json:"name"`
	Description string            `json:"description"`
	Home        string            `json:"home"`
	KubeVersion string            `json:"kubeVersion"`
	Keywords    []string          `json:"keywords"`
	Annotations map[string]string `json:"annotations"`

	resources []resource
	links     []object
}

// resource is a custom resource, as Artifact Hub shows it.
type resource struct {
	Kind        string `json:"kind"`
	Name        string `json:"name"`
	DisplayName string `json:"displayName"`
	Description string `json:"description"`
}

func chartOf(text []byte) (*chart, error) {
	c := &chart{}
	return c, errors.Join(
		yaml.Unmarshal(text, c),
		yaml.Unmarshal([]byte(c.Annotations["artifacthub.io/crds"]), &c.resources),
		yaml.Unmarshal([]byte(c.Annotations["artifacthub.io/links"]), &c.links))
}

// MinKubeVersion returns the oldest version of Kubernetes that a chart is for.
func MinKubeVersion(text []byte) (string, error) {
	c, err := chartOf(text)
	if err != nil {
		return "", fmt.Errorf("read Chart.yaml: %w", err)
	}
	found := regexp.MustCompile(`^>=(\d+\.\d+\.\d+)`).FindStringSubmatch(c.KubeVersion)
	if found == nil {
		return "", fmt.Errorf("kubeVersion in Chart.yaml is %q, and does not begin with >= and a version", c.KubeVersion)
	}
	return found[1], nil
}

// serviceVersion returns the ClusterServiceVersion.
func (s *Source) serviceVersion(p *parts) (object, error) {
	c, err := chartOf(s.Chart)
	if err != nil {
		return nil, fmt.Errorf("read Chart.yaml: %w", err)
	}
	oldest, err := MinKubeVersion(s.Chart)
	if err != nil {
		return nil, err
	}
	owned, err := c.owned(p.manifests)
	if err != nil {
		return nil, err
	}
	annotations, err := s.notes(c, owned)
	if err != nil {
		return nil, err
	}
	install, err := p.install()
	if err != nil {
		return nil, err
	}
	webhooks, err := p.webhookDefinitions()
	if err != nil {
		return nil, err
	}
	maturity := "stable"
	if s.prerelease() {
		maturity = "alpha"
	}
	return object{
		"apiVersion": "operators.coreos.com/v1alpha1",
		"kind":       "ClusterServiceVersion",
		"metadata": object{
			"name": Package + ".v" + s.Version, "namespace": "placeholder", "annotations": annotations,
			// The data plane's image is for no other architecture.
			"labels": object{"operatorframework.io/arch.amd64": "supported", "operatorframework.io/os.linux": "supported"},
		},
		"spec": object{
			"displayName": c.Name, "description": description, "version": s.Version, "maturity": maturity, "minKubeVersion": oldest, "keywords": c.Keywords,
			"provider": object{"name": c.Name, "url": c.Home}, "links": c.links,
			"icon":         []any{object{"base64data": base64.StdEncoding.EncodeToString(icon), "mediatype": "image/svg+xml"}},
			"installModes": installModes("AllNamespaces"),
			"install":      install, "webhookdefinitions": webhooks, "customresourcedefinitions": object{"owned": owned},
			"relatedImages": s.relatedImages(),
		},
	}, nil
}

// installModes supports one mode: an operator of some namespaces has other roles, which the chart makes.
func installModes(supported string) []any {
	var modes []any
	for _, mode := range []string{"OwnNamespace", "SingleNamespace", "MultiNamespace", "AllNamespaces"} {
		modes = append(modes, object{"type": mode, "supported": mode == supported})
	}
	return modes
}

func (s *Source) relatedImages() []any {
	var images []any
	for _, image := range s.Images {
		images = append(images, object{"name": image.Name, "image": image.Reference})
	}
	return images
}

// notes are the annotations that consoles and catalogs read.
func (s *Source) notes(c *chart, owned []any) (object, error) {
	var examples []object
	for _, text := range s.Samples {
		objects, err := parse(text)
		if err != nil {
			return nil, fmt.Errorf("read a sample: %w", err)
		}
		for _, o := range objects {
			if strings.HasPrefix(o.GetAPIVersion(), "farpool.dev/") {
				unstructured.RemoveNestedField(o.Object, "metadata", "namespace")
				examples = append(examples, o.Object)
			}
		}
	}
	shown, err := json.MarshalIndent(examples, "", "  ")
	if err != nil {
		return nil, err
	}
	// What the operator alone writes is nothing that a person makes in a console.
	internal := []string{}
	for _, definition := range owned {
		definition := definition.(object)
		if !slices.ContainsFunc(examples, func(example object) bool { return example["kind"] == definition["kind"] }) {
			internal = append(internal, definition["name"].(string))
		}
	}
	hidden, err := json.Marshal(internal)
	if err != nil {
		return nil, err
	}
	category := c.Annotations["artifacthub.io/category"]
	if category == "" || len(s.Images) == 0 {
		return nil, errors.New("a bundle needs images, and the annotation artifacthub.io/category in Chart.yaml")
	}
	return object{
		"alm-examples": string(shown),
		"operators.operatorframework.io/internal-objects": string(hidden),
		"operatorframework.io/suggested-namespace":        "farpool-system",
		"capabilities":   c.Annotations["artifacthub.io/operatorCapabilities"],
		"categories":     strings.ToUpper(category[:1]) + category[1:],
		"containerImage": s.Images[0].Reference,
		"createdAt":      s.Created.UTC().Format(time.RFC3339),
		"description":    c.Description,
		"support":        c.Name,
	}, nil
}

// owned are the custom resources with what a console shows of their fields, in the order of their names.
func (c *chart) owned(manifests []*unstructured.Unstructured) ([]any, error) {
	var owned []any
	for _, definition := range manifests {
		if definition.GetKind() != "CustomResourceDefinition" {
			continue
		}
		shown := slices.IndexFunc(c.resources, func(r resource) bool { return r.Name == definition.GetName() })
		if shown < 0 {
			return nil, fmt.Errorf("annotation artifacthub.io/crds in Chart.yaml lacks %s", definition.GetName())
		}
		versions, _, err := unstructured.NestedSlice(definition.Object, "spec", "versions")
		if err != nil || len(versions) == 0 {
			return nil, fmt.Errorf("%s has no version: %w", definition.GetName(), err)
		}
		for _, version := range versions {
			version := version.(object)
			described := object{
				"name": definition.GetName(), "kind": c.resources[shown].Kind, "version": version["name"],
				"displayName": c.resources[shown].DisplayName, "description": c.resources[shown].Description,
			}
			for _, part := range []string{"spec", "status"} {
				schema, found, err := unstructured.NestedMap(version, "schema", "openAPIV3Schema", "properties", part)
				if err != nil {
					return nil, fmt.Errorf("%s: %w", definition.GetName(), err)
				}
				if found {
					described[part+"Descriptors"] = descriptors(schema, part == "spec")
				}
			}
			owned = append(owned, described)
		}
	}
	slices.SortFunc(owned, func(a, b any) int { return strings.Compare(a.(object)["name"].(string), b.(object)["name"].(string)) })
	return owned, nil
}

// SPDX-License-Identifier: Apache-2.0

// Package olm makes a bundle for the Operator Lifecycle Manager (format registry+v1) from the chart as Helm renders it, its metadata and the samples. It says nothing
// itself about permissions, flags or fields.
package olm

import (
	"bufio"
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// Package is the operator's name in catalogs.
const Package = "farpool"

// CertificateDirectory is where OLM mounts a webhook's certificate, as tls.crt and tls.key.
const CertificateDirectory = "/tmp/k8s-webhook-server/serving-certs"

var (
	//go:embed description.md
	description string
	//go:embed icon.svg
	icon []byte
)

type object = map[string]any

// Source is what a bundle is made from.
type Source struct {
	// Rendered is the chart's text, rendered with images by digest and with CertificateDirectory for the webhook.
	Rendered string
	// Chart is the text of the Chart.yaml.
	Chart []byte
	// Samples are texts of manifests: those of custom resources become examples.
	Samples []string
	// Version is that of the release, and Created its time.
	Version string
	Created time.Time
	// Images are references by digest: the operator's first.
	Images []Image
}

// Image is one that the operator or its pools run.
type Image struct{ Name, Reference string }

// Bundle is one that is made.
type Bundle struct {
	// Files by their paths in the bundle.
	Files map[string][]byte
	// Beside is a text of manifests: what the chart has, and OLM does not install from a bundle.
	Beside []byte
}

// What becomes of the chart's kinds. What is in neither list, and no part of the ClusterServiceVersion, is an error of Make: somebody has to decide.
var (
	carried = []string{"ClusterRole", "CustomResourceDefinition", "PodDisruptionBudget", "PriorityClass", "Service"}
	// Policies of networks are refused by some versions of OLM, and admission policies by all.
	notCarried = []string{"NetworkPolicy", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}
)

// parts are the chart's objects by what becomes of them.
type parts struct {
	deployments, accounts, bindings, roles, webhooks []*unstructured.Unstructured
	manifests, beside                                []*unstructured.Unstructured
}

// Make returns a bundle. The same source makes the same bytes.
func Make(source Source) (*Bundle, error) {
	objects, err := parse(source.Rendered)
	if err != nil {
		return nil, fmt.Errorf("read the rendered chart: %w", err)
	}
	p, err := sortOut(objects)
	if err != nil {
		return nil, err
	}
	version, err := source.serviceVersion(p)
	if err != nil {
		return nil, err
	}
	bundle := &Bundle{Files: map[string][]byte{}}
	if bundle.Files["metadata/annotations.yaml"], err = yaml.Marshal(object{"annotations": source.annotations()}); err != nil {
		return nil, err
	}
	if bundle.Files["manifests/"+Package+".clusterserviceversion.yaml"], err = yaml.Marshal(version); err != nil {
		return nil, err
	}
	for _, o := range p.manifests {
		unstructured.RemoveNestedField(o.Object, "metadata", "namespace")
		name := path.Join("manifests", o.GetName()+"_"+strings.ToLower(o.GetKind())+".yaml")
		if bundle.Files[name], err = yaml.Marshal(o.Object); err != nil {
			return nil, err
		}
	}
	var beside bytes.Buffer
	for _, o := range p.beside {
		text, err := yaml.Marshal(o.Object)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&beside, "---\n%s", text)
	}
	bundle.Beside = beside.Bytes()
	return bundle, nil
}

// annotations of the bundle, which its image has as labels, too. Versions before 1.0.0 are candidates, as Artifact Hub has them as prereleases.
func (s *Source) annotations() object {
	const prefix = "operators.operatorframework.io.bundle."
	return object{
		prefix + "mediatype.v1":       "registry+v1",
		prefix + "manifests.v1":       "manifests/",
		prefix + "metadata.v1":        "metadata/",
		prefix + "package.v1":         Package,
		prefix + "channels.v1":        s.channel(),
		prefix + "channel.default.v1": s.channel(),
	}
}

func (s *Source) channel() string {
	if s.prerelease() {
		return "candidate"
	}
	return "stable"
}

func (s *Source) prerelease() bool {
	return strings.HasPrefix(s.Version, "0.") || strings.Contains(s.Version, "-")
}

// parse reads a text of manifests.
func parse(text string) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	reader := utilyaml.NewYAMLReader(bufio.NewReader(strings.NewReader(text)))
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, err
		}
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(document, &o.Object); err != nil {
			return nil, err
		}
		if len(o.Object) == 0 {
			continue // comments alone
		}
		if o.GetKind() == "" || o.GetName() == "" {
			return nil, fmt.Errorf("a document has no kind or no name:\n%s", document)
		}
		objects = append(objects, o)
	}
}

// sortOut says what becomes of each object, and takes away the labels by which Helm knows its own.
func sortOut(objects []*unstructured.Unstructured) (*parts, error) {
	p := &parts{}
	for _, o := range objects {
		labels := o.GetLabels()
		delete(labels, "helm.sh/chart")
		delete(labels, "app.kubernetes.io/managed-by")
		o.SetLabels(labels)
		switch kind := o.GetKind(); {
		case kind == "Deployment":
			p.deployments = append(p.deployments, o)
		case kind == "ServiceAccount":
			p.accounts = append(p.accounts, o)
		case kind == "ClusterRoleBinding" || kind == "RoleBinding":
			p.bindings = append(p.bindings, o)
		case kind == "MutatingWebhookConfiguration":
			p.webhooks = append(p.webhooks, o)
		case kind == "Role" || kind == "ClusterRole" && slices.ContainsFunc(objects, func(b *unstructured.Unstructured) bool { return binds(b, o) }):
			p.roles = append(p.roles, o)
		case slices.Contains(carried, kind):
			p.manifests = append(p.manifests, o)
		case slices.Contains(notCarried, kind):
			p.beside = append(p.beside, o)
		default:
			return nil, fmt.Errorf("the chart has a %s, %s: decide in hack/release/olm whether OLM carries it", kind, o.GetName())
		}
	}
	return p, nil
}

// binds says whether a binding gives a role.
func binds(binding, role *unstructured.Unstructured) bool {
	if binding.GetKind() != "ClusterRoleBinding" && binding.GetKind() != "RoleBinding" {
		return false
	}
	kind, _, _ := unstructured.NestedString(binding.Object, "roleRef", "kind")
	name, _, _ := unstructured.NestedString(binding.Object, "roleRef", "name")
	return kind == role.GetKind() && name == role.GetName()
}

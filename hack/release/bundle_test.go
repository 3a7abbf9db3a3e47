// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/operator-framework/api/pkg/manifests"
	"github.com/operator-framework/api/pkg/operators/v1alpha1"
	"github.com/operator-framework/api/pkg/validation"
	"sigs.k8s.io/yaml"

	"farpool.dev/farpool/hack/release/olm"
)

// serviceVersion reads the ClusterServiceVersion of a release. A field that OLM does not know is an error.
func serviceVersion(t *testing.T, r *release) *v1alpha1.ClusterServiceVersion {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(r.out, "bundle", "manifests", "farpool.clusterserviceversion.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	version := &v1alpha1.ClusterServiceVersion{}
	if err := yaml.UnmarshalStrict(text, version); err != nil {
		t.Fatal(err)
	}
	return version
}

// expected are the warnings of the validators that stay.
var expected = []*regexp.Regexp{
	// Only the operator makes these resources: they are internal objects, and no person needs an example of one.
	regexp.MustCompile(`^provided API should have an example annotation$`),
	// A rule names a resource and no version of it: the validator takes both for the versions that were removed. The operator uses those of now.
	regexp.MustCompile(`^this bundle is using APIs which were deprecated and removed in v1\.25\. .* Migrate the API\(s\) for ((poddisruptionbudgets|events): \(\["ClusterServiceVersion\.Spec\.InstallStrategy[^)]*\),)+$`),
}

func TestTheMaintainedValidatorsPassTheBundle(t *testing.T) {
	r := small(t)
	bundle, err := manifests.GetBundleFromDir(filepath.Join(r.out, "bundle"))
	if err != nil {
		t.Fatal(err)
	}
	validators := validation.DefaultBundleValidators.WithValidators(validation.OperatorHubV2Validator, validation.StandardCapabilitiesValidator,
		validation.StandardCategoriesValidator, validation.ObjectValidator, validation.AlphaDeprecatedAPIsValidator, validation.GoodPracticesValidator)
	examined := 0
	for _, result := range validators.Validate(bundle.ObjectsToValidate()...) {
		examined++
		for _, e := range result.Errors {
			t.Errorf("%s: %v", result.Name, e)
		}
		for _, warning := range result.Warnings {
			if !slices.ContainsFunc(expected, func(e *regexp.Regexp) bool { return e.MatchString(warning.Detail) }) {
				t.Errorf("%s: %v", result.Name, warning)
			}
		}
	}
	if examined < 15 {
		t.Errorf("the validators examined %d objects", examined)
	}
	serviceVersion(t, r)
}

// Every object of the rendered chart is in the bundle, in the ClusterServiceVersion or in the file beside it, and what accounts may do is what their roles say.
func TestTheBundleHasWhatTheChartHas(t *testing.T) {
	r := small(t)
	version := serviceVersion(t, r)
	install := version.Spec.InstallStrategy.StrategySpec
	var flags, may []string
	for _, d := range install.DeploymentSpecs {
		flags = append(flags, strings.Join(d.Spec.Template.Spec.Containers[0].Args, " "))
	}
	for _, p := range append(install.ClusterPermissions, install.Permissions...) {
		for _, rule := range p.Rules {
			may = append(may, fmt.Sprint(p.ServiceAccountName, " ", rule.Resources, " ", rule.Verbs))
		}
	}
	if len(flags) != 2 || !strings.Contains(flags[0], "--dataplane-image=farpool/dataplane@"+r.digests["dataplane"]) || !strings.Contains(flags[1], "--certificate-directory="+olm.CertificateDirectory) {
		t.Errorf("the Deployments have flags %q", flags)
	}
	for _, want := range []string{"farpool-operator [leases] [create get update]", "farpool-injector [kvpools] [get list watch]", "farpool-operator [pods/resize] [patch]"} {
		if !slices.Contains(may, want) {
			t.Errorf("nobody may %s: %q", want, may)
		}
	}
	webhooks := version.Spec.WebhookDefinitions
	if len(webhooks) != 1 || webhooks[0].DeploymentName != "farpool-injector" || webhooks[0].TargetPort.StrVal != "webhook" || webhooks[0].ContainerPort != 443 || *webhooks[0].WebhookPath != "/inject" ||
		webhooks[0].ObjectSelector.MatchLabels["farpool.dev/inject"] != "true" {
		t.Errorf("the webhooks are %+v", webhooks)
	}
	beside, err := os.ReadFile(filepath.Join(r.out, besideOLM))
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]int{}
	for _, kind := range regexp.MustCompile(`(?m)^kind: (.*)$`).FindAllStringSubmatch(string(beside), -1) {
		kinds[kind[1]]++
	}
	if kinds["NetworkPolicy"] != 2 || kinds["ValidatingAdmissionPolicy"] != 4 || kinds["ValidatingAdmissionPolicyBinding"] != 4 || len(kinds) != 3 {
		t.Errorf("beside the bundle are %v", kinds)
	}
	for _, owned := range version.Spec.CustomResourceDefinitions.Owned {
		if len(owned.StatusDescriptors) == 0 || owned.Description == "" {
			t.Errorf("%s: a console shows %d fields of its status, and says %q", owned.Name, len(owned.StatusDescriptors), owned.Description)
		}
	}
}

func TestWhatNobodyDecidedAboutMakesNoBundle(t *testing.T) {
	chart, err := os.ReadFile("charts/farpool/Chart.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for want, rendered := range map[string]string{
		"decide in hack/release/olm":            "kind: ConfigMap\nmetadata: {name: x}\n",
		"is not for one ServiceAccount":         "kind: RoleBinding\nmetadata: {name: x}\nsubjects: [{kind: ServiceAccount, name: other}]\n",
		"gives a role that the chart does not":  "kind: ServiceAccount\nmetadata: {name: x}\n---\nkind: RoleBinding\nmetadata: {name: x}\nsubjects: [{kind: ServiceAccount, name: x}]\nroleRef: {kind: Role, name: y}\n",
		"no Deployment of the chart is behind":  "kind: MutatingWebhookConfiguration\nmetadata: {name: x}\nwebhooks: [{name: x, clientConfig: {service: {name: x, port: 443}}}]\n",
		"lacks others.farpool.dev":              "kind: CustomResourceDefinition\nmetadata: {name: others.farpool.dev}\n",
		"a document has no kind":                "metadata: {name: x}\n",
		"error converting YAML to JSON: yaml: ": "{",
	} {
		if _, err := olm.Make(olm.Source{Rendered: rendered, Chart: chart, Version: "0.1.0", Images: []olm.Image{{Name: "operator", Reference: "o"}}}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
	for want, chart := range map[string]string{"does not begin with >= and a version": "kubeVersion: any", "needs images": "kubeVersion: '>=1.32.0'"} {
		if _, err := olm.Make(olm.Source{Chart: []byte(chart), Version: "0.1.0"}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
}

// pushedFiles are the files of the one layer of an image in a registry.
func pushedFiles(t *testing.T, image v1.Image) map[string]string {
	t.Helper()
	layers, err := image.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("%d layers: %v", len(layers), err)
	}
	content, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close()
	files := map[string]string{}
	for archive := tar.NewReader(content); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		text, readErr := io.ReadAll(archive)
		if err := errors.Join(err, readErr); err != nil {
			t.Fatal(err)
		}
		files[header.Name] = string(text)
	}
}

// Every image that a pushed bundle names is in the registry by that digest.
func TestAPushedBundleNamesImagesOfItsRegistry(t *testing.T) {
	r, server := small(t), serveRegistry(t)
	push := push{from: r.out, registry: server + "/team/farpool/", plain: true}
	if err := push.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	manifest, image := pushedImage(t, server+"/team/farpool/bundle:0.1.0")
	if len(manifest.Manifests) != 2 {
		t.Errorf("the registry has %v", manifest.Manifests)
	}
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	const prefix = "operators.operatorframework.io.bundle."
	if labels := config.Config.Labels; labels[prefix+"mediatype.v1"] != "registry+v1" || labels[prefix+"package.v1"] != "farpool" || labels[prefix+"channel.default.v1"] != "candidate" || !config.Created.Time.Equal(r.created) {
		t.Errorf("the bundle's image has %+v of %v", labels, config.Created)
	}
	files := pushedFiles(t, image)
	text := files["manifests/farpool.clusterserviceversion.yaml"]
	version := &v1alpha1.ClusterServiceVersion{}
	if err := yaml.UnmarshalStrict([]byte(text), version); err != nil {
		t.Fatal(err)
	}
	if len(files) < 15 || files["metadata/annotations.yaml"] == "" || len(version.Spec.RelatedImages) != 2 {
		t.Errorf("the bundle has %d files, and relates images %v", len(files), version.Spec.RelatedImages)
	}
	for _, related := range version.Spec.RelatedImages {
		reference, err := name.NewDigest(related.Image, name.Insecure, name.StrictValidation)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := remote.Get(reference); err != nil {
			t.Errorf("%s: %v", related.Image, err)
		}
	}
	install, err := yaml.Marshal(version.Spec.InstallStrategy)
	if err != nil {
		t.Fatal(err)
	}
	// Two Deployments of one image, and the data plane's in a flag.
	if text := string(install) + version.Annotations["containerImage"]; strings.Count(text, "@sha256:") != 4 || strings.Count(text, server+"/team/farpool/") != 4 {
		t.Errorf("the bundle installs other images:\n%s", text)
	}
}

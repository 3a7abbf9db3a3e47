// SPDX-License-Identifier: Apache-2.0

//go:build helm3

package charts

import (
	"reflect"
	"testing"
)

// Building a second Helm takes minutes, so that this stands behind a tag.
func TestHelm3RendersTheSame(t *testing.T) {
	three := helmBinary(t, "helm3", "helm.sh/helm/v3/cmd/helm@v3.22.0")
	for name, values := range cases {
		a, err := render(t, helm(t), values)
		if err != nil {
			t.Fatal(err)
		}
		b, err := render(t, three, values)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(objects(t, a), objects(t, b)) {
			t.Errorf("%s: Helm 3 and Helm 4 render different objects: %s", name, firstDifference(a, b))
		}
		if _, err := run(t, three, []byte(values), "lint", "--strict", chart, "--kube-version", kubeVersion, "--values", "-"); err != nil {
			t.Error(err)
		}
	}
}

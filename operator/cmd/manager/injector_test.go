// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"flag"
	"slices"
	"strings"
	"testing"
)

// What is wrong with the injector's flags is said before anything runs.
func TestFlagsOfTheInjector(t *testing.T) {
	t.Setenv("POD_NAMESPACE", "")
	for arguments, says := range map[string]string{
		"": "set --namespace, or POD_NAMESPACE",
		"--namespace=system --pod-security-context=Mine": "set it to Managed or Platform",
		"--namespace=system --image-pull-secrets=a,B":    `"B", which is no Secret's name`,
		"--namespace=system run":                         `"run" is no flag`,
		"--namespace=system --watch-namespace=a/b":       "is no namespace's name",
	} {
		if _, err := parseInjector(strings.Fields(arguments)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v, want %q", arguments, err, says)
		}
	}
	o, err := parseInjector(strings.Fields("--namespace=system --image-pull-secrets=a,,b --watch-namespace=shop,web --webhook-port=1"))
	if err != nil || !slices.Equal(o.pullSecretNames(), []string{"a", "b"}) || !slices.Equal(o.watchNamespaces, []string{"shop", "web"}) || o.port != 1 || o.service != "farpool-injector" {
		t.Errorf("%+v %v", o, err)
	}
	if _, err := parseInjector([]string{"--help"}); !errors.Is(err, flag.ErrHelp) {
		t.Errorf("--help: %v", err)
	}
}

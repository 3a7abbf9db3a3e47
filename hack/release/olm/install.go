// SPDX-License-Identifier: Apache-2.0

package olm

import (
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// install is the strategy: the Deployments, and what their ServiceAccounts may do.
func (p *parts) install() (object, error) {
	var deployments []any
	for _, d := range p.deployments {
		deployments = append(deployments, object{"name": d.GetName(), "label": d.GetLabels(), "spec": d.Object["spec"]})
	}
	cluster, err := p.permissions("ClusterRoleBinding")
	if err != nil {
		return nil, err
	}
	own, err := p.permissions("RoleBinding")
	if err != nil {
		return nil, err
	}
	return object{"strategy": "deployment", "spec": object{"deployments": deployments, "clusterPermissions": cluster, "permissions": own}}, nil
}

// permissions are the rules that bindings of a kind give, for each ServiceAccount. OLM makes the accounts itself, from their names here.
func (p *parts) permissions(kind string) ([]any, error) {
	rules := map[string][]any{}
	for _, binding := range p.bindings {
		if binding.GetKind() != kind {
			continue
		}
		account, err := p.account(binding)
		if err != nil {
			return nil, err
		}
		role := slices.IndexFunc(p.roles, func(role *unstructured.Unstructured) bool { return binds(binding, role) })
		if role < 0 {
			return nil, fmt.Errorf("%s %s gives a role that the chart does not have", kind, binding.GetName())
		}
		given, _, err := unstructured.NestedSlice(p.roles[role].Object, "rules")
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", p.roles[role].GetKind(), p.roles[role].GetName(), err)
		}
		rules[account] = append(rules[account], given...)
	}
	var permissions []any
	for _, account := range slices.Sorted(maps.Keys(rules)) {
		permissions = append(permissions, object{"serviceAccountName": account, "rules": rules[account]})
	}
	return permissions, nil
}

// account is the one ServiceAccount of the chart that a binding is for.
func (p *parts) account(binding *unstructured.Unstructured) (string, error) {
	subjects, _, err := unstructured.NestedSlice(binding.Object, "subjects")
	if err == nil && len(subjects) == 1 {
		subject := subjects[0].(object)
		if known := slices.IndexFunc(p.accounts, func(a *unstructured.Unstructured) bool { return a.GetName() == subject["name"] }); known >= 0 && subject["kind"] == "ServiceAccount" {
			return p.accounts[known].GetName(), nil
		}
	}
	return "", fmt.Errorf("%s %s is not for one ServiceAccount of the chart, which is all that OLM can have", binding.GetKind(), binding.GetName())
}

// webhookDefinitions are the webhooks. OLM chooses the namespaces itself, and has no conditions: the injector passes mirror pods over without them.
func (p *parts) webhookDefinitions() ([]any, error) {
	var definitions []any
	for _, configuration := range p.webhooks {
		webhooks, _, err := unstructured.NestedSlice(configuration.Object, "webhooks")
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", configuration.GetKind(), configuration.GetName(), err)
		}
		for _, webhook := range webhooks {
			webhook := webhook.(object)
			service, _, err := unstructured.NestedMap(webhook, "clientConfig", "service")
			if err != nil {
				return nil, fmt.Errorf("webhook %s: %w", webhook["name"], err)
			}
			deployment, target, err := p.behind(service)
			if err != nil {
				return nil, fmt.Errorf("webhook %s: %w", webhook["name"], err)
			}
			definition := maps.Clone(webhook)
			for _, field := range []string{"name", "clientConfig", "namespaceSelector", "matchConditions"} {
				delete(definition, field)
			}
			maps.Copy(definition, object{
				"type": "MutatingAdmissionWebhook", "generateName": webhook["name"], "webhookPath": service["path"],
				"deploymentName": deployment, "containerPort": service["port"], "targetPort": target,
			})
			definitions = append(definitions, definition)
		}
	}
	return definitions, nil
}

// behind returns the Deployment whose pods a Service of the chart selects, and the port of theirs that is behind the Service's.
func (p *parts) behind(reference object) (deployment string, target any, err error) {
	for _, service := range p.manifests {
		if service.GetKind() != "Service" || service.GetName() != reference["name"] {
			continue
		}
		selector, _, err := unstructured.NestedStringMap(service.Object, "spec", "selector")
		if err != nil {
			return "", nil, err
		}
		ports, _, err := unstructured.NestedSlice(service.Object, "spec", "ports")
		if err != nil {
			return "", nil, err
		}
		for _, port := range ports {
			if port := port.(object); port["port"] == reference["port"] {
				target = port["targetPort"]
			}
		}
		for _, d := range p.deployments {
			labels, _, err := unstructured.NestedStringMap(d.Object, "spec", "template", "metadata", "labels")
			if err != nil {
				return "", nil, err
			}
			if target != nil && !slices.ContainsFunc(slices.Collect(maps.Keys(selector)), func(key string) bool { return labels[key] != selector[key] }) {
				return d.GetName(), target, nil
			}
		}
	}
	return "", nil, fmt.Errorf("no Deployment of the chart is behind port %v of Service %v", reference["port"], reference["name"])
}

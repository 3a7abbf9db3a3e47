// SPDX-License-Identifier: Apache-2.0

package render

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"farpool.dev/farpool/api/v1alpha1"
)

// podsOf renders a memory node's pod and a compute shard's with the same options.
func podsOf(t *testing.T, version int32, pool Pool, options *v1alpha1.PodOptions) (pods []corev1.PodTemplateSpec) {
	t.Helper()
	template, err := TemplateOf(version)
	if err != nil {
		t.Fatal(err)
	}
	memoryPool, computePool := pool.Spec.Memory.Pools[0], pool.Spec.Compute.Pools[0]
	memoryPool.Pod, computePool.Pod = options, options
	pod, err := template.MemoryPod(pool, memoryPool, "memory-0", "uid")
	if err != nil {
		t.Fatal(err)
	}
	deployment, err := template.ComputeDeployment(pool, computePool)
	if err != nil {
		t.Fatal(err)
	}
	for _, applied := range []any{pod, deployment.Spec.Template} {
		var made corev1.PodTemplateSpec
		if err := copyInto(&made, applied); err != nil {
			t.Fatal(err)
		}
		pods = append(pods, made)
	}
	return pods
}

// Labels and annotations of the spec come beside the operator's, which win; but a person may let autoscalers take a memory node's Kubernetes node.
func TestLabelsAndAnnotationsOfPods(t *testing.T) {
	const evict, hash = "cluster-autoscaler.kubernetes.io/safe-to-evict", v1alpha1.AnnotationPodHash
	for version := int32(1); version <= Newest; version++ {
		pool := pools(t)["kvpool"]
		plain := podsOf(t, version, pool, nil)
		for i, pod := range podsOf(t, version, pool, &v1alpha1.PodOptions{
			Labels:      map[string]v1alpha1.LabelValue{"team": "a", v1alpha1.LabelPool: "another"},
			Annotations: map[string]string{"note": "b", evict: "true", hash: "mine", v1alpha1.AnnotationTemplateVersion: "mine"},
		}) {
			if pod.Labels["team"] != "a" || pod.Annotations["note"] != "b" || pod.Annotations[evict] != "true" {
				t.Errorf("template %d, %d: %v, %v", version, i, pod.Labels, pod.Annotations)
			}
			for _, key := range []string{v1alpha1.AnnotationTemplateVersion, hash} {
				if was, is := plain[i].Annotations[key], pod.Annotations[key]; was != "" && was != is {
					t.Errorf("template %d, %d: annotation %s became %q", version, i, key, is)
				}
			}
			if len(pod.Labels) != len(plain[i].Labels)+1 || pod.Labels[v1alpha1.LabelPool] != pool.Name {
				t.Errorf("template %d, %d: labels %v", version, i, pod.Labels)
			}
		}
	}
}

// A spec that says nothing of pods leaves them as their frozen template has them, and their hash tells pods apart that were placed otherwise.
func TestWherePodsRun(t *testing.T) {
	pool := pools(t)["kvpool"]
	pool.MemoryPriorityClass = "operators"
	plain := podsOf(t, Newest, pool, nil)
	if plain[0].Spec.PriorityClassName != "operators" || plain[1].Spec.PriorityClassName != "" {
		t.Errorf("priority classes %q and %q", plain[0].Spec.PriorityClassName, plain[1].Spec.PriorityClassName)
	}
	empty := podsOf(t, Newest, pool, &v1alpha1.PodOptions{})
	for i := range plain {
		if document(t, plain[i]) != document(t, empty[i]) {
			t.Errorf("%d: options that say nothing change the pod", i)
		}
	}
	own := corev1.TopologySpreadConstraint{MaxSkew: 2, TopologyKey: "zone", WhenUnsatisfiable: corev1.DoNotSchedule}
	affinity := &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{Weight: 7}}}}
	placed := podsOf(t, Newest, pool, &v1alpha1.PodOptions{
		Affinity: affinity, TopologySpreadConstraints: []corev1.TopologySpreadConstraint{own}, PriorityClassName: "high", RuntimeClassName: "crun",
		SchedulerName: "other", ServiceAccountName: "pods",
	})
	if placed[0].Annotations[v1alpha1.AnnotationPodHash] == plain[0].Annotations[v1alpha1.AnnotationPodHash] {
		t.Error("the hash of a memory node's pod does not know where it was placed")
	}
	for i, component := range []string{v1alpha1.ComponentMemoryNode, v1alpha1.ComponentComputeShard} {
		spec := placed[i].Spec
		if len(spec.TopologySpreadConstraints) != 1 || spec.TopologySpreadConstraints[0].MaxSkew != 2 ||
			spec.TopologySpreadConstraints[0].LabelSelector.MatchLabels[v1alpha1.LabelComponent] != component {
			t.Errorf("%s: spread %+v", component, spec.TopologySpreadConstraints)
		}
		if spec.Affinity == nil || spec.Affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution[0].Weight != 7 {
			t.Errorf("%s: affinity %+v", component, spec.Affinity)
		}
		if spec.PriorityClassName != "high" || *spec.RuntimeClassName != "crun" || spec.SchedulerName != "other" || spec.ServiceAccountName != "pods" || *spec.AutomountServiceAccountToken {
			t.Errorf("%s: %+v", component, spec)
		}
	}
}

// Every container of a pod, whether it has other options or none, pulls its image as the spec says.
func TestHowPodsPullImages(t *testing.T) {
	for _, options := range []*v1alpha1.PodOptions{nil, {SchedulerName: "other"}} {
		pool := pools(t)["kvpool-rich"] // its pods begin with a container that makes a directory
		plain := podsOf(t, Newest, pool, options)
		pool.Spec.ImagePullPolicy = corev1.PullAlways
		pool.Spec.ImagePullSecrets = []v1alpha1.ObjectName{"one", "two"}
		for i, pod := range podsOf(t, Newest, pool, options) {
			containers := append(pod.Spec.Containers, pod.Spec.InitContainers...)
			if len(containers) != 2 {
				t.Fatalf("%d containers", len(containers))
			}
			for _, container := range containers {
				if container.ImagePullPolicy != corev1.PullAlways {
					t.Errorf("%d: %s pulls by %s", i, container.Name, container.ImagePullPolicy)
				}
			}
			if secrets := pod.Spec.ImagePullSecrets; len(secrets) != 2 || secrets[0].Name != "one" || secrets[1].Name != "two" {
				t.Errorf("%d: pulls with %v", i, secrets)
			}
			if was := plain[i].Spec; was.Containers[0].ImagePullPolicy != corev1.PullIfNotPresent || len(was.ImagePullSecrets) != 0 {
				t.Errorf("%d: a spec that says nothing: %+v", i, was)
			}
			if hash := v1alpha1.AnnotationPodHash; i == 0 && pod.Annotations[hash] == plain[i].Annotations[hash] {
				t.Error("the hash of a memory node's pod does not know how it pulls")
			}
		}
	}
}

// Compute shards mount the Secret that has the password.
func TestWhereThePasswordIs(t *testing.T) {
	own := &v1alpha1.SecretKey{Name: "mine", Key: "redis"}
	for name, c := range map[string]struct {
		security     v1alpha1.SecuritySpec
		secret, file string // empty: there is none
	}{
		"generated":   {v1alpha1.SecuritySpec{Password: v1alpha1.PasswordGenerated}, "demo-password", "/etc/farpool/password/password"},
		"their own":   {v1alpha1.SecuritySpec{Password: v1alpha1.PasswordSecret, PasswordSecret: own}, "mine", "/etc/farpool/password/redis"},
		"without key": {v1alpha1.SecuritySpec{Password: v1alpha1.PasswordSecret, PasswordSecret: &v1alpha1.SecretKey{Name: "mine"}}, "mine", "/etc/farpool/password/password"},
		"none":        {v1alpha1.SecuritySpec{Password: v1alpha1.PasswordNone}, "", ""},
		"no name":     {v1alpha1.SecuritySpec{Password: v1alpha1.PasswordSecret}, "", ""},
	} {
		pool := pools(t)["kvpool"]
		pool.Name, pool.Spec.Security = "demo", c.security
		mounted := ""
		for _, volume := range podsOf(t, Newest, pool, nil)[1].Spec.Volumes {
			if volume.Name == "password" {
				mounted = volume.Secret.SecretName
			}
		}
		config := (template4{}).ComputeConfig(pool, pool.Spec.Compute.Pools[0])
		if mounted != c.secret || strings.Contains(config, "password-file") != (c.file != "") || !strings.Contains(config, c.file) {
			t.Errorf("%s: Secret %q, %s", name, mounted, config)
		}
	}
}

// The spec's word on users counts more than the operator's setting.
func TestWhoChoosesUsersOfPods(t *testing.T) {
	for _, c := range []struct {
		operator bool
		spec     v1alpha1.PodSecurity
		chosen   bool
	}{
		{false, "", true}, {true, "", false}, {false, v1alpha1.PodSecurityPlatform, false}, {true, v1alpha1.PodSecurityPlatform, false},
		{false, v1alpha1.PodSecurityManaged, true}, {true, v1alpha1.PodSecurityManaged, true},
	} {
		pool := pools(t)["kvpool"]
		pool.PlatformUsers = c.operator
		for i, pod := range podsOf(t, Newest, pool, &v1alpha1.PodOptions{SecurityContext: c.spec}) {
			if user := pod.Spec.SecurityContext.RunAsUser; (user != nil) != c.chosen || user != nil && *user != ManagedUser {
				t.Errorf("%+v, %d: user %v", c, i, user)
			}
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"encoding/json"
	"maps"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/render"
)

// place makes the pod of a scene's first memory node what a template of some version makes of the spec.
func (s *scene) place(t *testing.T, version int32) *corev1.Pod {
	t.Helper()
	return s.placeOne(t, version, "cache-memory-0")
}

func (s *scene) placeOne(t *testing.T, version int32, name string) *corev1.Pod {
	t.Helper()
	node := s.Nodes[name]
	node.Spec.TemplateVersion = version
	template, err := render.TemplateOf(version)
	if err != nil {
		t.Fatal(err)
	}
	pool := render.Pool{Name: "cache", Namespace: "shop", UID: "uid", Spec: s.Pool.Spec, Image: node.Spec.Image}
	if render.OwnIdentities(version) {
		pool.MapKey = s.withMapKey()
	}
	applied, err := template.MemoryPod(pool, s.Pool.Spec.Memory.Pools[0], node.Name, node.UID)
	if err != nil {
		t.Fatal(err)
	}
	content, err := json.Marshal(applied)
	if err != nil {
		t.Fatal(err)
	}
	before := s.NodePods[node.Name]
	pod := &corev1.Pod{}
	if err := json.Unmarshal(content, pod); err != nil {
		t.Fatal(err)
	}
	pod.UID, pod.ResourceVersion, pod.Status, pod.Spec.NodeName = before.UID, "7", before.Status, "worker"
	s.NodePods[node.Name] = pod
	return pod
}

func (s *scene) changes(t *testing.T, plan *decision, name string) (patches map[string]map[string]any) {
	t.Helper()
	patches = map[string]map[string]any{}
	for _, amendment := range plan.Amend {
		if amendment.Pod.Name != name {
			continue
		}
		var patch struct {
			Metadata map[string]any
			Spec     map[string]any
		}
		if err := json.Unmarshal(amendment.Patch, &patch); err != nil {
			t.Fatal(err)
		}
		if patch.Metadata["resourceVersion"] != amendment.Pod.ResourceVersion {
			t.Errorf("a patch of whatever there is: %s", amendment.Patch)
		}
		patches[amendment.Subresource] = patch.Spec
	}
	return patches
}

func nodeCondition4(t *testing.T, plan *decision, name string) metav1.Condition {
	t.Helper()
	c := meta.FindStatusCondition(plan.Status.Nodes[name].Conditions, v1alpha1.ConditionUpToDate)
	if c == nil {
		t.Fatalf("memory node %s has no condition UpToDate", name)
	}
	return *c
}

// A pod that an earlier operator made leaves a Kubernetes node after 300 s that cannot be reached: it is made to stay. Nothing else of it changes.
func TestPodsOfEarlierTemplatesStayOnUnreachableNodes(t *testing.T) {
	for version := int32(1); version <= render.Newest; version++ {
		s := newScene(1, v1alpha1.DataPolicyStore)
		s.Pool.Spec.Memory.Pools[0].Pod = &v1alpha1.PodOptions{Tolerations: []v1alpha1.Toleration{{Key: "dedicated", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}}}
		pod := s.place(t, version)
		if version < 4 {
			for _, key := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} {
				pod.Spec.Tolerations = append(pod.Spec.Tolerations, corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: ptr.To(int64(300))})
			}
		}
		plan := s.decide(t)
		patches := s.changes(t, plan, pod.Name)
		if version >= 4 {
			if len(patches) != 0 {
				t.Errorf("template %d: %v", version, patches)
			}
			continue
		}
		tolerations, _ := patches[""]["tolerations"].([]any)
		if len(patches) != 1 || len(tolerations) != 3 {
			t.Fatalf("template %d: %v", version, patches)
		}
		for _, toleration := range tolerations {
			if _, bounded := toleration.(map[string]any)["tolerationSeconds"]; bounded {
				t.Errorf("template %d: %v", version, toleration)
			}
		}
		if c := nodeCondition4(t, plan, pod.Name); c.Status != metav1.ConditionTrue {
			t.Errorf("template %d: %s: %s", version, c.Reason, c.Message)
		}
		// While nothing may be changed, nothing is.
		s.Pool.Spec.Management = v1alpha1.ManagementPaused
		if plan = s.decide(t); len(plan.Amend) != 0 {
			t.Errorf("template %d: a paused pool's pods are changed", version)
		}
	}
}

// Annotations for autoscalers come to pods of earlier templates, too. What a person has written there stays.
func TestPodsOfEarlierTemplatesAreNotTakenByAutoscalers(t *testing.T) {
	for version := int32(1); version <= render.Newest; version++ {
		s := newScene(1, v1alpha1.DataPolicyStore)
		pod := s.place(t, version)
		if pod.Annotations == nil {
			pod.Annotations = map[string]string{}
		}
		pod.Annotations["karpenter.sh/do-not-disrupt"] = "false"
		annotations := map[string]any{}
		for _, amendment := range s.decide(t).Amend {
			var patch struct{ Metadata map[string]any }
			if err := json.Unmarshal(amendment.Patch, &patch); err != nil {
				t.Fatal(err)
			}
			if patch.Metadata["resourceVersion"] != "7" {
				t.Errorf("template %d: a patch of whatever there is: %s", version, amendment.Patch)
			}
			if added, ok := patch.Metadata["annotations"].(map[string]any); ok {
				annotations = added
			}
		}
		want := map[string]any{"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
		if version >= 4 {
			want = map[string]any{}
		}
		if !maps.Equal(annotations, want) {
			t.Errorf("template %d: annotations %v are added, want %v", version, annotations, want)
		}
	}
}

func TestEditsOfPlacedMemoryNodes(t *testing.T) {
	for _, c := range []struct {
		name           string
		edit           func(*v1alpha1.KVPoolSpec)
		status         metav1.ConditionStatus
		reason         string
		says           []string
		patched        string // subresource/fields
		unserved       bool
		unservedReason string
	}{
		{name: "nothing", edit: func(*v1alpha1.KVPoolSpec) {}, status: metav1.ConditionTrue, reason: v1alpha1.ReasonCurrent},
		{name: "sessions", edit: func(spec *v1alpha1.KVPoolSpec) { spec.Limits = &v1alpha1.LimitsSpec{MaxSessions: ptr.To(int32(512))} },
			status: metav1.ConditionFalse, reason: v1alpha1.ReasonPodDiffers, says: []string{"--max-sessions=512", "kubectl cordon", "loses what it holds"}},
		{name: "limits of compute shards", edit: func(spec *v1alpha1.KVPoolSpec) { spec.Limits = &v1alpha1.LimitsSpec{MaxPipeline: ptr.To(int32(5))} }, status: metav1.ConditionTrue, reason: v1alpha1.ReasonCurrent},
		{name: "memory of the process", edit: func(spec *v1alpha1.KVPoolSpec) {
			spec.Memory.Pools[0].Resources = &v1alpha1.Resources{Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")}}
		}, status: metav1.ConditionFalse, reason: v1alpha1.ReasonResizingInPlace, patched: "resize", unserved: true, unservedReason: v1alpha1.ReasonResizeUnsupported},
		{name: "processors", edit: func(spec *v1alpha1.KVPoolSpec) {
			spec.Memory.Pools[0].Resources = &v1alpha1.Resources{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("3")}}
		}, status: metav1.ConditionFalse, reason: v1alpha1.ReasonResizingInPlace, patched: "resize", unserved: true, unservedReason: v1alpha1.ReasonResizeUnsupported},
		{name: "a toleration", edit: func(spec *v1alpha1.KVPoolSpec) {
			spec.Memory.Pools[0].Pod = &v1alpha1.PodOptions{Tolerations: []v1alpha1.Toleration{{Key: "more", Operator: corev1.TolerationOpExists}}}
		}, status: metav1.ConditionTrue, reason: v1alpha1.ReasonCurrent, patched: ""},
		{name: "nodeSelector", edit: func(spec *v1alpha1.KVPoolSpec) {
			spec.Memory.Pools[0].Pod = &v1alpha1.PodOptions{NodeSelector: map[string]string{"rack": "b"}}
		},
			status: metav1.ConditionFalse, reason: v1alpha1.ReasonPodDiffers, says: []string{"nodeSelector"}},
	} {
		s := newScene(1, v1alpha1.DataPolicyStore)
		pod := s.place(t, 4)
		before := pod.DeepCopy()
		c.edit(&s.Pool.Spec)
		plan := s.decideWith(t, func(settings *Settings) { settings.PodResize = true })
		got := nodeCondition4(t, plan, pod.Name)
		whole := meta.FindStatusCondition(plan.Status.Pool.Conditions, v1alpha1.ConditionUpToDate)
		if got.Status != c.status || got.Reason != c.reason || whole.Status != c.status || whole.Reason != c.reason {
			t.Errorf("%s: %s %s: %s; the pool: %s %s", c.name, got.Status, got.Reason, got.Message, whole.Status, whole.Reason)
		}
		for _, words := range c.says {
			if !strings.Contains(got.Message, words) || !strings.Contains(whole.Message, words) {
				t.Errorf("%s: no %q in %q, or in %q", c.name, words, got.Message, whole.Message)
			}
		}
		patches := s.changes(t, plan, pod.Name)
		if _, found := patches[c.patched]; found != (c.patched != "" || c.name == "a toleration") || len(patches) > 1 {
			t.Errorf("%s: patches %v", c.name, patches)
		}
		if len(plan.Delete) != 0 {
			t.Errorf("%s: a pod that holds data is deleted", c.name)
		}
		if !c.unserved {
			continue
		}
		s.NodePods[pod.Name] = before
		plan = s.decide(t)
		if got = nodeCondition4(t, plan, pod.Name); got.Reason != c.unservedReason || len(plan.Amend) != 0 {
			t.Errorf("%s, where pods cannot be resized: %s: %s", c.name, got.Reason, got.Message)
		}
	}
}

// Where a pod was placed and what it runs as is compared part by part, whatever the API server and admission have added.
func TestPlacedOtherwise(t *testing.T) {
	spread := []corev1.TopologySpreadConstraint{{MaxSkew: 1, TopologyKey: "zone", WhenUnsatisfiable: corev1.DoNotSchedule}}
	affinity := &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{Weight: 7}}}}
	for name, c := range map[string]struct {
		made, wanted v1alpha1.PodOptions
		spec         func(*v1alpha1.KVPoolSpec)
		admitted     func(*corev1.PodSpec)
		says         string // empty: it does not differ
	}{
		"the same":          {},
		"a pull secret":     {spec: func(spec *v1alpha1.KVPoolSpec) { spec.ImagePullSecrets = []v1alpha1.ObjectName{"pull"} }, says: "other imagePullSecrets"},
		"a pull policy":     {spec: func(spec *v1alpha1.KVPoolSpec) { spec.ImagePullPolicy = corev1.PullAlways }, says: "pulls images by policy IfNotPresent"},
		"the usual policy":  {spec: func(spec *v1alpha1.KVPoolSpec) { spec.ImagePullPolicy = corev1.PullIfNotPresent }},
		"an unknown policy": {spec: func(spec *v1alpha1.KVPoolSpec) { spec.ImagePullPolicy = corev1.PullAlways }, admitted: func(spec *corev1.PodSpec) { spec.Containers[0].ImagePullPolicy = "" }},
		"what the API server adds": {admitted: func(spec *corev1.PodSpec) {
			spec.SchedulerName, spec.ServiceAccountName, spec.PriorityClassName = "default-scheduler", "default", "of-the-cluster"
		}},
		"a selector":                {wanted: v1alpha1.PodOptions{NodeSelector: map[string]string{"rack": "b"}}, says: "another nodeSelector"},
		"a selector no more":        {made: v1alpha1.PodOptions{NodeSelector: map[string]string{"rack": "b"}}, says: "another nodeSelector"},
		"an affinity":               {wanted: v1alpha1.PodOptions{Affinity: affinity}, says: "another affinity"},
		"an affinity no more":       {made: v1alpha1.PodOptions{Affinity: affinity}, says: "another affinity"},
		"the same affinity":         {made: v1alpha1.PodOptions{Affinity: affinity}, wanted: v1alpha1.PodOptions{Affinity: affinity}},
		"a spread":                  {wanted: v1alpha1.PodOptions{TopologySpreadConstraints: spread}, says: "other topologySpreadConstraints"},
		"the same spread":           {made: v1alpha1.PodOptions{TopologySpreadConstraints: spread}, wanted: v1alpha1.PodOptions{TopologySpreadConstraints: spread}},
		"a priority":                {wanted: v1alpha1.PodOptions{PriorityClassName: "high"}, says: "another priorityClassName"},
		"the same priority":         {made: v1alpha1.PodOptions{PriorityClassName: "high"}, wanted: v1alpha1.PodOptions{PriorityClassName: "high"}},
		"a runtime":                 {wanted: v1alpha1.PodOptions{RuntimeClassName: "crun"}, says: "another runtimeClassName"},
		"a runtime no more":         {made: v1alpha1.PodOptions{RuntimeClassName: "crun"}, says: "another runtimeClassName"},
		"a scheduler":               {wanted: v1alpha1.PodOptions{SchedulerName: "other"}, says: "another scheduler"},
		"a scheduler no more":       {made: v1alpha1.PodOptions{SchedulerName: "other"}, says: "another scheduler"},
		"the usual scheduler":       {wanted: v1alpha1.PodOptions{SchedulerName: "default-scheduler"}},
		"a service account":         {wanted: v1alpha1.PodOptions{ServiceAccountName: "other"}, says: "another serviceAccountName"},
		"a service account no more": {made: v1alpha1.PodOptions{ServiceAccountName: "other"}, says: "another serviceAccountName"},
		"the usual service account": {wanted: v1alpha1.PodOptions{ServiceAccountName: "default"}},
		"the platform's users":      {wanted: v1alpha1.PodOptions{SecurityContext: v1alpha1.PodSecurityPlatform}, says: "chooses its own user"},
		"not the platform's users":  {made: v1alpha1.PodOptions{SecurityContext: v1alpha1.PodSecurityPlatform}, says: "another user"},
		"a user of the platform": {made: v1alpha1.PodOptions{SecurityContext: v1alpha1.PodSecurityPlatform}, wanted: v1alpha1.PodOptions{SecurityContext: v1alpha1.PodSecurityPlatform}, admitted: func(spec *corev1.PodSpec) {
			spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: ptr.To(int64(1000))}
		}},
		"without any security context": {made: v1alpha1.PodOptions{}, says: "another user", admitted: func(spec *corev1.PodSpec) { spec.SecurityContext = nil }},
	} {
		s := newScene(1, v1alpha1.DataPolicyStore)
		s.Pool.Spec.Memory.Pools[0].Pod = &c.made
		pod := s.place(t, render.Newest)
		if c.admitted != nil {
			c.admitted(&pod.Spec)
		}
		delete(pod.Annotations, v1alpha1.AnnotationPodHash) // so that it is looked at in any case
		s.Pool.Spec.Memory.Pools[0].Pod = &c.wanted
		if c.spec != nil {
			c.spec(&s.Pool.Spec)
		}
		got := nodeCondition4(t, s.decide(t), pod.Name)
		if c.says == "" && got.Status != metav1.ConditionTrue || c.says != "" && (got.Reason != v1alpha1.ReasonPodDiffers || !strings.Contains(got.Message, c.says)) {
			t.Errorf("%s: %s: %s", name, got.Reason, got.Message)
		}
	}
}

// Annotations that the spec gives come to a pod that runs, and are set right if somebody has changed them. Annotations that the spec gives no more stay.
func TestAnnotationsOfTheSpec(t *testing.T) {
	s := newScene(1, v1alpha1.DataPolicyStore)
	pod := s.place(t, render.Newest)
	pod.Annotations["karpenter.sh/do-not-disrupt"], pod.Annotations["changed"], pod.Annotations["same"], pod.Annotations["others"] = "false", "by somebody", "as it is", "stays"
	s.Pool.Spec.Memory.Pools[0].Pod = &v1alpha1.PodOptions{Annotations: map[string]string{"changed": "back", "same": "as it is", "new": "", "karpenter.sh/do-not-disrupt": "false"}}
	plan := s.decide(t)
	if len(plan.Amend) != 1 || plan.Amend[0].What != "annotations" {
		t.Fatalf("%+v", plan.Amend)
	}
	if want := `{"metadata":{"annotations":{"changed":"back","new":""},"resourceVersion":"7"}}`; string(plan.Amend[0].Patch) != want {
		t.Errorf("%s, want %s", plan.Amend[0].Patch, want)
	}
	pod.Annotations["changed"], pod.Annotations["new"] = "back", ""
	if plan = s.decide(t); len(plan.Amend) != 0 {
		t.Errorf("again: %s", plan.Amend[0].Patch)
	}
}

// A pod that is as its spec says stays so with another image; one that differs goes on to differ.
func TestHashOfARestartedPod(t *testing.T) {
	for hash, want := range map[string]string{
		"had":   `{"metadata":{"annotations":{"farpool.dev/pod-hash":"has","farpool.dev/replaces":null},"resourceVersion":"7"},"spec":{"containers":[{"image":"new","name":"memory-node"}]}}`,
		"other": `{"metadata":{"annotations":{"farpool.dev/replaces":null},"resourceVersion":"7"},"spec":{"containers":[{"image":"new","name":"memory-node"}]}}`,
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "7", Annotations: map[string]string{v1alpha1.AnnotationPodHash: hash}}}
		pod.Spec.Containers = []corev1.Container{{Name: "memory-node", Image: "old"}}
		var u upToDate
		u.restart(&node{pod: pod, object: &v1alpha1.MemoryNode{Spec: v1alpha1.MemoryNodeSpec{Image: "new"}}}, "had", "has")
		if len(u.amendments) != 1 || string(u.amendments[0].Patch) != want {
			t.Errorf("%s: %s, want %s", hash, u.amendments[0].Patch, want)
		}
	}
}

// What the kubelet says of a resize is shown until it is done.
func TestResizeThatWaits(t *testing.T) {
	s := newScene(1, v1alpha1.DataPolicyStore)
	pod := s.place(t, 4)
	s.Pool.Spec.Memory.Pools[0].Resources = &v1alpha1.Resources{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("3")}}
	pod.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("3")
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodResizePending, Status: corev1.ConditionTrue, Reason: "Infeasible", Message: "Node didn't have enough capacity: cpu"}}
	plan := s.decideWith(t, func(settings *Settings) { settings.PodResize = true })
	if c := nodeCondition4(t, plan, pod.Name); c.Reason != v1alpha1.ReasonResizingInPlace || !strings.Contains(c.Message, "Infeasible: Node didn't have enough") || len(plan.Amend) != 0 {
		t.Errorf("%s: %s; %v", c.Reason, c.Message, plan.Amend)
	}
	pod.Status.Conditions = nil
	plan = s.decideWith(t, func(settings *Settings) { settings.PodResize = true })
	if c := nodeCondition4(t, plan, pod.Name); c.Status != metav1.ConditionTrue {
		t.Errorf("%s: %s", c.Reason, c.Message)
	}
}

// A pod keeps its tolerations, and gets those of the spec beside them unless it has them: how long one holds is changed in place.
func TestTolerationsOfTheSameTaints(t *testing.T) {
	has := corev1.Toleration{Key: "key", Operator: corev1.TolerationOpEqual, Value: "value", Effect: corev1.TaintEffectNoExecute, TolerationSeconds: ptr.To(int64(300))}
	for name, c := range map[string]struct {
		change func(*corev1.Toleration)
		same   bool
	}{
		"the same":                 {func(*corev1.Toleration) {}, true},
		"the same, for longer":     {func(other *corev1.Toleration) { other.TolerationSeconds = nil }, true},
		"the same, as is usual":    {func(other *corev1.Toleration) { other.Operator = "" }, true},
		"another key":              {func(other *corev1.Toleration) { other.Key = "another" }, false},
		"any value":                {func(other *corev1.Toleration) { other.Operator = corev1.TolerationOpExists }, false},
		"another value":            {func(other *corev1.Toleration) { other.Value = "another" }, false},
		"another effect":           {func(other *corev1.Toleration) { other.Effect = corev1.TaintEffectNoSchedule }, false},
		"another key and operator": {func(other *corev1.Toleration) { other.Key, other.Operator = "another", corev1.TolerationOpExists }, false},
	} {
		other := has
		c.change(&other)
		if same := ofTheSameTaints(has, other); same != c.same || ofTheSameTaints(other, has) != same {
			t.Errorf("%s: %v", name, same)
		}
	}
}

// What the kubelet says of a resize counts while it is so, whether the resize waits or goes on.
func TestWhatTheKubeletSaysOfAResize(t *testing.T) {
	for _, c := range []struct {
		kind     corev1.PodConditionType
		status   corev1.ConditionStatus
		resizing bool
	}{
		{corev1.PodResizePending, corev1.ConditionTrue, true}, {corev1.PodResizeInProgress, corev1.ConditionTrue, true}, {corev1.PodResizePending, corev1.ConditionFalse, false},
		{corev1.PodResizeInProgress, corev1.ConditionFalse, false}, {corev1.PodReady, corev1.ConditionTrue, false},
	} {
		s := newScene(1, v1alpha1.DataPolicyStore)
		pod := s.place(t, 4)
		s.Pool.Spec.Memory.Pools[0].Resources = &v1alpha1.Resources{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("3")}}
		pod.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("3")
		pod.Status.Conditions = []corev1.PodCondition{{Type: c.kind, Status: c.status}}
		plan := s.decideWith(t, func(settings *Settings) { settings.PodResize = true })
		if got := nodeCondition4(t, plan, pod.Name); (got.Reason == v1alpha1.ReasonResizingInPlace) != c.resizing {
			t.Errorf("%s %s: %+v", c.kind, c.status, got)
		}
	}
}

// Sidecars that began with another image or other limits are told about, as the operator cannot make their pods again.
func TestOutdatedSidecarsAreTold(t *testing.T) {
	s := newScene(1, v1alpha1.DataPolicyStore)
	s.withShard()
	s.Pool.Status.Sidecars = &v1alpha1.SidecarsStatus{Namespaces: []v1alpha1.SidecarNamespaceStatus{{Name: "shop", Sidecars: 3}}}
	upToDate := func() *metav1.Condition {
		return meta.FindStatusCondition(s.decide(t).Status.Pool.Conditions, v1alpha1.ConditionUpToDate)
	}
	if got := upToDate(); got.Reason != v1alpha1.ReasonCurrent {
		t.Errorf("none is outdated: %+v", got)
	}
	s.Pool.Status.Sidecars.Namespaces[0].Outdated = 2
	if got := upToDate(); got.Status != metav1.ConditionFalse || got.Reason != v1alpha1.ReasonSidecarsOutdated || !strings.Contains(got.Message, "(namespaces shop: 2 of 3)") {
		t.Errorf("two are: %+v", got)
	}
}

// Compute shards are being replaced until each Deployment has seen its change and all its pods are of it. A memory node without an object keeps nothing unsaid.
func TestWhetherEveryPodIsUpToDate(t *testing.T) {
	of := func(observed int64, replicas, updated int32) *appsv1.Deployment {
		return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "cache-shards", Generation: 2}, Status: appsv1.DeploymentStatus{ObservedGeneration: observed, Replicas: replicas, UpdatedReplicas: updated}}
	}
	for name, c := range map[string]struct {
		deployment *appsv1.Deployment
		reason     string
	}{
		"it is as it is to be":          {of(2, 3, 3), v1alpha1.ReasonCurrent},
		"it has not seen the change":    {of(1, 3, 3), v1alpha1.ReasonComputeRollingOut},
		"one pod is of before":          {of(2, 3, 2), v1alpha1.ReasonComputeRollingOut},
		"it has more of it than before": {of(3, 2, 3), v1alpha1.ReasonCurrent},
		"there is none":                 {nil, v1alpha1.ReasonCurrent},
	} {
		s := newScene(1, v1alpha1.DataPolicyStore)
		s.withShard()
		s.Deployments = map[string]*appsv1.Deployment{}
		if c.deployment != nil {
			s.Deployments["cache-shards"] = c.deployment
		}
		if got := meta.FindStatusCondition(s.decide(t).Status.Pool.Conditions, v1alpha1.ConditionUpToDate); got.Reason != c.reason {
			t.Errorf("%s: %+v", name, got)
		}
	}
	s := newScene(2, v1alpha1.DataPolicyStore)
	s.placeOne(t, 4, "cache-memory-1")
	s.Pool.Spec.Memory.Pools[0].Pod = &v1alpha1.PodOptions{NodeSelector: map[string]string{"rack": "b"}}
	delete(s.Nodes, "cache-memory-0")
	wantCondition(t, s.decide(t), v1alpha1.ConditionUpToDate, metav1.ConditionFalse, v1alpha1.ReasonPodDiffers)
}

// A pod whose resources were changed in place was made from the spec that an edit comes back to: it gets them back all the same. What others have added when the
// pod was made stays.
func TestResourcesThatAnEditTakesBack(t *testing.T) {
	s := newScene(1, v1alpha1.DataPolicyStore)
	pod := s.place(t, render.Newest)
	requests := pod.Spec.Containers[0].Resources.Requests
	made := requests[corev1.ResourceCPU]
	requests[corev1.ResourceCPU] = resource.MustParse("3")
	pod.Spec.Containers[0].Resources.Limits["cpu"] = resource.MustParse("8")
	patch := func(resizes bool) string {
		plan := s.decideWith(t, func(settings *Settings) { settings.PodResize = resizes })
		content, err := json.Marshal(s.changes(t, plan, pod.Name))
		if err != nil {
			t.Fatal(err)
		}
		return string(content)
	}
	if want := `{"resize":{"containers":[{"name":"memory-node","resources":{"requests":{"cpu":"` + made.String() + `"}}}]}}`; patch(true) != want {
		t.Errorf("the patch is %s, want %s", patch(true), want)
	}
	if none := patch(false); none != "{}" {
		t.Errorf("where pods cannot be resized: %s", none)
	}
	requests[corev1.ResourceCPU] = made
	if none := patch(true); none != "{}" {
		t.Errorf("once it has them back: %s", none)
	}
}

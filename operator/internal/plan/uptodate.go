// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"

	"farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/observe"
	"farpool.dev/farpool/operator/internal/render"
	"farpool.dev/farpool/operator/internal/shardmap"
)

// Amendment changes what may be changed of a pod that runs.
type Amendment struct {
	Pod *corev1.Pod
	// Subresource is the part of the pod that is patched; empty: the pod itself.
	Subresource string
	// Patch is a strategic merge patch.
	Patch []byte
	// What tells people what changes.
	What string
}

// upToDate is what an edit of the spec means for the pod of a memory node.
type upToDate struct {
	amendments []Amendment
	// differences says in words what stays different.
	differences []string
	// resizing says that the operator has asked for other resources, and how far that is; empty: no resize is under way.
	resizing string
	// unserved says that the API server cannot resize pods.
	unserved bool
}

// HowToRenew tells people how a memory node that runs gets what an edit asks for.
const HowToRenew = "A memory node keeps what it was started with for as long as its memory lasts, and a pod that is made again starts with what the spec says now. To keep the keys, cordon its Kubernetes node (kubectl cordon): its keys move to other memory nodes, and then it is made again elsewhere. Deleting its pod is faster, and loses what it holds"

// rendered is the pod that a memory node with an object would get now. The object's own image and template count.
func (d *decision) rendered(n *node) (*corev1ac.PodApplyConfiguration, error) {
	if n.wantedPod != nil {
		return n.wantedPod, nil
	}
	pod, err := d.renderedWith(n, n.object.Spec.Image)
	n.wantedPod = pod
	return pod, err
}

func (d *decision) renderedWith(n *node, image string) (*corev1ac.PodApplyConfiguration, error) {
	frozen := d.pool
	frozen.Image = image
	template, err := render.TemplateOf(n.object.Spec.TemplateVersion)
	if err != nil {
		return nil, err
	}
	return template.MemoryPod(frozen, *n.pool, n.name, n.object.UID)
}

// compare compares a memory node's pod with what the spec says now. It compares only pods that have found a place: other pods are made anew.
func (d *decision) compare(n *node) upToDate {
	var u upToDate
	if n.pod == nil || n.object == nil || !n.pod.DeletionTimestamp.IsZero() || !observe.Placed(n.pod) {
		return u
	}
	wanted, err := d.rendered(n)
	if image := imageInPod(n.pod); err == nil && image != "" && image != n.object.Spec.Image {
		// It is compared with what it should be with the image that it has.
		var with *corev1ac.PodApplyConfiguration
		if with, err = d.renderedWith(n, image); err == nil {
			if d.upgrade.restarts == n {
				u.restart(n, *podHash(with), *podHash(wanted))
			}
			wanted = with
		}
	}
	if err != nil {
		return u // another finding says so
	}
	u.outlast(n.pod, wanted.Spec, n.pool.Pod.OrNone().Annotations)
	// A pod that was made from this very spec may have other resources since, in place, from an edit that was taken back.
	asMade := n.pod.Annotations[v1alpha1.AnnotationPodHash] == *podHash(wanted)
	if len(n.pod.Spec.Containers) == 0 || asMade && !d.Settings.PodResize {
		return u
	}
	u.resize(d.Settings.PodResize, n.pod, wanted.Spec, asMade)
	if asMade {
		return u
	}
	has, wants := &n.pod.Spec.Containers[0], &wanted.Spec.Containers[0]
	if !slices.Equal(has.Args, wants.Args) {
		u.differences = append(u.differences, "it was started with "+onlyIn(has.Args, wants.Args)+" and the spec gives "+onlyIn(wants.Args, has.Args))
	}
	if wanted := wants.ImagePullPolicy; wanted != nil && has.ImagePullPolicy != "" && has.ImagePullPolicy != *wanted {
		u.differences = append(u.differences, fmt.Sprintf("its pod pulls images by policy %s", has.ImagePullPolicy))
	}
	u.differences = append(u.differences, placedOtherwise(&n.pod.Spec, wanted.Spec)...)
	return u
}

// placedOtherwise says in words which parts of a pod's spec, beside its container, would be others now. Where nothing is wanted, a pod may have what the
// cluster gives to every pod.
func placedOtherwise(has *corev1.PodSpec, applied *corev1ac.PodSpecApplyConfiguration) (differences []string) {
	content, err := json.Marshal(applied)
	wants := &corev1.PodSpec{}
	if err == nil {
		err = json.Unmarshal(content, wants)
	}
	if err != nil {
		return nil // what is applied has been written as JSON before
	}
	user := func(spec *corev1.PodSpec) *int64 {
		if spec.SecurityContext == nil {
			return nil
		}
		return spec.SecurityContext.RunAsUser
	}
	for _, part := range []struct {
		differs bool
		words   string
	}{
		{!equality.Semantic.DeepEqual(has.NodeSelector, wants.NodeSelector), "its pod was placed by another nodeSelector"},
		{!equality.Semantic.DeepEqual(has.Affinity, wants.Affinity), "its pod was placed by another affinity"},
		{!equality.Semantic.DeepEqual(has.TopologySpreadConstraints, wants.TopologySpreadConstraints), "its pod was placed by other topologySpreadConstraints"},
		{wants.PriorityClassName != "" && has.PriorityClassName != wants.PriorityClassName, "its pod has another priorityClassName"},
		{!equality.Semantic.DeepEqual(has.RuntimeClassName, wants.RuntimeClassName), "its pod has another runtimeClassName"},
		{cmp.Or(has.SchedulerName, corev1.DefaultSchedulerName) != cmp.Or(wants.SchedulerName, corev1.DefaultSchedulerName), "its pod was placed by another scheduler"},
		{cmp.Or(has.ServiceAccountName, defaultServiceAccount) != cmp.Or(wants.ServiceAccountName, defaultServiceAccount), "its pod has another serviceAccountName"},
		{!equality.Semantic.DeepEqual(has.ImagePullSecrets, wants.ImagePullSecrets), "its pod has other imagePullSecrets"},
		{user(wants) != nil && !equality.Semantic.DeepEqual(user(has), user(wants)), "its pod runs as another user"},
		{user(wants) == nil && user(has) != nil && *user(has) == render.ManagedUser, "its pod chooses its own user"},
	} {
		if part.differs {
			differences = append(differences, part.words)
		}
	}
	return differences
}

// defaultServiceAccount is the one that pods have which name none.
const defaultServiceAccount = "default"

// restart gives a pod the image of its MemoryNode. The kubelet then restarts the container, and the pod keeps its volumes. The pod notes which process goes: until
// another one answers, the memory node counts as away.
func (u *upToDate) restart(n *node, had, has string) {
	annotations := map[string]any{v1alpha1.AnnotationReplaces: nil}
	if facts := n.agent.Facts; facts != nil {
		annotations[v1alpha1.AnnotationReplaces] = shardmap.FormatIncarnation(facts.GetIncarnation())
	}
	if n.pod.Annotations[v1alpha1.AnnotationPodHash] == had {
		annotations[v1alpha1.AnnotationPodHash] = has
	}
	u.amend(n.pod, "", "image", map[string]any{
		"metadata": map[string]any{"annotations": annotations},
		"spec":     map[string]any{"containers": []any{map[string]any{"name": n.pod.Spec.Containers[0].Name, "image": n.object.Spec.Image}}},
	})
}

func podHash(pod *corev1ac.PodApplyConfiguration) *string {
	hash := pod.Annotations[v1alpha1.AnnotationPodHash]
	return &hash
}

// onlyIn lists what some arguments have and others have not.
func onlyIn(some, others []string) string {
	var only []string
	for _, argument := range some {
		if !slices.Contains(others, argument) {
			only = append(only, argument)
		}
	}
	if len(only) == 0 {
		return "none of these flags"
	}
	return strings.Join(only, " ")
}

// outlast gives a pod of an earlier operator what makes it stay where it is: annotations for autoscalers, unless a person has set others, and tolerations. A pod also
// gets the annotations that the spec gives.
func (u *upToDate) outlast(pod *corev1.Pod, wanted *corev1ac.PodSpecApplyConfiguration, given map[string]string) {
	patch := map[string]any{}
	var what []string
	annotations := map[string]any{}
	for key, value := range render.NotToBeTaken() {
		if _, has := pod.Annotations[key]; !has {
			annotations[key] = value
		}
	}
	for key, value := range given {
		if has, there := pod.Annotations[key]; !there || has != value {
			annotations[key] = value
		}
	}
	if len(annotations) > 0 {
		patch["metadata"] = map[string]any{"annotations": annotations}
		what = append(what, "annotations")
	}
	if tolerations, differ := u.tolerate(pod, wanted); differ {
		patch["spec"] = map[string]any{"tolerations": tolerations}
		what = append(what, "tolerations")
	}
	if len(what) > 0 {
		u.amend(pod, "", strings.Join(what, " and "), patch)
	}
}

// tolerate adds the tolerations that the spec has now. A pod of an earlier operator tolerates Kubernetes nodes that are not ready or not reachable for 300 s,
// which the API server adds to pods that say nothing about them.
func (u *upToDate) tolerate(pod *corev1.Pod, wanted *corev1ac.PodSpecApplyConfiguration) (tolerations []corev1.Toleration, differ bool) {
	wants := render.Outlasting(wanted.Tolerations)
	now := slices.Clone(pod.Spec.Tolerations)
	for _, toleration := range wants {
		at := slices.IndexFunc(now, func(other corev1.Toleration) bool { return ofTheSameTaints(other, toleration) })
		if at < 0 {
			now = append(now, toleration)
		} else {
			now[at].TolerationSeconds = toleration.TolerationSeconds
		}
	}
	for _, toleration := range pod.Spec.Tolerations {
		wanted := slices.ContainsFunc(wants, func(other corev1.Toleration) bool { return ofTheSameTaints(other, toleration) })
		if !wanted && !addedByKubernetes(pod, toleration) {
			u.differences = append(u.differences, fmt.Sprintf("its pod tolerates %s, and the spec no longer does", orElse(toleration.Key, "every taint")))
		}
	}
	return now, !equality.Semantic.DeepEqual(now, pod.Spec.Tolerations)
}

// ofTheSameTaints says whether two tolerations concern the same taints, for however long.
func ofTheSameTaints(a, b corev1.Toleration) bool {
	return a.Key == b.Key && operatorOf(a) == operatorOf(b) && a.Value == b.Value && a.Effect == b.Effect
}

func operatorOf(toleration corev1.Toleration) corev1.TolerationOperator {
	if toleration.Operator == "" {
		return corev1.TolerationOpEqual
	}
	return toleration.Operator
}

// addedByKubernetes says whether an admission plugin gives a pod this toleration by itself.
func addedByKubernetes(pod *corev1.Pod, toleration corev1.Toleration) bool {
	if strings.HasPrefix(toleration.Key, "node.kubernetes.io/") {
		return true
	}
	_, extended := pod.Spec.Containers[0].Resources.Requests[corev1.ResourceName(toleration.Key)]
	return extended
}

// resize resizes a pod in place, if the API server can. Processors and memory of a container may change while it runs. In a pod that was made from this very spec,
// resources that the spec does not name were added by others.
func (u *upToDate) resize(served bool, pod *corev1.Pod, wanted *corev1ac.PodSpecApplyConfiguration, asMade bool) {
	has, wants := pod.Spec.Containers[0].Resources, wanted.Containers[0].Resources
	requests, requested := differing(has.Requests, *wants.Requests, asMade)
	limits, limited := differing(has.Limits, *wants.Limits, asMade)
	if !requested && !limited {
		for _, c := range pod.Status.Conditions {
			if (c.Type == corev1.PodResizePending || c.Type == corev1.PodResizeInProgress) && c.Status == corev1.ConditionTrue {
				u.resizing = fmt.Sprintf("its resources are being changed in place%s", after(": ", strings.TrimPrefix(c.Reason+": "+c.Message, ": ")))
			}
		}
		return
	}
	if !served {
		u.unserved = true
		u.differences = append(u.differences, "its pod has other resources, and this cluster's API server cannot resize pods (it does from Kubernetes 1.33 on)")
		return
	}
	resources := map[string]any{}
	if requested {
		resources["requests"] = requests
	}
	if limited {
		resources["limits"] = limits
	}
	u.resizing = "its resources are being changed in place"
	u.amend(pod, "resize", "resources", map[string]any{"spec": map[string]any{"containers": []any{
		map[string]any{"name": pod.Spec.Containers[0].Name, "resources": resources},
	}}})
}

// differing are processors and memory that the spec wants and the pod lacks. It is null for resources that the pod has and nobody wants, unless others may have added
// them.
func differing(has, wants corev1.ResourceList, othersMay bool) (patch map[string]any, differ bool) {
	patch = map[string]any{}
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		have, there := has[name]
		want, wanted := wants[name]
		switch {
		case wanted && (!there || have.Cmp(want) != 0):
			patch[string(name)] = want.String()
		case !wanted && there && !othersMay:
			patch[string(name)] = nil
		}
	}
	return patch, len(patch) > 0
}

func (u *upToDate) amend(pod *corev1.Pod, subresource, what string, patch map[string]any) {
	metadata, _ := patch["metadata"].(map[string]any)
	if metadata == nil {
		metadata = map[string]any{}
	}
	// If the pod has changed since, the API server refuses the patch.
	metadata["resourceVersion"] = pod.ResourceVersion
	patch["metadata"] = metadata
	content, err := json.Marshal(patch)
	if err != nil {
		return // the patch consists of strings and tolerations
	}
	u.amendments = append(u.amendments, Amendment{Pod: pod, Subresource: subresource, Patch: content, What: what})
}

// amend changes the pods of memory nodes as far as pods that run can be changed.
func (d *decision) amend() {
	for _, n := range d.nodes {
		d.Amend = append(d.Amend, d.compare(n).amendments...)
	}
}

// nodeUpToDate is a MemoryNode's condition.
func (d *decision) nodeUpToDate(n *node) metav1.Condition {
	const kind = v1alpha1.ConditionUpToDate
	u := d.compare(n)
	switch {
	case d.behind(n):
		return condition(kind, metav1.ConditionFalse, v1alpha1.ReasonUpgrading, "it has image %s, and gets %s in its turn", n.object.Spec.Image, d.pool.Image)
	case imageInPod(n.pod) != "" && (imageInPod(n.pod) != n.object.Spec.Image || n.replaced()):
		return condition(kind, metav1.ConditionFalse, v1alpha1.ReasonUpgrading, "it restarts with image %s", n.object.Spec.Image)
	case n.pod == nil || !observe.Placed(n.pod) || !n.pod.DeletionTimestamp.IsZero():
		return condition(kind, metav1.ConditionTrue, v1alpha1.ReasonCurrent, "its pod is made as the spec says")
	case u.unserved && len(u.differences) == 1:
		return condition(kind, metav1.ConditionFalse, v1alpha1.ReasonResizeUnsupported, "%s. %s", u.differences[0], HowToRenew)
	case len(u.differences) > 0:
		return condition(kind, metav1.ConditionFalse, v1alpha1.ReasonPodDiffers, "%s. %s", strings.Join(u.differences, "; "), HowToRenew)
	case u.resizing != "":
		return condition(kind, metav1.ConditionFalse, v1alpha1.ReasonResizingInPlace, "%s", u.resizing)
	}
	return condition(kind, metav1.ConditionTrue, v1alpha1.ReasonCurrent, "its pod is as the spec says")
}

// poolUpToDate says which pods differ from the spec, and what to do about it.
func (d *decision) poolUpToDate() metav1.Condition {
	const kind = v1alpha1.ConditionUpToDate
	if c := d.upgradeCondition(); c != nil {
		return *c
	}
	var differ, resizing []string
	first := ""
	for _, n := range d.nodes {
		if n.object == nil {
			continue
		}
		c := d.nodeUpToDate(n)
		switch {
		case c.Status == metav1.ConditionTrue:
		case c.Reason == v1alpha1.ReasonUpgrading:
		case c.Reason == v1alpha1.ReasonResizingInPlace:
			resizing = append(resizing, fmt.Sprintf("%s (%s)", n.name, c.Message))
		default:
			differ = append(differ, n.name)
			if first == "" {
				first = c.Message
			}
		}
	}
	var rolling []string
	for _, computePool := range d.pool.ComputePools() {
		deployment := d.Deployments[d.pool.ComputeName(computePool.Name)]
		if deployment != nil && (deployment.Status.ObservedGeneration < deployment.Generation || deployment.Status.UpdatedReplicas < deployment.Status.Replicas) {
			rolling = append(rolling, deployment.Name)
		}
	}
	switch {
	case len(differ) > 0:
		return condition(kind, metav1.ConditionFalse, v1alpha1.ReasonPodDiffers, "memory nodes do not run as the spec says (%s): %s", some(differ), first)
	case len(resizing) > 0:
		return condition(kind, metav1.ConditionFalse, v1alpha1.ReasonResizingInPlace, "memory nodes: %s", some(resizing))
	case len(rolling) > 0:
		return condition(kind, metav1.ConditionFalse, v1alpha1.ReasonComputeRollingOut, "compute shards are being replaced (Deployments %s)", some(rolling))
	}
	if c := d.passwordChanging(); c != nil {
		return *c
	}
	if outdated := d.outdatedSidecars(); len(outdated) > 0 {
		return condition(kind, metav1.ConditionFalse, v1alpha1.ReasonSidecarsOutdated,
			"sidecars serve with an earlier image or earlier spec.limits (namespaces %s): make their pods again, for instance with kubectl -n NAMESPACE rollout restart", some(outdated))
	}
	return condition(kind, metav1.ConditionTrue, v1alpha1.ReasonCurrent, "every pod is as the spec says")
}

// outdatedSidecars lists the namespaces that have some, with their numbers.
func (d *decision) outdatedSidecars() []string {
	var namespaces []string
	if sidecars := d.Pool.Status.Sidecars; sidecars != nil {
		for _, entry := range sidecars.Namespaces {
			if entry.Outdated > 0 {
				namespaces = append(namespaces, fmt.Sprintf("%s: %d of %d", entry.Name, entry.Outdated, entry.Sidecars))
			}
		}
	}
	return namespaces
}

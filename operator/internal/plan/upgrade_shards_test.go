// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	farpoolv1alpha1 "farpool.dev/farpool/api/gen/farpool/v1alpha1"
	"farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/agent"
	"farpool.dev/farpool/operator/internal/observe"
	"farpool.dev/farpool/operator/internal/render"
)

// upgrading is a decision about a pool that gets the new image: memory nodes a and b are in its map and run the old one, and its compute shard runs the new one.
func upgrading() *decision {
	d := &decision{Input: Input{Snapshot: &observe.Snapshot{Agents: map[types.UID]agent.Observation{}, Deployments: map[string]*appsv1.Deployment{}}}}
	d.pool = render.Pool{Name: "cache", Image: newImage, Spec: v1alpha1.KVPoolSpec{Compute: &v1alpha1.ComputeSpec{}}}
	d.epochs.current = &v1alpha1.ShardMapSpec{Epoch: 5}
	for _, name := range []string{"a", "b"} {
		d.epochs.current.Nodes = append(d.epochs.current.Nodes, v1alpha1.ShardMapNode{Name: name})
		d.nodes = append(d.nodes, &node{name: name, object: &v1alpha1.MemoryNode{Spec: v1alpha1.MemoryNodeSpec{Image: oldImage}, Status: v1alpha1.MemoryNodeStatus{Image: oldImage}},
			pod: podOf(name, oldImage), agent: agent.Observation{State: agent.Connected, Facts: &farpoolv1alpha1.Facts{Versions: remembers(7)}}})
	}
	d.addComputePool("shards", 1)
	d.addShard("shard", newImage, versions(3, 4, 7, 8))
	return d
}

func podOf(name, image string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Image: image}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning}}
}

// remembers is what a memory node speaks whose memory has a format.
func remembers(format uint32) *farpoolv1alpha1.Versions {
	speaks := versions(3, 4, 7, 7)
	speaks.MemoryFormat = format
	return speaks
}

// addComputePool gives the pool a compute pool that has rolled the new image out.
func (d *decision) addComputePool(name string, replicas int32) {
	d.pool.Spec.Compute.Pools = append(d.pool.Spec.Compute.Pools, v1alpha1.ComputePool{Name: name, Replicas: replicas})
	deployment := &appsv1.Deployment{Status: appsv1.DeploymentStatus{Replicas: replicas, UpdatedReplicas: replicas, ReadyReplicas: replicas}}
	deployment.Spec.Template.Spec.Containers = []corev1.Container{{Image: newImage}}
	d.Deployments[d.pool.ComputeName(name)] = deployment
}

// addShard gives the pool a compute shard that is ready and follows its map.
func (d *decision) addShard(name, image string, speaks *farpoolv1alpha1.Versions) *corev1.Pod {
	pod := podOf(name, image)
	d.ComputePods = append(d.ComputePods, pod)
	d.Agents[pod.UID] = agent.Observation{State: agent.Connected, Facts: &farpoolv1alpha1.Facts{Epoch: 5, Ready: true, Version: "2", Versions: speaks}}
	return pod
}

func TestWhichComputeShardsShowAnImage(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*decision)
		says   string
	}{
		"all of them run it":          {func(*decision) {}, ""},
		"two compute pools run it":    {func(d *decision) { d.addComputePool("more", 2) }, ""},
		"one that goes does not":      {func(d *decision) { d.addShard("old", oldImage, nil).DeletionTimestamp = &metav1.Time{} }, ""},
		"one that has ended does not": {func(d *decision) { d.addShard("old", oldImage, nil).Status.Phase = corev1.PodFailed }, ""},
		"one that stays does not":     {func(d *decision) { d.addShard("old", oldImage, nil) }, "waiting until compute shard old is replaced"},
		"one that stays after one that goes": {func(d *decision) {
			d.ComputePods[0].DeletionTimestamp = &metav1.Time{}
			d.addShard("old", oldImage, nil)
		}, "waiting until compute shard old is replaced"},
		"a compute pool without a replica comes first": {func(d *decision) {
			d.pool.Spec.Compute.Pools[0].Replicas = 0
			d.addComputePool("more", 1)
		}, ""},
		"only a compute pool without a replica": {func(d *decision) { d.pool.Spec.Compute.Pools[0].Replicas = 0 }, "the pool has no compute shard"},
		"a compute pool has no pods yet":        {func(d *decision) { d.Deployments["cache-shards"].Status = appsv1.DeploymentStatus{} }, "waiting until compute pool shards runs it"},
	} {
		d := upgrading()
		c.change(d)
		if says := d.shown(); !strings.HasPrefix(says, c.says) || (says == "") != (c.says == "") {
			t.Errorf("%s: %q, want %q", name, says, c.says)
		}
	}
}

// Only what answers is compared, each compute shard that runs the image with each memory node of the map.
func TestWhichProcessesAreCompared(t *testing.T) {
	tooNew := versions(3, 4, 9, 9)
	for name, c := range map[string]struct {
		change func(*decision)
		says   string
	}{
		"all agree":                        {func(*decision) {}, ""},
		"a compute shard of another image": {func(d *decision) { d.addShard("other", oldImage, tooNew) }, ""},
		"a compute shard after one of another": {func(d *decision) {
			d.ComputePods[0].Spec.Containers[0].Image = oldImage
			d.addShard("second", newImage, tooNew)
		}, "memory node a:"},
		"a compute shard that has become silent": {func(d *decision) { d.Agents[d.addShard("silent", newImage, tooNew).UID] = silentWith(tooNew) }, ""},
		"the last memory node":                   {func(d *decision) { d.nodes[1].agent.Facts.Versions = remembers(6) }, "memory node b:"},
		"the last memory node, after one outside": {func(d *decision) {
			d.epochs.current.Nodes = d.epochs.current.Nodes[1:]
			d.nodes[1].agent.Facts.Versions = remembers(6)
		}, "memory node b:"},
		"a memory node outside the map": {func(d *decision) {
			d.epochs.current.Nodes = d.epochs.current.Nodes[:1]
			d.nodes[1].agent.Facts.Versions = remembers(6)
		}, ""},
		"a memory node that has become silent": {func(d *decision) { d.nodes[1].agent = silentWith(remembers(6)) }, ""},
	} {
		d := upgrading()
		c.change(d)
		switch trouble := d.unsuited(); {
		case (trouble == nil) != (c.says == ""):
			t.Errorf("%s: %+v, want %q", name, trouble, c.says)
		case trouble != nil && (trouble.reason != v1alpha1.ReasonUpgradeRefused || !strings.Contains(trouble.message, c.says)):
			t.Errorf("%s: %+v, want %q", name, trouble, c.says)
		}
	}
}

// silentWith is an agent that answers no more, and what it said before.
func silentWith(speaks *farpoolv1alpha1.Versions) agent.Observation {
	return agent.Observation{State: agent.Unreachable, Facts: &farpoolv1alpha1.Facts{Versions: speaks}}
}

func TestAnImageAgreesUpToItsLimits(t *testing.T) {
	for name, c := range map[string]struct {
		image *farpoolv1alpha1.Versions
		why   string
	}{
		"its oldest format":                {versions(3, 4, 7, 9), ""},
		"its newest format":                {versions(3, 4, 5, 7), ""},
		"a format before its oldest":       {versions(3, 4, 8, 9), "takes up memory formats 8 to 9, and not format 7"},
		"a format after its newest":        {versions(3, 4, 5, 6), "takes up memory formats 5 to 6, and not format 7"},
		"its oldest protocol":              {versions(4, 6, 7, 7), ""},
		"its newest protocol":              {versions(1, 3, 7, 7), ""},
		"protocols all before its oldest":  {versions(5, 6, 7, 7), "speaks protocol versions 5 to 6, and none of 3 to 4"},
		"protocols that are all too young": {versions(1, 2, 7, 7), "speaks protocol versions 1 to 2, and none of 3 to 4"},
	} {
		if why := disagreement(c.image, remembers(7)); why != c.why {
			t.Errorf("%s: %q, want %q", name, why, c.why)
		}
	}
	if why := disagreement(versions(5, 6, 8, 9), nil); why != "" {
		t.Errorf("a memory node that tells no versions: %q", why)
	}
}

// The way back is to the image of a memory node that is known to have served with another one.
func TestTheWayBackIsToAnImageThatServed(t *testing.T) {
	const unknown = "Name another image in spec.version or spec.image"
	back := "Memory nodes run " + oldImage + ": name that in spec.version or spec.image to go back, or another one that works"
	for name, c := range map[string]struct {
		change func(first *node)
		next   string
		want   string
	}{
		"the first has served with it":        {func(*node) {}, newImage, back},
		"the first has no object":             {func(n *node) { n.object = nil }, oldImage, back},
		"the first has not served yet":        {func(n *node) { n.object.Status.Image = "" }, oldImage, back},
		"the first has the pool's image":      {func(n *node) { n.object.Status.Image = newImage }, oldImage, back},
		"none has an object that says so":     {func(n *node) { n.object = nil }, "", unknown},
		"none has served with any":            {func(n *node) { n.object.Status.Image = "" }, "", unknown},
		"all of them have the pool's already": {func(n *node) { n.object.Status.Image = newImage }, newImage, unknown},
	} {
		d := upgrading()
		c.change(d.nodes[0])
		d.nodes[1].object.Status.Image = c.next
		if way := d.wayBack(); way != c.want {
			t.Errorf("%s: %q, want %q", name, way, c.want)
		}
	}
}

func TestWhichContainerFails(t *testing.T) {
	running := corev1.ContainerStatus{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}
	waiting := func(reason, message string) corev1.ContainerStatus {
		return corev1.ContainerStatus{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}}
	}
	for name, c := range map[string]struct {
		containers []corev1.ContainerStatus
		why        string
	}{
		"none is known":                 {nil, ""},
		"both run":                      {[]corev1.ContainerStatus{running, running}, ""},
		"the second, beside one":        {[]corev1.ContainerStatus{running, waiting("ErrImagePull", "not found")}, "ErrImagePull: not found"},
		"the second, after a slow one":  {[]corev1.ContainerStatus{waiting("ContainerCreating", ""), waiting("ErrImagePull", "")}, "ErrImagePull"},
		"it waits, and nobody says why": {[]corev1.ContainerStatus{waiting("", "")}, ""},
	} {
		if why := failing(&corev1.Pod{Status: corev1.PodStatus{ContainerStatuses: c.containers}}); why != c.why {
			t.Errorf("%s: %q, want %q", name, why, c.why)
		}
	}
}

func TestTheMemoryNodesThatRunAnImageAreCounted(t *testing.T) {
	for has, want := range map[[2]string]string{
		{oldImage, oldImage}: "0 of 2 memory nodes run " + newImage,
		{newImage, oldImage}: "1 of 2 memory nodes run " + newImage,
		{newImage, newImage}: "2 of 2 memory nodes run " + newImage,
	} {
		d := upgrading()
		d.nodes = append(d.nodes, &node{name: "outside"})
		d.Status.Nodes = map[string]v1alpha1.MemoryNodeStatus{"a": {Image: has[0]}, "b": {Image: has[1]}, "outside": {Image: newImage}}
		if words := d.upgradeWords(); words != want {
			t.Errorf("%v: %q, want %q", has, words, want)
		}
	}
}

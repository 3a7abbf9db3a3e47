// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"encoding/json"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/utils/ptr"

	farpoolv1alpha1 "farpool.dev/farpool/api/gen/farpool/v1alpha1"
	"farpool.dev/farpool/api/v1alpha1"
	apiac "farpool.dev/farpool/api/v1alpha1/applyconfiguration/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/agent"
	"farpool.dev/farpool/operator/internal/render"
	"farpool.dev/farpool/operator/internal/shardmap"
)

const (
	oldImage = "farpool/dataplane:old"
	newImage = "farpool/dataplane:new"
)

// upgraded is a scene whose pods come from templates, and whose memory nodes all serve with the old image.
type upgraded struct {
	*scene
	lives uint64
}

func newUpgrade(t *testing.T, nodes int) *upgraded {
	t.Helper()
	u := &upgraded{scene: newScene(nodes, v1alpha1.DataPolicyStore), lives: 1000}
	for name := range u.Nodes {
		u.placeOne(t, render.Newest, name)
	}
	u.withShard()
	u.Deployments["cache-shards"].Spec.Template.Spec.Containers = []corev1.Container{{Name: "compute-shard"}}
	u.roll(oldImage, versions(3, 4, 7, 7))
	for range 3 {
		u.settle(t)
	}
	for name, node := range u.Nodes {
		if node.Status.Image != oldImage {
			t.Fatalf("memory node %s has served with %q", name, node.Status.Image)
		}
	}
	return u
}

func versions(oldestProtocol, newestProtocol, oldestFormat, newestFormat uint32) *farpoolv1alpha1.Versions {
	return &farpoolv1alpha1.Versions{OldestProtocol: oldestProtocol, NewestProtocol: newestProtocol, OldestMemoryFormat: oldestFormat, NewestMemoryFormat: newestFormat}
}

// roll makes the one compute shard one of an image, that is ready and follows the newest map.
func (u *upgraded) roll(image string, speaks *farpoolv1alpha1.Versions) {
	u.Deployments["cache-shards"].Spec.Template.Spec.Containers[0].Image = image
	u.ComputePods = []*corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Name: "shard", UID: "shard"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Image: image}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.0.1.1"}}}
	u.Agents["shard"] = agent.Observation{State: agent.Connected, Facts: &farpoolv1alpha1.Facts{PoolUid: "uid", Role: farpoolv1alpha1.Role_ROLE_COMPUTE_SHARD, Name: "shard", Incarnation: 9,
		Version: "2", Epoch: 1 << 20, Ready: true, Versions: speaks, ComputeShard: &farpoolv1alpha1.ComputeShardFacts{}}}
}

// settle decides, and carries the decision out: objects and pods change, and the containers of pods with another image start again if starts says so.
func (u *upgraded) settle(t *testing.T) *decision {
	return u.settleIf(t, func(string) bool { return true })
}

func (u *upgraded) settleIf(t *testing.T, starts func(image string) bool) *decision {
	t.Helper()
	d := u.decide(t)
	u.carryOut(t, &d.Plan)
	for _, object := range d.Apply {
		if node, is := object.(*apiac.MemoryNodeApplyConfiguration); is {
			u.Nodes[*node.Name].Spec.Image = *node.Spec.Image
		}
	}
	for _, amendment := range d.Amend {
		var patch struct {
			Metadata struct{ Annotations map[string]string }
			Spec     struct{ Containers []corev1.Container }
		}
		if err := json.Unmarshal(amendment.Patch, &patch); err != nil {
			t.Fatal(err)
		}
		if amendment.What != "image" || len(patch.Spec.Containers) != 1 || patch.Spec.Containers[0].Name != "memory-node" {
			t.Fatalf("pod %s: %s", amendment.Pod.Name, amendment.Patch)
		}
		pod := u.NodePods[amendment.Pod.Name]
		pod.Spec.Containers[0].Image = patch.Spec.Containers[0].Image
		for key, value := range patch.Metadata.Annotations {
			pod.Annotations[key] = value
		}
		if starts(imageInPod(pod)) {
			u.restart(pod)
		} else {
			u.crash(pod)
		}
	}
	return d
}

// restart makes a pod's process another one with the same memory.
func (u *upgraded) restart(pod *corev1.Pod) {
	u.lives++
	pod.Status.ContainerStatuses = nil
	held := u.Agents[pod.UID].Facts.GetMemoryNode().GetMap()
	u.answer(pod.Name, u.lives, held)
	facts := u.Agents[pod.UID].Facts
	facts.Epoch, facts.Ready, facts.MemoryNode.MemoryFresh, facts.MemoryNode.RecordedEpoch = 0, false, false, held.GetEpoch()
}

func (u *upgraded) crash(pod *corev1.Pod) {
	u.silence(pod.Name)
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}},
		LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Message: "the memory that it found has format 9"}}}}
}

// images lists what the pods of memory nodes have, in their order: o or n.
func (u *upgraded) images() string {
	has := ""
	for i := range len(u.NodePods) {
		switch imageInPod(u.NodePods[v1alpha1.MemoryNodeName("cache", "memory", int32(i))]) {
		case oldImage:
			has += "o"
		case newImage:
			has += "n"
		default:
			has += "?"
		}
	}
	return has
}

func said(d *decision) string {
	return meta.FindStatusCondition(d.Status.Pool.Conditions, v1alpha1.ConditionUpToDate).Message
}

func wantSaid(t *testing.T, d *decision, reason, part string) {
	t.Helper()
	wantCondition(t, d, v1alpha1.ConditionUpToDate, metav1.ConditionFalse, reason)
	if !strings.Contains(said(d), part) {
		t.Errorf("it says %q, not %q", said(d), part)
	}
}

func events(d *decision, reason string) (count int) {
	for _, event := range d.Status.Events {
		if event.Reason == reason {
			count++
		}
	}
	return count
}

// A pod whose process has yet to be replaced gets no other image: the kubelet could see the first one again and leave that process alone.
func TestAPodGetsOneImageAfterTheOther(t *testing.T) {
	running := corev1.ContainerStatus{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}
	waiting := corev1.ContainerStatus{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff"}}}
	for name, c := range map[string]struct {
		image, replaces string
		status          corev1.ContainerStatus
		may             bool
	}{
		"another image":                           {oldImage, "", running, true},
		"another image, and its process answers":  {oldImage, shardmap.FormatIncarnation(8), running, true},
		"another image, and its process is late":  {oldImage, shardmap.FormatIncarnation(7), running, false},
		"another image, which cannot be pulled":   {oldImage, shardmap.FormatIncarnation(7), waiting, true},
		"the image that it should have":           {newImage, "", running, false},
		"the same, and its process has yet to go": {newImage, shardmap.FormatIncarnation(7), running, false},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{v1alpha1.AnnotationReplaces: c.replaces}},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Image: c.image}}}, Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{c.status}}}
		n := &node{object: &v1alpha1.MemoryNode{Spec: v1alpha1.MemoryNodeSpec{Image: newImage}}, pod: pod, agent: agent.Observation{Facts: &farpoolv1alpha1.Facts{Incarnation: 7}}}
		if may := n.mayRestart(); may != c.may {
			t.Errorf("%s: it may restart: %v", name, may)
		}
	}
	if (&node{object: &v1alpha1.MemoryNode{}}).mayRestart() {
		t.Error("a memory node without a pod may restart")
	}
}

// Compute shards come first; then one memory node after the other, each back and followed before the next.
func TestAnUpgradeGoesInOrder(t *testing.T) {
	u := newUpgrade(t, 3)
	u.Pool.Spec.Version = "new"
	d := u.settle(t)
	wantSaid(t, d, v1alpha1.ReasonUpgrading, "0 of 3 memory nodes run farpool/dataplane:new; waiting until compute pool shards runs it")
	if events(d, v1alpha1.ReasonUpgradeStarted) != 1 || d.Status.Pool.Template.Image != oldImage || d.Status.Pool.Template.CreatedWith != oldImage {
		t.Errorf("%+v, %+v", d.Status.Events, d.Status.Pool.Template)
	}
	u.roll(newImage, versions(3, 5, 7, 8))
	u.Agents["shard"].Facts.Ready = false
	if d = u.settle(t); u.images() != "ooo" {
		t.Fatal(u.images())
	}
	wantSaid(t, d, v1alpha1.ReasonUpgrading, "waiting until compute shard shard has a session with every memory node")
	u.Agents["shard"].Facts.Ready = true
	seen := []string{u.images()}
	for range 40 {
		d = u.settle(t)
		for name := range u.Nodes {
			if n, pod := u.Nodes[name], u.NodePods[name]; n.Spec.Image == newImage && imageInPod(pod) == newImage && pod.Annotations[v1alpha1.AnnotationReplaces] == "" {
				t.Errorf("pod %s does not say which process goes", name)
			}
		}
		if now := u.images(); now != seen[len(seen)-1] {
			seen = append(seen, now)
		}
	}
	if strings.Join(seen, " ") != "ooo noo nno nnn" {
		t.Errorf("images were %v", seen)
	}
	wantCondition(t, d, v1alpha1.ConditionUpToDate, metav1.ConditionTrue, v1alpha1.ReasonCurrent)
	wantCondition(t, d, v1alpha1.ConditionProgressing, metav1.ConditionFalse, v1alpha1.ReasonSettled)
	if d.Status.Pool.Template.Image != newImage || d.Status.Pool.Template.CreatedWith != oldImage || len(d.Amend) != 0 {
		t.Errorf("%+v, %+v", d.Status.Pool.Template, d.Amend)
	}
	// A version that is left out again means the image that the pool was created with.
	u.Pool.Spec.Version = ""
	u.roll(oldImage, versions(3, 4, 7, 7))
	for range 40 {
		d = u.settle(t)
	}
	if u.images() != "ooo" || d.Status.Pool.Template.Image != oldImage {
		t.Errorf("%s, %+v", u.images(), d.Status.Pool.Template)
	}
}

// The process that is being replaced may answer for some seconds yet: the next memory node waits for another one.
func TestTheProcessThatGoesDoesNotCount(t *testing.T) {
	u := newUpgrade(t, 2)
	u.Pool.Spec.Image = newImage
	u.roll(newImage, nil)
	before := u.Agents["pod-cache-memory-0"]
	for range 2 {
		u.settle(t)
	}
	u.Agents["pod-cache-memory-0"] = before
	for range 5 {
		d := u.settle(t)
		wantSaid(t, d, v1alpha1.ReasonUpgrading, "0 of 2 memory nodes run farpool/dataplane:new")
		if c := nodeCondition4(t, d, "cache-memory-0"); c.Reason != v1alpha1.ReasonUpgrading || !strings.Contains(c.Message, "it restarts with image farpool/dataplane:new") {
			t.Errorf("%+v", c)
		}
		if c := nodeCondition4(t, d, "cache-memory-1"); c.Reason != v1alpha1.ReasonUpgrading || !strings.Contains(c.Message, "gets farpool/dataplane:new in its turn") {
			t.Errorf("%+v", c)
		}
	}
	if u.images() != "no" || u.Nodes["cache-memory-1"].Spec.Image != oldImage {
		t.Error(u.images())
	}
}

func TestWhatKeepsAnUpgradeFromMemoryNodes(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*upgraded)
		reason string
		says   string
	}{
		"a format that it does not take up": {func(u *upgraded) { u.roll(newImage, versions(3, 5, 8, 9)) }, v1alpha1.ReasonUpgradeRefused,
			"image farpool/dataplane:new (version 2) takes up memory formats 8 to 9, and not format 7 of memory node cache-memory-0: no memory node gets it. Memory nodes run farpool/dataplane:old: name that"},
		"another protocol": {func(u *upgraded) { u.roll(newImage, versions(5, 6, 7, 8)) }, v1alpha1.ReasonUpgradeRefused, "speaks protocol versions 5 to 6, and none of 3 to 4 of memory node"},
		"an image that is not there": {func(u *upgraded) {
			u.ComputePods = append(u.ComputePods, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "second", UID: "second"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Image: newImage}}},
				Status: corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "not found"}}}}}})
			u.Deployments["cache-shards"].Spec.Template.Spec.Containers[0].Image, u.Deployments["cache-shards"].Status.UpdatedReplicas = newImage, 0
		}, v1alpha1.ReasonUpgradeStopped, "pod second does not start with image farpool/dataplane:new: ImagePullBackOff: not found. No memory node beyond it"},
		"a rollout that the cache has not seen": {func(u *upgraded) {
			u.roll(newImage, nil)
			u.Deployments["cache-shards"].Generation = 2
		}, v1alpha1.ReasonUpgrading, "waiting until compute pool shards runs"},
		"an old shard":      {func(u *upgraded) { u.roll(newImage, nil); u.ComputePods[0].Spec.Containers[0].Image = oldImage }, v1alpha1.ReasonUpgrading, "waiting until compute shard shard is replaced"},
		"a shard behind":    {func(u *upgraded) { u.roll(newImage, nil); u.Agents["shard"].Facts.Epoch = 0 }, v1alpha1.ReasonUpgrading, "waiting until compute shard shard has a session"},
		"no compute shard":  {func(u *upgraded) { u.Deployments["cache-shards"].Spec.Replicas = ptr.To(int32(0)) }, v1alpha1.ReasonUpgrading, "the pool has no compute shard, and memory nodes get another image only after"},
		"a silent node":     {func(u *upgraded) { u.roll(newImage, nil); u.silence("cache-memory-1") }, v1alpha1.ReasonUpgrading, "waiting for memory node cache-memory-1: silent"},
		"a pool at rest":    {func(u *upgraded) { u.roll(newImage, nil); u.Pool.Spec.Management = v1alpha1.ManagementPaused }, v1alpha1.ReasonUpgrading, "0 of 2"},
		"keys that move":    {func(u *upgraded) { u.roll(newImage, nil); u.depart(1) }, v1alpha1.ReasonUpgrading, "waiting for keys that move"},
		"no Deployment yet": {func(u *upgraded) { u.Deployments = map[string]*appsv1.Deployment{} }, v1alpha1.ReasonUpgrading, "waiting until compute pool shards runs"},
	} {
		t.Run(name, func(t *testing.T) {
			u := newUpgrade(t, 2)
			for _, observed := range u.Agents {
				observed.Facts.Versions = versions(3, 4, 7, 7)
				observed.Facts.Versions.MemoryFormat = 7
			}
			u.Pool.Spec.Version = "new"
			c.change(u)
			var d *decision
			for range 5 {
				d = u.settle(t)
			}
			wantSaid(t, d, c.reason, c.says)
			if u.images() != "oo" {
				t.Error(u.images())
			}
			if c.reason != v1alpha1.ReasonUpgrading {
				wantCondition(t, d, v1alpha1.ConditionDegraded, metav1.ConditionTrue, c.reason)
				wantCondition(t, d, v1alpha1.ConditionAvailable, metav1.ConditionTrue, v1alpha1.ReasonServing)
			}
		})
	}
}

// depart makes the newest map one in which a part is on its way, as all memory nodes follow it.
func (u *upgraded) depart(from int) {
	spec := &u.ShardMaps[len(u.ShardMaps)-1].Spec
	spec.Move = 1
	for part, table := range spec.Directory.Tables {
		if spec.Tables[from].ID != table {
			spec.Departures = append(spec.Departures, v1alpha1.Departure{Part: int32(part), From: spec.Tables[from].ID})
			break
		}
	}
	for name := range u.Nodes {
		held := u.Agents[types.UID("pod-"+name)].Facts.GetMemoryNode().GetMap()
		held.Move = 1
		for _, departure := range spec.Departures {
			held.Departures = append(held.Departures, &farpoolv1alpha1.Departure{Part: uint32(departure.Part), From: uint32(departure.From)})
		}
	}
}

// A memory node that does not come back with an image stops the upgrade there, and gets the image before when the spec names that again: even where its compute
// shards have yet to be replaced, and even the only one.
func TestAnUpgradeIsTakenBack(t *testing.T) {
	for _, nodes := range []int{1, 3} {
		u := newUpgrade(t, nodes)
		u.Pool.Spec.Version = "new"
		u.roll(newImage, nil)
		bad := func(image string) bool { return image != newImage }
		var d *decision
		for range 6 {
			d = u.settleIf(t, bad)
		}
		rest := strings.Repeat("o", nodes-1)
		if u.images() != "n"+rest {
			t.Fatal(u.images())
		}
		wantSaid(t, d, v1alpha1.ReasonUpgradeStopped, "pod cache-memory-0 does not start with image farpool/dataplane:new: exit code 1: the memory that it found has format 9")
		wantCondition(t, d, v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonUpgradeStopped)
		u.Agents["shard"].Facts.Ready = false
		u.Pool.Spec.Version = ""
		for range 6 {
			u.settleIf(t, bad)
		}
		if u.images() != "o"+rest {
			t.Fatal(u.images())
		}
		u.roll(oldImage, nil)
		d = u.settleIf(t, bad)
		wantCondition(t, d, v1alpha1.ConditionUpToDate, metav1.ConditionTrue, v1alpha1.ReasonCurrent)
		wantCondition(t, d, v1alpha1.ConditionDegraded, metav1.ConditionFalse, v1alpha1.ReasonHealthy)
	}
}

// An image that nothing is known of does not reach a memory node that happens to be away.
func TestAMemoryNodeThatIsAwayGetsNoUntriedImage(t *testing.T) {
	u := newUpgrade(t, 2)
	u.crash(u.NodePods["cache-memory-0"])
	u.Pool.Spec.Version = "new"
	for range 4 {
		u.settle(t)
	}
	if u.images() != "oo" || u.Nodes["cache-memory-0"].Spec.Image != oldImage {
		t.Error(u.images())
	}
	// Another memory node that serves with it shows that it works.
	u.Nodes["cache-memory-1"].Spec.Image, u.Nodes["cache-memory-1"].Status.Image = newImage, newImage
	u.NodePods["cache-memory-1"].Spec.Containers[0].Image = newImage
	for range 4 {
		u.settle(t)
	}
	if u.images() != "nn" {
		t.Error(u.images())
	}
}

// A pod that is made anew in the middle of an upgrade has its MemoryNode's image, and memory nodes that come get the pool's only when it has been tried.
func TestImagesOfNewPods(t *testing.T) {
	u := newUpgrade(t, 1)
	u.Pool.Spec.Version = "new"
	u.Pool.Spec.Memory.Pools[0].Replicas = 2
	u.MemoryPools = map[string]*v1alpha1.MemoryNodePool{"cache-memory": {Spec: v1alpha1.MemoryNodePoolSpec{Declared: 2, Replicas: 2}}}
	delete(u.NodePods, "cache-memory-0")
	made := func() (pod, node string) { // what is applied last of each kind
		for _, object := range u.decide(t).Apply {
			switch object := object.(type) {
			case *apiac.MemoryNodeApplyConfiguration:
				node = *object.Spec.Image
			case *corev1ac.PodApplyConfiguration:
				pod = *object.Spec.Containers[0].Image
			}
		}
		return pod, node
	}
	if pod, node := made(); pod != oldImage || node != oldImage {
		t.Errorf("a pod with %q, a MemoryNode with %q", pod, node)
	}
	u.roll(newImage, nil)
	if pod, node := made(); pod != "" || node != newImage {
		t.Errorf("a pod with %q, a MemoryNode with %q", pod, node)
	}
}

// A person who edits the image of a MemoryNode changes nothing of its pod, whatever else the pool waits for.
func TestTheImageOfAMemoryNodeIsTheOperators(t *testing.T) {
	u := newUpgrade(t, 2)
	u.Agents["shard"].Facts.Ready = false
	u.Nodes["cache-memory-1"].Spec.Image = "farpool/dataplane:mine"
	for range 3 {
		if d := u.settle(t); len(d.Amend) > 0 {
			t.Error(d.Amend)
		}
	}
	if u.images() != "oo" || u.Nodes["cache-memory-1"].Spec.Image != oldImage {
		t.Errorf("%s, %s", u.images(), u.Nodes["cache-memory-1"].Spec.Image)
	}
}

// The image of a pool comes from its spec and from what it was created with, never from the operator that runs now.
func TestWhichImageAPoolHas(t *testing.T) {
	for name, c := range map[string]struct {
		template       *v1alpha1.TemplateStatus
		version, image string
		want           string
	}{
		"a new pool":                        {nil, "", "", "registry:5000/farpool/dataplane:new"},
		"a new pool of a version":           {nil, "v2", "", "registry:5000/farpool/dataplane:v2"},
		"a new pool of an image":            {nil, "", "other@sha256:1", "other@sha256:1"},
		"a pool of before":                  {&v1alpha1.TemplateStatus{Version: 4, Image: "a/b:1"}, "", "", "a/b:1"},
		"a pool of before, another version": {&v1alpha1.TemplateStatus{Version: 4, Image: "a/b:1"}, "2", "", "a/b:2"},
		"one that was upgraded":             {&v1alpha1.TemplateStatus{Version: 4, Image: "a/b:2", CreatedWith: "a/b:1"}, "", "", "a/b:1"},
		"one that goes on":                  {&v1alpha1.TemplateStatus{Version: 4, Image: "a/b:2", CreatedWith: "a/b:1"}, "3", "", "a/b:3"},
	} {
		s := newScene(0, v1alpha1.DataPolicyCache)
		s.Pool.Status.Template, s.Pool.Spec.Version, s.Pool.Spec.Image = c.template, c.version, c.image
		d := s.decide(t)
		if got := d.Status.Pool.Template; got.Image != c.want {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// A memory node that has to go gets no other image, and does not keep the operator from one that is down: that one has to be up again before the other may go.
func TestAMemoryNodeThatGoesKeepsNoOtherFromAnImage(t *testing.T) {
	u := newUpgrade(t, 2)
	const leaves = "cache-memory-2"
	u.Nodes[leaves] = u.Nodes["cache-memory-1"].DeepCopy()
	u.Nodes[leaves].Name, u.Nodes[leaves].UID, u.Nodes[leaves].Spec.Ordinal = leaves, "node-"+leaves, 2
	u.NodePods[leaves] = u.NodePods["cache-memory-1"].DeepCopy()
	u.NodePods[leaves].Name, u.NodePods[leaves].UID = leaves, "pod-"+leaves
	u.Pool.Spec.Image = newImage
	u.roll(newImage, versions(3, 4, 7, 7))
	u.crash(u.NodePods["cache-memory-0"])
	for range 20 {
		u.settle(t)
	}
	if images := u.images(); !strings.HasPrefix(images, "nn") {
		t.Errorf("images of the memory nodes are %s", images)
	}
}

// A person deletes the MemoryNode of a memory node that is away. It is made again, and no other memory node gets the image before that one is back.
func TestAMemoryNodeWithoutItsObjectIsAwaited(t *testing.T) {
	for what, away := range map[string]func(*upgraded, *corev1.Pod){
		"its process ends":  func(u *upgraded, pod *corev1.Pod) { u.Agents[pod.UID] = agent.Observation{State: agent.Unreachable} },
		"its pod is absent": func(u *upgraded, pod *corev1.Pod) { delete(u.NodePods, pod.Name) },
	} {
		u := newUpgrade(t, 3)
		u.Pool.Spec.Image = newImage
		u.roll(newImage, versions(3, 4, 7, 7))
		for u.images() != "noo" {
			u.settle(t)
		}
		away(u, u.NodePods["cache-memory-0"])
		delete(u.Nodes, "cache-memory-0")
		d := u.decide(t)
		for _, object := range d.Apply {
			if node, is := object.(*apiac.MemoryNodeApplyConfiguration); is && *node.Name != "cache-memory-0" && *node.Spec.Image == newImage {
				t.Errorf("%s: %s gets the image", what, *node.Name)
			}
		}
		for _, amendment := range d.Amend {
			t.Errorf("%s: pod %s gets its %s", what, amendment.Pod.Name, amendment.What)
		}
		wantSaid(t, d, v1alpha1.ReasonUpgrading, "waiting for memory node cache-memory-0")
	}
}

// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"fmt"
	"math/rand/v2"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"

	"farpool.dev/farpool/api/v1alpha1"
)

// People give pools other images, of which some do not work. Worlds with compute shards have pods with images.

const (
	simRepository = "farpool/dataplane:"
	simImage      = simRepository + "1"
	// No process of the first image starts; of the second, compute shards do.
	badImage  = simRepository + "bad"
	halfImage = simRepository + "half"
)

// simVersions are what people put into the spec; empty: they take it out.
var simVersions = []string{"", "", "2", "2", "3", "half", "bad"}

// upgradeWorld is what worlds with compute shards know of images.
type upgradeWorld struct {
	// image is the one of the Deployment of compute shards, and generation counts its changes.
	image      string
	generation int64
	// shown are the images with which a compute shard has had sessions.
	shown map[string]bool
	// served are the images with which each memory has been served.
	served map[*memory]map[string]bool
	// restarting are the pods that got an image and have not served the newest map since.
	restarting map[types.UID]string
	// ended are the processes whose pods have an image that does not start: they left their memory.
	ended map[types.UID]*process

	// patches counts images that pods got, returns the ones of them that serve.
	patches, returns int
}

func newUpgradeWorld() upgradeWorld {
	return upgradeWorld{image: simImage, generation: 1, shown: map[string]bool{}, served: map[*memory]map[string]bool{}, restarting: map[types.UID]string{}, ended: map[types.UID]*process{}}
}

func containers(image string) []corev1.Container { return []corev1.Container{{Image: image}} }

// imageIn is the image of a pod; empty: the world has none.
func imageIn(pod *corev1.Pod) string {
	if pod == nil || len(pod.Spec.Containers) == 0 {
		return ""
	}
	return pod.Spec.Containers[0].Image
}

// startOrCrash starts a process in a memory node's pod, if its image does that.
func (w *world) startOrCrash(pod *corev1.Pod, warm bool) {
	image := imageIn(pod)
	if image != badImage && image != halfImage {
		w.start(pod, warm)
		if w.repairs != nil {
			edit(w, kindPod, pod.Name, func(pod *corev1.Pod) { pod.Status.ContainerStatuses = []corev1.ContainerStatus{{State: running()}} })
		}
		return
	}
	before := w.processes[pod.UID]
	if before == nil {
		before = w.repairs.ended[pod.UID]
	}
	if !warm && before != nil {
		w.forget(before.memory)
		before = nil
	}
	delete(w.processes, pod.UID)
	w.repairs.ended[pod.UID] = before
	w.say("memory node %s does not start with image %s", pod.Name, image)
	edit(w, kindPod, pod.Name, func(pod *corev1.Pod) {
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}}}
	})
}

// changed says whether a pod has another image than its process, or than the one that did not start.
func (w *world) changed(pod *corev1.Pod) bool {
	if w.repairs == nil || pod.Status.Phase != corev1.PodRunning {
		return false
	}
	if p := w.processes[pod.UID]; p != nil {
		return p.image != imageIn(pod)
	}
	_, ended := w.repairs.ended[pod.UID]
	return ended && imageIn(pod) != badImage && imageIn(pod) != halfImage
}

// imaged has a pod get an image, and says which rule that breaks.
func (w *world) imaged(pod *corev1.Pod, image string) {
	u := &w.repairs.upgradeWorld
	u.patches++
	p := w.processes[pod.UID]
	if p == nil {
		p = u.ended[pod.UID]
	}
	if w.newest != nil && lists(w.newest, pod.Name) && p != nil && p.memory.named {
		if !u.shown[image] && !u.served[p.memory][image] {
			w.fail("an image is tried first", "pod %s gets image %s, with which no compute shard has had a session", pod.Name, image)
		}
		for i := range w.newest.Nodes {
			other := w.pod(w.newest.Nodes[i].Name)
			if other != nil && other.UID != pod.UID && u.restarting[other.UID] == image && w.processes[pod.UID] != nil && w.serves(w.newest, entryNamed(w.newest, pod.Name)) != nil {
				w.fail("one at a time", "pod %s gets image %s, and %s is not back with it", pod.Name, image, other.Name)
			}
		}
	}
	u.restarting[pod.UID] = image
}

func entryNamed(spec *v1alpha1.ShardMapSpec, name string) *v1alpha1.ShardMapNode {
	at := slices.IndexFunc(spec.Nodes, func(entry v1alpha1.ShardMapNode) bool { return entry.Name == name })
	return &spec.Nodes[at]
}

// returned notes that a memory node serves the newest map with its image.
func (w *world) returned(p *process) {
	if w.repairs == nil || w.newest == nil || !lists(w.newest, p.memory.node) || w.serves(w.newest, entryNamed(w.newest, p.memory.node)) != p {
		return
	}
	u := &w.repairs.upgradeWorld
	if u.restarting[p.memory.pod] == p.image {
		delete(u.restarting, p.memory.pod)
		u.returns++
	}
	if u.served[p.memory] == nil {
		u.served[p.memory] = map[string]bool{}
	}
	u.served[p.memory][p.image] = true
}

// rollOut gives the Deployment of compute shards its image.
func (o *operator) rollOut(deployment *appsv1ac.DeploymentApplyConfiguration) error {
	image := *deployment.Spec.Template.Spec.Containers[0].Image
	if o.repairs == nil || image == o.repairs.image {
		return nil
	}
	if !o.mayWrite() {
		return errLater
	}
	what := fmt.Sprintf("gives compute shards image %s", image)
	o.before("%s", what)
	return o.call(what, func() error {
		o.repairs.image = image
		o.repairs.generation++
		return nil
	})
}

// replaceShards goes on with a rollout: it ends a compute shard of another image if the Deployment's image starts, and takes away pods that never started.
func (w *world) replaceShards() {
	waits := 0
	for _, name := range w.names(kindShard) {
		pod := w.shardPod(name)
		switch {
		case imageIn(pod) == w.repairs.image && imageIn(pod) == badImage:
			waits++
		case imageIn(pod) == badImage:
			w.take(kindShard, name)
		}
	}
	if w.repairs.image == badImage {
		if waits == 0 {
			w.makeShard()
		}
		return
	}
	for _, name := range w.names(kindShard) {
		if pod := w.shardPod(name); imageIn(pod) != w.repairs.image {
			w.say("compute shard %s is replaced", name)
			w.endShard(pod.UID, true)
			w.take(kindShard, name)
			return
		}
	}
}

// rolled counts the pods of compute shards: all, of the Deployment's image, and with a process.
func (w *world) rolled() (all, updated, ready int32) {
	for _, object := range w.live(kindShard) {
		pod := object.(*corev1.Pod)
		all++
		if imageIn(pod) == w.repairs.image {
			updated++
		}
		if w.repairs.shards[pod.UID] != nil {
			ready++
		}
	}
	return all, updated, ready
}

// changeVersion has a person change the version in the spec.
func (r *run) changeVersion(random *rand.Rand) {
	if r.repairs != nil {
		version := pick(random, simVersions)
		r.say("the spec asks for version %q", version)
		r.respec(func(spec *v1alpha1.KVPoolSpec) { spec.Version = version })
	}
}

// unupgraded says which process has not the image that the spec asks for.
func (r *run) unupgraded() string {
	if r.repairs == nil {
		return ""
	}
	wants := simImage
	if version := r.pool().Spec.Version; version != "" {
		wants = simRepository + version
	}
	for _, name := range r.names(kindPod) {
		node := r.live(kindNode)[name].(*v1alpha1.MemoryNode)
		if p := r.processes[r.pod(name).UID]; p == nil || p.image != wants || node.Spec.Image != wants || node.Status.Image != wants {
			return fmt.Sprintf("memory node %s has not image %s", name, wants)
		}
	}
	if all, updated, ready := r.rolled(); all != simShards || updated != all || ready != all {
		return fmt.Sprintf("of %d compute shards %d have image %s, and %d run", all, updated, wants, ready)
	}
	upToDate := meta.FindStatusCondition(r.pool().Status.Conditions, v1alpha1.ConditionUpToDate)
	// A person may have given pods what the spec does not have.
	if upToDate == nil || upToDate.Status != metav1.ConditionTrue && upToDate.Reason != v1alpha1.ReasonPodDiffers {
		return fmt.Sprintf("condition is %+v", upToDate)
	}
	return ""
}

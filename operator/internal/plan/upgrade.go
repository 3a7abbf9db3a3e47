// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	farpoolv1alpha1 "farpool.dev/farpool/api/gen/farpool/v1alpha1"
	"farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/agent"
	"farpool.dev/farpool/operator/internal/render"
	"farpool.dev/farpool/operator/internal/shardmap"
)

// An upgrade gives a pool's processes another image (docs/adr/0040). Compute shards get it first, by a rollout of their Deployments. Then each memory node in
// turn: the operator writes the image into the MemoryNode, then patches its pod, and the kubelet restarts the container, which takes up the memory of the process
// before. The next memory node waits until that one serves again and every compute shard has a session there. What has been done stands in MemoryNodes and pods
// alone, so any operator can continue, and an edit of the spec at any time only gives it another aim.

// upgrade is what is decided about images.
type upgrade struct {
	// image is the one that new memory nodes and sidecars get: the pool's, once compute shards have shown that it works, and the one before until then.
	image string
	// createdWith is the image of the pool while its spec names no other.
	createdWith string
	// pending says that memory nodes have yet to get the pool's image, or to come back with it.
	pending bool
	// next is the memory node that gets the image now.
	next *node
	// restarts is the memory node whose pod gets the image of its MemoryNode now.
	restarts *node
	// trouble is why the upgrade has stopped; nil: it has not. awaits says what it waits for.
	trouble *finding
	awaits  string
}

// chooseImage finds the template of the pool's pods, and the image that the spec asks for. If anything says which template pods were made from, it is that one,
// whatever this operator's own version is.
func (d *decision) chooseImage() (wanted string) {
	d.version = render.Newest
	if frozen := d.Pool.Status.Template; frozen != nil {
		d.version, d.upgrade.image, d.upgrade.createdWith = frozen.Version, frozen.Image, cmp.Or(frozen.CreatedWith, frozen.Image)
	} else if names := slices.Sorted(maps.Keys(d.Nodes)); len(names) > 0 {
		spec := &d.Nodes[names[0]].Spec
		d.version, d.upgrade.image, d.upgrade.createdWith = spec.TemplateVersion, spec.Image, spec.Image
		if !d.everHadMap() && imageOf(spec.Image, "x") == imageOf(d.Settings.Image, "x") {
			d.upgrade.createdWith = d.Settings.Image // the pool is being created, and its status was not written yet
		}
	} else {
		d.upgrade.createdWith = d.Settings.Image
	}
	wanted = imageOf(d.upgrade.createdWith, d.Pool.Spec.Version)
	if d.Pool.Spec.Image != "" {
		wanted = d.Pool.Spec.Image
	}
	if d.upgrade.image == "" || !d.everHadMap() {
		d.upgrade.image = wanted
	}
	return wanted
}

// imageInPod is the image of a memory node's container; empty: there is no pod.
func imageInPod(pod *corev1.Pod) string {
	if pod == nil || len(pod.Spec.Containers) == 0 {
		return ""
	}
	return pod.Spec.Containers[0].Image
}

// replaced says whether the process that answers is the one that its pod's latest image takes the place of.
func (n *node) replaced() bool {
	return n.pod != nil && n.agent.Facts != nil && n.pod.Annotations[v1alpha1.AnnotationReplaces] == shardmap.FormatIncarnation(n.agent.Facts.GetIncarnation())
}

// mayRestart says whether a memory node's pod has to get the image of its MemoryNode, and may get it now: not while its process has yet to be replaced because of the
// image before. If the kubelet saw the first image again before it had done anything, that process would stay, and everybody would wait for the next one.
func (n *node) mayRestart() bool {
	image := imageInPod(n.pod)
	return image != "" && image != n.object.Spec.Image && !(n.replaced() && containerRuns(n.pod))
}

// up says whether a memory node serves the pool's map with a process of the image that its pod has.
func (d *decision) up(n *node) bool {
	return d.nodeReady(n).Status == metav1.ConditionTrue && !n.replaced()
}

// servesNobody says whether a memory node is known not to serve anybody. Silence proves nothing, and a memory node that has yet to follow the newest map serves its clients.
func servesNobody(n *node) bool {
	return n.pod == nil || failing(n.pod) != "" || crashed(n.pod) != "" || n.agent.State == agent.Starting || n.agent.State == agent.Connected && !n.agent.Facts.GetReady()
}

// behind says whether a memory node has yet to get the pool's image.
func (d *decision) behind(n *node) bool {
	return n.object != nil && n.object.Spec.Image != d.pool.Image
}

// decideUpgrade decides which memory node gets the pool's image now, if any.
func (d *decision) decideUpgrade(act bool) {
	u := &d.upgrade
	var away []*node
	for _, n := range d.nodes {
		// A memory node is away though a person has deleted its MemoryNode, which is made again.
		isAway := d.inMap(n.name) && !d.up(n)
		if isAway {
			away = append(away, n)
		}
		if n.object == nil {
			continue
		}
		arriving := imageInPod(n.pod) != "" && (imageInPod(n.pod) != n.object.Spec.Image || n.replaced())
		u.pending = u.pending || d.behind(n) || arriving || isAway && n.object.Status.Image != "" && n.object.Status.Image != d.pool.Image
	}
	shown := d.shown()
	u.trouble = cmp.Or(d.unsuited(), d.notStarting())
	if shown == "" && (u.trouble == nil || u.trouble.reason != v1alpha1.ReasonUpgradeRefused) {
		u.image = d.pool.Image
	}
	if !u.pending {
		u.trouble = nil
		return
	}
	if !act || d.epochs.next != nil {
		u.awaits = "waiting for the pool's next map"
		return
	}
	if d.withoutRestart(); u.next != nil || u.restarts != nil {
		return
	}
	if len(away) > 0 {
		d.mendByImage(away, shown)
		return
	}
	switch {
	case u.trouble != nil:
	case shown != "":
		u.awaits = shown
	case len(d.epochs.current.Departures) > 0:
		u.awaits = "waiting for keys that move between memory nodes"
	default:
		d.takeTurn()
	}
}

// takeTurn chooses the first memory node of the map that has another image, in its MemoryNode or in its pod, while all of them serve.
func (d *decision) takeTurn() {
	for _, n := range d.nodes {
		if !d.inMap(n.name) || n.object == nil {
			continue
		}
		if d.behind(n) {
			d.upgrade.next = n
			return
		}
		if n.mayRestart() {
			d.upgrade.restarts = n
			return
		}
	}
}

// mendByImage gives the pool's image to a memory node that is down: that takes nothing away. It is how an upgrade that went wrong is taken back. The image
// has to be one that works, as far as is known.
func (d *decision) mendByImage(away []*node, shown string) {
	u := &d.upgrade
	works := shown == "" && u.trouble == nil || d.servesAnywhere(d.pool.Image)
	for _, n := range away {
		switch {
		case n.object == nil, !servesNobody(n):
		case d.behind(n) && (works || n.object.Status.Image == d.pool.Image):
			u.next = n
			return
		case !d.behind(n) && n.mayRestart():
			u.restarts = n
			return
		}
	}
	u.awaits = fmt.Sprintf("waiting for memory node %s: %s", away[0].name, d.nodeReady(away[0]).Message)
}

// servesAnywhere says whether a memory node of the map serves with an image.
func (d *decision) servesAnywhere(image string) bool {
	return slices.ContainsFunc(d.nodes, func(n *node) bool {
		return d.inMap(n.name) && imageInPod(n.pod) == image && n.object != nil && n.object.Status.Image == image && d.up(n)
	})
}

// withoutRestart gives the image of new memory nodes to the memory nodes that are in no map, as they hold nothing yet; and the pool's image to a MemoryNode whose pod has it
// already, because a person has edited the MemoryNode, or has changed their mind.
func (d *decision) withoutRestart() {
	for _, n := range d.nodes {
		switch {
		case n.object == nil, d.goes(n):
		case d.behind(n) && imageInPod(n.pod) == d.pool.Image:
			d.upgrade.next = n
			return
		case d.inMap(n.name):
		case n.object.Spec.Image != d.pool.Image && d.upgrade.image == d.pool.Image:
			d.upgrade.next = n
			return
		case n.mayRestart():
			d.upgrade.restarts = n
			return
		}
	}
}

// shown says why compute shards have not yet shown that the pool's image works with all memory nodes; empty: they have. Each of them has a session with every
// memory node of the map then, so that the map's last change has reached all clients of the pool's own.
func (d *decision) shown() string {
	shards := 0
	for _, computePool := range d.pool.ComputePools() {
		if computePool.Replicas == 0 {
			continue
		}
		deployment := d.Deployments[d.pool.ComputeName(computePool.Name)]
		if deployment == nil || imageOfShards(deployment) != d.pool.Image || !rolledOut(deployment) {
			return fmt.Sprintf("waiting until compute pool %s runs it", computePool.Name)
		}
		shards++
	}
	if shards == 0 {
		return fmt.Sprintf("the pool has no compute shard, and memory nodes get another image only after a compute shard has shown that it works: give a compute pool a replica, if only until memory nodes run %s", d.pool.Image)
	}
	if d.epochs.current == nil {
		return "waiting for the pool's first map"
	}
	for _, pod := range d.ComputePods {
		if pod.DeletionTimestamp != nil || pod.Status.Phase != corev1.PodRunning {
			continue
		}
		observed := d.Agents[pod.UID]
		switch {
		case imageInPod(pod) != d.pool.Image:
			return fmt.Sprintf("waiting until compute shard %s is replaced", pod.Name)
		case observed.State != agent.Connected || !observed.Facts.GetReady() || observed.Facts.GetEpoch() < uint64(d.epochs.current.Epoch):
			return fmt.Sprintf("waiting until compute shard %s has a session with every memory node", pod.Name)
		}
	}
	return ""
}

func imageOfShards(deployment *appsv1.Deployment) string {
	if containers := deployment.Spec.Template.Spec.Containers; len(containers) > 0 {
		return containers[0].Image
	}
	return ""
}

// rolledOut says whether all of a Deployment's pods are made from its present template, and ready.
func rolledOut(deployment *appsv1.Deployment) bool {
	s := &deployment.Status
	return s.ObservedGeneration >= deployment.Generation && s.UpdatedReplicas == s.Replicas && s.ReadyReplicas == s.Replicas && s.Replicas > 0
}

// unsuited says why the pool's image cannot be used, by what its compute shards say of themselves; nil: nothing is known against it.
func (d *decision) unsuited() *finding {
	for _, pod := range d.ComputePods {
		observed := d.Agents[pod.UID]
		speaks := observed.Facts.GetVersions()
		if imageInPod(pod) != d.pool.Image || observed.State != agent.Connected || speaks == nil {
			continue
		}
		for _, n := range d.nodes {
			if !d.inMap(n.name) || n.agent.State != agent.Connected {
				continue
			}
			if why := disagreement(speaks, n.agent.Facts.GetVersions()); why != "" {
				return &finding{v1alpha1.ReasonUpgradeRefused, fmt.Sprintf("image %s (version %s) %s of memory node %s: no memory node gets it. %s",
					d.pool.Image, observed.Facts.GetVersion(), why, n.name, d.wayBack())}
			}
		}
	}
	return nil
}

// disagreement says what programs of an image cannot do that a memory node needs; empty: nothing. A memory node that tells no versions is as old as the first.
func disagreement(image, node *farpoolv1alpha1.Versions) string {
	switch {
	case node == nil:
	case image.GetOldestMemoryFormat() > node.GetMemoryFormat() || image.GetNewestMemoryFormat() < node.GetMemoryFormat():
		return fmt.Sprintf("takes up memory formats %d to %d, and not format %d", image.GetOldestMemoryFormat(), image.GetNewestMemoryFormat(), node.GetMemoryFormat())
	case image.GetOldestProtocol() > node.GetNewestProtocol() || image.GetNewestProtocol() < node.GetOldestProtocol():
		return fmt.Sprintf("speaks protocol versions %d to %d, and none of %d to %d", image.GetOldestProtocol(), image.GetNewestProtocol(), node.GetOldestProtocol(), node.GetNewestProtocol())
	}
	return ""
}

// notStarting says which pod does not start with the pool's image, and why; nil: none is known to.
func (d *decision) notStarting() *finding {
	pods := slices.Clone(d.ComputePods)
	for _, n := range d.nodes {
		pods = append(pods, n.pod)
	}
	for _, pod := range pods {
		if imageInPod(pod) != d.pool.Image {
			continue
		}
		if why := failing(pod); why != "" {
			return &finding{v1alpha1.ReasonUpgradeStopped, fmt.Sprintf("pod %s does not start with image %s: %s. No memory node beyond it gets that image. %s", pod.Name, d.pool.Image, why, d.wayBack())}
		}
	}
	return nil
}

// wayBack tells people how to take an upgrade back.
func (d *decision) wayBack() string {
	for _, n := range d.nodes {
		if n.object != nil && n.object.Status.Image != "" && n.object.Status.Image != d.pool.Image {
			return fmt.Sprintf("Memory nodes run %s: name that in spec.version or spec.image to go back, or another one that works", n.object.Status.Image)
		}
	}
	return "Name another image in spec.version or spec.image"
}

// failing says why a pod's container does not come to run, when the kubelet has given up for a while; empty: it runs, or the kubelet is at it.
func failing(pod *corev1.Pod) string {
	for _, container := range pod.Status.ContainerStatuses {
		waiting := container.State.Waiting
		if waiting == nil {
			continue
		}
		switch waiting.Reason {
		case "CrashLoopBackOff":
			return cmp.Or(crashed(pod), waiting.Reason)
		case "", "ContainerCreating", "PodInitializing":
		default:
			return waiting.Reason + after(": ", waiting.Message)
		}
	}
	return ""
}

// words tell people how far the upgrade is.
func (d *decision) upgradeWords() string {
	run, all := 0, 0
	for _, n := range d.nodes {
		if d.inMap(n.name) {
			all++
			if d.Status.Nodes[n.name].Image == d.pool.Image {
				run++
			}
		}
	}
	said := fmt.Sprintf("%d of %d memory nodes run %s", run, all, d.pool.Image)
	u := &d.upgrade
	switch {
	case u.trouble != nil:
		return said + "; " + u.trouble.message
	case u.next != nil:
		return said + "; " + u.next.name + " gets it now"
	case u.restarts != nil:
		return said + "; " + u.restarts.name + " restarts with it"
	}
	return said + after("; ", u.awaits)
}

// upgradeCondition is what the pool's condition UpToDate says of an upgrade; nil: there is none.
func (d *decision) upgradeCondition() *metav1.Condition {
	if !d.upgrade.pending {
		return nil
	}
	reason := v1alpha1.ReasonUpgrading
	if d.upgrade.trouble != nil {
		reason = d.upgrade.trouble.reason
	}
	c := condition(v1alpha1.ConditionUpToDate, metav1.ConditionFalse, reason, "%s", d.upgradeWords())
	return &c
}

// tellUpgrade announces that an upgrade begins, stops, or is complete, when the condition comes to say it.
func (d *decision) tellUpgrade(now metav1.Condition) {
	of := func(c *metav1.Condition) bool {
		return c != nil && slices.Contains([]string{v1alpha1.ReasonUpgrading, v1alpha1.ReasonUpgradeRefused, v1alpha1.ReasonUpgradeStopped}, c.Reason)
	}
	before := meta.FindStatusCondition(d.Pool.Status.Conditions, v1alpha1.ConditionUpToDate)
	tell := func(kind, reason, note string) {
		d.Status.Events = append(d.Status.Events, Event{Regarding: d.Pool, Type: kind, Reason: reason, Action: "Upgrade", Note: clip(note)})
	}
	switch {
	case of(&now) && before != nil && before.Reason == now.Reason:
	case of(&now) && now.Reason != v1alpha1.ReasonUpgrading:
		tell(corev1.EventTypeWarning, now.Reason, now.Message)
	case of(&now) && !of(before):
		tell(corev1.EventTypeNormal, v1alpha1.ReasonUpgradeStarted, now.Message)
	case !of(&now) && of(before):
		tell(corev1.EventTypeNormal, v1alpha1.ReasonUpgradeComplete, "every memory node runs "+d.pool.Image)
	}
}

// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	farpoolv1alpha1 "farpool.dev/farpool/api/gen/farpool/v1alpha1"
	"farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/agent"
	"farpool.dev/farpool/operator/internal/render"
	"farpool.dev/farpool/operator/internal/shardmap"
)

// undecided is what is known of a scene before anything is decided about the new image, which its compute shard runs.
func (u *upgraded) undecided() *decision {
	u.roll(newImage, versions(3, 5, 7, 8))
	d := &decision{Input: Input{Snapshot: u.Snapshot, Now: u.now}}
	d.pool = render.Pool{Name: u.Pool.Name, Namespace: u.Pool.Namespace, UID: u.Pool.UID, Spec: u.Pool.Spec, Image: newImage}
	d.upgrade.image = oldImage
	d.epochs.current = u.ShardMaps[len(u.ShardMaps)-1].Spec.DeepCopy()
	for i, name := range slices.Sorted(maps.Keys(u.Nodes)) {
		pod := u.NodePods[name]
		d.nodes = append(d.nodes, &node{name: name, wanted: true, pool: &u.Pool.Spec.Memory.Pools[0], ordinal: int32(i), object: u.Nodes[name], pod: pod, agent: u.Agents[pod.UID]})
	}
	return d
}

// unmap takes a memory node out of the map.
func (d *decision) unmap(n *node) {
	d.epochs.current.Nodes = slices.DeleteFunc(d.epochs.current.Nodes, func(entry v1alpha1.ShardMapNode) bool { return entry.Name == n.name })
}

// give makes a memory node one whose MemoryNode, pod and last process have these images.
func (n *node) give(object, pod, status string) {
	n.object.Spec.Image, n.pod.Spec.Containers[0].Image, n.object.Status.Image = object, pod, status
}

// chosen says which memory node gets an image, and which restarts with it, by the last letter of its name.
func (d *decision) chosen() string {
	last := func(n *node) string {
		if n == nil {
			return "-"
		}
		return n.name[len(n.name)-1:]
	}
	return last(d.upgrade.next) + last(d.upgrade.restarts)
}

// A memory node's status has the image that its process serves with, and tells once when that is another one.
func TestTheImageThatAMemoryNodeServesWith(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*decision, *node)
		image  string
		told   int
	}{
		"another image":                      {func(_ *decision, n *node) { n.give(newImage, newImage, oldImage) }, newImage, 2},
		"the first image":                    {func(_ *decision, n *node) { n.give(newImage, newImage, "") }, newImage, 0},
		"the same image":                     {func(_ *decision, n *node) { n.give(newImage, oldImage, oldImage) }, oldImage, 0},
		"a pod without an image":             {func(_ *decision, n *node) { n.pod.Spec.Containers = nil }, oldImage, 0},
		"another image, and nothing answers": {func(_ *decision, n *node) { n.give(newImage, newImage, oldImage); n.agent = agent.Observation{} }, oldImage, 0},
		"another image, and it is in no map": {func(d *decision, n *node) { n.give(newImage, newImage, oldImage); d.unmap(n) }, oldImage, 0},
		"another image, out of map and silent": {func(d *decision, n *node) {
			n.give(newImage, newImage, oldImage)
			n.agent = agent.Observation{}
			d.unmap(n)
		}, oldImage, 0},
	} {
		d := newUpgrade(t, 2).undecided()
		n := d.nodes[1]
		c.change(d, n)
		status := d.nodeStatus(n, metav1.Condition{})
		if told := events(d, v1alpha1.ReasonMemoryNodeUpgraded); status.Image != c.image || told != c.told {
			t.Errorf("%s: the status has %q, %d events", name, status.Image, told)
		}
	}
}

func TestWhichProcessIsReplaced(t *testing.T) {
	pod := func(replaces uint64) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{v1alpha1.AnnotationReplaces: shardmap.FormatIncarnation(replaces)}}}
	}
	facts := &farpoolv1alpha1.Facts{Incarnation: 7}
	for name, c := range map[string]struct {
		pod   *corev1.Pod
		facts *farpoolv1alpha1.Facts
		is    bool
	}{
		"the one that goes": {pod(7), facts, true},
		"another one":       {pod(6), facts, false},
		"none has answered": {pod(0), nil, false},
		"its pod is gone":   {nil, facts, false},
		"nothing is known":  {nil, nil, false},
	} {
		if is := (&node{pod: c.pod, agent: agent.Observation{Facts: c.facts}}).replaced(); is != c.is {
			t.Errorf("%s: it is replaced: %v", name, is)
		}
	}
}

// Only a process that says so itself, or that has ended, serves nobody.
func TestWhoServesNobody(t *testing.T) {
	ready, late := &farpoolv1alpha1.Facts{Ready: true}, &farpoolv1alpha1.Facts{}
	for name, c := range map[string]struct {
		pod      *corev1.Pod
		observed agent.Observation
		nobody   bool
	}{
		"no pod":                    {nil, agent.Observation{State: agent.Connected, Facts: ready}, true},
		"it starts":                 {&corev1.Pod{}, agent.Observation{State: agent.Starting}, true},
		"it is ready":               {&corev1.Pod{}, agent.Observation{State: agent.Connected, Facts: ready}, false},
		"it is not ready":           {&corev1.Pod{}, agent.Observation{State: agent.Connected, Facts: late}, true},
		"silent, and was ready":     {&corev1.Pod{}, agent.Observation{State: agent.Unreachable, Facts: ready}, false},
		"silent, and was not ready": {&corev1.Pod{}, agent.Observation{State: agent.Unreachable, Facts: late}, false},
		"it was never asked":        {&corev1.Pod{}, agent.Observation{State: agent.Connecting}, false},
	} {
		if nobody := servesNobody(&node{pod: c.pod, agent: c.observed}); nobody != c.nobody {
			t.Errorf("%s: it serves nobody: %v", name, nobody)
		}
	}
}

func TestWhoseTurnItIs(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*decision)
		want   string
	}{
		"all have the old image":        {func(*decision) {}, "0-"},
		"the first has the new one":     {func(d *decision) { d.nodes[0].give(newImage, newImage, newImage) }, "1-"},
		"the first has it in no pod":    {func(d *decision) { d.nodes[0].give(newImage, oldImage, oldImage) }, "-0"},
		"the first has no MemoryNode":   {func(d *decision) { d.nodes[0].object = nil }, "1-"},
		"the first is in no map":        {func(d *decision) { d.unmap(d.nodes[0]) }, "1-"},
		"the last goes, others have it": {func(d *decision) { d.nodes[0].give(newImage, newImage, newImage); d.unmap(d.nodes[1]) }, "--"},
		"none has a MemoryNode":         {func(d *decision) { d.nodes[0].object, d.nodes[1].object = nil, nil }, "--"},
	} {
		d := newUpgrade(t, 2).undecided()
		c.change(d)
		if d.takeTurn(); d.chosen() != c.want {
			t.Errorf("%s: chosen is %s, want %s", name, d.chosen(), c.want)
		}
	}
}

func TestWhatAMemoryNodeThatIsDownGets(t *testing.T) {
	const untried = "waiting until compute pool shards runs it"
	for name, c := range map[string]struct {
		object, pod, shown string
		want               string
	}{
		"an image that works":                      {oldImage, oldImage, "", "0-"},
		"no image that nothing is known of":        {oldImage, oldImage, untried, "--"},
		"nor its MemoryNode's":                     {"farpool/dataplane:mine", oldImage, untried, "--"},
		"the image that its MemoryNode has":        {newImage, oldImage, "", "-0"},
		"nothing, as its pod has the image":        {newImage, newImage, "", "--"},
		"nothing, as an untried image is there":    {newImage, newImage, untried, "--"},
		"an untried image that its MemoryNode has": {newImage, oldImage, untried, "-0"},
	} {
		u := newUpgrade(t, 2)
		u.crash(u.NodePods["cache-memory-0"])
		d := u.undecided()
		d.nodes[0].give(c.object, c.pod, oldImage)
		d.mendByImage(d.nodes[:1], c.shown)
		if d.chosen() != c.want {
			t.Errorf("%s: chosen is %s, want %s", name, d.chosen(), c.want)
		}
		if waits := strings.HasPrefix(d.upgrade.awaits, "waiting for memory node cache-memory-0: "); waits != (c.want == "--") {
			t.Errorf("%s: it says %q", name, d.upgrade.awaits)
		}
	}
}

// Both a memory node's pod and its last process have to have an image.
func TestWhereAnImageServes(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*decision, *node)
		serves bool
	}{
		"it serves":                     {func(*decision, *node) {}, true},
		"it is in no map":               {func(d *decision, n *node) { d.unmap(n) }, false},
		"its pod has another":           {func(_ *decision, n *node) { n.pod.Spec.Containers[0].Image = oldImage }, false},
		"its process has another":       {func(_ *decision, n *node) { n.object.Status.Image = oldImage }, false},
		"its MemoryNode is gone":        {func(_ *decision, n *node) { n.object = nil }, false},
		"its process is silent":         {func(_ *decision, n *node) { n.agent.State = agent.Unreachable }, false},
		"its pod is gone":               {func(_ *decision, n *node) { n.pod = nil }, false},
		"pod and MemoryNode are absent": {func(_ *decision, n *node) { n.pod, n.object = nil, nil }, false},
	} {
		d := newUpgrade(t, 2).undecided()
		d.nodes[1].give(newImage, newImage, newImage)
		c.change(d, d.nodes[1])
		if serves := d.servesAnywhere(newImage); serves != c.serves {
			t.Errorf("%s: it serves: %v", name, serves)
		}
	}
}

// A memory node in no map gets the image of new memory nodes, which is the pool's only when that has been tried.
func TestWhatAMemoryNodeInNoMapGets(t *testing.T) {
	for name, c := range map[string]struct {
		object, pod, ofNew string
		want               string
	}{
		"the pool's image":                 {oldImage, oldImage, newImage, "1-"},
		"none that is untried":             {oldImage, oldImage, oldImage, "--"},
		"the one in its pod":               {oldImage, newImage, oldImage, "1-"},
		"a restart":                        {newImage, oldImage, newImage, "-1"},
		"a restart, with an untried image": {newImage, oldImage, oldImage, "-1"},
		"nothing":                          {newImage, newImage, newImage, "--"},
		"nothing, with an untried image":   {newImage, newImage, oldImage, "--"},
	} {
		d := newUpgrade(t, 2).undecided()
		d.unmap(d.nodes[1])
		d.nodes[1].give(c.object, c.pod, c.object)
		d.upgrade.image = c.ofNew
		if d.withoutRestart(); d.chosen() != c.want {
			t.Errorf("%s: chosen is %s, want %s", name, d.chosen(), c.want)
		}
	}
}

// The memory nodes that hold nothing come first, and no memory node gets an image while a map is made or nothing may be done.
func TestWhatComesBeforeMemoryNodesOfTheMap(t *testing.T) {
	for name, c := range map[string]struct {
		act    bool
		change func(*decision)
		want   string
		awaits string
	}{
		"nothing":                   {true, func(*decision) {}, "0-", ""},
		"one in no map":             {true, func(d *decision) { d.unmap(d.nodes[1]) }, "1-", ""},
		"one in no map, to restart": {true, func(d *decision) { d.unmap(d.nodes[1]); d.nodes[1].give(newImage, oldImage, oldImage) }, "-1", ""},
		"a map":                     {true, func(d *decision) { d.epochs.next = d.epochs.current }, "--", "waiting for the pool's next map"},
		"a pool at rest":            {false, func(*decision) {}, "--", "waiting for the pool's next map"},
		"a pool at rest, and a map": {false, func(d *decision) { d.epochs.next = d.epochs.current }, "--", "waiting for the pool's next map"},
	} {
		d := newUpgrade(t, 2).undecided()
		c.change(d)
		if d.decideUpgrade(c.act); d.chosen() != c.want || d.upgrade.awaits != c.awaits || !d.upgrade.pending {
			t.Errorf("%s: chosen is %s, want %s; it says %q", name, d.chosen(), c.want, d.upgrade.awaits)
		}
	}
}

// An upgrade lasts until the last memory node that had another image serves again; one that is away later is no upgrade.
func TestAnUpgradeLastsUntilAMemoryNodeIsBack(t *testing.T) {
	for served, pending := range map[string]bool{oldImage: true, newImage: false, "": false} {
		u := newUpgrade(t, 2)
		u.silence("cache-memory-0")
		d := u.undecided()
		d.nodes[0].give(newImage, newImage, served)
		d.nodes[1].give(newImage, newImage, newImage)
		if d.decideUpgrade(true); d.upgrade.pending != pending {
			t.Errorf("it served with %q last, and the upgrade goes on: %v", served, d.upgrade.pending)
		}
	}
}

// An image that its compute shards have tried is the one of new memory nodes, unless it cannot be used with the others.
func TestTheImageOfNewMemoryNodes(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*decision)
		reason string
		want   string
	}{
		"it works":                       {func(*decision) {}, "", newImage},
		"a memory node does not start":   {func(d *decision) { d.nodes[1].pod.Spec.Containers[0].Image = newImage }, v1alpha1.ReasonUpgradeStopped, newImage},
		"it takes up no memory of them":  {func(d *decision) { d.Agents["shard"].Facts.Versions = versions(3, 5, 8, 9) }, v1alpha1.ReasonUpgradeRefused, oldImage},
		"a compute shard has no session": {func(d *decision) { d.Agents["shard"].Facts.Ready = false }, "", oldImage},
	} {
		u := newUpgrade(t, 2)
		u.crash(u.NodePods["cache-memory-1"])
		d := u.undecided()
		for _, n := range d.nodes {
			n.agent.Facts.Versions = versions(3, 4, 7, 7)
			n.agent.Facts.Versions.MemoryFormat = 7
		}
		c.change(d)
		d.decideUpgrade(true)
		reason := ""
		if d.upgrade.trouble != nil {
			reason = d.upgrade.trouble.reason
		}
		if d.upgrade.image != c.want || reason != c.reason {
			t.Errorf("%s: new memory nodes get %s, and the reason is %q", name, d.upgrade.image, reason)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"

	farpoolv1alpha1 "farpool.dev/farpool/api/gen/farpool/v1alpha1"
	"farpool.dev/farpool/api/v1alpha1"
	apiac "farpool.dev/farpool/api/v1alpha1/applyconfiguration/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/pki"
	"farpool.dev/farpool/operator/internal/render"
	"farpool.dev/farpool/operator/internal/shardmap"
)

// deleted are the names of what a plan deletes, sorted.
func deleted(plan *Plan) []string {
	var names []string
	for _, object := range plan.Delete {
		names = append(names, object.GetName())
	}
	slices.Sort(names)
	return names
}

// secretApplied is the Secret of a name that a plan applies; nil: it applies none.
func secretApplied(plan *Plan, name string) *corev1ac.SecretApplyConfiguration {
	for _, object := range plan.Apply {
		if secret, ok := object.(*corev1ac.SecretApplyConfiguration); ok && *secret.Name == name {
			return secret
		}
	}
	return nil
}

// A pool is served over TCP, or over RoCEv2 by an attachment.
func TestTransportsThatAreServed(t *testing.T) {
	attachment := &v1alpha1.AttachmentSpec{HostNetwork: &v1alpha1.HostNetworkAttachment{}}
	for _, c := range []struct {
		transport  v1alpha1.Transport
		attachment *v1alpha1.AttachmentSpec
		served     bool
	}{
		{v1alpha1.TransportTCP, nil, true}, {v1alpha1.TransportRoCEv2, attachment, true}, {v1alpha1.TransportRoCEv2, nil, false}, {"Carrier", attachment, false}, {"Carrier", nil, false},
	} {
		s := newScene(1, v1alpha1.DataPolicyCache)
		s.Pool.Spec.Network.Transport, s.Pool.Spec.Network.Attachment = c.transport, c.attachment
		status, reason := metav1.ConditionFalse, v1alpha1.ReasonUnsupported
		if c.served {
			status, reason = metav1.ConditionTrue, v1alpha1.ReasonAccepted
		}
		wantCondition(t, s.decide(t), v1alpha1.ConditionSpecValid, status, reason)
	}
}

// A memory node's name says its memory pool and ordinal, in exactly the form in which it was made.
func TestWhoseNameAMemoryNodeHas(t *testing.T) {
	d := stageOf(v1alpha1.DataPolicyCache, 0)
	d.Pool.Spec.Memory.Pools = []v1alpha1.MemoryPool{{Name: "memory"}, {Name: "more"}}
	for name, ordinal := range map[string]int32{"cache-memory-7": 7, "cache-more-0": 0, "cache-memory-007": -1, "cache-memory-x": -1, "cache-memory-": -1, "cache-memory-256": -1, "another-memory-7": -1, "7": -1} {
		n := d.beyond(name)
		if (n == nil) != (ordinal < 0) || n != nil && (n.ordinal != ordinal || n.name != name || !strings.Contains(name, n.pool.Name)) {
			t.Errorf("%s is %+v", name, n)
		}
	}
}

// A memory node is believed that has followed maps of a backup that was restored, and not one that has followed what no operator can have signed; and an endpoint
// that a map can hold is believed.
func TestWhatIsBelievedOfAMemoryNode(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*farpoolv1alpha1.MemoryNodeFacts)
		says   string
	}{
		"as far as can be": {func(facts *farpoolv1alpha1.MemoryNodeFacts) { facts.RecordedEpoch = 7 + farthest }, ""},
		"too far":          {func(facts *farpoolv1alpha1.MemoryNodeFacts) { facts.RecordedEpoch = 8 + farthest }, "it is not believed"},
		"the longest": {func(facts *farpoolv1alpha1.MemoryNodeFacts) {
			facts.Endpoint = strings.Repeat("e", shardmap.LongestEndpoint)
		}, ""},
		"longer than that": {func(facts *farpoolv1alpha1.MemoryNodeFacts) {
			facts.Endpoint = strings.Repeat("e", shardmap.LongestEndpoint+1)
		}, "a map holds"},
		"no endpoint at all": {func(facts *farpoolv1alpha1.MemoryNodeFacts) { facts.Endpoint = "" }, "no endpoint"},
	} {
		d := stageOf(v1alpha1.DataPolicyCache, 1, "a")
		d.version = render.Newest
		d.Pool.Spec.Index.RACE = &v1alpha1.RACESpec{TablePercent: 25, Tables: 16384, LeastTables: 1}
		c.change(d.nodes[0].facts.MemoryNode)
		if says := d.mismatch(d.nodes[0]); (says == "") != (c.says == "") || !strings.Contains(says, c.says) {
			t.Errorf("%s: %q", name, says)
		}
	}
}

// A password is drawn once: clients know it.
func TestAPasswordIsDrawnOnce(t *testing.T) {
	s := newScene(1, v1alpha1.DataPolicyCache)
	drawn := secretApplied(&s.decide(t).Plan, "cache-password")
	if len(drawn.Data[render.KeyPassword]) != 32 {
		t.Errorf("%q", drawn.Data)
	}
	s.Secrets["cache-password"] = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "cache-password"}, Data: map[string][]byte{render.KeyPassword: []byte("a person's")}}
	if kept := secretApplied(&s.decide(t).Plan, "cache-password"); string(kept.Data[render.KeyPassword]) != "a person's" {
		t.Errorf("%q", kept.Data)
	}
}

// A paused pool's certificates are renewed if it has them, whichever are missing.
func TestCertificatesOfAPausedPool(t *testing.T) {
	s := newTrust(2)
	s.carryOut(t, &s.decide(t).Plan)
	s.Pool.Spec.Management = v1alpha1.ManagementPaused
	missing, has := render.NodeTLSSecretOf("cache-memory-0"), render.NodeTLSSecretOf("cache-memory-1")
	delete(s.Secrets, missing)
	s.now = s.now.Add(60 * 24 * time.Hour)
	plan := s.decide(t)
	if renewed := secretApplied(&plan.Plan, has); renewed == nil || bytes.Equal(renewed.Data[pki.KeyCertificate], s.Secrets[has].Data[pki.KeyCertificate]) || secretApplied(&plan.Plan, missing) != nil {
		t.Errorf("the certificate that it has is applied as %v, and the one that is missing as %v", renewed, secretApplied(&plan.Plan, missing))
	}
}

// What lies in the namespace of a pool that never had its Secrets there is nobody's to delete.
func TestOfANewPoolNothingWasTakenOver(t *testing.T) {
	s := newTrust(1)
	s.Secrets["cache-secret"] = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "cache-secret"}, Data: s.Kept[render.KeptSecretNames("cache", "uid")[1]].Data}
	if names := deleted(&s.decide(t).Plan); len(names) > 0 {
		t.Errorf("%v are deleted", names)
	}
}

// The first certificate that should have been renewed is remembered, whatever others there are.
func TestTheFirstCertificateThatIsOverdue(t *testing.T) {
	s := newTrust(1)
	s.carryOut(t, &s.decide(t).Plan)
	early := s.Secrets[render.NodeTLSSecretOf("cache-memory-0")].Data
	s.now = s.now.Add(60 * 24 * time.Hour)
	s.carryOut(t, &s.decide(t).Plan)
	late := s.Secrets[render.NodeTLSSecretOf("cache-memory-0")].Data
	for _, order := range [][]pki.Data{{early, late, nil}, {late, nil, early}, {nil, early}} {
		d := &decision{}
		for _, held := range order {
			d.overdue(held)
		}
		if !d.Status.CertificatesOverdue.Equal(pki.Overdue(early)) {
			t.Errorf("%v, want %v", d.Status.CertificatesOverdue, pki.Overdue(early))
		}
	}
}

// A memory node has a certificate for as long as anything of it is there.
func TestWhoHasACertificate(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*decision, *node)
		has    bool
	}{
		"it is asked for":        {func(_ *decision, n *node) { n.wanted = true }, true},
		"its object is there":    {func(_ *decision, n *node) { n.object = &v1alpha1.MemoryNode{} }, true},
		"its pod is there":       {func(_ *decision, n *node) { n.pod = &corev1.Pod{} }, true},
		"the map has it":         {func(d *decision, _ *node) { d.epochs.current.Nodes[0].Name = "b" }, true},
		"nothing of it is there": {func(*decision, *node) {}, false},
	} {
		d := stageOf(v1alpha1.DataPolicyCache, 1, "a", "b")
		d.version = render.Newest
		n := d.nodes[1]
		n.wanted, n.object, n.pod = false, nil, nil
		c.change(d, n)
		has := slices.ContainsFunc(d.wantedCertificates(), func(wanted wantedCertificate) bool { return wanted.secret == render.NodeTLSSecretOf("b") })
		if has != c.has {
			t.Errorf("%s: it has a certificate: %v", name, has)
		}
	}
}

// Memory nodes that are to go are kept up while the map has them, and left alone afterwards, whatever becomes of their pods.
func TestMemoryNodesThatAreToGoAreKeptUp(t *testing.T) {
	s := newScene(3, v1alpha1.DataPolicyCache)
	s.carryOut(t, &s.decide(t).Plan)
	s.Pool.Spec.Memory.Pools[0].Replicas = 1
	s.MemoryPools = map[string]*v1alpha1.MemoryNodePool{"cache-memory": {Spec: v1alpha1.MemoryNodePoolSpec{Declared: 1, Replicas: 1}}}
	// The map has lost the second, of which the pod has failed. The third is still in it, and has no pod.
	spec := &s.ShardMaps[0].Spec
	spec.Nodes, spec.Tables, spec.Directory = slices.Delete(spec.Nodes, 1, 2), []v1alpha1.ShardMapTable{{ID: 0, Node: 0}, {ID: 2, Node: 1}}, v1alpha1.Directory{Depth: 1, Tables: []int32{0, 2}}
	s.NodePods["cache-memory-1"].Status.Phase = corev1.PodFailed
	s.silence("cache-memory-1")
	delete(s.NodePods, "cache-memory-2")
	plan := s.decide(t)
	made := slices.ContainsFunc(plan.Apply, func(object render.Object) bool {
		pod, ok := object.(*corev1ac.PodApplyConfiguration)
		return ok && *pod.Name == "cache-memory-2"
	})
	if names := deleted(&plan.Plan); !made || len(names) > 0 {
		t.Errorf("the third is made: %v; deleted are %v", made, names)
	}
}

// What is told of a map is told when its object is there. What is told with another object stays with that.
func TestAnEventOfAMapIsToldWithIt(t *testing.T) {
	s := newScene(1, v1alpha1.DataPolicyCache)
	found := false
	for _, event := range s.decide(t).Events {
		if event.Reason == v1alpha1.ReasonEpochPublished {
			_, found = event.With.(*apiac.ShardMapApplyConfiguration)
		}
	}
	if !found {
		t.Error("it is told without its map")
	}
	w := newWard(t)
	w.gone("a")
	w.answer("cache-memory-0", 300, nil)
	plan := w.step()
	if made(plan) == 0 || len(w.Leases) != 1 {
		t.Fatalf("epoch %d and %d RepairLeases are made", made(plan), len(w.Leases))
	}
	for _, event := range plan.Events {
		if _, with := event.With.(*apiac.RepairLeaseApplyConfiguration); with != (event.Reason == v1alpha1.ReasonClientsDied) {
			t.Errorf("%s is told with %T", event.Reason, event.With)
		}
	}
}

// A pod of a memory node that has ended never comes back by itself, however it ended.
func TestPodsThatHaveEndedAreMadeAnew(t *testing.T) {
	for phase, goes := range map[corev1.PodPhase]bool{corev1.PodFailed: true, corev1.PodSucceeded: true, corev1.PodRunning: false, corev1.PodUnknown: false} {
		s := newScene(1, v1alpha1.DataPolicyCache)
		s.NodePods["cache-memory-0"].Status.Phase = phase
		if names := deleted(&s.decide(t).Plan); (len(names) == 1) != goes {
			t.Errorf("%s: deleted are %v", phase, names)
		}
	}
}

// A MemoryNode that is drained goes after its pod, and nothing is deleted twice.
func TestAMemoryNodeGoesAfterItsPod(t *testing.T) {
	now := &metav1.Time{Time: start}
	for name, c := range map[string]struct {
		change func(*node)
		goes   string
	}{
		"both are there":           {func(*node) {}, "pod"},
		"its pod is being deleted": {func(n *node) { n.pod.DeletionTimestamp = now }, ""},
		"its pod is gone":          {func(n *node) { n.pod = nil }, "object"},
		"it is being deleted":      {func(n *node) { n.pod, n.object.DeletionTimestamp = nil, now }, ""},
		"it is not drained":        {func(n *node) { n.object.Status.Conditions = nil }, ""},
	} {
		d := stageOf(v1alpha1.DataPolicyCache, 1, "a", "b")
		n := d.nodes[1]
		n.wanted, n.object.Status.Conditions = false, saidToGo
		n.pod.Name, n.object.Name = "pod", "object"
		c.change(n)
		d.removals()
		if names := strings.Join(deleted(&d.Plan), " "); names != c.goes {
			t.Errorf("%s: deleted are %s", name, names)
		}
	}
}

// Deployments go that no compute pool of the spec has. Maps go but for the last three.
func TestWhatTheSpecDoesNotAskForGoes(t *testing.T) {
	d := stageOf(v1alpha1.DataPolicyCache, 1, "a")
	d.pool = render.Pool{Name: "cache", Namespace: "shop", UID: "uid", Spec: v1alpha1.KVPoolSpec{Compute: &v1alpha1.ComputeSpec{Pools: []v1alpha1.ComputePool{{Name: "shards"}}}}}
	d.Deployments = map[string]*appsv1.Deployment{"cache-shards": deploymentOf("cache-shards", false), "cache-old": deploymentOf("cache-old", false), "cache-older": deploymentOf("cache-older", true)}
	for _, name := range []string{"map-1", "map-2", "map-3", "map-4", "map-5"} {
		d.ShardMaps = append(d.ShardMaps, &v1alpha1.ShardMap{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	if d.removals(); !slices.Equal(deleted(&d.Plan), []string{"cache-old", "map-1", "map-2"}) {
		t.Errorf("deleted are %v", deleted(&d.Plan))
	}
}

func deploymentOf(name string, deleted bool) *appsv1.Deployment {
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if deleted {
		deployment.DeletionTimestamp = &metav1.Time{Time: start}
	}
	return deployment
}

// A Deployment that the spec does not ask for stays until all Deployments that take its place are made.
func TestADeploymentGoesWhenOthersTakeItsPlace(t *testing.T) {
	a, b := render.Object(appsv1ac.Deployment("cache-a", "shop")), render.Object(appsv1ac.Deployment("cache-b", "shop"))
	all := map[string]render.Object{"cache-a": a, "cache-b": b}
	for _, c := range []struct {
		name    string
		asked   []string
		there   map[string]bool // true: it is being deleted
		applied map[string]render.Object
		goes    bool
		needs   []render.Object
	}{
		{"the spec asks for none", nil, nil, nil, true, nil},
		{"all are there", []string{"a", "b"}, map[string]bool{"a": false, "b": false}, all, true, nil},
		{"all are there, and cannot be made as they should be", []string{"a", "b"}, map[string]bool{"a": false, "b": false}, nil, true, nil},
		{"one is not there", []string{"a", "b"}, map[string]bool{"a": false}, all, true, []render.Object{b}},
		{"none is there", []string{"a", "b"}, nil, all, true, []render.Object{a, b}},
		{"one is still being deleted", []string{"a"}, map[string]bool{"a": true}, all, true, []render.Object{a}},
		{"one is not there, and cannot be made", []string{"a", "b"}, map[string]bool{"a": false}, map[string]render.Object{"cache-a": a}, false, nil},
	} {
		d := stageOf(v1alpha1.DataPolicyCache, 0)
		d.pool = render.Pool{Name: "cache", Namespace: "shop", UID: "uid", Spec: v1alpha1.KVPoolSpec{Compute: &v1alpha1.ComputeSpec{}}}
		for _, name := range c.asked {
			d.pool.Spec.Compute.Pools = append(d.pool.Spec.Compute.Pools, v1alpha1.ComputePool{Name: name})
		}
		old := deploymentOf("cache-old", false)
		d.Deployments, d.deployments = map[string]*appsv1.Deployment{"cache-old": old}, c.applied
		for name, deleted := range c.there {
			d.Deployments["cache-"+name] = deploymentOf("cache-"+name, deleted)
		}
		d.removals()
		if goes := slices.Equal(deleted(&d.Plan), []string{"cache-old"}); goes != c.goes || !goes && len(d.Delete) > 0 || !slices.Equal(d.DeleteNeeds[old], c.needs) {
			t.Errorf("%s: deleted are %v, which need %v", c.name, deleted(&d.Plan), d.DeleteNeeds[old])
		}
	}

	// The very object that is applied is needed.
	s := newScene(1, v1alpha1.DataPolicyCache)
	s.withShard()
	s.Pool.Spec.Compute.Pools[0].Name = "other"
	plan := s.decide(t)
	needs := plan.DeleteNeeds[s.Deployments["cache-shards"]]
	if len(needs) != 1 || !slices.Contains(plan.Apply, needs[0]) || *needs[0].(*appsv1ac.DeploymentApplyConfiguration).Name != "cache-other" {
		t.Errorf("cache-shards goes after %v", needs)
	}
}

// Pods that run, or may still run, mount a Secret; pods that have ended do not.
func TestWhoMountsASecret(t *testing.T) {
	of := func(secret string) corev1.PodSpec {
		return corev1.PodSpec{Volumes: []corev1.Volume{{VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{}}}, {VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: secret}}}}}
	}
	for _, c := range []struct {
		spec    corev1.PodSpec
		phase   corev1.PodPhase
		mounted bool
	}{
		{of("ours"), corev1.PodRunning, true}, {of("ours"), corev1.PodPending, true}, {of("ours"), corev1.PodFailed, false}, {of("ours"), corev1.PodSucceeded, false}, {of("another"), corev1.PodRunning, false},
		{of("another"), corev1.PodFailed, false},
	} {
		d := stageOf(v1alpha1.DataPolicyCache, 0)
		d.ComputePods = []*corev1.Pod{{Spec: c.spec, Status: corev1.PodStatus{Phase: c.phase}}}
		if mounted := d.mounted("ours"); mounted != c.mounted {
			t.Errorf("%s with %+v: mounted is %v", c.phase, c.spec.Volumes[1].Secret, mounted)
		}
	}
}

// The operator looks again at the first time at which something is due, and not before a second has passed.
func TestWhenThePoolIsLookedAtAgain(t *testing.T) {
	d := &decision{Input: Input{Now: start}}
	for _, c := range []struct{ due, again time.Duration }{{time.Minute, time.Minute}, {time.Hour, time.Minute}, {5 * time.Second, 5 * time.Second}, {-time.Hour, time.Second}} {
		if d.due(start.Add(c.due)); d.RequeueAfter != c.again {
			t.Errorf("due in %s: looked at again in %s", c.due, d.RequeueAfter)
		}
	}
}

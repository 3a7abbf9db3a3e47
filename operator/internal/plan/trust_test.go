// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"bytes"
	"encoding/base64"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"

	farpoolv1alpha1 "farpool.dev/farpool/api/gen/farpool/v1alpha1"
	"farpool.dev/farpool/api/v1alpha1"
	apiac "farpool.dev/farpool/api/v1alpha1/applyconfiguration/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/agent"
	"farpool.dev/farpool/operator/internal/render"
	"farpool.dev/farpool/operator/internal/shardmap"
)

var testMapKey = bytes.Repeat([]byte{7}, shardmap.KeyBytes)

// withMapKey gives the pool a map key, and returns the public one as pods get it.
func (s *scene) withMapKey() string {
	name := render.KeptSecretNames("cache", "uid")[1]
	s.Kept[name] = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "farpool-system", Name: name, ResourceVersion: "1"},
		Data: map[string][]byte{render.KeyPoolSecret: bytes.Repeat([]byte{1}, 16), render.KeyMapKey: testMapKey}}
	return base64.StdEncoding.EncodeToString(shardmap.PublicKey(testMapKey))
}

// newTrust is a pool of the newest template: its maps are signed.
func newTrust(nodes int) *scene {
	s := newScene(nodes, v1alpha1.DataPolicyCache)
	for _, node := range s.Nodes {
		node.Spec.TemplateVersion = render.Newest
	}
	s.withMapKey()
	return s
}

// made is the epoch of the map that a plan makes; 0: none.
func made(plan *decision) int64 {
	for _, object := range plan.Apply {
		if shardMap, ok := object.(*apiac.ShardMapApplyConfiguration); ok {
			return *shardMap.Spec.Epoch
		}
	}
	return 0
}

// A memory node that names an epoch and shows no map of it uses up no epochs: neither as the first nor in a pool that has maps.
func TestEpochsWithoutSignedMapsAreNotBelieved(t *testing.T) {
	for _, claim := range []uint64{7, 9999999999} {
		s := newTrust(2)
		s.Agents["pod-cache-memory-0"].Facts.MemoryNode.RecordedEpoch = claim
		if epoch := made(s.decide(t)); epoch != 0 {
			t.Errorf("a memory node claims epoch %d, and epoch %d is the first", claim, epoch)
		}

		s = newTrust(2)
		s.carryOut(t, &s.decide(t).Plan)
		s.answer("cache-memory-0", 200, nil)
		s.Agents["pod-cache-memory-0"].Facts.MemoryNode.RecordedEpoch = claim
		if epoch := made(s.decide(t)); epoch != 0 && epoch != 2 {
			t.Errorf("a memory node claims epoch %d, and the next one is %d", claim, epoch)
		}
		// The pod is made anew, as the message says, and the pool goes on with the next epoch.
		s.answer("cache-memory-0", 201, nil)
		if next := published(t, s.decide(t)); next.Epoch != 2 {
			t.Errorf("after a claim of %d the next epoch is %d", claim, next.Epoch)
		}
	}

	// A memory node that shows the map is believed: the streams have checked the operator's signature.
	s := newTrust(2)
	s.carryOut(t, &s.decide(t).Plan)
	held := s.Agents["pod-cache-memory-1"].Facts.MemoryNode.Map
	held.Epoch = 41
	s.answer("cache-memory-1", 101, held)
	if epoch := made(s.decide(t)); epoch != 41 {
		t.Errorf("a signed map of epoch 41 is not taken over, and %d is the next epoch", epoch)
	}
}

// Published maps are signed in pools whose pods check signatures, and in no other pools: their memory nodes know no key.
func TestMapsAreSignedFromTemplate4On(t *testing.T) {
	for version := int32(1); version <= render.Newest; version++ {
		s := newTrust(1)
		s.Nodes["cache-memory-0"].Spec.TemplateVersion = version
		plan := s.decide(t)
		if len(plan.Publish) != 1 {
			t.Fatalf("template %d: %v", version, plan.Publish)
		}
		if signed := plan.Publish[0].MapKey != nil; signed != (version >= 4) {
			t.Errorf("template %d: signed: %v", version, signed)
		}
		for _, target := range plan.Targets {
			if strict := target.Holder == "cache-memory-0" && target.MapKey != ""; strict != (version >= 4) || !strict && (target.Holder != "" || target.MapKey != "") {
				t.Errorf("template %d: %+v", version, target)
			}
		}
		var names []string
		for _, object := range plan.Apply {
			if secret, ok := object.(*corev1ac.SecretApplyConfiguration); ok && strings.HasSuffix(*secret.Name, "-tls") {
				names = append(names, *secret.Name)
			}
		}
		want := []string{"cache-node-tls", "cache-client-tls"}
		if version >= 4 {
			want = []string{"cache-memory-0-node-tls"}
		}
		if !slices.Equal(names, want) {
			t.Errorf("template %d: certificates %v", version, names)
		}
	}
}

// Without the map key nothing is made that would take unsigned maps, and no memory node is listened to.
func TestALostMapKeyStopsTheOperator(t *testing.T) {
	s := newTrust(1)
	s.withShard()
	s.carryOut(t, &s.decide(t).Plan)
	delete(s.Kept[render.KeptSecretNames("cache", "uid")[1]].Data, render.KeyMapKey)
	delete(s.NodePods, "cache-memory-0")
	plan := s.decide(t)
	wantCondition(t, plan, v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonSecretMissing)
	for _, object := range plan.Apply {
		switch object := object.(type) {
		case *corev1ac.PodApplyConfiguration, *appsv1ac.DeploymentApplyConfiguration, *corev1ac.ConfigMapApplyConfiguration:
			t.Errorf("applied: %v", object)
		case *corev1ac.SecretApplyConfiguration:
			if object.Data[render.KeyMapKey] != nil {
				t.Error("another map key is drawn")
			}
		}
	}
	if len(plan.Publish) != 0 || slices.ContainsFunc(plan.Targets, func(target agent.Target) bool { return target.Role == farpoolv1alpha1.Role_ROLE_MEMORY_NODE }) {
		t.Errorf("%v %v", plan.Publish, plan.Targets)
	}
}

// What another operator has drawn of the two stays: in a pool without maps, only what is missing is drawn.
func TestAHashSecretIsNotDrawnAgainForAMapKey(t *testing.T) {
	s := newTrust(1)
	kept := s.Kept[render.KeptSecretNames("cache", "uid")[1]]
	delete(kept.Data, render.KeyMapKey)
	for _, object := range s.decide(t).Apply {
		if secret, ok := object.(*corev1ac.SecretApplyConfiguration); ok && *secret.Name == kept.Name {
			if !bytes.Equal(secret.Data[render.KeyPoolSecret], kept.Data[render.KeyPoolSecret]) || len(secret.Data[render.KeyMapKey]) != shardmap.KeyBytes {
				t.Errorf("%v", secret.Data)
			}
		}
	}
}

// A pod is made with a public key only once the private one is written down: another operator may have drawn another.
func TestNoPodIsMadeWithAMapKeyThatIsNotWrittenDown(t *testing.T) {
	s := newTrust(1)
	s.withShard()
	s.Kept = map[string]*corev1.Secret{}
	delete(s.NodePods, "cache-memory-0")
	plan := s.decide(t)
	found := 0
	for _, object := range plan.Apply {
		switch object.(type) {
		case *corev1ac.PodApplyConfiguration, *appsv1ac.DeploymentApplyConfiguration, *corev1ac.ConfigMapApplyConfiguration:
			found++
			needs := plan.Needs[object]
			if secret, ok := needs[0].(*corev1ac.SecretApplyConfiguration); len(needs) != 1 || !ok || secret.Data[render.KeyMapKey] == nil {
				t.Errorf("%T does not wait for the Secret", object)
			}
		}
	}
	if found != 3 {
		t.Errorf("%d objects hold the key", found)
	}
}

// Secrets of memory nodes and compute pools that have gone go too; a Secret that is somebody else's stays.
func TestCertificatesGoWithTheirHolders(t *testing.T) {
	s := newTrust(1)
	ours := metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(s.Pool, v1alpha1.GroupVersion.WithKind("KVPool"))}}
	for _, name := range []string{"cache-memory-5-node-tls", "cache-old-client-tls", "cache-memory-0-node-tls"} {
		s.Secrets[name] = &corev1.Secret{ObjectMeta: *ours.DeepCopy()}
		s.Secrets[name].Name = name
	}
	s.Secrets["strange-node-tls"] = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "strange-node-tls"}}
	var deleted []string
	for _, object := range s.decide(t).Delete {
		deleted = append(deleted, object.GetName())
	}
	if !slices.Equal(deleted, []string{"cache-memory-5-node-tls", "cache-old-client-tls"}) {
		t.Errorf("deleted %v", deleted)
	}
	s.ComputePods = []*corev1.Pod{{Spec: corev1.PodSpec{Volumes: []corev1.Volume{{VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "cache-old-client-tls"}}}}}}}
	for _, object := range s.decide(t).Delete {
		if object.GetName() == "cache-old-client-tls" {
			t.Error("a pod that runs still mounts it")
		}
	}
}

// The operator wants to see the certificate of the Deployment that made the pod, whatever the pod's labels say.
func TestComputeShardsShowTheCertificateOfTheirDeployment(t *testing.T) {
	s := newTrust(1)
	s.withShard()
	s.ComputePods = []*corev1.Pod{{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cache-shards-x", UID: "shard", Labels: map[string]string{v1alpha1.LabelComputePool: "others"}},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.0.1.1"},
	}}
	s.DeploymentOf = map[types.UID]string{"shard": "cache-shards"}
	for _, target := range s.decide(t).Targets {
		if target.Pod == "shard" && target.Holder != "cache-shards" {
			t.Errorf("%+v", target)
		}
	}
}

// A compute shard that claims a late epoch does not decide which epoch comes next.
func TestEpochsOfClientsAreNotBelieved(t *testing.T) {
	s := newScene(2, v1alpha1.DataPolicyCache)
	s.carryOut(t, &s.decide(t).Plan)
	s.ComputePods = []*corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cache-shards-1", UID: "shard"}}}
	s.Agents["shard"] = agent.Observation{State: agent.Connected, Facts: &farpoolv1alpha1.Facts{
		PoolUid: "uid", Role: farpoolv1alpha1.Role_ROLE_COMPUTE_SHARD, Name: "cache-shards-1", Incarnation: 7, Epoch: v1alpha1.MostEpochs,
	}}
	s.answer("cache-memory-0", 200, nil)
	if next := published(t, s.decide(t)); next.Epoch != 2 {
		t.Errorf("a compute shard claims epoch %d, and the next one is %d", int64(v1alpha1.MostEpochs), next.Epoch)
	}
}

// A pod that bears the pool's labels and is not of it is named once, when its owners had time to show up.
func TestForeignPodsAreNamed(t *testing.T) {
	s := newScene(1, v1alpha1.DataPolicyCache)
	s.carryOut(t, &s.decide(t).Plan)
	s.carryOut(t, &s.decide(t).Plan)
	s.Foreign = []*corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "stranger", UID: "stranger", CreationTimestamp: metav1.NewTime(s.now)}}}
	plan := s.decide(t)
	wantCondition(t, plan, v1alpha1.ConditionDegraded, metav1.ConditionFalse, v1alpha1.ReasonHealthy)
	if plan.RequeueAfter != strangerAfter {
		t.Errorf("looked at again after %s", plan.RequeueAfter)
	}
	s.now = s.now.Add(plan.RequeueAfter)
	for turn, told := range []int{1, 0} {
		plan = s.decide(t)
		wantCondition(t, plan, v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonForeignPods)
		events := slices.DeleteFunc(plan.Status.Events, func(e Event) bool { return e.Reason != v1alpha1.ReasonForeignPods })
		if len(events) != told {
			t.Errorf("turn %d: told %v", turn, events)
		}
		if slices.ContainsFunc(plan.Targets, func(target agent.Target) bool { return target.Name == "stranger" }) {
			t.Error("the operator keeps a stream to it")
		}
		s.carryOut(t, &plan.Plan)
		s.now = s.now.Add(time.Minute)
	}
	if message := meta.FindStatusCondition(s.Pool.Status.Conditions, v1alpha1.ConditionDegraded).Message; !strings.Contains(message, "stranger") {
		t.Error(message)
	}
}

// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	farpoolv1alpha1 "farpool.dev/farpool/api/gen/farpool/v1alpha1"
	"farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/agent"
)

// podsOnly is an API server that knows the metadata of pods. It answers a list in pieces, and counts what it is asked.
type podsOnly struct {
	pods        []metav1.PartialObjectMetadata
	gets, lists int
	// fails is the number of the list that fails.
	fails int
}

var errNoAnswer = errors.New("no answer")

func (p *podsOnly) Get(_ context.Context, key client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	p.gets++
	for _, pod := range p.pods {
		if client.ObjectKeyFromObject(&pod) == key {
			found := object.(*metav1.PartialObjectMetadata)
			pod.TypeMeta = found.TypeMeta
			*found = pod
			return nil
		}
	}
	return apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, key.Name)
}

func (p *podsOnly) List(_ context.Context, list client.ObjectList, options ...client.ListOption) error {
	p.lists++
	if p.lists == p.fails {
		return errNoAnswer
	}
	asked := (&client.ListOptions{}).ApplyOptions(options)
	of := slices.DeleteFunc(slices.Clone(p.pods), func(pod metav1.PartialObjectMetadata) bool { return pod.Namespace != asked.Namespace })
	begin := 0
	if asked.Continue != "" {
		var err error
		if begin, err = strconv.Atoi(asked.Continue); err != nil {
			return err
		}
	}
	end := min(begin+int(asked.Limit), len(of))
	answer := list.(*metav1.PartialObjectMetadataList)
	answer.Items, answer.Continue = of[begin:end], ""
	if end < len(of) {
		answer.Continue = strconv.Itoa(end)
	}
	return nil
}

// The same is found of pods that the cache does not show, whether they are asked for one by one or are too many for that.
func TestPodsThatTheCacheDoesNotShow(t *testing.T) {
	pod := func(namespace, name, uid string) metav1.PartialObjectMetadata {
		return metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(uid)}}
	}
	for _, c := range []struct{ absent, others, lists int }{
		{askedOneByOne, 0, 0},
		{askedOneByOne + 1, 0, 1},
		{1024, podsInAnAnswer, 3},
	} {
		t.Run(fmt.Sprintf("%d absent, %d of others", c.absent, c.others), func(t *testing.T) {
			live := &podsOnly{}
			shards := &v1alpha1.ComputeShardPool{}
			written := func(name, uid string) {
				shards.Status.Processes = append(shards.Status.Processes, v1alpha1.ProcessStatus{Process: uid, Name: name, PodUID: uid})
			}
			// The cache shows the first. A third of the rest is there, a third is gone, and a third's names are other pods' by now.
			s := &Snapshot{Pool: &v1alpha1.KVPool{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cache"}}, ComputePools: map[string]*v1alpha1.ComputeShardPool{"shards": shards},
				ComputePods: []*corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "shown", UID: "shown"}}}}
			written("shown", "shown")
			want, unlabelled := map[types.UID]bool{}, []string{}
			for i := range c.absent {
				name := fmt.Sprintf("shard-%04d", i)
				written(name, "uid-"+name)
				switch i % 3 {
				case 0:
					live.pods = append(live.pods, pod("shop", name, "uid-"+name))
					unlabelled = append(unlabelled, name)
				case 1:
					want[types.UID("uid-"+name)] = true
				default:
					live.pods = append(live.pods, pod("shop", name, "another-"+name))
					want[types.UID("uid-"+name)] = true
				}
			}
			for i := range c.others {
				live.pods = append(live.pods, pod("shop", fmt.Sprintf("other-%d", i), fmt.Sprintf("other-%d", i)))
			}
			// A pod of another namespace has a UID that nobody looks for there.
			live.pods = append(live.pods, pod("bank", "shard-0001", "uid-shard-0001"))

			gone, err := s.gone(t.Context(), live)
			if err != nil {
				t.Fatal(err)
			}
			for _, process := range shards.Status.Processes {
				if uid := types.UID(process.PodUID); gone[uid] != want[uid] {
					t.Errorf("pod %s is gone: %v", process.Name, gone[uid])
				}
			}
			var found []string
			for _, pod := range s.Unlabelled {
				if pod.Kind != "Pod" || pod.APIVersion != "v1" {
					t.Errorf("pod %s is a %s of %s: nothing can be written to it", pod.Name, pod.Kind, pod.APIVersion)
				}
				found = append(found, pod.Name)
			}
			slices.Sort(found)
			if !slices.Equal(found, unlabelled) {
				t.Errorf("%d pods are there without their labels (%s), want %d", len(found), strings.Join(found[:min(len(found), 3)], ", "), len(unlabelled))
			}
			if gets := c.absent * max(0, 1-c.lists); live.gets != gets || live.lists != c.lists {
				t.Errorf("it took %d questions for one pod and %d for all, want %d and %d", live.gets, live.lists, gets, c.lists)
			}
		})
	}
}

// Memory nodes name clients whose sessions they have ended. The API server is asked for the pods of clients that left something, if the cache does not show these, and if their names can be those of pods.
func TestPodsThatMemoryNodesName(t *testing.T) {
	for _, others := range []int{0, askedOneByOne} {
		left := func(name string) *farpoolv1alpha1.DeadClient {
			return &farpoolv1alpha1.DeadClient{Process: 7, Name: name, Segments: 1}
		}
		dead := []*farpoolv1alpha1.DeadClient{left("shown"), left("young"), left("young"), left("gone"), left("elsewhere"), left("No pod/0"), left(v1alpha1.SidecarIdentity("shop") + "-web"), {Process: 8, Name: "idle"}}
		for i := range others {
			dead = append(dead, left(fmt.Sprintf("other-%d", i)))
		}
		live := &podsOnly{}
		for _, name := range []string{"shown", "young", "idle", "bystander"} {
			live.pods = append(live.pods, metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name)}})
		}
		live.pods = append(live.pods, metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "bank", Name: "elsewhere", UID: "elsewhere"}})
		s := &Snapshot{Pool: &v1alpha1.KVPool{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cache"}},
			ComputePods: []*corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "shown", UID: "shown"}}},
			Agents:      map[types.UID]agent.Observation{"memory": {Facts: &farpoolv1alpha1.Facts{MemoryNode: &farpoolv1alpha1.MemoryNodeFacts{Dead: dead}}}}}
		unlisted, err := s.unlisted(t.Context(), live)
		if err != nil || len(unlisted) != 1 || !unlisted["young"] {
			t.Errorf("unlisted are %v, and the error is %v", unlisted, err)
		}
		if wants := map[bool][2]int{true: {3, 0}, false: {0, 1}}[others == 0]; live.gets != wants[0] || live.lists != wants[1] {
			t.Errorf("it took %d questions for one pod and %d for all", live.gets, live.lists)
		}
		s.Pool.Spec.Management = v1alpha1.ManagementPaused
		if unlisted, err := s.unlisted(t.Context(), nil); err != nil || len(unlisted) > 0 {
			t.Errorf("of a paused pool unlisted are %v, and the error is %v", unlisted, err)
		}
	}
}

// A pod counts as gone only when the API server has said so: an answer that stops in the middle says nothing of the rest.
func TestPodsAreNotGoneBecauseAnAnswerIsMissing(t *testing.T) {
	for fails := 1; fails <= 2; fails++ {
		live := &podsOnly{fails: fails}
		shards := &v1alpha1.ComputeShardPool{}
		for i := range podsInAnAnswer + 1 {
			name := fmt.Sprintf("shard-%d", i)
			shards.Status.Processes = append(shards.Status.Processes, v1alpha1.ProcessStatus{Process: name, Name: name, PodUID: name})
			live.pods = append(live.pods, metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name)}})
		}
		s := &Snapshot{Pool: &v1alpha1.KVPool{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cache"}}, ComputePools: map[string]*v1alpha1.ComputeShardPool{"shards": shards}}
		gone, err := s.gone(t.Context(), live)
		if !errors.Is(err, errNoAnswer) || !strings.Contains(err.Error(), "namespace shop") || len(gone) != 0 || len(s.Unlabelled) != 0 {
			t.Errorf("answer %d is missing: %d pods are gone, %d have no label: %v", fails, len(gone), len(s.Unlabelled), err)
		}
	}
}

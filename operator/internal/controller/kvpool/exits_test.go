// SPDX-License-Identifier: Apache-2.0

package kvpool

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	"farpool.dev/farpool/api/v1alpha1"
)

// How a shard ended is known after its pod is gone, of pods that were being deleted and whose containers had all ended.
func TestExitsAreRemembered(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.Unix(1000, 0))
	e := &exits{clock: clock, seen: map[types.UID]exit{}}
	ended := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 3}}
	runs := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	pod := func(uid types.UID, component string, deleted bool, states ...corev1.ContainerState) *corev1.Pod {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid, Labels: map[string]string{v1alpha1.LabelComponent: component}}}
		if deleted {
			pod.DeletionTimestamp = &metav1.Time{Time: clock.Now()}
		}
		for _, state := range states {
			pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{State: state})
		}
		return pod
	}
	gone := map[types.UID]bool{"ended": true, "restarts": true, "half": true, "memory": true, "silent": true, "there": false, "never": true}
	e.see(pod("ended", v1alpha1.ComponentComputeShard, true, ended, ended))
	e.see(pod("restarts", v1alpha1.ComponentComputeShard, false, ended))
	e.see(pod("half", v1alpha1.ComponentComputeShard, true, ended, runs))
	e.see(pod("silent", v1alpha1.ComponentComputeShard, true))
	e.see(pod("memory", v1alpha1.ComponentMemoryNode, true, ended))
	e.see(pod("there", v1alpha1.ComponentComputeShard, true, ended))
	if of := e.of(gone); len(of) != 1 || of["ended"] == nil || of["ended"].ExitCode != 3 {
		t.Errorf("%v", of)
	}
	// What nobody can ask for any more is forgotten.
	clock.SetTime(clock.Now().Add(exitsKept))
	e.see(pod("later", v1alpha1.ComponentComputeShard, true, ended))
	if len(e.seen) != 3 {
		t.Errorf("%d are remembered", len(e.seen))
	}
	clock.SetTime(clock.Now().Add(time.Second))
	e.see(pod("latest", v1alpha1.ComponentComputeShard, true, ended))
	if len(e.seen) != 2 {
		t.Errorf("%d are remembered", len(e.seen))
	}
}

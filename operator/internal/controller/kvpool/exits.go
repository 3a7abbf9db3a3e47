// SPDX-License-Identifier: Apache-2.0

package kvpool

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/plan"
)

// exitsKept is how long the operator remembers how a pod ended: much longer than the longest time between two looks at a pool.
const exitsKept = 10 * time.Minute

// exits remembers how compute shards ended whose pods are gone. A kubelet reports it before the API server deletes a pod. In a fast rollout the cache has shown
// and forgotten both before the controller looks at the pool.
type exits struct {
	clock clock.PassiveClock
	mutex sync.Mutex
	seen  map[types.UID]exit
}

type exit struct {
	at    time.Time
	state *corev1.ContainerStateTerminated
}

// see records a pod as it was at some moment. The last record counts.
func (e *exits) see(pod *corev1.Pod) {
	if pod.Labels[v1alpha1.LabelComponent] != v1alpha1.ComponentComputeShard || pod.DeletionTimestamp.IsZero() || !plan.PodEnded(pod) {
		return
	}
	now := e.clock.Now()
	e.mutex.Lock()
	defer e.mutex.Unlock()
	for uid, known := range e.seen {
		if now.Sub(known.at) > exitsKept {
			delete(e.seen, uid)
		}
	}
	for _, container := range pod.Status.ContainerStatuses {
		if container.State.Terminated != nil {
			e.seen[pod.UID] = exit{now, container.State.Terminated.DeepCopy()}
			return
		}
	}
}

// of returns the exits of pods that are gone.
func (e *exits) of(gone map[types.UID]bool) map[types.UID]*corev1.ContainerStateTerminated {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	ended := map[types.UID]*corev1.ContainerStateTerminated{}
	for uid, is := range gone {
		if known, saw := e.seen[uid]; is && saw {
			ended[uid] = known.state
		}
	}
	return ended
}

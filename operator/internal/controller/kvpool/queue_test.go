// SPDX-License-Identifier: Apache-2.0

package kvpool

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
)

// A worker that waits for work ends with its queue, whatever is handed out at that moment. With controller-runtime v0.24 it could wait for ever
// (kubernetes-sigs/controller-runtime#3538): the operator then kept its Lease until it was killed.
func TestWorkersEndWithTheirQueue(t *testing.T) {
	for range 200 {
		queue := priorityqueue.New[int]("test")
		var workers sync.WaitGroup
		var taken atomic.Int64
		busy := make(chan struct{})
		for range 20 {
			workers.Go(func() {
				for {
					priority := rand.Int()
					queue.AddWithOpts(priorityqueue.AddOpts{Priority: &priority}, rand.Int())
					if _, _, ended := queue.GetWithPriority(); ended {
						return
					}
					if taken.Add(1) == 100 {
						close(busy)
					}
				}
			})
		}
		<-busy
		queue.ShutDown()
		ended := make(chan struct{})
		go func() { workers.Wait(); close(ended) }()
		select {
		case <-ended:
		case <-time.After(30 * time.Second):
			t.Fatal("a worker still waits, though its queue has ended")
		}
	}
}

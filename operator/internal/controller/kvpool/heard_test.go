// SPDX-License-Identifier: Apache-2.0

package kvpool

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// listQueue writes down what is added to it, and when it is due.
type listQueue struct {
	workqueue.TypedRateLimitingInterface[reconcile.Request]
	added []string
}

func (q *listQueue) Add(request reconcile.Request) { q.AddAfter(request, 0) }

func (q *listQueue) AddAfter(request reconcile.Request, wait time.Duration) {
	q.added = append(q.added, fmt.Sprintf("%s after %s", request, wait))
}

// News of a process makes the controller look at its pool: a little later, while others have not been heard yet.
func TestNewsWaitForProcessesThatAreUnheard(t *testing.T) {
	pool := types.NamespacedName{Namespace: "n", Name: "cache"}
	r := &Reconciler{}
	r.heard(pool, false) // before the controller has started
	queue := &listQueue{}
	r.queue = queue
	r.heard(pool, true)
	r.heard(pool, false)
	r.enqueue(pool)
	if want := []string{"n/cache after 250ms", "n/cache after 0s", "n/cache after 0s"}; !slices.Equal(queue.added, want) {
		t.Errorf("%q, want %q", queue.added, want)
	}
}

// SPDX-License-Identifier: Apache-2.0

package kvpool

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

func TestTheNextTryIsNearHoweverLongAFailureWentOn(t *testing.T) {
	limiter := Retries()
	request := reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "shop", Name: "cache"}}
	first := limiter.When(request)
	longest := first
	for range 1000 {
		longest = max(longest, limiter.When(request))
	}
	if first > 10*time.Millisecond || longest > 15*time.Second {
		t.Errorf("the first wait is %v and the longest %v; they may be 10 ms and 15 s", first, longest)
	}
}

func TestAStaleCacheIsAwaitedLongerAndLongerAndThenTold(t *testing.T) {
	r := &Reconciler{stale: map[types.NamespacedName]int{}}
	pool := types.NamespacedName{Namespace: "shop", Name: "cache"}
	var waits []time.Duration
	told := 0
	for range 40 {
		if r.lags(pool) {
			told++
		}
		waits = append(waits, r.wait(pool, true))
	}
	if waits[0] != 200*time.Millisecond || waits[1] != 400*time.Millisecond || waits[39] != 10*time.Second || told != 35 {
		t.Errorf("waits %v, told %d times: want 200 ms, doubled up to 10 s, and told after 5 tries", waits, told)
	}
	if r.wait(pool, false); r.lags(pool) || r.wait(pool, true) != 200*time.Millisecond {
		t.Error("a cache that has caught up is forgotten")
	}
}

// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

// A pool has unheard processes until each has been heard, or has failed to answer.
func TestUnheard(t *testing.T) {
	s := NewStreams(func(types.NamespacedName) {}, &breaks{})
	if s.Unheard(pool) {
		t.Error("a pool that nobody knows has unheard processes")
	}
	first, second := &stream{}, &stream{}
	s.pools[pool] = &poolStreams{streams: map[types.UID]*stream{"1": first, "2": second}}
	first.set(Observation{State: Connected})
	if !s.Unheard(pool) {
		t.Error("one of two has not been heard")
	}
	if s.Unheard(types.NamespacedName{Namespace: "shop", Name: "other"}) {
		t.Error("a process of another pool counts")
	}
	second.set(Observation{State: Unreachable})
	if s.Unheard(pool) {
		t.Error("one was heard, and one does not answer")
	}
}

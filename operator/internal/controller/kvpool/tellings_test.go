// SPDX-License-Identifier: Apache-2.0

package kvpool

import (
	"context"
	"errors"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// A memory node that does not answer holds no worker, and is not told the same again meanwhile.
func TestWhoDoesNotAnswerHoldsNobody(t *testing.T) {
	pool := types.NamespacedName{Namespace: "shop", Name: "cache"}
	told := make(chan types.NamespacedName, 1)
	all := newTellings(func(pool types.NamespacedName) { told <- pool })
	calls, answer := make(chan string, 10), make(chan error)
	begin := func(what string) *telling {
		return all.begin(pool, "pod", what, func(context.Context) error {
			calls <- what
			return <-answer
		})
	}
	impatient, cancel := context.WithCancel(t.Context())
	cancel()
	first := begin("prepare 1")
	if err := all.await(impatient, first, "prepare 1"); !errors.Is(err, errStillTelling) {
		t.Fatalf("before it answers: %v", err)
	}
	if again := begin("prepare 1"); again != first {
		t.Error("it is told again before it has answered")
	}
	// Another map waits until the answer to this one is there.
	if other := begin("follow 2"); other != first {
		t.Error("two maps are under way")
	}
	refusal := errors.New("no")
	answer <- refusal
	if err := all.await(t.Context(), first, "prepare 1"); !errors.Is(err, refusal) {
		t.Errorf("its answer: %v", err)
	}
	if err := all.await(t.Context(), first, "follow 2"); !errors.Is(err, errStillTelling) {
		t.Errorf("an answer to something else: %v", err)
	}
	select {
	case got := <-told:
		if got != pool {
			t.Errorf("%v is looked at again", got)
		}
	case <-time.After(time.Minute):
		t.Fatal("nobody looks at the pool when the answer has come")
	}
	second := begin("follow 2")
	answer <- nil
	if err := all.await(t.Context(), second, "follow 2"); err != nil {
		t.Error(err)
	}
	if len(calls) != 2 || len(told) != 0 {
		t.Errorf("%d calls; %d looks", len(calls), len(told))
	}
}

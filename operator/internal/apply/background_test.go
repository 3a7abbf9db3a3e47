// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/utils/clock"
)

// aside is a pool with one object whose status is large, which the API server takes some time for.
type aside struct {
	*server
	known      *Known
	background *Background
	// again counts how often a look was asked for.
	again atomic.Int32
}

const answersAfter = mostPause / 4

func newAside(t *testing.T) *aside {
	a := &aside{server: newServer(t, there(func(*corev1.Service) {})), known: &Known{}, background: NewBackground(clock.RealClock{})}
	a.takes = answersAfter
	return a
}

// listing is a status that lists so many addresses after the first.
func listing(first string, more int) *corev1ac.ServiceApplyConfiguration {
	status := corev1ac.LoadBalancerStatus().WithIngress(corev1ac.LoadBalancerIngress().WithIP(first))
	for i := range more {
		status.WithIngress(corev1ac.LoadBalancerIngress().WithIP(fmt.Sprintf("10.1.%d.%d", i/256, i%256)))
	}
	return corev1ac.Service("cache", "shop").WithStatus(corev1ac.ServiceStatus().WithLoadBalancer(status))
}

const long = largeStatus / len(`{"ip":"10.1.0.0"},`) * 2

// look wants a status of what the cache shows.
func (a *aside) look(wanted *corev1ac.ServiceApplyConfiguration, shown *corev1.Service) error {
	a.known.Begin()
	return a.applier.With(a.known, nil, nil).Beside(a.background, func() { a.again.Add(1) }).Status(a.t.Context(), wanted, shown)
}

// expect that so many statuses were asked for since the last time, that the first address is this, and that so many looks were asked for since the beginning.
func (a *aside) expect(what string, writes int, first string, again int) {
	a.t.Helper()
	synctest.Wait()
	if got := len(a.asked); got != writes || slices.ContainsFunc(a.asked, func(asked string) bool { return asked != "apply status" }) {
		a.t.Errorf("%s: asked for %q, not for %d statuses", what, a.asked, writes)
	}
	a.asked = nil
	var is string
	if ingress := a.service().Status.LoadBalancer.Ingress; len(ingress) > 0 {
		is = ingress[0].IP
	}
	if got := int(a.again.Load()); is != first || got != again {
		a.t.Errorf("%s: the first address is %q instead of %q, and %d looks were asked for instead of %d", what, is, first, got, again)
	}
}

// inTime runs a test in which time passes when all wait.
func inTime(t *testing.T, test func(*aside)) {
	synctest.Test(t, func(t *testing.T) {
		a := newAside(t)
		defer a.background.Close()
		test(a)
	})
}

func (a *aside) must(err error) {
	a.t.Helper()
	if err != nil {
		a.t.Error(err)
	}
}

// bytes is a status of so many bytes.
func (a *aside) bytes(first string, size int) *corev1ac.ServiceApplyConfiguration {
	a.t.Helper()
	padded := func(by int) *corev1ac.ServiceApplyConfiguration {
		status := listing(first, 0)
		status.Status.LoadBalancer.Ingress[0].WithHostname(strings.Repeat("a", by))
		return status
	}
	raw, err := written(padded(1))
	if err != nil {
		a.t.Fatal(err)
	}
	return padded(1 + size - len(raw))
}

func TestALookDoesNotWaitForALargeStatus(t *testing.T) {
	inTime(t, func(a *aside) {
		began, shown := time.Now(), a.service()
		a.must(a.look(a.bytes("10.0.0.1", largeStatus-1), shown))
		if time.Since(began) != answersAfter {
			a.t.Error("a look did not wait for a small status")
		}
		a.expect("a small status", 1, "10.0.0.1", 0)

		began, shown = time.Now(), a.withStatus()
		a.must(a.look(a.bytes("10.0.0.2", largeStatus), shown))
		if time.Since(began) != 0 {
			a.t.Error("a look waited for a large status")
		}
		a.expect("it is on its way", 1, "10.0.0.1", 0)
		time.Sleep(answersAfter)
		a.expect("it is written", 0, "10.0.0.2", 0)
		if wrote := len(a.wrote); wrote != 2 {
			a.t.Errorf("%d writes are counted", wrote)
		}
	})
}

// While the cache does not show what was written, nothing is written again. Once it does, the next status needs no comparison.
func TestALargeStatusIsWrittenOnce(t *testing.T) {
	inTime(t, func(a *aside) {
		before := a.service()
		a.must(a.look(listing("10.0.0.1", long), before))
		a.must(a.look(listing("10.0.0.1", long), before))
		time.Sleep(3 * answersAfter)
		a.expect("two looks want it", 1, "10.0.0.1", 0)
		a.must(a.look(listing("10.0.0.1", long), before))
		a.expect("the cache lags", 0, "10.0.0.1", 0)
		shown := a.withStatus()
		a.must(a.look(listing("10.0.0.1", long), shown))
		a.must(a.look(listing("10.0.0.1", long), edited(shown)))
		a.expect("the cache shows it", 0, "10.0.0.1", 0)
		// A comparison would find this as it is wanted.
		shown.Status.LoadBalancer.Ingress[0].IP = "10.0.0.2"
		a.must(a.look(listing("10.0.0.2", long), shown))
		time.Sleep(3 * answersAfter)
		a.expect("another is wanted", 1, "10.0.0.2", 0)
		// What somebody else has written since is compared.
		shown = a.withStatus()
		shown.ResourceVersion = "another"
		a.must(a.look(listing("10.0.0.2", long), shown))
		a.expect("another version that is right", 0, "10.0.0.2", 0)
		shown = edited(shown)
		shown.ResourceVersion = "yet another"
		a.must(a.look(listing("10.0.0.2", long), shown))
		time.Sleep(3 * answersAfter)
		a.expect("another version that is not", 1, "10.0.0.2", 0)
	})
}

// An object has one such write at a time, and a pause after it, for as long as it took. The last of what was wanted meanwhile follows, by a look of its own.
func TestAnotherLargeStatusWaitsForTheFirst(t *testing.T) {
	inTime(t, func(a *aside) {
		before := a.service()
		a.must(a.look(listing("10.0.0.1", long), before))
		a.must(a.look(listing("10.0.0.2", long), before))
		a.must(a.look(listing("10.0.0.3", 1), before)) // no longer large
		time.Sleep(answersAfter)
		a.expect("the first is written", 1, "10.0.0.1", 0)
		a.must(a.look(listing("10.0.0.3", long), a.withStatus()))
		time.Sleep(answersAfter - 1)
		a.expect("the pause", 0, "10.0.0.1", 0)
		time.Sleep(time.Nanosecond)
		a.expect("the pause is over", 0, "10.0.0.1", 1)
		a.must(a.look(listing("10.0.0.3", long), before))
		time.Sleep(2 * answersAfter)
		a.expect("the last that was wanted", 1, "10.0.0.3", 1)

		// What was wanted meanwhile, and is not any more, needs no look.
		before = a.withStatus()
		a.must(a.look(listing("10.0.0.4", long), before))
		a.must(a.look(listing("10.0.0.5", long), before))
		a.must(a.look(listing("10.0.0.4", long), before))
		time.Sleep(2 * answersAfter)
		a.expect("it is wanted again", 1, "10.0.0.4", 1)

		a.takes, before = 10*mostPause, a.withStatus()
		a.must(a.look(listing("10.0.0.5", long), before))
		a.must(a.look(listing("10.0.0.6", long), before))
		time.Sleep(11 * mostPause)
		a.expect("the longest pause", 1, "10.0.0.5", 2)
	})
}

// A look writes what the background could not, so that its failure is known and the pool waits longer after each.
func TestALookWritesALargeStatusThatFailed(t *testing.T) {
	inTime(t, func(a *aside) {
		a.takes = 2 * largeWithin
		a.must(a.look(listing("10.0.0.1", long), a.service()))
		time.Sleep(largeWithin)
		a.expect("its deadline passes", 1, "", 1)
		a.takes = answersAfter
		failure := errors.New("a webhook does not answer")
		a.refuses["apply status"] = failure
		for range 2 {
			if err := a.look(listing("10.0.0.1", long), a.service()); !errors.Is(err, failure) {
				a.t.Errorf("the look ends with %v", err)
			}
		}
		a.expect("a look tries it", 2, "", 1)
		delete(a.refuses, "apply status")
		a.must(a.look(listing("10.0.0.1", long), a.service()))
		a.expect("a look writes it", 1, "10.0.0.1", 1)
		began := time.Now()
		a.must(a.look(listing("10.0.0.2", long), a.withStatus()))
		if time.Since(began) != 0 {
			a.t.Error("the next look waited for a large status")
		}
		a.expect("the next", 1, "10.0.0.1", 1)
	})
}

// What no look asks for any more is forgotten.
func TestALargeStatusIsForgotten(t *testing.T) {
	inTime(t, func(a *aside) {
		a.must(a.look(listing("10.0.0.1", long), a.service()))
		for range 3 {
			a.known.Begin()
		}
		if len(a.known.sent) != 1 {
			a.t.Error("a write that is under way is forgotten")
		}
		time.Sleep(2 * answersAfter)
		synctest.Wait()
		if a.known.Begin(); len(a.known.sent) != 0 {
			a.t.Errorf("%d writes are remembered", len(a.known.sent))
		}
	})
}

// An operator that ends cancels its writes, waits until they have ended, and begins no other in the background.
func TestABackgroundEndsWithItsOperator(t *testing.T) {
	inTime(t, func(a *aside) {
		began := time.Now()
		a.must(a.look(listing("10.0.0.1", long), a.service()))
		synctest.Wait()
		a.background.Close()
		if time.Since(began) != 0 {
			a.t.Error("the end waited for an answer")
		}
		a.expect("it is cancelled", 1, "", 1)
		ctx, cancel := context.WithCancel(a.t.Context())
		cancel()
		known := &Known{}
		known.Begin()
		err := a.applier.With(known, nil, nil).Beside(a.background, nil).Status(ctx, listing("10.0.0.1", long), a.service())
		if !errors.Is(err, context.Canceled) || len(known.sent) != 0 {
			a.t.Errorf("after the end: %v, and %d writes are remembered", err, len(known.sent))
		}
	})
}

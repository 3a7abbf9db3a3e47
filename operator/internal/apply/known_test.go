// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// taken is what a write of an object asks for whose fields are still those of its creation.
var taken = []string{"get", "patch", "apply"}

// edited returns an object that somebody has edited, under the version of before. An API server gives each edit a version, so that there is none such: a test sees by
// it whether an object is compared, as one that is would be written.
func edited(object *corev1.Service) *corev1.Service {
	other := object.DeepCopy()
	other.Spec.Selector, other.Status = map[string]string{"app": "another"}, corev1.ServiceStatus{}
	return other
}

// looked begins a look at a pool.
func looked(known *Known, s *server) *Applier {
	known.Begin()
	return s.applier.With(known, nil, nil)
}

func TestAVersionThatWasRightIsNotComparedAgain(t *testing.T) {
	s, known := newServer(t), &Known{}
	want := wanted("pool", map[string]string{"a": "1"})
	s.expect("it is made", looked(known, s).Object(t.Context(), want, cached(nil)), []string{"create"}, []string{"Service create"})
	made := s.service()
	s.expect("it is compared", looked(known, s).Object(t.Context(), want, cached(made)), nil, nil)
	s.expect("it is known", looked(known, s).Object(t.Context(), want, cached(edited(made))), nil, nil)
	s.expect("it is known for as long as it is looked at", looked(known, s).Object(t.Context(), want, cached(edited(made))), nil, nil)
	s.expect("without what is known", s.applier.Object(t.Context(), want, cached(edited(made))), taken, []string{"Service own", "Service apply"})
}

// Every write gives an object another version.
func TestAnEditOfWhatIsKnownIsUndone(t *testing.T) {
	s, known := newServer(t), &Known{}
	want := wanted("pool", map[string]string{"a": "1"})
	s.expect("it is made", looked(known, s).Object(t.Context(), want, cached(nil)), []string{"create"}, []string{"Service create"})
	s.expect("it is compared", looked(known, s).Object(t.Context(), want, cached(s.service())), nil, nil)
	theirs := s.service()
	theirs.Spec.Selector = map[string]string{"app": "another"}
	if err := s.client.Update(t.Context(), theirs, client.FieldOwner("somebody")); err != nil {
		t.Fatal(err)
	}
	s.expect("an edit", looked(known, s).Object(t.Context(), want, cached(s.service())), taken, []string{"Service own", "Service apply"})
	if selector := s.service().Spec.Selector; selector["app"] != "cache" {
		t.Errorf("the selector is %v", selector)
	}
	// What was written is compared before it is known.
	s.expect("its next version", looked(known, s).Object(t.Context(), want, cached(edited(s.service()))), []string{"apply"}, []string{"Service apply"})
}

func TestWhatIsKnownOfAVersionHoldsForWhatWasWanted(t *testing.T) {
	s, known := newServer(t), &Known{}
	want := wanted("pool", map[string]string{"a": "1"})
	s.expect("it is made", looked(known, s).Object(t.Context(), want, cached(nil)), []string{"create"}, []string{"Service create"})
	made := s.service()
	s.expect("it is compared", looked(known, s).Object(t.Context(), want, cached(made)), nil, nil)
	s.expect("it is known at the next look", looked(known, s).Object(t.Context(), want, cached(edited(made))), nil, nil)
	s.expect("something else is wanted", looked(known, s).Object(t.Context(), wanted("pool", map[string]string{"a": "2"}), cached(made)), taken, []string{"Service own", "Service apply"})
}

func TestWhatNobodyAsksForIsForgotten(t *testing.T) {
	s, known := newServer(t), &Known{}
	want := wanted("pool", map[string]string{"a": "1"})
	s.expect("it is made", looked(known, s).Object(t.Context(), want, cached(nil)), []string{"create"}, []string{"Service create"})
	made := s.service()
	s.expect("it is compared", looked(known, s).Object(t.Context(), want, cached(made)), nil, nil)
	looked(known, s)
	known.Begin()
	if len(known.right) != 0 {
		t.Errorf("%d versions are known", len(known.right))
	}
	s.expect("it is compared once more", s.applier.With(known, nil, nil).Object(t.Context(), want, cached(edited(made))), taken, []string{"Service own", "Service apply"})
}

func TestAStatusThatWasRightIsNotComparedAgain(t *testing.T) {
	s, known := newServer(t, there(func(*corev1.Service) {})), &Known{}
	status := func(address string) *corev1ac.ServiceApplyConfiguration {
		return corev1ac.Service("cache", "shop").WithStatus(corev1ac.ServiceStatus().WithLoadBalancer(corev1ac.LoadBalancerStatus().WithIngress(corev1ac.LoadBalancerIngress().WithIP(address))))
	}
	write, count := []string{"apply status"}, []string{"Service status"}
	s.expect("it is written", looked(known, s).Status(t.Context(), status("10.0.0.1"), s.service()), write, count)
	written := s.withStatus()
	s.expect("it is known as it was written", looked(known, s).Status(t.Context(), status("10.0.0.1"), edited(written)), nil, nil)
	s.expect("another is wanted", looked(known, s).Status(t.Context(), status("10.0.0.2"), written), write, count)
	// An operator that starts knows nothing.
	known, written = &Known{}, s.withStatus()
	s.expect("it is compared", looked(known, s).Status(t.Context(), status("10.0.0.2"), written), nil, nil)
	s.expect("it is known", looked(known, s).Status(t.Context(), status("10.0.0.2"), edited(written)), nil, nil)
	s.expect("it is compared with nothing else that is known", s.applier.Status(t.Context(), status("10.0.0.2"), edited(written)), write, count)
}

// What is known to be as something else was wanted is written without a comparison, which would take longer than the write of a status that lists a thousand processes.
func TestAStatusThatIsKnownToBeAnotherIsWritten(t *testing.T) {
	s, known := newServer(t, there(func(*corev1.Service) {})), &Known{}
	status := func(address string) *corev1ac.ServiceApplyConfiguration {
		return corev1ac.Service("cache", "shop").WithStatus(corev1ac.ServiceStatus().WithLoadBalancer(corev1ac.LoadBalancerStatus().WithIngress(corev1ac.LoadBalancerIngress().WithIP(address))))
	}
	write, count := []string{"apply status"}, []string{"Service status"}
	s.expect("it is written", looked(known, s).Status(t.Context(), status("10.0.0.1"), s.service()), write, count)
	seen := s.withStatus()
	seen.Status.LoadBalancer.Ingress[0].IP = "10.0.0.2" // a comparison would find it as it is wanted
	s.expect("another is wanted", looked(known, s).Status(t.Context(), status("10.0.0.2"), seen), write, count)
	// A write that was refused says nothing about the version that is there.
	s.refuses["apply status"] = context.DeadlineExceeded
	if err := looked(known, s).Status(t.Context(), status("10.0.0.3"), s.withStatus()); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	s.expect("it is refused", nil, write, nil)
	delete(s.refuses, "apply status")
	s.expect("it is written again", looked(known, s).Status(t.Context(), status("10.0.0.3"), s.withStatus()), write, count)
}

// An object is not known by its status, nor a status by its object.
func TestAnObjectAndItsStatusAreKnownEachByItself(t *testing.T) {
	object := there(func(service *corev1.Service) { service.ResourceVersion = "1" })
	known, wish := &Known{}, digestOf([]byte("{}"))
	known.Begin()
	known.found(versionOf(object, ""), wish)
	is := func(object *corev1.Service, subresource, desired string) [2]bool {
		right, of := known.isRight(versionOf(object, subresource), digestOf([]byte(desired)))
		return [2]bool{right, of}
	}
	for what, c := range map[string]struct{ got, want [2]bool }{
		"the same":        {is(object, "", "{}"), [2]bool{true, true}},
		"another wish":    {is(object, "", "{ }"), [2]bool{false, true}},
		"a status":        {is(object, "status", "{}"), [2]bool{}},
		"another object":  {is(there(func(service *corev1.Service) { service.ResourceVersion, service.UID = "1", "other" }), "", "{}"), [2]bool{}},
		"another version": {is(there(func(service *corev1.Service) { service.ResourceVersion = "2" }), "", "{}"), [2]bool{}},
	} {
		if c.got != c.want {
			t.Errorf("%s: right and known are %v instead of %v", what, c.got, c.want)
		}
	}
	for what, unversioned := range map[string]*corev1.Service{
		"without a version": there(func(*corev1.Service) {}),
		"without a uid":     there(func(service *corev1.Service) { service.ResourceVersion, service.UID = "1", "" }),
	} {
		known.found(versionOf(unversioned, ""), wish)
		if right, of := known.isRight(versionOf(unversioned, ""), wish); right || of {
			t.Errorf("an object %s is known", what)
		}
	}
}

// What was made and is not in the cache yet is neither made again nor asked for, for some looks. What the cache has shown once, and shows no more, is gone.
func TestWhatWasMadeAMomentAgoIsAwaited(t *testing.T) {
	s, known := newServer(t), &Known{}
	want := wanted("pool", map[string]string{"a": "1"})
	s.expect("it is made", looked(known, s).Object(t.Context(), want, cached(nil)), []string{"create"}, []string{"Service create"})
	for look := range believed {
		if err := looked(known, s).Object(t.Context(), want, cached(nil)); !errors.Is(err, ErrUnseen) || !errors.Is(err, ErrStale) || !strings.Contains(err.Error(), "Service shop/cache") {
			t.Errorf("look %d: %v", look, err)
		}
	}
	s.expect("the look waits for it", nil, nil, nil)
	if err := looked(known, s).Object(t.Context(), want, cached(nil)); !errors.Is(err, ErrStale) || errors.Is(err, ErrUnseen) {
		t.Errorf("after %d looks: %v", believed, err)
	}
	s.expect("it is asked for", nil, []string{"create", "get"}, nil)
	if len(known.made) != 0 {
		t.Errorf("looks wait for %d objects", len(known.made))
	}

	s, known = newServer(t), &Known{}
	s.expect("it is made", looked(known, s).Object(t.Context(), want, cached(nil)), []string{"create"}, []string{"Service create"})
	s.expect("it is seen", looked(known, s).Object(t.Context(), want, cached(s.service())), nil, nil)
	if err := s.client.Delete(t.Context(), s.service()); err != nil {
		t.Fatal(err)
	}
	s.expect("somebody deletes it", nil, []string{"delete"}, nil)
	s.expect("it is made anew", looked(known, s).Object(t.Context(), want, cached(nil)), []string{"create"}, []string{"Service create"})

	// What could not be made is tried again.
	s, known = newServer(t), &Known{}
	s.refuses["create"] = context.DeadlineExceeded
	for range 2 {
		if err := looked(known, s).Object(t.Context(), want, cached(nil)); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	}
	s.expect("it cannot be made", nil, []string{"create", "create"}, nil)
}

// Where there is no time for a write, nothing is asked for, and what needs none is as it is.
func TestAWriteWaitsForItsTime(t *testing.T) {
	s := newServer(t)
	yes, no := func(string) bool { return true }, func(string) bool { return false }
	hurried, calm := s.applier.With(nil, no, yes), s.applier.With(nil, yes, no)
	want, other := wanted("pool", map[string]string{"a": "1"}), wanted("pool", map[string]string{"a": "2"})
	if err := hurried.Object(t.Context(), want, cached(nil)); !errors.Is(err, ErrLater) || !strings.Contains(err.Error(), "Service shop/cache") {
		t.Errorf("a new object: %v", err)
	}
	s.expect("a new object", nil, nil, nil)
	s.expect("there is time", calm.Object(t.Context(), want, cached(nil)), []string{"create"}, []string{"Service create"})
	s.expect("as it was made", hurried.Object(t.Context(), want, cached(s.service())), nil, nil)
	if err := hurried.Object(t.Context(), other, cached(s.service())); !errors.Is(err, ErrLater) {
		t.Errorf("a change: %v", err)
	}
	s.expect("a change", nil, nil, nil)
	s.expect("there is time", calm.Object(t.Context(), other, cached(s.service())), taken, []string{"Service own", "Service apply"})

	// The time for a status is another.
	status := corev1ac.Service("cache", "shop").WithStatus(corev1ac.ServiceStatus().WithLoadBalancer(corev1ac.LoadBalancerStatus().WithIngress(corev1ac.LoadBalancerIngress().WithIP("10.0.0.1"))))
	if err := calm.Status(t.Context(), status, s.service()); !errors.Is(err, ErrLater) || !strings.Contains(err.Error(), "Service shop/cache") {
		t.Errorf("a status: %v", err)
	}
	s.expect("a status", nil, nil, nil)
	s.expect("there is time", hurried.Status(t.Context(), status, s.service()), []string{"apply status"}, []string{"Service status"})
	s.expect("as it was written", calm.Status(t.Context(), status, s.withStatus()), nil, nil)
}

// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"farpool.dev/farpool/api/v1alpha1"
)

// server is an API server that lists what it was asked, and refuses what it is told to refuse.
type server struct {
	t       *testing.T
	client  client.WithWatch
	applier *Applier
	// asked are the requests, by their verbs.
	asked []string
	// refuses has the answer to the requests of a verb.
	refuses map[string]error
	// wrote is what was counted.
	wrote []string
	// patched is the last patch.
	patched string
	// applied is what was last applied to an object.
	applied runtime.ApplyConfiguration
	// takes is how long it takes to apply a status.
	takes time.Duration
}

func (s *server) Wrote(kind, verb string) { s.wrote = append(s.wrote, kind+" "+verb) }

func (s *server) request(verb string) error {
	s.asked = append(s.asked, verb)
	return s.refuses[verb]
}

func (s *server) patch(verb string, object client.Object, patch client.Patch) error {
	data, err := patch.Data(object)
	if err != nil {
		s.t.Fatal(err)
	}
	s.patched = string(data)
	return s.request(verb)
}

func newServer(t *testing.T, objects ...client.Object) *server {
	t.Helper()
	s := &server{t: t, refuses: map[string]error{}}
	kept := fake.NewClientBuilder().WithReturnManagedFields().WithStatusSubresource(&corev1.Service{}).WithObjects(objects...).Build()
	s.client = interceptor.NewClient(kept, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
			if err := s.request("get"); err != nil {
				return err
			}
			err := c.Get(ctx, key, object, options...)
			if err == nil && object.GetUID() == "" {
				object.SetUID("service") // the fake server gives none to what is created
			}
			return err
		},
		Create: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.CreateOption) error {
			if err := s.request("create"); err != nil {
				return err
			}
			return c.Create(ctx, object, options...)
		},
		Apply: func(ctx context.Context, c client.WithWatch, object runtime.ApplyConfiguration, options ...client.ApplyOption) error {
			s.applied = object
			if err := s.request("apply"); err != nil {
				return err
			}
			return c.Apply(ctx, object, options...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption) error {
			if err := s.patch("patch", object, patch); err != nil {
				return err
			}
			return c.Patch(ctx, object, patch, options...)
		},
		Delete: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.DeleteOption) error {
			if err := s.request("delete"); err != nil {
				return err
			}
			return c.Delete(ctx, object, options...)
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, subresource string, object client.Object, patch client.Patch, _ ...client.SubResourcePatchOption) error {
			if patch.Type() != types.ApplyPatchType {
				return s.patch("patch "+subresource, object, patch)
			}
			if err := s.patch("apply "+subresource, object, patch); err != nil {
				return err
			}
			select {
			case <-time.After(s.takes):
			case <-ctx.Done():
				return ctx.Err()
			}
			// The fake server applies no metadata. It answers with the version that it has then, as an API server does.
			status := &corev1ac.ServiceApplyConfiguration{}
			if err := json.Unmarshal([]byte(s.patched), status); err != nil {
				return err
			}
			if err := c.SubResource(subresource).Apply(ctx, status, client.FieldOwner(v1alpha1.StatusFieldManager), client.ForceOwnership); err != nil {
				return err
			}
			now := s.service()
			object.SetUID(now.UID)
			object.SetResourceVersion(now.ResourceVersion)
			return nil
		},
	})
	s.applier = New(s.client, s.client, s)
	return s
}

// service is what the API server has, asked past the list.
func (s *server) service() *corev1.Service {
	s.t.Helper()
	asked := s.asked
	found := &corev1.Service{}
	if err := s.client.Get(s.t.Context(), client.ObjectKey{Namespace: "shop", Name: "cache"}, found); err != nil {
		s.t.Fatal(err)
	}
	s.asked = asked
	return found
}

// cached is a cache that shows an object, or none.
func cached(object client.Object) func(kind, name string) client.Object {
	return func(kind, name string) client.Object {
		if kind != "Service" || name != "cache" {
			return nil
		}
		return object
	}
}

// expect compares what was asked and counted since the last time.
func (s *server) expect(what string, err error, asked, wrote []string) {
	s.t.Helper()
	if err != nil {
		s.t.Errorf("%s: %v", what, err)
	}
	if !slices.Equal(s.asked, asked) || !slices.Equal(s.wrote, wrote) {
		s.t.Errorf("%s: asked for %q and counted %q instead of %q and %q", what, s.asked, s.wrote, asked, wrote)
	}
	s.asked, s.wrote = nil, nil
}

// wanted is a Service that the pool of that uid owns.
func wanted(owner types.UID, labels map[string]string) *corev1ac.ServiceApplyConfiguration {
	return corev1ac.Service("cache", "shop").WithLabels(labels).
		WithOwnerReferences(metav1ac.OwnerReference().WithAPIVersion("farpool.dev/v1alpha1").WithKind("KVPool").WithName("cache").WithUID(owner).WithController(true)).
		WithSpec(corev1ac.ServiceSpec().WithSelector(map[string]string{"app": "cache"}).WithPorts(corev1ac.ServicePort().WithName("resp").WithPort(6379).WithProtocol(corev1.ProtocolTCP)))
}

// there is a Service of that name.
func there(change func(*corev1.Service)) *corev1.Service {
	is := true
	found := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cache", UID: "service",
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "farpool.dev/v1alpha1", Kind: "KVPool", Name: "cache", UID: "pool", Controller: &is}}}}
	change(found)
	return found
}

func TestAnObjectFollowsWhatIsWantedAndIsLeftAloneWhileItIsRight(t *testing.T) {
	s := newServer(t)
	first, second, third := wanted("pool", map[string]string{"a": "1", "b": "1"}), wanted("pool", map[string]string{"a": "1", "c": "1"}), wanted("pool", map[string]string{"a": "2"})
	s.expect("it is not there", s.applier.Object(t.Context(), first, cached(nil)), []string{"create"}, []string{"Service create"})
	s.expect("as it was made", s.applier.Object(t.Context(), first, cached(s.service())), nil, nil)

	// What it was made with goes once it is no longer wanted: its fields are taken over from the manager that created it.
	s.expect("a change", s.applier.Object(t.Context(), second, cached(s.service())), []string{"get", "patch", "apply"}, []string{"Service own", "Service apply"})
	if labels := s.service().Labels; !maps.Equal(labels, map[string]string{"a": "1", "c": "1"}) {
		t.Errorf("labels after the first change: %v", labels)
	}
	s.expect("as it was applied", s.applier.Object(t.Context(), second, cached(s.service())), nil, nil)
	s.expect("another change", s.applier.Object(t.Context(), third, cached(s.service())), []string{"apply"}, []string{"Service apply"})
	if labels := s.service().Labels; !maps.Equal(labels, map[string]string{"a": "2"}) {
		t.Errorf("labels after the second change: %v", labels)
	}
}

// The client encodes the options of an apply only for groups that its scheme has, but for what has no type of its own.
func TestAKindThatTheSchemeLacksIsAppliedWithoutAType(t *testing.T) {
	for kind, typed := range map[string]bool{"Service": true, "Gadget": false} {
		s := newServer(t)
		s.refuses["apply"] = errors.New("no")
		desired := wanted("pool", map[string]string{"a": "1"})
		if !typed {
			desired = desired.WithAPIVersion("example.com/v1").WithKind(kind)
		}
		is := there(func(*corev1.Service) {})
		if err := s.applier.Object(t.Context(), desired, func(string, string) client.Object { return is }); !errors.Is(err, s.refuses["apply"]) {
			t.Errorf("%s: %v", kind, err)
		}
		if _, has := s.applied.(*corev1ac.ServiceApplyConfiguration); has != typed {
			t.Errorf("a %s was applied as %T", kind, s.applied)
		}
		said, err := json.Marshal(s.applied)
		if err != nil || !strings.Contains(string(said), `"kind":"`+kind+`"`) || !strings.Contains(string(said), `"a":"1"`) {
			t.Errorf("applied %s, %v", said, err)
		}
	}
}

// withStatus is what the API server has. It notes the subresource of a status, and no fields outside of it; the fake one does neither.
func (s *server) withStatus() *corev1.Service {
	s.t.Helper()
	found := s.service()
	for i := range found.ManagedFields {
		if found.ManagedFields[i].Manager == v1alpha1.StatusFieldManager {
			found.ManagedFields[i].Subresource, found.ManagedFields[i].FieldsV1 = "status", metav1.NewFieldsV1(`{"f:status":{"f:loadBalancer":{"f:ingress":{}}}}`)
		}
	}
	return found
}

func TestAStatusIsWrittenOnceUntilItChanges(t *testing.T) {
	s := newServer(t, there(func(*corev1.Service) {}))
	status := func(address string) *corev1ac.ServiceApplyConfiguration {
		return corev1ac.Service("cache", "shop").WithStatus(corev1ac.ServiceStatus().WithLoadBalancer(corev1ac.LoadBalancerStatus().WithIngress(corev1ac.LoadBalancerIngress().WithIP(address))))
	}
	write := []string{"apply status"}
	s.expect("the first", s.applier.Status(t.Context(), status("10.0.0.1"), s.withStatus()), write, []string{"Service status"})
	s.expect("the same", s.applier.Status(t.Context(), status("10.0.0.1"), s.withStatus()), nil, nil)
	s.expect("another", s.applier.Status(t.Context(), status("10.0.0.2"), s.withStatus()), write, []string{"Service status"})
	if ingress := s.service().Status.LoadBalancer.Ingress; len(ingress) != 1 || ingress[0].IP != "10.0.0.2" {
		t.Errorf("%v", ingress)
	}
}

// A status may be long, and an object is compared without it.
func TestAnObjectWithoutItsStatus(t *testing.T) {
	service := there(func(service *corev1.Service) {
		service.Spec.Selector = map[string]string{"app": "cache"}
		service.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "10.0.0.1"}}
	})
	without, is := withoutStatus(service).(*corev1.Service)
	if !is || len(without.Status.LoadBalancer.Ingress) != 0 || without.Name != "cache" || without.Spec.Selector["app"] != "cache" {
		t.Errorf("%v", without)
	}
	if len(service.Status.LoadBalancer.Ingress) != 1 {
		t.Error("the object itself has lost its status")
	}
	// Some kinds have none.
	if data, is := withoutStatus(&corev1.ConfigMap{Data: map[string]string{"a": "1"}}).(*corev1.ConfigMap); !is || data.Data["a"] != "1" {
		t.Errorf("%v", data)
	}
}

// Only an object whose fields are those of its creation is taken over: by this operator, or by one before it that created under the plain name.
func TestWhoseFieldsAreTakenOver(t *testing.T) {
	const update, apply = metav1.ManagedFieldsOperationUpdate, metav1.ManagedFieldsOperationApply
	for name, c := range map[string]struct {
		manager     string
		operation   metav1.ManagedFieldsOperationType
		subresource string
		want        bool
	}{
		"created under a digest":         {makerPrefix + "1234", update, "", true},
		"created under the plain name":   {v1alpha1.FieldManager, update, "", true},
		"applied":                        {v1alpha1.FieldManager, apply, "", false},
		"applied under a digest":         {makerPrefix + "1234", apply, "", false},
		"a subresource that was updated": {v1alpha1.FieldManager, update, "status", false},
		"created by another":             {"kubectl-create", update, "", false},
	} {
		s := newServer(t, there(func(*corev1.Service) {}))
		seen := there(func(found *corev1.Service) {
			found.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: c.manager, Operation: c.operation, Subresource: c.subresource, APIVersion: "v1", FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(`{}`)}}
		})
		err := s.applier.Object(t.Context(), wanted("pool", nil), cached(seen))
		// The API server has no fields of such a manager here, so that there is nothing to take over.
		if takes := slices.Contains(s.asked, "get"); takes != c.want || errors.Is(err, ErrStale) != c.want {
			t.Errorf("%s: asked for %q: %v", name, s.asked, err)
		}
	}
}

func TestACacheKeepsTheFieldsOfThisOperatorsManagers(t *testing.T) {
	for manager, want := range map[string]bool{
		v1alpha1.FieldManager: true, v1alpha1.StatusFieldManager: true, makerPrefix + "1234": true, "kubelet": false, v1alpha1.FieldManager + "-other": false, "": false,
	} {
		if Keeps(manager) != want {
			t.Errorf("fields of %q are kept: %v", manager, !want)
		}
	}
}

func resource(name string) schema.GroupResource { return schema.GroupResource{Resource: name} }

var (
	errConflict    = apierrors.NewConflict(resource("services"), "cache", errors.New("it has been modified"))
	errNotFound    = apierrors.NewNotFound(resource("services"), "cache")
	errForbidden   = apierrors.NewForbidden(resource("services"), "cache", errors.New("exceeded quota"))
	errUnreachable = errors.New("connection refused")
	errTerminating = func() error {
		err := apierrors.NewForbidden(resource("services"), "cache", errors.New("the namespace is being terminated"))
		err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
		return err
	}()
)

// What is in the way of an object that is to be created is found out, told, and never written over.
func TestWhatIsInTheWayOfAnObject(t *testing.T) {
	mine := map[string]string{v1alpha1.LabelPool: "cache"}
	outside := map[string]string{v1alpha1.LabelPoolUID: "pool"}
	now := metav1.Now()
	conflict := &ConflictError{Kind: "Service", Namespace: "shop", Name: "cache"}
	for name, c := range map[string]struct {
		labels  map[string]string
		found   *corev1.Service
		refuses map[string]error
		want    error
		asked   []string
	}{
		"the pool's own, which the cache does not show yet": {mine, there(func(found *corev1.Service) { found.Labels = mine }), nil, ErrStale, []string{"create", "get"}},
		"the pool's own, which has lost its label":          {mine, there(func(*corev1.Service) {}), nil, ErrStale, []string{"create", "get", "patch"}},
		"a label that cannot be put back":                   {mine, there(func(*corev1.Service) {}), map[string]error{"patch": errForbidden}, errForbidden, []string{"create", "get", "patch"}},
		"another pool's":                                    {mine, there(func(found *corev1.Service) { found.OwnerReferences[0].UID = "another" }), nil, conflict, []string{"create", "get"}},
		"nobody's":                                          {mine, there(func(found *corev1.Service) { found.OwnerReferences = nil }), nil, conflict, []string{"create", "get"}},
		"an earlier pool's, which is being deleted": {mine, there(func(found *corev1.Service) {
			found.OwnerReferences[0].UID, found.DeletionTimestamp, found.Finalizers = "earlier", &now, []string{"example.com/wait"}
		}), nil, ErrDeleting, []string{"create", "get"}},
		"outside of the pool's namespace, its own": {outside, there(func(found *corev1.Service) { found.OwnerReferences, found.Labels = nil, outside }), nil, ErrStale, []string{"create", "get"}},
		"outside of the pool's namespace, another's": {outside, there(func(found *corev1.Service) {
			found.Labels = map[string]string{v1alpha1.LabelPoolUID: "another"}
		}), nil, conflict, []string{"create", "get"}},
		"one that cannot be looked for":           {mine, there(func(*corev1.Service) {}), map[string]error{"get": errForbidden}, errForbidden, []string{"create", "get"}},
		"one that is gone again":                  {mine, nil, map[string]error{"create": apierrors.NewAlreadyExists(resource("services"), "cache")}, ErrStale, []string{"create", "get"}},
		"a quota":                                 {mine, nil, map[string]error{"create": errForbidden}, errForbidden, []string{"create", "get"}},
		"a quota, though another's is there":      {mine, there(func(found *corev1.Service) { found.OwnerReferences = nil }), map[string]error{"create": errForbidden}, conflict, []string{"create", "get"}},
		"a namespace that is being deleted":       {mine, nil, map[string]error{"create": errTerminating}, ErrTerminating, []string{"create", "get"}},
		"an API server that cannot be asked":      {mine, nil, map[string]error{"create": errUnreachable}, errUnreachable, []string{"create"}},
		"a conflict, which means a stale request": {mine, nil, map[string]error{"create": errConflict}, ErrStale, []string{"create", "get"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t)
			if c.found != nil {
				s = newServer(t, c.found)
			}
			s.refuses = c.refuses
			err := s.applier.Object(t.Context(), wanted("pool", c.labels), cached(nil))
			var conflicts *ConflictError
			if same := errors.As(err, &conflicts) && errors.Is(c.want, conflict) && *conflicts == *conflict; !same && !errors.Is(err, c.want) {
				t.Errorf("%v instead of %v", err, c.want)
			}
			if err == nil || !strings.Contains(err.Error(), "shop/cache") {
				t.Errorf("%v does not say of what", err)
			}
			if !slices.Equal(s.asked, c.asked) || slices.Contains(s.wrote, "Service create") {
				t.Errorf("asked for %q and counted %q", s.asked, s.wrote)
			}
			if c.found != nil && s.refuses["get"] == nil && s.service().Spec.Selector != nil {
				t.Error("it is written over")
			}
		})
	}
}

// An answer that what was seen is no longer so makes the caller decide again; every other one is handed on. Neither is counted as a write.
func TestWhatARefusedWriteMeans(t *testing.T) {
	is := errors.New("the error itself")
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cache"}}
	type meaning struct{ conflict, notFound, terminating error }
	for name, c := range map[string]struct {
		verb  string
		write func(*server) error
		want  meaning
	}{
		"an apply": {"apply", func(s *server) error {
			return s.applier.Object(s.t.Context(), wanted("pool", nil), cached(there(func(*corev1.Service) {})))
		}, meaning{ErrStale, is, ErrTerminating}},
		"a status": {"apply status", func(s *server) error {
			return s.applier.Status(s.t.Context(), wanted("pool", nil), there(func(*corev1.Service) {}))
		}, meaning{ErrStale, ErrStale, is}},
		"a deletion": {"delete", func(s *server) error { return s.applier.Delete(s.t.Context(), s.service()) }, meaning{ErrStale, nil, is}},
		"an amendment of a pod": {"patch", func(s *server) error {
			return s.applier.Amend(s.t.Context(), pod, "", []byte(`{}`))
		}, meaning{ErrStale, ErrStale, is}},
		// An API server without the subresource finds nothing, either: it would be asked for ever.
		"an amendment of a pod's subresource": {"patch resize", func(s *server) error {
			return s.applier.Amend(s.t.Context(), pod, "resize", []byte(`{}`))
		}, meaning{ErrStale, is, is}},
		"labels that are put back": {"patch", func(s *server) error {
			return s.applier.Relabel(s.t.Context(), s.service(), map[string]string{"a": "b"})
		}, meaning{ErrStale, ErrStale, is}},
		"an adoption": {"patch", func(s *server) error { return s.applier.Adopt(s.t.Context(), s.service(), nil) }, meaning{ErrStale, ErrStale, is}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, answer := range []struct{ refused, want error }{
				{errConflict, c.want.conflict}, {errNotFound, c.want.notFound}, {errTerminating, c.want.terminating}, {errForbidden, is}, {errUnreachable, is},
			} {
				s := newServer(t, there(func(*corev1.Service) {}))
				s.refuses[c.verb] = answer.refused
				want := answer.want
				if errors.Is(want, is) {
					want = answer.refused
				}
				err := c.write(s)
				if !errors.Is(err, want) || errors.Is(err, ErrStale) != errors.Is(want, ErrStale) {
					t.Errorf("%v: %v instead of %v", answer.refused, err, want)
				}
				if err != nil && !strings.Contains(err.Error(), "shop/cache") {
					t.Errorf("%v does not say of what", err)
				}
				if len(s.wrote) != 0 || !slices.Contains(s.asked, c.verb) {
					t.Errorf("%v: asked for %q and counted %q", answer.refused, s.asked, s.wrote)
				}
			}
		})
	}
}

// Before an object's fields are taken over, the API server itself is asked; nothing is applied if that fails.
func TestFieldsThatCannotBeTakenOver(t *testing.T) {
	for name, c := range map[string]struct {
		change  func(*corev1.Service)
		refuses map[string]error
		want    error
	}{
		"the object is gone":                      {nil, map[string]error{"get": errNotFound}, ErrStale},
		"it cannot be looked for":                 {nil, map[string]error{"get": errForbidden}, errForbidden},
		"it is another object by now":             {func(found *corev1.Service) { found.UID = "another" }, nil, ErrStale},
		"its fields have been taken over already": {func(found *corev1.Service) { found.ManagedFields = nil }, nil, ErrStale},
		"it changes meanwhile":                    {nil, map[string]error{"patch": errConflict}, ErrStale},
		"it goes meanwhile":                       {nil, map[string]error{"patch": errNotFound}, ErrStale},
		"it may not be changed":                   {nil, map[string]error{"patch": errForbidden}, errForbidden},
	} {
		made := there(func(found *corev1.Service) {
			found.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: makerPrefix + "1234", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", FieldsType: "FieldsV1",
				FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:labels":{"f:a":{}}}}`)}}
		})
		live := made.DeepCopy()
		if c.change != nil {
			c.change(live)
		}
		s := newServer(t, live)
		s.refuses = c.refuses
		err := s.applier.Object(t.Context(), wanted("pool", nil), cached(made))
		if !errors.Is(err, c.want) || !strings.Contains(err.Error(), "take over the fields of Service shop/cache") || errors.Is(err, ErrStale) != errors.Is(c.want, ErrStale) {
			t.Errorf("%s: %v instead of %v", name, err, c.want)
		}
		if len(s.wrote) != 0 || slices.Contains(s.asked, "apply") {
			t.Errorf("%s: asked for %q and counted %q", name, s.asked, s.wrote)
		}
	}
}

func TestTheVeryObjectThatWasSeenIsDeleted(t *testing.T) {
	s := newServer(t, there(func(*corev1.Service) {}))
	seen := s.service()
	s.expect("somebody's change", s.applier.Relabel(t.Context(), seen, map[string]string{"a": "b"}), []string{"patch"}, []string{"*v1.Service mend"})
	if err := s.applier.Delete(t.Context(), seen); !errors.Is(err, ErrStale) {
		t.Errorf("what has changed since is deleted: %v", err)
	}
	s.asked, s.wrote = nil, nil
	seen = s.service()
	s.expect("a deletion", s.applier.Delete(t.Context(), seen), []string{"delete"}, []string{"*v1.Service delete"})
	s.expect("a deletion of what is gone", s.applier.Delete(t.Context(), seen), []string{"delete"}, nil)
}

// Only labels that were lost are put back, and only onto the object that was seen.
func TestLabelsThatAreLostArePutBack(t *testing.T) {
	s := newServer(t, there(func(found *corev1.Service) {
		found.Labels = map[string]string{"kept": "1", "changed": "2", "foreign": "x"}
	}))
	labels := map[string]string{"kept": "1", "changed": "1", "lost": "1"}
	seen := s.service()
	s.expect("lost labels", s.applier.Relabel(t.Context(), seen, labels), []string{"patch"}, []string{"*v1.Service mend"})
	if want := `{"metadata":{"labels":{"changed":"1","lost":"1"},"resourceVersion":"` + seen.ResourceVersion + `","uid":"service"}}`; s.patched != want {
		t.Errorf("patched %s instead of %s", s.patched, want)
	}
	s.expect("no lost labels", s.applier.Relabel(t.Context(), s.service(), labels), nil, nil)
	if err := s.applier.Relabel(t.Context(), seen, labels); !errors.Is(err, ErrStale) {
		t.Errorf("labels of what has changed since: %v", err)
	}
}

func TestAnAdoptedObjectHasItsNewOwners(t *testing.T) {
	s := newServer(t, there(func(*corev1.Service) {}))
	s.expect("an adoption", s.applier.Adopt(t.Context(), s.service(), []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "a", UID: "new"}}), []string{"patch"}, []string{"*v1.Service mend"})
	if owners := s.service().OwnerReferences; len(owners) != 1 || owners[0].UID != "new" {
		t.Errorf("%v", owners)
	}
}

func TestAnAmendmentGoesToThePodOrToItsSubresource(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cache"}}
	s := newServer(t, pod)
	patch := []byte(`{"metadata":{"labels":{"a":"b"}}}`)
	s.expect("a pod", s.applier.Amend(t.Context(), pod, "", patch), []string{"patch"}, []string{"Pod patch"})
	s.expect("a subresource", s.applier.Amend(t.Context(), pod, "resize", patch), []string{"patch resize"}, []string{"Pod patch"})
	if s.patched != string(patch) {
		t.Errorf("patched %s", s.patched)
	}
}

type unwritable struct{ Channel chan int }

func (unwritable) IsApplyConfiguration() {}

type unreadable struct {
	corev1.Service
	Channel chan int
}

// What cannot be compared is an error before anything is asked of the API server.
func TestWhatCannotBeCompared(t *testing.T) {
	for name, c := range map[string]struct {
		desired runtime.ApplyConfiguration
		cached  client.Object
		want    string
	}{
		"wanted, and no JSON":      {unwritable{}, there(func(*corev1.Service) {}), "write an apply configuration as JSON"},
		"wanted, and of no kind":   {&corev1ac.ServiceApplyConfiguration{}, there(func(*corev1.Service) {}), "read an apply configuration"},
		"cached, and not readable": {wanted("pool", nil), &unreadable{}, "Service shop/cache"},
	} {
		for what, write := range map[string]func(*server) error{
			"object": func(s *server) error { return s.applier.Object(t.Context(), c.desired, cached(c.cached)) },
			"status": func(s *server) error { return s.applier.Status(t.Context(), c.desired, c.cached) },
		} {
			s := newServer(t)
			if err := write(s); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s, %s: %v", name, what, err)
			}
			if len(s.asked) != 0 {
				t.Errorf("%s, %s: asked for %q", name, what, s.asked)
			}
		}
	}
}

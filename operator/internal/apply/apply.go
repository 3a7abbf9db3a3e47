// SPDX-License-Identifier: Apache-2.0

// Package apply makes the API server's objects what they are wanted to be: by server-side apply, and only where that changes something.
package apply

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/util/csaupgrade"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"farpool.dev/farpool/api/v1alpha1"
)

// ErrStale: the cache lags behind the API server. A decision that came from it has to be made again.
var ErrStale = errors.New("the cache lags behind the API server")

// ErrUnseen: the cache does not show yet what was made a moment ago.
var ErrUnseen = fmt.Errorf("it was made a moment ago: %w", ErrStale)

// ErrDeleting: an object of the wanted name is being deleted, and must be gone before another is made.
var ErrDeleting = errors.New("it is still being deleted")

// ErrTerminating: the namespace is being deleted, and everything with it.
var ErrTerminating = errors.New("the namespace is being deleted")

// ErrLater: there is no time for a write now. It is left to the next look at the pool.
var ErrLater = errors.New("left for the next look")

// ConflictError: an object of the wanted name belongs to somebody else.
type ConflictError struct {
	Kind, Namespace, Name string
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("%s %s/%s exists and does not belong to this pool: delete or rename it, or give the pool another name", e.Kind, e.Namespace, e.Name)
}

// Counter counts writes.
type Counter interface {
	Wrote(kind, verb string)
}

// Applier writes to the API server.
type Applier struct {
	client client.Client
	// live reads past the cache.
	live    client.Reader
	counter Counter
	// known versions of objects are not compared again; nil: each is.
	known *Known
	// mayWrite says whether there is time to write an object, and mayWriteStatus a status; nil: there is. Both get the object's kind, namespace and name.
	mayWrite, mayWriteStatus func(string) bool
	// background writes large statuses; nil: each status is written before Status returns. again makes the controller look at the pool again.
	background *Background
	again      func()
}

// New returns an applier that writes through client, and asks live what is in the way of what cannot be created.
func New(c client.Client, live client.Reader, counter Counter) *Applier {
	return &Applier{client: c, live: live, counter: counter}
}

// named is an apply configuration that says which object it is of, as all that are generated do.
type named interface {
	GetAPIVersion() *string
	GetKind() *string
	GetNamespace() *string
	GetName() *string
}

// With returns an applier for one look at a pool. It does not compare what is known, remembers there what it finds, and writes no object for which mayWrite has no time,
// and no status for which mayWriteStatus has none.
func (a *Applier) With(known *Known, mayWrite, mayWriteStatus func(string) bool) *Applier {
	with := *a
	with.known, with.mayWrite, with.mayWriteStatus = known, mayWrite, mayWriteStatus
	return &with
}

// Beside returns an applier that leaves large statuses to the background. It calls again when a look has something to do about one: its write has failed, or another is
// wanted by now. It has to be one with what is known.
func (a *Applier) Beside(background *Background, again func()) *Applier {
	beside := *a
	beside.background, beside.again = background, again
	return &beside
}

// begin says that there is no time to write an object, if so.
func (a *Applier) begin(want *unstructured.Unstructured) error {
	if a.mayWrite != nil && !a.mayWrite(describe(want)) {
		return fmt.Errorf("write %s: %w", describe(want), ErrLater)
	}
	return nil
}

// Object makes an object what desired says; desired has a controlling owner. cachedObject is the cache's object of a kind and name with that owner, or nil.
func (a *Applier) Object(ctx context.Context, desired runtime.ApplyConfiguration, cachedObject func(kind, name string) client.Object) error {
	raw, err := written(desired)
	if err != nil {
		return err
	}
	version, wish := version{}, digestOf(raw)
	if is, ok := desired.(named); ok {
		object := made{ptr.Deref(is.GetKind(), ""), ptr.Deref(is.GetNamespace(), ""), ptr.Deref(is.GetName(), "")}
		if cached := cachedObject(object.kind, object.name); cached != nil {
			version = versionOf(cached, "")
			a.known.see(object)
		} else if a.known.isUnseen(object) {
			return fmt.Errorf("%s %s/%s: %w", object.kind, object.namespace, object.name, ErrUnseen)
		}
	}
	if right, _ := a.known.isRight(version, wish); right {
		return nil
	}
	want, err := content(raw)
	if err != nil {
		return err
	}
	cached := cachedObject(want.GetKind(), want.GetName())
	if cached == nil {
		err := a.begin(want)
		if err == nil {
			err = a.create(ctx, want)
		}
		if err == nil {
			a.known.make(made{want.GetKind(), want.GetNamespace(), want.GetName()})
		}
		return err
	}
	have, err := runtime.DefaultUnstructuredConverter.ToUnstructured(withoutStatus(cached))
	if err != nil {
		return fmt.Errorf("compare %s: %w", describe(want), err)
	}
	wanted := comparable(want)
	manager, err := maker(wanted)
	if err != nil {
		return err
	}
	managed, owner := cached.GetManagedFields(), metav1.GetControllerOf(cached)
	if unchanged(have, wanted, managed, owner, v1alpha1.FieldManager, "") || asMade(have, wanted, managed, owner, manager) {
		a.known.found(version, wish)
		return nil
	}
	if err := a.begin(want); err != nil {
		return err
	}
	if len(makersOf(managed)) > 0 {
		if err := a.own(ctx, cached, want); err != nil {
			return err
		}
	}
	if !a.client.Scheme().Recognizes(want.GroupVersionKind()) {
		desired = client.ApplyConfigurationFromUnstructured(want.DeepCopy()) // the client encodes options only for groups that its scheme has
	}
	if err := a.client.Apply(ctx, desired, client.FieldOwner(v1alpha1.FieldManager), client.ForceOwnership); err != nil {
		return refusal("apply", want, err)
	}
	a.counter.Wrote(want.GetKind(), "apply")
	return nil
}

// withoutStatus returns a copy of an object that shares everything with it but its status, which may list a thousand processes.
func withoutStatus(object client.Object) client.Object {
	is := reflect.ValueOf(object).Elem()
	without := reflect.New(is.Type())
	without.Elem().Set(is)
	if status := without.Elem().FieldByName("Status"); status.IsValid() {
		status.SetZero()
	}
	return without.Interface().(client.Object)
}

// create makes an object that does not exist. An apply would overwrite an object that somebody else has made since the cache was read, and secrets that are drawn
// once.
func (a *Applier) create(ctx context.Context, want *unstructured.Unstructured) error {
	manager, err := maker(comparable(want))
	if err != nil {
		return err
	}
	err = a.client.Create(ctx, want.DeepCopy(), client.FieldOwner(manager))
	if err == nil {
		a.counter.Wrote(want.GetKind(), "create")
		return nil
	}
	// An object that is there may be refused for another reason than that it is there, such as a quota.
	if refused := apierrors.APIStatus(nil); errors.As(err, &refused) {
		if err := a.judge(ctx, want); err != nil {
			return err
		}
	}
	if apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create %s, which somebody else has made meanwhile: %w", describe(want), ErrStale)
	}
	return refusal("create", want, err)
}

// makerPrefix begins the names of field managers that have created objects. They go on with a digest of what was asked for: as long as that is asked for,
// the fields of an object need no other manager, which would be two more writes of each object.
const makerPrefix = v1alpha1.FieldManager + ":"

// maker is the field manager that creates what is wanted.
func maker(wanted map[string]any) (string, error) {
	raw, err := json.Marshal(wanted)
	if err != nil {
		return "", fmt.Errorf("write an object as JSON: %w", err)
	}
	digest := sha256.Sum256(raw)
	return makerPrefix + hex.EncodeToString(digest[:16]), nil
}

// makersOf are the field managers with which this operator, or one before it, has created an object whose fields it has not taken over since.
func makersOf(managed []metav1.ManagedFieldsEntry) sets.Set[string] {
	makers := sets.New[string]()
	for _, entry := range managed {
		if (entry.Manager == v1alpha1.FieldManager || strings.HasPrefix(entry.Manager, makerPrefix)) && entry.Operation == metav1.ManagedFieldsOperationUpdate && entry.Subresource == "" {
			makers.Insert(entry.Manager)
		}
	}
	return makers
}

// Keeps says whether a cache is to keep what a field manager owns of objects.
func Keeps(manager string) bool {
	return manager == v1alpha1.FieldManager || manager == v1alpha1.StatusFieldManager || strings.HasPrefix(manager, makerPrefix)
}

// own turns the fields of a created object into applied fields. Otherwise, fields that are left out later would stay for ever. It asks the API server itself who
// owns which field, because the cache leaves owners out.
func (a *Applier) own(ctx context.Context, cached client.Object, want *unstructured.Unstructured) error {
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(schema.FromAPIVersionAndKind(want.GetAPIVersion(), want.GetKind()))
	err := a.live.Get(ctx, client.ObjectKeyFromObject(cached), object)
	if err == nil && object.UID != cached.GetUID() || apierrors.IsNotFound(err) {
		err = ErrStale
	}
	if err != nil {
		return fmt.Errorf("take over the fields of %s: %w", describe(want), err)
	}
	patch, err := csaupgrade.UpgradeManagedFieldsPatch(object, makersOf(object.GetManagedFields()), v1alpha1.FieldManager)
	if err != nil || patch == nil {
		return fmt.Errorf("take over the fields of %s: %w", describe(want), cmp.Or(err, ErrStale))
	}
	err = a.client.Patch(ctx, object, client.RawPatch(types.JSONPatchType, patch), client.FieldOwner(v1alpha1.FieldManager))
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return fmt.Errorf("take over the fields of %s: %w", describe(want), ErrStale)
	case err != nil:
		return fmt.Errorf("take over the fields of %s: %w", describe(want), err)
	}
	a.counter.Wrote(want.GetKind(), "own")
	return nil
}

// refusal says what the API server has against a write.
func refusal(verb string, want *unstructured.Unstructured, err error) error {
	switch {
	case apierrors.IsConflict(err):
		err = ErrStale
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		err = ErrTerminating
	}
	return fmt.Errorf("%s %s: %w", verb, describe(want), err)
}

// Status applies desired's status, if it differs from cached's. nil: it is as desired, or large, and on its way.
func (a *Applier) Status(ctx context.Context, desired runtime.ApplyConfiguration, cached client.Object) error {
	raw, err := written(desired)
	if err != nil {
		return err
	}
	version, wish, uid := versionOf(cached, "status"), digestOf(raw), cached.GetUID()
	right, known := a.known.isRight(version, wish)
	if right {
		return nil
	}
	if a.background != nil {
		done, other := a.known.isSent(uid, version, wish)
		if done {
			return nil
		}
		known = known || other
	}
	// A version that is known to be as something else was wanted needs no comparison.
	if !known {
		if right, err = isStatus(cached, raw); err != nil {
			return err
		}
		if right {
			a.known.found(version, wish)
			return nil
		}
	}
	is, ok := desired.(named)
	if !ok {
		return fmt.Errorf("write the status of %s: %T does not say which object it is of", name(cached), desired)
	}
	if len(raw) >= largeStatus && a.send(ctx, is, raw, version, wish) {
		return nil
	}
	if what := fmt.Sprintf("%s %s/%s", ptr.Deref(is.GetKind(), ""), cached.GetNamespace(), cached.GetName()); a.mayWriteStatus != nil && !a.mayWriteStatus(what) {
		return fmt.Errorf("write the status of %s: %w", what, ErrLater)
	}
	became, err := a.patchStatus(ctx, is, raw)
	if err == nil {
		a.known.found(became, wish)
		a.known.settled(uid)
	}
	return err
}

// send writes a large status in the background. False: the look has to write it.
func (a *Applier) send(ctx context.Context, is named, raw []byte, over version, wish digest) bool {
	if a.background == nil || !a.known.send(over.uid, over, wish) {
		return false
	}
	logger := log.FromContext(ctx)
	begun := a.background.begin(func(ctx context.Context) {
		clock := a.background.clock
		since := clock.Now()
		became, err := a.patchStatus(ctx, is, raw)
		a.known.answered(over.uid, became, err)
		if err != nil {
			logger.Info("a large status was not written in the background; the next look at the pool writes it", "why", err.Error())
			a.again()
			return
		}
		clock.AfterFunc(min(clock.Since(since), mostPause), func() {
			if a.known.rested(over.uid) {
				a.again()
			}
		})
	})
	if !begun {
		a.known.settled(over.uid)
	}
	return begun
}

// patchStatus applies a status, and returns the version of the object that it makes.
func (a *Applier) patchStatus(ctx context.Context, is named, raw []byte) (version, error) {
	kind, namespace, name := ptr.Deref(is.GetKind(), ""), ptr.Deref(is.GetNamespace(), ""), ptr.Deref(is.GetName(), "")
	// The metadata are the whole answer: a status may list a thousand processes.
	object := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	object.SetGroupVersionKind(schema.FromAPIVersionAndKind(ptr.Deref(is.GetAPIVersion(), ""), kind))
	if err := a.client.Status().Patch(ctx, object, client.RawPatch(types.ApplyPatchType, raw), client.FieldOwner(v1alpha1.StatusFieldManager), client.ForceOwnership); err != nil {
		if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			err = ErrStale
		}
		return version{}, fmt.Errorf("apply the status of %s %s/%s: %w", kind, namespace, name, err)
	}
	a.counter.Wrote(kind, "status")
	return versionOf(object, "status"), nil
}

// isStatus says whether the status of an object is as it is wanted, and the operator's own.
func isStatus(cached client.Object, raw []byte) (bool, error) {
	want, err := content(raw)
	if err != nil {
		return false, err
	}
	have, err := runtime.DefaultUnstructuredConverter.ToUnstructured(cached)
	if err != nil {
		return false, fmt.Errorf("compare the status of %s: %w", describe(want), err)
	}
	return unchanged(have, comparable(want), cached.GetManagedFields(), metav1.GetControllerOf(cached), v1alpha1.StatusFieldManager, "status"), nil
}

// Delete deletes the very object that the plan saw.
func (a *Applier) Delete(ctx context.Context, object client.Object) error {
	uid, version := object.GetUID(), object.GetResourceVersion()
	err := a.client.Delete(ctx, object, client.Preconditions{UID: &uid, ResourceVersion: &version}, client.PropagationPolicy(metav1.DeletePropagationBackground))
	if apierrors.IsConflict(err) {
		return fmt.Errorf("delete %T %s/%s: %w", object, object.GetNamespace(), object.GetName(), ErrStale)
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete %T %s/%s: %w", object, object.GetNamespace(), object.GetName(), err)
	}
	if err == nil {
		a.counter.Wrote(fmt.Sprintf("%T", object), "delete")
	}
	return nil
}

// Amend patches a pod, if it is still as the plan saw it.
func (a *Applier) Amend(ctx context.Context, pod *corev1.Pod, subresource string, patch []byte) error {
	what := fmt.Sprintf("amend Pod %s/%s", pod.Namespace, pod.Name)
	object := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}}
	change := client.RawPatch(types.StrategicMergePatchType, patch)
	var err error
	if subresource == "" {
		err = a.client.Patch(ctx, object, change, client.FieldOwner(v1alpha1.FieldManager))
	} else {
		err = a.client.SubResource(subresource).Patch(ctx, object, change, client.FieldOwner(v1alpha1.FieldManager))
	}
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) && subresource == "" {
		return fmt.Errorf("%s: %w", what, ErrStale)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	a.counter.Wrote("Pod", "patch")
	return nil
}

// judge says why an object cannot be created, if one of its name exists. It asks the API server itself: the cache may lag, and it shows only objects that have the
// pool's label. An object that has lost labels gets them back.
func (a *Applier) judge(ctx context.Context, want *unstructured.Unstructured) error {
	existing := &metav1.PartialObjectMetadata{}
	existing.SetGroupVersionKind(schema.FromAPIVersionAndKind(want.GetAPIVersion(), want.GetKind()))
	err := a.live.Get(ctx, client.ObjectKeyFromObject(want), existing)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for %s: %w", describe(want), err)
	}
	switch {
	case sameOwner(want, existing):
		if err := a.Relabel(ctx, existing, want.GetLabels()); err != nil {
			return err
		}
		return fmt.Errorf("%s exists already: %w", describe(want), ErrStale)
	case !existing.DeletionTimestamp.IsZero():
		return fmt.Errorf("%s of an earlier owner is in the way: %w", describe(want), ErrDeleting)
	}
	return &ConflictError{Kind: want.GetKind(), Namespace: want.GetNamespace(), Name: want.GetName()}
}

// sameOwner says whether an object is the wanted one. An object outside of its pool's namespace has a label instead of an owner.
func sameOwner(want, existing client.Object) bool {
	if uid := want.GetLabels()[v1alpha1.LabelPoolUID]; uid != "" {
		return existing.GetLabels()[v1alpha1.LabelPoolUID] == uid
	}
	wanted, controller := metav1.GetControllerOf(want), metav1.GetControllerOf(existing)
	return controller != nil && wanted != nil && controller.UID == wanted.UID
}

// Relabel restores labels that an object of the pool has lost. Without them neither the cache nor Services show it.
func (a *Applier) Relabel(ctx context.Context, existing client.Object, labels map[string]string) error {
	lost := map[string]string{}
	for key, value := range labels {
		if existing.GetLabels()[key] != value {
			lost[key] = value
		}
	}
	if len(lost) == 0 {
		return nil
	}
	return a.mend(ctx, existing, "labels", lost)
}

// Adopt gives an object its owners.
func (a *Applier) Adopt(ctx context.Context, existing client.Object, owners []metav1.OwnerReference) error {
	return a.mend(ctx, existing, "ownerReferences", owners)
}

// mend changes a field of the metadata of the very object that the plan saw, and nothing else.
func (a *Applier) mend(ctx context.Context, existing client.Object, field string, value any) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": existing.GetUID(), "resourceVersion": existing.GetResourceVersion(), field: value}})
	if err != nil {
		return fmt.Errorf("write %s as JSON: %w", field, err)
	}
	object := existing.DeepCopyObject().(client.Object)
	err = a.client.Patch(ctx, object, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(v1alpha1.FieldManager))
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return fmt.Errorf("mend %s of %s: %w", field, name(existing), ErrStale)
	case err != nil:
		return fmt.Errorf("mend %s of %s: %w", field, name(existing), err)
	}
	a.counter.Wrote(fmt.Sprintf("%T", existing), "mend")
	return nil
}

// written returns an apply configuration as JSON.
func written(configuration runtime.ApplyConfiguration) ([]byte, error) {
	raw, err := json.Marshal(configuration)
	if err != nil {
		return nil, fmt.Errorf("write an apply configuration as JSON: %w", err)
	}
	return raw, nil
}

// content reads an apply configuration.
func content(raw []byte) (*unstructured.Unstructured, error) {
	object := &unstructured.Unstructured{}
	if err := object.UnmarshalJSON(raw); err != nil {
		return nil, fmt.Errorf("read an apply configuration: %w", err)
	}
	return object, nil
}

// comparable removes what says which object is meant, and leaves what it should be.
func comparable(want *unstructured.Unstructured) map[string]any {
	object := want.DeepCopy().Object
	delete(object, "apiVersion")
	delete(object, "kind")
	if metadata, ok := object["metadata"].(map[string]any); ok {
		for _, field := range []string{"name", "namespace", "resourceVersion"} {
			delete(metadata, field)
		}
		if len(metadata) == 0 {
			delete(object, "metadata")
		}
	}
	return object
}

func name(object client.Object) string {
	return fmt.Sprintf("%T %s/%s", object, object.GetNamespace(), object.GetName())
}

func describe(want *unstructured.Unstructured) string {
	return fmt.Sprintf("%s %s/%s", want.GetKind(), want.GetNamespace(), want.GetName())
}

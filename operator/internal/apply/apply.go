// SPDX-License-Identifier: Apache-2.0

// Package apply makes the API server's objects what they are wanted to be: by server-side apply, and only where that changes something.
package apply

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"farpool.dev/farpool/api/v1alpha1"
)

// ErrStale: the cache lags behind the API server. What was decided from it must be decided again.
var ErrStale = errors.New("the cache lags behind the API server")

// ErrTerminating: the namespace is being deleted, and everything with it.
var ErrTerminating = errors.New("the namespace is being deleted")

// ConflictError: an object of the wanted name belongs to somebody else.
type ConflictError struct {
	Kind, Namespace, Name string
	Terminating           bool
}

func (e *ConflictError) Error() string {
	if e.Terminating {
		return fmt.Sprintf("%s %s/%s of an earlier owner is still being deleted", e.Kind, e.Namespace, e.Name)
	}
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
}

// New returns an applier that writes through client and asks live before it creates.
func New(c client.Client, live client.Reader, counter Counter) *Applier {
	return &Applier{client: c, live: live, counter: counter}
}

// Object applies desired, which has a controlling owner. cached says what the cache has of a kind and name with that owner, or nil.
func (a *Applier) Object(ctx context.Context, desired runtime.ApplyConfiguration, cachedObject func(kind, name string) client.Object) error {
	want, err := content(desired)
	if err != nil {
		return err
	}
	cached := cachedObject(want.GetKind(), want.GetName())
	if cached == nil {
		if err := a.mayCreate(ctx, want); err != nil {
			return err
		}
	} else {
		have, err := runtime.DefaultUnstructuredConverter.ToUnstructured(cached)
		if err != nil {
			return fmt.Errorf("compare %s: %w", describe(want), err)
		}
		if unchanged(have, comparable(want), cached.GetManagedFields(), v1alpha1.FieldManager, "") {
			return nil
		}
	}
	if err := a.client.Apply(ctx, desired, client.FieldOwner(v1alpha1.FieldManager), client.ForceOwnership); err != nil {
		if apierrors.IsConflict(err) {
			return fmt.Errorf("apply %s: %w", describe(want), ErrStale)
		}
		if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			return fmt.Errorf("apply %s: %w", describe(want), ErrTerminating)
		}
		return fmt.Errorf("apply %s: %w", describe(want), err)
	}
	a.counter.Wrote(want.GetKind(), "apply")
	return nil
}

// Status applies desired's status, if it differs from cached's.
func (a *Applier) Status(ctx context.Context, desired runtime.ApplyConfiguration, cached client.Object) error {
	want, err := content(desired)
	if err != nil {
		return err
	}
	have, err := runtime.DefaultUnstructuredConverter.ToUnstructured(cached)
	if err != nil {
		return fmt.Errorf("compare the status of %s: %w", describe(want), err)
	}
	if unchanged(have, comparable(want), cached.GetManagedFields(), v1alpha1.StatusFieldManager, "status") {
		return nil
	}
	if err := a.client.Status().Apply(ctx, desired, client.FieldOwner(v1alpha1.StatusFieldManager), client.ForceOwnership); err != nil {
		if apierrors.IsNotFound(err) {
			return fmt.Errorf("apply the status of %s: %w", describe(want), ErrStale)
		}
		return fmt.Errorf("apply the status of %s: %w", describe(want), err)
	}
	a.counter.Wrote(want.GetKind(), "status")
	return nil
}

// Delete deletes the very object that was seen.
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

// mayCreate asks the API server itself: the cache may lag, and it shows only objects that bear the pool's label.
func (a *Applier) mayCreate(ctx context.Context, want *unstructured.Unstructured) error {
	existing := &metav1.PartialObjectMetadata{}
	existing.SetGroupVersionKind(schema.FromAPIVersionAndKind(want.GetAPIVersion(), want.GetKind()))
	err := a.live.Get(ctx, client.ObjectKeyFromObject(want), existing)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for %s: %w", describe(want), err)
	}
	wanted := metav1.GetControllerOf(want)
	if controller := metav1.GetControllerOf(existing); controller != nil && wanted != nil && controller.UID == wanted.UID {
		return fmt.Errorf("%s exists already: %w", describe(want), ErrStale)
	}
	return &ConflictError{Kind: want.GetKind(), Namespace: want.GetNamespace(), Name: want.GetName(), Terminating: !existing.DeletionTimestamp.IsZero()}
}

func content(configuration runtime.ApplyConfiguration) (*unstructured.Unstructured, error) {
	raw, err := json.Marshal(configuration)
	if err != nil {
		return nil, fmt.Errorf("write an apply configuration as JSON: %w", err)
	}
	object := &unstructured.Unstructured{}
	if err := object.UnmarshalJSON(raw); err != nil {
		return nil, fmt.Errorf("read an apply configuration: %w", err)
	}
	return object, nil
}

// comparable leaves out what says which object is meant rather than what it shall be.
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

func describe(want *unstructured.Unstructured) string {
	return fmt.Sprintf("%s %s/%s", want.GetKind(), want.GetNamespace(), want.GetName())
}

// SPDX-License-Identifier: Apache-2.0

package kvpool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/apply"
	"farpool.dev/farpool/operator/internal/render"
)

// Secrets that only the operator may read lie outside of their pools' namespaces. They can name no owner there, so the garbage collector leaves them alone. The
// operator deletes them when the API server itself says that their pool is gone.

// kept returns where the operator keeps a pool's Secrets.
func (r *Reconciler) kept(pool *v1alpha1.KVPool) []types.NamespacedName {
	var names []types.NamespacedName
	for _, name := range render.KeptSecretNames(pool.Name, pool.UID) {
		names = append(names, types.NamespacedName{Namespace: cmp.Or(r.settings.SecretNamespace, pool.Namespace), Name: name})
	}
	return names
}

// watches says whether the pools of a namespace are served.
func (r *Reconciler) watches(namespace string) bool {
	return len(r.watched) == 0 || slices.Contains(r.watched, namespace)
}

// keptOf returns the pool of a kept Secret, if it is one and its pool would be served.
func (r *Reconciler) keptOf(secret client.Object) (pool types.NamespacedName, uid types.UID, ok bool) {
	labels := secret.GetLabels()
	pool = types.NamespacedName{Namespace: labels[v1alpha1.LabelPoolNamespace], Name: labels[v1alpha1.LabelPool]}
	uid = types.UID(labels[v1alpha1.LabelPoolUID])
	ok = pool.Name != "" && pool.Namespace != "" && secret.GetNamespace() == cmp.Or(r.settings.SecretNamespace, pool.Namespace) &&
		slices.Contains(render.KeptSecretNames(pool.Name, uid), secret.GetName()) && r.watches(pool.Namespace)
	return pool, uid, ok
}

// isKept says whether this operator keeps a Secret for a pool. A pool has seven other Secrets.
func (r *Reconciler) isKept(secret client.Object) bool {
	_, _, kept := r.keptOf(secret)
	return kept
}

// poolOfKept makes the controller look at a pool when a Secret that is kept for it changes.
func (r *Reconciler) poolOfKept(_ context.Context, secret client.Object) []reconcile.Request {
	labels := secret.GetLabels()
	pool := types.NamespacedName{Namespace: labels[v1alpha1.LabelPoolNamespace], Name: labels[v1alpha1.LabelPool]}
	if pool.Name != "" && r.watches(pool.Namespace) && slices.Contains(render.KeptSecretNames(pool.Name, types.UID(labels[v1alpha1.LabelPoolUID])), secret.GetName()) {
		return []reconcile.Request{{NamespacedName: pool}} // another operator's are looked at, too
	}
	return nil
}

// giveWay leaves a pool to an operator of another namespace, which writes its statuses. Two operators that wrote them would never settle.
func (r *Reconciler) giveWay(ctx context.Context, pool *v1alpha1.KVPool, rival string) reconcile.Result {
	key := client.ObjectKeyFromObject(pool)
	r.mutex.Lock()
	told := r.gaveWay[key] == rival
	r.mutex.Unlock()
	if !told {
		r.forget(key)
		r.mutex.Lock()
		r.gaveWay[key] = rival
		r.mutex.Unlock()
		own := cmp.Or(r.settings.SecretNamespace, pool.Namespace)
		note := fmt.Sprintf("an operator that keeps its Secrets in namespace %s has made those of this pool: the operator of namespace %s does nothing for the pool. Uninstall one of them, or give them different namespaces to watch; if that operator has moved here, move the Secrets with label %s=%s, too",
			rival, own, v1alpha1.LabelPoolUID, pool.UID)
		log.FromContext(ctx).Info("another operator serves a pool", "of", rival)
		r.recorder.Eventf(pool, nil, corev1.EventTypeWarning, v1alpha1.ReasonAnotherOperator, "GiveWay", "%s", note)
	}
	return reconcile.Result{}
}

// sweepKept adds a controller that looks at each kept Secret when the operator starts, when it is made, and when its pool is deleted.
func (r *Reconciler) sweepKept(mgr ctrl.Manager, name string) error {
	onlyWhen := func(created, deleted bool) predicate.Predicate {
		return predicate.Funcs{
			CreateFunc: func(event.CreateEvent) bool { return created },
			UpdateFunc: func(event.UpdateEvent) bool { return false },
			DeleteFunc: func(event.DeleteEvent) bool { return deleted },
		}
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named(name+"-kept-secrets").
		For(&corev1.Secret{}, builder.WithPredicates(onlyWhen(true, false), predicate.NewPredicateFuncs(r.isKept))).
		Watches(&v1alpha1.KVPool{}, handler.EnqueueRequestsFromMapFunc(func(_ context.Context, object client.Object) []reconcile.Request {
			pool, ok := object.(*v1alpha1.KVPool)
			if !ok {
				return nil
			}
			var requests []reconcile.Request
			for _, name := range r.kept(pool) {
				requests = append(requests, reconcile.Request{NamespacedName: name})
			}
			return requests
		}), builder.WithPredicates(onlyWhen(false, true))).
		WithOptions(controller.Options{EnableWarmup: ptr.To(true), ReconciliationTimeout: reconcileTimeout}).
		Complete(reconcile.Func(r.sweep))
}

// sweep deletes a kept Secret whose pool is gone.
func (r *Reconciler) sweep(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	secret := &corev1.Secret{}
	if err := r.client.Get(ctx, request.NamespacedName, secret); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	pool, uid, ok := r.keptOf(secret)
	if !ok || !secret.DeletionTimestamp.IsZero() {
		return reconcile.Result{}, nil
	}
	// The cache still shows the pool. When the pool's end is reported, this Secret is looked at again.
	cached := &v1alpha1.KVPool{}
	if err := r.client.Get(ctx, pool, cached); err == nil && cached.UID == uid {
		return reconcile.Result{}, nil
	}
	// The cache may lag the other way, too: only the API server itself knows that a pool is gone.
	owner := &metav1.PartialObjectMetadata{}
	owner.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("KVPool"))
	err := r.live.Get(ctx, pool, owner)
	if err != nil && !apierrors.IsNotFound(err) {
		return reconcile.Result{}, fmt.Errorf("look for the pool %s of Secret %s: %w", pool, request, err)
	}
	if err == nil && owner.UID == uid {
		return reconcile.Result{}, nil
	}
	if err := r.applier.Delete(ctx, secret); err != nil {
		if errors.Is(err, apply.ErrStale) {
			return reconcile.Result{RequeueAfter: staleRetry}, nil
		}
		return reconcile.Result{}, err
	}
	ctrl.LoggerFrom(ctx).Info("deleted a Secret of a pool that is gone", "pool", pool, "uid", uid)
	return reconcile.Result{}, nil
}

// SPDX-License-Identifier: Apache-2.0

package sidecars

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"farpool.dev/farpool/api/v1alpha1"
	apiac "farpool.dev/farpool/api/v1alpha1/applyconfiguration/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/controller/kvpool"
	"farpool.dev/farpool/operator/internal/inject"
	"farpool.dev/farpool/operator/internal/pki"
	"farpool.dev/farpool/operator/internal/render"
)

const (
	// indexSecrets finds the Secrets that sidecars of a pool begin with, by the pool's namespace and name; indexPods finds pods by namespace and the UID of the pool
	// whose sidecar they have.
	indexSecrets = "sidecarPool"
	indexPods    = "sidecarPoolUID"

	// pendingRetry is how soon it is looked again whether a namespace can get its Secret: nobody tells that a namespace was made.
	pendingRetry = 20 * time.Second
	// countDelay gathers the news of pods: a rollout has many.
	countDelay = time.Second
	// reconcileTimeout is many times what the writes of one pool take.
	reconcileTimeout = 2 * time.Minute
)

// Reconciler keeps the Secrets of namespaces, and status.sidecars of pools.
type Reconciler struct {
	client   client.Client
	live     client.Reader
	pods     client.Reader
	recorder events.EventRecorder
	options  Options
}

// Options are the controller's.
type Options struct {
	// Name is the controller's, unique in a process.
	Name  string
	Clock clock.PassiveClock
	// SecretNamespace is where the operator keeps what only it may read; empty: with each pool.
	SecretNamespace string
	// Namespaces are the ones that the operator serves; empty: all.
	Namespaces    []string
	ClusterDomain string
}

// podCache holds the metadata of pods that asked for a sidecar and have not ended.
func podCache(mgr manager.Manager, namespaces []string) (cache.Cache, error) {
	requirement, err := labels.NewRequirement(v1alpha1.LabelInject, "=", []string{v1alpha1.InjectTrue})
	if err != nil {
		return nil, err
	}
	running, err := fields.ParseSelector("status.phase!=Succeeded,status.phase!=Failed")
	if err != nil {
		return nil, err
	}
	options := cache.Options{
		Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(), HTTPClient: mgr.GetHTTPClient(),
		DefaultLabelSelector: labels.NewSelector().Add(*requirement), DefaultFieldSelector: running,
		DefaultTransform: func(object any) (any, error) {
			if pod, ok := object.(*metav1.PartialObjectMetadata); ok {
				slim := &metav1.PartialObjectMetadata{TypeMeta: pod.TypeMeta}
				slim.Namespace, slim.Name, slim.UID, slim.ResourceVersion, slim.DeletionTimestamp = pod.Namespace, pod.Name, pod.UID, pod.ResourceVersion, pod.DeletionTimestamp
				if written, ok := pod.Annotations[v1alpha1.AnnotationInjected]; ok {
					slim.Annotations = map[string]string{v1alpha1.AnnotationInjected: written}
				}
				return slim, nil
			}
			return object, nil
		},
	}
	for _, namespace := range namespaces {
		if options.DefaultNamespaces == nil {
			options.DefaultNamespaces = map[string]cache.Config{}
		}
		options.DefaultNamespaces[namespace] = cache.Config{}
	}
	return cache.New(mgr.GetConfig(), options)
}

func podMetadata() *metav1.PartialObjectMetadata {
	pod := &metav1.PartialObjectMetadata{}
	pod.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod"))
	return pod
}

// written is what an injector wrote about a pod.
type written struct{ Pool, UID, Image, Limits string }

func writtenOf(pod client.Object) (w written) {
	if err := json.Unmarshal([]byte(pod.GetAnnotations()[v1alpha1.AnnotationInjected]), &w); err != nil {
		return written{}
	}
	return w
}

// outdated counts the pods whose sidecars were made for another image of their pool, or for other limits.
func outdated(pool *v1alpha1.KVPool, pods []metav1.PartialObjectMetadata) int32 {
	if pool.Status.Template == nil {
		return 0
	}
	found := int32(0)
	for i := range pods {
		if has := writtenOf(&pods[i]); has.Image != pool.Status.Template.Image || has.Limits != inject.LimitsInRecord(pool) {
			found++
		}
	}
	return found
}

// poolOf returns the pool of a Secret that sidecars begin with; false: it is another Secret.
func poolOf(secret client.Object) (pool types.NamespacedName, uid types.UID, ok bool) {
	of := secret.GetLabels()
	pool = types.NamespacedName{Namespace: of[v1alpha1.LabelPoolNamespace], Name: of[v1alpha1.LabelPool]}
	uid = types.UID(of[v1alpha1.LabelPoolUID])
	return pool, uid, pool.Name != "" && pool.Namespace != "" && uid != "" && secret.GetName() == v1alpha1.SidecarSecretName(pool.Name, uid, secret.GetNamespace())
}

// SetUp adds the controller to a manager whose cache has the Secrets of pools.
func SetUp(mgr manager.Manager, options Options) error {
	ctx := context.Background()
	pods, err := podCache(mgr, options.Namespaces)
	if err != nil {
		return fmt.Errorf("make a cache of pods with sidecars: %w", err)
	}
	if err := pods.IndexField(ctx, podMetadata(), indexPods, func(pod client.Object) []string {
		return []string{pod.GetNamespace() + "/" + writtenOf(pod).UID}
	}); err != nil {
		return err
	}
	if err := mgr.GetCache().IndexField(ctx, &corev1.Secret{}, indexSecrets, func(secret client.Object) []string {
		if pool, _, ok := poolOf(secret); ok {
			return []string{pool.String()}
		}
		return nil
	}); err != nil {
		return err
	}
	if err := mgr.Add(pods); err != nil {
		return err
	}
	r := &Reconciler{client: mgr.GetClient(), live: mgr.GetAPIReader(), pods: pods, recorder: mgr.GetEventRecorder("farpool-operator"), options: options}
	return ctrl.NewControllerManagedBy(mgr).
		Named(options.Name+"-sidecars").
		For(&v1alpha1.KVPool{}, builder.WithPredicates(predicate.NewPredicateFuncs(func(object client.Object) bool {
			pool, ok := object.(*v1alpha1.KVPool)
			return ok && (pool.Spec.Sidecars != nil || pool.Status.Sidecars != nil)
		}))).
		// The Secrets of namespaces, and what the operator keeps for pools.
		Watches(&corev1.Secret{}, handler.EnqueueRequestsFromMapFunc(func(_ context.Context, secret client.Object) []reconcile.Request {
			of := secret.GetLabels()
			pool := types.NamespacedName{Namespace: of[v1alpha1.LabelPoolNamespace], Name: of[v1alpha1.LabelPool]}
			if pool.Name == "" || pool.Namespace == "" {
				return nil
			}
			return []reconcile.Request{{NamespacedName: pool}}
		})).
		WatchesRawSource(source.Kind(pods, podMetadata(), podHandler())).
		WithOptions(controllerOptions()).
		Complete(r)
}

// controllerOptions are how the controller works its queue. Without a limit of its own, the last of many waits after failures would be 16 minutes.
func controllerOptions() controller.Options {
	return controller.Options{EnableWarmup: ptr.To(true), ReconciliationTimeout: reconcileTimeout, RateLimiter: kvpool.Retries()}
}

// Reconcile brings the Secrets of one pool's namespaces to what its spec says.
func (r *Reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	var secrets corev1.SecretList
	if err := r.client.List(ctx, &secrets, client.MatchingFields{indexSecrets: request.String()}); err != nil {
		return reconcile.Result{}, fmt.Errorf("list Secrets for sidecars of pool %s: %w", request, err)
	}
	pool := &v1alpha1.KVPool{}
	if err := r.client.Get(ctx, request.NamespacedName, pool); err != nil {
		if !apierrors.IsNotFound(err) {
			return reconcile.Result{}, fmt.Errorf("get KVPool %s: %w", request, err)
		}
		pool = nil
	}
	// A Secret that cannot be deleted takes nothing from other namespaces: its failure is returned when all else is done.
	var swept error
	held := map[string]*corev1.Secret{}
	for i := range secrets.Items {
		secret := &secrets.Items[i]
		if _, uid, _ := poolOf(secret); pool != nil && uid == pool.UID {
			held[secret.Namespace] = secret
		} else {
			swept = errors.Join(swept, r.sweep(ctx, request.NamespacedName, uid, secret))
		}
	}
	if pool == nil || !pool.DeletionTimestamp.IsZero() || pool.Spec.Sidecars == nil && pool.Status.Sidecars == nil && len(held) == 0 {
		return reconcile.Result{}, swept
	}
	o, err := r.observe(ctx, pool, held)
	if err != nil {
		return reconcile.Result{}, errors.Join(swept, err)
	}
	if o.authority == nil && o.secret == nil {
		// The pool has just been made, and is looked at again when the operator has written these down; or another operator serves it, and its word counts.
		return reconcile.Result{}, swept
	}
	result, err := r.carryOut(ctx, pool, held, decide(o))
	return result, errors.Join(swept, err)
}

func (r *Reconciler) observe(ctx context.Context, pool *v1alpha1.KVPool, held map[string]*corev1.Secret) (observed, error) {
	o := observed{
		pool: pool, held: held, pods: map[string]int32{}, outdated: map[string]int32{}, now: r.options.Clock.Now(), random: rand.Reader, clusterDomain: cmp.Or(r.options.ClusterDomain, "cluster.local"),
		watches: func(namespace string) bool {
			return len(r.options.Namespaces) == 0 || slices.Contains(r.options.Namespaces, namespace)
		},
	}
	names := render.KeptSecretNames(pool.Name, pool.UID)
	for i, data := range []*map[string][]byte{&o.authority, &o.secret} {
		secret := &corev1.Secret{}
		key := types.NamespacedName{Namespace: cmp.Or(r.options.SecretNamespace, pool.Namespace), Name: names[i]}
		if err := r.client.Get(ctx, key, secret); client.IgnoreNotFound(err) != nil {
			return o, fmt.Errorf("get Secret %s: %w", key, err)
		}
		*data = secret.Data
	}
	if pool.Spec.Sidecars == nil {
		return o, nil
	}
	for _, entry := range pool.Spec.Sidecars.Namespaces {
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PodList"))
		if err := r.pods.List(ctx, list, client.MatchingFields{indexPods: entry.Name + "/" + string(pool.UID)}); err != nil {
			return o, fmt.Errorf("count sidecars of pool %s/%s in namespace %s: %w", pool.Namespace, pool.Name, entry.Name, err)
		}
		o.pods[entry.Name] = int32(len(list.Items))
		o.outdated[entry.Name] = outdated(pool, list.Items)
	}
	return o, nil
}

func (r *Reconciler) carryOut(ctx context.Context, pool *v1alpha1.KVPool, held map[string]*corev1.Secret, d decision) (reconcile.Result, error) {
	failures := map[string]finding{}
	for namespace, secret := range d.secrets {
		if failed := r.write(ctx, secret, held[namespace]); failed != nil {
			failures[namespace] = *failed
		}
	}
	var removed []*corev1.Secret
	var kept error
	for _, secret := range d.removed {
		if err := r.delete(ctx, secret); err != nil {
			kept = errors.Join(kept, err)
			continue
		}
		removed = append(removed, secret)
	}
	status := d.statusWith(failures)
	if !reflect.DeepEqual(status, pool.Status.Sidecars) {
		if err := r.client.Status().Apply(ctx, statusOf(pool, status), client.FieldOwner(v1alpha1.SidecarsFieldManager), client.ForceOwnership); err != nil {
			if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
				return reconcile.Result{RequeueAfter: countDelay}, kept // the pool has changed, and is looked at again
			}
			return reconcile.Result{}, errors.Join(kept, fmt.Errorf("apply status.sidecars of KVPool %s/%s: %w", pool.Namespace, pool.Name, err))
		}
	}
	for _, told := range news(pool.Status.Sidecars, status, removed) {
		r.recorder.Eventf(pool, nil, told.kind, told.reason, told.action, "%s", told.note)
	}
	return reconcile.Result{RequeueAfter: d.lookAgain(status, r.options.Clock.Now())}, kept
}

// lookAgain says after how long a pool is looked at again, though nothing tells of it: a certificate is due, or a namespace waits. 0: never.
func (d *decision) lookAgain(status *v1alpha1.SidecarsStatus, now time.Time) time.Duration {
	again := time.Duration(0)
	if !d.renewAt.IsZero() {
		again = max(d.renewAt.Sub(now), time.Second)
	}
	if status != nil && slices.ContainsFunc(status.Namespaces, func(entry v1alpha1.SidecarNamespaceStatus) bool { return entry.State == v1alpha1.SidecarsPending }) {
		again = min(cmp.Or(again, pendingRetry), pendingRetry)
	}
	return again
}

// write makes a Secret, or changes the one that the operator has made. A Secret of somebody else is left alone.
func (r *Reconciler) write(ctx context.Context, secret, held *corev1.Secret) *finding {
	if held != nil {
		applied := corev1ac.Secret(secret.Name, secret.Namespace).WithLabels(secret.Labels).WithType(secret.Type).WithData(secret.Data).WithResourceVersion(held.ResourceVersion)
		err := r.client.Apply(ctx, applied, client.FieldOwner(v1alpha1.FieldManager), client.ForceOwnership)
		if err == nil || apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
			return nil // a newer version is looked at again
		}
		return &finding{v1alpha1.ReasonApplyFailed, fmt.Sprintf("renew Secret %s/%s: %v", secret.Namespace, secret.Name, err)}
	}
	err := r.client.Create(ctx, secret.DeepCopy(), client.FieldOwner(v1alpha1.FieldManager))
	switch {
	case err == nil:
		log.FromContext(ctx).Info("a namespace can have sidecars", "namespace", secret.Namespace)
		return nil
	case apierrors.IsAlreadyExists(err):
		return r.taken(ctx, secret)
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return &finding{v1alpha1.ReasonNamespaceMissing, fmt.Sprintf("namespace %s is being deleted", secret.Namespace)}
	case apierrors.IsNotFound(err):
		return &finding{v1alpha1.ReasonNamespaceMissing, fmt.Sprintf("there is no namespace %s: make it, or take it off spec.sidecars.namespaces", secret.Namespace)}
	}
	return &finding{v1alpha1.ReasonApplyFailed, fmt.Sprintf("make Secret %s/%s: %v", secret.Namespace, secret.Name, err)}
}

// taken says whether the Secret of a name is another than the operator's. The cache may lag, and shows only what has the pool's labels. The operator's own Secret,
// which holds a certificate that the pool's authority has signed for the namespace, gets back the labels that somebody took from it.
func (r *Reconciler) taken(ctx context.Context, secret *corev1.Secret) *finding {
	there := &corev1.Secret{}
	if err := r.live.Get(ctx, client.ObjectKeyFromObject(secret), there); err != nil {
		return &finding{v1alpha1.ReasonCredentialsAwaited, fmt.Sprintf("look for Secret %s/%s: %v", secret.Namespace, secret.Name, err)}
	}
	if of, uid, ok := poolOf(there); ok && string(uid) == secret.Labels[v1alpha1.LabelPoolUID] && of.Name == secret.Labels[v1alpha1.LabelPool] && of.Namespace == secret.Labels[v1alpha1.LabelPoolNamespace] {
		return &finding{v1alpha1.ReasonCredentialsAwaited, "the Secret was made a moment ago"}
	}
	if pki.SameHolder(there.Data, secret.Data) {
		return r.write(ctx, secret, there)
	}
	return &finding{v1alpha1.ReasonSidecarSecretTaken, fmt.Sprintf("Secret %s/%s exists, and the operator has not made it: delete it", secret.Namespace, secret.Name)}
}

// sweep deletes a Secret whose pool is gone, or is another of the same name, if the API server itself says so.
func (r *Reconciler) sweep(ctx context.Context, pool types.NamespacedName, uid types.UID, secret *corev1.Secret) error {
	owner := &metav1.PartialObjectMetadata{}
	owner.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("KVPool"))
	err := r.live.Get(ctx, pool, owner)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("look for the pool %s of Secret %s/%s: %w", pool, secret.Namespace, secret.Name, err)
	}
	if err == nil && owner.UID == uid || !secret.DeletionTimestamp.IsZero() {
		return nil
	}
	log.FromContext(ctx).Info("deleting a Secret of a pool that is gone", "namespace", secret.Namespace, "uid", uid)
	return r.delete(ctx, secret)
}

func (r *Reconciler) delete(ctx context.Context, secret *corev1.Secret) error {
	uid, version := secret.UID, secret.ResourceVersion
	err := r.client.Delete(ctx, secret, client.Preconditions{UID: &uid, ResourceVersion: &version})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete Secret %s/%s: %w", secret.Namespace, secret.Name, err)
	}
	return nil
}

func statusOf(pool *v1alpha1.KVPool, status *v1alpha1.SidecarsStatus) *apiac.KVPoolApplyConfiguration {
	applied := apiac.KVPoolStatus()
	if status != nil {
		sidecars := apiac.SidecarsStatus().WithCount(status.Count)
		for _, entry := range status.Namespaces {
			one := apiac.SidecarNamespaceStatus().WithName(entry.Name).WithState(entry.State).WithSidecars(entry.Sidecars).WithOutdated(entry.Outdated)
			if entry.Reason != "" {
				one.WithReason(entry.Reason).WithMessage(entry.Message)
			}
			sidecars.WithNamespaces(one)
		}
		applied.WithSidecars(sidecars)
	}
	return apiac.KVPool(pool.Name, pool.Namespace).WithStatus(applied)
}

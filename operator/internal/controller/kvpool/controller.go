// SPDX-License-Identifier: Apache-2.0

// Package kvpool is the controller of pools. It observes, lets plan decide, and applies; it decides nothing itself.
package kvpool

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	farpoolv1alpha1 "farpool.dev/farpool/api/gen/farpool/v1alpha1"
	"farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/agent"
	"farpool.dev/farpool/operator/internal/apply"
	"farpool.dev/farpool/operator/internal/observe"
	"farpool.dev/farpool/operator/internal/pki"
	"farpool.dev/farpool/operator/internal/plan"
	"farpool.dev/farpool/operator/internal/render"
	"farpool.dev/farpool/operator/internal/shardmap"
)

// +kubebuilder:rbac:groups=farpool.dev,resources=kvpools,verbs=get;list;watch
// +kubebuilder:rbac:groups=farpool.dev,resources=kvpools/status,verbs=patch
// +kubebuilder:rbac:groups=farpool.dev,resources=kvpools/finalizers;memorynodes/finalizers,verbs=update
// +kubebuilder:rbac:groups=farpool.dev,resources=memorynodes,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=farpool.dev,resources=memorynodes/status,verbs=patch
// +kubebuilder:rbac:groups=farpool.dev,resources=shardmaps,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=farpool.dev,resources=shardmaps/status,verbs=patch
// +kubebuilder:rbac:groups=farpool.dev,resources=repairleases,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=farpool.dev,resources=repairleases/status,verbs=patch
// +kubebuilder:rbac:groups=farpool.dev,resources=resizeoperations,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=farpool.dev,resources=resizeoperations/status,verbs=patch
// +kubebuilder:rbac:groups=farpool.dev,resources=memorynodepools;computeshardpools,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=farpool.dev,resources=memorynodepools/status;computeshardpools/status,verbs=patch
// +kubebuilder:rbac:groups="",resources=nodes,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=pods;secrets,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups="",resources=pods/resize,verbs=patch
// +kubebuilder:rbac:groups="",resources=configmaps;services,verbs=get;list;watch;create;patch
// +kubebuilder:rbac:groups=apps,resources=deployments,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=apps,resources=replicasets,verbs=get;list;watch
// +kubebuilder:rbac:groups=policy,resources=poddisruptionbudgets,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=networking.k8s.io,resources=networkpolicies,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups="";events.k8s.io,resources=events,verbs=create;patch
// +kubebuilder:rbac:groups="",resources=events,verbs=list

// operatorName is the holder's name in the operator's certificates.
const operatorName = "farpool-operator"

const (
	// The wait for a cache that lags is staleRetry at first, doubles with each try, and is staleRetryMost at the most; people hear of it after staleTold tries.
	staleRetry     = 200 * time.Millisecond
	staleRetryMost = 10 * time.Second
	staleTold      = 5
	// failedRetry is the first wait after a failure, and refusedRetry the longest: a correction is seen soon, however long the failure lasted.
	failedRetry  = 5 * time.Millisecond
	refusedRetry = 15 * time.Second
	// reconcileTimeout is many times what the slowest reconciliation takes, in which every memory node of the largest pool gets a map, each within its own deadline.
	reconcileTimeout = 5 * time.Minute
	// unheardWait is how long news of a pool waits for the first news of its other processes: an operator that starts hears all of them at about the same time.
	unheardWait = 250 * time.Millisecond
	// writesAtOnce bounds the requests for one pool that wait for the API server. More of them wait longer for each other where it is busy, and the turn of a
	// pool ends with the last.
	writesAtOnce = 4
)

// Reconciler brings pools to their specs.
type Reconciler struct {
	client  client.Client
	live    client.Reader
	applier *apply.Applier
	// background writes long lists of processes.
	background *apply.Background
	streams    *agent.Streams
	tellings   *tellings
	calls      *agent.Calls
	recorder   events.EventRecorder
	metrics    *Metrics
	clock      clock.PassiveClock
	settings   plan.Settings
	// watched namespaces; empty: all of them.
	watched     []string
	drainTaints observe.DrainTaints
	exits       *exits

	mutex sync.Mutex
	// turnLasts is how long a look at a pool begins to write objects.
	turnLasts time.Duration
	queue     workqueue.TypedRateLimitingInterface[reconcile.Request]
	// credentials that the operator shows to each pool's agents: in memory alone.
	credentials map[types.NamespacedName]*pki.Credential
	// told is how far each pool's RepairLeases and ResizeOperations have come, as people and metrics know it. The cache may show an earlier status.
	told map[types.NamespacedName]map[line]string
	// stale counts how often in a row each pool was decided from a stale cache.
	stale map[types.NamespacedName]int
	// rounds are what the latest looks at each pool have begun to write, if they had no time for all that there is to write.
	rounds map[types.NamespacedName]map[string]bool
	// known are the versions of each pool's objects that need no comparison.
	known map[types.NamespacedName]*apply.Known
	// gaveWay is the namespace of the other operator to which each pool was left, as people know it.
	gaveWay map[types.NamespacedName]string
}

// line identifies the events, step by step, about one RepairLease or ResizeOperation, for people who look at it or at its pool.
type line struct {
	object, regarding types.UID
	of                string
}

// Options are the controller's.
type Options struct {
	Settings plan.Settings
	Metrics  *Metrics
	Clock    clock.PassiveClock
	// Workers is how many pools may be reconciled at once. Another begins only when the one before has lasted for as long as patience does.
	Workers int
	// Name is the controller's, unique in a process.
	Name string
	// Namespaces are those whose pools the operator serves, as the cache has them; empty: all.
	Namespaces []string
	// DrainTaints make memory nodes leave a Kubernetes node, as a cordon does.
	DrainTaints observe.DrainTaints
}

// SetUp adds the controller to a manager.
func SetUp(mgr manager.Manager, options Options) (*Reconciler, error) {
	if err := observe.Index(context.Background(), mgr.GetCache(), options.DrainTaints); err != nil {
		return nil, err
	}
	// Indexes and this make every informer, so that Ready waits for all of them.
	if _, err := mgr.GetCache().GetInformer(context.Background(), &v1alpha1.KVPool{}, cache.BlockUntilSynced(false)); err != nil {
		return nil, err
	}
	r := &Reconciler{
		client:      mgr.GetClient(),
		live:        mgr.GetAPIReader(),
		applier:     apply.New(mgr.GetClient(), mgr.GetAPIReader(), options.Metrics),
		background:  apply.NewBackground(clock.RealClock{}),
		recorder:    mgr.GetEventRecorder(operatorName),
		metrics:     options.Metrics,
		clock:       options.Clock,
		settings:    options.Settings,
		watched:     options.Namespaces,
		drainTaints: options.DrainTaints,
		exits:       &exits{clock: options.Clock, seen: map[types.UID]exit{}},
		credentials: map[types.NamespacedName]*pki.Credential{},
		told:        map[types.NamespacedName]map[line]string{},
		stale:       map[types.NamespacedName]int{},
		turnLasts:   turnLasts,
		rounds:      map[types.NamespacedName]map[string]bool{},
		known:       map[types.NamespacedName]*apply.Known{},
		gaveWay:     map[types.NamespacedName]string{},
	}
	r.streams = agent.NewStreams(func(pool types.NamespacedName) { r.heard(pool, r.streams.Unheard(pool)) }, options.Metrics)
	r.tellings = newTellings(r.enqueue)
	r.calls = agent.NewCalls(r.streams, r.clock.Now)
	// A former leader must not hold streams, nor write.
	if err := mgr.Add(manager.RunnableFunc(func(ctx context.Context) error {
		<-ctx.Done()
		r.background.Close()
		r.calls.Close()
		r.streams.Close()
		return nil
	})); err != nil {
		return nil, err
	}
	ofLabel := func(_ context.Context, object client.Object) []reconcile.Request {
		pool := object.GetLabels()[v1alpha1.LabelPool]
		if pool == "" {
			return nil
		}
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: object.GetNamespace(), Name: pool}}}
	}
	byLabel := handler.EnqueueRequestsFromMapFunc(ofLabel)
	byReference := handler.EnqueueRequestsFromMapFunc(func(_ context.Context, object client.Object) []reconcile.Request {
		pool := types.NamespacedName{Namespace: object.GetNamespace()}
		switch object := object.(type) {
		case *v1alpha1.RepairLease:
			pool.Name = object.Spec.PoolRef.Name
		case *v1alpha1.ResizeOperation:
			pool.Name = object.Spec.PoolName
		default:
			return nil
		}
		return []reconcile.Request{{NamespacedName: pool}}
	})
	if err := r.sweepKept(mgr, options.Name); err != nil {
		return nil, err
	}
	return r, ctrl.NewControllerManagedBy(mgr).
		Named(options.Name).
		For(&v1alpha1.KVPool{}).
		Owns(&v1alpha1.MemoryNode{}).
		Owns(&v1alpha1.ShardMap{}).
		Owns(&v1alpha1.MemoryNodePool{}).
		Owns(&v1alpha1.ComputeShardPool{}).
		Owns(&appsv1.Deployment{}).
		Owns(&corev1.Secret{}).
		Owns(&corev1.ConfigMap{}).
		Owns(&corev1.Service{}).
		Owns(&policyv1.PodDisruptionBudget{}).
		Owns(&networkingv1.NetworkPolicy{}).
		Watches(&corev1.Secret{}, handler.EnqueueRequestsFromMapFunc(r.poolOfKept)).
		// A Secret that people keep and have given a pool's label may have its password, and one of cert-manager its certificate. cert-manager may own its Secrets.
		Watches(&corev1.Secret{}, byLabel, builder.WithPredicates(predicate.NewPredicateFuncs(func(secret client.Object) bool {
			controller := metav1.GetControllerOf(secret)
			return (controller == nil || controller.Kind == v1alpha1.CertificateKind.Kind) && secret.GetLabels()[v1alpha1.LabelPoolUID] == ""
		}))).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, object client.Object) []reconcile.Request {
			if pod, ok := object.(*corev1.Pod); ok {
				r.exits.see(pod)
			}
			return ofLabel(ctx, object)
		})).
		// A ReplicaSet stands between a compute shard's pod and its Deployment.
		Watches(&appsv1.ReplicaSet{}, byLabel, builder.OnlyMetadata).
		Watches(&v1alpha1.RepairLease{}, byReference).
		Watches(&v1alpha1.ResizeOperation{}, byReference).
		Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(r.withProcessesOn), builder.WithPredicates(predicate.Funcs{
			// A taint that is removed changes nothing: a fenced process stays fenced.
			CreateFunc: func(e event.CreateEvent) bool { return declaredOut(e.Object) || len(r.drains(e.Object)) > 0 },
			UpdateFunc: func(e event.UpdateEvent) bool {
				return declaredOut(e.ObjectNew) && !declaredOut(e.ObjectOld) || !slices.Equal(r.drains(e.ObjectNew), r.drains(e.ObjectOld))
			},
			DeleteFunc: func(event.DeleteEvent) bool { return false },
		})).
		WatchesRawSource(source.Func(func(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
			r.mutex.Lock()
			defer r.mutex.Unlock()
			r.queue = queue
			return nil
		})).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: options.Workers,
			// Replicas that wait for leadership fill their caches, too.
			EnableWarmup:          ptr.To(true),
			ReconciliationTimeout: reconcileTimeout,
			RateLimiter:           Retries(),
			NewQueue: func(name string, limiter workqueue.TypedRateLimiter[reconcile.Request]) workqueue.TypedRateLimitingInterface[reconcile.Request] {
				return newPatientQueue(priorityqueue.New(name, func(o *priorityqueue.Opts[reconcile.Request]) {
					o.Log, o.RateLimiter = mgr.GetLogger().WithValues("controller", name), limiter
				}), clock.RealClock{})
			},
		}).
		Complete(r)
}

// Retries says how long a controller of pools waits after each failure of a pool.
func Retries() workqueue.TypedRateLimiter[reconcile.Request] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](failedRetry, refusedRetry)
}

func declaredOut(object client.Object) bool {
	node, ok := object.(*corev1.Node)
	return ok && observe.IsOutOfService(node)
}

// drains returns the taints by which a Kubernetes node is about to be emptied.
func (r *Reconciler) drains(object client.Object) []corev1.Taint {
	if node, ok := object.(*corev1.Node); ok {
		return r.drainTaints.Of(node)
	}
	return nil
}

// withProcessesOn are the pools that have processes or memory nodes on a Kubernetes node.
func (r *Reconciler) withProcessesOn(ctx context.Context, node client.Object) []reconcile.Request {
	pools, err := observe.On(ctx, r.client, node.GetName())
	if err != nil {
		log.FromContext(ctx).Error(err, "find pools on a Kubernetes node")
		return nil
	}
	requests := make([]reconcile.Request, 0, len(pools))
	for _, pool := range pools {
		requests = append(requests, reconcile.Request{NamespacedName: pool})
	}
	return requests
}

// enqueue makes the controller look at a pool, because an agent reported something new. The queue conflates.
func (r *Reconciler) enqueue(pool types.NamespacedName) { r.heard(pool, false) }

// heard makes the controller look at a pool, because something is known of one of its processes. While other processes are unheard, little can be decided, so it
// waits a moment for them.
func (r *Reconciler) heard(pool types.NamespacedName, othersUnheard bool) {
	r.mutex.Lock()
	queue := r.queue
	r.mutex.Unlock()
	switch request := (reconcile.Request{NamespacedName: pool}); {
	case queue == nil:
	case othersUnheard:
		queue.AddAfter(request, unheardWait)
	default:
		queue.Add(request)
	}
}

// Reconcile brings one pool to its spec.
func (r *Reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	pool := &v1alpha1.KVPool{}
	if err := r.client.Get(ctx, request.NamespacedName, pool); err != nil {
		if apierrors.IsNotFound(err) {
			r.forget(request.NamespacedName)
			return reconcile.Result{}, errors.Join(r.refuseLeases(ctx, request.NamespacedName), r.refuseResizes(ctx, request.NamespacedName))
		}
		return reconcile.Result{}, fmt.Errorf("get KVPool %s: %w", request, err)
	}
	if !pool.DeletionTimestamp.IsZero() {
		// Everything that a pool has is owned by it, and is deleted with it.
		r.forget(request.NamespacedName)
		return reconcile.Result{}, nil
	}
	turn, began := r.turnOf(request.NamespacedName), r.clock.Now()
	snapshot, err := observe.Take(ctx, r.client, r.live, r.streams, r.calls, r.drainTaints, pool, r.kept(pool))
	if err != nil {
		return reconcile.Result{}, err
	}
	if rival := plan.GivesWay(snapshot, r.kept(pool)); rival != "" {
		return r.giveWay(ctx, pool, rival), nil
	}
	snapshot.Exits = r.exits.of(snapshot.Gone)
	decided, err := plan.Decide(plan.Input{Snapshot: snapshot, Settings: r.settings, Now: r.clock.Now(), Random: rand.Reader})
	if err != nil {
		return reconcile.Result{}, err
	}
	r.thinks(request, r.clock.Since(began))
	applier := r.applier.With(r.knownOf(request.NamespacedName), turn.mayWrite, turn.mayWriteStatus).
		Beside(r.background, func() { r.enqueue(request.NamespacedName) })
	outcome := decided.CarryOut(&hands{Reconciler: r, applier: applier, turn: turn, ctx: ctx, snapshot: snapshot, decided: decided})
	r.ended(request.NamespacedName, turn, outcome.Err(plan.Later) != nil)
	return r.settle(ctx, snapshot, decided, outcome)
}

// thinks tells the queue how long a look has thought.
func (r *Reconciler) thinks(request reconcile.Request, lasted time.Duration) {
	r.mutex.Lock()
	queue, patient := r.queue.(*patientQueue)
	r.mutex.Unlock()
	if patient {
		queue.Thought(request, lasted)
	}
}

// knownOf begins a look at a pool, and returns what earlier looks have found.
func (r *Reconciler) knownOf(pool types.NamespacedName) *apply.Known {
	r.mutex.Lock()
	known := r.known[pool]
	if known == nil {
		known = &apply.Known{}
		r.known[pool] = known
	}
	r.mutex.Unlock()
	known.Begin()
	return known
}

// settle says when the pool is looked at again.
func (r *Reconciler) settle(ctx context.Context, snapshot *observe.Snapshot, decided *plan.Plan, outcome plan.Outcome) (reconcile.Result, error) {
	key := client.ObjectKeyFromObject(snapshot.Pool)
	if err := outcome.Err(plan.Ending); err != nil {
		log.FromContext(ctx).Info("nothing can be made in a namespace that is being deleted", "why", err.Error())
		return reconcile.Result{}, nil
	}
	stale := outcome.Err(plan.Stale)
	wait := r.wait(key, stale != nil)
	later := outcome.Err(plan.Later)
	if err := outcome.Err(plan.Failed); err != nil {
		return reconcile.Result{}, err
	}
	again := func(within time.Duration) {
		if decided.RequeueAfter == 0 || decided.RequeueAfter > within {
			decided.RequeueAfter = within
		}
	}
	if stale != nil {
		log.FromContext(ctx).V(1).Info("decided from a stale cache; deciding again", "why", stale.Error(), "in", wait)
		again(wait)
	}
	if later != nil {
		log.FromContext(ctx).V(1).Info("the look took long; others are looked at first", "left", later.Error())
		again(nextTurn)
	}
	if err := outcome.Err(plan.Refused); err != nil {
		log.FromContext(ctx).Error(err, "the API server refuses objects; everything else goes on")
		again(refusedRetry)
	}
	progressing := meta.FindStatusCondition(decided.Status.Pool.Conditions, v1alpha1.ConditionProgressing)
	log.FromContext(ctx).V(1).Info("reconciled", "progressing", progressing, "unsettled", decided.Status.Unsettled, "maps", len(decided.Publish), "calls", len(decided.Ask),
		"again", decided.RequeueAfter)
	return reconcile.Result{RequeueAfter: decided.RequeueAfter}, nil
}

// wait counts how often in a row a pool was decided from a stale cache, and returns how long to wait for the cache.
func (r *Reconciler) wait(pool types.NamespacedName, stale bool) time.Duration {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if !stale {
		delete(r.stale, pool)
		return 0
	}
	wait := min(staleRetry<<min(r.stale[pool], 30), staleRetryMost)
	r.stale[pool]++
	return wait
}

// lags says whether a pool was decided from a stale cache so often that people should hear of it.
func (r *Reconciler) lags(pool types.NamespacedName) bool {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	return r.stale[pool] >= staleTold
}

// hands carry out one plan.
type hands struct {
	*Reconciler
	// applier knows what earlier looks have found.
	applier  *apply.Applier
	turn     *turn
	ctx      context.Context
	snapshot *observe.Snapshot
	decided  *plan.Plan
	// blamed: the pool's status says what was not done. behind: the statuses were decided from a stale cache, or before all objects were written.
	blamed, behind bool
}

func (h *hands) SideBySide(count int, do func(int)) { h.turn.sideBySide(count, do) }

// sideBySide calls do so many times, several calls at once: each spends most of its time waiting for an answer.
func sideBySide(count int, do func(int)) {
	places := make(chan struct{}, writesAtOnce)
	var running sync.WaitGroup
	for i := range count {
		places <- struct{}{}
		running.Go(func() {
			defer func() { <-places }()
			do(i)
		})
	}
	running.Wait()
}

func (h *hands) Apply(object render.Object) error {
	err := h.applier.Object(h.ctx, object, h.snapshot.Object)
	if err != nil && !errors.Is(err, apply.ErrLater) && !errors.Is(err, apply.ErrUnseen) {
		h.turn.whole.Store(true)
	}
	return err
}

func (h *hands) Delete(object client.Object) error { return h.applier.Delete(h.ctx, object) }

func (h *hands) Relabel(object client.Object, labels map[string]string) error {
	return h.applier.Relabel(h.ctx, object, labels)
}

func (h *hands) Adopt(adoption plan.Adoption) error {
	return h.applier.Adopt(h.ctx, adoption.Pod, adoption.Owners)
}

func (h *hands) Judge(err error) plan.Failure {
	var conflict *apply.ConflictError
	switch {
	case errors.Is(err, apply.ErrTerminating):
		return plan.Ending
	case errors.Is(err, apply.ErrStale), errors.Is(err, apply.ErrDeleting):
		return plan.Stale
	case errors.Is(err, apply.ErrLater):
		return plan.Later
	case errors.As(err, &conflict), apierrors.IsForbidden(err), apierrors.IsInvalid(err):
		return plan.Refused
	}
	return plan.Failed
}

func (h *hands) Announce(list []plan.Event) { h.emit(list) }

func (h *hands) Connect() error {
	amended := h.amend(h.ctx, h.snapshot.Pool, h.decided)
	renewAt, err := h.syncStreams(h.snapshot.Pool, h.decided)
	if err != nil {
		return errors.Join(amended, err)
	}
	if wait := renewAt.Sub(h.clock.Now()); !renewAt.IsZero() && (h.decided.RequeueAfter == 0 || wait < h.decided.RequeueAfter) {
		h.decided.RequeueAfter = max(wait, time.Second)
	}
	return amended
}

// Tell sends a map to memory nodes side by side.
func (h *hands) Tell(publications []plan.Publication, prepare bool) (told []plan.Publication, failures []error) {
	return h.tell(h.ctx, client.ObjectKeyFromObject(h.snapshot.Pool), publications, prepare)
}

func (h *hands) Refuses(failure error) bool { return refuses(failure) }

func (h *hands) Conflict(failure error) {
	h.decided.Status.Blame(h.snapshot.Pool, h.now(), v1alpha1.ReasonEpochConflict, fmt.Sprintf("no memory node is told to follow what one refuses: %v", failure))
}

// Follow says whether each memory node has reported by now that it follows its map. The report makes the controller look at the pool again.
func (h *hands) Follow(publications []plan.Publication) bool {
	key := client.ObjectKeyFromObject(h.snapshot.Pool)
	agents := h.streams.Observe(key)
	for _, publication := range publications {
		if agents[publication.Pod].Facts.GetEpoch() < uint64(publication.Map.Epoch) {
			return false
		}
	}
	h.enqueue(key)
	return true
}

func (h *hands) now() metav1.Time { return metav1.NewTime(h.clock.Now().Truncate(time.Second)) }

// Blame puts into the pool's status what kept the plan from being carried out. It leaves out objects that the cache does not show yet, until it has looked for
// them often.
func (h *hands) Blame(outcome plan.Outcome) {
	pool, status := h.snapshot.Pool, &h.decided.Status
	stale := outcome.Err(plan.Stale)
	lags := stale != nil && h.lags(client.ObjectKeyFromObject(pool))
	if len(outcome) == 0 && h.turn.isOver() {
		outcome[plan.Later] = append(outcome[plan.Later], fmt.Errorf("write the statuses: %w", apply.ErrLater))
	}
	h.behind = stale != nil && !lags || outcome.Err(plan.Later) != nil
	var conflicts, failures []string
	for _, err := range slices.Concat(outcome[plan.Refused], outcome[plan.Failed]) {
		if conflict := (*apply.ConflictError)(nil); errors.As(err, &conflict) {
			conflicts = append(conflicts, conflict.Error())
		} else {
			failures = append(failures, err.Error())
		}
	}
	if len(conflicts)+len(failures) == 0 && !lags {
		return
	}
	h.blamed = true
	if status.Unsettled || h.behind {
		status.Pool = *pool.Status.DeepCopy()
	}
	if lags {
		status.Blame(pool, h.now(), v1alpha1.ReasonObjectsAwaited, fmt.Sprintf("waiting for objects of the pool: %v", stale))
	}
	if len(failures) > 0 {
		status.Blame(pool, h.now(), v1alpha1.ReasonApplyFailed, strings.Join(failures, "; "))
	}
	if len(conflicts) > 0 {
		words := strings.Join(conflicts, "; ")
		status.Blame(pool, h.now(), v1alpha1.ReasonNameConflict, words)
		status.Fail(pool, h.now(), v1alpha1.ConditionSpecValid, v1alpha1.ReasonNameConflict, words, metav1.ConditionFalse)
	}
}

func (h *hands) WriteStatuses() []error {
	if h.decided.Status.Unsettled || h.behind {
		// The operator knows less now than the statuses say.
		if h.blamed {
			return []error{h.applier.Status(h.ctx, poolStatus(h.snapshot.Pool, &h.decided.Status.Pool), h.snapshot.Pool)}
		}
		return nil
	}
	return h.writeStatuses(h.ctx, h.turn, h.applier, h.snapshot, h.decided)
}

func (h *hands) Ask() { h.ask(h.snapshot, h.decided) }

// ask calls agents on behalf of leases. Before every process has been heard, no process is named for a fence.
func (r *Reconciler) ask(snapshot *observe.Snapshot, decided *plan.Plan) {
	key := client.ObjectKeyFromObject(snapshot.Pool)
	// The outcome of a call is kept until the cache shows that the lease is complete. A decision from an earlier status would ask again.
	open := map[types.UID]bool{}
	for _, lease := range snapshot.Leases {
		open[lease.UID] = lease.Status.CompletedAt == nil
	}
	if decided.Status.Unsettled {
		return
	}
	r.calls.Keep(key, open)
	r.calls.Start(key, string(snapshot.Pool.UID), decided.Ask)
}

// refuseLeases tells the author of a RepairLease that its pool does not exist.
func (r *Reconciler) refuseLeases(ctx context.Context, pool types.NamespacedName) error {
	leases, err := observe.Leases(ctx, r.client, pool)
	if err != nil {
		return err
	}
	for _, lease := range leases {
		if !lease.DeletionTimestamp.IsZero() || metav1.GetControllerOf(lease) != nil {
			continue
		}
		status := plan.Refuse(lease, r.clock.Now())
		if err := r.applier.Status(ctx, leaseStatus(lease, &status), lease); err != nil {
			return err
		}
	}
	return nil
}

// refuseResizes tells the author of a ResizeOperation that its pool does not exist.
func (r *Reconciler) refuseResizes(ctx context.Context, pool types.NamespacedName) error {
	resizes, err := observe.Resizes(ctx, r.client, pool)
	if err != nil {
		return err
	}
	for _, resize := range resizes {
		if !observe.Stray(resize) {
			continue
		}
		status := plan.RefuseResize(resize, nil, r.clock.Now())
		if err := r.applier.Status(ctx, resizeStatus(resize, &status), resize); err != nil {
			return err
		}
	}
	return nil
}

// amend changes pods that run. A pod that may not be changed stops nothing else: the pool's status says so, and the operator tries again.
func (r *Reconciler) amend(ctx context.Context, pool *v1alpha1.KVPool, decided *plan.Plan) error {
	for _, amendment := range decided.Amend {
		err := r.applier.Amend(ctx, amendment.Pod, amendment.Subresource, amendment.Patch)
		if errors.Is(err, apply.ErrStale) {
			return err
		}
		if err != nil {
			decided.Status.Fail(pool, metav1.NewTime(r.clock.Now().Truncate(time.Second)), v1alpha1.ConditionUpToDate, v1alpha1.ReasonAmendmentRefused,
				fmt.Sprintf("pod %s does not get the %s that the spec gives it: %v. %s", amendment.Pod.Name, amendment.What, err, plan.HowToRenew), metav1.ConditionFalse)
			log.FromContext(ctx).Error(err, "a pod cannot be changed; everything else goes on", "what", amendment.What)
			if decided.RequeueAfter == 0 || decided.RequeueAfter > refusedRetry {
				decided.RequeueAfter = refusedRetry
			}
			continue
		}
		log.FromContext(ctx).Info("changed a pod that runs", "pod", amendment.Pod.Name, "what", amendment.What)
	}
	return nil
}

// syncStreams keeps streams to the processes that run. It returns when the operator's own certificate has to be renewed.
func (r *Reconciler) syncStreams(pool *v1alpha1.KVPool, decided *plan.Plan) (time.Time, error) {
	key := client.ObjectKeyFromObject(pool)
	if decided.Authority == nil {
		return time.Time{}, nil
	}
	r.mutex.Lock()
	defer r.mutex.Unlock()
	credential := r.credentials[key]
	now := r.clock.Now()
	if credential == nil || !now.Before(credential.RenewAt) || string(credential.Bundle) != string(decided.Authority.Bundle()) {
		var err error
		if credential, err = decided.Authority.OperatorCredential(string(pool.UID), operatorName, now); err != nil {
			return time.Time{}, fmt.Errorf("make the operator's certificate for pool %s: %w", key, err)
		}
		r.credentials[key] = credential
	}
	r.streams.Sync(key, string(pool.UID), credential, decided.Targets)
	return credential.RenewAt, nil
}

// tell asks memory nodes, side by side, to hold a map or to follow it. It returns which did, and why the others did not.
func (r *Reconciler) tell(ctx context.Context, pool types.NamespacedName, publications []plan.Publication, prepare bool) (told []plan.Publication, failures []error) {
	results := make([]error, len(publications))
	begun := make([]*telling, len(publications))
	what := func(publication plan.Publication) string {
		if prepare {
			return fmt.Sprintf("to hold epoch %d", publication.Map.Epoch)
		}
		return fmt.Sprintf("to follow epoch %d", publication.Map.Epoch)
	}
	for i, publication := range publications {
		message, err := shardmap.ToMessage(publication.Map)
		if err == nil && publication.MapKey != nil {
			err = shardmap.Sign(message, publication.MapKey)
		}
		if err != nil {
			results[i] = err
			continue
		}
		begun[i] = r.tellings.begin(pool, publication.Pod, what(publication), func(ctx context.Context) error {
			return r.streams.Publish(ctx, pool, publication.Pod,
				&farpoolv1alpha1.PublishMapRequest{Map: message, PoolSecret: publication.PoolSecret, Prepare: prepare})
		})
	}
	waiting, cancel := context.WithTimeout(ctx, tellingWait)
	defer cancel()
	for i, publication := range publications {
		if begun[i] == nil {
			continue
		}
		results[i] = r.tellings.await(waiting, begun[i], what(publication))
		if errors.Is(results[i], errStillTelling) {
			results[i] = fmt.Errorf("memory node %s was told %s: %w", publication.Node, begun[i].what, results[i])
		}
	}
	for i, publication := range publications {
		result := "told"
		switch {
		case results[i] != nil:
			result = "failed"
			failures = append(failures, results[i])
		case prepare:
			result = "prepared"
			fallthrough
		default:
			told = append(told, publication)
		}
		r.metrics.published(pool, result)
		log.FromContext(ctx).Info("told a memory node its map", "node", publication.Node, "epoch", publication.Map.Epoch, "result", result)
	}
	return told, failures
}

// refuses says whether an agent has answered that it refuses a map.
func refuses(failure error) bool {
	switch status.Code(failure) {
	case codes.FailedPrecondition, codes.AlreadyExists, codes.InvalidArgument:
		return true
	}
	return false
}

func (r *Reconciler) forget(pool types.NamespacedName) {
	r.mutex.Lock()
	delete(r.credentials, pool)
	delete(r.told, pool)
	delete(r.stale, pool)
	delete(r.gaveWay, pool)
	delete(r.known, pool)
	delete(r.rounds, pool)
	r.mutex.Unlock()
	r.streams.Forget(pool)
	r.calls.Keep(pool, nil)
	r.metrics.forget(pool)
}

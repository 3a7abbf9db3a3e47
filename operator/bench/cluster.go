// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/yaml"

	farpoolv1alpha1 "farpool.dev/farpool/api/gen/farpool/v1alpha1"
	"farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/pki"
)

// kubernetesNodes is the number of Kubernetes nodes.
const kubernetesNodes = 100

// cluster is a real API server, with this process as its scheduler, kubelets, Deployment controller and data plane.
type cluster struct {
	environment *envtest.Environment
	config      *rest.Config  // an administrator's
	client      client.Client // the administrator's and the kubelets'
	controllers client.Client // kube-controller-manager's
	scheduler   client.Client
	cached      client.Client
	network     *network
	cancel      context.CancelFunc
	done        chan error

	mutex     sync.Mutex
	processes map[types.NamespacedName]*process
	restarts  map[types.NamespacedName]int32
}

func newScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			panic(err) // kinds registered twice
		}
	}
	return scheme
}

// startCluster starts an API server with farpool's kinds from the repository at root, and what serves pods. limited: the scheduler and the Deployment
// controller ask the API server as often in a second as those of Kubernetes do by default, and otherwise as often as they can.
func startCluster(ctx context.Context, root string, limited bool) (c *cluster, err error) {
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		return nil, errors.New("KUBEBUILDER_ASSETS is not set: set it to what hack/envtest-assets prints")
	}
	c = &cluster{processes: map[types.NamespacedName]*process{}, restarts: map[types.NamespacedName]int32{}, done: make(chan error, 1), cancel: func() {}}
	if c.network, err = newNetwork(); err != nil {
		return nil, err
	}
	c.environment = &envtest.Environment{
		CRDDirectoryPaths:        []string{filepath.Join(root, "config/crd/bases")},
		ErrorIfCRDPathMissing:    true,
		ControlPlaneStartTimeout: 3 * time.Minute,
		ControlPlaneStopTimeout:  time.Minute,
	}
	// Each pool has a Service with an address: the range that is the default here ends after 254.
	c.environment.ControlPlane.GetAPIServer().Configure().Set("service-cluster-ip-range", "10.96.0.0/12")
	if c.config, err = c.environment.Start(); err != nil {
		return nil, fmt.Errorf("start an API server: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.stop())
		}
	}()
	c.config.QPS = -1 // no limit of the client's
	manager, err := ctrl.NewManager(c.config, ctrl.Options{Scheme: newScheme(), Metrics: metricsserver.Options{BindAddress: "0"}})
	if err != nil {
		return nil, err
	}
	c.cached = manager.GetClient()
	if err := c.connect(manager.GetScheme(), limited); err != nil {
		return nil, err
	}
	if err := c.authorize(ctx, root); err != nil {
		return nil, err
	}
	for i := range kubernetesNodes {
		if err := c.client.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName(i)}}); err != nil {
			return nil, fmt.Errorf("create a Kubernetes node: %w", err)
		}
	}
	options := controller.Options{MaxConcurrentReconciles: 8, SkipNameValidation: ptr.To(true)}
	if err := ctrl.NewControllerManagedBy(manager).Named("kubelets").For(&corev1.Pod{}).WithOptions(options).Complete(reconcile.Func(c.servePod)); err != nil {
		return nil, err
	}
	byLabel := handler.EnqueueRequestsFromMapFunc(func(_ context.Context, pod client.Object) []reconcile.Request {
		if pod.GetLabels()[labelDeployment] == "" {
			return nil
		}
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: pod.GetNamespace(), Name: pod.GetLabels()[labelDeployment]}}}
	})
	if err := ctrl.NewControllerManagedBy(manager).Named("deployments").For(&appsv1.Deployment{}).Watches(&corev1.Pod{}, byLabel).
		WithOptions(options).Complete(reconcile.Func(c.serveDeployment)); err != nil {
		return nil, err
	}
	for _, object := range []client.Object{&v1alpha1.KVPool{}, &v1alpha1.RepairLease{}, &corev1.Secret{}} {
		if _, err := manager.GetCache().GetInformer(ctx, object); err != nil {
			return nil, err
		}
	}
	ctx, c.cancel = context.WithCancel(ctx)
	go func() { c.done <- manager.Start(ctx) }()
	if !manager.GetCache().WaitForCacheSync(ctx) {
		return nil, errors.New("the caches were not filled")
	}
	return c, nil
}

// connect makes a client for each component that plays the cluster. limited: with what the component of Kubernetes asks in a second by default:
// --kube-api-qps and --kube-api-burst of kube-controller-manager, clientConnection of kube-scheduler. Kubelets have a limit each; so few pods do not reach it.
func (c *cluster) connect(scheme *runtime.Scheme, limited bool) (err error) {
	for _, one := range []struct {
		client *client.Client
		qps    float32
		burst  int
	}{{&c.client, -1, 0}, {&c.controllers, 20, 30}, {&c.scheduler, 50, 100}} {
		config := rest.CopyConfig(c.config)
		if limited {
			config.QPS, config.Burst = one.qps, one.burst
		}
		if *one.client, err = client.New(config, client.Options{Scheme: scheme}); err != nil {
			return err
		}
	}
	return nil
}

// stop ends the data plane and the API server.
func (c *cluster) stop() error {
	c.cancel()
	c.mutex.Lock()
	for _, process := range c.processes {
		process.stop()
	}
	c.mutex.Unlock()
	return c.environment.Stop()
}

// authorize gives the operator's user what the generated role allows, and not more.
func (c *cluster) authorize(ctx context.Context, root string) error {
	data, err := os.ReadFile(filepath.Join(root, "config/rbac/role.yaml"))
	if err != nil {
		return err
	}
	role := &rbacv1.ClusterRole{}
	if err := yaml.UnmarshalStrict(data, role); err != nil {
		return err
	}
	if err := c.client.Create(ctx, role); err != nil {
		return fmt.Errorf("create the operator's role: %w", err)
	}
	// The operator keeps pools' authorities there.
	if err := c.client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: operatorNamespace}}); err != nil {
		return fmt.Errorf("create the operator's namespace: %w", err)
	}
	return c.client.Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: role.Name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: operatorUser}},
	})
}

const (
	operatorUser      = "farpool-operator"
	operatorNamespace = "farpool-system"
	// labelDeployment is on the pods of a Deployment, beside what its template says.
	labelDeployment = "bench.farpool.dev/deployment"
)

func nodeName(i int) string { return fmt.Sprintf("node-%03d", i%kubernetesNodes) }

// servePod places a pod, runs a process in it, and takes it away when it is deleted.
func (c *cluster) servePod(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	key := request.NamespacedName
	pod := &corev1.Pod{}
	if err := c.cached.Get(ctx, key, pod); apierrors.IsNotFound(err) {
		c.end(key)
		return reconcile.Result{}, nil
	} else if err != nil {
		return reconcile.Result{}, err
	}
	if !pod.DeletionTimestamp.IsZero() {
		c.end(key)
		return reconcile.Result{}, client.IgnoreNotFound(c.client.Delete(ctx, pod, client.GracePeriodSeconds(0)))
	}
	c.mutex.Lock()
	running, host := c.processes[key], len(c.processes)
	c.mutex.Unlock()
	if pod.Spec.NodeName == "" {
		err := c.scheduler.SubResource("binding").Create(ctx, pod, &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: nodeName(host)}})
		if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
			err = nil // it has a place, or is gone: the cache will say so
		}
		return reconcile.Result{}, err
	}
	if running != nil {
		return reconcile.Result{}, nil
	}
	secret, err := c.certificate(ctx, pod)
	if err != nil {
		return reconcile.Result{}, err
	}
	if secret == nil {
		return reconcile.Result{RequeueAfter: 100 * time.Millisecond}, nil // a kubelet would mount it later, too
	}
	ip, err := c.network.next()
	if err != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{}, c.run(ctx, pod, secret, ip, nil)
}

// run starts a process in a pod, and reports it. last is how the one before ended.
func (c *cluster) run(ctx context.Context, pod *corev1.Pod, secret *corev1.Secret, ip string, last *corev1.ContainerStateTerminated) error {
	key := client.ObjectKeyFromObject(pod)
	pool := &v1alpha1.KVPool{}
	if err := c.cached.Get(ctx, types.NamespacedName{Namespace: pod.Namespace, Name: pod.Labels[v1alpha1.LabelPool]}, pool); err != nil {
		return err
	}
	uid := string(pool.UID)
	var facts *farpoolv1alpha1.Facts
	if pod.Labels[v1alpha1.LabelComponent] == v1alpha1.ComponentMemoryNode {
		facts = memoryNodeFacts(uid, pod.Name, ip)
	} else {
		facts = computeShardFacts(uid, pod.Name, ip)
	}
	process, err := serve(ip, secret.Data, facts)
	if err != nil {
		return err
	}
	c.mutex.Lock()
	c.processes[key] = process
	if last != nil {
		c.restarts[key]++
	}
	restarts := c.restarts[key]
	c.mutex.Unlock()
	now := metav1.Now()
	container := corev1.ContainerStatus{Name: pod.Spec.Containers[0].Name, Ready: true, RestartCount: restarts,
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}}, LastTerminationState: corev1.ContainerState{Terminated: last}}
	before := pod.DeepCopy()
	pod = pod.DeepCopy()
	pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}}, HostIP: "127.0.0.1", StartTime: &now, QOSClass: before.Status.QOSClass,
		ContainerStatuses: []corev1.ContainerStatus{container}}
	for _, condition := range []corev1.PodConditionType{corev1.PodReadyToStartContainers, corev1.PodInitialized, corev1.PodReady, corev1.ContainersReady, corev1.PodScheduled} {
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: condition, Status: corev1.ConditionTrue, LastTransitionTime: now})
	}
	if err := c.client.Status().Patch(ctx, pod, client.MergeFrom(before)); err != nil {
		c.end(key)
		return client.IgnoreNotFound(err)
	}
	return nil
}

// certificate is the Secret with the certificate that a pod mounts; nil: there is none yet.
func (c *cluster) certificate(ctx context.Context, pod *corev1.Pod) (*corev1.Secret, error) {
	for _, volume := range pod.Spec.Volumes {
		if volume.Secret == nil {
			continue
		}
		secret := &corev1.Secret{}
		if err := c.cached.Get(ctx, types.NamespacedName{Namespace: pod.Namespace, Name: volume.Secret.SecretName}, secret); apierrors.IsNotFound(err) {
			continue
		} else if err != nil {
			return nil, err
		}
		if len(secret.Data[pki.KeyCertificate]) > 0 && len(secret.Data[pki.KeyCABundle]) > 0 {
			return secret, nil
		}
	}
	return nil, nil
}

func (c *cluster) end(key types.NamespacedName) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if process := c.processes[key]; process != nil {
		process.stop()
		delete(c.processes, key)
	}
	delete(c.restarts, key)
}

// kill ends the process in a pod, and starts the next one there.
func (c *cluster) kill(ctx context.Context, key types.NamespacedName) error {
	c.mutex.Lock()
	process := c.processes[key]
	c.mutex.Unlock()
	if process == nil {
		return fmt.Errorf("pod %s runs no process", key)
	}
	pod := &corev1.Pod{}
	if err := c.client.Get(ctx, key, pod); err != nil {
		return err
	}
	secret, err := c.certificate(ctx, pod)
	if err != nil || secret == nil {
		return fmt.Errorf("certificate of pod %s: %w", key, err)
	}
	process.stop()
	return c.run(ctx, pod, secret, process.ip, &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "Error", FinishedAt: metav1.Now()})
}

// serveDeployment makes as many pods as a Deployment asks for, each owned by a ReplicaSet, and counts the ready ones.
func (c *cluster) serveDeployment(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	deployment := &appsv1.Deployment{}
	if err := c.cached.Get(ctx, request.NamespacedName, deployment); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	set, err := c.replicaSet(ctx, deployment)
	if err != nil {
		return reconcile.Result{}, err
	}
	replicas := int(ptr.Deref(deployment.Spec.Replicas, 1))
	var ready int32
	for i := range replicas {
		key := types.NamespacedName{Namespace: deployment.Namespace, Name: fmt.Sprintf("%s-%05d", set.Name, i)}
		pod := &corev1.Pod{}
		err := c.cached.Get(ctx, key, pod)
		if apierrors.IsNotFound(err) {
			err = c.createShard(ctx, deployment, set, key.Name, i)
		}
		if err != nil {
			return reconcile.Result{}, err
		}
		for _, condition := range pod.Status.Conditions {
			if condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue {
				ready++
			}
		}
	}
	for i := replicas; ; i++ {
		pod := &corev1.Pod{}
		if err := c.cached.Get(ctx, types.NamespacedName{Namespace: deployment.Namespace, Name: fmt.Sprintf("%s-%05d", set.Name, i)}, pod); apierrors.IsNotFound(err) {
			break
		} else if err != nil {
			return reconcile.Result{}, err
		}
		if err := c.controllers.Delete(ctx, pod); client.IgnoreNotFound(err) != nil {
			return reconcile.Result{}, err
		}
	}
	status := appsv1.DeploymentStatus{ObservedGeneration: deployment.Generation, Replicas: int32(replicas), UpdatedReplicas: int32(replicas),
		ReadyReplicas: ready, AvailableReplicas: ready, UnavailableReplicas: int32(replicas) - ready}
	if before := deployment.Status; before.ObservedGeneration == status.ObservedGeneration && before.Replicas == status.Replicas && before.ReadyReplicas == status.ReadyReplicas {
		return reconcile.Result{}, nil
	}
	updated := deployment.DeepCopy()
	updated.Status = status
	if err := c.controllers.Status().Patch(ctx, updated, client.MergeFrom(deployment)); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	return reconcile.Result{}, nil
}

func (c *cluster) replicaSet(ctx context.Context, deployment *appsv1.Deployment) (*appsv1.ReplicaSet, error) {
	labels := map[string]string{labelDeployment: deployment.Name}
	for key, value := range deployment.Spec.Template.Labels {
		labels[key] = value
	}
	set := &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: deployment.Namespace, Name: deployment.Name + "-5d8f7c9b6", Labels: labels,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(deployment, appsv1.SchemeGroupVersion.WithKind("Deployment"))}},
		Spec: appsv1.ReplicaSetSpec{Replicas: deployment.Spec.Replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: deployment.Spec.Template.Spec}},
	}
	existing := &appsv1.ReplicaSet{}
	err := c.cached.Get(ctx, client.ObjectKeyFromObject(set), existing)
	if err == nil {
		return existing, nil
	}
	if !apierrors.IsNotFound(err) {
		return nil, err
	}
	if err := c.controllers.Create(ctx, set); apierrors.IsAlreadyExists(err) {
		return set, c.controllers.Get(ctx, client.ObjectKeyFromObject(set), set)
	} else if err != nil {
		return nil, fmt.Errorf("create a ReplicaSet: %w", err)
	}
	return set, nil
}

func (c *cluster) createShard(ctx context.Context, deployment *appsv1.Deployment, set *appsv1.ReplicaSet, name string, i int) error {
	labels := map[string]string{labelDeployment: deployment.Name}
	for key, value := range deployment.Spec.Template.Labels {
		labels[key] = value
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: deployment.Namespace, Name: name, Labels: labels, Annotations: deployment.Spec.Template.Annotations,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(set, appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))}},
		Spec: *deployment.Spec.Template.Spec.DeepCopy(),
	}
	pod.Spec.NodeName = nodeName(i)
	if err := c.controllers.Create(ctx, pod); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create pod %s: %w", name, err)
	}
	return nil
}

// unsettled counts the pools of a list that do not serve all that they shall, and names one of them.
func (c *cluster) unsettled(ctx context.Context, keys []types.NamespacedName) (count int, example string, err error) {
	for _, key := range keys {
		pool := &v1alpha1.KVPool{}
		if err := c.cached.Get(ctx, key, pool); err != nil {
			if !apierrors.IsNotFound(err) {
				return 0, "", err
			}
			count, example = count+1, key.Name
			continue
		}
		if why := waits(pool); why != "" {
			count, example = count+1, key.Name+": "+why
		}
	}
	return count, example, nil
}

// waits says what a pool waits for; empty: nothing.
func waits(pool *v1alpha1.KVPool) string {
	if pool.Status.ObservedGeneration != pool.Generation {
		return "its newest spec was not seen"
	}
	for kind, want := range map[string]metav1.ConditionStatus{
		v1alpha1.ConditionAvailable: metav1.ConditionTrue, v1alpha1.ConditionProgressing: metav1.ConditionFalse, v1alpha1.ConditionDegraded: metav1.ConditionFalse,
	} {
		condition := meta.FindStatusCondition(pool.Status.Conditions, kind)
		if condition == nil {
			return "no condition " + kind
		}
		if condition.Status != want {
			return fmt.Sprintf("%s is %s: %s", kind, condition.Status, condition.Message)
		}
	}
	return ""
}

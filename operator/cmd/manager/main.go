// SPDX-License-Identifier: Apache-2.0

// Command farpool-operator brings KVPools to what their specs say. With the first argument injector, it serves the webhook that gives pods their sidecars.
package main

import (
	"cmp"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap/zapcore"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/discovery"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/controller/kvpool"
	"farpool.dev/farpool/operator/internal/controller/sidecars"
	"farpool.dev/farpool/operator/internal/observe"
	"farpool.dev/farpool/operator/internal/plan"
	"farpool.dev/farpool/operator/internal/render"
)

// version is set by the build.
var version = "dev"

type options struct {
	metricsAddress    string
	probeAddress      string
	pprofAddress      string
	leaderElection    bool
	dataplaneImage    string
	namespace         string
	secretNamespace   string
	watchNamespaces   namespaces
	sharedMemoryPaths string
	drainTaints       string
	clusterDomain     string
	securityContext   string
	workers           int
	priorityClass     string
	printVersion      bool
	logging           zap.Options
}

func parse() options {
	// An error says what happened to what; where in the code it was noticed helps few.
	o := options{logging: zap.Options{TimeEncoder: zapcore.RFC3339NanoTimeEncoder, StacktraceLevel: zapcore.DPanicLevel}}
	flag.StringVar(&o.metricsAddress, "metrics-bind-address", ":8080", "where /metrics is served; 0 turns it off")
	flag.StringVar(&o.probeAddress, "health-probe-bind-address", ":8081", "where /healthz and /readyz are served")
	flag.StringVar(&o.pprofAddress, "pprof-bind-address", "", "where /debug/pprof is served, for profiles of the operator itself; empty: nowhere")
	flag.BoolVar(&o.leaderElection, "leader-elect", false, "elect one of several replicas; the others wait with warm caches")
	flag.StringVar(&o.dataplaneImage, "dataplane-image", "farpool/dataplane:"+version, "image of new pools whose spec names no version; a pool's spec.version takes the place of its tag")
	flag.StringVar(&o.namespace, "namespace", os.Getenv("POD_NAMESPACE"), "namespace that the operator runs in, for network policies and leader election; by default $POD_NAMESPACE")
	flag.StringVar(&o.secretNamespace, "secret-namespace", "", "namespace where the operator keeps the authorities and hash secrets of pools; by default the one that it runs in, and outside of a cluster each pool's own")
	flag.Var(&o.watchNamespaces, "watch-namespace", "namespaces whose pools are served, separated by commas, or one with each flag; by default all of them")
	flag.StringVar(&o.sharedMemoryPaths, "shared-memory-paths", strings.Join(plan.DefaultSharedMemoryPaths, ","), "directories of Kubernetes nodes, separated by commas, below which new pools may have theirs for shared memory; empty: no pool may")
	flag.StringVar(&o.drainTaints, "drain-taints", strings.Join(observe.DefaultDrainTaints, ","), "keys of taints, separated by commas, by which a Kubernetes node is about to be taken away, so that memory nodes leave it as they leave one that is cordoned; empty: none")
	flag.StringVar(&o.clusterDomain, "cluster-domain", "cluster.local", "what names of Services in this cluster end with, for the certificates of Redis ports")
	flag.StringVar(&o.securityContext, "pod-security-context", "Managed", "who chooses the users and groups of new pools' pods: Managed, this operator, or Platform, a platform that assigns them, such as OpenShift")
	flag.StringVar(&o.priorityClass, "memory-priority-class", "", "PriorityClass of the pods of memory nodes that are made from now on; empty: the cluster's default")
	flag.IntVar(&o.workers, "workers", 4, "how many pools may be reconciled at once: whenever one has taken longer than 100 ms, another begins")
	flag.BoolVar(&o.printVersion, "version", false, "print the version and exit")
	o.logging.BindFlags(flag.CommandLine)
	flag.Parse()
	o.secretNamespace = cmp.Or(o.secretNamespace, o.namespace)
	return o
}

// namespaces is a flag that takes several names.
type namespaces []string

func (n *namespaces) String() string { return strings.Join(*n, ",") }

func (n *namespaces) Set(list string) error {
	for name := range strings.SplitSeq(list, ",") {
		if name == "" {
			continue
		}
		if problems := validation.IsDNS1123Label(name); len(problems) > 0 {
			return fmt.Errorf("%q is no namespace's name: %s", name, strings.Join(problems, "; "))
		}
		if !slices.Contains(*n, name) {
			*n = append(*n, name)
		}
	}
	return nil
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == injectorCommand {
		os.Exit(mainOfInjector(os.Args[2:]))
	}
	o := parse()
	if o.printVersion {
		fmt.Println(version)
		return
	}
	ctrl.SetLogger(zap.New(zap.UseFlagOptions(&o.logging)))
	if os.Getenv("GOGC") == "" {
		boundGarbage()
	}
	if err := run(o); err != nil {
		ctrl.Log.Error(err, "the operator cannot go on")
		os.Exit(1)
	}
}

func run(o options) error {
	if o.securityContext != "Managed" && o.securityContext != "Platform" {
		return fmt.Errorf("--pod-security-context is %q: set it to Managed or Platform", o.securityContext)
	}
	var sharedMemoryPaths []string
	for path := range strings.SplitSeq(o.sharedMemoryPaths, ",") {
		if path == "" {
			continue
		}
		if !filepath.IsAbs(path) || filepath.Clean(path) != path || path == "/" {
			return fmt.Errorf("--shared-memory-paths holds %q: set absolute paths without .. or a slash at the end, and not the root", path)
		}
		sharedMemoryPaths = append(sharedMemoryPaths, path)
	}
	var drainTaints observe.DrainTaints
	for key := range strings.SplitSeq(o.drainTaints, ",") {
		if key == "" {
			continue
		}
		if problems := validation.IsQualifiedName(key); len(problems) > 0 {
			return fmt.Errorf("--drain-taints holds %q, which is no taint's key: %s", key, strings.Join(problems, "; "))
		}
		drainTaints = append(drainTaints, key)
	}
	scheme := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(v1alpha1.AddToScheme(scheme))

	configuration, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("find the API server: %w: run in a cluster, or set KUBECONFIG", err)
	}
	shutdown := 20 * time.Second
	mgr, err := ctrl.NewManager(configuration, ctrl.Options{
		Scheme:                        scheme,
		Cache:                         kvpool.CacheOptions(o.watchNamespaces, o.secretNamespace),
		Metrics:                       metricsserver.Options{BindAddress: o.metricsAddress},
		HealthProbeBindAddress:        o.probeAddress,
		PprofBindAddress:              o.pprofAddress,
		LeaderElection:                o.leaderElection,
		LeaderElectionID:              "operator.farpool.dev",
		LeaderElectionNamespace:       o.namespace,
		LeaderElectionReleaseOnCancel: true,
		GracefulShutdownTimeout:       &shutdown,
	})
	if err != nil {
		return fmt.Errorf("set up the manager: %w", err)
	}
	if err := mgr.AddHealthzCheck("healthz", healthz.Ping); err != nil {
		return err
	}
	if err := mgr.AddReadyzCheck("caches", kvpool.Ready(mgr.GetCache())); err != nil {
		return err
	}
	resizes, err := resizesPods(configuration)
	if err != nil {
		return err
	}
	_, err = kvpool.SetUp(mgr, kvpool.Options{
		Name:        "kvpool",
		Namespaces:  o.watchNamespaces,
		DrainTaints: drainTaints,
		Workers:     o.workers,
		Clock:       clock.RealClock{},
		Metrics:     kvpool.NewMetrics(metrics.Registry),
		Settings: plan.Settings{
			Image:               o.dataplaneImage,
			Namespace:           o.namespace,
			SecretNamespace:     o.secretNamespace,
			SharedMemoryPaths:   sharedMemoryPaths,
			ClusterDomain:       o.clusterDomain,
			PlatformUsers:       o.securityContext == "Platform",
			PodResize:           resizes,
			MemoryPriorityClass: o.priorityClass,
			AgentAddress: func(pod *corev1.Pod) string {
				return net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(render.PortAgent))
			},
		},
	})
	if err != nil {
		return fmt.Errorf("set up the controller: %w", err)
	}
	if err := sidecars.SetUp(mgr, sidecars.Options{
		Name: "kvpool", Clock: clock.RealClock{}, SecretNamespace: o.secretNamespace, Namespaces: o.watchNamespaces, ClusterDomain: o.clusterDomain,
	}); err != nil {
		return fmt.Errorf("set up the controller of sidecars: %w", err)
	}
	ctrl.Log.Info("starting", "version", version, "dataplaneImage", o.dataplaneImage)
	return mgr.Start(ctrl.SetupSignalHandler())
}

// resizesPods says whether the API server can change the resources of pods that run.
func resizesPods(configuration *rest.Config) (bool, error) {
	api, err := discovery.NewDiscoveryClientForConfig(configuration)
	if err != nil {
		return false, fmt.Errorf("ask the API server what it serves: %w", err)
	}
	list, err := api.ServerResourcesForGroupVersion("v1")
	if err != nil {
		return false, fmt.Errorf("ask the API server what it serves: %w", err)
	}
	return slices.ContainsFunc(list.APIResources, func(resource metav1.APIResource) bool { return resource.Name == "pods/resize" }), nil
}

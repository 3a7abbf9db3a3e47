// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"go.uber.org/zap/zapcore"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/inject"
	"farpool.dev/farpool/operator/internal/injector"
)

// injectorCommand is the first argument by which the program serves the webhook, and is no operator.
const injectorCommand = "injector"

type injectorOptions struct {
	metricsAddress  string
	probeAddress    string
	host            string
	port            int
	namespace       string
	service         string
	secret          string
	webhook         string
	directory       string
	watchNamespaces namespaces
	pullSecrets     string
	securityContext string
	logging         zap.Options
}

func parseInjector(arguments []string) (*injectorOptions, error) {
	o := &injectorOptions{logging: zap.Options{TimeEncoder: zapcore.RFC3339NanoTimeEncoder, StacktraceLevel: zapcore.DPanicLevel}}
	flags := flag.NewFlagSet(injectorCommand, flag.ContinueOnError)
	flags.StringVar(&o.metricsAddress, "metrics-bind-address", ":8080", "where /metrics is served; 0 turns it off")
	flags.StringVar(&o.probeAddress, "health-probe-bind-address", ":8081", "where /healthz and /readyz are served")
	flags.StringVar(&o.host, "webhook-host", "", "address that the webhook listens on; empty: all")
	flags.IntVar(&o.port, "webhook-port", 9443, "port that the webhook listens on")
	flags.StringVar(&o.namespace, "namespace", os.Getenv("POD_NAMESPACE"), "namespace that the injector runs in; by default $POD_NAMESPACE")
	flags.StringVar(&o.service, "service", "farpool-injector", "Service by which the API server calls the webhook")
	flags.StringVar(&o.secret, "certificate-secret", "farpool-injector-ca", "Secret for the webhook's certificate authority")
	flags.StringVar(&o.webhook, "webhook-configuration", "farpool-injector", "MutatingWebhookConfiguration that gets the authority")
	flags.StringVar(&o.directory, "certificate-directory", "", "directory with tls.crt and tls.key, which a platform such as OLM mounts and renews, and whose authority it tells the API server; in place of --service, --certificate-secret and --webhook-configuration. Empty: the injector makes its own certificate")
	flags.Var(&o.watchNamespaces, "watch-namespace", "namespaces whose pools have sidecars, separated by commas, or one with each flag; by default all of them")
	flags.StringVar(&o.pullSecrets, "image-pull-secrets", "", "Secrets, separated by commas, that a pod gets for the image of its sidecar; each has to be in the pod's namespace")
	flags.StringVar(&o.securityContext, "pod-security-context", "Managed", "who chooses the users of sidecars: Managed, this injector, or Platform, a platform that assigns them, such as OpenShift")
	o.logging.BindFlags(flags)
	if err := flags.Parse(arguments); err != nil {
		return nil, err
	}
	switch {
	case flags.NArg() > 0:
		return nil, fmt.Errorf("%q is no flag of the injector: see --help", flags.Arg(0))
	case o.namespace == "":
		return nil, errors.New("the injector's namespace is unknown: set --namespace, or POD_NAMESPACE")
	case o.securityContext != "Managed" && o.securityContext != "Platform":
		return nil, fmt.Errorf("--pod-security-context is %q: set it to Managed or Platform", o.securityContext)
	}
	for _, name := range o.pullSecretNames() {
		if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
			return nil, fmt.Errorf("--image-pull-secrets holds %q, which is no Secret's name: %s", name, strings.Join(problems, "; "))
		}
	}
	return o, nil
}

func (o *injectorOptions) pullSecretNames() []string {
	var names []string
	for name := range strings.SplitSeq(o.pullSecrets, ",") {
		if name != "" {
			names = append(names, name)
		}
	}
	return names
}

// mainOfInjector runs the injector, and returns the exit status.
func mainOfInjector(arguments []string) int {
	o, err := parseInjector(arguments)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
		return 2
	}
	ctrl.SetLogger(zap.New(zap.UseFlagOptions(&o.logging)))
	if err := runInjector(o); err != nil {
		ctrl.Log.Error(err, "the injector cannot go on")
		return 1
	}
	return 0
}

func runInjector(o *injectorOptions) error {
	scheme := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
	configuration, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("find the API server: %w: run in a cluster, or set KUBECONFIG", err)
	}
	server := injector.NewServer(o.host, o.port)
	shutdown := 20 * time.Second
	mgr, err := ctrl.NewManager(configuration, ctrl.Options{
		Scheme:                  scheme,
		Cache:                   injector.CacheOptions(o.watchNamespaces),
		Metrics:                 metricsserver.Options{BindAddress: o.metricsAddress},
		HealthProbeBindAddress:  o.probeAddress,
		WebhookServer:           server,
		GracefulShutdownTimeout: &shutdown,
	})
	if err != nil {
		return fmt.Errorf("set up the manager: %w", err)
	}
	if err := mgr.AddHealthzCheck("healthz", healthz.Ping); err != nil {
		return err
	}
	if _, err := injector.SetUp(mgr, server, injector.Options{
		Names: injector.Names{
			Secret:   types.NamespacedName{Namespace: o.namespace, Name: o.secret},
			Webhook:  o.webhook,
			DNSNames: []string{o.service + "." + o.namespace + ".svc"},
		},
		Directory: o.directory,
		Settings:  inject.Settings{PlatformUsers: o.securityContext == "Platform", ImagePullSecrets: o.pullSecretNames()},
		Metrics:   injector.NewMetrics(metrics.Registry),
		Clock:     clock.RealClock{},
	}); err != nil {
		return fmt.Errorf("set up the injector: %w", err)
	}
	ctrl.Log.Info("starting the injector", "version", version)
	return mgr.Start(ctrl.SetupSignalHandler())
}

// SPDX-License-Identifier: Apache-2.0

package kvpool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/yaml"

	"farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/observe"
	"farpool.dev/farpool/operator/internal/plan"
)

const (
	// secretNamespace is where the operator runs, and keeps Secrets of its own.
	secretNamespace = "farpool-system"

	within = 90 * time.Second
	every  = 20 * time.Millisecond
)

var (
	environment   *envtest.Environment
	administrator *rest.Config
	config        *rest.Config
	k8s           client.Client
	person        kubectl
	scheme        = runtime.NewScheme()
	running       *operatorProcess
	addresses     sync.Map // agent addresses by namespace/name of the pod
	generation    atomic.Int64
)

func TestController(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "KVPool controller")
}

var _ = BeforeSuite(func() {
	ctrl.SetLogger(zap.New(zap.WriteTo(GinkgoWriter), zap.UseDevMode(true)))
	Expect(os.Getenv("KUBEBUILDER_ASSETS")).NotTo(BeEmpty(), "set KUBEBUILDER_ASSETS to a directory with kube-apiserver, etcd and kubectl")
	Expect(clientgoscheme.AddToScheme(scheme)).To(Succeed())
	Expect(v1alpha1.AddToScheme(scheme)).To(Succeed())
	environment = &envtest.Environment{
		CRDDirectoryPaths:        []string{"../../../../config/crd/bases"},
		ErrorIfCRDPathMissing:    true,
		ControlPlaneStartTimeout: 2 * time.Minute,
		ControlPlaneStopTimeout:  time.Minute,
	}
	// Owners may be named only by who may finalize them, as many clusters have it.
	environment.ControlPlane.GetAPIServer().Configure().Append("enable-admission-plugins", "OwnerReferencesPermissionEnforcement")
	var err error
	administrator, err = environment.Start()
	Expect(err).NotTo(HaveOccurred())
	k8s, err = client.New(administrator, client.Options{Scheme: scheme})
	Expect(err).NotTo(HaveOccurred())
	Expect(k8s.Create(context.Background(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: secretNamespace}})).To(Succeed())
	config = asOperator(administrator)
	person = asPerson(administrator)
	running = startOperator("farpool/dataplane:v1")
})

var _ = AfterSuite(func() {
	if running != nil {
		running.stop()
	}
	if environment != nil {
		Expect(environment.Stop()).To(Succeed())
	}
})

// asOperator is the operator's access to the API server: what its roles allow, and not more.
func asOperator(administrator *rest.Config) *rest.Config {
	GinkgoHelper()
	for _, file := range []string{"role.yaml", "certificates.yaml"} {
		data, err := os.ReadFile("../../../../config/rbac/" + file)
		Expect(err).NotTo(HaveOccurred())
		of, _, _ := strings.Cut(string(data), "\n---\n") // the role comes first
		role := &rbacv1.ClusterRole{}
		Expect(yaml.UnmarshalStrict([]byte(of), role)).To(Succeed())
		Expect(k8s.Create(context.Background(), role)).To(Succeed())
		Expect(k8s.Create(context.Background(), bindingOf(role.Name))).To(Succeed())
	}
	user, err := environment.AddUser(envtest.User{Name: "farpool-operator"}, administrator)
	Expect(err).NotTo(HaveOccurred())
	return user.Config()
}

// bindingOf gives the operator a role.
func bindingOf(role string) *rbacv1.ClusterRoleBinding {
	return &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: role},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "farpool-operator"}},
	}
}

// certificateBinding gives the operator the role for Certificates of cert-manager.
func certificateBinding() *rbacv1.ClusterRoleBinding {
	return bindingOf("farpool-operator-certificates")
}

// kubectl runs as somebody.
type kubectl interface {
	Run(arguments ...string) (stdout, stderr io.Reader, err error)
}

// asPerson is kubectl in the hands of someone who may ask for repairs and approve of resizes and scale, as the chart's editors may, and nothing else.
func asPerson(administrator *rest.Config) kubectl {
	GinkgoHelper()
	name := metav1.ObjectMeta{Name: "person"}
	Expect(k8s.Create(context.Background(), &rbacv1.ClusterRole{ObjectMeta: name, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{"repairleases"}, Verbs: []string{"create", "delete"}},
		{APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{"resizeoperations"}, Verbs: []string{"delete", "get", "patch"}},
		{APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{"memorynodepools", "computeshardpools"}, Verbs: []string{"get"}},
		{APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{"memorynodepools/scale", "computeshardpools/scale"}, Verbs: []string{"get", "patch", "update"}},
	}})).To(Succeed())
	Expect(k8s.Create(context.Background(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: name,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name.Name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name.Name}},
	})).To(Succeed())
	user, err := environment.AddUser(envtest.User{Name: name.Name}, administrator)
	Expect(err).NotTo(HaveOccurred())
	run, err := user.Kubectl()
	Expect(err).NotTo(HaveOccurred())
	return run
}

// operatorProcess is the operator as main starts it, with its writes counted on the wire.
type operatorProcess struct {
	reconciler *Reconciler
	registry   *prometheus.Registry
	writes     *writeCounter
	cancel     context.CancelFunc
	done       chan error
	// mortal: it dies with its writesLeft-th write to the API server, events aside; then it is dead.
	mortal, dead atomic.Bool
	writesLeft   atomic.Int64
	// meddle is called before each write to the API server, which does not take place if it returns an error.
	meddle atomic.Pointer[func(*http.Request) error]
}

func startOperator(image string) *operatorProcess {
	GinkgoHelper()
	return startOperatorAs(config, image)
}

// startOperatorAs runs one that has some access to the API server and serves some namespaces, or all.
func startOperatorAs(access *rest.Config, image string, served ...string) *operatorProcess {
	GinkgoHelper()
	p := &operatorProcess{registry: prometheus.NewRegistry(), writes: &writeCounter{}, done: make(chan error, 1)}
	counted := rest.CopyConfig(access)
	counted.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTrip(func(request *http.Request) (*http.Response, error) {
			if p.dead.Load() {
				return nil, errors.New("this operator has died")
			}
			if request.Method != http.MethodGet {
				if meddle := p.meddle.Load(); meddle != nil {
					if err := (*meddle)(request); err != nil {
						return nil, err
					}
				}
				p.writes.add(request.Method + " " + request.URL.Path)
				if p.mortal.Load() && !strings.Contains(request.URL.Path, "/events") && p.writesLeft.Add(-1) <= 0 {
					p.dead.Store(true)
					defer p.cancel()
				}
			}
			return next.RoundTrip(request)
		})
	})
	manager, err := ctrl.NewManager(counted, ctrl.Options{
		Scheme:  scheme,
		Cache:   CacheOptions(served, secretNamespace),
		Metrics: metricsserver.Options{BindAddress: "0"},
	})
	Expect(err).NotTo(HaveOccurred())
	p.reconciler, err = SetUp(manager, Options{
		Name:        fmt.Sprintf("kvpool-%d", generation.Add(1)),
		Namespaces:  served,
		Workers:     2,
		DrainTaints: observe.DefaultDrainTaints,
		Clock:       clock.RealClock{},
		Metrics:     NewMetrics(p.registry),
		Settings: plan.Settings{
			Image:             image,
			Namespace:         secretNamespace,
			SecretNamespace:   secretNamespace,
			SharedMemoryPaths: plan.DefaultSharedMemoryPaths,
			PodResize:         true,
			AgentAddress: func(pod *corev1.Pod) string {
				address, ok := addresses.Load(pod.Namespace + "/" + pod.Name)
				if !ok {
					return "127.0.0.1:1"
				}
				return address.(string)
			},
		},
	})
	Expect(err).NotTo(HaveOccurred())
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	go func() { p.done <- manager.Start(ctx) }()
	Expect(manager.GetCache().WaitForCacheSync(ctx)).To(BeTrue())
	return p
}

func (p *operatorProcess) stop() {
	GinkgoHelper()
	p.cancel()
	Eventually(p.done, within).Should(Receive(BeNil()))
}

// meddling calls a function before each write of this test's rest.
func (p *operatorProcess) meddling(meddle func(*http.Request) error) {
	p.meddle.Store(&meddle)
	DeferCleanup(func() { p.meddle.Store(nil) })
}

// dieAfter so many writes from now on.
func (p *operatorProcess) dieAfter(writes int) {
	p.writesLeft.Store(int64(writes))
	p.mortal.Store(true)
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(request *http.Request) (*http.Response, error) { return f(request) }

type writeCounter struct {
	mutex sync.Mutex
	list  []string
}

func (c *writeCounter) add(write string) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.list = append(c.list, write)
}

// in are the writes to a namespace so far.
func (c *writeCounter) in(namespace string) []string {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	var found []string
	for _, write := range c.list {
		if strings.Contains(write, "/namespaces/"+namespace+"/") {
			found = append(found, write)
		}
	}
	return found
}

// metric is the sum of a metric's values of a pool, and whether there is any; of a histogram, how often something was observed.
func (p *operatorProcess) metric(name, namespace string) (sum float64, found bool) {
	GinkgoHelper()
	families, err := p.registry.Gather()
	Expect(err).NotTo(HaveOccurred())
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, metric := range family.GetMetric() {
			for _, label := range metric.GetLabel() {
				if label.GetName() == "namespace" && label.GetValue() == namespace {
					found = true
					sum += metric.GetGauge().GetValue() + metric.GetCounter().GetValue() + float64(metric.GetHistogram().GetSampleCount())
				}
			}
		}
	}
	return sum, found
}

// SPDX-License-Identifier: Apache-2.0

package injector

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/yaml"

	"farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/inject"
	"farpool.dev/farpool/operator/internal/pki"
)

const (
	systemNamespace = "farpool-system"
	within          = 60 * time.Second
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	os.Exit(m.Run())
}

// onePool lets namespace shop have sidecars.
type onePool struct{}

func (onePool) Named(namespace, name string) *v1alpha1.KVPool {
	if namespace == "data" && name == "cache" {
		return cachePool()
	}
	return nil
}

func (onePool) Listing(namespace string) []*v1alpha1.KVPool {
	if namespace == "shop" {
		return []*v1alpha1.KVPool{cachePool()}
	}
	return nil
}

func cachePool() *v1alpha1.KVPool {
	pool := &v1alpha1.KVPool{ObjectMeta: metav1.ObjectMeta{Namespace: "data", Name: "cache", UID: "uid"}}
	pool.Spec.Sidecars = &v1alpha1.SidecarsSpec{Namespaces: []v1alpha1.SidecarNamespace{{Name: "shop", MaxSidecars: 4}}}
	pool.Status.Template = &v1alpha1.TemplateStatus{Version: 4, Image: "image"}
	pool.Status.Sidecars = &v1alpha1.SidecarsStatus{Namespaces: []v1alpha1.SidecarNamespaceStatus{{Name: "shop", State: v1alpha1.SidecarsReady}}}
	return pool
}

func podOf(namespace string) *corev1.Pod {
	no, yes := false, true
	return &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: "web-", Labels: map[string]string{v1alpha1.LabelInject: v1alpha1.InjectTrue}},
		Spec: corev1.PodSpec{
			SecurityContext: &corev1.PodSecurityContext{RunAsNonRoot: &yes, SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
			Containers: []corev1.Container{{
				Name: "web", Image: "web",
				SecurityContext: &corev1.SecurityContext{AllowPrivilegeEscalation: &no, Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}},
			}},
		},
	}
}

func reviewOf(t testing.TB, pod *corev1.Pod, change func(*admissionv1.AdmissionRequest)) []byte {
	t.Helper()
	raw, err := json.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	request := &admissionv1.AdmissionRequest{
		UID: "request", Namespace: pod.Namespace, Operation: admissionv1.Create,
		Resource: metav1.GroupVersionResource{Version: "v1", Resource: "pods"}, Object: runtime.RawExtension{Raw: raw},
	}
	if change != nil {
		change(request)
	}
	body, err := json.Marshal(&admissionv1.AdmissionReview{TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"}, Request: request})
	if err != nil {
		t.Fatal(err)
	}
	return body
}

// The webhook answers what the API server asks, and refuses everything else without falling over.
func TestAnswers(t *testing.T) {
	metrics := NewMetrics(prometheus.NewRegistry())
	handler := NewHandler(onePool{}, inject.Settings{}, metrics, clock.RealClock{}, logr.Discard())
	answered := func(body []byte) (int, *admissionv1.AdmissionResponse) {
		recorder := httptest.NewRecorder()
		handler.ServeHTTP(recorder, httptest.NewRequest(http.MethodPost, Path, bytes.NewReader(body)))
		review := &admissionv1.AdmissionReview{}
		if recorder.Code == http.StatusOK {
			if err := json.Unmarshal(recorder.Body.Bytes(), review); err != nil {
				t.Fatal(err)
			}
		}
		return recorder.Code, review.Response
	}
	_, injected := answered(reviewOf(t, podOf("shop"), nil))
	if !injected.Allowed || injected.UID != "request" || *injected.PatchType != admissionv1.PatchTypeJSONPatch || !bytes.Contains(injected.Patch, []byte(v1alpha1.SidecarContainer)) {
		t.Errorf("%+v", injected)
	}
	_, refused := answered(reviewOf(t, podOf("web"), nil))
	if refused.Allowed || refused.Result.Code != http.StatusForbidden || !strings.HasPrefix(refused.Result.Message, "NoPool: ") || refused.Patch != nil {
		t.Errorf("%+v", refused)
	}
	for what, change := range map[string]func(*admissionv1.AdmissionRequest){
		"an update":       func(r *admissionv1.AdmissionRequest) { r.Operation = admissionv1.Update },
		"another kind":    func(r *admissionv1.AdmissionRequest) { r.Resource.Resource = "services" },
		"a part of a pod": func(r *admissionv1.AdmissionRequest) { r.SubResource = "status" },
	} {
		if _, left := answered(reviewOf(t, podOf("web"), change)); !left.Allowed || left.Patch != nil {
			t.Errorf("%s: %+v", what, left)
		}
	}
	for what, body := range map[string]string{
		"nothing": "", "no review": "{}", "no request": `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}`,
		"an old review": `{"apiVersion":"admission.k8s.io/v1beta1","kind":"AdmissionReview","request":{"uid":"u"}}`, "too much": strings.Repeat(" ", mostBytes+1),
	} {
		if code, _ := answered([]byte(body)); code != http.StatusBadRequest {
			t.Errorf("%s: %d", what, code)
		}
	}
	recorder := httptest.NewRecorder()
	handler.ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, Path, nil))
	if recorder.Code != http.StatusMethodNotAllowed {
		t.Errorf("a GET: %d", recorder.Code)
	}
	for result, want := range map[string]float64{resultInjected: 1, resultUnchanged: 3, resultFailed: 5, string(inject.NoPool): 1} {
		if got := testutil.ToFloat64(metrics.pods.WithLabelValues(result)); got != want {
			t.Errorf("%s is counted %v times, want %v", result, got, want)
		}
	}
}

func BenchmarkAnswer(b *testing.B) {
	handler := NewHandler(onePool{}, inject.Settings{}, NewMetrics(prometheus.NewRegistry()), clock.RealClock{}, logr.Discard())
	body := reviewOf(b, podOf("shop"), nil)
	for b.Loop() {
		handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, Path, bytes.NewReader(body)))
	}
}

// chartObjects reads the objects of a kind from what the chart is rendered to.
func chartObjects[T any](t *testing.T, kind string) []*T {
	t.Helper()
	text, err := os.ReadFile("../../../charts/testdata/default.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var found []*T
	for _, document := range strings.Split(string(text), "\n---\n") {
		if !strings.Contains(document, "\nkind: "+kind+"\n") {
			continue
		}
		object := new(T)
		if err := yaml.UnmarshalStrict([]byte(document), object); err != nil {
			t.Fatal(err)
		}
		found = append(found, object)
	}
	return found
}

// replica is an injector as main starts it.
type replica struct {
	certificates *Certificates
	port         int
	cancel       context.CancelFunc
	done         chan error
}

func (r *replica) stop(t *testing.T) {
	t.Helper()
	r.cancel()
	select {
	case err := <-r.done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(within):
		t.Error("an injector does not end")
	}
}

func freePort(t *testing.T) int {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port
}

// start runs an injector. Each reads pools from the API server.
func start(t *testing.T, config *rest.Config, scheme *runtime.Scheme, webhook string) *replica {
	t.Helper()
	port := freePort(t)
	server := NewServer("127.0.0.1", port)
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme: scheme, Cache: CacheOptions(nil), Metrics: metricsserver.Options{BindAddress: "0"}, WebhookServer: server, Logger: logr.Discard(),
	})
	if err != nil {
		t.Fatal(err)
	}
	made, err := SetUp(mgr, server, Options{
		Names:   Names{Secret: types.NamespacedName{Namespace: systemNamespace, Name: "farpool-injector-ca"}, Webhook: webhook, DNSNames: []string{"localhost"}},
		Metrics: NewMetrics(prometheus.NewRegistry()), Clock: clock.RealClock{},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &replica{certificates: made.(*Certificates), port: port, cancel: cancel, done: make(chan error, 1)}
	go func() { r.done <- mgr.Start(ctx) }()
	return r
}

func eventually(t *testing.T, what string, condition func(context.Context) error) {
	t.Helper()
	var last error
	err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, within, true, func(ctx context.Context) (bool, error) {
		last = condition(ctx)
		return last == nil, nil
	})
	if err != nil {
		t.Fatalf("%s: %v", what, last)
	}
}

// world is an API server with what the chart makes there.
type world struct {
	client.Client
	config *rest.Config
	scheme *runtime.Scheme
}

func newWorld(t *testing.T) *world {
	t.Helper()
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		t.Fatal("set KUBEBUILDER_ASSETS to a directory with kube-apiserver, etcd and kubectl: make test-go does")
	}
	w := &world{scheme: runtime.NewScheme()}
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(w.scheme); err != nil {
			t.Fatal(err)
		}
	}
	environment := &envtest.Environment{
		CRDDirectoryPaths: []string{"../../../config/crd/bases"}, ErrorIfCRDPathMissing: true,
		ControlPlaneStartTimeout: 2 * time.Minute, ControlPlaneStopTimeout: time.Minute,
	}
	var err error
	if w.config, err = environment.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := environment.Stop(); err != nil {
			t.Error(err)
		}
	})
	if w.Client, err = client.New(w.config, client.Options{Scheme: w.scheme}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{systemNamespace, "data", "shop", "web"} {
		w.create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}}})
	}
	return w
}

func (w *world) create(t *testing.T, object client.Object) {
	t.Helper()
	if err := w.Create(t.Context(), object); err != nil {
		t.Fatal(err)
	}
}

// policies makes the chart's ValidatingAdmissionPolicies, and waits until they hold.
func (w *world) policies(t *testing.T) {
	t.Helper()
	for _, policy := range chartObjects[admissionregistrationv1.ValidatingAdmissionPolicy](t, "ValidatingAdmissionPolicy") {
		w.create(t, policy)
	}
	for _, binding := range chartObjects[admissionregistrationv1.ValidatingAdmissionPolicyBinding](t, "ValidatingAdmissionPolicyBinding") {
		w.create(t, binding)
	}
	eventually(t, "no policy refuses a label that means nothing", func(ctx context.Context) error {
		pod := podOf("shop")
		pod.Labels[v1alpha1.LabelInject] = "yes"
		if err := w.Create(ctx, pod, client.DryRunAll); err == nil || !strings.Contains(err.Error(), `neither "true" nor "false"`) {
			return errors.Join(errors.New("it is answered otherwise"), err)
		}
		return nil
	})
}

// webhooks makes the chart's webhook configuration, which names an injector on this machine instead of a Service. Another name comes later.
func (w *world) webhooks(t *testing.T, name string, r *replica) {
	t.Helper()
	configurations := chartObjects[admissionregistrationv1.MutatingWebhookConfiguration](t, "MutatingWebhookConfiguration")
	if len(configurations) != 1 {
		t.Fatalf("the chart has %d webhook configurations", len(configurations))
	}
	configuration := configurations[0]
	configuration.Name = name
	url := fmt.Sprintf("https://localhost:%d%s", r.port, Path)
	configuration.Webhooks[0].ClientConfig = admissionregistrationv1.WebhookClientConfig{URL: &url}
	w.create(t, configuration)
}

func (w *world) pool(t *testing.T) *v1alpha1.KVPool {
	t.Helper()
	pool := &v1alpha1.KVPool{}
	text := `{metadata: {namespace: data, name: cache}, spec: {network: {transport: TCP}, memory: {pools: [{name: memory, replicas: 1, lend: 64Mi}]}, sidecars: {namespaces: [{name: shop}, {name: farpool-system}]}}}`
	if err := yaml.UnmarshalStrict([]byte(text), pool); err != nil {
		t.Fatal(err)
	}
	w.create(t, pool)
	pool.Status.Template = &v1alpha1.TemplateStatus{Version: 4, Image: "farpool/dataplane:1"}
	pool.Status.Sidecars = &v1alpha1.SidecarsStatus{Namespaces: []v1alpha1.SidecarNamespaceStatus{{Name: "shop", State: v1alpha1.SidecarsReady}}}
	if err := w.Status().Update(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	return pool
}

func sidecarOf(pod *corev1.Pod) *corev1.Container {
	for i := range pod.Spec.InitContainers {
		if pod.Spec.InitContainers[i].Name == v1alpha1.SidecarContainer {
			return &pod.Spec.InitContainers[i]
		}
	}
	return nil
}

// With a real API server, and the chart's own webhook configuration and policies.
func TestAgainstAnAPIServer(t *testing.T) {
	w := newWorld(t)
	w.policies(t)
	w.pool(t)

	t.Run("a pod that asks is not left without, when no webhook is there", func(t *testing.T) {
		if err := w.Create(t.Context(), podOf("shop")); err == nil || !strings.Contains(err.Error(), "has none in the end") {
			t.Errorf("it is answered by %v", err)
		}
	})

	// Two configurations: the second call sees what the first has added.
	first, second := start(t, w.config, w.scheme, "farpool-injector"), start(t, w.config, w.scheme, "z-again")
	w.webhooks(t, "farpool-injector", first)
	w.webhooks(t, "z-again", second)
	for _, r := range []*replica{first, second} {
		eventually(t, "an injector is not ready", func(context.Context) error { return r.certificates.Ready() })
	}
	var pod *corev1.Pod
	t.Run("a pod that asks gets its sidecar once, under restricted Pod Security", func(t *testing.T) {
		eventually(t, "the pod is refused", func(ctx context.Context) error {
			pod = podOf("shop")
			return w.Create(ctx, pod)
		})
		sidecar := sidecarOf(pod)
		if sidecar == nil || len(pod.Spec.InitContainers) != 1 || sidecar.Image != "farpool/dataplane:1" || *sidecar.RestartPolicy != corev1.ContainerRestartPolicyAlways {
			t.Fatalf("%+v", pod.Spec)
		}
		if env := pod.Spec.Containers[0].Env; len(env) != 2 || env[1].Value != "redis://127.0.0.1:6379/0" || len(pod.Spec.Volumes) != 4 {
			t.Errorf("%+v %+v", env, pod.Spec.Volumes)
		}
	})
	t.Run("a namespace that is not listed is refused and told the fix", func(t *testing.T) {
		other := podOf("web")
		other.Annotations = map[string]string{v1alpha1.SidecarPrefix + "pool": "data/cache"}
		err := w.Create(t.Context(), other)
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "NotListed: ") || !strings.Contains(err.Error(), "kubectl -n data edit kvpool cache") {
			t.Errorf("it is answered by %v", err)
		}
	})
	t.Run("a dry run is answered as well", func(t *testing.T) {
		dry := podOf("shop")
		if err := w.Create(t.Context(), dry, client.DryRunAll); err != nil || sidecarOf(dry) == nil {
			t.Errorf("%v", err)
		}
	})
	t.Run("its record and label stay as they are, and everything else may change", func(t *testing.T) {
		for what, c := range map[string]struct {
			change func(*corev1.Pod)
			says   string
		}{
			"the record":     {func(p *corev1.Pod) { p.Annotations[v1alpha1.AnnotationInjected] = "{}" }, "record of the pod's sidecar"},
			"no record":      {func(p *corev1.Pod) { delete(p.Annotations, v1alpha1.AnnotationInjected) }, "record of the pod's sidecar"},
			"the label":      {func(p *corev1.Pod) { delete(p.Labels, v1alpha1.LabelInject) }, "is answered when a pod is made"},
			"something else": {func(p *corev1.Pod) { p.Labels["app"], p.Finalizers = "web", []string{"shop.example/later"} }, ""},
			"its end":        {func(p *corev1.Pod) { p.Finalizers = nil }, ""},
		} {
			changed := pod.DeepCopy()
			if err := w.Get(t.Context(), client.ObjectKeyFromObject(pod), changed); err != nil {
				t.Fatal(err)
			}
			c.change(changed)
			if err := w.Update(t.Context(), changed); (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s: %v", what, err)
			}
		}
	})
	t.Run("a lost authority is made anew", func(t *testing.T) {
		before := first.certificates.bundle()
		if err := w.Delete(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: systemNamespace, Name: "farpool-injector-ca"}}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the authority is the old one", func(context.Context) error {
			if bytes.Equal(first.certificates.bundle(), before) || !bytes.Equal(first.certificates.bundle(), second.certificates.bundle()) {
				return fmt.Errorf("both replicas trust another: %v", !bytes.Equal(first.certificates.bundle(), before))
			}
			return w.Create(t.Context(), podOf("shop"))
		})
	})
	first.stop(t)
	second.stop(t)
	t.Run("while the injector is down, pods that ask are refused and all others start", func(t *testing.T) {
		if err := w.Create(t.Context(), podOf("shop")); err == nil || !strings.Contains(err.Error(), "inject.farpool.dev") {
			t.Errorf("a pod that asks: %v", err)
		}
		for what, change := range map[string]func(*corev1.Pod){
			"a pod without the label": func(p *corev1.Pod) { p.Labels = nil },
			"a pod that says no":      func(p *corev1.Pod) { p.Labels[v1alpha1.LabelInject] = "false" },
			"a pod of kube-system":    func(p *corev1.Pod) { p.Namespace = "kube-system" },
			"a pod of the injector's": func(p *corev1.Pod) { p.Namespace = systemNamespace },
			"a mirror of a static pod": func(p *corev1.Pod) {
				p.Annotations = map[string]string{"kubernetes.io/config.mirror": "x"}
				p.Spec.NodeName = "node"
			},
			"a pod of another release's own": func(p *corev1.Pod) { p.Namespace, p.Labels = "web", map[string]string{"app": "x"} },
		} {
			other := podOf("shop")
			change(other)
			if err := w.Create(t.Context(), other); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
	})
}

// bundle is what the replica's certificate was signed by.
func (c *Certificates) bundle() []byte {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.data[pki.KeyCABundle]
}

// replicas are certificates of as many replicas, at an API server in memory and a time of the test's.
func replicas(t *testing.T, count int, at clock.WithTicker) (client.Client, []*Certificates) {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(&admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "webhook"}, Webhooks: []admissionregistrationv1.MutatingWebhook{{Name: "inject.farpool.dev"}},
	}).Build()
	var list []*Certificates
	for range count {
		list = append(list, NewCertificates(c, c, Names{Secret: types.NamespacedName{Namespace: "system", Name: "ca"}, Webhook: "webhook", DNSNames: []string{"injector.system.svc"}}, at, NewMetrics(prometheus.NewRegistry())))
	}
	return c, list
}

// told is what the API server trusts.
func told(t *testing.T, c client.Client) *x509.CertPool {
	t.Helper()
	configuration := &admissionregistrationv1.MutatingWebhookConfiguration{}
	if err := c.Get(t.Context(), types.NamespacedName{Name: "webhook"}, configuration); err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(configuration.Webhooks[0].ClientConfig.CABundle)
	return roots
}

// Over six years of renewals, in which the authority is renewed, too, and two replicas that look at any time, the API server trusts what each shows.
func TestCertificatesAreRenewed(t *testing.T) {
	at := clocktesting.NewFakeClock(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	c, list := replicas(t, 2, at)
	if err := list[0].Ready(); !errors.Is(err, errNotLooked) {
		t.Errorf("before the first look: %v", err)
	}
	shown := map[string]bool{}
	for day := range 6 * 365 {
		for i, certificates := range list {
			if day%(i+1) != 0 {
				continue // the second looks each other day
			}
			if err := certificates.look(t.Context()); err != nil {
				t.Fatal(err)
			}
			certificates.trouble = nil
		}
		for i, certificates := range list {
			certificate, err := certificates.Certificate(nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := certificate.Leaf.Verify(x509.VerifyOptions{Roots: told(t, c), DNSName: "injector.system.svc", CurrentTime: at.Now()}); err != nil {
				t.Fatalf("day %d: replica %d shows what the API server does not trust: %v", day, i, err)
			}
			shown[certificate.Leaf.SerialNumber.String()] = true
			if err := certificates.Ready(); err != nil {
				t.Fatalf("day %d: %v", day, err)
			}
		}
		at.Step(24 * time.Hour)
	}
	if len(shown) < 2*6*365/46 {
		t.Errorf("%d certificates in six years", len(shown))
	}
}

// What is wrong is said, with what to do, and what was shown goes on to be.
func TestTroubleWithTheAuthority(t *testing.T) {
	at := clocktesting.NewFakeClock(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	c, list := replicas(t, 1, at)
	if err := list[0].look(t.Context()); err != nil {
		t.Fatal(err)
	}
	list[0].trouble = nil
	secret := &corev1.Secret{}
	if err := c.Get(t.Context(), types.NamespacedName{Namespace: "system", Name: "ca"}, secret); err != nil {
		t.Fatal(err)
	}
	secret.Data[pki.KeyPrivateKey] = []byte("damaged")
	if err := c.Update(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	err := list[0].look(t.Context())
	if err == nil || !strings.Contains(err.Error(), "restore it, or delete it") {
		t.Errorf("a damaged Secret: %v", err)
	}
	list[0].trouble = err
	if err := list[0].Ready(); err != nil {
		t.Errorf("what it shows is good, and it is not ready: %v", err)
	}
	at.Step(91 * 24 * time.Hour)
	if list[0].Ready() == nil {
		t.Error("its certificate has ended, and it is ready")
	}
	if err := c.Delete(t.Context(), &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "webhook"}}); err != nil {
		t.Fatal(err)
	}
	if err := c.Delete(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	if err := list[0].look(t.Context()); err == nil || !strings.Contains(err.Error(), "install the chart again") {
		t.Errorf("no webhook configuration: %v", err)
	}
}

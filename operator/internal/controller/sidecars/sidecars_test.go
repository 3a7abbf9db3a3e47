// SPDX-License-Identifier: Apache-2.0

package sidecars

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/yaml"

	"farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/controller/kvpool"
	"farpool.dev/farpool/operator/internal/inject"
	"farpool.dev/farpool/operator/internal/pki"
	"farpool.dev/farpool/operator/internal/render"
	"farpool.dev/farpool/operator/internal/shardmap"
)

const (
	secretNamespace = "farpool-system"
	within          = 60 * time.Second
)

var start = time.Date(2026, 11, 28, 0, 0, 0, 0, time.UTC)

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	os.Exit(m.Run())
}

func authorityData(t *testing.T, uid string, at time.Time) map[string][]byte {
	t.Helper()
	authority, _, err := pki.RenewAuthority(nil, uid, at, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return authority.Data()
}

func mapKey() map[string][]byte {
	return map[string][]byte{render.KeyMapKey: bytes.Repeat([]byte{7}, shardmap.KeyBytes), render.KeyPoolSecret: []byte("0123456789abcdef")}
}

// observedWith is a pool that lists namespaces, with all that is needed to sign.
func observedWith(t *testing.T, namespaces ...string) observed {
	t.Helper()
	pool := &v1alpha1.KVPool{ObjectMeta: metav1.ObjectMeta{Namespace: "data", Name: "cache", UID: "uid"}}
	pool.Status.Template = &v1alpha1.TemplateStatus{Version: 4, Image: "image"}
	pool.Spec.Sidecars = &v1alpha1.SidecarsSpec{}
	for _, name := range namespaces {
		pool.Spec.Sidecars.Namespaces = append(pool.Spec.Sidecars.Namespaces, v1alpha1.SidecarNamespace{Name: name, MaxSidecars: 10})
	}
	return observed{
		pool: pool, authority: authorityData(t, "uid", start), secret: mapKey(), held: map[string]*corev1.Secret{}, pods: map[string]int32{}, clusterDomain: "cluster.local",
		watches: func(string) bool { return true }, now: start, random: rand.Reader,
	}
}

func certificateOf(t *testing.T, data map[string][]byte) *x509.Certificate {
	t.Helper()
	block, _ := pem.Decode(data[pki.KeyCertificate])
	if block == nil {
		t.Fatalf("no certificate in %q", data)
	}
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return certificate
}

// A sidecar is outdated if it began with another image or other limits than it would have now; one whose record says neither is, too.
func TestOutdatedSidecars(t *testing.T) {
	pool := observedWith(t, "shop").pool
	pool.Spec.Limits = &v1alpha1.LimitsSpec{MaxConnections: ptr.To[int32](5), OperationDeadlineMilliseconds: ptr.To[int32](70)}
	with := func(record string) metav1.PartialObjectMetadata {
		return metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{v1alpha1.AnnotationInjected: record}}}
	}
	for record, want := range map[string]int32{
		`{"image":"image","limits":"max-connections = 5, operation-deadline = \"70ms\""}`: 0,
		`{"image":"image","limits":"max-connections = 5"}`:                                1,
		`{"image":"older","limits":"max-connections = 5, operation-deadline = \"70ms\""}`: 1,
		`{"image":"image"}`: 1,
		``:                  1,
	} {
		if got := outdated(pool, []metav1.PartialObjectMetadata{with(record)}); got != want {
			t.Errorf("%s: %d", record, got)
		}
	}
	pool.Status.Template = nil
	if outdated(pool, []metav1.PartialObjectMetadata{with("")}) != 0 {
		t.Error("a pool without image has outdated sidecars")
	}
}

// A namespace gets a certificate in its own name, as a client of the pool, for seven days, and what its sidecars begin with.
func TestWhatANamespaceGets(t *testing.T) {
	o := observedWith(t, "shop", "web")
	o.pool.Spec.Limits = &v1alpha1.LimitsSpec{}
	d := decide(o)
	if len(d.secrets) != 2 || len(d.removed) != 0 || d.status[0].State != v1alpha1.SidecarsReady || d.status[0].Reason != "" {
		t.Fatalf("%+v", d)
	}
	secret := d.secrets["shop"]
	certificate := certificateOf(t, secret.Data)
	identity, err := pki.IdentityOf(certificate)
	if err != nil || identity != (pki.Identity{PoolUID: "uid", Role: pki.RoleClient, Name: "shop.sidecars"}) {
		t.Errorf("%+v %v", identity, err)
	}
	if units := certificate.Subject.OrganizationalUnit; len(units) != 1 || units[0] != "farpool-sessions:10" {
		t.Errorf("memory nodes read its share of sessions as %q", units)
	}
	if life := certificate.NotAfter.Sub(start); life != lifetime || len(certificate.ExtKeyUsage) != 1 || certificate.ExtKeyUsage[0] != x509.ExtKeyUsageClientAuth {
		t.Errorf("it is good for %v and %v", life, certificate.ExtKeyUsage)
	}
	if secret.Namespace != "shop" || secret.Name != "cache-uid-shop-sidecars" || secret.Labels[v1alpha1.LabelPoolUID] != "uid" {
		t.Errorf("%+v", secret.ObjectMeta)
	}
	want := `pool-uid = "uid"
bootstrap = "dns:cache-nodes.data.svc.cluster.local:7400"
map-key = "6kpsY+KcUgq+9Vf/Nrh8nWd8cdbR8WMr37JWuFxKcVk="
tls-ca = "/etc/farpool/credentials/ca.crt"
tls-cert = "/etc/farpool/credentials/tls.crt"
tls-key = "/etc/farpool/credentials/tls.key"
log-format = "json"
`
	got := string(secret.Data[inject.ConfigKey])
	if lines := strings.Split(got, "\n"); len(lines) != len(strings.Split(want, "\n")) || !strings.HasPrefix(lines[2], `map-key = "`) {
		t.Errorf("%s", got)
	} else if lines[2] = strings.Split(want, "\n")[2]; strings.Join(lines, "\n") != want {
		t.Errorf("%s", got)
	}
	if _, private := secret.Data[render.KeyMapKey]; private || bytes.Contains(secret.Data[inject.ConfigKey], o.secret[render.KeyMapKey]) {
		t.Error("the private map key leaves the operator")
	}
	if d.renewAt.Before(start.Add(3*24*time.Hour)) || d.renewAt.After(start.Add(4*24*time.Hour)) {
		t.Errorf("it is renewed at %v", d.renewAt)
	}
}

// Nothing is written again before it is due, and everything is renewed then.
func TestRenewal(t *testing.T) {
	o := observedWith(t, "shop")
	first := decide(o).secrets["shop"]
	o.held["shop"] = first
	o.now = start.Add(3 * 24 * time.Hour)
	if d := decide(o); len(d.secrets) != 0 || d.status[0].State != v1alpha1.SidecarsReady {
		t.Errorf("%+v", d)
	}
	o.now = start.Add(4 * 24 * time.Hour)
	second := decide(o).secrets["shop"]
	if second == nil || certificateOf(t, second.Data).Equal(certificateOf(t, first.Data)) {
		t.Error("it is not renewed at half its life")
	}
	// An edit of what sidecars begin with keeps the certificate.
	o.now = start
	deadline := int32(250)
	o.pool.Spec.Limits = &v1alpha1.LimitsSpec{OperationDeadlineMilliseconds: &deadline, MaxPipeline: &deadline}
	edited := decide(o).secrets["shop"]
	if edited == nil || !certificateOf(t, edited.Data).Equal(certificateOf(t, first.Data)) || !strings.Contains(string(edited.Data[inject.ConfigKey]), "max-pipeline = 250\noperation-deadline = \"250ms\"\n") {
		t.Errorf("%v", edited)
	}
	// Memory nodes read from the certificate how many sessions a namespace may have.
	o.pool.Spec.Sidecars.Namespaces[0].MaxSidecars = 11
	more := decide(o).secrets["shop"]
	if more == nil || !slices.Equal(certificateOf(t, more.Data).Subject.OrganizationalUnit, []string{"farpool-sessions:11"}) {
		t.Errorf("more sidecars: %v", more)
	}
}

// What a paused pool has is renewed as if it were not paused, because its sidecars go on.
func TestCertificatesOfAPausedPool(t *testing.T) {
	o := observedWith(t, "shop")
	o.held = decide(o).secrets
	o.pool.Spec.Management = v1alpha1.ManagementPaused
	o.now = start.Add(lifetime/2 + time.Minute)
	d := decide(o)
	if renewed := d.secrets["shop"]; renewed == nil || d.status[0].State != v1alpha1.SidecarsReady || certificateOf(t, renewed.Data).Equal(certificateOf(t, o.held["shop"].Data)) {
		t.Errorf("%+v", d)
	}
}

// A pool is looked at again when the first certificate is due, and soon while a namespace waits.
func TestWhenAPoolIsLookedAtAgain(t *testing.T) {
	o := observedWith(t, "shop")
	d := decide(o)
	ready := d.statusWith(nil)
	waits := d.statusWith(map[string]finding{"shop": {v1alpha1.ReasonNamespaceMissing, ""}})
	nothing := &decision{}
	for name, c := range map[string]struct {
		d      *decision
		status *v1alpha1.SidecarsStatus
		now    time.Time
		want   time.Duration
	}{
		"all is well":                {&d, ready, start, d.renewAt.Sub(start)},
		"a certificate is due":       {&d, ready, d.renewAt.Add(time.Hour), time.Second},
		"a namespace waits":          {&d, waits, start, pendingRetry},
		"both":                       {&d, waits, d.renewAt, time.Second},
		"one waits that has nothing": {nothing, waits, start, pendingRetry},
		"no namespace is listed":     {nothing, nil, start, 0},
	} {
		if got := c.d.lookAgain(c.status, c.now); got != c.want {
			t.Errorf("%s: after %v, not %v", name, got, c.want)
		}
	}
}

// Why a namespace waits, and which namespaces lose what they have.
func TestWhoWaits(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*observed)
		reason string
		says   string
	}{
		"no image":            {func(o *observed) { o.pool.Status.Template = nil }, v1alpha1.ReasonCredentialsAwaited, "SpecValid"},
		"an old template":     {func(o *observed) { o.pool.Status.Template.Version = 3 }, v1alpha1.ReasonUnsupported, "create it anew"},
		"no authority":        {func(o *observed) { o.authority = nil }, v1alpha1.ReasonCredentialsAwaited, "CertificatesReady"},
		"a damaged authority": {func(o *observed) { o.authority[pki.KeyPrivateKey] = nil }, v1alpha1.ReasonIssueFailed, "damaged"},
		"no map key":          {func(o *observed) { delete(o.secret, render.KeyMapKey) }, v1alpha1.ReasonCredentialsAwaited, "map key"},
		"another's namespace": {func(o *observed) { o.watches = func(string) bool { return false } }, v1alpha1.ReasonNamespaceNotWatched, "watchNamespaces"},
		"a paused pool":       {func(o *observed) { o.pool.Spec.Management = v1alpha1.ManagementPaused }, v1alpha1.ReasonPaused, "Managed"},
	} {
		o := observedWith(t, "shop")
		c.change(&o)
		d := decide(o)
		if entry := d.status[0]; len(d.secrets) != 0 || entry.State != v1alpha1.SidecarsPending || entry.Reason != c.reason || !strings.Contains(entry.Message, c.says) {
			t.Errorf("%s: %+v", name, d)
		}
	}
	o := observedWith(t, "shop", "web")
	o.held = decide(o).secrets
	o.pool.Spec.Sidecars.Namespaces = o.pool.Spec.Sidecars.Namespaces[:1]
	if d := decide(o); len(d.removed) != 1 || d.removed[0].Namespace != "web" || len(d.secrets) != 0 {
		t.Errorf("%+v", d)
	}
	o.pool.Spec.Management = v1alpha1.ManagementPaused
	if d := decide(o); len(d.removed) != 0 {
		t.Errorf("a paused pool loses %v", d.removed)
	}
	o.pool.Spec.Management, o.pool.Spec.Sidecars = v1alpha1.ManagementManaged, nil
	if d := decide(o); len(d.removed) != 2 || d.statusWith(nil) != nil {
		t.Errorf("%+v", d)
	}
}

// A warning comes before there is no room, and once.
func TestBudget(t *testing.T) {
	o := observedWith(t, "shop", "web")
	o.pods = map[string]int32{"shop": 7, "web": 1}
	before := decide(o)
	status := before.statusWith(nil)
	if status.Count != 8 || status.Namespaces[0].Reason != "" {
		t.Errorf("%+v", status)
	}
	o.pods["shop"] = 8
	after := decide(o)
	now := after.statusWith(nil)
	if entry := now.OfNamespace("shop"); entry.Reason != v1alpha1.ReasonSidecarBudgetNearlySpent || entry.State != v1alpha1.SidecarsReady || !strings.Contains(entry.Message, "8 of the 10") {
		t.Errorf("%+v", entry)
	}
	if told := news(status, now, nil); len(told) != 1 || told[0].kind != corev1.EventTypeWarning || told[0].reason != v1alpha1.ReasonSidecarBudgetNearlySpent {
		t.Errorf("%+v", told)
	}
	if told := news(now, now, nil); len(told) != 0 {
		t.Errorf("told again: %+v", told)
	}
	failed := after.statusWith(map[string]finding{"shop": {v1alpha1.ReasonSidecarSecretTaken, strings.Repeat("é", 600)}})
	if entry := failed.OfNamespace("shop"); entry.State != v1alpha1.SidecarsPending || len(entry.Message) > 1024 {
		t.Errorf("%+v", entry)
	}
	if whole := after.statusWith(map[string]finding{"shop": {v1alpha1.ReasonSidecarSecretTaken, strings.Repeat("x", 1024)}}).OfNamespace("shop").Message; strings.HasSuffix(whole, "...") {
		t.Errorf("a message that fits is cut to %d bytes", len(whole))
	}
	if told := news(nil, now, []*corev1.Secret{{ObjectMeta: metav1.ObjectMeta{Namespace: "old"}}}); len(told) != 3 || !strings.Contains(told[2].note, "within 7 days") {
		t.Errorf("%+v", told)
	}
}

func TestTheNextTryIsNearHoweverLongAFailureWentOn(t *testing.T) {
	limiter := controllerOptions().RateLimiter
	if limiter == nil {
		t.Fatal("waits after failures are controller-runtime's, which grow to 1,000 s")
	}
	longest := time.Duration(0)
	for range 1000 {
		longest = max(longest, limiter.When(reconcile.Request{}))
	}
	if longest > 15*time.Second {
		t.Errorf("the longest wait is %v", longest)
	}
}

// world is an API server, on which the controller has the operator's rights.
type world struct {
	client.Client
	access *rest.Config
	scheme *runtime.Scheme
}

func newWorld(t *testing.T) *world {
	t.Helper()
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		t.Fatal("set KUBEBUILDER_ASSETS to a directory with kube-apiserver, etcd and kubectl: make test-go does")
	}
	w := &world{scheme: runtime.NewScheme()}
	if err := errors.Join(clientgoscheme.AddToScheme(w.scheme), v1alpha1.AddToScheme(w.scheme)); err != nil {
		t.Fatal(err)
	}
	environment := &envtest.Environment{
		CRDDirectoryPaths: []string{"../../../../config/crd/bases"}, ErrorIfCRDPathMissing: true, ControlPlaneStartTimeout: 2 * time.Minute, ControlPlaneStopTimeout: time.Minute,
	}
	administrator, err := environment.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := environment.Stop(); err != nil {
			t.Error(err)
		}
	})
	if w.Client, err = client.New(administrator, client.Options{Scheme: w.scheme}); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("../../../../config/rbac/role.yaml")
	if err != nil {
		t.Fatal(err)
	}
	role := &rbacv1.ClusterRole{}
	if err := yaml.UnmarshalStrict(text, role); err != nil {
		t.Fatal(err)
	}
	w.create(t, role, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: role.Name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "farpool-operator"}},
	})
	user, err := environment.AddUser(envtest.User{Name: "farpool-operator"}, administrator)
	if err != nil {
		t.Fatal(err)
	}
	w.access = user.Config()
	for _, name := range []string{secretNamespace, "data", "shop", "web", "taken"} {
		w.create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	return w
}

func (w *world) create(t *testing.T, objects ...client.Object) {
	t.Helper()
	for _, object := range objects {
		if err := w.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
}

// operate runs the controller until the function that it returns is called.
func (w *world) operate(t *testing.T, name string) (stop func()) {
	t.Helper()
	mgr, err := ctrl.NewManager(w.access, ctrl.Options{Scheme: w.scheme, Cache: kvpool.CacheOptions(nil, secretNamespace), Metrics: metricsserver.Options{BindAddress: "0"}, Logger: logr.Discard()})
	if err != nil {
		t.Fatal(err)
	}
	for _, object := range []client.Object{&v1alpha1.KVPool{}, &corev1.Secret{}} {
		if _, err := mgr.GetCache().GetInformer(t.Context(), object); err != nil && !strings.Contains(err.Error(), "not started") {
			t.Fatal(err)
		}
	}
	if err := SetUp(mgr, Options{Name: name, Clock: clock.RealClock{}, SecretNamespace: secretNamespace}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(within):
			t.Error("the controller does not end")
		}
	})
	t.Cleanup(stop) // an API server waits for its watchers
	return stop
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

// poolNamed makes a pool that lists namespaces, and what the operator keeps for it.
func (w *world) poolNamed(t *testing.T, name string, namespaces string) *v1alpha1.KVPool {
	t.Helper()
	pool := &v1alpha1.KVPool{}
	text := fmt.Sprintf(`{metadata: {namespace: data, name: %s}, spec: {network: {transport: TCP}, memory: {pools: [{name: memory, replicas: 1, lend: 64Mi}]}, sidecars: {namespaces: %s}}}`, name, namespaces)
	if err := yaml.UnmarshalStrict([]byte(text), pool); err != nil {
		t.Fatal(err)
	}
	w.create(t, pool)
	labels := map[string]string{v1alpha1.LabelPool: name, v1alpha1.LabelPoolNamespace: "data", v1alpha1.LabelPoolUID: string(pool.UID)}
	for i, data := range []map[string][]byte{authorityData(t, string(pool.UID), time.Now()), mapKey()} {
		w.create(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: secretNamespace, Name: render.KeptSecretNames(name, pool.UID)[i], Labels: labels}, Data: data})
	}
	// The controller may write its own part of the status at the same time.
	template := client.RawPatch("application/merge-patch+json", []byte(`{"status":{"template":{"version":4,"image":"farpool/dataplane:1"}}}`))
	if err := w.Status().Patch(t.Context(), pool, template); err != nil {
		t.Fatal(err)
	}
	return pool
}

// says waits for what the pool says of a namespace.
func (w *world) says(t *testing.T, pool *v1alpha1.KVPool, namespace string, state v1alpha1.SidecarState, reason string, sidecars int32) {
	t.Helper()
	eventually(t, "namespace "+namespace, func(ctx context.Context) error {
		now := &v1alpha1.KVPool{}
		if err := w.Get(ctx, client.ObjectKeyFromObject(pool), now); err != nil {
			return err
		}
		entry := now.Status.Sidecars.OfNamespace(namespace)
		if entry == nil || entry.State != state || entry.Reason != reason || entry.Sidecars != sidecars {
			return fmt.Errorf("the status is %+v", entry)
		}
		return nil
	})
}

func (w *world) secret(ctx context.Context, pool *v1alpha1.KVPool, namespace string) (*corev1.Secret, error) {
	secret := &corev1.Secret{}
	return secret, w.Get(ctx, client.ObjectKey{Namespace: namespace, Name: v1alpha1.SidecarSecretName(pool.Name, pool.UID, namespace)}, secret)
}

func (w *world) goes(t *testing.T, pool *v1alpha1.KVPool, namespace string) {
	t.Helper()
	eventually(t, "the Secret of namespace "+namespace+" stays", func(ctx context.Context) error {
		_, err := w.secret(ctx, pool, namespace)
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(errors.New("it is there"), err)
	})
}

// list changes which namespaces a pool lists.
func (w *world) list(t *testing.T, pool *v1alpha1.KVPool, patch string) {
	t.Helper()
	if err := w.Patch(t.Context(), pool.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(patch))); err != nil {
		t.Fatal(err)
	}
}

// leftover is a Secret of an earlier pool of the name; anybody who may write Secrets in the namespace can make one.
func (w *world) leftover(pool *v1alpha1.KVPool, namespace string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: v1alpha1.SidecarSecretName(pool.Name, "earlier", namespace),
		Labels: map[string]string{v1alpha1.LabelPool: pool.Name, v1alpha1.LabelPoolNamespace: pool.Namespace, v1alpha1.LabelPoolUID: "earlier"},
	}}
}

// refuseDeletions makes the API server refuse that Secrets of some namespaces are deleted, until its ValidatingAdmissionPolicyBinding is gone.
func (w *world) refuseDeletions(t *testing.T, namespaces ...string) {
	t.Helper()
	policy := &admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "kept"},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			FailurePolicy: ptr.To(admissionv1.Fail),
			MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
				Operations: []admissionv1.OperationType{admissionv1.Delete}, Rule: admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"secrets"}},
			}}}},
			Validations: []admissionv1.Validation{{Expression: fmt.Sprintf("!(request.namespace in ['%s'])", strings.Join(namespaces, "', '"))}},
		},
	}
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "kept"},
		Spec:       admissionv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: "kept", ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny}},
	}
	w.create(t, policy, binding)
	probe := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespaces[0], Name: "probe"}}
	w.create(t, probe)
	eventually(t, "deletions are not refused", func(ctx context.Context) error {
		if err := w.Delete(ctx, probe.DeepCopy(), client.DryRunAll); !apierrors.IsInvalid(err) && !apierrors.IsForbidden(err) {
			return fmt.Errorf("it can be deleted: %w", err)
		}
		return nil
	})
}

// pod is one that an injector has given a sidecar.
func (w *world) pod(t *testing.T, pool *v1alpha1.KVPool, namespace, name string) *corev1.Pod {
	t.Helper()
	now := &v1alpha1.KVPool{}
	if err := w.Get(t.Context(), client.ObjectKeyFromObject(pool), now); err != nil {
		t.Fatal(err)
	}
	record := fmt.Sprintf(`{"version":1,"pool":"data/%s","uid":%q,"image":%q,"limits":%q}`, pool.Name, pool.UID, now.Status.Template.Image, inject.LimitsInRecord(now))
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, Labels: map[string]string{v1alpha1.LabelInject: v1alpha1.InjectTrue},
			Annotations: map[string]string{v1alpha1.AnnotationInjected: record},
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "web"}}},
	}
	w.create(t, pod)
	return pod
}

func TestAgainstAnAPIServer(t *testing.T) {
	w := newWorld(t)
	stop := w.operate(t, "first")
	foreign := &v1alpha1.KVPool{}
	if err := yaml.UnmarshalStrict([]byte(`{metadata: {namespace: data, name: foreign}, spec: {network: {transport: TCP}, memory: {pools: [{name: memory, replicas: 1, lend: 64Mi}]}, sidecars: {namespaces: [{name: shop}]}}}`), foreign); err != nil {
		t.Fatal(err)
	}
	w.create(t, foreign)
	pool := w.poolNamed(t, "cache", "[{name: shop, maxSidecars: 2}, {name: nowhere}]")
	w.says(t, pool, "shop", v1alpha1.SidecarsReady, "", 0)
	w.says(t, pool, "nowhere", v1alpha1.SidecarsPending, v1alpha1.ReasonNamespaceMissing, 0)
	secret, err := w.secret(t.Context(), pool, "shop")
	if err != nil || certificateOf(t, secret.Data).Subject.CommonName != "shop.sidecars" {
		t.Fatalf("%v %v", secret, err)
	}

	t.Run("a pool whose Secrets another operator keeps is left to that", func(t *testing.T) {
		// It was made before the other, which has been seen to.
		now := &v1alpha1.KVPool{}
		if err := w.Get(t.Context(), client.ObjectKeyFromObject(foreign), now); err != nil || now.Status.Sidecars != nil {
			t.Errorf("%+v %v", now.Status.Sidecars, err)
		}
		if _, err := w.secret(t.Context(), foreign, "shop"); !apierrors.IsNotFound(err) {
			t.Errorf("its namespace has a Secret: %v", err)
		}
	})
	t.Run("pods are counted while they run", func(t *testing.T) {
		first, second := w.pod(t, pool, "shop", "first"), w.pod(t, pool, "shop", "second")
		w.pod(t, pool, "web", "elsewhere")
		w.says(t, pool, "shop", v1alpha1.SidecarsReady, v1alpha1.ReasonSidecarBudgetNearlySpent, 2)
		for _, edit := range []struct {
			limits   string
			outdated int32
		}{{`{"maxConnections": 77}`, 2}, {`{"maxConnections": null}`, 0}} {
			w.list(t, pool, `{"spec":{"limits":`+edit.limits+`}}`)
			eventually(t, "sidecars with limits other than "+edit.limits, func(ctx context.Context) error {
				now := &v1alpha1.KVPool{}
				err := w.Get(ctx, client.ObjectKeyFromObject(pool), now)
				if entry := now.Status.Sidecars.OfNamespace("shop"); err != nil || entry == nil || entry.Outdated != edit.outdated {
					return errors.Join(fmt.Errorf("the status is %+v", entry), err)
				}
				return nil
			})
		}
		first.Status.Phase = corev1.PodSucceeded
		if err := w.Status().Update(t.Context(), first); err != nil {
			t.Fatal(err)
		}
		w.says(t, pool, "shop", v1alpha1.SidecarsReady, "", 1)
		if err := w.Delete(t.Context(), second, client.GracePeriodSeconds(0)); err != nil {
			t.Fatal(err)
		}
		w.says(t, pool, "shop", v1alpha1.SidecarsReady, "", 0)
	})
	t.Run("a Secret of somebody else is never written over", func(t *testing.T) {
		mine := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "taken", Name: v1alpha1.SidecarSecretName(pool.Name, pool.UID, "taken")}, Data: map[string][]byte{"mine": []byte("x")}}
		w.create(t, mine)
		w.list(t, pool, `{"spec":{"sidecars":{"namespaces":[{"name":"shop","maxSidecars":2},{"name":"taken"}]}}}`)
		w.says(t, pool, "taken", v1alpha1.SidecarsPending, v1alpha1.ReasonSidecarSecretTaken, 0)
		if there, err := w.secret(t.Context(), pool, "taken"); err != nil || string(there.Data["mine"]) != "x" || len(there.Data) != 1 {
			t.Errorf("%v %v", there, err)
		}
	})
	t.Run("a lost Secret is made again, and a changed one is corrected", func(t *testing.T) {
		if err := w.Delete(t.Context(), secret.DeepCopy()); err != nil {
			t.Fatal(err)
		}
		var again *corev1.Secret
		eventually(t, "it stays lost", func(ctx context.Context) (err error) {
			again, err = w.secret(ctx, pool, "shop")
			return err
		})
		again.Data[inject.ConfigKey] = []byte("mine")
		if err := w.Update(t.Context(), again); err != nil {
			t.Fatal(err)
		}
		eventually(t, "it stays changed", func(ctx context.Context) error {
			now, err := w.secret(ctx, pool, "shop")
			if err == nil && string(now.Data[inject.ConfigKey]) == "mine" {
				return errors.New("it has what was written into it")
			}
			return err
		})
	})
	t.Run("the API server itself says which pools are gone, and the operator's flags where it may write", func(t *testing.T) {
		// A reconciler whose cache does not show the pool.
		r := &Reconciler{client: w.Client, live: w.Client, options: Options{Clock: clock.RealClock{}, SecretNamespace: secretNamespace, Namespaces: []string{"shop"}}}
		now, err := w.secret(t.Context(), pool, "shop")
		if err != nil {
			t.Fatal(err)
		}
		if err := r.sweep(t.Context(), client.ObjectKeyFromObject(pool), pool.UID, now.DeepCopy()); err != nil {
			t.Fatal(err)
		}
		if there, err := w.secret(t.Context(), pool, "shop"); err != nil || there.UID != now.UID {
			t.Errorf("the Secret of a pool that is there is gone: %v", err)
		}
		unlisted := pool.DeepCopy()
		unlisted.Spec.Sidecars = nil
		o, err := r.observe(t.Context(), unlisted, nil)
		if err != nil || !o.watches("shop") || o.watches("web") {
			t.Errorf("it writes elsewhere than it may: %v", err)
		}
	})
	t.Run("a Secret that has lost its labels gets them back", func(t *testing.T) {
		before, err := w.secret(t.Context(), pool, "shop")
		if err != nil {
			t.Fatal(err)
		}
		bare := before.DeepCopy()
		bare.Labels = nil
		if err := w.Update(t.Context(), bare); err != nil {
			t.Fatal(err)
		}
		eventually(t, "its labels stay lost", func(ctx context.Context) error {
			now, err := w.secret(ctx, pool, "shop")
			if err == nil && (!maps.Equal(now.Labels, before.Labels) || now.UID != before.UID || len(now.Data) != len(before.Data)) {
				return fmt.Errorf("it has labels %v and %d entries", now.Labels, len(now.Data))
			}
			return err
		})
		w.says(t, pool, "shop", v1alpha1.SidecarsReady, "", 0)
	})
	t.Run("Secrets that cannot be deleted take nothing from other namespaces", func(t *testing.T) {
		w.create(t, w.leftover(pool, "taken"))
		w.refuseDeletions(t, "taken", "shop")
		w.list(t, pool, `{"spec":{"sidecars":{"namespaces":[{"name":"web"}]}}}`)
		w.says(t, pool, "web", v1alpha1.SidecarsReady, "", 1)
		if _, err := w.secret(t.Context(), pool, "shop"); err != nil {
			t.Errorf("deletions are not refused: %v", err)
		}
		if err := w.DeleteAllOf(t.Context(), &admissionv1.ValidatingAdmissionPolicyBinding{}); err != nil {
			t.Fatal(err)
		}
		w.goes(t, pool, "shop")
		w.list(t, pool, `{"spec":{"sidecars":{"namespaces":[{"name":"shop","maxSidecars":2}]}}}`)
		w.says(t, pool, "shop", v1alpha1.SidecarsReady, "", 0)
	})
	t.Run("a namespace that leaves the list loses its Secret", func(t *testing.T) {
		w.list(t, pool, `{"spec":{"sidecars":{"namespaces":[{"name":"web"}]}}}`)
		w.goes(t, pool, "shop")
		w.says(t, pool, "web", v1alpha1.SidecarsReady, "", 1)
	})
	t.Run("so do all without a list, and the status is gone", func(t *testing.T) {
		w.list(t, pool, `{"spec":{"sidecars":null}}`)
		w.goes(t, pool, "web")
		eventually(t, "the status stays", func(ctx context.Context) error {
			now := &v1alpha1.KVPool{}
			if err := w.Get(ctx, client.ObjectKeyFromObject(pool), now); err != nil || now.Status.Sidecars != nil {
				return errors.Join(fmt.Errorf("it is %+v", now.Status.Sidecars), err)
			}
			return nil
		})
	})
	t.Run("a pool that goes while no operator runs leaves nothing", func(t *testing.T) {
		other := w.poolNamed(t, "other", "[{name: shop}]")
		w.says(t, other, "shop", v1alpha1.SidecarsReady, "", 0)
		stop()
		if err := w.Delete(t.Context(), other); err != nil {
			t.Fatal(err)
		}
		next := w.poolNamed(t, "other", "[{name: web}]") // another of its name
		stop = w.operate(t, "second")
		w.goes(t, other, "shop")
		w.says(t, next, "web", v1alpha1.SidecarsReady, "", 0)
	})
	stop()
}

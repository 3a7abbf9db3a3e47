// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"farpool.dev/farpool/api/v1alpha1"
)

// within bounds each command of a test.
const within = 30 * time.Second

var (
	api        client.Client
	namespaces atomic.Int32
)

// TestMain runs the commands against a real API server, without kubelet and operator: tests write what these would.
func TestMain(m *testing.M) {
	os.Exit(func() int {
		ctrl.SetLogger(logr.Discard())
		environment := &envtest.Environment{CRDDirectoryPaths: []string{"../../../config/crd/bases"}, ErrorIfCRDPathMissing: true, ControlPlaneStartTimeout: 2 * time.Minute}
		config, err := environment.Start()
		if err != nil {
			fmt.Fprintf(os.Stderr, "start an API server (KUBEBUILDER_ASSETS names its directory): %v\n", err)
			return 1
		}
		defer func() {
			if err := environment.Stop(); err != nil {
				fmt.Fprintf(os.Stderr, "stop the API server: %v\n", err)
			}
		}()
		scheme, err := newScheme()
		if err == nil {
			api, err = client.New(config, client.Options{Scheme: scheme})
		}
		if err != nil {
			fmt.Fprintf(os.Stderr, "connect: %v\n", err)
			return 1
		}
		return m.Run()
	}())
}

// world is a namespace, and a person with the plugin in it.
type world struct {
	*testing.T
	namespace string
	typed     string
	out, errs bytes.Buffer
	// ran are the programs that were run in containers; execute answers them.
	ran     []string
	answers func(pod string, command []string) (out string, code int, err error)
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{T: t, namespace: fmt.Sprintf("n%d", namespaces.Add(1))}
	w.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}})
	return w
}

func (w *world) create(object client.Object) {
	w.Helper()
	if err := api.Create(w.Context(), object); err != nil {
		w.Fatal(err)
	}
}

// settle writes the status of an object, as operator and kubelet would.
func (w *world) settle(object client.Object) {
	w.Helper()
	if err := api.Status().Update(w.Context(), object); err != nil {
		w.Fatal(err)
	}
}

func (w *world) read(name string, object client.Object) {
	w.Helper()
	if err := api.Get(w.Context(), client.ObjectKey{Namespace: w.namespace, Name: name}, object); err != nil {
		w.Fatal(err)
	}
}

func (w *world) execute(_ context.Context, pod *corev1.Pod, _ string, command []string, out, _ io.Writer) (int, error) {
	w.ran = append(w.ran, pod.Name+": "+strings.Join(command, " "))
	text, code, err := w.answers(pod.Name, command)
	fmt.Fprintf(out, "%s", text)
	return code, err
}

// answer is what the API server passes on from a pod's port.
type answer string

func (a answer) DoRaw(context.Context) ([]byte, error) { return []byte(a), nil }
func (a answer) Stream(context.Context) (io.ReadCloser, error) {
	return io.NopCloser(strings.NewReader(string(a))), nil
}

// plugin runs a command, and returns its exit status.
func (w *world) plugin(arguments ...string) int {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), within)
	defer cancel()
	w.out.Reset()
	w.errs.Reset()
	core := fake.NewClientset()
	core.AddProxyReactor("pods", func(clienttesting.Action) (bool, rest.ResponseWrapper, error) {
		return true, answer("farpool_up 1"), nil
	})
	s := &session{
		IOStreams: genericiooptions.IOStreams{In: strings.NewReader(w.typed), Out: &w.out, ErrOut: &w.errs}, version: "test", flags: genericclioptions.NewConfigFlags(true),
		connect: func() (*cluster, error) {
			return &cluster{Client: api, core: core, run: w, namespace: w.namespace, pause: time.Millisecond}, nil
		},
	}
	return s.main(ctx, arguments)
}

// expect runs a command that ends with some status and prints some texts.
func (w *world) expect(code int, texts []string, arguments ...string) {
	w.Helper()
	if got := w.plugin(arguments...); got != code {
		w.Fatalf("kubectl farpool %s ended with %d, not %d:\n%s%s", strings.Join(arguments, " "), got, code, w.out.String(), w.errs.String())
	}
	for _, text := range texts {
		if !strings.Contains(w.out.String()+w.errs.String(), text) {
			w.Fatalf("kubectl farpool %s does not say %q:\n%s%s", strings.Join(arguments, " "), text, w.out.String(), w.errs.String())
		}
	}
}

func (w *world) pool(conditions ...metav1.Condition) *v1alpha1.KVPool {
	w.Helper()
	pool := &v1alpha1.KVPool{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "cache"}}
	pool.Spec.Network.Transport = v1alpha1.TransportTCP
	pool.Spec.Memory.Pools = []v1alpha1.MemoryPool{{Name: "memory", Replicas: 1, Lend: resource.MustParse("64Mi")}}
	w.create(pool)
	pool.Status.Conditions = conditions
	pool.Status.Template = &v1alpha1.TemplateStatus{Version: 4, Image: "farpool/dataplane:v1"}
	w.settle(pool)
	return pool
}

func (w *world) node(conditions ...metav1.Condition) *v1alpha1.MemoryNode {
	w.Helper()
	node := &v1alpha1.MemoryNode{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "cache-memory-0"}}
	node.Spec = v1alpha1.MemoryNodeSpec{PoolName: "cache", MemoryPool: "memory", Lend: resource.MustParse("64Mi"), TemplateVersion: 4, Image: "farpool/dataplane:v1"}
	w.create(node)
	node.Status = v1alpha1.MemoryNodeStatus{Conditions: conditions, Incarnation: "17", LostIncarnation: "16", Epoch: 3, NodeName: "worker",
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("80Mi"), corev1.ResourceHugePagesPrefix + "2Mi": resource.MustParse("2Gi")}}
	w.settle(node)
	return node
}

func (w *world) resize() *v1alpha1.ResizeOperation {
	w.Helper()
	resize := &v1alpha1.ResizeOperation{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "cache-resize-2"}}
	resize.Spec = v1alpha1.ResizeOperationSpec{PoolName: "cache", Pools: []v1alpha1.ResizePool{{Name: "memory", From: 1, To: 2}}, Approval: v1alpha1.ApprovalRequired}
	w.create(resize)
	resize.Status.Change = "memory: 1 to 2"
	resize.Status.Conditions = []metav1.Condition{is("Complete", "False", v1alpha1.ReasonApprovalRequired, "waiting for a person's approval")}
	w.settle(resize)
	return resize
}

// pod makes the pod of a process, running or ended.
func (w *world) pod(name, component string, runs bool) *corev1.Pod {
	w.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name, Labels: map[string]string{v1alpha1.LabelPool: "cache", v1alpha1.LabelComponent: component}}}
	pod.Spec.Volumes = []corev1.Volume{{Name: "state", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	pod.Spec.Containers = []corev1.Container{{
		Name: component, Image: "farpool/dataplane:v1", Command: []string{"farpool-" + component},
		Resources:    corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("8Gi")}},
		VolumeMounts: []corev1.VolumeMount{{Name: "state", MountPath: "/var/lib/farpool"}},
	}}
	w.create(pod)
	status := corev1.ContainerStatus{Name: component}
	if runs {
		status.State.Running = &corev1.ContainerStateRunning{}
	} else {
		status.State.Waiting = &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}
	}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{status}
	w.settle(pod)
	return pod
}

func is(kind string, status metav1.ConditionStatus, reason, message string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: status, Reason: reason, Message: message, LastTransitionTime: metav1.Now(), ObservedGeneration: 1}
}

func TestStatusOfAPoolThatIsWell(t *testing.T) {
	w := newWorld(t)
	w.pool(is("Available", "True", v1alpha1.ReasonServing, "serves"), is("Degraded", "False", v1alpha1.ReasonHealthy, "nothing"), is("Progressing", "False", v1alpha1.ReasonSettled, "as its spec asks"))
	w.node(is("Ready", "True", v1alpha1.ReasonServing, "serves"))
	w.expect(exitWell, []string{"KVPool " + w.namespace + "/cache  available", "cache-memory-0  Serving, lends 64Mi (requests 2Gi of hugepages-2Mi and 80Mi), epoch 3, on worker", "Nothing needs a person."}, "status")
	w.expect(exitWell, []string{"Nothing needs a person."}, "status", "cache")
	w.expect(exitFailed, []string{"has no KVPool other"}, "status", "other")
	w.expect(exitFailed, []string{"name that with -n in place of -A"}, "status", "cache", "-A")
}

func TestStatusSaysWhatToDo(t *testing.T) {
	w := newWorld(t)
	w.pool(is("Available", "False", v1alpha1.ReasonTablesStopped, "cache-memory-0 is stopped"), is("Degraded", "True", v1alpha1.ReasonMapMissing, "the map is lost"),
		is("Progressing", "False", v1alpha1.ReasonResizeAborted, "ResizeOperation cache-resize-1 was aborted"))
	w.node(is("Ready", "False", v1alpha1.ReasonStopped, "what it held is lost"))
	w.resize()
	w.expect(exitWrong, []string{
		"5 to see to:",
		"$ kubectl farpool accept-loss cache-memory-0 -n " + w.namespace,
		"$ kubectl farpool begin-empty cache -n " + w.namespace,
		"$ kubectl farpool resize approve cache-resize-2 -n " + w.namespace,
		"! kvpool/cache ResizeAborted: ResizeOperation cache-resize-1 was aborted",
		Runbook + "#the-pools-map-is-lost",
	}, "status")
}

func TestStatusOfAPoolThatNobodyLookedAt(t *testing.T) {
	w := newWorld(t)
	w.expect(exitWell, []string{"has no pools"}, "status")
	w.pool()
	w.expect(exitWrong, []string{"no operator has looked at it"}, "status")
}

func TestWhatPassesByItselfNeedsNobody(t *testing.T) {
	w := newWorld(t)
	pool := w.pool(is("Available", "True", v1alpha1.ReasonServing, "serves"), is("Progressing", "True", v1alpha1.ReasonResizing, "keys move"))
	w.expect(exitWell, []string{"Nothing needs a person; 1 on its way:", "· kvpool/cache Resizing: keys move"}, "status")
	pool.Spec.Management = v1alpha1.ManagementPaused
	if err := api.Update(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	w.expect(exitWell, []string{"the operator has not looked at the latest edit yet"}, "status")
}

// Every reason that status knows is one of the API, and its runbook is a heading of the page.
func TestAdviceLeadsSomewhere(t *testing.T) {
	page, err := os.ReadFile("../../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	headings := map[string]bool{}
	for _, line := range strings.Split(string(page), "\n") {
		if heading := strings.TrimLeft(line, "#"); heading != line {
			heading = regexp.MustCompile(`[^a-z0-9 -]`).ReplaceAllString(strings.ToLower(strings.TrimSpace(heading)), "")
			headings[strings.ReplaceAll(heading, " ", "-")] = true
		}
	}
	anchors := []string{"the-operator-is-down", "sidecars-of-a-kvpool", "a-repair-does-not-complete"}
	for reason, a := range advices {
		if a.runbook == "" && len(a.commands) == 0 {
			t.Errorf("%s has no advice", reason)
		}
		anchors = append(anchors, a.runbook)
	}
	for _, anchor := range anchors {
		if anchor != "" && !headings[anchor] {
			t.Errorf("docs/operations.md has no heading #%s", anchor)
		}
	}
}

func TestResizesAreApprovedAndAborted(t *testing.T) {
	w := newWorld(t)
	w.pool()
	resize := w.resize()
	w.expect(exitWell, []string{"is approved: memory: 1 to 2"}, "resize", "approve", resize.Name)
	w.read(resize.Name, resize)
	if resize.Spec.Approval != v1alpha1.ApprovalApproved {
		t.Errorf("approval is %s", resize.Spec.Approval)
	}
	w.expect(exitWell, []string{"waits for no approval"}, "resize", "approve", resize.Name)
	w.expect(exitWell, []string{"begins no further step"}, "resize", "abort", resize.Name)
	w.expect(exitWell, []string{"has been aborted before"}, "resize", "abort", resize.Name)
	w.read(resize.Name, resize)
	if resize.Spec.RequestedState != v1alpha1.RequestedAbort {
		t.Errorf("requested state is %s", resize.Spec.RequestedState)
	}
	w.expect(exitFailed, []string{"has been aborted: delete it"}, "resize", "approve", resize.Name)
	now := metav1.Now()
	resize.Status.CompletionTime, resize.Status.Stage = &now, v1alpha1.StageAborted
	w.settle(resize)
	w.expect(exitFailed, []string{"is over (Aborted)"}, "resize", "abort", resize.Name)
	w.expect(exitFailed, []string{"has no ResizeOperation other"}, "resize", "abort", "other")
}

func TestALossIsAcceptedByName(t *testing.T) {
	w := newWorld(t)
	node := w.node(is("DataLost", "False", v1alpha1.ReasonNoLoss, "its memory is as old as its tables"))
	w.expect(exitFailed, []string{"has no loss to accept", "NoLoss"}, "accept-loss", node.Name, "--yes")
	node.Status.Conditions = []metav1.Condition{is("DataLost", "True", v1alpha1.ReasonStopped, "lost")}
	w.settle(node)
	for _, typed := range []string{"", "cache-memory-1\n", "yes\n"} {
		w.typed = typed
		w.expect(exitFailed, []string{"nothing was changed"}, "accept-loss", node.Name)
	}
	w.read(node.Name, node)
	if len(node.Annotations) > 0 {
		t.Fatalf("it was changed: %v", node.Annotations)
	}
	w.typed = node.Name + "\n"
	w.expect(exitWell, []string{"lost what incarnation 16 held", "is accepted"}, "accept-loss", node.Name)
	w.read(node.Name, node)
	if got := node.Annotations[v1alpha1.AnnotationAcceptDataLoss]; got != "17" {
		t.Errorf("accepted incarnation %q", got)
	}
}

func TestAMemoryNodeThatServesIsNotGivenUp(t *testing.T) {
	w := newWorld(t)
	node := w.node(is("Ready", "True", v1alpha1.ReasonServing, "serves"))
	w.expect(exitFailed, []string{"serves: to be rid of it with its keys kept"}, "give-up", node.Name, "--yes")
	node.Status.Conditions = []metav1.Condition{is("Ready", "False", v1alpha1.ReasonNodeUnschedulable, "no place")}
	w.settle(node)
	w.expect(exitWell, []string{"Incarnation 17 of memory node cache-memory-0 is given up"}, "give-up", node.Name, "--yes")
	w.read(node.Name, node)
	if got := node.Annotations[v1alpha1.AnnotationGiveUp]; got != "17" {
		t.Errorf("gave up incarnation %q", got)
	}
	node.Status.Incarnation = ""
	w.settle(node)
	w.expect(exitFailed, []string{"has been in no map"}, "give-up", node.Name, "--yes")
}

func TestAPoolBeginsEmptyAtTheEpochOfItsCondition(t *testing.T) {
	w := newWorld(t)
	pool := w.pool(is("Degraded", "False", v1alpha1.ReasonHealthy, "nothing"))
	w.expect(exitFailed, []string{"has its map"}, "begin-empty", "cache", "--yes")
	pool.Status.Conditions = []metav1.Condition{is("Degraded", "True", v1alpha1.ReasonMapMissing, "to give up: kubectl annotate kvpool cache --overwrite farpool.dev/begin-empty=42")}
	w.settle(pool)
	w.typed = "cache\n"
	w.expect(exitWell, []string{"up to epoch 42 are given up", "begins empty"}, "begin-empty", "cache")
	w.read("cache", pool)
	if got := pool.Annotations[v1alpha1.AnnotationBeginEmpty]; got != "42" {
		t.Errorf("gave up epoch %q", got)
	}
}

func TestAPoolIsDeletedByItsName(t *testing.T) {
	w := newWorld(t)
	w.expect(exitFailed, []string{"has no KVPool cache"}, "delete", "cache", "--yes")
	pool := w.pool()
	w.typed = "cash\n"
	w.expect(exitFailed, []string{"is not cache: nothing was changed"}, "delete", "cache")
	w.read("cache", pool)
	if len(pool.Annotations) > 0 {
		t.Errorf("annotations %v", pool.Annotations)
	}
	// A finalizer keeps the pool, so that the annotation can be seen.
	pool.Finalizers = []string{"example.com/look"}
	if err := api.Update(w.Context(), pool); err != nil {
		t.Fatal(err)
	}
	w.typed = "cache\n"
	w.expect(exitWell, []string{"all its keys are lost", "is deleted"}, "delete", "cache")
	w.read("cache", pool)
	if pool.DeletionTimestamp.IsZero() || pool.Annotations[v1alpha1.AnnotationConfirmDeletion] != "cache" {
		t.Errorf("deleted at %v with annotations %v", pool.DeletionTimestamp, pool.Annotations)
	}
}

// kubelets play the kubelets of compute shards: each brings the Secret to its shard's files some looks after it has changed.
type kubelets struct {
	*world
	secret, key string
	looks       int
	files       map[string]map[string][]byte
	// seen lists the versions of the Secret, each once.
	seen []map[string][]byte
}

func (k *kubelets) answer(pod string, command []string) (string, int, error) {
	secret := &corev1.Secret{}
	k.read(k.secret, secret)
	if len(k.seen) == 0 || !reflect.DeepEqual(k.seen[len(k.seen)-1], secret.Data) {
		k.seen = append(k.seen, secret.Data)
	}
	k.looks++
	if k.looks%5 == 1 {
		return "", 0, errors.New("the kubelet is away")
	}
	if k.files[pod] == nil || k.looks%3 == 0 {
		k.files[pod] = secret.Data
	}
	out, code := "", 0
	for _, file := range command[1:] {
		value, there := k.files[pod][strings.TrimPrefix(file, "/etc/farpool/password/")]
		if !there {
			code = 1
			continue
		}
		out += sumOf(value) + "  " + file + "\n"
	}
	// A client that has the password that the Secret gives applications is served by every shard, and by the ones that lag.
	for name, files := range k.files {
		if current := secret.Data[k.key]; !bytes.Equal(files[k.key], current) && !bytes.Equal(files[k.key+".also"], current) {
			k.Errorf("shard %s takes %q, and applications have %q", name, files, current)
		}
	}
	return out, code, nil
}

func (k *kubelets) wants(versions ...map[string]string) {
	k.Helper()
	var got []map[string]string
	for _, version := range k.seen {
		words := map[string]string{}
		for key, value := range version {
			words[key] = string(value)
		}
		got = append(got, words)
	}
	if !reflect.DeepEqual(got, versions) {
		k.Errorf("the Secret was %v, not %v", got, versions)
	}
	k.seen = nil
}

// TestAPasswordIsRotated: every compute shard takes the new password before applications get it, and the old one until a person drops it. Both for the Secret that the
// operator makes and for one of people.
func TestAPasswordIsRotated(t *testing.T) {
	type secret = map[string]string
	for _, key := range []string{"password", "word"} {
		w := newWorld(t)
		pool := w.pool()
		k := &kubelets{world: w, secret: "cache-password", key: key, files: map[string]map[string][]byte{}}
		if key == "word" {
			k.secret = "people"
			pool.Spec.Security = v1alpha1.SecuritySpec{Password: v1alpha1.PasswordSecret, PasswordSecret: &v1alpha1.SecretKey{Name: "people", Key: "word"}}
			if err := api.Update(w.Context(), pool); err != nil {
				t.Fatal(err)
			}
		}
		w.answers = k.answer
		w.expect(exitFailed, []string{"has no Secret " + k.secret}, "rotate-password", "cache")
		w.create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: k.secret}, Data: map[string][]byte{key: []byte("old"), "other": []byte("theirs")}})
		w.pod("cache-shards-a", v1alpha1.ComponentComputeShard, true)
		w.pod("cache-shards-b", v1alpha1.ComponentComputeShard, false)
		w.pod("cache-shards-c", v1alpha1.ComponentComputeShard, true)

		w.typed = "new\n"
		w.expect(exitWell, []string{"has the new password, and every compute shard takes it", "rotate-password cache --drop-old"}, "rotate-password", "cache", "--from-file=-")
		k.wants(secret{key: "old", key + ".also": "new", "other": "theirs"}, secret{key: "new", key + ".also": "old", "other": "theirs"})
		if strings.Contains(w.out.String()+w.errs.String(), "new\n") || w.ran[0] != "cache-shards-a: sha256sum /etc/farpool/password/"+key+" /etc/farpool/password/"+key+".also" {
			t.Errorf("printed %q, ran %q", w.out.String(), w.ran)
		}
		w.expect(exitFailed, []string{"two passwords count already", "--drop-old"}, "rotate-password", "cache")
		w.expect(exitWell, []string{"and no other"}, "rotate-password", "cache", "--drop-old")
		k.wants(secret{key: "new", key + ".also": "old", "other": "theirs"}, secret{key: "new", "other": "theirs"})
		w.expect(exitWell, []string{"has no second password"}, "rotate-password", "cache", "--drop-old")
		w.typed = "new\n"
		w.expect(exitFailed, []string{"has this password already"}, "rotate-password", "cache", "--from-file=-")
	}
}

func TestAPasswordIsReplacedAtOnce(t *testing.T) {
	w := newWorld(t)
	w.pool()
	w.create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "cache-password"}, Data: map[string][]byte{"password": []byte("old")}})
	w.expect(exitWell, []string{"and no other"}, "rotate-password", "cache", "--at-once") // a pool without compute shards
	secret := &corev1.Secret{}
	w.read("cache-password", secret)
	if got := secret.Data["password"]; len(secret.Data) != 1 || len(got) != base64.RawURLEncoding.EncodedLen(randomPasswordBytes) {
		t.Errorf("the Secret has %d keys, and the random password %d bytes", len(secret.Data), len(got))
	}
	w.pod("cache-shards-a", v1alpha1.ComponentComputeShard, true)
	w.answers = func(_ string, command []string) (string, int, error) {
		return sumOf([]byte("old")) + "  " + command[1] + "\n", 1, nil
	}
	w.expect(exitFailed, []string{"it is not over after 20ms: compute shard cache-shards-a has the passwords of before"}, "rotate-password", "cache", "--at-once", "--timeout=20ms")
	w.read("cache-password", secret)
	if also, there := secret.Data["password.also"]; !there || len(also) > 0 {
		t.Errorf("the second password is %q: %v, and should be there and empty", also, there)
	}
	w.answers = func(string, []string) (string, int, error) { return "", 1, nil }
	w.expect(exitFailed, []string{"it is not over after 20ms: compute shard cache-shards-a"}, "rotate-password", "cache", "--drop-old", "--timeout=20ms")
	for _, typed := range []string{"", "\n", "two\nlines\n", strings.Repeat("x", longestPasswordBytes+1)} {
		w.typed = typed
		w.expect(exitFailed, []string{"holds no password"}, "rotate-password", "cache", "--from-file=-")
	}
	secret.Data = nil
	if err := api.Update(w.Context(), secret); err != nil {
		t.Fatal(err)
	}
	w.expect(exitFailed, []string{"has no password under key password"}, "rotate-password", "cache")
}

// upgraded plays the operator: it waits for the edit, and reports one condition after the other.
func (w *world) upgraded(conditions ...metav1.Condition) (done chan error) {
	done = make(chan error, 1)
	go func() {
		pool := &v1alpha1.KVPool{}
		for {
			if err := api.Get(w.Context(), client.ObjectKey{Namespace: w.namespace, Name: "cache"}, pool); err != nil {
				done <- err
				return
			}
			if pool.Generation > 1 {
				break
			}
		}
		for _, c := range conditions {
			c.ObservedGeneration = pool.Generation
			meta.SetStatusCondition(&pool.Status.Conditions, c)
			if err := api.Status().Update(w.Context(), pool); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	return done
}

func TestAnUpgradeIsFollowedToItsEnd(t *testing.T) {
	for _, test := range []struct {
		last metav1.Condition
		code int
	}{
		{is("UpToDate", "True", v1alpha1.ReasonCurrent, "every process has it"), exitWell},
		{is("UpToDate", "False", v1alpha1.ReasonUpgradeStopped, "ImagePullBackOff"), exitWrong},
		{is("UpToDate", "False", v1alpha1.ReasonUpgradeRefused, "no version in common"), exitWrong},
	} {
		w := newWorld(t)
		w.pool(is("UpToDate", "True", v1alpha1.ReasonCurrent, "all is as before"))
		operator := w.upgraded(is("UpToDate", "False", v1alpha1.ReasonUpgrading, "0 of 1"), test.last)
		w.expect(test.code, []string{test.last.Reason + ": " + test.last.Message}, "upgrade", "cache", "--version", "v2")
		if err := <-operator; err != nil {
			t.Fatal(err)
		}
		if strings.Contains(w.out.String(), "all is as before") {
			t.Errorf("it believed a condition of the spec before: %s", w.out.String())
		}
		pool := &v1alpha1.KVPool{}
		w.read("cache", pool)
		if pool.Spec.Version != "v2" || pool.Spec.Image != "" {
			t.Errorf("the spec asks for version %q, image %q", pool.Spec.Version, pool.Spec.Image)
		}
	}
}

func TestAnUpgradeNamesOneImage(t *testing.T) {
	w := newWorld(t)
	w.pool()
	w.expect(exitFailed, []string{"name one image"}, "upgrade", "cache")
	w.expect(exitFailed, []string{"name one image"}, "upgrade", "cache", "--version", "v2", "--original")
	w.expect(exitWell, nil, "upgrade", "cache", "--image", "registry.example/dataplane:v3", "--wait=false")
	pool := &v1alpha1.KVPool{}
	w.read("cache", pool)
	if pool.Spec.Image != "registry.example/dataplane:v3" {
		t.Errorf("image is %q", pool.Spec.Image)
	}
	w.expect(exitFailed, []string{"which goes on", "the operator has not looked at the edit yet"}, "upgrade", "cache", "--original", "--timeout=20ms")
	w.read("cache", pool)
	pool.Spec.Management = v1alpha1.ManagementPaused
	if err := api.Update(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	w.expect(exitFailed, []string{"is paused"}, "upgrade", "cache", "--version", "v2")
}

func TestTheMapShowsShares(t *testing.T) {
	w := newWorld(t)
	w.pool()
	w.expect(exitFailed, []string{"has no ShardMap yet"}, "map", "cache")
	m := &v1alpha1.ShardMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "cache-0000000003"}}
	node := func(name string) v1alpha1.ShardMapNode {
		return v1alpha1.ShardMapNode{Name: name, Endpoint: "10.0.0.1:7400", Incarnation: "17", State: v1alpha1.NodeServing, MemoryBytes: 64 << 20, Outback: &v1alpha1.OutbackGeometry{Buckets: 4}}
	}
	m.Spec = v1alpha1.ShardMapSpec{PoolName: "cache", PoolUID: "uid", Epoch: 3, EpochKey: "0000000003", Nodes: []v1alpha1.ShardMapNode{node("cache-memory-0"), node("cache-memory-1")},
		Tables: []v1alpha1.ShardMapTable{{ID: 0, Node: 0}, {ID: 1, Node: 1}}, Directory: v1alpha1.Directory{Depth: 2, Tables: []int32{0, 0, 0, 1}},
		Move: 1, Departures: []v1alpha1.Departure{{Part: 3, From: 0}}}
	w.create(m)
	w.expect(exitWell, []string{"epoch 3, not followed by all memory nodes yet, 4 parts", "75.0 %", "25.0 %", "Move 1 is under way"}, "map", "cache")
	for _, row := range []string{"cache-memory-0 Serving 75.0 % 3 0 1 64 Mi", "cache-memory-1 Serving 25.0 % 1 1 0 64 Mi"} {
		if !strings.Contains(strings.Join(strings.Fields(w.out.String()), " "), row) {
			t.Errorf("no row %q in:\n%s", row, w.out.String())
		}
	}
	w.expect(exitWell, []string{"kind: ShardMap", "epochKey: \"0000000003\""}, "map", "cache", "-o", "yaml")
	w.expect(exitFailed, []string{"no ShardMap of epoch 9"}, "map", "cache", "--epoch", "9")
	w.expect(exitFailed, []string{"set it to yaml"}, "map", "cache", "-o", "xml")
	m.Spec.Directory.Tables[0] = 7
	if err := showMap(io.Discard, m); err == nil || !strings.Contains(err.Error(), "table 7") {
		t.Errorf("a table that is on no memory node: %v", err)
	}
}

func TestTheDoctorLooksIntoEveryPod(t *testing.T) {
	w := newWorld(t)
	w.expect(exitFailed, []string{"has no pod"}, "doctor", "cache")
	w.pod("cache-memory-0", v1alpha1.ComponentMemoryNode, true)
	w.pod("cache-memory-1", v1alpha1.ComponentMemoryNode, true)
	codes := map[string]int{}
	w.answers = func(pod string, _ []string) (string, int, error) { return "findings of " + pod + "\n", codes[pod], nil }
	w.expect(exitWell, []string{"findings of cache-memory-0", "findings of cache-memory-1"}, "doctor", "cache")
	codes["cache-memory-0"] = 1
	w.expect(exitWrong, nil, "doctor", "cache")
	w.ran = nil
	w.expect(exitWell, nil, "doctor", "cache-memory-1")
	if len(w.ran) != 1 || w.ran[0] != "cache-memory-1: farpool-doctor" {
		t.Errorf("ran %q", w.ran)
	}
	w.answers = func(string, []string) (string, int, error) { return "", 0, errors.New("the kubelet is away") }
	w.expect(exitFailed, []string{"could not look into 2 of 2 pods"}, "doctor", "cache")
}

// ended plays the kubelet: a container that a command added runs to its end.
func (w *world) ended(code int32, container func(*corev1.PodList) (*corev1.Pod, *[]corev1.ContainerStatus, string)) chan error {
	done := make(chan error, 1)
	go func() {
		for {
			var pods corev1.PodList
			if err := api.List(w.Context(), &pods, client.InNamespace(w.namespace)); err != nil {
				done <- err
				return
			}
			if pod, statuses, name := container(&pods); pod != nil {
				*statuses = []corev1.ContainerStatus{{Name: name, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code}}}}
				done <- api.Status().Update(w.Context(), pod)
				return
			}
		}
	}()
	return done
}

func TestTheDoctorLooksIntoACopyWhereNoProcessRuns(t *testing.T) {
	w := newWorld(t)
	w.pod("cache-memory-0", v1alpha1.ComponentMemoryNode, false)
	kubelet := w.ended(1, func(pods *corev1.PodList) (*corev1.Pod, *[]corev1.ContainerStatus, string) {
		for i := range pods.Items {
			if pod := &pods.Items[i]; strings.HasPrefix(pod.Name, "cache-memory-0-doctor-") {
				main := pod.Spec.Containers[0]
				if len(pod.Labels) > 0 || len(pod.OwnerReferences) > 0 || main.Command[0] != "farpool-doctor" || main.Resources.Requests.Memory().String() != "64Mi" {
					w.Errorf("the copy is %v", pod)
				}
				return pod, &pod.Status.ContainerStatuses, main.Name
			}
		}
		return nil, nil, ""
	})
	w.expect(exitWrong, []string{"fake logs"}, "doctor", "cache")
	if err := <-kubelet; err != nil {
		t.Fatal(err)
	}
	var pods corev1.PodList
	if err := api.List(t.Context(), &pods, client.InNamespace(w.namespace)); err != nil {
		t.Fatal(err)
	}
	for _, pod := range pods.Items {
		if pod.Name != "cache-memory-0" && pod.DeletionTimestamp == nil {
			t.Errorf("pod %s stays", pod.Name)
		}
	}
}

func TestFsckLooksAtMemoryThatStandsStill(t *testing.T) {
	w := newWorld(t)
	w.node()
	pod := w.pod("cache-memory-0", v1alpha1.ComponentMemoryNode, true)
	w.expect(exitFailed, []string{"runs, and its memory changes"}, "fsck", "cache-memory-0")
	pod.Status.ContainerStatuses[0].State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}
	w.settle(pod)
	kubelet := w.ended(1, func(pods *corev1.PodList) (*corev1.Pod, *[]corev1.ContainerStatus, string) {
		pod := &pods.Items[0]
		if len(pod.Spec.EphemeralContainers) == 0 {
			return nil, nil, ""
		}
		examiner := pod.Spec.EphemeralContainers[0]
		if command := strings.Join(examiner.Command, " "); command != "farpool-fsck --json /var/lib/farpool/cache-memory-0.memory" || !examiner.VolumeMounts[0].ReadOnly {
			w.Errorf("it runs %q with %v", command, examiner.VolumeMounts)
		}
		return pod, &pod.Status.EphemeralContainerStatuses, examiner.Name
	})
	w.expect(exitWrong, []string{"fake logs"}, "fsck", "cache-memory-0", "--json")
	if err := <-kubelet; err != nil {
		t.Fatal(err)
	}
	w.expect(exitFailed, []string{"it is not over after 20ms", "the kubelet has not begun"}, "fsck", "cache-memory-0", "--timeout=20ms")
	pod.Spec.Containers[0].VolumeMounts = nil
	if _, err := fsckContainer(pod, false); err == nil || !strings.Contains(err.Error(), "its memory ends with its process") {
		t.Errorf("a pod without the volume: %v", err)
	}
}

func TestASupportBundleHoldsNoSecret(t *testing.T) {
	w := newWorld(t)
	const hidden = "hidden-from-everybody"
	w.pool(is("Degraded", "True", v1alpha1.ReasonMapMissing, "the map is lost"))
	w.node()
	w.create(&corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "cache-password", Labels: map[string]string{v1alpha1.LabelPool: "cache"}, Annotations: map[string]string{lastApplied: hidden}},
		Data:       map[string][]byte{"password": []byte(hidden)},
	})
	w.create(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "cache-config", Labels: map[string]string{v1alpha1.LabelPool: "cache"},
		Annotations: map[string]string{lastApplied: hidden}}, Data: map[string]string{"shards.toml": "threads = 1"}})
	w.create(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "of-another"}, Data: map[string]string{"a": hidden}})
	w.pod("cache-memory-0", v1alpha1.ComponentMemoryNode, true)
	file := filepath.Join(t.TempDir(), "bundle.tar.gz")
	w.expect(exitWell, []string{"has 23 files"}, "support-bundle", "cache", "-f", file)
	files := unpack(t, file)
	for name, text := range map[string]string{
		"status.txt": "begin-empty", "secrets.txt": "cache-password type Opaque: password (21 bytes)", "objects/kvpools.yaml": "name: cache", "objects/memorynodes.yaml": "cache-memory-0",
		"objects/configmaps.yaml": "threads = 1", "logs/cache-memory-0/memory-node.log": "fake logs", "metrics/cache-memory-0.txt": "farpool_up 1", "version.txt": "kubectl-farpool test", "errors.txt": "has no ShardMap yet",
	} {
		if !strings.Contains(files["cache-support/"+name], text) {
			t.Errorf("%s does not hold %q: %q", name, text, files["cache-support/"+name])
		}
	}
	for name, text := range files {
		if strings.Contains(text, hidden) || strings.Contains(text, base64.StdEncoding.EncodeToString([]byte(hidden))) {
			t.Errorf("%s has the data of a Secret, or what is not the pool's", name)
		}
	}
	if left, err := filepath.Glob(file + ".part"); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
	w.expect(exitFailed, []string{"has no KVPool other"}, "support-bundle", "other", "-f", file)
	w.expect(exitFailed, []string{"make the bundle"}, "support-bundle", "cache", "-f", filepath.Join(file, "not-a-directory"))
}

func unpack(t *testing.T, file string) map[string]string {
	t.Helper()
	in, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	packed, err := gzip.NewReader(in)
	if err != nil {
		t.Fatal(err)
	}
	files, archive := map[string]string{}, tar.NewReader(packed)
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		text, readErr := io.ReadAll(archive)
		if err = errors.Join(err, readErr); err != nil {
			t.Fatal(err)
		}
		files[header.Name] = string(text)
	}
}

func TestWordsAreCompleted(t *testing.T) {
	w := newWorld(t)
	w.pool()
	w.node()
	w.expect(exitWell, []string{"cache\n"}, "__complete", "status", "ca")
	w.expect(exitWell, []string{"cache-memory-0\n"}, "__complete", "accept-loss", "")
	w.expect(exitWell, []string{"accept-loss\t"}, "__complete", "acc")
	w.expect(exitWell, []string{`exec kubectl farpool __complete "$@"`}, "kubectl-complete")
	w.expect(exitWell, []string{"bash completion"}, "completion", "bash")
}

func TestEveryCommandHasHelpAndExamples(t *testing.T) {
	s := &session{flags: genericclioptions.NewConfigFlags(true)}
	for _, command := range s.command().Commands() {
		if command.Runnable() && (command.Short == "" || command.Example == "") {
			t.Errorf("%s has no short text or no example", command.Name())
		}
		if flag := command.Flags().Lookup("timeout"); flag != nil && flag.DefValue == "0s" {
			t.Errorf("%s waits without end", command.Name())
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

// Package cluster reaches into a kind cluster from the host: its API, its pods' ports, and the processes behind them, which it can
// kill as a fault would.
package cluster

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	farpoolv1alpha1 "farpool.dev/farpool/api/v1alpha1"
)

// Label is on everything that the tests make in a cluster for themselves.
const Label = "farpool.dev/e2e"

// Cluster is a kind cluster whose node containers the local Docker runs.
type Cluster struct {
	client.Client
	Core       kubernetes.Interface
	Kubeconfig string
}

// Open connects to the cluster of a kubeconfig.
func Open(kubeconfig string) (*Cluster, error) {
	if kubeconfig == "" {
		return nil, errors.New("KUBECONFIG names no cluster: run make e2e, which makes one, or set it")
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", kubeconfig, err)
	}
	config.QPS, config.Burst, config.Timeout = 100, 200, 30*time.Second
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), farpoolv1alpha1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	c, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, err
	}
	core, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return &Cluster{Client: c, Core: core, Kubeconfig: kubeconfig}, nil
}

// Run runs a program and returns what it printed; the error carries what it said.
func Run(ctx context.Context, env []string, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.WaitDelay = 5 * time.Second
	cmd.Env = append(os.Environ(), env...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%s %s: %w: %s%s", name, strings.Join(shown(args), " "), err, stderr.String(), stdout.String())
	}
	return stdout.String(), nil
}

// shown are arguments without the password among them.
func shown(args []string) []string {
	out := append([]string(nil), args...)
	for i := range out {
		if i > 0 && out[i-1] == "-a" {
			out[i] = "(password)"
		}
	}
	return out
}

// Helm runs Helm against the cluster. It is taken from the tools that the repository's scripts build, or from the PATH.
func (c *Cluster) Helm(ctx context.Context, args ...string) (string, error) {
	name := "helm"
	cache := os.Getenv("FARPOOL_CACHE")
	if home, err := os.UserHomeDir(); cache == "" && err == nil {
		cache = filepath.Join(home, ".cache", "farpool")
	}
	if built := filepath.Join(cache, "bin", "helm"); exec.Command(built, "version").Run() == nil {
		name = built
	}
	return Run(ctx, []string{"KUBECONFIG=" + c.Kubeconfig}, name, args...)
}

// Kubectl runs kubectl against the cluster with some input.
func (c *Cluster) Kubectl(ctx context.Context, stdin string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "kubectl", args...)
	cmd.WaitDelay = 5 * time.Second
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.Kubeconfig)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// OnNode runs a shell script in a node's container.
func (c *Cluster) OnNode(ctx context.Context, node, script string) (string, error) {
	return Run(ctx, nil, "docker", "exec", node, "sh", "-c", script)
}

// NodeAddress is a node's address as seen from the host.
func (c *Cluster) NodeAddress(ctx context.Context, node string) (string, error) {
	n, err := c.Core.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	for _, a := range n.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			return a.Address, nil
		}
	}
	return "", fmt.Errorf("node %s has no internal address", node)
}

// Nodes are the names of all nodes, which are their containers' names too.
func (c *Cluster) Nodes(ctx context.Context) ([]string, error) {
	nodes, err := c.Core.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	var names []string
	for _, n := range nodes.Items {
		names = append(names, n.Name)
	}
	return names, nil
}

// ExposePod makes a port of one pod reachable from the host and returns its address there. What is made belongs to the pod's
// namespace and needs no selector, so that exactly this pod is meant, ready or not.
func (c *Cluster) ExposePod(ctx context.Context, pod *corev1.Pod, port int32) (string, error) {
	name := fmt.Sprintf("%s-%d", pod.Name, port)
	if len(name) > 63 {
		name = "e2e-" + name[len(name)-55:]
	}
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: pod.Namespace, Labels: map[string]string{Label: "true"}},
		Spec: corev1.ServiceSpec{
			Type:  corev1.ServiceTypeNodePort,
			Ports: []corev1.ServicePort{{Name: "port", Port: port, TargetPort: intstr.FromInt32(port)}},
		},
	}
	if err := c.Create(ctx, service); apierrors.IsAlreadyExists(err) {
		if err := c.Get(ctx, client.ObjectKeyFromObject(service), service); err != nil {
			return "", err
		}
	} else if err != nil {
		return "", err
	}
	ready, portName := true, "port"
	addresses := discoveryv1.AddressTypeIPv4
	if strings.Contains(pod.Status.PodIP, ":") {
		addresses = discoveryv1.AddressTypeIPv6
	}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: pod.Namespace,
			Labels: map[string]string{discoveryv1.LabelServiceName: name, discoveryv1.LabelManagedBy: "e2e.farpool.dev", Label: "true"},
		},
		AddressType: addresses,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{pod.Status.PodIP}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}},
		Ports:       []discoveryv1.EndpointPort{{Name: &portName, Port: &port}},
	}
	if err := c.Create(ctx, slice); err != nil && !apierrors.IsAlreadyExists(err) {
		return "", err
	}
	return c.reachable(ctx, pod.Spec.NodeName, service)
}

// ExposeService makes a Service of the pool reachable from the host through a second one with the same selector.
func (c *Cluster) ExposeService(ctx context.Context, namespace, name string) (string, error) {
	var of corev1.Service
	if err := c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &of); err != nil {
		return "", err
	}
	if len(of.Spec.Ports) == 0 || len(of.Spec.Selector) == 0 {
		return "", fmt.Errorf("service %s/%s has no ports or no selector", namespace, name)
	}
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name + "-e2e", Namespace: namespace, Labels: map[string]string{Label: "true"}},
		Spec: corev1.ServiceSpec{
			Type:     corev1.ServiceTypeNodePort,
			Selector: of.Spec.Selector,
			Ports:    []corev1.ServicePort{{Name: "port", Port: of.Spec.Ports[0].Port, TargetPort: of.Spec.Ports[0].TargetPort}},
		},
	}
	if err := c.Create(ctx, service); apierrors.IsAlreadyExists(err) {
		if err := c.Get(ctx, client.ObjectKeyFromObject(service), service); err != nil {
			return "", err
		}
	} else if err != nil {
		return "", err
	}
	nodes, err := c.Core.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", err
	}
	return c.reachable(ctx, nodes.Items[0].Name, service)
}

// reachable waits until a node forwards a Service's port.
func (c *Cluster) reachable(ctx context.Context, node string, service *corev1.Service) (string, error) {
	host, err := c.NodeAddress(ctx, node)
	if err != nil {
		return "", err
	}
	address := net.JoinHostPort(host, strconv.Itoa(int(service.Spec.Ports[0].NodePort)))
	ctx, cancel := context.WithTimeout(ctx, 60*time.Second)
	defer cancel()
	for {
		var dialer net.Dialer
		connection, err := dialer.DialContext(ctx, "tcp", address)
		if err == nil {
			return address, connection.Close()
		}
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("%s of service %s/%s is not reachable from here within a minute: %w; the suite needs a kind cluster on this machine's own Docker",
				address, service.Namespace, service.Name, err)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// Kills returns how often the containers of a pod have begun anew, all of these times because something killed them from outside: the kubelet, or a test. An error says
// which one has ended of itself or for want of memory, as far as Kubernetes remembers: the last time.
func Kills(pod *corev1.Pod) (int32, error) {
	const told, killed, terminated = 0, 128 + 9, 128 + 15 // processes of a pool exit with 0 when they are told to end, and not otherwise
	var count int32
	for _, container := range pod.Status.ContainerStatuses {
		count += container.RestartCount
		last := cmp.Or(container.State.Terminated, container.LastTerminationState.Terminated)
		if last == nil || last.Reason != "OOMKilled" && slices.Contains([]int32{told, killed, terminated}, last.ExitCode) {
			continue
		}
		return 0, fmt.Errorf("container %s of pod %s/%s ended of itself: %s, exit code %d: see its log with kubectl logs --previous", container.Name, pod.Namespace, pod.Name, last.Reason, last.ExitCode)
	}
	return count, nil
}

// Kill ends the processes of a pod's containers with SIGKILL, as the kernel would when memory runs out, and says how many there were.
func (c *Cluster) Kill(ctx context.Context, pod *corev1.Pod, process string) (int, error) {
	return c.Signal(ctx, pod, process, "KILL")
}

// Signal sends a signal to the processes of a pod's containers from outside, and says how many there were. It needs no API server.
// The name is a process's as the kernel has it, up to 15 characters.
func (c *Cluster) Signal(ctx context.Context, pod *corev1.Pod, process, signal string) (int, error) {
	return signalFrom(pod, process, signal, func(script string) (string, error) { return c.OnNode(ctx, pod.Spec.NodeName, script) })
}

// SignalFrom does the same from a pod that sees the processes of the other's Kubernetes node, where that is no container of this machine.
func (c *Cluster) SignalFrom(ctx context.Context, from, pod *corev1.Pod, process, signal string) error {
	_, err := signalFrom(pod, process, signal, func(script string) (string, error) { return c.InPod(ctx, from, script) })
	return err
}

// InPod runs a shell script in a pod's first container.
func (c *Cluster) InPod(ctx context.Context, pod *corev1.Pod, script string) (string, error) {
	return Run(ctx, []string{"KUBECONFIG=" + c.Kubeconfig}, "kubectl", "-n", pod.Namespace, "exec", pod.Name, "-c", pod.Spec.Containers[0].Name, "--", "sh", "-c", script)
}

func signalFrom(pod *corev1.Pod, process, signal string, run func(script string) (string, error)) (int, error) {
	if len(process) > 15 {
		process = process[:15]
	}
	uid := string(pod.UID)
	// The control group of a process names its pod, with underscores where systemd manages the groups.
	script := fmt.Sprintf(`n=0; for p in /proc/[0-9]*; do
  [ "$(cat $p/comm 2>/dev/null)" = %q ] || continue
  grep -q -e %s -e %s $p/cgroup 2>/dev/null || continue
  kill -%s ${p#/proc/} && n=$((n+1))
done; echo $n`, process, uid, strings.ReplaceAll(uid, "-", "_"), signal)
	out, err := run(script)
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(strings.TrimSpace(out))
	if err != nil || n == 0 {
		return 0, fmt.Errorf("no process %s of pod %s/%s runs on node %s: %q", process, pod.Namespace, pod.Name, pod.Spec.NodeName, out)
	}
	return n, nil
}

// tablesOf names the program that filters packets of an address's family.
func tablesOf(address string) string {
	if strings.Contains(address, ":") {
		return "ip6tables"
	}
	return "iptables"
}

// Cut takes a pod off the network: nothing passes between it and other pods or nodes. Its own node, and so the kubelet, still reaches
// it. Mend undoes that, and does nothing to a pod that was not cut off.
func (c *Cluster) Cut(ctx context.Context, pod *corev1.Pod) error {
	ip := pod.Status.PodIP
	_, err := c.OnNode(ctx, pod.Spec.NodeName, fmt.Sprintf("%[1]s -w -I FORWARD -s %[2]s -j DROP && %[1]s -w -I FORWARD -d %[2]s -j DROP", tablesOf(ip), ip))
	return err
}

// Mend undoes Cut.
func (c *Cluster) Mend(ctx context.Context, pod *corev1.Pod) error {
	ip := pod.Status.PodIP
	_, err := c.OnNode(ctx, pod.Spec.NodeName, fmt.Sprintf(
		"while %[1]s -w -D FORWARD -s %[2]s -j DROP 2>/dev/null; do :; done; while %[1]s -w -D FORWARD -d %[2]s -j DROP 2>/dev/null; do :; done", tablesOf(ip), ip))
	return err
}

// CopyVolumeFile copies a file of a pod's emptyDir to this machine.
func (c *Cluster) CopyVolumeFile(ctx context.Context, pod *corev1.Pod, volume, name, to string) error {
	file, err := os.Create(to)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	cmd := exec.CommandContext(ctx, "docker", "exec", pod.Spec.NodeName, "cat",
		fmt.Sprintf("/var/lib/kubelet/pods/%s/volumes/kubernetes.io~empty-dir/%s/%s", pod.UID, volume, name))
	var said bytes.Buffer
	cmd.WaitDelay, cmd.Stdout, cmd.Stderr = 5*time.Second, file, &said
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("copying %s of pod %s/%s: %w: %s", name, pod.Namespace, pod.Name, err, said.String())
	}
	return file.Close()
}

const (
	manifest = "/etc/kubernetes/manifests/kube-apiserver.yaml"
	aside    = "/etc/kubernetes/kube-apiserver.stopped"
)

// ControlPlane is the node that runs the API server. Ask before the API server is stopped.
func (c *Cluster) ControlPlane(ctx context.Context) (string, error) {
	nodes, err := c.Core.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: "node-role.kubernetes.io/control-plane"})
	if err != nil {
		return "", err
	}
	if len(nodes.Items) != 1 {
		return "", fmt.Errorf("the cluster has %d control-plane nodes, want 1", len(nodes.Items))
	}
	return nodes.Items[0].Name, nil
}

// StopAPIServer takes the API server's manifest away from the kubelet and returns when nothing answers any more.
func (c *Cluster) StopAPIServer(ctx context.Context, controlPlane string) error {
	if _, err := c.OnNode(ctx, controlPlane, "mv "+manifest+" "+aside); err != nil {
		return err
	}
	return c.untilAPI(ctx, 2*time.Minute, false)
}

// StartAPIServer undoes StopAPIServer and returns when the API server answers. It does nothing if it was not stopped.
func (c *Cluster) StartAPIServer(ctx context.Context, controlPlane string) error {
	if _, err := c.OnNode(ctx, controlPlane, "[ ! -e "+aside+" ] || mv "+aside+" "+manifest); err != nil {
		return err
	}
	return c.untilAPI(ctx, 3*time.Minute, true)
}

// APIServerAnswers says whether the API server is there.
func (c *Cluster) APIServerAnswers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	return c.Core.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error() == nil
}

func (c *Cluster) untilAPI(ctx context.Context, limit time.Duration, up bool) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for same := 0; ; {
		if c.APIServerAnswers(ctx) == up {
			same++
		} else {
			same = 0
		}
		if same == 3 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("within %s the API server did not reach the state up=%t", limit, up)
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// Fetch reads a path of a pod's HTTP port through the API server.
func (c *Cluster) Fetch(ctx context.Context, namespace, pod string, port int, path string) (string, error) {
	data, err := c.Core.CoreV1().RESTClient().Get().Namespace(namespace).Resource("pods").
		Name(fmt.Sprintf("%s:%d", pod, port)).SubResource("proxy").Suffix(path).DoRaw(ctx)
	return string(data), err
}

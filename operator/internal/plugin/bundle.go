// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"farpool.dev/farpool/api/v1alpha1"
)

// lastApplied is a copy of an object that kubectl apply keeps in it; of a Secret it holds the data.
const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// operatorLabels are on the operator's pods, and on the injector's.
var operatorLabels = []client.MatchingLabels{{"app.kubernetes.io/name": "farpool-operator"}, {"app.kubernetes.io/name": "farpool-injector"}}

func (s *session) bundleCommand() *cobra.Command {
	file, system, logLines, timeout := "", "farpool-system", int64(20000), 5*time.Minute
	command := &cobra.Command{
		Use:   "support-bundle POOL",
		Short: "Collect what a bug report needs into one file",
		Long: `Collect what a bug report needs into one file: the pool's objects, events, logs, metrics and maps, and the operator's logs.

No data of Secrets is in it: the command reads none of their values into the file, only their names, types and keys. Logs and metrics hold no keys or values of
the pool. What could not be read is named in errors.txt.`,
		Example: `  kubectl farpool support-bundle cache
  kubectl farpool support-bundle cache -f report.tar.gz --operator-namespace farpool-system`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: s.names(&v1alpha1.KVPoolList{}),
	}
	command.Flags().StringVarP(&file, "file", "f", "", "where to write it; empty: POOL-support.tar.gz")
	command.Flags().StringVar(&system, "operator-namespace", system, "namespace of the operator")
	command.Flags().Int64Var(&logLines, "log-lines", logLines, "the last so many lines of each log")
	command.Flags().DurationVar(&timeout, "timeout", timeout, "how long to collect")
	command.RunE = func(command *cobra.Command, arguments []string) error {
		c, err := s.connect()
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(command.Context(), timeout)
		defer cancel()
		name := arguments[0]
		if file == "" {
			file = name + "-support.tar.gz"
		}
		return s.supportBundle(ctx, c, name, system, file, logLines)
	}
	return command
}

func (s *session) supportBundle(ctx context.Context, c *cluster, name, system, file string, logLines int64) error {
	if _, err := c.pool(ctx, name); err != nil {
		return err
	}
	// Under another name until it is whole.
	out, err := os.OpenFile(file+".part", os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("make the bundle: %w", err)
	}
	b := &bundle{cluster: c, pool: name, logLines: logLines, at: time.Now().UTC(), prefix: name + "-support/"}
	err = b.write(ctx, s.version, system, out)
	if err = errors.Join(err, out.Close()); err == nil {
		err = os.Rename(file+".part", file)
	}
	if err != nil {
		return fmt.Errorf("write the bundle to %s: %w", file, errors.Join(err, os.Remove(file+".part")))
	}
	s.say("%s has %d files.", file, b.files)
	if len(b.missing) > 0 {
		s.warn("%d things could not be read; errors.txt in it says which.", len(b.missing))
	}
	return nil
}

// bundle is an archive that is being written.
type bundle struct {
	*cluster
	pool     string
	logLines int64
	at       time.Time
	prefix   string
	tar      *tar.Writer
	files    int
	// missing is what could not be read.
	missing []string
}

func (b *bundle) write(ctx context.Context, version, system string, out io.Writer) error {
	packed := gzip.NewWriter(out)
	b.tar = tar.NewWriter(packed)
	steps := []func() error{
		func() error {
			return b.add("version.txt", "kubectl-farpool "+version+"\ncollected "+b.at.Format(time.RFC3339)+"\n")
		},
		func() error { return b.addStatus(ctx) },
		func() error { return b.addObjects(ctx) },
		func() error { return b.addSecrets(ctx) },
		func() error { return b.addEvents(ctx) },
		func() error { return b.addPods(ctx) },
		func() error { return b.addOperator(ctx, system) },
		func() error { return b.add("errors.txt", strings.Join(b.missing, "\n")+"\n") },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return errors.Join(b.tar.Close(), packed.Close())
}

func (b *bundle) add(name, text string) error {
	b.files++
	header := &tar.Header{Name: b.prefix + name, Mode: 0o644, Size: int64(len(text)), ModTime: b.at}
	if err := b.tar.WriteHeader(header); err != nil {
		return err
	}
	_, err := io.WriteString(b.tar, text)
	return err
}

func (b *bundle) lacks(what string, err error) {
	b.missing = append(b.missing, what+": "+err.Error())
}

func (b *bundle) addStatus(ctx context.Context) error {
	states, err := b.states(ctx, b.pool)
	if err != nil {
		b.lacks("status", err)
		return nil
	}
	var text bytes.Buffer
	for i := range states {
		show(&text, &states[i], judge(&states[i]))
	}
	if err := b.add("status.txt", text.String()); err != nil {
		return err
	}
	m, err := b.shardMap(ctx, b.pool, 0)
	if err != nil {
		b.lacks("map", err)
		return nil
	}
	text.Reset()
	if err := showMap(&text, m); err != nil {
		b.lacks("map", err)
	}
	return b.add("map.txt", text.String())
}

// addObjects writes what belongs to the pool, and its Kubernetes nodes.
func (b *bundle) addObjects(ctx context.Context) error {
	own := func(object client.Object) bool {
		switch o := object.(type) {
		case *v1alpha1.KVPool:
			return o.Name == b.pool
		case *v1alpha1.MemoryNode:
			return o.Spec.PoolName == b.pool
		case *v1alpha1.ResizeOperation:
			return o.Spec.PoolName == b.pool
		case *v1alpha1.ShardMap:
			return o.Spec.PoolName == b.pool
		case *v1alpha1.RepairLease:
			return o.Spec.PoolRef.Name == b.pool
		}
		return object.GetLabels()[v1alpha1.LabelPool] == b.pool
	}
	kinds := []struct {
		name string
		list client.ObjectList
		keep func(client.Object) bool
	}{
		{"kvpools", &v1alpha1.KVPoolList{}, own},
		{"memorynodepools", &v1alpha1.MemoryNodePoolList{}, own},
		{"computeshardpools", &v1alpha1.ComputeShardPoolList{}, own},
		{"memorynodes", &v1alpha1.MemoryNodeList{}, own},
		{"shardmaps", &v1alpha1.ShardMapList{}, own},
		{"resizeoperations", &v1alpha1.ResizeOperationList{}, own},
		{"repairleases", &v1alpha1.RepairLeaseList{}, own},
		{"pods", &corev1.PodList{}, own},
		{"deployments", &appsv1.DeploymentList{}, own},
		{"replicasets", &appsv1.ReplicaSetList{}, own},
		{"services", &corev1.ServiceList{}, own},
		{"endpointslices", &discoveryv1.EndpointSliceList{}, own},
		{"configmaps", &corev1.ConfigMapList{}, own},
		{"networkpolicies", &networkingv1.NetworkPolicyList{}, own},
		{"poddisruptionbudgets", &policyv1.PodDisruptionBudgetList{}, own},
	}
	for _, kind := range kinds {
		if err := b.addList(ctx, "objects/"+kind.name+".yaml", kind.list, kind.keep, client.InNamespace(b.namespace)); err != nil {
			return err
		}
	}
	return b.addList(ctx, "objects/nodes.yaml", &corev1.NodeList{}, func(client.Object) bool { return true })
}

func (b *bundle) addList(ctx context.Context, name string, list client.ObjectList, keep func(client.Object) bool, options ...client.ListOption) error {
	if err := b.List(ctx, list, options...); err != nil {
		b.lacks(name, err)
		return nil
	}
	var text bytes.Buffer
	err := meta.EachListItem(list, func(item runtime.Object) error {
		object, ok := item.(client.Object)
		if !ok || !keep(object) {
			return nil
		}
		object.SetManagedFields(nil)
		annotations := object.GetAnnotations()
		delete(annotations, lastApplied)
		object.SetAnnotations(annotations)
		one, err := yaml.Marshal(object)
		fmt.Fprintf(&text, "---\n%s", one)
		return err
	})
	if err != nil {
		return err
	}
	return b.add(name, text.String())
}

// addSecrets writes which Secrets the pool has, and with which keys: never a value, and no annotation, as one may be a copy of the values.
func (b *bundle) addSecrets(ctx context.Context) error {
	var secrets corev1.SecretList
	if err := b.List(ctx, &secrets, client.InNamespace(b.namespace), client.MatchingLabels{v1alpha1.LabelPool: b.pool}); err != nil {
		b.lacks("names of Secrets", err)
		return nil
	}
	var text strings.Builder
	for i := range secrets.Items {
		secret := &secrets.Items[i]
		var keys []string
		for key, value := range secret.Data {
			keys = append(keys, fmt.Sprintf("%s (%d bytes)", key, len(value)))
		}
		slices.Sort(keys)
		fmt.Fprintf(&text, "%s type %s: %s\n", secret.Name, secret.Type, strings.Join(keys, ", "))
	}
	return b.add("secrets.txt", text.String())
}

// addEvents writes events about objects whose names begin with the pool's, oldest first.
func (b *bundle) addEvents(ctx context.Context) error {
	var events eventsv1.EventList
	if err := b.List(ctx, &events, client.InNamespace(b.namespace)); err != nil {
		b.lacks("events", err)
		return nil
	}
	when := func(e *eventsv1.Event) time.Time {
		if !e.EventTime.IsZero() {
			return e.EventTime.Time
		}
		return e.DeprecatedLastTimestamp.Time
	}
	slices.SortStableFunc(events.Items, func(a, b eventsv1.Event) int { return when(&a).Compare(when(&b)) })
	var text strings.Builder
	for i := range events.Items {
		e := &events.Items[i]
		if e.Regarding.Name == b.pool || strings.HasPrefix(e.Regarding.Name, b.pool+"-") {
			fmt.Fprintf(&text, "%s %s %s/%s %s: %s\n", when(e).UTC().Format(time.RFC3339), e.Type, strings.ToLower(e.Regarding.Kind), e.Regarding.Name, e.Reason, e.Note)
		}
	}
	return b.add("events.txt", text.String())
}

// addPods writes logs and metrics of the pool's processes.
func (b *bundle) addPods(ctx context.Context) error {
	pods, err := b.pods(ctx, b.pool, "")
	if err != nil {
		b.lacks("pods", err)
		return nil
	}
	for i := range pods {
		if err := b.addLogs(ctx, &pods[i]); err != nil {
			return err
		}
		if !running(&pods[i]) {
			continue
		}
		text, err := b.core.CoreV1().Pods(b.namespace).ProxyGet("http", pods[i].Name, "7402", "metrics", nil).DoRaw(ctx)
		if err != nil {
			b.lacks("metrics of pod "+pods[i].Name, err)
			continue
		}
		if err := b.add("metrics/"+pods[i].Name+".txt", string(text)); err != nil {
			return err
		}
	}
	return nil
}

func (b *bundle) addLogs(ctx context.Context, pod *corev1.Pod) error {
	for _, status := range append(slices.Clone(pod.Status.InitContainerStatuses), pod.Status.ContainerStatuses...) {
		for _, previous := range []bool{false, true} {
			if previous && status.RestartCount == 0 {
				continue
			}
			name := fmt.Sprintf("logs/%s/%s.log", pod.Name, status.Name)
			if previous {
				name = fmt.Sprintf("logs/%s/%s.previous.log", pod.Name, status.Name)
			}
			text, err := b.core.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{
				Container: status.Name, Previous: previous, Timestamps: true, TailLines: &b.logLines,
			}).DoRaw(ctx)
			if err != nil {
				b.lacks(name, err)
				continue
			}
			if err := b.add(name, string(text)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (b *bundle) addOperator(ctx context.Context, system string) error {
	for _, labels := range operatorLabels {
		var pods corev1.PodList
		if err := b.List(ctx, &pods, client.InNamespace(system), labels); err != nil {
			b.lacks("pods of the operator in namespace "+system, err)
			continue
		}
		for i := range pods.Items {
			if err := b.addLogs(ctx, &pods.Items[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

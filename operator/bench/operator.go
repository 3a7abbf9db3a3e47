// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// operatorProcess is the operator as a process of its own.
type operatorProcess struct {
	command *exec.Cmd
	metrics string
	pprof   string
	done    chan error
}

// buildOperator builds the binary into a directory.
func buildOperator(ctx context.Context, root, directory string) (string, error) {
	binary := filepath.Join(directory, "farpool-operator")
	command := exec.CommandContext(ctx, "go", "build", "-o", binary, "./operator/cmd/manager")
	command.Dir = root
	if output, err := command.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the operator: %w\n%s", err, output)
	}
	return binary, nil
}

// startOperator starts the operator with the access that its role gives, and waits until it is ready.
func (c *cluster) startOperator(ctx context.Context, binary, directory string, arguments ...string) (*operatorProcess, error) {
	user, err := c.environment.AddUser(envtest.User{Name: operatorUser}, c.config)
	if err != nil {
		return nil, err
	}
	kubeconfig, err := user.KubeConfig()
	if err != nil {
		return nil, err
	}
	path := filepath.Join(directory, "kubeconfig")
	if err := os.WriteFile(path, kubeconfig, 0o600); err != nil {
		return nil, err
	}
	output, err := os.OpenFile(filepath.Join(directory, "operator.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	ip, err := c.network.next()
	if err != nil {
		return nil, err
	}
	o := &operatorProcess{metrics: "http://" + ip + ":8080/metrics", pprof: "http://" + ip + ":8082/debug/pprof/", done: make(chan error, 1)}
	o.command = exec.CommandContext(ctx, binary, append([]string{"--metrics-bind-address=" + ip + ":8080", "--health-probe-bind-address=" + ip + ":8081",
		"--namespace=" + operatorNamespace, "--pprof-bind-address=" + ip + ":8082", "--dataplane-image=farpool/dataplane:bench"}, arguments...)...)
	o.command.Env = append(os.Environ(), "KUBECONFIG="+path)
	o.command.Stdout, o.command.Stderr = output, output
	if err := o.command.Start(); err != nil {
		return nil, errors.Join(err, output.Close())
	}
	go func() {
		o.done <- o.command.Wait()
		_ = output.Close()
	}()
	return o, await(ctx, time.Minute, "the operator", func(ctx context.Context) (string, error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+ip+":8081/readyz", nil)
		if err != nil {
			return "", err
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return "it does not answer", nil
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return response.Status, nil
		}
		return "", nil
	})
}

// stop ends the operator in order, and waits until it has ended.
func (o *operatorProcess) stop() error {
	if err := o.command.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case err := <-o.done:
		return err
	case <-time.After(time.Minute):
		return errors.Join(errors.New("the operator did not end within a minute"), o.command.Process.Kill())
	}
}

// profileWindow is how long one CPU profile lasts.
const profileWindow = 2 * time.Second

// profileCPU starts to profile the operator's processor, window after window, into files of a directory; empty: it does nothing. The returned function ends that
// with the window that is under way. A reader merges the files of a step.
func (o *operatorProcess) profileCPU(ctx context.Context, directory string, number int, step string) (stop func() error) {
	if directory == "" {
		return func() error { return nil }
	}
	ended, result := make(chan struct{}), make(chan error, 1)
	go func() {
		for window := 1; ; window++ {
			select {
			case <-ended:
				result <- nil
				return
			default:
			}
			address := fmt.Sprintf("%sprofile?seconds=%d", o.pprof, int(profileWindow.Seconds()))
			if err := o.keep(ctx, address, directory, number, step, fmt.Sprintf("cpu-%03d.pb.gz", window)); err != nil {
				result <- err
				return
			}
		}
	}()
	return func() error {
		close(ended)
		return <-result
	}
}

// profile writes the operator's metrics, and profiles of its heap and goroutines, as files of a directory; empty: it does nothing.
func (o *operatorProcess) profile(ctx context.Context, directory string, number int, step string) error {
	if directory == "" {
		return nil
	}
	for name, address := range map[string]string{"metrics.txt": o.metrics, "goroutines.pb.gz": o.pprof + "goroutine", "heap.pb.gz": o.pprof + "heap?gc=1"} {
		if err := o.keep(ctx, address, directory, number, step, name); err != nil {
			return err
		}
	}
	return nil
}

// keep writes what the operator answers into a file of a directory, which it makes if there is none.
func (o *operatorProcess) keep(ctx context.Context, address, directory string, number int, step, name string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := os.MkdirAll(directory, 0o755); err != nil {
		return err
	}
	path := filepath.Join(directory, fmt.Sprintf("%d-%s-%s", number, strings.ReplaceAll(step, " ", "-"), name))
	if err := download(ctx, address, path); err != nil {
		return fmt.Errorf("profile the operator: %w", err)
	}
	return nil
}

// download writes what an address answers into a file.
func download(ctx context.Context, address, path string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", address, response.Status)
	}
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, response.Body)
	return errors.Join(err, file.Close())
}

// measurement is what the operator has done since it started, and what it takes now.
type measurement struct {
	at                   time.Time
	reconciles, failures float64
	writes, reads        float64
	cpu                  float64 // seconds
	resident, peak       float64 // bytes
	goroutines           float64
	buckets              map[float64]float64 // reconciles that took so many seconds or less
}

// measure reads the operator's own metrics.
func (o *operatorProcess) measure(ctx context.Context) (*measurement, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, o.metrics, nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, fmt.Errorf("read the operator's metrics: %w", err)
	}
	defer response.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(response.Body)
	if err != nil {
		return nil, fmt.Errorf("read the operator's metrics: %w", err)
	}
	sum := func(name string, keep func(map[string]string) bool) (total float64) {
		for _, metric := range families[name].GetMetric() {
			if keep == nil || keep(labelsOf(metric.GetLabel())) {
				total += metric.GetGauge().GetValue() + metric.GetCounter().GetValue()
			}
		}
		return total
	}
	m := &measurement{at: time.Now(), buckets: map[float64]float64{}}
	m.writes = sum("rest_client_requests_total", func(labels map[string]string) bool { return labels["method"] != http.MethodGet })
	m.reads = sum("rest_client_requests_total", func(labels map[string]string) bool { return labels["method"] == http.MethodGet })
	// Another controller looks at Secrets, which takes hardly any time: it would make reconciles look fast.
	ofPools := func(labels map[string]string) bool { return labels["controller"] == "kvpool" }
	m.reconciles = sum("controller_runtime_reconcile_total", ofPools)
	m.failures = sum("controller_runtime_reconcile_total", func(labels map[string]string) bool { return ofPools(labels) && labels["result"] == "error" })
	m.cpu, m.goroutines = sum("process_cpu_seconds_total", nil), sum("go_goroutines", nil)
	for _, metric := range families["controller_runtime_reconcile_time_seconds"].GetMetric() {
		if !ofPools(labelsOf(metric.GetLabel())) {
			continue
		}
		for _, bucket := range metric.GetHistogram().GetBucket() {
			m.buckets[bucket.GetUpperBound()] += float64(bucket.GetCumulativeCount())
		}
	}
	m.resident, m.peak, err = memoryOf(o.command.Process.Pid)
	return m, err
}

// labelsOf a metric, by name.
func labelsOf[Label interface {
	GetName() string
	GetValue() string
}](list []Label) map[string]string {
	labels := map[string]string{}
	for _, label := range list {
		labels[label.GetName()] = label.GetValue()
	}
	return labels
}

// memoryOf a process, now and at most, in bytes.
func memoryOf(pid int) (resident, peak float64, err error) {
	file, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, 0, err
	}
	defer file.Close()
	lines := bufio.NewScanner(io.LimitReader(file, 1<<20))
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 {
			continue
		}
		kibibytes, err := strconv.ParseFloat(fields[1], 64)
		switch fields[0] {
		case "VmRSS:":
			resident = kibibytes * 1024
		case "VmHWM:":
			peak = kibibytes * 1024
		default:
			continue
		}
		if err != nil {
			return 0, 0, err
		}
	}
	return resident, peak, lines.Err()
}

// since is what happened between an earlier measurement of the same process and this one.
func (m *measurement) since(before *measurement) *measurement {
	difference := *m
	difference.reconciles -= before.reconciles
	difference.failures -= before.failures
	difference.writes -= before.writes
	difference.reads -= before.reads
	difference.cpu -= before.cpu
	difference.buckets = map[float64]float64{}
	for bound, count := range m.buckets {
		difference.buckets[bound] = count - before.buckets[bound]
	}
	return &difference
}

// quantile returns the bound of the bucket that a part of all reconciles lies below, in seconds; infinite beyond the last bucket, 0 without reconciles.
func (m *measurement) quantile(part float64) float64 {
	total := m.buckets[math.Inf(1)]
	if total == 0 {
		return 0
	}
	least := math.Inf(1)
	for bound, count := range m.buckets {
		if count >= part*total && bound < least {
			least = bound
		}
	}
	return least
}

// lookEvery is how often it is looked whether something has come true. Each look reads all of the operator's metrics: with many pools, reading them
// all the time would be a good part of what the operator does.
const lookEvery = 2 * time.Second

// await looks until nothing is waited for, which look names.
func await(ctx context.Context, within time.Duration, what string, look func(context.Context) (string, error)) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for {
		why, err := look(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		if why == "" {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: not within %s: %s", what, within, why)
		case <-ticker.C:
		}
	}
}

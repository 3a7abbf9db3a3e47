// SPDX-License-Identifier: Apache-2.0

// Package plugin holds the commands of kubectl farpool. Each reads objects of the API server, and changes only what its help says. Decisions about pools stay
// with the operator: a command writes what a person has decided, and reports what came of it.
package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"farpool.dev/farpool/api/v1alpha1"
)

// What a command ends with.
const (
	exitWell = 0
	// exitWrong: what the command looked at needs a person.
	exitWrong = 1
	// exitFailed: the command could not do what it was asked for.
	exitFailed = 2
)

// verdict is an exit status without an error: the command has printed what it means.
type verdict int

func (v verdict) Error() string { return fmt.Sprintf("exit status %d", int(v)) }

// requestTimeout bounds each request to the API server.
const requestTimeout = 30 * time.Second

// cluster is what commands reach a cluster by.
type cluster struct {
	client.Client
	core      kubernetes.Interface
	run       runner
	namespace string
	// pause lies between two looks of a command that waits.
	pause time.Duration
}

// session is what all commands share.
type session struct {
	genericiooptions.IOStreams
	version string
	flags   *genericclioptions.ConfigFlags
	// connect opens the cluster that the flags name.
	connect func() (*cluster, error)
}

// Main runs the command line and returns the exit status: 0, 1 if something needs a person, 2 after an error.
func Main(ctx context.Context, version string, streams genericiooptions.IOStreams, arguments []string) int {
	s := &session{IOStreams: streams, version: version, flags: genericclioptions.NewConfigFlags(true)}
	s.connect = s.open
	return s.main(ctx, arguments)
}

func (s *session) main(ctx context.Context, arguments []string) int {
	root := s.command()
	root.SetArgs(arguments)
	root.SetIn(s.In)
	root.SetOut(s.Out)
	root.SetErr(s.ErrOut)
	err := root.ExecuteContext(ctx)
	var v verdict
	switch {
	case err == nil:
		return exitWell
	case errors.As(err, &v):
		return int(v)
	}
	s.warn("error: %v", err)
	return exitFailed
}

func (s *session) command() *cobra.Command {
	root := &cobra.Command{
		Use:   "kubectl-farpool",
		Short: "Look after farpool's pools",
		Long: `Look after farpool's pools.

Commands end with 0 if all is well, with 1 if something needs a person, and with 2 if they could not do what they were asked for.`,
		Version:       s.version,
		SilenceUsage:  true,
		SilenceErrors: true,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl farpool"},
	}
	s.flags.AddFlags(root.PersistentFlags())
	root.AddCommand(s.statusCommand(), s.mapCommand(), s.resizeCommand(), s.acceptLossCommand(), s.giveUpCommand(), s.beginEmptyCommand(), s.deleteCommand(),
		s.rotatePasswordCommand(), s.upgradeCommand(), s.doctorCommand(), s.fsckCommand(), s.bundleCommand(), s.completeCommand())
	return root
}

// open connects to the cluster of the flags, or of the kubeconfig that kubectl would take.
func (s *session) open() (*cluster, error) {
	config, err := s.flags.ToRESTConfig()
	if err != nil {
		return nil, fmt.Errorf("find the cluster: %w: name one with --kubeconfig, --context or --server", err)
	}
	if config.Timeout == 0 {
		config.Timeout = requestTimeout
	}
	namespace, _, err := s.flags.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return nil, fmt.Errorf("find the namespace: %w: name one with --namespace", err)
	}
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	objects, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", config.Host, err)
	}
	core, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", config.Host, err)
	}
	return &cluster{Client: objects, core: core, run: remote{config: config, core: core}, namespace: namespace, pause: time.Second}, nil
}

func newScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	return scheme, errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme))
}

func (s *session) say(format string, values ...any)  { say(s.Out, format, values...) }
func (s *session) warn(format string, values ...any) { say(s.ErrOut, format, values...) }

// say prints a line. A terminal that does not take it changes nothing.
func say(out io.Writer, format string, values ...any) { fmt.Fprintf(out, format+"\n", values...) }

// pool reads a KVPool of the namespace.
func (c *cluster) pool(ctx context.Context, name string) (*v1alpha1.KVPool, error) {
	pool := &v1alpha1.KVPool{}
	return pool, c.read(ctx, "KVPool", name, pool)
}

// read reads an object of the namespace.
func (c *cluster) read(ctx context.Context, kind, name string, object client.Object) error {
	err := c.Get(ctx, client.ObjectKey{Namespace: c.namespace, Name: name}, object)
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("namespace %s has no %s %s: name another namespace with -n, or list what there is with kubectl get kvp,mn,resize -A", c.namespace, kind, name)
	case err != nil:
		return fmt.Errorf("read %s %s/%s: %w", kind, c.namespace, name, err)
	}
	return nil
}

// merge sends a JSON merge patch. The object that it was made from must not have changed since.
func (c *cluster) merge(ctx context.Context, kind string, object, before client.Object) error {
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := c.Patch(ctx, object, patch); err != nil {
		if apierrors.IsConflict(err) {
			return fmt.Errorf("%s %s/%s has changed meanwhile: look at it, and give the command again", kind, c.namespace, object.GetName())
		}
		return fmt.Errorf("change %s %s/%s: %w", kind, c.namespace, object.GetName(), err)
	}
	return nil
}

// until looks at something until it is done, or the time is up. The look returns what it waits for. It is repeated if the API server did not answer.
func (c *cluster) until(ctx context.Context, timeout time.Duration, look func(context.Context) (waitsFor string, done bool, err error)) error {
	end := time.NewTimer(timeout)
	defer end.Stop()
	for {
		waitsFor, done, err := look(ctx)
		switch {
		case err != nil && !passes(err):
			return err
		case err != nil:
			waitsFor = err.Error()
		case done:
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-end.C:
			return fmt.Errorf("it is not over after %s: %s", timeout, waitsFor)
		case <-time.After(c.pause):
		}
	}
}

// passes says whether the API server was away or busy, so that the same request may be answered soon.
func passes(err error) bool {
	var network net.Error
	return errors.As(err, &network) || errors.Is(err, io.EOF) || apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err) || apierrors.IsTooManyRequests(err) ||
		apierrors.IsServiceUnavailable(err) || apierrors.IsInternalError(err)
}

// confirm asks for the name of what is about to be lost, unless yes is set.
func (s *session) confirm(yes bool, name string) error {
	if yes {
		return nil
	}
	fmt.Fprintf(s.ErrOut, "Type %s to go on: ", name)
	var typed string
	if _, err := fmt.Fscanln(s.In, &typed); err != nil || typed != name {
		return fmt.Errorf("%q is not %s: nothing was changed; to go on without being asked, add --yes", typed, name)
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

//go:build e2e

// Package e2e tests farpool on a kind cluster as its users meet it: installed with Helm, reached over the Redis protocol with an
// unchanged driver and unchanged tools, and hurt as clusters hurt. It needs KUBECONFIG, and the images loaded into the cluster.
//
// Specs labelled "rdma" take a cluster whose nodes offer an RDMA resource, of any kind: make e2e-softroce makes one. With
// E2E_RDMA_RESOURCE, E2E_IMAGE_TAG and E2E_HELM_ARGS (what the chart is installed with beside the tag) they run on others; where they
// run, nodes' addresses have to be reachable. Specs that are labelled "policies" as well need a cluster that enforces NetworkPolicies.
//
// With the label filter "short" the same things are done in smaller numbers, and what needs long waits is left out. "wide" are specs of
// these that do for another protocol, or in other circumstances, what another spec does: the gate leaves them to make test-all.
package e2e

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"farpool.dev/farpool/e2e/cluster"
)

const (
	release         = "farpool"
	systemNamespace = "farpool-system"
	operatorName    = "farpool-operator"
)

var kind *cluster.Cluster

func TestEndToEnd(t *testing.T) {
	RegisterFailHandler(Fail)
	SetDefaultEventuallyTimeout(patience)
	SetDefaultEventuallyPollingInterval(500 * time.Millisecond)
	EnforceDefaultTimeoutsWhenUsingContexts()
	// Ginkgo would end after an hour, whatever go test was given. What it says in the end takes its time, too.
	suite, reporter := GinkgoConfiguration()
	if end, set := t.Deadline(); set {
		suite.Timeout = time.Until(end) - time.Minute
	}
	RunSpecs(t, "farpool on kind", suite, reporter)
}

// short says whether this run keeps its numbers small.
func short() bool { return strings.Contains(GinkgoLabelFilter(), "short") }

// count is a number of things to do in a full or a short run.
func count(full, small int) int {
	if short() {
		return small
	}
	return full
}

// patience is how long a condition may take to come true. Where processors are emulated E2E_PATIENCE says more.
var patience = func() time.Duration {
	if set, err := time.ParseDuration(os.Getenv("E2E_PATIENCE")); err == nil {
		return set
	}
	return 3 * time.Minute
}()

// imageTag is the tag that the images under test were loaded with.
func imageTag() string {
	if tag := os.Getenv("E2E_IMAGE_TAG"); tag != "" {
		return tag
	}
	return "dev"
}

var _ = BeforeSuite(func(ctx SpecContext) {
	var err error
	kind, err = cluster.Open(os.Getenv("KUBECONFIG"))
	Expect(err).NotTo(HaveOccurred())
	// A run that was interrupted may have left pools; the operator is still there to remove them, or comes up to do so.
	install(ctx)
	removeNamespaces(ctx)
}, NodeTimeout(5*time.Minute+patience))

// Groups do not wait for their namespaces to go away, since the namespace controller looks again only after half of the longest grace period of their pods.
var _ = AfterSuite(removeNamespaces, NodeTimeout(5*time.Minute+patience))

// install puts the chart under test into the cluster, or brings a release that is there to it.
func install(ctx context.Context, more ...string) {
	GinkgoHelper()
	By("installing the chart")
	args := append([]string{"upgrade", "--install", release, "../charts/farpool", "--namespace", systemNamespace, "--create-namespace",
		"--reset-values", "--wait", "--timeout", patience.String(),
		"--set", "image.tag=" + imageTag(), "--set", "dataPlane.image.tag=" + imageTag()}, more...)
	args = append(args, strings.Fields(os.Getenv("E2E_HELM_ARGS"))...)
	// On a machine that has just made the cluster the API server may refuse a request in between; Helm does not try again by itself.
	Eventually(func() error {
		_, err := kind.Helm(ctx, args...)
		return err
	}).WithContext(ctx).WithTimeout(patience + time.Minute).WithPolling(5 * time.Second).Should(Succeed())
}

// removeNamespaces deletes every namespace that the suite has made, in this run or another, and waits until they are gone.
func removeNamespaces(ctx context.Context) {
	GinkgoHelper()
	var all corev1.NamespaceList
	Expect(kind.List(ctx, &all, client.MatchingLabels{cluster.Label: "true"})).To(Succeed())
	for _, ns := range all.Items {
		deleteNamespace(ctx, ns.Name)
	}
	for _, ns := range all.Items {
		err := wait.PollUntilContextTimeout(ctx, time.Second, patience-time.Minute, true, func(ctx context.Context) (bool, error) {
			return apierrors.IsNotFound(kind.Get(ctx, client.ObjectKeyFromObject(&ns), &corev1.Namespace{})), nil
		})
		Expect(err).NotTo(HaveOccurred(), "namespace %s does not go away", ns.Name)
	}
}

// namespace makes a namespace for a group of specs; it admits restricted pods alone. When the group ends it begins to go away, with its pools.
func namespace(ctx context.Context, purpose string) string {
	GinkgoHelper()
	return namespaceAt(ctx, purpose, "restricted")
}

// namespaceAt is the same at another level of Pod Security.
func namespaceAt(ctx context.Context, purpose, level string) string {
	GinkgoHelper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		GenerateName: "e2e-" + purpose + "-",
		Labels:       map[string]string{cluster.Label: "true", "pod-security.kubernetes.io/enforce": level},
	}}
	Expect(kind.Create(ctx, ns)).To(Succeed())
	DeferCleanup(func(ctx SpecContext) {
		if CurrentSpecReport().Failed() {
			explain(ctx, ns.Name)
		}
		deleteNamespace(ctx, ns.Name)
	}, NodeTimeout(patience))
	return ns.Name
}

func deleteNamespace(ctx context.Context, name string) {
	GinkgoHelper()
	err := kind.Delete(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	Expect(client.IgnoreNotFound(err)).To(Succeed())
}

// explain prints what a reader of a failed run wants to see of a namespace, and of the operator.
func explain(ctx context.Context, namespace string) {
	for _, args := range [][]string{
		{"-n", namespace, "get", "kvpools,memorynodepools,memorynodes,shardmaps,repairleases,resizeoperations,pods,services", "-o", "wide"},
		{"-n", namespace, "describe", "kvpools,repairleases,resizeoperations"},
		{"-n", namespace, "get", "events", "--sort-by=.lastTimestamp"},
		{"-n", namespace, "logs", "-l", "farpool.dev/component", "--tail=40", "--prefix", "--all-containers"},
		{"-n", namespace, "logs", "-l", "farpool.dev/component", "--tail=40", "--prefix", "--all-containers", "--previous"},
		{"-n", systemNamespace, "logs", "deploy/" + operatorName, "--tail=60"},
	} {
		out, _ := kind.Kubectl(ctx, "", args...)
		_, _ = fmt.Fprintf(GinkgoWriter, "\n--- kubectl %s\n%s", strings.Join(args, " "), out)
	}
}

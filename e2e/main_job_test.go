// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"net"
	"regexp"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	farpoolv1alpha1 "farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/e2e/cluster"
	"farpool.dev/farpool/e2e/workload"
)

const connections = 16

var _ = Describe("The sample pool", Ordered, Label("short"), func() {
	var (
		demo   pool
		target workload.Target
		loaded *workload.Run
		keys   uint32
	)

	BeforeAll(func(ctx SpecContext) {
		demo = apply(ctx, namespace(ctx, "sample"), sample())
	}, NodeTimeout(time.Minute))

	AfterAll(func() {
		if loaded != nil {
			loaded.Close()
		}
	})

	// run makes workers on the pool's shards and checks in the end that nothing failed and the history is one that registers allow.
	run := func(prefix string, work func(*workload.Run)) *workload.Run {
		GinkgoHelper()
		r, err := workload.NewRun(target, connections, prefix, workload.DefaultSizes)
		Expect(err).NotTo(HaveOccurred())
		work(r)
		Expect(r.Errors.Err()).NotTo(HaveOccurred())
		return r
	}

	It("becomes ready", func(ctx SpecContext) {
		demo.ready(ctx)
		got := demo.get(ctx)
		Expect(got.Status.Endpoint).NotTo(BeEmpty())
		Expect(got.Status.ShardMap).NotTo(BeNil())
		for _, pod := range append(demo.shards(ctx), demo.memoryNodes(ctx)...) {
			Expect(pod.Spec.AutomountServiceAccountToken).To(HaveValue(BeFalse()), "pod %s carries a credential for the API", pod.Name)
		}
	}, SpecTimeout(4*time.Minute))

	It("scales its compute shards from 1 to 3", func(ctx SpecContext) {
		demo.scale(ctx, 1)
		memory := demo.memoryNodes(ctx)
		demo.scale(ctx, 3)
		Expect(demo.memoryNodes(ctx)).To(HaveLen(len(memory)))
		for i, pod := range demo.memoryNodes(ctx) {
			Expect(pod.UID).To(Equal(memory[i].UID), "scaling compute shards touched memory node %s", pod.Name)
		}
		target = demo.target(ctx)
		Expect(target.Shards).To(HaveLen(3))
	}, SpecTimeout(4*time.Minute))

	It("takes keys of random size from 16 connections through 3 shards, with overwrites, and gives every one back", func(ctx SpecContext) {
		keys = uint32(count(100_000, 20_000))
		loaded = run("main:", func(r *workload.Run) {
			began := time.Now()
			r.WriteAll(ctx, keys)
			AddReportEntry("writing", fmt.Sprintf("%d keys in %s", keys, time.Since(began).Round(time.Millisecond)))
			Expect(r.Errors.Err()).NotTo(HaveOccurred())
			began = time.Now()
			Expect(r.ReadAll(ctx, keys)).To(Equal(keys))
			AddReportEntry("reading", fmt.Sprintf("%d keys in %s", keys, time.Since(began).Round(time.Millisecond)))
		})
		sum, err := loaded.Check(3 * time.Minute)
		Expect(err).NotTo(HaveOccurred())
		Expect(sum.Unknown).To(BeZero())
		AddReportEntry("history", fmt.Sprintf("%+v", sum))
	}, SpecTimeout(15*time.Minute))

	It("is linearizable for every kind of command on keys that all connections fight over", func(ctx SpecContext) {
		r := run("mixed:", func(r *workload.Run) { r.Mixed(ctx, 48, count(5000, 500), 5*time.Minute) })
		defer r.Close()
		sum, err := r.Check(3 * time.Minute)
		Expect(err).NotTo(HaveOccurred())
		AddReportEntry("history", fmt.Sprintf("%+v", sum))
	}, SpecTimeout(10*time.Minute))

	It("counts INCRs of one key through 3 shards exactly", func(ctx SpecContext) {
		began := time.Now()
		sum, err := workload.Increments(ctx, target, "sum", count(100_000, 5_000), 2)
		Expect(err).NotTo(HaveOccurred())
		AddReportEntry("INCR", fmt.Sprintf("%d in %s", sum, time.Since(began).Round(time.Millisecond)))
	}, SpecTimeout(20*time.Minute))

	It("lets SETNX races have one winner", func(ctx SpecContext) {
		Expect(workload.Races(ctx, target, "race:", count(1000, 100), 12)).To(Succeed())
	}, SpecTimeout(5*time.Minute))

	Context("with Redis' own tools", func() {
		var arguments, environment []string
		BeforeAll(func(ctx SpecContext) {
			address, err := kind.ExposeService(ctx, demo.namespace, demo.name)
			Expect(err).NotTo(HaveOccurred())
			host, port, err := net.SplitHostPort(address)
			Expect(err).NotTo(HaveOccurred())
			arguments = []string{"-h", host, "-p", port}
			environment = []string{"REDISCLI_AUTH=" + demo.password(ctx)}
		}, NodeTimeout(2*time.Minute))

		It("serves redis-cli", func(ctx SpecContext) {
			for _, c := range []struct {
				arguments []string
				want      string
			}{
				{[]string{"ping"}, "PONG\n"},
				{[]string{"set", "greeting", "hello"}, "OK\n"},
				{[]string{"get", "greeting"}, "hello\n"},
				{[]string{"append", "greeting", ", pool"}, "11\n"},
				{[]string{"getrange", "greeting", "0", "4"}, "hello\n"},
				{[]string{"incrby", "counter", "41"}, "41\n"},
				{[]string{"incr", "counter"}, "42\n"},
				{[]string{"mset", "a", "1", "b", "2"}, "OK\n"},
				{[]string{"mget", "a", "b", "none"}, "1\n2\n\n"},
				{[]string{"exists", "a", "b", "none"}, "2\n"},
				{[]string{"del", "a", "b"}, "2\n"},
				{[]string{"type", "greeting"}, "string\n"},
				{[]string{"-3", "hello", "3"}, ""},
				{[]string{"set", "greeting", "x", "nx"}, "\n"},
				{[]string{"set", "session", "x", "ex", "3600"}, "OK\n"},
				{[]string{"persist", "session"}, "1\n"},
				{[]string{"ttl", "session"}, "-1\n"},
				{[]string{"hset", "user", "name", "ada"}, "1\n"},
				{[]string{"hget", "user", "name"}, "ada\n"},
			} {
				out, err := cluster.Run(ctx, environment, "redis-cli", append(append([]string{}, arguments...), c.arguments...)...)
				Expect(err).NotTo(HaveOccurred())
				if c.want != "" {
					Expect(out).To(Equal(c.want), "redis-cli %v", c.arguments)
				}
			}
			out, err := cluster.Run(ctx, environment, "redis-cli", append(append([]string{}, arguments...), "lpush", "l", "v")...)
			Expect(err).NotTo(HaveOccurred())
			Expect(out).To(HavePrefix("ERR unknown command"))
		}, SpecTimeout(2*time.Minute))

		It("refuses a client without the password", func(ctx SpecContext) {
			out, err := cluster.Run(ctx, []string{"REDISCLI_AUTH="}, "redis-cli", append(append([]string{}, arguments...), "get", "greeting")...)
			Expect(err).NotTo(HaveOccurred())
			Expect(out).To(HavePrefix("NOAUTH"))
		}, SpecTimeout(time.Minute))

		It("serves redis-benchmark", func(ctx SpecContext) {
			requests := fmt.Sprint(count(100_000, 10_000))
			more := []string{"-t", "ping,set,get,incr,mset", "-n", requests, "-c", "16", "-r", "10000", "-q", "--csv"}
			if password := demo.password(ctx); password != "" {
				// It takes no password from the environment.
				more = append(more, "-a", password)
			}
			out, err := cluster.Run(ctx, nil, "redis-benchmark", append(append([]string{}, arguments...), more...)...)
			Expect(err).NotTo(HaveOccurred())
			for _, test := range []string{"PING_INLINE", "PING_MBULK", "SET", "GET", "INCR", "MSET"} {
				Expect(out).To(MatchRegexp(`(?m)^"`+test+`[^"]*","[0-9.]+"`), "redis-benchmark printed no result for %s:\n%s", test, out)
			}
			Expect(regexp.MustCompile(`(?i)error|warning: could`).FindString(out)).To(BeEmpty(), out)
			AddReportEntry("redis-benchmark", out)
		}, SpecTimeout(10*time.Minute))
	})

	It("serves through the other shards while one is killed with -9, and the killed one comes back", func(ctx SpecContext) {
		shards := demo.shards(ctx)
		victim := shards[0]
		others, err := workload.NewRun(workload.Target{Shards: target.Shards[1:], Password: target.Password}, 8, "main:", workload.DefaultSizes)
		Expect(err).NotTo(HaveOccurred())
		defer others.Close()
		reader, err := workload.NewRun(workload.Target{Shards: target.Shards[:1], Password: target.Password}, 2, "main:", workload.DefaultSizes)
		Expect(err).NotTo(HaveOccurred())
		defer reader.Close()

		stop := make(chan struct{})
		var all sync.WaitGroup
		// Through the victim nothing is written: its death must cost readers a connection and nobody an answer.
		all.Go(func() { reader.Serve(ctx, keys, false, stop) })
		all.Go(func() { others.Serve(ctx, keys, false, stop) })
		end := sync.OnceFunc(func() { close(stop); all.Wait() })
		defer end()

		kills := count(5, 2)
		for kill := range kills {
			_, err = kind.Kill(ctx, &victim, "farpool-compute-shard")
			Expect(err).NotTo(HaveOccurred())
			Eventually(func(g Gomega) {
				for _, pod := range demo.shards(ctx) {
					if pod.UID == victim.UID {
						g.Expect(pod.Status.ContainerStatuses).To(HaveLen(1))
						g.Expect(pod.Status.ContainerStatuses[0].RestartCount).To(BeEquivalentTo(kill + 1))
						g.Expect(pod.Status.ContainerStatuses[0].Ready).To(BeTrue())
					}
				}
			}).WithContext(ctx).Should(Succeed())
		}
		reads := func() int { return others.Recorded() }
		more := reads() + 1000
		Eventually(reads).WithContext(ctx).Should(BeNumerically(">", more))
		end()
		Expect(others.Errors.Err()).NotTo(HaveOccurred(), "readers of the other shards noticed")
		Expect(reader.Errors.Count()).To(BeNumerically(">", 0), "nobody noticed that the shard was killed")

		By("reading everything back through the shard that died")
		again, err := workload.NewRun(workload.Target{Shards: target.Shards[:1], Password: target.Password}, 4, "main:", workload.DefaultSizes)
		Expect(err).NotTo(HaveOccurred())
		defer again.Close()
		Expect(again.ReadAll(ctx, keys)).To(Equal(keys))
		Expect(again.Errors.Err()).NotTo(HaveOccurred())
		demo.ready(ctx)
	}, SpecTimeout(10*time.Minute))

	It("reads and writes while the operator is scaled to zero and the API server is stopped", func(ctx SpecContext) {
		controlPlane, err := kind.ControlPlane(ctx)
		Expect(err).NotTo(HaveOccurred())
		life, epoch := demo.life(ctx), demo.get(ctx).Status.ShardMap.Epoch

		scaleOperator(ctx, 0)
		DeferCleanup(func(ctx SpecContext) { scaleOperator(ctx, 1) }, NodeTimeout(4*time.Minute))
		DeferCleanup(func(ctx SpecContext) { Expect(kind.StartAPIServer(ctx, controlPlane)).To(Succeed()) }, NodeTimeout(4*time.Minute))

		r, err := workload.NewRun(target, connections, "down:", workload.DefaultSizes)
		Expect(err).NotTo(HaveOccurred())
		defer r.Close()
		stop := make(chan struct{})
		var all sync.WaitGroup
		all.Go(func() { r.Serve(ctx, 2000, true, stop) })
		end := sync.OnceFunc(func() { close(stop); all.Wait() })
		defer end()

		Expect(kind.StopAPIServer(ctx, controlPlane)).To(Succeed())
		before := r.Recorded()
		outage := time.Duration(count(60, 15)) * time.Second
		over := time.After(outage)
		Consistently(func() bool { return kind.APIServerAnswers(ctx) }).WithContext(ctx).WithTimeout(outage).WithPolling(2 * time.Second).Should(BeFalse())
		<-over
		served := r.Recorded() - before
		end()
		By("opening new connections while nobody manages the pool")
		fresh, err := workload.NewRun(target, 6, "main:", workload.DefaultSizes)
		Expect(err).NotTo(HaveOccurred())
		defer fresh.Close()
		Expect(fresh.ReadAll(ctx, min(keys, 5000))).To(Equal(min(keys, 5000)))

		Expect(r.Errors.Err()).NotTo(HaveOccurred())
		Expect(served).To(BeNumerically(">", 1000))
		sum, err := r.Check(3 * time.Minute)
		Expect(err).NotTo(HaveOccurred())
		AddReportEntry("without control plane", fmt.Sprintf("%d commands in %s, history %+v", served, outage, sum))

		Expect(kind.StartAPIServer(ctx, controlPlane)).To(Succeed())
		scaleOperator(ctx, 1)
		demo.ready(ctx)
		Expect(demo.life(ctx)).To(Equal(life), "a pod was touched when the control plane came back")
		Expect(demo.get(ctx).Status.ShardMap.Epoch).To(Equal(epoch))
	}, SpecTimeout(15*time.Minute))

	It("keeps every data-plane pod when the operator is upgraded", func(ctx SpecContext) {
		life, image := demo.life(ctx), demo.get(ctx).Status.Template.Image
		var before appsv1.Deployment
		Expect(kind.Get(ctx, client.ObjectKey{Namespace: systemNamespace, Name: operatorName}, &before)).To(Succeed())

		By("upgrading to another image tag of the operator and of the data plane")
		Expect(retag(ctx, "farpool/operator:"+imageTag(), "farpool/operator:upgraded")).To(Succeed())
		DeferCleanup(func(ctx SpecContext) { install(ctx) }, NodeTimeout(4*time.Minute))
		install(ctx, "--set", "image.tag=upgraded", "--set", "dataPlane.image.tag=upgraded", "--set", "logLevel=debug")
		var after appsv1.Deployment
		Expect(kind.Get(ctx, client.ObjectKey{Namespace: systemNamespace, Name: operatorName}, &after)).To(Succeed())
		Expect(after.Generation).To(BeNumerically(">", before.Generation))

		By("waiting until the new operator has looked at the pool")
		Expect(touch(ctx, demo)).To(Succeed())
		demo.ready(ctx)
		Consistently(demo.life).WithContext(ctx).WithTimeout(time.Duration(count(30, 10)) * time.Second).Should(Equal(life))
		Expect(demo.get(ctx).Status.Template.Image).To(Equal(image))

		By("reading through it all the same")
		r := run("main:", func(r *workload.Run) { Expect(r.ReadAll(ctx, min(keys, 5000))).To(Equal(min(keys, 5000))) })
		r.Close()
	}, SpecTimeout(10*time.Minute))

	It("leaves nothing behind when it is deleted", func(ctx SpecContext) {
		Expect(demo.remains(ctx)).NotTo(BeEmpty())
		demo.delete(ctx)
	}, SpecTimeout(4*time.Minute))
})

// touch changes a pool's generation without changing what it asks for, and waits until the operator has seen it: proof that the operator
// that runs now has looked at the pool.
func touch(ctx context.Context, p pool) error {
	for _, management := range []farpoolv1alpha1.Management{farpoolv1alpha1.ManagementPaused, farpoolv1alpha1.ManagementManaged} {
		patch := fmt.Sprintf(`{"spec":{"management":%q}}`, management)
		if _, err := kind.Kubectl(ctx, "", "-n", p.namespace, "patch", "kvpool", p.name, "--type=merge", "-p", patch); err != nil {
			return err
		}
		Eventually(func(g Gomega) {
			got := p.get(ctx)
			g.Expect(got.Status.ObservedGeneration).To(Equal(got.Generation))
		}).WithContext(ctx).Should(Succeed())
	}
	return nil
}

// retag gives an image that every node has a second name.
func retag(ctx context.Context, from, to string) error {
	nodes, err := kind.Nodes(ctx)
	if err != nil {
		return err
	}
	for _, node := range nodes {
		script := fmt.Sprintf("ctr -n k8s.io images tag --force docker.io/%s docker.io/%s", from, to)
		if _, err := kind.OnNode(ctx, node, script); err != nil {
			return err
		}
	}
	return nil
}

func scaleOperator(ctx context.Context, replicas int) {
	GinkgoHelper()
	_, err := kind.Kubectl(ctx, "", "-n", systemNamespace, "scale", "deployment", operatorName, fmt.Sprintf("--replicas=%d", replicas))
	Expect(err).NotTo(HaveOccurred())
	Eventually(func(g Gomega) {
		pods, err := kind.Kubectl(ctx, "", "-n", systemNamespace, "get", "pods", "-l", "app.kubernetes.io/component=operator",
			"-o", `jsonpath={range .items[*]}{.status.containerStatuses[0].ready}{"\n"}{end}`)
		g.Expect(err).NotTo(HaveOccurred())
		if replicas == 0 {
			g.Expect(pods).To(BeEmpty())
		} else {
			g.Expect(pods).To(Equal("true\n"))
		}
	}).WithContext(ctx).Should(Succeed())
}

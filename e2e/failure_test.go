// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/redis/go-redis/v9"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	farpoolv1alpha1 "farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/e2e/chaos"
	"farpool.dev/farpool/e2e/cluster"
	"farpool.dev/farpool/e2e/history"
	"farpool.dev/farpool/e2e/workload"
)

const (
	shardProcess = "farpool-compute-shard"
	nodeProcess  = "farpool-memory-node"
	webPort      = 7402
)

// member is a process of a pool, reached past the API server.
type member struct {
	pod  corev1.Pod
	web  string
	kind string
}

func (m *member) signal(ctx context.Context, signal string) error {
	_, err := kind.Signal(ctx, &m.pod, m.kind, signal)
	return err
}

// restarts is how often a process has begun in the place of one that had ended.
func (m *member) restarts(ctx context.Context) (int32, error) {
	var pod corev1.Pod
	if err := kind.Get(ctx, client.ObjectKeyFromObject(&m.pod), &pod); err != nil {
		return 0, err
	}
	return pod.Status.ContainerStatuses[0].RestartCount, nil
}

// kills is how often the kubelet has killed its process. A process that has crashed is none of these: it has died of itself.
func (m *member) kills(ctx context.Context) (int32, error) {
	var pod corev1.Pod
	if err := kind.Get(ctx, client.ObjectKeyFromObject(&m.pod), &pod); err != nil {
		return 0, err
	}
	return cluster.Kills(&pod)
}

func (m *member) metric(name string) (float64, error) {
	page, err := chaos.Scrape(m.web)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", m.pod.Name, err)
	}
	return page[name], nil
}

// ready waits until the probe says so.
func (m *member) ready(ctx context.Context) error {
	return chaos.Eventually(ctx, 2*chaos.Patience, func() error {
		answer, err := chaos.Web.Get("http://" + m.web + "/readyz")
		if err != nil {
			return err
		}
		defer func() { _ = answer.Body.Close() }()
		why, _ := io.ReadAll(io.LimitReader(answer.Body, 500))
		if answer.StatusCode != http.StatusOK {
			return fmt.Errorf("%s is not ready: %s", m.pod.Name, strings.TrimSpace(string(why)))
		}
		return nil
	})
}

// reach finds the way to pods past the API server.
func reach(ctx context.Context, pods []corev1.Pod, process string) (out []*member) {
	GinkgoHelper()
	for _, pod := range pods {
		address, err := kind.ExposePod(ctx, &pod, webPort)
		Expect(err).NotTo(HaveOccurred())
		out = append(out, &member{pod: pod, web: address, kind: process})
	}
	return out
}

// metrics is a metric of each.
func metrics(of []*member, name string) ([]float64, error) {
	var all []float64
	for _, one := range of {
		value, err := one.metric(name)
		if err != nil {
			return nil, err
		}
		all = append(all, value)
	}
	return all, nil
}

// clean has every client leave, and farpool-fsck account for every byte of the memory nodes' files.
func (p pool) clean(ctx context.Context) {
	GinkgoHelper()
	By("having every client leave, and looking at what the memory nodes hold")
	_, err := kind.Kubectl(ctx, "", "-n", p.namespace, "patch", "kvpool", p.name, "--type=json", "-p",
		`[{"op":"replace","path":"/spec/compute/pools/0/replicas","value":0}]`)
	Expect(err).NotTo(HaveOccurred())
	nodes := reach(ctx, p.memoryNodes(ctx), nodeProcess)
	Eventually(func(g Gomega) {
		g.Expect(metrics(nodes, "farpool_node_sessions")).To(HaveEach(BeZero()))
	}).WithContext(ctx).Should(Succeed())
	for _, n := range nodes {
		image := filepath.Join(GinkgoT().TempDir(), n.pod.Name+".memory")
		Expect(kind.CopyVolumeFile(ctx, &n.pod, "state", n.pod.Name+".memory", image)).To(Succeed())
		said, err := cluster.Run(ctx, nil, "../build/image/farpool-fsck", image)
		Expect(err).NotTo(HaveOccurred())
		Expect(os.Remove(image)).To(Succeed())
		AddReportEntry("fsck", said)
	}
}

var _ = Describe("A pool whose clients and memory nodes fail, of RCuckoo", Ordered, Label("short"), func() {
	failing("{protocol: RCuckoo}")
})

// Its tables are small, so that some are being split when somebody dies.
var _ = Describe("A pool whose clients and memory nodes fail, of RACE", Ordered, Label("long"), func() {
	failing("{protocol: RACE, race: {tables: 4096}}")
})

// Its memory nodes execute what clients ask for, and die in the middle of it.
var _ = Describe("A pool whose clients and memory nodes fail, of Outback", Ordered, Label("long"), func() {
	failing("{protocol: Outback}")
})

// failing are the specs of a pool with an index, in their order.
func failing(index string) {
	const shards, memoryNodes = 3, 2
	var (
		p              pool
		target         workload.Target
		clients, nodes []*member
	)

	perNode := func(name string) ([]float64, error) { return metrics(nodes, name) }
	leases := func(ctx context.Context) []farpoolv1alpha1.RepairLease {
		GinkgoHelper()
		var all farpoolv1alpha1.RepairLeaseList
		Expect(kind.List(ctx, &all, client.InNamespace(p.namespace))).To(Succeed())
		return all.Items
	}
	// process that a compute shard is now, as the status of its ComputeShardPool has it.
	process := func(ctx context.Context, of *member) string {
		GinkgoHelper()
		var found string
		Eventually(func(g Gomega) {
			found = ""
			var pools farpoolv1alpha1.ComputeShardPoolList
			g.Expect(kind.List(ctx, &pools, client.InNamespace(p.namespace), client.MatchingLabels{farpoolv1alpha1.LabelPool: p.name})).To(Succeed())
			for _, pool := range pools.Items {
				for _, one := range pool.Status.Processes {
					if one.PodUID == string(of.pod.UID) {
						found = one.Process
					}
				}
			}
			g.Expect(found).NotTo(BeEmpty())
		}).WithContext(ctx).Should(Succeed())
		return found
	}
	// complete waits until a RepairLease that names a process, or bears a name, is complete, and looks at what it then says.
	complete := func(ctx context.Context, name, process string) farpoolv1alpha1.RepairLease {
		GinkgoHelper()
		var lease farpoolv1alpha1.RepairLease
		Eventually(func(g Gomega) {
			all := leases(ctx)
			at := slices.IndexFunc(all, func(l farpoolv1alpha1.RepairLease) bool {
				return l.Name == name || slices.Contains(l.Status.Processes, process)
			})
			g.Expect(at).To(BeNumerically(">=", 0), "no RepairLease names process %s", process)
			lease = all[at]
			g.Expect(meta.IsStatusConditionTrue(lease.Status.Conditions, farpoolv1alpha1.ConditionComplete)).To(BeTrue(), "%+v", lease.Status)
		}).WithContext(ctx).Should(Succeed())
		for kind, reasons := range map[string][]string{
			farpoolv1alpha1.ConditionFenced:   {farpoolv1alpha1.ReasonFenced},
			farpoolv1alpha1.ConditionRepaired: {farpoolv1alpha1.ReasonRepaired, farpoolv1alpha1.ReasonNothingLeft},
			farpoolv1alpha1.ConditionComplete: {farpoolv1alpha1.ReasonComplete},
		} {
			Expect(meta.FindStatusCondition(lease.Status.Conditions, kind)).To(haveStatus(metav1.ConditionTrue, reasons...))
		}
		Expect(lease.Status.Step).To(Equal(farpoolv1alpha1.StepComplete))
		Expect(lease.Status.Processes).To(ContainElement(process))
		Expect(lease.Status.Fenced).To(Equal(fmt.Sprintf("%d/%d", memoryNodes, memoryNodes)))
		Expect(lease.Status.Left).To(BeZero())
		Expect(lease.Status.StartedAt.Time).NotTo(BeTemporally(">", lease.Status.CompletedAt.Time))
		owner := metav1.GetControllerOf(&lease)
		Expect(owner).NotTo(BeNil(), "it would stay behind when the pool is deleted")
		Expect(owner.Kind + "/" + owner.Name).To(Equal("KVPool/" + p.name))
		for _, reasons := range [][]string{{farpoolv1alpha1.ReasonFenced}, {farpoolv1alpha1.ReasonRepaired, farpoolv1alpha1.ReasonNothingLeft}, {farpoolv1alpha1.ReasonComplete}} {
			p.tells(ctx, ContainElement(HavePrefix("RepairLease/"+lease.Name+": ")), reasons...)
		}
		for _, metric := range []string{"repair_leases", "repair_backlog"} {
			Eventually(operatorMetric).WithContext(ctx).WithArguments(p, metric).Should(Equal("0"))
		}
		for _, metric := range []string{"processes_fenced_total", "processes_repaired_total"} {
			Eventually(causeMetric).WithContext(ctx).WithArguments(p, metric, lease.Spec.Cause).Should(Not(Or(BeEmpty(), Equal("0"))))
		}
		return lease
	}
	// underLoad has writers work on the pool while something is done.
	underLoad := func(ctx context.Context, prefix string, what func(*chaos.Load)) *chaos.Load {
		GinkgoHelper()
		l := chaos.NewLoad(target, prefix, 4)
		stop := make(chan struct{})
		var all sync.WaitGroup
		all.Go(func() { l.Work(ctx, uint64(GinkgoRandomSeed()), stop) })
		end := sync.OnceFunc(func() { close(stop); all.Wait() })
		defer end()
		Expect(l.Progress(ctx, 500)).To(Succeed())
		what(l)
		end()
		return l
	}
	BeforeAll(func(ctx SpecContext) {
		p = apply(ctx, namespace(ctx, "failure"), small("mortal", memoryNodes, shards, "  dataPolicy: Store\n  index: "+index))
		p.ready(ctx)
		target = p.target(ctx)
		clients, nodes = reach(ctx, p.shards(ctx), shardProcess), reach(ctx, p.memoryNodes(ctx), nodeProcess)
		Expect(clients).To(HaveLen(shards))
		Expect(nodes).To(HaveLen(memoryNodes))
	}, NodeTimeout(5*time.Minute))

	It("has a RepairLease for a shard that is killed, which is fenced, repaired and complete", func(ctx SpecContext) {
		victim := clients[0]
		dead := process(ctx, victim)
		underLoad(ctx, "killed:", func(*chaos.Load) {
			Expect(victim.signal(ctx, "KILL")).To(Succeed())
			lease := complete(ctx, "", dead)
			// Memory nodes may have ended its sessions before the kubelet has said that its container ended.
			Expect(lease.Spec.Cause).To(BeElementOf(farpoolv1alpha1.CausePodTerminated, farpoolv1alpha1.CauseMemoryNodeReport))
			Expect(lease.Spec.Clients).To(ConsistOf(HaveField("Name", victim.pod.Name)))
			p.tells(ctx, ContainElement(And(HavePrefix("KVPool/"+p.name+": "), ContainSubstring(lease.Name))), farpoolv1alpha1.ReasonClientsDied)
			show(ctx, p, lease.Name)
			Expect(victim.ready(ctx)).To(Succeed())
		})
	}, SpecTimeout(5*time.Minute))

	It("has nothing left of a shard that is killed with writes under way, with nobody else at work who would meet it", func(ctx SpecContext) {
		const writers = 32
		victim := clients[2] // the pool's status may not know yet who the one is that was killed above
		dead := process(ctx, victim)
		key := func(writer, i int64) string { return fmt.Sprintf("held:%d:%d", writer, i) }
		var all sync.WaitGroup
		var written [writers]atomic.Int64
		var heard [writers]error
		for w := range int64(writers) {
			all.Go(func() {
				through := target.Connect(2)
				defer func() { _ = through.Close() }()
				// Pipelines: the shard has always something under way, however slow this end is.
				for alive := true; alive; {
					first := written[w].Load()
					answers, _ := through.Pipelined(ctx, func(pipe redis.Pipeliner) error {
						for i := range int64(50) {
							pipe.Set(ctx, key(w, first+i), "value", 0)
						}
						return nil
					})
					for _, answer := range answers {
						if alive = alive && answer.Err() == nil; alive {
							written[w].Add(1)
						} else if heard[w] == nil {
							heard[w] = answer.Err()
						}
					}
				}
			})
		}
		for w := range written {
			Eventually(written[w].Load).WithContext(ctx).Should(BeNumerically(">", 20))
		}
		Expect(victim.signal(ctx, "KILL")).To(Succeed())
		all.Wait()
		told := map[string]int{}
		for _, err := range heard {
			told[workload.Verdict(err)]++
		}
		Expect(told).To(Equal(map[string]int{"connection": writers}), "its connections break, which leaves the outcome of what was under way unknown: %v", heard)
		lease := complete(ctx, "", dead)
		Expect(victim.ready(ctx)).To(Succeed())
		show(ctx, p, lease.Name)

		other := target.Connect(1)
		defer func() { _ = other.Close() }()
		total := int64(0)
		for w := range written {
			for i := range written[w].Load() {
				Expect(other.Get(ctx, key(int64(w), i)).Result()).To(Equal("value"), "an acknowledged write")
				total++
			}
			// What was under way when the process died is there or is not, and can be written again.
			Expect(other.Set(ctx, key(int64(w), written[w].Load()), "again", 0).Err()).To(Succeed())
		}
		AddReportEntry("repaired", fmt.Sprintf("%d operation slots, says the lease; %d acknowledged writes read back", lease.Status.SlotsRepaired, total))
	}, SpecTimeout(5*time.Minute))

	It("has none for shards that are only silent, until a person asks for one with kubectl", Label("wide"), func(ctx SpecContext) {
		victim, cut, rest := clients[1], clients[2], workload.Target{Shards: target.Shards[:1], Password: target.Password}
		silent := process(ctx, victim)
		known := len(leases(ctx))
		before, err := perNode("farpool_node_sessions_fenced_total")
		Expect(err).NotTo(HaveOccurred())
		r, err := workload.NewRun(target, 6, "silent:", workload.DefaultSizes)
		Expect(err).NotTo(HaveOccurred())
		defer r.Close()
		r.WriteAll(ctx, 500)
		Expect(r.Errors.Err()).NotTo(HaveOccurred())

		By("stopping one, and cutting another off the network, for longer than their leases")
		Expect(victim.signal(ctx, "STOP")).To(Succeed())
		DeferCleanup(func(ctx SpecContext) { _ = victim.signal(ctx, "CONT") }, NodeTimeout(time.Minute))
		Expect(kind.Cut(ctx, &cut.pod)).To(Succeed())
		DeferCleanup(func(ctx SpecContext) { Expect(kind.Mend(ctx, &cut.pod)).To(Succeed()) }, NodeTimeout(time.Minute))
		// Inside the data plane silence ends sessions, and what they held is repaired, with nobody asked.
		Eventually(func(g Gomega) {
			now, err := perNode("farpool_node_sessions_fenced_total")
			g.Expect(err).NotTo(HaveOccurred())
			for i := range now {
				g.Expect(now[i]).To(BeNumerically(">=", before[i]+2))
			}
		}).WithContext(ctx).Should(Succeed())
		Eventually(func() error { return tryLoad(ctx, rest, 500) }).WithContext(ctx).Should(Succeed())
		Eventually(func() *metav1.Condition { return p.condition(ctx, farpoolv1alpha1.ConditionDataPlaneReachable) }).WithContext(ctx).
			Should(haveStatus(metav1.ConditionUnknown, farpoolv1alpha1.ReasonAgentUnreachable))
		Consistently(func() int { return len(leases(ctx)) }).WithContext(ctx).WithTimeout(time.Duration(count(60, 8))*time.Second).
			Should(Equal(known), "silence passed for death")

		By("mending the network")
		Expect(kind.Mend(ctx, &cut.pod)).To(Succeed())
		Expect(cut.ready(ctx)).To(Succeed())

		By("asking for it with kubectl")
		Eventually(func() *metav1.Condition { return p.condition(ctx, farpoolv1alpha1.ConditionDataPlaneReachable) }).WithContext(ctx).
			Should(WithTransform(func(c *metav1.Condition) string { return c.Message }, ContainSubstring(victim.pod.Name)))
		_, err = kind.Kubectl(ctx, fmt.Sprintf(`
apiVersion: farpool.dev/v1alpha1
kind: RepairLease
metadata: {name: by-hand}
spec:
  poolRef: {name: %s}
  cause: Requested
  clients: [{name: %s}]
`, p.name, victim.pod.Name), "-n", p.namespace, "create", "-f", "-")
		Expect(err).NotTo(HaveOccurred())
		lease := complete(ctx, "by-hand", silent)
		Expect(lease.Spec.Cause).To(Equal(farpoolv1alpha1.CauseRequested))
		show(ctx, p, lease.Name)

		By("letting the process that was fenced go on: it can serve no more, ends, and another one serves in its pod")
		restarts, err := victim.restarts(ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(victim.signal(ctx, "CONT")).To(Succeed())
		through := target.Connect(1)
		defer func() { _ = through.Close() }()
		Eventually(victim.restarts).WithContext(ctx).Should(BeNumerically(">", restarts))
		Expect(victim.ready(ctx)).To(Succeed())
		Eventually(func() error { return through.Set(ctx, "silent:late", "value", 0).Err() }).WithContext(ctx).Should(Succeed())

		failed := r.Errors.Count()
		r.ReadAll(ctx, 500)
		Expect(r.Errors.Count()-failed).To(BeNumerically("<=", 6), "more than the connections that broke: %v", r.Errors.Err())
		failed = r.Errors.Count()
		Expect(r.ReadAll(ctx, 500)).To(BeEquivalentTo(500))
		Expect(r.Errors.Count()).To(Equal(failed), "%v", r.Errors.Err())
	}, SpecTimeout(8*time.Minute))

	It("loses nothing that was acknowledged when they are killed and stopped at random, with and without operator and API server", func(ctx SpecContext) {
		random := rand.New(rand.NewPCG(uint64(GinkgoRandomSeed()), 0x6b696e64))
		// The protocols together have a quarter of an hour.
		lasting := time.Duration(count(300, 60)) * time.Second
		controlPlane, err := kind.ControlPlane(ctx)
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func(ctx SpecContext) {
			Expect(kind.StartAPIServer(ctx, controlPlane)).To(Succeed())
			scaleOperator(ctx, 1)
		}, NodeTimeout(5*time.Minute))
		for _, one := range append(slices.Clone(clients), nodes...) {
			Expect(one.ready(ctx)).To(Succeed())
		}

		var shardKills, nodeKills, stops, unjudged int
		var stopped chaos.Stopped
		killShard := func(ctx context.Context) error {
			victim := clients[random.IntN(len(clients))]
			shardKills++
			return errors.Join(victim.signal(ctx, "KILL"), victim.ready(ctx))
		}
		killNode := func(ctx context.Context) error {
			victim := nodes[random.IntN(len(nodes))]
			before, err := victim.metric("farpool_node_warm_restarts")
			if err != nil {
				return err
			}
			nodeKills++
			if err := victim.signal(ctx, "KILL"); err != nil {
				return err
			}
			// It serves again when the operator has published its new life.
			err = chaos.Eventually(ctx, 2*chaos.Patience, func() error {
				page, err := chaos.Scrape(victim.web)
				if err == nil && (page["farpool_node_serving"] != 1 || page["farpool_node_warm_restarts"] <= before) {
					err = fmt.Errorf("memory node %s was killed: serving %g, and took memory up %g times, after %g", victim.pod.Name,
						page["farpool_node_serving"], page["farpool_node_warm_restarts"], before)
				}
				return err
			})
			for _, one := range clients {
				err = errors.Join(err, one.ready(ctx))
			}
			return err
		}
		stopShard := func(ctx context.Context, l *chaos.Load) error {
			at := random.IntN(len(clients))
			victim := clients[at]
			stops++
			came, err := l.Stop(ctx, chaos.Victim{
				Name: victim.pod.Name, Shard: at, Sessions: 1, Shards: len(clients),
				Stop:     func() error { return victim.signal(ctx, "STOP") },
				Continue: func() error { return victim.signal(ctx, "CONT") },
				Ready:    victim.ready,
				Kills:    func() (int32, error) { return victim.kills(ctx) },
				Lost:     func() (float64, error) { return victim.metric("farpool_pool_sessions_lost_total") },
				Open:     func() ([]float64, error) { return perNode("farpool_node_sessions") },
				Fenced:   func() ([]float64, error) { return perNode("farpool_node_sessions_fenced_total") },
			}, int64(10+random.IntN(200)))
			stopped.Add(came)
			if err == nil && !came.Judged {
				unjudged++
			}
			return err
		}
		// hurt breaks a few things, first one of each, and more until it is time. Without an operator no memory node is killed, since nobody
		// would publish its next life.
		hurt := func(ctx context.Context, l *chaos.Load, managed bool, few int, until func() bool) {
			GinkgoHelper()
			for i := 0; i < few || !until(); i++ {
				Expect(l.Progress(ctx, int64(100+random.IntN(500)))).To(Succeed())
				lot := i
				if i > 2 {
					lot = random.IntN(7)
				}
				switch {
				case lot == 1:
					Expect(stopShard(ctx, l)).To(Succeed())
				case lot == 2 && managed:
					Expect(killNode(ctx)).To(Succeed())
				default:
					Expect(killShard(ctx)).To(Succeed())
				}
			}
		}
		begun := time.Now()
		l := underLoad(ctx, "random:", func(l *chaos.Load) {
			hurt(ctx, l, true, 3, func() bool { return time.Since(begun) > lasting/2 })

			By("going on without operator and API server")
			away := meanwhile(func() {
				scaleOperator(ctx, 0)
				Expect(kind.StopAPIServer(ctx, controlPlane)).To(Succeed())
			})
			hurt(ctx, l, false, 0, away.over)
			gone := time.Now()
			hurt(ctx, l, false, 2, func() bool { return time.Since(gone) > lasting/6 })
			Expect(kind.APIServerAnswers(ctx)).To(BeFalse())
			AddReportEntry("without operator and API server", time.Since(gone).Round(time.Second).String())
			back := meanwhile(func() {
				Expect(kind.StartAPIServer(ctx, controlPlane)).To(Succeed())
				scaleOperator(ctx, 1)
			})
			hurt(ctx, l, false, 0, back.over)

			By("and with both again")
			hurt(ctx, l, true, 0, func() bool { return time.Since(begun) > lasting })
		})
		for _, one := range append(slices.Clone(clients), nodes...) {
			Expect(one.ready(ctx)).To(Succeed())
		}
		Expect(l.Settle(ctx)).To(Succeed())
		sum, err := history.Check(l.Recorder.Ops(), 5*time.Minute)
		Expect(err).NotTo(HaveOccurred())
		AddReportEntry("history", fmt.Sprintf("%d commands answered, %d failed (%s); %+v", l.Answered(), l.Refused(), chaos.Counts(l.Errors()), sum))
		AddReportEntry("faults", fmt.Sprintf("in %s %d kills of compute shards, %d of memory nodes, %d stops (%d writes under way: %s); no stale write in %d stops that were judged",
			time.Since(begun).Round(time.Second), shardKills, nodeKills, stops, stopped.Caught, chaos.Counts(stopped.Learned), stops-unjudged))
		// A write under way on a shard that was stopped is done by a new session, or its caller is told: that nothing was done, or that nobody knows.
		for word := range stopped.Learned {
			Expect(word).To(BeElementOf("done", "UNKNOWNOUTCOME", "TRYAGAIN", "TIMEOUT", "OOM"), "callers of shards that were stopped heard %v", stopped.Learned)
		}
		By("waiting until every death has been dealt with")
		Eventually(func(g Gomega) {
			for _, lease := range leases(ctx) {
				g.Expect(meta.IsStatusConditionTrue(lease.Status.Conditions, farpoolv1alpha1.ConditionComplete)).To(BeTrue(), "%+v", lease.Status)
			}
			g.Expect(p.condition(ctx, farpoolv1alpha1.ConditionDegraded)).To(haveStatus(metav1.ConditionFalse))
		}).WithContext(ctx).Should(Succeed())
		p.ready(ctx)
		for _, n := range nodes {
			Expect(p.memoryNode(ctx, n.pod.Name).Status.LostIncarnation).To(BeEmpty(), "memory node %s came back empty", n.pod.Name)
		}
	}, SpecTimeout(25*time.Minute))

	It("has memory in which every byte is accounted for", func(ctx SpecContext) {
		p.clean(ctx)
	}, SpecTimeout(4*time.Minute))

	It("takes its RepairLeases with it", func(ctx SpecContext) {
		Expect(leases(ctx)).NotTo(BeEmpty())
		p.delete(ctx)
		Expect(leases(ctx)).To(BeEmpty())
	}, SpecTimeout(4*time.Minute))
}

// errand is something that is being done on the side.
type errand struct{ done chan struct{} }

func meanwhile(what func()) errand {
	e := errand{make(chan struct{})}
	go func() {
		defer GinkgoRecover()
		defer close(e.done)
		what()
	}()
	return e
}

// over says whether it is done.
func (e errand) over() bool {
	select {
	case <-e.done:
		return true
	default:
		return false
	}
}

// show puts what kubectl says of a RepairLease into the report.
func show(ctx context.Context, p pool, name string) {
	GinkgoHelper()
	for _, args := range [][]string{{"get", "rlease", "-o", "wide"}, {"describe", "rlease", name}} {
		out, err := kind.Kubectl(ctx, "", append([]string{"-n", p.namespace}, args...)...)
		Expect(err).NotTo(HaveOccurred())
		AddReportEntry("kubectl "+strings.Join(args, " "), out)
	}
}

// causeMetric is a metric that the operator has of a pool's dead clients, by how their death is known.
func causeMetric(ctx context.Context, p pool, name string, cause farpoolv1alpha1.RepairCause) string {
	GinkgoHelper()
	return sampleOf(operatorMetrics(ctx), fmt.Sprintf(`farpool_operator_%s{cause=%q,namespace=%q,pool=%q}`, name, cause, p.namespace, p.name))
}

// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	farpoolv1alpha1 "farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/e2e/chaos"
	"farpool.dev/farpool/e2e/history"
	"farpool.dev/farpool/e2e/workload"
)

const movedAway = "farpool_index_keys_moved_away_total"

var _ = Describe("A pool whose memory nodes change", func() {
	DescribeTable("grows from 2 to 3 and is drained to 2 under load while a shard is killed, and loses nothing", Label("short"), func(ctx SpecContext, index string) {
		const shards = 2
		p := apply(ctx, namespace(ctx, "resize"), small("elastic", 2, shards, "  dataPolicy: Store\n  index: "+index))
		p.ready(ctx)
		stay := p.uids(ctx)
		clients := reach(ctx, p.shards(ctx), shardProcess)
		p.underLoad(ctx, "elastic:", func(l *chaos.Load) {
			for _, aim := range []int{3, 2} {
				operation := p.resize(ctx, aim)
				p.stage(ctx, operation, farpoolv1alpha1.StageMoving)
				// The client that moves keys may be the one: another goes on with what is left.
				Expect(clients[aim%shards].signal(ctx, "KILL")).To(Succeed())
				p.resized(ctx, operation, aim)
				Expect(clients[aim%shards].ready(ctx)).To(Succeed())
				Expect(l.Progress(ctx, 500)).To(Succeed())
			}
		})
		Expect(p.uids(ctx)).To(Equal(stay), "a memory node that stays has another pod")
		moved, err := metrics(clients, movedAway)
		Expect(err).NotTo(HaveOccurred())
		AddReportEntry("keys moved", fmt.Sprintf("by the shards in their present lives: %v", moved))
		p.says(ctx, farpoolv1alpha1.ConditionAvailable, "True")
		p.clean(ctx)
	},
		Entry("of RACE", SpecTimeout(12*time.Minute), "{protocol: RACE, race: {tables: 64}}"),
		Entry("of Outback", Label("wide"), SpecTimeout(12*time.Minute), "{protocol: Outback}"),
		Entry("of RCuckoo", Label("wide"), SpecTimeout(12*time.Minute), "{protocol: RCuckoo}"))

	It("splits its tables ahead, is scaled from 3 to 5 and drained to 2 under load, and no command fails", Label("short", "wide"), func(ctx SpecContext) {
		p := apply(ctx, namespace(ctx, "resize"), small("calm", 3, 2, "  dataPolicy: Store\n  index: {protocol: RACE, race: {tables: 64}}"))
		p.ready(ctx)
		stay := p.uids(ctx)
		refused := p.underLoad(ctx, "calm:", func(l *chaos.Load) {
			p.splitAhead(ctx, 16)
			p.resized(ctx, p.scaleMemory(ctx, 5), 5)
			Expect(p.get(ctx).Spec.Memory.Pools[0].Replicas).To(BeEquivalentTo(3), "the KVPool is not what was scaled")
			Expect(l.Progress(ctx, 500)).To(Succeed())
			p.resized(ctx, p.resize(ctx, 2), 2)
			Expect(l.Progress(ctx, 500)).To(Succeed())
		})
		Expect(refused).To(BeZero())
		Expect(p.uids(ctx)).To(Equal(stay), "a memory node that stays has another pod")
		p.clean(ctx)
	}, SpecTimeout(12*time.Minute))

	It("leaves a Kubernetes node that is cordoned under load, once there is another memory node", Label("short", "wide"), func(ctx SpecContext) {
		p := apply(ctx, namespace(ctx, "evacuation"), small("nomad", 1, 1, "  dataPolicy: Store\n  index: {protocol: RACE, race: {tables: 64}}"))
		p.ready(ctx)
		first := p.memoryNodes(ctx)[0]
		refused := p.underLoad(ctx, "nomad:", func(l *chaos.Load) {
			DeferCleanup(func(ctx SpecContext) {
				_, err := kind.Kubectl(ctx, "", "uncordon", first.Spec.NodeName)
				Expect(err).NotTo(HaveOccurred())
			}, NodeTimeout(time.Minute))
			_, err := kind.Kubectl(ctx, "", "cordon", first.Spec.NodeName)
			Expect(err).NotTo(HaveOccurred())
			p.says(ctx, farpoolv1alpha1.ConditionDegraded, "True", farpoolv1alpha1.ReasonNowhereToEvacuate)
			p.scaleMemory(ctx, 2)
			Eventually(func(g Gomega) {
				pods := p.memoryNodes(ctx)
				g.Expect(pods).To(HaveLen(2))
				for _, pod := range pods {
					g.Expect(pod.Spec.NodeName).To(And(Not(BeEmpty()), Not(Equal(first.Spec.NodeName))))
				}
				g.Expect(p.condition(ctx, farpoolv1alpha1.ConditionProgressing)).To(haveStatus("False", farpoolv1alpha1.ReasonSettled))
			}).WithContext(ctx).WithTimeout(2 * patience).Should(Succeed())
			Expect(l.Progress(ctx, 500)).To(Succeed())
		})
		Expect(refused).To(BeZero())
		Expect(p.memoryNodes(ctx)[0].UID).NotTo(Equal(first.UID))
		p.clean(ctx)
	}, SpecTimeout(12*time.Minute))

	DescribeTable("grows from 3 to 5 and is drained to 2 under load by one operator after the other, with the API server away and shards killed", Label("long"), func(ctx SpecContext, index string, keys uint32) {
		const shards, connections = 3, 16
		p := apply(ctx, namespace(ctx, "resize"), small("tidal", 3, shards, "  dataPolicy: Store\n  index: "+index))
		p.ready(ctx)
		stay := p.uids(ctx)
		clients := reach(ctx, p.shards(ctx), shardProcess)
		controlPlane, err := kind.ControlPlane(ctx)
		Expect(err).NotTo(HaveOccurred())
		run := func() *workload.Run {
			r, err := workload.NewRun(p.target(ctx), connections, "load:", workload.Sizes{MinKey: 16, MaxKey: 16, MinValue: 64, MaxValue: 64})
			Expect(err).NotTo(HaveOccurred())
			DeferCleanup(r.Close)
			return r
		}
		writer := run()
		writer.Put(ctx, keys)
		Expect(writer.Errors.Err()).NotTo(HaveOccurred())
		writer.Close()

		var l *chaos.Load
		var speed, told string
		moving := &movers{shards: clients, known: map[*member]float64{}}
		begun := time.Now()
		failed := p.underLoad(ctx, "tidal:", func(load *chaos.Load) {
			l = load
			pace := paceOf(ctx, l)
			operation := p.resize(ctx, 5)
			p.halfway(ctx, operation)
			By("while keys move: another operator, and another shard")
			DeferCleanup(func(ctx SpecContext) { scaleOperator(ctx, 1) }, NodeTimeout(4*time.Minute))
			scaleOperator(ctx, 0)
			// Nobody writes it now: it is what the last operator has seen, and shards say that it is still so.
			Expect(p.resizeOperation(ctx, operation).Status.Stage).To(Equal(farpoolv1alpha1.StageMoving))
			moving.goOn(ctx, "without an operator")
			Expect(clients[0].signal(ctx, "KILL")).To(Succeed())
			moving.goOn(ctx, "after a shard was killed")
			Expect(clients[0].ready(ctx)).To(Succeed())
			Expect(l.Progress(ctx, 2000)).To(Succeed())
			scaleOperator(ctx, 1)
			p.resized(ctx, operation, 5)
			told = p.moved(ctx, operation)

			nodes := reach(ctx, p.memoryNodes(ctx), nodeProcess)
			DeferCleanup(func(ctx SpecContext) { Expect(kind.StartAPIServer(ctx, controlPlane)).To(Succeed()) }, NodeTimeout(4*time.Minute))
			operation = p.resize(ctx, 2)
			p.halfway(ctx, operation)
			By("while keys move: a memory node that is killed as it gives, and, once its new life is in the map, an API server that is away")
			giver := nodes[len(nodes)-1].pod.Name
			before := p.memoryNode(ctx, giver).Status.Incarnation
			Expect(nodes[len(nodes)-1].signal(ctx, "KILL")).To(Succeed())
			Eventually(func(g Gomega) {
				now := p.memoryNode(ctx, giver).Status
				g.Expect(now.Incarnation).NotTo(Or(BeEmpty(), Equal(before)))
				g.Expect(meta.IsStatusConditionTrue(now.Conditions, farpoolv1alpha1.ConditionReady)).To(BeTrue(), "%+v", now.Conditions)
			}).WithContext(ctx).Should(Succeed())
			moving.goOn(ctx, "after a memory node was killed that gives")
			Expect(p.resizeOperation(ctx, operation).Status).To(And(HaveField("Stage", farpoolv1alpha1.StageMoving), HaveField("KeysLeft", BeNumerically(">", 0))))
			Expect(kind.StopAPIServer(ctx, controlPlane)).To(Succeed())
			moving.goOn(ctx, "without an API server")
			Expect(clients[1].signal(ctx, "KILL")).To(Succeed())
			moving.goOn(ctx, "after a shard was killed without an API server")
			Expect(l.Progress(ctx, 2000)).To(Succeed())
			Expect(kind.StartAPIServer(ctx, controlPlane)).To(Succeed())
			Expect(clients[1].ready(ctx)).To(Succeed())
			p.resized(ctx, operation, 2)
			told += ", " + p.moved(ctx, operation)
			speed = pace.words()
		})
		took := time.Since(begun)
		moving.look()
		reader := run()
		there := reader.ReadAll(ctx, keys)
		AddReportEntry("result", fmt.Sprintf("%s: %d operations answered, %d failed (%s), %d of %d keys lost; %s; %.0f s in all, %s; keys moved, as shards count them: at least %.0f",
			index, l.Answered(), failed, chaos.Counts(l.Errors()), keys-there, keys, speed, took.Seconds(), told, moving.total()))
		Expect(there).To(BeEquivalentTo(keys), "%v", reader.Errors.Err())
		for name, uid := range p.uids(ctx) {
			Expect(uid).To(Equal(stay[name]), "memory node %s, which stays, has another pod", name)
		}
		for _, reason := range []string{farpoolv1alpha1.ReasonMoveBegun, farpoolv1alpha1.ReasonMoveFinished, farpoolv1alpha1.ReasonNodeDrained, farpoolv1alpha1.ReasonResizeComplete} {
			p.tells(ctx, Not(BeEmpty()), reason)
		}
		p.clean(ctx)
	},
		// So many keys that moving them takes longer than what is done meanwhile.
		Entry("of RACE", SpecTimeout(25*time.Minute), "{protocol: RACE, race: {tables: 16, tablePercent: 5}}", uint32(200_000)),
		Entry("of Outback", SpecTimeout(25*time.Minute), "{protocol: Outback, outback: {tablePercent: 10}}", uint32(500_000)),
		// Moving a key takes about twice as many trips.
		Entry("of RCuckoo", SpecTimeout(25*time.Minute), "{protocol: RCuckoo, rcuckoo: {tablePercent: 5}}", uint32(120_000)))

	It("waits for approval where its spec asks for it, and stays as it is after an abort", Label("short"), func(ctx SpecContext) {
		p := apply(ctx, namespace(ctx, "approval"), small("asked", 1, 1, "  resize: {approval: Required}"))
		p.ready(ctx)
		load(ctx, p.target(ctx), 500)
		operation := p.resize(ctx, 2)
		p.stage(ctx, operation, farpoolv1alpha1.StagePlanned)
		p.says(ctx, farpoolv1alpha1.ConditionProgressing, "True", farpoolv1alpha1.ReasonResizing)
		table, err := kind.Kubectl(ctx, "", "-n", p.namespace, "get", "resizeoperations")
		Expect(err).NotTo(HaveOccurred())
		Expect(table).To(And(ContainSubstring(operation), ContainSubstring("1 to 2"), ContainSubstring("Planned")))
		AddReportEntry("kubectl get resizeoperations", table)

		_, err = kind.Kubectl(ctx, "", "-n", p.namespace, "patch", "resizeoperation", operation, "--type=merge", "-p", `{"spec":{"requestedState":"Abort"}}`)
		Expect(err).NotTo(HaveOccurred())
		p.says(ctx, farpoolv1alpha1.ConditionProgressing, "False", farpoolv1alpha1.ReasonResizeAborted)
		Eventually(p.memoryNodes).WithContext(ctx).Should(HaveLen(1))
		Eventually(func(g Gomega) {
			g.Expect(p.resizeOperation(ctx, operation).Status.Stage).To(Equal(farpoolv1alpha1.StageAborted))
		}).WithContext(ctx).Should(Succeed())
		load(ctx, p.target(ctx), 500)
		_, err = kind.Kubectl(ctx, "", "-n", p.namespace, "delete", "resizeoperation", operation)
		Expect(err).NotTo(HaveOccurred())
		operation = p.follows(ctx, 2)
		p.stage(ctx, operation, farpoolv1alpha1.StagePlanned)
		_, err = kind.Kubectl(ctx, "", "-n", p.namespace, "patch", "resizeoperation", operation, "--type=merge", "-p", `{"spec":{"approval":"Approved"}}`)
		Expect(err).NotTo(HaveOccurred())
		p.resized(ctx, operation, 2)
		load(ctx, p.target(ctx), 500)
	}, SpecTimeout(6*time.Minute))
})

// underLoad has writers work on the pool while something is done, judges what they saw, and says how many commands failed.
func (p pool) underLoad(ctx context.Context, prefix string, what func(*chaos.Load)) (refused int64) {
	GinkgoHelper()
	l := chaos.NewLoad(p.target(ctx), prefix, 4)
	stop := make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() { l.Work(ctx, uint64(GinkgoRandomSeed()), stop) })
	end := sync.OnceFunc(func() { close(stop); all.Wait() })
	defer end()
	Expect(l.Progress(ctx, 2000)).To(Succeed())
	what(l)
	end()
	Expect(l.Settle(ctx)).To(Succeed())
	sum, err := history.Check(l.Recorder.Ops(), 5*time.Minute)
	Expect(err).NotTo(HaveOccurred())
	AddReportEntry("history", fmt.Sprintf("%d commands answered, %d failed (%s); %+v", l.Answered(), l.Refused(), chaos.Counts(l.Errors()), sum))
	return l.Refused()
}

// resize asks for so many memory nodes, and names the ResizeOperation that follows it.
func (p pool) resize(ctx context.Context, memoryNodes int) string {
	GinkgoHelper()
	patch := fmt.Sprintf(`[{"op":"replace","path":"/spec/memory/pools/0/replicas","value":%d}]`, memoryNodes)
	_, err := kind.Kubectl(ctx, "", "-n", p.namespace, "patch", "kvpool", p.name, "--type=json", "-p", patch)
	Expect(err).NotTo(HaveOccurred())
	return p.follows(ctx, memoryNodes)
}

// scaleMemory asks for so many by the pool's MemoryNodePool, and names the ResizeOperation that follows it.
func (p pool) scaleMemory(ctx context.Context, memoryNodes int) string {
	GinkgoHelper()
	_, err := kind.Kubectl(ctx, "", "-n", p.namespace, "scale", "memorynodepool", p.name+"-memory", fmt.Sprintf("--replicas=%d", memoryNodes))
	Expect(err).NotTo(HaveOccurred())
	return p.follows(ctx, memoryNodes)
}

// splitAhead has the tables of every memory node split into so many, and waits for it.
func (p pool) splitAhead(ctx context.Context, tables int32) {
	GinkgoHelper()
	patch := fmt.Sprintf(`{"spec":{"index":{"race":{"leastTables":%d}}}}`, tables)
	_, err := kind.Kubectl(ctx, "", "-n", p.namespace, "patch", "kvpool", p.name, "--type=merge", "-p", patch)
	Expect(err).NotTo(HaveOccurred())
	Eventually(func(g Gomega) {
		var all farpoolv1alpha1.ResizeOperationList
		g.Expect(kind.List(ctx, &all, client.InNamespace(p.namespace))).To(Succeed())
		at := slices.IndexFunc(all.Items, func(o farpoolv1alpha1.ResizeOperation) bool {
			return o.Spec.Tables != nil && o.Spec.Tables.To == tables
		})
		g.Expect(at).To(BeNumerically(">=", 0))
		now := all.Items[at].Status
		g.Expect(now.Stage).To(Equal(farpoolv1alpha1.StageComplete), "%+v", now)
		g.Expect(now.TablesInUse).To(Equal(tables))
		g.Expect(now.PartsMoved).To(BeZero())
	}).WithContext(ctx).WithTimeout(2 * patience).Should(Succeed())
}

// follows waits for the ResizeOperation to so many memory nodes.
func (p pool) follows(ctx context.Context, memoryNodes int) string {
	GinkgoHelper()
	var name string
	Eventually(func(g Gomega) {
		var all farpoolv1alpha1.ResizeOperationList
		g.Expect(kind.List(ctx, &all, client.InNamespace(p.namespace))).To(Succeed())
		at := slices.IndexFunc(all.Items, func(o farpoolv1alpha1.ResizeOperation) bool {
			return int(o.Spec.Pools[0].To) == memoryNodes && o.Status.CompletionTime == nil
		})
		g.Expect(at).To(BeNumerically(">=", 0))
		name = all.Items[at].Name
	}).WithContext(ctx).Should(Succeed())
	return name
}

func (p pool) resizeOperation(ctx context.Context, name string) *farpoolv1alpha1.ResizeOperation {
	GinkgoHelper()
	var out farpoolv1alpha1.ResizeOperation
	Expect(kind.Get(ctx, client.ObjectKey{Namespace: p.namespace, Name: name}, &out)).To(Succeed())
	return &out
}

// stage waits until a resize has come as far, or further.
func (p pool) stage(ctx context.Context, name string, stage farpoolv1alpha1.ResizeStage) {
	GinkgoHelper()
	order := []farpoolv1alpha1.ResizeStage{farpoolv1alpha1.StagePlanned, farpoolv1alpha1.StageWaiting, farpoolv1alpha1.StageMoving, farpoolv1alpha1.StageRemoving, farpoolv1alpha1.StageComplete}
	Eventually(func(g Gomega) {
		now := p.resizeOperation(ctx, name).Status
		if stage == farpoolv1alpha1.StagePlanned {
			g.Expect(now.Stage).To(Equal(stage), "%+v", now)
		}
		g.Expect(slices.Index(order, now.Stage)).To(BeNumerically(">=", slices.Index(order, stage)), "%+v", now)
	}).WithContext(ctx).WithPolling(100 * time.Millisecond).Should(Succeed())
}

// halfway waits until a resize moves keys, fewer are left than have been, and its end can be estimated.
func (p pool) halfway(ctx context.Context, name string) {
	GinkgoHelper()
	var most int64
	Eventually(func(g Gomega) {
		now := p.resizeOperation(ctx, name).Status
		if now.CompletionTime != nil || now.Stage == farpoolv1alpha1.StageRemoving {
			StopTrying(fmt.Sprintf("all keys had moved before some were seen to have: load more of them. %+v", now)).Now()
		}
		most = max(most, now.KeysLeft)
		g.Expect(now.Stage).To(Equal(farpoolv1alpha1.StageMoving), "%+v", now)
		g.Expect(now.KeysLeft).To(And(BeNumerically(">", 0), BeNumerically("<", most)), "%+v", now)
		g.Expect(now.EstimatedCompletionTime).NotTo(BeNil(), "%+v", now)
	}).WithContext(ctx).WithPolling(100 * time.Millisecond).Should(Succeed())
}

// moved says of a resize that is over what it moved, and how long it took.
func (p pool) moved(ctx context.Context, name string) string {
	GinkgoHelper()
	done := p.resizeOperation(ctx, name).Status
	return fmt.Sprintf("%.0f s from %s with about %d keys to be moved", done.CompletionTime.Sub(done.StartTime.Time).Seconds(), done.Change, done.KeysTotal)
}

// movers are shards that move keys. What one of them has counted goes with it when it is killed, so they are asked again and again.
type movers struct {
	shards []*member
	known  map[*member]float64 // by its last answer
	past   float64             // of lives that are over
}

// look asks all, and says whether one has moved keys since it was asked before. One that has been killed may not answer yet.
func (m *movers) look() (more bool) {
	for _, one := range m.shards {
		now, err := one.metric(movedAway)
		if err != nil {
			continue
		}
		last, asked := m.known[one]
		if now < last {
			m.past += last
			last = 0
		}
		more = more || asked && now > last
		m.known[one] = now
	}
	return more
}

// goOn waits until keys are seen to move from now on.
func (m *movers) goOn(ctx context.Context, when string) {
	GinkgoHelper()
	// The first time may be about what has moved since they were asked before.
	for range 2 {
		Eventually(m.look).WithContext(ctx).WithPolling(100*time.Millisecond).Should(BeTrue(), "%s no key moves: either all had moved before, and there should be more, or nobody moves the rest", when)
	}
}

// total is how many keys have moved, but for keys that a shard had not told of when it was killed.
func (m *movers) total() float64 {
	sum := m.past
	for _, counted := range m.known {
		sum += counted
	}
	return sum
}

// pace is how fast a load goes: before something happens to its pool, and in the slowest second of what follows.
type pace struct {
	before, slowest float64 // operations a second
	stop, ended     chan struct{}
}

// paceOf measures a load whose pool is left alone, then goes on in the background.
func paceOf(ctx context.Context, l *chaos.Load) *pace {
	GinkgoHelper()
	begun, answered := time.Now(), l.Answered()
	Expect(l.Progress(ctx, 10_000)).To(Succeed())
	p := &pace{stop: make(chan struct{}), ended: make(chan struct{})}
	p.before = float64(l.Answered()-answered) / time.Since(begun).Seconds()
	p.slowest = p.before
	go func() {
		defer close(p.ended)
		seconds := time.NewTicker(time.Second)
		defer seconds.Stop()
		for last, at := l.Answered(), time.Now(); ; {
			select {
			case <-ctx.Done():
				return
			case <-p.stop:
				return
			case <-seconds.C:
			}
			now, answered := time.Now(), l.Answered()
			p.slowest = min(p.slowest, float64(answered-last)/now.Sub(at).Seconds())
			last, at = answered, now
		}
	}()
	return p
}

// words end the measurement, and say what came of it.
func (p *pace) words() string {
	close(p.stop)
	<-p.ended
	return fmt.Sprintf("%.0f operations/s before, %.0f in the slowest second, which is %.0f %%", p.before, p.slowest, 100*p.slowest/p.before)
}

// resized waits until a resize is complete, and looks at what it has come to.
func (p pool) resized(ctx context.Context, name string, memoryNodes int) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		now := p.resizeOperation(ctx, name).Status
		g.Expect(now.Stage).To(Equal(farpoolv1alpha1.StageComplete), "%+v", now)
	}).WithContext(ctx).WithTimeout(2 * patience).Should(Succeed())
	done := p.resizeOperation(ctx, name)
	Expect(done.Status.PartsMoved).To(And(Equal(done.Status.PartsTotal), BeNumerically(">", 0)))
	Expect(done.Status.KeysLeft).To(BeZero())
	AddReportEntry(name, fmt.Sprintf("memory nodes %s: %d parts in %s", done.Status.Change, done.Status.PartsMoved, done.Status.CompletionTime.Sub(done.Status.StartTime.Time)))
	p.ready(ctx)
	Eventually(p.memoryNodes).WithContext(ctx).Should(HaveLen(memoryNodes))
	// The pool's status is written a little after the operation's.
	Eventually(func(g Gomega) {
		var newest farpoolv1alpha1.ShardMap
		g.Expect(kind.Get(ctx, client.ObjectKey{Namespace: p.namespace, Name: p.get(ctx).Status.ShardMap.Name}, &newest)).To(Succeed())
		g.Expect(newest.Spec.Nodes).To(HaveLen(memoryNodes))
		g.Expect(newest.Spec.Departures).To(BeEmpty())
		var all farpoolv1alpha1.MemoryNodeList
		g.Expect(kind.List(ctx, &all, client.InNamespace(p.namespace))).To(Succeed())
		g.Expect(all.Items).To(HaveLen(memoryNodes))
	}).WithContext(ctx).Should(Succeed())
	for ordinal := memoryNodes; ordinal < memoryNodes+4; ordinal++ {
		gone := kind.Get(ctx, client.ObjectKey{Namespace: p.namespace, Name: farpoolv1alpha1.MemoryNodeName(p.name, "memory", int32(ordinal))}, &farpoolv1alpha1.MemoryNode{})
		Expect(apierrors.IsNotFound(gone)).To(BeTrue(), "memory node %d is still there: %v", ordinal, gone)
	}
}

// uids of the pods of the pool's first memory nodes, by name: the ones that stay whatever is asked for.
func (p pool) uids(ctx context.Context) map[string]types.UID {
	GinkgoHelper()
	out := map[string]types.UID{}
	for _, pod := range p.memoryNodes(ctx) {
		if strings.HasSuffix(pod.Name, "-0") || strings.HasSuffix(pod.Name, "-1") {
			out[pod.Name] = pod.UID
		}
	}
	return out
}

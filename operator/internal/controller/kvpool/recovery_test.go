// SPDX-License-Identifier: Apache-2.0

package kvpool

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/utils/ptr"

	"farpool.dev/farpool/api/v1alpha1"
)

// tries are the moments at which the operator has tried something.
type tries struct {
	mutex sync.Mutex
	at    []time.Time
}

func (t *tries) add() {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.at = append(t.at, time.Now())
}

func (t *tries) count() int {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	return len(t.at)
}

// apart is the longest time between one try and the next.
func (t *tries) apart() time.Duration {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	var longest time.Duration
	for i := 1; i < len(t.at); i++ {
		longest = max(longest, t.at[i].Sub(t.at[i-1]))
	}
	return longest
}

// Each failure lasts until the operator waits between tries for about as long as it ever does, which takes less than a minute. A longer failure makes no difference.
var _ = Describe("a failure that lasts", func() {
	const (
		recovery = 30 * time.Second
		lasting  = 4 * time.Minute
	)

	It("is over for a pool 30 s after the API server takes its writes again", func() {
		w := newWorld(nil)
		w.up()
		w.settle()
		var deployment appsv1.Deployment
		Expect(k8s.Get(w.ctx, w.key("cache-shards"), &deployment)).To(Succeed())
		generation := deployment.Generation
		var refusals tries
		running.meddling(func(request *http.Request) error {
			if !strings.Contains(request.URL.Path, "/namespaces/"+w.pool.Namespace+"/") || strings.Contains(request.URL.Path, "/events") {
				return nil
			}
			refusals.add()
			return errors.New("this API server takes no writes")
		})
		Expect(w.change(func(pool *v1alpha1.KVPool) {
			pool.Spec.Limits = &v1alpha1.LimitsSpec{MaxConnections: ptr.To(int32(77))}
		})).To(Succeed())
		w.run("cache-memory-0")
		begun := time.Now()
		Eventually(refusals.apart, lasting, every).Should(BeNumerically(">", 8*time.Second))
		lasted := time.Since(begun)
		Expect(w.maps()).To(HaveLen(1))

		running.meddle.Store(nil)
		ended := time.Now()
		w.awaitLaterEpoch(1)
		w.awaitPublished()
		Eventually(func(g Gomega) {
			g.Expect(k8s.Get(w.ctx, w.key("cache-shards"), &deployment)).To(Succeed())
			g.Expect(deployment.Generation).To(BeNumerically(">", generation), "the edit of the spec has not come to compute shards")
		}, within, every).Should(Succeed())
		took := time.Since(ended)
		AddReportEntry("recovered", fmt.Sprintf("%.1f s after writes were refused for %.0f s, %d times", took.Seconds(), lasted.Seconds(), refusals.count()))
		Expect(took).To(BeNumerically("<", recovery))
	})

	It("is over for a pool 30 s after a memory node that answered nothing has begun another life", func() {
		w := newWorld(nil)
		w.up()
		w.settle()
		const name = "cache-memory-0"
		facts, _ := w.agents[name].snapshot()
		w.agents[name].stop()
		silent, err := net.Listen("tcp", w.agents[name].address)
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func() { _ = silent.Close() })
		var dials tries
		go func() {
			for {
				connection, err := silent.Accept()
				if err != nil {
					return
				}
				dials.add()
				_ = connection.Close()
			}
		}()
		begun := time.Now()
		Eventually(dials.count, lasting, every).Should(BeNumerically(">=", 20))
		lasted, calls := time.Since(begun), dials.count()
		Expect(w.maps()).To(HaveLen(1), "silence passed for a death")

		Expect(silent.Close()).To(Succeed())
		again := memoryNodeFacts(facts.GetPoolUid(), name, 1_000_000_000_000_000_000+incarnations.Add(1))
		ended := time.Now()
		agent, err := serve(w.agents[name].address, w.secret(name+"-node-tls").Data, facts.GetPoolUid(), again)
		Expect(err).NotTo(HaveOccurred())
		w.agents[name] = agent
		w.awaitEpoch(2)
		w.awaitPublished()
		took := time.Since(ended)
		AddReportEntry("recovered", fmt.Sprintf("%.1f s after a silence of %.0f s, in which it was called %d times", took.Seconds(), lasted.Seconds(), calls))
		Expect(took).To(BeNumerically("<", recovery))
	})
})

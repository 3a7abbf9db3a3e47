// SPDX-License-Identifier: Apache-2.0

package kvpool

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/pki"
	"farpool.dev/farpool/operator/internal/render"
)

// objects of a kind that bear the pool's label.
func (w *world) objects(list client.ObjectList) []client.Object {
	GinkgoHelper()
	Expect(k8s.List(w.ctx, list, client.InNamespace(w.pool.Namespace), client.MatchingLabels{v1alpha1.LabelPool: w.pool.Name})).To(Succeed())
	items, err := meta.ExtractList(list)
	Expect(err).NotTo(HaveOccurred())
	objects := make([]client.Object, 0, len(items))
	for _, item := range items {
		objects = append(objects, item.(client.Object))
	}
	return objects
}

// loseLabels takes every label of farpool's from an object.
func (w *world) loseLabels(object client.Object) {
	GinkgoHelper()
	var lost []string
	for label := range object.GetLabels() {
		if strings.HasPrefix(label, "farpool.dev/") {
			lost = append(lost, `"`+label+`":null`)
		}
	}
	Expect(k8s.Patch(w.ctx, object.DeepCopyObject().(client.Object), client.RawPatch("application/merge-patch+json",
		[]byte(`{"metadata":{"labels":{`+strings.Join(lost, ",")+`}}}`)))).To(Succeed())
}

var _ = Describe("what is wrong with one object", func() {
	It("is put right if it is a label that somebody took from anything of the pool, and maps are published meanwhile", func() {
		w := newWorld(func(pool *v1alpha1.KVPool) {
			pool.Spec.Security.RESP = &v1alpha1.RESPSpec{TLS: v1alpha1.TLSSpec{Mode: v1alpha1.TLSGenerated}}
		})
		w.up()
		w.written(w.shard("cache-shards-1a2b3-x", "worker"))
		epoch := w.current().Status.ShardMap.Epoch
		for _, list := range []client.ObjectList{&v1alpha1.MemoryNodeList{}, &v1alpha1.ShardMapList{}, &v1alpha1.MemoryNodePoolList{}, &v1alpha1.ComputeShardPoolList{},
			&corev1.PodList{}, &appsv1.DeploymentList{}, &corev1.SecretList{}, &corev1.ConfigMapList{}, &corev1.ServiceList{}, &policyv1.PodDisruptionBudgetList{},
			&networkingv1.NetworkPolicyList{}} {
			objects := w.objects(list)
			Expect(objects).NotTo(BeEmpty(), "%T", list)
			data := map[string]map[string][]byte{}
			for _, object := range objects {
				By("taking the labels of " + object.GetName())
				if secret, ok := object.(*corev1.Secret); ok {
					data[secret.Name] = secret.Data
				}
				w.loseLabels(object)
			}
			w.run("cache-memory-1")
			epoch++
			w.awaitEpoch(epoch)
			for _, object := range objects {
				now := object.DeepCopyObject().(client.Object)
				Eventually(func(g Gomega) {
					g.Expect(k8s.Get(w.ctx, client.ObjectKeyFromObject(object), now)).To(Succeed())
					for label, value := range object.GetLabels() {
						g.Expect(now.GetLabels()).To(HaveKeyWithValue(label, value), "%T %s", now, now.GetName())
					}
				}, within, every).Should(Succeed())
				Expect(now.GetUID()).To(Equal(object.GetUID()), "%T %s was made again", now, now.GetName())
				if secret, ok := now.(*corev1.Secret); ok {
					Expect(secret.Data).To(Equal(data[secret.Name]), secret.Name)
				}
			}
		}
		w.awaitCondition(v1alpha1.ConditionDegraded, metav1.ConditionFalse, v1alpha1.ReasonHealthy)
		w.settle()
	})

	It("keeps a serving pool from nothing else if it is somebody else's pod in a memory node's place", func() {
		w := newWorld(nil)
		w.up()
		foreign := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.pool.Namespace, Name: "cache-memory-2"},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "other", Image: "other"}}}}
		Expect(k8s.Create(w.ctx, foreign)).To(Succeed())
		Expect(w.change(func(pool *v1alpha1.KVPool) { pool.Spec.Memory.Pools[0].Replicas = 3 })).To(Succeed())
		w.awaitCondition(v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonNameConflict, ContainSubstring("Pod "+w.pool.Namespace+"/cache-memory-2"))
		w.run("cache-memory-0")
		w.awaitEpoch(2)
		w.awaitPublished()
		w.awaitNodeCondition("cache-memory-0", v1alpha1.ConditionDataLost, metav1.ConditionTrue, v1alpha1.ReasonTablesLost)

		By("going away")
		Expect(k8s.Delete(w.ctx, foreign, client.GracePeriodSeconds(0))).To(Succeed())
		Eventually(func(g Gomega) {
			pod := w.awaitPod("cache-memory-2")
			g.Expect(metav1.IsControlledBy(pod, w.node("cache-memory-2"))).To(BeTrue())
		}, within, every).Should(Succeed())
		w.awaitCondition(v1alpha1.ConditionSpecValid, metav1.ConditionTrue, v1alpha1.ReasonAccepted)
	})

	It("costs no data if a memory node's object is deleted while its pod lives", func() {
		w := newWorld(nil)
		w.up()
		object, pod := w.node("cache-memory-0"), w.awaitPod("cache-memory-0")
		By("having an owner more than the MemoryNode, for which the garbage collector lets the pod be")
		Expect(pod.OwnerReferences).To(HaveLen(2))
		Expect(pod.OwnerReferences).To(ContainElement(And(HaveField("UID", w.pool.UID), HaveField("Controller", BeNil()))))
		Expect(k8s.Delete(w.ctx, object)).To(Succeed())
		Eventually(func(g Gomega) {
			now := &v1alpha1.MemoryNode{}
			g.Expect(k8s.Get(w.ctx, w.key("cache-memory-0"), now)).To(Succeed())
			g.Expect(now.UID).NotTo(Equal(object.UID))
			kept := w.awaitPod("cache-memory-0")
			g.Expect(kept.UID).To(Equal(pod.UID))
			g.Expect(metav1.IsControlledBy(kept, now)).To(BeTrue())
		}, within, every).Should(Succeed())
		w.run("cache-memory-1")
		w.awaitEpoch(2)
		w.awaitPublished()
		w.awaitNodeCondition("cache-memory-0", v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonServing)
		w.awaitNodeCondition("cache-memory-0", v1alpha1.ConditionDataLost, metav1.ConditionFalse, v1alpha1.ReasonNoLoss)
		Expect(w.awaitEpoch(2).Spec.Nodes[0].Incarnation).To(Equal(w.node("cache-memory-0").Status.Incarnation))
		w.settle()

		By("being given that owner if the pod is of an older template")
		pod = w.awaitPod("cache-memory-1")
		pod.OwnerReferences = pod.OwnerReferences[:1]
		Expect(k8s.Update(w.ctx, pod)).To(Succeed())
		Eventually(func() []metav1.OwnerReference { return w.awaitPod("cache-memory-1").OwnerReferences }, within, every).Should(HaveLen(2))
		w.settle()
	})

	It("keeps a pool from nothing else if its status cannot be written", func() {
		w := newWorld(nil)
		w.up()
		w.settle()
		var refused atomic.Int64
		running.meddling(func(request *http.Request) error {
			if strings.HasSuffix(request.URL.Path, "/namespaces/"+w.pool.Namespace+"/memorynodes/cache-memory-0/status") {
				refused.Add(1)
				return errors.New("this status is not written")
			}
			return nil
		})
		shard := w.shard("cache-shards-1a2b3-x", "worker")
		w.opens(shard, 1, 0)
		w.written(shard)
		w.run("cache-memory-0")
		w.opens(shard, 1, 0)
		w.awaitEpoch(2)
		w.awaitPublished()
		Expect(refused.Load()).NotTo(BeZero())
		w.runShard("cache-shards-1a2b3-x", &corev1.ContainerStateTerminated{ExitCode: 137, FinishedAt: metav1.Now()})
		w.lease(v1alpha1.ConditionFenced, metav1.ConditionTrue, v1alpha1.ReasonFenced)
	})

	It("keeps no other pool waiting if the API server does not answer for it", func() {
		stuck, other := newWorld(nil), newWorld(nil)
		stuck.up()
		other.up()
		stuck.settle()
		other.settle()
		running.reconciler.mutex.Lock()
		queue := running.reconciler.queue
		running.reconciler.mutex.Unlock()
		Expect(queue).To(BeAssignableToTypeOf(&patientQueue{}), "one pool is looked at at a time")
		// An admission webhook that is away holds a write for as long as this.
		var held atomic.Int64
		release := make(chan struct{})
		DeferCleanup(sync.OnceFunc(func() { close(release) }))
		running.meddling(func(request *http.Request) error {
			if strings.Contains(request.URL.Path, "/namespaces/"+stuck.pool.Namespace+"/") {
				held.Add(1)
				<-release
			}
			return nil
		})
		Expect(stuck.change(func(pool *v1alpha1.KVPool) { pool.Spec.Compute.Pools[0].Workers = 2 })).To(Succeed())
		Eventually(held.Load, within, every).ShouldNot(BeZero())
		Expect(other.change(func(pool *v1alpha1.KVPool) { pool.Spec.Compute.Pools[0].Workers = 2 })).To(Succeed())
		Eventually(func() int64 { return other.current().Status.ObservedGeneration }, within, every).Should(Equal(other.current().Generation))
		Expect(stuck.current().Status.ObservedGeneration).To(BeNumerically("<", stuck.current().Generation), "its look has not ended")
	})

	It("never writes over a secret that somebody else has made since anyone looked", func() {
		w := newWorld(nil)
		// The operator makes Secrets side by side.
		var mutex sync.Mutex
		other := map[string][]byte{}
		running.meddling(func(request *http.Request) error {
			mutex.Lock()
			defer mutex.Unlock()
			if !strings.Contains(request.URL.Path, "/namespaces/"+w.pool.Namespace+"/secrets") && !strings.Contains(request.URL.Path, "/namespaces/"+secretNamespace+"/secrets") ||
				request.GetBody == nil {
				return nil
			}
			body, err := request.GetBody()
			if err != nil {
				return err
			}
			defer body.Close()
			text, err := io.ReadAll(body)
			if err != nil {
				return err
			}
			if !strings.Contains(string(text), w.pool.Namespace) {
				return nil // of another pool
			}
			pool := w.current()
			hash := render.KeptSecretNames(pool.Name, pool.UID)[1]
			for name, key := range map[string]string{hash: "pool-secret", "cache-password": "password"} {
				if other[key] != nil || !strings.Contains(string(text), `"name":"`+name+`"`) {
					continue
				}
				other[key] = []byte("another drew 16b")
				secret := &corev1.Secret{
					ObjectMeta: metav1.ObjectMeta{Namespace: pool.Namespace, Name: name, Labels: map[string]string{v1alpha1.LabelPool: pool.Name},
						OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(pool, v1alpha1.GroupVersion.WithKind("KVPool"))}},
					Data: map[string][]byte{key: other[key]},
				}
				if name == hash {
					secret.Namespace, secret.OwnerReferences = secretNamespace, nil
					secret.Labels[v1alpha1.LabelPoolNamespace], secret.Labels[v1alpha1.LabelPoolUID] = pool.Namespace, string(pool.UID)
				}
				if err := k8s.Create(w.ctx, secret); err != nil {
					return err
				}
			}
			return nil
		})
		w.up()
		mutex.Lock()
		made := maps.Clone(other)
		mutex.Unlock()
		Expect(made).To(HaveLen(2))
		w.pool = w.current()
		_, hash := w.kept()
		Expect(hash.Data["pool-secret"]).To(Equal(made["pool-secret"]))
		Expect(w.secret("cache-password").Data["password"]).To(Equal(made["password"]))
		for _, name := range w.nodeNames() {
			for _, told := range w.agents[name].secrets {
				Expect(told).To(Equal(made["pool-secret"]))
			}
		}
		w.settle()
	})

	It("never writes over an authority or a certificate that another operator has made since anyone looked", func() {
		w := newWorld(func(pool *v1alpha1.KVPool) {
			pool.Spec.Security.RESP = &v1alpha1.RESPSpec{TLS: v1alpha1.TLSSpec{Mode: v1alpha1.TLSGenerated}}
		})
		// The operator makes Secrets side by side.
		var mutex sync.Mutex
		others := map[string]map[string][]byte{}
		running.meddling(func(request *http.Request) error {
			mutex.Lock()
			defer mutex.Unlock()
			if request.Method != http.MethodPost || !strings.HasSuffix(request.URL.Path, "/secrets") || request.GetBody == nil {
				return nil
			}
			body, err := request.GetBody()
			if err != nil {
				return err
			}
			defer body.Close()
			var secret corev1.Secret
			if err := json.NewDecoder(body).Decode(&secret); err != nil {
				return fmt.Errorf("what the operator makes at %s: %w", request.URL.Path, err)
			}
			ours := secret.Namespace == w.pool.Namespace || secret.Labels[v1alpha1.LabelPoolNamespace] == w.pool.Namespace
			if !ours || secret.Data[pki.KeyCertificate] == nil || others[secret.Name] != nil {
				return nil
			}
			if others[secret.Name], err = w.anotherOf(&secret); err != nil {
				return err
			}
			secret.Data = others[secret.Name]
			return k8s.Create(w.ctx, &secret)
		})
		w.up()
		authority, _ := w.keptKeys()
		mutex.Lock()
		made := maps.Clone(others)
		mutex.Unlock()
		Expect(slices.Sorted(maps.Keys(made))).To(ConsistOf(authority.Name, "cache-memory-0-node-tls", "cache-memory-1-node-tls", "cache-shards-client-tls", "cache-resp-tls"))
		unchanged := func() {
			GinkgoHelper()
			for name, data := range made {
				key := w.key(name)
				if name == authority.Name {
					key = authority
				}
				var secret corev1.Secret
				Expect(k8s.Get(w.ctx, key, &secret)).To(Succeed())
				Expect(secret.Data).To(Equal(data), name)
			}
		}
		unchanged()
		w.settle()
		unchanged()
	})
})

// anotherOf is what an operator that was faster has put in a Secret: another authority of the pool, or another certificate of the same holder.
func (w *world) anotherOf(secret *corev1.Secret) (pki.Data, error) {
	pool, now := &v1alpha1.KVPool{}, time.Now()
	if err := k8s.Get(w.ctx, client.ObjectKeyFromObject(w.pool), pool); err != nil {
		return nil, err
	}
	name := render.KeptSecretNames(pool.Name, pool.UID)[0]
	if secret.Name == name {
		authority, _, err := pki.RenewAuthority(nil, string(pool.UID), now, rand.Reader)
		if err != nil {
			return nil, err
		}
		return authority.Data(), nil
	}
	var held corev1.Secret
	if err := k8s.Get(w.ctx, client.ObjectKey{Namespace: secretNamespace, Name: name}, &held); err != nil {
		return nil, err
	}
	authority, _, err := pki.RenewAuthority(held.Data, string(pool.UID), now, rand.Reader)
	if err != nil {
		return nil, err
	}
	wanted := pki.Request{Server: true}
	if holder, ok := strings.CutSuffix(secret.Name, "-node-tls"); ok {
		wanted.Client, wanted.Identity = true, pki.Identity{PoolUID: string(pool.UID), Role: pki.RoleNode, Name: holder}
	} else if holder, ok := strings.CutSuffix(secret.Name, "-client-tls"); ok {
		wanted.Client, wanted.Identity = true, pki.Identity{PoolUID: string(pool.UID), Role: pki.RoleClient, Name: holder}
	} else {
		wanted.DNSNames = render.Pool{Name: pool.Name, Namespace: pool.Namespace, UID: pool.UID, Spec: pool.Spec}.RESPHosts()
	}
	data, _, _, err := authority.RenewCertificate(nil, wanted, now)
	return data, err
}

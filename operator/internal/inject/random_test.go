// SPDX-License-Identifier: Apache-2.0

package inject

import (
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"

	"farpool.dev/farpool/api/v1alpha1"
)

var (
	podCount = flag.Int("pods", 20000, "how many random pods TestRandomPods injects")
	podSeed  = flag.Uint64("seed", 1, "the seed of the first of them")
)

// randomPod draws a pod of the parts that matter to an injection, most of them as people write them.
func randomPod(r *rand.Rand) object {
	maybe := func(of int) bool { return r.IntN(of) == 0 }
	pick := func(of ...any) any { return of[r.IntN(len(of))] }
	resources := func() object {
		out := object{}
		for _, what := range []string{"requests", "limits"} {
			list := object{}
			for _, kind := range []string{"cpu", "memory", "nvidia.com/gpu"} {
				if maybe(2) {
					list[kind] = pick("1", "2", "500m", "0", "1Gi", json.Number("1"))
				}
			}
			if len(list) > 0 || maybe(4) {
				out[what] = list
			}
		}
		return out
	}
	equal := maybe(3) // all containers are Guaranteed
	var names []string
	container := func(i int) object {
		c := object{"name": pick(fmt.Sprintf("c%d", i), fmt.Sprintf("c%d", i), fmt.Sprintf("c%d", i), "istio-proxy", "linkerd-proxy"), "image": "i"}
		names = append(names, c["name"].(string))
		switch {
		case equal:
			c["resources"] = object{"requests": object{"cpu": "1", "memory": "1Gi"}, "limits": object{"cpu": "1000m", "memory": "1024Mi"}}
		case maybe(2):
			c["resources"] = resources()
		}
		if maybe(3) {
			c["env"] = []any{object{"name": pick("A", "FARPOOL_URL", "REDIS_URL"), "value": pick("x", "redis://127.0.0.1:6379/0")}}
		}
		if maybe(3) {
			c["volumeMounts"] = []any{object{"name": pick("data", "data", "farpool-socket"), "mountPath": pick("/data", "/run", "/run/farpool/x", "/etc")}}
		}
		if maybe(4) {
			c["ports"] = []any{object{"containerPort": json.Number(fmt.Sprint(pick(80, 8080, 6379, 7402))), "protocol": pick("TCP", "UDP")}}
		}
		if maybe(6) {
			c["later"] = pick(nil, true, "x", []any{}, object{"a": []any{object{}}})
		}
		return c
	}
	spec := object{}
	unique := func(count int) []any {
		var list []any
		for i := range count {
			c := container(i)
			taken := false
			for _, other := range list {
				taken = taken || other.(object)["name"] == c["name"]
			}
			if !taken {
				list = append(list, c)
			}
		}
		return list
	}
	spec["containers"] = unique(1 + r.IntN(3))
	switch r.IntN(6) {
	case 0:
		spec["initContainers"] = pick([]any{}, nil)
	case 1:
		spec["initContainers"] = []any{object{"name": "istio-init"}, object{"name": "istio-proxy", "restartPolicy": "Always"}, object{"name": "migrate"}}
	case 2:
		spec["initContainers"] = []any{object{"name": "linkerd-init"}, object{"name": "migrate"}}
	}
	for key, value := range map[string]any{
		"hostNetwork": maybe(20), "shareProcessNamespace": maybe(20), "restartPolicy": pick("Always", "Never", "OnFailure"), "dnsPolicy": pick("ClusterFirst", "ClusterFirst", "ClusterFirst", "None"),
		"volumes":                       pick(nil, []any{}, []any{object{"name": "data", "emptyDir": object{}}}, []any{object{"name": "data"}, object{"name": "farpool-state"}}),
		"terminationGracePeriodSeconds": json.Number(fmt.Sprint(r.IntN(40))), "resources": pick(nil, nil, nil, resources()),
		"imagePullSecrets": pick(nil, []any{object{"name": "mine"}}), "nodeSelector": pick(nil, object{"kubernetes.io/os": pick("linux", "linux", "windows")}),
	} {
		if maybe(3) {
			spec[key] = value
		}
	}
	annotations := object{}
	for key, value := range map[string]any{
		v1alpha1.SidecarPrefix + "pool": pick("data/cache", "data/cache", "cache"), v1alpha1.SidecarPrefix + "port": pick("6379", "none", "6380"),
		v1alpha1.SidecarPrefix + "cpu": pick("100m", "1"), v1alpha1.SidecarPrefix + "memory": pick("128Mi", "1Gi"), v1alpha1.SidecarPrefix + "containers": pick(names[0], names[0], "none"),
		"traffic.sidecar.istio.io/excludeOutboundPorts": pick("", "5432", "5432,7400", " 7400 ", "x"), "config.linkerd.io/skip-outbound-ports": pick("7000-8000", "25", "1-2,3"),
		"a~b/c": "d", v1alpha1.SidecarPrefix + "unknown": "x",
	} {
		of := 3
		if key == v1alpha1.SidecarPrefix+"unknown" {
			of = 20
		}
		if maybe(of) {
			annotations[key] = value
		}
	}
	metadata := object{"labels": object{v1alpha1.LabelInject: pick("true", "true", "true", "true", "false")}}
	if maybe(2) {
		metadata["name"] = "web"
	}
	if len(annotations) > 0 || maybe(2) {
		metadata["annotations"] = annotations
	}
	return object{"metadata": metadata, "spec": spec, "apiVersion": "v1", "kind": "Pod"}
}

// Random pods are refused, or injected so that everything that was there stays, the class is kept, and another call changes nothing. The same pod has the same
// patch each time.
func TestRandomPods(t *testing.T) {
	pools := oneCluster()
	injected, refused := 0, map[Reason]int{}
	for i := range *podCount {
		seed := *podSeed + uint64(i)
		raw, err := json.Marshal(randomPod(rand.New(rand.NewPCG(seed, 0))))
		if err != nil {
			t.Fatal(err)
		}
		injection, err := Pod(raw, "shop", pools, Settings{})
		repeated, errRepeated := Pod(raw, "shop", pools, Settings{})
		if err != nil {
			if AsRefusal(err) == nil || errRepeated == nil || errRepeated.Error() != err.Error() {
				t.Fatalf("seed %d: %v, and again %v", seed, err, errRepeated)
			}
			refused[AsRefusal(err).Reason]++
			continue
		}
		if string(injection.Patch) != string(repeated.Patch) {
			t.Fatalf("seed %d: %s, and again %s", seed, injection.Patch, repeated.Patch)
		}
		if injection.Patch == nil {
			continue
		}
		injected++
		checkInjected(t, raw, patched(t, raw, injection), pools)
		if t.Failed() {
			t.Fatalf("seed %d: %s", seed, raw)
		}
	}
	t.Logf("%d of %d injected, refused: %v", injected, *podCount, refused)
	if injected < *podCount/20 || len(refused) < 8 {
		t.Errorf("%d of %d were injected and %d reasons were met: the pods say little", injected, *podCount, len(refused))
	}
}

// FuzzPod injects whatever comes. It must be refused, or be left alone by another call.
func FuzzPod(f *testing.F) {
	f.Add(asJSON(f, plain))
	f.Add([]byte(`{"metadata":{"labels":{"farpool.dev/inject":"true"},"annotations":null},"spec":{"containers":[{"name":"a","env":null}],"initContainers":null,"volumes":[]}}`))
	f.Add([]byte(`{"metadata":{"labels":{"farpool.dev/inject":"true"}},"spec":{"containers":[{"name":"a","resources":{"limits":{"cpu":1,"memory":"1e3"}}}],"resources":{}}}`))
	for seed := range uint64(20) {
		raw, err := json.Marshal(randomPod(rand.New(rand.NewPCG(seed, 1))))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	pools := oneCluster()
	f.Fuzz(func(t *testing.T, raw []byte) {
		injection, err := Pod(raw, "shop", pools, Settings{})
		if err != nil {
			if refusal := AsRefusal(err); refusal == nil || refusal.Message == "" {
				t.Fatalf("%v is no refusal", err)
			}
			return
		}
		if injection.Patch == nil {
			return
		}
		// The API server sends each key once.
		once, err := json.Marshal(decoded(t, raw))
		if err != nil {
			t.Fatal(err)
		}
		again, err := Pod(patched(t, once, injection), "shop", pools, Settings{})
		if err != nil || again.Patch != nil {
			t.Fatalf("another call: %v %v, after %s", again, err, injection.Patch)
		}
	})
}

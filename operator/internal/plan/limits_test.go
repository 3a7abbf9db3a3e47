// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	schemavalidation "k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	farpoolv1alpha1 "farpool.dev/farpool/api/gen/farpool/v1alpha1"
	"farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/agent"
	"farpool.dev/farpool/operator/internal/shardmap"
)

// schemas are those of the CRDs, by kind.
func schemas(t *testing.T) map[string]schemavalidation.SchemaValidator {
	t.Helper()
	files, err := filepath.Glob("../../../config/crd/bases/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no CRDs (%v)", err)
	}
	loaded := map[string]schemavalidation.SchemaValidator{}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.UnmarshalStrict(data, crd); err != nil {
			t.Fatal(err)
		}
		var internal apiextensions.CustomResourceValidation
		if err := apiextensionsv1.Convert_v1_CustomResourceValidation_To_apiextensions_CustomResourceValidation(crd.Spec.Versions[0].Schema, &internal, nil); err != nil {
			t.Fatal(err)
		}
		if loaded[crd.Spec.Names.Kind], _, err = schemavalidation.NewSchemaValidator(internal.OpenAPIV3Schema); err != nil {
			t.Fatal(err)
		}
	}
	return loaded
}

// fits fails the test if the API server would refuse part of an object.
func fits(t *testing.T, schema schemavalidation.SchemaValidator, kind, part string, value any) {
	t.Helper()
	raw, err := json.Marshal(map[string]any{"apiVersion": v1alpha1.GroupVersion.String(), "kind": kind, part: value})
	if err != nil {
		t.Fatal(err)
	}
	var object map[string]any
	if err := json.Unmarshal(raw, &object); err != nil {
		t.Fatal(err)
	}
	for _, wrong := range schemavalidation.ValidateCustomResource(nil, object, schema) {
		if strings.HasPrefix(wrong.Field, part+".") {
			t.Errorf("%s: %v", kind, wrong)
		}
	}
}

// excess fills every field of a message with more than anyone would say: long words, long lists, great numbers.
func excess(message protoreflect.Message, depth int) {
	fields := message.Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		one := func() protoreflect.Value {
			switch field.Kind() {
			case protoreflect.StringKind:
				return protoreflect.ValueOfString(strings.Repeat("é", 5000))
			case protoreflect.Uint64Kind:
				return protoreflect.ValueOfUint64(math.MaxUint64)
			case protoreflect.Fixed64Kind:
				return protoreflect.ValueOfUint64(math.MaxUint64)
			case protoreflect.Uint32Kind:
				return protoreflect.ValueOfUint32(math.MaxUint32)
			case protoreflect.BoolKind:
				return protoreflect.ValueOfBool(true)
			case protoreflect.EnumKind:
				return protoreflect.ValueOfEnum(1)
			}
			return protoreflect.Value{}
		}
		switch {
		case field.IsList() && field.Message() == nil:
			list := message.Mutable(field).List()
			for range 300 {
				if value := one(); value.IsValid() {
					list.Append(value)
				}
			}
		case field.IsList():
			list := message.Mutable(field).List()
			for range 300 {
				if depth > 0 {
					excess(list.AppendMutable().Message(), depth-1)
				}
			}
		case field.Message() != nil:
			if depth > 0 {
				excess(message.Mutable(field).Message(), depth-1)
			}
		default:
			if value := one(); value.IsValid() {
				message.Set(field, value)
			}
		}
	}
}

// checkStatuses fails the test if the API server would refuse a status, or a map.
func checkStatuses(t *testing.T, schemas map[string]schemavalidation.SchemaValidator, plan *decision) {
	t.Helper()
	for _, status := range plan.Status.Nodes {
		fits(t, schemas["MemoryNode"], "MemoryNode", "status", status)
	}
	for _, status := range plan.Status.Maps {
		fits(t, schemas["ShardMap"], "ShardMap", "status", status)
	}
	for _, status := range plan.Status.Leases {
		fits(t, schemas["RepairLease"], "RepairLease", "status", status)
	}
	for _, status := range plan.Status.Resizes {
		fits(t, schemas["ResizeOperation"], "ResizeOperation", "status", status)
	}
	for _, status := range plan.Status.MemoryPools {
		fits(t, schemas["MemoryNodePool"], "MemoryNodePool", "status", status)
	}
	for _, status := range plan.Status.ComputePools {
		fits(t, schemas["ComputeShardPool"], "ComputeShardPool", "status", status)
	}
	fits(t, schemas["KVPool"], "KVPool", "status", plan.Status.Pool)
	if spec := planned(&plan.Plan); spec != nil {
		fits(t, schemas["ShardMap"], "ShardMap", "spec", spec)
	}
	for _, event := range append(plan.Events, plan.Status.Events...) {
		if len(event.Note) > 1024 {
			t.Errorf("an event %s has a note of %d bytes; 1024 is the most", event.Reason, len(event.Note))
		}
	}
}

// TestNothingThatProcessesSayMakesAStatusInvalid has each field of what processes say exceed all limits, one process at a time: the API server would
// refuse a status that took it over, and with it what other processes are doing would stay unknown.
func TestNothingThatProcessesSayMakesAStatusInvalid(t *testing.T) {
	schemas := schemas(t)
	who := []string{"cache-memory-0", "a"}
	for _, name := range who {
		var probe farpoolv1alpha1.Facts
		excess(probe.ProtoReflect(), 3)
		names := fieldsOf(probe.ProtoReflect())
		names = append(names, fieldsOf(probe.GetMemoryNode().ProtoReflect())...)
		for _, field := range append(names, "") { // in the end all at once
			w := newWard(t)
			observed := w.Agents[observedPod(name)]
			said := proto.CloneOf(observed.Facts)
			var extreme farpoolv1alpha1.Facts
			excess(extreme.ProtoReflect(), 3)
			take(said.ProtoReflect(), extreme.ProtoReflect(), field)
			if node := said.GetMemoryNode(); node != nil {
				take(node.ProtoReflect(), extreme.GetMemoryNode().ProtoReflect(), field)
			}
			// The rest is what streams let through.
			said.PoolUid, said.Role, said.Name = observed.Facts.GetPoolUid(), observed.Facts.GetRole(), observed.Facts.GetName()
			if name == "a" {
				said.MemoryNode = nil
			}
			observed.Facts = said
			w.Agents[observedPod(name)] = observed
			for range 3 {
				checkStatuses(t, schemas, w.step())
			}
			observed.State, observed.Error = agent.Refused, strings.Repeat("é", 5000)
			w.Agents[observedPod(name)] = observed
			checkStatuses(t, schemas, w.step())
			if t.Failed() {
				t.Fatalf("when %s exceeds in %q", name, field)
			}
		}
	}
}

func TestNothingThatARepairSaysMakesAStatusInvalid(t *testing.T) {
	schemas := schemas(t)
	w := newWard(t)
	w.gone("a")
	w.step()
	w.step()
	for _, call := range w.last.Ask {
		fence := &farpoolv1alpha1.FenceResponse{}
		excess(fence.ProtoReflect(), 3)
		w.outcome(agent.Outcome{Call: call, At: w.now, Fence: fence})
	}
	checkStatuses(t, schemas, w.step())
	repair := &farpoolv1alpha1.RepairResponse{}
	excess(repair.ProtoReflect(), 3)
	for i, node := range repair.GetNodes() {
		node.Name += strings.Repeat("x", i)
	}
	call := w.asked()
	w.outcome(agent.Outcome{Call: call, At: w.now, Repair: repair})
	plan := w.step()
	checkStatuses(t, schemas, plan)
	for _, status := range plan.Status.Leases {
		if len(status.Nodes) > 2 {
			t.Errorf("a lease tells of %d memory nodes, of 2 that there are", len(status.Nodes))
		}
	}
	call.Attempt = 2
	w.outcome(agent.Outcome{Call: call, At: w.now, Error: strings.Repeat("é", 5000)})
	checkStatuses(t, schemas, w.step())
}

func TestAnEndpointThatNoMapCanHoldIsRefused(t *testing.T) {
	s := newScene(2, v1alpha1.DataPolicyCache)
	first := s.decide(t)
	s.carryOut(t, &first.Plan)
	settled := s.decide(t)
	s.carryOut(t, &settled.Plan)
	s.answer("cache-memory-0", 200, nil)
	s.Agents["pod-cache-memory-0"].Facts.MemoryNode.Endpoint = strings.Repeat("x", 301)
	s.answer("cache-memory-1", 201, nil)
	plan := s.decide(t)
	spec := published(t, plan)
	if spec.Nodes[0].Incarnation != "100" || spec.Nodes[1].Incarnation != "201" {
		t.Errorf("the next map has nodes %v: the one whose endpoint is too long keeps its entry, the other gets a new one", spec.Nodes)
	}
	wantCondition(t, plan, v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonGeometryMismatch)
	held, err := shardmap.ToMessage(spec)
	if err != nil {
		t.Fatal(err)
	}
	held.Nodes[0].Endpoint = strings.Repeat("x", 301)
	if _, err := shardmap.FromMessage("cache", held); err == nil {
		t.Error("a map with such an endpoint is taken over from a memory node")
	}
}

func observedPod(name string) types.UID { return types.UID("pod-" + name) }

func fieldsOf(message protoreflect.Message) []string {
	var names []string
	for i := range message.Descriptor().Fields().Len() {
		names = append(names, string(message.Descriptor().Fields().Get(i).Name()))
	}
	return names
}

// take a field over from another message of the type; an empty name: all fields.
func take(into, from protoreflect.Message, name string) {
	fields := from.Descriptor().Fields()
	for i := range fields.Len() {
		if field := fields.Get(i); (name == "" || string(field.Name()) == name) && from.Has(field) && field.Name() != "memory_node" {
			into.Set(field, from.Get(field))
		}
	}
}

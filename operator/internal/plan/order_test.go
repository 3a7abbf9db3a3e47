// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	applycore "k8s.io/client-go/applyconfigurations/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/observe"
	"farpool.dev/farpool/operator/internal/render"
)

// errRefuses is a memory node's answer that it will not have a map.
var errRefuses = errors.New("an older epoch")

// recorder are hands that write down what they are asked to do. What `fails` names, fails.
type recorder struct {
	fails   map[string]error
	follows bool
	kinds   map[error]Failure
	log     []string
}

func (r *recorder) do(what string) error {
	r.log = append(r.log, what)
	return r.fails[what]
}

func (r *recorder) SideBySide(count int, do func(int)) {
	for i := range count {
		do(i)
	}
}

func (r *recorder) Apply(object render.Object) error {
	return r.do("apply " + *object.(*applycore.SecretApplyConfiguration).Name)
}
func (r *recorder) Delete(object client.Object) error { return r.do("delete " + object.GetName()) }
func (r *recorder) Relabel(object client.Object, _ map[string]string) error {
	return r.do("relabel " + object.GetName())
}
func (r *recorder) Adopt(adoption Adoption) error { return r.do("adopt " + adoption.Pod.Name) }
func (r *recorder) Judge(err error) Failure       { return r.kinds[err] }
func (r *recorder) Announce(events []Event) {
	for _, event := range events {
		_ = r.do("announce " + event.Reason)
	}
}
func (r *recorder) Connect() error { return r.do("connect") }
func (r *recorder) Tell(publications []Publication, prepare bool) (told []Publication, failures []error) {
	for _, publication := range publications {
		what := "follow "
		if prepare {
			what = "prepare "
		}
		if err := r.do(what + publication.Node); err != nil {
			failures = append(failures, err)
		} else {
			told = append(told, publication)
		}
	}
	return told, failures
}
func (r *recorder) Refuses(err error) bool    { return errors.Is(err, errRefuses) }
func (r *recorder) Conflict(err error)        { _ = r.do("conflict: " + err.Error()) }
func (r *recorder) Follow([]Publication) bool { return r.follows }
func (r *recorder) Blame(outcome Outcome)     { _ = r.do(fmt.Sprintf("blame %d", len(outcome[Failed]))) }
func (r *recorder) WriteStatuses() []error {
	if err := r.do("write statuses"); err != nil {
		return []error{err}
	}
	return nil
}
func (r *recorder) Ask() { _ = r.do("ask") }

// planOfAll has a step of each kind. "a" and "b" need nothing; "c" needs "b"; "d" needs "c".
func planOfAll() *Plan {
	secret := func(name string) render.Object { return applycore.Secret(name, "ns") }
	named := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name} }
	a, b, c, d := secret("a"), secret("b"), secret("c"), secret("d")
	return &Plan{
		Apply:        []render.Object{a, b, c, d},
		Needs:        map[render.Object][]render.Object{c: {b}, d: {c}},
		Relabel:      []Relabelling{{Object: &corev1.Pod{ObjectMeta: named("l")}}},
		Adopt:        []Adoption{{Pod: &corev1.Pod{ObjectMeta: named("m")}}},
		Delete:       []client.Object{&corev1.Pod{ObjectMeta: named("x")}},
		Events:       []Event{{Reason: "Always"}, {Reason: "WithA", With: a}, {Reason: "WithC", With: c}},
		ConnectNeeds: []render.Object{a},
		PublishNeeds: []render.Object{d},
		Publish:      []Publication{{Node: "n0"}, {Node: "n1"}},
	}
}

// Each step takes place whatever became of the others, except for steps that need them.
func TestCarryOut(t *testing.T) {
	broken := errors.New("broken")
	applied := []string{"apply a", "apply b", "apply c", "apply d"}
	others := []string{"relabel l", "adopt m", "delete x"}
	announced := []string{"announce Always", "announce WithA", "announce WithC"}
	prepared := []string{"prepare n0", "prepare n1"}
	followed := append(prepared, "follow n0", "follow n1")
	ends := func(blamed int) []string { return []string{fmt.Sprintf("blame %d", blamed), "write statuses", "ask"} }
	for _, c := range []struct {
		name    string
		fails   map[string]error
		kinds   map[error]Failure
		follows bool
		without func(*Plan)
		want    []string
		outcome Outcome
	}{
		{name: "a published map makes the operator look at the pool again: these statuses would be old",
			follows: true, want: slices.Concat(applied, others, announced, []string{"connect"}, followed)},
		{name: "nodes that do not follow yet leave statuses to be written",
			want: slices.Concat(applied, others, announced, []string{"connect"}, followed, ends(0))},
		{name: "a plan without a map writes its statuses", follows: true, without: func(p *Plan) { p.Publish = nil },
			want: slices.Concat(applied, others, announced, []string{"connect"}, ends(0))},
		{name: "a failure is in the statuses, though nodes were told", follows: true, fails: map[string]error{"delete x": broken},
			want:    slices.Concat(applied, others, announced, []string{"connect"}, followed, ends(1)),
			outcome: Outcome{Failed: {broken}}},
		{name: "what needs an object that failed is not applied, nor what needs that; nothing is said of it, and no map is published",
			fails:   map[string]error{"apply b": broken},
			want:    slices.Concat(applied[:2], others, announced[:2], []string{"connect"}, ends(1)),
			outcome: Outcome{Failed: {broken}}},
		{name: "nothing is deleted while an object is put off that may take its place", fails: map[string]error{"apply d": broken}, kinds: map[error]Failure{broken: Later},
			want: slices.Concat(applied, others[:2], announced, []string{"connect"}, ends(0)), outcome: Outcome{Later: {broken}}},
		{name: "what needs an object that failed is not deleted either", fails: map[string]error{"apply b": broken}, without: func(p *Plan) { p.DeleteNeeds = map[client.Object][]render.Object{p.Delete[0]: p.Apply[2:3]} },
			want:    slices.Concat(applied[:2], others[:2], announced[:2], []string{"connect"}, ends(1)),
			outcome: Outcome{Failed: {broken}}},
		{name: "what needs an object that is applied is deleted", follows: true, without: func(p *Plan) { p.DeleteNeeds = map[client.Object][]render.Object{p.Delete[0]: p.Apply[2:3]} },
			want: slices.Concat(applied, others, announced, []string{"connect"}, followed)},
		{name: "there are no streams without what they need", fails: map[string]error{"apply a": broken},
			want: slices.Concat(applied, others, []string{"announce Always", "announce WithC"}, followed, ends(1)), follows: true,
			outcome: Outcome{Failed: {broken}}},
		{name: "nothing is done in a namespace that ends", fails: map[string]error{"apply b": broken}, kinds: map[error]Failure{broken: Ending},
			want: applied[:2], outcome: Outcome{Ending: {broken}}},
		{name: "no node follows a map that another refuses to hold", fails: map[string]error{"prepare n1": errRefuses},
			want:    slices.Concat(applied, others, announced, []string{"connect"}, prepared, []string{"conflict: an older epoch"}, ends(0)),
			outcome: Outcome{Failed: {errRefuses}}},
		{name: "a node that does not answer keeps no other waiting", fails: map[string]error{"prepare n0": broken}, follows: true,
			want:    slices.Concat(applied, others, announced, []string{"connect"}, prepared, []string{"follow n1"}, ends(0)),
			outcome: Outcome{Failed: {broken}}},
		{name: "a node that holds a map and does not follow it has not been told", fails: map[string]error{"follow n1": broken}, follows: true,
			want:    slices.Concat(applied, others, announced, []string{"connect"}, followed, ends(0)),
			outcome: Outcome{Failed: {broken}}},
		{name: "statuses that cannot be written are told", fails: map[string]error{"write statuses": broken},
			want:    slices.Concat(applied, others, announced, []string{"connect"}, followed, ends(0)),
			outcome: Outcome{Failed: {broken}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := planOfAll()
			if c.without != nil {
				c.without(p)
			}
			hands := &recorder{fails: c.fails, kinds: c.kinds, follows: c.follows}
			outcome := p.CarryOut(hands)
			if !slices.Equal(hands.log, c.want) {
				t.Errorf("was done:\n  %s\nwanted:\n  %s", strings.Join(hands.log, "\n  "), strings.Join(c.want, "\n  "))
			}
			for _, kind := range []Failure{Failed, Refused, Stale, Ending, Later} {
				if !slices.Equal(outcome[kind], c.outcome[kind]) {
					t.Errorf("failures of kind %d: %v, want %v", kind, outcome[kind], c.outcome[kind])
				}
			}
		})
	}
}

// The status of a ShardMap is not written if the map is deleted, or nothing is decided about it. The pool's own status comes last.
func TestStatusesOfMapsThatStay(t *testing.T) {
	mapOf := func(name string) *v1alpha1.ShardMap {
		return &v1alpha1.ShardMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
	}
	stays, goes, unknown := mapOf("stays"), mapOf("goes"), mapOf("unknown")
	p := &Plan{Delete: []client.Object{goes}, Status: Status{Maps: map[string]v1alpha1.ShardMapStatus{"stays": {}, "goes": {}}}}
	pool := &v1alpha1.KVPool{}
	var written []client.Object
	for _, write := range p.Statuses(&observe.Snapshot{Pool: pool, ShardMaps: []*v1alpha1.ShardMap{unknown, goes, stays}}) {
		written = append(written, write.Object)
	}
	if want := []client.Object{stays, pool}; !slices.Equal(written, want) {
		t.Errorf("statuses of %v are written, want those of %v", written, want)
	}
}

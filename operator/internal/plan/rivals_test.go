// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/observe"
)

// If two operators have made a pool's Secrets, exactly one goes on, whichever of them is asked.
func TestOneOfTwoOperatorsGivesWay(t *testing.T) {
	made := func(namespace string, second int64) *corev1.Secret {
		if second < 0 {
			return nil
		}
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "hash", CreationTimestamp: metav1.Unix(second, 0)}}
	}
	view := func(own, rival *corev1.Secret) *observe.Snapshot {
		s := &observe.Snapshot{Kept: map[string]*corev1.Secret{}, Rivals: map[string]*corev1.Secret{}}
		if own != nil {
			s.Kept[own.Name] = own
		}
		if rival != nil {
			s.Rivals[rival.Namespace] = rival
		}
		return s
	}
	for _, c := range []struct {
		name         string
		here, there  int64
		serves, idle string
	}{
		{"only here", 5, -1, "here", ""},
		{"only there", -1, 5, "there", "here"},
		{"here first", 5, 6, "here", "there"},
		{"there first", 6, 5, "there", "here"},
		{"at once", 5, 5, "here", "there"},
	} {
		here, there := made("here", c.here), made("there", c.there)
		for own, gives := range map[string]string{
			"here":  GivesWay(view(here, there), []types.NamespacedName{{Namespace: "here", Name: "hash"}}),
			"there": GivesWay(view(there, here), []types.NamespacedName{{Namespace: "there", Name: "hash"}}),
		} {
			if (own == c.serves) != (gives == "") || gives != "" && gives != c.serves {
				t.Errorf("%s: the operator %s gives way to %q", c.name, own, gives)
			}
		}
	}
	// None comes before itself.
	if secret := made("here", 5); before(secret, secret) {
		t.Error("a Secret came before itself")
	}
	// The first of several.
	s := view(nil, made("later", 7))
	s.Rivals["first"] = made("first", 6)
	if gives := GivesWay(s, nil); gives != "first" {
		t.Error(gives)
	}
}

func TestTheOperatorThatWasFirstWarnsOfAnother(t *testing.T) {
	s := newScene(1, v1alpha1.DataPolicyCache)
	s.Rivals = map[string]*corev1.Secret{"elsewhere": {ObjectMeta: metav1.ObjectMeta{Namespace: "elsewhere", CreationTimestamp: metav1.NewTime(s.now.Add(time.Hour))}}}
	for _, told := range []int{1, 0} {
		plan := s.decide(t)
		wantCondition(t, plan, v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonAnotherOperator)
		events := 0
		for _, event := range plan.Status.Events {
			if event.Reason == v1alpha1.ReasonAnotherOperator && strings.Contains(event.Note, "elsewhere") {
				events++
			}
		}
		if events != told {
			t.Errorf("%d events, want %d", events, told)
		}
		s.carryOut(t, &plan.Plan)
		s.Pool.Status = plan.Status.Pool
	}
	s.Rivals = nil
	wantCondition(t, s.decide(t), v1alpha1.ConditionDegraded, metav1.ConditionFalse, v1alpha1.ReasonHealthy)
}

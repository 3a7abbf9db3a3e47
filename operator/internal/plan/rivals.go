// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	"farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/observe"
)

// Two operators that serve one pool have an authority and a hash secret each, send memory nodes different maps, and overwrite each other's statuses without end.
// Leader election covers one namespace, so it keeps no two installations apart. The Secrets do: the operator that made them first keeps the pool.

// GivesWay returns the namespace where another operator keeps the Secrets of a pool, if it was first; empty: the pool is this operator's. kept are the names of
// this operator's Secrets.
func GivesWay(s *observe.Snapshot, kept []types.NamespacedName) string {
	var first *corev1.Secret
	for _, secret := range s.Rivals {
		if first == nil || before(secret, first) {
			first = secret
		}
	}
	if first == nil {
		return ""
	}
	for _, name := range kept {
		if own := s.Kept[name.Name]; own != nil && before(own, first) {
			return ""
		}
	}
	return first.Namespace
}

// before says which of two Secrets came first. Times have a resolution of one second; within a second the name decides, for both operators in the same way.
func before(a, b *corev1.Secret) bool {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Namespace, b.Namespace)) < 0
}

// rivals reports operators that have made Secrets for the pool, though this one was first.
func (d *decision) rivals() []finding {
	if len(d.Rivals) == 0 {
		return nil
	}
	found := finding{v1alpha1.ReasonAnotherOperator, fmt.Sprintf(
		"an operator that keeps its Secrets in another namespace (%s) has made some for this pool, which the operator of namespace %s serves: uninstall one of them, or give them different namespaces to watch, and delete the Secrets there with label %s=%s",
		some(slices.Sorted(maps.Keys(d.Rivals))), cmp.Or(d.Settings.SecretNamespace, d.Pool.Namespace), v1alpha1.LabelPoolUID, d.Pool.UID)}
	was := meta.FindStatusCondition(d.Pool.Status.Conditions, v1alpha1.ConditionDegraded)
	if was == nil || !strings.Contains(was.Message, found.message) {
		d.Status.Events = append(d.Status.Events, Event{Regarding: d.Pool, Type: corev1.EventTypeWarning, Reason: found.reason, Action: "Serve", Note: clip(found.message)})
	}
	return []finding{found}
}

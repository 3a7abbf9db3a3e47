// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"bytes"
	"maps"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"farpool.dev/farpool/api/v1alpha1"
)

// former puts what is kept of a pool to where operators of before had it.
func (s *scene) former(t *testing.T) (authority, hash *corev1.Secret) {
	t.Helper()
	s.carryOut(t, &s.decide(t).Plan)
	at := func(name string, of *corev1.Secret) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, ResourceVersion: "7"}, Data: maps.Clone(of.Data)}
	}
	authority, hash = at("cache-ca", s.Kept["cache-uid-ca"]), at("cache-secret", s.Kept["cache-uid-secret"])
	s.Secrets["cache-ca"], s.Secrets["cache-secret"] = authority, hash
	clear(s.Kept)
	return authority, hash
}

func TestSecretsOfAnOlderPoolAreCopiedThenSeenThenDeleted(t *testing.T) {
	s := newScene(1, v1alpha1.DataPolicyCache)
	authority, hash := s.former(t)
	plan := s.decide(t)
	if len(plan.Delete) != 0 {
		t.Errorf("deleted before the copy is seen: %v", plan.Delete)
	}
	s.carryOut(t, &plan.Plan)
	if !maps.EqualFunc(s.Kept["cache-uid-ca"].Data, authority.Data, bytes.Equal) || !maps.EqualFunc(s.Kept["cache-uid-secret"].Data, hash.Data, bytes.Equal) {
		t.Error("what is kept is not what was there")
	}
	plan = s.decide(t)
	if !slices.Contains(plan.Delete, client.Object(authority)) || !slices.Contains(plan.Delete, client.Object(hash)) || len(plan.Delete) != 2 {
		t.Errorf("deleted are %v", plan.Delete)
	}

	// Another hash secret, or authority, is nothing that may go: nobody knows why it is there.
	hash.Data["pool-secret"] = bytes.Repeat([]byte{1}, 16)
	authority.Data["tls.crt"] = []byte("another")
	if plan = s.decide(t); len(plan.Delete) != 0 {
		t.Errorf("deleted are %v", plan.Delete)
	}
}

// An authority that is due is renewed while it is moved, and what signed before is seen in its bundle.
func TestAnAuthorityIsRenewedWhileItMoves(t *testing.T) {
	s := newScene(1, v1alpha1.DataPolicyCache)
	authority, _ := s.former(t)
	s.now = s.now.AddDate(6, 0, 0)
	s.carryOut(t, &s.decide(t).Plan)
	if len(s.Kept["cache-uid-ca"].Data["next.crt"]) == 0 {
		t.Error("it has no successor")
	}
	if plan := s.decide(t); !slices.Contains(plan.Delete, client.Object(authority)) {
		t.Errorf("deleted are %v", plan.Delete)
	}
}

// A user who may write Secrets in a pool's namespace must not choose its authority.
func TestANewPoolTakesNoAuthorityFromItsNamespace(t *testing.T) {
	s := newScene(1, v1alpha1.DataPolicyCache)
	planted, _ := s.former(t)
	s.Nodes["cache-memory-0"].Spec.TemplateVersion = 4
	clear(s.Kept)
	s.ShardMaps, s.Pool.Status = nil, v1alpha1.KVPoolStatus{}
	s.answer("cache-memory-0", 100, nil)
	s.now = s.now.Add(time.Hour) // the randomness is the same
	plan := s.decide(t)
	s.carryOut(t, &plan.Plan)
	if bytes.Equal(s.Kept["cache-uid-ca"].Data["tls.crt"], planted.Data["tls.crt"]) || len(s.Kept["cache-uid-ca"].Data["tls.crt"]) == 0 {
		t.Error("the authority is the one that was planted")
	}
	if len(plan.Delete) != 0 {
		t.Errorf("deleted are %v", plan.Delete)
	}
}

// TestPoolsOfOneNameKeepApart: a pool that is made anew, or one in another namespace, has Secrets of its own.
func TestPoolsOfOneNameKeepApart(t *testing.T) {
	s := newScene(1, v1alpha1.DataPolicyCache)
	s.carryOut(t, &s.decide(t).Plan)
	first := maps.Clone(s.Kept)
	s.Pool.UID, s.Pool.Status, s.ShardMaps = "another", v1alpha1.KVPoolStatus{}, nil
	clear(s.Agents)
	s.carryOut(t, &s.decide(t).Plan)
	if len(s.Kept) != 4 || bytes.Equal(s.Kept["cache-another-ca"].Data["tls.crt"], first["cache-uid-ca"].Data["tls.crt"]) {
		t.Errorf("kept are %v", slices.Sorted(maps.Keys(s.Kept)))
	}
}

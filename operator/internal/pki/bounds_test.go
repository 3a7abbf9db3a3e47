// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"
)

// An identity lacks nothing.
func TestIdentitiesAreWhole(t *testing.T) {
	for uri, whole := range map[string]bool{
		"farpool://8f0c/node/cache":   true,
		"farpool:///node/cache":       false,
		"farpool://8f0c/node":         false,
		"farpool://8f0c//cache":       false,
		"farpool://8f0c/node/":        false,
		"farpool://8f0c/node/cache/0": false,
	} {
		parsed, err := url.Parse(uri)
		if err != nil {
			t.Fatal(err)
		}
		identity, err := IdentityOf(&x509.Certificate{URIs: []*url.URL{parsed}})
		if (err == nil) != whole || whole && identity != (Identity{PoolUID: uid, Role: RoleNode, Name: "cache"}) {
			t.Errorf("%s is read as %+v, %v", uri, identity, err)
		}
	}
}

// A certificate is made anew when any name of what it is for has changed, and kept otherwise.
func TestACertificateIsForWhatItIsAskedFor(t *testing.T) {
	authority, _ := mustAuthority(t, nil, start)
	asked := Request{DNSNames: []string{"cache", "cache.shop"}, Server: true}
	data, _ := mustCertificate(t, authority, nil, asked, start)
	for what, c := range map[string]struct {
		request Request
		anew    bool
	}{
		"the same":           {asked, false},
		"another host":       {Request{DNSNames: []string{"cache", "cache.mall"}, Server: true}, true},
		"one host less":      {Request{DNSNames: []string{"cache"}, Server: true}, true},
		"an identity beside": {Request{DNSNames: asked.DNSNames, Identity: nodeRequest().Identity, Server: true}, true},
		"nothing":            {Request{Server: true}, true},
	} {
		if _, anew := mustCertificate(t, authority, data, c.request, start); anew != c.anew {
			t.Errorf("%s: made anew is %v", what, anew)
		}
	}
}

// The subject is the holder's name, or else the first host, as far as there is room.
func TestSubjects(t *testing.T) {
	long := strings.Repeat("n", 65)
	for want, request := range map[string]Request{
		"cache":      nodeRequest(),
		"cache.shop": {DNSNames: []string{"cache.shop", "other"}},
		"":           {},
		long[:64]:    {DNSNames: []string{long}},
	} {
		if is := request.template().Subject.CommonName; is != want {
			t.Errorf("the subject is %q, want %q", is, want)
		}
	}
}

// An authority with a successor is due when that takes its place.
func TestASuccessorIsDue(t *testing.T) {
	authority, _ := mustAuthority(t, nil, start)
	due := authority.RenewAt()
	if want := start.Add(authorityLifetime / 2); due.Before(want.Add(-clockSkew)) || due.After(want) {
		t.Fatalf("an authority is due at %v", due)
	}
	authority, _ = mustAuthority(t, authority.Data(), due)
	if next := authority.RenewAt(); !next.Equal(due.Add(promotionDelay)) {
		t.Errorf("a successor of %v is due at %v", due, next)
	}
}

// A private key has to be the certificate's, and of the kind that certificates have.
func TestAPairIsOne(t *testing.T) {
	one, _ := mustAuthority(t, nil, start)
	other, _ := mustAuthority(t, nil, start)
	_, edwards, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := x509.MarshalPKCS8PrivateKey(edwards)
	if err != nil {
		t.Fatal(err)
	}
	for what, key := range map[string][]byte{
		"another's key":       other.Data()[KeyPrivateKey],
		"a key of other kind": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: foreign}),
		"no key":              nil,
	} {
		if _, err := parsePair(one.Data()[KeyCertificate], key); err == nil {
			t.Errorf("%s is taken", what)
		}
	}
	if _, err := parsePair(one.Data()[KeyCertificate], one.Data()[KeyPrivateKey]); err != nil {
		t.Error(err)
	}
}

// What is remembered of signatures is bounded, and nothing bad is remembered.
func TestRememberedSignaturesAreBounded(t *testing.T) {
	one, _ := mustAuthority(t, nil, start)
	other, _ := mustAuthority(t, nil, start)
	fill := func(entries int) {
		clear(checked.good)
		for i := range entries {
			checked.good[[2][sha256.Size]byte{{byte(i), byte(i >> 8)}}] = true
		}
	}
	defer clear(checked.good)
	for before, want := range map[int]int{mostChecked - 1: mostChecked, mostChecked: 1} {
		fill(before)
		data, _ := mustCertificate(t, one, nil, nodeRequest(), start)
		mustCertificate(t, one, data, nodeRequest(), start)
		if now := len(checked.good); now != want {
			t.Errorf("of %d signatures and one more %d are remembered", before, now)
		}
		for range 2 {
			if _, anew := mustCertificate(t, other, withBundle(data, other), nodeRequest(), start); !anew {
				t.Error("another authority's signature is taken")
			}
		}
	}
}

// withBundle returns a certificate's Secret with the bundle of an authority that has not signed it.
func withBundle(data Data, authority *Authority) Data {
	return Data{KeyCABundle: slices.Clone(authority.Bundle()), KeyCertificate: data[KeyCertificate], KeyPrivateKey: data[KeyPrivateKey]}
}

// A certificate is overdue after two thirds of its life; what is none is never.
func TestOverdue(t *testing.T) {
	authority, _ := mustAuthority(t, nil, start)
	data, _ := mustCertificate(t, authority, nil, nodeRequest(), start)
	life := certificateLifetime + clockSkew
	if due, want := Overdue(data), start.Add(-clockSkew).Add(life*2/3); due.Sub(want).Abs() > time.Second {
		t.Errorf("overdue at %v, want %v", due, want)
	}
	for _, none := range []Data{nil, {KeyCertificate: []byte("damaged")}, {KeyCertificate: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("damaged")})}} {
		if due := Overdue(none); !due.IsZero() {
			t.Errorf("%s is overdue at %v", none, due)
		}
	}
}

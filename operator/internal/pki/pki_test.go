// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"bytes"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"time"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

const uid = "8f0c"

func mustAuthority(t *testing.T, data Data, now time.Time) (*Authority, bool) {
	t.Helper()
	authority, changed, err := RenewAuthority(data, uid, now, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return authority, changed
}

func nodeRequest() Request {
	return Request{Identity: Identity{PoolUID: uid, Role: RoleNode, Name: "cache"}, Client: true, Server: true}
}

func mustCertificate(t *testing.T, a *Authority, data Data, request Request, now time.Time) (Data, bool) {
	t.Helper()
	renewed, changed, _, err := a.RenewCertificate(data, request, now)
	if err != nil {
		t.Fatal(err)
	}
	return renewed, changed
}

func TestCertificatesAreRenewedAtHalfLife(t *testing.T) {
	authority, changed := mustAuthority(t, nil, start)
	if !changed {
		t.Fatal("a new authority must be written")
	}
	authority, changed = mustAuthority(t, authority.Data(), start.Add(time.Hour))
	if changed {
		t.Error("a young authority was changed")
	}
	first, changed := mustCertificate(t, authority, nil, nodeRequest(), start)
	if !changed {
		t.Fatal("a new certificate must be written")
	}
	almost := start.Add(certificateLifetime/2 - time.Hour)
	if _, changed := mustCertificate(t, authority, first, nodeRequest(), almost); changed {
		t.Error("renewed before half its life")
	}
	second, changed := mustCertificate(t, authority, first, nodeRequest(), start.Add(certificateLifetime/2))
	if !changed || bytes.Equal(first[KeyCertificate], second[KeyCertificate]) || bytes.Equal(first[KeyPrivateKey], second[KeyPrivateKey]) {
		t.Error("not renewed at half its life with a new key")
	}
}

func TestCertificatesAreMadeAnewWhenTheySayTheWrongThing(t *testing.T) {
	authority, _ := mustAuthority(t, nil, start)
	held, _ := mustCertificate(t, authority, nil, nodeRequest(), start)
	other, _ := mustAuthority(t, nil, start)

	damaged := Data{KeyCABundle: held[KeyCABundle], KeyCertificate: held[KeyCertificate], KeyPrivateKey: []byte("no key")}
	for name, c := range map[string]struct {
		authority *Authority
		data      Data
		request   Request
	}{
		"another role":      {authority, held, Request{Identity: Identity{PoolUID: uid, Role: RoleClient, Name: "cache"}, Client: true, Server: true}},
		"another host":      {authority, held, Request{DNSNames: []string{"cache.shop.svc"}, Server: true}},
		"another authority": {other, held, nodeRequest()},
		"damaged":           {authority, damaged, nodeRequest()},
	} {
		if _, changed := mustCertificate(t, c.authority, c.data, c.request, start.Add(time.Hour)); !changed {
			t.Errorf("%s: kept", name)
		}
	}
}

// At no moment of a change of authorities does a member hold a certificate that another member does not trust, however long each takes
// to read its files, as long as that is less than the promotion delay.
func TestWhoHoldsACertificateOfTheSameName(t *testing.T) {
	authority, _ := mustAuthority(t, nil, start)
	now, _ := mustCertificate(t, authority, nil, nodeRequest(), start)
	earlier, _ := mustCertificate(t, authority, nil, nodeRequest(), start.Add(-certificateLifetime))
	others := nodeRequest()
	others.Identity.Name = "other"
	other, _ := mustCertificate(t, authority, nil, others, start)
	stranger, _ := mustAuthority(t, nil, start)
	forged, _ := mustCertificate(t, stranger, nil, nodeRequest(), start)
	for name, c := range map[string]struct {
		data Data
		same bool
	}{
		"itself":                        {now, true},
		"an earlier one":                {earlier, true},
		"another's":                     {other, false},
		"another authority's":           {forged, false},
		"another authority's, bundled":  {withBundle(forged, authority), false},
		"a certificate without its key": {Data{KeyCertificate: now[KeyCertificate], KeyPrivateKey: other[KeyPrivateKey]}, false},
		"nothing":                       {Data{"mine": []byte("x")}, false},
	} {
		if got := SameHolder(c.data, now); got != c.same {
			t.Errorf("%s: %v", name, got)
		}
	}
	if SameHolder(now, Data{KeyCertificate: now[KeyCertificate]}) || SameHolder(now, Data{KeyCABundle: now[KeyCABundle]}) {
		t.Error("it is the same as what says nothing")
	}
}

func TestAuthorityChangesWithoutAGap(t *testing.T) {
	authority, _ := mustAuthority(t, nil, start)
	data := authority.Data()
	type version struct {
		at   time.Time
		data Data
	}
	authorities := map[string]bool{}

	half := start.Add(authorityLifetime / 2)
	held, _ := mustCertificate(t, authority, nil, nodeRequest(), half.Add(-49*time.Hour))
	history := []version{{half.Add(-49 * time.Hour), held}}
	for now := half.Add(-48 * time.Hour); now.Before(half.Add(96 * time.Hour)); now = now.Add(time.Hour) {
		authority, changed := mustAuthority(t, data, now)
		if changed {
			data = authority.Data()
		}
		authorities[string(data[KeyCertificate])] = true
		if renewed, changed := mustCertificate(t, authority, held, nodeRequest(), now); changed {
			held = renewed
			history = append(history, version{now, held})
		}
		for i, a := range history {
			for _, b := range history[i:] {
				// Both may still be in use if the older was replaced less than the delay ago.
				if i+1 < len(history) && now.Sub(history[i+1].at) >= promotionDelay {
					continue
				}
				if err := trusts(a.data, b.data, now); err != nil {
					t.Fatalf("%s: the holder of files of %s does not trust those of %s: %v", now, a.at, b.at, err)
				}
				if err := trusts(b.data, a.data, now); err != nil {
					t.Fatalf("%s: the holder of files of %s does not trust those of %s: %v", now, b.at, a.at, err)
				}
			}
		}
	}
	if len(authorities) != 2 {
		t.Errorf("%d authorities signed, want the old and the new", len(authorities))
	}
	late := start.Add(authorityLifetime + time.Hour)
	authority, changed := mustAuthority(t, data, late)
	if !changed || len(authority.previous) != 0 {
		t.Error("an expired authority is still trusted")
	}
}

func trusts(mine, theirs Data, now time.Time) error {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(mine[KeyCABundle])
	chain, err := parseCertificates(theirs[KeyCertificate])
	if err != nil {
		return err
	}
	_, err = chain[0].Verify(x509.VerifyOptions{Roots: roots, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	return err
}

func TestDamagedAuthorityIsAnError(t *testing.T) {
	authority, _ := mustAuthority(t, nil, start)
	for _, key := range []string{KeyCertificate, KeyPrivateKey, KeyCABundle} {
		data := authority.Data()
		data[key] = []byte("garbage")
		if _, _, err := RenewAuthority(data, uid, start, rand.Reader); err == nil || !strings.Contains(err.Error(), "damaged") {
			t.Errorf("%s: %v", key, err)
		}
	}
}

func TestAnAuthorityIsHeldOrNot(t *testing.T) {
	made, _ := mustAuthority(t, nil, start)
	held, err := HeldAuthority(made.Data(), rand.Reader)
	if err != nil || held == nil || !bytes.Equal(held.Bundle(), made.Bundle()) {
		t.Fatalf("%v %v", held, err)
	}
	if certificate, changed := mustCertificate(t, held, nil, nodeRequest(), start); !changed || len(certificate[KeyCertificate]) == 0 {
		t.Error("it signs nothing")
	}
	if none, err := HeldAuthority(nil, rand.Reader); none != nil || err != nil {
		t.Errorf("nothing is held: %v %v", none, err)
	}
	if _, err := HeldAuthority(Data{KeyCertificate: []byte("x")}, rand.Reader); err == nil {
		t.Error("it is damaged")
	}
}

func TestIdentityIsOneURI(t *testing.T) {
	authority, _ := mustAuthority(t, nil, start)
	made, err := authority.sign(nodeRequest(), start, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if len(made.certificate.URIs) != 1 || made.certificate.URIs[0].String() != "farpool://8f0c/node/cache" {
		t.Errorf("URIs %v", made.certificate.URIs)
	}
	identity, err := IdentityOf(made.certificate)
	if err != nil || identity != nodeRequest().Identity {
		t.Errorf("%v %v", identity, err)
	}
	plain, err := authority.sign(Request{DNSNames: []string{"cache"}, Server: true}, start, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := IdentityOf(plain.certificate); err == nil {
		t.Error("a certificate without a URI has an identity")
	}
}

// A certificate with another number is made anew, and one that says the same stays.
func TestSessionsOfACertificate(t *testing.T) {
	authority, _ := mustAuthority(t, nil, start)
	request := nodeRequest()
	held, _ := mustCertificate(t, authority, nil, request, start)
	for _, c := range []struct {
		sessions int32
		changed  bool
		want     []string
	}{
		{0, false, nil},
		{32, true, []string{"farpool-sessions:32"}},
		{32, false, []string{"farpool-sessions:32"}},
		{31, true, []string{"farpool-sessions:31"}},
		{0, true, nil},
	} {
		request.Sessions = c.sessions
		var changed bool
		held, changed = mustCertificate(t, authority, held, request, start)
		certificates, err := parseCertificates(held[KeyCertificate])
		if err != nil || changed != c.changed || !slices.Equal(certificates[0].Subject.OrganizationalUnit, c.want) {
			t.Errorf("%d sessions: changed %v, %v %v", c.sessions, changed, certificates[0].Subject, err)
		}
	}
}

// Both sides check pool and role at each handshake.
func TestHandshakeChecksPoolAndRole(t *testing.T) {
	now := time.Now()
	authority, _ := mustAuthority(t, nil, now)
	other, _ := mustAuthority(t, nil, now)
	credential, err := authority.OperatorCredential(uid, "operator", now)
	if err != nil {
		t.Fatal(err)
	}
	serverOf := func(a *Authority, request Request, admits Role) *tls.Config {
		made, err := a.sign(request, now, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		certificate, err := tls.X509KeyPair(made.certificatePEM, made.keyPEM)
		if err != nil {
			t.Fatal(err)
		}
		return ServerConfig(certificate, rootsOf(authority.Bundle()), uid, admits)
	}
	client := Request{Identity: Identity{PoolUID: uid, Role: RoleClient, Name: "x"}, Client: true, Server: true}
	foreign := Request{Identity: Identity{PoolUID: "other", Role: RoleNode, Name: "x"}, Client: true, Server: true}
	resp := Request{DNSNames: []string{"cache"}, Server: true}
	for name, c := range map[string]struct {
		server             *tls.Config
		wantClient, wantOK bool
	}{
		"a memory node":            {serverOf(authority, nodeRequest(), RoleOperator), false, true},
		"a client for a node":      {serverOf(authority, client, RoleOperator), true, false},
		"another pool's node":      {serverOf(authority, foreign, RoleOperator), true, false},
		"no identity":              {serverOf(authority, resp, RoleOperator), true, false},
		"another authority":        {serverOf(other, nodeRequest(), RoleOperator), true, false},
		"a server that wants node": {serverOf(authority, nodeRequest(), RoleNode), false, false},
	} {
		clientErr, serverErr := handshake(t, credential.ClientConfig(uid, RoleNode, ""), c.server)
		if ok := clientErr == nil && serverErr == nil; ok != c.wantOK {
			t.Errorf("%s: client %v, server %v", name, clientErr, serverErr)
		}
		var peer *PeerError
		if errors.As(clientErr, &peer) != c.wantClient {
			t.Errorf("%s: the client's error is %v", name, clientErr)
		}
	}
	for name, ok := range map[string]bool{nodeRequest().Identity.Name: true, "another": false} {
		clientErr, _ := handshake(t, credential.ClientConfig(uid, RoleNode, name), serverOf(authority, nodeRequest(), RoleOperator))
		var peer *PeerError
		if ok != (clientErr == nil) || !ok && !errors.As(clientErr, &peer) {
			t.Errorf("the name %s is wanted: %v", name, clientErr)
		}
	}
}

func handshake(t *testing.T, client, server *tls.Config) (clientErr, serverErr error) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	deadline := time.Now().Add(10 * time.Second)
	done := make(chan error, 1)
	go func() {
		there, err := listener.Accept()
		if err != nil {
			done <- err
			return
		}
		defer there.Close()
		_ = there.SetDeadline(deadline)
		connection := tls.Server(there, server)
		err = connection.Handshake()
		if err == nil {
			_, err = connection.Write([]byte("x"))
		}
		done <- err
	}()
	here, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	_ = here.SetDeadline(deadline)
	connection := tls.Client(here, client)
	clientErr = connection.Handshake()
	if clientErr == nil {
		// In TLS 1.3 a server's refusal arrives with the first read.
		_, _ = connection.Read(make([]byte, 1))
	}
	_ = here.Close()
	return clientErr, <-done
}

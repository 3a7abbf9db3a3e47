// SPDX-License-Identifier: Apache-2.0

// Package pki makes and renews the certificates of a pool: one authority for each pool, and one certificate for each role.
// Every function is pure: secrets, the time and randomness go in, secrets come out.
package pki

import (
	"bytes"
	"cmp"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"
)

// Keys of the Secrets.
const (
	KeyCABundle    = "ca.crt"
	KeyCertificate = "tls.crt"
	KeyPrivateKey  = "tls.key"

	keyNextCertificate = "next.crt"
	keyNextPrivateKey  = "next.key"
)

// Lifetimes. Everything is renewed at half its life, so that a cluster may be without its operator for the other half.
const (
	authorityLifetime   = 10 * 365 * 24 * time.Hour
	certificateLifetime = 90 * 24 * time.Hour
	operatorLifetime    = 24 * time.Hour

	// A new authority is trusted for this long before it signs, so that each process has read it by then.
	promotionDelay = 24 * time.Hour

	// Clocks of nodes differ.
	clockSkew = 5 * time.Minute
)

// pair is a certificate and its key, with the forms that files have.
type pair struct {
	certificate    *x509.Certificate
	key            *ecdsa.PrivateKey
	certificatePEM []byte
	keyPEM         []byte
}

// Authority is the certificate authority of one pool.
type Authority struct {
	signing  pair
	next     *pair
	previous []*x509.Certificate
	// random makes the keys of what it signs.
	random io.Reader
}

// Data is the content of a Secret.
type Data map[string][]byte

// RenewAuthority returns the authority that data holds, brought up to date: made if there is none, with a successor at half its life, and the
// successor promoted once every process trusts it. changed says whether the Secret must be written.
func RenewAuthority(data Data, poolUID string, now time.Time, random io.Reader) (authority *Authority, changed bool, err error) {
	authority, err = parseAuthority(data)
	if err != nil {
		return nil, false, err
	}
	if authority != nil {
		authority.random = random
	}
	if authority == nil || !now.Before(authority.signing.certificate.NotAfter) {
		signing, err := newAuthorityPair(poolUID, now, random)
		if err != nil {
			return nil, false, err
		}
		return &Authority{signing: *signing, random: random}, true, nil
	}
	if authority.next == nil && !now.Before(halfLife(authority.signing.certificate)) {
		if authority.next, err = newAuthorityPair(poolUID, now, random); err != nil {
			return nil, false, err
		}
		changed = true
	}
	if authority.next != nil && !now.Before(authority.next.certificate.NotBefore.Add(clockSkew).Add(promotionDelay)) {
		authority.previous = append([]*x509.Certificate{authority.signing.certificate}, authority.previous...)
		authority.signing, authority.next = *authority.next, nil
		changed = true
	}
	var trusted []*x509.Certificate
	for _, previous := range authority.previous {
		if now.Before(previous.NotAfter) {
			trusted = append(trusted, previous)
		} else {
			changed = true
		}
	}
	authority.previous = trusted
	return authority, changed, nil
}

func newAuthorityPair(poolUID string, now time.Time, random io.Reader) (*pair, error) {
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "farpool pool " + poolUID},
		NotBefore:             now.Add(-clockSkew),
		NotAfter:              now.Add(authorityLifetime),
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLenZero:        true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	return issue(template, nil, random)
}

// HeldAuthority returns the authority that data holds, as it is, for one who signs with it and does not renew it; nil: it holds none.
func HeldAuthority(data Data, random io.Reader) (*Authority, error) {
	authority, err := parseAuthority(data)
	if authority != nil {
		authority.random = random
	}
	return authority, err
}

// parseAuthority reads a Secret; an empty one is no authority.
func parseAuthority(data Data) (*Authority, error) {
	if len(data) == 0 {
		return nil, nil
	}
	signing, err := parsePair(data[KeyCertificate], data[KeyPrivateKey])
	if err != nil {
		return nil, fmt.Errorf("the authority's Secret is damaged: %w: restore it, or delete it to have a new authority made", err)
	}
	authority := &Authority{signing: *signing}
	if len(data[keyNextCertificate]) > 0 {
		if authority.next, err = parsePair(data[keyNextCertificate], data[keyNextPrivateKey]); err != nil {
			return nil, fmt.Errorf("the authority's Secret is damaged: its successor: %w: remove next.crt and next.key from it", err)
		}
	}
	bundle, err := parseCertificates(data[KeyCABundle])
	if err != nil {
		return nil, fmt.Errorf("the authority's Secret is damaged: its bundle: %w: copy tls.crt to ca.crt", err)
	}
	for _, certificate := range bundle {
		if !certificate.Equal(signing.certificate) && (authority.next == nil || !certificate.Equal(authority.next.certificate)) {
			authority.previous = append(authority.previous, certificate)
		}
	}
	return authority, nil
}

// Data is the authority as its Secret holds it.
func (a *Authority) Data() Data {
	data := Data{
		KeyCABundle:    a.Bundle(),
		KeyCertificate: a.signing.certificatePEM,
		KeyPrivateKey:  a.signing.keyPEM,
	}
	if a.next != nil {
		data[keyNextCertificate] = a.next.certificatePEM
		data[keyNextPrivateKey] = a.next.keyPEM
	}
	return data
}

// Bundle is every certificate that members of the pool trust.
func (a *Authority) Bundle() []byte {
	var bundle bytes.Buffer
	bundle.Write(a.signing.certificatePEM)
	if a.next != nil {
		bundle.Write(a.next.certificatePEM)
	}
	for _, previous := range a.previous {
		bundle.Write(certificatePEM(previous.Raw))
	}
	return bundle.Bytes()
}

// rootsOf a bundle. Certificates that are parsed take several times as much as what they are parsed from.
func rootsOf(bundle []byte) *x509.CertPool {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	return roots
}

// RenewAt is when RenewAuthority next has something to do.
func (a *Authority) RenewAt() time.Time {
	if a.next != nil {
		return a.next.certificate.NotBefore.Add(clockSkew).Add(promotionDelay)
	}
	return halfLife(a.signing.certificate)
}

// A Request says what a certificate shall be good for.
type Request struct {
	Identity Identity // its URI; a zero one gives a certificate without any, which opens nothing inside the pool
	DNSNames []string
	Client   bool
	Server   bool
	// Lifetime of the certificate; zero: that of members of the pool.
	Lifetime time.Duration
	// Sessions is how many sessions clients with the certificate may have together at each memory node, which counts them by the identity's name; zero: as
	// many as there are.
	Sessions int32
}

// sessionsUnit begins the organizational unit of a subject that says how many sessions a certificate is good for. Memory nodes from before it ignore it; a second
// URI they would refuse.
const sessionsUnit = "farpool-sessions:"

// RenewCertificate returns the Secret of a certificate, brought up to date: made anew if it is missing, damaged, past half its life, for something
// else, or not signed by the authority's present key. renewAt is when it next has something to do.
func (a *Authority) RenewCertificate(data Data, request Request, now time.Time) (renewed Data, changed bool, renewAt time.Time, err error) {
	if current, ok := a.current(data, request, now); ok {
		return data, false, halfLife(current), nil
	}
	made, err := a.sign(request, now, cmp.Or(request.Lifetime, certificateLifetime))
	if err != nil {
		return nil, false, time.Time{}, err
	}
	renewed = Data{KeyCABundle: a.Bundle(), KeyCertificate: made.certificatePEM, KeyPrivateKey: made.keyPEM}
	return renewed, true, halfLife(made.certificate), nil
}

func (a *Authority) current(data Data, request Request, now time.Time) (*x509.Certificate, bool) {
	held, err := parsePair(data[KeyCertificate], data[KeyPrivateKey])
	if err != nil || !bytes.Equal(data[KeyCABundle], a.Bundle()) || !now.Before(halfLife(held.certificate)) {
		return nil, false
	}
	if !signs(a.signing.certificate, held.certificate) {
		return nil, false
	}
	template := request.template()
	if !slices.Equal(held.certificate.Subject.OrganizationalUnit, template.Subject.OrganizationalUnit) {
		return nil, false
	}
	if len(held.certificate.DNSNames) != len(template.DNSNames) || len(held.certificate.URIs) != len(template.URIs) {
		return nil, false
	}
	for i, name := range template.DNSNames {
		if held.certificate.DNSNames[i] != name {
			return nil, false
		}
	}
	for i, uri := range template.URIs {
		if held.certificate.URIs[i].String() != uri.String() {
			return nil, false
		}
	}
	return held.certificate, true
}

// checked are signatures that were found good, by the hashes of both certificates: each pool's are looked at whenever the pool is. It is emptied when it is full.
var checked = struct {
	sync.Mutex
	good map[[2][sha256.Size]byte]bool
}{good: map[[2][sha256.Size]byte]bool{}}

const mostChecked = 1 << 14

// signs says whether authority has signed a certificate.
func signs(authority, certificate *x509.Certificate) bool {
	key := [2][sha256.Size]byte{sha256.Sum256(authority.Raw), sha256.Sum256(certificate.Raw)}
	checked.Lock()
	good := checked.good[key]
	checked.Unlock()
	if good {
		return true
	}
	if certificate.CheckSignatureFrom(authority) != nil {
		return false
	}
	checked.Lock()
	defer checked.Unlock()
	if len(checked.good) >= mostChecked {
		clear(checked.good)
	}
	checked.good[key] = true
	return true
}

func (r Request) template() *x509.Certificate {
	template := &x509.Certificate{DNSNames: r.DNSNames, KeyUsage: x509.KeyUsageDigitalSignature, BasicConstraintsValid: true}
	if r.Client {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageClientAuth)
	}
	if r.Server {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	if r.Identity != (Identity{}) {
		template.URIs = []*url.URL{r.Identity.uri()}
		template.Subject.CommonName = r.Identity.Name
	} else if len(r.DNSNames) > 0 {
		template.Subject.CommonName = r.DNSNames[0]
	}
	if r.Sessions > 0 {
		template.Subject.OrganizationalUnit = []string{sessionsUnit + strconv.Itoa(int(r.Sessions))}
	}
	if len(template.Subject.CommonName) > 64 {
		template.Subject.CommonName = template.Subject.CommonName[:64]
	}
	return template
}

func (a *Authority) sign(request Request, now time.Time, lifetime time.Duration) (*pair, error) {
	template := request.template()
	template.NotBefore = now.Add(-clockSkew)
	template.NotAfter = now.Add(lifetime)
	return issue(template, &a.signing, a.random)
}

// Credential is what the operator shows to agents: kept in memory, never in a Secret.
type Credential struct {
	Certificate tls.Certificate
	RenewAt     time.Time
	// Bundle is what members of the pool trust, and shows whether the authority has changed since. It is parsed for each handshake.
	Bundle []byte
}

// OperatorCredential makes a short-lived certificate of role operator.
func (a *Authority) OperatorCredential(poolUID, name string, now time.Time) (*Credential, error) {
	made, err := a.sign(Request{Identity: Identity{PoolUID: poolUID, Role: RoleOperator, Name: name}, Client: true}, now, operatorLifetime)
	if err != nil {
		return nil, err
	}
	certificate, err := tls.X509KeyPair(made.certificatePEM, made.keyPEM)
	if err != nil {
		return nil, err
	}
	// It is parsed again for each handshake: those are rare, and an operator has a credential for each pool.
	certificate.Leaf = nil
	return &Credential{Certificate: certificate, RenewAt: halfLife(made.certificate), Bundle: a.Bundle()}, nil
}

func halfLife(certificate *x509.Certificate) time.Time {
	return certificate.NotBefore.Add(certificate.NotAfter.Sub(certificate.NotBefore) / 2)
}

// issue makes a key and a certificate for it; without a signer the certificate signs itself.
func issue(template *x509.Certificate, signer *pair, random io.Reader) (*pair, error) {
	key, err := newKey(random)
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	template.SerialNumber, err = rand.Int(random, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("draw a serial number: %w", err)
	}
	parent, parentKey := template, key
	if signer != nil {
		parent, parentKey = signer.certificate, signer.key
		if template.NotAfter.After(parent.NotAfter) {
			template.NotAfter = parent.NotAfter
		}
	}
	// Without randomness, signatures are those of RFC 6979.
	der, err := x509.CreateCertificate(nil, template, parent, &key.PublicKey, parentKey)
	if err != nil {
		return nil, fmt.Errorf("sign a certificate for %q: %w", template.Subject.CommonName, err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return &pair{
		certificate:    certificate,
		key:            key,
		certificatePEM: certificatePEM(der),
		keyPEM:         pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}),
	}, nil
}

// newKey draws a key. ecdsa.GenerateKey does not draw from a reader of the caller's.
func newKey(random io.Reader) (*ecdsa.PrivateKey, error) {
	const attempts = 8 // of which each fails once in four billion times
	var err error
	for range attempts {
		scalar := make([]byte, 32)
		if _, err := io.ReadFull(random, scalar); err != nil {
			return nil, err
		}
		var key *ecdsa.PrivateKey
		if key, err = ecdsa.ParseRawPrivateKey(elliptic.P256(), scalar); err == nil {
			return key, nil
		}
	}
	return nil, err
}

// Overdue is when two thirds of the life of a Secret's certificate have passed: it is renewed at half of it. Zero: the Secret has none.
func Overdue(data Data) time.Time {
	certificates, err := parseCertificates(data[KeyCertificate])
	if err != nil {
		return time.Time{}
	}
	life := certificates[0].NotAfter.Sub(certificates[0].NotBefore)
	return certificates[0].NotAfter.Add(-life / 3)
}

// SameHolder says whether a Secret holds a key and a certificate in the name that another Secret's certificate has, signed by an authority of the other's bundle.
// It may have ended.
func SameHolder(data, other Data) bool {
	held, err := parsePair(data[KeyCertificate], data[KeyPrivateKey])
	if err != nil {
		return false
	}
	certificates, err := parseCertificates(other[KeyCertificate])
	if err != nil {
		return false
	}
	authorities, err := parseCertificates(other[KeyCABundle])
	if err != nil {
		return false
	}
	holder, err := IdentityOf(held.certificate)
	if err != nil {
		return false
	}
	wanted, err := IdentityOf(certificates[0])
	return err == nil && holder == wanted &&
		slices.ContainsFunc(authorities, func(authority *x509.Certificate) bool { return signs(authority, held.certificate) })
}

func certificatePEM(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func parsePair(certificateData, keyData []byte) (*pair, error) {
	certificates, err := parseCertificates(certificateData)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(keyData)
	if block == nil {
		return nil, fmt.Errorf("no PEM block in the private key")
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("the private key: %w", err)
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok || !key.PublicKey.Equal(certificates[0].PublicKey) {
		return nil, fmt.Errorf("the private key is not the certificate's")
	}
	return &pair{certificate: certificates[0], key: key, certificatePEM: certificateData, keyPEM: keyData}, nil
}

func parseCertificates(data []byte) ([]*x509.Certificate, error) {
	var certificates []*x509.Certificate
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("the certificate: %w", err)
		}
		certificates = append(certificates, certificate)
	}
	if len(certificates) == 0 {
		return nil, fmt.Errorf("no PEM block in the certificate")
	}
	return certificates, nil
}

// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"time"
)

// ClientConfig is TLS towards a member of the pool. Addresses change with each pod, so that hosts are not checked: pool and
// role are, and the name, if there is one.
func (c *Credential) ClientConfig(poolUID string, peer Role, name string) *tls.Config {
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{c.Certificate},
		// The standard check would want a host name; VerifyConnection below checks the chain, the pool and the role.
		InsecureSkipVerify: true,
		VerifyConnection: func(state tls.ConnectionState) error {
			return verifyPeer(state.PeerCertificates, rootsOf(c.Bundle), x509.ExtKeyUsageServerAuth, poolUID, peer, name)
		},
	}
}

// ServerConfig is TLS of a member of the pool that admits one role.
func ServerConfig(certificate tls.Certificate, roots *x509.CertPool, poolUID string, peer Role) *tls.Config {
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{certificate},
		ClientAuth:   tls.RequireAnyClientCert,
		VerifyConnection: func(state tls.ConnectionState) error {
			return verifyPeer(state.PeerCertificates, roots, x509.ExtKeyUsageClientAuth, poolUID, peer, "")
		},
	}
}

// CheckServed checks a certificate of people with its key, as a server shows it, and returns when it ends. The error says what is missing or wrong.
func CheckServed(data Data, now time.Time) (ends time.Time, err error) {
	for _, key := range []string{KeyCertificate, KeyPrivateKey} {
		if len(data[key]) == 0 {
			return time.Time{}, fmt.Errorf("it has no %s", key)
		}
	}
	pair, err := tls.X509KeyPair(data[KeyCertificate], data[KeyPrivateKey])
	if err != nil {
		return time.Time{}, fmt.Errorf("its %s and %s: %w", KeyCertificate, KeyPrivateKey, err)
	}
	if ends = pair.Leaf.NotAfter; !now.Before(ends) {
		return time.Time{}, fmt.Errorf("its certificate has ended on %s", ends.UTC().Format(time.RFC3339))
	}
	if authorities := data[KeyCABundle]; len(authorities) > 0 {
		if _, err := parseCertificates(authorities); err != nil {
			return time.Time{}, fmt.Errorf("its %s: %w", KeyCABundle, err)
		}
	}
	return ends, nil
}

// A PeerError says that another party answered than the right one: certainty, not a lost connection.
type PeerError struct{ reason string }

func (e *PeerError) Error() string { return e.reason }

func verifyPeer(chain []*x509.Certificate, roots *x509.CertPool, usage x509.ExtKeyUsage, poolUID string, role Role, name string) error {
	if len(chain) == 0 {
		return &PeerError{"the peer showed no certificate"}
	}
	intermediates := x509.NewCertPool()
	for _, certificate := range chain[1:] {
		intermediates.AddCert(certificate)
	}
	options := x509.VerifyOptions{Roots: roots, Intermediates: intermediates, KeyUsages: []x509.ExtKeyUsage{usage}}
	if _, err := chain[0].Verify(options); err != nil {
		return &PeerError{fmt.Sprintf("the peer's certificate is not of this pool: %v", err)}
	}
	identity, err := IdentityOf(chain[0])
	if err != nil {
		return &PeerError{err.Error()}
	}
	if identity.PoolUID != poolUID || identity.Role != role {
		return &PeerError{fmt.Sprintf("the peer is %s, but pool %s and role %s are wanted", identity, poolUID, role)}
	}
	if name != "" && identity.Name != name {
		return &PeerError{fmt.Sprintf("the peer is %s, but the name %s is wanted", identity, name)}
	}
	return nil
}
